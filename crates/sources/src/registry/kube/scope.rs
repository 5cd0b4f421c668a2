//! The settings for reading the objects of one cluster, and the values that objects share.
//!
//! Many texts repeat: nodes and zones within a cluster; namespaces, accounts, labels, definitions
//! of services and profiles of pods in all clusters that run the same workloads. Each is stored
//! once ([`Scope`] and [`SharedPools`]) while it is in use.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::hash::{BuildHasher, BuildHasherDefault, Hasher, RandomState};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

use xxhash_rust::xxh3::{xxh3_64_with_seed, xxh3_128_with_seed};

use strait_kube_client::{BorrowedText, Identity, NamespacedName, Pairs};
use strait_model::{
    Definition, EndpointGroup, EndpointMetadata, Labels, Locality, Namespace, Profile, RawService,
};

/// A pool is searched for unused values when it has grown beyond this size, and beyond twice its
/// size after the last search.
const POOL_MIN: usize = 64;
/// Number of parts of a pool that all clusters use, to reduce lock contention.
const PARTS: usize = 16;

/// The settings for reading objects.
#[derive(Debug, Clone)]
pub(super) struct ReadSettings {
    /// The DNS domain of services.
    pub(super) domain: String,
    /// The trust domain of identities.
    pub(super) trust_domain: String,
    /// The namespace whose label names the network.
    pub(super) system_namespace: String,
    /// Whether the names of workloads in telemetry are sent.
    pub(super) metadata: EndpointMetadata,
    /// The name of the cluster set, which Strait's objects have as a label.
    pub(super) clusterset: String,
}

/// The common part of the names of a set of pods: their namespace, and the name up to the part that
/// is unique to a pod.
pub(super) type Set = (Namespace, Box<str>);

/// The settings and shared values for reading the objects of one cluster.
#[derive(Debug)]
pub(super) struct Scope {
    pub(super) settings: ReadSettings,
    common: Arc<SharedPools>,
    places: Mutex<Places>,
}

/// The values that objects of all clusters share. Values that are no longer used are removed when
/// the pools are searched: as they grow, and whenever the reading of a cluster begins or ends.
#[derive(Debug)]
pub(super) struct SharedPools {
    /// Secret, so that no client can choose texts that collide.
    seed: u64,
    hasher: RandomState,
    texts: Pools<u64, str>,
    profiles: Pools<u128, Profile>,
    definitions: Pools<u64, Definition>,
    raw_services: Pools<u64, RawService>,
    service_labels: Pools<u64, Labels>,
    ports: Pools<u64, [(Arc<str>, u16)]>,
    sets: Pools<u64, [Set]>,
    kinds: Pools<u64, [EndpointGroup]>,
}

/// The values that all clusters of this process share.
pub(super) static COMMON: LazyLock<Arc<SharedPools>> = LazyLock::new(Arc::default);

#[derive(Debug, Default)]
struct Places {
    nodes: Pool<u64, Arc<str>>,
    zones: Pool<u64, Locality>,
}

impl Default for SharedPools {
    fn default() -> Self {
        Self {
            seed: rand::random(),
            hasher: RandomState::new(),
            texts: Pools::default(),
            profiles: Pools::default(),
            definitions: Pools::default(),
            raw_services: Pools::default(),
            service_labels: Pools::default(),
            ports: Pools::default(),
            sets: Pools::default(),
            kinds: Pools::default(),
        }
    }
}

impl SharedPools {
    fn text(&self, text: &str) -> Arc<str> {
        let hash = xxh3_64_with_seed(text.as_bytes(), self.seed);
        self.texts.intern(hash, text)
    }

    /// Returns the shared value that equals this one.
    fn intern<T, V>(&self, pools: &Pools<u64, T>, value: V) -> Arc<T>
    where
        T: Eq + std::hash::Hash + ?Sized,
        V: Borrow<T> + Into<Arc<T>>,
    {
        pools.intern(self.hasher.hash_one(value.borrow()), value)
    }

    /// Removes unused values. Returns how many are left. Texts come last, because all other values
    /// use them.
    fn sweep(&self) -> usize {
        let lists = self.ports.sweep() + self.sets.sweep() + self.kinds.sweep();
        let lists = lists + self.raw_services.sweep() + self.service_labels.sweep();
        lists + self.profiles.sweep() + self.definitions.sweep() + self.texts.sweep()
    }
}

impl Drop for Scope {
    fn drop(&mut self) {
        self.common.sweep();
    }
}

impl Scope {
    pub(super) fn new(settings: ReadSettings, common: Arc<SharedPools>) -> Self {
        common.sweep();
        Self { settings, common, places: Mutex::default() }
    }

    /// Returns the shared value of this text. A text whose hash collides with another gets a
    /// separate value.
    pub(super) fn text(&self, text: &str) -> Arc<str> {
        self.common.text(text)
    }

    /// Locks the names of nodes, zones and namespaces, for a caller that needs many.
    pub(super) fn names(&self) -> InternedNames<'_> {
        // A pool is consistent even if a thread that held the lock panicked.
        let places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        InternedNames { common: &self.common, places }
    }

    /// Returns the shared value of a node's name; `None` if it is not valid UTF-8.
    pub(super) fn node(&self, name: &[u8]) -> Option<Arc<Arc<str>>> {
        self.names().node(name)
    }

    /// Returns the shared profile that `text` encodes completely; `make` creates it. It is
    /// identified by a 128-bit hash with a secret seed: profiles with equal hashes are treated as
    /// equal.
    pub(super) fn profile(&self, text: &[u8], make: impl FnOnce() -> Profile) -> Arc<Profile> {
        let hash = xxh3_128_with_seed(text, self.common.seed);
        let profiles = &self.common.profiles;
        if let Some(shared) = profiles.part(hash).get(hash) {
            return Arc::clone(shared);
        }
        let new = Arc::new(make());
        profiles.part(hash).put(hash, &new);
        new
    }

    /// Returns the shared value of this definition. A definition whose hash collides with another
    /// gets a separate value.
    pub(super) fn definition(&self, definition: Definition) -> Arc<Definition> {
        self.common.intern(&self.common.definitions, definition)
    }

    /// Returns the shared value of these fields of a Service.
    pub(super) fn raw_service(&self, service: RawService) -> Arc<RawService> {
        self.common.intern(&self.common.raw_services, service)
    }

    /// Returns the shared list of these ports, by name and number.
    pub(super) fn ports(&self, ports: Vec<(Arc<str>, u16)>) -> Arc<[(Arc<str>, u16)]> {
        self.common.intern(&self.common.ports, ports)
    }

    /// Returns the shared list of these sets of pods.
    pub(super) fn sets(&self, sets: Vec<Set>) -> Arc<[Set]> {
        self.common.intern(&self.common.sets, sets)
    }

    /// Returns the shared list of these groups of endpoints.
    pub(super) fn kinds(&self, kinds: Vec<EndpointGroup>) -> Arc<[EndpointGroup]> {
        self.common.intern(&self.common.kinds, kinds)
    }

    /// Returns labels with shared texts.
    pub(super) fn labels(&self, pairs: Pairs<'_>) -> Labels {
        self.sorted_labels(pairs.sorted())
    }

    /// Returns labels with shared texts, from the result of [`Pairs::sorted`].
    pub(super) fn sorted_labels(&self, pairs: Vec<(BorrowedText<'_>, BorrowedText<'_>)>) -> Labels {
        let pairs = pairs.into_iter();
        pairs.map(|(name, value)| (self.text(&name), self.text(&value))).collect()
    }

    /// Returns the shared value of all labels of a Service.
    pub(super) fn service_labels(&self, pairs: Pairs<'_>) -> Arc<Labels> {
        self.common.intern(&self.common.service_labels, self.labels(pairs))
    }

    /// Returns the key of an object. Its name is not shared.
    pub(super) fn key(&self, identity: Identity<'_>) -> NamespacedName {
        NamespacedName { namespace: self.text(identity.namespace), name: identity.name.into() }
    }

    /// The SPIFFE ID of a service account.
    pub(super) fn identity(&self, namespace: &str, service_account: &str) -> Arc<str> {
        let trust_domain = &self.settings.trust_domain;
        self.text(&format!("spiffe://{trust_domain}/ns/{namespace}/sa/{service_account}"))
    }

    /// Returns the number of stored values.
    #[cfg(test)]
    pub(super) fn value_count(&self) -> usize {
        let Places { nodes, zones } = &mut *self.names().places;
        zones.sweep();
        nodes.sweep();
        zones.values.len() + nodes.values.len() + self.common.sweep()
    }
}

/// The locked names of one cluster's nodes and zones, with the shared texts.
pub(super) struct InternedNames<'a> {
    common: &'a SharedPools,
    places: MutexGuard<'a, Places>,
}

impl InternedNames<'_> {
    /// See [`Scope::text`].
    pub(super) fn text(&mut self, text: &str) -> Arc<str> {
        self.common.text(text)
    }

    /// See [`Scope::node`].
    pub(super) fn node(&mut self, name: &[u8]) -> Option<Arc<Arc<str>>> {
        let nodes = &mut self.places.nodes;
        let hash = xxh3_64_with_seed(name, self.common.seed);
        if let Some(shared) = nodes.get(hash).filter(|shared| shared.as_bytes() == name) {
            return Some(Arc::clone(shared));
        }
        let new = Arc::new(self.common.text(std::str::from_utf8(name).ok()?));
        nodes.put(hash, &new);
        Some(new)
    }

    /// Returns the shared locality with only this zone; `None` if it is not valid UTF-8.
    pub(super) fn zone(&mut self, zone: &[u8]) -> Option<Arc<Locality>> {
        let zones = &mut self.places.zones;
        let hash = xxh3_64_with_seed(zone, self.common.seed);
        if let Some(shared) = zones.get(hash).filter(|shared| shared.zone.as_bytes() == zone) {
            return Some(Arc::clone(shared));
        }
        let zone = self.common.text(std::str::from_utf8(zone).ok()?);
        let new = Arc::new(Locality { zone, ..Locality::default() });
        zones.put(hash, &new);
        Some(new)
    }
}

/// A pool for concurrent use, split into parts by hash.
#[derive(Debug)]
struct Pools<H, T: ?Sized>([Mutex<Pool<H, T>>; PARTS]);

impl<H, T: ?Sized> Default for Pools<H, T> {
    fn default() -> Self {
        Self(std::array::from_fn(|_| Mutex::default()))
    }
}

impl<H: Copy + Into<u128> + Eq + std::hash::Hash, T: ?Sized> Pools<H, T> {
    /// Locks the part that contains a hash.
    fn part(&self, hash: H) -> MutexGuard<'_, Pool<H, T>> {
        // Uses bits that the hash table of the part uses neither first nor last.
        let at = usize::try_from(hash.into() >> 40 & 0xff).unwrap_or_default();
        self.0[at % PARTS].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the shared value that equals this one and has this hash. A value whose hash collides
    /// with another gets a separate one.
    fn intern<V: Borrow<T> + Into<Arc<T>>>(&self, hash: H, value: V) -> Arc<T>
    where
        T: Eq,
    {
        let mut part = self.part(hash);
        if let Some(shared) = part.get(hash).filter(|shared| ***shared == *value.borrow()) {
            return Arc::clone(shared);
        }
        let new = value.into();
        part.put(hash, &new);
        new
    }

    fn sweep(&self) -> usize {
        let parts = self.0.iter().map(|part| part.lock().unwrap_or_else(PoisonError::into_inner));
        parts.map(|mut part| part.sweep()).sum()
    }
}

/// Values by the hash of their content.
#[derive(Debug)]
struct Pool<H, T: ?Sized> {
    values: HashMap<H, Arc<T>, BuildHasherDefault<AsItIs>>,
    sweep_at: usize,
}

impl<H, T: ?Sized> Default for Pool<H, T> {
    fn default() -> Self {
        Self { values: HashMap::default(), sweep_at: POOL_MIN }
    }
}

impl<H: Eq + std::hash::Hash, T: ?Sized> Pool<H, T> {
    fn get(&self, hash: H) -> Option<&Arc<T>> {
        self.values.get(&hash)
    }

    fn put(&mut self, hash: H, value: &Arc<T>) {
        if self.values.len() >= self.sweep_at {
            self.sweep();
        }
        self.values.entry(hash).or_insert_with(|| Arc::clone(value));
    }

    /// Removes unused values. Returns how many are left.
    fn sweep(&mut self) -> usize {
        self.values.retain(|_, value| Arc::strong_count(value) > 1);
        self.sweep_at = (2 * self.values.len()).max(POOL_MIN);
        self.values.shrink_to(self.sweep_at);
        self.values.len()
    }
}

/// A hasher for keys that are already hashes.
#[derive(Debug, Default)]
struct AsItIs(u64);

impl Hasher for AsItIs {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }

    fn write_u128(&mut self, hash: u128) {
        // Either half is suitable.
        self.0 = u64::try_from(hash & u128::from(u64::MAX)).unwrap_or_default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_values_are_shared_while_they_are_used() {
        let settings = ReadSettings {
            domain: String::new(),
            trust_domain: "td".into(),
            system_namespace: String::new(),
            metadata: EndpointMetadata::Lean,
            clusterset: String::new(),
        };
        let scope = Scope::new(settings, Arc::default());
        let (a, b) = (scope.text("shop"), scope.text("shop"));
        assert!(Arc::ptr_eq(&a, &b) && !Arc::ptr_eq(&a, &scope.text("other")));
        let zone = scope.names().zone(b"z").expect("text");
        let node = scope.node(b"n").expect("text");
        assert!(scope.names().zone(b"z").is_some_and(|same| Arc::ptr_eq(&zone, &same)));
        assert!(scope.node(b"n").is_some_and(|same| Arc::ptr_eq(&node, &same)));
        assert!(scope.node(b"\xff").is_none());
        let profile = scope.profile(b"x", Profile::default);
        assert!(Arc::ptr_eq(&profile, &scope.profile(b"x", Profile::default)));
        drop((a, b, zone, node, profile));
        assert_eq!(scope.value_count(), 0);
        for number in 0..100_000 {
            scope.text(&number.to_string());
        }
        let pool_len = |part: &Mutex<Pool<u64, str>>| part.lock().expect("whole").values.len();
        let texts: usize = scope.common.texts.0.iter().map(pool_len).sum();
        assert!(texts <= PARTS * POOL_MIN, "unused values are removed automatically");
    }

    #[test]
    fn clusters_share_equal_values_and_a_removed_cluster_leaves_none() {
        let common: Arc<SharedPools> = Arc::default();
        let scope = |trust_domain: &str| {
            let (domain, trust_domain) = ("cluster.local".into(), trust_domain.into());
            let (system_namespace, metadata) = (String::new(), EndpointMetadata::Lean);
            let clusterset = String::new();
            let settings =
                ReadSettings { domain, trust_domain, system_namespace, metadata, clusterset };
            Scope::new(settings, Arc::clone(&common))
        };
        let (east, west) = (scope("td"), scope("td"));
        let hostname = |scope: &Scope, name: &str| {
            scope.definition(strait_model::testing::service(name).definition.as_ref().clone())
        };
        let (a, b) = (hostname(&east, "web.shop"), hostname(&west, "web.shop"));
        assert!(Arc::ptr_eq(&a, &b) && !Arc::ptr_eq(&a, &hostname(&west, "db.shop")));
        assert!(Arc::ptr_eq(&east.text("shop"), &west.text("shop")));
        drop((b, west));
        let texts = |scope: &Scope| scope.common.definitions.sweep();
        assert_eq!(texts(&east), 1);
        drop((a, east));
        assert_eq!(common.sweep(), 0);
    }
}
