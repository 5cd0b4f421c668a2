//! Routes: by which name a request finds its service.
//!
//! A sidecar's HTTP listener for a port names the route `PORT`, which holds every service of that
//! port; a listener for one service, of an undeclared protocol or told apart by its address, names the route
//! `HOST:PORT`, which holds that service alone; one for requests to a proxy names `http_proxy.PORT`. All sidecars with the same addresses, families and DNS domain share them.
//!
//! Routes of a port differ little between namespaces, and between versions: see [`Base`].

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
pub use self::ingress::HeldRoutes;
pub(super) use self::ingress::{of_servers, rules_at};
pub(super) use self::lists::{RouteLists, of_library, unnumbered_port, unruled};
pub use self::measure::rule_bytes;
pub(super) use self::proxied::{of_proxy, proxy_port, proxy_route_name};
use self::rules::to_service;
pub(super) use self::rules::{FAULT, NOWHERE};
use super::class::Class;
use super::encode;
use super::lds::{TrafficSettings, bool_value, everything, route_to, virtual_host_of_everything};
use strait_base::hash::SecretHasher;
use strait_mesh::aggregate::MergedService;
use strait_mesh::push::PushContext;
use strait_mesh::push::addresses::{ListenAddresses, Vip};
use strait_model::{ClusterId, Hostname, Namespace, Port, Protocol, Resolution};
use strait_proto::envoy::envoy::config::route::v3 as route;
use strait_proto::envoy::google::protobuf::UInt32Value;
use strait_xds::names::port_number;
use strait_xds::resource::Resource;

/// The route `name` where that is of one service; `None` where there is no such service.
pub(super) fn of_service(
    context: &PushContext,
    addresses: &ListenAddresses,
    class: &Class,
    name: &str,
    kept: &RouteLists,
) -> Option<Resource> {
    let (service, port) = one_service(addresses, &class.cluster, name)?;
    let hostname = service.hostname();
    let mut host = for_everything(name, to_service(hostname, port.number));
    if let Some(list) = lists::of_service(context, class, port.number, hostname, kept) {
        host.routes.clear();
        host = merged_with(&host, &list.bytes);
    }
    Some(encode(name, &route::RouteConfiguration { name: name.into(), ..ending(host) }))
}

/// What all virtual hosts on the way out say: servers are told which attempt a request is (`x-envoy-attempt-count`).
fn counting() -> route::VirtualHost {
    route::VirtualHost { include_request_attempt_count: true, ..Default::default() }
}

/// One of these for every domain.
fn for_everything(name: &str, to: route::Route) -> route::VirtualHost {
    let host = virtual_host_of_everything(name, to);
    route::VirtualHost { include_request_attempt_count: true, ..host }
}

/// One for what no other takes, which logs know by its name.
fn for_all_else(name: &str, to: route::Route) -> route::VirtualHost {
    for_everything(name, route::Route { name: name.into(), ..to })
}

/// A virtual host with fields that are encoded already.
fn merged_with(host: &route::VirtualHost, fields: &[u8]) -> route::VirtualHost {
    let mut bytes = host.encode_to_vec();
    bytes.extend_from_slice(fields);
    route::VirtualHost::decode(&bytes[..]).expect("it was written here")
}

/// The longest answer that a route gives itself: what rules may say. Of a longer one than it was told Envoy refuses the whole
/// table, and 4 KiB are what it takes unless told.
const ANSWER_BYTES_MAX: UInt32Value = UInt32Value { value: 1 << 20 };

/// What all routes end with: a virtual host, and settings.
fn ending(host: route::VirtualHost) -> route::RouteConfiguration {
    route::RouteConfiguration {
        virtual_hosts: vec![host],
        // Services come and go; a route may name one whose upstream cluster isn't there yet.
        validate_clusters: bool_value(false),
        ignore_port_in_host_matching: true,
        max_direct_response_body_size_bytes: Some(ANSWER_BYTES_MAX),
        ..Default::default()
    }
}

/// Whether a listener may have named this route: a port, that of a proxy, or a service and its port.
pub(super) fn is_named(addresses: &ListenAddresses, cluster: &ClusterId, name: &str) -> bool {
    port_number(name).is_some()
        || proxy_port(name).is_some()
        || one_service(addresses, cluster, name).is_some()
}

/// Whether a pod in this DNS domain knows any of these services by a shorter name.
pub(super) fn is_any_shortened(addresses: &ListenAddresses, dns_domain: &str) -> bool {
    let searched = searched_domains(dns_domain);
    let mut names = addresses.services.iter().map(|(service, _)| service.hostname().as_str());
    names.any(|name| searched.iter().any(|domain| shortened(name, domain).is_some()))
}

/// Whether a pod in this DNS domain means a host by a name: by its own, or by as short a one as the resolver allows.
pub(super) fn is_called(hostname: &str, dns_domain: &str, name: &str) -> bool {
    let names = names_of(hostname, &searched_domains(dns_domain));
    names.iter().any(|one| one.eq_ignore_ascii_case(name))
}

/// A route configuration without routes: without an answer a listener would wait for ever.
pub(super) fn empty(name: &str) -> Resource {
    encode(name, &route::RouteConfiguration { name: name.into(), ..Default::default() })
}

fn one_service<'a>(
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

/// Whether rules for requests hold on a port of a service, as clients in a cluster see it.
pub(super) fn is_routed(service: &MergedService, cluster: &ClusterId, number: u16) -> bool {
    routed_ports(service, cluster).any(|port| port.number == number)
}

/// The ports on which requests may be seen.
fn routed_ports<'a>(
    service: &'a MergedService,
    cluster: &ClusterId,
) -> impl Iterator<Item = &'a Port> {
    let alias = matches!(service.primary.resolution, Resolution::Alias(_));
    let routed = |port: &Port| port.protocol.is_http() || port.protocol == Protocol::Auto;
    service.ports_in(cluster).filter(move |port| !alias && routed(port))
}

/// The namespaces of hosts by their names in full, in lower case.
pub(super) type InFull<'a> = HashMap<String, Vec<&'a Namespace>, SecretHasher>;

/// The names that these hosts have in full, each with its namespace.
pub(super) fn in_full<'a>(
    hosts: impl Iterator<Item = (&'a Hostname, &'a Namespace)>,
) -> InFull<'a> {
    let mut names = InFull::default();
    for (hostname, namespace) in hosts {
        names.entry(hostname.as_str().to_ascii_lowercase()).or_default().push(namespace);
    }
    names
}

/// Whether `domain`, one of the names of a host, is rather that of a host that is called so in full: then the
/// short form is only a guess of what is meant, whoever is older. That holds for hosts of the service's own
/// namespace, of the proxy's and of the system's. Any other may not take a service's traffic by its short name.
pub(super) fn is_anothers(
    in_full: &InFull<'_>,
    context: &PushContext,
    namespace: &str,
    (hostname, of): (&Hostname, &Namespace),
    domain: &str,
) -> bool {
    let may = |other: &&Namespace| {
        [of.as_str(), namespace, &context.settings.system_namespace].contains(&other.as_str())
    };
    called(in_full, hostname, domain).iter().any(may)
}

/// The namespaces of other hosts that are called in full what is one of the names of a host.
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

/// For each host the names that stand for it. An alias may stand for another one.
fn aliases(addresses: &ListenAddresses) -> BTreeMap<Hostname, Vec<Hostname>> {
    let aliases = addresses.services.iter().filter_map(|(service, _)| {
        let Resolution::Alias(target) = &service.primary.resolution else { return None };
        Some((service.hostname(), target))
    });
    let targets: BTreeMap<&Hostname, &Hostname> = aliases.clone().collect();
    let mut of_host: BTreeMap<Hostname, Vec<Hostname>> = BTreeMap::new();
    for (name, target) in aliases {
        let chain = std::iter::successors(Some(target), |one| targets.get(*one).copied());
        // No chain is longer than there are aliases, but for a circle, which ends at one of them: none
        // of them has a route.
        if let Some(last) = chain.take(targets.len()).last() {
            of_host.entry(last.clone()).or_default().push(name.clone());
        }
    }
    of_host
}

/// What becomes of requests to names the mesh doesn't know.
fn all_else(settings: &TrafficSettings) -> route::VirtualHost {
    if let Some(upstream) = settings.to_unknown() {
        return for_all_else("allow_any", route_to(upstream, None));
    }
    refused()
}

/// Answers whatever no other takes.
fn refused() -> route::VirtualHost {
    let refusal = route::DirectResponseAction { status: 502, ..Default::default() };
    let refused = everything(route::route::Action::DirectResponse(refusal));
    for_all_else("block_all", refused)
}

/// The domains that a pod's resolver tries to complete a name with (Kubernetes, "DNS for Services and
/// Pods"): its namespace's, that of all services, the cluster's.
fn searched_domains(dns_domain: &str) -> Vec<String> {
    let below = |domain: &str| domain.split_once('.').map(|(_, rest)| rest.to_owned());
    let services = below(dns_domain);
    let cluster = services.as_deref().and_then(below);
    let all = [Some(dns_domain.to_owned()), services, cluster];
    all.into_iter().flatten().filter(|domain| !domain.is_empty()).collect()
}

/// What a name may stand for in a DNS domain, as it is and completed by the resolver.
pub(super) fn completed(name: &str, dns_domain: &str) -> Vec<String> {
    let searched = searched_domains(dns_domain);
    let longer = searched.iter().map(|domain| format!("{name}.{domain}"));
    std::iter::once(name.to_owned()).chain(longer).collect()
}

/// All forms of a host name: in full, with the final dot, and as short as the resolver allows.
fn names_of(hostname: &str, searched: &[String]) -> Vec<String> {
    let mut names = vec![hostname.to_owned(), format!("{hostname}.")];
    let short = searched.iter().filter_map(|domain| shortened(hostname, domain));
    names.extend(short.map(str::to_owned));
    names
}

/// What the resolver completes to this name with that domain.
fn shortened<'a>(hostname: &'a str, domain: &str) -> Option<&'a str> {
    hostname.strip_suffix(domain)?.strip_suffix('.')
}

/// An address as it stands in a request's authority.
fn host_of_address(address: &IpAddr) -> String {
    match address {
        IpAddr::V4(address) => address.to_string(),
        IpAddr::V6(address) => format!("[{address}]"),
    }
}

/// Whether a domain is that of an address.
pub(super) fn is_domain_of(vip: &Vip, domain: &str) -> bool {
    host_of_address(&vip.address) == domain
}

/// Whether Envoy takes this as a domain. One that it refuses would cost all services of the port
/// their routes.
fn is_domain(text: &str) -> bool {
    let plain =
        |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | ':' | '[' | ']');
    let text = text.strip_prefix("*.").unwrap_or(text);
    !text.is_empty() && text.chars().all(plain)
}
