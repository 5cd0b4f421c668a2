//! Make before break across types: what waits for the client's answer to something else.
//!
//! A route to an upstream cluster that a proxy doesn't have yet fails requests, and a new cluster takes none before
//! its assignment has come. Envoy asks for the assignments of clusters before it acknowledges these, so listeners and
//! routes follow once both are acknowledged. The other way round, clusters are taken back once listeners and
//! routes are. A client that doesn't answer waits for [`ANSWER_LIMIT`]. Pure: time is passed in.

use std::time::{Duration, SystemTime};

use super::resource::ResourceType;

/// After this long what waits for an answer is sent without it.
pub(super) const ANSWER_LIMIT: Duration = Duration::from_secs(5);

/// What one stream holds back. Responses are identified by their numbers, which grow with each that is sent.
#[derive(Debug, Default)]
pub(super) struct Order {
    /// The last response that brought upstream clusters, until it is acknowledged.
    clusters: Option<u64>,
    /// The last one that was sent until then: their assignments are among those up to it.
    assignments: u64,
    additions: OrderHold,
    removals: OrderHold,
}

impl Order {
    /// Notes that a response brings upstream clusters.
    pub(super) fn clusters_sent(&mut self, number: u64) {
        self.clusters = Some(number);
    }

    /// Whether listeners and routes wait, if any are `due`. `last` is the last response that was sent, and `awaits`
    /// says whether the client owes an answer to a response of a type, up to a number.
    pub(super) fn additions_wait(
        &mut self,
        due: bool,
        last: u64,
        awaits: impl Fn(ResourceType, u64) -> bool,
        now: SystemTime,
    ) -> bool {
        if self.clusters.take_if(|clusters| !awaits(ResourceType::Cluster, *clusters)).is_some() {
            self.assignments = last;
        }
        let wait = self.clusters.is_some() || awaits(ResourceType::Endpoint, self.assignments);
        self.additions.waits(due, wait, now)
    }

    /// Whether upstream clusters that are gone wait, if any are `due`: while the client has not `followed` listeners
    /// and routes that may lead to them.
    pub(super) fn removals_wait(&mut self, due: bool, followed: bool, now: SystemTime) -> bool {
        self.removals.waits(due, !followed, now)
    }

    /// How long until something is sent whether the client has answered or not; `None` where nothing waits.
    pub(super) fn send_timeout(&self, now: SystemTime) -> Option<Duration> {
        let holds = [self.additions, self.removals];
        holds.into_iter().filter_map(|hold| hold.send_timeout(now)).min()
    }
}

/// What waits for an answer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum OrderHold {
    /// Nothing does.
    #[default]
    Open,
    /// Something has waited since then.
    Closed(SystemTime),
    /// The answer is late, and not waited for.
    Overdue,
}

impl OrderHold {
    /// Whether what is `due` waits, where an answer is awaited or not.
    fn waits(&mut self, due: bool, awaited: bool, now: SystemTime) -> bool {
        // A clock that was set back is no reason to wait for longer.
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
