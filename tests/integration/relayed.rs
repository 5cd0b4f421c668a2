//! Members that are read through a relay, with a real hub and a real relay in one process: enrolment, the same result as
//! for a direct member, and the effects when a relay, its invitation or its member ends.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Value, json};
use strait_base::hex;
use strait_base::task::Supervisor;
use strait_relay::member::{
    self, CertificateStore, EnrolCredential, HubDialler, RelaySettings, RequestList,
};
use strait_sources::store::own_cluster::own_cluster;
use tokio::sync::watch;

use super::mesh::{
    Member, Proxy, SHOP, SOON, SYSTEM, Server, Setup, east_and_west, endpoints_until, holds,
    wait_until,
};
use strait_sim::objects;
use strait_xds_client::XdsClient;

const TOKEN: &str = "an-invitation-for-west";

/// Returns the Secret that invites `west`.
fn invitation(token: &str, ends: Duration, generation: u32) -> Value {
    let ends = jiff::Timestamp::now() + ends;
    json!({
        "apiVersion": "v1", "kind": "Secret",
        "metadata": {
            "name": "strait-cluster-west", "namespace": SYSTEM,
            "labels": { "strait.dev/cluster": "true" },
            "annotations": {
                "strait.dev/relay": "true",
                "strait.dev/cluster-id": "west",
                "strait.dev/relay-generation": generation.to_string(),
            },
        },
        "data": {
            "invitation-sha256": BASE64.encode(hex::sha256(token.as_bytes())),
            "invitation-expires": BASE64.encode(ends.to_string()),
        },
    })
}

/// Returns a setup with `east`, and with an invitation for west.
fn with_invitation(east: &Member) -> Setup {
    let setup = Setup::new();
    setup.join(&[east]);
    setup.put("west", &invitation(TOKEN, Duration::from_secs(600), 1));
    setup
}

/// Starts the relay of a member; it ends with the returned supervisor.
async fn start_relay(setup: &Setup, server: &Server, member: &Member, name: &str) -> Supervisor {
    let file = |suffix: &str, text: &str| {
        let path = setup.path(&format!("{name}-{suffix}"));
        std::fs::write(&path, text).expect("written");
        path
    };
    let kubeconfig = file("kubeconfig", &member.api.kubeconfig());
    let roots = std::fs::read_to_string(setup.path("ca/root-cert.pem")).expect("the roots");
    let settings = RelaySettings {
        cluster: "west".to_owned(),
        instance: name.to_owned(),
        hubs: vec![format!("localhost:{}", server.bound.xds.port()).parse().expect("an address")],
        dialler: HubDialler {
            roots: file("roots", &roots),
            proxy: None,
            proxy_authorization: None,
        },
        credential: EnrolCredential::Invitation(file("invitation", TOKEN)),
        // The relays of one member share a certificate.
        store: CertificateStore::Folder(setup.path("relay-state")),
        list: RequestList {
            gateway_secrets: Default::default(),
            roots: true,
            mcs_status: false,
            own_traffic: false,
            own_secret: None,
        },
    };
    let tasks = Supervisor::new();
    let cluster = own_cluster(Some(&kubeconfig), None, &tasks).await.expect("a usable kubeconfig");
    let (ready, _) = watch::channel(0);
    tasks.spawn("relay", async move {
        member::run(settings, cluster.access, ready, std::future::pending()).await.expect("usable");
    });
    tasks
}

/// Waits until a proxy in east has the endpoints of `web` in east, and in west with this weight.
async fn web_until(client: &XdsClient, west: u32) {
    let expected = [("10.0.0.1:8080", 1), ("10.0.0.2:8080", 1), ("198.18.0.2:15443", west)];
    endpoints_until(client, "web", &expected).await;
}

async fn relays_until(server: &Server, count: usize) -> Value {
    wait_until(SOON, async || {
        let relays = server.admin.json("/debug/relays").await;
        let found = relays.as_array().map_or(0, Vec::len);
        holds(found == count, &relays).map(|()| relays)
    })
    .await
}

#[tokio::test]
async fn relayed_member_gives_the_same_mesh_as_a_direct_one() {
    let (east, west) = east_and_west().await;
    let of_mesh = async |server: &Server| {
        server.cluster_in("west", "live").await;
        let endpoints = "/debug/endpoints?hostname=web.shop.svc.cluster.local";
        let mut all = Vec::new();
        for path in ["/debug/services", endpoints, "/debug/networks"] {
            all.push(server.admin.json(path).await);
        }
        all
    };
    let direct = Setup::new();
    direct.join(&[&east, &west]);
    let server = direct.start_ready().await;
    let client = server.connect(&direct, &Proxy::sidecar("east")).await;
    web_until(&client, 2).await;
    let expected = of_mesh(&server).await;

    let relayed = with_invitation(&east);
    let server = relayed.start().await;
    let _relay = start_relay(&relayed, &server, &west, "relay-a").await;
    server.ready().await;
    let client = server.connect(&relayed, &Proxy::sidecar("east")).await;
    web_until(&client, 2).await;
    assert_eq!(of_mesh(&server).await, expected);

    // Changes arrive as well.
    west.serve("web", &["10.0.0.1", "10.0.0.3", "10.0.0.4"]);
    web_until(&client, 3).await;
    let relays = relays_until(&server, 1).await;
    assert_eq!((&relays[0]["cluster"], &relays[0]["active"]), (&json!("west"), &json!(true)));
}

#[tokio::test]
async fn second_relay_takes_over_without_a_list() {
    let (east, west) = east_and_west().await;
    let setup = with_invitation(&east);
    let server = setup.start().await;
    let first = start_relay(&setup, &server, &west, "relay-a").await;
    server.cluster_in("west", "live").await;
    let _second = start_relay(&setup, &server, &west, "relay-b").await;
    relays_until(&server, 2).await;
    let before = server.cluster("west").await["relists"].clone();
    first.stop();
    let relays = relays_until(&server, 1).await;
    assert_eq!(relays[0]["instance"], "relay-b");
    let client = server.connect(&setup, &Proxy::sidecar("east")).await;
    west.serve("web", &["10.0.0.1", "10.0.0.3", "10.0.0.4"]);
    web_until(&client, 3).await;
    assert_eq!(server.cluster("west").await["relists"], before);
}

#[tokio::test]
async fn member_without_its_relay_keeps_its_endpoints_and_says_why_it_is_stale() {
    let (east, west) = east_and_west().await;
    let setup = with_invitation(&east);
    let server = setup.start().await;
    let relay = start_relay(&setup, &server, &west, "relay-a").await;
    server.cluster_in("west", "live").await;
    relay.stop();
    let stale = server.cluster_in("west", "stale").await;
    let reason = stale["reason"].as_str().unwrap_or_default();
    assert!(reason.contains("relay of west is not connected since"), "{reason}");
    let client = server.connect(&setup, &Proxy::sidecar("east")).await;
    web_until(&client, 2).await;
}

#[tokio::test]
async fn connection_ends_with_the_member_and_with_the_generation() {
    let (east, west) = east_and_west().await;
    let setup = with_invitation(&east);
    let server = setup.start().await;
    let _relay = start_relay(&setup, &server, &west, "relay-a").await;
    relays_until(&server, 1).await;
    // The certificate has generation 1, and its invitation is used up.
    setup.put("west", &invitation("another", Duration::from_secs(600), 2));
    relays_until(&server, 0).await;
    setup.take_out("west");
    server.cluster_in("west", "draining").await;
}

#[tokio::test]
async fn expired_or_used_invitation_enrols_no_relay() {
    let (east, west) = east_and_west().await;
    west.apply(objects::namespace(SHOP));
    let setup = Setup::new();
    setup.join(&[&east]);
    setup.put("west", &invitation(TOKEN, Duration::from_secs(0), 1));
    let server = setup.start().await;
    let _relay = start_relay(&setup, &server, &west, "relay-a").await;
    let is_said = |entry: &Value| {
        entry["reason"]
            .as_str()
            .is_some_and(|reason| reason.contains("no relay of west has connected yet"))
    };
    server.cluster_until("west", is_said).await;
    assert_eq!(server.admin.json("/debug/relays").await, json!([]));
}
