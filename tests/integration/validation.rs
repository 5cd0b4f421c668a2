//! Reviews of objects before API servers store them: each of a corpus of broken objects, over TLS,
//! while valid ones stay active.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use tokio::io::AsyncWriteExt as _;

use super::harness::{Estate, Setup, Trust};
use super::webhook::{connect, send_review};

/// A line of the corpus.
struct Case {
    verdict: String,
    message: String,
    object: Value,
}

fn corpus() -> Vec<Case> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/corpus/objects/broken.txt");
    let text = std::fs::read_to_string(path).expect("a corpus");
    let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let case = |(at, line): (usize, &str)| {
        let mut fields = line.splitn(4, " | ");
        let mut field = || fields.next().expect("four fields").to_owned();
        let (verdict, message, kind, spec) = (field(), field(), field(), field());
        let spec = serde_json::from_str(&spec).unwrap_or_else(|error| panic!("{line}: {error}"));
        Case { verdict, message, object: object(&kind, &format!("case-{at}"), spec) }
    };
    lines.enumerate().map(case).collect()
}

fn object(kind: &str, name: &str, spec: Value) -> Value {
    let version = match kind {
        "ConfigMap" => "v1",
        "AuthorizationPolicy" | "PeerAuthentication" | "RequestAuthentication" => {
            "security.istio.io/v1"
        }
        "HTTPRoute" | "GRPCRoute" | "ReferenceGrant" => "gateway.networking.k8s.io/v1",
        "Ingress" => "networking.k8s.io/v1",
        _ => "networking.istio.io/v1",
    };
    let mut object = json!({
        "apiVersion": version, "kind": kind,
        "metadata": { "namespace": "shop", "name": name, "creationTimestamp": "2026-11-25T00:00:00Z" },
        "spec": spec,
    });
    if kind == "Ingress" && object["spec"]["ingressClassName"].is_null() {
        object["metadata"]["annotations"] = json!({ "kubernetes.io/ingress.class": "istio" });
    }
    object
}

fn review(object: &Value) -> String {
    json!({
        "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
        "request": {
            "uid": object["metadata"]["name"], "operation": "CREATE", "dryRun": false,
            "kind": { "group": "", "version": "v1", "kind": object["kind"] }, "object": object,
        },
    })
    .to_string()
}

/// Returns a mesh with the services `web` and `owner`, valid objects, and a file with additional
/// ones.
fn setup(more: &[Value]) -> Setup {
    let service = |name: &str, address: &str| {
        json!({
            "apiVersion": "v1", "kind": "Service", "metadata": { "namespace": "shop", "name": name },
            "spec": { "clusterIP": address, "selector": { "app": name }, "ports": [{ "name": "http", "port": 80 }] },
        })
    };
    let slice = json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": { "namespace": "shop", "name": "web-1", "labels": { "kubernetes.io/service-name": "web" } },
        "endpoints": [{ "addresses": ["10.0.0.1"], "conditions": { "ready": true } }],
        "ports": [{ "name": "http", "port": 8080 }],
    });
    let cluster = vec![service("web", "172.16.0.1"), service("taken", "172.16.0.2"), slice];
    let mut owner = object(
        "VirtualService",
        "taken",
        json!({ "hosts": ["taken"], "http": [{ "route": [{ "destination": { "host": "taken" } }] }] }),
    );
    owner["metadata"]["creationTimestamp"] = json!("2026-01-01T00:00:00Z");
    let deny = json!({ "action": "DENY", "rules": [{ "to": [{ "operation": { "paths": ["/admin"] } }] }] });
    let good = [owner, object("AuthorizationPolicy", "deny-admin", deny)];
    let config = good.iter().chain(more).map(|one| format!("---\n{one}\n"));
    Setup {
        clusters: [("east".to_owned(), cluster)].into(),
        config: config.collect(),
        flags: vec!["--inject-address=127.0.0.1:0".to_owned()],
        ..Setup::default()
    }
}

/// Returns the statuses of the valid objects.
async fn good(estate: &Estate) -> Vec<Value> {
    let states = estate.get("/debug/config?namespace=shop").await;
    let states = states.as_array().expect("states").iter();
    states.filter(|one| one["name"] == "taken" || one["name"] == "deny-admin").cloned().collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn each_broken_object_is_reported_and_valid_ones_stay_active() {
    let trust = Trust::new();
    let estate = Estate::start(&setup(&[]), &trust).await;
    let before = good(&estate).await;
    assert_eq!(before.len(), 2, "{before:?}");
    let (mut wrong, mut counts) = (Vec::new(), BTreeMap::<_, usize>::new());
    let cases = corpus();
    assert!(cases.len() > 60);
    for Case { verdict, message, object } in &cases {
        let (status, text) =
            send_review(&estate, &trust, "h2", "/validate?timeout=5s", review(object)).await;
        assert_eq!(status, 200, "{object}: {text}");
        let answer: Value = serde_json::from_str(&text).expect("JSON");
        let response = &answer["response"];
        assert_eq!(response["uid"], object["metadata"]["name"]);
        let (outcome, details) = match (&response["allowed"], &response["warnings"]) {
            (Value::Bool(false), _) => ("refused", response["status"]["message"].to_string()),
            (_, Value::Null) => ("allowed", String::new()),
            (_, warnings) => ("warned", warnings.to_string()),
        };
        *counts.entry(outcome).or_default() += 1;
        if outcome != verdict || message != "-" && !details.contains(message) {
            wrong.push(format!("{verdict} | {message} | {object}\n    {outcome}: {details}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!(good(&estate).await, before, "nothing was stored or changed");
    let metrics = estate.text("/metrics").await;
    for (result, count) in counts {
        let line = format!("strait_validations_total{{result=\"{result}\"}} {count}");
        assert!(metrics.contains(&line), "{line} in {metrics}");
    }
    for (body, expected) in
        [("{}".to_owned(), 400), (String::new(), 400), ("x".repeat((3 << 20) + 1), 413)]
    {
        let (status, text) = send_review(&estate, &trust, "http/1.1", "/validate", body).await;
        assert_eq!(status, expected, "{text}");
    }
    estate.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn review_equals_the_later_status_and_other_objects_stay_active() {
    let trust = Trust::new();
    let cases = corpus();
    let objects: Vec<Value> = cases.iter().map(|case| case.object.clone()).collect();
    let estate = Estate::start(&setup(&objects), &trust).await;
    let states = estate.get("/debug/config?namespace=shop").await;
    for Case { verdict, object, .. } in &cases {
        let name = &object["metadata"]["name"];
        let state = states.as_array().expect("states").iter().find(|one| one["name"] == *name);
        let state = state.map_or("none", |state| state["state"].as_str().expect("a word"));
        // If the whole object has no effect, each part is reported, or that nothing uses it, or that others have its hosts.
        let is_bad = matches!(state, "refused" | "partly");
        let is_idle = matches!(state, "unused" | "shadowed");
        assert!(verdict != "refused" || is_bad || is_idle, "{object}: {state}");
        assert!(verdict != "allowed" || !is_bad, "{object}: {state}");
        assert!(verdict == "refused" || state != "refused", "{object}: {state}");
    }
    let valid_objects = good(&estate).await;
    let states: Vec<_> = valid_objects.iter().map(|one| one["state"].clone()).collect();
    assert_eq!(states, [json!("inForce"), json!("inForce")], "{valid_objects:?}");
    estate.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn incomplete_requests_do_not_delay_other_reviews() {
    let trust = Trust::new();
    let estate = Estate::start(&setup(&[]), &trust).await;
    let mut silent = Vec::new();
    for path in ["/validate", "/inject"].repeat(12) {
        let mut connection = connect(&estate, &trust, "http/1.1").await;
        let head = format!("POST {path} HTTP/1.1\r\nhost: webhook\r\ncontent-length: 100\r\n\r\n");
        connection.write_all(head.as_bytes()).await.expect("taken");
        connection.flush().await.expect("taken");
        silent.push(connection);
    }
    let route =
        json!({ "hosts": ["web"], "http": [{ "route": [{ "destination": { "host": "web" } }] }] });
    let review = review(&object("VirtualService", "web", route));
    let answer = send_review(&estate, &trust, "h2", "/validate", review);
    // API servers wait 5 s for a response.
    let answer = tokio::time::timeout(std::time::Duration::from_secs(4), answer).await;
    let (status, text) = answer.expect("an answer in time");
    assert!(status == 200 && text.contains("\"allowed\":true"), "{status} {text}");
    drop(silent);
    estate.stop().await;
}
