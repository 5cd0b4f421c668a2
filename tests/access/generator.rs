//! Random access policies and random calls to a workload, for tests that compare evaluators.

use rand::Rng;
use rand::seq::IndexedRandom;
use serde_json::{Value, json};

use super::evaluator::{Call, Token};

fn some<'a>(random: &mut impl Rng, all: &[&'a str]) -> &'a str {
    all.choose(random).expect("some")
}

const PRINCIPALS: &[&str] = &[
    "*",
    "mesh.example/ns/shop/sa/a",
    "cluster.local/ns/shop/sa/b",
    "old.example/ns/*",
    "*/sa/a",
    "foreign.org/ns/shop/sa/a",
    "mesh.example/ns/shop/*",
    "*example/ns/shop/sa/a",
    "cluster.local/ns/shop/*",
];
type Table = [(&'static str, &'static [&'static str])];
const FIELDS: &Table = &[
    ("principals", PRINCIPALS),
    ("namespaces", &["shop", "s*", "*", "oth*r", "*op"]),
    ("trustDomains", &["mesh.example", "cluster.local", "foreign.org", "*", "*.org", "mesh*"]),
    ("ipBlocks", &["10.0.0.0/24", "10.0.0.7", "0.0.0.0/0", "fd00::/8"]),
    ("remoteIpBlocks", &["192.0.2.0/25", "192.0.2.9"]),
];
const OPERATIONS: &Table = &[
    ("hosts", &["a.example", "*.example", "A.example.", "*", "a.*", "b.example:8080"]),
    ("ports", &["8080", "5432", "0"]),
    ("methods", &["GET", "POST", "*", "P*"]),
    ("paths", &["/", "/admin*", "*.php", "*", "/a/{*}/c", "/a/{**}", "/a/{**}/c", "/a/b"]),
];
const KEYS: &Table = &[
    ("request.headers[X-Role]", &["admin", "*", "adm*", "*min", "user"]),
    ("destination.port", &["8080"]),
    ("destination.ip", &["10.1.0.1", "10.1.0.0/16"]),
    ("connection.sni", &["outbound_.80_.*", "*.local"]),
    ("source.ip", &["10.0.0.0/29"]),
    ("source.namespace", &["shop", "other"]),
    ("source.principal", PRINCIPALS),
    ("source.serviceAccount", &["shop/a", "other/b", "a"]),
];
/// The attributes that do not depend on the caller's identity, which is unknown to a provider: the
/// last fields, and the first keys.
const NAMELESS_FIELDS: &Table = FIELDS.split_at(3).1;
const NAMELESS_KEYS: &Table = KEYS.split_at(5).0;

fn values(random: &mut impl Rng, all: &[&str]) -> Value {
    let count = random.random_range(1..3);
    (0..count).map(|_| Value::from(some(random, all))).collect::<Vec<_>>().into()
}

fn fields(random: &mut impl Rng, table: &Table) -> Value {
    let mut fields = json!({});
    for _ in 0..random.random_range(1..3) {
        let (name, all) = table.choose(random).expect("some");
        let name = if random.random_bool(0.25) {
            format!("not{}{}", name[..1].to_uppercase(), &name[1..])
        } else {
            (*name).to_owned()
        };
        fields[name] = values(random, all);
    }
    fields
}

fn rule(random: &mut impl Rng, sources: &Table, keys: &Table) -> Value {
    let mut rule = json!({});
    for (name, inner, table) in [("from", "source", sources), ("to", "operation", OPERATIONS)] {
        if random.random_bool(0.6) {
            let count = random.random_range(1..3);
            let all: Vec<_> = (0..count).map(|_| json!({ inner: fields(random, table) })).collect();
            rule[name] = all.into();
        }
    }
    if random.random_bool(0.3) {
        let (key, all) = keys.choose(random).expect("some");
        let mut condition = json!({ "key": key });
        let which = random.random_range(1..4);
        if which & 1 != 0 {
            condition["values"] = values(random, all);
        }
        if which & 2 != 0 {
            condition["notValues"] = values(random, all);
        }
        rule["when"] = json!([condition]);
    }
    rule
}

pub(crate) fn random_policy(random: &mut impl Rng, name: &str) -> Value {
    let action = some(random, &["ALLOW", "ALLOW", "DENY", "AUDIT"]);
    let least = usize::from(action == "DENY");
    let count = random.random_range(least..3);
    let rules: Vec<_> = (0..count).map(|_| rule(random, FIELDS, KEYS)).collect();
    policy_from_spec(random, name, json!({ "action": action, "rules": rules }))
}

/// The providers that random policies name, each with whether it can also check connections.
/// Policies may also name an unknown provider.
pub(crate) const PROVIDERS: [(&str, bool); 2] =
    [("asked-of-all", true), ("asked-of-requests", false)];

/// Returns a random policy with the action CUSTOM.
pub(crate) fn random_asking_policy(random: &mut impl Rng, name: &str) -> Value {
    let provider = some(random, &["asked-of-all", "asked-of-all", "asked-of-requests", "nobody"]);
    let count = random.random_range(1..3);
    let rules: Vec<_> = (0..count).map(|_| rule(random, NAMELESS_FIELDS, NAMELESS_KEYS)).collect();
    let spec = json!({ "action": "CUSTOM", "provider": { "name": provider }, "rules": rules });
    policy_from_spec(random, name, spec)
}

fn policy_from_spec(random: &mut impl Rng, name: &str, mut spec: Value) -> Value {
    if random.random_bool(0.4) {
        spec["selector"] = json!({ "matchLabels": { "app": some(random, &["web", "web", "db"]) } });
    }
    let namespace = some(random, &["shop", "shop", "shop", "istio-system", "other"]);
    let mut object = json!({
        "apiVersion": "security.istio.io/v1",
        "kind": "AuthorizationPolicy",
        "metadata": { "namespace": namespace, "name": name },
        "spec": spec,
    });
    if random.random_bool(0.1) {
        object["metadata"]["annotations"] = json!({ "istio.io/dry-run": "true" });
    }
    object
}

pub(crate) fn random_call(random: &mut impl Rng) -> Call {
    let mut text = |all: &[&str]| some(random, all).to_owned();
    let identity = (
        text(&["mesh.example", "mesh.example", "old.example", "foreign.org", "cluster.local"]),
        text(&["shop", "shop", "other"]),
        text(&["a", "b"]),
    );
    let mut call = Call {
        identity: Some(identity),
        from: text(&["10.0.0.7", "10.0.0.200", "172.16.0.1"]).parse().expect("an address"),
        client: text(&["192.0.2.9", "192.0.2.200"]).parse().expect("an address"),
        host: text(&[
            "a.example",
            "A.EXAMPLE:80",
            "a.example.",
            "b.example",
            "b.example:8080",
            "b.example.:8080",
            "evil",
        ]),
        method: text(&["GET", "POST", "PUT"]),
        path: text(&["/", "/admin", "/a/b/c", "/a/b", "/a/", "/x.php", "/adminx"]),
        headers: Vec::new(),
        port: text(&["8080", "5432"]).parse().expect("a port"),
        address: text(&["10.1.0.1", "10.2.0.1"]).parse().expect("an address"),
        sni: text(&["outbound_.80_._.web.shop.svc.cluster.local", "x"]),
        is_http: true,
        tokens: Vec::new(),
    };
    for _ in 0..random.random_range(0..3) {
        let value = some(random, &["admin", "user", "adm", "user, admin"]);
        // Proxies differ in their handling of duplicate values, which does not matter here.
        if !call.headers.iter().any(|(_, other)| other == value) {
            call.headers.push(("X-Role".into(), value.to_owned()));
        }
    }
    call.is_http = random.random_bool(0.7);
    if random.random_bool(0.2) {
        call.identity = None;
    }
    call
}

fn object(kind: &str, namespace: &str, name: &str, spec: Value) -> Value {
    json!({
        "apiVersion": "security.istio.io/v1", "kind": kind,
        "metadata": { "namespace": namespace, "name": name }, "spec": spec,
    })
}

/// Returns random PeerAuthentications at all levels, sometimes several per level or none, with
/// modes for single ports.
pub(crate) fn random_modes(random: &mut impl Rng, ports: &[&str]) -> Vec<Value> {
    let mut all = Vec::new();
    // Name, namespace, selected app, and probability.
    for (name, namespace, selected, share) in [
        ("mesh", "istio-system", None, 0.4),
        ("mesh-of-some", "istio-system", Some("web"), 0.1),
        ("namespace", "shop", None, 0.3),
        ("namespace-too", "shop", None, 0.1),
        ("workload", "shop", Some("web"), 0.5),
        ("workload-too", "shop", Some("web"), 0.1),
        ("others", "shop", Some("db"), 0.2),
        ("elsewhere", "pay", None, 0.2),
    ] {
        if random.random_bool(share) {
            all.push(random_mode(random, (namespace, name), selected, ports));
        }
    }
    all
}

/// Returns a random PeerAuthentication.
pub(crate) fn random_mode(
    random: &mut impl Rng,
    (namespace, name): (&str, &str),
    selected: Option<&str>,
    ports: &[&str],
) -> Value {
    const MODES: &[&str] = &["STRICT", "PERMISSIVE", "DISABLE", "UNSET"];
    let mut spec = json!({});
    if random.random_bool(0.8) {
        spec["mtls"] = json!({ "mode": some(random, MODES) });
    }
    if let Some(app) = selected {
        spec["selector"] = json!({ "matchLabels": { "app": app } });
        for port in ports {
            if random.random_bool(0.3) {
                spec["portLevelMtls"][port] = json!({ "mode": some(random, MODES) });
            }
        }
    }
    let mut policy = object("PeerAuthentication", namespace, name, spec);
    let year = random.random_range(2021..2025);
    policy["metadata"]["creationTimestamp"] = format!("{year}-01-01T00:00:00Z").into();
    policy
}

/// The issuers whose keys are known. Tokens of the first are in the usual header, tokens of the
/// second in a separate header.
pub(crate) const ISSUERS: [&str; 2] = ["https://a", "https://b"];
const PLACES: [&str; 2] = ["authorization", "x-b"];

/// Returns random RequestAuthentications, with the keys of their issuers.
pub(crate) fn random_token_rules(
    random: &mut impl Rng,
    keys: impl Fn(&str) -> String,
) -> Vec<Value> {
    let mut all = Vec::new();
    for at in 0..ISSUERS.len() {
        if random.random_bool(0.4) {
            let namespace = some(random, &["shop", "shop", "istio-system", "pay"]);
            let name = (namespace, &*format!("tokens-{at}"));
            all.push(random_token_rule(random, name, at, &keys));
        }
    }
    all
}

/// Returns a RequestAuthentication that accepts tokens of the issuer with this index.
pub(crate) fn random_token_rule(
    random: &mut impl Rng,
    (namespace, name): (&str, &str),
    at: usize,
    keys: impl Fn(&str) -> String,
) -> Value {
    let mut rule = json!({ "issuer": ISSUERS[at], "jwks": keys(ISSUERS[at]) });
    if at > 0 {
        rule["fromHeaders"] = json!([{ "name": PLACES[at] }]);
    }
    let mut spec = json!({ "jwtRules": [rule] });
    if random.random_bool(0.4) {
        let app = some(random, &["web", "web", "db"]);
        spec["selector"] = json!({ "matchLabels": { "app": app } });
    }
    object("RequestAuthentication", namespace, name, spec)
}

/// Adds a condition about tokens to the first rule of a policy.
pub(crate) fn asking_for_tokens(random: &mut impl Rng, mut policy: Value) -> Value {
    const NAMES: &[&str] =
        &["*", "https://a/alice", "https://b/*", "*/bob", "https://a/al*", "https://c/*"];
    let Some(rule) = policy["spec"]["rules"].as_array_mut().and_then(|rules| rules.first_mut())
    else {
        return policy;
    };
    if random.random_bool(0.6) {
        let field =
            some(random, &["requestPrincipals", "requestPrincipals", "notRequestPrincipals"]);
        let names = values(random, NAMES);
        match rule["from"].as_array_mut().and_then(|from| from.first_mut()) {
            Some(first) => first["source"][field] = names,
            None => rule["from"] = json!([{ "source": { field: names } }]),
        }
    } else {
        let field = some(random, &["values", "notValues"]);
        let groups = values(random, &["admin", "adm*", "*", "user"]);
        rule["when"] = json!([{ "key": "request.auth.claims[groups]", field: groups }]);
    }
    policy
}

/// Returns random tokens, or none. Some are expired, some name an unknown issuer, and some are
/// signed with the key of another issuer.
pub(crate) fn random_tokens(random: &mut impl Rng) -> Vec<Token> {
    let mut all = Vec::new();
    for (at, place) in PLACES.into_iter().enumerate() {
        if !random.random_bool([0.6, 0.3][at]) {
            continue;
        }
        let own = ISSUERS[at];
        let (issuer, signer, has_ended) = match random.random_range(0..10) {
            0 => (own, own, true),
            1 => ("https://c", own, false),
            2 => (own, ISSUERS[1 - at], false),
            _ => (own, own, false),
        };
        let groups = match random.random_range(0..3) {
            0 => Vec::new(),
            1 => vec!["user".to_owned()],
            _ => vec!["user".to_owned(), "admin".to_owned()],
        };
        all.push(Token {
            place: place.to_owned(),
            issuer: issuer.to_owned(),
            signer: signer.to_owned(),
            subject: some(random, &["alice", "bob"]).to_owned(),
            groups,
            has_ended,
        });
    }
    all
}
