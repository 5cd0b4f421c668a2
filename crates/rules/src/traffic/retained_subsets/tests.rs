//! Tests of retained subsets and their expiry.

use serde_json::{Value, json};

use super::*;
use crate::testing::kind_settings;
use crate::traffic::TrafficIndex;
use crate::traffic::destination_rule::RuleClient;
use crate::traffic::selection::Selection;
use strait_model::Collection;

const HOST: &str = "web.shop.svc.cluster.local";

/// Objects that can be edited, with the retained subsets.
struct Edited {
    objects: Vec<Arc<Value>>,
    index: TrafficIndex,
    retained: RetainedSubsets,
    /// Subsets with new routes from the last edit that proxies do not have yet.
    missed: MissedSubsets,
}

impl Edited {
    fn new() -> Self {
        let index = TrafficIndex::new(kind_settings());
        Self {
            objects: Vec::new(),
            index,
            retained: RetainedSubsets::default(),
            missed: MissedSubsets::default(),
        }
    }

    /// Sets or removes an object of `shop`. Returns the hosts of subsets that are not retained any
    /// more.
    fn edit(&mut self, kind: &str, name: &str, spec: Option<Value>) -> Vec<String> {
        let Some(given) = self.apply_edit(kind, name, spec) else { return Vec::new() };
        self.missed = self.retained.missed(&given, target);
        let gone = self.retained.take(given, target);
        self.retained.published();
        gone.iter().map(|rule| rule.host.to_string()).collect()
    }

    /// Returns the configuration after an edit; `None` if it does not change.
    fn apply_edit(&mut self, kind: &str, name: &str, spec: Option<Value>) -> Option<Arc<Traffic>> {
        self.objects.retain(|one| one["kind"] != kind || one["metadata"]["name"] != name);
        self.objects.extend(spec.map(|spec| {
            Arc::new(json!({
                "apiVersion": "networking.istio.io/v1", "kind": kind,
                "metadata": { "namespace": "shop", "name": name }, "spec": spec,
            }))
        }));
        let objects: Collection = self.objects.iter().cloned().collect();
        Some(self.index.apply(&objects)?.traffic)
    }

    fn rule(&mut self, name: &str, host: &str, subsets: &[&str], more: Value) -> Vec<String> {
        let with_label = |name: &&str| json!({ "name": name, "labels": { "version": name } });
        let subsets: Vec<_> = subsets.iter().map(with_label).collect();
        let mut spec = json!({ "host": host, "subsets": subsets });
        more.as_object().expect("an object").iter().for_each(|(key, value)| {
            spec[key] = value.clone();
        });
        self.edit("DestinationRule", name, Some(spec))
    }

    /// Routes requests for `x` to a subset of a host.
    fn lead(&mut self, host: &str, subset: &str) -> Vec<String> {
        let to = json!([{ "destination": { "host": host, "subset": subset } }]);
        let spec = json!({ "hosts": ["x"], "http": [{ "route": to }] });
        self.edit("VirtualService", "x", Some(spec))
    }

    fn misses(&self) -> bool {
        self.missed.is_unknown
    }

    /// Returns the subsets for clients of a namespace. Retained ones have the suffix `*`.
    fn subsets_in(&self, namespace: &str) -> Vec<String> {
        let traffic = self.retained.active("cluster.local");
        let rules = traffic.destination_rules.of(HOST);
        let namespace = &namespace.into();
        let client = RuleClient { namespace, selection: &Selection::default() };
        let rule = rules.rule(client, &"shop".into());
        let all = rule.into_iter().flat_map(|rule| rule.subsets.iter());
        all.map(|(name, one)| format!("{name}{}", if one.is_retained { "*" } else { "" })).collect()
    }

    fn subsets(&self) -> Vec<String> {
        self.subsets_in("shop")
    }
}

fn target(host: &Hostname) -> Hostname {
    match host.as_str() {
        "other.shop.svc.cluster.local" => HOST.into(),
        _ => host.clone(),
    }
}

fn nothing() -> Value {
    json!({})
}

#[test]
fn removed_subset_with_a_route_is_retained_for_a_limited_time() {
    let (mut mesh, start) = (Edited::new(), Instant::now());
    mesh.lead("web", "v2");
    mesh.rule("web", "web", &["v1", "v2"], nothing());
    mesh.rule("web", "web", &[], nothing());
    assert_eq!(mesh.subsets(), ["v2*"], "no rule routes to v1");
    assert!(mesh.retained.expire(start).is_empty());
    assert_eq!(mesh.retained.due(), Some(start + KEPT_FOR));
    // Other edits do not change its deadline.
    mesh.rule(
        "web",
        "web",
        &["v3"],
        json!({ "trafficPolicy": { "loadBalancer": { "simple": "RANDOM" } } }),
    );
    mesh.rule("other", "elsewhere", &["v2"], nothing());
    assert!(mesh.retained.expire(start + KEPT_FOR / 2).is_empty());
    assert_eq!(mesh.subsets(), ["v2*", "v3"]);
    let gone = mesh.retained.expire(start + KEPT_FOR);
    assert_eq!(gone.iter().map(|rule| rule.host.to_string()).collect::<Vec<_>>(), [HOST]);
    assert_eq!((mesh.subsets(), mesh.retained.due()), (vec!["v3".to_owned()], None));
}

/// Proxies and gateways update at different times.
#[test]
fn removed_subset_expires_soon_after_its_last_route() {
    let mut mesh = Edited::new();
    mesh.lead("web", "v2");
    mesh.rule("web", "web", &["v1", "v2"], nothing());
    mesh.rule("web", "web", &["v1"], nothing());
    assert_eq!(mesh.subsets(), ["v1", "v2*"]);
    let start = Instant::now();
    assert!(mesh.retained.expire(start).is_empty());
    assert!(mesh.lead("web", "v1").is_empty());
    assert!(mesh.retained.expire(start).is_empty());
    assert_eq!(mesh.retained.due(), Some(start + LEFT_FOR), "only the short time remains");
    assert_eq!(mesh.subsets(), ["v1", "v2*"]);
    // A new route restores the full time, and removing it starts the short time again.
    mesh.lead("web", "v2");
    assert!(mesh.retained.expire(start + LEFT_FOR).is_empty());
    let later = start + 2 * LEFT_FOR;
    assert!(mesh.retained.expire(later).is_empty());
    assert_eq!(mesh.retained.due(), Some(start + LEFT_FOR + KEPT_FOR));
    mesh.lead("web", "v1");
    assert!(mesh.retained.expire(later).is_empty());
    assert_eq!(mesh.retained.expire(later + LEFT_FOR).len(), 1);
    assert_eq!((mesh.subsets(), mesh.retained.due()), (vec!["v1".to_owned()], None));
    // Too late: the subset expired before the new route.
    assert!(mesh.lead("web", "v2").is_empty());
    assert_eq!(mesh.subsets(), ["v1"]);
}

/// The recommended order of edits: the route first, then the subset.
#[test]
fn only_recently_routed_subsets_are_retained() {
    for also_by_a_gateway in [false, true] {
        let (mut mesh, start) = (Edited::new(), Instant::now());
        mesh.rule("web", "web", &["v1", "v2", "v3"], nothing());
        let gateways = if also_by_a_gateway { json!(["edge"]) } else { json!(["mesh"]) };
        let to = |subset: &str| {
            let to = json!([{ "destination": { "host": "web", "subset": subset } }]);
            json!({ "hosts": ["x"], "gateways": gateways, "http": [{ "route": to }] })
        };
        mesh.edit("VirtualService", "x", Some(to("v2")));
        mesh.retained.expire(start);
        mesh.edit("VirtualService", "x", Some(to("v1")));
        mesh.rule("web", "web", &["v1"], nothing());
        assert_eq!(mesh.subsets(), ["v1", "v2*"], "no rule routed to v3");
        assert!(mesh.retained.expire(start).is_empty());
        assert_eq!(mesh.retained.expire(start + LEFT_FOR).len(), 1);
        assert_eq!((mesh.subsets(), mesh.retained.due()), (vec!["v1".to_owned()], None));

        // Later, the subset is treated as if it never had a route.
        mesh.rule("web", "web", &["v1", "v2"], nothing());
        mesh.edit("VirtualService", "x", Some(to("v2")));
        mesh.edit("VirtualService", "x", Some(to("v1")));
        mesh.retained.expire(start);
        assert_eq!(mesh.retained.due(), Some(start + LEFT_FOR));
        mesh.retained.expire(start + LEFT_FOR);
        mesh.rule("web", "web", &["v1"], nothing());
        assert_eq!((mesh.subsets(), mesh.retained.due()), (vec!["v1".to_owned()], None));
    }
}

#[test]
fn new_routes_to_unknown_subsets_are_missing() {
    let mut mesh = Edited::new();
    mesh.lead("web", "v2");
    assert!(mesh.misses());
    // The route is not new.
    let more = json!({ "hosts": ["x"], "http": [{ "timeout": "1s", "route": [{ "destination": { "host": "web", "subset": "v2" } }] }] });
    mesh.edit("VirtualService", "x", Some(more.clone()));
    assert!(!mesh.misses());
    mesh.rule("web", "web", &["v1", "v2"], nothing());
    assert!(!mesh.misses());
    // Names and wildcards of the host are resolved.
    for (host, subset, misses) in
        [("other", "v1", false), ("other", "v3", true), ("web", "", false)]
    {
        mesh.lead(host, subset);
        assert_eq!(mesh.misses(), misses, "{host} {subset}");
    }
    mesh.rule("all", "*.shop.svc.cluster.local", &["v4"], nothing());
    mesh.lead("web", "v4");
    assert!(!mesh.misses());
    // Routes of gateways count too.
    let bound = json!({ "hosts": ["y"], "gateways": ["edge"], "http": [{ "route": [{ "destination": { "host": "web", "subset": "v5" } }] }] });
    mesh.edit("VirtualService", "y", Some(bound));
    assert!(mesh.misses());
    // A retained subset is not missing.
    mesh.lead("web", "v2");
    mesh.rule("web", "web", &[], nothing());
    mesh.edit("VirtualService", "z", Some(more));
    assert!(!mesh.misses());
}

/// Gateways must know a subset before the first request for it.
#[test]
fn subsets_of_new_rules_are_active_before_the_rules() {
    let mut mesh = Edited::new();
    mesh.rule("web", "web", &["v1"], nothing());
    mesh.lead("web", "v1");
    let rule = |subsets: Value| Some(json!({ "host": "web", "subsets": subsets }));
    let lead = |subset: &str| {
        let to = json!([{ "destination": { "host": "web", "subset": subset } }]);
        Some(json!({ "hosts": ["x"], "http": [{ "route": to }] }))
    };
    // The rule and the route arrive at the same time.
    mesh.apply_edit("DestinationRule", "web", rule(json!([{ "name": "v2" }, { "name": "v3" }])));
    let then = mesh.apply_edit("VirtualService", "x", lead("v2")).expect("it differs");
    let missed = mesh.retained.missed(&then, target);
    assert!(!missed.is_unknown && !missed.is_unpublished);
    assert_eq!(mesh.retained.put_ahead(missed), [HostPattern::Exact(HOST.into())].into());
    assert_eq!(mesh.subsets(), ["v1", "v2*"]);
    // The route waits until a version contains the subset.
    assert!(mesh.retained.missed(&then, target).is_unpublished);
    mesh.retained.published();
    let missed = mesh.retained.missed(&then, target);
    assert!(!missed.is_unknown && !missed.is_unpublished);
    assert!(mesh.retained.put_ahead(missed).is_empty());
    mesh.retained.take(then, target);
    assert_eq!(mesh.subsets(), ["v1*", "v2", "v3"], "v1 lost its last route recently");

    // The route arrives directly after the rule.
    let given = mesh.apply_edit("DestinationRule", "web", rule(json!([{ "name": "v4" }])));
    mesh.retained.take(given.expect("it differs"), target);
    let then = mesh.apply_edit("VirtualService", "x", lead("v4")).expect("it differs");
    assert!(mesh.retained.missed(&then, target).is_unpublished);
    mesh.retained.published();
    assert!(!mesh.retained.missed(&then, target).is_unpublished);
}

#[test]
fn restored_subset_is_not_retained_any_more() {
    let mut mesh = Edited::new();
    mesh.lead("web", "v2");
    mesh.rule("web", "web", &["v2"], nothing());
    mesh.rule("web", "web", &[], nothing());
    assert_eq!(mesh.rule("web", "web", &["v2"], nothing()), [HOST]);
    assert_eq!((mesh.subsets(), mesh.retained.due()), (vec!["v2".to_owned()], None));
    // Another object with the same host may restore it, too.
    mesh.rule("web", "web", &[], nothing());
    assert_eq!(mesh.rule("young", "web", &["v2"], nothing()), [HOST]);
    assert_eq!(mesh.subsets(), ["v2"]);
}

#[test]
fn subsets_of_a_deleted_rule_keep_its_policy() {
    let mut mesh = Edited::new();
    mesh.lead("web", "v2");
    let policy = json!({ "trafficPolicy": { "tls": { "mode": "SIMPLE" } } });
    mesh.rule("web", "web", &["v1", "v2"], policy);
    let before = mesh.retained.active("cluster.local").destination_rules.clone();
    mesh.edit("DestinationRule", "web", None);
    let traffic = mesh.retained.active("cluster.local");
    assert_eq!(mesh.subsets(), ["v2*"]);
    let resolved = [&before, &traffic.destination_rules].map(|rules| {
        let rules = rules.of(HOST);
        rules.owners(&"shop".into()).expect("it exists").resolved("v2", 80)
    });
    assert_eq!(resolved[0], resolved[1], "nothing becomes plaintext");
    assert!(resolved[1].tls.is_some());
    // The next rule replaces it, with its own policy.
    mesh.rule("next", "web", &["v1"], nothing());
    assert_eq!(mesh.subsets(), ["v1", "v2*"]);
    let rules = mesh.retained.active("cluster.local").destination_rules.of(HOST);
    let rule = rules.owners(&"shop".into()).expect("it exists").clone();
    assert_eq!(rule.resolved("v2", 80).tls, None);
}

#[test]
fn subset_is_retained_for_the_clients_that_had_it() {
    let mut mesh = Edited::new();
    mesh.lead("web", "v2");
    mesh.rule("web", "web", &["v2"], nothing());
    mesh.rule("web", "web", &["v1"], json!({ "exportTo": ["."] }));
    assert_eq!(mesh.subsets_in("client"), ["v2*"]);
    assert_eq!(mesh.subsets_in("shop"), ["v1"], "existing rules take precedence");
}

#[test]
fn routes_by_wildcards_and_aliases_retain_a_subset() {
    let mut mesh = Edited::new();
    let mut now = Instant::now();
    for (host, rule_host) in [("web", "*.shop.svc.cluster.local"), ("other", "web")] {
        mesh.lead(host, "v2");
        mesh.rule("web", rule_host, &["v2"], nothing());
        mesh.rule("web", rule_host, &[], nothing());
        assert_eq!(mesh.subsets(), ["v2*"], "{rule_host}");
        mesh.lead("elsewhere.example", "v2");
        mesh.retained.expire(now);
        now += LEFT_FOR;
        mesh.retained.expire(now);
        assert_eq!(mesh.subsets(), Vec::<String>::new(), "{rule_host}");
    }
}

/// The counters for lookups do not depend on whether an object contains the subset.
#[test]
fn retained_subset_is_counted_like_a_defined_one() {
    for more in [nothing(), json!({ "exportTo": ["client"] })] {
        let mut mesh = Edited::new();
        mesh.lead("web", "v2");
        mesh.rule("web", "web", &["v2"], more.clone());
        let before = mesh.retained.active("cluster.local");
        mesh.edit("DestinationRule", "web", None);
        let now = mesh.retained.active("cluster.local");
        let counters =
            |traffic: &Traffic| (traffic.is_by_namespace(HOST), traffic.concerns(&"client".into()));
        assert_eq!(counters(&before), counters(&now), "{more}");
        mesh.retained.expire(Instant::now());
        mesh.retained.expire(Instant::now() + KEPT_FOR);
        assert_eq!(counters(&mesh.retained.active("cluster.local")), (false, false), "{more}");
    }
}

#[test]
fn predicted_subsets_contain_the_routing_object() {
    let mut edited = Edited::new();
    edited.rule("web", "web", &["v1", "v2"], json!({}));
    edited.lead("web", "v2");
    let now = Arc::clone(&edited.retained.given);
    let predicted = |edited: &Edited| {
        let target = |host: &Hostname| host.clone();
        let all = RetainedSubsets::predict(&now, &edited.retained.given, target);
        let line = |(rule, name, by): (Arc<DestinationRule>, Arc<str>, ObjectMeta)| {
            format!("{} {name} {by}", rule.meta())
        };
        all.into_iter().map(line).collect::<Vec<_>>()
    };
    edited.rule("web", "web", &["v2"], json!({}));
    assert!(predicted(&edited).is_empty(), "no rule routes to v1");
    edited.rule("web", "web", &["v1"], json!({}));
    assert_eq!(predicted(&edited), ["shop/web v2 shop/x"]);
    edited.edit("DestinationRule", "web", None);
    assert_eq!(predicted(&edited), ["shop/web v2 shop/x"]);
    edited.lead("web", "");
    assert!(predicted(&edited).is_empty(), "no rule routes there any more");
}
