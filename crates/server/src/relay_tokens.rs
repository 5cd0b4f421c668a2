//! Tokens with which relays enrol without an invitation. Pure.
//!
//! The policy file names the issuer and the account for each member (`clusters.ID.relay`). It contains
//! the issuer's keys, or the issuer in the file publishes them: nothing is requested from an address
//! in a token.

use std::collections::BTreeMap;
use std::time::SystemTime;

use strait_base::codes;
use strait_identity::token::{IssuerKeys, SignedToken, TokenFlaw, claimed_issuer};
use strait_model::ClusterId;
use strait_model::fetched_keys::{FetchedKeys, KeyPlace};
use strait_model::policy::{Policy, RelayTrust};
use strait_relay::hub::{EnrolmentRefusal, RelayedMember};

/// The keys of the issuers that the policy trusts.
pub(super) struct TrustedKeys<'a> {
    pub(super) policy: &'a Policy,
    /// The keys of issuers whose keys the policy does not contain.
    pub(super) published: &'a FetchedKeys,
    /// Is called with the location of published keys if a token names a key that they lack.
    pub(super) on_unknown_key: &'a dyn Fn(&KeyPlace),
}

/// Returns the member whose relay presents this token; `None` if it is not a signed token, so that it may
/// be an invitation.
///
/// # Errors
/// With status 401 if the policy does not accept the token, 503 if it could accept the token but the
/// issuer's keys are not known, and 403 if the accepted cluster is not a relayed member.
pub(super) fn trusted<'a>(
    members: &'a BTreeMap<ClusterId, RelayedMember>,
    keys: &TrustedKeys<'_>,
    token: &str,
    now: SystemTime,
) -> Result<Option<(&'a ClusterId, &'a RelayedMember)>, EnrolmentRefusal> {
    let TrustedKeys { policy, published, on_unknown_key } = keys;
    let token = token.trim();
    let Some(issuer) = claimed_issuer(token) else { return Ok(None) };
    let unaccepted = |fact: String| EnrolmentRefusal::new(401, &codes::RELAY_INVITATION, fact);
    let mut reason =
        "no clusters.ID.relay of the policy file names the issuer of the token".to_owned();
    let mut unknown_keys = None;
    // Clusters often have issuers and accounts of the same name; then the key decides.
    for (cluster, trust) in policy.relay_trusts().filter(|(_, trust)| trust.issuer == issuer) {
        let found = || published.get(&trust.key_place())?.keys.clone();
        let Some(keys) = trust.keys.clone().or_else(found) else {
            let fact = format!("clusters.{cluster}.relay: the hub has no keys of {issuer} yet");
            unknown_keys = Some(EnrolmentRefusal::new(503, &codes::RELAY_ISSUER_KEYS, fact));
            continue;
        };
        match verify(token, trust, &keys, now) {
            Err(flaw) => {
                let is_unknown = matches!(flaw, RelayTokenFlaw::Token(TokenFlaw::UnknownKey(_)));
                if is_unknown && trust.keys.is_none() {
                    // The issuer may have a new key.
                    on_unknown_key(&trust.key_place());
                }
                reason = format!("clusters.{cluster}.relay: the token is not accepted: {flaw}");
            }
            Ok(()) => {
                let member = members.get_key_value(cluster).ok_or_else(|| {
                    let fact = format!("no Secret makes {cluster} a relayed member");
                    EnrolmentRefusal::new(403, &codes::RELAY_CERTIFICATE, fact)
                })?;
                return Ok(Some(member));
            }
        }
    }
    Err(unknown_keys.unwrap_or_else(|| unaccepted(reason)))
}

/// Why a token is not accepted.
#[derive(Debug, thiserror::Error)]
enum RelayTokenFlaw {
    #[error(transparent)]
    Token(#[from] TokenFlaw),
    #[error("{0}")]
    Other(String),
}

/// Checks that a token is valid, and of the account that is trusted.
fn verify(
    token: &str,
    trust: &RelayTrust,
    keys: &str,
    now: SystemTime,
) -> Result<(), RelayTokenFlaw> {
    let keys = IssuerKeys::parse(&trust.issuer, keys.as_bytes());
    let keys = keys.map_err(|error| RelayTokenFlaw::Other(format!("keys: {error}")))?;
    let signed = SignedToken::read(token)?;
    let claims = signed.verify(&keys)?;
    let subject = format!("system:serviceaccount:{}:{}", claims.namespace, claims.service_account);
    if subject != trust.subject {
        let fact = format!("its subject is {subject}, not {}", trust.subject);
        return Err(RelayTokenFlaw::Other(fact));
    }
    Ok(signed.check(std::slice::from_ref(&trust.audience), now)?)
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::time::Duration;

    use serde_json::{Value, json};

    use super::*;
    use strait_identity::token_signer::Signer;
    use strait_model::fetched_keys::KeyState;

    const ISSUER: &str = "https://kubernetes.default.svc.cluster.local";

    fn member() -> RelayedMember {
        RelayedMember {
            secret: ("strait-system".into(), "strait-member".into()),
            generation: 1,
            generation_from: None,
            uid: None,
            invitation: None,
        }
    }

    fn policy(clusters: &[(&str, &Signer)]) -> Policy {
        let cluster = |(id, signer): &(&str, &Signer)| {
            let keys: Value = serde_json::from_str(&signer.keys().to_key_set()).expect("JSON");
            let mut relay = relay();
            relay["keys"] = keys;
            ((*id).to_owned(), json!({ "relay": relay }))
        };
        parse(clusters.iter().map(cluster).collect())
    }

    /// Returns the keys that a policy contains.
    fn only_in(policy: &Policy) -> TrustedKeys<'_> {
        static NONE: FetchedKeys = FetchedKeys::new();
        TrustedKeys { policy, published: &NONE, on_unknown_key: &|_| {} }
    }

    fn relay() -> Value {
        json!({
            "issuer": ISSUER, "subject": "system:serviceaccount:strait-system:strait-relay",
            "audience": "strait-hub",
        })
    }

    fn parse(clusters: serde_json::Map<String, Value>) -> Policy {
        let file = json!({ "apiVersion": "strait.dev/v1", "kind": "Policy", "clusters": clusters });
        Policy::parse(&file.to_string()).expect("a valid policy")
    }

    fn claims(signer: &Signer, now: SystemTime) -> Value {
        let mut claims = signer.claims(now);
        claims["sub"] = json!("system:serviceaccount:strait-system:strait-relay");
        claims["aud"] = json!(["strait-hub"]);
        claims["kubernetes.io"]["namespace"] = json!("strait-system");
        claims["kubernetes.io"]["serviceaccount"]["name"] = json!("strait-relay");
        claims
    }

    #[test]
    fn key_of_the_token_decides_the_member() {
        let now = SystemTime::now();
        let [east, west, other] = [(); 3].map(|()| Signer::new(ISSUER, "k"));
        let policy = policy(&[("east", &east), ("west", &west)]);
        let members = BTreeMap::from([("west".into(), member())]);
        let found = |token: &str| {
            let found = trusted(&members, &only_in(&policy), token, now);
            found.map(|found| found.map(|(id, _)| id.to_string())).map_err(|refusal| refusal.status)
        };
        assert_eq!(found(&west.sign(&claims(&west, now))), Ok(Some("west".to_owned())));
        assert_eq!(found(&east.sign(&claims(&east, now))), Err(403), "it is no relayed member");
        assert_eq!(found(&other.sign(&claims(&other, now))), Err(401));
        assert_eq!(found("an-invitation"), Ok(None));
        assert_eq!(found(""), Ok(None));
    }

    #[test]
    fn published_keys_verify_a_token_once_they_are_known() {
        let now = SystemTime::now();
        let [west, other] = [(); 2].map(|()| Signer::new(ISSUER, "k"));
        let requested = RefCell::new(Vec::new());
        let on_unknown_key = |place: &KeyPlace| requested.borrow_mut().push(place.clone());
        let policy =
            parse([("west".to_owned(), json!({ "relay": relay() }))].into_iter().collect());
        let members = BTreeMap::from([("west".into(), member())]);
        let place = KeyPlace::Issuer(ISSUER.into());
        let fetched = |keys: Option<String>, trouble: Option<&str>| {
            let state =
                KeyState { keys: keys.map(Into::into), trouble: trouble.map(str::to_owned) };
            FetchedKeys::from([(place.clone(), state)])
        };
        let known = fetched(Some(west.keys().to_key_set()), Some("status 500"));
        let status = |published: &FetchedKeys, signer: &Signer| {
            let keys = TrustedKeys { policy: &policy, published, on_unknown_key: &on_unknown_key };
            let found = trusted(&members, &keys, &signer.sign(&claims(signer, now)), now);
            found
                .map(|found| found.map(|(id, _)| id.to_string()))
                .map_err(|one| (one.status, one.code.id))
        };
        assert_eq!(status(&known, &west), Ok(Some("west".to_owned())), "the last valid keys");
        assert_eq!(status(&known, &other), Err((401, "STR0343")));
        assert_eq!(*requested.borrow(), [], "its key has a known ID");
        let rotated = Signer::new(ISSUER, "k2");
        assert_eq!(status(&known, &rotated), Err((401, "STR0343")));
        let unknown = Err((503, "STR0352"));
        assert_eq!(status(&FetchedKeys::new(), &west), unknown);
        assert_eq!(status(&fetched(None, Some("status 500")), &west), unknown);
        assert_eq!(requested.take(), [place], "the rotated key");
    }

    #[test]
    fn token_of_another_account_audience_or_time_is_refused_without_its_text() {
        let now = SystemTime::now();
        let west = Signer::new(ISSUER, "k");
        let policy = policy(&[("west", &west)]);
        let members = BTreeMap::from([("west".into(), member())]);
        let changed = |change: &dyn Fn(&mut Value)| {
            let mut claims = claims(&west, now);
            change(&mut claims);
            west.sign(&claims)
        };
        let account = changed(&|claims| {
            claims["sub"] = json!("system:serviceaccount:strait-system:other");
            claims["kubernetes.io"]["serviceaccount"]["name"] = json!("other");
        });
        for (token, at, fact) in [
            (account, now, "its subject is system:serviceaccount:strait-system:other"),
            (changed(&|claims| claims["aud"] = json!(["istio-ca"])), now, "audience"),
            (changed(&|claims| claims["iss"] = json!("https://a.test")), now, "names the issuer"),
            (changed(&|_| {}), now + Duration::from_secs(7200), "expired"),
        ] {
            let refusal = trusted(&members, &only_in(&policy), &token, at);
            let refusal = refusal.expect_err(fact);
            assert_eq!(refusal.status, 401);
            assert!(refusal.fact.contains(fact) && !refusal.fact.contains(&token), "{refusal:?}");
        }
    }
}
