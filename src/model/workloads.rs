//! All pods of a cluster by name, as a value that costs nothing to share and little to change.
//!
//! Pods stand in order of namespace and name, in chunks of at most [`CHUNK_MAX`]; a chunk is the names
//! in one text and the records in one array. A change copies one chunk. Whoever keeps an older value
//! shares all chunks but those, and what two values differ in is found by looking at those alone.

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
    /// One more than its place; 0 before anything was found.
    place: usize,
}

/// Some pods of one namespace, in order of their names.
#[derive(Clone)]
struct Chunk {
    namespace: Arc<str>,
    names: Box<str>,
    /// Where in `names` each name ends. Names are at most 253 bytes, so this is below 2^14.
    ends: Box<[u16]>,
    pods: Box<[Workload]>,
}

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
        self.find_near(&mut Near::default(), namespace, (name, ""))
    }

    /// The pod that an endpoint names, for somebody who looks up many that are near each other, as the
    /// members of a slice mostly are: each is looked for behind the one before, and in its chunk, at first.
    pub fn find_next(&self, near: &mut Near, pod: WorkloadRef<'_>) -> Option<&Workload> {
        self.find_near(near, pod.namespace.as_str(), (pod.stem, pod.tail))
    }

    fn find_near(&self, near: &mut Near, namespace: &str, name: (&str, &str)) -> Option<&Workload> {
        if let Some(chunk) = self.chunks.get(near.chunk)
            && *chunk.namespace == *namespace
            && let Some(held) = chunk.name(near.place)
            && order(held, name).is_eq()
        {
            near.place += 1;
            return chunk.pods.get(near.place - 1);
        }
        let at = match self.chunks.get(near.chunk) {
            Some(chunk) if near.place > 0 && chunk.spans(namespace, name) => near.chunk,
            _ => self.chunk_of(namespace, name),
        };
        let chunk = self.chunks.get(at)?;
        let place = chunk.place_of(namespace, name).ok()?;
        *near = Near { chunk: at, place: place + 1 };
        chunk.pods.get(place)
    }

    /// All of them with namespace and name, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&Arc<str>, &str, &Workload)> {
        self.chunks.iter().flat_map(|chunk| chunk.iter())
    }

    /// Those of a namespace.
    pub fn of_namespace(&self, namespace: &str) -> impl Iterator<Item = (&str, &Workload)> {
        let from = self.chunks.partition_point(|chunk| *chunk.namespace < *namespace);
        let chunks = self.chunks.get(from..).unwrap_or_default().iter();
        let chunks = chunks.take_while(move |chunk| *chunk.namespace == *namespace);
        chunks.flat_map(|chunk| chunk.iter()).map(|(_, name, pod)| (name, pod))
    }

    /// Puts a pod in the place of the one of that name, if there is one. Names longer than 253 bytes,
    /// which no object has, are cut.
    pub fn insert(&mut self, namespace: &Arc<str>, name: &str, pod: Workload) {
        let name = name.get(..NAME_MAX).unwrap_or(name);
        let at = self.chunk_of(namespace, (name, ""));
        let place = self.chunks.get(at).map(|chunk| chunk.place_of(namespace, (name, "")));
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
        let same =
            |chunk: Option<&Arc<Chunk>>| chunk.is_some_and(|chunk| chunk.namespace == *namespace);
        let at = match at.checked_sub(1) {
            Some(before) if !same(chunks.get(at)) && same(chunks.get(before)) => before,
            _ if same(chunks.get(at)) => at,
            _ => {
                let one = Chunk::of(namespace, &[(name, &pod)]);
                chunks.insert(at, Arc::new(one));
                return;
            }
        };
        let Some(chunk) = chunks.get_mut(at) else { return };
        let mut pods: Vec<(&str, &Workload)> =
            chunk.iter().map(|(_, name, pod)| (name, pod)).collect();
        let place = pods.partition_point(|(held, _)| *held < name);
        pods.insert(place, (name, &pod));
        if pods.len() <= CHUNK_MAX {
            *chunk = Arc::new(Chunk::of(namespace, &pods));
        } else {
            // A chunk that grows at its end stays nearly full, so that a list in order packs well.
            let half = if place + 1 == pods.len() { CHUNK_MAX } else { CHUNK_MAX / 2 };
            let (first, second) = pods.split_at(half);
            let second = Arc::new(Chunk::of(namespace, second));
            *chunk = Arc::new(Chunk::of(namespace, first));
            chunks.insert(at + 1, second);
        }
    }

    /// Takes a pod out.
    pub fn remove(&mut self, namespace: &str, name: &str) -> Option<Workload> {
        let at = self.chunk_of(namespace, (name, ""));
        let place = self.chunks.get(at)?.place_of(namespace, (name, "")).ok()?;
        let chunks = Arc::make_mut(&mut self.chunks);
        let chunk = Arc::clone(chunks.get(at)?);
        let removed = chunk.pods.get(place)?.clone();
        self.count -= 1;
        // Small neighbours become one, else many removals leave many small chunks.
        let next = chunks.get(at + 1).cloned().filter(|next| {
            next.namespace == chunk.namespace && next.pods.len() + chunk.pods.len() < CHUNK_MAX / 2
        });
        let mut pods: Vec<(&str, &Workload)> =
            chunk.iter().map(|(_, name, pod)| (name, pod)).collect();
        pods.remove(place);
        if let Some(next) = &next {
            pods.extend(next.iter().map(|(_, name, pod)| (name, pod)));
            chunks.remove(at + 1);
        }
        if pods.is_empty() {
            chunks.remove(at);
        } else if let Some(held) = chunks.get_mut(at) {
            *held = Arc::new(Chunk::of(&chunk.namespace, &pods));
        }
        Some(removed)
    }

    /// The names at which two values differ, in order. Chunks that both share are not looked into.
    pub fn differences(&self, other: &Self) -> Vec<WorkloadKey> {
        let mut differ = Vec::new();
        let (mut ours, mut theirs) = (Cursor::of(self), Cursor::of(other));
        loop {
            while ours.at_shared_chunk(&theirs) {
                ours.skip_chunk();
                theirs.skip_chunk();
            }
            let order = match (ours.peek(), theirs.peek()) {
                (None, None) => return differ,
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (Some((a, b, _)), Some((c, d, _))) => (&**a, b).cmp(&(&**c, d)),
            };
            let key = |(namespace, name, _): (&Arc<str>, &str, &Workload)| {
                WorkloadKey::new(Namespace::new(Arc::clone(namespace)), name)
            };
            match order {
                Ordering::Less => differ.extend(ours.next().map(key)),
                Ordering::Greater => differ.extend(theirs.next().map(key)),
                Ordering::Equal => {
                    let (ours, theirs) = (ours.next(), theirs.next());
                    if ours.map(|(_, _, pod)| pod) != theirs.map(|(_, _, pod)| pod) {
                        differ.extend(ours.map(key));
                    }
                }
            }
        }
    }

    /// The chunk in which a name is, or would be.
    fn chunk_of(&self, namespace: &str, name: (&str, &str)) -> usize {
        self.chunks.partition_point(|chunk| {
            let of_namespace = (*chunk.namespace).cmp(namespace);
            of_namespace.then_with(|| order(chunk.last().unwrap_or_default(), name)).is_lt()
        })
    }
}

/// Pods as a list tells them, which become [`Workloads`] when all have come. Most lists are in order of
/// namespace and name: then each chunk is full and made once, and nothing else is held of a pod meanwhile.
#[derive(Default)]
pub struct Gathered {
    /// All but those in `open`, before which they stand.
    done: Workloads,
    /// The last ones, in order and of one namespace; its room is used again and again.
    open: Open,
    /// Whether some came out of order, which leaves chunks half full.
    uneven: bool,
}

/// A chunk that grows.
#[derive(Default)]
struct Open {
    namespace: Arc<str>,
    names: String,
    ends: Vec<u16>,
    pods: Vec<Workload>,
}

impl Gathered {
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
        for (namespace, name, pod) in self.done.iter() {
            packed.put(namespace, name, pod.clone());
        }
        packed.finish()
    }

    /// Whether a name stands behind all that there are.
    fn ends_before(&self, namespace: &str, name: &str) -> bool {
        let open = self.open.pods.last().map(|_| (&*self.open.namespace, self.open.last()));
        let last = open.or_else(|| {
            let chunk = self.done.chunks.last()?;
            Some((&*chunk.namespace, chunk.last().unwrap_or_default()))
        });
        last.is_none_or(|last| last < (namespace, name)) && name.len() <= NAME_MAX
    }

    /// Makes a chunk of those that are open.
    fn close(&mut self) {
        if !self.open.pods.is_empty() {
            self.done.count += self.open.pods.len();
            Arc::make_mut(&mut self.done.chunks).push(Arc::new(self.open.take()));
        }
    }
}

impl Open {
    fn push(&mut self, name: &str, pod: Workload) {
        self.names.push_str(name);
        self.ends.push(u16::try_from(self.names.len()).unwrap_or(u16::MAX));
        self.pods.push(pod);
    }

    fn last(&self) -> &str {
        let before = self.ends.iter().rev().nth(1).copied().unwrap_or_default();
        self.names.get(usize::from(before)..).unwrap_or_default()
    }

    /// Leaves its room behind.
    fn take(&mut self) -> Chunk {
        let chunk = Chunk {
            namespace: Arc::clone(&self.namespace),
            names: self.names.as_str().into(),
            ends: self.ends.as_slice().into(),
            pods: self.pods.drain(..).collect(),
        };
        self.names.clear();
        self.ends.clear();
        chunk
    }
}

/// How a name compares with one that is in two parts.
fn order(held: &str, (stem, tail): (&str, &str)) -> Ordering {
    let (before, after) = held.as_bytes().split_at(held.len().min(stem.len()));
    before.cmp(stem.as_bytes()).then_with(|| after.cmp(tail.as_bytes()))
}

impl Chunk {
    fn of(namespace: &Arc<str>, pods: &[(&str, &Workload)]) -> Self {
        let mut names = String::with_capacity(pods.iter().map(|(name, _)| name.len()).sum());
        let ends = pods.iter().map(|(name, _)| {
            names.push_str(name);
            u16::try_from(names.len()).unwrap_or(u16::MAX)
        });
        Self {
            namespace: Arc::clone(namespace),
            ends: ends.collect(),
            names: names.into(),
            pods: pods.iter().map(|(_, pod)| Workload::clone(pod)).collect(),
        }
    }

    fn name(&self, at: usize) -> Option<&str> {
        let end = usize::from(*self.ends.get(at)?);
        let start = at.checked_sub(1).and_then(|before| self.ends.get(before)).copied();
        self.names.get(usize::from(start.unwrap_or_default())..end)
    }

    fn last(&self) -> Option<&str> {
        self.name(self.ends.len().checked_sub(1)?)
    }

    /// Whether a name is in here if it is anywhere.
    fn spans(&self, namespace: &str, name: (&str, &str)) -> bool {
        let (first, last) = (self.name(0).unwrap_or_default(), self.last().unwrap_or_default());
        *self.namespace == *namespace && order(first, name).is_le() && order(last, name).is_ge()
    }

    fn get(&self, at: usize) -> Option<(&Arc<str>, &str, &Workload)> {
        Some((&self.namespace, self.name(at)?, self.pods.get(at)?))
    }

    fn iter(&self) -> impl Iterator<Item = (&Arc<str>, &str, &Workload)> {
        (0..self.pods.len()).filter_map(|at| self.get(at))
    }

    /// Where a name is, or would be.
    fn place_of(&self, namespace: &str, name: (&str, &str)) -> Result<usize, usize> {
        if *self.namespace != *namespace {
            return Err(0);
        }
        let (mut low, mut high) = (0, self.pods.len());
        while low < high {
            let middle = low.midpoint(high);
            match order(self.name(middle).unwrap_or_default(), name) {
                Ordering::Less => low = middle + 1,
                Ordering::Greater => high = middle,
                Ordering::Equal => return Ok(middle),
            }
        }
        Err(low)
    }
}

/// Goes through all pods in order, or over a chunk at once.
struct Cursor<'a> {
    chunks: &'a [Arc<Chunk>],
    at: usize,
}

impl<'a> Cursor<'a> {
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

    fn peek(&self) -> Option<(&'a Arc<str>, &'a str, &'a Workload)> {
        self.chunks.first()?.get(self.at)
    }

    fn next(&mut self) -> Option<(&'a Arc<str>, &'a str, &'a Workload)> {
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

impl fmt::Debug for Gathered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gathered").field("pods", &self.len()).finish_non_exhaustive()
    }
}

impl fmt::Debug for Workloads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = self.iter().map(|(namespace, name, pod)| (format!("{namespace}/{name}"), pod));
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
    use crate::model::Profile;

    type Plain = BTreeMap<(String, String), IpAddr>;

    fn pod(address: IpAddr) -> Workload {
        let profile = Arc::new(Profile::default());
        Workload { profile, addresses: [address].into_iter().collect(), node: None }
    }

    fn plain(workloads: &Workloads) -> Plain {
        let all = workloads.iter().map(|(namespace, name, pod)| {
            let address = pod.addresses.iter().next().expect("an address");
            ((namespace.to_string(), name.to_owned()), address)
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
            let name = format!("pod-{}", random.random_range(0..400));
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
                    let (namespace, name) =
                        (format!("ns-{}", at / 400), format!("pod-{}", at % 400));
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
        for (held, name) in names.iter().flat_map(|held| names.iter().map(move |name| (held, name)))
        {
            for at in (0..=name.len()).filter(|at| name.is_char_boundary(*at)) {
                assert_eq!(order(held, name.split_at(at)), held.cmp(name), "{held} {name} {at}");
            }
        }
    }

    #[test]
    fn what_is_gathered_is_what_was_put_and_packs_well_in_any_order() {
        let mut random = StdRng::seed_from_u64(2);
        for disorder in [0.0, 0.01, 0.5, 1.0] {
            let (mut gathered, mut map) = (Gathered::default(), Plain::new());
            for step in 0..5_000_u32 {
                let number = if random.random_bool(disorder) {
                    random.random_range(0..step + 1)
                } else {
                    step
                };
                let (namespace, name) =
                    (format!("ns-{}", number / 2_000), format!("pod-{number:05}"));
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
