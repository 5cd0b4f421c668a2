//! Tests of the inbound configuration that access policies result in, also with real Envoys.

use serde_json::json;

use super::*;
use strait_model::Collection;
use strait_rules::access::{AccessIndex, AccessSettings, PolicyErrors, PolicyKind};

/// Returns the event for these access policies; policies in the namespace `root` apply to the whole
/// mesh.
pub(super) fn event_with_root(root: &str, objects: impl IntoIterator<Item = Value>) -> MeshEvent {
    let objects: Collection = objects.into_iter().map(Arc::new).collect();
    let settings = AccessSettings { root: root.into(), errors: PolicyErrors::Narrow };
    let mut index = AccessIndex::new(settings.clone());
    let change = index.apply(&settings, &objects).expect("the first time");
    for (name, report) in change.policies.reports() {
        // A rule for tokens without keys or that cannot be read is active: its tokens are refused.
        let is_fine = report.faults.is_empty() || name.kind == PolicyKind::Request;
        assert!(is_fine, "{name}: {:?}", report.faults);
    }
    MeshEvent::Access(change.policies, change.causes)
}

/// Returns the event for policies of namespace `ns`, each with a kind and a spec.
fn event(policies: &[(&str, Value)]) -> MeshEvent {
    let object = |(at, (kind, spec)): (usize, &(&str, Value))| {
        json!({
            "apiVersion": "security.istio.io/v1",
            "kind": kind,
            "metadata": { "namespace": "ns", "name": format!("p{at}") },
            "spec": spec,
        })
    };
    event_with_root("root", policies.iter().enumerate().map(object))
}

/// Returns the mesh after these events, with a pod with the label `app` that serves these ports,
/// and the sidecar of the pod.
pub(super) fn guarded_by(
    (namespace, label): (&str, &str),
    ports: Vec<Port>,
    events: impl IntoIterator<Item = MeshEvent>,
) -> (Arc<PushContext>, Proxy) {
    let name = format!("client.{namespace}");
    let mut app = service(&format!("app.{namespace}")).vip("10.1.0.1").ports(ports);
    app.selector = labels(&[("app", label)]);
    let pod = workload(&name, "10.0.0.1", &[("app", label)]);
    let mut mesh = mesh();
    let update = shard("east", 1).network("n1").with(app, vec![]).pod(pod).built();
    mesh.apply(MeshEvent::Registry(update));
    events.into_iter().for_each(|event| mesh.apply(event));
    mesh.apply(MeshEvent::Complete);
    (mesh.next_version().expect("a first version").0, sidecar(&name, "east"))
}

/// Returns the mesh of a pod in namespace `ns` with these policies, and the sidecar of the pod.
fn guarded(ports: Vec<Port>, policies: &[(&str, Value)]) -> (Arc<PushContext>, Proxy) {
    guarded_by(("ns", "app"), ports, [event(policies)])
}

fn inbound_listener(ports: Vec<Port>, policies: &[(&str, Value)]) -> Value {
    let (context, proxy) = guarded(ports, policies);
    listeners(&context, &proxy).remove("virtualInbound").expect("a sidecar has one")
}

fn peer(mode: &str, ports: Value) -> (&'static str, Value) {
    let spec = json!({
        "selector": { "matchLabels": { "app": "app" } },
        "mtls": { "mode": mode },
        "portLevelMtls": ports,
    });
    ("PeerAuthentication", spec)
}

fn inbound_chains(listener: &Value) -> Vec<String> {
    chains(listener).into_iter().filter(|line| !line.contains("BlackHole")).collect()
}

#[test]
fn each_mode_accepts_its_connections_on_ports_of_every_kind() {
    let to = "inbound|8080||";
    let rest = "InboundPassthroughCluster";
    let http = "[istio-http/1.0 istio-http/1.1 istio-h2]";
    let cases = [
        ("STRICT", "http", vec![format!("8080 tls mtls -> http {to}")]),
        ("STRICT", "tcp", vec![format!("8080 tls mtls -> tcp {to}")]),
        (
            "STRICT",
            "",
            vec![
                format!("8080 tls {http} mtls -> http {to}"),
                format!("8080 tls mtls -> tcp {to}"),
            ],
        ),
        ("DISABLE", "http", vec![format!("8080 raw_buffer -> http {to}")]),
        ("DISABLE", "tcp", vec![format!("8080 raw_buffer -> tcp {to}")]),
        (
            "DISABLE",
            "",
            vec![
                format!("8080 raw_buffer [http/1.1 h2c] -> http {to}"),
                format!("8080 raw_buffer -> tcp {to}"),
            ],
        ),
    ];
    for (mode, protocol, expected) in cases {
        let listener = inbound_listener(vec![port(protocol, 80, 8080)], &[peer(mode, Value::Null)]);
        let found = inbound_chains(&listener);
        let own: Vec<_> = found.iter().filter(|line| line.starts_with("8080")).cloned().collect();
        assert_eq!(own, expected, "{mode} {protocol}");
        let others = if mode == "STRICT" {
            [format!("tls {http} mtls -> http {rest}"), format!("tls mtls -> tcp {rest}")]
        } else {
            [
                format!("raw_buffer [http/1.1 h2c] -> http {rest}"),
                format!("raw_buffer -> tcp {rest}"),
            ]
        };
        assert_eq!(found[own.len()..], others, "{mode}");
        // Without an accepted TLS connection there is no TLS inspector.
        let inspectors = listener["listener_filters"].to_string();
        assert_eq!(inspectors.contains("tls_inspector"), mode == "STRICT", "{mode}");
    }
}

#[test]
fn port_modes_apply_with_and_without_a_service() {
    let ports = json!({ "8080": { "mode": "DISABLE" }, "9090": { "mode": "DISABLE" } });
    let listener = inbound_listener(vec![port("http", 80, 8080)], &[peer("STRICT", ports)]);
    let found = inbound_chains(&listener);
    let count = |port: &str| found.iter().filter(|line| line.starts_with(port)).count();
    assert_eq!(found[0], "8080 raw_buffer -> http inbound|8080||");
    assert_eq!((count("8080"), count("9090"), count("tls")), (1, 2, 2), "{found:?}");
    let inspectors = listener["listener_filters"].as_array().expect("a list");
    let tls = inspectors.iter().find(|one| one["name"].to_string().contains("tls_inspector"));
    let disabled = tls.expect("others take TLS")["filter_disabled"].to_string();
    assert!(disabled.contains("8080") && disabled.contains("9090"), "{disabled}");
}

fn filters(listener: &Value, port: u64) -> Vec<Value> {
    let chains = listener["filter_chains"].as_array().expect("a list");
    let own = chains
        .iter()
        .filter(|chain| chain["filter_chain_match"]["destination_port"].as_u64() == Some(port));
    own.flat_map(|chain| chain["filters"].as_array().cloned().expect("a list")).collect()
}

#[test]
fn rbac_filters_precede_all_responding_filters_in_order_of_evaluation() {
    let policy = |action: &str| {
        let spec = json!({ "action": action, "rules": [{ "to": [{ "operation": { "ports": ["8080"] } }] }] });
        ("AuthorizationPolicy", spec)
    };
    let all = [policy("ALLOW"), policy("AUDIT"), policy("DENY")];
    let listener = inbound_listener(vec![port("http", 80, 8080), port("tcp", 81, 8081)], &all);
    let manager = &filters(&listener, 8080)[0]["typed_config"];
    let http = manager["http_filters"].as_array().expect("a list");
    let action = |filter: &Value| text(&filter["typed_config"]["rules"]["action"]);
    assert_eq!([action(&http[0]), action(&http[1])], ["LOG", "DENY"]);
    // ALLOW is the default value, which JSON omits.
    let key = &http[2]["typed_config"]["rules"]["policies"]["ns[ns]-policy[p0]-rule[0]"];
    assert!(key["permissions"].to_string().contains("8080"), "{key}");
    assert_eq!(http.last().expect("a router")["name"], "envoy.filters.http.router");
    let tcp = filters(&listener, 8081);
    let names: Vec<_> = tcp[..4].iter().map(|filter| text(&filter["name"])).collect();
    let rbac = "envoy.filters.network.rbac";
    assert_eq!(names, [rbac, rbac, rbac, "envoy.filters.network.tcp_proxy"]);
    // Without a rule on paths, paths stay unchanged.
    assert_eq!(manager["merge_slashes"], Value::Null);
}

#[test]
fn allow_without_rules_denies_and_path_rules_merge_slashes() {
    let (context, proxy) =
        guarded(vec![port("http", 80, 8080)], &[("AuthorizationPolicy", json!({}))]);
    let listener = listeners(&context, &proxy).remove("virtualInbound").expect("one");
    let manager = &filters(&listener, 8080)[0]["typed_config"];
    let policies = &manager["http_filters"][0]["typed_config"]["rules"]["policies"];
    assert!(policies.to_string().contains("not_rule"), "{policies}");
    let paths = json!({ "rules": [{ "to": [{ "operation": { "paths": ["/a"] } }] }] });
    let listener =
        inbound_listener(vec![port("http", 80, 8080)], &[("AuthorizationPolicy", paths)]);
    let manager = &filters(&listener, 8080)[0]["typed_config"];
    assert_eq!(manager["merge_slashes"], true, "repeated slashes do not bypass a rule on paths");
    let deny = &manager["http_filters"][0]["typed_config"]["rules"];
    assert_eq!(deny["action"], "DENY");
    assert!(deny["policies"]["dot-segments-with-parameters"].is_object(), "{deny}");
}

/// 4.3: endpoints whose workloads accept no mTLS are reached in plain text, and only their
/// assignments are sent again.
#[test]
fn plain_text_endpoints_state_their_mode() {
    let mut mesh = mesh();
    let app = service("app.ns").vip("10.1.0.1").ports(vec![port("http", 80, 8080)]);
    let other = service("other.ns").vip("10.1.0.2").ports(vec![port("http", 80, 8080)]);
    let pod = |name: &str, address: &str, label: &str| workload(name, address, &[("app", label)]);
    let pod_endpoint = |name: &str, address: &str| {
        let mut endpoint = at(address, "http", 8080);
        endpoint.workload = Some(Arc::new(strait_model::WorkloadKey::new("ns", name)));
        endpoint
    };
    let update = shard("east", 1)
        .network("n1")
        .with(app, vec![pod_endpoint("a", "10.0.0.2"), pod_endpoint("b", "10.0.0.3")])
        .with(other, vec![pod_endpoint("b", "10.0.0.3")])
        .pod(pod("a.ns", "10.0.0.2", "app"))
        .pod(pod("b.ns", "10.0.0.3", "other"))
        .built();
    mesh.apply(MeshEvent::Registry(update));
    mesh.apply(MeshEvent::Complete);
    mesh.next_version().expect("a first version");
    mesh.apply(event(&[peer("DISABLE", Value::Null)]));
    let (context, changes) = mesh.next_version().expect("a second");
    let hosts: Vec<_> = changes.endpoints().map(ToString::to_string).collect();
    assert_eq!(hosts, ["app.ns.svc.cluster.local"]);
    let name = "outbound|80||app.ns.svc.cluster.local";
    let assignment = named_resource(&context, &client(), ResourceType::Endpoint, name);
    let endpoints = assignment["endpoints"][0]["lb_endpoints"].as_array().expect("a list");
    let mode = |at: usize| {
        let metadata = &endpoints[at]["metadata"]["filter_metadata"];
        metadata["envoy.transport_socket_match"]["tlsMode"].clone()
    };
    assert_eq!([mode(0), mode(1)], [json!("disabled"), Value::Null]);
    // The stored record from the source does not change, because it is persisted for restarts.
    let (_, record) = context.services[&host("app.ns")].reported().next().expect("a shard");
    assert!(record.endpoints.iter().all(|one| one.tls_mode == strait_model::TlsMode::Istio));
    mesh.apply(event(&[]));
    let (context, _) = mesh.next_version().expect("a third");
    let assignment = named_resource(&context, &client(), ResourceType::Endpoint, name);
    assert!(!assignment.to_string().contains("disabled"), "{assignment}");
}
