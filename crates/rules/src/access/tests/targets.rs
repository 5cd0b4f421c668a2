//! Policies that target Gateways.

use super::*;

fn naming(namespace: &str, action: &str, targets: Value) -> Value {
    let rules = json!([{ "to": [{ "operation": { "paths": ["/admin"] } }] }]);
    let mut spec = json!({ "action": action, "rules": rules });
    for (name, value) in targets.as_object().expect("fields") {
        spec[name] = value.clone();
    }
    object("AuthorizationPolicy", namespace, "p", spec)
}

fn gateway(name: &str) -> Value {
    json!({ "group": "gateway.networking.k8s.io", "kind": "Gateway", "name": name })
}

/// Returns how many policies apply to a workload of `shop` with these labels.
fn count_applied(object: Value, own_labels: &[(&str, &str)], is_known: bool) -> usize {
    let (labels, namespace) = (labels(own_labels), Namespace::from("shop"));
    let policies = index().hold([object]);
    let subject = AccessSubject { namespace: &namespace, labels: &labels, is_known };
    policies.of(subject).policies.len()
}

const PUBLIC: &[(&str, &str)] =
    &[("app", "gw"), ("gateway.networking.k8s.io/gateway-name", "public")];
const PLAIN: &[(&str, &str)] = &[("app", "gw")];

#[test]
fn policy_for_a_gateway_applies_to_its_proxies_in_the_same_namespace() {
    let deny_policy = |targets: Value| naming("shop", "DENY", targets);
    let named = deny_policy(json!({ "targetRefs": [gateway("public")] }));
    assert_eq!(count_applied(named.clone(), PUBLIC, true), 1);
    assert_eq!(count_applied(named, PLAIN, true), 0);
    assert_eq!(
        count_applied(deny_policy(json!({ "targetRefs": [gateway("private")] })), PUBLIC, true),
        0
    );
    assert_eq!(
        count_applied(
            deny_policy(json!({ "targetRefs": [gateway("private"), gateway("public")] })),
            PUBLIC,
            true
        ),
        1
    );
    let mesh_policy = naming(ROOT, "DENY", json!({ "targetRefs": [gateway("public")] }));
    assert_eq!(count_applied(mesh_policy, PUBLIC, true), 0);
    // `targetRef` applies if `targetRefs` is empty, and is ignored otherwise.
    assert_eq!(
        count_applied(
            deny_policy(json!({ "targetRef": gateway("public"), "targetRefs": [] })),
            PUBLIC,
            true
        ),
        1
    );
    let both_fields = json!({ "targetRef": gateway("public"), "targetRefs": [gateway("private")] });
    assert_eq!(count_applied(deny_policy(both_fields), PUBLIC, true), 0);
    // Without targets, the policy selects by labels, and without labels the whole namespace.
    let by_labels = json!({ "selector": { "matchLabels": { "app": "gw" } } });
    assert_eq!(count_applied(deny_policy(by_labels), PUBLIC, true), 1);
    assert_eq!(count_applied(deny_policy(json!({})), PUBLIC, true), 1);
}

#[test]
fn unsupported_target_selects_no_proxy_with_a_warning() {
    let mut foreign = gateway("public");
    foreign["namespace"] = "pay".into();
    let target =
        |group: &str, kind: &str| json!({ "group": group, "kind": kind, "name": "public" });
    let unsupported = [
        (target("", "Service"), "only at waypoint proxies"),
        (target("networking.istio.io", "ServiceEntry"), "only at waypoint proxies"),
        (target("gateway.networking.k8s.io", "GatewayClass"), "only at waypoint proxies"),
        (target("networking.istio.io", "Gateway"), "targets may only be Gateways of"),
        (foreign, "is in namespace pay"),
    ];
    for (target, fact) in unsupported {
        let object = naming("shop", "DENY", json!({ "targetRefs": [target] }));
        assert_eq!(count_applied(object.clone(), PUBLIC, true), 0, "{target}");
        let policies = index().hold([object]);
        let (_, report) = policies.reports().next().expect("one");
        let warnings: Vec<_> = report.faults.iter().map(|one| (one.code.id, &*one.path)).collect();
        assert_eq!(warnings, [("STR0823", "spec.targetRefs[0]")], "{target}");
        assert!(report.faults[0].text.contains(fact), "{}", report.faults[0].text);
        assert!(report.selector.as_ref().is_some_and(PolicySelector::is_empty), "{target}");
    }
}

#[test]
fn unknown_gateway_proxy_cannot_evade_a_deny_policy() {
    let named = |action: &str| naming("shop", action, json!({ "targetRefs": [gateway("public")] }));
    assert_eq!(count_applied(named("DENY"), PLAIN, false), 1);
    assert_eq!(count_applied(named("ALLOW"), PLAIN, false), 0);
    let mesh_policy = naming(ROOT, "DENY", json!({ "targetRefs": [gateway("public")] }));
    assert_eq!(count_applied(mesh_policy, PLAIN, false), 0);
}

#[test]
fn deny_policy_with_selector_and_targets_applies_to_all() {
    let both = json!({
        "selector": { "matchLabels": { "app": "db" } }, "targetRefs": [gateway("public")],
    });
    assert_eq!(count_applied(naming("shop", "DENY", both.clone()), PLAIN, true), 1);
    assert_eq!(count_applied(naming("shop", "ALLOW", both), PLAIN, true), 0);
}
