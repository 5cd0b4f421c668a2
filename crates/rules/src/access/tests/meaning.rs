//! Meaning of authorization policies. Includes known faults of other implementations that Strait
//! must not have (docs/reference/access-support.md lists them).

use super::*;

fn allow(rules: Value) -> Value {
    policy("allow", json!({ "rules": rules }))
}

fn deny(rules: Value) -> Value {
    policy("deny", json!({ "action": "DENY", "rules": rules }))
}

fn to(operation: Value) -> Value {
    json!([{ "to": [{ "operation": operation }] }])
}

fn from(source: Value) -> Value {
    json!([{ "from": [{ "source": source }] }])
}

fn when(key: &str, values: &[&str]) -> Value {
    json!([{ "when": [{ "key": key, "values": values }] }])
}

fn with_header(name: &str, value: &str) -> AccessRequest {
    let mut request = request("client", "/");
    request.headers.insert(name.to_owned(), value.to_owned());
    request
}

fn at_host(host: &str) -> AccessRequest {
    with_header(":authority", host)
}

fn request_from(identity: &str) -> AccessRequest {
    AccessRequest { identity: Some(format!("spiffe://{identity}")), ..request("client", "/") }
}

fn in_plain_text() -> AccessRequest {
    AccessRequest { identity: None, ..request("client", "/") }
}

#[test]
fn policies_decide_in_order() {
    let mut index = index();
    let policies = index.hold([]);
    assert!(policies.allows(&request("client", "/")), "there are no policies");
    let nothing = policy("nothing", json!({}));
    let policies = index.hold([nothing.clone()]);
    assert!(!policies.allows(&request("client", "/")), "a policy without rules allows nothing");
    let everything = allow(json!([{}]));
    let policies = index.hold([nothing, everything.clone()]);
    assert!(policies.allows(&request("client", "/")));
    let policies = index.hold([everything, deny(to(json!({ "paths": ["/admin*"] })))]);
    assert!(policies.allows(&request("client", "/")));
    let denied = policies.decides(WireForm::Http, &request("client", "/admin/x"));
    assert_eq!(denied.verdict, AccessVerdict::Deny);
    assert_eq!(denied.rule.as_deref(), Some("ns[shop]-policy[deny]-rule[0]"));
    let elsewhere =
        object("AuthorizationPolicy", "other", "deny", json!({ "action": "DENY", "rules": [{}] }));
    assert!(index.hold([elsewhere]).allows(&request("client", "/")));
    let mesh_policy = object(
        "AuthorizationPolicy",
        ROOT,
        "deny",
        json!({
            "action": "DENY", "selector": { "matchLabels": { "app": "web" } }, "rules": [{}],
        }),
    );
    assert!(!index.hold([mesh_policy]).allows(&request("client", "/")));
}

#[test]
fn fields_are_anded_and_values_ored() {
    let rules = json!([{
        "from": [{ "source": { "principals": ["mesh.example/ns/shop/sa/a"], "notIpBlocks": ["10.9.0.0/16"] } },
                 { "source": { "namespaces": ["s*p"], "serviceAccounts": ["b"] } }],
        "to": [{ "operation": { "methods": ["GET", "HEAD"], "notPaths": ["*.secret"] } }],
        "when": [{ "key": "destination.port", "values": ["8080"], "notValues": ["9090"] }],
    }]);
    // A source with both an account and a namespace is refused, so this rule allows nothing.
    let policies = index().hold([allow(rules.clone())]);
    assert!(!policies.allows(&request("a", "/")));
    let mut rules = rules;
    rules[0]["from"][1]["source"] = json!({ "serviceAccounts": ["b"] });
    let policies = index().hold([allow(rules)]);
    for (account, path, passes) in
        [("a", "/", true), ("b", "/x", true), ("c", "/", false), ("a", "/x.secret", false)]
    {
        assert_eq!(policies.allows(&request(account, path)), passes, "{account} {path}");
    }
    let other_port = AccessRequest { port: Some(9090), ..request("a", "/") };
    assert!(!policies.allows(&other_port));
    let post = with_header(":method", "POST");
    assert!(!policies.allows(&post));
}

/// F-1: a dry run never changes a decision, whatever its action.
#[test]
fn dry_run_changes_no_decision() {
    for (action, rules) in [("DENY", json!([{}])), ("ALLOW", Value::Null), ("AUDIT", json!([{}]))] {
        let mut tried = policy("tried", json!({ "action": action, "rules": rules }));
        tried["metadata"]["annotations"] = json!({ "istio.io/dry-run": "true" });
        let policies = index().hold([tried.clone()]);
        assert!(policies.allows(&request("client", "/")), "{action}");
        tried["metadata"]["annotations"]["istio.io/dry-run"] = "perhaps".into();
        let policies = index().hold([tried]);
        assert_eq!(policies.allows(&request("client", "/")), action == "AUDIT", "{action}");
        let (_, report) = policies.reports().next().expect("a report");
        assert_eq!(report.faults[0].code.id, "STR0823", "an invalid annotation is reported");
    }
    let mut custom =
        policy("asks", json!({ "action": "CUSTOM", "provider": { "name": "opa" }, "rules": [{}] }));
    custom["metadata"]["annotations"] = json!({ "istio.io/dry-run": "true" });
    assert!(index().hold([custom]).allows(&request("client", "/")), "CUSTOM");
}

/// F-2: without a provider that can be queried, matches of CUSTOM rules are denied.
#[test]
fn matches_of_a_custom_rule_without_a_provider_are_denied() {
    let custom_policy = |name: &str, provider: &str, path: &str| {
        let rules = to(json!({ "paths": [path] }));
        policy(
            name,
            json!({ "action": "CUSTOM", "provider": { "name": provider }, "rules": rules }),
        )
    };
    let policies =
        index().hold([custom_policy("a", "foo", "/a"), custom_policy("b", "foo-ns", "/b")]);
    let found = ["/", "/a", "/b"].map(|path| policies.allows(&request("client", path)));
    assert_eq!(found, [true, false, false]);
}

/// The provider decides about the requests that its rules match. Connections pass providers for
/// HTTP only, and are denied if no provider exists.
#[test]
fn provider_decides_only_matches_of_its_rules() {
    let custom_policy = |name: &str, provider: &str, path: &str| {
        let rules = to(json!({ "paths": [path] }));
        let action =
            json!({ "action": "CUSTOM", "provider": { "name": provider }, "rules": rules });
        policy(name, action)
    };
    let mut tried = custom_policy("t", "http", "/tried");
    tried["metadata"]["annotations"] = json!({ "istio.io/dry-run": "true" });
    let all = [
        custom_policy("a", "http", "/a"),
        custom_policy("b", "grpc", "/b"),
        custom_policy("c", "gone", "/c"),
        tried,
    ];
    let policies = index().hold(all);
    let labels = labels(&[("app", "web")]);
    let subject = AccessSubject { namespace: &"shop".into(), labels: &labels, is_known: true };
    let access = policies.of(subject);
    let providers: ReachableProviders =
        [("http", ProviderReach::Requests), ("grpc", ProviderReach::Everything)]
            .map(|(name, reach)| (name.into(), reach))
            .into();
    let decided = |form, path: &str| {
        let decision =
            decide(&enforced(&access, form, &trust(), &providers), &request("client", path));
        let queried: Vec<_> =
            decision.queried_providers.iter().map(|(name, _)| name.to_string()).collect();
        (decision.verdict.as_str(), queried, decision.rule.unwrap_or_default())
    };
    let no_providers = || Vec::<String>::new();
    let denied =
        |path: &str| format!("ns[shop]-policy[{path}]-rule[0]-deny-due-to-bad-CUSTOM-action");
    assert_eq!(decided(WireForm::Http, "/a"), ("allow", vec!["http".to_owned()], String::new()));
    assert_eq!(decided(WireForm::Http, "/b"), ("allow", vec!["grpc".to_owned()], String::new()));
    assert_eq!(decided(WireForm::Http, "/c"), ("deny", no_providers(), denied("c")));
    assert_eq!(decided(WireForm::Http, "/tried"), ("allow", no_providers(), String::new()));
    // A connection has no HTTP properties, so the remaining conditions decide whether a provider is
    // queried.
    assert_eq!(decided(WireForm::Tcp, "/"), ("deny", vec!["grpc".to_owned()], denied("c")));
    let (_, _, rule) = decided(WireForm::Grpc, "/a");
    assert_eq!(rule, denied("a"), "a library queries no provider");
}

/// F-3: a deny rule with an unknown key.
#[test]
fn deny_rule_with_an_unreadable_condition_stays() {
    let rules = json!([{
        "to": [{ "operation": { "paths": ["/admin"] } }],
        "when": [{ "key": "request.hedaers[x]", "values": ["1"] }],
    }]);
    let policies = index().hold([deny(rules.clone())]);
    assert!(!policies.allows(&request("client", "/admin")), "without the condition, so wider");
    assert!(policies.allows(&request("client", "/")));
    let (_, report) = policies.reports().next().expect("a report");
    assert_eq!(report.state, PolicyState::Partly);
    // A policy that was valid before keeps its last valid version.
    let mut index = index();
    index.hold([deny(to(json!({ "paths": ["/old"] })))]);
    let policies = index.hold([deny(rules)]);
    assert!(!policies.allows(&request("client", "/old")));
    assert!(policies.allows(&request("client", "/admin")));
}

/// F-4: one invalid value among valid ones.
#[test]
fn invalid_value_neither_narrows_a_deny_rule_nor_widens_an_allow_rule() {
    let blocks = json!({ "ipBlocks": ["10.0.0.0/8", "10.0.0.300"], "principals": ["*"] });
    assert!(!index().hold([deny(from(blocks.clone()))]).allows(&AccessRequest {
        peer: Some("192.0.2.1".parse().expect("an address")),
        ..request("client", "/")
    }));
    assert!(!index().hold([allow(from(blocks))]).allows(&request("client", "/")));
    let not = json!({ "notPaths": ["/public", ""] , "methods": ["GET"] });
    assert!(!index().hold([deny(to(not))]).allows(&request("client", "/public")));
    // A rule with only unreadable values denies nothing, except in strict mode, where it denies
    // everything.
    let only = deny(from(json!({ "ipBlocks": ["10.0.0.300"] })));
    assert!(index().hold([only.clone()]).allows(&request("client", "/")));
    let mut strict = AccessIndex::new(settings(PolicyErrors::Strict));
    assert!(!strict.hold([only]).allows(&request("client", "/")));
    // An empty source next to a valid one: the valid one is still denied.
    let rules = json!([{ "from": [{ "source": { "principals": ["mesh.example/ns/shop/sa/evil"] } }, { "source": {} }] }]);
    let policies = index().hold([deny(rules)]);
    assert!(!policies.allows(&request("evil", "/")) && policies.allows(&request("client", "/")));
}

/// F-6: policies without rules, aliases of the trust domain, and rules that match nothing.
#[test]
fn aliases_of_the_trust_domain_are_equivalent() {
    for domain in ["mesh.example", "old.example", "cluster.local"] {
        let principal = format!("{domain}/ns/shop/sa/client");
        let policies = index().hold([deny(from(json!({ "principals": [principal] })))]);
        for own in ["mesh.example", "old.example"] {
            let request = request_from(&format!("{own}/ns/shop/sa/client"));
            assert!(!policies.allows(&request), "{domain} means {own}");
        }
        // A member's real trust domain with that name is a different one.
        let foreign = request_from("cluster.local/ns/shop/sa/client");
        assert!(policies.allows(&foreign), "{domain}");
    }
    let policies =
        index().hold([allow(from(json!({ "principals": ["*example/ns/shop/sa/client"] })))]);
    assert!(policies.allows(&request_from("old.example/ns/shop/sa/client")));
    let policies =
        index().hold([allow(from(json!({ "principals": ["foreign.org/ns/shop/sa/client"] })))]);
    assert!(policies.allows(&request_from("foreign.org/ns/shop/sa/client")));
    assert!(!policies.allows(&request("client", "/")));
}

/// F-7: the namespace and the trust domain of one source must both match.
#[test]
fn source_must_match_both_namespace_and_trust_domain() {
    let both = from(json!({ "namespaces": ["shop"], "trustDomains": ["mesh.example"] }));
    let policies = index().hold([allow(both)]);
    assert!(policies.allows(&request("client", "/")));
    assert!(!policies.allows(&request_from("evil.example/ns/shop/sa/client")));
    assert!(!policies.allows(&request_from("mesh.example/ns/other/sa/client")));
}

#[test]
fn namespace_is_limited_to_the_mesh_if_allowed_and_not_if_denied() {
    for field in [json!({ "namespaces": ["shop"] }), json!({ "serviceAccounts": ["shop/client"] })]
    {
        let foreign = request_from("foreign.org/ns/shop/sa/client");
        assert!(!index().hold([allow(from(field.clone()))]).allows(&foreign));
        assert!(index().hold([allow(from(field.clone()))]).allows(&request("client", "/")));
        assert!(!index().hold([deny(from(field))]).allows(&foreign));
    }
    let not = json!({ "notNamespaces": ["shop"] });
    let foreign = request_from("foreign.org/ns/shop/sa/client");
    assert!(!index().hold([deny(from(not.clone()))]).allows(&foreign));
    assert!(!index().hold([allow(from(not))]).allows(&foreign));
}

/// F-21, CVE-2021-39155: hosts with another port, a trailing dot or another case.
#[test]
fn host_matches_in_every_spelling() {
    let policies = index()
        .hold([deny(to(json!({ "hosts": ["a.example", "*.b.example", "c.example:8080"] })))]);
    for host in [
        "a.example",
        "A.Example",
        "a.example.",
        "a.example:80",
        "a.example.:8080",
        "x.b.example:1",
        "X.B.EXAMPLE.",
        "c.example:8080",
        "c.example.:8080",
        // Invalid ports, user info, and several hosts joined by a proxy.
        "a.example:",
        "a.example.:",
        "a.example:8x",
        "x.b.example:+1",
        "user@a.example",
        "user:pass@a.example:80",
        "user@c.example:8080",
        "evil.org,a.example",
        "a.example,evil.org",
        "evil.org, x.b.example:1, evil.org",
        "evil.org,c.example:8080",
    ] {
        assert!(!policies.allows(&at_host(host)), "{host}");
    }
    for host in [
        "aXexample",
        "a.example.org",
        "xa.example",
        "b.example",
        "c.example",
        "c.example:80",
        "c.example:80801",
    ] {
        assert!(policies.allows(&at_host(host)), "{host}");
    }
    // Allow rules match only valid hosts.
    let policies = index().hold([allow(to(json!({ "hosts": ["a.example", "c.example:8080"] })))]);
    for (host, passes) in [
        ("A.example.:80", true),
        ("c.example:8080", true),
        ("a.example:", false),
        ("a.example:8x", false),
        ("user@a.example", false),
        ("evil.org,a.example", false),
        ("a.example,evil.org", false),
    ] {
        assert_eq!(policies.allows(&at_host(host)), passes, "{host}");
    }
}

/// A condition on the `host` header is a condition on the host, because proxies store it in one
/// place.
#[test]
fn condition_on_the_host_header_matches_the_host() {
    let policies = index().hold([deny(when("request.headers[Host]", &["a.example"]))]);
    assert!(!policies.allows(&at_host("A.example:80")));
    assert!(policies.allows(&at_host("b.example")));
}

/// Envoy stores the request line of HTTP/1 and `host` in pseudo-headers.
#[test]
fn conditions_on_pseudo_headers_equal_hosts_methods_and_paths() {
    for (key, field, values) in [
        ("request.headers[:authority]", "hosts", ["web.shop", "Web.Shop"]),
        ("request.headers[:method]", "methods", ["GET", "get"]),
        ("request.headers[:path]", "paths", ["/a", "/{*}"]),
    ] {
        for value in values {
            for (make, action) in
                [(allow as fn(Value) -> Value, "ALLOW"), (deny as fn(Value) -> Value, "DENY")]
            {
                let [by_key, by_field] =
                    [when(key, &[value]), to(json!({ field: [value] }))].map(|rules| {
                        let policies = index().hold([make(rules)]);
                        let (_, report) = policies.reports().next().expect("a report");
                        assert_eq!(report.state, PolicyState::InForce, "{key}");
                        ["/a", "/b/c"].map(|path| policies.allows(&request("client", path)))
                    });
                assert_eq!(by_key, by_field, "{action} {key} {value}");
            }
        }
    }
}

#[test]
fn value_that_never_matches_has_a_reason() {
    use strait_model::mesh_config::PathNormalization::{MergeSlashes, None as Unchanged};
    let fact = |rules: Value, normalization| {
        let policies = index().hold([deny(rules.clone())]);
        let (_, report) = policies.reports().next().expect("a report");
        assert_eq!(report.state, PolicyState::InForce, "{rules}: {:?}", report.faults);
        let policy = policies.authorizations().next().expect("one");
        let found = policy.clauses().flat_map(|clause| &clause.any).next().expect("one");
        found.never_matches(normalization)
    };
    for (field, value) in [
        ("paths", "/a/*/b"),
        ("paths", "*a*"),
        ("paths", "admin"),
        ("paths", "admin*"),
        ("paths", "/a?b=c"),
        ("paths", "/a#b"),
        ("paths", "/a/../b"),
        ("paths", "/a/.."),
        ("paths", "/a/."),
        ("paths", "*/../b"),
        ("paths", "//a"),
        ("paths", "/%61"),
        ("paths", "/a b"),
        ("methods", "GET,POST"),
        ("methods", "GET POST"),
        ("methods", "G*T"),
        ("hosts", "https://a.example"),
        ("hosts", "a.example/b"),
        ("hosts", "a.*.example"),
        ("hosts", "a.example:99999"),
        ("paths", "/k\u{e4}se"),
        ("ports", "0"),
    ] {
        assert!(fact(to(json!({ field: [value] })), MergeSlashes).is_some(), "{field} {value}");
    }
    for (field, value) in [
        ("namespaces", "shop/web"),
        ("namespaces", "Shop"),
        ("principals", "web"),
        ("principals", "a/*/b"),
        ("principals", "mesh.example/ns/web/default"),
        ("requestPrincipals", "alice"),
        ("requestPrincipals", "https://a/*b*"),
    ] {
        assert!(fact(from(json!({ field: [value] })), MergeSlashes).is_some(), "{field} {value}");
    }
    for (key, value) in [
        ("request.headers[x]", "a*b"),
        ("request.headers[x]", "a\nb"),
        ("request.headers[x]", " a"),
        ("request.headers[:path]", "admin"),
        ("request.auth.claims[a]", "a*b"),
        ("connection.sni", "a.*.example"),
        ("connection.sni", "https://a.example"),
        ("connection.sni", "A.example"),
    ] {
        assert!(fact(when(key, &[value]), MergeSlashes).is_some(), "{key} {value}");
    }
    for (field, value) in [
        ("paths", "*"),
        ("paths", "/a*"),
        ("paths", "*.php"),
        ("paths", "*../b"),
        ("paths", "/a%20b"),
        ("methods", "M-SEARCH"),
        ("hosts", "*.example:8080"),
        ("ports", "80"),
    ] {
        let found = fact(to(json!({ field: [value] })), MergeSlashes);
        assert_eq!(found, None, "{field} {value}");
    }
    for (key, value) in [
        ("request.headers[accept]", "*/*"),
        ("request.headers[accept]", "text/*"),
        ("request.headers[x]", "a *"),
        ("source.principal", "mesh.example/vm/web"),
        ("connection.sni", "*.example"),
        ("source.namespace", "a*b"),
    ] {
        assert_eq!(fact(when(key, &[value]), MergeSlashes), None, "{key} {value}");
    }
    // Without normalization, any path may occur.
    assert_eq!(fact(to(json!({ "paths": ["/a/../b"] })), Unchanged), None);
}

/// HTTP/2 transmits methods in any case, and proxies forward them unchanged.
#[test]
fn method_is_denied_in_any_case_and_allowed_only_in_its_own() {
    let with_method = |method: &str| with_header(":method", method);
    let only = |methods: Value| to(json!({ "methods": methods }));
    let denied = index().hold([deny(only(json!(["DELETE", "P*", "*ACE"])))]);
    for method in ["DELETE", "delete", "Delete", "put", "Trace"] {
        assert!(!denied.allows(&with_method(method)), "{method}");
    }
    assert!(denied.allows(&with_method("GET")));
    let allowed = index().hold([allow(only(json!(["GET"])))]);
    assert!(allowed.allows(&with_method("GET")) && !allowed.allows(&with_method("get")));
    let others = index().hold([allow(to(json!({ "notMethods": ["DELETE"] })))]);
    assert!(others.allows(&with_method("GET")) && !others.allows(&with_method("delete")));
}

/// Proxies see IPv4 callers with IPv4 addresses, not with mapped IPv6 addresses.
#[test]
fn mapped_ipv6_range_matches_ipv4_addresses() {
    for range in ["::ffff:10.0.0.9", "::ffff:10.0.0.0/120", "::ffff:0:0/96"] {
        let policies = index().hold([deny(from(json!({ "ipBlocks": [range] })))]);
        assert!(!policies.allows(&request("client", "/")), "{range}");
    }
    let policies =
        index().hold([deny(from(json!({ "ipBlocks": ["::ffff:10.0.1.0/120", "::/64"] })))]);
    assert!(policies.allows(&request("client", "/")));
}

/// CVE-2026-26308: proxies join the values of a repeated header by commas, or compare each value.
#[test]
fn repeated_header_is_denied_if_any_value_matches_and_never_allowed() {
    let role = |action: Value| action;
    let denied =
        index().hold([role(deny(when("request.headers[X-Role]", &["admin", "root*", "*-ops"])))]);
    for value in ["admin", "user,admin", "admin, user", "user,\tadmin ,x", "x,root1", "a,b-ops,c"] {
        assert!(!denied.allows(&with_header("x-role", value)), "{value}");
    }
    for value in ["user", "administrator", "user;admin", "xroot"] {
        assert!(denied.allows(&with_header("x-role", value)), "{value}");
    }
    let allowed = index().hold([allow(when("request.headers[x-role]", &["admin"]))]);
    assert!(allowed.allows(&with_header("x-role", "admin")));
    assert!(!allowed.allows(&with_header("x-role", "admin,user")));
    let not = json!([{ "when": [{ "key": "request.headers[x-role]", "notValues": ["user"] }] }]);
    let denied = index().hold([deny(not)]);
    assert!(
        !denied.allows(&with_header("x-role", "user,admin"))
            && !denied.allows(&request("client", "/"))
    );
    assert!(denied.allows(&with_header("x-role", "user")));
}

/// CVE-2026-39350: dots in names are literal.
#[test]
fn names_are_never_regular_expressions() {
    let policies = index().hold([allow(from(json!({ "serviceAccounts": ["shop/a.b"] })))]);
    assert!(policies.allows(&request("a.b", "/")) && !policies.allows(&request("axb", "/")));
    let policies = index().hold([allow(from(json!({ "namespaces": ["s.*"] })))]);
    assert!(!policies.allows(&request("a", "/")));
    let pattern = TextPattern::new(vec![TextPart::text("a.b(c)*\\"), TextPart::Any]);
    assert_eq!(pattern.regex(), r"a\.b\(c\)\*\\.*");
}

/// F-23: without mTLS, the client has no identity.
#[test]
fn plaintext_client_has_no_identity() {
    for (field, not) in [
        ("principals", "notPrincipals"),
        ("namespaces", "notNamespaces"),
        ("serviceAccounts", "notServiceAccounts"),
        ("trustDomains", "notTrustDomains"),
    ] {
        let value = if field == "serviceAccounts" { "shop/client" } else { "*" };
        let policies = index().hold([allow(from(json!({ field: [value] })))]);
        assert!(
            policies.allows(&request("client", "/")) && !policies.allows(&in_plain_text()),
            "{field}"
        );
        let policies = index().hold([deny(from(json!({ not: [value] })))]);
        assert!(
            policies.allows(&request("client", "/")) && !policies.allows(&in_plain_text()),
            "{not}"
        );
    }
}

#[test]
fn http_rules_on_tcp_allow_nothing_and_deny_more() {
    let tcp = |policies: &AccessPolicies, port| {
        let request = AccessRequest { port: Some(port), ..AccessRequest::default() };
        policies.decides(WireForm::Tcp, &request).verdict == AccessVerdict::Allow
    };
    let fields = [
        to(json!({ "hosts": ["a"] })),
        to(json!({ "methods": ["GET"] })),
        to(json!({ "paths": ["/"] })),
        to(json!({ "notPaths": ["/"] })),
        from(json!({ "requestPrincipals": ["*"] })),
        when("request.headers[a]", &["b"]),
        when("request.auth.claims[a]", &["b"]),
    ];
    for rules in fields {
        assert!(!tcp(&index().hold([allow(rules.clone())]), 80), "{rules}");
        assert!(!tcp(&index().hold([deny(rules.clone())]), 80), "{rules}");
    }
    let ports = to(json!({ "paths": ["/admin"], "ports": ["8080"] }));
    let policies = index().hold([deny(ports.clone())]);
    assert!(!tcp(&policies, 8080) && tcp(&policies, 5432));
    let both = json!([ports[0], { "to": [{ "operation": { "ports": ["5432"] } }] }]);
    let policies = index().hold([allow(both)]);
    assert!(tcp(&policies, 5432) && !tcp(&policies, 8080));
}

#[test]
fn path_templates_match_segments() {
    let templates = ["/a/{*}/c", "/d/{**}", "/files/{**}/meta"];
    let policies = index().hold([allow(to(json!({ "paths": templates })))]);
    for (path, passes) in [
        ("/a/b/c", true),
        ("/a//c", false),
        ("/a/b/x/c", false),
        ("/d/", true),
        ("/d/e/f", true),
        ("/d", false),
        ("/files/a/meta", true),
        ("/files/a/b/meta", true),
        ("/files/meta/meta", true),
        ("/files//meta", true),
        ("/files/meta", false),
        ("/files/a/metadata", false),
        ("/files/a/meta/b", false),
    ] {
        assert_eq!(policies.allows(&request("client", path)), passes, "{path}");
    }
    let template_with_letters = |count: usize| format!("/{}/{{*}}", "a".repeat(count));
    let (longest, too_long) = (template_with_letters(253), template_with_letters(254));
    for bad in [
        "/{**}/x/{*}",
        "/{**}/x/{**}",
        "/{**}{*}",
        "/a{*}",
        "/{a}",
        "{*}",
        "/a/{*}*",
        "/{*}/b*",
        // Envoy crashes on these templates, or rejects the listener.
        "/a b/{*}",
        "/a//{*}",
        "//{*}",
        "/ä/{*}",
        "/a?b/{*}",
        "/a#b/{*}",
        "/a\"/{*}",
        "/[a]/{*}",
        "/a|b/{*}",
        "/a\\b/{*}",
        "/a\tb/{*}",
        &too_long,
    ] {
        let policies = index().hold([allow(to(json!({ "paths": [bad] })))]);
        let (_, report) = policies.reports().next().expect("a report");
        assert_ne!(report.state, PolicyState::InForce, "{bad}");
    }
    for good in ["/{*}/", "/a%20b/{*}", "/a-b.c_d~e!f$g&h'i(j)k+l,m;n=o:p@q/{**}", &longest] {
        let policies = index().hold([allow(to(json!({ "paths": [good] })))]);
        let (_, report) = policies.reports().next().expect("a report");
        assert_eq!(report.state, PolicyState::InForce, "{good}");
    }
}

/// 3.2: labels of unknown proxies are claims, which must not remove them from restricting policies.
#[test]
fn unknown_proxy_cannot_evade_a_deny_policy() {
    let selector = json!({ "matchLabels": { "app": "web" } });
    let web_policy = |namespace: &str, name: &str, action: &str| {
        let spec = json!({ "action": action, "selector": selector, "rules": [{}] });
        object("AuthorizationPolicy", namespace, name, spec)
    };
    let policies = index().hold([
        web_policy("shop", "deny", "DENY"),
        web_policy(ROOT, "root", "DENY"),
        web_policy("shop", "allow", "ALLOW"),
    ]);
    let names = |is_known| -> Vec<String> {
        let labels = labels(&[("app", "else")]);
        let subject = AccessSubject { namespace: &"shop".into(), labels: &labels, is_known };
        policies.of(subject).policies.iter().map(|policy| policy.name.to_string()).collect()
    };
    assert_eq!(names(true), Vec::<String>::new());
    assert_eq!(names(false), ["deny.shop", &format!("root.{ROOT}")]);
}

#[test]
fn faults_of_a_policy_have_a_path() {
    let cases = [
        (json!({ "action": "DENNY" }), "spec.action"),
        (json!({ "action": "DENY" }), "spec.rules"),
        (json!({ "action": "CUSTOM", "rules": [{}] }), "spec.provider"),
        (json!({ "provider": { "name": "a" }, "rules": [{}] }), "spec.provider"),
        (json!({ "rules": {} }), "spec.rules"),
        (json!({ "rules": [{ "from": [] }] }), "spec.rules[0].from"),
        (json!({ "rules": from(json!({})) }), "spec.rules[0].from[0].source"),
        (
            json!({ "rules": from(json!({ "principal": ["a"] })) }),
            "spec.rules[0].from[0].source.principal",
        ),
        (
            json!({ "rules": from(json!({ "principals": [] })) }),
            "spec.rules[0].from[0].source.principals",
        ),
        (
            json!({ "rules": from(json!({ "principals": ["spiffe://a"] })) }),
            "spec.rules[0].from[0].source.principals[0]",
        ),
        (
            json!({ "rules": from(json!({ "serviceAccounts": ["a*"] })) }),
            "spec.rules[0].from[0].source.serviceAccounts[0]",
        ),
        (
            json!({ "rules": from(json!({ "trustDomains": ["a*b"] })) }),
            "spec.rules[0].from[0].source.trustDomains[0]",
        ),
        (
            json!({ "rules": to(json!({ "ports": ["65536"] })) }),
            "spec.rules[0].to[0].operation.ports[0]",
        ),
        (
            json!({ "rules": to(json!({ "methods": [1] })) }),
            "spec.rules[0].to[0].operation.methods[0]",
        ),
        (json!({ "rules": when("destination.labels[a]", &["b"]) }), "spec.rules[0].when[0].key"),
        (json!({ "rules": when("request.headers[a b]", &["b"]) }), "spec.rules[0].when[0].key"),
        (json!({ "rules": [{ "when": [{ "key": "source.ip" }] }] }), "spec.rules[0].when[0]"),
        (json!({ "rules": when("source.ip", &["x"]) }), "spec.rules[0].when[0].values[0]"),
        (
            json!({ "selector": { "matchLabels": { "a": "b" } }, "targetRefs": [{ "kind": "Gateway", "name": "a" }] }),
            "spec",
        ),
        (json!({ "targetRefs": [{ "kind": "Gateway" }] }), "spec.targetRefs[0].name"),
        (
            json!({ "action": "CUSTOM", "provider": { "name": "a" }, "rules": from(json!({ "principals": ["a"] })) }),
            "spec.rules[0].from[0].source.principals",
        ),
    ];
    for (spec, path) in cases {
        let policies = index().hold([policy("a", spec.clone())]);
        let (_, report) = policies.reports().next().expect("a report");
        assert_eq!(report.faults[0].path, path, "{spec}");
        assert_ne!(report.state, PolicyState::InForce, "{spec}");
    }
}

/// After a restart, the last valid version is the remembered one. Objects that were deleted
/// meanwhile do not return.
#[test]
fn last_valid_version_survives_a_restart() {
    let good = deny(to(json!({ "paths": ["/old"] })));
    let gone =
        object("AuthorizationPolicy", "shop", "gone", json!({ "action": "DENY", "rules": [{}] }));
    let mut index = index();
    index.remember(&collection([good, gone]));
    let broken = deny(json!("nothing"));
    let change = index.apply(&settings(PolicyErrors::Narrow), &collection([broken]));
    let policies = change.expect("the first time").policies;
    assert!(
        !policies.allows(&request("client", "/old")) && policies.allows(&request("client", "/"))
    );
    assert_eq!(index.last_valid_objects().len(), 1);
}

/// F-25: the order of arrival has no effect.
#[test]
fn result_is_independent_of_the_order_of_arrival() {
    let all = [
        allow(json!([{}])),
        deny(to(json!({ "paths": ["/a"] }))),
        peer("shop", "p", json!({ "mtls": { "mode": "STRICT" } })),
    ];
    let at_once = index().hold(all.clone());
    let mut incremental = index();
    for count in [1, 3, 2, 3] {
        incremental.hold(all[..count].to_vec());
    }
    assert_eq!(*at_once, *incremental.hold(all));
}

#[test]
fn unsupported_matchers_in_grpc_libraries_allow_nothing_and_deny_more() {
    let call = AccessRequest {
        server_name: Some("b".into()),
        headers: [("te", "b"), ("grpc-timeout", "b"), ("key-bin", "b"), ("x-role", "b")]
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into(),
        ..request("client", "/shop.Cart/Get")
    };
    let by_library = |policies: &AccessPolicies| {
        policies.decides(WireForm::Grpc, &call).verdict == AccessVerdict::Allow
    };
    let unsupported = [
        from(json!({ "requestPrincipals": ["*"] })),
        from(json!({ "notRequestPrincipals": ["*"] })),
        to(json!({ "paths": ["/shop.Cart/{*}"] })),
        when("request.auth.claims[a]", &["b"]),
        when("request.headers[te]", &["b"]),
        when("request.headers[grpc-timeout]", &["b"]),
        when("request.headers[key-bin]", &["b"]),
        when("connection.sni", &["b"]),
        when("experimental.envoy.filters.f[k]", &["b"]),
    ];
    for rules in unsupported {
        assert!(!by_library(&index().hold([allow(rules.clone())])), "{rules}");
        assert!(!by_library(&index().hold([deny(rules.clone())])), "{rules}");
    }
    let supported = [
        from(json!({ "principals": ["mesh.example/ns/shop/sa/client"] })),
        to(json!({ "paths": ["/shop.Cart/*"] })),
        to(json!({ "ports": ["8080"] })),
        when("request.headers[x-role]", &["b"]),
    ];
    for rules in supported {
        assert!(by_library(&index().hold([allow(rules.clone())])), "{rules}");
        assert!(!by_library(&index().hold([deny(rules.clone())])), "{rules}");
    }
    let elsewhere = to(json!({ "paths": ["/shop.Stock/*"] }));
    assert!(by_library(&index().hold([deny(elsewhere.clone())])));
    assert!(!by_library(&index().hold([allow(elsewhere)])));
}

/// Strict mode may close more than intended; no mode may open more.
#[test]
fn policy_with_an_unreadable_selector_allows_nothing_elsewhere() {
    let selector = json!({ "matchLabels": { "app": "w*b" } });
    let wide = policy("wide", json!({ "selector": selector, "rules": [{}] }));
    let narrow = policy("narrow", json!({ "rules": to(json!({ "paths": ["/a"] })) }));
    for errors in [PolicyErrors::Narrow, PolicyErrors::Strict] {
        let mut index = AccessIndex::new(settings(errors));
        let policies = index.hold([wide.clone(), narrow.clone()]);
        assert!(policies.allows(&request("a", "/a")));
        assert!(!policies.allows(&request("a", "/b")), "{errors:?}");
    }
}
