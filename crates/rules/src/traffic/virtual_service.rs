//! VirtualService: the routes of requests and connections to a host (Istio, "Virtual Service";
//! docs/reference/traffic.md, "VirtualService").
//!
//! This module parses an object into the types of [`super::route`]. Values that Envoy would reject
//! are left out with a reason. [`super::virtual_service_selection`] decides which object a host belongs to.

mod bound;
mod claims;
mod delegation;
mod http;
mod never;
mod raw;
mod source;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use serde::Deserialize;
use serde_json::Value;

pub use self::bound::RuleLength;
use self::bound::{ROUTED_BYTES_MAX, megabytes};
use self::http::Reader;
use self::raw::{RawDestination, RawHttpRule};
pub use self::source::Delegate;
use self::source::{gateway_name, source};
use super::earlier_matches::{EarlierMatches, covered_connections};
use super::hosts::{HostPattern, HostSet};
use super::kind::KindSettings;
use super::object::{self, ObjectMeta, Reason};
use super::route::{
    ConnectionMatch, Destination, HttpRule, MESH, RequestMatch, RouteKind, RouteOrigin, RulePlace,
    SourceMatch, TcpRule, place,
};
use strait_base::codes;
use strait_model::mesh_config::{SHORTER, at_least_a_millisecond};
use strait_model::{ExportTo, Namespace, RareGroup, SortedMap, static_default};

/// A parsed VirtualService, or a delegate: one without hosts, to which other objects delegate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VirtualService {
    /// Name, namespace and age of the object.
    pub meta: ObjectMeta,
    /// Name of the object in the routes of proxies.
    pub origin: Arc<RouteOrigin>,
    /// Hosts without duplicates. Empty for a delegate.
    pub hosts: Box<[HostPattern]>,
    /// Gateways, as `NAMESPACE/NAME`, or [`MESH`] for sidecars.
    pub gateways: Arc<[Arc<str>]>,
    /// Namespaces of the proxies that the object applies to.
    pub export_to: ExportTo,
    /// Rules for requests.
    pub http: Arc<[HttpRule]>,
    /// Rarely used settings.
    pub more: RareGroup<RareRules>,
}

/// Rarely used settings of a VirtualService.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RareRules {
    /// Delegates of rules, by the index of the rule in [`VirtualService::http`].
    pub delegates: SortedMap<usize, Delegate>,
    /// Rules for TLS connections, by server name.
    pub tls: Box<[TcpRule]>,
    /// Rules for TCP connections.
    pub tcp: Box<[TcpRule]>,
    /// Lengths of the rules in [`VirtualService::http`], for delegates and objects that delegate.
    pub lengths: Box<[RuleLength]>,
}

static_default!(VirtualService: RareRules);

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct RawVirtualService {
    hosts: Vec<String>,
    gateways: Vec<String>,
    export_to: Vec<String>,
    http: Vec<RawHttpRule>,
    tls: Vec<RawConnectionRule>,
    tcp: Vec<RawConnectionRule>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct RawConnectionRule {
    r#match: Vec<RawConnectionMatch>,
    route: Vec<RawConnectionDestination>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct RawConnectionMatch {
    sni_hosts: Vec<String>,
    destination_subnets: Vec<String>,
    port: Option<u32>,
    source_labels: BTreeMap<String, String>,
    source_namespace: String,
    gateways: Vec<String>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct RawConnectionDestination {
    destination: RawDestination,
    weight: i64,
}

impl VirtualService {
    /// Parses an object. Also returns the reasons to report to its owner.
    ///
    /// # Errors
    /// The reason why the whole object is refused.
    pub fn read(
        meta: ObjectMeta,
        object: &Value,
        settings: &KindSettings,
    ) -> Result<(Self, Vec<Reason>), Reason> {
        let (raw, mut reasons) = object::body::<RawVirtualService>(object)?;
        let namespace = meta.namespace.clone();
        let mut gateways: Vec<Arc<str>> =
            raw.gateways.iter().map(|name| gateway_name(name, &namespace)).collect();
        let mut before = BTreeSet::new();
        gateways.retain(|name| before.insert(Arc::clone(name)));
        let gateways: Arc<[Arc<str>]> =
            if gateways.is_empty() { [MESH.into()].into() } else { gateways.into() };
        let hosts = hosts(&raw.hosts, &namespace, settings, &mut reasons);
        let is_for_mesh = gateways.iter().any(|gateway| **gateway == *MESH);
        if is_for_mesh && let Some(at) = hosts.iter().position(|host| *host == HostPattern::all()) {
            let text = "* does not apply to sidecars, because it would match all of their requests; it \
                 applies to gateways";
            let path = format!("spec.hosts[{at}]");
            reasons.push(Reason::lost(&codes::ROUTE_HOST_INVALID, path, text));
        }
        let lengths = |list: &str| {
            let rules = object.pointer(&format!("/spec/{list}")).and_then(Value::as_array);
            rules.into_iter().flatten().map(RuleLength::measure)
        };
        let sum = |rules: &mut dyn Iterator<Item = RuleLength>| {
            rules.map(|rule| rule.routed()).fold(0, usize::saturating_add)
        };
        // All hosts share their HTTP routes. Each host has a separate listener with its
        // connections.
        let connections = sum(&mut lengths("tls").chain(lengths("tcp")));
        let connections = connections.saturating_mul(hosts.len());
        let all = sum(&mut lengths("http")).saturating_add(connections);
        if all > ROUTED_BYTES_MAX {
            let text = format!(
                "its rules have {} as routes, but the maximum for one object is {}: split it into \
                 several objects",
                megabytes(all),
                megabytes(ROUTED_BYTES_MAX)
            );
            return Err(Reason::lost(&codes::ROUTES_SURPLUS, "spec", text));
        }
        let known_hosts = hosts.iter().filter_map(HostPattern::exact).cloned().collect();
        let mut reader =
            Reader { namespace: &namespace, settings, reasons: &mut reasons, known_hosts };
        let mut http = Vec::with_capacity(raw.http.len());
        let mut delegates = Vec::new();
        for (at, raw) in raw.http.into_iter().enumerate() {
            let path = format!("spec.http[{at}]");
            let (mut rule, delegate) = reader.rule(raw, &path);
            rule.place.index = place(at);
            if is_for_mesh && !hosts.is_empty() {
                reader.claims_at_sidecars(&rule, &path);
            }
            http.push(rule);
            delegates.extend(delegate.map(|delegate| (at, delegate)));
        }
        let tls = reader.connections(raw.tls, "spec.tls", Some((&hosts, &raw.hosts)));
        let tcp = reader.connections(raw.tcp, "spec.tcp", None);
        let delegates: SortedMap<usize, Delegate> = delegates.into_iter().collect();
        let delegation = hosts.is_empty() || !delegates.is_empty();
        let lengths = if delegation { lengths("http").collect() } else { Box::default() };
        unreachable(&http, &delegates, &mut reasons);
        covered(&http, &delegates, &mut reasons);
        for (list, rules) in [("tls", &tls), ("tcp", &tcp)] {
            reasons.extend(covered_connections(list, rules));
        }
        if http.is_empty() && tls.is_empty() && tcp.is_empty() && reasons.is_empty() {
            let text = "has no rules, so it has no effect";
            reasons.push(Reason::warning(&codes::ROUTE_PART_LOST, "spec", text));
        }
        let export_to =
            object::export_to(&raw.export_to, &settings.virtual_services_export_to, &namespace);
        object::note_export(&raw.export_to, &mut reasons);
        let origin = Arc::new(RouteOrigin {
            kind: RouteKind::VirtualService,
            namespace: meta.namespace.clone(),
            name: Arc::clone(&meta.name),
        });
        let http = http.into();
        let more = RareRules { delegates, tls, tcp, lengths }.into();
        let service = Self { meta, origin, hosts, gateways, export_to, http, more };
        reasons.extend(service.hidden_senders());
        reasons.extend(service.foreign_authorities());
        Ok((service, reasons))
    }

    /// Returns whether it applies to sidecars.
    pub fn is_for_mesh(&self) -> bool {
        self.gateways.iter().any(|gateway| **gateway == *MESH)
    }

    /// Iterates over the hosts that may apply at sidecars.
    pub fn mesh_hosts(&self) -> impl Iterator<Item = &HostPattern> {
        let all = HostPattern::all();
        let is_for_mesh = self.is_for_mesh();
        self.hosts.iter().filter(move |host| is_for_mesh && **host != all)
    }

    /// Iterates over its gateways, without sidecars.
    pub fn own_gateways(&self) -> impl Iterator<Item = &Arc<str>> {
        self.gateways.iter().filter(|gateway| ***gateway != *MESH)
    }
}

impl Reader<'_> {
    /// Returns a timeout in whole milliseconds. Envoy treats less than one millisecond as no
    /// timeout.
    fn limit(&mut self, written: Duration, path: &str) -> Duration {
        let counts = at_least_a_millisecond(written);
        if counts != written {
            self.reasons.push(Reason::warning(&codes::TRAFFIC_VALUE, path, SHORTER));
        }
        counts
    }

    /// Parses rules for connections. A rule for TLS needs server names that are among the hosts.
    fn connections(
        &mut self,
        raw: Vec<RawConnectionRule>,
        path: &str,
        hosts: Option<(&[HostPattern], &[String])>,
    ) -> Box<[TcpRule]> {
        let mut rules = Vec::with_capacity(raw.len());
        let hosts = hosts.map(|(hosts, written)| {
            let written = written.iter().filter_map(|host| HostPattern::written(host).ok());
            (hosts.iter().collect::<HostSet<'_>>(), written.collect::<BTreeSet<_>>())
        });
        let hosts = hosts.as_ref();
        for (at, raw) in raw.into_iter().enumerate() {
            let path = format!("{path}[{at}]");
            let is_any = raw.r#match.is_empty();
            let matches = raw.r#match.into_iter().enumerate().filter_map(|(at, raw)| {
                self.connection(raw, &format!("{path}.match[{at}]"), hosts)
            });
            let matches: Box<[ConnectionMatch]> = matches.collect();
            if matches.is_empty() && (!is_any || hosts.is_some()) {
                let text = "has no valid match, so it applies to no connection";
                self.reasons.push(Reason::lost(&codes::ROUTE_PART_LOST, path, text));
                continue;
            }
            let only = raw.route.len() == 1;
            let mut destinations = Vec::new();
            for (at, raw) in raw.route.into_iter().enumerate() {
                let path = format!("{path}.route[{at}]");
                let weight =
                    if only && raw.weight >= 0 { Ok(1) } else { u32::try_from(raw.weight) };
                if weight.is_err() {
                    let text = format!(
                        "{} is not a valid weight; the destination receives no \
                                        connections",
                        raw.weight
                    );
                    let path = format!("{path}.weight");
                    self.reasons.push(Reason::lost(&codes::DESTINATION_INVALID, path, text));
                }
                let weight = weight.unwrap_or_default();
                let path = format!("{path}.destination");
                let to = self.destination(raw.destination, &path);
                if let Some(to) = to.filter(|_| weight > 0) {
                    destinations.push(Destination { index: place(at), weight, ..to });
                }
            }
            if destinations.is_empty() {
                let text = "has no valid destination: connections are closed";
                self.reasons.push(Reason::lost(&codes::DESTINATION_INVALID, path, text));
            }
            let place = RulePlace { index: place(at), ..RulePlace::default() };
            rules.push(TcpRule { place, matches, destinations: destinations.into() });
        }
        rules.into()
    }

    /// Parses a match; `None` if it is invalid, so that it matches nothing.
    fn connection(
        &mut self,
        raw: RawConnectionMatch,
        path: &str,
        hosts: Option<&(HostSet<'_>, BTreeSet<HostPattern>)>,
    ) -> Option<ConnectionMatch> {
        let mut lost = |path: String, text: String| {
            self.reasons.push(Reason::lost(&codes::MATCH_REFUSED, path, text));
        };
        let mut names: BTreeSet<Arc<str>> = BTreeSet::new();
        for (at, name) in raw.sni_hosts.iter().enumerate() {
            let path = format!("{path}.sniHosts[{at}]");
            // Clients send the name unchanged. A name with a single label is compared with the
            // hosts as written.
            let Ok(parsed) = HostPattern::written(name) else {
                lost(
                    path,
                    format!("{name:?} is not a valid server name: no connection matches it"),
                );
                continue;
            };
            let covers = |(hosts, written): &(HostSet<'_>, BTreeSet<HostPattern>)| {
                hosts.has_wider(&parsed) || written.contains(&parsed)
            };
            if hosts.is_some_and(|hosts| !covers(hosts)) {
                lost(
                    path,
                    format!(
                        "{name} is not covered by the hosts of the object: no \
                                    connection matches it"
                    ),
                );
                continue;
            }
            names.insert(name.to_ascii_lowercase().into());
        }
        if hosts.is_some() && names.is_empty() {
            return None;
        }
        let mut to = Vec::new();
        for (at, range) in raw.destination_subnets.iter().enumerate() {
            let parsed: Option<IpNet> = range
                .parse()
                .ok()
                .or_else(|| range.parse().ok().map(|ip: std::net::IpAddr| ip.into()));
            match parsed {
                Some(range) => to.push(range.trunc()),
                None => lost(
                    format!("{path}.destinationSubnets[{at}]"),
                    format!("{range:?} is not a CIDR range: no connection matches it"),
                ),
            }
        }
        if to.is_empty() && !raw.destination_subnets.is_empty() {
            return None;
        }
        let number = raw.port.unwrap_or_default();
        let Ok(port) = u16::try_from(number) else {
            lost(
                format!("{path}.port"),
                format!(
                    "{number} is not a valid port: no connection \
                                                  matches it"
                ),
            );
            return None;
        };
        if raw.port == Some(0) {
            let text = "0 is not a valid port: it is treated as not set";
            self.reasons.push(Reason::lost(&codes::TRAFFIC_PORT, format!("{path}.port"), text));
        }
        Some(ConnectionMatch {
            server_names: names.into_iter().collect(),
            to: to.into(),
            port: (port != 0).then_some(port),
            source: source(
                self.namespace,
                &raw.gateways,
                &raw.source_labels,
                &raw.source_namespace,
            ),
        })
    }
}

/// Parses the hosts. Invalid ones and duplicates are left out.
fn hosts(
    raw: &[String],
    namespace: &Namespace,
    settings: &KindSettings,
    reasons: &mut Vec<Reason>,
) -> Box<[HostPattern]> {
    let mut hosts: Vec<HostPattern> = Vec::with_capacity(raw.len());
    let mut before = BTreeSet::new();
    for (at, text) in raw.iter().enumerate() {
        let path = format!("spec.hosts[{at}]");
        match HostPattern::parse(text, namespace.as_str(), &settings.domain) {
            Ok(host) if !before.insert(host.clone()) => {
                let text = format!("{host} is a duplicate");
                reasons.push(Reason::warning(&codes::ROUTE_HOST_INVALID, path, text));
            }
            Ok(host) => hosts.push(host),
            Err(error) => {
                let text = format!("{text:?} {error}; the other hosts apply");
                reasons.push(Reason::lost(&codes::ROUTE_HOST_INVALID, path, text));
            }
        }
    }
    hosts.into()
}

/// Reports rules after a rule that matches every request of all proxies.
fn unreachable(
    rules: &[HttpRule],
    delegates: &SortedMap<usize, Delegate>,
    reasons: &mut Vec<Reason>,
) {
    let takes_all = |(at, rule): (usize, &HttpRule)| {
        let all = |request: &RequestMatch| {
            request.is_catch_all()
                && request.port.is_none()
                && request.source == SourceMatch::default()
        };
        !delegates.contains_key(&at)
            && !rule.is_absent
            && (rule.matches.is_empty() || rule.matches.iter().any(all))
    };
    if let Some(at) = rules.iter().enumerate().position(takes_all) {
        for behind in at + 1..rules.len() {
            let text = format!("spec.http[{at}] matches every request: this rule is never reached");
            let path = format!("spec.http[{behind}]");
            reasons.push(Reason::warning(&codes::RULE_UNREACHABLE, path, text));
        }
    }
}

/// Reports matches without an effect, because an earlier match covers all of their requests.
fn covered(rules: &[HttpRule], delegates: &SortedMap<usize, Delegate>, reasons: &mut Vec<Reason>) {
    // Each match with its path in the object.
    let mut earlier = EarlierMatches::<String>::default();
    let takes_all = |request: &RequestMatch| {
        request.is_catch_all() && request.port.is_none() && request.source == SourceMatch::default()
    };
    let all = rules.iter().enumerate().filter(|(_, rule)| !rule.is_absent);
    for (at, rule) in all {
        if rule.matches.is_empty() || rule.matches.iter().any(takes_all) {
            // `unreachable` reports all later rules.
            return;
        }
        for (place, request) in
            rule.matches.iter().enumerate().filter(|(_, request)| !request.refused)
        {
            let path = format!("spec.http[{at}].match[{place}]");
            let own = (!delegates.contains_key(&at)).then(|| path.clone());
            if let Some(by) = earlier.owner_or_add(request, own) {
                let text = format!("{by} matches all requests of this rule: it is never reached");
                reasons.push(Reason::warning(&codes::RULE_UNREACHABLE, path, text));
            }
        }
    }
}

#[cfg(test)]
mod tests;
