//! What a rule matches, in the one form from which proxies are configured and `explain` answers.
//!
//! Names of trust domains are written out, and texts are patterns. Where it is in doubt whether something matches, it
//! does where matching denies, and does not where matching allows.

use ipnet::IpNet;

use super::authorization::{
    AuthorizationAction, AuthorizationPolicy, AuthorizationRule, ClaimTest, Clause, RequestTest,
};
use super::text::{TextForm, TextPart, TextPattern};
use super::trust::TrustBundle;

/// What rules are enforced on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WireForm {
    /// Requests of HTTP.
    Http,
    /// Connections of which nothing is known but that they are there.
    Tcp,
    /// Requests to a server that is gRPC's own library, which looks at fewer things than Envoy (gRFC A41).
    Grpc,
}

/// Headers that a library's server never sees: it takes them for itself, or they are of one connection only.
const UNSEEN_HEADERS: [&str; 9] = [
    ":scheme",
    "connection",
    "content-length",
    "http2-settings",
    "keep-alive",
    "proxy-connection",
    "te",
    "transfer-encoding",
    "upgrade",
];

impl WireForm {
    /// Whether nothing of what a test looks at is ever seen in this form.
    pub fn lacks(self, test: &RequestTest) -> bool {
        match (self, test) {
            (Self::Http, _) => false,
            (Self::Tcp, test) => test.is_http(),
            // A resource that looks at headers of gRPC's own is refused, and binary ones match never.
            (Self::Grpc, RequestTest::Header(header)) => {
                let [name, _] = &**header;
                name.starts_with("grpc-")
                    || name.ends_with("-bin")
                    || UNSEEN_HEADERS.contains(&&**name)
            }
            // Tokens are not verified there; of matchers that it doesn't know it takes no notice, whatever that lets in.
            (
                Self::Grpc,
                RequestTest::RequestPrincipal(_)
                | RequestTest::Claim(_)
                | RequestTest::PathTemplate(_)
                | RequestTest::ServerName(_)
                | RequestTest::Noted(_),
            ) => true,
            (Self::Grpc, _) => false,
        }
    }
}

/// The filter that leaves the claims of a token.
pub const TOKEN_FILTER: &str = "envoy.filters.http.jwt_authn";
/// Under which key.
const TOKEN_KEY: &str = "payload";

/// The key under which the claims of a verified token stand: of the rule at that place among so many. Each rule has one
/// of its own, so that no token passes for another's.
pub fn token_key(place: usize, rules: usize) -> String {
    if rules > 1 { format!("{TOKEN_KEY}-{place}") } else { TOKEN_KEY.to_owned() }
}

/// What names in rules stand for, for one workload.
pub(super) struct MatchScope<'a> {
    trust: &'a TrustBundle,
    /// The keys under which claims may stand.
    token_keys: Vec<String>,
}

impl<'a> MatchScope<'a> {
    pub(super) fn new(trust: &'a TrustBundle, rules: usize) -> Self {
        let keys = (0..rules.max(1)).map(|place| token_key(place, rules));
        Self { trust, token_keys: keys.collect() }
    }

    /// A claim of any token, looked at in each.
    fn any_token(&self, atoms: impl Fn(&str) -> Vec<Atom>) -> Vec<Vec<Atom>> {
        self.token_keys.iter().map(|key| atoms(key)).collect()
    }
}

/// What the rules of a policy match where so many rules say which tokens are believed: that and the trust domains are all
/// that it depends on besides.
pub fn rule_matchers(
    policy: &AuthorizationPolicy,
    form: WireForm,
    trust: &TrustBundle,
    token_rules: usize,
) -> Vec<RuleMatcher> {
    RuleMatcher::of_policy(policy, form, &MatchScope::new(trust, token_rules))
}

/// How SPIFFE IDs begin.
const SPIFFE: &str = "spiffe://";

/// A rule of a policy, ready to be enforced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuleMatcher {
    /// Names it in figures and logs: `ns[NS]-policy[NAME]-rule[I]`.
    pub key: String,
    /// Any of these lists, each all of its clauses; about who calls. None for everybody.
    pub sources: Vec<Vec<MatchedClause>>,
    /// The same, about what is called.
    pub operations: Vec<Vec<MatchedClause>>,
    /// Whether it matches never.
    pub never: bool,
}

/// A field of a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MatchedClause {
    /// Where it stands in the object.
    pub path: String,
    /// Whether none of `any` may hold.
    pub negated: bool,
    /// Each of these lists all of its atoms.
    pub any: Vec<Vec<Atom>>,
}

/// One thing to look at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Atom {
    /// The client's SPIFFE ID, which mTLS shows.
    Identity(TextPattern),
    /// The address of the peer of the connection.
    PeerAddress(IpNet),
    /// The address of the client, as proxies on the way say.
    ClientAddress(IpNet),
    /// A header, `:authority` and `:method` among them.
    Header(String, TextPattern),
    /// A header of which no value is like this, nor all of them in one; or none at all.
    HeaderNowhere(String, TextPattern),
    /// Whether a header is there.
    HeaderPresent(String),
    /// The path without query and fragment.
    Path(TextPattern),
    /// The same, by Envoy's template.
    PathTemplate(String),
    /// The port of the workload.
    Port(u16),
    /// Its address.
    DestinationAddress(IpNet),
    /// The server name that a TLS client asks for.
    ServerName(TextPattern),
    /// What a filter has noted: filter, path, and the text there, or that of an element of a list.
    Metadata(String, Vec<String>, TextPattern),
}

/// Which way what is in doubt is decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Leaning {
    /// It matches: matching denies.
    Wide,
    /// It does not: matching allows.
    Narrow,
}

impl RuleMatcher {
    /// What the rules of a policy match; at least one of a policy that allows, which matches never where no other does.
    pub(super) fn of_policy(
        policy: &AuthorizationPolicy,
        form: WireForm,
        scope: &MatchScope<'_>,
    ) -> Vec<Self> {
        let rules = policy.rules.iter().filter_map(|rule| Self::of(policy, rule, form, scope));
        let mut rules: Vec<_> = rules.collect();
        if rules.is_empty() && policy.action == AuthorizationAction::Allow {
            rules.push(Self::never(policy));
        }
        rules
    }

    /// What a rule matches; `None` where it matches nothing in this form.
    ///
    /// A connection without HTTP has none of the things that fields of HTTP look at: a rule that allows by them allows
    /// no connection, and one that denies by them denies without looking. (Istio's rules for TCP.) The same goes for what
    /// gRPC's own library doesn't look at.
    fn of(
        policy: &AuthorizationPolicy,
        rule: &AuthorizationRule,
        form: WireForm,
        scope: &MatchScope<'_>,
    ) -> Option<Self> {
        let allows = policy.action == AuthorizationAction::Allow;
        let lost = |clause: &Clause| clause.any.iter().any(|test| form.lacks(test));
        if allows && rule.clauses().any(lost) {
            return None;
        }
        let matched =
            |clause: &Clause| (!lost(clause)).then(|| MatchedClause::of(clause, allows, scope));
        let (of_source, of_target): (Vec<_>, Vec<_>) =
            rule.when.iter().partition(|clause| clause.any.iter().all(RequestTest::is_of_source));
        let spread = |alternatives: &[Box<[Clause]>], conditions: &[&Clause]| {
            let conditions: Vec<_> =
                conditions.iter().filter_map(|clause| matched(clause)).collect();
            if alternatives.is_empty() {
                return vec![conditions];
            }
            let with = |clauses: &[Clause]| {
                clauses.iter().filter_map(matched).chain(conditions.iter().cloned()).collect()
            };
            alternatives.iter().map(|clauses| with(clauses)).collect()
        };
        Some(Self {
            key: key(policy, rule.index),
            sources: spread(&rule.from, &of_source),
            operations: spread(&rule.to, &of_target),
            never: false,
        })
    }

    /// What matches nothing, as a policy without rules.
    fn never(policy: &AuthorizationPolicy) -> Self {
        Self { key: key(policy, 0), sources: Vec::new(), operations: Vec::new(), never: true }
    }

    /// Whether it looks at paths.
    pub fn looks_at_paths(&self) -> bool {
        let clauses = self.operations.iter().chain(&self.sources).flatten();
        let mut atoms = clauses.flat_map(|clause| clause.any.iter().flatten());
        atoms.any(|atom| matches!(atom, Atom::Path(_) | Atom::PathTemplate(_)))
    }
}

fn key(policy: &AuthorizationPolicy, rule: u32) -> String {
    format!("ns[{}]-policy[{}]-rule[{rule}]", policy.name.namespace, policy.name.name)
}

impl MatchedClause {
    fn of(clause: &Clause, allows: bool, scope: &MatchScope<'_>) -> Self {
        let leaning = if allows == clause.negated { Leaning::Wide } else { Leaning::Narrow };
        let any = clause.any.iter().flat_map(|test| atoms(test, leaning, scope)).collect();
        Self { path: clause.place.to_string(), negated: clause.negated, any }
    }
}

/// Any of these lists of atoms, each in full.
fn atoms(test: &RequestTest, leaning: Leaning, scope: &MatchScope<'_>) -> Vec<Vec<Atom>> {
    let trust = scope.trust;
    use RequestTest as Test;
    let form = |text: &str| TextForm::read(text).pattern();
    let one = |atom| vec![vec![atom]];
    match test {
        Test::Principal(name) => {
            let names = trust.principals(name, leaning == Leaning::Wide);
            names.iter().map(|name| vec![Atom::Identity(identity(name))]).collect()
        }
        Test::Namespace(name) => of_trusted(leaning, trust, &[in_namespace(name)]),
        Test::ServiceAccount(account) => {
            let [namespace, name] = &**account;
            of_trusted(leaning, trust, &of_account(leaning, namespace, name))
        }
        Test::TrustDomain(domain) => {
            let same = match TextForm::read(domain) {
                TextForm::Exact(domain) => trust.same_as(domain),
                _ => vec![domain.to_string()],
            };
            same.iter().map(|domain| vec![Atom::Identity(in_trust_domain(domain))]).collect()
        }
        Test::PeerAddress(range) => one(Atom::PeerAddress(*range)),
        Test::ClientAddress(range) => one(Atom::ClientAddress(*range)),
        Test::RequestPrincipal(name) => request_principal(name, leaning, scope),
        Test::Claim(tested) => {
            let ClaimTest { path, value } = &**tested;
            scope.any_token(|key| vec![claim(key, path, form(value))])
        }
        Test::Header(tested) => {
            let [name, value] = &**tested;
            header(name, value, leaning)
        }
        Test::Host(host) => vec![vec![Atom::Header(":authority".into(), host_pattern(host))]],
        Test::Method(method) => one(Atom::Header(":method".into(), form(method))),
        Test::Path(path) => one(Atom::Path(form(path))),
        Test::PathTemplate(template) => one(Atom::PathTemplate(template.to_string())),
        Test::Port(port) => one(Atom::Port(*port)),
        Test::DestinationAddress(range) => one(Atom::DestinationAddress(*range)),
        Test::ServerName(name) => one(Atom::ServerName(form(name))),
        Test::Noted(noted) => {
            let [filter, key, value] = &**noted;
            // `[v]` is one of a list; a list and a text are both looked at.
            let listed = value.strip_prefix('[').and_then(|value| value.strip_suffix(']'));
            let pattern = form(listed.unwrap_or(value));
            one(Atom::Metadata(filter.to_string(), vec![key.to_string()], pattern))
        }
    }
}

fn identity(name: &str) -> TextPattern {
    let spiffe = |rest: &str| TextPart::text(format!("{SPIFFE}{rest}"));
    TextPattern::new(match TextForm::read(name) {
        TextForm::Present => vec![TextPart::Some],
        TextForm::Exact(name) => vec![spiffe(name)],
        TextForm::Prefix(prefix) => vec![spiffe(prefix), TextPart::Any],
        TextForm::Suffix(suffix) => vec![spiffe(""), TextPart::Any, TextPart::text(suffix)],
    })
}

/// Namespaces and accounts are those of the mesh, whose trust domains are its own. Of another trust domain one of the
/// same name is denied alike, and never let in. (docs/decisions/0039-access.md)
fn of_trusted(leaning: Leaning, trust: &TrustBundle, rests: &[Vec<TextPart>]) -> Vec<Vec<Atom>> {
    let mut all = Vec::new();
    for rest in rests {
        match leaning {
            Leaning::Wide => {
                let start = [TextPart::text(SPIFFE), TextPart::Any];
                all.push(start.into_iter().chain(rest.iter().cloned()).collect());
            }
            Leaning::Narrow => all.extend(trust.domains().map(|domain| {
                let start = TextPart::text(format!("{SPIFFE}{domain}"));
                std::iter::once(start).chain(rest.iter().cloned()).collect::<Vec<_>>()
            })),
        }
    }
    all.into_iter().map(|parts| vec![Atom::Identity(TextPattern::new(joined(parts)))]).collect()
}

/// What follows the trust domain of every account of a namespace.
fn in_namespace(name: &str) -> Vec<TextPart> {
    let mut parts = vec![TextPart::text("/ns/")];
    for (at, text) in name.split('*').enumerate() {
        if at != 0 {
            parts.push(TextPart::Segment);
        }
        parts.push(TextPart::text(text));
    }
    parts.extend([TextPart::text("/"), TextPart::Any]);
    parts
}

/// What follows the trust domain of an account. Others issue longer names, of which those that deny take account.
fn of_account(leaning: Leaning, namespace: &str, name: &str) -> Vec<Vec<TextPart>> {
    let exact = vec![TextPart::text(format!("/ns/{namespace}/sa/{name}"))];
    let (space, account) =
        (TextPart::text(format!("/ns/{namespace}/")), TextPart::text(format!("/sa/{name}")));
    match leaning {
        Leaning::Narrow => vec![exact],
        Leaning::Wide => {
            let below = vec![TextPart::text(format!("/ns/{namespace}/sa/{name}/")), TextPart::Any];
            let between = vec![space, TextPart::Any, account];
            vec![exact, below, between]
        }
    }
}

fn in_trust_domain(domain: &str) -> TextPattern {
    let (spiffe, slash) = (TextPart::text(SPIFFE), TextPart::text("/"));
    let mut parts = vec![spiffe];
    match TextForm::read(domain) {
        TextForm::Present => parts.push(TextPart::Segment),
        TextForm::Exact(domain) => parts.push(TextPart::text(domain)),
        TextForm::Prefix(prefix) => parts.extend([TextPart::text(prefix), TextPart::Segment]),
        TextForm::Suffix(suffix) => parts.extend([TextPart::Segment, TextPart::text(suffix)]),
    }
    parts.extend([slash, TextPart::Any]);
    TextPattern::new(joined(parts))
}

/// With texts that follow each other in one, and none that is empty.
fn joined(parts: Vec<TextPart>) -> Vec<TextPart> {
    let mut joined: Vec<TextPart> = Vec::with_capacity(parts.len());
    for part in parts {
        match (joined.last_mut(), part) {
            (_, TextPart::Text(text)) if text.is_empty() => {}
            (Some(TextPart::Text(before)), TextPart::Text(text)) => before.push_str(&text),
            (_, part) => joined.push(part),
        }
    }
    joined
}

fn claim(key: &str, names: &[Box<str>], pattern: TextPattern) -> Atom {
    let path = std::iter::once(key.to_owned());
    let path = path.chain(names.iter().map(|name| name.to_string())).collect();
    Atom::Metadata(TOKEN_FILTER.into(), path, pattern)
}

/// `ISSUER/SUBJECT`, divided at the last slash, each of the halves in any form.
fn request_principal(name: &str, leaning: Leaning, scope: &MatchScope<'_>) -> Vec<Vec<Atom>> {
    // Both of one token.
    let both = |issuer: TextPattern, subject: TextPattern| {
        scope.any_token(|key| {
            let of =
                |name: &str, pattern: &TextPattern| claim(key, &[name.into()], pattern.clone());
            vec![of("iss", &issuer), of("sub", &subject)]
        })
    };
    let some = || TextForm::Present.pattern();
    let form = |text: &str| TextForm::read(text).pattern();
    let divided = name.rsplit_once('/');
    let mut all = Vec::new();
    if let Some((issuer, subject)) = divided {
        all.extend(both(form(issuer), form(subject)));
    }
    // The beginning of an issuer may hold slashes, too, and so may the end of a subject.
    if divided.is_none() || leaning == Leaning::Wide {
        match TextForm::read(name) {
            TextForm::Present => all.extend(both(some(), some())),
            TextForm::Prefix(_) => all.extend(both(form(name), some())),
            TextForm::Suffix(_) => all.extend(both(some(), form(name))),
            // Without a subject it is nobody's.
            TextForm::Exact(_) => {}
        }
    }
    all
}

/// A host in any case, with a dot at its end or without, and at any port unless it names one.
fn host_pattern(host: &str) -> TextPattern {
    let parts = match TextForm::read(host) {
        TextForm::Present => vec![TextPart::Some],
        TextForm::Prefix(prefix) => vec![TextPart::text(prefix), TextPart::Any],
        TextForm::Exact(host) => host_end(Vec::new(), host),
        TextForm::Suffix(suffix) => host_end(vec![TextPart::Any], suffix),
    };
    TextPattern { parts, ignore_case: true }
}

fn host_end(mut parts: Vec<TextPart>, host: &str) -> Vec<TextPart> {
    let named = host
        .rsplit_once(':')
        .filter(|(_, port)| !port.is_empty() && port.chars().all(|digit| digit.is_ascii_digit()));
    match named {
        // As it is: what it says of the port is meant.
        Some(_) => parts.push(TextPart::text(host)),
        None => {
            parts.push(TextPart::text(host.strip_suffix('.').unwrap_or(host)));
            parts.push(TextPart::HostEnd);
        }
    }
    parts
}

/// A header. Proxies join one that is repeated by commas before they look, or look at each (since CVE-2026-26308): what
/// denies counts a value wherever it stands, and what allows asks that none is there which it does not fit.
fn header(name: &str, value: &str, leaning: Leaning) -> Vec<Vec<Atom>> {
    let form = TextForm::read(value);
    let name = || name.to_owned();
    if form == TextForm::Present {
        return vec![vec![Atom::HeaderPresent(name())]];
    }
    let pattern = form.pattern();
    if leaning == Leaning::Narrow {
        let others = form.others().into_iter();
        let nowhere = others.map(|other| Atom::HeaderNowhere(name(), other));
        return vec![std::iter::once(Atom::Header(name(), pattern)).chain(nowhere).collect()];
    }
    let before = std::iter::once(TextPart::ListBefore);
    let parts = before.chain(pattern.parts).chain([TextPart::ListAfter]).collect();
    vec![vec![Atom::Header(name(), TextPattern { parts, ignore_case: false })]]
}
