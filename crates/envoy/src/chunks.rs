//! Long messages of many fragments, split into chunks that versions and classes of proxies share.
//!
//! A fragment is one encoded field: a virtual host, or an entry of a name table. A chunk is a run
//! of fragments in one contiguous buffer. The end of a chunk depends only on its fragments.
//! Therefore, if a fragment is added, removed or changed, only one or two chunks are rebuilt, and
//! all others are reused.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, Hash, Hasher};
use std::ops::Range;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use xxhash_rust::xxh3::xxh3_64;

use super::cache::{CacheTable, CacheValue};
use strait_base::hash::SecretHasher;
use strait_base::lock::lock;
use strait_xds::body::Edit;

/// Average number of fragments per chunk. More fragments cost more bytes per change; fewer cost
/// more pointers.
const FRAGMENTS: u64 = 32;
/// Maximum number of fragments per chunk: see [`FRAGMENTS`].
pub(super) const FRAGMENTS_MAX: usize = 128;

/// A hash of a domain. Only one virtual host of a route configuration may have a domain. Two
/// domains may have equal hashes.
pub(super) type DomainHash = u32;

/// A run of fragments.
#[derive(Debug, Default)]
pub(super) struct FragmentChunk {
    bytes: Bytes,
    fragments: Box<[Fragment]>,
    domains: Box<[DomainHash]>,
    /// The changes to this chunk in the DNS domain of each namespace that was requested. `None` if
    /// they do not depend on the chunk alone.
    in_namespaces: Mutex<BTreeMap<Box<str>, Option<Arc<RewrittenFragments>>>>,
}

/// Changes to a run of fragments, relative to its first fragment and byte.
#[derive(Debug, Default)]
pub(super) struct RewrittenFragments {
    /// The numbers of the changed fragments, in ascending order, with their new [`digest`]s.
    pub(super) digests: Vec<(usize, u64)>,
    /// The changed places in the bytes, in ascending order.
    pub(super) edits: Vec<Edit>,
    /// The text that the edits insert.
    pub(super) text: Vec<u8>,
    /// Domains that the fragments have in addition to the original ones.
    pub(super) domains: Vec<DomainHash>,
}

impl RewrittenFragments {
    /// Appends the changes to a chunk whose first fragment and first byte have these positions.
    pub(super) fn append(&mut self, chunk: &Self, (first, start): (usize, usize)) {
        let start = count(start);
        self.digests.extend(chunk.digests.iter().map(|(at, digest)| (first + at, *digest)));
        self.edits.extend(chunk.edits.iter().map(|edit| Edit { at: start + edit.at, ..*edit }));
        self.text.extend_from_slice(&chunk.text);
        self.domains.extend_from_slice(&chunk.domains);
    }
}

/// Converts a position or length within a message to 32 bits.
pub(super) fn count(number: usize) -> u32 {
    u32::try_from(number).expect("less than 4 GiB fit into memory")
}

/// The ends of a fragment in its chunk. It begins at the end of the previous fragment.
#[derive(Debug, Clone, Copy)]
struct Fragment {
    /// Offset at which its bytes end. A fragment may be empty.
    end: u32,
    /// Index at which its domains end.
    domains: u32,
    digest: u64,
}

impl CacheValue for Arc<FragmentChunk> {
    fn is_in_use(&self) -> bool {
        Self::strong_count(self) > 1
    }
}

impl FragmentChunk {
    /// Returns the encoded fragments.
    pub(super) fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// Returns the number of fragments.
    pub(super) fn len(&self) -> usize {
        self.fragments.len()
    }

    /// Returns the [`digest`]s of the fragments.
    pub(super) fn digests(&self) -> impl Iterator<Item = u64> {
        self.fragments.iter().map(|one| one.digest)
    }

    /// Returns the domain hashes of all fragments.
    pub(super) fn domains(&self) -> &[DomainHash] {
        &self.domains
    }

    /// Returns the changes to this chunk in the DNS domain of a namespace. They depend on the chunk
    /// only and are computed once.
    pub(super) fn rewritten_in(
        &self,
        namespace: &str,
        make: impl FnOnce() -> Option<RewrittenFragments>,
    ) -> Option<Arc<RewrittenFragments>> {
        let namespaces = || lock(&self.in_namespaces);
        if let Some(cached) = namespaces().get(namespace) {
            return cached.clone();
        }
        let made = make().map(Arc::new);
        namespaces().insert(namespace.into(), made.clone());
        made
    }

    /// Returns the byte range and the domains of a fragment.
    pub(super) fn fragment(&self, at: usize) -> (Range<usize>, &[DomainHash]) {
        let [before, this] = [at.checked_sub(1), Some(at)].map(|at| {
            at.and_then(|at| self.fragments.get(at))
                .map_or((0, 0), |one| (one.end as usize, one.domains as usize))
        });
        (before.0..this.0, &self.domains[before.1..this.1])
    }
}

/// Returns the hash of a fragment's bytes. An empty fragment has the hash 0, which does not affect
/// the version of a message.
pub(super) fn digest(bytes: &[u8]) -> u64 {
    if bytes.is_empty() { 0 } else { xxh3_64(bytes) }
}

/// A chunk under construction.
#[derive(Debug, Default)]
pub(super) struct Draft {
    pub(super) bytes: Vec<u8>,
    pub(super) domains: Vec<DomainHash>,
}

impl Draft {
    /// Copies a fragment from another chunk.
    pub(super) fn keep(&mut self, bytes: &[u8], domains: &[DomainHash]) {
        self.bytes.extend_from_slice(bytes);
        self.domains.extend_from_slice(domains);
    }
}

/// A cache of chunks by their inputs. Chunks without other references may be removed at any time.
#[derive(Debug, Default)]
pub(super) struct Chunks {
    cached: CacheTable<u64, (), Arc<FragmentChunk>>,
    /// Seeds the 64-bit hashes that distinguish fragments, so that authors of objects cannot
    /// predict them.
    secret: SecretHasher,
}

impl Chunks {
    /// Returns the fragments of `all` in chunks. The hash of an item must cover everything that
    /// `write` uses.
    pub(super) fn split<T: Hash>(
        &self,
        all: &[T],
        write: impl Fn(&T, &mut Draft),
    ) -> Arc<[Arc<FragmentChunk>]> {
        let (mut chunks, mut rest) = (Vec::new(), all);
        while !rest.is_empty() {
            let chunk = self.first(rest.iter(), |_, one, draft| write(one, draft));
            rest = &rest[chunk.len()..];
            chunks.push(chunk);
        }
        chunks.into()
    }

    /// Returns the chunks of `count` items. `old` contains the chunks of the previous version with
    /// the same number of items; `changed` lists the items that differ, in ascending order.
    /// Unchanged chunks are reused, and `item` is not called for their items. The first argument of
    /// `write` is the number of the item.
    pub(super) fn amended<T: Hash>(
        &self,
        old: &[Arc<FragmentChunk>],
        (count, item): (usize, impl Fn(usize) -> T),
        changed: &[usize],
        write: impl Fn(usize, &T, &mut Draft),
    ) -> Arc<[Arc<FragmentChunk>]> {
        let mut chunks = Vec::with_capacity(old.len() + 1);
        let (mut start, mut changed) = (0, changed);
        let (mut old, mut old_start) = (old.iter(), 0);
        while start < count {
            while old_start < start {
                old_start += old.next().map_or(count, |one| one.len());
            }
            let same = old.as_slice().first().filter(|chunk| {
                old_start == start && changed.first().is_none_or(|at| *at >= start + chunk.len())
            });
            let chunk = match same {
                Some(same) => Arc::clone(same),
                None => self.first((start..count).map(&item), |at, item, draft| {
                    write(start + at, item, draft);
                }),
            };
            start += chunk.len();
            changed = &changed[changed.partition_point(|at| *at < start)..];
            chunks.push(chunk);
        }
        chunks.into()
    }

    /// Returns the first chunk of the items. The first argument of `write` is the number of the
    /// item.
    fn first<T: Hash>(
        &self,
        all: impl Iterator<Item = T>,
        write: impl Fn(usize, &T, &mut Draft),
    ) -> Arc<FragmentChunk> {
        let (mut hasher, mut these) = (self.secret.build_hasher(), Vec::new());
        for item in all {
            let hash = self.secret.hash_one(&item);
            hasher.write_u64(hash);
            these.push(item);
            if hash.is_multiple_of(FRAGMENTS) || these.len() == FRAGMENTS_MAX {
                break;
            }
        }
        self.cached.get_or_make(hasher.finish(), (), || Arc::new(chunk(&these, &write)))
    }

    /// Returns the case-insensitive hash of a domain.
    pub(super) fn domain_hash(&self, domain: &str) -> DomainHash {
        let lower: Vec<u8> = domain.bytes().map(|byte| byte.to_ascii_lowercase()).collect();
        self.secret.hash_one(&lower[..]) as DomainHash
    }

    /// Removes all entries.
    pub(super) fn clear(&self) {
        self.cached.clear();
    }

    /// Removes chunks without other references.
    pub(super) fn sweep(&self) {
        self.cached.sweep(|()| true);
    }
}

fn chunk<T>(all: &[T], write: impl Fn(usize, &T, &mut Draft)) -> FragmentChunk {
    let mut draft = Draft::default();
    let mut fragments = Vec::with_capacity(all.len());
    for (at, item) in all.iter().enumerate() {
        let start = draft.bytes.len();
        write(at, item, &mut draft);
        let digest = digest(&draft.bytes[start..]);
        let (end, domains) = (count(draft.bytes.len()), count(draft.domains.len()));
        fragments.push(Fragment { end, domains, digest });
    }
    draft.bytes.shrink_to_fit();
    FragmentChunk {
        bytes: draft.bytes.into(),
        fragments: fragments.into(),
        domains: draft.domains.into(),
        in_namespaces: Mutex::default(),
    }
}
