//! How the config cluster is reached, told to whoever shows sources.

use std::time::SystemTime;

use tokio::sync::{mpsc, watch};

use super::Input;
use crate::apiserver::{Client, Error, Event, Probed};
use crate::codes::{self, Code};
use crate::sources::Facts;

/// A quiet watch doesn't show whether the server is there.
pub(super) async fn probe(client: &Client, facts: &watch::Sender<Facts>) {
    // One place: whoever is told waits for nobody.
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
pub(super) fn note(facts: &watch::Sender<Facts>, Input { reader, event }: &Input) {
    match event {
        _ if reader.is_optional() => {}
        // Versions grow old; it is listed anew.
        Event::Failed(Error::Gone(_) | Error::VersionAhead(_)) => {}
        Event::Failed(error) => failed(facts, error),
        _ => heard(facts, |_| true),
    }
}

/// Only the end of a trouble is told, of the codes that are `mended`: nobody waits for the time of the last
/// contact.
fn heard(facts: &watch::Sender<Facts>, mended: impl Fn(&Code) -> bool) {
    facts.send_if_modified(|facts| match facts.trouble.as_ref().map(|trouble| trouble.code) {
        Some(code) if !mended(code) => false,
        trouble => {
            facts.heard(SystemTime::now());
            trouble.is_some()
        }
    });
}

fn failed(facts: &watch::Sender<Facts>, error: &Error) {
    facts.send_modify(|facts| facts.failed(SystemTime::now(), error.to_string(), code(error)));
}

pub(super) fn code(error: &Error) -> &'static Code {
    match error {
        Error::Unauthorized(_) | Error::Forbidden(_) => &codes::AUTH_FAILED,
        Error::Tls(_) => &codes::TLS_FAILED,
        Error::Misbehaving(_) | Error::OverBudget(_) => &codes::MISBEHAVING,
        _ => &codes::UNREACHABLE,
    }
}

#[cfg(test)]
mod tests {
    use super::super::Reader;
    use super::*;

    #[test]
    fn contact_is_what_the_readers_of_secrets_and_the_probes_have() {
        let facts = watch::Sender::new(Facts::starting("cluster", "config"));
        let trouble = || facts.borrow().trouble.as_ref().map(|trouble| trouble.code.id);
        let told = |reader, event| note(&facts, &Input { reader, event });
        let away = || Error::Unreachable("connection refused".to_owned());
        told(Reader::Kept(&crate::store::kinds::ALL[0]), Event::Failed(away()));
        assert_eq!(trouble(), None);
        told(Reader::Secrets, Event::Failed(away()));
        assert_eq!(trouble(), Some("STR0301"));
        told(Reader::Namespaces, Event::Answered);
        assert_eq!(trouble(), Some("STR0301"));
        heard(&facts, |code| *code == codes::UNREACHABLE);
        assert_eq!(trouble(), None);
        assert!(facts.borrow().last_contact.is_some());
        // A server that answers probes may still let nobody read.
        told(Reader::IstioSecrets, Event::Failed(Error::Unauthorized("401".to_owned())));
        heard(&facts, |code| *code == codes::UNREACHABLE);
        assert_eq!(trouble(), Some("STR0304"));
        told(Reader::IstioSecrets, Event::Answered);
        assert_eq!(trouble(), None);
        assert_eq!(facts.borrow().failures, 2);
    }
}
