//! Hostile or broken peers: they affect only their own connections. Frames are written by hand if
//! no regular library would send them.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpSocket, TcpStream};
use tokio::process::Child;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tonic::Code;

use super::mesh::{Member, Proxy, SHOP, SOON, Server, Setup, endpoints_until, wait_until};
use strait_proto::envoy::envoy::service::discovery::v3::DeltaDiscoveryRequest;
use strait_proto::envoy::envoy::service::discovery::v3::aggregated_discovery_service_client::AggregatedDiscoveryServiceClient;
use strait_proto::health::HealthCheckRequest;
use strait_proto::health::health_check_response::ServingStatus;
use strait_proto::health::health_client::HealthClient;
use strait_xds::resource::ResourceType;
use strait_xds_client::{XdsClient, channel};

/// A ready server with one member, `east` in `n1`, which has the pod `web-10-0-0-1.shop`, and the
/// sidecar of that pod.
struct Mesh {
    setup: Setup,
    east: Member,
    server: Server,
    healthy: XdsClient,
    addresses: Vec<String>,
}

impl Mesh {
    async fn start() -> Self {
        let east = Member::start("east", "n1", "198.18.0.1").await;
        east.serve("web", &["10.0.0.1"]);
        let setup = Setup::new();
        setup.join(&[&east]);
        let server = setup.start_ready().await;
        let healthy = server.connect(&setup, &web()).await;
        let addresses = vec!["10.0.0.1".to_owned()];
        let mut mesh = Self { setup, east, server, healthy, addresses };
        mesh.still_serves().await;
        mesh
    }

    /// Checks that a change reaches the proxy that was connected before.
    async fn still_serves(&mut self) {
        self.addresses.push(format!("10.0.0.{}", self.addresses.len() + 1));
        let addresses: Vec<&str> = self.addresses.iter().map(String::as_str).collect();
        self.east.serve("web", &addresses);
        let expected: Vec<(String, u32)> =
            addresses.iter().map(|address| (format!("{address}:8080"), 1)).collect();
        let expected: Vec<(&str, u32)> =
            expected.iter().map(|(address, weight)| (address.as_str(), *weight)).collect();
        endpoints_until(&self.healthy, "web", &expected).await;
    }

    fn certificate(&self) -> Arc<ClientConfig> {
        self.setup.certificate(SHOP, "web")
    }

    /// Opens a connection with HTTP/2, for hand-written frames.
    async fn raw(&self) -> TlsStream<TcpStream> {
        let socket = TcpStream::connect(self.server.bound.xds).await.expect("connected");
        let name = ServerName::try_from("localhost").expect("valid");
        let connector = TlsConnector::from(self.certificate());
        let mut stream = connector.connect(name, socket).await.expect("a handshake");
        stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.expect("written");
        stream.write_all(&frame(SETTINGS, 0, 0, &[])).await.expect("written");
        stream.flush().await.expect("written");
        stream
    }

    async fn closed(&self, reason: &str) -> bool {
        let (_, metrics) = self.server.admin.text("/metrics").await;
        metrics.contains(&format!("strait_xds_streams_closed_total{{reason=\"{reason}\"}}"))
    }
}

/// Returns the sidecar of the pod.
fn web() -> Proxy {
    let (name, account, ip) = ("web-10-0-0-1", "web", "10.0.0.1".to_owned());
    Proxy { name, account, ip, ..Proxy::sidecar("east") }
}

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const CONTINUATION: u8 = 9;
const END_HEADERS: u8 = 4;

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("short").to_be_bytes();
    let mut bytes = length[1..].to_vec();
    bytes.extend([kind, flags]);
    bytes.extend(stream.to_be_bytes());
    bytes.extend(payload);
    bytes
}

/// Returns the headers of an ADS call, without compression.
fn call() -> Vec<u8> {
    let path = "/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources";
    let fields = [
        (":method", "POST"),
        (":scheme", "https"),
        (":authority", "localhost"),
        (":path", path),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
    ];
    let mut block = Vec::new();
    for (name, value) in fields {
        block.push(0);
        for text in [name, value] {
            block.push(u8::try_from(text.len()).expect("less than 127"));
            block.extend(text.as_bytes());
        }
    }
    block
}

/// Writes `frames` until the peer closes the connection. Returns whether it did.
async fn flood(stream: &mut TlsStream<TcpStream>, frames: impl Iterator<Item = Vec<u8>>) -> bool {
    let (mut read, mut write) = tokio::io::split(stream);
    let written = async {
        for bytes in frames {
            if write.write_all(&bytes).await.is_err() {
                break;
            }
        }
        std::future::pending::<()>().await;
    };
    let ended = async {
        let mut buffer = [0; 4096];
        while matches!(read.read(&mut buffer).await, Ok(count) if count > 0) {}
    };
    tokio::select! {
        () = written => false,
        ended = tokio::time::timeout(SOON, ended) => ended.is_ok(),
    }
}

#[tokio::test]
async fn flood_of_frames_closes_its_own_connection() {
    let mut mesh = Mesh::start().await;
    fn stream(number: u32) -> u32 {
        2 * number + 1
    }
    let resets = (0..20_000).flat_map(|number| {
        let reset = frame(RST_STREAM, 0, stream(number), &8_u32.to_be_bytes());
        [frame(HEADERS, END_HEADERS, stream(number), &call()), reset]
    });
    let endless_head = std::iter::once(frame(HEADERS, 0, 1, &call()))
        .chain((0..20_000).map(|_| frame(CONTINUATION, 0, 1, &[0, 1, b'a', 1, b'b'])));
    let calls = (0..20_000).map(|number| frame(HEADERS, END_HEADERS, stream(number), &call()));
    let headless = std::iter::once(frame(DATA, 0, 1, &[0; 100]));
    type Frames = Box<dyn Iterator<Item = Vec<u8>> + Send>;
    let floods: [(&str, Frames); 4] = [
        ("resets", Box::new(resets)),
        ("an endless head", Box::new(endless_head)),
        ("calls over the limit", Box::new(calls)),
        ("data of no stream", Box::new(headless)),
    ];
    for (what, frames) in floods {
        let mut raw = mesh.raw().await;
        assert!(flood(&mut raw, frames).await, "{what}");
        mesh.still_serves().await;
    }
}

#[tokio::test]
async fn unread_responses_to_pings_and_settings_affect_only_their_sender() {
    let mut mesh = Mesh::start().await;
    for bytes in [frame(PING, 0, 0, &[0; 8]), frame(SETTINGS, 0, 0, &[])] {
        let mut raw = mesh.raw().await;
        let flood = bytes.repeat(1000);
        // Once the server's responses fill the socket, it reads nothing more from it.
        let blocked = async {
            while let Ok(written) =
                tokio::time::timeout(Duration::from_millis(300), raw.write_all(&flood)).await
            {
                if written.is_err() {
                    break;
                }
            }
        };
        tokio::time::timeout(SOON, blocked).await.expect("reading stops");
        mesh.still_serves().await;
    }
}

#[tokio::test]
async fn unfinished_handshakes_do_not_delay_other_sources() {
    let mut mesh = Mesh::start().await;
    let mut silent = Vec::new();
    for _ in 0..300 {
        let socket = TcpSocket::new_v4().expect("a socket");
        socket.bind(SocketAddr::from(([127, 0, 0, 2], 0))).expect("an address of our own");
        silent.push(socket.connect(mesh.server.bound.xds).await.expect("connected"));
    }
    let other = Proxy { name: "web-other", ip: "10.0.0.8".into(), ..web() };
    // Twice as fast as the timeout of the handshakes in progress.
    let connected = mesh.server.connect(&mesh.setup, &other);
    tokio::time::timeout(Duration::from_secs(4), connected).await.expect("not held up");
    mesh.still_serves().await;
    // All of them are closed in the end.
    let mut byte = [0];
    for mut socket in silent {
        let read = tokio::time::timeout(SOON, socket.read(&mut byte)).await.expect("in time");
        assert!(matches!(read, Ok(0) | Err(_)), "{read:?}");
    }
}

#[tokio::test]
async fn diagnostic_request_does_not_affect_the_proxy_stream() {
    let mesh = Mesh::start().await;
    let channel = channel(mesh.server.bound.xds, "localhost", mesh.certificate()).await;
    let mut client = AggregatedDiscoveryServiceClient::new(channel.expect("connected"));
    let request = |type_url: &str| DeltaDiscoveryRequest {
        node: Some(web().node()),
        type_url: type_url.to_owned(),
        ..Default::default()
    };
    let agents =
        [ResourceType::Cluster.url(), "istio.io/debug/syncz", ResourceType::Listener.url()];
    let requests = tokio_stream::iter(agents.map(request));
    let requests = tokio_stream::StreamExt::chain(requests, tokio_stream::pending());
    let mut responses =
        client.delta_aggregated_resources(requests).await.expect("served").into_inner();
    let mut kinds = Vec::new();
    while kinds.len() < 3 {
        let next = tokio::time::timeout(SOON, responses.message()).await.expect("in time");
        kinds.push(next.expect("served").expect("a response").type_url);
    }
    kinds.sort();
    let mut expected = agents;
    expected.sort();
    assert_eq!(kinds, expected);
    // The number of requests is limited.
    let requests = tokio_stream::iter(std::iter::repeat_n(request("istio.io/debug/syncz"), 9));
    let requests = tokio_stream::StreamExt::chain(requests, tokio_stream::pending());
    let mut responses =
        client.delta_aggregated_resources(requests).await.expect("served").into_inner();
    let status = loop {
        match responses.message().await {
            Ok(answer) => drop(answer.expect("it goes on")),
            Err(status) => break status,
        }
    };
    assert_eq!(status.code(), Code::ResourceExhausted);
}

#[tokio::test]
async fn request_for_unknown_resources_reports_them_as_removed() {
    let mesh = Mesh::start().await;
    let unknown = "type.googleapis.com/no.such.Type";
    let secret = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret";
    for (type_url, names) in [(unknown, vec![]), (unknown, vec!["a"]), (secret, vec!["a", "b"])] {
        let names: Vec<String> = names.into_iter().map(str::to_owned).collect();
        let channel = channel(mesh.server.bound.xds, "localhost", mesh.certificate()).await;
        let mut client = AggregatedDiscoveryServiceClient::new(channel.expect("connected"));
        let request = DeltaDiscoveryRequest {
            node: Some(web().node()),
            type_url: type_url.to_owned(),
            resource_names_subscribe: names.clone(),
            ..Default::default()
        };
        let requests = tokio_stream::iter([request]);
        let requests = tokio_stream::StreamExt::chain(requests, tokio_stream::pending());
        let mut responses =
            client.delta_aggregated_resources(requests).await.expect("served").into_inner();
        let next = tokio::time::timeout(SOON, responses.message()).await.expect("in time");
        let response = next.expect("served").expect("a response");
        assert_eq!((&*response.type_url, response.removed_resources), (type_url, names));
        assert!(response.resources.is_empty() && !response.nonce.is_empty());
    }
}

#[tokio::test]
async fn health_service_is_on_the_same_port() {
    let mesh = Mesh::start().await;
    let channel = channel(mesh.server.bound.xds, "localhost", mesh.certificate()).await;
    let mut client = HealthClient::new(channel.expect("connected"));
    let health_check = |service: &str| HealthCheckRequest { service: service.to_owned() };
    let ads = "envoy.service.discovery.v3.AggregatedDiscoveryService";
    for service in ["", ads] {
        let answer = client.check(health_check(service)).await.expect("known").into_inner();
        assert_eq!(answer.status(), ServingStatus::Serving, "{service:?}");
    }
    assert_eq!(
        client.check(health_check("no.such")).await.expect_err("unknown").code(),
        Code::NotFound
    );
    let mut watched = client.watch(health_check("")).await.expect("served").into_inner();
    let first = watched.message().await.expect("served").expect("a status");
    assert_eq!(first.status(), ServingStatus::Serving);
}

#[tokio::test]
async fn calls_without_grpc_fail_alone() {
    let mut mesh = Mesh::start().await;
    let channel = channel(mesh.server.bound.xds, "localhost", mesh.certificate()).await;
    let mut channel = channel.expect("connected");
    let ads = "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources";
    for (method, path, content_type, status) in [
        ("GET", ads, "application/grpc", 405),
        ("POST", ads, "text/plain", 415),
        // The gRPC status for an unknown method.
        ("POST", "/no/such", "application/grpc", 200),
        ("POST", &format!("/{ads}"), "application/grpc", 200),
    ] {
        let request = http::Request::builder().method(method).uri(path);
        let request = request.header("content-type", content_type);
        let request = request.body(tonic::body::Body::empty()).expect("a request");
        let ready =
            std::future::poll_fn(|context| tower::Service::poll_ready(&mut channel, context));
        ready.await.expect("ready");
        let answer = tower::Service::call(&mut channel, request).await.expect("an answer");
        assert_eq!(answer.status().as_u16(), status, "{method} {path}");
        let code = answer.headers().get("grpc-status").map(|code| code.as_bytes().to_vec());
        assert_eq!(code, (status == 200).then(|| b"12".to_vec()), "{method} {path}");
    }
    mesh.still_serves().await;
    assert!(!mesh.closed("panic").await);
}

/// The program as a separate process with limits; ends with the test.
struct Process {
    child: Child,
    xds: SocketAddr,
    admin: SocketAddr,
    token: String,
    log: PathBuf,
}

impl Process {
    /// Starts the program from a shell that has run `limits`.
    async fn start(setup: &Setup, limits: &str) -> Self {
        let log = setup.path("log");
        let limited = format!("{limits}; exec \"$@\"");
        let mut command = tokio::process::Command::new("sh");
        command.args(["-c", &limited, "sh", env!("CARGO_BIN_EXE_strait"), "serve"]);
        command.args(setup.arguments()).stdout(Stdio::piped());
        command.stderr(std::fs::File::create(&log).expect("a log"));
        let mut child = command.kill_on_drop(true).spawn().expect("started");
        let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        let line = lines.next_line().await.expect("readable").expect("it listens");
        let ports: Value = serde_json::from_str(&line).expect("JSON");
        let address =
            |name: &str| ports[name].as_str().and_then(|text| text.parse().ok()).expect("a port");
        let token = std::fs::read_to_string(setup.path("state").join("admin-token"));
        let token = token.expect("a token").trim().to_owned();
        let (xds, admin) = (address("xds"), address("admin"));
        let process = Self { child, xds, admin, token, log };
        wait_until(SOON, async || process.answers("/readyz").await).await;
        process
    }

    /// Sends a request as a probe does: on a new connection, with a short timeout.
    async fn get(&self, path: &str) -> Result<String, String> {
        let exchange = async {
            let mut socket = TcpStream::connect(self.admin).await?;
            let (host, token) = (self.admin, &self.token);
            let head = format!(
                "GET {path} HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {token}\r\nConnection: close\r\n\r\n"
            );
            socket.write_all(head.as_bytes()).await?;
            let mut answer = String::new();
            socket.read_to_string(&mut answer).await.map(|_| answer)
        };
        let answer = tokio::time::timeout(Duration::from_secs(2), exchange).await;
        answer.map_err(|_| format!("{path}: no answer"))?.map_err(|error| error.to_string())
    }

    async fn answers(&self, path: &str) -> Result<(), String> {
        let answer = self.get(path).await?;
        if answer.starts_with("HTTP/1.1 200") { Ok(()) } else { Err(answer) }
    }

    fn id(&self) -> u32 {
        self.child.id().expect("it runs")
    }

    /// Returns the CPU time so far, in clock ticks.
    fn ticks(&self) -> u64 {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.id())).expect("it runs");
        let (_, fields) = stat.rsplit_once(')').expect("a name");
        let fields: Vec<&str> = fields.split_whitespace().collect();
        fields[11..13].iter().map(|field| field.parse::<u64>().expect("ticks")).sum()
    }
}

/// Opens an idle connection from an address of this host.
async fn silent(from: [u8; 4], to: SocketAddr) -> TcpStream {
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.bind((IpAddr::from(from), 0).into()).expect("an address of this host");
    let limited = tokio::time::timeout(SOON, socket.connect(to));
    limited.await.expect("in time").expect("connected")
}

#[tokio::test]
async fn half_open_requests_and_few_descriptors_do_not_affect_health_and_new_streams() {
    // The limit of the test itself.
    strait_base::process::raise_descriptors().expect("allowed");
    let east = Member::start("east", "n1", "198.18.0.1").await;
    east.serve("web", &["10.0.0.1"]);
    let setup = Setup::new();
    setup.join(&[&east]);
    let process = Process::start(&setup, "ulimit -n 96").await;
    let mut sockets = Vec::new();
    for round in 0..3 {
        for _ in 0..1000 {
            let mut socket = TcpStream::connect(process.admin).await.expect("connected");
            // A connection that had to make room may be closed already.
            let _ = socket.write_all(b"GET /livez HTTP/1.1\r\nHost").await;
            sockets.push(socket);
        }
        // Handshakes that never begin, from another source address than the proxies.
        for _ in 0..100 {
            sockets.push(silent([127, 0, 0, 2], process.xds).await);
        }
        process.answers("/livez").await.expect("it is alive");
        process.answers("/readyz").await.expect("it is ready");
        let tls = setup.certificate(SHOP, "web");
        let channel = channel(process.xds, "localhost", tls).await.expect("let in");
        let tasks = strait_base::task::Supervisor::new();
        let options = strait_xds_client::Options::default();
        let client = XdsClient::open(channel, web().node(), options, &tasks).await;
        let client = client.unwrap_or_else(|error| panic!("round {round}: {error}"));
        endpoints_until(&client, "web", &[("10.0.0.1:8080", 1)]).await;
    }
    let push = process.get("/debug/push").await.expect("an answer");
    assert!(push.contains("\"most\": 12") && push.contains("\"limit\": 96"), "{push}");
}

#[tokio::test]
async fn server_without_file_descriptors_reports_it_and_recovers() {
    let setup = Setup::new();
    let process = Process::start(&setup, "ulimit -n 64").await;
    let tls = setup.certificate(SHOP, "web");
    let check = async || {
        let channel = channel(process.xds, "localhost", Arc::clone(&tls)).await;
        let mut client = HealthClient::new(channel.map_err(|error| error.to_string())?);
        let answer = client.check(HealthCheckRequest::default()).await;
        answer.map_err(|status| status.to_string())
    };
    // Before the timeout of the handshakes that use a descriptor.
    let serves = async || {
        let answer = tokio::time::timeout(Duration::from_secs(2), check()).await;
        answer.unwrap_or_else(|_| Err("no answer".to_owned()))
    };
    wait_until(SOON, serves).await;
    let mut sockets = Vec::new();
    // The number of connections per source address is limited.
    for source in 2..12 {
        for _ in 0..16 {
            sockets.push(silent([127, 0, 0, source], process.xds).await);
        }
    }
    serves().await.expect_err("no descriptor is left for connections");
    let (before, mut tick) = (process.ticks(), tokio::time::interval(Duration::from_millis(50)));
    for _ in 0..10 {
        tick.tick().await;
        // Its descriptors are reserved.
        wait_until(SOON, async || process.answers("/livez").await).await;
    }
    assert!(process.ticks() - before < 25, "the server is idle while it cannot accept");
    let metrics = wait_until(SOON, async || process.get("/metrics").await).await;
    let exhausted = metrics
        .lines()
        .find_map(|line| line.strip_prefix("strait_descriptors_exhausted_total "))
        .expect("it is counted");
    assert_ne!(exhausted, "0");
    let log = std::fs::read_to_string(&process.log).expect("a log");
    assert_eq!(log.matches("no file descriptor is free").count(), 1, "{log}");
    assert!(log.contains("STR0810") && log.contains("\"limit\":64"), "{log}");
    drop(sockets);
    wait_until(SOON, serves).await;
}

/// Removes the right to lock memory beyond the limit, and sets a limit below the size of the program.
const FEW_LOCKED_PAGES: &str = "ulimit -l 64
    if [ \"$(id -u)\" = 0 ]; then exec setpriv --bounding-set -ipc_lock \"$@\"; fi";

#[tokio::test]
async fn program_that_cannot_be_locked_in_memory_warns_once_and_serves() {
    let east = Member::start("east", "n1", "198.18.0.1").await;
    east.serve("web", &["10.0.0.1"]);
    let setup = Setup::new().with(&["--lock-memory"]);
    setup.join(&[&east]);
    let process = Process::start(&setup, FEW_LOCKED_PAGES).await;
    process.answers("/debug/clusters").await.expect("it serves");
    let log = std::fs::read_to_string(&process.log).expect("a log");
    let warnings: Vec<&str> = log.lines().filter(|line| line.contains("STR0519")).collect();
    assert_eq!(warnings.len(), 1, "{log}");
    assert!(warnings[0].contains("its limit is 65536 bytes (RLIMIT_MEMLOCK)"), "{warnings:?}");
}
