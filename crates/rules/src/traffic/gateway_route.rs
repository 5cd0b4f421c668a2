//! HTTPRoute, GRPCRoute, TLSRoute and TCPRoute attached to Services: routes of requests and
//! connections (Gateway API, `HTTPRoute`, `GRPCRoute`, `TLSRoute`, `TCPRoute`, GEP-1426;
//! docs/reference/traffic.md, "Match" and "Action").
//!
//! This module parses one object into the types of [`super::route`]. `gateway_routes` merges the
//! routes of one Service.

mod filters;
mod order;
mod raw;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::Value;

pub(super) use self::order::specificity;
use self::raw::{
    RawBackend, RawConnectionRoute, RawGatewayMatch, RawGatewayRetry, RawGatewayRoute,
    RawGatewayRule, RawGrant, RawMethod, RawParentRef, RawTimeouts, RawValueMatch,
};
use super::hosts::HostPattern;
use super::kind::KindSettings;
use super::object::{self, ObjectMeta, Reason};
use super::re2;
use super::route::{
    Destination, HeaderChanges, HttpRule, PathMatch, RareAtDestination, RareConditions, RareTerms,
    RequestMatch, RulePlace, RuleTerms, TcpRule, TextMatch, is_text, place,
};
use strait_base::codes;
use strait_model::mesh_config::{RareRetrySettings, RetryRule};
use strait_model::{
    CLUSTERSET, GATEWAY_API, Hostname, ISTIO_NETWORKING, MCS_API, Namespace, is_header_name,
};

/// A route attached to Services.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GatewayRoute {
    /// Name, namespace and age of the object.
    pub meta: ObjectMeta,
    /// `HTTPRoute`, `GRPCRoute`, `TCPRoute` or `TLSRoute`.
    pub kind: &'static str,
    /// The parent Services, with a port if the route is attached to a single port.
    pub parents: Box<[ParentService]>,
    /// Rules for requests; each has at least one match.
    pub rules: Box<[HttpRule]>,
    /// Rules for connections, of TCPRoutes and TLSRoutes.
    pub connections: Box<[TcpRule]>,
    /// Server names (SNI) in lower case; `*` matches all. Empty except for TLSRoutes.
    pub server_names: Box<[Arc<str>]>,
}

/// Matches every server name.
const ANY_NAME: &str = "*";

/// A Service that a route is attached to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParentService {
    /// Index in the parents of the route, from 0.
    pub index: u32,
    /// Fully qualified hostname.
    pub host: Hostname,
    /// Namespace of the Service.
    pub namespace: Namespace,
    /// Port; `None` if the route is attached to all ports.
    pub port: Option<u16>,
}

/// Kind of a parent or backend of a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServiceKind {
    /// A Service.
    Service,
    /// The Service of this name in a cluster set (Gateway API, GEP-1748).
    ServiceImport,
}

impl ServiceKind {
    /// Returns the kind with this API group and kind name.
    pub fn from_group_kind(group: &str, kind: &str) -> Option<Self> {
        match (group, kind) {
            ("", "Service") => Some(Self::Service),
            (MCS_API, "ServiceImport") => Some(Self::ServiceImport),
            _ => None,
        }
    }

    /// Returns the fully qualified hostname.
    fn host(self, name: &str, namespace: &str, domain: &str) -> Hostname {
        let domain = match self {
            Self::Service => domain,
            Self::ServiceImport => CLUSTERSET,
        };
        Hostname::of_kubernetes_service(&name.to_ascii_lowercase(), namespace, domain)
    }

    /// Returns the kind, name and namespace of a host; `None` if the host is no Service.
    fn from_host<'a>(host: &'a Hostname, domain: &str) -> Option<(Self, &'a str, &'a str)> {
        let service_in = |kind, domain| {
            let (name, namespace) = host.service_in(domain)?;
            Some((kind, name, namespace))
        };
        service_in(Self::Service, domain).or_else(|| service_in(Self::ServiceImport, CLUSTERSET))
    }
}

/// A ReferenceGrant: allows routes of other namespaces to route to a namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReferenceGrant {
    /// Name, namespace and age of the object. The Services are in its namespace.
    pub meta: ObjectMeta,
    /// Kinds of routes, each with its namespace.
    from: Box<[(String, Namespace)]>,
    /// Allowed backends: kind and name; `None` allows all names.
    to: Box<[(ServiceKind, Option<String>)]>,
}

impl ReferenceGrant {
    /// Parses an object. References to other kinds than routes and Services are left out.
    ///
    /// # Errors
    /// The reason why the whole object is refused.
    pub fn read(meta: ObjectMeta, object: &Value) -> Result<Self, Reason> {
        let (raw, _) = object::body::<RawGrant>(object)?;
        let from = raw.from.into_iter().filter(|from| from.group == GATEWAY_API);
        let to = raw.to.into_iter().filter_map(|to| {
            let kind = ServiceKind::from_group_kind(&to.group, &to.kind)?;
            Some((kind, to.name.filter(|name| !name.is_empty())))
        });
        Ok(Self {
            meta,
            from: from.map(|from| (from.kind, from.namespace.as_str().into())).collect(),
            to: to.collect(),
        })
    }

    /// Returns whether routes of a kind and namespace may route to this Service of the grant's
    /// namespace.
    fn permits(&self, kind: &str, namespace: &Namespace, to: (ServiceKind, &str)) -> bool {
        let from = self.from.iter().any(|(from_kind, from)| from_kind == kind && from == namespace);
        let is_named = |(to_kind, name): &(ServiceKind, Option<String>)| {
            *to_kind == to.0 && name.as_deref().is_none_or(|name| name == to.1)
        };
        from && self.to.iter().any(is_named)
    }
}

impl GatewayRoute {
    /// Returns whether the rules for a parent may route to `host`. This is allowed within the
    /// route's namespace, within the parent's namespace, and if a grant allows it.
    pub fn may_lead_to<'a>(
        &self,
        parent: &ParentService,
        host: &Hostname,
        domain: &str,
        mut grants: impl Iterator<Item = &'a ReferenceGrant>,
    ) -> bool {
        // A host that is no Service belongs to no namespace.
        let Some((to, name, namespace)) = ServiceKind::from_host(host, domain) else { return true };
        namespace == self.meta.namespace.as_str()
            || namespace == parent.namespace.as_str()
            || grants.any(|grant| {
                grant.meta.namespace.as_str() == namespace
                    && grant.permits(self.kind, &self.meta.namespace, (to, name))
            })
    }

    /// Returns whether another route takes precedence at the port of this parent. A port has routes
    /// of only one kind, and GRPCRoute takes precedence over HTTPRoute (Gateway API, GEP-1294,
    /// "Route types").
    pub fn yields_to(&self, parent: &ParentService, other: &Self) -> bool {
        let takes = |candidate: &ParentService| {
            candidate.host == parent.host
                && (candidate.port.is_none() || candidate.port == parent.port)
        };
        self.kind == "HTTPRoute"
            && other.kind == "GRPCRoute"
            && other.meta.namespace == self.meta.namespace
            && other.parents.iter().any(takes)
    }

    /// Parses an HTTPRoute or GRPCRoute. Also returns the reasons to report to its owner.
    ///
    /// # Errors
    /// The reason why the whole object is refused.
    pub fn read(
        kind: &'static str,
        meta: ObjectMeta,
        object: &Value,
        settings: &KindSettings,
    ) -> Result<(Self, Vec<Reason>), Reason> {
        let (raw, mut reasons) = object::body::<RawGatewayRoute>(object)?;
        let parents = parents(&raw.parent_refs, &meta, settings, &mut reasons);
        let are_services = raw.parent_refs.iter().all(|parent| service_kind(parent).is_some());
        if !raw.hostnames.is_empty() && !raw.parent_refs.is_empty() && are_services {
            let text = "hostnames have no effect on a Service: the route applies to all requests to \
                        the Service";
            reasons.push(Reason::warning(&codes::TRAFFIC_UNSUPPORTED, "spec.hostnames", text));
        }
        let lost = "answered with 500";
        let mut reader =
            RuleReader { namespace: &meta.namespace, settings, lost, reasons: &mut reasons };
        let rules = raw.rules.into_iter().enumerate();
        let rules = rules.map(|(at, raw)| {
            let mut rule = reader.rule(raw, &format!("spec.rules[{at}]"));
            rule.place.index = place(at);
            rule
        });
        let rules: Box<[HttpRule]> = rules.collect();
        if !parents.is_empty() {
            reasons.extend(order::covered(&rules));
        }
        let (connections, server_names) = (Box::default(), Box::default());
        Ok((Self { meta, kind, parents, rules, connections, server_names }, reasons))
    }

    /// Parses a TCPRoute or TLSRoute. Also returns the reasons to report to its owner.
    ///
    /// # Errors
    /// The reason why the whole object is refused.
    pub fn read_connections(
        kind: &'static str,
        meta: ObjectMeta,
        object: &Value,
        settings: &KindSettings,
    ) -> Result<(Self, Vec<Reason>), Reason> {
        let (raw, mut reasons) = object::body::<RawConnectionRoute>(object)?;
        let parents = parents(&raw.parent_refs, &meta, settings, &mut reasons);
        let is_tls_route = kind == "TLSRoute";
        let server_names = match &*raw.hostnames {
            [] if is_tls_route => [ANY_NAME.into()].into(),
            names if is_tls_route => server_names(names, &mut reasons),
            _ => Box::default(),
        };
        let mut reader = RuleReader {
            namespace: &meta.namespace,
            settings,
            lost: "closed",
            reasons: &mut reasons,
        };
        let mut connections = Vec::new();
        // Without a server name, a TLS rule matches no connection.
        let rules = raw.rules.into_iter().filter(|_| !is_tls_route || !server_names.is_empty());
        for (at, raw) in rules.enumerate() {
            let path = format!("spec.rules[{at}]");
            if at > 0 {
                let text = "has no effect: the first rule matches every connection";
                reader.reasons.push(Reason::lost(&codes::RULE_UNREACHABLE, path, text));
                continue;
            }
            let place = RulePlace { index: place(at), ..RulePlace::default() };
            let destinations = reader.backends(&raw.backend_refs, &path);
            connections.push(TcpRule { place, destinations, matches: Box::default() });
        }
        let (connections, rules) = (connections.into(), Box::default());
        Ok((Self { meta, kind, parents, rules, connections, server_names }, reasons))
    }

    /// Iterates over all destinations, including mirrors.
    pub fn destinations(&self) -> impl Iterator<Item = &Destination> {
        let requests = self.rules.iter().flat_map(|rule| {
            let mirrors = rule.mirrors.iter().flatten().map(|mirror| &mirror.destination);
            rule.destinations.iter().chain(mirrors)
        });
        requests.chain(self.connections.iter().flat_map(|rule| &rule.destinations))
    }
}

/// Returns the kind of Service of a parent, or `None` if the parent is not a Service.
fn service_kind(parent: &RawParentRef) -> Option<ServiceKind> {
    ServiceKind::from_group_kind(parent.group.as_deref()?, parent.kind.as_deref()?)
}

/// Returns a reason for a parent of the mesh that Strait does not support. Gateways belong to other
/// controllers.
fn foreign_parent(at: usize, parent: &RawParentRef) -> Option<Reason> {
    let group = parent.group.as_deref().unwrap_or(GATEWAY_API);
    let (field, text) = match (group, parent.kind.as_deref()?) {
        ("", "Service") => return None,
        (group, "Service") => {
            (".group", format!("a Service has the group \"\", not {group}: set group: \"\""))
        }
        (ISTIO_NETWORKING, kind) => {
            let text = format!(
                "{kind} is not supported as a parent: use a Service, a ServiceImport, or a \
                 VirtualService instead of the route"
            );
            ("", text)
        }
        _ => return None,
    };
    let path = format!("spec.parentRefs[{at}]{field}");
    Some(Reason::lost(&codes::TRAFFIC_UNSUPPORTED, path, text))
}

/// Parses the parent Services of a route.
fn parents(
    raw: &[RawParentRef],
    meta: &ObjectMeta,
    settings: &KindSettings,
    reasons: &mut Vec<Reason>,
) -> Box<[ParentService]> {
    reasons.extend(raw.iter().enumerate().filter_map(|(at, parent)| foreign_parent(at, parent)));
    let parents = raw.iter().enumerate();
    let parents = parents.filter_map(|(at, parent)| Some((at, service_kind(parent)?, parent)));
    let parents = parents.filter(|(at, _, parent)| {
        let has_section = parent.section_name.as_deref().is_some_and(|name| !name.is_empty());
        if has_section {
            // Attached to the whole Service, the route would apply to more ports than intended.
            let path = format!("spec.parentRefs[{at}].sectionName");
            let text = "ports of a Service are selected by number: use port; the route is not \
                        attached to this Service";
            reasons.push(Reason::lost(&codes::TRAFFIC_UNSUPPORTED, path, text));
        }
        !has_section
    });
    let parents = parents.map(|(at, kind, parent)| {
        let namespace = parent.namespace.as_deref().unwrap_or(meta.namespace.as_str());
        ParentService {
            index: place(at),
            host: kind.host(&parent.name, namespace, &settings.domain),
            namespace: namespace.into(),
            port: parent.port,
        }
    });
    parents.collect()
}

/// Parses the server names of a TLSRoute. Invalid names are left out.
fn server_names(given: &[String], reasons: &mut Vec<Reason>) -> Box<[Arc<str>]> {
    let names = given.iter().enumerate().filter_map(|(at, name)| {
        let name = name.to_ascii_lowercase();
        // A name of one or more labels, or `*.` with a suffix (Gateway API, `Hostname`).
        let is_valid = name != ANY_NAME && HostPattern::written(&name).is_ok();
        if !is_valid {
            let text = format!("{name:?} is not a valid server name: no connection matches it");
            reasons.push(Reason::lost(
                &codes::MATCH_REFUSED,
                format!("spec.hostnames[{at}]"),
                text,
            ));
        }
        is_valid.then(|| Arc::from(name))
    });
    names.collect()
}

struct RuleReader<'a> {
    namespace: &'a Namespace,
    settings: &'a KindSettings,
    /// Effect of an invalid destination, as text.
    lost: &'static str,
    reasons: &'a mut Vec<Reason>,
}

impl RuleReader<'_> {
    fn rule(&mut self, raw: RawGatewayRule, path: &str) -> HttpRule {
        let terms = RuleTerms {
            is_strict: true,
            more: RareTerms { name: raw.name, ..RareTerms::default() }.into(),
            ..RuleTerms::default()
        };
        let mut rule = HttpRule::from(terms);
        let matches =
            if raw.matches.is_empty() { vec![RawGatewayMatch::default()] } else { raw.matches };
        let matches = matches.into_iter().enumerate();
        rule.matches =
            matches.map(|(at, raw)| self.request(raw, &format!("{path}.matches[{at}]"))).collect();
        let backends = raw.backend_refs.into_iter().enumerate();
        let backends = backends.filter_map(|(at, raw)| {
            let path = format!("{path}.backendRefs[{at}]");
            let index = place(at);
            let is_used = raw.weight != Some(0);
            is_used.then(|| Destination { index, ..self.weighted(raw, &path, &mut rule.refused) })
        });
        let destinations = backends.collect();
        rule.destinations = destinations;
        let sum: u64 = rule.destinations.iter().map(|one| u64::from(one.weight)).sum();
        if u32::try_from(sum).is_err() {
            self.refuse(&mut rule.refused, path, "the sum of the weights exceeds 4294967295");
        }
        let mut seen = BTreeSet::new();
        for (at, raw) in raw.filters.into_iter().enumerate() {
            let path = format!("{path}.filters[{at}]");
            let may_repeat = ["RequestMirror", "ExtensionRef"].contains(&&*raw.r#type);
            if !may_repeat && !seen.insert(raw.r#type.clone()) {
                let text = format!("the rule repeats {}: only the last one applies", raw.r#type);
                self.reasons.push(Reason::lost(&codes::ROUTE_PART_LOST, &*path, text));
            }
            self.filter(raw, &path, &mut rule);
        }
        let answers_500 = sum == 0 && rule.more.redirect.is_none();
        if answers_500 && !rule.refused {
            let text = "no backend has a weight above 0; requests are answered with 500";
            let path = format!("{path}.backendRefs");
            self.reasons.push(Reason::warning(&codes::ROUTE_PART_LOST, path, text));
        }
        if rule.more.redirect.is_some() {
            // These filters only affect requests that are sent to a destination.
            let ignored = [
                ("URLRewrite", rule.more.rewrite.take().is_some()),
                ("RequestMirror", rule.more.mirrors.take().is_some()),
                ("CORS", rule.more.cors.take().is_some()),
            ];
            for (filter, _) in ignored.into_iter().filter(|(_, is_set)| *is_set) {
                let text =
                    format!("{filter} has no effect, because RequestRedirect answers the requests");
                let path = format!("{path}.filters");
                self.reasons.push(Reason::lost(&codes::ROUTE_PART_LOST, path, text));
            }
        }
        self.limits(raw.timeouts, raw.retry, path, &mut rule);
        if !answers_500 && rule.matches.iter().any(|request| request.refused) {
            rule.leave_out();
        }
        rule
    }

    /// Parses the timeouts and the retries.
    fn limits(
        &mut self,
        timeouts: RawTimeouts,
        retry: Option<RawGatewayRetry>,
        path: &str,
        rule: &mut RuleTerms,
    ) {
        rule.timeout = timeouts.request.map(|timeout| timeout.0);
        let per_try = timeouts.backend_request.map(|timeout| timeout.0);
        let whole = rule.timeout.filter(|timeout| !timeout.is_zero());
        if per_try.zip(whole).is_some_and(|(per_try, whole)| per_try > whole) {
            let text = "is longer than the timeout of the request, which ends the request first";
            let path = format!("{path}.timeouts.backendRequest");
            self.reasons.push(Reason::lost(&codes::ROUTE_PART_LOST, path, text));
        }
        let Some(retry) = retry else {
            let retries = |per_try| RetryRule {
                attempts: 2,
                per_try_timeout: Some(per_try),
                ..RetryRule::default()
            };
            rule.retries = per_try.map(retries).map(Box::new);
            return;
        };
        if retry.backoff.as_ref().is_some_and(|pause| pause.0.is_zero()) {
            let text = "0s is not a valid backoff; the default applies";
            let path = format!("{path}.retry.backoff");
            self.reasons.push(Reason::warning(&codes::TRAFFIC_VALUE, path, text));
        }
        if retry.attempts == Some(0) {
            // Envoy has timeouts of tries only together with retries.
            let per_try = per_try.filter(|timeout| !timeout.is_zero());
            rule.timeout = whole.into_iter().chain(per_try).min().or(rule.timeout);
        }
        rule.retries = Some(Box::new(RetryRule {
            attempts: retry.attempts.unwrap_or(2),
            per_try_timeout: per_try,
            on: RETRY_ON.into(),
            more: RareRetrySettings {
                statuses: retry.codes.into(),
                backoff: retry.backoff.map(|pause| pause.0).filter(|pause| !pause.is_zero()),
            }
            .into(),
            ..RetryRule::default()
        }));
    }

    fn refuse(&mut self, refused: &mut bool, path: &str, fact: &str) {
        *refused = true;
        let text = format!("{fact}; requests that match it are answered with 500");
        self.reasons.push(Reason::lost(&codes::ROUTE_REFUSED, path, text));
    }

    fn request(&mut self, raw: RawGatewayMatch, path: &str) -> RequestMatch {
        let mut request = RequestMatch::default();
        let refused = &mut request.refused;
        let mut more = RareConditions::default();
        request.path = raw.path.and_then(|raw| self.path(&raw, &format!("{path}.path"), refused));
        match raw.method {
            Some(RawMethod::Http(method)) => more.method = Some(TextMatch::Exact(method)),
            Some(RawMethod::Grpc(raw)) => {
                let exact = raw.r#type != "RegularExpression";
                if !["", "Exact", "RegularExpression"].contains(&&*raw.r#type) {
                    let fact = format!("{:?} is neither Exact nor RegularExpression", raw.r#type);
                    self.refuse_condition(refused, &format!("{path}.method.type"), &fact);
                }
                let path = format!("{path}.method");
                let mut part = |text: &str, field: &str| match text {
                    "" => Some("[^/]+".to_owned()),
                    _ if exact => Some(re2::escaped(text)),
                    _ => {
                        self.regex(text, &format!("{path}.{field}"), refused).map(|it| grouped(&it))
                    }
                };
                request.path = match (&*raw.service, &*raw.method) {
                    ("", "") => None,
                    (service, "") if exact => {
                        Some(PathMatch::Prefix(format!("/{service}/").into()))
                    }
                    (service, method) if exact && !service.is_empty() => {
                        Some(PathMatch::Exact(format!("/{service}/{method}").into()))
                    }
                    (service, method) => {
                        // Each expression must be valid alone.
                        let parts = (part(service, "service"), part(method, "method"));
                        let text = match parts {
                            (Some(service), Some(method)) => Some(format!("/{service}/{method}")),
                            _ => None,
                        };
                        let text = text.and_then(|text| self.regex(&text, &path, refused));
                        text.map(PathMatch::Regex)
                    }
                };
            }
            None => {}
        }
        let of_path = request.path.as_ref().and_then(PathMatch::never).map(str::to_owned);
        let of_method = more.method.as_ref().and_then(TextMatch::never_as_method);
        for (field, fact) in [("path", of_path), ("method", of_method)] {
            let reason = fact.map(|fact| {
                let text = format!("{fact}; no request matches it");
                Reason::lost(&codes::MATCH_NEVER, format!("{path}.{field}"), text)
            });
            self.reasons.extend(reason);
        }
        request.headers = self.named(raw.headers, &format!("{path}.headers"), true, refused);
        more.query = self.named(raw.query_params, &format!("{path}.queryParams"), false, refused);
        request.more = more.into();
        request
    }

    fn refuse_condition(&mut self, refused: &mut bool, path: &str, fact: &str) {
        *refused = true;
        let text = format!(
            "{fact}; without a valid version of the route, the rule is left out, or answers 500 if \
             it has no backends"
        );
        self.reasons.push(Reason::lost(&codes::MATCH_REFUSED, path, text));
    }

    fn regex(&mut self, text: &str, path: &str, refused: &mut bool) -> Option<Arc<str>> {
        match re2::parse(text) {
            Ok(_) => Some(text.into()),
            Err(fact) => {
                self.refuse_condition(refused, path, &format!("{text:?} {fact}"));
                None
            }
        }
    }

    fn path(&mut self, raw: &RawValueMatch, path: &str, refused: &mut bool) -> Option<PathMatch> {
        match &*raw.r#type {
            "Exact" => Some(PathMatch::Exact(Arc::clone(&raw.value))),
            "RegularExpression" => self.regex(&raw.value, path, refused).map(PathMatch::Regex),
            "" | "PathPrefix" => {
                let prefix = raw.value.trim_end_matches('/');
                if prefix.contains(['?', '#']) || !(prefix.is_empty() || prefix.starts_with('/')) {
                    self.refuse_condition(
                        refused,
                        path,
                        &format!("{:?} is not a valid path", raw.value),
                    );
                    return None;
                }
                (!prefix.is_empty()).then(|| PathMatch::Segments(prefix.into()))
            }
            other => {
                let text = format!(
                    "{other:?} is not valid; use Exact, PathPrefix or \
                                    RegularExpression"
                );
                self.refuse_condition(refused, path, &text);
                None
            }
        }
    }

    /// Parses conditions by name. If a name occurs several times, the first condition applies.
    fn named(
        &mut self,
        raw: Vec<RawValueMatch>,
        path: &str,
        are_headers: bool,
        refused: &mut bool,
    ) -> Box<[(Arc<str>, TextMatch)]> {
        let mut all = BTreeMap::<Arc<str>, TextMatch>::new();
        for (at, raw) in raw.into_iter().enumerate() {
            let path = format!("{path}[{at}]");
            let name = if are_headers { raw.name.to_ascii_lowercase() } else { raw.name };
            let is_name = if are_headers { is_header_name(&name) } else { !name.is_empty() };
            if !is_name || !is_text(&raw.value) {
                self.refuse_condition(refused, &path, "cannot occur in a request");
                continue;
            }
            let text = match &*raw.r#type {
                "" | "Exact" => Some(TextMatch::Exact(raw.value)),
                "RegularExpression" => self.regex(&raw.value, &path, refused).map(TextMatch::Regex),
                other => {
                    let text = format!("{other:?} is neither Exact nor RegularExpression");
                    self.refuse_condition(refused, &path, &text);
                    None
                }
            };
            if let Some(text) = text {
                all.entry(name.into()).or_insert(text);
            }
        }
        all.into_iter().collect()
    }

    fn weighted(&mut self, raw: RawBackend, path: &str, refused: &mut bool) -> Destination {
        let weight = raw.weight.unwrap_or(1);
        let mut headers = HeaderChanges::default();
        let backend = self.backend(&raw, path);
        for (at, raw) in raw.filters.into_iter().enumerate() {
            let path = format!("{path}.filters[{at}]");
            match (raw.request_header_modifier, raw.response_header_modifier) {
                (Some(raw), _) => {
                    headers.request = self.edits(raw, &path, refused, Some(&mut headers.host));
                }
                (None, Some(raw)) => headers.response = self.edits(raw, &path, refused, None),
                (None, None) => {
                    self.refuse(refused, &path, "is not supported for a single backend");
                }
            }
        }
        let headers = headers.boxed();
        let more = RareAtDestination { headers, ..RareAtDestination::default() }.into();
        Destination { weight, more, ..backend.unwrap_or_else(Destination::invalid) }
    }

    /// Parses weighted destinations of connections.
    fn backends(&mut self, raw: &[RawBackend], path: &str) -> Box<[Destination]> {
        let used = raw.iter().enumerate().filter(|(_, raw)| raw.weight != Some(0));
        let backends: Vec<_> = used
            .map(|(at, raw)| {
                let backend = self.backend(raw, &format!("{path}.backendRefs[{at}]"));
                let (index, weight) = (place(at), raw.weight.unwrap_or(1));
                Destination { index, weight, ..backend.unwrap_or_else(Destination::invalid) }
            })
            .collect();
        let sum: u64 = backends.iter().map(|one| u64::from(one.weight)).sum();
        if u32::try_from(sum).is_err() {
            let text = "the sum of the weights exceeds 4294967295; connections are closed";
            self.reasons.push(Reason::lost(&codes::ROUTE_REFUSED, path, text));
            return Box::default();
        }
        if sum == 0 {
            let text = "no backend has a weight above 0; connections are closed";
            let path = format!("{path}.backendRefs");
            self.reasons.push(Reason::warning(&codes::ROUTE_PART_LOST, path, text));
        }
        backends.into()
    }

    /// Parses a backend: a Service with a port, a ServiceImport (without a port if the service has
    /// only one), or a host of the mesh with a port (Istio, kind `Hostname`).
    fn backend(&mut self, raw: &RawBackend, path: &str) -> Option<Destination> {
        let kind = raw.kind.as_deref().unwrap_or("Service");
        if (&*raw.group, kind) == (ISTIO_NETWORKING, "Hostname")
            && raw.port.is_some()
            && raw.namespace.is_none()
            && let Ok(HostPattern::Exact(host)) = HostPattern::written(&raw.name)
        {
            return Some(Destination { port: raw.port, ..Destination::to(host) });
        }
        let kind = ServiceKind::from_group_kind(&raw.group, kind).filter(|kind| {
            !raw.name.is_empty() && (raw.port.is_some() || *kind == ServiceKind::ServiceImport)
        });
        let Some(kind) = kind else {
            let text = format!(
                "is neither a Service with a port, nor a ServiceImport, nor a Hostname with a port \
                 and without a namespace; its share of the traffic is {}",
                self.lost
            );
            self.reasons.push(Reason::lost(&codes::DESTINATION_INVALID, path, text));
            return None;
        };
        let namespace = raw.namespace.as_deref().unwrap_or(self.namespace.as_str());
        let host = kind.host(&raw.name, namespace, &self.settings.domain);
        Some(Destination { port: raw.port, ..Destination::to(host) })
    }
}

/// Returns an expression as a part of a longer one. Alternatives and flags need a group.
fn grouped(expression: &str) -> String {
    match expression.contains('|') || expression.contains("(?") {
        true => format!("(?:{expression})"),
        false => expression.to_owned(),
    }
}

/// Retry conditions of a rule with `retry`: connection errors, which include timeouts of tries
/// (Gateway API, `HTTPRouteRetry`), and the status codes of the rule. Envoy retries a try that timed
/// out only because of `reset`.
const RETRY_ON: &str =
    "reset,connect-failure,refused-stream,unavailable,cancelled,retriable-status-codes";

#[cfg(test)]
mod tests;
