//! Probes that come by the network are answered by the agent, which asks the application itself; so are the handlers of
//! a container's life.
//!
//! The kubelet has no certificate of the mesh: a sidecar that takes mTLS alone would turn it away. What runs in the
//! container (`exec`) stays as it is, and so does what asks another host.

use serde_json::{Value, json};

use super::object::{Fields, items, text};

/// Where the agent answers.
const AGENT_PORT: u16 = 15020;

const KINDS: [(&str, &str); 3] =
    [("livenessProbe", "livez"), ("readinessProbe", "readyz"), ("startupProbe", "startupz")];

/// Handlers of a container's life; by the network the kubelet knows them over HTTP only.
const HANDLERS: [(&str, &str); 2] = [("postStart", "poststartz"), ("preStop", "prestopz")];
/// For how long the agent waits for a handler's answer, in seconds. The kubelet gives up before: a handler has what a
/// pod is given to end.
const HANDLER_LIMIT: u64 = 3600;

/// Has the agent answer a container's probes and handlers. Tells the agent by path what to ask: an HTTP, TCP or gRPC probe
/// with numbers for ports, and its time limit in seconds.
pub(super) fn redirect(container: &mut Value, told: &mut Fields) {
    let name = text(container, "name").unwrap_or_default().to_owned();
    for (field, word) in KINDS {
        let Some(asked) = asked(container, &container[field]) else { continue };
        let path = format!("/app-health/{name}/{word}");
        let Some(probe) = container[field].as_object_mut() else { continue };
        for kind in ["httpGet", "tcpSocket", "grpc"] {
            probe.remove(kind);
        }
        probe.insert("httpGet".into(), json!({ "path": path, "port": AGENT_PORT }));
        told.insert(path, asked);
    }
    for (field, word) in HANDLERS {
        let handler = &container["lifecycle"][field];
        let given = handler["httpGet"].is_object().then(|| asked(container, handler)).flatten();
        let Some(mut asked) = given else { continue };
        asked["timeoutSeconds"] = json!(HANDLER_LIMIT);
        let path = format!("/app-lifecycle/{name}/{word}");
        container["lifecycle"][field]["httpGet"] = json!({ "path": path, "port": AGENT_PORT });
        told.insert(path, asked);
    }
}

/// The probe as the agent makes it; `None` where the kubelet goes on making it.
fn asked(container: &Value, probe: &Value) -> Option<Value> {
    let kinds = ["httpGet", "tcpSocket", "grpc"];
    let (kind, given) = kinds.into_iter().find_map(|kind| {
        let given = &probe[kind];
        given.is_object().then(|| (kind, given.clone()))
    })?;
    let mut given = given;
    // What a host is, the kubelet's node decides: 127.0.0.1 is the node's own.
    if text(&given, "host").is_some_and(|host| !host.is_empty()) {
        return None;
    }
    // Of a name that no port has, the API server says more than we could.
    let port = port(container, &given["port"])?;
    let fields = given.as_object_mut()?;
    fields.remove("host");
    fields.insert("port".into(), json!(port));
    if kind == "httpGet" {
        fields.entry("path").or_insert_with(|| json!("/"));
    }
    let limit = probe["timeoutSeconds"].as_u64().unwrap_or(1).max(1);
    Some(json!({ kind: given, "timeoutSeconds": limit }))
}

/// A port by its number, or by a name that the container gives one.
fn port(container: &Value, port: &Value) -> Option<u16> {
    let number = match port.as_str() {
        None => port.as_u64(),
        Some(name) => match name.parse() {
            Ok(number) => Some(number),
            Err(_) => {
                let mut ports = items(container, "ports").iter();
                ports.find(|one| one["name"] == name)?["containerPort"].as_u64()
            }
        },
    };
    number.and_then(|number| u16::try_from(number).ok()).filter(|port| *port > 0)
}
