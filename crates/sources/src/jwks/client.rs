//! Asks for keys: one request, few redirects, everything bounded.

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

/// The most bytes of an answer.
const BODY_MAX: usize = 1024 * 1024;
/// The most bytes that an error repeats of what a server or a policy says.
const REPEATED_MAX: usize = 256;
/// The most redirects of one fetch.
const REDIRECTS_MAX: usize = 3;
/// Where an issuer says where its keys are (OpenID Connect Discovery 1.0, 4).
const DISCOVERY: &str = "/.well-known/openid-configuration";
/// Where systems keep the roots that they trust, the first that is there.
const SYSTEM_ROOTS: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// Why keys could not be fetched.
#[derive(Debug, thiserror::Error)]
pub enum KeyFetchError {
    /// What is asked for is nothing that can be.
    #[error("{uri} {fact}")]
    Place {
        /// What.
        uri: String,
        /// Why not.
        fact: &'static str,
    },
    /// It may not be dialled.
    #[error("{host} is {address}, {fact}")]
    Refused {
        /// What was to be dialled.
        host: String,
        /// Where it leads.
        address: IpAddr,
        /// Why not.
        fact: String,
    },
    /// A redirect is not followed.
    #[error("a redirect to {location:?} {fact}")]
    Redirect {
        /// Where to.
        location: String,
        /// Why not.
        fact: &'static str,
    },
    /// Too many of these.
    #[error("more than {REDIRECTS_MAX} redirects")]
    Redirects,
    /// It can't be reached.
    #[error("{host} can't be reached")]
    Reach {
        /// What.
        host: String,
        /// Why.
        source: std::io::Error,
    },
    /// There is no root by which a server could be known.
    #[error(
        "no root certificates are known by which {host} could be known; --jwks-roots names a file of them"
    )]
    NoRoots {
        /// The server.
        host: String,
    },
    /// HTTP was not spoken as it should be.
    #[error("no answer of HTTP")]
    Http(#[source] hyper::Error),
    /// It took too long.
    #[error("no answer within {0:?}")]
    Late(Duration),
    /// Something else than keys was answered.
    #[error("it answers {0}")]
    Status(StatusCode),
    /// The answer is longer than is read, or breaks off.
    #[error("an answer of more than {BODY_MAX} bytes, or one that breaks off")]
    Body,
    /// The answer makes no sense.
    #[error("its answer {0}")]
    Answer(String),
}

/// Keys as they were fetched.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FetchedSet {
    /// A JSON Web Key Set of those that verify.
    pub(super) keys: Arc<str>,
    /// How long they are fresh, as the server says.
    pub(super) max_age: Option<Duration>,
    /// The addresses that were dialled for them.
    pub(super) from: Arc<[IpAddr]>,
}

/// Fetches keys.
#[derive(Debug, Clone)]
pub struct KeyClient {
    /// What may be dialled.
    pub rules: DialRules,
    /// Roots beside those of the system, in a file of PEM that is read anew for each fetch.
    pub roots: Option<PathBuf>,
}

/// What is answered, and how long it is fresh.
struct GuardedAnswer {
    text: Vec<u8>,
    max_age: Option<Duration>,
}

impl KeyClient {
    /// Fetches the keys of a place within `limit`.
    pub(super) async fn fetch(
        &self,
        place: &KeyPlace,
        limit: Duration,
    ) -> Result<FetchedSet, KeyFetchError> {
        let late = |_| KeyFetchError::Late(limit);
        tokio::time::timeout(limit, self.fetched(place)).await.map_err(late)?
    }

    async fn fetched(&self, place: &KeyPlace) -> Result<FetchedSet, KeyFetchError> {
        let mut from = Vec::new();
        let target = match place {
            KeyPlace::Uri(uri) => (read(uri)?, true),
            KeyPlace::Issuer(issuer) => self.discovered(issuer, &mut from).await?,
        };
        let answer = self.get(target, &mut from).await?;
        let text = String::from_utf8(answer.text);
        let text = text.map_err(|_| KeyFetchError::Answer("is no text".to_owned()))?;
        // Many keys on curves take their time, which nothing else waits for.
        let keys = tokio::task::spawn_blocking(move || verifying_keys(&text)).await;
        let keys = keys.unwrap_or_else(|error| Err(format!("can't be read: {error}")));
        let keys = keys.map_err(KeyFetchError::Answer)?;
        Ok(FetchedSet { keys: keys.into(), max_age: answer.max_age, from: from.into() })
    }

    /// Where an issuer says that its keys are, and whether that is the host and port that the policy itself writes.
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
            .map_err(|error| wrong(format!("is no JSON: {error}")))?;
        // Whose keys they are is what this is about (4.3).
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

    /// What is answered there; `is_own` is whether the policy itself writes the host and port. What is dialled for it is
    /// added to `dialled`.
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
                        fact: "is no host",
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

    /// A connection to the first good address of a host, looked up now: an earlier look-up could have been answered otherwise.
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
        let good: Vec<_> = found.iter().copied().filter(|one| judged(one).is_ok()).collect();
        if let (Some(fault), true) = (fault, good.is_empty()) {
            return Err(fault);
        }
        TcpStream::connect(&good[..]).await.map_err(|source| reach(host, source))
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

/// Where an issuer is asked where its keys are.
pub(super) fn discovery(issuer: &str) -> String {
    format!("{}{DISCOVERY}", issuer.trim_end_matches('/'))
}

/// Looks whether the file of further roots can be read and holds any.
///
/// # Errors
/// What the system says, or what is wrong with it.
pub fn check_roots(file: &Path) -> std::io::Result<()> {
    let invalid = |fact: String| std::io::Error::new(std::io::ErrorKind::InvalidData, fact);
    let text = std::fs::read(file)?;
    let mut roots = RootCertStore::empty();
    for (at, certificate) in CertificateDer::pem_slice_iter(&text).enumerate() {
        let number = at + 1;
        let certificate = certificate
            .map_err(|error| invalid(format!("certificate {number} is no PEM: {error}")))?;
        roots
            .add(certificate)
            .map_err(|error| invalid(format!("certificate {number} can't be a root: {error}")))?;
    }
    match roots.is_empty() {
        true => Err(invalid("it holds no certificate in PEM".to_owned())),
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

/// What comes back.
enum Exchanged {
    Answer(GuardedAnswer),
    Redirect(String),
}

/// One request over a connection of its own.
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
        fact: "can't be asked for",
    };
    let request = request.map_err(unusable)?;
    let asked = async move {
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
    match select(pin!(asked), pin!(connection)).await {
        Either::Left((answer, _)) => answer,
        // What it has read is still to be taken.
        Either::Right((_, asked)) => asked.await,
    }
}
