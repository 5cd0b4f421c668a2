//! What a router takes in as Gateways say: its ports, and what is bound to them.
//!
//! Owns the outline alone. Listeners, routes and upstream clusters are made of it where those of sidecars are made.

mod bytes;

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

pub use self::bytes::{BytesMisfit, BytesRule};
use super::context::PushContext;
use super::proxy::target_port;
use strait_model::{Hostname, Namespace, Proxy, Service};
use strait_rules::traffic::gateways::{GatewayPort, PlacedServer, merged};
use strait_rules::traffic::virtual_services::RoutedService;

/// The ports of a router, and the rules in force.
pub struct IngressOutline<'a> {
    /// The mesh.
    pub context: &'a PushContext,
    /// The router's namespace.
    pub namespace: &'a Namespace,
    /// Where it listens.
    pub ports: Vec<GatewayPort<'a>>,
    /// Servers' ports that are left out, each with the router's own, at which it can't listen.
    pub closed: BTreeMap<u16, u16>,
    /// How many rules say which tokens it believes.
    pub token_rules: usize,
}

/// Where a router listens for a server's port: at the port that its Service leads this to, else at the very number.
///
/// # Errors
/// The port, where the router can't listen there.
pub fn own_port(
    context: &PushContext,
    proxy: &Proxy,
    served: &[Arc<Service>],
    number: u16,
) -> Result<u16, u16> {
    let own = target_port(context, proxy, served, number).unwrap_or(number);
    if proxy.may_listen_at(own) { Ok(own) } else { Err(own) }
}

impl<'a> IngressOutline<'a> {
    /// That of a router. What is `served` are the services of its namespace and cluster.
    pub fn of(context: &'a PushContext, proxy: &'a Proxy, served: &[Arc<Service>]) -> Self {
        let (mut ports, mut closed) = (Vec::new(), BTreeMap::new());
        if !context.traffic.gateways.is_empty() {
            let gateways = context.gateways_of(proxy);
            ports = merged(gateways, |number| {
                let own = own_port(context, proxy, served, number);
                own.inspect_err(|own| _ = closed.insert(number, *own)).ok()
            });
        }
        // Policies are many, and routers that take in nothing need none.
        let token_rules =
            if ports.is_empty() { 0 } else { context.access_of(proxy).token_rules().len() };
        Self { context, namespace: proxy.namespace(), ports, closed, token_rules }
    }

    /// The VirtualServices bound to a server's Gateway, in the order in which they count.
    pub fn bound(
        &self,
        server: &PlacedServer<'_>,
    ) -> impl Iterator<Item = &'a Arc<RoutedService>> + use<'a> {
        let services = &self.context.traffic.virtual_services;
        let namespace: &'a Namespace = self.namespace;
        services.of_gateway(&server.gateway.name, namespace)
    }

    /// The port that a client means by a number: that of a server, as clients of the router's Service say it, else the router's own.
    pub fn port_meant(&self, number: u16) -> Option<&GatewayPort<'a>> {
        let of_server = |port: &&GatewayPort<'_>| {
            let mut servers = port.http.iter().chain(&port.tcp).chain(&port.tls);
            servers.any(|placed| placed.server.port == number)
        };
        let own = || self.ports.iter().find(|port| port.number == number);
        self.ports.iter().find(of_server).or_else(own)
    }

    /// The services that requests and connections may go to.
    pub fn destinations(&self) -> BTreeSet<&'a Hostname> {
        let all = self.served().flat_map(|routed| routed.destinations()).map(|to| &to.host);
        // Most rules of an object lead to where the one before does, and there may be very many.
        let mut last = None;
        let all = all.filter(|host| last.replace(*host) != Some(*host));
        all.map(|host| self.context.target(host, self.namespace)).collect()
    }

    /// Whether any of them is one of these.
    pub fn leads_to_any(&self, hosts: &BTreeSet<Hostname>) -> bool {
        let is_one = |host: &Hostname| {
            hosts.contains(host) || hosts.contains(self.context.target(host, self.namespace))
        };
        self.served().any(|routed| routed.destinations().any(|to| is_one(&to.host)))
    }

    /// The VirtualServices that some server serves, once for each.
    fn served(&self) -> impl Iterator<Item = &'a Arc<RoutedService>> {
        let servers =
            self.ports.iter().flat_map(|port| port.http.iter().chain(&port.tcp).chain(&port.tls));
        let serving = servers.flat_map(|server| {
            let serves = move |one: &&Arc<RoutedService>| !server.hosts_of(&one.service).is_empty();
            self.bound(server).filter(serves)
        });
        let mut found = HashSet::new();
        serving.filter(move |one| found.insert(Arc::as_ptr(one)))
    }
}
