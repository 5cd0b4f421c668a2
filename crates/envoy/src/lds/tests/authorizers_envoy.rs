//! Real Envoys query real providers about requests and connections, over HTTP and gRPC.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use serde_json::json;

use super::access::{event_with_root, guarded_by};
use super::access_envoy::answered_whole;
use super::authorizers::{authorizers, custom_policy, with_providers};
use super::envoy::{
    Running, at_loopback, bootstrap, envoys, free_ports, static_cluster, to_loopback, validated,
};
use super::*;
use strait_model::TlsMode;
use strait_proto::envoy::envoy::config::core::v3 as core;
use strait_proto::envoy::envoy::service::auth::v3 as auth;
use strait_proto::envoy::envoy::r#type::v3::HttpStatus;

/// The timeout of a provider in these tests.
const TIMEOUT: Duration = Duration::from_millis(700);
const SERVICE: &str = "opa.authz.svc.cluster.local";

/// Starts an HTTP/1.1 and HTTP/2 server on loopback that runs until the test ends.
#[expect(clippy::disallowed_methods, reason = "a test's own server, which ends with the test")]
async fn server<F>(answer: fn(Request<hyper::body::Incoming>) -> F) -> u16
where
    F: Future<Output = Response<Full<Bytes>>> + Send + 'static,
{
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("bound").port();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let service = hyper::service::service_fn(move |request| {
                let answer = answer(request);
                async move { Ok::<_, Infallible>(answer.await) }
            });
            tokio::spawn(async move {
                let io = hyper_util::rt::TokioIo::new(stream);
                let executor = hyper_util::rt::TokioExecutor::new();
                let server = hyper_util::server::conn::auto::Builder::new(executor);
                let _ = server.serve_connection(io, service).await;
            });
        }
    });
    port
}

/// Responds as the workload does: with the relevant headers that it received.
async fn workload(request: Request<hyper::body::Incoming>) -> Response<Full<Bytes>> {
    let header = |name: &str| request.headers().get(name).and_then(|value| value.to_str().ok());
    let text = format!("<user {}>", header("x-user").unwrap_or("nobody"));
    Response::new(Full::new(text.into()))
}

/// Returns the decision of a provider by path: a status, or no response in time.
async fn judged(path: &str) -> StatusCode {
    match path.rsplit('/').next() {
        _ if path.starts_with("/refuse/") => StatusCode::FORBIDDEN,
        Some("ok") => StatusCode::OK,
        Some("login") => StatusCode::UNAUTHORIZED,
        Some("slow") => {
            tokio::time::sleep(10 * TIMEOUT).await;
            StatusCode::OK
        }
        _ => StatusCode::FORBIDDEN,
    }
}

/// Responds as an HTTP provider does, by path. `who` checks for one required and one forbidden
/// header.
async fn over_http(request: Request<hyper::body::Incoming>) -> Response<Full<Bytes>> {
    let has = |name: &str, value: &str| {
        request.headers().get(name).is_some_and(|found| found.as_bytes() == value.as_bytes())
    };
    let status = match request.uri().path() {
        path if path.ends_with("/who") => {
            let fits = has("x-token", "good") && has("x-from", "mesh") && !has("x-secret", "1");
            if fits { StatusCode::OK } else { StatusCode::FORBIDDEN }
        }
        path => judged(path).await,
    };
    let answer = Response::builder().status(status).header("x-user", "alice");
    answer.header("www-authenticate", "Bearer").body(Full::default()).expect("an answer")
}

/// A gRPC provider that decides on requests by path and on connections by port.
struct OverGrpc {
    allowed_port: u16,
}

#[tonic::async_trait]
impl auth::authorization_server::Authorization for OverGrpc {
    async fn check(
        &self,
        request: tonic::Request<auth::CheckRequest>,
    ) -> Result<tonic::Response<auth::CheckResponse>, tonic::Status> {
        let attributes = request.into_inner().attributes.unwrap_or_default();
        let path = attributes.request.and_then(|request| request.http).map(|http| http.path);
        let status = match path.filter(|path| !path.is_empty()) {
            Some(path) => judged(&path).await,
            None => {
                let port = attributes
                    .destination
                    .and_then(|peer| peer.address)
                    .and_then(|address| address.address)
                    .and_then(|address| match address {
                        core::address::Address::SocketAddress(socket) => socket.port_specifier,
                        _ => None,
                    });
                let allowed =
                    core::socket_address::PortSpecifier::PortValue(self.allowed_port.into());
                if port == Some(allowed) { StatusCode::OK } else { StatusCode::FORBIDDEN }
            }
        };
        let denied = auth::DeniedHttpResponse {
            status: Some(HttpStatus { code: i32::from(status.as_u16()) }),
            ..Default::default()
        };
        let user = core::HeaderValueOption {
            header: Some(core::HeaderValue {
                key: "x-user".into(),
                value: "bob".into(),
                ..Default::default()
            }),
            ..Default::default()
        };
        let allowed = auth::OkHttpResponse { headers: vec![user], ..Default::default() };
        let is_ok = status == StatusCode::OK;
        let answer = if is_ok {
            auth::check_response::HttpResponse::OkResponse(allowed)
        } else {
            auth::check_response::HttpResponse::DeniedResponse(denied)
        };
        let code = if is_ok { tonic::Code::Ok } else { tonic::Code::PermissionDenied };
        let status =
            strait_proto::envoy::google::rpc::Status { code: code as i32, ..Default::default() };
        Ok(tonic::Response::new(auth::CheckResponse {
            status: Some(status),
            http_response: Some(answer),
            ..Default::default()
        }))
    }
}

#[expect(clippy::disallowed_methods, reason = "a test's own server, which ends with the test")]
async fn grpc_server(allowed_port: u16) -> u16 {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("bound").port();
    let service = auth::authorization_server::AuthorizationServer::new(OverGrpc { allowed_port });
    let incoming = tokio_stream::wrappers::TcpListenerStream::new(listener);
    let server = tonic::transport::Server::builder().add_service(service);
    tokio::spawn(server.serve_with_incoming(incoming));
    port
}

/// Returns the providers. No server listens for providers with port 82.
fn providers() -> Value {
    let http = |name: &str, port: u16, more: Value| {
        let mut fields = json!({ "service": SERVICE, "port": port, "timeout": "0.7s" });
        for (field, value) in more.as_object().expect("fields") {
            fields[field] = value.clone();
        }
        json!({ "name": name, "envoyExtAuthzHttp": fields })
    };
    let headers = json!({
        "includeRequestHeadersInCheck": ["X-Token"], "includeAdditionalHeadersInCheck": { "x-from": "mesh" },
        "headersToUpstreamOnAllow": ["x-u*"],
    });
    let grpc = |name: &str, port: u16, open: bool| {
        let fields =
            json!({ "service": SERVICE, "port": port, "timeout": "0.7s", "failOpen": open });
        json!({ "name": name, "envoyExtAuthzGrpc": fields })
    };
    json!([
        http("web", 80, headers),
        // The name of one provider is a prefix of another's (F-2).
        http("web-ns", 80, json!({ "pathPrefix": "/refuse" })),
        http("gone", 82, json!({})),
        http("gone-open", 82, json!({ "failOpen": true })),
        http("gone-busy", 82, json!({ "statusOnError": "503" })),
        grpc("rpc", 81, false),
        grpc("rpc-gone", 83, false),
        grpc("rpc-open", 83, true),
    ])
}

fn policies([http, allowed, refused, shut, open]: [u16; 5]) -> Vec<Value> {
    let paths = |paths: &[&str]| json!([{ "paths": paths, "ports": [http.to_string()] }]);
    let bytes =
        |ports: &[u16]| json!([{ "ports": ports.iter().map(u16::to_string).collect::<Vec<_>>() }]);
    let mut tried = custom_policy("tried", "web-ns", paths(&["/tried/*"]));
    tried["metadata"]["annotations"] = json!({ "istio.io/dry-run": "true" });
    let mut deny = custom_policy("deny", "web", json!([]));
    deny["spec"] = json!({ "action": "DENY", "rules": [{ "to": [{ "operation": {
        "paths": ["*/denied/ok"], "ports": [http.to_string()] } }] }] });
    vec![
        deny,
        tried,
        custom_policy("web", "web", json!([{ "paths": ["/http/*", "/both/*"] }])),
        custom_policy("web-ns", "web-ns", paths(&["/both/*", "/second/*"])),
        custom_policy("gone", "gone", paths(&["/closed/*"])),
        custom_policy("gone-open", "gone-open", paths(&["/open/*"])),
        custom_policy("gone-busy", "gone-busy", paths(&["/busy/*"])),
        custom_policy("nobody", "nobody", paths(&["/unknown/*"])),
        custom_policy("rpc", "rpc", paths(&["/grpc/*"])),
        custom_policy("rpc-gone", "rpc-gone", paths(&["/grpc-closed/*"])),
        custom_policy("rpc-open", "rpc-open", paths(&["/grpc-open/*"])),
        custom_policy("connections", "rpc", bytes(&[allowed, refused])),
        custom_policy("shut", "rpc-gone", bytes(&[shut])),
        custom_policy("open", "rpc-open", bytes(&[open])),
    ]
}

/// Returns the status and the text of a response.
async fn send_get(port: u16, path: &str, headers: &str) -> (u16, String) {
    let stream = tokio::net::TcpStream::connect(("127.0.0.1", port)).await.expect("listens");
    let head = format!("GET {path} HTTP/1.1\r\nhost: web\r\nconnection: close\r\n{headers}\r\n");
    let answer = answered_whole(stream, &head).await;
    let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok());
    (status.unwrap_or_default(), answer)
}

#[tokio::test]
async fn real_envoys_query_real_providers() {
    let cases = [
        ("/free", "", 200, "<user nobody>", "no rule matches"),
        ("/http/ok", "", 200, "<user alice>", "the provider allows"),
        ("/http/ok", "x-user: mallory\r\n", 200, "<user alice>", "the provider sets the user"),
        ("/http/no", "", 403, "", "it denies"),
        ("/http/login", "", 401, "www-authenticate", "the provider's response"),
        ("/http/slow", "", 403, "", "no response in time"),
        (
            "/http/who",
            "x-token: good\r\nx-secret: 1\r\n",
            200,
            "",
            "the provider receives the allowed headers only",
        ),
        ("/http/who", "x-secret: 1\r\n", 403, "", "a required header is missing"),
        ("/http/denied/ok", "", 403, "", "DENY applies after the provider"),
        ("/both/ok", "", 403, "", "one of two denies"),
        ("/second/ok", "", 403, "", "only the other provider denies"),
        ("/tried/ok", "", 200, "<user nobody>", "a dry run queries no provider"),
        ("/closed/ok", "", 403, "", "an unreachable provider fails closed"),
        ("/open/ok", "", 200, "", "failOpen"),
        ("/busy/ok", "", 503, "", "statusOnError"),
        ("/unknown/ok", "", 403, "", "an unknown provider"),
        ("/grpc/ok", "", 200, "<user bob>", "gRPC allows"),
        ("/grpc/no", "", 403, "", "denies"),
        ("/grpc/login", "", 401, "", "with its status"),
        ("/grpc/slow", "", 403, "", "is late"),
        ("/grpc-closed/ok", "", 403, "", "is away"),
        ("/grpc-open/ok", "", 200, "", "an unreachable provider with failOpen"),
        ("//grpc//no", "", 403, "", "a path with repeated slashes"),
    ];
    for envoy in envoys() {
        let ports: [u16; 5] = free_ports();
        let [http, allowed, refused, shut, open] = ports;
        let [nowhere]: [u16; 1] = free_ports();
        let (workload, http_provider) = (server(workload).await, server(over_http).await);
        let grpc_provider = grpc_server(allowed).await;
        let served = ["http-a", "tcp-b", "tcp-c", "tcp-d", "tcp-e"];
        let served = served.into_iter().zip(81..).zip(ports);
        let served = served.map(|((name, number), target)| port(name, number, target)).collect();
        let opa_ports = [
            ("http", 80, http_provider),
            ("grpc", 81, grpc_provider),
            ("http-x", 82, nowhere),
            ("grpc-x", 83, nowhere),
        ];
        let endpoints = opa_ports.map(|(name, _, target)| Endpoint {
            tls_mode: TlsMode::Disabled,
            ..at("10.0.0.9", name, target)
        });
        let opa_ports = opa_ports.map(|(name, number, target)| port(name, number, target));
        let events = [
            with_providers(providers()),
            authorizers(opa_ports.to_vec(), endpoints.to_vec()),
            event_with_root("root", policies(ports)),
        ];
        let (context, proxy) = guarded_by(("shop", "web"), served, events);
        let inbound = listeners(&context, &proxy).remove("virtualInbound").expect("one");
        let at_ports = ports.map(|port| {
            let mut listener = inbound.clone();
            listener["name"] = format!("inbound-{port}").into();
            listener["address"] = at_loopback(port);
            listener
        });
        let mut clusters = BTreeMap::new();
        for (name, cluster) in list_resources(&context, &proxy, ResourceType::Cluster) {
            let assignment = if name.contains(SERVICE) {
                // An endpoint of a cluster is never a loopback address, so it is replaced.
                let assignment =
                    named_resource(&context, &proxy, ResourceType::Endpoint, &name).to_string();
                let here = assignment.replace("10.0.0.9", "127.0.0.1");
                serde_json::from_str(&here).expect("JSON")
            } else if name.starts_with("outbound|") {
                continue;
            } else {
                to_loopback(&name, workload)
            };
            clusters.insert(name, static_cluster(cluster, assignment));
        }
        let bootstrap = bootstrap(at_ports.to_vec(), clusters.into_values().collect());
        validated(&envoy, "providers", &bootstrap);
        let running = Running::start(&envoy, &bootstrap).await;
        for (path, headers, status, part, what) in cases {
            let begun = Instant::now();
            let (found, text) = send_get(http, path, headers).await;
            let place = format!("{}: {path}: {what}: {text}", envoy.display());
            assert_eq!(found, status, "{place}");
            assert!(text.contains(part), "{place}");
            let waited = begun.elapsed();
            assert!(!path.ends_with("slow") || waited >= TIMEOUT / 2, "{waited:?} {place}");
        }
        let connections = [(allowed, 200), (refused, 0), (shut, 0), (open, 200)];
        for (port, status) in connections {
            let (found, text) = send_get(port, "/", "").await;
            assert_eq!(found, status, "{}: {port} of {ports:?}: {text}", envoy.display());
        }
        drop(running);
    }
}
