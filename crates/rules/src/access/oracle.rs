//! Compares the active policies with an independent evaluator, for random policies of the tests and
//! for inputs of a fuzzer.

#[path = "../../../../tests/access/evaluator.rs"]
pub(crate) mod evaluator;
#[path = "../../../../tests/access/generator.rs"]
pub(crate) mod generator;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::sync::Arc;

use rand::Rng;
use serde_json::{Map, Value, json};

use self::evaluator::{Call, Outcome, Server, Token, outcome, queried_providers};
use self::generator::{
    ISSUERS, PROVIDERS, asking_for_tokens, random_asking_policy, random_call, random_modes,
    random_policy, random_token_rules, random_tokens,
};
use super::{
    AccessIndex, AccessPolicies, AccessRequest, AccessSettings, AccessSubject, AccessVerdict,
    PeerMode, PolicyErrors, ProviderReach, ReachableProviders, TOKEN_FILTER, TokenRule,
    TrustBundle, WireForm, decide, enforced, token_key,
};
use strait_model::{Labels, Namespace};

/// The root namespace.
pub(super) const ROOT: &str = "istio-system";
/// Ports of generated calls.
pub(super) const PORTS: &[&str] = &["8080", "5432"];
/// Trust domains of the mesh. The first is the current one, the others are aliases.
const DOMAINS: [&str; 2] = ["mesh.example", "old.example"];

/// The workload that receives the calls.
const SERVER: Server<'static> = Server {
    namespace: "shop",
    labels: &[("app", "web")],
    root: ROOT,
    domains: &DOMAINS,
    providers: &PROVIDERS,
};

/// Fuzz target: generates policies and calls from the input bytes, and checks that the active
/// policies and the oracle agree about each call.
pub(crate) fn fuzz(random: &mut impl Rng) {
    let count = random.random_range(1..5);
    let mut objects: Vec<Value> =
        (0..count).map(|at| random_authorization(random, &format!("p{at}"))).collect();
    objects.extend(random_token_rules(random, issuer_keys));
    objects.extend(random_modes(random, PORTS));
    let settings = AccessSettings { root: ROOT.into(), errors: PolicyErrors::Narrow };
    let mut index = AccessIndex::new(settings.clone());
    index.apply(&settings, &objects.iter().cloned().map(Arc::new).collect());
    for at in 0..8 {
        let call = random_call_with_tokens(random);
        compare(format_args!("call {at}"), &objects, &index.policies(), &call);
    }
}

/// Outcome of a call, the queried providers, and the reason for test output.
#[derive(Debug)]
pub(super) struct Judgement {
    pub(super) outcome: Outcome,
    queried_providers: BTreeSet<String>,
    why: String,
}

/// Compares the verdict of the oracle, which reads the objects, with that of the policies parsed
/// from them.
///
/// # Panics
/// The verdicts differ.
pub(super) fn compare(
    case: impl Display,
    objects: &[Value],
    policies: &AccessPolicies,
    call: &Call,
) -> Outcome {
    let found = judged(policies, call);
    let expected = (outcome(objects, &SERVER, call), queried_providers(objects, &SERVER, call));
    // A closed connection reaches no provider.
    let is_closed = expected.0 == Outcome::Closed;
    let queried = found.queried_providers.iter().map(String::as_str);
    assert_eq!(
        (found.outcome, queried.filter(|_| !is_closed).collect::<BTreeSet<_>>()),
        (expected.0, expected.1.into_iter().filter(|_| !is_closed).collect::<BTreeSet<_>>()),
        "{case}: {call:?}\n{}\n{:#}",
        found.why,
        json!(objects)
    );
    found.outcome
}

/// Returns the verdict of the active policies about a call.
fn judged(policies: &AccessPolicies, call: &Call) -> Judgement {
    let labels: Labels =
        SERVER.labels.iter().map(|(key, value)| (Arc::from(*key), Arc::from(*value))).collect();
    let namespace = Namespace::from(SERVER.namespace);
    let access =
        policies.of(AccessSubject { namespace: &namespace, labels: &labels, is_known: true });
    let mode = access.modes.of_port(call.port).mode;
    let form = if call.is_http { WireForm::Http } else { WireForm::Tcp };
    let reach = |is_everything| match is_everything {
        true => ProviderReach::Everything,
        false => ProviderReach::Requests,
    };
    let providers: ReachableProviders = PROVIDERS
        .iter()
        .map(|(name, connections)| (Arc::from(*name), reach(*connections)))
        .collect();
    let trust = TrustBundle::new(DOMAINS.into_iter());
    let rules: Vec<_> = access.token_rules().into_iter().map(|rule| rule.into_owned()).collect();
    let tokens = if call.is_http { verified(&rules, &call.tokens) } else { Some(Map::new()) };
    let noted = tokens.clone().unwrap_or_default();
    let request = AccessRequest {
        noted: BTreeMap::from([(TOKEN_FILTER.to_owned(), noted.into())]),
        ..as_request(call)
    };
    let decision = decide(&enforced(&access, form, &trust, &providers), &request);
    let outcome = match (mode, &call.identity, tokens, decision.verdict) {
        (PeerMode::Strict, None, ..) | (PeerMode::Disable, Some(_), ..) => Outcome::Closed,
        (_, _, None, _) => Outcome::Unauthorized,
        (.., AccessVerdict::Allow) => Outcome::Passes,
        (.., AccessVerdict::Deny) => Outcome::Denied,
    };
    let queried_providers =
        decision.queried_providers.iter().map(|(name, _)| name.to_string()).collect();
    Judgement { outcome, queried_providers, why: format!("{mode:?}, {decision:?}") }
}

/// Returns the metadata that Envoy's filter sets for tokens in headers, by the key of the rule that
/// accepts each token. `None` if a token is accepted by none of the rules for its location.
fn verified(rules: &[TokenRule], tokens: &[Token]) -> Option<Map<String, Value>> {
    let looks_there = |rule: &TokenRule, token: &Token| match &rule.from_headers[..] {
        [] => token.place == "authorization",
        given => given.iter().any(|(name, _)| name.eq_ignore_ascii_case(&token.place)),
    };
    let has_signed = |rule: &TokenRule, token: &Token| {
        let id = json!({ "kid": token.signer }).to_string();
        rule.keys.as_deref().is_some_and(|keys| keys.contains(id.trim_matches(['{', '}'])))
    };
    let mut noted = Map::new();
    for token in tokens {
        let mut looking =
            rules.iter().enumerate().filter(|(_, rule)| looks_there(rule, token)).peekable();
        if looking.peek().is_none() {
            continue;
        }
        let (place, _) = looking.find(|(_, rule)| {
            rule.issuer == token.issuer && has_signed(rule, token) && !token.has_ended
        })?;
        let mut claims = json!({ "iss": token.issuer, "sub": token.subject });
        if !token.groups.is_empty() {
            claims["groups"] = json!(token.groups);
        }
        noted.insert(token_key(place, rules.len()), claims);
    }
    Some(noted)
}

/// Converts a call to a request as a proxy sees it. Repeated headers are joined.
fn as_request(call: &Call) -> AccessRequest {
    let identity = call.identity.as_ref();
    let mut request = AccessRequest {
        identity: identity.map(|(domain, namespace, account)| {
            format!("spiffe://{domain}/ns/{namespace}/sa/{account}")
        }),
        peer: Some(call.from),
        client: Some(call.client),
        port: Some(call.port),
        destination: Some(call.address),
        server_name: Some(call.sni.clone()),
        ..AccessRequest::default()
    };
    if call.is_http {
        request.path = Some(call.path.clone());
        request.headers.insert(":authority".into(), call.host.clone());
        request.headers.insert(":method".into(), call.method.clone());
        let roles: Vec<_> = call.headers.iter().map(|(_, value)| value.as_str()).collect();
        if !roles.is_empty() {
            request.headers.insert("x-role".into(), roles.join(","));
        }
    }
    request
}

/// Returns an AuthorizationPolicy with a random action. Some of them require tokens.
pub(super) fn random_authorization(random: &mut impl Rng, name: &str) -> Value {
    match random.random_range(0..10) {
        0..2 => random_asking_policy(random, name),
        2..5 => {
            let policy = random_policy(random, name);
            asking_for_tokens(random, policy)
        }
        _ => random_policy(random, name),
    }
}

/// Returns a random call, with tokens if it is an HTTP request.
pub(super) fn random_call_with_tokens(random: &mut impl Rng) -> Call {
    let mut call = random_call(random);
    if call.is_http {
        call.tokens = random_tokens(random);
    }
    call
}

/// Returns the keys of an issuer: points on P-256, from RFC 7517 A.1 and the curve's base point.
pub(super) fn issuer_keys(issuer: &str) -> String {
    let [x, y] = if issuer == ISSUERS[0] {
        [
            "MKBCTNIcKUSDii11ySs3526iDZ8AiTo7Tu6KPAqv7D4",
            "4Etl6SRW2YiLUrN5vfvVHuhp7x8PxltmWWlbbM4IFyM",
        ]
    } else {
        [
            "axfR8uEsQkf4vOblY6RA8ncDfYEt6zOg9KE5RdiYwpY",
            "T-NC4v4af5uO5-tKfA-eFivOM1drMV7Oy7ZAaDe_UfU",
        ]
    };
    let key = json!({ "kty": "EC", "crv": "P-256", "alg": "ES256", "kid": issuer, "x": x, "y": y });
    json!({ "keys": [key] }).to_string()
}
