//! What is held when a process starts: by itself before, or by other replicas.

use std::sync::Arc;

use tracing::{error, warn};

use crate::in_force::ConfigurationInForce;
use crate::shared_hold::FoundHold;
use strait_base::codes;
use strait_mesh::hold::{ConfigurationHold, HoldChange, HoldFile, RestoredHold};
use strait_mesh::push::event_loop::MeshEvent;
use strait_rules::access::TimePoint;

/// Holds what was held before the start, or is held by other replicas: what others have to hear of that, and why it can't be held
/// where it can't.
pub(super) async fn restore(
    file: &Option<HoldFile>,
    shared: Option<FoundHold>,
    in_force: &mut ConfigurationInForce,
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
            warn!(%error, path, "what other replicas hold can't be written into the state directory");
        }
    }
    let fact = match hold {
        RestoredHold::Nothing => return (Vec::new(), None),
        RestoredHold::Held(hold) => {
            let (id, by, reason) = (hold.configuration.id(), &hold.by, &hold.reason);
            match in_force.change(&HoldChange::Hold(Arc::clone(&hold)), TimePoint::now()) {
                Ok(events) => {
                    let code = &codes::HELD;
                    warn!(%id, by, reason, %code, next = code.next, "the configuration is held as before the start");
                    return (events, None);
                }
                Err(refusal) => refusal.to_string(),
            }
        }
        RestoredHold::Lost(fact) => fact,
    };
    let code = &codes::HOLD_LOST;
    error!(path, fact, %code, next = code.next, "what was held before the start can't be told: what objects say is in force");
    (Vec::new(), Some(format!("{path}: {fact}").into()))
}

/// Has the file say what is held, without keeping the feed's thread.
pub(super) async fn put(
    file: HoldFile,
    hold: Option<Arc<ConfigurationHold>>,
) -> std::io::Result<()> {
    let written = tokio::task::spawn_blocking(move || file.put(hold.as_deref())).await;
    written.unwrap_or_else(|error| Err(std::io::Error::other(error)))
}

/// Of what this process held before its start and what the others hold, what was said last, and whether that is the others'. What
/// can't be told of this one's counts as earlier than what others hold.
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
    fn of_what_this_one_and_the_others_held_the_later_counts() {
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
            let told = format!("{before:?} {shared:?}");
            let (hold, is_from_others) = newest(before, shared);
            let whose = if is_from_others { "others" } else { "own" };
            let found = match hold {
                RestoredHold::Held(hold) => format!("{whose} {}", hold.since_ms()),
                RestoredHold::Nothing if is_from_others => "others nothing".to_owned(),
                RestoredHold::Nothing => "nothing".to_owned(),
                RestoredHold::Lost(_) => "lost".to_owned(),
            };
            assert_eq!(found, expected, "{told}");
        }
    }
}
