//! The flaws of a peer's access policies, and the classes of vulnerability that proxies and meshes have had, each as real
//! requests through real Envoys. One Envoy stands in the place of the sidecars of all cases.

use std::net::IpAddr;

use serde_json::json;

use super::access::event_of;
use super::access_envoy::{
    Doors, Issuer, MeshClients, SharedEnvoy, behind_doors, envoys, modes_of_doors,
};
use super::envoy::{
    Authority, Running, at_loopback, bootstrap, free_ports, static_cluster, to_loopback, validated,
    workload_server,
};
use super::*;
use crate::access::{AccessIndex, AccessSettings, PolicyErrors};
use crate::fixtures::kind_settings;
use crate::model::{Collection, ISTIO_NETWORKING, ObjectKey};
use crate::traffic::TrafficIndex;

/// Policies, and what becomes of requests.
struct Case {
    /// Which flaw or class it is, and what is to hold.
    name: &'static str,
    objects: Vec<Value>,
    /// Whether the ports have other modes than the doors are named for: then the objects say which.
    own_modes: bool,
    asked: Vec<Asked>,
}

/// A request, and the status that comes back; 0 for none.
struct Asked {
    /// `DOMAIN/ns/NAMESPACE/sa/ACCOUNT`; nobody in plain text.
    identity: Option<&'static str>,
    door: Door,
    head: String,
    status: u16,
}

#[derive(Clone, Copy)]
enum Door {
    Mtls = 0,
    Plain = 1,
    Bytes = 2,
}

const A: &str = "mesh.example/ns/shop/sa/a";

/// A request in plain text.
fn plain(line: &str, headers: &str, status: u16) -> Asked {
    Asked { identity: None, door: Door::Plain, head: head(line, headers), status }
}

/// A request by mTLS.
fn by(identity: &'static str, line: &str, status: u16) -> Asked {
    Asked { identity: Some(identity), door: Door::Mtls, head: head(line, ""), status }
}

/// `METHOD PATH`, and header lines; the host is `a.example` where none is among them.
fn head(line: &str, headers: &str) -> String {
    let host = if headers.contains("host:") { "" } else { "host: a.example\r\n" };
    format!("{line} HTTP/1.1\r\n{host}connection: close\r\n{headers}\r\n")
}

fn object(kind: &str, namespace: &str, name: &str, spec: Value) -> Value {
    json!({
        "apiVersion": "security.istio.io/v1", "kind": kind,
        "metadata": { "namespace": namespace, "name": name }, "spec": spec,
    })
}

fn policy(action: &str, rules: Value) -> Value {
    object(
        "AuthorizationPolicy",
        "shop",
        &action.to_lowercase(),
        json!({ "action": action, "rules": rules }),
    )
}

/// A rule that denies these values of a field of an operation.
fn deny(field: &str, values: &[&str]) -> Vec<Value> {
    vec![policy("DENY", json!([{ "to": [{ "operation": { field: values } }] }]))]
}

fn allow_from(source: Value) -> Vec<Value> {
    vec![policy("ALLOW", json!([{ "from": [{ "source": source }] }]))]
}

fn case(name: &'static str, objects: Vec<Value>, asked: Vec<Asked>) -> Case {
    Case { name, objects, own_modes: false, asked }
}

/// What a peer gets wrong. Those that are not about requests to workloads have their tests where they belong.
fn flaws() -> Vec<Case> {
    let mut tried = policy("CUSTOM", json!([{}]));
    tried["spec"]["provider"] = json!({ "name": "nobody" });
    let asks = tried.clone();
    tried["metadata"]["annotations"] = json!({ "istio.io/dry-run": "true" });
    let unknown_key = json!([{
        "to": [{ "operation": { "paths": ["/admin"] } }],
        "when": [{ "key": "nobody.knows", "values": ["x"] }],
    }]);
    let bad_range = json!([{
        "from": [{ "source": { "ipBlocks": ["192.0.2.0/24", "nonsense"] } }],
        "to": [{ "operation": { "paths": ["/admin"] } }],
    }]);
    let of_both = json!({ "namespaces": ["shop"], "trustDomains": ["mesh.example"] });
    let admin = |status| plain("GET /admin", "", status);
    let other = || plain("GET /", "", 200);
    let closed = |door| Asked { identity: None, door, head: head("GET /", ""), status: 0 };
    vec![
        case("F-1: a dry run of CUSTOM changes no answer", vec![tried], vec![other()]),
        case("F-1: CUSTOM that can ask nobody denies", vec![asks], vec![plain("GET /", "", 403)]),
        case(
            "F-3: DENY goes without what can't be read",
            vec![policy("DENY", unknown_key)],
            vec![admin(403), other()],
        ),
        case(
            "F-4: one bad value makes DENY no narrower",
            vec![policy("DENY", bad_range)],
            vec![admin(403), other()],
        ),
        case(
            "F-6: ALLOW without rules allows nothing",
            vec![policy("ALLOW", json!([]))],
            vec![plain("GET /", "", 403), by(A, "GET /", 403)],
        ),
        case(
            "F-7: namespace and trust domain are both asked for",
            allow_from(of_both),
            vec![
                by(A, "GET /", 200),
                by("old.example/ns/shop/sa/a", "GET /", 200),
                by("foreign.org/ns/shop/sa/a", "GET /", 403),
                by("mesh.example/ns/pay/sa/a", "GET /", 403),
            ],
        ),
        Case {
            name: "F-8: a STRICT port under a PERMISSIVE workload, a DISABLE port under an unset one",
            objects: vec![
                object(
                    "PeerAuthentication",
                    "root",
                    "mesh",
                    json!({ "mtls": { "mode": "STRICT" } }),
                ),
                object(
                    "PeerAuthentication",
                    "shop",
                    "web",
                    json!({
                        "selector": { "matchLabels": { "app": "web" } },
                        "mtls": { "mode": "PERMISSIVE" },
                        "portLevelMtls": { "MTLS": { "mode": "STRICT" }, "BYTES": { "mode": "UNSET" } },
                    }),
                ),
            ],
            own_modes: true,
            asked: vec![closed(Door::Mtls), by(A, "GET /", 200), other()],
        },
        Case {
            name: "F-8: a DISABLE port where the mesh is STRICT",
            objects: vec![
                object(
                    "PeerAuthentication",
                    "root",
                    "mesh",
                    json!({ "mtls": { "mode": "STRICT" } }),
                ),
                object(
                    "PeerAuthentication",
                    "shop",
                    "web",
                    json!({
                        "selector": { "matchLabels": { "app": "web" } },
                        "portLevelMtls": { "PLAIN": { "mode": "DISABLE" } },
                    }),
                ),
            ],
            own_modes: true,
            asked: vec![other(), closed(Door::Mtls), closed(Door::Bytes), by(A, "GET /", 200)],
        },
        case(
            "F-21: a host is kept out in every form",
            deny("hosts", &["a.example"]),
            vec![
                plain("GET /", "host: a.example\r\n", 403),
                plain("GET /", "host: A.Example\r\n", 403),
                plain("GET /", "host: a.example:8080\r\n", 403),
                plain("GET /", "host: a.example.\r\n", 403),
                plain("GET /", "host: a.example.:80\r\n", 403),
                plain("GET /", "host: axexample\r\n", 200),
                plain("GET /", "host: b.a.example\r\n", 200),
            ],
        ),
        case(
            "F-21: the end of a host likewise",
            deny("hosts", &["*.example"]),
            vec![
                plain("GET /", "host: x.EXAMPLE.:80\r\n", 403),
                plain("GET /", "host: example.com\r\n", 200),
            ],
        ),
        case(
            "F-22: a connection that is denied is told nothing by the workload",
            vec![policy(
                "DENY",
                json!([{ "from": [{ "source": { "ipBlocks": ["127.0.0.0/8"] } }] }]),
            )],
            vec![closed(Door::Bytes)],
        ),
        case(
            "F-23: DENY by identity sees nobody in plain text, which a finding tells (STR0825)",
            vec![policy("DENY", json!([{ "from": [{ "source": { "principals": [A] } }] }]))],
            vec![by(A, "GET /", 403), by("mesh.example/ns/shop/sa/b", "GET /", 200), other()],
        ),
    ]
}

/// What has been found in proxies and meshes before.
fn vulnerabilities() -> Vec<Case> {
    let role = |action: &str| {
        let when = json!([{ "when": [{ "key": "request.headers[X-Role]", "values": ["admin"] }] }]);
        vec![policy(action, when)]
    };
    let with = |headers: &str, status| plain("GET /", headers, status);
    vec![
        case(
            "CVE-2021-31920, -29492: a path in every form",
            deny("paths", &["/admin*"]),
            vec![
                plain("GET /admin", "", 403),
                plain("GET //admin", "", 403),
                plain("GET ///admin/x", "", 403),
                plain("GET /./admin", "", 403),
                plain("GET /x/../admin", "", 403),
                plain("GET /%2e/admin", "", 403),
                plain("GET /%61dmin", "", 403),
                plain("GET /\\admin", "", 403),
                plain("GET /admin?x=1", "", 403),
                plain("GET /administrator", "", 403),
                // The path of another resource, which stays as it is written.
                plain("GET /x%2Fadmin", "", 200),
                plain("GET /ADMIN", "", 200),
            ],
        ),
        case(
            "CVE-2021-39156: a fragment is no part of a path",
            deny("paths", &["/admin"]),
            vec![plain("GET /admin#x", "", 400), plain("GET /#/admin", "", 400)],
        ),
        case(
            "control characters and NUL",
            deny("paths", &["/admin"]),
            vec![plain("GET /%00admin", "", 400), plain("GET /\u{1}admin", "", 400)],
        ),
        case(
            "CVE-2021-39155: a host in any case",
            deny("hosts", &["httpbin.foo"]),
            vec![plain("GET /", "host: Httpbin.Foo\r\n", 403)],
        ),
        case(
            "CVE-2026-26308: any of a header's values is denied",
            role("DENY"),
            vec![
                with("x-role: admin\r\n", 403),
                with("x-role: user\r\nx-role: admin\r\n", 403),
                with("x-role: admin\r\nX-ROLE: user\r\n", 403),
                with("x-role: user , admin\r\n", 403),
                with("x-role: administrator\r\n", 200),
                with("", 200),
            ],
        ),
        case(
            "CVE-2026-26308: the header as a whole is allowed",
            role("ALLOW"),
            vec![
                with("x-role: admin\r\n", 200),
                with("x-role: user\r\nx-role: admin\r\n", 403),
                with("x-role: admin, user\r\n", 403),
                with("x-role: admin\r\nx-role: user\r\n", 403),
                with("", 403),
            ],
        ),
        case(
            "CVE-2026-39350: names are no expressions",
            allow_from(json!({ "namespaces": ["a.b"] })),
            vec![
                by("mesh.example/ns/a.b/sa/x", "GET /", 200),
                by("mesh.example/ns/axb/sa/x", "GET /", 403),
            ],
        ),
        case(
            "CVE-2026-39350: nor are those of accounts",
            allow_from(json!({ "serviceAccounts": ["shop/a.b"] })),
            vec![
                by("mesh.example/ns/shop/sa/a.b", "GET /", 200),
                by("mesh.example/ns/shop/sa/axb", "GET /", 403),
                by("mesh.example/ns/shop/sa/a.b.c", "GET /", 403),
            ],
        ),
        case(
            "CVE-2022-39388: nobody is trusted for calling from loopback",
            allow_from(json!({ "principals": ["*"] })),
            vec![plain("GET /", "x-forwarded-for: 127.0.0.1\r\n", 403), by(A, "GET /", 200)],
        ),
        case(
            "a verb is itself in its own case alone",
            deny("methods", &["GET"]),
            vec![plain("GET /", "", 403), plain("get /", "", 400)],
        ),
        case(
            "TCP in place of HTTP: DENY by path denies what has none",
            deny("paths", &["/admin"]),
            vec![
                Asked { identity: None, door: Door::Bytes, head: head("GET /", ""), status: 0 },
                plain("GET /", "", 200),
            ],
        ),
        case(
            "TCP in place of HTTP: ALLOW by path allows no connection",
            vec![policy("ALLOW", json!([{ "to": [{ "operation": { "paths": ["/*"] } }] }]))],
            vec![
                Asked { identity: Some(A), door: Door::Bytes, head: head("GET /", ""), status: 0 },
                plain("GET /", "", 200),
            ],
        ),
        case(
            "an account of another trust domain is another",
            allow_from(json!({ "principals": ["cluster.local/ns/shop/sa/a"] })),
            vec![
                by(A, "GET /", 200),
                by("old.example/ns/shop/sa/a", "GET /", 200),
                by("cluster.local/ns/shop/sa/a", "GET /", 403),
                by("foreign.org/ns/shop/sa/a", "GET /", 403),
            ],
        ),
    ]
}

/// What these objects come to, some of which can't be read.
fn as_far_as_readable(objects: &[Value]) -> MeshEvent {
    let objects: Collection = objects.iter().cloned().map(Arc::new).collect();
    let settings = AccessSettings { root: "root".into(), errors: PolicyErrors::Narrow };
    let mut index = AccessIndex::new(settings.clone());
    let change = index.apply(&settings, &objects).expect("the first time");
    MeshEvent::Access(change.policies, change.causes)
}

#[tokio::test]
async fn real_envoys_have_none_of_the_flaws_and_vulnerabilities_that_are_known() {
    const CASES: usize = 25;
    let clients = MeshClients::new(Authority::new());
    let cases: Vec<Case> = flaws().into_iter().chain(vulnerabilities()).collect();
    assert_eq!(cases.len(), CASES);
    for envoy in envoys() {
        let echo = workload_server().await;
        let mut shared = SharedEnvoy::default();
        let all: [u16; 3 * CASES] = free_ports();
        let doors = |at: usize| -> Doors { [all[3 * at], all[3 * at + 1], all[3 * at + 2]] };
        for (at, case) in cases.iter().enumerate() {
            let doors = doors(at);
            let mut objects = case.objects.clone();
            if !case.own_modes {
                objects.push(modes_of_doors(doors));
            }
            let mut text = json!(objects).to_string();
            for (name, port) in ["MTLS", "PLAIN", "BYTES"].into_iter().zip(doors) {
                text = text.replace(&format!("\"{name}\""), &format!("\"{port}\""));
            }
            let objects: Vec<Value> = serde_json::from_str(&text).expect("JSON");
            let sidecar = behind_doors(as_far_as_readable(&objects), doors);
            shared.add(&format!("case-{at}"), &sidecar, doors, echo);
        }
        let running = shared.run(&envoy, "the cases", &clients.authority).await;
        let from: IpAddr = "127.0.0.7".parse().expect("an address");
        let mut wrong = Vec::new();
        for (at, case) in cases.iter().enumerate() {
            for asked in &case.asked {
                let port = doors(at)[asked.door as usize];
                let alpn = if matches!(asked.door, Door::Bytes) { "istio" } else { "http/1.1" };
                let identity = asked.identity.map(|name| format!("spiffe://{name}"));
                let found = clients.say((from, port), identity.as_deref(), alpn, &asked.head).await;
                if found != asked.status {
                    let line = asked.head.replace("\r\n", " | ");
                    wrong.push(format!("{}: {found}, not {}: {line}", case.name, asked.status));
                }
            }
        }
        assert!(wrong.is_empty(), "{}: {wrong:#?}", envoy.display());
        drop(running);
    }
}

/// A router of a Gateway at `port` that verifies tokens of these issuers, and leads requests by what they say.
fn router(issuers: &[&Issuer], port: u16) -> (Arc<PushContext>, Proxy) {
    let rules: Vec<_> = issuers
        .iter()
        .map(|issuer| {
            json!({
                "issuer": issuer.name, "jwks": issuer.keys(),
                "fromHeaders": [{ "name": format!("x-{}", issuer.name) }],
                "spaceDelimitedClaims": ["areas"],
            })
        })
        .collect();
    let tokens = object("RequestAuthentication", "edge", "tokens", json!({ "jwtRules": rules }));
    let server =
        json!({ "port": { "number": port, "name": "http", "protocol": "HTTP" }, "hosts": ["*"] });
    let gateway = json!({ "selector": { "app": "gateway" }, "servers": [server] });
    let answers = |claims: Value, without: Value, status: u16| {
        json!({
            "match": [{ "headers": claims, "withoutHeaders": without }],
            "directResponse": { "status": status },
        })
    };
    let claim = |name: &str, value: &str| json!({ format!("@request.auth.claims{name}"): { "exact": value } });
    let mut of_one_token = claim(".group", "admin");
    of_one_token["@request.auth.claims.tenant"] = json!({ "prefix": "shop-" });
    let routes = json!({
        "hosts": ["*"], "gateways": ["edge/gw"],
        "http": [
            answers(of_one_token, json!({}), 201),
            answers(claim("[realm.access][roles]", "buyer"), json!({}), 202),
            answers(claim(".areas", "north"), json!({}), 203),
            answers(json!({}), json!({ "@request.auth.claims.sub": {} }), 204),
            answers(json!({}), json!({}), 205),
        ],
    });
    let mut traffic = TrafficIndex::new(kind_settings());
    let key = |kind: &str, name: &str| ObjectKey {
        kind: kind.into(),
        group: ISTIO_NETWORKING.into(),
        namespace: "edge".into(),
        name: name.into(),
    };
    let objects = [("Gateway", "gw", gateway), ("VirtualService", "routes", routes)];
    let mut held = Collection::default();
    for (kind, name, spec) in objects {
        held.insert(key(kind, name), Arc::new(json!({ "spec": spec })));
    }
    let mut mesh = mesh();
    let pod = workload("gw.edge", "10.0.0.1", &[("app", "gateway")]);
    mesh.apply(MeshEvent::Registry(shard("east", 1).network("n1").pod(pod).said()));
    mesh.apply(MeshEvent::Traffic(traffic.apply(&held).expect("there are objects")));
    mesh.apply(event_of("root", [tokens]));
    mesh.apply(MeshEvent::Complete);
    let router = Proxy {
        kind: ProxyType::Router,
        labels: labels(&[("app", "gateway")]),
        ..sidecar("gw.edge", "east")
    };
    (mesh.next_version().expect("a first version").0, router)
}

/// Claims are known when a route is chosen, those of each token for themselves.
#[tokio::test]
async fn real_envoys_choose_routes_by_what_tokens_say() {
    let (a, b) = (Issuer::new("a"), Issuer::new("b"));
    let token = |issuer: &Issuer, claims: Value| {
        format!("x-{}: {}\r\n", issuer.name, issuer.token(issuer.name, claims))
    };
    let admin = json!({ "sub": "x", "group": "admin", "tenant": "shop-1" });
    let cases = [
        (String::new(), 204, "nobody"),
        (token(&a, json!({ "sub": "x" })), 205, "somebody of whom nothing else is known"),
        (token(&a, admin.clone()), 201, "both claims in one token"),
        (token(&b, admin), 201, "in one of another issuer"),
        (
            token(&a, json!({ "sub": "x", "group": "admin" }))
                + &token(&b, json!({ "sub": "x", "tenant": "shop-1" })),
            205,
            "each in a token of another issuer",
        ),
        (
            token(&a, json!({ "sub": "x", "group": ["user", "admin"], "tenant": "shop-1" })),
            201,
            "one of a list",
        ),
        (token(&a, json!({ "sub": "x", "group": "admin", "tenant": "pay" })), 205, "one of two"),
        (token(&a, json!({ "sub": "x", "realm.access": { "roles": ["buyer"] } })), 202, "deeper"),
        (token(&a, json!({ "sub": "x", "areas": "south north" })), 203, "a list in a text"),
        (token(&a, json!({ "sub": "x", "areas": "southnorth" })), 205, "no list in a text"),
        ("x-a: nonsense\r\n".to_owned(), 401, "no token"),
        (
            "@request.auth.claims.group: admin\r\n".to_owned(),
            400,
            "a header that is called like a claim",
        ),
    ];
    let clients = MeshClients::new(Authority::new());
    for envoy in envoys() {
        let [port] = free_ports();
        let (context, proxy) = router(&[&a, &b], port);
        let mut listener = listeners(&context, &proxy).into_values().next().expect("one");
        listener["address"] = at_loopback(port);
        let config = &mut listener["filter_chains"][0]["filters"][0]["typed_config"];
        config["route_config"] = route(&context, &proxy, &format!("http.{port}"));
        config.as_object_mut().expect("an object").remove("rds");
        let clusters = held(&context, &proxy, ResourceType::Cluster).into_iter();
        let clusters = clusters.map(|(name, one)| static_cluster(one, to_loopback(&name, port)));
        let bootstrap = bootstrap(vec![listener], clusters.collect());
        validated(&envoy, "routes by claims", &bootstrap);
        let running = Running::start(&envoy, &bootstrap).await;
        let from: IpAddr = "127.0.0.7".parse().expect("an address");
        for (headers, status, what) in &cases {
            let found = clients.say((from, port), None, "", &head("GET /", headers)).await;
            assert_eq!(found, *status, "{}: {what}", envoy.display());
        }
        drop(running);
    }
}
