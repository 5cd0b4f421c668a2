use serde_json::Map;

use super::*;

fn answers(of: &[(&str, Value)]) -> Vec<ReplicaAnswer> {
    let answer = |(replica, value): &(&str, Value)| ReplicaAnswer {
        replica: (*replica).to_owned(),
        value: value.clone(),
    };
    of.iter().map(answer).collect()
}

fn stream(key: &str, second: u32, kinds: &[&str]) -> Value {
    let types: Map<String, Value> =
        kinds.iter().map(|kind| ((*kind).to_owned(), json!({ "sent": "1" }))).collect();
    let (name, _) = key.rsplit_once('-').expect("a key");
    json!({
        "key": key, "id": format!("sidecar~10.0.0.1~{name}~shop"), "cluster": "east",
        "connectedAt": format!("2026-11-23T12:00:{second:02}.5Z"), "types": types,
    })
}

fn keys(merged: &Value) -> Vec<&str> {
    let rows = merged.as_array().expect("rows").iter();
    rows.map(|row| row["key"].as_str().expect("a key")).collect()
}

#[test]
fn proxies_of_all_replicas_are_listed_with_their_replica() {
    let merged = merge(
        MergeRule::Proxies,
        answers(&[
            ("a", json!([stream("web.shop-1", 3, &["cds"])])),
            ("b", json!([stream("cart.shop-1", 1, &["cds"]), stream("pay.shop-2", 9, &["lds"])])),
        ]),
    );
    assert_eq!(keys(&merged), ["cart.shop-1/b", "web.shop-1/a", "pay.shop-2/b"]);
    assert_eq!(merged[0]["replica"], "b");
}

#[test]
fn proxy_that_moved_is_listed_once_at_its_newest_stream() {
    let moved = merge(
        MergeRule::Proxies,
        answers(&[
            ("a", json!([stream("web.shop-7", 1, &["cds"])])),
            ("b", json!([stream("web.shop-2", 5, &["cds"]), stream("web.shop-3", 6, &["cds"])])),
        ]),
    );
    assert_eq!(keys(&moved), ["web.shop-2/b", "web.shop-3/b"], "one entry per stream");
    let split = merge(
        MergeRule::Proxies,
        answers(&[
            ("a", json!([stream("web.shop-7", 1, &["cds", "lds"])])),
            ("b", json!([stream("web.shop-2", 5, &["nds"])])),
        ]),
    );
    assert_eq!(keys(&split), ["web.shop-7/a", "web.shop-2/b"], "the agent has its own stream");
}

#[test]
fn same_pod_name_in_two_clusters_is_two_proxies() {
    let mut other = stream("web.shop-1", 5, &["cds"]);
    other["cluster"] = json!("west");
    let merged = merge(
        MergeRule::Proxies,
        answers(&[("a", json!([stream("web.shop-1", 1, &["cds"])])), ("b", json!([other]))]),
    );
    assert_eq!(keys(&merged), ["web.shop-1/a", "web.shop-1/b"]);
}

#[test]
fn key_names_the_replica_and_a_deployment_is_no_key() {
    assert_eq!(split_key("web.shop-1/strait-a"), Some(("web.shop-1", "strait-a")));
    assert_eq!(split_key("deploy/web.shop"), None);
    assert_eq!(split_key("deployment/web.shop"), None);
    assert_eq!(split_key("web.shop"), None);
}

#[test]
fn summary_counts_the_proxies_of_all_replicas() {
    let summary = |connected: u64, cluster: &str, refusals: &[&str]| {
        let refusals: Vec<_> = refusals.iter().map(|key| json!({ "key": key })).collect();
        json!({
            "proxies": {
                "connected": connected, "refusing": refusals.len(), "waiting": 1,
                "clusters": { cluster: { "connected": connected, "refusing": 0, "waiting": 1 } },
                "refusals": refusals,
            },
            "objects": { "faulty": 3 },
        })
    };
    let merged = merge(
        MergeRule::Summary,
        answers(&[
            ("a", summary(2, "east", &["web.shop-1"])),
            ("b", summary(3, "east", &[])),
            ("c", summary(4, "west", &["web.shop-1"])),
        ]),
    );
    let proxies = &merged["proxies"];
    assert_eq!(
        [&proxies["connected"], &proxies["refusing"], &proxies["waiting"]],
        [&json!(9), &json!(2), &json!(3)]
    );
    assert_eq!(proxies["clusters"]["east"]["connected"], 5);
    assert_eq!(proxies["clusters"]["west"]["connected"], 4);
    assert_eq!(keys(&proxies["refusals"]), ["web.shop-1/a", "web.shop-1/c"]);
    assert_eq!(merged["objects"]["faulty"], 3, "all replicas read the same objects");
}

#[test]
fn object_counts_the_proxies_of_all_replicas_and_is_used_if_any_replica_uses_it() {
    let object = |state: &str, proxies: u64, codes: &[&str]| {
        let reasons: Vec<_> = codes.iter().map(|code| json!({ "code": code })).collect();
        json!([{
            "kind": "VirtualService", "namespace": "shop", "name": "web", "store": "config",
            "state": state, "proxies": proxies, "reasons": reasons,
        }])
    };
    let merged = |of: &[(&str, Value)]| merge(MergeRule::Objects, answers(of))[0].clone();
    let one = merged(&[("a", object("unused", 0, &["STR1"])), ("b", object("inForce", 2, &[]))]);
    assert_eq!((&one["state"], &one["proxies"]), (&json!("inForce"), &json!(2)));
    assert_eq!(one["reasons"], json!([]));
    let both = merged(&[
        ("a", object("partly", 1, &["STR1"])),
        ("b", object("partly", 2, &["STR1", "STR2"])),
    ]);
    assert_eq!((&both["state"], &both["proxies"]), (&json!("partly"), &json!(3)));
    assert_eq!(both["reasons"], json!([{ "code": "STR1" }, { "code": "STR2" }]));
    let refused =
        merged(&[("a", object("inForce", 1, &[])), ("b", object("refused", 0, &["STR3"]))]);
    assert_eq!(refused["state"], "refused");
}

#[test]
fn policy_has_the_acknowledgements_of_all_replicas() {
    let policy = |proxies: u64, acknowledged: u64, at: &str, proxy: &str| {
        json!([{
            "kind": "PeerAuthentication", "namespace": "shop", "name": "strict",
            "connected": 5, "proxies": proxies, "acknowledged": acknowledged,
            "rows": [{ "proxy": proxy, "acknowledged": true }],
            "transition": { "proxies": 1, "until": at },
            "told": [{ "seq": 4, "at": at, "proxies": proxies, "acknowledged": acknowledged,
                       "refused": 0, "waiting": proxies - acknowledged }],
        }])
    };
    let merged = merge(
        MergeRule::Reach,
        answers(&[
            ("a", policy(2, 2, "2026-11-23T12:00:00.1Z", "web")),
            ("b", policy(3, 1, "2026-11-23T12:00:00.4Z", "cart")),
            ("c", policy(1, 1, "2026-11-23T13:00:00Z", "pay")),
        ]),
    );
    let one = &merged[0];
    assert_eq!(
        [&one["connected"], &one["proxies"], &one["acknowledged"]],
        [&json!(15), &json!(6), &json!(4)]
    );
    assert_eq!(one["rows"].as_array().map(Vec::len), Some(3));
    assert_eq!(one["transition"], json!({ "proxies": 3, "until": "2026-11-23T13:00:00Z" }));
    let steps: Vec<_> = one["told"].as_array().expect("steps").iter().collect();
    assert_eq!(steps.len(), 2, "a step an hour later is another one");
    assert_eq!([&steps[0]["proxies"], &steps[0]["waiting"]], [&json!(5), &json!(2)]);
}

fn change(seq: u64, second: u32, effect: &str, proxies: u64) -> Value {
    json!({
        "seq": seq, "at": format!("2026-11-23T12:00:{second:02}Z"), "cause": { "name": "web" },
        "otherCauses": [], "effect": effect, "proxies": proxies, "acknowledged": proxies,
        "refused": 0, "refusedBy": [], "waiting": 0, "ms": proxies,
    })
}

#[test]
fn change_of_all_replicas_is_one_with_all_its_proxies() {
    let merged = merge(
        MergeRule::Events,
        answers(&[
            ("a", json!([change(1, 10, "3 -> 2", 2), change(2, 20, "2 -> 3", 2)])),
            (
                "b",
                json!([
                    change(7, 5, "1 -> 3", 1),
                    change(8, 11, "3 -> 2", 4),
                    change(9, 21, "2 -> 3", 0),
                    change(10, 22, "other", 0),
                    change(11, 23, "another", 1),
                ]),
            ),
        ]),
    );
    let shown: Vec<_> = merged
        .as_array()
        .expect("rows")
        .iter()
        .map(|row| (row["seq"].as_u64(), row["proxies"].as_u64(), row["replica"].as_str()))
        .collect();
    assert_eq!(
        shown,
        [
            (Some(7), Some(1), Some("b")),
            (Some(1), Some(6), None),
            (Some(2), Some(2), None),
            (Some(11), Some(1), Some("b")),
        ]
    );
    assert_eq!(merged[1]["replicas"], json!(["a", "b"]));
    assert_eq!(merged[1]["ms"], 4);
    assert!(merged[1].get("steps").is_none(), "{merged}");
}

#[test]
fn change_has_its_own_number_at_each_replica() {
    let change_of_first = change(1, 10, "3 -> 2", 2);
    let others =
        json!([change(7, 1, "3 -> 2", 1), change(8, 11, "3 -> 2", 4), change(9, 12, "x", 1)]);
    assert_eq!(number_of(&change_of_first, others), Some(8), "the nearest in time");
    assert_eq!(number_of(&change_of_first, json!([change(9, 12, "x", 1)])), None);
    let mut whole = change_of_first;
    whole["replicas"] = json!(["a"]);
    whole["steps"] = json!([{ "proxy": "web" }]);
    let mut other = change(8, 11, "3 -> 2", 4);
    other["steps"] = json!([{ "proxy": "cart" }]);
    other["refusals"] = json!([{ "proxy": "cart", "error": "no" }]);
    add_change(&mut whole, &other, "b");
    assert_eq!(whole["proxies"], 6);
    assert_eq!(whole["steps"], json!([{ "proxy": "web" }, { "proxy": "cart" }]));
    assert_eq!(whole["refusals"].as_array().map(Vec::len), Some(1));
    assert_eq!(whole["replicas"], json!(["a", "b"]));
}

#[test]
fn changes_after_a_known_one_contain_no_earlier_ones() {
    let since = |own: Value| {
        let others = json!([change(7, 5, "1 -> 3", 1), change(8, 11, "3 -> 2", 4)]);
        merge(MergeRule::EventsSince, answers(&[("a", own), ("b", others)]))
    };
    assert_eq!(since(json!([])), json!([]), "there is nothing new");
    let merged = since(json!([change(2, 10, "3 -> 2", 2)]));
    assert_eq!(merged.as_array().map(Vec::len), Some(1));
    assert_eq!(merged[0]["proxies"], 6);
}

#[test]
fn history_from_before_the_start_comes_from_the_replica_that_has_it() {
    let record = |version: u64, second: u32| json!({ "version": version, "at": format!("2026-11-23T12:00:{second:02}Z") });
    let merged = merge(
        MergeRule::History,
        answers(&[
            ("a", json!([record(1, 30), record(2, 40)])),
            ("b", json!([record(4, 20), record(5, 30)])),
            ("c", json!([record(7, 10), record(8, 20), record(9, 40)])),
        ]),
    );
    let shown: Vec<_> = merged
        .as_array()
        .expect("rows")
        .iter()
        .map(|row| (row["version"].as_u64(), row["replica"].as_str()))
        .collect();
    assert_eq!(
        shown,
        [(Some(7), Some("c")), (Some(8), Some("c")), (Some(1), None), (Some(2), None)]
    );
}

#[test]
fn preview_groups_the_proxies_of_all_replicas_by_their_differences() {
    let preview = |keys: &[&str], changed: &str| {
        let proxies: Vec<_> = keys.iter().map(|key| json!({ "key": key })).collect();
        json!({
            "objects": [{ "kind": "VirtualService", "namespace": "shop", "name": "web",
                          "action": "changed", "state": "inForce", "proxies": keys.len(), "reasons": [] }],
            "affected": [{ "proxies": proxies, "types": { "rds": { "changed": [changed] } } }],
            "unaffected": 3, "notLookedAt": 1,
        })
    };
    let merged = merge(
        MergeRule::Preview,
        answers(&[
            ("a", preview(&["web.shop-1"], "80")),
            ("b", preview(&["web.shop-1", "cart.shop-2"], "80")),
            ("c", preview(&["pay.shop-1"], "90")),
        ]),
    );
    let groups = merged["affected"].as_array().expect("groups");
    assert_eq!(groups.len(), 2);
    assert_eq!(keys(&groups[0]["proxies"]), ["web.shop-1/a", "web.shop-1/b", "cart.shop-2/b"]);
    assert_eq!(keys(&groups[1]["proxies"]), ["pay.shop-1/c"]);
    assert_eq!([&merged["unaffected"], &merged["notLookedAt"]], [&json!(9), &json!(3)]);
    assert_eq!(merged["objects"][0]["proxies"], 4);
    assert!(merged.get("proxies").is_none(), "{merged}");
}

#[test]
fn cluster_withholds_what_any_replica_withholds() {
    let clusters = |withheld: u64| {
        json!([{ "id": "east", "secret": "s", "endpoints": 9, "withheld": withheld,
                 "withheldBy": { "STR0403": withheld } }])
    };
    let merged = merge(
        MergeRule::Clusters,
        answers(&[("a", clusters(0)), ("b", clusters(4)), ("c", clusters(2))]),
    );
    assert_eq!(merged[0]["withheld"], 4);
    assert_eq!(merged[0]["withheldBy"], json!({ "STR0403": 4 }));
    assert_eq!(merged.as_array().map(Vec::len), Some(1));
}

#[test]
fn source_withholds_what_any_replica_withholds() {
    let sources = |count: u64| {
        let by = json!({ "STR0401": { "endpoints": count, "services": ["db.example.com"] } });
        json!([{ "name": "entries", "withheld": count, "withheldBy": by }])
    };
    let none = json!([{ "name": "entries", "withheld": 0 }]);
    let merged =
        merge(MergeRule::Sources, answers(&[("a", none), ("b", sources(4)), ("c", sources(2))]));
    assert_eq!(merged, sources(4));
}

#[test]
fn member_with_another_state_in_one_replica_names_both_states() {
    let row = |id: &str, state: &str| json!({ "id": id, "secret": null, "state": state });
    let answers = answers(&[
        ("a", json!([row("c1", "live"), row("c2", "live")])),
        (
            "b",
            json!([row("c1", "live"), { "id": "c2", "secret": null, "state": "stale", "reason": "STR0301: refused" }, row("c3", "live")]),
        ),
    ]);
    let merged = merge(MergeRule::Clusters, answers);
    assert!(merged[0].get("replicas").is_none(), "{merged}");
    let c2 = json!([
        { "replica": "a", "state": "live", "reason": null },
        { "replica": "b", "state": "stale", "reason": "STR0301: refused" },
    ]);
    assert_eq!(merged[1]["replicas"], c2);
    assert_eq!(merged[2]["replicas"][0]["state"], Value::Null, "a does not have c3");
}

#[test]
fn each_path_has_a_rule() {
    let of = |method: Method, path: &str, query: &[(&str, &'static str)]| {
        MergeRule::of(&method, path, |name| {
            query.iter().find(|(own, _)| *own == name).map(|(_, value)| *value)
        })
    };
    for path in ["/debug/services", "/debug/endpoints", "/debug/push", "/debug/certificates"] {
        assert_eq!(of(Method::GET, path, &[]), MergeRule::Local, "{path}");
    }
    assert_eq!(of(Method::GET, "/debug/events", &[("since", "0")]), MergeRule::Events);
    assert_eq!(of(Method::GET, "/debug/events", &[("since", "4")]), MergeRule::EventsSince);
    assert_eq!(of(Method::GET, "/debug/events", &[("seq", "4")]), MergeRule::Change);
    assert_eq!(of(Method::GET, "/debug/history", &[("version", "4")]), MergeRule::Local);
    assert_eq!(of(Method::GET, "/debug/diff", &[("at", "4")]), MergeRule::Local);
    assert_eq!(of(Method::GET, "/debug/diff", &[("at", "2026-11-23")]), MergeRule::FirstFound);
    assert_eq!(of(Method::POST, "/debug/diff", &[]), MergeRule::Preview);
    assert_eq!(of(Method::POST, "/debug/diff", &[("proxy", "web")]), MergeRule::OfProxy);
    assert_eq!(of(Method::GET, "/debug/hold", &[]), MergeRule::Local);
    assert_eq!(of(Method::POST, "/debug/hold", &[]), MergeRule::Preview);
}

fn named(workload: &str, exactness: u64, opened: u64, replica: Option<&str>) -> NamedStream {
    NamedStream {
        exactness,
        key: format!("{workload}-{opened}"),
        id: workload.to_owned(),
        cluster: "east".into(),
        workload: workload.to_owned(),
        is_of_configuration: true,
        opened,
        replica: replica.map(ToOwned::to_owned),
    }
}

#[test]
fn name_means_the_newest_stream_with_a_configuration_at_any_replica() {
    let agent = NamedStream { is_of_configuration: false, ..named("web.shop", 1, 9, None) };
    let streams = vec![
        named("web.shop", 1, 3, None),
        named("web.shop", 1, 5, Some("b")),
        agent,
        named("web.shop-2", OF_PREFIX, 7, None),
    ];
    let found = select(streams).expect("unique").expect("a stream");
    assert_eq!((found.opened, found.replica.as_deref()), (5, Some("b")));
    assert_eq!(select(Vec::new()), Ok(None));
}

#[test]
fn prefix_must_be_unique_and_a_deployment_need_not_be() {
    let both = |exactness| {
        vec![named("web-b.shop", exactness, 1, None), named("web-a.shop", exactness, 2, Some("b"))]
    };
    assert_eq!(
        select(both(OF_PREFIX)),
        Err(vec!["web-a.shop@east".to_owned(), "web-b.shop@east".to_owned()])
    );
    let found = select(both(OF_DEPLOYMENT)).expect("any").expect("a stream");
    assert_eq!(found.workload, "web-a.shop");
    assert_eq!(strait_model::NameMatch::Deployment as u64, OF_DEPLOYMENT);
    assert_eq!(strait_model::NameMatch::Prefix as u64, OF_PREFIX);
}
