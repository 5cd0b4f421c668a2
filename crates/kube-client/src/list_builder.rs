//! What has come of a list that is not complete yet.
//!
//! While a server sends initial events, objects may go that it has sent already. Which ones is only noted,
//! and all are dropped together when the list is complete: at once, each would cost a pass over what there
//! is. A list of which nothing goes pays nothing for that.

use std::collections::BTreeSet;

use super::object::{Gather, Identity, Keyed, ObjectKind};
use super::{InvalidField, NamespacedName, ReadLimits};

/// A list that is not complete yet.
pub(super) struct ListBuilder<K: ObjectKind> {
    objects: K::List,
    /// Those that make no sense.
    pub(super) invalid: Vec<InvalidField>,
    /// How many pages have come.
    pub(super) pages: usize,
    /// What has gone, or makes no sense any more, and hasn't come again.
    gone: BTreeSet<NamespacedName>,
}

impl<K: ObjectKind> ListBuilder<K> {
    /// Nothing yet.
    pub(super) fn new() -> Self {
        Self { objects: K::List::default(), invalid: Vec::new(), pages: 0, gone: BTreeSet::new() }
    }

    /// Takes one more. Of two with one key the later counts.
    pub(super) fn add(&mut self, object: K::Kept) {
        if !self.gone.is_empty() {
            self.gone.remove(&object.key());
        }
        self.objects.add(object);
    }

    /// Takes what came of that key so far for gone.
    pub(super) fn forget(&mut self, key: NamespacedName) {
        let NamespacedName { namespace, name } = &key;
        // Else nothing of it is kept, and it may be as long as an event.
        if (Identity { namespace, name, version: "" }).makes_sense() {
            self.gone.insert(key);
        }
    }

    /// Of what there is more than is read, if there is: the limit, and what it is of.
    pub(super) fn excess(&self, limits: &ReadLimits) -> Option<(usize, &'static str)> {
        if self.objects.len() + self.invalid.len() > limits.objects {
            Some((limits.objects, "objects"))
        } else if self.gone.len() > limits.objects {
            Some((limits.objects, "objects that have gone"))
        } else if self.pages > limits.pages {
            Some((limits.pages, "pages"))
        } else {
            None
        }
    }

    /// All there are, and those that make no sense.
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
        /// How many objects were asked for their key.
        static ASKED: Cell<usize> = const { Cell::new(0) };
    }

    /// An object and which state of it.
    #[derive(Clone, Debug, PartialEq, Eq)]
    struct Thing(String, usize);

    impl Keyed for Thing {
        fn key(&self) -> NamespacedName {
            ASKED.set(ASKED.get() + 1);
            key(&self.0)
        }
    }

    fn key(name: &str) -> NamespacedName {
        NamespacedName { namespace: "n".into(), name: name.into() }
    }

    /// A list that finds an object by its key.
    #[derive(Default)]
    struct ByName(BTreeMap<String, Thing>);

    impl Gather<Thing> for ByName {
        fn add(&mut self, object: Thing) {
            self.0.insert(object.0.clone(), object);
        }

        fn forget(&mut self, key: &NamespacedName) {
            self.0.remove(&*key.name);
        }

        fn len(&self) -> usize {
            self.0.len()
        }
    }

    /// Things, gathered as an `L`.
    struct Things<L>(PhantomData<fn() -> L>);

    impl<L: Gather<Thing>> ObjectKind for Things<L> {
        type ObjectForm<'a> = OnlyMeta<'a>;
        type Kept = Thing;
        type List = L;

        const PROTOBUF: bool = false;

        fn keep(&self, form: OnlyMeta<'_>) -> Thing {
            Thing(form.metadata.name.to_string(), 0)
        }
    }

    /// What is gathered of items such as `+a`, which comes, and `-a`, which goes. The number of the item is the state
    /// of its object.
    fn list_builder<L: Gather<Thing>>(words: &str) -> L {
        let mut gathered = ListBuilder::<Things<L>>::new();
        for (at, word) in words.split_whitespace().enumerate() {
            match word.split_at(1) {
                ("+", name) => gathered.add(Thing(name.into(), at)),
                (_, name) => gathered.forget(key(name)),
            }
        }
        gathered.finish().0
    }

    #[test]
    fn the_last_word_on_an_object_counts() {
        for (words, left) in [
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
            let shown = |things: ByName| {
                let shown = things.0.into_values().map(|Thing(name, at)| format!("{name}{at}"));
                shown.collect::<Vec<_>>().join(" ")
            };
            assert_eq!(shown(list_builder(words)), left, "{words}");
            // Of two with one key the later counts.
            let mut unique = ByName::default();
            list_builder::<Vec<_>>(words).into_iter().for_each(|thing| unique.add(thing));
            assert_eq!(shown(unique), left, "{words}");
        }
    }

    #[test]
    fn what_goes_costs_one_pass_over_the_list_however_much_it_is() {
        let asked = |words: &str| {
            ASKED.set(0);
            let left = list_builder::<Vec<_>>(words).len();
            (left, ASKED.get())
        };
        let all = |sign: &str| (0..1000).map(|n| format!("{sign}{n} ")).collect::<String>();
        let (come, go) = (all("+"), all("-"));
        assert_eq!(asked(&come), (1000, 0), "nothing goes");
        assert_eq!(asked(&format!("{come} -7")), (999, 1000));
        assert_eq!(asked(&format!("{come} {go}")), (0, 1000));
        let by_turns: String = (0..1000).map(|n| format!("+{n} -{n} ")).collect();
        assert_eq!(asked(&by_turns), (0, 1999), "each is asked when it comes as well");
    }

    #[test]
    fn what_goes_is_bounded_as_what_comes() {
        let limits = ReadLimits { objects: 2, ..ReadLimits::default() };
        let mut gathered = ListBuilder::<Things<Vec<Thing>>>::new();
        for name in ["a", "b"] {
            gathered.add(Thing(name.into(), 0));
            gathered.forget(key(name));
            gathered.forget(key(name));
        }
        gathered.forget(key(&"c".repeat(254)));
        assert_eq!(gathered.excess(&limits), None, "too long for a name");
        gathered.forget(key("c"));
        assert_eq!(gathered.excess(&limits), Some((2, "objects that have gone")));
    }
}
