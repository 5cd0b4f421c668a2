//! Differences between two versions of a cluster, a datacentre or a store: how they are computed from two snapshots,
//! and how they are applied to a state. Pure.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;

use imbl::ordmap::DiffItem;
use serde_json::Value;

use super::codec::{Encode, Encoder, MalformedValue, StateDecoder, fields};
use super::state::StateKind;
use super::{DatacentreState, IssuerState, ShardState, StoredFiles, StoredObjects};
use strait_mesh::aggregate::MergedService;
use strait_mesh::push::PushContext;
use strait_model::registry::{Provider, ServiceRecord, ShardKey};
use strait_model::{
    ClusterFacts, ClusterId, Collection, DeclaredGateway, Difference, Endpoints, ExportedService,
    Hostname, Locality, NetworkId, ObjectKey, Workload, WorkloadKey, Workloads,
};

/// The differences of one source. A part that is absent here is unchanged.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Delta {
    network_label: Option<Option<NetworkId>>,
    services: ServiceDeltas,
    /// `None` for pods that no longer exist.
    workloads: BTreeMap<WorkloadKey, Option<Workload>>,
    facts: FactsDelta,
}

/// The differences of clusters and datacentres.
pub(super) type Deltas = BTreeMap<ClusterId, Delta>;

type ServiceDeltas = BTreeMap<Hostname, ServiceDelta>;

/// The difference of one service.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum ServiceDelta {
    /// It was removed.
    Removed,
    /// Only its endpoints changed.
    Endpoints(Endpoints),
    /// It was added, or its definition changed.
    Whole(ServiceRecord),
}

#[derive(Debug, Clone, PartialEq, Default)]
struct FactsDelta {
    localities: Option<Arc<BTreeMap<Arc<str>, Arc<Locality>>>>,
    /// For each changed pod, whether it is unready now.
    unready: BTreeMap<WorkloadKey, bool>,
    gateways: Option<Arc<BTreeMap<WorkloadKey, DeclaredGateway>>>,
    entries: Option<Arc<BTreeMap<WorkloadKey, Arc<Value>>>>,
    traffic: Option<Collection>,
    /// `None` for services that are no longer exported.
    exports: BTreeMap<WorkloadKey, Option<Arc<ExportedService>>>,
}

/// The differences of a store of objects.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ObjectsDelta {
    removed: Vec<ObjectKey>,
    /// The objects that were added or changed.
    now: Collection,
}

fields!(Delta { network_label, services, workloads, facts });
fields!(ObjectsDelta { removed, now });

/// The last part of a [`Delta`]. Traffic rules and exports, which few clusters have, are left out if they are
/// unchanged. Exports follow the traffic rules, which are then always written.
impl Encode for FactsDelta {
    fn write<'a>(&'a self, to: &mut Encoder<'a>) {
        let Self { localities, unready, gateways, entries, traffic, exports } = self;
        localities.write(to);
        unready.write(to);
        gateways.write(to);
        entries.write(to);
        if let Some(traffic) = traffic {
            traffic.write(to);
        }
        if !exports.is_empty() {
            exports.write(to);
        }
    }

    fn read(from: &mut StateDecoder<'_>) -> Result<Self, MalformedValue> {
        Ok(Self {
            localities: Encode::read(from)?,
            unready: Encode::read(from)?,
            gateways: Encode::read(from)?,
            entries: Encode::read(from)?,
            traffic: if from.is_done() { None } else { Some(Encode::read(from)?) },
            exports: if from.is_done() { BTreeMap::new() } else { Encode::read(from)? },
        })
    }
}

impl Encode for ServiceDelta {
    fn write<'a>(&'a self, to: &mut Encoder<'a>) {
        match self {
            Self::Removed => to.bytes.push(0),
            Self::Endpoints(endpoints) => {
                to.bytes.push(1);
                endpoints.write(to);
            }
            Self::Whole(record) => {
                to.bytes.push(2);
                record.write(to);
            }
        }
    }

    fn read(from: &mut StateDecoder<'_>) -> Result<Self, MalformedValue> {
        match from.byte()? {
            0 => Ok(Self::Removed),
            1 => Encode::read(from).map(Self::Endpoints),
            2 => Encode::read(from).map(Self::Whole),
            _ => Err(MalformedValue("change of a service")),
        }
    }
}

/// For kinds of state without a journal.
impl Encode for Infallible {
    fn write<'a>(&'a self, _: &mut Encoder<'a>) {
        match *self {}
    }

    fn read(_: &mut StateDecoder<'_>) -> Result<Self, MalformedValue> {
        Err(MalformedValue("change"))
    }
}

impl StateKind for ShardState {
    const KIND: &'static str = "cluster";
    type Delta = Delta;

    fn name(&self) -> &str {
        self.cluster.as_str()
    }

    fn apply(&mut self, delta: Delta) {
        let Delta { network_label, services, workloads, facts } = delta;
        if let Some(label) = network_label {
            self.network_label = label;
        }
        apply(&mut self.services, services);
        for (key, pod) in workloads {
            match pod {
                Some(pod) => self.workloads.insert(&key.namespace.into(), &key.name, pod),
                None => drop(self.workloads.remove(key.namespace.as_str(), &key.name)),
            }
        }
        let FactsDelta { localities, unready, gateways, entries, traffic, exports } = facts;
        let ours = &mut self.facts;
        ours.localities = localities.unwrap_or_else(|| Arc::clone(&ours.localities));
        ours.gateways = gateways.unwrap_or_else(|| Arc::clone(&ours.gateways));
        ours.entries = entries.unwrap_or_else(|| Arc::clone(&ours.entries));
        ours.traffic = traffic.unwrap_or_else(|| ours.traffic.clone());
        for (name, export) in exports {
            match export {
                Some(export) => drop(ours.exports.exports.insert(name, export)),
                None => drop(ours.exports.exports.remove(&name)),
            }
        }
        for (pod, is_unready) in unready {
            if is_unready {
                ours.unready.insert(pod);
            } else {
                ours.unready.remove(&pod);
            }
        }
    }
}

impl StateKind for DatacentreState {
    const KIND: &'static str = "consul";
    type Delta = Delta;

    fn name(&self) -> &str {
        self.name.as_str()
    }

    fn apply(&mut self, delta: Delta) {
        apply(&mut self.services, delta.services);
    }
}

impl StateKind for StoredObjects {
    const KIND: &'static str = "store";
    type Delta = ObjectsDelta;

    fn name(&self) -> &str {
        &self.store
    }

    fn apply(&mut self, ObjectsDelta { removed, now }: ObjectsDelta) {
        for key in &removed {
            self.objects.remove(key);
        }
        for (key, object) in now.iter() {
            self.objects.insert(key.clone(), object.clone());
        }
    }
}

impl ObjectsDelta {
    /// Computes the differences between two versions of a store; `None` if nothing differs. Shared parts are skipped.
    pub(super) fn of(before: &Collection, now: &Collection) -> Option<Self> {
        let (mut removed, mut put) = (Vec::new(), Vec::new());
        for Difference { key, now } in now.differences(before) {
            match now {
                Some(object) => put.push((key.clone(), object.clone())),
                None => removed.push(key.clone()),
            }
        }
        let differs = !(removed.is_empty() && put.is_empty());
        differs.then(|| Self { removed, now: put.into_iter().collect() })
    }
}

/// The assignment of objects to files changes with the objects and as rarely, so it needs no journal.
impl StateKind for StoredFiles {
    const KIND: &'static str = "files";
    type Delta = Infallible;

    fn name(&self) -> &str {
        &self.store
    }

    fn apply(&mut self, delta: Infallible) {
        match delta {}
    }
}

/// Keys change once in months, if at all, so they need no journal.
impl StateKind for IssuerState {
    const KIND: &'static str = "issuer";
    type Delta = Infallible;

    fn name(&self) -> &str {
        self.cluster.as_str()
    }

    fn apply(&mut self, delta: Infallible) {
        match delta {}
    }
}

fn apply(services: &mut BTreeMap<Hostname, ServiceRecord>, delta: ServiceDeltas) {
    for (host, delta) in delta {
        match delta {
            ServiceDelta::Removed => {
                services.remove(&host);
            }
            ServiceDelta::Endpoints(endpoints) => {
                if let Some(record) = services.get_mut(&host) {
                    record.endpoints = endpoints;
                }
            }
            ServiceDelta::Whole(record) => {
                services.insert(host, record);
            }
        }
    }
}

/// Computes the differences of clusters and datacentres between two snapshots. Unchanged sources are left out. Parts
/// that both snapshots share are skipped.
pub(super) fn deltas(before: &PushContext, now: &PushContext) -> Deltas {
    let mut deltas = Deltas::new();
    for difference in before.services.diff(&now.services) {
        let (host, old, new) = sides(difference);
        let records = |service: Option<&Arc<MergedService>>| -> BTreeMap<ClusterId, ServiceRecord> {
            let records = service.into_iter().flat_map(|service| stored_records(service));
            records.map(|(id, record)| (id.clone(), record)).collect()
        };
        let mut old = records(old);
        for (id, new) in records(new) {
            let delta = match old.remove(&id) {
                Some(old) if old == new => continue,
                Some(old) if old.service == new.service => ServiceDelta::Endpoints(new.endpoints),
                _ => ServiceDelta::Whole(new),
            };
            deltas.entry(id).or_default().services.insert(host.clone(), delta);
        }
        for id in old.into_keys() {
            let services = &mut deltas.entry(id).or_default().services;
            services.insert(host.clone(), ServiceDelta::Removed);
        }
    }
    // A cluster without a report is compared as if it were empty.
    let (no_pods, no_facts) = (Workloads::default(), ClusterFacts::default());
    for difference in before.workloads.diff(&now.workloads) {
        let (id, old, new) = sides(difference);
        let differing = workloads(old.unwrap_or(&no_pods), new.unwrap_or(&no_pods));
        deltas.entry(id.clone()).or_default().workloads = differing;
    }
    for difference in before.facts.diff(&now.facts) {
        let (id, old, new) = sides(difference);
        let differing = facts(old.unwrap_or(&no_facts), new.unwrap_or(&no_facts));
        // Facts about imports are not stored.
        if differing != FactsDelta::default() {
            deltas.entry(id.clone()).or_default().facts = differing;
        }
    }
    for difference in before.network_labels.diff(&now.network_labels) {
        let (id, _, new) = sides(difference);
        deltas.entry(id.clone()).or_default().network_label = Some(new.cloned().flatten());
    }
    deltas
}

/// Returns the key, and the old and the new value, of a difference between two maps.
fn sides<'a, K, V>(difference: DiffItem<'a, 'a, K, V>) -> (&'a K, Option<&'a V>, Option<&'a V>) {
    match difference {
        DiffItem::Add(key, new) => (key, None, Some(new)),
        DiffItem::Remove(key, old) => (key, Some(old), None),
        DiffItem::Update { old: (key, old), new: (_, new) } => (key, Some(old), Some(new)),
    }
}

fn workloads(old: &Workloads, new: &Workloads) -> BTreeMap<WorkloadKey, Option<Workload>> {
    let differ = old.differences(new).into_iter();
    differ
        .map(|key| {
            let pod = new.get(key.namespace.as_str(), &key.name).cloned();
            (key, pod)
        })
        .collect()
}

fn facts(old: &ClusterFacts, new: &ClusterFacts) -> FactsDelta {
    let unready = old.unready.diff(&new.unready).map(|difference| match difference {
        imbl::ordset::DiffItem::Add(pod) => (pod.clone(), true),
        imbl::ordset::DiffItem::Remove(pod) => (pod.clone(), false),
    });
    let exports = old.exports.exports.diff(&new.exports.exports).map(|difference| {
        let (name, _, new) = sides(difference);
        (name.clone(), new.cloned())
    });
    let exports: BTreeMap<_, _> = exports.collect();
    let has_traffic = old.traffic != new.traffic || !exports.is_empty();
    FactsDelta {
        localities: if_changed(&old.localities, &new.localities),
        unready: unready.collect(),
        gateways: if_changed(&old.gateways, &new.gateways),
        entries: if_changed(&old.entries, &new.entries),
        traffic: has_traffic.then(|| new.traffic.clone()),
        exports,
    }
}

/// Returns the new value if it differs.
fn if_changed<T: Eq>(old: &Arc<T>, new: &Arc<T>) -> Option<Arc<T>> {
    (old != new).then(|| Arc::clone(new))
}

/// Returns the records of a service that are stored, by shard name: those of Kubernetes clusters and of datacentres of
/// Consul. Names of clusters and datacentres never collide. A record that the mesh currently ignores is stored too.
pub(super) fn stored_records(
    service: &MergedService,
) -> impl Iterator<Item = (&ClusterId, ServiceRecord)> {
    let is_kept = |key: &ShardKey| matches!(key.provider, Provider::Kubernetes | Provider::Consul);
    let reported = service.reported().filter(move |(key, _)| is_kept(key));
    reported.map(|(key, record)| (&key.cluster, record))
}
