//! The JSON of the objects that are applied, without their API versions.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ring::digest;
use serde_json::{Map, Value, json};

use crate::registry::kube::import_objects::{
    APPLIED, DECIDED_BY, DERIVED, DERIVED_SERVICE, MANAGED_BY, SET, US, derived_name,
};
use crate::registry::kube::mcs_form::ExportCondition;
use strait_base::hex;
use strait_kube_client::NamespacedName;
use strait_model::{ImportedService, IpFamily, RawService};

/// Returns a ServiceImport. Until its derived Service has addresses, `ips` is empty.
pub(in crate::registry::kube) fn import_object(
    key: &NamespacedName,
    import: &ImportedService,
    set: &str,
    families: &[IpFamily],
    ips: &[IpAddr],
    has_derived: bool,
) -> Value {
    let mut labels: BTreeMap<&str, &str> = BTreeMap::new();
    let mut annotations: BTreeMap<&str, &str> = BTreeMap::new();
    labels.extend(import.labels.iter().map(|(key, value)| (&**key, &**value)));
    annotations.extend(import.annotations.iter().map(|(key, value)| (&**key, &**value)));
    labels.extend([(MANAGED_BY, US), (SET, set)]);
    annotations.insert(DECIDED_BY, &import.decided_by);
    let derived = derived_name(key);
    if has_derived {
        annotations.insert(DERIVED_SERVICE, &derived);
    } else {
        annotations.remove(DERIVED_SERVICE);
    }
    let service = &import.service;
    let mut spec = common_spec(service);
    spec.insert("type".into(), if service.headless { "Headless" } else { "ClusterSetIP" }.into());
    if !ips.is_empty() {
        spec.insert("ips".into(), ips.iter().map(ToString::to_string).collect());
    }
    if !families.is_empty() {
        spec.insert("ipFamilies".into(), names(families));
    }
    signed(key, labels, annotations, json!({}), spec)
}

/// Returns the derived Service of a ServiceImport with this UID.
pub(in crate::registry::kube) fn derived_object(
    key: &NamespacedName,
    import: &ImportedService,
    set: &str,
    version: &str,
    uid: &str,
) -> Value {
    let name = derived_name(key);
    let key_of_derived = NamespacedName { namespace: key.namespace.clone(), name: name.into() };
    let labels = [(MANAGED_BY, US), (SET, set), (DERIVED, &*key.name)];
    let service = &import.service;
    let mut spec = common_spec(service);
    spec.insert("type".into(), "ClusterIP".into());
    if service.headless {
        spec.insert("clusterIP".into(), "None".into());
    }
    let families = &service.ip_families;
    if !families.is_empty() {
        spec.insert("ipFamilies".into(), names(families));
    }
    let policy = if families.len() > 1 { "PreferDualStack" } else { "SingleStack" };
    spec.insert("ipFamilyPolicy".into(), policy.into());
    let owners = json!({ "ownerReferences": [{
        "apiVersion": version, "kind": "ServiceImport", "name": &*key.name, "uid": uid,
        "controller": true, "blockOwnerDeletion": false,
    }]});
    signed(&key_of_derived, labels.into(), BTreeMap::new(), owners, spec)
}

/// Returns the status of a ServiceImport.
pub(in crate::registry::kube) fn import_status<'a>(
    clusters: impl Iterator<Item = &'a str>,
    ready: &ExportCondition,
    now: &str,
    slices: Option<&str>,
) -> Value {
    let clusters: Vec<Value> = clusters.map(|cluster| json!({ "cluster": cluster })).collect();
    let mut status = json!({ "clusters": clusters, "conditions": [ready.to_json(now)] });
    if let Some(slices) = slices {
        status["endpointSliceObjects"] = slices.into();
    }
    status
}

/// Returns the fields that a ServiceImport and a Service have in common.
fn common_spec(service: &RawService) -> Map<String, Value> {
    let mut spec = Map::new();
    let ports = service.ports.iter().map(|port| {
        let mut json = json!({ "port": port.number, "protocol": &*port.protocol });
        if !port.name.is_empty() {
            json["name"] = (&*port.name).into();
        }
        if let Some(app_protocol) = &port.app_protocol {
            json["appProtocol"] = (&**app_protocol).into();
        }
        json
    });
    spec.insert("ports".into(), ports.collect());
    let affinity = if service.sticky { "ClientIP" } else { "None" };
    spec.insert("sessionAffinity".into(), affinity.into());
    if let Some(seconds) = service.sticky_seconds.filter(|_| service.sticky) {
        let config = json!({ "clientIP": { "timeoutSeconds": seconds } });
        spec.insert("sessionAffinityConfig".into(), config);
    }
    for (field, value) in [
        ("internalTrafficPolicy", &service.internal_traffic_policy),
        ("trafficDistribution", &service.traffic_distribution),
    ] {
        if let Some(value) = value {
            spec.insert(field.into(), (&**value).into());
        }
    }
    spec
}

fn names(families: &[IpFamily]) -> Value {
    families.iter().map(|family| family.as_str()).collect()
}

/// Combines the parts of an object, and adds the annotation with its hash.
fn signed(
    key: &NamespacedName,
    labels: BTreeMap<&str, &str>,
    annotations: BTreeMap<&str, &str>,
    mut metadata: Value,
    spec: Map<String, Value>,
) -> Value {
    (metadata["namespace"], metadata["name"]) = ((&*key.namespace).into(), (&*key.name).into());
    metadata["labels"] = json!(labels);
    metadata["annotations"] = json!(annotations);
    let mut object = json!({ "metadata": metadata, "spec": spec });
    let hash = digest::digest(&digest::SHA256, object.to_string().as_bytes());
    object["metadata"]["annotations"][APPLIED] = hex::encode(&hash.as_ref()[..8]).into();
    object
}

/// Returns the annotation with the hash of an object.
pub(super) fn applied(object: &Value) -> &str {
    object["metadata"]["annotations"][APPLIED].as_str().unwrap_or_default()
}
