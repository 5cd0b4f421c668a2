//! The known keys of each key location, and the schedule of fetches. Pure.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::time::Instant;

use super::client::FetchedSet;
use super::kept::{RememberedKeys, ValidKeys};
use super::schedule;
use strait_model::Namespace;
use strait_model::fetched_keys::{FetchedKeys, KeyPlace, KeyState, WantedKeys};

/// Maximum number of locations that are fetched. For the same number of further locations, the last
/// keys are remembered.
const PLACES_MAX: usize = 256;
/// Maximum number of concurrent fetches.
const FETCHES_MAX: usize = 8;
/// Maximum number of concurrent fetches for the policies of one namespace, because its servers may
/// hang.
const NAMESPACE_FETCHES_MAX: usize = 4;

/// All key locations that policies name.
#[derive(Debug, Default)]
pub(super) struct KeyBook {
    entries: BTreeMap<KeyPlace, KeyEntry>,
    /// Locations beyond the limit, with their remembered keys.
    over_limit: BTreeMap<KeyPlace, Option<ValidKeys>>,
}

/// The state of one location.
#[derive(Debug)]
pub(super) struct KeyEntry {
    wanted: WantedKeys,
    /// The time of the next fetch; `None` during a fetch.
    next_fetch: Option<Instant>,
    failures: u32,
    /// The last valid keys.
    pub(super) valid_keys: Option<ValidKeys>,
    /// Why the last fetch failed.
    pub(super) trouble: Option<String>,
    /// Whether a fetch has completed.
    tried: bool,
}

impl KeyBook {
    /// Sets the locations that policies name now. The `remembered` keys of a new location apply
    /// until it has been fetched, and while it exceeds the limit.
    pub(super) fn set_wanted(
        &mut self,
        wanted: &BTreeMap<KeyPlace, WantedKeys>,
        remembered: &RememberedKeys,
        now: Instant,
    ) {
        let order = self.in_turn(wanted, remembered);
        let mut before = std::mem::take(&mut self.entries);
        let mut over_limit = std::mem::take(&mut self.over_limit);
        for (at, place) in order.into_iter().enumerate() {
            let entry = before.remove(place);
            let remembered_keys =
                over_limit.remove(place).flatten().or_else(|| remembered.get(place).cloned());
            if at >= PLACES_MAX {
                let valid_keys = entry.and_then(|entry| entry.valid_keys).or(remembered_keys);
                self.over_limit.insert(place.clone(), valid_keys.filter(|_| at < 2 * PLACES_MAX));
                continue;
            }
            let wanted = wanted[place].clone();
            let entry = match entry {
                Some(entry) => KeyEntry { wanted, ..entry },
                None => KeyEntry {
                    wanted,
                    next_fetch: Some(now),
                    failures: 0,
                    valid_keys: remembered_keys,
                    trouble: None,
                    tried: false,
                },
            };
            self.entries.insert(place.clone(), entry);
        }
    }

    /// Returns the locations in the order of selection: the first of each namespace, then the
    /// second of each, and so on, so that no namespace uses the share of another. Known locations
    /// come before new ones.
    fn in_turn<'a>(
        &self,
        wanted: &'a BTreeMap<KeyPlace, WantedKeys>,
        remembered: &RememberedKeys,
    ) -> Vec<&'a KeyPlace> {
        let is_new =
            |place: &KeyPlace| !self.entries.contains_key(place) && !remembered.contains_key(place);
        let mut all: Vec<_> = wanted.keys().map(|place| (is_new(place), place)).collect();
        all.sort_unstable();
        let mut counts = BTreeMap::<&Namespace, usize>::new();
        let mut ranked = Vec::with_capacity(all.len());
        for (is_new, place) in all {
            let ranks = wanted[place].namespaces.iter().map(|namespace| {
                let count = counts.entry(namespace).or_default();
                *count += 1;
                *count
            });
            ranked.push((ranks.min(), is_new, place));
        }
        ranked.sort_unstable();
        ranked.into_iter().map(|(.., place)| place).collect()
    }

    /// Returns the number of running fetches, in total and by namespace.
    fn running_fetches(&self) -> (usize, BTreeMap<&Namespace, usize>) {
        let (mut all, mut counts) = (0, BTreeMap::new());
        for entry in self.entries.values().filter(|entry| entry.next_fetch.is_none()) {
            all += 1;
            for namespace in &entry.wanted.namespaces {
                *counts.entry(namespace).or_default() += 1;
            }
        }
        (all, counts)
    }

    /// Returns the next location to fetch: the one due for longest, among the namespaces with the
    /// fewest running fetches.
    fn first(&self, now: Option<Instant>) -> Option<(Instant, KeyPlace)> {
        let (all, counts) = self.running_fetches();
        if all >= FETCHES_MAX {
            return None;
        }
        let load = |entry: &KeyEntry| {
            let each = entry.wanted.namespaces.iter().map(|one| counts.get(one).copied());
            each.map(Option::unwrap_or_default).min().unwrap_or_default()
        };
        let waiting = self.entries.iter().filter_map(|(place, entry)| {
            let due = entry.next_fetch.filter(|due| now.is_none_or(|now| *due <= now))?;
            let load = load(entry);
            // Without a time, the question is when anything is due.
            (load < NAMESPACE_FETCHES_MAX).then_some((now.map(|_| load), due, place))
        });
        waiting.min().map(|(_, due, place)| (due, place.clone()))
    }

    /// Returns the locations to fetch now, each with its time limit, and marks them as being
    /// fetched.
    pub(super) fn start_due(&mut self, now: Instant) -> Vec<(KeyPlace, Duration)> {
        let mut started = Vec::new();
        while let Some((_, place)) = self.first(Some(now)) {
            let Some(entry) = self.entries.get_mut(&place) else { break };
            entry.next_fetch = None;
            started.push((place, entry.wanted.timeout));
        }
        started
    }

    /// Returns when the next fetch is due, if one is possible.
    pub(super) fn next(&self) -> Option<Instant> {
        self.first(None).map(|(due, _)| due)
    }

    /// Makes a location due now, unless it is being fetched.
    pub(super) fn set_due(&mut self, place: &KeyPlace, now: Instant) {
        let next = self.entries.get_mut(place).and_then(|entry| entry.next_fetch.as_mut());
        if let Some(next) = next {
            *next = now.min(*next);
        }
    }

    /// Returns the last valid keys of each location.
    pub(super) fn valid_keys(&self) -> RememberedKeys {
        let entries = self.entries.iter().map(|(place, entry)| (place, &entry.valid_keys));
        let all = entries.chain(&self.over_limit);
        all.filter_map(|(place, keys)| Some((place.clone(), keys.clone()?))).collect()
    }

    /// Processes the result of a fetch. Results for locations that are no longer wanted are
    /// dropped.
    pub(super) fn record_result(
        &mut self,
        place: &KeyPlace,
        answer: Result<FetchedSet, String>,
        (now, time, random): (Instant, SystemTime, f64),
    ) {
        // A location that was dropped and added again is fetched again anyway.
        let Some(entry) = self.entries.get_mut(place).filter(|entry| entry.next_fetch.is_none())
        else {
            return;
        };
        entry.tried = true;
        let wait = match answer {
            Ok(set) => {
                entry.failures = 0;
                entry.trouble = None;
                entry.valid_keys = Some(ValidKeys { keys: set.keys, at: time, from: set.from });
                schedule::after_success(set.max_age, random)
            }
            Err(fact) => {
                entry.failures = entry.failures.saturating_add(1);
                entry.trouble = Some(fact);
                schedule::after_failure(entry.failures, random)
            }
        };
        entry.next_fetch = Some(now + wait);
    }

    /// Whether a fetch of each location has completed.
    pub(super) fn is_tried(&self) -> bool {
        self.entries.values().all(|entry| entry.tried)
    }

    /// Returns the locations with their state.
    pub(super) fn entries(&self) -> impl Iterator<Item = (&KeyPlace, &KeyEntry)> {
        self.entries.iter()
    }

    /// Returns the keys for the generation of policies.
    pub(super) fn fetched(&self) -> FetchedKeys {
        let fetched = self.entries.iter().map(|(place, entry)| {
            let keys = entry.valid_keys.as_ref().map(|valid_keys| Arc::clone(&valid_keys.keys));
            (place.clone(), KeyState { keys, trouble: entry.trouble.clone() })
        });
        let over_limit = self.over_limit.iter().map(|(place, valid_keys)| {
            let trouble = format!(
                "more than {PLACES_MAX} key locations are named, most of them by policies of few namespaces, and this one is not fetched"
            );
            let keys = valid_keys.as_ref().map(|valid_keys| Arc::clone(&valid_keys.keys));
            (place.clone(), KeyState { keys, trouble: Some(trouble) })
        });
        fetched.chain(over_limit).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(name: &str) -> KeyPlace {
        KeyPlace::Uri(format!("https://{name}/keys").into())
    }

    /// Creates wanted locations; the namespace is before the slash.
    fn wanted(names: &[&str]) -> BTreeMap<KeyPlace, WantedKeys> {
        let wanted = |name: &&str| {
            let namespace = name.split_once('/').map_or("shop", |(namespace, _)| namespace);
            let namespaces = [Namespace::from(namespace)].into();
            (place(name), WantedKeys { timeout: Duration::from_secs(5), namespaces })
        };
        names.iter().map(wanted).collect()
    }

    /// Creates keys that an earlier process stored.
    fn old_keys() -> ValidKeys {
        ValidKeys { keys: "old".into(), at: SystemTime::UNIX_EPOCH, from: [].into() }
    }

    fn set(keys: &str) -> Result<FetchedSet, String> {
        Ok(FetchedSet { keys: keys.into(), max_age: None, from: [].into() })
    }

    struct Hours {
        now: Instant,
        book: KeyBook,
    }

    impl Hours {
        fn new(names: &[&str]) -> Self {
            let (now, mut book) = (Instant::now(), KeyBook::default());
            book.set_wanted(&wanted(names), &BTreeMap::new(), now);
            Self { now, book }
        }

        /// Returns how many fetches start after this many seconds.
        fn after(&mut self, seconds: u64) -> usize {
            self.now += Duration::from_secs(seconds);
            self.book.start_due(self.now).len()
        }

        fn answer(&mut self, name: &str, answer: Result<FetchedSet, String>) {
            self.book.record_result(&place(name), answer, (self.now, SystemTime::now(), 1.0));
        }

        fn state(&self, name: &str) -> KeyState {
            self.book.fetched().remove(&place(name)).expect("it is wanted")
        }
    }

    #[test]
    fn keys_are_fetched_at_once_and_refreshed_and_the_last_valid_keys_stay() {
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
    fn requested_location_is_fetched_before_it_is_due() {
        let mut hours = Hours::new(&["a"]);
        assert_eq!(hours.after(0), 1);
        let request = |hours: &mut Hours| hours.book.set_due(&place("a"), hours.now);
        request(&mut hours);
        assert_eq!(hours.after(1), 0, "it is being fetched");
        hours.answer("a", set("1"));
        assert_eq!(hours.after(1), 0);
        request(&mut hours);
        assert_eq!(hours.after(0), 1);
        hours.book.set_due(&place("unwanted"), hours.now);
        assert_eq!(hours.after(0), 0);
    }

    #[test]
    fn unwanted_locations_and_their_results_are_dropped() {
        let mut hours = Hours::new(&["a", "b"]);
        assert_eq!(hours.after(0), 2);
        let (now, nothing) = (hours.now, BTreeMap::new());
        hours.book.set_wanted(&wanted(&["b"]), &nothing, now);
        hours.answer("a", set("1"));
        hours.book.set_wanted(&wanted(&["a", "b"]), &nothing, now);
        assert_eq!(hours.state("a").keys, None);
        hours.answer("a", set("a late result of an earlier fetch"));
        assert_eq!(hours.state("a").keys, None);
        assert_eq!(hours.after(0), 1, "fetched again");
    }

    #[test]
    fn concurrent_fetches_are_limited_in_total_and_per_namespace() {
        let mut hours = Hours::new(&["a/1", "a/2", "a/3", "a/4", "a/5", "a/6"]);
        assert_eq!((hours.after(0), hours.book.next()), (NAMESPACE_FETCHES_MAX, None), "they hang");
        let now = hours.now;
        let names = ["a/1", "a/2", "a/3", "a/4", "a/5", "a/6", "b/1", "c/1", "d/1", "e/1", "f/1"];
        hours.book.set_wanted(&wanted(&names), &BTreeMap::new(), now);
        assert_eq!(hours.after(0), FETCHES_MAX - NAMESPACE_FETCHES_MAX);
        assert_eq!((hours.after(1), hours.book.next()), (0, None));
        hours.answer("a/1", Err("no answer".to_owned()));
        let now = hours.now;
        let next: Vec<_> = hours.book.start_due(now).into_iter().map(|(place, _)| place).collect();
        assert_eq!(next, [place("f/1")], "a namespace without a fetch precedes one with three");
        hours.answer("b/1", set("1"));
        hours.now += Duration::from_secs(60);
        let now = hours.now;
        let next: Vec<_> = hours.book.start_due(now).into_iter().map(|(place, _)| place).collect();
        assert_eq!(
            next,
            [place("a/5")],
            "the location due first, not the failed one before it by name"
        );
    }

    #[test]
    fn location_limit_is_shared_among_namespaces_and_excess_locations_keep_their_keys() {
        let many: Vec<_> = (0..2 * PLACES_MAX).map(|at| format!("a/{at:04}")).collect();
        let mut names: Vec<_> = many.iter().map(String::as_str).collect();
        names.extend(["z/1", "z/2"]);
        let (mut book, now) = (KeyBook::default(), Instant::now());
        let old = |name: &str| (place(name), old_keys());
        // After a restart, with keys of the last location of one tenant, and of one location of
        // another.
        let last = names[2 * PLACES_MAX - 1];
        let remembered = [old("z/2"), old(last), old("a/0400")].into();
        book.set_wanted(&wanted(&names), &remembered, now);
        assert_eq!(book.entries.len(), PLACES_MAX);
        for name in ["z/1", "z/2", last, "a/0400"] {
            assert!(book.entries.contains_key(&place(name)), "{name}");
        }
        let state_over_limit = book.fetched().remove(&place("a/0300")).expect("it is wanted");
        assert!(state_over_limit.trouble.is_some_and(|fact| fact.contains("more than 256")));
        // When other locations are added, a location that is no longer fetched keeps its keys.
        let others: Vec<_> = (0..PLACES_MAX).map(|at| format!("n{at:04}/1")).collect();
        names.extend(others.iter().map(String::as_str));
        book.set_wanted(&wanted(&names), &BTreeMap::new(), now);
        let state = book.fetched().remove(&place(last)).expect("it is wanted");
        assert_eq!((state.keys.as_deref(), state.trouble.is_some()), (Some("old"), true));
        assert!(
            book.valid_keys().contains_key(&place(last))
                && !book.entries.contains_key(&place(last))
        );
    }

    #[test]
    fn remembered_keys_apply_until_the_first_fetch() {
        let mut book = KeyBook::default();
        let remembered = [(place("a"), old_keys())].into();
        book.set_wanted(&wanted(&["a"]), &remembered, Instant::now());
        assert_eq!(book.fetched()[&place("a")].keys.as_deref(), Some("old"));
        assert!(!book.is_tried());
    }
}
