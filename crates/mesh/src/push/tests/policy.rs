//! Policy: refused, withdrawn and preferred endpoints, as proxies receive them and as they are
//! explained.

use serde_json::json;

use super::joins::{entries, labelled_entries};
use super::*;
use strait_model::policy::Policy;
use strait_model::testing::workload;
use strait_model::{ClusterFacts, Hostname, Resolution, SharingFacts, WorkloadKey};

fn parsed(policy: &str) -> Policy {
    let text = format!("apiVersion: strait.dev/v1\nkind: Policy\n{policy}");
    Policy::parse(&text).expect("a sound policy")
}

fn steered(updates: Vec<RegistryUpdate>, policy: &str) -> Arc<PushContext> {
    let mut mesh = mesh(updates);
    mesh.apply(MeshEvent::Policy(Arc::new(parsed(policy))));
    mesh.next_version().expect("a version").0
}

/// Returns updates of clusters in one network, each with these endpoints of `web.ns`.
fn one_network(endpoints: &[(&str, &[&str])]) -> Vec<RegistryUpdate> {
    let mut updates = Vec::new();
    for (at, (cluster, addresses)) in endpoints.iter().enumerate() {
        let endpoints = addresses.iter().map(|address| endpoint(address)).collect();
        let epoch = u64::try_from(at).expect("few") + 1;
        updates.push(shard(cluster, epoch).with(service("web.ns"), endpoints).built());
    }
    updates
}

/// Pods that a ServiceEntry selects in a cluster, and WorkloadEntries of a cluster, are claims of
/// that cluster.
#[test]
fn endpoints_that_entries_select_obey_the_rules_of_their_cluster() {
    let policy = "clusters: {west: {addresses: [10.2.0.0/16]}}\n\
                  owners: [{hosts: [bank.internal], clusters: [east]}]\n";
    let pod = |address| workload("db-0.ns", address, &[("app", "db")]);
    let vm = |name: &str, address: &str| {
        let spec = json!({"address": address, "labels": {"app": "db"}});
        let object = json!({"metadata": {"name": name, "namespace": "ns"}, "spec": spec});
        (WorkloadKey::new("ns", name), Arc::new(object))
    };
    let vms = [vm("far", "10.3.0.1"), vm("self", "127.0.0.1")];
    let facts = ClusterFacts { entries: Arc::new(vms.into()), ..ClusterFacts::default() };
    let mut west = shard("west", 2).pod(pod("10.2.0.1")).built();
    if let ShardChange::Reset(contents) = &mut west.change {
        contents.facts = Some(facts);
    }
    let mut mesh = mesh(vec![shard("east", 1).pod(pod("10.0.0.1")).built(), west]);
    mesh.apply(MeshEvent::Policy(Arc::new(parsed(policy))));
    let entry = |host: &str, location: &str| {
        let spec = json!({"hosts": [host], "ports": [{"name": "tcp", "number": 80}],
            "location": location, "resolution": "STATIC",
            "workloadSelector": {"labels": {"app": "db"}}});
        ("ServiceEntry", host.split('.').next().expect("a word").to_owned(), spec)
    };
    let all = [
        entry("inside.internal", "MESH_INTERNAL"),
        entry("outside.internal", "MESH_EXTERNAL"),
        entry("bank.internal", "MESH_INTERNAL"),
    ];
    let all: Vec<_> =
        all.iter().map(|(kind, name, spec)| (*kind, name.as_str(), spec.clone())).collect();
    mesh.apply(entries(&all));
    let context = mesh.next_version().expect("a version").0;
    let passed = |host: &str| {
        let merged = &context.services[&Hostname::from(host)];
        let all = merged.endpoints_of_port(80).filter(|(shard, endpoint, network)| {
            decide(&context, &client_in("east"), merged, shard, *endpoint, network).is_ok()
        });
        all.map(|(_, endpoint, _)| endpoint.address.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(passed("inside.internal"), ["10.0.0.1", "10.2.0.1"]);
    assert_eq!(passed("outside.internal"), ["10.0.0.1", "10.2.0.1"]);
    assert_eq!(passed("bank.internal"), ["10.0.0.1"]);
}

fn client_in(cluster: &str) -> ViewKey {
    ViewKey::of(&sidecar("client.ns", cluster), "".into(), Role::Client)
}

/// Formats each group as `priority: address weight, …`.
fn groups(context: &PushContext, view: &ViewKey) -> Vec<String> {
    let groups = assigned(context, view).localities.into_iter().map(|group| {
        let members: Vec<_> =
            group.members.iter().map(|one| format!("{} {}", one.address, one.weight)).collect();
        format!("{}: {}", group.priority, members.join(", "))
    });
    groups.collect()
}

/// Returns every endpoint with the reason for withholding it, if any.
fn decided(context: &PushContext, view: &ViewKey) -> Vec<(String, Option<WithheldReason>)> {
    let merged = &context.services[&host("web.ns")];
    let all = merged.endpoints_of_port(80).map(|(shard, endpoint, network)| {
        let decided = decide(context, view, merged, shard, endpoint, network);
        (endpoint.address.to_string(), decided.err())
    });
    all.collect()
}

/// Returns why the endpoint at `address` is withheld.
fn refusal(context: &PushContext, view: &ViewKey, address: &str) -> WithheldReason {
    let found = decided(context, view).into_iter().find(|(one, _)| one == address);
    found.and_then(|(_, reason)| reason).expect("it is there, and withheld")
}

/// Checks that the assignment contains exactly the endpoints that are not withheld.
fn agree(context: &PushContext, view: &ViewKey) {
    let groups = assigned(context, view).localities;
    let members = groups.iter().flat_map(|group| &group.members);
    let mut sent: Vec<_> = members.map(|one| one.address.to_string()).collect();
    let passed = decided(context, view).into_iter().filter(|(_, reason)| reason.is_none());
    let mut displayed: Vec<_> = passed.map(|(address, _)| address).collect();
    sent.sort();
    displayed.sort();
    assert_eq!(sent, displayed);
}

#[test]
fn cluster_that_may_not_export_a_name_serves_only_itself() {
    let mut unexported = service("web.ns");
    unexported.ports = vec![port("http", 80, 9999)];
    unexported.export_to = ExportTo::parse("ns", &"ns".into());
    let foreign = Endpoint {
        service_account: Some("spiffe://cluster.local/ns/ns/sa/thief".into()),
        ..endpoint("10.0.0.1")
    };
    let updates = vec![
        shard("east", 1).with(unexported, vec![foreign]).built(),
        shard("west", 2).with(service("web.ns"), vec![endpoint("10.0.0.2")]).built(),
    ];
    let context = steered(updates, "owners: [{namespaces: [ns], clusters: [west]}]");
    let merged = &context.services[&host("web.ns")];
    assert_eq!(
        merged.primary.export_to,
        ExportTo::Public,
        "the owner decides, regardless of the order"
    );
    assert!(merged.service_accounts.iter().all(|account| !account.contains("thief")));
    assert_eq!(groups(&context, &client_in("west")), ["0: 10.0.0.2 1"]);
    assert_eq!(groups(&context, &client_in("north")), ["0: 10.0.0.2 1"]);
    assert_eq!(groups(&context, &client_in("east")), ["0: 10.0.0.1 1, 10.0.0.2 1"]);
    assert_eq!(refusal(&context, &client_in("west"), "10.0.0.1"), WithheldReason::ExportRefused);
    let gateway = ViewKey { role: Role::Gateway, ..client_in("east") };
    assert_eq!(groups(&context, &gateway), ["0: 10.0.0.2 1"], "and no gateway forwards it");
    for cluster in ["east", "west", "north"] {
        agree(&context, &client_in(cluster));
    }
}

#[test]
fn special_addresses_and_addresses_outside_the_ranges_are_withheld() {
    let addresses = ["10.1.0.1", "10.2.0.1", "127.0.0.1", "169.254.169.254"];
    let context = steered(one_network(&[("east", &addresses)]), "");
    assert_eq!(
        groups(&context, &client_in("east")),
        ["0: 10.1.0.1 1, 10.2.0.1 1"],
        "without any rule"
    );
    assert_eq!(refusal(&context, &client_in("east"), "127.0.0.1"), WithheldReason::AddressRefused);
    agree(&context, &client_in("east"));

    let policy = "clusters: {east: {addresses: [10.1.0.0/16]}}";
    let context = steered(one_network(&[("east", &addresses), ("west", &["10.2.0.9"])]), policy);
    assert_eq!(groups(&context, &client_in("west")), ["0: 10.1.0.1 1, 10.2.0.9 1"]);
    assert_eq!(refusal(&context, &client_in("west"), "10.2.0.1"), WithheldReason::AddressRefused);
    agree(&context, &client_in("west"));
}

#[test]
fn refused_network_claim_is_ignored() {
    let strayed = Endpoint { network_label: Some("n2".into()), ..endpoint("10.0.0.9") };
    let mut updates = two_networks(vec![endpoint("10.0.0.1"), strayed], vec![endpoint("10.0.0.2")]);
    let thief = service("thief.strait-system").gateway_of("n2", "203.0.113.66");
    updates.push(shard("north", 3).network("n3").with(thief, vec![]).built());
    let before = steered(updates.clone(), "");
    assert_eq!(before.networks.of_network(&"n2".into()).len(), 2);
    assert_eq!(members(&assigned(&before, &client("n2"))).len(), 3, "10.0.0.9 is in n2");
    let policy = "clusters: {east: {networks: [n1]}, north: {networks: [n3]}}";
    let context = steered(updates, policy);
    assert_eq!(members(&assigned(&context, &client("n2"))), ["10.0.0.2 1", "203.0.113.1 1"]);
    let gateways: Vec<_> =
        context.networks.of_network(&"n2".into()).iter().map(|one| one.address).collect();
    assert_eq!(gateways, [ip("203.0.113.2")]);
    assert_eq!(refusal(&context, &client("n2"), "10.0.0.9"), WithheldReason::NetworkRefused);
    let (cluster, claim) = context.networks.ignored_claims().first().expect("it is shown");
    assert_eq!((cluster.as_str(), claim.network.as_str()), ("north", "n2"));
    assert!(claim.claim.contains("clusters.north.networks"), "{}", claim.claim);
}

#[test]
fn endpoints_of_an_unreachable_cluster_are_withdrawn_with_the_reason() {
    let updates = one_network(&[("east", &["10.0.0.1"]), ("west", &["10.0.0.2"])]);
    let mut mesh = mesh(updates);
    mesh.next_version();
    let why = "unreachable for more than 900s (policy mesh.whenDark)";
    let dark = KnownCluster { withdrawn: Some(why.into()), ..member(None) };
    let clusters = KnownClusters { clusters: [("west".into(), dark)].into() };
    mesh.apply(MeshEvent::Clusters(Arc::new(clusters)));
    let (context, _) = mesh.next_version().expect("a change");
    assert_eq!(groups(&context, &client_in("east")), ["0: 10.0.0.1 1"]);
    assert_eq!(refusal(&context, &client_in("east"), "10.0.0.2"), WithheldReason::ClusterDark);
}

#[test]
fn tiers_of_a_preference_become_priorities_without_gaps() {
    let policy = "preferences:
  - name: home
    services: {namespaces: [ns]}
    order: [own cluster, north, any other]";
    let all: &[(&str, &[&str])] =
        &[("east", &["10.0.0.1"]), ("north", &["10.0.0.3"]), ("west", &["10.0.0.2"])];
    let context = steered(one_network(all), policy);
    let expected = ["0: 10.0.0.1 1", "1: 10.0.0.3 1", "2: 10.0.0.2 1"];
    assert_eq!(groups(&context, &client_in("east")), expected);
    assert_eq!(
        groups(&context, &client_in("north")),
        ["0: 10.0.0.3 1", "1: 10.0.0.1 1, 10.0.0.2 1"]
    );
    assert_eq!(
        groups(&context, &client_in("else")),
        ["0: 10.0.0.3 1", "1: 10.0.0.1 1, 10.0.0.2 1"]
    );
    let empty = one_network(&[("east", &[]), ("north", &["10.0.0.3"]), ("west", &["10.0.0.2"])]);
    let context = steered(empty, policy);
    assert_eq!(groups(&context, &client_in("east")), ["0: 10.0.0.3 1", "1: 10.0.0.2 1"]);
    // Views with different assignments share no encoded assignment.
    let service = &context.services[&host("web.ns")];
    let projected = |cluster| client_in(cluster).projected(&context, service);
    assert_ne!(projected("east"), projected("west"));
}

#[test]
fn weights_of_a_tier_do_not_depend_on_the_number_of_endpoints() {
    let policy = "preferences:
  - name: canary
    services: {hosts: [web.ns.svc.cluster.local]}
    order: [{east: 90, west: 10}]";
    let east = ["10.0.0.1"];
    let west = ["10.0.1.1", "10.0.1.2", "10.0.1.3", "10.0.1.4"];
    let weights = |updates: Vec<RegistryUpdate>, view: &ViewKey| {
        let context = steered(updates, policy);
        let found = assigned(&context, view);
        let groups = found.localities.into_iter().flat_map(|group| group.members);
        let mut sums = (0_u64, 0_u64);
        for one in groups {
            let is_west =
                one.address.to_string().starts_with("10.0.1.") || one.address == ip("203.0.113.2");
            let sum = if is_west { &mut sums.1 } else { &mut sums.0 };
            *sum += u64::from(one.weight);
        }
        sums
    };
    let close = |(east, west): (u64, u64)| {
        let share = west as f64 / (east + west) as f64;
        assert!((0.099..0.101).contains(&share), "{east} to {west}");
    };
    close(weights(one_network(&[("east", &east), ("west", &west)]), &client_in("north")));
    let ends = |all: &[&str]| all.iter().map(|one| endpoint(one)).collect::<Vec<_>>();
    close(weights(two_networks(ends(&east), ends(&west)), &client("n1")));
    // The only cluster in a tier gets all traffic, with unchanged weights.
    let alone = one_network(&[("west", &west)]);
    assert_eq!(weights(alone, &client_in("north")), (0, 4));
}

#[test]
fn gateway_for_several_tiers_is_listed_in_the_first() {
    let policy = "preferences:
  - name: order
    services: {namespaces: [ns]}
    order: [south, west]";
    let mut updates = two_networks(vec![], vec![endpoint("10.0.0.2")]);
    updates.push(
        shard("south", 3)
            .network("n2")
            .with(service("web.ns"), vec![endpoint("10.0.0.3"), endpoint("10.0.0.4")])
            .built(),
    );
    let context = steered(updates, policy);
    // South has no gateway, so the network's gateway serves both south and west.
    assert_eq!(groups(&context, &client("n1")), ["0: 203.0.113.2 2"]);
}

/// Two clusters with `web.ns`; east states `facts` about it and is the older one.
fn east_states(facts: SharingFacts) -> Vec<RegistryUpdate> {
    let mut east = service("web.ns").vip("10.1.0.1");
    east.sharing = facts;
    east.resolution = Resolution::Headless;
    let west = service("web.ns").vip("10.2.0.1");
    vec![
        shard("east", 1).with(east, vec![endpoint("10.0.0.1")]).built(),
        shard("west", 2).with(west, vec![endpoint("10.0.0.2")]).built(),
    ]
}

#[test]
fn service_that_a_cluster_keeps_local_is_only_available_to_its_proxies_and_decides_nothing() {
    let label = SharingFacts { label: Some(false), ..SharingFacts::default() };
    let none = SharingFacts::default();
    for (facts, policy, east_is_local) in [
        (none, "", false),
        (label, "", true),
        (none, "sharing: {clusters: {east: {default: local}}}", true),
        (label, "sharing: {default: shared, istioGlobal: honour}", true),
        (SharingFacts { scope: Some(false), ..none }, "", false),
        (SharingFacts { scope: Some(false), ..none }, "sharing: {istioGlobal: honour}", true),
    ] {
        let context = steered(east_states(facts), policy);
        let merged = &context.services[&host("web.ns")];
        let received = |cluster: &str| {
            let all = merged.endpoints_of_port(80).filter(|(shard, endpoint, network)| {
                decide(&context, &client_in(cluster), merged, shard, *endpoint, network).is_ok()
            });
            all.map(|(shard, ..)| shard.cluster.to_string()).collect::<Vec<_>>()
        };
        let first = merged.shards.first().map(|shard| shard.key.cluster.as_str());
        if east_is_local {
            assert_eq!(received("west"), ["west"], "{facts:?} {policy}");
            assert_eq!(received("east").len(), 2, "{facts:?} {policy}");
            assert_eq!(first, Some("west"), "it decides nothing");
        } else {
            assert_eq!(received("west").len(), 2, "{facts:?} {policy}");
            assert_eq!(first, Some("east"));
        }
    }
}

#[test]
fn entry_that_is_not_shared_applies_to_proxies_of_the_config_cluster_only() {
    for (label, config_cluster, is_local) in
        [("false", Some("hub"), true), ("true", Some("hub"), false), ("false", None, false)]
    {
        let config_cluster = config_cluster.map(strait_model::ClusterId::from);
        let settings = FixedSettings { config_cluster, ..(*settings()).clone() };
        let pod = shard("east", 1).pod(workload("db-0.ns", "10.0.0.1", &[("app", "db")])).built();
        let mut mesh = mesh_of(Arc::new(settings), vec![shard("hub", 2).built(), pod]);
        let entry = |host: &str, more: serde_json::Value| {
            let mut spec = json!({"hosts": [host], "ports": [{"name": "tcp", "number": 80}],
                "location": "MESH_INTERNAL", "resolution": "STATIC"});
            let fields = spec.as_object_mut().expect("an object");
            fields.extend(more.as_object().expect("fields").clone());
            ("ServiceEntry", host.split('.').next().expect("a word").to_owned(), spec)
        };
        let all = [
            entry("listed.internal", json!({"endpoints": [{"address": "192.0.2.1"}]})),
            entry("selected.internal", json!({"workloadSelector": {"labels": {"app": "db"}}})),
        ];
        let all: Vec<_> =
            all.iter().map(|(kind, name, spec)| (*kind, name.as_str(), spec.clone())).collect();
        mesh.apply(labelled_entries(&json!({"strait.dev/share": label}), &all));
        let context = mesh.next_version().expect("a version").0;
        for host in ["listed.internal", "selected.internal"] {
            let merged = &context.services[&Hostname::from(host)];
            let has = |cluster: &str| {
                let passes = merged.endpoints_of_port(80).any(|(shard, endpoint, network)| {
                    decide(&context, &client_in(cluster), merged, shard, endpoint, network).is_ok()
                });
                (context.shows(merged, &"ns".into(), &cluster.into()), passes)
            };
            assert_eq!(has("hub"), (true, true), "{host} {label}");
            assert_eq!(has("east"), (!is_local, !is_local), "{host} {label}");
        }
    }
}
