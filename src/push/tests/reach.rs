//! Who hears that the way to endpoints is another, which are the same as before.

use std::sync::Arc;

use super::*;
use crate::model::Hostname;
use crate::push::Whereabouts;
use crate::push::context::PushContext;
use crate::push::interest::{Interest, Subscription};
use crate::push::scope::{SeenChanges, Sight, Stand};
use crate::push::view_class::unaffected_views;

/// So many streams that watch a service as seen from a network.
const STREAMS: usize = 4;

/// Where nothing differs but assignments.
struct SeesNothing;

impl Sight for SeesNothing {
    fn seen(
        &self,
        _: &Arc<PushContext>,
        _: &Arc<PushContext>,
        _: &std::collections::BTreeSet<Hostname>,
        stands: &[Arc<Stand>],
    ) -> Vec<Arc<SeenChanges>> {
        stands.iter().map(|_| Arc::default()).collect()
    }
}

/// Streams in networks `n1`, `n2` and `n3` that watch `web.ns`, and as many that watch `own.ns`.
fn watchers() -> (Arc<Interest>, Vec<(String, Subscription)>) {
    let interest = Arc::<Interest>::default();
    let mut all = Vec::new();
    for network in ["n1", "n2", "n3"] {
        for name in ["web", "own"] {
            for _ in 0..STREAMS {
                let mut subscription = interest.subscribe(None);
                let hostname = host(&format!("{name}.ns"));
                subscription.watch(&[name.into()], |_| Some(hostname.clone()));
                let proxy = Arc::new(sidecar("client.ns", "east"));
                let whereabouts = Whereabouts::default();
                let stand = Stand { proxy, network: network.into(), whereabouts };
                subscription.stand(stand, client(network).view_class(), None);
                all.push((format!("{name} in {network}"), subscription));
            }
        }
    }
    (interest, all)
}

/// East in n1 with `web.ns` and `own.ns`, west in n2 with `web.ns`; each network with a gateway.
fn words() -> Vec<RegistryUpdate> {
    let mut words = two_networks(vec![endpoint("10.0.0.1")], vec![endpoint("10.1.0.1")]);
    let own = shard("east", 1).with(service("own.ns"), vec![endpoint("10.0.0.2")]);
    words.push(own.update().said());
    words
}

/// Which of the streams are told of an event, each kind once.
fn told_of(mesh: &mut MeshState, before: &Arc<PushContext>, event: MeshEvent) -> Vec<String> {
    let (interest, all) = watchers();
    mesh.apply(event);
    let (now, mut changes) = mesh.next_version().expect("a version that shows it");
    changes.look([before, &now], &interest, &SeesNothing);
    changes.unaffected_views = unaffected_views(before, &now, &changes, &interest);
    interest.mark(&changes);
    let is_told = |(_, stream): &&(String, Subscription)| !stream.take().is_empty();
    let mut told: Vec<_> = all.iter().filter(is_told).map(|(name, _)| name.clone()).collect();
    told.dedup();
    told
}

fn gateway_of_west(address: &str) -> MeshEvent {
    let gateway = service("gateway.strait-system").gateway_of("n2", address);
    MeshEvent::Registry(shard("west", 2).with(gateway, vec![]).update().said())
}

fn known(mode: Mode) -> MeshEvent {
    let clusters =
        [("east".into(), member(None)), ("west".into(), KnownCluster { mode, ..member(None) })];
    MeshEvent::Clusters(Arc::new(KnownClusters { clusters: clusters.into() }))
}

#[test]
fn another_gateway_is_told_to_those_who_enter_by_it_alone() {
    let mut mesh = mesh(words());
    let (before, _) = mesh.next_version().expect("a first version");
    let told = told_of(&mut mesh, &before, gateway_of_west("203.0.113.9"));
    assert_eq!(
        told,
        ["web in n1", "web in n3"],
        "who is in n2, or watches what isn't, has nothing to look at"
    );
}

#[test]
fn a_gateway_that_nobody_can_dial_is_shown_and_told_to_nobody() {
    let mut mesh = mesh(words());
    let (before, _) = mesh.next_version().expect("a first version");
    let mut gateway = service("other.strait-system").gateway_of("n2", "203.0.113.9");
    gateway.external_addresses.clear();
    let pending = shard("west", 2).with(gateway, vec![]).update().said();
    let told = told_of(&mut mesh, &before, MeshEvent::Registry(pending));
    assert!(told.is_empty(), "{told:?}");
}

#[test]
fn a_drained_cluster_is_told_to_those_who_are_sent_there() {
    let mut mesh = mesh(words());
    mesh.apply(known(Mode::Normal));
    let (before, _) = mesh.next_version().expect("a first version");
    let told = told_of(&mut mesh, &before, known(Mode::Drain));
    assert_eq!(told, ["web in n1", "web in n2", "web in n3"]);
}
