//! Authentication of callers that present a token of a member cluster: with the member's signing
//! keys and pod index, or with a TokenReview of the member's API server.
//!
//! Keys are checked first, so that pods can authenticate while their API server is unreachable.
//! Requests are sent to the API server only for unknown pods and unknown keys. A token is sent only
//! to the API server of the member that it names, and never if its issuer is known to be another
//! member. Tokens are not stored: reviews are looked up by the token's hash.

mod issuers;
mod review;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use tokio::sync::watch;

use self::issuers::IssuerReader;
pub use self::issuers::MemberKeys;
pub use self::review::RunningPods;
use self::review::{ReviewedPod, Reviews};
use super::reconciler::{MemberClients, MembersSettled};
use super::status::ClusterStatus;
use crate::jwks::KeyRequests;
use strait_base::codes;
use strait_base::task::Supervisor;
use strait_identity::SpiffeId;
use strait_identity::caller::{
    Caller, CallerAnswer, CallerRefusal, CallerRegistry, RefusalKind, TokenProof,
};
use strait_identity::token::{IssuerKeys, SignedToken, TokenClaims, TokenFlaw, claimed_issuer};
use strait_model::fetched_keys::KeyPlace;
use strait_model::policy::Policy;
use strait_model::{ClusterId, KnownClusters};

/// Inputs for the verification of tokens.
#[derive(Debug)]
pub struct CallersConfig {
    /// The member clusters.
    pub known: watch::Receiver<Arc<KnownClusters>>,
    /// Whether the set of members is complete.
    pub settled: watch::Receiver<MembersSettled>,
    /// Clients of the members' API servers.
    pub clients: watch::Receiver<Arc<MemberClients>>,
    /// The policy, which restricts the namespaces that a member may vouch for.
    pub policy: watch::Receiver<Arc<Policy>>,
    /// The status of each member.
    pub statuses: watch::Receiver<Arc<Vec<ClusterStatus>>>,
    /// The running pods of the members.
    pub pods: Arc<dyn RunningPods>,
    /// The accepted audiences of tokens.
    pub audiences: Vec<String>,
    /// Alternative names of members in requests, mapped to member IDs.
    pub aliases: BTreeMap<ClusterId, ClusterId>,
    /// The system namespace. Unless the policy allows other clusters, only the config cluster
    /// vouches for accounts of this namespace. The same rule applies to the root namespace.
    pub system_namespace: String,
    /// A token issuer outside all clusters, if one is configured.
    pub outside: Option<OutsideIssuer>,
    /// The signing keys of the members from before the process started.
    pub remembered: MemberKeys,
}

/// A token issuer outside all clusters, for workloads that don't run in a cluster.
#[derive(Debug, Clone)]
pub struct OutsideIssuer {
    /// The `iss` claim of tokens from this issuer.
    pub issuer: String,
    /// The cluster to which its workloads belong.
    pub cluster: ClusterId,
    /// The namespaces whose accounts it may issue tokens for.
    pub namespaces: Vec<String>,
    /// Its keys, or the reason why they are unknown.
    pub keys: watch::Receiver<Result<Arc<IssuerKeys>, String>>,
    /// Where its keys are fetched.
    pub place: KeyPlace,
    /// The requests to fetch them before they are due.
    pub requests: Arc<KeyRequests<KeyPlace>>,
}

/// Verifies callers that present a token.
#[derive(Debug)]
pub struct MemberCallers {
    config: CallersConfig,
    keys: watch::Receiver<Arc<MemberKeys>>,
    requests: Arc<KeyRequests<ClusterId>>,
    reviews: Reviews,
}

/// Starts reading the signing keys of the members. Also returns the keys, so that they can be
/// stored.
pub fn start(
    mut config: CallersConfig,
    tasks: &Supervisor,
) -> (Arc<MemberCallers>, watch::Receiver<Arc<MemberKeys>>) {
    let remembered = std::mem::take(&mut config.remembered);
    let (keys, keys_receiver) = watch::channel(Arc::new(remembered));
    let requests = Arc::<KeyRequests<ClusterId>>::default();
    let reader = IssuerReader {
        known: config.known.clone(),
        settled: config.settled.clone(),
        clients: config.clients.clone(),
        requests: Arc::clone(&requests),
        keys,
    };
    tasks.spawn_restarting("issuers", issuers::PAUSE, move || reader.clone().run());
    let callers = MemberCallers {
        config,
        keys: keys_receiver.clone(),
        requests,
        reviews: Reviews::default(),
    };
    (Arc::new(callers), keys_receiver)
}

impl CallerRegistry for MemberCallers {
    fn verify<'a>(&'a self, token: &'a str, cluster: &'a ClusterId) -> CallerAnswer<'a> {
        Box::pin(self.verified(token, cluster))
    }

    fn unnamed(&self) -> Option<ClusterId> {
        let known_clusters = self.config.known.borrow();
        known_clusters.clusters.iter().find(|(_, one)| one.config).map(|(id, _)| id.clone())
    }

    fn member_called(&self, name: &ClusterId) -> ClusterId {
        self.config.aliases.get(name).unwrap_or(name).clone()
    }

    fn runs(&self, cluster: &ClusterId, identity: &SpiffeId) -> bool {
        let cluster = self.config.aliases.get(cluster).unwrap_or(cluster);
        self.config.known.borrow().contains(cluster)
            && self.config.pods.has_account(cluster, identity)
    }
}

fn outside_token_refused(flaw: &dyn std::fmt::Display) -> CallerRefusal {
    CallerRefusal::unauthenticated(
        &codes::TOKEN_REFUSED,
        format!("token of --token-issuer: {flaw}"),
    )
}

/// The result of checking a token with a member's keys.
enum OfflineVerdict<'a> {
    /// A key of the member signed the token.
    Proven(&'a TokenClaims),
    /// The keys cannot decide, with the reason.
    Unknown(&'static str),
}

impl MemberCallers {
    /// Removes the reviews of tokens whose pods no longer exist. Called for each new version of the
    /// mesh.
    pub fn forget_gone_pods(&self) {
        self.reviews.forget_gone(&*self.config.pods);
    }

    /// Returns the service account of the system namespace to which the config cluster issued
    /// `token` for `audience`. The API server decides, so a deleted account loses access.
    ///
    /// # Errors
    /// Fails if the token is not such a token, or if the API server rejects it or cannot be reached.
    pub async fn system_account(
        &self,
        token: &str,
        audience: &str,
    ) -> Result<String, CallerRefusal> {
        let refused = |flaw: TokenFlaw| {
            CallerRefusal::unauthenticated(&codes::TOKEN_REFUSED, flaw.to_string())
        };
        let signed = SignedToken::read(token).map_err(refused)?;
        let audiences = [audience.to_owned()];
        signed.check(&audiences, SystemTime::now()).map_err(refused)?;
        let claims = signed.unverified();
        if claims.namespace != self.config.system_namespace {
            return Err(refused(TokenFlaw::Form("sub")));
        }
        let unchecked =
            || CallerRefusal::unchecked("the config cluster cannot be contacted now".to_owned());
        let cluster = self.unnamed().ok_or_else(unchecked)?;
        let keys = self.keys.borrow().get(&cluster).cloned();
        self.offline(&cluster, &signed, keys.as_deref()).map_err(refused)?;
        self.foreign_issuer(&cluster, claims, keys.is_some())?;
        let client = self.config.clients.borrow().get(&cluster).cloned();
        let client = client.ok_or_else(unchecked)?;
        self.reviews.review_token(&cluster, &client, token, claims, &audiences, None).await?;
        Ok(claims.service_account.clone())
    }

    async fn verified(&self, token: &str, cluster: &ClusterId) -> Result<Caller, CallerRefusal> {
        let cluster = self.config.aliases.get(cluster).unwrap_or(cluster);
        let known_clusters = Arc::clone(&self.config.known.borrow());
        let Some(trust_domain) = known_clusters.trust_domain(cluster) else {
            let reason = format!("clusterid {:?} is not a member cluster", cluster.as_str());
            return Err(CallerRefusal::unauthenticated(&codes::CALLER_UNKNOWN, reason));
        };
        let refused = |flaw: TokenFlaw| {
            let reason = format!("token of cluster {cluster}: {flaw}");
            CallerRefusal::unauthenticated(&codes::TOKEN_REFUSED, reason)
        };
        let now = SystemTime::now();
        if let (Some(outside), Ok(signed)) =
            (&self.config.outside, SignedToken::read_outside(token))
        {
            return self.verify_outside(outside, &signed, cluster, trust_domain, now);
        }
        let signed = SignedToken::read(token).map_err(|flaw| match &self.config.outside {
            Some(outside) if claimed_issuer(token).is_some_and(|it| it == outside.issuer) => {
                outside_token_refused(&flaw)
            }
            _ => refused(flaw),
        })?;
        let claims = signed.unverified();
        let grace = self.grace(cluster, claims.expires, now);
        // A token within its grace period is checked as of one second before it expired.
        let then = grace.map_or(now, |_| claims.expires - Duration::from_secs(1));
        signed.check(&self.config.audiences, then).map_err(refused)?;
        let id = SpiffeId::new(trust_domain, &claims.namespace, &claims.service_account)
            .map_err(|error| refused(TokenFlaw::Form("sub")).because(&error.to_string()))?;

        let keys = self.keys.borrow().get(cluster).cloned();
        let unknown = match self.offline(cluster, &signed, keys.as_deref()).map_err(refused)? {
            OfflineVerdict::Proven(claims) => match &claims.pod {
                Some(pod) if self.config.pods.has_pod(cluster, &id, pod) => None,
                Some(_) => Some("its pod is unknown"),
                None => Some("it is not bound to a pod"),
            },
            OfflineVerdict::Unknown(why) => Some(why),
        };
        if unknown.is_some() && grace.is_some() {
            return Err(refused(TokenFlaw::Ended));
        }
        if let Some(why) = unknown {
            self.foreign_issuer(cluster, claims, keys.is_some())?;
            let client = self.config.clients.borrow().get(cluster).cloned();
            let client = client.ok_or_else(|| {
                CallerRefusal::unchecked(format!(
                    "{why}, and the API server of {cluster} cannot be contacted now"
                ))
            })?;
            let audiences = &self.config.audiences;
            let pod = claims.pod.clone().map(|pod| (cluster.clone(), id.clone(), pod));
            let pod = pod.map(|pod| ReviewedPod::new(pod, &*self.config.pods));
            self.reviews
                .review_token(cluster, &client, token, claims, audiences, pod)
                .await
                .map_err(|refusal| refusal.because(why))?;
        }
        self.check_may_vouch(&known_clusters, cluster, &id)?;
        let pod = claims.pod.clone();
        let expires = claims.expires + grace.unwrap_or_default();
        Ok(Caller::from_token(
            id,
            TokenProof { cluster: cluster.clone(), named: true, pod, expires },
        ))
    }

    /// Verifies a token of the issuer outside all clusters. Only its keys decide: it has no API
    /// server for a TokenReview.
    fn verify_outside(
        &self,
        outside: &OutsideIssuer,
        signed: &SignedToken<'_>,
        cluster: &ClusterId,
        trust_domain: &str,
        now: SystemTime,
    ) -> Result<Caller, CallerRefusal> {
        let refused = outside_token_refused;
        if outside.cluster != *cluster {
            let fact = format!("it is for workloads of cluster {}, not {cluster}", outside.cluster);
            return Err(refused(&fact));
        }
        signed.check(&self.config.audiences, now).map_err(|flaw| refused(&flaw))?;
        let keys = outside.keys.borrow().clone();
        let keys = keys.map_err(|why| {
            let fact =
                format!("the keys of --token-issuer are not known yet (--token-jwks): {why}");
            CallerRefusal::unchecked(fact)
        })?;
        let claims = signed.verify(&keys).map_err(|flaw| {
            if matches!(flaw, TokenFlaw::UnknownKey(_)) {
                outside.requests.request(&outside.place, Instant::now());
            }
            refused(&flaw)
        })?;
        let id = SpiffeId::new(trust_domain, &claims.namespace, &claims.service_account);
        let id = id.map_err(|error| refused(&error))?;
        if !outside.namespaces.contains(&claims.namespace) {
            let reason = format!(
                "{id}: --token-issuer may issue tokens only for namespaces {} (--token-namespace)",
                outside.namespaces.join(", ")
            );
            let (kind, code) = (RefusalKind::Denied, &codes::NOT_VOUCHED);
            return Err(CallerRefusal { kind, code, reason });
        }
        self.check_may_vouch(&self.config.known.borrow(), cluster, &id)?;
        let (cluster, expires) = (cluster.clone(), claims.expires);
        Ok(Caller::from_token(id, TokenProof { cluster, named: true, pod: None, expires }))
    }

    /// Returns the grace period of an expired token. `None` unless the policy grants one to the
    /// member, the period has not passed, and the member is unreachable: its nodes then get no new
    /// tokens for their pods.
    fn grace(&self, cluster: &ClusterId, expires: SystemTime, now: SystemTime) -> Option<Duration> {
        let expired_for = now.duration_since(expires).ok()?;
        let (grace, _) = self.config.policy.borrow().dark_token_grace(cluster)?;
        let statuses = self.config.statuses.borrow();
        let is_dark = statuses.iter().any(|one| one.id == cluster.as_str() && one.is_dark());
        (expired_for < grace && is_dark).then_some(grace)
    }

    /// Checks a token with the member's keys. An unknown key may be new: the keys are then
    /// requested again.
    fn offline<'a>(
        &self,
        cluster: &ClusterId,
        signed: &'a SignedToken<'_>,
        keys: Option<&IssuerKeys>,
    ) -> Result<OfflineVerdict<'a>, TokenFlaw> {
        let Some(keys) = keys else {
            return Ok(OfflineVerdict::Unknown("the cluster's keys are not known"));
        };
        match signed.verify(keys) {
            Ok(claims) => Ok(OfflineVerdict::Proven(claims)),
            Err(TokenFlaw::UnknownKey(_)) => {
                self.requests.request(cluster, Instant::now());
                Ok(OfflineVerdict::Unknown("its key is not known"))
            }
            Err(flaw) => Err(flaw),
        }
    }

    /// Refuses a token whose issuer is known to be another member if the keys of `cluster` are
    /// unknown. The token must not be sent to the API server of `cluster`, which could use it at
    /// the other member.
    fn foreign_issuer(
        &self,
        cluster: &ClusterId,
        claims: &TokenClaims,
        is_known: bool,
    ) -> Result<(), CallerRefusal> {
        if is_known {
            return Ok(());
        }
        let keys = self.keys.borrow();
        let other = keys.iter().find(|(_, keys)| **keys.issuer() == *claims.issuer);
        match other {
            None => Ok(()),
            Some((other, _)) => Err(CallerRefusal::unchecked(format!(
                "the keys of cluster {cluster} are not known, and the issuer is that of {other}"
            ))),
        }
    }

    fn check_may_vouch(
        &self,
        known_clusters: &KnownClusters,
        cluster: &ClusterId,
        id: &SpiffeId,
    ) -> Result<(), CallerRefusal> {
        let namespace = id.namespace().as_str();
        let denied = |reason: String| {
            Err(CallerRefusal { kind: RefusalKind::Denied, code: &codes::NOT_VOUCHED, reason })
        };
        match self.config.policy.borrow().may_vouch(cluster, namespace) {
            Some(Ok(())) => Ok(()),
            Some(Err(refusal)) => denied(refusal.to_string()),
            None if known_clusters.clusters.get(cluster).is_some_and(|one| one.config) => Ok(()),
            None => match self.config.pods.root_namespace() {
                None => Err(CallerRefusal::unchecked(
                    "the mesh config and its root namespace are not known yet".to_owned(),
                )),
                Some(root)
                    if ![&root, &self.config.system_namespace]
                        .iter()
                        .any(|one| **one == namespace) =>
                {
                    Ok(())
                }
                Some(_) => denied(format!(
                    "{id}: only the config cluster vouches for namespace {namespace}, unless policy names it (clusters.{cluster}.identities)"
                )),
            },
        }
    }
}
