//! The task that fetches: waits for what is due, asks, tells what was found.

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
use strait_base::codes;
use strait_base::source_status::{SourceFacts, SourceStatusTable};
use strait_base::verifying_keys::cut;
use strait_model::fetched_keys::{FetchedKeys, KeyPlace, WantedKeys, shown_uri};

/// What a fetcher is given.
#[derive(Debug, Clone)]
pub struct FetcherInputs {
    /// The places that policies name, each with what they want of it.
    pub wanted: watch::Receiver<Arc<BTreeMap<KeyPlace, WantedKeys>>>,
    /// How places are asked.
    pub client: Arc<KeyClient>,
    /// The file in which keys are kept, where any is.
    pub file: Option<PathBuf>,
    /// Where it says how each place fares.
    pub statuses: SourceStatusTable,
    /// Where it says what is known, and whether each place has been tried.
    pub told: watch::Sender<(Arc<FetchedKeys>, bool)>,
}

/// Fetches until nobody can want anything any more.
pub async fn run(mut inputs: FetcherInputs) {
    let mut remembered = match inputs.file.clone() {
        Some(file) => {
            let read = tokio::task::spawn_blocking(move || kept::read(&file)).await;
            read.unwrap_or_else(|error| Err(error.into())).unwrap_or_else(|error| {
                warn!(%error, "keys of tokens that were kept in the state directory can't be read; all are fetched anew");
                RememberedKeys::new()
            })
        }
        None => RememberedKeys::new(),
    };
    remembered.retain(|place, good| match good.check(&inputs.client.rules) {
        Ok(()) => true,
        Err(fault) => {
            warn!(%place, %fault, "keys of tokens that were kept in the state directory are not used");
            false
        }
    });
    let mut book = KeyBook::default();
    let mut lines = BTreeMap::<KeyPlace, SourceFacts>::new();
    let mut asked = FuturesUnordered::new();
    let wanted = Arc::clone(&inputs.wanted.borrow_and_update());
    book.want(&wanted, &remembered, Instant::now());
    loop {
        inputs.tell(&book, &mut lines);
        for (place, limit) in book.due(Instant::now()) {
            let client = Arc::clone(&inputs.client);
            asked.push(async move {
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
                book.want(&wanted, &remembered, Instant::now());
            }
            Some((place, answer)) = asked.next() => {
                log(&place, &answer);
                let answer = answer.map_err(|error| in_full(&error));
                let random = rand::random::<f64>();
                book.answered(&place, answer, (Instant::now(), SystemTime::now(), random));
                inputs.keep(&book, &mut remembered).await;
            }
            () = until(next) => {}
        }
    }
}

impl FetcherInputs {
    /// Says what is known, where that is something else than before.
    fn tell(&self, book: &KeyBook, lines: &mut BTreeMap<KeyPlace, SourceFacts>) {
        let mut gone = std::mem::take(lines);
        for (place, entry) in book.entries() {
            let before = gone.remove(place);
            let facts = facts(place, entry, before.as_ref());
            if before.as_ref() != Some(&facts) {
                self.statuses.report(&line(place), &facts);
            }
            lines.insert(place.clone(), facts);
        }
        // Two places may differ in what is not shown alone.
        let is_shared = |it: &KeyPlace| lines.keys().any(|one| line(one) == line(it));
        let gone = gone.keys().filter(|place| !is_shared(place));
        gone.for_each(|place| self.statuses.forget(&line(place)));
        let (fetched, tried) = (book.fetched(), book.is_tried());
        self.told.send_if_modified(|(held, was_tried)| {
            let differs = **held != fetched || *was_tried != tried;
            *was_tried = tried;
            if **held != fetched {
                *held = Arc::new(fetched);
            }
            differs
        });
    }

    /// Writes the last good keys down, where they differ from those in the file.
    async fn keep(&self, book: &KeyBook, remembered: &mut RememberedKeys) {
        let now = book.good();
        let keys = |all: &RememberedKeys| -> Vec<_> {
            let keys = all.iter().map(|(place, good)| {
                (place.clone(), Arc::clone(&good.keys), Arc::clone(&good.from))
            });
            keys.collect()
        };
        let differs = keys(&now) != keys(remembered);
        *remembered = now;
        let Some(file) = self.file.clone().filter(|_| differs) else { return };
        let written = remembered.clone();
        let done = tokio::task::spawn_blocking(move || kept::write(&file, &written)).await;
        if let Ok(Err(error)) = done {
            warn!(%error, "keys of tokens can't be kept in the state directory");
        }
    }
}

/// The name of a place's line.
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
    // Nobody waits for it longer than the feed does.
    facts.synced = true;
    if let Some(good) = &entry.good {
        facts.last_contact = Some(good.at);
        facts.objects = good.keys.matches("\"kty\"").count();
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
        Ok(set) => debug!(%place, bytes = set.keys.len(), "keys of tokens fetched"),
        Err(error) => {
            let code = &codes::ACCESS_KEYS_FETCH;
            let error = in_full(error);
            info!(%place, error, %code, next = code.next, "keys of tokens not fetched");
        }
    }
}

/// The most bytes of why a fetch failed: what TLS says of a certificate names all that is in it.
const TROUBLE_MAX: usize = 1024;

/// An error with its causes.
pub(super) fn in_full(error: &KeyFetchError) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(one) = cause {
        text += &format!(": {one}");
        cause = one.source();
    }
    cut(&text, TROUBLE_MAX)
}

/// At that time, if ever.
async fn until(time: Option<Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time).await,
        None => std::future::pending().await,
    }
}
