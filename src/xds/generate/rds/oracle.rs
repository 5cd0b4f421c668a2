//! Routes of a port made at once and from scratch, against which those that share are held.

use std::collections::BTreeSet;

use prost::Message;
use strait_proto::envoy::envoy::config::route::v3 as route;

use super::{
    TrafficSettings, aliases, all_else, ending, host_of_address, in_full, is_anothers, is_domain,
    names_of, routed_ports, searched_domains, to_service,
};
use crate::aggregate::MergedService;
use crate::model::{ClusterId, Resolution};
use crate::push::PushContext;
use crate::push::addresses::ListenAddresses;

/// The bytes of the route of a port for sidecars of `cluster` with these addresses in a DNS domain.
pub(in crate::xds::generate) fn route(
    context: &PushContext,
    addresses: &ListenAddresses,
    cluster: &ClusterId,
    dns_domain: &str,
    number: u16,
) -> Vec<u8> {
    let virtual_hosts = of_port(context, addresses, cluster, dns_domain, number);
    let name = number.to_string();
    let end = ending(all_else(&TrafficSettings::of(&context.mesh)));
    route::RouteConfiguration { name, virtual_hosts, ..end }.encode_to_vec()
}

/// One virtual host for each service that has the port, oldest first, then one for all else.
fn of_port(
    context: &PushContext,
    addresses: &ListenAddresses,
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
        let aliases = aliases.get(hostname).into_iter().flatten();
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
                routes: vec![to_service(service, port.number)],
                ..Default::default()
            });
        }
    }
    hosts.push(all_else(&TrafficSettings::of(&context.mesh)));
    hosts
}
