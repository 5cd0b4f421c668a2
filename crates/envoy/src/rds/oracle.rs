//! An independent generator of a port's entire route configuration, for comparison with the
//! configuration of shared chunks.

use std::collections::BTreeSet;

use prost::Message;

use super::lists::{self, RouteLists};
use super::{
    TrafficSettings, address_authority, aliases, all_else, counting, ending, host_names, in_full,
    is_anothers, is_domain, merged_with, routed_ports, searched_domains, to_service,
};
use crate::class::Class;
use strait_mesh::aggregate::MergedService;
use strait_mesh::push::PushContext;
use strait_mesh::push::addresses::ListenAddresses;
use strait_model::Resolution;
use strait_proto::envoy::envoy::config::route::v3 as route;

/// Returns the encoded route of a port for sidecars of a class with these addresses in a DNS
/// domain.
pub(crate) fn route(
    context: &PushContext,
    addresses: &ListenAddresses,
    class: &Class,
    dns_domain: &str,
    number: u16,
) -> Vec<u8> {
    let virtual_hosts = port_virtual_hosts(context, addresses, class, dns_domain, number);
    let name = number.to_string();
    let end = ending(all_else(&TrafficSettings::for_class(context, class)));
    route::RouteConfiguration { name, virtual_hosts, ..end }.encode_to_vec()
}

/// Returns one virtual host for each service of the port (oldest first), one for each host that
/// only rules name, and one for all other names.
fn port_virtual_hosts(
    context: &PushContext,
    addresses: &ListenAddresses,
    class: &Class,
    dns_domain: &str,
    number: u16,
) -> Vec<route::VirtualHost> {
    let aliases = aliases(addresses);
    let searched = searched_domains(dns_domain);
    let cluster = &class.cluster;
    let route_lists = RouteLists::default();
    // Envoy refuses a domain that occurs in two virtual hosts, regardless of case. The first one
    // keeps it.
    let mut used_domains = BTreeSet::new();
    let has_port =
        |service: &&MergedService| routed_ports(service, cluster).any(|port| port.number == number);
    let routed: Vec<&MergedService> =
        addresses.services.iter().map(|(service, _)| &**service).filter(has_port).collect();
    let beyond = lists::beyond(context, class, number, routed.iter().copied(), &route_lists);
    let services = routed.iter().map(|service| (service.hostname(), &service.primary.namespace));
    let in_full =
        in_full(services.chain(beyond.iter().map(|(host, namespace, _)| (host, namespace))));
    let namespace = dns_domain.split('.').next().unwrap_or_default();
    let mut hosts: Vec<route::VirtualHost> = Vec::new();
    // Hosts with equal routes share a virtual host, which is named after the first.
    let mut add =
        |host: route::VirtualHost| match hosts.iter_mut().find(|one| one.routes == host.routes) {
            Some(first) => first.domains.extend(host.domains),
            None => hosts.push(host),
        };
    for (service, vips) in &addresses.services {
        let Some(port) = routed_ports(service, cluster).find(|port| port.number == number) else {
            continue;
        };
        let hostname = service.hostname();
        let aliases = aliases.get(hostname).into_iter().flatten();
        let names = [hostname].into_iter().chain(aliases);
        let mut domains: Vec<String> =
            names.flat_map(|name| host_names(name.as_str(), &searched)).collect();
        let owner = (hostname, &service.primary.namespace);
        domains.retain(|domain| !is_anothers(&in_full, context, namespace, owner, domain));
        if service.primary.resolution == Resolution::Headless {
            // Each pod has a name below the service's.
            domains.extend(domains.clone().iter().map(|domain| format!("*.{domain}")));
        }
        let vips = vips.iter().filter(|vip| vip.has(number));
        domains.extend(vips.map(|vip| address_authority(&vip.address)));
        domains
            .retain(|domain| is_domain(domain) && used_domains.insert(domain.to_ascii_lowercase()));
        let name = format!("{hostname}:{number}");
        let host = route::VirtualHost { name, domains, ..counting() };
        add(match lists::service_routes(context, class, number, hostname, &route_lists) {
            Some(list) => merged_with(&host, &list.bytes),
            None => {
                let routes = vec![to_service(hostname, port.number)];
                route::VirtualHost { routes, ..host }
            }
        });
    }
    for (host, _, list) in beyond {
        let is_free =
            is_domain(host.as_str()) && used_domains.insert(host.as_str().to_ascii_lowercase());
        let domains = is_free.then(|| host.to_string()).into_iter().collect();
        let host = route::VirtualHost { name: format!("{host}:{number}"), domains, ..counting() };
        add(merged_with(&host, &list.bytes));
    }
    hosts.retain(|host| !host.domains.is_empty());
    hosts.push(all_else(&TrafficSettings::for_class(context, class)));
    hosts
}
