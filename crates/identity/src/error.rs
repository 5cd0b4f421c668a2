//! Errors of certificates and keys, and of the peers that present them.

use std::io;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use strait_base::codes;

/// Error of a certificate, a key, or a peer that presents one. Never contains key material.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// A file can't be read.
    #[error("can't read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// A file or directory can't be written.
    #[error("can't write {}", path.display())]
    Write {
        /// The file or directory.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// The directory for a new CA is not empty.
    #[error("{} is not empty, and a CA is never overwritten", path.display())]
    NotEmpty {
        /// The directory.
        path: PathBuf,
    },
    /// The store of the built-in CA failed.
    #[error("loading the CA from its store, or storing it, failed: {reason}")]
    Store {
        /// The reason that the store reported.
        reason: String,
        /// The kind of failure.
        trouble: StoreTrouble,
    },
    /// PEM text can't be read, or lacks an expected part.
    #[error("{origin} holds no {wanted}")]
    Pem {
        /// The file or message that contains the text.
        origin: String,
        /// The missing part.
        wanted: &'static str,
    },
    /// A certificate can't be parsed.
    #[error("certificate {number} in {origin} can't be used: {reason}")]
    Certificate {
        /// The file or message that contains the certificate.
        origin: String,
        /// Number of the certificate, counted from 1.
        number: usize,
        /// The error of the parser or verifier.
        reason: String,
    },
    /// The algorithm of a private key is not supported.
    #[error("the private key in {origin} is not RSA, P-256, P-384 or Ed25519, or is damaged")]
    Key {
        /// The file of the key.
        origin: String,
    },
    /// Certificate and key don't belong together.
    #[error("the private key in {key} does not belong to the first certificate in {certificate}")]
    KeyMismatch {
        /// The file of the certificate.
        certificate: String,
        /// The file of the key.
        key: String,
    },
    /// A certificate is not valid at present.
    #[error("the certificate in {origin} is valid from {} to {}", time(*not_before), time(*not_after))]
    NotValidNow {
        /// The file of the certificate.
        origin: String,
        /// Start of its validity.
        not_before: SystemTime,
        /// End of its validity.
        not_after: SystemTime,
    },
    /// Some files of a CA are missing.
    #[error("the CA in {} lacks {}", path.display(), missing.join(", "))]
    PartialAuthority {
        /// The directory, or the Secret.
        path: PathBuf,
        /// The missing files.
        missing: Vec<&'static str>,
    },
    /// No client would trust the certificates of this CA.
    #[error("certificates of the CA in {origin} do not chain to its roots: {reason}")]
    Unrooted {
        /// The directory of the CA.
        origin: String,
        /// The error of the verifier.
        reason: String,
    },
    /// No client would trust the certificates of a member's dedicated CA.
    #[error(
        "its certificates chain to no root of the mesh's CA: {reason}; have such a root sign it, or first add its root to the others"
    )]
    MemberAuthorityUnrooted {
        /// The error of the verifier.
        reason: String,
    },
    /// A member's dedicated CA does not exist.
    #[error(
        "it does not exist; put an intermediate there to readmit the member, or remove --ca-member-dir {member}=… to have the mesh's CA sign for it"
    )]
    MemberAuthorityGone {
        /// The member.
        member: String,
    },
    /// The CA of relays and the mesh have a root in common.
    #[error(
        "the CA in {} (--relay-ca-dir) chains to a root that the mesh trusts, so it could sign for workloads; create one with a dedicated root: strait certs init DIR",
        path.display()
    )]
    SharedRelayRoot {
        /// The directory.
        path: PathBuf,
    },
    /// The settings need a CA, but none is configured.
    #[error("without a CA, both a serving certificate and client roots must be set")]
    NoAuthority,
    /// The CA would change to a root that parts of the mesh lack.
    #[error(
        "the root {root} may not sign yet, and the active CA is unchanged; known to lack it: {lacks}"
    )]
    SignsTooEarly {
        /// The root.
        root: String,
        /// The parts that lack it.
        lacks: String,
    },
    /// A root was removed from the files although certificates chain to it.
    #[error(
        "the root {root} ({subject}) is still sent to workloads and trusted: certificates that chain to it {} {}",
        if *assumed { "may be valid, since their issuance was not recorded, until" } else { "are valid until" },
        time(*until)
    )]
    WithdrawnTooEarly {
        /// The root.
        root: String,
        /// The subject of the root.
        subject: String,
        /// Expiry of the last of these certificates.
        until: SystemTime,
        /// Whether this time is an upper bound, because no records exist.
        assumed: bool,
    },
    /// A certificate was requested for too long, or for no time.
    #[error("the lifetime of a certificate must be from 1 s to {} s, not {} s", most.as_secs(), requested.as_secs())]
    Lifetime {
        /// The requested lifetime.
        requested: Duration,
        /// The maximum lifetime.
        most: Duration,
    },
    /// A certificate request can't be accepted.
    #[error("certificate request refused: {0}")]
    Request(&'static str),
    /// Signing failed.
    #[error("signing failed: {reason}")]
    Signing {
        /// The error of the library.
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
        "the certificate is of trust domain {trust_domain:?} but chains to none of this domain's roots (caCertificates of the mesh config)"
    )]
    ForeignRoot {
        /// The trust domain that it claims.
        trust_domain: String,
    },
    /// The connection does not use HTTP/2.
    #[error("the peer did not negotiate HTTP/2 with ALPN")]
    NotHttp2,
    /// The peer presented no certificate.
    #[error("the peer presented no certificate")]
    NoPeerCertificate,
    /// A TLS configuration can't be made.
    #[error("TLS can't be set up: {0}")]
    Tls(#[from] rustls::Error),
}

/// Reason why a store returns or stores no CA.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoreTrouble {
    /// The store does not respond.
    Unreachable,
    /// The store denies access.
    NoRights,
    /// The content of the store is invalid, or the store failed in another way.
    Unusable,
}

impl IdentityError {
    /// Returns the code under which `strait help` explains the error.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Write { .. } => codes::UNWRITABLE.id,
            Self::Read { .. } | Self::NotEmpty { .. } | Self::Store { .. } => "STR0701",
            Self::Pem { .. } | Self::Certificate { .. } | Self::Key { .. } => "STR0702",
            Self::KeyMismatch { .. } => "STR0703",
            Self::NotValidNow { .. } => "STR0704",
            Self::PartialAuthority { .. } | Self::Unrooted { .. } | Self::NoAuthority => "STR0705",
            Self::SharedRelayRoot { .. } => codes::RELAY_CA_SHARED.id,
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

/// Problem that an operator must fix; the previous certificates stay active meanwhile.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertificateProblem {
    /// The code for `strait help`.
    pub code: &'static str,
    /// Description of the problem.
    pub message: String,
    /// Time of the first occurrence.
    pub since: SystemTime,
}

impl CertificateProblem {
    /// Converts an error to a problem. If it equals `previous`, keeps the time of the first
    /// occurrence.
    pub(super) fn new(fault: &IdentityError, previous: Option<&Self>, now: SystemTime) -> Self {
        let message = Self::full_message(fault);
        match previous {
            Some(previous) if previous.message == message => previous.clone(),
            _ => Self { code: fault.code(), message, since: now },
        }
    }

    pub(super) fn full_message(fault: &IdentityError) -> String {
        match std::error::Error::source(fault) {
            Some(source) => format!("{fault}: {source}"),
            None => fault.to_string(),
        }
    }
}

/// Formats a time for messages: RFC 3339, in UTC.
pub(super) fn time(time: SystemTime) -> String {
    jiff::Timestamp::try_from(time)
        .map_or_else(|_| "a time out of range".to_owned(), |t| format!("{t:.0}"))
}

/// Reason why a certificate or a text contains no identity of this mesh.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SpiffeIdError {
    /// The certificate, or its list of names, can't be parsed.
    #[error("the certificate can't be parsed")]
    Malformed,
    /// An extension that this control plane defines has an invalid value, or occurs twice.
    #[error("an extension of the control plane in the certificate has an invalid value")]
    Extension,
    /// The number of URIs is not exactly one (SPIFFE X.509-SVID, section 2).
    #[error("it has {0} URI names, expected exactly 1")]
    UriCount(usize),
    /// The URI has more than [`LENGTH_MAX`](super::SpiffeId::LENGTH_MAX) bytes.
    #[error("the URI is {0} bytes long")]
    TooLong(usize),
    /// The URI does not have the form in the message.
    #[error("the URI is not spiffe://<trust domain>/ns/<namespace>/sa/<service account>")]
    Form,
    /// The trust domain is empty, or contains characters other than `a-z 0-9 . - _`.
    #[error("the trust domain is not made of lower-case letters, digits, '.', '-' and '_'")]
    TrustDomain,
    /// Kubernetes would not accept the namespace.
    #[error("the namespace is not a DNS label")]
    Namespace,
    /// Kubernetes would not accept the service account.
    #[error("the service account is not a DNS subdomain")]
    ServiceAccount,
}

/// Time by which the start of validity precedes the issuance, for clocks that are behind.
pub const BACKDATING: Duration = Duration::from_secs(5 * 60);
/// Maximum lifetime of a certificate; requests for longer ones are rejected.
pub const LIFETIME_MAX: Duration = Duration::from_secs(90 * 24 * 3600);

/// Returns the error for a failed signature.
pub(super) fn signing(error: rcgen::Error) -> IdentityError {
    IdentityError::Signing { reason: error.to_string() }
}
