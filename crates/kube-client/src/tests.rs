//! Tests of the client with a simulated API server, as other crates use it.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use http::Method;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

use super::object::OnlyMeta;
use super::testing::loopback_access;
use super::*;
use strait_base::task::Supervisor;
use strait_sim::{Family, Fault, Options, Refusal, SimCluster, objects};

const SECRETS: &str = "/api/v1/namespaces/strait-system/secrets";

#[derive(Debug, Deserialize)]
struct Secret {
    metadata: ObjectMetadata,
    #[serde(default, deserialize_with = "null_as_default")]
    data: BTreeMap<String, String>,
}

impl OwnedObject for Secret {
    fn metadata(&self) -> &ObjectMetadata {
        &self.metadata
    }
}

async fn start() -> (SimCluster, ApiClient) {
    let sim = start_with(Options::default()).await;
    let client = client_at(&sim, &sim.url());
    (sim, client)
}

async fn start_with(options: Options) -> SimCluster {
    let sim = SimCluster::start("config", options).await.expect("a free port");
    for name in ["strait-system", "elsewhere"] {
        sim.store().apply(objects::namespace(name)).expect("a namespace");
    }
    sim
}

fn client_at(sim: &SimCluster, url: &str) -> ApiClient {
    let client = ApiClient::new(&loopback_access(url, sim.certificate_authority(), sim.token()));
    client.expect("usable")
}

fn secret(namespace: &str, name: &str, labels: Value) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Secret",
        "metadata": {"namespace": namespace, "name": name, "labels": labels},
        "data": {"east": "eA=="},
    })
}

async fn next_event(events: &mut mpsc::Receiver<WatchEvent<Secret>>) -> String {
    let event = tokio::time::timeout(Duration::from_secs(30), events.recv()).await;
    match event.expect("in time").expect("the watch continues") {
        WatchEvent::Restarted { objects, invalid } => {
            assert!(invalid.is_empty());
            let names: Vec<_> = objects.iter().map(|one| one.metadata.name.to_string()).collect();
            format!("restarted {}", names.join(" "))
        }
        WatchEvent::Applied(object) => {
            format!("applied {} {:?}", object.metadata.name, object.data)
        }
        WatchEvent::Deleted(key) => format!("deleted {key}"),
        WatchEvent::Invalid(invalid) => format!("odd {invalid:?}"),
        WatchEvent::Answered => "answered".into(),
        WatchEvent::Failed(error) => format!("failed {error}"),
    }
}

#[tokio::test]
async fn missing_credential_is_reported_as_such() {
    let (sim, _) = start().await;
    let mut access = loopback_access(&sim.url(), sim.certificate_authority(), sim.token());
    access.credential = ApiCredential::None;
    let client = ApiClient::new(&access).expect("usable");
    let error = client.json::<Value>(Method::GET, SECRETS, None).await.expect_err("refused");
    assert!(matches!(error, ApiError::Unauthorized(_)));
    let expected = "the API server requires a credential, and the kubeconfig has none";
    assert_eq!(error.to_string(), expected);
}

#[tokio::test]
async fn selection_is_sent_completely_and_then_as_changes() {
    let (sim, client) = start().await;
    let member = || json!({"istio/multiCluster": "true"});
    for (namespace, name, labels) in [
        ("strait-system", "a", member()),
        ("strait-system", "plain", json!({})),
        ("elsewhere", "b", member()),
    ] {
        sim.store().apply(secret(namespace, name, labels)).expect("a secret");
    }
    let (sink, mut events) = mpsc::channel(16);
    let tasks = Supervisor::new();
    tasks.spawn("watch", async move {
        let selection = ListSelection {
            namespace: Some("strait-system".into()),
            labels: Some("istio/multiCluster=true".into()),
            ..ListSelection::all("", "v1", "secrets")
        };
        client.watch::<Secret, _>(selection, ReadLimits::default(), &sink).await;
    });
    assert_eq!(next_event(&mut events).await, "answered");
    assert_eq!(next_event(&mut events).await, "restarted a");
    sim.store().apply(secret("strait-system", "plain", member())).expect("labelled");
    assert_eq!(next_event(&mut events).await, r#"applied plain {"east": "eA=="}"#);
    sim.store().apply(secret("strait-system", "plain", json!({}))).expect("unlabelled");
    assert_eq!(next_event(&mut events).await, "deleted strait-system/plain");
    sim.store().delete("Secret", "strait-system", "a").expect("the object exists");
    assert_eq!(next_event(&mut events).await, "deleted strait-system/a");
}

#[tokio::test]
async fn objects_are_created_read_changed_and_deleted() {
    let (_sim, client) = start().await;
    let new = secret("strait-system", "a", json!({}));
    let created: Secret = client.create(SECRETS, &new).await.expect("created");
    assert_eq!(&*created.metadata.name, "a");
    let again = client.create::<Value>(SECRETS, &new).await;
    assert!(matches!(again, Err(ApiError::Rejected(status)) if status.code == 409));

    let path = format!("{SECRETS}/a");
    let change = json!({"data": {"west": "eQ=="}});
    let patched: Secret = client.patch(&path, Patch::Merge, &change).await.expect("patched");
    assert_eq!(patched.data.len(), 2);
    let read: Secret = client.get(&path).await.expect("read");
    assert_eq!(read.data, patched.data);
    client.delete(&path).await.expect("deleted");
    assert!(matches!(client.get::<Value>(&path).await, Err(ApiError::NotFound(_))));
    client.probe().await.expect("it answers");
}

/// Starts a relay to the server that counts its connections.
fn counting(tasks: &Supervisor, listener: TcpListener, target: SocketAddr) -> Arc<AtomicUsize> {
    let (made, connections) = (Arc::new(AtomicUsize::new(0)), tasks.clone());
    let counted = Arc::clone(&made);
    tasks.spawn("relay", async move {
        while let Ok((mut near, _)) = listener.accept().await {
            counted.fetch_add(1, Ordering::Relaxed);
            connections.spawn("connection", async move {
                let mut far = TcpStream::connect(target).await.expect("the server listens");
                let _ = tokio::io::copy_bidirectional(&mut near, &mut far).await;
            });
        }
    });
    made
}

#[tokio::test]
async fn requests_share_a_connection_with_http2_and_have_one_each_with_http1() {
    for (http2, expected) in [(true, [1, 2]), (false, [5, 10])] {
        let sim = start_with(Options { http2, ..Options::default() }).await;
        let (listener, client) = relayed_client(&sim).await;
        let tasks = Supervisor::new();
        let made = counting(&tasks, listener, sim.address());
        for expected in expected {
            let mut watches: Vec<_> = (0..3).map(|_| watch_secrets(&tasks, &client, 16)).collect();
            for events in &mut watches {
                assert_eq!(next_event(events).await, "answered");
            }
            for _ in 0..3 {
                client.get::<Value>("/version").await.expect("it answers");
                client.probing().probe().await.expect("it answers");
            }
            assert_eq!(made.load(Ordering::Relaxed), expected, "HTTP/2: {http2}");
            client.forget_connections();
        }
    }
}

#[tokio::test]
async fn more_connections_are_opened_if_a_server_permits_few_streams() {
    let sim = start_with(Options { streams: 2, ..Options::default() }).await;
    let (listener, client) = relayed_client(&sim).await;
    let tasks = Supervisor::new();
    let made = counting(&tasks, listener, sim.address());
    client.probe().await.expect("it answers");
    let mut watches: Vec<_> = (0..5).map(|_| watch_secrets(&tasks, &client, 16)).collect();
    for events in &mut watches {
        while next_event(events).await != "restarted " {}
    }
    client.probe().await.expect("it answers");
    assert_eq!(made.load(Ordering::Relaxed), 3);
}

#[tokio::test]
async fn stream_without_a_reader_does_not_block_others() {
    let (sim, client) = start().await;
    // More data than the window of a stream.
    for number in 0..12 {
        let mut large = secret("elsewhere", &format!("large-{number}"), json!({}));
        large["data"]["east"] = json!("eA==".repeat(100 << 10));
        sim.store().apply(large).expect("a secret");
    }
    let path = "/api/v1/secrets";
    let mut unread = Vec::new();
    for _ in 0..15 {
        unread.push(client.open(Method::GET, path, None, Encoding::Json).await.expect("an answer"));
    }
    client.probe().await.expect("it answers");
    for answer in &mut unread {
        assert!(answer.whole(16 << 20).await.expect("the complete response").len() > 4 << 20);
    }
}

/// Creates a listener for `client`; connections must be relayed to the server.
async fn relayed_client(sim: &SimCluster) -> (TcpListener, ApiClient) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let client = client_at(sim, &format!("https://{}", listener.local_addr().expect("bound")));
    (listener, client)
}

fn watch_secrets(
    tasks: &Supervisor,
    client: &ApiClient,
    room: usize,
) -> mpsc::Receiver<WatchEvent<Secret>> {
    let (sink, events) = mpsc::channel(room);
    let client = client.clone();
    tasks.spawn("watch", async move {
        client.watch(ListSelection::all("", "v1", "secrets"), ReadLimits::default(), &sink).await;
    });
    events
}

/// Reports a successful probe after a failed one.
fn report_recovery(client: &ApiClient) {
    client.note(&Ok(()), &mut true);
}

/// Checks that the next event is a change made now.
async fn assert_next_change(sim: &SimCluster, events: &mut mpsc::Receiver<WatchEvent<Secret>>) {
    sim.store().apply(secret("elsewhere", "a", json!({}))).expect("a secret");
    assert_eq!(next_event(events).await, r#"applied a {"east": "eA=="}"#);
}

#[tokio::test]
async fn only_a_successful_probe_after_a_failed_one_wakes_readers() {
    let (_sim, client) = start().await;
    let (mut revived, mut failing) = (client.revived.subscribe(), false);
    let mut wakes = |found| {
        client.note(&found, &mut failing);
        let woken = revived.has_changed().expect("the client exists");
        revived.mark_unchanged();
        woken
    };
    let away = || Err(ApiError::Unreachable("connection refused".into()));
    let found = [Ok(()), Ok(()), away(), away(), Ok(()), Ok(())].map(&mut wakes);
    assert_eq!(found, [false, false, false, false, true, false]);
}

#[tokio::test]
async fn request_that_fails_after_the_server_returned_is_retried_at_once() {
    let (sim, _) = start().await;
    let (listener, client) = relayed_client(&sim).await;
    let tasks = Supervisor::new();
    let _events = watch_secrets(&tasks, &client, 16);
    let six_requests = async {
        for _ in 0..6 {
            let (connection, _) = listener.accept().await.expect("a connection");
            report_recovery(&client);
            drop(connection);
        }
    };
    // With pauses it would take twice as long.
    let in_time = tokio::time::timeout(Duration::from_secs(9), six_requests).await;
    assert!(in_time.is_ok(), "it pauses");
}

#[tokio::test]
async fn watch_restarts_if_the_server_returned_while_the_reader_was_busy() {
    let (sim, client) = start().await;
    let tasks = Supervisor::new();
    let mut events = watch_secrets(&tasks, &client, 1);
    let full = async {
        while events.is_empty() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), full).await.expect("it answers");
    report_recovery(&client);
    assert_eq!(next_event(&mut events).await, "answered");
    assert_eq!(next_event(&mut events).await, "restarted ");
    let failed = next_event(&mut events).await;
    assert!(failed.ends_with("the server was unreachable in the meantime"), "{failed}");
    assert_eq!(next_event(&mut events).await, "answered");
    assert_next_change(&sim, &mut events).await;
}

#[tokio::test]
async fn response_received_after_the_server_returned_is_read_to_its_end() {
    let (sim, _) = start().await;
    let (listener, client) = relayed_client(&sim).await;
    let (tasks, target) = (Supervisor::new(), sim.address());
    let mut events = watch_secrets(&tasks, &client, 16);
    let (mut near, _) = listener.accept().await.expect("a connection");
    report_recovery(&client);
    tasks.spawn("connection", async move {
        let mut far = TcpStream::connect(target).await.expect("the server listens");
        let _ = tokio::io::copy_bidirectional(&mut near, &mut far).await;
    });
    assert_eq!(next_event(&mut events).await, "answered");
    assert_eq!(next_event(&mut events).await, "restarted ");
    assert_next_change(&sim, &mut events).await;
}

#[tokio::test]
async fn error_names_the_unreachable_server() {
    let (sim, client) = start().await;
    sim.stop().await;
    let error = client.probe().await.expect_err("it is unreachable");
    let ApiError::Unreachable(fact) = error else { panic!("{error:?}") };
    assert!(fact.starts_with(&sim.address().to_string()), "{fact}");
}

#[tokio::test]
async fn unknown_issuer_is_explained_if_no_ca_is_given() {
    let (sim, _) = start().await;
    let mut access = loopback_access(&sim.url(), "", sim.token());
    access.ca_pem = None;
    let error = ApiClient::new(&access).expect("usable").probe().await.expect_err("not trusted");
    let ApiError::Tls(fact) = error else { panic!("{error:?}") };
    assert!(fact.contains("because no CA is given (certificate-authority-data"), "{fact}");
}

#[tokio::test]
async fn tls_that_a_proxy_breaks_is_reported_with_its_name() {
    for (is_tls, answer) in [(true, &b"<html>blocked</html>"[..]), (false, b"")] {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("an address");
        let serving = async move {
            loop {
                let (mut tcp, _) = listener.accept().await.expect("a connection");
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    head.push(tcp.read_u8().await.expect("a request"));
                }
                // The peer may end the connection while it is being sent.
                let _ = tcp.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await;
                let _ = tcp.write_all(answer).await;
            }
        };
        let (sim, _) = start().await;
        let mut access = loopback_access("https://api.test", sim.certificate_authority(), "token");
        access.proxy = Some(Arc::new(ConnectProxy {
            name: "corp".into(),
            url: format!("http://{address}").parse().expect("a URL"),
            roots: None,
            certificate: None,
            authorization: None,
        }));
        let client = ApiClient::new(&access).expect("usable");
        let error = tokio::select! {
            result = client.probe() => result.expect_err("broken"),
            () = serving => panic!("it serves"),
        };
        let fact = match &error {
            ApiError::Tls(fact) if is_tls => fact,
            ApiError::Unreachable(fact) if !is_tls => fact,
            other => panic!("{other:?}"),
        };
        assert!(fact.contains("through proxy corp: "), "{fact}");
    }
}

/// A kind that can be decoded from protobuf. Only the name is stored.
struct Names;

impl<'a> Form<'a> for OnlyMeta<'a> {
    fn from_protobuf(bytes: &'a [u8]) -> Result<Self, MalformedMessage> {
        let mut form = Self::default();
        form.merge(bytes).map(|()| form)
    }

    fn identity(&self) -> Identity<'_> {
        self.metadata.identity()
    }
}

impl ObjectKind for Names {
    type ObjectForm<'a> = OnlyMeta<'a>;
    type Stored = String;
    type List = Vec<String>;

    const PROTOBUF: bool = true;

    fn convert(&self, form: OnlyMeta<'_>) -> String {
        form.metadata.name.to_string()
    }
}

impl Keyed for String {
    fn key(&self) -> NamespacedName {
        NamespacedName { namespace: "".into(), name: self.as_str().into() }
    }
}

/// Reads namespaces until a namespace created after the first list is received. Returns the events,
/// and the verb and `Accept` of each request.
async fn reads(faults: &[Fault]) -> (Vec<String>, Vec<(&'static str, String)>) {
    let (sim, client) = start().await;
    faults.iter().for_each(|fault| sim.fault(fault.clone()));
    let (sink, mut events) = mpsc::channel::<WatchEvent<String>>(16);
    let tasks = Supervisor::new();
    tasks.spawn("watch", async move {
        client
            .read(Names, ListSelection::all("", "v1", "namespaces"), ReadLimits::default(), &sink)
            .await;
    });
    let mut names = Vec::new();
    while names.last().is_none_or(|name| name != "late") {
        let event = tokio::time::timeout(Duration::from_secs(30), events.recv()).await;
        match event.expect("in time").expect("the watch continues") {
            WatchEvent::Restarted { objects, .. } => {
                names.extend(objects);
                sim.store().apply(objects::namespace("late")).expect("a namespace");
            }
            WatchEvent::Applied(name) => names.push(name),
            // The fallback for servers without streaming lists is checked by another test.
            WatchEvent::Answered | WatchEvent::Failed(_) => {}
            other => panic!("{other:?}"),
        }
    }
    let requests = sim.requests(|request| request.resource == "namespaces");
    (names, requests.into_iter().map(|request| (request.verb, request.accept)).collect())
}

#[tokio::test]
async fn lists_and_watches_request_protobuf_and_accept_json() {
    let no_streams = Fault::NoStreamingLists { how: Refusal::Invalid };
    let (streamed, stream_requests) = reads(&[]).await;
    let (listed, list_requests) = reads(std::slice::from_ref(&no_streams)).await;
    assert!(stream_requests.iter().all(|(verb, _)| *verb == "watch"), "{stream_requests:?}");
    assert!(list_requests.iter().any(|(verb, _)| *verb == "list"), "{list_requests:?}");
    for (verb, accept) in stream_requests.iter().chain(&list_requests) {
        let offers: Vec<_> = accept.split(',').collect();
        assert_eq!(offers, ["application/vnd.kubernetes.protobuf", "application/json"], "{verb}");
    }
    assert_eq!(listed, streamed);
    // A server without protobuf is read as well.
    assert_eq!(reads(&[Fault::JsonOnly]).await.0, streamed);
    assert_eq!(reads(&[Fault::JsonOnly, no_streams]).await.0, streamed);
}

const ISTIO: &[&str] = &["v1", "v1beta1", "v1alpha3"];
const ISTIO_GROUP: &str = "networking.istio.io";

fn only(version: &str) -> Fault {
    Fault::OnlyVersion { group: ISTIO_GROUP.into(), version: version.into() }
}

#[tokio::test]
async fn best_version_of_a_server_is_selected() {
    let (sim, client) = start().await;
    let served = async |plural| client.served(ISTIO_GROUP, ISTIO, plural).await;
    assert!(matches!(served("serviceentries").await, Err(ApiError::NotFound(_))));
    sim.enable(Family::Istio);
    assert_eq!(served("serviceentries").await, Ok("v1"));
    let unknown = served("unheardofs").await;
    assert!(matches!(unknown, Err(ApiError::NotFound(_))), "{unknown:?}");
    for version in ISTIO {
        sim.fault(only(version));
        assert_eq!(served("serviceentries").await, Ok(*version));
    }
    sim.fault(only("v2"));
    let Err(ApiError::NotFound(fact)) = served("serviceentries").await else { panic!("none fits") };
    assert!(
        fact.contains("not served in the supported versions (v1, v1beta1, v1alpha3)"),
        "{fact}"
    );
}

#[tokio::test]
async fn kind_is_read_once_it_exists_in_its_current_version() {
    let (sim, client) = start().await;
    let (sink, mut events) = mpsc::channel(16);
    let tasks = Supervisor::new();
    tasks.spawn("watch", async move {
        let selection = ListSelection::in_best(ISTIO_GROUP, ISTIO, "serviceentries");
        client.watch::<Secret, _>(selection, ReadLimits::default(), &sink).await;
    });
    assert!(next_event(&mut events).await.starts_with("failed"));
    sim.fault(only("v1alpha3"));
    sim.enable(Family::Istio);
    let entry = |name: &str| {
        let metadata = json!({"namespace": "elsewhere", "name": name});
        json!({"apiVersion": "networking.istio.io/v1", "kind": "ServiceEntry", "metadata": metadata})
    };
    sim.store().apply(entry("a")).expect("an entry");
    while next_event(&mut events).await != "restarted a" {}
    // The definition is replaced by one with another version; the old version is no longer served.
    sim.stop().await;
    sim.fault(only("v1"));
    sim.store().apply(entry("b")).expect("an entry");
    sim.restart().await;
    while next_event(&mut events).await != "restarted a b" {}
}
