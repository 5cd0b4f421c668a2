//! How connections to one API server are opened, with any client certificate.

use std::sync::Arc;

use http::Uri;

use super::access_error::AccessError;
use super::connect_proxy::ConnectProxy;
use super::dial::{HTTP1, HTTP2_OR_1, Tls, certificates, set_client_certificate};
use super::pool::ConnectionPool;
use super::tunnel::hop;
use super::{Access, ApiCredential, Loopback};

/// The parts of an access that do not depend on the credential.
pub(super) struct ServerDial {
    config: kube::Config,
    loopback: Loopback,
    proxy: Option<Arc<ConnectProxy>>,
    unreadable_ca_blocks: usize,
}

impl ServerDial {
    /// Uses the CA, the server name and the proxy of `access` for the server `base`.
    pub(super) fn new(base: Uri, access: &Access) -> Result<Self, AccessError> {
        let mut config = kube::Config::new(base);
        config.tls_server_name.clone_from(&access.tls_server_name);
        let bundle = access.ca_pem.as_deref().map(certificates).transpose()?;
        let (roots, unreadable) = bundle.map_or((None, 0), |(all, skipped)| (Some(all), skipped));
        config.root_cert = roots;
        Ok(Self {
            config,
            loopback: access.loopback,
            proxy: access.proxy.clone(),
            unreadable_ca_blocks: unreadable,
        })
    }

    /// Returns the number of unreadable blocks in the CA bundle, which are ignored.
    pub(super) fn unreadable_ca_blocks(&self) -> usize {
        self.unreadable_ca_blocks
    }

    /// Creates connections with the client certificate of `credential`, if it has one. None is opened
    /// until the first request.
    pub(super) fn pool(&self, credential: &ApiCredential) -> Result<ConnectionPool, AccessError> {
        let tls = match credential {
            ApiCredential::Certificate { certificate_pem, key_pem }
            | ApiCredential::CertificateAndToken { certificate_pem, key_pem, .. } => {
                let mut config = self.config.clone();
                set_client_certificate(&mut config, certificate_pem, key_pem.reveal());
                Tls::new(&config)?
            }
            _ => Tls::new(&self.config)?,
        };
        let dial = |protocols| {
            tls.dial(hop(self.loopback, self.proxy.as_ref()), protocols, self.proxy.clone())
        };
        Ok(ConnectionPool::new(dial(HTTP2_OR_1), dial(HTTP1)))
    }
}
