//! How tables here hash their keys.

use std::hash::{BuildHasher, Hasher};

use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Hashes keys, which are texts that many choose: with a secret, as the standard library does, at a
/// fraction of its cost.
#[derive(Debug, Clone)]
pub struct SecretHasher(u64);

impl Default for SecretHasher {
    fn default() -> Self {
        Self(rand::random())
    }
}

impl BuildHasher for SecretHasher {
    type Hasher = Folded;

    fn build_hasher(&self) -> Folded {
        Folded(self.0)
    }
}

/// Each part is hashed with the hash of those before it.
pub struct Folded(u64);

impl Hasher for Folded {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        self.0 = xxh3_64_with_seed(bytes, self.0);
    }

    // What ends each text: the next part would be hashed with the same seed without it, too.
    fn write_u8(&mut self, byte: u8) {
        self.0 = self.0.rotate_left(8) ^ u64::from(byte);
    }
}
