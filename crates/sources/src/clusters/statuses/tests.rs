//! Tests of status updates and of preserved entries of other controllers, with a simulated API
//! server.

use super::*;
use strait_base::task::Supervisor;
use strait_kube_client::ApiStatus;
use strait_kube_client::testing::loopback_access;
use strait_model::{
    GATEWAY_API, GATEWAY_CONTROLLER, ISTIO_NETWORKING, ISTIO_SECURITY, ObjectStatus,
    RouteParentStatus, RouteStatus, StatusCondition,
};
use strait_sim::{Family, Fault, Options, SimCluster};

const LIMIT: Duration = Duration::from_secs(30);
/// Many times the write interval.
const SOME_PACES: Duration = Duration::from_secs(2);

struct Written {
    sim: SimCluster,
    role: watch::Sender<WriterRole>,
    wanted: watch::Sender<Arc<Vec<WantedStatus>>>,
    _access: watch::Sender<Access>,
    _tasks: Supervisor,
}

impl Written {
    /// Starts an API server with routes of these names, and a writer.
    async fn start(routes: &[&str], fault: Option<Fault>) -> Self {
        let families = [Family::Core, Family::GatewayApi, Family::Istio].into();
        let options = Options { families, ..Options::default() };
        let sim = SimCluster::start("config", options).await.expect("a cluster");
        for name in routes {
            sim.store().apply(object(name)).expect("a route");
        }
        if let Some(fault) = fault {
            sim.fault(fault);
        }
        let (access, access_receiver) =
            watch::channel(loopback_access(&sim.url(), sim.certificate_authority(), sim.token()));
        let (role, role_receiver) = watch::channel(WriterRole::Writes);
        let (wanted, wanted_receiver) = watch::channel(Arc::default());
        let tasks = Supervisor::new();
        tasks.spawn("statuses", run(access_receiver, role_receiver, wanted_receiver));
        Self { sim, role, wanted, _access: access, _tasks: tasks }
    }

    fn route(&self, name: &str) -> Value {
        let found = self.sim.store().get("httproutes", "shop", name);
        found.map(|object| object.value()).unwrap_or_default()
    }

    fn wanted_status(&self, name: &str, reason: &'static str) -> WantedStatus {
        let conditions = vec![StatusCondition {
            kind: "Accepted",
            is_true: reason == "Accepted",
            reason,
            message: String::new(),
        }];
        let parent = json!({ "group": "", "kind": "Service", "name": "web" });
        WantedStatus::Route(RouteStatus {
            key: key(GATEWAY_API, "HTTPRoute", name),
            generation: self.route(name)["metadata"]["generation"].as_i64().unwrap_or_default(),
            parents: vec![RouteParentStatus { parent, conditions }],
        })
    }

    fn written_reason(&self, name: &str) -> Value {
        let entries = self.route(name)["status"]["parents"].clone();
        let entries = entries.as_array().cloned().unwrap_or_default();
        let ours = entries.iter().find(|entry| entry["controllerName"] == GATEWAY_CONTROLLER);
        ours.map(|ours| ours["conditions"][0]["reason"].clone()).unwrap_or_default()
    }

    fn patches(&self) -> u64 {
        self.sim.request_count("patch", "httproutes")
    }
}

fn object(name: &str) -> Value {
    json!({
        "apiVersion": "gateway.networking.k8s.io/v1", "kind": "HTTPRoute",
        "metadata": { "name": name, "namespace": "shop" },
        "spec": { "parentRefs": [{ "group": "", "kind": "Service", "name": "web" }] },
    })
}

async fn until(expected: &str, is_reached: impl Fn() -> bool) {
    let started = Instant::now();
    while !is_reached() {
        assert!(started.elapsed() < LIMIT, "{expected}");
        sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn status_is_written_once_and_keeps_entries_of_others() {
    let written = Written::start(&["a"], None).await;
    let other = json!({
        "controllerName": "other.example/controller", "parentRef": { "name": "gateway" },
        "conditions": [],
    });
    let mut route = written.route("a");
    (route["apiVersion"], route["kind"]) = (object("a")["apiVersion"].clone(), json!("HTTPRoute"));
    route["status"] = json!({ "parents": [other.clone()] });
    written.sim.store().apply(route).expect("a status");
    written.wanted.send_replace(Arc::new(vec![written.wanted_status("a", "Accepted")]));
    until("the status is written", || written.written_reason("a") == "Accepted").await;
    assert_eq!(written.route("a")["status"]["parents"][0], other);
    // Wanted again, as if the successful write had not been observed yet.
    written.wanted.send_replace(Arc::new(vec![
        written.wanted_status("a", "Accepted"),
        written.wanted_status("gone", "x"),
    ]));
    written.wanted.send_replace(Arc::new(vec![written.wanted_status("a", "NoMatchingParent")]));
    until("the status is written again", || written.written_reason("a") == "NoMatchingParent")
        .await;
    sleep(SOME_PACES).await;
    assert_eq!(written.patches(), 2);
}

#[tokio::test]
async fn status_of_an_outdated_route_is_not_written() {
    let written = Written::start(&["a"], None).await;
    let WantedStatus::Route(current) = written.wanted_status("a", "Accepted") else {
        panic!("it is a route")
    };
    let outdated = RouteStatus { generation: 77, ..current };
    written.wanted.send_replace(Arc::new(vec![WantedStatus::Route(outdated)]));
    sleep(SOME_PACES).await;
    assert_eq!(written.patches(), 0);
    written.wanted.send_replace(Arc::new(vec![written.wanted_status("a", "Accepted")]));
    until("the status is written", || written.written_reason("a") == "Accepted").await;
}

#[tokio::test]
async fn istio_objects_are_found_in_any_version_of_the_server() {
    let written = Written::start(&[], None).await;
    let filter = |version: &str| {
        json!({
            "apiVersion": format!("networking.istio.io/{version}"), "kind": "EnvoyFilter",
            "metadata": { "name": "a", "namespace": "shop" }, "spec": {},
        })
    };
    written.sim.store().apply(filter("v1alpha3")).expect("a filter");
    let gone = istio_status(ISTIO_SECURITY, "AuthorizationPolicy", "gone");
    let existing = istio_status(ISTIO_NETWORKING, "EnvoyFilter", "a");
    written.wanted.send_replace(Arc::new(vec![gone, existing]));
    let accepted_type = || {
        let found = written.sim.store().get("envoyfilters", "shop", "a");
        found.map(|object| object.value()["status"]["conditions"][0]["type"].clone())
    };
    until("the status is written", || accepted_type() == Some(json!("Accepted"))).await;
}

#[tokio::test]
async fn one_of_several_control_planes_writes() {
    let written = Written::start(&["a"], None).await;
    written.role.send_replace(WriterRole::Standby);
    written.wanted.send_replace(Arc::new(vec![written.wanted_status("a", "Accepted")]));
    sleep(SOME_PACES).await;
    assert_eq!(written.patches(), 0);
    written.role.send_replace(WriterRole::Writes);
    until("the status is written", || written.written_reason("a") == "Accepted").await;
}

#[tokio::test]
async fn denied_writes_are_not_retried() {
    let written = Written::start(&["a", "b", "c"], Some(Fault::ReadOnly)).await;
    let all = |reason| ["a", "b", "c"].map(|name| written.wanted_status(name, reason)).to_vec();
    written.wanted.send_replace(Arc::new(all("Accepted")));
    until("a write is tried", || written.patches() > 0).await;
    written.wanted.send_replace(Arc::new(all("NoMatchingParent")));
    sleep(SOME_PACES).await;
    assert_eq!(written.patches(), 1, "the permission is missing for all of them");
}

fn key(group: &str, kind: &str, name: &str) -> ObjectKey {
    let (group, kind) = (group.into(), kind.into());
    ObjectKey { kind, group, namespace: "shop".into(), name: name.into() }
}

fn wanted(name: &str) -> WantedStatus {
    let key = key(GATEWAY_API, "HTTPRoute", name);
    WantedStatus::Route(RouteStatus { key, generation: 1, parents: Vec::new() })
}

/// Creates a wanted status of an Istio object.
fn istio_status(group: &str, kind: &str, name: &str) -> WantedStatus {
    let (is_true, reason, message) = (true, "InForce", String::new());
    let conditions = vec![StatusCondition { kind: "Accepted", is_true, reason, message }];
    let key = key(group, kind, name);
    WantedStatus::Object(ObjectStatus { key, generation: 1, conditions })
}

#[test]
fn error_with_one_object_does_not_delay_others() {
    let answer = |code| ApiStatus { code, message: "it fails".to_owned() };
    let object_errors = [
        ApiError::Server(answer(500)),
        ApiError::Rejected(answer(CONFLICT)),
        ApiError::Misbehaving("it fails".to_owned()),
    ];
    for error in object_errors {
        let (mut tried, now) = (TriedStatuses::default(), Instant::now());
        let text = error.to_string();
        assert_eq!(tried.note(&wanted("a"), Err(error), now), NextWrite::Go, "{text}");
        assert!(tried.may_try(&wanted("b"), now), "{text}");
        assert!(!tried.may_try(&wanted("a"), now + PAUSE / 2), "not repeatedly: {text}");
        assert_eq!(tried.next_try(&[wanted("a")]), Some(now + PAUSE), "{text}");
        assert_eq!(tried.next_try(&[wanted("b")]), None, "it is no longer wanted: {text}");
        assert!(tried.may_try(&wanted("a"), now + PAUSE), "it is not finished: {text}");
    }
    let server_errors = [
        ApiError::Unreachable("refused".to_owned()),
        ApiError::Tls("unknown".to_owned()),
        ApiError::Silent { request: "GET".to_owned(), limit: PAUSE },
        ApiError::TooManyRequests { retry_after: None },
    ];
    for error in server_errors {
        let (mut tried, now) = (TriedStatuses::default(), Instant::now());
        assert_eq!(tried.note(&wanted("a"), Err(error), now), NextWrite::Pause);
        assert!(tried.may_try(&wanted("a"), now) && tried.next_try(&[wanted("a")]).is_none());
    }
    for done in [Ok(()), Err(ApiError::Rejected(answer(422)))] {
        let (mut tried, now) = (TriedStatuses::default(), Instant::now());
        assert_eq!(tried.note(&wanted("a"), done, now), NextWrite::Go);
        assert!(
            !tried.may_try(&wanted("a"), now + PAUSE) && tried.next_try(&[wanted("a")]).is_none()
        );
        assert!(tried.may_try(&wanted("a"), now + REST));
    }
}

#[test]
fn missing_permission_for_one_kind_does_not_block_others() {
    let denied = || ApiError::Forbidden("not permitted".to_owned());
    let (mut tried, now) = (TriedStatuses::default(), Instant::now());
    let [policy, other] =
        ["a", "b"].map(|name| istio_status(ISTIO_SECURITY, "AuthorizationPolicy", name));
    let rule = istio_status(ISTIO_NETWORKING, "VirtualService", "a");
    assert_eq!(tried.note(&policy, Err(denied()), now), NextWrite::Go);
    assert!(
        !tried.may_try(&policy, now) && !tried.may_try(&other, now),
        "the permission applies to the kind"
    );
    assert!(tried.may_try(&rule, now) && tried.may_try(&wanted("a"), now));
    assert!(tried.may_try(&policy, now + REST), "the permission may have been granted");
    assert_eq!(tried.note(&policy, Ok(()), now + REST), NextWrite::Go);
    assert!(tried.may_try(&other, now + REST));
}
