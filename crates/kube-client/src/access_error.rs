//! Why an API server can't be reached as asked, found without any connection.

use std::net::IpAddr;

use strait_base::address::Special;

/// Why an [`super::Access`] can't be used, found without any connection.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AccessError {
    /// Not `https://HOST[:PORT][/path]`.
    #[error("the server {0:?} is not an https URL with a host")]
    Server(String),
    /// A literal address that is not dialled.
    #[error("the server's address {address} is {objection}, which is not dialled")]
    Address {
        /// The address.
        address: IpAddr,
        /// What it is.
        objection: Special,
    },
    /// The CA is no certificate.
    #[error("the CA holds no PEM certificate that can be read")]
    Ca,
    /// The token, user name, certificate or key can't be used. Never says what it is.
    #[error("the {0} can't be used")]
    Credential(&'static str),
    /// TLS can't be set up with these parts.
    #[error("TLS can't be set up: {0}")]
    Tls(String),
}
