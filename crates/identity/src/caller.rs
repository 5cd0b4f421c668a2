//! Who calls, and how that is known: by the certificate of the connection, or by the token of the call.

use std::pin::Pin;
use std::sync::Arc;
use std::time::SystemTime;

use http::HeaderMap;
use http::header::AUTHORIZATION;

use super::token::{SignedToken, TokenPod};
use super::{PeerIdentity, SpiffeId};
use strait_base::codes::{self, Code};
use strait_model::ClusterId;

/// The metadata of a call that names the cluster whose token it brings.
const CLUSTER_ID: &str = "clusterid";
/// The longest cluster ID that is looked up, in bytes.
const CLUSTER_ID_MAX: usize = 253;

/// What is missing in a call with a token.
const NO_NAME: &str = "the call brings a token and no clusterid that says whose it is";

/// Who calls.
#[derive(Debug, Clone)]
pub struct Caller {
    identity: SpiffeId,
    proof: CallerProof,
}

/// How it is known who calls.
#[derive(Debug, Clone)]
pub enum CallerProof {
    /// The certificate of the connection, and the cluster that the call names, if it does.
    Certificate(Arc<PeerIdentity>, Option<ClusterId>),
    /// A token that a member cluster vouches for.
    Token(TokenProof),
}

/// What a verified token proves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenProof {
    /// The member that vouches for it.
    pub cluster: ClusterId,
    /// Whether the call names that member. One that doesn't may ask how others fare (istioctl), and be nobody itself.
    pub named: bool,
    /// The pod that it is bound to; none of a token that somebody asked for by hand.
    pub pod: Option<TokenPod>,
    /// When it ends.
    pub expires: SystemTime,
}

/// Why a caller is not known, or not believed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallerRefusal {
    /// What the caller may learn.
    pub kind: RefusalKind,
    /// The page about it.
    pub code: &'static Code,
    /// The facts, for whoever operates the mesh.
    pub reason: String,
}

/// What a caller that is refused may learn: whether to try again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RefusalKind {
    /// Nobody knows who it is.
    Unauthenticated,
    /// It is known, and its cluster may not vouch for it.
    Denied,
    /// It can't be known now.
    Unavailable,
}

/// What answers a question about a caller.
pub type CallerAnswer<'a> =
    Pin<Box<dyn Future<Output = Result<Caller, CallerRefusal>> + Send + 'a>>;

/// Who knows the pods of members and whom members vouch for.
pub trait CallerRegistry: std::fmt::Debug + Send + Sync {
    /// Who brings this token, which the call says is of that cluster. Takes no longer than some seconds.
    fn verify<'a>(&'a self, token: &'a str, cluster: &'a ClusterId) -> CallerAnswer<'a>;

    /// The member that is meant where a call names none, if there is one.
    fn unnamed(&self) -> Option<ClusterId> {
        None
    }

    /// The member that calls mean by this name: it may have others.
    fn member_called(&self, name: &ClusterId) -> ClusterId {
        name.clone()
    }

    /// Whether a pod of that cluster, or a machine that belongs to it, is known to run as that account.
    fn runs(&self, cluster: &ClusterId, identity: &SpiffeId) -> bool;
}

impl Caller {
    /// One that a certificate proves.
    pub fn of_certificate(peer: Arc<PeerIdentity>, cluster: Option<ClusterId>) -> Self {
        Self { identity: peer.id().clone(), proof: CallerProof::Certificate(peer, cluster) }
    }

    /// One that a token proves.
    pub fn of_token(identity: SpiffeId, proof: TokenProof) -> Self {
        Self { identity, proof: CallerProof::Token(proof) }
    }

    /// Who it is.
    pub fn identity(&self) -> &SpiffeId {
        &self.identity
    }

    /// How that is known.
    pub fn proof(&self) -> &CallerProof {
        &self.proof
    }

    /// The cluster that it says it is of, by whatever name: a token proves it.
    pub fn cluster(&self) -> Option<&ClusterId> {
        match &self.proof {
            CallerProof::Certificate(_, cluster) => cluster.as_ref(),
            CallerProof::Token(proof) => Some(&proof.cluster),
        }
    }

    /// The cluster that is proven: by the token of a call that names the cluster, or by the certificate. `None` if only the call
    /// names one.
    pub fn proven_cluster(&self) -> Option<ClusterId> {
        match &self.proof {
            CallerProof::Certificate(peer, _) => peer.cluster(),
            CallerProof::Token(proof) => proof.named.then(|| proof.cluster.clone()),
        }
    }

    /// The same, of a call that names no cluster.
    fn without_name(mut self) -> Self {
        if let CallerProof::Token(proof) = &mut self.proof {
            proof.named = false;
        }
        self
    }

    /// Whether the call says all that is needed to be somebody in the mesh.
    ///
    /// # Errors
    /// It brings a token and doesn't say whose.
    pub fn is_named(&self) -> Result<(), CallerRefusal> {
        match self.token() {
            Some(TokenProof { named: false, .. }) => {
                Err(CallerRefusal::unauthenticated(&codes::CALLER_UNKNOWN, NO_NAME))
            }
            _ => Ok(()),
        }
    }

    /// What the token proves, where there is one.
    pub fn token(&self) -> Option<&TokenProof> {
        match &self.proof {
            CallerProof::Token(proof) => Some(proof),
            CallerProof::Certificate(..) => None,
        }
    }
}

impl CallerRefusal {
    /// Nobody knows who calls.
    pub fn unauthenticated(code: &'static Code, reason: impl Into<String>) -> Self {
        Self { kind: RefusalKind::Unauthenticated, code, reason: reason.into() }
    }

    /// It can't be known now whose the token is.
    pub fn unchecked(reason: impl Into<String>) -> Self {
        let kind = RefusalKind::Unavailable;
        Self { kind, code: &codes::TOKEN_UNCHECKED, reason: reason.into() }
    }

    /// The same, with what led to it.
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

/// Whether a call brings a token.
pub fn brings_token(headers: &HeaderMap) -> bool {
    headers.contains_key(AUTHORIZATION)
}

/// Who makes a call with these headers on a connection whose other end is `peer`. Where `registry` is none, tokens
/// count for nothing.
///
/// # Errors
/// There is no proof, or one that doesn't hold, or two that name different identities.
pub async fn identify(
    peer: Option<&Arc<PeerIdentity>>,
    headers: &HeaderMap,
    registry: Option<&dyn CallerRegistry>,
) -> Result<Caller, CallerRefusal> {
    let cluster = named_cluster(headers)?;
    let token = registry.map(|registry| Ok((registry, bearer(headers)?))).transpose()?;
    match (peer, token) {
        (Some(peer), None | Some((_, None))) => {
            Ok(Caller::of_certificate(Arc::clone(peer), cluster))
        }
        (Some(peer), Some((_, Some(token)))) => {
            agrees(peer, token)?;
            Ok(Caller::of_certificate(Arc::clone(peer), cluster))
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

/// A token beside a certificate proves nothing more, and must not be somebody else's.
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
            "the certificate is {id}, the token is of account {:?} in namespace {:?}",
            claims.service_account, claims.namespace
        ))),
    }
}

/// The value of a header that may come once.
fn once<'a>(headers: &'a HeaderMap, name: &str) -> Result<Option<&'a str>, CallerRefusal> {
    let mut values = headers.get_all(name).iter();
    let first = values.next();
    if values.next().is_some() {
        let reason = format!("the call has {name} twice");
        return Err(CallerRefusal::unauthenticated(&codes::CALLER_UNKNOWN, reason));
    }
    let text = first.map(|value| value.to_str()).transpose();
    text.map_err(|_| {
        let reason = format!("the {name} of the call is no text");
        CallerRefusal::unauthenticated(&codes::CALLER_UNKNOWN, reason)
    })
}

fn named_cluster(headers: &HeaderMap) -> Result<Option<ClusterId>, CallerRefusal> {
    let named = once(headers, CLUSTER_ID)?.filter(|id| !id.is_empty());
    match named {
        Some(id) if id.len() > CLUSTER_ID_MAX => {
            let reason = "the clusterid of the call is longer than any";
            Err(CallerRefusal::unauthenticated(&codes::CALLER_UNKNOWN, reason))
        }
        named => Ok(named.map(ClusterId::from)),
    }
}

fn bearer(headers: &HeaderMap) -> Result<Option<&str>, CallerRefusal> {
    let Some(value) = once(headers, AUTHORIZATION.as_str())? else { return Ok(None) };
    // RFC 6750, section 2.1; the scheme in any case (RFC 9110, section 11.1).
    let (scheme, token) = value.split_once(' ').unwrap_or((value, ""));
    match scheme.eq_ignore_ascii_case("bearer") {
        true => Ok(Some(token.trim())),
        false => {
            let reason = "the authorization of the call is no bearer token";
            Err(CallerRefusal::unauthenticated(&codes::CALLER_UNKNOWN, reason))
        }
    }
}

#[cfg(test)]
mod tests;
