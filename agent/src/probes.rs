//! The application's probes and lifecycle handlers, which the kubelet sends to the agent, because an application behind
//! mTLS can't answer the kubelet.
//!
//! The agent sends each request as the kubelet would have sent it, to the pod's address, bypassing Envoy.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Request, StatusCode, header};
use http_body_util::Empty;
use hyper_util::rt::TokioIo;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::{ClientConfig, DigitallySignedStruct, SignatureScheme};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};
use serde::Deserialize;
use strait_proto::health::HealthCheckRequest;
use strait_proto::health::health_check_response::ServingStatus;
use strait_proto::health::health_client::HealthClient;
use tokio::net::lookup_host;
use tokio_rustls::TlsConnector;
use tonic::transport::Endpoint;
use tracing::{info, warn};

use crate::http_client::{connect_beside_envoy, exchange};
use crate::problem::{Problem, chain};

/// The variable in which injection stores the replaced probes.
pub(crate) const VARIABLE: &str = "STRAIT_APP_PROBES";

/// Returns whether a path may belong to a probe or a lifecycle handler.
pub(crate) fn is_path(path: &str) -> bool {
    ["/app-health/", "/app-lifecycle/"].iter().any(|prefix| path.starts_with(prefix))
}

/// The probes by the path that replaces them, such as `/app-health/web/readyz`.
#[derive(Debug, Default)]
pub(crate) struct AppProbes {
    by_path: BTreeMap<String, AppProbe>,
    /// The pod's address, to which the kubelet would have sent the request.
    pod: Option<IpAddr>,
    /// Paths whose last probe failed.
    failing: Mutex<BTreeSet<String>>,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
struct AppProbe {
    #[serde(flatten)]
    action: ProbeAction,
    /// Timeout in seconds, at least 1; the kubelet's default is 1.
    timeout_seconds: Option<u64>,
}

/// A probe as in Kubernetes, but with numeric ports.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
enum ProbeAction {
    HttpGet(HttpProbe),
    TcpSocket(TcpProbe),
    Grpc(GrpcProbe),
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
struct HttpProbe {
    port: u16,
    path: Option<String>,
    host: Option<String>,
    scheme: Option<ProbeScheme>,
    #[serde(default)]
    http_headers: Vec<ProbeHeader>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
enum ProbeScheme {
    Http,
    Https,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
struct ProbeHeader {
    name: String,
    value: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
struct TcpProbe {
    port: u16,
    host: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
struct GrpcProbe {
    port: u16,
    service: Option<String>,
}

impl AppProbes {
    /// Parses the format that injection writes: `{"/app-health/CONTAINER/readyz": {"httpGet": {…}, "timeoutSeconds":
    /// 1}}`.
    ///
    /// # Errors
    /// The text is not in this format.
    pub(crate) fn parse(text: &str, pod: Option<IpAddr>) -> Result<Self, Problem> {
        let by_path = serde_json::from_str(text).map_err(|error| {
            let fact = format!("{VARIABLE} can't be read: {error}");
            Problem::new("STR0964", fact, "recreate the pod, or correct the variable")
        })?;
        Ok(Self { by_path, pod, failing: Mutex::default() })
    }

    /// Probes the application as the kubelet would. Returns its status, or the reason of the failure. `None` if no
    /// probe has this path.
    pub(crate) async fn run(
        &self,
        path: &str,
        sent: &HeaderMap,
    ) -> Option<Result<StatusCode, String>> {
        let probe = self.by_path.get(path)?;
        let limit = Duration::from_secs(probe.timeout_seconds.unwrap_or(1).clamp(1, 3600));
        let probing = async {
            match &probe.action {
                ProbeAction::HttpGet(probe) => self.http(probe, sent).await,
                ProbeAction::TcpSocket(probe) => self.tcp(probe).await,
                ProbeAction::Grpc(probe) => self.grpc(probe).await,
            }
        };
        let answer = tokio::time::timeout(limit, probing).await;
        let answer = answer
            .unwrap_or_else(|_| Err(format!("the application did not respond within {limit:?}")));
        self.log_change(path, &answer);
        Some(answer)
    }

    /// Logs when a probe begins to fail, with the reason, and when it passes again. The kubelet reports only a status.
    fn log_change(&self, path: &str, answer: &Result<StatusCode, String>) {
        let fails = match answer {
            Ok(status) if status.as_u16() < 400 => None,
            Ok(status) => Some(format!("it answers {status}")),
            Err(fact) => Some(fact.clone()),
        };
        let mut failing = self.failing.lock().unwrap_or_else(PoisonError::into_inner);
        match fails {
            Some(fact) if failing.insert(path.to_owned()) => {
                warn!(probe = path, "the application fails its probe: {fact}; next: read its log");
            }
            None if failing.remove(path) => {
                info!(probe = path, "the application passes its probe again");
            }
            _ => {}
        }
    }

    async fn http(&self, probe: &HttpProbe, sent: &HeaderMap) -> Result<StatusCode, String> {
        let address = self.address(probe.host.as_deref(), probe.port).await?;
        let stream = connect_beside_envoy(address).await.map_err(|error| error.to_string())?;
        let path = probe.path.as_deref().unwrap_or("/");
        let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
        let mut request = Request::get(path).header(header::HOST, address.to_string());
        if let (Some(agent), Some(headers)) = (sent.get(header::USER_AGENT), request.headers_mut())
        {
            headers.insert(header::USER_AGENT, agent.clone());
        }
        for ProbeHeader { name, value } in &probe.http_headers {
            let is_host = name.eq_ignore_ascii_case("host");
            if let (true, Some(headers)) = (is_host, request.headers_mut()) {
                headers.remove(header::HOST);
            }
            request = request.header(name, value);
        }
        let request = request.body(Empty::<Bytes>::new()).map_err(|error| error.to_string())?;
        let status = |answer: http::Response<_>| std::future::ready(Ok(answer.status()));
        match probe.scheme {
            Some(ProbeScheme::Https) => {
                let tls = TlsConnector::from(Arc::new(anyone()));
                let name = ServerName::IpAddress(address.ip().into());
                let stream = tls.connect(name, stream).await.map_err(|error| error.to_string())?;
                exchange(stream, request, status).await
            }
            _ => exchange(stream, request, status).await,
        }
    }

    async fn tcp(&self, probe: &TcpProbe) -> Result<StatusCode, String> {
        let address = self.address(probe.host.as_deref(), probe.port).await?;
        connect_beside_envoy(address).await.map_err(|error| error.to_string())?;
        Ok(StatusCode::OK)
    }

    async fn grpc(&self, probe: &GrpcProbe) -> Result<StatusCode, String> {
        let address = self.address(None, probe.port).await?;
        let connector = tower::service_fn(move |_: http::Uri| async move {
            connect_beside_envoy(address).await.map(TokioIo::new)
        });
        let endpoint = Endpoint::from_shared(format!("http://{address}"));
        let endpoint = endpoint.map_err(|error| chain(&error))?;
        let channel = endpoint.connect_with_connector(connector).await;
        let mut client = HealthClient::new(channel.map_err(|error| chain(&error))?);
        let service = probe.service.clone().unwrap_or_default();
        let answer = client.check(HealthCheckRequest { service }).await;
        let answer =
            answer.map_err(|status| format!("{:?}: {}", status.code(), status.message()))?;
        match answer.into_inner().status() {
            ServingStatus::Serving => Ok(StatusCode::OK),
            other => Err(format!("its health is {}", other.as_str_name())),
        }
    }

    async fn address(&self, host: Option<&str>, port: u16) -> Result<SocketAddr, String> {
        match (host.filter(|host| !host.is_empty()), self.pod) {
            (Some(host), _) => {
                let found =
                    lookup_host((host, port)).await.map_err(|error| format!("{host}: {error}"))?;
                found.into_iter().next().ok_or_else(|| format!("{host} has no address"))
            }
            (None, Some(pod)) => Ok(SocketAddr::new(pod, port)),
            (None, None) => Err("the pod's address is not known".to_owned()),
        }
    }
}

/// Returns a TLS configuration that accepts any certificate, as the kubelet does for HTTPS probes.
fn anyone() -> ClientConfig {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier = Arc::new(Anyone(Arc::clone(&provider)));
    ClientConfig::builder()
        .dangerous()
        .with_custom_certificate_verifier(verifier)
        .with_no_client_auth()
}

#[derive(Debug)]
struct Anyone(Arc<CryptoProvider>);

impl ServerCertVerifier for Anyone {
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
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probes_of_all_three_kinds_are_read() {
        let text = r#"{
            "/app-health/web/readyz": {"httpGet": {"path": "/ready", "port": 8080, "scheme": "HTTPS",
                "httpHeaders": [{"name": "Host", "value": "web"}]}, "timeoutSeconds": 3},
            "/app-health/web/livez": {"tcpSocket": {"port": 8080}},
            "/app-health/api/startupz": {"grpc": {"port": 9090, "service": "api"}, "timeoutSeconds": 1}
        }"#;
        let probes = AppProbes::parse(text, None).expect("it is read").by_path;
        let http = &probes["/app-health/web/readyz"];
        assert_eq!(http.timeout_seconds, Some(3));
        assert!(
            matches!(&http.action, ProbeAction::HttpGet(get) if get.scheme == Some(ProbeScheme::Https))
        );
        assert_eq!(
            probes["/app-health/web/livez"].action,
            ProbeAction::TcpSocket(TcpProbe { port: 8080, host: None })
        );
        assert!(
            matches!(&probes["/app-health/api/startupz"].action, ProbeAction::Grpc(grpc) if grpc.port == 9090)
        );
    }

    #[test]
    fn invalid_probe_is_reported() {
        let problem = AppProbes::parse(r#"{"/a": {"exec": {}}}"#, None).expect_err("refused");
        assert!(problem.fact.contains(VARIABLE), "{problem}");
    }
}
