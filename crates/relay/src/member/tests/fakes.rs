//! A hub, an API server and a proxy on loopback.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use futures::SinkExt;
use futures::channel::mpsc as body_channel;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::client::conn::http2::SendRequest;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::ServerConfig;
use rustls::server::WebPkiClientVerifier;
use rustls_pki_types::CertificateDer;
use serde_json::{Value, json};
use strait_base::lock::lock;
use strait_base::task::Supervisor;
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot, watch};
use tokio_rustls::TlsAcceptor;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer as _, X509Certificate};

use super::super::testing::TestCa;
use super::{HOUR, HostPort, NAME};
use crate::hub::{RelayClaims, RelayHub, ReplicaName};

type FakeBody = BoxBody<Bytes, Infallible>;
/// Sends the parts of a watch.
type EventSender = body_channel::Sender<Result<Frame<Bytes>, Infallible>>;

fn tls(ca: &TestCa, protocols: &[&[u8]], client_ca: Option<&TestCa>) -> TlsAcceptor {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let (certificate, key) = ca.server("127.0.0.1");
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .expect("versions");
    let builder = match client_ca {
        None => builder.with_no_client_auth(),
        Some(client_ca) => {
            let mut roots = rustls::RootCertStore::empty();
            let pem = strait_kube_client::CaBundle::read(client_ca.root.as_bytes());
            roots.add_parsable_certificates(pem.certificates);
            let verifier = WebPkiClientVerifier::builder_with_provider(roots.into(), provider)
                .allow_unauthenticated()
                .build();
            builder.with_client_cert_verifier(verifier.expect("a verifier"))
        }
    };
    let mut config = builder.with_single_cert(vec![certificate], key).expect("a pair");
    config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
    TlsAcceptor::from(Arc::new(config))
}

async fn listen() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    (listener, address)
}

fn full(text: impl Into<Bytes>) -> FakeBody {
    Full::new(text.into()).boxed()
}

fn respond(status: u16, body: impl Into<Bytes>) -> Response<FakeBody> {
    let response = Response::builder().status(status).header("content-type", "application/json");
    response.body(full(body)).expect("a response")
}

/// A hub that issues certificates for the cluster `west`.
pub(super) struct FakeHub {
    pub(super) ca: Arc<TestCa>,
    pub(super) address: HostPort,
    pub(super) connections: mpsc::UnboundedReceiver<HubConnection>,
    state: Arc<HubState>,
}

struct HubState {
    token: Mutex<String>,
    enrolments: Mutex<Vec<Value>>,
    renewals: AtomicUsize,
    /// Serves connections instead of the test.
    relay_hub: Mutex<Option<Arc<RelayHub>>>,
}

impl FakeHub {
    pub(super) async fn start(tasks: &Supervisor) -> Self {
        let (listener, address) = listen().await;
        let ca = Arc::new(TestCa::new());
        let acceptor = tls(&ca, &[b"strait-relay/1", b"h2"], Some(&ca));
        let state = Arc::new(HubState {
            token: Mutex::new("invitation".to_owned()),
            enrolments: Mutex::default(),
            renewals: AtomicUsize::new(0),
            relay_hub: Mutex::default(),
        });
        let (sender, connections) = mpsc::unbounded_channel();
        let (all, shared, authority) = (tasks.clone(), Arc::clone(&state), Arc::clone(&ca));
        tasks.spawn("hub", async move {
            loop {
                let (tcp, remote) = listener.accept().await.expect("a connection");
                let (acceptor, sender) = (acceptor.clone(), sender.clone());
                let (state, ca) = (Arc::clone(&shared), Arc::clone(&authority));
                let connections = all.clone();
                all.spawn("connection", async move {
                    let Ok(stream) = acceptor.accept(tcp).await else { return };
                    let session = stream.get_ref().1;
                    let certificate = session.peer_certificates().map(|chain| chain[0].clone());
                    let certificate = certificate.map(CertificateDer::into_owned);
                    if session.alpn_protocol() == Some(b"h2") {
                        let is_certified = certificate.is_some();
                        let service = service_fn(move |request| {
                            let (state, ca) = (Arc::clone(&state), Arc::clone(&ca));
                            async move { state.certify(request, &ca, is_certified).await }
                        });
                        let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                        let _ = server.serve_connection(TokioIo::new(stream), service).await;
                        return;
                    }
                    let relay_hub = lock(&state.relay_hub).clone();
                    if let Some(hub) = relay_hub {
                        let expires = std::time::SystemTime::now();
                        let cluster = "west".into();
                        let claims = RelayClaims { cluster, generation: 1, expires, remote };
                        let replica = ReplicaName { name: "strait-0".to_owned(), count: 1 };
                        let replica = watch::channel(replica).1;
                        hub.serve(stream, &claims, &replica, std::future::pending()).await;
                        return;
                    }
                    let handshake = hyper::client::conn::http2::handshake(
                        TokioExecutor::new(),
                        TokioIo::new(stream),
                    );
                    let Ok((requests, driver)) = handshake.await else { return };
                    let (cut, is_cut) = oneshot::channel::<()>();
                    connections.spawn("driver", async move {
                        tokio::select! {
                            _ = driver => {}
                            _ = is_cut => {}
                        }
                    });
                    let certificate = certificate.expect("a certificate");
                    let _ = sender.send(HubConnection { requests, certificate, _cut: cut });
                });
            }
        });
        let address = address.to_string().parse().expect("an address");
        Self { ca, address, connections, state }
    }

    /// Gives the connections of relays to `hub`.
    pub(super) fn serve_by(&self, hub: Arc<RelayHub>) {
        *lock(&self.state.relay_hub) = Some(hub);
    }

    pub(super) fn accept_token(&self, token: &str) {
        token.clone_into(&mut lock(&self.state.token));
    }

    /// Returns the bodies of all requests to enrol.
    pub(super) fn enrolments(&self) -> Vec<Value> {
        lock(&self.state.enrolments).clone()
    }

    pub(super) fn renewals(&self) -> usize {
        self.state.renewals.load(Ordering::SeqCst)
    }
}

impl HubState {
    async fn certify(
        &self,
        request: Request<Incoming>,
        ca: &TestCa,
        is_certified: bool,
    ) -> hyper::Result<Response<FakeBody>> {
        let path = request.uri().path().to_owned();
        let body = request.into_body().collect().await?.to_bytes();
        let body: Value = serde_json::from_slice(&body).expect("JSON");
        let is_permitted = match &*path {
            "/strait/relay/v1/enrol" => {
                lock(&self.enrolments).push(body.clone());
                body["token"] == **lock(&self.token)
            }
            "/strait/relay/v1/renew" => {
                self.renewals.fetch_add(1, Ordering::SeqCst);
                is_certified
            }
            _ => return Ok(respond(404, "")),
        };
        if !is_permitted {
            let error =
                json!({"error": {"code": "STR0343", "message": "the invitation is unknown"}});
            return Ok(respond(401, error.to_string()));
        }
        let csr = body["csr"].as_str().expect("a request");
        let issued = ca.certify(csr, &[NAME], HOUR);
        Ok(respond(200, serde_json::to_vec(&issued).expect("JSON")))
    }
}

/// A connection of a relay. It ends when this value is dropped.
pub(super) struct HubConnection {
    requests: SendRequest<Full<Bytes>>,
    pub(super) certificate: CertificateDer<'static>,
    _cut: oneshot::Sender<()>,
}

/// The body of a response, part by part.
pub(super) struct OpenBody(Incoming);

impl HubConnection {
    /// Returns the URI names of the relay's certificate.
    pub(super) fn names(&self) -> Vec<String> {
        let (_, certificate) = X509Certificate::from_der(&self.certificate).expect("readable");
        let names = certificate.subject_alternative_name().expect("readable").expect("names");
        let uri = |name: &GeneralName<'_>| match name {
            GeneralName::URI(uri) => (*uri).to_owned(),
            other => panic!("{other:?}"),
        };
        names.value.general_names.iter().map(uri).collect()
    }

    async fn exchange(
        &mut self,
        method: &str,
        target: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> Response<Incoming> {
        let uri = format!("https://relay{target}");
        let mut request = Request::builder().method(method).uri(uri);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Full::new(Bytes::from(body.to_owned()))).expect("a request");
        self.requests.send_request(request).await.expect("a response")
    }

    pub(super) async fn send(
        &mut self,
        method: &str,
        target: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> (StatusCode, String) {
        let response = self.exchange(method, target, headers, body).await;
        let status = response.status();
        let body = response.into_body().collect().await.expect("a body").to_bytes();
        (status, String::from_utf8(body.to_vec()).expect("text"))
    }

    pub(super) async fn get(
        &mut self,
        target: &str,
        headers: &[(&str, &str)],
    ) -> (StatusCode, String) {
        self.send("GET", target, headers, "").await
    }

    pub(super) async fn open(&mut self, target: &str) -> OpenBody {
        let response = self.exchange("GET", target, &[], "").await;
        assert_eq!(response.status(), StatusCode::OK);
        OpenBody(response.into_body())
    }
}

impl OpenBody {
    pub(super) async fn next(&mut self) -> Option<String> {
        let frame = self.0.frame().await?.expect("a frame");
        Some(String::from_utf8(frame.into_data().expect("data").to_vec()).expect("text"))
    }
}

/// A request that arrived at the API server.
#[derive(Debug, Clone)]
pub(super) struct RecordedRequest {
    pub(super) method: String,
    pub(super) target: String,
    headers: HeaderMap,
}

impl RecordedRequest {
    /// Returns the headers, sorted by name.
    pub(super) fn headers(&self) -> Vec<(&str, &str)> {
        let pairs = self.headers.iter();
        let mut pairs: Vec<_> =
            pairs.map(|(name, value)| (name.as_str(), value.to_str().expect("text"))).collect();
        pairs.sort_unstable();
        pairs
    }
}

/// An API server that records requests.
pub(super) struct FakeApiServer {
    pub(super) url: String,
    pub(super) root: String,
    state: Arc<ApiState>,
}

struct ApiState {
    requests: Mutex<Vec<RecordedRequest>>,
    connections: AtomicUsize,
    interruptions: AtomicUsize,
    events: mpsc::UnboundedSender<EventSender>,
    watches: tokio::sync::Mutex<mpsc::UnboundedReceiver<EventSender>>,
    open: tokio::sync::Mutex<Option<EventSender>>,
}

impl FakeApiServer {
    pub(super) async fn start(tasks: &Supervisor) -> Self {
        let (listener, address) = listen().await;
        let ca = TestCa::new();
        let acceptor = tls(&ca, &[b"h2"], None);
        let (events, watches) = mpsc::unbounded_channel();
        let state = Arc::new(ApiState {
            requests: Mutex::default(),
            connections: AtomicUsize::new(0),
            interruptions: AtomicUsize::new(0),
            events,
            watches: tokio::sync::Mutex::new(watches),
            open: tokio::sync::Mutex::new(None),
        });
        let (all, shared) = (tasks.clone(), Arc::clone(&state));
        tasks.spawn("API server", async move {
            loop {
                let (tcp, _) = listener.accept().await.expect("a connection");
                shared.connections.fetch_add(1, Ordering::SeqCst);
                let (acceptor, state) = (acceptor.clone(), Arc::clone(&shared));
                all.spawn("connection", async move {
                    let Ok(stream) = acceptor.accept(tcp).await else { return };
                    let service = service_fn(move |request| {
                        let state = Arc::clone(&state);
                        async move { state.respond(request).await }
                    });
                    let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                    let _ = server.serve_connection(TokioIo::new(stream), service).await;
                });
            }
        });
        Self { url: format!("https://{address}"), root: ca.root, state }
    }

    pub(super) fn last_request(&self) -> RecordedRequest {
        lock(&self.state.requests).last().cloned().expect("a request")
    }

    pub(super) fn connections(&self) -> usize {
        self.state.connections.load(Ordering::SeqCst)
    }

    /// Interrupts the next requests without a response.
    pub(super) fn interrupt(&self, requests: usize) {
        self.state.interruptions.store(requests, Ordering::SeqCst);
    }

    /// Sends an event to the first watch.
    pub(super) async fn send_event(&self, event: &'static str) {
        let mut open = self.state.open.lock().await;
        if open.is_none() {
            *open = self.state.watches.lock().await.recv().await;
        }
        let watch = open.as_mut().expect("a watch");
        watch.send(Ok(Frame::data(Bytes::from_static(event.as_bytes())))).await.expect("sent");
    }
}

impl ApiState {
    async fn respond(
        &self,
        request: Request<Incoming>,
    ) -> Result<Response<FakeBody>, std::io::Error> {
        let (head, body) = request.into_parts();
        let target = head.uri.path_and_query().expect("a path").to_string();
        let method = head.method.to_string();
        lock(&self.requests).push(RecordedRequest {
            method: method.clone(),
            target: target.clone(),
            headers: head.headers,
        });
        let interrupted =
            self.interruptions
                .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
        if interrupted.is_ok() {
            return Err(std::io::Error::other("interrupted"));
        }
        Ok(match (&*method, head.uri.path()) {
            ("GET", "/version") => respond(200, r#"{"gitVersion":"v1.34.1"}"#),
            ("GET", "/api/v1/namespaces/kube-system") => {
                respond(200, r#"{"metadata":{"uid":"uid-of-west"}}"#)
            }
            ("GET", "/api/v1/pods") if target.contains("watch=1") => {
                let (sender, frames) = body_channel::channel(0);
                let _ = self.events.send(sender);
                let body = StreamBody::new(frames);
                Response::new(BodyExt::boxed(body))
            }
            ("GET", "/api/v1/pods") => respond(200, r#"{"kind":"PodList","items":[]}"#),
            ("GET", "/api/v1/services") => respond(410, r#"{"kind":"Status","code":410}"#),
            ("POST", _) => {
                let body = body.collect().await.map_err(std::io::Error::other)?.to_bytes();
                respond(201, body)
            }
            _ => respond(404, "{}"),
        })
    }
}

/// A proxy that opens every connection.
pub(super) struct FakeProxy {
    pub(super) address: SocketAddr,
    requests: Arc<Mutex<Vec<String>>>,
}

impl FakeProxy {
    pub(super) async fn start(tasks: &Supervisor) -> Self {
        let (listener, address) = listen().await;
        let requests: Arc<Mutex<Vec<String>>> = Arc::default();
        let (all, recorded) = (tasks.clone(), Arc::clone(&requests));
        tasks.spawn("proxy", async move {
            loop {
                let (mut client, _) = listener.accept().await.expect("a connection");
                let recorded = Arc::clone(&recorded);
                all.spawn("connection", async move {
                    let mut head = Vec::new();
                    while !head.ends_with(b"\r\n\r\n") {
                        let Ok(byte) = client.read_u8().await else { return };
                        head.push(byte);
                    }
                    let head = String::from_utf8(head).expect("text");
                    let target = head.split(' ').nth(1).expect("a target").to_owned();
                    lock(&recorded).push(head);
                    let mut server = TcpStream::connect(target).await.expect("the hub");
                    let response = b"HTTP/1.1 200 Connection established\r\n\r\n";
                    client.write_all(response).await.expect("sent");
                    let _ = copy_bidirectional(&mut client, &mut server).await;
                });
            }
        });
        Self { address, requests }
    }

    pub(super) fn requests(&self) -> Vec<String> {
        lock(&self.requests).clone()
    }
}
