//! Common types for routing rules of all kinds of objects: VirtualService, HTTPRoute, Ingress.
//!
//! The types cannot represent values that Envoy rejects. A parser leaves the value out with a
//! reason and marks the rule or the match, so that it responds with 500 ([`RuleTerms::refused`],
//! [`RequestMatch::refused`]).

use std::net::IpAddr;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use ipnet::IpNet;
use regex::Regex;

use super::object::ObjectMeta;
use super::selection::{RuleSelector, Selection};
pub(super) use strait_model::is_header_value as is_text;
use strait_model::mesh_config::RetryRule;
use strait_model::{Hostname, Namespace, RareGroup, static_default};

/// Name that represents all sidecars in lists of gateways.
pub const MESH: &str = "mesh";

/// The HTTP rules of one object, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpRoutes {
    /// The object.
    pub origin: Arc<RouteOrigin>,
    /// Its rules. The first matching rule applies. They are shared with the object if it delegates
    /// nothing.
    pub rules: Arc<[HttpRule]>,
}

/// The object that a rule comes from, as displayed by proxies.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct RouteOrigin {
    /// Kind of the object.
    pub kind: RouteKind,
    /// Namespace of the object.
    pub namespace: Namespace,
    /// Name of the object.
    pub name: Arc<str>,
}

/// Kind of an object with routing rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "they are called as the kinds are")]
pub enum RouteKind {
    VirtualService,
    HttpRoute,
    GrpcRoute,
    TcpRoute,
    TlsRoute,
    Ingress,
}

impl RouteKind {
    /// Returns the API group and version, for example `networking.istio.io/v1`.
    pub fn api(self) -> &'static str {
        match self {
            Self::VirtualService => "networking.istio.io/v1",
            Self::Ingress => "networking.k8s.io/v1",
            _ => "gateway.networking.k8s.io/v1",
        }
    }

    /// Returns the spelling used in `istio.config`, for example `virtual-service`.
    pub fn in_config(self) -> &'static str {
        match self {
            Self::VirtualService => "virtual-service",
            Self::HttpRoute => "http-route",
            Self::GrpcRoute => "grpc-route",
            Self::TcpRoute => "tcp-route",
            Self::TlsRoute => "tls-route",
            Self::Ingress => "ingress",
        }
    }

    /// Returns the spelling used in objects, for example `VirtualService`.
    pub fn in_objects(self) -> &'static str {
        match self {
            Self::VirtualService => "VirtualService",
            Self::HttpRoute => "HTTPRoute",
            Self::GrpcRoute => "GRPCRoute",
            Self::TcpRoute => "TCPRoute",
            Self::TlsRoute => "TLSRoute",
            Self::Ingress => "Ingress",
        }
    }
}

impl RouteOrigin {
    /// Returns the origin for an Ingress.
    pub fn for_ingress(meta: &ObjectMeta) -> Self {
        Self {
            kind: RouteKind::Ingress,
            namespace: meta.namespace.clone(),
            name: Arc::clone(&meta.name),
        }
    }

    /// Returns the path of a rule for connections in the object. `list` is the name of the list in
    /// a VirtualService.
    pub fn connection_rule_path(&self, list: &str, place: &RulePlace) -> String {
        match self.kind {
            RouteKind::VirtualService => format!("spec.{list}[{}]", place.index),
            _ => format!("spec.rules[{}]", place.index),
        }
    }

    /// Returns the path of an HTTP rule in the object.
    pub fn http_rule_path(&self, place: &RulePlace) -> String {
        let RulePlace { index, path, .. } = place;
        match (self.kind, path) {
            (RouteKind::VirtualService, _) => format!("spec.http[{index}]"),
            (RouteKind::Ingress, Some(path)) => format!("spec.rules[{index}].http.paths[{path}]"),
            (RouteKind::Ingress, None) => "spec.defaultBackend".to_owned(),
            _ => format!("spec.rules[{index}]"),
        }
    }

    /// Returns the name of a route in access logs and `istioctl` (Istio, the metadata
    /// `istio.config`).
    pub fn config(&self) -> String {
        let Self { kind, namespace, name } = self;
        format!("/apis/{}/namespaces/{namespace}/{}/{name}", kind.api(), kind.in_config())
    }
}

/// Location of a rule in an object.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RulePlace {
    /// Index among the rules of the object, from 0.
    pub index: u32,
    /// The object, if it is not the object of the surrounding rules.
    pub origin: Option<Arc<RouteOrigin>>,
    /// Index of the delegating rule in the object of the surrounding rules.
    pub via: Option<u32>,
    /// For an Ingress, the index among the paths of the rule; `None` for the default backend.
    pub path: Option<u32>,
}

/// An HTTP rule: applies to requests that satisfy at least one match. It dereferences to its terms,
/// which are copied when they are shared and change.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HttpRule {
    /// Location of the rule.
    pub place: RulePlace,
    /// Weighted destinations. Destinations with weight 0 are left out, except for a single
    /// destination, whose weight is ignored. Without destinations, requests are answered with 500.
    pub destinations: Box<[Destination]>,
    /// The other settings, which thousands of rules may share.
    pub terms: Arc<RuleTerms>,
}

/// Settings of an HTTP rule, without its location and destinations.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct RuleTerms {
    /// Matches. At least one must be satisfied. Empty matches every request.
    pub matches: Box<[RequestMatch]>,
    /// Timeout for the whole request; `None` for no timeout.
    pub timeout: Option<Duration>,
    /// Retries; `None` to use the default of the mesh.
    pub retries: Option<Box<RetryRule>>,
    /// Whether it contains a value that Envoy rejects. Requests are answered with 500.
    pub refused: bool,
    /// Whether it is treated as absent, because it contains a value that Envoy rejects and blocks
    /// no requests.
    pub is_absent: bool,
    /// Whether requests to an unknown destination are answered with 500 instead of 503.
    pub is_strict: bool,
    /// Rarely used settings.
    pub more: RareGroup<RareTerms>,
}

/// Rarely used settings of an HTTP rule.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct RareTerms {
    /// Name of the rule, possibly empty.
    pub name: Arc<str>,
    /// Redirect. It takes precedence over all other actions.
    pub redirect: Option<Box<RedirectRule>>,
    /// Direct response. It takes precedence over destinations.
    pub response: Option<Box<FixedResponse>>,
    /// Changes to the path and the host.
    pub rewrite: Option<Box<Rewrite>>,
    /// Fault injection.
    pub fault: Option<Box<InjectedFault>>,
    /// Destinations of mirrored requests.
    pub mirrors: Option<Box<[Mirror]>>,
    /// CORS policy.
    pub cors: Option<Box<CrossOrigin>>,
    /// Header changes.
    pub headers: Option<Box<HeaderChanges>>,
}

/// Conditions on a request and its sender. All must hold.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct RequestMatch {
    /// Path without the query.
    pub path: Option<PathMatch>,
    /// Whether the case of the path is ignored.
    pub ignore_case: bool,
    /// Headers: lower-case name and condition, sorted.
    pub headers: Box<[(Arc<str>, TextMatch)]>,
    /// Port of the service that the client uses.
    pub port: Option<u16>,
    /// Whether a condition that Envoy rejects was left out. Requests that satisfy the others are
    /// answered with 500.
    pub refused: bool,
    /// Rarely used conditions.
    pub more: RareGroup<RareConditions>,
}

/// Rarely used conditions on a request.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct RareConditions {
    /// Name of the match, possibly empty.
    pub name: Arc<str>,
    /// Headers that must not match: lower-case name and condition, sorted.
    pub without_headers: Box<[(Arc<str>, TextMatch)]>,
    /// Claims of one verified token, sorted. They are known only at gateways.
    pub claims: Box<[(ClaimPath, TextMatch)]>,
    /// Claims that must not match in any token, sorted.
    pub without_claims: Box<[(ClaimPath, TextMatch)]>,
    /// Method.
    pub method: Option<TextMatch>,
    /// Host of the request.
    pub authority: Option<TextMatch>,
    /// Scheme.
    pub scheme: Option<TextMatch>,
    /// Query parameters, sorted.
    pub query: Box<[(Arc<str>, TextMatch)]>,
    /// Conditions on the sender.
    pub source: SourceMatch,
    /// Prefix for metrics; empty for none.
    pub stat_prefix: Arc<str>,
}

/// Path to a claim in a token, from the outermost: `realm_access`, `roles`. Neither the path nor
/// its parts are empty.
pub type ClaimPath = Box<[Arc<str>]>;

/// Conditions on a sender. All are known when the routes of a proxy are generated.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct SourceMatch {
    /// Gateways that requests pass, as `NAMESPACE/NAME` or [`MESH`]. Empty for all gateways of the
    /// object.
    pub gateways: Box<[Arc<str>]>,
    /// Labels of the proxy's pod.
    pub labels: Option<RuleSelector>,
    /// Namespace of the proxy.
    pub namespace: Option<Namespace>,
}

/// A condition on a path.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum PathMatch {
    /// Equal to the whole path.
    Exact(Arc<str>),
    /// A prefix of the path, compared as text.
    Prefix(Arc<str>),
    /// A prefix of whole segments: `/a` matches `/a` and `/a/b`, but not `/ab`. It is not `/` and
    /// does not end with a slash.
    Segments(Arc<str>),
    /// An RE2 expression for the whole path.
    Regex(Arc<str>),
}

impl PathMatch {
    /// Returns the reason why no request has such a path, if there is one.
    pub(super) fn never(&self) -> Option<&'static str> {
        let (text, is_whole) = match self {
            Self::Exact(text) => (text, true),
            Self::Prefix(text) | Self::Segments(text) => (text, false),
            Self::Regex(_) => return None,
        };
        // Prefixes of "*" match `OPTIONS *`, and the empty prefix matches everything.
        let may_begin = text.starts_with('/') || **text == *"*" || (text.is_empty() && !is_whole);
        if text.contains('?') {
            Some("contains a query, but paths are compared without it: use queryParams")
        } else if text.contains('#') {
            Some("contains a fragment, which clients do not send")
        } else {
            (!may_begin).then_some("does not begin with a slash, as every path does")
        }
    }
}

/// A condition on a text.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum TextMatch {
    /// Equal to the whole text.
    Exact(Arc<str>),
    /// A prefix; not empty.
    Prefix(Arc<str>),
    /// An RE2 expression for the whole text.
    Regex(Arc<str>),
    /// Present with any value.
    Present,
}

impl TextMatch {
    /// Returns the reason why no request has such a method, if there is one.
    pub(super) fn never_as_method(&self) -> Option<String> {
        const METHODS: [&str; 9] =
            ["CONNECT", "DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT", "TRACE"];
        let Self::Exact(text) = self else { return None };
        let upper = text.to_ascii_uppercase();
        let is_misspelt = upper != **text && METHODS.contains(&&*upper);
        is_misspelt
            .then(|| format!("is not a method, because methods are case-sensitive: use {upper}"))
    }

    /// Returns the reason why no request has such a host, if there is one.
    pub(super) fn never_as_host(&self) -> Option<&'static str> {
        match self {
            Self::Exact(text) | Self::Prefix(text) if text.contains('*') => {
                Some("contains a star, which is not a wildcard here: use regex")
            }
            _ => None,
        }
    }
}

/// A destination of requests or connections.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Destination {
    /// Index in the list of destinations, from 0.
    pub index: u32,
    /// Fully qualified hostname of the service.
    pub host: Hostname,
    /// Port number. `None` uses [`RareAtDestination::port_name`], or else the only port of the
    /// service, or else the port of the listener.
    pub port: Option<u16>,
    /// Subset; empty for none.
    pub subset: Arc<str>,
    /// Weight, relative to the sum of all weights.
    pub weight: u32,
    /// Whether it cannot be used, for example in another namespace without a grant. Its requests
    /// are answered with 500.
    pub invalid: bool,
    /// Rarely used settings.
    pub more: RareGroup<RareAtDestination>,
}

/// Rarely used settings of a destination.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct RareAtDestination {
    /// Name of the port; empty if it is identified by number.
    pub port_name: Arc<str>,
    /// Header changes for requests to this destination.
    pub headers: Option<Box<HeaderChanges>>,
}

/// An HTTP redirect.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct RedirectRule {
    /// New path.
    pub path: RedirectPath,
    /// New host.
    pub authority: Option<Arc<str>>,
    /// New scheme.
    pub scheme: Option<Arc<str>>,
    /// New port.
    pub port: RedirectPort,
    /// Status code: 301, 302, 303, 307 or 308.
    pub status: u16,
}

/// Path of a redirect.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub enum RedirectPath {
    /// Unchanged.
    #[default]
    Unchanged,
    /// Replaces the whole path.
    Whole(Arc<str>),
    /// Replaces the matched prefix, as text.
    Prefix(Arc<str>),
    /// Replaces the matched segments: see [`PathRewrite::Segments`].
    Segments(Arc<str>),
}

/// Port of a redirect.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum RedirectPort {
    /// The port of the request, or that of the scheme if the host changes.
    #[default]
    Unset,
    /// This port.
    Number(u16),
    /// The port on which the request was received.
    FromRequest,
    /// The default port of the scheme.
    SchemeDefault,
}

/// A direct response of the proxy.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct FixedResponse {
    /// Status code from 200 to 599.
    pub status: u16,
    /// Body, if any.
    pub body: Option<Arc<[u8]>>,
}

/// Changes to a request before it is sent to its destination.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Rewrite {
    /// New path.
    pub path: Option<PathRewrite>,
    /// New host.
    pub authority: Option<Arc<str>>,
}

/// A path rewrite.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum PathRewrite {
    /// Replaces the matched part: a prefix, or the whole path for other matches.
    Matched(Arc<str>),
    /// Replaces the matched segments. One slash separates them from the rest of the path (Gateway
    /// API, `HTTPPathModifier`, table of `replacePrefixMatch`).
    Segments(Arc<str>),
    /// Replaces the whole path, independent of the match.
    Whole(Arc<str>),
    /// Replaces the matches of an RE2 expression. In the replacement, `\1` is the first group.
    Regex(Arc<str>, Arc<str>),
}

/// Fault injection. Percentages are per million.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct InjectedFault {
    /// Delay, and the number of delayed requests per million.
    pub delay: Option<(Duration, u32)>,
    /// Status, and the number of aborted requests per million.
    pub abort: Option<(AbortStatus, u32)>,
}

/// Status of aborted requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AbortStatus {
    /// HTTP status from 200 to 599.
    Http(u16),
    /// gRPC status from 0 to 16.
    Grpc(u8),
}

/// Destination of mirrored requests.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Mirror {
    /// Destination; its weight is ignored.
    pub destination: Destination,
    /// Number of mirrored requests per million; greater than zero.
    pub per_million: u32,
}

/// CORS policy.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct CrossOrigin {
    /// Allowed origins.
    pub origins: Box<[TextMatch]>,
    /// Allowed methods, as a comma-separated list; empty if not set.
    pub methods: Arc<str>,
    /// Allowed headers: see [`Self::methods`].
    pub headers: Arc<str>,
    /// Exposed headers: see [`Self::methods`].
    pub expose: Arc<str>,
    /// Time for which a preflight response may be cached.
    pub max_age: Option<Duration>,
    /// Whether credentials are allowed.
    pub credentials: Option<bool>,
    /// Whether the proxy answers preflight requests of other origins instead of forwarding them.
    pub answers_all_preflights: bool,
}

/// Changes to the headers of requests and responses.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct HeaderChanges {
    /// Changes to requests.
    pub request: HeaderEdits,
    /// Changes to responses.
    pub response: HeaderEdits,
    /// New host of requests.
    pub host: Option<Arc<str>>,
}

/// Header changes. Names are in lower case.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct HeaderEdits {
    /// Headers to set: name and value.
    pub set: Box<[(Arc<str>, Arc<str>)]>,
    /// Values to add: name and value.
    pub add: Box<[(Arc<str>, Arc<str>)]>,
    /// Headers to remove.
    pub remove: Box<[Arc<str>]>,
}

/// A rule for TCP or TLS connections.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TcpRule {
    /// Location of the rule.
    pub place: RulePlace,
    /// Matches. At least one must be satisfied. Empty matches every connection.
    pub matches: Box<[ConnectionMatch]>,
    /// Weighted destinations. If the list is empty, connections are closed.
    pub destinations: Box<[Destination]>,
}

/// Conditions on a connection.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ConnectionMatch {
    /// Server names (SNI) in lower case. Empty matches all connections, with or without TLS.
    pub server_names: Box<[Arc<str>]>,
    /// Destination addresses.
    pub to: Box<[IpNet]>,
    /// Destination port of the service.
    pub port: Option<u16>,
    /// Conditions on the sender.
    pub source: SourceMatch,
}

impl HttpRoutes {
    /// Returns the matches that apply to a proxy that serves as `gateway`, with its namespace and
    /// selection, for the port `port` of the service. Each result contains the index of the rule.
    /// Matches after the first catch-all match are left out.
    pub fn chosen<'a>(
        &'a self,
        gateway: &str,
        namespace: &Namespace,
        selection: &Selection,
        port: u16,
    ) -> Vec<(usize, &'a HttpRule, &'a RequestMatch)> {
        static EVERY: LazyLock<[RequestMatch; 1]> = LazyLock::new(Default::default);
        let mut chosen = Vec::new();
        for (at, rule) in self.rules.iter().enumerate().filter(|(_, rule)| !rule.is_absent) {
            let matches = if rule.matches.is_empty() { &EVERY[..] } else { &rule.matches };
            for request in matches {
                let is_for = request.port.is_none_or(|wanted| wanted == port)
                    && request.source.fits(gateway, namespace, selection);
                if is_for {
                    chosen.push((at, rule, request));
                    if request.is_catch_all() {
                        return chosen;
                    }
                }
            }
        }
        chosen
    }
}

/// Returns whether proxies set this header of responses after a rule removes it.
pub(super) fn is_set_by_proxies(name: &str) -> bool {
    ["server", "date"].iter().any(|own| name.eq_ignore_ascii_case(own))
}

impl HttpRule {
    /// Removes the content of a rule that is treated as absent.
    pub(super) fn leave_out(&mut self) {
        self.destinations = Box::default();
        self.terms = Arc::new(RuleTerms {
            is_absent: true,
            more: RareTerms { name: Arc::clone(&self.name), ..RareTerms::default() }.into(),
            ..RuleTerms::default()
        });
    }

    /// Iterates over all destinations, including mirrors.
    pub fn all_destinations(&self) -> impl Iterator<Item = &Destination> + Clone {
        let mirrors = self.mirrors.iter().flatten().map(|mirror| &mirror.destination);
        self.destinations.iter().chain(mirrors)
    }
}

impl Deref for HttpRule {
    type Target = RuleTerms;

    fn deref(&self) -> &RuleTerms {
        &self.terms
    }
}

impl DerefMut for HttpRule {
    fn deref_mut(&mut self) -> &mut RuleTerms {
        Arc::make_mut(&mut self.terms)
    }
}

static_default!(RuleTerms: RareTerms, RequestMatch: RareConditions, Destination: RareAtDestination);

impl DerefMut for RuleTerms {
    fn deref_mut(&mut self) -> &mut RareTerms {
        &mut self.more
    }
}

impl From<RuleTerms> for HttpRule {
    fn from(terms: RuleTerms) -> Self {
        Self { terms: Arc::new(terms), ..Self::default() }
    }
}

impl Destination {
    /// Returns a destination for a service without a port.
    pub fn to(host: Hostname) -> Self {
        Self {
            index: 0,
            host,
            port: None,
            subset: Arc::default(),
            weight: 1,
            invalid: false,
            more: RareGroup::default(),
        }
    }

    /// Returns a destination that cannot be used.
    pub fn invalid() -> Self {
        Self { invalid: true, ..Self::to(Hostname::default()) }
    }
}

impl TextMatch {
    /// Returns whether a text satisfies the condition; `None` for an expression that cannot be
    /// evaluated here.
    pub fn fits(&self, text: &str) -> Option<bool> {
        Some(match self {
            Self::Exact(whole) => **whole == *text,
            Self::Prefix(begin) => text.starts_with(&**begin),
            Self::Regex(expression) => {
                Regex::new(&format!("^(?:{expression})$")).ok()?.is_match(text)
            }
            Self::Present => true,
        })
    }

    /// Returns whether every text satisfies the condition.
    pub fn takes_all(&self) -> bool {
        matches!(self, Self::Regex(text) if &**text == ".*")
    }

    /// Returns whether the empty text satisfies the condition.
    pub fn takes_empty(&self) -> bool {
        *self != Self::Present && self.fits("") == Some(true)
    }
}

impl CrossOrigin {
    /// Reason for the fields of [`Self::literal_stars`].
    pub(super) const LITERAL_STAR: &str = "* matches nothing for requests with credentials, which \
        are allowed: browsers then read it as a literal name; list the names";

    /// Returns the fields that contain `*`, if credentials are allowed. For requests with
    /// credentials, `*` is not a wildcard (Fetch, "CORS protocol and credentials").
    pub(super) fn literal_stars(&self) -> impl Iterator<Item = &'static str> {
        let fields = [
            ("allowMethods", &self.methods),
            ("allowHeaders", &self.headers),
            ("exposeHeaders", &self.expose),
        ];
        let with_credentials = fields.into_iter().filter(|_| self.credentials == Some(true));
        let is_star = |list: &str| list.split(',').any(|name| name.trim() == "*");
        with_credentials.filter(move |(_, list)| is_star(list)).map(|(field, _)| field)
    }
}

impl RequestMatch {
    /// Returns whether every request satisfies the match. Later matches then have no effect.
    pub fn is_catch_all(&self) -> bool {
        let any_path = match &self.path {
            None => true,
            Some(PathMatch::Prefix(prefix)) => &**prefix == "/",
            Some(PathMatch::Regex(regex)) => &**regex == ".*",
            Some(PathMatch::Exact(_) | PathMatch::Segments(_)) => false,
        };
        let no_text = self.method.is_none() && self.authority.is_none() && self.scheme.is_none();
        any_path
            && no_text
            && self.headers.is_empty()
            && self.without_headers.is_empty()
            && !self.looks_at_claims()
            && self.query.is_empty()
    }

    /// Returns whether it depends on a token.
    pub fn looks_at_claims(&self) -> bool {
        !(self.claims.is_empty() && self.without_claims.is_empty())
    }
}

impl SourceMatch {
    /// Returns whether the conditions hold for a proxy that serves as `gateway`, with its namespace
    /// and selection.
    pub fn fits(&self, gateway: &str, namespace: &Namespace, selection: &Selection) -> bool {
        let through = self.gateways.is_empty() || self.gateways.iter().any(|one| **one == *gateway);
        through
            && self.namespace.as_ref().is_none_or(|wanted| wanted == namespace)
            && self.labels.as_ref().is_none_or(|labels| selection.contains(labels))
    }

    /// Returns a description of the first condition that [does not hold](Self::fits).
    pub fn misfit(&self, namespace: &Namespace, selection: &Selection) -> String {
        match (&self.namespace, &self.labels) {
            (Some(wanted), _) if wanted != namespace => {
                format!("it applies to clients of namespace {wanted}")
            }
            (_, Some(labels)) if !selection.contains(labels) => {
                let labels = labels.iter().map(|(key, value)| format!("{key}={value}"));
                format!("it applies to clients with {}", labels.collect::<Vec<_>>().join(", "))
            }
            _ => format!("it applies to gateways {}", self.gateways.join(", ")),
        }
    }
}

impl ConnectionMatch {
    /// Returns whether connections of a proxy to this port of a service match, at a given or at any
    /// address.
    pub fn fits(
        &self,
        namespace: &Namespace,
        selection: &Selection,
        port: u16,
        address: Option<IpAddr>,
    ) -> bool {
        self.port.is_none_or(|number| number == port)
            && self.source.fits(MESH, namespace, selection)
            && address.is_none_or(|address| self.may_be_to(address))
    }

    /// Returns whether connections to `address` may match.
    pub fn may_be_to(&self, address: IpAddr) -> bool {
        self.to.is_empty() || self.to.iter().any(|range| range.contains(&address))
    }
}

impl HeaderChanges {
    /// Returns the boxed changes; `None` without any change.
    pub(super) fn boxed(self) -> Option<Box<Self>> {
        (!self.is_empty()).then(|| Box::new(self))
    }

    /// Returns whether there are no changes.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Converts an index in a list of an object. No list is longer than `u32::MAX`.
pub(super) fn place(at: usize) -> u32 {
    u32::try_from(at).unwrap_or(u32::MAX)
}
