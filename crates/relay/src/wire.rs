//! The protocol between a relay and the hub: names, headers and JSON bodies.
//!
//! A relay dials the xDS port of the hub with TLS 1.3. With [`ALPN`] the roles swap after the handshake. With ALPN `h2`
//! the relay is the client and enrols or renews its certificate.

use serde::{Deserialize, Serialize};

/// The ALPN protocol of a connection on which the hub sends the requests.
pub const ALPN: &[u8] = b"strait-relay/1";
/// The path of the first request of the hub on a connection. The response is a [`Hello`].
pub const HELLO_PATH: &str = "/strait/relay/v1/hello";
/// The path for a first certificate: [`EnrolRequest`], answered by [`CertificateResponse`].
pub const ENROL_PATH: &str = "/strait/relay/v1/enrol";
/// The path for a further certificate: [`RenewRequest`] with the present certificate.
pub const RENEW_PATH: &str = "/strait/relay/v1/renew";
/// The request header of [`HELLO_PATH`] with the version of the hub.
pub const VERSION_HEADER: &str = "strait-version";
/// The request header of [`HELLO_PATH`] with the name of the hub's replica and the number of replicas: `NAME/COUNT`.
pub const REPLICA_HEADER: &str = "strait-replica";
/// The request header of [`HELLO_PATH`] that asks the relay to renew its certificate now. The hub will refuse
/// certificates of the relay's generation. It can send a hello at any time.
pub const RENEW_HEADER: &str = "strait-renew";
/// The maximum size of a request to enrol or renew, in bytes.
pub const REQUEST_BYTES_MAX: usize = 16 << 10;
/// The interval of pings in both directions, in seconds.
pub const PING_SECONDS: u64 = 10;
/// The time without an answer to a ping after which a connection is dead, in seconds.
pub const PING_LIMIT_SECONDS: u64 = 15;

/// The first response of a relay, which describes it and its cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Hello {
    /// The version of the relay.
    pub version: String,
    /// The name of the relay's pod or host.
    pub instance: String,
    /// The cluster ID that the relay was started for.
    pub cluster: String,
    /// The UID of the namespace `kube-system`; empty if it could not be read.
    pub cluster_uid: String,
    /// The version of Kubernetes, such as `v1.34.1`; empty if it could not be read.
    pub kubernetes: String,
    /// The groups of requests that the relay forwards, such as `read` and `tokens`.
    pub allowed: Vec<String>,
    /// The media types of lists in addition to the types of the API server. `full` means that there are no others.
    pub media_types: Vec<String>,
}

/// A request for a first certificate.
#[derive(Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EnrolRequest {
    /// The invitation, or the token of the relay's service account.
    pub token: String,
    /// A certificate request, PEM. Only its key is used.
    pub csr: String,
    /// The UID of the namespace `kube-system`.
    pub cluster_uid: String,
    /// The cluster ID that the relay was started for; empty in requests of earlier versions.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub cluster: String,
}

/// A request for a further certificate with a new key.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RenewRequest {
    /// A certificate request, PEM. Only its key is used.
    pub csr: String,
}

/// A certificate of a relay.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CertificateResponse {
    /// The chain, PEM, leaf first.
    pub certificate: String,
    /// The roots that the hub's certificate chains to, PEM; empty if the hub does not know them. The
    /// relay trusts them in addition to its `--hub-roots`.
    pub roots: String,
    /// The expiry of the certificate, RFC 3339.
    pub expires: String,
}

/// The body of a refused request to enrol or renew.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorResponse {
    /// The error.
    pub error: ErrorBody,
}

/// An error with its code.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorBody {
    /// The code, `STR` and four digits.
    pub code: String,
    /// The fact and the next step.
    pub message: String,
}
