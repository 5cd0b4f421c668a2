//! mTLS modes of ports, with policies on all levels.

use super::*;

fn modes(
    policies: &AccessPolicies,
    namespace: &str,
    own: &[(&str, &str)],
    is_known: bool,
) -> PeerModes {
    let subject =
        AccessSubject { namespace: &Namespace::from(namespace), labels: &labels(own), is_known };
    policies.of(subject).modes
}

fn mode(
    policies: &AccessPolicies,
    namespace: &str,
    own: &[(&str, &str)],
    port: u16,
) -> &'static str {
    modes(policies, namespace, own, true).of_port(port).mode.as_str()
}

fn mtls(mode: &str) -> Value {
    json!({ "mtls": { "mode": mode } })
}

fn web_spec(mode: &str, ports: Value) -> Value {
    json!({
        "selector": { "matchLabels": { "app": "web" } },
        "mtls": { "mode": mode },
        "portLevelMtls": ports,
    })
}

#[test]
fn narrowest_level_with_a_mode_takes_precedence() {
    let mut index = index();
    let web = [("app", "web")];
    let policies = index.hold([]);
    assert_eq!(mode(&policies, "shop", &web, 80), "PERMISSIVE");
    let mesh_policy = peer(ROOT, "mesh", mtls("STRICT"));
    let policies = index.hold([mesh_policy.clone()]);
    assert_eq!(mode(&policies, "shop", &web, 80), "STRICT");
    let namespace_policy = peer("shop", "all", mtls("DISABLE"));
    let policies = index.hold([mesh_policy.clone(), namespace_policy.clone()]);
    assert_eq!(mode(&policies, "shop", &web, 80), "DISABLE");
    assert_eq!(mode(&policies, "other", &web, 80), "STRICT");
    let ports = json!({ "9090": { "mode": "STRICT" }, "7070": { "mode": "UNSET" } });
    let web_policy = peer("shop", "web", web_spec("PERMISSIVE", ports));
    let policies = index.hold([mesh_policy, namespace_policy, web_policy]);
    let found = [80, 9090, 7070].map(|port| mode(&policies, "shop", &web, port));
    assert_eq!(found, ["PERMISSIVE", "STRICT", "PERMISSIVE"]);
    assert_eq!(mode(&policies, "shop", &[("app", "db")], 9090), "DISABLE");
}

/// F-8: port modes of a workload whose own mode is not set.
#[test]
fn port_modes_apply_without_a_workload_mode() {
    let mut index = index();
    let ports = json!({ "9090": { "mode": "DISABLE" } });
    let spec = json!({ "selector": { "matchLabels": { "app": "web" } }, "portLevelMtls": ports });
    let policies = index.hold([peer(ROOT, "mesh", mtls("STRICT")), peer("shop", "web", spec)]);
    assert_eq!(mode(&policies, "shop", &[("app", "web")], 9090), "DISABLE");
    assert_eq!(mode(&policies, "shop", &[("app", "web")], 80), "STRICT");
    let ports = json!({ "9090": { "mode": "STRICT" } });
    let policies = index.hold([
        peer(ROOT, "mesh", mtls("STRICT")),
        peer("shop", "web", web_spec("PERMISSIVE", ports)),
    ]);
    assert_eq!(mode(&policies, "shop", &[("app", "web")], 9090), "STRICT");
}

#[test]
fn oldest_policy_takes_precedence_then_the_first_by_name() {
    let aged = |name: &str, mode: &str, time: &str| {
        let mut object = peer("shop", name, mtls(mode));
        object["metadata"]["creationTimestamp"] = time.into();
        object
    };
    let (old, new) = ("2026-01-01T00:00:00Z", "2026-02-01T00:00:00Z");
    let policies = index().hold([aged("a", "PERMISSIVE", new), aged("b", "STRICT", old)]);
    assert_eq!(mode(&policies, "shop", &[], 80), "STRICT");
    let policies = index().hold([aged("a", "PERMISSIVE", old), aged("b", "STRICT", old)]);
    assert_eq!(mode(&policies, "shop", &[], 80), "PERMISSIVE");
}

#[test]
fn selector_in_the_root_namespace_is_ignored_with_a_warning() {
    let mut index = index();
    let policies = index.hold([peer(ROOT, "web", web_spec("STRICT", Value::Null))]);
    for namespace in ["shop", ROOT] {
        assert_eq!(mode(&policies, namespace, &[("app", "web")], 80), "PERMISSIVE");
    }
    let (_, report) = policies.reports().next().expect("a report");
    assert_eq!(report.faults[0].code.id, "STR0823");
}

/// Labels of unknown proxies are claims, which must not remove them from a strict policy.
#[test]
fn unknown_proxy_is_as_strict_as_any_workload_of_its_namespace() {
    let ports = json!({ "9090": { "mode": "STRICT" } });
    let spec = json!({ "selector": { "matchLabels": { "app": "web" } }, "portLevelMtls": ports });
    let policies = index().hold([peer("shop", "web", spec)]);
    let claims = modes(&policies, "shop", &[("app", "else")], false);
    assert_eq!(claims.of_port(9090).mode, PeerMode::Strict);
    assert_eq!(claims.of_port(80).mode, PeerMode::Permissive);
    // Claimed labels do not remove a proxy from the policy of the whole namespace either.
    let open = web_spec("PERMISSIVE", json!({ "9090": { "mode": "DISABLE" } }));
    let policies = index().hold([peer("shop", "all", mtls("STRICT")), peer("shop", "web", open)]);
    let web_modes = |is_known| modes(&policies, "shop", &[("app", "web")], is_known);
    let [verified, claimed] = [true, false].map(web_modes);
    for port in [80, 9090] {
        assert_ne!(verified.of_port(port).mode, PeerMode::Strict, "{port}");
        assert_eq!(claimed.of_port(port).mode, PeerMode::Strict, "{port}");
    }
}

#[test]
fn unreadable_mode_keeps_the_last_valid_version() {
    for (errors, without) in
        [(PolicyErrors::Narrow, "PERMISSIVE"), (PolicyErrors::Strict, "STRICT")]
    {
        let mut index = AccessIndex::new(settings(errors));
        let policies = index.hold([peer("shop", "all", mtls("STRIKT"))]);
        assert_eq!(mode(&policies, "shop", &[], 80), without);
        index.hold([peer("shop", "all", mtls("STRICT"))]);
        let policies = index.hold([peer("shop", "all", mtls("PERMISIVE"))]);
        assert_eq!(mode(&policies, "shop", &[], 80), "STRICT", "its last good form");
        let (_, report) = policies.reports().next().expect("a report");
        assert_eq!(report.state, PolicyState::Refused);
        let codes: Vec<_> = report.faults.iter().map(|fault| fault.code.id).collect();
        assert_eq!(codes, ["STR0820", "STR0821"]);
        assert_eq!(index.last_valid_objects().len(), 1, "kept over a restart");
    }
}

/// A policy that cannot be read does not replace a readable one.
#[test]
fn policy_that_was_never_valid_changes_no_mode() {
    let broken = [
        web_spec("STRIKT", json!({ "80": { "mode": "STRICT" } })),
        web_spec("DISABLE", json!({ "80": { "mode": "STRIKT" } })),
        json!({ "selector": { "matchLabels": { "app": "w*" } }, "mtls": { "mode": "DISABLE" } }),
        json!({ "mtls": { "mode": "DISABLE" }, "mtl": {} }),
        json!([]),
    ];
    for spec in broken {
        let good = peer("shop", "b", web_spec("STRICT", json!({ "80": { "mode": "PERMISSIVE" } })));
        let objects = [good, peer("shop", "a", spec.clone())];
        let modes_under = |errors| {
            let mut index = AccessIndex::new(settings(errors));
            let policies = index.hold(objects.clone());
            [80, 81].map(|port| mode(&policies, "shop", &[("app", "web")], port))
        };
        assert_eq!(modes_under(PolicyErrors::Narrow), ["PERMISSIVE", "STRICT"], "{spec}");
        // Among the policies that select by labels, only the first by name applies.
        let strict = modes_under(PolicyErrors::Strict);
        let by_labels = spec["selector"]["matchLabels"]["app"] == "web";
        assert_eq!(strict, [if by_labels { "STRICT" } else { "PERMISSIVE" }, "STRICT"], "{spec}");
    }
}

/// A namespace that requires mTLS gets it, whatever else its policy contains.
#[test]
fn strict_mode_applies_despite_unreadable_parts() {
    let with = |mut spec: Value, name: &str, value: Value| {
        spec[name] = value;
        spec
    };
    for spec in [
        with(mtls("STRICT"), "portLevelMtls", json!({ "80": { "mode": "DISABLE" } })),
        with(mtls("STRICT"), "mtl", json!({})),
        web_spec("STRICT", json!({ "0": { "mode": "DISABLE" } })),
        web_spec("STRICT", json!({ "80": { "mode": "OFF" } })),
    ] {
        let policies = index().hold([peer("shop", "a", spec.clone())]);
        assert_eq!(mode(&policies, "shop", &[("app", "web")], 80), "STRICT", "{spec}");
        let (_, report) = policies.reports().next().expect("a report");
        assert_eq!(report.state, PolicyState::Partly, "{spec}");
    }
    // The readable port modes apply too.
    let spec = web_spec("STRICT", json!({ "80": { "mode": "PERMISSIVE" }, "x": {} }));
    let policies = index().hold([peer("shop", "a", spec)]);
    assert_eq!(mode(&policies, "shop", &[("app", "web")], 80), "PERMISSIVE");
    assert_eq!(mode(&policies, "shop", &[("app", "web")], 81), "STRICT");
}

#[test]
fn faults_of_a_peer_authentication_have_a_path() {
    let cases = [
        (json!({ "portLevelMtls": { "80": {} } }), "spec.portLevelMtls"),
        (web_spec("STRICT", json!({})), "spec.portLevelMtls"),
        (web_spec("STRICT", json!({ "0": {} })), "spec.portLevelMtls.0"),
        (web_spec("STRICT", json!({ "70000": {} })), "spec.portLevelMtls.70000"),
        (json!({ "mtls": { "mode": "strict" } }), "spec.mtls.mode"),
        (json!({ "mtl": {} }), "spec.mtl"),
        (
            json!({ "selector": { "matchLabels": { "app": "w*" } } }),
            "spec.selector.matchLabels.app",
        ),
    ];
    for (spec, path) in cases {
        let policies = index().hold([peer("shop", "a", spec.clone())]);
        let (name, report) = policies.reports().next().expect("a report");
        assert_eq!(report.faults[0].path, path, "{name}: {spec}");
    }
}

#[test]
fn replaced_peer_authentication_reports_its_replacement() {
    let web_ports_policy = |name: &str, ports: Value| {
        let selector = json!({ "matchLabels": { "app": "web" } });
        peer("shop", name, json!({ "selector": selector, "portLevelMtls": ports }))
    };
    let strict = json!({ "mode": "STRICT" });
    let open = json!({ "mode": "PERMISSIVE" });
    let labels = labels(&[("app", "web")]);
    let shop = Namespace::from("shop");
    let subject = AccessSubject { namespace: &shop, labels: &labels, is_known: true };
    let replaced = |objects: Vec<Value>, name: &str| {
        let policies = index().hold(objects);
        let replaced = policies.replacing_peer(&WorkloadKey::new(shop.clone(), name), subject)?;
        Some((replaced.by.name.to_string(), replaced.is_more_open))
    };
    let split = vec![
        web_ports_policy("a", json!({ "80": strict })),
        web_ports_policy("b", json!({ "90": strict })),
    ];
    assert_eq!(replaced(split.clone(), "a"), None);
    assert_eq!(replaced(split.clone(), "b"), Some(("a".to_owned(), true)));
    let mesh_policy = peer(ROOT, "mesh", mtls("STRICT"));
    let with_mesh = [vec![mesh_policy], split].concat();
    assert_eq!(replaced(with_mesh, "b"), Some(("a".to_owned(), false)));
    let looser = vec![
        web_ports_policy("a", json!({ "80": strict })),
        web_ports_policy("b", json!({ "80": open })),
    ];
    assert_eq!(replaced(looser, "b"), Some(("a".to_owned(), false)));
    // A port that the applying policy opens also counts as more open.
    let opened = vec![
        web_policy("a", "STRICT", json!({ "80": open })),
        web_policy("b", "STRICT", json!({ "90": strict })),
    ];
    assert_eq!(replaced(opened, "b"), Some(("a".to_owned(), true)));
}

fn web_policy(name: &str, mode: &str, ports: Value) -> Value {
    peer("shop", name, web_spec(mode, ports))
}
