//! The objects of one cluster, and what they mean together.
//!
//! A plain value: [`Index::apply`] takes what a watch tells and returns what that touched,
//! [`Index::contents`] says what the touched parts are now. What they are never depends on the order
//! in which objects came: a slice may come before its pod, a pod before its node, a service last.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use super::Skipped;
use super::endpoint_slice::{Member, Slice, SliceObject};
use super::namespace::{NamespaceFacts, NamespaceObject};
use super::node::{Node, NodeObject};
use super::pod::{Pod, PodObject};
use super::service::{KubeService, ServiceObject};
use crate::apiserver::{Event, Key, Object, Odd};
use crate::model::{
    Endpoint, Hostname, Locality, Namespace, NetworkId, PodState, TlsMode, WorkloadKey,
};
use crate::registry::{Contents, ServiceRecord};

/// The namespace whose UID is the identity of a cluster.
const KUBE_SYSTEM: &str = "kube-system";

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

/// The objects of one cluster.
#[derive(Debug)]
pub(super) struct Index {
    settings: Settings,
    services: BTreeMap<Key, KubeService>,
    slices: BTreeMap<Key, Slice>,
    pods: BTreeMap<Key, Pod>,
    /// Whether pods have been listed: else a pod that is not here is not missing, but unknown.
    pods_listed: bool,
    nodes: BTreeMap<Arc<str>, Node>,
    namespaces: BTreeMap<Arc<str>, NamespaceFacts>,
    /// Objects that make no sense, wholly or in part, and why.
    odd: BTreeMap<(Kind, Option<Key>), String>,
    last_odd: Option<String>,
    /// Who has to be looked at again when something changes.
    slices_of: BTreeMap<Reference, BTreeSet<Key>>,
    pods_on: BTreeMap<Arc<str>, BTreeSet<Key>>,
    pods_at: BTreeMap<(Arc<str>, IpAddr), BTreeSet<Key>>,
    /// What was said last: equal content is not said again.
    said: Said,
}

#[derive(Debug, Default)]
struct Said {
    services: BTreeMap<Key, ServiceRecord>,
    network: Option<Option<NetworkId>>,
    endpoints: usize,
}

/// What a slice depends on besides itself.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Reference {
    /// The service it belongs to.
    Service(Key),
    /// A pod it names.
    Pod(Key),
    /// An address for which it names no pod, and its namespace.
    Address(Arc<str>, IpAddr),
    /// A node it names.
    Node(Arc<str>),
}

/// The kinds an index holds, also as words for messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Kind {
    Services,
    EndpointSlices,
    Pods,
    Nodes,
    Namespaces,
}

impl Kind {
    /// All of them.
    pub(super) const ALL: [Self; 5] =
        [Self::Services, Self::EndpointSlices, Self::Pods, Self::Nodes, Self::Namespaces];

    /// The kind in plural, as in paths.
    pub(super) const fn plural(self) -> &'static str {
        match self {
            Self::Services => "services",
            Self::EndpointSlices => "endpointslices",
            Self::Pods => "pods",
            Self::Nodes => "nodes",
            Self::Namespaces => "namespaces",
        }
    }

    /// What is lost where it may not be read; `None` where nothing works without it.
    pub(super) const fn optional(self) -> Option<&'static str> {
        match self {
            Self::Pods => Some("no identities, no labels, nothing crosses networks"),
            Self::Nodes => Some("no localities but the zones of slices, no NodePort gateways"),
            Self::Services | Self::EndpointSlices | Self::Namespaces => None,
        }
    }
}

/// What a change touched.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Touched {
    services: BTreeSet<Key>,
    workloads: BTreeSet<Key>,
    system_namespace: bool,
}

impl Touched {
    /// Adds what another change touched.
    pub(super) fn merge(&mut self, other: Self) {
        self.services.extend(other.services);
        self.workloads.extend(other.workloads);
        self.system_namespace |= other.system_namespace;
    }

    /// Whether it is nothing.
    pub(super) fn is_empty(&self) -> bool {
        self.services.is_empty() && self.workloads.is_empty() && !self.system_namespace
    }
}

/// A kind of object that the index holds.
pub(super) trait Indexed: Object {
    /// Which.
    const KIND: Kind;

    /// Keeps it in place of what had its key. Returns what of it makes no sense.
    fn put(self, key: Key, index: &mut Index, touched: &mut Touched) -> Option<String>;

    /// Drops what has that key.
    fn remove(key: &Key, index: &mut Index, touched: &mut Touched);

    /// The keys of all that are kept.
    fn keys(index: &Index) -> Vec<Key>;
}

impl Index {
    /// An index of nothing yet.
    pub(super) fn new(settings: Settings) -> Self {
        Self {
            settings,
            services: BTreeMap::new(),
            slices: BTreeMap::new(),
            pods: BTreeMap::new(),
            pods_listed: false,
            nodes: BTreeMap::new(),
            namespaces: BTreeMap::new(),
            odd: BTreeMap::new(),
            last_odd: None,
            slices_of: BTreeMap::new(),
            pods_on: BTreeMap::new(),
            pods_at: BTreeMap::new(),
            said: Said::default(),
        }
    }

    /// Takes what a watch tells. Returns what may be different now; equal content touches nothing.
    pub(super) fn apply<T: Indexed>(&mut self, event: Event<T>) -> Touched {
        let mut touched = Touched::default();
        match event {
            Event::Restarted { objects, odd } => self.restart(objects, odd, &mut touched),
            Event::Applied(object) => self.put(object.metadata().key(), object, &mut touched),
            Event::Deleted(key) => {
                T::remove(&key, self, &mut touched);
                self.odd.remove(&(T::KIND, Some(key)));
            }
            Event::Odd(odd) => {
                if let Some(key) = &odd.key {
                    T::remove(key, self, &mut touched);
                }
                self.note(T::KIND, odd);
            }
            Event::Answered | Event::Failed(_) => {}
        }
        touched
    }

    fn restart<T: Indexed>(&mut self, objects: Vec<T>, odd: Vec<Odd>, touched: &mut Touched) {
        let objects: BTreeMap<Key, T> =
            objects.into_iter().map(|object| (object.metadata().key(), object)).collect();
        for key in T::keys(self) {
            if !objects.contains_key(&key) {
                T::remove(&key, self, touched);
            }
        }
        self.odd.retain(|(kind, _), _| *kind != T::KIND);
        for odd in odd {
            self.note(T::KIND, odd);
        }
        for (key, object) in objects {
            self.put(key, object, touched);
        }
        if T::KIND == Kind::Pods && !self.pods_listed {
            self.pods_listed = true;
            touched.services.extend(self.services.keys().cloned());
        }
    }

    fn put<T: Indexed>(&mut self, key: Key, object: T, touched: &mut Touched) {
        self.odd.remove(&(T::KIND, Some(key.clone())));
        if let Some(reason) = object.put(key.clone(), self, touched) {
            self.note(T::KIND, Odd { key: Some(key), reason });
        }
    }

    fn note(&mut self, kind: Kind, odd: Odd) {
        let name = odd.key.as_ref().map_or_else(|| "?".to_owned(), ToString::to_string);
        self.last_odd = Some(format!("{} {name}: {}", kind.plural(), odd.reason));
        self.odd.insert((kind, odd.key), odd.reason);
    }

    /// What the touched parts are now, as far as that differs from what was said before; `None`
    /// where nothing does.
    pub(super) fn contents(&mut self, touched: &Touched) -> Option<Contents> {
        let mut contents = Contents::default();
        for key in &touched.services {
            let record = self.record(key);
            if self.said.services.get(key) == record.as_ref() {
                continue;
            }
            let hostname =
                Hostname::of_kubernetes_service(&key.name, &key.namespace, &self.settings.domain);
            let before = match &record {
                Some(record) => self.said.services.insert(key.clone(), record.clone()),
                None => self.said.services.remove(key),
            };
            self.said.endpoints += record.as_ref().map_or(0, |record| record.endpoints.len());
            self.said.endpoints -= before.map_or(0, |record| record.endpoints.len());
            contents.services.insert(hostname, record);
        }
        for key in &touched.workloads {
            let workload = self.pods.get(key).map(|pod| Arc::clone(&pod.workload));
            contents.workloads.insert(workload_key(key), workload);
        }
        if touched.system_namespace {
            let system = self.namespaces.get(&*self.settings.system_namespace);
            let network = system.and_then(|facts| facts.network.clone());
            if self.said.network.as_ref() != Some(&network) {
                self.said.network = Some(network.clone());
                contents.network_label = Some(network);
            }
        }
        let something = !contents.services.is_empty()
            || !contents.workloads.is_empty()
            || contents.network_label.is_some();
        something.then_some(contents)
    }

    /// All there is.
    pub(super) fn everything(&mut self) -> Contents {
        self.said = Said::default();
        let all = Touched {
            services: self.services.keys().cloned().collect(),
            workloads: self.pods.keys().cloned().collect(),
            system_namespace: true,
        };
        self.contents(&all).unwrap_or_default()
    }

    /// Services held.
    pub(super) fn service_count(&self) -> usize {
        self.services.len()
    }

    /// Endpoints said.
    pub(super) fn endpoint_count(&self) -> usize {
        self.said.endpoints
    }

    /// Objects held.
    pub(super) fn object_count(&self) -> usize {
        self.services.len()
            + self.slices.len()
            + self.pods.len()
            + self.nodes.len()
            + self.namespaces.len()
    }

    /// Objects that make no sense, wholly or in part.
    pub(super) fn skipped(&self) -> Skipped {
        let count = u64::try_from(self.odd.len()).unwrap_or(u64::MAX);
        Skipped { count, last: self.last_odd.clone() }
    }

    /// The identity of the cluster.
    pub(super) fn cluster_uid(&self) -> Option<&str> {
        let uid = &*self.namespaces.get(KUBE_SYSTEM)?.uid;
        Some(uid).filter(|uid| !uid.is_empty())
    }

    /// Whether no trace of any object is left.
    #[cfg(test)]
    pub(super) fn is_bare(&self) -> bool {
        self.object_count() == 0
            && self.odd.is_empty()
            && self.slices_of.is_empty()
            && self.pods_on.is_empty()
            && self.pods_at.is_empty()
            && self.said.services.is_empty()
            && self.said.endpoints == 0
    }

    /// A service with the endpoints of all its slices. While an endpoint moves from one slice to
    /// another both may hold it: it counts once, in its better state.
    fn record(&self, key: &Key) -> Option<ServiceRecord> {
        let found = self.services.get(key)?;
        let mut endpoints: BTreeMap<(IpAddr, Arc<str>), Endpoint> = BTreeMap::new();
        let slices = self.slices_of.get(&Reference::Service(key.clone()));
        for slice in slices.into_iter().flatten().filter_map(|slice| self.slices.get(slice)) {
            for member in &slice.members {
                for (port_name, port) in &slice.ports {
                    let endpoint = self.endpoint(slice, member, port_name, *port, found);
                    let place = (member.address, Arc::clone(port_name));
                    let better = endpoints.get(&place).is_none_or(|held| {
                        (endpoint.health, endpoint.port) < (held.health, held.port)
                    });
                    if better {
                        endpoints.insert(place, endpoint);
                    }
                }
            }
        }
        let service = found.reached_by(self.nodes.values());
        let endpoints: Vec<Endpoint> = endpoints.into_values().collect();
        let mut record = ServiceRecord { service, endpoints: endpoints.into() };
        // What is equal is shared with what was said, so that others see at once that it is.
        if let Some(said) = self.said.services.get(key) {
            if said.service == record.service {
                record.service = Arc::clone(&said.service);
            }
            if said.endpoints == record.endpoints {
                record.endpoints = Arc::clone(&said.endpoints);
            }
        }
        Some(record)
    }

    fn endpoint(
        &self,
        slice: &Slice,
        member: &Member,
        port_name: &Arc<str>,
        port: u16,
        service: &KubeService,
    ) -> Endpoint {
        let pod = match &member.pod {
            Some(key) => self.pods.get(key),
            None => self.pod_at(&slice.service.namespace, member.address),
        };
        let state = match (pod, &member.pod) {
            (Some(_), _) => PodState::Known,
            (None, Some(_)) if self.pods_listed => PodState::Missing,
            (None, _) => PodState::Unnamed,
        };
        let node = member.node.as_ref().or_else(|| pod.and_then(|pod| pod.workload.node.as_ref()));
        Endpoint {
            address: member.address,
            port,
            port_name: Arc::clone(port_name),
            health: member.conditions.health(service.persistent_sessions),
            weight: 1,
            locality: self.locality(pod, node, member.zone.as_ref()),
            network_label: pod.and_then(|pod| pod.workload.network_label.clone()),
            tls_mode: pod.map_or(TlsMode::Disabled, |pod| pod.tls_mode),
            service_account: pod.map(|pod| Arc::clone(&pod.identity)),
            workload: match (pod, &member.pod) {
                (Some(pod), _) => Some(Arc::clone(&pod.key)),
                (None, Some(key)) => Some(Arc::new(workload_key(key))),
                (None, None) => None,
            },
            pod: state,
            node: node.cloned(),
        }
    }

    /// The pod of an endpoint that names none: the one of that namespace with that address. Pods in
    /// their host's network share it; which of them is meant can't be told.
    fn pod_at(&self, namespace: &Arc<str>, address: IpAddr) -> Option<&Pod> {
        let keys = self.pods_at.get(&(Arc::clone(namespace), address))?;
        let mut keys = keys.iter();
        match (keys.next(), keys.next()) {
            (Some(only), None) => self.pods.get(only),
            _ => None,
        }
    }

    /// The pod's (its own claim or its node's), else the node's, else the zone that the slice names.
    fn locality(
        &self,
        pod: Option<&Pod>,
        node: Option<&Arc<str>>,
        zone: Option<&Arc<str>>,
    ) -> Arc<Locality> {
        let of_pod = pod.map(|pod| &pod.workload.locality);
        let of_node = node.and_then(|name| self.nodes.get(name)).map(|node| &node.locality);
        [of_pod, of_node]
            .into_iter()
            .flatten()
            .find(|locality| !locality.is_empty())
            .cloned()
            .unwrap_or_else(|| {
                let zone = zone.cloned().unwrap_or_else(|| "".into());
                Arc::new(Locality { zone, ..Locality::default() })
            })
    }

    /// Touches the services of the slices that depend on `reference`.
    fn touch_slices_of(&self, reference: &Reference, touched: &mut Touched) {
        for slice in self.slices_of.get(reference).into_iter().flatten() {
            if let Some(slice) = self.slices.get(slice) {
                touched.services.insert(slice.service.clone());
            }
        }
    }

    fn touch_pod(&self, key: &Key, pod: &Pod, touched: &mut Touched) {
        touched.workloads.insert(key.clone());
        self.touch_slices_of(&Reference::Pod(key.clone()), touched);
        for address in &pod.workload.addresses {
            let reference = Reference::Address(Arc::clone(&key.namespace), *address);
            self.touch_slices_of(&reference, touched);
        }
    }

    /// Touches what depends on a node that has changed: pods there, slices that name it, and every
    /// service that is reached by nodes.
    fn touch_node(&mut self, name: &Arc<str>, touched: &mut Touched) {
        let locality = self.nodes.get(name).map(|node| Arc::clone(&node.locality));
        for key in self.pods_on.get(name).cloned().into_iter().flatten() {
            let Some(pod) = self.pods.get_mut(&key) else { continue };
            let before = pod.clone();
            pod.settle(locality.as_ref());
            if *pod != before {
                self.touch_pod(&key, &before, touched);
            }
        }
        self.touch_slices_of(&Reference::Node(Arc::clone(name)), touched);
        let by_nodes = self.services.iter().filter(|(_, service)| service.node_selector.is_some());
        touched.services.extend(by_nodes.map(|(key, _)| key.clone()));
    }
}

impl Indexed for ServiceObject {
    const KIND: Kind = Kind::Services;

    fn put(self, key: Key, index: &mut Index, touched: &mut Touched) -> Option<String> {
        let settings = &index.settings;
        let (service, odd) = self.convert(&settings.domain, &settings.trust_domain);
        if index.services.get(&key) != Some(&service) {
            touched.services.insert(key.clone());
            index.services.insert(key, service);
        }
        odd
    }

    fn remove(key: &Key, index: &mut Index, touched: &mut Touched) {
        // Its slices stay: the service may come back before they go.
        if index.services.remove(key).is_some() {
            touched.services.insert(key.clone());
        }
    }

    fn keys(index: &Index) -> Vec<Key> {
        index.services.keys().cloned().collect()
    }
}

impl Indexed for SliceObject {
    const KIND: Kind = Kind::EndpointSlices;

    fn put(self, key: Key, index: &mut Index, touched: &mut Touched) -> Option<String> {
        let (slice, odd) = self.convert();
        if index.slices.get(&key) != slice.as_ref() {
            Self::remove(&key, index, touched);
            if let Some(slice) = slice {
                touched.services.insert(slice.service.clone());
                for reference in references(&slice) {
                    index.slices_of.entry(reference).or_default().insert(key.clone());
                }
                index.slices.insert(key, slice);
            }
        }
        odd
    }

    fn remove(key: &Key, index: &mut Index, touched: &mut Touched) {
        let Some(slice) = index.slices.remove(key) else { return };
        for reference in references(&slice) {
            forget(&mut index.slices_of, &reference, key);
        }
        touched.services.insert(slice.service);
    }

    fn keys(index: &Index) -> Vec<Key> {
        index.slices.keys().cloned().collect()
    }
}

fn references(slice: &Slice) -> BTreeSet<Reference> {
    let mut references = BTreeSet::from([Reference::Service(slice.service.clone())]);
    for member in &slice.members {
        references.insert(match &member.pod {
            Some(pod) => Reference::Pod(pod.clone()),
            None => Reference::Address(Arc::clone(&slice.service.namespace), member.address),
        });
        references.extend(member.node.clone().map(Reference::Node));
    }
    references
}

impl Indexed for PodObject {
    const KIND: Kind = Kind::Pods;

    fn put(self, key: Key, index: &mut Index, touched: &mut Touched) -> Option<String> {
        if self.has_ended() {
            Self::remove(&key, index, touched);
            return None;
        }
        let (mut pod, odd) = self.convert(&index.settings.trust_domain);
        let node = pod.workload.node.as_ref().and_then(|name| index.nodes.get(name));
        pod.settle(node.map(|node| &node.locality));
        if index.pods.get(&key) != Some(&pod) {
            Self::remove(&key, index, touched);
            if let Some(node) = pod.workload.node.clone() {
                index.pods_on.entry(node).or_default().insert(key.clone());
            }
            for address in &pod.workload.addresses {
                let place = (Arc::clone(&key.namespace), *address);
                index.pods_at.entry(place).or_default().insert(key.clone());
            }
            index.touch_pod(&key, &pod, touched);
            index.pods.insert(key, pod);
        }
        odd
    }

    fn remove(key: &Key, index: &mut Index, touched: &mut Touched) {
        let Some(pod) = index.pods.remove(key) else { return };
        if let Some(node) = &pod.workload.node {
            forget(&mut index.pods_on, node, key);
        }
        for address in &pod.workload.addresses {
            forget(&mut index.pods_at, &(Arc::clone(&key.namespace), *address), key);
        }
        index.touch_pod(key, &pod, touched);
    }

    fn keys(index: &Index) -> Vec<Key> {
        index.pods.keys().cloned().collect()
    }
}

impl Indexed for NodeObject {
    const KIND: Kind = Kind::Nodes;

    fn put(self, key: Key, index: &mut Index, touched: &mut Touched) -> Option<String> {
        let node = self.convert();
        if index.nodes.get(&key.name) != Some(&node) {
            index.nodes.insert(Arc::clone(&key.name), node);
            index.touch_node(&key.name, touched);
        }
        None
    }

    fn remove(key: &Key, index: &mut Index, touched: &mut Touched) {
        if index.nodes.remove(&key.name).is_some() {
            index.touch_node(&key.name, touched);
        }
    }

    fn keys(index: &Index) -> Vec<Key> {
        index.nodes.keys().map(cluster_wide).collect()
    }
}

impl Indexed for NamespaceObject {
    const KIND: Kind = Kind::Namespaces;

    fn put(self, key: Key, index: &mut Index, touched: &mut Touched) -> Option<String> {
        touched.system_namespace |= *key.name == *index.settings.system_namespace;
        index.namespaces.insert(key.name, self.facts());
        None
    }

    fn remove(key: &Key, index: &mut Index, touched: &mut Touched) {
        touched.system_namespace |= *key.name == *index.settings.system_namespace;
        index.namespaces.remove(&key.name);
    }

    fn keys(index: &Index) -> Vec<Key> {
        index.namespaces.keys().map(cluster_wide).collect()
    }
}

fn cluster_wide(name: &Arc<str>) -> Key {
    Key { namespace: "".into(), name: Arc::clone(name) }
}

fn workload_key(key: &Key) -> WorkloadKey {
    WorkloadKey::new(Namespace::new(Arc::clone(&key.namespace)), Arc::clone(&key.name))
}

/// Takes `key` out of the set at `place`, and the set when it is empty: what is gone leaves no trace.
fn forget<P: Ord>(sets: &mut BTreeMap<P, BTreeSet<Key>>, place: &P, key: &Key) {
    if let Some(set) = sets.get_mut(place) {
        set.remove(key);
        if set.is_empty() {
            sets.remove(place);
        }
    }
}
