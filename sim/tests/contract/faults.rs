//! Faults: each one has its documented effect on a client, and none after it is healed.

use std::time::Duration;

use http_body_util::BodyExt;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::ListParams;
use kube::client::Body;
use kube::{Api, Client};
use serde_json::{Value, json};
use strait_sim::{Certificate, Family, Fault, Gone, Options, Refusal, SimCluster};
use tokio::time::timeout;

use crate::script::{Step, get, run};
use crate::{client, client_of};

const LIMIT: Duration = Duration::from_secs(20);
const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const WATCH: &str =
    "/api/v1/namespaces/default/configmaps?watch=1&resourceVersion=0&allowWatchBookmarks=true";
const STREAM: &str = "/api/v1/namespaces/default/configmaps?watch=1&sendInitialEvents=true\
                      &resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";

async fn cluster() -> SimCluster {
    let options = Options { bookmark_interval: Duration::from_millis(50), ..Options::default() };
    let cluster = SimCluster::start("c1", options).await.expect("a free port");
    for name in ["a", "b"] {
        cluster.store().apply(config_map(name)).expect("valid");
    }
    cluster
}

fn config_map(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}})
}

async fn send(client: &Client, path: &str) -> http::Response<Body> {
    let request = http::Request::get(path).body(Body::empty()).expect("a valid request");
    timeout(LIMIT, client.send(request)).await.expect("in time").expect("an answer")
}

async fn text(answer: http::Response<Body>) -> String {
    let body = timeout(LIMIT, answer.into_body().collect()).await.expect("in time");
    String::from_utf8_lossy(&body.expect("a body").to_bytes()).into_owned()
}

/// Returns whether the client soon receives a list with both config maps.
async fn works(client: &Client) -> bool {
    let api = Api::<ConfigMap>::default_namespaced(client.clone());
    let list =
        timeout(Duration::from_secs(2), async { api.list(&ListParams::default()).await }).await;
    list.is_ok_and(|list| list.is_ok_and(|list| list.items.len() == 2))
}

#[tokio::test]
async fn faults_give_the_documented_responses() {
    let gone = |how| Fault::Gone { how, times: None };
    let refuse = |how| Fault::NoStreamingLists { how };
    let status = |code: u16| json!({"kind": "Status", "code": code});
    let cases: Vec<(Fault, Step)> = vec![
        (Fault::Unauthorized, get(MAPS).gives(401, status(401))),
        (Fault::Forbidden { resource: "configmaps".to_owned() }, get(MAPS).gives(403, status(403))),
        (Fault::Forbidden { resource: "nodes".to_owned() }, get(MAPS).gives(200, json!({}))),
        (
            Fault::KindFails { resource: "configmaps".to_owned(), body: None },
            get(MAPS).gives(500, status(500)),
        ),
        (
            Fault::TooManyRequests { retry_after_seconds: 7 },
            get(MAPS).gives(429, json!({"details": {"retryAfterSeconds": 7}})),
        ),
        (Fault::Errors { codes: vec![503] }, get(MAPS).gives(503, status(503))),
        (Fault::Html, get(MAPS).gives(200, Value::Null)),
        (Fault::Truncate, get(MAPS).gives(200, Value::Null)),
        (Fault::EmptyLists { resource: None }, get(MAPS).gives(200, json!({"items": []}))),
        (gone(Gone::Status), get(WATCH).gives(410, json!({"reason": "Expired"}))),
        (gone(Gone::Event), get(WATCH).sees(&["ERROR 410"])),
        (gone(Gone::Status), get(MAPS).gives(200, json!({"items": [{}, {}]}))),
        (refuse(Refusal::Invalid), get(STREAM).gives(422, status(422))),
        (refuse(Refusal::Event), get(STREAM).sees(&["ERROR 500"])),
        (refuse(Refusal::Ignored), get(STREAM).sees(&["ADDED a", "ADDED b", "BOOKMARK"])),
        (refuse(Refusal::Invalid), get(WATCH).sees(&["ADDED a", "ADDED b"])),
    ];
    let cluster = cluster().await;
    let client = client(&cluster).await;
    for (fault, step) in cases {
        let name = format!("{fault:?}");
        cluster.fault(fault);
        step.check(&client, &name).await;
        cluster.heal();
        assert!(works(&client).await, "{name} outlived its healing");
    }
}

#[tokio::test]
async fn faults_set_response_headers() {
    let cluster = cluster().await;
    let client = client(&cluster).await;
    cluster.fault(Fault::TooManyRequests { retry_after_seconds: 7 });
    assert_eq!(send(&client, MAPS).await.headers()["retry-after"], "7");
    cluster.heal();
    cluster.fault(Fault::Redirect { location: "https://192.0.2.1/".to_owned() });
    let answer = send(&client, MAPS).await;
    assert_eq!(
        (answer.status().as_u16(), &answer.headers()["location"]),
        (302, &"https://192.0.2.1/".parse().expect("valid"))
    );
    cluster.heal();
    cluster.fault(Fault::ClockSkew { seconds: 100_000 });
    let skewed = send(&client, MAPS).await.headers()["date"].clone();
    cluster.heal();
    assert_ne!(skewed, send(&client, MAPS).await.headers()["date"]);
    // Dates beyond the supported range still give a response.
    for seconds in [i64::MIN, i64::MAX] {
        cluster.fault(Fault::ClockSkew { seconds });
        assert_eq!(send(&client, MAPS).await.status().as_u16(), 200);
    }
}

#[tokio::test]
async fn hanging_server_does_not_respond_until_healed() {
    let cluster = cluster().await;
    let client = client(&cluster).await;
    cluster.fault(Fault::Hang);
    assert!(!works(&client).await);
    let seen = cluster.request_count("list", "configmaps");
    let heal = async {
        while cluster.request_count("list", "configmaps") == seen {
            tokio::task::yield_now().await;
        }
        cluster.heal();
    };
    let (answer, ()) = tokio::join!(send(&client, MAPS), heal);
    assert_eq!(answer.status().as_u16(), 200);
}

#[tokio::test]
async fn stopped_server_drops_connections_and_restarts_unchanged() {
    let cluster = cluster().await;
    let client = client(&cluster).await;
    let watch = send(&client, WATCH).await;
    let url = cluster.url();
    cluster.stop().await;
    let end = timeout(LIMIT, watch.into_body().collect()).await;
    assert!(end.is_ok(), "a watch outlived its server");
    assert!(!works(&client).await);
    cluster.restart().await;
    assert!(works(&client).await);
    assert_eq!(cluster.url(), url);
}

#[tokio::test]
async fn flapping_server_stops_and_restarts() {
    let cluster = cluster().await;
    let client = client(&cluster).await;
    cluster.fault(Fault::Flap { up_ms: 50, down_ms: 50 });
    for wanted in [false, true, false, true] {
        let reached = async {
            while works(&client).await != wanted {
                tokio::task::yield_now().await;
            }
        };
        timeout(LIMIT, reached).await.unwrap_or_else(|_| panic!("never {wanted}"));
    }
    cluster.heal();
    let up = async {
        while !cluster.is_serving() || !works(&client).await {
            tokio::task::yield_now().await;
        }
    };
    timeout(LIMIT, up).await.expect("up again");
}

#[tokio::test]
async fn muted_watch_sends_all_events_after_healing() {
    let cluster = cluster().await;
    let client = client(&cluster).await;
    let path = format!("{MAPS}?watch=1&resourceVersion={}", cluster.store().version());
    cluster.fault(Fault::Mute);
    let mut body = send(&client, &path).await.into_body();
    cluster.store().apply(config_map("c")).expect("valid");
    let silence = timeout(Duration::from_millis(200), body.frame()).await;
    assert!(silence.is_err(), "{silence:?}");
    cluster.heal();
    let frame = timeout(LIMIT, body.frame()).await.expect("in time").expect("a frame");
    let data = frame.expect("no error").into_data().expect("data");
    assert!(String::from_utf8_lossy(&data).contains(r#""name":"c""#));
}

#[tokio::test]
async fn watches_are_closed_after_the_configured_time() {
    let cluster = cluster().await;
    let client = client(&cluster).await;
    cluster.fault(Fault::CloseWatches { after_ms: 100 });
    let events = text(send(&client, WATCH).await).await;
    assert!(events.contains("ADDED") && events.ends_with("}\n"), "{events}");
}

#[tokio::test]
async fn endless_line_does_not_end() {
    let cluster = cluster().await;
    let client = client(&cluster).await;
    cluster.fault(Fault::EndlessLine);
    let mut body = send(&client, WATCH).await.into_body();
    let mut bytes = 0;
    while bytes < 4 * 1024 * 1024 {
        let frame = timeout(LIMIT, body.frame()).await.expect("in time").expect("no end");
        let data = frame.expect("no error").into_data().expect("data");
        assert!(!data.contains(&b'\n'));
        bytes += data.len();
    }
}

#[tokio::test]
async fn endless_pages_do_not_end() {
    let cluster = cluster().await;
    let api = Api::<ConfigMap>::default_namespaced(client(&cluster).await);
    cluster.fault(Fault::EndlessPages);
    let mut page = ListParams::default().limit(1);
    for _ in 0..20 {
        let list = api.list(&page).await.expect("a page");
        page.continue_token = list.metadata.continue_;
        assert!(page.continue_token.is_some());
    }
}

#[tokio::test]
async fn expired_continue_token_returns_a_fresh_one() {
    let cluster = cluster().await;
    let api = Api::<ConfigMap>::default_namespaced(client(&cluster).await);
    let first = api.list(&ListParams::default().limit(1)).await.expect("a page");
    cluster.store().compact();
    let next = ListParams::default().continue_token(&first.metadata.continue_.expect("more"));
    let kube::Error::Api(status) = api.list(&next).await.expect_err("too old") else { panic!() };
    assert_eq!((status.code, &*status.reason), (410, "Expired"));
    let fresh = status.metadata.and_then(|metadata| metadata.continue_).expect("a fresh token");
    let rest = api.list(&ListParams::default().continue_token(&fresh)).await.expect("the rest");
    assert_eq!(rest.items.len(), 1);
}

#[tokio::test]
async fn slow_server_limits_the_bandwidth() {
    let cluster = cluster().await;
    let client = client(&cluster).await;
    let size = text(send(&client, MAPS).await).await.len() as u64;
    cluster.fault(Fault::Slow { latency_ms: 50, bytes_per_second: Some(size * 2) });
    let started = std::time::Instant::now();
    let slowly = text(send(&client, MAPS).await).await;
    assert_eq!(slowly.len() as u64, size);
    assert!(started.elapsed() > Duration::from_millis(300), "{:?}", started.elapsed());
}

#[tokio::test]
async fn compaction_ends_watches_and_allows_new_lists() {
    let cluster = cluster().await;
    let client = client(&cluster).await;
    let watch = send(&client, WATCH).await;
    cluster.store().compact();
    let events = text(watch).await;
    assert!(events.contains(r#""type":"ERROR""#) && events.contains("410"), "{events}");
    assert!(works(&client).await);
    assert_eq!(cluster.request_count("list", "configmaps"), 1);
    assert_eq!(cluster.request_count("watch", "configmaps"), 1);
}

#[tokio::test]
async fn restored_backup_restores_the_version() {
    let cluster = cluster().await;
    let client = client(&cluster).await;
    let backup = cluster.store().snapshot();
    let version = cluster.store().version();
    cluster.store().apply(config_map("c")).expect("valid");
    assert!(!works(&client).await);
    cluster.store().restore(backup);
    assert!(works(&client).await);
    assert_eq!(cluster.store().version(), version);
}

#[tokio::test]
async fn rotated_token_is_refused() {
    let cluster = cluster().await;
    let old = client(&cluster).await;
    assert!(works(&old).await);
    cluster.rotate_token();
    assert_eq!(send(&old, MAPS).await.status().as_u16(), 401);
    assert!(works(&client(&cluster).await).await);
}

#[tokio::test]
async fn invalid_certificate_is_refused_by_the_client() {
    use Certificate::{Expired, UnknownAuthority, Valid, WrongName};
    for certificate in [Valid, Expired, UnknownAuthority, WrongName] {
        let options = Options { certificate, ..Options::default() };
        let cluster = SimCluster::start("c1", options).await.expect("a free port");
        let client = client_of(&cluster.kubeconfig()).await;
        let accepted = client.apiserver_version().await.is_ok();
        assert_eq!(accepted, certificate == Valid, "{certificate:?}");
    }
}

#[tokio::test]
async fn api_enabled_later_is_served() {
    let cluster = cluster().await;
    let client = client(&cluster).await;
    let path = "/apis/gateway.networking.k8s.io/v1/gateways";
    assert_eq!(send(&client, path).await.status().as_u16(), 404);
    cluster.enable(Family::GatewayApi);
    let items = json!({"kind": "GatewayList", "items": []});
    run(&client, "installed", vec![get(path).gives(200, items)]).await;
}
