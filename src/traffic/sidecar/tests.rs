use serde_json::json;

use super::*;
use crate::fixtures::kind_settings;
use crate::model::{ISTIO_NETWORKING, ObjectKey};
use crate::traffic::selection::Selectors;

fn read(namespace: &str, name: &str, spec: &Value) -> (Sidecar, Vec<Reason>) {
    let key = ObjectKey {
        kind: "Sidecar".into(),
        group: ISTIO_NETWORKING.into(),
        namespace: namespace.into(),
        name: name.into(),
    };
    let object = json!({ "spec": spec });
    Sidecar::read(ObjectMeta::of(&key, &object), &object, &kind_settings()).expect("it is read")
}

/// All of these in force.
fn all(objects: &[(&str, &str, Value)]) -> (Sidecars, Selectors) {
    let (mut sidecars, mut selectors) = (Sidecars::default(), Selectors::default());
    for (namespace, name, spec) in objects {
        let sidecar = Arc::new(read(namespace, name, spec).0);
        let mut changes = TrafficChanges::default();
        let root_namespace = &kind_settings().root_namespace;
        let into =
            ScopedInForce { selectors: &mut selectors, changes: &mut changes, root_namespace };
        sidecars.insert(&sidecar, into);
        assert!(changes.scopes.contains(*namespace), "{changes:?}");
    }
    (sidecars, selectors)
}

fn host(text: &str) -> HostPattern {
    HostPattern::of_service(&text.into())
}

fn hosts(all: &[&str]) -> Value {
    json!({ "egress": [{ "hosts": all }] })
}

#[test]
fn hosts_import_services_of_their_namespaces() {
    let services = [
        ("a.shop.svc.cluster.local", "shop"),
        ("b.pay.svc.cluster.local", "pay"),
        ("api.example", "pay"),
        ("*.wild.example", "shop"),
    ];
    let cases: [(&[&str], [bool; 4]); 12] = [
        (&["*/*"], [true, true, true, true]),
        (&["./*"], [true, false, false, true]),
        (&["pay/*"], [false, true, true, false]),
        (&["pay/*.svc.cluster.local"], [false, true, false, false]),
        (&["*/a.shop.svc.cluster.local"], [true, false, false, false]),
        (&["pay/a.shop.svc.cluster.local"], [false, false, false, false]),
        // An entry for a name below a wildcard is not the wildcard.
        (&["*/a.wild.example"], [false, false, false, false]),
        (&["*/*.example"], [false, false, true, true]),
        (&["*/*", "~pay/*"], [true, false, false, true]),
        (&["*/*", "~/api.example"], [true, true, false, true]),
        (&["./*", "~*/*.shop.svc.cluster.local"], [false, false, false, true]),
        (&["~/*"], [false, false, false, false]),
    ];
    for (said, wanted) in cases {
        let (sidecars, _) = all(&[("shop", "one", hosts(said))]);
        let namespace = "shop".into();
        let scope = sidecars.scope(&namespace, &Selection::default());
        let found = services.map(|(name, owner)| scope.includes(&host(name), &owner.into()));
        assert_eq!(found, wanted, "{said:?}");
        let may = services
            .map(|(name, owner)| sidecars.may_include(&namespace, &host(name), &owner.into()));
        assert_eq!(may, wanted, "{said:?}");
    }
}

#[test]
fn rules_hold_where_any_host_of_theirs_is_imported() {
    let (sidecars, _) =
        all(&[("shop", "one", hosts(&["./a.shop.svc.cluster.local", "pay/*", "~/b.example"]))]);
    let namespace = "shop".into();
    let scope = sidecars.scope(&namespace, &Selection::default());
    for (name, owner, wanted) in [
        ("a.shop.svc.cluster.local", "shop", true),
        // By the namespace of the rules, not of the host.
        ("a.shop.svc.cluster.local", "other", false),
        ("a.shop.svc.cluster.local", "pay", true),
        ("*.svc.cluster.local", "shop", true),
        ("b.shop.svc.cluster.local", "shop", false),
        ("b.example", "pay", false),
    ] {
        assert_eq!(scope.includes_rules(&host(name), &owner.into()), wanted, "{name} of {owner}");
    }
}

#[test]
fn port_of_its_own_listener_is_taken_by_that_alone() {
    let spec = json!({ "egress": [
        { "port": { "number": 9000, "protocol": "TCP" }, "hosts": ["pay/*"] },
        { "hosts": ["./*"] },
    ] });
    let (sidecars, _) = all(&[("shop", "one", spec)]);
    let namespace = "shop".into();
    let scope = sidecars.scope(&namespace, &Selection::default());
    assert!(scope.is_by_port());
    for (owner, port, wanted) in
        [("shop", 80, true), ("shop", 9000, false), ("pay", 80, false), ("pay", 9000, true)]
    {
        let found = scope.includes_port(&host("x.example"), &owner.into(), port);
        assert_eq!(found, wanted, "{owner} {port}");
    }
}

#[test]
fn one_sidecar_decides_for_a_proxy() {
    let with = |labels: Value, said: &str| {
        let mut spec = hosts(&[said]);
        spec["workloadSelector"] = json!({ "labels": labels });
        spec
    };
    let (sidecars, selectors) = all(&[
        ("istio-system", "default", hosts(&["./*"])),
        ("istio-system", "gateways", with(json!({ "app": "gw" }), "*/*")),
        ("shop", "a", hosts(&["pay/*"])),
        ("shop", "b", hosts(&["*/*"])),
        ("shop", "of-db", with(json!({ "app": "db" }), "db/*")),
    ]);
    let decides = |namespace: &str, labels: &[(&str, &str)]| {
        let labels = labels.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect();
        let namespace = namespace.into();
        let selection = selectors.selection(&namespace, &labels);
        let scope = sidecars.scope(&namespace, &selection);
        scope.sidecar().map(|sidecar| sidecar.meta.to_string())
    };
    assert_eq!(decides("shop", &[]).as_deref(), Some("shop/a"));
    assert_eq!(decides("shop", &[("app", "db")]).as_deref(), Some("shop/of-db"));
    assert_eq!(decides("pay", &[("app", "gw")]).as_deref(), Some("istio-system/default"));
    assert_eq!(decides("istio-system", &[("app", "gw")]).as_deref(), Some("istio-system/gateways"));
    // The default holds as if it stood in the proxy's namespace.
    let pay = "pay".into();
    let scope = sidecars.scope(&pay, &Selection::default());
    assert!(scope.includes(&host("x.example"), &pay));
    assert!(!scope.includes(&host("x.example"), &"istio-system".into()));

    let loss = |namespace: &str, name: &str| {
        let (sidecar, _) = read(namespace, name, &json!({}));
        sidecars.loss(&sidecar.meta).map(|reason| reason.text)
    };
    assert_eq!(loss("shop", "a"), None);
    assert_eq!(loss("shop", "of-db"), None);
    let text = loss("shop", "b").expect("it is younger");
    assert!(text.contains("shop/a is older"), "{text}");
}

#[test]
fn what_is_not_followed_is_said() {
    let spec = json!({
        "ingress": [{ "port": { "number": 80 } }],
        "inboundConnectionPool": {},
        "outboundTrafficPolicy": { "egressProxy": { "host": "a.b" } },
        "egress": [
            { "hosts": ["shop", "/x.y", "shop/short", "shop/*x", "./*"], "bind": "127.0.0.1", "captureMode": "NONE" },
            { "port": { "number": 70000 }, "hosts": ["./*"] },
            { "port": { "number": 8080, "protocol": "HTTP_PROXY" }, "hosts": ["./*"] },
        ],
    });
    let (sidecar, reasons) = read("shop", "one", &spec);
    let paths: Vec<_> = reasons.iter().map(|reason| reason.path.as_str()).collect();
    assert_eq!(
        paths,
        [
            "spec.ingress",
            "spec.inboundConnectionPool",
            "spec.outboundTrafficPolicy.egressProxy",
            "spec.outboundTrafficPolicy",
            "spec.egress[0].bind",
            "spec.egress[0].captureMode",
            "spec.egress[0].hosts[0]",
            "spec.egress[0].hosts[1]",
            "spec.egress[0].hosts[2]",
            "spec.egress[0].hosts[3]",
            "spec.egress[1].port.number",
            "spec.egress[2].port.protocol",
        ]
    );
    assert_eq!(sidecar.outbound, Some(OutboundTrafficPolicy::RegistryOnly));
    assert_eq!(sidecar.egress.len(), 1);
    let (empty, reasons) = read("shop", "one", &json!({}));
    assert_eq!((empty.egress, reasons.len()), (vec![EgressListener::of_everything()], 0));
}
