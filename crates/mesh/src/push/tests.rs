mod joins;
mod largest_objects;
mod merging;
mod policy;
mod reach;
mod view_class;

use std::collections::BTreeSet;
use std::sync::Arc;

use super::context::{FixedSettings, PushContext};
use super::event_loop::{MeshEvent, MeshState};
use super::scope::{AffectedResources, ChangeImpact, ProxyLocation};
use super::subscription_index::{ChangedItem, Changes};
use super::view::{
    Assignment, Path, Role, ViewKey, WithheldReason, assignment, decide, service_behind,
};
use crate::testing::settings;
use strait_model::mesh_config::MeshNetworks;
use strait_model::registry::{RegistryUpdate, ShardChange};
use strait_model::testing::{endpoint, host, ip, member, port, removed, service, shard, sidecar};
use strait_model::{
    ClusterFacts, Endpoint, ExportTo, Health, Hostname, KnownCluster, KnownClusters, Locality,
    Mode, PodState, Resolution, TlsMode, WorkloadKey,
};
use strait_rules::traffic::Selection;

/// Reports no effect at any location. It is not used for assignments.
struct SeesNothing;

impl ChangeImpact for SeesNothing {
    fn seen(
        &self,
        _: &Arc<PushContext>,
        _: &Arc<PushContext>,
        _: &BTreeSet<Hostname>,
        locations: &[Arc<ProxyLocation>],
    ) -> Vec<Arc<AffectedResources>> {
        locations.iter().map(|_| Arc::default()).collect()
    }
}

/// Returns a complete mesh after these updates.
fn mesh(updates: Vec<RegistryUpdate>) -> MeshState {
    mesh_of(settings(), updates)
}

fn mesh_of(settings: Arc<FixedSettings>, updates: Vec<RegistryUpdate>) -> MeshState {
    let mut mesh = MeshState::new(settings);
    for update in updates {
        mesh.apply(MeshEvent::Registry(update));
    }
    mesh.apply(MeshEvent::Complete);
    mesh
}

fn context(updates: Vec<RegistryUpdate>) -> Arc<PushContext> {
    mesh(updates).next_version().expect("a first version").0
}

/// Returns updates for: east in n1 with a gateway at .1, west in n2 with a gateway at .2, `web.ns`
/// in both.
fn two_networks(east: Vec<Endpoint>, west: Vec<Endpoint>) -> Vec<RegistryUpdate> {
    let gateway = |network: &str, address: &str| {
        service("gateway.strait-system").gateway_of(network, address)
    };
    vec![
        shard("east", 1)
            .network("n1")
            .with(gateway("n1", "203.0.113.1"), vec![])
            .with(service("web.ns"), east)
            .built(),
        shard("west", 2)
            .network("n2")
            .with(gateway("n2", "203.0.113.2"), vec![])
            .with(service("web.ns"), west)
            .built(),
    ]
}

fn client(network: &str) -> ViewKey {
    ViewKey::of(&sidecar("client.ns", "east"), network.into(), Role::Client)
}

fn assigned(context: &PushContext, view: &ViewKey) -> Assignment {
    assignment(context, view, &context.services[&host("web.ns")], 80)
}

/// Formats every member as `address weight`.
fn members(assignment: &Assignment) -> Vec<String> {
    let members = assignment.localities.iter().flat_map(|group| &group.members);
    members.map(|member| format!("{} {}", member.address, member.weight)).collect()
}

#[test]
fn nothing_is_published_before_the_mesh_is_complete() {
    let mut mesh = MeshState::new(settings());
    mesh.apply(MeshEvent::Registry(shard("east", 1).with(service("web.ns"), vec![]).built()));
    assert!(mesh.next_version().is_none());
    mesh.apply(MeshEvent::Complete);
    assert!(mesh.next_version().is_some());
}

#[test]
fn an_empty_mesh_is_published_once_complete() {
    assert!(context(vec![]).services.is_empty());
}

#[test]
fn gateways_are_probed_with_a_service_that_has_a_ready_endpoint_with_mtls() {
    let plain = Endpoint { tls_mode: TlsMode::Disabled, ..endpoint("10.0.0.1") };
    let unready = Endpoint { health: Health::Unhealthy, ..endpoint("10.0.0.2") };
    let east = shard("east", 1)
        .network("n1")
        .with(service("admin.ns"), vec![plain])
        .with(service("back.ns"), vec![unready])
        .with(service("web.ns"), vec![endpoint("10.0.0.3")])
        .built();
    // Its port has another name than in east, the senior cluster.
    let back = service("back.ns").ports(vec![port("www", 80, 8080)]);
    let named = Endpoint { port_name: "www".into(), ..endpoint("10.1.0.1") };
    let west = shard("west", 2).network("n2").with(back, vec![named]);
    let context = context(vec![east, west.built()]);
    let behind = |network: &str| {
        service_behind(&context, &network.into()).map(|(host, _)| host.as_str().to_owned())
    };
    assert_eq!(behind("n1").as_deref(), Some("web.ns.svc.cluster.local"));
    assert_eq!(behind("n2").as_deref(), Some("back.ns.svc.cluster.local"));
    assert_eq!(behind("n3"), None);
}

#[test]
fn local_endpoints_are_direct_and_remote_endpoints_use_their_gateway() {
    let context = context(two_networks(
        vec![endpoint("10.0.0.1"), endpoint("10.0.0.2")],
        vec![endpoint("10.0.0.1"), endpoint("10.0.0.2"), endpoint("10.0.0.3")],
    ));
    let from_east = assigned(&context, &client("n1"));
    assert_eq!(members(&from_east), ["10.0.0.1 1", "10.0.0.2 1", "203.0.113.2 3"]);
    let from_west = assigned(&context, &client("n2"));
    assert_eq!(members(&from_west), ["10.0.0.1 1", "10.0.0.2 1", "10.0.0.3 1", "203.0.113.1 2"]);
    let from_nowhere = assigned(&context, &client(""));
    assert_eq!(members(&from_nowhere), ["203.0.113.1 2", "203.0.113.2 3"]);
}

#[test]
fn port_is_served_by_every_cluster_under_any_name() {
    let mut renamed = service("web.ns");
    renamed.ports = vec![port("web", 80, 9090)];
    let west_endpoint = Endpoint { port_name: "web".into(), ..endpoint("10.0.0.2") };
    let context = context(vec![
        shard("east", 1).with(service("web.ns"), vec![endpoint("10.0.0.1")]).built(),
        shard("west", 2).with(renamed, vec![west_endpoint]).built(),
    ]);
    assert_eq!(members(&assigned(&context, &client(""))), ["10.0.0.1 1", "10.0.0.2 1"]);
}

#[test]
fn weight_is_split_exactly_over_several_gateways() {
    let mut updates = two_networks(vec![endpoint("10.0.0.1")], vec![endpoint("10.0.0.1"); 1]);
    updates.push(
        shard("west", 2)
            .with(
                {
                    let mut gateway = service("gateway.strait-system");
                    gateway = gateway.gateway_of("n2", "203.0.113.2");
                    gateway.external_addresses.push("203.0.113.3".into());
                    gateway
                },
                vec![],
            )
            .update()
            .built(),
    );
    let split = assigned(&context(updates), &client("n1"));
    assert_eq!(members(&split), ["10.0.0.1 2", "203.0.113.2 1", "203.0.113.3 1"]);
}

#[test]
fn gateway_is_listed_once_in_the_locality_with_most_weight() {
    let in_zone = |address: &str, zone: &str| Endpoint {
        locality: Arc::new(Locality::parse(&format!("r/{zone}"))),
        ..endpoint(address)
    };
    let west = vec![in_zone("10.0.0.1", "a"), in_zone("10.0.0.2", "b"), in_zone("10.0.0.3", "b")];
    let context = context(two_networks(vec![in_zone("10.0.0.1", "a")], west));
    let assignment = assigned(&context, &client("n1"));
    let shape: Vec<_> = assignment
        .localities
        .iter()
        .map(|group| {
            let members = group.members.iter().map(|m| (m.address.to_string(), m.weight));
            (group.locality.to_string(), members.collect::<Vec<_>>())
        })
        .collect();
    let expected = [
        ("r/a".to_owned(), vec![("10.0.0.1".to_owned(), 1)]),
        ("r/b".to_owned(), vec![("203.0.113.2".to_owned(), 3)]),
    ];
    assert_eq!(shape, expected);
}

#[test]
fn weights_beyond_32_bits_keep_their_proportion() {
    let heavy = |address: &str| Endpoint { weight: u32::MAX, ..endpoint(address) };
    let east = vec![heavy("10.0.0.1"), heavy("10.0.0.2"), endpoint("10.0.0.3")];
    let assignment = assigned(&context(two_networks(east, vec![])), &client("n1"));
    let weights: Vec<u64> = assignment
        .localities
        .iter()
        .flat_map(|group| &group.members)
        .map(|m| m.weight.into())
        .collect();
    assert!(weights.iter().sum::<u64>() <= u32::MAX.into());
    assert_eq!(weights[0], weights[1]);
    assert_eq!(weights[2], 1);
}

#[test]
fn each_reason_withholds_at_its_own_step() {
    let plain = || Endpoint { tls_mode: TlsMode::Disabled, ..endpoint("10.0.0.9") };
    // The expected decision: the reason for withholding, or the number of gateways (`None` for
    // direct access).
    type Decided = Result<Option<usize>, WithheldReason>;
    let cases: Vec<(&str, Endpoint, &str, Decided)> = vec![
        ("local", endpoint("10.0.0.9"), "n2", Ok(None)),
        ("local plain text", plain(), "n2", Ok(None)),
        ("remote", endpoint("10.0.0.9"), "n1", Ok(Some(1))),
        ("remote plain text", plain(), "n1", Err(WithheldReason::PlainText)),
        (
            "unready",
            Endpoint { health: Health::Unhealthy, ..plain() },
            "n1",
            Err(WithheldReason::NotReady(Health::Unhealthy)),
        ),
        (
            "terminating",
            Endpoint { health: Health::Terminating, ..endpoint("10.0.0.9") },
            "n2",
            Err(WithheldReason::NotReady(Health::Terminating)),
        ),
        (
            "before its pod",
            Endpoint { pod: PodState::Missing, ..plain() },
            "n1",
            Err(WithheldReason::PodMissing),
        ),
        ("other family", endpoint("fd00::1"), "n2", Err(WithheldReason::EndpointFamily)),
        ("other family behind a gateway", endpoint("fd00::1"), "n1", Ok(Some(1))),
        ("without an address", endpoint("0.0.0.0"), "n2", Err(WithheldReason::NoAddress)),
        ("without an address behind a gateway", endpoint("0.0.0.0"), "n1", Ok(Some(1))),
    ];
    for (case, endpoint, network, expected) in cases {
        let context = context(two_networks(vec![], vec![endpoint]));
        let web = &context.services[&host("web.ns")];
        let (shard, endpoint, endpoint_network) = web.endpoints().next().expect("one endpoint");
        let decided = decide(&context, &client(network), web, shard, endpoint, endpoint_network);
        let decided = decided.map(|way| match way {
            Path::Direct => None,
            Path::Gateways(gateways) => Some(gateways.len()),
        });
        assert_eq!(decided, expected, "{case}");
    }
}

#[test]
fn endpoints_in_a_network_without_a_gateway_are_withheld() {
    let updates = vec![
        shard("east", 1).network("n1").with(service("web.ns"), vec![]).built(),
        shard("west", 2).network("n3").with(service("web.ns"), vec![endpoint("10.0.0.1")]).built(),
    ];
    let context = context(updates);
    assert!(members(&assigned(&context, &client("n1"))).is_empty());
    let web = &context.services[&host("web.ns")];
    let (shard, endpoint, network) = web.endpoints().next().expect("one endpoint");
    let decided = decide(&context, &client("n1"), web, shard, endpoint, network);
    assert_eq!(decided, Err(WithheldReason::NoGateway));
}

#[test]
fn pods_of_a_headless_service_are_reached_only_in_their_own_network() {
    let mut updates = two_networks(vec![endpoint("10.0.0.1")], vec![endpoint("10.0.0.2")]);
    for update in &mut updates {
        let ShardChange::Reset(contents) = &mut update.change else { panic!("the first word") };
        let web = contents.services.get_mut(&host("web.ns")).and_then(Option::as_mut);
        Arc::make_mut(&mut web.expect("in both clusters").service).resolution =
            Resolution::Headless;
    }
    let context = context(updates);
    // A client of a headless service has no assignment; a request for one has the same result.
    assert_eq!(members(&assigned(&context, &client("n1"))), ["10.0.0.1 1"]);
    let web = &context.services[&host("web.ns")];
    let (shard, endpoint, network) = web.endpoints().last().expect("two endpoints");
    let decided = decide(&context, &client("n1"), web, shard, endpoint, network);
    assert_eq!(decided, Err(WithheldReason::HeadlessElsewhere));
    // A gateway balances the endpoints in the same network for connections that arrive.
    let gateway = ViewKey { role: Role::Gateway, ..client("n2") };
    assert_eq!(members(&assigned(&context, &gateway)), ["10.0.0.2 1"]);
}

#[test]
fn gateway_of_another_cluster_is_used_if_the_address_family_is_unsupported() {
    let mut updates = two_networks(vec![], vec![endpoint("10.0.0.2")]);
    updates.push(
        shard("south", 3)
            .network("n2")
            .with(service("gateway.strait-system").gateway_of("n2", "2001:db8::2"), vec![])
            .with(service("web.ns"), vec![endpoint("10.0.0.3")])
            .built(),
    );
    let context = context(updates);
    assert_eq!(members(&assigned(&context, &client("n1"))), ["203.0.113.2 2"]);
    let six = ViewKey { ipv4: false, ipv6: true, ..client("n1") };
    assert_eq!(members(&assigned(&context, &six)), ["2001:db8::2 2"]);
}

/// Returns the endpoints of a dual-stack pod, one from each slice.
fn dual_stack(name: &str, ipv4: &str, ipv6: &str) -> [Endpoint; 2] {
    let pod = Arc::new(WorkloadKey::new("ns", name));
    [ipv4, ipv6].map(|address| Endpoint { workload: Some(Arc::clone(&pod)), ..endpoint(address) })
}

#[test]
fn dual_stack_pod_is_one_endpoint_with_an_additional_address() {
    let east = [
        dual_stack("a", "10.0.0.1", "fd00::1").to_vec(),
        dual_stack("b", "10.0.0.2", "fd00::2").to_vec(),
        vec![endpoint("10.0.0.3"), endpoint("fd00::4")],
    ];
    let context = context(two_networks(east.concat(), vec![]));
    let shown = |view: &ViewKey| -> Vec<String> {
        let assignment = assigned(&context, view);
        let members = assignment.localities.iter().flat_map(|group| &group.members);
        let shown = members.map(|one| match one.additional {
            Some(additional) => format!("{} {additional} {}", one.address, one.weight),
            None => format!("{} {}", one.address, one.weight),
        });
        shown.collect()
    };
    let both = ViewKey { ipv4: true, ipv6: true, ..client("n1") };
    let expected = ["10.0.0.1 fd00::1 1", "10.0.0.2 fd00::2 1", "10.0.0.3 1", "fd00::4 1"];
    assert_eq!(shown(&both), expected);
    let four = ViewKey { ipv6: false, ..both.clone() };
    assert_eq!(shown(&four), ["10.0.0.1 1", "10.0.0.2 1", "10.0.0.3 1"]);
    let six = ViewKey { ipv4: false, ..both };
    assert_eq!(shown(&six), ["fd00::1 1", "fd00::2 1", "fd00::4 1"]);
}

#[test]
fn dual_stack_pod_counts_once_behind_a_gateway() {
    let west = [
        dual_stack("a", "10.0.0.1", "fd00::1"),
        // The slice of one family reports readiness before the other.
        dual_stack("b", "10.0.0.2", "fd00::2"),
    ];
    let mut west = west.concat();
    west[2].health = Health::Unhealthy;
    let east = dual_stack("c", "10.0.0.3", "fd00::3").to_vec();
    let context = context(two_networks(east, west));
    for (ipv4, ipv6) in [(true, true), (true, false)] {
        let view = ViewKey { ipv4, ipv6, ..client("n1") };
        assert_eq!(members(&assigned(&context, &view)), ["10.0.0.3 1", "203.0.113.2 2"]);
    }
}

#[test]
fn fixed_network_moves_the_gateway_of_the_cluster() {
    let mut mesh = mesh(two_networks(vec![endpoint("10.0.0.1")], vec![endpoint("10.0.0.2")]));
    mesh.next_version();
    let fixed = member(Some("n9"));
    let clusters = KnownClusters { clusters: [("west".into(), fixed)].into() };
    mesh.apply(MeshEvent::Clusters(Arc::new(clusters)));
    let (context, _) = mesh.next_version().expect("a change");
    assert_eq!(members(&assigned(&context, &client("n1"))), ["10.0.0.1 1", "203.0.113.2 1"]);
    assert_eq!(members(&assigned(&context, &client("n9"))), ["10.0.0.2 1", "203.0.113.1 1"]);
    assert_eq!(context.networks.ignored_claims().len(), 2, "of the namespace and the Service");
    mesh.apply(MeshEvent::Clusters(Arc::default()));
    let (context, _) = mesh.next_version().expect("a change");
    assert!(context.networks.ignored_claims().is_empty());
    assert_eq!(context.networks.of_network(&"n2".into()).len(), 1);
}

#[test]
fn endpoints_behind_gateways_without_pods_are_withheld_until_a_pod_is_ready() {
    let mut mesh = mesh(two_networks(vec![endpoint("10.0.0.1")], vec![endpoint("10.0.0.2")]));
    mesh.next_version();
    let mut report = |unserved: bool| {
        let mut facts = ClusterFacts::default();
        facts.note_unserved(WorkloadKey::new("strait-system", "gateway"), unserved);
        let mut update = shard("west", 2).update().built();
        if let ShardChange::Update(contents) = &mut update.change {
            contents.facts = Some(facts);
        }
        mesh.apply(MeshEvent::Registry(update));
        mesh.next_version().expect("a change").0
    };
    let context = report(true);
    assert_eq!(members(&assigned(&context, &client("n1"))), ["10.0.0.1 1"]);
    let web = &context.services[&host("web.ns")];
    let (shard, endpoint, network) = web.endpoints().last().expect("two endpoints");
    let decided = decide(&context, &client("n1"), web, shard, endpoint, network);
    assert_eq!(decided, Err(WithheldReason::GatewayUnserved));
    let context = report(false);
    assert_eq!(members(&assigned(&context, &client("n1"))), ["10.0.0.1 1", "203.0.113.2 1"]);
}

#[test]
fn draining_cluster_is_removed_from_load_balancing() {
    let mut mesh = mesh(two_networks(vec![endpoint("10.0.0.1")], vec![endpoint("10.0.0.2")]));
    mesh.next_version();
    let draining = KnownCluster { mode: Mode::Drain, ..member(None) };
    let clusters = KnownClusters { clusters: [("west".into(), draining)].into() };
    mesh.apply(MeshEvent::Clusters(Arc::new(clusters)));
    let (context, changes) = mesh.next_version().expect("a change");
    assert!(changes.is_everything());
    assert_eq!(members(&assigned(&context, &client("n1"))), ["10.0.0.1 1"]);
    assert!(members(&assigned(&context, &client("n2"))).iter().all(|one| one.contains("203.0")));
}

#[test]
fn gateway_receives_only_ready_mtls_endpoints_of_its_own_network() {
    let plain = Endpoint { tls_mode: TlsMode::Disabled, ..endpoint("10.0.0.8") };
    let context =
        context(two_networks(vec![endpoint("10.0.0.1"), plain], vec![endpoint("10.0.0.2")]));
    let gateway = ViewKey { role: Role::Gateway, ..client("n1") };
    assert_eq!(members(&assigned(&context, &gateway)), ["10.0.0.1 1"]);
}

#[test]
fn service_exported_to_its_namespace_is_invisible_elsewhere() {
    let mut private = service("web.ns");
    private.export_to = ExportTo::parse(".", &"ns".into());
    let updates = vec![shard("east", 1).with(private, vec![endpoint("10.0.0.1")]).built()];
    let context = context(updates);
    assert_eq!(members(&assigned(&context, &client(""))), ["10.0.0.1 1"]);
    let other_view = ViewKey { namespace: "other".into(), ..client("") };
    assert!(members(&assigned(&context, &other_view)).is_empty());
    let gateway = ViewKey { role: Role::Gateway, ..client("") };
    assert!(members(&assigned(&context, &gateway)).is_empty());
}

#[test]
fn service_not_exported_to_all_namespaces_does_not_cross_networks() {
    let mut updates = two_networks(vec![endpoint("10.0.0.1")], vec![endpoint("10.0.0.2")]);
    for update in &mut updates {
        let ShardChange::Reset(contents) = &mut update.change else { panic!("the first word") };
        let web = contents.services.get_mut(&host("web.ns")).and_then(Option::as_mut);
        let web = web.expect("in both clusters");
        Arc::make_mut(&mut web.service).export_to = ExportTo::parse(".", &"ns".into());
    }
    let context = context(updates);
    // A gateway has no filter chain for it, so a connection to the gateway would fail.
    assert_eq!(members(&assigned(&context, &client("n1"))), ["10.0.0.1 1"]);
    let web = &context.services[&host("web.ns")];
    let (shard, endpoint, network) = web.endpoints().last().expect("two endpoints");
    let decided = decide(&context, &client("n1"), web, shard, endpoint, network);
    assert_eq!(decided, Err(WithheldReason::NotCarried));
}

#[test]
fn changes_list_exactly_what_changed() {
    let mut mesh = mesh(two_networks(vec![endpoint("10.0.0.1")], vec![]));
    mesh.next_version();
    let more = vec![endpoint("10.0.0.1"), endpoint("10.0.0.2")];
    let update_endpoints =
        |endpoints| shard("east", 1).with(service("web.ns"), endpoints).update().built();
    mesh.apply(MeshEvent::Registry(update_endpoints(more.clone())));
    let (_, changes) = mesh.next_version().expect("a change");
    let expected = Changes::for_endpoints([host("web.ns")]);
    assert_eq!(changes, expected);
    mesh.apply(MeshEvent::Registry(update_endpoints(more)));
    assert!(mesh.next_version().is_none(), "the same again");
    mesh.apply(MeshEvent::Registry(
        shard("east", 1).with(service("new.ns").vip("10.1.0.1"), vec![]).update().built(),
    ));
    assert!(!mesh.next_version().expect("a change").1.services().is_empty());
}

/// If a cluster has the service without a selector, the pods that its endpoints name serve the
/// service. These pods must be notified, whichever cluster is merged first.
#[test]
fn endpoints_without_a_selector_are_a_definition_in_any_cluster() {
    let by_hand = |address: &str| {
        let service = service("web.ns").with(|service| service.selector = Default::default());
        shard("west", 2).with(service, vec![endpoint(address)])
    };
    let east = shard("east", 1).with(service("web.ns"), vec![endpoint("10.0.0.1")]);
    let mut mesh = mesh(vec![east.built(), by_hand("10.1.0.1").built()]);
    mesh.next_version();
    mesh.apply(MeshEvent::Registry(by_hand("10.1.0.2").update().built()));
    assert!(!mesh.next_version().expect("a change").1.services().is_empty());
}

#[test]
fn removed_cluster_loses_its_gateway_and_endpoints() {
    let mut mesh = mesh(two_networks(vec![endpoint("10.0.0.1")], vec![endpoint("10.0.0.2")]));
    mesh.next_version();
    mesh.apply(MeshEvent::Registry(removed("west", 2)));
    let (context, changes) = mesh.next_version().expect("a change");
    assert!(changes.is_everything());
    assert_eq!(members(&assigned(&context, &client("n1"))), ["10.0.0.1 1"]);
    assert!(context.networks.gateways_for(&"n2".into(), &"west".into()).is_empty());
}

#[test]
fn version_shares_unchanged_parts_with_the_previous_version() {
    let mut mesh = mesh(two_networks(vec![endpoint("10.0.0.1")], vec![]));
    let (before, _) = mesh.next_version().expect("a first version");
    let update = shard("east", 1).with(service("new.ns"), vec![]).update().built();
    mesh.apply(MeshEvent::Registry(update));
    let (after, _) = mesh.next_version().expect("a second version");
    let web = host("web.ns");
    assert!(Arc::ptr_eq(&before.services[&web], &after.services[&web]));
    assert!(Arc::ptr_eq(&before.networks, &after.networks));
    assert_eq!(after.version, before.version + 1);
}

#[test]
fn own_vip_is_used_and_conflicting_borrowed_vip_is_dropped() {
    let updates = vec![
        shard("east", 1)
            .with(service("a.ns").vip("10.1.0.1"), vec![])
            .with(service("both.ns").vip("10.1.0.2"), vec![])
            .built(),
        shard("west", 2)
            .with(service("b.ns").vip("10.1.0.1"), vec![])
            .with(service("both.ns").vip("10.2.0.2"), vec![])
            .with(service("c.ns").vip("10.2.0.3"), vec![])
            .built(),
    ];
    let context = context(updates);
    let found = super::addresses::addresses(
        &context,
        &"east".into(),
        (&"ns".into(), &Selection::default()),
        (true, false),
    );
    let addresses: Vec<_> = found
        .services
        .iter()
        .map(|(service, vips)| {
            let addresses: Vec<_> = vips.iter().map(|vip| vip.address).collect();
            (service.primary.name.to_string(), addresses)
        })
        .collect();
    let expected = [
        ("a".to_owned(), vec![ip("10.1.0.1")]),
        ("b".to_owned(), vec![]),
        ("both".to_owned(), vec![ip("10.1.0.2")]),
        ("c".to_owned(), vec![ip("10.2.0.3")]),
    ];
    assert_eq!(addresses, expected);
    assert_eq!(found.dropped.len(), 1);
    assert_eq!(found.dropped[0].holder, host("a.ns"));
    assert_eq!(found.dropped[0].holder_cluster.as_str(), "east");
    // A cluster without a VIP for either service receives the first cluster's,
    // and they are not reported as its own.
    let north = super::addresses::addresses(
        &context,
        &"north".into(),
        (&"ns".into(), &Selection::default()),
        (true, false),
    );
    let [dropped] = north.dropped.as_slice() else { panic!("{:?}", north.dropped) };
    assert_eq!((dropped.holder_cluster.as_str(), dropped.vip_source.as_str()), ("east", "west"));
}

#[test]
fn projected_view_receives_the_same_assignment_as_the_full_view() {
    let mut updates = two_networks(vec![endpoint("10.0.0.1")], vec![endpoint("10.0.0.2")]);
    updates.push(shard("north", 3).with(service("web.ns"), vec![endpoint("10.0.0.3")]).built());
    let context = context(updates);
    let web = &context.services[&host("web.ns")];
    let mut shared = BTreeSet::new();
    for network in ["n1", "n2", "", "~", "n4", "n5"] {
        for role in [Role::Client, Role::Gateway] {
            let full = ViewKey { role, ..client(network) };
            let projected = full.projected(&context, web);
            assert_eq!(assigned(&context, &projected), assigned(&context, &full), "{full:?}");
            shared.insert(projected);
        }
    }
    // Three networks with endpoints, and one key for all other networks.
    assert_eq!(shared.len(), 2 * 4);
}

#[test]
fn rounding_gateway_weights_changes_shares_by_less_than_3_points() {
    for behind in (1..40_u8).chain([64, 99, 250]) {
        let remote: Vec<_> = (0..behind).map(|last| endpoint(&format!("10.1.0.{last}"))).collect();
        let local: Vec<_> = (0..20).map(|last| endpoint(&format!("10.0.0.{last}"))).collect();
        let context = context(two_networks(local, remote));
        let assignment = assigned(&context, &client("n1"));
        let weights: Vec<u32> = assignment.localities[0].members.iter().map(|m| m.weight).collect();
        let (gateway, direct) = weights.split_last().expect("a gateway at the end");
        let share = |gateway: u32, direct: u32| f64::from(gateway) / f64::from(gateway + direct);
        let given = share(*gateway, direct.iter().sum());
        assert!((given - share(behind.into(), 20)).abs() < 0.03, "{behind}: {weights:?}");
        if behind <= 16 {
            assert_eq!(*gateway, u32::from(behind));
        }
    }
}

#[test]
fn changed_accounts_affect_upstream_clusters_but_no_definition() {
    let mut mesh = mesh(two_networks(vec![endpoint("10.0.0.1")], vec![]));
    let definitions = mesh.next_version().expect("a first version").0.definitions;
    let other =
        Endpoint { service_account: Some("spiffe://x/ns/y/sa/z".into()), ..endpoint("10.0.0.1") };
    let update = shard("east", 1).with(service("web.ns"), vec![other]).update();
    mesh.apply(MeshEvent::Registry(update.built()));
    let (context, changes) = mesh.next_version().expect("a change");
    let web = host("web.ns");
    assert_eq!(
        changes,
        [ChangedItem::Accounts(web.clone()), ChangedItem::Endpoints(web)].into_iter().collect()
    );
    assert!(context.definitions > definitions, "upstream clusters name them");
}

#[test]
fn removed_mesh_networks_assign_no_network() {
    let mut mesh =
        mesh(vec![shard("east", 1).with(service("web.ns"), vec![endpoint("10.7.0.1")]).built()]);
    let network = |mesh: &mut MeshState| {
        let (context, _) = mesh.next_version().expect("something else");
        let web = &context.services[&host("web.ns")];
        web.endpoints().map(|(_, _, network)| network.to_string()).collect::<String>()
    };
    let text = "networks:\n  n1: {endpoints: [{fromCidr: 10.0.0.0/8}]}\n";
    let networks = MeshNetworks::parse(text).expect("valid");
    mesh.apply(MeshEvent::MeshNetworks(Arc::new(networks)));
    assert_eq!(network(&mut mesh), "n1");
    mesh.apply(MeshEvent::MeshNetworks(Arc::default()));
    assert_eq!(network(&mut mesh), "");
}

/// Returns for each step whether the accounts of `web.ns`, which itself names `named`, change.
fn accounts_change(named: &[&str], steps: Vec<Vec<Endpoint>>) -> Vec<bool> {
    let web = || {
        service("web.ns").with(|web| {
            web.service_accounts = named.iter().map(|id| (*id).into()).collect();
        })
    };
    let mut mesh = mesh(vec![shard("east", 1).with(web(), vec![endpoint("10.0.0.1")]).built()]);
    mesh.next_version();
    let step = |endpoints| {
        mesh.apply(MeshEvent::Registry(shard("east", 1).update().with(web(), endpoints).built()));
        let (_, changes) = mesh.next_version().expect("endpoints changed");
        let Changes { deps, .. } = changes;
        assert!(
            deps.iter()
                .all(|dep| matches!(dep, ChangedItem::Accounts(_) | ChangedItem::Endpoints(_)))
        );
        deps.iter().any(|dep| matches!(dep, ChangedItem::Accounts(_)))
    };
    steps.into_iter().map(step).collect()
}

#[test]
fn unready_pods_keep_their_accounts() {
    let in_health = |health| vec![Endpoint { health, ..endpoint("10.0.0.1") }];
    let steps = [Health::Unhealthy, Health::Terminating, Health::Healthy].map(in_health);
    assert_eq!(accounts_change(&[], steps.into()), [false, false, false]);
}

#[test]
fn accounts_named_on_a_service_outlive_its_pods() {
    let steps = || vec![vec![], vec![endpoint("10.0.0.2")]];
    let named = ["spiffe://cluster.local/ns/ns/sa/app"];
    assert_eq!(accounts_change(&named, steps()), [false, false]);
    // The previous account is unknown (docs/contributing/decisions/0017-accounts-at-zero.md).
    assert_eq!(accounts_change(&[], steps()), [true, true]);
}

#[test]
fn changed_target_port_does_not_change_endpoints() {
    let web = |target| service("web.ns").with(|it| it.ports = vec![port("http", 80, target)]);
    let update = |target| shard("east", 1).update().with(web(target), vec![endpoint("10.0.0.1")]);
    let mut mesh = mesh(vec![shard("east", 1).with(web(8080), vec![endpoint("10.0.0.1")]).built()]);
    mesh.next_version();
    mesh.apply(MeshEvent::Registry(update(9090).built()));
    let (_, changes) = mesh.next_version().expect("a change");
    assert_eq!(changes, [ChangedItem::Definition(host("web.ns"))].into_iter().collect());
}
