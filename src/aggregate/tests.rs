use std::net::IpAddr;
use std::sync::Arc;

use super::*;
use crate::fixtures::{endpoint, host, removed, service, shard, workload};
use crate::model::{
    ClusterFacts, ClusterId, Endpoint, Locality, NetworkId, Service, Workload, WorkloadKey,
    Workloads,
};
use crate::registry::Change;

/// Places by the label of the system namespace alone.
struct BySystemLabel;

impl Place for BySystemLabel {
    fn network_of(
        &self,
        _: &ClusterId,
        system_label: Option<&NetworkId>,
        _: Option<&NetworkId>,
        _: IpAddr,
    ) -> Placed {
        Placed { network: system_label.cloned().unwrap_or_default(), at_any_address: true }
    }
}

/// Places by an endpoint's own label, else by the last figure of its address.
struct ByLabelOrAddress;

impl Place for ByLabelOrAddress {
    fn network_of(
        &self,
        _: &ClusterId,
        _: Option<&NetworkId>,
        label: Option<&NetworkId>,
        address: IpAddr,
    ) -> Placed {
        let by_address =
            || address.to_string().chars().last().unwrap_or_default().to_string().into();
        Placed {
            network: label.cloned().unwrap_or_else(by_address),
            at_any_address: label.is_some(),
        }
    }
}

fn merged(aggregate: &Aggregate, name: &str) -> Option<MergedService> {
    aggregate.merge(&host(name), &BySystemLabel)
}

fn clusters_of(service: &MergedService) -> Vec<&str> {
    service.shards.iter().map(|shard| shard.key.cluster.as_str()).collect()
}

#[test]
fn a_name_in_two_clusters_is_one_service_with_the_vips_and_addresses_of_both() {
    let mut aggregate = Aggregate::new(None);
    let east = service("web.ns").vip("10.1.0.1");
    let west = service("web.ns").vip("10.2.0.1").gateway_of("n2", "203.0.113.2");
    aggregate.apply(shard("west", 1).with(west, vec![endpoint("10.0.0.2")]).said());
    aggregate.apply(shard("east", 1).with(east, vec![endpoint("10.0.0.1")]).said());
    let web = merged(&aggregate, "web.ns").expect("merged");
    assert_eq!(clusters_of(&web), ["east", "west"]);
    assert_eq!(web.vips().count(), 2);
    assert_eq!(
        web.external_addresses().map(|(cluster, _)| cluster.as_str()).collect::<Vec<_>>(),
        ["west"]
    );
    assert_eq!(web.service_accounts.len(), 1);
    assert_eq!(web.conflicts.len(), 1, "the ports differ");
}

#[test]
fn the_config_cluster_comes_first_whatever_its_name() {
    let mut aggregate = Aggregate::new(Some("zoo".into()));
    for cluster in ["ant", "zoo", "bee"] {
        aggregate.apply(shard(cluster, 1).with(service("web.ns"), vec![]).said());
    }
    let web = merged(&aggregate, "web.ns").expect("merged");
    assert_eq!(clusters_of(&web), ["zoo", "ant", "bee"]);
}

#[test]
fn what_can_be_a_gateway_is_known_whenever_it_comes_changes_and_goes() {
    let mut aggregate = Aggregate::new(None);
    let found = |aggregate: &Aggregate| -> Vec<String> {
        let named = [host("named.ns"), host("east-west.ns")].into();
        let found = aggregate.gateways(&named);
        found.map(|(cluster, service)| format!("{cluster} {}", service.name)).collect()
    };
    let gateway = || service("east-west.ns").gateway_of("n2", "203.0.113.2");
    let says = |cluster, services: [Service; 2]| {
        let [one, two] = services;
        shard(cluster, 1).with(one, vec![]).with(two, vec![])
    };
    aggregate.apply(says("east", [gateway(), service("web.ns")]).said());
    aggregate.apply(says("west", [service("named.ns"), service("web.ns")]).said());
    assert_eq!(found(&aggregate), ["east east-west", "west named"]);

    let late = service("web.ns").gateway_of("n1", "203.0.113.1");
    aggregate.apply(shard("west", 1).with(late, vec![]).update().said());
    assert_eq!(found(&aggregate), ["east east-west", "west named", "west web"]);
    aggregate.apply(shard("west", 1).with(service("web.ns"), vec![]).update().said());
    aggregate.apply(says("east", [service("a.ns"), service("b.ns")]).said());
    assert_eq!(found(&aggregate), ["west named"]);
    aggregate.apply(shard("east", 1).with(gateway(), vec![]).said());
    aggregate.apply(removed("west", 1));
    assert_eq!(found(&aggregate), ["east east-west"]);
}

#[test]
fn a_removed_cluster_leaves_no_trace() {
    let mut aggregate = Aggregate::new(None);
    aggregate.apply(shard("east", 1).with(service("web.ns").vip("10.1.0.1"), vec![]).said());
    let before = merged(&aggregate, "web.ns");
    let west = service("web.ns").vip("10.2.0.1");
    aggregate.apply(shard("west", 2).network("n2").with(west, vec![endpoint("10.0.0.2")]).said());
    let touched = aggregate.apply(removed("west", 2));
    assert_eq!(touched.hosts, [host("web.ns")].into());
    assert_eq!(merged(&aggregate, "web.ns"), before);
    assert_eq!(aggregate.network_labels().count(), 1);
}

#[test]
fn the_last_word_of_an_earlier_run_changes_nothing() {
    let mut aggregate = Aggregate::new(None);
    aggregate.apply(shard("east", 1).with(service("old.ns"), vec![]).said());
    aggregate.apply(shard("east", 2).with(service("new.ns"), vec![]).said());
    assert!(merged(&aggregate, "old.ns").is_none(), "a reset leaves out what it doesn't name");
    for late in [
        shard("east", 1).with(service("old.ns"), vec![]).said(),
        shard("east", 1).with(service("old.ns"), vec![]).update().said(),
    ] {
        assert!(aggregate.apply(late).is_empty());
    }
    assert!(merged(&aggregate, "old.ns").is_none());
    assert!(merged(&aggregate, "new.ns").is_some());
}

#[test]
fn saying_the_same_twice_touches_nothing() {
    let mut aggregate = Aggregate::new(None);
    let word = || shard("east", 1).with(service("web.ns"), vec![endpoint("10.0.0.1")]).said();
    assert!(!aggregate.apply(word()).is_empty());
    assert!(aggregate.apply(word()).is_empty());
}

#[test]
fn pods_of_a_cluster_are_told_when_their_node_moves_but_not_when_it_comes() {
    let word = |zone: &str| {
        let (key, pod) = workload("web-1.ns", "10.0.0.1", &[]);
        let node = Some(Arc::new("n1".into()));
        let mut word = shard("east", 1).pod((key, Workload { node, ..pod })).said();
        let Change::Reset(contents) = &mut word.change else { panic!("a first word is a reset") };
        let locality = Locality { zone: zone.into(), ..Locality::default() };
        let localities = Arc::new([("n1".into(), Arc::new(locality))].into());
        contents.facts = Some(ClusterFacts { localities, ..ClusterFacts::default() });
        word
    };
    let mut aggregate = Aggregate::new(None);
    let touched = aggregate.apply(word("a"));
    assert_eq!(
        (touched.placements, touched.facts),
        (["east".into()].into(), ["east".into()].into())
    );
    assert!(touched.workloads.is_empty(), "there may be a hundred thousand of them");
    assert_eq!(aggregate.workloads(&"east".into()).map(Workloads::len), Some(1));
    let touched = aggregate.apply(word("b"));
    assert_eq!(touched.workloads, [("east".into(), WorkloadKey::new("ns", "web-1"))].into());
}

#[test]
fn an_endpoint_change_touches_no_object() {
    let mut aggregate = Aggregate::new(None);
    aggregate.apply(shard("east", 1).with(service("web.ns"), vec![]).said());
    let more = shard("east", 1).with(service("web.ns"), vec![endpoint("10.0.0.1")]).update();
    let touched = aggregate.apply(more.said());
    assert_eq!(touched.hosts, [host("web.ns")].into());
    assert!(touched.objects.is_empty());
    let touched = aggregate.apply(shard("east", 1).without("web.ns").update().said());
    assert_eq!(touched.objects, [host("web.ns")].into());
}

#[test]
fn endpoints_keep_their_own_networks_though_addresses_are_equal() {
    let mut aggregate = Aggregate::new(None);
    for (cluster, network) in [("east", "n1"), ("west", "n2")] {
        let word = shard(cluster, 1).network(network);
        aggregate.apply(word.with(service("web.ns"), vec![endpoint("10.0.0.1")]).said());
    }
    let web = merged(&aggregate, "web.ns").expect("merged");
    let networks: Vec<_> = web.endpoints().map(|(_, _, network)| network.as_str()).collect();
    assert_eq!(networks, ["n1", "n2"]);
}

#[test]
fn labels_and_addresses_place_endpoints_of_one_shard_apart() {
    let mut aggregate = Aggregate::new(None);
    let labelled = |address: &str, label: &str| Endpoint {
        network_label: Some(label.into()),
        ..endpoint(address)
    };
    let endpoints = vec![
        endpoint("10.0.0.1"),
        labelled("10.0.0.2", "n"),
        endpoint("10.0.0.3"),
        labelled("10.0.0.4", "n"),
        endpoint("10.0.0.1"),
    ];
    aggregate.apply(shard("east", 1).with(service("web.ns"), endpoints).said());
    let web = aggregate.merge(&host("web.ns"), &ByLabelOrAddress).expect("merged");
    let networks: Vec<_> = web.endpoints().map(|(_, _, network)| network.as_str()).collect();
    assert_eq!(networks, ["1", "n", "3", "n", "1"]);
}
