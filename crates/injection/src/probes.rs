//! Redirects network probes and lifecycle handlers of a pod to the agent, which forwards them to the
//! application.
//!
//! The kubelet has no certificate of the mesh, so a sidecar that requires mTLS would reject its requests. Commands in
//! the container (`exec`) and requests to another host stay unchanged.

use serde_json::{Value, json};

use super::object::{Fields, items, text};

/// The port on which the agent answers probes.
const AGENT_PORT: u16 = 15020;

const KINDS: [(&str, &str); 3] =
    [("livenessProbe", "livez"), ("readinessProbe", "readyz"), ("startupProbe", "startupz")];

/// Lifecycle handlers. Over the network, the kubelet supports only HTTP for them.
const HANDLERS: [(&str, &str); 2] = [("postStart", "poststartz"), ("preStop", "prestopz")];
/// How long the agent waits for a handler's response, in seconds. The kubelet gives up earlier: a handler is limited by
/// the termination grace period of the pod.
const HANDLER_LIMIT: u64 = 3600;

/// Redirects a container's probes and handlers to the agent. Adds each original request to the given fields, by path:
/// an HTTP, TCP or gRPC probe with a numeric port, and its timeout in seconds.
pub(super) fn redirect(container: &mut Value, agent_probes: &mut Fields) {
    let name = text(container, "name").unwrap_or_default().to_owned();
    for (field, suffix) in KINDS {
        let Some(agent_probe) = agent_probe(container, &container[field]) else { continue };
        let path = format!("/app-health/{name}/{suffix}");
        let Some(probe) = container[field].as_object_mut() else { continue };
        for kind in ["httpGet", "tcpSocket", "grpc"] {
            probe.remove(kind);
        }
        probe.insert("httpGet".into(), json!({ "path": path, "port": AGENT_PORT }));
        agent_probes.insert(path, agent_probe);
    }
    for (field, suffix) in HANDLERS {
        let handler = &container["lifecycle"][field];
        let given =
            handler["httpGet"].is_object().then(|| agent_probe(container, handler)).flatten();
        let Some(mut agent_probe) = given else { continue };
        agent_probe["timeoutSeconds"] = json!(HANDLER_LIMIT);
        let path = format!("/app-lifecycle/{name}/{suffix}");
        container["lifecycle"][field]["httpGet"] = json!({ "path": path, "port": AGENT_PORT });
        agent_probes.insert(path, agent_probe);
    }
}

/// Returns the probe for the agent to make; `None` if the kubelet continues to make it.
fn agent_probe(container: &Value, probe: &Value) -> Option<Value> {
    let kinds = ["httpGet", "tcpSocket", "grpc"];
    let (kind, given) = kinds.into_iter().find_map(|kind| {
        let given = &probe[kind];
        given.is_object().then(|| (kind, given.clone()))
    })?;
    let mut given = given;
    // The kubelet resolves a host on the node: 127.0.0.1 is the node itself.
    if text(&given, "host").is_some_and(|host| !host.is_empty()) {
        return None;
    }
    // If no port has the name, the API server's error is more precise than ours.
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

/// Resolves a port by number, or by the name of a port of the container.
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
