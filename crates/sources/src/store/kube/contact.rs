//! The contact with the config cluster, for the status of sources.

use std::time::SystemTime;

use tokio::sync::{mpsc, watch};

use super::input::StoreInput;
use strait_base::codes::{self, Code};
use strait_base::source_status::SourceFacts;
use strait_kube_client::{ApiClient, ApiError, Probed, WatchEvent};

/// Probes the API server, because a quiet watch does not show whether it is reachable.
pub(super) async fn probe(client: &ApiClient, facts: &watch::Sender<SourceFacts>) {
    // Capacity 1: no receiver is waited for.
    let (sink, mut probes) = mpsc::channel::<Probed>(1);
    let update = async {
        while let Some(Probed(found)) = probes.recv().await {
            match found {
                Ok(()) => note_contact(facts, |code| *code == codes::UNREACHABLE),
                Err(error) => failed(facts, &error),
            }
        }
    };
    tokio::select! {
        () = client.keep_probing(&sink) => {}
        () = update => {}
    }
}

/// Updates the contact from an event. Only readers of Secrets count, because only Secrets are
/// required.
pub(super) fn note(facts: &watch::Sender<SourceFacts>, StoreInput { reader, event }: &StoreInput) {
    match event {
        _ if reader.is_optional() => {}
        // Versions expire; the reader lists again.
        WatchEvent::Failed(ApiError::Gone(_) | ApiError::VersionAhead(_)) => {}
        WatchEvent::Failed(error) => failed(facts, error),
        _ => note_contact(facts, |_| true),
    }
}

/// Records a response. Only the end of a problem whose code satisfies `is_fixed` is published: no
/// receiver waits for the time of the last contact.
fn note_contact(facts: &watch::Sender<SourceFacts>, is_fixed: impl Fn(&Code) -> bool) {
    facts.send_if_modified(|facts| match facts.trouble.as_ref().map(|trouble| trouble.code) {
        Some(code) if !is_fixed(code) => false,
        trouble => {
            facts.responded(SystemTime::now());
            trouble.is_some()
        }
    });
}

fn failed(facts: &watch::Sender<SourceFacts>, error: &ApiError) {
    facts.send_modify(|facts| facts.failed(SystemTime::now(), error.to_string(), code(error)));
}

pub(super) fn code(error: &ApiError) -> &'static Code {
    match error {
        ApiError::Unauthorized(_) => &codes::CONFIG_AUTH_FAILED,
        ApiError::Forbidden(_) => &codes::CONFIG_RIGHTS_REFUSED,
        ApiError::Tls(_) => &codes::TLS_FAILED,
        ApiError::Misbehaving(_) | ApiError::OverBudget(_) => &codes::MISBEHAVING,
        _ => &codes::UNREACHABLE,
    }
}

#[cfg(test)]
mod tests {
    use super::super::StoreReader;
    use super::*;

    #[test]
    fn contact_follows_the_readers_of_secrets_and_the_probes() {
        let facts = watch::Sender::new(SourceFacts::starting("cluster", "config"));
        let trouble = || facts.borrow().trouble.as_ref().map(|trouble| trouble.code.id);
        let note_event = |reader, event| note(&facts, &StoreInput { reader, event });
        let away = || ApiError::Unreachable("connection refused".to_owned());
        note_event(StoreReader::Config(&strait_model::CONFIG_KINDS[0]), WatchEvent::Failed(away()));
        assert_eq!(trouble(), None);
        note_event(StoreReader::Secrets, WatchEvent::Failed(away()));
        assert_eq!(trouble(), Some("STR0301"));
        note_event(StoreReader::Namespaces, WatchEvent::Answered);
        assert_eq!(trouble(), Some("STR0301"));
        note_contact(&facts, |code| *code == codes::UNREACHABLE);
        assert_eq!(trouble(), None);
        assert!(facts.borrow().last_contact.is_some());
        // A server that responds to probes may still reject all reads.
        note_event(
            StoreReader::IstioSecrets,
            WatchEvent::Failed(ApiError::Unauthorized("401".to_owned())),
        );
        note_contact(&facts, |code| *code == codes::UNREACHABLE);
        assert_eq!(trouble(), Some("STR0312"));
        let forbidden = WatchEvent::Failed(ApiError::Forbidden("403".to_owned()));
        note_event(StoreReader::IstioSecrets, forbidden);
        assert_eq!(trouble(), Some("STR0313"), "a new credential would not help");
        note_event(StoreReader::IstioSecrets, WatchEvent::Answered);
        assert_eq!(trouble(), None);
        assert_eq!(facts.borrow().failures, 3);
    }
}
