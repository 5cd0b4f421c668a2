//! Statuses of Gateway API routes in the config cluster, until their Service is deleted.

use serde_json::{Value, json};

use super::mesh::{Member, SOON, Setup, holds, wait_until};
use strait_sim::{Family, Options as SimOptions};

const CONTROLLER: &str = "strait.dev/gateway-controller";

/// Returns an HTTPRoute on the service `web.shop` that routes to another service.
fn route(name: &str, backend: &str) -> Value {
    json!({
        "apiVersion": "gateway.networking.k8s.io/v1", "kind": "HTTPRoute",
        "metadata": { "name": name, "namespace": "shop" },
        "spec": {
            "parentRefs": [{ "group": "", "kind": "Service", "name": "web" }],
            "rules": [{ "backendRefs": [{ "name": backend, "port": 80 }] }],
        },
    })
}

/// Returns a TCPRoute on the service, which has no port for it.
fn connection_route(name: &str, backend: &str) -> Value {
    let mut route = route(name, backend);
    route["kind"] = "TCPRoute".into();
    route
}

fn stored(hub: &Member, name: &str) -> Value {
    let store = hub.api.store();
    let mut kinds = ["HTTPRoute", "TCPRoute"].into_iter();
    let found = kinds.find_map(|kind| store.get(kind, "shop", name));
    found.map(|object| object.value()).unwrap_or_default()
}

/// Returns a short form of a route's status.
fn status_summary(hub: &Member, name: &str) -> String {
    let route = stored(hub, name);
    let entries = route["status"]["parents"].as_array().cloned().unwrap_or_default();
    let ours = entries.iter().filter(|entry| entry["controllerName"] == CONTROLLER);
    let conditions = ours.flat_map(|entry| entry["conditions"].as_array().cloned());
    let short = |condition: &Value| {
        assert_eq!(condition["observedGeneration"], route["metadata"]["generation"], "{condition}");
        assert!(condition["lastTransitionTime"].is_string(), "{condition}");
        format!(
            "{}={} {}",
            text(&condition["type"]),
            text(&condition["status"]),
            text(&condition["reason"])
        )
    };
    conditions.flatten().map(|one| short(&one)).collect::<Vec<_>>().join(", ")
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

async fn until(hub: &Member, name: &str, expected: &str) {
    wait_until(SOON, async || {
        // The status of an older generation of the object is ignored.
        let route = stored(hub, name);
        let observed = route.pointer("/status/parents/0/conditions/0/observedGeneration");
        let is_current = observed == route.pointer("/metadata/generation");
        holds(is_current && status_summary(hub, name) == expected, route)
    })
    .await;
}

#[tokio::test]
async fn route_statuses_are_written_by_one_control_plane() {
    let families = [Family::Core, Family::GatewayApi].into();
    let options = SimOptions { families, ..SimOptions::default() };
    let hub = Member::start_with("hub", "n1", "198.18.0.1", options).await;
    hub.serve("web", &["10.0.0.1"]);
    hub.apply(route("sound", "web"));
    hub.apply(route("waiting", "cart"));
    let setup = Setup::new().with(&["--cluster-id", "hub"]);
    let mut servers = Vec::new();
    for state in ["state-1", "state-2"] {
        servers.push(setup.start_replica(&hub.api, state).await);
    }
    let fine = "Accepted=True Accepted, ResolvedRefs=True ResolvedRefs";
    until(&hub, "sound", fine).await;
    until(&hub, "waiting", "Accepted=True Accepted, ResolvedRefs=False BackendNotFound").await;
    let patches = || hub.api.request_count("patch", "httproutes");
    assert_eq!(patches(), 2, "one replica writes, each object once");
    hub.apply(connection_route("bytes", "ghost"));
    let lost = "Accepted=False NoMatchingParent, ResolvedRefs=False BackendNotFound";
    until(&hub, "bytes", lost).await;

    // The backend is created, the route changes, and its Service is deleted.
    hub.serve("cart", &["10.0.0.2"]);
    until(&hub, "waiting", fine).await;
    hub.apply(route("waiting", "ghost"));
    until(&hub, "waiting", "Accepted=True Accepted, ResolvedRefs=False BackendNotFound").await;
    assert_eq!(patches(), 4);

    // The admin API reports the same.
    let states = servers[0].admin.json("/debug/config?kind=HTTPRoute&name=waiting").await;
    // The older route covers the rule of this one, so the backend is the second reason.
    let codes = ["STR1023", "STR1041"];
    assert_eq!([0, 1].map(|at| text(&states[0]["reasons"][at]["code"])), codes, "{states}");
    let message =
        stored(&hub, "waiting")["status"]["parents"][0]["conditions"][1]["message"].clone();
    assert!(text(&message).contains(text(&states[0]["reasons"][1]["text"])), "{message}");
    for server in servers {
        server.shut_down().await;
    }
}
