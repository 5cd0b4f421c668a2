//! Networks, sentence by sentence (docs/reference/interface.md, "Networks" and the claims of
//! "Proxies"): the network of each proxy and endpoint, and explanations that agree with the
//! resources sent.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::members::TCP;
use super::mesh::{
    Member, Proxy, SHOP, SOON, SYSTEM, Server, Setup, east_and_west, endpoints_until, holds,
    renamed, wait_until,
};
use strait_sim::objects;
use strait_sim::objects::{Endpoint, HTTP, NETWORK_LABEL};
use strait_xds::resource::ResourceType;
use strait_xds_client::{Options as ClientOptions, StreamEnded, XdsClient, XdsConnectError};

/// Returns the gateways of a network in `/debug/networks`, as `address cluster`.
fn gateways(networks: &Value, name: &str) -> Vec<String> {
    let all = networks.as_array().expect("a list").iter();
    let network = all.filter(|one| one["network"] == name);
    let gateways = network.flat_map(|one| one["gateways"].as_array().expect("a list"));
    let field_text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    gateways
        .map(|one| format!("{} {}", field_text(&one["address"]), field_text(&one["cluster"])))
        .collect()
}

#[tokio::test]
async fn annotation_moves_pods_proxies_and_gateways_and_ignored_claims_are_shown() {
    let (east, west) = east_and_west().await;
    let placed = objects::pod(SHOP, "web-10-0-0-3", "web", "10.0.0.3", "node");
    west.apply(objects::labelled(placed, NETWORK_LABEL, "n3"));
    let setup = Setup::new();
    setup.join(&[&east, &west]);
    let server = setup.start_ready().await;
    let client = server.connect(&setup, &Proxy::sidecar("east")).await;
    let own = [("10.0.0.1:8080", 1), ("10.0.0.2:8080", 1)];
    // The pod in n3 has no gateway.
    endpoints_until(&client, "web", &[own[0], own[1], ("198.18.0.2:15443", 1)]).await;
    assert!(server.cluster("west").await["ignoredClaims"].is_null(), "no claim is ignored");

    let mut fixed = west.secret();
    fixed["metadata"]["annotations"] = json!({ "strait.dev/network": "n9" });
    setup.put("west", &fixed);
    endpoints_until(&client, "web", &[own[0], own[1], ("198.18.0.2:15443", 2)]).await;
    let entry = server.cluster_until("west", |entry| entry["network"] == "n9").await;
    assert_eq!(
        entry["ignoredClaims"],
        json!([
            { "claim": "label topology.istio.io/network of Service strait-system/eastwestgateway",
              "network": "n2" },
            { "claim": "label topology.istio.io/network of the system namespace", "network": "n2" },
            { "claim": "label topology.istio.io/network of pods (1)", "network": "n3" },
        ])
    );
    let networks = server.admin.json("/debug/networks").await;
    assert_eq!(gateways(&networks, "n9"), ["198.18.0.2 west"], "{networks:#}");
    assert!(gateways(&networks, "n2").is_empty() && gateways(&networks, "n3").is_empty());
    // Its own proxies are in that network too.
    let here = server.connect(&setup, &Proxy::sidecar("west")).await;
    let both = [("10.0.0.1:8080", 1), ("10.0.0.3:8080", 1), ("198.18.0.1:15443", 2)];
    endpoints_until(&here, "web", &both).await;

    setup.join(&[&west]);
    endpoints_until(&client, "web", &[own[0], own[1], ("198.18.0.2:15443", 1)]).await;
    assert_eq!(gateways(&server.admin.json("/debug/networks").await, "n2"), ["198.18.0.2 west"]);
    assert!(server.cluster("west").await["ignoredClaims"].is_null());
}

/// Returns a proxy of the pod of `web` at 10.0.0.1.
fn web(cluster: &str) -> Proxy {
    let (name, account, ip) = ("web-10-0-0-1", "web", "10.0.0.1".to_owned());
    Proxy { name, account, ip, ..Proxy::sidecar(cluster) }
}

/// Returns the network in which a proxy is admitted, or the reason why it isn't.
async fn admitted(server: &Server, setup: &Setup, proxy: &Proxy) -> Result<String, String> {
    let mut client = match server.open(setup, proxy, ClientOptions::default()).await {
        Ok(client) => client,
        Err(XdsConnectError::Refused(status)) => {
            return Err(format!("{:?}: {}", status.code(), status.message()));
        }
        Err(error) => panic!("{error}"),
    };
    client
        .wait_for(|contents| contents.responses > 0)
        .await
        .map_err(|StreamEnded(reason)| reason)?;
    let proxies = server.admin.json("/debug/proxies").await;
    let all = proxies.as_array().expect("a list").iter();
    let streams: Vec<_> = all.filter(|one| one["cluster"] == *proxy.cluster).collect();
    assert_eq!(streams.len(), 1, "{proxies:#}");
    Ok(streams[0]["network"].as_str().unwrap_or_default().to_owned())
}

#[tokio::test]
async fn network_claim_applies_unless_pod_or_annotation_contradicts_it() {
    let (east, west) = east_and_west().await;
    let unnamed = Member::start("north", "", "198.18.0.3").await;
    unnamed.serve("web", &["10.0.0.1"]);
    let setup = Setup::new();
    setup.join(&[&east, &unnamed]);
    let mut fixed = west.secret();
    fixed["metadata"]["annotations"] = json!({ "strait.dev/network": "n9" });
    setup.put("west", &fixed);
    let server = setup.start_ready().await;
    let claims = |proxy: Proxy, network: &'static str| Proxy { network: Some(network), ..proxy };
    for (what, proxy, wanted) in [
        ("nothing claimed", web("east"), Ok("n1")),
        ("an empty claim", claims(web("east"), ""), Ok("n1")),
        ("the truth", claims(web("east"), "n1"), Ok("n1")),
        ("another than the pod's", claims(web("east"), "n2"), Err("STR0513")),
        ("claim of an unknown pod", claims(Proxy::sidecar("east"), "n2"), Ok("n2")),
        ("where nothing names one", claims(web("north"), "n2"), Ok("n2")),
        ("no network is configured", web("north"), Ok("")),
        ("the annotation's", claims(web("west"), "n9"), Ok("n9")),
        ("another than the annotation's", claims(web("west"), "n2"), Err("STR0513")),
        (
            "contradicting claim of an unknown pod",
            claims(Proxy::sidecar("west"), "n2"),
            Err("STR0513"),
        ),
        ("an empty claim under an annotation", claims(Proxy::sidecar("west"), ""), Ok("n9")),
    ] {
        let found = admitted(&server, &setup, &proxy).await;
        wait_until(SOON, async || {
            let proxies = server.admin.json("/debug/proxies").await;
            holds(proxies == json!([]), proxies)
        })
        .await;
        match wanted {
            Ok(network) => assert_eq!(found.as_deref(), Ok(network), "{what}"),
            Err(code) => {
                let refused = found.expect_err(what);
                assert!(refused.starts_with(&format!("PermissionDenied: {code}")), "{refused}");
            }
        }
    }
}

#[tokio::test]
async fn removed_cluster_ends_no_stream_and_moves_no_proxy() {
    let (east, west) = east_and_west().await;
    let north = Member::start("north", "n2", "198.18.0.3").await;
    north.serve("web", &["10.0.0.8"]);
    let setup = Setup::new().with(&["--cluster-removal-grace", "0s"]);
    setup.join(&[&east, &west, &north]);
    let server = setup.start_ready().await;
    let proxy = Proxy::sidecar("west");
    let client = server.connect(&setup, &proxy).await;
    let others = [("10.0.0.8:8080", 1), ("198.18.0.1:15443", 2)];
    let own = [("10.0.0.1:8080", 1), ("10.0.0.3:8080", 1)];
    endpoints_until(&client, "web", &[own, others].concat()).await;
    setup.take_out("west");
    server.cluster_until("west", Value::is_null).await;
    // North is in its network, and stays there.
    endpoints_until(&client, "web", &others).await;
    north.serve("web", &["10.0.0.8", "10.0.0.9"]);
    let more = [others[0], ("10.0.0.9:8080", 1), others[1]];
    endpoints_until(&client, "web", &more).await;
    assert_eq!(server.admin.json("/debug/proxies").await[0]["network"], "n2");
    let again = Proxy { name: "again", ..proxy };
    let refused = admitted(&server, &setup, &again).await.expect_err("no such cluster");
    assert!(refused.starts_with("PermissionDenied: STR0511"), "{refused}");
}

#[tokio::test]
async fn network_of_a_machine_follows_its_workload_entry() {
    let (east, west) = east_and_west().await;
    let setup = Setup::new();
    setup.join(&[&east, &west]);
    let server = setup.start_ready().await;
    let proxy = Proxy::sidecar("east");
    let client = server.connect(&setup, &proxy).await;
    let n1_endpoints = [("10.0.0.1:8080", 1), ("10.0.0.2:8080", 1), ("198.18.0.2:15443", 2)];
    let n2_endpoints = [("10.0.0.1:8080", 1), ("10.0.0.3:8080", 1), ("198.18.0.1:15443", 2)];
    endpoints_until(&client, "web", &n1_endpoints).await;
    let entry = |network: &str| {
        json!({
            "apiVersion": "networking.istio.io/v1",
            "kind": "WorkloadEntry",
            "metadata": { "name": proxy.name, "namespace": SHOP },
            "spec": { "address": proxy.ip, "network": network, "serviceAccount": proxy.account },
        })
    };
    for (network, found) in [("n2", &n2_endpoints), ("n1", &n1_endpoints)] {
        setup.put("machine", &entry(network));
        endpoints_until(&client, "web", found).await;
        let shown = server.admin.json("/debug/proxies").await;
        assert_eq!((&shown[0]["network"], &shown[0]["verified"]), (&json!(network), &json!(true)));
    }
}

/// Returns a Service without an address, for the pods of `app`.
fn headless(name: &str, ports: &[objects::Port]) -> Value {
    objects::service(SHOP, name, "None", ports)
}

fn field_values(list: &Value, key: &str) -> BTreeSet<String> {
    let all = list.as_array().into_iter().flatten();
    all.filter_map(|one| one[key].as_str().map(str::to_owned)).collect()
}

/// Checks that `/debug/explain` agrees with the proxy's resources for each service and port:
/// members of the assignment, or listeners of headless pods.
async fn explained_as_sent(
    server: &Server,
    client: &XdsClient,
    proxy: &Proxy,
) -> Result<usize, String> {
    let mut compared = 0;
    let contents = client.held();
    let services = server.admin.json("/debug/services").await;
    for service in services.as_array().expect("a list") {
        let host = service["hostname"].as_str().expect("a name");
        for port in service["ports"].as_array().expect("a list") {
            let number = &port["port"];
            let query = format!("proxy={}&hostname={host}&port={number}", proxy.id());
            let answer = server.admin.json(&format!("/debug/explain?{query}")).await;
            let mut reached = BTreeSet::new();
            let mut given = 0;
            for endpoint in answer["endpoints"].as_array().expect("a list") {
                match endpoint["verdict"].as_str() {
                    Some("direct") => {
                        let address = endpoint["address"].as_str().expect("an address");
                        reached.insert(format!("{address}:{}", endpoint["port"]));
                        given += 1;
                    }
                    Some("gateway") => {
                        let via = endpoint["via"].as_array().expect("gateways");
                        reached.extend(via.iter().filter_map(Value::as_str).map(str::to_owned));
                        given += 1;
                    }
                    _ => {}
                }
            }
            let lines = answer["clusters"].as_array().expect("a list");
            let sent: u64 = lines.iter().filter_map(|line| line["sent"].as_u64()).sum();
            assert_eq!(sent, given, "{answer:#}");
            let found: BTreeSet<String> = if proxy.kind == "router" {
                let name = format!("outbound_.{number}_._.{host}");
                contents.endpoints(&name).keys().map(ToString::to_string).collect()
            } else if service["resolution"] == "Headless" {
                let names = contents.names(ResourceType::Listener);
                let own = names.filter_map(|name| name.rsplit_once('_'));
                let own = own.filter(|(address, port)| {
                    address.starts_with("10.") && **port == *number.to_string()
                });
                own.map(|(address, port)| format!("{address}:{port}")).collect()
            } else {
                let name = format!("outbound|{number}||{host}");
                contents.endpoints(&name).keys().map(ToString::to_string).collect()
            };
            holds(found == reached, (host, number, &found, &reached))?;
            compared += 1;
        }
    }
    Ok(compared)
}

#[tokio::test]
async fn explanations_agree_with_the_resources_sent() {
    let (east, west) = east_and_west().await;
    let lost = Member::start("lost", "n7", "198.18.0.7").await;
    lost.apply(objects::gateway_service(SYSTEM, "n7", "172.20.0.1", ""));
    lost.serve("web", &["10.0.0.6"]);
    for (member, pods) in [(&east, ["10.0.1.1", "10.0.1.2"]), (&west, ["10.0.1.1", "10.0.1.3"])] {
        member.apply(headless("db", &[TCP]));
        let endpoints = pods.map(|address| {
            let name = format!("db-{}", address.replace('.', "-"));
            member.apply(objects::pod(SHOP, &name, "db", address, "node"));
            Endpoint::new(address).with_pod(&name)
        });
        member.slice("db", &[TCP], &endpoints);
    }
    // Of west's other pods, one is not ready, one accepts plain text, and one has not been seen.
    let plain = objects::pod(SHOP, "plain", "web", "10.0.0.4", "node");
    west.apply(objects::labelled(plain, "security.istio.io/tlsMode", "disabled"));
    let ready = |address: &str, pod: &str| Endpoint::new(address).with_pod(pod);
    let unready = Endpoint { ready: false, ..ready("10.0.0.3", "web-10-0-0-3") };
    let further = [ready("10.0.0.4", "plain"), unready, ready("10.0.0.5", "unseen")];
    let ready_pod = ready("10.0.0.1", "web-10-0-0-1");
    west.slice("web", &[HTTP], &[&[ready_pod][..], &further].concat());
    let mut private = objects::service(SHOP, "private", "172.20.1.200", &[HTTP]);
    private["metadata"]["annotations"] = json!({ "networking.istio.io/exportTo": "." });
    for (member, address) in [(&east, "10.0.0.1"), (&west, "10.0.0.3")] {
        member.apply(private.clone());
        let pod = format!("web-{}", address.replace('.', "-"));
        member.slice("private", &[HTTP], &[ready(address, &pod)]);
    }
    let setup = Setup::new();
    setup.join(&[&east, &west, &lost]);
    setup.put("standby", &renamed(west.secret(), "zz"));
    let server = setup.start_ready().await;
    let mut clients = Vec::new();
    for proxy in [
        Proxy::sidecar("west"),
        Proxy { network: Some("n7"), ..Proxy::sidecar("lost") },
        Proxy { network: Some("elsewhere"), ..Proxy::sidecar("east") },
        Proxy::gateway("west"),
        // The last one: the newest of the proxies with its ID is queried below.
        Proxy::sidecar("east"),
    ] {
        let client = server.connect(&setup, &proxy).await;
        let compared =
            wait_until(SOON, async || explained_as_sent(&server, &client, &proxy).await).await;
        assert!(compared >= 4, "{compared}");
        clients.push(client);
    }

    let explained = async |host: &str| {
        let path = format!("/debug/explain?proxy=client.shop@east&hostname={host}.{SHOP}");
        server.admin.json(&path).await
    };
    let db = explained("db").await;
    let codes: Vec<_> = db["clusters"].as_array().expect("a list").iter().collect();
    assert_eq!(codes[1]["code"], "STR0407", "{db:#}");
    assert_eq!(
        field_values(&db["endpoints"], "verdict"),
        ["direct", "withheld"].map(str::to_owned).into()
    );
    let private = explained("private").await;
    assert_eq!(private["clusters"][1]["code"], "STR0422", "{private:#}");
    let web = explained("web").await;
    let line = |cluster: &str| {
        let lines = web["clusters"].as_array().expect("a list").iter();
        lines.clone().find(|line| line["cluster"] == cluster).expect("one").clone()
    };
    assert_eq!(line("lost")["code"], "STR0402", "{web:#}");
    let networks = server.admin.json("/debug/networks").await;
    let lost = networks.as_array().expect("a list").iter().find(|one| one["network"] == "n7");
    let pending = &lost.expect("listed")["pending"][0];
    assert_eq!(
        (&pending["cluster"], &pending["source"]),
        (&json!("lost"), &json!("service strait-system/eastwestgateway"))
    );
    assert_eq!(line("east")["via"], "direct");
    let west = line("west");
    assert_eq!((&west["via"], &west["sent"]), (&json!("198.18.0.2:15443"), &json!(1)), "{web:#}");
    // Endpoints that are not ready are not counted: db 2, web 2, private 1.
    let entries = server.clusters("west").await;
    assert_eq!((&entries[0]["withheld"], &entries[0]["state"]), (&json!(5), &json!("live")));
    // A standby has no objects.
    assert_eq!((&entries[1]["withheld"], &entries[1]["state"]), (&json!(0), &json!("conflict")));
    assert_eq!(server.cluster("lost").await["withheld"], 1);
    let (_, metrics) = server.admin.text("/metrics").await;
    let counted = "strait_endpoints_withheld{cluster=\"lost\",reason=\"STR04";
    assert!(metrics.contains(counted), "{metrics}");
    assert_eq!(server.cluster("east").await["withheld"], 3, "of n7's and west's: db 2, private 1");
}
