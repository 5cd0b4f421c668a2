//! Tests of accepted tokens.

use std::borrow::Cow;

use super::*;
use strait_model::fetched_keys::{FetchedKeys, KeyPlace, KeyState, WantedKeys};

fn believes(spec: Value) -> Value {
    object("RequestAuthentication", "shop", "tokens", spec)
}

fn keys() -> String {
    // The key of RFC 7517, appendix A.1.
    json!({ "keys": [{ "kty": "EC", "crv": "P-256", "x": "MKBCTNIcKUSDii11ySs3526iDZ8AiTo7Tu6KPAqv7D4",
        "y": "4Etl6SRW2YiLUrN5vfvVHuhp7x8PxltmWWlbbM4IFyM" }] })
    .to_string()
}

fn rules(policies: &AccessPolicies) -> Vec<TokenRule> {
    let labels = labels(&[("app", "web")]);
    let subject = AccessSubject { namespace: &"shop".into(), labels: &labels, is_known: true };
    policies.of(subject).token_rules().into_iter().map(Cow::into_owned).collect()
}

#[test]
fn rules_of_all_policies_are_merged_without_duplicates() {
    let rule = |issuer: &str| json!({ "issuer": issuer, "jwks": keys() });
    let own = believes(json!({ "jwtRules": [rule("https://b"), rule("https://a")] }));
    let mesh_policy =
        object("RequestAuthentication", ROOT, "mesh", json!({ "jwtRules": [rule("https://a")] }));
    let spec =
        json!({ "selector": { "matchLabels": { "app": "db" } }, "jwtRules": [rule("https://c")] });
    let others = object("RequestAuthentication", "shop", "db", spec);
    let found = rules(&index().hold([own, mesh_policy, others]));
    let issuers: Vec<_> = found.iter().map(|rule| rule.issuer.as_str()).collect();
    assert_eq!(issuers, ["https://a", "https://b"]);
}

/// F-19: the claims of each issuer's tokens are stored separately.
#[test]
fn each_of_several_rules_has_a_separate_metadata_key() {
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
    let rules = enforced(&policies.of(subject), WireForm::Http, &trust(), &Default::default());
    let rule = rules.allow.rules().next().expect("one");
    let clause = &rule.sources[0][0];
    let key = |atoms: &Vec<Atom<'_>>| match &atoms[..] {
        [Atom::Metadata(_, issuer, _), Atom::Metadata(_, subject, _)] => {
            assert_eq!((&*issuer[1], &*subject[1]), ("iss", "sub"));
            assert_eq!(issuer[0], subject[0], "both of one token");
            issuer[0].clone()
        }
        other => panic!("{other:?}"),
    };
    assert_eq!(clause.any.iter().map(key).collect::<Vec<_>>(), ["payload-0", "payload-1"]);
}

/// A field that restricts and cannot be read fails closed.
#[test]
fn rule_that_cannot_be_read_is_named_and_refuses_its_tokens() {
    let private = json!({ "keys": [{ "kty": "EC", "d": "secret" }] }).to_string();
    let cases = [
        (json!({}), "spec.jwtRules[0].issuer"),
        (json!({ "issuer": "a", "jwks": "{" }), "spec.jwtRules[0].jwks"),
        (json!({ "issuer": "a", "jwks": "{}" }), "spec.jwtRules[0].jwks"),
        (json!({ "issuer": "a", "jwks": private }), "spec.jwtRules[0].jwks"),
        (json!({ "issuer": "a", "jwks": 7 }), "spec.jwtRules[0].jwks"),
        (
            json!({ "issuer": "a", "jwks": keys(), "fromHeaders": [{ "name": "x", "presence": "REQUIRED" }] }),
            "spec.jwtRules[0].fromHeaders[0].presence",
        ),
        (json!("a"), "spec.jwtRules[0]"),
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
        assert_eq!(report.state, PolicyState::Partly, "{rule}");
        let found = rules(&policies);
        assert_eq!((found.len(), &found[0].keys), (1, &None), "{rule}");
        assert_eq!(found[0].issuer, rule["issuer"].as_str().unwrap_or_default(), "{rule}");
        assert!(!format!("{:?}", report.faults).contains("secret"), "keys are never shown");
    }
    let policies = index().hold([believes(json!({ "jwtRules": { "issuer": "a" } }))]);
    assert_eq!(rules(&policies), [TokenRule::default()]);
    let selector = json!({ "matchLabels": { "app": "w*" } });
    let rule = json!({ "issuer": "a", "jwks": keys() });
    let policies = index().hold([believes(json!({ "selector": selector, "jwtRules": [rule] }))]);
    assert_eq!(rules(&policies).len(), 1, "a selector that cannot be read selects all");
    let policies = index()
        .hold([believes(json!({ "jwtRules": [{ "issuer": "a", "jwksUri": "https://a/keys" }] }))]);
    let (_, report) = policies.reports().next().expect("a report");
    assert_eq!(report.faults[0].code.id, "STR0829");
    assert_eq!(rules(&policies)[0].keys, None, "it has no keys, so it refuses all tokens");
}

#[test]
fn unknown_field_of_a_token_rule_is_ignored_with_a_warning_unless_it_restricts() {
    let with = |name: &str, value: Value| {
        let mut rule = json!({ "issuer": "a", "jwks": keys() });
        rule[name] = value;
        let policies = index().hold([believes(json!({ "jwtRules": [rule] }))]);
        let found = rules(&policies).remove(0);
        let (_, report) = policies.reports().next().expect("a report");
        let codes: Vec<_> = report.faults.iter().map(|fault| fault.code.id).collect();
        (found.keys.is_some(), found.requires_token, report.state, codes.join(" "))
    };
    for (name, value) in [
        ("description", json!("tokens of all tenants only")),
        ("displayName", json!("a")),
        ("storage", json!({ "days": 7 })),
        ("presence", json!(false)),
    ] {
        let expected = (true, false, PolicyState::InForce, "STR0823".to_owned());
        assert_eq!(with(name, value), expected, "{name}");
    }
    assert_eq!(with("presence", Value::Null).2, PolicyState::InForce);
    for (name, value) in [
        ("presence", json!("REQUIRED")),
        ("policy", json!("REQUIRED")),
        ("requiredClaims", json!({ "group": "a" })),
        ("maxTokenAge", json!("1h")),
        ("allowed_algorithms", json!(["ES256"])),
    ] {
        let expected = (false, true, PolicyState::Partly, "STR0820 STR0822".to_owned());
        assert_eq!(with(name, value), expected, "{name}");
    }
    // An unknown field of the spec restricts all rules.
    let rule = json!({ "issuer": "a", "jwks": keys() });
    for given in [json!([rule]), json!([])] {
        let spec = json!({ "jwtRules": given, "presence": "REQUIRED" });
        let found = rules(&index().hold([believes(spec)])).remove(0);
        assert_eq!((found.keys, found.requires_token), (None, true));
    }
    // The last valid version stays active.
    let mut index = index();
    index.hold([believes(json!({ "jwtRules": [rule] }))]);
    let mut newer = rule;
    newer["presence"] = "REQUIRED".into();
    let policies = index.hold([believes(json!({ "jwtRules": [newer] }))]);
    assert!(rules(&policies)[0].keys.is_some());
}

#[test]
fn unknown_restricting_field_makes_other_kinds_fail_closed() {
    let mut spec = json!({ "rules": [{}], "onlyFromMesh": true });
    assert!(!index().hold([policy("a", spec.clone())]).allows(&request("client", "/")));
    spec["action"] = "DENY".into();
    assert!(!index().hold([policy("a", spec)]).allows(&request("client", "/")));
    for spec in [
        json!({ "mtls": { "mode": "PERMISSIVE", "requireClientCertificate": true } }),
        json!({ "mtls": { "mode": "PERMISSIVE" }, "enforcement": "STRICT" }),
    ] {
        let policies = index().hold([peer("shop", "a", spec)]);
        let labels = labels(&[]);
        let subject = AccessSubject { namespace: &"shop".into(), labels: &labels, is_known: true };
        assert_eq!(policies.of(subject).modes.of_port(80).mode, PeerMode::Strict);
    }
}

/// Section 5: a policy is active immediately, and again once its keys have been fetched. Fetched
/// keys stay valid.
#[test]
fn fetched_keys_are_added_to_rules() {
    let mut index = index();
    let rule = |issuer: &str, uri: &str, timeout: &str| json!({ "issuer": issuer, "jwksUri": uri, "timeout": timeout });
    let own = believes(
        json!({ "jwtRules": [rule("a", "https://a/keys", "2s"), { "issuer": "https://b" }] }),
    );
    let other = object(
        "RequestAuthentication",
        "pay",
        "t",
        json!({ "jwtRules": [rule("a", "https://a/keys", "9s")] }),
    );
    index.hold([own, other]);
    let a = KeyPlace::Uri("https://a/keys".into());
    let b = KeyPlace::Issuer("https://b".into());
    let seconds = std::time::Duration::from_secs;
    let wanted = |timeout, namespaces: &[&str]| WantedKeys {
        timeout: seconds(timeout),
        namespaces: namespaces.iter().map(|name| Namespace::from(*name)).collect(),
    };
    let wanted = [(a.clone(), wanted(9, &["pay", "shop"])), (b.clone(), wanted(5, &["shop"]))];
    assert_eq!(index.wanted_keys(), wanted.into());
    let state = |keys: Option<&str>, trouble: Option<&str>| KeyState {
        keys: keys.map(Arc::from),
        trouble: trouble.map(str::to_owned),
    };
    let come: FetchedKeys =
        [(a.clone(), state(Some("1"), None)), (b.clone(), state(None, Some("it answers 500")))]
            .into();
    let policies = index.apply_keys(Arc::new(come.clone())).expect("they differ");
    let found: Vec<_> = rules(&policies).iter().map(|rule| rule.keys.clone()).collect();
    assert_eq!(found, [Some("1".into()), None]);
    let warnings = |policies: &AccessPolicies| {
        let all = policies.reports().flat_map(|(_, report)| report.faults.clone());
        all.map(|fault| format!("{} {}", fault.code.id, fault.path)).collect::<Vec<_>>()
    };
    assert_eq!(warnings(&policies), ["STR0829 spec.jwtRules[1].issuer"]);
    assert!(index.apply_keys(Arc::new(come)).is_none(), "nothing new");
    let late = [(a, state(Some("1"), Some("no answer"))), (b, state(Some("2"), None))].into();
    let policies = index.apply_keys(Arc::new(late)).expect("they differ");
    let found: Vec<_> = rules(&policies).iter().map(|rule| rule.keys.clone()).collect();
    assert_eq!(found, [Some("1".into()), Some("2".into())]);
    // One warning in each namespace whose policies use the location.
    assert_eq!(warnings(&policies), ["STR0833 spec.jwtRules[0].jwksUri"; 2]);
    let pay: Namespace = "pay".into();
    assert!(index.policies.changed_namespaces(&policies).is_empty() && policies.root() != &pay);
}

/// Returns a key set with one EC key of about this size.
fn padded_keys(bytes: usize) -> String {
    keys().replace("\"EC\"", &format!("\"EC\",\"kid\":\"{}\"", "k".repeat(bytes)))
}

/// Returns the number of rules with keys, the number without, and the faults of all policies.
fn counted(policies: &AccessPolicies) -> (usize, usize, Vec<String>) {
    let all = rules(policies);
    let with_keys = all.iter().filter(|rule| rule.keys.is_some()).count();
    let faults = policies.reports().flat_map(|(name, report)| {
        report.faults.iter().map(move |fault| format!("{} {}", name.object.name, fault.code.id))
    });
    (with_keys, all.len() - with_keys, faults.collect())
}

/// A listener contains the keys of each rule separately, so tenants must not control its size.
#[test]
fn rules_beyond_the_limit_of_an_object_refuse_tokens() {
    let many = |count: usize, keys: &str| -> Value {
        let rule =
            |at| json!({ "issuer": "https://a", "audiences": [format!("{at}")], "jwks": keys });
        believes(json!({ "jwtRules": (0..count).map(rule).collect::<Vec<_>>() }))
    };
    assert_eq!(counted(&index().hold([many(256, &keys())])), (256, 0, vec![]));
    let limit_faults = vec!["tokens STR0820".to_owned(), "tokens STR0822".to_owned()];
    assert_eq!(counted(&index().hold([many(300, &keys())])), (256, 44, limit_faults.clone()));
    // With 17,560 bytes each, fourteen rules fit into 256 KiB.
    let large = padded_keys(17 * 1024);
    assert_eq!(counted(&index().hold([many(17, &large)])), (14, 3, limit_faults));
    let long = format!("https://{}", "a".repeat(2048));
    for rule in [json!({ "issuer": "a", "jwksUri": long }), json!({ "issuer": long })] {
        let mut index = index();
        index.hold([believes(json!({ "jwtRules": [rule] }))]);
        assert_eq!(index.wanted_keys(), Default::default());
    }
}

#[test]
fn keys_of_a_workload_are_limited_by_namespace_oldest_first() {
    let large = padded_keys(60 * 1024);
    let many = |namespace: &str, name: &str, label: Option<&str>| {
        let rule = |at| json!({ "issuer": format!("https://{name}/{at}"), "jwks": large });
        let mut spec = json!({ "jwtRules": (0..3).map(rule).collect::<Vec<_>>() });
        if let Some(app) = label {
            spec["selector"] = json!({ "matchLabels": { "app": app } });
        }
        object("RequestAuthentication", namespace, name, spec)
    };
    // Mesh-wide rules keep their keys whatever the namespace adds. The second policy of the
    // namespace exceeds the budget.
    let policies = index().hold([
        many(ROOT, "mesh", None),
        many("shop", "a", None),
        many("shop", "b", Some("web")),
        many("pay", "b", None),
    ]);
    assert_eq!(counted(&policies), (7, 2, vec!["b STR0839".to_owned()]));
    let without_keys: Vec<_> =
        rules(&policies).into_iter().filter(|rule| rule.keys.is_none()).collect();
    let issuers: Vec<_> = without_keys.iter().map(|rule| &*rule.issuer).collect();
    assert_eq!(issuers, ["https://b/1", "https://b/2"]);
    // No workload is selected by both.
    let apart = [many("shop", "a", Some("db")), many("shop", "b", Some("web"))];
    assert_eq!(counted(&index().hold(apart)), (3, 0, vec![]));
}

#[test]
fn key_location_is_an_http_url_with_a_limited_timeout() {
    let cases = [
        (json!({ "issuer": "a", "jwksUri": "file:///etc/passwd" }), "spec.jwtRules[0].jwksUri"),
        (
            json!({ "issuer": "a", "jwksUri": "https://a", "timeout": "0s" }),
            "spec.jwtRules[0].timeout",
        ),
        (
            json!({ "issuer": "a", "jwksUri": "https://a", "timeout": "soon" }),
            "spec.jwtRules[0].timeout",
        ),
    ];
    for (rule, path) in cases {
        let policies = index().hold([believes(json!({ "jwtRules": [rule.clone()] }))]);
        let (_, report) = policies.reports().next().expect("a report");
        assert_eq!(report.faults[0].path, path, "{rule}");
    }
    // Inline keys are not fetched.
    let both = json!({ "issuer": "a", "jwksUri": "https://a", "jwks": keys() });
    let mut index = index();
    index.hold([believes(json!({ "jwtRules": [both] }))]);
    assert_eq!(index.wanted_keys(), Default::default());
}

#[test]
fn scopes_and_listed_claims_are_space_delimited() {
    let given = json!({ "issuer": "https://a", "jwks": keys(), "spaceDelimitedClaims": ["roles", "scope"] });
    let policies = index().hold([believes(json!({ "jwtRules": [given] }))]);
    assert_eq!(rules(&policies)[0].lists_in_text(), ["permission", "roles", "scope"]);
    let wrong = json!({ "issuer": "https://a", "jwks": keys(), "spaceDelimitedClaims": [""] });
    let policies = index().hold([believes(json!({ "jwtRules": [wrong] }))]);
    let (_, report) = policies.reports().next().expect("one");
    assert_eq!(report.faults[0].path, "spec.jwtRules[0].spaceDelimitedClaims[0]");
}
