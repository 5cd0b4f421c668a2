//! Objects that an API server no longer lists or watches, as shown in `/debug/clusters`: of a kind, or of
//! a namespace.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use jiff::Timestamp;

use crate::registry::kube::{OutdatedKind, UnreadNamespace};

/// A kind whose objects are no longer updated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutdatedStatus {
    /// The kind in plural, such as `endpointslices`.
    pub kind: &'static str,
    /// When updates stopped.
    pub since: Timestamp,
}

impl fmt::Display for OutdatedStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} since {:.0}", self.kind, self.since)
    }
}

/// A namespace that may not be read, although others are. Its last known objects stay.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnreadStatus {
    /// The namespace.
    pub namespace: Arc<str>,
    /// When the first request was refused after the last success.
    pub since: Timestamp,
    /// The kind, and why it may not be read.
    pub reason: String,
}

impl fmt::Display for UnreadStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { namespace, since, reason } = self;
        write!(f, "namespace {namespace} is not read since {since:.0}: {reason}")
    }
}

/// Returns the kinds that have not been updated for at least this time.
pub(super) fn outdated_for(
    kinds: &[OutdatedKind],
    at_least: Duration,
    now: SystemTime,
) -> impl Iterator<Item = OutdatedStatus> {
    let old = kinds.iter().filter(move |kind| is_old(kind.since, at_least, now));
    old.map(|OutdatedKind { kind, since }| OutdatedStatus { kind, since: timestamp(*since) })
}

/// Returns the namespaces that have not been read for at least this time.
pub(super) fn unread_for(
    namespaces: &[UnreadNamespace],
    at_least: Duration,
    now: SystemTime,
) -> impl Iterator<Item = UnreadStatus> {
    let old = namespaces.iter().filter(move |unread| is_old(unread.since, at_least, now));
    old.map(|UnreadNamespace { namespace, since, fact }| UnreadStatus {
        namespace: Arc::clone(namespace),
        since: timestamp(*since),
        reason: fact.clone(),
    })
}

fn is_old(since: SystemTime, at_least: Duration, now: SystemTime) -> bool {
    now.duration_since(since).is_ok_and(|age| age >= at_least)
}

fn timestamp(time: SystemTime) -> Timestamp {
    Timestamp::try_from(time).unwrap_or(Timestamp::UNIX_EPOCH)
}
