//! `/debug/clusters`: the member clusters.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A member cluster, or a data key of a Secret that does not define one.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Cluster {
    /// The cluster ID, or a data key of the Secret that is not a valid ID.
    pub id: String,
    /// The Secret, `namespace/name`; null for the config cluster.
    pub secret: Option<String>,
    /// The source of the Secret: `system` for the system namespace, otherwise the name of a source
    /// in the operator file; null for the config cluster.
    pub source: Option<String>,
    /// The kind of the object that defines the member; null for the config cluster.
    pub source_kind: Option<String>,
    /// How the API server is reached: `direct`, `relay`, or the name of a proxy.
    pub via: String,
    /// The state.
    pub state: ClusterState,
    /// The reason of the state, with an error code if one applies.
    pub reason: Option<String>,
    /// When the state began; absent for `live`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<String>,
    /// The network of the cluster; null if it is unknown.
    pub network: Option<String>,
    /// The trust domain of the cluster's workloads.
    pub trust_domain: String,
    /// When the API server last sent a valid response; null if it never did.
    pub last_contact: Option<String>,
    /// The kinds that the API server no longer lists or watches while it answers other requests.
    /// Absent if empty.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub outdated: Vec<OutdatedKind>,
    /// The namespaces to which the reader of the cluster is limited. Absent if it reads the whole
    /// cluster.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub read_namespaces: Vec<String>,
    /// The namespaces among them that may not be read, although others are. Their last known objects
    /// stay. Absent if empty.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unread_namespaces: Vec<UnreadNamespace>,
    /// Number of services.
    pub services: usize,
    /// Number of endpoints.
    pub endpoints: usize,
    /// Number of endpoints that at least one connected proxy's network cannot receive.
    pub withheld: usize,
    /// Number of withheld endpoints by the code of the reason. Absent if empty.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub withheld_by: BTreeMap<String, usize>,
    /// Number of Kubernetes objects.
    pub objects: usize,
    /// Number of full lists after the first.
    pub relists: u64,
    /// Claims to another network than the Secret's; they have no effect. Absent if
    /// empty.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ignored_claims: Vec<IgnoredClaim>,
    /// The time of the next attempt to connect, in the state `misbehaving`. Absent otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_attempt: Option<String>,
    /// The mode that an operator requests, `drain` or `pause`; absent by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
    /// Whether a newer kubeconfig of the Secret is refused while the previous one is in use. Absent
    /// if false.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub kubeconfig_refused: bool,
    /// The credential that is used to read the cluster; null if none is used.
    pub credential: Option<ClusterCredential>,
    /// The state in the inventory that the member comes from; null without an inventory.
    pub inventory: Option<Inventory>,
    /// The permissions that the reader lacks, for example `list pods`.
    pub missing_rights: Vec<String>,
    /// The clusters whose pods use the same addresses in the same network. Absent if empty.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub same_addresses: Vec<SameAddresses>,
    /// The clusters whose nodes assign pod addresses from the same ranges in the same network.
    /// Absent if empty.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub same_ranges: Vec<SameRange>,
    /// Why its endpoints are withdrawn from all proxies, if the policy file withdraws them because
    /// the cluster has been unreachable for too long. Absent otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub withdrawn: Option<String>,
    /// The ServiceExports that are not valid, by reason. Absent if empty.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub invalid_exports: Vec<InvalidExports>,
    /// The ServiceImports that Strait no longer updates, because imports are off for the cluster;
    /// absent if there are none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub leftover_imports: Option<LeftoverImports>,
    /// Its state in each replica of the control plane. Absent if all have the same state.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub replicas: Vec<ClusterInReplica>,
    /// How far the mesh's root certificates are distributed in the cluster; absent if the control
    /// plane does not write them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub roots: Option<ClusterRoots>,
}

/// ServiceImports of a cluster that Strait no longer updates.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct LeftoverImports {
    /// Number of imports.
    pub count: usize,
    /// The first of them: `NAMESPACE/NAME`.
    pub first: String,
}

/// State of a cluster in one replica of the control plane.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ClusterInReplica {
    /// The reason of the state; null if there is none.
    pub reason: Option<String>,
    /// Name of the replica.
    pub replica: String,
    /// The state; null if the replica does not have the cluster.
    pub state: Option<ClusterState>,
}

/// ServiceExports of a cluster that are not valid for one reason.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct InvalidExports {
    /// Number of exports.
    pub count: usize,
    /// The first of them: `NAMESPACE/NAME`.
    pub first: String,
    /// Why they are not valid.
    pub reason: String,
}

open_enum! {
    /// The state of a member cluster. docs/reference/cluster-states.md explains each state.
    ClusterState {
        /// The first lists are not complete.
        Syncing = "syncing",
        /// All data is present and kept up to date.
        Live = "live",
        /// Unreachable, or a kind is no longer updated; the last known data stays in use.
        Stale = "stale",
        /// The cluster never synced, and no longer delays readiness.
        Timeout = "timeout",
        /// The API server does not accept the credential.
        AuthFailed = "authFailed",
        /// The API server's certificate is not accepted.
        TlsFailed = "tlsFailed",
        /// The content of the Secret is refused, or the operator file does not allow the member.
        Rejected = "rejected",
        /// Another Secret holds its ID, or the cluster itself.
        Conflict = "conflict",
        /// The kubeconfig now leads to a different cluster.
        IdentityChanged = "identityChanged",
        /// The API server responds with invalid data, or with too much.
        Misbehaving = "misbehaving",
        /// Frozen at the last known data: the last change is being delayed, or contact fails
        /// repeatedly.
        Quarantined = "quarantined",
        /// Frozen at the request of an operator.
        Paused = "paused",
        /// Being removed: because its Secret was deleted, or at the request of an operator.
        Draining = "draining",
        /// Restored from disk, and not synced since.
        Restored = "restored",
    }
}

/// A namespace of a limited reader that may not be read.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct UnreadNamespace {
    /// The namespace.
    pub namespace: String,
    /// When the first request was refused after the last success.
    pub since: String,
    /// The kind, and why it may not be read.
    pub reason: String,
}

/// A kind of objects that an API server no longer updates.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct OutdatedKind {
    /// Plural name of the kind, for example `endpointslices`.
    pub kind: String,
    /// When updates stopped.
    pub since: String,
}

/// A claim to another network than the Secret of the cluster fixes. It has no effect.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct IgnoredClaim {
    /// The source of the claim, for example a label of pods, with their number.
    pub claim: String,
    /// The claimed network.
    pub network: String,
}

/// Addresses that pods of the cluster share with pods of another cluster in one network.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct SameAddresses {
    /// The network.
    pub network: String,
    /// The other cluster.
    pub cluster: String,
    /// Number of shared addresses.
    pub addresses: usize,
    /// The first shared address.
    pub first: String,
    /// The cluster whose pods proxies of other clusters receive for these addresses.
    pub holder: String,
}

/// A range from which nodes of two clusters assign pod addresses in one network.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct SameRange {
    /// The network.
    pub network: String,
    /// The other cluster.
    pub cluster: String,
    /// The smaller of two overlapping ranges, for example `10.0.0.0/16`.
    pub range: String,
}

/// The credential with which the control plane reads a cluster.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ClusterCredential {
    /// How it authenticates.
    pub kind: CredentialKind,
    /// The identity of the operator file that provides it; null for a credential of the Secret.
    pub identity: Option<String>,
    /// Its user, according to the API server; null if it is unknown.
    pub principal: Option<String>,
    /// When it expires; null if that is unknown.
    pub expires: Option<String>,
    /// When the control plane requests the next one; null if it does not.
    pub refresh_at: Option<String>,
    /// Why a newer credential is not used, or why the identity provides none; null without an error.
    pub last_error: Option<String>,
    /// Whether it expires so soon that an operator should act.
    pub ends_soon: bool,
    /// Whether the control plane renews it itself.
    pub renews_itself: bool,
}

open_enum! {
    /// How a credential authenticates.
    CredentialKind {
        /// A bearer token in the Secret.
        Token = "token",
        /// A client certificate.
        ClientCertificate = "clientCertificate",
        /// A user name and a password.
        Basic = "basic",
        /// A token that an identity of the operator file provides.
        Identity = "identity",
        /// The certificate of a relay.
        Relay = "relay",
    }
}

/// The state of a member in the inventory that it comes from.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Inventory {
    /// The manager that wrote the ClusterProfile.
    pub manager: String,
    /// The condition `ControlPlaneHealthy`: `True`, `False` or `Unknown`.
    pub control_plane_healthy: String,
    /// The condition `Joined`: `True`, `False` or `Unknown`.
    pub joined: String,
    /// When `ControlPlaneHealthy` last changed; null if that is unknown.
    pub since: Option<String>,
}

/// How far the mesh's root certificates are distributed in a cluster.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ClusterRoots {
    /// Number of namespaces that need the roots.
    pub namespaces: usize,
    /// Number of namespaces that have all roots in the ConfigMap `istio-ca-root-cert`.
    pub current: usize,
    /// Number of namespaces with another writer's roots in that ConfigMap.
    pub foreign: usize,
    /// The first of these namespaces. Absent if empty.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub foreign_first: Vec<String>,
    /// Number of these namespaces that have the mesh's roots in `strait-ca-root-cert`.
    pub beside: usize,
    /// The missing permission to write the roots. Absent if none is missing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub denied: Option<String>,
    /// The state of the ClusterTrustBundle with the roots: `current`, `foreign` (of another
    /// controller), `denied` or `rejected`. Absent if the API server does not have the kind.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trust_bundle: Option<String>,
}
