//! One watch, from its start, through the changes that its selector matches, to its end.
//!
//! A watch only owns a cursor. Whenever it wakes, it reads the changes from the store. It ends when
//! its timeout expires, its version is compacted, or its client disconnects.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep_until};

use crate::encode::{CHUNK_BYTES, View};
use crate::fault::Fault;
use crate::http::ApiServer;
use crate::select::Selector;
use crate::store::{At, Change};

/// The start of a watch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Start {
    /// Sends an ADDED event for each existing object first.
    Initial {
        /// Whether a bookmark marks the end of these events (streaming list).
        marked: bool,
    },
    /// Starts with the next change.
    Now,
    /// Starts with the changes after this version.
    After(u64),
}

/// A watch request.
#[derive(Debug)]
pub(crate) struct Watch {
    pub(crate) view: View,
    pub(crate) selector: Selector,
    pub(crate) start: Start,
    pub(crate) bookmarks: bool,
    pub(crate) timeout: Duration,
}

/// The maximum number of changes read from the store at once.
const BATCH: usize = 256;

impl Watch {
    /// Sends events until the watch ends.
    pub(crate) async fn run(self, server: Arc<ApiServer>, out: mpsc::Sender<Bytes>) {
        let started = Instant::now();
        tokio::select! {
            () = self.send_events(&server, &out) => {}
            () = self.time_is_over(&server, started) => {}
            () = out.closed() => {}
        }
    }

    /// Waits for the requested timeout, or less if a fault closes watches.
    async fn time_is_over(&self, server: &ApiServer, started: Instant) {
        let mut faults = server.faults.subscribe();
        loop {
            let close = server.faults.find(|fault| match fault {
                Fault::CloseWatches { after_ms } => Some(Duration::from_millis(*after_ms)),
                _ => None,
            });
            let lifetime = close.map_or(self.timeout, |close| close.min(self.timeout));
            tokio::select! {
                () = sleep_until(started + lifetime) => return,
                _ = faults.changed() => {}
            }
        }
    }

    async fn send_events(&self, server: &ApiServer, out: &mpsc::Sender<Bytes>) {
        let store = &server.store;
        let mut changed = store.subscribe(self.view.resource);
        let mut cursor = match self.start {
            Start::After(version) => version,
            Start::Now => store.version(),
            Start::Initial { marked } => match self.send_initial(server, out, marked).await {
                Some(version) => version,
                None => return,
            },
        };
        let period = server.bookmark_interval;
        let mut bookmark = interval_at(Instant::now() + period, period);
        bookmark.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut bookmark_due = false;
        loop {
            server.faults.wait_without(&Fault::Mute).await;
            server.faults.wait_without(&Fault::Hang).await;
            changed.mark_unchanged();
            let (mut events, more) = match store.changes(self.view.resource, cursor, BATCH) {
                Ok((changes, seen)) => {
                    cursor = seen;
                    (self.encode(&changes), changes.len() == BATCH)
                }
                Err(error) => {
                    let _ = out.send(self.view.error_event(&error).into()).await;
                    return;
                }
            };
            if bookmark_due && !more {
                events.push(self.view.bookmark(cursor, false).into());
                bookmark_due = false;
            }
            let chunk = match events.len() {
                // A single event stays in the buffer that all watchers share.
                0 | 1 => events.pop(),
                _ => Some(events.concat().into()),
            };
            if let Some(chunk) = chunk
                && out.send(chunk).await.is_err()
            {
                return;
            }
            if !more {
                tokio::select! {
                    _ = changed.changed() => {}
                    _ = bookmark.tick(), if self.bookmarks => bookmark_due = true,
                }
            }
        }
    }

    /// Sends the initial events. Returns their version; `None` if the client has disconnected.
    async fn send_initial(
        &self,
        server: &ApiServer,
        out: &mpsc::Sender<Bytes>,
        marked: bool,
    ) -> Option<u64> {
        let page =
            server.store.list(self.view.resource, &self.selector, At::Now, None, None).ok()?;
        // The last object of a chunk may exceed the chunk size.
        let empty = || Vec::with_capacity(CHUNK_BYTES + CHUNK_BYTES / 16);
        let mut chunk = empty();
        for object in &page.objects {
            self.view.write_event("ADDED", object, &mut chunk);
            if chunk.len() >= CHUNK_BYTES {
                out.send(std::mem::replace(&mut chunk, empty()).into()).await.ok()?;
            }
        }
        if marked && self.bookmarks {
            chunk.extend(self.view.bookmark(page.version, true));
        }
        if !chunk.is_empty() {
            out.send(chunk.into()).await.ok()?;
        }
        Some(page.version)
    }

    /// Encodes the changes for this watcher: an object that leaves the selection is reported as
    /// deleted, and an object that enters the selection as added.
    fn encode(&self, changes: &[Change]) -> Vec<Bytes> {
        let mut out = Vec::new();
        for Change { before, now, deleted, drawn } in changes {
            let mut shared = |kind| out.push(self.view.shared_event(kind, now, drawn));
            let before = before.as_ref().filter(|object| self.selector.matches(object));
            let selected = !deleted && self.selector.matches(now);
            match (before, selected) {
                (None, false) => {}
                (None, true) => shared("ADDED"),
                (Some(_), true) => shared("MODIFIED"),
                (Some(_), false) if *deleted => shared("DELETED"),
                (Some(before), false) => {
                    let last = before.at_version(now.version);
                    let mut event = Vec::new();
                    self.view.write_event("DELETED", &last, &mut event);
                    out.push(event.into());
                }
            }
        }
        out
    }
}
