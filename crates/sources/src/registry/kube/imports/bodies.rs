//! The JSON of the objects that are applied, without their API versions.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use ring::digest;
use serde_json::{Map, Value, json};

use crate::registry::kube::import_objects::{
    APPLIED, DECIDED_BY, DERIVED, DERIVED_SERVICE, DerivedService, HEADLESS, MANAGED_BY,
    SERVICE_OF_SLICE, SET, SLICE_CONTROLLER, SLICE_US, SOURCE_CLUSTER, US, derived_name,
};
use crate::registry::kube::mcs_form::ExportCondition;
use crate::registry::kube::slice_form::Conditions;
use strait_base::hex;
use strait_kube_client::NamespacedName;
use strait_model::{ExportedPort, ImportedService, IpFamily, RawService};

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
    signed(key, labels, annotations, json!({}), with_spec(spec))
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
    signed(&key_of_derived, labels.into(), BTreeMap::new(), owners, with_spec(spec))
}

/// A port of an EndpointSlice. The order of ports is that of their names.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct WrittenPort {
    pub(super) name: Arc<str>,
    pub(super) protocol: Arc<str>,
    pub(super) app_protocol: Option<Arc<str>>,
    /// The target port.
    pub(super) number: u16,
}

impl From<ExportedPort> for WrittenPort {
    fn from(port: ExportedPort) -> Self {
        let ExportedPort { name, protocol, app_protocol, number } = port;
        Self { name, protocol, app_protocol, number }
    }
}

/// An endpoint in the form in which it is written.
pub(super) struct Row<'a> {
    pub(super) address: IpAddr,
    pub(super) conditions: Conditions,
    pub(super) hostname: Option<&'a str>,
    pub(super) zone: Option<&'a str>,
    pub(super) node: Option<&'a str>,
    /// Whether traffic from its zone prefers it.
    pub(super) has_hint: bool,
}

/// The identity of an EndpointSlice of a derived Service.
pub(super) struct SliceIdentity<'a> {
    pub(super) import: &'a NamespacedName,
    pub(super) derived: &'a DerivedService,
    pub(super) set: &'a str,
    /// The name in the set of the cluster that has the endpoints.
    pub(super) source: &'a str,
    pub(super) family: IpFamily,
    pub(super) name: &'a Arc<str>,
}

/// Returns an EndpointSlice.
pub(super) fn slice_object(
    identity: &SliceIdentity<'_>,
    ports: &[WrittenPort],
    rows: &[Row<'_>],
) -> Value {
    let SliceIdentity { import, derived, set, source, family, name } = identity;
    let service = derived_name(import);
    let key = NamespacedName { namespace: import.namespace.clone(), name: Arc::clone(name) };
    let mut labels = BTreeMap::from([
        (MANAGED_BY, US),
        (SET, *set),
        (DERIVED, &*import.name),
        (SOURCE_CLUSTER, *source),
        (SERVICE_OF_SLICE, &*service),
        (SLICE_CONTROLLER, SLICE_US),
    ]);
    if derived.headless {
        labels.insert(HEADLESS, "");
    }
    let owners = json!({ "ownerReferences": [{
        "apiVersion": "v1", "kind": "Service", "name": service, "uid": derived.uid,
        "controller": true, "blockOwnerDeletion": false,
    }]});
    let ports = ports.iter().map(|port| {
        let mut json = json!({
            "name": &*port.name, "protocol": &*port.protocol, "port": port.number,
        });
        if let Some(app_protocol) = &port.app_protocol {
            json["appProtocol"] = (&**app_protocol).into();
        }
        json
    });
    let mut body = Map::new();
    body.insert("addressType".into(), family.as_str().into());
    body.insert("ports".into(), ports.collect());
    body.insert("endpoints".into(), rows.iter().map(endpoint).collect());
    signed(&key, labels, BTreeMap::new(), owners, body)
}

fn endpoint(row: &Row<'_>) -> Value {
    let Row { address, conditions, hostname, zone, node, has_hint } = row;
    let conditions = [
        ("ready", conditions.ready),
        ("serving", conditions.serving),
        ("terminating", conditions.terminating),
    ];
    let conditions = conditions.into_iter().filter_map(|(name, value)| Some((name, value?)));
    let mut json = json!({
        "addresses": [address.to_string()],
        "conditions": conditions.collect::<BTreeMap<_, _>>(),
    });
    for (field, value) in [("hostname", hostname), ("zone", zone), ("nodeName", node)] {
        if let Some(value) = value {
            json[field] = (*value).into();
        }
    }
    if let Some(zone) = zone.filter(|_| *has_hint) {
        json["hints"] = json!({ "forZones": [{ "name": zone }] });
    }
    json
}

/// The fields of a specification that need care when Strait restores an object that another client
/// changed.
#[derive(Debug, Clone, Copy)]
pub(in crate::registry::kube) struct RestoredFields {
    /// Fields that are removed if Strait does not set them.
    removed: &'static [&'static str],
    /// Fields whose values depend on the cluster, and that stay unchanged.
    kept: &'static [&'static str],
}

impl RestoredFields {
    pub(in crate::registry::kube) const IMPORT: Self = Self {
        removed: &[
            "ips",
            "ipFamilies",
            "sessionAffinityConfig",
            "internalTrafficPolicy",
            "trafficDistribution",
        ],
        kept: &[],
    };
    pub(in crate::registry::kube) const DERIVED: Self = Self {
        removed: &[
            "selector",
            "externalIPs",
            "externalName",
            "sessionAffinityConfig",
            "internalTrafficPolicy",
            "trafficDistribution",
        ],
        kept: &["clusterIP", "ipFamilies", "ipFamilyPolicy"],
    };
    /// The lists of a slice are always set.
    pub(in crate::registry::kube) const SLICE: Self = Self { removed: &[], kept: &[] };

    /// Returns a merge patch without metadata that gives an object the content that Strait applies.
    /// Server-side apply would neither replace the fields of another manager nor remove added ones.
    pub(in crate::registry::kube) fn patch(self, object: &Value) -> Value {
        let mut patch = object.clone();
        if let Some(fields) = patch.as_object_mut() {
            fields.remove("metadata");
        }
        if let Some(spec) = patch.get_mut("spec").and_then(Value::as_object_mut) {
            for field in self.kept {
                spec.remove(*field);
            }
            for field in self.removed {
                spec.entry(*field).or_insert(Value::Null);
            }
        }
        patch
    }
}

fn with_spec(spec: Map<String, Value>) -> Map<String, Value> {
    Map::from_iter([("spec".to_owned(), Value::Object(spec))])
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
    mut object: Map<String, Value>,
) -> Value {
    (metadata["namespace"], metadata["name"]) = ((&*key.namespace).into(), (&*key.name).into());
    metadata["labels"] = json!(labels);
    metadata["annotations"] = json!(annotations);
    object.insert("metadata".into(), metadata);
    let mut object = Value::Object(object);
    let hash = digest::digest(&digest::SHA256, object.to_string().as_bytes());
    object["metadata"]["annotations"][APPLIED] = hex::encode(&hash.as_ref()[..8]).into();
    object
}

/// Returns the annotation with the hash of an object.
pub(super) fn applied(object: &Value) -> &str {
    object["metadata"]["annotations"][APPLIED].as_str().unwrap_or_default()
}
