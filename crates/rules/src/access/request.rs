//! RequestAuthentication: the tokens that a workload accepts.
//!
//! It never requires a token: an AuthorizationPolicy on `requestPrincipals` does.
//!
//! A rule that cannot be read fails closed: it stays active without keys, so its tokens are
//! refused. If an unknown field of the rule restricts access, requests without a token are refused
//! as well.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value};

use super::fields::{items, lenient_fields, present, texts};
use super::object::{AccessFault, PolicyKind, PolicyName, created};
use super::selector::{PolicySelector, without_effect};
use strait_base::codes;
use strait_base::verifying_keys::verifying_keys;
use strait_model::fetched_keys::{FetchedKeys, KeyPlace, KeySource, KeyState};
use strait_model::mesh_config::parse_duration;
use strait_model::{WorkloadKey, is_header_name};

/// A parsed RequestAuthentication.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestAuthentication {
    /// Namespace and name of the object.
    pub name: WorkloadKey,
    /// Creation time in seconds since the Unix epoch; 0 if unknown.
    pub created: i64,
    /// Selector of the workloads that the policy applies to.
    pub selector: PolicySelector,
    /// Rules for tokens, one for each issuer.
    pub rules: Vec<TokenRule>,
}

/// A rule for the tokens of one issuer.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct TokenRule {
    /// Value of `iss`; empty accepts any issuer.
    pub issuer: String,
    /// Accepted values of `aud`. Empty accepts any audience.
    pub audiences: Vec<String>,
    /// The keys, as a JSON Web Key Set; `None` if they must be fetched and are not known yet.
    pub keys: Option<Arc<str>>,
    /// Location of the keys, if the rule does not contain them.
    pub source: Option<KeySource>,
    /// Headers that contain the token, each with the prefix before the token.
    pub from_headers: Vec<(String, String)>,
    /// Query parameters that contain the token.
    pub from_params: Vec<String>,
    /// Cookies that contain the token.
    pub from_cookies: Vec<String>,
    /// Whether the original token is forwarded to the workload.
    pub forward: bool,
    /// Header in which the payload of the token is sent to the workload.
    pub payload_header: Option<String>,
    /// Headers in which single claims are sent to the workload, each with the claim.
    pub claim_headers: Vec<(String, String)>,
    /// Claims, in addition to `scope` and `permission`, that are lists in one string, separated by
    /// spaces.
    pub space_delimited: Vec<String>,
    /// Whether requests without a token are refused, because an unknown field of the rule may
    /// require one.
    pub requires_token: bool,
}

/// Claims that are always lists in one string, separated by spaces (RFC 8693, section 4.2; Istio).
const ALWAYS_LISTS: [&str; 2] = ["permission", "scope"];

/// Maximum number of rules of one object whose keys are read.
const RULES_MAX: usize = 256;
/// Maximum size in bytes of all inline keys (`jwks`) of one object. Parsing them takes time, and
/// all other changes wait.
const GIVEN_BYTES_MAX: usize = 256 * 1024;
/// Maximum length in bytes of the location of keys.
const PLACE_BYTES_MAX: usize = 2048;

/// Default timeout for fetching keys (Istio's default), followed by its minimum and maximum.
const FETCH_TIMEOUT: Duration = Duration::from_secs(5);
const FETCH_LEAST: Duration = Duration::from_millis(1);
const FETCH_MOST: Duration = Duration::from_secs(60);

const KNOWN: [&str; 13] = [
    "issuer",
    "audiences",
    "jwksUri",
    "jwks_uri",
    "jwks",
    "fromHeaders",
    "fromParams",
    "fromCookies",
    "outputPayloadToHeader",
    "outputClaimToHeaders",
    "forwardOriginalToken",
    "timeout",
    "spaceDelimitedClaims",
];

impl RequestAuthentication {
    /// Parses an object. A rule that cannot be read refuses its tokens. A selector that cannot be
    /// read selects all workloads of the namespace, like that of a policy that denies.
    pub(super) fn read(
        name: &WorkloadKey,
        object: &Value,
        faults: &mut Vec<AccessFault>,
    ) -> Option<Self> {
        let empty = Value::Object(Map::new());
        let spec = object.get("spec").filter(|spec| !spec.is_null()).unwrap_or(&empty);
        let known_fields = ["selector", "targetRef", "targetRefs", "jwtRules"];
        let (spec, has_restricting) = lenient_fields(spec, "spec", &known_fields, faults)?;
        let selector = PolicySelector::read(spec, Some(&name.namespace), faults);
        let mut rules = match present(spec, "jwtRules") {
            None => Vec::new(),
            Some(Value::Array(given)) => read_rules(given, faults),
            Some(given) => {
                let text = format!("expected a list, found {given}");
                faults.push(AccessFault::unreadable("spec.jwtRules", text));
                vec![TokenRule::default()]
            }
        };
        if has_restricting {
            if rules.is_empty() {
                rules.push(TokenRule::default());
            }
            rules.iter_mut().for_each(|rule| rule.close(true));
        }
        let selector = selector.unwrap_or(PolicySelector::All);
        Some(Self { name: name.clone(), created: created(object), selector, rules })
    }

    /// Returns warnings for parts that have another effect than they seem to have.
    pub(super) fn warnings(&self, object: &Value) -> Vec<AccessFault> {
        without_effect(object, &self.name.namespace)
    }

    /// Returns the policy with the keys that have been fetched.
    pub(super) fn with_keys(self: &Arc<Self>, fetched: &FetchedKeys) -> Arc<Self> {
        if self.rules.iter().all(|rule| rule.source.is_none()) {
            return Arc::clone(self);
        }
        let mut policy = (**self).clone();
        for rule in &mut policy.rules {
            if let Some(source) = &rule.source {
                rule.keys = fetched.get(&source.place).and_then(|state| state.keys.clone());
            }
        }
        Arc::new(policy)
    }

    /// Returns warnings for keys that could not be fetched.
    pub(super) fn key_warnings(&self, fetched: &FetchedKeys) -> Vec<AccessFault> {
        let nothing = KeyState::default();
        let warning = |(at, rule): (usize, &TokenRule)| {
            let place = &rule.source.as_ref()?.place;
            let state = fetched.get(place).unwrap_or(&nothing);
            let (code, text) = match (&state.keys, &state.trouble) {
                (Some(_), None) => return None,
                (Some(_), Some(fact)) => (
                    &codes::ACCESS_KEYS_FETCH,
                    format!("{place}: {fact}; the last valid keys stay active"),
                ),
                (None, Some(fact)) => (
                    &codes::ACCESS_KEYS,
                    format!(
                        "{place}: {fact}; tokens of this rule are refused until there are keys"
                    ),
                ),
                (None, None) => (
                    &codes::ACCESS_KEYS,
                    format!("{place}: not fetched yet; tokens of this rule are refused until then"),
                ),
            };
            let field = match place {
                KeyPlace::Uri(_) => "jwksUri",
                KeyPlace::Issuer(_) => "issuer",
            };
            let path = format!("spec.jwtRules[{at}].{field}");
            Some(AccessFault::warning(code, path, text))
        };
        self.rules.iter().enumerate().filter_map(warning).collect()
    }

    /// Returns the kind and name of the policy.
    pub fn policy_name(&self) -> PolicyName {
        PolicyName { kind: PolicyKind::Request, object: self.name.clone() }
    }
}

impl TokenRule {
    /// Makes the rule refuse all its tokens, and requests without a token if `requires_token`.
    fn close(&mut self, requires_token: bool) {
        self.keys = None;
        self.source = None;
        // The issuer is sent to proxies.
        if self.issuer.len() > PLACE_BYTES_MAX {
            self.issuer.clear();
        }
        self.requires_token |= requires_token;
    }

    /// Returns the claims that are lists in one string, separated by spaces; sorted, without
    /// duplicates.
    pub fn lists_in_text(&self) -> Vec<String> {
        let always = ALWAYS_LISTS.into_iter().map(str::to_owned);
        let all: BTreeSet<String> = always.chain(self.space_delimited.iter().cloned()).collect();
        all.into_iter().collect()
    }
}

/// Parses the rules. A rule beyond the limits on rules or key bytes refuses every token at its
/// location.
fn read_rules(given: &[Value], faults: &mut Vec<AccessFault>) -> Vec<TokenRule> {
    let mut remaining_bytes = GIVEN_BYTES_MAX;
    let mut rules = Vec::new();
    let mut refusing = 0_usize;
    for (at, rule) in given.iter().enumerate() {
        let bytes = rule.get("jwks").and_then(Value::as_str).map_or(0, str::len);
        let is_within = at < RULES_MAX && bytes <= remaining_bytes;
        if is_within {
            remaining_bytes -= bytes;
        } else {
            refusing += 1;
        }
        rules.push(read_rule(rule, is_within, &format!("spec.jwtRules[{at}]"), faults));
    }
    if refusing > 0 {
        let text = format!(
            "at most {RULES_MAX} rules and {GIVEN_BYTES_MAX} bytes of jwks are read: tokens of \
             {refusing} further rules are refused. Distribute the rules over policies for \
             different workloads"
        );
        faults.push(AccessFault::unreadable("spec.jwtRules", text));
    }
    rules
}

/// Parses a rule, without keys if `with_keys` is false. A rule that cannot be read has no keys
/// either.
fn read_rule(
    rule: &Value,
    with_keys: bool,
    path: &str,
    faults: &mut Vec<AccessFault>,
) -> TokenRule {
    let before = faults.len();
    let Some((given, has_restricting)) = lenient_fields(rule, path, &KNOWN, faults) else {
        return TokenRule::default();
    };
    let mut reader = RuleFields { given, path, faults, has_restricting };
    let issuer = reader.text("issuer").unwrap_or_default();
    let uri = reader.text("jwksUri").or_else(|| reader.text("jwks_uri"));
    let keys = reader.text("jwks").filter(|_| with_keys).map(|keys| verifying_keys(&keys));
    if with_keys && issuer.is_empty() && uri.is_none() && keys.is_none() {
        reader.fault("issuer", "a rule needs an issuer or keys");
    }
    if let Some(Err(fact)) = &keys {
        reader.fault("jwks", fact);
    }
    let place = match (&keys, uri) {
        (Some(_), _) => None,
        _ if !with_keys => None,
        (None, Some(uri)) => {
            if uri.len() > PLACE_BYTES_MAX {
                reader.fault("jwksUri", &format!("has more than {PLACE_BYTES_MAX} bytes"));
            }
            if !["https://", "http://"].into_iter().any(|scheme| uri.starts_with(scheme)) {
                reader.fault("jwksUri", "begins with neither http:// nor https://");
            }
            Some(KeyPlace::Uri(uri.into()))
        }
        (None, None) => {
            if issuer.len() > PLACE_BYTES_MAX {
                reader.fault("issuer", &format!("has more than {PLACE_BYTES_MAX} bytes"));
            }
            Some(KeyPlace::Issuer(issuer.as_str().into()))
        }
    };
    let timeout = reader.timeout();
    let mut read = TokenRule {
        issuer,
        source: place.map(|place| KeySource { place, timeout }),
        audiences: reader.texts("audiences"),
        keys: keys.and_then(Result::ok).map(Arc::from),
        from_headers: reader.headers(),
        from_params: reader.texts("fromParams"),
        from_cookies: reader.texts("fromCookies"),
        forward: reader.flag("forwardOriginalToken"),
        payload_header: reader.header_name("outputPayloadToHeader"),
        claim_headers: reader.claims(),
        space_delimited: reader.texts("spaceDelimitedClaims"),
        requires_token: reader.has_restricting,
    };
    if faults[before..].iter().any(AccessFault::is_unreadable) {
        read.close(false);
    }
    read
}

/// Parser for the fields of one rule.
struct RuleFields<'a, 'f> {
    given: &'a Map<String, Value>,
    path: &'a str,
    faults: &'f mut Vec<AccessFault>,
    /// Whether an unknown field restricts access.
    has_restricting: bool,
}

impl RuleFields<'_, '_> {
    fn fault(&mut self, field: &str, text: &str) {
        self.faults.push(AccessFault::unreadable(format!("{}.{field}", self.path), text));
    }

    fn text(&mut self, field: &str) -> Option<String> {
        let text = match present(self.given, field)? {
            Value::String(text) if text.is_empty() => return None,
            Value::String(text) => Some(text.clone()),
            _ => None,
        };
        if text.is_none() {
            self.fault(field, "expected text");
        }
        text
    }

    fn timeout(&mut self) -> Duration {
        match self.text("timeout").as_deref().map(parse_duration) {
            None => FETCH_TIMEOUT,
            Some(Ok(timeout)) if (FETCH_LEAST..=FETCH_MOST).contains(&timeout) => timeout,
            Some(Ok(_)) => {
                self.fault("timeout", "expected 1ms to 60s");
                FETCH_TIMEOUT
            }
            Some(Err(fact)) => {
                self.fault("timeout", &fact);
                FETCH_TIMEOUT
            }
        }
    }

    fn flag(&mut self, field: &str) -> bool {
        match present(self.given, field) {
            None => false,
            Some(Value::Bool(flag)) => *flag,
            Some(_) => {
                self.fault(field, "expected true or false");
                false
            }
        }
    }

    fn texts(&mut self, field: &str) -> Vec<String> {
        let path = format!("{}.{field}", self.path);
        match present(self.given, field).map(|list| texts(list, &path)) {
            None => Vec::new(),
            Some(Ok(list)) => list.into_iter().map(str::to_owned).collect(),
            Some(Err(fault)) => {
                self.faults.push(fault);
                Vec::new()
            }
        }
    }

    fn header_name(&mut self, field: &str) -> Option<String> {
        let name = self.text(field)?;
        if !is_header_name(&name) {
            // Envoy rejects the whole listener for an invalid name.
            self.fault(field, "is not a valid header name");
            return None;
        }
        Some(name)
    }

    fn objects(&mut self, field: &str, known_fields: &[&str]) -> Vec<Map<String, Value>> {
        let path = format!("{}.{field}", self.path);
        let Some(list) = present(self.given, field) else { return Vec::new() };
        match items(list, &path) {
            Ok(list) => {
                let mut all = Vec::with_capacity(list.len());
                for (at, item) in list.iter().enumerate() {
                    let path = format!("{path}[{at}]");
                    let Some((item, has_restricting)) =
                        lenient_fields(item, &path, known_fields, self.faults)
                    else {
                        continue;
                    };
                    self.has_restricting |= has_restricting;
                    all.push(item.clone());
                }
                all
            }
            Err(fault) => {
                self.faults.push(fault);
                Vec::new()
            }
        }
    }

    fn pairs(
        &mut self,
        field: &str,
        [name, value]: [&str; 2],
        needs_value: bool,
    ) -> Vec<(String, String)> {
        let string_field = |object: &Map<String, Value>, field: &str| match present(object, field) {
            None => Some(String::new()),
            Some(value) => value.as_str().map(str::to_owned),
        };
        // Proxies reject the whole listener for characters that are invalid in a header.
        let is_valid_in_header = |value: &str| !value.contains(['\0', '\n', '\r']);
        let mut pairs = Vec::new();
        for pair in self.objects(field, &[name, value]) {
            match string_field(&pair, name).zip(string_field(&pair, value)) {
                Some((name, value))
                    if is_header_name(&name)
                        && is_valid_in_header(&value)
                        && !(needs_value && value.is_empty()) =>
                {
                    pairs.push((name, value));
                }
                _ => self.fault(field, "each entry needs a valid header name and a valid value"),
            }
        }
        pairs
    }

    fn headers(&mut self) -> Vec<(String, String)> {
        self.pairs("fromHeaders", ["name", "prefix"], false)
    }

    fn claims(&mut self) -> Vec<(String, String)> {
        self.pairs("outputClaimToHeaders", ["header", "claim"], true)
    }
}
