//! Notifies when something in a directory may have changed.
//!
//! Notifications are hints: the receiver must check the directory itself, and also check it
//! periodically, because the system may have no more watches, and network file systems may have
//! none. Events that are caused by reading are ignored, because otherwise each check would trigger
//! the next.

use std::path::Path;

use notify::event::{AccessKind, AccessMode};
use notify::{Event, EventKind, RecommendedWatcher, RecursiveMode, Watcher as _};

/// Calls `hint` whenever something in `folder` may have changed, until the returned value is
/// dropped.
///
/// # Errors
/// Returns an error if the system cannot report changes. Then only periodic checks work.
pub fn watch(
    folder: &Path,
    hint: impl Fn() + Send + 'static,
) -> Result<RecommendedWatcher, notify::Error> {
    let mut watcher = notify::recommended_watcher(move |event: Result<Event, notify::Error>| {
        // Events may be missing after an error.
        if event.as_ref().map_or(true, may_change) {
            hint();
        }
    })?;
    watcher.watch(folder, RecursiveMode::NonRecursive)?;
    Ok(watcher)
}

fn may_change(event: &Event) -> bool {
    match event.kind {
        EventKind::Access(access) => access == AccessKind::Close(AccessMode::Write),
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(20);

    #[test]
    fn reading_is_not_reported_and_writing_is() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("file");
        fs::write(&file, "1").expect("written");
        let (sender, events) = mpsc::channel();
        let mut all = notify::recommended_watcher(move |event: Result<Event, notify::Error>| {
            let _ = sender.send(event.expect("an event"));
        })
        .expect("a watcher");
        all.watch(folder.path(), RecursiveMode::NonRecursive).expect("watched");
        let (hint, hints) = mpsc::channel();
        let hint = move || {
            let _ = hint.send(());
        };
        let _watcher = watch(folder.path(), hint).expect("watched");

        assert_eq!(fs::read_to_string(&file).expect("read"), "1");
        assert_eq!(fs::read_dir(folder.path()).expect("read").count(), 1);
        // Events arrive in order: those before the second file are caused by reading.
        fs::write(folder.path().join("other"), "2").expect("written");
        let mut of_reading = Vec::new();
        loop {
            let event = events.recv_timeout(LIMIT).expect("an event in time");
            if event.paths.iter().any(|path| path.ends_with("other")) {
                break;
            }
            of_reading.push(event);
        }
        assert!(!of_reading.is_empty(), "the system reports reading");
        assert!(!of_reading.iter().any(may_change), "{of_reading:?}");
        hints.recv_timeout(LIMIT).expect("writing is reported");
        fs::rename(folder.path().join("other"), &file).expect("renamed");
        loop {
            let event = events.recv_timeout(LIMIT).expect("an event in time");
            if matches!(event.kind, EventKind::Modify(_)) && may_change(&event) {
                break;
            }
        }
    }
}
