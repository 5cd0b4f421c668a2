//! What the objects of one cluster are read with, and what their parts share.
//!
//! Texts repeat without end: namespaces, nodes, zones, accounts, labels. Here each is held once for
//! the cluster, for as long as anybody uses it.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use xxhash_rust::xxh3::{xxh3_64_with_seed, xxh3_128_with_seed};

use crate::apiserver::{Identity, Key, Pairs};
use crate::model::{Labels, Locality, Profile};

/// A pool is looked through for what nobody uses any more when it has grown beyond this, and to twice
/// what was left the last time.
const POOL_MIN: usize = 1024;

/// What objects are read with.
#[derive(Debug, Clone)]
pub(super) struct Settings {
    /// The DNS domain of services.
    pub(super) domain: String,
    /// The trust domain of identities.
    pub(super) trust_domain: String,
    /// The namespace whose label names the network.
    pub(super) system_namespace: String,
}

/// What the objects of one cluster are read with.
#[derive(Debug)]
pub(super) struct Scope {
    pub(super) settings: Settings,
    pools: Mutex<Pools>,
}

#[derive(Debug)]
struct Pools {
    /// Nobody outside knows it, so nobody can choose texts that collide.
    seed: u64,
    texts: Pool<u64, Arc<str>>,
    nodes: Pool<u64, Arc<Arc<str>>>,
    zones: Pool<u64, Arc<Locality>>,
    profiles: Pool<u128, Arc<Profile>>,
}

impl Scope {
    pub(super) fn new(settings: Settings) -> Self {
        let pools = Pools {
            seed: rand::random(),
            texts: Pool::default(),
            nodes: Pool::default(),
            zones: Pool::default(),
            profiles: Pool::default(),
        };
        Self { settings, pools: Mutex::new(pools) }
    }

    /// The one value of this text. Text that collides with another is a value of its own.
    pub(super) fn text(&self, text: &str) -> Arc<str> {
        self.pools().text(text)
    }

    /// The names of nodes, zones and namespaces, for somebody who needs many.
    pub(super) fn names(&self) -> Names<'_> {
        Names(self.pools())
    }

    /// The one value of a node's name; `None` where it is not in UTF-8.
    pub(super) fn node(&self, name: &[u8]) -> Option<Arc<Arc<str>>> {
        self.names().node(name)
    }

    /// The one profile that is written as `text`, which says all of it; `make` makes it. It is known
    /// by a hash of 128 bits with a secret seed: two that have the same are the same.
    pub(super) fn profile(&self, text: &[u8], make: impl FnOnce() -> Profile) -> Arc<Profile> {
        let hash = {
            let pools = self.pools();
            let hash = xxh3_128_with_seed(text, pools.seed);
            if let Some(held) = pools.profiles.get(hash) {
                return Arc::clone(held);
            }
            hash
        };
        let new = Arc::new(make());
        self.pools().profiles.put(hash, &new);
        new
    }

    /// Labels whose texts are shared.
    pub(super) fn labels(&self, pairs: Pairs<'_>) -> Labels {
        let mut pools = self.pools();
        let pairs = pairs.sorted().into_iter();
        pairs.map(|(name, value)| (pools.text(&name), pools.text(&value))).collect()
    }

    /// The key of an object. Its name is its own.
    pub(super) fn key(&self, identity: Identity<'_>) -> Key {
        Key { namespace: self.text(identity.namespace), name: identity.name.into() }
    }

    /// The SPIFFE ID of a service account.
    pub(super) fn identity(&self, namespace: &str, service_account: &str) -> Arc<str> {
        let trust_domain = &self.settings.trust_domain;
        self.text(&format!("spiffe://{trust_domain}/ns/{namespace}/sa/{service_account}"))
    }

    fn pools(&self) -> MutexGuard<'_, Pools> {
        // A pool is whole whatever happened to whoever held it.
        self.pools.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many values are held.
    #[cfg(test)]
    pub(super) fn held(&self) -> usize {
        let mut pools = self.pools();
        let Pools { texts, nodes, zones, profiles, .. } = &mut *pools;
        profiles.sweep();
        zones.sweep();
        nodes.sweep();
        texts.sweep();
        profiles.held.len() + zones.held.len() + nodes.held.len() + texts.held.len()
    }
}

/// The pools, held.
pub(super) struct Names<'a>(MutexGuard<'a, Pools>);

impl Names<'_> {
    /// See [`Scope::text`].
    pub(super) fn text(&mut self, text: &str) -> Arc<str> {
        self.0.text(text)
    }

    /// See [`Scope::node`].
    pub(super) fn node(&mut self, name: &[u8]) -> Option<Arc<Arc<str>>> {
        let pools = &mut *self.0;
        let hash = xxh3_64_with_seed(name, pools.seed);
        if let Some(held) = pools.nodes.get(hash).filter(|held| held.as_bytes() == name) {
            return Some(Arc::clone(held));
        }
        let new = Arc::new(pools.text(std::str::from_utf8(name).ok()?));
        pools.nodes.put(hash, &new);
        Some(new)
    }

    /// The one locality of which only the zone is known; `None` where it is not in UTF-8.
    pub(super) fn zone(&mut self, zone: &[u8]) -> Option<Arc<Locality>> {
        let pools = &mut *self.0;
        let hash = xxh3_64_with_seed(zone, pools.seed);
        if let Some(held) = pools.zones.get(hash).filter(|held| held.zone.as_bytes() == zone) {
            return Some(Arc::clone(held));
        }
        let zone = pools.text(std::str::from_utf8(zone).ok()?);
        let new = Arc::new(Locality { zone, ..Locality::default() });
        pools.zones.put(hash, &new);
        Some(new)
    }
}

impl Pools {
    fn text(&mut self, text: &str) -> Arc<str> {
        let hash = xxh3_64_with_seed(text.as_bytes(), self.seed);
        if let Some(held) = self.texts.get(hash).filter(|held| ***held == *text) {
            return Arc::clone(held);
        }
        let new = Arc::from(text);
        self.texts.put(hash, &new);
        new
    }
}

/// Values by the hash of what they are.
#[derive(Debug)]
struct Pool<H, V> {
    held: HashMap<H, V, BuildHasherDefault<AsItIs>>,
    sweep_at: usize,
}

impl<H, V> Default for Pool<H, V> {
    fn default() -> Self {
        Self { held: HashMap::default(), sweep_at: POOL_MIN }
    }
}

impl<H: Eq + std::hash::Hash, T: ?Sized> Pool<H, Arc<T>> {
    fn get(&self, hash: H) -> Option<&Arc<T>> {
        self.held.get(&hash)
    }

    fn put(&mut self, hash: H, value: &Arc<T>) {
        if self.held.len() >= self.sweep_at {
            self.sweep();
        }
        self.held.entry(hash).or_insert_with(|| Arc::clone(value));
    }

    /// Drops what nobody uses.
    fn sweep(&mut self) {
        self.held.retain(|_, value| Arc::strong_count(value) > 1);
        self.sweep_at = (2 * self.held.len()).max(POOL_MIN);
    }
}

/// What is hashed is a hash already.
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
        // Either half is as good.
        self.0 = u64::try_from(hash & u128::from(u64::MAX)).unwrap_or_default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_values_are_one_for_as_long_as_somebody_uses_them() {
        let scope = Scope::new(Settings {
            domain: String::new(),
            trust_domain: "td".into(),
            system_namespace: String::new(),
        });
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
        assert_eq!(scope.held(), 0);
        for number in 0..100_000 {
            scope.text(&number.to_string());
        }
        assert!(scope.pools().texts.held.len() <= POOL_MIN, "what is not used goes by itself");
    }
}
