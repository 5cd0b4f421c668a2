//! Descriptions of the event loop's work, with the objects that cause it.

use std::fmt;

use super::MeshEvent;
use strait_model::registry::{RegistryUpdate, ShardChange};
use strait_model::{Cause, Causes, ClusterId};

/// A piece of the event loop's work, for the watchdog.
pub(super) struct LoopWork {
    pub(super) step: &'static str,
    pub(super) causes: Causes,
}

impl fmt::Display for LoopWork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} changes of {}", self.step, self.causes)
    }
}

/// Returns the objects that cause an event.
pub(super) fn causes_of(event: &MeshEvent) -> Causes {
    match event {
        MeshEvent::Registry(update) | MeshEvent::Entries(update, _) => causes_of_update(update),
        MeshEvent::Traffic(update) | MeshEvent::EditionTraffic(_, update) => update.causes.clone(),
        MeshEvent::Access(_, causes) => causes.clone(),
        MeshEvent::Together(events) => {
            let mut causes = Causes::default();
            events.iter().for_each(|event| causes.merge(causes_of(event)));
            causes
        }
        _ => Causes::default(),
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
