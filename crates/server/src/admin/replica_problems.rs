//! Problems of the other replicas, and differences from them, that have lasted.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use strait_admin_api::Problem;
use strait_base::codes::Code;
use strait_base::lock::lock;

/// Time that a difference lasts until it is reported. Replicas read a change at different times.
const LASTING: Duration = Duration::from_secs(10);

/// A problem of another replica, or a difference from it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ReplicaProblem {
    /// The name of the other replica.
    pub(super) replica: String,
    /// The code.
    pub(super) code: &'static Code,
    /// The object, the states in both replicas, and their names.
    pub(super) text: String,
}

impl ReplicaProblem {
    /// Returns the problem in the form of the admin API.
    pub(super) fn row(&self) -> Problem {
        Problem { code: self.code.id.to_owned(), text: self.text.clone() }
    }
}

/// The problems of the other replicas that have lasted.
#[derive(Debug, Default)]
pub struct ReplicaComparison {
    /// When each problem was first found, by replica and object.
    since: Mutex<BTreeMap<(String, String), Instant>>,
    lasting: Mutex<Vec<ReplicaProblem>>,
}

impl ReplicaComparison {
    /// Returns the problems that have lasted.
    pub(super) fn problems(&self) -> Vec<ReplicaProblem> {
        lock(&self.lasting).clone()
    }

    /// Records the present problems by object.
    pub(super) fn record(&self, now: Instant, present: Vec<(String, ReplicaProblem)>) {
        let mut since = lock(&self.since);
        let key = |(object, problem): &(String, ReplicaProblem)| {
            (problem.replica.clone(), object.clone())
        };
        let keys: BTreeSet<_> = present.iter().map(key).collect();
        since.retain(|key, _| keys.contains(key));
        let mut has_lasted = |found: &(String, ReplicaProblem)| {
            now.saturating_duration_since(*since.entry(key(found)).or_insert(now)) >= LASTING
        };
        let lasting = present.into_iter().filter(|found| has_lasted(found));
        *lock(&self.lasting) = lasting.map(|(_, problem)| problem).collect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use strait_base::codes;

    #[test]
    fn difference_is_reported_once_it_lasts_and_until_it_ends() {
        let (comparison, start) = (ReplicaComparison::default(), Instant::now());
        let problem = ReplicaProblem {
            replica: "b".into(),
            code: &codes::REPLICAS_DIFFER,
            text: "cluster c1".into(),
        };
        let found = |object: &str| vec![(object.to_owned(), problem.clone())];
        let after = |seconds| start + Duration::from_secs(seconds);
        comparison.record(start, found("cluster c1"));
        comparison.record(after(5), found("cluster c1"));
        assert_eq!(comparison.problems(), []);
        comparison.record(after(10), found("cluster c1"));
        assert_eq!(comparison.problems(), std::slice::from_ref(&problem));
        comparison.record(after(15), found("cluster c2"));
        assert_eq!(comparison.problems(), [], "another object");
        comparison.record(after(30), Vec::new());
        assert_eq!(comparison.problems(), []);
    }
}
