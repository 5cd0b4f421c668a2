//! Properties of a pod that conflict with a sidecar, or let its traffic bypass the sidecar.

use serde_json::Value;

use super::object::{items, text};
use super::refusal::InjectRefusal;
use strait_base::codes;

/// User and group ID of the sidecar, whose own traffic is not redirected.
pub(super) const PROXY_USER: u64 = 1337;

/// The ports of Envoy and the agent (docs/reference/interface.md, "Injection").
const PROXY_PORTS: [u64; 7] = [15000, 15001, 15006, 15020, 15021, 15053, 15090];

/// Names of the containers that Strait or another mesh adds.
const CONTAINER_NAMES: [&str; 5] =
    ["strait-proxy", "strait-redirect", "istio-proxy", "istio-init", "istio-validation"];

/// Returns an error for the first property that prevents injection.
pub(super) fn check(pod: &Value, volumes: &[&str]) -> Result<(), InjectRefusal> {
    let spec = &pod["spec"];
    if spec["os"]["name"] == "windows" || spec["nodeSelector"]["kubernetes.io/os"] == "windows" {
        let fact = "it is a Windows pod, whose traffic can't be redirected";
        return Err(InjectRefusal::new(&codes::INJECT_WINDOWS, fact));
    }
    for container in containers(spec) {
        let name = text(container, "name").unwrap_or_default();
        if CONTAINER_NAMES.contains(&name) {
            let fact = format!("it already has a container named {name}");
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
        let reserved = ports.find_map(|port| {
            port["containerPort"].as_u64().filter(|number| PROXY_PORTS.contains(number))
        });
        if let Some(port) = reserved {
            let fact = format!("its container {name} declares port {port}, which is the sidecar's");
            return Err(InjectRefusal::new(&codes::INJECT_PORT_TAKEN, fact));
        }
    }
    let mut names = items(spec, "volumes").iter().filter_map(|volume| text(volume, "name"));
    match names.find(|name| volumes.contains(name)) {
        Some(name) => {
            let fact = format!("it already has a volume named {name}");
            Err(InjectRefusal::new(&codes::INJECT_NAME_TAKEN, fact))
        }
        None => Ok(()),
    }
}

/// Returns all containers of a new pod, init containers first.
pub(super) fn containers(spec: &Value) -> impl Iterator<Item = &Value> {
    items(spec, "initContainers").iter().chain(items(spec, "containers"))
}
