//! Fetches keys: one request, few redirects, limits on time and size.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::future::{Either, select};
use http::header::{ACCEPT, CACHE_CONTROL, HOST, LOCATION, USER_AGENT};
use http::{Request, StatusCode};
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper_util::rt::TokioIo;
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, ServerName};
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

use super::guard::{AddressFault, DialRules, KeyTarget};
use super::schedule;
use strait_base::verifying_keys::{cut, verifying_keys};
use strait_model::fetched_keys::{KeyPlace, shown_uri};

/// Maximum size of a response in bytes.
const BODY_MAX: usize = 1024 * 1024;
/// Maximum size in bytes of text from a server or a policy in an error.
const REPEATED_MAX: usize = 256;
/// Maximum number of redirects of one fetch.
const REDIRECTS_MAX: usize = 3;
/// The path at which an issuer publishes the location of the keys (OpenID Connect Discovery 1.0,
/// 4).
const DISCOVERY: &str = "/.well-known/openid-configuration";
/// The files in which systems store trusted root certificates. The first that exists is used.
const SYSTEM_ROOTS: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// The reason why keys could not be fetched.
#[derive(Debug, thiserror::Error)]
pub enum KeyFetchError {
    /// The URI is not valid.
    #[error("{uri} {fact}")]
    Place {
        /// The URI.
        uri: String,
        /// The reason.
        fact: &'static str,
    },
    /// The address must not be dialled.
    #[error("{host} is {address}, {fact}")]
    Refused {
        /// The host.
        host: String,
        /// Its address.
        address: IpAddr,
        /// The reason.
        fact: String,
    },
    /// A redirect that is not followed.
    #[error("a redirect to {location:?} {fact}")]
    Redirect {
        /// The target.
        location: String,
        /// The reason.
        fact: &'static str,
    },
    /// Too many redirects.
    #[error("more than {REDIRECTS_MAX} redirects")]
    Redirects,
    /// The host cannot be reached.
    #[error("{host} can't be reached")]
    Reach {
        /// The host.
        host: String,
        /// The cause.
        source: std::io::Error,
    },
    /// No root certificates are available to verify the server.
    #[error("no root certificates are available to verify {host}; set --jwks-roots FILE")]
    NoRoots {
        /// The server.
        host: String,
    },
    /// The server violated HTTP.
    #[error("invalid HTTP response")]
    Http(#[source] hyper::Error),
    /// The time limit expired.
    #[error("no response within {0:?}")]
    TimedOut(Duration),
    /// The server responded with a status other than success.
    #[error("the response has status {0}")]
    Status(StatusCode),
    /// The response exceeds the size limit or is incomplete.
    #[error("a response of more than {BODY_MAX} bytes, or an incomplete one")]
    Body,
    /// The content of the response is invalid.
    #[error("its response {0}")]
    Answer(String),
}

/// Fetched keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FetchedSet {
    /// A JSON Web Key Set with the keys that verify signatures.
    pub(super) keys: Arc<str>,
    /// How long they are fresh, according to the server.
    pub(super) max_age: Option<Duration>,
    /// The addresses that were dialled to fetch them.
    pub(super) from: Arc<[IpAddr]>,
}

/// A client that fetches keys.
#[derive(Debug, Clone)]
pub struct KeyClient {
    /// The addresses that may be dialled.
    pub rules: DialRules,
    /// A PEM file of root certificates in addition to the system's. It is read for each fetch.
    pub roots: Option<PathBuf>,
}

/// A response, and how long it is fresh.
struct GuardedAnswer {
    text: Vec<u8>,
    max_age: Option<Duration>,
}

impl KeyClient {
    /// Fetches the keys of a location within `limit`.
    pub(super) async fn fetch(
        &self,
        place: &KeyPlace,
        limit: Duration,
    ) -> Result<FetchedSet, KeyFetchError> {
        let timed_out = |_| KeyFetchError::TimedOut(limit);
        tokio::time::timeout(limit, self.fetched(place)).await.map_err(timed_out)?
    }

    async fn fetched(&self, place: &KeyPlace) -> Result<FetchedSet, KeyFetchError> {
        let mut from = Vec::new();
        let target = match place {
            KeyPlace::Uri(uri) => (read(uri)?, true),
            KeyPlace::Issuer(issuer) => self.discovered(issuer, &mut from).await?,
        };
        let answer = self.get(target, &mut from).await?;
        let text = String::from_utf8(answer.text);
        let text = text.map_err(|_| KeyFetchError::Answer("is not text".to_owned()))?;
        // Verifying many elliptic curve keys takes time; a separate thread keeps other tasks
        // running.
        let keys = tokio::task::spawn_blocking(move || verifying_keys(&text)).await;
        let keys = keys.unwrap_or_else(|error| Err(format!("can't be read: {error}")));
        let keys = keys.map_err(KeyFetchError::Answer)?;
        Ok(FetchedSet { keys: keys.into(), max_age: answer.max_age, from: from.into() })
    }

    /// Returns the location of an issuer's keys, and whether the policy itself names its host and
    /// port.
    async fn discovered(
        &self,
        issuer: &str,
        from: &mut Vec<IpAddr>,
    ) -> Result<(KeyTarget, bool), KeyFetchError> {
        let at = read(&discovery(issuer))?;
        let (is_tls, own) = (at.is_tls, (at.host.clone(), at.port));
        let wrong = |fact: String| KeyFetchError::Answer(fact);
        let answer = self.get((at, true), from).await?;
        let found: Value = serde_json::from_slice(&answer.text)
            .map_err(|error| wrong(format!("is not JSON: {error}")))?;
        // The document must be about this issuer (4.3).
        if found.get("issuer").and_then(Value::as_str) != Some(issuer) {
            let other = found.get("issuer").unwrap_or(&Value::Null).to_string();
            return Err(wrong(format!("is about issuer {}", cut(&other, REPEATED_MAX))));
        }
        let uri = found.get("jwks_uri").and_then(Value::as_str);
        let uri = uri.ok_or_else(|| wrong("has no jwks_uri".to_owned()))?;
        let target = read(uri)?;
        if is_tls && !target.is_tls {
            let fact = "leads from https to http";
            return Err(KeyFetchError::Place { uri: cut(&shown_uri(uri), REPEATED_MAX), fact });
        }
        let is_own = (&target.host, target.port) == (&own.0, own.1);
        Ok((target, is_own))
    }

    /// Fetches a document. `is_own` is whether the policy itself names the host and port. The
    /// dialled addresses are added to `dialled`.
    async fn get(
        &self,
        (mut target, mut is_own): (KeyTarget, bool),
        dialled: &mut Vec<IpAddr>,
    ) -> Result<GuardedAnswer, KeyFetchError> {
        for _ in 0..=REDIRECTS_MAX {
            let stream = self.dialled(&target, is_own).await?;
            let peer = stream.peer_addr().map_err(|source| reach(&target.host, source))?;
            dialled.push(peer.ip());
            let exchanged = if target.is_tls {
                let name = ServerName::try_from(target.host.clone()).map_err(|_| {
                    KeyFetchError::Place {
                        uri: cut(&target.host, REPEATED_MAX),
                        fact: "is not a host name",
                    }
                })?;
                let connector = tokio_rustls::TlsConnector::from(self.tls(&target.host).await?);
                let secured = connector.connect(name, stream).await;
                exchange(secured.map_err(|source| reach(&target.host, source))?, &target).await?
            } else {
                exchange(stream, &target).await?
            };
            match exchanged {
                Exchanged::Answer(answer) => return Ok(answer),
                Exchanged::Redirect(location) => {
                    let from = (target.host.clone(), target.port);
                    let redirected = target.redirected(&location);
                    target = redirected.map_err(|fact| {
                        let location = cut(&location, REPEATED_MAX);
                        KeyFetchError::Redirect { location, fact }
                    })?;
                    is_own &= (&target.host, target.port) == (&from.0, from.1);
                }
            }
        }
        Err(KeyFetchError::Redirects)
    }

    /// Connects to the first allowed address of a host. The name is resolved now, because an
    /// earlier lookup may have had a different result.
    async fn dialled(&self, target: &KeyTarget, is_own: bool) -> Result<TcpStream, KeyFetchError> {
        let KeyTarget { host, port, .. } = target;
        let literal: Option<IpAddr> = host.parse().ok();
        let found: Vec<SocketAddr> = match literal {
            Some(address) => vec![(address, *port).into()],
            None => {
                let found = tokio::net::lookup_host((host.as_str(), *port)).await;
                found.map_err(|source| reach(host, source))?.collect()
            }
        };
        let judged =
            |socket: &SocketAddr| self.rules.check(socket.ip(), is_own && literal.is_some());
        let refused = |socket: &SocketAddr, fact: &AddressFault| KeyFetchError::Refused {
            host: cut(host, REPEATED_MAX),
            address: socket.ip(),
            fact: fact.to_string(),
        };
        let fault = found.iter().find_map(|one| Some(refused(one, &judged(one).err()?)));
        let permitted: Vec<_> = found.iter().copied().filter(|one| judged(one).is_ok()).collect();
        if let (Some(fault), true) = (fault, permitted.is_empty()) {
            return Err(fault);
        }
        TcpStream::connect(&permitted[..]).await.map_err(|source| reach(host, source))
    }

    async fn tls(&self, host: &str) -> Result<Arc<ClientConfig>, KeyFetchError> {
        let files = system_roots().into_iter().chain(self.roots.clone());
        let files: Vec<PathBuf> = files.collect();
        let read = tokio::task::spawn_blocking(move || {
            let mut roots = RootCertStore::empty();
            for file in files {
                let certificates = CertificateDer::pem_file_iter(&file).into_iter().flatten();
                roots.add_parsable_certificates(certificates.flatten());
            }
            roots
        });
        let roots = read.await.unwrap_or_else(|_| RootCertStore::empty());
        if roots.is_empty() {
            return Err(KeyFetchError::NoRoots { host: cut(host, REPEATED_MAX) });
        }
        let config = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
        Ok(Arc::new(config))
    }
}

/// Returns the discovery URL of an issuer.
pub(super) fn discovery(issuer: &str) -> String {
    format!("{}{DISCOVERY}", issuer.trim_end_matches('/'))
}

/// Checks that the file of additional root certificates can be read and contains at least one.
///
/// # Errors
/// Fails if the file cannot be read or is invalid.
pub fn check_roots(file: &Path) -> std::io::Result<()> {
    let invalid = |fact: String| std::io::Error::new(std::io::ErrorKind::InvalidData, fact);
    let text = std::fs::read(file)?;
    let mut roots = RootCertStore::empty();
    for (at, certificate) in CertificateDer::pem_slice_iter(&text).enumerate() {
        let number = at + 1;
        let certificate = certificate
            .map_err(|error| invalid(format!("certificate {number} is not PEM: {error}")))?;
        roots
            .add(certificate)
            .map_err(|error| invalid(format!("certificate {number} cannot be a root: {error}")))?;
    }
    match roots.is_empty() {
        true => Err(invalid("it contains no PEM certificate".to_owned())),
        false => Ok(()),
    }
}

fn system_roots() -> Option<PathBuf> {
    let given = std::env::var_os("SSL_CERT_FILE").map(PathBuf::from);
    let usual = SYSTEM_ROOTS.into_iter().map(PathBuf::from);
    given.or_else(|| usual.into_iter().find(|file| file.exists()))
}

fn read(uri: &str) -> Result<KeyTarget, KeyFetchError> {
    KeyTarget::read(uri)
        .map_err(|fact| KeyFetchError::Place { uri: cut(&shown_uri(uri), REPEATED_MAX), fact })
}

fn reach(host: &str, source: std::io::Error) -> KeyFetchError {
    KeyFetchError::Reach { host: cut(host, REPEATED_MAX), source }
}

/// The result of one HTTP exchange.
enum Exchanged {
    Answer(GuardedAnswer),
    Redirect(String),
}

/// Sends one request over a dedicated connection.
async fn exchange(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    target: &KeyTarget,
) -> Result<Exchanged, KeyFetchError> {
    let shaken = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await;
    let (mut sender, connection) = shaken.map_err(KeyFetchError::Http)?;
    let request = Request::get(&target.path)
        .header(HOST, &target.authority)
        .header(ACCEPT, "application/json")
        .header(USER_AGENT, concat!("strait/", env!("CARGO_PKG_VERSION")))
        .body(Empty::<bytes::Bytes>::new());
    let unusable = |_| KeyFetchError::Place {
        uri: cut(&shown_uri(&target.path), REPEATED_MAX),
        fact: "cannot be requested",
    };
    let request = request.map_err(unusable)?;
    let request = async move {
        let answer = sender.send_request(request).await.map_err(KeyFetchError::Http)?;
        let header = |name| answer.headers().get(name).and_then(|value| value.to_str().ok());
        let status = answer.status();
        if let (true, Some(location)) = (status.is_redirection(), header(LOCATION)) {
            return Ok(Exchanged::Redirect(location.to_owned()));
        }
        if status != StatusCode::OK {
            return Err(KeyFetchError::Status(status));
        }
        let max_age = header(CACHE_CONTROL).and_then(schedule::max_age);
        let body = Limited::new(answer.into_body(), BODY_MAX).collect().await;
        let text = body.map_err(|_| KeyFetchError::Body)?.to_bytes().to_vec();
        Ok(Exchanged::Answer(GuardedAnswer { text, max_age }))
    };
    match select(pin!(request), pin!(connection)).await {
        Either::Left((answer, _)) => answer,
        // The response that it has read must still be returned.
        Either::Right((_, request)) => request.await,
    }
}
