//! View classes that a change does not affect.

use std::collections::BTreeSet;

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};

use super::*;
use crate::push::Whereabouts;
use crate::push::scope::ProxyLocation;
use crate::push::subscription_index::{Subscription, SubscriptionIndex};
use crate::push::view_class::unaffected_views;
use strait_model::{Distribution, Service};

/// Returns `streams` streams with each of these views, all watching `web.ns`.
fn watched_from(views: &[ViewKey], streams: usize) -> (Arc<SubscriptionIndex>, Vec<Subscription>) {
    let subscription_index = Arc::<SubscriptionIndex>::default();
    let enter = |view: &ViewKey| {
        let mut subscription = subscription_index.subscribe(None);
        subscription.watch(&["web".into()], |_| Some(host("web.ns")));
        let proxy = Arc::new(sidecar("web.ns", "east"));
        let (network, whereabouts) = (view.network.clone(), Whereabouts::default());
        let location = ProxyLocation { proxy, network, whereabouts };
        subscription.set_location(location, view.clone().view_class(), None);
        subscription
    };
    let all = views.iter().flat_map(|view| std::iter::repeat_n(view, streams));
    let subscriptions = all.map(enter).collect();
    (subscription_index, subscriptions)
}

/// Returns the networks among `n1` to `n3` in which an update of west makes no difference.
fn unseen_from(update: RegistryUpdate, streams: usize) -> Vec<String> {
    let west = ["10.1.0.1", "10.1.0.2", "10.1.0.3", "10.1.0.4"].map(endpoint);
    let mut mesh = mesh(two_networks(vec![endpoint("10.0.0.1")], west.to_vec()));
    let (before, _) = mesh.next_version().expect("a first version");
    mesh.apply(MeshEvent::Registry(update));
    let (now, changes) = mesh.next_version().expect("it changes something");
    let (subscription_index, _subscriptions) =
        watched_from(&["n1", "n2", "n3"].map(client), streams);
    let mut unaffected_views = unaffected_views(&before, &now, &changes, &subscription_index);
    let views = unaffected_views.remove(&host("web.ns")).unwrap_or_default();
    let changes = Changes { unaffected_views: [(host("web.ns"), views.clone())].into(), ..changes };
    let notified = if changes.is_everything() { 3 } else { 3 - views.len() };
    assert_eq!(subscription_index.mark(&changes), notified * streams);
    views.iter().map(|view| view.network.as_str().to_owned()).collect()
}

fn west_reports(addresses: &[&str]) -> RegistryUpdate {
    let endpoints = addresses.iter().copied().map(endpoint).collect();
    shard("west", 2).with(service("web.ns"), endpoints).update().built()
}

#[test]
fn change_behind_a_gateway_affects_only_its_own_network() {
    let moved = west_reports(&["10.1.0.1", "10.1.0.2", "10.1.0.3", "10.1.0.9"]);
    assert_eq!(unseen_from(moved.clone(), 4), ["n1", "n3"]);
    // Computing the effect would cost as much as waking so few streams.
    assert!(unseen_from(moved, 3).is_empty());
    let fewer = west_reports(&["10.1.0.1", "10.1.0.2"]);
    assert!(unseen_from(fewer, 4).is_empty(), "the gateway's weight differs");
    let other = service("web.ns").with(|service| service.sharing.export = Some(false));
    let own = shard("west", 2).with(other, vec![endpoint("10.1.0.9")]).update().built();
    assert!(unseen_from(own, 4).is_empty(), "it is by cluster now");
    assert!(unseen_from(removed("west", 2), 4).is_empty());
}

fn directly(allow_direct_cross_network: bool) -> Arc<FixedSettings> {
    Arc::new(FixedSettings { allow_direct_cross_network, ..(*settings()).clone() })
}

/// Three clusters have the same address in a remote network that is reached directly; the first
/// cluster decides its weight.
#[test]
fn address_that_moves_to_another_cluster_may_change_its_weight() {
    let named = |cluster: &str, weight: Option<u32>| {
        let epoch = 1 + u64::from(cluster > "east") + u64::from(cluster > "north");
        let it = weight.map(|weight| Endpoint { weight, ..endpoint("10.9.0.1") });
        let update = shard(cluster, epoch).network("n9");
        update.with(service("web.ns"), it.into_iter().collect())
    };
    let updates = [("east", Some(1)), ("north", Some(5)), ("west", None)]
        .map(|(cluster, weight)| named(cluster, weight).built());
    let mut mesh = mesh_of(directly(true), updates.to_vec());
    let (before, _) = mesh.next_version().expect("a first version");
    for (cluster, weight) in [("east", None), ("west", Some(1))] {
        mesh.apply(MeshEvent::Registry(named(cluster, weight).update().built()));
    }
    let (now, changes) = mesh.next_version().expect("it changes something");
    let view = client("n1");
    assert_eq!(members(&assigned(&before, &view)), ["10.9.0.1 1"]);
    assert_eq!(members(&assigned(&now, &view)), ["10.9.0.1 5"]);
    let (subscription_index, _subscriptions) = watched_from(&[view], 4);
    assert!(!changes.is_everything() && changes.endpoints().next().is_some(), "{changes:?}");
    assert!(unaffected_views(&before, &now, &changes, &subscription_index).is_empty());
}

/// Random changes: in views whose class is unaffected, no assignment differs.
#[test]
fn unaffected_views_have_unchanged_assignments() {
    let mut random = StdRng::seed_from_u64(11);
    let mut spared = 0;
    for _ in 0..60 {
        let updates = two_networks(some_endpoints(&mut random), some_endpoints(&mut random));
        let mut mesh = mesh_of(directly(random.random_bool(0.5)), updates);
        mesh.apply(MeshEvent::Clusters(clusters(&mut random)));
        let (mut before, _) = mesh.next_version().expect("a first version");
        let views = all_views();
        let (subscription_index, _subscriptions) = watched_from(&views, 4);
        for _ in 0..20 {
            mesh.apply(change(&mut random));
            let Some((now, changes)) = mesh.next_version() else { continue };
            let unaffected_views = unaffected_views(&before, &now, &changes, &subscription_index);
            let unaffected_views: BTreeSet<_> = unaffected_views.values().flatten().collect();
            for view in &views {
                if unaffected_views.contains(&Arc::new(view.clone().view_class())) {
                    spared += 1;
                    assert_eq!(assigned(&before, view), assigned(&now, view), "{view:?}");
                }
            }
            before = now;
        }
    }
    assert!(spared > 1000, "{spared}");
}

fn all_views() -> Vec<ViewKey> {
    let mut views = Vec::new();
    for cluster in ["east", "west", "north"] {
        for network in ["n1", "n2", "n3", ""] {
            for (namespace, node) in [("ns", None), ("ns", Some("node-1")), ("shop", None)] {
                for role in [Role::Client, Role::Gateway] {
                    let proxy = sidecar(&format!("client.{namespace}"), cluster);
                    let view = ViewKey::of(&proxy, network.into(), role);
                    let locality = node.map(|_| zone("a"));
                    views.push(ViewKey { node: node.map(Into::into), locality, ..view });
                }
            }
        }
    }
    views
}

fn zone(name: &str) -> Arc<Locality> {
    Arc::new(Locality { region: "r".into(), zone: name.into(), subzone: "".into() })
}

fn some_endpoints(random: &mut StdRng) -> Vec<Endpoint> {
    let count = random.random_range(0..6);
    let one = |random: &mut StdRng| Endpoint {
        health: *[Health::Healthy, Health::Healthy, Health::Unhealthy].choose(random).expect("one"),
        tls_mode: *[TlsMode::Istio, TlsMode::Istio, TlsMode::Disabled].choose(random).expect("one"),
        locality: zone(["a", "b"].choose(random).expect("one")),
        node: random.random_ratio(1, 3).then(|| "node-1".into()),
        network_label: random.random_ratio(1, 9).then(|| "n3".into()),
        ..endpoint(&format!("10.0.{}.1", random.random_range(0..8)))
    };
    (0..count).map(|_| one(random)).collect()
}

/// Returns `web.ns`, usually without special settings.
fn some_service(random: &mut StdRng) -> Service {
    let unusual = random.random_range(0..24);
    service("web.ns").with(|service| match unusual {
        0 => service.export_to = ExportTo::Namespaces(vec!["ns".into()]),
        1 => service.sharing.export = Some(false),
        2 => service.node_local = true,
        3 => service.prefers = Distribution::SameZone,
        4 => service.resolution = Resolution::Headless,
        _ => {}
    })
}

fn clusters(random: &mut StdRng) -> Arc<KnownClusters> {
    let mut clusters = KnownClusters::default();
    for id in ["east", "west", "north"] {
        let mode = if random.random_ratio(1, 8) { Mode::Drain } else { Mode::Normal };
        clusters.clusters.insert(id.into(), KnownCluster { mode, ..member(None) });
    }
    Arc::new(clusters)
}

fn change(random: &mut StdRng) -> MeshEvent {
    let (cluster, epoch) = *[("east", 1), ("west", 2), ("north", 3)].choose(random).expect("one");
    if random.random_ratio(1, 16) {
        return MeshEvent::Clusters(clusters(random));
    }
    if cluster == "north" && random.random_ratio(1, 4) {
        let gateway = service("gateway.strait-system").gateway_of("n3", "203.0.113.3");
        let update = shard(cluster, epoch).network("n3").with(gateway, vec![]);
        return MeshEvent::Registry(
            update.with(some_service(random), some_endpoints(random)).built(),
        );
    }
    let update = shard(cluster, epoch).with(some_service(random), some_endpoints(random));
    MeshEvent::Registry(update.update().built())
}
