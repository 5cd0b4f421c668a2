//! The subscription of one stream to one type, and the resources that its client holds.
//!
//! The state is level-triggered: a request or a change only marks names as *due*. The resources to
//! send are determined when there is room to send, by comparing the source with the resources that
//! the client holds. The client receives the last of any number of changes in between. This module
//! does not depend on the wire form and does no I/O.
//!
//! Most resources of a wildcard type are equal for many clients. They are stored as one
//! [`SharedList`]. Only resources of a single client, and resources that currently differ from the
//! list, have an entry.

mod entries;
mod one_by_one;
mod sweep;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::SystemTime;

use self::entries::{Due, Entries, Holds, NameState, NewEntry, View};
pub(super) use self::one_by_one::OneChange;
use self::sweep::{Everything, Sweep};
use super::answers::{PendingResponses, Progress, SentNames};
use super::held_version::HeldVersion;
use super::list::{self, ListPiece, SharedList};
use super::resource::{All, Resource, ResourceSource, ResourceType, Version};

thread_local! {
    /// The index at which [`TypeSubscription::place_again`] last found a name. Many streams look up
    /// the same changed name in succession, and it has about the same index in each.
    static LAST_PLACE: Cell<usize> = const { Cell::new(0) };
}

/// Up to this number of due resources, a response is small.
const FEW: usize = 32;

/// The subscription of one stream to one type, and the resources that its client holds.
#[derive(Debug)]
pub(super) struct TypeSubscription {
    kind: ResourceType,
    wildcard: bool,
    /// Whether the client has named a resource on this stream, so that a request without names
    /// subscribes to nothing (SotW).
    was_named: bool,
    /// Whether all resources of the type must be compared (wildcard only).
    compare_all: bool,
    /// Whether a response must be sent even if nothing differs.
    owed: bool,
    /// The number of due `entries`. None of them is before index `due_from`.
    due: usize,
    due_from: usize,
    entries: Entries,
    /// The resources that the client holds, except for names that have an entry (wildcard only).
    base: Base,
    digest: Digest,
    /// The source's resources from which due names were computed (wildcard only), so that all
    /// responses of one sweep use the same version.
    all: Option<Arc<All>>,
    answers: PendingResponses,
}

/// The first pieces of a list, which have been sent.
#[derive(Debug, Default)]
struct Base {
    list: Option<Arc<SharedList>>,
    sent: usize,
}

impl Base {
    /// The resources in the pieces that have been sent, sorted by name.
    fn held(&self) -> &[Arc<Resource>] {
        self.list.as_ref().map_or(&[], |list| list.beginning(self.sent))
    }

    fn find(&self, name: &str) -> Option<&Arc<Resource>> {
        self.held().get(self.list.as_ref()?.place(name)?)
    }

    /// The next piece to send.
    fn next(&self) -> Option<&Arc<ListPiece>> {
        self.list.as_ref()?.pieces().get(self.sent)
    }
}

/// How a name is handled that the source no longer has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum GoneAction {
    /// The client keeps the resource for now, because other resources may refer to it.
    Stays,
    /// The resource is removed from the client.
    Goes,
}

/// The resources that the client lacks, up to a limit.
#[derive(Debug, Default)]
pub(super) struct Batch {
    pub(super) pieces: Vec<Arc<ListPiece>>,
    pub(super) changed: Vec<Arc<Resource>>,
    pub(super) removed: Vec<Arc<str>>,
}

impl Batch {
    /// Returns whether the batch contains any resource, not only removals.
    pub(super) fn brings_something(&self) -> bool {
        !self.pieces.is_empty() || !self.changed.is_empty()
    }
}

impl TypeSubscription {
    /// Creates a subscription to nothing.
    pub(super) fn new(kind: ResourceType) -> Self {
        Self {
            kind,
            wildcard: false,
            was_named: false,
            compare_all: false,
            owed: false,
            due: 0,
            due_from: 0,
            entries: Entries::default(),
            base: Base::default(),
            digest: Digest::default(),
            all: None,
            answers: PendingResponses::default(),
        }
    }

    /// The names that the client subscribes to, sorted.
    pub(super) fn names(&self) -> impl Iterator<Item = &Arc<str>> {
        self.entries.iter().filter(|entry| entry.state.named).map(View::name)
    }

    pub(super) fn is_named(&self, name: &str) -> bool {
        self.place(name).is_some_and(|at| self.entries.state(at).named)
    }

    pub(super) fn is_wildcard(&self) -> bool {
        self.wildcard
    }

    pub(super) fn was_named(&self) -> bool {
        self.was_named
    }

    pub(super) fn note_named(&mut self, named: bool) {
        self.was_named |= named;
    }

    /// The resources that the client holds, in any order.
    pub(super) fn held(&self) -> impl Iterator<Item = (&Arc<str>, HeldVersion)> {
        let entries = self.entries.iter();
        let entries = entries.filter_map(|entry| Some((entry.name(), entry.held()?)));
        entries
            .chain(self.held_of_base().map(|one| (&one.name, HeldVersion::Sent(Arc::clone(one)))))
    }

    /// All resources that were sent and that the client still holds, for a response that contains
    /// all of them.
    pub(super) fn held_resources(&self) -> (Vec<Arc<ListPiece>>, Vec<Arc<Resource>>) {
        let sent = self.entries.iter().filter(|entry| entry.state.holds == Holds::Sent);
        let mut resources: Vec<_> = sent.map(|entry| Arc::clone(entry.resource)).collect();
        let overrides = |entry: View<'_>| self.base.find(entry.name()).is_some();
        if !self.entries.iter().any(overrides) {
            let pieces = self.base.list.iter().flat_map(|list| list.pieces().iter());
            return (pieces.take(self.base.sent).cloned().collect(), resources);
        }
        resources.extend(self.held_of_base().cloned());
        resources.sort_by(|a, b| a.name.cmp(&b.name));
        (Vec::new(), resources)
    }

    fn held_of_base(&self) -> impl Iterator<Item = &Arc<Resource>> {
        self.base.held().iter().filter(|one| self.place(&one.name).is_none())
    }

    /// Returns the version that the client holds under a name.
    pub(super) fn held_version(&self, name: &str) -> Option<Version> {
        match self.place(name) {
            Some(at) => self.entries.view(at).version(),
            None => self.base.find(name).map(|one| one.version),
        }
    }

    pub(super) fn progress(&self) -> &Progress {
        self.answers.progress()
    }

    /// Records all resources that the client states to hold from an earlier stream, and compares
    /// them with the source.
    ///
    /// Must be called before anything else is recorded. Unchanged resources need no entry.
    pub(super) fn list_all(&mut self, listed: &[(&str, &str)], all: All) {
        let list = &all.shared;
        let mut held = vec![false; list.resources().len()];
        let mut others = BTreeMap::new();
        for (name, version) in listed {
            let version = Version::parse(version);
            let place = list.place(name);
            let now = place.and_then(|place| list.resources().get(place));
            let is_current = now.is_some_and(|now| Some(now.version) == version);
            if let Some(held) = place.and_then(|place| held.get_mut(place)) {
                *held = is_current;
            }
            if is_current {
                others.remove(name);
            } else {
                others.insert(*name, version);
            }
        }
        let differing = others.iter().map(|(name, version)| NewEntry::listed(name, *version));
        let mut entries: Vec<_> = differing.collect();
        entries.iter().for_each(|entry| self.digest.add(entry.view().digest()));
        if held.contains(&true) {
            list.pieces().iter().for_each(|piece| self.digest.add(piece.digest()));
            for (one, _) in list.resources().iter().zip(held).filter(|(_, held)| !held) {
                self.digest.subtract(list::digest(&one.name, Some(one.version)));
                if !others.contains_key(&*one.name) {
                    entries.push(NewEntry::new(Arc::clone(one)));
                }
            }
            self.base = Base { list: Some(Arc::clone(list)), sent: list.pieces().len() };
        }
        self.add(entries);
        self.compare_with(all);
    }

    /// Records resources that the client states to hold, for names that it is about to subscribe
    /// to. `listed` is sorted by name.
    pub(super) fn list_named(
        &mut self,
        listed: &[(&str, Option<Version>)],
        source: &mut dyn ResourceSource,
    ) {
        let kind = self.kind;
        let mut entry = |(name, version): &(&str, _)| match version {
            // Resources of wildcard types cannot be looked up by name.
            Some(version) if !kind.is_wildcard() => {
                source.one(kind, name).filter(|now| now.version == *version).map(NewEntry::sent)
            }
            _ => None,
        };
        let new: Vec<_> = listed
            .iter()
            .map(|one| entry(one).unwrap_or_else(|| NewEntry::listed(one.0, one.1)))
            .collect();
        new.iter().for_each(|entry| self.digest.add(entry.view().digest()));
        if !new.is_empty() {
            // Unchanged resources are not sent, so no answer would ever confirm that the client
            // holds them.
            self.answers.listed(Version(self.digest.0));
        }
        self.add(new);
    }

    /// Subscribes to names, which are sorted. Returns the names that are new.
    ///
    /// A resource is sent even if the client was sent it before, because the client may have
    /// forgotten it (xDS protocol, delta, "resource_names_subscribe"). A name for which `listed` is
    /// true is sent only if it differs.
    pub(super) fn subscribe(
        &mut self,
        names: &[&str],
        listed: impl Fn(&str) -> bool,
    ) -> Vec<Arc<str>> {
        self.enter(names);
        let mut sweep = Sweep::new(self.entries.resources());
        let places: Vec<_> = names.iter().filter_map(|name| sweep.place(name)).collect();
        let mut new = Vec::new();
        for at in places {
            let before = self.entries.update(at, |state| state.named = true);
            if !before.named {
                new.push(Arc::clone(self.entries.name(at)));
            }
            match (listed(self.entries.name(at)), before.holds) {
                // The version was compared when it was listed.
                (true, Holds::Sent) => {}
                (true, _) => self.mark(at, Due::Compare),
                (false, _) => self.mark(at, Due::Send),
            }
        }
        new
    }

    /// Subscribes to all resources. A response becomes due even if the client lacks nothing,
    /// because the client waits for one.
    pub(super) fn subscribe_all(&mut self) {
        self.wildcard = true;
        self.compare_all = true;
        self.owed = true;
    }

    /// Unsubscribes from names. Returns the names that were subscribed to.
    ///
    /// If the wildcard subscription is active, the client receives the current resources of these
    /// names.
    pub(super) fn unsubscribe<'a>(
        &mut self,
        names: impl IntoIterator<Item = &'a str>,
    ) -> Vec<Arc<str>> {
        let mut dropped = Vec::new();
        for name in names {
            let Some(at) = self.place_named(name) else { continue };
            dropped.push(Arc::clone(self.entries.name(at)));
            self.entries.update(at, |state| state.named = false);
            if self.wildcard {
                self.mark(at, Due::Send);
            } else {
                self.settle(at);
                self.drop_held(at);
            }
        }
        if !dropped.is_empty() {
            self.tidy();
        }
        dropped
    }

    /// Ends the wildcard subscription. Named subscriptions continue.
    pub(super) fn unsubscribe_all(&mut self) {
        self.wildcard = false;
        self.compare_all = false;
        self.owed = false;
        self.all = None;
        for at in 0..self.entries.len() {
            if !self.entries.state(at).named {
                self.settle(at);
                self.drop_held(at);
            }
        }
        let base = std::mem::take(&mut self.base);
        for one in base.held() {
            if self.place(&one.name).is_some() {
                continue;
            }
            self.digest.subtract(list::digest(&one.name, Some(one.version)));
            self.answers.forget(&one.name);
        }
        self.tidy();
    }

    /// Marks a name as possibly changed, if the client subscribes to it.
    pub(super) fn mark_watched(&mut self, name: &str) {
        if let Some(at) = self.place_again(name).filter(|at| self.entries.state(*at).named) {
            self.mark(at, Due::Compare);
        }
    }

    /// Marks all resources as possibly changed.
    pub(super) fn mark_all(&mut self) {
        self.compare_all |= self.wildcard;
        self.all = None;
        for at in 0..self.entries.len() {
            if self.entries.state(at).named {
                self.mark(at, Due::Compare);
            }
        }
    }

    /// Marks the subscribed ones among many names to be sent even if they are unchanged. `names` is
    /// sorted.
    pub(super) fn require_sorted(&mut self, names: &[Arc<str>]) {
        let mut sweep = Sweep::new(names);
        for at in 0..self.entries.len() {
            if self.entries.state(at).named && sweep.find(self.entries.name(at)).is_some() {
                self.mark(at, Due::Send);
            }
        }
    }

    /// Marks the subscribed ones among some names to be sent even if they are unchanged.
    pub(super) fn require<'a>(&mut self, names: impl Iterator<Item = &'a Arc<str>>) {
        for name in names {
            if let Some(at) = self.place_named(name) {
                self.mark(at, Due::Send);
            }
        }
    }

    /// Names that the source no longer has and that the client keeps for now.
    pub(super) fn going(&self) -> impl Iterator<Item = &Arc<str>> {
        let due = if self.due > 0 { self.entries.len() } else { 0 };
        let places = (self.due_from..due).filter(|at| self.entries.state(*at).going);
        places.map(|at| self.entries.name(at))
    }

    /// Defers due names to the end of the sweep, as if the source no longer had them.
    pub(super) fn postpone(&mut self, names: &[Arc<str>]) {
        for name in names {
            if let Some(at) = self.place(name)
                && self.entries.state(at).due.is_some()
            {
                self.entries.update(at, |state| state.going = true);
            }
        }
    }

    /// Ignores due names for which `skipped` is true, until they change again.
    pub(super) fn pass_over(&mut self, skipped: impl Fn(&str) -> bool) {
        for at in 0..self.entries.len() {
            if self.entries.state(at).due.is_some() && skipped(self.entries.name(at)) {
                self.settle(at);
            }
        }
    }

    /// Records that a response contains all resources that the client holds. It reports the names
    /// that the source does not have, so they need no response of their own.
    pub(super) fn note_missing(&mut self) {
        let due = if self.due > 0 { self.entries.len() } else { 0 };
        for at in self.due_from..due {
            let state = self.entries.state(at);
            if state.going && state.due == Some(Due::Send) {
                self.entries.update(at, |state| state.due = Some(Due::Compare));
            }
        }
    }

    /// Returns whether there may be a response to send.
    pub(super) fn is_due(&self) -> bool {
        self.owed || self.compare_all || self.due > 0 || self.base.next().is_some()
    }

    /// Returns whether so much may be due that changes for other streams would wait for it.
    pub(super) fn is_much(&self) -> bool {
        let nothing_yet = self.compare_all && self.base.list.is_none();
        nothing_yet || self.base.next().is_some() || self.due > FEW
    }

    /// Computes the resources that the client lacks, up to about `limit_bytes` bytes, and records
    /// them as held.
    ///
    /// Returns `None` if there is nothing to send. Names beyond the limit stay due. So do names
    /// that the source no longer has, if `gone` is [`GoneAction::Stays`].
    pub(super) fn take(
        &mut self,
        source: &mut dyn ResourceSource,
        limit_bytes: usize,
        gone: GoneAction,
    ) -> Option<Batch> {
        if !self.is_due() {
            return None;
        }
        self.compare(source);
        let all = self.all.clone();
        let mut all = all.as_deref().map(Everything::new);
        let mut batch = Batch::default();
        let mut bytes = 0;
        while bytes < limit_bytes
            && let Some(piece) = self.base.next().map(Arc::clone)
        {
            bytes += piece.resources().iter().map(|one| one.encoded_len()).sum::<usize>();
            self.hold_piece(&piece);
            batch.pieces.push(piece);
        }
        let mut at = self.due_from;
        while bytes < limit_bytes && self.due > 0 {
            let awaited = |state: NameState| match gone {
                GoneAction::Stays => state.due.is_some() && !state.going,
                GoneAction::Goes => state.due.is_some(),
            };
            let Some(next) = self.entries.position(at, awaited) else { break };
            at = next;
            let entry = self.entries.view(at);
            let must = entry.state.due == Some(Due::Send);
            let found = all.as_mut().and_then(|all| all.find(entry.name())).map(Arc::clone);
            let by_name = entry.state.named && (!self.kind.is_wildcard() || source.is_by_name());
            let now =
                found.or_else(|| by_name.then(|| source.one(self.kind, entry.name())).flatten());
            match now {
                Some(now) => {
                    if must || entry.differs(&now) {
                        bytes += now.encoded_len();
                        batch.changed.push(Arc::clone(&now));
                    }
                    self.settle(at);
                    // An equal resource can have a newer copy: store the copy that other streams
                    // share.
                    self.hold(at, Holds::Sent, now);
                }
                None if gone == GoneAction::Stays => {
                    self.entries.update(at, |state| state.going = true);
                }
                None => {
                    let name = Arc::clone(entry.name());
                    self.settle(at);
                    if self.drop_held(at) || must {
                        bytes += name.len();
                        batch.removed.push(name);
                    }
                }
            }
            at += 1;
        }
        // Names that are going were skipped and stay due.
        if gone == GoneAction::Goes || self.due == 0 {
            self.due_from = at;
        }
        if self.wildcard || !batch.removed.is_empty() {
            self.tidy();
        }
        if self.due == 0 {
            self.all = None;
        }
        let owed = std::mem::take(&mut self.owed);
        let any = batch.brings_something() || !batch.removed.is_empty();
        (owed || any).then_some(batch)
    }

    /// Records a response. Returns the digest of all resources that the client holds after
    /// accepting it.
    pub(super) fn sent(&mut self, nonce: u64, names: SentNames, now: SystemTime) -> Version {
        let state = Version(self.digest.0);
        self.answers.sent(nonce, state, names, now);
        state
    }

    /// See [`PendingResponses::awaits`].
    pub(super) fn awaits_answer_to(&self, nonce: u64) -> bool {
        self.answers.awaits(nonce)
    }

    /// See [`PendingResponses::answer`].
    pub(super) fn answer(&mut self, nonce: u64, error: Option<&str>, now: SystemTime) -> bool {
        self.answers.answer(nonce, error, now)
    }

    /// Checks the counters and the digest against the entries.
    #[cfg(test)]
    pub(super) fn is_consistent(&self) -> bool {
        let due = |entry: &View<'_>| entry.state.due.is_some();
        let held = self.held().map(|(name, held)| list::digest(name, held.version()));
        self.digest.0 == held.fold(0, u64::wrapping_add)
            && self.due == self.entries.iter().filter(due).count()
            && !self.entries.iter().take(self.due_from).any(|entry| due(&entry))
            && self.entries.resources().is_sorted_by(|a, b| a.name < b.name)
    }

    /// Replaces "compare everything" by the names that differ. Loads all resources of the source if
    /// names can only be looked up in them.
    fn compare(&mut self, source: &mut dyn ResourceSource) {
        if self.compare_all {
            let all = source.all(self.kind);
            self.compare_with(all);
        } else if self.due > 0
            && self.all.is_none()
            && self.kind.is_wildcard()
            && !source.is_by_name()
        {
            self.all = Some(Arc::new(source.all(self.kind)));
        }
    }

    /// Marks the names as due that differ from all resources of the source.
    fn compare_with(&mut self, all: All) {
        self.compare_all = false;
        let all = Arc::new(all);
        let mut sweep = Everything::new(&all);
        for at in 0..self.entries.len() {
            let entry = self.entries.view(at);
            if sweep.find(entry.name()).is_none_or(|now| entry.differs(now)) {
                self.mark(at, Due::Compare);
            }
        }
        if self.entries.is_empty() && self.base.list.is_none() {
            self.base.list = Some(Arc::clone(&all.shared));
        } else {
            self.follow(&all.shared);
        }
        let own = all.own.iter().filter(|one| self.place(&one.name).is_none());
        self.add_due(own.map(|one| NewEntry::new(Arc::clone(one))).collect());
        self.all = Some(all);
    }

    /// Makes `list` the base. Resources that differ between the previous base and `list` get an
    /// entry and become due.
    fn follow(&mut self, list: &Arc<SharedList>) {
        let base = std::mem::take(&mut self.base);
        if base.list.as_ref().is_some_and(|before| Arc::ptr_eq(before, list)) {
            self.base = base;
            return;
        }
        let mut differ = Vec::new();
        let mut news = list.resources().iter().peekable();
        for held in base.held() {
            while let Some(new) = news.next_if(|new| new.name < held.name) {
                differ.push(NewEntry::new(Arc::clone(new)));
            }
            let now = news.next_if(|new| Arc::ptr_eq(new, held) || new.name == held.name);
            if now.is_none_or(|now| now.version != held.version) {
                differ.push(NewEntry::sent(Arc::clone(held)));
            }
        }
        differ.extend(news.map(|new| NewEntry::new(Arc::clone(new))));
        differ.retain(|entry| self.place(&entry.resource.name).is_none());
        self.add_due(differ);
        self.base = Base { list: Some(Arc::clone(list)), sent: list.pieces().len() };
    }

    /// Adds entries and marks them as due.
    fn add_due(&mut self, mut new: Vec<NewEntry>) {
        new.iter_mut().for_each(|entry| entry.state.due = Some(Due::Compare));
        self.due += new.len();
        self.add(new);
    }

    /// Records that the next piece of the base is sent.
    fn hold_piece(&mut self, piece: &ListPiece) {
        self.base.sent += 1;
        self.digest.add(piece.digest());
        let mut sweep = Sweep::new(piece.resources());
        for at in 0..self.entries.len() {
            if let Some(one) = sweep.find(self.entries.name(at)) {
                // The name has an entry, which contributes to the digest separately.
                self.digest.subtract(list::digest(&one.name, Some(one.version)));
                self.settle(at);
                self.hold(at, Holds::Sent, Arc::clone(one));
            }
        }
    }

    fn place(&self, name: &str) -> Option<usize> {
        self.entries.place(name)
    }

    fn place_named(&self, name: &str) -> Option<usize> {
        self.place(name).filter(|at| self.entries.state(*at).named)
    }

    /// Looks up a name that was just looked up in other streams. Streams with the same names have
    /// it at the same index, and each step of a binary search reads distant memory.
    fn place_again(&self, name: &str) -> Option<usize> {
        let last = LAST_PLACE.get();
        if self.entries.resources().get(last).is_some_and(|one| *one.name == *name) {
            return Some(last);
        }
        let place = self.place(name)?;
        LAST_PLACE.set(place);
        Some(place)
    }

    /// Creates entries for names that have none. `names` is sorted.
    fn enter(&mut self, names: &[&str]) {
        let mut sweep = Sweep::new(self.entries.resources());
        let new = names.iter().filter(|name| sweep.place(name).is_none());
        let new = new.map(|name| match self.base.find(name) {
            Some(held) => NewEntry::sent(Arc::clone(held)),
            None => NewEntry::named(name),
        });
        self.add(new.collect());
    }

    /// Adds entries whose names have no entry yet, in any order.
    fn add(&mut self, new: Vec<NewEntry>) {
        if !new.is_empty() {
            self.entries.add(new);
            self.due_from = 0;
        }
    }

    /// Removes entries that have no information, or only the information of the base.
    fn tidy(&mut self) {
        let mut base = Sweep::new(self.base.held());
        self.entries.retain(|entry| {
            let mut said = || base.find(entry.name()).map(|one| one.version) == entry.version();
            entry.state.named || entry.state.due.is_some() || !said()
        });
        self.due_from = 0;
    }

    /// Marks an entry as due. `Due::Send` is never downgraded to `Due::Compare`.
    fn mark(&mut self, at: usize, why: Due) {
        let before = self.entries.update(at, |state| {
            state.going = false;
            if state.due != Some(Due::Send) {
                state.due = Some(why);
            }
        });
        // Without another due entry, the search begins at this one.
        self.due_from = if self.due == 0 { at } else { self.due_from.min(at) };
        self.due += usize::from(before.due.is_none());
    }

    /// Marks an entry as not due.
    fn settle(&mut self, at: usize) {
        let before = self.entries.update(at, |state| (state.due, state.going) = (None, false));
        self.due -= usize::from(before.due.is_some());
    }

    fn hold(&mut self, at: usize, holds: Holds, resource: Arc<Resource>) {
        self.digest.subtract(self.entries.view(at).digest());
        self.entries.replace(at, resource);
        self.entries.update(at, |state| state.holds = holds);
        self.digest.add(self.entries.view(at).digest());
    }

    /// Records that the client no longer holds a resource. Returns whether the client held it.
    fn drop_held(&mut self, at: usize) -> bool {
        let entry = self.entries.view(at);
        self.answers.forget(entry.name());
        self.digest.subtract(entry.digest());
        self.entries.update(at, |state| state.holds = Holds::Nothing).holds != Holds::Nothing
    }
}

/// A sum of [`list::digest`]s. It is equal for equal contents, regardless of how they were reached,
/// and on every replica. Updating it costs only what changes.
#[derive(Debug, Clone, Copy, Default)]
struct Digest(u64);

impl Digest {
    fn add(&mut self, digest: u64) {
        self.0 = self.0.wrapping_add(digest);
    }

    fn subtract(&mut self, digest: u64) {
        self.0 = self.0.wrapping_sub(digest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A source with two upstream clusters that counts its calls.
    #[derive(Default)]
    struct Counting {
        alls: usize,
        ones: usize,
        body: String,
    }

    impl ResourceSource for Counting {
        fn all(&mut self, kind: ResourceType) -> All {
            self.alls += 1;
            let own = ["a", "b"].map(|name| Arc::new(Resource::new(name, self.body.clone())));
            All { shared: SharedList::new(kind, Vec::new().into(), 1), own: own.into() }
        }

        fn one(&mut self, _: ResourceType, _: &str) -> Option<Arc<Resource>> {
            self.ones += 1;
            None
        }

        fn is_assigned(&self, _: &Resource) -> bool {
            false
        }
    }

    #[test]
    fn names_of_a_wildcard_type_are_looked_up_in_one_pass() {
        let mut source = Counting::default();
        let mut clusters = TypeSubscription::new(ResourceType::Cluster);
        clusters.subscribe(&["a", "b", "x", "y", "z"], |_| false);
        let sent = clusters.take(&mut source, usize::MAX, GoneAction::Goes).expect("something");
        assert_eq!((sent.changed.len(), sent.removed.len()), (2, 3));
        source.body = "another".into();
        clusters.mark_all();
        // The response is divided; a change between its parts takes effect.
        let sent = clusters.take(&mut source, 1, GoneAction::Goes).expect("something");
        assert_eq!((sent.changed.len(), clusters.is_due()), (1, true));
        assert_eq!((source.alls, source.ones), (2, 0));
        source.body = "the newest".into();
        clusters.mark_all();
        let sent = clusters.take(&mut source, usize::MAX, GoneAction::Goes).expect("something");
        let bodies: Vec<_> = sent.changed.iter().map(|one| one.body.to_bytes()).collect();
        assert_eq!(bodies, [&b"the newest"[..]; 2]);
        assert_eq!((source.alls, source.ones), (3, 0));
    }

    #[test]
    fn digest_does_not_depend_on_the_order_of_changes() {
        let listed =
            |name: &str, version| NewEntry::listed(name, Some(Version(version))).view().digest();
        let (mut there, mut back) = (Digest::default(), Digest::default());
        there.add(listed("x", 1));
        there.add(listed("y", 2));
        back.add(listed("y", 1));
        back.add(listed("y", 2));
        back.subtract(listed("y", 1));
        back.add(listed("x", 1));
        assert_eq!(there.0, back.0);
        assert_ne!(listed("x", 2), listed("y", 2));
    }
}
