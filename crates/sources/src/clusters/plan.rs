//! From what runs and what the Secrets want to what is to be done. Pure: no task, no clock.
//!
//! The rules: of the Secrets that name an ID, the oldest usable one holds it (by creation time, then by
//! name); the others are on standby and are looked at again each time, so that one takes over as soon as
//! the first goes. A Secret that turns bad keeps the cluster it holds running as it was, but for what its
//! annotations say. A cluster whose
//! last Secret goes stays, without its credential, until the grace is over. Both only where there is
//! something to keep: a cluster that never synced is as its Secrets are.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::kubeconfig::KubeconfigRefusal;
use super::secret::{MemberSecret, MemberSettings, MemberSpec};
use crate::store::ObjectName;
use strait_base::codes;
use strait_kube_client::Access;
use strait_model::{ClusterId, Mode, NetworkId};

/// A century.
const FOR_EVER: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// The clusters that are members because of a Secret.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PlannedMembers {
    /// By ID.
    pub clusters: BTreeMap<ClusterId, PlannedCluster>,
}

/// One of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlannedCluster {
    /// The Secret that holds it, or held it last.
    pub secret: ObjectName,
    /// Its network, where the Secret fixes it.
    pub network: Option<NetworkId>,
    /// What an operator has asked for it.
    pub mode: Mode,
    /// The UID that an operator says it has.
    pub uid: Option<Arc<str>>,
    /// The trust domain of its workloads, where the Secret names one.
    pub trust_domain: Option<Arc<str>>,
    /// When the Secret was made that held it first, as long as its data is kept; `None` where that is not
    /// known. Clusters are merged in this order.
    pub created: Option<i64>,
    /// Held, or leaving.
    pub hold: Hold,
}

/// Whether a Secret holds a cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Hold {
    /// It does, and says how the API server is reached.
    Held(Access),
    /// One did when the process before this one ended; the Secrets have not been read since.
    Assumed,
    /// None does. The data stays until then; the credential has gone.
    Leaving {
        /// When the grace is over.
        until: Instant,
    },
}

/// One thing to be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// A cluster that was not there.
    Add {
        /// Its ID.
        id: ClusterId,
        /// The Secret that holds it.
        secret: ObjectName,
        /// When that was made.
        created: Option<i64>,
        /// What is wanted of it.
        member: MemberSpec,
    },
    /// A cluster that was held by another Secret, or by none any more, goes on under this one.
    Adopt {
        /// Its ID.
        id: ClusterId,
        /// The Secret that holds it now.
        secret: ObjectName,
        /// Since when it counts as a member: the Secret that held its data first says so.
        created: Option<i64>,
        /// What is wanted of it.
        member: MemberSpec,
    },
    /// Its API server is reached in another way: make the new before breaking the old.
    Replace {
        /// Its ID.
        id: ClusterId,
        /// The new way.
        access: Access,
    },
    /// The network that its Secret fixes has changed.
    SetNetwork {
        /// Its ID.
        id: ClusterId,
        /// The network.
        network: Option<NetworkId>,
    },
    /// What an operator asks for it has changed.
    SetMode {
        /// Its ID.
        id: ClusterId,
        /// The mode.
        mode: Mode,
    },
    /// The UID that it should have, as an operator says, has changed.
    SetUid {
        /// Its ID.
        id: ClusterId,
        /// The UID.
        uid: Option<Arc<str>>,
    },
    /// The trust domain of its workloads, as the Secret names it, has changed.
    SetTrustDomain {
        /// Its ID.
        id: ClusterId,
        /// The trust domain.
        trust_domain: Option<Arc<str>>,
    },
    /// No Secret holds it any more: drop the credential, keep the data for now.
    StartGrace {
        /// Its ID.
        id: ClusterId,
        /// When the grace is over.
        until: Instant,
    },
    /// Every trace of it goes.
    Withdraw {
        /// Its ID.
        id: ClusterId,
    },
}

/// A Secret's key that holds no cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Idle {
    /// The Secret.
    pub secret: ObjectName,
    /// The data key.
    pub key: String,
    /// Its network, where it is usable and fixes one.
    pub network: Option<NetworkId>,
    /// The trust domain of its workloads, where it is usable and names one.
    pub trust_domain: Option<Arc<str>>,
    /// Why it holds none.
    pub refusal: KubeconfigRefusal,
}

impl Idle {
    /// Whether it is usable, and waits for its ID to become free.
    pub fn on_standby(&self) -> bool {
        self.refusal.code == &codes::ID_TAKEN
    }
}

/// What is to be done, and what is to be reported.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Plan {
    /// To be done, in this order.
    pub actions: Vec<Action>,
    /// Keys that hold no cluster, by cluster and age.
    pub idle: Vec<Idle>,
    /// Why the present Secret of a running cluster is not used; the cluster runs on as it was.
    pub kept: BTreeMap<ClusterId, KubeconfigRefusal>,
    /// When to plan again, whatever happens before.
    pub wake: Option<Instant>,
}

/// A Secret's claim to a cluster ID.
struct IdClaim<'a> {
    secret: &'a MemberSecret,
    member: &'a Result<MemberSpec, KubeconfigRefusal>,
}

/// Plans. `config_cluster` is the ID that no Secret may take; `grace` is how long a cluster's data
/// outlives its Secret, zero for not at all; `has_data` says whether there is any of a cluster.
pub fn plan(
    running: &PlannedMembers,
    secrets: &[MemberSecret],
    config_cluster: Option<&ClusterId>,
    grace: Duration,
    has_data: &dyn Fn(&ClusterId) -> bool,
    now: Instant,
) -> Plan {
    // Where nothing is held there is nothing to keep.
    let grace_of = |id: &ClusterId| if has_data(id) { grace } else { Duration::ZERO };
    let mut plan = Plan::default();
    let mut claims: BTreeMap<&ClusterId, Vec<IdClaim<'_>>> = BTreeMap::new();
    for secret in by_age(secrets) {
        for (key, refusal) in &secret.invalid_keys {
            plan.refuse(secret, key, refusal.clone());
        }
        for (id, member) in &secret.clusters {
            if config_cluster == Some(id) {
                let fact = format!("the ID {id} is the config cluster's");
                let refusal = KubeconfigRefusal::new(&codes::ID_OF_CONFIG_CLUSTER, "", fact);
                plan.refuse(secret, id.as_str(), refusal);
            } else {
                claims.entry(id).or_default().push(IdClaim { secret, member });
            }
        }
    }
    for (id, cluster) in &running.clusters {
        if !claims.contains_key(id) {
            plan.leave(id, cluster, grace_of(id), now);
        }
    }
    for (id, claims) in &claims {
        let running = running.clusters.get(*id);
        // One that turned bad before it was of any use keeps nothing from anybody.
        let held = running.filter(|one| !matches!(one.hold, Hold::Leaving { .. }) && has_data(id));
        let holder =
            held.and_then(|one| claims.iter().position(|claim| claim.secret.name == one.secret));
        plan.settle(id, claims, holder, running, grace_of(id), now);
    }
    plan
}

/// The oldest first; those of unknown age last, by name.
fn by_age(secrets: &[MemberSecret]) -> Vec<&MemberSecret> {
    let mut sorted: Vec<_> = secrets.iter().collect();
    sorted.sort_by_key(|secret| (secret.created.is_none(), secret.created, &secret.name));
    sorted
}

impl Plan {
    fn refuse(&mut self, secret: &MemberSecret, key: &str, refusal: KubeconfigRefusal) {
        let (secret, key) = (secret.name.clone(), key.to_owned());
        self.idle.push(Idle { secret, key, network: None, trust_domain: None, refusal });
    }

    /// Decides who holds `id`, and what that changes. `claims` are in order of age; the one at `holder`
    /// has it now, and data of it.
    fn settle(
        &mut self,
        id: &ClusterId,
        claims: &[IdClaim<'_>],
        holder: Option<usize>,
        running: Option<&PlannedCluster>,
        grace: Duration,
        now: Instant,
    ) {
        let usable = claims.iter().position(|claim| claim.member.is_ok());
        // A holder that turned bad keeps its cluster from those that are younger.
        let winner = match (usable, holder) {
            (Some(usable), Some(holder)) => Some(usable.min(holder)),
            (usable, holder) => usable.or(holder),
        };
        let winning = winner.and_then(|winner| claims.get(winner));
        match winning {
            Some(IdClaim { secret, member: Ok(member) }) => {
                self.hold(id, secret, member, running);
            }
            Some(IdClaim { secret, member: Err(refusal) }) => {
                self.kept.insert(id.clone(), refusal.clone());
                // The credential is kept; what an operator asks for beside it counts.
                if let (Some(cluster), Some(settings)) = (running, &secret.settings) {
                    self.set(id, cluster, settings);
                }
            }
            None => {
                if let Some(cluster) = running {
                    self.leave(id, cluster, grace, now);
                }
            }
        }
        for (index, claim) in claims.iter().enumerate() {
            if Some(index) == winner {
                continue;
            }
            match (claim.member, winning) {
                (Ok(member), Some(winner)) => self.idle.push(Idle {
                    secret: claim.secret.name.clone(),
                    key: id.to_string(),
                    network: member.network.clone(),
                    trust_domain: member.trust_domain.clone(),
                    refusal: standby(winner.secret),
                }),
                (Err(refusal), _) => self.refuse(claim.secret, id.as_str(), refusal.clone()),
                // Without a winner nobody is usable.
                (Ok(_), None) => {}
            }
        }
    }

    fn hold(
        &mut self,
        id: &ClusterId,
        secret: &MemberSecret,
        member: &MemberSpec,
        running: Option<&PlannedCluster>,
    ) {
        let id = id.clone();
        let made = secret.created.map(|time| time.as_second());
        let Some(cluster) = running else {
            let (secret, created, member) = (secret.name.clone(), made, member.clone());
            return self.actions.push(Action::Add { id, secret, created, member });
        };
        let held = match &cluster.hold {
            Hold::Held(access) if cluster.secret == secret.name => Some(access),
            _ => None,
        };
        let Some(access) = held else {
            let (secret, member) = (secret.name.clone(), member.clone());
            let created = cluster.created.or(made);
            return self.actions.push(Action::Adopt { id, secret, created, member });
        };
        self.set(&id, cluster, &member.settings());
        if access != &member.access {
            self.actions.push(Action::Replace { id, access: member.access.clone() });
        }
    }

    /// What its Secret's annotations change.
    fn set(&mut self, id: &ClusterId, cluster: &PlannedCluster, settings: &MemberSettings) {
        let MemberSettings { network, mode, uid, trust_domain } = settings.clone();
        if cluster.network != network {
            self.actions.push(Action::SetNetwork { id: id.clone(), network });
        }
        if cluster.mode != mode {
            self.actions.push(Action::SetMode { id: id.clone(), mode });
        }
        if cluster.uid != uid {
            self.actions.push(Action::SetUid { id: id.clone(), uid });
        }
        if cluster.trust_domain != trust_domain {
            self.actions.push(Action::SetTrustDomain { id: id.clone(), trust_domain });
        }
    }

    fn leave(&mut self, id: &ClusterId, cluster: &PlannedCluster, grace: Duration, now: Instant) {
        let id = id.clone();
        let until = match cluster.hold {
            Hold::Held(_) | Hold::Assumed if grace.is_zero() => {
                return self.actions.push(Action::Withdraw { id });
            }
            Hold::Held(_) | Hold::Assumed => {
                // Beyond what the clock can count is for ever.
                let until = now.checked_add(grace).unwrap_or(now + FOR_EVER);
                self.actions.push(Action::StartGrace { id, until });
                until
            }
            Hold::Leaving { until } if until <= now => {
                return self.actions.push(Action::Withdraw { id });
            }
            Hold::Leaving { until } => until,
        };
        self.wake = Some(self.wake.map_or(until, |wake| wake.min(until)));
    }
}

/// The winner is older than any usable claim that lost.
fn standby(winner: &MemberSecret) -> KubeconfigRefusal {
    let age = match winner.created {
        Some(created) => format!("older, since {created}"),
        None => "first by name".to_owned(),
    };
    let fact =
        format!("the ID is held by Secret {} ({age}); takes over when that goes", winner.name);
    KubeconfigRefusal::new(&codes::ID_TAKEN, "", fact)
}

impl PlannedMembers {
    /// Notes that `action` has been begun.
    pub fn apply(&mut self, action: &Action) {
        match action {
            Action::Add { id, secret, created, member }
            | Action::Adopt { id, secret, created, member } => {
                let cluster = PlannedCluster {
                    secret: secret.clone(),
                    network: member.network.clone(),
                    mode: member.mode,
                    uid: member.uid.clone(),
                    trust_domain: member.trust_domain.clone(),
                    created: *created,
                    hold: Hold::Held(member.access.clone()),
                };
                self.clusters.insert(id.clone(), cluster);
            }
            Action::Replace { id, access } => {
                self.change(id, |cluster| cluster.hold = Hold::Held(access.clone()));
            }
            Action::SetNetwork { id, network } => {
                self.change(id, |cluster| cluster.network.clone_from(network));
            }
            Action::SetUid { id, uid } => self.change(id, |cluster| cluster.uid.clone_from(uid)),
            Action::SetTrustDomain { id, trust_domain } => {
                self.change(id, |cluster| cluster.trust_domain.clone_from(trust_domain));
            }
            Action::SetMode { id, mode } => self.change(id, |cluster| cluster.mode = *mode),
            Action::StartGrace { id, until } => {
                self.change(id, |cluster| cluster.hold = Hold::Leaving { until: *until });
            }
            Action::Withdraw { id } => {
                self.clusters.remove(id);
            }
        }
    }

    fn change(&mut self, id: &ClusterId, change: impl FnOnce(&mut PlannedCluster)) {
        if let Some(cluster) = self.clusters.get_mut(id) {
            change(cluster);
        }
    }
}

#[cfg(test)]
mod tests;
