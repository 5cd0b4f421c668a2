//! Previews the configuration of connected proxies for a different mesh. The results are not sent.
//!
//! The production generators run for both meshes, with separate caches. Proxies that receive equal
//! configuration are evaluated once.

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

/// The maximum number of changed resources that are listed for all proxies together. Once it is
/// exceeded, further proxies are skipped. A response contains about 100 bytes for each resource.
const NAMED_MAX: usize = 200_000;

/// The changes to the resources of one type.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TypePreview {
    /// Resources that would be added, by name.
    pub added: BTreeMap<Arc<str>, Arc<Resource>>,
    /// Resources that would change, by name: the current and the new version.
    pub changed: BTreeMap<Arc<str>, [Arc<Resource>; 2]>,
    /// Resources that would be removed, by name.
    pub removed: BTreeMap<Arc<str>, Arc<Resource>>,
}

/// The amount of configuration that a proxy holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct HeldTotals {
    /// The number of resources of all types.
    pub resources: usize,
    /// The approximate encoded size of the resources, in bytes.
    pub bytes: usize,
}

/// The changes for a group of proxies that receive equal configuration.
#[derive(Debug, Clone)]
pub struct PreviewedProxies {
    /// The streams of the proxies, oldest first.
    pub streams: Vec<Arc<OpenStream>>,
    /// The amount of configuration that each proxy holds now, and that it would hold.
    pub totals: [HeldTotals; 2],
    /// The changes by type. Types without changes are omitted.
    pub types: BTreeMap<ResourceType, TypePreview>,
}

/// The changes for all proxies.
#[derive(Debug, Clone, Default)]
pub struct MeshPreview {
    /// The groups that were evaluated. A group without changes has no types.
    pub groups: Vec<PreviewedProxies>,
    /// The number of streams that were skipped to limit time or memory.
    pub skipped: usize,
}

/// The properties of a proxy that can influence its configuration, without its node and its own
/// addresses. Proxies with equal properties form a group.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct PreviewGroup {
    proxy: String,
    labels: Labels,
    place: (NetworkId, Option<String>),
    types: Vec<ResourceType>,
    /// A hash of the subscribed names of each type. The names of all proxies would need too much
    /// memory.
    names: BTreeMap<ResourceType, u128>,
}

/// Returns the names that a stream subscribes to, by type.
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
                // A separator that no name contains.
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

/// Returns one placeholder address for each address family of a proxy.
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

/// Returns whether clients subscribe to resources of a type by name.
fn is_named(kind: ResourceType, proxy: &Proxy) -> bool {
    !kind.is_wildcard() || proxy.is_proxyless()
}

/// The differences between pairs of lists. The keys are the memory addresses of the lists; the
/// lists are stored so that their addresses stay valid.
type ComparedLists = BTreeMap<[usize; 2], ([Arc<SharedList>; 2], Arc<TypePreview>)>;

/// Two meshes, and the differences that were already computed.
struct Preview {
    contexts: [Arc<PushContext>; 2],
    caches: [Cache; 2],
    lists: ComparedLists,
}

/// Computes the changes for each of these streams. Streams that are not evaluated before `deadline`
/// are skipped.
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
    // One preview per cluster that defines traffic rules for its proxies, and one for all other
    // clusters.
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
    /// The groups of proxies with changes.
    pub fn affected(&self) -> impl Iterator<Item = &PreviewedProxies> {
        self.groups.iter().filter(|group| !group.types.is_empty())
    }

    /// Returns the number of streams without changes.
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
    /// Computes the changes for one proxy that subscribes to these types and, for named types, to
    /// these names. Also returns the amounts of configuration before and after.
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
        // Types that refer to other types are computed first.
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

/// Returns the names that a client subscribes to after it has received the changes of the type that
/// refers to them.
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

/// Computes the differences between two sets of resources of a wildcard type.
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
    // A resource may move from the shared list to the proxy's own resources, or back.
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
    /// Returns the number of changed resources.
    pub fn len(&self) -> usize {
        self.added.len() + self.changed.len() + self.removed.len()
    }

    /// Returns whether no resource changes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Adds the differences between two lists that are sorted by name.
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
    fn differences_are_computed_by_name() {
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
