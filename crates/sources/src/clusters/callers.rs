//! Who brings a token: a pod of a member, as the member's keys and our own index of its pods prove, or else as its API
//! server says.
//!
//! Keys come first, so that a dark API server keeps no pod from calling; only pods and keys that nobody knows yet are
//! asked of it. A token is never sent to another API server than that of the member that it names, nor to that one
//! where its issuer is somebody else. Tokens are kept nowhere: verdicts are found by the hash.

mod issuers;
mod review;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use tokio::sync::watch;

pub use self::issuers::MemberKeys;
use self::issuers::{IssuerReader, KeysWanted};
pub use self::review::RunningPods;
use self::review::{ReviewedPod, Reviews};
use super::reconciler::{MemberClients, MembersSettled};
use super::status::ClusterStatus;
use strait_base::codes;
use strait_base::task::Supervisor;
use strait_identity::SpiffeId;
use strait_identity::caller::{
    Caller, CallerAnswer, CallerRefusal, CallerRegistry, RefusalKind, TokenProof,
};
use strait_identity::token::{IssuerKeys, SignedToken, TokenClaims, TokenFlaw, claimed_issuer};
use strait_model::policy::Policy;
use strait_model::{ClusterId, KnownClusters};

/// What is needed to know who calls.
#[derive(Debug)]
pub struct CallersConfig {
    /// The members.
    pub known: watch::Receiver<Arc<KnownClusters>>,
    /// Whether it is known what they are.
    pub settled: watch::Receiver<MembersSettled>,
    /// Their API servers.
    pub clients: watch::Receiver<Arc<MemberClients>>,
    /// Whom they may vouch for, where the operator says.
    pub policy: watch::Receiver<Arc<Policy>>,
    /// How they fare.
    pub statuses: watch::Receiver<Arc<Vec<ClusterStatus>>>,
    /// Who runs in them.
    pub pods: Arc<dyn RunningPods>,
    /// For whom tokens must be.
    pub audiences: Vec<String>,
    /// Other names by which calls may name members.
    pub aliases: BTreeMap<ClusterId, ClusterId>,
    /// For whose accounts only the config cluster vouches, unless policy says otherwise. So it is for the root namespace.
    pub system_namespace: String,
    /// Who else issues tokens, if anybody does.
    pub outside: Option<OutsideIssuer>,
    /// The keys that were last known.
    pub remembered: MemberKeys,
}

/// Somebody outside of all clusters who issues tokens for workloads there.
#[derive(Debug, Clone)]
pub struct OutsideIssuer {
    /// The `iss` of its tokens.
    pub issuer: String,
    /// The cluster to which its workloads belong.
    pub cluster: ClusterId,
    /// The namespaces whose accounts it may issue tokens for.
    pub namespaces: Vec<String>,
    /// Its keys, or why they are not known.
    pub keys: watch::Receiver<Result<Arc<IssuerKeys>, String>>,
}

/// Knows who brings a token.
#[derive(Debug)]
pub struct MemberCallers {
    config: CallersConfig,
    keys: watch::Receiver<Arc<MemberKeys>>,
    wanted: Arc<KeysWanted>,
    reviews: Reviews,
}

/// Starts to read the keys of members. Returns also the keys themselves, to be remembered.
pub fn start(
    mut config: CallersConfig,
    tasks: &Supervisor,
) -> (Arc<MemberCallers>, watch::Receiver<Arc<MemberKeys>>) {
    let remembered = std::mem::take(&mut config.remembered);
    let (keys, keys_seen) = watch::channel(Arc::new(remembered));
    let wanted = Arc::<KeysWanted>::default();
    let reader = IssuerReader {
        known: config.known.clone(),
        settled: config.settled.clone(),
        clients: config.clients.clone(),
        wanted: Arc::clone(&wanted),
        keys,
    };
    tasks.spawn_restarting("issuers", issuers::PAUSE, move || reader.clone().run());
    let callers =
        MemberCallers { config, keys: keys_seen.clone(), wanted, reviews: Reviews::default() };
    (Arc::new(callers), keys_seen)
}

impl CallerRegistry for MemberCallers {
    fn verify<'a>(&'a self, token: &'a str, cluster: &'a ClusterId) -> CallerAnswer<'a> {
        Box::pin(self.verified(token, cluster))
    }

    fn unnamed(&self) -> Option<ClusterId> {
        let known = self.config.known.borrow();
        known.clusters.iter().find(|(_, one)| one.config).map(|(id, _)| id.clone())
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

fn of_outside_refused(flaw: &dyn std::fmt::Display) -> CallerRefusal {
    CallerRefusal::unauthenticated(&codes::TOKEN_REFUSED, format!("of --token-issuer: {flaw}"))
}

/// What a member's keys say of a token.
enum OfflineVerdict<'a> {
    /// It is the member's.
    Proven(&'a TokenClaims),
    /// They don't say.
    Unknown(&'static str),
}

impl MemberCallers {
    /// Drops what API servers said of tokens whose pods have gone. Called for each new version of the mesh.
    pub fn forget_gone_pods(&self) {
        self.reviews.forget_gone(&*self.config.pods);
    }

    async fn verified(&self, token: &str, cluster: &ClusterId) -> Result<Caller, CallerRefusal> {
        let cluster = self.config.aliases.get(cluster).unwrap_or(cluster);
        let known = Arc::clone(&self.config.known.borrow());
        let Some(trust_domain) = known.trust_domain(cluster) else {
            let reason = format!("clusterid {:?} names no member", cluster.as_str());
            return Err(CallerRefusal::unauthenticated(&codes::CALLER_UNKNOWN, reason));
        };
        let refused = |flaw: TokenFlaw| {
            let reason = format!("of cluster {cluster}: {flaw}");
            CallerRefusal::unauthenticated(&codes::TOKEN_REFUSED, reason)
        };
        let now = SystemTime::now();
        if let (Some(outside), Ok(signed)) =
            (&self.config.outside, SignedToken::read_outside(token))
        {
            return self.of_outside(outside, &signed, cluster, trust_domain, now);
        }
        let signed = SignedToken::read(token).map_err(|flaw| match &self.config.outside {
            Some(outside) if claimed_issuer(token).is_some_and(|it| it == outside.issuer) => {
                of_outside_refused(&flaw)
            }
            _ => refused(flaw),
        })?;
        let claims = signed.unverified();
        let grace = self.grace(cluster, claims.expires, now);
        // Of one that has ended, the rest is looked at as of its last moment.
        let then = grace.map_or(now, |_| claims.expires - Duration::from_secs(1));
        signed.check(&self.config.audiences, then).map_err(refused)?;
        let id = SpiffeId::new(trust_domain, &claims.namespace, &claims.service_account)
            .map_err(|error| refused(TokenFlaw::Form("sub")).because(&error.to_string()))?;

        let keys = self.keys.borrow().get(cluster).cloned();
        let unknown = match self.offline(cluster, &signed, keys.as_deref()).map_err(refused)? {
            OfflineVerdict::Proven(claims) => match &claims.pod {
                Some(pod) if self.config.pods.has_pod(cluster, &id, pod) => None,
                Some(_) => Some("its pod is not known here"),
                None => Some("it is bound to no pod"),
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
                    "{why}, and the API server of {cluster} can't be asked"
                ))
            })?;
            let audiences = &self.config.audiences;
            let pod = claims.pod.clone().map(|pod| (cluster.clone(), id.clone(), pod));
            let pod = pod.map(|pod| ReviewedPod::new(pod, &*self.config.pods));
            self.reviews
                .ask(cluster, &client, token, claims, audiences, pod)
                .await
                .map_err(|refusal| refusal.because(why))?;
        }
        self.vouched(&known, cluster, &id)?;
        let pod = claims.pod.clone();
        let expires = claims.expires + grace.unwrap_or_default();
        Ok(Caller::of_token(id, TokenProof { cluster: cluster.clone(), named: true, pod, expires }))
    }

    /// Who brings a token of the issuer outside of all clusters: by its keys alone, there is nobody to ask.
    fn of_outside(
        &self,
        outside: &OutsideIssuer,
        signed: &SignedToken<'_>,
        cluster: &ClusterId,
        trust_domain: &str,
        now: SystemTime,
    ) -> Result<Caller, CallerRefusal> {
        let refused = of_outside_refused;
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
        let claims = signed.verify(&keys).map_err(|flaw| refused(&flaw))?;
        let id = SpiffeId::new(trust_domain, &claims.namespace, &claims.service_account);
        let id = id.map_err(|error| refused(&error))?;
        if !outside.namespaces.contains(&claims.namespace) {
            let reason = format!(
                "{id}: --token-issuer may issue tokens for namespaces {} alone (--token-namespace)",
                outside.namespaces.join(", ")
            );
            let (kind, code) = (RefusalKind::Denied, &codes::NOT_VOUCHED);
            return Err(CallerRefusal { kind, code, reason });
        }
        self.vouched(&self.config.known.borrow(), cluster, &id)?;
        let (cluster, expires) = (cluster.clone(), claims.expires);
        Ok(Caller::of_token(id, TokenProof { cluster, named: true, pod: None, expires }))
    }

    /// For how long after its end a token of a member is taken, where it has ended: not longer than policy says, and while the
    /// member is out of contact alone, when its nodes get no new ones for their pods.
    fn grace(&self, cluster: &ClusterId, expires: SystemTime, now: SystemTime) -> Option<Duration> {
        let late = now.duration_since(expires).ok()?;
        let (grace, _) = self.config.policy.borrow().dark_token_grace(cluster)?;
        let statuses = self.config.statuses.borrow();
        let is_dark = statuses.iter().any(|one| one.id == cluster.as_str() && one.is_dark());
        (late < grace && is_dark).then_some(grace)
    }

    /// What the member's keys say. A key that is not among them may be new.
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
                self.wanted.ask(cluster, Instant::now());
                Ok(OfflineVerdict::Unknown("its key is not known"))
            }
            Err(flaw) => Err(flaw),
        }
    }

    /// Where the issuer of a member is not known, a token that another's may have issued is not shown to it: it could
    /// use it there.
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

    fn vouched(
        &self,
        known: &KnownClusters,
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
            None if known.clusters.get(cluster).is_some_and(|one| one.config) => Ok(()),
            None => match self.config.pods.root_namespace() {
                None => Err(CallerRefusal::unchecked(
                    "the mesh config is not known yet, nor which is its root namespace".to_owned(),
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
