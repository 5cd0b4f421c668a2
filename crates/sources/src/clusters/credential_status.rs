//! The source, the inventory, the connection and the credential of a member, as shown in `/debug/clusters`.

use jiff::Timestamp;

pub use crate::members::SYSTEM_SOURCE;
use strait_kube_client::ApiCredential;

/// The value of `via` for an API server that is dialled.
pub const DIRECT: &str = "direct";
/// The value of `via` for an API server that a relay connects.
pub const RELAY: &str = "relay";

/// The state of a member in the inventory that it comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InventoryStatus {
    /// The manager that wrote the ClusterProfile.
    pub manager: String,
    /// The condition `ControlPlaneHealthy`: `True`, `False` or `Unknown`.
    pub control_plane_healthy: &'static str,
    /// The condition `Joined`.
    pub joined: &'static str,
    /// When `ControlPlaneHealthy` last changed, if known.
    pub since: Option<Timestamp>,
}

/// The credential that is used to read a cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CredentialStatus {
    /// How it authenticates.
    pub kind: CredentialKind,
    /// The identity that provides it.
    pub identity: Option<String>,
    /// Its user, according to the API server.
    pub principal: Option<String>,
    /// When it expires, if known.
    pub expires: Option<Timestamp>,
    /// When Strait requests the next one.
    pub refresh_at: Option<Timestamp>,
    /// Why a newer credential is not used, or why the identity provides none.
    pub last_error: Option<String>,
    /// Whether it expires so soon that an operator should act.
    pub ends_soon: bool,
    /// Whether Strait renews it itself.
    pub renews_itself: bool,
}

/// How a credential authenticates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CredentialKind {
    /// A bearer token in the object.
    Token,
    /// A client certificate.
    ClientCertificate,
    /// A user name and a password.
    Basic,
    /// A token that an identity provides.
    Identity,
    /// The credential of a relay.
    Relay,
}

impl CredentialKind {
    /// Returns the kind of a credential.
    pub(super) fn of(credential: &ApiCredential) -> Option<Self> {
        match credential {
            ApiCredential::None => None,
            ApiCredential::Token(_) => Some(Self::Token),
            ApiCredential::Basic { .. } => Some(Self::Basic),
            ApiCredential::Certificate { .. } | ApiCredential::CertificateAndToken { .. } => {
                Some(Self::ClientCertificate)
            }
            ApiCredential::Issued(_) => Some(Self::Identity),
            ApiCredential::Relay => Some(Self::Relay),
        }
    }
}
