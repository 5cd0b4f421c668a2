//! How the config cluster is reached, reported to whoever shows sources.

use std::time::SystemTime;

use tokio::sync::{mpsc, watch};

use super::input::StoreInput;
use strait_base::codes::{self, Code};
use strait_base::source_status::SourceFacts;
use strait_kube_client::{ApiClient, ApiError, Probed, WatchEvent};

/// A quiet watch doesn't show whether the server is there.
pub(super) async fn probe(client: &ApiClient, facts: &watch::Sender<SourceFacts>) {
    // One place: whoever is notified waits for nobody.
    let (sink, mut probes) = mpsc::channel::<Probed>(1);
    let told = async {
        while let Some(Probed(found)) = probes.recv().await {
            match found {
                Ok(()) => heard(facts, |code| *code == codes::UNREACHABLE),
                Err(error) => failed(facts, &error),
            }
        }
    };
    tokio::select! {
        () = client.keep_probing(&sink) => {}
        () = told => {}
    }
}

/// What an event says of contact. The Secrets alone count: they are what can't be done without.
pub(super) fn note(facts: &watch::Sender<SourceFacts>, StoreInput { reader, event }: &StoreInput) {
    match event {
        _ if reader.is_optional() => {}
        // Versions grow old; it is listed anew.
        WatchEvent::Failed(ApiError::Gone(_) | ApiError::VersionAhead(_)) => {}
        WatchEvent::Failed(error) => failed(facts, error),
        _ => heard(facts, |_| true),
    }
}

/// Only the end of a trouble is reported, of the codes that are `mended`: nobody waits for the time of the last
/// contact.
fn heard(facts: &watch::Sender<SourceFacts>, mended: impl Fn(&Code) -> bool) {
    facts.send_if_modified(|facts| match facts.trouble.as_ref().map(|trouble| trouble.code) {
        Some(code) if !mended(code) => false,
        trouble => {
            facts.heard(SystemTime::now());
            trouble.is_some()
        }
    });
}

fn failed(facts: &watch::Sender<SourceFacts>, error: &ApiError) {
    facts.send_modify(|facts| facts.failed(SystemTime::now(), error.to_string(), code(error)));
}

pub(super) fn code(error: &ApiError) -> &'static Code {
    match error {
        ApiError::Unauthorized(_) | ApiError::Forbidden(_) => &codes::AUTH_FAILED,
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
    fn contact_is_what_the_readers_of_secrets_and_the_probes_have() {
        let facts = watch::Sender::new(SourceFacts::starting("cluster", "config"));
        let trouble = || facts.borrow().trouble.as_ref().map(|trouble| trouble.code.id);
        let told = |reader, event| note(&facts, &StoreInput { reader, event });
        let away = || ApiError::Unreachable("connection refused".to_owned());
        told(StoreReader::Kept(&crate::store::kinds::ALL[0]), WatchEvent::Failed(away()));
        assert_eq!(trouble(), None);
        told(StoreReader::Secrets, WatchEvent::Failed(away()));
        assert_eq!(trouble(), Some("STR0301"));
        told(StoreReader::Namespaces, WatchEvent::Answered);
        assert_eq!(trouble(), Some("STR0301"));
        heard(&facts, |code| *code == codes::UNREACHABLE);
        assert_eq!(trouble(), None);
        assert!(facts.borrow().last_contact.is_some());
        // A server that answers probes may still let nobody read.
        told(
            StoreReader::IstioSecrets,
            WatchEvent::Failed(ApiError::Unauthorized("401".to_owned())),
        );
        heard(&facts, |code| *code == codes::UNREACHABLE);
        assert_eq!(trouble(), Some("STR0304"));
        told(StoreReader::IstioSecrets, WatchEvent::Answered);
        assert_eq!(trouble(), None);
        assert_eq!(facts.borrow().failures, 2);
    }
}
