//! Creates a client from an [`Access`].
//!
//! The kube crate sets up TLS. Its configuration is filled in field by field with inline data: no
//! file is read, no program is run, no proxy is taken from the environment, no redirect is
//! followed, no compression is requested.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http::header::{ACCEPT, AUTHORIZATION, HeaderValue, USER_AGENT};
use http::uri::Scheme;
use http::{Request, Response, StatusCode, Uri};
use http_body_util::Full;
use hyper_rustls::{HttpsConnector, MaybeHttpsStream};
use hyper_util::client::legacy::connect::HttpConnector;
use tokio::sync::watch;
use tower::{BoxError, ServiceExt as _};

use super::access_error::AccessError;
use super::address::{self, Resolver};
use super::body::ResponseBody;
use super::credential::NoCredential;
use super::dial::{HTTP1, Tls, certificates, tcp};
use super::issued_access::{IssuedAccess, RequestAccess};
use super::last_response::LastResponse;
use super::pool::{ConnectionPool, Purpose};
use super::server_dial::ServerDial;
use super::transport::{Carrier, StreamPermit, Transport, http1_over};
use super::tunnel::hop;
use super::{Access, ApiCredential, Loopback, ServerAccount};
use strait_base::lock::lock;

/// A client for one API server. Clones share connections.
#[derive(Clone)]
pub struct ApiClient {
    /// The credential and the connections of new requests. All clones use the same.
    active: Arc<Mutex<ActiveCredential>>,
    purpose: Purpose,
    base: Uri,
    /// A counter that increases when a probe finds the server reachable again. It wakes readers
    /// that wait for the end of a pause or for changes; other readers see it after their current
    /// work.
    pub(super) revived: Arc<watch::Sender<u64>>,
    /// A counter that increases when the credential is replaced. It wakes only readers whose
    /// credential was refused: open watches continue.
    pub(super) authenticated: Arc<watch::Sender<u64>>,
    /// The number of requested new lists, by plural kind.
    pub(super) again: Arc<watch::Sender<BTreeMap<&'static str, u64>>>,
    /// The memory account of the server.
    pub(super) account: Arc<ServerAccount>,
    /// The time of the last useful response.
    pub(super) last_response: Arc<LastResponse>,
    unreadable_ca_blocks: usize,
}

/// A credential, and the connections of requests that use it.
#[derive(Clone)]
struct ActiveCredential {
    connections: ClientConnections,
    authorization: Authorization,
    is_in_handshake: bool,
}

/// The connections of a client.
#[derive(Clone)]
enum ClientConnections {
    /// It opens them itself.
    Dialled(Arc<ConnectionPool>),
    /// A relay opened them.
    Relayed(Arc<dyn Carrier>),
}

impl ClientConnections {
    /// Sends a request. The permit must be kept until the response has been read.
    async fn exchange(
        &self,
        request: Request<Full<Bytes>>,
        purpose: Purpose,
    ) -> Result<(Response<ResponseBody>, Option<StreamPermit>), BoxError> {
        match self {
            Self::Dialled(pool) => pool.exchange(request, purpose).await,
            Self::Relayed(carrier) => {
                carrier.exchange(request).await.map(|(response, permit)| (response, Some(permit)))
            }
        }
    }
}

/// The credential of the request to which a response belongs.
#[derive(Clone)]
pub(super) struct SentCredential(pub(super) HeaderValue);

/// The header that authenticates a request.
#[derive(Clone)]
enum Authorization {
    None,
    Fixed(HeaderValue),
    Issued(Arc<IssuedAccess>),
}

impl Authorization {
    /// Returns the current header, and connections with the current client certificate if the
    /// credential has one.
    fn current(&self) -> Result<RequestAccess, NoCredential> {
        match self {
            Self::None => Ok(RequestAccess::default()),
            Self::Fixed(header) => {
                Ok(RequestAccess { header: Some(header.clone()), connections: None })
            }
            Self::Issued(issued) => issued.current(),
        }
    }
}

impl ApiClient {
    /// Creates a client. No connection is opened until the first request.
    ///
    /// # Errors
    /// Fails if `access` is unusable, independent of the server. The access to a relayed member is
    /// always unusable here: [`Self::relayed`] creates its client.
    pub fn new(access: &Access) -> Result<Self, AccessError> {
        let base = base(access)?;
        let dial = ServerDial::new(base.clone(), access)?;
        let unreadable_ca_blocks = dial.unreadable_ca_blocks();
        let pool = dial.pool(&access.credential)?;
        let authorization = match &access.credential {
            ApiCredential::Issued(feed) => {
                Authorization::Issued(Arc::new(IssuedAccess::new(feed.clone(), dial)))
            }
            credential => credential.header()?.map_or(Authorization::None, Authorization::Fixed),
        };
        let active = ActiveCredential {
            connections: ClientConnections::Dialled(Arc::new(pool)),
            authorization,
            is_in_handshake: access.credential.is_in_handshake(),
        };
        Ok(Self { unreadable_ca_blocks, ..Self::with(active, base) })
    }

    /// Creates a client that sends requests through `carrier` to a relay, without a credential. The
    /// relay adds its credential.
    pub fn relayed(carrier: Arc<dyn Carrier>) -> Self {
        let active = ActiveCredential {
            connections: ClientConnections::Relayed(carrier),
            authorization: Authorization::None,
            is_in_handshake: false,
        };
        Self::with(active, Access::relay().server)
    }

    fn with(active: ActiveCredential, base: Uri) -> Self {
        Self {
            active: Arc::new(Mutex::new(active)),
            purpose: Purpose::Question,
            base,
            revived: Arc::default(),
            authenticated: Arc::default(),
            again: Arc::default(),
            account: Arc::default(),
            last_response: Arc::default(),
            unreadable_ca_blocks: 0,
        }
    }

    /// Whether it sends requests to a server without any credential. A relay adds its own.
    pub(super) fn has_no_credential(&self) -> bool {
        let active = lock(&self.active);
        matches!(active.authorization, Authorization::None)
            && !active.is_in_handshake
            && matches!(active.connections, ClientConnections::Dialled(_))
    }

    /// Whether both are clones of one client, or use the connections of one relay.
    pub fn is_same(&self, other: &Self) -> bool {
        if Arc::ptr_eq(&self.active, &other.active) {
            return true;
        }
        let [own, other] = [self, other].map(|client| lock(&client.active).connections.clone());
        match (own, other) {
            (ClientConnections::Relayed(own), ClientConnections::Relayed(other)) => {
                Arc::ptr_eq(&own, &other)
            }
            _ => false,
        }
    }

    /// Creates a client with another credential for the same server, to test it. It shares the
    /// connections if the credential is a header.
    ///
    /// # Errors
    /// Fails if `access` is unusable, independent of the server.
    pub fn with_credential(&self, access: &Access) -> Result<Self, AccessError> {
        let client = Self::new(access)?;
        let own = lock(&self.active).clone();
        {
            let mut active = lock(&client.active);
            if !own.is_in_handshake && !active.is_in_handshake {
                active.connections = own.connections;
            }
        }
        Ok(client)
    }

    /// Uses the credential of `tested` for all further requests of this client and its clones. Open
    /// watches continue. Readers that wait because the credential was refused try again at once.
    pub fn adopt_credential(&self, tested: &Self) {
        let active = lock(&tested.active).clone();
        *lock(&self.active) = active;
        self.authenticated.send_modify(|count| *count += 1);
    }

    /// Returns a client for probes with the same connections.
    pub(super) fn probing(&self) -> Self {
        Self { purpose: Purpose::Probe, ..self.clone() }
    }

    /// Sends no further requests over the existing connections, because they may be dead. Pending
    /// responses continue.
    pub fn forget_connections(&self) {
        let active = lock(&self.active);
        match &active.connections {
            ClientConnections::Dialled(pool) => pool.forget(),
            // Pings from both sides detect a dead connection of a relay.
            ClientConnections::Relayed(_) => {}
        }
        if let Authorization::Issued(issued) = &active.authorization {
            issued.forget_connections();
        }
    }

    /// Makes all readers of a kind list it again after a short pause, to confirm a doubtful change.
    pub fn list_again(&self, plural: &'static str) {
        self.again.send_modify(|counts| *counts.entry(plural).or_default() += 1);
    }

    /// Returns the memory account of the server.
    pub fn account(&self) -> &Arc<ServerAccount> {
        &self.account
    }

    /// Returns the number of unreadable blocks in the CA bundle, which are ignored.
    pub fn unreadable_ca_blocks(&self) -> usize {
        self.unreadable_ca_blocks
    }

    /// Returns the URL of the server, for messages.
    pub fn server(&self) -> &Uri {
        &self.base
    }

    /// Sends one request with the credential added; the caller sets the deadline.
    pub(super) async fn exchange(
        &self,
        mut request: Request<Full<Bytes>>,
    ) -> Result<(Response<ResponseBody>, Option<StreamPermit>), BoxError> {
        let headers = request.headers_mut();
        headers.insert(
            USER_AGENT,
            HeaderValue::from_static(concat!("strait/", env!("CARGO_PKG_VERSION"))),
        );
        // Callers that accept other encodings set the header themselves. Other documents have
        // specific types: the keys of tokens are `application/jwk-set+json`, and the server
        // responds 406 to clients that accept plain JSON only.
        headers.entry(ACCEPT).or_insert(HeaderValue::from_static("application/json, */*"));
        self.exchange_authorized(request).await
    }

    /// Sends one request with the credential added and all other headers unchanged; the caller sets
    /// the deadline.
    pub(super) async fn exchange_authorized(
        &self,
        mut request: Request<Full<Bytes>>,
    ) -> Result<(Response<ResponseBody>, Option<StreamPermit>), BoxError> {
        let active = lock(&self.active).clone();
        let RequestAccess { header, connections } = active.authorization.current()?;
        if let Some(header) = &header {
            request.headers_mut().insert(AUTHORIZATION, header.clone());
        }
        let connections = connections.map_or(active.connections, ClientConnections::Dialled);
        let mut answered = connections.exchange(request, self.purpose).await?;
        if let Some(header) = header {
            answered.0.extensions_mut().insert(SentCredential(header));
        }
        if let Authorization::Issued(issued) = &active.authorization
            && answered.0.status() == StatusCode::UNAUTHORIZED
        {
            issued.note_refused();
        }
        Ok(answered)
    }

    /// Returns the complete URI of a path below the server's base path.
    pub(super) fn uri(&self, path_and_query: &str) -> Result<Uri, http::Error> {
        let prefix = self.base.path().trim_end_matches('/');
        let mut parts = self.base.clone().into_parts();
        parts.path_and_query = Some(format!("{prefix}{path_and_query}").parse()?);
        Ok(Uri::from_parts(parts)?)
    }
}

impl std::fmt::Debug for ApiClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("base", &self.base).finish_non_exhaustive()
    }
}

/// Creates connections to a server that is not an API server and that the operator names: `http` or
/// `https`, its certificate verified with the CAs in `ca_pem`, or with this machine's CAs.
///
/// # Errors
/// Fails if `ca_pem` contains no certificate, or TLS cannot be set up.
pub fn transport_to(server: &Uri, ca_pem: Option<&[u8]>) -> Result<Transport, AccessError> {
    let hop = hop(Loopback::Named, None);
    if server.scheme() == Some(&Scheme::HTTP) {
        // A system without root certificates is no obstacle.
        return Ok(http1_over(hop.map_response(MaybeHttpsStream::Http)));
    }
    let mut config = kube::Config::new(server.clone());
    config.root_cert = ca_pem.map(certificates).transpose()?.map(|(roots, _)| roots);
    Ok(http1_over(Tls::new(&config)?.dial(hop, HTTP1, None)))
}

/// Creates TCP connections to a server that the operator names; they end soon after the peer is
/// gone.
pub fn tcp_to_named() -> HttpConnector<Resolver> {
    tcp(Loopback::Named)
}

/// Adds TLS to `tcp`, with the roots, the client certificate and the server name in `config`, for
/// HTTP/1.1.
///
/// # Errors
/// Fails if these parts are unusable.
pub fn connector<H>(config: &kube::Config, tcp: H) -> Result<HttpsConnector<H>, AccessError> {
    Ok(Tls::new(config)?.connector(tcp, HTTP1))
}

fn base(access: &Access) -> Result<Uri, AccessError> {
    let invalid_server = || AccessError::Server(super::error::one_line(&access.server.to_string()));
    let server = &access.server;
    let authority = server.authority().ok_or_else(invalid_server)?;
    // User info would be a credential in a value that is logged.
    if server.scheme_str() != Some("https")
        || authority.as_str().contains('@')
        || server.query().is_some()
    {
        return Err(invalid_server());
    }
    let host = authority.host();
    let literal = host.trim_start_matches('[').trim_end_matches(']');
    if let Ok(address) = literal.parse::<IpAddr>() {
        if let Some(objection) = address::objection(address, access.loopback) {
            return Err(AccessError::Address { address, objection });
        }
    } else if host.is_empty() {
        return Err(invalid_server());
    }
    Ok(server.clone())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Redacted;

    fn access(server: &str) -> Access {
        Access {
            server: server.parse().expect("a URI"),
            ca_pem: None,
            tls_server_name: None,
            credential: ApiCredential::None,
            loopback: Loopback::Refused,
            proxy: None,
        }
    }

    #[test]
    fn only_https_servers_at_permitted_addresses_are_accepted() {
        for good in ["https://api.example:6443", "https://10.0.0.1", "https://h/k8s/c-1/"] {
            assert!(ApiClient::new(&access(good)).is_ok(), "{good}");
        }
        for bad in [
            "http://api.example",
            "https://user:pw@api.example",
            "https://127.0.0.1:6443",
            "https://[::1]:6443",
            "https://[::ffff:169.254.169.254]",
            "https://[64:ff9b::169.254.169.254]",
            "https://[2002:a9fe:a9fe::1]",
            "https://169.254.169.254/latest",
            "/just/a/path",
        ] {
            assert!(ApiClient::new(&access(bad)).is_err(), "{bad}");
        }
    }

    #[test]
    fn path_in_the_server_url_is_a_prefix() {
        let client = ApiClient::new(&access("https://rancher.example/k8s/c-1/")).expect("usable");
        assert_eq!(
            client.uri("/api/v1/pods?limit=1").expect("a URI").to_string(),
            "https://rancher.example/k8s/c-1/api/v1/pods?limit=1"
        );
    }

    /// The root certificates of the system may be absent too.
    #[test]
    fn plain_http_needs_no_root_certificates() {
        let transport = |server: &'static str| transport_to(&Uri::from_static(server), Some(b"-"));
        assert!(transport("http://consul.example:8500").is_ok());
        assert_eq!(transport("https://consul.example").expect_err("no roots"), AccessError::Ca);
    }

    #[test]
    fn unusable_parts_are_named_without_their_value() {
        let mut invalid = access("https://h");
        invalid.credential = ApiCredential::Token(Redacted::new("canary\nx".into()));
        let error = ApiClient::new(&invalid).expect_err("a line break can't be sent");
        assert_eq!(error, AccessError::Credential("token"));
        let mut invalid = access("https://h");
        invalid.ca_pem = Some(b"no pem".to_vec());
        assert_eq!(ApiClient::new(&invalid).expect_err("no certificate"), AccessError::Ca);
        let mut invalid = access("https://h");
        invalid.credential = ApiCredential::Certificate {
            certificate_pem: b"canary".to_vec(),
            key_pem: Redacted::new(b"canary".to_vec()),
        };
        let error = ApiClient::new(&invalid).expect_err("no certificate");
        assert!(!error.to_string().contains("canary"), "{error}");
    }
}
