//! The location of a stream's proxy, and the effect of a change at a location.
//!
//! A change to services affects few streams, often none. The affected streams are not derived from
//! a list of dependencies. Instead, the generator produces the resources of the changed services
//! before and after the change ([`ChangeImpact`]), and a stream is only notified of the types in which
//! these differ.

use std::collections::{BTreeSet, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

use imbl::OrdMap;

use super::context::{Private, PushContext, Whereabouts};
use super::reach::{definitions, same_before_ports};
use crate::aggregate::MergedService;
use strait_model::dirty::{Wildcard, Wildcards};
use strait_model::registry::ShardKey;
use strait_model::{
    ClusterId, ExportTo, Hostname, NetworkId, Protocol, Proxy, Resolution, Service, TargetPort,
};
use strait_rules::traffic::HostPattern;

/// If more services than this change at once, not counting changes to targets of ports, every
/// stream is notified without computing the effect, because nearly every stream would be affected.
const COMPUTED_HOSTS_MAX: usize = 128;

/// Everything apart from the mesh that can influence a proxy's resources.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProxyLocation {
    /// The verified data that the proxy reports about itself.
    pub proxy: Arc<Proxy>,
    /// The network of the proxy.
    pub network: NetworkId,
    /// The known location of the proxy.
    pub whereabouts: Whereabouts,
}

impl ProxyLocation {
    /// Returns whether the facts about the proxy's machine or node, or the rules that select it,
    /// differ between two versions.
    pub(super) fn moved(&self, [before, now]: [&PushContext; 2]) -> bool {
        let proxy = &self.proxy;
        before.whereabouts(proxy) != now.whereabouts(proxy)
            || before.selection(proxy) != now.selection(proxy)
            || !now.traffic.sidecars.same_in(&before.traffic.sidecars, proxy.namespace())
            || before.machine_of(proxy) != now.machine_of(proxy)
            // A second machine at the same address makes the labels unknown.
            || before.known_labels(proxy) != now.known_labels(proxy)
    }
}

/// The effect of a change on a stream.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AffectedResources {
    /// The stream must process everything and determine its location again.
    pub everything: bool,
    /// Types in which something differs.
    pub lists: Wildcards,
    /// Names of route configurations that differ.
    pub routes: BTreeSet<Arc<str>>,
    /// Services with a different assignment that also [differ in more than their
    /// endpoints](MergedService::differs_except_in_endpoints).
    pub assignments: BTreeSet<Hostname>,
}

impl AffectedResources {
    /// Returns the possible effect on a proxy whose access policies changed and which watches these
    /// routes. Policies may refer to a provider to which nothing else routes, and routes of routers
    /// may match claims of tokens.
    pub fn of_access(proxy: Option<&Proxy>, routes: &[Arc<str>]) -> Self {
        let routed = proxy.is_none_or(|proxy| proxy.kind.is_gateway());
        Self {
            lists: [Wildcard::Listeners, Wildcard::Clusters].into_iter().collect(),
            routes: routes.iter().filter(|_| routed).cloned().collect(),
            ..Self::default()
        }
    }
}

/// Returns whether the access policies for a proxy are equal in both versions.
pub fn same_access([before, now]: [&PushContext; 2], location: &ProxyLocation) -> bool {
    before.access_of(&location.proxy) == now.access_of(&location.proxy)
}

/// Computes the effect of a change to services at the locations of streams.
pub trait ChangeImpact: Send + Sync {
    /// Returns for each location the differences between two versions that differ only in `hosts`.
    /// Changes to endpoints that only affect assignments are not included.
    fn seen(
        &self,
        before: &Arc<PushContext>,
        now: &Arc<PushContext>,
        hosts: &BTreeSet<Hostname>,
        locations: &[Arc<ProxyLocation>],
    ) -> Vec<Arc<AffectedResources>>;
}

/// Returns the services that must be generated together to compute the effect of a change to
/// `hosts`, in either version: the hosts themselves, targets of aliases among them, services whose
/// full name a host has as its short name, wildcards that match them, and services that claim the
/// same addresses.
pub fn related_hosts(
    versions: [&PushContext; 2],
    hosts: &BTreeSet<Hostname>,
) -> BTreeSet<Hostname> {
    let mut all = with_targets(versions, hosts);
    // Services whose full name one of them has as its short name.
    let domain = &versions[1].settings.domain;
    all.extend(hosts.iter().map(|host| Hostname::from(format!("{host}.svc.{domain}"))));
    all.extend(versions.into_iter().flat_map(|context| wildcards_over(context, hosts)));
    let contested: HashSet<IpAddr> = hosts
        .iter()
        .filter(|host| {
            let [before, now] = versions.map(|context| vip_claims(context, host));
            before != now
        })
        .flat_map(|host| versions.into_iter().flat_map(|context| definitions(context, host)))
        .flat_map(|service| service.by_cluster.values().flat_map(|own| own.vips.iter().copied()))
        .collect();
    if !contested.is_empty() {
        // Services outside of `hosts` are equal in both versions.
        let [_, now] = versions;
        let claims_same_vip = |service: &&Arc<MergedService>| {
            let mut vips = service.by_cluster.values().flat_map(|own| &own.vips);
            vips.any(|vip| contested.contains(vip))
        };
        let rivals = now.all_services().filter(claims_same_vip);
        all.extend(rivals.map(|service| service.hostname().clone()));
    }
    all
}

/// Returns whether the effect of a change to `hosts` is worth computing: whether few enough
/// services changed.
pub fn is_worth_computing(versions: [&PushContext; 2], hosts: &BTreeSet<Hostname>) -> bool {
    let differ = hosts.iter().filter(|host| !same_before_ports(versions, host));
    differ.take(COMPUTED_HOSTS_MAX + 1).count() <= COMPUTED_HOSTS_MAX
}

/// Returns the parts of a hostname's definitions that decide who gets a VIP: everything but the
/// targets of ports. Differences in other parts cannot affect other services.
fn vip_claims(context: &PushContext, host: &Hostname) -> Vec<VipClaims> {
    let claims_of = |service: &Arc<MergedService>| {
        let mut primary = (*service.primary).clone();
        (primary.selector, primary.labels) = Default::default();
        for port in &mut primary.ports {
            port.target = TargetPort::Number(port.number);
        }
        let shards = service.shards.iter().map(|shard| shard.key.clone()).collect();
        let vips = |(id, own): (&ClusterId, &Arc<Service>)| {
            let ports = own.ports.iter().map(|port| (port.number, port.protocol)).collect();
            (id.clone(), own.vips.clone(), ports)
        };
        let vips = service.by_cluster.iter().map(vips).collect();
        VipClaims { primary, shards, vips, refused: service.refused.clone() }
    };
    definitions(context, host).map(claims_of).collect()
}

/// See [`vip_claims`].
#[derive(PartialEq, Eq)]
struct VipClaims {
    primary: Service,
    shards: Vec<ShardKey>,
    vips: Vec<(ClusterId, Vec<IpAddr>, PortsOfCluster)>,
    refused: BTreeSet<ClusterId>,
}

/// The ports of a service in one cluster.
type PortsOfCluster = Vec<(u16, Protocol)>;

/// Returns wildcard services that match any of these hosts. The routes of their ports contain the
/// rules for the hosts that they cover.
fn wildcards_over(context: &PushContext, hosts: &BTreeSet<Hostname>) -> Vec<Hostname> {
    let matches_any = |wildcard: &&Hostname| {
        let wildcard = HostPattern::for_service(wildcard);
        hosts.iter().any(|host| wildcard.matches(host.as_str()))
    };
    let all = context.wildcard_services().map(|service| service.hostname());
    all.filter(matches_any).cloned().collect()
}

fn with_targets(versions: [&PushContext; 2], hosts: &BTreeSet<Hostname>) -> BTreeSet<Hostname> {
    let mut all = hosts.clone();
    let mut found: Vec<Hostname> = hosts.iter().cloned().collect();
    while let Some(host) = found.pop() {
        for service in versions.into_iter().flat_map(|context| definitions(context, &host)) {
            if let Resolution::Alias(target) = &service.primary.resolution
                && all.insert(target.clone())
            {
                found.push(target.clone());
            }
        }
    }
    all
}

impl PushContext {
    /// Returns the same mesh with only the services in `hosts`.
    #[must_use]
    pub fn excerpt(&self, hosts: &BTreeSet<Hostname>) -> Self {
        let services = hosts.iter().filter_map(|host| self.services.get_key_value(host));
        let services: OrdMap<Hostname, Arc<MergedService>> =
            services.map(|(host, service)| (host.clone(), Arc::clone(service))).collect();
        let private = hosts.iter().filter_map(|host| self.private.get_key_value(host));
        let private: Private = private.map(|(host, all)| (host.clone(), all.clone())).collect();
        let exported = services.values().flat_map(|one| match &one.primary.export_to {
            ExportTo::Public => &[][..],
            ExportTo::Namespaces(all) => all,
        });
        let owners = private.values().flat_map(OrdMap::keys);
        // The counts are irrelevant, because additions and removals do not occur here.
        let restricted_namespaces =
            exported.chain(owners).map(|namespace| (namespace.clone(), 1_usize)).collect();
        Self { services, private, restricted_namespaces, ..self.clone() }
    }
}
