//! JSON in fewer bytes: what was said before is named by where it stands.
//!
//! Objects of one kind say much alike, and each of them names its hosts several times. A plain Lempel-Ziv, since such texts are
//! short: each is packed as if a text that says what many do stood before it, and unpacking one costs less than reading its JSON.
//!
//! JSON that `serde_json` writes has no bytes below 0x20. So all other bytes stand for themselves, and one below begins a copy:
//! its length less [`SHORTEST`], then how far back it is, of 16 bits.

use std::sync::LazyLock;

/// What many objects say, as each of them would.
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

/// The shortest copy: it takes 3 bytes.
const SHORTEST: usize = 4;
/// How many lengths a copy may have.
const LENGTHS: usize = 0x20;
/// Where four bytes stood last, by their hash; 0 for nowhere.
type LastPlaces = [u16; 1 << HASH_BITS];
const HASH_BITS: u32 = 12;

/// That of [`COMMON`].
static PLACES: LazyLock<Box<LastPlaces>> = LazyLock::new(|| {
    let mut places = Box::new([0; 1 << HASH_BITS]);
    for at in 0..COMMON.len() {
        note(&mut places, COMMON.as_bytes(), at);
    }
    places
});

/// Packs JSON as `serde_json` writes it.
pub(super) fn pack(json: &str) -> Vec<u8> {
    let all = [COMMON.as_bytes(), json.as_bytes()].concat();
    let mut places = PLACES.clone();
    let mut packed = Vec::with_capacity(json.len());
    let mut at = COMMON.len();
    while let Some(byte) = all.get(at) {
        let copied = note(&mut places, &all, at).and_then(|from| {
            let distance = u16::try_from(at - from).ok()?;
            let most = (SHORTEST + LENGTHS - 1).min(all.len() - at);
            let [here, there] = [at, from].map(|start| &all[start..start + most]);
            let same = same(here, there);
            (same >= SHORTEST).then_some((same, distance))
        });
        match copied {
            Some((same, distance)) => {
                packed.push((same - SHORTEST) as u8);
                packed.extend_from_slice(&distance.to_le_bytes());
                // Where a copy begins and ends is what is copied again.
                for at in [at + 1, at + same - 1] {
                    note(&mut places, &all, at);
                }
                at += same;
            }
            None => {
                packed.push(*byte);
                at += 1;
            }
        }
    }
    packed
}

/// How many bytes two texts begin with alike: by eights first, which is what packing spends its time on.
fn same(one: &[u8], other: &[u8]) -> usize {
    let eights = one.as_chunks::<8>().0.iter().zip(other.as_chunks::<8>().0);
    let whole = 8 * eights.take_while(|(one, other)| one == other).count();
    let rest = one[whole..].iter().zip(&other[whole..]);
    whole + rest.take_while(|(one, other)| one == other).count()
}

/// Notes what stands at a place, and where it stood before.
fn note(places: &mut LastPlaces, all: &[u8], at: usize) -> Option<usize> {
    let four = all.get(at..)?.first_chunk::<SHORTEST>()?;
    let hash = u32::from_le_bytes(*four).wrapping_mul(0x9E37_79B1) >> (u32::BITS - HASH_BITS);
    // What stands behind 64 KiB is no matter: it stays as it is.
    let place = &mut places[hash as usize];
    let before = std::mem::replace(place, u16::try_from(at).ok()?);
    (before != 0).then_some(before.into())
}

/// Has `read` read what was packed.
pub(super) fn unpacked<T>(packed: &[u8], read: impl FnOnce(&[u8]) -> T) -> T {
    let mut all = Vec::with_capacity(COMMON.len() + 4 * packed.len());
    all.extend(COMMON.as_bytes());
    let mut rest = packed;
    while !rest.is_empty() {
        let own = rest.iter().take_while(|byte| usize::from(**byte) >= LENGTHS).count();
        let (own, behind) = rest.split_at(own);
        all.extend_from_slice(own);
        let [length, low, high, behind @ ..] = behind else { break };
        rest = behind;
        let from = all.len().saturating_sub(u16::from_le_bytes([*low, *high]).into());
        let end = from + usize::from(*length) + SHORTEST;
        if end <= all.len() {
            all.extend_from_within(from..end);
        } else {
            // It reaches into what it writes itself.
            (from..end).for_each(|at| all.push(all[at]));
        }
    }
    read(&all[COMMON.len()..])
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_packed_comes_out_as_it_was() {
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
            assert!(packed.len() <= text.len());
            unpacked(&packed, |bytes| assert_eq!(bytes, text.as_bytes()));
        }
    }

    #[test]
    fn a_rule_takes_less_than_half() {
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
