//! Who cares about what: from a changed name to the streams that must hear of it.
//!
//! A stream says which names and which workload it watches, and what service each name stands for; the
//! event loop says what changed, and only the streams that care are woken. What a stream has yet to look at is a set, never a
//! queue: a slow stream costs one entry per dirty name, skips versions, and never misses the last.

mod awaited;
mod backlog;
mod movers;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::future::poll_fn;
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Instant;

use futures::task::AtomicWaker;

pub use self::backlog::StreamBacklog;
use super::numbers::{Numbered, SortedNumbers, insert, remove};
use super::scope::{SeenChanges, Stand};
use super::view::ViewKey;
use super::workload_index::StreamsByWorkload;
use crate::timeline::{Delivery, Receipt};
use strait_base::lock::lock;
use strait_model::dirty::{Dirty, Wildcards};
use strait_model::{ClusterId, Hostname, Labels, Namespace, NetworkId, WorkloadKey};
use strait_rules::access::ConcernedWorkloads;

/// How many changes that a stream has yet to look at are followed until its proxy has answered; of older ones nobody
/// will know.
const RECEIPTS_MAX: usize = 16;

/// One thing that changed. Everything that can happen to the mesh becomes a set of these, and nothing else
/// reaches a stream.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Dep {
    /// The endpoints of a service: its assignments.
    Endpoints(Hostname),
    /// The endpoints of a service on which more depends than its assignments: those of a headless one, of one
    /// whose upstream cluster names them, of one without a selector.
    Members(Hostname),
    /// The accounts under which its endpoints run, or whether any may take mTLS: its upstream clusters.
    Accounts(Hostname),
    /// What it is.
    Definition(Hostname),
    /// The record of a pod.
    Workload(ClusterId, WorkloadKey),
    /// The rules of how it is spoken to.
    Traffic(Hostname),
    /// The selectors that rules have.
    Selectors,
    /// What of the mesh proxies of a namespace are given.
    Imports(Namespace),
    /// What proxies of a namespace write of requests.
    Logging(Namespace),
    /// What filters proxies of a namespace have besides their own.
    Filters(Namespace),
    /// What routers take in as Gateways and the rules bound to them say.
    Gateways,
    /// Which machines and nodes there are, and what is known of them.
    Machines,
    /// Which network something is in.
    Networks,
    /// The gateways of a network: assignments of what lies behind them, which are named beside it.
    NetworkGateways(NetworkId),
    /// Whether what a cluster has counts: assignments of it, which are named beside it.
    ClusterMode(ClusterId),
    /// Access policies of a namespace; those of the root namespace are for the whole mesh.
    Access(Namespace),
    /// Settings that hold for all: mesh config, policy, the clusters there are.
    Mesh,
}

impl Dep {
    /// The service of which more changed than what assignments say.
    fn service(&self) -> Option<&Hostname> {
        match self {
            Self::Definition(host)
            | Self::Accounts(host)
            | Self::Members(host)
            | Self::Traffic(host) => Some(host),
            _ => None,
        }
    }

    /// Whether it is for [`super::scope::Sight`] to say who sees it.
    fn is_looked_at(&self) -> bool {
        !matches!(
            self,
            Self::Endpoints(_)
                | Self::Workload(..)
                | Self::Networks
                // What depends on these is named beside them.
                | Self::NetworkGateways(_)
                | Self::ClusterMode(_)
                | Self::Mesh
                // Whom they concern follows from the policies themselves.
                | Self::Access(_)
        )
    }
}

/// What one version changed, as the event loop reports it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Changes {
    /// What it is.
    pub deps: BTreeSet<Dep>,
    /// Of services whose endpoints changed, the view classes from which nothing differs: who stands there need not
    /// hear of it.
    pub unaffected_views: BTreeMap<Hostname, Vec<Arc<ViewKey>>>,
    /// The namespaces of the proxies that alone can see the rest; `None` where any may.
    pub reach: Option<BTreeSet<Namespace>>,
    /// What the streams of these see of it, by their numbers; who is not among them hears of all of it.
    pub seen: Vec<SeenBy>,
    /// The workloads for which access policies may say otherwise than before; `None` where that is not known, and it may
    /// be any.
    pub concerned: Option<ConcernedWorkloads>,
    /// Of the streams of these workloads those for which they say the same, by their numbers, from where they stand.
    pub same_access: Vec<(u32, Arc<Stand>)>,
    /// When the first event of it was taken.
    pub since: Option<Instant>,
}

/// What a stream sees of a change from where it stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SeenBy {
    stream: u32,
    stand: Arc<Stand>,
    seen: Arc<SeenChanges>,
}

impl Changes {
    /// Changes of the endpoints of these services, on which only assignments depend.
    pub fn of_endpoints(hosts: impl IntoIterator<Item = Hostname>) -> Self {
        hosts.into_iter().map(Dep::Endpoints).collect()
    }

    /// Whether nothing changed.
    pub fn is_empty(&self) -> bool {
        self.deps.is_empty()
    }

    /// Whether anything may differ for anybody.
    pub fn is_everything(&self) -> bool {
        self.deps.contains(&Dep::Networks) || self.deps.contains(&Dep::Mesh)
    }

    /// The services whose endpoints changed.
    pub fn endpoints(&self) -> impl Iterator<Item = &Hostname> {
        self.deps.iter().filter_map(|dep| match dep {
            Dep::Endpoints(host) => Some(host),
            _ => None,
        })
    }

    /// The services of which more changed than what assignments say.
    pub fn services(&self) -> BTreeSet<Hostname> {
        self.deps.iter().filter_map(Dep::service).cloned().collect()
    }

    /// Whether it is for [`super::scope::Sight`] to say who sees it.
    pub fn is_of_services(&self) -> bool {
        self.deps.iter().any(Dep::is_looked_at)
    }

    /// Whether nothing is in it for [`super::scope::Sight`] but services.
    pub fn is_of_hosts_alone(&self) -> bool {
        self.deps.iter().filter(|dep| dep.is_looked_at()).all(|dep| dep.service().is_some())
    }

    /// Whether proxies may stand elsewhere than before, as rules and views see them.
    pub fn may_move(&self) -> bool {
        let moves = |dep: &Dep| matches!(dep, Dep::Machines | Dep::Selectors | Dep::Imports(_));
        self.deps.iter().any(moves)
    }

    /// Whether access policies changed.
    pub fn is_of_access(&self) -> bool {
        self.deps.iter().any(|dep| matches!(dep, Dep::Access(_)))
    }

    /// Whether access policies say the same as before for `stream`, which stands there.
    fn has_same_access(&self, stream: u32, stand: Option<&Arc<Stand>>) -> bool {
        let found = self.same_access.binary_search_by_key(&stream, |(stream, _)| *stream);
        let found = found.ok().and_then(|at| self.same_access.get(at));
        // Its number may be another's by now.
        found.zip(stand).is_some_and(|((_, held), stand)| Arc::ptr_eq(held, stand))
    }

    /// Takes note of what streams see of it.
    pub fn set_seen(&mut self, stands: Vec<(u32, Arc<Stand>)>, seen: Vec<Arc<SeenChanges>>) {
        let of = |((stream, stand), seen)| SeenBy { stream, stand, seen };
        self.seen = stands.into_iter().zip(seen).map(of).collect();
    }

    /// What `stream`, which stands there, sees of it, if that is known.
    fn seen_by(&self, stream: u32, stand: Option<&Arc<Stand>>) -> Option<&SeenChanges> {
        let at = self.seen.binary_search_by_key(&stream, |one| one.stream).ok()?;
        let found = self.seen.get(at)?;
        // Its number may be another's by now.
        stand.is_some_and(|stand| Arc::ptr_eq(stand, &found.stand)).then_some(&*found.seen)
    }
}

impl FromIterator<Dep> for Changes {
    fn from_iter<I: IntoIterator<Item = Dep>>(deps: I) -> Self {
        Self { deps: deps.into_iter().collect(), ..Self::default() }
    }
}

/// The table of who watches what. The lock is held for look-ups only, never across an await.
#[derive(Debug, Default)]
pub struct Interest {
    table: Mutex<InterestTable>,
}

/// Streams and watched names have numbers, so that a name costs a stream few bytes: one to five where it is
/// watched, four while it is dirty. The number of what has gone is given out again.
#[derive(Debug, Default)]
struct InterestTable {
    streams: Numbered<StreamEntry>,
    names: Numbered<WatchedName>,
    view_classes: Numbered<ViewClass>,
    by_view: HashMap<Arc<ViewKey>, u32>,
    by_name: HashMap<Arc<str>, u32>,
    by_hostname: HashMap<Hostname, Vec<u32>>,
    workloads: BTreeMap<(ClusterId, WorkloadKey), Vec<u32>>,
    by_workload: StreamsByWorkload,
    /// How many times streams were woken: each time another one is the first.
    turn: usize,
    /// There is a version, or is about to be one, of which nobody has been marked yet.
    is_publishing: bool,
}

/// A stream.
#[derive(Debug)]
struct StreamEntry {
    pending: Arc<PendingChanges>,
    /// The number of its view class, once that is known.
    view_class: Option<u32>,
    /// Where it stands, once that is known.
    stand: Option<Arc<Stand>>,
    /// The types of which it watches all there is.
    lists: Wildcards,
    /// The route configurations that it watches, sorted.
    routes: Vec<Arc<str>>,
}

/// Where some stream stands.
#[derive(Debug)]
struct ViewClass {
    view: Arc<ViewKey>,
    /// How many do; never 0.
    streams: usize,
}

/// A name that some stream watches.
#[derive(Debug)]
struct WatchedName {
    name: Arc<str>,
    /// The service it stands for.
    hostname: Hostname,
    /// Sorted; never empty.
    streams: Vec<u32>,
}

/// What a stream has yet to look at.
#[derive(Debug, Default)]
struct PendingChanges {
    dirty: Mutex<Unread>,
    /// Of the one task that serves the stream.
    wake: AtomicWaker,
}

/// A [`Dirty`] in numbers.
#[derive(Debug, Default)]
struct Unread {
    everything: bool,
    lists: Wildcards,
    routes: BTreeSet<Arc<str>>,
    /// Sorted.
    names: Vec<u32>,
    since: Option<Instant>,
    streams: u32,
    /// Something was taken that nobody was passed yet.
    is_in_hand: bool,
    /// For the changes that it is of, the last [`RECEIPTS_MAX`].
    receipts: OwedReceipts,
}

/// Receipts in the order of their changes. Most streams look before there is a second one, and take no memory for the first.
#[derive(Debug, Default)]
struct OwedReceipts {
    first: Option<Receipt>,
    more: Vec<Receipt>,
}

/// One stream's entry in the table; dropping it takes the stream out.
#[derive(Debug)]
pub struct Subscription {
    interest: Arc<Interest>,
    stream: u32,
    pending: Arc<PendingChanges>,
    /// The numbers of the names it watches.
    names: SortedNumbers,
    workload: Option<(ClusterId, WorkloadKey)>,
}

impl Interest {
    /// Enters a stream. Do this before reading the current context, so that no change is missed.
    pub fn subscribe(self: &Arc<Self>, workload: Option<(ClusterId, WorkloadKey)>) -> Subscription {
        let pending = Arc::<PendingChanges>::default();
        let mut table = lock(&self.table);
        let listener = StreamEntry {
            pending: Arc::clone(&pending),
            view_class: None,
            stand: None,
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
            interest: Arc::clone(self),
            stream,
            pending,
            names: SortedNumbers::default(),
            workload,
        }
    }

    /// Marks what changed with every stream that cares, and wakes those. Returns how many. Call it
    /// after the context that holds the change has been published.
    pub fn mark(&self, changes: &Changes) -> usize {
        self.mark_followed(changes, None)
    }

    /// The same; the streams say in `delivery` how their proxies have answered.
    pub fn mark_followed(&self, changes: &Changes, delivery: Option<&Arc<Delivery>>) -> usize {
        let mut table = lock(&self.table);
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
        } else if changes.is_of_services() {
            let moves = changes.may_move();
            let unknown = SeenChanges { everything: moves, ..SeenChanges::default() };
            let is_told = |stream: u32, listener: &StreamEntry| {
                let seen = changes.seen_by(stream, listener.stand.as_ref());
                let unknown = moves.then_some(&unknown);
                listener.pending.add(listener, seen.or(unknown))
            };
            match &reached {
                Some(reached) => marked.extend(reached.iter().copied().filter(|stream| {
                    table.streams.get(*stream).is_some_and(|listener| is_told(*stream, listener))
                })),
                None => {
                    let told = table.streams.iter().filter(|(at, listener)| is_told(*at, listener));
                    marked.extend(told.map(|(stream, _)| stream));
                }
            }
        }
        if changes.is_of_access() && !changes.is_everything() {
            let told = table.concerned(changes.concerned.as_ref()).into_iter().filter(|stream| {
                let Some(listener) = table.streams.get(*stream) else { return false };
                let stand = listener.stand.as_ref();
                let proxy = stand.map(|stand| &*stand.proxy);
                let guarded = SeenChanges::of_access(proxy, &listener.routes);
                !changes.has_same_access(*stream, stand)
                    && listener.pending.add(listener, Some(&guarded))
            });
            marked.extend(told);
        }
        let of_services = changes.services();
        let of_services = of_services
            .iter()
            .filter(|host| !changes.deps.contains(&Dep::Endpoints((*host).clone())));
        for (host, by_name) in changes
            .endpoints()
            .map(|host| (host, true))
            .chain(of_services.map(|host| (host, false)))
        {
            let unaffected_views = changes.unaffected_views.get(host).into_iter().flatten();
            let unaffected_views: Vec<u32> =
                unaffected_views.filter_map(|view| table.by_view.get(view).copied()).collect();
            for name in table.by_hostname.get(host).into_iter().flatten() {
                for stream in table.names.get(*name).iter().flat_map(|watched| &watched.streams) {
                    let Some(listener) = table.streams.get(*stream) else { continue };
                    let is_told = if by_name {
                        listener
                            .view_class
                            .is_none_or(|view_class| !unaffected_views.contains(&view_class))
                    } else {
                        let seen = changes.seen_by(*stream, listener.stand.as_ref());
                        is_reached(stream)
                            && seen.is_none_or(|seen| seen.assignments.contains(host))
                    };
                    if is_told {
                        insert(&mut lock(&listener.pending.dirty).names, *name);
                        marked.push(*stream);
                    }
                }
            }
        }
        let workloads = changes.deps.iter().filter_map(|dep| match dep {
            Dep::Workload(cluster, name) => Some((cluster.clone(), name.clone())),
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
            // Nobody is always the last to be woken.
            let first = table.turn % marked.len();
            marked.rotate_left(first);
        }
        let streams = u32::try_from(marked.len()).expect("their numbers are 32 bits");
        for stream in &marked {
            if let Some(StreamEntry { pending, stand, .. }) = table.streams.get(*stream) {
                // Nobody takes it meanwhile: that needs the table.
                let mut unread = lock(&pending.dirty);
                unread.since = unread.since.or(changes.since);
                unread.streams = streams;
                if let Some(delivery) = delivery {
                    unread.receipts.add(changes.receipt(delivery, *stream, stand.as_ref()));
                }
                drop(unread);
                pending.wake.wake();
            }
        }
        marked.len()
    }

    /// Where streams of these namespaces stand, of all where none are named, and maybe others: those whose place is
    /// known, by their numbers.
    pub fn stands(&self, reach: Option<&BTreeSet<Namespace>>) -> Vec<(u32, Arc<Stand>)> {
        let table = lock(&self.table);
        let of = |stream: u32| Some((stream, table.streams.get(stream)?.stand.clone()?));
        table.reached(reach).into_iter().filter_map(of).collect()
    }

    /// The same of the streams of certain workloads, and maybe of others.
    pub fn stands_of(&self, workloads: &ConcernedWorkloads) -> Vec<(u32, Arc<Stand>)> {
        let table = lock(&self.table);
        let of = |stream: u32| Some((stream, table.streams.get(stream)?.stand.clone()?));
        table.by_workload.concerned(workloads).into_iter().filter_map(of).collect()
    }

    /// Where the streams that watch names of `host` stand; left out is where they watch fewer than `least`.
    pub fn view_classes(&self, host: &Hostname, least: usize) -> Vec<Arc<ViewKey>> {
        let table = lock(&self.table);
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
    /// Says where the stream stands from now on, with all that can matter of its proxy, and whether that is new; with the
    /// labels of its workload where these are known. It hears of what is seen from there; what changed before this, and
    /// differs only there, it may not have heard of.
    pub fn stand(&self, stand: Stand, view: ViewKey, labels: Option<&Labels>) -> bool {
        let mut table = lock(&self.interest.table);
        table.by_workload.place(self.stream, stand.proxy.namespace(), labels);
        let is_new = table.stand(self.stream, Some(view));
        let Some(listener) = table.streams.get_mut(self.stream) else { return is_new };
        if listener.stand.as_deref() == Some(&stand) {
            return is_new;
        }
        listener.stand = Some(Arc::new(stand));
        true
    }

    /// Says of which types it watches all there is. Do this before reading the context that an answer is made
    /// from, as with names.
    pub fn watch_lists(&self, lists: Wildcards) {
        if let Some(listener) = lock(&self.interest.table).streams.get_mut(self.stream) {
            listener.lists = lists;
        }
    }

    /// Watches these route configurations as well, and those no more.
    pub fn watch_routes(&self, new: &[Arc<str>], dropped: &[Arc<str>]) {
        if new.is_empty() && dropped.is_empty() {
            return;
        }
        let mut table = lock(&self.interest.table);
        let Some(listener) = table.streams.get_mut(self.stream) else { return };
        listener.routes.retain(|name| !dropped.contains(name));
        listener.routes.extend(new.iter().cloned());
        listener.routes.sort_unstable();
        listener.routes.dedup();
    }

    /// Watches these names as well, those that stand for a service. Enter a name before reading the context
    /// that its answer is made from.
    pub fn watch(&mut self, names: &[Arc<str>], hostname_of: impl Fn(&str) -> Option<Hostname>) {
        if names.is_empty() {
            return;
        }
        let mut table = lock(&self.interest.table);
        let numbers = names.iter();
        let numbers = numbers.filter_map(|name| table.watch(name, &hostname_of, self.stream));
        let mut numbers: Vec<u32> = numbers.collect();
        drop(table);
        numbers.extend(self.names.iter());
        numbers.sort_unstable();
        numbers.dedup();
        self.names = numbers.into_iter().collect();
    }

    /// Watches these names no more.
    pub fn forget(&mut self, names: &[Arc<str>]) {
        if names.is_empty() {
            return;
        }
        let mut table = lock(&self.interest.table);
        let numbers = names.iter().filter_map(|name| table.by_name.get(name).copied());
        let mut numbers: Vec<u32> = numbers.collect();
        for number in &numbers {
            table.forget_name(*number, self.stream);
            // It may be given to another name from here on.
            remove(&mut lock(&self.pending.dirty).names, *number);
        }
        drop(table);
        numbers.sort_unstable();
        let kept = self.names.iter().filter(|name| numbers.binary_search(name).is_err());
        self.names = kept.collect();
    }

    /// Waits until there is something to look at. Cancel-safe.
    pub async fn changed(&self) {
        poll_fn(|context| {
            // First, so that a mark after the look wakes.
            self.pending.wake.register(context.waker());
            if lock(&self.pending.dirty).is_empty() { Poll::Pending } else { Poll::Ready(()) }
        })
        .await;
    }

    /// Takes what is owed for the changes that there are to look at. Do this before [`Self::take`], so that none is of
    /// a change that was not looked at.
    pub fn take_receipts(&self) -> impl Iterator<Item = Receipt> + use<> {
        let OwedReceipts { first, more } = std::mem::take(&mut lock(&self.pending.dirty).receipts);
        first.into_iter().chain(more)
    }

    /// Takes what there is to look at; read the context after this, and say when it is [`Self::passed_on`].
    pub fn take(&self) -> Dirty {
        // The table first, as everywhere: what a number stands for can't change meanwhile.
        let table = lock(&self.interest.table);
        let unread = {
            let mut dirty = lock(&self.pending.dirty);
            // What is owed for a change that came since is taken with the next.
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
        let mut table = lock(&self.interest.table);
        table.stand(self.stream, None);
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
    /// Notes what its stream sees of a change of services, if that is known, else all that it watches. Returns
    /// whether that is anything.
    fn add(&self, listener: &StreamEntry, seen: Option<&SeenChanges>) -> bool {
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

impl InterestTable {
    /// The streams of certain workloads, and maybe others; all where it is not known which these are.
    fn concerned(&self, workloads: Option<&ConcernedWorkloads>) -> Vec<u32> {
        match workloads {
            Some(workloads) => self.by_workload.concerned(workloads),
            None => self.reached(None),
        }
    }

    /// The streams of certain namespaces, and maybe others; all where none are named.
    fn reached(&self, reach: Option<&BTreeSet<Namespace>>) -> Vec<u32> {
        match reach {
            Some(namespaces) => self.by_workload.in_namespaces(namespaces),
            None => self.streams.iter().map(|(stream, _)| stream).collect(),
        }
    }

    /// Notes where `stream` stands, and whether that is new.
    fn stand(&mut self, stream: u32, view: Option<ViewKey>) -> bool {
        let Some(listener) = self.streams.get_mut(stream) else { return false };
        let before = listener.view_class;
        let is_there = |number| self.view_classes.get(number).map(|view_class| &*view_class.view);
        if before.and_then(is_there) == view.as_ref() {
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
                && let Some(gone) = self.view_classes.leave(number)
            {
                self.by_view.remove(&gone.view);
            }
        }
        true
    }

    /// Notes that `stream` watches `name`, whose number it returns if it stands for a service.
    fn watch(
        &mut self,
        name: &Arc<str>,
        hostname_of: impl Fn(&str) -> Option<Hostname>,
        stream: u32,
    ) -> Option<u32> {
        if let Some(number) = self.by_name.get(name) {
            if let Some(WatchedName { streams, .. }) = self.names.get_mut(*number) {
                if streams.len() == streams.capacity() {
                    // By an eighth at a time: of these lists there are as many as names.
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
            && let Some(gone) = self.names.leave(name)
        {
            self.by_name.remove(&gone.name);
            if let Some(of_host) = self.by_hostname.get_mut(&gone.hostname) {
                of_host.retain(|number| *number != name);
                if of_host.is_empty() {
                    self.by_hostname.remove(&gone.hostname);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
