//! The certificate service of Istio's agent: issues certificates for the identity of the caller.
//!
//! The server that accepted the call stores its [`Caller`] in the request's extensions. A caller
//! with a token receives a certificate. A caller with a certificate receives another one only while
//! its member still runs a pod with this identity.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use tokio::sync::{Semaphore, watch};
use tonic::{Code, Request, Response, Status};
use tracing::{info, warn};

use super::authority::LIFETIME_DEFAULT;
use super::caller::{Caller, CallerProof, CallerRegistry};
use super::limits::IssueLimits;
use super::proof_time::CHAIN_MAX;
use super::{Authority, IdentityError, PeerIdentity, RootLedger, ServerIdentity};
use strait_base::codes;
use strait_base::lock::lock;
use strait_model::ClusterId;
use strait_proto::envoy::google::protobuf::value::Kind;
use strait_proto::istio::auth::istio_certificate_service_server::IstioCertificateService;
use strait_proto::istio::auth::{IstioCertificateRequest, IstioCertificateResponse};

/// Maximum number of concurrent signatures. Each occupies a CPU.
const SIGNERS: usize = 2;

/// Counts of certificate requests by result.
#[derive(Debug, Default)]
pub struct IssueStats {
    /// Number of requests.
    pub requested: AtomicU64,
    /// Number of issued certificates.
    pub issued: AtomicU64,
    /// Number of refused requests.
    pub refused: AtomicU64,
    /// Number of calls by unknown callers, by code.
    unauthenticated: Mutex<BTreeMap<&'static str, u64>>,
    /// Number of failed requests, by Istio's name of the reason.
    failed: Mutex<BTreeMap<&'static str, u64>>,
}

impl IssueStats {
    /// Counts a call of an unknown caller, by the code of the reason.
    pub fn unauthenticated(&self, code: &'static str) {
        *lock(&self.unauthenticated).entry(code).or_default() += 1;
    }

    /// Returns the number of calls by unknown callers for each code.
    pub fn unauthenticated_by_code(&self) -> BTreeMap<&'static str, u64> {
        lock(&self.unauthenticated).clone()
    }

    /// Returns the number of failed requests for each reason, with Istio's names.
    pub fn failed_by_reason(&self) -> BTreeMap<&'static str, u64> {
        lock(&self.failed).clone()
    }

    fn fails(&self, error: &IdentityError) {
        let reason = match error {
            IdentityError::Request(_) => "CSR_ERROR",
            IdentityError::Lifetime { .. } => "TTL_ERROR",
            IdentityError::NoAuthority => "CA_NOT_READY",
            _ => "CERT_GEN_ERROR",
        };
        *lock(&self.failed).entry(reason).or_default() += 1;
    }
}

/// The CA that signs for a caller, its records, and the permitted lifetime.
struct SigningPermit {
    authority: Arc<Authority>,
    /// Counter of certificates, if the CA is dedicated to a member.
    counted: Option<Arc<AtomicU64>>,
    ledger: Arc<RootLedger>,
    lifetime: Duration,
    /// Time when a token last proved the caller's identity.
    proved: SystemTime,
    /// The cluster of that token, if it is known.
    cluster: Option<ClusterId>,
}

/// Issues certificates for the callers' own identities, within one trust domain.
#[derive(Debug, Clone)]
pub struct CertificateService {
    identity: watch::Receiver<Arc<ServerIdentity>>,
    trust_domain: watch::Receiver<Option<Arc<str>>>,
    registry: Arc<dyn CallerRegistry>,
    stats: Arc<IssueStats>,
    limits: Arc<Mutex<IssueLimits>>,
    signers: Arc<Semaphore>,
    /// Maximum lifetime of a certificate.
    lifetime_max: Duration,
}

impl CertificateService {
    /// Creates a service that signs with the current CA of `identity`, for `trust_domain` only;
    /// while the trust domain is unknown, it refuses all requests. `registry` knows the existing
    /// pods.
    pub fn new(
        identity: watch::Receiver<Arc<ServerIdentity>>,
        trust_domain: watch::Receiver<Option<Arc<str>>>,
        registry: Arc<dyn CallerRegistry>,
        stats: Arc<IssueStats>,
        lifetime_max: Duration,
    ) -> Self {
        let limits = Arc::new(Mutex::new(IssueLimits::new(Instant::now())));
        let signers = Arc::new(Semaphore::new(SIGNERS));
        Self { identity, trust_domain, registry, stats, limits, signers, lifetime_max }
    }

    /// Returns the CA that signs for this caller, and the lifetime.
    fn permit(
        &self,
        caller: &Caller,
        request: &IstioCertificateRequest,
        now: SystemTime,
    ) -> Result<SigningPermit, Status> {
        // A foreign root may be trusted for its own domain. That gives no right to a certificate
        // for this domain.
        let trust_domain = self.trust_domain.borrow().clone().ok_or_else(|| {
            Status::unavailable(
                "the mesh config, which names the trust domain, has not been read yet",
            )
        })?;
        if caller.identity().trust_domain() != &*trust_domain {
            return Err(Status::permission_denied(format!(
                "this CA signs for trust domain {trust_domain:?} only"
            )));
        }
        if impersonates(request) {
            return Err(Status::permission_denied("this CA signs for the caller only"));
        }
        if let Some(signer) = named_signer(request) {
            let text =
                format!("this CA supports no external signers; there is no CertSigner {signer:?}");
            return Err(Status::invalid_argument(text));
        }
        if let Err(refusal) = caller.is_named() {
            let (code, title) = (refusal.code, refusal.code.title);
            return Err(Status::unauthenticated(format!("{code}: {title}")));
        }
        let identity = Arc::clone(&self.identity.borrow());
        // The connection may be older than the roots. A certificate must not outlive its trust by
        // being exchanged for a new one.
        if let CallerProof::Certificate(peer, cluster) = caller.proof() {
            if !identity.still_trusts(peer, now) {
                return Err(Status::unauthenticated(
                    "STR0707: the client certificate has expired or no longer chains to a trusted root",
                ));
            }
            self.renews(peer, cluster.as_ref(), now)?;
        }
        let (authority, counted) = self.signer(caller, &identity)?;
        let lifetime = match u64::try_from(request.validity_duration) {
            Ok(0) => LIFETIME_DEFAULT.min(self.lifetime_max),
            Ok(seconds) => Duration::from_secs(seconds),
            Err(_) => return Err(Status::invalid_argument("validity_duration is negative")),
        };
        // Not shortened silently, because the caller relies on the requested lifetime.
        if lifetime > self.lifetime_max {
            let error = IdentityError::Lifetime { requested: lifetime, most: self.lifetime_max };
            self.stats.fails(&error);
            return Err(Status::new(code(&error), error.to_string()));
        }
        let in_limits = lock(&self.limits).take(caller.identity(), Instant::now());
        in_limits.map_err(|wait| {
            let (code, ms) = (&codes::CERTIFICATE_LIMIT, wait.as_millis() + 1);
            let text = format!("{code}: {}; retry in {ms} ms", code.title);
            Status::resource_exhausted(text)
        })?;
        let ledger = Arc::clone(&identity.evidence().ledger);
        // A certificate without this time was issued manually or by an older version; the time
        // starts now. So does a time in the future, from a replica whose clock was ahead.
        let proved = match caller.proof() {
            CallerProof::Certificate(peer, _) => peer.proved().unwrap_or(now).min(now),
            CallerProof::Token(_) => now,
        };
        let cluster = caller.proven_cluster().map(|cluster| self.registry.member_called(&cluster));
        Ok(SigningPermit { authority, counted, ledger, lifetime, proved, cluster })
    }

    /// Returns the CA of the caller: the dedicated CA of its member if one exists, and never
    /// another CA instead.
    fn signer(
        &self,
        caller: &Caller,
        identity: &ServerIdentity,
    ) -> Result<(Arc<Authority>, Option<Arc<AtomicU64>>), Status> {
        let fails = || self.stats.fails(&IdentityError::NoAuthority);
        let member = caller.cluster().map(|cluster| self.registry.member_called(cluster));
        let Some(own) = member.and_then(|member| identity.members.get(&member)) else {
            let authority = identity.authority.as_ref().ok_or_else(|| {
                fails();
                Status::unimplemented("this control plane has no CA")
            })?;
            return Ok((Arc::clone(authority), None));
        };
        let authority = own.authority.as_ref().ok_or_else(|| {
            fails();
            // A deliberate removal is final: a retry gives the same result. Other faults must be
            // fixed.
            match &own.problem {
                Some(problem) if problem.code == codes::MEMBER_CA_GONE.id => {
                    let code = &codes::MEMBER_CA_GONE;
                    Status::permission_denied(format!("{code}: {}", code.title))
                }
                _ => {
                    let code = &codes::MEMBER_CA;
                    Status::unavailable(format!("{code}: {}", code.title))
                }
            }
        })?;
        Ok((Arc::clone(authority), Some(Arc::clone(&own.issued))))
    }

    /// Checks that a certificate may be exchanged for another one: the identity of a deleted pod
    /// must not survive in certificates.
    fn renews(
        &self,
        peer: &PeerIdentity,
        cluster: Option<&ClusterId>,
        now: SystemTime,
    ) -> Result<(), Status> {
        let proved = peer.proved().and_then(|proved| now.duration_since(proved).ok());
        if proved.is_some_and(|ago| ago > CHAIN_MAX) {
            let code = &codes::RENEWED_LONG_ENOUGH;
            return Err(Status::permission_denied(format!("{code}: {}", code.title)));
        }
        let called = cluster.map(|cluster| self.registry.member_called(cluster));
        let own = peer.cluster().map(|own| self.registry.member_called(&own));
        if let Some(member) = own.filter(|own| called.as_ref().is_some_and(|called| called != own))
        {
            let code = &codes::OTHER_MEMBER_RENEWS;
            let text = format!("{code}: {}: the certificate is of cluster {member}", code.title);
            return Err(Status::permission_denied(text));
        }
        let (code, id) = (&codes::NOT_RENEWED, peer.id());
        let fact = match cluster {
            None => "the call names no clusterid".to_owned(),
            Some(cluster) if self.registry.runs(cluster, id) => return Ok(()),
            Some(cluster) => format!("cluster {cluster} runs no pod as {id}"),
        };
        Err(Status::permission_denied(format!("{code}: {}: {fact}", code.title)))
    }

    async fn sign(
        &self,
        caller: &Caller,
        request: IstioCertificateRequest,
        now: SystemTime,
    ) -> Result<IstioCertificateResponse, Status> {
        let SigningPermit { authority, counted, ledger, lifetime, proved, cluster } =
            self.permit(caller, &request, now)?;
        let fault = |_| Status::internal("the signing task failed");
        let turn = Arc::clone(&self.signers).acquire_owned().await;
        let turn = turn.map_err(|_| Status::unavailable("the server is shutting down"))?;
        let id = caller.identity().clone();
        let signed = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            let chain = authority.sign_request(
                &request.csr,
                &id,
                cluster.as_ref(),
                lifetime,
                proved,
                now,
            )?;
            // Recorded before the certificate is returned: without a record, its root could be
            // removed too early.
            ledger.issued(authority.leading(), chain.not_after());
            // The agent takes the first element as the leaf and the last one as the roots,
            // regardless of the rest.
            let mut cert_chain = chain.to_pems();
            cert_chain.push(authority.roots().to_pem());
            Ok::<_, IdentityError>(IstioCertificateResponse { cert_chain })
        });
        let answer = signed.await.map_err(fault)?.map_err(|error| {
            self.stats.fails(&error);
            Status::new(code(&error), error.to_string())
        })?;
        if let Some(counted) = counted {
            counted.fetch_add(1, Ordering::Relaxed);
        }
        Ok(answer)
    }
}

#[tonic::async_trait]
impl IstioCertificateService for CertificateService {
    async fn create_certificate(
        &self,
        request: Request<IstioCertificateRequest>,
    ) -> Result<Response<IstioCertificateResponse>, Status> {
        let count = |counter: &AtomicU64| counter.fetch_add(1, Ordering::Relaxed);
        count(&self.stats.requested);
        let Some(caller) = request.extensions().get::<Caller>().cloned() else {
            return Err(Status::unauthenticated("the caller is unknown"));
        };
        let answer = self.sign(&caller, request.into_inner(), SystemTime::now()).await;
        let (peer, by_token) = (caller.identity(), caller.token().is_some());
        match &answer {
            Ok(_) => {
                count(&self.stats.issued);
                info!(%peer, by_token, "certificate issued");
            }
            Err(status) => {
                count(&self.stats.refused);
                warn!(%peer, by_token, reason = status.message(), "certificate refused");
            }
        }
        answer.map(Response::new)
    }
}

fn code(error: &IdentityError) -> Code {
    match error {
        IdentityError::Request(_) | IdentityError::Lifetime { .. } => Code::InvalidArgument,
        _ => Code::Internal,
    }
}

/// Returns whether the request is for the certificate of another identity, as node proxies request
/// it for the pods of their node.
fn impersonates(request: &IstioCertificateRequest) -> bool {
    field(request, "ImpersonatedIdentity").is_some()
}

/// Returns the external signer that the request names. Agents always send the field, mostly empty.
fn named_signer(request: &IstioCertificateRequest) -> Option<&str> {
    field(request, "CertSigner")
}

/// Returns a non-empty field of the request's metadata.
fn field<'a>(request: &'a IstioCertificateRequest, name: &str) -> Option<&'a str> {
    let named = request.metadata.as_ref().and_then(|all| all.fields.get(name));
    match named?.kind.as_ref()? {
        Kind::NullValue(_) => None,
        Kind::StringValue(text) => Some(&**text).filter(|text| !text.is_empty()),
        _ => Some("no text"),
    }
}

#[cfg(test)]
mod tests;
