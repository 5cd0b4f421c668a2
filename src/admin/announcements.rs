//! When open pages are to look again: that something which they show has changed.
//!
//! One task hears of all of it and says so, to however many pages listen; which of it has changed pages ask for. It wakes when
//! something changes, and every ten seconds for the little that changes with time alone. Owns no data.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes};
use axum::http::header;
use axum::response::{IntoResponse as _, Response};
use futures::stream;
use serde_json::json;
use tokio::sync::{OwnedSemaphorePermit, watch};

use super::sources::Sources;
use crate::clusters::status::ClusterStatus;
use crate::explain::ConfigReports;
use crate::hold::{HoldSharing, HoldState};
use crate::identity::ServerIdentity;
use crate::mesh::watch::SourceProblem;
use crate::policy::{Policy, WatchedPolicy};
use crate::push::PushContext;
use crate::rollout::RolloutState;
use crate::sources::{SourceStanding, SourceStatusMap, SourceStatusTable};
use crate::xds::heads::{Heads, Refusals};

/// Nothing is announced for so long after something was: what changes meanwhile is one change. Pages ask for nothing more
/// often (`page/api.js`), and ask again when it has been quiet for a little longer.
pub(super) const REST: Duration = Duration::from_secs(2);
/// A page is told at least so often that the server is still there: what else would it know by that nothing has changed?
const KEEP_ALIVE: Duration = Duration::from_secs(20);
/// How often is looked at what time alone changes: a source is out of contact once it was silent for long enough.
const LOOK: Duration = Duration::from_secs(10);

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

    /// Announces what changes, for as long as anything can.
    pub(super) async fn announce(&self, mut topics: PageTopics) {
        loop {
            topics.changed().await;
            let version = topics.taken();
            self.0.send_replace(Announcement { at: Instant::now(), version });
            tokio::time::sleep(REST).await;
        }
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

/// What pages are told the changes of.
pub(super) struct PageTopics {
    context: watch::Receiver<Option<Arc<PushContext>>>,
    clusters: watch::Receiver<Arc<Vec<ClusterStatus>>>,
    hold: watch::Receiver<Arc<HoldState>>,
    hold_sharing: watch::Receiver<HoldSharing>,
    rollout: watch::Receiver<Arc<RolloutState>>,
    reports: watch::Receiver<Arc<ConfigReports>>,
    mesh_problems: watch::Receiver<Vec<SourceProblem>>,
    policy: watch::Receiver<Arc<Policy>>,
    policy_problem: watch::Receiver<Option<String>>,
    identity: watch::Receiver<Arc<ServerIdentity>>,
    /// Who comes, goes and refuses.
    proxies: watch::Receiver<u64>,
    sources: SourceTopic,
    heads: Arc<Heads>,
    /// Who refuses what is let out, and the number of that.
    refusals: Option<(u64, Refusals)>,
}

impl PageTopics {
    pub(super) fn of(sources: &Sources) -> Self {
        let WatchedPolicy { policy, problem } = sources.policy.clone();
        Self {
            context: sources.context.clone(),
            clusters: sources.clusters.clone(),
            hold: sources.hold.clone(),
            hold_sharing: sources.hold_sharing.clone(),
            rollout: sources.rollout.clone(),
            reports: sources.reports.clone(),
            mesh_problems: sources.mesh_problems.clone(),
            policy,
            policy_problem: problem,
            identity: sources.metrics.identity.clone(),
            proxies: sources.connections.news(),
            sources: SourceTopic::of(&sources.source_statuses),
            heads: Arc::clone(&sources.heads),
            refusals: None,
        }
    }

    /// Until something has changed.
    async fn changed(&mut self) {
        tokio::select! {
            () = changed(&mut self.context) => {}
            () = changed(&mut self.clusters) => {}
            () = changed(&mut self.hold) => {}
            () = changed(&mut self.hold_sharing) => {}
            () = changed(&mut self.rollout) => {}
            () = changed(&mut self.reports) => {}
            () = changed(&mut self.mesh_problems) => {}
            () = changed(&mut self.policy) => {}
            () = changed(&mut self.policy_problem) => {}
            () = changed(&mut self.identity) => {}
            () = changed(&mut self.proxies) => {}
            () = self.sources.changed() => {}
            () = refused(&mut self.refusals) => {}
        }
    }

    /// Takes all that has changed as told of: the version of the mesh.
    fn taken(&mut self) -> Option<u64> {
        self.clusters.mark_unchanged();
        self.hold.mark_unchanged();
        self.hold_sharing.mark_unchanged();
        self.rollout.mark_unchanged();
        self.reports.mark_unchanged();
        self.mesh_problems.mark_unchanged();
        self.policy.mark_unchanged();
        self.policy_problem.mark_unchanged();
        self.identity.mark_unchanged();
        self.proxies.mark_unchanged();
        self.sources.take();
        self.listen_to_share();
        self.context.borrow_and_update().as_ref().map(|context| context.version)
    }

    /// Hears from now on who refuses what is let out. It is given to a share before that is told (`server::rollout`), so an
    /// announcement comes after the first who could.
    fn listen_to_share(&mut self) {
        let known = self.refusals.as_ref().map(|(number, _)| *number);
        let head = self.heads.next().filter(|head| Some(head.number) != known);
        if let Some(head) = head {
            self.refusals = Some((head.number, head.refusals()));
        } else if let Some((_, refusals)) = &mut self.refusals {
            refusals.mark_unchanged();
        }
    }
}

/// Until there is another value; for ever where none can come.
async fn changed<T>(of: &mut watch::Receiver<T>) {
    if of.changed().await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// Until one more proxy refuses what is let out; for ever where nothing is.
async fn refused(of: &mut Option<(u64, Refusals)>) {
    if let Some((_, refusals)) = of
        && refusals.changed().await.is_ok()
    {
        return;
    }
    // It has ended.
    *of = None;
    std::future::pending::<()>().await;
}

/// How the sources fare that are no member clusters. Each answer of theirs is told, and most of these are no news.
struct SourceTopic {
    table: SourceStatusTable,
    lines: watch::Receiver<SourceStatusMap>,
    known: Vec<SourceStanding>,
}

impl SourceTopic {
    fn of(table: &SourceStatusTable) -> Self {
        Self { table: table.clone(), lines: table.lines(), known: table.standings() }
    }

    async fn changed(&mut self) {
        while self.table.standings() == self.known {
            tokio::select! {
                () = changed(&mut self.lines) => {}
                () = tokio::time::sleep(LOOK) => {}
            }
        }
    }

    fn take(&mut self) {
        self.lines.mark_unchanged();
        self.known = self.table.standings();
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
        announcements.0.send_replace(Announcement { at: Instant::now(), version: Some(7) });
        assert_eq!(next().await, "event: change\ndata: {\"version\":7}\n\n");
        assert_eq!(next().await, "event: alive\ndata: {}\n\n", "nothing has changed");
        drop(told);
        assert_eq!(places.available_permits(), 1, "who goes makes room");
    }
}
