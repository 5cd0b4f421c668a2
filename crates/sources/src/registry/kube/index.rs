//! The objects of one cluster, and the services, endpoints and pods that follow from them.
//!
//! A plain value: [`KubeIndex::apply`] applies the event of a watch and returns the affected parts;
//! [`KubeIndex::contents`] returns the current state of these parts. The result never depends on
//! the order of the objects: a slice may arrive before its pod, a pod before its node, a service
//! last.

mod about;
mod counts;
mod mcs;
mod pods;
mod shared;
mod state;
mod unread;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::{Arc, LazyLock};

use ipnet::IpNet;

pub(super) use self::about::missing_names;
use self::shared::SharedWithMesh;
pub(super) use self::state::{IndexChanges, Indexed, KubeIndex};
use self::state::{LastSent, UnreadNamespaces};
use super::chosen::ChosenNamespaces;
use super::endpoint_slice::{Slice, SliceEndpoint};
pub(super) use super::kind::{
    IndexEvent, IndexedKind, IndexedObject, ObjectList, ReadAs, ReadKind, ReadPart, missing, names,
    namespaced_name, workload_key,
};
use super::namespace::NamespaceFacts;
use super::node::NodeRecord;
use super::scope::Scope;
use super::service::KubeService;
use super::slices::{Reference, Slices};
use super::zones::ZoneRegions;
use strait_kube_client::{NamespacedName, WatchEvent};
use strait_model::registry::{Contents, ServiceRecord};
use strait_model::{
    ClusterFacts, Distribution, EndpointRef, Endpoints, Health, Locality, Namespace, Near,
    PodState, Resolution, Service, TlsMode, Workload, Workloads, repack,
};

/// An endpoint before its pod is looked up.
struct ListedEndpoint<'a> {
    member: SliceEndpoint<'a>,
    health: Health,
    port_name: &'a Arc<str>,
    port: u16,
    is_mirror: bool,
}

impl ListedEndpoint<'_> {
    /// The key of an endpoint within its service: two pods in one node's network share its address.
    fn place(&self) -> (IpAddr, &str, u16) {
        (self.member.address, self.port_name, self.port)
    }
}

/// The locality of an endpoint without a known one.
static NOWHERE: LazyLock<Arc<Locality>> = LazyLock::new(Arc::default);

impl KubeIndex {
    /// Creates an empty index.
    pub(super) fn new(scope: Arc<Scope>) -> Self {
        Self {
            scope,
            services: BTreeMap::new(),
            slices: Slices::default(),
            pods: Workloads::default(),
            pods_listed: false,
            pods_listed_in: BTreeSet::new(),
            unnamed: BTreeMap::new(),
            nodes: BTreeMap::new(),
            zones: ZoneRegions::default(),
            pod_ranges: None,
            facts: ClusterFacts::default(),
            namespaces: BTreeMap::new(),
            chosen: ChosenNamespaces::default(),
            shared: SharedWithMesh::default(),
            unread: UnreadNamespaces::new(),
            uid: None,
            invalid: BTreeMap::new(),
            last_invalid: None,
            last_sent: LastSent::default(),
        }
    }

    /// Applies the event of a watch. Returns the parts that may have changed; equal content affects
    /// nothing.
    pub(super) fn apply<T: Indexed>(&mut self, event: IndexEvent<T>) -> IndexChanges {
        self.apply_in(None, event)
    }

    /// Applies the event of a watch of one namespace, or of the whole cluster, like [`Self::apply`].
    pub(super) fn apply_in<T: Indexed>(
        &mut self,
        namespace: Option<&Arc<str>>,
        event: IndexEvent<T>,
    ) -> IndexChanges {
        let mut touched = IndexChanges::default();
        match event {
            WatchEvent::Restarted { objects, invalid } => {
                let is_elsewhere = |key: &Option<NamespacedName>| match (namespace, key) {
                    (Some(namespace), Some(key)) => key.namespace != *namespace,
                    _ => false,
                };
                self.invalid.retain(|(kind, key), _| *kind != T::KIND || is_elsewhere(key));
                for invalid in invalid {
                    self.note(T::KIND, invalid.key, invalid.reason.into());
                }
                T::replace(objects, namespace, self, &mut touched);
            }
            WatchEvent::Applied(object) => self.put(object, &mut touched),
            WatchEvent::Deleted(key) => {
                T::remove(&key, self, &mut touched);
                self.invalid.remove(&(T::KIND, Some(key)));
            }
            WatchEvent::Invalid(invalid) => {
                if let Some(key) = &invalid.key {
                    T::remove(key, self, &mut touched);
                }
                self.note(T::KIND, invalid.key, invalid.reason.into());
            }
            WatchEvent::Answered | WatchEvent::Failed(_) => {}
        }
        if matches!(T::KIND, IndexedKind::Services | IndexedKind::ServiceExports) {
            touched.facts |= self.note_unknown_exports();
        }
        touched
    }

    /// Removes the objects in `gone`, of which the list may contain only one namespace, and stores the
    /// listed ones. The later of two objects with the same key wins.
    pub(super) fn exchange<T: Indexed>(
        &mut self,
        gone: Vec<NamespacedName>,
        list: Vec<IndexedObject<T>>,
        namespace: Option<&Arc<str>>,
        touched: &mut IndexChanges,
    ) {
        let is_covered = |key: &NamespacedName| namespace.is_none_or(|own| key.namespace == *own);
        for key in gone.into_iter().filter(is_covered) {
            T::remove(&key, self, touched);
        }
        for object in list {
            self.put(object, touched);
        }
    }

    fn put<T: Indexed>(&mut self, object: IndexedObject<T>, touched: &mut IndexChanges) {
        let IndexedObject { key, value, invalid } = object;
        self.note_invalid(T::KIND, &key, invalid);
        match value {
            Some(value) => value.put(key, self, touched),
            None => T::remove(&key, self, touched),
        }
    }

    /// Replaces the note about invalid parts of an object.
    fn note_invalid(&mut self, kind: IndexedKind, key: &NamespacedName, invalid: Option<Box<str>>) {
        match invalid {
            Some(reason) => self.note(kind, Some(key.clone()), reason),
            None if self.invalid.is_empty() => {}
            None => {
                self.invalid.remove(&(kind, Some(key.clone())));
            }
        }
    }

    fn note(&mut self, kind: IndexedKind, key: Option<NamespacedName>, reason: Box<str>) {
        let name = key.as_ref().map_or_else(|| "?".to_owned(), ToString::to_string);
        self.last_invalid = Some(format!("{} {name}: {reason}", kind.plural()));
        self.invalid.insert((kind, key), reason);
    }

    /// Returns the current state of the affected parts that differ from the last sent state; `None`
    /// if none differs.
    pub(super) fn contents(&mut self, touched: &IndexChanges) -> Option<Contents> {
        self.contents_but(touched, |_, _, _| false)
    }

    /// Like [`Self::contents`], but omits services that wait: the callback receives the last sent
    /// and the current record of each.
    pub(super) fn contents_but(
        &mut self,
        touched: &IndexChanges,
        mut must_wait: impl FnMut(
            &NamespacedName,
            Option<&ServiceRecord>,
            Option<&ServiceRecord>,
        ) -> bool,
    ) -> Option<Contents> {
        let mut contents = Contents::default();
        let mut facts_changed = touched.facts;
        for key in &touched.services {
            if self.is_unread(&key.namespace) {
                continue;
            }
            let belongs = self.chosen.admits(self.namespaces.get(&key.namespace));
            let sent = self.last_sent.services.get(key);
            let record = if belongs { self.record(key, sent) } else { None };
            if must_wait(key, sent, record.as_ref()) {
                continue;
            }
            let is_unserved =
                record.as_ref().is_some_and(|one| self.is_unserved(key, &one.service));
            if is_unserved || !self.facts.unserved.is_empty() {
                facts_changed |= self.facts.note_unserved(workload_key(key), is_unserved);
            }
            let is_news = sent != record.as_ref();
            // Reuses the service's own hostname, if it exists, so that it is stored once.
            let existing = record.as_ref().or(sent);
            let hostname = existing.map(|record| record.service.hostname.clone());
            if self.shared.has_set() {
                self.add_clusterset_change(key, belongs.then_some(record.as_ref()), &mut contents);
            }
            let Some(hostname) = hostname.filter(|_| is_news) else { continue };
            let before = match (&record, self.last_sent.services.get_mut(key)) {
                (Some(record), Some(existing)) => Some(std::mem::replace(existing, record.clone())),
                (Some(record), None) => self.last_sent.services.insert(key.clone(), record.clone()),
                (None, _) => self.last_sent.services.remove(key),
            };
            self.last_sent.endpoints += record.as_ref().map_or(0, |record| record.endpoints.len());
            self.last_sent.endpoints -= before.map_or(0, |record| record.endpoints.len());
            contents.services.insert(hostname, record);
        }
        let pods = self.chosen.pods(&self.pods);
        if touched.workloads && self.last_sent.workloads.as_ref() != Some(pods) {
            self.last_sent.workloads = Some(pods.clone());
            contents.workloads = Some(pods.clone());
        }
        if touched.system_namespace {
            let system = self.namespaces.get(&*self.scope.settings.system_namespace);
            let network = system.and_then(|facts| facts.network.clone());
            if self.last_sent.network.as_ref() != Some(&network) {
                self.last_sent.network = Some(network.clone());
                contents.network_label = Some(network);
            }
        }
        if facts_changed {
            let facts = self.chosen.facts(&self.facts, &self.namespaces);
            if self.last_sent.facts.as_ref() != Some(&facts) {
                self.last_sent.facts = Some(facts.clone());
                contents.facts = Some(facts);
            }
        }
        let has_changes = !contents.services.is_empty()
            || contents.workloads.is_some()
            || contents.network_label.is_some()
            || contents.facts.is_some();
        has_changes.then_some(contents)
    }

    /// Returns the complete contents.
    pub(super) fn everything(&mut self) -> Contents {
        self.last_sent = LastSent::default();
        self.shared.last_sent.clear();
        let services = self.services.keys().chain(self.imports()).cloned().collect();
        let all = IndexChanges { services, workloads: true, system_namespace: true, facts: true };
        let mut contents = self.contents(&all).unwrap_or_default();
        for (host, record) in self.unread.values().flatten() {
            contents.services.insert(host.clone(), Some(record.clone()));
            self.last_sent.endpoints += record.endpoints.len();
        }
        // By now they are filled, mostly in order.
        repack(&mut self.services);
        repack(&mut self.last_sent.services);
        self.slices.repack();
        contents
    }

    /// Returns a service with the endpoints of all its slices. While an endpoint moves from one
    /// slice to another, both may contain it: it is included once, in its better state. Parts that
    /// are equal to the last sent record (`sent`) are shared with it, so that comparisons are fast.
    fn record(&self, key: &NamespacedName, sent: Option<&ServiceRecord>) -> Option<ServiceRecord> {
        let found = self.services.get(key)?;
        let mut listed: Vec<ListedEndpoint<'_>> = Vec::new();
        for slice in self.slices.for_service(key) {
            listed.reserve(slice.len() * slice.ports.len());
            for member in slice.members() {
                let health = member.conditions.health(found.persistent_sessions);
                listed.extend(slice.ports.iter().map(|(port_name, port)| ListedEndpoint {
                    member,
                    health,
                    port_name,
                    port: *port,
                    is_mirror: slice.is_mirror,
                }));
            }
        }
        // Among equals, the endpoint of the first slice by name stays first.
        listed.sort_by(|a, b| {
            let rest = |one: &ListedEndpoint<'_>| (one.is_mirror, one.health);
            a.place().cmp(&b.place()).then_with(|| rest(a).cmp(&rest(b)))
        });
        listed.dedup_by(|a, b| a.place() == b.place());

        let namespace = self.namespaces.get(&key.namespace);
        let prefers = namespace.map(|facts| facts.prefers).unwrap_or_default();
        let service = found.reached_by(prefers, self.nodes.iter(), |node| {
            listed.iter().any(|one| self.is_ready_on(&found.service.namespace, one, node))
        });
        let service = self.shared.with_statements(key, &found.labels, namespace, service);
        let mut near = Near::default();
        let endpoints = listed.iter().map(|one| self.endpoint(&service, one, &mut near));
        let endpoints = Endpoints::sharing(endpoints, |kinds| match sent {
            Some(sent) if *sent.endpoints.kinds() == *kinds => sent.endpoints.shared_kinds(),
            _ => self.scope.kinds(kinds),
        });
        let mut record = ServiceRecord { service, endpoints };
        if let Some(sent) = sent {
            if sent.service == record.service {
                record.service = Arc::clone(&sent.service);
            }
            if sent.endpoints == record.endpoints {
                record.endpoints = sent.endpoints.clone();
            }
        }
        Some(record)
    }

    /// Whether a listed endpoint is a ready pod on a node.
    fn is_ready_on(&self, namespace: &Namespace, listed: &ListedEndpoint<'_>, node: &str) -> bool {
        let ListedEndpoint { member, health, is_mirror, .. } = listed;
        let pod_node = || {
            let name = member.pod.or_else(|| self.pod_at(namespace, member.address))?;
            self.pods.find_next(&mut Near::default(), name)?.node.as_ref()
        };
        let is_node = |at: &Arc<Arc<str>>| ***at == *node;
        *health == Health::Healthy
            && !is_mirror
            && member.node.or_else(pod_node).is_some_and(is_node)
    }

    fn endpoint<'a>(
        &'a self,
        service: &'a Service,
        listed: &ListedEndpoint<'a>,
        near: &mut Near,
    ) -> EndpointRef<'a> {
        let ListedEndpoint { member, health, port_name, port, is_mirror } = *listed;
        let node_counts = service.node_local || service.prefers == Distribution::SameNode;
        let pod_at_address = || self.pod_at(&service.namespace, member.address);
        let name = if is_mirror { None } else { member.pod.or_else(pod_at_address) };
        let pod = name.and_then(|name| self.pods.find_next(near, name));
        let state = match (pod, member.pod) {
            _ if is_mirror => PodState::Mirrored,
            (Some(_), _) => PodState::Known,
            (None, Some(_)) if self.has_pods_of(&service.namespace) => PodState::Missing,
            (None, _) => PodState::Unnamed,
        };
        let named = member.node.filter(|_| !is_mirror);
        let node = named.or_else(|| pod.and_then(|pod| pod.node.as_ref()));
        EndpointRef {
            address: member.address,
            port,
            port_name,
            health,
            weight: 1,
            locality: self.locality(pod, node, member.zone),
            network_label: pod.and_then(|pod| pod.network_label.as_ref()),
            tls_mode: pod.map_or(TlsMode::Disabled, |pod| pod.tls_mode),
            service_account: pod.map(|pod| &pod.identity),
            workload: name,
            pod: state,
            // For other endpoints, the node has no effect and would take more memory than all other
            // fields.
            node: node.filter(|_| node_counts).map(|node| &**node),
            hostname: member.hostname.filter(|_| service.resolution == Resolution::Headless),
            telemetry: pod.and_then(|pod| pod.telemetry.as_ref()),
            labels: pod.map(|pod| &pod.labels).filter(|labels| !labels.is_empty()),
        }
    }

    /// Returns the locality of an endpoint: from its pod (a label or the pod's node), else from the
    /// node, else the zone in the slice, in the region of the nodes of that zone.
    fn locality<'a>(
        &'a self,
        pod: Option<&'a Workload>,
        node: Option<&Arc<Arc<str>>>,
        zone: Option<&'a Arc<Locality>>,
    ) -> &'a Arc<Locality> {
        let node_locality = |node: &Arc<Arc<str>>| {
            let locality = self.nodes.get(&***node).map(|node| &node.locality);
            locality.filter(|locality| !locality.is_empty())
        };
        let claimed = pod.and_then(|pod| pod.locality.as_ref());
        let pod_locality = || pod.and_then(|pod| node_locality(pod.node.as_ref()?));
        let zone_locality =
            || zone.map(|named| self.zones.region_zone(&named.zone).unwrap_or(named));
        let found =
            claimed.or_else(pod_locality).or_else(|| node_locality(node?)).or_else(zone_locality);
        found.unwrap_or(&NOWHERE)
    }

    /// Marks the services of the slices that depend on `reference` as affected.
    ///
    /// Before anything was sent, every service is pending anyway: nothing needs to be looked up.
    fn touch_slices(&self, reference: Reference<'_>, touched: &mut IndexChanges) {
        if self.last_sent.services.is_empty() {
            return;
        }
        for slice in self.slices.naming(reference) {
            touched.service(&slice.service);
        }
    }

    /// Returns the ranges from which its nodes assign pod addresses, merged and sorted.
    pub(super) fn pod_ranges(&mut self) -> Arc<[IpNet]> {
        let aggregate = || {
            let all = self.nodes.values().flat_map(|node| node.pod_ranges.iter().copied());
            IpNet::aggregate(&all.collect()).into()
        };
        Arc::clone(self.pod_ranges.get_or_insert_with(aggregate))
    }

    /// Replaces the locality of a node. Marks the services of slices that name a zone whose region
    /// changes as affected.
    fn note_zones(
        &mut self,
        [before, after]: [Option<&Arc<Locality>>; 2],
        touched: &mut IndexChanges,
    ) {
        for zone in self.zones.replace(before, after) {
            if self.last_sent.services.is_empty() {
                return;
            }
            for (_, slice) in self.slices.all().filter(|(_, slice)| slice.names_zone(&zone)) {
                touched.service(&slice.service);
            }
        }
    }

    /// Marks everything that depends on a changed node as affected: every service that is reached
    /// through nodes, and if the node's locality changed, the services of slices that name it or a
    /// pod on it.
    fn touch_node(&self, name: &str, moved: bool, touched: &mut IndexChanges) {
        let node_services =
            self.services.iter().filter(|(_, service)| service.node_selector.is_some());
        touched.services.extend(node_services.map(|(key, _)| key.clone()));
        if moved && !self.last_sent.services.is_empty() {
            for slice in self.slices.on_node(name) {
                touched.service(&slice.service);
            }
            let mut pod_changes = IndexChanges::default();
            for (key, pod) in self.pods.iter() {
                if pod.node.as_ref().is_some_and(|node| ***node == *name) {
                    self.touch_pod(key, pod, &mut pod_changes);
                }
            }
            touched.services.extend(pod_changes.services);
        }
    }
}

impl Indexed for KubeService {
    const KIND: IndexedKind = IndexedKind::Services;

    fn put(mut self, key: NamespacedName, index: &mut KubeIndex, touched: &mut IndexChanges) {
        if let Some(derived) = self.derived.take() {
            Self::remove(&key, index, touched);
            index.shared.derived.insert(key, *derived);
            return;
        }
        index.shared.derived.remove(&key);
        if index.services.get(&key) != Some(&self) {
            touched.services.insert(key.clone());
            index.services.insert(key.clone(), self);
            touched.facts |= index.note_exported(&key);
        }
    }

    fn remove(key: &NamespacedName, index: &mut KubeIndex, touched: &mut IndexChanges) {
        // A later import with this name is a different one.
        index.shared.declined.remove(key);
        index.shared.derived.remove(key);
        // Its slices stay: the service may be created again before they are deleted.
        if index.services.remove(key).is_some() {
            touched.services.insert(key.clone());
            touched.facts |= index.note_exported(key);
        }
    }

    fn replace(
        list: Vec<IndexedObject<Self>>,
        namespace: Option<&Arc<str>>,
        index: &mut KubeIndex,
        touched: &mut IndexChanges,
    ) {
        let gone = missing(index.services.keys().chain(index.shared.derived.keys()), &list);
        index.exchange(gone, list, namespace, touched);
    }
}

impl Indexed for Slice {
    const KIND: IndexedKind = IndexedKind::EndpointSlices;

    fn put(mut self, key: NamespacedName, index: &mut KubeIndex, touched: &mut IndexChanges) {
        if let Some(origin) = self.take_origin() {
            Self::remove(&key, index, touched);
            index.shared.slices.insert(key, origin);
            return;
        }
        index.shared.slices.remove(&key);
        if index.slices.get(&key) == Some(&self) {
            return;
        }
        touched.services.insert(self.service.clone());
        index.find_unnamed(&self);
        if let Some(old) = index.slices.insert(key, self) {
            index.forget_unnamed(&old);
            touched.services.insert(old.service);
        }
    }

    fn remove(key: &NamespacedName, index: &mut KubeIndex, touched: &mut IndexChanges) {
        index.shared.slices.remove(key);
        if let Some(old) = index.slices.remove(key) {
            index.forget_unnamed(&old);
            touched.services.insert(old.service);
        }
    }

    fn replace(
        list: Vec<IndexedObject<Self>>,
        namespace: Option<&Arc<str>>,
        index: &mut KubeIndex,
        touched: &mut IndexChanges,
    ) {
        let gone = missing(index.slices.keys().chain(index.shared.slices.keys()), &list);
        index.exchange(gone, list, namespace, touched);
    }
}

impl Indexed for NodeRecord {
    const KIND: IndexedKind = IndexedKind::Nodes;

    fn put(self, key: NamespacedName, index: &mut KubeIndex, touched: &mut IndexChanges) {
        let before = index.nodes.get(&key.name);
        if before != Some(&self) {
            let moved = before.is_none_or(|before| before.locality != self.locality);
            let old_locality = before.map(|before| Arc::clone(&before.locality));
            if before.is_none_or(|before| before.pod_ranges != self.pod_ranges) {
                index.pod_ranges = None;
            }
            index.note_locality(&key.name, Some(&self.locality), touched);
            index.note_zones([old_locality.as_ref(), Some(&self.locality)], touched);
            index.nodes.insert(Arc::clone(&key.name), self);
            index.touch_node(&key.name, moved, touched);
        }
    }

    fn remove(key: &NamespacedName, index: &mut KubeIndex, touched: &mut IndexChanges) {
        if let Some(node) = index.nodes.remove(&key.name) {
            index.pod_ranges = None;
            index.note_zones([Some(&node.locality), None], touched);
            index.note_locality(&key.name, None, touched);
            index.touch_node(&key.name, true, touched);
        }
    }

    fn replace(
        list: Vec<IndexedObject<Self>>,
        namespace: Option<&Arc<str>>,
        index: &mut KubeIndex,
        touched: &mut IndexChanges,
    ) {
        let gone = missing(index.nodes.keys().map(cluster_wide).collect::<Vec<_>>().iter(), &list);
        index.exchange(gone, list, namespace, touched);
    }
}

impl Indexed for NamespaceFacts {
    const KIND: IndexedKind = IndexedKind::Namespaces;

    fn put(self, key: NamespacedName, index: &mut KubeIndex, touched: &mut IndexChanges) {
        touched.system_namespace |= *key.name == *index.scope.settings.system_namespace;
        index.replace_namespace(&key.name, Some(self), touched);
    }

    fn remove(key: &NamespacedName, index: &mut KubeIndex, touched: &mut IndexChanges) {
        touched.system_namespace |= *key.name == *index.scope.settings.system_namespace;
        index.replace_namespace(&key.name, None, touched);
    }

    fn replace(
        list: Vec<IndexedObject<Self>>,
        namespace: Option<&Arc<str>>,
        index: &mut KubeIndex,
        touched: &mut IndexChanges,
    ) {
        let gone =
            missing(index.namespaces.keys().map(cluster_wide).collect::<Vec<_>>().iter(), &list);
        index.exchange(gone, list, namespace, touched);
    }
}

fn cluster_wide(name: &Arc<str>) -> NamespacedName {
    NamespacedName { namespace: "".into(), name: Arc::clone(name) }
}
