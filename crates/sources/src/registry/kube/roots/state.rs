//! The namespaces that have the roots, and the namespaces that need them. Pure: computes pending
//! writes from reports.
//!
//! Stores a result for each namespace, never a text. Also records reverted writes, so that two
//! writers don't overwrite each other continuously.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::judge::{RootsContent, RootsMap};
use strait_kube_client::{ApiError, Keyed, NamespacedName, WatchEvent};

/// Namespaces without workloads of the mesh; other meshes exclude the same ones.
const EXCLUDED: [&str; 3] = ["kube-node-lease", "kube-public", "local-path-storage"];
/// How often a write may be reverted within [`WINDOW`] before the revert counts as intended.
const UNDONE_MAX: u32 = 3;
const WINDOW: Duration = Duration::from_secs(600);
/// Maximum number of namespaces in a status.
const NAMED: usize = 3;

/// How far the roots have been distributed in one cluster.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RootsStatus {
    /// Number of namespaces that need the roots.
    pub namespaces: usize,
    /// Number of namespaces that have all roots in `istio-ca-root-cert`.
    pub current: usize,
    /// Number of namespaces with another writer's roots there.
    pub foreign: usize,
    /// The first of these namespaces.
    pub foreign_first: Vec<String>,
    /// Number of these namespaces that have Strait's roots in `strait-ca-root-cert`.
    pub beside: usize,
    /// The missing permission, if any.
    pub denied: Option<String>,
}

/// The stored part of a ConfigMap of roots.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ClassifiedMap {
    pub(super) key: NamespacedName,
    pub(super) content: RootsContent,
}

impl Keyed for ClassifiedMap {
    fn key(&self) -> NamespacedName {
        self.key.clone()
    }
}

/// An event of either reader.
pub(super) type MapEvent = WatchEvent<ClassifiedMap>;

/// A name of a namespace.
pub(super) type NamespaceName = Arc<str>;

/// The ConfigMaps with one name.
#[derive(Debug, Default)]
struct KnownConfigMaps {
    /// Whether all of them have been listed once.
    listed: bool,
    content: BTreeMap<NamespaceName, RootsContent>,
    /// How often Strait's roots were reverted, and the start of that count.
    undone: BTreeMap<NamespaceName, (u32, Instant)>,
    /// Why they cannot be read.
    denied: Option<String>,
}

impl KnownConfigMaps {
    fn take(&mut self, event: MapEvent, now: Instant) {
        match event {
            WatchEvent::Restarted { objects, .. } => {
                (self.listed, self.denied) = (true, None);
                let new: BTreeMap<_, _> =
                    objects.into_iter().map(|map| (map.key.namespace, map.content)).collect();
                let before = std::mem::replace(&mut self.content, new);
                for (namespace, content) in before {
                    let after = self.content.get(&namespace).copied();
                    self.compare(&namespace, Some(content), after, now);
                }
            }
            WatchEvent::Applied(map) => {
                let before = self.content.insert(Arc::clone(&map.key.namespace), map.content);
                self.compare(&map.key.namespace, before, Some(map.content), now);
            }
            WatchEvent::Deleted(key) => self.gone(&key.namespace, now),
            WatchEvent::Invalid(field) => {
                if let Some(key) = field.key {
                    self.gone(&key.namespace, now);
                }
            }
            WatchEvent::Answered => self.denied = None,
            WatchEvent::Failed(ApiError::Forbidden(fact) | ApiError::Unauthorized(fact)) => {
                self.denied = Some(fact);
            }
            WatchEvent::Failed(_) => {}
        }
    }

    fn gone(&mut self, namespace: &NamespaceName, now: Instant) {
        let before = self.content.remove(namespace);
        self.compare(namespace, before, None, now);
    }

    fn compare(
        &mut self,
        namespace: &NamespaceName,
        before: Option<RootsContent>,
        after: Option<RootsContent>,
        now: Instant,
    ) {
        if before == Some(RootsContent::Ours) && after != Some(RootsContent::Ours) {
            self.note_undone(namespace, now);
        }
    }

    fn note_undone(&mut self, namespace: &NamespaceName, now: Instant) {
        self.undone.retain(|_, (_, since)| now.duration_since(*since) < WINDOW);
        self.undone.entry(Arc::clone(namespace)).or_insert((0, now)).0 += 1;
    }

    fn is_contested(&self, namespace: &str, now: Instant) -> bool {
        self.undone.get(namespace).is_some_and(|(count, since)| {
            *count >= UNDONE_MAX && now.duration_since(*since) < WINDOW
        })
    }
}

/// The ConfigMaps of roots in a cluster.
#[derive(Debug, Default)]
pub(super) struct RootsState {
    /// The namespaces that need the roots; `None` until they are known.
    namespaces: Option<Arc<BTreeSet<NamespaceName>>>,
    usual: KnownConfigMaps,
    additional: KnownConfigMaps,
    /// Why none may be written.
    denied: Option<String>,
}

impl RootsState {
    /// Sets the namespaces that can be written into.
    pub(super) fn namespaces(&mut self, namespaces: Option<Arc<BTreeSet<NamespaceName>>>) {
        self.namespaces = namespaces;
    }

    /// Applies a reader's event.
    pub(super) fn take(&mut self, map: RootsMap, event: MapEvent, now: Instant) {
        self.maps_mut(map).take(event, now);
    }

    /// Records the content of a ConfigMap after a write.
    pub(super) fn written(
        &mut self,
        namespace: &NamespaceName,
        map: RootsMap,
        content: RootsContent,
    ) {
        self.denied = None;
        self.maps_mut(map).content.insert(Arc::clone(namespace), content);
    }

    /// Records that the API server did not accept a ConfigMap.
    pub(super) fn rejected(&mut self, namespace: &NamespaceName, map: RootsMap, now: Instant) {
        self.maps_mut(map).note_undone(namespace, now);
    }

    /// Records that no ConfigMap may be written.
    pub(super) fn denied(&mut self, fact: String) {
        self.denied = Some(fact);
    }

    /// Whether any namespace needs Strait's roots in addition to another writer's.
    pub(super) fn needs_additional(&self, now: Instant) -> bool {
        self.wanted().any(|namespace| self.is_foreign(namespace, now))
    }

    /// Returns the pending writes in a stable order.
    pub(super) fn pending_writes(&self, now: Instant) -> Vec<(NamespaceName, RootsMap)> {
        let mut pending = Vec::new();
        for namespace in self.wanted() {
            for map in [RootsMap::Usual, RootsMap::Additional] {
                let maps = self.maps(map);
                let is_wanted = match map {
                    RootsMap::Usual => !self.is_foreign(namespace, now),
                    // An existing one is updated: pods may mount it.
                    RootsMap::Additional => {
                        (self.is_foreign(namespace, now) || maps.content.contains_key(namespace))
                            && !maps.is_contested(namespace, now)
                    }
                };
                let is_current = maps.content.get(namespace) == Some(&RootsContent::Ours);
                if maps.listed && is_wanted && !is_current {
                    pending.push((Arc::clone(namespace), map));
                }
            }
        }
        pending
    }

    /// Returns how far the roots have been distributed.
    pub(super) fn status(&self, now: Instant) -> RootsStatus {
        let mut status = RootsStatus {
            denied: self.usual.denied.clone().or_else(|| self.denied.clone()),
            ..RootsStatus::default()
        };
        for namespace in self.wanted() {
            status.namespaces += 1;
            let ours = |map| self.maps(map).content.get(namespace) == Some(&RootsContent::Ours);
            if self.is_foreign(namespace, now) {
                status.foreign += 1;
                status.beside += usize::from(ours(RootsMap::Additional));
                if status.foreign_first.len() < NAMED {
                    status.foreign_first.push(namespace.to_string());
                }
            } else {
                status.current += usize::from(ours(RootsMap::Usual));
            }
        }
        status
    }

    fn wanted(&self) -> impl Iterator<Item = &NamespaceName> {
        let all = self.namespaces.iter().flat_map(|all| all.iter());
        all.filter(|namespace| !EXCLUDED.contains(&&***namespace))
    }

    /// Whether the usual ConfigMap belongs to another writer: it contains another's roots, or
    /// Strait's roots are reverted.
    fn is_foreign(&self, namespace: &str, now: Instant) -> bool {
        let content = self.usual.content.get(namespace);
        content == Some(&RootsContent::Foreign)
            || content != Some(&RootsContent::Ours) && self.usual.is_contested(namespace, now)
    }

    fn maps(&self, map: RootsMap) -> &KnownConfigMaps {
        match map {
            RootsMap::Usual => &self.usual,
            RootsMap::Additional => &self.additional,
        }
    }

    fn maps_mut(&mut self, map: RootsMap) -> &mut KnownConfigMaps {
        match map {
            RootsMap::Usual => &mut self.usual,
            RootsMap::Additional => &mut self.additional,
        }
    }
}
