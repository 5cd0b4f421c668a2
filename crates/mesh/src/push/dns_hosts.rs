//! The hosts of Gateways and their VirtualServices, with the external addresses of the routers that
//! serve them in each cluster. Pure.
//!
//! A router is found through a Service with an external address: its ready pods have the labels
//! that a Gateway selects, and it has a port of one of the Gateway's servers. A Gateway without a
//! selector applies to all routers, and a Service does not tell whether its pods are routers, so
//! such a Gateway has no records.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use super::context::PushContext;
use strait_model::{ClusterId, DnsHosts, DnsTarget, Health, Labels, Mode, Protocol, Service};
use strait_rules::traffic::gateway::{Gateway, ServerProtocol};

/// The ready pods behind a Service with external addresses.
struct RouterService<'a> {
    cluster: &'a ClusterId,
    service: &'a Service,
    /// The addresses of ready pods, by their labels.
    pods: BTreeMap<&'a Labels, BTreeSet<IpAddr>>,
}

/// Returns the hosts below `domains`.
pub fn dns_hosts(context: &PushContext, domains: &[String]) -> DnsHosts {
    let members = context.clusters.clusters.keys();
    let unknown = members.filter(|id| !context.facts.contains_key(*id)).cloned().collect();
    let mut hosts: BTreeMap<Arc<str>, BTreeMap<ClusterId, DnsTarget>> = BTreeMap::new();
    if domains.is_empty() {
        return DnsHosts { hosts, unknown };
    }
    let router_services = router_services(context);
    for (gateway, names) in names_by_gateway(context, domains) {
        for name in names {
            let targets = hosts.entry(name.into()).or_default();
            for router in &router_services {
                let ready = router.ready_for(context, gateway);
                if ready > 0 {
                    let target = targets.entry(router.cluster.clone()).or_default();
                    let addresses = router.service.external_addresses.iter().cloned();
                    target.addresses.extend(addresses);
                    target.ready = target.ready.max(ready);
                }
            }
        }
    }
    DnsHosts { hosts, unknown }
}

/// Returns the hosts of each Gateway below `domains`: of its servers, and of the VirtualServices
/// that these serve.
fn names_by_gateway<'a>(
    context: &'a PushContext,
    domains: &[String],
) -> Vec<(&'a Arc<Gateway>, BTreeSet<String>)> {
    let traffic = &context.traffic;
    let gateways = traffic.gateways.all().filter(|gateway| gateway.selector.is_some());
    let mut found = Vec::new();
    for gateway in gateways {
        let servers = gateway.servers.iter();
        let servers: Vec<_> = servers
            .filter(|server| !matches!(server.protocol, ServerProtocol::AutoPassthrough))
            .collect();
        let own = servers.iter().flat_map(|server| server.hosts.iter().map(|one| &one.host));
        let mut names: BTreeSet<String> = own.map(ToString::to_string).collect();
        for routed in traffic.virtual_services.all() {
            let service = &routed.service;
            if service.gateways.iter().any(|name| **name == *gateway.name) {
                let served = servers.iter().flat_map(|server| server.hosts_of(service));
                names.extend(served.map(ToString::to_string));
            }
        }
        names.retain(|name| domains.iter().any(|domain| is_below(name, domain)));
        if !names.is_empty() {
            found.push((gateway, names));
        }
    }
    found
}

/// Returns whether a host, or the suffix of a wildcard, is `domain` or below it.
fn is_below(host: &str, domain: &str) -> bool {
    let host = host.strip_prefix("*.").unwrap_or(host);
    host == domain || host.strip_suffix(domain).is_some_and(|rest| rest.ends_with('.'))
}

/// Returns the Services with external addresses in clusters that take part in load balancing.
fn router_services(context: &PushContext) -> Vec<RouterService<'_>> {
    let mut found = Vec::new();
    for merged in context.services.values() {
        for shard in &merged.shards {
            let (cluster, service) = (&shard.key.cluster, &shard.service);
            let known = context.clusters.clusters.get(cluster);
            let takes_part =
                known.is_none_or(|one| one.mode == Mode::Normal && one.withdrawn.is_none());
            if !shard.key.provider.is_cluster()
                || service.external_addresses.is_empty()
                || !takes_part
            {
                continue;
            }
            let mut pods: BTreeMap<&Labels, BTreeSet<IpAddr>> = BTreeMap::new();
            for endpoint in shard.endpoints.iter().filter(|one| one.health == Health::Healthy) {
                if let Some(labels) = endpoint.labels {
                    pods.entry(&**labels).or_default().insert(endpoint.address);
                }
            }
            found.push(RouterService { cluster, service, pods });
        }
    }
    found
}

impl RouterService<'_> {
    /// Returns the number of ready routers that a Gateway selects; 0 if the Service has none of the
    /// Gateway's ports.
    fn ready_for(&self, context: &PushContext, gateway: &Gateway) -> usize {
        let has = |number: u16| {
            let mut ports = self.service.ports.iter();
            ports.any(|port| port.number == number && port.protocol != Protocol::Udp)
        };
        if !gateway.servers.iter().any(|server| has(server.port)) {
            return 0;
        }
        let gateways = &context.traffic.gateways;
        let pods = self.pods.iter();
        let selected =
            pods.filter(|(labels, _)| gateways.selects(gateway, &self.service.namespace, labels));
        selected.map(|(_, addresses)| addresses.len()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_outside_of_the_domains_are_not_below_them() {
        for (host, domain, expected) in [
            ("shop.example", "shop.example", true),
            ("web.shop.example", "shop.example", true),
            ("*.shop.example", "shop.example", true),
            ("bankshop.example", "shop.example", false),
            ("example", "shop.example", false),
            ("*", "shop.example", false),
            ("*.example", "shop.example", false),
            ("shop.example.evil", "shop.example", false),
        ] {
            assert_eq!(is_below(host, domain), expected, "{host} {domain}");
        }
    }
}
