//! The program `strait-sim` and its control port.

use std::process::Stdio;
use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::time::timeout;

use crate::{client_of, directory};

const PROGRAM: &str = env!("CARGO_BIN_EXE_strait-sim");
const LIMIT: Duration = Duration::from_secs(30);

struct Program {
    child: Child,
    control: String,
    line: Value,
}

async fn start(arguments: &[&str]) -> Program {
    let mut child = Command::new(PROGRAM)
        .args(arguments)
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .expect("the program starts");
    let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    let line = timeout(LIMIT, lines.next_line()).await.expect("in time");
    let line = line.expect("text").expect("a line");
    let line: Value = serde_json::from_str(&line).expect("the line is JSON");
    let control = line["control"].as_str().expect("a control address").to_owned();
    Program { child, control, line }
}

impl Program {
    async fn request(&self, method: &str, path: &str, body: &str) -> (u16, Value) {
        let (status, text) = self.text(method, path, body).await;
        (status, serde_json::from_str(&text).expect("the answer is JSON"))
    }

    async fn text(&self, method: &str, path: &str, body: &str) -> (u16, String) {
        let stream = tokio::net::TcpStream::connect(&self.control).await.expect("it listens");
        let io = TokioIo::new(stream);
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(io).await.expect("HTTP");
        let request = http::Request::builder()
            .method(method)
            .uri(path)
            .header("host", &self.control)
            .body(Full::<bytes::Bytes>::from(body.to_owned()))
            .expect("a valid request");
        let answer = async {
            let answer = sender.send_request(request).await.expect("an answer");
            let status = answer.status().as_u16();
            let body = answer.into_body().collect().await.expect("a body").to_bytes();
            (status, String::from_utf8_lossy(&body).into_owned())
        };
        tokio::select! {
            answer = answer => answer,
            _ = connection => panic!("the connection ended first"),
        }
    }

    async fn post(&self, verb: &str, body: Value) -> (u16, Value) {
        self.request("POST", &format!("/v1/{verb}"), &body.to_string()).await
    }
}

#[tokio::test]
async fn written_kubeconfigs_connect_to_the_clusters() {
    let directory = directory();
    let out = directory.path().to_str().expect("plain text");
    let size = ["--clusters", "2", "--services", "3", "--endpoints", "2", "--same-names"];
    let program = start(&[&size[..], &["--networks", "2", "--pods", "--out", out]].concat()).await;
    let ids: Vec<_> = program.line["clusters"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|c| c["id"].clone())
        .collect();
    assert_eq!(ids, ["c1", "c2"]);
    for id in ["c1", "c2"] {
        let read =
            |path: String| std::fs::read_to_string(directory.path().join(path)).expect("written");
        let kubeconfig = read(format!("{id}.kubeconfig"));
        let client = client_of(&kubeconfig).await;
        let request = http::Request::get("/api/v1/pods").body(vec![]).expect("valid");
        let pods = client.request_text(request).await.expect("a list");
        let pods: Value = serde_json::from_str(&pods).expect("JSON");
        assert_eq!(pods["items"].as_array().map(Vec::len), Some(6));
        let secret: Value =
            serde_json::from_str(&read(format!("secrets/{id}.yaml"))).expect("JSON");
        assert_eq!(secret["metadata"]["labels"]["istio/multiCluster"], "true");
        assert_eq!(secret["metadata"]["namespace"], "strait-system");
        assert!(secret["data"][id].is_string());
    }
}

#[tokio::test]
async fn every_verb_succeeds_or_reports_an_error() {
    let size = ["--clusters", "1", "--services", "2", "--endpoints", "3", "--churn", "1/s"];
    let program = start(&size).await;
    let ok: &[(&str, Value, Value)] = &[
        ("change", json!({}), json!({"cluster": "c1"})),
        ("change", json!({"service": "shop/cart-c1"}), json!({"service": "shop/cart-c1"})),
        ("rollout", json!({"service": "shop/cart-c1", "perSecond": 1000, "wait": true}), json!({})),
        ("rollout", json!({}), json!({"started": true})),
        ("scale", json!({"endpoints": 5}), json!({"endpoints": 5})),
        ("service", json!({"do": "targetPort"}), json!({})),
        (
            "service",
            json!({"do": "label", "service": "shop/cart-c1", "key": "a", "value": "b"}),
            json!({"service": "shop/cart-c1"}),
        ),
        ("service", json!({"do": "create", "endpoints": 2}), json!({})),
        (
            "service",
            json!({"do": "delete", "service": "shop/cart-c1"}),
            json!({"service": "shop/cart-c1"}),
        ),
        ("hang", json!({}), json!({"faults": [{"fault": "hang"}]})),
        ("hang", json!({"on": false}), json!({"faults": []})),
        (
            "slow",
            json!({"latencyMs": 5}),
            json!({"faults": [{"fault": "slow", "latencyMs": 5, "bytesPerSecond": null}]}),
        ),
        ("slow", json!({}), json!({"faults": []})),
        ("gone", json!({}), json!({"faults": [{"fault": "gone", "how": "status", "times": 1}]})),
        (
            "gone",
            json!({"how": "event", "times": 3}),
            json!({"faults": [{"fault": "gone", "how": "event", "times": 3}]}),
        ),
        ("unauthorized", json!({}), json!({})),
        ("fault", json!({"fault": "mute"}), json!({})),
        ("heal", json!({}), json!({"faults": [], "serving": true})),
        ("kill", json!({}), json!({"serving": false})),
        ("start", json!({}), json!({"serving": true})),
        ("flap", json!({"upMs": 100, "downMs": 100}), json!({})),
        ("flap", json!({"on": false}), json!({"faults": []})),
        ("resync", json!({}), json!({"cluster": "c1"})),
        ("requests", json!({"verb": "list", "resource": "pods"}), json!({"count": 0})),
    ];
    for (verb, body, contains) in ok {
        let mut body = body.clone();
        body["cluster"] = json!("c1");
        let (status, answer) = program.post(verb, body).await;
        assert_eq!(status, 200, "{verb}: {answer}");
        for (key, value) in contains.as_object().expect("an object") {
            assert_eq!(&answer[key], value, "{verb}: {answer}");
        }
    }
    let bad: &[(&str, Value, u16)] = &[
        ("nonsense", json!({"cluster": "c1"}), 404),
        ("change", json!({"cluster": "c9"}), 404),
        ("change", json!({"cluster": "c1", "service": "no/such"}), 404),
        ("change", json!({}), 400),
        ("change", json!({"cluster": "c1", "nonsense": 1}), 400),
        ("scale", json!({"cluster": "c1"}), 400),
        ("scale", json!({"cluster": "c1", "endpoints": 100_000_000}), 400),
        ("rollout", json!({"cluster": "c1", "perSecond": 0}), 400),
        ("rollout", json!({"cluster": "c1", "perSecond": 1e308, "wait": true}), 400),
        ("rollout", json!({"cluster": "c1", "service": "no/such"}), 404),
        ("fault", json!({"cluster": "c1", "fault": "nonsense"}), 400),
        ("fault", json!({"cluster": "c1", "fault": "html", "x": 1}), 400),
        ("fault", json!({"cluster": "c1", "fault": "clockSkew", "seconds": i64::MAX}), 400),
        ("slow", json!({"cluster": "c1", "bytesPerSecond": 0}), 400),
        ("flap", json!({"cluster": "c1", "upMs": 0}), 400),
        ("gone", json!({"cluster": "c1", "times": 0}), 400),
        ("gone", json!({"cluster": "c1", "how": "continue", "times": 1}), 400),
        ("kill", json!([]), 400),
        ("service", json!({"cluster": "c1"}), 400),
        ("service", json!({"cluster": "c1", "do": "nonsense"}), 400),
        ("service", json!({"cluster": "c1", "do": "label"}), 400),
        ("service", json!({"cluster": "c1", "do": "label", "key": "a b", "value": ""}), 400),
        ("service", json!({"cluster": "c1", "do": "create", "endpoints": 100_000_000}), 400),
        ("service", json!({"cluster": "c1", "do": "delete", "service": "no/such"}), 404),
    ];
    for (verb, body, code) in bad {
        let (status, answer) = program.post(verb, body.clone()).await;
        assert_eq!(status, *code, "{verb} {body}: {answer}");
        assert!(answer["error"].is_string(), "{answer}");
    }
    assert_eq!(program.request("GET", "/v1/change", "").await.0, 405);
    assert_eq!(program.request("POST", "/v1/change", "nonsense").await.0, 400);
}

#[tokio::test]
async fn stamped_address_is_visible_to_clients() {
    let program = start(&["--world", "W1d/1000"]).await;
    assert_eq!(program.line["clusters"].as_array().map(Vec::len), Some(10));
    let (_, first) = program.post("change", json!({"cluster": "c1"})).await;
    let (_, second) = program.post("change", json!({"cluster": "c1"})).await;
    assert_eq!(first["address"], "100.64.0.1");
    assert_eq!(first["hostname"], "cart-c1.shop.svc.cluster.local");
    assert_eq!(second["address"], "100.64.0.2");
    assert!(first["at_ns"].as_u64() < second["at_ns"].as_u64());
    for (since, expected) in [("", vec![&first, &second]), ("?since=1", vec![&second])] {
        let (status, lines) = program.text("GET", &format!("/v1/stamps{since}"), "").await;
        let lines = lines.lines().map(|line| serde_json::from_str(line).expect("JSON"));
        assert_eq!((status, lines.collect::<Vec<Value>>()), (200, cloned(&expected)), "{since}");
    }
    assert_eq!(program.text("GET", "/v1/stamps?since=2", "").await, (200, String::new()));
    assert_eq!(program.request("GET", "/v1/stamps?since=x", "").await.0, 400);
}

fn cloned(values: &[&Value]) -> Vec<Value> {
    values.iter().map(|value| (*value).clone()).collect()
}

#[tokio::test]
async fn sigterm_exits_with_0_and_invalid_usage_is_refused() {
    let mut program = start(&["--clusters", "1", "--services", "1", "--endpoints", "1"]).await;
    let id = program.child.id().expect("it runs").to_string();
    let sent = Command::new("kill").args(["-TERM", &id]).status().await.expect("kill runs");
    assert!(sent.success());
    let status = timeout(LIMIT, program.child.wait()).await.expect("in time").expect("a status");
    assert_eq!(status.code(), Some(0));
    let wrong: &[&[&str]] = &[
        &[],
        &["--clusters", "0", "--services", "1", "--endpoints", "1"],
        &["--clusters", "1", "--services", "x", "--endpoints", "1"],
        &["--clusters", "1", "--services", "1", "--endpoints", "1", "--churn", "fast"],
        &["--clusters", "1", "--services", "1", "--endpoints", "1", "--churn", "1e-300/s"],
        &["--world", "W3"],
        &["--world", "W1/0"],
        &["--world", "W1", "--services", "1"],
        &["--clusters", "9999", "--services", "9999", "--endpoints", "9999"],
    ];
    for arguments in wrong {
        let output = Command::new(PROGRAM).args(*arguments).output().await.expect("it starts");
        assert_eq!(output.status.code(), Some(64), "{arguments:?}");
        assert!(!output.stderr.is_empty() && output.stdout.is_empty(), "{arguments:?}");
    }
    let label = "a".repeat(64);
    for (flag, name, reason) in [
        ("--config-cluster", "../../x", "a cluster ID is"),
        ("--config-cluster", "Bad_C", "a cluster ID is"),
        ("--config-cluster", "a..b", "a cluster ID is"),
        ("--config-cluster", &label, "a cluster ID is"),
        ("--namespace", "Bad_NS", "a namespace is"),
        ("--namespace", "a.b", "a namespace is"),
        ("--namespace", "", "a namespace is"),
        ("--namespace", &label, "a namespace is"),
    ] {
        let arguments = ["--world", "W1/1000", flag, name];
        let output = Command::new(PROGRAM).args(arguments).output().await.expect("it starts");
        assert_eq!(output.status.code(), Some(64), "{arguments:?}");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(said.contains(flag) && said.contains(reason), "{arguments:?}: {said}");
    }
    let help = Command::new(PROGRAM).arg("--help").output().await.expect("it starts");
    assert_eq!(help.status.code(), Some(0));
}

#[tokio::test]
async fn startup_errors_name_the_path_or_address() {
    for (flag, value, reason) in [
        ("--out", "/proc/nope", "can't write /proc/nope/secrets: "),
        ("--control-address", "192.0.2.1:1", "can't listen on 192.0.2.1:1: "),
    ] {
        let arguments = ["--world", "W1/1000", flag, value];
        let output = Command::new(PROGRAM).args(arguments).output().await.expect("it starts");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains(reason), "{said}");
    }
}
