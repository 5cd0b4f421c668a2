//! Opens TCP connections with deadlines, and adds TLS to them.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use hyper_rustls::{
    DefaultServerNameResolver, FixedServerNameResolver, HttpsConnector, ResolveServerName,
};
use hyper_util::client::legacy::connect::HttpConnector;
use kube::client::ConfigExt;
use rustls::ClientConfig;
use rustls::client::Resumption;
use rustls_pki_types::ServerName;
use tower::util::BoxCloneSyncService;
use tower::{BoxError, ServiceExt};

use super::Loopback;
use super::access_error::{AccessError, CERTIFICATE_VERSION_1};
use super::address::Resolver;
use super::connect_proxy::ConnectProxy;
use super::error::{ServerDialError, one_line};
use super::pem::{CaBundle, private_key};
use super::transport::{Dial, Hop};
use super::verify::GivenRoots;
use strait_base::pem::encode_key;

/// The time limit of connecting, including the TLS handshake.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);
/// Idle time after which TCP keepalive probes a connection.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(10);
/// The interval and the number of keepalive probes. A connection is dead about 25 s after its last
/// packet.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
const KEEPALIVE_PROBES: u32 = 3;
/// The offered protocols (ALPN), preferred first. Most servers use HTTP/1.1 if none is offered.
pub(super) const HTTP2_OR_1: &[&str] = &["h2", "http/1.1"];
pub(super) const HTTP1: &[&str] = &[];
/// The time limit for the acknowledgement of sent data (Linux), which detects a request on a dead
/// connection.
#[cfg(target_os = "linux")]
const UNACKNOWLEDGED_LIMIT: Duration = Duration::from_secs(20);

/// Creates TCP connections with deadlines, to addresses that may be dialled.
pub(super) fn tcp(loopback: Loopback) -> HttpConnector<Resolver> {
    let mut tcp = HttpConnector::new_with_resolver(Resolver::new(loopback));
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    tcp.set_connect_timeout(Some(CONNECT_LIMIT));
    tcp.set_keepalive(Some(KEEPALIVE_IDLE));
    tcp.set_keepalive_interval(Some(KEEPALIVE_INTERVAL));
    tcp.set_keepalive_retries(Some(KEEPALIVE_PROBES));
    #[cfg(target_os = "linux")]
    tcp.set_tcp_user_timeout(Some(UNACKNOWLEDGED_LIMIT));
    tcp
}

/// The TLS settings for a server.
pub(super) struct Tls {
    config: ClientConfig,
    /// The expected server name: always this one, or the host of the request.
    name: Arc<dyn ResolveServerName + Send + Sync>,
    uses_system_roots: bool,
}

impl Tls {
    pub(super) fn new(config: &kube::Config) -> Result<Self, AccessError> {
        let text = |error: &dyn std::fmt::Display| match one_line(&error.to_string()) {
            text if text.contains("UnsupportedCertVersion") => {
                format!("the client certificate {CERTIFICATE_VERSION_1}")
            }
            text => text,
        };
        let mut tls =
            config.rustls_client_config().map_err(|error| AccessError::Tls(text(&error)))?;
        if let (Some(roots), false) = (&config.root_cert, config.accept_invalid_certs) {
            tls.dangerous().set_certificate_verifier(GivenRoots::new(roots)?);
        }
        // For one server; by default there is room for 32.
        tls.resumption = Resumption::in_memory_sessions(1);
        let name: Arc<dyn ResolveServerName + Send + Sync> = match &config.tls_server_name {
            Some(name) => {
                let name = ServerName::try_from(name.clone()).map_err(|_| {
                    AccessError::Tls(format!("tls-server-name {name:?} is not a valid name"))
                })?;
                Arc::new(FixedServerNameResolver::new(name))
            }
            None => Arc::new(DefaultServerNameResolver::default()),
        };
        Ok(Self { config: tls, name, uses_system_roots: config.root_cert.is_none() })
    }

    /// Adds TLS to `tcp`, offering `protocols`, preferred first.
    pub(super) fn connector<H>(&self, tcp: H, protocols: &[&str]) -> HttpsConnector<H> {
        let mut tls = self.config.clone();
        tls.alpn_protocols = protocols.iter().map(|one| one.as_bytes().to_vec()).collect();
        HttpsConnector::new(tcp, tls, false, Arc::clone(&self.name))
    }

    /// Creates connections with deadlines, which include the requests to `proxy` if `hop` uses it.
    pub(super) fn dial(
        &self,
        hop: Hop,
        protocols: &[&str],
        proxy: Option<Arc<ConnectProxy>>,
    ) -> Dial {
        let uses_system_roots = self.uses_system_roots;
        let connector = self.connector(hop, protocols).map_future(move |connecting| {
            let proxy = proxy.clone();
            // The connector's own limit excludes the handshake.
            Box::pin(async move {
                match tokio::time::timeout(CONNECT_LIMIT, connecting).await {
                    Ok(Ok(connected)) => Ok(connected),
                    Ok(Err(source)) => {
                        let proxy = proxy.map(|proxy| Arc::clone(&proxy.name));
                        Err(ServerDialError { proxy, uses_system_roots, source }.into())
                    }
                    Err(_) => {
                        let fact = format!("no connection within {} s", CONNECT_LIMIT.as_secs());
                        Err(match proxy {
                            Some(proxy) => proxy.error(fact),
                            None => BoxError::from(fact),
                        })
                    }
                }
            })
        });
        BoxCloneSyncService::new(connector)
    }
}

/// Sets the certificate that authenticates the client.
pub(super) fn set_client_certificate(config: &mut kube::Config, certificate: &[u8], key: &[u8]) {
    config.auth_info.client_certificate_data = Some(BASE64.encode(certificate));
    // The library derives the type of a key from the label of the PEM block.
    let key = match private_key(key) {
        Ok(key) => BASE64.encode(encode_key(&key)),
        Err(_) => BASE64.encode(key),
    };
    config.auth_info.client_key_data = Some(key.into());
}

/// Returns the certificates of a CA bundle, at least one, and the number of unreadable blocks.
pub(super) fn certificates(pem: &[u8]) -> Result<(Vec<Vec<u8>>, usize), AccessError> {
    let CaBundle { certificates, unreadable } = CaBundle::read(pem);
    if certificates.is_empty() {
        return Err(AccessError::Ca);
    }
    Ok((certificates.iter().map(|der| der.to_vec()).collect(), unreadable))
}
