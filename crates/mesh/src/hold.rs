//! A configuration that is held: proxies go on with it, whatever operators' objects say meanwhile, until it is released.
//!
//! Owns the form of a hold, the file that has it outlast a restart ([`HoldFile`]), the form in which all replicas learn of it
//! ([`SharedHold`]), and the configurations that can be gone back to ([`KeptConfigurations`]). What is held is configuration alone: what clusters report goes on. Who reads objects
//! (`strait_server::feed`) does the holding; nothing here changes what proxies are given. (docs/decisions/0048-held-configuration.md)

mod file;
mod kept;
mod shared;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::sync::{mpsc, oneshot};

pub use self::file::{HoldFile, RestoredHold};
pub use self::kept::{KeptConfiguration, KeptConfigurations, UnknownConfiguration};
pub use self::shared::{HoldMark, HoldSharing, PARTS_MAX, SharedHold, pack, unpack};
use strait_model::{ConfigurationSnapshot, Counted, ObjectJson, ObjectKey};

/// A configuration that is held, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigurationHold {
    /// What proxies go on with.
    pub configuration: Arc<ConfigurationSnapshot>,
    /// Since when, to the millisecond.
    pub since: SystemTime,
    /// Who holds it, as they call themselves.
    pub by: String,
    /// Why.
    pub reason: String,
    /// How much of it is held.
    pub scope: HoldScope,
}

impl ConfigurationHold {
    /// Since when, in milliseconds since the Unix epoch.
    pub fn since_ms(&self) -> u64 {
        milliseconds(self.since)
    }
}

/// Milliseconds since the Unix epoch; 0 for what was before it.
pub fn milliseconds(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
    u64::try_from(since).unwrap_or(u64::MAX)
}

/// Now, as times are told and kept: to the millisecond.
pub fn now_to_the_millisecond() -> SystemTime {
    UNIX_EPOCH + Duration::from_millis(milliseconds(SystemTime::now()))
}

/// How much of a configuration is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HoldScope {
    /// Traffic rules, mesh config and mesh networks. Access policies go on: a DENY that is added counts.
    WithoutAccess,
    /// Access policies as well.
    WithAccess,
}

impl HoldScope {
    /// Whether access policies are held.
    pub fn is_with_access(self) -> bool {
        self == Self::WithAccess
    }
}

/// What an operator asks for.
#[derive(Debug, Clone)]
pub enum HoldChange {
    /// That this is held, in the place of what is held already.
    Hold(Arc<ConfigurationHold>),
    /// That what objects say counts again.
    Release,
    /// That all proxies are given at once what is being let out to a share of them.
    Promote,
    /// That nobody is given it, and what counts for the others is held.
    Abort {
        /// Who asks.
        by: String,
        /// Why.
        reason: String,
    },
}

/// A change that is asked for, and where the answer goes.
#[derive(Debug)]
pub struct HoldRequest {
    /// What is asked for.
    pub change: HoldChange,
    /// What became of it.
    pub answer: oneshot::Sender<Result<(), HoldRefusal>>,
}

/// Where changes are asked for. Bounded: whoever asks waits for those before.
pub type HoldRequests = mpsc::Sender<HoldRequest>;

/// Why a hold is not as it was asked for; what was in force stays in force.
#[derive(Debug, thiserror::Error)]
pub enum HoldRefusal {
    /// There is a state directory, and it takes no file.
    #[error(
        "the hold can't be written into the state directory, and a restart would forget it: {0}"
    )]
    Unwritable(#[source] std::io::Error),
    /// The mesh config or the mesh networks of it can't be read by this version.
    #[error("the mesh config or the mesh networks of that configuration can't be read: {0}")]
    Unreadable(String),
    /// No change is being let out.
    #[error("no change is being let out")]
    NothingLetOut,
}

/// What is held at the moment, and what waits meanwhile.
#[derive(Debug, Clone, Default)]
pub struct HoldState {
    /// What is held.
    pub held: Option<Arc<ConfigurationHold>>,
    /// Whether it outlasts a restart: there is a state directory.
    pub is_durable: bool,
    /// Why what was held before the start is not held any more; none where it is, or nothing was.
    pub lost: Option<Arc<str>>,
    /// What objects say now: what counts once the hold is released. None until they have been read.
    pub live: Option<Arc<ConfigurationSnapshot>>,
    /// What of that is otherwise than what is held.
    pub waiting: Arc<Waiting>,
}

/// What waits for the release of a hold.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Waiting {
    /// Objects that came, went or changed.
    pub objects: BTreeSet<ObjectKey>,
    /// Whether the mesh config is another.
    pub mesh_config: bool,
    /// Whether the mesh networks are others.
    pub mesh_networks: bool,
}

impl Waiting {
    /// How many objects and texts wait.
    pub fn len(&self) -> usize {
        self.objects.len() + usize::from(self.mesh_config) + usize::from(self.mesh_networks)
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What is otherwise in `live` than in what is held of it.
    pub fn between(hold: &ConfigurationHold, live: &ConfigurationSnapshot) -> Self {
        let held = &hold.configuration;
        let mut pairs = vec![(&held.traffic, &live.traffic)];
        if hold.scope.is_with_access() {
            pairs.push((&held.access, &live.access));
        }
        let mut objects = BTreeSet::new();
        for (held, live) in pairs {
            let differing = live.differences(held).filter(|one| {
                let (was, is) = (held.get(one.key), one.now);
                let counted = |object: &ObjectJson| Counted(&object.to_value()).to_value();
                was.map(counted) != is.map(counted)
            });
            objects.extend(differing.map(|one| one.key.clone()));
        }
        Self {
            objects,
            mesh_config: held.mesh != live.mesh,
            mesh_networks: held.networks != live.networks,
        }
    }
}
