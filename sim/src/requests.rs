//! The log of a cluster's requests, so that a test can check, for example, that a client listed
//! once.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, PoisonError};

/// The number of recent requests in the log. Counters include all requests.
const KEPT: usize = 10_000;

/// A request, logged when its headers have arrived, regardless of its result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// The verb as in RBAC: `get list watch create update patch delete deletecollection`.
    pub verb: &'static str,
    /// Plural name of the kind; empty for discovery, health and unknown paths.
    pub resource: &'static str,
    /// The path.
    pub path: String,
    /// The query, URL-encoded.
    pub query: String,
    /// The header `User-Agent`.
    pub user_agent: String,
    /// The header `Accept`.
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
