//! Who cares about what: from a changed name to the streams that must hear of it.
//!
//! A stream says which hostnames and which workload it watches; the event loop says what changed,
//! and only the streams that care are woken. What a stream has yet to look at is a set, never a
//! queue: a slow stream costs one entry per dirty name, skips versions, and never misses the last.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::model::{ClusterId, Hostname, WorkloadKey};

/// What changed since a stream last looked.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Dirty {
    /// Something that can change any resource: mesh settings, networks, the stream's own workload.
    pub everything: bool,
    /// Services came, went, or changed their definition: ports, addresses, accounts, visibility.
    pub definitions: bool,
    /// Services whose endpoints changed, of those the stream watches.
    pub endpoints: BTreeSet<Hostname>,
}

impl Dirty {
    /// Whether there is nothing to look at.
    pub fn is_empty(&self) -> bool {
        !self.everything && !self.definitions && self.endpoints.is_empty()
    }
}

/// What one version changed, as the event loop tells it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Changes {
    /// See [`Dirty::everything`].
    pub everything: bool,
    /// See [`Dirty::definitions`].
    pub definitions: bool,
    /// Services whose endpoints changed.
    pub endpoints: BTreeSet<Hostname>,
    /// Pods whose record changed: their own proxies look at everything again.
    pub workloads: BTreeSet<(ClusterId, WorkloadKey)>,
}

impl Changes {
    /// Whether nothing changed.
    pub fn is_empty(&self) -> bool {
        !self.everything
            && !self.definitions
            && self.endpoints.is_empty()
            && self.workloads.is_empty()
    }
}

/// The table of who watches what. The lock is held for look-ups only, never across an await.
#[derive(Debug, Default)]
pub struct Interest {
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    next: u64,
    streams: BTreeMap<u64, Arc<Pending>>,
    hosts: BTreeMap<Hostname, BTreeSet<u64>>,
    workloads: BTreeMap<(ClusterId, WorkloadKey), BTreeSet<u64>>,
}

#[derive(Debug, Default)]
struct Pending {
    dirty: Mutex<Dirty>,
    wake: Notify,
}

/// One stream's entry in the table; dropping it takes the stream out.
#[derive(Debug)]
pub struct Subscription {
    interest: Arc<Interest>,
    stream: u64,
    pending: Arc<Pending>,
    hosts: BTreeSet<Hostname>,
    workload: Option<(ClusterId, WorkloadKey)>,
}

impl Interest {
    /// Enters a stream. Do this before reading the current context, so that no change is missed.
    pub fn subscribe(self: &Arc<Self>, workload: Option<(ClusterId, WorkloadKey)>) -> Subscription {
        let pending = Arc::<Pending>::default();
        let mut table = lock(&self.table);
        let stream = table.next;
        table.next += 1;
        table.streams.insert(stream, Arc::clone(&pending));
        if let Some(workload) = &workload {
            table.workloads.entry(workload.clone()).or_default().insert(stream);
        }
        drop(table);
        Subscription {
            interest: Arc::clone(self),
            stream,
            pending,
            hosts: BTreeSet::new(),
            workload,
        }
    }

    /// Marks what changed with every stream that cares, and wakes those. Returns how many. Call it
    /// after the context that holds the change has been published.
    pub fn mark(&self, changes: &Changes) -> usize {
        let table = lock(&self.table);
        let mut woken = BTreeSet::new();
        let mut mark = |stream: u64, note: &dyn Fn(&mut Dirty)| {
            if let Some(pending) = table.streams.get(&stream) {
                note(&mut lock(&pending.dirty));
                woken.insert(stream);
            }
        };
        if changes.everything || changes.definitions {
            for stream in table.streams.keys() {
                mark(*stream, &|dirty| {
                    dirty.everything |= changes.everything;
                    dirty.definitions |= changes.definitions;
                });
            }
        }
        for host in &changes.endpoints {
            for stream in table.hosts.get(host).into_iter().flatten() {
                mark(*stream, &|dirty| {
                    dirty.endpoints.insert(host.clone());
                });
            }
        }
        for workload in &changes.workloads {
            for stream in table.workloads.get(workload).into_iter().flatten() {
                mark(*stream, &|dirty| dirty.everything = true);
            }
        }
        for stream in &woken {
            if let Some(pending) = table.streams.get(stream) {
                pending.wake.notify_one();
            }
        }
        woken.len()
    }
}

impl Subscription {
    /// Watches exactly these hostnames from now on. Enter a name before reading the context that
    /// its answer is made from.
    pub fn watch(&mut self, hosts: BTreeSet<Hostname>) {
        let mut table = lock(&self.interest.table);
        for gone in self.hosts.difference(&hosts) {
            table.forget_host(gone, self.stream);
        }
        for new in hosts.difference(&self.hosts) {
            table.hosts.entry(new.clone()).or_default().insert(self.stream);
        }
        drop(table);
        self.hosts = hosts;
    }

    /// Waits until there is something to look at. Cancel-safe.
    pub async fn changed(&self) {
        loop {
            let woken = self.pending.wake.notified();
            if !lock(&self.pending.dirty).is_empty() {
                return;
            }
            woken.await;
        }
    }

    /// Takes what there is to look at; read the context after this.
    pub fn take(&self) -> Dirty {
        std::mem::take(&mut *lock(&self.pending.dirty))
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        let mut table = lock(&self.interest.table);
        table.streams.remove(&self.stream);
        for host in &self.hosts {
            table.forget_host(host, self.stream);
        }
        if let Some(workload) = &self.workload
            && let Some(streams) = table.workloads.get_mut(workload)
        {
            streams.remove(&self.stream);
            if streams.is_empty() {
                table.workloads.remove(workload);
            }
        }
    }
}

impl Table {
    fn forget_host(&mut self, host: &Hostname, stream: u64) {
        if let Some(streams) = self.hosts.get_mut(host) {
            streams.remove(&stream);
            if streams.is_empty() {
                self.hosts.remove(host);
            }
        }
    }
}

/// A panic while the lock was held can't leave these sets half-changed, so poison is ignored.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hosts(names: &[&str]) -> BTreeSet<Hostname> {
        names.iter().map(|name| Hostname::from(*name)).collect()
    }

    fn endpoints_of(names: &[&str]) -> Changes {
        Changes { endpoints: hosts(names), ..Changes::default() }
    }

    #[test]
    fn only_streams_that_watch_a_host_hear_of_it() {
        let interest = Arc::new(Interest::default());
        let mut a = interest.subscribe(None);
        let b = interest.subscribe(None);
        a.watch(hosts(&["x", "y"]));
        assert_eq!(interest.mark(&endpoints_of(&["x", "z"])), 1);
        assert_eq!(a.take().endpoints, hosts(&["x"]));
        assert!(b.take().is_empty());
        a.watch(hosts(&["y"]));
        assert_eq!(interest.mark(&endpoints_of(&["x"])), 0);
    }

    #[test]
    fn a_definition_reaches_everybody_and_a_workload_its_own_proxy() {
        let interest = Arc::new(Interest::default());
        let key = (ClusterId::from("east"), WorkloadKey::new("ns", "pod"));
        let own = interest.subscribe(Some(key.clone()));
        let other = interest.subscribe(None);
        let changed = Changes { workloads: [key].into(), ..Changes::default() };
        assert_eq!(interest.mark(&changed), 1);
        assert!(own.take().everything);
        interest.mark(&Changes { definitions: true, ..Changes::default() });
        assert!(own.take().definitions && other.take().definitions);
    }

    #[test]
    fn a_stream_that_ended_leaves_nothing_behind() {
        let interest = Arc::new(Interest::default());
        let key = (ClusterId::from("east"), WorkloadKey::new("ns", "pod"));
        let mut stream = interest.subscribe(Some(key));
        stream.watch(hosts(&["x"]));
        drop(stream);
        let table = lock(&interest.table);
        assert!(table.streams.is_empty() && table.hosts.is_empty() && table.workloads.is_empty());
    }

    #[tokio::test]
    async fn a_mark_before_the_wait_is_not_lost() {
        let interest = Arc::new(Interest::default());
        let stream = interest.subscribe(None);
        interest.mark(&Changes { everything: true, ..Changes::default() });
        stream.changed().await;
        assert!(stream.take().everything);
    }
}
