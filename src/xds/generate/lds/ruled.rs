//! Connections that rules lead elsewhere than to their service. (docs/reference/traffic.md, "TCP and TLS routes".)

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use prost::Message;
use strait_proto::envoy::envoy::config::listener::v3 as listener;
use strait_proto::envoy::envoy::extensions::filters::network::tcp_proxy::v3 as tcp_proxy;

use super::parts::{TLS, chain, found, tcp, tcp_limited, tcp_weighted, to_range};
use super::{ConnectionLimits, TrafficSettings};
use crate::aggregate::MergedService;
use crate::model::{Hostname, Port};
use crate::push::PushContext;
use crate::traffic::HostPattern;
use crate::traffic::destination_rule::RuleClient;
use crate::traffic::route::{ConnectionMatch, Destination, TcpRule};
use crate::traffic::virtual_services::RoutedService;
use crate::xds::generate::cds::BLACK_HOLE;
use crate::xds::generate::class::Class;
use crate::xds::generate::rds::unnumbered_port;
use crate::xds::names::OutboundName;

/// What rules make of connections to a port of a service.
#[derive(Debug, Clone, Default)]
pub(super) struct RuledConnections {
    /// Chains for names that clients give when they begin TLS. Where there are any, other names lead nowhere.
    pub(super) by_name: Vec<NamedChain>,
    /// Ranges of addresses, each with its own way.
    pub(super) by_range: Vec<(IpNet, listener::Filter)>,
    /// All else, where that is said.
    pub(super) rest: Option<listener::Filter>,
}

/// A chain for a name that clients give when they begin TLS.
#[derive(Debug, Clone)]
pub(super) struct NamedChain {
    pub(super) name: Arc<str>,
    /// The addresses that clients mean; `None` for all that the listener takes.
    pub(super) range: Option<IpNet>,
    pub(super) chain: listener::FilterChain,
}

impl NamedChain {
    /// For the name at any address.
    pub(super) fn new(name: Arc<str>, filter: listener::Filter) -> Self {
        let names = if *name == *"*" { Vec::new() } else { vec![name.to_string()] };
        let named = listener::FilterChainMatch { server_names: names, ..found(TLS, &[]) };
        let chain = chain(&*name, Some(named), filter);
        Self { name, range: None, chain }
    }

    /// The same for addresses of a range.
    pub(super) fn within(&self, range: IpNet) -> Self {
        let mut chain = self.chain.clone();
        chain.name = format!("{range} {}", self.name);
        let wanted = chain.filter_chain_match.get_or_insert_default();
        wanted.prefix_ranges = to_range(range).prefix_ranges;
        Self { name: Arc::clone(&self.name), range: Some(range), chain }
    }

    /// The part of it that is for addresses of a range: those of the narrower of the two.
    pub(super) fn part(&self, range: IpNet) -> Option<Self> {
        match self.range {
            Some(own) if range.contains(&own) => Some(self.clone()),
            Some(own) if !own.contains(&range) => None,
            _ => Some(self.within(range)),
        }
    }
}

/// With each range the names that hold at wider ones and everywhere, where it has no way of its own for them: Envoy asks for
/// the longest range first, and then for names of that range alone.
pub(super) fn completed(mut named: Vec<NamedChain>) -> Vec<NamedChain> {
    let ranges: BTreeSet<IpNet> = named.iter().filter_map(|one| one.range).collect();
    let mut copies = Vec::new();
    for range in ranges {
        let mut wider: Vec<&NamedChain> = named
            .iter()
            .filter(|one| one.range.is_none_or(|wider| wider != range && wider.contains(&range)))
            .collect();
        wider.sort_by_key(|one| Reverse(one.range.map(|wider| wider.prefix_len())));
        let own = named.iter().filter(|one| one.range == Some(range));
        let mut names: BTreeSet<&Arc<str>> = own.map(|one| &one.name).collect();
        let lacking = wider.into_iter().filter(|one| names.insert(&one.name));
        copies.extend(lacking.map(|one| one.within(range)));
    }
    named.extend(copies);
    named
}

impl RuledConnections {
    /// What tells them from others at one address, where no ranges are told apart.
    pub(super) fn encoded(&self) -> Arc<[u8]> {
        let mut bytes = Vec::new();
        for NamedChain { chain, .. } in &self.by_name {
            chain.encode_length_delimited(&mut bytes).expect("a vector has room");
        }
        if let Some(rest) = &self.rest {
            rest.encode_length_delimited(&mut bytes).expect("a vector has room");
        }
        bytes.into()
    }
}

/// Finds what rules make of connections.
#[derive(Clone, Copy)]
pub(in crate::xds::generate) struct ConnectionRules<'a> {
    pub(in crate::xds::generate) context: &'a PushContext,
    pub(in crate::xds::generate) class: &'a Class,
    pub(in crate::xds::generate) settings: &'a TrafficSettings,
}

impl ConnectionRules<'_> {
    /// What rules make of connections to a port of a service at an address, or at any; `None` where they say nothing.
    /// The first object that has a rule for them decides.
    pub(super) fn of(
        &self,
        host: &Hostname,
        port: &Port,
        address: Option<IpAddr>,
    ) -> Option<RuledConnections> {
        let traffic = &self.context.traffic;
        if traffic.virtual_services.is_empty() {
            return None;
        }
        let host = HostPattern::of_service(host);
        let Class { namespace, selection, .. } = self.class;
        let mut objects = traffic.routed_of_host(&host, namespace, selection);
        objects.find_map(|routed| self.by(routed, port, address))
    }

    /// The rule that leads the connections of a chain, if one does, with its object and the list that it is in.
    pub(in crate::xds::generate) fn deciding(
        &self,
        host: &Hostname,
        port: &Port,
        address: Option<IpAddr>,
        chain: &str,
    ) -> Option<(&Arc<RoutedService>, &'static str, &TcpRule)> {
        let Class { namespace, selection, .. } = self.class;
        let host = HostPattern::of_service(host);
        let mut objects = self.context.traffic.routed_of_host(&host, namespace, selection);
        let routed = objects.find(|routed| self.by(routed, port, address).is_some())?;
        // Where no address is known, the chain says of which it is.
        let (range, name) = match chain.split_once(' ') {
            Some((range, name)) => (range.parse::<IpNet>().ok(), name),
            None => (chain.parse::<IpNet>().ok(), chain),
        };
        let is_there = |one: &ConnectionMatch| {
            let within = |to: &IpNet| range.is_some_and(|range| to.contains(&range));
            address.is_some() || one.to.is_empty() || one.to.iter().any(within)
        };
        let fits = |one: &&ConnectionMatch| {
            one.fits(namespace, selection, port.number, address) && is_there(one)
        };
        let names = |rule: &TcpRule| {
            let mut matches = rule.matches.iter().filter(fits);
            matches.any(|one| one.server_names.iter().any(|own| **own == *name))
        };
        let by_name = || routed.service.tls.iter().find(|rule| names(rule));
        if port.protocol.begins_tls()
            && let Some(rule) = by_name()
        {
            return Some((routed, "tls", rule));
        }
        let takes =
            |rule: &&TcpRule| rule.matches.is_empty() || rule.matches.iter().any(|one| fits(&one));
        Some((routed, "tcp", routed.service.tcp.iter().find(takes)?))
    }

    fn by(
        &self,
        routed: &RoutedService,
        port: &Port,
        address: Option<IpAddr>,
    ) -> Option<RuledConnections> {
        let Class { namespace, selection, .. } = self.class;
        let fits = |one: &&ConnectionMatch| one.fits(namespace, selection, port.number, address);
        let mut found = RuledConnections::default();
        if port.protocol.begins_tls() {
            let mut seen = BTreeSet::new();
            for rule in &routed.service.tls {
                for one in rule.matches.iter().filter(fits) {
                    let is_anywhere = address.is_some() || one.to.is_empty();
                    for name in &one.server_names {
                        let filter = self.filter(routed, rule, port.number);
                        let chain = NamedChain::new(Arc::clone(name), filter);
                        let ways = match is_anywhere {
                            true => vec![chain],
                            false => one.to.iter().map(|range| chain.within(*range)).collect(),
                        };
                        let first = |way: &NamedChain| seen.insert((way.range, Arc::clone(name)));
                        found.by_name.extend(ways.into_iter().filter(first));
                    }
                }
            }
            if !found.by_name.is_empty() {
                return Some(found);
            }
        }
        let every = [ConnectionMatch::default()];
        for rule in &routed.service.tcp {
            let matches = if rule.matches.is_empty() { &every[..] } else { &rule.matches };
            for one in matches.iter().filter(fits) {
                let filter = self.filter(routed, rule, port.number);
                if address.is_some() || one.to.is_empty() {
                    found.rest = Some(filter);
                    return Some(found);
                }
                for range in &one.to {
                    if !found.by_range.iter().any(|(other, _)| other == range) {
                        found.by_range.push((*range, filter.clone()));
                    }
                }
            }
        }
        (!found.by_range.is_empty()).then_some(found)
    }

    /// The chain for a name that clients give when they begin TLS; for all names where that is `*`.
    pub(super) fn named(
        &self,
        name: &str,
        routed: &RoutedService,
        rule: &TcpRule,
        port: u16,
    ) -> listener::FilterChain {
        NamedChain::new(name.into(), self.filter(routed, rule, port)).chain
    }

    /// Passes bytes to a port of a service, as the rule in force for such a client holds connections.
    pub(super) fn to_service(self, service: &MergedService, port: &Port) -> listener::Filter {
        let upstream = OutboundName::sidecar(service.hostname().clone(), port.number);
        let limits = self.limits(service, "", port.number);
        tcp_limited(self.settings, &upstream.to_string(), limits)
    }

    fn limits(&self, service: &MergedService, subset: &str, port: u16) -> ConnectionLimits {
        let Class { namespace, selection, .. } = self.class;
        let rules = self.context.rules_for(service);
        let rule = rules.rule(RuleClient { namespace, selection }, &service.primary.namespace);
        let policy = rule.map(|rule| rule.resolved(subset, port)).unwrap_or_default();
        ConnectionLimits::of(&policy.or_usual(&self.context.mesh.usual_limits))
    }

    /// Where connections go that a rule takes, whose clients mean `port`.
    pub(super) fn filter(
        &self,
        routed: &RoutedService,
        rule: &TcpRule,
        port: u16,
    ) -> listener::Filter {
        let number = |to: &Destination| {
            let named = (&to.host, &*to.port_name);
            let only = || unnumbered_port(self.context, self.class, named);
            to.port.or_else(only).unwrap_or(port)
        };
        let target =
            |to: &Destination| self.context.target(&to.host, &self.class.namespace).clone();
        let upstream = |to: &Destination| {
            if to.invalid {
                return BLACK_HOLE.to_owned();
            }
            let name = OutboundName::sidecar(target(to), number(to));
            name.of_subset(&to.subset).to_string()
        };
        let limits = |to: &Destination| {
            let service = self.context.service(target(to).as_str(), &self.class.namespace);
            let limits = service.map(|service| self.limits(service, &to.subset, number(to)));
            limits.unwrap_or_default()
        };
        match &*rule.destinations {
            [] => tcp(self.settings, BLACK_HOLE),
            [only] => tcp_limited(self.settings, &upstream(only), limits(only)),
            several => {
                let clusters = several.iter().map(|to| {
                    tcp_proxy::tcp_proxy::weighted_cluster::ClusterWeight {
                        name: upstream(to),
                        weight: to.weight,
                        ..Default::default()
                    }
                });
                let origin = &routed.service.origin;
                let prefix = format!("{}.{}", origin.name, origin.namespace);
                // Envoy has one limit for all of them.
                let limits = several.iter().map(limits).reduce(ConnectionLimits::or);
                tcp_weighted(self.settings, prefix, clusters.collect(), limits.unwrap_or_default())
            }
        }
    }
}
