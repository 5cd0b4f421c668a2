//! The values that the files of last-known-good state contain.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::codec::Encode;
use strait_model::registry::ServiceRecord;
use strait_model::{
    ClusterFacts, ClusterId, Collection, Hostname, Mode, NetworkId, ObjectFiles, Workloads,
};

/// Settings on which the names and identities in a file depend. A file written with other settings
/// is not read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StateOrigin {
    /// `--domain`.
    pub domain: Arc<str>,
    /// `--trust-domain`.
    pub trust_domain: Arc<str>,
    /// `--namespace`.
    pub system_namespace: Arc<str>,
}

/// The last known contents of one cluster's registry.
#[derive(Debug, Clone, PartialEq)]
pub struct ShardState {
    /// The cluster.
    pub cluster: ClusterId,
    /// The UID of the cluster's namespace `kube-system`, if known.
    pub uid: Option<Arc<str>>,
    /// The network in the label of the cluster's system namespace.
    pub network_label: Option<NetworkId>,
    /// Its pods.
    pub workloads: Workloads,
    /// Further facts that the cluster reported: localities, unready pods, gateways, workload
    /// entries, traffic rules.
    pub facts: ClusterFacts,
    /// Its services.
    pub services: BTreeMap<Hostname, ServiceRecord>,
}

/// The last known contents of one datacentre of Consul.
#[derive(Debug, Clone, PartialEq)]
pub struct DatacentreState {
    /// The name of the shard.
    pub name: ClusterId,
    /// Its services.
    pub services: BTreeMap<Hostname, ServiceRecord>,
}

/// The last known objects of the mesh in one store.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredObjects {
    /// The store's name.
    pub store: Arc<str>,
    /// Its objects. No Secret is among them.
    pub objects: Collection,
}

/// The file of each object, for a store that is a directory.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredFiles {
    /// The store's name.
    pub store: Arc<str>,
    /// Object keys by file. Secrets are listed by name only.
    pub files: Arc<ObjectFiles>,
}

/// The public keys that sign the tokens of one cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IssuerState {
    /// The cluster.
    pub cluster: ClusterId,
    /// The issuer of the tokens.
    pub issuer: Arc<str>,
    /// The keys, as a JSON Web Key Set.
    pub key_set: String,
}

/// The last known list of members, without their contents, and the mesh's ConfigMap.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MembersState {
    /// The clusters whose contents are stored.
    pub members: BTreeMap<ClusterId, Note>,
    /// When each other source last responded, by name, in milliseconds since the Unix epoch.
    pub sources: BTreeMap<Arc<str>, u64>,
    /// The data of the mesh's ConfigMap, if it existed.
    pub mesh: Option<BTreeMap<String, String>>,
    /// When the Secret that first defined each cluster was created, in seconds since the Unix
    /// epoch.
    pub created: BTreeMap<ClusterId, i64>,
    /// The UID of the Secret or ClusterProfile that led to each cluster, if known.
    pub found_by: BTreeMap<ClusterId, Arc<str>>,
}

/// The last known settings of a member, without its contents.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Note {
    /// The Secret that defines the cluster, as `namespace/name`; `None` for the config cluster.
    pub secret: Option<Arc<str>>,
    /// The network that the Secret sets.
    pub network: Option<NetworkId>,
    /// The mode that an operator set for the cluster.
    pub mode: Mode,
    /// When its API server last responded, in milliseconds since the Unix epoch.
    pub last_contact: Option<u64>,
}

/// A kind of state with dedicated files, one per source.
pub(super) trait StateKind: Encode {
    /// The prefix of the file names.
    const KIND: &'static str;

    /// The changes that are appended to a journal.
    type Delta: Encode;

    /// Returns the name of the source, unique within the kind.
    fn name(&self) -> &str;

    /// Applies the changes of a journal record.
    fn apply(&mut self, delta: Self::Delta);
}
