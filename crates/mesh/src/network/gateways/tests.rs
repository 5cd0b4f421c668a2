use super::*;
use crate::network::ResolvedName;
use strait_model::testing::member;
use strait_model::{Definition, ExportTo, Hostname, Labels, Resolution, TargetPort};

fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

fn port(name: &str, number: u16) -> Port {
    let protocol = Protocol::of_port("TCP", None, name, number);
    Port { name: name.into(), number, protocol, target: TargetPort::Number(number) }
}

/// Returns a service `gw.ns` with these external addresses and without a gateway label.
fn plain(addresses: &[&str]) -> Service {
    let mut service = Service::from(Definition {
        hostname: Hostname::of_kubernetes_service("gw", "ns", "cluster.local"),
        name: "gw".into(),
        namespace: "ns".into(),
        ports: vec![port("tls", 15443)],
        resolution: Resolution::ClientSide,
        ranges: Vec::new(),
        labels: Labels::new(),
        selector: Labels::new(),
        service_accounts: Vec::new(),
        export_to: ExportTo::Public,
        node_local: false,
        prefers: Default::default(),
        sharing: Default::default(),
        named_pods: Default::default(),
        affinity_seconds: None,
        mesh_external: false,
    });
    service.external_addresses = addresses.iter().map(|address| Arc::from(*address)).collect();
    service
}

/// Returns the same service, labelled as a gateway of `network`.
fn gateway_of(network: &str, addresses: &[&str]) -> Service {
    let mut service = plain(addresses);
    service.labels.insert(NETWORK_LABEL.into(), network.into());
    service
}

fn build(services: &[(&str, Service)], mesh: &str, names: &ResolvedNames) -> Networks {
    build_with(services, mesh, names, KnownClusters::default(), &[], &[])
}

/// Builds the networks, with members, labels of system namespaces, and dead gateways.
fn build_with(
    services: &[(&str, Service)],
    mesh: &str,
    names: &ResolvedNames,
    clusters: KnownClusters,
    labels: &[(&str, &str)],
    dead: &[&str],
) -> Networks {
    let (policy, more) = (Policy::default(), (clusters, labels, dead));
    build_by(services, mesh, names, &policy, more)
}

/// Builds networks with a policy.
fn build_by(
    services: &[(&str, Service)],
    mesh: &str,
    names: &ResolvedNames,
    policy: &Policy,
    (clusters, labels, dead): (KnownClusters, &[(&str, &str)], &[&str]),
) -> Networks {
    let services: Vec<_> =
        services.iter().map(|(id, service)| (ClusterId::from(*id), service)).collect();
    let labels = labels.iter().map(|(id, label)| ((*id).into(), (*label).into())).collect();
    let mesh = MeshNetworks::parse(mesh).expect("valid mesh networks");
    let inputs = Inputs {
        clusters: &clusters,
        namespace_labels: &labels,
        mesh: &mesh,
        policy,
        names,
        facts: &[],
        dead: &dead.iter().map(|address| (ip(address), 15443)).collect(),
    };
    Networks::build(services.iter().map(|(id, service)| (id, *service)), inputs)
}

/// Returns members whose Secret fixes their network.
fn fixed(members: &[(&str, &str)]) -> KnownClusters {
    let members = members.iter().map(|(id, network)| ((*id).into(), member(Some(network))));
    KnownClusters { clusters: members.collect() }
}

/// Formats every gateway as `network address:port cluster`.
fn shown(networks: &Networks) -> Vec<String> {
    let line = |gateway: &ResolvedGateway| {
        let cluster = gateway.cluster.clone().unwrap_or_default();
        format!("{} {}:{} {cluster}", gateway.network, gateway.address, gateway.port)
    };
    networks.iter().map(line).collect()
}

fn pending(networks: &Networks) -> Vec<&str> {
    networks.pending().iter().map(|pending| pending.reason.as_str()).collect()
}

#[test]
fn labelled_service_is_a_gateway_at_each_external_address() {
    let gateway = gateway_of("n1", &["203.0.113.2", "203.0.113.1"]);
    let networks = build(&[("east", gateway)], "", &ResolvedNames::default());
    assert_eq!(shown(&networks), ["n1 203.0.113.1:15443 east", "n1 203.0.113.2:15443 east"]);
    assert_eq!(networks.of_network(&"n1".into()).len(), 2);
    assert!(networks.of_network(&"n0".into()).is_empty());
}

#[test]
fn ports_are_from_the_label_or_the_default_and_external() {
    // Label, service ports, node ports; expected mTLS and HBONE port, both 0 if the service is no
    // gateway, which needs the mTLS port.
    type Case<'a> = (&'a str, &'a [u16], &'a [(u16, u16)], (u16, u16));
    let cases: [Case<'_>; 9] = [
        ("", &[15443], &[], (15443, 0)),
        ("", &[15443, 15008], &[], (15443, 15008)),
        ("", &[15008], &[], (0, 0)),
        ("443", &[443, 15443], &[], (443, 0)),
        ("many", &[15443], &[], (15443, 0)),
        ("0", &[15443], &[], (15443, 0)),
        ("443", &[443], &[(443, 30443)], (30443, 0)),
        ("443", &[443], &[(80, 30080)], (0, 0)),
        ("443", &[15443], &[], (0, 0)),
    ];
    for case in cases {
        let (label, ports, node_ports, expected) = case;
        let mut gateway = gateway_of("n1", &["203.0.113.1"]);
        gateway.labels.insert(GATEWAY_PORT_LABEL.into(), label.into());
        gateway.ports = ports.iter().map(|number| port("tls", *number)).collect();
        gateway.external_ports = node_ports.iter().copied().collect();
        let networks = build(&[("east", gateway)], "", &ResolvedNames::default());
        let found = networks.iter().next().map_or((0, 0), |g| (g.port, g.hbone_port));
        assert_eq!(found, expected, "{case:?}");
        let usable = networks.gateways_for(&"n1".into(), &"east".into()).len();
        assert_eq!(usable, usize::from(expected.0 != 0), "{case:?}");
        assert!(networks.has_any_configured(&"n1".into()), "{case:?}");
    }
    let mut datagrams = gateway_of("n1", &["203.0.113.1"]);
    datagrams.ports[0].protocol = Protocol::Udp;
    let networks = build(&[("east", datagrams)], "", &ResolvedNames::default());
    assert!(shown(&networks).is_empty());
}

#[test]
fn gateway_without_the_mtls_port_is_pending_with_the_reason() {
    for (label, number, reason) in [
        ("", 15008, "it accepts only HBONE"),
        ("", 80, "the Service does not have the mTLS port"),
        ("abc", 443, "label networking.istio.io/gatewayPort \"abc\" is not a port"),
    ] {
        let mut gateway = gateway_of("n1", &["203.0.113.1"]);
        gateway.labels.insert(GATEWAY_PORT_LABEL.into(), label.into());
        gateway.ports = vec![port("tls", number)];
        let networks = build(&[("east", gateway)], "", &ResolvedNames::default());
        let pending = pending(&networks);
        assert!(pending.len() == 1 && pending[0].starts_with(reason), "{pending:?}");
    }
}

#[test]
fn gateway_without_an_address_is_pending() {
    let gateway = gateway_of("n1", &[]);
    let networks = build(&[("east", gateway)], "", &ResolvedNames::default());
    assert!(shown(&networks).is_empty());
    assert_eq!(pending(&networks), ["the Service has no external address yet"]);
    assert!(networks.has_any_configured(&"n1".into()));
    assert!(!networks.has_any_configured(&"n3".into()));
}

#[test]
fn gateways_of_the_cluster_are_used_before_others_of_the_network() {
    let services = [
        ("east", gateway_of("n1", &["203.0.113.1"])),
        ("west", gateway_of("n1", &["203.0.113.2"])),
    ];
    let networks = build(&services, "", &ResolvedNames::default());
    let addresses_for = |cluster: &str| -> Vec<IpAddr> {
        let gateways = networks.gateways_for(&"n1".into(), &cluster.into());
        gateways.iter().map(|gateway| gateway.address).collect()
    };
    assert_eq!(addresses_for("east"), [ip("203.0.113.1")]);
    assert_eq!(addresses_for("north"), [ip("203.0.113.1"), ip("203.0.113.2")]);
}

const BY_SERVICE: &str = "networks:
  n1:
    endpoints: [{fromRegistry: east}]
    gateways:
    - {registryServiceName: gw.ns.svc.cluster.local, port: 443}
    - {address: 203.0.113.9, port: 8443}
  n2:
    gateways:
    - {registryServiceName: gw.ns.svc.cluster.local, port: 443}
";

#[test]
fn mesh_networks_names_gateways_by_address_and_by_service() {
    let services = [("east", plain(&["203.0.113.7"])), ("west", plain(&["203.0.113.8"]))];
    let networks = build(&services, BY_SERVICE, &ResolvedNames::default());
    assert_eq!(shown(&networks), ["n1 203.0.113.7:443 east", "n1 203.0.113.9:8443 "]);
    assert!(pending(&networks)[0].contains("fromRegistry"), "{:?}", pending(&networks));
    assert!(networks.has_any_configured(&"n2".into()));
}

#[test]
fn label_overrides_the_registry_service_name() {
    let services = [("east", gateway_of("n3", &["203.0.113.7"]))];
    let networks = build(&services, BY_SERVICE, &ResolvedNames::default());
    assert_eq!(shown(&networks), ["n1 203.0.113.9:8443 ", "n3 203.0.113.7:15443 east"]);
}

#[test]
fn gateways_of_a_cluster_use_its_fixed_network_and_other_claims_are_reported() {
    let named = "networks:
  n1: {endpoints: [{fromRegistry: west}], gateways: [{registryServiceName: gw.ns.svc.cluster.local, port: 443}]}
  n2: {endpoints: [{fromRegistry: east}]}
";
    let (names, none) = (ResolvedNames::default(), KnownClusters::default);
    let claims = |networks: &Networks| -> Vec<String> {
        let claims = networks.ignored_claims().iter();
        claims.map(|(id, one)| format!("{id}: {} {}", one.claim, one.network)).collect()
    };
    let labelled = [("east", gateway_of("n9", &["203.0.113.7"]))];
    let by_label = build_with(&labelled, named, &names, fixed(&[("east", "n2")]), &[], &[]);
    assert_eq!(shown(&by_label), ["n2 203.0.113.7:15443 east"]);
    assert!(!by_label.has_any_configured(&"n9".into()));
    assert_eq!(claims(&by_label), ["east: label topology.istio.io/network of Service ns/gw n9"]);

    // By a name in mesh networks: with a fixed network other than the configured one, and with the
    // same one.
    let plain = [("west", plain(&["203.0.113.8"]))];
    for fixes in ["n2", "n1"] {
        let label = [("west", "n8")];
        let members = fixed(&[("west", fixes)]);
        let networks = build_with(&plain, named, &names, members, &label, &[]);
        assert_eq!(shown(&networks), [format!("{fixes} 203.0.113.8:443 west")]);
        let mut expected = vec!["west: label topology.istio.io/network of the system namespace n8"];
        if fixes == "n2" {
            expected.push("west: meshNetworks fromRegistry n1");
        }
        assert_eq!(claims(&networks), expected);
    }
    // Without a fixed network, a cluster may have a gateway of a network that it is not in.
    let free = build_with(&labelled, named, &names, none(), &[("east", "n2")], &[]);
    assert_eq!(shown(&free), ["n9 203.0.113.7:15443 east"]);
    assert!(claims(&free).is_empty());
    let agrees = [("east", gateway_of("n2", &["203.0.113.7"]))];
    let agrees = build_with(&agrees, named, &names, fixed(&[("east", "n2")]), &[], &[]);
    assert!(claims(&agrees).is_empty());
}

#[test]
fn registry_service_is_a_gateway_only_of_the_network_of_its_cluster() {
    let claimed_twice = "networks:
  a: {endpoints: [{fromRegistry: east}], gateways: [{registryServiceName: gw.ns.svc.cluster.local, port: 1}]}
  b: {endpoints: [{fromRegistry: east}], gateways: [{registryServiceName: gw.ns.svc.cluster.local, port: 1}]}
";
    let services = [("east", plain(&["203.0.113.7"]))];
    let networks = build(&services, claimed_twice, &ResolvedNames::default());
    assert_eq!(shown(&networks), ["a 203.0.113.7:1 east"]);
}

#[test]
fn gateway_from_two_sources_is_used_once() {
    let twice = "networks: {n1: {gateways: [{address: 203.0.113.1, port: 15443}]}}";
    let services = [("east", gateway_of("n1", &["203.0.113.1", "203.0.113.2"]))];
    let networks = build(&services, twice, &ResolvedNames::default());
    assert_eq!(networks.iter().count(), 3);
    let gateways = networks.gateways_for(&"n1".into(), &"west".into());
    let found: Vec<_> = gateways.iter().map(|g| (g.address, g.cluster.clone())).collect();
    let east = Some(ClusterId::from("east"));
    assert_eq!(found, [(ip("203.0.113.1"), east.clone()), (ip("203.0.113.2"), east)]);
}

#[test]
fn special_addresses_are_accepted_from_mesh_networks_but_not_from_clusters() {
    let gateway = gateway_of(
        "n1",
        &["0.0.0.0", "ff02::1", "127.0.0.1", "169.254.0.1", "64:ff9b::7f00:1", "2002:a9fe:a9fe::"],
    );
    let written = "networks: {n2: {gateways: [{address: 127.0.0.1, port: 15443}]}}";
    let networks = build(&[("east", gateway)], written, &ResolvedNames::default());
    let all: Vec<_> = networks.iter().map(|one| (one.network.as_str(), one.address)).collect();
    assert_eq!(all, [("n2", ip("127.0.0.1"))]);
    assert_eq!(networks.pending().len(), 6);
}

#[test]
fn gateway_name_is_pending_until_it_is_resolved() {
    let services = [("east", gateway_of("n1", &["GW.example.org."]))];
    let networks = build(&services, "", &ResolvedNames::default());
    let names: Vec<&str> = networks.names_to_resolve().iter().map(|name| &**name).collect();
    assert_eq!(names, ["gw.example.org"]);
    assert!(shown(&networks).is_empty());
    assert_eq!(pending(&networks), ["gw.example.org has not been resolved yet"]);

    let with = |answer| [("gw.example.org".into(), answer)].into_iter().collect();
    let answer = ResolvedName {
        addresses: vec![ip("203.0.113.1"), ip("2001:db8::1")],
        ttl: Duration::from_secs(60),
        ..ResolvedName::default()
    };
    let networks = build(&services, "", &with(answer));
    assert_eq!(shown(&networks), ["n1 203.0.113.1:15443 east", "n1 2001:db8::1:15443 east"]);
    assert!(networks.pending().is_empty());

    let unresolved =
        ResolvedName { problem: Some("NXDOMAIN".to_owned()), ..ResolvedName::default() };
    let networks = build(&services, "", &with(unresolved));
    assert_eq!(pending(&networks), ["gw.example.org does not resolve: NXDOMAIN"]);
    assert_eq!(networks.names_to_resolve().len(), 1, "it is still resolved");
    let causes: Vec<_> = networks.pending().iter().map(|one| one.cause).collect();
    assert_eq!(causes, [PendingCause::Unresolved]);
}

#[test]
fn names_of_one_cluster_are_limited_without_affecting_others() {
    let names: Vec<String> = (0..1000).map(|n| format!("{n:04}.example.org")).collect();
    let flood: Vec<&str> = names.iter().map(String::as_str).collect();
    let services =
        [("east", gateway_of("n1", &flood)), ("west", gateway_of("n2", &["west.example.org"]))];
    let mesh = "networks: {n3: {gateways: [{address: own.example.org, port: 1}]}}";
    let networks = build(&services, mesh, &ResolvedNames::default());
    let names = networks.names_to_resolve();
    assert_eq!(names.len(), NAMES_PER_CLUSTER_MAX + 2);
    assert!(names.contains("west.example.org") && names.contains("own.example.org"));
}

#[test]
fn order_of_services_is_irrelevant_and_removed_gateways_disappear() {
    let services = [
        ("east", gateway_of("n1", &["203.0.113.1"])),
        ("west", gateway_of("n2", &["203.0.113.2"])),
    ];
    let mut reversed = services.clone();
    reversed.reverse();
    let names = ResolvedNames::default();
    assert_eq!(build(&services, BY_SERVICE, &names), build(&reversed, BY_SERVICE, &names));
    let mut without = services.clone();
    without[0].1.external_addresses.clear();
    assert_eq!(shown(&build(&without, "", &names)), ["n2 203.0.113.2:15443 west"]);
}

#[test]
fn only_labelled_or_named_services_affect_gateways() {
    let mesh = MeshNetworks::parse(BY_SERVICE).expect("valid mesh networks");
    let none = MeshNetworks::default();
    assert!(Networks::concerns(&gateway_of("n1", &[]), &none));
    assert!(Networks::concerns(&plain(&[]), &mesh));
    assert!(!Networks::concerns(&plain(&[]), &none));
}

#[test]
fn dead_gateways_are_omitted_while_their_network_has_others() {
    let services = [
        ("east", gateway_of("n1", &["203.0.113.1", "203.0.113.2"])),
        ("west", gateway_of("n1", &["203.0.113.3"])),
        ("south", gateway_of("n2", &["203.0.113.4"])),
    ];
    let used = |dead: &[&str]| {
        let networks = build_with(
            &services,
            "",
            &ResolvedNames::default(),
            KnownClusters::default(),
            &[],
            dead,
        );
        assert_eq!(networks.iter().filter(|gateway| gateway.dead).count(), dead.len());
        [("n1", "east"), ("n1", "west"), ("n2", "south")].map(|(network, cluster)| {
            let gateways = networks.gateways_for(&network.into(), &cluster.into());
            let last = gateways.iter().map(|gateway| match gateway.address {
                IpAddr::V4(address) => address.octets()[3],
                IpAddr::V6(_) => 0,
            });
            last.collect::<Vec<_>>()
        })
    };
    assert_eq!(used(&[]), [vec![1, 2], vec![3], vec![4]]);
    assert_eq!(used(&["203.0.113.1"]), [vec![2], vec![3], vec![4]]);
    // A cluster whose own gateways are dead is reached through its network's other gateways.
    assert_eq!(used(&["203.0.113.3"]), [vec![1, 2], vec![1, 2], vec![4]]);
    // The last gateways of a network remain.
    let all = ["203.0.113.1", "203.0.113.2", "203.0.113.3", "203.0.113.4"];
    assert_eq!(used(&all), [vec![1, 2], vec![3], vec![4]]);
}

#[test]
fn service_in_an_unlisted_namespace_is_not_a_gateway() {
    let text = |list: &str| {
        format!("apiVersion: strait.dev/v1\nkind: Policy\ngatewayNamespaces: {list}\n")
    };
    let build = |services: &[(&str, Service)], mesh: &str, list: &str| {
        let policy = Policy::parse(&text(list)).expect("a policy");
        let none = (KnownClusters::default(), &[][..], &[][..]);
        build_by(services, mesh, &ResolvedNames::default(), &policy, none)
    };
    let labelled = [("east", gateway_of("n1", &["1.1.1.1"]))];
    assert_eq!(shown(&build(&labelled, "", "[ns]")).len(), 1);
    let refused = build(&labelled, "", "[istio-system]");
    assert!(shown(&refused).is_empty() && pending(&refused).is_empty());
    let claims: Vec<_> = refused.ignored_claims().iter().map(|(_, one)| &*one.claim).collect();
    assert_eq!(claims, ["gateway service ns/gw: policy gatewayNamespaces"]);
    // The policy does not apply to Services that mesh networks name.
    let mesh = "networks: {n1: {endpoints: [{fromRegistry: east}], gateways: [{registryServiceName: gw.ns.svc.cluster.local, port: 15443}]}}";
    assert_eq!(shown(&build(&[("east", plain(&["1.1.1.1"]))], mesh, "[istio-system]")).len(), 1);
}

#[test]
fn gateway_without_a_pod_is_not_used_and_has_a_reason() {
    let gateways = [
        ("east", gateway_of("n1", &["203.0.113.1"])),
        ("west", gateway_of("n1", &["203.0.113.2"])),
    ];
    let built = |unserved: &[&str]| {
        let facts = |name: &str| ClusterFacts {
            unserved: Arc::new(
                unserved.iter().filter(|one| **one == name).map(|_| key()).collect(),
            ),
            ..Default::default()
        };
        fn key() -> WorkloadKey {
            WorkloadKey::new("ns", "gw")
        }
        let clusters = ["east", "west"].map(|name| (ClusterId::from(name), facts(name)));
        let facts: Vec<_> = clusters.iter().map(|(id, facts)| (id, facts)).collect();
        let inputs = Inputs {
            clusters: &KnownClusters::default(),
            namespace_labels: &BTreeMap::new(),
            mesh: &MeshNetworks::default(),
            policy: &Policy::default(),
            names: &ResolvedNames::default(),
            facts: &facts,
            dead: &BTreeSet::new(),
        };
        let ids = gateways.each_ref().map(|(id, service)| (ClusterId::from(*id), service));
        Networks::build(ids.iter().map(|(id, service)| (id, *service)), inputs)
    };
    assert_eq!(shown(&built(&[])).len(), 2);
    let one = built(&["east"]);
    assert_eq!(shown(&one), ["n1 203.0.113.2:15443 west"]);
    assert_eq!(one.gateways_for(&"n1".into(), &"east".into()).len(), 1, "the other cluster's");
    let none = built(&["east", "west"]);
    assert!(shown(&none).is_empty() && none.has_any_configured(&"n1".into()));
    let unserved =
        |network: &str| none.pending_by(&network.into(), PendingCause::Unserved).next().is_some();
    assert!(unserved("n1") && !unserved("n2"));
    assert_eq!(pending(&none), ["the Service has an external address, but no ready pod"; 2]);
    assert_eq!(none.differing(&built(&[])), [NetworkId::from("n1")].into());
}
