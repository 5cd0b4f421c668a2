//! Order across resource types (make before break): some responses wait until the client has
//! answered others.
//!
//! A route to an upstream cluster that a proxy does not have fails requests, and a new cluster
//! accepts no requests before its endpoint assignment arrives. Envoy subscribes to the assignments
//! of clusters before it acknowledges the clusters, other clients do so afterwards. Therefore
//! listeners and routes are sent after the client has answered the clusters, has subscribed to their
//! assignments and has answered these. Removals go in the opposite direction: clusters are removed
//! after the client has accepted the listeners and routes. Then the client usually unsubscribes from
//! their assignments, so that no assignment without endpoints is sent. If the client does not answer, responses wait
//! for at most [`ANSWER_LIMIT`]. Pure: time is passed in.

use std::time::{Duration, SystemTime};

use super::resource::ResourceType;

/// The longest time that a response waits for the answer to another one; then it is sent anyway.
pub(super) const ANSWER_LIMIT: Duration = Duration::from_secs(5);

/// The state that decides which responses of one stream wait. Responses are identified by their
/// numbers, which increase with each response.
#[derive(Debug, Default)]
pub(super) struct Order {
    /// The last response that contained upstream clusters, until it is answered.
    clusters: Option<u64>,
    /// The last response that was sent before the clusters were answered. The assignments of these
    /// clusters are in responses up to this one.
    assignments: u64,
    /// Whether the client has not subscribed to the assignments of all clusters yet.
    unassigned: bool,
    additions: OrderHold,
    removals: OrderHold,
    last_assignments: OrderHold,
}

impl Order {
    /// Records that a response contains upstream clusters.
    pub(super) fn clusters_sent(&mut self, number: u64) {
        self.clusters = Some(number);
    }

    /// Returns whether listeners and routes have to wait, if any are `due`.
    ///
    /// `last` is the number of the last response that was sent. `unassigned` states whether the
    /// client lacks a subscription to the assignment of a cluster that it was sent. `awaits` returns
    /// whether a response of a type, up to a number, is unanswered.
    pub(super) fn additions_wait(
        &mut self,
        due: bool,
        (last, unassigned): (u64, bool),
        awaits: impl Fn(ResourceType, u64) -> bool,
        now: SystemTime,
    ) -> bool {
        if self.clusters.take_if(|clusters| !awaits(ResourceType::Cluster, *clusters)).is_some() {
            self.assignments = last;
        }
        if std::mem::replace(&mut self.unassigned, unassigned) && !unassigned {
            // The assignments were sent just before.
            self.assignments = last;
        }
        let wait = self.clusters.is_some()
            || unassigned
            || awaits(ResourceType::Endpoint, self.assignments);
        self.additions.waits(due, wait, now)
    }

    /// Returns whether the removal of upstream clusters has to wait, if any are `due`.
    ///
    /// It waits until the client has accepted the listeners and routes that might still refer to
    /// the clusters (`followed`).
    pub(super) fn removals_wait(&mut self, due: bool, followed: bool, now: SystemTime) -> bool {
        self.removals.waits(due, !followed, now)
    }

    /// Returns whether the assignments of removed clusters have to wait, if any are `due`.
    ///
    /// They wait until the client has answered the removal of the clusters (`answered`).
    pub(super) fn last_assignments_wait(
        &mut self,
        due: bool,
        answered: bool,
        now: SystemTime,
    ) -> bool {
        self.last_assignments.waits(due, !answered, now)
    }

    /// Returns the time until a waiting response is sent without an answer, or `None` if no
    /// response waits.
    pub(super) fn send_timeout(&self, now: SystemTime) -> Option<Duration> {
        let holds = [self.additions, self.removals, self.last_assignments];
        holds.into_iter().filter_map(|hold| hold.send_timeout(now)).min()
    }
}

/// Whether a response waits for the answer to another one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum OrderHold {
    /// No response waits.
    #[default]
    Open,
    /// A response has been waiting since this time.
    Closed(SystemTime),
    /// The answer is late, and responses no longer wait for it.
    Overdue,
}

impl OrderHold {
    /// Updates the state and returns whether a `due` response has to wait. `awaited` states whether
    /// an answer is missing.
    fn waits(&mut self, due: bool, awaited: bool, now: SystemTime) -> bool {
        // If the clock was set back, the wait ends instead of becoming longer.
        let is_in_time =
            |since| now.duration_since(since).is_ok_and(|waited| waited < ANSWER_LIMIT);
        *self = match *self {
            _ if !awaited => Self::Open,
            Self::Overdue => Self::Overdue,
            _ if !due => Self::Open,
            Self::Open => Self::Closed(now),
            Self::Closed(since) if is_in_time(since) => Self::Closed(since),
            Self::Closed(_) => Self::Overdue,
        };
        matches!(self, Self::Closed(_))
    }

    fn send_timeout(self, now: SystemTime) -> Option<Duration> {
        let Self::Closed(since) = self else { return None };
        let waited = now.duration_since(since).unwrap_or(ANSWER_LIMIT);
        Some(ANSWER_LIMIT.saturating_sub(waited)).filter(|left| !left.is_zero())
    }
}
