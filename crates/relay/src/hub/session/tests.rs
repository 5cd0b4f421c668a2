#![expect(clippy::disallowed_methods, reason = "tasks of a test end with the test")]

use std::collections::BTreeMap;
use std::convert::Infallible;

use http::Response;
use hyper::body::Incoming;
use hyper::service::service_fn;
use tokio::io::DuplexStream;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::*;
use crate::hub::{CONNECTIONS_MAX, Invitation, RelayedMember};

/// A request that the relay does not answer, as a watch that has no news.
const WATCH_PATH: &str = "/api/v1/services";
const EXPIRES: SystemTime = SystemTime::UNIX_EPOCH;

fn member(generation: u64) -> RelayedMember {
    RelayedMember {
        secret: ("strait-system".into(), "strait-member-west".into()),
        generation,
        generation_from: None,
        uid: None,
        invitation: None,
    }
}

fn hub() -> Arc<RelayHub> {
    let hub = Arc::new(RelayHub::default());
    hub.permit(BTreeMap::from([("west".into(), member(1))]), SystemTime::now());
    hub
}

/// Answers requests of the hub as a relay with these values.
fn relay(
    io: DuplexStream,
    cluster: &'static str,
    uid: &'static str,
    name: &'static str,
    hellos: mpsc::UnboundedSender<String>,
) -> JoinHandle<()> {
    let answer = move |request: Request<Incoming>| {
        let replica = request.headers().get(REPLICA_HEADER).cloned();
        if let Some(replica) = replica {
            let _ = hellos.send(replica.to_str().expect("text").to_owned());
        }
        answer(request.uri().path().to_owned(), cluster, uid, name)
    };
    tokio::spawn(async move {
        let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
        let _ = server.serve_connection(TokioIo::new(io), service_fn(answer)).await;
    })
}

async fn answer(
    path: String,
    cluster: &'static str,
    uid: &'static str,
    name: &'static str,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let body = match &*path {
        HELLO_PATH => {
            let hello = Hello {
                version: "0.1.0".into(),
                instance: name.into(),
                cluster: cluster.into(),
                cluster_uid: uid.into(),
                kubernetes: "v1.34.0".into(),
                allowed: vec!["read".into()],
                media_types: vec!["full".into()],
            };
            serde_json::to_string(&hello).expect("JSON")
        }
        WATCH_PATH => std::future::pending().await,
        "/api/v1/namespaces/kube-system" => format!(r#"{{"metadata":{{"uid":"{uid}"}}}}"#),
        _ => format!(r#"{{"from":"{name}"}}"#),
    };
    Ok(Response::new(Full::new(Bytes::from(body))))
}

/// Connects a relay, and returns the task of the hub and that of the relay.
fn connect(
    hub: &Arc<RelayHub>,
    generation: u64,
    cluster: &'static str,
    uid: &'static str,
    name: &'static str,
) -> (JoinHandle<SessionEnd>, JoinHandle<()>) {
    let replica = watch::channel(hub_replica(2)).1;
    connect_to(hub, replica, (generation, cluster, uid, name), mpsc::unbounded_channel().0)
}

fn hub_replica(count: usize) -> ReplicaName {
    ReplicaName { name: "hub-0".into(), count }
}

/// Connects a relay like [`connect`] to a replica of the hub. The replica in each hello is sent to `hellos`.
fn connect_to(
    hub: &Arc<RelayHub>,
    replica: watch::Receiver<ReplicaName>,
    (generation, cluster, uid, name): (u64, &'static str, &'static str, &'static str),
    hellos: mpsc::UnboundedSender<String>,
) -> (JoinHandle<SessionEnd>, JoinHandle<()>) {
    let (near, far) = tokio::io::duplex(64 << 10);
    let hub = Arc::clone(hub);
    let served = tokio::spawn(async move {
        let claims = RelayClaims {
            cluster: "west".into(),
            generation,
            expires: EXPIRES,
            remote: "192.0.2.1:4711".parse().expect("an address"),
        };
        hub.serve(near, &claims, &replica, std::future::pending()).await
    });
    (served, relay(far, cluster, uid, name, hellos))
}

async fn until_connected(hub: &RelayHub, count: usize) {
    let connected = async {
        while hub.rows().len() != count {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), connected).await.expect("connected");
}

/// Asks the member for something, and returns the relay that answered.
async fn request(hub: &Arc<RelayHub>) -> Result<String, String> {
    request_of(hub, "/api/v1/pods").await
}

async fn request_of(hub: &Arc<RelayHub>, path: &str) -> Result<String, String> {
    let request = Request::get(format!("https://relay{path}")).body(Full::default());
    let request = request.expect("a request");
    let carrier = hub.carrier(&"west".into());
    let (response, _permit) = carrier.exchange(request).await.map_err(|error| error.to_string())?;
    let body = response.into_body().collect().await.map_err(|error| error.to_string())?;
    Ok(String::from_utf8_lossy(&body.to_bytes()).into_owned())
}

#[tokio::test]
async fn requests_use_the_relay_that_has_been_connected_for_longest() {
    let hub = hub();
    let (_first, first_relay) = connect(&hub, 1, "west", "u", "relay-a");
    until_connected(&hub, 1).await;
    let (_second, _second_relay) = connect(&hub, 1, "west", "u", "relay-b");
    until_connected(&hub, 2).await;
    assert_eq!(request(&hub).await.as_deref(), Ok(r#"{"from":"relay-a"}"#));
    let active: Vec<_> = hub.rows().into_iter().map(|row| (row.instance, row.active)).collect();
    assert_eq!(active, [("relay-a".to_owned(), true), ("relay-b".to_owned(), false)]);
    assert_eq!((hub.expires(&"west".into()), hub.expires(&"east".into())), (Some(EXPIRES), None));
    first_relay.abort();
    until_connected(&hub, 1).await;
    assert_eq!(request(&hub).await.as_deref(), Ok(r#"{"from":"relay-b"}"#));
}

#[tokio::test]
async fn request_waits_for_a_relay() {
    let hub = hub();
    let request = tokio::spawn({
        let hub = Arc::clone(&hub);
        async move { request(&hub).await }
    });
    tokio::task::yield_now().await;
    let _connected = connect(&hub, 1, "west", "u", "relay-a");
    assert_eq!(request.await.expect("no panic").as_deref(), Ok(r#"{"from":"relay-a"}"#));
}

#[tokio::test]
async fn reason_states_since_when_no_relay_is_connected() {
    let hub = hub();
    let away = || hub.away(&"west".into());
    assert_eq!(away(), "STR0340: no relay of west has connected yet");
    let (_served, relay) = connect(&hub, 1, "west", "u", "relay");
    until_connected(&hub, 1).await;
    relay.abort();
    until_connected(&hub, 0).await;
    assert!(
        away().starts_with("STR0340: the relay of west is not connected since 20"),
        "{}",
        away()
    );
}

#[test]
fn reason_states_when_the_invitation_expires() {
    let hub = RelayHub::default();
    for (expires, phrase) in [
        (SystemTime::UNIX_EPOCH, "expired at 1970-01-01T00:00:00"),
        (SystemTime::UNIX_EPOCH + Duration::from_secs(4_102_444_800), "is valid until 2100-01-01"),
    ] {
        let invitation = Some(Invitation { sha256: [0; 32], expires });
        let member = RelayedMember { invitation, ..member(1) };
        hub.permit(BTreeMap::from([("west".into(), member)]), SystemTime::now());
        let away = hub.away(&"west".into());
        let expected = "STR0340: no relay of west has connected yet; its invitation ";
        assert!(away.starts_with(expected) && away.contains(phrase), "{away}");
    }
}

#[tokio::test]
async fn relay_receives_each_change_of_the_number_of_replicas() {
    let hub = hub();
    let (count, replica) = watch::channel(hub_replica(1));
    let (hellos, mut received) = mpsc::unbounded_channel();
    let (_served, _relay) = connect_to(&hub, replica, (1, "west", "u", "relay"), hellos);
    for expected in 1..=3 {
        count.send_replace(hub_replica(expected));
        let hello = tokio::time::timeout(Duration::from_secs(10), received.recv()).await;
        assert_eq!(hello, Ok(Some(format!("hub-0/{expected}"))));
        until_connected(&hub, 1).await;
    }
}

#[tokio::test]
async fn removed_member_leaves_no_state() {
    let hub = hub();
    let members = |is_there: bool| {
        is_there.then(|| ("west".into(), member(1))).into_iter().collect::<BTreeMap<_, _>>()
    };
    // The member ends before its connection, and after it.
    for relay_ends_first in [false, true] {
        let (served, relay) = connect(&hub, 1, "west", "u", "relay");
        until_connected(&hub, 1).await;
        if relay_ends_first {
            relay.abort();
            served.await.expect("no panic");
            hub.permit(members(false), SystemTime::now());
        } else {
            hub.permit(members(false), SystemTime::now());
            served.await.expect("no panic");
        }
        assert_eq!(hub.known(), 0, "{relay_ends_first}");
        hub.permit(members(true), SystemTime::now());
        assert_eq!(hub.away(&"west".into()), "STR0340: no relay of west has connected yet");
    }
}

#[tokio::test]
async fn relay_that_contradicts_its_certificate_is_not_used() {
    let hub = hub();
    let (served, _relay) = connect(&hub, 1, "east", "u", "relay-a");
    let end = served.await.expect("no panic");
    let SessionEnd::Contradiction(fact) = end else { panic!("{end:?}") };
    assert!(fact.contains("STR0347") && fact.contains("east"), "{fact}");
    assert_eq!(hub.rows(), []);
    // The reason of the member shows it until a relay is accepted.
    let away = hub.away(&"west".into());
    assert!(away.starts_with("STR0347: "), "{away}");
    assert!(away.ends_with("; no relay of west has connected yet"), "{away}");
    let (_served, relay) = connect(&hub, 1, "west", "u", "relay-a");
    until_connected(&hub, 1).await;
    relay.abort();
    until_connected(&hub, 0).await;
    let away = hub.away(&"west".into());
    assert!(away.starts_with("STR0340: the relay of west is not connected since"), "{away}");
}

#[tokio::test]
async fn second_relay_must_be_in_the_same_cluster() {
    let hub = hub();
    let _first = connect(&hub, 1, "west", "u", "relay-a");
    until_connected(&hub, 1).await;
    let (served, _relay) = connect(&hub, 1, "west", "other", "relay-b");
    assert!(matches!(served.await.expect("no panic"), SessionEnd::Contradiction(_)));
}

#[tokio::test]
async fn connection_ends_when_its_member_or_generation_is_withdrawn() {
    for members in [BTreeMap::new(), BTreeMap::from([("west".into(), member(2))])] {
        let hub = hub();
        let (served, _relay) = connect(&hub, 1, "west", "u", "relay-a");
        until_connected(&hub, 1).await;
        hub.permit(members, SystemTime::now());
        assert_eq!(served.await.expect("no panic"), SessionEnd::Revoked);
        let (served, _relay) = connect(&hub, 1, "west", "u", "relay-a");
        let end = served.await.expect("no panic");
        assert!(matches!(end, SessionEnd::Refused(_)), "{end:?}");
    }
}

#[tokio::test]
async fn withdrawn_relay_serves_no_open_watch_any_more() {
    let hub = hub();
    let (served, relay) = connect(&hub, 1, "west", "u", "relay-a");
    until_connected(&hub, 1).await;
    let watch = tokio::spawn({
        let hub = Arc::clone(&hub);
        async move { request_of(&hub, WATCH_PATH).await }
    });
    // The relay answers requests in the order of their arrival.
    assert!(request(&hub).await.is_ok());
    assert!(!watch.is_finished());
    hub.permit(BTreeMap::new(), SystemTime::now());
    assert_eq!(served.await.expect("no panic"), SessionEnd::Revoked);
    let ends = tokio::time::timeout(Duration::from_secs(10), async { (watch.await, relay.await) });
    let (watched, connection) = ends.await.expect("the connection is closed");
    assert!(watched.expect("no panic").is_err());
    connection.expect("no panic");
}

#[tokio::test]
async fn relay_of_the_previous_generation_stays_connected_until_its_time() {
    let hub = hub();
    let (served, _relay) = connect(&hub, 1, "west", "u", "relay-a");
    until_connected(&hub, 1).await;
    let now = SystemTime::now();
    let from = now + Duration::from_secs(3600);
    let next = RelayedMember { generation_from: Some(from), ..member(2) };
    hub.permit(BTreeMap::from([("west".into(), next)]), now);
    hub.sweep(now);
    until_connected(&hub, 1).await;
    hub.sweep(from);
    assert_eq!(served.await.expect("no panic"), SessionEnd::Revoked);
}

#[tokio::test]
async fn connections_of_one_member_are_bounded() {
    let hub = hub();
    let mut open = Vec::new();
    for _ in 0..CONNECTIONS_MAX {
        open.push(connect(&hub, 1, "west", "u", "relay"));
    }
    until_connected(&hub, CONNECTIONS_MAX).await;
    let (served, _relay) = connect(&hub, 1, "west", "u", "relay");
    let end = served.await.expect("no panic");
    assert!(matches!(end, SessionEnd::Refused(RelayRefusal::TooMany { .. })), "{end:?}");
    until_connected(&hub, CONNECTIONS_MAX).await;
}

#[tokio::test]
async fn no_connection_is_admitted_before_the_members_are_known() {
    let hub = Arc::new(RelayHub::default());
    let (served, _relay) = connect(&hub, 1, "west", "u", "relay");
    assert_eq!(served.await.expect("no panic"), SessionEnd::Refused(RelayRefusal::NotReady));
}
