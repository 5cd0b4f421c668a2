//! The cost of an edit of a VirtualService: only the route configurations that differ are sent, and
//! only to affected proxies.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::*;
use strait_base::cpu;
use strait_mesh::push::reach::RuleDifference;

/// A mesh with objects that can be edited.
struct Edited {
    mesh: MeshState,
    rules: Rules,
    cache: Cache,
    before: Arc<PushContext>,
    /// The kind of library, if the clients are gRPC libraries.
    grpc: Option<GrpcLibrary>,
    /// The last difference between rules, and the namespaces that it can affect.
    last: Option<(RuleDifference, Option<BTreeSet<Namespace>>)>,
}

impl Edited {
    fn new() -> Self {
        let mut mesh = MeshState::new(settings());
        let clusters = [("east".into(), member(None))].into();
        mesh.apply(MeshEvent::Clusters(Arc::new(KnownClusters { clusters })));
        let mut all = shard("east", 1).network("n1");
        let with = |name: &str, vip: &str, served: Port| {
            service(name).vip(vip).with(|service| service.ports = vec![served])
        };
        for service in [
            with("a.shop", "10.1.0.1", port("http", 80, 80)),
            with("b.pay", "10.1.0.2", port("http", 8080, 80)),
            with("db.shop", "10.1.0.9", port("tcp", 5432, 5432)),
        ] {
            all = all.with(service, vec![]);
        }
        mesh.apply(MeshEvent::Registry(all.built()));
        mesh.apply(MeshEvent::Complete);
        let (before, _) = mesh.next_version().expect("a first version");
        Self { mesh, rules: rules(), cache: Cache::default(), before, grpc: None, last: None }
    }

    /// Stores a version of the VirtualService and returns the affected resources by namespace, or
    /// `None` if no new mesh version results.
    fn edit(&mut self, version: &str, spec: Value) -> Option<BTreeMap<String, AffectedResources>> {
        let object = json!({ "metadata": { "resourceVersion": version }, "spec": spec });
        self.store("VirtualService", "one", object)
    }

    /// Stores another object and returns the affected resources by namespace.
    fn put(
        &mut self,
        kind: &str,
        name: &str,
        spec: Value,
    ) -> Option<BTreeMap<String, AffectedResources>> {
        self.store(kind, name, json!({ "spec": spec }))
    }

    fn store(
        &mut self,
        kind: &str,
        name: &str,
        object: Value,
    ) -> Option<BTreeMap<String, AffectedResources>> {
        self.write(kind, name, object);
        self.publish();
        self.take_affected()
    }

    /// Stores an object without publishing it.
    fn write(&mut self, kind: &str, name: &str, object: Value) {
        let key = ObjectKey {
            kind: kind.into(),
            group: ISTIO_NETWORKING.into(),
            namespace: "shop".into(),
            name: name.into(),
        };
        self.rules.objects.insert(key, Arc::new(object));
    }

    /// Publishes the stored objects.
    fn publish(&mut self) {
        if let Some(update) = self.rules.index.apply(&self.rules.objects) {
            self.mesh.apply(MeshEvent::Traffic(update));
        }
    }

    /// Changes the target of the alias `www.shop` and returns the affected resources.
    fn rename(&mut self, target: &str) -> Option<BTreeMap<String, AffectedResources>> {
        let www = service("www.shop").with(|it| it.resolution = Resolution::Alias(host(target)));
        let update = shard("east", 1).network("n1").with(www, vec![]);
        self.mesh.apply(MeshEvent::Registry(update.built()));
        self.take_affected()
    }

    /// Returns the affected resources of the published change, by namespace.
    fn take_affected(&mut self) -> Option<BTreeMap<String, AffectedResources>> {
        let (now, changes) = self.mesh.next_version()?;
        let grpc = self.grpc;
        let location = |namespace: &str| {
            let domain = format!("{namespace}.svc.cluster.local");
            let proxy = sidecar(&format!("client.{namespace}"), "east");
            let proxy = Proxy { dns_domain: domain.as_str().into(), grpc, ..proxy };
            let whereabouts = now.whereabouts(&proxy);
            Arc::new(ProxyLocation { proxy: Arc::new(proxy), network: "n1".into(), whereabouts })
        };
        let locations = NAMESPACES.map(location);
        let hosts = related_hosts([&self.before, &now], &changes.services());
        let versions = [&*self.before, &*now];
        self.last = Some((RuleDifference::of(versions, &hosts), reach(versions, &hosts)));
        let affected = self.cache.seen(&self.before, &now, &hosts, &locations);
        self.before = now;
        let affected = affected.iter().map(|affected| (**affected).clone());
        Some(NAMESPACES.map(str::to_owned).into_iter().zip(affected).collect())
    }
}

/// Returns a VirtualService for some hosts.
fn spec(hosts: &[&str], timeout: &str, more: Value) -> Value {
    let to = |host: &str| json!([{ "destination": { "host": host, "port": { "number": 80 } } }]);
    let mut spec = json!({ "hosts": hosts, "http": [{ "timeout": timeout, "route": to("a") }] });
    for (field, value) in more.as_object().expect("an object") {
        spec[field] = value.clone();
    }
    spec
}

type SpecEdit<'a> = &'a dyn Fn(&mut Value);

/// Returns a VirtualService that differs only in the handling of requests.
pub(super) fn with_other_requests(mut spec: Value) -> Value {
    let other = if spec["http"][0]["timeout"] == "1s" { "2s" } else { "1s" };
    spec["http"][0]["timeout"] = other.into();
    spec
}

/// Returns the affected routes of each namespace. Namespaces without affected routes are omitted.
fn routes(affected: &BTreeMap<String, AffectedResources>) -> Vec<String> {
    let changed =
        affected.iter().filter(|(_, resources)| **resources != AffectedResources::default());
    let changed = changed.map(|(namespace, resources)| {
        assert!(
            resources.lists.is_empty() && resources.assignments.is_empty() && !resources.everything,
            "{resources:?}"
        );
        // The route of a single service is only requested on ports with protocol detection.
        let routes = resources.routes.iter().map(|name| &**name).filter(|name| !name.contains(':'));
        let routes: Vec<_> = routes.collect();
        format!("{namespace}: {}", routes.join(" "))
    });
    changed.collect()
}

#[test]
fn edit_sends_only_the_tables_that_differ() {
    let mut mesh = Edited::new();
    let nothing = || json!({});
    let affected = mesh.edit("1", spec(&["a"], "1s", nothing())).expect("it is new");
    assert_eq!(routes(&affected), ["pay: 80", "shop: 80", "web: 80"]);
    let affected = mesh.edit("2", spec(&["a"], "2s", nothing())).expect("it differs");
    assert_eq!(routes(&affected), ["pay: 80", "shop: 80", "web: 80"]);
    assert_eq!(
        mesh.edit("3", spec(&["a"], "2s", nothing())),
        None,
        "equal content in another version"
    );
    let affected = mesh.edit("4", spec(&["a", "b.pay.svc.cluster.local"], "2s", nothing()));
    let affected = affected.expect("it differs");
    // A host without port 80 also has a route there.
    assert_eq!(routes(&affected), ["pay: 80 8080", "shop: 80 8080", "web: 80 8080"]);
    let other_port = json!({ "http": [{ "match": [{ "port": 8080 }], "route": [{ "destination": { "host": "a" } }] }] });
    let affected = mesh.edit("5", spec(&["b.pay.svc.cluster.local"], "2s", other_port));
    assert_eq!(
        routes(&affected.expect("it differs")),
        ["pay: 80 8080", "shop: 80 8080", "web: 80 8080"]
    );
}

#[test]
fn only_proxies_that_see_an_object_are_notified_of_it() {
    let mut mesh = Edited::new();
    let private = |timeout: &str| spec(&["a"], timeout, json!({ "exportTo": ["."] }));
    let affected = mesh.edit("1", private("1s")).expect("it is new");
    assert_eq!(routes(&affected), ["shop: 80"]);
    let affected = mesh.edit("2", private("2s")).expect("it differs");
    assert_eq!(routes(&affected), ["shop: 80"]);
    let from_namespace = |namespace: &str| json!({ "http": [{ "match": [{ "sourceNamespace": namespace }], "route": [{ "destination": { "host": "b.pay" } }] }] });
    let affected = mesh.edit("3", spec(&["a"], "", from_namespace("web"))).expect("it differs");
    assert_eq!(routes(&affected), ["shop: 80", "web: 80"], "shop no longer has its own rules");
}

#[test]
fn edit_of_rules_for_one_namespace_affects_no_other_namespace() {
    let mut mesh = Edited::new();
    let exported_to = |timeout: &str, namespaces: &[&str]| {
        spec(&["a"], timeout, json!({ "exportTo": namespaces }))
    };
    let mut reached = |version: &str, spec: Value| {
        mesh.edit(version, spec).expect("it differs");
        let (_, reach) = mesh.last.take().expect("a comparison");
        reach.map(|all| all.iter().map(|one| one.to_string()).collect::<Vec<_>>())
    };
    let some = |all: &[&str]| Some(all.iter().map(|one| one.to_string()).collect());
    assert_eq!(reached("1", exported_to("1s", &["."])), some(&["shop"]));
    assert_eq!(reached("2", exported_to("2s", &["."])), some(&["shop"]));
    assert_eq!(
        reached("3", exported_to("2s", &["web"])),
        some(&["shop", "web"]),
        "shop no longer has the rules"
    );
    assert_eq!(reached("4", exported_to("2s", &["*"])), None);
    assert_eq!(reached("5", exported_to("1s", &["*"])), None);
}

#[test]
fn handling_of_requests_is_distinguished_from_sources_and_destinations() {
    let to = |host: &str, weight: u32| json!({ "destination": { "host": host, "port": { "number": 80 } }, "weight": weight });
    let base = json!({
        "hosts": ["a"],
        "http": [{ "timeout": "1s", "route": [to("a", 90), to("b.pay.svc.cluster.local", 10)] }],
        "tcp": [{ "match": [{ "port": 5432 }], "route": [to("a", 1)] }],
    });
    let with = |edit: &dyn Fn(&mut Value)| {
        let mut spec = base.clone();
        edit(&mut spec);
        spec
    };
    let rule = json!({ "match": [{ "uri": { "prefix": "/x" } }], "fault": { "abort": { "httpStatus": 503, "percentage": { "value": 100 } } }, "route": [to("a", 1)] });
    let from_web = json!([{ "sourceNamespace": "web" }]);
    let edits: [(&str, bool, SpecEdit<'_>); 9] = [
        ("a timeout", true, &|spec| spec["http"][0]["timeout"] = "2s".into()),
        ("shares", true, &|spec| spec["http"][0]["route"][0]["weight"] = 50.into()),
        ("one more rule", true, &|spec| {
            spec["http"].as_array_mut().expect("a list").insert(0, rule.clone());
        }),
        ("the destination", false, &|spec| spec["http"][0]["route"][1] = to("db", 10)),
        ("the port of the destination", false, &|spec| {
            spec["http"][0]["route"][0]["destination"] = json!({ "host": "a" });
        }),
        ("for which namespaces", false, &|spec| spec["exportTo"] = json!(["."])),
        ("the source namespace", false, &|spec| {
            spec["http"][0]["match"] = from_web.clone();
        }),
        ("connections", false, &|spec| spec["tcp"][0]["match"][0]["port"] = 5433.into()),
        ("one more host", false, &|spec| spec["hosts"] = json!(["a", "db"])),
    ];
    // With a Sidecar, a proxy receives the destinations to which rules route requests from its
    // namespace.
    let from = |first: &str, second: &str| {
        let from_namespace = |namespace: &str, host: &str| json!({ "match": [{ "sourceNamespace": namespace }], "route": [to(host, 1)] });
        json!([from_namespace(first, "a"), from_namespace(second, "b.pay.svc.cluster.local")])
    };
    let sender_base = with(&|spec| spec["http"] = from("web", "shop"));
    let other_edit: (&str, bool, SpecEdit<'_>) =
        ("the sources of two destinations", false, &|spec| spec["http"] = from("shop", "web"));
    let all = edits.map(|edit| (edit, &base)).into_iter().chain([(other_edit, &sender_base)]);
    for ((what, expected, edit), base) in all {
        let mut mesh = Edited::new();
        mesh.edit("1", base.clone()).expect("it is new");
        let (rules, _) = mesh.last.take().expect("a comparison");
        assert!(!rules.changes_only_requests, "the object did not exist before");
        mesh.edit("2", with(edit)).expect(what);
        let (rules, _) = mesh.last.take().expect("a comparison");
        assert_eq!(rules.changes_only_requests, expected, "{what}");
    }
}

#[test]
fn tcp_rules_affect_listeners_and_not_routes() {
    let mut mesh = Edited::new();
    let tcp = |host: &str| json!({ "hosts": ["db"], "tcp": [{ "route": [{ "destination": { "host": host, "port": { "number": 1 } } }] }] });
    mesh.edit("1", tcp("x.example")).expect("it is new");
    let affected = mesh.edit("2", tcp("v.example")).expect("it differs");
    for (namespace, affected) in affected {
        assert!(affected.lists.contains(Wildcard::Listeners), "{namespace}");
        assert!(
            !affected.lists.contains(Wildcard::Clusters) && affected.routes.is_empty(),
            "{affected:?}"
        );
    }
}

#[test]
fn routes_to_an_alias_change_with_its_target() {
    let mut mesh = Edited::new();
    mesh.rename("b.pay").expect("it is new");
    let leading = json!({ "http": [{ "route": [{ "destination": { "host": "www" } }] }] });
    let affected = mesh.edit("1", spec(&["a"], "", leading)).expect("it is new");
    assert!(routes(&affected).iter().any(|one| one == "web: 80"), "{affected:?}");
    let tables = |affected: &BTreeMap<String, AffectedResources>| {
        let has_port_80 =
            |affected: &AffectedResources| affected.routes.iter().any(|name| &**name == "80");
        NAMESPACES.iter().filter(|namespace| has_port_80(&affected[**namespace])).count()
    };
    let affected = mesh.rename("a.shop").expect("another target");
    assert_eq!(tables(&affected), NAMESPACES.len(), "{affected:?}");
    let affected = mesh.rename("db.shop").expect("another target");
    assert_eq!(tables(&affected), NAMESPACES.len(), "{affected:?}");
}

#[test]
fn library_is_notified_of_its_routes_and_their_destinations() {
    let mut mesh = Edited::new();
    mesh.grpc = Some(GrpcLibrary::default());
    let routes =
        |affected: &AffectedResources| affected.routes.iter().map(|one| one.to_string()).collect();
    let route_a = "outbound|80||a.shop.svc.cluster.local";
    let affected = mesh.edit("1", spec(&["a"], "1s", json!({}))).expect("it is new");
    for namespace in NAMESPACES {
        let affected = &affected[namespace];
        let names: Vec<String> = routes(affected);
        assert_eq!(
            (names, affected.lists.is_empty()),
            (vec![route_a.to_owned()], true),
            "{namespace}"
        );
    }
    let host = "b.pay.svc.cluster.local";
    let to = json!({ "host": host, "subset": "one", "port": { "number": 8080 } });
    let leading = json!({ "http": [{ "route": [{ "destination": to }] }] });
    assert_eq!(mesh.edit("2", spec(&["a"], "", leading)), None, "it waits for its subset");
    let due = mesh.mesh.expire(Instant::now()).expect("its time is set");
    mesh.mesh.expire(due);
    mesh.take_affected().expect("it is active");
    // A DestinationRule in one namespace gives its clients the subset of another namespace's
    // service to which they are routed.
    let subsets = json!({ "host": host, "subsets": [{ "name": "one", "labels": { "v": "1" } }] });
    let affected = mesh.put("DestinationRule", "b", subsets).expect("it is new");
    let names: Vec<String> = routes(&affected["shop"]);
    assert_eq!(names, [route_a]);
    assert!(affected["shop"].lists.contains(Wildcard::Clusters), "{affected:?}");
    assert_eq!(affected["web"], AffectedResources::default());
}

#[test]
fn edit_regenerates_few_chunks_of_a_route_configuration() {
    let name = |at: usize| format!("s{at}.shop");
    let mut all = shard("east", 1).network("n1");
    for at in 0..500 {
        let service = service(&name(at)).vip(&format!("10.1.{}.{}", at / 250, at % 250));
        all = all.with(service.with(|one| one.ports = vec![port("http", 8080, 80)]), vec![]);
    }
    let mut mesh = Edited::new();
    mesh.mesh.apply(MeshEvent::Registry(all.built()));
    let (now, _) = mesh.mesh.next_version().expect("another version");
    mesh.before = now;
    let class = |namespace: &str| Class {
        cluster: "east".into(),
        namespace: namespace.into(),
        selection: Selection::default(),
        families: (true, true),
    };
    let base = |mesh: &Edited, namespace: &str| {
        SharedResources { context: &mesh.before, cache: &mesh.cache }.base(
            &class(namespace),
            8080,
            true,
        )
    };
    let namespace_route = |mesh: &Edited, cache: &Cache, namespace: &str| {
        let common = SharedResources { context: &mesh.before, cache };
        common.route(&class(namespace), Some(&namespace.into()), "8080")
    };
    let private = |timeout: &str| {
        let rule = json!({ "timeout": timeout, "route": [{ "destination": { "host": "s7", "port": { "number": 8080 } } }] });
        spec(&["s7"], timeout, json!({ "exportTo": ["."], "http": [rule] }))
    };
    mesh.edit("1", private("1s")).expect("it is new");
    for (version, timeout) in [("2", "2s"), ("3", "3s"), ("4", "4s")] {
        let [shop, others] = ["shop", ""].map(|namespace| base(&mesh, namespace));
        let affected = mesh.edit(version, private(timeout)).expect("it differs");
        assert_eq!(
            routes(&affected),
            ["shop: 80 8080"],
            "port 80 also has hosts that only rules name"
        );
        let [now, others_now] = ["shop", ""].map(|namespace| base(&mesh, namespace));
        assert!(Arc::ptr_eq(&others, &others_now), "nothing differs for them");
        let made = now.made_beyond(&shop);
        assert!((1..=now.made_most()).contains(&made), "{made} new chunks");
        for namespace in ["shop", "pay"] {
            let [cached, fresh] = [&mesh.cache, &Cache::default()]
                .map(|cache| namespace_route(&mesh, cache, namespace));
            assert_eq!(cached.body.to_bytes(), fresh.body.to_bytes(), "{namespace} at {timeout}");
            assert_eq!(cached.version, fresh.version, "{namespace} at {timeout}");
        }
    }
}

/// If a subset is deleted before the route to it, no request fails and no stream is woken.
#[test]
fn deleted_subset_is_retained_while_routes_use_it() {
    let mut mesh = Edited::new();
    let rule = |subsets: Value| json!({ "host": "a", "subsets": subsets });
    let to = |subset: &str| {
        let to = json!([{ "destination": { "host": "a", "subset": subset } }]);
        json!({ "hosts": ["a"], "http": [{ "route": to }] })
    };
    let both = json!([{ "name": "v1" }, { "name": "v2" }]);
    mesh.put("DestinationRule", "a", rule(both.clone()));
    mesh.edit("1", to("v2")).expect("it is new");
    let subsets = |mesh: &Edited| {
        let rules = mesh.before.traffic.destination_rules.of("a.shop.svc.cluster.local");
        rules.owners(&"shop".into()).expect("it is there").subsets.keys().count()
    };
    assert_eq!(subsets(&mesh), 2);

    let affected = mesh.put("DestinationRule", "a", rule(json!([{ "name": "v1" }])));
    assert_eq!(routes(&affected.expect("it differs")), Vec::<String>::new());
    assert_eq!(subsets(&mesh), 2);
    let now = Instant::now();
    let due = mesh.mesh.expire(now).expect("its time is set");
    assert_eq!(mesh.take_affected(), None, "nothing changed");
    assert!(mesh.mesh.expire(due).is_none());
    let affected = mesh.take_affected().expect("it went");
    assert!(
        affected.values().all(|affected| affected.lists.contains(Wildcard::Clusters)),
        "{affected:?}"
    );
    assert_eq!(subsets(&mesh), 1);

    // If the route changes meanwhile, the subset is removed shortly afterwards, when it receives no
    // more requests.
    mesh.put("DestinationRule", "a", rule(both));
    mesh.put("DestinationRule", "a", rule(json!([{ "name": "v1" }])));
    let affected = mesh.edit("2", to("v1")).expect("it differs");
    assert!(
        affected.values().all(|affected| !affected.lists.contains(Wildcard::Clusters)),
        "{affected:?}"
    );
    assert_eq!(subsets(&mesh), 2);
    let due = mesh.mesh.expire(now).expect("its time is set");
    assert!(mesh.mesh.expire(due).is_none());
    let affected = mesh.take_affected().expect("it went");
    assert!(
        affected.values().all(|affected| affected.lists.contains(Wildcard::Clusters)),
        "{affected:?}"
    );
    assert_eq!(subsets(&mesh), 1);
}

/// Objects that are applied in the right order may arrive in the other order, because two watches
/// deliver them.
#[test]
fn route_is_delayed_until_its_subset_exists() {
    let mut mesh = Edited::new();
    let rule = |subsets: Value| json!({ "host": "a", "subsets": subsets });
    let to = |subset: &str| {
        let to = json!([{ "destination": { "host": "a", "subset": subset } }]);
        json!({ "hosts": ["a"], "http": [{ "route": to }] })
    };
    let v1 = json!([{ "name": "v1" }]);
    mesh.put("DestinationRule", "a", rule(v1));
    mesh.edit("1", to("v1")).expect("it is new");
    let routed_subsets = |mesh: &Edited| {
        let all = mesh.before.traffic.virtual_services.all();
        let all = all.flat_map(|routed| routed.destinations());
        all.map(|to| to.subset.to_string()).collect::<Vec<_>>()
    };

    let start = Instant::now();
    assert_eq!(mesh.edit("2", to("v2")), None);
    let due = mesh.mesh.expire(start).expect("it waits");
    assert_eq!(routed_subsets(&mesh), ["v1"]);
    // Later changes are published together with the route, once the subset exists.
    assert_eq!(mesh.put("DestinationRule", "b", json!({ "host": "b" })), None);
    assert_eq!(
        mesh.mesh.expire(start + (due - start) / 2),
        Some(due),
        "the deadline does not change"
    );
    let both = json!([{ "name": "v1" }, { "name": "v2" }]);
    mesh.write("DestinationRule", "a", json!({ "spec": rule(both) }));
    mesh.publish();
    assert_eq!(mesh.mesh.expire(due), None, "no deadline before a version has the subset");
    let affected = mesh.take_affected().expect("it differs");
    assert!(
        affected.values().all(|affected| affected.lists.contains(Wildcard::Clusters)),
        "{affected:?}"
    );
    assert_eq!(routed_subsets(&mesh), ["v1"], "the subset is published first");
    mesh.mesh.expire(start);
    let affected = mesh.take_affected().expect("it differs");
    assert!(
        affected.values().all(|affected| !affected.lists.contains(Wildcard::Clusters)),
        "{affected:?}"
    );
    assert_eq!(routed_subsets(&mesh), ["v2"]);
    assert!(!mesh.before.traffic.destination_rules.of("b.shop.svc.cluster.local").is_empty());

    // The subset does not arrive. For some time afterwards, other routes to missing subsets are not
    // delayed.
    assert_eq!(mesh.edit("3", to("v3")), None);
    let expiry = mesh.mesh.expire(due).expect("v1 was left, and v3 is awaited");
    mesh.mesh.expire(expiry);
    mesh.mesh.expire(expiry + Duration::from_secs(1));
    mesh.take_affected().expect("it is active");
    assert_eq!(routed_subsets(&mesh), ["v3"]);
    mesh.edit("4", to("v4")).expect("at once");
    assert_eq!(routed_subsets(&mesh), ["v4"]);
    // Existing subsets are still published before the routes to them.
    mesh.write("DestinationRule", "a", json!({ "spec": rule(json!([{ "name": "v6" }])) }));
    mesh.edit("5", to("v6")).expect("the subset");
    assert_eq!(routed_subsets(&mesh), ["v4"]);
    let mut now = expiry + Duration::from_secs(1);
    mesh.mesh.expire(now);
    mesh.take_affected().expect("the route");
    assert_eq!(routed_subsets(&mesh), ["v6"]);
    while let Some(next) = mesh.mesh.expire(now) {
        now = next;
    }
    mesh.take_affected().expect("the removed subset");
    assert_eq!(mesh.edit("6", to("v5")), None, "a route waits again");
}

#[test]
fn rules_for_a_host_below_a_wildcard_service_are_in_the_routes_of_its_ports() {
    let mut mesh = Edited::new();
    let mut wild =
        service("wild.shop").with(|service| service.ports = vec![port("http", 8080, 8080)]);
    let hostname = Hostname::from("*.wild.example");
    let definition = Arc::make_mut(&mut wild.definition);
    (definition.hostname, definition.resolution) = (hostname.clone(), Resolution::Passthrough);
    let publish_record = |mesh: &mut Edited, record: Option<ServiceRecord>| {
        mesh.mesh.apply(MeshEvent::Registry(RegistryUpdate {
            shard: ShardKey::service_entries(),
            epoch: Epoch(1),
            change: ShardChange::Reset(Contents {
                services: [(hostname.clone(), record)].into(),
                ..Contents::default()
            }),
        }));
        mesh.take_affected().expect("it differs")
    };
    let record = ServiceRecord { service: Arc::new(wild), endpoints: Vec::new().into() };
    let all = ["pay: 8080", "shop: 8080", "web: 8080"];
    let _ = publish_record(&mut mesh, Some(record));
    let rule_for = |host: &str, timeout: &str| {
        let to = json!([{ "destination": { "host": host, "port": { "number": 8080 } } }]);
        let requests = json!([{ "match": [{ "port": 8080 }], "timeout": timeout, "route": to }]);
        json!({ "hosts": [host], "http": requests })
    };
    let below = |timeout: &str| rule_for("y.wild.example", timeout);
    for (version, what) in
        [("1", below("1s")), ("2", below("2s")), ("3", rule_for("z.wild.example", "2s"))]
    {
        assert_eq!(routes(&mesh.edit(version, what).expect("it differs")), all, "edit {version}");
    }
    let affected =
        mesh.edit("4", rule_for("y.elsewhere.example", "2s")).expect("the other host was removed");
    assert_eq!(routes(&affected), all, "it was removed");
    assert_eq!(routes(&mesh.edit("5", below("2s")).expect("it differs")), all, "it is back");
}

/// A workload need not be a client of its own service.
#[test]
fn limits_of_a_rule_reach_the_workloads_of_its_service_regardless_of_imports() {
    let mut edited = Edited::new();
    let pod = workload("client.shop", "10.0.0.1", &[("app", "a")]);
    edited.mesh.apply(MeshEvent::Registry(
        shard("east", 1)
            .network("n1")
            .with(
                service("a.shop")
                    .vip("10.1.0.1")
                    .with(|service| service.ports = vec![port("http", 80, 80)]),
                vec![],
            )
            .pod(pod)
            .built(),
    ));
    edited.take_affected();
    edited.put("Sidecar", "narrow", json!({ "egress": [{ "hosts": ["pay/*"] }] }));
    let rule = |most: u32| json!({ "host": "a", "trafficPolicy": { "connectionPool": { "tcp": { "maxConnections": most } } } });
    for most in [1, 2] {
        let affected = edited.put("DestinationRule", "limits", rule(most)).expect("a version");
        assert!(affected["shop"].lists.contains(Wildcard::Clusters), "{most}: {affected:?}");
    }
}

/// The event loop may not generate thousands of resources to compare them: 4,000 may take no
/// longer than twice as many as it compares.
#[test]
fn edit_of_a_large_object_takes_no_longer_than_a_comparison() {
    let subsets = |count: usize| {
        let subset =
            |at: usize| json!({ "name": format!("s{at}"), "labels": { "v": at.to_string() } });
        json!({ "host": "a", "subsets": (0..count).map(subset).collect::<Vec<_>>() })
    };
    let matches = |count: usize| {
        let matches = (0..count).map(|at| json!({ "uri": { "prefix": format!("/{at}") } }));
        let route = json!([{ "destination": { "host": "a" } }]);
        json!({ "hosts": ["a"], "http": [{ "match": matches.collect::<Vec<_>>(), "route": route }] })
    };
    let cost = |kind: &str, spec: Value| {
        let mut mesh = Edited::new();
        mesh.write(kind, "one", json!({ "spec": spec }));
        mesh.publish();
        let begun = cpu::thread_time();
        let affected = mesh.take_affected().expect("it is new");
        (cpu::thread_time() - begun, affected)
    };
    let cases: [(&str, &dyn Fn(usize) -> Value); 2] =
        [("DestinationRule", &subsets), ("VirtualService", &matches)];
    for (kind, spec) in cases {
        let (compared, all) = cost(kind, spec(500));
        let (large, affected) = cost(kind, spec(4000));
        println!("{kind}: {compared:?} for 500, {large:?} for 4,000");
        assert!(large < compared * 2, "{kind}: {compared:?} for 500, {large:?} for 4,000");
        for (namespace, all) in &all {
            let affected = &affected[namespace];
            assert!(affected.routes.is_superset(&all.routes), "{kind} {namespace}");
            assert!(affected.assignments.is_superset(&all.assignments), "{kind} {namespace}");
            assert_eq!(affected.lists.and(all.lists), all.lists, "{kind} {namespace}");
        }
    }
}
