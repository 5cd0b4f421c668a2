//! The task that fetches keys: waits for the next due location, fetches it, and publishes the
//! result.

use std::collections::BTreeMap;
use std::error::Error as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use tokio::sync::watch;
use tokio::time::Instant;
use tracing::{debug, info, warn};

use super::book::{KeyBook, KeyEntry};
use super::client::{FetchedSet, KeyClient, KeyFetchError};
use super::kept::{self, RememberedKeys};
use super::requests::KeyRequests;
use strait_base::codes;
use strait_base::latest::publish_change;
use strait_base::source_status::{SourceFacts, SourceStatusTable};
use strait_base::task::until;
use strait_base::verifying_keys::cut;
use strait_model::fetched_keys::{FetchedKeys, KeyPlace, WantedKeys, shown_uri};

/// The inputs of a fetcher.
#[derive(Debug, Clone)]
pub struct FetcherInputs {
    /// The locations that policies name, each with its settings.
    pub wanted: watch::Receiver<Arc<BTreeMap<KeyPlace, WantedKeys>>>,
    /// The locations to fetch before they are due.
    pub requests: Arc<KeyRequests<KeyPlace>>,
    /// The client that fetches keys.
    pub client: Arc<KeyClient>,
    /// The file in which keys are stored, if any.
    pub file: Option<PathBuf>,
    /// The table in which the status of each location is published.
    pub statuses: SourceStatusTable,
    /// The channel on which the known keys are published, and whether a fetch of each location has
    /// completed.
    pub fetched: watch::Sender<(Arc<FetchedKeys>, bool)>,
}

/// Fetches keys until the sender of locations is dropped.
pub async fn run(mut inputs: FetcherInputs) {
    let mut remembered = match inputs.file.clone() {
        Some(file) => {
            let read = tokio::task::spawn_blocking(move || kept::read(&file)).await;
            read.unwrap_or_else(|error| Err(error.into())).unwrap_or_else(|error| {
                warn!(%error, "cannot read the token keys stored in the state directory; fetching all of them again");
                RememberedKeys::new()
            })
        }
        None => RememberedKeys::new(),
    };
    remembered.retain(|place, valid| match valid.check(&inputs.client.rules) {
        Ok(()) => true,
        Err(fault) => {
            warn!(%place, %fault, "token keys stored in the state directory are not used");
            false
        }
    });
    let mut book = KeyBook::default();
    let mut lines = BTreeMap::<KeyPlace, SourceFacts>::new();
    let mut fetches = FuturesUnordered::new();
    let wanted = Arc::clone(&inputs.wanted.borrow_and_update());
    book.set_wanted(&wanted, &remembered, Instant::now());
    loop {
        inputs.publish(&book, &mut lines);
        for (place, limit) in book.start_due(Instant::now()) {
            let client = Arc::clone(&inputs.client);
            fetches.push(async move {
                let answer = client.fetch(&place, limit).await;
                (place, answer)
            });
        }
        let next = book.next();
        tokio::select! {
            changed = inputs.wanted.changed() => {
                if changed.is_err() {
                    return;
                }
                let wanted = Arc::clone(&inputs.wanted.borrow_and_update());
                book.set_wanted(&wanted, &remembered, Instant::now());
            }
            Some((place, answer)) = fetches.next() => {
                log(&place, &answer);
                let answer = answer.map_err(|error| in_full(&error));
                let random = rand::random::<f64>();
                book.record_result(&place, answer, (Instant::now(), SystemTime::now(), random));
                inputs.store(&book, &mut remembered).await;
            }
            requested = inputs.requests.next() => {
                requested.iter().for_each(|place| book.set_due(place, Instant::now()));
            }
            () = until(next) => {}
        }
    }
}

impl FetcherInputs {
    /// Publishes the known keys if they have changed.
    fn publish(&self, book: &KeyBook, lines: &mut BTreeMap<KeyPlace, SourceFacts>) {
        let mut gone = std::mem::take(lines);
        for (place, entry) in book.entries() {
            let before = gone.remove(place);
            let facts = facts(place, entry, before.as_ref());
            if before.as_ref() != Some(&facts) {
                self.statuses.report(&line(place), &facts);
            }
            lines.insert(place.clone(), facts);
        }
        // Two locations may differ only in a part that their status line does not show.
        let is_shared = |it: &KeyPlace| lines.keys().any(|one| line(one) == line(it));
        let gone = gone.keys().filter(|place| !is_shared(place));
        gone.for_each(|place| self.statuses.forget(&line(place)));
        publish_change(&self.fetched, (Arc::new(book.fetched()), book.is_tried()));
    }

    /// Writes the last valid keys to the file if they differ from its content.
    async fn store(&self, book: &KeyBook, remembered: &mut RememberedKeys) {
        let now = book.valid_keys();
        let keys = |all: &RememberedKeys| -> Vec<_> {
            let keys = all.iter().map(|(place, valid)| {
                (place.clone(), Arc::clone(&valid.keys), Arc::clone(&valid.from))
            });
            keys.collect()
        };
        let differs = keys(&now) != keys(remembered);
        *remembered = now;
        let Some(file) = self.file.clone().filter(|_| differs) else { return };
        let written = remembered.clone();
        let done = tokio::task::spawn_blocking(move || kept::write(&file, &written)).await;
        if let Ok(Err(error)) = done {
            warn!(%error, "cannot store token keys in the state directory");
        }
    }
}

/// Returns the name of a location's status line.
fn line(place: &KeyPlace) -> Arc<str> {
    match place {
        KeyPlace::Uri(uri) => format!("jwks {}", shown_uri(uri)).into(),
        KeyPlace::Issuer(issuer) => format!("jwks of {}", shown_uri(issuer)).into(),
    }
}

fn facts(place: &KeyPlace, entry: &KeyEntry, before: Option<&SourceFacts>) -> SourceFacts {
    let address = || match place {
        KeyPlace::Uri(uri) => shown_uri(uri),
        KeyPlace::Issuer(issuer) => shown_uri(&super::client::discovery(issuer)),
    };
    let mut facts = before.cloned().unwrap_or_else(|| SourceFacts::starting("jwks", address()));
    // Nothing waits for it longer than the feed does.
    facts.synced = true;
    if let Some(valid_keys) = &entry.valid_keys {
        facts.last_contact = Some(valid_keys.at);
        facts.objects = valid_keys.keys.matches("\"kty\"").count();
    }
    match (&entry.trouble, &mut facts.trouble) {
        (None, trouble) => *trouble = None,
        (Some(fact), Some(trouble)) if trouble.reason == *fact => {}
        (Some(fact), _) => facts.failed(SystemTime::now(), fact.clone(), &codes::ACCESS_KEYS_FETCH),
    }
    facts
}

fn log(place: &KeyPlace, answer: &Result<FetchedSet, KeyFetchError>) {
    match answer {
        Ok(set) => debug!(%place, bytes = set.keys.len(), "token keys fetched"),
        Err(error) => {
            let code = &codes::ACCESS_KEYS_FETCH;
            let error = in_full(error);
            info!(%place, error, %code, next = code.next, "token keys not fetched");
        }
    }
}

/// Maximum size in bytes of the reason of a failed fetch: TLS errors list all names of a
/// certificate.
const TROUBLE_MAX: usize = 1024;

/// Returns an error with its causes.
pub(super) fn in_full(error: &KeyFetchError) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(one) = cause {
        text += &format!(": {one}");
        cause = one.source();
    }
    cut(&text, TROUBLE_MAX)
}
