//! The side of the hub: the connections of relays, and the certificates that relays request.
//!
//! [`RelayHub`] owns the connections. A connection is used once its relay has said hello and its claims agree with its
//! certificate. Requests of a member go to the connection that has been open for longest; the others wait. Invariants:
//!
//! - Only members that the current Secrets name have connections, and only with certificates of a permitted generation.
//! - At most [`CONNECTIONS_MAX`] connections per member; a further one is closed before any request.
//! - Two relays of one member are in one cluster: the UID of `kube-system` is the same.

mod closable;
mod enrolment;
mod member;
mod session;

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::{Method, Request};
use http_body_util::Full;
use hyper::client::conn::http2::SendRequest;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use strait_base::codes;
use strait_base::lock::lock;
use strait_base::time::rfc3339;
use strait_kube_client::{CarriedResponse, Carrier, ResponseBody, StreamPermit};
use strait_model::ClusterId;

pub use self::enrolment::{
    EnrolmentLimits, EnrolmentRefusal, check_id, check_uid, invited, read_enrol, read_renew,
};
pub use self::member::{
    GENERATION_ANNOTATION, GENERATION_FROM_ANNOTATION, INVITATION_EXPIRES_KEY, INVITATION_KEY,
    Invitation, RELAY_ANNOTATION, RelayAnnotationError, RelayedMember,
};
pub use self::session::{RelayClaims, ReplicaName, SessionEnd};
use crate::wire::Hello;

/// The maximum number of connections of the relays of one member.
pub const CONNECTIONS_MAX: usize = 4;
/// How long a request waits for a relay to connect. Shorter than the time limit of a probe, so that the reason of a
/// failure is that no relay is connected.
const ARRIVAL_WAIT: Duration = Duration::from_secs(4);

/// The connections of all relays.
#[derive(Default)]
pub struct RelayHub {
    state: Mutex<RelayTable>,
    /// Notified when a connection may be used.
    arrivals: Notify,
}

#[derive(Default)]
struct RelayTable {
    /// The members that may have relays; `None` until the Secrets have been read.
    permitted: Option<Arc<BTreeMap<ClusterId, RelayedMember>>>,
    members: BTreeMap<ClusterId, MemberConnections>,
    /// The number of connections so far; identifies one.
    opened: u64,
}

#[derive(Default)]
struct MemberConnections {
    /// In the order in which they were opened.
    open: Vec<RelayConnection>,
    /// When the last connection ended; `None` if there never was one.
    away_since: Option<SystemTime>,
    /// The last connection that was refused, until a relay may be used.
    refused: Option<RefusedRelay>,
}

/// A connection of a relay whose certificate or claims are not accepted.
struct RefusedRelay {
    /// The reason, with its code.
    fact: String,
    address: IpAddr,
    /// When it was refused first for this reason.
    since: SystemTime,
}

struct RelayConnection {
    number: u64,
    remote: SocketAddr,
    since: SystemTime,
    generation: u64,
    /// The expiry of the certificate.
    expires: SystemTime,
    /// `None` until the relay has said hello.
    relay: Option<ConnectedRelay>,
    /// One reference more than there are streams.
    permits: Arc<()>,
    close: CancellationToken,
    /// Notified when the relay must renew its certificate.
    renew: Arc<Notify>,
}

/// A relay that has said hello.
struct ConnectedRelay {
    hello: Hello,
    sender: SendRequest<Full<Bytes>>,
}

/// One connection of a relay.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RelayRow {
    /// The member.
    pub cluster: String,
    /// The relay's pod or host.
    pub instance: String,
    /// The relay's version.
    pub version: String,
    /// When the connection was opened, RFC 3339.
    pub since: String,
    /// Whether requests use it.
    pub active: bool,
    /// The address of the relay.
    pub remote: String,
    /// The forms of objects that the relay sends.
    pub forms: Vec<String>,
    /// The number of open requests.
    pub streams: usize,
}

/// The reason why a relay gets no connection.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RelayRefusal {
    /// The Secrets have not been read yet.
    #[error("the members are not known yet")]
    NotReady,
    /// No Secret names the member.
    #[error("{code}: no Secret makes {cluster} a relayed member", code = codes::RELAY_CERTIFICATE)]
    NoMember {
        /// The cluster ID in the certificate.
        cluster: ClusterId,
    },
    /// The certificate was replaced.
    #[error("{code}: the certificate of {cluster} has generation {generation}, and {least} is required", code = codes::RELAY_CERTIFICATE)]
    Generation {
        /// The cluster ID in the certificate.
        cluster: ClusterId,
        /// The generation of the certificate.
        generation: u64,
        /// The least generation that is accepted.
        least: u64,
    },
    /// There are enough connections.
    #[error("{cluster} already has {CONNECTIONS_MAX} connections of relays")]
    TooMany {
        /// The cluster ID in the certificate.
        cluster: ClusterId,
    },
}

impl RelayHub {
    /// Sets the members that may have relays. Connections that are no longer permitted end at once.
    pub fn permit(
        &self,
        members: impl Into<Arc<BTreeMap<ClusterId, RelayedMember>>>,
        now: SystemTime,
    ) {
        let mut state = lock(&self.state);
        state.permitted = Some(members.into());
        state.forget();
        for (open, member) in state.checked(now) {
            match member {
                Err(_) => open.close.cancel(),
                Ok(member) if open.generation < member.generation => open.renew.notify_one(),
                Ok(_) => {}
            }
        }
    }

    /// Ends connections whose generation is not accepted any more.
    pub fn sweep(&self, now: SystemTime) {
        let state = lock(&self.state);
        for (open, member) in state.checked(now) {
            if member.is_err() {
                open.close.cancel();
            }
        }
    }

    /// Returns the members that may have relays, or `None` until the Secrets have been read.
    pub fn permitted(&self) -> Option<Arc<BTreeMap<ClusterId, RelayedMember>>> {
        lock(&self.state).permitted.clone()
    }

    /// Returns one row per connection, by member and age.
    pub fn rows(&self) -> Vec<RelayRow> {
        let state = lock(&self.state);
        let rows = state.members.iter().flat_map(|(cluster, connections)| {
            let usable = connections.open.iter().filter_map(|open| Some((open, open.usable()?)));
            // Requests use the first one.
            usable.enumerate().map(move |(at, (open, relay))| RelayRow {
                cluster: cluster.to_string(),
                instance: relay.hello.instance.clone(),
                version: relay.hello.version.clone(),
                since: rfc3339(open.since),
                active: at == 0,
                remote: open.remote.to_string(),
                forms: relay.hello.media_types.clone(),
                streams: Arc::strong_count(&open.permits) - 1,
            })
        });
        rows.collect()
    }

    /// Returns the expiry of the certificate of the relay that requests of a member use.
    pub fn expires(&self, cluster: &ClusterId) -> Option<SystemTime> {
        let state = lock(&self.state);
        let open = &state.members.get(cluster)?.open;
        open.iter().find(|open| open.usable().is_some()).map(|open| open.expires)
    }

    /// Returns the carrier of requests to a member.
    pub fn carrier(self: &Arc<Self>, cluster: &ClusterId) -> Arc<dyn Carrier> {
        Arc::new(MemberCarrier { hub: Arc::clone(self), cluster: cluster.clone() })
    }

    /// Admits a connection, which is not used until [`Self::begin`].
    fn admit(&self, claims: &RelayClaims, now: SystemTime) -> Result<Admission<'_>, RelayRefusal> {
        let RelayClaims { cluster, generation, expires, remote } = claims;
        let (generation, expires, remote) = (*generation, *expires, *remote);
        let mut state = lock(&self.state);
        let permitted = state.permitted.as_ref().ok_or(RelayRefusal::NotReady)?;
        let is_old = generation < check(permitted, cluster, generation, now)?.generation;
        state.opened += 1;
        let number = state.opened;
        let member = state.members.entry(cluster.clone()).or_default();
        if member.open.len() >= CONNECTIONS_MAX {
            return Err(RelayRefusal::TooMany { cluster: cluster.clone() });
        }
        let (close, renew) = (CancellationToken::new(), Arc::new(Notify::new()));
        if is_old {
            renew.notify_one();
        }
        member.open.push(RelayConnection {
            number,
            remote,
            since: now,
            generation,
            expires,
            relay: None,
            permits: Arc::new(()),
            close: close.clone(),
            renew: Arc::clone(&renew),
        });
        Ok(Admission { hub: self, cluster: cluster.clone(), number, close, renew })
    }

    /// Returns the UID of the cluster of the member's other relays, if one has said hello.
    fn other_uid(&self, cluster: &ClusterId, number: u64) -> Option<String> {
        let state = lock(&self.state);
        let open = state.members.get(cluster)?.open.iter();
        let other = open.filter(|open| open.number != number).find_map(RelayConnection::usable)?;
        Some(other.hello.cluster_uid.clone()).filter(|uid| !uid.is_empty())
    }

    /// Lets requests use a connection whose relay has said hello.
    fn begin(
        &self,
        cluster: &ClusterId,
        number: u64,
        hello: Hello,
        sender: SendRequest<Full<Bytes>>,
    ) {
        {
            let mut state = lock(&self.state);
            let Some(member) = state.members.get_mut(cluster) else { return };
            let Some(open) = member.open.iter_mut().find(|open| open.number == number) else {
                return;
            };
            open.relay = Some(ConnectedRelay { hello, sender });
            member.away_since = None;
            member.refused = None;
        }
        self.arrivals.notify_waiters();
    }

    fn remove(&self, cluster: &ClusterId, number: u64) {
        let mut state = lock(&self.state);
        let Some(member) = state.members.get_mut(cluster) else { return };
        let had_hello =
            member.open.iter().any(|open| open.number == number && open.relay.is_some());
        member.open.retain(|open| open.number != number);
        if had_hello && member.open.iter().all(|open| open.usable().is_none()) {
            member.away_since = Some(SystemTime::now());
        }
        state.forget();
    }

    /// Returns the number of members with state.
    #[cfg(test)]
    fn known(&self) -> usize {
        lock(&self.state).members.len()
    }

    /// Returns the connection that requests of a member use.
    fn active(&self, cluster: &ClusterId) -> Option<(SendRequest<Full<Bytes>>, StreamPermit)> {
        let state = lock(&self.state);
        let mut open = state.members.get(cluster)?.open.iter();
        open.find_map(|open| {
            Some((open.usable()?.sender.clone(), StreamPermit::counted(&open.permits)))
        })
    }

    /// Records why a connection of a member's relay ends, if the relay is not accepted. Returns the
    /// reason.
    fn noted(&self, claims: &RelayClaims, end: SessionEnd) -> SessionEnd {
        let fact = match &end {
            SessionEnd::Contradiction(fact) => fact.clone(),
            SessionEnd::Refused(refusal @ RelayRefusal::Generation { .. }) => refusal.to_string(),
            _ => return end,
        };
        let mut state = lock(&self.state);
        let permitted = state.permitted.as_ref();
        if !permitted.is_some_and(|permitted| permitted.contains_key(&claims.cluster)) {
            return end;
        }
        let member = state.members.entry(claims.cluster.clone()).or_default();
        let address = claims.remote.ip();
        let is_same = |refused: &RefusedRelay| refused.fact == fact && refused.address == address;
        if !member.refused.as_ref().is_some_and(is_same) {
            member.refused = Some(RefusedRelay { fact, address, since: SystemTime::now() });
        }
        end
    }

    /// Describes the absence of a relay.
    fn away(&self, cluster: &ClusterId) -> String {
        let state = lock(&self.state);
        let member = state.members.get(cluster);
        let fact = match member.and_then(|member| member.away_since) {
            Some(since) => {
                format!("the relay of {cluster} is not connected since {}", rfc3339(since))
            }
            None => {
                let invitation = state.permitted.as_ref().and_then(|members| {
                    let expires = members.get(cluster)?.invitation?.expires;
                    let verb =
                        if expires <= SystemTime::now() { "expired at" } else { "is valid until" };
                    Some(format!("; its invitation {verb} {}", rfc3339(expires)))
                });
                format!("no relay of {cluster} has connected yet{}", invitation.unwrap_or_default())
            }
        };
        match member.and_then(|member| member.refused.as_ref()) {
            Some(RefusedRelay { fact: refusal, address, since }) => {
                format!("{refusal} (relay at {address}, since {}); {fact}", rfc3339(*since))
            }
            None => format!("{}: {fact}", codes::RELAY_AWAY),
        }
    }
}

impl RelayTable {
    /// Removes members without a connection that had none before, or that are not members any more.
    fn forget(&mut self) {
        let Self { permitted, members, .. } = self;
        let is_member = |cluster: &ClusterId| {
            permitted.as_ref().is_none_or(|permitted| permitted.contains_key(cluster))
        };
        members.retain(|cluster, member| {
            let has_history = member.away_since.is_some() || member.refused.is_some();
            !member.open.is_empty() || (has_history && is_member(cluster))
        });
    }

    /// Returns each connection with its member, or with the reason why it must end.
    fn checked(
        &self,
        now: SystemTime,
    ) -> impl Iterator<Item = (&RelayConnection, Result<&RelayedMember, RelayRefusal>)> {
        self.permitted.iter().flat_map(move |permitted| {
            self.members.iter().flat_map(move |(cluster, connections)| {
                connections
                    .open
                    .iter()
                    .map(move |open| (open, check(permitted, cluster, open.generation, now)))
            })
        })
    }
}

impl RelayConnection {
    /// Returns the relay if requests can use the connection.
    fn usable(&self) -> Option<&ConnectedRelay> {
        self.relay.as_ref().filter(|relay| !relay.sender.is_closed())
    }
}

/// A place in the table, released on drop.
struct Admission<'a> {
    hub: &'a RelayHub,
    cluster: ClusterId,
    number: u64,
    /// Cancelled when the connection must end.
    close: CancellationToken,
    /// Notified when the relay must renew its certificate.
    renew: Arc<Notify>,
}

impl Drop for Admission<'_> {
    fn drop(&mut self) {
        self.hub.remove(&self.cluster, self.number);
    }
}

/// Checks whether a certificate may be used now, and returns its member.
fn check<'a>(
    permitted: &'a BTreeMap<ClusterId, RelayedMember>,
    cluster: &ClusterId,
    generation: u64,
    now: SystemTime,
) -> Result<&'a RelayedMember, RelayRefusal> {
    let member = permitted
        .get(cluster)
        .ok_or_else(|| RelayRefusal::NoMember { cluster: cluster.clone() })?;
    let least = member.least_generation(now);
    if generation < least {
        return Err(RelayRefusal::Generation { cluster: cluster.clone(), generation, least });
    }
    Ok(member)
}

/// Sends the requests of one member to its relay.
struct MemberCarrier {
    hub: Arc<RelayHub>,
    cluster: ClusterId,
}

impl Carrier for MemberCarrier {
    fn exchange(&self, request: Request<Full<Bytes>>) -> CarriedResponse<'_> {
        Box::pin(async move {
            let deadline = tokio::time::Instant::now() + ARRIVAL_WAIT;
            let mut request = Some(request);
            let mut repeated = false;
            loop {
                // Registered before the table is read, so that no arrival is missed.
                let arrival = self.hub.arrivals.notified();
                let Some((mut sender, permit)) = self.hub.active(&self.cluster) else {
                    if tokio::time::timeout_at(deadline, arrival).await.is_err() {
                        return Err(self.hub.away(&self.cluster).into());
                    }
                    continue;
                };
                let Some(sent) = request.take() else {
                    return Err(self.hub.away(&self.cluster).into());
                };
                // A request that only reads may be repeated on the next connection.
                let again = (sent.method() == Method::GET && !repeated).then(|| sent.clone());
                match sender.try_send_request(sent).await {
                    Ok(response) => return Ok((response.map(ResponseBody::Hyper), permit)),
                    Err(mut error) => match (error.take_message(), again) {
                        (Some(unsent), _) => request = Some(unsent),
                        (None, Some(again)) => (request, repeated) = (Some(again), true),
                        (None, None) => return Err(error.into_error().into()),
                    },
                }
            }
        })
    }
}
