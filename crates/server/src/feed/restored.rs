//! The hold at the start of the process: the process's earlier hold, or the hold of other replicas.

use std::sync::Arc;

use tracing::{error, warn};

use crate::active_configuration::ActiveConfiguration;
use crate::shared_hold::FoundHold;
use strait_base::codes;
use strait_mesh::hold::{ConfigurationHold, HoldChange, HoldFile, RestoredHold};
use strait_mesh::push::event_loop::MeshEvent;
use strait_rules::access::TimePoint;

/// Restores the hold from before the start, or adopts the hold of other replicas. Returns the
/// events, and the reason if the hold could not be restored.
pub(super) async fn restore(
    file: &Option<HoldFile>,
    shared: Option<FoundHold>,
    active: &mut ActiveConfiguration,
) -> (Vec<MeshEvent>, Option<Arc<str>>) {
    let path = file.as_ref().map(|file| file.path().display().to_string()).unwrap_or_default();
    let read = match file.clone() {
        None => RestoredHold::Nothing,
        Some(file) => {
            let read = tokio::task::spawn_blocking(move || file.read()).await;
            read.unwrap_or_else(|error| RestoredHold::Lost(error.to_string()))
        }
    };
    let (hold, is_from_others) = newest(read, shared);
    if let (true, Some(file)) = (is_from_others, file.clone()) {
        let held = match &hold {
            RestoredHold::Held(hold) => Some(Arc::clone(hold)),
            _ => None,
        };
        if let Err(error) = put(file, held).await {
            warn!(%error, path, "writing the hold of other replicas to the state directory failed");
        }
    }
    let fact = match hold {
        RestoredHold::Nothing => return (Vec::new(), None),
        RestoredHold::Held(hold) => {
            let (id, by, reason) = (hold.configuration.id(), &hold.by, &hold.reason);
            match active.change(&HoldChange::Hold(Arc::clone(&hold)), TimePoint::now()) {
                Ok(events) => {
                    let code = &codes::HELD;
                    warn!(%id, by, reason, %code, next = code.next, "restored the hold from before the start");
                    return (events, None);
                }
                Err(refusal) => refusal.to_string(),
            }
        }
        RestoredHold::Lost(fact) => fact,
    };
    let code = &codes::HOLD_LOST;
    error!(path, fact, %code, next = code.next, "cannot restore the hold from before the start; the stored objects apply");
    (Vec::new(), Some(format!("{path}: {fact}").into()))
}

/// Writes the hold to the file without blocking the feed's thread.
pub(super) async fn put(
    file: HoldFile,
    hold: Option<Arc<ConfigurationHold>>,
) -> std::io::Result<()> {
    let written = tokio::task::spawn_blocking(move || file.put(hold.as_deref())).await;
    written.unwrap_or_else(|error| Err(std::io::Error::other(error)))
}

/// Returns the later of this process's hold and the replicas' hold, and whether it is the
/// replicas'. An unreadable own hold counts as earlier.
fn newest(own: RestoredHold, shared: Option<FoundHold>) -> (RestoredHold, bool) {
    let Some(shared) = shared else { return (own, false) };
    match (&own, shared.held) {
        (RestoredHold::Held(hold), _) if hold.since_ms() > shared.changed => (own, false),
        (RestoredHold::Held(hold), Some(held)) if *hold == held => (own, false),
        (_, Some(held)) => (RestoredHold::Held(held), true),
        (RestoredHold::Held(_), None) => (RestoredHold::Nothing, true),
        (_, None) => (own, false),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use strait_mesh::testing::hold_of;
    use strait_model::ConfigurationSnapshot;

    fn hold(since: u64) -> Arc<ConfigurationHold> {
        Arc::new(hold_of(ConfigurationSnapshot::default(), since))
    }

    #[test]
    fn later_of_own_and_shared_hold_wins() {
        let own = |since| RestoredHold::Held(hold(since));
        let lost = || RestoredHold::Lost("half of it".to_owned());
        let others = |changed, since: Option<u64>| FoundHold { changed, held: since.map(hold) };
        for (before, shared, expected) in [
            (RestoredHold::Nothing, None, "nothing"),
            (own(5), None, "own 5"),
            (RestoredHold::Nothing, Some(others(6, Some(5))), "others 5"),
            (own(5), Some(others(6, Some(5))), "own 5"),
            (own(5), Some(others(8, Some(7))), "others 7"),
            (own(5), Some(others(6, None)), "others nothing"),
            (own(7), Some(others(6, None)), "own 7"),
            (own(7), Some(others(6, Some(5))), "own 7"),
            (lost(), Some(others(6, Some(5))), "others 5"),
            (lost(), Some(others(6, None)), "lost"),
            (lost(), None, "lost"),
        ] {
            let context = format!("{before:?} {shared:?}");
            let (hold, is_from_others) = newest(before, shared);
            let origin = if is_from_others { "others" } else { "own" };
            let found = match hold {
                RestoredHold::Held(hold) => format!("{origin} {}", hold.since_ms()),
                RestoredHold::Nothing if is_from_others => "others nothing".to_owned(),
                RestoredHold::Nothing => "nothing".to_owned(),
                RestoredHold::Lost(_) => "lost".to_owned(),
            };
            assert_eq!(found, expected, "{context}");
        }
    }
}
