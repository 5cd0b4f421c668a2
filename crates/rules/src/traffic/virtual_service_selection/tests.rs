use super::*;
use crate::testing::kind_settings;

fn service(created: i64, namespace: &str, name: &str, spec: &str) -> Arc<VirtualService> {
    let settings = kind_settings();
    let meta = ObjectMeta { created, name: name.into(), namespace: namespace.into() };
    let spec: serde_json::Value = serde_saphyr::from_str(spec).expect("the text is YAML");
    let object = serde_json::json!({ "spec": spec });
    Arc::new(VirtualService::read(meta, &object, &settings).expect("it fits its schema").0)
}

#[derive(Default)]
struct World {
    objects: VirtualServiceObjects,
    services: VirtualServices,
    selectors: Selectors,
    sharing: HostSharing,
}

impl World {
    fn put(&mut self, service: &Arc<VirtualService>) -> Vec<String> {
        self.change(|objects, into| objects.insert(Arc::clone(service), into))
    }

    fn take(&mut self, service: &Arc<VirtualService>) -> Vec<String> {
        self.change(|objects, from| objects.remove(service, from))
    }

    fn change(
        &mut self,
        change: impl FnOnce(&mut VirtualServiceObjects, ServicesInForce<'_>),
    ) -> Vec<String> {
        let mut changes = TrafficChanges::default();
        let Self { objects, services, selectors, .. } = self;
        let changes = &mut changes;
        change(objects, ServicesInForce { services, selectors, changes, is_scoped: false });
        changes.hosts.iter().map(ToString::to_string).collect()
    }

    /// Returns the new reasons that are caused by other objects, as object, code and path.
    fn news(&mut self) -> Vec<String> {
        let news =
            self.objects.take_new_reasons((&self.services, self.sharing), &Gateways::default());
        news.into_iter()
            .map(|(meta, reason)| {
                format!("{}/{} {} {}", meta.namespace, meta.name, reason.code, reason.path)
            })
            .collect()
    }

    /// Returns the objects that a host belongs to in a namespace, in order of precedence.
    fn objects_for(&self, host: &str, namespace: &str) -> Vec<String> {
        let host = HostPattern::parse(host, "", "").expect("a host");
        let namespace = namespace.into();
        let all = self.services.for_host(&host, &namespace).flatten();
        all.map(|one| one.service.meta.to_string()).collect()
    }
}

const RULE: &str = "http: [{route: [{destination: {host: a.com}}]}]";

#[test]
fn objects_that_share_a_host_lose_only_connections() {
    let bytes = "tcp: [{route: [{destination: {host: a.com}}]}]";
    for (sharing, rules, lost) in [
        (HostSharing::FirstAlone, RULE, true),
        (HostSharing::AllJoined, RULE, false),
        (HostSharing::AllJoined, bytes, true),
    ] {
        let mut world = World { sharing, ..World::default() };
        world.put(&service(1, "shop", "older", &format!("{{hosts: [b.com, '*.c.com'], {RULE}}}")));
        world.put(&service(2, "team", "younger", &format!("{{hosts: [b.com, a.c.com], {rules}}}")));
        let wanted: &[&str] = if lost { &["team/younger STR1024 spec.hosts[0]"] } else { &[] };
        assert_eq!(world.news(), wanted, "{sharing:?} {rules}");
        let all: Vec<_> =
            world.services.for_host(&host("b.com"), &"web".into()).flatten().collect();
        assert!(all[0].shares_host(all[1], &host("b.com")));
        let all: Vec<_> =
            world.services.for_host(&host("a.c.com"), &"web".into()).flatten().collect();
        assert!(!all[0].shares_host(all[1], &host("a.c.com")), "an exact host and a wildcard");
    }
}

fn host(text: &str) -> HostPattern {
    HostPattern::parse(text, "", "").expect("a host")
}

#[test]
fn most_private_object_takes_precedence_then_the_oldest() {
    let mut world = World::default();
    for (created, namespace, name, more) in [
        (1, "other", "old", ""),
        (9, "web", "young", ", exportTo: [.]"),
        (5, "other", "named", ", exportTo: [web, other]"),
        (1, "aaa", "zzz", ""),
        (0, "other", "elsewhere", ", exportTo: [shop]"),
    ] {
        world.put(&service(created, namespace, name, &format!("{{hosts: [a.com], {RULE}{more}}}")));
    }
    let web = ["web/young", "other/named", "other/old", "aaa/zzz"];
    assert_eq!(world.objects_for("a.com", "web"), web, "ties go by name, before the namespace");
    assert_eq!(world.objects_for("a.com", "shop"), ["other/elsewhere", "other/old", "aaa/zzz"]);
    assert!(world.services.concerns(&"web".into()) && !world.services.concerns(&"far".into()));
}

#[test]
fn most_specific_host_takes_precedence_over_older_wildcards() {
    let mut world = World::default();
    for (created, name, host) in
        [(0, "all", "*.com"), (1, "under", "*.a.com"), (2, "exact", "x.a.com")]
    {
        world.put(&service(created, "shop", name, &format!("{{hosts: ['{host}'], {RULE}}}")));
    }
    assert_eq!(world.objects_for("x.a.com", "web"), ["shop/exact", "shop/under", "shop/all"]);
    assert_eq!(world.objects_for("y.a.com", "web"), ["shop/under", "shop/all"]);
    assert_eq!(world.objects_for("*.a.com", "web"), ["shop/under", "shop/all"]);
    assert_eq!(world.objects_for("a.com", "web"), ["shop/all"]);
}

#[test]
fn change_reports_its_affected_hosts() {
    let mut world = World::default();
    let first = service(0, "shop", "a", &format!("{{hosts: [a.com, b.com], {RULE}}}"));
    assert_eq!(world.put(&first), ["a.com", "b.com"]);
    assert_eq!(world.put(&first), [""; 0], "an equal object changes nothing");
    let edge = service(0, "shop", "edge", &format!("{{hosts: [c.com], gateways: [gw], {RULE}}}"));
    assert_eq!(world.put(&edge), [""; 0], "it does not apply to sidecars");
    let second = service(0, "shop", "a", &format!("{{hosts: [b.com, d.com], {RULE}}}"));
    assert_eq!(world.put(&second), ["a.com", "b.com", "d.com"]);
    assert_eq!(world.take(&second), ["b.com", "d.com"]);
    assert!(world.services.is_empty());
    let at_gateway = |world: &World| world.services.for_gateway("shop/gw", &"web".into()).count();
    assert_eq!(at_gateway(&world), 1, "a gateway has it");
    assert_eq!(world.take(&edge), [""; 0]);
    assert_eq!(world.services, VirtualServices::default(), "no state is left");
}

#[test]
fn change_of_a_delegate_affects_the_delegating_objects() {
    let mut world = World::default();
    let root = service(0, "shop", "root", "{hosts: [a.com], http: [{delegate: {name: its}}]}");
    assert_eq!(world.put(&root), ["a.com"]);
    assert_eq!(world.news(), ["shop/root STR1025 spec.http[0].delegate"]);
    let its = |host: &str| {
        service(
            0,
            "shop",
            "its",
            &format!("{{http: [{{route: [{{destination: {{host: {host}}}}}]}}]}}"),
        )
    };
    assert_eq!(world.put(&its("x.com")), ["a.com"]);
    assert_eq!(world.news(), [""; 0]);
    let web = "web".into();
    let host = HostPattern::parse("a.com", "", "").expect("a host");
    let rules =
        world.services.for_host(&host, &web).flatten().next().map(|one| one.http.rules.len());
    assert_eq!(rules, Some(1));
    assert_eq!(world.put(&its("x.com")), [""; 0]);
    assert_eq!(world.take(&its("x.com")), ["a.com"]);
    assert_eq!(world.news(), ["shop/root STR1025 spec.http[0].delegate"], "it is missing again");
}

#[test]
fn younger_object_is_reported_once_for_each_lost_host() {
    let mut world = World::default();
    let young = service(5, "web", "young", &format!("{{hosts: [a.com, b.com], {RULE}}}"));
    world.put(&young);
    assert_eq!(world.news(), [""; 0]);
    let old = |hosts: &str| service(1, "web", "old", &format!("{{hosts: [{hosts}], {RULE}}}"));
    world.put(&old("a.com"));
    assert_eq!(world.news(), ["web/young STR1024 spec.hosts[0]"]);
    world.take(&old("a.com"));
    world.put(&old("a.com, b.com"));
    assert_eq!(world.news(), ["web/young STR1024 spec.hosts[1]"]);
    let private =
        service(0, "web", "private", &format!("{{hosts: [b.com], exportTo: [.], {RULE}}}"));
    world.put(&private);
    assert_eq!(world.news(), [""; 0], "its namespace has both, others have the public one");
}

#[test]
fn labels_of_senders_are_active_selectors() {
    let mut world = World::default();
    let root = service(
        0,
        "shop",
        "root",
        "{hosts: [a.com], http: [{match: [{sourceLabels: {app: web}}], delegate: {name: its}}]}",
    );
    let its = service(
        0,
        "shop",
        "its",
        "{http: [{match: [{sourceLabels: {v: '1'}}], route: [{destination: {host: x.com}}]}]}",
    );
    world.put(&root);
    world.put(&its);
    let labels =
        |pairs: &[(&str, &str)]| pairs.iter().map(|(a, b)| ((*a).into(), (*b).into())).collect();
    let both = world.selectors.selection(&"any".into(), &labels(&[("app", "web"), ("v", "1")]));
    let only_app = world.selectors.selection(&"any".into(), &labels(&[("app", "web")]));
    assert!(!both.is_empty() && only_app.is_empty());
    world.take(&root);
    assert_eq!(world.selectors, Selectors::default());
}

#[test]
fn hosts_that_route_to_a_service_are_tracked() {
    let mut world = World::default();
    let leading = |hosts: &str, port: &str| {
        format!("{{hosts: [{hosts}], http: [{{route: [{{destination: {{host: a.com{port}}}}}]}}]}}")
    };
    let numbered = service(1, "web", "numbered", &leading("x.com", ", port: {number: 80}"));
    let portless = service(2, "web", "portless", &leading("x.com, y.com", ""));
    let suffixed = service(3, "web", "beside", &leading("z.com", ".au"));
    let routes_to_service = |world: &World| {
        let to = Hostname::from("a.com");
        let texts = |hosts: BTreeSet<&HostPattern>| {
            hosts.into_iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
        };
        let leading = texts(world.services.leading_to(&to).collect());
        (leading, texts(world.services.depending_on(&to).collect()))
    };
    let found = |leading: &str, depending: &str| (leading.to_owned(), depending.to_owned());
    world.put(&suffixed);
    world.put(&numbered);
    assert_eq!(routes_to_service(&world), found("x.com", ""));
    world.put(&portless);
    assert_eq!(routes_to_service(&world), found("x.com y.com", "x.com y.com"));
    world.take(&numbered);
    assert_eq!(routes_to_service(&world), found("x.com y.com", "x.com y.com"));
    world.put(&numbered);
    world.take(&portless);
    assert_eq!(routes_to_service(&world), found("x.com", ""));
    world.take(&numbered);
    assert_eq!(routes_to_service(&world), found("", ""));
}

#[test]
fn rules_without_delegation_are_stored_once() {
    let mut world = World::default();
    let own = service(1, "web", "own", &format!("{{hosts: [a.com], {RULE}}}"));
    world.put(&own);
    let routed = world.services.routed(&own).expect("it is active");
    assert!(Arc::ptr_eq(&routed.http.rules, &own.http));
}
