//! All pods of a cluster by name, as a value that is cheap to share and to change.
//!
//! Pods are sorted by namespace and name, in chunks of at most [`CHUNK_MAX`]. A chunk contains the
//! names as one text, in which the common parts of names occur once, and the pods in one array. A
//! change copies one chunk. An older value shares all other chunks, and comparing two values only
//! reads the chunks that differ.

use std::cmp::Ordering;
use std::fmt;
use std::sync::Arc;

use super::{Namespace, Workload, WorkloadKey, WorkloadRef};

/// The maximum number of pods in a chunk: a change copies half of that on average, about 2 KiB.
const CHUNK_MAX: usize = 64;

/// The maximum length of an object's name, in bytes.
const NAME_MAX: usize = 253;

/// All pods of a cluster.
#[derive(Clone, Default)]
pub struct Workloads {
    /// Sorted; no chunk is empty.
    chunks: Arc<Vec<Arc<Chunk>>>,
    count: usize,
}

/// The position of a pod, for [`Workloads::find_next`].
#[derive(Debug, Default)]
pub struct Near {
    chunk: usize,
    place: usize,
}

/// Some pods of one namespace, sorted by name.
#[derive(Clone)]
struct Chunk {
    namespace: Namespace,
    /// The tails of all names, as split by [`WorkloadRef::split`]. The stem precedes the first tail
    /// of each group with the same stem.
    names: Box<str>,
    /// The offset in `names` at which each tail ends. Names have at most 253 bytes, so this is
    /// below 2^14.
    ends: Box<[u16]>,
    stems: Box<[Stem]>,
    pods: Box<[Workload]>,
}

/// The common beginning of the names of some adjacent pods.
#[derive(Clone, Copy)]
struct Stem {
    /// The index of the first pod.
    from: u16,
    /// The offset in the chunk's names at which the stem ends.
    end: u16,
}

/// A name in two parts.
type Name<'a> = (&'a str, &'a str);

impl Workloads {
    /// Returns the number of pods.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Returns whether there are no pods.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns the pod with this name.
    pub fn get(&self, namespace: &str, name: &str) -> Option<&Workload> {
        self.find_near(&mut Near::default(), namespace, WorkloadRef::split(name))
    }

    /// Returns the pod that an endpoint names, for callers that look up many nearby pods, for
    /// example the members of an EndpointSlice. Searches first among the pods with the same stem as
    /// the previous one.
    pub fn find_next(&self, near: &mut Near, pod: WorkloadRef<'_>) -> Option<&Workload> {
        self.find_near(near, pod.namespace.as_str(), (pod.stem, pod.tail))
    }

    fn find_near(&self, near: &mut Near, namespace: &str, name: Name<'_>) -> Option<&Workload> {
        if let Some(chunk) = self.chunks.get(near.chunk)
            && chunk.namespace.as_str() == namespace
            && let Some(position) = chunk.find_after(near.place, name)
        {
            near.place = position;
            return chunk.pods.get(position);
        }
        let index = self.chunk_index(namespace, name);
        let found = self.chunks.get(index)?;
        let position = found.position(namespace, name).ok()?;
        *near = Near { chunk: index, place: position };
        found.pods.get(position)
    }

    /// Returns all pods with their names, in order.
    pub fn iter(&self) -> impl Iterator<Item = (WorkloadRef<'_>, &Workload)> {
        self.chunks.iter().flat_map(|chunk| chunk.iter())
    }

    /// Returns the pods of a namespace.
    pub fn of_namespace(
        &self,
        namespace: &str,
    ) -> impl Iterator<Item = (WorkloadRef<'_>, &Workload)> {
        let from = self.chunks.partition_point(|chunk| chunk.namespace.as_str() < namespace);
        let chunks = self.chunks.get(from..).unwrap_or_default().iter();
        let chunks = chunks.take_while(move |chunk| chunk.namespace.as_str() == namespace);
        chunks.flat_map(|chunk| chunk.iter())
    }

    /// Inserts a pod, replacing an existing one with the same name. Names longer than 253 bytes,
    /// which no object has, are truncated.
    pub fn insert(&mut self, namespace: &Arc<str>, name: &str, pod: Workload) {
        let name = WorkloadRef::split(name.get(..NAME_MAX).unwrap_or(name));
        let index = self.chunk_index(namespace, name);
        let position = self.chunks.get(index).map(|chunk| chunk.position(namespace, name));
        let chunks = Arc::make_mut(&mut self.chunks);
        if let (Some(Ok(position)), Some(chunk)) = (position, chunks.get_mut(index)) {
            if let Some(stored) = Arc::make_mut(chunk).pods.get_mut(position) {
                *stored = pod;
            }
            return;
        }
        self.count += 1;
        // Use the previous chunk if it belongs to the namespace and is not full, because names
        // usually arrive in order.
        let is_of_namespace = |chunk: Option<&Arc<Chunk>>| {
            chunk.is_some_and(|chunk| chunk.namespace.as_str() == &**namespace)
        };
        let index = match index.checked_sub(1) {
            Some(before)
                if !is_of_namespace(chunks.get(index)) && is_of_namespace(chunks.get(before)) =>
            {
                before
            }
            _ if is_of_namespace(chunks.get(index)) => index,
            _ => {
                let namespace = Namespace::new(Arc::clone(namespace));
                chunks.insert(index, Arc::new(Chunk::copied(&namespace, &[(name, &pod)])));
                return;
            }
        };
        let Some(stored) = chunks.get_mut(index) else { return };
        let chunk = Arc::clone(stored);
        let mut pods: Vec<(Name<'_>, &Workload)> = chunk.named().collect();
        let position = pods.partition_point(|(stored, _)| order(*stored, name).is_lt());
        pods.insert(position, (name, &pod));
        if pods.len() <= CHUNK_MAX {
            *stored = Arc::new(Chunk::copied(&chunk.namespace, &pods));
        } else {
            // A chunk that grows at its end stays nearly full, so that a sorted list is stored
            // compactly.
            let half = if position + 1 == pods.len() { CHUNK_MAX } else { CHUNK_MAX / 2 };
            let (first, second) = pods.split_at(half);
            *stored = Arc::new(Chunk::copied(&chunk.namespace, first));
            chunks.insert(index + 1, Arc::new(Chunk::copied(&chunk.namespace, second)));
        }
    }

    /// Removes and returns a pod.
    pub fn remove(&mut self, namespace: &str, name: &str) -> Option<Workload> {
        let name = WorkloadRef::split(name);
        let index = self.chunk_index(namespace, name);
        let position = self.chunks.get(index)?.position(namespace, name).ok()?;
        let chunks = Arc::make_mut(&mut self.chunks);
        let chunk = Arc::clone(chunks.get(index)?);
        let removed = chunk.pods.get(position)?.clone();
        self.count -= 1;
        // Merge small neighbours. Otherwise, many removals would leave many small chunks.
        let next = chunks.get(index + 1).cloned().filter(|next| {
            next.namespace == chunk.namespace && next.pods.len() + chunk.pods.len() < CHUNK_MAX / 2
        });
        let mut pods: Vec<(Name<'_>, &Workload)> = chunk.named().collect();
        pods.remove(position);
        if let Some(next) = &next {
            pods.extend(next.named());
            chunks.remove(index + 1);
        }
        if pods.is_empty() {
            chunks.remove(index);
        } else if let Some(stored) = chunks.get_mut(index) {
            *stored = Arc::new(Chunk::copied(&chunk.namespace, &pods));
        }
        Some(removed)
    }

    /// Returns the names at which two values differ, sorted. Shared chunks are skipped.
    pub fn differences(&self, other: &Self) -> Vec<WorkloadKey> {
        let mut differ = Vec::new();
        if Arc::ptr_eq(&self.chunks, &other.chunks) {
            return differ;
        }
        let (mut own, mut others) = (WorkloadCursor::of(self), WorkloadCursor::of(other));
        loop {
            while own.at_shared_chunk(&others) {
                own.skip_chunk();
                others.skip_chunk();
            }
            let order = match (own.peek(), others.peek()) {
                (None, None) => return differ,
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (Some((a, _)), Some((b, _))) => {
                    let by_namespace = a.namespace.cmp(b.namespace);
                    by_namespace.then_with(|| order((a.stem, a.tail), (b.stem, b.tail)))
                }
            };
            let key = |(pod, _): (WorkloadRef<'_>, &Workload)| pod.to_key();
            match order {
                Ordering::Less => differ.extend(own.next().map(key)),
                Ordering::Greater => differ.extend(others.next().map(key)),
                Ordering::Equal => {
                    let (own, others) = (own.next(), others.next());
                    if own.map(|(_, pod)| pod) != others.map(|(_, pod)| pod) {
                        differ.extend(own.map(key));
                    }
                }
            }
        }
    }

    /// Returns the index of the chunk that contains a name or would contain it.
    fn chunk_index(&self, namespace: &str, name: Name<'_>) -> usize {
        self.chunks.partition_point(|chunk| {
            let by_namespace = chunk.namespace.as_str().cmp(namespace);
            by_namespace.then_with(|| order(chunk.last().unwrap_or_default(), name)).is_lt()
        })
    }
}

/// Builds [`Workloads`] from the pods of a list. Most lists are sorted by namespace and name. Then
/// each chunk is full and built once, and no other data of a pod is stored meanwhile.
#[derive(Default)]
pub struct WorkloadsBuilder {
    /// All pods before the ones in `open`.
    done: Workloads,
    /// The last pods, sorted and of one namespace; its buffers are reused.
    open: OpenChunk,
    /// Whether some pods arrived out of order, which leaves chunks half full.
    uneven: bool,
}

/// A chunk that is being filled.
#[derive(Default)]
struct OpenChunk {
    namespace: Arc<str>,
    /// The full names, concatenated.
    names: String,
    ends: Vec<usize>,
    pods: Vec<Workload>,
}

impl WorkloadsBuilder {
    /// Adds a pod, replacing an existing one with the same name.
    pub fn put(&mut self, namespace: &Arc<str>, name: &str, pod: Workload) {
        if !self.ends_before(namespace, name) {
            self.close();
            self.uneven = true;
            return self.done.insert(namespace, name, pod);
        }
        if self.open.pods.len() == CHUNK_MAX || self.open.namespace != *namespace {
            self.close();
            self.open.namespace = Arc::clone(namespace);
        }
        self.open.push(name, pod);
    }

    /// Removes a pod, if it exists.
    pub fn remove(&mut self, namespace: &str, name: &str) {
        self.close();
        self.uneven |= self.done.remove(namespace, name).is_some();
    }

    /// Returns the number of pods.
    pub fn len(&self) -> usize {
        self.done.len() + self.open.pods.len()
    }

    /// Returns whether there are no pods.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the finished value.
    pub fn finish(mut self) -> Workloads {
        self.close();
        if !self.uneven {
            Arc::make_mut(&mut self.done.chunks).shrink_to_fit();
            return self.done;
        }
        let mut packed = Self::default();
        for (key, pod) in self.done.iter() {
            let WorkloadKey { namespace, name } = key.to_key();
            packed.put(&namespace.into(), &name, pod.clone());
        }
        packed.finish()
    }

    /// Returns whether a name follows all existing names.
    fn ends_before(&self, namespace: &str, name: &str) -> bool {
        let open = self.open.names().next_back().map(|last| (&*self.open.namespace, last));
        let last = open.or_else(|| {
            let chunk = self.done.chunks.last()?;
            Some((chunk.namespace.as_str(), chunk.last().unwrap_or_default()))
        });
        let is_before = |(last_namespace, last): (&str, Name<'_>)| {
            last_namespace.cmp(namespace).then_with(|| order(last, ("", name))).is_lt()
        };
        last.is_none_or(is_before) && name.len() <= NAME_MAX
    }

    /// Moves the open pods into a chunk.
    fn close(&mut self) {
        if !self.open.pods.is_empty() {
            self.done.count += self.open.pods.len();
            Arc::make_mut(&mut self.done.chunks).push(Arc::new(self.open.take()));
        }
    }
}

impl OpenChunk {
    fn push(&mut self, name: &str, pod: Workload) {
        self.names.push_str(name);
        self.ends.push(self.names.len());
        self.pods.push(pod);
    }

    fn names(&self) -> impl DoubleEndedIterator<Item = Name<'_>> + Clone {
        let span = |at: usize| {
            let start = at.checked_sub(1).and_then(|before| self.ends.get(before)).copied();
            self.names.get(start.unwrap_or_default()..*self.ends.get(at)?)
        };
        (0..self.ends.len()).filter_map(span).map(WorkloadRef::split)
    }

    /// Returns the chunk and keeps the buffers.
    fn take(&mut self) -> Chunk {
        let pods = self.pods.drain(..).collect();
        let chunk = Chunk::of(Namespace::new(Arc::clone(&self.namespace)), self.names(), pods);
        self.names.clear();
        self.ends.clear();
        chunk
    }
}

/// Compares names in two parts, independent of where each is split.
fn order(one: Name<'_>, other: Name<'_>) -> Ordering {
    let common = one.0.len().min(other.0.len());
    let (head, rest) = one.0.as_bytes().split_at(common);
    let (other_head, other_rest) = other.0.as_bytes().split_at(common);
    head.cmp(other_head).then_with(|| match (rest, other_rest) {
        ([], []) => one.1.cmp(other.1),
        _ => rest.iter().chain(one.1.as_bytes()).cmp(other_rest.iter().chain(other.1.as_bytes())),
    })
}

impl Chunk {
    /// Creates a chunk of pods with these names, in order.
    fn of<'a>(
        namespace: Namespace,
        names: impl Iterator<Item = Name<'a>> + Clone,
        pods: Box<[Workload]>,
    ) -> Self {
        // Allocate the exact size, because shrinking would leave a hole in memory.
        let (mut length, mut count, mut last) = (0, 0, None);
        for (stem, tail) in names.clone() {
            if last.replace(stem) != Some(stem) {
                (length, count) = (length + stem.len(), count + 1);
            }
            length += tail.len();
        }
        let (mut text, mut stems) = (String::with_capacity(length), Vec::with_capacity(count));
        let mut ends = Vec::with_capacity(pods.len());
        let short = |length: usize| u16::try_from(length).unwrap_or(u16::MAX);
        let mut last = None;
        for (stem, tail) in names {
            if last.replace(stem) != Some(stem) {
                text.push_str(stem);
                stems.push(Stem { from: short(ends.len()), end: short(text.len()) });
            }
            text.push_str(tail);
            ends.push(short(text.len()));
        }
        Self { namespace, names: text.into(), ends: ends.into(), stems: stems.into(), pods }
    }

    fn copied(namespace: &Namespace, pods: &[(Name<'_>, &Workload)]) -> Self {
        let records = pods.iter().map(|(_, pod)| Workload::clone(pod)).collect();
        Self::of(namespace.clone(), pods.iter().map(|(name, _)| *name), records)
    }

    fn name(&self, at: usize) -> Option<Name<'_>> {
        let stem = self.stems.get(self.stem_index(at)?)?;
        Some((self.stem(stem), self.tail(stem, at)))
    }

    /// Returns the index of the stem of the name at index `at`.
    fn stem_index(&self, at: usize) -> Option<usize> {
        self.stems.partition_point(|stem| usize::from(stem.from) <= at).checked_sub(1)
    }

    fn stem(&self, stem: &Stem) -> &str {
        let start = self.end_before(stem.from.into());
        self.names.get(start..stem.end.into()).unwrap_or_default()
    }

    /// Returns the tail of the name at index `at`, whose stem is `stem`.
    fn tail(&self, stem: &Stem, at: usize) -> &str {
        let is_first = at == usize::from(stem.from);
        let start = if is_first { stem.end.into() } else { self.end_before(at) };
        self.names.get(start..self.end_before(at + 1)).unwrap_or_default()
    }

    /// Returns the offset at which the names before index `at` end.
    fn end_before(&self, at: usize) -> usize {
        let before = at.checked_sub(1).and_then(|before| self.ends.get(before));
        before.copied().unwrap_or_default().into()
    }

    fn last(&self) -> Option<Name<'_>> {
        let stem = self.stems.last()?;
        Some((self.stem(stem), self.tail(stem, self.ends.len().checked_sub(1)?)))
    }

    /// Returns the index of a name, if it is in the same group of names as the pod at index `at`
    /// and shares its stem.
    fn find_after(&self, at: usize, name: Name<'_>) -> Option<usize> {
        let run = self.stem_index(at)?;
        if self.stem(self.stems.get(run)?) != name.0 {
            return None;
        }
        // It is usually the next one.
        self.search(run, at + 1, |tail| tail.cmp(name.1)).ok()
    }

    fn get(&self, at: usize) -> Option<(WorkloadRef<'_>, &Workload)> {
        let (stem, tail) = self.name(at)?;
        Some((WorkloadRef { namespace: &self.namespace, stem, tail }, self.pods.get(at)?))
    }

    fn iter(&self) -> impl Iterator<Item = (WorkloadRef<'_>, &Workload)> {
        (0..self.pods.len()).filter_map(|at| self.get(at))
    }

    fn named(&self) -> impl Iterator<Item = (Name<'_>, &Workload)> {
        self.iter().map(|(key, pod)| ((key.stem, key.tail), pod))
    }

    /// Returns the index of a name, or the index at which it would be inserted.
    fn position(&self, namespace: &str, name: Name<'_>) -> Result<usize, usize> {
        if self.namespace.as_str() != namespace {
            return Err(0);
        }
        // Search first among the stems, then among the names with that stem.
        let is_reached = |stem: &Stem| {
            let first = self.tail(stem, stem.from.into());
            order((self.stem(stem), first), name).is_le()
        };
        let Some(run) = self.stems.partition_point(is_reached).checked_sub(1) else {
            return Err(0);
        };
        let stem = self.stems.get(run).map(|stem| self.stem(stem)).unwrap_or_default();
        self.search(run, usize::MAX, |tail| order((stem, tail), name))
    }

    /// Searches among the names with the same stem, starting at index `first` and its neighbour.
    fn search(
        &self,
        run: usize,
        first: usize,
        compare: impl Fn(&str) -> Ordering,
    ) -> Result<usize, usize> {
        let Some(stem) = self.stems.get(run) else { return Err(self.pods.len()) };
        let mut low = usize::from(stem.from);
        let mut high = self.stems.get(run + 1).map_or(self.pods.len(), |next| next.from.into());
        let mut at = first.min(high.saturating_sub(1)).max(low);
        while low < high {
            match compare(self.tail(stem, at)) {
                Ordering::Less => low = at + 1,
                Ordering::Greater => high = at,
                Ordering::Equal => return Ok(at),
            }
            at = low.midpoint(high);
        }
        Err(low)
    }
}

/// Iterates over all pods in order, and can skip a whole chunk.
struct WorkloadCursor<'a> {
    chunks: &'a [Arc<Chunk>],
    at: usize,
}

impl<'a> WorkloadCursor<'a> {
    fn of(workloads: &'a Workloads) -> Self {
        Self { chunks: &workloads.chunks, at: 0 }
    }

    fn at_shared_chunk(&self, other: &Self) -> bool {
        let both = self.chunks.first().zip(other.chunks.first());
        self.at == 0 && other.at == 0 && both.is_some_and(|(a, b)| Arc::ptr_eq(a, b))
    }

    fn skip_chunk(&mut self) {
        (self.chunks, self.at) = (self.chunks.get(1..).unwrap_or_default(), 0);
    }

    fn peek(&self) -> Option<(WorkloadRef<'a>, &'a Workload)> {
        self.chunks.first()?.get(self.at)
    }

    fn next(&mut self) -> Option<(WorkloadRef<'a>, &'a Workload)> {
        let next = self.peek()?;
        self.at += 1;
        if self.chunks.first().is_some_and(|chunk| chunk.pods.len() <= self.at) {
            self.skip_chunk();
        }
        Some(next)
    }
}

impl PartialEq for Workloads {
    fn eq(&self, other: &Self) -> bool {
        self.count == other.count && self.differences(other).is_empty()
    }
}

impl fmt::Debug for WorkloadsBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gathered").field("pods", &self.len()).finish_non_exhaustive()
    }
}

impl fmt::Debug for Workloads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = self.iter().map(|(key, pod)| (key.to_string(), pod));
        f.debug_map().entries(named).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::net::IpAddr;

    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};

    use super::*;
    use crate::Profile;

    type Plain = BTreeMap<(String, String), IpAddr>;

    fn pod(address: IpAddr) -> Workload {
        let profile = Arc::new(Profile::default());
        Workload { profile, addresses: [address].into_iter().collect(), node: None }
    }

    /// Returns a single name, a name of a set, or a name of a set whose name is a prefix of
    /// another's.
    fn named(number: u32) -> String {
        match number % 3 {
            0 => format!("pod{number}"),
            1 => format!("pod-{number}"),
            _ => format!("pod-{}-{number}", number / 16),
        }
    }

    fn plain(workloads: &Workloads) -> Plain {
        let all = workloads.iter().map(|(key, pod)| {
            let address = pod.addresses.iter().next().expect("an address");
            let WorkloadKey { namespace, name } = key.to_key();
            ((namespace.to_string(), name.to_string()), address)
        });
        all.collect()
    }

    #[test]
    fn workload_has_32_bytes() {
        assert_eq!(size_of::<Workload>(), 32);
    }

    #[test]
    fn content_equals_that_of_a_plain_map() {
        let mut random = StdRng::seed_from_u64(1);
        let (mut workloads, mut map) = (Workloads::default(), Plain::new());
        let mut old = (workloads.clone(), map.clone());
        for step in 0..20_000_u32 {
            let namespace = format!("ns-{}", random.random_range(0..3));
            let name = named(random.random_range(0..400));
            // With more removals in the second half.
            if random.random_bool(if step < 10_000 { 0.7 } else { 0.3 }) {
                let address = IpAddr::from(step.to_be_bytes());
                workloads.insert(&namespace.as_str().into(), &name, pod(address));
                map.insert((namespace, name), address);
            } else {
                let removed = workloads.remove(&namespace, &name);
                let expected = map.remove(&(namespace, name));
                assert_eq!(removed.and_then(|pod| pod.addresses.iter().next()), expected);
            }
            if step % 500 == 0 {
                assert_eq!((plain(&workloads), workloads.len()), (map.clone(), map.len()));
                for ((namespace, name), address) in &map {
                    assert!(
                        workloads.get(namespace, name).expect("it").addresses.contains(address)
                    );
                }
                // In order, with gaps, and from any previous position.
                let mut near = Near::default();
                for at in (0..1200).map(|at| if at < 800 { at } else { at * 7919 % 400 }) {
                    let (namespace, name) = (format!("ns-{}", at / 400), named(at % 400));
                    let key = Namespace::from(&*namespace);
                    let found = workloads.find_next(&mut near, WorkloadRef::of(&key, &name));
                    assert_eq!(found, workloads.get(&namespace, &name), "{namespace}/{name}");
                    assert_eq!(found.is_some(), map.contains_key(&(namespace, name)));
                }
                let namespace_count = workloads.of_namespace("ns-1").count();
                assert_eq!(
                    namespace_count,
                    map.keys().filter(|(namespace, _)| namespace == "ns-1").count()
                );
                let names = old.1.keys().chain(map.keys());
                let mut differ: Vec<_> =
                    names.filter(|name| old.1.get(*name) != map.get(*name)).cloned().collect();
                differ.sort();
                differ.dedup();
                let found: Vec<_> = workloads
                    .differences(&old.0)
                    .into_iter()
                    .map(|key| (key.namespace.to_string(), key.name.to_string()))
                    .collect();
                assert_eq!(found, differ);
                old = (workloads.clone(), map.clone());
            }
        }
        let chunks = workloads.chunks.len();
        assert!(chunks * 8 < workloads.len().max(100), "{chunks} chunks for {}", workloads.len());
    }

    #[test]
    fn split_names_are_ordered_like_whole_names() {
        let names = ["", "a", "a-", "a-b", "a-b-c", "a-bc", "ab", "a-c", "\u{fc}", "a-\u{fc}"];
        let parts = |name: &'static str| {
            let at = (0..=name.len()).filter(move |at| name.is_char_boundary(*at));
            at.map(move |at| (name, name.split_at(at)))
        };
        for (one, one_parts) in names.into_iter().flat_map(parts) {
            for (other, other_parts) in names.into_iter().flat_map(parts) {
                let found = order(one_parts, other_parts);
                assert_eq!(found, one.cmp(other), "{one_parts:?} {other_parts:?}");
            }
        }
    }

    #[test]
    fn common_parts_of_names_are_stored_once() {
        let mut gathered = WorkloadsBuilder::default();
        let names = ["a", "a-b", "a-b-c", "a-b-d", "a-c", "a-d", "b-", "b-a"];
        for (number, name) in (0..).zip(names) {
            gathered.put(&"shop".into(), name, pod(IpAddr::from([10, 0, 0, number])));
        }
        let workloads = gathered.finish();
        let stored: Vec<String> = workloads.iter().map(|(key, _)| key.name()).collect();
        assert_eq!(stored, names);
        let [chunk] = &workloads.chunks[..] else { panic!("few pods are one chunk") };
        assert_eq!(&*chunk.names, "aa-ba-b-cda-cdb-a");
    }

    #[test]
    fn builder_content_is_complete_and_compact_in_any_order() {
        let mut random = StdRng::seed_from_u64(2);
        for disorder in [0.0, 0.01, 0.5, 1.0] {
            let (mut gathered, mut map) = (WorkloadsBuilder::default(), Plain::new());
            for step in 0..5_000_u32 {
                let number = if random.random_bool(disorder) {
                    random.random_range(0..step + 1)
                } else {
                    step
                };
                let (namespace, name) = (
                    format!("ns-{}", number / 2_000),
                    format!("pod-{:04}-{number:05}", number / 7),
                );
                if random.random_bool(disorder / 10.0) {
                    gathered.remove(&namespace, &name);
                    map.remove(&(namespace, name));
                } else {
                    let address = IpAddr::from(step.to_be_bytes());
                    gathered.put(&namespace.as_str().into(), &name, pod(address));
                    map.insert((namespace, name), address);
                }
                assert_eq!(gathered.len(), map.len());
            }
            let workloads = gathered.finish();
            assert_eq!((plain(&workloads), workloads.len()), (map.clone(), map.len()));
            assert!(workloads.chunks.len() <= map.len() / CHUNK_MAX + 3, "{disorder}");
        }
    }

    #[test]
    fn sorted_list_is_stored_compactly() {
        let mut workloads = Workloads::default();
        for number in 0..10_000_u32 {
            let name = format!("cart-{number:05}");
            workloads.insert(&"shop".into(), &name, pod(IpAddr::from(number.to_be_bytes())));
        }
        assert!(workloads.chunks.len() < 10_000 / CHUNK_MAX + 5);
    }
}
