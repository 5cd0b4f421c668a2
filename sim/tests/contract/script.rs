//! The language of the contract cases: requests with their expected responses.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::io::AsyncBufReadExt;
use futures::stream::TryStreamExt;
use http_body_util::BodyExt;
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};
use tokio::time::timeout;

/// The time limit for a response.
const LIMIT: Duration = Duration::from_secs(20);

/// A request and its expected response. In paths and bodies, `{word}` is replaced by an earlier value,
/// and `{ns}` by the namespace of the case.
pub(crate) struct Step {
    method: &'static str,
    path: String,
    content_type: &'static str,
    body: Value,
    expected: Expected,
    kept: Vec<(&'static str, &'static str)>,
}

enum Expected {
    Nothing,
    /// A status, and a value that the response must contain.
    Answer(u16, Value),
    /// The first events of a watch: `TYPE NAME`, `BOOKMARK`, `END` for the bookmark that ends a
    /// streaming list, `ERROR CODE`. Other bookmarks are ignored.
    Events(Vec<&'static str>),
}

fn step(method: &'static str, path: &str, content_type: &'static str, body: Value) -> Step {
    let path = path.to_owned();
    Step { method, path, content_type, body, expected: Expected::Nothing, kept: Vec::new() }
}

pub(crate) fn get(path: &str) -> Step {
    step("GET", path, "application/json", Value::Null)
}

pub(crate) fn post(path: &str, body: Value) -> Step {
    step("POST", path, "application/json", body)
}

pub(crate) fn put(path: &str, body: Value) -> Step {
    step("PUT", path, "application/json", body)
}

pub(crate) fn merge_patch(path: &str, body: Value) -> Step {
    step("PATCH", path, "application/merge-patch+json", body)
}

pub(crate) fn apply(path: &str, body: Value) -> Step {
    step("PATCH", path, "application/apply-patch+yaml", body)
}

pub(crate) fn delete(path: &str) -> Step {
    step("DELETE", path, "application/json", Value::Null)
}

impl Step {
    /// Expects a response with this status and these fields.
    pub(crate) fn gives(mut self, status: u16, contains: Value) -> Step {
        self.expected = Expected::Answer(status, contains);
        self
    }

    /// Expects that the watch starts with these events.
    pub(crate) fn sees(mut self, events: &[&'static str]) -> Step {
        self.expected = Expected::Events(events.to_vec());
        self
    }

    /// Checks this request alone. It can't refer to earlier values.
    pub(crate) async fn check(self, client: &Client, name: &str) {
        run_step(client, name, &mut BTreeMap::new(), self).await;
    }

    /// Stores a value of the response for later steps.
    pub(crate) fn keeping(mut self, word: &'static str, pointer: &'static str) -> Step {
        self.kept.push((word, pointer));
        self
    }
}

/// Runs a case in a temporary namespace.
pub(crate) async fn run(client: &Client, name: &str, steps: Vec<Step>) {
    let namespace = format!("contract-{:08x}", rand::random::<u32>());
    let object = json!({"metadata": {"name": namespace}});
    let made = post("/api/v1/namespaces", object).gives(201, json!({}));
    let mut words = BTreeMap::from([("ns", namespace)]);
    run_step(client, name, &mut words, made).await;
    for step in steps {
        run_step(client, name, &mut words, step).await;
    }
    run_step(client, name, &mut words, delete("/api/v1/namespaces/{ns}")).await;
}

async fn run_step(
    client: &Client,
    case: &str,
    words: &mut BTreeMap<&'static str, String>,
    step: Step,
) {
    let fill = |text: String| {
        words.iter().fold(text, |text, (word, value)| text.replace(&format!("{{{word}}}"), value))
    };
    let path = fill(step.path);
    let what = format!("{case}: {} {path}", step.method);
    let body = match step.body {
        Value::Null => String::new(),
        body => fill(body.to_string()),
    };
    let request = http::Request::builder()
        .method(step.method)
        .uri(path)
        .header("content-type", step.content_type)
        .body(Body::from(body.into_bytes()))
        .expect("a valid request");
    let answer = timeout(LIMIT, client.send(request)).await;
    let answer = answer.unwrap_or_else(|_| panic!("{what}: no answer")).expect("an answer");
    let status = answer.status().as_u16();
    let (expected_status, contains) = match step.expected {
        Expected::Nothing => return,
        Expected::Events(expected) => {
            assert_eq!(status, 200, "{what}");
            let seen = timeout(LIMIT, first_events(answer.into_body(), &expected)).await;
            return assert_eq!(
                seen.unwrap_or_else(|_| panic!("{what}: {expected:?}")),
                expected,
                "{what}"
            );
        }
        Expected::Answer(status, contains) => (status, contains),
    };
    let body = answer.into_body().collect().await.expect("a body").to_bytes();
    let text = String::from_utf8_lossy(&body);
    assert_eq!(status, expected_status, "{what}: {text}");
    let body: Value = serde_json::from_slice(&body).unwrap_or_default();
    let contains: Value = serde_json::from_str(&fill(contains.to_string())).expect("still JSON");
    assert!(holds(&body, &contains), "{what}: {text} does not contain {contains}");
    for (word, pointer) in step.kept {
        let value = body.pointer(pointer).and_then(Value::as_str);
        let value = value.unwrap_or_else(|| panic!("{what}: no {pointer} in {text}"));
        words.insert(word, value.to_owned());
    }
}

/// Reads as many events as expected. Bookmarks are ignored unless one is expected.
async fn first_events(body: Body, expected: &[&str]) -> Vec<String> {
    let stream = body.into_data_stream().map_err(std::io::Error::other);
    let mut lines = stream.into_async_read().lines();
    let mut seen = Vec::new();
    while seen.len() < expected.len() {
        let Ok(Some(line)) = lines.try_next().await else { break };
        let event: Value = serde_json::from_str(&line).expect("a line is an event");
        let object = &event["object"];
        let end = object["metadata"]["annotations"]["k8s.io/initial-events-end"] == "true";
        let event = match event["type"].as_str().unwrap_or_default() {
            "BOOKMARK" if end => "END".to_owned(),
            "BOOKMARK" if expected[seen.len()] != "BOOKMARK" => continue,
            "BOOKMARK" => "BOOKMARK".to_owned(),
            "ERROR" => format!("ERROR {}", object["code"]),
            kind => format!("{kind} {}", object["metadata"]["name"].as_str().unwrap_or("?")),
        };
        seen.push(event);
    }
    seen
}

/// Returns whether `value` contains all of `part`. Lists must have the same length; `null` matches an
/// absent value, `{}` matches any value.
fn holds(value: &Value, part: &Value) -> bool {
    match (value, part) {
        (_, Value::Object(part)) if part.is_empty() => true,
        (Value::Object(value), Value::Object(part)) => {
            part.iter().all(|(key, part)| holds(value.get(key).unwrap_or(&Value::Null), part))
        }
        (Value::Array(values), Value::Array(parts)) => {
            values.len() == parts.len() && values.iter().zip(parts).all(|(v, p)| holds(v, p))
        }
        (value, part) => value == part,
    }
}
