//! Groups of clients of services that rules may treat differently.

use std::collections::{BTreeMap, BTreeSet};

use strait_base::names::list_first;
use strait_mesh::aggregate::MergedService;
use strait_mesh::push::PushContext;
use strait_mesh::push::ingress::IngressOutline;
use strait_mesh::push::proxy::{east_west_port, served_in};
use strait_model::{ExportTo, Hostname, Namespace, Protocol, Proxy, ProxyType, Resolution};
use strait_rules::traffic::{HostPattern, Selection};

/// Namespaces of clients. The empty namespace represents all namespaces that no rule names.
pub(super) type Audience = BTreeSet<Namespace>;

/// The connected proxies, in groups that rules treat equally.
pub(super) struct ClientGroups<'a> {
    proxies: &'a [&'a Proxy],
    /// Number of sidecars, by namespace and by the selectors that select them.
    sidecars: BTreeMap<(&'a Namespace, Selection), usize>,
    /// Number of east-west gateways.
    gateways: usize,
}

impl<'a> ClientGroups<'a> {
    pub(super) fn of(context: &PushContext, proxies: &'a [&'a Proxy]) -> Self {
        let (mut sidecars, mut gateways) = (BTreeMap::new(), 0);
        for proxy in proxies {
            match proxy.kind {
                ProxyType::Sidecar => {
                    let group = (proxy.namespace(), context.selection(proxy));
                    *sidecars.entry(group).or_default() += 1;
                }
                ProxyType::Router => {
                    gateways += usize::from(east_west_port(context, proxy).is_some());
                }
            }
        }
        Self { proxies, sidecars, gateways }
    }

    pub(super) fn proxies(&self) -> &'a [&'a Proxy] {
        self.proxies
    }

    /// Returns the number of sidecars whose namespace and selection satisfy a condition.
    pub(super) fn count(&self, holds: impl Fn(&Namespace, &Selection) -> bool) -> usize {
        let groups = self.sidecars.iter();
        groups
            .filter(|((namespace, selection), _)| holds(namespace, selection))
            .map(|(_, count)| count)
            .sum()
    }

    pub(super) fn gateways(&self) -> usize {
        self.gateways
    }
}

/// Routers of a cluster and a namespace with the same labels.
pub(super) struct RouterGroup<'a> {
    pub(super) namespace: &'a Namespace,
    pub(super) selection: Selection,
    /// The services to which their routes lead.
    pub(super) leads_to: BTreeSet<&'a Hostname>,
    pub(super) count: usize,
}

impl<'a> RouterGroup<'a> {
    /// Groups the routers among these proxies, without east-west gateways.
    pub(super) fn all(context: &'a PushContext, proxies: &[&'a Proxy]) -> Vec<Self> {
        let mut groups = BTreeMap::new();
        for proxy in proxies.iter().filter(|one| one.kind.is_gateway()) {
            if east_west_port(context, proxy).is_none() {
                let group = (&proxy.cluster, proxy.namespace(), context.labels_of(proxy));
                groups.entry(group).or_insert((*proxy, 0)).1 += 1;
            }
        }
        let group = |(proxy, count): (&'a Proxy, usize)| {
            let served = served_in(context, &proxy.cluster, proxy.namespace());
            let leads_to = IngressOutline::of(context, proxy, &served).destinations();
            let (namespace, selection) = (proxy.namespace(), context.selection(proxy));
            Self { namespace, selection, leads_to, count }
        };
        groups.into_values().map(group).collect()
    }
}

/// Returns the service with a name that clients of a namespace receive.
pub(super) fn seen<'a>(
    context: &'a PushContext,
    host: &str,
    namespace: &Namespace,
) -> Option<&'a MergedService> {
    let service = context.service(host, namespace)?;
    service.primary.export_to.visible_to(namespace).then_some(&**service)
}

/// Returns whether the Sidecar of these clients, if any, imports a service under its own name.
pub(super) fn is_imported(
    context: &PushContext,
    service: &MergedService,
    namespace: &Namespace,
    selection: &Selection,
) -> bool {
    let host = HostPattern::for_service(service.hostname());
    context.traffic.scope(namespace, selection).includes(&host, &service.primary.namespace)
}

/// Returns the services that match a pattern, as clients of a namespace receive them.
pub(super) fn all_seen<'a>(
    context: &'a PushContext,
    host: &HostPattern,
    namespace: &'a Namespace,
) -> Vec<&'a MergedService> {
    match host {
        HostPattern::Exact(host) => seen(context, host.as_str(), namespace).into_iter().collect(),
        HostPattern::Under(_) => {
            let all = context.services_of(namespace).map(|service| &**service);
            // A wildcard service is under it by its name, too.
            let all = all.filter(|one| host.matches(one.hostname().as_str()));
            all.filter(|one| one.primary.export_to.visible_to(namespace)).collect()
        }
    }
}

/// Returns the proxied ports of a service: none if the service is an alias.
pub(super) fn proxied(service: &MergedService) -> impl Iterator<Item = &strait_model::Port> {
    let is_alias = matches!(service.primary.resolution, Resolution::Alias(_));
    service.ports().filter(move |port| !is_alias && port.protocol != Protocol::Udp)
}

/// Returns the namespaces, of the given ones, to which an object is exported. If it is exported to
/// all, the empty namespace represents the others.
pub(super) fn audience(export_to: &ExportTo, special: impl Iterator<Item = Namespace>) -> Audience {
    match export_to {
        ExportTo::Public => special.chain([Namespace::default()]).collect(),
        ExportTo::Namespaces(named) => named.iter().cloned().collect(),
    }
}

/// Describes clients as the end of a sentence; empty if they are all clients.
pub(super) fn of_clients(some: &Audience, all: &Audience) -> String {
    const NAMED_MAX: usize = 5;
    if some.len() == all.len() {
        return String::new();
    }
    let named: Vec<_> =
        some.iter().map(Namespace::as_str).filter(|name| !name.is_empty()).collect();
    let mut words = list_first(named.iter(), NAMED_MAX);
    if some.contains(&Namespace::default()) {
        words += if named.is_empty() { "other namespaces" } else { " and other namespaces" };
        return format!(" for clients of {words}");
    }
    format!(" for clients of namespace {words}")
}
