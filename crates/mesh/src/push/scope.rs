//! Where a stream's proxy stands, and what of a change can be seen from there.
//!
//! A change of services concerns few streams, mostly none. Which ones is not derived from lists of what could matter:
//! what generates resources is asked for those of the changed services alone, before and after ([`Sight`]), and only
//! where these differ a stream is notified, of that type.

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
    ClusterId, ExportTo, Hostname, NetworkId, Protocol, Proxy, ProxyType, Resolution, Service,
    TargetPort,
};
use strait_rules::traffic::HostPattern;

/// Of more services than this that change at once, behind their ports aside, everybody hears without a look at who sees
/// a difference: nearly everybody would.
const LOOKED_AT_MAX: usize = 128;

/// Everything that can matter for what a proxy is given, besides the mesh.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stand {
    /// What it says of itself, checked.
    pub proxy: Arc<Proxy>,
    /// The network it is in.
    pub network: NetworkId,
    /// Where it runs, as far as that is known.
    pub whereabouts: Whereabouts,
}

impl Stand {
    /// Whether what is known of the proxy's machine or node, or what selects it, differs between two versions.
    pub(super) fn moved(&self, [before, now]: [&PushContext; 2]) -> bool {
        let proxy = &self.proxy;
        before.whereabouts(proxy) != now.whereabouts(proxy)
            || before.selection(proxy) != now.selection(proxy)
            || !now.traffic.sidecars.same_in(&before.traffic.sidecars, proxy.namespace())
            || before.machine_of(proxy) != now.machine_of(proxy)
            // Another machine at its address takes that away.
            || before.known_labels(proxy) != now.known_labels(proxy)
    }
}

/// What differs for a stream.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SeenChanges {
    /// It must look at everything, and at where it stands.
    pub everything: bool,
    /// Types of which something differs.
    pub lists: Wildcards,
    /// Names of route configurations that differ.
    pub routes: BTreeSet<Arc<str>>,
    /// Of services that [differ beside their endpoints](MergedService::differs_beside_endpoints), those of which
    /// an assignment differs.
    pub assignments: BTreeSet<Hostname>,
}

impl SeenChanges {
    /// What may differ for a proxy for which other access policies hold, and which watches these routes. Policies may have
    /// a provider asked that nothing else leads to, and routes of routers may look at what tokens say.
    pub fn of_access(proxy: Option<&Proxy>, routes: &[Arc<str>]) -> Self {
        let routed = proxy.is_none_or(|proxy| proxy.kind == ProxyType::Router);
        Self {
            lists: [Wildcard::Listeners, Wildcard::Clusters].into_iter().collect(),
            routes: routes.iter().filter(|_| routed).cloned().collect(),
            ..Self::default()
        }
    }
}

/// Whether access policies say the same of a proxy in both versions.
pub fn same_access([before, now]: [&PushContext; 2], stand: &Stand) -> bool {
    before.access_of(&stand.proxy) == now.access_of(&stand.proxy)
}

/// Tells what of a change of services is seen from where streams stand.
pub trait Sight: Send + Sync {
    /// For each of `stands` what differs between two versions that differ in `hosts` only, their endpoints
    /// aside where assignments alone depend on these.
    fn seen(
        &self,
        before: &Arc<PushContext>,
        now: &Arc<PushContext>,
        hosts: &BTreeSet<Hostname>,
        stands: &[Arc<Stand>],
    ) -> Vec<Arc<SeenChanges>>;
}

/// The services that must be looked at together to find out what a change of `hosts` comes to, in either version:
/// these, what aliases among them stand for, whose short name one of them has in full, wildcards that hold them, and who
/// wants the same addresses as they.
pub fn around(versions: [&PushContext; 2], hosts: &BTreeSet<Hostname>) -> BTreeSet<Hostname> {
    let mut all = with_targets(versions, hosts);
    // Who is called in short what one of them is called in full.
    let domain = &versions[1].settings.domain;
    all.extend(hosts.iter().map(|host| Hostname::from(format!("{host}.svc.{domain}"))));
    all.extend(versions.into_iter().flat_map(|context| wildcards_over(context, hosts)));
    let wanted: HashSet<IpAddr> = hosts
        .iter()
        .filter(|host| {
            let [before, now] = versions.map(|context| wants(context, host));
            before != now
        })
        .flat_map(|host| versions.into_iter().flat_map(|context| definitions(context, host)))
        .flat_map(|service| service.by_cluster.values().flat_map(|own| own.vips.iter().copied()))
        .collect();
    if !wanted.is_empty() {
        // Only of `hosts` the other version may have others.
        let [_, now] = versions;
        let is_rival = |service: &&Arc<MergedService>| {
            let mut vips = service.by_cluster.values().flat_map(|own| &own.vips);
            vips.any(|vip| wanted.contains(vip))
        };
        let rivals = now.all_services().filter(is_rival);
        all.extend(rivals.map(|service| service.hostname().clone()));
    }
    all
}

/// Whether it is worth finding out who sees a change of `hosts`.
pub fn is_looked_at(versions: [&PushContext; 2], hosts: &BTreeSet<Hostname>) -> bool {
    let differ = hosts.iter().filter(|host| !same_before_ports(versions, host));
    differ.take(LOOKED_AT_MAX + 1).count() <= LOOKED_AT_MAX
}

/// Everything of a name's definitions but what is behind its ports: who asks for an address, and whom it is
/// settled against. What this leaves out can't matter to others.
fn wants(context: &PushContext, host: &Hostname) -> Vec<Wants> {
    let of = |service: &Arc<MergedService>| {
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
        Wants { primary, shards, vips, refused: service.refused.clone() }
    };
    definitions(context, host).map(of).collect()
}

/// See [`wants`].
#[derive(PartialEq, Eq)]
struct Wants {
    primary: Service,
    shards: Vec<ShardKey>,
    vips: Vec<(ClusterId, Vec<IpAddr>, PortsOfCluster)>,
    refused: BTreeSet<ClusterId>,
}

/// The ports that a cluster has of a service.
type PortsOfCluster = Vec<(u16, Protocol)>;

/// Wildcard services that hold one of these hosts: what rules say of a host below is in the routes of their ports.
fn wildcards_over(context: &PushContext, hosts: &BTreeSet<Hostname>) -> Vec<Hostname> {
    let holds = |wildcard: &&Hostname| {
        let wildcard = HostPattern::of_service(wildcard);
        hosts.iter().any(|host| wildcard.matches(host.as_str()))
    };
    let all = context.wildcard_services().map(|service| service.hostname());
    all.filter(holds).cloned().collect()
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
    /// The same mesh with no other services than `hosts`.
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
        // How many there are is no matter: nothing comes or goes here.
        let restricted_namespaces =
            exported.chain(owners).map(|namespace| (namespace.clone(), 1_usize)).collect();
        Self { services, private, restricted_namespaces, ..self.clone() }
    }
}
