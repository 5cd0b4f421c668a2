//! The language of the contract cases: requests with the answers they must get.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::io::AsyncBufReadExt;
use futures::stream::TryStreamExt;
use http_body_util::BodyExt;
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};
use tokio::time::timeout;

/// A server that has not answered by then never will.
const LIMIT: Duration = Duration::from_secs(20);

/// One request and what must come of it. In paths and bodies `{word}` stands for a value kept earlier;
/// `{ns}` is a namespace of the case's own.
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
    /// A status, and a value that the answer must contain.
    Answer(u16, Value),
    /// The first events of a watch: `TYPE NAME`, `BOOKMARK`, `END` for the bookmark that ends a
    /// streaming list, `ERROR CODE`. Other bookmarks are passed over.
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
    /// The answer has this status and contains these fields.
    pub(crate) fn gives(mut self, status: u16, contains: Value) -> Step {
        self.expected = Expected::Answer(status, contains);
        self
    }

    /// The watch starts with these events.
    pub(crate) fn sees(mut self, events: &[&'static str]) -> Step {
        self.expected = Expected::Events(events.to_vec());
        self
    }

    /// Checks this one request, of which nothing may have to be kept.
    pub(crate) async fn check(self, client: &Client, name: &str) {
        run_step(client, name, &mut BTreeMap::new(), self).await;
    }

    /// Remembers a value of the answer.
    pub(crate) fn keeping(mut self, word: &'static str, pointer: &'static str) -> Step {
        self.kept.push((word, pointer));
        self
    }
}

/// Runs a case in a namespace that it makes and deletes.
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

/// As many events as expected, bookmarks left out unless one is waited for.
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

/// Whether `value` has all that `part` has. Lists have the same length; `null` means absent, `{}`
/// anything.
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
