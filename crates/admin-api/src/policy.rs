//! `/debug/policy`: the operator's policy file, and the operator file of member sources.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::ObjectName;

/// The status of the policy file, and its rules.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Policy {
    /// Limits on the bytes that objects of other namespaces add to a proxy.
    pub foreign_bytes: ForeignBytes,
    /// Whether objects may apply to services of other namespaces.
    pub foreign_hosts: String,
    /// The namespaces whose gateways are network gateways; null if any namespace may have them.
    pub gateway_namespaces: Option<Vec<String>>,
    /// The operator file of member sources.
    pub members: MemberSourcesFile,
    /// The preferences among clusters, in words.
    pub preferences: Vec<String>,
    /// Why the policy file is not active; null if it is active or missing.
    pub problem: Option<String>,
    /// Whether gateways of other networks are ejected after errors.
    pub remote_ejection: String,
    /// The mesh's root namespace; null until the mesh config has been read.
    pub root_namespace: Option<String>,
    /// The rules for clusters that are not members.
    pub unknown_clusters: Vec<UnknownCluster>,
    /// The objects that apply to the whole mesh because they do not name namespaces.
    pub visible_by_default: Vec<ObjectName>,
}

/// Limits on the bytes that objects of other namespaces add to a proxy.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ForeignBytes {
    /// Limit for the objects of one other namespace, in bytes.
    pub namespace: usize,
    /// Limit for the objects of all other namespaces, in bytes.
    pub total: usize,
}

/// The status of the operator file of member sources.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct MemberSourcesFile {
    /// Why the file is not active; null if it is active or missing.
    pub problem: Option<String>,
    /// The identities whose tokens are valid at any member.
    pub replayable: Vec<String>,
    /// The sources that cannot be read, each with the reason.
    pub sources: Vec<String>,
    /// The fields that this release validates and does not use.
    pub unused: Vec<String>,
}

/// A rule for a cluster that is not a member.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct UnknownCluster {
    /// ID of the cluster.
    pub cluster: String,
    /// The rule that names it.
    pub rule: String,
}
