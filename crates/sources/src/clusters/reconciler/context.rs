//! What the reconciler is given, and what it shares with the runs.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, Semaphore, mpsc, watch};

use crate::clusters::remembered::RememberedMember;
use crate::clusters::status::ClusterStatus;
use crate::registry::kube;
use crate::store::Objects;
use strait_base::task::Supervisor;
use strait_kube_client::{Access, ApiClient, Loopback};
use strait_model::policy::Policy;
use strait_model::registry::{Epoch, RegistryUpdate};
use strait_model::{
    ClusterId, EndpointMetadata, KnownClusters, Mcs, NamespaceFilter, SharedServices,
};

/// How long a registry that ended, or panicked, rests.
pub(super) const RESTART_PAUSE: Duration = Duration::from_secs(1);

/// Runs one cluster's registry until it is dropped: `registry::kube::run`, or a test's double.
pub type Runner =
    Arc<dyn Fn(kube::RunConfig) -> Pin<Box<dyn Future<Output = ()> + Send>> + Send + Sync>;

/// What the reconciler needs.
pub struct ReconcilerConfig {
    /// Where the Secrets come from; `None` until they have been read once.
    pub objects: watch::Receiver<Option<Arc<Objects>>>,
    /// The config cluster as a member; none with `--config-dir`.
    pub config_cluster: Option<ConfigCluster>,
    /// Whether a kubeconfig may name a literal loopback address.
    pub loopback: Loopback,
    /// The namespace whose label names a cluster's network.
    pub system_namespace: String,
    /// The DNS domain of services.
    pub domain: String,
    /// The mesh's trust domain, which is that of workloads whose cluster's Secret names none; `None` until
    /// that is known, and nothing is read before.
    pub trust_domain: watch::Receiver<Option<Arc<str>>>,
    /// Which namespaces belong to the mesh; `None` until that is known.
    pub namespaces: watch::Receiver<Option<Arc<NamespaceFilter>>>,
    /// What proxies are sent about endpoints.
    pub metadata: EndpointMetadata,
    /// What exports and imports of services mean.
    pub mcs: Mcs,
    /// What the mesh makes of them.
    pub shared: watch::Receiver<Arc<SharedServices>>,
    /// What else is written into clusters.
    pub writes: kube::MemberWrites,
    /// How long a cluster's data outlives its Secret.
    pub removal_grace: Duration,
    /// After this a cluster that never synced no longer holds up readiness.
    pub sync_timeout: Duration,
    /// After this long out of reach a cluster is called stale.
    pub stale_after: Duration,
    /// What an operator wants of each.
    pub policy: watch::Receiver<Arc<Policy>>,
    /// Where what the registries say goes. Bounded by its receiver; a full one makes the registries
    /// wait, each of which then merges what it has to say.
    pub updates: mpsc::Sender<RegistryUpdate>,
    /// The members as they were known before this process started.
    pub remembered: BTreeMap<ClusterId, RememberedMember>,
    /// Runs one registry.
    pub runner: Runner,
}

/// The config cluster.
pub struct ConfigCluster {
    /// Its ID, which no Secret can take.
    pub id: ClusterId,
    /// How it is reached; changes when a mounted token is renewed.
    pub access: watch::Receiver<Access>,
}

/// By which client the API server of each member can be asked, beside what reads it.
pub type MemberClients = BTreeMap<ClusterId, ApiClient>;

/// Whether the state of the clusters is complete enough to answer from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MembersSettled {
    /// The configuration has not been read once.
    ConfigurationUnread,
    /// These have neither synced nor failed for good nor used up their time.
    Waiting(Vec<ClusterId>),
    /// It is.
    All,
}

/// What the reconciler shares with the runs.
pub(super) struct ReconcilerContext {
    pub(super) config: ReconcilerConfig,
    pub(super) tasks: Supervisor,
    pub(super) epochs: AtomicU64,
    pub(super) first_syncs: Arc<Semaphore>,
    /// A run has something new to see.
    pub(super) news: Notify,
    /// Of which members.
    pub(super) noted: Mutex<BTreeSet<ClusterId>>,
    pub(super) statuses: watch::Sender<Arc<Vec<ClusterStatus>>>,
    pub(super) known: watch::Sender<Arc<KnownClusters>>,
    pub(super) clients: watch::Sender<Arc<MemberClients>>,
    pub(super) settled: watch::Sender<MembersSettled>,
}

impl ReconcilerContext {
    pub(super) fn next_epoch(&self) -> Epoch {
        Epoch(self.epochs.fetch_add(1, Ordering::Relaxed) + 1)
    }

    /// Says that there is something new to see of a member.
    pub(super) fn note(&self, id: &ClusterId) {
        let mut noted = self.noted.lock().unwrap_or_else(PoisonError::into_inner);
        if !noted.contains(id) {
            noted.insert(id.clone());
        }
        drop(noted);
        self.news.notify_one();
    }

    /// Of which members there is something new to see since the last time.
    pub(super) fn take_noted(&self) -> BTreeSet<ClusterId> {
        std::mem::take(&mut *self.noted.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
