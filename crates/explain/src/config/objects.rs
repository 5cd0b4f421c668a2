//! What of an object is found in its text.

use std::collections::BTreeMap;

use serde_json::Value;

use strait_model::{GATEWAY_API, ISTIO_NETWORKING, ISTIO_SECURITY, Namespace, ObjectKey};
use strait_rules::traffic::HostPattern;

/// Groups whose objects are about the mesh, be they followed or not.
const OF_MESH: [&str; 5] =
    [ISTIO_NETWORKING, ISTIO_SECURITY, GATEWAY_API, "telemetry.istio.io", "extensions.istio.io"];

/// Whether somebody may expect that an object changes what proxies do. Access policies tell of themselves.
pub(super) fn is_of_mesh(key: &ObjectKey) -> bool {
    const ACCESS: [&str; 3] =
        ["AuthorizationPolicy", "PeerAuthentication", "RequestAuthentication"];
    OF_MESH.contains(&&*key.group) && !ACCESS.contains(&&*key.kind)
}

/// The items of a list of an object.
pub(super) fn items<'a>(object: &'a Value, path: &str) -> &'a [Value] {
    object.pointer(path).and_then(Value::as_array).map_or(&[], |items| items)
}

/// Where an object of `namespace` names its hosts, as paths from its root.
pub(super) struct HostPaths(BTreeMap<HostPattern, usize>);

impl HostPaths {
    pub(super) fn of(object: &Value, namespace: &Namespace, domain: &str) -> Self {
        let hosts = items(object, "/spec/hosts").iter().enumerate().rev();
        let parsed = hosts.filter_map(|(at, text)| {
            let text = text.as_str().unwrap_or_default();
            Some((HostPattern::parse(text, namespace.as_str(), domain).ok()?, at))
        });
        // Of those that are written twice the first stays.
        Self(parsed.collect())
    }

    pub(super) fn path(&self, host: &HostPattern) -> String {
        format!("spec.hosts[{}]", self.0.get(host).copied().unwrap_or_default())
    }
}

/// Where an object has its subsets, as paths from its root.
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

/// Where a traffic policy at `path` speaks of a port, as a path from the object's root.
pub(super) fn port_path(object: &Value, path: &str, port: u16) -> String {
    let field = format!("{path}.portLevelSettings");
    let is_it =
        |one: &Value| one.pointer("/port/number").and_then(Value::as_u64) == Some(port.into());
    let at = items(object, &pointer(&field)).iter().position(is_it).unwrap_or_default();
    format!("{field}[{at}]")
}

/// The JSON pointer of a path such as `spec.http[1].mirror`.
pub(super) fn pointer(path: &str) -> String {
    format!("/{}", path.replace(['.', '['], "/").replace(']', ""))
}
