//! Gateways that subscribe to Secrets in their cluster and namespace (SDS over ADS): which
//! Secrets they receive, and which they don't.

use std::time::{Duration, SystemTime};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use prost::Message as _;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;

use super::mesh::{Member, Proxy, SHOP, SOON, Server, Setup, holds, text, wait_until};
use strait_proto::envoy::envoy::config::core::v3::data_source::Specifier;
use strait_proto::envoy::envoy::extensions::transport_sockets::tls::v3::{Secret, secret};
use strait_proto::envoy::envoy::service::discovery::v3::aggregated_discovery_service_client::AggregatedDiscoveryServiceClient;
use strait_proto::envoy::envoy::service::discovery::v3::{DiscoveryRequest, DiscoveryResponse};
use strait_sim::{Fault, objects};
use strait_xds::resource::ResourceType;
use strait_xds_client::channel;

const SECRET: &str = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret";
/// The time in which no response may arrive if none is expected.
const QUIET: Duration = Duration::from_millis(500);

/// The Envoy of an ingress gateway.
struct Gateway {
    requests: mpsc::Sender<DiscoveryRequest>,
    responses: Streaming<DiscoveryResponse>,
    /// The nonce of the last response about secrets.
    nonce: String,
}

impl Gateway {
    async fn open(server: &Server, setup: &Setup, proxy: &Proxy) -> Self {
        let tls = setup.certificate(proxy.namespace, proxy.account);
        let channel = channel(server.bound.xds, "localhost", tls).await.expect("connected");
        let (requests, receiver) = mpsc::channel(16);
        let first = DiscoveryRequest {
            type_url: ResourceType::Cluster.url().to_owned(),
            node: Some(proxy.node()),
            ..Default::default()
        };
        requests.send(first).await.expect("room");
        let mut client = AggregatedDiscoveryServiceClient::new(channel);
        let answer = client.stream_aggregated_resources(ReceiverStream::new(receiver)).await;
        let mut gateway = Self {
            requests,
            responses: answer.expect("let in").into_inner(),
            nonce: String::new(),
        };
        gateway.next().await.expect("its upstream clusters");
        gateway
    }

    async fn subscribe(&self, names: &[&str]) {
        let resource_names = names.iter().map(|name| (*name).to_owned()).collect();
        let request = DiscoveryRequest {
            type_url: SECRET.to_owned(),
            resource_names,
            response_nonce: self.nonce.clone(),
            ..Default::default()
        };
        self.requests.send(request).await.expect("it is open");
    }

    async fn next(&mut self) -> Option<DiscoveryResponse> {
        let response = tokio::time::timeout(SOON, self.responses.message()).await.ok()?;
        Some(response.expect("no error").expect("the stream continues"))
    }

    /// Returns the secrets of the next response, with their content.
    async fn secrets(&mut self) -> Vec<(String, Vec<u8>)> {
        let response = self.next().await.expect("in time");
        assert_eq!(response.type_url, SECRET, "only secrets are expected");
        self.nonce.clone_from(&response.nonce);
        let decoded = response.resources.iter().map(|any| {
            let item = Secret::decode(&*any.value).expect("a secret");
            let source = match item.r#type.expect("of a kind") {
                secret::Type::TlsCertificate(pair) => {
                    assert!(pair.private_key.is_some());
                    pair.certificate_chain
                }
                secret::Type::ValidationContext(roots) => roots.trusted_ca,
                other => panic!("{other:?}"),
            };
            let Some(Specifier::InlineBytes(bytes)) = source.expect("a source").specifier else {
                panic!("not inline")
            };
            (item.name, bytes)
        });
        decoded.collect()
    }

    /// Checks that the stream continues, and that no secret arrives for a while.
    async fn is_quiet(&mut self) -> bool {
        loop {
            match tokio::time::timeout(QUIET, self.responses.message()).await {
                Err(_) => return true,
                // An empty response about names without resources is ignored.
                Ok(Ok(Some(response))) if response.type_url != SECRET => {}
                Ok(Ok(Some(response))) if response.resources.is_empty() => {}
                Ok(other) => {
                    eprintln!("not quiet: {other:?}");
                    return false;
                }
            }
        }
    }
}

/// Returns a certificate pair for a name as the data of a Secret, and its chain.
fn pair(setup: &Setup, name: &str) -> (Value, Vec<u8>) {
    let issued = setup.authority().issue_serving(&[name.to_owned()], SystemTime::now());
    let issued = issued.expect("it signs");
    let chain = issued.chain.to_pem().into_bytes();
    let data = json!({
        "tls.crt": STANDARD.encode(&chain), "tls.key": STANDARD.encode(issued.key_pem()),
        "ca.crt": STANDARD.encode(&chain),
    });
    (data, chain)
}

fn kubernetes_secret(name: &str, data: &Value) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls",
        "metadata": { "namespace": SHOP, "name": name }, "data": data,
    })
}

/// Returns an ingress gateway whose pod runs in east.
fn ingress() -> Proxy {
    Proxy {
        kind: "router",
        name: "ingress-0",
        account: "ingress",
        ip: "10.0.0.9".into(),
        ..Proxy::sidecar("east")
    }
}

async fn running() -> (Setup, Member, Server) {
    let east = Member::start("east", "n1", "198.18.0.1").await;
    east.serve("web", &["10.0.0.1"]);
    east.apply(objects::pod(SHOP, "ingress-0", "ingress", "10.0.0.9", "node"));
    let setup = Setup::new();
    setup.join(&[&east]);
    let server = setup.start_ready().await;
    (setup, east, server)
}

/// Returns the entry of a secret in the admin API.
async fn shown(server: &Server, name: &str) -> Value {
    let proxies = server.admin.json("/debug/proxies").await;
    let secrets = proxies[0]["secrets"].as_array().cloned().unwrap_or_default();
    secrets.into_iter().find(|one| one["name"] == name).unwrap_or_default()
}

async fn shown_with(server: &Server, name: &str, code: &str) {
    wait_until(SOON, async || {
        let shown = shown(server, name).await;
        holds(shown["code"] == code, shown)
    })
    .await;
}

#[tokio::test]
async fn gateway_receives_the_secrets_of_its_cluster_and_their_changes() {
    let (setup, east, server) = running().await;
    let ((first, chain), (second, other)) = (pair(&setup, "a.example"), pair(&setup, "b.example"));
    east.apply(kubernetes_secret("shop-tls", &first));
    let mut gateway = Gateway::open(&server, &setup, &ingress()).await;
    let name = "kubernetes://shop-tls";
    gateway.subscribe(&[name]).await;
    assert_eq!(gateway.secrets().await, [(name.to_owned(), chain.clone())]);

    // The roots in a separate Secret, and under the name that Gateways use.
    let (roots, full) = ("kubernetes://shop-tls-cacert", "kubernetes-gateway://shop/shop-tls");
    gateway.subscribe(&[name, roots, full]).await;
    let mut come = Vec::new();
    while come.len() < 2 {
        come.extend(gateway.secrets().await);
    }
    come.sort();
    assert_eq!(come, [(full.to_owned(), chain.clone()), (roots.to_owned(), chain)]);

    // Only the change is sent.
    gateway.subscribe(&[name]).await;
    east.apply(kubernetes_secret("shop-tls", &second));
    assert_eq!(gateway.secrets().await, [(name.to_owned(), other)]);

    // An invalid or deleted Secret is not sent: the gateway keeps the previous one.
    east.apply(kubernetes_secret(
        "shop-tls",
        &json!({ "tls.crt": first["tls.crt"], "tls.key": second["tls.key"] }),
    ));
    shown_with(&server, name, "STR0543").await;
    east.api.store().delete("Secret", SHOP, "shop-tls").expect("deleted");
    shown_with(&server, name, "STR0540").await;
    assert!(gateway.is_quiet().await);
    let shown = shown(&server, name).await;
    assert_eq!(shown["sent"], true, "{shown}");
    assert!(!shown.to_string().contains("BEGIN"), "{shown}");
}

#[tokio::test]
async fn missing_or_foreign_secrets_do_not_delay_others() {
    let (setup, east, server) = running().await;
    let (data, chain) = pair(&setup, "a.example");
    east.apply(kubernetes_secret("shop-tls", &data));
    let mut gateway = Gateway::open(&server, &setup, &ingress()).await;
    let (good, absent, foreign) =
        ("kubernetes://shop-tls", "kubernetes://nothing", "kubernetes-gateway://pay/shop-tls");
    gateway.subscribe(&[good, absent, foreign, "kubernetes://../up"]).await;
    let mut come = Vec::new();
    while come.is_empty() {
        come.extend(gateway.secrets().await);
    }
    assert_eq!(come, [(good.to_owned(), chain)]);
    for name in [absent, foreign, "kubernetes://../up"] {
        shown_with(&server, name, "STR0540").await;
    }
    // No Secret of another namespace was requested.
    let requests =
        east.api.requests(|one| one.path.ends_with("/secrets") && one.path.contains("/pay/"));
    assert!(requests.is_empty(), "{requests:?}");
    // It is sent as soon as it exists.
    east.apply(kubernetes_secret("nothing", &data));
    while !gateway.secrets().await.iter().any(|(name, _)| name == absent) {}
}

#[tokio::test]
async fn object_status_names_the_unavailable_credential() {
    let (setup, east, server) = running().await;
    let (mut data, _) = pair(&setup, "a.example");
    data.as_object_mut().expect("an object").remove("ca.crt");
    east.apply(kubernetes_secret("shop-tls", &data));
    let tls_server = |number: u16, mode: &str, secret: &str| {
        json!({
            "port": { "number": number, "name": format!("https-{number}"), "protocol": "HTTPS" },
            "hosts": ["*"], "tls": { "mode": mode, "credentialName": secret },
        })
    };
    setup.put(
        "gateway",
        &json!({
            "apiVersion": "networking.istio.io/v1", "kind": "Gateway",
            "metadata": { "namespace": SHOP, "name": "edge" },
            "spec": {
                "selector": { "app": "ingress" },
                "servers": [
                    tls_server(443, "SIMPLE", "shop-tls"),
                    tls_server(8443, "SIMPLE", "nothing"),
                    tls_server(9443, "MUTUAL", "shop-tls"),
                ],
            },
        }),
    );
    let mut gateway = Gateway::open(&server, &setup, &ingress()).await;
    let roots = "kubernetes://shop-tls-cacert";
    gateway.subscribe(&["kubernetes://shop-tls", "kubernetes://nothing", roots]).await;
    while !gateway.secrets().await.iter().any(|(name, _)| name.ends_with("shop-tls")) {}
    shown_with(&server, "kubernetes://nothing", "STR0540").await;
    shown_with(&server, roots, "STR0543").await;
    let credential_faults = async || {
        let states = server.admin.json("/debug/config?kind=Gateway").await;
        let reasons = states[0]["reasons"].as_array().cloned().unwrap_or_default();
        let credentials = reasons.into_iter().filter(|one| one["code"] == "STR1080");
        (states[0]["state"].clone(), credentials.collect::<Vec<_>>())
    };
    wait_until(SOON, async || {
        let (state, faults) = credential_faults().await;
        holds(state == "partly" && faults.len() == 2, (state, faults))
    })
    .await;
    let (_, faults) = credential_faults().await;
    assert_eq!(faults[0]["path"], "spec.servers[1].tls.credentialName", "{faults:?}");
    // Missing roots are a problem only of the server that verifies clients, not of another server
    // with the same certificate.
    assert_eq!(faults[1]["path"], "spec.servers[2].tls.credentialName", "{faults:?}");
    // The explanation of a request reports that it ends there.
    let explain = async |port: u16| {
        let url = format!("https://a.example:{port}/");
        let found = server.strait(&["explain", "route", "ingress-0.shop", "GET", &url]).await;
        (text(&found), found.status.code())
    };
    let (printed, code) = explain(443).await;
    assert!(!printed.contains("is closed") && !printed.contains("certificate"), "{printed}");
    assert_eq!(code, Some(2), "no rule leads on: {printed}");
    for (port, name) in [(8443, "kubernetes://nothing"), (9443, roots)] {
        let (printed, code) = explain(port).await;
        let line = format!("the connection is closed: the router has no {name} (STR1080): ");
        assert!(printed.contains(&line) && !printed.contains("answer"), "{printed}");
        assert_eq!(code, Some(2), "{printed}");
    }
    // The object counts as a problem, like a rejected object.
    let found = server.strait(&["check"]).await;
    let line = "Gateway/shop/edge";
    assert!(text(&found).contains(line) && text(&found).contains("STR1080"), "{}", text(&found));
    assert_eq!(found.status.code(), Some(2), "{}", text(&found));
    east.apply(kubernetes_secret("nothing", &data));
    wait_until(SOON, async || {
        let (state, faults) = credential_faults().await;
        holds(state == "partly" && faults.len() == 1, (state, faults))
    })
    .await;
    let (printed, _) = explain(8443).await;
    assert!(!printed.contains("is closed"), "{printed}");
}

#[tokio::test]
async fn gateway_without_the_right_to_list_secrets_receives_none() {
    let (setup, east, server) = running().await;
    let (data, _) = pair(&setup, "a.example");
    east.apply(kubernetes_secret("shop-tls", &data));
    east.api.fault(Fault::Forbidden { resource: "secrets".to_owned() });
    let mut gateway = Gateway::open(&server, &setup, &ingress()).await;
    let name = "kubernetes://shop-tls";
    gateway.subscribe(&[name]).await;
    assert!(gateway.secrets().await.is_empty(), "an empty response");
    shown_with(&server, name, "STR0542").await;
    let reads = east.api.requests(|one| one.resource == "secrets").len();
    assert_eq!(reads, 0, "no Secret is read for it");
    let reviews = |member: &Member| {
        member.api.requests(|one| one.path.ends_with("/subjectaccessreviews")).len()
    };
    assert_eq!(reviews(&east), 1);
    // The result is cached for another gateway of the same account.
    let mut again = Gateway::open(&server, &setup, &ingress()).await;
    again.subscribe(&["kubernetes://other-tls"]).await;
    assert!(again.secrets().await.is_empty());
    assert_eq!(reviews(&east), 1, "no is remembered");
}

#[tokio::test]
async fn unknown_pod_receives_no_key() {
    let (setup, east, server) = running().await;
    let (data, chain) = pair(&setup, "a.example");
    east.apply(kubernetes_secret("shop-tls", &data));
    let unknown = Proxy { name: "ingress-1", ip: "10.0.0.10".into(), ..ingress() };
    let mut gateway = Gateway::open(&server, &setup, &unknown).await;
    let name = "kubernetes://shop-tls";
    gateway.subscribe(&[name]).await;
    assert!(
        gateway.is_quiet().await,
        "any client with a certificate of the account could claim this pod"
    );
    east.apply(objects::pod(SHOP, "ingress-1", "ingress", "10.0.0.10", "node"));
    let mut come = Vec::new();
    while come.is_empty() {
        let response = gateway.next().await.expect("in time");
        if response.type_url == SECRET {
            come.extend(response.resources);
        }
    }
    let sent = Secret::decode(&*come[0].value).expect("a secret");
    assert_eq!(sent.name, name);
    assert!(!chain.is_empty());
}

/// CVE-2021-34824: a Secret that was read for one gateway was served from a cache to gateways of
/// other namespaces that used the same name.
#[tokio::test]
async fn secret_of_one_gateway_is_not_sent_to_another_with_the_same_name() {
    let (setup, east, server) = running().await;
    let west = Member::start("west", "n2", "198.18.0.2").await;
    setup.join(&[&west]);
    server.cluster_in("west", "live").await;
    west.apply(objects::pod(SHOP, "ingress-0", "ingress", "10.0.0.9", "node"));
    east.apply(objects::pod("pay", "ingress-0", "ingress", "10.0.0.11", "node"));
    let namespaced = |namespace: &str, name: &str, data: &Value| {
        let mut secret = kubernetes_secret(name, data);
        secret["metadata"]["namespace"] = namespace.into();
        secret
    };
    let hosts = ["shop.example", "pay.example", "west.example"].map(|host| pair(&setup, host));
    let [shops, pays, wests] = &hosts;
    east.apply(namespaced(SHOP, "tls", &shops.0));
    east.apply(namespaced(SHOP, "own", &shops.0));
    east.apply(namespaced("pay", "tls", &pays.0));
    west.apply(namespaced(SHOP, "tls", &wests.0));
    let (both, alone) = ("kubernetes://tls", "kubernetes://own");
    let pay = Proxy { namespace: "pay", ip: "10.0.0.11".into(), ..ingress() };
    let far = Proxy { cluster: "west".to_owned(), ..ingress() };
    let gateways = [ingress(), pay, far];
    // Each requests it after the previous ones have received their responses, in either order.
    for order in [[0, 1, 2], [2, 1, 0]] {
        for at in order {
            let (gateway, chain) = (&gateways[at], &hosts[at].1);
            let mut gateway = Gateway::open(&server, &setup, gateway).await;
            gateway.subscribe(&[both, alone, "kubernetes-gateway://shop/own"]).await;
            let mut come = std::collections::BTreeMap::new();
            let wanted = if at == 0 { 3 } else { 1 };
            while come.len() < wanted {
                come.extend(gateway.secrets().await);
            }
            if at != 0 {
                assert!(gateway.is_quiet().await, "{at}: no Secret of another gateway follows");
                assert_eq!(come.keys().collect::<Vec<_>>(), [both], "{at}");
            }
            assert!(come.values().all(|one| one == chain), "{at}: another's certificate");
        }
    }
    let request_count = |member: &Member, namespace: &str| {
        let path = format!("/namespaces/{namespace}/secrets");
        member.api.requests(|one| one.path.contains(&path)).len()
    };
    assert!(
        request_count(&east, "pay") > 0 && request_count(&west, SHOP) > 0,
        "each Secret is read in its own namespace"
    );
}
