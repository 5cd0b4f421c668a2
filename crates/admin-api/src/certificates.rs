//! `/debug/certificates`: the serving certificate, the CA, and the replacement of the CA's root.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The serving certificate, the CA, and the replacement of the CA's root.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct CertificateStatus {
    /// The CA of the mesh; null if this control plane signs no certificates.
    pub authority: Option<Authority>,
    /// The dedicated CAs of members.
    pub members: Vec<MemberAuthority>,
    /// Why a newer certificate is not in use; null without a problem.
    pub problem: Option<CertificateProblem>,
    /// The roots of the CA and the progress of a root's replacement.
    pub rotation: RootRotation,
    /// The certificate of the control plane's server.
    pub serving: ServingCertificate,
}

/// The CA of the mesh.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Authority {
    /// When the CA's certificate expires.
    pub expires: String,
    /// Whether that is soon: a problem, unless the certificate is a root.
    pub ends_soon: bool,
    /// Fingerprints of the roots that the CA's certificates chain to.
    pub roots: Vec<String>,
}

/// The certificate of the control plane's server.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ServingCertificate {
    /// When it expires.
    pub expires: String,
    /// Whether that is soon, although the certificate should have been renewed.
    pub ends_soon: bool,
}

/// The dedicated CA of one member.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct MemberAuthority {
    /// The folder with its files.
    pub directory: String,
    /// When the CA's certificate expires; null if the CA is not usable.
    pub expires: Option<String>,
    /// Whether that is soon: a problem, unless the certificate is a root.
    pub ends_soon: bool,
    /// Number of certificates that it has signed since the start.
    pub issued: u64,
    /// ID of the member.
    pub member: String,
    /// Why its newest files are not in use; null without a problem.
    pub problem: Option<CertificateProblem>,
    /// Fingerprints of the roots that the CA's certificates chain to.
    pub roots: Vec<String>,
}

/// Why a newer certificate is not in use.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct CertificateProblem {
    /// Code of the problem.
    pub code: String,
    /// The problem in words.
    pub message: String,
    /// When it began.
    pub since: String,
}

/// The roots of the CA and the progress of a root's replacement.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RootRotation {
    /// The next action of the operator; null if none is due.
    pub next: Option<String>,
    /// Number of the phase, from 1 to 4; null without a replacement.
    pub number: Option<u8>,
    /// The phase; null without a replacement.
    pub phase: Option<RotationPhase>,
    /// The roots.
    pub roots: Vec<AuthorityRoot>,
}

open_enum! {
    /// A phase in the replacement of a root.
    RotationPhase {
        /// Phase 1: the new root is distributed.
        Distribute = "distribute",
        /// Phase 2: the new root can sign.
        Sign = "sign",
        /// Phase 3: certificates of the old root are still valid.
        Wait = "wait",
        /// Phase 4: the old root can be removed.
        Withdraw = "withdraw",
    }
}

/// A root of the CA.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct AuthorityRoot {
    /// Whether times before the start are assumed, because no record of them exists.
    pub assumed: bool,
    /// When the root expires.
    pub ends: String,
    /// Fingerprint of the root.
    pub fingerprint: String,
    /// The parts of the mesh that are not known to have the root.
    pub lacks: Vec<RootLack>,
    /// When the last certificate below the root expires; null if that is unknown.
    pub last_certificate_ends: Option<String>,
    /// When the root was added; null if that is unknown.
    pub since: Option<String>,
    /// The next step for the root.
    pub step: String,
    /// Subject of the root.
    pub subject: String,
}

/// A part of the mesh that is not known to have a root.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RootLack {
    /// The facts about the part.
    pub fact: String,
    /// The part: a cluster, proxies, and others.
    pub who: String,
}
