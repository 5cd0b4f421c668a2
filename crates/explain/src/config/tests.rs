//! Status of objects with parts that another object replaces, or that no port can use.

use serde_json::{Value, json};

use super::*;
use strait_mesh::push::event_loop::{MeshEvent, MeshState};
use strait_model::registry::{Epoch, RegistryUpdate, ShardKey};
use strait_model::testing::{port, service, shard};
use strait_model::{GATEWAY_API, ISTIO_NETWORKING, ISTIO_SECURITY, ObjectJson, Port};
use strait_rules::access::{AccessChange, AccessIndex, AccessSettings, PolicyErrors};
use strait_rules::service_entry::EntryIndex;
use strait_rules::testing::kind_settings;
use strait_rules::traffic::TrafficIndex;

/// Returns the state of an object of this namespace, and the codes and paths of its reasons, next
/// to another object. The services are `web.shop` with an HTTP port, and `untyped.shop` with a port
/// without a protocol.
fn state(
    (kind, namespace): (&str, &str),
    spec: Value,
    other: Option<(&str, Value)>,
) -> (ObjectStanding, Vec<String>) {
    let object = |kind: &str, name: &str, spec: Value| {
        let is_policy = kind == "AuthorizationPolicy";
        let key = ObjectKey {
            kind: kind.into(),
            group: if is_policy { ISTIO_SECURITY } else { ISTIO_NETWORKING }.into(),
            namespace: namespace.into(),
            name: name.into(),
        };
        let metadata = json!({ "creationTimestamp": "2026-01-01T00:00:00Z" });
        (key, ObjectJson::from(json!({ "metadata": metadata, "spec": spec })))
    };
    let other = other.map(|(kind, spec)| object(kind, "other", spec));
    let objects: Collection = other.into_iter().chain([object(kind, "judged", spec)]).collect();
    let with = |name: &str, vip: &str, port: Port| {
        service(name).vip(vip).with(|service| service.ports = vec![port])
    };
    let services = shard("east", 1)
        .with(with("web.shop", "10.1.0.1", port("http", 80, 80)), vec![])
        .with(with("untyped.shop", "10.1.0.2", port("x", 7000, 7000)), vec![]);
    let mut mesh = MeshState::new(strait_mesh::testing::settings());
    mesh.apply(MeshEvent::Registry(services.built()));
    let (mut traffic, mut entries) =
        (TrafficIndex::new(kind_settings()), EntryIndex::new("cluster.local"));
    traffic.apply(&objects).map(MeshEvent::Traffic).into_iter().for_each(|one| mesh.apply(one));
    if let Some(change) = entries.apply(&objects) {
        let update = RegistryUpdate { shard: ShardKey::service_entries(), epoch: Epoch(0), change };
        mesh.apply(MeshEvent::Entries(update, Arc::clone(entries.selections())));
    }
    let access = AccessSettings { root: "root".into(), errors: PolicyErrors::Narrow };
    if let Some(AccessChange { policies, causes }) =
        AccessIndex::new(access.clone()).apply(&access, &objects)
    {
        mesh.apply(MeshEvent::Access(policies, causes));
    }
    mesh.apply(MeshEvent::Complete);
    let context = mesh.next_version().expect("a first version").0;
    let reports =
        ConfigReports { objects, traffic: traffic.reports().clone(), ..Default::default() };
    let view = ConfigView::new(&context, &reports, &[]);
    let query = ConfigQuery { name: Some("judged".to_owned()), ..ConfigQuery::default() };
    let [state] = &view.states(&query)[..] else { panic!("one object") };
    let reasons = state.reasons.iter().map(|reason| format!("{} {}", reason.code, reason.path));
    (state.state, reasons.collect())
}

#[test]
fn server_that_a_gateway_loses_serves_no_virtual_service() {
    let server = |protocol: &str, host: &str| json!({ "port": { "number": 80, "name": "a", "protocol": protocol }, "hosts": [host] });
    let gateway = json!({ "servers": [server("HTTP", "other.example"), server("TCP", "*")] });
    let object = |gateways: &[&str]| {
        let route = json!([{ "destination": { "host": "web.shop.svc.cluster.local" } }]);
        json!({ "hosts": ["web.example"], "gateways": gateways, "http": [{ "route": route }] })
    };
    for (gateways, expected) in
        [(&["other"][..], ObjectStanding::Unused), (&["other", "mesh"], ObjectStanding::Partly)]
    {
        let (state, reasons) =
            state(("VirtualService", "own"), object(gateways), Some(("Gateway", gateway.clone())));
        assert_eq!(state, expected, "{gateways:?}: {reasons:?}");
        assert!(reasons.contains(&"STR1012 spec.gateways[0]".to_owned()), "{reasons:?}");
    }
}

#[test]
fn entry_at_a_service_of_another_namespace_names_its_owner() {
    let entry = |more: Value| {
        let mut spec = json!({
            "hosts": ["a.example"], "resolution": "STATIC", "endpoints": [{ "address": "10.7.0.1" }],
            "ports": [{ "number": 8081, "name": "http", "protocol": "HTTP" }],
        });
        for (field, value) in more.as_object().expect("fields") {
            spec[field] = value.clone();
        }
        state(("ServiceEntry", "own"), spec, None)
    };
    let at_port_80 = json!([{ "number": 80, "name": "http", "protocol": "HTTP" }]);
    for (more, expected, reason) in [
        (
            json!({ "addresses": ["10.1.0.1"] }),
            ObjectStanding::InForce,
            Some("STR1112 spec.addresses[0]"),
        ),
        (json!({ "addresses": ["10.1.0.1"], "exportTo": ["."] }), ObjectStanding::InForce, None),
        (
            json!({ "hosts": ["web.shop"], "ports": at_port_80 }),
            ObjectStanding::Partly,
            Some("STR1014 spec.hosts[0]"),
        ),
        (json!({ "hosts": ["web.shop"] }), ObjectStanding::InForce, Some("STR1014 spec.hosts[0]")),
        (json!({}), ObjectStanding::InForce, None),
        (
            json!({ "hosts": ["a.example", "b.example"], "addresses": ["10.60.5.1"] }),
            ObjectStanding::InForce,
            None,
        ),
        (json!({ "endpoints": [] }), ObjectStanding::InForce, Some("STR1089 spec.endpoints")),
        (json!({ "endpoints": [], "resolution": "DNS" }), ObjectStanding::InForce, None),
    ] {
        let (state, reasons) = entry(more.clone());
        let expected_reasons: Vec<&str> = reason.into_iter().collect();
        assert_eq!(
            (state, reasons),
            (expected, expected_reasons.into_iter().map(str::to_owned).collect()),
            "{more}"
        );
    }
}

#[test]
fn policy_for_unsupported_targets_has_no_effect() {
    let state = |kinds: &[&str]| {
        let group = |kind: &str| if kind == "Gateway" { GATEWAY_API } else { "" };
        let target = |kind: &&str| json!({ "group": group(kind), "kind": kind, "name": "web" });
        let targets: Vec<_> = kinds.iter().map(target).collect();
        let rules = json!({ "targetRefs": targets, "rules": [{}] });
        state(("AuthorizationPolicy", "shop"), rules, None)
    };
    let reasons = |all: &[&str]| all.iter().map(|one| (*one).to_owned()).collect::<Vec<_>>();
    let first = reasons(&["STR0823 spec.targetRefs[0]"]);
    assert_eq!(state(&["Service"]), (ObjectStanding::Unused, first));
    let (_, without_pods) = state(&["Gateway"]);
    assert_eq!(without_pods, reasons(&["STR0828 spec.targetRefs"]));
}

#[test]
fn objects_of_unsupported_kinds_are_reported() {
    let mut mesh = MeshState::new(strait_mesh::testing::settings());
    mesh.apply(MeshEvent::Complete);
    let context = mesh.next_version().expect("a first version").0;
    for (kind, group, is_reported) in [
        ("BackendTLSPolicy", GATEWAY_API, true),
        ("XBackendTrafficPolicy", "gateway.networking.x-k8s.io", true),
        ("IstioOperator", "install.istio.io", true),
        ("AuthorizationPolicy", ISTIO_NETWORKING, true),
        ("Deployment", "apps", false),
    ] {
        let [namespace, name] = ["shop", "a"].map(Into::into);
        let key = ObjectKey { kind: kind.into(), group: group.into(), namespace, name };
        let objects = [(key, ObjectJson::from(json!({})))].into_iter().collect();
        let reports = ConfigReports { objects, ..Default::default() };
        let states = ConfigView::new(&context, &reports, &[]).states(&ConfigQuery::default());
        let codes: Vec<_> =
            states.iter().flat_map(|one| &one.reasons).map(|one| one.code).collect();
        let expected: &[&str] = if is_reported { &["STR1040"] } else { &[] };
        assert_eq!(codes, expected, "{kind}");
    }
}

#[test]
fn upgrade_of_a_port_without_a_protocol_is_reported() {
    for (host, reason) in [("web", None), ("untyped", Some("h2UpgradePolicy"))] {
        let pool = json!({ "http": { "h2UpgradePolicy": "UPGRADE" } });
        let spec = json!({
            "host": format!("{host}.shop.svc.cluster.local"), "trafficPolicy": { "connectionPool": pool },
        });
        let (_, reasons) = state(("DestinationRule", "shop"), spec, None);
        let path = |field| format!("STR1005 spec.trafficPolicy.connectionPool.http.{field}");
        assert_eq!(reasons.iter().any(|one| one.starts_with("STR1005")), reason.is_some());
        assert!(reason.is_none_or(|field| reasons.contains(&path(field))), "{reasons:?}");
    }
}
