use serde_json::json;

use super::*;
use crate::testing::kind_settings;
use crate::traffic::selection::Selectors;
use strait_model::{ISTIO_NETWORKING, ObjectKey};

fn read(namespace: &str, name: &str, spec: &Value) -> (Sidecar, Vec<Reason>) {
    let key = ObjectKey {
        kind: "Sidecar".into(),
        group: ISTIO_NETWORKING.into(),
        namespace: namespace.into(),
        name: name.into(),
    };
    let object = json!({ "spec": spec });
    Sidecar::read(ObjectMeta::from_object(&key, &object), &object, &kind_settings())
        .expect("the object is valid")
}

/// Returns the active Sidecars and selectors.
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
    HostPattern::for_service(&text.into())
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
        // An entry for a name below a wildcard does not import the wildcard.
        (&["*/a.wild.example"], [false, false, false, false]),
        (&["*/*.example"], [false, false, true, true]),
        (&["*/*", "~pay/*"], [true, false, false, true]),
        (&["*/*", "~/api.example"], [true, true, false, true]),
        (&["./*", "~*/*.shop.svc.cluster.local"], [false, false, false, true]),
        (&["~/*"], [false, false, false, false]),
    ];
    for (given, wanted) in cases {
        let (sidecars, _) = all(&[("shop", "one", hosts(given))]);
        let namespace = "shop".into();
        let scope = sidecars.scope(&namespace, &Selection::default());
        let found = services.map(|(name, owner)| scope.includes(&host(name), &owner.into()));
        assert_eq!(found, wanted, "{given:?}");
        let may = services
            .map(|(name, owner)| sidecars.may_include(&namespace, &host(name), &owner.into()));
        assert_eq!(may, wanted, "{given:?}");
    }
}

#[test]
fn rules_apply_if_any_of_their_hosts_is_imported() {
    let (sidecars, _) =
        all(&[("shop", "one", hosts(&["./a.shop.svc.cluster.local", "pay/*", "~/b.example"]))]);
    let namespace = "shop".into();
    let scope = sidecars.scope(&namespace, &Selection::default());
    for (name, owner, wanted) in [
        ("a.shop.svc.cluster.local", "shop", true),
        // The namespace of the rules decides, not that of the host.
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
fn port_with_a_listener_uses_only_that_listener() {
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
fn host_of_one_label_is_not_the_short_name_of_a_service() {
    let (sidecar, reasons) = read("shop", "one", &hosts(&["./db", "./10.0.0.1"]));
    let reported: Vec<_> = reasons.iter().map(|one| (&*one.path, one.is_lost)).collect();
    assert_eq!(reported, [("spec.egress[0].hosts[0]", false)]);
    let namespace = "shop".into();
    let sidecar = Arc::new(sidecar);
    let scope = ImportScope { sidecar: Some(&sidecar), namespace: &namespace, withheld: None };
    assert!(scope.includes(&host("db"), &namespace));
    assert!(!scope.includes(&host("db.shop.svc.cluster.local"), &namespace));
}

#[test]
fn tcp_listener_routes_to_the_only_port_of_its_service() {
    let spec = json!({ "egress": [
        { "port": { "number": 9000, "protocol": "TCP" }, "hosts": ["./db.example", "./*.wide.example"] },
        { "port": { "number": 9001, "protocol": "HTTP" }, "hosts": ["./web.example"] },
        { "hosts": ["~/*"] },
    ] });
    let (sidecars, _) = all(&[("shop", "one", spec)]);
    let namespace = "shop".into();
    let scope = sidecars.scope(&namespace, &Selection::default());
    for (name, wanted) in
        [("db.example", vec![9000]), ("a.wide.example", vec![]), ("web.example", vec![])]
    {
        let found: Vec<u16> = scope.ports_to_only(&host(name), &namespace, 5432).collect();
        assert_eq!(found, wanted, "{name}");
        let needs_port = |is_only| scope.needs_port(&host(name), &namespace, (5432, is_only));
        assert_eq!([needs_port(true), needs_port(false)], [!wanted.is_empty(), false], "{name}");
        assert!(!scope.includes_port(&host(name), &namespace, 5432), "{name}");
    }
    let own: Vec<u16> = scope.ports_to_only(&host("db.example"), &namespace, 9000).collect();
    assert!(own.is_empty(), "it is the service's own port");
}

#[test]
fn port_of_an_http_proxy_is_not_a_port_of_services() {
    let spec = json!({ "egress": [
        { "port": { "number": 3128, "protocol": "HTTP_PROXY" }, "captureMode": "NONE", "hosts": ["pay/*"] },
        { "hosts": ["./*"] },
    ] });
    let (sidecars, _) = all(&[("shop", "one", spec)]);
    let namespace = "shop".into();
    let scope = sidecars.scope(&namespace, &Selection::default());
    let at = EgressAddress { address: Ipv4Addr::LOCALHOST.into(), listens: true };
    assert_eq!(scope.proxies(), [(3128, Some(at))].into());
    let service = host("x.example");
    let found = |owner: &str, port: u16| {
        let owner = Namespace::from(owner);
        let reached = scope.includes_port(&service, &owner, port);
        let needs_port = scope.needs_port(&service, &owner, (port, false));
        (reached, needs_port, scope.proxies_to(3128, &service, &owner))
    };
    assert_eq!(found("pay", 80), (false, true, true));
    assert_eq!(found("shop", 80), (true, true, false));
    assert_eq!(found("shop", 3128), (false, false, false));
    // Two kinds of traffic cannot be distinguished at one port.
    let both = json!({ "egress": [
        { "port": { "number": 80, "protocol": "HTTP" }, "hosts": ["./*"] },
        { "port": { "number": 80, "protocol": "HTTP_PROXY" }, "hosts": ["./*"] },
    ] });
    assert_eq!(reasons_for(&both), ["STR1074 spec.egress[1].port"]);
}

#[test]
fn exactly_one_sidecar_applies_to_a_proxy() {
    let with = |labels: Value, given: &str| {
        let mut spec = hosts(&[given]);
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
    // The default applies as if it were in the proxy's namespace.
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
fn only_the_sidecar_of_a_workload_gives_it_ports() {
    let ingress = json!([{ "port": { "number": 7000, "protocol": "TCP", "name": "t" } }]);
    let labels = |app: &str| Labels::from_iter([("app".into(), app.into())]);
    let with = |spec: Value, namespace: &str| {
        let (sidecars, _) = all(&[(namespace, "s", spec)]);
        ["a", "b"].map(|app| sidecars.gives_ports(&"shop".into(), &labels(app)))
    };
    let selecting = json!({ "workloadSelector": { "labels": { "app": "a" } }, "ingress": ingress });
    assert_eq!(with(selecting, "shop"), [true, false]);
    assert_eq!(with(json!({ "ingress": ingress }), "shop"), [true, true]);
    assert_eq!(with(json!({ "ingress": ingress }), "other"), [false, false]);
}

#[test]
fn unsupported_fields_are_reported() {
    let spec = json!({
        "ingress": [{ "port": { "number": 80 }, "bind": "10.0.0.1" }],
        "inboundConnectionPool": {},
        "outboundTrafficPolicy": { "egressProxy": { "host": "a.b" } },
        "egress": [
            { "hosts": ["shop", "/x.y", "shop/short", "shop/*x", "./*"] },
            { "port": { "number": 70000 }, "hosts": ["./*"] },
        ],
    });
    let (sidecar, reasons) = read("shop", "one", &spec);
    let paths: Vec<_> = reasons.iter().map(|reason| reason.path.as_str()).collect();
    assert_eq!(
        paths,
        [
            "spec.ingress[0].bind",
            "spec.outboundTrafficPolicy",
            "spec.outboundTrafficPolicy.egressProxy",
            "spec.egress[0].hosts[0]",
            "spec.egress[0].hosts[1]",
            "spec.egress[0].hosts[2]",
            "spec.egress[0].hosts[3]",
            "spec.egress[1].port.number",
        ]
    );
    assert_eq!(sidecar.outbound, Some(OutboundTrafficPolicy::RegistryOnly));
    assert_eq!(sidecar.egress.len(), 1);
    let (empty, reasons) = read("shop", "one", &json!({}));
    assert_eq!((empty.egress, reasons.len()), (vec![EgressListener::import_all()], 0));
}

/// Returns the codes and paths of the reasons for a spec.
fn reasons_for(spec: &Value) -> Vec<String> {
    read("shop", "one", spec)
        .1
        .iter()
        .map(|reason| format!("{} {}", reason.code, reason.path))
        .collect()
}

#[test]
fn inbound_pools_report_an_upgrade_that_has_no_effect() {
    let pool = |policy: &str| json!({ "http": { "h2UpgradePolicy": policy } });
    let spec = |policy: &str| {
        json!({
            "inboundConnectionPool": pool(policy),
            "ingress": [{ "port": { "number": 80 }, "connectionPool": pool(policy) }],
        })
    };
    let expected = [
        "STR1005 spec.ingress[0].connectionPool.http.h2UpgradePolicy",
        "STR1005 spec.inboundConnectionPool.http.h2UpgradePolicy",
    ];
    assert_eq!(reasons_for(&spec("UPGRADE")), expected);
    assert_eq!(reasons_for(&spec("DO_NOT_UPGRADE")), [""; 0]);
}

#[test]
fn unknown_capture_mode_is_refused() {
    for direction in ["egress", "ingress"] {
        let listener =
            |mode: &str| json!({ "port": { "number": 80 }, "hosts": ["./*"], "captureMode": mode });
        let meta = ObjectMeta { created: 0, name: "one".into(), namespace: "shop".into() };
        let object = json!({ "spec": { direction: [listener("SOME")] } });
        let refused =
            Sidecar::read(meta, &object, &kind_settings()).expect_err("an unknown mode is refused");
        assert_eq!(refused.path, format!("spec.{direction}[0].captureMode"));
    }
}

#[test]
fn unknown_protocol_of_a_listener_is_reported() {
    let port = |protocol: &str| json!({ "number": 9000, "protocol": protocol });
    let spec = |protocol: &str| {
        json!({
            "egress": [{ "port": port(protocol), "hosts": ["./*"] }],
            "ingress": [{ "port": port(protocol), "defaultEndpoint": "127.0.0.1:8080" }],
        })
    };
    let expected =
        ["STR1005 spec.ingress[0].port.protocol", "STR1005 spec.egress[0].port.protocol"];
    let mut found = reasons_for(&spec("HTPP"));
    found.sort_by(|one, other| other.cmp(one));
    assert_eq!(found, expected);
    for protocol in ["", "HTTP", "http2", "GRPC-WEB", "TLS", "MONGO", "MYSQL", "REDIS", "TCP"] {
        assert_eq!(reasons_for(&spec(protocol)), [""; 0], "{protocol}");
    }
}

#[test]
fn invalid_ingress_listener_is_left_out_alone() {
    let good = json!({ "port": { "number": 9080, "protocol": "HTTP" }, "defaultEndpoint": "127.0.0.1:8080" });
    let cases = [
        (json!({ "port": { "number": 0 } }), "STR1072 spec.ingress[1].port.number"),
        (json!({ "port": { "number": 70000 } }), "STR1072 spec.ingress[1].port.number"),
        (
            json!({ "port": { "number": 53, "protocol": "UDP" } }),
            "STR1072 spec.ingress[1].port.protocol",
        ),
        (
            json!({ "port": { "number": 1 }, "defaultEndpoint": "10.0.0.1:80" }),
            "STR1072 spec.ingress[1].defaultEndpoint",
        ),
        (
            json!({ "port": { "number": 1 }, "defaultEndpoint": "127.0.0.1:0" }),
            "STR1072 spec.ingress[1].defaultEndpoint",
        ),
        (
            json!({ "port": { "number": 1 }, "defaultEndpoint": "unix://run/a" }),
            "STR1072 spec.ingress[1].defaultEndpoint",
        ),
        (
            json!({ "port": { "number": 1 }, "captureMode": "NONE" }),
            "STR1072 spec.ingress[1].defaultEndpoint",
        ),
        (json!({ "port": { "number": 1 }, "bind": "here" }), "STR1072 spec.ingress[1].bind"),
        (
            json!({ "port": { "number": 1 }, "tls": { "mode": "ISTIO_MUTUAL" } }),
            "STR1072 spec.ingress[1].tls.mode",
        ),
        (
            json!({ "port": { "number": 1 }, "tls": { "mode": "SIMPLE", "privateKey": "/k" } }),
            "STR1072 spec.ingress[1].tls.serverCertificate",
        ),
        (
            json!({ "port": { "number": 1 }, "tls": { "mode": "MUTUAL", "privateKey": "/k", "serverCertificate": "/c" } }),
            "STR1072 spec.ingress[1].tls.caCertificates",
        ),
        (json!({ "port": { "number": 9080 } }), "STR1072 spec.ingress[1]"),
    ];
    for (bad, wanted) in cases {
        let spec = json!({ "ingress": [good, bad] });
        assert_eq!(reasons_for(&spec), [wanted], "{bad}");
        let ingress = read("shop", "one", &spec).0.ingress.expect("there is one");
        assert_eq!(ingress.len(), 1);
        let loopback = "127.0.0.1:8080".parse().expect("an address");
        assert_eq!(ingress[0].backend, WorkloadBackend::Loopback(loopback));
    }
    // A workload with only invalid listeners does not use the ports of its services instead.
    let without_valid = json!({ "ingress": [{ "port": { "number": 0 } }] });
    assert_eq!(read("shop", "one", &without_valid).0.ingress, Some(Vec::new()));
}

#[test]
fn egress_listeners_may_have_a_separate_address() {
    let address = |spec: &Value| {
        let (sidecars, _) = all(&[("shop", "one", spec.clone())]);
        let namespace = "shop".into();
        let all =
            sidecars.scope(&namespace, &Selection::default()).addresses(Interception::Redirect);
        all.into_iter()
            .map(|(port, at)| (port, at.address.to_string(), at.listens))
            .collect::<Vec<_>>()
    };
    let listener = |more: Value| {
        let mut with_port =
            json!({ "port": { "number": 80, "protocol": "HTTP" }, "hosts": ["*/*"] });
        with_port
            .as_object_mut()
            .expect("an object")
            .extend(more.as_object().expect("an object").clone());
        json!({ "egress": [with_port, { "hosts": ["*/*"] }] })
    };
    assert_eq!(address(&listener(json!({}))), []);
    assert_eq!(
        address(&listener(json!({ "bind": "127.0.0.2" }))),
        [(80, "127.0.0.2".to_owned(), false)]
    );
    assert_eq!(
        address(&listener(json!({ "captureMode": "NONE" }))),
        [(80, "127.0.0.1".to_owned(), true)]
    );
    assert_eq!(address(&listener(json!({ "bind": "0.0.0.0" }))), []);
    for (bad, field) in [
        (json!({ "bind": "unix:///run/a" }), "bind"),
        (json!({ "bind": "nowhere" }), "bind"),
        (json!({ "bind": "0.0.0.0", "captureMode": "NONE" }), "bind"),
    ] {
        assert_eq!(reasons_for(&listener(bad)), [format!("STR1074 spec.egress[0].{field}")]);
    }
    let portless = json!({ "egress": [{ "captureMode": "NONE", "hosts": ["*/*"] }] });
    assert_eq!(reasons_for(&portless), ["STR1074 spec.egress[0].captureMode"]);
    let apart = json!({ "egress": [
        { "port": { "number": 80 }, "bind": "127.0.0.2", "hosts": ["./*"] },
        { "port": { "number": 80 }, "hosts": ["pay/*"] },
    ] });
    assert_eq!(reasons_for(&apart), ["STR1074 spec.egress[1].port"]);
}

#[test]
fn listener_without_hosts_or_with_an_invalid_port_is_reported() {
    let without_hosts = json!({ "egress": [{}] });
    assert_eq!(reasons_for(&without_hosts), ["STR1060 spec.egress[0].hosts"]);
    let zero = json!({ "egress": [{ "port": { "number": 0 }, "hosts": ["./*"] }, { "hosts": ["pay/*"] }] });
    assert_eq!(reasons_for(&zero), ["STR1004 spec.egress[0].port.number"]);
    let (sidecars, _) = all(&[("shop", "one", zero)]);
    let namespace = "shop".into();
    let scope = sidecars.scope(&namespace, &Selection::default());
    let imported = |owner: &str| scope.includes(&host("a.example"), &owner.into());
    assert_eq!(
        [imported("shop"), imported("pay")],
        [false, true],
        "it does not become a listener for all ports"
    );
    let socket =
        json!({ "egress": [{ "port": { "number": 0 }, "bind": "unix:///a", "hosts": ["./*"] }] });
    assert_eq!(reasons_for(&socket), ["STR1074 spec.egress[0].bind"]);
}

#[test]
fn dynamic_dns_mode_is_handled_as_allow_any() {
    let spec = json!({ "outboundTrafficPolicy": { "mode": "ALLOW_ANY_DYNAMIC_DNS" } });
    assert_eq!(read("shop", "one", &spec).0.outbound, Some(OutboundTrafficPolicy::AllowAny));
    assert_eq!(reasons_for(&spec), ["STR1005 spec.outboundTrafficPolicy.mode"]);
}

#[test]
fn egress_proxy_is_one_service_for_allowed_unknown_destinations() {
    let policy = |mode: &str, proxy: Value| json!({ "outboundTrafficPolicy": { "mode": mode, "egressProxy": proxy } });
    let whole = json!({ "host": "out", "port": { "number": 8080 }, "subset": "v1" });
    let read_proxy = |spec: &Value| read("shop", "one", spec).0.egress_proxy;
    assert_eq!(
        read_proxy(&policy("ALLOW_ANY", whole.clone())),
        Some(EgressProxy {
            host: "out.shop.svc.cluster.local".into(),
            port: 8080,
            subset: "v1".into()
        })
    );
    let cases = [
        ("REGISTRY_ONLY", whole, ""),
        ("ALLOW_ANY", json!({ "host": "*.example", "port": { "number": 1 } }), ".host"),
        ("ALLOW_ANY", json!({ "host": "a.example" }), ".port.number"),
    ];
    for (mode, proxy, field) in cases {
        let spec = policy(mode, proxy);
        assert_eq!(
            reasons_for(&spec),
            [format!("STR1075 spec.outboundTrafficPolicy.egressProxy{field}")]
        );
        assert_eq!(read_proxy(&spec), None);
    }
}

#[test]
fn listeners_of_one_port_are_merged_with_a_warning() {
    let egress = |first: Value, second: Value| {
        let (sidecar, reasons) = read("shop", "one", &json!({ "egress": [first, second] }));
        let reported = reasons.iter().map(|one| format!("{} {}", one.code.id, one.path));
        (sidecar.egress.len(), reported.collect::<Vec<_>>())
    };
    let any = |hosts: &str| json!({ "hosts": [hosts] });
    let at = |port: u16| json!({ "port": { "number": port, "protocol": "HTTP", "name": "http" }, "hosts": ["./*"] });
    let merged = vec!["STR1060 spec.egress[1]".to_owned()];
    assert_eq!(egress(any("./*"), any("pay/*")), (2, merged.clone()));
    assert_eq!(egress(at(80), at(80)), (2, merged));
    assert_eq!(egress(at(80), any("./*")), (2, vec![]));
}
