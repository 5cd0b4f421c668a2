//! Tests of published ClusterProfiles, with a simulated config cluster.

use super::*;
use strait_base::task::Supervisor;
use strait_kube_client::testing::loopback_access;
use strait_sim::{Family, Options, SimCluster};

const LIMIT: Duration = Duration::from_secs(30);

fn file(namespace: Option<&str>) -> Arc<MemberSources> {
    let publish = namespace.map(|one| format!("publishProfiles: {{namespace: {one}}}"));
    let text = format!(
        "apiVersion: strait.dev/v1\nkind: MemberSources\n{}\n",
        publish.unwrap_or_default()
    );
    Arc::new(MemberSources::parse(&text).expect("a valid file"))
}

struct Publishing {
    hub: SimCluster,
    role: watch::Sender<WriterRole>,
    file: watch::Sender<Arc<MemberSources>>,
    settled: watch::Sender<MembersSettled>,
    statuses: watch::Sender<Arc<Vec<ClusterStatus>>>,
    _access: watch::Sender<Access>,
    _clients: watch::Sender<Arc<MemberClients>>,
    _tasks: Supervisor,
}

impl Publishing {
    /// Starts a config cluster and the task. East is a live member whose API server responds.
    async fn start(role: WriterRole) -> Self {
        let families = [Family::Core, Family::MultiCluster].into();
        let options = Options { families, ..Options::default() };
        let hub = SimCluster::start("hub", options).await.expect("a cluster");
        for name in ["fleet", "other"] {
            let namespace =
                json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name } });
            hub.store().apply(namespace).expect("a namespace");
        }
        let access = loopback_access(&hub.url(), hub.certificate_authority(), hub.token());
        let client = ApiClient::new(&access).expect("usable");
        let clients = MemberClients::from([(ClusterId::from("east"), client)]);
        let (access, access_receiver) = watch::channel(access);
        let (role, role_receiver) = watch::channel(role);
        let (file, sources) = watch::channel(file(Some("fleet")));
        let (settled, settled_receiver) = watch::channel(MembersSettled::All);
        let (statuses, statuses_receiver) = watch::channel(Arc::default());
        let (clients, clients_receiver) = watch::channel(Arc::new(clients));
        let tasks = Supervisor::new();
        let config = PublishedProfilesConfig {
            access: access_receiver,
            role: role_receiver,
            sources,
            settled: settled_receiver,
            statuses: statuses_receiver,
            clients: clients_receiver,
        };
        tasks.spawn("profiles", run(config));
        Self {
            hub,
            role,
            file,
            settled,
            statuses,
            _access: access,
            _clients: clients,
            _tasks: tasks,
        }
    }

    fn set(&self, members: &[(&str, ClusterState)]) {
        let status = |(id, state): &(&str, ClusterState)| ClusterStatus {
            state: *state,
            ..ClusterStatus::live(id)
        };
        self.statuses.send_replace(Arc::new(members.iter().map(status).collect()));
    }

    fn profile(&self, namespace: &str, name: &str) -> Value {
        let found = self.hub.store().get("clusterprofiles", namespace, name);
        found.map(|object| object.value()).unwrap_or_default()
    }

    async fn until(&self, what: &str, is_met: impl Fn(&Self) -> bool) {
        let wait = async {
            while !is_met(self) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        assert!(timeout(LIMIT, wait).await.is_ok(), "{what}: {}", self.profile("fleet", "east"));
    }

    fn writes(&self) -> usize {
        self.hub.requests(|one| matches!(one.verb, "patch" | "create" | "delete")).len()
    }
}

fn healthy(profile: &Value) -> &Value {
    &profile["status"]["conditions"][0]["status"]
}

#[tokio::test]
async fn members_are_published_and_follow_their_state() {
    let publishing = Publishing::start(WriterRole::Writes).await;
    let mut from_profile = ClusterStatus::live("of-profile");
    from_profile.source_kind = Some("ClusterProfile");
    let mut east = ClusterStatus::live("east");
    east.network = Some("n1".into());
    publishing.statuses.send_replace(Arc::new(vec![
        ClusterStatus { secret: None, source_kind: None, ..ClusterStatus::live("hub") },
        east,
        from_profile,
        ClusterStatus { state: ClusterState::Rejected, ..ClusterStatus::live("refused") },
    ]));
    publishing.until("published", |all| *healthy(&all.profile("fleet", "east")) == "True").await;
    let profile = publishing.profile("fleet", "east");
    assert_eq!(profile["spec"]["clusterManager"]["name"], "strait");
    assert_eq!(profile["metadata"]["labels"]["x-k8s.io/cluster-manager"], "strait");
    let status = &profile["status"];
    assert_eq!(
        status["properties"],
        json!([
            { "name": "cluster.clusterset.k8s.io", "value": "east" },
            { "name": "strait.dev/network", "value": "n1" },
        ])
    );
    assert!(
        status["version"]["kubernetes"].as_str().is_some_and(|v| v.starts_with('v')),
        "{status}"
    );
    assert!(status["accessProviders"].is_null());
    for name in ["hub", "of-profile", "refused"] {
        assert!(publishing.profile("fleet", name).is_null(), "{name}");
    }

    // Nothing is written again without a difference.
    let before = publishing.writes();
    let since = status["conditions"][0]["lastTransitionTime"].clone();
    publishing.statuses.send_modify(|_| {});
    tokio::time::sleep(4 * PACE).await;
    assert_eq!(publishing.writes(), before);

    publishing.set(&[("east", ClusterState::Stale)]);
    publishing.until("unhealthy", |all| *healthy(&all.profile("fleet", "east")) == "False").await;
    assert!(since.is_string());
    let stale = publishing.profile("fleet", "east");
    assert_eq!(stale["status"]["conditions"][0]["reason"], "Stale");
    publishing.set(&[]);
    publishing.until("removed", |all| all.profile("fleet", "east").is_null()).await;
}

#[tokio::test]
async fn profile_of_another_manager_is_never_changed() {
    let publishing = Publishing::start(WriterRole::Standby).await;
    let foreign = json!({
        "apiVersion": API, "kind": "ClusterProfile",
        "metadata": { "namespace": "fleet", "name": "east" },
        "spec": { "displayName": "East", "clusterManager": { "name": "ocm" } },
    });
    publishing.hub.store().apply(foreign).expect("applied");
    publishing.set(&[("east", ClusterState::Live), ("west", ClusterState::Live)]);
    tokio::time::sleep(4 * PACE).await;
    assert!(publishing.profile("fleet", "west").is_null(), "another process writes");
    publishing.role.send_replace(WriterRole::Writes);
    publishing.until("published", |all| !all.profile("fleet", "west").is_null()).await;
    publishing.set(&[]);
    publishing.until("removed", |all| all.profile("fleet", "west").is_null()).await;
    let kept = publishing.profile("fleet", "east");
    assert_eq!((&kept["spec"]["displayName"], &kept["status"]), (&json!("East"), &Value::Null));
}

#[tokio::test]
async fn profiles_are_removed_only_when_all_members_are_known() {
    let publishing = Publishing::start(WriterRole::Writes).await;
    publishing.set(&[("east", ClusterState::Live)]);
    publishing.until("published", |all| *healthy(&all.profile("fleet", "east")) == "True").await;
    publishing.settled.send_replace(MembersSettled::ConfigurationUnread);
    publishing.set(&[]);
    tokio::time::sleep(4 * PACE).await;
    assert!(!publishing.profile("fleet", "east").is_null());
    publishing.settled.send_replace(MembersSettled::All);
    publishing.until("removed", |all| all.profile("fleet", "east").is_null()).await;

    // A change of the namespace moves the profiles.
    publishing.set(&[("east", ClusterState::Live)]);
    publishing.until("published", |all| !all.profile("fleet", "east").is_null()).await;
    publishing.file.send_replace(file(Some("other")));
    publishing.until("moved", |all| !all.profile("other", "east").is_null()).await;
    assert!(publishing.profile("fleet", "east").is_null());
    publishing.file.send_replace(file(None));
    publishing.until("withdrawn", |all| all.profile("other", "east").is_null()).await;
}
