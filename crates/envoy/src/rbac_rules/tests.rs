//! Compares the encoded rules of policies with plain messages.

use prost::Message;
use rand::SeedableRng;
use rand::rngs::StdRng;
use serde_json::{Value, json};

use super::*;
use crate::access_oracle::generator::random_policy;
use strait_model::Collection;
use strait_rules::access::{AccessIndex, AccessSettings, Atom, PolicyErrors};

fn object(name: &str, rules: &Value) -> Value {
    json!({
        "apiVersion": "security.istio.io/v1", "kind": "AuthorizationPolicy",
        "metadata": { "namespace": "shop", "name": name },
        "spec": { "action": "DENY", "rules": rules },
    })
}

fn policies(objects: &[Value]) -> Arc<AccessPolicies> {
    let settings = AccessSettings { root: "root".into(), errors: PolicyErrors::Narrow };
    let objects: Collection = objects.iter().cloned().map(Arc::new).collect();
    let mut index = AccessIndex::new(settings.clone());
    index.apply(&settings, &objects);
    index.policies()
}

fn trust(domain: &str) -> TrustBundle {
    TrustBundle::new([domain].into_iter())
}

/// Returns the encoded rules of all policies, and the decoded message.
fn encoded(
    encoded_policies: &EncodedPolicies,
    policies: &AccessPolicies,
    domain: &str,
    token_rules: usize,
) -> (Vec<u8>, rbac::Rbac) {
    let trust = trust(domain);
    let encoder = RuleEncoder { encoded_policies, trust: &trust, token_rules };
    let rules: Vec<_> = policies
        .authorizations()
        .map(|policy| encoder.rules(EnforcedPolicy { policy, key_end: "-end" }, WireForm::Http))
        .collect();
    let bytes = encode_rbac(rbac::rbac::Action::Deny, "begin-", &rules).expect("rules");
    let read = rbac::Rbac::decode(&bytes[..]).expect("a message");
    (bytes, read)
}

#[test]
fn joined_rules_are_one_message_sorted_by_key() {
    let path = |path: &str| json!({ "to": [{ "operation": { "paths": [path] } }] });
    let rules: Vec<Value> = (0..12).map(|at| path(&format!("/{at}"))).collect();
    let parsed = policies(&[object("b", &json!([path("/b")])), object("a", &json!(rules))]);
    let (bytes, read) = encoded(&EncodedPolicies::default(), &parsed, "mesh.example", 0);
    assert_eq!(read.action, i32::from(rbac::rbac::Action::Deny));
    assert_eq!(read.policies.len(), 13);
    for policy in parsed.authorizations() {
        let trust = trust("mesh.example");
        let scope = MatchScope::new(&trust, 0);
        for rule in RuleInForm::enforceable_rules(policy, WireForm::Http, &scope) {
            let rule = rule.matcher();
            let key = format!("begin-{}-end", rule.key);
            assert_eq!(read.policies.get(&key), Some(&oracle::policy(&rule)), "{key}");
        }
    }
    let text = String::from_utf8_lossy(&bytes);
    let places: Vec<_> = ["[a]-rule[0]", "[a]-rule[10]", "[a]-rule[2]", "[b]-rule[0]"]
        .map(|key| text.find(key).expect(key))
        .into();
    assert!(places.is_sorted(), "{places:?}");
}

/// Returns policies with every field and key, including lists with lengths of several varint bytes.
fn policies_with_every_field() -> Vec<Value> {
    let source = json!({
        "principals": ["*", "mesh.example/ns/shop/sa/a", "cluster.local/ns/*", "*/sa/a"],
        "notNamespaces": ["shop", "o*r"], "trustDomains": ["*", "mesh.example", "a*", "*b"],
        "ipBlocks": ["10.0.0.0/8", "::/0", "fd00::1", "192.0.2.7"], "notRemoteIpBlocks": ["192.0.2.1", "fd00::/8"],
        "requestPrincipals": ["*", "https://a/b", "a*", "*b", "a"],
    });
    let operation = json!({
        "hosts": ["*", "a.example", "*.example", "a.*", "b.example:80"],
        "methods": ["GET", "P*", "*"], "notPaths": ["/", "/a*", "*.php", "*", "/a/{*}/{**}"],
        "ports": ["80", "0", "65535"],
    });
    let key = |key: &str, value: &str| json!({ "key": key, "values": [value], "notValues": ["x"] });
    let when = [
        key("request.headers[x-role]", "*"),
        key("request.headers[x-role]", "adm*"),
        key("source.serviceAccount", "shop/a"),
        key("request.auth.audiences", "a"),
        key("request.auth.claims[a][b]", "*c"),
        key("destination.ip", "10.1.0.0/16"),
        key("connection.sni", "*.local"),
        key("experimental.envoy.filters.a.b[c]", "[d]"),
    ];
    let accounts: Vec<_> = (0..400).map(|at| format!("other/account-{at}")).collect();
    let accounts = json!({ "serviceAccounts": accounts });
    let rules = json!([
        { "from": [{ "source": source }, { "source": accounts }], "to": [{ "operation": operation }] },
        { "when": when }, { "from": [{ "source": accounts }], "when": when }, {},
    ]);
    let with_action = |action: &str| {
        let mut object = object(&action.to_lowercase(), &rules);
        object["spec"]["action"] = action.into();
        object
    };
    vec![with_action("DENY"), with_action("ALLOW"), with_action("AUDIT")]
}

#[test]
fn rules_are_encoded_like_plain_messages() {
    let mut random = StdRng::seed_from_u64(7);
    let mut objects: Vec<_> =
        (0..300).map(|at| random_policy(&mut random, &format!("p{at}"))).collect();
    objects.extend(policies_with_every_field());
    let nothing = json!({ "name": "nothing", "namespace": "shop" });
    objects.push(json!({ "kind": "AuthorizationPolicy", "metadata": nothing, "spec": {} }));
    let parsed = policies(&objects);
    let mut lengths = std::collections::BTreeSet::new();
    for (domains, token_rules) in
        [(&["mesh.example"][..], 0), (&["mesh.example", "old.example"], 2), (&[], 1)]
    {
        let trust = TrustBundle::new(domains.iter().copied());
        let scope = MatchScope::new(&trust, token_rules);
        for policy in parsed.authorizations() {
            for form in [WireForm::Http, WireForm::Tcp, WireForm::Grpc] {
                for rule in RuleInForm::enforceable_rules(policy, form, &scope) {
                    let mut bytes = Vec::new();
                    wire::policy(&rule, &mut bytes);
                    let plain = oracle::policy(&rule.matcher());
                    let name = &policy.name;
                    assert_eq!(rbac::Policy::decode(&bytes[..]).as_ref(), Ok(&plain), "{name}");
                    assert_eq!(bytes, plain.encode_to_vec(), "{name} in {form:?}: {plain:#?}");
                    let in_form = rule.matcher().operations.iter().flatten().any(|clause| {
                        let mut atoms = clause.any.iter().flatten();
                        atoms.any(|atom| matches!(atom, Atom::Path(_) | Atom::PathTemplate(_)))
                    });
                    assert_eq!(rule.looks_at_paths(), in_form, "{name} in {form:?}");
                    lengths.insert(encoded_len_varint(bytes.len() as u64));
                }
            }
        }
    }
    assert_eq!(lengths.len(), 3, "short and long ones: {lengths:?}");
}

#[test]
fn cached_rules_are_encoded_again_if_any_input_changes() {
    let from = |source: Value| json!([{ "from": [{ "source": source }] }]);
    let by_principal = from(json!({ "principals": ["cluster.local/ns/shop/sa/a"] }));
    let parsed = policies(&[object("a", &by_principal)]);
    let cache = EncodedPolicies::default();
    let first = encoded(&cache, &parsed, "mesh.example", 1).0;
    assert_eq!(encoded(&cache, &parsed, "mesh.example", 1).0, first);
    assert_eq!(cache.0.entries.len(), 1, "once for all who enforce it");
    let moved = encoded(&cache, &parsed, "other.example", 1).0;
    assert!(String::from_utf8_lossy(&moved).contains("other.example"));
    let edited = policies(&[object("a", &from(json!({ "namespaces": ["pay"] })))]);
    let edited = encoded(&cache, &edited, "mesh.example", 1).0;
    assert!(String::from_utf8_lossy(&edited).contains("pay"));
    let tokens = policies(&[object("a", &from(json!({ "requestPrincipals": ["a/*"] })))]);
    let [first, two] = [1, 2].map(|rules| encoded(&cache, &tokens, "mesh.example", rules).0);
    assert!(!String::from_utf8_lossy(&first).contains("payload-1"));
    assert!(String::from_utf8_lossy(&two).contains("payload-1"), "a key for each rule");
}

#[test]
fn sweep_removes_rules_of_deleted_policies() {
    let parsed = policies(&[object("a", &json!([{}])), object("b", &json!([{}]))]);
    let cache = EncodedPolicies::default();
    encoded(&cache, &parsed, "mesh.example", 0);
    let remaining = policies(&[object("b", &json!([{}]))]);
    encoded(&cache, &remaining, "mesh.example", 0);
    cache.sweep(&remaining);
    let names: Vec<_> =
        cache.0.entries.iter().map(|entry| entry.key().0.name.to_string()).collect();
    assert_eq!(names, ["b"]);
}
