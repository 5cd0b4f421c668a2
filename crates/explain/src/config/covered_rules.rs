//! Rules that are never evaluated, because rules of other objects match all of their traffic first.
//!
//! At routers, several VirtualServices and Ingresses may have rules for one host, and the routes of
//! the Gateway API for one Service are merged. Rules that an earlier rule of the same object covers
//! are reported when the object is parsed.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::Write;
use std::sync::{Arc, LazyLock};

use strait_base::codes;
use strait_base::names::list_first;
use strait_mesh::push::ingress::{BytesMisfit, BytesRule, IngressOutline};
use strait_model::Namespace;
use strait_rules::traffic::earlier_matches::EarlierMatches;
use strait_rules::traffic::gateway::{Gateway, ServerProtocol};
use strait_rules::traffic::gateway_servers::{GatewayPort, PlacedServer};
use strait_rules::traffic::route::{
    HttpRule, MESH, RareConditions, RequestMatch, RouteKind, RouteOrigin, SourceMatch, TcpRule,
};
use strait_rules::traffic::virtual_service_selection::RoutedService;
use strait_rules::traffic::{HostPattern, Reason, Selection};

/// Maximum number of places, or of hosts at a place, that a reason lists.
const LISTED_MAX: usize = 5;
/// Represents the ports of an unknown Service that no route names.
pub(super) const UNNAMED_PORT: u16 = 0;

/// Whether rules are evaluated, by the object that contains them.
#[derive(Debug, Default)]
pub(super) struct CoveredRules(HashMap<RouteOrigin, ObjectCoverage>);

/// Whether the rules of an object are evaluated.
#[derive(Debug, Default)]
pub(super) struct ObjectCoverage {
    /// Whether the object has a host that no other object has.
    has_own_host: bool,
    rules: BTreeMap<RuleLocation, RuleCoverage>,
}

#[derive(Debug, Default)]
struct RuleCoverage {
    /// Whether any proxy evaluates the rule.
    is_evaluated: bool,
    /// The winners at the places where the rule is not evaluated, each with the place.
    losses: Vec<String>,
}

/// The location of a rule or match in an object.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct RuleLocation {
    path: String,
    /// The rule of the delegate, as the beginning of a sentence; empty without a delegate.
    delegated: String,
}

/// A rule or match, with its object.
#[derive(Debug, Clone)]
struct OwnedRule {
    origin: Arc<RouteOrigin>,
    name: RuleLocation,
}

/// A rule at one place; with the reason if it is not evaluated there.
type Outcome = (OwnedRule, Option<String>);

/// A router that the selector of a Gateway describes.
pub(super) struct SelectedRouter<'a, 'r> {
    pub(super) outline: &'r IngressOutline<'a>,
    pub(super) selection: &'r Selection,
    /// Returns whether the status of a Gateway's rules depends on this router.
    pub(super) is_own: &'r dyn Fn(&Gateway) -> bool,
}

/// An object at a host of a router's servers.
struct ObjectAtHost<'a> {
    routed: &'a Arc<RoutedService>,
    gateway: &'a Arc<Gateway>,
    /// Whether the status of its rules depends on the router.
    is_own: bool,
    /// Whether a server of its Gateways redirects the host to HTTPS.
    redirects: bool,
}

/// The objects with rules for a host of a router's servers, in order of precedence.
#[derive(Default)]
struct ContestedHost<'a> {
    port: u16,
    objects: Vec<ObjectAtHost<'a>>,
    /// The Gateway that redirects the host to HTTPS.
    redirecting: Option<&'a Arc<Gateway>>,
}

impl ObjectCoverage {
    /// Returns whether proxies evaluate no rule of the object.
    pub(super) fn is_whole(&self) -> bool {
        let mut rules = self.rules.values();
        !self.has_own_host && !self.rules.is_empty() && rules.all(|rule| !rule.is_evaluated)
    }

    /// Adds the coverage of the same object at other places.
    pub(super) fn merge(&mut self, other: &Self) {
        self.has_own_host |= other.has_own_host;
        for (name, other) in &other.rules {
            let own = self.rules.entry(name.clone()).or_default();
            own.is_evaluated |= other.is_evaluated;
            own.losses.extend(other.losses.iter().cloned());
        }
    }

    /// Returns the rules that are not evaluated at all places. `may_apply_elsewhere` states whether
    /// the object also applies at places that were not checked.
    pub(super) fn reasons(&self, may_apply_elsewhere: bool) -> impl Iterator<Item = Reason> {
        let lost = self.rules.iter().filter(|(_, rule)| !rule.losses.is_empty());
        lost.map(move |(name, RuleCoverage { is_evaluated, losses })| {
            let listed: Vec<_> = losses.iter().take(LISTED_MAX).map(String::as_str).collect();
            let mut text = format!("{}{}", name.delegated, listed.join("; "));
            if losses.len() > LISTED_MAX {
                let _ = write!(text, "; and {} more", losses.len() - LISTED_MAX);
            }
            let applies_elsewhere = *is_evaluated || self.has_own_host || may_apply_elsewhere;
            text +=
                if applies_elsewhere { "; it applies elsewhere" } else { ": it is never reached" };
            Reason::lost(&codes::RULE_UNREACHABLE, &*name.path, text)
        })
    }
}

impl CoveredRules {
    /// Returns whether the rules of an object are evaluated; `None` if no proxy has any.
    pub(super) fn of(&self, origin: &RouteOrigin) -> Option<&ObjectCoverage> {
        self.0.get(origin)
    }

    /// Adds the outcomes at a place. A rule with several outcomes is evaluated if any of them is.
    fn add(&mut self, outcomes: Vec<Outcome>, place: &str) {
        let mut at_place = HashMap::<(Arc<RouteOrigin>, RuleLocation), Option<String>>::new();
        for (OwnedRule { origin, name }, winner) in outcomes {
            let known = at_place.entry((origin, name)).or_insert_with(|| winner.clone());
            *known = known.take().and(winner);
        }
        for ((origin, name), winner) in at_place {
            let object = self.0.entry(RouteOrigin::clone(&origin)).or_default();
            let rule = object.rules.entry(name).or_default();
            match winner {
                Some(winner) => rule.losses.push(format!("{winner} {place}")),
                None => rule.is_evaluated = true,
            }
        }
    }

    /// Adds the rules at a port of a router.
    pub(super) fn add_port(&mut self, router: &SelectedRouter<'_, '_>, port: &GatewayPort<'_>) {
        self.add_requests(router, port.http.iter().collect());
        for placed in &port.tls {
            match placed.server.protocol {
                ServerProtocol::Https(_) => self.add_requests(router, vec![placed]),
                ServerProtocol::Tls(_) => self.add_connections(router, placed),
                _ => {}
            }
        }
        if let Some(placed) = &port.tcp {
            self.add_connections(router, placed);
        }
        self.add_passed_connections(router, port);
    }

    /// Adds the rules for requests at servers that share a route configuration.
    fn add_requests(&mut self, router: &SelectedRouter<'_, '_>, servers: Vec<&PlacedServer<'_>>) {
        let mut hosts = BTreeMap::<&HostPattern, ContestedHost<'_>>::new();
        let mut by_gateway = HashMap::<*const RoutedService, bool>::new();
        for placed in servers {
            let (gateway, redirects) = (placed.gateway, placed.server.https_redirect);
            let is_own = (router.is_own)(gateway);
            let start = || ContestedHost { port: placed.server.port, ..ContestedHost::default() };
            for routed in router.outline.bound(placed) {
                let served = placed.served_hosts(&routed.service);
                if served.is_empty() || routed.http.rules.is_empty() {
                    continue;
                }
                // Without conditions on Gateways, rules are equal at all of them.
                let is_by_gateway = *by_gateway
                    .entry(Arc::as_ptr(routed))
                    .or_insert_with(|| routed.sources().any(|one| !one.gateways.is_empty()));
                for host in served {
                    let host = hosts.entry(host).or_insert_with(start);
                    if redirects {
                        host.redirecting.get_or_insert(gateway);
                    }
                    let is_same = |one: &&mut ObjectAtHost<'_>| {
                        Arc::ptr_eq(one.routed, routed)
                            && (!is_by_gateway || one.gateway.name == gateway.name)
                    };
                    match host.objects.iter_mut().find(is_same) {
                        Some(one) => {
                            if is_own && !one.is_own {
                                (one.gateway, one.is_own) = (gateway, true);
                            }
                            one.redirects |= redirects;
                        }
                        None => {
                            host.objects.push(ObjectAtHost { routed, gateway, is_own, redirects });
                        }
                    }
                }
            }
            if redirects {
                for host in &placed.hosts {
                    let host = hosts.entry(&host.host).or_insert_with(start);
                    host.redirecting.get_or_insert(gateway);
                }
            }
        }
        // Hosts with the same objects are checked together.
        let mut groups = Vec::<(ContestedHost<'_>, Vec<&HostPattern>)>::new();
        let mut places = HashMap::new();
        for (host, served) in hosts {
            let objects = served.objects.iter();
            let objects: Vec<_> =
                objects.map(|one| (Arc::as_ptr(one.routed), Arc::as_ptr(one.gateway))).collect();
            let key = (served.port, served.redirecting.map(Arc::as_ptr), objects);
            let at = *places.entry(key).or_insert(groups.len());
            match groups.get_mut(at) {
                Some((_, hosts)) => hosts.push(host),
                None => groups.push((served, vec![host])),
            }
        }
        for (served, hosts) in groups {
            self.add_host(router, &served, &hosts);
        }
    }

    /// Adds the rules of the objects that share some hosts of a port.
    fn add_host(
        &mut self,
        router: &SelectedRouter<'_, '_>,
        ContestedHost { port, objects, redirecting }: &ContestedHost<'_>,
        hosts: &[&HostPattern],
    ) {
        if let [only] = &objects[..]
            && redirecting.is_none()
            && only.routed.service.origin.kind == RouteKind::VirtualService
        {
            if only.is_own {
                let origin = RouteOrigin::clone(&only.routed.service.origin);
                self.0.entry(origin).or_default().has_own_host = true;
            }
            return;
        }
        let mut earlier = EarlierRules::default();
        for ObjectAtHost { routed, gateway, is_own, redirects } in objects {
            let requests = PlacedRequests {
                gateway: &gateway.name,
                namespace: router.outline.namespace,
                selection: router.selection,
                port: *port,
            };
            let outcomes = match redirecting {
                // Clients of an object that redirects them itself use another port.
                Some(_) if *redirects => continue,
                Some(by) => {
                    let winner = format!(
                        "httpsRedirect of {} redirects all requests of this rule",
                        by.title()
                    );
                    let rules = requests.of(routed);
                    rules.map(|(rule, _)| (rule, Some(winner.clone()))).collect()
                }
                None => earlier.outcomes(requests.of(routed)),
            };
            if *is_own {
                let named = list_first(hosts.iter().map(ToString::to_string), LISTED_MAX);
                self.add(outcomes, &format!("for {named} at port {port} of {}", gateway.title()));
            }
        }
    }

    /// Adds the rules for connections in plain text, or whose TLS the server terminates.
    fn add_connections(&mut self, router: &SelectedRouter<'_, '_>, placed: &PlacedServer<'_>) {
        let rules = router.outline.opened(placed, router.selection);
        let rules = rules.filter(|one| one.takes.is_ok());
        let outcomes =
            first_takes_all(rules.map(|one| OwnedRule::of_connection(one.routed, "tcp", one.rule)));
        if (router.is_own)(placed.gateway) {
            let place = format!("at port {} of {}", placed.server.port, placed.gateway.title());
            self.add(outcomes, &place);
        }
    }

    /// Adds the rules for TLS connections that servers of a port pass through.
    fn add_passed_connections(&mut self, router: &SelectedRouter<'_, '_>, port: &GatewayPort<'_>) {
        let mut owners = HashMap::<HostPattern, OwnedRule>::new();
        for (placed, rules) in router.outline.unopened(port, router.selection) {
            for BytesRule { routed, rule, takes } in rules {
                let owned = OwnedRule::of_connection(routed, "tls", rule);
                let (name, winner) = match takes {
                    Ok(name) => {
                        owners.insert(name.clone(), owned.clone());
                        (name, None)
                    }
                    Err(BytesMisfit::Taken(name)) => {
                        let winner = match owners.get(&name) {
                            Some(winner) if winner.origin == owned.origin => continue,
                            Some(winner) => winner.takes_connections(),
                            None => "a server that terminates TLS takes its connections".to_owned(),
                        };
                        (name, Some(winner))
                    }
                    Err(_) => continue,
                };
                if (router.is_own)(placed.gateway) {
                    let gateway = placed.gateway.title();
                    let place = format!("for {name} at port {} of {gateway}", placed.server.port);
                    self.add(vec![(owned, winner)], &place);
                }
            }
        }
    }

    /// Adds the merged routes of the Gateway API for a Service, at these ports.
    pub(super) fn add_routes(
        &mut self,
        routed: &RoutedService,
        host: &HostPattern,
        ports: &BTreeSet<u16>,
    ) {
        let namespace = &routed.service.meta.namespace;
        let selection = &Selection::default();
        for &port in ports {
            let place = match port {
                UNNAMED_PORT => format!("for {host}"),
                port => format!("at port {port} of {host}"),
            };
            let requests = PlacedRequests { gateway: MESH, namespace, selection, port };
            self.add(EarlierRules::default().outcomes(requests.of(routed)), &place);
            let fits = |rule: &&TcpRule| {
                let mut matches = rule.matches.iter();
                matches.any(|one| one.fits(namespace, selection, port, None))
            };
            let tcp = routed.service.tcp.iter().filter(fits);
            let tcp = tcp.map(|rule| OwnedRule::of_connection(routed, "tcp", rule));
            self.add(first_takes_all(tcp), &place);
            let mut by_name = BTreeMap::<_, Vec<_>>::new();
            for rule in routed.service.tls.iter().filter(fits) {
                let names: BTreeSet<_> =
                    rule.matches.iter().flat_map(|one| &one.server_names).collect();
                for name in names {
                    let owned = OwnedRule::of_connection(routed, "tls", rule);
                    by_name.entry(name).or_default().push(owned);
                }
            }
            for (name, rules) in by_name {
                self.add(first_takes_all(rules.into_iter()), &format!("for {name} {place}"));
            }
        }
    }
}

/// Rules for requests to a host, in the order of evaluation.
#[derive(Default)]
struct EarlierRules {
    matches: EarlierMatches<OwnedRule>,
    /// The first rule that matches every request. Such rules come last.
    catch_all: Option<OwnedRule>,
}

impl EarlierRules {
    /// Adds the rules of an object, or of several that are merged, and returns their outcomes.
    fn outcomes<'a>(
        &mut self,
        rules: impl Iterator<Item = (OwnedRule, &'a RequestMatch)>,
    ) -> Vec<Outcome> {
        let mut outcomes = Vec::new();
        // Merged objects have no rules after the first that matches every request.
        let mut last: Option<OwnedRule> = None;
        for (rule, request) in rules {
            let winner = if let Some(last) = &last {
                Some(last.clone())
            } else if request.is_catch_all() {
                last = Some(rule.clone());
                let first = self.catch_all.clone();
                self.catch_all.get_or_insert_with(|| rule.clone());
                first
            } else if request.refused {
                None
            } else {
                let source = SourceMatch::default();
                let more = RareConditions { source, ..RareConditions::clone(request) }.into();
                let plain = RequestMatch { port: None, more, ..request.clone() };
                self.matches.owner_or_add(&plain, Some(rule.clone()))
            };
            match winner {
                Some(winner) if winner.origin == rule.origin => {}
                Some(winner) => {
                    let why = format!("{winner} matches all requests of this rule");
                    outcomes.push((rule, Some(why)));
                }
                None => outcomes.push((rule, None)),
            }
        }
        outcomes
    }
}

/// Returns the outcomes of rules of which each takes all connections.
fn first_takes_all(rules: impl Iterator<Item = OwnedRule>) -> Vec<Outcome> {
    let mut first = None;
    let outcome = |rule: OwnedRule| {
        let winner = first.get_or_insert_with(|| rule.clone());
        let winner = (winner.origin != rule.origin).then(|| winner.takes_connections());
        (rule, winner)
    };
    rules.map(outcome).collect()
}

/// The proxies and the port at which rules for requests apply.
struct PlacedRequests<'a> {
    gateway: &'a str,
    namespace: &'a Namespace,
    selection: &'a Selection,
    port: u16,
}

impl PlacedRequests<'_> {
    /// Returns the matches of an object that apply there. A rule without matches has one for every
    /// request.
    fn of<'r>(
        &self,
        routed: &'r RoutedService,
    ) -> impl Iterator<Item = (OwnedRule, &'r RequestMatch)> {
        static EVERY: LazyLock<RequestMatch> = LazyLock::new(RequestMatch::default);
        let rules = routed.http.rules.iter().filter(|rule| !rule.is_absent);
        let matches = rules.flat_map(|rule| {
            let every = rule.matches.is_empty().then_some((rule, None, &*EVERY));
            let matches = rule.matches.iter().enumerate();
            matches.map(move |(at, one)| (rule, Some(at), one)).chain(every)
        });
        let placed = matches.filter(|(_, _, one)| {
            one.port.is_none_or(|port| port == self.port)
                && one.source.fits(self.gateway, self.namespace, self.selection)
        });
        placed.map(|(rule, at, one)| (OwnedRule::of_requests(routed, rule, at), one))
    }
}

impl OwnedRule {
    /// Returns a rule for requests, or the match with this index if it has several.
    fn of_requests(routed: &RoutedService, rule: &HttpRule, at: Option<usize>) -> Self {
        let (own, place) = (&routed.service.origin, &rule.place);
        let origin = place.origin.as_ref().unwrap_or(own);
        let path = origin.http_rule_path(place);
        let name = match (own.kind, place.via) {
            (RouteKind::VirtualService, Some(via)) => RuleLocation {
                path: format!("spec.http[{via}]"),
                delegated: format!("{path} of {}/{}: ", origin.namespace, origin.name),
            },
            _ => {
                let several = at.filter(|_| rule.matches.len() > 1);
                let path = several.map_or(path.clone(), |at| format!("{path}.match[{at}]"));
                RuleLocation { path, delegated: String::new() }
            }
        };
        let is_delegated = place.via.is_some();
        let origin = Arc::clone(if is_delegated { own } else { origin });
        Self { origin, name }
    }

    fn of_connection(routed: &RoutedService, list: &str, rule: &TcpRule) -> Self {
        let origin = rule.place.origin.as_ref().unwrap_or(&routed.service.origin);
        let path = origin.connection_rule_path(list, &rule.place);
        Self { origin: Arc::clone(origin), name: RuleLocation { path, delegated: String::new() } }
    }

    fn takes_connections(&self) -> String {
        format!("{self} matches all connections of this rule")
    }
}

impl std::fmt::Display for OwnedRule {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let RouteOrigin { kind, namespace, name } = &*self.origin;
        write!(f, "{} of {} {namespace}/{name}", self.name.path, kind.in_objects())
    }
}
