//! Routes of an HTTP proxy, which is a Sidecar's listener with protocol HTTP_PROXY. They select by
//! host and port among all services that the Sidecar imports. (docs/reference/traffic.md,
//! "Sidecar".)

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use super::lists::{self, RouteList, RouteLists};
use super::{
    TrafficSettings, address_authority, aliases, counting, ending, for_all_else, host_names,
    in_full, is_anothers, is_domain, merged_with, refused, routed_ports, searched_domains,
    to_service,
};
use crate::class::Class;
use crate::encode;
use crate::lds::route_to;
use strait_mesh::aggregate::MergedService;
use strait_mesh::push::PushContext;
use strait_mesh::push::addresses::proxied_addresses;
use strait_model::{Hostname, Resolution};
use strait_proto::envoy::envoy::config::route::v3 as route;
use strait_xds::names::port_number;
use strait_xds::resource::Resource;

/// The prefix of the names of these routes.
const NAME: &str = "http_proxy.";

/// Returns the name of the routes of an HTTP proxy's port.
pub(crate) fn proxy_route_name(port: u16) -> String {
    format!("{NAME}{port}")
}

/// Returns the port of the HTTP proxy whose routes have this name.
pub(crate) fn proxy_port(name: &str) -> Option<u16> {
    name.strip_prefix(NAME).and_then(port_number)
}

/// Returns the routes of the HTTP proxy at `port` for clients of a class in a DNS domain, if the
/// class has such a proxy.
pub(crate) fn proxy_routes(
    context: &PushContext,
    class: &Class,
    dns_domain: Option<&str>,
    port: u16,
    route_lists: &RouteLists,
) -> Option<Resource> {
    let Class { cluster, namespace, selection, families } = class;
    if !context.traffic.scope(namespace, selection).proxies().contains_key(&port) {
        return None;
    }
    let addresses = proxied_addresses(context, cluster, (namespace, selection), *families, port);
    let searched = dns_domain.map(searched_domains).unwrap_or_default();
    let aliases = aliases(&addresses);
    let routed = || addresses.services.iter().map(|(service, _)| &**service);
    let at_80 =
        |service: &&MergedService| routed_ports(service, cluster).any(|one| one.number == 80);
    let beyond = lists::beyond(context, class, 80, routed().filter(at_80), route_lists);
    let services = routed().map(|service| (service.hostname(), &service.primary.namespace));
    let ruled = beyond.iter().map(|(host, namespace, _)| (host, namespace));
    let in_full = in_full(services.chain(ruled));
    let mut hosts = Vec::new();
    let mut used_domains = BTreeSet::new();
    let mut add = |host: &Hostname, number: u16, names: Vec<String>| {
        let domains = names.into_iter().flat_map(|name| named_at(name, number));
        let domains =
            domains.filter(|one| is_domain(one) && used_domains.insert(one.to_ascii_lowercase()));
        let domains: Vec<String> = domains.collect();
        let name = format!("{host}:{number}");
        (!domains.is_empty()).then(|| route::VirtualHost { name, domains, ..counting() })
    };
    for (service, vips) in &addresses.services {
        let hostname = service.hostname();
        let others = aliases.get(hostname).into_iter().flatten();
        let names = [hostname].into_iter().chain(others);
        let mut names: Vec<String> =
            names.flat_map(|name| host_names(name.as_str(), &searched)).collect();
        let owner = (hostname, &service.primary.namespace);
        names.retain(|name| !is_anothers(&in_full, context, namespace.as_str(), owner, name));
        if service.primary.resolution == Resolution::Headless {
            // Each pod has a name below the service's.
            names.extend(names.clone().iter().map(|name| format!("*.{name}")));
        }
        for number in routed_ports(service, cluster).map(|one| one.number) {
            let vips = vips.iter().filter(|vip| vip.has(number));
            let vips = vips.map(|vip| address_authority(&vip.address));
            let Some(host) = add(hostname, number, names.iter().cloned().chain(vips).collect())
            else {
                continue;
            };
            let list = lists::service_routes(context, class, number, hostname, route_lists);
            hosts.push(match list {
                Some(list) => (host, Some(list)),
                None => {
                    let routes = vec![to_service(hostname, number)];
                    (route::VirtualHost { routes, ..host }, None)
                }
            });
        }
    }
    for (host, _, list) in &beyond {
        let added = add(host, 80, vec![host.to_string()]);
        hosts.extend(added.map(|host| (host, Some(Arc::clone(list)))));
    }
    let mut hosts = share_routes(&hosts);
    let name = proxy_route_name(port);
    let end = route::RouteConfiguration {
        // The port in the request selects the service, not the port of the connection.
        ignore_port_in_host_matching: false,
        ..ending(all_else(&TrafficSettings::for_class(context, class)))
    };
    hosts.extend(end.virtual_hosts);
    Some(encode(
        &*name,
        &route::RouteConfiguration { name: name.clone(), virtual_hosts: hosts, ..end },
    ))
}

/// Returns the virtual hosts. Hosts with equal routes from rules share one, which is named after
/// the first.
fn share_routes(hosts: &[(route::VirtualHost, Option<Arc<RouteList>>)]) -> Vec<route::VirtualHost> {
    let mut shared = Vec::<route::VirtualHost>::new();
    let mut firsts = HashMap::new();
    for (host, list) in hosts {
        let Some(list) = list else {
            shared.push(host.clone());
            continue;
        };
        let at = *firsts.entry(list.routes()).or_insert(shared.len());
        match shared.get_mut(at) {
            Some(first) => first.domains.extend(host.domains.iter().cloned()),
            None => shared.push(merged_with(host, &list.bytes)),
        }
    }
    shared
}

/// Returns the domains of a host at a port: with the port, and for port 80 also without.
fn named_at(name: String, number: u16) -> impl Iterator<Item = String> {
    let with_port = format!("{name}:{number}");
    (number == 80).then_some(name).into_iter().chain([with_port])
}

/// Returns the virtual host for unknown names. The connection of this request has no original
/// destination.
fn all_else(settings: &TrafficSettings) -> route::VirtualHost {
    match settings.egress_proxy.as_deref().filter(|_| settings.outbound_any) {
        Some(upstream) => for_all_else("allow_any", route_to(upstream, None)),
        None => refused(),
    }
}
