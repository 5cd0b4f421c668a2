use super::*;
use crate::testing::kind_settings;
use crate::traffic::route::PathRewrite;
use strait_base::codes::Code;

fn meta(namespace: &str, name: &str) -> ObjectMeta {
    ObjectMeta { created: 0, name: name.into(), namespace: namespace.into() }
}

fn read(kind: &'static str, spec: &str) -> (GatewayRoute, Vec<(&'static Code, String)>) {
    let settings = kind_settings();
    let spec: Value = serde_saphyr::from_str(spec).expect("the text is YAML");
    let object = serde_json::json!({ "spec": spec });
    let (route, reasons) = GatewayRoute::read(kind, meta("shop", "web"), &object, &settings)
        .expect("it fits its schema");
    (route, reasons.into_iter().map(|reason| (reason.code, reason.path)).collect())
}

fn rule(text: &str) -> (HttpRule, Vec<(&'static Code, String)>) {
    let (route, reasons) = read("HTTPRoute", &format!("{{rules: [{text}]}}"));
    (route.rules[0].clone(), reasons)
}

const BACKEND: &str = "backendRefs: [{name: web, port: 80}]";

#[test]
fn only_services_are_parents() {
    let (route, reasons) = read(
        "HTTPRoute",
        "{parentRefs: [{group: '', kind: Service, name: web}, {group: '', kind: Service, name: api, namespace: ops, port: 81}, {name: gw}]}",
    );
    assert_eq!(reasons, []);
    let parents: Vec<_> = route.parents.iter().map(|one| (one.host.as_str(), one.port)).collect();
    assert_eq!(
        parents,
        [("web.shop.svc.cluster.local", None), ("api.ops.svc.cluster.local", Some(81))]
    );
}

#[test]
fn unsupported_parents_in_the_mesh_have_a_reason() {
    let reasons = |parent: &str| read("HTTPRoute", &format!("{{parentRefs: [{parent}]}}")).1;
    let at = |path: &str| vec![(&codes::TRAFFIC_UNSUPPORTED, path.to_owned())];
    let entry = "{group: networking.istio.io, kind: ServiceEntry, name: a}";
    assert_eq!(reasons(entry), at("spec.parentRefs[0]"));
    // The default group is that of Gateways.
    assert_eq!(reasons("{kind: Service, name: web}"), at("spec.parentRefs[0].group"));
    assert_eq!(
        reasons("{name: gw}, {group: multicluster.x-k8s.io, kind: ServiceImport, name: a}"),
        []
    );
}

#[test]
fn paths_match_whole_segments_and_the_first_condition_of_a_name_applies() {
    let (rule, reasons) = rule(&format!(
        "{{matches: [{{path: {{value: /a/}}, method: GET, headers: [{{name: X, value: a}}, {{name: x, value: b}}]}}, {{path: {{type: Exact, value: /b}}}}, {{}}], {BACKEND}}}"
    ));
    assert_eq!(reasons, []);
    let paths: Vec<_> = rule.matches.iter().map(|one| one.path.clone()).collect();
    assert_eq!(
        paths,
        [Some(PathMatch::Segments("/a".into())), Some(PathMatch::Exact("/b".into())), None]
    );
    let first = &rule.matches[0];
    assert_eq!(*first.headers, [("x".into(), TextMatch::Exact("a".into()))]);
    assert_eq!(first.method, Some(TextMatch::Exact("GET".into())));
    assert!(rule.is_strict);
}

#[test]
fn matches_covered_by_matches_that_come_first_have_a_reason() {
    let covered = |kind, matches: &[&str]| {
        let parents = "parentRefs: [{group: '', kind: Service, name: web}]";
        let rules = matches.iter().map(|one| format!("{{matches: {one}, {BACKEND}}}"));
        let rules = rules.collect::<Vec<_>>().join(", ");
        let (_, reasons) = read(kind, &format!("{{{parents}, rules: [{rules}]}}"));
        assert!(reasons.iter().all(|(code, _)| *code == &codes::RULE_UNREACHABLE), "{reasons:?}");
        reasons.into_iter().map(|(_, path)| path).collect::<Vec<_>>()
    };
    let first = ["spec.rules[0].matches[0]"];
    let second = ["spec.rules[1].matches[0]"];
    let (all, regex) = ("[{}]", "[{path: {type: RegularExpression, value: '/v[12]/.*'}}]");
    let root = "[{path: {type: PathPrefix, value: /}}]";
    // Prefixes come before expressions, wherever the rules are in the route.
    assert_eq!(covered("HTTPRoute", &[all, regex]), second);
    assert_eq!(covered("HTTPRoute", &[root, regex]), second);
    assert_eq!(covered("HTTPRoute", &[regex, root]), first);
    let get_regex = "[{method: GET, path: {type: RegularExpression, value: '/v.*'}}]";
    assert_eq!(covered("HTTPRoute", &["[{method: GET}]", get_regex]), second);
    assert_eq!(covered("HTTPRoute", &["[{method: PUT}]", get_regex]), [""; 0]);
    // Longer prefixes and more conditions come first, so nothing covers them but equal matches.
    let a = "[{path: {value: /a}}]";
    for other in [root, "[{path: {value: /a/b}}]", "[{path: {value: /a}, method: GET}]", regex] {
        assert_eq!(covered("HTTPRoute", &[a, other]), [""; 0], "{other}");
        assert_eq!(covered("HTTPRoute", &[other, a]), [""; 0], "{other}");
    }
    assert_eq!(covered("HTTPRoute", &[a, a]), second);
    assert_eq!(covered("HTTPRoute", &["[{path: {value: /a}}, {path: {value: /a}}]"]), [""; 0]);
    assert_eq!(covered("GRPCRoute", &["[{method: {method: Get}}]", all]), first);
    assert_eq!(covered("GRPCRoute", &["[{method: {service: a.B}}]", all]), [""; 0]);
    // Another controller decides the order at Gateways.
    let text = format!("{{parentRefs: [{{name: gw}}], rules: [{{{BACKEND}}}, {{{BACKEND}}}]}}");
    assert_eq!(read("HTTPRoute", &text).1, []);
}

#[test]
fn grpc_methods_are_matched_as_paths() {
    let (route, _) = read(
        "GRPCRoute",
        &format!(
            "{{rules: [{{matches: [{{method: {{service: a.B, method: Get}}}}, {{method: {{service: a.B}}}}, {{method: {{method: Get}}}},
              {{method: {{type: RegularExpression, service: 'a.*', method: Get}}}}, {{}}], {BACKEND}}}]}}"
        ),
    );
    let paths: Vec<_> = route.rules[0].matches.iter().map(|one| one.path.clone()).collect();
    let expected = [
        Some(PathMatch::Exact("/a.B/Get".into())),
        Some(PathMatch::Prefix("/a.B/".into())),
        Some(PathMatch::Regex("/[^/]+/Get".into())),
        Some(PathMatch::Regex("/a.*/Get".into())),
        None,
    ];
    assert_eq!(paths, expected);
}

#[test]
fn unknown_type_of_a_grpc_method_refuses_the_condition() {
    let text =
        format!("{{rules: [{{matches: [{{method: {{type: Other, service: a}}}}], {BACKEND}}}]}}");
    let (route, reasons) = read("GRPCRoute", &text);
    assert!(route.rules[0].is_absent);
    let path = "spec.rules[0].matches[0].method.type".to_owned();
    assert_eq!(reasons, [(&codes::MATCH_REFUSED, path)]);
}

#[test]
fn expressions_of_a_grpc_method_are_validated_alone_and_grouped() {
    let read = |service: &str, method: &str| {
        let method =
            format!("{{type: RegularExpression, service: '{service}', method: '{method}'}}");
        let text = format!("{{rules: [{{matches: [{{method: {method}}}], {BACKEND}}}]}}");
        let (route, reasons) = read("GRPCRoute", &text);
        let path = route.rules[0].matches.first().and_then(|one| one.path.clone());
        (path, reasons.into_iter().map(|(_, path)| path).collect::<Vec<_>>())
    };
    let path = |text: &str| (Some(PathMatch::Regex(text.into())), Vec::new());
    assert_eq!(read("foo.A|bar.B", ""), path("/(?:foo.A|bar.B)/[^/]+"));
    assert_eq!(read("s.S", "Get|Put"), path("/s.S/(?:Get|Put)"));
    assert_eq!(read("(?i)s.S", "Get"), path("/(?:(?i)s.S)/Get"));
    let at = |field: &str| format!("spec.rules[0].matches[0].method.{field}");
    assert_eq!(read("[", ""), (None, vec![at("service")]));
    assert_eq!(read("x)(y", "(z"), (None, vec![at("service"), at("method")]));
}

#[test]
fn unreadable_match_of_a_route_removes_its_rule_unless_the_rule_has_no_backends() {
    let matches = "matches: [{path: {value: /a}, headers: [{name: x, type: RegularExpression, value: '('}]}, {path: {value: /b}}]";
    let redirect = "filters: [{type: RequestRedirect, requestRedirect: {hostname: b.example}}]";
    let expected = (&codes::MATCH_REFUSED, "spec.rules[0].matches[0].headers[0]".to_owned());
    for action in [BACKEND, redirect] {
        let (rule, reasons) = rule(&format!("{{{matches}, {action}}}"));
        assert_eq!(reasons, std::slice::from_ref(&expected));
        assert!(rule.is_absent && rule.matches.is_empty(), "{action}");
        assert_eq!(rule.all_destinations().count(), 0, "{action}");
    }
    let (rule, reasons) = rule(&format!("{{{matches}, backendRefs: []}}"));
    assert!(reasons.contains(&expected), "{reasons:?}");
    let [first, second] = &*rule.matches else { panic!("{rule:?}") };
    assert!(!rule.is_absent && first.refused && !second.refused);
}

#[test]
fn names_of_one_label_are_server_names_of_a_tls_route() {
    let settings = kind_settings();
    let names = |names: &str| {
        let spec: Value =
            serde_saphyr::from_str(&format!("{{hostnames: {names}, rules: [{{{BACKEND}}}]}}"))
                .expect("the text is YAML");
        let object = serde_json::json!({ "spec": spec });
        let (route, reasons) =
            GatewayRoute::read_connections("TLSRoute", meta("shop", "sec"), &object, &settings)
                .expect("it fits its schema");
        (route.server_names.join(","), reasons.len())
    };
    assert_eq!(names("[sec, SEC, '*.a.b']"), ("sec,sec,*.a.b".to_owned(), 0));
    assert_eq!(names("['*', 'a b', '*b']"), (String::new(), 3));
}

#[test]
fn unknown_filter_refuses_the_rule() {
    for filter in
        ["{type: ExtensionRef}", "{type: RequestRedirect, requestRedirect: {statusCode: 304}}"]
    {
        let (rule, reasons) = rule(&format!("{{filters: [{filter}], {BACKEND}}}"));
        assert!(rule.refused);
        assert_eq!(reasons, [(&codes::ROUTE_REFUSED, "spec.rules[0].filters[0]".to_owned())]);
    }
}

#[test]
fn filters_modify_headers_hosts_and_paths() {
    let (rule, reasons) = rule(&format!(
        "{{filters: [
            {{type: RequestHeaderModifier, requestHeaderModifier: {{set: [{{name: X, value: a}}, {{name: Host, value: h}}], remove: [Z]}}}},
            {{type: URLRewrite, urlRewrite: {{hostname: inner, path: {{type: ReplacePrefixMatch, replacePrefixMatch: /}}}}}},
            {{type: RequestMirror, requestMirror: {{backendRef: {{name: copy, port: 80}}, fraction: {{numerator: 1, denominator: 4}}}}}}],
          timeouts: {{request: 10s, backendRequest: 2s}}, {BACKEND}}}"
    ));
    assert_eq!(reasons, []);
    let headers = rule.headers.as_ref().expect("it has some");
    assert_eq!((headers.host.as_deref(), headers.request.set.len()), (Some("h"), 1));
    assert_eq!(
        rule.rewrite.as_ref().expect("it has one").path,
        Some(PathRewrite::Segments("/".into()))
    );
    assert_eq!(
        rule.mirrors.iter().flatten().map(|one| one.per_million).collect::<Vec<_>>(),
        [250_000]
    );
    assert_eq!(
        rule.retries.as_ref().expect("it has some").per_try_timeout.map(|one| one.as_secs()),
        Some(2)
    );
}

#[test]
fn tries_that_time_out_are_retried_if_the_rule_has_retries() {
    let limits = |text: &str| {
        let (rule, reasons) = rule(&format!("{{{text}, {BACKEND}}}"));
        let retries = rule.retries.as_deref().cloned().unwrap_or_default();
        let is_retried = retries.on.split(',').any(|one| one == "reset");
        let seconds = |time: Option<std::time::Duration>| time.map(|time| time.as_secs());
        let timeouts = (seconds(rule.timeout), seconds(retries.per_try_timeout));
        (timeouts, retries.attempts, is_retried, reasons.len())
    };
    let timeouts = "timeouts: {request: 10s, backendRequest: 2s}";
    let both = (Some(10), Some(2));
    assert_eq!(limits(timeouts), (both, 2, false, 0));
    assert_eq!(limits(&format!("{timeouts}, retry: {{}}")), (both, 2, true, 0));
    assert_eq!(
        limits(&format!("{timeouts}, retry: {{codes: [500], attempts: 3}}")),
        (both, 3, true, 0)
    );
    // Without retries, the timeout of the only try applies to the request.
    let ((whole, _), attempts, ..) = limits(&format!("{timeouts}, retry: {{attempts: 0}}"));
    assert_eq!((whole, attempts), (Some(2), 0));
    assert_eq!(limits("timeouts: {request: 1s, backendRequest: 2s}").3, 1);
    assert_eq!(limits("timeouts: {request: 0s, backendRequest: 2s}").3, 0);
}

#[test]
fn parts_of_a_rule_without_effect_have_a_reason() {
    let mirror = |share: &str| {
        format!(
            "filters: [{{type: RequestMirror, requestMirror: {{backendRef: {{name: m, port: 80}}, {share}}}}}]"
        )
    };
    let rewrite = |field: &str| format!("{{type: URLRewrite, urlRewrite: {{{field}}}}}");
    let host =
        "filters: [{type: RequestHeaderModifier, requestHeaderModifier: {remove: [Host, x]}}]";
    let both = mirror("percent: 10, fraction: {numerator: 1, denominator: 2}");
    let all = mirror("percent: 101");
    let above = mirror("fraction: {numerator: 5, denominator: 2}");
    let path = rewrite("path: {type: ReplaceFullPath, replaceFullPath: /z}");
    let twice = format!("filters: [{path}, {}]", rewrite("hostname: b.example"));
    let cors = "filters: [{type: CORS, cors: {allowOrigins: ['*'], allowCredentials: true, exposeHeaders: ['*']}}]";
    for (text, code, at) in [
        (cors, &codes::ROUTE_PART_LOST, "filters[0].cors.exposeHeaders"),
        (host, &codes::ROUTE_PART_LOST, "filters[0]"),
        (&both, &codes::TRAFFIC_REPLACED, "filters[0].requestMirror.fraction"),
        (&all, &codes::TRAFFIC_VALUE, "filters[0].requestMirror.percent"),
        (&above, &codes::TRAFFIC_VALUE, "filters[0].requestMirror.fraction"),
        (&twice, &codes::ROUTE_PART_LOST, "filters[1]"),
    ] {
        let (_, reasons) = rule(&format!("{{{text}, {BACKEND}}}"));
        assert_eq!(reasons, [(code, format!("spec.rules[0].{at}"))], "{text}");
    }
    for text in ["{backendRefs: []}", "{backendRefs: [{name: web, port: 80, weight: 0}]}"] {
        let (_, reasons) = rule(text);
        let path = "spec.rules[0].backendRefs".to_owned();
        assert_eq!(reasons, [(&codes::ROUTE_PART_LOST, path)], "{text}");
    }
    for (change, facts) in [
        ("set: [{name: Server, value: x}]", 1),
        ("add: [{name: date, value: x}], remove: [SERVER, date, x]", 2),
    ] {
        let filter =
            format!("{{type: ResponseHeaderModifier, responseHeaderModifier: {{{change}}}}}");
        let backend = format!("backendRefs: [{{name: web, port: 80, filters: [{filter}]}}]");
        for (text, path) in [
            (format!("{{filters: [{filter}], {BACKEND}}}"), "filters[0]"),
            (format!("{{{backend}}}"), "backendRefs[0].filters[0]"),
        ] {
            let (_, reasons) = rule(&text);
            let expected = (&codes::ROUTE_PART_LOST, format!("spec.rules[0].{path}"));
            assert_eq!(reasons, vec![expected; facts], "{text}");
        }
    }
    let (endless, reasons) = rule("{filters: [{type: RequestRedirect, requestRedirect: {}}]}");
    let path = "spec.rules[0].filters[0].requestRedirect".to_owned();
    assert_eq!(reasons, [(&codes::ROUTE_PART_LOST, path)]);
    assert!(!endless.refused, "it is a redirect nevertheless");
    let closed = "{rules: [{backendRefs: [{name: web, port: 80, weight: 0}]}]}";
    let (_, reasons) = read("TCPRoute", closed);
    assert_eq!(reasons, [(&codes::ROUTE_PART_LOST, "spec.rules[0].backendRefs".to_owned())]);
}

#[test]
fn conditions_that_no_request_meets_are_reported() {
    for (condition, field) in
        [("path: {type: Exact, value: '/a?b'}", "path"), ("method: get", "method")]
    {
        let (rule, reasons) = rule(&format!("{{matches: [{{{condition}}}], {BACKEND}}}"));
        let path = format!("spec.rules[0].matches[0].{field}");
        assert_eq!(reasons, [(&codes::MATCH_NEVER, path)]);
        assert!(!rule.matches[0].refused);
    }
}

#[test]
fn path_modifier_that_lacks_the_field_of_its_type_refuses_the_rule() {
    for (filter, path) in [
        ("type: URLRewrite, urlRewrite", "urlRewrite.path"),
        ("type: RequestRedirect, requestRedirect", "requestRedirect.path"),
    ] {
        for (modifier, is_refused) in [
            ("type: ReplaceFullPath, replaceFullPath: /a", false),
            ("type: ReplacePrefixMatch, replacePrefixMatch: /a", false),
            ("type: ReplacePrefixMatch, replaceFullPath: /a", true),
            ("type: ReplaceFullPath, replaceFullPath: /a, replacePrefixMatch: /a", true),
            ("type: Other, replaceFullPath: /a", true),
            ("replaceFullPath: /a", true),
        ] {
            let (rule, reasons) =
                rule(&format!("{{filters: [{{{filter}: {{path: {{{modifier}}}}}}}], {BACKEND}}}"));
            let path = format!("spec.rules[0].filters[0].{path}");
            let expected: Vec<_> =
                is_refused.then_some((&codes::ROUTE_REFUSED, path)).into_iter().collect();
            assert_eq!((rule.refused, reasons), (is_refused, expected), "{modifier}");
        }
    }
}

#[test]
fn hosts_of_a_route_on_services_and_zero_backoff_have_a_reason() {
    const SERVICE: &str = "{group: '', kind: Service, name: web}";
    let reasons_on = |parents: &str| {
        read("HTTPRoute", &format!("{{hostnames: [a.example], parentRefs: [{parents}]}}")).1
    };
    let expected = [(&codes::TRAFFIC_UNSUPPORTED, "spec.hostnames".to_owned())];
    assert_eq!(reasons_on(SERVICE), expected);
    // Hosts select requests at the Gateway, which another controller serves.
    assert_eq!(reasons_on(&format!("{SERVICE}, {{name: gw}}")), []);
    let (_, reasons) = rule(&format!("{{retry: {{backoff: 0s}}, {BACKEND}}}"));
    assert_eq!(reasons, [(&codes::TRAFFIC_VALUE, "spec.rules[0].retry.backoff".to_owned())]);
}

#[test]
fn invalid_backend_keeps_its_weight() {
    let (rule, reasons) = rule(
        "{backendRefs: [{name: web, port: 80, weight: 3}, {name: x, kind: Bucket}, {name: none, port: 80, weight: 0}, {name: noport}]}",
    );
    let shares: Vec<_> = rule.destinations.iter().map(|one| (one.invalid, one.weight)).collect();
    assert_eq!(shares, [(false, 3), (true, 1), (true, 1)]);
    assert_eq!(reasons.len(), 2);
}

#[test]
fn grant_allows_listed_kinds_namespaces_and_services() {
    let spec = serde_json::json!({ "spec": {
        "from": [{ "group": GATEWAY_API, "kind": "HTTPRoute", "namespace": "web" }],
        "to": [{ "group": "", "kind": "Service", "name": "api" }, { "group": "", "kind": "Secret" }],
    }});
    let grant = ReferenceGrant::read(meta("ops", "g"), &spec).expect("it fits its schema");
    assert!(grant.permits("HTTPRoute", &"web".into(), (ServiceKind::Service, "api")));
    assert!(!grant.permits("HTTPRoute", &"web".into(), (ServiceKind::Service, "other")));
    assert!(!grant.permits("HTTPRoute", &"web".into(), (ServiceKind::ServiceImport, "api")));
    assert!(
        !grant.permits("GRPCRoute", &"web".into(), (ServiceKind::Service, "api"))
            && !grant.permits("HTTPRoute", &"x".into(), (ServiceKind::Service, "api"))
    );
}

#[test]
fn backend_may_be_a_mesh_host_or_an_import_without_a_port() {
    let (rule, reasons) = rule(
        "{backendRefs: [
            {group: networking.istio.io, kind: Hostname, name: api.example.com, port: 443},
            {group: multicluster.x-k8s.io, kind: ServiceImport, name: web},
            {group: networking.istio.io, kind: Hostname, name: api.example.com},
            {group: networking.istio.io, kind: Hostname, name: api.example.com, port: 443, namespace: other}]}",
    );
    let backends: Vec<_> =
        rule.destinations.iter().map(|one| (one.invalid, one.host.to_string(), one.port)).collect();
    assert_eq!(backends[0], (false, "api.example.com".to_owned(), Some(443)));
    assert!(!backends[1].0 && backends[1].1.starts_with("web.") && backends[1].2.is_none());
    assert!(backends[2].0 && backends[3].0, "{backends:?}");
    assert_eq!(reasons.len(), 2);
}
