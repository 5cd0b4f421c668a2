//! What clients asked of a cluster, so that a test can say "it listed once".

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, PoisonError};

/// The last so many requests are kept word by word; the counts know all.
const KEPT: usize = 10_000;

/// One request, noted when its headers had arrived, whatever became of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// As in RBAC: `get list watch create update patch delete deletecollection`.
    pub verb: &'static str,
    /// Plural name of the kind; empty for discovery, health and paths that name nothing.
    pub resource: &'static str,
    /// The path.
    pub path: String,
    /// The query, still encoded.
    pub query: String,
    /// The client's name for itself.
    pub user_agent: String,
    /// The media types that the client takes, as it wrote them.
    pub accept: String,
}

#[derive(Debug, Default)]
pub(crate) struct RequestLog {
    noted: Mutex<Noted>,
}

#[derive(Debug, Default)]
struct Noted {
    last: VecDeque<Request>,
    counts: BTreeMap<(&'static str, &'static str), u64>,
}

impl RequestLog {
    pub(crate) fn record(&self, request: Request) {
        let mut noted = self.noted.lock().unwrap_or_else(PoisonError::into_inner);
        *noted.counts.entry((request.verb, request.resource)).or_default() += 1;
        if noted.last.len() == KEPT {
            noted.last.pop_front();
        }
        noted.last.push_back(request);
    }

    pub(crate) fn last(&self) -> Vec<Request> {
        let noted = self.noted.lock().unwrap_or_else(PoisonError::into_inner);
        noted.last.iter().cloned().collect()
    }

    pub(crate) fn count(&self, verb: &str, resource: &str) -> u64 {
        let noted = self.noted.lock().unwrap_or_else(PoisonError::into_inner);
        noted
            .counts
            .iter()
            .filter(|((v, r), _)| *v == verb && *r == resource)
            .map(|(_, count)| count)
            .sum()
    }
}
