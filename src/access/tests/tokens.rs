//! Which tokens are believed.

use super::*;

fn believes(spec: Value) -> Value {
    object("RequestAuthentication", "shop", "tokens", spec)
}

fn keys() -> String {
    // The key of RFC 7517, A.1.
    json!({ "keys": [{ "kty": "EC", "crv": "P-256", "x": "MKBCTNIcKUSDii11ySs3526iDZ8AiTo7Tu6KPAqv7D4",
        "y": "4Etl6SRW2YiLUrN5vfvVHuhp7x8PxltmWWlbbM4IFyM" }] })
    .to_string()
}

fn rules(policies: &AccessPolicies) -> Vec<TokenRule> {
    let labels = labels(&[("app", "web")]);
    let subject = AccessSubject { namespace: &"shop".into(), labels: &labels, is_known: true };
    policies.of(subject).token_rules().into_iter().cloned().collect()
}

#[test]
fn rules_of_all_policies_are_united_by_issuer_and_each_is_there_once() {
    let rule = |issuer: &str| json!({ "issuer": issuer, "jwks": keys() });
    let own = believes(json!({ "jwtRules": [rule("https://b"), rule("https://a")] }));
    let of_mesh =
        object("RequestAuthentication", ROOT, "mesh", json!({ "jwtRules": [rule("https://a")] }));
    let spec =
        json!({ "selector": { "matchLabels": { "app": "db" } }, "jwtRules": [rule("https://c")] });
    let others = object("RequestAuthentication", "shop", "db", spec);
    let found = rules(&index().hold([own, of_mesh, others]));
    let issuers: Vec<_> = found.iter().map(|rule| rule.issuer.as_str()).collect();
    assert_eq!(issuers, ["https://a", "https://b"]);
}

/// F-19: of several issuers each token has claims of its own.
#[test]
fn each_of_several_rules_has_a_key_of_its_own() {
    assert_eq!(token_key(0, 1), "payload");
    let policy = policy(
        "allow",
        json!({
            "rules": [{ "from": [{ "source": { "requestPrincipals": ["https://a/alice"] } }] }],
        }),
    );
    let rule = |issuer: &str| json!({ "issuer": issuer, "jwks": keys() });
    let tokens = believes(json!({ "jwtRules": [rule("https://a"), rule("https://b")] }));
    let policies = index().hold([policy, tokens]);
    let labels = labels(&[]);
    let subject = AccessSubject { namespace: &"shop".into(), labels: &labels, is_known: true };
    let rules = enforced(&policies.of(subject), WireForm::Http, &trust());
    let rule = rules.allow.rules().next().expect("one");
    let clause = &rule.sources[0][0];
    let key = |atoms: &Vec<Atom>| match &atoms[..] {
        [Atom::Metadata(_, issuer, _), Atom::Metadata(_, subject, _)] => {
            assert_eq!((&*issuer[1], &*subject[1]), ("iss", "sub"));
            assert_eq!(issuer[0], subject[0], "both of one token");
            issuer[0].clone()
        }
        other => panic!("{other:?}"),
    };
    assert_eq!(clause.any.iter().map(key).collect::<Vec<_>>(), ["payload-0", "payload-1"]);
}

#[test]
fn what_is_wrong_with_a_rule_is_named_and_its_tokens_are_nobodys() {
    let private = json!({ "keys": [{ "kty": "EC", "d": "secret" }] }).to_string();
    let cases = [
        (json!({}), "spec.jwtRules[0].issuer"),
        (json!({ "issuer": "a", "jwks": "{" }), "spec.jwtRules[0].jwks"),
        (json!({ "issuer": "a", "jwks": "{}" }), "spec.jwtRules[0].jwks"),
        (json!({ "issuer": "a", "jwks": private }), "spec.jwtRules[0].jwks"),
        (json!({ "issuer": "a", "audience": ["b"] }), "spec.jwtRules[0].audience"),
        (json!({ "issuer": "a", "audiences": [""] }), "spec.jwtRules[0].audiences[0]"),
        (
            json!({ "issuer": "a", "fromHeaders": [{ "name": "a b" }] }),
            "spec.jwtRules[0].fromHeaders",
        ),
        (
            json!({ "issuer": "a", "outputClaimToHeaders": [{ "header": "x" }] }),
            "spec.jwtRules[0].outputClaimToHeaders",
        ),
        (
            json!({ "issuer": "a", "outputPayloadToHeader": "a b" }),
            "spec.jwtRules[0].outputPayloadToHeader",
        ),
    ];
    for (rule, path) in cases {
        let policies = index().hold([believes(json!({ "jwtRules": [rule.clone()] }))]);
        let (_, report) = policies.reports().next().expect("a report");
        assert_eq!(report.faults[0].path, path, "{rule}");
        assert_eq!(rules(&policies), [], "{rule}");
        assert!(!format!("{:?}", report.faults).contains("secret"), "keys are never shown");
    }
    let policies = index()
        .hold([believes(json!({ "jwtRules": [{ "issuer": "a", "jwksUri": "https://a/keys" }] }))]);
    let (_, report) = policies.reports().next().expect("a report");
    assert_eq!(report.faults[0].code.id, "STR0829");
    assert_eq!(
        rules(&policies)[0].keys,
        None,
        "it verifies nothing, and refuses what it can't verify"
    );
}
