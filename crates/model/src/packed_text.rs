//! Compression of JSON texts.
//!
//! Objects of one kind have much text in common, and each object repeats its hosts. Each object is
//! a separate LZ4 block, compressed with a dictionary of typical content, to a quarter or a third
//! of its size.

use lz4_flex::block::{
    compress_prepend_size_with_dict, decompress_into_with_dict, uncompressed_size,
};

/// The dictionary: typical content of objects.
const COMMON: &str = concat!(
    r#"{"apiVersion":"security.istio.io/v1","kind":"AuthorizationPolicy","metadata":{"#,
    r#""annotations":{},"labels":{"app":"}},"spec":{"action":"ALLOW","action":"DENY","rules":[{"#,
    r#""from":[{"source":{"namespaces":["","notPrincipals":["principals":["cluster.local/ns/"]}"#,
    r#"}],"to":[{"operation":{"methods":["GET","POST"],"paths":["/api/v1/*"]}}],"when":[{"#,
    r#""key":"request.auth.claims[","values":["selector":{"matchLabels":{"app":"","#,
    r#""kind":"PeerAuthentication","mtls":{"mode":"STRICT"}"kind":"RequestAuthentication","#,
    r#""jwtRules":[{"issuer":"https://","jwksUri":"https://"kind":"ServiceEntry","#,
    r#""location":"MESH_EXTERNAL","location":"MESH_INTERNAL","ports":[{"name":"http","#,
    r#""number":80,"protocol":"HTTP"},{"name":"https","number":443,"protocol":"HTTPS"}],"#,
    r#""resolution":"DNS","resolution":"STATIC","endpoints":[{"address":"10.0.0.","ports":{"#,
    r#""workloadSelector":{"labels":{"app":""kind":"Gateway","selector":{"#,
    r#""istio":"ingressgateway"},"servers":[{"hosts":["port":{"tls":{"#,
    r#""credentialName":""kind":"Sidecar","egress":[{"hosts":["./*","istio-system/*"],"#,
    r#""kind":"Telemetry","kind":"EnvoyFilter",{"apiVersion":"gateway.networking.k8s.io/v1","#,
    r#""kind":"HTTPRoute","spec":{"hostnames":["parentRefs":[{"group":"","kind":"Service","#,
    r#""name":""rules":[{"backendRefs":[{"name":"","port":80,"weight":1}],"filters":[{"#,
    r#""type":"matches":[{"path":{"type":"PathPrefix","value":"/"exportTo":["."],"#,
    r#""exportTo":["*"],"labels":{"app.kubernetes.io/instance":"app.kubernetes.io/managed-by":""#,
    r#"Helm","app.kubernetes.io/name":"helm.sh/chart":"","annotations":{"#,
    r#""meta.helm.sh/release-name":"","meta.helm.sh/release-namespace":"{"#,
    r#""apiVersion":"networking.istio.io/v1beta1","kind":"{"#,
    r#""apiVersion":"networking.istio.io/v1","kind":"DestinationRule","metadata":{"#,
    r#""creationTimestamp":"2026-01-01T00:00:00Z","generation":1,"name":"","#,
    r#""namespace":"default","resourceVersion":"1","uid":""},"spec":{"#,
    r#""host":".svc.cluster.local","subsets":[{"labels":{"version":"v1"},"name":"v1"},{"#,
    r#""labels":{"version":"v2"},"name":"v2"}],"trafficPolicy":{"connectionPool":{"http":{"#,
    r#""http1MaxPendingRequests":1,"http2MaxRequests":100,"idleTimeout":"30s","#,
    r#""maxRequestsPerConnection":10,"maxRetries":3},"tcp":{"connectTimeout":"10s","#,
    r#""maxConnections":100}},"loadBalancer":{"consistentHash":{"httpHeaderName":"x-{"#,
    r#""simple":"LEAST_REQUEST"},{"simple":"ROUND_ROBIN"},"localityLbSetting":{"enabled":true},"#,
    r#""outlierDetection":{"baseEjectionTime":"30s","consecutive5xxErrors":5,"interval":"10s","#,
    r#""maxEjectionPercent":50},"portLevelSettings":[{"port":{"number":80},"tls":{"#,
    r#""mode":"ISTIO_MUTUAL"}}}}{"apiVersion":"networking.istio.io/v1","kind":"VirtualService","#,
    r#""metadata":{"creationTimestamp":"2026-01-01T00:00:00Z","generation":1,"name":"","#,
    r#""namespace":"default","resourceVersion":"1","uid":""},"spec":{"gateways":["mesh"],"#,
    r#""hosts":[".default.svc.cluster.local"],"http":[{"match":[{"headers":{"end-user":{"#,
    r#""exact":""}}}],"uri":{"prefix":"/"}}],"name":""retries":{"attempts":3,"#,
    r#""perTryTimeout":"2s","retryOn":"5xx,connect-failure,refused-stream"},"rewrite":{"#,
    r#""uri":"/"},"route":[{"destination":{"host":"","port":{"number":80},"subset":"v1"},"#,
    r#""weight":90},{"destination":{"host":"subset":"v2"},"weight":10}],"timeout":"10s"},{"#,
    r#""route":[{"destination":{"host":""}}]}]}}"#,
);

/// Compresses a text. Equal texts give equal bytes.
pub(super) fn pack(json: &str) -> Vec<u8> {
    compress_prepend_size_with_dict(json.as_bytes(), COMMON.as_bytes())
}

/// Decompresses a text.
pub(super) fn unpack(packed: &[u8]) -> Vec<u8> {
    let mut text = Vec::new();
    unpack_into(packed, &mut text);
    text
}

/// Decompresses a text and appends it to `out`.
pub(super) fn unpack_into(packed: &[u8], out: &mut Vec<u8>) {
    let Ok((length, packed)) = uncompressed_size(packed) else { return };
    let start = out.len();
    out.resize(start + length, 0);
    let written = decompress_into_with_dict(packed, &mut out[start..], COMMON.as_bytes());
    // Compressed texts never leave the process, so they are valid.
    debug_assert_eq!(written.ok(), Some(length));
}

/// Returns the length of the text before compression, in bytes.
pub(super) fn length(packed: &[u8]) -> usize {
    uncompressed_size(packed).map_or(0, |(length, _)| length)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn compressed_text_round_trips() {
        let numbers: Vec<u32> = (0..50_000).collect();
        for value in [
            json!({}),
            json!("\u{1}\n\u{7f}é\u{1F600}"),
            json!("x".repeat(5000)),
            json!("é".repeat(100_000)),
            json!(numbers),
            json!({ "kind": "VirtualService", "spec": { "hosts": ["a.b", "a.b"], "http": null } }),
        ] {
            let text = value.to_string();
            let packed = pack(&text);
            assert!(packed.len() <= text.len() + 8);
            assert_eq!(unpack(&packed), text.as_bytes());
            let mut behind = b"before".to_vec();
            unpack_into(&packed, &mut behind);
            assert_eq!(behind, format!("before{text}").as_bytes());
            assert_eq!(length(&packed), text.len());
        }
    }

    #[test]
    fn rule_is_compressed_to_less_than_half() {
        let host = "reviews.shop.svc.cluster.local";
        let route = json!({ "destination": { "host": host, "subset": "v2" }, "weight": 25 });
        let text = json!({
            "apiVersion": "networking.istio.io/v1", "kind": "VirtualService",
            "metadata": { "namespace": "shop", "name": "reviews", "labels": {} },
            "spec": { "hosts": [host], "http": [{ "route": [route, route], "timeout": "5s" }] },
        });
        let text = text.to_string();
        assert!(pack(&text).len() * 2 < text.len());
    }
}
