//! Identification of callers: by the certificate of the connection, or by the token of the call.

use std::pin::Pin;
use std::sync::Arc;
use std::time::SystemTime;

use http::HeaderMap;
use http::header::AUTHORIZATION;

use super::token::{SignedToken, TokenPod};
use super::{PeerIdentity, SpiffeId};
use strait_base::codes::{self, Code};
use strait_model::ClusterId;

/// Metadata key for the cluster of a call's token.
const CLUSTER_ID: &str = "clusterid";
/// Maximum length of a cluster ID in bytes.
const CLUSTER_ID_MAX: usize = 253;

/// Reason to refuse a call with a token but without a cluster.
const NO_NAME: &str = "the call has a token but no clusterid";

/// An authenticated caller.
#[derive(Debug, Clone)]
pub struct Caller {
    identity: SpiffeId,
    proof: CallerProof,
}

/// Proof of a caller's identity.
#[derive(Debug, Clone)]
pub enum CallerProof {
    /// The certificate of the connection, and the cluster that the call names, if any.
    Certificate(Arc<PeerIdentity>, Option<ClusterId>),
    /// A token that a member cluster vouches for.
    Token(TokenProof),
}

/// The facts that a verified token proves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenProof {
    /// The member that vouches for it.
    pub cluster: ClusterId,
    /// Whether the call names that member. A call that does not may read the status of others
    /// (istioctl), but can't act as a workload.
    pub named: bool,
    /// The pod that the token is bound to; `None` for a token that was requested manually.
    pub pod: Option<TokenPod>,
    /// Expiry of the token.
    pub expires: SystemTime,
}

/// Reason why a caller is unknown or not accepted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallerRefusal {
    /// The part that the caller may learn.
    pub kind: RefusalKind,
    /// The error code.
    pub code: &'static Code,
    /// The facts, for operators of the mesh.
    pub reason: String,
}

/// Information for a refused caller: whether a retry makes sense.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RefusalKind {
    /// The caller is unknown.
    Unauthenticated,
    /// The caller is known, but its cluster may not vouch for it.
    Denied,
    /// The caller can't be verified at present.
    Unavailable,
}

/// Future with the result of a verification.
pub type CallerAnswer<'a> =
    Pin<Box<dyn Future<Output = Result<Caller, CallerRefusal>> + Send + 'a>>;

/// Access to the pods of members, and verification of their tokens.
pub trait CallerRegistry: std::fmt::Debug + Send + Sync {
    /// Verifies a token that the call assigns to this cluster. Takes at most a few seconds.
    fn verify<'a>(&'a self, token: &'a str, cluster: &'a ClusterId) -> CallerAnswer<'a>;

    /// Returns the member of calls that name none, if there is one.
    fn unnamed(&self) -> Option<ClusterId> {
        None
    }

    /// Returns the member that has this name as its ID or as an alias.
    fn member_called(&self, name: &ClusterId) -> ClusterId {
        name.clone()
    }

    /// Returns whether a known pod of this cluster, or a machine that belongs to it, runs as this
    /// account.
    fn runs(&self, cluster: &ClusterId, identity: &SpiffeId) -> bool;
}

impl Caller {
    /// Creates a caller that a certificate proves.
    pub fn from_certificate(peer: Arc<PeerIdentity>, cluster: Option<ClusterId>) -> Self {
        Self { identity: peer.id().clone(), proof: CallerProof::Certificate(peer, cluster) }
    }

    /// Creates a caller that a token proves.
    pub fn from_token(identity: SpiffeId, proof: TokenProof) -> Self {
        Self { identity, proof: CallerProof::Token(proof) }
    }

    /// Returns the identity.
    pub fn identity(&self) -> &SpiffeId {
        &self.identity
    }

    /// Returns the proof of the identity.
    pub fn proof(&self) -> &CallerProof {
        &self.proof
    }

    /// Returns the cluster that the caller claims, under any name. A token proves the claim.
    pub fn cluster(&self) -> Option<&ClusterId> {
        match &self.proof {
            CallerProof::Certificate(_, cluster) => cluster.as_ref(),
            CallerProof::Token(proof) => Some(&proof.cluster),
        }
    }

    /// Returns the cluster that the certificate proves, or the token of a call that names its
    /// cluster. `None` if the call only claims a cluster.
    pub fn proven_cluster(&self) -> Option<ClusterId> {
        match &self.proof {
            CallerProof::Certificate(peer, _) => peer.cluster(),
            CallerProof::Token(proof) => proof.named.then(|| proof.cluster.clone()),
        }
    }

    /// Marks that the call names no cluster.
    fn without_name(mut self) -> Self {
        if let CallerProof::Token(proof) = &mut self.proof {
            proof.named = false;
        }
        self
    }

    /// Checks that the call contains all that is needed to act as a workload.
    ///
    /// # Errors
    /// If it has a token but does not name its cluster.
    pub fn is_named(&self) -> Result<(), CallerRefusal> {
        match self.token() {
            Some(TokenProof { named: false, .. }) => {
                Err(CallerRefusal::unauthenticated(&codes::CALLER_UNKNOWN, NO_NAME))
            }
            _ => Ok(()),
        }
    }

    /// Returns the facts that the token proves, if there is one.
    pub fn token(&self) -> Option<&TokenProof> {
        match &self.proof {
            CallerProof::Token(proof) => Some(proof),
            CallerProof::Certificate(..) => None,
        }
    }
}

impl CallerRefusal {
    /// Creates a refusal of an unknown caller.
    pub fn unauthenticated(code: &'static Code, reason: impl Into<String>) -> Self {
        Self { kind: RefusalKind::Unauthenticated, code, reason: reason.into() }
    }

    /// Creates a refusal of a token that can't be verified at present.
    pub fn unchecked(reason: impl Into<String>) -> Self {
        let kind = RefusalKind::Unavailable;
        Self { kind, code: &codes::TOKEN_UNCHECKED, reason: reason.into() }
    }

    /// Adds a cause to the reason.
    #[must_use]
    pub fn because(mut self, why: &str) -> Self {
        self.reason = format!("{} ({why})", self.reason);
        self
    }
}

impl std::fmt::Display for CallerRefusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.code, self.reason)
    }
}

/// Returns whether a call has a token.
pub fn brings_token(headers: &HeaderMap) -> bool {
    headers.contains_key(AUTHORIZATION)
}

/// Identifies the caller of a call with these headers, on a connection with `peer`. Without a
/// `registry`, tokens are ignored.
///
/// # Errors
/// If there is no proof, an invalid one, or two with different identities.
pub async fn identify(
    peer: Option<&Arc<PeerIdentity>>,
    headers: &HeaderMap,
    registry: Option<&dyn CallerRegistry>,
) -> Result<Caller, CallerRefusal> {
    let cluster = named_cluster(headers)?;
    let token = registry.map(|registry| Ok((registry, bearer(headers)?))).transpose()?;
    match (peer, token) {
        (Some(peer), None | Some((_, None))) => {
            Ok(Caller::from_certificate(Arc::clone(peer), cluster))
        }
        (Some(peer), Some((_, Some(token)))) => {
            agrees(peer, token)?;
            Ok(Caller::from_certificate(Arc::clone(peer), cluster))
        }
        (None, Some((registry, Some(token)))) => match cluster {
            Some(cluster) => registry.verify(token, &cluster).await,
            None => match registry.unnamed() {
                Some(cluster) => {
                    let caller = registry.verify(token, &cluster).await?;
                    Ok(caller.without_name())
                }
                None => Err(CallerRefusal::unauthenticated(&codes::CALLER_UNKNOWN, NO_NAME)),
            },
        },
        (None, None | Some((_, None))) => {
            let reason = "neither a client certificate nor a bearer token";
            Err(CallerRefusal::unauthenticated(&codes::CALLER_UNKNOWN, reason))
        }
    }
}

/// Checks that a token in addition to a certificate has the same identity. It proves nothing more.
fn agrees(peer: &PeerIdentity, token: &str) -> Result<(), CallerRefusal> {
    let refuse = |reason: String| CallerRefusal::unauthenticated(&codes::TWO_CALLERS, reason);
    let read = SignedToken::read(token).or_else(|_| SignedToken::read_outside(token));
    let token = read.map_err(|flaw| refuse(flaw.to_string()))?;
    let (id, claims) = (peer.id(), token.unverified());
    match *claims.namespace == *id.namespace().as_str()
        && *claims.service_account == *id.service_account()
    {
        true => Ok(()),
        false => Err(refuse(format!(
            "the certificate is of {id}, the token is of account {:?} in namespace {:?}",
            claims.service_account, claims.namespace
        ))),
    }
}

/// Returns the value of a header that may occur once.
fn once<'a>(headers: &'a HeaderMap, name: &str) -> Result<Option<&'a str>, CallerRefusal> {
    let mut values = headers.get_all(name).iter();
    let first = values.next();
    if values.next().is_some() {
        let reason = format!("the call has {name} twice");
        return Err(CallerRefusal::unauthenticated(&codes::CALLER_UNKNOWN, reason));
    }
    let text = first.map(|value| value.to_str()).transpose();
    text.map_err(|_| {
        let reason = format!("the {name} of the call is not text");
        CallerRefusal::unauthenticated(&codes::CALLER_UNKNOWN, reason)
    })
}

fn named_cluster(headers: &HeaderMap) -> Result<Option<ClusterId>, CallerRefusal> {
    let named = once(headers, CLUSTER_ID)?.filter(|id| !id.is_empty());
    match named {
        Some(id) if id.len() > CLUSTER_ID_MAX => {
            let reason = "the clusterid of the call is longer than 253 bytes";
            Err(CallerRefusal::unauthenticated(&codes::CALLER_UNKNOWN, reason))
        }
        named => Ok(named.map(ClusterId::from)),
    }
}

fn bearer(headers: &HeaderMap) -> Result<Option<&str>, CallerRefusal> {
    let Some(value) = once(headers, AUTHORIZATION.as_str())? else { return Ok(None) };
    // RFC 6750, section 2.1; the scheme is case-insensitive (RFC 9110, section 11.1).
    let (scheme, token) = value.split_once(' ').unwrap_or((value, ""));
    match scheme.eq_ignore_ascii_case("bearer") {
        true => Ok(Some(token.trim())),
        false => {
            let reason = "the authorization of the call is not a bearer token";
            Err(CallerRefusal::unauthenticated(&codes::CALLER_UNKNOWN, reason))
        }
    }
}

#[cfg(test)]
mod tests;
