//! Clusters that disagree on a service or claim the same address: which cluster decides, and what
//! proxies receive.

use super::*;
use crate::push::addresses::addresses;
use strait_model::{ClusterId, Protocol, Service};
use strait_rules::traffic::Selection;

/// Returns the event in which these clusters are members since the given times; 0 means an
/// unknown time.
fn since(clusters: &[(&str, i64)]) -> MeshEvent {
    let cluster =
        |created| KnownCluster { created: (created > 0).then_some(created), ..member(None) };
    let clusters = clusters.iter().map(|(id, created)| ((*id).into(), cluster(*created)));
    MeshEvent::Clusters(Arc::new(KnownClusters { clusters: clusters.collect() }))
}

fn aged(clusters: &[(&str, i64)], updates: Vec<RegistryUpdate>) -> Arc<PushContext> {
    let mut mesh = mesh(updates);
    mesh.apply(since(clusters));
    mesh.next_version().expect("a first version").0
}

fn at_port(number: u16, target: u16, name: &str) -> Service {
    service("web.ns").with(|web| web.ports = vec![port(name, number, target)])
}

fn serving(address: &str, target: u16, name: &str) -> Endpoint {
    Endpoint { port: target, port_name: name.into(), ..endpoint(address) }
}

fn view(cluster: &str) -> ViewKey {
    ViewKey::of(&sidecar("client.ns", cluster), "".into(), Role::Client)
}

fn sockets(context: &PushContext, view: &ViewKey, number: u16) -> Vec<String> {
    let groups = assignment(context, view, &context.services[&host("web.ns")], number).localities;
    let members = groups.iter().flat_map(|group| &group.members);
    members.map(|member| format!("{}:{}", member.address, member.port)).collect()
}

/// Regression test: a newly added cluster with an old `web` replaced the port of all other
/// clusters, because its ID sorts first.
#[test]
fn ports_are_merged_and_endpoints_are_found_by_number_then_name() {
    let updates = vec![
        shard("b-old", 1)
            .with(at_port(9080, 9080, "http"), vec![serving("10.0.0.1", 9080, "http")])
            .built(),
        shard("a-new", 2)
            .with(at_port(80, 8080, "http"), vec![serving("10.0.0.2", 8080, "http")])
            .built(),
        shard("c-new", 3)
            .with(at_port(7000, 7000, "tcp"), vec![serving("10.0.0.3", 7000, "tcp")])
            .built(),
    ];
    let context = aged(&[("b-old", 1), ("a-new", 2), ("c-new", 3)], updates);
    let web = &context.services[&host("web.ns")];
    let numbers: Vec<_> = web.ports().map(|port| port.number).collect();
    assert_eq!(numbers, [9080, 80, 7000]);
    let by_name = ["10.0.0.1:9080", "10.0.0.2:8080"];
    assert_eq!(sockets(&context, &view("b-old"), 9080), by_name);
    assert_eq!(sockets(&context, &view("b-old"), 80), by_name);
    assert_eq!(sockets(&context, &view("b-old"), 7000), ["10.0.0.3:7000"]);
}

/// Under a name of the set, traffic goes only to clusters that expose exactly that port (KEP-1645).
#[test]
fn endpoints_of_a_name_of_the_set_are_found_by_number_only() {
    let name = Hostname::from("web.ns.svc.clusterset.local");
    let of_set =
        |number, target| at_port(number, target, "http").with(|web| web.hostname = name.clone());
    let updates = vec![
        shard("old", 1).with(of_set(42, 4242), vec![serving("10.0.0.1", 4242, "http")]).built(),
        shard("new", 2).with(of_set(43, 4343), vec![serving("10.0.0.2", 4343, "http")]).built(),
    ];
    let context = aged(&[("old", 1), ("new", 2)], updates);
    let web = &context.services[&name];
    let found = |number| -> Vec<String> {
        let endpoints = web.endpoints_of_port(number);
        endpoints.map(|(_, one, _)| one.address.to_string()).collect()
    };
    assert_eq!((found(42), found(43)), (vec!["10.0.0.1".into()], vec!["10.0.0.2".into()]));
}

#[test]
fn older_cluster_decides_a_differing_port_except_for_the_others_proxies() {
    let updates = |ids: [&str; 2]| {
        let [one, other] = ids;
        vec![
            shard(one, 1).with(at_port(80, 8080, "tcp"), vec![]).built(),
            shard(other, 2).with(at_port(80, 8080, "http"), vec![]).built(),
        ]
    };
    for (ages, decides) in [
        ([("east", 1), ("west", 2)], Protocol::Tcp),
        ([("east", 2), ("west", 1)], Protocol::Http),
        // With equal or unknown ages, the ID decides.
        ([("east", 3), ("west", 3)], Protocol::Tcp),
        ([("east", 0), ("west", 0)], Protocol::Tcp),
        ([("east", 0), ("west", 9)], Protocol::Http),
    ] {
        let context = aged(&ages, updates(["east", "west"]));
        let web = &context.services[&host("web.ns")];
        let protocol_in =
            |cluster: &str| web.port_in(&cluster.into(), 80).map(|port| port.protocol);
        assert_eq!(protocol_in("north"), Some(decides), "{ages:?}");
        assert_eq!(
            (protocol_in("east"), protocol_in("west")),
            (Some(Protocol::Tcp), Some(Protocol::Http))
        );
        let conflict = &web.conflicts[0];
        let winner = if decides == Protocol::Tcp { "east" } else { "west" };
        assert_eq!((conflict.field, conflict.winner.as_str()), ("ports", winner));
    }
}

/// The config cluster decides, even if its Secret is the youngest.
#[test]
fn config_cluster_precedes_older_clusters() {
    let settings = FixedSettings { config_cluster: Some("hub".into()), ..(*settings()).clone() };
    let updates = vec![
        shard("a", 1).with(at_port(80, 8080, "tcp"), vec![]).built(),
        shard("hub", 2).with(at_port(80, 8080, "http"), vec![]).built(),
    ];
    let mut mesh = mesh_of(Arc::new(settings), updates);
    mesh.apply(since(&[("a", 1)]));
    let (context, _) = mesh.next_version().expect("a first version");
    let web = &context.services[&host("web.ns")];
    assert_eq!(web.port(80).map(|port| port.protocol), Some(Protocol::Http));
}

/// Formats the services and their VIPs at a port as `name: address…`, for proxies of this cluster.
fn reached(context: &PushContext, cluster: &str, number: u16) -> Vec<String> {
    let all =
        addresses(context, &cluster.into(), (&"ns".into(), &Selection::default()), (true, true));
    let shown = |(service, vips): &(
        Arc<crate::aggregate::MergedService>,
        Vec<crate::push::addresses::Vip>,
    )| {
        let vips: Vec<_> =
            vips.iter().filter(|vip| vip.has(number)).map(|vip| vip.address.to_string()).collect();
        format!("{}: {}", service.primary.name, vips.join(" "))
    };
    all.services.iter().map(shown).collect()
}

#[test]
fn borrowed_vip_is_assigned_by_port_in_merging_order() {
    let at = |name: &str, created: i64, ports: &[(&str, u16)]| {
        service(name).vip("10.1.0.1").with(|one| {
            one.created = created;
            one.ports = ports.iter().map(|(name, number)| port(name, *number, 1)).collect();
        })
    };
    let updates = |first: &str, second: &str| {
        vec![
            shard("home", 1).with(service("client.ns"), vec![]).built(),
            shard(first, 2).with(at("old.ns", 9, &[("tcp", 80), ("tcp-b", 81)]), vec![]).built(),
            // The younger cluster's service is the older object, and its ID may sort first.
            shard(second, 3).with(at("new.ns", 1, &[("tcp", 80), ("tcp-b", 82)]), vec![]).built(),
        ]
    };
    for (first, second) in [("east", "west"), ("west", "east")] {
        let context = aged(&[("home", 1), (first, 2), (second, 3)], updates(first, second));
        assert_eq!(reached(&context, "home", 80), ["client: ", "new: ", "old: 10.1.0.1"]);
        // At a port that only the other service has, the VIP belongs to it.
        assert!(reached(&context, "home", 82).contains(&"new: 10.1.0.1".to_owned()));
        // In its own cluster, the own VIP comes first.
        let own = reached(&context, second, 80);
        assert_eq!(own, ["client: ", "new: 10.1.0.1", "old: "]);
        let lost = addresses(
            &context,
            &"home".into(),
            (&"ns".into(), &Selection::default()),
            (true, true),
        )
        .dropped;
        assert_eq!(lost.len(), 1, "{lost:?}");
        assert_eq!((&lost[0].hostname, &lost[0].holder), (&host("new.ns"), &host("old.ns")));
    }
}

fn pods_of(clusters: &[(&str, &[&str])]) -> Vec<RegistryUpdate> {
    let update = |(epoch, (cluster, addresses)): (u64, &(&str, &[&str]))| {
        let endpoints = addresses.iter().map(|address| endpoint(address)).collect();
        shard(cluster, epoch).with(service("web.ns"), endpoints).built()
    };
    (1..).zip(clusters).map(update).collect()
}

const AGES: [(&str, i64); 3] = [("old", 1), ("new", 2), ("third", 3)];

#[test]
fn shared_address_is_each_clusters_own_and_the_older_clusters_elsewhere() {
    let updates = pods_of(&[
        ("old", &["10.0.0.1", "10.0.0.2"]),
        ("new", &["10.0.0.1", "10.0.0.3"]),
        ("third", &["10.0.0.4"]),
    ]);
    let context = aged(&AGES, updates);
    let web = &context.services[&host("web.ns")];
    let given = |cluster: &str| {
        let view = view(cluster);
        let mut given = Vec::new();
        for (shard, one, network) in web.endpoints_of_port(80) {
            let decided = decide(&context, &view, web, shard, one, network);
            if decided == Err(WithheldReason::SameAddress) {
                given.push(format!("not {} of {}", one.address, shard.cluster));
            } else {
                assert_eq!(decided, Ok(Path::Direct));
            }
        }
        given
    };
    assert_eq!(given("old"), ["not 10.0.0.1 of new"]);
    assert_eq!(given("new"), ["not 10.0.0.1 of old"]);
    assert_eq!(given("third"), ["not 10.0.0.1 of new"]);
    // The encoded assignment agrees with the explanation.
    for cluster in ["old", "new", "third"] {
        let all = ["10.0.0.1 1", "10.0.0.2 1", "10.0.0.3 1", "10.0.0.4 1"];
        assert_eq!(members(&assigned(&context, &view(cluster))), all);
        let projected = view(cluster).projected(&context, web);
        assert_eq!(projected.cluster, ClusterId::from(cluster));
    }
}

#[test]
fn address_claims_follow_pods_networks_and_ages() {
    let mut mesh = mesh(pods_of(&[("old", &["10.0.0.1"]), ("new", &["10.0.0.2"])]));
    mesh.apply(since(&AGES));
    let shared = |mesh: &mut MeshState| {
        let (context, _) = mesh.next_version().expect("a change");
        let all = context.same_addresses.iter();
        all.map(|(network, address, claimants)| format!("{network}/{address} {claimants:?}"))
            .collect::<Vec<_>>()
    };
    let report = |cluster: &str, epoch, endpoints| {
        MeshEvent::Registry(
            shard(cluster, epoch).with(service("web.ns"), endpoints).update().built(),
        )
    };
    assert!(shared(&mut mesh).is_empty());
    // The same pod behind two ports and two services counts as one.
    let twice = vec![endpoint("10.0.0.1"), serving("10.0.0.1", 9, "other")];
    mesh.apply(report("new", 2, twice));
    assert_eq!(shared(&mut mesh), [r#"/10.0.0.1 ["old", "new"]"#]);
    mesh.apply(report("new", 2, vec![endpoint("10.0.0.1")]));
    assert_eq!(shared(&mut mesh), [r#"/10.0.0.1 ["old", "new"]"#]);
    // The cluster that is older now gets the address.
    mesh.apply(since(&[("old", 5), ("new", 2)]));
    assert_eq!(shared(&mut mesh), [r#"/10.0.0.1 ["new", "old"]"#]);
    // An endpoint that cannot receive traffic, or is no pod, claims no address.
    let unready = Endpoint { health: Health::Unhealthy, ..endpoint("10.0.0.1") };
    mesh.apply(report("new", 2, vec![unready]));
    assert!(shared(&mut mesh).is_empty());
    let draining = Endpoint { health: Health::Draining, ..endpoint("10.0.0.1") };
    mesh.apply(report("new", 2, vec![draining]));
    assert_eq!(shared(&mut mesh).len(), 1);
    let named = Endpoint { workload: None, ..endpoint("10.0.0.1") };
    mesh.apply(report("new", 2, vec![named]));
    assert!(shared(&mut mesh).is_empty());
    mesh.apply(report("new", 2, vec![endpoint("10.0.0.1")]));
    assert_eq!(shared(&mut mesh).len(), 1);
    // A different network for either cluster resolves the conflict.
    let elsewhere =
        shard("new", 2).network("n2").with(service("web.ns"), vec![endpoint("10.0.0.1")]);
    mesh.apply(MeshEvent::Registry(elsewhere.built()));
    assert!(shared(&mut mesh).is_empty());
}
