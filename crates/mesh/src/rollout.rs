//! Rollouts: a configuration change is sent to a percentage of proxies first, then to more, and
//! stops automatically on errors.
//!
//! Defines the set of proxies that receive the change ([`Cohort`]), the state of a rollout
//! ([`RolloutState`]) and the files that preserve it across restarts ([`RolloutFiles`]).
//! `strait_server::feed` starts and ends a rollout, `strait_server::rollout` advances it, and
//! `strait_envoy::heads` assigns streams to the configurations.
//! (docs/contributing/decisions/0049-shares-of-proxies.md)

mod file;

use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use xxhash_rust::xxh3::Xxh3;

pub use self::file::RolloutFiles;
use strait_model::policy::RolloutPlan;
use strait_model::{Collection, ConfigurationSnapshot, Proxy};

/// The name of the operator in a hold that was created because a rollout stopped. It is stored in
/// the state directory and in Secrets, where it identifies such holds, so the spelling stays.
pub const STOPPED_BY: &str = "strait roll-out";

/// The proxies that receive a change: a percentage of the proxies that were connected when the
/// cohort was filled. A member stays in the cohort across reconnections, restarts and later steps.
/// Proxies that connect later are added while there is room.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cohort {
    /// The name of the configuration, which determines the order of proxies.
    pub name: Arc<str>,
    /// The percentage of proxies.
    pub percent: u8,
    /// The positions of the members, ascending.
    places: Arc<[u64]>,
}

impl Cohort {
    /// Creates a cohort without members. With 100 %, it contains all proxies, now and later.
    pub fn new(name: Arc<str>, percent: u8) -> Self {
        Self { name, percent, places: Arc::default() }
    }

    /// Returns whether a proxy is a member. Routers, which forward requests of other clients, are
    /// members only at 100 %.
    pub fn contains(&self, proxy: &Proxy) -> bool {
        self.percent >= 100
            || (!proxy.kind.is_gateway()
                && !self.places.is_empty()
                && self.places.binary_search(&place(&self.name, proxy)).is_ok())
    }

    /// Returns the cohort with as many of these proxies added as there is room for: the percentage
    /// of the connected proxies, rounded down, with a minimum of one. The order of proxies is the
    /// same in every process and differs between configurations. No member is removed.
    pub fn filled<'a>(&self, percent: u8, connected: impl Iterator<Item = &'a Proxy>) -> Self {
        let sidecars = connected.filter(|proxy| !proxy.kind.is_gateway());
        let mut candidates: Vec<u64> = sidecars.map(|proxy| place(&self.name, proxy)).collect();
        // Several streams of one proxy count once.
        candidates.sort_unstable();
        candidates.dedup();
        let size = (candidates.len() * usize::from(percent) / 100).max(1);
        let new = candidates.iter().filter(|place| self.places.binary_search(place).is_err());
        let new = new.take(size.saturating_sub(self.places.len()));
        let mut places: Vec<u64> = self.places.iter().chain(new).copied().collect();
        places.sort_unstable();
        Self { name: Arc::clone(&self.name), percent, places: places.into() }
    }
}

/// Returns the position of a proxy in the order of proxies; the lowest are added first.
fn place(name: &str, proxy: &Proxy) -> u64 {
    let mut hash = Xxh3::new();
    for part in [name, proxy.cluster.as_str(), &proxy.id] {
        hash.update(part.as_bytes());
        // A separator that no part contains.
        hash.update(&[0]);
    }
    hash.digest()
}

/// Returns the name of a configuration without its access policies, which are not part of a
/// rollout.
pub fn name_of(configuration: &ConfigurationSnapshot) -> Arc<str> {
    let ConfigurationSnapshot { traffic, mesh, networks, .. } = configuration;
    let no_access_policies = Collection::default();
    ConfigurationSnapshot::new(traffic.clone(), no_access_policies, mesh.clone(), networks.clone())
        .id()
}

/// The state of rollouts.
#[derive(Debug, Clone, Default)]
pub struct RolloutState {
    /// The plan for rollouts; `None` to send changes to all proxies at once.
    pub plan: Option<Arc<RolloutPlan>>,
    /// The rollout in progress.
    pub running: Option<RunningRollout>,
    /// The number of rollouts stopped since the start, automatically or by an operator.
    pub stopped: u64,
    /// The number of rollouts completed since the start.
    pub completed: u64,
    /// Why the configuration of all proxies before the start is unknown, until the next rollout;
    /// `None` if it is known or did not exist.
    pub lost: Option<Arc<str>>,
}

/// A rollout in progress.
#[derive(Debug, Clone)]
pub struct RunningRollout {
    /// The number of rollouts since the start, including this one.
    pub number: u64,
    /// The new configuration.
    pub next: Arc<ConfigurationSnapshot>,
    /// The name of the new configuration; see [`name_of`].
    pub name: Arc<str>,
    /// The configuration of all other proxies.
    pub settled: Arc<ConfigurationSnapshot>,
    /// The plan. A changed plan applies to the next rollout.
    pub plan: Arc<RolloutPlan>,
    /// When the rollout started in this process.
    pub begun: SystemTime,
    /// The current step; `None` before the first step.
    pub step: Option<RolloutStep>,
    /// The proxies that receive the new configuration.
    pub cohort: Cohort,
    /// Whether the rollout continues after a restart.
    pub is_durable: bool,
}

/// A step of a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RolloutStep {
    /// The index of the step, starting at 0.
    pub at: usize,
    /// When the step started.
    pub since: SystemTime,
}

impl RunningRollout {
    /// Returns the percentage of proxies that receive the new configuration; 0 before the first
    /// step.
    pub fn percent(&self) -> u8 {
        self.step.and_then(|step| self.plan.steps.get(step.at).copied()).unwrap_or(0)
    }

    /// Returns when the next step is due.
    pub fn next_step_at(&self) -> Option<SystemTime> {
        self.step.map(|step| step.since + self.plan.every)
    }
}

/// The outcome of a rollout.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RolloutVerdict {
    /// All proxies receive the new configuration.
    Promote,
    /// No proxy receives it, for this reason.
    Stop(StopReason),
}

/// Why a rollout is stopped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StopReason {
    /// Proxies rejected the resources generated from the new configuration.
    Refused {
        /// The number of proxies.
        count: usize,
        /// The node ID of an affected proxy.
        proxy: Arc<str>,
        /// The error that this proxy reported.
        error: Arc<str>,
    },
    /// The change removes endpoints, with a description of the loss.
    LostEndpoints(String),
}

impl fmt::Display for StopReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused { count: 1, proxy, error } => {
                write!(f, "{proxy} rejected the change: {error}")
            }
            Self::Refused { count, proxy, error } => {
                write!(f, "{count} proxies rejected the change, among them {proxy}: {error}")
            }
            Self::LostEndpoints(lost) => write!(f, "{lost}"),
        }
    }
}

#[cfg(test)]
mod tests;
