//! Names of Kubernetes' Ingress API that several modules use, and the status of an Ingress. Pure.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::{Value, json};

use super::ObjectKey;

/// The API group.
pub const INGRESS_API: &str = "networking.k8s.io";

/// The addresses that must be written into the status of an Ingress. (Kubernetes,
/// `IngressLoadBalancerStatus`.)
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IngressStatus {
    /// The key of the Ingress.
    pub key: ObjectKey,
    /// The generation of the Ingress to which this applies.
    pub generation: i64,
    /// IP addresses and hostnames.
    pub addresses: Arc<[Arc<str>]>,
}

impl IngressStatus {
    /// Returns the `loadBalancer` to merge into a status, or `None` if the status already contains
    /// these addresses in any order.
    pub fn merged(&self, status: &Value) -> Option<Value> {
        let current = status.pointer("/loadBalancer/ingress").and_then(Value::as_array);
        let address = |one: &Value| {
            let texts = ["ip", "hostname"].map(|field| one[field].as_str().map(Arc::<str>::from));
            texts.into_iter().flatten().next().unwrap_or_default()
        };
        let current: BTreeSet<Arc<str>> = current.into_iter().flatten().map(address).collect();
        if current == self.addresses.iter().cloned().collect() {
            return None;
        }
        let entry = |address: &Arc<str>| match address.parse::<std::net::IpAddr>() {
            Ok(_) => json!({ "ip": address }),
            Err(_) => json!({ "hostname": address }),
        };
        let entries: Vec<Value> = self.addresses.iter().map(entry).collect();
        // Merging a null value removes the list.
        let entries = if entries.is_empty() { Value::Null } else { entries.into() };
        Some(json!({ "ingress": entries }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_written_only_if_they_differ() {
        let status = |addresses: &[&str]| IngressStatus {
            key: ObjectKey {
                kind: "Ingress".into(),
                group: INGRESS_API.into(),
                namespace: "shop".into(),
                name: "web".into(),
            },
            generation: 1,
            addresses: addresses.iter().map(|one| Arc::from(*one)).collect(),
        };
        let both = status(&["203.0.113.9", "edge.example"]);
        let first_change = both.merged(&Value::Null).expect("nothing is said");
        let entries = json!([{ "ip": "203.0.113.9" }, { "hostname": "edge.example" }]);
        assert_eq!(first_change, json!({ "ingress": entries }));
        let turned =
            json!([{ "hostname": "edge.example" }, { "ip": "203.0.113.9", "ipMode": "VIP" }]);
        let current_status = json!({ "loadBalancer": { "ingress": turned } });
        assert_eq!(both.merged(&current_status), None);
        assert_eq!(status(&[]).merged(&current_status), Some(json!({ "ingress": null })));
        assert_eq!(status(&[]).merged(&json!({ "loadBalancer": {} })), None);
    }
}
