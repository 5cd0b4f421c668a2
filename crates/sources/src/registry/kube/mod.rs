//! The registry of one Kubernetes cluster: its Services, EndpointSlices, Pods, Nodes and Namespaces,
//! turned into one shard.
//!
//! Owns the objects of that cluster, in compact form. Never reads another cluster, and never decides
//! what a proxy gets. `index.rs` is what it knows, as a plain value; [`run`] moves events in and
//! updates out.

mod chosen;
mod contact;
mod endpoint_slice;
mod gateway_api;
mod index;
mod kind;
mod kind_weights;
mod last_contact;
mod mcs;
mod namespace;
mod node;
pub mod offline;
#[cfg(any(test, fuzzing))]
pub mod oracle;
mod own_mesh;
mod pending_pods;
mod pod;
mod roots;
mod run;
mod scope;
mod service;
mod slice_form;
mod slices;
#[cfg(test)]
mod tests;
mod weight;
mod workload_entry;
mod write_back;
mod zones;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use ipnet::IpNet;
use tokio::sync::{mpsc, watch};

use self::index::IndexedKind;
pub use last_contact::LastContact;
pub use own_mesh::{Own, OwnMesh};
pub use roots::{MemberWrites, RootsStatus};
pub use run::run;
use strait_kube_client::{Access, ApiClient, ReadLimits};
use strait_model::registry::{Contents, Epoch, RegistryUpdate, ServiceRecord};
use strait_model::{
    ClusterId, EndpointMetadata, Mcs, NamespaceFilter, OwnTraffic, SharedServices, Workloads,
};

/// What one run of a cluster's registry needs.
pub struct RunConfig {
    /// The cluster it speaks for.
    pub cluster: ClusterId,
    /// How its API server is reached.
    pub access: Access,
    /// The most that is read of it.
    pub limits: ReadLimits,
    /// The DNS domain of services, such as `cluster.local`.
    pub domain: String,
    /// The trust domain of its workloads' SPIFFE IDs.
    pub trust_domain: String,
    /// What becomes of the one that it names itself. Where that counts and is another, nothing is reported: a run in
    /// that one must take its place.
    pub own_mesh: OwnMesh,
    /// The namespace whose label names the cluster's network.
    pub system_namespace: String,
    /// What proxies are sent about endpoints.
    pub metadata: EndpointMetadata,
    /// Which namespaces belong to the mesh. Nothing is reported before that is known.
    pub namespaces: watch::Receiver<Option<Arc<NamespaceFilter>>>,
    /// What exports and imports of services mean.
    pub mcs: Mcs,
    /// What the mesh makes of them, to be written into the cluster. An end of it means that nothing is.
    pub shared: watch::Receiver<Arc<SharedServices>>,
    /// What else is written there.
    pub writes: MemberWrites,
    /// Its traffic objects, where they count for its proxies. An end of it means that none do.
    pub traffic: watch::Receiver<OwnTraffic>,
    /// This run's epoch.
    pub epoch: Epoch,
    /// Told by which client it reads, for others who ask the same API server.
    pub client: watch::Sender<Option<ApiClient>>,
    /// Where its updates go. Bounded by the receiver; a full one makes this registry wait, which
    /// delays this cluster only.
    pub updates: mpsc::Sender<RegistryUpdate>,
    /// How it fares.
    pub status: watch::Sender<RunStatus>,
}

/// How one run of a cluster's registry fares.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunStatus {
    /// Whether every required kind has been listed once, and the first reset has been sent.
    pub synced: bool,
    /// What stands between us and the API server now.
    pub contact: ApiContact,
    /// Whether it is there: somebody was answered, and nothing has happened to him since. Others may be in trouble.
    pub reached: bool,
    /// The kinds whose objects are no longer updated, although their last state is served.
    pub outdated: Vec<OutdatedKind>,
    /// When it last answered anything well-formed. That it did so again is no news.
    pub last_contact: LastContact,
    /// Services held.
    pub services: usize,
    /// Endpoints held.
    pub endpoints: usize,
    /// Kubernetes objects held, of all kinds.
    pub objects: usize,
    /// The ranges of which its nodes give addresses to pods, as few as say it, in order.
    pub pod_ranges: Arc<[IpNet]>,
    /// Full lists after the first, of any kind.
    pub relists: u64,
    /// Questions that failed: lists, watches, probes.
    pub errors: u64,
    /// How long it took until everything had been read.
    pub sync_took: Option<Duration>,
    /// Objects left out because they make no sense, and the last reason.
    pub skipped: Skipped,
    /// What works less well than it should, such as a kind we may not read; sorted.
    pub degraded: Vec<String>,
    /// What it reported that is hard to believe, and is asked again before it counts.
    pub doubted: Option<String>,
    /// How often it reported such a thing.
    pub doubts: u64,
    /// What it held last; until it has synced, what a run before it did. A first list that lacks most of that is
    /// asked for again.
    pub held: ObjectCounts,
    /// The UID of the namespace `kube-system`: the identity of the cluster, where it may be read.
    pub cluster_uid: Option<String>,
    /// Another cluster than the one that was read first answers now. Nothing of it has been reported, and nothing more
    /// will be.
    pub replaced: bool,
    /// What it says of itself, once it has been asked.
    pub own: Option<Own>,
    /// About how much memory all takes that is held of it, as last weighed: after each list at least.
    pub memory_bytes: usize,
    /// How far the mesh's roots have come in it; `None` where none are written.
    pub roots: Option<RootsStatus>,
    /// When it is asked again, while it is left alone for answering with nonsense or too much.
    pub next_attempt: Option<SystemTime>,
}

/// How many objects of each kind a run held.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ObjectCounts([usize; IndexedKind::ALL.len()]);

impl ObjectCounts {
    /// What a run held at least that reported this.
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

/// Objects that were left out.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Skipped {
    /// How many.
    pub count: u64,
    /// The last one and why.
    pub last: Option<String>,
}

/// A kind whose objects are no longer updated, because an API server no longer lists or watches it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutdatedKind {
    /// The kind in plural, as in paths.
    pub kind: &'static str,
    /// When its first request failed after the last that succeeded.
    pub since: SystemTime,
}

/// What stands between us and an API server. The texts name the fact: address, status, dates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ApiContact {
    /// Nothing has been heard or lost yet.
    Connecting,
    /// Lists and watches work.
    Good,
    /// It can't be reached, is silent, or answers with errors.
    Unreachable(String),
    /// It doesn't know our credential (401).
    AuthFailed(String),
    /// It knows our credential, which may not read what is required (403).
    Denied(String),
    /// Its certificate is not acceptable.
    TlsFailed(String),
    /// It answers with what no API server answers, or with more than its budget.
    Misbehaving(String),
}

impl RunStatus {
    /// The status of a run that has only begun.
    pub fn starting() -> Self {
        Self {
            synced: false,
            contact: ApiContact::Connecting,
            reached: false,
            outdated: Vec::new(),
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
            doubted: None,
            doubts: 0,
            held: ObjectCounts::default(),
            cluster_uid: None,
            replaced: false,
            own: None,
            memory_bytes: 0,
            roots: None,
            next_attempt: None,
        }
    }
}
