//! Collects the objects of an incomplete list.
//!
//! While a server sends initial events, it may report deletions of objects that it has already
//! sent. Deletions are recorded, and applied together when the list is complete: applied
//! immediately, each would cost a pass over the list. A list without deletions has no additional
//! cost.

use std::collections::BTreeSet;

use super::object::{Gather, Identity, Keyed, ObjectKind};
use super::{InvalidField, NamespacedName, ReadLimits};

/// An incomplete list.
pub(super) struct ListBuilder<K: ObjectKind> {
    objects: K::List,
    /// The invalid objects.
    pub(super) invalid: Vec<InvalidField>,
    /// Number of received pages.
    pub(super) pages: usize,
    /// Objects that were deleted or became invalid, and were not sent again.
    gone: BTreeSet<NamespacedName>,
}

impl<K: ObjectKind> ListBuilder<K> {
    /// Creates an empty list.
    pub(super) fn new() -> Self {
        Self { objects: K::List::default(), invalid: Vec::new(), pages: 0, gone: BTreeSet::new() }
    }

    /// Adds an object. The later of two with the same key applies.
    pub(super) fn add(&mut self, object: K::Stored) {
        if !self.gone.is_empty() {
            self.gone.remove(&object.key());
        }
        self.objects.add(object);
    }

    /// Records that the object with this key was deleted.
    pub(super) fn forget(&mut self, key: NamespacedName) {
        let NamespacedName { namespace, name } = &key;
        // Other keys cannot be in the list, and may be as long as an event.
        if (Identity { namespace, name, version: "" }).makes_sense() {
            self.gone.insert(key);
        }
    }

    /// Returns the exceeded limit, if any, and its unit.
    pub(super) fn excess(&self, limits: &ReadLimits) -> Option<(usize, &'static str)> {
        if self.objects.len() + self.invalid.len() > limits.objects {
            Some((limits.objects, "objects"))
        } else if self.gone.len() > limits.objects {
            Some((limits.objects, "deleted objects"))
        } else if self.pages > limits.pages {
            Some((limits.pages, "pages"))
        } else {
            None
        }
    }

    /// Returns all objects, and the invalid ones.
    pub(super) fn finish(mut self) -> (K::List, Vec<InvalidField>) {
        if !self.gone.is_empty() {
            self.objects.forget_all(&self.gone);
        }
        (self.objects, self.invalid)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::collections::BTreeMap;
    use std::marker::PhantomData;

    use super::super::object::OnlyMeta;
    use super::*;

    thread_local! {
        /// Number of calls for the key of an object.
        static KEY_READS: Cell<usize> = const { Cell::new(0) };
    }

    /// An object and its version.
    #[derive(Clone, Debug, PartialEq, Eq)]
    struct Named(String, usize);

    impl Keyed for Named {
        fn key(&self) -> NamespacedName {
            KEY_READS.set(KEY_READS.get() + 1);
            key(&self.0)
        }
    }

    fn key(name: &str) -> NamespacedName {
        NamespacedName { namespace: "n".into(), name: name.into() }
    }

    /// A list that finds an object by its key.
    #[derive(Default)]
    struct ByName(BTreeMap<String, Named>);

    impl Gather<Named> for ByName {
        fn add(&mut self, object: Named) {
            self.0.insert(object.0.clone(), object);
        }

        fn forget(&mut self, key: &NamespacedName) {
            self.0.remove(&*key.name);
        }

        fn len(&self) -> usize {
            self.0.len()
        }
    }

    /// Test objects, collected as an `L`.
    struct NamedKind<L>(PhantomData<fn() -> L>);

    impl<L: Gather<Named>> ObjectKind for NamedKind<L> {
        type ObjectForm<'a> = OnlyMeta<'a>;
        type Stored = Named;
        type List = L;

        const PROTOBUF: bool = false;

        fn convert(&self, form: OnlyMeta<'_>) -> Named {
            Named(form.metadata.name.to_string(), 0)
        }
    }

    /// Collects items such as `+a`, which adds, and `-a`, which deletes. The index of the item is
    /// the version of the object.
    fn list_builder<L: Gather<Named>>(events: &str) -> L {
        let mut gathered = ListBuilder::<NamedKind<L>>::new();
        for (position, event) in events.split_whitespace().enumerate() {
            match event.split_at(1) {
                ("+", name) => gathered.add(Named(name.into(), position)),
                (_, name) => gathered.forget(key(name)),
            }
        }
        gathered.finish().0
    }

    #[test]
    fn last_event_about_an_object_applies() {
        for (events, expected) in [
            ("+a +b", "a0 b1"),
            ("+a +b -a", "b1"),
            ("-a +a", "a1"),
            ("+a -a +a", "a2"),
            ("+a -a +a -a", ""),
            ("+a -a -a +a +b", "a3 b4"),
            ("+a +b -a -b +b", "b4"),
            ("+a +a -a", ""),
            ("+a -a +a +a", "a3"),
            ("-a", ""),
            ("+b -a", "b0"),
        ] {
            let describe = |objects: ByName| {
                let texts = objects.0.into_values().map(|Named(name, at)| format!("{name}{at}"));
                texts.collect::<Vec<_>>().join(" ")
            };
            assert_eq!(describe(list_builder(events)), expected, "{events}");
            // The later of two with the same key applies.
            let mut unique = ByName::default();
            list_builder::<Vec<_>>(events).into_iter().for_each(|object| unique.add(object));
            assert_eq!(describe(unique), expected, "{events}");
        }
    }

    #[test]
    fn deletions_cost_one_pass_over_the_list() {
        let count_key_reads = |events: &str| {
            KEY_READS.set(0);
            let remaining = list_builder::<Vec<_>>(events).len();
            (remaining, KEY_READS.get())
        };
        let all = |sign: &str| (0..1000).map(|n| format!("{sign}{n} ")).collect::<String>();
        let (come, go) = (all("+"), all("-"));
        assert_eq!(count_key_reads(&come), (1000, 0), "nothing goes");
        assert_eq!(count_key_reads(&format!("{come} -7")), (999, 1000));
        assert_eq!(count_key_reads(&format!("{come} {go}")), (0, 1000));
        let by_turns: String = (0..1000).map(|n| format!("+{n} -{n} ")).collect();
        assert_eq!(count_key_reads(&by_turns), (0, 1999), "each key is also read on arrival");
    }

    #[test]
    fn number_of_deletions_is_limited() {
        let limits = ReadLimits { objects: 2, ..ReadLimits::default() };
        let mut gathered = ListBuilder::<NamedKind<Vec<Named>>>::new();
        for name in ["a", "b"] {
            gathered.add(Named(name.into(), 0));
            gathered.forget(key(name));
            gathered.forget(key(name));
        }
        gathered.forget(key(&"c".repeat(254)));
        assert_eq!(gathered.excess(&limits), None, "too long for a name");
        gathered.forget(key("c"));
        assert_eq!(gathered.excess(&limits), Some((2, "deleted objects")));
    }
}
