use serde_json::json;

use super::*;
use crate::traffic::selection::Selectors;
use strait_model::Labels;
use strait_model::mesh_config::Defaults;

fn read(namespace: &str, name: &str, spec: Value) -> (Telemetry, Vec<Reason>) {
    let meta = ObjectMeta { created: 0, name: name.into(), namespace: namespace.into() };
    Telemetry::read(meta, &json!({"spec": spec})).expect("it fits the schema")
}

/// Returns the active Telemetries, and the selection of a pod of `shop` with the label `app`.
fn active(objects: &[(&str, Value)], app: &str) -> (Telemetries, Selection) {
    let (mut all, mut selectors) = (Telemetries::default(), Selectors::default());
    let (mut changes, root) = (TrafficChanges::default(), "root".into());
    for (at, (namespace, spec)) in objects.iter().enumerate() {
        let (object, reasons) = read(namespace, &format!("t{at}"), spec.clone());
        assert_eq!(reasons, []);
        let into = ScopedInForce {
            selectors: &mut selectors,
            changes: &mut changes,
            root_namespace: &root,
        };
        all.insert(&Arc::new(object), into);
    }
    let labels: Labels = [("app".into(), app.into())].into_iter().collect();
    (all, selectors.selection(&"shop".into(), &labels))
}

/// Returns the logs of a pod of `shop` with the label `app`.
fn written(mesh: &str, objects: &[(&str, Value)], app: &str, end: CallEnd) -> Vec<String> {
    let mesh = MeshConfig::parse(mesh, &Defaults::default()).expect("a mesh config");
    let ((all, selection), namespace) = (active(objects, app), "shop".into());
    let logs = all.logs(&mesh, (&namespace, &selection), end);
    let shown = |entry: WrittenLog| match entry.filter {
        Some(filter) => format!("{} where {filter}", entry.log.path),
        None => entry.log.path.clone(),
    };
    logs.into_iter().map(shown).collect()
}

#[test]
fn most_specific_level_decides_about_logs() {
    use CallEnd::{Client, Server};
    const ON: &str = "accessLogFile: /dev/stderr";
    let envoy = || json!({"accessLogging": [{"providers": [{"name": "envoy"}]}]});
    let off = || json!({"accessLogging": [{"disabled": true}]});
    let errors = || json!({"accessLogging": [{"filter": {"expression": "response.code >= 400"}}]});
    let for_web = |mut spec: Value| {
        spec["selector"] = json!({"matchLabels": {"app": "web"}});
        spec
    };
    let servers_off =
        || json!({"accessLogging": [{"match": {"mode": "SERVER"}, "disabled": true}]});
    let unknown = || json!({"accessLogging": [{"providers": [{"name": "nobody"}]}]});
    let all = ["/dev/stderr"];
    let some = ["/dev/stderr where response.code >= 400"];
    for (mesh, objects, app, end, expected) in [
        ("", vec![], "web", Client, &[][..]),
        (ON, vec![], "web", Client, &all),
        ("", vec![("root", envoy())], "web", Server, &["/dev/stdout"]),
        // Without a provider name and a default, nothing is logged.
        ("", vec![("root", errors())], "web", Server, &[]),
        (ON, vec![("root", off())], "web", Client, &[]),
        (ON, vec![("root", off()), ("shop", envoy())], "web", Client, &all),
        (ON, vec![("shop", errors())], "web", Client, &some),
        (ON, vec![("other", off())], "web", Client, &all),
        (ON, vec![("root", errors()), ("shop", for_web(off()))], "web", Client, &[]),
        (ON, vec![("root", errors()), ("shop", for_web(off()))], "db", Client, &some),
        (ON, vec![("shop", servers_off())], "web", Client, &all),
        (ON, vec![("shop", servers_off())], "web", Server, &[]),
        (ON, vec![("shop", unknown())], "web", Server, &[]),
        // Of two objects, the oldest applies.
        (ON, vec![("shop", off()), ("shop", envoy())], "web", Client, &[]),
    ] {
        let found = written(mesh, &objects, app, end);
        assert_eq!(found, expected, "{mesh} {objects:?} {app} {end:?}");
    }
}

#[test]
fn entries_of_a_level_are_combined_for_each_end() {
    const MESH: &str =
        "{extensionProviders: [{name: other, envoyFileAccessLog: {path: /dev/stderr}}]}";
    let entry =
        |name: &str, mode: &str| json!({"providers": [{"name": name}], "match": {"mode": mode}});
    let spec = |entries: Vec<Value>| json!({ "accessLogging": entries });
    let (both, both_ends) = (["/dev/stdout", "/dev/stderr"], "CLIENT_AND_SERVER");
    for (objects, expected) in [
        (
            vec![("shop", spec(vec![entry("envoy", both_ends), entry("other", both_ends)]))],
            &both[..],
        ),
        (
            vec![("shop", spec(vec![entry("envoy", both_ends), entry("other", "SERVER")]))],
            &both[..1],
        ),
        // A rule for servers does not change the logs of clients.
        (
            vec![
                ("root", spec(vec![entry("envoy", both_ends)])),
                ("shop", spec(vec![entry("other", "SERVER")])),
            ],
            &both[..1],
        ),
        // An entry without providers uses the default providers, even after an entry for the other end.
        (
            vec![
                ("root", spec(vec![entry("envoy", both_ends)])),
                (
                    "shop",
                    spec(vec![
                        entry("other", "SERVER"),
                        json!({"match": {"mode": "CLIENT"}, "disabled": true}),
                    ]),
                ),
            ],
            &[],
        ),
    ] {
        let found = written(MESH, &objects, "web", CallEnd::Client);
        assert_eq!(found, expected, "{objects:?}");
    }
}

#[test]
fn unsupported_fields_are_reported_and_an_invalid_filter_drops_its_entry() {
    let spec = json!({
        "accessLogging": [{"filter": {"expression": "a &&"}}, {"disabled": true}],
    });
    let (object, reasons) = read("shop", "t", spec);
    let reported: Vec<_> = reasons.iter().map(|one| (one.code, &*one.path)).collect();
    let bad = "spec.accessLogging[0].filter.expression";
    assert_eq!(reported, [(&codes::TRAFFIC_VALUE, bad)]);
    assert_eq!(object.logging.len(), 1);
    let meta = ObjectMeta { created: 0, name: "t".into(), namespace: "shop".into() };
    let target = json!({"kind": "Service", "name": "web"});
    for (field, value) in [("targetRefs", json!([target])), ("targetRef", target)] {
        let targeted = json!({"spec": {field: value}});
        let refused = Telemetry::read(meta.clone(), &targeted).expect_err("a target is refused");
        assert_eq!(refused.path, format!("spec.{field}"));
    }
}

#[test]
fn misspelt_attribute_of_a_filter_is_reported() {
    let filter_reasons = |expression: &str| {
        let spec = json!({"accessLogging": [{"filter": {"expression": expression}}]});
        let (object, reasons) = read("shop", "t", spec);
        assert_eq!(object.logging.len(), 1, "Envoy accepts the expression");
        reasons.into_iter().map(|one| (one.code, one.text)).collect::<Vec<_>>()
    };
    assert_eq!(filter_reasons("response.code >= 400"), []);
    let text = "response.kode is not an attribute of Envoy: requests are not logged if the expression needs its value";
    assert_eq!(
        filter_reasons("response.kode >= 400"),
        [(&codes::TRAFFIC_UNSUPPORTED, text.to_owned())]
    );
    let twice = filter_reasons("response.kode >= 400 || response.kode == 0 || reqest.path == '/'");
    assert_eq!(twice.len(), 2, "{twice:?}");
}

#[test]
fn most_specific_level_decides_about_each_tracing_field() {
    let mesh = |text: &str| MeshConfig::parse(text, &Defaults::default()).expect("a mesh config");
    let traced = |text: &str, objects: &[(&str, Value)], end| {
        let (all, selection) = active(objects, "web");
        let choice = all.tracing(&mesh(text), (&"shop".into(), &selection), end)?;
        let tags: Vec<String> = choice.tags.iter().map(|tag| tag.name.to_string()).collect();
        Some((choice.provider.to_string(), choice.sampled_per_million, tags))
    };
    let given = |provider: &str, share, tags: &[&str]| {
        Some((provider.to_owned(), share, tags.iter().map(|tag| (*tag).to_owned()).collect()))
    };
    let by_default = "defaultProviders: {tracing: [z, other]}";
    assert_eq!(traced("", &[], CallEnd::Client), None, "no provider is set");
    assert_eq!(
        traced(by_default, &[], CallEnd::Client),
        given("z", 10_000, &[]),
        "one in a hundred"
    );
    let tag = |name: &str| json!({ name: { "literal": { "value": "x" } } });
    let root = json!({ "tracing": [{ "randomSamplingPercentage": 0.25, "customTags": tag("a") }] });
    let own = json!({ "tracing": [
        { "providers": [{ "name": "own" }], "customTags": tag("b") },
        { "match": { "mode": "CLIENT" }, "randomSamplingPercentage": 100 },
    ] });
    let selecting = json!({
        "selector": { "matchLabels": { "app": "web" } },
        "tracing": [{ "match": { "mode": "SERVER" }, "disableSpanReporting": true }],
    });
    let both = [("root", root.clone()), ("shop", own.clone())];
    assert_eq!(traced(by_default, &[("root", root)], CallEnd::Client), given("z", 2_500, &["a"]));
    assert_eq!(traced(by_default, &both, CallEnd::Client), given("own", 1_000_000, &["b"]));
    assert_eq!(traced(by_default, &both, CallEnd::Server), given("own", 2_500, &["b"]));
    let all = [both[0].clone(), ("shop", own), ("shop", selecting)];
    assert_eq!(traced("", &all, CallEnd::Server), None);
    assert_eq!(traced("", &all, CallEnd::Client), given("own", 1_000_000, &["b"]));
}

#[test]
fn invalid_tracing_settings_are_left_out_and_reported() {
    let spec = json!({ "tracing": [{
        "providers": [{ "name": "z" }, { "name": "other" }],
        "randomSamplingPercentage": 101,
        "useRequestIdForTraceSampling": false,
        "enableIstioTags": true,
        "customTags": {
            "": { "literal": { "value": "x" } },
            "both": { "literal": { "value": "x" }, "header": { "name": "x" } },
            "empty": { "literal": {} },
            "from": { "header": { "name": "X-From", "defaultValue": "nowhere" } },
            "header": { "header": { "name": "a b" } },
            "kind": { "formatter": { "value": "%PROTOCOL%" } },
            "node": { "environment": { "name": "NODE" } },
            "variable": { "environment": {} },
        },
    }] });
    let (object, reasons) = read("shop", "t", spec);
    let reported: Vec<_> = reasons.iter().map(|one| (one.code, &*one.path)).collect();
    let expected = [
        (&codes::TRAFFIC_UNSUPPORTED, "spec.tracing[0].customTags.kind.formatter"),
        (&codes::TRAFFIC_UNSUPPORTED, "spec.tracing[0].useRequestIdForTraceSampling"),
        (&codes::TRAFFIC_UNSUPPORTED, "spec.tracing[0].enableIstioTags"),
        (&codes::TRAFFIC_REPLACED, "spec.tracing[0].providers[1]"),
        (&codes::TRAFFIC_VALUE, "spec.tracing[0].randomSamplingPercentage"),
        (&codes::TRAFFIC_VALUE, "spec.tracing[0].customTags[]"),
        (&codes::TRAFFIC_VALUE, "spec.tracing[0].customTags[both]"),
        (&codes::TRAFFIC_VALUE, "spec.tracing[0].customTags[empty]"),
        (&codes::TRAFFIC_VALUE, "spec.tracing[0].customTags[header]"),
        (&codes::TRAFFIC_VALUE, "spec.tracing[0].customTags[kind]"),
        (&codes::TRAFFIC_VALUE, "spec.tracing[0].customTags[variable]"),
    ];
    assert_eq!(reported, expected);
    let choice = spans::choice(object.tracing.iter(), None, CallEnd::Client).expect("it names one");
    assert_eq!((&*choice.provider, choice.sampled_per_million), ("z", 1_000_000));
    let value = |at: usize| choice.tags.get(at).map(|tag| (&*tag.name, tag.value.clone()));
    let header = SpanTagValue::Header("x-from".into(), "nowhere".into());
    let variable = SpanTagValue::Environment("NODE".into(), "".into());
    assert_eq!((value(0), value(1)), (Some(("from", header)), Some(("node", variable))));
}

/// Returns the changes to the metrics of a pod of `shop` with the label `app`.
fn changed(objects: &[(&str, Value)], app: &str, end: CallEnd) -> MetricsChoice {
    let ((all, selection), namespace) = (active(objects, app), "shop".into());
    all.metrics((&namespace, &selection), end)
}

#[test]
fn overrides_switch_off_metrics_and_change_labels_at_one_end() {
    let objects = [(
        "shop",
        json!({"metrics": [{
            "providers": [{"name": "prometheus"}],
            "overrides": [
                {"match": {"metric": "REQUEST_SIZE", "mode": "CLIENT"}, "disabled": true},
                {"match": {"metric": "REQUEST_COUNT"}, "tagOverrides": {
                    "response_flags": {"operation": "REMOVE"},
                    "method": {"value": "request.method"},
                }},
            ],
        }]}),
    )];
    let [client, server] =
        [CallEnd::Client, CallEnd::Server].map(|end| changed(&objects, "web", end));
    assert!(!client.has(Metric::RequestSize) && client.has(Metric::ResponseSize));
    assert!(server.has(Metric::RequestSize));
    let labels: Vec<_> =
        server.labels(Metric::RequestCount).map(|(name, label)| (&**name, label.clone())).collect();
    let method = LabelChange::Set("request.method".into());
    assert_eq!(labels, [("method", method), ("response_flags", LabelChange::Removed)]);
    assert_eq!(server.labels(Metric::RequestDuration).count(), 0);
}

#[test]
fn more_specific_telemetry_overrides_the_metrics_of_the_mesh() {
    let all = |disabled: bool| json!({"metrics": [{"overrides": [{"disabled": disabled}]}]});
    let mut for_web = all(false);
    for_web["selector"] = json!({"matchLabels": {"app": "web"}});
    let objects = [("root", all(true)), ("shop", for_web)];
    assert!(changed(&objects, "web", CallEnd::Client).has(Metric::TcpSent));
    assert!(!changed(&objects, "other", CallEnd::Client).has(Metric::TcpSent));
}

#[test]
fn metrics_that_proxies_cannot_report_have_a_reason_and_change_nothing() {
    let with_override = |one: Value| json!({"metrics": [{"overrides": [one]}]});
    let label =
        |name: &str, value: &str| with_override(json!({"tagOverrides": {name: {"value": value}}}));
    for (spec, path) in [
        (
            json!({"metrics": [{"providers": [{"name": "stackdriver"}], "overrides": [{"disabled": true}]}]}),
            "spec.metrics[0].providers[0].name",
        ),
        (
            with_override(json!({"match": {"customMetric": "mine"}, "disabled": true})),
            "spec.metrics[0].overrides[0].match.customMetric",
        ),
        (
            with_override(json!({"match": {"metric": "GRPC_REQUEST_MESSAGES"}, "disabled": true})),
            "spec.metrics[0].overrides[0].match.metric",
        ),
        (label("a-b", "request.method"), "spec.metrics[0].overrides[0].tagOverrides[a-b]"),
        (label("a", ""), "spec.metrics[0].overrides[0].tagOverrides[a].value"),
        (label("a", "request.size % 2"), "spec.metrics[0].overrides[0].tagOverrides[a].value"),
        (label("a", "request.method +"), "spec.metrics[0].overrides[0].tagOverrides[a].value"),
        (label("a", "request.methods"), "spec.metrics[0].overrides[0].tagOverrides[a].value"),
    ] {
        let (read, reasons) = read("shop", "t", spec.clone());
        let paths: Vec<&str> = reasons.iter().map(|reason| &*reason.path).collect();
        assert_eq!(paths, [path], "{spec}");
        let choice = MetricsChoice::combine(read.metrics.iter(), CallEnd::Client);
        assert!(choice.has(Metric::RequestCount), "{spec}");
        assert_eq!(choice.labels(Metric::RequestCount).count(), 0, "{spec}");
    }
}

#[test]
fn metrics_entry_applies_only_if_it_names_prometheus_or_no_provider() {
    for (providers, applies) in [
        (vec![], true),
        (vec!["prometheus"], true),
        (vec!["stackdriver", "prometheus", "mine"], true),
        (vec!["stackdriver"], false),
        (vec!["stackdriver", "mine"], false),
    ] {
        let named: Vec<_> = providers.iter().map(|name| json!({ "name": name })).collect();
        let spec = json!({"metrics": [{"providers": named, "overrides": [{"disabled": true}]}]});
        let (read, reasons) = read("shop", "t", spec);
        let choice = MetricsChoice::combine(read.metrics.iter(), CallEnd::Client);
        assert_eq!(choice.has(Metric::RequestCount), !applies, "{providers:?}");
        let unknown = providers.iter().enumerate().filter(|(_, name)| **name != "prometheus");
        let expected: Vec<_> =
            unknown.map(|(at, _)| format!("spec.metrics[0].providers[{at}].name")).collect();
        let paths: Vec<&str> = reasons.iter().map(|reason| &*reason.path).collect();
        assert_eq!(paths, expected, "{providers:?}");
        let has_no_effect = |reason: &Reason| reason.text.contains("no effect");
        assert!(reasons.iter().all(|reason| has_no_effect(reason) != applies), "{reasons:?}");
    }
}
