//! What the listeners, chains and routes of a router are called.

pub(super) mod bytes;

use crate::traffic::gateway::ServerProtocol;
use crate::traffic::gateways::{GatewayPort, PlacedServer};

/// The name of the routes of a port in plain text. (Istio's names, which users' own patches match.)
pub(super) fn http_route_name(port: &GatewayPort<'_>) -> String {
    let name = format!("http.{}", port.number);
    with_bind(name, port)
}

/// The name of the routes of a server whose TLS ends there.
pub(super) fn https_route_name(port: &GatewayPort<'_>, placed: &PlacedServer<'_>) -> String {
    with_bind(format!("https.{}", server_name(placed)), port)
}

/// The name of the chain of a server whose TLS ends there, behind which are bytes.
pub(super) fn tls_chain_name(placed: &PlacedServer<'_>) -> String {
    format!("tls.{}", server_name(placed))
}

/// What tells a server from all others: its port, and the names of that and of its Gateway.
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

/// The servers whose routes have that name: all in plain text of a port, or the one whose own they are. Two of a Gateway
/// whose ports are called alike have them together.
pub(super) fn servers_of<'p, 'a>(
    ports: &'p [GatewayPort<'a>],
    name: &str,
) -> Option<(&'p GatewayPort<'a>, Vec<&'p PlacedServer<'a>>)> {
    ports.iter().find_map(|port| {
        if !port.http.is_empty() && http_route_name(port) == name {
            return Some((port, port.http.iter().collect()));
        }
        let takes_requests =
            |one: &&PlacedServer<'_>| matches!(one.server.protocol, ServerProtocol::Https(_));
        let https = port.tls.iter().filter(takes_requests);
        let found: Vec<_> = https.filter(|one| https_route_name(port, one) == name).collect();
        (!found.is_empty()).then_some((port, found))
    })
}
