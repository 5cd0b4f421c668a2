//! What files of last-known-good state hold, as values.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::codec::Encode;
use strait_model::registry::ServiceRecord;
use strait_model::{
    ClusterFacts, ClusterId, Collection, Hostname, Mode, NetworkId, ObjectFiles, Workloads,
};

/// What the names and identities in a file depend on: with other settings it is not read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StateOrigin {
    /// `--domain`.
    pub domain: Arc<str>,
    /// `--trust-domain`.
    pub trust_domain: Arc<str>,
    /// `--namespace`.
    pub system_namespace: Arc<str>,
}

/// What one cluster's registry was known to say.
#[derive(Debug, Clone, PartialEq)]
pub struct ShardState {
    /// The cluster.
    pub cluster: ClusterId,
    /// The UID of its `kube-system`, where that was known.
    pub uid: Option<Arc<str>>,
    /// The network that its system namespace named.
    pub network_label: Option<NetworkId>,
    /// Its pods.
    pub workloads: Workloads,
    /// What else it reported of itself.
    pub facts: ClusterFacts,
    /// Its services.
    pub services: BTreeMap<Hostname, ServiceRecord>,
}

/// What one datacentre of Consul was known to say.
#[derive(Debug, Clone, PartialEq)]
pub struct DatacentreState {
    /// The name of its shard.
    pub name: ClusterId,
    /// Its services.
    pub services: BTreeMap<Hostname, ServiceRecord>,
}

/// The objects of the mesh that one store was known to hold.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredObjects {
    /// The store's name.
    pub store: Arc<str>,
    /// Its objects. No Secret is among them.
    pub objects: Collection,
}

/// In which files the objects are of a store that is a directory.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredFiles {
    /// The store's name.
    pub store: Arc<str>,
    /// Its objects by file, Secrets among them by name.
    pub files: Arc<ObjectFiles>,
}

/// By which keys the tokens of one cluster are signed. They are public.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IssuerState {
    /// The cluster.
    pub cluster: ClusterId,
    /// Who issues them.
    pub issuer: Arc<str>,
    /// The keys, as a JSON Web Key Set.
    pub key_set: String,
}

/// What was known of the members beside what they hold, and of the mesh.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MembersState {
    /// The clusters whose contents are kept.
    pub members: BTreeMap<ClusterId, Note>,
    /// When other sources had last answered, by name, in milliseconds since the Unix epoch.
    pub sources: BTreeMap<Arc<str>, u64>,
    /// The data of the mesh's ConfigMap, where there was one.
    pub mesh: Option<BTreeMap<String, String>>,
    /// When the Secrets were made that held the clusters first, in seconds since the Unix epoch.
    pub created: BTreeMap<ClusterId, i64>,
}

/// What was known of a member beside what it holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Note {
    /// The Secret that held it, as `namespace/name`; none for the config cluster.
    pub secret: Option<Arc<str>>,
    /// The network that the Secret fixed.
    pub network: Option<NetworkId>,
    /// What an operator had asked for it.
    pub mode: Mode,
    /// When its API server had last answered, in milliseconds since the Unix epoch.
    pub last_contact: Option<u64>,
}

/// What has files of its own.
pub(super) trait StateKind: Encode {
    /// What their names begin with.
    const KIND: &'static str;

    /// What of it is appended to a journal.
    type Delta: Encode;

    /// Which one of that kind it is.
    fn name(&self) -> &str;

    /// Takes what is otherwise now.
    fn apply(&mut self, delta: Self::Delta);
}
