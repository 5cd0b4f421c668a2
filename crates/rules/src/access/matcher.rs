//! What a rule matches, in the one form from which proxies are configured and `explain` answers.
//!
//! Names of trust domains are written out, and texts are patterns. Where it is in doubt whether something matches, it
//! does where matching denies, and does not where matching allows.

use std::borrow::Cow;

use ipnet::IpNet;

use super::authorization::{
    AuthorizationAction, AuthorizationPolicy, AuthorizationRule, Clause, ClausePlace,
};
use super::request_test::{ClaimTest, RequestTest};
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

/// What names in rules stand for, for one workload: that depends on the trust domains of the mesh, and on how many rules say
/// which tokens are believed, and on nothing else.
#[derive(Debug)]
pub struct MatchScope<'a> {
    trust: &'a TrustBundle,
    /// The keys under which claims may stand.
    token_keys: Vec<String>,
}

impl<'a> MatchScope<'a> {
    /// Where so many rules say which tokens are believed.
    pub fn new(trust: &'a TrustBundle, token_rules: usize) -> Self {
        let keys = (0..token_rules.max(1)).map(|place| token_key(place, token_rules));
        Self { trust, token_keys: keys.collect() }
    }
}

/// How SPIFFE IDs begin.
const SPIFFE: &str = "spiffe://";

/// A rule of a policy as it is matched in one form. What it looks at is said when somebody asks, and kept nowhere: of
/// hundreds of rules that are encoded each is needed once.
#[derive(Debug, Clone, Copy)]
pub struct RuleInForm<'a> {
    policy: &'a AuthorizationPolicy,
    /// `None` for what matches nothing, as a policy without rules.
    rule: Option<&'a AuthorizationRule>,
    form: WireForm,
    scope: &'a MatchScope<'a>,
}

/// One of its sources or operations, with the conditions that are about the same.
#[derive(Debug, Clone, Copy)]
pub struct AlternativeInForm<'a> {
    of: RuleInForm<'a>,
    named: &'a [Clause],
    when: &'a [Clause],
    of_source: bool,
}

/// A field of it.
#[derive(Debug, Clone, Copy)]
pub struct ClauseInForm<'a> {
    clause: &'a Clause,
    leaning: Leaning,
    scope: &'a MatchScope<'a>,
}

/// The same, made ready to decide requests.
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

/// A field of a rule that is ready.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MatchedClause {
    /// Where it stands in the object.
    pub place: ClausePlace,
    /// Whether none of `any` may hold.
    pub negated: bool,
    /// Each of these lists all of its atoms.
    pub any: Vec<Vec<Atom<'static>>>,
}

/// One thing to look at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Atom<'a> {
    /// The client's SPIFFE ID, which mTLS shows.
    Identity(TextPattern<'a>),
    /// The address of the peer of the connection.
    PeerAddress(IpNet),
    /// The address of the client, as proxies on the way say.
    ClientAddress(IpNet),
    /// A header, `:authority` and `:method` among them.
    Header(Cow<'a, str>, TextPattern<'a>),
    /// A header of which no value is like this, nor all of them in one; or none at all.
    HeaderNowhere(Cow<'a, str>, TextPattern<'a>),
    /// Whether a header is there.
    HeaderPresent(Cow<'a, str>),
    /// The path without query and fragment.
    Path(TextPattern<'a>),
    /// The same, by Envoy's template.
    PathTemplate(Cow<'a, str>),
    /// The port of the workload.
    Port(u16),
    /// Its address.
    DestinationAddress(IpNet),
    /// The server name that a TLS client asks for.
    ServerName(TextPattern<'a>),
    /// What a filter has noted: filter, path, and the text there, or that of an element of a list.
    Metadata(Cow<'a, str>, Vec<String>, TextPattern<'a>),
}

/// Which way what is in doubt is decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Leaning {
    /// It matches: matching denies.
    Wide,
    /// It does not: matching allows.
    Narrow,
}

impl<'a> RuleInForm<'a> {
    /// What the rules of a policy match; at least one of a policy that allows, which matches never where no other does.
    pub fn of_policy(
        policy: &'a AuthorizationPolicy,
        form: WireForm,
        scope: &'a MatchScope<'a>,
    ) -> impl Iterator<Item = Self> {
        let of = move |rule| Self { policy, rule, form, scope };
        let rules = policy.rules.iter().map(move |rule| of(Some(rule)));
        let mut rules = rules.filter(Self::is_said).peekable();
        let is_empty = rules.peek().is_none() && policy.action == AuthorizationAction::Allow;
        rules.chain(is_empty.then(|| of(None)))
    }

    /// Whether the form can say it.
    ///
    /// A connection without HTTP has none of the things that fields of HTTP look at: a rule that allows by them allows
    /// no connection, and one that denies by them denies without looking. (Istio's rules for TCP.) The same goes for what
    /// gRPC's own library doesn't look at.
    fn is_said(&self) -> bool {
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

    /// How the names of a policy's rules begin.
    pub fn key_start(policy: &AuthorizationPolicy) -> String {
        let name = &policy.name;
        ["ns[", name.namespace.as_str(), "]-policy[", &name.name, "]-rule["].concat()
    }

    /// Writes what names it in figures and logs, which begins so: `ns[NS]-policy[NAME]-rule[I]`.
    pub fn write_key(&self, start: &str, out: &mut String) {
        out.push_str(start);
        push_number(self.rule.map_or(0, |rule| rule.index), out);
        out.push(']');
    }

    /// Whether it matches never.
    pub fn is_never(&self) -> bool {
        self.rule.is_none()
    }

    /// Says any of which must hold, each all of its clauses; about who calls. Nothing where it matches never.
    pub fn each_source(&self, say: impl FnMut(AlternativeInForm<'a>)) {
        self.each_alternative(true, say);
    }

    /// The same, about what is called.
    pub fn each_operation(&self, say: impl FnMut(AlternativeInForm<'a>)) {
        self.each_alternative(false, say);
    }

    fn each_alternative(&self, of_source: bool, mut say: impl FnMut(AlternativeInForm<'a>)) {
        let Some(rule) = self.rule else { return };
        let named = if of_source { &rule.from } else { &rule.to };
        let mut say =
            |named| say(AlternativeInForm { of: *self, named, when: &rule.when, of_source });
        // Conditions count whichever of them is looked at, and alone where there is none.
        if named.is_empty() {
            say(&[]);
        }
        named.iter().for_each(|clauses| say(clauses));
    }

    fn clause(self, clause: &'a Clause) -> ClauseInForm<'a> {
        let is_wide = self.allows() == clause.negated;
        let leaning = if is_wide { Leaning::Wide } else { Leaning::Narrow };
        ClauseInForm { clause, leaning, scope: self.scope }
    }

    /// Whether it looks at paths.
    pub fn looks_at_paths(&self) -> bool {
        let is_path = |test: &RequestTest| {
            matches!(test, RequestTest::Path(_) | RequestTest::PathTemplate(_))
        };
        let mut looks = false;
        self.each_operation(|one| {
            one.each_clause(|one| looks = looks || one.clause.any.iter().any(is_path));
        });
        looks
    }

    /// Made ready to decide requests.
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
    /// Says all its clauses that the form can say.
    pub fn each_clause(&self, mut say: impl FnMut(ClauseInForm<'a>)) {
        let mut say = |clause| {
            if !self.of.loses(clause) {
                say(self.of.clause(clause));
            }
        };
        self.named.iter().for_each(&mut say);
        for condition in self.when {
            if condition.any.iter().all(RequestTest::is_of_source) == self.of_source {
                say(condition);
            }
        }
    }

    fn matched(&self) -> Vec<MatchedClause> {
        let mut all = Vec::new();
        self.each_clause(|clause| all.push(MatchedClause::of(clause)));
        all
    }
}

impl ClauseInForm<'_> {
    /// Whether none of what it says may hold.
    pub fn negated(&self) -> bool {
        self.clause.negated
    }

    /// Says what it looks at: any of the lists, each with all of its atoms.
    pub fn each(&self, say: &mut dyn FnMut(&[Atom<'_>])) {
        for test in &self.clause.any {
            each_match(test, self.leaning, self.scope, say);
        }
    }
}

impl MatchedClause {
    fn of(clause: ClauseInForm<'_>) -> Self {
        let mut any = Vec::new();
        clause.each(&mut |atoms| any.push(atoms.iter().map(Atom::to_static).collect()));
        Self { place: clause.clause.place, negated: clause.negated(), any }
    }
}

impl Atom<'_> {
    /// The same for as long as anybody likes.
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

/// In figures. Formatting does it as well, at ten times the price, and each of hundreds of rules has a number.
fn push_number(number: u32, out: &mut String) {
    if number >= 10 {
        push_number(number / 10, out);
    }
    out.push(char::from_digit(number % 10, 10).unwrap_or_default());
}

/// What a test looks at: any of the lists of atoms that are said, each in full.
fn each_match(
    test: &RequestTest,
    leaning: Leaning,
    scope: &MatchScope<'_>,
    say: &mut dyn FnMut(&[Atom<'_>]),
) {
    let trust = scope.trust;
    use RequestTest as Test;
    let form = TextForm::read;
    match test {
        Test::Principal(name) => {
            let is_wide = leaning == Leaning::Wide;
            trust.each_principal(name, is_wide, |name| say_identity(name, say));
        }
        Test::Namespace(name) => of_trusted(leaning, trust, &[in_namespace(name)], say),
        Test::ServiceAccount(account) => {
            let [namespace, name] = &**account;
            of_trusted(leaning, trust, &of_account(leaning, namespace, name), say);
        }
        Test::TrustDomain(domain) => {
            let same = match form(domain) {
                TextForm::Exact(domain) => trust.same_as(domain),
                _ => vec![domain.to_string()],
            };
            for domain in &same {
                say(&[Atom::Identity(in_trust_domain(domain))]);
            }
        }
        Test::PeerAddress(range) => say(&[Atom::PeerAddress(*range)]),
        Test::ClientAddress(range) => say(&[Atom::ClientAddress(*range)]),
        Test::RequestPrincipal(name) => request_principal(name, leaning, scope, say),
        Test::Claim(tested) => {
            let ClaimTest { path, value } = &**tested;
            form(value).with_pattern(|value| {
                for key in &scope.token_keys {
                    say(&[claim(key, path.iter().map(|name| &**name), &value)]);
                }
            });
        }
        Test::Header(tested) => {
            let [name, value] = &**tested;
            header(name, value, leaning, say);
        }
        Test::Host(host) => {
            say(&[Atom::Header(Cow::Borrowed(":authority"), host_pattern(host, leaning))]);
        }
        Test::Method(method) => form(method).with_pattern(|method| {
            // HTTP/2 brings them in any letters, and some servers take all of them for the same.
            let method = TextPattern { ignore_case: leaning == Leaning::Wide, ..method };
            say(&[Atom::Header(Cow::Borrowed(":method"), method)]);
        }),
        Test::Path(path) => form(path).with_pattern(|path| say(&[Atom::Path(path)])),
        Test::PathTemplate(template) => {
            say(&[Atom::PathTemplate(Cow::Borrowed(template))]);
        }
        Test::Port(port) => say(&[Atom::Port(*port)]),
        Test::DestinationAddress(range) => say(&[Atom::DestinationAddress(*range)]),
        Test::ServerName(name) => form(name).with_pattern(|name| say(&[Atom::ServerName(name)])),
        Test::Noted(noted) => {
            let [filter, key, value] = &**noted;
            // `[v]` is one of a list; a list and a text are both looked at.
            let listed = value.strip_prefix('[').and_then(|value| value.strip_suffix(']'));
            form(listed.unwrap_or(value)).with_pattern(|value| {
                say(&[Atom::Metadata(Cow::Borrowed(filter), vec![key.to_string()], value)]);
            });
        }
    }
}

fn say_identity(name: &str, say: &mut dyn FnMut(&[Atom<'_>])) {
    let spiffe = TextPart::text(SPIFFE);
    let mut say = |parts: &[TextPart<'_>]| say(&[Atom::Identity(TextPattern::of(parts))]);
    match TextForm::read(name) {
        TextForm::Present => say(&[TextPart::Some]),
        TextForm::Exact(name) => say(&[spiffe, TextPart::text(name)]),
        TextForm::Prefix(prefix) => say(&[spiffe, TextPart::text(prefix), TextPart::Any]),
        TextForm::Suffix(suffix) => say(&[spiffe, TextPart::Any, TextPart::text(suffix)]),
    }
}

/// Namespaces and accounts are those of the mesh, whose trust domains are its own. Of another trust domain one of the
/// same name is denied alike, and never let in. (docs/decisions/0039-access.md)
fn of_trusted(
    leaning: Leaning,
    trust: &TrustBundle,
    rests: &[Vec<TextPart<'_>>],
    say: &mut dyn FnMut(&[Atom<'_>]),
) {
    let mut identity = |start: &[TextPart<'_>], rest: &[TextPart<'_>]| {
        say(&[Atom::Identity(TextPattern::new(joined(start.iter().chain(rest))))]);
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

/// What follows the trust domain of every account of a namespace.
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

/// What follows the trust domain of an account. Others issue longer names, of which those that deny take account.
fn of_account<'a>(leaning: Leaning, namespace: &str, name: &str) -> Vec<Vec<TextPart<'a>>> {
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

/// With texts that follow each other in one, and none that is empty.
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

/// `ISSUER/SUBJECT`, divided at the last slash, each of the halves in any form.
fn request_principal(
    name: &str,
    leaning: Leaning,
    scope: &MatchScope<'_>,
    say: &mut dyn FnMut(&[Atom<'_>]),
) {
    // Both of one token.
    let mut both = |issuer: TextForm<'_>, subject: TextForm<'_>| {
        let (issuer, subject) = (issuer.pattern(), subject.pattern());
        for key in &scope.token_keys {
            say(&[claim(key, ["iss"], &issuer), claim(key, ["sub"], &subject)]);
        }
    };
    let divided = name.rsplit_once('/');
    if let Some((issuer, subject)) = divided {
        both(TextForm::read(issuer), TextForm::read(subject));
    }
    // The beginning of an issuer may hold slashes, too, and so may the end of a subject.
    if divided.is_none() || leaning == Leaning::Wide {
        match TextForm::read(name) {
            TextForm::Present => both(TextForm::Present, TextForm::Present),
            form @ TextForm::Prefix(_) => both(form, TextForm::Present),
            form @ TextForm::Suffix(_) => both(TextForm::Present, form),
            // Without a subject it is nobody's.
            TextForm::Exact(_) => {}
        }
    }
}

/// A host in any case, with a dot at its end or without, and at any port unless it names one. What denies counts it also
/// before a port that is none, behind the name of a user, and among several hosts, which proxies join by commas: servers look
/// at no more than the name.
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
        // What it says of the port is meant.
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

/// A header. Proxies join one that is repeated by commas before they look, or look at each (since CVE-2026-26308): what
/// denies counts a value wherever it stands, and what allows asks that none is there which it does not fit.
fn header(name: &str, value: &str, leaning: Leaning, say: &mut dyn FnMut(&[Atom<'_>])) {
    let form = TextForm::read(value);
    let name = || Cow::Borrowed(name);
    if form == TextForm::Present {
        return say(&[Atom::HeaderPresent(name())]);
    }
    let pattern = form.pattern();
    if leaning == Leaning::Narrow {
        let others = form.others().into_iter();
        let nowhere = others.map(|other| Atom::HeaderNowhere(name(), other));
        let all: Vec<_> = std::iter::once(Atom::Header(name(), pattern)).chain(nowhere).collect();
        return say(&all);
    }
    let before = std::iter::once(TextPart::ListBefore);
    let parts = before.chain(pattern.parts.iter().cloned()).chain([TextPart::ListAfter]).collect();
    say(&[Atom::Header(name(), TextPattern::new(parts))]);
}
