//! The injection webhook as API servers use it: TLS without a client certificate, HTTP/1.1 and
//! HTTP/2, patches and rejections.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::ClientConfig;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::harness::{Estate, Setup, Trust};
use strait_base::task::Supervisor;

const PATH: &str = "/inject/cluster/east/net/n1?timeout=5s";

/// Opens a connection to the webhook as an API server does.
pub(crate) async fn connect(
    estate: &Estate,
    trust: &Trust,
    protocol: &str,
) -> TlsStream<TcpStream> {
    let mut config = ClientConfig::clone(&trust.workload("cluster.local", "shop", "anybody"));
    config.alpn_protocols = vec![protocol.as_bytes().to_vec()];
    let address = estate.webhook().expect("it is served");
    let socket = TcpStream::connect(address).await.expect("connected");
    let name = rustls_pki_types::ServerName::try_from("strait.strait-system.svc").expect("valid");
    let stream = TlsConnector::from(Arc::new(config)).connect(name, socket).await.expect("TLS");
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(protocol.as_bytes()));
    stream
}

/// Sends a request as an API server with this protocol does. Returns the status and the response.
pub(crate) async fn send_review(
    estate: &Estate,
    trust: &Trust,
    protocol: &str,
    path: &str,
    body: String,
) -> (u16, String) {
    let io = TokioIo::new(connect(estate, trust, protocol).await);
    let request = http::Request::post(format!("https://webhook{path}"));
    let request =
        request.header("host", "webhook").body(Full::new(Bytes::from(body))).expect("sound");
    let tasks = Supervisor::new();
    let response = if protocol == "h2" {
        let handshake = hyper::client::conn::http2::handshake(TokioExecutor::new(), io).await;
        let (mut sender, connection) = handshake.expect("HTTP/2");
        tasks.spawn("connection", async move { drop(connection.await) });
        sender.send_request(request).await.expect("an answer")
    } else {
        let handshake = hyper::client::conn::http1::handshake(io).await;
        let (mut sender, connection) = handshake.expect("HTTP/1.1");
        tasks.spawn("connection", async move { drop(connection.await) });
        sender.send_request(request).await.expect("an answer")
    };
    let status = response.status().as_u16();
    let body = response.into_body().collect().await.expect("a body").to_bytes();
    tasks.stop();
    (status, String::from_utf8(body.to_vec()).expect("UTF-8"))
}

fn review(pod: &Value) -> String {
    json!({
        "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
        "request": {
            "uid": "705ab4f5", "kind": { "group": "", "version": "v1", "kind": "Pod" },
            "resource": { "group": "", "version": "v1", "resource": "pods" },
            "namespace": "shop", "operation": "CREATE", "object": pod,
        },
    })
    .to_string()
}

/// Applies a patch with the operations that the webhook uses.
fn apply(pod: &mut Value, patch: &Value) {
    for operation in patch.as_array().expect("a patch") {
        let path = operation["path"].as_str().expect("a path");
        let (parent, key) = path.rsplit_once('/').expect("a path below the root");
        let key = key.replace("~1", "/").replace("~0", "~");
        let parent = pod.pointer_mut(parent).and_then(Value::as_object_mut).expect("it is there");
        match operation["op"].as_str() {
            Some("add") => {
                assert_eq!(parent.insert(key, operation["value"].clone()), None, "{path}");
            }
            Some("replace") => {
                assert!(parent.insert(key, operation["value"].clone()).is_some(), "{path}");
            }
            other => unreachable!("{other:?}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_are_patched_over_http1_and_http2_and_rejected_with_the_reason() {
    let trust = Trust::new();
    let flags = ["--inject-address=127.0.0.1:0", "--inject-discovery=east=10.0.0.9:15012"];
    let config = json!({
        "apiVersion": "networking.istio.io/v1beta1", "kind": "ProxyConfig",
        "metadata": { "namespace": "shop", "name": "traces" },
        "spec": { "environmentVariables": { "OTEL_RESOURCE_ATTRIBUTES": "service.name=web" } },
    });
    let (flags, config) = (flags.map(str::to_owned).into(), config.to_string());
    let estate = Estate::start(&Setup { flags, config, ..Setup::default() }, &trust).await;
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "generateName": "web-" },
        "spec": { "containers": [{ "name": "app", "image": "app" }] },
    });
    for protocol in ["http/1.1", "h2"] {
        let (status, text) = send_review(&estate, &trust, protocol, PATH, review(&pod)).await;
        assert_eq!(status, 200, "{text}");
        let answer: Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(answer["response"]["uid"], "705ab4f5");
        assert_eq!(answer["response"]["allowed"], true);
        assert_eq!(answer["response"]["patchType"], "JSONPatch");
        let patch = BASE64.decode(answer["response"]["patch"].as_str().expect("a patch"));
        let patch = serde_json::from_slice(&patch.expect("base64")).expect("JSON");
        let mut patched = pod.clone();
        apply(&mut patched, &patch);
        let environment = &patched["spec"]["initContainers"][1]["env"];
        for (name, value) in [
            ("STRAIT_CLUSTER_ID", "east"),
            ("STRAIT_NETWORK", "n1"),
            ("STRAIT_DISCOVERY", "10.0.0.9:15012"),
            ("OTEL_RESOURCE_ATTRIBUTES", "service.name=web"),
        ] {
            let pair = json!({ "name": name, "value": value });
            assert!(environment.as_array().expect("a list").contains(&pair), "{environment}");
        }
        let (_, again) = send_review(&estate, &trust, protocol, PATH, review(&patched)).await;
        let again: Value = serde_json::from_str(&again).expect("JSON");
        assert_eq!(
            again["response"],
            json!({ "uid": "705ab4f5", "allowed": true }),
            "once is enough"
        );
    }

    let mut unfit = pod.clone();
    unfit["spec"]["securityContext"] = json!({ "runAsUser": 1337 });
    let (status, text) = send_review(&estate, &trust, "h2", PATH, review(&unfit)).await;
    let answer: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!((status, &answer["response"]["allowed"]), (200, &json!(false)));
    let message = answer["response"]["status"]["message"].as_str().expect("a message");
    assert!(message.starts_with("STR0901: its container app runs as user 1337"), "{message}");
    assert!(message.contains("another user"), "the message names the next step: {message}");

    for (path, body, expected) in [
        ("/validation", review(&pod), 404),
        ("/inject/cluster/east/zone/a", review(&pod), 404),
        (PATH, "{}".to_owned(), 400),
        (PATH, review(&pod).replace("k8s.io/v1\"", "k8s.io/v1beta1\""), 400),
        (PATH, "x".repeat((3 << 20) + 1), 413),
    ] {
        let (status, text) = send_review(&estate, &trust, "http/1.1", path, body).await;
        assert_eq!(status, expected, "{path}: {text}");
    }
    let metrics = estate.text("/metrics").await;
    for line in ["injected\"} 2", "skipped\"} 2", "refused\"} 1", "failed\"} 5"] {
        let line = format!("strait_injections_total{{result=\"{line}");
        assert!(metrics.contains(&line), "{line} in {metrics}");
    }
    estate.stop().await;
}
