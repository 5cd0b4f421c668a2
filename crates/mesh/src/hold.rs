//! Held configurations: while a configuration is held, proxies keep it regardless of changes to
//! objects, until it is released.
//!
//! Defines a hold ([`ConfigurationHold`]), the file that preserves it across restarts
//! ([`HoldFile`]), the form in which replicas share it ([`SharedHold`]), and the configurations
//! that can be restored ([`RetainedConfigurations`]). A hold covers configuration only; changes
//! that clusters report still apply. `strait_server::feed` reads the objects and implements the
//! hold; nothing in this module changes what proxies receive.
//! (docs/contributing/decisions/0048-held-configuration.md)

mod file;
mod kept;
mod shared;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::sync::{mpsc, oneshot};

pub use self::file::{HoldFile, RestoredHold};
pub use self::kept::{RetainedConfiguration, RetainedConfigurations, UnknownConfiguration};
pub use self::shared::{HoldMark, HoldSharing, PARTS_MAX, SharedHold, pack, unpack};
use strait_model::{ConfigurationSnapshot, ObjectJson, ObjectKey};

/// A held configuration, with the reason for holding it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigurationHold {
    /// The configuration that proxies keep.
    pub configuration: Arc<ConfigurationSnapshot>,
    /// When the hold started, with millisecond precision.
    pub since: SystemTime,
    /// The name that the operator gave.
    pub by: String,
    /// The reason that the operator gave.
    pub reason: String,
    /// The parts of the configuration that the hold covers.
    pub scope: HoldScope,
}

impl ConfigurationHold {
    /// Returns when the hold started, in milliseconds since the Unix epoch.
    pub fn since_ms(&self) -> u64 {
        milliseconds(self.since)
    }
}

/// Returns milliseconds since the Unix epoch; 0 for earlier times.
pub fn milliseconds(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
    u64::try_from(since).unwrap_or(u64::MAX)
}

/// Returns the current time, truncated to milliseconds, the precision in which times are displayed
/// and stored.
pub fn now_to_the_millisecond() -> SystemTime {
    UNIX_EPOCH + Duration::from_millis(milliseconds(SystemTime::now()))
}

/// The parts of a configuration that a hold covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HoldScope {
    /// Traffic rules, mesh config and mesh networks. Changes to access policies still apply, such
    /// as a new DENY.
    WithoutAccess,
    /// Access policies as well.
    WithAccess,
}

impl HoldScope {
    /// Returns whether the hold covers access policies.
    pub fn is_with_access(self) -> bool {
        self == Self::WithAccess
    }
}

/// A change that an operator requests.
#[derive(Debug, Clone)]
pub enum HoldChange {
    /// Hold this configuration, replacing an existing hold.
    Hold(Arc<ConfigurationHold>),
    /// Release the hold: the current objects apply again.
    Release,
    /// Finish the rollout: send the change to all proxies at once.
    Promote,
    /// Abort the rollout: no proxy receives the change, and the configuration of the other proxies
    /// is held.
    Abort {
        /// The operator's name.
        by: String,
        /// The operator's reason.
        reason: String,
    },
}

/// A requested change, with the channel for the response.
#[derive(Debug)]
pub struct HoldRequest {
    /// The requested change.
    pub change: HoldChange,
    /// Receives the result.
    pub answer: oneshot::Sender<Result<(), HoldRefusal>>,
}

/// The queue of requested changes. Bounded: a request waits for earlier requests.
pub type HoldRequests = mpsc::Sender<HoldRequest>;

/// Why a requested change was refused. The active configuration is unchanged.
#[derive(Debug, thiserror::Error)]
pub enum HoldRefusal {
    /// The state directory exists but cannot be written.
    #[error("cannot write the hold to the state directory, so a restart would lose it: {0}")]
    Unwritable(#[source] std::io::Error),
    /// This version cannot parse the configuration's mesh config or mesh networks.
    #[error("cannot parse the mesh config or mesh networks of that configuration: {0}")]
    Unreadable(String),
    /// No rollout is in progress.
    #[error("no rollout is in progress")]
    NoRollout,
}

/// The current hold and the changes that wait for its release.
#[derive(Debug, Clone, Default)]
pub struct HoldState {
    /// The current hold.
    pub held: Option<Arc<ConfigurationHold>>,
    /// Whether the hold survives a restart, which requires a state directory.
    pub is_durable: bool,
    /// Why a hold from before the start was lost; `None` if no hold was lost.
    pub lost: Option<Arc<str>>,
    /// The configuration that the current objects define. It takes effect when the hold is
    /// released. `None` until the objects have been read.
    pub live: Option<Arc<ConfigurationSnapshot>>,
    /// The differences between `live` and the held configuration.
    pub waiting: Arc<Waiting>,
}

/// Changes that wait for the release of a hold.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Waiting {
    /// Objects that were added, removed or changed.
    pub objects: BTreeSet<ObjectKey>,
    /// Whether the mesh config differs.
    pub mesh_config: bool,
    /// Whether the mesh networks differ.
    pub mesh_networks: bool,
}

impl Waiting {
    /// Returns the number of waiting objects and texts.
    pub fn len(&self) -> usize {
        self.objects.len() + usize::from(self.mesh_config) + usize::from(self.mesh_networks)
    }

    /// Returns whether no change waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the differences between the held parts of a configuration and `live`.
    pub fn between(hold: &ConfigurationHold, live: &ConfigurationSnapshot) -> Self {
        let held = &hold.configuration;
        let mut pairs = vec![(&held.traffic, &live.traffic)];
        if hold.scope.is_with_access() {
            pairs.push((&held.access, &live.access));
        }
        let mut objects = BTreeSet::new();
        for (held, live) in pairs {
            let differences = live.differences(held).filter(|difference| {
                let (was, is) = (held.get(difference.key), difference.now);
                was.map(ObjectJson::counted_text) != is.map(ObjectJson::counted_text)
            });
            objects.extend(differences.map(|difference| difference.key.clone()));
        }
        Self {
            objects,
            mesh_config: held.mesh != live.mesh,
            mesh_networks: held.networks != live.networks,
        }
    }
}
