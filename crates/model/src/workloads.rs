//! All pods of a cluster by name, as a value that costs nothing to share and little to change.
//!
//! Pods stand in order of namespace and name, in chunks of at most [`CHUNK_MAX`]; a chunk is the names
//! in one text, what those of a set have in common once, and the records in one array. A change copies
//! one chunk. Whoever keeps an older value shares all chunks but those, and what two values differ in is
//! found by looking at those alone.

use std::cmp::Ordering;
use std::fmt;
use std::sync::Arc;

use super::{Namespace, Workload, WorkloadKey, WorkloadRef};

/// The most pods in a chunk: a change copies half of that on average, some 2 KiB.
const CHUNK_MAX: usize = 64;

/// The longest name, of any object.
const NAME_MAX: usize = 253;

/// All pods of a cluster.
#[derive(Clone, Default)]
pub struct Workloads {
    /// In order; none is empty.
    chunks: Arc<Vec<Arc<Chunk>>>,
    count: usize,
}

/// Where a pod was found, for [`Workloads::find_next`].
#[derive(Debug, Default)]
pub struct Near {
    chunk: usize,
    place: usize,
}

/// Some pods of one namespace, in order of their names.
#[derive(Clone)]
struct Chunk {
    namespace: Namespace,
    /// The tail of each name, as [`WorkloadRef::split`] splits it, and before the first of those that
    /// share a stem that stem.
    names: Box<str>,
    /// Where in `names` each tail ends. Names are at most 253 bytes, so this is below 2^14.
    ends: Box<[u16]>,
    stems: Box<[Stem]>,
    pods: Box<[Workload]>,
}

/// What the names of some pods that stand together begin with.
#[derive(Clone, Copy)]
struct Stem {
    /// The place of the first of them.
    from: u16,
    /// Where in the chunk's names it ends.
    end: u16,
}

/// A name in two parts.
type Name<'a> = (&'a str, &'a str);

impl Workloads {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The pod of this name.
    pub fn get(&self, namespace: &str, name: &str) -> Option<&Workload> {
        self.find_near(&mut Near::default(), namespace, WorkloadRef::split(name))
    }

    /// The pod that an endpoint names, for somebody who looks up many that are near each other, as the
    /// members of a slice mostly are: each is looked for among those of the set of the one before, at first.
    pub fn find_next(&self, near: &mut Near, pod: WorkloadRef<'_>) -> Option<&Workload> {
        self.find_near(near, pod.namespace.as_str(), (pod.stem, pod.tail))
    }

    fn find_near(&self, near: &mut Near, namespace: &str, name: Name<'_>) -> Option<&Workload> {
        if let Some(chunk) = self.chunks.get(near.chunk)
            && chunk.namespace.as_str() == namespace
            && let Some(place) = chunk.find_beside(near.place, name)
        {
            near.place = place;
            return chunk.pods.get(place);
        }
        let chunk = self.chunk_of(namespace, name);
        let held = self.chunks.get(chunk)?;
        let place = held.place_of(namespace, name).ok()?;
        *near = Near { chunk, place };
        held.pods.get(place)
    }

    /// All of them with their names, in order.
    pub fn iter(&self) -> impl Iterator<Item = (WorkloadRef<'_>, &Workload)> {
        self.chunks.iter().flat_map(|chunk| chunk.iter())
    }

    /// Those of a namespace.
    pub fn of_namespace(
        &self,
        namespace: &str,
    ) -> impl Iterator<Item = (WorkloadRef<'_>, &Workload)> {
        let from = self.chunks.partition_point(|chunk| chunk.namespace.as_str() < namespace);
        let chunks = self.chunks.get(from..).unwrap_or_default().iter();
        let chunks = chunks.take_while(move |chunk| chunk.namespace.as_str() == namespace);
        chunks.flat_map(|chunk| chunk.iter())
    }

    /// Puts a pod in the place of the one of that name, if there is one. Names longer than 253 bytes,
    /// which no object has, are cut.
    pub fn insert(&mut self, namespace: &Arc<str>, name: &str, pod: Workload) {
        let name = WorkloadRef::split(name.get(..NAME_MAX).unwrap_or(name));
        let at = self.chunk_of(namespace, name);
        let place = self.chunks.get(at).map(|chunk| chunk.place_of(namespace, name));
        let chunks = Arc::make_mut(&mut self.chunks);
        if let (Some(Ok(place)), Some(chunk)) = (place, chunks.get_mut(at)) {
            if let Some(held) = Arc::make_mut(chunk).pods.get_mut(place) {
                *held = pod;
            }
            return;
        }
        self.count += 1;
        // Into the chunk before, where that is of the namespace and not full: names mostly come in
        // order.
        let same = |chunk: Option<&Arc<Chunk>>| {
            chunk.is_some_and(|chunk| chunk.namespace.as_str() == &**namespace)
        };
        let at = match at.checked_sub(1) {
            Some(before) if !same(chunks.get(at)) && same(chunks.get(before)) => before,
            _ if same(chunks.get(at)) => at,
            _ => {
                let namespace = Namespace::new(Arc::clone(namespace));
                chunks.insert(at, Arc::new(Chunk::copied(&namespace, &[(name, &pod)])));
                return;
            }
        };
        let Some(held) = chunks.get_mut(at) else { return };
        let chunk = Arc::clone(held);
        let mut pods: Vec<(Name<'_>, &Workload)> = chunk.named().collect();
        let place = pods.partition_point(|(held, _)| order(*held, name).is_lt());
        pods.insert(place, (name, &pod));
        if pods.len() <= CHUNK_MAX {
            *held = Arc::new(Chunk::copied(&chunk.namespace, &pods));
        } else {
            // A chunk that grows at its end stays nearly full, so that a list in order packs well.
            let half = if place + 1 == pods.len() { CHUNK_MAX } else { CHUNK_MAX / 2 };
            let (first, second) = pods.split_at(half);
            *held = Arc::new(Chunk::copied(&chunk.namespace, first));
            chunks.insert(at + 1, Arc::new(Chunk::copied(&chunk.namespace, second)));
        }
    }

    /// Takes a pod out.
    pub fn remove(&mut self, namespace: &str, name: &str) -> Option<Workload> {
        let name = WorkloadRef::split(name);
        let at = self.chunk_of(namespace, name);
        let place = self.chunks.get(at)?.place_of(namespace, name).ok()?;
        let chunks = Arc::make_mut(&mut self.chunks);
        let chunk = Arc::clone(chunks.get(at)?);
        let removed = chunk.pods.get(place)?.clone();
        self.count -= 1;
        // Small neighbours become one, else many removals leave many small chunks.
        let next = chunks.get(at + 1).cloned().filter(|next| {
            next.namespace == chunk.namespace && next.pods.len() + chunk.pods.len() < CHUNK_MAX / 2
        });
        let mut pods: Vec<(Name<'_>, &Workload)> = chunk.named().collect();
        pods.remove(place);
        if let Some(next) = &next {
            pods.extend(next.named());
            chunks.remove(at + 1);
        }
        if pods.is_empty() {
            chunks.remove(at);
        } else if let Some(held) = chunks.get_mut(at) {
            *held = Arc::new(Chunk::copied(&chunk.namespace, &pods));
        }
        Some(removed)
    }

    /// The names at which two values differ, in order. Chunks that both share are not looked into.
    pub fn differences(&self, other: &Self) -> Vec<WorkloadKey> {
        let mut differ = Vec::new();
        if Arc::ptr_eq(&self.chunks, &other.chunks) {
            return differ;
        }
        let (mut ours, mut theirs) = (WorkloadCursor::of(self), WorkloadCursor::of(other));
        loop {
            while ours.at_shared_chunk(&theirs) {
                ours.skip_chunk();
                theirs.skip_chunk();
            }
            let order = match (ours.peek(), theirs.peek()) {
                (None, None) => return differ,
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (Some((a, _)), Some((b, _))) => {
                    let of_namespace = a.namespace.cmp(b.namespace);
                    of_namespace.then_with(|| order((a.stem, a.tail), (b.stem, b.tail)))
                }
            };
            let key = |(pod, _): (WorkloadRef<'_>, &Workload)| pod.to_key();
            match order {
                Ordering::Less => differ.extend(ours.next().map(key)),
                Ordering::Greater => differ.extend(theirs.next().map(key)),
                Ordering::Equal => {
                    let (ours, theirs) = (ours.next(), theirs.next());
                    if ours.map(|(_, pod)| pod) != theirs.map(|(_, pod)| pod) {
                        differ.extend(ours.map(key));
                    }
                }
            }
        }
    }

    /// The chunk in which a name is, or would be.
    fn chunk_of(&self, namespace: &str, name: Name<'_>) -> usize {
        self.chunks.partition_point(|chunk| {
            let of_namespace = chunk.namespace.as_str().cmp(namespace);
            of_namespace.then_with(|| order(chunk.last().unwrap_or_default(), name)).is_lt()
        })
    }
}

/// Pods as a list has them, which become [`Workloads`] when all have come. Most lists are in order of namespace and
/// name: then each chunk is full and made once, and nothing else is held of a pod meanwhile.
#[derive(Default)]
pub struct WorkloadsBuilder {
    /// All but those in `open`, before which they stand.
    done: Workloads,
    /// The last ones, in order and of one namespace; its room is used again and again.
    open: OpenChunk,
    /// Whether some came out of order, which leaves chunks half full.
    uneven: bool,
}

/// A chunk that grows.
#[derive(Default)]
struct OpenChunk {
    namespace: Arc<str>,
    /// One after the other, whole.
    names: String,
    ends: Vec<usize>,
    pods: Vec<Workload>,
}

impl WorkloadsBuilder {
    /// Takes a pod, in the place of the one of that name if there is one.
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

    /// Drops a pod, if it is there.
    pub fn remove(&mut self, namespace: &str, name: &str) {
        self.close();
        self.uneven |= self.done.remove(namespace, name).is_some();
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.done.len() + self.open.pods.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All of them.
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

    /// Whether a name stands behind all that there are.
    fn ends_before(&self, namespace: &str, name: &str) -> bool {
        let open = self.open.names().next_back().map(|last| (&*self.open.namespace, last));
        let last = open.or_else(|| {
            let chunk = self.done.chunks.last()?;
            Some((chunk.namespace.as_str(), chunk.last().unwrap_or_default()))
        });
        let is_before = |(of, last): (&str, Name<'_>)| {
            of.cmp(namespace).then_with(|| order(last, ("", name))).is_lt()
        };
        last.is_none_or(is_before) && name.len() <= NAME_MAX
    }

    /// Makes a chunk of those that are open.
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

    /// Leaves its room behind.
    fn take(&mut self) -> Chunk {
        let pods = self.pods.drain(..).collect();
        let chunk = Chunk::of(Namespace::new(Arc::clone(&self.namespace)), self.names(), pods);
        self.names.clear();
        self.ends.clear();
        chunk
    }
}

/// How names in two parts compare, wherever each is parted.
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
    /// Pods of these names, in order.
    fn of<'a>(
        namespace: Namespace,
        names: impl Iterator<Item = Name<'a>> + Clone,
        pods: Box<[Workload]>,
    ) -> Self {
        // As long as they will be: what is cut off at the end stays behind as a hole.
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
        let stem = self.stems.get(self.run_of(at)?)?;
        Some((self.stem(stem), self.tail(stem, at)))
    }

    /// Which of the stems that of the name at a place is.
    fn run_of(&self, at: usize) -> Option<usize> {
        self.stems.partition_point(|stem| usize::from(stem.from) <= at).checked_sub(1)
    }

    fn stem(&self, stem: &Stem) -> &str {
        let start = self.end_before(stem.from.into());
        self.names.get(start..stem.end.into()).unwrap_or_default()
    }

    /// The rest of the name at a place where this is the stem.
    fn tail(&self, stem: &Stem, at: usize) -> &str {
        let is_first = at == usize::from(stem.from);
        let start = if is_first { stem.end.into() } else { self.end_before(at) };
        self.names.get(start..self.end_before(at + 1)).unwrap_or_default()
    }

    /// Where in the names that ends what belongs to those before a place.
    fn end_before(&self, at: usize) -> usize {
        let before = at.checked_sub(1).and_then(|before| self.ends.get(before));
        before.copied().unwrap_or_default().into()
    }

    fn last(&self) -> Option<Name<'_>> {
        let stem = self.stems.last()?;
        Some((self.stem(stem), self.tail(stem, self.ends.len().checked_sub(1)?)))
    }

    /// Where a name is, if it stands together with the pod at a place and shares its stem.
    fn find_beside(&self, at: usize, name: Name<'_>) -> Option<usize> {
        let run = self.run_of(at)?;
        if self.stem(self.stems.get(run)?) != name.0 {
            return None;
        }
        // Mostly it is the next one.
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

    /// Where a name is, or would be.
    fn place_of(&self, namespace: &str, name: Name<'_>) -> Result<usize, usize> {
        if self.namespace.as_str() != namespace {
            return Err(0);
        }
        // First among the names with which stems begin, then among those that share the one.
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

    /// Looks among the names that share a stem, at this place or the one next to it first.
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

/// Goes through all pods in order, or over a chunk at once.
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

    /// Alone, of a set, or of one whose name begins as another's.
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
    fn a_workload_is_small() {
        assert_eq!(size_of::<Workload>(), 32);
    }

    #[test]
    fn it_holds_what_a_plain_map_holds() {
        let mut random = StdRng::seed_from_u64(1);
        let (mut workloads, mut map) = (Workloads::default(), Plain::new());
        let mut old = (workloads.clone(), map.clone());
        for step in 0..20_000_u32 {
            let namespace = format!("ns-{}", random.random_range(0..3));
            let name = named(random.random_range(0..400));
            // Fewer and fewer in the end.
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
                // In order, with gaps, and from wherever the one before was.
                let mut near = Near::default();
                for at in (0..1200).map(|at| if at < 800 { at } else { at * 7919 % 400 }) {
                    let (namespace, name) = (format!("ns-{}", at / 400), named(at % 400));
                    let key = Namespace::from(&*namespace);
                    let found = workloads.find_next(&mut near, WorkloadRef::of(&key, &name));
                    assert_eq!(found, workloads.get(&namespace, &name), "{namespace}/{name}");
                    assert_eq!(found.is_some(), map.contains_key(&(namespace, name)));
                }
                let of_one = workloads.of_namespace("ns-1").count();
                assert_eq!(of_one, map.keys().filter(|(namespace, _)| namespace == "ns-1").count());
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
    fn names_in_two_parts_are_in_the_order_of_names() {
        let names = ["", "a", "a-", "a-b", "a-b-c", "a-bc", "ab", "a-c", "\u{fc}", "a-\u{fc}"];
        let parts = |name: &'static str| {
            let at = (0..=name.len()).filter(move |at| name.is_char_boundary(*at));
            at.map(move |at| (name, name.split_at(at)))
        };
        for (one, one_parted) in names.into_iter().flat_map(parts) {
            for (other, other_parted) in names.into_iter().flat_map(parts) {
                let found = order(one_parted, other_parted);
                assert_eq!(found, one.cmp(other), "{one_parted:?} {other_parted:?}");
            }
        }
    }

    #[test]
    fn what_the_names_of_a_set_have_in_common_is_kept_once() {
        let mut gathered = WorkloadsBuilder::default();
        let names = ["a", "a-b", "a-b-c", "a-b-d", "a-c", "a-d", "b-", "b-a"];
        for (number, name) in (0..).zip(names) {
            gathered.put(&"shop".into(), name, pod(IpAddr::from([10, 0, 0, number])));
        }
        let workloads = gathered.finish();
        let held: Vec<String> = workloads.iter().map(|(key, _)| key.name()).collect();
        assert_eq!(held, names);
        let [chunk] = &workloads.chunks[..] else { panic!("few pods are one chunk") };
        assert_eq!(&*chunk.names, "aa-ba-b-cda-cdb-a");
    }

    #[test]
    fn what_is_gathered_is_what_was_put_and_packs_well_in_any_order() {
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
    fn a_list_in_order_packs_well() {
        let mut workloads = Workloads::default();
        for number in 0..10_000_u32 {
            let name = format!("cart-{number:05}");
            workloads.insert(&"shop".into(), &name, pod(IpAddr::from(number.to_be_bytes())));
        }
        assert!(workloads.chunks.len() < 10_000 / CHUNK_MAX + 5);
    }
}
