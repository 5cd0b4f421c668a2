//! Maps changed names to the streams that subscribe to them.
//!
//! A stream registers the names and the workload that it watches, with the service of each name.
//! The event loop reports the changes, and only affected streams are woken. Pending changes of a
//! stream are a set, never a queue: a slow stream costs one entry per changed name, skips versions,
//! and never misses the last one.

mod awaited;
mod backlog;
mod changes;
mod movers;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Instant;

pub use self::backlog::StreamBacklog;
pub use self::changes::{AffectedStream, ChangedItem, Changes};
use super::numbers::{Numbered, SortedNumbers, insert, remove};
use super::scope::{AffectedResources, ProxyLocation};
use super::view::ViewKey;
use super::workload_index::StreamsByWorkload;
use crate::timeline::{Delivery, Receipt};
use strait_base::lock::lock;
use strait_base::wake::WakeHandle;
use strait_model::dirty::{Dirty, Wildcards};
use strait_model::{ClusterId, Hostname, Labels, Namespace, WorkloadKey};
use strait_rules::access::ConcernedWorkloads;

/// The maximum number of pending changes per stream for which the acknowledgement is tracked; the
/// receipts of older ones are dropped.
const RECEIPTS_MAX: usize = 16;

/// The table of subscriptions. The lock is only taken for look-ups and never spans an await.
#[derive(Debug, Default)]
pub struct SubscriptionIndex {
    table: RwLock<SubscriptionTable>,
}

/// Streams and watched names are numbered to save memory: a watched name costs a stream one to five
/// bytes, and four more while it is changed. Numbers are reused.
#[derive(Debug, Default)]
struct SubscriptionTable {
    streams: Numbered<StreamEntry>,
    names: Numbered<WatchedName>,
    view_classes: Numbered<ViewClass>,
    by_view: HashMap<Arc<ViewKey>, u32>,
    by_name: HashMap<Arc<str>, u32>,
    by_hostname: HashMap<Hostname, Vec<u32>>,
    workloads: BTreeMap<(ClusterId, WorkloadKey), Vec<u32>>,
    by_workload: StreamsByWorkload,
    /// The number of wake-ups so far. It rotates the order in which streams are woken.
    turn: usize,
    /// Whether a version is being published whose streams have not been marked yet.
    is_publishing: bool,
}

/// A stream.
#[derive(Debug)]
struct StreamEntry {
    pending: Arc<PendingChanges>,
    /// The number of the view class, once known.
    view_class: Option<u32>,
    /// Its location, once known.
    location: Option<Arc<ProxyLocation>>,
    /// The types to which it has a wildcard subscription.
    lists: Wildcards,
    /// The route configurations that it watches, sorted.
    routes: Vec<Arc<str>>,
}

/// A view that at least one stream has.
#[derive(Debug)]
struct ViewClass {
    view: Arc<ViewKey>,
    /// The number of streams with this view; never 0.
    streams: usize,
}

/// A name that at least one stream watches.
#[derive(Debug)]
struct WatchedName {
    name: Arc<str>,
    /// The service of the name.
    hostname: Hostname,
    /// Sorted; never empty.
    streams: Vec<u32>,
}

/// The pending changes of a stream.
#[derive(Debug)]
struct PendingChanges {
    dirty: Mutex<Unread>,
    /// Wakes the task that serves the stream.
    wake: WakeHandle,
}

/// Pending changes, with numbers instead of names; see [`Dirty`].
#[derive(Debug, Default)]
struct Unread {
    everything: bool,
    lists: Wildcards,
    routes: BTreeSet<Arc<str>>,
    /// Sorted.
    names: Vec<u32>,
    since: Option<Instant>,
    streams: u32,
    /// Whether changes were taken that have not been passed to the session yet.
    is_in_hand: bool,
    /// The receipts for these changes, at most [`RECEIPTS_MAX`].
    receipts: OwedReceipts,
}

/// Receipts in the order of their changes. Most streams have at most one, which needs no
/// allocation.
#[derive(Debug, Default)]
struct OwedReceipts {
    first: Option<Receipt>,
    more: Vec<Receipt>,
}

/// The subscription of one stream; dropping it removes the stream.
#[derive(Debug)]
pub struct Subscription {
    subscription_index: Arc<SubscriptionIndex>,
    stream: u32,
    pending: Arc<PendingChanges>,
    /// The numbers of the names that it watches.
    names: SortedNumbers,
    workload: Option<(ClusterId, WorkloadKey)>,
}

impl SubscriptionIndex {
    /// Locks the table for reading. Streams that take their changes do not wait for each other.
    fn table(&self) -> RwLockReadGuard<'_, SubscriptionTable> {
        self.table.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn table_mut(&self) -> RwLockWriteGuard<'_, SubscriptionTable> {
        self.table.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a stream that looks for its changes itself. See [`Self::subscribe_waking`].
    pub fn subscribe(self: &Arc<Self>, workload: Option<(ClusterId, WorkloadKey)>) -> Subscription {
        self.subscribe_waking(workload, WakeHandle::default())
    }

    /// Adds a stream, which `wake` wakes when there are changes. Call this before reading the
    /// current context, so that no change is missed.
    pub fn subscribe_waking(
        self: &Arc<Self>,
        workload: Option<(ClusterId, WorkloadKey)>,
        wake: WakeHandle,
    ) -> Subscription {
        let pending = Arc::new(PendingChanges { dirty: Mutex::default(), wake });
        let mut table = self.table_mut();
        let listener = StreamEntry {
            pending: Arc::clone(&pending),
            view_class: None,
            location: None,
            lists: Wildcards::default(),
            routes: Vec::new(),
        };
        let stream = table.streams.enter(listener);
        table.by_workload.enter(stream);
        if let Some(workload) = &workload {
            insert(table.workloads.entry(workload.clone()).or_default(), stream);
        }
        drop(table);
        Subscription {
            subscription_index: Arc::clone(self),
            stream,
            pending,
            names: SortedNumbers::default(),
            workload,
        }
    }

    /// Marks the changes for every affected stream and wakes these streams. Returns their number.
    /// Call it after publishing the context with the changes.
    pub fn mark(&self, changes: &Changes) -> usize {
        self.mark_followed(changes, None)
    }

    /// Like [`Self::mark`]; the streams record the acknowledgements of their proxies in
    /// `delivery`.
    pub fn mark_followed(&self, changes: &Changes, delivery: Option<&Arc<Delivery>>) -> usize {
        let mut table = self.table_mut();
        table.is_publishing = false;
        let mut marked = Vec::new();
        let reached = changes.reach.as_ref().map(|reach| table.by_workload.in_namespaces(reach));
        let is_reached = |stream: &u32| {
            reached.as_ref().is_none_or(|reached| reached.binary_search(stream).is_ok())
        };
        if changes.is_everything() {
            for (stream, StreamEntry { pending, .. }) in table.streams.iter() {
                lock(&pending.dirty).everything = true;
                marked.push(stream);
            }
        } else if changes.affects_services() {
            let moves = changes.may_move();
            let unknown = AffectedResources { everything: moves, ..AffectedResources::default() };
            let mark_stream = |stream: u32, listener: &StreamEntry| {
                let seen = changes.seen_by(stream, listener.location.as_ref());
                let unknown = moves.then_some(&unknown);
                listener.pending.add(listener, seen.or(unknown))
            };
            match &reached {
                Some(reached) => marked.extend(reached.iter().copied().filter(|stream| {
                    table
                        .streams
                        .get(*stream)
                        .is_some_and(|listener| mark_stream(*stream, listener))
                })),
                None => {
                    let notified =
                        table.streams.iter().filter(|(at, listener)| mark_stream(*at, listener));
                    marked.extend(notified.map(|(stream, _)| stream));
                }
            }
        }
        if changes.affects_access() && !changes.is_everything() {
            let notified =
                table.concerned(changes.concerned.as_ref()).into_iter().filter(|stream| {
                    let Some(listener) = table.streams.get(*stream) else { return false };
                    let location = listener.location.as_ref();
                    let proxy = location.map(|location| &*location.proxy);
                    let guarded = AffectedResources::of_access(proxy, &listener.routes);
                    !changes.has_same_access(*stream, location)
                        && listener.pending.add(listener, Some(&guarded))
                });
            marked.extend(notified);
        }
        let changed_services = changes.services();
        let changed_services = changed_services
            .iter()
            .filter(|host| !changes.deps.contains(&ChangedItem::Endpoints((*host).clone())));
        for (host, by_name) in changes
            .endpoints()
            .map(|host| (host, true))
            .chain(changed_services.map(|host| (host, false)))
        {
            let unaffected_views = changes.unaffected_views.get(host).into_iter().flatten();
            let unaffected_views: Vec<u32> =
                unaffected_views.filter_map(|view| table.by_view.get(view).copied()).collect();
            for name in table.by_hostname.get(host).into_iter().flatten() {
                for stream in table.names.get(*name).iter().flat_map(|watched| &watched.streams) {
                    let Some(listener) = table.streams.get(*stream) else { continue };
                    let is_affected = if by_name {
                        listener
                            .view_class
                            .is_none_or(|view_class| !unaffected_views.contains(&view_class))
                    } else {
                        let seen = changes.seen_by(*stream, listener.location.as_ref());
                        is_reached(stream)
                            && seen.is_none_or(|seen| seen.assignments.contains(host))
                    };
                    if is_affected {
                        insert(&mut lock(&listener.pending.dirty).names, *name);
                        marked.push(*stream);
                    }
                }
            }
        }
        let workloads = changes.deps.iter().filter_map(|dep| match dep {
            ChangedItem::Workload(cluster, name) => Some((cluster.clone(), name.clone())),
            _ => None,
        });
        for workload in workloads {
            for stream in table.workloads.get(&workload).into_iter().flatten() {
                if let Some(StreamEntry { pending, .. }) = table.streams.get(*stream) {
                    lock(&pending.dirty).everything = true;
                    marked.push(*stream);
                }
            }
        }
        marked.sort_unstable();
        marked.dedup();
        table.turn = table.turn.wrapping_add(1);
        if !marked.is_empty() {
            // Rotate the order, so that no stream is always woken last.
            let first = table.turn % marked.len();
            marked.rotate_left(first);
        }
        let streams = u32::try_from(marked.len()).expect("their numbers are 32 bits");
        let mut handles = Vec::with_capacity(marked.len());
        for stream in &marked {
            if let Some(StreamEntry { pending, location, .. }) = table.streams.get(*stream) {
                // No stream takes its changes meanwhile, because that requires the table's lock.
                let mut unread = lock(&pending.dirty);
                unread.since = unread.since.or(changes.since);
                unread.streams = streams;
                if let Some(delivery) = delivery {
                    unread.receipts.add(changes.receipt(delivery, *stream, location.as_ref()));
                }
                drop(unread);
                handles.push(pending.wake.clone());
            }
        }
        // A stream that is woken takes its changes at once, which would wait for the table.
        drop(table);
        handles.iter().for_each(WakeHandle::wake);
        marked.len()
    }

    /// Returns the known locations of streams in these namespaces, and possibly of others, by
    /// stream number. Without namespaces, returns the locations of all streams.
    pub fn locations(&self, reach: Option<&BTreeSet<Namespace>>) -> Vec<(u32, Arc<ProxyLocation>)> {
        let table = self.table();
        let location_of =
            |stream: u32| Some((stream, table.streams.get(stream)?.location.clone()?));
        table.reached(reach).into_iter().filter_map(location_of).collect()
    }

    /// Returns the known locations of the streams of certain workloads, and possibly of others, by
    /// stream number.
    pub fn locations_of(&self, workloads: &ConcernedWorkloads) -> Vec<(u32, Arc<ProxyLocation>)> {
        let table = self.table();
        let location_of =
            |stream: u32| Some((stream, table.streams.get(stream)?.location.clone()?));
        table.by_workload.concerned(workloads).into_iter().filter_map(location_of).collect()
    }

    /// Returns the views of streams that watch names of `host`, without views with fewer than
    /// `least` watched names.
    pub fn view_classes(&self, host: &Hostname, least: usize) -> Vec<Arc<ViewKey>> {
        let table = self.table();
        let mut counts = vec![0_usize; table.view_classes.room()];
        for name in table.by_hostname.get(host).into_iter().flatten() {
            for stream in table.names.get(*name).iter().flat_map(|watched| &watched.streams) {
                let view_class =
                    table.streams.get(*stream).and_then(|listener| listener.view_class);
                if let Some(count) =
                    view_class.and_then(|view_class| counts.get_mut(view_class as usize))
                {
                    *count += 1;
                }
            }
        }
        let many = |(number, view_class): (u32, &ViewClass)| {
            (counts.get(number as usize)? >= &least).then(|| Arc::clone(&view_class.view))
        };
        table.view_classes.iter().filter_map(many).collect()
    }
}

impl Subscription {
    /// Sets the location of the stream, with all relevant facts about its proxy, and the labels of
    /// its workload if they are known. Returns whether anything differs. From now on, the stream is
    /// notified of changes that are visible there. It may have missed earlier changes that are
    /// visible only there.
    pub fn set_location(
        &self,
        location: ProxyLocation,
        view: ViewKey,
        labels: Option<&Labels>,
    ) -> bool {
        let mut table = self.subscription_index.table_mut();
        table.by_workload.place(self.stream, location.proxy.namespace(), labels);
        let is_new = table.set_view(self.stream, Some(view));
        let Some(listener) = table.streams.get_mut(self.stream) else { return is_new };
        if listener.location.as_deref() == Some(&location) {
            return is_new;
        }
        listener.location = Some(Arc::new(location));
        true
    }

    /// Sets the types to which the stream has a wildcard subscription. Call this before reading the
    /// context for a response, as with names.
    pub fn watch_lists(&self, lists: Wildcards) {
        if let Some(listener) = self.subscription_index.table_mut().streams.get_mut(self.stream) {
            listener.lists = lists;
        }
    }

    /// Adds and removes watched route configurations.
    pub fn watch_routes(&self, new: &[Arc<str>], dropped: &[Arc<str>]) {
        if new.is_empty() && dropped.is_empty() {
            return;
        }
        let mut table = self.subscription_index.table_mut();
        let Some(listener) = table.streams.get_mut(self.stream) else { return };
        listener.routes.retain(|name| !dropped.contains(name));
        listener.routes.extend(new.iter().cloned());
        listener.routes.sort_unstable();
        listener.routes.dedup();
    }

    /// Adds watched names; names that belong to no service are skipped. Call this before reading
    /// the context for the response.
    pub fn watch(&mut self, names: &[Arc<str>], hostname_of: impl Fn(&str) -> Option<Hostname>) {
        if names.is_empty() {
            return;
        }
        let mut table = self.subscription_index.table_mut();
        let numbers = names.iter();
        let numbers = numbers.filter_map(|name| table.watch(name, &hostname_of, self.stream));
        let mut numbers: Vec<u32> = numbers.collect();
        drop(table);
        numbers.extend(self.names.iter());
        numbers.sort_unstable();
        numbers.dedup();
        self.names = numbers.into_iter().collect();
    }

    /// Removes watched names.
    pub fn forget(&mut self, names: &[Arc<str>]) {
        if names.is_empty() {
            return;
        }
        let mut table = self.subscription_index.table_mut();
        let numbers = names.iter().filter_map(|name| table.by_name.get(name).copied());
        let mut numbers: Vec<u32> = numbers.collect();
        for number in &numbers {
            table.forget_name(*number, self.stream);
            // The number may be reused for another name.
            remove(&mut lock(&self.pending.dirty).names, *number);
        }
        drop(table);
        numbers.sort_unstable();
        let remaining = self.names.iter().filter(|name| numbers.binary_search(name).is_err());
        self.names = remaining.collect();
    }

    /// Returns whether there are pending changes.
    pub fn has_changes(&self) -> bool {
        !lock(&self.pending.dirty).is_empty()
    }

    /// Takes the receipts for the pending changes. Call this before [`Self::take`], so that each
    /// receipt belongs to a change that is taken.
    pub fn take_receipts(&self) -> impl Iterator<Item = Receipt> + use<> {
        let OwedReceipts { first, more } = std::mem::take(&mut lock(&self.pending.dirty).receipts);
        first.into_iter().chain(more)
    }

    /// Takes the pending changes. Read the context after this call, and call
    /// [`Self::confirm_delivery`] when the changes have been passed on.
    pub fn take(&self) -> Dirty {
        // Lock the table first, as everywhere; so the numbers cannot be reused meanwhile.
        let table = self.subscription_index.table();
        let unread = {
            let mut dirty = lock(&self.pending.dirty);
            // A receipt for a later change is taken with that change.
            let receipts = std::mem::take(&mut dirty.receipts);
            std::mem::replace(
                &mut *dirty,
                Unread { receipts, is_in_hand: true, ..Unread::default() },
            )
        };
        let name = |number: &u32| Some(Arc::clone(&table.names.get(*number)?.name));
        Dirty {
            everything: unread.everything,
            lists: unread.lists,
            routes: unread.routes,
            endpoints: unread.names.iter().filter_map(name).collect(),
            since: unread.since,
            streams: unread.streams as usize,
        }
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        let mut table = self.subscription_index.table_mut();
        table.set_view(self.stream, None);
        table.by_workload.leave(self.stream);
        table.streams.leave(self.stream);
        for name in self.names.iter() {
            table.forget_name(name, self.stream);
        }
        if let Some(workload) = &self.workload
            && let Some(streams) = table.workloads.get_mut(workload)
        {
            remove(streams, self.stream);
            if streams.is_empty() {
                table.workloads.remove(workload);
            }
        }
    }
}

impl OwedReceipts {
    fn add(&mut self, receipt: Receipt) {
        if self.first.is_none() {
            self.first = Some(receipt);
            return;
        }
        if self.more.len() + 1 == RECEIPTS_MAX {
            self.first = Some(self.more.remove(0));
        }
        self.more.push(receipt);
    }
}

impl Unread {
    fn is_empty(&self) -> bool {
        !self.everything && self.lists.is_empty() && self.routes.is_empty() && self.names.is_empty()
    }
}

impl PendingChanges {
    /// Adds the effect of a change to services, or all watched resources if the effect is unknown.
    /// Returns whether anything was added.
    fn add(&self, listener: &StreamEntry, seen: Option<&AffectedResources>) -> bool {
        let StreamEntry { lists, routes, .. } = listener;
        let watched = |name: &&Arc<str>| seen.is_none_or(|seen| seen.routes.contains(*name));
        let routes = match seen {
            Some(seen) if seen.routes.is_empty() => BTreeSet::new(),
            _ => routes.iter().filter(watched).cloned().collect(),
        };
        let lists = seen.map_or(*lists, |seen| lists.and(seen.lists));
        let everything = seen.is_some_and(|seen| seen.everything);
        if !everything && lists.is_empty() && routes.is_empty() {
            return false;
        }
        let mut unread = lock(&self.dirty);
        unread.everything |= everything;
        unread.lists.add(lists);
        unread.routes.extend(routes);
        true
    }
}

impl SubscriptionTable {
    /// Returns the streams of certain workloads, and possibly others; all streams if the workloads
    /// are unknown.
    fn concerned(&self, workloads: Option<&ConcernedWorkloads>) -> Vec<u32> {
        match workloads {
            Some(workloads) => self.by_workload.concerned(workloads),
            None => self.reached(None),
        }
    }

    /// Returns the streams of certain namespaces, and possibly others; all streams without
    /// namespaces.
    fn reached(&self, reach: Option<&BTreeSet<Namespace>>) -> Vec<u32> {
        match reach {
            Some(namespaces) => self.by_workload.in_namespaces(namespaces),
            None => self.streams.iter().map(|(stream, _)| stream).collect(),
        }
    }

    /// Sets the view of `stream`. Returns whether it differs.
    fn set_view(&mut self, stream: u32, view: Option<ViewKey>) -> bool {
        let Some(listener) = self.streams.get_mut(stream) else { return false };
        let before = listener.view_class;
        let view_of = |number| self.view_classes.get(number).map(|view_class| &*view_class.view);
        if before.and_then(view_of) == view.as_ref() {
            return false;
        }
        listener.view_class = view.map(|view| match self.by_view.get(&view) {
            Some(number) => {
                if let Some(view_class) = self.view_classes.get_mut(*number) {
                    view_class.streams += 1;
                }
                *number
            }
            None => {
                let view = Arc::new(view);
                let number =
                    self.view_classes.enter(ViewClass { view: Arc::clone(&view), streams: 1 });
                self.by_view.insert(view, number);
                number
            }
        });
        if let Some(number) = before
            && let Some(view_class) = self.view_classes.get_mut(number)
        {
            view_class.streams -= 1;
            if view_class.streams == 0
                && let Some(removed) = self.view_classes.leave(number)
            {
                self.by_view.remove(&removed.view);
            }
        }
        true
    }

    /// Adds `stream` to the watchers of `name`. Returns the number of the name if it belongs to a
    /// service.
    fn watch(
        &mut self,
        name: &Arc<str>,
        hostname_of: impl Fn(&str) -> Option<Hostname>,
        stream: u32,
    ) -> Option<u32> {
        if let Some(number) = self.by_name.get(name) {
            if let Some(WatchedName { streams, .. }) = self.names.get_mut(*number) {
                if streams.len() == streams.capacity() {
                    // Grow by an eighth at a time, because there are as many of these lists as
                    // names.
                    streams.reserve_exact(streams.len() / 8 + 4);
                }
                insert(streams, stream);
            }
            return Some(*number);
        }
        let hostname = hostname_of(name)?;
        let watched = WatchedName {
            name: Arc::clone(name),
            hostname: hostname.clone(),
            streams: vec![stream],
        };
        let number = self.names.enter(watched);
        self.by_name.insert(Arc::clone(name), number);
        self.by_hostname.entry(hostname).or_default().push(number);
        Some(number)
    }

    fn forget_name(&mut self, name: u32, stream: u32) {
        let Some(watched) = self.names.get_mut(name) else { return };
        remove(&mut watched.streams, stream);
        if watched.streams.is_empty()
            && let Some(removed) = self.names.leave(name)
        {
            self.by_name.remove(&removed.name);
            if let Some(host_names) = self.by_hostname.get_mut(&removed.hostname) {
                host_names.retain(|number| *number != name);
                if host_names.is_empty() {
                    self.by_hostname.remove(&removed.hostname);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
