//! Matchers of rules. RBAC filters are generated from them, and `explain` evaluates them.
//!
//! Trust domains are expanded, and strings become patterns. If it is uncertain whether a rule
//! matches, a rule that denies matches and a rule that allows does not.

use std::borrow::Cow;

use ipnet::IpNet;

use super::authorization::{
    AuthorizationAction, AuthorizationPolicy, AuthorizationRule, Clause, ClausePlace,
};
use super::request_test::{ClaimTest, RequestTest};
use super::text::{TextForm, TextPart, TextPattern};
use super::trust::TrustBundle;

/// Kind of traffic that rules are enforced on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WireForm {
    /// HTTP requests.
    Http,
    /// TCP connections, without any property of a request.
    Tcp,
    /// Requests to a gRPC library with xDS support, which supports fewer matchers than Envoy (gRFC
    /// A41).
    Grpc,
}

/// Headers that rules in a gRPC library never see, because the library consumes them or they are
/// hop-by-hop.
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
    /// Returns whether the property that a test compares is never visible in this form.
    pub fn lacks(self, test: &RequestTest) -> bool {
        match (self, test) {
            (Self::Http, _) => false,
            (Self::Tcp, test) => test.is_http(),
            // gRPC libraries reject resources that match headers with the prefix `grpc-`, and never
            // match binary headers.
            (Self::Grpc, RequestTest::Header(header)) => {
                let [name, _] = &**header;
                name.starts_with("grpc-")
                    || name.ends_with("-bin")
                    || UNSEEN_HEADERS.contains(&&**name)
            }
            // gRPC libraries verify no tokens. They ignore unknown matchers, even if this allows
            // more requests.
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

/// Name of the filter whose metadata contains the claims of a token.
pub const TOKEN_FILTER: &str = "envoy.filters.http.jwt_authn";
/// Metadata key of the claims.
const TOKEN_KEY: &str = "payload";

/// Returns the metadata key for the claims of a token that the rule at index `place` of `rules`
/// verified. Each rule has a separate key, so that tokens of different issuers cannot be confused.
pub fn token_key(place: usize, rules: usize) -> String {
    if rules > 1 { format!("{TOKEN_KEY}-{place}") } else { TOKEN_KEY.to_owned() }
}

/// Context for resolving names in the rules of one workload: the trust domains of the mesh, and the
/// number of rules for tokens.
#[derive(Debug)]
pub struct MatchScope<'a> {
    trust: &'a TrustBundle,
    /// Metadata keys that may contain claims.
    token_keys: Vec<String>,
}

impl<'a> MatchScope<'a> {
    /// Creates the context of a workload with `token_rules` rules for tokens.
    pub fn new(trust: &'a TrustBundle, token_rules: usize) -> Self {
        let keys = (0..token_rules.max(1)).map(|place| token_key(place, token_rules));
        Self { trust, token_keys: keys.collect() }
    }
}

/// Prefix of SPIFFE IDs.
const SPIFFE: &str = "spiffe://";

/// A rule of a policy in one wire form. Its matchers are computed on request and never stored,
/// because each of hundreds of rules is encoded only once.
#[derive(Debug, Clone, Copy)]
pub struct RuleInForm<'a> {
    policy: &'a AuthorizationPolicy,
    /// `None` for a rule that matches nothing, for example for a policy without rules.
    rule: Option<&'a AuthorizationRule>,
    form: WireForm,
    scope: &'a MatchScope<'a>,
}

/// One source or operation of a rule, with the conditions of the same group.
#[derive(Debug, Clone, Copy)]
pub struct AlternativeInForm<'a> {
    rule: RuleInForm<'a>,
    named: &'a [Clause],
    when: &'a [Clause],
    is_source: bool,
}

/// A field of an alternative.
#[derive(Debug, Clone, Copy)]
pub struct ClauseInForm<'a> {
    clause: &'a Clause,
    leaning: Leaning,
    scope: &'a MatchScope<'a>,
}

/// A rule that is ready to evaluate requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuleMatcher {
    /// Name of the rule in metrics and logs: `ns[NS]-policy[NAME]-rule[I]`.
    pub key: String,
    /// Alternatives for the caller. In each alternative, all clauses must hold. Empty matches any
    /// caller.
    pub sources: Vec<Vec<MatchedClause>>,
    /// Alternatives for the operation. In each alternative, all clauses must hold. Empty matches
    /// any operation.
    pub operations: Vec<Vec<MatchedClause>>,
    /// Whether the rule never matches.
    pub never: bool,
}

/// A field of a rule that is ready to evaluate requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MatchedClause {
    /// Location of the field in the object.
    pub place: ClausePlace,
    /// Whether none of `any` may hold.
    pub negated: bool,
    /// Alternatives. Each is a list of atoms that all must hold.
    pub any: Vec<Vec<Atom<'static>>>,
}

/// A test of one property of a request or connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Atom<'a> {
    /// SPIFFE ID of the client, from its mTLS certificate.
    Identity(TextPattern<'a>),
    /// Address of the peer of the connection.
    PeerAddress(IpNet),
    /// Address of the original client, as reported by intermediate proxies.
    ClientAddress(IpNet),
    /// Value of a header, including `:authority` and `:method`.
    Header(Cow<'a, str>, TextPattern<'a>),
    /// Header without any value that matches the pattern, neither separately nor joined by commas.
    /// Holds if the header is absent.
    HeaderNowhere(Cow<'a, str>, TextPattern<'a>),
    /// Presence of a header.
    HeaderPresent(Cow<'a, str>),
    /// Path without query and fragment.
    Path(TextPattern<'a>),
    /// Path without query and fragment, compared with an Envoy path template.
    PathTemplate(Cow<'a, str>),
    /// Port of the workload.
    Port(u16),
    /// Address of the workload.
    DestinationAddress(IpNet),
    /// Server name (SNI) that the TLS client requests.
    ServerName(TextPattern<'a>),
    /// Dynamic metadata: filter, path, and a pattern for the string at the path, or for any element
    /// of a list there.
    Metadata(Cow<'a, str>, Vec<String>, TextPattern<'a>),
}

/// Decision if it is uncertain whether something matches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Leaning {
    /// It matches, because matching denies.
    Wide,
    /// It does not match, because matching allows.
    Narrow,
}

impl<'a> RuleInForm<'a> {
    /// Returns the rules of a policy. A policy that allows has at least one, which never matches if
    /// there is no other.
    pub fn enforceable_rules(
        policy: &'a AuthorizationPolicy,
        form: WireForm,
        scope: &'a MatchScope<'a>,
    ) -> impl Iterator<Item = Self> {
        let in_form = move |rule| Self { policy, rule, form, scope };
        let rules = policy.rules.iter().map(move |rule| in_form(Some(rule)));
        let mut rules = rules.filter(Self::is_enforceable).peekable();
        let is_empty = rules.peek().is_none() && policy.action == AuthorizationAction::Allow;
        rules.chain(is_empty.then(|| in_form(None)))
    }

    /// Returns whether the rule can be enforced in this form.
    ///
    /// A TCP connection has none of the properties that HTTP fields compare. A rule that allows by
    /// an HTTP field is dropped, and a rule that denies by such a field denies without comparing it
    /// (Istio's rules for TCP). Properties that gRPC libraries do not support are handled the same
    /// way.
    fn is_enforceable(&self) -> bool {
        let mut clauses = self.rule.into_iter().flat_map(AuthorizationRule::clauses);
        let may_lose = self.form != WireForm::Http && self.allows();
        !(may_lose && clauses.any(|clause| self.loses(clause)))
    }

    fn allows(&self) -> bool {
        self.policy.action == AuthorizationAction::Allow
    }

    fn loses(&self, clause: &Clause) -> bool {
        self.form != WireForm::Http && clause.any.iter().any(|test| self.form.lacks(test))
    }

    /// Returns the common prefix of the keys of a policy's rules.
    pub fn key_start(policy: &AuthorizationPolicy) -> String {
        let name = &policy.name;
        ["ns[", name.namespace.as_str(), "]-policy[", &name.name, "]-rule["].concat()
    }

    /// Writes the key for metrics and logs, `ns[NS]-policy[NAME]-rule[I]`, which begins with
    /// `start`.
    pub fn write_key(&self, start: &str, out: &mut String) {
        out.push_str(start);
        push_number(self.rule.map_or(0, |rule| rule.index), out);
        out.push(']');
    }

    /// Returns whether the rule never matches.
    pub fn is_never(&self) -> bool {
        self.rule.is_none()
    }

    /// Calls `emit` with each alternative for the caller. Makes no call if the rule never matches.
    pub fn each_source(&self, emit: impl FnMut(AlternativeInForm<'a>)) {
        self.each_alternative(true, emit);
    }

    /// Calls `emit` with each alternative for the operation. Makes no call if the rule never
    /// matches.
    pub fn each_operation(&self, emit: impl FnMut(AlternativeInForm<'a>)) {
        self.each_alternative(false, emit);
    }

    fn each_alternative(&self, is_source: bool, mut emit: impl FnMut(AlternativeInForm<'a>)) {
        let Some(rule) = self.rule else { return };
        let named = if is_source { &rule.from } else { &rule.to };
        let mut emit =
            |named| emit(AlternativeInForm { rule: *self, named, when: &rule.when, is_source });
        // Conditions apply to every alternative. Without alternatives, they apply alone.
        if named.is_empty() {
            emit(&[]);
        }
        named.iter().for_each(|clauses| emit(clauses));
    }

    fn clause(self, clause: &'a Clause) -> ClauseInForm<'a> {
        let is_wide = self.allows() == clause.negated;
        let leaning = if is_wide { Leaning::Wide } else { Leaning::Narrow };
        ClauseInForm { clause, leaning, scope: self.scope }
    }

    /// Returns whether the rule matches on paths.
    pub fn looks_at_paths(&self) -> bool {
        let is_path = |test: &RequestTest| {
            matches!(test, RequestTest::Path(_) | RequestTest::PathTemplate(_))
        };
        let mut looks = false;
        self.each_operation(|alternative| {
            alternative
                .each_clause(|clause| looks = looks || clause.clause.any.iter().any(is_path));
        });
        looks
    }

    /// Builds the matcher that evaluates requests.
    pub fn matcher(&self) -> RuleMatcher {
        let mut key = String::new();
        self.write_key(&Self::key_start(self.policy), &mut key);
        let (mut sources, mut operations) = (Vec::new(), Vec::new());
        self.each_source(|one| sources.push(one.matched()));
        self.each_operation(|one| operations.push(one.matched()));
        RuleMatcher { key, sources, operations, never: self.is_never() }
    }
}

impl<'a> AlternativeInForm<'a> {
    /// Calls `emit` with each clause that can be enforced in this form.
    pub fn each_clause(&self, mut emit: impl FnMut(ClauseInForm<'a>)) {
        let mut emit = |clause| {
            if !self.rule.loses(clause) {
                emit(self.rule.clause(clause));
            }
        };
        self.named.iter().for_each(&mut emit);
        for condition in self.when {
            if condition.any.iter().all(RequestTest::describes_source) == self.is_source {
                emit(condition);
            }
        }
    }

    fn matched(&self) -> Vec<MatchedClause> {
        let mut all = Vec::new();
        self.each_clause(|clause| all.push(MatchedClause::from_clause(clause)));
        all
    }
}

impl ClauseInForm<'_> {
    /// Returns whether none of the tests may hold.
    pub fn negated(&self) -> bool {
        self.clause.negated
    }

    /// Calls `emit` with each alternative, which is a list of atoms that all must hold.
    pub fn each(&self, emit: &mut dyn FnMut(&[Atom<'_>])) {
        for test in &self.clause.any {
            each_match(test, self.leaning, self.scope, emit);
        }
    }
}

impl MatchedClause {
    fn from_clause(clause: ClauseInForm<'_>) -> Self {
        let mut any = Vec::new();
        clause.each(&mut |atoms| any.push(atoms.iter().map(Atom::to_static).collect()));
        Self { place: clause.clause.place, negated: clause.negated(), any }
    }
}

impl Atom<'_> {
    /// Returns a copy with a static lifetime.
    fn to_static(&self) -> Atom<'static> {
        let owned = |text: &Cow<'_, str>| Cow::Owned(text.to_string());
        match self {
            Self::Identity(pattern) => Atom::Identity(pattern.to_static()),
            Self::PeerAddress(range) => Atom::PeerAddress(*range),
            Self::ClientAddress(range) => Atom::ClientAddress(*range),
            Self::Header(name, pattern) => Atom::Header(owned(name), pattern.to_static()),
            Self::HeaderNowhere(name, pattern) => {
                Atom::HeaderNowhere(owned(name), pattern.to_static())
            }
            Self::HeaderPresent(name) => Atom::HeaderPresent(owned(name)),
            Self::Path(pattern) => Atom::Path(pattern.to_static()),
            Self::PathTemplate(template) => Atom::PathTemplate(owned(template)),
            Self::Port(port) => Atom::Port(*port),
            Self::DestinationAddress(range) => Atom::DestinationAddress(*range),
            Self::ServerName(pattern) => Atom::ServerName(pattern.to_static()),
            Self::Metadata(filter, path, pattern) => {
                Atom::Metadata(owned(filter), path.clone(), pattern.to_static())
            }
        }
    }
}

/// Appends a number in decimal digits. Formatting takes ten times as long, and each of hundreds of
/// rules has a number.
fn push_number(number: u32, out: &mut String) {
    if number >= 10 {
        push_number(number / 10, out);
    }
    out.push(char::from_digit(number % 10, 10).unwrap_or_default());
}

/// Calls `emit` with each alternative of a test, which is a list of atoms that all must hold.
fn each_match(
    test: &RequestTest,
    leaning: Leaning,
    scope: &MatchScope<'_>,
    emit: &mut dyn FnMut(&[Atom<'_>]),
) {
    let trust = scope.trust;
    use RequestTest as Test;
    let form = TextForm::read;
    match test {
        Test::Principal(name) => {
            let is_wide = leaning == Leaning::Wide;
            trust.each_principal(name, is_wide, |name| emit_identity(name, emit));
        }
        Test::Namespace(name) => emit_in_trust_domains(leaning, trust, &[in_namespace(name)], emit),
        Test::ServiceAccount(account) => {
            let [namespace, name] = &**account;
            emit_in_trust_domains(
                leaning,
                trust,
                &account_id_parts(leaning, namespace, name),
                emit,
            );
        }
        Test::TrustDomain(domain) => {
            let same = match form(domain) {
                TextForm::Exact(domain) => trust.same_as(domain),
                _ => vec![domain.to_string()],
            };
            for domain in &same {
                emit(&[Atom::Identity(in_trust_domain(domain))]);
            }
        }
        Test::PeerAddress(range) => emit(&[Atom::PeerAddress(*range)]),
        Test::ClientAddress(range) => emit(&[Atom::ClientAddress(*range)]),
        Test::RequestPrincipal(name) => request_principal(name, leaning, scope, emit),
        Test::Claim(tested) => {
            let ClaimTest { path, value } = &**tested;
            form(value).with_pattern(|value| {
                for key in &scope.token_keys {
                    emit(&[claim(key, path.iter().map(|name| &**name), &value)]);
                }
            });
        }
        Test::Header(tested) => {
            let [name, value] = &**tested;
            header(name, value, leaning, emit);
        }
        Test::Host(host) => {
            emit(&[Atom::Header(Cow::Borrowed(":authority"), host_pattern(host, leaning))]);
        }
        Test::Method(method) => form(method).with_pattern(|method| {
            // HTTP/2 transmits methods in any case, and some servers ignore the case.
            let method = TextPattern { ignore_case: leaning == Leaning::Wide, ..method };
            emit(&[Atom::Header(Cow::Borrowed(":method"), method)]);
        }),
        Test::Path(path) => {
            form(path).with_pattern(|path| emit(&[Atom::Path(path)]));
            // Envoy merges a path of slashes only into `//`, which applications serve as `/`.
            if leaning == Leaning::Wide && &**path == "/" {
                form("//").with_pattern(|path| emit(&[Atom::Path(path)]));
            }
        }
        Test::PathTemplate(template) => {
            emit(&[Atom::PathTemplate(Cow::Borrowed(template))]);
        }
        Test::Port(port) => emit(&[Atom::Port(*port)]),
        Test::DestinationAddress(range) => emit(&[Atom::DestinationAddress(*range)]),
        Test::ServerName(name) => form(name).with_pattern(|name| emit(&[Atom::ServerName(name)])),
        Test::Noted(noted) => {
            let [filter, key, value] = &**noted;
            // `[v]` is a value in a list. Lists and strings are both compared.
            let listed = value.strip_prefix('[').and_then(|value| value.strip_suffix(']'));
            form(listed.unwrap_or(value)).with_pattern(|value| {
                emit(&[Atom::Metadata(Cow::Borrowed(filter), vec![key.to_string()], value)]);
            });
        }
    }
}

fn emit_identity(name: &str, emit: &mut dyn FnMut(&[Atom<'_>])) {
    let spiffe = TextPart::text(SPIFFE);
    let mut emit = |parts: &[TextPart<'_>]| emit(&[Atom::Identity(TextPattern::borrowed(parts))]);
    match TextForm::read(name) {
        TextForm::Present => emit(&[TextPart::Some]),
        TextForm::Exact(name) => emit(&[spiffe, TextPart::text(name)]),
        TextForm::Prefix(prefix) => emit(&[spiffe, TextPart::text(prefix), TextPart::Any]),
        TextForm::Suffix(suffix) => emit(&[spiffe, TextPart::Any, TextPart::text(suffix)]),
    }
}

/// Emits identities for namespaces and accounts of the mesh in all trust domains of the mesh. A
/// rule that denies also matches the same names in other trust domains; a rule that allows does not
/// (docs/contributing/decisions/0039-access.md).
fn emit_in_trust_domains(
    leaning: Leaning,
    trust: &TrustBundle,
    rests: &[Vec<TextPart<'_>>],
    emit: &mut dyn FnMut(&[Atom<'_>]),
) {
    let mut identity = |start: &[TextPart<'_>], rest: &[TextPart<'_>]| {
        emit(&[Atom::Identity(TextPattern::new(joined(start.iter().chain(rest))))]);
    };
    for rest in rests {
        match leaning {
            Leaning::Wide => identity(&[TextPart::text(SPIFFE), TextPart::Any], rest),
            Leaning::Narrow => trust.domains().for_each(|domain| {
                identity(&[TextPart::text(SPIFFE), TextPart::text(domain)], rest);
            }),
        }
    }
}

/// Returns the part of a SPIFFE ID after the trust domain, for all accounts of a namespace.
fn in_namespace(name: &str) -> Vec<TextPart<'_>> {
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

/// Returns the parts of a SPIFFE ID after the trust domain, for an account. Other issuers add
/// segments to SPIFFE IDs; rules that deny match these too.
fn account_id_parts<'a>(leaning: Leaning, namespace: &str, name: &str) -> Vec<Vec<TextPart<'a>>> {
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

fn in_trust_domain(domain: &str) -> TextPattern<'_> {
    let (spiffe, slash) = (TextPart::text(SPIFFE), TextPart::text("/"));
    let mut parts = vec![spiffe];
    match TextForm::read(domain) {
        TextForm::Present => parts.push(TextPart::Segment),
        TextForm::Exact(domain) => parts.push(TextPart::text(domain)),
        TextForm::Prefix(prefix) => parts.extend([TextPart::text(prefix), TextPart::Segment]),
        TextForm::Suffix(suffix) => parts.extend([TextPart::Segment, TextPart::text(suffix)]),
    }
    parts.extend([slash, TextPart::Any]);
    TextPattern::new(joined(&parts))
}

/// Joins adjacent texts and removes empty ones.
fn joined<'p, 'a: 'p>(parts: impl IntoIterator<Item = &'p TextPart<'a>>) -> Vec<TextPart<'a>> {
    let mut joined: Vec<TextPart<'a>> = Vec::new();
    for part in parts {
        match (joined.last_mut(), part) {
            (_, TextPart::Text(text)) if text.is_empty() => {}
            (Some(TextPart::Text(before)), TextPart::Text(text)) => before.to_mut().push_str(text),
            (_, part) => joined.push(part.clone()),
        }
    }
    joined
}

fn claim<'a, 'n>(
    key: &'n str,
    names: impl IntoIterator<Item = &'n str>,
    value: &TextPattern<'a>,
) -> Atom<'a> {
    let path = std::iter::once(key).chain(names).map(str::to_owned).collect();
    Atom::Metadata(Cow::Borrowed(TOKEN_FILTER), path, value.clone())
}

/// Matches `ISSUER/SUBJECT`, split at the last slash. Each half may have a wildcard.
fn request_principal(
    name: &str,
    leaning: Leaning,
    scope: &MatchScope<'_>,
    emit: &mut dyn FnMut(&[Atom<'_>]),
) {
    // Issuer and subject must be from the same token.
    let mut both = |issuer: TextForm<'_>, subject: TextForm<'_>| {
        let (issuer, subject) = (issuer.pattern(), subject.pattern());
        for key in &scope.token_keys {
            emit(&[claim(key, ["iss"], &issuer), claim(key, ["sub"], &subject)]);
        }
    };
    let divided = name.rsplit_once('/');
    if let Some((issuer, subject)) = divided {
        both(TextForm::read(issuer), TextForm::read(subject));
    }
    // The prefix of an issuer may contain slashes, and so may the suffix of a subject.
    if divided.is_none() || leaning == Leaning::Wide {
        match TextForm::read(name) {
            TextForm::Present => both(TextForm::Present, TextForm::Present),
            form @ TextForm::Prefix(_) => both(form, TextForm::Present),
            form @ TextForm::Suffix(_) => both(TextForm::Present, form),
            // Without a subject, the value matches no token.
            TextForm::Exact(_) => {}
        }
    }
}

/// Returns the pattern of a host: any case, with or without a trailing dot, and any port unless the
/// value contains one. Servers compare only the name. A rule that denies therefore also matches the
/// host before an invalid port, after user info, and in a list of hosts, which proxies join by
/// commas.
fn host_pattern(host: &str, leaning: Leaning) -> TextPattern<'_> {
    let is_wide = leaning == Leaning::Wide;
    let mut parts = match TextForm::read(host) {
        TextForm::Present => vec![TextPart::Some],
        TextForm::Prefix(prefix) => vec![TextPart::text(prefix), TextPart::Any],
        TextForm::Exact(host) => host_end(Vec::new(), host, is_wide),
        TextForm::Suffix(suffix) => host_end(vec![TextPart::Any], suffix, is_wide),
    };
    if is_wide && matches!(parts.first(), Some(TextPart::Text(_))) {
        parts.insert(0, TextPart::HostBefore);
    }
    TextPattern { ignore_case: true, ..TextPattern::new(parts) }
}

fn host_end<'a>(mut parts: Vec<TextPart<'a>>, host: &'a str, is_wide: bool) -> Vec<TextPart<'a>> {
    let named = host
        .rsplit_once(':')
        .filter(|(_, port)| !port.is_empty() && port.chars().all(|digit| digit.is_ascii_digit()));
    let without_dot = |name: &'a str| TextPart::text(name.strip_suffix('.').unwrap_or(name));
    match named {
        // The value contains a port, so that only this port matches.
        Some((name, _)) if is_wide => {
            let port = &host[name.len()..];
            parts.extend([without_dot(name), TextPart::Dot, TextPart::text(port)]);
            parts.push(TextPart::ListAfter);
        }
        Some(_) => parts.push(TextPart::text(host)),
        None => {
            parts.push(without_dot(host));
            parts.push(if is_wide { TextPart::HostRest } else { TextPart::HostEnd });
        }
    }
    parts
}

/// Emits the atoms for the value of a header. For a repeated header, proxies compare the values
/// joined by commas, or each value separately (since CVE-2026-26308). A rule that denies matches
/// the value anywhere in the list. A rule that allows also requires that no other value is present.
fn header(name: &str, value: &str, leaning: Leaning, emit: &mut dyn FnMut(&[Atom<'_>])) {
    let form = TextForm::read(value);
    let name = || Cow::Borrowed(name);
    if form == TextForm::Present {
        return emit(&[Atom::HeaderPresent(name())]);
    }
    let pattern = form.pattern();
    if leaning == Leaning::Narrow {
        let others = form.others().into_iter();
        let nowhere = others.map(|other| Atom::HeaderNowhere(name(), other));
        let all: Vec<_> = std::iter::once(Atom::Header(name(), pattern)).chain(nowhere).collect();
        return emit(&all);
    }
    let before = std::iter::once(TextPart::ListBefore);
    let parts = before.chain(pattern.parts.iter().cloned()).chain([TextPart::ListAfter]).collect();
    emit(&[Atom::Header(name(), TextPattern::new(parts))]);
}
