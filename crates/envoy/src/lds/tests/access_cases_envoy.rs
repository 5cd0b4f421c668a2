//! Known flaws of another control plane's access policies and classes of vulnerabilities in proxies
//! and meshes, tested with real requests through real Envoys. One Envoy acts as the sidecars of all
//! cases.

use std::net::IpAddr;

use serde_json::json;

use super::access::event_with_root;
use super::access_envoy::{
    Doors, Issuer, MeshClients, OLD_TLS, SharedEnvoy, answered_whole, behind_doors_with_config,
    client_config, door_modes,
};
use super::envoy::{
    Authority, Running, at_loopback, bootstrap, envoys, free_ports, static_cluster, to_loopback,
    validated, workload_server,
};
use super::*;
use strait_model::{Collection, ISTIO_NETWORKING, ObjectKey};
use strait_rules::access::{AccessIndex, AccessSettings, PolicyErrors};
use strait_rules::testing::kind_settings;
use strait_rules::traffic::TrafficIndex;

/// A case: the flaw or vulnerability and the expected behavior, the policies, and requests with
/// their results.
struct Case {
    name: &'static str,
    /// JSON with these keys: `ALLOW`, `DENY` or `CUSTOM` (rules), `CUSTOM tried` (rules in dry-run
    /// mode), `KIND NAMESPACE/NAME` (a spec), `NORMALIZATION` (the value of `pathNormalization`),
    /// `MTLS` (the value of `meshMTLS`).
    policies: &'static str,
    requests: &'static [CaseRequest],
}

/// A request: the caller, the request line (with the prefix `h2` for HTTP/2), header lines
/// separated by `; `, and the response status, or 0 for none. Without a host header, the host is
/// `a.example`.
///
/// The caller is `plain` (plain text), `bytes` (plain text at the raw TCP port), `mtls` (plain text
/// at the port that accepts only mTLS), or an identity (`DOMAIN/ns/NAMESPACE/sa/ACCOUNT`, by mTLS).
/// An identity may have the prefix `bytes` (at the raw TCP port) or `tls1.2` (no later TLS
/// version).
type CaseRequest = (&'static str, &'static str, &'static str, u16);

#[derive(Clone, Copy)]
enum Door {
    Mtls = 0,
    Plain = 1,
    Bytes = 2,
}

const A: &str = "mesh.example/ns/shop/sa/a";

/// Flaws of another control plane. Flaws that do not concern requests to workloads are tested
/// elsewhere.
const FLAWS: [Case; 12] = [
    Case {
        name: "F-1: a dry run of CUSTOM changes no response",
        policies: r#"{"CUSTOM tried": [{}]}"#,
        requests: &[("plain", "GET /", "", 200)],
    },
    Case {
        name: "F-1: CUSTOM without a usable provider denies",
        policies: r#"{"CUSTOM": [{}]}"#,
        requests: &[("plain", "GET /", "", 403)],
    },
    Case {
        name: "F-3: DENY applies without an unreadable field",
        policies: r#"{"DENY": [{"to": [{"operation": {"paths": ["/admin"]}}], "when": [{"key": "nobody.knows", "values": ["x"]}]}]}"#,
        requests: &[("plain", "GET /admin", "", 403), ("plain", "GET /", "", 200)],
    },
    Case {
        name: "F-4: one invalid value does not narrow DENY",
        policies: r#"{"DENY": [{"from": [{"source": {"ipBlocks": ["192.0.2.0/24", "nonsense"]}}], "to": [{"operation": {"paths": ["/admin"]}}]}]}"#,
        requests: &[("plain", "GET /admin", "", 403), ("plain", "GET /", "", 200)],
    },
    Case {
        name: "F-6: ALLOW without rules allows nothing",
        policies: r#"{"ALLOW": []}"#,
        requests: &[("plain", "GET /", "", 403), (A, "GET /", "", 403)],
    },
    Case {
        name: "F-7: namespace and trust domain must both match",
        policies: r#"{"ALLOW": [{"from": [{"source": {"namespaces": ["shop"], "trustDomains": ["mesh.example"]}}]}]}"#,
        requests: &[
            (A, "GET /", "", 200),
            ("old.example/ns/shop/sa/a", "GET /", "", 200),
            ("foreign.org/ns/shop/sa/a", "GET /", "", 403),
            ("mesh.example/ns/pay/sa/a", "GET /", "", 403),
        ],
    },
    Case {
        name: "F-8: a STRICT port under a PERMISSIVE workload, a DISABLE port under an unset one",
        policies: r#"{
            "PeerAuthentication root/mesh": {"mtls": {"mode": "STRICT"}},
            "PeerAuthentication shop/web": {
                "selector": {"matchLabels": {"app": "web"}},
                "mtls": {"mode": "PERMISSIVE"},
                "portLevelMtls": {"MTLS": {"mode": "STRICT"}, "BYTES": {"mode": "UNSET"}}
            }
        }"#,
        requests: &[("mtls", "GET /", "", 0), (A, "GET /", "", 200), ("plain", "GET /", "", 200)],
    },
    Case {
        name: "F-8: a DISABLE port where the mesh is STRICT",
        policies: r#"{
            "PeerAuthentication root/mesh": {"mtls": {"mode": "STRICT"}},
            "PeerAuthentication shop/web": {
                "selector": {"matchLabels": {"app": "web"}},
                "portLevelMtls": {"PLAIN": {"mode": "DISABLE"}}
            }
        }"#,
        requests: &[
            ("plain", "GET /", "", 200),
            ("mtls", "GET /", "", 0),
            ("bytes", "GET /", "", 0),
            (A, "GET /", "", 200),
        ],
    },
    Case {
        name: "F-21: a host is denied in every form",
        policies: r#"{"DENY": [{"to": [{"operation": {"hosts": ["a.example"]}}]}]}"#,
        requests: &[
            ("plain", "GET /", "host: a.example", 403),
            ("plain", "GET /", "host: A.Example", 403),
            ("plain", "GET /", "host: a.example:8080", 403),
            ("plain", "GET /", "host: a.example.", 403),
            ("plain", "GET /", "host: a.example.:80", 403),
            ("plain", "GET /", "host: axexample", 200),
            ("plain", "GET /", "host: b.a.example", 200),
        ],
    },
    Case {
        name: "F-21: a host suffix is denied in every form",
        policies: r#"{"DENY": [{"to": [{"operation": {"hosts": ["*.example"]}}]}]}"#,
        requests: &[
            ("plain", "GET /", "host: x.EXAMPLE.:80", 403),
            ("plain", "GET /", "host: example.com", 200),
        ],
    },
    Case {
        name: "F-22: a denied connection receives nothing from the workload",
        policies: r#"{"DENY": [{"from": [{"source": {"ipBlocks": ["127.0.0.0/8"]}}]}]}"#,
        requests: &[("bytes", "GET /", "", 0)],
    },
    Case {
        name: "F-23: DENY by identity matches no plain-text client, which STR0825 reports",
        policies: r#"{"DENY": [{"from": [{"source": {"principals": ["mesh.example/ns/shop/sa/a"]}}]}]}"#,
        requests: &[
            (A, "GET /", "", 403),
            ("mesh.example/ns/shop/sa/b", "GET /", "", 200),
            ("plain", "GET /", "", 200),
        ],
    },
];

/// Known vulnerabilities of proxies and meshes.
const VULNERABILITIES: [Case; 21] = [
    Case {
        name: "CVE-2021-31920, -29492: a path in every form",
        policies: r#"{"DENY": [{"to": [{"operation": {"paths": ["/admin*"]}}]}]}"#,
        requests: &[
            ("plain", "GET /admin", "", 403),
            ("plain", "GET //admin", "", 403),
            ("plain", "GET ///admin/x", "", 403),
            ("plain", "GET /./admin", "", 403),
            ("plain", "GET /x/../admin", "", 403),
            ("plain", "GET /%2e/admin", "", 403),
            ("plain", "GET /%61dmin", "", 403),
            ("plain", "GET /\\admin", "", 403),
            ("plain", "GET /admin?x=1", "", 403),
            ("plain", "GET /administrator", "", 403),
            // The path of another resource, which is not normalized.
            ("plain", "GET /x%2Fadmin", "", 200),
            ("plain", "GET /ADMIN", "", 200),
        ],
    },
    Case {
        name: "CVE-2021-39156: a fragment is not part of a path",
        policies: r#"{"DENY": [{"to": [{"operation": {"paths": ["/admin"]}}]}]}"#,
        requests: &[("plain", "GET /admin#x", "", 400), ("plain", "GET /#/admin", "", 400)],
    },
    Case {
        name: "control characters and NUL",
        policies: r#"{"DENY": [{"to": [{"operation": {"paths": ["/admin"]}}]}]}"#,
        requests: &[("plain", "GET /%00admin", "", 400), ("plain", "GET /\u{1}admin", "", 400)],
    },
    Case {
        name: "CVE-2026-73551: dot segments with parameters do not bypass DENY",
        policies: r#"{"DENY": [{"to": [{"operation": {"paths": ["/admin", "/admin/*"]}}]}]}"#,
        requests: &[
            ("plain", "GET /x/..;/admin", "", 403),
            ("plain", "GET /x/..;a=1/admin", "", 403),
            ("plain", "GET /.;/admin", "", 403),
            ("plain", "GET /public/%2e%2e;/admin", "", 403),
            ("plain", "GET /public/.%2E;x/admin", "", 403),
            ("plain", "GET /public\\..;\\admin", "", 403),
            ("plain", "GET /admin;x/..", "", 200),
            ("plain", "GET /x/...;/a", "", 200),
            ("plain", "GET /x?a=/..;/admin", "", 200),
        ],
    },
    Case {
        name: "CVE-2026-73551: dot segments with parameters do not bypass ALLOW",
        policies: r#"{"ALLOW": [{"to": [{"operation": {"paths": ["/public/*"]}}]}]}"#,
        requests: &[
            ("plain", "GET /public/..;/x", "", 403),
            ("plain", "GET /public/%2e%2e;/x", "", 403),
            ("plain", "GET /public/x;a=1", "", 200),
        ],
    },
    Case {
        name: "rules without paths and dry runs deny no dot segments",
        policies: r#"{"DENY": [{"to": [{"operation": {"methods": ["PUT"]}}]}], "CUSTOM tried": [{"to": [{"operation": {"paths": ["/a"]}}]}]}"#,
        requests: &[("plain", "GET /x/%2e%2e;/admin", "", 200)],
    },
    Case {
        name: "CVE-2021-39155: a host in any case",
        policies: r#"{"DENY": [{"to": [{"operation": {"hosts": ["httpbin.foo"]}}]}]}"#,
        requests: &[("plain", "GET /", "host: Httpbin.Foo", 403)],
    },
    Case {
        name: "hosts with an invalid port, repeated hosts, hosts in the request line and in :authority",
        policies: r#"{"DENY": [
            {"to": [{"operation": {"hosts": ["a.example", "c.example:8080"]}}]},
            {"when": [{"key": "request.headers[host]", "values": ["d.example"]}]}
        ]}"#,
        requests: &[
            ("plain", "GET /", "host: a.example:", 403),
            ("plain", "GET /", "host: a.example.:", 403),
            ("plain", "GET /", "host: a.example:8x", 403),
            ("plain", "GET /", "host: user@a.example", 403),
            ("plain", "GET /", "host: b.example; host: a.example", 403),
            ("plain", "GET /", "host: a.example; host: b.example", 403),
            ("plain", "GET /", "host: c.example.:8080", 403),
            ("plain", "GET http://a.example/", "host: b.example", 403),
            ("plain", "GET http://a.example", "host: b.example", 403),
            ("plain", "GET /", "host: D.example:80", 403),
            ("plain", "h2 GET /", "host: a.example", 403),
            ("plain", "GET /", "host: b.example", 200),
            ("plain", "GET /", "host: c.example:80801", 200),
        ],
    },
    Case {
        name: "an allowed host is the only allowed one",
        policies: r#"{"ALLOW": [{"to": [{"operation": {"hosts": ["a.example"]}}]}]}"#,
        requests: &[
            ("plain", "GET /", "host: A.example.:80", 200),
            ("plain", "GET /", "host: b.example; host: a.example", 403),
            ("plain", "GET /", "host: a.example:8x", 403),
        ],
    },
    Case {
        name: "CVE-2026-26308: any of a header's values is denied",
        policies: r#"{"DENY": [{"when": [{"key": "request.headers[X-Role]", "values": ["admin"]}]}]}"#,
        requests: &[
            ("plain", "GET /", "x-role: admin", 403),
            ("plain", "GET /", "x-role: user; x-role: admin", 403),
            ("plain", "GET /", "x-role: admin; X-ROLE: user", 403),
            ("plain", "GET /", "x-role: user , admin", 403),
            ("plain", "GET /", "x-role: administrator", 200),
            ("plain", "GET /", "", 200),
        ],
    },
    Case {
        name: "CVE-2026-26308: only the entire header is allowed",
        policies: r#"{"ALLOW": [{"when": [{"key": "request.headers[X-Role]", "values": ["admin"]}]}]}"#,
        requests: &[
            ("plain", "GET /", "x-role: admin", 200),
            ("plain", "GET /", "x-role: user; x-role: admin", 403),
            ("plain", "GET /", "x-role: admin, user", 403),
            ("plain", "GET /", "x-role: admin; x-role: user", 403),
            ("plain", "GET /", "", 403),
        ],
    },
    Case {
        name: "CVE-2026-39350: namespaces are not regular expressions",
        policies: r#"{"ALLOW": [{"from": [{"source": {"namespaces": ["a.b"]}}]}]}"#,
        requests: &[
            ("mesh.example/ns/a.b/sa/x", "GET /", "", 200),
            ("mesh.example/ns/axb/sa/x", "GET /", "", 403),
        ],
    },
    Case {
        name: "CVE-2026-39350: accounts are not regular expressions",
        policies: r#"{"ALLOW": [{"from": [{"source": {"serviceAccounts": ["shop/a.b"]}}]}]}"#,
        requests: &[
            ("mesh.example/ns/shop/sa/a.b", "GET /", "", 200),
            ("mesh.example/ns/shop/sa/axb", "GET /", "", 403),
            ("mesh.example/ns/shop/sa/a.b.c", "GET /", "", 403),
        ],
    },
    Case {
        name: "CVE-2022-39388: clients on loopback are not trusted",
        policies: r#"{"ALLOW": [{"from": [{"source": {"principals": ["*"]}}]}]}"#,
        requests: &[("plain", "GET /", "x-forwarded-for: 127.0.0.1", 403), (A, "GET /", "", 200)],
    },
    Case {
        name: "a denied method is case-sensitive",
        policies: r#"{"DENY": [{"to": [{"operation": {"methods": ["GET"]}}]}]}"#,
        requests: &[
            ("plain", "GET /", "", 403),
            ("plain", "get /", "", 400),
            // HTTP/2 accepts it, and servers may treat it like the other one.
            ("plain", "h2 GET /", "", 403),
            ("plain", "h2 get /", "", 403),
            ("plain", "h2 POST /", "", 200),
        ],
    },
    Case {
        name: "an allowed method is case-sensitive",
        policies: r#"{"ALLOW": [{"to": [{"operation": {"methods": ["GET"]}}]}]}"#,
        requests: &[("plain", "h2 GET /", "", 200), ("plain", "h2 get /", "", 403)],
    },
    Case {
        name: "Envoy accepts all characters of a path template",
        policies: r#"{"DENY": [{"to": [{"operation": {"paths": ["/a-b.c_d~e!$&'()+,;=:@%20/{*}", "/t/{*}/", "/u/{**}"]}}]}]}"#,
        requests: &[
            ("plain", "GET /a-b.c_d~e!$&'()+,;=:@%20/x", "", 403),
            ("plain", "GET /t/x/", "", 403),
            ("plain", "GET //u//x", "", 403),
            ("plain", "GET /t/x", "", 200),
        ],
    },
    Case {
        name: "an IPv4 address in IPv6 format",
        policies: r#"{"DENY": [{"from": [{"source": {"ipBlocks": ["::ffff:127.0.0.0/104"]}}]}]}"#,
        requests: &[("plain", "GET /", "", 403)],
    },
    Case {
        name: "TCP instead of HTTP: DENY by path denies connections",
        policies: r#"{"DENY": [{"to": [{"operation": {"paths": ["/admin"]}}]}]}"#,
        requests: &[("bytes", "GET /", "", 0), ("plain", "GET /", "", 200)],
    },
    Case {
        name: "TCP instead of HTTP: ALLOW by path allows no connection",
        policies: r#"{"ALLOW": [{"to": [{"operation": {"paths": ["/*"]}}]}]}"#,
        requests: &[
            ("bytes mesh.example/ns/shop/sa/a", "GET /", "", 0),
            ("plain", "GET /", "", 200),
        ],
    },
    Case {
        name: "an account in another trust domain is a different one",
        policies: r#"{"ALLOW": [{"from": [{"source": {"principals": ["cluster.local/ns/shop/sa/a"]}}]}]}"#,
        requests: &[
            (A, "GET /", "", 200),
            ("old.example/ns/shop/sa/a", "GET /", "", 200),
            ("cluster.local/ns/shop/sa/a", "GET /", "", 403),
            ("foreign.org/ns/shop/sa/a", "GET /", "", 403),
        ],
    },
];

/// Settings of the mesh config: TLS versions and ciphers of mTLS, and path normalization in
/// increasing strength.
const SETTINGS: [Case; 7] = [
    Case {
        name: "TLS 1.2 is accepted by default",
        policies: r#"{}"#,
        requests: &[(A, "GET /", "", 200), ("tls1.2 mesh.example/ns/shop/sa/a", "GET /", "", 200)],
    },
    Case {
        name: "TLS 1.3 alone",
        policies: r#"{"MTLS": {"minProtocolVersion": "TLSV1_3"}}"#,
        requests: &[
            (A, "GET /", "", 200),
            ("tls1.2 mesh.example/ns/shop/sa/a", "GET /", "", 0),
            ("bytes mesh.example/ns/shop/sa/a", "GET /", "", 200),
        ],
    },
    Case {
        // The TLS 1.2 client only supports AES-GCM and ChaCha20.
        name: "ciphers that a TLS 1.2 client does not support",
        policies: r#"{"MTLS": {"cipherSuites": ["ECDHE-ECDSA-AES256-SHA", "ECDHE-RSA-AES256-SHA"]}}"#,
        requests: &[(A, "GET /", "", 200), ("tls1.2 mesh.example/ns/shop/sa/a", "GET /", "", 0)],
    },
    Case {
        name: "NONE: a path is matched as written",
        policies: r#"{"NORMALIZATION": "NONE", "DENY": [{"to": [{"operation": {"paths": ["/admin*"]}}]}]}"#,
        requests: &[
            ("plain", "GET /admin", "", 403),
            ("plain", "GET /x/../admin", "", 200),
            ("plain", "GET /%61dmin", "", 200),
            ("plain", "GET //admin", "", 200),
            ("plain", "GET /x%2F..%2Fadmin", "", 200),
        ],
    },
    Case {
        name: "BASE: dots are resolved and unreserved characters unescaped",
        policies: r#"{"NORMALIZATION": "BASE", "DENY": [{"to": [{"operation": {"paths": ["/admin*"]}}]}]}"#,
        requests: &[
            ("plain", "GET /admin", "", 403),
            ("plain", "GET /x/../admin", "", 403),
            ("plain", "GET /./admin", "", 403),
            ("plain", "GET /%61dmin", "", 403),
            ("plain", "GET //admin", "", 200),
            ("plain", "GET /x%2F..%2Fadmin", "", 200),
        ],
    },
    Case {
        name: "MERGE_SLASHES: repeated slashes are merged, escaped ones are not",
        policies: r#"{"NORMALIZATION": "MERGE_SLASHES", "DENY": [{"to": [{"operation": {"paths": ["/admin*"]}}]}]}"#,
        requests: &[
            ("plain", "GET /x/../admin", "", 403),
            ("plain", "GET //admin", "", 403),
            ("plain", "GET ///./admin", "", 403),
            ("plain", "GET /%2Fadmin", "", 200),
            ("plain", "GET /x%2F..%2Fadmin", "", 200),
        ],
    },
    Case {
        name: "DECODE_AND_MERGE_SLASHES: escaped slashes are slashes",
        policies: r#"{"NORMALIZATION": "DECODE_AND_MERGE_SLASHES", "DENY": [{"to": [{"operation": {"paths": ["/admin*"]}}]}]}"#,
        requests: &[
            ("plain", "GET //admin", "", 403),
            ("plain", "GET /%2Fadmin", "", 403),
            ("plain", "GET /%2fadmin", "", 403),
            ("plain", "GET /%5Cadmin", "", 403),
            ("plain", "GET /x%2F..%2Fadmin", "", 403),
            ("plain", "GET /%2e%2e%2fadmin", "", 403),
            ("plain", "GET /x%2Fadmin", "", 200),
        ],
    },
];

impl Case {
    /// Returns additional lines for the mesh config.
    fn config(&self) -> String {
        let policies: Value = serde_json::from_str(self.policies).expect(self.name);
        let paths = policies["NORMALIZATION"].as_str();
        let paths = paths.map(|value| format!("pathNormalization: {{normalization: {value}}}\n"));
        let mtls = policies.get("MTLS").map(|value| format!("meshMTLS: {value}\n"));
        paths.into_iter().chain(mtls).collect()
    }

    /// Returns whether the policies set the mTLS modes of ports. Otherwise each port has the mode
    /// that its `Door` names.
    fn has_own_modes(&self) -> bool {
        self.policies.contains("PeerAuthentication")
    }

    fn objects(&self) -> Vec<Value> {
        let policies: serde_json::Map<String, Value> =
            serde_json::from_str(self.policies).expect(self.name);
        let is_policy = |name: &str| !matches!(name, "NORMALIZATION" | "MTLS");
        let policies = policies.into_iter().filter(|(name, _)| is_policy(name));
        policies.map(|(name, content)| case_object(&name, content)).collect()
    }
}

/// Returns the object for an entry of a case's policies.
fn case_object(name: &str, content: Value) -> Value {
    if let Some((kind, key)) = name.split_once(' ')
        && let Some((namespace, name)) = key.split_once('/')
    {
        return object(kind, namespace, name, content);
    }
    let (action, tried) = name.split_once(' ').map_or((name, false), |(action, _)| (action, true));
    let mut spec = json!({ "action": action, "rules": content });
    if action == "CUSTOM" {
        spec["provider"] = json!({ "name": "nobody" });
    }
    let mut policy = object("AuthorizationPolicy", "shop", &action.to_lowercase(), spec);
    if tried {
        policy["metadata"]["annotations"] = json!({ "istio.io/dry-run": "true" });
    }
    policy
}

fn object(kind: &str, namespace: &str, name: &str, spec: Value) -> Value {
    json!({
        "apiVersion": "security.istio.io/v1", "kind": kind,
        "metadata": { "namespace": namespace, "name": name }, "spec": spec,
    })
}

/// Returns the port and the identity of a caller.
fn caller_door(who: &'static str) -> (Door, Option<&'static str>) {
    match who {
        "plain" => (Door::Plain, None),
        "mtls" => (Door::Mtls, None),
        "bytes" => (Door::Bytes, None),
        who => match who.strip_prefix("bytes ") {
            Some(identity) => (Door::Bytes, Some(identity)),
            None => (Door::Mtls, Some(who)),
        },
    }
}

/// Returns a request: `METHOD PATH` and header lines, with the default host `a.example`.
fn head(line: &str, headers: &str) -> String {
    let lines = headers.split("; ").filter(|one| !one.is_empty());
    let lines: String = lines.map(|one| format!("{one}\r\n")).collect();
    let host = if lines.contains("host:") { "" } else { "host: a.example\r\n" };
    format!("{line} HTTP/1.1\r\n{host}connection: close\r\n{lines}\r\n")
}

/// Returns the event for these objects. Some of them cannot be read.
pub(super) fn as_far_as_readable(objects: &[Value]) -> MeshEvent {
    let objects: Collection = objects.iter().cloned().map(Arc::new).collect();
    let settings = AccessSettings { root: "root".into(), errors: PolicyErrors::Narrow };
    let mut index = AccessIndex::new(settings.clone());
    let change = index.apply(&settings, &objects).expect("the first time");
    MeshEvent::Access(change.policies, change.causes)
}

#[tokio::test]
async fn envoys_have_no_known_flaw_or_vulnerability() {
    const CASES: usize = FLAWS.len() + VULNERABILITIES.len() + SETTINGS.len();
    let clients = MeshClients::new(Authority::new());
    for envoy in envoys() {
        let cases = || FLAWS.iter().chain(&VULNERABILITIES).chain(&SETTINGS).enumerate();
        let echo = workload_server().await;
        let mut shared = SharedEnvoy::default();
        let all: [u16; 3 * CASES] = free_ports();
        let doors = |at: usize| -> Doors { [all[3 * at], all[3 * at + 1], all[3 * at + 2]] };
        for (at, case) in cases() {
            let doors = doors(at);
            let mut objects = case.objects();
            if !case.has_own_modes() {
                objects.push(door_modes(doors));
            }
            let mut text = json!(objects).to_string();
            for (name, port) in ["MTLS", "PLAIN", "BYTES"].into_iter().zip(doors) {
                text = text.replace(&format!("\"{name}\""), &format!("\"{port}\""));
            }
            let objects: Vec<Value> = serde_json::from_str(&text).expect("JSON");
            let sidecar =
                behind_doors_with_config(&case.config(), as_far_as_readable(&objects), doors);
            shared.add(&format!("case-{at}"), &sidecar, doors, echo);
        }
        let running = shared.run(&envoy, "the cases", &clients.authority).await;
        let from: IpAddr = "127.0.0.7".parse().expect("an address");
        let mut wrong = Vec::new();
        for (at, case) in cases() {
            for (who, line, headers, status) in case.requests {
                let (door, identity) = caller_door(who);
                let port = doors(at)[door as usize];
                let alpn = if matches!(door, Door::Bytes) { "istio" } else { "http/1.1" };
                let identity = identity.map(|name| match name.strip_prefix(OLD_TLS) {
                    Some(name) => format!("{OLD_TLS}spiffe://{name}"),
                    None => format!("spiffe://{name}"),
                });
                let found = match line.strip_prefix("h2 ") {
                    Some(line) => {
                        let host = headers.strip_prefix("host: ").unwrap_or("a.example");
                        clients.send_in_http2((from, port), line, host).await
                    }
                    None => {
                        let head = head(line, headers);
                        clients.send_head((from, port), identity.as_deref(), alpn, &head).await
                    }
                };
                if found != *status {
                    wrong.push(format!(
                        "{}: {found}, not {status}: {who} {line} {headers}",
                        case.name
                    ));
                }
            }
        }
        assert!(wrong.is_empty(), "{}: {wrong:#?}", envoy.display());
        drop(running);
    }
}

/// Returns a router of a Gateway at `port` that verifies tokens of these issuers and routes
/// requests by their claims.
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
    let mut claims = claim(".group", "admin");
    claims["@request.auth.claims.tenant"] = json!({ "prefix": "shop-" });
    let routes = json!({
        "hosts": ["*"], "gateways": ["edge/gw"],
        "http": [
            answers(claims, json!({}), 201),
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
    let mut stored = Collection::default();
    for (kind, name, spec) in objects {
        stored.insert(key(kind, name), Arc::new(json!({ "spec": spec })));
    }
    let mut mesh = mesh();
    let pod = workload("gw.edge", "10.0.0.1", &[("app", "gateway")]);
    mesh.apply(MeshEvent::Registry(shard("east", 1).network("n1").pod(pod).built()));
    mesh.apply(MeshEvent::Traffic(traffic.apply(&stored).expect("there are objects")));
    mesh.apply(event_with_root("root", [tokens]));
    mesh.apply(MeshEvent::Complete);
    let router = Proxy {
        kind: ProxyType::Router,
        labels: labels(&[("app", "gateway")]),
        ..sidecar("gw.edge", "east")
    };
    (mesh.next_version().expect("a first version").0, router)
}

/// Claims are known before a route is selected, separately for each token.
#[tokio::test]
async fn real_envoys_select_routes_by_token_claims() {
    let (a, b) = (Issuer::new("a"), Issuer::new("b"));
    let token = |issuer: &Issuer, claims: Value| {
        format!("x-{}: {}; ", issuer.name, issuer.token(issuer.name, claims))
    };
    let admin = json!({ "sub": "x", "group": "admin", "tenant": "shop-1" });
    let cases = [
        (String::new(), 204, "nobody"),
        (token(&a, json!({ "sub": "x" })), 205, "a subject without other claims"),
        (token(&a, admin.clone()), 201, "both claims in one token"),
        (token(&b, admin), 201, "both claims in a token of another issuer"),
        (
            token(&a, json!({ "sub": "x", "group": "admin" }))
                + &token(&b, json!({ "sub": "x", "tenant": "shop-1" })),
            205,
            "each in a token of another issuer",
        ),
        (
            token(&a, json!({ "sub": "x", "group": ["user", "admin"], "tenant": "shop-1" })),
            201,
            "one element of a list",
        ),
        (
            token(&a, json!({ "sub": "x", "group": "admin", "tenant": "pay" })),
            205,
            "one of two claims",
        ),
        (token(&a, json!({ "sub": "x", "realm.access": { "roles": ["buyer"] } })), 202, "deeper"),
        (token(&a, json!({ "sub": "x", "areas": "south north" })), 203, "a list in a string"),
        (
            token(&a, json!({ "sub": "x", "areas": "southnorth" })),
            205,
            "a string without a separator",
        ),
        ("x-a: nonsense".to_owned(), 401, "no token"),
        ("@request.auth.claims.group: admin".to_owned(), 400, "a header with the name of a claim"),
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
        let clusters = list_resources(&context, &proxy, ResourceType::Cluster).into_iter();
        let clusters = clusters.map(|(name, one)| static_cluster(one, to_loopback(&name, port)));
        let bootstrap = bootstrap(vec![listener], clusters.collect());
        validated(&envoy, "routes by claims", &bootstrap);
        let running = Running::start(&envoy, &bootstrap).await;
        let from: IpAddr = "127.0.0.7".parse().expect("an address");
        for (headers, status, what) in &cases {
            let found = clients.send_head((from, port), None, "", &head("GET /", headers)).await;
            assert_eq!(found, *status, "{}: {what}", envoy.display());
        }
        drop(running);
    }
}

/// Returns the first message of a TLS client with this SNI, or without one, and these protocols.
fn client_hello(name: &str, protocols: &[&str]) -> Vec<u8> {
    let identity = "spiffe://mesh.example/ns/shop/sa/a";
    let mut config = client_config(&Authority::new(), identity, protocols);
    config.enable_sni = !name.is_empty();
    // Libraries refuse to send some names, so another name of the same length is sent and then
    // replaced.
    let letter = |at: usize| if at % 32 == 31 && at + 1 < name.len() { '.' } else { 'x' };
    let placeholder: String = (0..name.len().max(1)).map(letter).collect();
    let server = placeholder.clone().try_into().expect("a name");
    let mut client =
        rustls::ClientConnection::new(Arc::new(config), server).expect("a configuration");
    let mut bytes = Vec::new();
    client.write_tls(&mut bytes).expect("written");
    if !name.is_empty() {
        let at = bytes.windows(name.len()).position(|part| part == placeholder.as_bytes());
        let at = at.expect("it asks for the name");
        bytes[at..at + name.len()].copy_from_slice(name.as_bytes());
    }
    bytes
}

/// Starts a workload that sends the same response to all clients and counts connections.
#[expect(clippy::disallowed_methods, reason = "a test's own server, which ends with the test")]
async fn counting_server(answer: &'static [u8]) -> (u16, Arc<std::sync::atomic::AtomicUsize>) {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("bound").port();
    let count = Arc::<std::sync::atomic::AtomicUsize>::default();
    let counted = Arc::clone(&count);
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            counted.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            tokio::spawn(async move {
                let _ = stream.read(&mut [0; 1024]).await;
                let _ = stream.write_all(answer).await;
            });
        }
    });
    (port, count)
}

/// CVE-2021-31921: gateways for other networks forwarded to any name in the SNI, including services
/// that are not exported.
#[tokio::test]
async fn envoys_forward_from_other_networks_only_to_exported_services() {
    const ISTIO: &[&str] = &["istio"];
    let web = "outbound_.80_._.web.ns.svc.cluster.local";
    let cases = [
        (web, ISTIO, true),
        // Names are case-insensitive.
        ("OUTBOUND_.80_._.WEB.ns.svc.cluster.local", ISTIO, true),
        ("outbound_.9000_._.web.ns.svc.cluster.local", ISTIO, true),
        // Not clients of the mesh.
        (web, &["h2", "http/1.1"], false),
        (web, &[], false),
        // Visible only in one namespace or cluster.
        ("outbound_.80_._.here.ns.svc.cluster.local", ISTIO, false),
        ("outbound_.80_._.local.kube-system.svc.cluster.local", ISTIO, false),
        // No such port, subset, or name format.
        ("outbound_.22_._.web.ns.svc.cluster.local", ISTIO, false),
        ("outbound_.80_.v1_.web.ns.svc.cluster.local", ISTIO, false),
        ("web.ns.svc.cluster.local", ISTIO, false),
        ("outbound_.80_._.web.ns.svc.cluster.local.", ISTIO, false),
        ("outbound_.80_._.web.ns.svc.cluster.local\0", ISTIO, false),
        ("a.outbound_.80_._.web.ns.svc.cluster.local", ISTIO, false),
        ("*.ns.svc.cluster.local", ISTIO, false),
        ("*", ISTIO, false),
        ("kubernetes.default.svc.cluster.local", ISTIO, false),
        ("127.0.0.1", ISTIO, false),
        ("", ISTIO, false),
    ];
    let here = service("here.ns")
        .vip("10.1.0.2")
        .with(|it| it.export_to = ExportTo::Namespaces(vec!["ns".into()]));
    let local = service("local.kube-system").vip("10.1.0.3");
    let ports = vec![port("http", 80, 8080), port("tcp", 9000, 9000)];
    let web = service("web.ns").vip("10.1.0.1").ports(ports);
    let context = context(vec![east(vec![(web, vec![]), (here, vec![]), (local, vec![])])]);
    let proxy = east_west_gateway();
    for envoy in envoys() {
        let (workload, count) = counting_server(b"here").await;
        let [port] = free_ports();
        let mut listener = listeners(&context, &proxy).remove("0.0.0.0_15443").expect("one");
        listener["address"] = at_loopback(port);
        let clusters = list_resources(&context, &proxy, ResourceType::Cluster).into_iter();
        let clusters =
            clusters.map(|(name, one)| static_cluster(one, to_loopback(&name, workload)));
        let bootstrap = bootstrap(vec![listener], clusters.collect());
        validated(&envoy, "a gateway of another network", &bootstrap);
        let running = Running::start(&envoy, &bootstrap).await;
        let response_to = async |bytes: Vec<u8>| {
            let stream = tokio::net::TcpStream::connect(("127.0.0.1", port)).await;
            answered_whole(stream.expect("it listens"), bytes).await
        };
        for (name, protocols, passes) in cases {
            let answer = response_to(client_hello(name, protocols)).await;
            assert_eq!(answer == "here", passes, "{name} {protocols:?}: {answer:?}");
        }
        assert_eq!(response_to(b"GET / HTTP/1.1\r\nhost: web.ns\r\n\r\n".to_vec()).await, "");
        let passed = cases.iter().filter(|case| case.2).count();
        assert_eq!(count.load(std::sync::atomic::Ordering::Relaxed), passed, "{}", envoy.display());
        drop(running);
    }
}
