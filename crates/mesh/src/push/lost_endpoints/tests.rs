use std::time::Duration;

use serde_json::json;

use super::*;
use crate::push::event_loop::{MeshEvent, MeshState};
use crate::testing::settings;
use strait_model::testing::{endpoint, host, labels, member, service, shard, sidecar};
use strait_model::{Endpoint, KnownClusters, Proxy, ProxyType};
use strait_rules::testing::kind_settings;
use strait_rules::traffic::TrafficIndex;

/// Returns a mesh with `web.shop` and its four endpoints, three with version v1, and at
/// most one traffic object.
fn mesh_with(kind: &str, spec: Option<serde_json::Value>) -> Arc<PushContext> {
    let mut mesh = MeshState::new(settings());
    let clusters = [("east".into(), member(None))].into();
    mesh.apply(MeshEvent::Clusters(Arc::new(KnownClusters { clusters })));
    let endpoints =
        [("10.0.0.1", "v1"), ("10.0.0.2", "v1"), ("10.0.0.3", "v1"), ("10.0.0.4", "v2")];
    let endpoints = endpoints.map(|(at, version)| Endpoint {
        labels: Some(Arc::new(labels(&[("version", version)]))),
        ..endpoint(at)
    });
    let update = shard("east", 1).with(service("web.shop"), endpoints.into());
    mesh.apply(MeshEvent::Registry(update.built()));
    let object = spec.map(|spec| {
        Arc::new(json!({
            "apiVersion": "networking.istio.io/v1", "kind": kind, "spec": spec,
            "metadata": { "namespace": "shop", "name": "one" },
        }))
    });
    let mut index = TrafficIndex::new(kind_settings());
    let update = index.apply(&object.into_iter().collect());
    mesh.apply(MeshEvent::Traffic(update.expect("the first")));
    mesh.apply(MeshEvent::Complete);
    mesh.next_version().expect("a version").0
}

fn subsets(versions: &[(&str, &str)]) -> Option<serde_json::Value> {
    let all = versions
        .iter()
        .map(|(name, version)| json!({ "name": name, "labels": { "version": version } }));
    Some(json!({ "host": "web", "subsets": all.collect::<Vec<_>>() }))
}

fn lost(versions: [&Arc<PushContext>; 2], percent: u8, proxy: Proxy) -> Option<LostEndpoints> {
    let proxy = Arc::new(proxy);
    let whereabouts = versions[0].whereabouts(&proxy);
    let network = versions[0].network_of_cluster(&proxy.cluster);
    let location = Arc::new(ProxyLocation { proxy, network, whereabouts });
    let deadline = Instant::now() + Duration::from_secs(60);
    lost_endpoints(versions.map(|one| &**one), &[location], percent, deadline)
}

#[test]
fn subset_with_fewer_endpoints_is_reported() {
    let before = mesh_with("DestinationRule", subsets(&[("one", "v1")]));
    let now = mesh_with("DestinationRule", subsets(&[("one", "v2")]));
    let found = lost([&before, &now], 20, sidecar("client.shop", "east")).expect("some");
    assert_eq!((&found.host, &*found.subset), (&host("web.shop"), "one"));
    assert_eq!((found.before, found.now, found.percent()), (3, 1, 66));
    assert!(found.to_string().contains("subset one has 1 of 3 endpoints for "), "{found}");
    for (percent, is_lost) in [(66, true), (67, false), (100, false)] {
        let found = lost([&before, &now], percent, sidecar("client.shop", "east"));
        assert_eq!(found.is_some(), is_lost, "{percent}");
    }
    // In the opposite direction, endpoints are gained.
    assert_eq!(lost([&now, &before], 0, sidecar("client.shop", "east")), None);
}

#[test]
fn added_or_removed_subset_is_not_reported() {
    let before = mesh_with("DestinationRule", subsets(&[("one", "v1"), ("two", "v2")]));
    let now = mesh_with("DestinationRule", subsets(&[("two", "v2"), ("three", "v3")]));
    let without_subsets = mesh_with("DestinationRule", None);
    for pair in [[&before, &now], [&before, &without_subsets], [&without_subsets, &before]] {
        assert_eq!(lost(pair, 0, sidecar("client.shop", "east")), None);
    }
}

#[test]
fn service_excluded_by_a_sidecar_is_lost_for_its_namespace() {
    let before = mesh_with("Sidecar", None);
    let now = mesh_with("Sidecar", Some(json!({ "egress": [{ "hosts": ["other/*"] }] })));
    let found = lost([&before, &now], 99, sidecar("client.shop", "east")).expect("all");
    assert_eq!((found.before, found.now), (4, 0));
    assert_eq!(lost([&before, &now], 0, sidecar("client.pay", "east")), None);
    let router = Proxy { kind: ProxyType::Router, ..sidecar("client.shop", "east") };
    assert_eq!(lost([&before, &now], 0, router), None);
}
