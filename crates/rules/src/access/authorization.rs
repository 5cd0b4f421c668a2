//! Parser of AuthorizationPolicies.
//!
//! Rules are read field by field. A field that cannot be read removes the whole rule if the policy
//! allows, and removes only that condition if the policy denies. A partly readable policy therefore
//! never allows more than the object says.

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

/// Annotation that marks a policy as a dry run.
const DRY_RUN: &str = "istio.io/dry-run";
/// Maximum number of service accounts in a field (Istio's validation).
const ACCOUNTS_MAX: usize = 16;

/// Action of a policy on the requests that its rules match.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum AuthorizationAction {
    /// Allows matching requests. Requests that no policy with this action matches are denied.
    Allow,
    /// Denies matching requests, even if another policy allows them.
    Deny,
    /// Marks matching requests for auditing.
    Audit,
    /// Asks the external authorization provider of this name.
    Custom(Arc<str>),
}

impl AuthorizationAction {
    /// Returns the spelling used in objects.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Allow => "ALLOW",
            Self::Deny => "DENY",
            Self::Audit => "AUDIT",
            Self::Custom(_) => "CUSTOM",
        }
    }
}

/// A parsed AuthorizationPolicy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuthorizationPolicy {
    /// Namespace and name of the object.
    pub name: WorkloadKey,
    /// Creation time in seconds since the Unix epoch; 0 if unknown.
    pub created: i64,
    /// Action on matching requests.
    pub action: AuthorizationAction,
    /// Whether the policy is a dry run: evaluated, but not enforced.
    pub dry_run: bool,
    /// Selector of the workloads that the policy applies to.
    pub selector: PolicySelector,
    /// Rules. At least one must match.
    pub rules: Box<[AuthorizationRule]>,
}

/// A rule. It matches if any of `from`, any of `to` and all of `when` match.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuthorizationRule {
    /// Index of the rule in the object, from 0.
    pub index: u32,
    /// Alternative sources. Empty matches any source.
    pub from: Box<[Box<[Clause]>]>,
    /// Alternative operations. Empty matches any operation.
    pub to: Box<[Box<[Clause]>]>,
    /// Conditions. All must hold.
    pub when: Box<[Clause]>,
}

/// One field of a rule: at least one test must hold, or none if negated. Kept small, because
/// thousands of policies have a dozen of them each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Clause {
    /// Location of the field in the policy.
    pub place: ClausePlace,
    /// Whether none of the tests may hold.
    pub negated: bool,
    /// Tests; never empty.
    pub any: Box<[RequestTest]>,
}

/// Location of a field in its policy. Displayed as a path below `spec`, such as
/// `rules[0].from[0].source.principals`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClausePlace {
    rule: u32,
    /// Index in the list `part`, from 0.
    at: u32,
    part: RulePart,
    /// Twice the row in the table of the part, plus one for the negated field.
    field: u8,
}

/// The fields of a condition that contain values.
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
    /// Returns the name of the list, and the name of the object that contains the fields in each
    /// element.
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
    /// Returns the kind and name of the policy.
    pub fn policy_name(&self) -> PolicyName {
        PolicyName { kind: PolicyKind::Authorization, object: self.name.clone() }
    }

    /// Iterates over all clauses of all rules.
    pub fn clauses(&self) -> impl Iterator<Item = &Clause> {
        self.rules.iter().flat_map(AuthorizationRule::clauses)
    }

    /// Returns whether any rule matches on paths.
    pub fn looks_at_paths(&self) -> bool {
        let mut tests = self.clauses().flat_map(|clause| &clause.any);
        tests.any(|test| matches!(test, RequestTest::Path(_) | RequestTest::PathTemplate(_)))
    }

    /// Parses an object. Parts that cannot be read are added to `faults`; the result allows no more
    /// than the readable parts of the object do. Returns `None` if no part of the object can take
    /// effect.
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
        let known_fields = ["selector", "targetRef", "targetRefs", "rules", "action", "provider"];
        let Some(spec) = fields(spec, "spec", &known_fields, faults) else {
            return strict.then(|| closed(AuthorizationAction::Allow));
        };
        let Some(action) = read_action(spec, faults) else {
            // It is unknown whether the policy allows or denies.
            return strict.then(|| closed(AuthorizationAction::Allow));
        };
        let denies = action != AuthorizationAction::Allow;
        let selector = match PolicySelector::read(spec, Some(&name.namespace), faults) {
            Some(selector) => selector,
            None if denies => PolicySelector::All,
            // Without its selector, the policy would allow access to workloads that it may not
            // select. Only strict mode closes all of them instead.
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
            let text = "a policy with action DENY or CUSTOM needs rules; without rules it has no \
                        effect";
            if present(spec, "rules")
                .is_none_or(|rules| rules.as_array().is_some_and(Vec::is_empty))
            {
                faults.push(AccessFault::unreadable("spec.rules", text));
            }
        }
        // An unknown field of the policy itself may narrow all allow rules.
        let is_unknown = |name: &str| !known_fields.contains(&name);
        if !denies && spec.iter().any(|(name, value)| is_unknown(name) && restricts(name, value)) {
            rules.clear();
        }
        policy.rules = rules.into();
        Some(policy)
    }

    /// Returns warnings for parts that have another effect than they seem to have, independent of
    /// other policies.
    pub(super) fn warnings(&self, object: &Value) -> Vec<AccessFault> {
        let mut warnings = Vec::new();
        if is_dry_run(object).is_none() {
            let path = format!("metadata.annotations.{DRY_RUN}");
            let text = "is neither true nor false and is treated as false: the policy is enforced";
            warnings.push(AccessFault::warning(&codes::ACCESS_NO_EFFECT, path, text));
        }
        warnings.extend(without_effect(object, &self.name.namespace));
        warnings
    }
}

/// Returns whether a policy is a dry run; `None` if the annotation is not a boolean.
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
    /// Returns a rule without conditions, which matches everything.
    fn match_all(index: u32) -> Self {
        Self { index, from: Box::default(), to: Box::default(), when: Box::default() }
    }

    /// Iterates over all clauses of the rule.
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
                // Without a provider, no request can be approved.
                return Some(AuthorizationAction::Deny);
            };
            return Some(AuthorizationAction::Custom(name.into()));
        }
        _ => {
            let found = action.map_or_else(String::new, Value::to_string);
            let text = format!("{found} is not a valid action; use ALLOW, DENY, AUDIT or CUSTOM");
            faults.push(AccessFault::unreadable("spec.action", text));
            return None;
        }
    };
    if provider.is_some() {
        faults.push(AccessFault::unreadable("spec.provider", "applies only to the action CUSTOM"));
    }
    Some(action)
}

/// Parser of the rules of one policy.
struct PolicyRuleReader<'a> {
    policy: &'a AuthorizationPolicy,
    errors: PolicyErrors,
}

/// Parser of one value of a field.
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

    /// Returns the replacement of a rule that has no readable part.
    fn unreadable_rule(&self, index: u32) -> Option<AuthorizationRule> {
        let everything = AuthorizationRule::match_all(index);
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
        let mut read = AuthorizationRule::match_all(index);
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
        // Without conditions, the rule would deny everything. It keeps the readable conditions,
        // unless strict mode replaces it.
        let readable_rule = Some(readable).filter(|rule| rule.clauses().next().is_some());
        self.unreadable_rule(index).or(readable_rule)
    }

    /// Parses `from` or `to`. An alternative that cannot be read becomes empty.
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
        let known_fields: Vec<_> = table.iter().flat_map(|(name, not, _)| [*name, *not]).collect();
        let mut all = Vec::with_capacity(list.len());
        for (at, item) in (0..).zip(list) {
            let path = format!("{path}[{at}]");
            let mut clauses = Vec::new();
            let item = fields(item, &path, &[inner], faults).and_then(|item| present(item, inner));
            let path = format!("{path}.{inner}");
            match item.map(|item| fields(item, &path, &known_fields, faults)) {
                Some(Some(given)) if given.is_empty() => {
                    faults.push(AccessFault::unreadable(&path, "has no conditions"));
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

    /// Parses one field. A single invalid value drops the whole field, because without that value
    /// the field would match less or more than the object says.
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

    /// Builds a clause from tests. Returns `None` if `faults` grew since it had `before` entries.
    fn finish(
        &self,
        any: Vec<RequestTest>,
        place: ClausePlace,
        negated: bool,
        before: usize,
        faults: &mut Vec<AccessFault>,
    ) -> Option<Clause> {
        let queries_provider = matches!(self.policy.action, AuthorizationAction::Custom(_));
        if queries_provider && any.iter().any(RequestTest::is_unknown_to_providers) {
            let text = "is not known yet when the provider is queried (CUSTOM)";
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
                let text = format!("cannot be combined with {other}: both select identities");
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
        let known_fields = ["key", values, not_values];
        let Some(condition) = fields(condition, path, &known_fields, faults) else { return };
        let key = present(condition, "key").and_then(Value::as_str).unwrap_or_default();
        let Some(key) = ConditionKey::read(key) else {
            let text = format!("{key:?} is not a valid condition key");
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
    /// A key with the meaning of a field of a source or an operation.
    Field(ReadTest),
    Header(Box<str>),
    Claim(Box<[Box<str>]>),
    ServerName,
    DestinationAddress,
    Noted(Box<str>, Box<str>),
}

impl ConditionKey {
    fn read(key: &str) -> Option<Self> {
        let key_for_field = |name: &str| {
            let rows = SOURCE.iter().chain(&OPERATION);
            rows.copied().find(|(field, ..)| *field == name).map(|(.., read)| Self::Field(read))
        };
        match key {
            "source.ip" => key_for_field("ipBlocks"),
            "remote.ip" => key_for_field("remoteIpBlocks"),
            "source.namespace" => key_for_field("namespaces"),
            "source.principal" => key_for_field("principals"),
            "source.serviceAccount" => key_for_field("serviceAccounts"),
            "source.trustDomain" => key_for_field("trustDomains"),
            "request.auth.principal" => key_for_field("requestPrincipals"),
            "destination.port" => key_for_field("ports"),
            "request.auth.audiences" => Some(Self::Claim(["aud".into()].into())),
            "request.auth.presenter" => Some(Self::Claim(["azp".into()].into())),
            "destination.ip" => Some(Self::DestinationAddress),
            "connection.sni" => Some(Self::ServerName),
            _ => {
                if let Some(path) = key.strip_prefix("request.headers") {
                    let [name] = &brackets(path)?[..] else { return None };
                    let name = name.to_ascii_lowercase();
                    return match &*name {
                        // Proxies store the host in `:authority`, whichever of the two names the
                        // client used.
                        "host" | ":authority" => key_for_field("hosts"),
                        ":method" => key_for_field("methods"),
                        ":path" => key_for_field("paths"),
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

/// Parses the names in `[a][b]`. Returns `None` if there is no name or an empty one.
fn brackets(text: &str) -> Option<Vec<Box<str>>> {
    let inner = text.strip_prefix('[')?.strip_suffix(']')?;
    let names: Vec<_> = inner.split("][").map(Box::from).collect();
    let is_name = |name: &str| !name.is_empty() && !name.contains(['[', ']']);
    names.iter().all(|name| is_name(name)).then_some(names)
}
