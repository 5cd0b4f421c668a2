//! What one proxy may reach of a service, by which way, and why.
//!
//! The one place where this is decided: EDS encodes what [`assignment`] returns, `explain` prints
//! what [`decide`] says of each endpoint, so they cannot disagree. Decides one step after the other,
//! in the order of [`Step`]; the first that fails withholds the endpoint.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use super::context::PushContext;
use crate::aggregate::MergedService;
use crate::model::{
    ClusterId, Endpoint, ExportTo, Health, Locality, Mode, Namespace, NetworkId, PodState, Proxy,
    Resolution, TlsMode,
};
use crate::network::ResolvedGateway;
use crate::registry::ShardKey;

/// The steps that can withhold an endpoint, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Step {
    /// Ready to take traffic.
    Ready,
    /// Its pod is known.
    Pod,
    /// Visible to the proxy.
    Export,
    /// In a network that the proxy may be given at all.
    Network,
    /// Where networks differ: the endpoint's network has a gateway.
    Gateway,
    /// The proxy speaks the address family.
    Family,
    /// Where networks differ: the endpoint takes mTLS.
    Mtls,
}

impl Step {
    /// All, in order.
    pub const ALL: [Self; 7] = [
        Self::Ready,
        Self::Pod,
        Self::Export,
        Self::Network,
        Self::Gateway,
        Self::Family,
        Self::Mtls,
    ];

    /// The name in `/debug/explain`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ready => "ready",
            Self::Pod => "pod",
            Self::Export => "export",
            Self::Network => "network",
            Self::Gateway => "gateway",
            Self::Family => "family",
            Self::Mtls => "mtls",
        }
    }
}

/// Why an endpoint is withheld.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reason {
    /// Not ready, draining or terminating.
    NotReady(Health),
    /// Its cluster is leaving load balancing, as an operator asked.
    ClusterDraining,
    /// The slice names a pod that has not been seen.
    PodMissing,
    /// `exportTo` leaves the proxy's namespace out.
    NotExported,
    /// The proxy may see it, but gateways carry only what is exported to everybody.
    NotCarried,
    /// The service stays in its own cluster.
    ClusterLocal,
    /// The service stays on its own node (`internalTrafficPolicy: Local`).
    NodeLocal,
    /// An east-west gateway forwards into its own network only.
    OtherNetwork,
    /// The pods of a headless service are reached at their own addresses, which mean nothing in another
    /// network.
    HeadlessElsewhere,
    /// The network has no gateway.
    NoGateway,
    /// The network has a gateway without an address yet.
    GatewayPending,
    /// The proxy doesn't speak the endpoint's address family.
    EndpointFamily,
    /// The proxy doesn't speak the address family of any gateway.
    GatewayFamily,
    /// The endpoint takes plain text only.
    PlainText,
}

impl Reason {
    /// Whether it is because the endpoint is in another network than the proxy.
    pub fn is_of_networks(self) -> bool {
        match self {
            Self::NotCarried
            | Self::OtherNetwork
            | Self::HeadlessElsewhere
            | Self::NoGateway
            | Self::GatewayPending
            | Self::GatewayFamily
            | Self::PlainText => true,
            Self::NotReady(_)
            | Self::ClusterDraining
            | Self::PodMissing
            | Self::NotExported
            | Self::ClusterLocal
            | Self::NodeLocal
            | Self::EndpointFamily => false,
        }
    }

    /// The step that failed.
    pub fn step(self) -> Step {
        match self {
            Self::NotReady(_) | Self::ClusterDraining => Step::Ready,
            Self::PodMissing => Step::Pod,
            Self::NotExported | Self::NotCarried | Self::ClusterLocal | Self::NodeLocal => {
                Step::Export
            }
            Self::OtherNetwork | Self::HeadlessElsewhere => Step::Network,
            Self::NoGateway | Self::GatewayPending => Step::Gateway,
            Self::EndpointFamily | Self::GatewayFamily => Step::Family,
            Self::PlainText => Step::Mtls,
        }
    }
}

/// The way to an endpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Way<'a> {
    /// To its own address.
    Direct,
    /// Through any of these; never empty.
    Gateways(Vec<&'a ResolvedGateway>),
}

/// What a view depends on besides the mesh: equal keys see the same. Proxies that share a key share
/// encoded assignments.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ViewKey {
    /// The proxy's cluster.
    pub cluster: ClusterId,
    /// The proxy's network.
    pub network: NetworkId,
    /// The proxy's namespace.
    pub namespace: Namespace,
    /// Whether it speaks IPv4.
    pub ipv4: bool,
    /// Whether it speaks IPv6.
    pub ipv6: bool,
    /// The node it runs on, where known.
    pub node: Option<Arc<str>>,
    /// For whom the answer is.
    pub role: Role,
}

/// For whom an assignment is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// A client that starts connections.
    Client,
    /// An east-west gateway that forwards connections into its own network.
    Gateway,
}

impl ViewKey {
    /// The view of a proxy in `network`.
    pub fn of(proxy: &Proxy, network: NetworkId, role: Role) -> Self {
        Self {
            cluster: proxy.cluster.clone(),
            network,
            namespace: proxy.namespace().clone(),
            ipv4: proxy.has_ipv4(),
            ipv6: proxy.has_ipv6(),
            node: proxy.node_name.clone(),
            role,
        }
    }

    /// The view with all left out that can't matter for `service`, so that more proxies share it.
    pub fn narrowed(&self, context: &PushContext, service: &MergedService) -> Self {
        let public = service.primary.export_to == ExportTo::Public;
        let cluster_local = context.mesh.cluster_local(service.hostname());
        Self {
            cluster: if cluster_local { self.cluster.clone() } else { ClusterId::default() },
            network: self.network.clone(),
            namespace: if public { Namespace::default() } else { self.namespace.clone() },
            ipv4: self.ipv4,
            ipv6: self.ipv6,
            node: self.node.clone().filter(|_| service.primary.node_local),
            role: self.role,
        }
    }

    fn speaks(&self, address: IpAddr) -> bool {
        if address.is_ipv4() { self.ipv4 } else { self.ipv6 }
    }
}

/// Whether other networks may be given the service: not cluster-local, and exported to everybody.
/// (interface.md, "Networks".)
pub fn is_exported(context: &PushContext, service: &MergedService) -> bool {
    service.primary.export_to == ExportTo::Public && !context.mesh.cluster_local(service.hostname())
}

/// Decides one endpoint of `service`, which `shard` gives and which is in `network`.
///
/// # Errors
/// The reason why it is withheld.
pub fn decide<'a>(
    context: &'a PushContext,
    view: &ViewKey,
    service: &MergedService,
    shard: &ShardKey,
    endpoint: &Endpoint,
    network: &NetworkId,
) -> Result<Way<'a>, Reason> {
    if endpoint.health != Health::Healthy {
        return Err(Reason::NotReady(endpoint.health));
    }
    let cluster = context.clusters.clusters.get(&shard.cluster);
    if cluster.is_some_and(|cluster| cluster.mode == Mode::Drain) {
        return Err(Reason::ClusterDraining);
    }
    if endpoint.pod == PodState::Missing {
        return Err(Reason::PodMissing);
    }
    exported(context, view, service, shard, endpoint)?;
    if *network == view.network {
        if view.role == Role::Gateway && endpoint.tls_mode != TlsMode::Istio {
            return Err(Reason::PlainText);
        }
        return direct(view, endpoint);
    }
    if view.role == Role::Gateway {
        return Err(Reason::OtherNetwork);
    }
    let gateways = context.networks.gateways_for(network, &shard.cluster);
    let pending = gateways.is_empty() && context.networks.has_any_configured(network);
    let none = gateways.is_empty() && !pending;
    if none && context.settings.allow_direct_cross_network {
        return direct(view, endpoint);
    }
    if !is_exported(context, service) {
        // The gateway has no filter chain for it: connections would end there.
        return Err(Reason::NotCarried);
    }
    if service.primary.resolution == Resolution::Headless {
        return Err(Reason::HeadlessElsewhere);
    }
    if pending {
        return Err(Reason::GatewayPending);
    }
    if none {
        return Err(Reason::NoGateway);
    }
    let spoken = |gateways: &'a [ResolvedGateway]| -> Vec<&'a ResolvedGateway> {
        gateways.iter().filter(|gateway| view.speaks(gateway.address)).collect()
    };
    let mut usable = spoken(gateways);
    if usable.is_empty() {
        // The network's others stand in for gateways of the wrong family, too.
        usable = spoken(context.networks.all_for(network));
    }
    if usable.is_empty() {
        return Err(Reason::GatewayFamily);
    }
    if endpoint.tls_mode != TlsMode::Istio {
        return Err(Reason::PlainText);
    }
    Ok(Way::Gateways(usable))
}

fn exported(
    context: &PushContext,
    view: &ViewKey,
    service: &MergedService,
    shard: &ShardKey,
    endpoint: &Endpoint,
) -> Result<(), Reason> {
    if view.role == Role::Gateway {
        return if is_exported(context, service) { Ok(()) } else { Err(Reason::NotExported) };
    }
    if !service.primary.export_to.visible_to(&view.namespace) {
        return Err(Reason::NotExported);
    }
    if shard.cluster != view.cluster && context.mesh.cluster_local(service.hostname()) {
        return Err(Reason::ClusterLocal);
    }
    let other_node = || endpoint.node.is_none() || endpoint.node != view.node;
    if service.primary.node_local && view.node.is_some() && other_node() {
        return Err(Reason::NodeLocal);
    }
    Ok(())
}

fn direct<'a>(view: &ViewKey, endpoint: &Endpoint) -> Result<Way<'a>, Reason> {
    if view.speaks(endpoint.address) { Ok(Way::Direct) } else { Err(Reason::EndpointFamily) }
}

/// What a proxy is given for one port of a service: localities in order, each with its members.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Assignment {
    /// Members by locality. A locality appears only with members.
    pub localities: BTreeMap<Arc<Locality>, Vec<Member>>,
}

/// One address in an assignment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// The address.
    pub address: IpAddr,
    /// The port.
    pub port: u16,
    /// Its share, at least 1. The sum over an assignment fits into 32 bits (Envoy's limit).
    pub weight: u32,
    /// Whether it takes mTLS.
    pub tls_mode: TlsMode,
}

/// An address and a port.
type Socket = (IpAddr, u16);
type ByLocality<T> = BTreeMap<Arc<Locality>, T>;

/// An endpoint that is reached through any of these.
struct Remote {
    locality: Arc<Locality>,
    weight: u64,
    gateways: Vec<Socket>,
}

/// A member whose weight is counted in units of 1/scale.
struct Counted {
    socket: Socket,
    weight: u64,
    tls_mode: TlsMode,
}

/// What a proxy is given for a port of `service`.
///
/// A direct endpoint counts with its weight. A remote one counts with its weight split evenly over
/// the gateways that lead to it. A gateway address appears once, in the locality that brings it most
/// weight (ties in locality order), with the sum of what stands behind it.
pub fn assignment(
    context: &PushContext,
    view: &ViewKey,
    service: &MergedService,
    port: u16,
) -> Assignment {
    let mut direct: ByLocality<BTreeMap<Socket, (u64, TlsMode)>> = BTreeMap::new();
    let mut remote: Vec<Remote> = Vec::new();
    for (shard, endpoint, network) in service.endpoints_of_port(port) {
        let weight = u64::from(endpoint.weight.max(1));
        match decide(context, view, service, shard, endpoint, network) {
            Ok(Way::Direct) => {
                // Two shards may name one address of a shared network: it is one endpoint.
                direct
                    .entry(Arc::clone(&endpoint.locality))
                    .or_default()
                    .entry((endpoint.address, endpoint.port))
                    .or_insert((weight, endpoint.tls_mode));
            }
            Ok(Way::Gateways(gateways)) => {
                let mut addresses: Vec<_> =
                    gateways.iter().map(|gateway| (gateway.address, gateway.port)).collect();
                addresses.sort_unstable();
                addresses.dedup();
                remote.push(Remote {
                    locality: Arc::clone(&endpoint.locality),
                    weight,
                    gateways: addresses,
                });
            }
            Err(_) => {}
        }
    }
    // Splitting is exact: every weight is counted in units of 1/scale.
    let scale = remote.iter().fold(1, |scale, one| lcm(scale, one.gateways.len() as u64));
    let mut through: BTreeMap<Socket, ByLocality<u64>> = BTreeMap::new();
    for Remote { locality, weight, gateways } in &remote {
        let share = weight.saturating_mul(scale) / gateways.len() as u64;
        for gateway in gateways {
            let sum = through.entry(*gateway).or_default().entry(Arc::clone(locality)).or_default();
            *sum = sum.saturating_add(share);
        }
    }
    let mut found: ByLocality<Vec<Counted>> = BTreeMap::new();
    for (locality, members) in direct {
        let members = members.into_iter().map(|(socket, (weight, tls_mode))| Counted {
            socket,
            weight: weight.saturating_mul(scale),
            tls_mode,
        });
        found.entry(locality).or_default().extend(members);
    }
    for (socket, by_locality) in through {
        let sum = by_locality.values().fold(0, |sum: u64, share| sum.saturating_add(*share));
        // The first of the greatest: max_by_key would take the last.
        let home =
            by_locality.into_iter().reduce(|best, next| if next.1 > best.1 { next } else { best });
        if let Some((locality, _)) = home {
            let counted = Counted { socket, weight: sum, tls_mode: TlsMode::Istio };
            found.entry(locality).or_default().push(counted);
        }
    }
    fit(found, scale)
}

/// Counts weights in whole endpoints again where the split came out even, else in the largest unit
/// that fits all; then scales them down, never below 1, so that their sum fits into 32 bits.
fn fit(found: ByLocality<Vec<Counted>>, scale: u64) -> Assignment {
    let weights = || found.values().flatten().map(|counted| counted.weight);
    let common = weights().fold(scale, gcd).max(1);
    let count = weights().count() as u64;
    let total = weights().fold(0_u128, |sum, weight| sum + u128::from(weight / common));
    // Rounding up to 1 may add one for each member.
    let room = u128::from(u32::MAX) - u128::from(count).min(u128::from(u32::MAX) / 2);
    let fitted = |weight: u64| -> u32 {
        let weight = u128::from(weight / common);
        let weight = if total > room { weight * room / total } else { weight };
        u32::try_from(weight.max(1)).unwrap_or(u32::MAX)
    };
    let localities = found
        .iter()
        .map(|(locality, members)| {
            let members = members.iter().map(|counted| Member {
                address: counted.socket.0,
                port: counted.socket.1,
                weight: fitted(counted.weight),
                tls_mode: counted.tls_mode,
            });
            (Arc::clone(locality), members.collect())
        })
        .collect();
    Assignment { localities }
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

fn lcm(a: u64, b: u64) -> u64 {
    // Gateway groups are few and small; should they not be, an inexact split beats an overflow.
    (a / gcd(a, b).max(1)).saturating_mul(b).min(1 << 24)
}
