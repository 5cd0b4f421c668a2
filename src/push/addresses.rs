//! The virtual addresses under which proxies of one cluster reach each service.
//!
//! A service has its own cluster's VIPs there; a service that this cluster doesn't have is reached by
//! a VIP borrowed from the first cluster that has one. VIPs of the own cluster claim their address
//! first: a borrowed one that collides is dropped, and shown. Those of a ServiceEntry are borrowed by
//! all clusters.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use super::context::PushContext;
use crate::aggregate::{MergedService, ShardEndpoints};
use crate::model::{ClusterId, Hostname, Namespace};
use crate::registry::Provider;
use crate::registry::service_entry::is_given;

/// Services in the order in which they claim listeners and domains, each with its addresses.
#[derive(Debug, Clone, Default)]
pub struct Addresses {
    /// Visible services: those of clusters, then those that only ServiceEntries have, so that an entry
    /// never takes an address or a name from a cluster; of these the oldest first, then by name. The
    /// list is empty for one without an address.
    pub services: Vec<(Arc<MergedService>, Vec<IpAddr>)>,
    /// Borrowed addresses that were dropped.
    pub dropped: Vec<DroppedAddress>,
}

/// A borrowed VIP that another service holds already.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DroppedAddress {
    /// The service that goes without it.
    pub hostname: Hostname,
    /// The address.
    pub address: IpAddr,
    /// The cluster it was borrowed from.
    pub lender: ClusterId,
    /// The service that holds it.
    pub holder: Hostname,
    /// The cluster whose VIP of that service it is.
    pub of: ClusterId,
}

/// The addresses for proxies of `namespace` in `cluster` that speak these families.
pub fn addresses(
    context: &PushContext,
    cluster: &ClusterId,
    namespace: &Namespace,
    ipv4: bool,
    ipv6: bool,
) -> Addresses {
    let speaks = |address: &&IpAddr| if address.is_ipv4() { ipv4 } else { ipv6 };
    let mut services: Vec<&Arc<MergedService>> = context
        .services_of(namespace)
        .filter(|service| service.primary.export_to.visible_to(namespace))
        .filter(|service| {
            service.is_at_home_in(cluster)
                || !(context.mesh.cluster_local(service.hostname()) || service.is_of_refused_only())
        })
        .collect();
    services.sort_by(|a, b| {
        let rank = |service: &MergedService| {
            (service.shards.first().map(|shard| shard.key.provider), service.primary.created)
        };
        (rank(a), a.hostname()).cmp(&(rank(b), b.hostname()))
    });

    let mut holders: BTreeMap<IpAddr, (&Hostname, &ClusterId)> = BTreeMap::new();
    let mut own: BTreeMap<&Hostname, Vec<IpAddr>> = BTreeMap::new();
    for service in &services {
        for address in service.vips_of(cluster).iter().filter(speaks) {
            // Two services of one cluster can't share a VIP; should one claim so, the older has it.
            let (holder, _) = *holders.entry(*address).or_insert((service.hostname(), cluster));
            if holder == service.hostname() {
                own.entry(service.hostname()).or_default().push(*address);
            }
        }
    }
    let mut result = Addresses::default();
    for service in &services {
        let mut addresses = own.remove(service.hostname()).unwrap_or_default();
        if !service.by_cluster.contains_key(cluster)
            && let Some((lender, vips)) = lender(service)
        {
            for address in vips.iter().filter(speaks) {
                let (holder, of) = *holders.entry(*address).or_insert((service.hostname(), lender));
                if holder == service.hostname() {
                    addresses.push(*address);
                } else {
                    result.dropped.push(DroppedAddress {
                        hostname: service.hostname().clone(),
                        address: *address,
                        lender: lender.clone(),
                        holder: holder.clone(),
                        of: of.clone(),
                    });
                }
            }
        }
        result.services.push((Arc::clone(service), addresses));
    }
    result
}

/// Whether no address tells connections to a service from others: its entry has none, and those that we gave
/// it are known to a client only if something resolves the name to them.
pub fn has_no_known_address(service: &MergedService) -> bool {
    let primary = &service.primary;
    let of_entry = |shard: &ShardEndpoints| shard.key.provider == Provider::ServiceEntry;
    service.shards.first().is_some_and(of_entry)
        && primary.ranges.is_empty()
        && primary.vips.iter().all(is_given)
}

/// The first source in merging order that has a VIP.
fn lender(service: &MergedService) -> Option<(&ClusterId, &[IpAddr])> {
    let all = service.shards.iter().map(|shard| &shard.key.cluster);
    let lenders = all.filter(|cluster| !service.refused.contains(*cluster));
    lenders.map(|cluster| (cluster, service.vips_of(cluster))).find(|(_, vips)| !vips.is_empty())
}
