use serde_json::json;

use super::*;
use strait_base::task::Supervisor;
use strait_mesh::push::event_loop::{MeshEvent, MeshState};
use strait_mesh::push::view::{Role, ViewKey};
use strait_mesh::testing::settings;
use strait_model::policy::{RolloutLimits, RolloutPlan};
use strait_model::testing::{endpoint, member, service, shard, sidecar};
use strait_model::{ConfigurationSnapshot, KnownClusters};
use strait_rules::testing::kind_settings;
use strait_rules::traffic::TrafficIndex;

/// Duration of a step.
const EVERY: Duration = Duration::from_millis(300);
/// Maximum duration of everything that has no defined duration.
const LIMIT: Duration = Duration::from_secs(30);

/// Returns a mesh with one service, which is visible to proxies of its namespace or not.
fn mesh(is_given: bool) -> Arc<PushContext> {
    let mut mesh = MeshState::new(settings());
    let clusters = [("east".into(), member(None))].into();
    mesh.apply(MeshEvent::Clusters(Arc::new(KnownClusters { clusters })));
    let update = shard("east", 1).with(service("web.shop"), vec![endpoint("10.0.0.1")]);
    mesh.apply(MeshEvent::Registry(update.built()));
    let sidecar = json!({
        "apiVersion": "networking.istio.io/v1", "kind": "Sidecar",
        "metadata": { "namespace": "shop", "name": "one" },
        "spec": { "egress": [{ "hosts": ["other/*"] }] },
    });
    let objects = (!is_given).then(|| Arc::new(sidecar));
    let update = TrafficIndex::new(kind_settings()).apply(&objects.into_iter().collect());
    mesh.apply(MeshEvent::Traffic(update.expect("the first")));
    mesh.apply(MeshEvent::Complete);
    mesh.next_version().expect("a version").0
}

/// A rollout and its observable outputs.
struct Seen {
    head: Arc<ConfigVariant>,
    versions: watch::Sender<Option<Arc<PushContext>>>,
    heads: Arc<ConfigVariants>,
    state: watch::Receiver<Arc<RolloutState>>,
    verdicts: mpsc::Receiver<(u64, RolloutVerdict)>,
    begun: Instant,
    every: Duration,
    _settled: watch::Sender<Option<Arc<PushContext>>>,
    _tasks: Supervisor,
}

/// Starts a rollout that had reached this percentage. The current mesh shows the service to its
/// proxy.
fn begin(refused: usize, reached: u8, every: Duration) -> Seen {
    begin_with(refused, reached, every, vec![5, 25, 100])
}

fn begin_with(refused: usize, reached: u8, every: Duration, steps: Vec<u8>) -> Seen {
    let plan = Arc::new(RolloutPlan {
        steps,
        every,
        stop_at: RolloutLimits { refused, lost_endpoints: 20 },
    });
    let settled = mesh(true);
    let (head, outputs) = ConfigVariant::new(1);
    let rollout = RunningRollout {
        number: 1,
        next: Arc::new(ConfigurationSnapshot::default()),
        name: "a".into(),
        settled: Arc::default(),
        plan,
        begun: SystemTime::now(),
        step: None,
        cohort: Cohort::new("a".into(), reached),
        is_durable: false,
    };
    let (sender, state) = watch::channel(Arc::new(RolloutState {
        running: Some(rollout.clone()),
        ..RolloutState::default()
    }));
    let (verdicts_to, verdicts) = mpsc::channel(1);
    let subscription_index = Arc::<SubscriptionIndex>::default();
    let proxy = Arc::new(sidecar("client.shop", "east"));
    let whereabouts = settled.whereabouts(&proxy);
    let network = settled.network_of_cluster(&proxy.cluster);
    let view = ViewKey::of(&proxy, network.clone(), Role::Client);
    let stream = subscription_index.subscribe(None);
    stream.set_location(ProxyLocation { proxy, network, whereabouts }, view, None);
    let (settled_to, settled) = watch::channel(Some(settled));
    let heads = Arc::<ConfigVariants>::default();
    let run = RolloutRun {
        rollout,
        heads: Arc::clone(&heads),
        head: Arc::clone(&head),
        settled,
        subscription_index,
        timeline: Arc::default(),
        state: sender,
        files: None,
        verdicts: verdicts_to,
        look: EVERY / 10,
    };
    let tasks = Supervisor::new();
    tasks.spawn("rollout", async move {
        // Keeps the stream open while the rollout runs.
        let _stream = stream;
        run.run().await;
    });
    let begun = Instant::now();
    let versions = outputs.context;
    Seen {
        head,
        versions,
        heads,
        state,
        verdicts,
        begun,
        every,
        _settled: settled_to,
        _tasks: tasks,
    }
}

impl Seen {
    /// Waits for the next change and returns its percentage. Asserts that at least this many steps
    /// have passed.
    async fn next(&mut self, steps: u32) -> u8 {
        let changed = tokio::time::timeout(LIMIT, self.state.changed()).await;
        changed.expect("in time").expect("it goes on");
        assert!(self.begun.elapsed() >= self.every * steps);
        self.percent()
    }

    fn percent(&self) -> u8 {
        self.state.borrow().running.as_ref().map_or(0, RunningRollout::percent)
    }

    /// Waits for the verdict. Asserts that at least this many steps have passed.
    async fn verdict(&mut self, steps: u32) -> RolloutVerdict {
        let verdict = tokio::time::timeout(LIMIT, self.verdicts.recv()).await;
        let (number, verdict) = verdict.expect("in time").expect("a verdict");
        assert_eq!(number, 1);
        assert!(self.begun.elapsed() >= self.every * steps);
        verdict
    }
}

#[tokio::test]
async fn steps_follow_each_other_by_time_until_promotion() {
    let mut seen = begin(1, 0, EVERY);
    assert!(seen.heads.next().is_none(), "no version exists yet");
    seen.versions.send_replace(Some(mesh(true)));
    assert_eq!(seen.next(0).await, 5);
    assert!(seen.heads.next().is_some());
    assert_eq!(seen.next(1).await, 25);
    assert_eq!(seen.verdict(2).await, RolloutVerdict::Promote);
}

#[tokio::test]
async fn rollout_resumes_its_step_after_a_restart() {
    for (reached, expected) in [(25, 25), (30, 25), (4, 5)] {
        let mut seen = begin(1, reached, LIMIT);
        seen.versions.send_replace(Some(mesh(true)));
        assert_eq!(seen.next(0).await, expected);
    }
}

#[tokio::test]
async fn rollout_stops_at_the_limit_of_refusing_proxies() {
    let mut seen = begin(2, 0, EVERY);
    seen.versions.send_replace(Some(mesh(true)));
    assert_eq!(seen.next(0).await, 5);
    // Repeated refusals of one proxy count once.
    seen.head.refused(&"a".into(), "no such filter");
    seen.head.refused(&"a".into(), "still no such filter");
    assert_eq!(seen.next(1).await, 25);
    seen.head.refused(&"b".into(), "no such filter here");
    let reason =
        StopReason::Refused { count: 2, proxy: "a".into(), error: "no such filter".into() };
    assert_eq!(seen.verdict(1).await, RolloutVerdict::Stop(reason));
}

#[tokio::test]
async fn change_that_removes_endpoints_reaches_no_proxy() {
    let mut seen = begin(1, 0, EVERY);
    seen.versions.send_replace(Some(mesh(false)));
    // The only proxy is in the first step.
    let verdict = seen.verdict(0).await;
    let RolloutVerdict::Stop(StopReason::LostEndpoints(words)) = verdict else {
        panic!("{verdict:?}")
    };
    assert!(words.contains("web.shop.svc.cluster.local:80 has 0 of 1 endpoints for "), "{words}");
    assert_eq!(seen.percent(), 0);
}

#[tokio::test]
async fn endpoints_lost_during_a_step_stop_the_rollout() {
    let mut seen = begin_with(1, 99, LIMIT, vec![99, 100]);
    seen.versions.send_replace(Some(mesh(true)));
    assert_eq!(seen.next(0).await, 99);
    seen.versions.send_replace(Some(mesh(false)));
    let verdict = seen.verdict(0).await;
    assert!(matches!(verdict, RolloutVerdict::Stop(StopReason::LostEndpoints(_))), "{verdict:?}");
    assert!(seen.begun.elapsed() < LIMIT);
}

#[tokio::test]
async fn ended_rollout_sends_no_verdict() {
    let mut seen = begin(1, 0, EVERY);
    seen.heads.end(&seen.head);
    seen.versions.send_replace(Some(mesh(true)));
    let verdict = tokio::time::timeout(LIMIT, seen.verdicts.recv()).await;
    assert_eq!(verdict.expect("in time"), None);
    assert!(seen.heads.next().is_none());
}
