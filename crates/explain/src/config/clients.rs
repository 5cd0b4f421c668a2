//! Who may be a client of services, as far as rules tell clients apart.

use std::collections::{BTreeMap, BTreeSet};

use strait_mesh::aggregate::MergedService;
use strait_mesh::push::PushContext;
use strait_mesh::push::ingress::IngressOutline;
use strait_mesh::push::proxy::{east_west_port, served_in};
use strait_model::{ExportTo, Hostname, Namespace, Protocol, Proxy, ProxyType, Resolution};
use strait_rules::traffic::{HostPattern, Selection};

/// Namespaces of clients. The empty one stands for all that no rule tells apart.
pub(super) type Audience = BTreeSet<Namespace>;

/// The proxies that are connected, in groups that rules treat alike.
pub(super) struct ClientGroups<'a> {
    proxies: &'a [&'a Proxy],
    /// Sidecars, by namespace and by the selectors that select them, with their number.
    sidecars: BTreeMap<(&'a Namespace, Selection), usize>,
    /// East-west gateways.
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

    /// How many sidecars are in namespaces, and selected by selectors, for which something holds.
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
    /// The services to which what they serve leads.
    pub(super) leads_to: BTreeSet<&'a Hostname>,
    pub(super) count: usize,
}

impl<'a> RouterGroup<'a> {
    /// Those of some proxies, without east-west gateways.
    pub(super) fn all(context: &'a PushContext, proxies: &[&'a Proxy]) -> Vec<Self> {
        let mut groups = BTreeMap::new();
        for proxy in proxies.iter().filter(|one| one.kind == ProxyType::Router) {
            if east_west_port(context, proxy).is_none() {
                let alike = (&proxy.cluster, proxy.namespace(), context.labels_of(proxy));
                groups.entry(alike).or_insert((*proxy, 0)).1 += 1;
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

/// The service of a name that clients of a namespace are given.
pub(super) fn seen<'a>(
    context: &'a PushContext,
    host: &str,
    namespace: &Namespace,
) -> Option<&'a MergedService> {
    let service = context.service(host, namespace)?;
    service.primary.export_to.visible_to(namespace).then_some(&**service)
}

/// Whether clients of a namespace, selected so, reach a service by its own name, as far as a Sidecar says it.
pub(super) fn is_imported(
    context: &PushContext,
    service: &MergedService,
    namespace: &Namespace,
    selection: &Selection,
) -> bool {
    let host = HostPattern::of_service(service.hostname());
    context.traffic.scope(namespace, selection).includes(&host, &service.primary.namespace)
}

/// The services that a pattern holds, as clients of a namespace are given them.
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

/// The ports of a service that are proxied: none of what is another name of a service.
pub(super) fn proxied(service: &MergedService) -> impl Iterator<Item = &strait_model::Port> {
    let is_alias = matches!(service.primary.resolution, Resolution::Alias(_));
    service.ports().filter(move |port| !is_alias && port.protocol != Protocol::Udp)
}

/// Of some namespaces those to which something is exported. Where it is for all, they stand for the rest besides.
pub(super) fn audience(export_to: &ExportTo, special: impl Iterator<Item = Namespace>) -> Audience {
    match export_to {
        ExportTo::Public => special.chain([Namespace::default()]).collect(),
        ExportTo::Namespaces(named) => named.iter().cloned().collect(),
    }
}

/// Whose clients these are, in words that follow a sentence; nothing where they are all of them.
pub(super) fn of_clients(some: &Audience, all: &Audience) -> String {
    const NAMED_MAX: usize = 5;
    if some.len() == all.len() {
        return String::new();
    }
    let named: Vec<_> =
        some.iter().map(Namespace::as_str).filter(|name| !name.is_empty()).collect();
    let mut words = named.iter().take(NAMED_MAX).copied().collect::<Vec<_>>().join(", ");
    if named.len() > NAMED_MAX {
        words += &format!(" and {} more", named.len() - NAMED_MAX);
    }
    if some.contains(&Namespace::default()) {
        words += if named.is_empty() { "other namespaces" } else { " and other namespaces" };
        return format!(" for clients of {words}");
    }
    format!(" for clients of namespace {words}")
}
