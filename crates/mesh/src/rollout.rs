//! A change of configuration that is let out to a share of proxies first, then to more, and that stops by itself.
//!
//! Owns who is in a share ([`Cohort`]), what is told of a roll-out ([`RolloutState`]) and the files that have it outlast a restart
//! ([`RolloutFiles`]). Who reads objects (`strait_server::feed`) begins and ends it, `strait_server::rollout` goes from step to step, and
//! streams ask whose configuration they are given (`strait_envoy::heads`). (docs/decisions/0049-shares-of-proxies.md)

mod file;

use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use xxhash_rust::xxh3::Xxh3;

pub use self::file::RolloutFiles;
use strait_model::policy::RolloutPlan;
use strait_model::{Collection, ConfigurationSnapshot, Proxy, ProxyType};

/// Who holds a configuration of which a roll-out was stopped.
pub const STOPPED_BY: &str = "strait roll-out";

/// The proxies of a share: at most so many of those that were connected while it was filled. Whoever is in stays in, over
/// reconnections and restarts, and as the share grows; who connects later is in when there is room.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cohort {
    /// The name of the configuration, which says who comes first.
    pub name: Arc<str>,
    /// How many of a hundred proxies.
    pub percent: u8,
    /// The places of those that are in, ascending.
    places: Arc<[u64]>,
}

impl Cohort {
    /// Of this share, with nobody in it yet; where that is 100 % all are in, now and later.
    pub fn new(name: Arc<str>, percent: u8) -> Self {
        Self { name, percent, places: Arc::default() }
    }

    /// Whether a proxy is in. Routers, through which others' requests go, are in when all are.
    pub fn contains(&self, proxy: &Proxy) -> bool {
        self.percent >= 100
            || (proxy.kind != ProxyType::Router
                && !self.places.is_empty()
                && self.places.binary_search(&place(&self.name, proxy)).is_ok())
    }

    /// The same with so many of these proxies more as there is room for: a share of those that are connected, rounded down, and
    /// one at least. Of several the same ones come first in every process; others for another configuration. Nobody goes out.
    pub fn filled<'a>(&self, percent: u8, connected: impl Iterator<Item = &'a Proxy>) -> Self {
        let sidecars = connected.filter(|proxy| proxy.kind != ProxyType::Router);
        let mut there: Vec<u64> = sidecars.map(|proxy| place(&self.name, proxy)).collect();
        // Of several streams of one proxy one counts.
        there.sort_unstable();
        there.dedup();
        let room = (there.len() * usize::from(percent) / 100).max(1);
        let new = there.iter().filter(|place| self.places.binary_search(place).is_err());
        let new = new.take(room.saturating_sub(self.places.len()));
        let mut places: Vec<u64> = self.places.iter().chain(new).copied().collect();
        places.sort_unstable();
        Self { name: Arc::clone(&self.name), percent, places: places.into() }
    }
}

/// Where a proxy stands among all: the first are in a share first.
fn place(name: &str, proxy: &Proxy) -> u64 {
    let mut hash = Xxh3::new();
    for part in [name, proxy.cluster.as_str(), &proxy.id] {
        hash.update(part.as_bytes());
        // No part has it.
        hash.update(&[0]);
    }
    hash.digest()
}

/// What a configuration is called by its traffic rules, mesh config and mesh networks alone: access policies are in no roll-out.
pub fn name_of(configuration: &ConfigurationSnapshot) -> Arc<str> {
    let ConfigurationSnapshot { traffic, mesh, networks, .. } = configuration;
    let nothing = Collection::default();
    ConfigurationSnapshot::new(traffic.clone(), nothing, mesh.clone(), networks.clone()).id()
}

/// What is let out at the moment.
#[derive(Debug, Clone, Default)]
pub struct RolloutState {
    /// How changes are let out; `None` for to all at once.
    pub plan: Option<Arc<RolloutPlan>>,
    /// What is being let out.
    pub running: Option<RunningRollout>,
    /// How many have been stopped since the start, whoever stopped them.
    pub stopped: u64,
    /// How many have come to all proxies since the start.
    pub completed: u64,
    /// Why what counted for all before the start is not known, until the next change is let out; none where it is, or there was
    /// nothing.
    pub lost: Option<Arc<str>>,
}

/// A change that is being let out.
#[derive(Debug, Clone)]
pub struct RunningRollout {
    /// How many there have been since the start, this one included.
    pub number: u64,
    /// The new configuration.
    pub next: Arc<ConfigurationSnapshot>,
    /// See [`name_of`].
    pub name: Arc<str>,
    /// The one for all others.
    pub settled: Arc<ConfigurationSnapshot>,
    /// How it is let out. A plan that changes meanwhile is that of the next.
    pub plan: Arc<RolloutPlan>,
    /// Since when, in this process.
    pub begun: SystemTime,
    /// How far it is; `None` until the first share is given it.
    pub step: Option<RolloutStep>,
    /// Who is given it.
    pub cohort: Cohort,
    /// Whether a restart goes on with it.
    pub is_durable: bool,
}

/// A step of a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RolloutStep {
    /// Which, from 0.
    pub at: usize,
    /// Since when.
    pub since: SystemTime,
}

impl RunningRollout {
    /// The share that is given it; 0 before the first.
    pub fn percent(&self) -> u8 {
        self.step.and_then(|step| self.plan.steps.get(step.at).copied()).unwrap_or(0)
    }

    /// When the next step is due.
    pub fn next_step_at(&self) -> Option<SystemTime> {
        self.step.map(|step| step.since + self.plan.every)
    }
}

/// What becomes of a roll-out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RolloutVerdict {
    /// All are given the new configuration.
    Promote,
    /// Nobody is; this is why.
    Stop(StopReason),
}

/// Why a roll-out is stopped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StopReason {
    /// Proxies refused what it made of their configuration.
    Refused {
        /// How many.
        count: usize,
        /// One of them: its node id.
        proxy: Arc<str>,
        /// What it says.
        error: Arc<str>,
    },
    /// It takes endpoints away: which, in words.
    LostEndpoints(String),
}

impl fmt::Display for StopReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused { count: 1, proxy, error } => write!(f, "{proxy} refused it: {error}"),
            Self::Refused { count, proxy, error } => {
                write!(f, "{count} proxies refused it, among them {proxy}: {error}")
            }
            Self::LostEndpoints(words) => write!(f, "{words}"),
        }
    }
}

#[cfg(test)]
mod tests;
