//! Which configuration a proxy is given: of two, while one is let out to a share of proxies, and that of its cluster where that
//! has traffic objects of its own which count (an edition).
//!
//! A stream asks when it begins, and again whenever it has to look at everything: whoever changes the share has the streams that it
//! concerns do so. While nothing is let out this is one look at an empty place for each stream. Who is in, and when, is decided
//! elsewhere (`strait_mesh::rollout`).

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use tokio::sync::watch;

use crate::Cache;
use strait_mesh::push::PushContext;
use strait_mesh::push::event_loop::HeadOutputs;
use strait_mesh::push::interest::Interest;
use strait_mesh::rollout::Cohort;
use strait_model::{ClusterId, Proxy};

/// Of so many proxies that refuse it is noted what they say.
const REFUSERS_MAX: usize = 1000;
/// How many characters of that.
const ERROR_CHARS_MAX: usize = 400;

/// The proxies that refused something of a configuration, by node id, each with what it said first.
pub type Refusals = watch::Receiver<BTreeMap<Arc<str>, Arc<str>>>;

/// The next configuration, as streams are served it.
#[derive(Debug)]
pub struct ServedHead {
    /// How many there have been, this one included: what is told of an earlier one comes too late.
    pub number: u64,
    context: watch::Receiver<Option<Arc<PushContext>>>,
    interest: Arc<Interest>,
    cache: Arc<Cache>,
    refusals: watch::Sender<BTreeMap<Arc<str>, Arc<str>>>,
}

impl ServedHead {
    /// One that has no version yet, and where its versions are to go.
    pub fn new(number: u64) -> (Arc<Self>, HeadOutputs) {
        let (versions, context) = watch::channel(None);
        let (interest, cache) = (Arc::<Interest>::default(), Arc::<Cache>::default());
        let outputs = HeadOutputs {
            context: versions,
            interest: Arc::clone(&interest),
            sight: Arc::<Cache>::clone(&cache),
        };
        let refusals = watch::Sender::default();
        (Arc::new(Self { number, context, interest, cache, refusals }), outputs)
    }

    /// Its versions; `None` until the first is there.
    pub fn versions(&self) -> &watch::Receiver<Option<Arc<PushContext>>> {
        &self.context
    }

    /// The streams that are served it.
    pub fn interest(&self) -> &Arc<Interest> {
        &self.interest
    }

    /// What is encoded of it.
    pub fn cache(&self) -> &Arc<Cache> {
        &self.cache
    }

    /// Notes that a proxy refused something of it.
    pub fn refused(&self, proxy: &Arc<str>, error: &str) {
        self.refusals.send_if_modified(|all| {
            let is_new = !all.contains_key(proxy) && all.len() < REFUSERS_MAX;
            if is_new {
                let error: String = error.chars().take(ERROR_CHARS_MAX).collect();
                all.insert(Arc::clone(proxy), error.into());
            }
            is_new
        });
    }

    /// Who refused something of it.
    pub fn refusals(&self) -> Refusals {
        self.refusals.subscribe()
    }
}

/// Who is served what.
#[derive(Debug, Default)]
pub struct Heads(RwLock<HeadShare>);

#[derive(Debug, Default)]
struct HeadShare {
    /// What proxies of clusters are served that have traffic objects of their own which count.
    editions: BTreeMap<ClusterId, Arc<ServedHead>>,
    next: Option<(Cohort, Arc<ServedHead>)>,
    /// The number of the last that has ended.
    ended: u64,
}

impl Heads {
    /// What a proxy is served in the place of what all others are; mostly nothing.
    pub fn of(&self, proxy: &Proxy) -> Option<Arc<ServedHead>> {
        let share = self.read();
        if let Some(edition) = share.editions.get(&proxy.cluster) {
            // Until it has a version, its proxies go on with what they have.
            let is_there = edition.versions().borrow().is_some();
            return is_there.then(|| Arc::clone(edition));
        }
        let (_, head) = share.next.as_ref().filter(|(cohort, _)| cohort.contains(proxy))?;
        Some(Arc::clone(head))
    }

    /// Has the proxies of a cluster be served an edition as soon as that has a version.
    pub fn begin_edition(&self, cluster: ClusterId, edition: &Arc<ServedHead>) {
        self.write().editions.insert(cluster, Arc::clone(edition));
    }

    /// Has them be served what all others are; the edition that they were served, whose streams have to be told.
    pub fn end_edition(&self, cluster: &ClusterId) -> Option<Arc<ServedHead>> {
        self.write().editions.remove(cluster)
    }

    /// All editions.
    pub fn editions(&self) -> Vec<Arc<ServedHead>> {
        self.read().editions.values().cloned().collect()
    }

    /// Whether proxies of a cluster are served an edition.
    pub fn has_edition(&self, cluster: &ClusterId) -> bool {
        self.read().editions.contains_key(cluster)
    }

    /// What is served to some.
    pub fn next(&self) -> Option<Arc<ServedHead>> {
        self.read().next.as_ref().map(|(_, head)| Arc::clone(head))
    }

    /// Has a share be served a head from now on, unless that one has ended; who is to look then has to be told. Whether it is.
    pub fn give(&self, cohort: Cohort, head: &Arc<ServedHead>) -> bool {
        let mut share = self.write();
        let is_on = share.ended < head.number;
        if is_on {
            share.next = Some((cohort, Arc::clone(head)));
        }
        is_on
    }

    /// Has nobody be served a head any more; who was has to be told.
    pub fn end(&self, head: &ServedHead) {
        let mut share = self.write();
        share.ended = share.ended.max(head.number);
        share.next.take_if(|(_, next)| next.number <= head.number);
    }

    /// A panic while the lock was held can't leave it half-changed, so poison is ignored.
    fn read(&self) -> RwLockReadGuard<'_, HeadShare> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, HeadShare> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}
