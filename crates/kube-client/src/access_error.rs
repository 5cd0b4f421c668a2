//! The reasons why an access is unusable, found without any connection.

use std::net::IpAddr;

use strait_base::address::Special;

/// Why a client certificate of X.509 version 1 is not used: the TLS library does not read it.
pub const CERTIFICATE_VERSION_1: &str = "is an X.509 certificate of version 1, and only version 3 is supported; \
     openssl x509 -req writes version 3 with -extfile";

/// The reason why an [`super::Access`] is unusable, found without any connection.
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
        /// Why it is not dialled.
        objection: Special,
    },
    /// The CA contains no certificate.
    #[error("the CA contains no readable PEM certificate")]
    Ca,
    /// The token, user name, certificate or key cannot be used. Never contains its value.
    #[error("the {0} can't be used")]
    Credential(&'static str),
    /// TLS cannot be set up with these parts.
    #[error("TLS can't be set up: {0}")]
    Tls(String),
}
