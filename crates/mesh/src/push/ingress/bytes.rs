//! Selects the TCP and TLS rules that apply to connections at a router, for generating filter
//! chains and for explaining the route of a connection. (docs/reference/traffic.md, "TCP and TLS
//! routes".)

use std::collections::BTreeSet;
use std::sync::{Arc, LazyLock};

use super::IngressOutline;
use strait_rules::traffic::HostPattern;
use strait_rules::traffic::gateway::ServerProtocol;
use strait_rules::traffic::gateway_servers::{GatewayPort, PlacedServer};
use strait_rules::traffic::route::{ConnectionMatch, TcpRule};
use strait_rules::traffic::selection::Selection;
use strait_rules::traffic::virtual_service_selection::RoutedService;

/// A match of a rule at a server for raw TCP or TLS, with the connections that it accepts.
pub struct BytesRule<'a, T> {
    /// The VirtualService with its services.
    pub routed: &'a Arc<RoutedService>,
    /// The rule.
    pub rule: &'a TcpRule,
    /// The connections that the match accepts, or why it accepts none.
    pub takes: Result<T, BytesMisfit<'a>>,
}

/// Why a match of a rule accepts no connection at a server.
pub enum BytesMisfit<'a> {
    /// The server has none of the object's hosts.
    Hosts,
    /// The match is for a different port, or does not apply to this router.
    Match(&'a ConnectionMatch),
    /// The server has no host that matches this SNI name.
    Name(&'a str),
    /// An earlier server or rule already accepts this name.
    Taken(HostPattern),
}

impl<'a> IngressOutline<'a> {
    /// Returns the rules for plain TCP connections or connections whose TLS the server terminates,
    /// in order of evaluation. The first rule that accepts a connection applies.
    pub fn opened<'s>(
        &'s self,
        placed: &'s PlacedServer<'_>,
        selection: &'s Selection,
    ) -> impl Iterator<Item = BytesRule<'a, ()>> + use<'a, 's> {
        static EVERY: LazyLock<[ConnectionMatch; 1]> = LazyLock::new(Default::default);
        self.bound(placed).flat_map(move |routed| {
            let is_served = !placed.served_hosts(&routed.service).is_empty();
            let tcp: &'a [TcpRule] = &routed.service.tcp;
            let matches = tcp.iter().flat_map(|rule| {
                let matches = if rule.matches.is_empty() { &EVERY[..] } else { &rule.matches };
                matches.iter().map(move |one| (rule, one))
            });
            matches.map(move |(rule, one)| {
                let takes = match self.takes(placed, selection, one) {
                    _ if !is_served => Err(BytesMisfit::Hosts),
                    true => Ok(()),
                    false => Err(BytesMisfit::Match(one)),
                };
                BytesRule { routed, rule, takes }
            })
        })
    }

    /// Returns the rules for TLS connections that a port's servers pass through, server by server
    /// in their order. Each accepts a distinct SNI name.
    pub fn unopened<'p>(
        &self,
        port: &'p GatewayPort<'_>,
        selection: &Selection,
    ) -> Vec<(&'p PlacedServer<'p>, Vec<BytesRule<'a, HostPattern>>)> {
        let passes = |one: &&PlacedServer<'_>| one.server.protocol == ServerProtocol::Passthrough;
        let ending = port.tls.iter().filter(|one| !passes(one));
        let mut used_patterns: BTreeSet<HostPattern> =
            ending.flat_map(|one| one.hosts.iter().map(|host| host.host.clone())).collect();
        let passing = port.tls.iter().filter(passes);
        passing.map(|placed| (placed, self.named(placed, selection, &mut used_patterns))).collect()
    }

    fn named(
        &self,
        placed: &PlacedServer<'_>,
        selection: &Selection,
        used_patterns: &mut BTreeSet<HostPattern>,
    ) -> Vec<BytesRule<'a, HostPattern>> {
        let mut found = Vec::new();
        for routed in self.bound(placed) {
            let namespace = &routed.service.meta.namespace;
            let hosts: Vec<_> = placed.hosts.iter().filter(|host| host.is_for(namespace)).collect();
            // A short host of the object is the name of a service, and differs from the same name
            // at the server.
            let is_served = !placed.served_hosts(&routed.service).is_empty();
            for rule in &routed.service.tls {
                let mut push = |takes| found.push(BytesRule { routed, rule, takes });
                for one in &rule.matches {
                    if !is_served {
                        push(Err(BytesMisfit::Hosts));
                        continue;
                    }
                    if !self.takes(placed, selection, one) {
                        push(Err(BytesMisfit::Match(one)));
                        continue;
                    }
                    for text in &one.server_names {
                        let Ok(name) = HostPattern::written(text) else { continue };
                        let mut common = hosts.iter().filter_map(|host| name.narrower(&host.host));
                        let Some(first) = common.next() else {
                            push(Err(BytesMisfit::Name(text)));
                            continue;
                        };
                        for common in std::iter::once(first).chain(common) {
                            push(match used_patterns.insert(common.clone()) {
                                true => Ok(common.clone()),
                                false => Err(BytesMisfit::Taken(common.clone())),
                            });
                        }
                    }
                }
            }
        }
        found
    }

    fn takes(
        &self,
        placed: &PlacedServer<'_>,
        selection: &Selection,
        one: &ConnectionMatch,
    ) -> bool {
        one.port.is_none_or(|port| port == placed.server.port)
            && one.source.fits(&placed.gateway.name, self.namespace, selection)
    }
}
