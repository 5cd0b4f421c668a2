//! Long messages of many fragments, cut into chunks that versions and classes of proxies share.
//!
//! A fragment is one encoded field: a virtual host, an entry of a table of names. A chunk is a run of fragments in one
//! piece of memory. Where one chunk ends depends on its fragments alone, so that a fragment which comes, goes or
//! changes has one chunk made again, or two, and all others are found as they are.

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

/// How many fragments a chunk has, on average and at most: what changes with one, and what is pointed at.
const FRAGMENTS: u64 = 32;
/// See [`FRAGMENTS`].
pub(super) const FRAGMENTS_MAX: usize = 128;

/// A hash of a domain, which but one virtual host of a route may have. Two domains may have the same.
pub(super) type DomainHash = u32;

/// A run of fragments.
#[derive(Debug, Default)]
pub(super) struct FragmentChunk {
    bytes: Bytes,
    fragments: Box<[Fragment]>,
    domains: Box<[DomainHash]>,
    /// What of it is otherwise in a namespace, of those that were asked about; `None` where that can't be told of the
    /// chunk alone.
    in_namespaces: Mutex<BTreeMap<Box<str>, Option<Arc<RewrittenFragments>>>>,
}

/// Fragments that are otherwise, from some place on.
#[derive(Debug, Default)]
pub(super) struct RewrittenFragments {
    /// By their number, in ascending order, their [`digest`]s.
    pub(super) digests: Vec<(usize, u64)>,
    /// What is another in the bytes, in ascending order.
    pub(super) edits: Vec<Edit>,
    /// What is put there.
    pub(super) text: Vec<u8>,
    /// Domains that they have beside those of before.
    pub(super) domains: Vec<DomainHash>,
}

impl RewrittenFragments {
    /// Takes those of a chunk as well, whose first fragment and first byte are these.
    pub(super) fn append(&mut self, chunk: &Self, (first, start): (usize, usize)) {
        let start = count(start);
        self.digests.extend(chunk.digests.iter().map(|(at, digest)| (first + at, *digest)));
        self.edits.extend(chunk.edits.iter().map(|edit| Edit { at: start + edit.at, ..*edit }));
        self.text.extend_from_slice(&chunk.text);
        self.domains.extend_from_slice(&chunk.domains);
    }
}

/// A place or a length within a message.
pub(super) fn count(number: usize) -> u32 {
    u32::try_from(number).expect("less than 4 GiB fit into memory")
}

/// Where a fragment is in its chunk: up to here, from where the one before it ends.
#[derive(Debug, Clone, Copy)]
struct Fragment {
    /// The end of its bytes. It may have none.
    end: u32,
    /// The end of its domains.
    domains: u32,
    digest: u64,
}

impl CacheValue for Arc<FragmentChunk> {
    fn is_held(&self) -> bool {
        Self::strong_count(self) > 1
    }
}

impl FragmentChunk {
    /// Its bytes.
    pub(super) fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// How many fragments it has.
    pub(super) fn len(&self) -> usize {
        self.fragments.len()
    }

    /// The [`digest`]s of its fragments.
    pub(super) fn digests(&self) -> impl Iterator<Item = u64> {
        self.fragments.iter().map(|one| one.digest)
    }

    /// The domains of all its fragments.
    pub(super) fn domains(&self) -> &[DomainHash] {
        &self.domains
    }

    /// What of it is otherwise in a namespace: made once, since nothing else decides it.
    pub(super) fn rewritten_in(
        &self,
        namespace: &str,
        make: impl FnOnce() -> Option<RewrittenFragments>,
    ) -> Option<Arc<RewrittenFragments>> {
        let held = || lock(&self.in_namespaces);
        if let Some(known) = held().get(namespace) {
            return known.clone();
        }
        let made = make().map(Arc::new);
        held().insert(namespace.into(), made.clone());
        made
    }

    /// Where a fragment is in its bytes, and which domains it has.
    pub(super) fn fragment(&self, at: usize) -> (Range<usize>, &[DomainHash]) {
        let [before, this] = [at.checked_sub(1), Some(at)].map(|at| {
            at.and_then(|at| self.fragments.get(at))
                .map_or((0, 0), |one| (one.end as usize, one.domains as usize))
        });
        (before.0..this.0, &self.domains[before.1..this.1])
    }
}

/// The hash of a fragment's bytes; of none it is 0, which counts for nothing in a message's version.
pub(super) fn digest(bytes: &[u8]) -> u64 {
    if bytes.is_empty() { 0 } else { xxh3_64(bytes) }
}

/// A chunk that is being made.
#[derive(Debug, Default)]
pub(super) struct Draft {
    pub(super) bytes: Vec<u8>,
    pub(super) domains: Vec<DomainHash>,
}

impl Draft {
    /// Writes a fragment as it is in another chunk.
    pub(super) fn keep(&mut self, bytes: &[u8], domains: &[DomainHash]) {
        self.bytes.extend_from_slice(bytes);
        self.domains.extend_from_slice(domains);
    }
}

/// Chunks by what they are made of. What nobody holds may go at any time.
#[derive(Debug, Default)]
pub(super) struct Chunks {
    kept: CacheTable<u64, (), Arc<FragmentChunk>>,
    /// Fragments are distinguished by hashes of 64 bits, which whoever names them can't foresee.
    secret: SecretHasher,
}

impl Chunks {
    /// The fragments of `all`, in chunks. The hash of an item is that of all that matters for what `write` makes
    /// of it.
    pub(super) fn of<T: Hash>(
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

    /// The same of `count` items where `old` are the chunks of as many, of which those at `changed` were others, in ascending
    /// order: no other chunk is looked into, and no item of another is asked for. `write` is told which item it is.
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
            let same = old.as_slice().first().filter(|one| {
                old_start == start && changed.first().is_none_or(|at| *at >= start + one.len())
            });
            let chunk = match same {
                Some(same) => Arc::clone(same),
                None => self.first((start..count).map(&item), |at, one, draft| {
                    write(start + at, one, draft);
                }),
            };
            start += chunk.len();
            changed = &changed[changed.partition_point(|at| *at < start)..];
            chunks.push(chunk);
        }
        chunks.into()
    }

    /// The first chunk of these items. `write` is told which of them it is.
    fn first<T: Hash>(
        &self,
        all: impl Iterator<Item = T>,
        write: impl Fn(usize, &T, &mut Draft),
    ) -> Arc<FragmentChunk> {
        let (mut hasher, mut these) = (self.secret.build_hasher(), Vec::new());
        for one in all {
            let hash = self.secret.hash_one(&one);
            hasher.write_u64(hash);
            these.push(one);
            if hash.is_multiple_of(FRAGMENTS) || these.len() == FRAGMENTS_MAX {
                break;
            }
        }
        self.kept.get_or_make(hasher.finish(), (), || Arc::new(chunk(&these, &write)))
    }

    /// The hash of a domain, in whatever case it is written.
    pub(super) fn domain_hash(&self, domain: &str) -> DomainHash {
        let lower: Vec<u8> = domain.bytes().map(|byte| byte.to_ascii_lowercase()).collect();
        self.secret.hash_one(&lower[..]) as DomainHash
    }

    /// Removes all entries.
    pub(super) fn clear(&self) {
        self.kept.clear();
    }

    /// Lets go of what nobody holds.
    pub(super) fn sweep(&self) {
        self.kept.sweep(|()| true);
    }
}

fn chunk<T>(all: &[T], write: impl Fn(usize, &T, &mut Draft)) -> FragmentChunk {
    let mut draft = Draft::default();
    let mut fragments = Vec::with_capacity(all.len());
    for (at, one) in all.iter().enumerate() {
        let start = draft.bytes.len();
        write(at, one, &mut draft);
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
