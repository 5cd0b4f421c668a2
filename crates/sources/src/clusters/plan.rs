//! Computes the actions that bring the running clusters in line with the Secrets. Pure: no task, no
//! clock.
//!
//! Of the Secrets that name an ID, the oldest usable one holds it (by creation time, then by source,
//! then by name). The others are on standby and are considered on each plan, so that one takes over
//! as soon as the first is deleted. If a Secret becomes invalid, the cluster that it holds keeps
//! running unchanged, except for the settings in the Secret's annotations. A cluster whose last
//! Secret is deleted stays, without its credential, until the grace period is over. Both rules apply
//! only to clusters with data: a cluster that never synced follows its Secrets at once.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::kubeconfig::KubeconfigRefusal;
use super::secret::{MemberSecret, MemberSettings, MemberSpec};
use crate::store::ObjectName;
use strait_base::codes;
use strait_kube_client::Access;
use strait_model::{ClusterId, Mode, NetworkId, ReadNamespaces};

/// A century.
const FOR_EVER: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// The clusters that are members because of a Secret.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PlannedMembers {
    /// By cluster ID.
    pub clusters: BTreeMap<ClusterId, PlannedCluster>,
}

/// One cluster of the plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlannedCluster {
    /// The Secret that holds the cluster, or held it last.
    pub secret: ObjectName,
    /// Its network, if the Secret fixes it.
    pub network: Option<NetworkId>,
    /// The mode that an operator requested.
    pub mode: Mode,
    /// The expected UID of the cluster, from the operator.
    pub uid: Option<Arc<str>>,
    /// The trust domain of the cluster's workloads, if the Secret names one.
    pub trust_domain: Option<Arc<str>>,
    /// Its name in the cluster set, if the Secret fixes one.
    pub set_name: Option<Arc<str>>,
    /// The namespaces to which the Secret limits its reader.
    pub namespaces: ReadNamespaces,
    /// Creation time of the first Secret that held the cluster, as long as the data exists; `None`
    /// if unknown. Clusters are merged in this order.
    pub created: Option<i64>,
    /// Whether a Secret holds the cluster.
    pub hold: Hold,
}

impl PlannedCluster {
    /// Returns the access to the cluster while a Secret holds it.
    pub fn access(&self) -> Option<&Access> {
        match &self.hold {
            Hold::BySecret(access) => Some(access),
            Hold::Assumed | Hold::Leaving { .. } => None,
        }
    }
}

/// Whether a Secret holds a cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Hold {
    /// A Secret holds it and defines how to reach the API server.
    BySecret(Box<Access>),
    /// A Secret held it when the previous process ended; the Secrets have not been read since.
    Assumed,
    /// No Secret holds it. The data stays until the grace period is over; the credential is
    /// dropped.
    Leaving {
        /// The end of the grace period.
        until: Instant,
    },
}

/// One step of a plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Adds a new cluster.
    Add {
        /// The cluster ID.
        id: ClusterId,
        /// The Secret that holds it.
        secret: ObjectName,
        /// The creation time of the Secret.
        created: Option<i64>,
        /// The specification from the Secret.
        member: MemberSpec,
    },
    /// Continues a cluster under another Secret, after its previous Secret lost it or was deleted.
    Adopt {
        /// The cluster ID.
        id: ClusterId,
        /// The Secret that holds it now.
        secret: ObjectName,
        /// Creation time of the first Secret that held the cluster's data: the cluster is a member
        /// since then.
        created: Option<i64>,
        /// The specification from the Secret.
        member: MemberSpec,
    },
    /// Reads the cluster with a different access: the new run starts before the old one stops.
    Replace {
        /// The cluster ID.
        id: ClusterId,
        /// The new access.
        access: Access,
    },
    /// Changes the namespaces to which the Secret limits the reader: a new run starts before the old
    /// one stops.
    SetNamespaces {
        /// The cluster ID.
        id: ClusterId,
        /// The new namespaces.
        namespaces: ReadNamespaces,
    },
    /// Changes the network that the Secret fixes.
    SetNetwork {
        /// The cluster ID.
        id: ClusterId,
        /// The new network.
        network: Option<NetworkId>,
    },
    /// Changes the mode that an operator requests.
    SetMode {
        /// The cluster ID.
        id: ClusterId,
        /// The new mode.
        mode: Mode,
    },
    /// Changes the UID that the operator expects.
    SetUid {
        /// The cluster ID.
        id: ClusterId,
        /// The new UID.
        uid: Option<Arc<str>>,
    },
    /// Changes the trust domain of the workloads that the Secret names.
    SetTrustDomain {
        /// The cluster ID.
        id: ClusterId,
        /// The new trust domain.
        trust_domain: Option<Arc<str>>,
    },
    /// Changes the name in the cluster set that the Secret fixes.
    SetSetName {
        /// The cluster ID.
        id: ClusterId,
        /// The new name.
        set_name: Option<Arc<str>>,
    },
    /// Starts the grace period, because no Secret holds the cluster: drops the credential, keeps
    /// the data for now.
    StartGrace {
        /// The cluster ID.
        id: ClusterId,
        /// The end of the grace period.
        until: Instant,
    },
    /// Removes all state of the cluster.
    Withdraw {
        /// The cluster ID.
        id: ClusterId,
    },
}

/// A data key of a Secret that holds no cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Idle {
    /// The Secret.
    pub secret: ObjectName,
    /// The data key.
    pub key: String,
    /// The network of the cluster in the value, if it is usable and fixes one.
    pub network: Option<NetworkId>,
    /// The trust domain of the workloads of the cluster in the value, if it is usable and names
    /// one.
    pub trust_domain: Option<Arc<str>>,
    /// Why it holds no cluster.
    pub refusal: KubeconfigRefusal,
}

impl Idle {
    /// Whether the value is usable, and waits for its ID to become free.
    pub fn on_standby(&self) -> bool {
        self.refusal.code == &codes::ID_TAKEN
    }
}

/// The actions to carry out, and the refusals to report.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Plan {
    /// The actions, in order.
    pub actions: Vec<Action>,
    /// Data keys that hold no cluster, by cluster ID and age.
    pub idle: Vec<Idle>,
    /// Why the current Secret of a running cluster is not used; the cluster continues unchanged.
    pub unused_secrets: BTreeMap<ClusterId, KubeconfigRefusal>,
    /// The position of the Secret that holds each cluster among all Secrets, the oldest first.
    pub ages: BTreeMap<ClusterId, usize>,
    /// The latest time of the next plan.
    pub next_change: Option<Instant>,
}

/// A Secret's claim to a cluster ID.
struct IdClaim<'a> {
    secret: &'a MemberSecret,
    /// The position of the Secret among all Secrets, the oldest first.
    age: usize,
    member: &'a Result<Box<MemberSpec>, KubeconfigRefusal>,
}

/// Computes a plan. No Secret may take the ID `config_cluster`. `grace` is how long a cluster's
/// data outlives its Secret; zero removes it at once. `has_data` returns whether data of a cluster
/// exists.
pub fn plan(
    running: &PlannedMembers,
    secrets: &[MemberSecret],
    config_cluster: Option<&ClusterId>,
    grace: Duration,
    has_data: &dyn Fn(&ClusterId) -> bool,
    now: Instant,
) -> Plan {
    // A cluster without data needs no grace period.
    let grace_period = |id: &ClusterId| if has_data(id) { grace } else { Duration::ZERO };
    let mut plan = Plan::default();
    let mut claims: BTreeMap<&ClusterId, Vec<IdClaim<'_>>> = BTreeMap::new();
    for (age, secret) in sort_by_age(secrets).into_iter().enumerate() {
        for (key, refusal) in &secret.invalid_keys {
            plan.refuse(secret, key, refusal.clone());
        }
        for (id, member) in &secret.clusters {
            if config_cluster == Some(id) {
                let fact = format!("the ID {id} belongs to the config cluster");
                let refusal = KubeconfigRefusal::new(&codes::ID_OF_CONFIG_CLUSTER, "", fact);
                plan.refuse(secret, id.as_str(), refusal);
            } else {
                claims.entry(id).or_default().push(IdClaim { secret, age, member });
            }
        }
    }
    for (id, cluster) in &running.clusters {
        if !claims.contains_key(id) {
            plan.leave(id, cluster, grace_period(id), now);
        }
    }
    for (id, claims) in &claims {
        let running = running.clusters.get(*id);
        // A Secret that became invalid before its cluster had data does not keep the ID.
        let holding =
            running.filter(|one| !matches!(one.hold, Hold::Leaving { .. }) && has_data(id));
        let holder =
            holding.and_then(|one| claims.iter().position(|claim| claim.secret.name == one.secret));
        plan.settle(id, claims, holder, running, grace_period(id), now);
    }
    plan
}

/// Sorts Secrets by age, the oldest first. Secrets of unknown age come last. Equally old ones are
/// sorted by source and name.
fn sort_by_age(secrets: &[MemberSecret]) -> Vec<&MemberSecret> {
    let mut sorted: Vec<_> = secrets.iter().collect();
    sorted.sort_by_key(|secret| {
        (secret.created.is_none(), secret.created, secret.source_order, &secret.name)
    });
    sorted
}

impl Plan {
    fn refuse(&mut self, secret: &MemberSecret, key: &str, refusal: KubeconfigRefusal) {
        let (secret, key) = (secret.name.clone(), key.to_owned());
        self.idle.push(Idle { secret, key, network: None, trust_domain: None, refusal });
    }

    /// Decides which Secret holds `id`, and the resulting actions. `claims` are sorted by age. The
    /// claim at index `holder` holds the ID now, and its cluster has data.
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
        // A holder that became invalid keeps its cluster from younger Secrets.
        let winner = match (usable, holder) {
            (Some(usable), Some(holder)) => Some(usable.min(holder)),
            (usable, holder) => usable.or(holder),
        };
        let winning = winner.and_then(|winner| claims.get(winner));
        if let Some(winning) = winning {
            self.ages.insert(id.clone(), winning.age);
        }
        match winning {
            Some(IdClaim { secret, member: Ok(member), .. }) => {
                self.hold(id, secret, member, running);
            }
            Some(IdClaim { secret, member: Err(refusal), .. }) => {
                self.unused_secrets.insert(id.clone(), refusal.clone());
                // The access stays; the other settings of the operator apply.
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
                    refusal: standby(winner.secret, claim.secret),
                }),
                (Err(refusal), _) => self.refuse(claim.secret, id.as_str(), refusal.clone()),
                // Without a winner, no claim is usable.
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
        let current_access = match &cluster.hold {
            Hold::BySecret(access) if cluster.secret == secret.name => Some(&**access),
            _ => None,
        };
        let Some(access) = current_access else {
            let (secret, member) = (secret.name.clone(), member.clone());
            let created = cluster.created.or(made);
            return self.actions.push(Action::Adopt { id, secret, created, member });
        };
        self.set(&id, cluster, &member.settings());
        if cluster.namespaces != member.reach.namespaces {
            let (id, namespaces) = (id.clone(), member.reach.namespaces.clone());
            self.actions.push(Action::SetNamespaces { id, namespaces });
        }
        if access != &member.access {
            self.actions.push(Action::Replace { id, access: member.access.clone() });
        }
    }

    /// Plans the changes from the Secret's annotations.
    fn set(&mut self, id: &ClusterId, cluster: &PlannedCluster, settings: &MemberSettings) {
        let MemberSettings { network, mode, uid, trust_domain, set_name } = settings.clone();
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
        if cluster.set_name != set_name {
            self.actions.push(Action::SetSetName { id: id.clone(), set_name });
        }
    }

    fn leave(&mut self, id: &ClusterId, cluster: &PlannedCluster, grace: Duration, now: Instant) {
        let id = id.clone();
        let until = match cluster.hold {
            Hold::BySecret(_) | Hold::Assumed if grace.is_zero() => {
                return self.actions.push(Action::Withdraw { id });
            }
            Hold::BySecret(_) | Hold::Assumed => {
                // A grace period beyond the range of the clock never ends.
                let until = now.checked_add(grace).unwrap_or(now + FOR_EVER);
                self.actions.push(Action::StartGrace { id, until });
                until
            }
            Hold::Leaving { until } if until <= now => {
                return self.actions.push(Action::Withdraw { id });
            }
            Hold::Leaving { until } => until,
        };
        self.next_change =
            Some(self.next_change.map_or(until, |next_change| next_change.min(until)));
    }
}

/// Returns the refusal of a usable claim that lost: the winner is older.
fn standby(winner: &MemberSecret, loser: &MemberSecret) -> KubeconfigRefusal {
    let [holder, own] = [winner.kind, loser.kind];
    let fact = format!(
        "{holder} {} holds the ID ({}); this {own} takes over when that one is deleted",
        winner.name,
        precedence(winner, loser)
    );
    KubeconfigRefusal::new(&codes::ID_TAKEN, "", fact)
}

/// Returns why the Secret `winner` takes precedence over the Secret `loser`.
pub(super) fn precedence(winner: &MemberSecret, loser: &MemberSecret) -> String {
    match winner.created {
        Some(created) if loser.created != Some(created) => format!("older, since {created}"),
        _ => "first by name".to_owned(),
    }
}

impl PlannedMembers {
    /// Records that `action` has been started.
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
                    set_name: member.set_name.clone(),
                    namespaces: member.reach.namespaces.clone(),
                    created: *created,
                    hold: Hold::BySecret(Box::new(member.access.clone())),
                };
                self.clusters.insert(id.clone(), cluster);
            }
            Action::Replace { id, access } => {
                self.change(id, |cluster| cluster.hold = Hold::BySecret(Box::new(access.clone())));
            }
            Action::SetNamespaces { id, namespaces } => {
                self.change(id, |cluster| cluster.namespaces.clone_from(namespaces));
            }
            Action::SetNetwork { id, network } => {
                self.change(id, |cluster| cluster.network.clone_from(network));
            }
            Action::SetUid { id, uid } => self.change(id, |cluster| cluster.uid.clone_from(uid)),
            Action::SetTrustDomain { id, trust_domain } => {
                self.change(id, |cluster| cluster.trust_domain.clone_from(trust_domain));
            }
            Action::SetSetName { id, set_name } => {
                self.change(id, |cluster| cluster.set_name.clone_from(set_name));
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
