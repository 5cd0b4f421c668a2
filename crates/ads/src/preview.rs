//! What connected proxies would be sent if the mesh were another: nothing is sent.
//!
//! The very generators are run for both meshes, by caches of their own. Proxies that are given alike are looked at once.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

use xxhash_rust::xxh3::Xxh3;

use super::connections::OpenStream;
use strait_envoy::{Cache, ProxyConfig};
use strait_mesh::push::{PushContext, Whereabouts};
use strait_model::{ClusterId, Labels, NetworkId, Proxy, WorkloadKey};
use strait_xds::list::SharedList;
use strait_xds::references::names_in;
use strait_xds::resource::{All, Resource, ResourceSource as _, ResourceType};

/// How many resources that would come, go or be otherwise are named of all proxies together; who comes behind that isn't
/// looked at. Some 100 bytes each in an answer.
const NAMED_MAX: usize = 200_000;

/// What would be otherwise of one type.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TypePreview {
    /// Resources that would come, by name.
    pub added: BTreeMap<Arc<str>, Arc<Resource>>,
    /// Resources that would be otherwise, by name: as they are, and as they would be.
    pub changed: BTreeMap<Arc<str>, [Arc<Resource>; 2]>,
    /// Resources that would go, by name.
    pub removed: BTreeMap<Arc<str>, Arc<Resource>>,
}

/// How much a proxy holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct HeldTotals {
    /// Resources of all types.
    pub resources: usize,
    /// Their bytes, about, as they are sent.
    pub bytes: usize,
}

/// What would be otherwise for some proxies, which are given alike.
#[derive(Debug, Clone)]
pub struct PreviewedProxies {
    /// Their streams, oldest first.
    pub streams: Vec<Arc<OpenStream>>,
    /// How much each of them holds, and would hold.
    pub totals: [HeldTotals; 2],
    /// By type; types of which nothing would be otherwise are left out.
    pub types: BTreeMap<ResourceType, TypePreview>,
}

/// What would be otherwise for all proxies.
#[derive(Debug, Clone, Default)]
pub struct MeshPreview {
    /// Those that were looked at; who would be told nothing has no types.
    pub groups: Vec<PreviewedProxies>,
    /// How many streams were not looked at, since that would have taken too long, or too much memory.
    pub skipped: usize,
}

/// All of a proxy that may make a difference to what it is given by what is tried; but its node, and its own addresses.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct PreviewGroup {
    proxy: String,
    labels: Labels,
    place: (NetworkId, Option<String>),
    types: Vec<ResourceType>,
    /// Of the names that it asks for, by type: a hash, since the names of all proxies at once may be many.
    names: BTreeMap<ResourceType, u128>,
}

/// The names that a stream asks for, by type.
fn names_of(stream: &OpenStream) -> BTreeMap<ResourceType, BTreeSet<Arc<str>>> {
    let held = stream.held();
    let held = held.iter().filter(|(kind, _)| is_named(**kind, stream.proxy()));
    held.map(|(kind, all)| (*kind, all.keys().cloned().collect())).collect()
}

impl PreviewGroup {
    fn of(context: &PushContext, stream: &OpenStream) -> Self {
        let proxy = stream.proxy();
        let (network, whereabouts) = stream.place();
        let held = stream.held();
        let names = held.iter().filter(|(kind, _)| is_named(**kind, proxy)).map(|(kind, all)| {
            let mut hash = Xxh3::new();
            for name in all.keys() {
                hash.update(name.as_bytes());
                // No name has it.
                hash.update(&[0]);
            }
            (*kind, hash.digest128())
        });
        let unnamed = Proxy {
            id: "".into(),
            workload: WorkloadKey::new(proxy.namespace().as_str(), ""),
            addresses: families(proxy),
            node_name: None,
            ..proxy.clone()
        };
        let locality = whereabouts.locality.as_ref().map(|one| format!("{one:?}"));
        Self {
            proxy: format!("{unnamed:?}"),
            labels: context.labels_of(proxy).clone(),
            place: (network, locality),
            types: held.keys().copied().collect(),
            names: names.collect(),
        }
    }
}

/// One address of each family that a proxy has, whichever it is.
fn families(proxy: &Proxy) -> Vec<std::net::IpAddr> {
    use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
    let stand_in = |one: &IpAddr| match one {
        IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    };
    let mut all: Vec<_> = proxy.addresses.iter().map(stand_in).collect();
    all.dedup();
    all
}

/// Whether clients name what they want of a type.
fn is_named(kind: ResourceType, proxy: &Proxy) -> bool {
    !kind.is_wildcard() || proxy.is_proxyless()
}

/// What differs of two lists, by their places in memory; the lists are kept, so that these stay theirs.
type ComparedLists = BTreeMap<[usize; 2], ([Arc<SharedList>; 2], Arc<TypePreview>)>;

/// Two meshes, and what was found out of them already.
struct Preview {
    contexts: [Arc<PushContext>; 2],
    caches: [Cache; 2],
    lists: ComparedLists,
}

/// What would be otherwise for each of these streams, looked for until `deadline`.
pub fn preview(
    contexts: [&Arc<PushContext>; 2],
    streams: &[Arc<OpenStream>],
    deadline: Instant,
) -> MeshPreview {
    let mut groups = BTreeMap::<PreviewGroup, Vec<Arc<OpenStream>>>::new();
    for stream in streams {
        let group = PreviewGroup::of(contexts[0], stream);
        groups.entry(group).or_default().push(Arc::clone(stream));
    }
    // One for proxies of all clusters but those for which other rules hold.
    let mut previews = BTreeMap::<Option<ClusterId>, Preview>::new();
    let (mut found, mut named) = (MeshPreview::default(), 0);
    for (group, streams) in groups {
        if Instant::now() >= deadline || named > NAMED_MAX {
            found.skipped += streams.len();
            continue;
        }
        let first = &streams[0];
        let names = names_of(first);
        let cluster = &first.proxy().cluster;
        let has_own = contexts.iter().any(|context| context.own_traffic.contains_key(cluster));
        let cluster = has_own.then_some(cluster);
        let preview = previews.entry(cluster.cloned()).or_insert_with(|| {
            let of = |context: &Arc<PushContext>| {
                let edition = cluster.and_then(|cluster| context.edition(cluster));
                edition.map_or_else(|| Arc::clone(context), Arc::new)
            };
            let caches = [Cache::default(), Cache::default()];
            Preview { contexts: contexts.map(of), caches, lists: BTreeMap::new() }
        });
        let (types, totals) = preview.of(first.proxy(), first.place(), &group.types, &names);
        named += types.values().map(TypePreview::len).sum::<usize>();
        found.groups.push(PreviewedProxies { streams, totals, types });
    }
    found
}

impl MeshPreview {
    /// Those that would be sent something.
    pub fn affected(&self) -> impl Iterator<Item = &PreviewedProxies> {
        self.groups.iter().filter(|group| !group.types.is_empty())
    }

    /// How many streams would be told nothing.
    pub fn unaffected(&self) -> usize {
        let untold = self.groups.iter().filter(|group| group.types.is_empty());
        untold.map(|group| group.streams.len()).sum()
    }
}

impl HeldTotals {
    fn add<'a>(&mut self, resources: impl IntoIterator<Item = &'a Arc<Resource>>) {
        for one in resources {
            self.resources += 1;
            self.bytes += one.encoded_len();
        }
    }
}

impl Preview {
    /// What would be otherwise for one proxy that asks for these types, and of types by name for these names; and how much
    /// that comes to.
    fn of(
        &mut self,
        proxy: &Proxy,
        (network, whereabouts): (NetworkId, Whereabouts),
        types: &[ResourceType],
        names: &BTreeMap<ResourceType, BTreeSet<Arc<str>>>,
    ) -> (BTreeMap<ResourceType, TypePreview>, [HeldTotals; 2]) {
        let mut totals = [HeldTotals::default(); 2];
        let Self { contexts, caches, lists } = self;
        let mut configs = [0, 1].map(|side| {
            let config = ProxyConfig::new(&contexts[side], proxy, network.clone(), &caches[side]);
            config.at(whereabouts.clone())
        });
        let mut found = BTreeMap::<ResourceType, TypePreview>::new();
        // What refers to others comes before them.
        for kind in types.iter().filter(|kind| !is_named(**kind, proxy)) {
            let all = configs.each_mut().map(|config| config.all(*kind));
            for (totals, all) in totals.iter_mut().zip(&all) {
                totals.add(all.shared.resources().iter().chain(&all.own));
            }
            found.insert(*kind, difference(lists, *kind, all));
        }
        for (kind, held) in names {
            let referring = match kind {
                ResourceType::Endpoint => Some(ResourceType::Cluster),
                ResourceType::Route => Some(ResourceType::Listener),
                _ => None,
            };
            let referring = referring.and_then(|kind| Some((kind, found.get(&kind)?)));
            let then = referring
                .map_or_else(|| held.clone(), |(kind, otherwise)| followed(held, kind, otherwise));
            let mut otherwise = TypePreview::default();
            for name in held.union(&then) {
                let [old, new] = configs.each_mut().map(|config| config.one(*kind, name));
                let old = old.filter(|_| held.contains(name));
                let new = new.filter(|_| then.contains(name));
                totals[0].add(&old);
                totals[1].add(&new);
                otherwise.note(old.as_ref(), new.as_ref());
            }
            found.insert(*kind, otherwise);
        }
        found.retain(|_, otherwise| !otherwise.is_empty());
        (found, totals)
    }
}

/// The names that a client asks for once it holds what differs of the type that names them.
fn followed(
    held: &BTreeSet<Arc<str>>,
    kind: ResourceType,
    otherwise: &TypePreview,
) -> BTreeSet<Arc<str>> {
    let named = |resources: &mut dyn Iterator<Item = &Arc<Resource>>| {
        let all = resources.flat_map(|one| names_in(kind, &one.body.to_bytes()));
        all.map(Arc::from).collect::<BTreeSet<Arc<str>>>()
    };
    let changed = || otherwise.changed.values();
    let gone = named(&mut otherwise.removed.values().chain(changed().map(|[old, _]| old)));
    let come = named(&mut otherwise.added.values().chain(changed().map(|[_, new]| new)));
    let mut then: BTreeSet<_> = held.difference(&gone).cloned().collect();
    then.extend(come);
    then
}

/// What differs of two sets of resources of a wildcard type.
fn difference(lists: &mut ComparedLists, kind: ResourceType, [old, new]: [All; 2]) -> TypePreview {
    let place = [&old.shared, &new.shared].map(|list| Arc::as_ptr(list) as usize);
    let (_, shared) = lists.entry(place).or_insert_with(|| {
        let mut found = TypePreview::default();
        if old.shared != new.shared {
            found.compare(old.shared.resources(), new.shared.resources());
        }
        ([Arc::clone(&old.shared), Arc::clone(&new.shared)], Arc::new(found))
    });
    let mut found = TypePreview::clone(shared);
    found.compare(&old.own, &new.own);
    // What goes from the list that many hold may come as its own, and the other way round.
    let moved: Vec<_> =
        found.added.keys().filter(|name| found.removed.contains_key(*name)).cloned().collect();
    for name in moved {
        let (old, new) = (found.removed.remove(&name), found.added.remove(&name));
        found.note(old.as_ref(), new.as_ref());
    }
    debug_assert!(kind.is_wildcard());
    found
}

impl TypePreview {
    /// How many resources would be otherwise.
    pub fn len(&self) -> usize {
        self.added.len() + self.changed.len() + self.removed.len()
    }

    /// Whether nothing would be otherwise.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Compares two lists that are sorted by name.
    fn compare(&mut self, old: &[Arc<Resource>], new: &[Arc<Resource>]) {
        let (mut old, mut new) = (old.iter().peekable(), new.iter().peekable());
        loop {
            let order = match (old.peek(), new.peek()) {
                (None, None) => return,
                (Some(_), None) => std::cmp::Ordering::Less,
                (None, Some(_)) => std::cmp::Ordering::Greater,
                (Some(old), Some(new)) => old.name.cmp(&new.name),
            };
            let old = if order.is_le() { old.next() } else { None };
            let new = if order.is_ge() { new.next() } else { None };
            self.note(old, new);
        }
    }

    fn note(&mut self, old: Option<&Arc<Resource>>, new: Option<&Arc<Resource>>) {
        match (old, new) {
            (None, None) => {}
            (Some(old), None) => _ = self.removed.insert(Arc::clone(&old.name), Arc::clone(old)),
            (None, Some(new)) => _ = self.added.insert(Arc::clone(&new.name), Arc::clone(new)),
            (Some(old), Some(new)) => {
                if old.version != new.version {
                    let both = [Arc::clone(old), Arc::clone(new)];
                    self.changed.insert(Arc::clone(&new.name), both);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_differs_is_found_by_name() {
        let list = |all: &[(&str, &str)]| -> Vec<Arc<Resource>> {
            all.iter()
                .map(|(name, body)| Arc::new(Resource::new(*name, body.to_string())))
                .collect()
        };
        let mut found = TypePreview::default();
        found.compare(
            &list(&[("a", "1"), ("b", "1"), ("d", "1")]),
            &list(&[("b", "2"), ("c", "1"), ("d", "1"), ("e", "1")]),
        );
        let names = |all: &BTreeMap<Arc<str>, Arc<Resource>>| -> Vec<String> {
            all.keys().map(ToString::to_string).collect()
        };
        assert_eq!(
            (names(&found.added), names(&found.removed)),
            (vec!["c".to_owned(), "e".to_owned()], vec!["a".to_owned()])
        );
        assert_eq!(found.changed.keys().map(|one| &**one).collect::<Vec<_>>(), ["b"]);
    }
}
