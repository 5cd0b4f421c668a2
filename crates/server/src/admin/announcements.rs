//! Announcements to open pages that something which they show has changed.
//!
//! One task ([`super::topics`]) sends them to all pages, which then request the data. This module
//! owns no data.

use std::convert::Infallible;
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes};
use axum::http::header;
use axum::response::{IntoResponse as _, Response};
use futures::stream;
use serde_json::json;
use tokio::sync::{OwnedSemaphorePermit, watch};

/// Minimum interval of announcements; changes in between are announced together. Pages request data
/// no more often (`page/api.js`), and request it again once no change has occurred for a little
/// longer.
pub(super) const REST: Duration = Duration::from_secs(2);
/// Maximum interval of events to a page, so that it knows that the server is alive.
const KEEP_ALIVE: Duration = Duration::from_secs(20);

/// The last announcement.
#[derive(Debug, Clone, Copy)]
pub(super) struct Announcement {
    /// Its time. Earlier responses may be outdated.
    pub(super) at: Instant,
    /// The version of the mesh at that time.
    version: Option<u64>,
}

/// Sender of announcements.
#[derive(Debug)]
pub struct Announcements(watch::Sender<Announcement>);

impl Default for Announcements {
    fn default() -> Self {
        Self(watch::Sender::new(Announcement { at: Instant::now(), version: None }))
    }
}

impl Announcements {
    pub(super) fn latest(&self) -> Announcement {
        *self.0.borrow()
    }

    /// Announces a change, with the current version of the mesh.
    pub(super) fn announce(&self, version: Option<u64>) {
        self.0.send_replace(Announcement { at: Instant::now(), version });
    }

    /// Returns a stream for a page: an event immediately, one for each announcement, and a sign of
    /// life if none occurs for [`KEEP_ALIVE`].
    pub(super) fn stream(&self, place: OwnedSemaphorePermit) -> Response {
        self.stream_with(KEEP_ALIVE, place)
    }

    fn stream_with(&self, keep_alive: Duration, place: OwnedSemaphorePermit) -> Response {
        let of = self.0.subscribe();
        let changes = ChangeStream { of, keep_alive, begun: false, _place: place };
        let body = Body::from_stream(stream::unfold(changes, ChangeStream::next));
        ([(header::CONTENT_TYPE, "text/event-stream")], body).into_response()
    }
}

/// Stream of events to one page.
struct ChangeStream {
    of: watch::Receiver<Announcement>,
    keep_alive: Duration,
    begun: bool,
    _place: OwnedSemaphorePermit,
}

impl ChangeStream {
    /// Returns the next event, or `None` when the process ends.
    async fn next(mut self) -> Option<(Result<Bytes, Infallible>, Self)> {
        if std::mem::replace(&mut self.begun, true) {
            tokio::select! {
                changed = self.of.changed() => changed.ok()?,
                () = tokio::time::sleep(self.keep_alive) => {
                    // Browsers don't dispatch an event without data.
                    return Some((Ok(Bytes::from_static(b"event: alive\ndata: {}\n\n")), self));
                }
            }
        }
        let version = self.of.borrow_and_update().version;
        let event = format!("event: change\ndata: {}\n\n", json!({ "version": version }));
        Some((Ok(event.into()), self))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use futures::StreamExt as _;
    use tokio::sync::Semaphore;

    use super::*;

    #[tokio::test]
    async fn page_receives_each_change_and_signs_of_life() {
        let announcements = Announcements::default();
        let places = Arc::new(Semaphore::new(1));
        let place = Arc::clone(&places).try_acquire_owned().expect("a place");
        let mut events = announcements
            .stream_with(Duration::from_millis(200), place)
            .into_body()
            .into_data_stream();
        let mut next = async || {
            let event = events.next().await.expect("it goes on").expect("unbroken");
            String::from_utf8(event.to_vec()).expect("text")
        };
        assert_eq!(next().await, "event: change\ndata: {\"version\":null}\n\n");
        announcements.announce(Some(7));
        assert_eq!(next().await, "event: change\ndata: {\"version\":7}\n\n");
        assert_eq!(next().await, "event: alive\ndata: {}\n\n", "nothing has changed");
        drop(events);
        assert_eq!(places.available_permits(), 1, "a closed stream releases its permit");
    }
}
