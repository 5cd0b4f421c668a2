//! Statuses of Istio's objects in the config cluster, together with statuses from other
//! controllers.

use serde_json::{Value, json};

use super::mesh::{Member, SOON, Setup, holds, wait_until};
use strait_sim::{Family, Options as SimOptions, objects};

fn object(group: &str, kind: &str, name: &str, spec: Value) -> Value {
    json!({
        "apiVersion": format!("{group}.istio.io/v1"), "kind": kind,
        "metadata": { "name": name, "namespace": "shop" }, "spec": spec,
    })
}

fn policy(name: &str, action: &str) -> Value {
    let rules = json!([{ "to": [{ "operation": { "ports": ["8080"] } }] }]);
    let spec = json!({
        "selector": { "matchLabels": { "app": "web" } }, "action": action, "rules": rules,
    });
    object("security", "AuthorizationPolicy", name, spec)
}

fn route(to: &str) -> Value {
    let http = json!([{ "route": [{ "destination": { "host": to } }] }]);
    object("networking", "VirtualService", "web", json!({ "hosts": ["web"], "http": http }))
}

fn stored(hub: &Member, kind: &str, name: &str) -> Value {
    let found = hub.api.store().get(kind, "shop", name);
    found.map(|object| object.value()).unwrap_or_default()
}

/// Returns a short form of an object's status; empty if it is about an older generation.
fn status_summary(object: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let conditions = object["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let generation = &object["metadata"]["generation"];
    let current = conditions.iter().filter(|one| one["observedGeneration"] == *generation);
    let short = |condition: &Value| {
        format!(
            "{}={} {}",
            text(&condition["type"]),
            text(&condition["status"]),
            text(&condition["reason"])
        )
    };
    current.map(short).collect::<Vec<_>>().join(", ")
}

async fn until(hub: &Member, kind: &str, name: &str, expected: &str) {
    wait_until(SOON, async || {
        let object = stored(hub, kind, name);
        holds(status_summary(&object) == expected, object)
    })
    .await;
}

async fn hub() -> Member {
    let families = [Family::Core, Family::Istio].into();
    let options = SimOptions { families, ..SimOptions::default() };
    let hub = Member::start_with("hub", "n1", "198.18.0.1", options).await;
    hub.serve("web", &["10.0.0.1"]);
    hub
}

const WHOLE: &str = "Accepted=True InForce, Reconciled=True InForce";

#[tokio::test]
async fn object_statuses_are_written_if_enabled() {
    let hub = hub().await;
    hub.apply(policy("deny", "DENY"));
    hub.apply(policy("odd", "DENNY"));
    hub.apply(route("cart"));
    // A condition of another controller, with a type that Strait also uses.
    let mut foreign = policy("held", "ALLOW");
    foreign["status"] = json!({ "conditions": [
        { "type": "Reconciled", "status": "Unknown", "reason": "Distribution" },
    ] });
    hub.apply(foreign);
    let setup = Setup::new().with(&["--cluster-id", "hub", "--write-status"]);
    let servers = [
        setup.start_replica(&hub.api, "state-1").await,
        setup.start_replica(&hub.api, "state-2").await,
    ];

    until(&hub, "AuthorizationPolicy", "deny", WHOLE).await;
    let partly = "Accepted=True PartlyInForce, Reconciled=False PartlyInForce";
    until(&hub, "VirtualService", "web", partly).await;
    let refused = "Accepted=False Refused, Reconciled=False Refused";
    until(&hub, "AuthorizationPolicy", "odd", refused).await;
    let both_types = "Accepted=True InForce, strait.dev/Reconciled=True InForce";
    until(&hub, "AuthorizationPolicy", "held", both_types).await;
    let first = &stored(&hub, "AuthorizationPolicy", "held")["status"]["conditions"][0];
    assert_eq!((&first["type"], &first["reason"]), (&json!("Reconciled"), &json!("Distribution")));

    // With the text of /debug/config.
    let states = servers[0].admin.json("/debug/config?kind=VirtualService&name=web").await;
    let message =
        stored(&hub, "VirtualService", "web")["status"]["conditions"][1]["message"].clone();
    let [code, text] = ["code", "text"].map(|field| states[0]["reasons"][0][field].clone());
    for part in [&code, &text] {
        let part = part.as_str().expect("a text");
        assert!(message.as_str().is_some_and(|all| all.contains(part)), "{part}: {message}");
    }

    // One replica writes, each object once.
    let writes = || {
        ["authorizationpolicies", "virtualservices"]
            .map(|plural| hub.api.request_count("patch", plural))
    };
    assert_eq!(writes(), [3, 1]);
    hub.serve("cart", &["10.0.0.2"]);
    until(&hub, "VirtualService", "web", WHOLE).await;
    hub.apply(policy("odd", "DENY"));
    until(&hub, "AuthorizationPolicy", "odd", WHOLE).await;
    assert_eq!(writes(), [4, 2]);

    // Workloads are added and removed only by their labels.
    let mut unused_policy = policy("nobody", "DENY");
    unused_policy["spec"]["selector"]["matchLabels"]["app"] = json!("later");
    hub.apply(unused_policy);
    let unused = "Accepted=True NotUsed, Reconciled=False NotUsed";
    until(&hub, "AuthorizationPolicy", "nobody", unused).await;
    hub.apply(objects::pod("shop", "later-1", "later", "10.0.0.7", "node"));
    until(&hub, "AuthorizationPolicy", "nobody", WHOLE).await;
    assert_eq!(writes(), [6, 2]);
    for server in servers {
        server.shut_down().await;
    }
}

#[tokio::test]
async fn object_statuses_are_not_written_by_default() {
    let hub = hub().await;
    hub.apply(policy("deny", "DENY"));
    hub.apply(route("cart"));
    let setup = Setup::new().with(&["--cluster-id", "hub"]);
    let server = setup.start_replica(&hub.api, "state").await;
    // The object has been processed by the time that the API lists it.
    let states = async || {
        let states = server.admin.json("/debug/config").await;
        holds(states.as_array().map(Vec::len) == Some(2), states)
    };
    wait_until(SOON, states).await;
    // Leases are renewed every five seconds: pending writes would be complete by then.
    let renewed = hub.api.request_count("update", "leases");
    wait_until(SOON, async || {
        let now = hub.api.request_count("update", "leases");
        holds(now >= renewed + 2, (renewed, now))
    })
    .await;
    let written = ["authorizationpolicies", "virtualservices"]
        .map(|plural| hub.api.request_count("patch", plural));
    assert_eq!(written, [0, 0]);
    server.shut_down().await;
}

#[tokio::test]
async fn ingress_status_has_the_addresses_of_its_gateway() {
    let hub = hub().await;
    let entrance = |addresses: Value| {
        let port = objects::Port { name: "http", port: 80, target: 8080 };
        let name = "istio-ingressgateway";
        let mut entrance = objects::service("strait-system", name, "172.20.9.9", &[port]);
        entrance["spec"]["type"] = json!("LoadBalancer");
        entrance["status"] = json!({ "loadBalancer": { "ingress": addresses } });
        entrance
    };
    let ingress = |name: &str, class: &str| {
        json!({
            "apiVersion": "networking.k8s.io/v1", "kind": "Ingress",
            "metadata": {
                "name": name, "namespace": "shop",
                "annotations": { "kubernetes.io/ingress.class": class },
            },
            "spec": { "defaultBackend": { "service": { "name": "web", "port": { "number": 80 } } } },
        })
    };
    hub.apply(entrance(json!([{ "ip": "203.0.113.9" }])));
    hub.apply(ingress("ours", "istio"));
    let mut theirs = ingress("theirs", "nginx");
    let foreign_status = json!({ "loadBalancer": { "ingress": [{ "ip": "192.0.2.1" }] } });
    theirs["status"] = foreign_status.clone();
    hub.apply(theirs);
    let setup = Setup::new().with(&["--cluster-id", "hub"]);
    let servers = [
        setup.start_replica(&hub.api, "state-1").await,
        setup.start_replica(&hub.api, "state-2").await,
    ];
    let until = async |expected: Value| {
        wait_until(SOON, async || {
            let addresses =
                stored(&hub, "Ingress", "ours")["status"]["loadBalancer"]["ingress"].clone();
            holds(addresses == expected, addresses)
        })
        .await;
    };
    until(json!([{ "ip": "203.0.113.9" }])).await;
    let both = json!([{ "hostname": "edge.example" }, { "ip": "203.0.113.10" }]);
    hub.apply(entrance(both.clone()));
    until(both).await;
    hub.apply(entrance(json!([])));
    until(Value::Null).await;
    assert_eq!(stored(&hub, "Ingress", "theirs")["status"], foreign_status, "another controller's");
    assert_eq!(
        hub.api.request_count("patch", "ingresses"),
        3,
        "one replica writes, each object once"
    );
    for server in servers {
        server.shut_down().await;
    }
}
