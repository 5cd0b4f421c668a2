//! What one stream watches of one type, and what its client holds of it.
//!
//! Level-triggered: a request or a change only notes which names are *due*; what is sent is found out
//! when there is room to send, by comparing the source with what the client holds. However many
//! changes pass in between, the client gets the last. Knows neither wire form, and does no I/O.
//!
//! Of a wildcard type most is the same for many clients: that is held as one [`SharedList`], and only what is
//! the client's own, or differs from the list at the moment, has an entry.

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
    /// Where the last name was found that was looked for by [`Subscription::place_again`]: a single change is
    /// looked for by one stream after the other, each of which has it in the same place, more or less.
    static LAST_PLACE: Cell<usize> = const { Cell::new(0) };
}

/// So many single resources are not much to send.
const FEW: usize = 32;

/// See the module's description.
#[derive(Debug)]
pub(super) struct TypeSubscription {
    kind: ResourceType,
    wildcard: bool,
    /// Something was named on this stream, so that naming nothing means nothing (SotW).
    was_named: bool,
    /// Everything of the type must be compared (wildcard only).
    compare_all: bool,
    /// A response is owed even if nothing differs.
    owed: bool,
    /// How many of `entries` are due, none of them before this place.
    due: usize,
    due_from: usize,
    entries: Entries,
    /// What is held where no entry says otherwise (wildcard only).
    base: Base,
    digest: Digest,
    /// What is due was found in this (wildcard only), so that chunks of one sweep come from one picture.
    all: Option<Arc<All>>,
    answers: PendingResponses,
}

/// The beginning of a list: the pieces that were sent.
#[derive(Debug, Default)]
struct Base {
    list: Option<Arc<SharedList>>,
    sent: usize,
}

impl Base {
    /// What is held of it, sorted by name.
    fn held(&self) -> &[Arc<Resource>] {
        self.list.as_ref().map_or(&[], |list| list.beginning(self.sent))
    }

    fn find(&self, name: &str) -> Option<&Arc<Resource>> {
        self.held().get(self.list.as_ref()?.place(name)?)
    }

    /// The next piece to be sent.
    fn next(&self) -> Option<&Arc<ListPiece>> {
        self.list.as_ref()?.pieces().get(self.sent)
    }
}

/// What becomes of a name that is gone from the source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum GoneAction {
    /// The client keeps it for now: others may refer to it.
    Stays,
    /// It is taken back.
    Goes,
}

/// What a client lacks, within a limit.
#[derive(Debug, Default)]
pub(super) struct Batch {
    pub(super) pieces: Vec<Arc<ListPiece>>,
    pub(super) changed: Vec<Arc<Resource>>,
    pub(super) removed: Vec<Arc<str>>,
}

impl Batch {
    /// Whether it is of more than what has gone.
    pub(super) fn brings_something(&self) -> bool {
        !self.pieces.is_empty() || !self.changed.is_empty()
    }
}

impl TypeSubscription {
    /// A watch of nothing.
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

    /// The names the client asked for, sorted.
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

    /// What the client holds, in no order.
    pub(super) fn held(&self) -> impl Iterator<Item = (&Arc<str>, HeldVersion)> {
        let entries = self.entries.iter();
        let entries = entries.filter_map(|entry| Some((entry.name(), entry.held()?)));
        entries
            .chain(self.held_of_base().map(|one| (&one.name, HeldVersion::Sent(Arc::clone(one)))))
    }

    /// All that was sent and is still held, for a response that holds it all.
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

    /// The version the client holds under a name.
    pub(super) fn held_version(&self, name: &str) -> Option<Version> {
        match self.place(name) {
            Some(at) => self.entries.view(at).version(),
            None => self.base.find(name).map(|one| one.version),
        }
    }

    pub(super) fn progress(&self) -> &Progress {
        self.answers.progress()
    }

    /// Believes the client in what it holds of everything from before this stream, before anything else, and compares
    /// it with all there is. What it has unchanged costs no entry.
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

    /// The same of names, sorted, that it is about to watch.
    pub(super) fn list_named(
        &mut self,
        listed: &[(&str, Option<Version>)],
        source: &mut dyn ResourceSource,
    ) {
        let kind = self.kind;
        let mut entry = |(name, version): &(&str, _)| match version {
            // One by one is no way to find those of a wildcard type.
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
            // What it has unchanged is not sent, so no answer would ever show that it holds it.
            self.answers.listed(Version(self.digest.0));
        }
        self.add(new);
    }

    /// Watches names, sorted. They are sent even if the client was sent them before: it may have
    /// forgotten them (xDS protocol, delta, "resource_names_subscribe"). Those that it has just
    /// `listed` are sent only if they differ. Returns those that are new.
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
                // It was compared when it was listed.
                (true, Holds::Sent) => {}
                (true, _) => self.mark(at, Due::Compare),
                (false, _) => self.mark(at, Due::Send),
            }
        }
        new
    }

    /// Watches everything, and owes an answer: the client waits for one even if it lacks nothing.
    pub(super) fn subscribe_all(&mut self) {
        self.wildcard = true;
        self.compare_all = true;
        self.owed = true;
    }

    /// Stops to watch names. Where everything is watched, the client is sent what they are there.
    /// Returns those that were watched.
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

    /// Watches only what was named.
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

    /// Notes that a name may have changed, if it is watched.
    pub(super) fn mark_watched(&mut self, name: &str) {
        if let Some(at) = self.place_again(name).filter(|at| self.entries.state(*at).named) {
            self.mark(at, Due::Compare);
        }
    }

    /// Notes that anything may have changed.
    pub(super) fn mark_all(&mut self) {
        self.compare_all |= self.wildcard;
        self.all = None;
        for at in 0..self.entries.len() {
            if self.entries.state(at).named {
                self.mark(at, Due::Compare);
            }
        }
    }

    /// The same as [`Self::require`] for many names, sorted.
    pub(super) fn require_sorted(&mut self, names: &[Arc<str>]) {
        let mut sweep = Sweep::new(names);
        for at in 0..self.entries.len() {
            if self.entries.state(at).named && sweep.find(self.entries.name(at)).is_some() {
                self.mark(at, Due::Send);
            }
        }
    }

    /// Has names sent as they are, those that are watched.
    pub(super) fn require<'a>(&mut self, names: impl Iterator<Item = &'a Arc<str>>) {
        for name in names {
            if let Some(at) = self.place_named(name) {
                self.mark(at, Due::Send);
            }
        }
    }

    /// Names that are gone, and stay for now.
    pub(super) fn going(&self) -> impl Iterator<Item = &Arc<str>> {
        let due = if self.due > 0 { self.entries.len() } else { 0 };
        let places = (self.due_from..due).filter(|at| self.entries.state(*at).going);
        places.map(|at| self.entries.name(at))
    }

    /// Leaves names for the end, as if they were gone, those that are due.
    pub(super) fn postpone(&mut self, names: &[Arc<str>]) {
        for name in names {
            if let Some(at) = self.place(name)
                && self.entries.state(at).due.is_some()
            {
                self.entries.update(at, |state| state.going = true);
            }
        }
    }

    /// Looks at these names no more until they change again.
    pub(super) fn pass_over(&mut self, skipped: impl Fn(&str) -> bool) {
        for at in 0..self.entries.len() {
            if self.entries.state(at).due.is_some() && skipped(self.entries.name(at)) {
                self.settle(at);
            }
        }
    }

    /// Whether there may be something to send.
    pub(super) fn is_due(&self) -> bool {
        self.owed || self.compare_all || self.due > 0 || self.base.next().is_some()
    }

    /// Whether so much may have to be sent that others' changes would wait for it.
    pub(super) fn is_much(&self) -> bool {
        let nothing_yet = self.compare_all && self.base.list.is_none();
        nothing_yet || self.base.next().is_some() || self.due > FEW
    }

    /// Finds what the client lacks, up to about `limit_bytes`, and takes it as held from now on.
    /// `None` where nothing is to be sent. What is over the limit stays due, and so does what is
    /// gone but [`GoneAction::Stays`].
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
                    // The same bytes may be another copy by now: keep the one that everybody shares.
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
        // What is going stays due, and was passed over.
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

    /// Records a response; returns the digest of what the client holds with it.
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

    /// Whether what is counted is what is there.
    #[cfg(test)]
    pub(super) fn is_consistent(&self) -> bool {
        let due = |entry: &View<'_>| entry.state.due.is_some();
        let held = self.held().map(|(name, held)| list::digest(name, held.version()));
        self.digest.0 == held.fold(0, u64::wrapping_add)
            && self.due == self.entries.iter().filter(due).count()
            && !self.entries.iter().take(self.due_from).any(|entry| due(&entry))
            && self.entries.resources().is_sorted_by(|a, b| a.name < b.name)
    }

    /// Turns "compare everything" into the names that differ, and has all there is at hand where that is
    /// where names are found.
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

    /// Has due what differs from all there is.
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

    /// Makes `list` the base: what is held otherwise than it says gets an entry, and is due.
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

    /// Takes in entries that are due.
    fn add_due(&mut self, mut new: Vec<NewEntry>) {
        new.iter_mut().for_each(|entry| entry.state.due = Some(Due::Compare));
        self.due += new.len();
        self.add(new);
    }

    /// Notes that the next piece of the base is sent.
    fn hold_piece(&mut self, piece: &ListPiece) {
        self.base.sent += 1;
        self.digest.add(piece.digest());
        let mut sweep = Sweep::new(piece.resources());
        for at in 0..self.entries.len() {
            if let Some(one) = sweep.find(self.entries.name(at)) {
                // It has an entry, which counts by itself.
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

    /// The same of a name that other streams were just asked for: those that watch the same names have it
    /// at the same place, and each step of a search is a look at memory that is far away.
    fn place_again(&self, name: &str) -> Option<usize> {
        let last = LAST_PLACE.get();
        if self.entries.resources().get(last).is_some_and(|one| *one.name == *name) {
            return Some(last);
        }
        let place = self.place(name)?;
        LAST_PLACE.set(place);
        Some(place)
    }

    /// Makes entries for names that have none; `names` is sorted.
    fn enter(&mut self, names: &[&str]) {
        let mut sweep = Sweep::new(self.entries.resources());
        let new = names.iter().filter(|name| sweep.place(name).is_none());
        let new = new.map(|name| match self.base.find(name) {
            Some(held) => NewEntry::sent(Arc::clone(held)),
            None => NewEntry::named(name),
        });
        self.add(new.collect());
    }

    /// Takes in entries of other names than there are, in no order.
    fn add(&mut self, new: Vec<NewEntry>) {
        if !new.is_empty() {
            self.entries.add(new);
            self.due_from = 0;
        }
    }

    /// Drops entries that say nothing, or only what the base says.
    fn tidy(&mut self) {
        let mut base = Sweep::new(self.base.held());
        self.entries.retain(|entry| {
            let mut said = || base.find(entry.name()).map(|one| one.version) == entry.version();
            entry.state.named || entry.state.due.is_some() || !said()
        });
        self.due_from = 0;
    }

    /// Notes that an entry is due, as `Send` if it was so before.
    fn mark(&mut self, at: usize, why: Due) {
        let before = self.entries.update(at, |state| {
            state.going = false;
            if state.due != Some(Due::Send) {
                state.due = Some(why);
            }
        });
        self.due += usize::from(before.due.is_none());
        self.due_from = self.due_from.min(at);
    }

    /// Notes that an entry is not due any more.
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

    /// Returns whether it was held.
    fn drop_held(&mut self, at: usize) -> bool {
        let entry = self.entries.view(at);
        self.answers.forget(entry.name());
        self.digest.subtract(entry.digest());
        self.entries.update(at, |state| state.holds = Holds::Nothing).holds != Holds::Nothing
    }
}

/// A sum of [`list::digest`]s: the same for the same contents however they were reached, on every
/// replica, and kept up to date at the cost of what changes.
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

    /// Two upstream clusters, and how often it was asked.
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
    }

    #[test]
    fn names_of_a_wildcard_type_are_found_in_one_pass() {
        let mut source = Counting::default();
        let mut clusters = TypeSubscription::new(ResourceType::Cluster);
        clusters.subscribe(&["a", "b", "x", "y", "z"], |_| false);
        let sent = clusters.take(&mut source, usize::MAX, GoneAction::Goes).expect("something");
        assert_eq!((sent.changed.len(), sent.removed.len()), (2, 3));
        source.body = "another".into();
        clusters.mark_all();
        // In parts, and what changes between them is found.
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
    fn a_digest_does_not_depend_on_the_way_there() {
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
