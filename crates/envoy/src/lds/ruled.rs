//! Rules that route connections to other destinations than their service.
//! (docs/reference/traffic.md, "TCP and TLS routes".)

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::{Arc, LazyLock};

use ipnet::IpNet;
use prost::Message;

use super::parts::{TLS, chain, found, tcp, tcp_limited, tcp_weighted, to_range};
use super::{ConnectionLimits, TrafficSettings};
use crate::cds::BLACK_HOLE;
use crate::class::Class;
use crate::rds::unnumbered_port;
use strait_mesh::aggregate::MergedService;
use strait_mesh::push::PushContext;
use strait_model::{Hostname, Port};
use strait_proto::envoy::envoy::config::listener::v3 as listener;
use strait_proto::envoy::envoy::extensions::filters::network::tcp_proxy::v3 as tcp_proxy;
use strait_rules::traffic::HostPattern;
use strait_rules::traffic::destination_rule::RuleClient;
use strait_rules::traffic::policy::ClientTls;
use strait_rules::traffic::route::{ConnectionMatch, Destination, TcpRule};
use strait_rules::traffic::virtual_service_selection::RoutedService;
use strait_xds::names::OutboundName;

/// The effect of rules on connections to a port of a service.
#[derive(Debug, Clone, Default)]
pub(super) struct RuledConnections {
    /// Chains selected by SNI. If there are any, connections with other names are closed.
    pub(super) by_name: Vec<NamedChain>,
    /// Address ranges with their filters.
    pub(super) by_range: Vec<(IpNet, listener::Filter)>,
    /// The filter for all other connections, if a rule defines one.
    pub(super) rest: Option<listener::Filter>,
}

/// A filter chain selected by SNI.
#[derive(Debug, Clone)]
pub(super) struct NamedChain {
    pub(super) name: Arc<str>,
    /// The destination addresses; `None` for all addresses that the listener accepts.
    pub(super) range: Option<IpNet>,
    pub(super) chain: listener::FilterChain,
}

impl NamedChain {
    /// Creates a chain for the name at any address.
    pub(super) fn new(name: Arc<str>, filter: listener::Filter) -> Self {
        let names = if *name == *"*" { Vec::new() } else { vec![name.to_string()] };
        let named = listener::FilterChainMatch { server_names: names, ..found(TLS, &[]) };
        let chain = chain(&*name, Some(named), filter);
        Self { name, range: None, chain }
    }

    /// Returns a copy of the chain that is restricted to an address range.
    pub(super) fn within(&self, range: IpNet) -> Self {
        let mut chain = self.chain.clone();
        chain.name = format!("{range} {}", self.name);
        let wanted = chain.filter_chain_match.get_or_insert_default();
        wanted.prefix_ranges = to_range(range).prefix_ranges;
        Self { name: Arc::clone(&self.name), range: Some(range), chain }
    }

    /// Returns the part of the chain within an address range, which is the narrower range of the
    /// two.
    pub(super) fn part(&self, range: IpNet) -> Option<Self> {
        match self.range {
            Some(own) if range.contains(&own) => Some(self.clone()),
            Some(own) if !own.contains(&range) => None,
            _ => Some(self.within(range)),
        }
    }
}

/// Copies chains from wider ranges to each range that has no chain for their name. Envoy selects
/// the longest prefix first, and then only considers names of that prefix.
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
    /// Returns a key that identifies the effect at one address, without ranges.
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

/// A match of a rule, and the connections to a port of a service that it takes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RuledMatch<'a> {
    /// The list of the object that contains the rule: `tls` or `tcp`.
    pub(crate) list: &'static str,
    pub(crate) rule: &'a TcpRule,
    pub(crate) takes: Result<ConnectionSubset<'a>, MatchMisfit<'a>>,
}

/// Some of the connections to a port of a service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ConnectionSubset<'a> {
    /// The SNI; `None` for all connections.
    pub(crate) name: Option<&'a Arc<str>>,
    /// The destination addresses; `None` for all addresses that the listener accepts.
    pub(crate) range: Option<IpNet>,
}

impl ConnectionSubset<'_> {
    fn is_by_name(&self) -> bool {
        self.name.is_some()
    }
}

/// The reason why a match of a rule takes no connections.
#[derive(Debug, Clone, Copy)]
pub(crate) enum MatchMisfit<'a> {
    /// The match is for another port, address or proxy.
    Match(&'a ConnectionMatch),
    /// The match requires SNI, but the port does not use TLS.
    NoTls,
    /// The object routes connections by SNI only.
    ByName,
    /// An earlier match takes these connections.
    Taken(ConnectionSubset<'a>),
}

/// Evaluates rules for connections.
#[derive(Clone, Copy)]
pub(crate) struct ConnectionRules<'a> {
    pub(crate) context: &'a PushContext,
    pub(crate) class: &'a Class,
    pub(crate) settings: &'a TrafficSettings,
}

impl<'a> ConnectionRules<'a> {
    /// Returns the effect of rules on connections to a port of a service, at one address or at all.
    /// Returns `None` without rules.
    pub(super) fn connections_for(
        &self,
        host: &Hostname,
        port: &Port,
        address: Option<IpAddr>,
    ) -> Option<RuledConnections> {
        if self.context.traffic.virtual_services.is_empty() {
            return None;
        }
        let host = HostPattern::for_service(host);
        let mut objects = self.ruled_matches(&host, port, address);
        objects.find_map(|(routed, matches)| self.made(routed, &matches, port))
    }

    /// Returns whether connections to a port of a service need a listener because a DestinationRule
    /// sets TLS, a tunnel, the PROXY protocol or limits for them, or a VirtualService routes them
    /// elsewhere. Otherwise they would bypass these rules.
    pub(super) fn must_apply(&self, service: &MergedService, port: &Port) -> bool {
        let Class { namespace, selection, .. } = self.class;
        let policies = self.context.rules_for(service);
        let rule = policies.rule(RuleClient { namespace, selection }, &service.primary.namespace);
        let changes_connections = rule.is_some_and(|rule| {
            let policy = rule.resolved("", port.number);
            policy.tls.is_some_and(|tls| *tls != ClientTls::Disable)
                || policy.tunnel.is_some()
                || policy.proxy_protocol.is_some()
                || policy.connection_pool.is_some_and(|pool| pool.limits_connections())
        });
        changes_connections || self.connections_for(service.hostname(), port, None).is_some()
    }

    /// Returns the rules for connections to a port of a service, at one address or at all, grouped
    /// by object in order of precedence. The first object that takes any connections takes all.
    pub(crate) fn ruled_matches<'n>(
        &self,
        host: &'n HostPattern,
        port: &'n Port,
        address: Option<IpAddr>,
    ) -> impl Iterator<Item = (&'a Arc<RoutedService>, Vec<RuledMatch<'a>>)> + use<'a, 'n>
    where
        'a: 'n,
    {
        let Class { namespace, selection, .. } = self.class;
        let objects = self.context.traffic.routed_for_host(host, namespace, selection);
        let class = self.class;
        objects.map(move |routed| (routed, object_matches(class, routed, port, address)))
    }

    fn made(
        &self,
        routed: &RoutedService,
        matches: &[RuledMatch<'_>],
        port: &Port,
    ) -> Option<RuledConnections> {
        let mut found = RuledConnections::default();
        let mut is_any = false;
        for RuledMatch { rule, takes, .. } in matches {
            let Ok(ConnectionSubset { name, range }) = *takes else { continue };
            is_any = true;
            let filter = self.filter(routed, rule, port.number);
            match (name.map(|name| NamedChain::new(Arc::clone(name), filter.clone())), range) {
                (Some(chain), Some(range)) => found.by_name.push(chain.within(range)),
                (Some(chain), None) => found.by_name.push(chain),
                (None, Some(range)) => found.by_range.push((range, filter)),
                (None, None) => found.rest = Some(filter),
            }
        }
        is_any.then_some(found)
    }

    /// Returns the chain for an SNI, or for all connections if `name` is `*`.
    pub(super) fn named(
        &self,
        name: &str,
        routed: &RoutedService,
        rule: &TcpRule,
        port: u16,
    ) -> listener::FilterChain {
        NamedChain::new(name.into(), self.filter(routed, rule, port)).chain
    }

    /// Returns a filter that forwards raw TCP to a port of a service, with the connection limits of
    /// the service's rule for this client.
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
        ConnectionLimits::from_policy(&policy.or_usual(&self.context.mesh.usual_limits))
    }

    /// Returns the filter that forwards connections that match a rule. `port` is the destination
    /// port of the clients.
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
                // Envoy supports one limit for all clusters.
                let limits = several.iter().map(limits).reduce(ConnectionLimits::or);
                tcp_weighted(self.settings, prefix, clusters.collect(), limits.unwrap_or_default())
            }
        }
    }
}

/// Returns the connections to a port of a service that the rules of an object take from proxies of
/// this class, match by match.
fn object_matches<'a>(
    Class { namespace, selection, .. }: &Class,
    routed: &'a RoutedService,
    port: &Port,
    address: Option<IpAddr>,
) -> Vec<RuledMatch<'a>> {
    static EVERY: LazyLock<[ConnectionMatch; 1]> = LazyLock::new(Default::default);
    let service = &routed.service;
    let tls = service.tls.iter().map(|rule| ("tls", rule, &*rule.matches));
    let tcp = service.tcp.iter().map(|rule| {
        ("tcp", rule, if rule.matches.is_empty() { &EVERY[..] } else { &*rule.matches })
    });
    let mut claimed = BTreeSet::new();
    let mut ruled = Vec::new();
    for (list, rule, matches) in tls.chain(tcp) {
        for wanted in matches {
            let mut push = |takes| ruled.push(RuledMatch { list, rule, takes });
            let is_by_name = list == "tls";
            if is_by_name && !port.protocol.begins_tls() {
                push(Err(MatchMisfit::NoTls));
            } else if !wanted.fits(namespace, selection, port.number, address) {
                push(Err(MatchMisfit::Match(wanted)));
            } else if !is_by_name && claimed.last().is_some_and(ConnectionSubset::is_by_name) {
                push(Err(MatchMisfit::ByName));
            } else {
                let names: Vec<_> = match is_by_name {
                    true => wanted.server_names.iter().map(Some).collect(),
                    false => vec![None],
                };
                let ranges: Vec<_> = match address.is_some() || wanted.to.is_empty() {
                    true => vec![None],
                    false => wanted.to.iter().copied().map(Some).collect(),
                };
                // After a match for all names and addresses, later matches take nothing.
                let rest = ConnectionSubset { name: None, range: None };
                for name in names {
                    for range in &ranges {
                        let subset = ConnectionSubset { name, range: *range };
                        let is_free = !claimed.contains(&rest) && claimed.insert(subset);
                        push(if is_free { Ok(subset) } else { Err(MatchMisfit::Taken(subset)) });
                    }
                }
            }
        }
    }
    ruled
}
