//! What a pod must not have, for its traffic would pass the sidecar by or the two would stand in each other's way.

use serde_json::Value;

use super::object::{items, text};
use super::refusal::InjectRefusal;
use strait_base::codes;

/// User and group of the sidecar: what it sends is not redirected.
pub(super) const PROXY_USER: u64 = 1337;

/// What Envoy and the agent listen on (docs/reference/interface.md, "Injection").
const PROXY_PORTS: [u64; 7] = [15000, 15001, 15006, 15020, 15021, 15053, 15090];

/// Names that our containers, or those of another mesh, have.
const CONTAINER_NAMES: [&str; 5] =
    ["strait-proxy", "strait-redirect", "istio-proxy", "istio-init", "istio-validation"];

/// Looks for whatever keeps a pod from being injected.
pub(super) fn check(pod: &Value, volumes: &[&str]) -> Result<(), InjectRefusal> {
    let spec = &pod["spec"];
    if spec["os"]["name"] == "windows" || spec["nodeSelector"]["kubernetes.io/os"] == "windows" {
        let fact = "it is a Windows pod, whose traffic can't be redirected";
        return Err(InjectRefusal::new(&codes::INJECT_WINDOWS, fact));
    }
    for container in containers(spec) {
        let name = text(container, "name").unwrap_or_default();
        if CONTAINER_NAMES.contains(&name) {
            let fact = format!("it has a container {name} of its own");
            return Err(InjectRefusal::new(&codes::INJECT_NAME_TAKEN, fact));
        }
        for (field, what) in [("runAsUser", "user"), ("runAsGroup", "group")] {
            let own = &container["securityContext"][field];
            let id = if own.is_null() { &spec["securityContext"][field] } else { own };
            if id.as_u64() == Some(PROXY_USER) {
                let fact = format!("its container {name} runs as {what} {PROXY_USER} ({field})");
                return Err(InjectRefusal::new(&codes::INJECT_PROXY_USER, fact));
            }
        }
        let mut ports = items(container, "ports").iter();
        let taken = ports.find_map(|port| {
            port["containerPort"].as_u64().filter(|number| PROXY_PORTS.contains(number))
        });
        if let Some(port) = taken {
            let fact = format!("its container {name} declares port {port}, which is the sidecar's");
            return Err(InjectRefusal::new(&codes::INJECT_PORT_TAKEN, fact));
        }
    }
    let mut names = items(spec, "volumes").iter().filter_map(|volume| text(volume, "name"));
    match names.find(|name| volumes.contains(name)) {
        Some(name) => {
            let fact = format!("it has a volume {name} of its own");
            Err(InjectRefusal::new(&codes::INJECT_NAME_TAKEN, fact))
        }
        None => Ok(()),
    }
}

/// All containers of a pod that are there when it is made.
pub(super) fn containers(spec: &Value) -> impl Iterator<Item = &Value> {
    items(spec, "initContainers").iter().chain(items(spec, "containers"))
}
