//! Names and versions, each stored once for all proxies of a thread.
//!
//! A thousand proxies receive the same thousand upstream clusters, mostly in the same order and
//! with the same versions. So the name that followed the last time is compared first, and is looked
//! up only if it differs.

use std::collections::HashMap;
use std::rc::Rc;

use foldhash::fast::RandomState;

use crate::options::{Subscription, unit};

/// Numbers for texts, from 0 on.
#[derive(Debug, Default)]
struct Texts {
    ids: HashMap<Rc<[u8]>, u32, RandomState>,
    texts: Vec<Rc<[u8]>>,
}

impl Texts {
    fn id(&mut self, text: &[u8]) -> u32 {
        if let Some(id) = self.ids.get(text) {
            return *id;
        }
        let id = u32::try_from(self.texts.len()).unwrap_or(u32::MAX);
        let text: Rc<[u8]> = text.into();
        self.texts.push(Rc::clone(&text));
        self.ids.insert(text, id);
        id
    }

    fn is(&self, id: u32, text: &[u8]) -> bool {
        self.texts.get(id as usize).is_some_and(|known| **known == *text)
    }

    fn text(&self, id: u32) -> &[u8] {
        self.texts.get(id as usize).map_or(&[], |text| text)
    }
}

/// The known names and versions.
#[derive(Debug, Default)]
pub(crate) struct Names {
    names: Texts,
    versions: Texts,
    /// One entry for each name.
    known: Vec<Known>,
}

/// The properties of a name.
#[derive(Debug)]
struct Known {
    /// Its position among the names, which decides which proxies subscribe to it.
    unit: f64,
    /// The name that followed it, and the version that it had, the last time.
    next: u32,
    version: u32,
}

impl Names {
    /// Returns the number of a name. Numbers are assigned from 0 on.
    pub(crate) fn id(&mut self, name: &[u8]) -> u32 {
        let id = self.names.id(name);
        if id as usize == self.known.len() {
            self.known.push(Known { unit: unit(name, 0), next: id + 1, version: 0 });
        }
        id
    }

    /// Returns the number of a name that follows another in a list.
    pub(crate) fn id_behind(&mut self, before: Option<u32>, name: &[u8]) -> u32 {
        let before = before.map(|before| before as usize);
        let next = before.map_or(0, |before| self.known.get(before).map_or(0, |known| known.next));
        if self.names.is(next, name) {
            return next;
        }
        let id = self.id(name);
        if let Some(before) = before.and_then(|before| self.known.get_mut(before)) {
            before.next = id;
        }
        id
    }

    /// Returns the number of a version, which is most likely the previous version of the name.
    pub(crate) fn version(&mut self, name: u32, version: &[u8]) -> u32 {
        let Some(known) = self.known.get_mut(name as usize) else { return 0 };
        if !self.versions.is(known.version, version) {
            known.version = self.versions.id(version);
        }
        known.version
    }

    /// Returns the name with this number.
    pub(crate) fn name(&self, id: u32) -> &[u8] {
        self.names.text(id)
    }

    /// Returns the version with this number.
    pub(crate) fn version_text(&self, id: u32) -> &[u8] {
        self.versions.text(id)
    }

    /// Returns whether proxy `proxy` subscribes to a name.
    pub(crate) fn wanted(&self, id: u32, subscribe: Subscription, proxy: u32) -> bool {
        let place = self.known.get(id as usize).map_or(0.0, |known| known.unit);
        subscribe.wants_at(proxy, place, self.name(id))
    }
}

/// Values for some names, by their numbers. It is a list with gaps, because all proxies have mostly
/// the same names.
#[derive(Debug)]
pub(crate) struct ByName<T> {
    entries: Vec<Option<T>>,
    count: usize,
}

impl<T> Default for ByName<T> {
    fn default() -> Self {
        Self { entries: Vec::new(), count: 0 }
    }
}

impl<T> ByName<T> {
    /// Returns the number of names with a value.
    pub(crate) fn len(&self) -> usize {
        self.count
    }

    pub(crate) fn get_mut(&mut self, name: u32) -> Option<&mut T> {
        self.entries.get_mut(name as usize)?.as_mut()
    }

    pub(crate) fn contains(&self, name: u32) -> bool {
        matches!(self.entries.get(name as usize), Some(Some(_)))
    }

    /// Inserts a value and returns the previous one.
    pub(crate) fn insert(&mut self, name: u32, value: T) -> Option<T> {
        let place = name as usize;
        if self.entries.len() <= place {
            self.entries.resize_with(place + 1, || None);
        }
        let before = self.entries[place].replace(value);
        self.count += usize::from(before.is_none());
        before
    }

    pub(crate) fn remove(&mut self, name: u32) -> Option<T> {
        let removed = self.entries.get_mut(name as usize)?.take();
        self.count -= usize::from(removed.is_some());
        removed
    }

    pub(crate) fn clear(&mut self) {
        self.entries.clear();
        self.count = 0;
    }

    /// Iterates over all values in the order of their numbers.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        (0..).zip(&self.entries).filter_map(|(name, value)| Some((name, value.as_ref()?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn different_next_name_is_looked_up() {
        let mut names = Names::default();
        let lists = [["a", "b", "c"], ["a", "c", "b"], ["a", "b", "c"], ["c", "a", "d"]];
        for list in lists {
            let mut before = None;
            for name in list {
                let id = names.id_behind(before, name.as_bytes());
                assert_eq!((names.id(name.as_bytes()), names.name(id)), (id, name.as_bytes()));
                before = Some(id);
            }
        }
        let a = names.id(b"a");
        for version in ["1", "2", "2", "1", ""] {
            let id = names.version(a, version.as_bytes());
            assert_eq!(names.version_text(id), version.as_bytes());
        }
    }

    #[test]
    fn length_excludes_gaps() {
        let mut list = ByName::default();
        assert_eq!(
            (list.insert(3, 'x'), list.insert(1, 'y'), list.insert(3, 'z')),
            (None, None, Some('x'))
        );
        assert_eq!((list.len(), list.contains(2), list.contains(3)), (2, false, true));
        assert!(list.iter().eq([(1, &'y'), (3, &'z')]));
        assert_eq!((list.remove(3), list.remove(9), list.len()), (Some('z'), None, 1));
        list.clear();
        assert_eq!((list.len(), list.get_mut(1)), (0, None));
    }
}
