use std::sync::Arc;

use serde_json::{Value, json};

use super::RuleBytes;
use crate::push::context::PushContext;
use crate::push::event_loop::{MeshEvent, MeshState};
use crate::push::subscription_index::{ChangedItem, Changes};
use crate::testing::settings;
use strait_model::mesh_config::MeshConfig;
use strait_model::policy::Policy;
use strait_model::testing::{port, service, shard};
use strait_model::{Collection, ISTIO_NETWORKING, Namespace, ObjectKey};
use strait_rules::testing::kind_settings;
use strait_rules::traffic::virtual_service_selection::RoutedService;
use strait_rules::traffic::{HostPattern, Selection, TrafficIndex};

/// A mesh with objects; each rule counts as 1,000 bytes.
struct Tenants {
    mesh: MeshState,
    index: TrafficIndex,
    objects: Collection,
}

fn thousand_for_each_rule(routed: &RoutedService) -> RuleBytes {
    RuleBytes { routes: routed.http.rules.len() * 1000, chains: 0 }
}

impl Tenants {
    fn new(limits: &str) -> Self {
        let mut mesh = MeshState::new(settings()).measuring(thousand_for_each_rule);
        mesh.apply(MeshEvent::Complete);
        let mut tenants = Self {
            mesh,
            index: TrafficIndex::new(kind_settings()),
            objects: Collection::default(),
        };
        tenants.limit(limits);
        tenants
    }

    fn limit(&mut self, limits: &str) {
        self.policy(&format!("{{foreignBytes: {limits}}}"));
    }

    /// Applies a policy with this section `traffic`.
    fn policy(&mut self, traffic: &str) {
        let text = format!("apiVersion: strait.dev/v1\nkind: Policy\ntraffic: {traffic}\n");
        let policy = Policy::parse(&text).expect("a policy");
        self.mesh.apply(MeshEvent::Policy(Arc::new(policy)));
    }

    /// Adds an object with this creation time, in seconds, and this number of rules.
    fn insert_object(&mut self, name: &str, created: u64, rules: usize, spec: Value) {
        let (namespace, name) = name.split_once('/').expect("NAMESPACE/NAME");
        let key = ObjectKey {
            kind: "VirtualService".into(),
            group: ISTIO_NETWORKING.into(),
            namespace: namespace.into(),
            name: name.into(),
        };
        let mut spec = spec;
        let rule = |at: usize| {
            let path = format!("/{at}");
            json!({ "match": [{ "uri": { "exact": path } }], "route": [{ "destination": { "host": "b.example" } }] })
        };
        spec["http"] = (0..rules).map(rule).collect();
        let created = format!("2026-01-01T00:00:{created:02}Z");
        let object = json!({ "metadata": { "creationTimestamp": created }, "spec": spec });
        self.objects.insert(key, Arc::new(object));
        if let Some(update) = self.index.apply(&self.objects) {
            self.mesh.apply(MeshEvent::Traffic(update));
        }
    }

    fn next(&mut self) -> (Arc<PushContext>, Changes) {
        self.mesh.next_version().expect("a version")
    }
}

fn hosts(name: &str) -> Value {
    json!({ "hosts": [format!("{name}.example")] })
}

/// Returns whether the rules for `NAME.example` apply to proxies in a namespace.
fn applies(context: &PushContext, name: &str, namespace: &str) -> bool {
    applies_to(context, &format!("{name}.example"), namespace)
}

/// Returns whether rules for a host apply to proxies of a namespace.
fn applies_to(context: &PushContext, host: &str, namespace: &str) -> bool {
    let host = HostPattern::written(host).expect("a host");
    let namespace = Namespace::from(namespace);
    let selection = Selection::default();
    context.traffic.routed_for_host(&host, &namespace, &selection).next().is_some()
}

#[test]
fn objects_of_a_namespace_past_its_limit_apply_to_their_own_namespace_only() {
    let mut mesh = Tenants::new("{namespace: 2500, total: 10000}");
    mesh.insert_object("evil/a", 1, 1, hosts("a"));
    mesh.insert_object("evil/b", 2, 1, hosts("b"));
    mesh.insert_object("shop/c", 3, 1, hosts("c"));
    let (context, _) = mesh.next();
    assert!(["a", "b", "c"].into_iter().all(|name| applies(&context, name, "pay")));
    assert!(context.traffic.virtual_services.withheld().is_empty());
    mesh.insert_object("evil/b", 2, 2, hosts("b"));
    let (context, changes) = mesh.next();
    assert!(["a", "b"].into_iter().all(|name| !applies(&context, name, "pay")));
    assert!(["a", "b"].into_iter().all(|name| applies(&context, name, "evil")));
    assert!(applies(&context, "c", "pay") && applies(&context, "c", "evil"));
    assert!(changes.deps.contains(&ChangedItem::Traffic("a.example".into())), "{:?}", changes.deps);
    // Below the limit again.
    mesh.insert_object("evil/b", 2, 1, hosts("b"));
    let (context, changes) = mesh.next();
    assert!(applies(&context, "a", "pay") && applies(&context, "b", "pay"));
    assert!(changes.deps.contains(&ChangedItem::Traffic("a.example".into())), "{:?}", changes.deps);
}

#[test]
fn objects_for_their_own_namespace_and_of_the_root_namespace_are_not_counted() {
    let mut mesh = Tenants::new("{namespace: 2500, total: 2500}");
    let own_namespace_only = json!({ "hosts": ["a.example"], "exportTo": ["."] });
    mesh.insert_object("evil/a", 1, 9, own_namespace_only);
    mesh.insert_object("evil/b", 2, 1, hosts("b"));
    let root = MeshConfig::default().root_namespace;
    mesh.insert_object(&format!("{root}/c"), 3, 9, hosts("c"));
    let (context, _) = mesh.next();
    assert!(applies(&context, "b", "pay") && applies(&context, "c", "pay"));
    assert!(context.traffic.virtual_services.withheld().is_empty());
}

#[test]
fn total_goes_to_the_namespaces_with_the_oldest_objects() {
    let mut mesh = Tenants::new("{namespace: 2500, total: 4500}");
    mesh.insert_object("young/a", 9, 2, hosts("a"));
    mesh.insert_object("old/b", 1, 2, hosts("b"));
    mesh.insert_object("middle/c", 5, 2, hosts("c"));
    let (context, _) = mesh.next();
    let applied = ["a", "b", "c"].map(|name| applies(&context, name, "pay"));
    assert_eq!(applied, [false, true, true]);
    assert!(applies(&context, "a", "young"));
    // With a higher limit in the policy, all apply.
    mesh.limit("{namespace: 2500, total: 9Ki}");
    let (context, changes) = mesh.next();
    assert!(
        applies(&context, "a", "pay")
            && changes.deps.contains(&ChangedItem::Traffic("a.example".into()))
    );
}

#[test]
fn sidecar_that_names_a_namespace_imports_its_objects_past_the_total() {
    let mut mesh = Tenants::new("{namespace: 2500, total: 2500}");
    mesh.insert_object("old/a", 1, 2, hosts("a"));
    mesh.insert_object("young/b", 9, 2, hosts("b"));
    for (namespace, host) in [("pay", "young/*"), ("web", "*/*")] {
        let key = ObjectKey {
            kind: "Sidecar".into(),
            group: ISTIO_NETWORKING.into(),
            namespace: namespace.into(),
            name: "default".into(),
        };
        let spec = json!({ "egress": [{ "hosts": [host] }] });
        mesh.objects.insert(key, Arc::new(json!({ "spec": spec })));
    }
    mesh.insert_object("old/a", 1, 2, hosts("a"));
    let (context, _) = mesh.next();
    assert_eq!(["pay", "web"].map(|namespace| applies(&context, "b", namespace)), [true, false]);
}

#[test]
fn routes_are_counted_for_each_port_of_the_services_that_they_are_for() {
    let mut mesh = Tenants::new("{namespace: 2500, total: 10000}");
    mesh.insert_object("evil/a", 1, 1, hosts("a"));
    mesh.next();
    let with_ports = |count: u16| {
        let ports = (0..count).map(|at| port(&format!("http-{at}"), 8000 + at, 80)).collect();
        let one = service("a.shop").with(|it| {
            it.hostname = "a.example".into();
            it.ports = ports;
        });
        MeshEvent::Registry(shard("east", 1).with(one, vec![]).built())
    };
    mesh.mesh.apply(with_ports(2));
    assert!(applies(&mesh.next().0, "a", "pay"));
    mesh.mesh.apply(with_ports(3));
    assert!(!applies(&mesh.next().0, "a", "pay"), "three tables have its routes");
    mesh.mesh.apply(with_ports(2));
    assert!(applies(&mesh.next().0, "a", "pay"));
}

#[test]
fn youngest_objects_past_the_limit_of_their_own_namespace_apply_to_no_proxy() {
    let mut mesh = Tenants::new("{namespace: 64Mi, total: 64Mi}");
    let in_megabytes = |routed: &RoutedService| {
        let routes = routed.http.rules.len() << 20;
        RuleBytes { routes, chains: 0 }
    };
    mesh.mesh = mesh.mesh.measuring(in_megabytes);
    mesh.insert_object("own/a", 1, 10, hosts("a"));
    mesh.insert_object("own/b", 2, 10, hosts("b"));
    mesh.insert_object("own/c", 3, 2, hosts("c"));
    let (context, _) = mesh.next();
    let applied = ["a", "b", "c"].map(|name| applies(&context, name, "own"));
    assert_eq!(applied, [true, false, true]);
    assert!(!applies(&context, "b", "pay"));
}

#[test]
fn incremental_measures_equal_measures_from_scratch() {
    let mut mesh = Tenants::new("{namespace: 3500, total: 6500}");
    for step in 0..60_u64 {
        let namespace = ["evil", "shop", "pay"][(step % 3) as usize];
        let (name, rules) = (format!("{namespace}/{}", step % 7), (step * 5 % 4) as usize + 1);
        mesh.insert_object(&name, step % 7, rules, hosts(&format!("h{}", step % 5)));
        let Some((context, _)) = mesh.mesh.next_version() else { continue };
        let mut fresh = Tenants::new("{namespace: 3500, total: 6500}");
        fresh.objects = mesh.objects.clone();
        let update = fresh.index.apply(&fresh.objects).expect("the first time");
        fresh.mesh.apply(MeshEvent::Traffic(update));
        let (from_scratch, _) = fresh.next();
        let withheld = [&context, &from_scratch].map(|one| one.traffic.virtual_services.withheld());
        assert_eq!(withheld[0], withheld[1], "step {step}");
    }
}

#[test]
fn denied_objects_apply_to_foreign_hosts_only_at_their_own_proxies() {
    const REVIEWS: &str = "reviews.shop.svc.cluster.local";
    let mut mesh = Tenants::new("{namespace: 1Mi, total: 1Mi}");
    let entry = service("api.pay").with(|it| it.hostname = "api.example".into());
    let word = shard("east", 1).with(service("reviews.shop"), vec![]).with(entry, vec![]);
    mesh.mesh.apply(MeshEvent::Registry(word.built()));
    let all = json!({ "hosts": [REVIEWS, "api.example", "evil.example"] });
    mesh.insert_object("evil/a", 1, 1, all);
    mesh.insert_object("evil/b", 2, 1, json!({ "hosts": ["*.wide.svc.cluster.local"] }));
    mesh.insert_object("shop/c", 3, 1, json!({ "hosts": [REVIEWS] }));
    let root = MeshConfig::default().root_namespace;
    mesh.insert_object(
        &format!("{root}/d"),
        4,
        1,
        json!({ "hosts": ["a.wide.svc.cluster.local"] }),
    );
    let hosts = [REVIEWS, "api.example", "evil.example", "b.wide.svc.cluster.local"];
    let owner = |context: &PushContext, host: &str, client: &str| {
        let host = HostPattern::written(host).expect("a host");
        let (client, selection) = (Namespace::from(client), Selection::default());
        let mut all = context.traffic.routed_for_host(&host, &client, &selection);
        all.next().map(|one| one.service.meta.namespace.to_string())
    };
    let by_host =
        |context: &PushContext, client: &str| hosts.map(|host| owner(context, host, client));
    let of = |names: [&str; 4]| names.map(|name| (!name.is_empty()).then(|| name.to_owned()));
    let (context, _) = mesh.next();
    assert_eq!(by_host(&context, "web"), of(["evil"; 4]), "note");

    mesh.policy("{foreignHosts: deny}");
    let (context, changes) = mesh.next();
    assert_eq!(by_host(&context, "web"), of(["shop", "", "evil", ""]), "a third namespace");
    assert_eq!(by_host(&context, "pay"), of(["shop", "", "evil", ""]), "the owner of the entry");
    assert_eq!(by_host(&context, "evil"), of(["evil"; 4]), "its own namespace");
    assert!(applies_to(&context, "a.wide.svc.cluster.local", "web"), "the root namespace's");
    assert!(context.traffic.virtual_services.concerns(&"evil".into()));
    assert!(changes.deps.contains(&ChangedItem::Traffic(REVIEWS.into())), "{:?}", changes.deps);

    // Without the entry's service, the host belongs to no namespace.
    let word = shard("east", 1).with(service("reviews.shop"), vec![]);
    mesh.mesh.apply(MeshEvent::Registry(word.built()));
    let (context, _) = mesh.next();
    assert_eq!(owner(&context, "api.example", "web"), Some("evil".to_owned()));

    mesh.policy("{foreignHosts: allow}");
    let (context, changes) = mesh.next();
    assert_eq!(by_host(&context, "web"), of(["evil"; 4]), "allow");
    assert!(changes.deps.contains(&ChangedItem::Traffic(REVIEWS.into())), "{:?}", changes.deps);
}
