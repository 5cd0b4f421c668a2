//! One form for the rules by which requests and connections find their way, whatever wrote them: a VirtualService,
//! an HTTPRoute, an Ingress.
//!
//! It can't hold what Envoy refuses: whoever reads an object leaves such a piece out with a reason, and marks the rule
//! or the match, so that a 500 stands in its place ([`RuleTerms::refused`], [`RequestMatch::refused`]).

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
use strait_model::{Hostname, Namespace, RareGroup, unsaid};

/// The name that stands for all sidecars where gateways are named.
pub const MESH: &str = "mesh";

/// The rules of one object for requests, first to last.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpRoutes {
    /// The object.
    pub origin: Arc<RouteOrigin>,
    /// Its rules; the first that fits a request decides. They are the object's own where it delegates nothing.
    pub rules: Arc<[HttpRule]>,
}

/// The object that rules come from, as proxies show it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct RouteOrigin {
    /// The kind.
    pub kind: RouteKind,
    /// The object's namespace.
    pub namespace: Namespace,
    /// The object's name.
    pub name: Arc<str>,
}

/// A kind of objects that rules come from.
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
    /// The API group and version, such as `networking.istio.io/v1`.
    pub fn api(self) -> &'static str {
        match self {
            Self::VirtualService => "networking.istio.io/v1",
            Self::Ingress => "networking.k8s.io/v1",
            _ => "gateway.networking.k8s.io/v1",
        }
    }

    /// As in `istio.config`, such as `virtual-service`.
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

    /// As objects name it, such as `VirtualService`.
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
    /// That of an Ingress.
    pub fn of_ingress(meta: &ObjectMeta) -> Self {
        Self {
            kind: RouteKind::Ingress,
            namespace: meta.namespace.clone(),
            name: Arc::clone(&meta.name),
        }
    }

    /// Where in the object a rule for connections is, that is in such a list.
    pub fn path_of_connections(&self, list: &str, place: &RulePlace) -> String {
        match self.kind {
            RouteKind::VirtualService => format!("spec.{list}[{}]", place.index),
            _ => format!("spec.rules[{}]", place.index),
        }
    }

    /// Where in the object a rule for requests is.
    pub fn path_of(&self, place: &RulePlace) -> String {
        let RulePlace { index, path, .. } = place;
        match (self.kind, path) {
            (RouteKind::VirtualService, _) => format!("spec.http[{index}]"),
            (RouteKind::Ingress, Some(path)) => format!("spec.rules[{index}].http.paths[{path}]"),
            (RouteKind::Ingress, None) => "spec.defaultBackend".to_owned(),
            _ => format!("spec.rules[{index}]"),
        }
    }

    /// What access logs and `istioctl` show of a route (Istio, the metadata `istio.config`).
    pub fn config(&self) -> String {
        let Self { kind, namespace, name } = self;
        format!("/apis/{}/namespaces/{namespace}/{}/{name}", kind.api(), kind.in_config())
    }
}

/// Where a rule is written.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RulePlace {
    /// Its place among the rules of its object, from 0.
    pub index: u32,
    /// The object, where that is another than the one of all these rules.
    pub of: Option<Arc<RouteOrigin>>,
    /// Where a rule delegates to it: the place of that one in the object of all these rules.
    pub via: Option<u32>,
    /// Of an Ingress, its place among the paths of the rule; `None` for what the object has for all other requests.
    pub path: Option<u32>,
}

/// What becomes of requests that fit any of some matches. It reads as its terms do, which are copied where others have them
/// as well and these change.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HttpRule {
    /// Where it is written.
    pub place: RulePlace,
    /// Where requests go, by weight. Those of weight 0 are left out, but where there is one alone, whose weight
    /// says nothing. Where there are none, requests get a 500.
    pub destinations: Box<[Destination]>,
    /// What else it says: what thousands of rules may say alike.
    pub terms: Arc<RuleTerms>,
}

/// What a rule says, but for where it is and where requests go.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct RuleTerms {
    /// Any of these has to fit; none stands for every request.
    pub matches: Box<[RequestMatch]>,
    /// How long the whole of a request may take; `None` for ever.
    pub timeout: Option<Duration>,
    /// When it is tried again; `None` leaves that to the mesh.
    pub retries: Option<Box<RetryRule>>,
    /// Whether it holds what Envoy refuses: requests get a 500.
    pub refused: bool,
    /// Whether it is as if absent, because it holds what Envoy refuses and blocks no requests.
    pub is_absent: bool,
    /// Whether requests get a 500, instead of a 503, where a destination isn't known.
    pub is_strict: bool,
    /// What few rules have.
    pub more: RareGroup<RareTerms>,
}

/// What few rules say.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct RareTerms {
    /// Its name; empty where it has none.
    pub name: Arc<str>,
    /// A redirect, which comes before all else.
    pub redirect: Option<Box<RedirectRule>>,
    /// An answer by the proxy itself, which comes before destinations.
    pub response: Option<Box<FixedResponse>>,
    /// What of a request is another at its destination.
    pub rewrite: Option<Box<Rewrite>>,
    /// Failures on purpose.
    pub fault: Option<Box<InjectedFault>>,
    /// Where copies go.
    pub mirrors: Option<Box<[Mirror]>>,
    /// Which other origins may ask.
    pub cors: Option<Box<CrossOrigin>>,
    /// Headers that are added, set or taken away.
    pub headers: Option<Box<HeaderChanges>>,
}

/// Conditions of a request, all of which have to fit, and of who sends it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct RequestMatch {
    /// The path, without its query.
    pub path: Option<PathMatch>,
    /// Whether the path is compared without regard to case.
    pub ignore_case: bool,
    /// Headers in lower case, sorted.
    pub headers: Box<[(Arc<str>, TextMatch)]>,
    /// The port that the client meant, of the service.
    pub port: Option<u16>,
    /// Whether it holds a condition that Envoy refuses and that is left out here: what fits the rest gets a 500.
    pub refused: bool,
    /// What few ask for.
    pub more: RareGroup<RareConditions>,
}

/// What few conditions ask for.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct RareConditions {
    /// Its name; empty where it has none.
    pub name: Arc<str>,
    /// Headers that don't fit, in lower case, sorted.
    pub without_headers: Box<[(Arc<str>, TextMatch)]>,
    /// Claims of one token that was verified, sorted. They are known at gateways alone.
    pub claims: Box<[(ClaimPath, TextMatch)]>,
    /// Claims that don't fit, of no token, sorted.
    pub without_claims: Box<[(ClaimPath, TextMatch)]>,
    /// The method.
    pub method: Option<TextMatch>,
    /// The host that the client names.
    pub authority: Option<TextMatch>,
    /// The scheme.
    pub scheme: Option<TextMatch>,
    /// Parameters of the query, sorted.
    pub query: Box<[(Arc<str>, TextMatch)]>,
    /// What of the sender.
    pub source: SourceMatch,
    /// Under which name figures are kept; empty for none.
    pub stat_prefix: Arc<str>,
}

/// The way to a claim in a token, from the outermost: `realm_access`, `roles`. Never empty, and neither are its parts.
pub type ClaimPath = Box<[Arc<str>]>;

/// What of a sender has to fit; all of it is known when a proxy's routes are made.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct SourceMatch {
    /// Through which gateways, `NAMESPACE/NAME` or [`MESH`]; none for all that the object names.
    pub gateways: Box<[Arc<str>]>,
    /// Labels of the proxy's pod.
    pub labels: Option<RuleSelector>,
    /// The proxy's namespace.
    pub namespace: Option<Namespace>,
}

/// A condition on a path.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum PathMatch {
    /// The whole.
    Exact(Arc<str>),
    /// How it begins, as text.
    Prefix(Arc<str>),
    /// How it begins, by whole segments: `/a` takes `/a` and `/a/b`, not `/ab`. Neither `/` nor ends with one.
    Segments(Arc<str>),
    /// An RE2 expression of the whole.
    Regex(Arc<str>),
}

/// A condition on a text.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum TextMatch {
    /// The whole.
    Exact(Arc<str>),
    /// How it begins; not empty.
    Prefix(Arc<str>),
    /// An RE2 expression of the whole.
    Regex(Arc<str>),
    /// That it is there.
    Present,
}

/// A place where requests or connections go.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Destination {
    /// Its place in the list that names it, from 0.
    pub index: u32,
    /// The service, in full.
    pub host: Hostname,
    /// The port; `None` for that of [`RareAtDestination::port_name`], else the only one that the service has, else the
    /// listener's.
    pub port: Option<u16>,
    /// The subset; empty for none.
    pub subset: Arc<str>,
    /// Its share of the sum.
    pub weight: u32,
    /// Whether it can't be used, such as one in a foreign namespace that grants nothing: its share gets a 500.
    pub invalid: bool,
    /// What few have.
    pub more: RareGroup<RareAtDestination>,
}

/// What few destinations have.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct RareAtDestination {
    /// The name of the port, where it is known by that; else empty.
    pub port_name: Arc<str>,
    /// Headers of requests that go here.
    pub headers: Option<Box<HeaderChanges>>,
}

/// A redirect.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct RedirectRule {
    /// The new path.
    pub path: RedirectPath,
    /// The new host.
    pub authority: Option<Arc<str>>,
    /// The new scheme.
    pub scheme: Option<Arc<str>>,
    /// The new port.
    pub port: RedirectPort,
    /// The status: 301, 302, 303, 307 or 308.
    pub status: u16,
}

/// What becomes of the path in a redirect.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub enum RedirectPath {
    /// It stays.
    #[default]
    Kept,
    /// It is another.
    Whole(Arc<str>),
    /// The matched prefix is replaced, as text.
    Prefix(Arc<str>),
    /// The matched segments are replaced: see [`PathRewrite::Segments`].
    Segments(Arc<str>),
}

/// Which port a redirect names.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum RedirectPort {
    /// The one of the request, or the scheme's where the host is another.
    #[default]
    Unset,
    /// This.
    Number(u16),
    /// That on which the request came in.
    OfRequest,
    /// That of the scheme.
    OfScheme,
}

/// An answer that the proxy gives.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct FixedResponse {
    /// From 200 to 599.
    pub status: u16,
    /// What it says, if anything.
    pub body: Option<Arc<[u8]>>,
}

/// What of a request is another at its destination.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Rewrite {
    /// The path.
    pub path: Option<PathRewrite>,
    /// The host.
    pub authority: Option<Arc<str>>,
}

/// How a path is rewritten.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum PathRewrite {
    /// What matched of it becomes this: the prefix, or the whole of another match.
    Matched(Arc<str>),
    /// The matched segments become these, and one slash separates them from the rest of the path.
    /// (Gateway API, `HTTPPathModifier`, the table of `replacePrefixMatch`.)
    Segments(Arc<str>),
    /// The whole becomes this, whatever matched.
    Whole(Arc<str>),
    /// What an RE2 expression takes becomes another text, in which `\1` is its first group.
    Regex(Arc<str>, Arc<str>),
}

/// Failures on purpose. Percentages are per million.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct InjectedFault {
    /// How long requests wait, and how many of them.
    pub delay: Option<(Duration, u32)>,
    /// What requests are answered, and how many of them.
    pub abort: Option<(AbortStatus, u32)>,
}

/// With what a request is aborted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AbortStatus {
    /// An HTTP status from 200 to 599.
    Http(u16),
    /// A gRPC status from 0 to 16.
    Grpc(u8),
}

/// Where copies of requests go.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Mirror {
    /// The place; its weight says nothing.
    pub destination: Destination,
    /// How many, per million; above zero.
    pub per_million: u32,
}

/// Which other origins may ask (CORS).
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct CrossOrigin {
    /// The origins.
    pub origins: Box<[TextMatch]>,
    /// Methods, headers and what may be read, each as a list with commas; empty where not said.
    pub methods: Arc<str>,
    /// See [`Self::methods`].
    pub headers: Arc<str>,
    /// See [`Self::methods`].
    pub expose: Arc<str>,
    /// How long the answer may be kept.
    pub max_age: Option<Duration>,
    /// Whether credentials may be sent.
    pub credentials: Option<bool>,
    /// Whether preflights of other origins are answered here instead of by the destination.
    pub answers_all_preflights: bool,
}

/// Headers that are changed, of requests and of responses.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct HeaderChanges {
    /// Of requests.
    pub request: HeaderEdits,
    /// Of responses.
    pub response: HeaderEdits,
    /// The host that requests name from here on.
    pub host: Option<Arc<str>>,
}

/// Headers that are changed one way. Names are in lower case.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct HeaderEdits {
    /// Those that are set, by name.
    pub set: Box<[(Arc<str>, Arc<str>)]>,
    /// Those that are added to what is there, by name.
    pub add: Box<[(Arc<str>, Arc<str>)]>,
    /// Those that are taken away.
    pub remove: Box<[Arc<str>]>,
}

/// Where connections go that aren't looked into.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TcpRule {
    /// Where it is written.
    pub place: RulePlace,
    /// Any of these has to fit; none stands for every connection.
    pub matches: Box<[ConnectionMatch]>,
    /// Where they go, by weight; none where nothing is left: they are closed.
    pub destinations: Box<[Destination]>,
}

/// Conditions of a connection.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ConnectionMatch {
    /// The names that clients give when they begin TLS, in lower case; none for all, be it TLS or not.
    pub server_names: Box<[Arc<str>]>,
    /// The addresses that clients mean.
    pub to: Box<[IpNet]>,
    /// The port that they mean, of the service.
    pub port: Option<u16>,
    /// What of the sender.
    pub source: SourceMatch,
}

impl HttpRoutes {
    /// The matches that count for a proxy of this namespace that serves as `gateway`, which these selectors select, where
    /// clients mean `port`: each with its rule and the place of that among these rules, up to the first that takes every
    /// request.
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
            for one in matches {
                let is_for = one.port.is_none_or(|wanted| wanted == port)
                    && one.source.fits(gateway, namespace, selection);
                if is_for {
                    chosen.push((at, rule, one));
                    if one.is_catch_all() {
                        return chosen;
                    }
                }
            }
        }
        chosen
    }
}

impl HttpRule {
    /// Where it leads requests, and where copies go.
    pub fn leads_to(&self) -> impl Iterator<Item = &Destination> + Clone {
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

unsaid!(RuleTerms: RareTerms, RequestMatch: RareConditions, Destination: RareAtDestination);

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
    /// The service, whatever its port.
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

    /// Nowhere.
    pub fn invalid() -> Self {
        Self { invalid: true, ..Self::to(Hostname::default()) }
    }
}

impl TextMatch {
    /// Returns whether a text fits; `None` for an expression that can't be tried here.
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

    /// Returns whether every text fits.
    pub fn takes_all(&self) -> bool {
        matches!(self, Self::Regex(text) if &**text == ".*")
    }

    /// Returns whether the empty text fits.
    pub fn takes_empty(&self) -> bool {
        *self != Self::Present && self.fits("") == Some(true)
    }
}

impl RequestMatch {
    /// Whether every request fits that reaches it: the matches behind it are never asked.
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

    /// Whether it depends on a token.
    pub fn looks_at_claims(&self) -> bool {
        !(self.claims.is_empty() && self.without_claims.is_empty())
    }
}

impl SourceMatch {
    /// Whether it fits a proxy of this namespace that serves as `gateway`, which these selectors select.
    pub fn fits(&self, gateway: &str, namespace: &Namespace, selection: &Selection) -> bool {
        let through = self.gateways.is_empty() || self.gateways.iter().any(|one| **one == *gateway);
        through
            && self.namespace.as_ref().is_none_or(|wanted| wanted == namespace)
            && self.labels.as_ref().is_none_or(|labels| selection.contains(labels))
    }

    /// What of it doesn't fit where it [doesn't](Self::fits), in words.
    pub fn misfit(&self, namespace: &Namespace, selection: &Selection) -> String {
        match (&self.namespace, &self.labels) {
            (Some(wanted), _) if wanted != namespace => {
                format!("it is for clients of namespace {wanted}")
            }
            (_, Some(labels)) if !selection.contains(labels) => {
                let labels = labels.iter().map(|(key, value)| format!("{key}={value}"));
                format!("it is for clients with {}", labels.collect::<Vec<_>>().join(", "))
            }
            _ => format!("it is for gateways {}", self.gateways.join(", ")),
        }
    }
}

impl ConnectionMatch {
    /// Whether connections of a proxy of this namespace to that port of a service fit, at an address or at any.
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

    /// Whether connections to `address` may fit.
    pub fn may_be_to(&self, address: IpAddr) -> bool {
        self.to.is_empty() || self.to.iter().any(|range| range.contains(&address))
    }
}

impl HeaderChanges {
    /// As a destination keeps them; `None` where nothing is changed.
    pub(super) fn boxed(self) -> Option<Box<Self>> {
        (!self.is_empty()).then(|| Box::new(self))
    }

    /// Whether nothing is changed.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// A place in a list of an object; none is that long.
pub(super) fn place(at: usize) -> u32 {
    u32::try_from(at).unwrap_or(u32::MAX)
}
