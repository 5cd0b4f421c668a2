//! The access to an API server: plain data that cannot express running a program, skipping
//! verification or, except for the operator's proxy, reading a file.

use std::sync::Arc;

use super::connect_proxy::ConnectProxy;
use super::credential::ApiCredential;

/// Everything that is needed to reach one API server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Access {
    /// `https://HOST:PORT[/path]`.
    pub server: http::Uri,
    /// The PEM root certificates that its certificate must chain to; `None` for the host's own
    /// roots.
    pub ca_pem: Option<Vec<u8>>,
    /// The name that its certificate must be valid for, if it isn't the URL's host.
    pub tls_server_name: Option<String>,
    /// The credential that is sent.
    pub credential: ApiCredential,
    /// Whether a loopback address may be dialled.
    pub loopback: Loopback,
    /// The proxy that connects the server; the operator defines it.
    pub proxy: Option<Arc<ConnectProxy>>,
}

impl Access {
    /// Returns the access to a member through its relay. It is equal for all members.
    pub fn relay() -> Self {
        Self {
            server: http::Uri::from_static("https://relay/"),
            ca_pem: None,
            tls_server_name: None,
            credential: ApiCredential::Relay,
            loopback: Loopback::Refused,
            proxy: None,
        }
    }

    /// Whether a relay opens the connections.
    pub fn is_relayed(&self) -> bool {
        self.credential == ApiCredential::Relay
    }

    /// Whether both have the same server, and reach and verify it in the same way. The credentials
    /// may differ.
    pub fn has_same_server(&self, other: &Self) -> bool {
        let Self { server, ca_pem, tls_server_name, credential: _, loopback, proxy } = self;
        (server, ca_pem, tls_server_name, loopback, proxy)
            == (&other.server, &other.ca_pem, &other.tls_server_name, &other.loopback, &other.proxy)
    }
}

/// Whether a loopback address may be dialled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loopback {
    /// Also if a host name resolves to one, as on desktop clusters: for the operator's own
    /// kubeconfig.
    Named,
    /// If it is written as an address: for a member's kubeconfig, with `--config-dir` or outside a
    /// pod.
    Allowed,
    /// Never: for a member's kubeconfig, in a pod.
    Refused,
}
