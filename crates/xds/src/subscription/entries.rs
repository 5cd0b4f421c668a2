//! The names of one subscription that are subscribed to, held or due.
//!
//! A stream has thousands of entries, so each uses only 9 bytes: a pointer to the resource and one
//! byte of state.

use std::sync::Arc;

use bytes::Bytes;

use crate::held_version::HeldVersion;
use crate::list;
use crate::resource::{Resource, Version};

/// Entries sorted by name, without duplicate names.
#[derive(Debug, Default)]
pub(super) struct Entries {
    resources: Vec<Arc<Resource>>,
    /// The states, in the order of `resources`.
    states: Vec<PackedState>,
}

/// An entry that is about to be inserted.
#[derive(Debug, Clone)]
pub(super) struct NewEntry {
    /// The sent resource, shared with all streams that were sent it. Otherwise a stub with the
    /// name, and the version if the client listed one.
    pub(super) resource: Arc<Resource>,
    pub(super) state: NameState,
}

/// A copy of an entry's current state.
#[derive(Debug, Clone, Copy)]
pub(super) struct View<'a> {
    pub(super) resource: &'a Arc<Resource>,
    pub(super) state: NameState,
}

/// The state of a name.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct NameState {
    pub(super) holds: Holds,
    /// Whether the client subscribed to this name explicitly.
    pub(super) named: bool,
    pub(super) due: Option<Due>,
    /// Whether the name is due and missing from the source, so that it is removed at the end of the
    /// sweep.
    pub(super) going: bool,
}

/// Whether and how the client holds an entry's resource.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Holds {
    #[default]
    Nothing,
    /// The client listed it, with another server's version.
    Unknown,
    /// The client listed it, with the version of the entry's resource.
    Listed,
    /// The client was sent the entry's resource.
    Sent,
}

/// The reason why a name is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Due {
    /// The resource may have changed: send it if its version differs.
    Compare,
    /// The client waits for the resource: send it even if it is unchanged.
    Send,
}

/// A [`NameState`] in one byte: two bits for `holds`, two for `due`, and one each for `named` and
/// `going`.
#[derive(Debug, Clone, Copy)]
struct PackedState(u8);

impl From<NameState> for PackedState {
    fn from(state: NameState) -> Self {
        let due = match state.due {
            None => 0,
            Some(Due::Compare) => 1,
            Some(Due::Send) => 2,
        };
        let marks = u8::from(state.named) << 4 | u8::from(state.going) << 5;
        Self(state.holds as u8 | due << 2 | marks)
    }
}

impl From<PackedState> for NameState {
    fn from(PackedState(bits): PackedState) -> Self {
        Self {
            holds: match bits & 3 {
                0 => Holds::Nothing,
                1 => Holds::Unknown,
                2 => Holds::Listed,
                _ => Holds::Sent,
            },
            due: match bits >> 2 & 3 {
                0 => None,
                1 => Some(Due::Compare),
                _ => Some(Due::Send),
            },
            named: bits & 1 << 4 != 0,
            going: bits & 1 << 5 != 0,
        }
    }
}

impl NewEntry {
    /// Creates an entry that is neither subscribed to, nor held, nor due.
    pub(super) fn new(resource: Arc<Resource>) -> Self {
        Self { resource, state: NameState::default() }
    }

    /// Creates an entry for a resource that the client was sent.
    pub(super) fn sent(resource: Arc<Resource>) -> Self {
        Self { resource, state: NameState { holds: Holds::Sent, ..NameState::default() } }
    }

    /// Creates an entry for which only the name is known.
    pub(super) fn named(name: &str) -> Self {
        Self::new(Self::stub(name, Version(0)))
    }

    /// Creates an entry for a resource that the client listed.
    pub(super) fn listed(name: &str, version: Option<Version>) -> Self {
        let holds = if version.is_some() { Holds::Listed } else { Holds::Unknown };
        Self {
            resource: Self::stub(name, version.unwrap_or(Version(0))),
            state: NameState { holds, ..NameState::default() },
        }
    }

    fn stub(name: &str, version: Version) -> Arc<Resource> {
        Arc::new(Resource { name: name.into(), version, body: Bytes::new().into() })
    }

    pub(super) fn view(&self) -> View<'_> {
        View { resource: &self.resource, state: self.state }
    }
}

impl<'a> View<'a> {
    pub(super) fn name(self) -> &'a Arc<str> {
        &self.resource.name
    }

    pub(super) fn held(self) -> Option<HeldVersion> {
        match self.state.holds {
            Holds::Nothing => None,
            Holds::Unknown => Some(HeldVersion::Listed(None)),
            Holds::Listed => Some(HeldVersion::Listed(Some(self.resource.version))),
            Holds::Sent => Some(HeldVersion::Sent(Arc::clone(self.resource))),
        }
    }

    /// Returns the version that the client holds, if it is known.
    pub(super) fn version(self) -> Option<Version> {
        matches!(self.state.holds, Holds::Listed | Holds::Sent).then_some(self.resource.version)
    }

    pub(super) fn differs(self, now: &Resource) -> bool {
        self.version() != Some(now.version)
    }

    /// Returns the entry's contribution to the digest of all held resources.
    pub(super) fn digest(self) -> u64 {
        match self.state.holds {
            Holds::Nothing => 0,
            _ => list::digest(self.name(), self.version()),
        }
    }
}

impl Entries {
    pub(super) fn len(&self) -> usize {
        self.resources.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.resources.is_empty()
    }

    /// The resources of the entries, in the order of their names.
    pub(super) fn resources(&self) -> &[Arc<Resource>] {
        &self.resources
    }

    /// Returns the name at an existing index.
    pub(super) fn name(&self, at: usize) -> &Arc<str> {
        &self.resources[at].name
    }

    /// Returns the state of the name at an existing index.
    pub(super) fn state(&self, at: usize) -> NameState {
        self.states[at].into()
    }

    /// Returns the entry at an existing index.
    pub(super) fn view(&self, at: usize) -> View<'_> {
        View { resource: &self.resources[at], state: self.state(at) }
    }

    /// All entries, in the order of their names.
    pub(super) fn iter(&self) -> impl Iterator<Item = View<'_>> {
        let states = self.states.iter().map(|state| NameState::from(*state));
        self.resources.iter().zip(states).map(|(resource, state)| View { resource, state })
    }

    /// Returns the index of a name.
    pub(super) fn place(&self, name: &str) -> Option<usize> {
        self.resources.binary_search_by(|one| (*one.name).cmp(name)).ok()
    }

    /// Returns the first index from `from` on whose state satisfies the predicate.
    pub(super) fn position(&self, from: usize, is_so: impl Fn(NameState) -> bool) -> Option<usize> {
        let rest = self.states.get(from..)?;
        rest.iter().position(|state| is_so(NameState::from(*state))).map(|at| from + at)
    }

    /// Changes the state of the name at an existing index. Returns the previous state.
    pub(super) fn update(&mut self, at: usize, change: impl FnOnce(&mut NameState)) -> NameState {
        let before = self.state(at);
        let mut state = before;
        change(&mut state);
        self.states[at] = state.into();
        before
    }

    /// Replaces the resource at an existing index by another one with the same name.
    pub(super) fn replace(&mut self, at: usize, resource: Arc<Resource>) {
        self.resources[at] = resource;
    }

    /// Inserts entries in any order. Their names must be distinct and must not have an entry yet.
    pub(super) fn add(&mut self, mut new: Vec<NewEntry>) {
        new.sort_by(|a, b| a.resource.name.cmp(&b.resource.name));
        let resources = std::mem::take(&mut self.resources);
        let states = std::mem::take(&mut self.states);
        self.resources.reserve_exact(resources.len() + new.len());
        self.states.reserve_exact(resources.len() + new.len());
        let mut new = new.into_iter().peekable();
        for (resource, state) in resources.into_iter().zip(states) {
            while let Some(entry) = new.next_if(|new| new.resource.name < resource.name) {
                self.push(entry.resource, entry.state.into());
            }
            self.push(resource, state);
        }
        new.for_each(|entry| self.push(entry.resource, entry.state.into()));
    }

    fn push(&mut self, resource: Arc<Resource>, state: PackedState) {
        self.resources.push(resource);
        self.states.push(state);
    }

    /// Removes the entries for which the predicate is false, and releases unused memory.
    pub(super) fn retain(&mut self, mut keeps: impl FnMut(View<'_>) -> bool) {
        let mut kept = 0;
        for at in 0..self.len() {
            if keeps(self.view(at)) {
                self.resources.swap(kept, at);
                self.states.swap(kept, at);
                kept += 1;
            }
        }
        self.resources.truncate(kept);
        self.states.truncate(kept);
        if self.len() * 2 < self.resources.capacity() {
            self.resources.shrink_to_fit();
            self.states.shrink_to_fit();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn state_survives_packing_into_a_byte() {
        for holds in [Holds::Nothing, Holds::Unknown, Holds::Listed, Holds::Sent] {
            for due in [None, Some(Due::Compare), Some(Due::Send)] {
                for (named, going) in [(false, false), (false, true), (true, false), (true, true)] {
                    let state = NameState { holds, named, due, going };
                    assert_eq!(NameState::from(PackedState::from(state)), state);
                }
            }
        }
    }

    #[test]
    fn entries_stay_sorted_after_insertions_and_removals() {
        let mut entries = Entries::default();
        let names = |entries: &Entries| {
            entries.iter().map(|one| one.name().to_string()).collect::<Vec<_>>()
        };
        entries.add(["d", "b"].map(NewEntry::named).into());
        entries.add(["e", "a", "c"].map(NewEntry::named).into());
        assert_eq!(names(&entries), ["a", "b", "c", "d", "e"]);
        let at = entries.place("c").expect("it is there");
        entries.update(at, |state| state.named = true);
        entries.retain(|one| one.state.named || **one.name() > *"d");
        assert_eq!(names(&entries), ["c", "e"]);
        assert!(entries.state(0).named && !entries.state(1).named);
        assert_eq!(entries.position(1, |state| state.named), None);
    }
}
