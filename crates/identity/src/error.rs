//! What can be wrong with certificates, keys, and those who show them.

use std::io;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use strait_base::codes;

/// What can be wrong with certificates, keys and those who show them. Never carries key material.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// A file can't be read.
    #[error("can't read {}", path.display())]
    Read {
        /// Which file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// A file or folder can't be written.
    #[error("can't write {}", path.display())]
    Write {
        /// Which file or folder.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// A folder that should become a CA holds something already.
    #[error("{} is not empty, and a CA is never overwritten", path.display())]
    NotEmpty {
        /// The folder.
        path: PathBuf,
    },
    /// The store of the built-in CA failed.
    #[error("the CA can't be loaded from its store, or kept there: {reason}")]
    Store {
        /// What the store reported.
        reason: String,
        /// What kind of trouble that is.
        trouble: StoreTrouble,
    },
    /// PEM text can't be read, or lacks what it should hold.
    #[error("{origin} holds no {wanted}")]
    Pem {
        /// The file or message it came from.
        origin: String,
        /// What was looked for.
        wanted: &'static str,
    },
    /// A certificate can't be parsed.
    #[error("certificate {number} in {origin} can't be used: {reason}")]
    Certificate {
        /// The file or message it came from.
        origin: String,
        /// Counted from 1.
        number: usize,
        /// What the parser or verifier reported.
        reason: String,
    },
    /// A private key is of a kind we can't sign with.
    #[error("the private key in {origin} is not RSA, P-256, P-384 or Ed25519, or is damaged")]
    Key {
        /// The file it came from.
        origin: String,
    },
    /// Certificate and key are not a pair.
    #[error("the private key in {key} does not belong to the first certificate in {certificate}")]
    KeyMismatch {
        /// The file of the certificate.
        certificate: String,
        /// The file of the key.
        key: String,
    },
    /// Outside its validity.
    #[error("the certificate in {origin} is valid from {} to {}", time(*not_before), time(*not_after))]
    NotValidNow {
        /// The file it came from.
        origin: String,
        /// First moment of its validity.
        not_before: SystemTime,
        /// Last moment of its validity.
        not_after: SystemTime,
    },
    /// Some of a CA's files are there, some are not.
    #[error("the CA in {} lacks {}", path.display(), missing.join(", "))]
    PartialAuthority {
        /// The folder, or the Secret.
        path: PathBuf,
        /// The files it lacks.
        missing: Vec<&'static str>,
    },
    /// What this CA signs would be believed by nobody.
    #[error("what the CA in {origin} signs does not verify against its roots: {reason}")]
    Unrooted {
        /// The folder of the CA.
        origin: String,
        /// What the verifier reported.
        reason: String,
    },
    /// What a member's own CA signs would be believed by nobody.
    #[error(
        "what it signs leads to no root of the mesh's CA: {reason}; have such a root sign it, or put its root beside the others first"
    )]
    MemberAuthorityUnrooted {
        /// What the verifier reported.
        reason: String,
    },
    /// A member's own CA is not there.
    #[error(
        "there is none; put an intermediate there to let the member in, or leave --ca-member-dir {member}=… away to have the mesh's CA sign for it"
    )]
    MemberAuthorityGone {
        /// Whose.
        member: String,
    },
    /// Settings that need a CA, without one.
    #[error("without a CA both a serving certificate and client roots must be given")]
    NoAuthority,
    /// A root would sign that not everybody is known to have.
    #[error("the root {root} may not sign yet, and the CA stays as it is; those lack it: {lacks}")]
    SignsTooEarly {
        /// Which.
        root: String,
        /// Who lacks it.
        lacks: String,
    },
    /// A root that certificates lead to is in the files no more.
    #[error(
        "the root {root} ({subject}) is still given to workloads and believed: certificates that lead to it {} {}",
        if *assumed { "may live, since nobody kept records when they were issued, until" } else { "live until" },
        time(*until)
    )]
    WithdrawnTooEarly {
        /// Which.
        root: String,
        /// Whose it says it is.
        subject: String,
        /// When the last of them ends.
        until: SystemTime,
        /// Whether that is the latest possible.
        assumed: bool,
    },
    /// A certificate was asked for longer than is allowed, or for no time.
    #[error("a certificate may live from 1 s to {} s, not {} s", most.as_secs(), asked.as_secs())]
    Lifetime {
        /// How long was asked for.
        asked: Duration,
        /// The longest that is allowed.
        most: Duration,
    },
    /// A certificate request can't be accepted.
    #[error("certificate request refused: {0}")]
    Request(&'static str),
    /// Signing failed.
    #[error("signing failed: {reason}")]
    Signing {
        /// What the library reported.
        reason: String,
    },
    /// The peer's certificate carries no usable identity.
    #[error("the certificate carries no usable identity: {0}")]
    Identity(#[from] SpiffeIdError),
    /// The peer's certificate does not verify.
    #[error("the certificate does not verify: {0}")]
    Untrusted(webpki::Error),
    /// The peer's certificate verifies, but its roots may not sign for its trust domain.
    #[error(
        "the certificate is of trust domain {trust_domain:?} and ends in a root that is not one of its own (caCertificates of the mesh config)"
    )]
    ForeignRoot {
        /// The trust domain that it claims.
        trust_domain: String,
    },
    /// The connection is not what we serve.
    #[error("the peer did not agree on HTTP/2 by ALPN")]
    NotHttp2,
    /// The peer showed no certificate.
    #[error("the peer showed no certificate")]
    NoPeerCertificate,
    /// A TLS configuration can't be made.
    #[error("TLS can't be set up: {0}")]
    Tls(#[from] rustls::Error),
}

/// Why a store keeps no CA for us.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoreTrouble {
    /// It doesn't answer.
    Unreachable,
    /// It refuses us.
    NoRights,
    /// What it holds can't be used, or it failed in another way.
    Unusable,
}

impl IdentityError {
    /// The code under which `strait help` explains it.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Write { .. } => codes::UNWRITABLE.id,
            Self::Read { .. } | Self::NotEmpty { .. } | Self::Store { .. } => "STR0701",
            Self::Pem { .. } | Self::Certificate { .. } | Self::Key { .. } => "STR0702",
            Self::KeyMismatch { .. } => "STR0703",
            Self::NotValidNow { .. } => "STR0704",
            Self::PartialAuthority { .. } | Self::Unrooted { .. } | Self::NoAuthority => "STR0705",
            Self::MemberAuthorityUnrooted { .. } => codes::MEMBER_CA.id,
            Self::MemberAuthorityGone { .. } => codes::MEMBER_CA_GONE.id,
            Self::SignsTooEarly { .. } => codes::ROOT_SIGNS_EARLY.id,
            Self::WithdrawnTooEarly { .. } => codes::ROOT_GOES_EARLY.id,
            Self::Lifetime { .. } | Self::Request(_) | Self::Signing { .. } => "STR0706",
            Self::Identity(_)
            | Self::Untrusted(_)
            | Self::ForeignRoot { .. }
            | Self::NotHttp2
            | Self::NoPeerCertificate
            | Self::Tls(_) => "STR0707",
        }
    }
}

/// A fault that an operator should end; what was good before is still in force.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertificateProblem {
    /// The code for `strait help`.
    pub code: &'static str,
    /// The fact.
    pub message: String,
    /// When it was first seen.
    pub since: SystemTime,
}

impl CertificateProblem {
    /// What `fault` is; where it is the one that is `known`, since when it is.
    pub(super) fn of(fault: &IdentityError, known: Option<&Self>, now: SystemTime) -> Self {
        let message = Self::message_of(fault);
        match known {
            Some(known) if known.message == message => known.clone(),
            _ => Self { code: fault.code(), message, since: now },
        }
    }

    pub(super) fn message_of(fault: &IdentityError) -> String {
        match std::error::Error::source(fault) {
            Some(source) => format!("{fault}: {source}"),
            None => fault.to_string(),
        }
    }
}

/// For messages: RFC 3339, in UTC.
pub(super) fn time(time: SystemTime) -> String {
    jiff::Timestamp::try_from(time)
        .map_or_else(|_| "a time out of range".to_owned(), |t| format!("{t:.0}"))
}

/// Why a certificate or a text names no identity of this mesh.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SpiffeIdError {
    /// The certificate, or its list of names, can't be parsed.
    #[error("the certificate can't be parsed")]
    Malformed,
    /// Not exactly one URI. (SPIFFE X.509-SVID, section 2.)
    #[error("it has {0} URI names, expected exactly 1")]
    UriCount(usize),
    /// More than [`LENGTH_MAX`](super::SpiffeId::LENGTH_MAX) bytes.
    #[error("the URI is {0} bytes long")]
    TooLong(usize),
    /// Not of the form above.
    #[error("the URI is not spiffe://<trust domain>/ns/<namespace>/sa/<service account>")]
    Form,
    /// A trust domain of other characters than `a-z 0-9 . - _`, or none.
    #[error("the trust domain is not made of lower-case letters, digits, '.', '-' and '_'")]
    TrustDomain,
    /// A namespace that Kubernetes would not accept.
    #[error("the namespace is not a DNS label")]
    Namespace,
    /// A service account that Kubernetes would not accept.
    #[error("the service account is not a DNS subdomain")]
    ServiceAccount,
}

/// Validity starts this long before now, for clocks that are behind.
pub const BACKDATING: Duration = Duration::from_secs(5 * 60);
/// The longest a certificate may live; who asks for more is refused.
pub const LIFETIME_MAX: Duration = Duration::from_secs(90 * 24 * 3600);
