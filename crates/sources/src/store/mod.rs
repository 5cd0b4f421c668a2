//! The objects of the config cluster, whatever they come from: files in a directory, or an API server; and
//! further stores of objects of the mesh beside it (`combined.rs`).
//!
//! Owns the last good state of each and hands it over as one immutable value. Never decides
//! what an object means: `clusters` reads the Secrets, `mesh` the ConfigMaps.

pub mod combined;
mod exec;
pub mod files;
mod kinds;
pub mod kube;
pub mod kubeconfig;
pub mod mcp;
pub mod member;
mod object;
pub mod own_cluster;
mod own_cluster_error;
mod spec;
mod value_text;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use jiff::Timestamp;

use strait_kube_client::Redacted;
use strait_model::{Collection, ObjectFiles, ObjectKey};

/// The label under which Istio keeps its remote Secrets.
pub const ISTIO_SECRET_LABEL: (&str, &str) = ("istio/multiCluster", "true");
/// Our own label of the same meaning.
pub const SECRET_LABEL: (&str, &str) = ("strait.dev/cluster", "true");

/// The ConfigMaps that may hold the mesh's configuration: the first that exists does. The first is ours.
pub const CONFIG_MAPS: [&str; 2] = ["strait", "istio"];

/// Where an API server has an object of the mesh's configuration, by each version of its kind, the best first; nowhere where
/// objects of the kind are not read.
pub fn api_paths(key: &ObjectKey) -> Vec<String> {
    kinds::StoreKind::of(key).map(|kind| kind.paths(key)).unwrap_or_default()
}

/// Everything that is configured, read once completely.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Objects {
    /// Secrets of the system namespace that carry one of the two labels, by name.
    pub secrets: Vec<Arc<WatchedSecret>>,
    /// ConfigMaps, by namespace and name.
    pub config_maps: Vec<Arc<WatchedConfigMap>>,
    /// Namespaces, by name.
    pub namespaces: Vec<Arc<WatchedNamespace>>,
    /// Objects of all other kinds as they are.
    pub others: Collection,
    /// What could not be read and is replaced by what it was before, or left out.
    pub warnings: Vec<Warning>,
    /// Where there may be more objects than these: a file that could not be read, or not all of it, and of which nobody
    /// knows what it held before.
    pub partial: Option<Arc<str>>,
    /// Of a directory, in which file which objects are that count.
    pub files: Arc<ObjectFiles>,
    /// Objects that can't be read as they are stored now: what counts is what they were before.
    pub unread: Arc<UnreadObjects>,
    /// What of several stores counts for nothing, since a store before has it: each with the hosts that it names, as
    /// text.
    pub shadowed: Vec<(Vec<Arc<str>>, String)>,
}

/// Objects that can't be read as they are stored, each with what is wrong.
pub type UnreadObjects = BTreeMap<ObjectKey, Arc<str>>;

/// What a store was known to hold before it is read. Of it first answers must have most, or be repeated.
#[derive(Debug, Clone, Default)]
pub struct RememberedStore {
    /// The Secrets that held members.
    pub secrets: BTreeSet<ObjectName>,
    /// The ConfigMaps of the mesh, one of which was there.
    pub config_maps: BTreeSet<ObjectName>,
    /// The objects of other kinds.
    pub entries: Collection,
    /// The ConfigMap of the mesh that counted, where its content is known.
    pub config_map: Option<Arc<WatchedConfigMap>>,
    /// Of a directory, in which file which objects were.
    pub files: Arc<ObjectFiles>,
    /// Whether anything is remembered over a restart.
    pub is_kept: bool,
}

impl RememberedStore {
    /// All that was read.
    fn of(objects: &Objects) -> Self {
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
    /// The namespace; empty for objects that have none.
    pub namespace: Arc<str>,
    /// The name.
    pub name: Arc<str>,
}

impl ObjectName {
    /// `namespace/name`.
    pub fn new(namespace: &str, name: &str) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }
}

impl fmt::Display for ObjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// A Secret.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct WatchedSecret {
    /// Its name.
    pub name: ObjectName,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Its annotations.
    pub annotations: BTreeMap<String, String>,
    /// When it was made, where that is known.
    pub created: Option<Timestamp>,
    /// Its data, decoded; `stringData` has won over `data`.
    pub data: BTreeMap<String, Redacted<Vec<u8>>>,
}

impl WatchedSecret {
    /// Whether it carries a label that makes it describe member clusters.
    pub fn describes_clusters(&self) -> bool {
        [ISTIO_SECRET_LABEL, SECRET_LABEL]
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

/// Something in the source that is not used, and why.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Warning {
    /// The file, or the object.
    pub source: String,
    /// The document in the file, from 1.
    pub document: Option<usize>,
    /// The line in the file, from 1.
    pub line: Option<u64>,
    /// What was found, and what is done about it.
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

/// What the store is sent: see [`strait_base::testing::fuzz`].
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz {
    /// A file of manifests.
    pub(crate) fn manifests(bytes: &[u8]) -> bool {
        super::files::fuzz(bytes)
    }

    /// What the config cluster answers: a byte that says of which kind and how, then the answer.
    pub(crate) fn kubernetes(bytes: &[u8]) -> bool {
        super::kube::fuzz::fuzz(bytes)
    }

    /// What an MCP server answers: gRPC messages, each a discovery response.
    pub(crate) fn mcp(bytes: &[u8]) -> bool {
        super::mcp::fuzz(bytes)
    }
}
