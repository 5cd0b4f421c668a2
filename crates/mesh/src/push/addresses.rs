//! The virtual addresses under which proxies of one cluster reach each service.
//!
//! A service has its own cluster's VIPs there; a service that this cluster doesn't have is reached by
//! a VIP borrowed from the first cluster that has one. Those of a ServiceEntry are borrowed by all clusters.
//!
//! Each VIP is claimed port by port. First come the own cluster's VIPs at the ports that it has itself, then what
//! is borrowed of other clusters, VIP or port, in the order in which these are merged: so a cluster that comes
//! last takes nothing from what others lend. What collides is dropped, and shown.
//!
//! ServiceEntries with TLS ports share an address: clients name the host when they begin TLS ([`is_told_by_sni`]).

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use super::context::PushContext;
use crate::aggregate::MergedService;
use strait_model::registry::{Provider, ShardKey};
use strait_model::{ClusterId, Hostname, Namespace, Port, Protocol};
use strait_rules::service_entry::is_given;
use strait_rules::traffic::sidecar::ImportScope;
use strait_rules::traffic::{HostPattern, Selection};

/// Services in the order in which they claim listeners and domains, each with its addresses.
#[derive(Debug, Clone, Default)]
pub struct ListenAddresses {
    /// Visible services: those of clusters, then those that only ServiceEntries have, so that an entry
    /// never takes an address or a name from a cluster; of these the oldest first, then by name. The
    /// list is empty for one without an address.
    pub services: Vec<(Arc<MergedService>, Vec<Vip>)>,
    /// Borrowed addresses that were dropped, once for each port.
    pub dropped: Vec<DroppedAddress>,
}

/// A virtual address of a service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Vip {
    /// The address.
    pub address: IpAddr,
    /// The ports at which it is another service's.
    lost: Vec<u16>,
}

impl Vip {
    /// Whether it leads to the service at that port.
    pub fn has(&self, port: u16) -> bool {
        !self.lost.contains(&port)
    }

    /// Whether it leads to no other service, whatever the port.
    pub fn is_whole(&self) -> bool {
        self.lost.is_empty()
    }
}

/// A borrowed VIP that another service holds at a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DroppedAddress {
    /// The service that goes without it.
    pub hostname: Hostname,
    /// The address.
    pub address: IpAddr,
    /// The cluster it was borrowed from.
    pub vip_source: ClusterId,
    /// The service that holds it.
    pub holder: Hostname,
    /// The cluster whose VIP of that service it is.
    pub of: ClusterId,
}

/// The addresses for proxies of `namespace` in `cluster` that speak these families and that these rules select.
pub fn addresses(
    context: &PushContext,
    cluster: &ClusterId,
    (namespace, selection): (&Namespace, &Selection),
    families: (bool, bool),
) -> ListenAddresses {
    let scope = context.traffic.scope(namespace, selection);
    addresses_of(context, (cluster, namespace, families), |service| imported(scope, service))
}

/// The same of what requests to a proxy may be for, at a port of the Sidecar that such clients follow.
pub fn proxied_addresses(
    context: &PushContext,
    cluster: &ClusterId,
    (namespace, selection): (&Namespace, &Selection),
    families: (bool, bool),
    port: u16,
) -> ListenAddresses {
    let scope = context.traffic.scope(namespace, selection);
    addresses_of(context, (cluster, namespace, families), |service| {
        let host = HostPattern::of_service(service.hostname());
        scope.proxies_to(port, &host, &service.primary.namespace).then_some(Cow::Borrowed(service))
    })
}

/// The addresses of services, as far as clients there are given them.
fn addresses_of<'a>(
    context: &'a PushContext,
    (cluster, namespace, (ipv4, ipv6)): (&ClusterId, &'a Namespace, (bool, bool)),
    imported: impl Fn(&'a Arc<MergedService>) -> Option<Cow<'a, Arc<MergedService>>>,
) -> ListenAddresses {
    let speaks = |address: &&IpAddr| if address.is_ipv4() { ipv4 } else { ipv6 };
    let mut services: Vec<Cow<'_, Arc<MergedService>>> = context
        .services_of(namespace)
        .filter(|service| service.primary.export_to.visible_to(namespace))
        .filter_map(imported)
        .filter(|service| {
            service.is_visible_in(cluster)
                || !(context.mesh.cluster_local(service.hostname()) || service.is_of_refused_only())
        })
        .collect();
    services.sort_by(|a, b| (a.rank(), a.hostname()).cmp(&(b.rank(), b.hostname())));

    let mut holders = Holders::default();
    let mut borrowed = Vec::new();
    let mut vips: Vec<Vec<Vip>> = Vec::with_capacity(services.len());
    for (at, service) in services.iter().enumerate() {
        let own = service.vips_of(cluster);
        let (vip_source, addresses) = match vip_source(service) {
            _ if !own.is_empty() => (None, own),
            Some((vip_source, lent)) if !service.by_cluster.contains_key(cluster) => {
                (Some(vip_source), lent)
            }
            _ => (None, own),
        };
        let of = vip_source.map_or(cluster, |vip_source| &vip_source.cluster);
        let ports = || service.ports_in(cluster).filter(|port| port.protocol != Protocol::Udp);
        for address in addresses.iter().filter(speaks) {
            for port in ports() {
                let by_sni = is_told_by_sni(service, port);
                let number = port.number;
                let claim =
                    AddressClaim { service: at, address: *address, port: number, of, by_sni };
                let of_port = service.vip_source_of_port(cluster, port);
                // Whoever comes later of those without whom there would be no such claim.
                let vip_sources = vip_source.into_iter().chain(of_port);
                match vip_sources.map(|vip_source| context.precedence(vip_source)).max() {
                    None => holders.enter(claim),
                    Some(precedence) => borrowed.push((precedence, claim)),
                }
            }
        }
        let addresses = addresses.iter().filter(speaks);
        vips.push(addresses.map(|address| Vip { address: *address, lost: Vec::new() }).collect());
    }
    borrowed.sort_by(|(a, one), (b, other)| (a, one.service).cmp(&(b, other.service)));
    borrowed.into_iter().for_each(|(_, claim)| holders.enter(claim));

    let mut dropped = Vec::new();
    let is_entry = |at: usize| services.get(at).is_some_and(|service| is_of_entry(service));
    for (lost, holder) in holders.lost(is_entry) {
        let claimed = vips.get_mut(lost.service).into_iter().flatten();
        for vip in claimed.filter(|vip| vip.address == lost.address) {
            vip.lost.push(lost.port);
        }
        let name = |at: usize| services.get(at).map(|service| service.hostname().clone());
        if let (Some(hostname), Some(of_holder)) = (name(lost.service), name(holder.service)) {
            dropped.push(DroppedAddress {
                hostname,
                address: lost.address,
                vip_source: lost.of.clone(),
                holder: of_holder,
                of: holder.of.clone(),
            });
        }
    }
    let mut services: Vec<_> = services.into_iter().map(Cow::into_owned).zip(vips).collect();
    for (service, vips) in &mut services {
        // One that is another's at every port is none.
        let ports = service.ports_in(cluster).filter(|port| port.protocol != Protocol::Udp);
        let ports: Vec<u16> = ports.map(|port| port.number).collect();
        vips.retain(|vip| vip.is_whole() || ports.iter().any(|port| vip.has(*port)));
    }
    ListenAddresses { services, dropped }
}

/// A service as far as a proxy is given it: with those of its ports that are in its scope.
fn imported<'a>(
    scope: ImportScope<'_>,
    service: &'a Arc<MergedService>,
) -> Option<Cow<'a, Arc<MergedService>>> {
    if scope.sidecar().is_none() {
        return Some(Cow::Borrowed(service));
    }
    let (host, owner) = (HostPattern::of_service(service.hostname()), &service.primary.namespace);
    if !scope.includes(&host, owner) {
        return None;
    }
    let has = |port: &Port| scope.includes_port(&host, owner, port.number);
    if !scope.is_by_port() || service.all_ports().all(has) {
        return Some(Cow::Borrowed(service));
    }
    Some(Cow::Owned(Arc::new(service.with_ports(has))))
}

/// That a service is reached at an address and a port.
#[derive(Debug, Clone, Copy)]
struct AddressClaim<'a> {
    /// The place of the service.
    service: usize,
    address: IpAddr,
    port: u16,
    /// The cluster whose VIP it is.
    of: &'a ClusterId,
    /// Whether the service shares the place with others ([`is_told_by_sni`]).
    by_sni: bool,
}

/// The service that holds each address and port: the first one that claims it.
#[derive(Debug, Default)]
struct Holders<'a> {
    by_place: BTreeMap<(IpAddr, u16), AddressClaim<'a>>,
    /// Claims that came too late, each with the one that holds.
    late: Vec<(AddressClaim<'a>, AddressClaim<'a>)>,
    /// Claims of services that share a place by the names that clients give.
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
            self.late.push((claim, holder));
        }
    }

    /// Returns the claims that lost, each with the one that holds the place. A ServiceEntry takes no connection from a
    /// service of a cluster, whatever name the client gives.
    fn lost(
        self,
        is_entry: impl Fn(usize) -> bool,
    ) -> impl Iterator<Item = (AddressClaim<'a>, AddressClaim<'a>)> {
        let Self { by_place, late, by_sni } = self;
        let by_sni = by_sni.into_iter().filter_map(move |claim| {
            let holder = *by_place.get(&(claim.address, claim.port))?;
            (!is_entry(holder.service)).then_some((claim, holder))
        });
        late.into_iter().chain(by_sni)
    }
}

/// Whether connections to a port of a service are told from those of other services at the same address by the name
/// that clients give when they begin TLS (SNI): the service is that of a ServiceEntry and the port is declared as TLS or HTTPS.
pub fn is_told_by_sni(service: &MergedService, port: &Port) -> bool {
    is_of_entry(service) && port.protocol.begins_tls()
}

fn is_of_entry(service: &MergedService) -> bool {
    service.shards.first().is_some_and(|shard| shard.key.provider == Provider::ServiceEntry)
}

/// Whether no address distinguishes connections to a service from others: its entry has none, and a client knows those
/// that we gave it only if something resolves the name to them.
pub fn has_no_known_address(service: &MergedService) -> bool {
    let primary = &service.primary;
    is_of_entry(service) && primary.ranges.is_empty() && primary.vips.iter().all(is_given)
}

/// The first source in merging order that has a VIP.
fn vip_source(service: &MergedService) -> Option<(&ShardKey, &[IpAddr])> {
    let all = service.shards.iter().map(|shard| &shard.key);
    let vip_sources = all.filter(|key| !service.refused.contains(&key.cluster));
    vip_sources.map(|key| (key, service.vips_of(&key.cluster))).find(|(_, vips)| !vips.is_empty())
}
