//! Negotiation of protobuf and its envelope. Unit tests of the encoder compare the content with the
//! bytes of a real server.

use bytes::Bytes;
use http_body_util::BodyExt;
use kube::Client;
use kube::client::Body;
use strait_sim::{Family, Fault, Options, SimCluster, objects};

use crate::client;

const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
const BOTH: &str = "application/vnd.kubernetes.protobuf,application/json";

struct Reply {
    status: u16,
    content_type: String,
    body: Bytes,
}

async fn send(
    client: &Client,
    method: &str,
    path: &str,
    accept: &str,
    body: (&str, Bytes),
) -> Reply {
    let request = http::Request::builder()
        .method(method)
        .uri(path)
        .header("accept", accept)
        .header("content-type", body.0)
        .body(Body::from(body.1.to_vec()))
        .expect("a valid request");
    let answer = client.send(request).await.expect("an answer");
    let content_type = answer.headers()["content-type"].to_str().expect("text").to_owned();
    let status = answer.status().as_u16();
    let body = answer.into_body().collect().await.expect("a body").to_bytes();
    Reply { status, content_type, body }
}

async fn get(client: &Client, path: &str, accept: &str) -> Reply {
    send(client, "GET", path, accept, ("", Bytes::new())).await
}

async fn cluster() -> SimCluster {
    let mut options = Options::default();
    options.families.insert(Family::Istio);
    let cluster = SimCluster::start("c1", options).await.expect("a free port");
    let service = objects::service("shop", "cart", "10.96.0.1", &[objects::HTTP]);
    cluster.store().apply(service).expect("valid");
    cluster
}

#[tokio::test]
async fn client_receives_the_first_supported_form() {
    let cluster = cluster().await;
    let client = client(&cluster).await;
    let services = "/api/v1/services";
    let custom = "/apis/networking.istio.io/v1/virtualservices";
    let metadata = format!("{PROTOBUF};as=PartialObjectMetadataList;g=meta.k8s.io;v=v1");
    let cases = [
        (services, BOTH, 200, PROTOBUF),
        (services, "application/json,application/vnd.kubernetes.protobuf", 200, "application/json"),
        (services, &metadata, 200, PROTOBUF),
        (custom, BOTH, 200, "application/json"),
        (custom, &metadata, 200, PROTOBUF),
        (custom, PROTOBUF, 406, PROTOBUF),
        ("/api/v1/namespaces/shop/services/none", BOTH, 404, PROTOBUF),
        // A page that is not an object has a separate content type.
        ("/openid/v1/jwks", "application/json", 406, "application/json"),
        ("/openid/v1/jwks", "application/json, */*", 200, "application/jwk-set+json"),
        ("/api/v1/namespaces/shop/services/none", "application/json", 404, "application/json"),
    ];
    for (path, accept, status, content_type) in cases {
        let reply = get(&client, path, accept).await;
        assert_eq!((reply.status, &*reply.content_type), (status, content_type), "{path} {accept}");
        let enveloped = reply.body.starts_with(b"k8s\0");
        assert_eq!(enveloped, content_type == PROTOBUF, "{path} {accept}");
    }
}

#[tokio::test]
async fn server_without_protobuf_sends_json_if_accepted() {
    let cluster = cluster().await;
    cluster.fault(Fault::JsonOnly);
    let client = client(&cluster).await;
    for path in ["/api/v1/services", "/api/v1/services?watch=1&timeoutSeconds=1"] {
        let both = get(&client, path, BOTH).await;
        assert_eq!((both.status, &*both.content_type), (200, "application/json"), "{path}");
        assert_eq!(get(&client, path, PROTOBUF).await.status, 406, "{path}");
    }
}

#[tokio::test]
async fn protobuf_object_can_be_written_back() {
    let cluster = cluster().await;
    let client = client(&cluster).await;
    let path = "/api/v1/namespaces/shop/services/cart";
    let before = cluster.store().get("Service", "shop", "cart").expect("there").value();
    let read = get(&client, path, BOTH).await.body;
    cluster.store().delete("Service", "shop", "cart").expect("there");
    // An object with a resource version can't be created.
    let made =
        send(&client, "POST", "/api/v1/namespaces/shop/services", BOTH, (PROTOBUF, read.clone()))
            .await;
    assert_eq!(made.status, 400);
    let service = objects::service("shop", "cart", "10.96.0.2", &[objects::HTTP]);
    cluster.store().apply(service).expect("valid");
    let version = cluster.store().version().to_string();
    let read = get(&client, path, BOTH).await.body;
    let written = send(&client, "PUT", path, BOTH, (PROTOBUF, read)).await;
    assert_eq!(written.status, 200);
    let after = cluster.store().get("Service", "shop", "cart").expect("there").value();
    assert_eq!(after["metadata"]["resourceVersion"], version, "it is no change");
    assert_eq!(after["spec"]["ports"], before["spec"]["ports"]);
    let nonsense = send(&client, "PUT", path, BOTH, (PROTOBUF, "nonsense".into())).await;
    assert_eq!(nonsense.status, 400);
}

#[tokio::test]
async fn events_are_preceded_by_their_length() {
    let cluster = cluster().await;
    let client = client(&cluster).await;
    let watch = "/api/v1/services?watch=1&timeoutSeconds=1";
    let accept = "application/vnd.kubernetes.protobuf;stream=watch";
    let reply = get(&client, watch, accept).await;
    assert_eq!(reply.content_type, accept);
    let (length, event) = reply.body.split_at(4);
    assert_eq!(u32::from_be_bytes(length.try_into().expect("four bytes")) as usize, event.len());
    assert!(event.starts_with(b"\x0a\x05ADDED\x12"), "type, then object");
    assert!(event.windows(4).any(|bytes| bytes == b"k8s\0"), "the object has its envelope");
}
