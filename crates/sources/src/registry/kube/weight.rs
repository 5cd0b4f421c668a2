//! The approximate memory use of a cluster's stored objects. The estimate serves as a limit, so it
//! is rather too high than too low. Shared values are charged to each user in equal parts.

use std::collections::BTreeMap;
use std::mem::size_of;
use std::sync::Arc;

use strait_kube_client::NamespacedName;
use strait_model::{Definition, Labels, Port, Profile, Service, Workload};

/// Overhead of a value in a map or a pool, in bytes.
pub(super) const NODE: usize = 48;
/// Size of an endpoint, as listed and as sent, at each port, in bytes.
pub(super) const ENDPOINT: usize = 32;

/// A value that takes memory.
pub(super) trait MemoryWeight {
    /// Returns its approximate size in bytes.
    fn weight(&self) -> usize;
}

/// Returns a user's part of a shared value. One reference is not a user: the pool, which releases
/// the value with its last user.
fn part<T: ?Sized>(value: &Arc<T>, weight: usize) -> usize {
    size_of::<&str>() + weight / (Arc::strong_count(value).saturating_sub(1)).max(1)
}

fn text(text: &Arc<str>) -> usize {
    part(text, text.len() + NODE)
}

pub(super) fn labels(labels: &Labels) -> usize {
    labels.iter().map(|(name, value)| text(name) + text(value)).sum()
}

/// Returns a user's part of shared labels.
pub(super) fn shared_labels(shared: &Arc<Labels>) -> usize {
    part(shared, labels(shared) + NODE)
}

/// Returns the size of a key in a map.
pub(super) fn key(key: &NamespacedName) -> usize {
    NODE + text(&key.namespace) + text(&key.name)
}

fn profile(profile: &Profile) -> usize {
    let optional = [&profile.telemetry, &profile.subdomain];
    size_of::<Profile>()
        + NODE
        + labels(&profile.labels)
        + text(&profile.service_account)
        + text(&profile.identity)
        + optional.into_iter().flatten().map(text).sum::<usize>()
        + profile.named_ports.iter().map(|(name, _)| text(name) + 8).sum::<usize>()
}

/// Returns the size of a pod, without its name.
pub(super) fn workload(pod: &Workload) -> usize {
    // One IPv4 address takes no additional memory.
    let addresses = match pod.addresses.iter().count() {
        0 | 1 => 0,
        count => count * 17 + NODE,
    };
    size_of::<Workload>() + addresses + part(&pod.profile, profile(&pod.profile))
}

pub(super) fn port(port: &Port) -> usize {
    size_of::<Port>() + text(&port.name)
}

fn definition(definition: &Definition) -> usize {
    size_of::<Definition>()
        + NODE
        + definition.hostname.as_str().len()
        + definition.ports.iter().map(port).sum::<usize>()
        + labels(&definition.labels)
        + labels(&definition.selector)
        + definition.service_accounts.iter().map(text).sum::<usize>()
}

/// Returns the size of a service: once as stored and once as sent.
pub(super) fn service(service: &Service) -> usize {
    let own = size_of::<Service>()
        + service.vips.len() * 17
        + service.external_addresses.iter().map(text).sum::<usize>()
        + service.external_ports.len() * 4;
    2 * own + part(&service.definition, definition(&service.definition))
}

/// Returns the size of a stored WorkloadEntry. It is also sent, and the result has the same size.
pub(super) fn entry(value: &serde_json::Value) -> usize {
    2 * json(value)
}

/// Returns the size of a JSON value. Its depth was limited when it was parsed.
fn json(value: &serde_json::Value) -> usize {
    use serde_json::Value;
    let inner: usize = match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => 0,
        Value::String(text) => text.len(),
        Value::Array(values) => values.iter().map(json).sum(),
        Value::Object(fields) => {
            fields.iter().map(|(name, value)| NODE + name.len() + json(value)).sum()
        }
    };
    size_of::<Value>() + inner
}

/// Returns the size of a map.
pub(super) fn map<T: MemoryWeight>(map: &BTreeMap<NamespacedName, T>) -> usize {
    map.iter().map(|(name, value)| key(name) + value.weight()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_value_is_charged_once_in_total() {
        let shared: Arc<str> = "x".repeat(1000).into();
        let all: Vec<_> = (0..100).map(|_| Arc::clone(&shared)).collect();
        drop(shared);
        let sum: usize = all.iter().map(text).sum();
        assert!((1000..4000).contains(&sum), "{sum}");
        let alone: Arc<str> = "x".repeat(1000).into();
        assert!(text(&alone) > 1000);
    }

    #[test]
    fn json_weighs_more_than_its_texts() {
        let value = serde_json::json!({ "a": ["x".repeat(500), { "b": "y".repeat(500) }] });
        assert!((1000..1500).contains(&json(&value)), "{}", json(&value));
    }
}
