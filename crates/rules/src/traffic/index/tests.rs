//! Tests of the rules that apply to a client, and of the changes that an object causes.

use std::collections::BTreeMap;

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use serde_json::json;

use super::*;
use crate::access::PolicyKind;
use crate::testing::kind_settings;
use crate::traffic::HostPattern;
use crate::traffic::destination_rule::RuleClient;
use crate::traffic::policy::ClientTls;
use crate::traffic::route::HttpRule;
use crate::traffic::selection::Selection;
use strait_model::{CONFIG_KINDS, ConfigRole, ExportTo, LastValidObject, Namespace};

#[test]
fn role_of_a_kind_is_that_of_the_index_that_reads_it() {
    for kind in CONFIG_KINDS {
        let key = kind.key("shop", "web");
        let is_policy = PolicyKind::policy_name(&key).is_some();
        let role = match (TrafficKind::from_key(&key), is_policy) {
            (Some(traffic), false) => {
                assert_eq!(traffic.name(), kind.kind);
                ConfigRole::Traffic
            }
            (None, true) => ConfigRole::Access,
            (None, false) => ConfigRole::Entries,
            (Some(_), true) => panic!("two indexes read {kind:?}"),
        };
        assert_eq!(role, kind.role, "{kind:?}");
    }
}

fn index() -> TrafficIndex {
    let mut index = TrafficIndex::new(kind_settings());
    index.apply(&Collection::default());
    index
}

/// Returns a DestinationRule `namespace/name`. A higher `age` makes it younger, by seconds.
fn rule(namespace: &str, name: &str, age: u32, spec: Value) -> Arc<Value> {
    Arc::new(json!({
        "apiVersion": "networking.istio.io/v1",
        "kind": "DestinationRule",
        "metadata": {
            "namespace": namespace,
            "name": name,
            "creationTimestamp": format!("2026-01-01T00:00:{age:02}Z"),
        },
        "spec": spec,
    }))
}

fn all(objects: &[Arc<Value>]) -> Collection {
    objects.iter().cloned().collect()
}

/// Returns the names of the objects of the rule that applies.
fn active(index: &TrafficIndex, client: &str, host: &str, owner: &str) -> Vec<String> {
    active_for(index, client, &[], host, owner)
}

fn active_for(
    index: &TrafficIndex,
    client: &str,
    labels: &[(&str, &str)],
    host: &str,
    owner: &str,
) -> Vec<String> {
    let namespace: Namespace = client.into();
    let labels = labels.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect();
    let selection: Selection = index.traffic.selection(&namespace, &labels);
    let client = RuleClient { namespace: &namespace, selection: &selection };
    let rules = index.traffic.destination_rules.of(host);
    let rule = rules.rule(client, &owner.into());
    rule.into_iter().flat_map(|rule| &rule.objects).map(ToString::to_string).collect()
}

const HOST: &str = "web.shop.svc.cluster.local";

#[test]
fn equal_parts_of_rules_are_shared() {
    let subset = |name: &str| json!({"name": name, "labels": {"version": name}});
    let rule_spec = |host: &str, connections: u32| {
        let policy = json!({"connectionPool": {"tcp": {"maxConnections": connections}}});
        json!({"host": host, "trafficPolicy": policy, "subsets": [subset("v1"), subset("v2")]})
    };
    let routed = |host: &str, path: &str| {
        let mut object = Value::clone(&rule("shop", host, 0, json!({})));
        let route = json!([{"destination": {"host": host, "subset": "v1"}}]);
        let http = json!([{"match": [{"uri": {"prefix": path}}], "route": route}]);
        object["kind"] = "VirtualService".into();
        object["spec"] = json!({"hosts": [host], "http": http});
        Arc::new(object)
    };
    let host = |name: &str| HostPattern::parse(name, "shop", "cluster.local").expect("a host");
    let found = |index: &TrafficIndex, name: &str| {
        let rule = index.traffic.destination_rules.for_pattern(&host(name))[0].clone();
        let client = Namespace::from("shop");
        let all = index.traffic.virtual_services.for_pattern(&host(name), &client);
        let http = Arc::clone(&all.into_iter().next().expect("it exists").http.rules);
        (rule, http)
    };
    let shared = |index: &TrafficIndex| {
        let ((rule, http), (other, others)) = (found(index, "web"), found(index, "api"));
        let policies = [&rule, &other].map(|one| one.policy.as_ref().expect("it has one"));
        let subsets = [&http, &others].map(|one| &one[0].destinations[0].subset);
        [
            Arc::ptr_eq(policies[0], policies[1]),
            Arc::ptr_eq(&rule.subsets, &other.subsets),
            Arc::ptr_eq(&http[0].terms, &others[0].terms),
            Arc::ptr_eq(subsets[0], subsets[1]),
        ]
    };
    let mut index = index();
    let [web, web_routes] = [rule("shop", "web", 0, rule_spec("web", 7)), routed("web", "/a")];
    let api = [rule("shop", "api", 0, rule_spec("api", 7)), routed("api", "/a")];
    index.apply(&all(&[&[web.clone(), web_routes.clone()][..], &api].concat()));
    assert_eq!(shared(&index), [true; 4]);
    // Editing one rule leaves the other unchanged.
    let api = [rule("shop", "api", 0, rule_spec("api", 8)), routed("api", "/b")];
    index.apply(&all(&[&[web, web_routes][..], &api].concat()));
    assert_eq!(shared(&index), [false, true, false, true]);
    let limits = |name: &str| {
        let pool = found(&index, name).0.policy.as_ref()?.groups.connection_pool.clone();
        pool?.max_connections
    };
    assert_eq!((limits("web"), limits("api")), (Some(7), Some(8)));
}

#[test]
fn namespace_of_the_client_precedes_the_service_and_the_root() {
    let mut index = index();
    let root = rule("istio-system", "mesh", 0, json!({"host": "*.local"}));
    let owner = rule("shop", "own", 1, json!({"host": "web"}));
    let client = rule("client", "mine", 2, json!({"host": HOST}));
    index.apply(&all(&[root.clone(), owner, client.clone()]));
    assert_eq!(active(&index, "client", HOST, "shop"), ["client/mine"]);
    assert_eq!(active(&index, "other", HOST, "shop"), ["shop/own"]);
    assert_eq!(active(&index, "shop", HOST, "shop"), ["shop/own"]);
    index.apply(&all(&[root, client]));
    assert_eq!(active(&index, "other", HOST, "shop"), ["istio-system/mesh"]);
    assert_eq!(active(&index, "istio-system", HOST, "shop"), ["istio-system/mesh"]);
}

#[test]
fn most_specific_host_applies_within_a_namespace() {
    let mut index = index();
    let wide = rule("shop", "wide", 0, json!({"host": "*.local"}));
    let near = rule("shop", "near", 1, json!({"host": "*.shop.svc.cluster.local"}));
    index.apply(&all(&[wide, near]));
    assert_eq!(active(&index, "shop", HOST, "shop"), ["shop/near"]);
}

/// Flaw 4 of Istio: it selects the most specific host before it checks whether the rule is exported
/// to the client.
#[test]
fn invisible_exact_rule_does_not_hide_a_visible_wildcard() {
    let mut index = index();
    let exact = rule("shop", "exact", 0, json!({"host": "web", "exportTo": ["."]}));
    let wide = rule("shop", "wide", 1, json!({"host": "*.shop.svc.cluster.local"}));
    index.apply(&all(&[exact, wide]));
    assert_eq!(active(&index, "client", HOST, "shop"), ["shop/wide"]);
    assert_eq!(active(&index, "shop", HOST, "shop"), ["shop/exact"]);
}

/// Flaw 3: rules in the client's namespace that select other pods hide rules in the service's
/// namespace.
#[test]
fn rules_for_other_pods_do_not_hide_rules_of_the_service() {
    let mut index = index();
    let selecting = json!({"host": HOST, "workloadSelector": {"matchLabels": {"app": "a"}}});
    let picky = rule("client", "picky", 0, selecting);
    let owner = rule("shop", "own", 1, json!({"host": "web"}));
    index.apply(&all(&[picky, owner]));
    assert_eq!(active_for(&index, "client", &[("app", "a")], HOST, "shop"), ["client/picky"]);
    assert_eq!(active_for(&index, "client", &[("app", "b")], HOST, "shop"), ["shop/own"]);
}

/// Flaw 5: an unset `exportTo` and `*` are equivalent, and the oldest policy takes precedence.
#[test]
fn rules_with_the_same_host_and_clients_are_merged() {
    let mut index = index();
    let first = json!({"host": "web", "subsets": [{"name": "v1", "labels": {"version": "1"}}]});
    let second = json!({
        "host": HOST,
        "exportTo": ["*", "x"],
        "subsets": [{"name": "v1"}, {"name": "v2"}],
        "trafficPolicy": {"loadBalancer": {"simple": "RANDOM"}},
    });
    index.apply(&all(&[rule("shop", "b", 1, second), rule("shop", "a", 0, first)]));
    assert_eq!(active(&index, "client", HOST, "shop"), ["shop/a", "shop/b"]);
    let rules = index.traffic.destination_rules.of(HOST);
    let rule = rules.owners(&"shop".into()).expect("it exists");
    assert_eq!(rule.subsets.keys().map(|name| &**name).collect::<Vec<_>>(), ["v1", "v2"]);
    assert_eq!(rule.subsets.get("v1").expect("it exists").labels.len(), 1, "the oldest applies");
    assert!(rule.policy.is_some());
}

#[test]
fn oldest_visible_rule_applies() {
    let mut index = index();
    let young = rule("shop", "young", 5, json!({"host": "web"}));
    let old = rule("shop", "old", 1, json!({"host": "web", "exportTo": ["client"]}));
    index.apply(&all(&[young, old]));
    assert_eq!(active(&index, "client", HOST, "shop"), ["shop/old"]);
    assert_eq!(active(&index, "other", HOST, "shop"), ["shop/young"]);
}

#[test]
fn only_rules_for_some_clients_depend_on_the_namespace() {
    let mut index = index();
    index.apply(&all(&[
        rule("shop", "own", 0, json!({"host": "web"})),
        rule("istio-system", "mesh", 0, json!({"host": "*"})),
    ]));
    let traffic = &index.traffic;
    assert!(!traffic.concerns(&"shop".into()) && !traffic.is_by_namespace(HOST));
    let spec = json!({"host": "web", "exportTo": ["a", "b"]});
    index.apply(&all(&[rule("shop", "own", 0, spec)]));
    let traffic = &index.traffic;
    assert!(
        traffic.is_by_namespace(HOST) && !traffic.is_by_namespace("api.shop.svc.cluster.local")
    );
    let named = ["a", "b", "shop", "c"].map(|namespace| traffic.concerns(&namespace.into()));
    assert_eq!(named, [true, true, true, false]);
    index.apply(&Collection::default());
    assert!(!index.traffic.concerns(&"a".into()) && !index.traffic.is_by_namespace(HOST));
}

#[test]
fn change_affects_only_its_hosts_and_an_equal_object_nothing() {
    let mut index = index();
    let before = rule("shop", "own", 0, json!({"host": "web", "subsets": [{"name": "a"}]}));
    let update = index.apply(&all(&[before])).expect("something");
    let host = HostPattern::Exact(HOST.into());
    assert_eq!(update.changes.hosts.iter().collect::<Vec<_>>(), [&host]);
    assert_eq!(update.causes.named_causes()[0].kind, "DestinationRule");
    let again = json!({"subsets": [{"labels": {}, "name": "a"}], "host": HOST});
    assert!(index.apply(&all(&[rule("shop", "own", 0, again)])).is_none());
    let moved = rule("shop", "own", 0, json!({"host": "api"}));
    let update = index.apply(&all(&[moved])).expect("something");
    let hosts: Vec<_> = update.changes.hosts.iter().map(ToString::to_string).collect();
    assert_eq!(hosts, ["api.shop.svc.cluster.local", HOST]);
}

#[test]
fn object_that_violates_its_schema_keeps_its_last_valid_version() {
    let mut index = index();
    let good = rule("shop", "own", 0, json!({"host": "web"}));
    index.apply(&all(std::slice::from_ref(&good)));
    let bad =
        rule("shop", "own", 0, json!({"host": "web", "trafficPolicy": {"tls": {"mode": "TSL"}}}));
    assert!(index.apply(&all(std::slice::from_ref(&bad))).is_none());
    assert_eq!(active(&index, "client", HOST, "shop"), ["shop/own"]);
    let state = &index.reports().values().next().expect("one object").state;
    assert!(state.refused && state.is_last_good);
    assert_eq!(state.reasons[0].code.id, "STR1001");
    assert!(state.reasons[0].text.contains("TSL"), "{}", state.reasons[0]);
    let last_valid_objects = index.last_valid_objects();
    let [LastValidObject { now, good: before, .. }] = &last_valid_objects[..] else {
        panic!("{last_valid_objects:?}")
    };
    assert!(now.to_value() == *bad && before.to_value() == *good);
    // Without a valid version, the object is treated as absent, unless it requires TLS: see the
    // test below.
    let bad = rule("shop", "own", 0, json!({"host": "web", "subsets": 1}));
    let mut fresh = TrafficIndex::new(kind_settings());
    fresh.apply(&all(&[bad]));
    assert!(active(&fresh, "client", HOST, "shop").is_empty());
}

#[test]
fn object_with_an_error_keeps_its_last_valid_version() {
    let service = |regex: &str, canary: &str| {
        let mut object = Value::clone(&rule("shop", "own", 0, json!({})));
        object["kind"] = "VirtualService".into();
        let to = |host: &str| json!([{ "destination": { "host": host } }]);
        object["spec"] = json!({ "hosts": ["web"], "http": [
            { "match": [{ "uri": { "regex": regex } }], "route": to(canary) },
            { "route": to("web") },
        ] });
        Arc::new(object)
    };
    let destinations = |index: &TrafficIndex| {
        let host = HostPattern::parse(HOST, "shop", "cluster.local").expect("a host");
        let services = &index.traffic.virtual_services;
        let routed = services.for_host(&host, &"shop".into()).flatten().next().expect("an object");
        let rules = routed.http.chosen("mesh", &"shop".into(), &Selection::default(), 80);
        let first = |(_, rule, _): &(_, &HttpRule, _)| {
            rule.destinations[0].host.as_str().split('.').next().expect("a name").to_owned()
        };
        rules.iter().map(first).collect::<Vec<_>>()
    };
    let (good, bad) = (service("/a.*", "canary"), service("(", "other"));
    let mut index = index();
    index.apply(&all(std::slice::from_ref(&good)));
    assert!(index.apply(&all(std::slice::from_ref(&bad))).is_none());
    assert_eq!(destinations(&index), ["canary", "web"]);
    let state = &index.reports().values().next().expect("one object").state;
    assert!(state.refused && state.is_last_good);
    assert_eq!(state.reasons[0].code.id, "STR1022");
    let [LastValidObject { now, good: before, .. }] = &index.last_valid_objects()[..] else {
        panic!("one")
    };
    assert!(now.to_value() == *bad && before.to_value() == *good);
    // The valid version survives a restart.
    let mut restarted = TrafficIndex::new(kind_settings());
    restarted.remember(&all(std::slice::from_ref(&good)));
    restarted.apply(&all(std::slice::from_ref(&bad)));
    assert_eq!(destinations(&restarted), ["canary", "web"]);
    // The valid version survives a change of the mesh settings.
    restarted.set(KindSettings { root_namespace: "other".into(), ..kind_settings() });
    assert_eq!(destinations(&restarted), ["canary", "web"]);
    // Without a valid version, only the rule is left out. A version with an error never becomes the
    // last valid one.
    let mut fresh = self::index();
    fresh.apply(&all(std::slice::from_ref(&bad)));
    assert_eq!(destinations(&fresh), ["web"]);
    fresh.apply(&all(&[service("(?=", "other")]));
    let state = &fresh.reports().values().next().expect("one object").state;
    assert!(!state.refused && !state.is_last_good, "{state:?}");
    fresh.apply(&all(std::slice::from_ref(&good)));
    assert_eq!(destinations(&fresh), ["canary", "web"]);
}

#[test]
fn route_with_an_unreadable_match_keeps_its_last_valid_version() {
    let route = |regex: &str| {
        let mut object = Value::clone(&rule("shop", "own", 0, json!({})));
        object["apiVersion"] = "gateway.networking.k8s.io/v1".into();
        object["kind"] = "HTTPRoute".into();
        let to = |name: &str| json!([{ "name": name, "port": 80 }]);
        object["spec"] = json!({
            "parentRefs": [{ "group": "", "kind": "Service", "name": "web" }],
            "rules": [
                { "matches": [{ "path": { "type": "RegularExpression", "value": regex } }], "backendRefs": to("canary") },
                { "matches": [{ "path": { "value": "/c" } }], "backendRefs": to("web") },
            ],
        });
        Arc::new(object)
    };
    let destinations = |index: &TrafficIndex| {
        let host = HostPattern::parse(HOST, "shop", "cluster.local").expect("a host");
        let services = &index.traffic.virtual_services;
        let routed = services.for_host(&host, &"shop".into()).flatten().next().expect("an object");
        let rules = routed.http.chosen("mesh", &"shop".into(), &Selection::default(), 80);
        let first = |(_, rule, _): &(_, &HttpRule, _)| {
            rule.destinations[0].host.as_str().split('.').next().expect("a name").to_owned()
        };
        let mut all = rules.iter().map(first).collect::<Vec<_>>();
        all.sort();
        all
    };
    let (good, bad) = (route("/a.*"), route("("));
    let mut index = index();
    index.apply(&all(std::slice::from_ref(&good)));
    assert!(index.apply(&all(std::slice::from_ref(&bad))).is_none());
    assert_eq!(destinations(&index), ["canary", "web"]);
    let state = &index.reports().values().next().expect("one object").state;
    assert!(state.refused && state.is_last_good);
    // Without a valid version, only the rule is left out.
    let mut fresh = self::index();
    fresh.apply(&all(&[bad]));
    assert_eq!(destinations(&fresh), ["web"]);
}

#[test]
fn rule_with_a_value_that_proxies_reject_keeps_its_last_valid_version() {
    let limited = |most: i64| {
        let policy = json!({ "connectionPool": { "tcp": { "maxConnections": most } } });
        rule("shop", "own", 0, json!({ "host": "web", "trafficPolicy": policy }))
    };
    let mut index = index();
    index.apply(&all(&[limited(7)]));
    assert!(index.apply(&all(&[limited(-1)])).is_none(), "{:?}", index.reports());
    assert!(index.reports().values().next().expect("one object").state.is_last_good);
}

#[test]
fn parts_of_a_policy_without_an_effect_have_a_reason() {
    for (policy, expected) in [
        (
            json!({ "loadBalancer": { "warmup": { "aggression": 2 } } }),
            "STR1007 spec.trafficPolicy.loadBalancer.warmup",
        ),
        (
            json!({ "loadBalancer": { "localityLbSetting": { "failover": [{ "from": "eu/z1", "to": "us" }] } } }),
            "STR1005 spec.trafficPolicy.loadBalancer.localityLbSetting.failover[0]",
        ),
        (
            json!({ "loadBalancer": { "localityLbSetting": { "failover": [{ "from": "*", "to": "us" }] } } }),
            "STR1005 spec.trafficPolicy.loadBalancer.localityLbSetting.failover[0]",
        ),
        (
            json!({ "loadBalancer": { "localityLbSetting": {
                "failover": [{ "from": "eu", "to": "us" }],
                "failoverPriority": ["topology.kubernetes.io/region"],
            } } }),
            "STR1006 spec.trafficPolicy.loadBalancer.localityLbSetting.failover[0]",
        ),
        (
            json!({ "loadBalancer": { "warmup": { "duration": "5s" }, "warmupDurationSecs": "4s" } }),
            "STR1006 spec.trafficPolicy.loadBalancer.warmupDurationSecs",
        ),
        (
            json!({ "loadBalancer": { "consistentHash": {
                "useSourceIp": true,
                "maglev": {},
                "minimumRingSize": 4,
            } } }),
            "STR1006 spec.trafficPolicy.loadBalancer.consistentHash.minimumRingSize",
        ),
        (
            json!({ "outlierDetection": { "interval": "0s" } }),
            "STR1007 spec.trafficPolicy.outlierDetection.interval",
        ),
        (
            json!({ "outlierDetection": { "baseEjectionTime": "0s" } }),
            "STR1007 spec.trafficPolicy.outlierDetection.baseEjectionTime",
        ),
        (
            json!({ "connectionPool": { "tcp": { "connectTimeout": "0s" } } }),
            "STR1007 spec.trafficPolicy.connectionPool.tcp.connectTimeout",
        ),
        (
            json!({ "connectionPool": { "tcp": { "maxConnectionDuration": "0s" } } }),
            "STR1007 spec.trafficPolicy.connectionPool.tcp.maxConnectionDuration",
        ),
        (
            json!({ "connectionPool": { "tcp": { "tcpKeepalive": { "time": "0s" } } } }),
            "STR1007 spec.trafficPolicy.connectionPool.tcp.tcpKeepalive.time",
        ),
        (
            json!({ "connectionPool": { "tcp": { "tcpKeepalive": { "interval": "0s" } } } }),
            "STR1007 spec.trafficPolicy.connectionPool.tcp.tcpKeepalive.interval",
        ),
    ] {
        let mut index = index();
        let spec = json!({ "host": "web", "trafficPolicy": policy });
        index.apply(&all(&[rule("shop", "own", 0, spec)]));
        let state = &index.reports().values().next().expect("one object").state;
        let reported: Vec<_> =
            state.reasons.iter().map(|one| format!("{} {}", one.code.id, one.path)).collect();
        assert_eq!(reported, [expected], "{policy}");
        assert!(!state.refused);
    }
}

#[test]
fn remembered_version_is_used_only_as_the_last_valid_version() {
    let good = rule("shop", "own", 0, json!({"host": "web"}));
    let gone = rule("shop", "gone", 0, json!({"host": "web"}));
    let bad = rule("shop", "own", 0, json!({"host": "web", "trafficPolicy": 1}));
    let mut index = TrafficIndex::new(kind_settings());
    index.remember(&all(&[good.clone(), gone]));
    assert!(active(&index, "client", HOST, "shop").is_empty());
    // The mesh settings may change before the objects arrive.
    assert!(index.set(KindSettings { domain: "example.org".into(), ..kind_settings() }).is_none());
    assert!(index.set(kind_settings()).is_none());
    assert!(index.apply(&all(std::slice::from_ref(&bad))).is_some(), "the first time");
    assert_eq!(active(&index, "client", HOST, "shop"), ["shop/own"]);
    assert!(index.reports().values().next().expect("one object").state.is_last_good);
    let [LastValidObject { now, good: before, .. }] = &index.last_valid_objects()[..] else {
        panic!("{:?}", index.last_valid_objects())
    };
    assert!(now.to_value() == *bad && before.to_value() == *good);
    // After the first objects, remembered versions are not used any more.
    let bad = rule("shop", "gone", 0, json!({"host": "web", "subsets": 1}));
    index.apply(&all(&[bad]));
    assert!(active(&index, "client", HOST, "shop").is_empty());
}

/// As in Gateways, files have absolute paths. As in Istio, a server without verification may have
/// any name.
#[test]
fn tls_without_verified_names_or_with_relative_files_is_reported() {
    let reported = |tls: Value| {
        let mut index = index();
        let spec = json!({ "host": "web", "trafficPolicy": { "tls": tls } });
        index.apply(&all(&[rule("shop", "own", 0, spec)]));
        let (_, report) = index.reports().iter().next().expect("one object");
        let reasons = report.state.reasons.iter();
        let reasons: Vec<_> = reasons.map(|one| format!("{} {}", one.code.id, one.path)).collect();
        let rules = index.traffic.destination_rules.of(HOST);
        let tls = rules.owners(&"shop".into()).and_then(|rule| rule.resolved("", 80).tls);
        (reasons.join(" "), tls.as_deref() == Some(&ClientTls::Impossible))
    };
    let names = "STR1013 spec.trafficPolicy.tls.subjectAltNames".to_owned();
    let unverified =
        json!({ "mode": "SIMPLE", "insecureSkipVerify": true, "subjectAltNames": ["a"] });
    assert_eq!(reported(unverified.clone()), (names, false));
    for (field, value) in [("subjectAltNames", json!([])), ("insecureSkipVerify", json!(false))] {
        let mut tls = unverified.clone();
        tls[field] = value;
        assert_eq!(reported(tls), (String::new(), false), "{field}");
    }
    let files = json!({
        "mode": "MUTUAL", "clientCertificate": "/c", "privateKey": "/k", "caCertificates": "/r", "caCrl": "/l",
    });
    assert_eq!(reported(files.clone()), (String::new(), false));
    for field in ["clientCertificate", "privateKey", "caCertificates", "caCrl"] {
        let mut tls = files.clone();
        tls[field] = "cert.pem".into();
        assert_eq!(reported(tls), (format!("STR1009 spec.trafficPolicy.tls.{field}"), true));
    }
}

#[test]
fn invalid_object_that_requires_tls_makes_its_host_unreachable() {
    let simple =
        json!({"tls": {"mode": "SIMPLE"}, "connectionPool": {"tcp": {"maxConnections": "x"}}});
    let unknown = json!({"tls": {"mode": "TSL"}});
    let at_port = json!({"portLevelSettings": [{"port": {"number": 1}, "tls": {"mode": "TSL"}}]});
    let plain = json!({"tls": {"mode": "DISABLE"}, "connectionPool": 1});
    let cases = [
        (json!({"host": "web", "trafficPolicy": simple}), true),
        (json!({"host": "web", "trafficPolicy": unknown}), true),
        (json!({"host": "web", "trafficPolicy": at_port}), true),
        (json!({"host": "web", "subsets": [{"name": "a", "trafficPolicy": unknown}]}), true),
        (json!({"host": "web", "trafficPolicy": plain}), false),
        (json!({"host": "web", "trafficPolicy": {"tls": null, "connectionPool": 1}}), false),
        (json!({"host": "api", "trafficPolicy": unknown}), false),
    ];
    for (spec, guarded) in cases {
        let mut index = index();
        index.apply(&all(&[rule("shop", "own", 0, spec.clone())]));
        let (_, report) = index.reports().iter().next().expect("one object");
        let state = &report.state;
        assert!(state.refused && !state.is_last_good, "{spec}");
        assert!(index.last_valid_objects().is_empty(), "it is not a valid version");
        let rules = index.traffic.destination_rules.of(HOST);
        let found = rules.owners(&"shop".into());
        let tls = found.and_then(|found| found.resolved("", 80).tls);
        assert_eq!(tls.as_deref(), guarded.then_some(&ClientTls::Impossible), "{spec}");
        // A readable version replaces the guard.
        let good = json!({"host": "web", "trafficPolicy": {"tls": {"mode": "DISABLE"}}});
        index.apply(&all(&[rule("shop", "own", 0, good)]));
        let rules = index.traffic.destination_rules.of(HOST);
        let tls = rules.owners(&"shop".into()).and_then(|rule| rule.resolved("", 80).tls);
        assert_eq!(tls.as_deref(), Some(&ClientTls::Disable), "{spec}");
        index.apply(&Collection::default());
        assert!(index.traffic.destination_rules.is_empty());
    }
}

#[test]
fn changed_root_namespace_changes_the_default_rule() {
    let mut index = index();
    index.apply(&all(&[rule("base", "mesh", 0, json!({"host": "*.local"}))]));
    assert!(active(&index, "client", HOST, "shop").is_empty());
    let update = index.set(KindSettings { root_namespace: "base".into(), ..kind_settings() });
    assert!(!update.expect("something").changes.hosts.is_empty());
    assert_eq!(active(&index, "client", HOST, "shop"), ["base/mesh"]);
}

#[test]
fn mesh_config_sets_the_default_export_of_rules() {
    let private =
        KindSettings { destination_rules_export_to: vec![".".to_owned()], ..kind_settings() };
    let mut index = TrafficIndex::new(private);
    index.apply(&all(&[rule("shop", "own", 0, json!({"host": "web"}))]));
    assert!(active(&index, "client", HOST, "shop").is_empty());
    assert_eq!(active(&index, "shop", HOST, "shop"), ["shop/own"]);
    assert_eq!(
        ExportTo::Public,
        crate::traffic::object::export_to(&["*".into()], &[], &"a".into())
    );
}

fn pick<T: Copy>(random: &mut StdRng, all: &[T]) -> T {
    *all.choose(random).expect("there are some")
}

/// The active configuration depends only on the current objects, not on the order in which they
/// arrived.
#[test]
fn result_of_a_history_equals_the_result_of_its_last_state() {
    let mut random = StdRng::seed_from_u64(7);
    for _ in 0..200 {
        let mut objects = BTreeMap::new();
        let mut index = index();
        for _ in 0..random.random_range(1..20) {
            let key = (
                pick(&mut random, &["a", "b", "istio-system"]),
                pick(&mut random, &["x", "y", "z"]),
            );
            if random.random_ratio(1, 4) {
                objects.remove(&key);
            } else {
                let host = pick(&mut random, &["web", "web.a.svc.cluster.local", "*.local", "*"]);
                let export: &[&str] = pick(&mut random, &[&[], &["*"], &["."], &["b"]]);
                let mut spec = json!({"host": host, "exportTo": export});
                if random.random_bool(0.5) {
                    spec["workloadSelector"] = json!({"matchLabels": {"app": "a"}});
                }
                if random.random_bool(0.5) {
                    spec["subsets"] = json!([{"name": pick(&mut random, &["v1", "v2"])}]);
                }
                objects.insert(key, rule(key.0, key.1, random.random_range(0..3), spec));
            }
            let now: Vec<_> = objects.values().cloned().collect();
            index.apply(&all(&now));
        }
        let mut rebuilt = TrafficIndex::new(kind_settings());
        rebuilt.apply(&all(&objects.values().cloned().collect::<Vec<_>>()));
        let mut fresh = rebuilt.traffic.clone();
        if objects.is_empty() {
            fresh.clone_from(&index.traffic);
            assert!(index.traffic.destination_rules.hosts().next().is_none());
        }
        assert_eq!(index.traffic, fresh);
    }
}

/// A following index equals the followed one, including last valid versions, even if it missed
/// intermediate states.
#[test]
fn following_index_equals_the_followed_index() {
    let mut random = StdRng::seed_from_u64(11);
    let random_object = |random: &mut StdRng, name: &'static str| {
        let host = pick(random, &["web", "*.local", "a*b"]);
        let timeout = pick(random, &["3s", "4s", "soon"]);
        let route = json!([{"destination": {"host": "web"}}]);
        let service = json!({"hosts": [host], "http": [{"timeout": timeout, "route": route}]});
        let scope = json!({"egress": [{"hosts": [pick(random, &["./*", "a/*", "web"])]}]});
        let (kind, spec) = match random.random_range(0..3) {
            0 => ("DestinationRule", json!({"host": host})),
            1 => ("VirtualService", service),
            _ => ("Sidecar", scope),
        };
        let mut object = Value::clone(&rule("a", name, random.random_range(0..3), spec));
        object["kind"] = json!(kind);
        Arc::new(object)
    };
    let (mut refused, mut retained) = (0, 0);
    for _ in 0..100 {
        let (mut index, mut follower) = (index(), TrafficIndex::new(kind_settings()));
        // One object of each kind always exists.
        let mut scope =
            Value::clone(&rule("b", "scope", 0, json!({"egress": [{"hosts": ["./*"]}]})));
        scope["kind"] = json!("Sidecar");
        let mut objects = all(&[rule("b", "rule", 0, json!({"host": "web"})), Arc::new(scope)]);
        for _ in 0..random.random_range(1..25) {
            let name = pick(&mut random, &["x", "y", "z"]);
            let object = random_object(&mut random, name);
            let key = ObjectKey::of(&object).expect("a key");
            match random.random_ratio(1, 4) {
                true => _ = objects.remove(&key),
                false => objects.insert(key, object),
            }
            index.apply(&objects);
            if random.random_bool(0.5) {
                follower.follow(&objects, index.reports());
                assert_eq!(follower.traffic, index.traffic);
                let mut tried = objects.clone();
                let object = random_object(&mut random, "x");
                tried.insert(ObjectKey::of(&object).expect("a key"), object);
                follower.apply(&tried);
            }
        }
        follower.follow(&objects, index.reports());
        assert_eq!(follower.traffic, index.traffic);
        assert!(follower.take_new_reasons().is_empty(), "it has no news");
        assert_eq!(follower.reports.len(), index.reports.len());
        for (key, report) in &follower.reports {
            assert_eq!(report.state, index.reports[key].state, "{key}");
            refused += usize::from(report.state.refused);
            retained += usize::from(report.state.is_last_good);
        }
    }
    assert!(refused > 10 && retained > 10, "the histories say little: {refused} {retained}");
}
