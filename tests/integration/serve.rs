//! The behavior of `strait serve` for operators and proxies while members are added, removed and
//! fail.

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;
use std::time::{Duration, SystemTime};

use http::StatusCode;
use rustls_pki_types::pem::PemObject;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;

use super::mesh::{
    Admin, Member, Proxy, SHOP, SOON, SYSTEM, Server, Setup, east_and_west, endpoints_until, holds,
    outbound, renamed, replace, wait_until,
};
use strait_sim::objects::{Endpoint, HTTP, NETWORK_LABEL};
use strait_sim::{Certificate, Fault, Options as SimOptions, objects};
use strait_xds::resource::ResourceType;
use strait_xds_client::{Options as ClientOptions, XdsClient, XdsConnectError};

/// The endpoints of `web` for a proxy in east while both clusters are in the mesh.
const BOTH: &[(&str, u32)] = &[("10.0.0.1:8080", 1), ("10.0.0.2:8080", 1), ("198.18.0.2:15443", 2)];
/// The endpoints without west.
const EAST_ONLY: &[(&str, u32)] = &[("10.0.0.1:8080", 1), ("10.0.0.2:8080", 1)];

/// Starts a ready server with both members, and a proxy in east that has the expected endpoints.
async fn running(flags: &[&str]) -> (Setup, Member, Member, Server, XdsClient) {
    let (east, west) = east_and_west().await;
    let setup = Setup::new().with(flags);
    setup.join(&[&east, &west]);
    let server = setup.start_ready().await;
    let client = server.connect(&setup, &Proxy::sidecar("east")).await;
    endpoints_until(&client, "web", BOTH).await;
    settled(&client).await;
    (setup, east, west, server, client)
}

/// Waits until a newly connected proxy has received all its subscriptions.
async fn settled(client: &XdsClient) {
    wait_until(SOON, async || {
        let contents = client.held();
        // The client does not subscribe to the name table.
        let kinds = ResourceType::ALL.into_iter().filter(|kind| *kind != ResourceType::NameTable);
        let missing: Vec<_> = kinds.filter(|kind| contents.names(*kind).next().is_none()).collect();
        holds(missing.is_empty(), missing)
    })
    .await;
}

/// Checks that the proxy has received nothing since: a change in east is the only resource sent.
async fn undisturbed(client: &XdsClient, since: u64, east: &Member) {
    east.serve("web", &["10.0.0.1", "10.0.0.2", "10.0.0.9"]);
    wait_until(SOON, async || {
        let endpoints = client.held().endpoints(&outbound("web"));
        holds(endpoints.len() == 4, endpoints)
    })
    .await;
    let contents = client.held();
    assert_eq!(contents.resources, since + 1, "more was sent than the changed assignment");
    east.serve("web", &["10.0.0.1", "10.0.0.2"]);
    endpoints_until(client, "web", BOTH).await;
}

#[tokio::test]
async fn empty_directory_is_ready() {
    let setup = Setup::new();
    let server = setup.start_ready().await;
    assert_eq!(server.admin.json("/debug/clusters").await, json!([]));
    assert_eq!(server.admin.get("/livez", None).await.0, StatusCode::OK);
}

#[tokio::test]
async fn no_proxy_is_served_before_every_member_has_synced() {
    let (east, west) = east_and_west().await;
    west.api.fault(Fault::Hang);
    let setup = Setup::new().with(&["--remote-cluster-timeout", "120s"]);
    setup.join(&[&east, &west]);
    let server = setup.start().await;
    server.cluster_in("east", "live").await;

    let (status, text) = server.admin.get("/readyz?verbose", None).await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    assert!(text.contains("west") && text.contains("not ready"), "{text}");
    let refused = server.open(&setup, &Proxy::sidecar("east"), ClientOptions::default()).await;
    match refused {
        Err(XdsConnectError::Refused(status)) => {
            assert_eq!(status.code(), tonic::Code::Unavailable);
        }
        other => panic!("{other:?}"),
    }

    west.api.heal();
    server.ready().await;
    let client = server.connect(&setup, &Proxy::sidecar("east")).await;
    endpoints_until(&client, "web", BOTH).await;
}

#[tokio::test]
async fn members_that_fail_from_the_start_affect_no_other_cluster() {
    let (east, _) = east_and_west().await;
    let bad = |id: &'static str, certificate: Certificate| async move {
        let options = SimOptions { certificate, ..SimOptions::default() };
        Member::start_with(id, "n2", "198.18.0.2", options).await
    };
    let down = bad("down", Certificate::Valid).await;
    let hung = bad("hung", Certificate::Valid).await;
    let denied = bad("denied", Certificate::Valid).await;
    let garbage = bad("garbage", Certificate::Valid).await;
    let expired = bad("expired", Certificate::Expired).await;
    down.api.stop().await;
    hung.api.fault(Fault::Hang);
    denied.api.fault(Fault::Unauthorized);
    garbage.api.fault(Fault::Html);
    let setup = Setup::new().with(&["--remote-cluster-timeout", "1s"]);
    setup.join(&[&east, &down, &hung, &denied, &garbage, &expired]);
    let mut refused = denied.secret();
    refused["metadata"]["name"] = json!("program");
    refused["data"] = Value::Null;
    let kubeconfig = denied.api.kubeconfig().replace("\"token\":", "\"exec\":");
    refused["stringData"] = json!({ "program": kubeconfig });
    setup.put("program", &refused);

    let server = setup.start_ready().await;
    for (id, state) in [
        ("east", "live"),
        ("down", "timeout"),
        ("hung", "timeout"),
        ("denied", "authFailed"),
        ("garbage", "misbehaving"),
        ("expired", "tlsFailed"),
        ("program", "rejected"),
    ] {
        let entry = server.cluster_in(id, state).await;
        assert_eq!(entry["reason"].is_null(), state == "live", "{entry}");
    }
    let client = server.connect(&setup, &Proxy::sidecar("east")).await;
    endpoints_until(&client, "web", EAST_ONLY).await;

    down.serve("web", &["10.0.0.7"]);
    down.api.restart().await;
    server.cluster_in("down", "live").await;
    let joined = [&EAST_ONLY[0], &EAST_ONLY[1], &("198.18.0.2:15443", 1)].map(|one| *one);
    endpoints_until(&client, "web", &joined).await;
}

#[tokio::test]
async fn stopped_api_server_loses_no_endpoint() {
    let (_setup, east, west, server, client) = running(&[]).await;
    let before = client.held().resources;
    west.api.stop().await;
    let entry = server.cluster_in("west", "stale").await;
    assert!(entry["reason"].as_str().is_some_and(|why| why.contains("STR0301")), "{entry}");
    assert!(entry["lastContact"].is_string() && entry["endpoints"] == 2, "{entry}");
    assert_eq!(server.cluster("east").await["state"], "live");
    undisturbed(&client, before, &east).await;
    server.ready().await;

    west.serve("web", &["10.0.0.1"]);
    west.api.restart().await;
    server.cluster_in("west", "live").await;
    endpoints_until(&client, "web", &[EAST_ONLY[0], EAST_ONLY[1], ("198.18.0.2:15443", 1)]).await;
}

#[tokio::test]
async fn removed_cluster_leaves_only_after_its_grace_period() {
    let (setup, _east, _west, server, client) = running(&["--cluster-removal-grace", "3s"]).await;
    let before = client.held().resources;
    setup.take_out("west");
    let entry = server.cluster_in("west", "draining").await;
    assert!(entry["reason"].as_str().is_some_and(|why| why.contains("withdrawn in")), "{entry}");
    assert_eq!(client.held().resources, before, "the cluster still exists");
    endpoints_until(&client, "web", EAST_ONLY).await;
    server.cluster_until("west", Value::is_null).await;
}

#[tokio::test]
async fn recreated_secret_sends_nothing_to_proxies() {
    let (setup, east, west, server, client) = running(&["--cluster-removal-grace", "120s"]).await;
    let before = client.held().resources;
    setup.take_out("west");
    server.cluster_in("west", "draining").await;
    setup.join(&[&west]);
    server.cluster_in("west", "live").await;
    undisturbed(&client, before, &east).await;
    west.serve("web", &["10.0.0.1"]);
    endpoints_until(&client, "web", &[EAST_ONLY[0], EAST_ONLY[1], ("198.18.0.2:15443", 1)]).await;
}

#[tokio::test]
async fn rotated_credential_sends_nothing_to_proxies() {
    let (setup, east, west, server, client) = running(&[]).await;
    let before = client.held().resources;
    // An invalid credential fails only the rotation.
    let useless = west.api.kubeconfig().replace(&west.api.token(), "useless");
    let mut secret = west.secret();
    secret["data"] = Value::Null;
    secret["stringData"] = json!({ "west": useless });
    setup.put("west", &secret);
    let explains = |entry: &Value| {
        let why = entry["reason"].as_str().unwrap_or_default();
        entry["state"] == "live"
            && why.contains("the new kubeconfig is not used")
            && why.contains("STR0304")
    };
    server.cluster_until("west", explains).await;
    undisturbed(&client, before, &east).await;

    let before = client.held().resources;
    west.api.rotate_token();
    setup.join(&[&west]);
    wait_until(SOON, async || {
        let entry = server.cluster("west").await;
        holds(entry["state"] == "live" && entry["reason"].is_null(), entry)
    })
    .await;
    undisturbed(&client, before, &east).await;
    west.serve("web", &["10.0.0.1"]);
    endpoints_until(&client, "web", &[EAST_ONLY[0], EAST_ONLY[1], ("198.18.0.2:15443", 1)]).await;
}

#[tokio::test]
async fn older_of_two_secrets_owns_the_id_and_the_other_takes_over() {
    let (setup, east, west, server, client) = running(&["--cluster-removal-grace", "120s"]).await;
    let before = client.held().resources;
    // Without creation times the name decides: `strait-cluster-west` is first.
    setup.put("west-standby", &renamed(west.secret(), "zz-standby"));
    wait_until(SOON, async || {
        let entries = server.clusters("west").await;
        let states: Vec<_> = entries.iter().map(|entry| &entry["state"]).collect();
        holds(states == ["live", "conflict"], entries)
    })
    .await;
    setup.take_out("west");
    wait_until(SOON, async || {
        let entries = server.clusters("west").await;
        let secrets: Vec<_> = entries.iter().map(|entry| &entry["secret"]).collect();
        holds(secrets == ["strait-system/zz-standby"] && entries[0]["state"] == "live", entries)
    })
    .await;
    undisturbed(&client, before, &east).await;
}

#[tokio::test]
async fn secret_is_a_member_only_with_its_label() {
    let (east, west) = east_and_west().await;
    let setup = Setup::new().with(&["--cluster-removal-grace", "0s"]);
    let mut unlabelled = west.secret();
    unlabelled["metadata"]["labels"] = json!({});
    setup.put("west", &unlabelled);
    setup.join(&[&east]);
    let server = setup.start_ready().await;
    assert_eq!(server.cluster("west").await, Value::Null);

    let mut own_label = west.secret();
    own_label["metadata"]["labels"] = json!({ "strait.dev/cluster": "true" });
    setup.put("west", &own_label);
    server.cluster_in("west", "live").await;
    setup.put("west", &unlabelled);
    server.cluster_until("west", Value::is_null).await;
}

#[tokio::test]
async fn annotation_sets_the_network_of_a_cluster() {
    let (setup, _east, west, server, client) = running(&[]).await;
    let mut fixed = west.secret();
    fixed["metadata"]["annotations"] = json!({ "strait.dev/network": "n1" });
    setup.put("west", &fixed);
    server.cluster_until("west", |entry| entry["network"] == "n1").await;
    // Both clusters are in one network now: their equal addresses are one endpoint.
    let together = [("10.0.0.1:8080", 1), ("10.0.0.2:8080", 1), ("10.0.0.3:8080", 1)];
    wait_until(SOON, async || {
        let endpoints = client.held().endpoints(&outbound("web"));
        let addresses: Vec<_> = endpoints.keys().map(ToString::to_string).collect();
        holds(addresses == together.map(|(address, _)| address), endpoints)
    })
    .await;
}

#[tokio::test]
async fn admin_api_requires_the_token_except_for_health_and_metrics() {
    let setup = Setup::new();
    let server = setup.start_ready().await;
    for path in ["/livez", "/readyz", "/readyz?verbose", "/metrics"] {
        assert_eq!(server.admin.get(path, None).await.0, StatusCode::OK, "{path}");
    }
    let names = "clusters services endpoints?hostname=a networks proxies config_dump?proxy=a \
                 explain?proxy=a&hostname=b mesh push nothing";
    let debug = names.split_whitespace().map(|name| format!("/debug/{name}"));
    let paths: Vec<String> =
        debug.chain(["/debug/", "/api/", "/api/x", "/api/x/y"].map(str::to_owned)).collect();
    for path in &paths {
        for wrong in [None, Some("Bearer x"), Some("Basic x"), Some("Bearer ")] {
            let (status, _) = server.admin.get(path, wrong).await;
            assert_eq!(status, StatusCode::UNAUTHORIZED, "{path} with {wrong:?}");
        }
        assert_ne!(server.admin.text(path).await.0, StatusCode::UNAUTHORIZED, "{path}");
    }
    let (_, metrics) = server.admin.get("/metrics", None).await;
    assert!(metrics.contains("strait_xds_streams 0"), "{metrics}");
}

#[tokio::test]
async fn reader_token_is_accepted_only_for_reading() {
    let setup = Setup::new();
    let file = setup.path("reader");
    std::fs::write(&file, "token-of-those-who-read\n").expect("written");
    let setup = setup.with(&["--admin-reader-token-file", &file.display().to_string()]);
    let server = setup.start_ready().await;
    let reader = Some("Bearer token-of-those-who-read");
    for path in ["/debug/clusters", "/debug/networks", "/debug/services", "/debug/hold"] {
        assert_eq!(server.admin.get(path, reader).await.0, StatusCode::OK, "{path}");
        assert_eq!(server.admin.text(path).await.0, StatusCode::OK, "{path} with the admin token");
    }
    // A login code would open a session; and every path with POST checks the token first.
    let writing =
        ["/api/login-code", "/api/hold", "/api/release", "/api/rollout", "/api/probe-identity"];
    for path in writing {
        assert_eq!(server.admin.get(path, reader).await.0, StatusCode::UNAUTHORIZED, "{path}");
        assert_ne!(server.admin.text(path).await.0, StatusCode::UNAUTHORIZED, "{path}");
    }
    let other = Some("Bearer token-of-those-who-write");
    assert_eq!(server.admin.get("/debug/clusters", other).await.0, StatusCode::UNAUTHORIZED);
}

/// Returns the keys of a JSON object.
fn keys(value: &Value) -> BTreeSet<&str> {
    value
        .as_object()
        .unwrap_or_else(|| panic!("no object: {value}"))
        .keys()
        .map(String::as_str)
        .collect()
}

fn assert_keys(value: &Value, names: &str) {
    assert_eq!(keys(value), names.split_whitespace().collect(), "{value:#}");
}

#[tokio::test]
async fn responses_have_the_fields_of_the_contract() {
    let (setup, _east, _west, server, client) = running(&[]).await;
    let host = format!("web.{SHOP}.svc.cluster.local");

    let clusters = server.admin.json("/debug/clusters").await;
    assert_keys(
        &clusters[0],
        "id secret source sourceKind via credential inventory missingRights state reason network trustDomain lastContact services endpoints withheld objects relists roots",
    );
    assert_eq!(clusters[0]["secret"], "strait-system/strait-cluster-east");
    assert_eq!((&clusters[1]["network"], &clusters[1]["endpoints"]), (&json!("n2"), &json!(2)));

    let services = server.admin.json(&format!("/debug/services?hostname={host}")).await;
    assert_keys(
        &services[0],
        "hostname namespace resolution ports clusterVIPs externalAddresses serviceAccounts clusters conflicts sharing exports imports",
    );
    assert_eq!(services[0]["ports"], json!([{ "name": "http", "port": 80, "protocol": "HTTP" }]));
    assert_eq!(services[0]["clusters"], json!(["east", "west"]));
    assert_eq!(services[0]["serviceAccounts"], json!(["spiffe://cluster.local/ns/shop/sa/web"]));
    assert!(services[0]["clusterVIPs"]["west"].is_array(), "{services}");

    let upper = host.to_uppercase();
    let found = server.admin.json(&format!("/debug/services?hostname={upper}")).await;
    assert_eq!(found, services);
    let endpoints = server.admin.json(&format!("/debug/endpoints?hostname={upper}")).await;
    assert_eq!(endpoints.as_array().map(Vec::len), Some(4));
    assert_eq!(
        endpoints[3],
        json!({
            "address": "10.0.0.3", "port": 8080, "portName": "http", "servicePorts": [80], "cluster": "west",
            "network": "n2", "locality": "region/zone-n2", "health": "healthy", "weight": 1,
            "serviceAccount": "spiffe://cluster.local/ns/shop/sa/web", "tlsMode": "istio",
            "workload": endpoints[3]["workload"], "provider": "Kubernetes",
        })
    );

    let networks = server.admin.json("/debug/networks").await;
    assert_keys(&networks[1], "network clusters gateways");
    assert_eq!(
        (&networks[1]["network"], &networks[1]["clusters"]),
        (&json!("n2"), &json!(["west"]))
    );
    let gateway = &networks[1]["gateways"][0];
    assert_keys(gateway, "address port hbonePort cluster source");
    assert_eq!((&gateway["address"], &gateway["port"]), (&json!("198.18.0.2"), &json!(15443)));

    // After the acknowledgement of the last response was received.
    let proxies = wait_until(SOON, async || {
        let proxies = server.admin.json("/debug/proxies").await;
        let types = proxies[0]["types"].as_object().cloned().unwrap_or_default();
        let acked = types.len() == 4 && types.values().all(|one| one["sent"] == one["acked"]);
        holds(acked, &proxies).map(|()| proxies)
    })
    .await;
    assert_keys(
        &proxies[0],
        "key id type cluster network namespace identity knownBy knownUntil verified version connectedAt protocol types",
    );
    assert_eq!(proxies[0]["identity"], "spiffe://cluster.local/ns/shop/sa/client");
    assert_eq!((&proxies[0]["network"], &proxies[0]["verified"]), (&json!("n1"), &json!(false)));
    assert_eq!(keys(&proxies[0]["types"]), BTreeSet::from(["cds", "eds", "lds", "rds"]));
    assert_keys(&proxies[0]["types"]["cds"], "sent acked lastSent lastAcked");
    for time in [
        &proxies[0]["connectedAt"],
        &proxies[0]["types"]["eds"]["lastSent"],
        &clusters[0]["lastContact"],
    ] {
        let text = time.as_str().expect("a time");
        assert!(text.parse::<jiff::Timestamp>().is_ok() && text.ends_with('Z'), "{text}");
    }

    let dump = server.admin.json("/debug/config_dump?proxy=client.shop@east").await;
    let contents = client.held();
    for kind in ResourceType::ALL {
        let dumped = dump[kind.short()].as_array().expect("a list");
        let names: Vec<_> = dumped.iter().filter_map(|one| one["name"].as_str()).collect();
        assert_eq!(names, contents.names(kind).collect::<Vec<_>>(), "{}", kind.short());
        let versions = contents.versions(kind);
        for row in dumped {
            let name = row["name"].as_str().expect("a name");
            assert_eq!(row["version"].as_str(), versions.get(name).map(String::as_str), "{name}");
            assert!(row["resource"].is_object(), "{row}");
        }
    }
    let assignments = dump["eds"].as_array().expect("a list");
    let web = assignments.iter().find(|one| one["name"] == outbound("web")).expect("sent");
    assert!(web["resource"].to_string().contains("198.18.0.2"), "{web}");

    let push = server.admin.json("/debug/push").await;
    assert!(push["version"].as_u64().is_some_and(|version| version > 0), "{push}");
    let mesh = server.admin.json("/debug/mesh").await;
    assert_eq!((&mesh["problem"], &mesh["problems"]), (&Value::Null, &json!([])));
    setup.put(
        "mesh",
        &json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": { "name": "strait", "namespace": "strait-system" },
            "data": { "mesh": "trustDomain: 5", "meshNetworks": "networks: [" },
        }),
    );
    let mesh = wait_until(SOON, async || {
        let mesh = server.admin.json("/debug/mesh").await;
        holds(mesh["problems"].as_array().is_some_and(|all| all.len() == 2), &mesh).map(|()| mesh)
    })
    .await;
    let codes = [0, 1].map(|index| mesh["problems"][index]["code"].clone());
    assert_eq!(codes, ["STR0110", "STR0410"]);
    assert!(mesh["problem"].as_str().is_some_and(|text| text.contains("key meshNetworks")));
    let (_, metrics) = server.admin.text("/metrics").await;
    for name in [
        "strait_cluster_sync_duration_seconds{cluster=\"east\"}",
        "strait_cluster_watch_errors_total{cluster=\"east\"}",
        "strait_snapshot_age_seconds",
        "strait_propagation_seconds_bucket{le=\"+Inf\"}",
    ] {
        assert!(metrics.contains(name), "{name}");
    }
}

#[tokio::test]
async fn explain_reports_the_withholding_step() {
    let (_setup, east, west, server, client) = running(&[]).await;
    // Of three pods in west, one is not ready and one accepts plain text; a third network has no
    // gateway.
    west.apply(objects::labelled(
        objects::pod(SHOP, "plain", "web", "10.0.0.4", "node"),
        "security.istio.io/tlsMode",
        "disabled",
    ));
    let ready = |address: &str, pod: &str| Endpoint::new(address).with_pod(pod);
    let unready = Endpoint { ready: false, ..ready("10.0.0.3", "web-10-0-0-3") };
    west.slice(
        "web",
        &[HTTP],
        &[
            ready("10.0.0.1", "web-10-0-0-1"),
            unready,
            ready("10.0.0.4", "plain"),
            ready("10.0.0.5", "unseen"),
        ],
    );
    east.apply(objects::labelled(
        objects::pod(SHOP, "lost", "web", "10.0.0.6", "node"),
        NETWORK_LABEL,
        "n9",
    ));
    let own =
        ["10.0.0.1", "10.0.0.2"].map(|ip| ready(ip, &format!("web-{}", ip.replace('.', "-"))));
    east.slice("web", &[HTTP], &[own[0].clone(), own[1].clone(), ready("10.0.0.6", "lost")]);
    endpoints_until(&client, "web", &[EAST_ONLY[0], EAST_ONLY[1], ("198.18.0.2:15443", 1)]).await;

    let path = "/debug/explain?proxy=client.shop&hostname=web.shop&port=80";
    let explained = server.admin.json(path).await;
    assert_keys(&explained, "proxy hostname port clusters endpoints");
    assert_keys(&explained["clusters"][0], "cluster network ready total sent via reason code");
    let order = ["ready", "pod", "export", "network", "gateway", "family", "mtls"];
    let mut verdicts = Vec::new();
    for endpoint in explained["endpoints"].as_array().expect("a list") {
        let steps = endpoint["steps"].as_array().expect("a list");
        steps.iter().for_each(|step| assert_keys(step, "step ok detail"));
        let names: Vec<_> = steps.iter().filter_map(|step| step["step"].as_str()).collect();
        assert!(order.starts_with(&names), "{names:?}");
        let failed: Vec<_> = steps.iter().filter(|step| step["ok"] == false).collect();
        let withheld = endpoint["verdict"] == "withheld";
        assert_eq!(failed.len(), usize::from(withheld), "{endpoint:#}");
        let step = failed.first().and_then(|step| step["step"].as_str()).unwrap_or_default();
        let field = |key: &str| endpoint[key].as_str().unwrap_or_default().to_owned();
        verdicts.push(
            format!("{} {} {} {step}", field("cluster"), field("address"), field("verdict"))
                .trim_end()
                .to_owned(),
        );
    }
    assert_eq!(
        verdicts,
        [
            "east 10.0.0.1 direct",
            "east 10.0.0.2 direct",
            "east 10.0.0.6 withheld gateway",
            "west 10.0.0.1 gateway",
            "west 10.0.0.3 withheld ready",
            "west 10.0.0.4 withheld mtls",
            "west 10.0.0.5 withheld pod",
        ]
    );
    let filtered = server.admin.json(&format!("{path}&address=10.0.0.4")).await;
    assert_eq!(filtered["endpoints"].as_array().map(Vec::len), Some(1));
    assert_eq!(
        server.admin.text("/debug/explain?proxy=client.shop&hostname=no").await.0,
        StatusCode::NOT_FOUND
    );
    // Endpoints withheld from the proxy's network or from all proxies are counted; endpoints that
    // are not ready are not.
    assert_eq!(server.cluster("west").await["withheld"], 2);
    let east = server.cluster("east").await;
    assert_eq!((&east["withheld"], &east["withheldBy"]), (&json!(1), &json!({ "STR0401": 1 })));
    assert_eq!(server.cluster("west").await["withheldBy"], json!({ "STR0404": 1, "STR0421": 1 }));
    // Names are case-insensitive; an address must be valid.
    let upper = path.replace("web.shop", "Web.SHOP");
    assert_eq!(server.admin.text(&upper).await.0, StatusCode::OK, "{upper}");
    let (status, text) = server.admin.text(&format!("{path}&address=xyz")).await;
    assert_eq!(status, StatusCode::BAD_REQUEST, "{text}");
}

#[tokio::test]
async fn serving_certificate_can_come_from_files() {
    let setup = Setup::new();
    let names = ["localhost".to_owned()];
    let issued = setup.authority().issue_serving(&names, SystemTime::now()).expect("issued");
    let path = |name: &str| setup.path(name).display().to_string();
    std::fs::write(path("cert.pem"), issued.chain.to_pem()).expect("written");
    std::fs::write(path("key.pem"), issued.key_pem()).expect("written");
    std::fs::write(path("roots.pem"), setup.authority().roots().to_pem()).expect("written");
    let (east, _) = east_and_west().await;
    setup.join(&[&east]);
    let (cert, key, roots) = (path("cert.pem"), path("key.pem"), path("roots.pem"));
    let setup = setup.with(&["--tls-cert", &cert, "--tls-key", &key, "--client-ca", &roots]);
    let server = setup.start_ready().await;
    let client = server.connect(&setup, &Proxy::sidecar("east")).await;
    endpoints_until(&client, "web", EAST_ONLY).await;
    // The server presents the certificate from the file.
    let shown = rustls_pki_types::CertificateDer::pem_file_iter(&cert).expect("PEM").count();
    assert_eq!(shown, issued.chain.certificates().len());
    assert!(!setup.path("state").join("ca").exists(), "no CA is created if none is needed");
}

#[tokio::test]
async fn changed_mesh_networks_file_takes_effect() {
    let (east, west) = east_and_west().await;
    for member in [&east, &west] {
        member.apply(objects::namespace(SYSTEM));
        member.api.store().delete("Service", SYSTEM, "eastwestgateway").expect("deleted");
    }
    let setup = Setup::new();
    let file = setup.path("networks.yaml");
    let networks = |address: &str| {
        format!(
            "networks:\n  n1:\n    endpoints: [{{fromRegistry: east}}]\n  n2:\n    \
             endpoints: [{{fromRegistry: west}}]\n    gateways: [{{address: {address}, port: 443}}]\n"
        )
    };
    replace(&file, &networks("198.18.0.2"));
    setup.join(&[&east, &west]);
    let setup = setup.with(&["--mesh-networks", &file.display().to_string()]);
    let server = setup.start_ready().await;
    let client = server.connect(&setup, &Proxy::sidecar("east")).await;
    endpoints_until(&client, "web", &[EAST_ONLY[0], EAST_ONLY[1], ("198.18.0.2:443", 2)]).await;
    replace(&file, &networks("198.18.0.3"));
    endpoints_until(&client, "web", &[EAST_ONLY[0], EAST_ONLY[1], ("198.18.0.3:443", 2)]).await;
    replace(&file, "networks: [");
    replace(&file, &networks("198.18.0.4"));
    endpoints_until(&client, "web", &[EAST_ONLY[0], EAST_ONLY[1], ("198.18.0.4:443", 2)]).await;
}

#[tokio::test]
async fn added_and_removed_clusters_leak_nothing() {
    let setup = Setup::new().with(&["--cluster-removal-grace", "0s"]);
    let (east, west) = east_and_west().await;
    setup.join(&[&east]);
    let server = setup.start_ready().await;
    let client = server.connect(&setup, &Proxy::sidecar("east")).await;
    endpoints_until(&client, "web", EAST_ONLY).await;
    settled(&client).await;
    // Each connection to a simulated server is a task there, so this counts connections as well.
    let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let mut base = 0;
    for round in 0..50 {
        setup.join(&[&west]);
        endpoints_until(&client, "web", BOTH).await;
        setup.take_out("west");
        server.cluster_until("west", Value::is_null).await;
        endpoints_until(&client, "web", EAST_ONLY).await;
        if round == 0 {
            base = tasks();
        }
    }
    // The number varies; a leak of one per round would be 49.
    wait_until(SOON, async || holds(tasks() < base + 20, (base, tasks()))).await;
    assert_eq!(server.admin.metric("strait_task_panics_total").await, 0.0);
}

#[tokio::test]
async fn binary_prints_its_addresses_and_drains_on_sigterm() {
    let (east, _) = east_and_west().await;
    let setup = Setup::new();
    setup.join(&[&east]);
    let mut process = Command::new(env!("CARGO_BIN_EXE_strait"))
        .arg("serve")
        .args(setup.arguments())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .expect("it starts");
    let mut lines = BufReader::new(process.stdout.take().expect("piped")).lines();
    let line = lines.next_line().await.expect("readable").expect("a line");
    let ports: Value = serde_json::from_str(&line).expect("JSON");
    assert_keys(&ports, "xds admin");
    let address =
        |key: &str| ports[key].as_str().and_then(|text| text.parse().ok()).expect("an address");

    let file = setup.path("state").join("admin-token");
    let mode = std::fs::metadata(&file).expect("a token file").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let token = std::fs::read_to_string(&file).expect("a token");
    let admin = Admin::new(address("admin"), token.trim());
    wait_until(SOON, async || {
        let (status, text) = admin.text("/readyz?verbose").await;
        holds(status == StatusCode::OK, text)
    })
    .await;

    let tls = setup.certificate(SHOP, "client");
    let channel =
        strait_xds_client::channel(address("xds"), "localhost", tls).await.expect("connected");
    let tasks = strait_base::task::Supervisor::new();
    let node = Proxy::sidecar("east").node();
    let mut client =
        XdsClient::open(channel, node, ClientOptions::default(), &tasks).await.expect("let in");
    endpoints_until(&client, "web", EAST_ONLY).await;

    let id = process.id().expect("it runs").to_string();
    let killed = Command::new("kill").args(["-TERM", &id]).status().await.expect("kill runs");
    assert!(killed.success());
    let contents = client.wait_for(|contents| contents.ended.is_some()).await.expect("it ends");
    assert!(contents.ended.is_some_and(|why| why.contains("reconnect")));
    let exit = tokio::time::timeout(SOON, process.wait()).await.expect("in time").expect("it ends");
    assert_eq!(exit.code(), Some(0));
    assert_eq!(lines.next_line().await.expect("readable"), None, "exactly one line");
}

#[tokio::test]
async fn server_with_unread_output_keeps_serving() {
    let (east, _) = east_and_west().await;
    let setup = Setup::new();
    setup.join(&[&east]);
    let port = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = port.local_addr().expect("an address");
    drop(port);
    let closed = || std::io::pipe().expect("a pipe").1;
    let mut arguments = setup.arguments();
    let at = arguments.iter().position(|one| one == "--admin-address").expect("the flag is set");
    arguments[at + 1] = address.to_string();
    let mut process = Command::new(env!("CARGO_BIN_EXE_strait"))
        .arg("serve")
        .args(arguments)
        .args(["--log-level", "debug"])
        .stdout(closed())
        .stderr(closed())
        .kill_on_drop(true)
        .spawn()
        .expect("it starts");
    let file = setup.path("state").join("admin-token");
    wait_until(SOON, async || holds(file.exists(), "no token")).await;
    let token = std::fs::read_to_string(&file).expect("a token");
    let admin = Admin::new(address, token.trim());
    wait_until(SOON, async || {
        let ended = process.try_wait().expect("the process can be awaited");
        assert_eq!(ended, None, "the process ended without a reader");
        holds(tokio::net::TcpStream::connect(address).await.is_ok(), "the process does not listen")
    })
    .await;
    wait_until(SOON, async || {
        let (status, text) = admin.text("/readyz?verbose").await;
        holds(status == StatusCode::OK, text)
    })
    .await;
    assert_eq!(admin.metric("strait_task_panics_total").await, 0.0, "because of a log line");
    let id = process.id().expect("it runs").to_string();
    let killed = Command::new("kill").args(["-TERM", &id]).status().await.expect("kill runs");
    assert!(killed.success());
    let exit = tokio::time::timeout(SOON, process.wait()).await.expect("in time").expect("it ends");
    assert_eq!(exit.code(), Some(0));
}

#[tokio::test]
async fn process_drains_and_deletes_its_token_when_its_terminal_closes() {
    let (config, temporary) = (tempfile::tempdir(), tempfile::tempdir());
    let (config, temporary) = (config.expect("a folder"), temporary.expect("a folder"));
    let mut process = Command::new(env!("CARGO_BIN_EXE_strait"))
        .args(["serve", "--xds-address", "127.0.0.1:0", "--admin-address", "127.0.0.1:0"])
        .arg("--config-dir")
        .arg(config.path())
        .env("TMPDIR", temporary.path())
        .env_remove("XDG_RUNTIME_DIR")
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .expect("it starts");
    let mut lines = BufReader::new(process.stdout.take().expect("piped")).lines();
    lines.next_line().await.expect("readable").expect("it listens");
    let remaining = || std::fs::read_dir(temporary.path()).expect("it stays").flatten().count();
    assert_eq!(remaining(), 1, "the folder of its token is left");
    let id = process.id().expect("it runs").to_string();
    let killed = Command::new("kill").args(["-HUP", &id]).status().await.expect("kill runs");
    assert!(killed.success());
    let exit = tokio::time::timeout(SOON, process.wait()).await.expect("in time").expect("it ends");
    assert_eq!((exit.code(), remaining()), (Some(0), 0));
}

#[tokio::test]
async fn readiness_is_never_revoked() {
    let (setup, east, west, server, _client) = running(&["--cluster-removal-grace", "0s"]).await;
    east.api.stop().await;
    setup.take_out("west");
    server.cluster_until("west", Value::is_null).await;
    setup.join(&[&west]);
    west.api.fault(Fault::Hang);
    let began = SystemTime::now();
    wait_until(Duration::from_secs(60), async || {
        let (status, text) = server.admin.get("/readyz", None).await;
        assert_eq!(status, StatusCode::OK, "{text}");
        let stale = server.cluster("east").await["state"] == "stale";
        holds(stale, began.elapsed())
    })
    .await;
}
