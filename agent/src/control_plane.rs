//! Calls to the control plane: a connection to the first reachable address, the token and the cluster in each call, and
//! a certificate for a new key.
//!
//! Token and roots are read from their files for each call, because the kubelet renews them. This module stores
//! nothing.

use std::sync::Arc;
use std::time::Duration;

use hyper_util::rt::TokioIo;
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::ServerName;
use strait_bootstrap::Discovery;
use strait_proto::istio::auth::IstioCertificateRequest;
use strait_proto::istio::auth::istio_certificate_service_client::IstioCertificateServiceClient;
use tokio::net::{TcpStream, lookup_host};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tonic::metadata::AsciiMetadataValue;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status};
use tracing::info;

use crate::credentials::{Credentials, KeyRequest, RootSet};
use crate::files::read_text;
use crate::problem::{Problem, chain};
use crate::settings::RunArgs;

/// Time limit for connecting to one address, including TLS.
const CONNECT: Duration = Duration::from_secs(5);
/// Time limit for one certificate request.
const CALL: Duration = Duration::from_secs(10);
/// The requested lifetime of certificates, in seconds. The control plane may issue a shorter one.
const LIFETIME_SECONDS: i64 = 86_400;

/// The control plane, as one pod calls it.
#[derive(Debug, Clone)]
pub(crate) struct ControlPlane {
    args: Arc<RunArgs>,
}

impl ControlPlane {
    pub(crate) fn new(args: Arc<RunArgs>) -> Self {
        Self { args }
    }

    /// Requests a certificate for a new key, with the pod's token. If the token is refused, uses the current
    /// certificate instead: nodes renew no tokens while their API server is unreachable.
    ///
    /// # Errors
    /// The reason, with the next step. If both attempts fail, the error of the token.
    pub(crate) async fn certificate(
        &self,
        held: Option<&Credentials>,
    ) -> Result<Credentials, Problem> {
        match (self.certificate_by(None).await, held) {
            (Err(problem), Some(held)) if problem.is_about_token() => {
                let renewed = self.certificate_by(Some(held)).await.map_err(|_| problem)?;
                info!(
                    "the token was not accepted; the certificate was renewed with the previous certificate"
                );
                Ok(renewed)
            }
            (answer, _) => answer,
        }
    }

    async fn certificate_by(&self, held: Option<&Credentials>) -> Result<Credentials, Problem> {
        let unusable = |error| {
            let fact = format!(
                "the control plane's certificate for this pod can't be used: {}",
                chain(&error)
            );
            Problem::new("STR0956", fact, "check the control plane's log and its CA")
        };
        let request = KeyRequest::new().map_err(unusable)?;
        let message = IstioCertificateRequest {
            csr: request.csr.clone(),
            validity_duration: LIFETIME_SECONDS,
            metadata: None,
        };
        let call = match held {
            None => self.with_caller(message)?,
            Some(_) => self.with_cluster(message)?,
        };
        let mut client = IstioCertificateServiceClient::new(self.connect_as(held).await?);
        let answer = timeout(CALL, client.create_certificate(call)).await;
        let answer =
            answer.unwrap_or_else(|_| Err(Status::deadline_exceeded("no answer within 10 s")));
        let answer = answer.map_err(|status| refused(&status))?;
        request.answered(&answer.into_inner().cert_chain).map_err(unusable)
    }

    /// Builds a request with the pod's token and cluster.
    ///
    /// # Errors
    /// The token can't be read.
    pub(crate) fn with_caller<T>(&self, message: T) -> Result<Request<T>, Problem> {
        let path = self.args.token_file.display();
        let next = "mount a projected serviceAccountToken there (audience istio-ca)";
        let problem = |fact| Problem::new("STR0952", fact, next);
        let token = read_text(&self.args.token_file)
            .map_err(|error| problem(format!("the token {path} can't be read: {error}")))?;
        let bearer = AsciiMetadataValue::try_from(format!("Bearer {}", token.trim()));
        let mut bearer = bearer.map_err(|_| problem(format!("{path} contains no token")))?;
        bearer.set_sensitive(true);
        let mut request = self.with_cluster(message)?;
        request.metadata_mut().insert("authorization", bearer);
        Ok(request)
    }

    /// Builds a request with the pod's cluster, without a token.
    pub(crate) fn with_cluster<T>(&self, message: T) -> Result<Request<T>, Problem> {
        let cluster = AsciiMetadataValue::try_from(&self.args.cluster).map_err(|_| {
            let fact = format!(
                "--cluster (STRAIT_CLUSTER_ID) {:?} is not a cluster ID",
                self.args.cluster
            );
            Problem::new("STR0950", fact, "use an ID from: strait cluster list")
        })?;
        let mut request = Request::new(message);
        request.metadata_mut().insert("clusterid", cluster);
        Ok(request)
    }

    /// Connects to the first reachable address of the control planes. Presents `held` as the client
    /// certificate, if it exists.
    ///
    /// # Errors
    /// The roots can't be read, or no address is reachable.
    pub(crate) async fn connect_as(&self, held: Option<&Credentials>) -> Result<Channel, Problem> {
        let tls = Arc::new(self.tls(held)?);
        let mut facts = Vec::new();
        for discovery in &self.args.discovery {
            for name in server_names(discovery, &self.args.domain) {
                match timeout(CONNECT, dial(discovery, &name, &tls)).await {
                    Ok(Ok(stream)) => return channel(stream, discovery).await.map_err(unreachable),
                    Ok(Err(error)) => {
                        facts.push(format!(
                            "{}:{}: {}",
                            discovery.host,
                            discovery.port,
                            chain(&error)
                        ));
                    }
                    Err(_) => {
                        let fact =
                            format!("{}:{}: no answer within 5 s", discovery.host, discovery.port);
                        facts.push(fact);
                    }
                }
            }
        }
        Err(unreachable(facts.join("; ")))
    }

    /// Reads the mounted file of root certificates.
    ///
    /// # Errors
    /// The file can't be read, or contains no certificate.
    pub(crate) fn mounted_roots(&self) -> Result<RootSet, Problem> {
        let path = self.args.roots_file.display();
        let next = "mount the ConfigMap istio-ca-root-cert there, and check that it contains root-cert.pem";
        let problem = |fact| Problem::new("STR0953", fact, next);
        let text = read_text(&self.args.roots_file)
            .map_err(|error| problem(format!("the roots {path} can't be read: {error}")))?;
        RootSet::parse(&text).map_err(|error| problem(format!("{path}: {error}")))
    }

    fn tls(&self, held: Option<&Credentials>) -> Result<ClientConfig, Problem> {
        let mut store = RootCertStore::empty();
        store.add_parsable_certificates(
            self.mounted_roots()?.certificates().map(|one| one.into_owned()),
        );
        let builder = ClientConfig::builder().with_root_certificates(store);
        let mut config = match held {
            None => builder.with_no_client_auth(),
            Some(held) => {
                let (chain, key) = held.identity().map_err(|error| {
                    let fact = format!("the stored certificate cannot be used: {error}");
                    Problem::new("STR0956", fact, "remove the files in --dir, and recreate the pod")
                })?;
                builder.with_client_auth_cert(chain, key).map_err(unreachable)?
            }
        };
        config.alpn_protocols = vec![b"h2".to_vec()];
        Ok(config)
    }
}

/// Returns the accepted names of the control plane's certificate: the host, and the short name if it is a Service.
fn server_names(discovery: &Discovery, domain: &str) -> Vec<String> {
    let short = discovery.host.strip_suffix(&format!(".{domain}"));
    let short = short.filter(|short| short.ends_with(".svc")).map(str::to_owned);
    std::iter::once(discovery.host.clone()).chain(short).collect()
}

async fn dial(
    discovery: &Discovery,
    name: &str,
    tls: &Arc<ClientConfig>,
) -> std::io::Result<TlsStream<TcpStream>> {
    let server = ServerName::try_from(name.to_owned()).map_err(std::io::Error::other)?;
    let mut last = std::io::Error::other("the name has no address");
    for address in lookup_host((&*discovery.host, discovery.port)).await? {
        match TcpStream::connect(address).await {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                return TlsConnector::from(Arc::clone(tls)).connect(server, stream).await;
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Opens a gRPC channel over a connection. When the connection ends, its calls fail, and the caller must connect again.
async fn channel(stream: TlsStream<TcpStream>, discovery: &Discovery) -> Result<Channel, String> {
    let mut stream = Some(stream);
    let connector = tower::service_fn(move |_: http::Uri| {
        let stream = stream.take().map(TokioIo::new);
        async move { stream.ok_or_else(|| std::io::Error::other("the connection has ended")) }
    });
    let authority = if discovery.host.contains(':') {
        format!("[{}]", discovery.host)
    } else {
        discovery.host.clone()
    };
    // The connector's stream has completed TLS already, so the scheme is http.
    let endpoint = Endpoint::from_shared(format!("http://{authority}:{}", discovery.port))
        .map_err(|error| chain(&error))?
        .http2_keep_alive_interval(Duration::from_secs(30))
        .keep_alive_timeout(Duration::from_secs(10))
        .keep_alive_while_idle(true);
    endpoint.connect_with_connector(connector).await.map_err(|error| chain(&error))
}

fn unreachable(fact: impl std::fmt::Display) -> Problem {
    let fact = format!("the control plane can't be reached: {fact}");
    Problem::new(
        "STR0954",
        fact,
        "check that it runs, that STRAIT_DISCOVERY contains a name in its certificate (service.address of its chart, --tls-san), and that the mounted roots include the roots of its CA; the agent retries",
    )
}

fn refused(status: &Status) -> Problem {
    let fact = format!(
        "the control plane issued no certificate: {:?}: {}",
        status.code(),
        status.message()
    );
    let next = match status.code() {
        tonic::Code::Unauthenticated => {
            "check that the token belongs to this cluster and has an audience that the control plane accepts (istio-ca), and that STRAIT_CLUSTER_ID is the ID of the cluster"
        }
        tonic::Code::PermissionDenied => {
            "check which identities the cluster may vouch for: strait cluster get ID"
        }
        _ => "check the control plane's log; the agent retries",
    };
    Problem::new("STR0955", fact, next)
}
