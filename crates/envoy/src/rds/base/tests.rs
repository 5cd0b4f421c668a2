use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use prost::Message;
use serde_json::{Value, json};

use super::{RouteBase, searched_domains};
use crate::chunks::Chunks;
use crate::class::Class;
use crate::rds::{RouteLists, oracle};
use strait_mesh::push::PushContext;
use strait_mesh::push::addresses::addresses;
use strait_mesh::push::event_loop::{MeshEvent, MeshState};
use strait_mesh::testing::settings;
use strait_model::testing::{host, service, shard};
use strait_model::{ISTIO_NETWORKING, Namespace, ObjectKey, Resolution, Service};
use strait_proto::envoy::envoy::config::route::v3::RouteConfiguration;
use strait_rules::testing::kind_settings;
use strait_rules::traffic::{Selection, TrafficIndex};
use strait_xds::resource::{Resource, Version};
use strait_xds::virtual_hosts::{self, HeldHosts};

const SHOP: &str = "shop.svc.cluster.local";

fn context(services: Vec<Service>) -> Arc<PushContext> {
    let mut mesh = MeshState::new(settings());
    let update =
        services.into_iter().fold(shard("east", 1), |update, one| update.with(one, vec![]));
    mesh.apply(MeshEvent::Registry(update.built()));
    mesh.apply(MeshEvent::Complete);
    mesh.next_version().expect("a first version").0
}

fn base(context: &PushContext, completes: bool, chunks: &Chunks) -> RouteBase {
    let addresses = addresses(
        context,
        &"east".into(),
        (&Namespace::default(), &Selection::default()),
        (true, true),
    );
    let caches = (chunks, &RouteLists::default());
    RouteBase::new(context, Arc::new(addresses), (&class(), 80, completes), caches)
}

fn class() -> Class {
    Class {
        cluster: "east".into(),
        namespace: Namespace::default(),
        selection: Selection::default(),
        families: (true, true),
    }
}

fn route(context: &PushContext, dns_domain: &str, chunks: &Chunks) -> Resource {
    let route = base(context, true, chunks).route_in(context, dns_domain, chunks);
    let addresses = addresses(
        context,
        &"east".into(),
        (&Namespace::default(), &Selection::default()),
        (true, true),
    );
    let whole = oracle::route(context, &addresses, &class(), dns_domain, 80);
    assert_eq!(route.body.to_bytes(), whole, "in {dns_domain}");
    route
}

/// Returns the domains of each virtual host except for the last one, by name.
fn domains(route: &Resource) -> BTreeMap<String, String> {
    let message = RouteConfiguration::decode(route.body.to_bytes()).expect("a message");
    let mut hosts = message.virtual_hosts;
    hosts.pop();
    hosts.into_iter().map(|host| (host.name, host.domains.join(" "))).collect()
}

fn called(hostname: &str, namespace: &str, created: i64) -> Service {
    service(&format!("x.{namespace}")).with(|it| {
        it.hostname = hostname.into();
        it.created = created;
    })
}

#[test]
fn conflicts_of_short_names_are_resolved_like_from_scratch() {
    let chunks = Chunks::default();
    let alias = || {
        let target = host("web.shop");
        service("www.shop").with(|it| it.resolution = Resolution::Alias(target))
    };
    let www = "www.shop.svc.cluster.local www.shop.svc.cluster.local.";
    for (what, others, short) in [
        ("nothing else", vec![], "web web.shop web.shop.svc"),
        ("an older host", vec![called("web", "bank", 1)], "web.shop web.shop.svc"),
        ("a younger host", vec![called("web", "bank", 9)], "web web.shop web.shop.svc"),
        ("a host in its namespace", vec![called("WEB", "shop", 9)], "web.shop web.shop.svc"),
        ("another short form", vec![called("web.shop", "shop", 9)], "web web.shop.svc"),
        ("of elsewhere", vec![called("web.shop", "bank", 9)], "web web.shop web.shop.svc"),
        (
            "an alias",
            vec![alias()],
            &format!("web web.shop web.shop.svc {www} www www.shop www.shop.svc"),
        ),
        (
            "an alias whose short name belongs to another host",
            vec![alias(), called("www", "shop", 1)],
            &format!("web web.shop web.shop.svc {www} www.shop www.shop.svc"),
        ),
    ] {
        let mut services = others;
        services.push(service("web.shop").with(|it| it.created = 5));
        services.extend(["web.bank", "b.shop", "a.bank"].map(service));
        let context = context(services);
        let shop_domains = domains(&route(&context, SHOP, &chunks));
        let full = "web.shop.svc.cluster.local web.shop.svc.cluster.local.";
        assert_eq!(
            shop_domains["web.shop.svc.cluster.local:80"],
            format!("{full} {short}"),
            "{what}"
        );
        for namespace in ["bank.", "elsewhere.", "", "shop.bank."] {
            route(&context, &format!("{namespace}svc.cluster.local"), &chunks);
        }
        for domain in ["shop", "x.shop", "shop.svc.other.local"] {
            route(&context, domain, &chunks);
        }
        let plain = base(&context, false, &chunks).route();
        assert_eq!(plain.body, route(&context, "", &chunks).body, "{what}");
    }
}

#[test]
fn addresses_headless_services_and_invalid_names_are_generated_like_from_scratch() {
    let chunks = Chunks::default();
    let headless = service("db.shop").with(|it| it.resolution = Resolution::Headless);
    let at_address = called("10.1.0.1", "shop", 9);
    let web = service("web.shop").vip("10.1.0.1").with(|it| it.created = 1);
    let invalid = called("bad name\n", "shop", 0);
    let below = called("x.web.shop.svc.cluster.local", "bank", 2);
    let context = context(vec![headless, at_address, web, invalid, below, service("a.bank")]);
    let shop_domains = domains(&route(&context, SHOP, &chunks));
    assert!(shop_domains["db.shop.svc.cluster.local:80"].contains(" *.db "), "{shop_domains:?}");
    assert_eq!(
        shop_domains["10.1.0.1:80"], "10.1.0.1.",
        "the address is the service's: {shop_domains:?}"
    );
    assert!(
        shop_domains["x.web.shop.svc.cluster.local:80"].contains(" x.web "),
        "{shop_domains:?}"
    );
    assert!(!shop_domains.contains_key("bad name\n:80"), "{shop_domains:?}");
    route(&context, "bank.svc.cluster.local", &chunks);
}

#[test]
fn versions_differ_exactly_if_bytes_differ() {
    let mut bytes_by_version = BTreeMap::<Version, Vec<u8>>::new();
    for count in [3, 4, 40] {
        let services = (0..count).map(|number| service(&format!("s-{number}.ns-{}", number % 3)));
        let context = context(services.collect());
        for namespace in ["ns-0", "ns-1", "ns-2", "none", "nobody"] {
            let domain = format!("{namespace}.svc.cluster.local");
            let [first, again] = [(); 2].map(|()| route(&context, &domain, &Chunks::default()));
            assert_eq!(first, again);
            let bytes = first.body.to_bytes().to_vec();
            assert_eq!(*bytes_by_version.entry(first.version).or_insert(bytes.clone()), bytes);
        }
    }
    assert_eq!(bytes_by_version.len(), 3 * 4, "two of five namespaces have no services");
}

#[test]
fn new_service_changes_few_chunks_and_few_bytes_per_namespace() {
    let numbered_service = |number: u32| service(&format!("s-{number:04}.ns-{}", number % 20));
    let before = context((0..1000).filter(|number| *number != 500).map(numbered_service).collect());
    let now = context((0..1000).map(numbered_service).collect());
    let chunks = Chunks::default();
    let previous = base(&before, true, &chunks);
    let with_new = base(&now, true, &chunks);
    let previous_chunks: HashSet<_> = previous.chunks.iter().map(Arc::as_ptr).collect();
    let new = with_new
        .chunks
        .iter()
        .filter(|chunk| !previous_chunks.contains(&Arc::as_ptr(chunk)))
        .count();
    assert!((1..=with_new.made_most()).contains(&new), "{new} of {}", with_new.chunks.len());
    assert!(with_new.chunks.len() > 15, "{}", with_new.chunks.len());

    // An edit for the length and one for a name, for each service of the namespace.
    let rewritten = |base: &RouteBase| {
        let searched = searched_domains("ns-7.svc.cluster.local");
        base.own("ns-7", &searched, &chunks).expect("nothing is disputed")
    };
    let own = rewritten(&previous);
    assert_eq!(own.edits.len(), 2 * 50);
    assert!((9 * 50..=10 * 50).contains(&own.text.len()), "{}", own.text.len());
    // For a new version, at most the new chunks are processed.
    let made = std::cell::Cell::new(0);
    let own = with_new.by_namespace["ns-7"].iter();
    let those: BTreeSet<usize> = own.map(|at| with_new.chunk_index(*at as usize)).collect();
    assert!(those.len() > 10, "{those:?}");
    for chunk in those {
        with_new.chunks[chunk].rewritten_in("ns-7", || {
            made.set(made.get() + 1);
            None
        });
    }
    assert!(made.get() <= new, "{} of {new} new chunks", made.get());
}

/// Returns a mesh in which objects of `evil` name hosts.
fn context_with_rules(services: Vec<Service>, rules: &[(&str, Value)]) -> Arc<PushContext> {
    let mut mesh = MeshState::new(settings());
    let update =
        services.into_iter().fold(shard("east", 1), |update, one| update.with(one, vec![]));
    mesh.apply(MeshEvent::Registry(update.built()));
    let key = |name: &str| ObjectKey {
        kind: "VirtualService".into(),
        group: ISTIO_NETWORKING.into(),
        namespace: "evil".into(),
        name: name.into(),
    };
    let objects = rules.iter().map(|(name, spec)| (key(name), Arc::new(json!({ "spec": spec }))));
    let mut index = TrafficIndex::new(kind_settings());
    let update = index.apply(&objects.collect()).expect("the first time");
    mesh.apply(MeshEvent::Traffic(update));
    mesh.apply(MeshEvent::Complete);
    mesh.next_version().expect("a first version").0
}

fn rules_for(hosts: Vec<String>, rules: usize) -> Value {
    let rule = |at: usize| {
        let prefix = format!("/{at}");
        json!({ "match": [{ "uri": { "prefix": prefix } }], "route": [{ "destination": { "host": "b.x.example" } }] })
    };
    json!({ "hosts": hosts, "http": (0..rules).map(rule).collect::<Vec<_>>() })
}

#[test]
fn hosts_with_equal_routes_share_one_virtual_host() {
    let hosts = (0..300).map(|at| format!("h{at}.example")).collect();
    let context = context_with_rules(vec![], &[("many", rules_for(hosts, 300))]);
    let route = route(&context, SHOP, &Chunks::default());
    let shop_domains = domains(&route);
    assert_eq!(shop_domains.len(), 1, "{:?}", shop_domains.keys());
    let (name, domain_list) = shop_domains.first_key_value().expect("one");
    assert_eq!((&**name, domain_list.split(' ').count()), ("h0.example:80", 300));
    assert!(route.body.len() < 150_000, "{}", route.body.len());
    // A client that requests virtual hosts one by one receives it and the one for other names.
    let separate_hosts = virtual_hosts::changes(&HeldHosts::Nothing, &route);
    assert_eq!(separate_hosts.changed.len(), 2);
}

#[test]
fn services_with_equal_routes_share_a_virtual_host_in_every_dns_domain() {
    let chunks = Chunks::default();
    let services = ["web.shop", "api.shop", "api.bank", "other.shop"].map(service).into();
    let full = |name: &str| format!("{name}.svc.cluster.local");
    let hosts = vec![full("web.shop"), full("api.bank"), "x.example".to_owned()];
    let context = context_with_rules(services, &[("many", rules_for(hosts, 2))]);
    for (namespace, short) in [("shop", "web"), ("bank", "api"), ("elsewhere", "")] {
        let shared_domains =
            domains(&route(&context, &format!("{namespace}.svc.cluster.local"), &chunks));
        assert_eq!(shared_domains.len(), 3, "{:?}", shared_domains.keys());
        let shared = shared_domains.values().find(|domains| domains.contains("x.example"));
        let shared: Vec<_> = shared.expect("it is ruled").split(' ').collect();
        assert!(shared.contains(&"web.shop") && shared.contains(&"api.bank"), "{shared:?}");
        let short_ones: Vec<_> = shared.iter().filter(|one| !one.contains('.')).collect();
        assert_eq!(
            short_ones,
            [&short].into_iter().filter(|one| !one.is_empty()).collect::<Vec<_>>()
        );
    }
}

#[test]
fn host_with_different_routes_keeps_a_separate_virtual_host() {
    let hosts = |range: std::ops::Range<usize>| range.map(|at| format!("h{at}.example")).collect();
    let other = json!({ "hosts": ["h7.example"], "http": [{ "timeout": "1s", "route": [{ "destination": { "host": "b.x.example" } }] }] });
    let rules =
        [("a", other), ("b", rules_for(hosts(0..20), 2)), ("c", rules_for(hosts(20..30), 2))];
    let by_host = domains(&route(&context_with_rules(vec![], &rules), SHOP, &Chunks::default()));
    let count = |name: &str| by_host[name].split(' ').count();
    assert_eq!(by_host.len(), 3, "{:?}", by_host.keys());
    assert_eq!(
        [count("h0.example:80"), count("h7.example:80"), count("h20.example:80")],
        [19, 1, 10]
    );
}
