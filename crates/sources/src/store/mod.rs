//! The objects of the config cluster, from files in a directory or from an API server, and of
//! further stores (`combined.rs`).
//!
//! Owns the last valid state of each store and publishes it as one immutable value. Never
//! interprets an object: `clusters` reads the Secrets, `mesh` the ConfigMaps.

pub mod combined;
pub mod files;
pub mod kube;
pub mod kubeconfig;
pub mod mcp;
pub mod member;
mod object;
pub mod own_cluster;
mod own_cluster_error;
mod policy_effect;
pub mod secret_sources;
mod spec;
mod value_text;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use jiff::Timestamp;

use crate::members::placement::PlacementDecision;
use crate::members::profile::ClusterProfile;
use strait_kube_client::Redacted;
use strait_model::{Collection, ConfigKind, ObjectFiles, ObjectKey};

/// The label of Istio's remote Secrets.
pub const ISTIO_SECRET_LABEL: (&str, &str) = ("istio/multiCluster", "true");
/// Strait's own label with the same meaning.
pub const SECRET_LABEL: (&str, &str) = ("strait.dev/cluster", "true");

/// The ConfigMaps that may contain the mesh's configuration: the first that exists is used. The
/// first is Strait's own.
pub const CONFIG_MAPS: [&str; 2] = ["strait", "istio"];

/// Returns the API paths of a configuration object, one for each version of the kind, preferred
/// first. Empty if objects of the kind are not read.
pub fn api_paths(key: &ObjectKey) -> Vec<String> {
    ConfigKind::find(key).map(|kind| kind.paths(key)).unwrap_or_default()
}

/// The complete configuration of a store.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Objects {
    /// Secrets of the system namespace with either label, by name, and then Secrets of the sources
    /// in the operator file.
    pub secrets: Vec<Arc<WatchedSecret>>,
    /// All other Secrets the ClusterProfiles and the PlacementDecisions of a directory, which a source in the operator file
    /// may select.
    pub other_secrets: Vec<Arc<WatchedSecret>>,
    /// The Secrets with the credentials for clusters of ClusterProfiles.
    pub provider_secrets: BTreeMap<ObjectName, Arc<WatchedSecret>>,
    /// ConfigMaps, by namespace and name.
    pub config_maps: Vec<Arc<WatchedConfigMap>>,
    /// Namespaces, by name.
    pub namespaces: Vec<Arc<WatchedNamespace>>,
    /// Objects of all other kinds, unchanged.
    pub others: Collection,
    /// Warnings about objects that could not be read; they are replaced by their previous version,
    /// or omitted.
    pub warnings: Vec<Warning>,
    /// Kinds, in plural, that the API server does not have, as their CustomResourceDefinition is not
    /// installed.
    pub absent: BTreeSet<&'static str>,
    /// Set if objects may be missing: the file that could not be read completely and whose earlier
    /// content is unknown.
    pub partial: Option<Arc<str>>,
    /// For a directory, the file of each effective object.
    pub files: Arc<ObjectFiles>,
    /// Objects whose current stored version cannot be read: their previous version applies.
    pub unread: Arc<UnreadObjects>,
    /// Objects without effect, because an earlier store contains them: the hosts in each, and a
    /// description.
    pub shadowed: Vec<(Vec<Arc<str>>, String)>,
}

/// Objects whose current stored version cannot be read, each with the error.
pub type UnreadObjects = BTreeMap<ObjectKey, Arc<str>>;

/// The contents of a store from before it is read. First responses must contain most of them, or be
/// confirmed.
#[derive(Debug, Clone, Default)]
pub struct RememberedStore {
    /// The Secrets that held members.
    pub secrets: BTreeSet<ObjectName>,
    /// The ConfigMaps of the mesh; at least one existed.
    pub config_maps: BTreeSet<ObjectName>,
    /// The objects of other kinds.
    pub entries: Collection,
    /// The effective ConfigMap of the mesh, if its content is known.
    pub config_map: Option<Arc<WatchedConfigMap>>,
    /// For a directory, the file of each object.
    pub files: Arc<ObjectFiles>,
    /// Whether contents are stored for restarts.
    pub is_persisted: bool,
}

impl RememberedStore {
    /// Creates the remembered contents from objects that were read.
    fn from_objects(objects: &Objects) -> Self {
        Self {
            secrets: objects.secrets.iter().map(|secret| secret.name.clone()).collect(),
            config_maps: objects.config_maps.iter().map(|map| map.name.clone()).collect(),
            entries: objects.others.clone(),
            ..Self::default()
        }
    }
}

/// A namespace and a name in it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct ObjectName {
    /// The namespace; empty for objects without one.
    pub namespace: Arc<str>,
    /// The name.
    pub name: Arc<str>,
}

impl ObjectName {
    /// Creates `namespace/name`.
    pub fn new(namespace: &str, name: &str) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }
}

impl fmt::Display for ObjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// A Secret, or a ClusterProfile, which also defines a member.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct WatchedSecret {
    /// Its name.
    pub name: ObjectName,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Its annotations.
    pub annotations: BTreeMap<String, String>,
    /// When it was created, if known.
    pub created: Option<Timestamp>,
    /// Its UID, if known. An object that was deleted and created again has another one.
    pub uid: Option<Arc<str>>,
    /// Its type, such as `Opaque`.
    pub secret_type: String,
    /// The source in the operator file whose selector found it; `None` in the system namespace.
    pub source: Option<Arc<str>>,
    /// Its decoded data; `stringData` takes precedence over `data`.
    pub data: BTreeMap<String, Redacted<Vec<u8>>>,
    /// The content of a ClusterProfile; `None` for a Secret.
    pub profile: Option<Arc<ClusterProfile>>,
    /// The content of a PlacementDecision, which limits the members of a source and defines none.
    pub decision: Option<Arc<PlacementDecision>>,
}

impl WatchedSecret {
    /// Whether it has a label that makes it describe member clusters.
    pub fn describes_clusters(&self) -> bool {
        self.profile.is_none()
            && self.decision.is_none()
            && [ISTIO_SECRET_LABEL, SECRET_LABEL]
                .iter()
                .any(|(key, value)| self.labels.get(*key).is_some_and(|found| found == value))
    }
}

/// A ConfigMap.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WatchedConfigMap {
    /// Its name.
    pub name: ObjectName,
    /// Its text data.
    pub data: BTreeMap<String, String>,
}

/// A Namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WatchedNamespace {
    /// Its name.
    pub name: Arc<str>,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
}

/// A part of the source that is not used, and why.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Warning {
    /// The file, or the object.
    pub source: String,
    /// The document in the file, from 1.
    pub document: Option<usize>,
    /// The line in the file, from 1.
    pub line: Option<u64>,
    /// The problem, and how it is handled.
    pub text: String,
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.source)?;
        if let Some(document) = self.document {
            write!(f, ", document {document}")?;
        }
        if let Some(line) = self.line {
            write!(f, ", line {line}")?;
        }
        write!(f, ": {}", self.text)
    }
}

/// Fuzz targets of the stores: see [`strait_base::testing::fuzz`].
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz {
    /// A file of manifests.
    pub(crate) fn manifests(bytes: &[u8]) -> bool {
        super::files::fuzz(bytes)
    }

    /// Responses of the config cluster: a byte that selects kind and encoding, then the response.
    pub(crate) fn kubernetes(bytes: &[u8]) -> bool {
        super::kube::fuzz::fuzz(bytes)
    }

    /// Responses of an MCP server: gRPC messages, each a discovery response.
    pub(crate) fn mcp(bytes: &[u8]) -> bool {
        super::mcp::fuzz(bytes)
    }
}
