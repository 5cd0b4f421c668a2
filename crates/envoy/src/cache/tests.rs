use std::sync::Arc;

use super::{Cache, LISTS_MANY, ROUTERS_MAX, RouterInputs};
use crate::ProxyConfig;
use strait_mesh::push::PushContext;
use strait_mesh::push::event_loop::{MeshEvent, MeshState};
use strait_mesh::testing::settings;
use strait_model::registry::RegistryUpdate;
use strait_model::testing::{endpoint, labels, service, shard, sidecar, workload};
use strait_model::{ExportTo, GATEWAY_PORT, NetworkId, Proxy, ProxyType, WorkloadKey};
use strait_xds::list::SharedList;
use strait_xds::names::OutboundName;
use strait_xds::resource::{Resource, ResourceSource, ResourceType};

/// Returns a mesh in which `web.shop` is public and each `db.NAMESPACE` is visible in its namespace
/// only.
fn mesh(namespaces: &[&str]) -> MeshState {
    let mut update =
        shard("east", 1).network("n1").with(service("web.shop"), vec![endpoint("10.0.0.1")]);
    for namespace in namespaces {
        let own = service(&format!("db.{namespace}"))
            .with(|it| it.export_to = ExportTo::Namespaces(vec![(*namespace).into()]));
        update = update.with(own, vec![endpoint("10.0.0.2")]);
    }
    let mut mesh = MeshState::new(settings());
    mesh.apply(MeshEvent::Registry(update.built()));
    mesh.apply(MeshEvent::Complete);
    mesh
}

fn next(mesh: &mut MeshState) -> Arc<PushContext> {
    mesh.next_version().expect("a new version").0
}

fn apply_update(mesh: &mut MeshState, update: RegistryUpdate) -> Arc<PushContext> {
    mesh.apply(MeshEvent::Registry(update));
    next(mesh)
}

fn client(namespace: &str) -> Proxy {
    let dns_domain = format!("{namespace}.svc.cluster.local").into();
    Proxy { dns_domain, ..sidecar(&format!("client.{namespace}"), "east") }
}

fn gateway(namespace: &str) -> Proxy {
    let claimed = labels(&[("topology.istio.io/network", "n1")]);
    Proxy { kind: ProxyType::Router, labels: claimed, ..client(namespace) }
}

/// The resources of a stream that subscribes to everything.
#[derive(Debug)]
struct CachedResources {
    lists: Vec<Arc<SharedList>>,
    resources: Vec<Arc<Resource>>,
}

impl CachedResources {
    fn is(&self, other: &Self) -> bool {
        let Self { lists, resources } = self;
        lists.len() == other.lists.len()
            && resources.len() == other.resources.len()
            && lists.iter().zip(&other.lists).all(|(a, b)| Arc::ptr_eq(a, b))
            && resources.iter().zip(&other.resources).all(|(a, b)| Arc::ptr_eq(a, b))
    }
}

fn receive(context: &Arc<PushContext>, proxy: &Proxy, cache: &Cache) -> CachedResources {
    let mut proxy_config = ProxyConfig::new(context, proxy, "n1".into(), cache);
    let assignments: Vec<_> = context
        .services
        .keys()
        .map(|host| OutboundName::sidecar(host.clone(), 80).to_string())
        .filter_map(|name| proxy_config.one(ResourceType::Endpoint, &name))
        .collect();
    let mut received = CachedResources {
        lists: vec![proxy_config.all(ResourceType::Cluster).shared],
        resources: assignments,
    };
    if proxy.kind.serves_one_workload() {
        let kinds = [ResourceType::Listener, ResourceType::NameTable];
        received.lists.extend(kinds.map(|kind| proxy_config.all(kind).shared));
        received.resources.extend(proxy_config.one(ResourceType::Route, "80"));
    }
    received
}

/// Returns the number of entries of each kind.
fn entries(cache: &Cache) -> [usize; 9] {
    [
        cache.assignments.entries.len(),
        cache.clusters.entries.len(),
        cache.outbound.entries.len(),
        cache.served.entries.len(),
        cache.addresses.entries.len(),
        cache.listeners.entries.len(),
        cache.routes.entries.len(),
        cache.names.entries.len(),
        cache.east_west_ports.entries.len(),
    ]
}

#[test]
fn sweep_removes_unused_entries_and_keeps_used_ones() {
    let mut mesh = mesh(&["shop", "preview-1"]);
    let mut context = next(&mut mesh);
    let (cache, stays) = (Cache::default(), [client("shop"), gateway("shop")]);
    let mut gone = Vec::new();
    for number in 1..4 {
        let host =
            OutboundName::parse(&format!("outbound|80||db.preview-{number}.svc.cluster.local"));
        gone.push(Arc::downgrade(&context.services[&host.expect("a name").hostname]));
        for proxy in [client, gateway].map(|proxy| proxy(&format!("preview-{number}"))) {
            receive(&context, &proxy, &cache);
        }
        for proxy in &stays {
            receive(&context, proxy, &cache);
        }
        let update = shard("east", 1).update().without(&format!("db.preview-{number}"));
        let update =
            update.with(service(&format!("db.preview-{}", number + 1)), vec![endpoint("10.0.0.3")]);
        context = apply_update(&mut mesh, update.built());
    }
    let before = stays.each_ref().map(|proxy| receive(&context, proxy, &cache));
    cache.sweep(&context);

    assert_eq!(gone.iter().filter(|gone| gone.strong_count() > 0).count(), 0);
    let fresh = Cache::default();
    let _in_use = stays.each_ref().map(|proxy| receive(&context, proxy, &fresh));
    fresh.sweep(&context);
    assert_eq!(entries(&cache), entries(&fresh));
    for (proxy, before) in stays.iter().zip(&before) {
        assert!(receive(&context, proxy, &cache).is(before), "{}", proxy.id);
    }
}

#[test]
fn repeated_look_ups_return_the_assignment_of_each_view() {
    let mut mesh = mesh(&["shop", "stage"]);
    let mut context = next(&mut mesh);
    let cache = Cache::default();
    for address in ["10.0.0.8", "10.0.0.9"] {
        let mut bodies = Vec::new();
        for host in ["web.shop", "db.shop", "db.stage"] {
            let name = format!("outbound|80||{host}.svc.cluster.local");
            for proxy in [client("shop"), client("stage"), gateway("shop"), client("shop")] {
                for network in ["n1", "n2"] {
                    let look_up = |cache: &Cache| {
                        let network = network.into();
                        ProxyConfig::new(&context, &proxy, network, cache)
                            .one(ResourceType::Endpoint, &name)
                            .expect("an assignment")
                    };
                    let expected = look_up(&Cache::default());
                    for _ in 0..3 {
                        assert_eq!(look_up(&cache), expected, "{name} of {}", proxy.id);
                    }
                    bodies.push(expected.body.to_bytes());
                }
            }
        }
        bodies.sort();
        bodies.dedup();
        assert!(bodies.len() > 3, "views differ: {bodies:?}");
        let web = shard("east", 1).update().with(service("web.shop"), vec![endpoint(address)]);
        context = apply_update(&mut mesh, web.built());
    }
}

#[test]
fn sweep_removes_entries_that_only_a_disconnected_client_used() {
    let context = next(&mut mesh(&[]));
    let cache = Cache::default();
    let request_as = |visible: &str| {
        let visible_networks = Some([NetworkId::from(visible)].into_iter().collect());
        receive(&context, &Proxy { visible_networks, ..client("shop") }, &cache)
    };
    let stays = request_as("stays");
    for number in 0..10 {
        request_as(&format!("invented-{number}"));
    }
    assert_eq!(cache.assignments.entries.len(), 11);
    cache.sweep(&context);
    assert_eq!(cache.assignments.entries.len(), 1);
    assert!(request_as("stays").is(&stays));
}

#[test]
fn lists_that_streams_hold_stay_cached_beyond_the_limit() {
    let (cache, views) = (Cache::default(), LISTS_MANY + 50);
    let namespaces: Vec<_> = (0..views).map(|number| format!("ns-{number}")).collect();
    let mut mesh = mesh(&namespaces.iter().map(|name| &**name).collect::<Vec<_>>());
    let mut context = next(&mut mesh);
    let clients: Vec<_> = namespaces.iter().map(|namespace| client(namespace)).collect();
    let all = |context: &Arc<PushContext>| -> Vec<_> {
        let list = |proxy| {
            ProxyConfig::new(context, proxy, "n1".into(), &cache).all(ResourceType::Cluster).shared
        };
        clients.iter().map(list).collect()
    };
    for version in 0..3 {
        let lists = all(&context);
        let again = all(&context);
        assert!(lists.iter().zip(&again).all(|(a, b)| Arc::ptr_eq(a, b)), "version {version}");
        assert_eq!(cache.outbound.entries.len(), views);
        let update =
            shard("east", 1).update().with(service(&format!("new-{version}.shop")), vec![]);
        context = apply_update(&mut mesh, update.built());
    }
}

#[test]
fn lists_that_no_stream_holds_are_limited() {
    // The cost of this test grows with the square of the number.
    let namespaces: Vec<_> = (0..LISTS_MANY + 8).map(|number| format!("ns-{number}")).collect();
    let context = next(&mut mesh(&namespaces.iter().map(|name| &**name).collect::<Vec<_>>()));
    let cache = Cache::default();
    for namespace in &namespaces {
        receive(&context, &client(namespace), &cache);
        assert!(cache.outbound.entries.len() <= LISTS_MANY);
    }
}

#[test]
fn clients_cannot_add_keys_to_the_route_cache() {
    let context = next(&mut mesh(&[]));
    let cache = Cache::default();
    let route = |dns_domain: &str, name: &str| {
        let proxy = Proxy { dns_domain: dns_domain.into(), ..client("shop") };
        let mut proxy_config = ProxyConfig::new(&context, &proxy, "n1".into(), &cache);
        proxy_config.one(ResourceType::Route, name).expect("always an answer")
    };
    let (own, host) = ("shop.svc.cluster.local", "web.shop.svc.cluster.local");
    for zeros in 1..200 {
        route(own, &format!("{}80", "0".repeat(zeros)));
        route(own, &format!("+{}80", "0".repeat(zeros)));
        route(own, &format!("{host}:{}80", "0".repeat(zeros)));
    }
    assert_eq!(cache.routes.entries.len(), 0);
    let cached = route(own, "80");
    for domain in ["cluster.local", "svc.cluster.local", "x.svc.cluster.local", "invented.local"] {
        assert_eq!(route(domain, "80") == cached, domain == own, "{domain}");
    }
    for number in 0..10 {
        route(&format!("shop.svc.invented-{number}"), "80");
    }
    assert_eq!(cache.routes.entries.len(), 2);
    assert!(Arc::ptr_eq(&route(own, "80"), &cached));
}

#[test]
fn proxies_in_a_domain_without_services_share_a_route() {
    let context = next(&mut mesh(&[]));
    let route = |domain: &str, cache: &Cache| {
        let dns_domain = format!("shop.svc.{domain}").into();
        let proxy = Proxy { dns_domain, ..client("shop") };
        let mut proxy_config = ProxyConfig::new(&context, &proxy, "n1".into(), cache);
        proxy_config.one(ResourceType::Route, "80").expect("always an answer")
    };
    let cache = Cache::default();
    let shared = route("corp.example", &cache);
    assert!(Arc::ptr_eq(&shared, &route("lab.example", &cache)));
    assert_eq!(route("lab.example", &Cache::default()), shared);
    assert_ne!(route("cluster.local", &cache), shared);
}

#[test]
fn claimed_gateways_are_cached_temporarily_and_without_claims_if_the_pod_is_known() {
    let pod = workload("known.shop", "10.0.0.9", &[("topology.istio.io/network", "n1")]);
    let mut mesh = mesh(&[]);
    let context = apply_update(&mut mesh, shard("east", 1).update().pod(pod).built());
    let cache = Cache::default();
    let port_for = |name: &str| {
        let WorkloadKey { namespace, .. } = gateway("shop").workload;
        let workload = WorkloadKey::new(namespace.as_str(), name);
        let proxy = Proxy { workload, ..gateway("shop") };
        cache.east_west_port(&context, &proxy)
    };
    for name in ["known", "invented-1", "invented-2"] {
        assert_eq!(port_for(name), Some(GATEWAY_PORT), "{name}");
    }
    let has_workload = |entry: &RouterInputs| entry.workload.is_some();
    let entries = &cache.east_west_ports.entries;
    assert!(entries.iter().all(|entry| has_workload(&entry.0) == entry.0.claimed.is_empty()));
    cache.sweep(&context);
    assert_eq!(entries.len(), 1);
    assert!(entries.iter().all(|entry| has_workload(&entry.0)));

    for number in 0..3 * ROUTERS_MAX {
        port_for(&format!("invented-{number}"));
        assert!(entries.len() <= ROUTERS_MAX);
    }
}
