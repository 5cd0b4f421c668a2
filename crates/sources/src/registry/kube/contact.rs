//! The contact with a cluster's API server, computed from the last result of each reader.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::index::{IndexedKind, ReadPart};
use super::reviewed_rights::ReviewedRights;
use super::{ApiContact, OutdatedKind, UnreadNamespace};
use strait_base::codes;
use strait_kube_client::{AccessError, ApiError};
use strait_model::ReadNamespaces;

/// The reader that reports a result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ReaderId {
    /// The reader of a kind.
    Kind(IndexedKind, ReadPart),
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
    listed: BTreeSet<(IndexedKind, ReadPart)>,
    was_in_contact: bool,
    /// The namespaces that are read.
    namespaces: ReadNamespaces,
    /// Whether the cluster's UID was read by itself.
    is_identified: bool,
    /// Whether pods are known from an earlier run.
    knows_pods: bool,
}

impl Contacts {
    /// Creates the contacts of a reader that is limited to these namespaces, or reads the whole
    /// cluster if there are none. If exports and imports of services are not read, they count as
    /// listed.
    pub(super) fn new(namespaces: ReadNamespaces, reads_exports: bool) -> Self {
        let mut contacts = Self { namespaces, ..Self::default() };
        if !reads_exports {
            for kind in [IndexedKind::ServiceExports, IndexedKind::ServiceImports] {
                let parts: Vec<_> = contacts.parts(kind).collect();
                contacts.listed.extend(parts.into_iter().map(|part| (kind, part)));
            }
        }
        contacts
    }

    /// Sets whether pods are known from an earlier run.
    pub(super) fn knowing_pods(self, knows_pods: bool) -> Self {
        Self { knows_pods, ..self }
    }

    /// Returns the namespaces in which a kind is read, or the whole cluster.
    fn parts(&self, kind: IndexedKind) -> impl Iterator<Item = ReadPart> + use<> {
        let count = if kind.is_namespaced() { self.namespaces.names().len() } else { 0 };
        let whole = (count == 0).then_some(None);
        whole.into_iter().chain((0..count).map(|position| u8::try_from(position).ok()))
    }

    /// Returns all kinds with the namespaces in which they are read.
    fn all(&self) -> impl Iterator<Item = (IndexedKind, ReadPart)> {
        IndexedKind::ALL.into_iter().flat_map(|kind| self.parts(kind).map(move |part| (kind, part)))
    }

    /// Returns the name of a namespace; `None` for the whole cluster.
    pub(super) fn namespace(&self, part: ReadPart) -> Option<&Arc<str>> {
        self.namespaces.names().get(usize::from(part?))
    }

    /// Returns the plural of a kind, and the namespace if the reader is limited to namespaces.
    pub(super) fn describe(&self, kind: IndexedKind, part: ReadPart) -> String {
        match self.namespace(part) {
            Some(namespace) => format!("{} in {namespace}", kind.plural()),
            None => kind.plural().to_owned(),
        }
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
        // A fact with a code, like that of an absent relay, is the cause of the interruption.
        let error = match error {
            ApiError::Broken { fact, .. } if codes::leading(&fact).is_some() => {
                ApiError::Unreachable(fact)
            }
            error => error,
        };
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
            (ReaderId::Kind(..), ApiError::Unreachable(_) | ApiError::Tls(_)) => {
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

    /// The last error of a reader, if it has not ended.
    fn reader_error(&self, kind: IndexedKind, part: ReadPart) -> Option<&ApiError> {
        self.troubles.get(&ReaderId::Kind(kind, part)).map(|failure| &failure.error)
    }

    /// The kinds whose objects are no longer updated, because every request for them fails, and since when.
    pub(super) fn outdated(&self) -> Vec<OutdatedKind> {
        let mut outdated: Vec<OutdatedKind> = Vec::new();
        for (reader, failure) in &self.troubles {
            let ReaderId::Kind(kind, part) = *reader else { continue };
            if !self.is_listed_in(kind, part)
                || self.does_without(kind, part)
                || self.is_refused(part)
            {
                continue;
            }
            match outdated.last_mut().filter(|last| last.kind == kind.plural()) {
                Some(last) => last.since = last.since.min(failure.since),
                None => outdated.push(OutdatedKind { kind: kind.plural(), since: failure.since }),
            }
        }
        outdated
    }

    /// The namespaces that may not be read although others are. Their objects are not updated.
    pub(super) fn unread(&self) -> Vec<UnreadNamespace> {
        if self.is_refused_everywhere() {
            return Vec::new();
        }
        let refused = self.parts(IndexedKind::Services).filter_map(|part| {
            let (kind, failure) = self.refusals(part?).min_by_key(|(_, failure)| failure.since)?;
            let namespace = Arc::clone(self.namespace(part)?);
            let fact = format!("{}: {}", kind.plural(), failure.error);
            Some(UnreadNamespace { namespace, since: failure.since, fact })
        });
        refused.collect()
    }

    /// Returns the namespaces that have not been read, with their positions.
    pub(super) fn unread_parts(&self) -> Vec<(u8, Arc<str>)> {
        let all = (0..).zip(self.namespaces.names());
        let unread = all.filter(|(position, _)| !self.is_read(Some(*position)));
        unread.map(|(position, namespace)| (position, Arc::clone(namespace))).collect()
    }

    /// Returns the required kinds that may not be read in a namespace, or do not exist there.
    fn refusals(&self, part: u8) -> impl Iterator<Item = (IndexedKind, &OngoingFailure)> {
        let failure = move |kind| {
            let failure = self.troubles.get(&ReaderId::Kind(kind, Some(part)))?;
            let is_refusal =
                matches!(failure.error, ApiError::Forbidden(_) | ApiError::NotFound(_));
            is_refusal.then_some((kind, failure))
        };
        [IndexedKind::Services, IndexedKind::EndpointSlices].into_iter().filter_map(failure)
    }

    /// Whether a namespace may not be read.
    fn is_refused(&self, part: ReadPart) -> bool {
        part.is_some_and(|part| self.refusals(part).next().is_some())
    }

    /// Whether none of the namespaces may be read.
    fn is_refused_everywhere(&self) -> bool {
        self.parts(IndexedKind::Services).all(|part| self.is_refused(part))
    }

    /// Whether all objects of a namespace have been read.
    pub(super) fn is_read(&self, part: ReadPart) -> bool {
        [IndexedKind::Services, IndexedKind::EndpointSlices, IndexedKind::Pods]
            .into_iter()
            .all(|kind| self.is_listed_in(kind, part) || self.does_without(kind, part))
    }

    /// Whether the server is reachable, even with other problems: at least one reader received a
    /// response and has not failed since. Other readers may wait for a retry, or be rejected
    /// permanently.
    pub(super) fn reached(&self) -> bool {
        !self.answered.is_empty()
    }

    /// Whether a kind has been listed, in all namespaces that are read.
    pub(super) fn is_listed(&self, kind: IndexedKind) -> bool {
        self.parts(kind).all(|part| self.is_listed_in(kind, part))
    }

    /// Whether a kind has been listed in a namespace, or in the whole cluster.
    pub(super) fn is_listed_in(&self, kind: IndexedKind, part: ReadPart) -> bool {
        self.listed.contains(&(kind, part))
    }

    /// Records that a kind was listed. Returns whether it had been listed before.
    pub(super) fn listed(&mut self, kind: IndexedKind, part: ReadPart) -> bool {
        !self.listed.insert((kind, part))
    }

    /// Whether every kind has been listed or is not needed. A namespace that may not be read delays
    /// nothing, if another one has been read.
    pub(super) fn complete(&self) -> bool {
        let is_done = |(kind, part)| {
            self.is_listed_in(kind, part) || self.does_without(kind, part) || self.is_refused(part)
        };
        self.all().all(is_done) && self.parts(IndexedKind::Services).any(|part| self.is_read(part))
    }

    /// Whether a kind is listed, or may not be read and is not needed.
    pub(super) fn is_listed_or_absent(&self, kind: IndexedKind) -> bool {
        self.is_listed(kind) || self.parts(kind).all(|part| self.does_without(kind, part))
    }

    /// Records that the cluster's UID was read by itself.
    pub(super) fn identified(&mut self) {
        self.is_identified = true;
    }

    /// Whether namespaces may not be listed, in a cluster that is read completely. Its UID must then
    /// be read by itself.
    pub(super) fn lacks_namespaces(&self) -> bool {
        self.namespaces.is_whole()
            && !self.is_listed(IndexedKind::Namespaces)
            && matches!(
                self.reader_error(IndexedKind::Namespaces, None),
                Some(ApiError::Forbidden(_))
            )
    }

    /// Returns the consequences if the kind may not be read; `None` if it is required. A reader needs
    /// no right to list namespaces if it is limited to some, or if it may read `kube-system`, which
    /// identifies the cluster.
    fn loss(&self, kind: IndexedKind) -> Option<&'static str> {
        match kind {
            IndexedKind::Namespaces if !self.namespaces.is_whole() => {
                Some("no network label, no labels and annotations of namespaces")
            }
            IndexedKind::Namespaces if self.is_identified => Some(
                "no network label, no labels and annotations of namespaces, and discoverySelectors select none of them",
            ),
            _ => kind.optional(),
        }
    }

    /// Whether a kind may not be read or does not exist, and the cluster works without it.
    fn does_without(&self, kind: IndexedKind, part: ReadPart) -> bool {
        self.loss(kind).is_some()
            && !self.needs_pods(kind)
            && matches!(
                self.reader_error(kind, part),
                Some(ApiError::Forbidden(_) | ApiError::NotFound(_))
            )
    }

    /// Whether a kind is required because its objects are pods that are known: without them, endpoints
    /// would lose their identities, and clients would send plain text to them.
    fn needs_pods(&self, kind: IndexedKind) -> bool {
        let is_known = self.knows_pods || self.is_listed(IndexedKind::Pods);
        kind == IndexedKind::Pods && self.namespaces.is_whole() && is_known
    }

    /// Whether the cluster does not serve a kind that may be absent.
    fn is_absent(&self, kind: IndexedKind, part: ReadPart) -> bool {
        kind.may_be_absent() && matches!(self.reader_error(kind, part), Some(ApiError::NotFound(_)))
    }

    /// Returns the restrictions of the current operation, sorted.
    pub(super) fn degraded(&self) -> Vec<String> {
        let restriction = |kind: IndexedKind| {
            let is_lost = |part: &ReadPart| {
                self.does_without(kind, *part)
                    && !self.is_absent(kind, *part)
                    && !self.is_refused(*part)
            };
            let lost: Vec<_> = self.parts(kind).filter(is_lost).collect();
            let error = self.reader_error(kind, *lost.first()?)?;
            let code = match error {
                ApiError::Forbidden(_) => &codes::RIGHT_MISSING,
                ApiError::Misbehaving(_) | ApiError::OverBudget(_) => &codes::MISBEHAVING,
                _ => &codes::UNREACHABLE,
            };
            let names: Vec<_> =
                lost.iter().filter_map(|part| Some(&**self.namespace(*part)?)).collect();
            let place = match names.is_empty() {
                true => String::new(),
                false => format!(" in {}", names.join(", ")),
            };
            Some(format!("{code}: {}{place}: {error} ({})", kind.plural(), self.loss(kind)?))
        };
        let mut degraded: Vec<String> =
            IndexedKind::ALL.into_iter().filter_map(restriction).collect();
        degraded.sort();
        degraded
    }

    /// Returns the restriction that namespaces do not exist to which the reader is limited, if the
    /// namespaces of the cluster are known.
    pub(super) fn missing_namespaces(&self, exists: impl Fn(&str) -> bool) -> Option<String> {
        let names = self.namespaces.names().iter().filter(|name| !exists(name));
        let missing: Vec<&str> = names.map(|name| &**name).collect();
        let is_known = self.is_listed(IndexedKind::Namespaces)
            && self.reader_error(IndexedKind::Namespaces, None).is_none();
        (is_known && !missing.is_empty()).then(|| {
            let (code, names) = (&codes::NAMESPACE_MISSING, missing.join(", "));
            format!("{code}: the cluster has no namespace {names}, to which its reader is limited")
        })
    }

    /// Returns the permissions that are missing: those whose request was refused, and those that the
    /// API server does not list, unless their requests work in the meantime.
    pub(super) fn missing_rights(&self, reviewed: &ReviewedRights) -> Vec<String> {
        let missing = |(kind, part): (IndexedKind, ReadPart)| {
            let verb = match (self.reader_error(kind, part), reviewed.get(&(kind, part))) {
                (_, Some(_)) if self.works(kind, part) => return None,
                (_, Some(verb)) => *verb,
                (Some(ApiError::Forbidden(_)), None) => "list",
                _ => return None,
            };
            let place = self.namespace(part).map(|name| format!(" in {name}")).unwrap_or_default();
            Some(match kind.group() {
                "" => format!("{verb} {}{place}", kind.plural()),
                group => format!("{verb} {}.{group}{place}", kind.plural()),
            })
        };
        self.all().filter_map(missing).collect()
    }

    /// Whether the last requests for a kind succeeded.
    fn works(&self, kind: IndexedKind, part: ReadPart) -> bool {
        self.is_listed_in(kind, part) && self.reader_error(kind, part).is_none()
    }

    /// Returns the worst problem with the server: problems that an operator must fix come before
    /// temporary ones.
    pub(super) fn contact(&self) -> ApiContact {
        let is_refused_everywhere = self.is_refused_everywhere();
        let troubles = self.troubles.iter().filter_map(|(reader, failure)| {
            let contact = match *reader {
                ReaderId::Kind(kind, part) if self.does_without(kind, part) => return None,
                // The other namespaces are not affected.
                ReaderId::Kind(_, part) if self.is_refused(part) && !is_refused_everywhere => {
                    return None;
                }
                ReaderId::Kind(kind, part) => {
                    contact_for_error(&failure.error, Some(self.describe(kind, part)))
                }
                ReaderId::Probe => contact_for_error(&failure.error, None),
            };
            Some((failure.since, contact))
        });
        let without_failure =
            if self.was_in_contact { ApiContact::Good } else { ApiContact::Connecting };
        // Of equally severe failures the longest one is reported, but a failure with its own code, like an
        // absent relay, is the cause of failures of single requests. `min_by_key` returns the first of equals.
        let has_code = |contact: &ApiContact| match contact {
            ApiContact::Unreachable(text) => codes::leading(text).is_some(),
            _ => false,
        };
        let worst =
            troubles.min_by_key(|(since, contact)| (severity(contact), !has_code(contact), *since));
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

fn contact_for_error(error: &ApiError, kind: Option<String>) -> ApiContact {
    let text = match kind {
        Some(kind) => format!("{kind}: {error}"),
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

    const PODS: ReaderId = ReaderId::Kind(IndexedKind::Pods, None);
    const SERVICES: ReaderId = ReaderId::Kind(IndexedKind::Services, None);

    fn at(second: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000 + second)
    }

    #[test]
    fn absent_relay_is_reported_instead_of_the_requests_that_it_interrupted() {
        let mut contacts = Contacts::default();
        let fact = || "STR0340: the relay of west is not connected".to_owned();
        contacts.answered(PODS);
        let broken = ApiError::Broken { request: "GET x".into(), fact: "cut".into() };
        contacts.failed(PODS, broken, at(0));
        contacts.failed(SERVICES, ApiError::Unreachable(fact()), at(5));
        assert_eq!(contacts.contact(), ApiContact::Unreachable(fact()));
        let mut contacts = Contacts::default();
        contacts.failed(PODS, ApiError::Broken { request: "GET x".into(), fact: fact() }, at(0));
        assert_eq!(contacts.contact(), ApiContact::Unreachable(fact()));
    }

    #[test]
    fn kind_that_cannot_be_read_is_outdated_since_its_first_failure() {
        let slices = ReaderId::Kind(IndexedKind::EndpointSlices, None);
        let broken = || ApiError::Broken { request: "GET x".into(), fact: "cut".into() };
        let since = |second| vec![OutdatedKind { kind: "endpointslices", since: at(second) }];
        let mut contacts = Contacts::default();
        contacts.failed(slices, broken(), at(0));
        assert_eq!(contacts.outdated(), [], "nothing has been read yet");
        contacts.answered(slices);
        contacts.listed(IndexedKind::EndpointSlices, None);
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
        let nodes = ReaderId::Kind(IndexedKind::Nodes, None);
        contacts.answered(nodes);
        contacts.listed(IndexedKind::Nodes, None);
        contacts.failed(nodes, ApiError::Forbidden("nodes".into()), at(70));
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
        let reviewed = ReviewedRights::from([((IndexedKind::EndpointSlices, None), "watch")]);
        let slices = "watch endpointslices.discovery.k8s.io";
        assert_eq!(contacts.missing_rights(&reviewed), [slices]);
        contacts.failed(PODS, ApiError::Forbidden("pods is forbidden".into()), at(0));
        assert_eq!(contacts.missing_rights(&reviewed), [slices, "list pods"]);
        // The review is older than the list.
        contacts.answered(ReaderId::Kind(IndexedKind::EndpointSlices, None));
        contacts.listed(IndexedKind::EndpointSlices, None);
        assert_eq!(contacts.missing_rights(&reviewed), ["list pods"]);
        contacts.answered(PODS);
        assert_eq!(contacts.missing_rights(&ReviewedRights::new()), [""; 0]);
    }

    #[test]
    fn cluster_works_without_pods_but_not_without_services() {
        let mut contacts = Contacts::new(ReadNamespaces::default(), false);
        for kind in [IndexedKind::Gateways, IndexedKind::WorkloadEntries] {
            contacts.failed(
                ReaderId::Kind(kind, None),
                ApiError::NotFound("no such path".into()),
                at(0),
            );
        }
        for kind in [
            IndexedKind::Services,
            IndexedKind::EndpointSlices,
            IndexedKind::Namespaces,
            IndexedKind::Nodes,
        ] {
            assert!(!contacts.complete());
            contacts.answered(ReaderId::Kind(kind, None));
            contacts.listed(kind, None);
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

    #[test]
    fn known_pods_must_stay_readable() {
        let forbidden = || ApiError::Forbidden("pods is forbidden".into());
        let listed = |mut contacts: Contacts| {
            for kind in IndexedKind::ALL.into_iter().filter(|kind| *kind != IndexedKind::Pods) {
                contacts.answered(ReaderId::Kind(kind, None));
                contacts.listed(kind, None);
            }
            contacts.failed(PODS, forbidden(), at(0));
            contacts
        };
        let mut unknown = listed(Contacts::new(ReadNamespaces::default(), false));
        assert!(unknown.complete() && unknown.contact() == ApiContact::Good);
        let known = listed(Contacts::new(ReadNamespaces::default(), false).knowing_pods(true));
        assert!(!known.complete(), "the known state stays");
        assert!(matches!(known.contact(), ApiContact::Denied(fact) if fact.starts_with("pods: ")));
        unknown.answered(PODS);
        unknown.listed(IndexedKind::Pods, None);
        unknown.failed(PODS, forbidden(), at(1));
        assert!(matches!(unknown.contact(), ApiContact::Denied(_)));
    }

    #[test]
    fn namespaces_are_not_required_once_the_cluster_is_identified() {
        let mut contacts = Contacts::new(ReadNamespaces::default(), false);
        let namespaces = ReaderId::Kind(IndexedKind::Namespaces, None);
        let forbidden = || ApiError::Forbidden("namespaces is forbidden".into());
        for kind in IndexedKind::ALL.into_iter().filter(|kind| *kind != IndexedKind::Namespaces) {
            contacts.answered(ReaderId::Kind(kind, None));
            contacts.listed(kind, None);
        }
        contacts.failed(namespaces, ApiError::Unreachable("away".into()), at(0));
        assert!(!contacts.lacks_namespaces(), "it may still be permitted");
        contacts.failed(namespaces, forbidden(), at(0));
        assert!(contacts.lacks_namespaces() && !contacts.complete());
        assert!(matches!(contacts.contact(), ApiContact::Denied(_)));
        contacts.identified();
        assert!(contacts.complete());
        assert_eq!(contacts.contact(), ApiContact::Good);
        assert!(contacts.degraded()[0].contains("discoverySelectors"), "{:?}", contacts.degraded());
        contacts.answered(namespaces);
        contacts.listed(IndexedKind::Namespaces, None);
        contacts.failed(namespaces, forbidden(), at(9));
        assert!(!contacts.lacks_namespaces(), "the last known namespaces stay");
    }

    #[test]
    fn refused_namespace_does_not_affect_the_others() {
        let limited = ReadNamespaces::of(["shop", "edge", "bank"]).expect("valid");
        let mut contacts = Contacts::new(limited, false);
        let [bank, edge, shop] = [Some(0), Some(1), Some(2)];
        let forbidden = || ApiError::Forbidden("forbidden".into());
        for kind in [IndexedKind::Nodes, IndexedKind::Namespaces] {
            contacts.failed(ReaderId::Kind(kind, None), forbidden(), at(0));
        }
        let list = |contacts: &mut Contacts, part| {
            for kind in IndexedKind::ALL.into_iter().filter(|kind| kind.is_namespaced()) {
                contacts.answered(ReaderId::Kind(kind, part));
                contacts.listed(kind, part);
            }
        };
        for part in [bank, edge, shop] {
            contacts.failed(ReaderId::Kind(IndexedKind::Services, part), forbidden(), at(1));
        }
        assert!(!contacts.complete(), "no namespace may be read");
        let expected = ApiContact::Denied("services in bank: not permitted: forbidden".into());
        assert_eq!((contacts.contact(), contacts.unread()), (expected, Vec::new()));
        list(&mut contacts, shop);
        list(&mut contacts, bank);
        assert!(contacts.complete() && contacts.is_read(shop) && !contacts.is_read(edge));
        assert_eq!(contacts.contact(), ApiContact::Good);
        let unread = |contacts: &Contacts| {
            let unread = contacts.unread().into_iter();
            unread.map(|one| (one.namespace.to_string(), one.since, one.fact)).collect::<Vec<_>>()
        };
        let services = || "services: not permitted: forbidden".to_owned();
        assert_eq!(unread(&contacts), [("edge".to_owned(), at(1), services())]);
        let rights = ["list services in edge", "list nodes", "list namespaces"];
        assert_eq!(contacts.missing_rights(&ReviewedRights::new()), rights);
        let degraded = contacts.degraded();
        assert_eq!(degraded.len(), 2, "{degraded:?}");
        assert!(degraded[0].starts_with("STR0309: namespaces: not permitted"), "{degraded:?}");
        list(&mut contacts, edge);
        assert_eq!(unread(&contacts), []);
        // A right that is lost later.
        contacts.failed(ReaderId::Kind(IndexedKind::EndpointSlices, shop), forbidden(), at(9));
        contacts.failed(ReaderId::Kind(IndexedKind::Pods, bank), forbidden(), at(9));
        let slices = "endpointslices: not permitted: forbidden".to_owned();
        assert_eq!(unread(&contacts), [("shop".to_owned(), at(9), slices)]);
        assert_eq!((contacts.contact(), contacts.outdated()), (ApiContact::Good, Vec::new()));
        assert!(contacts.degraded()[2].starts_with("STR0309: pods in bank: "));
    }
}
