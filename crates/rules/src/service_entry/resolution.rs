//! Resolution of an entry: the control plane sends the endpoints, or proxies resolve names.

use std::sync::Arc;

use super::convert::{EndpointDiscovery, EntryAddress, EntryEndpoint, EntryPort, ServiceEntry};
use strait_model::{
    ByName, Health, Hostname, NamedEndpoint, Resolution, SortedMap, TargetPort, TlsMode,
    given_labels,
};

/// Returns how proxies find the endpoints of `host`, including the names that proxies resolve. An
/// entry without endpoints or a selector resolves the host itself.
pub(super) fn resolution(
    entry: &ServiceEntry,
    host: &Hostname,
    ports: &[EntryPort],
    workloads: &[&EntryEndpoint],
) -> Resolution {
    let just_then = match entry.how {
        EndpointDiscovery::Static => return Resolution::ClientSide,
        EndpointDiscovery::None => return Resolution::Passthrough,
        EndpointDiscovery::Dns => false,
        EndpointDiscovery::DnsRoundRobin => true,
    };
    let ready = workloads.iter().filter(|one| one.health == Health::Healthy);
    // An upstream cluster that resolves names cannot contain an endpoint without an address.
    let named = ready.filter_map(|workload| {
        let address = match &workload.address {
            EntryAddress::Ip(address) => address.to_string().into(),
            EntryAddress::Name(name) | EntryAddress::Socket(name) => Arc::clone(name),
            EntryAddress::Network => return None,
        };
        Some((workload, address))
    });
    let mut endpoints: Vec<_> = named
        .map(|(workload, address)| NamedEndpoint {
            address,
            ports: ports_by_name(ports, |port| workload.port(port)),
            weight: workload.weight,
            locality: Arc::clone(&workload.locality),
            network: workload.network.clone(),
            tls_mode: workload.tls_mode(entry.external),
            labels: given_labels(&workload.labels),
        })
        .collect();
    if entry.selector.is_none() && entry.endpoints.is_empty() {
        endpoints.push(NamedEndpoint {
            address: host.as_str().into(),
            ports: ports_by_name(ports, |EntryPort { port, .. }| match port.target {
                TargetPort::Number(target) => target,
                TargetPort::Name(_) => port.number,
            }),
            weight: 1,
            locality: Arc::default(),
            network: None,
            tls_mode: TlsMode::Disabled,
            labels: None,
        });
    }
    Resolution::ByName(ByName { just_then, endpoints })
}

fn ports_by_name(
    ports: &[EntryPort],
    target: impl Fn(&EntryPort) -> u16,
) -> SortedMap<Arc<str>, u16> {
    ports.iter().map(|port| (Arc::clone(&port.port.name), target(port))).collect()
}
