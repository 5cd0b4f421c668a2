//! When open pages are to look again: that something which they show has changed.
//!
//! It is said to however many pages listen, by the one task that hears of it ([`super::topics`]); which of it has changed pages
//! ask for. Owns no data.

use std::convert::Infallible;
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes};
use axum::http::header;
use axum::response::{IntoResponse as _, Response};
use futures::stream;
use serde_json::json;
use tokio::sync::{OwnedSemaphorePermit, watch};

/// Nothing is announced for so long after something was: what changes meanwhile is one change. Pages ask for nothing more
/// often (`page/api.js`), and ask again when it has been quiet for a little longer.
pub(super) const REST: Duration = Duration::from_secs(2);
/// A page is told at least so often that the server is still there: what else would it know by that nothing has changed?
const KEEP_ALIVE: Duration = Duration::from_secs(20);

/// What was announced last.
#[derive(Debug, Clone, Copy)]
pub(super) struct Announcement {
    /// When. What was answered before may be otherwise now.
    pub(super) at: Instant,
    /// The version of the mesh then.
    version: Option<u64>,
}

/// Where it is announced.
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

    /// Announces that something has changed, and the version of the mesh now.
    pub(super) fn announce(&self, version: Option<u64>) {
        self.0.send_replace(Announcement { at: Instant::now(), version });
    }

    /// A stream for a page: an event at once, one for each announcement, and a sign of life where none comes for long.
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

/// What one page is told.
struct ChangeStream {
    of: watch::Receiver<Announcement>,
    keep_alive: Duration,
    begun: bool,
    _place: OwnedSemaphorePermit,
}

impl ChangeStream {
    /// The next event; `None` when the process ends.
    async fn next(mut self) -> Option<(Result<Bytes, Infallible>, Self)> {
        if std::mem::replace(&mut self.begun, true) {
            tokio::select! {
                changed = self.of.changed() => changed.ok()?,
                () = tokio::time::sleep(self.keep_alive) => {
                    // One without data would be passed on to nobody.
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
    async fn a_page_is_told_at_once_of_each_change_and_that_the_server_is_there() {
        let announcements = Announcements::default();
        let places = Arc::new(Semaphore::new(1));
        let place = Arc::clone(&places).try_acquire_owned().expect("a place");
        let mut told = announcements
            .stream_with(Duration::from_millis(200), place)
            .into_body()
            .into_data_stream();
        let mut next = async || {
            let event = told.next().await.expect("it goes on").expect("unbroken");
            String::from_utf8(event.to_vec()).expect("text")
        };
        assert_eq!(next().await, "event: change\ndata: {\"version\":null}\n\n");
        announcements.announce(Some(7));
        assert_eq!(next().await, "event: change\ndata: {\"version\":7}\n\n");
        assert_eq!(next().await, "event: alive\ndata: {}\n\n", "nothing has changed");
        drop(told);
        assert_eq!(places.available_permits(), 1, "who goes makes room");
    }
}
