//! Finds the rule that routes a connection at a router, and the reasons against the others.

use super::answer::{BEHIND, LostRules, RequestWalk, RuleName, against_name};
use crate::ingress::tls_chain_name;
use strait_mesh::push::ingress::{BytesMisfit, BytesRule, IngressOutline};
use strait_rules::traffic::HostPattern;
use strait_rules::traffic::gateway::ServerProtocol;
use strait_rules::traffic::gateway_servers::{GatewayPort, PlacedServer};
use strait_rules::traffic::selection::Selection;

/// The name of the chain for raw TCP in plain text.
const PLAIN_CHAIN: &str = "tcp";

/// A connection that arrives at a router's port.
pub(super) struct ConnectionAtRouter<'a> {
    pub(super) ingress: &'a IngressOutline<'a>,
    pub(super) port: &'a GatewayPort<'a>,
    pub(super) selection: &'a Selection,
    /// The SNI, if the connection uses TLS.
    pub(super) server_name: Option<&'a str>,
}

impl ConnectionAtRouter<'_> {
    /// Records which rule routes the connection through a raw TCP chain, if any, and the reasons
    /// against the others.
    pub(super) fn judged(&self, chain: Option<&str>, walk: &mut RequestWalk) {
        let mut lost = LostRules::default();
        let mut winner = None;
        for (placed, has_chain) in self.opening(chain) {
            for BytesRule { routed, rule, takes } in self.ingress.opened(placed, self.selection) {
                let name = || RuleName::for_connection_rule(routed, "tcp", rule);
                match (takes, winner) {
                    (Ok(()), None) if has_chain => {
                        winner = Some(rule);
                        walk.rule = Some(name());
                    }
                    (Ok(()), Some(_)) => lost.push(rule, name, BEHIND.to_owned()),
                    (Err(misfit), None) => lost.push(rule, name, self.reason(placed, &misfit)),
                    _ => {}
                }
            }
        }
        let is_unopened = winner.is_none() && chain != Some(PLAIN_CHAIN);
        let unopened = is_unopened.then(|| self.ingress.unopened(self.port, self.selection));
        for (placed, rules) in unopened.into_iter().flatten() {
            for BytesRule { routed, rule, takes } in rules {
                let name = || RuleName::for_connection_rule(routed, "tls", rule);
                match takes {
                    Ok(connections)
                        if chain.is_some_and(|chain| connections.to_string() == *chain) =>
                    {
                        winner = Some(rule);
                        walk.rule = Some(name());
                    }
                    Ok(connections) => {
                        lost.push(rule, name, against_name(self.server_name, &connections));
                    }
                    Err(BytesMisfit::Taken(connections)) if !self.gives(&connections) => {
                        lost.push(rule, name, against_name(self.server_name, &connections));
                    }
                    Err(BytesMisfit::Taken(connections)) if chain.is_none() => {
                        lost.push(
                            rule,
                            name,
                            format!("a server that terminates TLS has {connections}"),
                        );
                    }
                    Err(misfit) => lost.push(rule, name, self.reason(placed, &misfit)),
                }
            }
        }
        walk.lost.extend(lost.all_but(winner));
    }

    /// Returns the servers that may accept the connection, and whether `chain` is theirs: servers
    /// that terminate TLS for a TLS connection, otherwise the plain-text server.
    fn opening(&self, chain: Option<&str>) -> Vec<(&PlacedServer<'_>, bool)> {
        let plain = self.port.tcp.iter().filter(|_| chain.is_none_or(|one| one == PLAIN_CHAIN));
        let opens = |server: &&PlacedServer<'_>| {
            matches!(server.server.protocol, ServerProtocol::Tls(_))
                && match chain {
                    Some(chain) => tls_chain_name(server) == chain,
                    None => server.hosts.iter().any(|host| self.gives(&host.host)),
                }
        };
        plain.chain(self.port.tls.iter().filter(opens)).map(|one| (one, chain.is_some())).collect()
    }

    fn gives(&self, pattern: &HostPattern) -> bool {
        match self.server_name {
            Some(name) => pattern.matches(name),
            None => *pattern == HostPattern::all(),
        }
    }

    fn reason(&self, placed: &PlacedServer<'_>, misfit: &BytesMisfit<'_>) -> String {
        let (server, gateway) = (placed.server, &placed.gateway.name);
        match misfit {
            BytesMisfit::Hosts => {
                format!(
                    "port {} of Gateway {gateway} has no host of the rule's object for its namespace",
                    server.port
                )
            }
            BytesMisfit::Match(condition) => {
                match condition.port.filter(|port| *port != server.port) {
                    Some(port) => format!("it is for port {port}"),
                    None => condition.source.misfit(self.ingress.namespace, self.selection),
                }
            }
            BytesMisfit::Name(name) => {
                format!("port {} of Gateway {gateway} has no host that matches {name}", server.port)
            }
            BytesMisfit::Taken(_) => BEHIND.to_owned(),
        }
    }
}
