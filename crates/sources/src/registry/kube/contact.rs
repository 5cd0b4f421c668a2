//! How a cluster's API server fares, from what each of its readers last met.

use std::collections::{BTreeMap, BTreeSet};

use super::ApiContact;
use super::index::IndexedKind;
use strait_base::codes;
use strait_kube_client::{AccessError, ApiError};

/// Who met something.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ReaderId {
    /// The reader of a kind.
    Kind(IndexedKind),
    /// The probe.
    Probe,
}

/// What each reader last met.
#[derive(Debug, Default)]
pub(super) struct Contacts {
    troubles: BTreeMap<ReaderId, ApiError>,
    /// Readers that were answered, and nothing that happened since says that the server has gone.
    answered: BTreeSet<ReaderId>,
    listed: BTreeSet<IndexedKind>,
    ever: bool,
}

impl Contacts {
    /// Of a cluster of which exports and imports of services are not read, if so.
    pub(super) fn without(exports: bool) -> Self {
        let mut contacts = Self::default();
        if exports {
            contacts.listed.extend([IndexedKind::ServiceExports, IndexedKind::ServiceImports]);
        }
        contacts
    }

    /// A reader got what it asked for, or was sent a change.
    pub(super) fn answered(&mut self, reader: ReaderId) {
        self.ever = true;
        self.answered.insert(reader);
        self.troubles.remove(&reader);
    }

    /// A reader did not.
    pub(super) fn failed(&mut self, reader: ReaderId, error: ApiError) {
        match (reader, &error) {
            // Watches are quiet on a hung server, too.
            (
                ReaderId::Probe,
                ApiError::Unreachable(_)
                | ApiError::Silent { .. }
                | ApiError::Broken { .. }
                | ApiError::Tls(_),
            ) => self.answered.clear(),
            // Nobody is let in there, whatever the probe found before.
            (ReaderId::Kind(_), ApiError::Unreachable(_) | ApiError::Tls(_)) => {
                self.answered.remove(&reader);
                self.answered.remove(&ReaderId::Probe);
            }
            _ => {
                self.answered.remove(&reader);
            }
        }
        self.troubles.insert(reader, error);
    }

    /// Whether the server is there, whatever else is the matter with it: somebody was answered, and nothing has
    /// happened to him since. Others may still wait for their next try, or be refused for ever.
    pub(super) fn reached(&self) -> bool {
        !self.answered.is_empty()
    }

    /// Whether a kind has been listed.
    pub(super) fn is_listed(&self, kind: IndexedKind) -> bool {
        self.listed.contains(&kind)
    }

    /// A kind was listed. Returns whether that was not the first time.
    pub(super) fn listed(&mut self, kind: IndexedKind) -> bool {
        !self.listed.insert(kind)
    }

    /// Whether the picture is whole: every kind has been listed, or does without.
    pub(super) fn complete(&self) -> bool {
        IndexedKind::ALL.iter().all(|kind| self.listed.contains(kind) || self.does_without(*kind))
    }

    /// Whether a kind may not be read, or is not there, and the cluster works on without it.
    fn does_without(&self, kind: IndexedKind) -> bool {
        kind.optional().is_some()
            && matches!(
                self.troubles.get(&ReaderId::Kind(kind)),
                Some(ApiError::Forbidden(_) | ApiError::NotFound(_))
            )
    }

    /// Whether the cluster doesn't know a kind that it needn't know.
    fn is_absent(&self, kind: IndexedKind) -> bool {
        kind.may_be_absent()
            && matches!(self.troubles.get(&ReaderId::Kind(kind)), Some(ApiError::NotFound(_)))
    }

    /// What works less well than it should; sorted.
    pub(super) fn degraded(&self) -> Vec<String> {
        let mut degraded: Vec<String> = IndexedKind::ALL
            .into_iter()
            .filter(|kind| self.does_without(*kind) && !self.is_absent(*kind))
            .filter_map(|kind| {
                let error = self.troubles.get(&ReaderId::Kind(kind))?;
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

    /// The worst that stands between us and the server: what somebody must mend goes before what
    /// may pass.
    pub(super) fn contact(&self) -> ApiContact {
        let troubles = self.troubles.iter().filter_map(|(reader, error)| match reader {
            ReaderId::Kind(kind) if self.does_without(*kind) => None,
            ReaderId::Kind(kind) => Some(of_error(error, Some(*kind))),
            ReaderId::Probe => Some(of_error(error, None)),
        });
        let good = if self.ever { ApiContact::Good } else { ApiContact::Connecting };
        // The first of equals: `min_by_key` returns it, so the text is stable.
        troubles.min_by_key(severity).unwrap_or(good)
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

fn of_error(error: &ApiError, kind: Option<IndexedKind>) -> ApiContact {
    let text = match kind {
        Some(kind) => format!("{}: {error}", kind.plural()),
        None => error.to_string(),
    };
    match error {
        // The same for every kind.
        ApiError::Tls(fact) => ApiContact::TlsFailed(fact.clone()),
        ApiError::Unauthorized(_) => ApiContact::AuthFailed(error.to_string()),
        ApiError::Unreachable(fact) => ApiContact::Unreachable(fact.clone()),
        ApiError::Forbidden(_) => ApiContact::Denied(text),
        // A required kind that is not there: no Kubernetes, or one from before 1.21.
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

/// How a cluster fares whose access can't be used at all.
pub(super) fn of_access(error: &AccessError) -> ApiContact {
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

    #[test]
    fn the_worst_is_told_until_it_is_mended() {
        let mut contacts = Contacts::default();
        assert_eq!(contacts.contact(), ApiContact::Connecting);
        contacts.failed(SERVICES, ApiError::Unreachable("connection refused".into()));
        assert_eq!(contacts.contact(), ApiContact::Unreachable("connection refused".into()));
        contacts.failed(ReaderId::Probe, ApiError::Unauthorized("expired".into()));
        assert!(matches!(contacts.contact(), ApiContact::AuthFailed(_)));
        contacts.answered(ReaderId::Probe);
        contacts.answered(SERVICES);
        assert_eq!(contacts.contact(), ApiContact::Good);
    }

    #[test]
    fn a_server_is_there_as_long_as_nothing_has_happened_to_somebody_who_was_answered() {
        let gone = || ApiError::Unreachable("connection refused".into());
        let mut contacts = Contacts::default();
        assert!(!contacts.reached());
        contacts.answered(PODS);
        contacts.failed(SERVICES, ApiError::Misbehaving("one of them is too long".into()));
        assert!(contacts.reached(), "though one kind can't be read");
        contacts.failed(ReaderId::Probe, gone());
        assert!(!contacts.reached(), "a watch is quiet on a hung server, too");
        contacts.answered(SERVICES);
        assert!(contacts.reached(), "the next probe has yet to come");
        contacts.failed(SERVICES, gone());
        assert!(!contacts.reached());
        contacts.answered(ReaderId::Probe);
        contacts.failed(PODS, ApiError::Forbidden("pods is forbidden".into()));
        assert!(contacts.reached(), "it has just started, and permits nobody anything yet");
        contacts.failed(PODS, gone());
        assert!(!contacts.reached(), "that is newer than what the probe found");
        contacts.answered(ReaderId::Probe);
        let silent = ApiError::Silent { request: "GET /".into(), limit: Duration::from_secs(15) };
        contacts.failed(PODS, silent.clone());
        assert!(contacts.reached(), "lists hang, and all else works");
        contacts.answered(PODS);
        contacts.failed(ReaderId::Probe, ApiError::TooManyRequests { retry_after: None });
        assert!(contacts.reached(), "it is busy, and there");
        contacts.failed(ReaderId::Probe, silent);
        assert!(!contacts.reached());
        contacts.answered(PODS);
        assert!(contacts.reached(), "a change came since");
    }

    #[test]
    fn a_cluster_works_on_without_pods_but_not_without_services() {
        let mut contacts = Contacts::without(true);
        for kind in [IndexedKind::Gateways, IndexedKind::WorkloadEntries] {
            contacts.failed(ReaderId::Kind(kind), ApiError::NotFound("no such path".into()));
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
        contacts.failed(PODS, ApiError::Unreachable("away".into()));
        assert!(!contacts.complete(), "pods may come yet");
        contacts.failed(PODS, ApiError::Forbidden("pods is forbidden".into()));
        assert!(contacts.complete());
        assert_eq!(contacts.contact(), ApiContact::Good);
        assert_eq!(contacts.degraded().len(), 1, "what isn't installed is nobody's fault");
        assert!(contacts.degraded()[0].starts_with("STR0309: pods"), "{:?}", contacts.degraded());
        contacts.failed(SERVICES, ApiError::Forbidden("services is forbidden".into()));
        assert_eq!(
            contacts.contact(),
            ApiContact::Denied("services: not permitted: services is forbidden".into())
        );
        contacts.answered(PODS);
        assert!(contacts.degraded().is_empty());
    }
}
