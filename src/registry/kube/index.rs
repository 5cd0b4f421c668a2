//! The objects of one cluster, and what they mean together.
//!
//! A plain value: [`Index::apply`] takes what a watch tells and returns what that touched,
//! [`Index::contents`] says what the touched parts are now. What they are never depends on the order
//! in which objects came: a slice may come before its pod, a pod before its node, a service last.

mod about;
mod shared;

use std::collections::{BTreeMap, BTreeSet};
use std::marker::PhantomData;
use std::net::IpAddr;
use std::sync::Arc;

use self::shared::Shared;
use super::Skipped;
use super::chosen::Chosen;
use super::endpoint_slice::{Member, Slice};
use super::namespace::NamespaceFacts;
use super::node::Node;
use super::pod::Pod;
use super::scope::Scope;
use super::service::KubeService;
use super::slices::{Reference, Slices};
use crate::apiserver::{self, Event, Form, Key, Odd};
use crate::model::{
    ClusterFacts, Endpoint, Hostname, Locality, Namespace, NetworkId, PodState, TlsMode, Workload,
    WorkloadKey, Workloads,
};
use crate::registry::{Contents, ServiceRecord};

/// The namespace whose UID is the identity of a cluster.
const KUBE_SYSTEM: &str = "kube-system";

/// The objects of one cluster.
#[derive(Debug)]
pub(super) struct Index {
    scope: Arc<Scope>,
    services: BTreeMap<Key, KubeService>,
    slices: Slices,
    pods: Workloads,
    /// Whether pods have been listed: else a pod that is not here is not missing, but unknown.
    pods_listed: bool,
    /// The pods at those addresses for which slices name no pod, by namespace and address.
    asked: BTreeMap<(Arc<str>, IpAddr), Asked>,
    nodes: BTreeMap<Arc<str>, Node>,
    facts: ClusterFacts,
    namespaces: BTreeMap<Arc<str>, NamespaceFacts>,
    chosen: Chosen,
    shared: Shared,
    /// Objects that make no sense, wholly or in part, and why.
    odd: BTreeMap<(Kind, Option<Key>), Box<str>>,
    last_odd: Option<String>,
    /// What was said last: equal content is not said again.
    said: Said,
}

#[derive(Debug, Default)]
struct Said {
    services: BTreeMap<Key, ServiceRecord>,
    workloads: Option<Workloads>,
    network: Option<Option<NetworkId>>,
    facts: Option<ClusterFacts>,
    endpoints: usize,
}

/// The pods at an address.
#[derive(Debug, Default)]
struct Asked {
    /// How many members of slices ask.
    by: usize,
    pods: BTreeSet<Arc<str>>,
}

/// The kinds an index holds, also as words for messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Kind {
    Services,
    EndpointSlices,
    Pods,
    Nodes,
    Namespaces,
    /// Of the Gateway API.
    Gateways,
    /// Of multi-cluster services.
    ServiceExports,
    /// The same.
    ServiceImports,
}

impl Kind {
    /// All of them.
    pub(super) const ALL: [Self; 8] = [
        Self::Services,
        Self::EndpointSlices,
        Self::Pods,
        Self::Nodes,
        Self::Namespaces,
        Self::Gateways,
        Self::ServiceExports,
        Self::ServiceImports,
    ];

    /// The kind in plural, as in paths.
    pub(super) const fn plural(self) -> &'static str {
        match self {
            Self::Services => "services",
            Self::EndpointSlices => "endpointslices",
            Self::Pods => "pods",
            Self::Nodes => "nodes",
            Self::Namespaces => "namespaces",
            Self::Gateways => "gateways",
            Self::ServiceExports => "serviceexports",
            Self::ServiceImports => "serviceimports",
        }
    }

    /// Whether a cluster may not know it at all, which is nobody's fault.
    pub(super) const fn may_be_absent(self) -> bool {
        matches!(self, Self::Gateways | Self::ServiceExports | Self::ServiceImports)
    }

    /// What is lost where it may not be read; `None` where nothing works without it.
    pub(super) const fn optional(self) -> Option<&'static str> {
        match self {
            Self::Pods => Some("no identities, no labels, nothing crosses networks"),
            Self::Nodes => Some("no localities but the zones of slices, no NodePort gateways"),
            Self::Gateways => Some("no network gateways of the Gateway API"),
            Self::ServiceExports => Some("no service is for other clusters"),
            Self::ServiceImports => Some("no addresses for services of other clusters"),
            Self::Services | Self::EndpointSlices | Self::Namespaces => None,
        }
    }
}

/// What a change touched.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Touched {
    services: BTreeSet<Key>,
    workloads: bool,
    system_namespace: bool,
    facts: bool,
}

impl Touched {
    /// Adds what another change touched.
    pub(super) fn merge(&mut self, other: Self) {
        self.services.extend(other.services);
        self.workloads |= other.workloads;
        self.system_namespace |= other.system_namespace;
        self.facts |= other.facts;
    }

    /// Whether it is nothing.
    pub(super) fn is_empty(&self) -> bool {
        self.services.is_empty() && !self.workloads && !self.system_namespace && !self.facts
    }
}

/// What is made of an object when it is read.
#[derive(Debug, Clone)]
pub(super) struct Kept<T> {
    /// Which object.
    pub(super) key: Key,
    /// What is kept of it; `None` where it means nothing here.
    pub(super) value: Option<T>,
    /// What of it makes no sense.
    pub(super) odd: Option<Box<str>>,
}

/// What is kept of an object of a kind.
pub(super) trait Reads: Sized + Send + 'static {
    /// What is decoded of it.
    type Form<'a>: Form<'a>;

    /// Whether there is a form in protobuf: not of what was installed.
    const PROTOBUF: bool = true;

    /// Keeps what is needed.
    fn keep(form: Self::Form<'_>, scope: &Scope) -> Kept<Self>;
}

/// How objects of which a `T` is kept are read.
pub(super) struct Reading<'a, T>(&'a Scope, PhantomData<fn() -> T>);

impl<'a, T> Reading<'a, T> {
    pub(super) fn with(scope: &'a Scope) -> Self {
        Self(scope, PhantomData)
    }
}

impl<T: Reads> apiserver::Kind for Reading<'_, T> {
    type Form<'a> = T::Form<'a>;
    type Kept = Kept<T>;

    const PROTOBUF: bool = T::PROTOBUF;

    fn keep(&self, form: Self::Form<'_>) -> Kept<T> {
        T::keep(form, self.0)
    }

    fn key(&self, kept: &Kept<T>) -> Key {
        kept.key.clone()
    }
}

/// A kind of object that the index holds.
pub(super) trait Indexed: Reads {
    /// Which.
    const KIND: Kind;

    /// Keeps it in place of what had its key.
    fn put(self, key: Key, index: &mut Index, touched: &mut Touched);

    /// Drops what has that key.
    fn remove(key: &Key, index: &mut Index, touched: &mut Touched);

    /// The keys of all that are kept and not `present`, by namespace and name.
    fn absent(index: &Index, present: &BTreeSet<(&str, &str)>) -> Vec<Key>;
}

impl Index {
    /// An index of nothing yet.
    pub(super) fn new(scope: Arc<Scope>) -> Self {
        Self {
            scope,
            services: BTreeMap::new(),
            slices: Slices::default(),
            pods: Workloads::default(),
            pods_listed: false,
            asked: BTreeMap::new(),
            nodes: BTreeMap::new(),
            facts: ClusterFacts::default(),
            namespaces: BTreeMap::new(),
            chosen: Chosen::default(),
            shared: Shared::default(),
            odd: BTreeMap::new(),
            last_odd: None,
            said: Said::default(),
        }
    }

    /// Takes what a watch tells. Returns what may be different now; equal content touches nothing.
    pub(super) fn apply<T: Indexed>(&mut self, event: Event<Kept<T>>) -> Touched {
        let mut touched = Touched::default();
        match event {
            Event::Restarted { objects, odd } => self.restart(objects, odd, &mut touched),
            Event::Applied(object) => self.put(object, &mut touched),
            Event::Deleted(key) => {
                T::remove(&key, self, &mut touched);
                self.odd.remove(&(T::KIND, Some(key)));
            }
            Event::Odd(odd) => {
                if let Some(key) = &odd.key {
                    T::remove(key, self, &mut touched);
                }
                self.note(T::KIND, odd.key, odd.reason.into());
            }
            Event::Answered | Event::Failed(_) => {}
        }
        touched
    }

    fn restart<T: Indexed>(&mut self, objects: Vec<Kept<T>>, odd: Vec<Odd>, touched: &mut Touched) {
        let names = objects.iter().map(|one| (&*one.key.namespace, &*one.key.name));
        let present: BTreeSet<(&str, &str)> = names.collect();
        for key in T::absent(self, &present) {
            T::remove(&key, self, touched);
        }
        self.odd.retain(|(kind, _), _| *kind != T::KIND);
        for odd in odd {
            self.note(T::KIND, odd.key, odd.reason.into());
        }
        for object in objects {
            self.put(object, touched);
        }
        if T::KIND == Kind::Pods && !self.pods_listed {
            self.pods_listed = true;
            touched.services.extend(self.services.keys().cloned());
        }
    }

    fn put<T: Indexed>(&mut self, object: Kept<T>, touched: &mut Touched) {
        let Kept { key, value, odd } = object;
        match odd {
            Some(reason) => self.note(T::KIND, Some(key.clone()), reason),
            None if self.odd.is_empty() => {}
            None => {
                self.odd.remove(&(T::KIND, Some(key.clone())));
            }
        }
        match value {
            Some(value) => value.put(key, self, touched),
            None => T::remove(&key, self, touched),
        }
    }

    fn note(&mut self, kind: Kind, key: Option<Key>, reason: Box<str>) {
        let name = key.as_ref().map_or_else(|| "?".to_owned(), ToString::to_string);
        self.last_odd = Some(format!("{} {name}: {reason}", kind.plural()));
        self.odd.insert((kind, key), reason);
    }

    /// What the touched parts are now, as far as that differs from what was said before; `None`
    /// where nothing does.
    pub(super) fn contents(&mut self, touched: &Touched) -> Option<Contents> {
        let mut contents = Contents::default();
        for key in &touched.services {
            let belongs = self.chosen.admits(self.namespaces.get(&key.namespace));
            let record = if belongs { self.record(key) } else { None };
            if self.shared.has_set() {
                self.say_in_set(key, belongs.then_some(record.as_ref()), &mut contents);
            }
            if self.said.services.get(key) == record.as_ref() {
                continue;
            }
            let domain = &self.scope.settings.domain;
            let hostname = Hostname::of_kubernetes_service(&key.name, &key.namespace, domain);
            let before = match &record {
                Some(record) => self.said.services.insert(key.clone(), record.clone()),
                None => self.said.services.remove(key),
            };
            self.said.endpoints += record.as_ref().map_or(0, |record| record.endpoints.len());
            self.said.endpoints -= before.map_or(0, |record| record.endpoints.len());
            contents.services.insert(hostname, record);
        }
        let pods = self.chosen.pods(&self.pods);
        if touched.workloads && self.said.workloads.as_ref() != Some(pods) {
            self.said.workloads = Some(pods.clone());
            contents.workloads = Some(pods.clone());
        }
        if touched.system_namespace {
            let system = self.namespaces.get(&*self.scope.settings.system_namespace);
            let network = system.and_then(|facts| facts.network.clone());
            if self.said.network.as_ref() != Some(&network) {
                self.said.network = Some(network.clone());
                contents.network_label = Some(network);
            }
        }
        if touched.facts {
            let facts = self.chosen.facts(&self.facts, &self.namespaces);
            if self.said.facts.as_ref() != Some(&facts) {
                self.said.facts = Some(facts.clone());
                contents.facts = Some(facts);
            }
        }
        let something = !contents.services.is_empty()
            || contents.workloads.is_some()
            || contents.network_label.is_some()
            || contents.facts.is_some();
        something.then_some(contents)
    }

    /// All there is.
    pub(super) fn everything(&mut self) -> Contents {
        self.said = Said::default();
        self.shared.said.clear();
        let services = self.services.keys().chain(self.imports()).cloned().collect();
        let all = Touched { services, workloads: true, system_namespace: true, facts: true };
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
            + self.facts.gateways.len()
            + self.shared.len()
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

    /// What its objects are read with.
    #[cfg(test)]
    pub(super) fn scope(&self) -> &Scope {
        &self.scope
    }

    /// Whether no trace of any object is left.
    #[cfg(test)]
    pub(super) fn is_bare(&self) -> bool {
        self.object_count() == 0
            && self.odd.is_empty()
            && self.slices.is_bare()
            && self.asked.is_empty()
            && self.said.services.is_empty()
            && self.said.endpoints == 0
    }

    /// A service with the endpoints of all its slices. While an endpoint moves from one slice to
    /// another both may hold it: it counts once, in its better state.
    fn record(&self, key: &Key) -> Option<ServiceRecord> {
        let found = self.services.get(key)?;
        let mut endpoints: Vec<(Endpoint, Option<(&str, &str)>)> = Vec::new();
        for slice in self.slices.of_service(key) {
            for member in &slice.members {
                for (port_name, port) in &slice.ports {
                    endpoints.push(self.endpoint(slice, member, port_name, *port, found));
                }
            }
        }
        // Of equals the one from the first slice by name stays before the others.
        endpoints.sort_by(|(a, _), (b, _)| {
            (a.address, &a.port_name, a.health, a.port).cmp(&(
                b.address,
                &b.port_name,
                b.health,
                b.port,
            ))
        });
        endpoints.dedup_by(|(a, _), (b, _)| a.address == b.address && a.port_name == b.port_name);

        let said = self.said.services.get(key);
        let named = endpoints.into_iter().map(|(mut endpoint, pod)| {
            endpoint.workload = pod.map(|(namespace, name)| {
                Arc::new(WorkloadKey::new(Namespace::from(namespace), name))
            });
            endpoint
        });
        let endpoints = named.collect();
        let namespace = self.namespaces.get(&key.namespace);
        let prefers = namespace.map(|facts| facts.prefers).unwrap_or_default();
        let service = found.reached_by(prefers, self.nodes.values());
        let service = self.shared.at_home(key, service);
        let mut record = ServiceRecord { service, endpoints };
        // What is equal is shared with what was said, so that others see at once that it is.
        if let Some(said) = said {
            if said.service == record.service {
                record.service = Arc::clone(&said.service);
            }
            if said.endpoints == record.endpoints {
                record.endpoints = said.endpoints.clone();
            }
        }
        Some(record)
    }

    /// An endpoint, and the pod behind it by namespace and name, which it doesn't hold yet.
    fn endpoint<'a>(
        &'a self,
        slice: &'a Slice,
        member: &Member,
        port_name: &Arc<str>,
        port: u16,
        service: &KubeService,
    ) -> (Endpoint, Option<(&'a str, &'a str)>) {
        let named = slice.pod_of(member);
        let name = named.or_else(|| self.pod_at(&slice.service.namespace, member.address));
        let pod = name.and_then(|(namespace, name)| self.pods.get(namespace, name));
        let state = match (pod, named) {
            (Some(_), _) => PodState::Known,
            (None, Some(_)) if self.pods_listed => PodState::Missing,
            (None, _) => PodState::Unnamed,
        };
        let node = member.node.as_ref().or_else(|| pod.and_then(|pod| pod.node.as_ref()));
        let endpoint = Endpoint {
            address: member.address,
            port,
            port_name: Arc::clone(port_name),
            health: member.conditions.health(service.persistent_sessions),
            weight: 1,
            locality: self.locality(pod, node.map(|node| &***node), member.zone.as_ref()),
            network_label: pod.and_then(|pod| pod.network_label.clone()),
            tls_mode: pod.map_or(TlsMode::Disabled, |pod| pod.tls_mode),
            service_account: pod.map(|pod| Arc::clone(&pod.identity)),
            workload: None,
            pod: state,
            node: node.map(|node| Arc::clone(&**node)),
        };
        (endpoint, name)
    }

    /// The pod of an endpoint that names none: the one of that namespace with that address. Pods in
    /// their host's network share it; which of them is meant can't be told.
    fn pod_at<'a>(
        &'a self,
        namespace: &'a Arc<str>,
        address: IpAddr,
    ) -> Option<(&'a str, &'a str)> {
        let mut pods = self.asked.get(&(Arc::clone(namespace), address))?.pods.iter();
        match (pods.next(), pods.next()) {
            (Some(only), None) => Some((namespace, only)),
            _ => None,
        }
    }

    /// The pod's (its own claim or its node's), else the node's, else the zone that the slice names.
    fn locality(
        &self,
        pod: Option<&Workload>,
        node: Option<&str>,
        zone: Option<&Arc<Locality>>,
    ) -> Arc<Locality> {
        let of_node = |node: &str| self.nodes.get(node).map(|node| &node.locality);
        let claimed = pod.and_then(|pod| pod.locality.as_ref());
        let of_pod = || pod.and_then(|pod| of_node(pod.node.as_ref()?));
        let known = |locality: &&Arc<Locality>| !locality.is_empty();
        let found = claimed
            .or_else(|| of_pod().filter(known))
            .or_else(|| node.and_then(of_node).filter(known))
            .or(zone);
        found.cloned().unwrap_or_default()
    }

    /// Touches the services of the slices that depend on `reference`.
    fn touch_slices(&self, reference: Reference<'_>, touched: &mut Touched) {
        for slice in self.slices.that_name(reference) {
            if !touched.services.contains(&slice.service) {
                touched.services.insert(slice.service.clone());
            }
        }
    }

    /// Touches what depends on a pod that has changed, or has come or gone: itself, and slices that
    /// name it or an address of it.
    fn touch_pod(&self, key: &Key, pod: &Workload, touched: &mut Touched) {
        touched.workloads = true;
        self.touch_slices(Reference::Pod(&key.namespace, &key.name), touched);
        for address in pod.addresses.iter() {
            self.touch_slices(Reference::Address(&key.namespace, address), touched);
        }
    }

    fn drop_pod(&mut self, key: &Key, touched: &mut Touched) {
        let Some(pod) = self.pods.remove(&key.namespace, &key.name) else { return };
        self.chosen.remove(&key.namespace, &key.name);
        for address in pod.addresses.iter() {
            let place = (Arc::clone(&key.namespace), address);
            if let Some(asked) = self.asked.get_mut(&place) {
                asked.pods.remove(&key.name);
            }
        }
        self.touch_pod(key, &pod, touched);
    }

    /// Touches what depends on a node that has changed: every service that is reached by nodes, and,
    /// where it is somewhere else now, slices that name it or a pod there.
    fn touch_node(&self, name: &str, moved: bool, touched: &mut Touched) {
        let by_nodes = self.services.iter().filter(|(_, service)| service.node_selector.is_some());
        touched.services.extend(by_nodes.map(|(key, _)| key.clone()));
        if moved {
            self.touch_slices(Reference::Node(name), touched);
            for (namespace, pod_name, pod) in self.pods.iter() {
                if pod.node.as_ref().is_some_and(|node| ***node == *name) {
                    self.touch_slices(Reference::Pod(namespace, pod_name), touched);
                    for address in pod.addresses.iter() {
                        self.touch_slices(Reference::Address(namespace, address), touched);
                    }
                }
            }
        }
    }

    /// Remembers for which addresses a slice asks, and the pods there.
    fn ask(&mut self, slice: &Slice) {
        let namespace = &slice.service.namespace;
        let mut news = false;
        for address in slice.unnamed() {
            let asked = self.asked.entry((Arc::clone(namespace), address)).or_default();
            asked.by += 1;
            news |= asked.by == 1;
        }
        if news {
            for (name, pod) in self.pods.of_namespace(namespace) {
                answer(&mut self.asked, namespace, name, pod);
            }
        }
    }

    /// Forgets for which addresses a slice asked.
    fn ask_no_more(&mut self, slice: &Slice) {
        for address in slice.unnamed() {
            let place = (Arc::clone(&slice.service.namespace), address);
            if let Some(asked) = self.asked.get_mut(&place) {
                asked.by -= 1;
                if asked.by == 0 {
                    self.asked.remove(&place);
                }
            }
        }
    }
}

/// Enters a pod for the addresses that somebody asks for.
fn answer(
    asked: &mut BTreeMap<(Arc<str>, IpAddr), Asked>,
    namespace: &Arc<str>,
    name: &str,
    pod: &Workload,
) {
    for address in pod.addresses.iter() {
        if let Some(asked) = asked.get_mut(&(Arc::clone(namespace), address)) {
            asked.pods.insert(name.into());
        }
    }
}

impl Indexed for KubeService {
    const KIND: Kind = Kind::Services;

    fn put(self, key: Key, index: &mut Index, touched: &mut Touched) {
        if index.services.get(&key) != Some(&self) {
            touched.services.insert(key.clone());
            index.services.insert(key, self);
        }
    }

    fn remove(key: &Key, index: &mut Index, touched: &mut Touched) {
        // Its slices stay: the service may come back before they go.
        if index.services.remove(key).is_some() {
            touched.services.insert(key.clone());
        }
    }

    fn absent(index: &Index, present: &BTreeSet<(&str, &str)>) -> Vec<Key> {
        missing(index.services.keys(), present)
    }
}

impl Indexed for Slice {
    const KIND: Kind = Kind::EndpointSlices;

    fn put(self, key: Key, index: &mut Index, touched: &mut Touched) {
        if index.slices.get(&key) == Some(&self) {
            return;
        }
        touched.services.insert(self.service.clone());
        // Asked for before the old one is forgotten, so that what both ask for stays.
        index.ask(&self);
        if let Some(old) = index.slices.insert(key, self) {
            index.ask_no_more(&old);
            touched.services.insert(old.service);
        }
    }

    fn remove(key: &Key, index: &mut Index, touched: &mut Touched) {
        if let Some(old) = index.slices.remove(key) {
            index.ask_no_more(&old);
            touched.services.insert(old.service);
        }
    }

    fn absent(index: &Index, present: &BTreeSet<(&str, &str)>) -> Vec<Key> {
        missing(index.slices.keys(), present)
    }
}

impl Indexed for Pod {
    const KIND: Kind = Kind::Pods;

    fn put(self, key: Key, index: &mut Index, touched: &mut Touched) {
        let Self { workload, ready } = self;
        // Without an address it is nobody's endpoint, whatever else it is.
        index.note_ready(&key, ready || workload.addresses.is_empty(), touched);
        if index.pods.get(&key.namespace, &key.name) != Some(&workload) {
            index.drop_pod(&key, touched);
            answer(&mut index.asked, &key.namespace, &key.name, &workload);
            index.touch_pod(&key, &workload, touched);
            let facts = index.namespaces.get(&key.namespace);
            index.chosen.put(facts, &key.namespace, &key.name, &workload);
            index.pods.insert(&key.namespace, &key.name, workload);
        }
    }

    fn remove(key: &Key, index: &mut Index, touched: &mut Touched) {
        index.note_ready(key, true, touched);
        index.drop_pod(key, touched);
    }

    fn absent(index: &Index, present: &BTreeSet<(&str, &str)>) -> Vec<Key> {
        let all = index
            .pods
            .iter()
            .filter(|(namespace, name, _)| !present.contains(&(&***namespace, name)));
        all.map(|(namespace, name, _)| Key { namespace: Arc::clone(namespace), name: name.into() })
            .collect()
    }
}

impl Indexed for Node {
    const KIND: Kind = Kind::Nodes;

    fn put(self, key: Key, index: &mut Index, touched: &mut Touched) {
        let before = index.nodes.get(&key.name);
        if before != Some(&self) {
            let moved = before.is_none_or(|before| before.locality != self.locality);
            index.note_locality(&key.name, Some(&self.locality), touched);
            index.nodes.insert(Arc::clone(&key.name), self);
            index.touch_node(&key.name, moved, touched);
        }
    }

    fn remove(key: &Key, index: &mut Index, touched: &mut Touched) {
        if index.nodes.remove(&key.name).is_some() {
            index.note_locality(&key.name, None, touched);
            index.touch_node(&key.name, true, touched);
        }
    }

    fn absent(index: &Index, present: &BTreeSet<(&str, &str)>) -> Vec<Key> {
        missing(index.nodes.keys().map(cluster_wide).collect::<Vec<_>>().iter(), present)
    }
}

impl Indexed for NamespaceFacts {
    const KIND: Kind = Kind::Namespaces;

    fn put(self, key: Key, index: &mut Index, touched: &mut Touched) {
        touched.system_namespace |= *key.name == *index.scope.settings.system_namespace;
        index.replace_namespace(&key.name, Some(self), touched);
    }

    fn remove(key: &Key, index: &mut Index, touched: &mut Touched) {
        touched.system_namespace |= *key.name == *index.scope.settings.system_namespace;
        index.replace_namespace(&key.name, None, touched);
    }

    fn absent(index: &Index, present: &BTreeSet<(&str, &str)>) -> Vec<Key> {
        missing(index.namespaces.keys().map(cluster_wide).collect::<Vec<_>>().iter(), present)
    }
}

pub(super) fn missing<'a>(
    keys: impl Iterator<Item = &'a Key>,
    present: &BTreeSet<(&str, &str)>,
) -> Vec<Key> {
    keys.filter(|key| !present.contains(&(&*key.namespace, &*key.name))).cloned().collect()
}

fn cluster_wide(name: &Arc<str>) -> Key {
    Key { namespace: "".into(), name: Arc::clone(name) }
}
