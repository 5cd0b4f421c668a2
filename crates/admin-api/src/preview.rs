//! `POST /debug/diff`, `POST /debug/hold` and `POST /debug/scope`: previews of a change of the
//! configuration.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{ObjectReason, ObjectState};

/// The effects of hypothetical objects.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ChangePreview {
    /// The proxies that would receive other resources. Proxies with the same changes form a group.
    pub affected: Vec<AffectedProxies>,
    /// Names of the replicas that did not respond. Absent if empty.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub missing_replicas: Vec<String>,
    /// Number of proxies that were not compared, because of the time limit.
    pub not_looked_at: usize,
    /// The objects.
    pub objects: Vec<PreviewedObject>,
    /// Number of proxies that would receive no other resources.
    pub unaffected: usize,
}

/// A hypothetical object.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PreviewedObject {
    /// The action on the object.
    pub action: ObjectAction,
    /// Kind of the object.
    pub kind: String,
    /// Name of the object.
    pub name: String,
    /// Namespace of the object.
    pub namespace: String,
    /// Number of proxies whose configuration the object affects.
    pub proxies: usize,
    /// Reasons for the status, and warnings.
    pub reasons: Vec<ObjectReason>,
    /// Summary of the status; null if it was not computed.
    pub state: Option<ObjectState>,
}

open_enum! {
    /// The action on an object of a preview.
    ObjectAction {
        /// The object would be created.
        New = "new",
        /// The object would be replaced.
        Changed = "changed",
        /// The object is stored already.
        Same = "same",
        /// The object would be deleted.
        Removed = "removed",
        /// The effects of objects of this kind are not computed.
        Left = "left",
    }
}

/// Proxies that would receive the same changes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct AffectedProxies {
    /// Encoded size of all resources of one proxy, in bytes.
    pub bytes: BeforeAfter,
    /// The streams of the proxies.
    pub proxies: Vec<StreamName>,
    /// Number of resources of one proxy.
    pub resources: BeforeAfter,
    /// The changes by the short name of the resource type, for example `cds`.
    pub types: BTreeMap<String, TypeChanges>,
}

/// A number now and after the change.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct BeforeAfter {
    /// The number after the change.
    pub after: usize,
    /// The current number.
    pub before: usize,
}

/// A stream of a proxy.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct StreamName {
    /// ID of the proxy's cluster.
    pub cluster: String,
    /// Node ID of the proxy.
    pub id: String,
    /// The unique name of the stream.
    pub key: String,
}

/// The changes to the resources of one type.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct TypeChanges {
    /// Names of new resources.
    pub added: Vec<String>,
    /// Resources with another content.
    pub changed: Vec<ChangedResource>,
    /// Names of removed resources.
    pub removed: Vec<String>,
}

/// A resource with another content.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ChangedResource {
    /// The first 50 fields that differ. Absent unless the request asks for them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fields: Option<Vec<ChangedField>>,
    /// Name of the resource.
    pub name: String,
}

/// A field that differs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ChangedField {
    /// New value as JSON, at most 300 characters; null if the field is removed.
    pub after: Option<String>,
    /// Previous value as JSON, at most 300 characters; null if the field is new.
    pub before: Option<String>,
    /// Path of the field: `virtual_hosts[web.shop:80].routes[0].route.timeout`.
    pub path: String,
}

/// The effects of a hold or a release.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct HoldPreview {
    /// The proxies that would receive other resources. Proxies with the same changes form a group.
    pub affected: Vec<AffectedProxies>,
    /// ID of the configuration that would be active.
    pub configuration: String,
    /// ID of the active configuration.
    pub in_force: String,
    /// Whether the mesh config would change.
    pub mesh_config: bool,
    /// Whether the mesh networks would change.
    pub mesh_networks: bool,
    /// Names of the replicas that did not respond. Absent if empty.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub missing_replicas: Vec<String>,
    /// Number of proxies that were not compared, because of the time limit.
    pub not_looked_at: usize,
    /// The objects that would change.
    pub objects: Vec<HeldObject>,
    /// Number of proxies that would receive no other resources.
    pub unaffected: usize,
    /// Whether the hold includes access policies.
    pub with_access: bool,
}

/// An object that a hold or a release would change.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct HeldObject {
    /// The action on the object: `new`, `changed` or `removed`.
    pub action: ObjectAction,
    /// Kind of the object.
    pub kind: String,
    /// Name of the object.
    pub name: String,
    /// Namespace of the object.
    pub namespace: String,
}

/// A suggested Sidecar for a namespace, and its effects.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ScopePreview {
    /// Names of the replicas that did not respond. Absent if empty.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub missing_replicas: Vec<String>,
    /// Number of proxies that were not compared, because of the time limit.
    pub not_looked_at: usize,
    /// The Sidecar. Its form is that of Istio's Sidecar.
    pub object: Value,
    /// Names of other Sidecars of the namespace, which apply to some workloads instead.
    pub others: Vec<String>,
    /// The proxies of the namespace. Proxies with the same totals form a group.
    pub proxies: Vec<ProxyTotals>,
    /// Whether a Sidecar of that name exists.
    pub replaces: bool,
    /// Called names that match nothing in the mesh.
    pub unknown: Vec<String>,
}

/// The amount of configuration of some proxies.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ProxyTotals {
    /// Encoded size of all resources of one proxy, in bytes.
    pub bytes: BeforeAfter,
    /// The streams of the proxies.
    pub proxies: Vec<StreamName>,
    /// Number of resources of one proxy.
    pub resources: BeforeAfter,
}
