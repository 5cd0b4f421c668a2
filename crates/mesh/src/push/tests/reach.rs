//! Notification of streams when the path to unchanged endpoints changes.

use std::sync::Mutex;

use super::*;
use crate::push::Whereabouts;
use crate::push::context::PushContext;
use crate::push::subscription_index::{Subscription, SubscriptionIndex};
use crate::push::view_class::unaffected_views;
use strait_model::Namespace;
use strait_model::dirty::{Wildcard, Wildcards};
use strait_model::testing::labels;

/// The number of streams that watch a service from each network.
const STREAMS: usize = 4;

/// Returns streams in networks `n1`, `n2` and `n3`, half watching `web.ns` and half `own.ns`.
fn watchers() -> (Arc<SubscriptionIndex>, Vec<(String, Subscription)>) {
    let subscription_index = Arc::<SubscriptionIndex>::default();
    let mut all = Vec::new();
    for network in ["n1", "n2", "n3"] {
        for name in ["web", "own"] {
            for _ in 0..STREAMS {
                let mut subscription = subscription_index.subscribe(None);
                let hostname = host(&format!("{name}.ns"));
                subscription.watch(&[name.into()], |_| Some(hostname.clone()));
                let proxy = Arc::new(sidecar("client.ns", "east"));
                let whereabouts = Whereabouts::default();
                let location = ProxyLocation { proxy, network: network.into(), whereabouts };
                subscription.set_location(location, client(network).view_class(), None);
                all.push((format!("{name} in {network}"), subscription));
            }
        }
    }
    (subscription_index, all)
}

/// Returns updates for: east in n1 with `web.ns` and `own.ns`, west in n2 with `web.ns`, a gateway
/// in each network.
fn updates() -> Vec<RegistryUpdate> {
    let mut updates = two_networks(vec![endpoint("10.0.0.1")], vec![endpoint("10.1.0.1")]);
    let own = shard("east", 1).with(service("own.ns"), vec![endpoint("10.0.0.2")]);
    updates.push(own.update().built());
    updates
}

/// Returns the kinds of streams that an event notifies.
fn notified_streams(
    mesh: &mut MeshState,
    before: &Arc<PushContext>,
    event: MeshEvent,
) -> Vec<String> {
    let (subscription_index, all) = watchers();
    mesh.apply(event);
    let (now, mut changes) = mesh.next_version().expect("a version that shows it");
    changes.compute_impact([before, &now], &subscription_index, &SeesNothing);
    changes.unaffected_views = unaffected_views(before, &now, &changes, &subscription_index);
    subscription_index.mark(&changes);
    let is_notified = |(_, stream): &&(String, Subscription)| !stream.take().is_empty();
    let mut notified: Vec<_> =
        all.iter().filter(is_notified).map(|(name, _)| name.clone()).collect();
    notified.dedup();
    notified
}

fn gateway_of_west(address: &str) -> MeshEvent {
    let gateway = service("gateway.strait-system").gateway_of("n2", address);
    MeshEvent::Registry(shard("west", 2).with(gateway, vec![]).update().built())
}

fn clusters_event(mode: Mode) -> MeshEvent {
    let clusters =
        [("east".into(), member(None)), ("west".into(), KnownCluster { mode, ..member(None) })];
    MeshEvent::Clusters(Arc::new(KnownClusters { clusters: clusters.into() }))
}

#[test]
fn changed_gateway_notifies_only_streams_that_use_it() {
    let mut mesh = mesh(updates());
    let (before, _) = mesh.next_version().expect("a first version");
    let notified = notified_streams(&mut mesh, &before, gateway_of_west("203.0.113.9"));
    assert_eq!(
        notified,
        ["web in n1", "web in n3"],
        "streams in n2 and streams of other services are unaffected"
    );
}

#[test]
fn pending_gateway_notifies_no_stream() {
    let mut mesh = mesh(updates());
    let (before, _) = mesh.next_version().expect("a first version");
    let mut gateway = service("other.strait-system").gateway_of("n2", "203.0.113.9");
    gateway.external_addresses.clear();
    let pending = shard("west", 2).with(gateway, vec![]).update().built();
    let notified = notified_streams(&mut mesh, &before, MeshEvent::Registry(pending));
    assert!(notified.is_empty(), "{notified:?}");
}

#[test]
fn drained_cluster_notifies_streams_with_its_endpoints() {
    let mut mesh = mesh(updates());
    mesh.apply(clusters_event(Mode::Normal));
    let (before, _) = mesh.next_version().expect("a first version");
    let notified = notified_streams(&mut mesh, &before, clusters_event(Mode::Drain));
    assert_eq!(notified, ["web in n1", "web in n2", "web in n3"]);
}

/// Reports a difference of listeners at every location, and records the namespaces of the
/// locations.
#[derive(Default)]
struct SeesAll(Mutex<BTreeSet<Namespace>>);

impl ChangeImpact for SeesAll {
    fn seen(
        &self,
        _: &Arc<PushContext>,
        _: &Arc<PushContext>,
        _: &BTreeSet<Hostname>,
        locations: &[Arc<ProxyLocation>],
    ) -> Vec<Arc<AffectedResources>> {
        let namespaces = locations.iter().map(|location| location.proxy.namespace().clone());
        self.0.lock().expect("whole").extend(namespaces);
        let lists = Wildcards::from(Wildcard::Listeners);
        let seen = Arc::new(AffectedResources { lists, ..AffectedResources::default() });
        locations.iter().map(|_| Arc::clone(&seen)).collect()
    }
}

/// Creates streams in namespaces `ns` and `other`, and one without a location. Returns the notified
/// streams, and the namespaces for which the effect was computed.
fn looked_at(before: RegistryUpdate, then: RegistryUpdate) -> (Vec<&'static str>, Vec<String>) {
    let mut mesh = mesh(vec![before]);
    let (before, _) = mesh.next_version().expect("a first version");
    let subscription_index = Arc::<SubscriptionIndex>::default();
    let streams = ["ns", "other", ""].map(|namespace| {
        let mut subscription = subscription_index.subscribe(None);
        subscription.watch_lists(Wildcards::ALL);
        subscription.watch(&["web".into()], |_| Some(host("web.ns")));
        if !namespace.is_empty() {
            let proxy = Arc::new(sidecar(&format!("client.{namespace}"), "east"));
            let (network, whereabouts) = ("n1".into(), Whereabouts::default());
            subscription.set_location(
                ProxyLocation { proxy, network, whereabouts },
                client("n1").view_class(),
                None,
            );
        }
        (namespace, subscription)
    });
    mesh.apply(MeshEvent::Registry(then));
    let (now, mut changes) = mesh.next_version().expect("a version that shows it");
    let change_impact = SeesAll::default();
    changes.compute_impact([&before, &now], &subscription_index, &change_impact);
    subscription_index.mark(&changes);
    let notified = streams.iter().filter(|(_, stream)| !stream.take().is_empty());
    let notified = notified.map(|(namespace, _)| *namespace).collect();
    (
        notified,
        change_impact.0.into_inner().expect("whole").iter().map(ToString::to_string).collect(),
    )
}

#[test]
fn changed_target_port_is_evaluated_only_in_the_namespace_of_its_pods() {
    let at = |number, target| {
        let web = service("web.ns").with(|one| {
            one.ports = vec![port("http", number, target)];
            one.selector = labels(&[("app", "web")]);
        });
        shard("east", 1).with(web, vec![endpoint("10.0.0.1")])
    };
    let first = || at(80, 8080).built();
    assert_eq!(
        looked_at(first(), at(80, 8081).update().built()),
        (vec!["ns", ""], vec!["ns".into()]),
        "a stream without a location is notified"
    );
    assert_eq!(
        looked_at(first(), at(81, 8080).update().built()),
        (vec!["ns", "other", ""], vec!["ns".into(), "other".into()]),
        "a different port affects clients"
    );
    let gateway = |target| {
        let service = service("gateway.ns").gateway_of("n1", "203.0.113.1");
        let service = service.with(|one| one.ports = vec![port("tls", 15443, target)]);
        shard("east", 1).with(service, vec![])
    };
    assert_eq!(
        looked_at(gateway(15443).built(), gateway(15444).update().built()).1,
        ["ns", "other"],
        "the ports of a gateway are evaluated everywhere"
    );
}
