use std::time::Duration;

use serde_json::{Value, json};

use super::*;
use crate::testing::kind_settings;
use crate::traffic::route::{HttpRule, PathMatch, RedirectPath, TextMatch};
use strait_base::codes::Code;

fn object(spec: &str) -> Value {
    let spec: Value = serde_saphyr::from_str(spec).expect("the text is YAML");
    serde_json::json!({ "spec": spec })
}

fn meta(namespace: &str, name: &str) -> ObjectMeta {
    ObjectMeta { created: 0, name: name.into(), namespace: namespace.into() }
}

fn read_in(namespace: &str, name: &str, spec: &str) -> (VirtualService, Vec<Reason>) {
    VirtualService::read(meta(namespace, name), &object(spec), &kind_settings())
        .expect("it fits its schema")
}

fn read(spec: &str) -> (VirtualService, Vec<Reason>) {
    read_in("shop", "reviews", spec)
}

/// Returns the codes and paths of reasons.
fn codes_and_paths(reasons: &[Reason]) -> Vec<(&'static Code, &str)> {
    reasons.iter().map(|reason| (reason.code, reason.path.as_str())).collect()
}

/// Returns a rule that sends all requests to a service, with one more field.
fn rule(more: &str) -> (HttpRule, Vec<Reason>) {
    let spec = format!("{{hosts: [a], http: [{{route: [{{destination: {{host: a}}}}], {more}}}]}}");
    let (service, reasons) = read(&spec);
    (service.http[0].clone(), reasons)
}

#[test]
fn short_names_are_in_the_namespace_of_the_object() {
    let (service, reasons) = read(
        "{hosts: [reviews, reviews.sales, '*.Example.com'], gateways: [mesh, gw, ./other, edge/gw, gw.edge.svc.cluster.local],
          http: [{route: [{destination: {host: ratings, subset: v1, port: {number: 8080}}}]}]}",
    );
    assert_eq!(reasons, []);
    let hosts: Vec<_> = service.hosts.iter().map(ToString::to_string).collect();
    assert_eq!(hosts, ["reviews.shop.svc.cluster.local", "reviews.sales", "*.example.com"]);
    assert_eq!(*service.gateways, ["mesh", "shop/gw", "shop/other", "edge/gw"].map(Arc::from));
    let to = &service.http[0].destinations[0];
    assert_eq!(
        (to.host.as_str(), to.port, &*to.subset),
        ("ratings.shop.svc.cluster.local", Some(8080), "v1")
    );
}

#[test]
fn object_that_violates_its_schema_reports_the_path() {
    let broken = [
        ("{hosts: 7}", "spec.hosts"),
        ("{hosts: [a], http: [{timeout: soon}]}", "spec.http[0].timeout"),
        ("{hosts: [a], http: [{route: [{weight: many}]}]}", "spec.http[0].route[0].weight"),
    ];
    for (spec, path) in broken {
        let reason = VirtualService::read(meta("shop", "a"), &object(spec), &kind_settings())
            .expect_err(spec);
        assert_eq!((reason.code, reason.path.as_str()), (&codes::TRAFFIC_MALFORMED, path));
    }
}

#[test]
fn invalid_host_is_left_out_alone() {
    let (service, reasons) =
        read("{hosts: [good, 'a.*', '', good, '*'], http: [{route: [{destination: {host: a}}]}]}");
    let lost = ["spec.hosts[1]", "spec.hosts[2]", "spec.hosts[3]", "spec.hosts[2]"];
    let lost = lost.map(|path| (&codes::ROUTE_HOST_INVALID, path));
    let given = codes_and_paths(&reasons);
    assert_eq!(given.iter().map(|one| one.0).collect::<Vec<_>>(), lost.map(|one| one.0));
    let mesh: Vec<_> = service.mesh_hosts().map(ToString::to_string).collect();
    assert_eq!(mesh, ["good.shop.svc.cluster.local"], "* applies only to gateways");
}

#[test]
fn settings_for_destinations_are_reported_beside_an_own_answer() {
    let settings = "rewrite: {uri: /z}, mirror: {host: m}, timeout: 1s, retries: {attempts: 7}, \
                    corsPolicy: {allowOrigins: [{exact: 'https://a'}]}";
    for answer in ["redirect: {uri: /x}", "directResponse: {status: 200}"] {
        let (service, reasons) = read(&format!("{{hosts: [a], http: [{{{answer}, {settings}}}]}}"));
        let ignored = ["rewrite", "timeout", "retries", "mirror", "corsPolicy"]
            .map(|field| format!("spec.http[0].{field}"));
        let reported: Vec<_> = codes_and_paths(&reasons);
        assert!(reported.iter().all(|(code, _)| *code == &codes::ROUTE_PART_LOST), "{answer}");
        assert!(reported.iter().map(|(_, path)| *path).eq(ignored.iter()), "{reported:?}");
        let rule = &service.http[0];
        assert!(rule.timeout.is_none() && rule.retries.is_none() && rule.mirrors.is_none());
    }
}

#[test]
fn rule_with_an_error_is_removed_unless_it_blocks() {
    let cases = [
        ("directResponse: {status: 600}, route: []", "directResponse.status", true),
        ("directResponse: {status: 99}, route: []", "directResponse.status", true),
        ("redirect: {redirectCode: 304}, route: []", "redirect.redirectCode", false),
        ("redirect: {}, route: []", "redirect", false),
        ("redirect: {redirectCode: 302}, route: []", "redirect", false),
        (
            "fault: {abort: {httpStatus: 600, percentage: {value: 100}}}",
            "fault.abort.httpStatus",
            true,
        ),
        (
            "fault: {abort: {grpcStatus: NONE, percentage: {value: 50}}}",
            "fault.abort.grpcStatus",
            false,
        ),
        ("rewrite: {uriRegexRewrite: {match: '(', rewrite: /}}", "rewrite.uriRegexRewrite", false),
        (
            "rewrite: {uriRegexRewrite: {match: '(a)', rewrite: '\\2'}}",
            "rewrite.uriRegexRewrite",
            false,
        ),
        ("headers: {request: {set: {'a b': c}}}", "headers.request.set[a b]", false),
        ("headers: {response: {add: {a: \"b\\nc\"}}}", "headers.response.add[a]", false),
        ("retries: {attempts: -1}", "retries.attempts", false),
        ("headers: {request: {set: {a: '50%'}}}", "headers.request.set[a]", false),
        ("headers: {response: {add: {a: '%NO_SUCH%'}}}", "headers.response.add[a]", false),
    ];
    for (more, path, blocks) in cases {
        let spec = if more.contains("route: []") {
            format!("{{hosts: [a], http: [{{{more}}}]}}")
        } else {
            format!("{{hosts: [a], http: [{{route: [{{destination: {{host: a}}}}], {more}}}]}}")
        };
        let (service, reasons) = read(&spec);
        let path = format!("spec.http[0].{path}");
        assert_eq!(codes_and_paths(&reasons), [(&codes::ROUTE_REFUSED, path.as_str())], "{more}");
        let rule = &service.http[0];
        assert_eq!((rule.refused, rule.is_absent), (blocks, !blocks), "{more}");
    }
}

#[test]
fn unreadable_match_removes_its_rule_unless_the_rule_blocks() {
    let matches = "match: [{uri: {prefix: /a}, headers: {x: {regex: '('}, y: {exact: z}}}, {uri: {regex: '(?=a)'}}, {uri: {prefix: /b}}]";
    let read = |action: &str| {
        let (service, reasons) = read(&format!("{{hosts: [a], http: [{{{matches}, {action}}}]}}"));
        let paths = ["spec.http[0].match[0].headers[x].regex", "spec.http[0].match[1].uri.regex"];
        assert_eq!(codes_and_paths(&reasons), paths.map(|path| (&codes::MATCH_REFUSED, path)));
        service.http[0].clone()
    };
    let route = "route: [{destination: {host: a}}]";
    for action in [
        route,
        "directResponse: {status: 204}",
        "redirect: {uri: /new}",
        &format!("{route}, fault: {{abort: {{httpStatus: 503, percentage: {{value: 1}}}}}}"),
        &format!("{route}, fault: {{abort: {{httpStatus: 299, percentage: {{value: 100}}}}}}"),
    ] {
        let rule = read(action);
        assert!(rule.is_absent && rule.matches.is_empty(), "{action}");
        assert_eq!(rule.all_destinations().count(), 0, "{action}");
    }
    for action in [
        "directResponse: {status: 403}",
        &format!("{route}, fault: {{abort: {{httpStatus: 503, percentage: {{value: 100}}}}}}"),
        &format!(
            "{route}, fault: {{abort: {{grpcStatus: UNAVAILABLE, percentage: {{value: 100}}}}}}"
        ),
    ] {
        let rule = read(action);
        assert!(!rule.is_absent, "{action}");
        let [first, second, third] = &*rule.matches else { panic!("{rule:?}") };
        assert!(first.refused && second.refused && !third.refused);
        assert_eq!(first.path, Some(PathMatch::Prefix("/a".into())));
        assert_eq!(*first.headers, [("y".into(), TextMatch::Exact("z".into()))]);
        assert!(
            second.is_catch_all(),
            "no condition is readable: all requests that reach it get 500"
        );
    }
}

#[test]
fn rules_of_a_delegate_decide_whether_a_faulty_root_blocks() {
    let root = "{match: [{headers: {x: {regex: '('}}}], delegate: {name: its, namespace: teams}}";
    let (rules, _) = delegated(
        root,
        "{http: [{match: [{uri: {prefix: /a}}], directResponse: {status: 403}}, {route: [{destination: {host: x}}]}]}",
    );
    let [blocking, other] = &*rules else { panic!("{rules:?}") };
    assert!(!blocking.is_absent && blocking.matches[0].refused, "{blocking:?}");
    assert!(other.is_absent, "{other:?}");
}

#[test]
fn redirect_may_replace_the_matched_prefix() {
    let redirect = |redirect: &str| {
        let (service, reasons) = read(&format!("{{hosts: [a], http: [{{redirect: {redirect}}}]}}"));
        let path = service.http[0].redirect.as_ref().expect("a redirect").path.clone();
        (path, reasons.into_iter().map(|one| (one.code, one.path)).collect::<Vec<_>>())
    };
    let prefix = RedirectPath::Prefix("/new".into());
    assert_eq!(redirect("{prefixRewrite: /new}"), (prefix, vec![]));
    let replaced = (&codes::TRAFFIC_REPLACED, "spec.http[0].redirect.prefixRewrite".to_owned());
    let whole = RedirectPath::Whole("/all".into());
    assert_eq!(redirect("{uri: /all, prefixRewrite: /new}"), (whole, vec![replaced]));
}

#[test]
fn header_of_responses_that_proxies_set_themselves_is_reported() {
    for (change, paths) in [
        ("response: {set: {Server: a, date: b}}", &["response.set[Server]"][..]),
        (
            "response: {remove: [Server, date, x]}",
            &["response.remove[Server]", "response.remove[date]"][..],
        ),
        ("request: {remove: [server, date]}", &[][..]),
    ] {
        let (_, reasons) = read(&format!(
            "{{hosts: [a], http: [{{route: [{{destination: {{host: a}}}}], headers: {{{change}}}}}]}}"
        ));
        let paths: Vec<_> =
            paths.iter().map(|path| format!("spec.http[0].headers.{path}")).collect();
        let expected: Vec<_> =
            paths.iter().map(|path| (&codes::ROUTE_PART_LOST, &**path)).collect();
        assert_eq!(codes_and_paths(&reasons), expected, "{change}");
    }
}

#[test]
fn settings_of_a_rule_without_effect_have_a_reason() {
    for (settings, path) in [
        ("fault: {abort: {httpStatus: 500, percentage: {value: 0}}}", "fault.abort.percentage"),
        ("fault: {delay: {fixedDelay: 1s, percentage: {value: 0}}}", "fault.delay.percentage"),
        ("mirrorPercentage: {value: 5}", "mirrorPercentage"),
        ("mirror: {host: m}, mirrorPercentage: {value: 0}", "mirrorPercentage"),
        ("mirrors: [{destination: {host: m}, percentage: {value: 0}}]", "mirrors[0].percentage"),
        ("corsPolicy: {allowMethods: [GET]}", "corsPolicy.allowOrigins"),
        (
            "corsPolicy: {allowOrigins: [{exact: b}], allowCredentials: true, exposeHeaders: ['*']}",
            "corsPolicy.exposeHeaders",
        ),
        (
            "corsPolicy: {allowOrigins: [{exact: b}], allowCredentials: true, allowHeaders: [a, '*']}",
            "corsPolicy.allowHeaders",
        ),
        ("match: [{ignoreUriCase: true, method: {exact: GET}}]", "match[0].ignoreUriCase"),
        ("timeout: 1s, retries: {attempts: 1, perTryTimeout: 5s}", "retries.perTryTimeout"),
        ("rewrite: {authority: bad host}", "rewrite.authority"),
    ] {
        let (_, reasons) = read(&format!(
            "{{hosts: [a], http: [{{route: [{{destination: {{host: a}}}}], {settings}}}]}}"
        ));
        let paths: Vec<_> = reasons.iter().map(|reason| &*reason.path).collect();
        assert_eq!(paths, [format!("spec.http[0].{path}")], "{settings}");
        assert!(reasons.iter().all(|reason| reason.is_lost && !reason.is_fault()));
    }
    for settings in [
        "timeout: 0s, retries: {attempts: 1, perTryTimeout: 5s}",
        "rewrite: {authority: 'a.example:80'}",
        "corsPolicy: {allowOrigins: [{exact: b}], exposeHeaders: ['*']}",
    ] {
        let (_, reasons) = read(&format!(
            "{{hosts: [a], http: [{{route: [{{destination: {{host: a}}}}], {settings}}}]}}"
        ));
        assert_eq!(reasons, [], "{settings}");
    }
}

#[test]
fn single_label_is_a_valid_server_name() {
    let names = |hosts: &str, name: &str| {
        let (service, reasons) = read(&format!(
            "{{hosts: {hosts}, tls: [{{match: [{{sniHosts: [{name}]}}], route: [{{destination: {{host: a}}}}]}}]}}"
        ));
        (service.tls.len(), reasons.len())
    };
    assert_eq!(names("[db]", "db"), (1, 0));
    assert_eq!(names("[db]", "DB"), (1, 0));
    assert_eq!(names("[db]", "db.shop.svc.cluster.local"), (1, 0));
    assert_eq!(names("['*']", "db"), (1, 1), "* applies only to gateways");
    assert_eq!(names("[db]", "other"), (0, 2));
    assert_eq!(names("[db]", "'*b'"), (0, 2));
}

#[test]
fn zero_weight_gets_no_requests_and_a_zero_sum_has_no_destination() {
    let weights = |weights: [i64; 2]| {
        let [a, b] = weights;
        let (service, reasons) = read(&format!(
            "{{hosts: [a], http: [{{route: [{{destination: {{host: a}}, weight: {a}}}, {{destination: {{host: b}}, weight: {b}}}]}}]}}"
        ));
        let rule = &service.http[0];
        let reported: Vec<_> = reasons.into_iter().map(|one| (one.code, one.path)).collect();
        (reported, rule.destinations.iter().map(|one| one.weight).collect::<Vec<_>>())
    };
    let refused = |path: &str| vec![(&codes::ROUTE_REFUSED, path.to_owned())];
    assert_eq!(weights([90, 10]), (vec![], vec![90, 10]));
    assert_eq!(weights([100, 0]), (vec![], vec![100]));
    assert_eq!(weights([0, 0]), (refused("spec.http[0].route"), vec![]));
    assert_eq!(weights([-1, 101]), (refused("spec.http[0].route[0]"), vec![]));
    let (rule, _) = rule("name: one");
    assert_eq!(rule.destinations[0].weight, 1, "the weight of a single destination is ignored");
}

#[test]
fn negative_weight_of_a_single_destination_is_refused() {
    for (list, code, path) in [
        ("http", &codes::ROUTE_REFUSED, "spec.http[0].route[0]"),
        ("tcp", &codes::DESTINATION_INVALID, "spec.tcp[0].route[0].weight"),
    ] {
        let (_, reasons) = read(&format!(
            "{{hosts: [a], {list}: [{{route: [{{destination: {{host: a}}, weight: -1}}]}}]}}"
        ));
        assert_eq!((reasons[0].code, &*reasons[0].path), (code, path));
    }
}

#[test]
fn fields_without_an_effect_are_reported() {
    for (more, code, path) in [
        ("rewrite: {}", &codes::ROUTE_PART_LOST, "rewrite"),
        (
            "rewrite: {uri: /a, uriRegexRewrite: {match: b, rewrite: c}}",
            &codes::TRAFFIC_REPLACED,
            "rewrite.uriRegexRewrite",
        ),
        ("fault: {}", &codes::ROUTE_PART_LOST, "fault"),
        (
            "fault: {abort: {httpStatus: 500, grpcStatus: OK, percentage: {value: 5}}}",
            &codes::TRAFFIC_REPLACED,
            "fault.abort.grpcStatus",
        ),
        (
            "corsPolicy: {allowOrigins: [{exact: b, prefix: c}]}",
            &codes::ROUTE_PART_LOST,
            "corsPolicy.allowOrigins[0]",
        ),
        (
            "corsPolicy: {allowOrigins: [{exact: b}], allowMethods: [GET, 'NO WAY']}",
            &codes::ROUTE_PART_LOST,
            "corsPolicy.allowMethods[1]",
        ),
        (
            "corsPolicy: {allowOrigins: [{exact: b}], allowHeaders: [a, '']}",
            &codes::ROUTE_PART_LOST,
            "corsPolicy.allowHeaders[1]",
        ),
        (
            "corsPolicy: {allowOrigins: [{exact: b}], maxAge: 1.5s}",
            &codes::ROUTE_PART_LOST,
            "corsPolicy.maxAge",
        ),
        (
            "corsPolicy: {allowOrigins: [{exact: b}], unmatchedPreflights: ODD}",
            &codes::ROUTE_PART_LOST,
            "corsPolicy.unmatchedPreflights",
        ),
        ("match: [{uri: {prefix: ''}}]", &codes::ROUTE_PART_LOST, "match[0].uri.prefix"),
        ("match: [{port: 0}]", &codes::TRAFFIC_PORT, "match[0].port"),
        ("mirror: {host: b, port: {number: 0}}", &codes::TRAFFIC_PORT, "mirror.port.number"),
    ] {
        let spec = if more.contains("route: []") {
            format!("{{hosts: [a], http: [{{{more}}}]}}")
        } else {
            format!("{{hosts: [a], http: [{{route: [{{destination: {{host: a}}}}], {more}}}]}}")
        };
        let (service, reasons) = read(&spec);
        let path = format!("spec.http[0].{path}");
        assert_eq!(codes_and_paths(&reasons), [(code, path.as_str())], "{more}");
        assert!(!service.http[0].refused, "{more}: it still routes to its destination");
    }
}

#[test]
fn alternatives_in_an_own_answer_are_reported() {
    for (answer, path) in [
        ("redirect: {uri: /a, port: 8443, derivePort: FROM_REQUEST_PORT}", "redirect.derivePort"),
        ("redirect: {uri: /a, prefixRewrite: /b}", "redirect.prefixRewrite"),
        (
            "directResponse: {status: 200, body: {string: a, bytes: Yg==}}",
            "directResponse.body.bytes",
        ),
    ] {
        let (_, reasons) = read(&format!("{{hosts: [a], http: [{{{answer}}}]}}"));
        let path = format!("spec.http[0].{path}");
        assert_eq!(codes_and_paths(&reasons), [(&codes::TRAFFIC_REPLACED, path.as_str())]);
    }
}

#[test]
fn zero_timeout_and_lists_in_one_name_are_accepted() {
    let (rule, reasons) = rule(
        "timeout: 0s, corsPolicy: {allowOrigins: [{exact: b}], allowMethods: [GET, '*'], allowHeaders: ['a, b'], maxAge: 24h}",
    );
    assert_eq!(reasons, []);
    assert_eq!(rule.timeout, Some(Duration::ZERO), "with which a delegate may override its root");
    let cors = rule.cors.as_ref().expect("it has some");
    assert_eq!((&*cors.methods, &*cors.headers), ("GET,*", "a, b"));
}

#[test]
fn invalid_ports_and_weights_of_connections_are_reported() {
    let (service, reasons) = read(
        "{hosts: [a], tcp: [{match: [{port: 0}], route: [{destination: {host: a, port: {number: 0}}, weight: -1}, {destination: {host: b}, weight: 1}]}]}",
    );
    let expected = [
        (&codes::TRAFFIC_PORT, "spec.tcp[0].match[0].port"),
        (&codes::DESTINATION_INVALID, "spec.tcp[0].route[0].weight"),
        (&codes::TRAFFIC_PORT, "spec.tcp[0].route[0].destination.port.number"),
    ];
    assert_eq!(codes_and_paths(&reasons), expected);
    assert_eq!(service.tcp[0].destinations.len(), 1);
}

#[test]
fn redundant_export_entries_are_reported() {
    let spec = |export: &str| {
        format!(
            "{{hosts: [a], exportTo: {export}, http: [{{route: [{{destination: {{host: a}}}}]}}]}}"
        )
    };
    for (export, path) in [
        ("[web, web]", "spec.exportTo[1]"),
        ("['.', '.']", "spec.exportTo[1]"),
        ("[web, '*']", "spec.exportTo[0]"),
    ] {
        let (_, reasons) = read(&spec(export));
        assert_eq!(codes_and_paths(&reasons), [(&codes::TRAFFIC_REPLACED, path)], "{export}");
    }
    assert_eq!(read(&spec("[web, '.']")).1, []);
}

#[test]
fn invalid_destination_keeps_its_weight() {
    let (service, reasons) = read(
        "{hosts: [a], http: [{route: [{destination: {host: '*'}, weight: 30}, {destination: {host: b}, weight: 70}]}]}",
    );
    assert_eq!(
        codes_and_paths(&reasons),
        [(&codes::DESTINATION_INVALID, "spec.http[0].route[0].destination")]
    );
    let shares: Vec<_> =
        service.http[0].destinations.iter().map(|one| (one.invalid, one.weight)).collect();
    assert_eq!(shares, [(true, 30), (false, 70)]);
}

#[test]
fn either_name_of_the_host_header_changes_the_host() {
    let (rule, reasons) = rule(
        "headers: {request: {set: {Host: first, X-A: b, ':path': /}, add: {':authority': second}, remove: [U]}}",
    );
    let changes = rule.headers.as_ref().expect("it has some");
    assert_eq!(changes.host.as_deref(), Some("first"));
    assert_eq!(*changes.request.set, [("x-a".into(), "b".into())]);
    assert_eq!(*changes.request.remove, [Arc::from("u")]);
    let replaced = (&codes::TRAFFIC_REPLACED, "spec.http[0].headers.request.add[:authority]");
    let lost = (&codes::ROUTE_PART_LOST, "spec.http[0].headers.request.set[:path]");
    assert_eq!(codes_and_paths(&reasons), [replaced, lost]);
    assert!(!rule.refused);
}

#[test]
fn invalid_host_is_skipped_for_the_next_valid_one() {
    let (rule, reasons) =
        rule("headers: {request: {set: {':authority': '', Host: \"a\\nb\"}, add: {host: c}}}");
    assert_eq!(rule.headers.as_ref().and_then(|changes| changes.host.as_deref()), Some("c"));
    let lost = |name| (&codes::ROUTE_PART_LOST, name);
    assert_eq!(
        codes_and_paths(&reasons),
        [
            lost("spec.http[0].headers.request.set[:authority]"),
            lost("spec.http[0].headers.request.set[Host]"),
        ]
    );
}

#[test]
fn numbers_in_retry_conditions_are_status_codes() {
    let (rule, reasons) =
        rule("retries: {attempts: 3, perTryTimeout: 2s, retryOn: 'connect-failure, 503, 1000'}");
    let retries = rule.retries.as_ref().expect("it has some");
    assert_eq!(&*retries.on, "connect-failure,1000,retriable-status-codes");
    assert_eq!(*retries.statuses, [503]);
    assert_eq!(
        codes_and_paths(&reasons),
        [(&codes::ROUTE_PART_LOST, "spec.http[0].retries.retryOn")]
    );
}

#[test]
fn percentages_are_stored_per_million_and_the_newer_field_applies() {
    let (rule, reasons) = rule(
        "mirror: {host: b}, mirrorPercent: 50, mirrorPercentage: {value: 0.1}, mirrors: [{destination: {host: c}, percentage: {value: 0}}],
         fault: {delay: {fixedDelay: 5s, percentage: {value: 12.5}}, abort: {grpcStatus: UNAVAILABLE, percentage: {value: 100}}}",
    );
    let expected = [
        (&codes::ROUTE_PART_LOST, "spec.http[0].mirrors[0].percentage"),
        (&codes::TRAFFIC_REPLACED, "spec.http[0].mirrorPercent"),
    ];
    assert_eq!(codes_and_paths(&reasons), expected);
    let shares: Vec<_> = rule
        .mirrors
        .iter()
        .flatten()
        .map(|one| (one.destination.host.as_str(), one.per_million))
        .collect();
    assert_eq!(shares, [("b.shop.svc.cluster.local", 1_000)]);
    let fault = rule.fault.as_ref().expect("it has one");
    assert_eq!(fault.delay.map(|delay| delay.1), Some(125_000));
    assert_eq!(fault.abort, Some((crate::traffic::route::AbortStatus::Grpc(14), 1_000_000)));
}

#[test]
fn older_field_is_reported_next_to_the_newer_one_that_applies() {
    let (_, reasons) = rule(
        "fault: {delay: {fixedDelay: 5s, percent: 10, percentage: {value: 20}}},
         corsPolicy: {allowOrigin: ['https://a.example'], allowOrigins: [{exact: 'https://b.example'}]}",
    );
    let path = |field: &str| format!("spec.http[0].{field}");
    let found: Vec<_> = reasons.iter().map(|one| (one.path.to_string(), &*one.text)).collect();
    assert_eq!(
        found,
        [
            (path("fault.delay.percent"), "percentage is set too and takes precedence"),
            (path("corsPolicy.allowOrigin"), "allowOrigins is set too and takes precedence"),
        ]
    );
}

#[test]
fn address_ranges_apply_only_to_their_own_tls_match() {
    let (service, reasons) = read(
        "{hosts: ['*.a.com'], tls: [{match: [{sniHosts: [x.a.com], destinationSubnets: [10.1.0.0/16]}, {sniHosts: [y.a.com, z.b.com]}],
          route: [{destination: {host: a.com}}]}]}",
    );
    assert_eq!(
        codes_and_paths(&reasons),
        [(&codes::MATCH_REFUSED, "spec.tls[0].match[1].sniHosts[1]")]
    );
    let [first, second] = &*service.tls[0].matches else { panic!("{service:?}") };
    assert_eq!((first.to.len(), second.to.len()), (1, 0));
    assert_eq!(*second.server_names, [Arc::from("y.a.com")]);
}

#[test]
fn rules_for_connections_behind_earlier_ones_are_reported() {
    let covered = |list: &str, rules: &[&str]| {
        let rules =
            rules.iter().map(|one| format!("{{{one} route: [{{destination: {{host: a}}}}]}}"));
        let rules = rules.collect::<Vec<_>>().join(", ");
        let (_, reasons) = read(&format!("{{hosts: ['*.a.com'], {list}: [{rules}]}}"));
        assert!(reasons.iter().all(|one| one.code == &codes::RULE_UNREACHABLE), "{reasons:?}");
        reasons.into_iter().map(|one| one.path).collect::<Vec<_>>()
    };
    let port = "match: [{port: 81}],";
    let labels = "match: [{port: 81, sourceLabels: {app: web}}],";
    let range = "match: [{destinationSubnets: [10.0.0.0/8]}],";
    assert_eq!(covered("tcp", &["", port]), ["spec.tcp[1]"]);
    assert_eq!(covered("tcp", &["", range, labels]), ["spec.tcp[1]", "spec.tcp[2]"]);
    assert_eq!(covered("tcp", &[port, labels]), ["spec.tcp[1]"]);
    assert_eq!(covered("tcp", &[labels, port, range, ""]), [""; 0]);
    assert_eq!(covered("tcp", &[port, "match: [{port: 81}, {port: 82}],"]), [""; 0]);
    let [x, y] = ["x", "y"].map(|name| format!("match: [{{sniHosts: [{name}.a.com]}}],"));
    let both = "match: [{sniHosts: [y.a.com, x.a.com]}],";
    let wide = "match: [{sniHosts: ['*.a.com']}],";
    assert_eq!(covered("tls", &[&x, &x]), ["spec.tls[1]"]);
    assert_eq!(covered("tls", &[both, &y]), ["spec.tls[1]"]);
    assert_eq!(covered("tls", &[&x, &y, wide]), [""; 0]);
    // The most specific name decides.
    assert_eq!(covered("tls", &[wide, &x]), [""; 0]);
    assert_eq!(covered("tls", &[&x, both]), [""; 0]);
}

#[test]
fn rule_after_a_catch_all_is_reported() {
    let (_, reasons) = read(
        "{hosts: [a], http: [{match: [{method: {exact: GET}}], route: [{destination: {host: a}}]}, {route: [{destination: {host: a}}]},
          {match: [{uri: {prefix: /a}}], route: [{destination: {host: a}}]}]}",
    );
    assert_eq!(codes_and_paths(&reasons), [(&codes::RULE_UNREACHABLE, "spec.http[2]")]);
}

/// Returns the rules of a root with a delegate, and the codes of the reasons.
fn delegated(root: &str, delegate: &str) -> (Vec<HttpRule>, Vec<&'static Code>) {
    let (root, _) = read(&format!("{{hosts: [a], http: [{root}]}}"));
    let (delegate, _) = read_in("teams", "its", delegate);
    let find = |name: &Delegate| (name.to_string() == "its.teams").then_some(&delegate);
    let (routes, reasons) = root.routes(find);
    (routes.rules.to_vec(), reasons.iter().map(|reason| reason.code).collect())
}

#[test]
fn rules_of_a_delegate_replace_the_rule_of_the_root() {
    let root = "{name: root, match: [{uri: {prefix: /shop}, sourceNamespace: web}], timeout: 3s, delegate: {name: its, namespace: teams}},
                {name: rest, route: [{destination: {host: b}}]}";
    let (rules, codes) = delegated(
        root,
        "{http: [{name: a, match: [{uri: {prefix: /shop/a}, headers: {x: {exact: '1'}}}], timeout: 1s, route: [{destination: {host: x}}]},
                 {match: [{uri: {prefix: /other}}], route: [{destination: {host: v}}]}, {name: all, route: [{destination: {host: z}}]}]}",
    );
    let names: Vec<_> = rules.iter().map(|rule| &*rule.name).collect();
    assert_eq!(names, ["root-a", "root-all", "rest"]);
    assert_eq!(codes, [&codes::DELEGATE_CONFLICT], "nothing fits both /shop and /other");
    let [first, second, _] = &*rules else { panic!("{rules:?}") };
    assert_eq!(first.matches[0].path, Some(PathMatch::Prefix("/shop/a".into())));
    assert_eq!(
        first.matches[0].source.namespace,
        Some("web".into()),
        "the delegate inherits the condition of the root"
    );
    assert_eq!(second.matches[0].path, Some(PathMatch::Prefix("/shop".into())));
    let timeouts = [first, second].map(|rule| rule.timeout.map(|timeout| timeout.as_secs()));
    assert_eq!(timeouts, [Some(1), Some(3)]);
    assert_eq!(
        first.destinations[0].host.as_str(),
        "x.teams.svc.cluster.local",
        "in the delegate's namespace"
    );
}

#[test]
fn size_limit_of_rules_counts_each_host_and_match() {
    let read = |hosts: usize, matches: usize, body: usize| {
        let hosts: Vec<_> = (0..hosts).map(|at| format!("h{at}")).collect();
        let matches: Vec<_> =
            (0..matches).map(|at| json!({ "uri": { "exact": format!("/{at}") } })).collect();
        let body = json!({ "status": 200, "body": { "string": "x".repeat(body) } });
        let spec =
            json!({ "hosts": hosts, "http": [{ "match": matches, "directResponse": body }] });
        VirtualService::read(meta("shop", "one"), &json!({ "spec": spec }), &kind_settings())
    };
    read(1, 1, 1 << 20).expect("as large as an object may be, for one host");
    read(1, 16, (1 << 20) - 500).expect("not more than the bound");
    read(300, 300, 200).expect("hosts share their routes");
    read(100, 100, 100).expect("nothing out of the way");
    for (hosts, matches, body) in [(1, 17, 1 << 20), (300, 300, 60_000)] {
        let refused = read(hosts, matches, body).expect_err("more");
        assert_eq!((refused.code, &*refused.path), (&codes::ROUTES_SURPLUS, "spec"));
        let text = " as routes, but the maximum for one object is 17 MB: ";
        assert!(refused.text.contains(text), "{refused}");
    }
    let names = vec!["a.example"; 1_000];
    let subnets = vec!["10.0.0.0/8"; 1_000];
    let to = json!([{ "destination": { "host": "a" } }]);
    let tls =
        json!([{ "match": [{ "sniHosts": names, "destinationSubnets": subnets }], "route": to }]);
    let object = json!({ "spec": { "hosts": ["a.example"], "tls": tls } });
    let refused = VirtualService::read(meta("shop", "one"), &object, &kind_settings());
    assert_eq!(refused.expect_err("a million chains").code, &codes::ROUTES_SURPLUS);
}

#[test]
fn size_limit_of_delegates_counts_each_delegating_rule() {
    let joined_count = |delegating: usize, conditions: [usize; 2], body: usize| {
        let matches = |count| format!("match: [{}]", vec!["{uri: {prefix: /a}}"; count].join(", "));
        let [root, its] = conditions.map(matches);
        let root = format!("{{delegate: {{name: its, namespace: teams}}, {root}}}");
        let root = vec![root; delegating].join(", ");
        let body = "x".repeat(body);
        let its = format!("{{directResponse: {{status: 200, body: {{string: {body}}}}}, {its}}}");
        let (rules, codes) = delegated(&root, &format!("{{http: [{its}]}}"));
        assert!(codes.iter().all(|code| *code == &codes::ROUTES_SURPLUS), "{codes:?}");
        assert_eq!(rules.len() + codes.len(), delegating);
        rules.len()
    };
    assert_eq!(joined_count(20, [1, 1], 1_000_000), 16, "bytes");
    assert_eq!(joined_count(4, [3, 2], 1_000_000), 2, "bytes of six routes each");
    assert_eq!(joined_count(60, [1, 1_000], 1), 50, "pairs of conditions");
    assert_eq!(joined_count(60, [2, 5], 1), 60);
}

#[test]
fn missing_delegate_removes_its_rule() {
    let root = "{delegate: {name: its, namespace: teams}}, {name: rest, route: [{destination: {host: b}}]}";
    for delegate in
        ["{hosts: [x], http: [{name: a, route: []}]}", "{exportTo: [.], http: [{name: a}]}"]
    {
        let (rules, codes) = delegated(root, delegate);
        assert_eq!(rules.iter().map(|rule| &*rule.name).collect::<Vec<_>>(), ["rest"]);
        assert_eq!(codes, [&codes::DELEGATE_MISSING]);
    }
}

#[test]
fn contradicting_conditions_are_reported() {
    let cases = [
        ("uri: {exact: /a}", "uri: {prefix: /a}"),
        ("uri: {regex: /a.*}", "uri: {exact: /ab}"),
        ("port: 80", "port: 81"),
        ("headers: {x: {exact: a}}", "headers: {X: {exact: b}}"),
        ("sourceNamespace: a", "sourceNamespace: b"),
        ("sourceLabels: {v: '1'}", "sourceLabels: {v: '2'}"),
        ("gateways: [mesh]", "gateways: [gw]"),
        ("uri: {prefix: /a}, ignoreUriCase: true", "uri: {prefix: /ab}"),
    ];
    for (root, its) in cases {
        let root = format!("{{match: [{{{root}}}], delegate: {{name: its, namespace: teams}}}}");
        let its =
            format!("{{http: [{{match: [{{{its}}}], route: [{{destination: {{host: x}}}}]}}]}}");
        let (rules, codes) = delegated(&root, &its);
        assert_eq!((rules.len(), codes), (0, vec![&codes::DELEGATE_CONFLICT]), "{root} {its}");
    }
}

#[test]
fn condition_with_several_values_is_reported() {
    let (rule, reasons) = rule(
        "match: [{uri: {exact: /a, prefix: /b}, headers: {x: {prefix: p, regex: r}, y: {exact: e}}}]",
    );
    assert_eq!(
        codes_and_paths(&reasons),
        [
            (&codes::ROUTE_PART_LOST, "spec.http[0].match[0].uri"),
            (&codes::ROUTE_PART_LOST, "spec.http[0].match[0].headers[x]"),
        ]
    );
    assert_eq!(rule.matches[0].path, Some(PathMatch::Exact("/a".into())));
    let texts =
        [("x".into(), TextMatch::Prefix("p".into())), ("y".into(), TextMatch::Exact("e".into()))];
    assert_eq!(*rule.matches[0].headers, texts);
}

#[test]
fn conditions_that_no_request_meets_are_reported() {
    for (condition, field) in [
        ("uri: {exact: '/a?b=c'}", Some("uri")),
        ("uri: {prefix: '/a#b'}", Some("uri")),
        ("uri: {prefix: a}", Some("uri")),
        ("uri: {exact: ''}", Some("uri")),
        ("uri: {exact: '*'}", None),
        ("uri: {regex: '.*[?]'}", None),
        ("method: {exact: get}", Some("method")),
        ("method: {exact: own}", None),
        ("method: {prefix: P}", None),
        ("authority: {prefix: '*.example'}", Some("authority")),
        ("authority: {regex: '.*example'}", None),
        ("sourceNamespace: web", Some("sourceNamespace")),
        ("sourceNamespace: shop", None),
    ] {
        let (_, reasons) = read(&format!(
            "{{hosts: [a], exportTo: [.], http: [{{match: [{{port: 80, {condition}}}], route: [{{destination: {{host: a}}}}]}}]}}"
        ));
        let path = field.map(|field| format!("spec.http[0].match[0].{field}"));
        let expected: Vec<_> = path.iter().map(|path| (&codes::MATCH_NEVER, &**path)).collect();
        assert_eq!(codes_and_paths(&reasons), expected, "{condition}");
        assert!(!reasons.iter().any(Reason::is_fault), "the object applies nevertheless");
    }
    for (authority, gateways, is_met) in [
        ("b.example", "edge/g", false),
        ("'*.example'", "edge/g", false),
        ("a.example:8443", "edge/g", true),
        ("x.c.example", "edge/g", true),
        ("b.example", "mesh, edge/g", true),
    ] {
        let rule = format!(
            "{{match: [{{authority: {{exact: {authority}}}}}], route: [{{destination: {{host: a}}}}]}}"
        );
        let (_, reasons) = read(&format!(
            "{{hosts: [a.example, '*.c.example'], gateways: [{gateways}], http: [{rule}]}}"
        ));
        let path = "spec.http[0].match[0].authority";
        let expected = if is_met { vec![] } else { vec![(&codes::MATCH_NEVER, path)] };
        assert_eq!(codes_and_paths(&reasons), expected, "{authority} at {gateways}");
    }
    let rule =
        "match: [{port: 81}, {port: 80, sourceNamespace: web}], route: [{destination: {host: a}}]";
    let (_, reasons) = read(&format!("{{hosts: [a], exportTo: [., ops], tcp: [{{{rule}}}]}}"));
    let path = "spec.tcp[0].match[1].sourceNamespace";
    assert_eq!(codes_and_paths(&reasons), [(&codes::MATCH_NEVER, path)]);
}

#[test]
fn retries_without_attempts_are_disabled_and_reported() {
    let (off, reasons) = rule("retries: {attempts: 0}");
    assert_eq!((off.retries.as_ref().map(|one| one.attempts), reasons), (Some(0), Vec::new()));
    let (_, reasons) = rule("retries: {retryOn: 5xx, perTryTimeout: 2s}");
    assert_eq!(
        codes_and_paths(&reasons),
        [(&codes::ROUTE_PART_LOST, "spec.http[0].retries.attempts")]
    );
}

#[test]
fn value_that_is_too_long_for_envoy_affects_only_its_rule() {
    let long = "y".repeat((16 << 10) + 1);
    let many: Vec<_> = (0..1000).map(|at| format!("x{at}: a")).collect();
    for (more, path) in [
        (format!("headers: {{request: {{set: {{x: {long}}}}}}}"), "headers.request.set[x]"),
        // Reported once, however many there are.
        (
            format!("headers: {{response: {{add: {{{}}}}}}}", many.join(", ")),
            "headers.response.add",
        ),
    ] {
        let (rule, reasons) = rule(&more);
        assert!(rule.is_absent);
        assert_eq!(
            codes_and_paths(&reasons),
            [(&codes::ROUTE_REFUSED, &*format!("spec.http[0].{path}"))]
        );
    }
    // Unquoted YAML keys cannot be this long.
    let mut query = serde_json::Map::new();
    query.insert("q".repeat(1025), serde_json::json!({ "exact": "a" }));
    let route = serde_json::json!([{ "destination": { "host": "a" } }]);
    let rules = serde_json::json!([{ "match": [{ "queryParams": query }], "route": route }]);
    let object_read = serde_json::json!({ "spec": { "hosts": ["a"], "http": rules } });
    let read = VirtualService::read(meta("shop", "a"), &object_read, &kind_settings());
    let (service, reasons) = read.expect("it fits its schema");
    assert!(service.http[0].is_absent);
    assert_eq!(reasons[0].code, &codes::MATCH_REFUSED, "{reasons:?}");
    let spec = "{hosts: [a], http: [{timeout: 3000000h, route: [{destination: {host: a}}]}]}";
    let reason = VirtualService::read(meta("shop", "a"), &object(spec), &kind_settings());
    assert_eq!(reason.expect_err("Envoy rejects such a long timeout").path, "spec.http[0].timeout");
}

#[test]
fn matches_covered_by_an_earlier_one_have_a_reason() {
    let to = "route: [{destination: {host: a}}]";
    let covered = |matches: &[&str]| {
        let rules = matches.iter().map(|one| format!("{{match: [{one}], {to}}}"));
        let (_, reasons) =
            read(&format!("{{hosts: [a], http: [{}]}}", rules.collect::<Vec<_>>().join(", ")));
        let found = codes_and_paths(&reasons);
        assert!(found.iter().all(|(code, _)| *code == &codes::RULE_UNREACHABLE), "{found:?}");
        found.into_iter().map(|(_, path)| path.to_owned()).collect::<Vec<_>>()
    };
    let second = ["spec.http[1].match[0]"];
    let a = "{uri: {prefix: /a}}";
    assert_eq!(covered(&[a, a]), second);
    assert_eq!(covered(&[a, "{uri: {exact: /a/b}}"]), second);
    assert_eq!(covered(&[a, "{uri: {prefix: /ab}, name: other}"]), second);
    assert_eq!(
        covered(&["{method: {exact: GET}}", "{method: {exact: GET}, uri: {prefix: /a}}"]),
        second
    );
    for narrower in [
        "{uri: {prefix: /a}, method: {exact: GET}}",
        "{uri: {prefix: /a}, headers: {x: {exact: b}}}",
        "{uri: {prefix: /a/b}, port: 81}",
        "{uri: {prefix: /a/b}, sourceNamespace: web}",
        "{uri: {prefix: /a/b}, sourceLabels: {app: web}, queryParams: {q: {exact: b}}}",
    ] {
        assert_eq!(covered(&[a, narrower]), second, "{narrower}");
    }
    let with_header = "{uri: {prefix: /a}, headers: {x: {exact: b}}}";
    for other in [
        "{uri: {prefix: /a}}",
        "{uri: {prefix: /a}, headers: {x: {exact: c}}}",
        "{uri: {prefix: /a}, headers: {y: {exact: b}}}",
        "{uri: {prefix: /}, headers: {x: {exact: b}}}",
    ] {
        assert_eq!(covered(&[with_header, other]), [""; 0], "{other}");
    }
    for other in [
        "{uri: {prefix: /}, method: {exact: GET}}",
        "{uri: {prefix: /b}}",
        "{uri: {regex: /a.*}}",
        "{uri: {prefix: /a/b}, ignoreUriCase: true}",
    ] {
        assert_eq!(covered(&[a, other]), [""; 0], "{other}");
    }
}

#[test]
fn parts_without_an_effect_have_a_reason() {
    let (_, reasons) = read("{hosts: [a]}");
    assert_eq!(codes_and_paths(&reasons), [(&codes::ROUTE_PART_LOST, "spec")]);
    for (more, path) in [
        ("rewrite: {uriRegexRewrite: {match: a}}", "rewrite.uriRegexRewrite.rewrite"),
        ("headers: {response: {set: {Server: own}}}", "headers.response.set[Server]"),
    ] {
        let (found, reasons) = rule(more);
        let path = format!("spec.http[0].{path}");
        assert_eq!(codes_and_paths(&reasons), [(&codes::ROUTE_PART_LOST, path.as_str())]);
        assert!(!found.is_absent);
    }
}
