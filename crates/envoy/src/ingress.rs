//! The names of a router's listeners, filter chains and route configurations.

use std::cell::OnceCell;
use std::collections::HashMap;

use strait_mesh::push::ingress::IngressOutline;
use strait_rules::traffic::gateway::ServerProtocol;
use strait_rules::traffic::gateway_servers::{GatewayPort, PlacedServer};

/// Returns the name of the route configuration of a plain-text port. (Istio's names, which users'
/// patches match.)
pub(super) fn http_route_name(port: &GatewayPort<'_>) -> String {
    let name = format!("http.{}", port.number);
    with_bind(name, port)
}

/// Returns the name of the route configuration of a server that terminates TLS.
pub(super) fn https_route_name(port: &GatewayPort<'_>, placed: &PlacedServer<'_>) -> String {
    with_bind(format!("https.{}", server_name(placed)), port)
}

/// Returns the name of the filter chain of a server that terminates TLS and forwards raw TCP.
pub(super) fn tls_chain_name(placed: &PlacedServer<'_>) -> String {
    format!("tls.{}", server_name(placed))
}

/// Returns the unique name of a server: the port, the port name, and the Gateway's name and
/// namespace.
fn server_name(PlacedServer { gateway, server, .. }: &PlacedServer<'_>) -> String {
    let meta = &gateway.meta;
    format!("{}.{}.{}.{}", server.port, server.port_name, meta.name, meta.namespace)
}

fn with_bind(name: String, port: &GatewayPort<'_>) -> String {
    match port.bind {
        Some(address) => format!("{name}.{address}"),
        None => name,
    }
}

/// The servers of a router, indexed by the names of their route configurations.
pub(super) struct NamedIngress<'a> {
    pub(super) outline: IngressOutline<'a>,
    places: OnceCell<HashMap<String, ServersPlace>>,
}

/// The position of servers among the ports of a router.
struct ServersPlace {
    port: usize,
    /// The positions of servers with TLS; `None` for all plain-text servers.
    tls: Option<Vec<usize>>,
}

impl<'a> NamedIngress<'a> {
    pub(super) fn new(outline: IngressOutline<'a>) -> Self {
        Self { outline, places: OnceCell::new() }
    }

    /// Returns the servers with this route configuration: either all plain-text servers of a port
    /// or one server with TLS. Servers of a Gateway whose ports have equal names share it.
    pub(super) fn servers_for(
        &self,
        name: &str,
    ) -> Option<(&GatewayPort<'a>, Vec<&PlacedServer<'a>>)> {
        let place = self.places.get_or_init(|| places(&self.outline.ports)).get(name)?;
        let port = &self.outline.ports[place.port];
        let servers = match &place.tls {
            None => port.http.iter().collect(),
            Some(all) => all.iter().map(|at| &port.tls[*at]).collect(),
        };
        Some((port, servers))
    }
}

fn places(ports: &[GatewayPort<'_>]) -> HashMap<String, ServersPlace> {
    let mut places = HashMap::new();
    for (at, port) in ports.iter().enumerate() {
        if !port.http.is_empty() {
            let place = ServersPlace { port: at, tls: None };
            places.entry(http_route_name(port)).or_insert(place);
        }
        let takes_requests = |(_, placed): &(usize, &PlacedServer<'_>)| {
            matches!(placed.server.protocol, ServerProtocol::Https(_))
        };
        for (number, placed) in port.tls.iter().enumerate().filter(takes_requests) {
            let name = https_route_name(port, placed);
            let place = places
                .entry(name)
                .or_insert_with(|| ServersPlace { port: at, tls: Some(Vec::new()) });
            if let Some(all) = place.tls.as_mut().filter(|_| place.port == at) {
                all.push(number);
            }
        }
    }
    places
}
