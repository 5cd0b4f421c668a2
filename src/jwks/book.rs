//! What is known of each place of keys, and what is to be fetched when. Pure.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::time::Instant;

use super::client::FetchedSet;
use super::schedule;
use crate::access::{FetchedKeys, KeyPlace, KeyState};

/// The most places.
pub(super) const PLACES_MAX: usize = 256;
/// The most that are asked at once.
const ASKED_MAX: usize = 8;

/// All places that policies name.
#[derive(Debug, Default)]
pub(super) struct KeyBook {
    entries: BTreeMap<KeyPlace, KeyEntry>,
    /// Places that are too many.
    beyond: Vec<KeyPlace>,
}

/// One place.
#[derive(Debug)]
pub(super) struct KeyEntry {
    timeout: Duration,
    /// When to ask; `None` while it is being asked.
    due: Option<Instant>,
    failures: u32,
    /// The last keys that made sense, and when they came.
    pub(super) good: Option<(Arc<str>, SystemTime)>,
    /// Why the last try failed.
    pub(super) trouble: Option<String>,
    /// Whether it has been tried.
    tried: bool,
}

impl KeyBook {
    /// Takes what policies name now, each with the time that a fetch may take. What is `remembered` of a new one counts until
    /// it has been asked.
    pub(super) fn want(
        &mut self,
        wanted: &BTreeMap<KeyPlace, Duration>,
        remembered: &BTreeMap<KeyPlace, (Arc<str>, SystemTime)>,
        now: Instant,
    ) {
        self.entries.retain(|place, _| wanted.contains_key(place));
        self.beyond.clear();
        for (place, timeout) in wanted {
            if let Some(entry) = self.entries.get_mut(place) {
                entry.timeout = *timeout;
            } else if self.entries.len() < PLACES_MAX {
                let entry = KeyEntry {
                    timeout: *timeout,
                    due: Some(now),
                    failures: 0,
                    good: remembered.get(place).cloned(),
                    trouble: None,
                    tried: false,
                };
                self.entries.insert(place.clone(), entry);
            } else {
                self.beyond.push(place.clone());
            }
        }
    }

    /// What to ask now, each with its time; it counts as being asked from here on.
    pub(super) fn due(&mut self, now: Instant) -> Vec<(KeyPlace, Duration)> {
        let asked = self.entries.values().filter(|entry| entry.due.is_none()).count();
        let is_due = |entry: &KeyEntry| entry.due.is_some_and(|due| due <= now);
        let due = self.entries.iter_mut().filter(|(_, entry)| is_due(entry));
        let due = due.take(ASKED_MAX.saturating_sub(asked)).map(|(place, entry)| {
            entry.due = None;
            (place.clone(), entry.timeout)
        });
        due.collect()
    }

    /// When something is to be asked next, if it can be.
    pub(super) fn next(&self) -> Option<Instant> {
        let asked = self.entries.values().filter(|entry| entry.due.is_none()).count();
        if asked >= ASKED_MAX {
            return None;
        }
        self.entries.values().filter_map(|entry| entry.due).min()
    }

    /// Takes an answer. What is no longer wanted is forgotten.
    pub(super) fn answered(
        &mut self,
        place: &KeyPlace,
        answer: Result<FetchedSet, String>,
        (now, time, random): (Instant, SystemTime, f64),
    ) {
        // One that was dropped and came back is asked again anyway.
        let Some(entry) = self.entries.get_mut(place).filter(|entry| entry.due.is_none()) else {
            return;
        };
        entry.tried = true;
        let wait = match answer {
            Ok(set) => {
                entry.failures = 0;
                entry.trouble = None;
                entry.good = Some((set.keys, time));
                schedule::after_success(set.max_age, random)
            }
            Err(fact) => {
                entry.failures = entry.failures.saturating_add(1);
                entry.trouble = Some(fact);
                schedule::after_failure(entry.failures, random)
            }
        };
        entry.due = Some(now + wait);
    }

    /// Whether each has been tried.
    pub(super) fn is_tried(&self) -> bool {
        self.entries.values().all(|entry| entry.tried)
    }

    /// The places, with what is known of each.
    pub(super) fn entries(&self) -> impl Iterator<Item = (&KeyPlace, &KeyEntry)> {
        self.entries.iter()
    }

    /// What policies are made with.
    pub(super) fn fetched(&self) -> FetchedKeys {
        let known = self.entries.iter().map(|(place, entry)| {
            let keys = entry.good.as_ref().map(|(keys, _)| Arc::clone(keys));
            (place.clone(), KeyState { keys, trouble: entry.trouble.clone() })
        });
        let beyond = self.beyond.iter().map(|place| {
            let trouble =
                format!("more than {PLACES_MAX} places of keys are named, and this is not asked");
            (place.clone(), KeyState { keys: None, trouble: Some(trouble) })
        });
        known.chain(beyond).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(name: &str) -> KeyPlace {
        KeyPlace::Uri(format!("https://{name}/keys").into())
    }

    fn wanted(names: &[&str]) -> BTreeMap<KeyPlace, Duration> {
        names.iter().map(|name| (place(name), Duration::from_secs(5))).collect()
    }

    fn set(keys: &str) -> Result<FetchedSet, String> {
        Ok(FetchedSet { keys: keys.into(), max_age: None })
    }

    struct Hours {
        now: Instant,
        book: KeyBook,
    }

    impl Hours {
        fn new(names: &[&str]) -> Self {
            let (now, mut book) = (Instant::now(), KeyBook::default());
            book.want(&wanted(names), &BTreeMap::new(), now);
            Self { now, book }
        }

        /// Who is asked when so many seconds have gone by.
        fn after(&mut self, seconds: u64) -> usize {
            self.now += Duration::from_secs(seconds);
            self.book.due(self.now).len()
        }

        fn answer(&mut self, name: &str, answer: Result<FetchedSet, String>) {
            self.book.answered(&place(name), answer, (self.now, SystemTime::now(), 1.0));
        }

        fn state(&self, name: &str) -> KeyState {
            self.book.fetched().remove(&place(name)).expect("it is wanted")
        }
    }

    #[test]
    fn keys_are_fetched_at_once_and_again_and_the_last_good_ones_stay() {
        let mut hours = Hours::new(&["a"]);
        assert!(!hours.book.is_tried());
        assert_eq!(hours.after(0), 1);
        assert_eq!((hours.after(600), hours.book.next()), (0, None), "one at a time");
        hours.answer("a", set("1"));
        assert!(hours.book.is_tried());
        assert_eq!([hours.after(1199), hours.after(1)], [0, 1]);
        hours.answer("a", Err("it answers 500".to_owned()));
        let state = hours.state("a");
        assert_eq!(state.keys.as_deref(), Some("1"), "last good");
        assert_eq!(state.trouble.as_deref(), Some("it answers 500"));
        assert_eq!(hours.after(1), 1, "soon");
        hours.answer("a", Err("it answers 500".to_owned()));
        assert_eq!([hours.after(1), hours.after(1)], [0, 1], "later");
        hours.answer("a", set("2"));
        assert_eq!(hours.state("a"), KeyState { keys: Some("2".into()), trouble: None });
    }

    #[test]
    fn what_is_no_longer_wanted_is_forgotten_and_an_answer_for_it_too() {
        let mut hours = Hours::new(&["a", "b"]);
        assert_eq!(hours.after(0), 2);
        let (now, nothing) = (hours.now, BTreeMap::new());
        hours.book.want(&wanted(&["b"]), &nothing, now);
        hours.answer("a", set("1"));
        hours.book.want(&wanted(&["a", "b"]), &nothing, now);
        assert_eq!(hours.state("a").keys, None);
        hours.answer("a", set("late, of a fetch from before"));
        assert_eq!(hours.state("a").keys, None);
        assert_eq!(hours.after(0), 1, "asked anew");
    }

    #[test]
    fn few_are_asked_at_once_and_no_more_than_so_many_at_all() {
        let names: Vec<_> = (0..PLACES_MAX + 2).map(|number| format!("h{number:04}")).collect();
        let names: Vec<_> = names.iter().map(String::as_str).collect();
        let mut hours = Hours::new(&names);
        assert_eq!(hours.after(0), ASKED_MAX);
        assert_eq!((hours.after(1), hours.book.next()), (0, None));
        hours.answer("h0000", set("1"));
        assert_eq!(hours.after(0), 1);
        let last = hours.state(names[PLACES_MAX + 1]);
        assert!(last.trouble.is_some_and(|fact| fact.contains("more than 256")));
    }

    #[test]
    fn what_is_remembered_counts_until_it_was_asked() {
        let mut book = KeyBook::default();
        let remembered = [(place("a"), ("old".into(), SystemTime::UNIX_EPOCH))].into();
        book.want(&wanted(&["a"]), &remembered, Instant::now());
        assert_eq!(book.fetched()[&place("a")].keys.as_deref(), Some("old"));
        assert!(!book.is_tried());
    }
}
