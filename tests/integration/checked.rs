//! The statuses of configuration objects: in files alone, and in a running mesh.

use std::process::Command;

use serde_json::{Value, json};

use super::mesh::{Member, Proxy, SOON, Setup, endpoints_until, holds, text, wait_until};

fn virtual_service(name: &str, host: &str, to: &str) -> Value {
    json!({
        "apiVersion": "networking.istio.io/v1",
        "kind": "VirtualService",
        "metadata": { "namespace": "shop", "name": name },
        "spec": { "hosts": [host], "http": [{ "route": [{ "destination": { "host": to } }] }] },
    })
}

fn service(name: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": { "namespace": "shop", "name": name },
        "spec": { "clusterIP": "172.16.0.9", "ports": [{ "name": "http", "port": 80 }] },
    })
}

/// Runs `strait check config` on these objects, one file each. Returns the exit code and the
/// output.
fn checked(objects: &[(&str, &Value)], flags: &[&str]) -> (Option<i32>, String) {
    let folder = tempfile::tempdir().expect("a folder");
    for (name, object) in objects {
        std::fs::write(folder.path().join(name), object.to_string()).expect("written");
    }
    let output = Command::new(env!("CARGO_BIN_EXE_strait"))
        .args(["check", "config", "-f"])
        .arg(folder.path())
        .args(flags)
        .env_clear()
        .output()
        .expect("the program runs");
    (output.status.code(), text(&output))
}

#[test]
fn files_are_checked_without_a_control_plane() {
    let (web, good) = (service("web"), virtual_service("web", "web", "web"));
    let (code, printed) = checked(&[("web.json", &web), ("vs.json", &good)], &[]);
    assert_eq!(code, Some(0), "{printed}");
    assert!(printed.contains("1 object: 1 active"), "{printed}");

    // A service without a file may exist in the mesh: this is printed once, and is no finding.
    let other = virtual_service("other", "web", "other");
    let (code, printed) = checked(&[("web.json", &web), ("vs.json", &other)], &[]);
    assert_eq!(code, Some(0), "{printed}");
    assert!(
        printed.contains("no file defines the hosts other.shop.svc.cluster.local"),
        "{printed}"
    );

    // An existing service is checked completely.
    let mut port = good.clone();
    port["spec"]["http"][0]["route"][0]["destination"]["port"] = json!({ "number": 81 });
    let (code, printed) = checked(&[("web.json", &web), ("vs.json", &port)], &[]);
    assert_eq!(code, Some(2), "{printed}");
    for part in [
        "VirtualService shop/web",
        "spec.http[0].route[0].destination",
        "has no port 81; it has 80",
        "strait help STR1043",
    ] {
        assert!(printed.contains(part), "{part}: {printed}");
    }

    let younger = virtual_service("young", "web", "web");
    let both = [("web.json", &web), ("vs.json", &good), ("young.json", &younger)];
    let (code, printed) = checked(&both, &["-o", "json"]);
    let states: Value = serde_json::from_str(&printed).expect("the entries as JSON");
    assert_eq!((code, states[0]["state"].as_str()), (Some(2), Some("inForce")), "{printed}");
    assert_eq!(
        states[1]["state"], "shadowed",
        "of objects with equal age, the first by name owns the host: {printed}"
    );
    assert_eq!(states[1]["reasons"][0]["code"], "STR1024", "{printed}");

    // An invalid manifest is reported with its location, and the valid objects are checked.
    let (code, printed) =
        checked(&[("web.json", &web), ("bad.json", &json!({ "kind": "X" }))], &[]);
    assert_eq!(code, Some(2), "{printed}");
    assert!(printed.contains("bad.json, document 1, line 1: STR0219"), "{printed}");
}

/// Runs `strait check config` on files in one folder, with a JUnit file. Returns the exit code, the
/// output and the content of the JUnit file.
fn checked_texts(files: &[(&str, &str)], flags: &[&str]) -> (Option<i32>, String, String) {
    let folder = tempfile::tempdir().expect("a folder");
    let junit = tempfile::tempdir().expect("a folder").keep().join("junit.xml");
    for (name, text) in files {
        std::fs::write(folder.path().join(name), text).expect("written");
    }
    let output = Command::new(env!("CARGO_BIN_EXE_strait"))
        .args(["check", "config", "--junit"])
        .arg(&junit)
        .arg("-f")
        .arg(folder.path())
        .args(flags)
        .env_clear()
        .output()
        .expect("the program runs");
    let xml = std::fs::read_to_string(&junit).unwrap_or_default();
    (output.status.code(), text(&output), xml)
}

#[test]
fn objects_without_a_namespace_are_checked_in_the_namespace_of_the_flag() {
    let policy = "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {name: nothing}\nspec: {}\n";
    let (code, printed, _) = checked_texts(&[("a.yaml", policy)], &["-o", "json"]);
    assert_eq!(code, Some(0), "{printed}");
    assert!(printed.contains(r#""namespace": "default""#), "{printed}");
    let note = "no metadata.namespace: AuthorizationPolicy nothing; checked in namespace default (-n). In the root namespace strait-system";
    assert!(printed.contains(note), "{printed}");

    let (_, printed, _) = checked_texts(&[("a.yaml", policy)], &["-n", "shop", "-o", "json"]);
    assert!(printed.contains(r#""namespace": "shop""#), "{printed}");
    let root = ["-n", "istio-system", "--system-namespace", "istio-system"];
    let (_, printed, _) = checked_texts(&[("a.yaml", policy)], &root);
    assert!(!printed.contains("no metadata.namespace"), "{printed}");
}

#[test]
fn findings_about_gateways_and_mesh_config_need_no_control_plane() {
    let objects = "\
apiVersion: v1
kind: ConfigMap
metadata: {name: istio, namespace: istio-system}
data:
  mesh: |
    acessLogFile: /dev/stdout
  meshNetworks: |
    networks:
      one: {endpoints: [{fromRegistry: east}]}
      two: {endpoints: [{fromRegistry: east}]}
---
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: door, namespace: shop}
spec:
  selector: {app: door}
  servers: [{port: {number: 80, name: http, protocol: HTTP}, hosts: [a.example]}]
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: other-host, namespace: shop}
spec:
  hosts: [b.example]
  gateways: [door]
  http: [{route: [{destination: {host: web}}]}]
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: other-protocol, namespace: shop}
spec:
  hosts: [a.example]
  gateways: [door]
  tls: [{match: [{sniHosts: [a.example]}], route: [{destination: {host: web}}]}]
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: elsewhere, namespace: shop}
spec:
  hosts: [c.example]
  gateways: [other/door]
  http: [{route: [{destination: {host: web}}]}]
";
    let flags = ["--system-namespace", "istio-system"];
    let (code, printed, xml) = checked_texts(&[("all.yaml", objects)], &flags);
    assert_eq!(code, Some(2), "{printed}");
    for part in [
        "ConfigMap istio-system/istio",
        "data.mesh.acessLogFile",
        "STR0411",
        "no server of Gateway shop/door has a host of this object",
        "VirtualService shop/other-protocol",
    ] {
        assert!(printed.contains(part), "{part}: {printed}");
    }
    let elsewhere = "Gateway other/door does not exist";
    assert!(!printed.contains(elsewhere), "a Gateway without a file may exist: {printed}");
    assert!(xml.contains(r#"<testsuite name="strait check config" tests="5" failures="#), "{xml}");
    assert!(
        xml.contains(
            r#"<testcase classname="VirtualService" name="shop/elsewhere" time="0.000"/>"#
        ),
        "{xml}"
    );
    assert!(xml.contains("STR0411 data.meshNetworks"), "{xml}");

    let (_, printed, _) = checked_texts(&[("all.yaml", objects)], &[]);
    let note = "the mesh config in ConfigMap istio-system/istio is not used: the system namespace is strait-system";
    assert!(printed.contains(note), "{printed}");
}

#[test]
fn inbound_port_of_a_patch_is_compared_with_the_services_in_the_files() {
    let mut web = service("web");
    web["spec"]["selector"] = json!({ "app": "web" });
    web["spec"]["ports"][0]["targetPort"] = json!(8080);
    let filter = |port: u16| {
        json!({
            "apiVersion": "networking.istio.io/v1alpha3",
            "kind": "EnvoyFilter",
            "metadata": { "namespace": "shop", "name": "ports" },
            "spec": { "configPatches": [{
                "applyTo": "NETWORK_FILTER",
                "match": { "context": "SIDECAR_INBOUND", "listener": {
                    "portNumber": port,
                    "filterChain": { "filter": {
                        "name": "envoy.filters.network.http_connection_manager",
                    } },
                } },
                "patch": { "operation": "MERGE", "value": { "typed_config": {
                    "@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
                    "add_user_agent": true,
                } } },
            }] },
        })
    };
    for (port, expected) in [(80, Some(2)), (8080, Some(0)), (9000, Some(0))] {
        let (code, printed) = checked(&[("web.json", &web), ("filter.json", &filter(port))], &[]);
        assert_eq!(code, expected, "{port}: {printed}");
        assert_eq!(printed.contains("port 8080 of the workload"), port == 80, "{printed}");
    }
}

#[test]
fn subset_that_the_rule_in_the_files_lacks_is_reported_without_its_service() {
    let rule = |subset: &str| {
        format!(
            "apiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {{name: web, namespace: shop}}\n\
             spec: {{host: web, subsets: [{{name: {subset}, labels: {{version: a}}}}]}}\n"
        )
    };
    let service = "apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: web, namespace: shop}\n\
        spec: {hosts: [web], http: [{route: [{destination: {host: web, subset: v2}}]}]}\n";
    let (code, printed, _) = checked_texts(&[("a.yaml", &rule("v1")), ("b.yaml", service)], &[]);
    assert_eq!(code, Some(2), "{printed}");
    let fact = "DestinationRule shop/web of web.shop.svc.cluster.local has no subset v2";
    assert!(printed.contains("STR1044") && printed.contains(fact), "{printed}");
    let (code, printed, _) = checked_texts(&[("a.yaml", &rule("v2")), ("b.yaml", service)], &[]);
    assert_eq!(code, Some(0), "{printed}");
    let (code, printed, _) = checked_texts(&[("b.yaml", service)], &[]);
    assert_eq!(code, Some(0), "a rule without a file may exist: {printed}");
}

#[test]
fn port_that_the_service_in_the_files_lacks_is_reported() {
    let web = service("web");
    let matching = |port: u16, hosts: Value| {
        let route = json!([{ "destination": { "host": "web" } }]);
        let mut object = virtual_service("web", "web", "web");
        let rule = |matches: Value| json!({ "match": matches, "route": route });
        object["spec"] = json!({
            "hosts": hosts,
            "http": [rule(json!([{ "port": port }])), rule(json!([{ "port": 80 }]))],
        });
        object
    };
    let [other, own] = [81, 80].map(|port| matching(port, json!(["web"])));
    let (code, printed) = checked(&[("web.json", &web), ("vs.json", &other)], &[]);
    assert_eq!(code, Some(2), "{printed}");
    assert!(printed.contains("STR1004") && printed.contains("spec.http[0].match[0].port"));
    let (code, printed) = checked(&[("web.json", &web), ("vs.json", &own)], &[]);
    assert_eq!(code, Some(0), "{printed}");
    let unknown = matching(81, json!(["web", "other"]));
    let (code, printed) = checked(&[("web.json", &web), ("vs.json", &unknown)], &[]);
    assert_eq!(code, Some(0), "the service of the other host may have the port: {printed}");
}

#[test]
fn junit_file_names_objects_without_effect_and_files_that_cannot_be_read() {
    let bad = "apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: bad, namespace: shop}\n\
        spec: {hosts: [web], http: [{timeout: soon, route: [{destination: {host: web}}]}]}\n";
    let (code, printed, xml) =
        checked_texts(&[("bad.yaml", bad), ("broken.yaml", "kind: X\n")], &[]);
    assert_eq!(code, Some(2), "{printed}");
    assert!(xml.contains(r#"tests="2" failures="2""#), "{xml}");
    assert!(xml.contains(r#"classname="VirtualService" name="shop/bad""#), "{xml}");
    assert!(xml.contains("refused; STR") && xml.contains(r#"classname="file""#), "{xml}");
}

#[tokio::test]
async fn objects_of_a_running_mesh_are_checked_as_they_change() {
    let east = Member::start("east", "n1", "198.18.0.1").await;
    east.serve("web", &["10.0.0.1"]);
    let setup = Setup::new();
    setup.join(&[&east]);
    setup.put("vs", &virtual_service("web", "web", "wbe"));
    let server = setup.start_ready().await;
    let checked = async |code: i32, part: &str| {
        wait_until(SOON, async || {
            let output = server.strait(&["check", "config"]).await;
            let printed = text(&output);
            holds(output.status.code() == Some(code) && printed.contains(part), printed)
        })
        .await;
    };
    checked(2, "STR1041").await;
    setup.put("vs", &virtual_service("web", "web", "web"));
    checked(0, "1 object: 1 active").await;
    // The last valid version stays active, and this is reported.
    let mut bad = virtual_service("web", "web", "web");
    bad["spec"]["http"][0]["timeout"] = json!("soon");
    setup.put("vs", &bad);
    checked(2, "STR1052").await;
    let states = server.admin.json("/debug/config?kind=VirtualService&namespace=shop").await;
    assert_eq!((states[0]["state"].as_str(), states[1].is_null()), (Some("refused"), true));
    let others = server.admin.json("/debug/config?kind=VirtualService&namespace=other").await;
    assert_eq!(others, json!([]));
    setup.take_out("vs");
    checked(0, "The mesh has no configuration objects").await;
}

#[tokio::test]
async fn request_is_explained_with_the_deciding_rule() {
    let east = Member::start("east", "n1", "198.18.0.1").await;
    east.serve("web", &["10.0.0.1", "10.0.0.2"]);
    let setup = Setup::new();
    setup.join(&[&east]);
    let mut rules = virtual_service("web", "web", "web");
    let gone =
        json!({ "match": [{ "uri": { "prefix": "/gone" } }], "directResponse": { "status": 410 } });
    rules["spec"]["http"].as_array_mut().expect("a list").insert(0, gone);
    setup.put("vs", &rules);
    let server = setup.start_ready().await;
    let proxy = Proxy::sidecar("east");
    let client = server.connect(&setup, &proxy).await;
    endpoints_until(&client, "web", &[("10.0.0.1:8080", 1), ("10.0.0.2:8080", 1)]).await;
    let name = format!("{}.shop", proxy.name);
    let explained = async |more: &[&str]| {
        let output = server.strait(&[&["explain", "route", &name][..], more].concat()).await;
        (output.status.code(), text(&output))
    };
    let (code, printed) = explained(&["GET", "http://web/", "--header", "x-a=b"]).await;
    assert_eq!(code, Some(0), "{printed}");
    for part in [
        "rule          VirtualService shop/web spec.http[1]",
        "outbound|80||web.shop.svc.cluster.local (2 endpoints)",
        "VirtualService shop/web spec.http[0]: the path / does not begin with /gone",
    ] {
        assert!(printed.contains(part), "{part}: {printed}");
    }
    let (code, printed) = explained(&["GET", "http://web/gone", "-o", "json"]).await;
    let answer: Value = serde_json::from_str(&printed).expect("the response as JSON");
    assert_eq!((code, &answer["answer"]), (Some(2), &json!(410)), "{printed}");
    assert_eq!(answer["rule"]["index"], 0, "{printed}");
    assert_eq!(answer["proxy"], proxy.id(), "{printed}");
    for (question, fact) in [
        (&["GET", "ftp://web/"][..], "ftp is not http, https, grpc or tcp"),
        (&["GET", "http://web:0/"], "is not a port from 1 to 65535"),
        (&["G T", "http://web/"], "is not an HTTP method"),
        (&["GET", "http://web/", "--header", "nothing"], "is not a header"),
    ] {
        let (code, printed) = explained(question).await;
        assert!(code == Some(64) && printed.contains(fact), "{question:?}: {code:?}: {printed}");
    }
    for (question, fact) in [
        (["--method", "G T"], "is not an HTTP method"),
        (["--port", "0"], "is not a port from 1 to 65535"),
    ] {
        let output = server.strait(&[&["explain", "policy", &name][..], &question].concat()).await;
        let printed = text(&output);
        assert!(
            output.status.code() == Some(64) && printed.contains(fact),
            "{question:?}: {printed}"
        );
    }
    for path in ["history?version=zzz", "events?since=zzz", "diff?at=1&at=2"] {
        let (status, printed) = server.admin.text(&format!("/debug/{path}")).await;
        let answer: Value = serde_json::from_str(&printed).expect("JSON");
        assert!(
            status.as_u16() == 400 && answer["error"].is_string(),
            "{path}: {status} {printed}"
        );
    }
}

/// Each finding about access policies: the objects, the code and the reported field, or empty if
/// there is no finding.
#[test]
fn misleading_policies_are_reported() {
    let object = |kind: &str, name: &str, spec: Value| {
        json!({
            "apiVersion": "security.istio.io/v1", "kind": kind,
            "metadata": { "namespace": "shop", "name": name }, "spec": spec,
        })
    };
    let mode =
        |mode: &str| object("PeerAuthentication", "mode", json!({ "mtls": { "mode": mode } }));
    let rule = |action: &str, rule: Value| {
        object("AuthorizationPolicy", "rule", json!({ "action": action, "rules": [rule] }))
    };
    let from = |action: &str, name: &str| {
        rule(action, json!({ "from": [{ "source": { "principals": [name] } }] }))
    };
    let own = "cluster.local/ns/shop/sa/a";
    let all_but = |source: &Value| {
        let mut source = source.clone();
        source["notPrincipals"] = json!([own]);
        rule("ALLOW", json!({ "from": [{ "source": source }] }))
    };
    let host = |action: &str, field: &str, host: &str| {
        rule(action, json!({ "to": [{ "operation": { field: [host], "ports": ["8080"] } }] }))
    };
    let path =
        |action: &str| rule(action, json!({ "to": [{ "operation": { "paths": ["/admin"] } }] }));
    let ports = |name: &str| {
        let mut ports = service("web");
        ports["spec"]["selector"] = json!({ "app": "web" });
        ports["spec"]["ports"][0]["name"] = json!(name);
        ports
    };
    let tokens = || {
        object(
            "RequestAuthentication",
            "tokens",
            json!({ "jwtRules": [{ "issuer": "https://a", "jwks": KEYS }] }),
        )
    };
    let any_token =
        rule("ALLOW", json!({ "from": [{ "source": { "requestPrincipals": ["*"] } }] }));
    let cases = [
        (
            vec![mode("PERMISSIVE"), from("DENY", own)],
            "STR0825",
            "spec.rules[0].from[0].source.principals",
        ),
        (vec![mode("STRICT"), from("DENY", own)], "", ""),
        (
            vec![mode("PERMISSIVE"), all_but(&json!({}))],
            "STR0825",
            "spec.rules[0].from[0].source.notPrincipals",
        ),
        (vec![mode("STRICT"), all_but(&json!({}))], "", ""),
        (vec![mode("PERMISSIVE"), all_but(&json!({ "namespaces": ["shop"] }))], "", ""),
        (
            vec![mode("DISABLE"), from("ALLOW", own)],
            "STR0834",
            "spec.rules[0].from[0].source.principals",
        ),
        (vec![mode("STRICT"), from("ALLOW", own)], "", ""),
        (vec![tokens()], "STR0835", "spec.jwtRules"),
        (vec![tokens(), any_token], "", ""),
        (
            vec![mode("STRICT"), from("DENY", "old.example/ns/shop/sa/a")],
            "STR0836",
            "spec.rules[0].from[0].source.principals",
        ),
        (
            vec![host("DENY", "hosts", "a.example:8080")],
            "STR0837",
            "spec.rules[0].to[0].operation.hosts",
        ),
        (
            vec![host("ALLOW", "notHosts", "a.example:8080")],
            "STR0837",
            "spec.rules[0].to[0].operation.notHosts",
        ),
        (vec![host("DENY", "hosts", "a.example")], "", ""),
        // If no file declares the protocols of ports, any port may have another protocol.
        (vec![path("DENY")], "STR0824", "spec.rules[0].to[0].operation.paths"),
        (vec![path("DENY"), ports("http")], "", ""),
        (vec![path("DENY"), ports("tcp-data")], "STR0824", "spec.rules[0].to[0].operation.paths"),
        (vec![path("ALLOW"), ports("tcp-data")], "STR0824", "spec.rules[0].to[0].operation.paths"),
        (vec![path("ALLOW"), ports("http")], "", ""),
        (vec![host("ALLOW", "hosts", "a.example:8080")], "", ""),
    ];
    for (objects, code, path) in cases {
        let names = ["a.json", "b.json"];
        let files: Vec<_> = names.into_iter().zip(&objects).collect();
        let (_, printed) = checked(&files, &["-o", "json"]);
        let states: Value = serde_json::from_str(&printed).expect("the entries as JSON");
        let all = states.as_array().expect("a list").iter();
        let reasons = all.flat_map(|one| one["reasons"].as_array().cloned().unwrap_or_default());
        let reasons: Vec<_> = reasons
            .map(|reason| {
                format!(
                    "{} {}",
                    reason["code"].as_str().unwrap_or(""),
                    reason["path"].as_str().unwrap_or("")
                )
            })
            .collect();
        let expected: Vec<String> =
            Some(format!("{code} {path}")).filter(|_| !code.is_empty()).into_iter().collect();
        assert_eq!(reasons, expected, "{printed}");
    }
}

/// The key of RFC 7517, A.1.
pub(crate) const KEYS: &str = r#"{"keys":[{"kty":"EC","crv":"P-256","x":"MKBCTNIcKUSDii11ySs3526iDZ8AiTo7Tu6KPAqv7D4","y":"4Etl6SRW2YiLUrN5vfvVHuhp7x8PxltmWWlbbM4IFyM"}]}"#;
