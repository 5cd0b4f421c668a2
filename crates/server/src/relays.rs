//! Relays at the xDS port: their connections, and their certificates.
//!
//! `strait_relay::hub` owns the connections and checks invitations. This module connects it with the members, the CA, and
//! the record of used invitations.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use http::{Method, StatusCode};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::relay_keys::RelayIssuerKeys;
use super::relay_tokens::{self, TrustedKeys};
use super::used_invitations::UsedInvitations;
use strait_ads::relays::{RelayFuture, RelayPort, RelayStream};
use strait_base::codes;
use strait_base::hex;
use strait_base::lock::lock;
use strait_base::task::Supervisor;
use strait_base::time::rfc3339;
use strait_identity::{Authority, IdentityError, RelayIdentity, ServerIdentity};
use strait_model::ClusterId;
use strait_model::fetched_keys::KeyPlace;
use strait_model::policy::Policy;
use strait_relay::hub::{
    EnrolmentLimits, EnrolmentRefusal, RelayClaims, RelayHub, RelayedMember, ReplicaName,
    SessionEnd, check_id, check_uid, invited, read_enrol, read_renew,
};
use strait_relay::wire::{CertificateResponse, ENROL_PATH, RENEW_PATH};
use strait_sources::clusters::reconciler::RelayedMembers;
use strait_sources::clusters::status::ClusterStatus;

/// The interval of checks whether a replaced generation is still accepted.
const SWEEP_INTERVAL: Duration = Duration::from_secs(10);

/// The dependencies of [`RelayService`].
pub(super) struct RelayServiceConfig {
    pub(super) hub: Arc<RelayHub>,
    pub(super) identity: watch::Receiver<Arc<ServerIdentity>>,
    pub(super) trust_domain: watch::Receiver<Option<Arc<str>>>,
    pub(super) statuses: watch::Receiver<Arc<Vec<ClusterStatus>>>,
    pub(super) used_invitations: UsedInvitations,
    pub(super) policy: watch::Receiver<Arc<Policy>>,
    /// The keys of issuers of tokens that the policy does not contain.
    pub(super) published_keys: RelayIssuerKeys,
    /// The lifetime of a relay's certificate.
    pub(super) lifetime: Duration,
    pub(super) replica: watch::Receiver<ReplicaName>,
    pub(super) drain: CancellationToken,
}

/// Serves relays at the xDS port.
#[derive(Clone)]
pub(super) struct RelayService(Arc<RelayServiceState>);

struct RelayServiceState {
    config: RelayServiceConfig,
    limits: Mutex<EnrolmentLimits>,
}

impl RelayService {
    pub(super) fn new(config: RelayServiceConfig) -> Self {
        Self(Arc::new(RelayServiceState { config, limits: Mutex::default() }))
    }
}

impl RelayPort for RelayService {
    fn serve(
        &self,
        stream: RelayStream,
        relay: RelayIdentity,
        address: SocketAddr,
    ) -> RelayFuture<()> {
        let state = Arc::clone(&self.0);
        Box::pin(async move { state.serve(stream, relay, address).await })
    }

    fn answer(
        &self,
        method: Method,
        path: String,
        body: Bytes,
        relay: Option<Arc<RelayIdentity>>,
        address: SocketAddr,
    ) -> RelayFuture<(StatusCode, Bytes)> {
        let state = Arc::clone(&self.0);
        Box::pin(async move {
            let result = match (method, path.as_str()) {
                (Method::POST, ENROL_PATH) => state.enrol(&body, address).await,
                (Method::POST, RENEW_PATH) => state.renew(&body, relay.as_deref(), address),
                (_, ENROL_PATH | RENEW_PATH) => Err(EnrolmentRefusal::new(
                    405,
                    &codes::RELAY_REQUEST,
                    format!("{path} takes only POST"),
                )),
                _ => Err(EnrolmentRefusal::new(
                    404,
                    &codes::RELAY_REQUEST,
                    format!("no such path: {path:?}"),
                )),
            };
            let (status, body) = match result {
                Ok(response) => (200, serde_json::to_vec(&response)),
                Err(refusal) => {
                    warn!(code = refusal.code.id, peer = %address, fact = refusal.fact, "relay gets no certificate");
                    (refusal.status, serde_json::to_vec(&refusal.body()))
                }
            };
            let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
            (status, body.unwrap_or_default().into())
        })
    }
}

impl RelayServiceState {
    async fn serve(&self, stream: RelayStream, relay: RelayIdentity, address: SocketAddr) {
        let cluster = relay.cluster().clone();
        if self.config.trust_domain.borrow().as_deref() != Some(relay.trust_domain()) {
            warn!(%cluster, peer = %address, code = codes::RELAY_CERTIFICATE.id, "relay of another trust domain refused");
            return;
        }
        let claims = RelayClaims {
            cluster: cluster.clone(),
            generation: relay.generation(),
            expires: relay.not_after(),
            remote: address,
        };
        info!(%cluster, peer = %address, "relay connects");
        let end =
            self.config.hub.serve(stream, &claims, &self.config.replica, self.ends(&relay)).await;
        match end {
            SessionEnd::Refused(refusal) => {
                warn!(%cluster, peer = %address, reason = %refusal, "relay refused");
            }
            SessionEnd::Contradiction(reason) => {
                warn!(%cluster, peer = %address, reason, "relay refused");
            }
            SessionEnd::Revoked => {
                let code = codes::RELAY_CERTIFICATE.id;
                warn!(%cluster, peer = %address, code, "connection of a relay closed: its certificate is not accepted any more");
            }
            SessionEnd::Closed => info!(%cluster, peer = %address, "relay disconnected"),
            SessionEnd::Ended(reason) => {
                debug!(%cluster, peer = %address, reason, "connection of a relay closed");
            }
        }
    }

    /// Completes when the hub must end a connection, with the reason.
    async fn ends(&self, relay: &RelayIdentity) -> &'static str {
        let life = relay.not_after().duration_since(SystemTime::now()).unwrap_or_default();
        let mut identity = self.config.identity.clone();
        let distrusted = async {
            let mut generation = identity.borrow().trust_generation;
            while let Ok(now) = identity.wait_for(|now| now.trust_generation != generation).await {
                generation = now.trust_generation;
                if !now.still_trusts_relay(relay, SystemTime::now()) {
                    return;
                }
            }
            std::future::pending::<()>().await;
        };
        tokio::select! {
            () = self.config.drain.cancelled() => "this server is going away",
            () = tokio::time::sleep(life) => "the certificate has expired",
            () = distrusted => "the certificate no longer chains to a trusted root",
        }
    }

    async fn enrol(
        &self,
        body: &[u8],
        address: SocketAddr,
    ) -> Result<CertificateResponse, EnrolmentRefusal> {
        lock(&self.limits).take(address.ip(), Instant::now())?;
        let request = read_enrol(body)?;
        let members = self.members()?;
        let now = SystemTime::now();
        let policy = Arc::clone(&self.config.policy.borrow());
        let by_token = {
            let RelayIssuerKeys { fetched, requests } = &self.config.published_keys;
            let on_unknown_key = |place: &KeyPlace| requests.request(place, Instant::now());
            let published = Arc::clone(&fetched.borrow().0);
            let keys = TrustedKeys {
                policy: &policy,
                published: &published,
                on_unknown_key: &on_unknown_key,
            };
            relay_tokens::trusted(&members, &keys, &request.token, now)?
        };
        let (cluster, member, invitation) = match by_token {
            Some((cluster, member)) => (cluster, member, None),
            None => {
                let (cluster, member, invitation) = invited(&members, &request.token, now)?;
                (cluster, member, Some(invitation))
            }
        };
        check_id(cluster, &request.cluster)?;
        check_uid(cluster, member, &request.cluster_uid, &self.uids(cluster))?;
        // Signed first, so that an invalid request does not use the invitation up.
        let response = self.sign(&request.csr, cluster, member.generation, now)?;
        if let Some(invitation) = invitation {
            let invitations = members.values().filter_map(|member| member.invitation);
            let present = invitations.map(|one| hex::encode(&one.sha256)).collect();
            let secret = (&*member.secret.0, &*member.secret.1);
            self.config.used_invitations.record(secret, invitation, &present, now).await?;
        }
        info!(%cluster, peer = %address, expires = response.expires, "relay enrolled");
        Ok(response)
    }

    fn renew(
        &self,
        body: &[u8],
        relay: Option<&RelayIdentity>,
        address: SocketAddr,
    ) -> Result<CertificateResponse, EnrolmentRefusal> {
        let refused =
            |status, fact: String| EnrolmentRefusal::new(status, &codes::RELAY_CERTIFICATE, fact);
        let relay = relay.ok_or_else(|| {
            refused(401, "a certificate is renewed over a connection with the present one".into())
        })?;
        lock(&self.limits).take(address.ip(), Instant::now())?;
        let request = read_renew(body)?;
        let now = SystemTime::now();
        // The connection may be older than the roots.
        if relay.not_after() < now
            || self.config.trust_domain.borrow().as_deref() != Some(relay.trust_domain())
            || !self.config.identity.borrow().still_trusts_relay(relay, now)
        {
            return Err(refused(401, "the certificate is not valid any more".into()));
        }
        let (cluster, members) = (relay.cluster(), self.members()?);
        let member = members
            .get(cluster)
            .ok_or_else(|| refused(403, format!("no Secret makes {cluster} a relayed member")))?;
        let least = member.least_generation(now);
        if relay.generation() < least {
            let fact = format!(
                "the certificate of {cluster} has generation {}, and {least} is required",
                relay.generation()
            );
            return Err(refused(403, fact));
        }
        let response = self.sign(&request.csr, cluster, member.generation, now)?;
        info!(%cluster, peer = %address, expires = response.expires, "certificate of a relay renewed");
        Ok(response)
    }

    fn members(&self) -> Result<Arc<BTreeMap<ClusterId, RelayedMember>>, EnrolmentRefusal> {
        self.config.hub.permitted().ok_or_else(|| {
            let fact = "the Secrets of the members have not been read yet";
            EnrolmentRefusal::new(503, &codes::RELAY_NOT_READY, fact)
        })
    }

    /// Returns the UIDs of the members, without that of `enrolled` if it may be another cluster now.
    fn uids(&self, enrolled: &ClusterId) -> BTreeMap<ClusterId, String> {
        let statuses = self.config.statuses.borrow();
        let uid = |status: &ClusterStatus| {
            let (id, holder) = (ClusterId::parse(&status.id).ok()?, status.kept.as_ref()?);
            let is_fixed = id != *enrolled || !holder.may_change;
            Some((id, holder.uid.clone().filter(|_| is_fixed)?))
        };
        statuses.iter().filter_map(uid).collect()
    }

    fn sign(
        &self,
        csr: &str,
        cluster: &ClusterId,
        generation: u64,
        now: SystemTime,
    ) -> Result<CertificateResponse, EnrolmentRefusal> {
        let identity = Arc::clone(&self.config.identity.borrow());
        let no_ca = || EnrolmentRefusal::new(503, &codes::RELAY_NO_CA, "the hub has no CA key");
        let authority: &Authority = identity.relay_authority().ok_or_else(no_ca)?;
        let trust_domain = self.config.trust_domain.borrow().clone().ok_or_else(|| {
            let fact = "the mesh config, which names the trust domain, has not been read yet";
            EnrolmentRefusal::new(503, &codes::RELAY_NOT_READY, fact)
        })?;
        let lifetime = self.config.lifetime;
        let chain = authority
            .sign_relay(csr, &trust_domain, cluster, generation, lifetime, now)
            .map_err(|error| match error {
                IdentityError::Request(fact) => EnrolmentRefusal::new(
                    400,
                    &codes::RELAY_REQUEST,
                    format!("the certificate request is invalid: {fact}"),
                ),
                other => EnrolmentRefusal::new(503, &codes::RELAY_NOT_READY, other.to_string()),
            })?;
        Ok(CertificateResponse {
            certificate: chain.to_pem(),
            roots: identity.serving_roots(now),
            expires: rfc3339(chain.not_after()),
        })
    }
}

/// Keeps the members that may have relays up to date.
pub(super) async fn follow_members(
    mut members: watch::Receiver<Option<RelayedMembers>>,
    hub: Arc<RelayHub>,
) {
    let mut sweep = tokio::time::interval(SWEEP_INTERVAL);
    loop {
        let permitted = members.borrow_and_update().clone();
        if let Some(permitted) = permitted {
            hub.permit(permitted, SystemTime::now());
        }
        loop {
            tokio::select! {
                changed = members.changed() => match changed {
                    Ok(()) => break,
                    Err(_) => return,
                },
                _ = sweep.tick() => hub.sweep(SystemTime::now()),
            }
        }
    }
}

/// Starts to count the replicas, and returns this replica's name with the number.
pub(super) fn replica_name(
    name: &str,
    count_replicas: impl Fn() -> usize + Send + 'static,
    interval: Duration,
    tasks: &Supervisor,
) -> watch::Receiver<ReplicaName> {
    let name = ReplicaName { name: name.to_owned(), count: count_replicas() };
    let (sender, receiver) = watch::channel(name);
    tasks.spawn("replicas for relays", async move {
        // The list changes, and certificates show which of its entries is this process.
        while !sender.is_closed() {
            let count = count_replicas();
            sender.send_if_modified(|name| std::mem::replace(&mut name.count, count) != count);
            tokio::time::sleep(interval).await;
        }
    });
    receiver
}
