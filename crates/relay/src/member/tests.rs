//! A relay between a hub and an API server, all in this process.

mod fakes;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, SystemTime};

use http::StatusCode;
use serde_json::{Value, json};
use strait_base::task::Supervisor;
use strait_kube_client::{Access, ApiClient, ApiError, CaBundle, testing::loopback_access};
use tokio::sync::{oneshot, watch};
use tokio::time::timeout;

use self::fakes::{FakeApiServer, FakeHub, FakeProxy, HubConnection};
use super::certificate::KeyRequest;
use super::*;
use crate::hub::{RelayHub, RelayedMember};
use crate::wire::Hello;

const LIMIT: Duration = Duration::from_secs(20);
const NAME: &str = "spiffe://mesh.example/strait/relay/west";
const HOUR: Duration = Duration::from_secs(3600);

/// A running relay. It ends when this value is dropped.
struct TestRelay {
    hub: FakeHub,
    api: FakeApiServer,
    folder: tempfile::TempDir,
    ready: watch::Receiver<usize>,
    _stop: oneshot::Sender<()>,
    _tasks: Supervisor,
}

impl TestRelay {
    /// Starts a relay with an invitation, and without a certificate.
    async fn start() -> Self {
        Self::start_with(|_, _| {}).await
    }

    /// Starts a relay. `prepare` can change its settings and the files in its directory.
    async fn start_with(prepare: impl FnOnce(&mut RelaySettings, &FakeHub)) -> Self {
        let tasks = Supervisor::new();
        let (hub, api) = (FakeHub::start(&tasks).await, FakeApiServer::start(&tasks).await);
        let folder = tempfile::tempdir().expect("a folder");
        let path = |name: &str| folder.path().join(name);
        std::fs::write(path("roots"), &hub.ca.root).expect("written");
        std::fs::write(path("invitation"), "invitation\n").expect("written");
        let mut settings = RelaySettings {
            cluster: "west".to_owned(),
            instance: "relay-1".to_owned(),
            hubs: vec![hub.address.clone()],
            dialler: HubDialler { roots: path("roots"), proxy: None, proxy_authorization: None },
            credential: EnrolCredential::Invitation(path("invitation")),
            store: CertificateStore::Folder(path("state")),
            list: RequestList::default(),
        };
        prepare(&mut settings, &hub);
        let access = access(&api);
        let (ready, readiness) = watch::channel(0);
        let (stop, stopped) = oneshot::channel::<()>();
        tasks.spawn("relay", async move {
            let stop = async { drop(stopped.await) };
            run(settings, watch::channel(access).1, ready, stop).await.expect("usable");
        });
        Self { hub, api, folder, ready: readiness, _stop: stop, _tasks: tasks }
    }

    async fn connection(&mut self) -> HubConnection {
        timeout(LIMIT, self.hub.connections.recv()).await.expect("in time").expect("a connection")
    }
}

fn access(api: &FakeApiServer) -> Access {
    loopback_access(&api.url, &api.root, "token-of-the-relay")
}

/// Stores a certificate of the hub's CA in the directory of the relay.
fn store_certificate(
    settings: &RelaySettings,
    hub: &FakeHub,
    begin: SystemTime,
    lifetime: Duration,
) {
    let request = KeyRequest::new().expect("a key");
    let response = hub.ca.certify_since(begin, &request.csr, &[NAME], lifetime);
    let hash = strait_base::hex::sha256(b"invitation");
    let certificate = request.answered(response, "west", &hash).expect("usable");
    let CertificateStore::Folder(folder) = &settings.store else { panic!("no folder") };
    std::fs::create_dir_all(folder).expect("made");
    let parts = [
        ("cert-chain.pem", &certificate.chain),
        ("key.pem", certificate.key.reveal()),
        ("root-cert.pem", &certificate.roots),
        ("token-sha256", &certificate.token_hash),
    ];
    for (name, text) in parts {
        std::fs::write(folder.join(name), text).expect("written");
    }
}

async fn hello(connection: &mut HubConnection, replica: &str) -> Hello {
    let headers = [("strait-version", "1.2.3"), ("strait-replica", replica)];
    let (status, body) = connection.get("/strait/relay/v1/hello", &headers).await;
    assert_eq!(status, StatusCode::OK);
    serde_json::from_str(&body).expect("a hello")
}

#[tokio::test]
async fn relay_enrols_by_invitation_and_introduces_itself() {
    let mut relay = TestRelay::start().await;
    let mut connection = relay.connection().await;
    assert_eq!(connection.names(), [NAME]);
    let hello = hello(&mut connection, "strait-0/1").await;
    let expected = Hello {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        instance: "relay-1".to_owned(),
        cluster: "west".to_owned(),
        cluster_uid: "uid-of-west".to_owned(),
        kubernetes: "v1.34.1".to_owned(),
        allowed: vec!["read".to_owned(), "tokens".to_owned()],
        media_types: vec!["full".to_owned()],
    };
    assert_eq!(hello, expected);
    timeout(LIMIT, relay.ready.wait_for(|ready| *ready == 1))
        .await
        .expect("in time")
        .expect("runs");
    let enrolments = relay.hub.enrolments();
    let [request] = &enrolments[..] else { panic!("{enrolments:?}") };
    assert_eq!(request["token"], "invitation", "without the line break of the file");
    assert_eq!(request["clusterUid"], "uid-of-west");
}

#[tokio::test]
async fn hub_receives_the_responses_that_a_direct_client_receives() {
    let hub = Arc::new(RelayHub::default());
    let west = RelayedMember {
        secret: ("strait-system".to_owned(), "west".to_owned()),
        generation: 1,
        generation_from: None,
        uid: None,
        invitation: None,
    };
    hub.permit(BTreeMap::from([("west".into(), west)]), SystemTime::now());
    let relay = TestRelay::start_with(|_, fake| fake.serve_by(Arc::clone(&hub))).await;
    let relayed = ApiClient::relayed(hub.carrier(&"west".into()));
    let direct = ApiClient::new(&access(&relay.api)).expect("a client");
    for path in
        ["/version", "/api/v1/namespaces/kube-system", "/api/v1/pods?limit=500", "/api/v1/services"]
    {
        let (one, other) = (relayed.get::<Value>(path).await, direct.get::<Value>(path).await);
        assert_eq!(one, other, "{path}");
    }
    let refused = relayed.get::<Value>("/api/v1/namespaces/shop/secrets/a").await;
    let Err(ApiError::Forbidden(fact)) = refused else { panic!("{refused:?}") };
    assert!(fact.contains("STR0341"), "{fact}");
    let rows = hub.rows();
    let row = rows.first().expect("a connection");
    assert_eq!((rows.len(), &*row.instance, row.active), (1, "relay-1", true));
}

#[tokio::test]
async fn private_key_is_readable_by_its_owner_only() {
    use std::os::unix::fs::PermissionsExt as _;
    let mut relay = TestRelay::start().await;
    relay.connection().await;
    for file in std::fs::read_dir(relay.folder.path().join("state")).expect("a folder") {
        let file = file.expect("an entry");
        let mode = file.metadata().expect("readable").permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{:?}", file.file_name());
    }
}

#[tokio::test]
async fn request_is_forwarded_with_three_headers_and_the_token_of_the_relay() {
    let mut relay = TestRelay::start().await;
    let mut connection = relay.connection().await;
    let target = "/api/v1/pods?fieldSelector=status.phase%21%3DFailed&limit=500";
    let headers = [
        ("accept", "application/vnd.kubernetes.protobuf,application/json"),
        ("authorization", "Bearer token-of-the-hub"),
        ("cookie", "a=b"),
        ("user-agent", "strait/9"),
        ("x-remote-user", "admin"),
    ];
    let (status, body) = connection.get(target, &headers).await;
    assert_eq!((status, &*body), (StatusCode::OK, r#"{"kind":"PodList","items":[]}"#));
    let request = relay.api.last_request();
    assert_eq!((&*request.method, &*request.target), ("GET", target));
    let expected = [
        ("accept", "application/vnd.kubernetes.protobuf,application/json"),
        ("authorization", "Bearer token-of-the-relay"),
        ("user-agent", "strait/9"),
    ];
    assert_eq!(request.headers(), expected);
}

#[tokio::test]
async fn review_is_forwarded_with_its_body() {
    let mut relay = TestRelay::start().await;
    let mut connection = relay.connection().await;
    let path = "/apis/authentication.k8s.io/v1/tokenreviews";
    let review = r#"{"kind":"TokenReview","spec":{"token":"t"}}"#;
    let json = [("content-type", "application/json")];
    let (status, body) = connection.send("POST", path, &json, review).await;
    assert_eq!((status, &*body), (StatusCode::CREATED, review));
    let huge = "a".repeat(65 << 10);
    let (status, _) = connection.send("POST", path, &json, &huge).await;
    assert_eq!(status, StatusCode::PAYLOAD_TOO_LARGE);
}

#[tokio::test]
async fn errors_of_the_api_server_pass_unchanged() {
    let mut relay = TestRelay::start().await;
    let mut connection = relay.connection().await;
    let (status, body) = connection.get("/api/v1/services", &[]).await;
    assert_eq!((status, &*body), (StatusCode::GONE, r#"{"kind":"Status","code":410}"#));
}

#[tokio::test]
async fn watch_is_passed_on_event_by_event() {
    let mut relay = TestRelay::start().await;
    let mut connection = relay.connection().await;
    let mut body = connection.open("/api/v1/pods?watch=1&resourceVersion=1").await;
    for event in ["{\"type\":\"ADDED\"}\n", "{\"type\":\"MODIFIED\"}\n"] {
        relay.api.send_event(event).await;
        assert_eq!(body.next().await.as_deref(), Some(event));
    }
    drop(connection);
}

#[tokio::test]
async fn refused_request_opens_no_connection_to_the_api_server() {
    let mut relay = TestRelay::start_with(|settings, hub| {
        store_certificate(settings, hub, SystemTime::now(), HOUR);
    })
    .await;
    let mut connection = relay.connection().await;
    for (method, target, headers) in [
        ("GET", "/api/v1/secrets", &[][..]),
        ("GET", "/api/v1/namespaces/shop/pods/web/log", &[]),
        ("DELETE", "/api/v1/namespaces/shop/pods/web", &[]),
        ("GET", "/api/v1/pods", &[("impersonate-user", "admin")]),
        ("GET", "/api/v1/%70ods", &[]),
        ("GET", "/api/v1/pods?watch=1&watch=1", &[]),
    ] {
        let (status, body) = connection.send(method, target, headers, "").await;
        assert_eq!(status, StatusCode::FORBIDDEN, "{method} {target}");
        let body: Value = serde_json::from_str(&body).expect("JSON");
        assert_eq!((&body["kind"], &body["code"]), (&json!("Status"), &json!(403)));
        let message = body["message"].as_str().unwrap_or_default();
        assert!(message.starts_with("STR0341: the relay does not forward"), "{message}");
    }
    assert_eq!(relay.api.connections(), 0);
    connection.get("/version", &[]).await;
    assert_eq!(relay.api.connections(), 1);
}

#[tokio::test]
async fn only_config_maps_with_roots_are_created_through_a_relay() {
    let mut relay = TestRelay::start_with(|settings, _| settings.list.roots = true).await;
    let mut connection = relay.connection().await;
    let path = "/api/v1/namespaces/shop/configmaps";
    let json = [("content-type", "application/json")];
    let object =
        |name| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}});
    let (status, _) =
        connection.send("POST", path, &json, &object("istio-ca-root-cert").to_string()).await;
    assert_eq!(status, StatusCode::CREATED);
    let (status, _) = connection.send("POST", path, &json, &object("settings").to_string()).await;
    assert_eq!(status, StatusCode::FORBIDDEN);
}

#[tokio::test]
async fn interrupted_read_is_repeated_once() {
    let mut relay = TestRelay::start().await;
    let mut connection = relay.connection().await;
    relay.api.interrupt(1);
    let (status, _) = connection.get("/api/v1/pods?limit=1", &[]).await;
    assert_eq!(status, StatusCode::OK);
    relay.api.interrupt(2);
    let (status, body) = connection.get("/api/v1/pods?limit=1", &[]).await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    assert!(body.contains("STR0351"), "{body}");
}

#[tokio::test]
async fn review_is_not_repeated() {
    let mut relay = TestRelay::start().await;
    let mut connection = relay.connection().await;
    relay.api.interrupt(1);
    let json = [("content-type", "application/json")];
    let path = "/apis/authentication.k8s.io/v1/tokenreviews";
    let (status, _) = connection.send("POST", path, &json, "{}").await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
}

#[tokio::test]
async fn lost_connection_is_replaced() {
    let mut relay = TestRelay::start().await;
    let mut first = relay.connection().await;
    hello(&mut first, "strait-0/1").await;
    drop(first);
    let mut second = relay.connection().await;
    hello(&mut second, "strait-0/1").await;
    assert_eq!(relay.hub.enrolments().len(), 1, "with the same certificate");
}

#[tokio::test]
async fn relay_dials_until_each_replica_has_a_connection() {
    let mut relay = TestRelay::start().await;
    let mut open = Vec::new();
    for replica in ["strait-0/3", "strait-0/3", "strait-1/3", "strait-2/3"] {
        let mut connection = relay.connection().await;
        hello(&mut connection, replica).await;
        open.push(connection);
    }
    let more = timeout(Duration::from_secs(2), relay.hub.connections.recv()).await;
    assert!(more.is_err(), "all replicas have a connection");
}

#[tokio::test]
async fn certificate_past_half_of_its_life_is_renewed_and_used() {
    let mut relay = TestRelay::start_with(|settings, hub| {
        store_certificate(settings, hub, SystemTime::now() - 2 * HOUR, 3 * HOUR);
    })
    .await;
    // The first connection may still have the earlier certificate.
    timeout(LIMIT, async {
        loop {
            let mut connection = relay.connection().await;
            hello(&mut connection, "strait-0/1").await;
            let stored = std::fs::read(relay.folder.path().join("state/cert-chain.pem"));
            let stored = CaBundle::read(&stored.expect("stored")).certificates;
            if relay.hub.renewals() == 1 && stored == [connection.certificate.clone()] {
                break;
            }
        }
    })
    .await
    .expect("in time");
    assert!(relay.hub.enrolments().is_empty());
}

#[tokio::test]
async fn certificate_is_renewed_when_the_hub_asks_for_it() {
    let mut relay = TestRelay::start().await;
    let mut first = relay.connection().await;
    hello(&mut first, "strait-0/1").await;
    assert_eq!(relay.hub.renewals(), 0);
    let headers = [("strait-replica", "strait-0/1"), ("strait-renew", "now")];
    first.get("/strait/relay/v1/hello", &headers).await;
    let second = relay.connection().await;
    assert_eq!(relay.hub.renewals(), 1);
    assert_ne!(first.certificate, second.certificate);
}

#[tokio::test]
async fn certificate_is_renewed_once_although_each_replica_of_the_hub_asks_for_it() {
    let mut relay = TestRelay::start().await;
    let mut open = Vec::new();
    for replica in ["strait-0/2", "strait-1/2"] {
        let mut connection = relay.connection().await;
        hello(&mut connection, replica).await;
        open.push(connection);
    }
    for (connection, replica) in open.iter_mut().zip(["strait-0/2", "strait-1/2"]) {
        let headers = [("strait-replica", replica), ("strait-renew", "now")];
        connection.get("/strait/relay/v1/hello", &headers).await;
    }
    let mut certificates = Vec::new();
    for replica in ["strait-0/2", "strait-1/2"] {
        let mut connection = relay.connection().await;
        hello(&mut connection, replica).await;
        certificates.push(connection.certificate.clone());
        open.push(connection);
    }
    assert_eq!(certificates[0], certificates[1]);
    let more = timeout(Duration::from_secs(2), relay.hub.connections.recv()).await;
    assert!(more.is_err(), "another certificate");
    assert_eq!(relay.hub.renewals(), 1);
}

#[tokio::test]
async fn expired_certificate_is_replaced_by_enrolment() {
    let mut relay = TestRelay::start_with(|settings, hub| {
        store_certificate(settings, hub, SystemTime::now() - 3 * HOUR, 2 * HOUR);
    })
    .await;
    relay.connection().await;
    assert_eq!(relay.hub.enrolments().len(), 1);
}

#[tokio::test]
async fn new_invitation_replaces_a_stored_certificate() {
    let mut relay = TestRelay::start_with(|settings, hub| {
        store_certificate(settings, hub, SystemTime::now(), HOUR);
        let EnrolCredential::Invitation(path) = &settings.credential else { panic!("no file") };
        std::fs::write(path, "another invitation").expect("written");
        hub.accept_token("another invitation");
    })
    .await;
    relay.connection().await;
    timeout(LIMIT, async {
        while relay.hub.enrolments().is_empty() {
            relay.connection().await;
        }
    })
    .await
    .expect("in time");
}

#[tokio::test]
async fn refused_enrolment_is_repeated() {
    let mut relay = TestRelay::start_with(|settings, hub| {
        let _ = settings;
        hub.accept_token("later");
    })
    .await;
    timeout(LIMIT, async {
        while relay.hub.enrolments().is_empty() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await
    .expect("in time");
    // As another invitation does that is mounted into the file.
    std::fs::write(relay.folder.path().join("invitation"), "later").expect("written");
    relay.connection().await;
}

#[tokio::test]
async fn certificate_for_another_cluster_is_not_used() {
    let mut relay = TestRelay::start_with(|settings, _| settings.cluster = "east".to_owned()).await;
    let connected = timeout(Duration::from_secs(2), relay.hub.connections.recv()).await;
    assert!(connected.is_err());
    assert!(!Path::new(&relay.folder.path().join("state/key.pem")).exists());
}

#[tokio::test]
async fn hub_of_another_ca_is_not_dialled() {
    let mut relay = TestRelay::start_with(|settings, _| {
        std::fs::write(&settings.dialler.roots, &testing::TestCa::new().root).expect("written");
    })
    .await;
    let connected = timeout(Duration::from_secs(2), relay.hub.connections.recv()).await;
    assert!(connected.is_err());
    assert!(relay.hub.enrolments().is_empty(), "the invitation is not sent");
}

#[tokio::test]
async fn proxy_sees_the_address_of_the_hub_and_its_own_authorization() {
    let tasks = Supervisor::new();
    let proxy = FakeProxy::start(&tasks).await;
    let url = format!("http://{}", proxy.address);
    let mut relay = TestRelay::start_with(|settings, _| {
        let file = settings.dialler.roots.with_file_name("proxy");
        std::fs::write(&file, "Basic bWU6c2VjcmV0\n").expect("written");
        settings.dialler.proxy = Some(url.parse().expect("a URL"));
        settings.dialler.proxy_authorization = Some(file);
    })
    .await;
    let mut connection = relay.connection().await;
    hello(&mut connection, "strait-0/1").await;
    let expected = format!(
        "CONNECT {hub} HTTP/1.1\r\nHost: {hub}\r\nProxy-Authorization: Basic bWU6c2VjcmV0\r\n\r\n",
        hub = relay.hub.address
    );
    assert_eq!(proxy.requests(), [expected.clone(), expected], "enrolment and connection");
}
