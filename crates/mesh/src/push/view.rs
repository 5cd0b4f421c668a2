//! Decides which endpoints of a service one proxy may reach, by which path, and why.
//!
//! This is the only place for this decision. EDS encodes the result of [`assignment`] and `explain`
//! prints the result of [`decide`], so they cannot disagree. The steps are evaluated in the order
//! of [`WithholdingStep`]; the first failing step withholds the endpoint.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

pub use super::assignment::{Assignment, AssignmentGroup, AssignmentMember, TelemetryOrigin};
use super::assignment::{EndpointSocket, Remote};
use super::context::PushContext;
use super::locality_rule::LocalityRule;
pub use super::reason::{WithheldReason, WithholdingStep};
use super::subset::SubsetFilter;
use super::telemetry_origins::Origins;
pub use super::traffic_weights::preference;
pub use super::view_key::{Role, ViewDependencies, ViewKey, is_by_node};
use super::weights::{fit, weigh};
use super::{locality_priority, locality_rule};
use crate::aggregate::{Bar, MergedService, ShardEndpoints};
use crate::network::ResolvedGateway;
use strait_model::policy::Rank;
use strait_model::registry::ShardKey;
use strait_model::{
    ClusterId, Definition, Distribution, EndpointGroup, EndpointMetadata, EndpointRef, ExportTo,
    Health, Hostname, Locality, Mode, NO_ADDRESS, Namespace, NetworkId, PackedEndpoint, PodState,
    Port, Protocol, Resolution, TlsMode,
};

/// The path to an endpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Path<'a> {
    /// Directly to the endpoint's address.
    Direct,
    /// Through any of these gateways; never empty.
    Gateways(Vec<&'a ResolvedGateway>),
}

/// Returns whether gateways forward the service to other networks: it is in the mesh, its endpoints
/// are sent by the control plane, it is not cluster-local, and it is exported to all namespaces.
/// (docs/reference/interface.md, "Networks".)
pub fn is_exported(context: &PushContext, service: &MergedService) -> bool {
    let Definition { export_to, mesh_external, resolution, .. } = &*service.primary.definition;
    *export_to == ExportTo::Public
        && !mesh_external
        && !matches!(resolution, Resolution::ByName(_) | Resolution::Passthrough)
        && !context.mesh.cluster_local(service.hostname())
}

/// Returns a service and its port to which a gateway of `network` forwards a connection, for probes
/// of the gateway: the first one with an endpoint there that is ready and accepts mTLS.
///
/// A gateway closes connections to a service without such an endpoint, like a gateway that fails.
pub fn service_behind<'a>(
    context: &'a PushContext,
    network: &NetworkId,
) -> Option<(&'a Hostname, u16)> {
    let exported = context.services.values().filter(|service| is_exported(context, service));
    let shards = exported.flat_map(|service| service.shards.iter().map(move |one| (service, one)));
    shards.filter(|(_, shard)| shard.networks().contains(network)).find_map(|(service, shard)| {
        let mut serving = shard.iter().filter(|(endpoint, place)| {
            *place == network
                && endpoint.health == Health::Healthy
                && endpoint.tls_mode == TlsMode::Istio
        });
        // Clusters may name the port differently.
        serving.find_map(|(endpoint, _)| {
            let ports = &mut shard.service.ports.iter();
            let port = ports.find(|port| port.name == *endpoint.port_name)?;
            (port.protocol != Protocol::Udp).then_some((service.hostname(), port.number))
        })
    })
}

/// Returns the gateways through which a proxy reaches endpoints of `cluster` in another network.
pub(super) fn reachable_gateways<'a>(
    context: &'a PushContext,
    view: &ViewKey,
    network: &NetworkId,
    cluster: &ClusterId,
) -> Vec<&'a ResolvedGateway> {
    let reachable = |gateways: &'a [ResolvedGateway]| -> Vec<&'a ResolvedGateway> {
        gateways.iter().filter(|gateway| view.supports_address(gateway.address)).collect()
    };
    let gateways = reachable(context.networks.gateways_for(network, cluster));
    // Other gateways of the network also replace gateways of an unsupported address family.
    if gateways.is_empty() { reachable(context.networks.all_for(network)) } else { gateways }
}

/// Decides about one endpoint of `service` that `shard` contributes and that is in `network`.
///
/// # Errors
/// Returns the reason why the endpoint is withheld.
pub fn decide<'a>(
    context: &'a PushContext,
    view: &ViewKey,
    service: &MergedService,
    shard: &ShardKey,
    endpoint: EndpointRef<'_>,
    network: &NetworkId,
) -> Result<Path<'a>, WithheldReason> {
    let own = service.shards.iter().find(|one| one.key == *shard);
    let local = context.mesh.cluster_local(service.hostname())
        || own.is_some_and(|own| own.sharing.is_local);
    let EndpointRef { health, pod, tls_mode, address, node, .. } = endpoint;
    let spot = Spot {
        network,
        bar: context.bar(shard, network, address),
        claimants: context.claimants(shard, network, endpoint),
    };
    let reach = Reach::new(context, view, service, local, shard, spot);
    let (ipv4, located) = (address.is_ipv4(), address != NO_ADDRESS);
    let tls_mode = view.role.tls_mode(tls_mode);
    match reach.decide(Traits { health, pod, tls_mode, ipv4, located, node })? {
        Via::Direct => Ok(Path::Direct),
        Via::Gateways => Ok(Path::Gateways(reach.gateways)),
    }
}

/// The network of endpoints of a shard, and the obstacles that apply to all of them.
struct Spot<'s> {
    network: &'s NetworkId,
    bar: Option<Bar>,
    /// The clusters whose pods have the endpoints' addresses, if there are several.
    claimants: Option<&'s Arc<[ClusterId]>>,
}

/// The part of the decision that is common to all endpoints of one shard in one network, so
/// that little remains to be decided for each endpoint.
struct Reach<'a, 'v> {
    /// Why the whole cluster is removed from load balancing, if it is.
    withdrawn: Option<WithheldReason>,
    barred: Option<WithheldReason>,
    /// The rank that the policy assigns.
    rank: Rank,
    exported: Result<(), WithheldReason>,
    nodes: Nodes<'v>,
    ipv4: bool,
    ipv6: bool,
    path: Result<Via, WithheldReason>,
    /// Why endpoints that do not accept mTLS are withheld, if they are.
    needs_mtls: Option<WithheldReason>,
    gateways: Vec<&'a ResolvedGateway>,
}

/// The nodes whose endpoints may be sent (`internalTrafficPolicy`).
#[derive(Clone, Copy)]
enum Nodes<'v> {
    Any,
    Only(&'v Arc<str>),
    None,
}

impl<'v> Nodes<'v> {
    /// Returns the nodes for a view and shard. Each cluster's policy applies to its own endpoints
    /// and its own clients: if it is Local, its endpoints serve only clients on the same node, and
    /// its clients receive only endpoints on their node. Nodes of different clusters are never the
    /// same, regardless of their names. A client whose node is unknown may be on any node of its
    /// cluster.
    fn of(view: &'v ViewKey, service: &MergedService, shard: &ShardKey) -> Self {
        let is_local =
            |cluster: &ClusterId| service.by_cluster.get(cluster).is_some_and(|own| own.node_local);
        if view.role != Role::Client || !(is_local(&view.cluster) || is_local(&shard.cluster)) {
            Self::Any
        } else if shard.cluster != view.cluster {
            Self::None
        } else {
            view.node.as_ref().map_or(Self::Any, Self::Only)
        }
    }
}

/// The properties of an endpoint that the decision depends on.
#[derive(Clone, Copy)]
struct Traits<'a> {
    health: Health,
    pod: PodState,
    /// The TLS mode for the role of the view.
    tls_mode: TlsMode,
    ipv4: bool,
    /// Whether it has its own address.
    located: bool,
    node: Option<&'a Arc<str>>,
}

impl<'a> Traits<'a> {
    fn of(endpoint: PackedEndpoint<'a>, kind: &EndpointGroup, tls_mode: TlsMode) -> Self {
        Self {
            health: endpoint.health(),
            pod: kind.pod,
            tls_mode,
            ipv4: endpoint.is_ipv4(),
            located: endpoint.has_address(),
            node: endpoint.node(),
        }
    }
}

/// The path to an endpoint; [`Reach`] knows the gateways.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Via {
    Direct,
    Gateways,
}

impl<'a, 'v> Reach<'a, 'v> {
    /// Computes the common part of the decision. `local` tells whether the service is
    /// cluster-local.
    fn new(
        context: &'a PushContext,
        view: &'v ViewKey,
        service: &MergedService,
        local: bool,
        shard: &ShardKey,
        Spot { network, bar, claimants }: Spot<'_>,
    ) -> Self {
        let Definition { export_to, mesh_external, resolution, .. } = &*service.primary.definition;
        let by_name = matches!(resolution, Resolution::ByName(_));
        let public = *export_to == ExportTo::Public && !mesh_external && !local && !by_name;
        let cluster = context.clusters.clusters.get(&shard.cluster);
        let mut reach = Self {
            withdrawn: cluster.and_then(|cluster| match (cluster.mode, &cluster.withdrawn) {
                (Mode::Drain, _) => Some(WithheldReason::ClusterDraining),
                (_, Some(_)) => Some(WithheldReason::ClusterDark),
                (_, None) => None,
            }),
            barred: bar
                .map(|bar| match bar {
                    Bar::Address => WithheldReason::AddressRefused,
                    Bar::Network => WithheldReason::NetworkRefused,
                })
                .or_else(|| {
                    is_anothers(claimants?, view, shard).then_some(WithheldReason::SameAddress)
                }),
            rank: Rank::default(),
            exported: exported(context, view, service, local, shard),
            nodes: Nodes::of(view, service, shard),
            ipv4: view.ipv4,
            ipv6: view.ipv6,
            path: Ok(Via::Direct),
            needs_mtls: None,
            gateways: Vec::new(),
        };
        if !view.is_visible(network) {
            reach.path = Err(WithheldReason::NetworkNotVisible);
        } else if view.role == Role::Client && service.is_everywhere(shard, network) {
            // The path is the same from every network.
        } else if *network == view.network {
            reach.needs_mtls = (view.role == Role::Gateway).then_some(WithheldReason::PlainText);
        } else if view.role == Role::Gateway {
            reach.path = Err(WithheldReason::OtherNetwork);
        } else {
            let headless = service.primary.resolution == Resolution::Headless;
            reach.across(context, view, (public, headless), &shard.cluster, network);
        }
        if by_library_with_mtls(context, view, service) {
            reach.needs_mtls.get_or_insert(WithheldReason::PlainTextForLibrary);
        }
        reach
    }

    /// Finds the path from the view's network to another network. `public` tells whether gateways
    /// forward the service, `headless` whether it is headless.
    fn across(
        &mut self,
        context: &'a PushContext,
        view: &ViewKey,
        (public, headless): (bool, bool),
        cluster: &ClusterId,
        network: &NetworkId,
    ) {
        let gateways = context.networks.gateways_for(network, cluster);
        let pending = gateways.is_empty() && context.networks.has_any_configured(network);
        let has_no_gateway = gateways.is_empty() && !pending;
        if has_no_gateway && context.settings.allow_direct_cross_network {
            return;
        }
        self.gateways = reachable_gateways(context, view, network, cluster);
        self.needs_mtls = Some(WithheldReason::PlainText);
        self.path = if !public {
            // The gateway has no filter chain for the service, so connections would fail there.
            Err(WithheldReason::NotCarried)
        } else if headless {
            Err(WithheldReason::HeadlessElsewhere)
        } else if pending {
            Err(WithheldReason::of_pending_gateways(&context.networks, network))
        } else if has_no_gateway {
            Err(WithheldReason::NoGateway)
        } else if self.gateways.is_empty() {
            Err(WithheldReason::GatewayFamily)
        } else if view.grpc.is_some() {
            Err(WithheldReason::LibraryElsewhere)
        } else if !context.mesh.enable_auto_mtls {
            Err(WithheldReason::AutoMtlsOff)
        } else {
            Ok(Via::Gateways)
        };
    }

    /// Returns the addresses and ports of the gateways, sorted and without duplicates.
    fn sockets(&self) -> Vec<EndpointSocket> {
        let gateways = self.gateways.iter().map(|gateway| (gateway.address, gateway.port));
        let mut sockets: Vec<_> = gateways.collect();
        sockets.sort_unstable();
        sockets.dedup();
        sockets
    }

    /// Decides about one endpoint.
    fn decide(&self, endpoint: Traits<'_>) -> Result<Via, WithheldReason> {
        if endpoint.health != Health::Healthy {
            return Err(WithheldReason::NotReady(endpoint.health));
        }
        if let Some(reason) = self.withdrawn {
            return Err(reason);
        }
        if endpoint.pod == PodState::Missing {
            return Err(WithheldReason::PodMissing);
        }
        self.exported?;
        match self.nodes {
            Nodes::Any => {}
            Nodes::Only(node) if endpoint.node == Some(node) => {}
            Nodes::Only(_) | Nodes::None => return Err(WithheldReason::NodeLocal),
        }
        if let Some(reason) = self.barred {
            return Err(reason);
        }
        let path = self.path?;
        if let Some(reason) = self.needs_mtls.filter(|_| endpoint.tls_mode != TlsMode::Istio) {
            return Err(reason);
        }
        match path {
            Via::Direct if !endpoint.located => Err(WithheldReason::NoAddress),
            Via::Direct if !(if endpoint.ipv4 { self.ipv4 } else { self.ipv6 }) => {
                Err(WithheldReason::EndpointFamily)
            }
            path => Ok(path),
        }
    }
}

/// Returns whether the client is gRPC's own library and uses mTLS for the service. The library
/// cannot choose per endpoint, so it uses mTLS for all endpoints as soon as any endpoint accepts
/// it. So a workload that joins the mesh is not kept in plain text by workloads that have not
/// joined yet.
pub fn by_library_with_mtls(
    context: &PushContext,
    view: &ViewKey,
    service: &MergedService,
) -> bool {
    view.grpc.is_some_and(|library| library.mtls)
        && context.mesh.enable_auto_mtls
        && service.accepts_mtls
}

/// Returns whether an address that pods of all `claimants` have belongs to another cluster than the
/// shard's in this view. It belongs to the proxy's own cluster if that is among the claimants,
/// otherwise to the first one.
fn is_anothers(claimants: &[ClusterId], view: &ViewKey, shard: &ShardKey) -> bool {
    let own = claimants.iter().find(|cluster| **cluster == view.cluster);
    own.or(claimants.first()).is_some_and(|holder| *holder != shard.cluster)
}

/// Checks whether the view may receive any endpoint of `service` from `shard`.
fn exported(
    context: &PushContext,
    view: &ViewKey,
    service: &MergedService,
    local: bool,
    shard: &ShardKey,
) -> Result<(), WithheldReason> {
    let export_to = &service.primary.export_to;
    let external = service.primary.mesh_external;
    match view.role {
        Role::Gateway if local || external || *export_to != ExportTo::Public => {
            Err(WithheldReason::NotExported)
        }
        Role::Gateway if service.refused.contains(&shard.cluster) => {
            Err(WithheldReason::ExportRefused)
        }
        Role::Gateway => Ok(()),
        Role::Client if !export_to.visible_to(&view.namespace) => Err(WithheldReason::NotExported),
        Role::Client
            if local
                && (!is_own(context, view, service, shard) || is_unexported(service, shard)) =>
        {
            Err(WithheldReason::ClusterLocal)
        }
        Role::Client
            if shard.cluster != view.cluster && service.refused.contains(&shard.cluster) =>
        {
            Err(WithheldReason::ExportRefused)
        }
        Role::Client => Ok(()),
    }
}

/// Returns whether the shard belongs to the proxy's cluster. A ServiceEntry belongs to all clusters,
/// unless it is local to the cluster whose store has it.
fn is_own(
    context: &PushContext,
    view: &ViewKey,
    service: &MergedService,
    shard: &ShardKey,
) -> bool {
    let is_local = |own: &ShardEndpoints| own.key == *shard && own.sharing.is_local;
    if shard.provider.is_of_service_entries() && service.shards.iter().any(is_local) {
        context.settings.config_cluster.as_ref() == Some(&view.cluster)
    } else {
        shard.is_visible_in(&view.cluster)
    }
}

/// Returns whether the service is a name of the set and the shard's cluster does not export it. Its
/// endpoints are then not behind that name, not even for its own proxies (KEP-1645).
fn is_unexported(service: &MergedService, shard: &ShardKey) -> bool {
    service.hostname().is_of_set()
        && (service.shards.iter()).any(|own| own.key == *shard && own.sharing.is_local)
}

/// Returns the assignment of a proxy for a port of `service`; see [`assignment_of`].
pub fn assignment(
    context: &PushContext,
    view: &ViewKey,
    service: &MergedService,
    port: u16,
) -> Assignment {
    let rules = context.rules_for(service);
    let all = SubsetFilter::new(&rules, view.rule(&rules, service), service, "");
    assignment_of(context, view, service, port, all.unwrap_or_default())
}

/// Returns the assignment of a proxy for a port of `service`, restricted to the endpoints of a
/// subset.
///
/// If the policy ranks clusters, their tiers become priorities, and percentages within a tier
/// become weights. A gateway for several tiers is listed in the first one.
///
/// A direct endpoint is listed with its weight. The weight of a remote endpoint is split evenly
/// over its gateways. A gateway address is listed once, in the locality with the largest part of
/// its weight (the first one if equal), with the rounded sum of the weights of the endpoints behind
/// it.
pub fn assignment_of(
    context: &PushContext,
    view: &ViewKey,
    service: &MergedService,
    port: u16,
    subset: SubsetFilter<'_>,
) -> Assignment {
    let local = context.mesh.cluster_local(service.hostname());
    let policy = subset.policy(port);
    let subset = subset.with_tls_of(policy.as_ref());
    let policy = policy.unwrap_or_default().or_usual(&context.mesh.usual_limits);
    let preference = preference(context, view, service);
    let mut found = SortedEndpoints::new(context, view);
    let mut shares = super::traffic_weights::TrafficWeights::default();
    for (shard, port) in service.shards_of_port(port) {
        let mut reaches = reaches(context, view, service, local, shard);
        if let Some(preference) = preference {
            let own = (&view.cluster, &view.network);
            for (reach, network) in reaches.iter_mut().zip(shard.networks()) {
                reach.rank = preference.rank(own, (&shard.key.cluster, network));
            }
        }
        let before = preference.map(|_| shares.begin(&found.groups, &found.remote));
        found.collect(&reaches, shard, port, subset);
        if let Some(before) = before {
            let ranks = reaches.iter().map(|reach| reach.rank);
            shares.end(before, ranks, &found.groups, &found.remote);
        }
    }
    let SortedEndpoints { mut groups, order, mut remote, origins, .. } = found;
    let Origins { all: origins, gateways } = origins.unwrap_or_default();
    shares.apply(&mut groups, &mut remote);
    for group in &mut groups {
        if !group.members.is_sorted_by(|a, b| compare_members(a, b).is_lt()) {
            // Two shards may list the same address of a shared network. It is one endpoint; the
            // first shard's values apply.
            group.members.sort_by(compare_members);
            group.members.dedup_by(|a, b| compare_members(a, b).is_eq());
        }
    }
    let weighed = weigh(&groups, &remote);
    let is_client = view.role == Role::Client;
    let prefers = service.primary.prefers != Distribution::Any && is_client;
    let here = view.locality.as_deref();
    let rule = if is_client {
        LocalityRule::of(&policy, prefers, context.mesh.localities.as_deref(), here)
    } else {
        LocalityRule::Unspecified
    };
    let prefers = prefers
        && (view.locality.is_some() || view.node.is_some())
        && rule == LocalityRule::Unspecified;
    if prefers || matches!(rule, LocalityRule::NearFirst(_)) {
        let direct: Vec<usize> = groups.iter().map(|group| group.members.len()).collect();
        fit(&mut groups, weighed, &gateways);
        let take = |at: usize| Some((std::mem::take(groups.get_mut(at)?), *direct.get(at)?));
        let groups = order.into_iter().filter_map(take).collect();
        let localities = match rule {
            LocalityRule::NearFirst(setting) => {
                let unknown = Locality::default();
                let here = here.unwrap_or(&unknown);
                locality_priority::ranked(groups, |locality, _, remote| {
                    locality_rule::distance(setting, here, locality, remote)
                })
            }
            _ => locality_priority::by_distance(view, service, port, groups),
        };
        return Assignment { localities, origins };
    }
    fit(&mut groups, weighed, &gateways);
    let take = |at: usize| groups.get_mut(at).map(std::mem::take);
    let localities = order.into_iter().filter_map(take);
    let mut localities: Vec<_> = localities.filter(|group| !group.members.is_empty()).collect();
    if let LocalityRule::Shares(shares) = rule {
        localities = locality_rule::distribute(shares, localities);
    }
    let mut last = None;
    let mut priority = 0;
    for group in &mut localities {
        if last.replace(group.priority).is_some_and(|before| before != group.priority) {
            priority += 1;
        }
        group.priority = priority;
    }
    Assignment { localities, origins }
}

/// Returns what the shards with these keys contribute to an [`assignment`], before it is combined
/// with the contributions of other shards, for comparison. For an address in two shards, the first
/// shard applies. The service must have no [preference].
pub(super) fn contribution<'a>(
    context: &PushContext,
    view: &ViewKey,
    service: &'a MergedService,
    port: u16,
    keys: &BTreeSet<&ShardKey>,
    subset: SubsetFilter<'_>,
) -> impl PartialEq + use<'a> {
    let local = context.mesh.cluster_local(service.hostname());
    let subset = subset.with_tls_of(subset.policy(port).as_ref());
    let shards = service.shards_of_port(port).filter(|(shard, _)| keys.contains(&shard.key));
    let collect_shard = |(shard, port): (&'a ShardEndpoints, &Port)| {
        let mut found = SortedEndpoints::new(context, view);
        let reaches = reaches(context, view, service, local, shard);
        found.collect(&reaches, shard, port, subset);
        (&shard.key, found)
    };
    shards.map(collect_shard).collect::<Vec<_>>()
}

/// Computes the common part of the decision for each network in which `shard` has endpoints.
/// `local` tells whether the service is cluster-local in the whole mesh.
fn reaches<'a, 'v>(
    context: &'a PushContext,
    view: &'v ViewKey,
    service: &MergedService,
    local: bool,
    shard: &ShardEndpoints,
) -> Vec<Reach<'a, 'v>> {
    let local = local || shard.sharing.is_local;
    let spots = shard.networks().iter().enumerate().map(|(at, network)| Spot {
        network,
        bar: shard.bar(at),
        claimants: shard.claimants(at),
    });
    spots.map(|spot| Reach::new(context, view, service, local, &shard.key, spot)).collect()
}

/// The addresses of dual-stack pods whose two families are reached by the same path. Each
/// EndpointSlice has one family, so the pod has two endpoints in its shard.
#[derive(Default)]
struct DualStackPods<'a>(BTreeMap<DualStackKey<'a>, [Option<(Via, IpAddr)>; 2]>);

/// A pod's namespace, its name in two parts, and a port.
type DualStackKey<'a> = (&'a Namespace, &'a str, &'a str, u16);

impl<'a> DualStackPods<'a> {
    /// Collects the dual-stack pods. `decide` returns the path to an endpoint that is requested and
    /// not withheld.
    fn of(
        shard: &'a ShardEndpoints,
        decide: impl Fn(PackedEndpoint<'a>, usize) -> Option<Via>,
    ) -> Self {
        let mut pods = Self::default();
        if !shard.endpoints.is_dual_stack() {
            return pods;
        }
        for (endpoint, network) in shard.packed() {
            if let (Some(pod), Some(via)) = (pod_port(endpoint), decide(endpoint, network)) {
                let families = pods.0.entry(pod).or_default();
                families[usize::from(endpoint.is_ipv4())] = Some((via, endpoint.address()));
            }
        }
        pods
    }

    /// Returns the IPv6 address of an endpoint's pod if both its families are reached by the path
    /// `via`.
    fn ipv6_of(&self, endpoint: PackedEndpoint<'a>, via: Via) -> Option<Ipv6Addr> {
        if self.0.is_empty() {
            return None;
        }
        match self.0.get(&pod_port(endpoint)?)? {
            [Some((ipv6, IpAddr::V6(address))), Some((ipv4, _))]
                if *ipv6 == via && *ipv4 == via =>
            {
                Some(*address)
            }
            _ => None,
        }
    }
}

fn pod_port(endpoint: PackedEndpoint<'_>) -> Option<DualStackKey<'_>> {
    let pod = endpoint.unpack().workload?;
    Some((pod.namespace, pod.stem, pod.tail, endpoint.port()))
}

/// Returns whether the subset can have endpoints in a place, for each network of the shard and each
/// locality within it.
fn subset_places(shard: &ShardEndpoints, subset: SubsetFilter<'_>) -> Vec<bool> {
    let networks = shard.networks().iter().map(|network| subset.matches_network(network));
    let localities = shard.endpoints.localities().iter();
    let localities: Vec<_> = localities.map(|one| subset.matches_locality(one)).collect();
    networks
        .flat_map(|network| localities.iter().map(move |locality| network && *locality))
        .collect()
}

/// Compares by address and port, in the order of [`EndpointSocket`]s.
fn compare_members(a: &AssignmentMember, b: &AssignmentMember) -> Ordering {
    let addresses = match (a.address, b.address) {
        (IpAddr::V4(a), IpAddr::V4(b)) => a.to_bits().cmp(&b.to_bits()),
        (a, b) => a.cmp(&b),
    };
    addresses.then(a.port.cmp(&b.port))
}

/// Endpoints sorted into groups, and into direct and remote ones.
#[derive(PartialEq)]
struct SortedEndpoints {
    /// One group per locality, in the order in which they were found.
    groups: Vec<AssignmentGroup>,
    /// Indices of groups, sorted by tier and locality.
    order: Vec<usize>,
    remote: Vec<Remote>,
    /// Telemetry origins, if they are sent to proxies.
    origins: Option<Origins>,
    /// The role of the view.
    role: Role,
}

impl SortedEndpoints {
    fn new(context: &PushContext, view: &ViewKey) -> Self {
        let full = context.settings.metadata == EndpointMetadata::Full;
        let origins = full.then(Origins::default);
        Self { groups: Vec::new(), order: Vec::new(), remote: Vec::new(), origins, role: view.role }
    }

    /// Adds the endpoints of a subset that one shard has for a port. `reaches` has one item per
    /// network of the shard.
    fn collect(
        &mut self,
        reaches: &[Reach<'_, '_>],
        shard: &ShardEndpoints,
        port: &Port,
        subset: SubsetFilter<'_>,
    ) {
        let endpoints = &shard.endpoints;
        let (cluster, role) = (&shard.key.cluster, self.role);
        if !subset.matches_cluster(cluster) {
            return;
        }
        let mut origin = |kind: &EndpointGroup| match &mut self.origins {
            Some(origins) => origins.place(TelemetryOrigin {
                telemetry: kind.telemetry.clone(),
                cluster: cluster.clone(),
            }),
            None => 0,
        };
        let kinds: Vec<_> = (endpoints.kinds().iter())
            .map(|kind| {
                let is_selected =
                    kind.port_name == port.name && subset.matches_labels(kind.labels.as_ref());
                (kind, is_selected, role.tls_mode(kind.tls_mode), origin(kind))
            })
            .collect();
        // By network and locality of the shard: the index of the group, and the weight behind
        // gateways.
        let localities = endpoints.localities().len();
        let groups: Vec<usize> = reaches
            .iter()
            .flat_map(|reach| endpoints.localities().iter().map(|one| (reach.rank.tier, one)))
            .map(|(tier, locality)| self.group(tier, locality))
            .collect();
        let mut sizes = vec![0_usize; localities];
        for endpoint in endpoints.packed() {
            if let Some(size) = sizes.get_mut(endpoint.locality()) {
                *size += 1;
            }
        }
        for (size, group) in sizes.iter().zip(&groups) {
            if let Some(group) = self.groups.get_mut(*group) {
                group.members.reserve(*size);
            }
        }
        let dual_stack = DualStackPods::of(shard, |endpoint, network| {
            let (kind, _, tls_mode, _) =
                kinds.get(endpoint.kind()).filter(|(_, is_selected, ..)| *is_selected)?;
            reaches.get(network)?.decide(Traits::of(endpoint, kind, *tls_mode)).ok()
        });
        let mut behind = vec![0_u64; groups.len()];
        let places = (!subset.is_all()).then(|| subset_places(shard, subset));
        for (endpoint, network) in shard.packed() {
            let (Some((kind, true, tls_mode, origin)), Some(reach)) =
                (kinds.get(endpoint.kind()), reaches.get(network))
            else {
                continue;
            };
            let weight = kind.weight.max(1);
            let place = network * localities + endpoint.locality();
            if places.as_ref().is_some_and(|places| places.get(place) != Some(&true)) {
                continue;
            }
            let decided = reach.decide(Traits::of(endpoint, kind, *tls_mode));
            let additional = decided.ok().and_then(|via| dual_stack.ipv6_of(endpoint, via));
            // A dual-stack pod is one endpoint, listed with its IPv4 address.
            if additional.is_some() && !endpoint.is_ipv4() {
                continue;
            }
            match decided {
                Ok(Via::Direct) => {
                    let group = groups.get(place);
                    if let Some(group) = group.and_then(|at| self.groups.get_mut(*at)) {
                        group.members.push(AssignmentMember {
                            address: endpoint.address(),
                            additional,
                            port: endpoint.port(),
                            weight,
                            tls_mode: *tls_mode,
                            is_gateway: false,
                            origin: *origin,
                        });
                    }
                }
                Ok(Via::Gateways) if subset.is_near() => {}
                Ok(Via::Gateways) => {
                    if let Some(sum) = behind.get_mut(place) {
                        *sum = sum.saturating_add(weight.into());
                    }
                }
                Err(_) => {}
            }
        }
        for (at, weight) in behind.into_iter().enumerate().filter(|(_, weight)| *weight != 0) {
            if let (Some(reach), Some(group)) = (reaches.get(at / localities), groups.get(at)) {
                if let Some(origins) = &mut self.origins {
                    reach.gateways.iter().for_each(|gateway| origins.add(gateway));
                }
                self.remote.push(Remote { group: *group, weight, gateways: reach.sockets() });
            }
        }
    }

    /// Returns the index of the group for a tier and locality; creates it if it does not exist.
    fn group(&mut self, tier: u32, locality: &Arc<Locality>) -> usize {
        let place = self.order.binary_search_by(|at| match self.groups.get(*at) {
            Some(group) => group.priority.cmp(&tier).then_with(|| {
                match Arc::ptr_eq(&group.locality, locality) {
                    true => Ordering::Equal,
                    false => group.locality.cmp(locality),
                }
            }),
            None => Ordering::Less,
        });
        match place {
            Ok(rank) => self.order.get(rank).copied().unwrap_or_default(),
            Err(rank) => {
                let at = self.groups.len();
                self.groups.push(AssignmentGroup {
                    priority: tier,
                    locality: Arc::clone(locality),
                    ..AssignmentGroup::default()
                });
                self.order.insert(rank, at);
                at
            }
        }
    }
}
