//! The virtual addresses (VIPs) by which proxies of one cluster reach each service.
//!
//! If the cluster has a service, the service's VIPs of that cluster are used. Otherwise they are
//! borrowed from the first cluster that has a VIP for it. VIPs of a ServiceEntry are borrowed by
//! all clusters.
//!
//! Each VIP is claimed port by port. Claims of the proxy's own cluster at its own ports come first,
//! then claims with a borrowed VIP or port, in merging order of the clusters they are borrowed
//! from. So a later cluster never takes an address from an earlier one. Conflicting claims are
//! dropped and reported.
//!
//! ServiceEntries with TLS ports share an address: clients name the host when they begin TLS
//! ([`is_selected_by_sni`]).

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use super::context::PushContext;
use crate::aggregate::MergedService;
use strait_model::registry::ShardKey;
use strait_model::{ClusterId, Hostname, Namespace, Port, Protocol};
use strait_rules::service_entry::is_given;
use strait_rules::traffic::sidecar::ImportScope;
use strait_rules::traffic::{HostPattern, Selection};

/// The visible services in the order in which they claim listeners and domains, each with its VIPs.
#[derive(Debug, Clone, Default)]
pub struct ListenAddresses {
    /// Visible services, each with its VIPs (empty if it has none). Services of clusters precede
    /// services that only ServiceEntries define, so that an entry never takes an address or name
    /// from a cluster. Then older services precede newer ones; ties are broken by name.
    pub services: Vec<(Arc<MergedService>, Vec<Vip>)>,
    /// Dropped borrowed addresses, one item per port.
    pub dropped: Vec<DroppedAddress>,
}

/// A virtual address of a service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Vip {
    /// The address.
    pub address: IpAddr,
    /// The ports at which the address belongs to another service.
    lost: Vec<u16>,
}

impl Vip {
    /// Returns whether the address belongs to the service at this port.
    pub fn has(&self, port: u16) -> bool {
        !self.lost.contains(&port)
    }

    /// Returns whether the address belongs to the service at all ports.
    pub fn is_whole(&self) -> bool {
        self.lost.is_empty()
    }
}

/// A borrowed VIP that belongs to another service at one port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DroppedAddress {
    /// The service that loses the address.
    pub hostname: Hostname,
    /// The address.
    pub address: IpAddr,
    /// The cluster from which it was borrowed.
    pub vip_source: ClusterId,
    /// The service that has the address.
    pub holder: Hostname,
    /// The cluster of the other service's VIP.
    pub holder_cluster: ClusterId,
}

/// Returns the services and VIPs for proxies in `namespace` and `cluster` that are selected by
/// these rules and support these address families (IPv4, IPv6).
pub fn addresses(
    context: &PushContext,
    cluster: &ClusterId,
    (namespace, selection): (&Namespace, &Selection),
    families: (bool, bool),
) -> ListenAddresses {
    let scope = context.traffic.scope(namespace, selection);
    addresses_of(context, (cluster, namespace, families), |service| imported(scope, service))
}

/// Returns the services and VIPs to which a forward proxy may send requests, for clients of a
/// Sidecar's port `port`.
pub fn proxied_addresses(
    context: &PushContext,
    cluster: &ClusterId,
    (namespace, selection): (&Namespace, &Selection),
    families: (bool, bool),
    port: u16,
) -> ListenAddresses {
    let scope = context.traffic.scope(namespace, selection);
    addresses_of(context, (cluster, namespace, families), |service| {
        let host = HostPattern::for_service(service.hostname());
        scope.proxies_to(port, &host, &service.primary.namespace).then_some(Cow::Borrowed(service))
    })
}

/// Returns the services for which `imported` returns a value, with their VIPs.
fn addresses_of<'a>(
    context: &'a PushContext,
    (cluster, namespace, (ipv4, ipv6)): (&ClusterId, &'a Namespace, (bool, bool)),
    imported: impl Fn(&'a Arc<MergedService>) -> Option<Cow<'a, Arc<MergedService>>>,
) -> ListenAddresses {
    let is_supported = |address: &&IpAddr| if address.is_ipv4() { ipv4 } else { ipv6 };
    let mut services: Vec<Cow<'_, Arc<MergedService>>> = context
        .services_of(namespace)
        .filter(|service| service.primary.export_to.visible_to(namespace))
        .filter_map(imported)
        .filter(|service| {
            context.is_at_home(service, cluster)
                || !(context.mesh.cluster_local(service.hostname()) || service.is_shared_by_none())
        })
        .collect();
    services.sort_by(|a, b| (a.rank(), a.hostname()).cmp(&(b.rank(), b.hostname())));

    let mut holders = Holders::default();
    let mut borrowed = Vec::new();
    let mut vips: Vec<Vec<Vip>> = Vec::with_capacity(services.len());
    for (index, service) in services.iter().enumerate() {
        let own = service.vips_of(cluster);
        let (vip_source, addresses) = match vip_source(service) {
            _ if !own.is_empty() => (None, own),
            Some((vip_source, borrowed_vips)) if !service.by_cluster.contains_key(cluster) => {
                (Some(vip_source), borrowed_vips)
            }
            _ => (None, own),
        };
        let vip_cluster = vip_source.map_or(cluster, |vip_source| &vip_source.cluster);
        let ports = || service.ports_in(cluster).filter(|port| port.protocol != Protocol::Udp);
        for address in addresses.iter().filter(is_supported) {
            for port in ports() {
                let by_sni = is_selected_by_sni(service, port);
                let number = port.number;
                let claim = AddressClaim {
                    service: index,
                    address: *address,
                    port: number,
                    vip_cluster,
                    by_sni,
                };
                let port_source = service.vip_source_of_port(cluster, port);
                // A borrowed claim depends on the sources of VIP and port; the source later
                // in merging order decides.
                let vip_sources = vip_source.into_iter().chain(port_source);
                match vip_sources.map(|vip_source| context.precedence(vip_source)).max() {
                    None => holders.enter(claim),
                    Some(precedence) => borrowed.push((precedence, claim)),
                }
            }
        }
        let addresses = addresses.iter().filter(is_supported);
        vips.push(addresses.map(|address| Vip { address: *address, lost: Vec::new() }).collect());
    }
    borrowed.sort_by(|(a, one), (b, other)| (a, one.service).cmp(&(b, other.service)));
    borrowed.into_iter().for_each(|(_, claim)| holders.enter(claim));

    let mut dropped = Vec::new();
    let is_entry = |index: usize| services.get(index).is_some_and(|service| service.is_of_entry());
    for (lost, holder) in holders.lost(is_entry) {
        let claimed = vips.get_mut(lost.service).into_iter().flatten();
        for vip in claimed.filter(|vip| vip.address == lost.address) {
            vip.lost.push(lost.port);
        }
        let name = |index: usize| services.get(index).map(|service| service.hostname().clone());
        if let (Some(hostname), Some(holder_name)) = (name(lost.service), name(holder.service)) {
            dropped.push(DroppedAddress {
                hostname,
                address: lost.address,
                vip_source: lost.vip_cluster.clone(),
                holder: holder_name,
                holder_cluster: holder.vip_cluster.clone(),
            });
        }
    }
    let mut services: Vec<_> = services.into_iter().map(Cow::into_owned).zip(vips).collect();
    for (service, vips) in &mut services {
        // An address that belongs to other services at every port is omitted.
        let ports = service.ports_in(cluster).filter(|port| port.protocol != Protocol::Udp);
        let ports: Vec<u16> = ports.map(|port| port.number).collect();
        vips.retain(|vip| vip.is_whole() || ports.iter().any(|port| vip.has(*port)));
    }
    ListenAddresses { services, dropped }
}

/// Returns a service with the ports that are in the scope of the proxy, or `None` if none of it is
/// in scope.
fn imported<'a>(
    scope: ImportScope<'_>,
    service: &'a Arc<MergedService>,
) -> Option<Cow<'a, Arc<MergedService>>> {
    if scope.sidecar().is_none() {
        return Some(Cow::Borrowed(service));
    }
    let (host, owner) = (HostPattern::for_service(service.hostname()), &service.primary.namespace);
    if !scope.includes(&host, owner) {
        return None;
    }
    let has = |port: &Port| scope.includes_port(&host, owner, port.number);
    if !scope.is_by_port() || service.all_ports().all(has) {
        return Some(Cow::Borrowed(service));
    }
    Some(Cow::Owned(Arc::new(service.with_ports(has))))
}

/// The claim of a service to an address and a port.
#[derive(Debug, Clone, Copy)]
struct AddressClaim<'a> {
    /// The position of the service.
    service: usize,
    address: IpAddr,
    port: u16,
    /// The cluster of the VIP.
    vip_cluster: &'a ClusterId,
    /// Whether the service shares the place with others ([`is_selected_by_sni`]).
    by_sni: bool,
}

/// The accepted claim for each address and port. The first claim wins.
#[derive(Debug, Default)]
struct Holders<'a> {
    by_place: BTreeMap<(IpAddr, u16), AddressClaim<'a>>,
    /// Claims that came too late, each with the accepted claim.
    rejected: Vec<(AddressClaim<'a>, AddressClaim<'a>)>,
    /// Claims of services that share an address by the names that clients give.
    by_sni: Vec<AddressClaim<'a>>,
}

impl<'a> Holders<'a> {
    fn enter(&mut self, claim: AddressClaim<'a>) {
        if claim.by_sni {
            self.by_sni.push(claim);
            return;
        }
        let holder = *self.by_place.entry((claim.address, claim.port)).or_insert(claim);
        if holder.service != claim.service {
            self.rejected.push((claim, holder));
        }
    }

    /// Returns the claims that lost, each with the one that holds the place. A ServiceEntry takes no connection from a
    /// service of a cluster, whatever name the client gives.
    fn lost(
        self,
        is_entry: impl Fn(usize) -> bool,
    ) -> impl Iterator<Item = (AddressClaim<'a>, AddressClaim<'a>)> {
        let Self { by_place, rejected, by_sni } = self;
        let by_sni = by_sni.into_iter().filter_map(move |claim| {
            let holder = *by_place.get(&(claim.address, claim.port))?;
            (!is_entry(holder.service)).then_some((claim, holder))
        });
        rejected.into_iter().chain(by_sni)
    }
}

/// Returns whether the name in the TLS handshake (SNI) selects the service among several at one
/// address: the service is from a ServiceEntry, and the port is declared as TLS or HTTPS.
pub fn is_selected_by_sni(service: &MergedService, port: &Port) -> bool {
    service.is_of_entry() && port.protocol.begins_tls()
}

/// Returns whether no address distinguishes connections to the service. This is the case if its
/// entry has no address: allocated addresses are known to a client only if its resolver returns
/// them.
pub fn has_no_known_address(service: &MergedService) -> bool {
    let primary = &service.primary;
    service.is_of_entry() && primary.ranges.is_empty() && primary.vips.iter().all(is_given)
}

/// Returns the first source in merging order that has a VIP.
fn vip_source(service: &MergedService) -> Option<(&ShardKey, &[IpAddr])> {
    let all = service.shards.iter().map(|shard| &shard.key);
    let vip_sources = all.filter(|key| !service.refused.contains(&key.cluster));
    vip_sources.map(|key| (key, service.vips_of(&key.cluster))).find(|(_, vips)| !vips.is_empty())
}
