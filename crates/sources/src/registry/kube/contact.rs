//! The contact with a cluster's API server, computed from the last result of each reader.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime};

use super::index::IndexedKind;
use super::reviewed_rights::ReviewedRights;
use super::{ApiContact, OutdatedKind};
use strait_base::codes;
use strait_kube_client::{AccessError, ApiError};

/// The reader that reports a result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ReaderId {
    /// The reader of a kind.
    Kind(IndexedKind),
    /// The probe.
    Probe,
}

/// A watch that breaks sooner than this after it opened is not a success: its kind counts as
/// failing without interruption.
const SHORT_WATCH: Duration = Duration::from_secs(5);

/// A failure that has not ended.
#[derive(Debug)]
struct OngoingFailure {
    error: ApiError,
    since: SystemTime,
}

/// A watch that opened after a failure and has delivered nothing yet.
#[derive(Debug)]
struct ReopenedWatch {
    failing_since: SystemTime,
    opened: SystemTime,
}

/// The last result of each reader.
#[derive(Debug, Default)]
pub(super) struct Contacts {
    troubles: BTreeMap<ReaderId, OngoingFailure>,
    reopened: BTreeMap<ReaderId, ReopenedWatch>,
    /// Readers that received a response, without a later sign that the server is gone.
    answered: BTreeSet<ReaderId>,
    listed: BTreeSet<IndexedKind>,
    was_in_contact: bool,
}

impl Contacts {
    /// Creates contacts for a cluster. If exports and imports of services are not read, they count
    /// as listed.
    pub(super) fn without(exports: bool) -> Self {
        let mut contacts = Self::default();
        if exports {
            contacts.listed.extend([IndexedKind::ServiceExports, IndexedKind::ServiceImports]);
        }
        contacts
    }

    /// Records that a reader received a list, a change or the response to a probe.
    pub(super) fn answered(&mut self, reader: ReaderId) {
        self.was_in_contact = true;
        self.answered.insert(reader);
        self.troubles.remove(&reader);
        self.reopened.remove(&reader);
    }

    /// Records that the watch of a reader opened. Whether it works shows later.
    pub(super) fn opened(&mut self, reader: ReaderId, now: SystemTime) {
        let failing_since = self.troubles.get(&reader).map(|failure| failure.since);
        self.answered(reader);
        if let Some(failing_since) = failing_since {
            self.reopened.insert(reader, ReopenedWatch { failing_since, opened: now });
        }
    }

    /// Records that a request or a watch of a reader failed.
    pub(super) fn failed(&mut self, reader: ReaderId, error: ApiError, now: SystemTime) {
        match (reader, &error) {
            // Watches are also quiet on a hung server.
            (
                ReaderId::Probe,
                ApiError::Unreachable(_)
                | ApiError::Silent { .. }
                | ApiError::Broken { .. }
                | ApiError::Tls(_),
            ) => self.answered.clear(),
            // No reader can connect, whatever the probe found before.
            (ReaderId::Kind(_), ApiError::Unreachable(_) | ApiError::Tls(_)) => {
                self.answered.remove(&reader);
                self.answered.remove(&ReaderId::Probe);
            }
            _ => {
                self.answered.remove(&reader);
            }
        }
        let is_short = |watch: &ReopenedWatch| {
            now.duration_since(watch.opened).is_ok_and(|lasted| lasted < SHORT_WATCH)
        };
        let reopened = self.reopened.remove(&reader).filter(is_short).map(|it| it.failing_since);
        let since = self.troubles.get(&reader).map(|failure| failure.since).or(reopened);
        let since = since.unwrap_or(now);
        self.troubles.insert(reader, OngoingFailure { error, since });
    }

    /// The last error of a kind, if it has not ended.
    fn reader_error(&self, kind: IndexedKind) -> Option<&ApiError> {
        self.troubles.get(&ReaderId::Kind(kind)).map(|failure| &failure.error)
    }

    /// The kinds whose objects are no longer updated, because every request for them fails, and since when.
    pub(super) fn outdated(&self) -> Vec<OutdatedKind> {
        let outdated = |(reader, failure): (&ReaderId, &OngoingFailure)| match reader {
            ReaderId::Kind(kind) if self.is_listed(*kind) && !self.does_without(*kind) => {
                Some(OutdatedKind { kind: kind.plural(), since: failure.since })
            }
            _ => None,
        };
        self.troubles.iter().filter_map(outdated).collect()
    }

    /// Whether the server is reachable, even with other problems: at least one reader received a
    /// response and has not failed since. Other readers may wait for a retry, or be rejected
    /// permanently.
    pub(super) fn reached(&self) -> bool {
        !self.answered.is_empty()
    }

    /// Whether a kind has been listed.
    pub(super) fn is_listed(&self, kind: IndexedKind) -> bool {
        self.listed.contains(&kind)
    }

    /// Records that a kind was listed. Returns whether it had been listed before.
    pub(super) fn listed(&mut self, kind: IndexedKind) -> bool {
        !self.listed.insert(kind)
    }

    /// Whether every kind has been listed or is not needed.
    pub(super) fn complete(&self) -> bool {
        IndexedKind::ALL.iter().all(|kind| self.listed.contains(kind) || self.does_without(*kind))
    }

    /// Whether a kind may not be read or does not exist, and the cluster works without it.
    fn does_without(&self, kind: IndexedKind) -> bool {
        kind.optional().is_some()
            && matches!(
                self.reader_error(kind),
                Some(ApiError::Forbidden(_) | ApiError::NotFound(_))
            )
    }

    /// Whether the cluster does not serve a kind that may be absent.
    fn is_absent(&self, kind: IndexedKind) -> bool {
        kind.may_be_absent() && matches!(self.reader_error(kind), Some(ApiError::NotFound(_)))
    }

    /// Returns the restrictions of the current operation, sorted.
    pub(super) fn degraded(&self) -> Vec<String> {
        let mut degraded: Vec<String> = IndexedKind::ALL
            .into_iter()
            .filter(|kind| self.does_without(*kind) && !self.is_absent(*kind))
            .filter_map(|kind| {
                let error = self.reader_error(kind)?;
                let code = match error {
                    ApiError::Forbidden(_) => &codes::RIGHT_MISSING,
                    ApiError::Misbehaving(_) | ApiError::OverBudget(_) => &codes::MISBEHAVING,
                    _ => &codes::UNREACHABLE,
                };
                Some(format!("{code}: {}: {error} ({})", kind.plural(), kind.optional()?))
            })
            .collect();
        degraded.sort();
        degraded
    }

    /// Returns the permissions that are missing: those whose request was refused, and those that the
    /// API server does not list, unless their requests work in the meantime.
    pub(super) fn missing_rights(&self, reviewed: &ReviewedRights) -> Vec<String> {
        let missing = |kind: IndexedKind| {
            let verb = match (self.reader_error(kind), reviewed.get(&kind)) {
                (_, Some(_)) if self.works(kind) => return None,
                (_, Some(verb)) => *verb,
                (Some(ApiError::Forbidden(_)), None) => "list",
                _ => return None,
            };
            Some(match kind.group() {
                "" => format!("{verb} {}", kind.plural()),
                group => format!("{verb} {}.{group}", kind.plural()),
            })
        };
        IndexedKind::ALL.into_iter().filter_map(missing).collect()
    }

    /// Whether the last requests for a kind succeeded.
    fn works(&self, kind: IndexedKind) -> bool {
        self.is_listed(kind) && self.reader_error(kind).is_none()
    }

    /// Returns the worst problem with the server: problems that an operator must fix come before
    /// temporary ones.
    pub(super) fn contact(&self) -> ApiContact {
        let troubles = self.troubles.iter().filter_map(|(reader, failure)| {
            let contact = match reader {
                ReaderId::Kind(kind) if self.does_without(*kind) => return None,
                ReaderId::Kind(kind) => contact_for_error(&failure.error, Some(*kind)),
                ReaderId::Probe => contact_for_error(&failure.error, None),
            };
            Some((failure.since, contact))
        });
        let without_failure =
            if self.was_in_contact { ApiContact::Good } else { ApiContact::Connecting };
        // Of equally severe failures the longest one is reported; `min_by_key` returns the first of equals.
        let worst = troubles.min_by_key(|(since, contact)| (severity(contact), *since));
        worst.map_or(without_failure, |(_, contact)| contact)
    }
}

fn severity(contact: &ApiContact) -> u8 {
    match contact {
        ApiContact::TlsFailed(_) => 0,
        ApiContact::AuthFailed(_) | ApiContact::Denied(_) => 1,
        ApiContact::Misbehaving(_) => 2,
        ApiContact::Unreachable(_) => 3,
        ApiContact::Connecting | ApiContact::Good => 4,
    }
}

fn contact_for_error(error: &ApiError, kind: Option<IndexedKind>) -> ApiContact {
    let text = match kind {
        Some(kind) => format!("{}: {error}", kind.plural()),
        None => error.to_string(),
    };
    match error {
        // Independent of the kind.
        ApiError::Tls(fact) => ApiContact::TlsFailed(fact.clone()),
        ApiError::Unauthorized(_) => ApiContact::AuthFailed(error.to_string()),
        ApiError::Unreachable(fact) => ApiContact::Unreachable(fact.clone()),
        ApiError::Forbidden(_) => ApiContact::Denied(text),
        // A required kind does not exist: not Kubernetes, or older than 1.21.
        ApiError::NotFound(_) | ApiError::Misbehaving(_) | ApiError::OverBudget(_) => {
            ApiContact::Misbehaving(text)
        }
        ApiError::Silent { .. }
        | ApiError::Broken { .. }
        | ApiError::Gone(_)
        | ApiError::VersionAhead(_)
        | ApiError::TooManyRequests { .. }
        | ApiError::Rejected(_)
        | ApiError::Server(_) => ApiContact::Unreachable(text),
    }
}

/// Returns the contact of a cluster whose access is unusable.
pub(super) fn contact_for_access(error: &AccessError) -> ApiContact {
    let text = error.to_string();
    match error {
        AccessError::Server(_) | AccessError::Address { .. } => ApiContact::Unreachable(text),
        AccessError::Ca | AccessError::Tls(_) => ApiContact::TlsFailed(text),
        AccessError::Credential(_) => ApiContact::AuthFailed(text),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const PODS: ReaderId = ReaderId::Kind(IndexedKind::Pods);
    const SERVICES: ReaderId = ReaderId::Kind(IndexedKind::Services);

    fn at(second: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000 + second)
    }

    #[test]
    fn kind_that_cannot_be_read_is_outdated_since_its_first_failure() {
        let slices = ReaderId::Kind(IndexedKind::EndpointSlices);
        let broken = || ApiError::Broken { request: "GET x".into(), fact: "cut".into() };
        let since = |second| vec![OutdatedKind { kind: "endpointslices", since: at(second) }];
        let mut contacts = Contacts::default();
        contacts.failed(slices, broken(), at(0));
        assert_eq!(contacts.outdated(), [], "nothing has been read yet");
        contacts.answered(slices);
        contacts.listed(IndexedKind::EndpointSlices);
        for second in [10, 20] {
            contacts.failed(slices, broken(), at(second));
            contacts.answered(SERVICES);
            contacts.answered(ReaderId::Probe);
            assert_eq!(
                contacts.outdated(),
                since(10),
                "responses to other readers do not reset it"
            );
        }
        contacts.opened(slices, at(30));
        assert_eq!(contacts.outdated(), []);
        contacts.failed(slices, broken(), at(31));
        assert_eq!(contacts.outdated(), since(10), "a watch that breaks at once is no success");
        contacts.opened(slices, at(40));
        contacts.failed(slices, broken(), at(60));
        assert_eq!(contacts.outdated(), since(60), "a longer watch is a success");
        contacts.opened(slices, at(61));
        contacts.answered(slices);
        contacts.failed(slices, broken(), at(62));
        assert_eq!(contacts.outdated(), since(62), "a change does");
        contacts.answered(PODS);
        contacts.listed(IndexedKind::Pods);
        contacts.failed(PODS, ApiError::Forbidden("pods".into()), at(70));
        assert_eq!(contacts.outdated(), since(62), "an optional kind");
    }

    #[test]
    fn worst_problem_is_reported_until_it_is_fixed() {
        let mut contacts = Contacts::default();
        assert_eq!(contacts.contact(), ApiContact::Connecting);
        contacts.failed(SERVICES, ApiError::Unreachable("connection refused".into()), at(0));
        assert_eq!(contacts.contact(), ApiContact::Unreachable("connection refused".into()));
        contacts.failed(ReaderId::Probe, ApiError::Unauthorized("expired".into()), at(0));
        assert!(matches!(contacts.contact(), ApiContact::AuthFailed(_)));
        contacts.answered(ReaderId::Probe);
        contacts.answered(SERVICES);
        assert_eq!(contacts.contact(), ApiContact::Good);
    }

    #[test]
    fn server_is_reachable_while_one_reader_has_not_failed_since_its_last_response() {
        let gone = || ApiError::Unreachable("connection refused".into());
        let mut contacts = Contacts::default();
        assert!(!contacts.reached());
        contacts.answered(PODS);
        contacts.failed(SERVICES, ApiError::Misbehaving("one object is too long".into()), at(0));
        assert!(contacts.reached(), "although one kind cannot be read");
        contacts.failed(ReaderId::Probe, gone(), at(0));
        assert!(!contacts.reached(), "a watch is also quiet on a hung server");
        contacts.answered(SERVICES);
        assert!(contacts.reached(), "the next probe is pending");
        contacts.failed(SERVICES, gone(), at(0));
        assert!(!contacts.reached());
        contacts.answered(ReaderId::Probe);
        contacts.failed(PODS, ApiError::Forbidden("pods is forbidden".into()), at(0));
        assert!(contacts.reached(), "it has just started and denies all requests");
        contacts.failed(PODS, gone(), at(0));
        assert!(!contacts.reached(), "newer than the result of the probe");
        contacts.answered(ReaderId::Probe);
        let silent = ApiError::Silent { request: "GET /".into(), limit: Duration::from_secs(15) };
        contacts.failed(PODS, silent.clone(), at(0));
        assert!(contacts.reached(), "only lists hang");
        contacts.answered(PODS);
        contacts.failed(ReaderId::Probe, ApiError::TooManyRequests { retry_after: None }, at(0));
        assert!(contacts.reached(), "it is busy but reachable");
        contacts.failed(ReaderId::Probe, silent, at(0));
        assert!(!contacts.reached());
        contacts.answered(PODS);
        assert!(contacts.reached(), "a change came since");
    }

    #[test]
    fn right_is_missing_if_it_is_not_listed_or_a_request_is_refused() {
        let mut contacts = Contacts::default();
        let reviewed = ReviewedRights::from([(IndexedKind::EndpointSlices, "watch")]);
        let slices = "watch endpointslices.discovery.k8s.io";
        assert_eq!(contacts.missing_rights(&reviewed), [slices]);
        contacts.failed(PODS, ApiError::Forbidden("pods is forbidden".into()), at(0));
        assert_eq!(contacts.missing_rights(&reviewed), [slices, "list pods"]);
        // The review is older than the list.
        contacts.answered(ReaderId::Kind(IndexedKind::EndpointSlices));
        contacts.listed(IndexedKind::EndpointSlices);
        assert_eq!(contacts.missing_rights(&reviewed), ["list pods"]);
        contacts.answered(PODS);
        assert_eq!(contacts.missing_rights(&ReviewedRights::new()), [""; 0]);
    }

    #[test]
    fn cluster_works_without_pods_but_not_without_services() {
        let mut contacts = Contacts::without(true);
        for kind in [IndexedKind::Gateways, IndexedKind::WorkloadEntries] {
            contacts.failed(ReaderId::Kind(kind), ApiError::NotFound("no such path".into()), at(0));
        }
        for kind in [
            IndexedKind::Services,
            IndexedKind::EndpointSlices,
            IndexedKind::Namespaces,
            IndexedKind::Nodes,
        ] {
            assert!(!contacts.complete());
            contacts.answered(ReaderId::Kind(kind));
            contacts.listed(kind);
        }
        contacts.failed(PODS, ApiError::Unreachable("away".into()), at(0));
        assert!(!contacts.complete(), "pods may still arrive");
        contacts.failed(PODS, ApiError::Forbidden("pods is forbidden".into()), at(0));
        assert!(contacts.complete());
        assert_eq!(contacts.contact(), ApiContact::Good);
        assert_eq!(contacts.degraded().len(), 1, "a kind that is not installed is no failure");
        assert!(contacts.degraded()[0].starts_with("STR0309: pods"), "{:?}", contacts.degraded());
        contacts.failed(SERVICES, ApiError::Forbidden("services is forbidden".into()), at(0));
        assert_eq!(
            contacts.contact(),
            ApiContact::Denied("services: not permitted: services is forbidden".into())
        );
        contacts.answered(PODS);
        assert!(contacts.degraded().is_empty());
    }
}
