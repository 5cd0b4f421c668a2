//! Previews of changes: the announced resources equal the resources that proxies receive after the
//! change.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::mesh::{
    Member, Proxy, SHOP, SOON, Server, Setup, endpoints_until, holds, outbound, text, wait_until,
};
use strait_sim::objects::{self, Port};
use strait_xds::resource::ResourceType;
use strait_xds_client::XdsClient;

/// Encoded resources by type and name.
type Resources = BTreeMap<(ResourceType, String), Vec<u8>>;
/// Differences, as `+ cds NAME`.
type Differences = Vec<String>;

fn all_resources(client: &XdsClient) -> Resources {
    let contents = client.held();
    let by_kind = |kind: ResourceType| {
        let names: Vec<String> = contents.names(kind).map(str::to_owned).collect();
        let body = |name: &String| contents.body(kind, name).expect("a stored body").to_vec();
        names.into_iter().map(|name| ((kind, name.clone()), body(&name))).collect::<Vec<_>>()
    };
    ResourceType::ALL.into_iter().flat_map(by_kind).collect()
}

fn differences(before: &Resources, now: &Resources) -> Differences {
    let line = |sign: &str, (kind, name): &(ResourceType, String)| {
        format!("{sign} {} {name}", kind.short())
    };
    let mut lines: Vec<String> = before
        .iter()
        .filter_map(|(key, old)| match now.get(key) {
            None => Some(line("-", key)),
            Some(new) => (new != old).then(|| line("~", key)),
        })
        .collect();
    lines.extend(now.keys().filter(|key| !before.contains_key(*key)).map(|key| line("+", key)));
    lines.sort();
    lines
}

/// Returns the differences of a proxy in a preview.
fn previewed(answer: &Value, proxy: &Proxy) -> Differences {
    let id = json!(proxy.id());
    let groups = answer["affected"].as_array().expect("groups").iter();
    let mut own = groups.filter(|group| {
        group["proxies"].as_array().expect("proxies").iter().any(|one| one["id"] == id)
    });
    let Some(group) = own.next() else { return Vec::new() };
    assert!(own.next().is_none(), "one entry per proxy: {answer}");
    let mut lines = Vec::new();
    for (kind, type_rows) in group["types"].as_object().expect("types") {
        for (sign, field) in [("+", "added"), ("~", "changed"), ("-", "removed")] {
            let rows = type_rows[field].as_array().expect("rows").iter();
            lines.extend(rows.map(|row| {
                let name = row.get("name").unwrap_or(row).as_str().expect("a name");
                format!("{sign} {kind} {name}")
            }));
        }
    }
    lines.sort();
    lines
}

fn object(kind: &str, name: &str, spec: Value) -> Value {
    let group = if kind.ends_with("Policy") || kind.ends_with("Authentication") {
        "security.istio.io/v1"
    } else {
        "networking.istio.io/v1"
    };
    json!({
        "apiVersion": group, "kind": kind, "spec": spec,
        "metadata": { "namespace": "shop", "name": name },
    })
}

async fn run_diff(server: &Server, arguments: &[&str]) -> (Option<i32>, Value) {
    let arguments = [&["diff", "-o", "json"], arguments].concat();
    let output = server.strait(&arguments).await;
    let answer = serde_json::from_slice(&output.stdout);
    (output.status.code(), answer.unwrap_or_else(|error| panic!("{error}: {}", text(&output))))
}

#[tokio::test]
async fn preview_equals_the_resources_sent() {
    let east = Member::start("east", "n1", "198.18.0.1").await;
    east.serve("web", &["10.0.0.1", "10.0.0.2"]);
    east.serve("pay", &["10.0.0.3"]);
    // Its port has a listener of its own.
    let port = Port { name: "tcp", port: 5432, target: 5432 };
    east.apply(objects::service(SHOP, "db", "172.20.2.1", &[port]));
    let setup = Setup::new();
    setup.join(&[&east]);
    let server = setup.start_ready().await;
    let web = Proxy {
        name: "web-10-0-0-1",
        account: "web",
        ip: "10.0.0.1".into(),
        ..Proxy::sidecar("east")
    };
    let elsewhere = Proxy {
        namespace: "other",
        name: "other",
        ip: "10.99.0.9".into(),
        ..Proxy::sidecar("east")
    };
    let proxies = [Proxy::sidecar("east"), elsewhere, web, Proxy::gateway("east")];
    let mut clients = Vec::new();
    for proxy in &proxies {
        clients.push(server.connect(&setup, proxy).await);
    }
    for client in &clients {
        wait_until(SOON, async || holds(client.held().is_complete(), client.held().ended)).await;
    }
    for client in &clients[..3] {
        endpoints_until(client, "pay", &[("10.0.0.3:8080", 1)]).await;
    }
    let to = |subset: &str| json!({ "host": "web", "subset": subset });
    let route = |more: Value| {
        let mut rule = json!({ "route": [{ "destination": to("") }] });
        rule.as_object_mut().expect("fields").extend(more.as_object().expect("fields").clone());
        json!({ "hosts": ["web"], "http": [rule] })
    };
    let subsets =
        json!({ "host": "web", "subsets": [{ "name": "v1", "labels": { "app": "web" } }] });
    let own = json!({ "host": "pay", "exportTo": ["."], "trafficPolicy": { "connectionPool": { "tcp": { "maxConnections": 7 } } } });
    let deny = json!({ "action": "DENY", "selector": { "matchLabels": { "app": "web" } }, "rules": [{ "to": [{ "operation": { "paths": ["/admin"] } }] }] });
    let scope = json!({ "egress": [{ "hosts": ["./web.shop.svc.cluster.local"] }] });
    // Each step is previewed and applied after the previous steps: an object, or its deletion.
    let steps = [
        ("VirtualService", "web", Some(route(json!({ "timeout": "3s" })))),
        ("VirtualService", "web", Some(route(json!({ "timeout": "4s" })))),
        ("DestinationRule", "web", Some(subsets)),
        (
            "VirtualService",
            "web",
            Some(json!({ "hosts": ["web"], "http": [{ "route": [{ "destination": to("v1") }] }] })),
        ),
        ("DestinationRule", "pay", Some(own)),
        ("AuthorizationPolicy", "deny-admin", Some(deny)),
        ("PeerAuthentication", "plain", Some(json!({ "mtls": { "mode": "STRICT" } }))),
        ("Sidecar", "scope", Some(scope)),
        ("DestinationRule", "web", None),
        ("Sidecar", "scope", None),
        ("VirtualService", "web", None),
        ("AuthorizationPolicy", "deny-admin", None),
    ];
    let mut sums = BTreeMap::<String, usize>::new();
    for (kind, name, spec) in steps {
        let file = format!("{kind}-{name}");
        let before: Vec<Resources> = clients.iter().map(all_resources).collect();
        let (code, answer) = match &spec {
            Some(spec) => {
                let folder = tempfile::tempdir().expect("a folder");
                let path = folder.path().join("new.json");
                let text = object(kind, name, spec.clone()).to_string();
                std::fs::write(&path, text).expect("written");
                run_diff(&server, &["-f", path.to_str().expect("UTF-8")]).await
            }
            None => run_diff(&server, &["--delete", &format!("{kind}/shop/{name}")]).await,
        };
        assert_eq!(code, Some(0), "{answer}");
        if (kind, spec.is_none()) == ("DestinationRule", true) {
            let reason = &answer["objects"][0]["reasons"][0];
            let fact = "v1 no longer exists, and VirtualService shop/web still routes to it: proxies keep it for at most 30 s";
            let is_reported = reason["text"].as_str().is_some_and(|text| text.starts_with(fact));
            assert!(is_reported && reason["code"] == "STR1044", "{answer}");
        }
        let expected: Vec<Differences> =
            proxies.iter().map(|one| previewed(&answer, one)).collect();
        assert!(expected.iter().any(|one| !one.is_empty()), "{kind} {name}: {answer}");
        let untold = expected.iter().filter(|one| one.is_empty()).count();
        assert_eq!(answer["unaffected"], untold, "{answer}");
        for (client, before) in clients.iter().zip(&before) {
            let sent = differences(before, &all_resources(client));
            assert!(sent.is_empty(), "{kind} {name}: sent too early: {sent:?}");
        }
        match &spec {
            Some(spec) => setup.put(&file, &object(kind, name, spec.clone())),
            None => setup.take_out(&file),
        }
        // A subset that is removed while routes use it is removed half a minute later.
        wait_until(2 * SOON, async || {
            let all = clients.iter().zip(&before);
            let found: Vec<Differences> =
                all.map(|(client, before)| differences(before, &all_resources(client))).collect();
            holds(
                found == expected,
                format!("{kind} {name}: announced {expected:#?}, sent {found:#?}"),
            )
        })
        .await;
        for line in expected.iter().flatten() {
            *sums.entry(line.chars().take(5).collect()).or_default() += 1;
        }
    }
    for kind in ["~ rds", "+ cds", "+ eds", "- cds", "- eds", "~ cds", "~ lds", "- lds"] {
        assert!(sums.contains_key(kind), "the steps cover too little: no {kind} in {sums:?}");
    }
}

#[tokio::test]
async fn diff_shows_resources_and_problems() {
    let east = Member::start("east", "n1", "198.18.0.1").await;
    east.serve("web", &["10.0.0.1"]);
    let setup = Setup::new();
    setup.join(&[&east]);
    let server = setup.start_ready().await;
    let proxy = Proxy::sidecar("east");
    let client = server.connect(&setup, &proxy).await;
    endpoints_until(&client, "web", &[("10.0.0.1:8080", 1)]).await;
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("new.yaml");
    let file = path.to_str().expect("UTF-8");
    let shown = async |objects: &[Value], more: &[&str]| {
        let documents: Vec<_> = objects.iter().map(|one| format!("---\n{one}\n")).collect();
        std::fs::write(&path, documents.concat()).expect("written");
        let output = server.strait(&[&["diff", "-f", file], more].concat()).await;
        (output.status.code(), text(&output))
    };
    let rules = |host: &str| json!({ "hosts": ["web"], "http": [{ "timeout": "3s", "route": [{ "destination": { "host": host } }] }] });
    let (code, printed) =
        shown(&[object("VirtualService", "web", rules("web"))], &["--show"]).await;
    assert_eq!(code, Some(0), "{printed}");
    for part in [
        "VirtualService shop/web is new: active",
        "client.shop-1@east would be sent",
        "    ~ rds 80\n",
        ".timeout: ",
        "\"3s\"",
        "1 proxy would receive changes, 0 would not",
    ] {
        assert!(printed.contains(part), "{part}: {printed}");
    }
    let entry = json!({ "hosts": ["db.example"], "ports": [{ "number": 80, "name": "http" }], "resolution": "DNS" });
    let all =
        [object("VirtualService", "web", rules("absent")), object("ServiceEntry", "db", entry)];
    let (code, printed) = shown(&all, &[]).await;
    assert_eq!(code, Some(2), "{printed}");
    for part in [
        "VirtualService shop/web is new: partly",
        "STR1041 spec.http[0].route[0].destination: ",
        "ServiceEntry shop/db is left out",
    ] {
        assert!(printed.contains(part), "{part}: {printed}");
    }
    let (code, printed) = shown(&[object("VirtualService", "web", json!("none"))], &[]).await;
    assert_eq!(code, Some(2), "{printed}");
    assert!(
        printed.contains("is new: refused") && printed.contains("of 1 proxy would not change"),
        "{printed}"
    );
    for (arguments, expected, part) in [
        (&["diff"][..], 64, "--at <TIME|VERSION>|--file <FILE>"),
        (&["diff", "--delete", "web"], 64, "is not KIND/NAMESPACE/NAME"),
        (&["diff", "--delete", "Sidecar/shop/web"], 1, "there is no Sidecar shop/web"),
        (&["diff", "-f", "/absent.yaml"], 64, "can't be read"),
        (&["diff", "-f", file, "--proxy", "nobody.shop"], 1, "no proxy \"nobody.shop\""),
    ] {
        let output = server.strait(arguments).await;
        let printed = text(&output);
        assert_eq!(output.status.code(), Some(expected), "{printed}");
        assert!(printed.contains(part), "{part}: {printed}");
    }
}

#[tokio::test]
async fn suggested_scope_is_sufficient_for_the_logged_calls() {
    let east = Member::start("east", "n1", "198.18.0.1").await;
    for (name, address) in [("web", "10.0.0.1"), ("pay", "10.0.0.2"), ("log", "10.0.0.3")] {
        east.serve(name, &[address]);
    }
    let setup = Setup::new();
    setup.join(&[&east]);
    let alias = json!({ "hosts": ["api.example"], "http": [{ "route": [{ "destination": { "host": "pay" } }] }] });
    setup.put("alias", &object("VirtualService", "alias", alias));
    let server = setup.start_ready().await;
    let proxy = Proxy { namespace: "other", ..Proxy::sidecar("east") };
    let client = server.connect(&setup, &proxy).await;
    endpoints_until(&client, "log", &[("10.0.0.3:8080", 1)]).await;
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name).to_str().expect("UTF-8").to_owned();
    let line = |time: &str, authority: &str, cluster: &str| {
        json!({
            "start_time": format!("2026-11-25T{time}Z"), "method": "GET", "response_code": 200,
            "authority": authority, "upstream_cluster": cluster, "upstream_host": "192.0.2.1:80",
        })
        .to_string()
    };
    let log = [
        line("00:00:00", "web.shop", "outbound|80||web.shop.svc.cluster.local"),
        line("01:30:00", "api.example", "outbound|80||pay.shop.svc.cluster.local"),
        line("01:00:00", "elsewhere.example", "PassthroughCluster"),
        line("00:10:00", "other.other", "inbound|8080||"),
        "a line of another kind".to_owned(),
    ];
    std::fs::write(path("log"), log.join("\n")).expect("written");
    let output = server.strait(&["scope", "suggest", "other", "--from-log", &path("log")]).await;
    assert_eq!(output.status.code(), Some(0), "{}", text(&output));
    let printed = String::from_utf8(output.stdout).expect("UTF-8");
    let expected = "\
# strait scope suggest: services that 3 calls needed between 2026-11-25T00:00:00Z and 2026-11-25T01:30:00Z
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata:
  name: default
  namespace: other
spec:
  egress:
  - hosts:
    - ./*
    - shop/api.example
    - shop/pay.shop.svc.cluster.local
    - shop/web.shop.svc.cluster.local
";
    assert_eq!(printed.replace(['"', '\''], ""), expected);
    let notes = String::from_utf8(output.stderr).expect("UTF-8");
    for part in [
        "the proxy of other has ",
        " % fewer bytes",
        "the logs cover 1h 30m",
        "not defined in the mesh: elsewhere.example;",
        "ignored 1 line of the logs in an unknown format",
    ] {
        assert!(notes.contains(part), "{part}: {notes}");
    }

    // The suggested scope is valid, and with it the proxy receives exactly the services that it
    // calls.
    let file = path("scope.yaml");
    std::fs::write(&file, &printed).expect("written");
    let output = server.strait(&["check", "config", "-f", &file]).await;
    assert_eq!(output.status.code(), Some(0), "{}", text(&output));
    std::fs::copy(&file, setup.path("config").join("scope.yaml")).expect("copied");
    wait_until(SOON, async || {
        let contents = client.held();
        let names: Vec<&str> =
            contents.names(ResourceType::Endpoint).filter(|name| name.contains(".shop.")).collect();
        let expected = [outbound("pay"), outbound("web")];
        holds(names == expected, &names)
    })
    .await;

    for (namespace, code, message) in [
        ("nowhere", 1, "namespace nowhere is unknown; known namespaces: "),
        ("No.Namespace", 64, "is not a valid name of a namespace"),
    ] {
        let arguments = ["scope", "suggest", namespace, "--from-log", &path("log")];
        let output = server.strait(&arguments).await;
        assert_eq!(output.status.code(), Some(code), "{}", text(&output));
        assert!(text(&output).contains(message), "{}", text(&output));
    }
    std::fs::write(path("log"), line("00:10:00", "other.other", "inbound|8080||"))
        .expect("written");
    let output = server.strait(&["scope", "suggest", "other", "--from-log", &path("log")]).await;
    assert_eq!(output.status.code(), Some(1), "{}", text(&output));
    assert!(text(&output).contains("the logs contain no outbound call (inbound calls: 1,"));
    assert!(text(&output).contains("kind: Telemetry"), "{}", text(&output));
    let output = server.strait(&["scope", "suggest", "other"]).await;
    assert_eq!(output.status.code(), Some(64), "{}", text(&output));
    assert!(text(&output).contains("kind: Telemetry"), "{}", text(&output));
}
