//! TLS clients with a chosen certificate: a plain handshake, and an ADS stream.

use std::io::Read;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use hyper_util::rt::TokioIo;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

use strait_proto::envoy::envoy::config::core::v3::Node;
use strait_proto::envoy::envoy::service::discovery::v3::{
    DeltaDiscoveryRequest, aggregated_discovery_service_client::AggregatedDiscoveryServiceClient,
};
use strait_proto::envoy::google::protobuf::{ListValue, Struct, Value as ProtoValue, value::Kind};

/// The server to dial and the client's certificate. Passed to the helper as JSON.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Caller {
    pub(crate) address: String,
    pub(crate) server_name: String,
    pub(crate) alpn: String,
    /// Certificate chain and key, in PEM.
    pub(crate) certificate: PathBuf,
    pub(crate) key: PathBuf,
    /// For an ADS stream: the claimed node, as `(id, metadata)`.
    pub(crate) node: Option<(String, Map<String, Value>)>,
}

/// Dials the server and returns `{"accepted": …}` or `{"refused": REASON}`.
pub(super) fn call() -> Result<Value, String> {
    let mut input = String::new();
    std::io::stdin().read_to_string(&mut input).map_err(|error| error.to_string())?;
    let caller: Caller = serde_json::from_str(&input).map_err(|error| error.to_string())?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let outcome = runtime.map_err(|error| error.to_string())?.block_on(async {
        let call = async {
            match caller.node.clone() {
                Some(node) => ads(&caller, node).await,
                None => handshake(&caller).await,
            }
        };
        tokio::time::timeout(Duration::from_secs(10), call)
            .await
            .unwrap_or_else(|_| Err("no answer in 10 s".into()))
    });
    Ok(match outcome {
        Ok(answer) => json!({ "accepted": answer }),
        Err(reason) => json!({ "refused": reason }),
    })
}

/// Sends one line to the echo server. In TLS 1.3 a client detects a rejection only when it reads.
async fn handshake(caller: &Caller) -> Result<Value, String> {
    let mut stream = connect(caller).await?;
    stream.write_all(b"who\n").await.map_err(|error| error.to_string())?;
    stream.flush().await.map_err(|error| error.to_string())?;
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).await.map_err(|error| error.to_string())?;
    Ok(line.into())
}

/// Opens a Delta stream for clusters and returns the number of resources in the first response.
async fn ads(
    caller: &Caller,
    (id, metadata): (String, Map<String, Value>),
) -> Result<Value, String> {
    let stream = connect(caller).await?;
    let mut stream = Some(TokioIo::new(stream));
    let connector = tower::service_fn(move |_| {
        let stream = stream.take().ok_or_else(|| std::io::Error::other("one connection only"));
        async move { stream }
    });
    let endpoint = tonic::transport::Endpoint::from_static("http://strait");
    let channel =
        endpoint.connect_with_connector(connector).await.map_err(|error| format!("{error:?}"))?;
    let node = Node { id, metadata: Some(to_struct(metadata)), ..Node::default() };
    let request = DeltaDiscoveryRequest {
        node: Some(node),
        type_url: "type.googleapis.com/envoy.config.cluster.v3.Cluster".into(),
        ..DeltaDiscoveryRequest::default()
    };
    // The stream stays open after its first request.
    let requests =
        futures::StreamExt::chain(futures::stream::iter([request]), futures::stream::pending());
    let status = |status: tonic::Status| format!("{:?}: {}", status.code(), status.message());
    let mut client = AggregatedDiscoveryServiceClient::new(channel);
    let mut answers =
        client.delta_aggregated_resources(requests).await.map_err(status)?.into_inner();
    let answer = answers.message().await.map_err(status)?.ok_or("the stream ended")?;
    Ok(json!({ "resources": answer.resources.len() }))
}

async fn connect(caller: &Caller) -> Result<TlsStream<TcpStream>, String> {
    let read = |path: &PathBuf| {
        std::fs::read(path).map_err(|error| format!("{}: {error}", path.display()))
    };
    let chain = CertificateDer::pem_slice_iter(&read(&caller.certificate)?)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| error.to_string())?;
    let key =
        PrivateKeyDer::from_pem_slice(&read(&caller.key)?).map_err(|error| error.to_string())?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AnyServer))
        .with_client_auth_cert(chain, key)
        .map_err(|error| error.to_string())?;
    config.alpn_protocols = vec![caller.alpn.clone().into_bytes()];
    let server_name =
        ServerName::try_from(caller.server_name.clone()).map_err(|error| error.to_string())?;
    let stream =
        TcpStream::connect(&caller.address).await.map_err(|error| format!("connect: {error}"))?;
    let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
    connector.connect(server_name, stream).await.map_err(|error| error.to_string())
}

fn to_struct(fields: Map<String, Value>) -> Struct {
    Struct { fields: fields.into_iter().map(|(name, value)| (name, to_value(value))).collect() }
}

fn to_value(value: Value) -> ProtoValue {
    let kind = match value {
        Value::Null => Kind::NullValue(0),
        Value::Bool(value) => Kind::BoolValue(value),
        Value::Number(value) => Kind::NumberValue(value.as_f64().unwrap_or_default()),
        Value::String(value) => Kind::StringValue(value),
        Value::Array(values) => {
            Kind::ListValue(ListValue { values: values.into_iter().map(to_value).collect() })
        }
        Value::Object(fields) => Kind::StructValue(to_struct(fields)),
    };
    ProtoValue { kind: Some(kind) }
}

/// Accepts any server, because these calls test whether the server accepts the client.
#[derive(Debug)]
struct AnyServer;

impl ServerCertVerifier for AnyServer {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &rustls::DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &rustls::DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
        rustls::crypto::ring::default_provider()
            .signature_verification_algorithms
            .supported_schemes()
    }
}
