//! AuthorizationPolicy: who may do what, as it is written.
//!
//! A rule is read field by field. What can't be read makes a rule of ALLOW vanish, and a rule of DENY go without that
//! condition: so it never lets in more than it says.

use std::fmt;
use std::sync::Arc;

use serde_json::{Map, Value};

use super::fields::{fields, items, present, restricts, texts};
use super::object::{AccessFault, PolicyErrors, PolicyKind, PolicyName, created};
use super::request_test::{ClaimTest, RequestTest};
use super::selector::{PolicySelector, without_effect};
use super::values;
use strait_base::codes;
use strait_model::{WorkloadKey, is_header_name};

/// The annotation of a policy that is only tried.
const DRY_RUN: &str = "istio.io/dry-run";
/// The most service accounts in a field. (Istio's validation.)
const ACCOUNTS_MAX: usize = 16;

/// What becomes of what a policy's rules match.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum AuthorizationAction {
    /// It is allowed, and what no such policy matches is not.
    Allow,
    /// It is denied, whatever else allows it.
    Deny,
    /// It is marked.
    Audit,
    /// The provider of this name is asked.
    Custom(Arc<str>),
}

impl AuthorizationAction {
    /// As objects name it.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Allow => "ALLOW",
            Self::Deny => "DENY",
            Self::Audit => "AUDIT",
            Self::Custom(_) => "CUSTOM",
        }
    }
}

/// An AuthorizationPolicy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuthorizationPolicy {
    /// Its name.
    pub name: WorkloadKey,
    /// Seconds since the Unix epoch; 0 where unknown.
    pub created: i64,
    /// What becomes of what it matches.
    pub action: AuthorizationAction,
    /// Whether it is only tried.
    pub dry_run: bool,
    /// The workloads it is for.
    pub selector: PolicySelector,
    /// Any of these.
    pub rules: Box<[AuthorizationRule]>,
}

/// One rule: one of `from`, one of `to`, and all of `when`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuthorizationRule {
    /// Its place in the object, from 0.
    pub index: u32,
    /// Any of these sources; none for any source.
    pub from: Box<[Box<[Clause]>]>,
    /// Any of these operations; none for any operation.
    pub to: Box<[Box<[Clause]>]>,
    /// All of these.
    pub when: Box<[Clause]>,
}

/// One field: any of its tests, or none of them. There are a dozen in each of thousands of policies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Clause {
    /// Where it stands.
    pub place: ClausePlace,
    /// Whether none may hold.
    pub negated: bool,
    /// Its tests; never empty.
    pub any: Box<[RequestTest]>,
}

/// Where a field stands in its policy. Written out it is a path from `spec`, such as `rules[0].from[0].source.principals`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClausePlace {
    rule: u32,
    /// In the list of its part, from 0.
    at: u32,
    part: RulePart,
    /// The row in the table of its part, twice, and one where it is the negation.
    field: u8,
}

/// The fields of a condition that hold values.
const VALUES: [&str; 2] = ["values", "notValues"];

impl ClausePlace {
    fn new(rule: u32, part: RulePart, at: u32, (row, negated): (u8, bool)) -> Self {
        Self { rule, at, part, field: 2 * row + u8::from(negated) }
    }

    fn field(self) -> &'static str {
        let row = usize::from(self.field / 2);
        let names = match self.part {
            RulePart::From => SOURCE.get(row).map(|(name, not, _)| [*name, *not]),
            RulePart::To => OPERATION.get(row).map(|(name, not, _)| [*name, *not]),
            RulePart::When => Some(VALUES),
        };
        names.map_or("", |[name, not]| if self.field.is_multiple_of(2) { name } else { not })
    }
}

/// The lists of a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RulePart {
    From,
    To,
    When,
}

impl RulePart {
    /// The list's name, and what each of its elements holds its fields in.
    fn names(self) -> (&'static str, Option<&'static str>) {
        match self {
            Self::From => ("from", Some("source")),
            Self::To => ("to", Some("operation")),
            Self::When => ("when", None),
        }
    }
}

impl fmt::Display for ClausePlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rule, part, at, .. } = self;
        let (list, inner) = part.names();
        write!(f, "rules[{rule}].{list}[{at}].")?;
        inner.map_or(Ok(()), |inner| write!(f, "{inner}."))?;
        f.write_str(self.field())
    }
}

impl AuthorizationPolicy {
    /// Which it is.
    pub fn policy_name(&self) -> PolicyName {
        PolicyName { kind: PolicyKind::Authorization, object: self.name.clone() }
    }

    /// All clauses of its rules.
    pub fn clauses(&self) -> impl Iterator<Item = &Clause> {
        self.rules.iter().flat_map(AuthorizationRule::clauses)
    }

    /// Whether any rule of it looks at paths.
    pub fn looks_at_paths(&self) -> bool {
        let mut tests = self.clauses().flat_map(|clause| &clause.any);
        tests.any(|test| matches!(test, RequestTest::Path(_) | RequestTest::PathTemplate(_)))
    }

    /// Reads an object. What can't be read of it is in `faults`; what is returned then lets in no more than what the
    /// object says, as far as that is known. `None` where nothing of it can count.
    pub(super) fn read(
        name: &WorkloadKey,
        object: &Value,
        errors: PolicyErrors,
        faults: &mut Vec<AccessFault>,
    ) -> Option<Self> {
        let strict = errors == PolicyErrors::Strict;
        let closed = |action| Self {
            name: name.clone(),
            created: created(object),
            action,
            dry_run: false,
            selector: PolicySelector::All,
            rules: Box::default(),
        };
        let empty = Value::Object(Map::new());
        let spec = object.get("spec").filter(|spec| !spec.is_null()).unwrap_or(&empty);
        let known = ["selector", "targetRef", "targetRefs", "rules", "action", "provider"];
        let Some(spec) = fields(spec, "spec", &known, faults) else {
            return strict.then(|| closed(AuthorizationAction::Allow));
        };
        let Some(action) = read_action(spec, faults) else {
            // Whether it allows or denies nobody knows.
            return strict.then(|| closed(AuthorizationAction::Allow));
        };
        let denies = action != AuthorizationAction::Allow;
        let selector = match PolicySelector::read(spec, Some(&name.namespace), faults) {
            Some(selector) => selector,
            None if denies => PolicySelector::All,
            // Its rules would let others in at workloads that nobody meant, and closing these is for the strict.
            None => return strict.then(|| closed(action)),
        };
        let mut policy =
            Self { dry_run: is_dry_run(object) == Some(true), selector, ..closed(action) };
        let reader = PolicyRuleReader { policy: &policy, errors };
        let mut rules = match present(spec, "rules") {
            None => Vec::new(),
            Some(rules) => reader.rules(rules, faults),
        };
        if rules.is_empty()
            && matches!(policy.action, AuthorizationAction::Deny | AuthorizationAction::Custom(_))
        {
            let text = "a policy that denies or asks needs rules; without any it does nothing";
            if present(spec, "rules")
                .is_none_or(|rules| rules.as_array().is_some_and(Vec::is_empty))
            {
                faults.push(AccessFault::unreadable("spec.rules", text));
            }
        }
        // An unknown field of the whole policy may narrow what each of its rules allows.
        let is_unknown = |name: &str| !known.contains(&name);
        if !denies && spec.iter().any(|(name, value)| is_unknown(name) && restricts(name, value)) {
            rules.clear();
        }
        policy.rules = rules.into();
        Some(policy)
    }

    /// What it says that has another effect than it seems, whatever there is beside it.
    pub(super) fn warnings(&self, object: &Value) -> Vec<AccessFault> {
        let mut warnings = Vec::new();
        if is_dry_run(object).is_none() {
            let path = format!("metadata.annotations.{DRY_RUN}");
            let text = "is neither true nor false, and counts as false: the policy is in force";
            warnings.push(AccessFault::warning(&codes::ACCESS_NO_EFFECT, path, text));
        }
        warnings.extend(without_effect(object, &self.name.namespace));
        warnings
    }
}

/// Whether a policy is only tried; `None` where its annotation is no truth value.
fn is_dry_run(object: &Value) -> Option<bool> {
    let annotation = object.get("metadata").and_then(|metadata| metadata.get("annotations"));
    let Some(text) = annotation.and_then(|all| all.get(DRY_RUN)) else { return Some(false) };
    match text.as_str()? {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}

impl AuthorizationRule {
    /// One without conditions.
    fn of_everything(index: u32) -> Self {
        Self { index, from: Box::default(), to: Box::default(), when: Box::default() }
    }

    /// All its clauses.
    pub fn clauses(&self) -> impl Iterator<Item = &Clause> {
        self.from.iter().chain(&self.to).flatten().chain(&self.when)
    }
}

fn read_action(
    spec: &Map<String, Value>,
    faults: &mut Vec<AccessFault>,
) -> Option<AuthorizationAction> {
    let action = present(spec, "action");
    let provider = present(spec, "provider");
    let found = action.map_or(Some("ALLOW"), Value::as_str);
    let action = match found {
        Some("ALLOW") => AuthorizationAction::Allow,
        Some("DENY") => AuthorizationAction::Deny,
        Some("AUDIT") => AuthorizationAction::Audit,
        Some("CUSTOM") => {
            let path = "spec.provider";
            let named = provider.and_then(|one| fields(one, path, &["name"], faults)?.get("name"));
            let Some(name) = named.and_then(Value::as_str).filter(|name| !name.is_empty()) else {
                faults.push(AccessFault::unreadable(path, "CUSTOM needs the name of a provider"));
                // Nobody can be asked, so nobody says yes.
                return Some(AuthorizationAction::Deny);
            };
            return Some(AuthorizationAction::Custom(name.into()));
        }
        _ => {
            let found = action.map_or_else(String::new, Value::to_string);
            let text = format!("{found} means nothing; it may be ALLOW, DENY, AUDIT or CUSTOM");
            faults.push(AccessFault::unreadable("spec.action", text));
            return None;
        }
    };
    if provider.is_some() {
        faults.push(AccessFault::unreadable("spec.provider", "is for the action CUSTOM alone"));
    }
    Some(action)
}

/// Reads the rules of a policy.
struct PolicyRuleReader<'a> {
    policy: &'a AuthorizationPolicy,
    errors: PolicyErrors,
}

/// How one value of a field is read.
type ReadTest = fn(&str, &PolicyRuleReader<'_>) -> Result<RequestTest, String>;

/// The fields of a source, each with its negation.
const SOURCE: [(&str, &str, ReadTest); 7] = [
    ("principals", "notPrincipals", |text, _| values::principal(text)),
    ("requestPrincipals", "notRequestPrincipals", |text, _| {
        Ok(RequestTest::RequestPrincipal(text.into()))
    }),
    ("namespaces", "notNamespaces", |text, _| Ok(RequestTest::Namespace(text.into()))),
    ("serviceAccounts", "notServiceAccounts", |text, reader| {
        values::account(text, &reader.policy.name.namespace)
    }),
    ("trustDomains", "notTrustDomains", |text, _| values::trust_domain(text)),
    ("ipBlocks", "notIpBlocks", |text, _| Ok(RequestTest::PeerAddress(values::range(text)?))),
    ("remoteIpBlocks", "notRemoteIpBlocks", |text, _| {
        Ok(RequestTest::ClientAddress(values::range(text)?))
    }),
];

/// The fields of an operation, each with its negation.
const OPERATION: [(&str, &str, ReadTest); 4] = [
    ("hosts", "notHosts", |text, _| Ok(RequestTest::Host(text.into()))),
    ("ports", "notPorts", |text, _| values::port(text)),
    ("methods", "notMethods", |text, _| Ok(RequestTest::Method(text.into()))),
    ("paths", "notPaths", |text, _| values::path(text)),
];

impl PolicyRuleReader<'_> {
    fn rules(&self, rules: &Value, faults: &mut Vec<AccessFault>) -> Vec<AuthorizationRule> {
        let Some(rules) = rules.as_array() else {
            faults.push(AccessFault::unreadable(
                "spec.rules",
                format!("expected a list, found {rules}"),
            ));
            return self.unreadable_rule(0).into_iter().collect();
        };
        let rule = |(index, rule): (u32, &Value)| {
            let path = format!("spec.rules[{index}]");
            self.rule(index, rule, &path, faults)
        };
        (0..).zip(rules).filter_map(rule).collect()
    }

    /// What counts in place of a rule of which nothing can be read.
    fn unreadable_rule(&self, index: u32) -> Option<AuthorizationRule> {
        let everything = AuthorizationRule::of_everything(index);
        let denies = self.policy.action != AuthorizationAction::Allow;
        (denies && self.errors == PolicyErrors::Strict).then_some(everything)
    }

    fn rule(
        &self,
        index: u32,
        rule: &Value,
        path: &str,
        faults: &mut Vec<AccessFault>,
    ) -> Option<AuthorizationRule> {
        let before = faults.len();
        let mut read = AuthorizationRule::of_everything(index);
        let mut readable = read.clone();
        if let Some(rule) = fields(rule, path, &["from", "to", "when"], faults) {
            let from = self.alternatives(rule, (index, RulePart::From), &SOURCE, faults);
            let to = self.alternatives(rule, (index, RulePart::To), &OPERATION, faults);
            let whole = |all: &[Box<[Clause]>]| !all.iter().any(|clauses| clauses.is_empty());
            read.from = if whole(&from) { from.clone().into() } else { Box::default() };
            read.to = if whole(&to) { to.clone().into() } else { Box::default() };
            readable.from = from.into_iter().filter(|clauses| !clauses.is_empty()).collect();
            readable.to = to.into_iter().filter(|clauses| !clauses.is_empty()).collect();
            if let Some(when) = present(rule, "when") {
                let path = format!("{path}.when");
                match items(when, &path) {
                    Ok(items) => {
                        let mut all = Vec::new();
                        for (at, item) in (0..).zip(items) {
                            self.condition(item, (index, at), &mut all, faults);
                        }
                        read.when = all.into();
                    }
                    Err(fault) => faults.push(fault),
                }
            }
        }
        if faults.len() == before {
            return Some(read);
        }
        if self.policy.action == AuthorizationAction::Allow {
            return None;
        }
        if read.clauses().next().is_some() {
            return Some(read);
        }
        // Without any condition it would deny everything: what can be read of it counts, unless that is wanted.
        let of_parts = Some(readable).filter(|rule| rule.clauses().next().is_some());
        self.unreadable_rule(index).or(of_parts)
    }

    /// `from` or `to`; one of which nothing can be read is empty.
    fn alternatives(
        &self,
        rule: &Map<String, Value>,
        (index, part): (u32, RulePart),
        table: &[(&'static str, &'static str, ReadTest)],
        faults: &mut Vec<AccessFault>,
    ) -> Vec<Box<[Clause]>> {
        let (name, Some(inner)) = part.names() else { return Vec::new() };
        let Some(list) = present(rule, name) else { return Vec::new() };
        let path = format!("spec.rules[{index}].{name}");
        let list = match items(list, &path) {
            Ok(list) => list,
            Err(fault) => {
                faults.push(fault);
                return Vec::new();
            }
        };
        let known: Vec<_> = table.iter().flat_map(|(name, not, _)| [*name, *not]).collect();
        let mut all = Vec::with_capacity(list.len());
        for (at, item) in (0..).zip(list) {
            let path = format!("{path}[{at}]");
            let mut clauses = Vec::new();
            let item = fields(item, &path, &[inner], faults).and_then(|item| present(item, inner));
            let path = format!("{path}.{inner}");
            match item.map(|item| fields(item, &path, &known, faults)) {
                Some(Some(given)) if given.is_empty() => {
                    faults.push(AccessFault::unreadable(&path, "says nothing"));
                }
                Some(Some(given)) => {
                    for (row, (name, not, read)) in (0..).zip(table) {
                        for (field, negated) in [(*name, false), (*not, true)] {
                            let Some(values) = present(given, field) else { continue };
                            let place = ClausePlace::new(index, part, at, (row, negated));
                            clauses.extend(self.clause(values, place, negated, *read, faults));
                        }
                    }
                    self.check_accounts(given, &path, faults);
                }
                Some(None) => {}
                None => faults.push(AccessFault::unreadable(&path, "is missing")),
            }
            all.push(clauses.into());
        }
        all
    }

    /// One field. One bad value makes it count as absent: without that value it would match less or more than it says.
    fn clause(
        &self,
        values: &Value,
        place: ClausePlace,
        negated: bool,
        read: ReadTest,
        faults: &mut Vec<AccessFault>,
    ) -> Option<Clause> {
        let path = format!("spec.{place}");
        let values = match texts(values, &path) {
            Ok(values) => values,
            Err(fault) => {
                faults.push(fault);
                return None;
            }
        };
        let mut any = Vec::with_capacity(values.len());
        let before = faults.len();
        for (at, value) in values.into_iter().enumerate() {
            match read(value, self) {
                Ok(test) => any.push(test),
                Err(text) => faults.push(AccessFault::unreadable(format!("{path}[{at}]"), text)),
            }
        }
        self.finish(any, place, negated, before, faults)
    }

    /// A clause of these tests, unless faults were found since there were `before`.
    fn finish(
        &self,
        any: Vec<RequestTest>,
        place: ClausePlace,
        negated: bool,
        before: usize,
        faults: &mut Vec<AccessFault>,
    ) -> Option<Clause> {
        let asks = matches!(self.policy.action, AuthorizationAction::Custom(_));
        if asks && any.iter().any(RequestTest::is_unknown_to_providers) {
            let text = "is not known yet when a provider is asked (CUSTOM)";
            faults.push(AccessFault::unreadable(format!("spec.{place}"), text));
        }
        (faults.len() == before).then(|| Clause { place, negated, any: any.into() })
    }

    fn check_accounts(
        &self,
        source: &Map<String, Value>,
        path: &str,
        faults: &mut Vec<AccessFault>,
    ) {
        for name in ["serviceAccounts", "notServiceAccounts"] {
            let Some(accounts) = present(source, name) else { continue };
            if accounts.as_array().is_some_and(|accounts| accounts.len() > ACCOUNTS_MAX) {
                let text = format!("has more than {ACCOUNTS_MAX} accounts");
                faults.push(AccessFault::unreadable(format!("{path}.{name}"), text));
            }
            let others = ["principals", "notPrincipals", "namespaces", "notNamespaces"];
            if let Some(other) = others.into_iter().find(|one| present(source, one).is_some()) {
                let text = format!("can't stand beside {other}: both name identities");
                faults.push(AccessFault::unreadable(format!("{path}.{name}"), text));
            }
        }
    }

    fn condition(
        &self,
        condition: &Value,
        (rule, at): (u32, u32),
        clauses: &mut Vec<Clause>,
        faults: &mut Vec<AccessFault>,
    ) {
        let path = &format!("spec.rules[{rule}].when[{at}]");
        let [values, not_values] = VALUES;
        let known = ["key", values, not_values];
        let Some(condition) = fields(condition, path, &known, faults) else { return };
        let key = present(condition, "key").and_then(Value::as_str).unwrap_or_default();
        let Some(key) = ConditionKey::read(key) else {
            let text = format!("{key:?} is no key of a condition");
            return faults.push(AccessFault::unreadable(format!("{path}.key"), text));
        };
        let given = VALUES.map(|name| present(condition, name));
        if given.iter().all(Option::is_none) {
            faults.push(AccessFault::unreadable(path, "has neither values nor notValues"));
        }
        for (negated, values) in [false, true].into_iter().zip(given) {
            let Some(values) = values else { continue };
            let place = ClausePlace::new(rule, RulePart::When, at, (0, negated));
            let path = format!("spec.{place}");
            let before = faults.len();
            let mut any = Vec::new();
            match texts(values, &path) {
                Ok(values) => {
                    for (at, value) in values.into_iter().enumerate() {
                        match key.test(value, self) {
                            Ok(test) => any.push(test),
                            Err(text) => {
                                faults.push(AccessFault::unreadable(format!("{path}[{at}]"), text));
                            }
                        }
                    }
                }
                Err(fault) => faults.push(fault),
            }
            clauses.extend(self.finish(any, place, negated, before, faults));
        }
    }
}

/// The key of a condition.
enum ConditionKey {
    /// What a field of a source or an operation says as well.
    Field(ReadTest),
    Header(Box<str>),
    Claim(Box<[Box<str>]>),
    ServerName,
    DestinationAddress,
    Noted(Box<str>, Box<str>),
}

impl ConditionKey {
    fn read(key: &str) -> Option<Self> {
        let of_field = |name: &str| {
            let rows = SOURCE.iter().chain(&OPERATION);
            rows.copied().find(|(field, ..)| *field == name).map(|(.., read)| Self::Field(read))
        };
        match key {
            "source.ip" => of_field("ipBlocks"),
            "remote.ip" => of_field("remoteIpBlocks"),
            "source.namespace" => of_field("namespaces"),
            "source.principal" => of_field("principals"),
            "source.serviceAccount" => of_field("serviceAccounts"),
            "source.trustDomain" => of_field("trustDomains"),
            "request.auth.principal" => of_field("requestPrincipals"),
            "destination.port" => of_field("ports"),
            "request.auth.audiences" => Some(Self::Claim(["aud".into()].into())),
            "request.auth.presenter" => Some(Self::Claim(["azp".into()].into())),
            "destination.ip" => Some(Self::DestinationAddress),
            "connection.sni" => Some(Self::ServerName),
            _ => {
                if let Some(path) = key.strip_prefix("request.headers") {
                    let [name] = &brackets(path)?[..] else { return None };
                    let name = name.to_ascii_lowercase();
                    return match &*name {
                        // Proxies have the host in one place, whatever it was called on the way.
                        "host" | ":authority" => of_field("hosts"),
                        ":method" => of_field("methods"),
                        ":path" => of_field("paths"),
                        _ => is_header_name(&name).then(|| Self::Header(name.into())),
                    };
                }
                if let Some(path) = key.strip_prefix("request.auth.claims") {
                    return brackets(path).map(|names| Self::Claim(names.into()));
                }
                let (filter, path) = key.strip_prefix("experimental.")?.split_once('[')?;
                let [name] = &brackets(&format!("[{path}"))?[..] else { return None };
                let is_filter = filter.starts_with("envoy.filters.");
                is_filter.then(|| Self::Noted(filter.into(), name.clone()))
            }
        }
    }

    fn test(&self, value: &str, reader: &PolicyRuleReader<'_>) -> Result<RequestTest, String> {
        Ok(match self {
            Self::Field(read) => return read(value, reader),
            Self::Header(name) => RequestTest::Header([name.clone(), value.into()].into()),
            Self::Claim(path) => {
                RequestTest::Claim(Box::new(ClaimTest { path: path.clone(), value: value.into() }))
            }
            Self::ServerName => RequestTest::ServerName(value.into()),
            Self::DestinationAddress => RequestTest::DestinationAddress(values::range(value)?),
            Self::Noted(filter, key) => {
                RequestTest::Noted([filter.clone(), key.clone(), value.into()].into())
            }
        })
    }
}

/// The names in `[a][b]`: at least one, none empty.
fn brackets(text: &str) -> Option<Vec<Box<str>>> {
    let inner = text.strip_prefix('[')?.strip_suffix(']')?;
    let names: Vec<_> = inner.split("][").map(Box::from).collect();
    let is_name = |name: &str| !name.is_empty() && !name.contains(['[', ']']);
    names.iter().all(|name| is_name(name)).then_some(names)
}
