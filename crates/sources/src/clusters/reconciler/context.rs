//! The inputs of the reconciler, and the state that it shares with the runs.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, Semaphore, mpsc, watch};

use crate::clusters::remembered::RememberedMember;
use crate::clusters::renewal::RenewalFailures;
use crate::clusters::status::ClusterStatus;
use crate::members::MemberSources;
use crate::members::book::TokenBook;
use crate::registry::kube;
use crate::store::Objects;
use strait_base::task::Supervisor;
use strait_kube_client::{Access, ApiClient, Loopback};
use strait_model::mesh_config::ObjectSelectors;
use strait_model::policy::Policy;
use strait_model::registry::{Epoch, RegistryUpdate};
use strait_model::{
    ClusterId, EndpointMetadata, ImportMode, KnownClusters, Mcs, SharedEndpoints, SharedServices,
};
use strait_relay::hub::RelayedMember;

/// The pause before a registry that ended or panicked is restarted.
pub(super) const RESTART_PAUSE: Duration = Duration::from_secs(1);

/// Runs one cluster's registry until it is dropped: `registry::kube::run`, or a test's double.
pub type Runner =
    Arc<dyn Fn(kube::RunConfig) -> Pin<Box<dyn Future<Output = ()> + Send>> + Send + Sync>;

/// The inputs of the reconciler.
pub struct ReconcilerConfig {
    /// The objects that contain the Secrets; `None` until they have been read once.
    pub objects: watch::Receiver<Option<Arc<Objects>>>,
    /// The operator file.
    pub sources: watch::Receiver<Arc<MemberSources>>,
    /// The config cluster as a member; `None` with `--config-dir`.
    pub config_cluster: Option<ConfigCluster>,
    /// Whether a kubeconfig may name a literal loopback address.
    pub loopback: Loopback,
    /// The namespace whose label names a cluster's network.
    pub system_namespace: String,
    /// The DNS domain of services.
    pub domain: String,
    /// The mesh's trust domain, for workloads whose cluster's Secret names none. `None` until it is
    /// known; reading starts only then.
    pub trust_domain: watch::Receiver<Option<Arc<str>>>,
    /// The namespaces that belong to the mesh, and the services that are global; `None` until they
    /// are known.
    pub selectors: watch::Receiver<Option<ObjectSelectors>>,
    /// The endpoint metadata that proxies receive.
    pub metadata: EndpointMetadata,
    /// How exports and imports of services are interpreted.
    pub mcs: Mcs,
    /// Which objects are written for exported services.
    pub imports: ImportMode,
    /// The name of the cluster set.
    pub clusterset: String,
    /// The shared services that the mesh derives from them.
    pub shared: watch::Receiver<Arc<SharedServices>>,
    /// The endpoints of these services, for EndpointSlices.
    pub shared_endpoints: watch::Receiver<Arc<SharedEndpoints>>,
    /// Other objects that are written into clusters.
    pub writes: kube::MemberWrites,
    /// How long a cluster's data outlives its Secret.
    pub removal_grace: Duration,
    /// How long a cluster that never synced delays readiness.
    pub sync_timeout: Duration,
    /// The time without contact after which a cluster is stale.
    pub stale_after: Duration,
    /// The operator's settings for each cluster.
    pub policy: watch::Receiver<Arc<Policy>>,
    /// The channel for updates of the registries. Its capacity is set by its receiver. A full
    /// channel makes the registries wait; each then merges its pending updates.
    pub updates: mpsc::Sender<RegistryUpdate>,
    /// The state of members from before this process started.
    pub remembered: BTreeMap<ClusterId, RememberedMember>,
    /// Why tokens in Secrets could not be renewed.
    pub renewal_failures: watch::Receiver<Arc<RenewalFailures>>,
    /// Runs one registry.
    pub runner: Runner,
}

/// The config cluster.
pub struct ConfigCluster {
    /// Its ID, which no Secret can take.
    pub id: ClusterId,
    /// Its access; changes when a mounted token is renewed.
    pub access: watch::Receiver<Access>,
}

/// The clients for additional requests to each member's API server, besides the registries' reads.
pub type MemberClients = BTreeMap<ClusterId, ApiClient>;

/// The members whose Secrets permit relays.
pub type RelayedMembers = Arc<BTreeMap<ClusterId, RelayedMember>>;

/// Whether the state of the clusters is complete enough to serve it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MembersSettled {
    /// The configuration has never been read.
    ConfigurationUnread,
    /// These members have not synced, failed permanently or timed out.
    Waiting(Vec<ClusterId>),
    /// The state is complete.
    All,
}

/// The state that the reconciler shares with the runs.
pub(super) struct ReconcilerContext {
    pub(super) config: ReconcilerConfig,
    /// The tokens of identities.
    pub(super) book: TokenBook,
    pub(super) tasks: Supervisor,
    pub(super) epochs: AtomicU64,
    pub(super) first_syncs: Arc<Semaphore>,
    /// Notified when a run has changed.
    pub(super) news: Notify,
    /// The members with changes.
    pub(super) noted: Mutex<BTreeSet<ClusterId>>,
    pub(super) statuses: watch::Sender<Arc<Vec<ClusterStatus>>>,
    pub(super) known: watch::Sender<Arc<KnownClusters>>,
    pub(super) clients: watch::Sender<Arc<MemberClients>>,
    pub(super) relayed: watch::Sender<Option<RelayedMembers>>,
    pub(super) settled: watch::Sender<MembersSettled>,
}

impl ReconcilerContext {
    pub(super) fn next_epoch(&self) -> Epoch {
        Epoch(self.epochs.fetch_add(1, Ordering::Relaxed) + 1)
    }

    /// Records that a member has changed.
    pub(super) fn note(&self, id: &ClusterId) {
        let mut noted = self.noted.lock().unwrap_or_else(PoisonError::into_inner);
        if !noted.contains(id) {
            noted.insert(id.clone());
        }
        drop(noted);
        self.news.notify_one();
    }

    /// Returns the members that have changed since the last call.
    pub(super) fn take_noted(&self) -> BTreeSet<ClusterId> {
        std::mem::take(&mut *self.noted.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
