//! Decides when an import that another client deleted is created again. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use strait_kube_client::NamespacedName;

/// The pauses before the attempts to create an import again.
const PAUSES: [Duration; 4] = [
    Duration::from_secs(1),
    Duration::from_secs(10),
    Duration::from_secs(60),
    Duration::from_secs(600),
];
/// An import that vanishes sooner than this after it was created again is deleted by another
/// controller.
const CONTESTED: Duration = Duration::from_secs(60);
/// The attempts start from the beginning after this time without a deletion.
const CALM: Duration = Duration::from_secs(3600);

/// The deletions of one import by others.
#[derive(Debug, Clone, Copy)]
struct Deletions {
    count: usize,
    last: Instant,
    /// When it may be created again.
    next: Instant,
}

/// The imports of one cluster that others deleted.
#[derive(Debug, Default)]
pub(in crate::registry::kube) struct Recreation {
    present: BTreeSet<NamespacedName>,
    deletions: BTreeMap<NamespacedName, Deletions>,
    contested: Option<NamespacedName>,
}

impl Recreation {
    /// Records the imports of Strait that exist now. If a previous one is missing although its
    /// namespace exists, another client deleted it.
    pub(in crate::registry::kube) fn note<'a>(
        &mut self,
        present: impl Iterator<Item = &'a NamespacedName>,
        has_namespace: impl Fn(&str) -> bool,
        now: Instant,
    ) {
        let present: BTreeSet<_> = present.cloned().collect();
        let vanished = self.present.difference(&present);
        for vanished in vanished.filter(|import| has_namespace(&import.namespace)) {
            let before = self.deletions.get(vanished);
            let before = before.filter(|before| now.duration_since(before.last) < CALM);
            let is_soon = before.is_some_and(|before| now.duration_since(before.next) < CONTESTED);
            if is_soon {
                self.contested.get_or_insert_with(|| vanished.clone());
            }
            let count = before.map_or(0, |before| before.count);
            let next = now + PAUSES[count.min(PAUSES.len() - 1)];
            let deletions = Deletions { count: count + 1, last: now, next };
            self.deletions.insert(vanished.clone(), deletions);
        }
        self.deletions.retain(|_, deletions| now.duration_since(deletions.last) < CALM);
        self.present = present;
    }

    /// Records that Strait deletes an import itself.
    pub(in crate::registry::kube) fn forget(&mut self, import: &NamespacedName) {
        self.present.remove(import);
        self.deletions.remove(import);
    }

    /// Returns an import that another controller keeps deleting: nothing more is written.
    pub(in crate::registry::kube) fn contested(&self) -> Option<&NamespacedName> {
        self.contested.as_ref()
    }

    /// Whether a missing import may be created.
    pub(in crate::registry::kube) fn may_create(
        &self,
        import: &NamespacedName,
        now: Instant,
    ) -> bool {
        self.contested.is_none()
            && self.deletions.get(import).is_none_or(|deletions| deletions.next <= now)
    }

    /// Returns when the next import may be created that may not be created now.
    pub(in crate::registry::kube) fn next(&self, now: Instant) -> Option<Instant> {
        self.deletions.values().map(|deletions| deletions.next).filter(|next| *next > now).min()
    }

    /// Starts from the beginning, because the policy has changed.
    pub(in crate::registry::kube) fn reset(&mut self) {
        self.deletions.clear();
        self.contested = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> NamespacedName {
        NamespacedName { namespace: "shop".into(), name: name.into() }
    }

    #[test]
    fn deleted_import_is_created_again_after_growing_pauses() {
        let (cart, mut at) = (key("cart"), Instant::now());
        let mut recreation = Recreation::default();
        assert!(recreation.may_create(&cart, at), "it never existed");
        for seconds in [1, 10, 60, 600, 600] {
            recreation.note([&cart].into_iter(), |_| true, at);
            recreation.note([].into_iter(), |_| true, at);
            let pause = Duration::from_secs(seconds);
            assert!(!recreation.may_create(&cart, at + pause - Duration::from_millis(1)));
            assert!(recreation.may_create(&cart, at + pause), "{seconds} s");
            assert_eq!(recreation.next(at), Some(at + pause));
            at += pause + CONTESTED;
        }
        assert!(recreation.contested().is_none());
        at += CALM;
        recreation.note([&cart].into_iter(), |_| true, at);
        recreation.note([].into_iter(), |_| true, at);
        assert!(recreation.may_create(&cart, at + Duration::from_secs(1)), "the row has restarted");
    }

    #[test]
    fn import_that_vanishes_again_within_a_minute_stops_all() {
        let (cart, at) = (key("cart"), Instant::now());
        let mut recreation = Recreation::default();
        recreation.note([&cart].into_iter(), |_| true, at);
        recreation.note([].into_iter(), |_| true, at);
        recreation.note([&cart].into_iter(), |_| true, at + Duration::from_secs(2));
        recreation.note([].into_iter(), |_| true, at + Duration::from_secs(30));
        assert_eq!(recreation.contested(), Some(&cart));
        assert!(!recreation.may_create(&key("other"), at + CALM));
        recreation.reset();
        assert!(recreation.may_create(&cart, at + CALM));
    }

    #[test]
    fn import_that_vanishes_with_its_namespace_was_not_deleted_by_another_client() {
        let (cart, at) = (key("cart"), Instant::now());
        let mut recreation = Recreation::default();
        for _ in 0..3 {
            recreation.note([&cart].into_iter(), |_| true, at);
            recreation.note([].into_iter(), |_| false, at);
        }
        assert!(recreation.may_create(&cart, at) && recreation.contested().is_none());
    }

    #[test]
    fn own_deletion_does_not_count() {
        let (cart, at) = (key("cart"), Instant::now());
        let mut recreation = Recreation::default();
        recreation.note([&cart].into_iter(), |_| true, at);
        recreation.forget(&cart);
        recreation.note([].into_iter(), |_| true, at);
        assert!(recreation.may_create(&cart, at));
    }
}
