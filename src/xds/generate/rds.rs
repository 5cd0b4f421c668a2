//! Routes: by which name a request finds its service.
//!
//! A sidecar's HTTP listener for a port names the route `PORT`, which holds every service of that
//! port; a listener for one service of an undeclared protocol names the route `HOST:PORT`, which
//! holds that service alone. All sidecars with the same addresses, families and DNS domain share them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use strait_proto::envoy::envoy::config::route::v3 as route;

use super::encode;
use super::lds::{
    RetryOn, TrafficSettings, bool_value, everything, retries, route_to, virtual_host_of_everything,
};
use crate::aggregate::MergedService;
use crate::model::{ClusterId, Hostname, Port, Protocol, Resolution};
use crate::push::PushContext;
use crate::push::addresses::Addresses;
use crate::xds::generate::cds::PASSTHROUGH;
use crate::xds::names::{OutboundName, port_number};
use crate::xds::resource::Resource;

/// The route `name` for sidecars of `cluster` with these addresses in this DNS domain
/// (`NAMESPACE.svc.DOMAIN`).
pub(super) fn route(
    context: &PushContext,
    addresses: &Addresses,
    cluster: &ClusterId,
    dns_domain: &str,
    name: &str,
) -> Resource {
    let virtual_hosts = if let Some(port) = port_number(name) {
        of_port(context, addresses, cluster, dns_domain, port)
    } else if let Some((service, port)) = one_service(addresses, cluster, name) {
        vec![virtual_host_of_everything(name, to_service(service, port))]
    } else {
        return empty(name);
    };
    let message = route::RouteConfiguration {
        name: name.into(),
        virtual_hosts,
        // Services come and go; a route may name one whose upstream cluster isn't there yet.
        validate_clusters: bool_value(false),
        ignore_port_in_host_matching: true,
        ..Default::default()
    };
    encode(name, &message)
}

/// Whether a listener may have named this route: a port, or a service and its port.
pub(super) fn is_named(addresses: &Addresses, cluster: &ClusterId, name: &str) -> bool {
    port_number(name).is_some() || one_service(addresses, cluster, name).is_some()
}

/// Whether a pod in this DNS domain knows any of these services by a shorter name.
pub(super) fn is_any_shortened(addresses: &Addresses, dns_domain: &str) -> bool {
    let searched = searched_domains(dns_domain);
    let mut names = addresses.services.iter().map(|(service, _)| service.hostname().as_str());
    names.any(|name| searched.iter().any(|domain| shortened(name, domain).is_some()))
}

/// A route configuration without routes: without an answer a listener would wait for ever.
pub(super) fn empty(name: &str) -> Resource {
    encode(name, &route::RouteConfiguration { name: name.into(), ..Default::default() })
}

fn one_service<'a>(
    addresses: &'a Addresses,
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

/// The ports on which requests may be seen.
fn routed_ports<'a>(
    service: &'a MergedService,
    cluster: &ClusterId,
) -> impl Iterator<Item = &'a Port> {
    let alias = matches!(service.primary.resolution, Resolution::Alias(_));
    let routed = |port: &Port| port.protocol.is_http() || port.protocol == Protocol::Auto;
    service.ports_in(cluster).filter(move |port| !alias && routed(port))
}

fn to_service(service: &MergedService, port: &Port) -> route::Route {
    let upstream = OutboundName::sidecar(service.hostname().clone(), port.number);
    route_to(&upstream.to_string(), Some(retries(RetryOn::Upstream)))
}

/// One virtual host for each service that has the port, oldest first, then one for all else.
fn of_port(
    context: &PushContext,
    addresses: &Addresses,
    cluster: &ClusterId,
    dns_domain: &str,
    number: u16,
) -> Vec<route::VirtualHost> {
    let aliases = aliases(addresses);
    let searched = searched_domains(dns_domain);
    // Envoy refuses a domain that two virtual hosts have, in whatever case: the first has it.
    let mut taken = BTreeSet::new();
    let has_port =
        |service: &&MergedService| routed_ports(service, cluster).any(|port| port.number == number);
    let in_full =
        in_full(addresses.services.iter().map(|(service, _)| &**service).filter(has_port));
    let namespace = dns_domain.split('.').next().unwrap_or_default();
    let mut hosts = Vec::new();
    for (service, vips) in &addresses.services {
        let Some(port) = routed_ports(service, cluster).find(|port| port.number == number) else {
            continue;
        };
        let hostname = service.hostname();
        let aliases = aliases.get(hostname).into_iter().flatten().copied();
        let names = [hostname].into_iter().chain(aliases);
        let mut domains: Vec<String> =
            names.flat_map(|name| names_of(name.as_str(), &searched)).collect();
        domains.retain(|domain| !is_anothers(&in_full, context, namespace, service, domain));
        if service.primary.resolution == Resolution::Headless {
            // Each pod has a name below the service's.
            domains.extend(domains.clone().iter().map(|domain| format!("*.{domain}")));
        }
        let vips = vips.iter().filter(|vip| vip.has(number));
        domains.extend(vips.map(|vip| host_of_address(&vip.address)));
        domains.retain(|domain| is_domain(domain) && taken.insert(domain.to_ascii_lowercase()));
        if !domains.is_empty() {
            hosts.push(route::VirtualHost {
                name: format!("{hostname}:{number}"),
                domains,
                routes: vec![to_service(service, port)],
                ..Default::default()
            });
        }
    }
    hosts.push(all_else(&TrafficSettings::of(&context.mesh)));
    hosts
}

/// Hosts by their names in full, in lower case.
pub(super) type InFull<'a> = BTreeMap<String, Vec<&'a MergedService>>;

/// The names that these services have in full.
pub(super) fn in_full<'a>(services: impl Iterator<Item = &'a MergedService>) -> InFull<'a> {
    let mut names = InFull::new();
    for service in services {
        names.entry(service.hostname().as_str().to_ascii_lowercase()).or_default().push(service);
    }
    names
}

/// Whether `domain`, one of the names of `service`, is rather that of a host that is called so in full: then the
/// short form is only a guess of what is meant, whoever is older. That holds for hosts of the service's own
/// namespace, of the proxy's and of the system's. Any other may not take a service's traffic by its short name.
pub(super) fn is_anothers(
    in_full: &InFull<'_>,
    context: &PushContext,
    namespace: &str,
    service: &MergedService,
    domain: &str,
) -> bool {
    let may = |other: &MergedService| {
        let of = other.primary.namespace.as_str();
        [service.primary.namespace.as_str(), namespace, &context.settings.system_namespace]
            .contains(&of)
    };
    let lower = domain.to_ascii_lowercase();
    lower != service.hostname().as_str().to_ascii_lowercase()
        && in_full.get(&lower).is_some_and(|others| others.iter().any(|other| may(other)))
}

/// For each host the names that stand for it. An alias may stand for another one.
fn aliases(addresses: &Addresses) -> BTreeMap<&Hostname, Vec<&Hostname>> {
    let aliases = addresses.services.iter().filter_map(|(service, _)| {
        let Resolution::Alias(target) = &service.primary.resolution else { return None };
        Some((service.hostname(), target))
    });
    let targets: BTreeMap<&Hostname, &Hostname> = aliases.clone().collect();
    let mut of_host: BTreeMap<&Hostname, Vec<&Hostname>> = BTreeMap::new();
    for (name, target) in aliases {
        let chain = std::iter::successors(Some(target), |one| targets.get(*one).copied());
        // No chain is longer than there are aliases, but for a circle, which ends at one of them: none
        // of them has a route.
        if let Some(last) = chain.take(targets.len()).last() {
            of_host.entry(last).or_default().push(name);
        }
    }
    of_host
}

/// What becomes of requests to names the mesh doesn't know.
fn all_else(settings: &TrafficSettings) -> route::VirtualHost {
    if settings.outbound_any {
        return virtual_host_of_everything("allow_any", route_to(PASSTHROUGH, None));
    }
    let refusal = route::DirectResponseAction { status: 502, ..Default::default() };
    let refused = everything(route::route::Action::DirectResponse(refusal));
    virtual_host_of_everything("block_all", refused)
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

/// Whether Envoy takes this as a domain. One that it refuses would cost all services of the port
/// their routes.
fn is_domain(text: &str) -> bool {
    let plain =
        |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | ':' | '[' | ']');
    let text = text.strip_prefix("*.").unwrap_or(text);
    !text.is_empty() && text.chars().all(plain)
}
