//! Random access policies and calls of a workload, for tests that compare answers.

use rand::Rng;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use serde_json::{Value, json};

use super::evaluator::Call;

fn some<'a>(random: &mut StdRng, all: &[&'a str]) -> &'a str {
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
const FIELDS: &[(&str, &[&str])] = &[
    ("principals", PRINCIPALS),
    ("namespaces", &["shop", "s*", "*", "oth*r", "*op"]),
    ("trustDomains", &["mesh.example", "cluster.local", "foreign.org", "*", "*.org", "mesh*"]),
    ("ipBlocks", &["10.0.0.0/24", "10.0.0.7", "0.0.0.0/0", "fd00::/8"]),
    ("remoteIpBlocks", &["192.0.2.0/25", "192.0.2.9"]),
];
const OPERATIONS: &[(&str, &[&str])] = &[
    ("hosts", &["a.example", "*.example", "A.example.", "*", "a.*", "b.example:8080"]),
    ("ports", &["8080", "5432", "0"]),
    ("methods", &["GET", "POST", "*", "P*"]),
    ("paths", &["/", "/admin*", "*.php", "*", "/a/{*}/c", "/a/{**}", "/a/b"]),
];
const KEYS: &[(&str, &[&str])] = &[
    ("request.headers[X-Role]", &["admin", "*", "adm*", "*min", "user"]),
    ("source.namespace", &["shop", "other"]),
    ("source.principal", PRINCIPALS),
    ("source.serviceAccount", &["shop/a", "other/b", "a"]),
    ("destination.port", &["8080"]),
    ("destination.ip", &["10.1.0.1", "10.1.0.0/16"]),
    ("connection.sni", &["outbound_.80_.*", "*.local"]),
    ("source.ip", &["10.0.0.0/29"]),
];

fn values(random: &mut StdRng, all: &[&str]) -> Value {
    let count = random.random_range(1..3);
    (0..count).map(|_| Value::from(some(random, all))).collect::<Vec<_>>().into()
}

fn fields(random: &mut StdRng, table: &[(&str, &[&str])]) -> Value {
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

fn rule(random: &mut StdRng) -> Value {
    let mut rule = json!({});
    let mut list = |random: &mut StdRng, name: &str, inner: &str, table: &[(&str, &[&str])]| {
        if random.random_bool(0.6) {
            let count = random.random_range(1..3);
            let all: Vec<_> = (0..count).map(|_| json!({ inner: fields(random, table) })).collect();
            rule[name] = all.into();
        }
    };
    list(random, "from", "source", FIELDS);
    list(random, "to", "operation", OPERATIONS);
    if random.random_bool(0.3) {
        let (key, all) = KEYS.choose(random).expect("some");
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

pub(crate) fn random_policy(random: &mut StdRng, name: &str) -> Value {
    let action = some(random, &["ALLOW", "ALLOW", "DENY", "AUDIT"]);
    let least = usize::from(action == "DENY");
    let rules: Vec<_> = (0..random.random_range(least..3)).map(|_| rule(random)).collect();
    let mut spec = json!({ "action": action, "rules": rules });
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

pub(crate) fn random_call(random: &mut StdRng) -> Call {
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
            "evil",
        ]),
        method: text(&["GET", "POST", "PUT"]),
        path: text(&["/", "/admin", "/a/b/c", "/a/b", "/a/", "/x.php", "/adminx"]),
        headers: Vec::new(),
        port: text(&["8080", "5432"]).parse().expect("a port"),
        address: text(&["10.1.0.1", "10.2.0.1"]).parse().expect("an address"),
        sni: text(&["outbound_.80_._.web.shop.svc.cluster.local", "x"]),
        is_http: true,
    };
    for _ in 0..random.random_range(0..3) {
        let value = some(random, &["admin", "user", "adm", "user, admin"]);
        // Whether the same comes twice proxies see or don't, and it is of no matter.
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
