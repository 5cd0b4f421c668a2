//! Descriptions of the event loop's work, with the objects that cause it.

use std::fmt;

use strait_model::registry::{RegistryUpdate, ShardChange};
use strait_model::{Cause, Causes, ClusterId};

/// A piece of the event loop's work, for the watchdog.
pub(super) struct MeshWork {
    pub(super) step: &'static str,
    pub(super) causes: Causes,
}

impl fmt::Display for MeshWork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} changes of {}", self.step, self.causes)
    }
}

/// Returns the objects that cause an update.
pub(super) fn causes_of_update(update: &RegistryUpdate) -> Causes {
    let cluster = update.shard.cluster.clone();
    match &update.change {
        ShardChange::Update(contents) => contents.causes.clone(),
        ShardChange::Reset(_) | ShardChange::Removed if cluster.is_empty() => Causes::default(),
        ShardChange::Reset(_) | ShardChange::Removed => {
            Cause::named(ClusterId::default(), "Cluster", cluster).into()
        }
    }
}
