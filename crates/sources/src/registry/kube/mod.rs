//! The registry of one Kubernetes cluster: its Services, EndpointSlices, Pods, Nodes and
//! Namespaces, turned into one shard.
//!
//! Owns the objects of that cluster, in compact form. Never reads another cluster, and makes no
//! decisions about proxies. `index.rs` is its state, as a plain value; [`run`] reads events and
//! sends updates.

mod chosen;
mod contact;
mod endpoint_slice;
mod gateway_api;
mod import_objects;
mod imported_slices;
mod imports;
mod index;
mod kind;
mod kind_weights;
mod known_namespaces;
mod last_contact;
mod mcs;
mod mcs_form;
mod memory_estimate;
mod namespace;
mod node;
pub mod offline;
#[cfg(any(test, fuzzing))]
pub mod oracle;
mod own_mesh;
mod pending_pods;
mod pod;
mod readers;
mod reviewed_rights;
mod roots;
mod run;
mod run_input;
mod scope;
mod service;
mod shared_kinds;
mod slice_form;
mod slices;
#[cfg(test)]
mod tests;
mod weight;
mod workload_entry;
mod write_back;
mod write_plan;
mod zones;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use ipnet::IpNet;
use tokio::sync::{mpsc, watch};

use self::index::IndexedKind;
pub(crate) use import_objects::{MANAGED_BY, SET, US, short_hash};
pub use last_contact::LastContact;
pub use own_mesh::{ClusterClaims, OwnMesh};
pub use roots::{MemberWrites, ROOTS_MAPS, RootsStatus, written_roots};
pub use run::{run, run_with};
use strait_base::codes::Code;
use strait_kube_client::{Access, ApiClient, NamespacedName, ReadLimits};
use strait_model::mesh_config::ObjectSelectors;
use strait_model::policy::Policy;
use strait_model::registry::{Contents, Epoch, RegistryUpdate, ServiceRecord};
use strait_model::{
    ClusterId, EndpointMetadata, ImportMode, Mcs, NetworkId, OwnTraffic, ReadNamespaces,
    SharedEndpoints, SharedServices, WorkloadKey, Workloads,
};

/// Returns the name of the derived Service of a ServiceImport.
pub fn derived_service_name(namespace: &str, name: &str) -> String {
    let key = NamespacedName { namespace: namespace.into(), name: name.into() };
    import_objects::derived_name(&key)
}

/// The inputs of one run of a cluster's registry.
pub struct RunConfig {
    /// The cluster that it reports for.
    pub cluster: ClusterId,
    /// The access to its API server.
    pub access: Access,
    /// The limits of reading it.
    pub limits: ReadLimits,
    /// The DNS domain of services, such as `cluster.local`.
    pub domain: String,
    /// The trust domain of the workloads' SPIFFE IDs.
    pub trust_domain: String,
    /// How the cluster's own trust domain is treated. If it applies and differs from
    /// `trust_domain`, this run reports no objects: a run with the other trust domain must replace
    /// this one.
    pub own_mesh: OwnMesh,
    /// The namespace whose label names the cluster's network.
    pub system_namespace: String,
    /// The endpoint metadata that proxies receive.
    pub metadata: EndpointMetadata,
    /// The namespaces that belong to the mesh, and the services that are global. The registry
    /// reports no objects before they are known.
    pub selectors: watch::Receiver<Option<ObjectSelectors>>,
    /// How exports and imports of services are interpreted.
    pub mcs: Mcs,
    /// Which objects are written for services that the clusters export; the policy can override it.
    pub imports: ImportMode,
    /// The name of the cluster set.
    pub clusterset: String,
    /// The operator's settings for each cluster.
    pub policy: watch::Receiver<Arc<Policy>>,
    /// The shared services that the mesh derives from them, to be written into the cluster. Writing
    /// stops when the sender is dropped.
    pub shared: watch::Receiver<Arc<SharedServices>>,
    /// The endpoints of these services, for EndpointSlices.
    pub shared_endpoints: watch::Receiver<Arc<SharedEndpoints>>,
    /// Other objects that are written into the cluster.
    pub writes: MemberWrites,
    /// The namespaces that it reads.
    pub namespaces: ReadNamespaces,
    /// The last known contents of the cluster, for namespaces that it may not read.
    pub known: Option<Contents>,
    /// Its traffic objects, if they apply to its proxies. None apply after the sender is dropped.
    pub traffic: watch::Receiver<OwnTraffic>,
    /// This run's epoch.
    pub epoch: Epoch,
    /// Receives the client of this run, for other requests to the same API server.
    pub client: watch::Sender<Option<ApiClient>>,
    /// The channel for its updates. Its capacity is set by the receiver. A full channel makes this
    /// registry wait, which delays this cluster only.
    pub updates: mpsc::Sender<Box<RegistryUpdate>>,
    /// Receives its status.
    pub status: watch::Sender<RunStatus>,
}

/// The status of one run of a cluster's registry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunStatus {
    /// Whether every required kind has been listed once, and the first reset has been sent.
    pub synced: bool,
    /// The current contact with the API server.
    pub contact: ApiContact,
    /// Whether the API server is reachable: at least one reader received a response and has not
    /// failed since. Other readers may have problems.
    pub reached: bool,
    /// The kinds whose objects are no longer updated, although their last state is served.
    pub outdated: Vec<OutdatedKind>,
    /// The namespaces that may not be read, although the others are.
    pub unread: Vec<UnreadNamespace>,
    /// The time of the last valid response. A change of it causes no notification.
    pub last_contact: LastContact,
    /// Number of services.
    pub services: usize,
    /// Number of endpoints.
    pub endpoints: usize,
    /// Number of Kubernetes objects of all kinds.
    pub objects: usize,
    /// The ranges from which its nodes assign pod addresses, merged and sorted.
    pub pod_ranges: Arc<[IpNet]>,
    /// Number of full lists after the first, of any kind.
    pub relists: u64,
    /// Number of failed requests: lists, watches, probes.
    pub errors: u64,
    /// The time from the start until everything had been read.
    pub sync_took: Option<Duration>,
    /// Objects that were omitted because they are invalid, and the last reason.
    pub skipped: Skipped,
    /// Restrictions of the operation, such as a kind that may not be read; sorted.
    pub degraded: Vec<String>,
    /// The permissions that the reader lacks, for example `list pods`.
    pub missing_rights: Vec<String>,
    /// A doubtful report of the cluster, which is requested again before it applies.
    pub doubted: Option<String>,
    /// Number of doubtful reports.
    pub doubts: u64,
    /// Object counts of the last state. Before the sync, the counts of the previous run: a first
    /// list that lacks most of these objects is requested again.
    pub object_counts: ObjectCounts,
    /// The UID of the namespace `kube-system`: the identity of the cluster, if it may be read.
    pub cluster_uid: Option<String>,
    /// Whether the API server now belongs to a different cluster than at first. The other cluster's
    /// objects are not reported.
    pub replaced: bool,
    /// The cluster's own claims, once they have been read.
    pub own: Option<ClusterClaims>,
    /// Approximate memory of all its data in bytes, as last computed: at least after each list.
    pub memory_bytes: usize,
    /// How far the mesh's roots have been distributed in it; `None` if none are written.
    pub roots: Option<RootsStatus>,
    /// The time of the next attempt, while it is paused because of invalid or too large responses.
    pub next_attempt: Option<SystemTime>,
    /// The ServiceImports of exported services.
    pub imports: Arc<ImportsStatus>,
}

/// The ServiceImports of a cluster, and its invalid ServiceExports.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ImportsStatus {
    /// The exports that are not valid, with the reasons.
    pub invalid_exports: BTreeMap<WorkloadKey, &'static str>,
    /// Which objects are written.
    pub mode: ImportMode,
    /// Why none are written at all, with a code.
    pub stopped: Option<(&'static Code, String)>,
    /// The state of each import that exists or should exist, by namespace and name.
    pub imports: BTreeMap<WorkloadKey, ImportState>,
    /// Number of delayed deletions.
    pub held: usize,
    /// Number of writes by kind of object and result.
    pub writes: BTreeMap<(&'static str, &'static str), u64>,
}

/// A step of the explanation of an import, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ImportStep {
    /// A cluster exports the service.
    Exported,
    /// The exporting clusters have names in the set.
    Name,
    /// The importing cluster has the namespace.
    Namespace,
    /// The policy permits the export and the import.
    Policy,
    /// The credential may write the objects.
    Right,
    /// The importing cluster serves the API.
    Version,
    /// No other controller owns the objects.
    Foreign,
    /// The importing cluster has endpoints in its network.
    Network,
    /// The derived Service has addresses.
    Address,
}

impl ImportStep {
    /// All steps, in order.
    pub const ALL: [Self; 9] = [
        Self::Exported,
        Self::Name,
        Self::Namespace,
        Self::Policy,
        Self::Right,
        Self::Version,
        Self::Foreign,
        Self::Network,
        Self::Address,
    ];

    /// Returns the name of the step.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Exported => "exported",
            Self::Name => "name",
            Self::Namespace => "namespace",
            Self::Policy => "policy",
            Self::Right => "right",
            Self::Version => "version",
            Self::Foreign => "foreign",
            Self::Network => "network",
            Self::Address => "address",
        }
    }
}

/// The state of one ServiceImport.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ImportState {
    /// Whether it exists.
    pub present: bool,
    /// Whether Strait wrote it.
    pub ours: bool,
    /// Whether it can be reached.
    pub ready: bool,
    /// Its addresses.
    pub ips: Vec<IpAddr>,
    /// Number of EndpointSlices that Strait wrote for it.
    pub slices: usize,
    /// Networks with ready endpoints that the cluster does not reach directly.
    pub unreached: Vec<NetworkId>,
    /// Why it is missing, not ready, or no longer updated.
    pub reason: Option<String>,
    /// The code of the reason.
    pub code: Option<&'static Code>,
    /// The step that fails, if the import is missing or not ready.
    pub fails: Option<ImportStep>,
}

/// The number of objects of each kind in a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ObjectCounts([usize; IndexedKind::ALL.len()]);

impl ObjectCounts {
    /// Returns the minimum number of objects of a run that reported these contents.
    pub fn at_least(contents: &Contents) -> Self {
        let records = || contents.services.values().flatten();
        let name = |record: &ServiceRecord| {
            (record.service.namespace.clone(), Arc::clone(&record.service.name))
        };
        let services: BTreeSet<_> = records().map(name).collect();
        let with_endpoints = records().filter(|record| !record.endpoints.is_empty());
        let slices: BTreeSet<_> = with_endpoints.map(name).collect();
        let namespaces: BTreeSet<_> = services.iter().map(|(namespace, _)| namespace).collect();
        let facts = contents.facts.as_ref();
        Self(IndexedKind::ALL.map(|kind| match kind {
            IndexedKind::Services => services.len(),
            IndexedKind::EndpointSlices => slices.len(),
            IndexedKind::Pods => contents.workloads.as_ref().map_or(0, Workloads::len),
            IndexedKind::Nodes => facts.map_or(0, |facts| facts.localities.len()),
            IndexedKind::Namespaces => namespaces.len(),
            IndexedKind::Gateways => facts.map_or(0, |facts| facts.gateways.len()),
            IndexedKind::WorkloadEntries => facts.map_or(0, |facts| facts.entries.len()),
            IndexedKind::ServiceExports | IndexedKind::ServiceImports => 0,
        }))
    }

    fn count(&self, kind: IndexedKind) -> usize {
        IndexedKind::ALL
            .into_iter()
            .zip(self.0)
            .find(|(one, _)| *one == kind)
            .map_or(0, |(_, count)| count)
    }
}

/// Objects that were omitted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Skipped {
    /// Number of objects.
    pub count: u64,
    /// The last object and the reason.
    pub last: Option<String>,
}

/// A kind whose objects are no longer updated, because an API server no longer lists or watches it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutdatedKind {
    /// The kind in plural, as in paths.
    pub kind: &'static str,
    /// When the first request failed after the last success.
    pub since: SystemTime,
}

/// A namespace that may not be read. Its last known objects stay.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnreadNamespace {
    /// The namespace.
    pub namespace: Arc<str>,
    /// When the first request was refused after the last success.
    pub since: SystemTime,
    /// The kind, and why it may not be read.
    pub fact: String,
}

/// The contact with an API server. The texts state the fact: address, status, dates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ApiContact {
    /// No response and no failure yet.
    Connecting,
    /// Lists and watches work.
    Good,
    /// The server is unreachable, does not respond, or responds with errors.
    Unreachable(String),
    /// The server does not accept the credential (401).
    AuthFailed(String),
    /// The server accepts the credential, but it may not read a required kind (403).
    Denied(String),
    /// The server's certificate is not accepted.
    TlsFailed(String),
    /// The responses do not look like an API server's, or exceed the budget.
    Misbehaving(String),
}

impl ApiContact {
    /// Returns whether the server responds to requests, also with refusals or invalid data.
    pub fn is_response(&self) -> bool {
        match self {
            Self::Good | Self::AuthFailed(_) | Self::Denied(_) | Self::Misbehaving(_) => true,
            Self::Connecting | Self::Unreachable(_) | Self::TlsFailed(_) => false,
        }
    }
}

impl RunStatus {
    /// Creates the status of a run that has just started.
    pub fn starting() -> Self {
        Self {
            synced: false,
            contact: ApiContact::Connecting,
            reached: false,
            outdated: Vec::new(),
            unread: Vec::new(),
            last_contact: LastContact::default(),
            services: 0,
            endpoints: 0,
            objects: 0,
            pod_ranges: Arc::default(),
            relists: 0,
            errors: 0,
            sync_took: None,
            skipped: Skipped::default(),
            degraded: Vec::new(),
            missing_rights: Vec::new(),
            doubted: None,
            doubts: 0,
            object_counts: ObjectCounts::default(),
            cluster_uid: None,
            replaced: false,
            own: None,
            memory_bytes: 0,
            roots: None,
            next_attempt: None,
            imports: Arc::default(),
        }
    }
}
