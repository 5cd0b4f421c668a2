//! The stream of an MCP client: connects, subscribes, acknowledges responses, and reconnects after
//! its end.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use hyper_util::rt::TokioIo;
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio::sync::mpsc;
use tokio_rustls::TlsConnector;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::{Channel, Endpoint};
use tower::{BoxError, ServiceExt as _};
use tracing::{info, warn};

use super::state::{McpOutcome, McpState};
use super::{McpNode, McpServer, McpTls};
use crate::store::combined::StoreReporter;
use strait_base::codes::{self, Code};
use strait_base::mass_deletion::CONFIRM_AFTER;
use strait_base::source_status::SourceFacts;
use strait_kube_client::{ApiError, Backoff, one_line, tcp_to_named};
use strait_model::Collection;
use strait_proto::envoy::envoy::config::core::v3 as core;
use strait_proto::envoy::envoy::service::discovery::v3::aggregated_discovery_service_client::AggregatedDiscoveryServiceClient;
use strait_proto::envoy::google::protobuf::{Struct, Value, value};

/// The time limit of connecting, including the TLS handshake.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);
/// A connection that is quiet for this long is pinged. TCP keepalive detects dead peers long
/// before.
const PING_AFTER: Duration = Duration::from_secs(330);
/// gRPC servers with the default configuration close connections that are pinged more often ("too
/// many pings").
const PINGS_ALLOWED_AFTER: Duration = Duration::from_secs(300);
const _: () = assert!(PING_AFTER.as_secs() > PINGS_ALLOWED_AFTER.as_secs());
/// The time limit of the response to a ping.
const PONG_LIMIT: Duration = Duration::from_secs(10);
/// The time limit of the response for each type. Types without a response by then are not served.
const ANSWER: Duration = Duration::from_secs(5);
/// Maximum size of a response in bytes.
const MESSAGE_MAX: usize = 64 << 20;
/// Capacity of the queue of requests: one for each type, and the reply to a response. A full queue
/// makes the reader wait, and with it the server.
pub(super) const REQUESTS: usize = 32;

/// Why there is no stream.
#[derive(Debug)]
struct McpStreamEnd {
    fact: String,
    code: &'static Code,
}

/// Follows a server until dropped. `remembered` is its content from before.
pub(in crate::store) async fn run(server: McpServer, line: StoreReporter, remembered: Collection) {
    let mut state = McpState::with_remembered(&remembered);
    let mut facts = SourceFacts::starting("mcp", format!("xds://{}", server.address));
    facts.objects = remembered.len();
    let mut failures = Backoff::new(Duration::from_millis(500), Duration::from_secs(30));
    // Whether any contents have been published. Their receiver then reports that the source has
    // been read.
    let mut published = false;
    loop {
        let began = Instant::now();
        let ended = stream(&server, &mut state, &mut facts, &mut published, &line).await;
        if facts.trouble.is_none() {
            let (code, next) = (ended.code, ended.code.next);
            warn!(server = server.address, reason = ended.fact, %code, next, "no stream from the config source; its last known state stays in use");
        }
        facts.failed(SystemTime::now(), ended.fact, ended.code);
        line.report(&facts);
        failures.record_duration(began.elapsed());
        let doubts = state.unconfirmed_lists();
        let pause = match std::mem::replace(&mut facts.doubts, doubts) == doubts {
            true => failures.pause(rand::random()),
            false => CONFIRM_AFTER,
        };
        tokio::time::sleep(pause).await;
    }
}

/// Follows one stream to its end.
async fn stream(
    server: &McpServer,
    state: &mut McpState,
    facts: &mut SourceFacts,
    published: &mut bool,
    line: &StoreReporter,
) -> McpStreamEnd {
    let unreachable =
        |fact: String| McpStreamEnd { fact: one_line(&fact), code: &codes::MCP_UNREACHABLE };
    let channel = match connect(server).await {
        Ok(channel) => channel,
        Err(ended) => return ended,
    };
    let (requests, request_receiver) = mpsc::channel(REQUESTS);
    let mut node = Some(node(&server.node));
    for mut request in state.begin() {
        request.node = node.take();
        // There are fewer requests than the capacity.
        let _ = requests.try_send(request);
    }
    let mut client =
        AggregatedDiscoveryServiceClient::new(channel).max_decoding_message_size(MESSAGE_MAX);
    let opened = client.stream_aggregated_resources(ReceiverStream::new(request_receiver)).await;
    let mut responses = match opened {
        Ok(responses) => responses.into_inner(),
        Err(status) => {
            return unreachable(format!("the server rejected the stream: {}", status.message()));
        }
    };
    let mut settled = false;
    let settle = tokio::time::sleep(ANSWER);
    tokio::pin!(settle);
    loop {
        let response = tokio::select! {
            response = responses.message() => response,
            () = &mut settle, if !settled => {
                settled = true;
                *published = true;
                state.settle();
                publish(state, facts, line);
                continue;
            }
        };
        let response = match response {
            Ok(Some(response)) => response,
            Ok(None) => return unreachable("the server ended the stream".into()),
            Err(status) => return unreachable(format!("the stream broke: {}", status.message())),
        };
        let outcome = state.answer(&response, Instant::now());
        if let McpOutcome::Doubtful(fact) = outcome {
            return McpStreamEnd { fact, code: &codes::MASS_WITHDRAWAL };
        }
        if let McpOutcome::Yes(request) = outcome {
            if facts.trouble.is_some() {
                info!(server = server.address, "connected to the config source again");
            }
            facts.responded(SystemTime::now());
            if let Some(refused) = &request.error_detail {
                let code = &codes::MCP_ODD;
                warn!(server = server.address, reason = refused.message, %code, next = code.next, "invalid objects are rejected");
            }
            if requests.send(*request).await.is_err() {
                return unreachable("the server accepts no further requests".into());
            }
            // The first stream must deliver all types; later ones update existing contents.
            *published |= settled || state.has_all_responses();
            if *published {
                publish(state, facts, line);
            }
        }
    }
}

fn publish(state: &McpState, facts: &mut SourceFacts, line: &StoreReporter) {
    let objects = state.objects();
    facts.objects = objects.len();
    facts.warnings = state.warnings();
    line.set_contents(objects.into());
    line.report(facts);
}

fn node(node: &McpNode) -> core::Node {
    let McpNode { namespace, domain } = node;
    // Istio's server serves objects instead of Envoy configuration to clients with this setting.
    let generator = Value { kind: Some(value::Kind::StringValue("api".into())) };
    core::Node {
        id: format!("sidecar~127.0.0.1~strait.{namespace}~{namespace}.svc.{domain}"),
        metadata: Some(Struct { fields: [("GENERATOR".to_owned(), generator)].into() }),
        user_agent_name: "strait".into(),
        ..core::Node::default()
    }
}

async fn connect(server: &McpServer) -> Result<Channel, McpStreamEnd> {
    let tls = match &server.tls {
        None => None,
        Some(tls) => {
            let config = tls_config(tls).await;
            let config = config.map_err(|fact| McpStreamEnd { fact, code: &codes::MCP_TLS })?;
            let host = server.address.rsplit_once(':').map_or(&*server.address, |(host, _)| host);
            let host = host.trim_start_matches('[').trim_end_matches(']');
            let name = tls.server_name.clone().unwrap_or_else(|| host.to_owned());
            let name = ServerName::try_from(name.clone()).map_err(|_| McpStreamEnd {
                fact: format!("{name:?} is not a valid server name"),
                code: &codes::MCP_TLS,
            })?;
            Some((TlsConnector::from(config), name))
        }
    };
    let tcp = tcp_to_named();
    let connector = tower::service_fn(move |uri: http::Uri| {
        let (tcp, tls) = (tcp.clone(), tls.clone());
        async move {
            let stream = tcp.oneshot(uri).await?.into_inner();
            let stream: Box<dyn Io> = match tls {
                None => Box::new(stream),
                Some((connector, name)) => Box::new(connector.connect(name, stream).await?),
            };
            Ok::<_, BoxError>(TokioIo::new(stream))
        }
    });
    let endpoint = endpoint(&server.address).map_err(|error| McpStreamEnd {
        fact: one_line(&error.to_string()),
        code: &codes::MCP_UNREACHABLE,
    })?;
    let connecting = endpoint.connect_with_connector(connector);
    let connected = tokio::time::timeout(CONNECT_LIMIT, connecting).await;
    connected.map_or_else(
        |_| {
            let fact = format!("no connection within {} s", CONNECT_LIMIT.as_secs());
            Err(McpStreamEnd { fact, code: &codes::MCP_UNREACHABLE })
        },
        |connected| connected.map_err(|error| stream_end(&error)),
    )
}

fn endpoint(address: &str) -> Result<Endpoint, tonic::transport::Error> {
    let endpoint = Endpoint::from_shared(format!("http://{address}"))?;
    Ok(endpoint
        .http2_keep_alive_interval(PING_AFTER)
        .keep_alive_timeout(PONG_LIMIT)
        .keep_alive_while_idle(true))
}

/// A connection, with or without TLS.
trait Io: tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + Unpin {}
impl<T: tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + Unpin> Io for T {}

fn stream_end(error: &tonic::transport::Error) -> McpStreamEnd {
    if let ApiError::Tls(fact) = ApiError::from_exchange("a connection", error) {
        return McpStreamEnd { fact, code: &codes::MCP_TLS };
    }
    let mut deepest: &dyn std::error::Error = error;
    while let Some(source) = deepest.source() {
        deepest = source;
    }
    McpStreamEnd { fact: one_line(&deepest.to_string()), code: &codes::MCP_UNREACHABLE }
}

async fn tls_config(tls: &McpTls) -> Result<Arc<ClientConfig>, String> {
    let read = async |path: &std::path::Path| {
        let bytes = tokio::fs::read(path).await;
        bytes.map_err(|error| format!("{} can't be read ({error})", path.display()))
    };
    let certificates = |pem: &[u8], path: &std::path::Path| {
        let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
        match found {
            Ok(found) if !found.is_empty() => Ok(found),
            _ => Err(format!("{} contains no readable certificate", path.display())),
        }
    };
    let mut roots = RootCertStore::empty();
    for root in certificates(&read(&tls.ca).await?, &tls.ca)? {
        roots.add(root).map_err(|error| format!("{}: {error}", tls.ca.display()))?;
    }
    let builder = ClientConfig::builder_with_provider(strait_identity::tls::provider())
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .with_root_certificates(roots);
    let mut config = match &tls.client {
        None => builder.with_no_client_auth(),
        Some((chain, key)) => {
            let chain = certificates(&read(chain).await?, chain)?;
            let parsed = PrivateKeyDer::from_pem_slice(&read(key).await?);
            // Never quotes the content.
            let parsed =
                parsed.map_err(|_| format!("{} contains no readable key", key.display()))?;
            builder
                .with_client_auth_cert(chain, parsed)
                .map_err(|error| format!("key and certificate can't be used: {error}"))?
        }
    };
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(Arc::new(config))
}
