//! Outlier detection with a failing pod: behind a gateway, its network keeps its part of the requests;
//! in the network of the client, the pod is ejected as the rule says.

use serde_json::{Value, json};

use crate::helper::{Answers, Load};
use crate::kube::{self, Request};
use crate::rig_check::run_load;
use crate::scenarios::{PROPAGATION, http};
use crate::steering::clients;
use crate::wait;
use crate::world::World;

const REQUESTS: usize = 1000;
/// The number of consecutive errors that eject a pod.
const ERRORS: u32 = 5;
/// The tolerance of a percentage, in percentage points.
const TOLERANCE: f64 = 5.0;

pub(crate) fn run(world: &mut World) {
    let config = &world.apiservers["a"];
    config.apply(&[rule(), route()]);
    for client in clients(world) {
        let load = |down: &str| Load { path: format!("/down/{down}"), ..http(REQUESTS) }.over(4);
        wait::until(PROPAGATION, &format!("{client} marks gateways and retries nothing"), || {
            let clusters = world.envoy(client).get("/config_dump?resource=dynamic_active_clusters");
            let answers = run_load(world.pod(client), &Load { requests: 40, ..load("b/echo-2") });
            if clusters.contains("x-strait-gateway") && failures(&answers) > 0 {
                Ok(())
            } else {
                Err(format!("no filter in its upstream clusters, or no failure: {answers:?}"))
            }
        });

        // Two of five pods are behind the gateway, and one of them fails.
        let answers = run_load(world.pod(client), &load("b/echo-2"));
        assert_share(client, "failures of b/echo-2", failures_of(&answers, "b", "echo-2"), 20.0);
        assert_share(client, "b/echo-1", answers.by.get("b/echo-1").copied().unwrap_or(0), 20.0);
        assert_eq!(
            failures(&answers),
            failures_of(&answers, "b", "echo-2"),
            "{client}: {answers:?}"
        );

        // Two of the four remaining pods are behind the gateway.
        let answers = run_load(world.pod(client), &load("a/echo-3"));
        let failed = failures_of(&answers, "a", "echo-3");
        let threshold = usize::try_from(ERRORS).expect("a small number");
        // Requests in progress at the time of the ejection fail too.
        assert!((threshold..=threshold + 8).contains(&failed), "{client}: {answers:?}");
        let remote = answers.by.iter().filter(|(pod, _)| pod.starts_with("b/"));
        assert_share(client, "cluster b", remote.map(|(_, count)| count).sum(), 50.0);
    }
    assert_eq!(world.complaints(), Vec::<String>::new());
    let gone = [rule(), route()].map(|object| Request::delete(&kube::path(&object)));
    world.apiservers["a"].requests(&gone);
    for client in clients(world) {
        world.wait_for_all_pods(client);
    }
}

fn failures(answers: &Answers) -> usize {
    answers.failures.values().sum()
}

fn failures_of(answers: &Answers, cluster: &str, pod: &str) -> usize {
    let is_from = |fact: &str| {
        let body = fact.strip_prefix("503 ").and_then(|body| serde_json::from_str(body).ok());
        body.is_some_and(|body: Value| body["cluster"] == cluster && body["pod"] == pod)
    };
    answers.failures.iter().filter(|(fact, _)| is_from(fact)).map(|(_, count)| count).sum()
}

fn assert_share(client: &str, part: &str, count: usize, expected: f64) {
    let percent = 100.0 * count as f64 / REQUESTS as f64;
    assert!(
        (percent - expected).abs() < TOLERANCE,
        "{client}, {part}: {percent} %, not {expected}"
    );
}

fn rule() -> Value {
    json!({
        "apiVersion": "networking.istio.io/v1", "kind": "DestinationRule",
        "metadata": { "name": "ejection", "namespace": "shop" },
        "spec": { "host": "echo", "trafficPolicy": { "outlierDetection": {
            "consecutive5xxErrors": ERRORS, "interval": "1s", "baseEjectionTime": "300s",
            "maxEjectionPercent": 100,
        } } },
    })
}

/// Returns a route without retries, so that clients see every error.
fn route() -> Value {
    json!({
        "apiVersion": "networking.istio.io/v1", "kind": "VirtualService",
        "metadata": { "name": "ejection", "namespace": "shop" },
        "spec": { "hosts": ["echo"], "http": [{
            "route": [{ "destination": { "host": "echo" } }], "retries": { "attempts": 0 },
        }] },
    })
}
