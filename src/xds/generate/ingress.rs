//! What a router takes in as Gateways say: its ports, and what is bound to them.
//!
//! Owns the outline alone. Listeners, routes and upstream clusters are made of it where those of sidecars are made.

pub(super) mod bytes;

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::model::{Hostname, Namespace, Proxy, Service};
use crate::push::PushContext;
use crate::push::proxy::target_port;
use crate::traffic::gateway::ServerProtocol;
use crate::traffic::gateways::{GatewayPort, PlacedServer, merged};
use crate::traffic::virtual_services::RoutedService;

/// The ports of a router, and the rules in force.
pub(super) struct IngressOutline<'a> {
    pub(super) context: &'a PushContext,
    /// The router's namespace.
    pub(super) namespace: &'a Namespace,
    pub(super) ports: Vec<GatewayPort<'a>>,
    /// How many rules say which tokens it believes.
    pub(super) token_rules: usize,
}

impl<'a> IngressOutline<'a> {
    /// That of a router. A port that its Service has is taken at the router's own port that the Service leads to; another
    /// at its own number. What is `served` are the services of its namespace and cluster.
    pub(super) fn of(context: &'a PushContext, proxy: &'a Proxy, served: &[Arc<Service>]) -> Self {
        let mut ports = Vec::new();
        if !context.traffic.gateways.is_empty() {
            let gateways = context.gateways_of(proxy);
            ports = merged(gateways, |number| {
                Some(target_port(context, proxy, served, number).unwrap_or(number))
            });
        }
        // Policies are many, and routers that take in nothing need none.
        let token_rules =
            if ports.is_empty() { 0 } else { context.access_of(proxy).token_rules().len() };
        Self { context, namespace: proxy.namespace(), ports, token_rules }
    }

    /// The VirtualServices bound to a server's Gateway, in the order in which they count.
    pub(super) fn bound(
        &self,
        server: &PlacedServer<'_>,
    ) -> impl Iterator<Item = &'a Arc<RoutedService>> + use<'a> {
        let services = &self.context.traffic.virtual_services;
        let namespace: &'a Namespace = self.namespace;
        services.of_gateway(&server.gateway.name, namespace)
    }

    /// The port that a client means by a number: that of a server, as clients of the router's Service say it, else the router's own.
    pub(super) fn port_meant(&self, number: u16) -> Option<&GatewayPort<'a>> {
        let of_server = |port: &&GatewayPort<'_>| {
            let mut servers = port.http.iter().chain(&port.tcp).chain(&port.tls);
            servers.any(|placed| placed.server.port == number)
        };
        let own = || self.ports.iter().find(|port| port.number == number);
        self.ports.iter().find(of_server).or_else(own)
    }

    /// The services that requests and connections may go to.
    pub(super) fn destinations(&self) -> BTreeSet<&'a Hostname> {
        let all = self.served().flat_map(|routed| routed.destinations()).map(|to| &to.host);
        // Most rules of an object lead to where the one before does, and there may be very many.
        let mut last = None;
        let all = all.filter(|host| last.replace(*host) != Some(*host));
        all.map(|host| self.context.target(host, self.namespace)).collect()
    }

    /// Whether any of them is one of these.
    pub(super) fn leads_to_any(&self, hosts: &BTreeSet<Hostname>) -> bool {
        let is_one = |host: &Hostname| {
            hosts.contains(host) || hosts.contains(self.context.target(host, self.namespace))
        };
        self.served().any(|routed| routed.destinations().any(|to| is_one(&to.host)))
    }

    /// The VirtualServices that some server serves, once for each.
    fn served(&self) -> impl Iterator<Item = &'a Arc<RoutedService>> {
        let servers =
            self.ports.iter().flat_map(|port| port.http.iter().chain(&port.tcp).chain(&port.tls));
        servers.flat_map(|server| {
            let serves = move |one: &&Arc<RoutedService>| !server.hosts_of(&one.service).is_empty();
            self.bound(server).filter(serves)
        })
    }
}

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
