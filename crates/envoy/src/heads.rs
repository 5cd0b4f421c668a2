//! Assigns configurations to proxies: the next configuration while it is rolled out gradually, or
//! the configuration of a cluster that has its own active traffic objects (an edition).
//!
//! A stream looks up its configuration when it starts and whenever it re-evaluates all its
//! resources. Code that changes the assignment must trigger this for the affected streams. Without
//! a rollout the lookup reads an empty map. `strait_mesh::rollout` decides which proxies are
//! included, and when.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use tokio::sync::watch;

use crate::Cache;
use strait_mesh::push::PushContext;
use strait_mesh::push::event_loop::VariantOutputs;
use strait_mesh::push::subscription_index::SubscriptionIndex;
use strait_mesh::rollout::Cohort;
use strait_model::{ClusterId, Proxy};

/// Maximum number of proxies whose refusal is recorded.
const REFUSERS_MAX: usize = 1000;
/// Maximum length of a recorded error, in characters.
const ERROR_CHARS_MAX: usize = 400;

/// The proxies that refused a resource of a configuration, by node ID, with the first error of
/// each.
pub type Refusals = watch::Receiver<BTreeMap<Arc<str>, Arc<str>>>;

/// A configuration that some streams are served.
#[derive(Debug)]
pub struct ConfigVariant {
    /// The sequence number of this configuration. Reports about earlier configurations are
    /// outdated.
    pub number: u64,
    context: watch::Receiver<Option<Arc<PushContext>>>,
    subscription_index: Arc<SubscriptionIndex>,
    cache: Arc<Cache>,
    refusals: watch::Sender<BTreeMap<Arc<str>, Arc<str>>>,
}

impl ConfigVariant {
    /// Creates a configuration without a version. Its versions are published through the returned
    /// outputs.
    pub fn new(number: u64) -> (Arc<Self>, VariantOutputs) {
        let (versions, context) = watch::channel(None);
        let (subscription_index, cache) =
            (Arc::<SubscriptionIndex>::default(), Arc::<Cache>::default());
        let outputs = VariantOutputs {
            context: versions,
            subscription_index: Arc::clone(&subscription_index),
            change_impact: Arc::<Cache>::clone(&cache),
        };
        let refusals = watch::Sender::default();
        (Arc::new(Self { number, context, subscription_index, cache, refusals }), outputs)
    }

    /// Returns the versions; `None` before the first one.
    pub fn versions(&self) -> &watch::Receiver<Option<Arc<PushContext>>> {
        &self.context
    }

    /// Returns the subscriptions of the streams that use this configuration.
    pub fn subscription_index(&self) -> &Arc<SubscriptionIndex> {
        &self.subscription_index
    }

    /// Returns the encoded resources of this configuration.
    pub fn cache(&self) -> &Arc<Cache> {
        &self.cache
    }

    /// Records that a proxy refused a resource.
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

    /// Returns the refusals.
    pub fn refusals(&self) -> Refusals {
        self.refusals.subscribe()
    }
}

/// The assignment of configurations to proxies.
#[derive(Debug, Default)]
pub struct ConfigVariants(RwLock<HeadShare>);

#[derive(Debug, Default)]
struct HeadShare {
    /// The editions of clusters that have their own active traffic objects.
    editions: BTreeMap<ClusterId, Arc<ConfigVariant>>,
    next: Option<(Cohort, Arc<ConfigVariant>)>,
    /// The number of the last configuration that has ended.
    ended: u64,
}

impl ConfigVariants {
    /// Returns the configuration that a proxy uses instead of the general one, if any.
    pub fn variant_for(&self, proxy: &Proxy) -> Option<Arc<ConfigVariant>> {
        let share = self.read();
        if let Some(edition) = share.editions.get(&proxy.cluster) {
            // Until the edition has a version, its proxies keep their configuration.
            let is_there = edition.versions().borrow().is_some();
            return is_there.then(|| Arc::clone(edition));
        }
        let (_, head) = share.next.as_ref().filter(|(cohort, _)| cohort.contains(proxy))?;
        Some(Arc::clone(head))
    }

    /// Assigns an edition to the proxies of a cluster as soon as it has a version.
    pub fn begin_edition(&self, cluster: ClusterId, edition: &Arc<ConfigVariant>) {
        self.write().editions.insert(cluster, Arc::clone(edition));
    }

    /// Removes the edition of a cluster and returns it. The caller must notify its streams.
    pub fn end_edition(&self, cluster: &ClusterId) -> Option<Arc<ConfigVariant>> {
        self.write().editions.remove(cluster)
    }

    /// Returns all editions.
    pub fn editions(&self) -> Vec<Arc<ConfigVariant>> {
        self.read().editions.values().cloned().collect()
    }

    /// Returns whether a cluster has an edition.
    pub fn has_edition(&self, cluster: &ClusterId) -> bool {
        self.read().editions.contains_key(cluster)
    }

    /// Returns the next configuration during a rollout.
    pub fn next(&self) -> Option<Arc<ConfigVariant>> {
        self.read().next.as_ref().map(|(_, head)| Arc::clone(head))
    }

    /// Assigns a configuration to a cohort unless the configuration has ended. Returns whether it
    /// is assigned. The caller must notify the affected streams.
    pub fn give(&self, cohort: Cohort, head: &Arc<ConfigVariant>) -> bool {
        let mut share = self.write();
        let is_on = share.ended < head.number;
        if is_on {
            share.next = Some((cohort, Arc::clone(head)));
        }
        is_on
    }

    /// Ends a configuration. The caller must notify its streams.
    pub fn end(&self, head: &ConfigVariant) {
        let mut share = self.write();
        share.ended = share.ended.max(head.number);
        share.next.take_if(|(_, next)| next.number <= head.number);
    }

    /// Ignores lock poisoning: a panic cannot leave the value half-changed.
    fn read(&self) -> RwLockReadGuard<'_, HeadShare> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, HeadShare> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}
