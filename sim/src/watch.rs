//! One watch: from a start, through the changes its selector lets through, to its end.
//!
//! A watch owns a cursor and nothing else; what it sends comes from the store each time it wakes. It
//! ends when its time is over, its version is forgotten, or its client is gone.

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

/// Where a watch begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Start {
    /// With an ADDED event for each object there is.
    Initial {
        /// Whether a bookmark then says that these were all: a streaming list.
        marked: bool,
    },
    /// With the next change.
    Now,
    /// With the changes after this version.
    After(u64),
}

/// What a client asked to watch.
#[derive(Debug)]
pub(crate) struct Watch {
    pub(crate) view: View,
    pub(crate) selector: Selector,
    pub(crate) start: Start,
    pub(crate) bookmarks: bool,
    pub(crate) timeout: Duration,
}

/// Changes taken from the store at once.
const BATCH: usize = 256;

impl Watch {
    /// Sends events until the watch is over.
    pub(crate) async fn run(self, server: Arc<ApiServer>, out: mpsc::Sender<Bytes>) {
        let started = Instant::now();
        tokio::select! {
            () = self.send_events(&server, &out) => {}
            () = self.time_is_over(&server, started) => {}
            () = out.closed() => {}
        }
    }

    /// At the timeout asked for, or earlier if a fault says so.
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
                // The bytes that all watchers share.
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

    /// The version that the initial events show; nothing if the client has gone.
    async fn send_initial(
        &self,
        server: &ApiServer,
        out: &mpsc::Sender<Bytes>,
        marked: bool,
    ) -> Option<u64> {
        let page =
            server.store.list(self.view.resource, &self.selector, At::Now, None, None).ok()?;
        // The last object of a chunk may go beyond its size.
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

    /// The changes as this watcher sees them: an object that leaves the selection is deleted, one that
    /// enters it is added.
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
