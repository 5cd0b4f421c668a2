//! The inbound configuration of a router according to Gateways: its ports, and the VirtualServices
//! bound to them.
//!
//! This module computes the outline only. Listeners, routes and upstream clusters are generated in
//! the same modules as for sidecars.

mod bytes;

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

pub use self::bytes::{BytesMisfit, BytesRule};
use super::context::PushContext;
use super::proxy::target_port;
use strait_model::{Hostname, Namespace, Proxy, Service};
use strait_rules::traffic::gateway_servers::{GatewayPort, PlacedServer, merged};
use strait_rules::traffic::virtual_service_selection::RoutedService;

/// The ports of a router, with the active rules.
pub struct IngressOutline<'a> {
    /// The mesh.
    pub context: &'a PushContext,
    /// The router's namespace.
    pub namespace: &'a Namespace,
    /// The ports on which it listens.
    pub ports: Vec<GatewayPort<'a>>,
    /// Server ports that are omitted because the router cannot listen there, each with the port on
    /// which it would listen.
    pub closed: BTreeMap<u16, u16>,
    /// The number of rules that define accepted tokens (RequestAuthentication).
    pub token_rules: usize,
}

/// Returns the port on which a router listens for a server's port: the target port if the router's
/// Service has this port, otherwise the same number.
///
/// # Errors
/// Returns the port if the router cannot listen there.
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
    /// Computes the outline of a router. `served` are the services in the same namespace and
    /// cluster.
    pub fn of(context: &'a PushContext, proxy: &'a Proxy, served: &[Arc<Service>]) -> Self {
        let (mut ports, mut closed) = (Vec::new(), BTreeMap::new());
        if !context.traffic.gateways.is_empty() {
            let gateways = context.gateways_of(proxy);
            ports = merged(gateways, |number| {
                let own = own_port(context, proxy, served, number);
                own.inspect_err(|own| _ = closed.insert(number, *own)).ok()
            });
        }
        // Finding policies is expensive, and routers without ports need none.
        let token_rules =
            if ports.is_empty() { 0 } else { context.access_of(proxy).token_rules().len() };
        Self { context, namespace: proxy.namespace(), ports, closed, token_rules }
    }

    /// Returns the VirtualServices bound to a server's Gateway, in order of precedence.
    pub fn bound(
        &self,
        server: &PlacedServer<'_>,
    ) -> impl Iterator<Item = &'a Arc<RoutedService>> + use<'a> {
        let services = &self.context.traffic.virtual_services;
        let namespace: &'a Namespace = self.namespace;
        services.for_gateway(&server.gateway.name, namespace)
    }

    /// Returns the port for a number: a server with this port as clients of the router's Service
    /// use it, otherwise the router's own port.
    pub fn port_for_number(&self, number: u16) -> Option<&GatewayPort<'a>> {
        let has_server = |port: &&GatewayPort<'_>| {
            let mut servers = port.http.iter().chain(&port.tcp).chain(&port.tls);
            servers.any(|placed| placed.server.port == number)
        };
        let own = || self.ports.iter().find(|port| port.number == number);
        self.ports.iter().find(has_server).or_else(own)
    }

    /// Returns the services to which requests and connections may be routed.
    pub fn destinations(&self) -> BTreeSet<&'a Hostname> {
        let all = self.served().flat_map(|routed| routed.destinations()).map(|to| &to.host);
        // Consecutive rules of an object usually have the same destination, and there may be very
        // many rules.
        let mut last = None;
        let all = all.filter(|host| last.replace(*host) != Some(*host));
        all.map(|host| self.context.target(host, self.namespace)).collect()
    }

    /// Returns whether any destination is in `hosts`.
    pub fn routes_to_any(&self, hosts: &BTreeSet<Hostname>) -> bool {
        let is_included = |host: &Hostname| {
            hosts.contains(host) || hosts.contains(self.context.target(host, self.namespace))
        };
        self.served().any(|routed| routed.destinations().any(|to| is_included(&to.host)))
    }

    /// Returns the VirtualServices that any server serves, without duplicates.
    fn served(&self) -> impl Iterator<Item = &'a Arc<RoutedService>> {
        let servers =
            self.ports.iter().flat_map(|port| port.http.iter().chain(&port.tcp).chain(&port.tls));
        let serving = servers.flat_map(|server| {
            let serves = move |routed: &&Arc<RoutedService>| {
                !server.served_hosts(&routed.service).is_empty()
            };
            self.bound(server).filter(serves)
        });
        let mut distinct = HashSet::new();
        serving.filter(move |routed| distinct.insert(Arc::as_ptr(routed)))
    }
}
