use serde_json::json;

use super::*;
use crate::testing::kind_settings;

fn ingress(spec: &Value, annotations: &Value) -> (Ingress, Vec<Reason>) {
    let object = json!({ "metadata": { "annotations": annotations }, "spec": spec });
    let meta = ObjectMeta { created: 1, name: "web".into(), namespace: "shop".into() };
    Ingress::read(meta, &object, &kind_settings()).expect("it fits its schema")
}

/// Returns the match for a path of this type.
fn path(kind: &str, text: &str) -> Option<Option<PathMatch>> {
    let backend = json!({ "service": { "name": "web", "port": { "number": 80 } } });
    let paths = json!([{ "pathType": kind, "path": text, "backend": backend }]);
    let (read, _) = ingress(&json!({ "rules": [{ "http": { "paths": paths } }] }), &json!({}));
    let rule = &read.rules.first()?.rule;
    Some(rule.matches.first()?.path.clone())
}

#[test]
fn path_type_decides_the_match() {
    let exact = |text: &str| Some(Some(PathMatch::Exact(text.into())));
    let segments = |text: &str| Some(Some(PathMatch::Segments(text.into())));
    let prefix = |text: &str| Some(Some(PathMatch::Prefix(text.into())));
    for (kind, text, read) in [
        ("Exact", "/a/", exact("/a/")),
        ("Exact", "/", exact("/")),
        ("Prefix", "/a", segments("/a")),
        ("Prefix", "/a/", segments("/a")),
        ("Prefix", "/", Some(None)),
        ("ImplementationSpecific", "/a", exact("/a")),
        ("ImplementationSpecific", "/a/*", prefix("/a")),
        ("ImplementationSpecific", "/a.*", prefix("/a")),
        ("ImplementationSpecific", "", Some(None)),
        ("ImplementationSpecific", "/*", Some(None)),
        ("", "*", Some(None)),
        // No request can have this path.
        ("Prefix", "a", None),
        ("Exact", "/a?b", None),
        ("Exact", "", None),
        ("Regex", "/a", None),
    ] {
        assert_eq!(path(kind, text), read, "{kind} {text}");
    }
}

#[test]
fn backend_is_a_service_with_a_port_number_or_name() {
    let rule = |backend: Value| {
        let spec = json!({ "defaultBackend": backend });
        let (read, reasons) = ingress(&spec, &json!({}));
        let to = read.rules.first().and_then(|one| one.rule.destinations.first().cloned());
        let to = to.map(|to| (to.host.to_string(), to.port, to.port_name.to_string()));
        (to, reasons.first().map(|reason| reason.path.clone()))
    };
    let host = || "web.shop.svc.cluster.local".to_owned();
    let with_port = |port: Value| rule(json!({ "service": { "name": "web", "port": port } }));
    assert_eq!(with_port(json!({ "number": 80 })), (Some((host(), Some(80), String::new())), None));
    assert_eq!(
        with_port(json!({ "name": "http" })),
        (Some((host(), None, "http".to_owned())), None)
    );
    let lost = |path: &str| (None, Some(format!("spec.defaultBackend{path}")));
    assert_eq!(with_port(json!({})), lost(".service.port"));
    assert_eq!(with_port(json!({ "number": 65536 })), lost(".service.port"));
    assert_eq!(rule(json!({ "service": { "port": { "number": 80 } } })), lost(".service.name"));
    assert_eq!(rule(json!({ "resource": { "kind": "Bucket", "name": "b" } })), lost(""));
}

#[test]
fn invalid_part_is_left_out_and_reported() {
    let backend = json!({ "service": { "name": "web", "port": { "number": 80 } } });
    let paths = json!([
        { "pathType": "Exact", "path": "no", "backend": backend },
        { "pathType": "Exact", "path": "/yes", "backend": backend },
    ]);
    let spec = json!({
        "rules": [{ "host": "a b" }, { "host": "shop", "http": { "paths": paths } }],
        "tls": [{ "hosts": ["shop"] }, { "hosts": ["a*b", "*.example"], "secretName": "s" }],
    });
    let (read, reasons) = ingress(&spec, &json!({}));
    let hosts: Vec<_> = read.hosts().chain(read.tls_hosts()).map(ToString::to_string).collect();
    assert_eq!(hosts, ["shop", "*.example"]);
    let paths: Vec<_> = reasons.iter().map(|reason| &*reason.path).collect();
    let expected = [
        "spec.rules[0].host",
        "spec.rules[1].http.paths[0].path",
        "spec.tls[0].secretName",
        "spec.tls[1].hosts[0]",
    ];
    assert_eq!(paths, expected);
}

#[test]
fn parameters_of_the_class_of_the_mesh_are_reported() {
    let class_reasons = |controller: &str, spec: &Value| {
        let mut spec = spec.clone();
        spec["controller"] = json!(controller);
        let meta = ObjectMeta { created: 0, name: "mesh".into(), namespace: "".into() };
        let (_, reasons) = IngressClass::read(meta, &json!({ "spec": spec })).expect("valid");
        reasons.into_iter().map(|reason| (reason.code, reason.path)).collect::<Vec<_>>()
    };
    let parameters = json!({ "parameters": { "kind": "Settings", "name": "a" } });
    let expected = [(&codes::TRAFFIC_UNSUPPORTED, "spec.parameters".to_owned())];
    assert_eq!(class_reasons(INGRESS_CONTROLLER, &parameters), expected);
    assert_eq!(class_reasons(INGRESS_CONTROLLER, &json!({})), []);
    assert_eq!(class_reasons("example.com/other", &parameters), []);
}

#[test]
fn only_ingresses_of_the_class_of_the_mesh_apply() {
    let class = |name: &str, created, controller: &str, is_default| IngressClass {
        meta: ObjectMeta { created, name: name.into(), namespace: "".into() },
        controller: controller.to_owned(),
        is_default,
    };
    let own = class("own", 1, INGRESS_CONTROLLER, false);
    let other = class("other", 1, "example.com/other", false);
    let old_default = class("old", 1, "example.com/other", true);
    let default = class("young", 2, INGRESS_CONTROLLER, true);
    let annotated = |name: &str| json!({ CLASS_ANNOTATION: name });
    let named = |name: &str| json!({ "ingressClassName": name });
    let unnamed = json!({});
    let mode = |mode| IngressSettings { mode, ..IngressSettings::default() };
    let strict = mode(IngressMode::Strict);
    for (spec, annotations, classes, settings, is_followed) in [
        (&unnamed, annotated("istio"), vec![], &strict, true),
        (&unnamed, annotated("other"), vec![], &strict, false),
        // The annotation takes precedence.
        (&named("other"), annotated("istio"), vec![&other], &strict, true),
        (&named("own"), unnamed.clone(), vec![&other, &own], &strict, true),
        (&named("other"), unnamed.clone(), vec![&other, &own], &strict, false),
        (&named("absent"), unnamed.clone(), vec![&own], &strict, false),
        (&unnamed, unnamed.clone(), vec![&own], &strict, false),
        (&unnamed, unnamed.clone(), vec![&old_default, &default], &strict, true),
        (&unnamed, unnamed.clone(), vec![&old_default, &own], &strict, false),
        (&unnamed, unnamed.clone(), vec![&old_default], &mode(IngressMode::Default), true),
        (&named("other"), unnamed.clone(), vec![&other], &mode(IngressMode::Default), false),
        (&unnamed, annotated("istio"), vec![&default], &mode(IngressMode::Off), false),
    ] {
        let (read, _) = ingress(spec, &annotations);
        let followed = read.is_followed(classes.iter().copied(), settings);
        assert_eq!(followed.is_ok(), is_followed, "{spec} {annotations}: {followed:?}");
    }
}

#[test]
fn wildcard_host_of_an_ingress_is_reported_to_match_several_labels() {
    let host_reasons = |host: &str| {
        let backend = json!({ "service": { "name": "web", "port": { "number": 80 } } });
        let paths = json!([{ "pathType": "Prefix", "path": "/", "backend": backend }]);
        let spec = json!({ "rules": [{ "host": host, "http": { "paths": paths } }] });
        let (_, reasons) = ingress(&spec, &json!({}));
        reasons.into_iter().map(|one| (one.code, one.path, one.is_lost)).collect::<Vec<_>>()
    };
    let expected = (&codes::INGRESS_WILDCARD, "spec.rules[0].host".to_owned(), false);
    assert_eq!(host_reasons("*.shop.example"), [expected]);
    assert!(host_reasons("shop.example").is_empty() && host_reasons("").is_empty());
}
