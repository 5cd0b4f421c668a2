use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};

use super::*;
use strait_model::registry::ShardChange;
use strait_model::testing::{endpoint, host, member, removed, service, shard, workload};
use strait_model::{
    ClusterFacts, ClusterId, Endpoint, KnownCluster, KnownClusters, Locality, NetworkId, PodState,
    Profile, Service, TlsMode, Workload, WorkloadKey, Workloads,
};

/// Assigns networks by the label of the system namespace only.
struct BySystemLabel;

impl AssignNetwork for BySystemLabel {
    fn network_of(
        &self,
        _: &ClusterId,
        system_label: Option<&NetworkId>,
        _: Option<&NetworkId>,
        _: IpAddr,
    ) -> AssignedEndpoints {
        AssignedEndpoints {
            network: system_label.cloned().unwrap_or_default(),
            at_any_address: true,
        }
    }
}

/// Assigns networks by an endpoint's own label, otherwise by the address's last digit.
struct ByLabelOrAddress;

impl AssignNetwork for ByLabelOrAddress {
    fn network_of(
        &self,
        _: &ClusterId,
        _: Option<&NetworkId>,
        label: Option<&NetworkId>,
        address: IpAddr,
    ) -> AssignedEndpoints {
        let by_address =
            || address.to_string().chars().last().unwrap_or_default().to_string().into();
        AssignedEndpoints {
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
fn service_in_two_clusters_has_the_vips_and_addresses_of_both() {
    let mut aggregate = Aggregate::new(None);
    let east = service("web.ns").vip("10.1.0.1");
    let west = service("web.ns").vip("10.2.0.1").gateway_of("n2", "203.0.113.2");
    aggregate.apply(shard("west", 1).with(west, vec![endpoint("10.0.0.2")]).built());
    aggregate.apply(shard("east", 1).with(east, vec![endpoint("10.0.0.1")]).built());
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
fn config_cluster_is_merged_first_regardless_of_its_name() {
    let mut aggregate = Aggregate::new(Some("zoo".into()));
    for cluster in ["ant", "zoo", "bee"] {
        aggregate.apply(shard(cluster, 1).with(service("web.ns"), vec![]).built());
    }
    let web = merged(&aggregate, "web.ns").expect("merged");
    assert_eq!(clusters_of(&web), ["zoo", "ant", "bee"]);
}

#[test]
fn gateway_candidates_follow_added_changed_and_removed_services() {
    let mut aggregate = Aggregate::new(None);
    let found = |aggregate: &Aggregate| -> Vec<String> {
        let named = [host("named.ns"), host("east-west.ns")].into();
        let found = aggregate.gateways(&named);
        found.map(|(cluster, service)| format!("{cluster} {}", service.name)).collect()
    };
    let gateway = || service("east-west.ns").gateway_of("n2", "203.0.113.2");
    let reset = |cluster, services: [Service; 2]| {
        let [one, two] = services;
        shard(cluster, 1).with(one, vec![]).with(two, vec![])
    };
    aggregate.apply(reset("east", [gateway(), service("web.ns")]).built());
    aggregate.apply(reset("west", [service("named.ns"), service("web.ns")]).built());
    assert_eq!(found(&aggregate), ["east east-west", "west named"]);

    let late = service("web.ns").gateway_of("n1", "203.0.113.1");
    aggregate.apply(shard("west", 1).with(late, vec![]).update().built());
    assert_eq!(found(&aggregate), ["east east-west", "west named", "west web"]);
    aggregate.apply(shard("west", 1).with(service("web.ns"), vec![]).update().built());
    aggregate.apply(reset("east", [service("a.ns"), service("b.ns")]).built());
    assert_eq!(found(&aggregate), ["west named"]);
    aggregate.apply(shard("east", 1).with(gateway(), vec![]).built());
    aggregate.apply(removed("west", 1));
    assert_eq!(found(&aggregate), ["east east-west"]);
}

#[test]
fn removed_cluster_leaves_no_trace() {
    let mut aggregate = Aggregate::new(None);
    aggregate.apply(shard("east", 1).with(service("web.ns").vip("10.1.0.1"), vec![]).built());
    let before = merged(&aggregate, "web.ns");
    let west = service("web.ns").vip("10.2.0.1");
    aggregate.apply(shard("west", 2).network("n2").with(west, vec![endpoint("10.0.0.2")]).built());
    let touched = aggregate.apply(removed("west", 2));
    assert_eq!(touched.hosts, [host("web.ns")].into());
    assert_eq!(merged(&aggregate, "web.ns"), before);
    assert_eq!(aggregate.network_labels().count(), 1);
}

#[test]
fn late_update_of_an_earlier_run_has_no_effect() {
    let mut aggregate = Aggregate::new(None);
    aggregate.apply(shard("east", 1).with(service("old.ns"), vec![]).built());
    aggregate.apply(shard("east", 2).with(service("new.ns"), vec![]).built());
    assert!(
        merged(&aggregate, "old.ns").is_none(),
        "a reset removes services that it does not list"
    );
    for late in [
        shard("east", 1).with(service("old.ns"), vec![]).built(),
        shard("east", 1).with(service("old.ns"), vec![]).update().built(),
    ] {
        assert!(aggregate.apply(late).is_empty());
    }
    assert!(merged(&aggregate, "old.ns").is_none());
    assert!(merged(&aggregate, "new.ns").is_some());
}

#[test]
fn repeated_update_changes_nothing() {
    let mut aggregate = Aggregate::new(None);
    let update = || shard("east", 1).with(service("web.ns"), vec![endpoint("10.0.0.1")]).built();
    assert!(!aggregate.apply(update()).is_empty());
    assert!(aggregate.apply(update()).is_empty());
}

#[test]
fn pods_change_when_their_node_moves_but_not_when_it_is_added() {
    let update = |zone: &str| {
        let (key, pod) = workload("web-1.ns", "10.0.0.1", &[]);
        let node = Some(Arc::new("n1".into()));
        let mut update = shard("east", 1).pod((key, Workload { node, ..pod })).built();
        let ShardChange::Reset(contents) = &mut update.change else {
            panic!("the first update is a reset")
        };
        let locality = Locality { zone: zone.into(), ..Locality::default() };
        let localities = Arc::new([("n1".into(), Arc::new(locality))].into());
        contents.facts = Some(ClusterFacts { localities, ..ClusterFacts::default() });
        update
    };
    let mut aggregate = Aggregate::new(None);
    let touched = aggregate.apply(update("a"));
    assert_eq!(
        (touched.placements, touched.facts),
        (["east".into()].into(), ["east".into()].into())
    );
    assert!(touched.workloads.is_empty(), "there may be a hundred thousand of them");
    assert_eq!(aggregate.workloads(&"east".into()).map(Workloads::len), Some(1));
    let touched = aggregate.apply(update("b"));
    assert_eq!(touched.workloads, [("east".into(), WorkloadKey::new("ns", "web-1"))].into());
}

#[test]
fn endpoint_change_does_not_change_objects() {
    let mut aggregate = Aggregate::new(None);
    aggregate.apply(shard("east", 1).with(service("web.ns"), vec![]).built());
    let more = shard("east", 1).with(service("web.ns"), vec![endpoint("10.0.0.1")]).update();
    let touched = aggregate.apply(more.built());
    assert_eq!(touched.hosts, [host("web.ns")].into());
    assert!(touched.objects.is_empty());
    let touched = aggregate.apply(shard("east", 1).without("web.ns").update().built());
    assert_eq!(touched.objects, [host("web.ns")].into());
}

#[test]
fn endpoints_with_equal_addresses_keep_their_networks() {
    let mut aggregate = Aggregate::new(None);
    for (cluster, network) in [("east", "n1"), ("west", "n2")] {
        let update = shard(cluster, 1).network(network);
        aggregate.apply(update.with(service("web.ns"), vec![endpoint("10.0.0.1")]).built());
    }
    let web = merged(&aggregate, "web.ns").expect("merged");
    let networks: Vec<_> = web.endpoints().map(|(_, _, network)| network.as_str()).collect();
    assert_eq!(networks, ["n1", "n2"]);
}

#[test]
fn endpoints_of_one_shard_have_networks_by_label_or_address() {
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
    aggregate.apply(shard("east", 1).with(service("web.ns"), endpoints).built());
    let web = aggregate.merge(&host("web.ns"), &ByLabelOrAddress).expect("merged");
    let networks: Vec<_> = web.endpoints().map(|(_, _, network)| network.as_str()).collect();
    assert_eq!(networks, ["1", "n", "3", "n", "1"]);
}

fn known_clusters(clusters: &[(&str, Option<i64>)]) -> Arc<KnownClusters> {
    let cluster = |created| KnownCluster { created, ..member(None) };
    let clusters = clusters.iter().map(|(id, created)| ((*id).into(), cluster(*created)));
    Arc::new(KnownClusters { clusters: clusters.collect() })
}

#[test]
fn older_clusters_are_merged_first_once_their_age_is_known() {
    let mut aggregate = Aggregate::new(Some("config".into()));
    for (epoch, cluster) in (1..).zip(["a", "b", "c", "config"]) {
        aggregate.apply(shard(cluster, epoch).with(service("web.ns"), vec![]).built());
    }
    let order = |aggregate: &Aggregate| {
        let web = merged(aggregate, "web.ns").expect("merged");
        clusters_of(&web).join(" ")
    };
    assert_eq!(order(&aggregate), "config a b c");
    aggregate.rank(known_clusters(&[("b", Some(2)), ("c", Some(1))]));
    assert_eq!(order(&aggregate), "config c b a");
    aggregate.rank(known_clusters(&[("a", Some(1)), ("b", None), ("c", Some(1))]));
    assert_eq!(order(&aggregate), "config a c b");
    // A cluster that becomes known before its first update.
    aggregate.rank(known_clusters(&[("a", Some(1)), ("c", Some(1)), ("d", Some(0))]));
    aggregate.apply(shard("d", 9).with(service("web.ns"), vec![]).built());
    assert_eq!(order(&aggregate), "config d a c b");
    aggregate.rank(Arc::default());
    assert_eq!(order(&aggregate), "config a b c d");
}

/// Computes the shared addresses by brute force from the current services.
fn shared_by_force(services: &[MergedService]) -> Vec<(NetworkId, IpAddr, Vec<ClusterId>)> {
    let mut claims: BTreeMap<(NetworkId, IpAddr), BTreeSet<ClusterId>> = BTreeMap::new();
    for service in services {
        for (key, endpoint, network) in
            service.endpoints().filter(|(_, one, _)| one.claims_address())
        {
            let place = (network.clone(), endpoint.address);
            claims.entry(place).or_default().insert(key.cluster.clone());
        }
    }
    let shared = claims.into_iter().filter(|(_, claimants)| claimants.len() > 1);
    shared
        .map(|((network, address), claimants)| (network, address, claimants.into_iter().collect()))
        .collect()
}

#[test]
fn address_claims_depend_only_on_the_current_services() {
    let mut random = StdRng::seed_from_u64(5);
    let mut claims = AddressClaims::default();
    let mut now: BTreeMap<&str, MergedService> = BTreeMap::new();
    let mut aggregate = Aggregate::new(None);
    for (epoch, cluster) in (1..).zip(["east", "west", "north"]) {
        aggregate.apply(shard(cluster, epoch).built());
    }
    let mut found = 0;
    for _ in 0..3000 {
        let (epoch, cluster) =
            *[(1, "east"), (2, "west"), (3, "north")].choose(&mut random).expect("one");
        let name = *["web.ns", "db.ns"].choose(&mut random).expect("one");
        let endpoints = (0..random.random_range(0..6)).map(|_| {
            let mut one = endpoint(&format!(
                "10.0.{}.{}",
                random.random_range(0..2),
                random.random_range(1..6)
            ));
            one.network_label = Some(["n1", "n2"][random.random_range(0..2)].into());
            one.workload = one.workload.filter(|_| random.random_ratio(4, 5));
            one
        });
        let endpoints = endpoints.collect();
        let update = shard(cluster, epoch).with(service(name), endpoints).update();
        let update =
            if random.random_ratio(1, 8) { shard(cluster, epoch).built() } else { update.built() };
        for host in aggregate.apply(update).hosts {
            let name = if host == self::host("web.ns") { "web.ns" } else { "db.ns" };
            let new = aggregate.merge(&host, &ByLabelOrAddress);
            claims.replace(now.get(name), new.as_ref());
            match new {
                Some(new) => now.insert(name, new),
                None => now.remove(name),
            };
        }
        let before: Vec<_> = claims.shared().iter().map(|(_, address, _)| address).collect();
        let again = claims.settle(Clone::clone);
        let all = claims.shared().iter();
        let all: Vec<_> = all
            .map(|(network, address, claimants)| (network.clone(), address, claimants.to_vec()))
            .collect();
        let services: Vec<_> = now.values().cloned().collect();
        assert_eq!(all, shared_by_force(&services));
        let after: BTreeSet<_> = all.iter().map(|(_, address, _)| *address).collect();
        let appeared = after.iter().filter(|address| !before.contains(address));
        let disappeared = before.iter().filter(|address| !after.contains(address));
        assert!(appeared.chain(disappeared).all(|address| again.addresses.contains(address)));
        found += all.len();
    }
    assert!(found > 1000, "{found}");
    // Claims of removed services must not remain.
    let names: Vec<_> = now.keys().copied().collect();
    for name in names {
        claims.replace(now.remove(name).as_ref(), None);
    }
    claims.settle(Clone::clone);
    assert!(claims.shared().is_empty());
    assert_eq!(claims.counted(), 0);
}

/// Returns an endpoint that names no pod.
fn nameless(address: &str, pod: PodState) -> Endpoint {
    Endpoint {
        workload: None,
        service_account: None,
        tls_mode: TlsMode::Disabled,
        pod,
        ..endpoint(address)
    }
}

/// Returns a pod with the identity `sa` that accepts mTLS.
fn identified(name: &str, address: &str, sa: &str) -> (WorkloadKey, Workload) {
    let (key, pod) = workload(name, address, &[("app", "web")]);
    let profile = Profile {
        identity: format!("spiffe://cluster.local/ns/ns/sa/{sa}").into(),
        tls_mode: TlsMode::Istio,
        ..Profile::clone(&pod.profile)
    };
    (key, Workload { profile: Arc::new(profile), ..pod })
}

/// Formats the facts of endpoints that depend on their pods.
fn facts_of(service: &MergedService) -> Vec<String> {
    let all = service.endpoints().map(|(key, one, network)| {
        let account = one.service_account.and_then(|id| id.rsplit('/').next()).unwrap_or("-");
        let (cluster, health) = (&key.cluster, one.health.as_str());
        format!("{cluster} {} {network} {account} {health} {:?}", one.address, one.pod)
    });
    all.collect()
}

#[test]
fn endpoint_at_the_address_of_another_clusters_pod_takes_its_facts() {
    let mut aggregate = Aggregate::new(None);
    let east = || {
        shard("east", 1).network("n").with(
            service("web.ns"),
            vec![nameless("10.2.0.1", PodState::Unnamed), nameless("10.9.9.9", PodState::Unnamed)],
        )
    };
    aggregate.apply(east().built());
    let facts = |aggregate: &Aggregate| facts_of(&merged(aggregate, "web.ns").expect("merged"));
    let alone = ["east 10.2.0.1 n - healthy Unnamed", "east 10.9.9.9 n - healthy Unnamed"];
    assert_eq!(facts(&aggregate), alone);

    let west = |sa: &str| shard("west", 1).network("n").pod(identified("a-1.ns", "10.2.0.1", sa));
    let touched = aggregate.apply(west("app").built());
    assert_eq!(touched.hosts, [host("web.ns")].into(), "a pod came");
    assert_eq!(facts(&aggregate)[0], "east 10.2.0.1 n app healthy Unnamed");
    let web = merged(&aggregate, "web.ns").expect("merged");
    let found = web.shards[0].endpoints.first().expect("an endpoint");
    assert_eq!((found.tls_mode, found.labels.map(|all| all.len())), (TlsMode::Istio, Some(1)));
    assert_eq!(facts(&aggregate)[1], alone[1]);

    let touched = aggregate.apply(west("other").update().built());
    assert_eq!(touched.hosts, [host("web.ns")].into(), "a pod changed");
    assert_eq!(facts(&aggregate)[0], "east 10.2.0.1 n other healthy Unnamed");
    let mut unready = shard("west", 1).update().built();
    if let ShardChange::Update(contents) = &mut unready.change {
        let unready = [WorkloadKey::new("ns", "a-1")].into_iter().collect();
        contents.facts = Some(ClusterFacts { unready, ..ClusterFacts::default() });
    }
    let touched = aggregate.apply(unready);
    assert_eq!(touched.hosts, [host("web.ns")].into(), "its readiness changed");
    assert_eq!(facts(&aggregate)[0], "east 10.2.0.1 n other unhealthy Unnamed");

    let touched = aggregate.apply(removed("west", 1));
    assert!(touched.hosts.contains(&host("web.ns")), "its cluster went");
    assert_eq!(facts(&aggregate), alone);
    aggregate.apply(west("app").network("elsewhere").built());
    assert_eq!(facts(&aggregate), alone, "a pod of another network has another address");
    aggregate
        .apply(shard("west", 1).network("n").pod(identified("a-1.b", "10.2.0.1", "x")).built());
    assert_eq!(facts(&aggregate), alone, "a pod of another namespace is not meant");
}

#[test]
fn mirrored_endpoint_is_in_the_network_of_its_pod() {
    let mut aggregate = Aggregate::new(None);
    let mirror = vec![nameless("10.2.0.1", PodState::Mirrored)];
    aggregate.apply(shard("east", 1).network("n1").with(service("web.ns"), mirror).built());
    let facts = |aggregate: &Aggregate| facts_of(&merged(aggregate, "web.ns").expect("merged"));
    assert_eq!(facts(&aggregate), ["east 10.2.0.1 n1 - healthy Mirrored"], "of no member");
    let pod = || identified("a-1.ns", "10.2.0.1", "app");
    aggregate.apply(shard("west", 1).network("n2").pod(pod()).built());
    assert_eq!(facts(&aggregate), ["east 10.2.0.1 n2 app healthy Mirrored"]);
    aggregate.apply(shard("north", 1).network("n3").pod(pod()).built());
    assert_eq!(facts(&aggregate), ["east 10.2.0.1 n1 - healthy Missing"], "which is unknown");
}

#[test]
fn endpoint_that_its_own_cluster_reports_overrides_a_mirror() {
    let mut aggregate = Aggregate::new(None);
    let mirror = vec![nameless("10.2.0.1", PodState::Mirrored), endpoint("10.1.0.1")];
    aggregate.apply(shard("east", 1).network("n1").with(service("web.ns"), mirror).built());
    let unready = Endpoint { health: strait_model::Health::Unhealthy, ..endpoint("10.2.0.1") };
    let west = shard("west", 1).network("n2").with(service("web.ns"), vec![unready]);
    aggregate.apply(west.pod(identified("pod-10.ns", "10.2.0.1", "app")).built());
    let web = merged(&aggregate, "web.ns").expect("merged");
    let expected = ["east 10.1.0.1 n1 app healthy Known", "west 10.2.0.1 n2 app unhealthy Known"];
    assert_eq!(facts_of(&web), expected);
}
