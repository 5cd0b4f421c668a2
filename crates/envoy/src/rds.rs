//! Routes: they select the service of a request by its host name.
//!
//! The HTTP listener of a sidecar for a port names the route `PORT`, which contains every service
//! of that port. A listener for one service, with an undeclared protocol or selected by address,
//! names the route `HOST:PORT`, which contains only that service. A listener for HTTP proxy
//! requests names `http_proxy.PORT`. All sidecars with the same addresses, address families and DNS
//! domain share them.
//!
//! Routes of a port differ little between namespaces and between versions: see [`RouteBase`].

mod base;
mod claims;
mod contenders;
mod ingress;
mod library;
mod lists;
mod measure;
#[cfg(test)]
pub(super) mod oracle;
mod proxied;
mod rules;
mod text;

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;

use prost::Message;

pub(super) use self::base::RouteBase;
pub(super) use self::contenders::{Contenders, RouteCaller, belongs_to, contenders};
pub use self::ingress::RetainedRoutes;
pub(super) use self::ingress::{route_for_servers, rules_at};
pub(super) use self::lists::{RouteLists, library_routes, unnumbered_port, unruled};
pub use self::measure::rule_bytes;
pub(super) use self::proxied::{proxy_port, proxy_route_name, proxy_routes};
use self::rules::to_service;
pub(super) use self::rules::{FAULT, NOWHERE};
use super::cds::GATEWAY_HEADER;
use super::class::Class;
use super::encode;
use super::lds::{TrafficSettings, bool_value, catch_all_host, everything, route_to};
use strait_base::hash::SecretHasher;
use strait_mesh::aggregate::MergedService;
use strait_mesh::push::PushContext;
use strait_mesh::push::addresses::{ListenAddresses, Vip};
use strait_model::mesh_config::RetryRule;
use strait_model::{ClusterId, Hostname, Namespace, Port, Protocol, Resolution};
use strait_proto::envoy::envoy::config::route::v3 as route;
use strait_proto::envoy::google::protobuf::UInt32Value;
use strait_xds::names::port_number;
use strait_xds::resource::Resource;

/// Returns the route `name` for one service, or `None` if the service does not exist.
pub(super) fn service_routes(
    context: &PushContext,
    addresses: &ListenAddresses,
    class: &Class,
    name: &str,
    route_lists: &RouteLists,
) -> Option<Resource> {
    let (service, port) = find_service_port(addresses, &class.cluster, name)?;
    let hostname = service.hostname();
    let mut host = for_everything(name, to_service(hostname, port.number));
    if let Some(list) = lists::service_routes(context, class, port.number, hostname, route_lists) {
        host.routes.clear();
        host = merged_with(&host, &list.bytes);
    }
    Some(encode(name, &route::RouteConfiguration { name: name.into(), ..ending(host) }))
}

/// Returns the routes of requests to pods in other networks: all of them go to `upstream`.
pub(super) fn remote_pod_routes(
    upstream: &str,
    retries: Option<&RetryRule>,
) -> route::RouteConfiguration {
    let host = for_everything(upstream, rules::to_pods(upstream, retries));
    route::RouteConfiguration { name: upstream.into(), ..ending(host) }
}

/// Returns the settings of all outbound virtual hosts: servers receive the attempt number
/// (`x-envoy-attempt-count`).
fn counting() -> route::VirtualHost {
    route::VirtualHost { include_request_attempt_count: true, ..Default::default() }
}

/// Returns a virtual host with these settings for all domains.
fn for_everything(name: &str, to: route::Route) -> route::VirtualHost {
    let host = catch_all_host(name, to);
    route::VirtualHost { include_request_attempt_count: true, ..host }
}

/// Returns the virtual host for all other domains. Its name appears in logs.
fn for_all_else(name: &str, to: route::Route) -> route::VirtualHost {
    for_everything(name, route::Route { name: name.into(), ..to })
}

/// Returns a virtual host with additional encoded fields.
fn merged_with(host: &route::VirtualHost, fields: &[u8]) -> route::VirtualHost {
    let mut bytes = host.encode_to_vec();
    bytes.extend_from_slice(fields);
    route::VirtualHost::decode(&bytes[..]).expect("it was written here")
}

/// Maximum length of a direct response: the limit for rules. Envoy refuses an entire route
/// configuration with a longer response. Its default is 4 KiB.
const ANSWER_BYTES_MAX: UInt32Value = UInt32Value { value: 1 << 20 };

/// Returns the end of every route configuration: the last virtual host and the settings.
fn ending(host: route::VirtualHost) -> route::RouteConfiguration {
    route::RouteConfiguration {
        virtual_hosts: vec![host],
        // A route may name a service whose upstream cluster does not exist yet.
        validate_clusters: bool_value(false),
        ignore_port_in_host_matching: true,
        max_direct_response_body_size_bytes: Some(ANSWER_BYTES_MAX),
        response_headers_to_remove: vec![GATEWAY_HEADER.into()],
        ..Default::default()
    }
}

/// Returns whether a listener may name this route: a port, the port of an HTTP proxy, or a service
/// and its port.
pub(super) fn is_named(addresses: &ListenAddresses, cluster: &ClusterId, name: &str) -> bool {
    port_number(name).is_some()
        || proxy_port(name).is_some()
        || find_service_port(addresses, cluster, name).is_some()
}

/// Returns whether any of these services has a shorter name in this DNS domain.
pub(super) fn is_any_shortened(addresses: &ListenAddresses, dns_domain: &str) -> bool {
    let searched = searched_domains(dns_domain);
    let mut names = addresses.services.iter().map(|(service, _)| service.hostname().as_str());
    names.any(|name| searched.iter().any(|domain| shortened(name, domain).is_some()))
}

/// Returns whether a pod in this DNS domain can use `name` for a host: the full name, or a short
/// name that the resolver completes.
pub(super) fn is_called(hostname: &str, dns_domain: &str, name: &str) -> bool {
    let names = host_names(hostname, &searched_domains(dns_domain));
    names.iter().any(|one| one.eq_ignore_ascii_case(name))
}

/// Returns a route configuration without routes. Without a response, a listener would wait forever.
pub(super) fn empty(name: &str) -> Resource {
    encode(name, &route::RouteConfiguration { name: name.into(), ..Default::default() })
}

fn find_service_port<'a>(
    addresses: &'a ListenAddresses,
    cluster: &ClusterId,
    name: &str,
) -> Option<(&'a MergedService, &'a Port)> {
    let (hostname, port) = name.rsplit_once(':')?;
    let number = port_number(port)?;
    let mut services = addresses.services.iter();
    let (service, _) = services.find(|(service, _)| service.hostname().as_str() == hostname)?;
    let port = routed_ports(service, cluster).find(|port| port.number == number)?;
    Some((service, port))
}

/// Returns whether HTTP rules apply to a port of a service, for clients in a cluster.
pub(super) fn is_routed(service: &MergedService, cluster: &ClusterId, number: u16) -> bool {
    routed_ports(service, cluster).any(|port| port.number == number)
}

/// Returns the ports whose traffic may be HTTP.
fn routed_ports<'a>(
    service: &'a MergedService,
    cluster: &ClusterId,
) -> impl Iterator<Item = &'a Port> {
    let alias = matches!(service.primary.resolution, Resolution::Alias(_));
    let routed = |port: &Port| port.protocol.is_http() || port.protocol == Protocol::Auto;
    service.ports_in(cluster).filter(move |port| !alias && routed(port))
}

/// The namespaces of hosts by their full names in lower case.
pub(super) type InFull<'a> = HashMap<String, Vec<&'a Namespace>, SecretHasher>;

/// Returns the full names of these hosts, with their namespaces.
pub(super) fn in_full<'a>(
    hosts: impl Iterator<Item = (&'a Hostname, &'a Namespace)>,
) -> InFull<'a> {
    let mut names = InFull::default();
    for (hostname, namespace) in hosts {
        names.entry(hostname.as_str().to_ascii_lowercase()).or_default().push(namespace);
    }
    names
}

/// Returns whether `domain`, a name of a host, is the full name of another host. Then the full name
/// wins over the short name, even if its host is younger. This applies to hosts in the service's
/// own namespace, the proxy's namespace and the system namespace. Hosts of other namespaces cannot
/// take a service's traffic by its short name.
pub(super) fn is_anothers(
    in_full: &InFull<'_>,
    context: &PushContext,
    namespace: &str,
    (hostname, owner): (&Hostname, &Namespace),
    domain: &str,
) -> bool {
    let may = |other: &&Namespace| {
        [owner.as_str(), namespace, &context.settings.system_namespace].contains(&other.as_str())
    };
    called(in_full, hostname, domain).iter().any(may)
}

/// Returns the namespaces of other hosts whose full name equals a name of this host.
fn called<'a, 'b>(
    in_full: &'b InFull<'a>,
    hostname: &Hostname,
    domain: &str,
) -> &'b [&'a Namespace] {
    if domain.eq_ignore_ascii_case(hostname.as_str()) {
        return &[];
    }
    in_full.get(&domain.to_ascii_lowercase()).map_or(&[], |others| others)
}

/// Returns the aliases of each host. An alias may refer to another alias.
fn aliases(addresses: &ListenAddresses) -> BTreeMap<Hostname, Vec<Hostname>> {
    let aliases = addresses.services.iter().filter_map(|(service, _)| {
        let Resolution::Alias(target) = &service.primary.resolution else { return None };
        Some((service.hostname(), target))
    });
    let targets: BTreeMap<&Hostname, &Hostname> = aliases.clone().collect();
    let mut by_target: BTreeMap<Hostname, Vec<Hostname>> = BTreeMap::new();
    for (name, target) in aliases {
        let chain = std::iter::successors(Some(target), |one| targets.get(*one).copied());
        // A chain is at most as long as the number of aliases, unless it is a cycle. The result of
        // a cycle is an alias, and aliases have no routes.
        if let Some(last) = chain.take(targets.len()).last() {
            by_target.entry(last.clone()).or_default().push(name.clone());
        }
    }
    by_target
}

/// Returns the virtual host for unknown names.
fn all_else(settings: &TrafficSettings) -> route::VirtualHost {
    if let Some(upstream) = settings.to_unknown() {
        return for_all_else("allow_any", route_to(upstream, None));
    }
    refused()
}

/// Returns the virtual host that refuses all requests that no other virtual host matches.
fn refused() -> route::VirtualHost {
    let refusal = route::DirectResponseAction { status: 502, ..Default::default() };
    let refused = everything(route::route::Action::DirectResponse(refusal));
    for_all_else("block_all", refused)
}

/// Returns the search domains of a pod's resolver (Kubernetes, "DNS for Services and Pods"): the
/// domain of the pod's namespace, of all services, and of the cluster.
fn searched_domains(dns_domain: &str) -> Vec<String> {
    let below = |domain: &str| domain.split_once('.').map(|(_, rest)| rest.to_owned());
    let services = below(dns_domain);
    let cluster = services.as_deref().and_then(below);
    let all = [Some(dns_domain.to_owned()), services, cluster];
    all.into_iter().flatten().filter(|domain| !domain.is_empty()).collect()
}

/// Returns the names that a name may refer to in a DNS domain: itself, and with each search domain.
pub(super) fn completed(name: &str, dns_domain: &str) -> Vec<String> {
    let searched = searched_domains(dns_domain);
    let longer = searched.iter().map(|domain| format!("{name}.{domain}"));
    std::iter::once(name.to_owned()).chain(longer).collect()
}

/// Returns all forms of a host name: the full name, with the final dot, and the short names that
/// the resolver completes.
fn host_names(hostname: &str, searched: &[String]) -> Vec<String> {
    let mut names = vec![hostname.to_owned(), format!("{hostname}.")];
    let short = searched.iter().filter_map(|domain| shortened(hostname, domain));
    names.extend(short.map(str::to_owned));
    names
}

/// Returns the short name that becomes `hostname` with the search domain `domain`.
fn shortened<'a>(hostname: &'a str, domain: &str) -> Option<&'a str> {
    hostname.strip_suffix(domain)?.strip_suffix('.')
}

/// Returns an address in the format of a request's authority.
fn address_authority(address: &IpAddr) -> String {
    match address {
        IpAddr::V4(address) => address.to_string(),
        IpAddr::V6(address) => format!("[{address}]"),
    }
}

/// Returns whether a domain is that of an address.
pub(super) fn is_address_domain(vip: &Vip, domain: &str) -> bool {
    address_authority(&vip.address) == domain
}

/// Returns whether Envoy accepts this text as a domain. An invalid domain would make Envoy refuse
/// the routes of all services of the port.
fn is_domain(text: &str) -> bool {
    let plain =
        |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | ':' | '[' | ']');
    let text = text.strip_prefix("*.").unwrap_or(text);
    !text.is_empty() && text.chars().all(plain)
}
