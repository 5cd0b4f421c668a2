//! How a cluster's API server fares, told from what each of its readers last met.

use std::collections::{BTreeMap, BTreeSet};

use super::Contact;
use super::index::Kind;
use crate::apiserver::{ConnectError, Error};
use crate::codes;

/// Who met something.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Reader {
    /// The reader of a kind.
    Kind(Kind),
    /// The probe.
    Probe,
}

/// What each reader last met.
#[derive(Debug, Default)]
pub(super) struct Contacts {
    troubles: BTreeMap<Reader, Error>,
    /// Readers that were answered, and nothing that happened since says that the server has gone.
    answered: BTreeSet<Reader>,
    listed: BTreeSet<Kind>,
    ever: bool,
}

impl Contacts {
    /// Of a cluster of which exports and imports of services are not read, if so.
    pub(super) fn without(exports: bool) -> Self {
        let mut contacts = Self::default();
        if exports {
            contacts.listed.extend([Kind::ServiceExports, Kind::ServiceImports]);
        }
        contacts
    }

    /// A reader got what it asked for, or was told of a change.
    pub(super) fn answered(&mut self, reader: Reader) {
        self.ever = true;
        self.answered.insert(reader);
        self.troubles.remove(&reader);
    }

    /// A reader did not.
    pub(super) fn failed(&mut self, reader: Reader, error: Error) {
        match (reader, &error) {
            // Watches are quiet on a hung server, too.
            (
                Reader::Probe,
                Error::Unreachable(_) | Error::Silent { .. } | Error::Broken { .. } | Error::Tls(_),
            ) => self.answered.clear(),
            // Nobody is let in there, whatever the probe found before.
            (Reader::Kind(_), Error::Unreachable(_) | Error::Tls(_)) => {
                self.answered.remove(&reader);
                self.answered.remove(&Reader::Probe);
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
    pub(super) fn is_listed(&self, kind: Kind) -> bool {
        self.listed.contains(&kind)
    }

    /// A kind was listed. Returns whether that was not the first time.
    pub(super) fn listed(&mut self, kind: Kind) -> bool {
        !self.listed.insert(kind)
    }

    /// Whether the picture is whole: every kind has been listed, or does without.
    pub(super) fn complete(&self) -> bool {
        Kind::ALL.iter().all(|kind| self.listed.contains(kind) || self.does_without(*kind))
    }

    /// Whether a kind may not be read, or is not there, and the cluster works on without it.
    fn does_without(&self, kind: Kind) -> bool {
        kind.optional().is_some()
            && matches!(
                self.troubles.get(&Reader::Kind(kind)),
                Some(Error::Forbidden(_) | Error::NotFound(_))
            )
    }

    /// Whether the cluster doesn't know a kind that it needn't know.
    fn is_absent(&self, kind: Kind) -> bool {
        kind.may_be_absent()
            && matches!(self.troubles.get(&Reader::Kind(kind)), Some(Error::NotFound(_)))
    }

    /// What works less well than it should; sorted.
    pub(super) fn degraded(&self) -> Vec<String> {
        let mut degraded: Vec<String> = Kind::ALL
            .into_iter()
            .filter(|kind| self.does_without(*kind) && !self.is_absent(*kind))
            .filter_map(|kind| {
                let error = self.troubles.get(&Reader::Kind(kind))?;
                let code = match error {
                    Error::Forbidden(_) => &codes::RIGHT_MISSING,
                    Error::Misbehaving(_) | Error::OverBudget(_) => &codes::MISBEHAVING,
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
    pub(super) fn contact(&self) -> Contact {
        let troubles = self.troubles.iter().filter_map(|(reader, error)| match reader {
            Reader::Kind(kind) if self.does_without(*kind) => None,
            Reader::Kind(kind) => Some(of_error(error, Some(*kind))),
            Reader::Probe => Some(of_error(error, None)),
        });
        let good = if self.ever { Contact::Good } else { Contact::Connecting };
        // The first of equals: `min_by_key` returns it, so the text is stable.
        troubles.min_by_key(severity).unwrap_or(good)
    }
}

fn severity(contact: &Contact) -> u8 {
    match contact {
        Contact::TlsFailed(_) => 0,
        Contact::AuthFailed(_) | Contact::Denied(_) => 1,
        Contact::Misbehaving(_) => 2,
        Contact::Unreachable(_) => 3,
        Contact::Connecting | Contact::Good => 4,
    }
}

fn of_error(error: &Error, kind: Option<Kind>) -> Contact {
    let text = match kind {
        Some(kind) => format!("{}: {error}", kind.plural()),
        None => error.to_string(),
    };
    match error {
        // The same for every kind.
        Error::Tls(fact) => Contact::TlsFailed(fact.clone()),
        Error::Unauthorized(_) => Contact::AuthFailed(error.to_string()),
        Error::Unreachable(fact) => Contact::Unreachable(fact.clone()),
        Error::Forbidden(_) => Contact::Denied(text),
        // A required kind that is not there: no Kubernetes, or one from before 1.21.
        Error::NotFound(_) | Error::Misbehaving(_) | Error::OverBudget(_) => {
            Contact::Misbehaving(text)
        }
        Error::Silent { .. }
        | Error::Broken { .. }
        | Error::Gone(_)
        | Error::VersionAhead(_)
        | Error::TooManyRequests { .. }
        | Error::Rejected(_)
        | Error::Server(_) => Contact::Unreachable(text),
    }
}

/// How a cluster fares whose access can't be used at all.
pub(super) fn of_access(error: &ConnectError) -> Contact {
    let text = error.to_string();
    match error {
        ConnectError::Server(_) | ConnectError::Address { .. } => Contact::Unreachable(text),
        ConnectError::Ca | ConnectError::Tls(_) => Contact::TlsFailed(text),
        ConnectError::Credential(_) => Contact::AuthFailed(text),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const PODS: Reader = Reader::Kind(Kind::Pods);
    const SERVICES: Reader = Reader::Kind(Kind::Services);

    #[test]
    fn the_worst_is_told_until_it_is_mended() {
        let mut contacts = Contacts::default();
        assert_eq!(contacts.contact(), Contact::Connecting);
        contacts.failed(SERVICES, Error::Unreachable("connection refused".into()));
        assert_eq!(contacts.contact(), Contact::Unreachable("connection refused".into()));
        contacts.failed(Reader::Probe, Error::Unauthorized("expired".into()));
        assert!(matches!(contacts.contact(), Contact::AuthFailed(_)));
        contacts.answered(Reader::Probe);
        contacts.answered(SERVICES);
        assert_eq!(contacts.contact(), Contact::Good);
    }

    #[test]
    fn a_server_is_there_as_long_as_nothing_has_happened_to_somebody_who_was_answered() {
        let gone = || Error::Unreachable("connection refused".into());
        let mut contacts = Contacts::default();
        assert!(!contacts.reached());
        contacts.answered(PODS);
        contacts.failed(SERVICES, Error::Misbehaving("one of them is too long".into()));
        assert!(contacts.reached(), "though one kind can't be read");
        contacts.failed(Reader::Probe, gone());
        assert!(!contacts.reached(), "a watch is quiet on a hung server, too");
        contacts.answered(SERVICES);
        assert!(contacts.reached(), "the next probe has yet to come");
        contacts.failed(SERVICES, gone());
        assert!(!contacts.reached());
        contacts.answered(Reader::Probe);
        contacts.failed(PODS, Error::Forbidden("pods is forbidden".into()));
        assert!(contacts.reached(), "it has just started, and permits nobody anything yet");
        contacts.failed(PODS, gone());
        assert!(!contacts.reached(), "that is newer than what the probe found");
        contacts.answered(Reader::Probe);
        let silent = Error::Silent { request: "GET /".into(), limit: Duration::from_secs(15) };
        contacts.failed(PODS, silent.clone());
        assert!(contacts.reached(), "lists hang, and all else works");
        contacts.answered(PODS);
        contacts.failed(Reader::Probe, Error::TooManyRequests { retry_after: None });
        assert!(contacts.reached(), "it is busy, and there");
        contacts.failed(Reader::Probe, silent);
        assert!(!contacts.reached());
        contacts.answered(PODS);
        assert!(contacts.reached(), "a change came since");
    }

    #[test]
    fn a_cluster_works_on_without_pods_but_not_without_services() {
        let mut contacts = Contacts::without(true);
        for kind in [Kind::Gateways, Kind::WorkloadEntries] {
            contacts.failed(Reader::Kind(kind), Error::NotFound("no such path".into()));
        }
        for kind in [Kind::Services, Kind::EndpointSlices, Kind::Namespaces, Kind::Nodes] {
            assert!(!contacts.complete());
            contacts.answered(Reader::Kind(kind));
            contacts.listed(kind);
        }
        contacts.failed(PODS, Error::Unreachable("away".into()));
        assert!(!contacts.complete(), "pods may come yet");
        contacts.failed(PODS, Error::Forbidden("pods is forbidden".into()));
        assert!(contacts.complete());
        assert_eq!(contacts.contact(), Contact::Good);
        assert_eq!(contacts.degraded().len(), 1, "what isn't installed is nobody's fault");
        assert!(contacts.degraded()[0].starts_with("STR0309: pods"), "{:?}", contacts.degraded());
        contacts.failed(SERVICES, Error::Forbidden("services is forbidden".into()));
        assert_eq!(
            contacts.contact(),
            Contact::Denied("services: not permitted: services is forbidden".into())
        );
        contacts.answered(PODS);
        assert!(contacts.degraded().is_empty());
    }
}
