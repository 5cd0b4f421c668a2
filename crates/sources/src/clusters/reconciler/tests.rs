//! Tests of the reconciler with fake registries. The host in the kubeconfig selects the behavior of
//! a fake: `fades…` (unreachable after sync), `flaps…` (contact fails repeatedly), `limps…`
//! (answers sometimes, never for one kind), `renews…` (answers continuously), `grows…`, also after
//! `slow-` (has more and more services, then ten), `good…`, `dark…` (no response), `auth…`, `tls…`,
//! `panics…` (once), and `slow…`, which syncs when the test releases it. Its UID is the part after
//! `uid-`, if present.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::sync::Mutex;

use tokio::sync::mpsc;

use super::*;
use crate::registry::kube::{self, ApiContact, LastContact};
use strait_base::lock::lock;
use strait_kube_client::{ApiCredential, Loopback, Redacted};
use strait_model::registry::Contents;
use strait_relay::hub::RelayedMember;

mod deselected;
mod identity;
mod remembered;
mod secrets;
mod trust_domain;

const LIMIT: Duration = Duration::from_secs(20);

/// The observed behavior of the fakes.
#[derive(Default)]
struct Doubles {
    /// `cluster host` of each running registry.
    alive: Mutex<Vec<String>>,
    /// Maximum number of concurrent runs of one cluster.
    most: Mutex<usize>,
    started: Mutex<usize>,
    /// The trust domain of the last run.
    trust_domain: Mutex<String>,
    panicked: Mutex<BTreeSet<String>>,
    /// Hosts that may sync.
    released: watch::Sender<BTreeSet<String>>,
}

/// Removes a run from the list, however it ends.
struct Alive(Arc<Doubles>, String);

impl Drop for Alive {
    fn drop(&mut self) {
        let mut alive = lock(&self.0.alive);
        if let Some(at) = alive.iter().position(|run| *run == self.1) {
            alive.remove(at);
        }
    }
}

async fn double(doubles: Arc<Doubles>, config: kube::RunConfig) {
    let host = config.access.server.host().unwrap_or_default().to_owned();
    let cluster = config.cluster.clone();
    let _alive = {
        let mut alive = lock(&doubles.alive);
        alive.push(format!("{cluster} {host}"));
        let runs_of_cluster =
            alive.iter().filter(|run| run.starts_with(&format!("{cluster} "))).count();
        let mut most = lock(&doubles.most);
        *most = (*most).max(runs_of_cluster);
        *lock(&doubles.started) += 1;
        lock(&doubles.trust_domain).clone_from(&config.trust_domain);
        Alive(Arc::clone(&doubles), format!("{cluster} {host}"))
    };
    if let Some((_, domain)) = host.split_once("says-") {
        let domain = domain.trim_end_matches(".example.org");
        let trust_domain = Some(Arc::from(domain));
        let own = Some(kube::ClusterClaims { trust_domain, problem: None });
        config.status.send_modify(|status| status.own = own);
        if config.trust_domain != domain && matches!(config.own_mesh, OwnMesh::Counts(_)) {
            return std::future::pending().await;
        }
    }
    let contact = |contact: ApiContact| {
        config.status.send_modify(|status| {
            status.reached = contact == ApiContact::Good;
            status.contact = contact;
        });
    };
    if host.starts_with("dark") {
        contact(ApiContact::Unreachable("connection refused".to_owned()));
        return std::future::pending().await;
    }
    if host.starts_with("auth") {
        contact(ApiContact::AuthFailed("401".to_owned()));
        return std::future::pending().await;
    }
    if host.starts_with("tls") {
        contact(ApiContact::TlsFailed("expired".to_owned()));
        return std::future::pending().await;
    }
    if host.starts_with("slow") {
        let mut released = doubles.released.subscribe();
        let _ = released.wait_for(|hosts| hosts.contains(&host)).await;
    }
    let shard = ShardKey::kubernetes(cluster.clone());
    let reset = ShardChange::Reset(Contents::default());
    let update = RegistryUpdate { shard, epoch: config.epoch, change: reset };
    let _ = config.updates.send(Box::new(update)).await;
    config.status.send_modify(|status| {
        status.synced = true;
        (status.contact, status.reached) = (ApiContact::Good, true);
        status.last_contact = LastContact::at(Some(SystemTime::now()));
        status.services = 3;
        status.cluster_uid = host
            .split_once("uid-")
            .map(|(_, rest)| rest.trim_end_matches(".example.org").to_owned());
    });
    if host.starts_with("fades") {
        config.status.send_modify(|status| {
            status.last_contact = LastContact::at(Some(SystemTime::UNIX_EPOCH));
        });
        contact(ApiContact::Unreachable("connection refused".to_owned()));
    }
    if host.starts_with("expires") {
        config.status.send_modify(|status| {
            status.last_contact = LastContact::at(Some(SystemTime::UNIX_EPOCH));
        });
        contact(ApiContact::AuthFailed("401".to_owned()));
    }
    if host.starts_with("flaps") {
        for _ in 0..6 {
            contact(ApiContact::Good);
            tokio::time::sleep(PACE * 3).await;
            contact(ApiContact::Unreachable("connection refused".to_owned()));
            tokio::time::sleep(PACE * 3).await;
        }
    }
    if host.starts_with("limps") {
        for services in 4..10 {
            config.status.send_modify(|status| {
                status.contact = ApiContact::Misbehaving("pods: too long".to_owned());
                status.last_contact = LastContact::at(Some(SystemTime::now()));
                status.services = services;
            });
            tokio::time::sleep(PACE * 3).await;
            config.status.send_modify(|status| {
                status.last_contact = LastContact::at(Some(SystemTime::UNIX_EPOCH));
            });
            tokio::time::sleep(PACE * 3).await;
        }
        config.status.send_modify(|status| status.services = 10);
    }
    if host.contains("grows") {
        for services in 4..=10 {
            config.status.send_modify(|status| status.services = services);
            tokio::time::sleep(PACE * 3).await;
        }
    }
    if host.starts_with("renews") {
        let contact = config.status.borrow().last_contact.clone();
        loop {
            tokio::time::sleep(PACE).await;
            contact.renew(SystemTime::now());
        }
    }
    if host.starts_with("panics") && lock(&doubles.panicked).insert(host.clone()) {
        panic!("on purpose");
    }
    std::future::pending::<()>().await;
}

struct World {
    doubles: Arc<Doubles>,
    objects: watch::Sender<Option<Arc<Objects>>>,
    sources: watch::Sender<Arc<MemberSources>>,
    mesh_trust_domain: watch::Sender<Option<Arc<str>>>,
    outputs: ReconcilerOutputs,
    received: mpsc::Receiver<RegistryUpdate>,
    tasks: Supervisor,
}

struct Setup {
    grace: Duration,
    timeout: Duration,
    config_cluster: Option<ConfigCluster>,
    remembered: BTreeMap<ClusterId, RememberedMember>,
    policy: watch::Receiver<Arc<Policy>>,
    stale_after: Duration,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            grace: LIMIT * 100,
            timeout: LIMIT * 100,
            config_cluster: None,
            remembered: BTreeMap::new(),
            policy: crate::policy_watch::WatchedFile::none().value,
            stale_after: crate::clusters::status::STALE_AFTER,
        }
    }
}

impl World {
    fn new(setup: Setup) -> Self {
        let doubles = Arc::new(Doubles::default());
        let (objects, objects_receiver) = watch::channel(None);
        let (sources, sources_receiver) = watch::channel(Arc::default());
        let (updates, received) = mpsc::channel(10_000);
        let tasks = Supervisor::new();
        let for_runner = Arc::clone(&doubles);
        let (mesh_trust_domain, trust_domain_receiver) = watch::channel(Some("example.org".into()));
        let config = ReconcilerConfig {
            objects: objects_receiver,
            config_cluster: setup.config_cluster,
            sources: sources_receiver,
            loopback: Loopback::Refused,
            system_namespace: "strait-system".to_owned(),
            domain: "cluster.local".to_owned(),
            trust_domain: trust_domain_receiver,
            metadata: Default::default(),
            imports: Default::default(),
            clusterset: "default".into(),
            mcs: Default::default(),
            shared: watch::channel(Default::default()).1,
            shared_endpoints: watch::channel(Default::default()).1,
            writes: kube::MemberWrites::nothing(),
            selectors: watch::channel(Some(Default::default())).1,
            removal_grace: setup.grace,
            sync_timeout: setup.timeout,
            stale_after: setup.stale_after,
            policy: setup.policy,
            updates,
            remembered: setup.remembered,
            renewal_failures: watch::channel(Default::default()).1,
            runner: Arc::new(move |config| Box::pin(double(Arc::clone(&for_runner), config))),
        };
        let outputs = start(config, &tasks);
        Self { doubles, objects, sources, mesh_trust_domain, outputs, received, tasks }
    }

    /// Sets the Secrets: name or `name@uid`, clusters as `id=host`, annotations as
    /// `strait.dev/…=value`.
    fn secrets(&self, secrets: &[(&str, &[&str])]) {
        let secrets = secrets.iter().map(|(name, parts)| {
            let split = |part: &&str| {
                let (key, value) = part.split_once('=').expect("key=value");
                (key.to_owned(), value.to_owned())
            };
            let (annotations, data): (Vec<_>, Vec<_>) =
                parts.iter().map(split).partition(|(key, _)| key.starts_with("strait.dev/"));
            let (name, uid) = match name.split_once('@') {
                Some((name, uid)) => (name, Some(uid.into())),
                None => (*name, None),
            };
            Arc::new(WatchedSecret {
                name: ObjectName::new("strait-system", name),
                labels: BTreeMap::new(),
                annotations: annotations.into_iter().collect(),
                created: None,
                uid,
                secret_type: String::new(),
                source: None,
                profile: None,
                decision: None,
                data: data
                    .into_iter()
                    .map(|(id, host)| (id, Redacted::new(kubeconfig(&host).into_bytes())))
                    .collect(),
            })
        });
        let objects = Objects { secrets: secrets.collect(), ..Objects::default() };
        self.objects.send_replace(Some(Arc::new(objects)));
    }

    fn release(&self, host: &str) {
        self.doubles.released.send_modify(|hosts| {
            hosts.insert(format!("{host}.example.org"));
        });
    }

    /// Waits until the clusters are exactly these: `id state` or `id state secret`, and a part of
    /// the reason after `: `.
    async fn until(&mut self, wanted: &[&str]) {
        let fits = |status: &ClusterStatus, wanted: &str| {
            let (wanted, reason) = wanted.split_once(": ").unwrap_or((wanted, ""));
            let secret = status.secret.as_deref().unwrap_or_default();
            let secret = secret.trim_start_matches("strait-system/");
            let short = format!("{} {}", status.id, status.state.as_str());
            (wanted == short || wanted == format!("{short} {secret}"))
                && status.reason.as_deref().unwrap_or_default().contains(reason)
        };
        let all = |statuses: &Arc<Vec<ClusterStatus>>| {
            statuses.len() == wanted.len()
                && statuses.iter().zip(wanted).all(|(status, wanted)| fits(status, wanted))
        };
        let mut statuses = self.outputs.statuses.clone();
        let met = tokio::time::timeout(LIMIT, statuses.wait_for(all)).await.is_ok();
        assert!(met, "wanted {wanted:#?}, is {:#?}", self.outputs.statuses.borrow());
    }

    async fn until_settled(&mut self, wanted: MembersSettled) {
        let mut settled = self.outputs.settled.clone();
        let met = tokio::time::timeout(LIMIT, settled.wait_for(|s| *s == wanted)).await.is_ok();
        assert!(met, "wanted {wanted:?}, is {:?}", self.outputs.settled.borrow());
    }

    /// Waits until exactly these members may have relays: ID, Secret and generation.
    async fn until_relayed(&self, wanted: &[&str]) {
        let all = |members: &Option<RelayedMembers>| {
            let members = members.iter().flat_map(|members| members.iter());
            let text = |(id, member): (&ClusterId, &RelayedMember)| {
                format!("{id} {} {}", member.secret.1, member.generation)
            };
            members.map(text).eq(wanted.iter().copied())
        };
        let mut relayed = self.outputs.relayed.clone();
        let met = tokio::time::timeout(LIMIT, relayed.wait_for(all)).await.is_ok();
        assert!(met, "wanted {wanted:?}, is {:?}", self.outputs.relayed.borrow());
    }

    async fn until_alive(&self, wanted: &[&str]) {
        let alive = || {
            let mut alive = lock(&self.doubles.alive).clone();
            alive.sort();
            alive.iter().map(|run| run.replace(".example.org", "")).collect::<Vec<_>>()
        };
        let started = Instant::now();
        while alive() != wanted {
            assert!(started.elapsed() < LIMIT, "wanted {wanted:?}, is {:?}", alive());
            tokio::task::yield_now().await;
        }
    }

    /// Returns all updates so far in short form; `+` for a reset, `-` for an end.
    fn received(&mut self) -> Vec<String> {
        let mut received = Vec::new();
        while let Ok(update) = self.received.try_recv() {
            let sign = if matches!(update.change, ShardChange::Removed) { '-' } else { '+' };
            received.push(format!("{sign}{}", update.shard.cluster));
        }
        received
    }
}

fn access(host: &str) -> Access {
    Access {
        server: format!("https://{host}.example.org").parse().expect("a URL"),
        ca_pem: None,
        tls_server_name: None,
        credential: ApiCredential::Token(Redacted::new("canary".to_owned())),
        loopback: Loopback::Refused,
        proxy: None,
    }
}

fn kubeconfig(host: &str) -> String {
    match host {
        "exec" => "users: [{name: a, user: {exec: {command: touch}}}]".to_owned(),
        _ => crate::clusters::kubeconfig::write(&ClusterId::from("x"), &access(host)),
    }
}

#[tokio::test]
async fn failing_cluster_does_not_affect_others() {
    let mut world = World::new(Setup::default());
    world.until_settled(MembersSettled::ConfigurationUnread).await;
    world.secrets(&[
        ("a", &["east=good-1", "west=dark"]),
        ("b", &["auth=auth", "tls=tls", "bad=exec", "Odd=good-2"]),
    ]);
    world
        .until(&[
            "Odd rejected b: STR0215",
            "auth authFailed b: STR0304: 401",
            "bad rejected b: STR0203: users[0].user.exec",
            "east live a",
            "tls tlsFailed b: STR0305",
            "west syncing a: STR0301: connection refused",
        ])
        .await;
    world.until_settled(MembersSettled::Waiting(vec!["west".into()])).await;
    assert_eq!(world.received(), ["+east"]);
    let known: Vec<_> = world.outputs.known.borrow().clusters.keys().cloned().collect();
    assert_eq!(known, ["auth".into(), "east".into(), "tls".into(), ClusterId::from("west")]);
    let shown = format!("{:?}", world.outputs);
    assert!(!shown.contains("canary"), "{shown}");
}

#[tokio::test]
async fn an_empty_configuration_is_settled() {
    let mut world = World::new(Setup::default());
    world.secrets(&[]);
    world.until_settled(MembersSettled::All).await;
}

#[tokio::test]
async fn cluster_that_timed_out_does_not_delay_readiness_and_joins_later() {
    let timeout = Duration::from_millis(300);
    let mut world = World::new(Setup { timeout, ..Setup::default() });
    world.secrets(&[("a", &["east=good", "west=slow"])]);
    world.until_settled(MembersSettled::Waiting(vec!["west".into()])).await;
    world.until(&["east live", "west timeout: STR0303: not synced within 300ms"]).await;
    world.until_settled(MembersSettled::All).await;
    world.release("slow");
    world.until(&["east live", "west live"]).await;
}

#[tokio::test]
async fn changed_kubeconfig_starts_a_new_run_before_the_old_one_stops() {
    let mut world = World::new(Setup::default());
    world.secrets(&[("a", &["east=good-1"])]);
    world.until(&["east live"]).await;
    world.secrets(&[("a", &["east=slow-2"])]);
    world.until(&["east live: the new kubeconfig doesn't serve yet"]).await;
    world.until_alive(&["east good-1", "east slow-2"]).await;
    assert_eq!(world.received(), ["+east"]);
    world.release("slow-2");
    world.until_alive(&["east slow-2"]).await;
    world.until(&["east live"]).await;
    assert_eq!(world.outputs.statuses.borrow()[0].reason, None);
    assert_eq!(world.received(), ["+east"]);
}

#[tokio::test]
async fn kubeconfig_that_never_works_leaves_the_old_run_serving() {
    let timeout = Duration::ZERO;
    let mut world = World::new(Setup { timeout, ..Setup::default() });
    world.secrets(&[("a", &["east=good-1"])]);
    world.until(&["east live"]).await;
    for (host, why) in [
        ("dark", "the new kubeconfig is not used: STR0301"),
        ("auth", "the new kubeconfig is not used: STR0304"),
        ("exec", "the new kubeconfig is not used: STR0203"),
    ] {
        world.secrets(&[("a", &[&format!("east={host}")])]);
        world.until(&[&format!("east live: {why}")]).await;
        assert!(world.outputs.statuses.borrow()[0].kubeconfig_refused);
    }
    // The previous kubeconfig is back: no new run is needed.
    world.secrets(&[("a", &["east=good-1"])]);
    world.until_alive(&["east good-1"]).await;
    assert_eq!(world.received(), ["+east"]);
    world.secrets(&[("a", &["east=good-3"])]);
    world.until_alive(&["east good-3"]).await;
}

#[tokio::test]
async fn invalid_first_kubeconfig_is_fixed_by_a_second() {
    let mut world = World::new(Setup::default());
    for host in ["auth", "exec", "dark"] {
        world.secrets(&[("a", &[&format!("east={host}")])]);
    }
    world.secrets(&[("a", &["east=auth"])]);
    world.until(&["east authFailed"]).await;
    world.secrets(&[("a", &["east=slow"])]);
    world.until(&["east syncing"]).await;
    world.release("slow");
    world.until(&["east live"]).await;
    world.until_alive(&["east slow"]).await;
}

#[tokio::test]
async fn at_most_two_runs_exist_while_a_kubeconfig_changes() {
    let mut world = World::new(Setup::default());
    world.secrets(&[("a", &["east=good-0"])]);
    world.until(&["east live"]).await;
    for round in 0..20 {
        let host = format!("slow-{round}");
        world.secrets(&[("a", &[&format!("east={host}")])]);
        world.until_alive(&["east good-0", &format!("east {host}")]).await;
    }
    world.secrets(&[("a", &["east=good-1"])]);
    world.until_alive(&["east good-1"]).await;
    assert!(*lock(&world.doubles.most) <= 2, "{}", lock(&world.doubles.most));
}

#[tokio::test]
async fn an_edit_that_changes_nothing_restarts_nothing() {
    let mut world = World::new(Setup::default());
    world.secrets(&[("a", &["east=good-1"])]);
    world.until(&["east live"]).await;
    world.secrets(&[("a", &["east=good-1", "strait.dev/network=eu", "strait.dev/mode=drain"])]);
    world.until(&["east draining: strait.dev/mode"]).await;
    let known = world.outputs.known.borrow().clusters["east"].clone();
    assert_eq!((known.fixed_network, known.mode), (Some("eu".into()), Mode::Drain));
    assert_eq!(world.outputs.statuses.borrow()[0].network, Some("eu".into()));
    assert_eq!(*lock(&world.doubles.started), 1);
}

#[tokio::test]
async fn deleted_secret_drops_its_credential_at_once_and_its_data_after_the_grace() {
    let mut world = World::new(Setup { grace: Duration::from_secs(2), ..Setup::default() });
    world.secrets(&[("a", &["east=good-1"])]);
    world.until(&["east live"]).await;
    assert_eq!(world.received(), ["+east"]);
    world.secrets(&[]);
    world.until(&["east draining: withdrawn in"]).await;
    world.until_alive(&[]).await;
    assert_eq!(world.received(), Vec::<String>::new());
    assert_eq!(world.outputs.statuses.borrow()[0].services, 3);
    world.until(&[]).await;
    assert_eq!(world.received(), ["-east"]);
    assert!(!world.outputs.known.borrow().contains(&"east".into()));
}

#[tokio::test]
async fn cluster_removed_while_its_kubeconfig_changes_leaves_no_state() {
    let mut world = World::new(Setup { grace: Duration::ZERO, ..Setup::default() });
    world.secrets(&[("a", &["east=good-1"])]);
    world.until(&["east live"]).await;
    world.secrets(&[("a", &["east=slow-2"])]);
    world.until_alive(&["east good-1", "east slow-2"]).await;
    world.secrets(&[]);
    world.until(&[]).await;
    world.until_alive(&[]).await;
    world.release("slow-2");
    assert_eq!(world.received(), ["+east", "-east"]);
}

#[tokio::test]
async fn without_grace_a_deleted_secret_removes_its_cluster() {
    let mut world = World::new(Setup { grace: Duration::ZERO, ..Setup::default() });
    world.secrets(&[("a", &["east=good-1"])]);
    world.until(&["east live"]).await;
    world.secrets(&[]);
    world.until(&[]).await;
    assert_eq!(world.received(), ["+east", "-east"]);
    world.until_alive(&[]).await;
}

#[tokio::test]
async fn recreated_secret_takes_over_without_a_gap() {
    let mut world = World::new(Setup::default());
    world.secrets(&[("a", &["east=good-1"])]);
    world.until(&["east live"]).await;
    world.secrets(&[]);
    world.until(&["east draining"]).await;
    world.secrets(&[("b", &["east=slow"])]);
    world.until(&["east syncing b: its last known state stays in use"]).await;
    assert_eq!(world.outputs.statuses.borrow()[0].services, 3);
    world.until_settled(MembersSettled::All).await;
    world.release("slow");
    world.until(&["east live b"]).await;
    assert_eq!(world.received(), ["+east", "+east"]);
}

#[tokio::test]
async fn standby_is_shown_and_takes_over_after_the_first_is_deleted() {
    let mut world = World::new(Setup::default());
    world.secrets(&[("a", &["east=good-1"]), ("b", &["east=good-2"])]);
    world.until(&["east live a", "east conflict b: STR0207"]).await;
    world.until_alive(&["east good-1"]).await;
    world.secrets(&[("b", &["east=good-2"])]);
    world.until(&["east live b"]).await;
    world.until_alive(&["east good-2"]).await;
    assert_eq!(world.received(), ["+east", "+east"]);
}

#[tokio::test]
async fn cluster_that_never_synced_is_removed_with_its_secret() {
    let mut world = World::new(Setup::default());
    let parts = ["auth=auth", "dark=dark", "bad=exec", "slow=slow", "east=good"];
    world.secrets(&[("a", &parts), ("b", &["east=good-2"])]);
    let all = ["auth authFailed", "bad rejected", "dark syncing", "east live a", "east conflict b"];
    world.until(&[&all[..], &["slow syncing"]].concat()).await;
    // None of them stays, except the one with data.
    world.secrets(&[]);
    world.until(&["east draining"]).await;
    world.until_alive(&[]).await;
    let known: Vec<_> = world.outputs.known.borrow().clusters.keys().cloned().collect();
    assert_eq!(known, [ClusterId::from("east")]);
}

#[tokio::test]
async fn credential_is_dropped_with_its_secret_although_a_standby_takes_over() {
    let mut world = World::new(Setup::default());
    world.secrets(&[("a", &["east=good-1"]), ("b", &["east=auth-2"])]);
    world.until(&["east live a", "east conflict b"]).await;
    world.secrets(&[("b", &["east=auth-2"])]);
    world.until(&["east authFailed b"]).await;
    world.until_alive(&["east auth-2"]).await;
    // The first run's data stays, and the run continues if the standby is equal.
    assert_eq!(world.outputs.statuses.borrow()[0].services, 3);
    world.secrets(&[("b", &["east=good-3"]), ("c", &["east=good-3"])]);
    world.until(&["east live b", "east conflict c"]).await;
    world.secrets(&[("c", &["east=good-3"])]);
    world.until(&["east live c"]).await;
    world.until_alive(&["east good-3"]).await;
    assert_eq!(world.received(), ["+east", "+east"]);
}

#[tokio::test]
async fn an_older_secret_takes_over_before_the_younger_ones_run_ends() {
    let mut world = World::new(Setup::default());
    world.secrets(&[("b", &["east=good-1"])]);
    world.until(&["east live b"]).await;
    world.secrets(&[("a", &["east=slow"]), ("b", &["east=good-1"])]);
    world.until(&["east live a: doesn't serve yet", "east conflict b"]).await;
    world.until_alive(&["east good-1", "east slow"]).await;
    world.release("slow");
    world.until_alive(&["east slow"]).await;
}

thread_local! {
    /// Whether the reconciler on this thread panics at its next step.
    static STUMBLES: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

thread_local! {
    /// How often a step of a reconciler in this thread has checked each member.
    static LOOKS: RefCell<BTreeMap<ClusterId, usize>> = const { RefCell::new(BTreeMap::new()) };
}

/// Called for each member that a step of a reconciler checks.
pub(super) fn count_look(id: &ClusterId) {
    LOOKS.with_borrow_mut(|looks| *looks.entry(id.clone()).or_default() += 1);
}

#[tokio::test]
async fn only_changed_members_are_checked() {
    let mut world = World::new(Setup::default());
    world.secrets(&[("a", &["east=good-1", "north=slow-grows", "west=good-2"])]);
    world.until(&["east live", "north syncing", "west live"]).await;
    LOOKS.with_borrow_mut(BTreeMap::clear);
    world.release("slow-grows");
    let has_grown = |statuses: &Arc<Vec<ClusterStatus>>| statuses[1].services == 10;
    let mut statuses = world.outputs.statuses.clone();
    tokio::time::timeout(LIMIT, statuses.wait_for(has_grown)).await.expect("in time").expect("on");
    world.until(&["east live", "north live", "west live"]).await;
    LOOKS.with_borrow(|looks| {
        let looks_at = |id: &str| looks.get(&ClusterId::from(id)).copied().unwrap_or_default();
        assert!(looks_at("north") >= 7, "{looks:?}");
        // Changes during the start may be seen once more.
        assert!(looks_at("east") <= 1 && looks_at("west") <= 1, "{looks:?}");
    });
}

#[tokio::test]
async fn last_contact_is_published_without_checking_the_member() {
    let mut world = World::new(Setup::default());
    world.secrets(&[("a", &["east=renews", "west=good"])]);
    world.until(&["east live", "west live"]).await;
    let contact = world.outputs.statuses.borrow()[0].last_contact.clone();
    let (first, began) = (contact.get(), Instant::now());
    let mut statuses = world.outputs.statuses.clone();
    statuses.mark_unchanged();
    LOOKS.with_borrow_mut(BTreeMap::clear);
    while contact.get() <= first || began.elapsed() < TICK * 2 {
        assert!(began.elapsed() < LIMIT, "its contact is not published");
        tokio::time::sleep(PACE).await;
    }
    assert!(!statuses.has_changed().expect("the reconciler is alive"));
    LOOKS.with_borrow(|looks| assert!(looks.values().all(|times| *times <= 1), "{looks:?}"));
}

/// Called in the middle of each step of a reconciler.
pub(super) fn stumble() {
    assert!(!STUMBLES.take(), "on purpose");
}

#[tokio::test]
async fn panic_of_the_reconciler_loses_no_member() {
    let mut world = World::new(Setup::default());
    world.secrets(&[("a", &["east=good-1", "north=good-2"])]);
    world.until(&["east live", "north live"]).await;
    world.secrets(&[("a", &["north=good-2"])]);
    world.until(&["east draining", "north live"]).await;
    STUMBLES.set(true);
    world.secrets(&[("a", &["north=good-2", "west=good-3"])]);
    world.until(&["east draining", "north live", "west live"]).await;
    assert_eq!(world.tasks.panics(), 1);
    // Neither withdrawn nor restarted.
    assert_eq!(world.received(), ["+east", "+north", "+west"]);
    world.until_alive(&["north good-2", "west good-3"]).await;
}

#[tokio::test]
async fn grace_beyond_the_clock_range_never_ends() {
    let mut world = World::new(Setup { grace: Duration::MAX, ..Setup::default() });
    world.secrets(&[("a", &["east=good-1"])]);
    world.until(&["east live"]).await;
    world.secrets(&[]);
    world.until(&["east draining"]).await;
    assert_eq!(world.tasks.panics(), 0);
}

#[tokio::test]
async fn paused_cluster_is_frozen_and_resumes_later() {
    let mut world = World::new(Setup::default());
    world.secrets(&[("a", &["east=good-1"])]);
    world.until(&["east live"]).await;
    world.secrets(&[("a", &["east=good-1", "strait.dev/mode=pause"])]);
    world.until(&["east paused"]).await;
    world.until_alive(&[]).await;
    assert_eq!(world.outputs.statuses.borrow()[0].services, 3);
    world.secrets(&[("a", &["east=good-2", "strait.dev/mode=pause"])]);
    world.secrets(&[("a", &["east=good-2"])]);
    world.until(&["east live"]).await;
    world.until_alive(&["east good-2"]).await;
}

#[tokio::test]
async fn panic_restarts_only_that_cluster() {
    let mut world = World::new(Setup::default());
    world.secrets(&[("a", &["east=good-1", "west=panics"])]);
    world.until(&["east live", "west live"]).await;
    world.until_alive(&["east good-1", "west panics"]).await;
    let started = Instant::now();
    while *lock(&world.doubles.started) < 3 {
        assert!(started.elapsed() < LIMIT, "the panicked run starts again");
        tokio::task::yield_now().await;
    }
    world.until(&["east live", "west live"]).await;
    assert_eq!(*lock(&world.doubles.started), 3);
    assert_eq!(world.tasks.panics(), 1);
}

#[tokio::test]
async fn unreachable_clusters_do_not_delay_the_first_sync_of_others() {
    let world = World::new(Setup::default());
    let dark: Vec<String> = (0..20).map(|i| format!("a{i}=slow")).collect();
    let mut parts: Vec<&str> = dark.iter().map(String::as_str).collect();
    parts.push("z=good");
    world.secrets(&[("s", &parts)]);
    let mut statuses = world.outputs.statuses.clone();
    let live = |statuses: &Arc<Vec<ClusterStatus>>| {
        statuses.last().is_some_and(|status| status.id == "z" && status.state == ClusterState::Live)
    };
    tokio::time::timeout(LIMIT, statuses.wait_for(live)).await.expect("in time").expect("alive");
}

#[tokio::test]
async fn the_config_cluster_is_a_member_without_a_secret() {
    let (renew, access_receiver) = watch::channel(access("good-1uid-one"));
    let config_cluster = Some(ConfigCluster { id: "config".into(), access: access_receiver });
    let mut world = World::new(Setup { config_cluster, ..Setup::default() });
    world.secrets(&[("a", &["config=good-2", "alpha=good-3uid-one", "beta=good-4uid-two"])]);
    world
        .until(&[
            "config live",
            "alpha conflict a: STR0220: the cluster is a member already, as config",
            "beta live",
            "config rejected a: STR0216",
        ])
        .await;
    assert!(world.outputs.known.borrow().clusters["config"].config);
    world.until_settled(MembersSettled::All).await;
    renew.send_replace(access("good-5uid-one"));
    world.until_alive(&["alpha good-3uid-one", "beta good-4uid-two", "config good-5uid-one"]).await;
    let mut received = world.received();
    received.sort();
    assert_eq!(received, ["+beta", "+config", "+config"]);
}

#[tokio::test]
async fn cluster_under_two_ids_is_a_member_once() {
    let mut world = World::new(Setup { grace: Duration::ZERO, ..Setup::default() });
    world.secrets(&[("a", &["east=good-1uid-x"])]);
    world.until(&["east live"]).await;
    world.secrets(&[("a", &["east=good-1uid-x"]), ("b", &["other=good-2uid-x"])]);
    world.until(&["east live", "other conflict: STR0220"]).await;
    assert_eq!(world.received(), ["+east"]);
    world.secrets(&[("b", &["other=good-2uid-x"])]);
    world.until(&["other live"]).await;
    assert_eq!(world.received(), ["-east", "+other"]);
}

#[tokio::test]
async fn kubeconfig_of_a_different_cluster_is_not_followed() {
    let mut world = World::new(Setup::default());
    world.secrets(&[("a", &["east=good-1uid-x"])]);
    world.until(&["east live"]).await;
    world.secrets(&[("a", &["east=good-2uid-y"])]);
    world.until(&["east identityChanged: STR0306: the cluster's UID was x and is y"]).await;
    world.until_alive(&["east good-1uid-x", "east good-2uid-y"]).await;
    assert_eq!(world.received(), ["+east"]);
    // Another Secret is a new instruction of the operator.
    world.secrets(&[("b", &["east=good-2uid-y"])]);
    world.until(&["east live b"]).await;
    assert_eq!(world.received(), ["+east"]);
}

#[tokio::test]
async fn different_cluster_is_accepted_if_the_operator_pins_its_uid() {
    let mut world = World::new(Setup::default());
    world.secrets(&[("a", &["east=good-1uid-x"])]);
    world.until(&["east live"]).await;
    world.secrets(&[("a", &["east=good-2uid-y", "strait.dev/cluster-uid=z"])]);
    let reason =
        "the cluster's UID is y, and the Secret's annotation strait.dev/cluster-uid names z";
    world.until(&[&format!("east identityChanged: STR0306: {reason}")]).await;
    assert_eq!(world.received(), ["+east"]);
    world.secrets(&[("a", &["east=good-2uid-y", "strait.dev/cluster-uid=y"])]);
    world.until(&["east live"]).await;
    world.until_alive(&["east good-2uid-y"]).await;
    assert_eq!(world.received(), ["+east"]);
    // A pin also applies to the first contact.
    world.secrets(&[("b", &["west=good-3uid-w", "strait.dev/cluster-uid=v"])]);
    world.until(&["east draining", "west identityChanged: STR0306"]).await;
}

#[tokio::test]
async fn clusters_of_one_snapshot_are_members_once_both_secrets_pin_their_uid() {
    let mut world = World::new(Setup::default());
    world.secrets(&[("a", &["east=good-1uid-x"]), ("b", &["west=good-2uid-x"])]);
    let advice = "annotate both Secrets with strait.dev/cluster-uid=x";
    let conflict = format!(
        "west conflict b: STR0220: the cluster is a member already, as east of Secret strait-system/a, which is first by name (UID x); if these are two clusters of one etcd snapshot, {advice}"
    );
    world.until(&["east live", &conflict]).await;
    let pin = "strait.dev/cluster-uid=x";
    world.secrets(&[("a", &["east=good-1uid-x"]), ("b", &["west=good-2uid-x", pin])]);
    world.until(&["east live", &conflict]).await;
    world.secrets(&[("a", &["east=good-1uid-x", pin]), ("b", &["west=good-2uid-x", pin])]);
    world.until(&["east live", "west live"]).await;
}

/// Creates a policy that can be changed.
fn rules(text: &str) -> (watch::Sender<Arc<Policy>>, watch::Receiver<Arc<Policy>>) {
    watch::channel(parsed(text))
}

fn parsed(text: &str) -> Arc<Policy> {
    let text = format!("apiVersion: strait.dev/v1\nkind: Policy\n{text}");
    Arc::new(Policy::parse(&text).expect("a sound policy"))
}

#[tokio::test]
async fn policy_withdraws_an_unreachable_cluster_but_never_all_of_them() {
    let (change, policy) = rules("mesh: {whenDark: withdraw after 1s}");
    let mut world = World::new(Setup { policy, ..Setup::default() });
    world.secrets(&[("a", &["east=fades-1", "west=good", "north=expires-1"])]);
    let states = [
        "east stale: STR0605: its endpoints are withdrawn",
        "north authFailed: STR0304",
        "west live",
    ];
    world.until(&states).await;
    let withdrawn = |world: &World, id: &str| {
        world.outputs.known.borrow().clusters[&ClusterId::from(id)].withdrawn.is_some()
    };
    assert!(withdrawn(&world, "east") && !withdrawn(&world, "west"));
    // A server that refuses the credential is reachable.
    assert!(!withdrawn(&world, "north"));
    change.send_replace(parsed(
        "mesh: {whenDark: withdraw after 1s}\nclusters: {east: {whenDark: keep}}",
    ));
    let mut known = world.outputs.known.clone();
    let back = known.wait_for(|known| known.clusters.values().all(|one| one.withdrawn.is_none()));
    assert!(
        tokio::time::timeout(LIMIT, back).await.is_ok(),
        "stays according to the cluster's rule"
    );

    // If no member responds, Strait itself is cut off.
    let (_policy, policy) = rules("mesh: {whenDark: withdraw after 0s}");
    let mut world = World::new(Setup { policy, ..Setup::default() });
    world.secrets(&[("a", &["east=fades-1", "west=fades-2"])]);
    world.until(&["east stale: STR0301", "west stale: STR0301"]).await;
    assert!(!withdrawn(&world, "east") && !withdrawn(&world, "west"));
}

#[tokio::test]
async fn policy_drains_and_pauses_and_a_secret_takes_precedence() {
    let (change, policy) = rules("clusters: {east: {mode: pause}, west: {mode: drain}}");
    let mut world = World::new(Setup { policy, ..Setup::default() });
    world.secrets(&[("a", &["east=good-1", "west=good-2"])]);
    world
        .until(&[
            "east paused: frozen by policy clusters.east.mode",
            "west draining: drained by policy clusters.west.mode",
        ])
        .await;
    world.until_alive(&["west good-2"]).await;
    change.send_replace(parsed(""));
    world.until(&["east live", "west live"]).await;
    world.until_alive(&["east good-1", "west good-2"]).await;
    change.send_replace(parsed("mesh: {mode: drain}"));
    world.secrets(&[("a", &["east=good-1", "west=good-2", "strait.dev/mode=pause"])]);
    world.until(&["east paused: strait.dev/mode", "west paused: strait.dev/mode"]).await;
}

#[tokio::test]
async fn flapping_cluster_is_frozen_at_its_last_known_state() {
    let mut world = World::new(Setup { stale_after: PACE * 6, ..Setup::default() });
    world.secrets(&[("a", &["east=flaps", "west=good"])]);
    world.until(&["east quarantined: STR0308", "west live"]).await;
    world.until_alive(&["west good"]).await;
    assert_eq!(world.outputs.statuses.borrow()[0].services, 3, "it keeps its data");
    assert_eq!(world.received(), ["+east", "+west"]);
}

#[tokio::test]
async fn cluster_that_answers_sometimes_without_losing_contact_is_not_frozen() {
    let world = World::new(Setup { stale_after: PACE * 6, ..Setup::default() });
    world.secrets(&[("a", &["east=limps"])]);
    let mut statuses = world.outputs.statuses.clone();
    let last = |statuses: &Arc<Vec<ClusterStatus>>| statuses.iter().any(|one| one.services == 10);
    let found = tokio::time::timeout(LIMIT, statuses.wait_for(last)).await;
    let found = found.expect("in time").expect("alive")[0].clone();
    assert_eq!(found.state, ClusterState::Misbehaving, "{:?}", found.reason);
}

#[tokio::test]
async fn a_hundred_clusters_come_and_go() {
    let mut world = World::new(Setup { grace: Duration::ZERO, ..Setup::default() });
    let all: Vec<String> = (0..100).map(|i| format!("c{i}=good-{i}")).collect();
    let parts: Vec<&str> = all.iter().map(String::as_str).collect();
    world.secrets(&[("s", &parts)]);
    let mut statuses = world.outputs.statuses.clone();
    let live = |statuses: &Arc<Vec<ClusterStatus>>| {
        statuses.len() == 100 && statuses.iter().all(|status| status.state == ClusterState::Live)
    };
    tokio::time::timeout(LIMIT, statuses.wait_for(live)).await.expect("in time").expect("alive");
    world.secrets(&[]);
    world.until(&[]).await;
    world.until_alive(&[]).await;
    assert_eq!(world.received().len(), 200);
    assert!(world.tasks.shut_down(LIMIT).await);
}
