//! Finds the rule that routes a connection of a sidecar's workload, and the reasons against the
//! others.

use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;

use super::answer::{BEHIND, LostRules, RequestWalk, RuleName, against_name, lost_object};
use crate::class::Class;
use crate::lds::{ConnectionRules, ConnectionSubset, MatchMisfit, RuledMatch};
use crate::rds::belongs_to;
use strait_model::{Hostname, Port};
use strait_rules::traffic::HostPattern;
use strait_rules::traffic::route::{ConnectionMatch, MESH};
use strait_rules::traffic::virtual_service_selection::RoutedService;

/// A connection to a port of a service, at a listener that accepts it.
pub(super) struct WorkloadConnection<'a> {
    pub(super) rules: ConnectionRules<'a>,
    pub(super) host: &'a Hostname,
    pub(super) port: &'a Port,
    /// The destination address, if it is known.
    pub(super) destination: Option<IpAddr>,
    /// The listener's address.
    pub(super) address: IpAddr,
    /// The SNI, if the connection uses TLS.
    pub(super) server_name: Option<&'a str>,
}

impl WorkloadConnection<'_> {
    /// Records which rule routes the connection through a chain of the listener, if any, and the
    /// reasons against the others.
    pub(super) fn judged(&self, chain: Option<&str>, walk: &mut RequestWalk) {
        let host = HostPattern::for_service(self.host);
        let address = Some(self.address).filter(|address| !address.is_unspecified());
        let mut owner: Option<&Arc<RoutedService>> = None;
        let mut winner = None;
        let (mut lost, mut others) = (LostRules::default(), Vec::new());
        for (routed, matches) in self.rules.ruled_matches(&host, self.port, address) {
            if matches.is_empty() {
                continue;
            }
            if let Some(owner) = owner {
                others.push(lost_object(&(routed, belongs_to(self.host, owner))));
                continue;
            }
            let claimed = matches.iter().filter_map(|candidate| candidate.takes.ok());
            owner = claimed.clone().next().map(|_| routed);
            // Envoy selects the longest of several ranges that contain an address.
            let fitting = claimed.filter(|one| chain.is_some_and(|chain| self.is_in(one, chain)));
            let decided = fitting.max_by_key(|one| one.range.map(|range| range.prefix_len()));
            for RuledMatch { list, rule, takes } in matches {
                let name = || RuleName::for_connection_rule(routed, list, rule);
                match takes {
                    Ok(connections) if decided == Some(connections) => {
                        winner = Some(rule);
                        walk.rule = Some(name());
                    }
                    Ok(connections) => lost.push(rule, name, self.against(connections)),
                    Err(misfit) => lost.push(rule, name, self.reason(misfit)),
                }
            }
        }
        walk.lost.extend(lost.all_but(winner));
        walk.lost.extend(others);
    }

    /// Returns whether a chain with this name may be the chain of these connections.
    fn is_in(&self, ConnectionSubset { name, range }: &ConnectionSubset<'_>, chain: &str) -> bool {
        let (chain_range, chain_name) = match chain.split_once(' ') {
            Some((range, name)) => (range.parse::<IpNet>().ok(), Some(name)),
            None => match chain.parse::<IpNet>() {
                Ok(range) => (Some(range), None),
                Err(_) => (None, Some(chain)),
            },
        };
        let is_named = match (name, chain_name) {
            (Some(own), name) => name.is_some_and(|name| ***own == *name),
            // The connections that no range or name matches.
            (None, Some(name)) => name == "tcp" || name == self.host.as_str(),
            (None, None) => true,
        };
        is_named && range.is_none_or(|own| chain_range.is_some_and(|range| own.contains(&range)))
    }

    /// Returns whether the SNI and the destination address of the client match, as far as they are
    /// required.
    fn covers(&self, ConnectionSubset { name, range }: &ConnectionSubset<'_>) -> bool {
        name.is_none_or(|name| self.gives(name)) && range.is_none_or(|range| self.means(range))
    }

    fn gives(&self, name: &str) -> bool {
        let name = HostPattern::written(name).ok();
        name.zip(self.server_name).is_some_and(|(name, given)| name.matches(given))
    }

    fn means(&self, range: IpNet) -> bool {
        self.destination.is_some_and(|address| range.contains(&address))
    }

    /// Returns the reason why a match of a rule does not apply to the connection.
    fn against(&self, ConnectionSubset { name, range }: ConnectionSubset<'_>) -> String {
        let name = name.and_then(|name| Some((self.gives(name), HostPattern::written(name).ok()?)));
        match (name, range) {
            (Some((false, name)), _) | (Some((_, name)), None) => {
                against_name(self.server_name, &name)
            }
            (_, Some(range)) if self.means(range) => {
                format!("a match for a narrower range than {range} decides")
            }
            (_, Some(range)) => format!("it is for connections to {range}"),
            (_, None) => {
                "the chain that accepts the connection belongs to another service".to_owned()
            }
        }
    }

    fn reason(&self, misfit: MatchMisfit<'_>) -> String {
        let Class { namespace, selection, .. } = self.rules.class;
        match misfit {
            MatchMisfit::Match(ConnectionMatch { port: Some(port), .. })
                if *port != self.port.number =>
            {
                format!("it is for port {port}")
            }
            MatchMisfit::Match(condition) if !condition.source.fits(MESH, namespace, selection) => {
                condition.source.misfit(namespace, selection)
            }
            MatchMisfit::Match(condition) => {
                let ranges: Vec<_> = condition.to.iter().map(IpNet::to_string).collect();
                format!("it is for connections to {}", ranges.join(", "))
            }
            MatchMisfit::NoTls => {
                format!(
                    "port {} is not declared as TLS or HTTPS: SNI is not matched",
                    self.port.number
                )
            }
            MatchMisfit::ByName => {
                "the tls rules of its object take this port, by SNI only".to_owned()
            }
            MatchMisfit::Taken(connections) if self.covers(&connections) => BEHIND.to_owned(),
            MatchMisfit::Taken(connections) => self.against(connections),
        }
    }
}
