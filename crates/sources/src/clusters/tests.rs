//! End-to-end tests with simulated API servers: Secrets of a config cluster, kubeconfigs,
//! registries.

mod identities;
mod profiles;
mod proxies;
mod swap;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, watch};

use super::kubeconfig;
use super::reconciler::{self, ConfigCluster, MembersSettled, ReconcilerConfig, ReconcilerOutputs};
use super::status::{ClusterState, ClusterStatus};
use crate::store;
use strait_base::task::Supervisor;
use strait_kube_client::Loopback;
use strait_model::ClusterId;
use strait_model::policy::Policy;
use strait_model::registry::{RegistryUpdate, ShardChange};
use strait_sim::objects::{HTTP, namespace, service};
use strait_sim::{Options, SimCluster};

const LIMIT: Duration = Duration::from_secs(30);
const SYSTEM: &str = "strait-system";

async fn sim(id: &str) -> SimCluster {
    let sim = SimCluster::start(id, Options::default()).await.expect("a free port");
    for name in [SYSTEM, "kube-system", "shop"] {
        sim.store().apply(namespace(name)).expect("a namespace");
    }
    sim.store().apply(service("shop", id, "10.96.0.1", &[HTTP])).expect("a service");
    sim
}

/// Returns the status of member `east` once it meets the condition. Panics after [`LIMIT`].
async fn east(mesh: &Mesh, is_met: impl Fn(&ClusterStatus) -> bool) -> ClusterStatus {
    let mut statuses = mesh.outputs.statuses.clone();
    let found = |statuses: &Arc<Vec<ClusterStatus>>| {
        statuses.iter().any(|one| one.id == "east" && is_met(one))
    };
    let met = tokio::time::timeout(LIMIT, statuses.wait_for(found)).await.is_ok();
    let current = mesh.outputs.statuses.borrow();
    let east = current.iter().find(|one| one.id == "east").cloned();
    assert!(met, "{east:#?}");
    east.expect("a member")
}

/// The mesh of the config cluster `hub`, and the clusters whose services it contains.
struct Mesh {
    hub: SimCluster,
    outputs: ReconcilerOutputs,
    received: mpsc::Receiver<RegistryUpdate>,
    clusters: BTreeSet<String>,
    tasks: Supervisor,
}

impl Mesh {
    async fn start() -> Self {
        Self::with_sources(crate::policy_watch::WatchedFile::none().value).await
    }

    /// Starts with this policy file.
    async fn with_policy(text: &str) -> Self {
        let text = format!("apiVersion: strait.dev/v1\nkind: Policy\n{text}");
        let policy = Arc::new(Policy::parse(&text).expect("a valid policy"));
        Self::with_files(crate::policy_watch::WatchedFile::none().value, policy).await
    }

    /// Starts with this operator file.
    async fn with_sources(sources: watch::Receiver<Arc<crate::members::MemberSources>>) -> Self {
        Self::with_files(sources, Arc::default()).await
    }

    async fn with_files(
        sources: watch::Receiver<Arc<crate::members::MemberSources>>,
        policy: Arc<Policy>,
    ) -> Self {
        let hub = sim("hub").await;
        let tasks = Supervisor::new();
        let access = kubeconfig::parse(hub.kubeconfig().as_bytes(), None, Loopback::Allowed);
        let (_renew, access) = watch::channel(access.expect("the simulator's kubeconfig is valid"));
        let (updates, received) = mpsc::channel(100);
        let remembered = store::RememberedStore::default();
        let own = store::kube::watch(access.clone(), SYSTEM.to_owned(), remembered, &tasks).objects;
        let hub_access = Some(access.clone());
        let joined = store::secret_sources::with_sources(own, hub_access, sources.clone(), &tasks);
        let config = ReconcilerConfig {
            objects: joined.objects,
            sources,
            config_cluster: Some(ConfigCluster { id: "hub".into(), access }),
            loopback: Loopback::Allowed,
            system_namespace: SYSTEM.to_owned(),
            domain: "cluster.local".to_owned(),
            trust_domain: watch::channel(Some("cluster.local".into())).1,
            metadata: Default::default(),
            imports: Default::default(),
            clusterset: "default".into(),
            mcs: Default::default(),
            shared: watch::channel(Default::default()).1,
            shared_endpoints: watch::channel(Default::default()).1,
            writes: crate::registry::kube::MemberWrites::nothing(),
            selectors: watch::channel(Some(Default::default())).1,
            removal_grace: Duration::from_secs(1),
            sync_timeout: LIMIT,
            stale_after: super::status::STALE_AFTER,
            policy: watch::channel(policy).1,
            updates,
            remembered: Default::default(),
            renewal_failures: watch::channel(Default::default()).1,
            runner: Arc::new(|config| Box::pin(crate::registry::kube::run(config))),
        };
        let outputs = reconciler::start(config, &tasks);
        Self { hub, outputs, received, clusters: BTreeSet::new(), tasks }
    }

    fn join(&self, member: &SimCluster) {
        self.hub.store().apply(member.member_secret(SYSTEM)).expect("a Secret");
    }

    async fn until(&self, wanted: &[(&str, ClusterState)]) {
        let mut statuses = self.outputs.statuses.clone();
        let met = statuses.wait_for(|statuses| {
            statuses.iter().map(|one| (one.id.as_str(), one.state)).eq(wanted.iter().copied())
        });
        let met = tokio::time::timeout(LIMIT, met).await.is_ok();
        assert!(met, "wanted {wanted:?}, is {:#?}", self.outputs.statuses.borrow());
    }

    async fn until_clusters(&mut self, wanted: &[&str]) {
        let follow = async {
            while !self.clusters.iter().eq(wanted) {
                let update = self.received.recv().await.expect("the reconciler is alive");
                let cluster = update.shard.cluster.to_string();
                match update.change {
                    ShardChange::Removed => self.clusters.remove(&cluster),
                    ShardChange::Reset(contents) | ShardChange::Update(contents) => {
                        let host = format!("{cluster}.shop.svc.cluster.local");
                        contents.services.contains_key(host.as_str())
                            && self.clusters.insert(cluster)
                    }
                };
            }
        };
        let met = tokio::time::timeout(LIMIT, follow).await.is_ok();
        assert!(met, "wanted {wanted:?}, is {:?}", self.clusters);
    }
}

#[tokio::test]
async fn clusters_join_with_a_secret_and_leave_without_it() {
    let (east, west) = (sim("east").await, sim("west").await);
    let mut mesh = Mesh::start().await;
    mesh.until_clusters(&["hub"]).await;
    mesh.join(&east);
    mesh.join(&west);
    mesh.until_clusters(&["east", "hub", "west"]).await;
    mesh.until(&[
        ("hub", ClusterState::Live),
        ("east", ClusterState::Live),
        ("west", ClusterState::Live),
    ])
    .await;
    assert_eq!(*mesh.outputs.settled.borrow(), MembersSettled::All);

    // A new token, with the old one revoked: the Secret delivers it.
    east.rotate_token();
    mesh.join(&east);
    mesh.until(&[
        ("hub", ClusterState::Live),
        ("east", ClusterState::Live),
        ("west", ClusterState::Live),
    ])
    .await;

    let secret = west.member_secret(SYSTEM);
    let name = secret["metadata"]["name"].as_str().expect("a name");
    mesh.hub.store().delete("Secret", SYSTEM, name).expect("it exists");
    mesh.until_clusters(&["east", "hub"]).await;
    mesh.until(&[("hub", ClusterState::Live), ("east", ClusterState::Live)]).await;
    assert!(!mesh.outputs.known.borrow().contains(&ClusterId::from("west")));
    assert!(mesh.tasks.shut_down(LIMIT).await);
}

#[tokio::test]
async fn dead_api_server_is_stale_within_20_s_and_nothing_is_lost() {
    let (east, west) = (sim("east").await, sim("west").await);
    let mut mesh = Mesh::start().await;
    mesh.join(&east);
    mesh.join(&west);
    mesh.until_clusters(&["east", "hub", "west"]).await;
    mesh.until(&[
        ("hub", ClusterState::Live),
        ("east", ClusterState::Live),
        ("west", ClusterState::Live),
    ])
    .await;
    east.stop().await;
    let began = std::time::Instant::now();
    mesh.until(&[
        ("hub", ClusterState::Live),
        ("east", ClusterState::Stale),
        ("west", ClusterState::Live),
    ])
    .await;
    // 10 s without a response, plus the time to notice: a response just before does not count as
    // contact now.
    assert!(began.elapsed() < Duration::from_secs(15), "{:?}", began.elapsed());
    east.restart().await;
    mesh.until(&[
        ("hub", ClusterState::Live),
        ("east", ClusterState::Live),
        ("west", ClusterState::Live),
    ])
    .await;
    while let Ok(update) = mesh.received.try_recv() {
        assert!(!matches!(update.change, ShardChange::Removed), "{update:?}");
    }
}

#[tokio::test]
async fn another_cluster_behind_the_same_address_is_not_followed() {
    let (east, other) = (sim("east").await, sim("other").await);
    let mut mesh = Mesh::start().await;
    mesh.join(&east);
    mesh.until_clusters(&["east", "hub"]).await;
    let live = [("hub", ClusterState::Live), ("east", ClusterState::Live)];
    mesh.until(&live).await;
    let own = east.store().snapshot();
    let swap = async |contents| {
        east.stop().await;
        east.store().restore(contents);
        east.restart().await;
    };
    while mesh.received.try_recv().is_ok() {}
    swap(other.store().snapshot()).await;
    mesh.until(&[("hub", ClusterState::Live), ("east", ClusterState::IdentityChanged)]).await;
    while let Ok(update) = mesh.received.try_recv() {
        assert_ne!(update.shard.cluster.as_str(), "east", "{update:?}");
    }

    // The expected cluster is back.
    swap(own).await;
    mesh.until(&live).await;

    // The UID of the other cluster is now expected.
    swap(other.store().snapshot()).await;
    mesh.until(&[("hub", ClusterState::Live), ("east", ClusterState::IdentityChanged)]).await;
    let uid = other.store().get("Namespace", "", "kube-system").expect("it exists").value();
    let mut secret = east.member_secret(SYSTEM);
    secret["metadata"]["annotations"]["strait.dev/cluster-uid"] = uid["metadata"]["uid"].clone();
    mesh.hub.store().apply(secret).expect("a Secret");
    mesh.until(&live).await;
}

#[tokio::test]
async fn rebuilt_cluster_is_followed_once_its_secret_was_created_again() {
    let (east, other) = (sim("east").await, sim("other").await);
    let mut mesh = Mesh::with_policy("clusters: {east: {identity: follow-source}}").await;
    mesh.join(&east);
    mesh.until_clusters(&["east", "hub"]).await;
    let live = [("hub", ClusterState::Live), ("east", ClusterState::Live)];
    mesh.until(&live).await;
    east.stop().await;
    east.store().restore(other.store().snapshot());
    east.restart().await;
    mesh.until(&[("hub", ClusterState::Live), ("east", ClusterState::IdentityChanged)]).await;
    mesh.join(&east);
    mesh.until(&[("hub", ClusterState::Live), ("east", ClusterState::IdentityChanged)]).await;

    let secret = east.member_secret(SYSTEM);
    let name = secret["metadata"]["name"].as_str().expect("a name");
    mesh.hub.store().delete("Secret", SYSTEM, name).expect("it exists");
    mesh.join(&east);
    mesh.until(&live).await;
}

#[tokio::test]
async fn replaced_config_cluster_removes_no_member() {
    let (east, other) = (sim("east").await, sim("other").await);
    let mut mesh = Mesh::start().await;
    mesh.join(&east);
    mesh.until_clusters(&["east", "hub"]).await;
    let live = [("hub", ClusterState::Live), ("east", ClusterState::Live)];
    mesh.until(&live).await;
    let own = mesh.hub.store().snapshot();
    let hub = mesh.hub.clone();
    let swap = async |contents| {
        hub.stop().await;
        hub.store().restore(contents);
        hub.restart().await;
    };
    swap(other.store().snapshot()).await;
    mesh.until(&[("hub", ClusterState::IdentityChanged), ("east", ClusterState::Live)]).await;
    // Longer than the grace period after a Secret is deleted.
    tokio::time::sleep(Duration::from_secs(3)).await;
    mesh.until(&[("hub", ClusterState::IdentityChanged), ("east", ClusterState::Live)]).await;
    swap(own).await;
    mesh.until(&live).await;
    let west = sim("west").await;
    mesh.join(&west);
    mesh.until_clusters(&["east", "hub", "west"]).await;
    assert!(mesh.clusters.contains("east"));
}
