//! `strait cluster add --istio-service`: creates the DNS name of Istio's control plane in a cluster
//! without a control plane, for Istio's agents.
//!
//! The Service `istiod` has no pods: an EndpointSlice contains the address of the control plane,
//! or, for a DNS name, the Service itself.

use std::net::IpAddr;

use serde_json::{Value, json};

/// Name of the Service. The control plane's certificate contains `istiod.NAMESPACE.svc`.
const NAME: &str = "istiod";
const SLICE: &str = "istiod-strait";

/// Parses the address of `--istio-service`.
///
/// # Errors
/// If it is neither an IP address nor a DNS name.
pub(super) fn address(text: &str) -> Result<String, String> {
    let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
    match bare.parse::<IpAddr>() {
        Ok(ip) if ip.is_loopback() || ip.is_unspecified() => {
            Err("pods of the cluster can't reach the control plane there".to_owned())
        }
        Ok(ip) => Ok(ip.to_string()),
        Err(_) if strait_bootstrap::is_host(bare) && bare.contains('.') => {
            Ok(bare.to_ascii_lowercase())
        }
        Err(_) => Err("expected an IP address or a DNS name, without a port".to_owned()),
    }
}

/// Returns the objects, in the order in which they can be created.
pub(super) fn manifests(namespace: &str, address: &str) -> Vec<Value> {
    let labels = json!({
        "app.kubernetes.io/name": NAME,
        "app.kubernetes.io/part-of": "strait",
        "app.kubernetes.io/managed-by": "strait",
    });
    let metadata =
        |name: &str| json!({ "name": name, "namespace": namespace, "labels": labels.clone() });
    let ports = [("grpc-xds", 15012), ("https-inject", 443)];
    let space =
        json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": namespace } });
    let mut service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": metadata(NAME),
        "spec": {
            "ports": ports.map(|(name, port)| json!({ "name": name, "port": port, "targetPort": port, "protocol": "TCP" })),
        },
    });
    let Ok(ip) = address.parse::<IpAddr>() else {
        service["spec"]["type"] = json!("ExternalName");
        service["spec"]["externalName"] = json!(address);
        return vec![space, service];
    };
    let mut slice = json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": metadata(SLICE),
        "addressType": if ip.is_ipv6() { "IPv6" } else { "IPv4" },
        "endpoints": [{ "addresses": [address], "conditions": { "ready": true } }],
        "ports": ports.map(|(name, port)| json!({ "name": name, "port": port, "protocol": "TCP" })),
    });
    slice["metadata"]["labels"]["kubernetes.io/service-name"] = json!(NAME);
    slice["metadata"]["labels"]["endpointslice.kubernetes.io/managed-by"] = json!("strait.dev");
    if ip.is_ipv6() {
        service["spec"]["ipFamilies"] = json!(["IPv6"]);
    }
    vec![space, service, slice]
}

/// Returns the objects in the cluster's own namespace, with only their names.
pub(super) fn named(namespace: &str) -> [Value; 2] {
    [("Service", NAME), ("EndpointSlice", SLICE)].map(|(kind, name)| {
        json!({ "kind": kind, "metadata": { "name": name, "namespace": namespace } })
    })
}

/// Returns the lines of the plan that describe the Service.
pub(super) fn plan_text(namespace: &str, address: &str) -> String {
    let mut text = format!(
        "  namespace {namespace} with service {NAME} without pods, which routes to {address}: for Istio's agents\n"
    );
    if namespace != "istio-system" {
        text +=
            "  ! by default, agents connect to istiod.istio-system.svc: --namespace istio-system\n";
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_addresses_that_pods_can_reach_are_accepted() {
        for (text, expected) in [
            ("10.0.0.1", "10.0.0.1"),
            ("[fd00::1]", "fd00::1"),
            ("Strait.Example", "strait.example"),
        ] {
            assert_eq!(address(text).as_deref(), Ok(expected));
        }
        for text in ["127.0.0.1", "::", "strait", "a_b.c", "10.0.0.1:15012", ""] {
            assert!(address(text).is_err(), "{text}");
        }
    }

    #[test]
    fn dns_names_need_no_slice_and_addresses_need_one_of_their_family() {
        let kinds = |address: &str| {
            let made = manifests("istio-system", address);
            made.iter()
                .map(|one| one["kind"].as_str().unwrap_or_default().to_owned())
                .collect::<Vec<_>>()
        };
        assert_eq!(kinds("strait.example"), ["Namespace", "Service"]);
        assert_eq!(kinds("10.0.0.1"), ["Namespace", "Service", "EndpointSlice"]);
        let made = manifests("istio-system", "fd00::1");
        assert_eq!(made[2]["addressType"], "IPv6");
        assert_eq!(made[1]["spec"]["ipFamilies"], json!(["IPv6"]));
        assert!(made[1]["spec"].get("selector").is_none());
    }
}
