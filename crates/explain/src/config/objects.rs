//! Helpers for the text of objects: paths of hosts, subsets and ports.

use std::collections::BTreeMap;

use serde_json::Value;

use strait_model::{ConfigRole, GATEWAY_API, Namespace, ObjectKey};
use strait_rules::traffic::HostPattern;

/// Group of the experimental kinds of the Gateway API, for example XBackendTrafficPolicy.
const GATEWAY_API_EXPERIMENTAL: &str = "gateway.networking.x-k8s.io";

/// Returns whether users may expect an object to configure proxies: the objects of Istio and of the
/// Gateway API, supported or not. Access policies are excluded, because their status is computed
/// separately.
pub(super) fn is_of_mesh(key: &ObjectKey) -> bool {
    let is_of_group = [GATEWAY_API, GATEWAY_API_EXPERIMENTAL].contains(&&*key.group)
        || key.group.ends_with(".istio.io");
    is_of_group && ConfigRole::of(key) != Some(ConfigRole::Access)
}

/// Returns the items of a list field of an object.
pub(super) fn items<'a>(object: &'a Value, path: &str) -> &'a [Value] {
    object.pointer(path).and_then(Value::as_array).map_or(&[], |items| items)
}

/// Paths of the hosts of an object of `namespace`, from its root.
pub(super) struct HostPaths(BTreeMap<HostPattern, usize>);

impl HostPaths {
    pub(super) fn of(object: &Value, namespace: &Namespace, domain: &str) -> Self {
        let hosts = items(object, "/spec/hosts").iter().enumerate().rev();
        let parsed = hosts.filter_map(|(at, text)| {
            let text = text.as_str().unwrap_or_default();
            Some((HostPattern::parse(text, namespace.as_str(), domain).ok()?, at))
        });
        // The first of duplicate hosts is used.
        Self(parsed.collect())
    }

    pub(super) fn path(&self, host: &HostPattern) -> String {
        format!("spec.hosts[{}]", self.0.get(host).copied().unwrap_or_default())
    }
}

/// Paths of the subsets of an object, from its root.
pub(super) struct SubsetPaths<'a>(BTreeMap<&'a str, usize>);

impl<'a> SubsetPaths<'a> {
    pub(super) fn of(object: &'a Value) -> Self {
        let subsets = items(object, "/spec/subsets").iter().enumerate().rev();
        Self(subsets.filter_map(|(at, one)| Some((one["name"].as_str()?, at))).collect())
    }

    pub(super) fn path(&self, name: &str) -> String {
        format!("spec.subsets[{}]", self.0.get(name).copied().unwrap_or_default())
    }
}

/// Returns the path of a port's settings in a traffic policy at `path`, from the object's root.
pub(super) fn port_path(object: &Value, path: &str, port: u16) -> String {
    let field = format!("{path}.portLevelSettings");
    let is_it =
        |one: &Value| one.pointer("/port/number").and_then(Value::as_u64) == Some(port.into());
    let at = items(object, &pointer(&field)).iter().position(is_it).unwrap_or_default();
    format!("{field}[{at}]")
}

/// Converts a path like `spec.http[1].mirror` to a JSON pointer.
pub(super) fn pointer(path: &str) -> String {
    format!("/{}", path.replace(['.', '['], "/").replace(']', ""))
}
