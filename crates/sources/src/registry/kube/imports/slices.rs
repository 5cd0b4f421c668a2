//! Computes the EndpointSlices that one import needs in one cluster. Pure.
//!
//! Each slice has the endpoints of one exporting cluster, of one address family and with the same
//! target ports. An endpoint stays in its slice, so that a pod that starts or stops changes one
//! slice. The slices of a cluster whose endpoints are unknown stay as they are.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::IpAddr;
use std::sync::Arc;

use super::bodies::{Row, SliceIdentity, WrittenPort, slice_object};
use super::plan::{
    ImportPlan, ImportPlanInputs, ImportWrite, SettledSlices, SliceTarget, WriteMode,
};
use crate::registry::kube::import_objects::{
    DerivedService, OwnSlice, derived_name, family_of, slice_prefix,
};
use crate::registry::kube::slice_form::Conditions;
use strait_kube_client::NamespacedName;
use strait_model::{
    ExportedPort, Health, IpFamily, NetworkId, RankedExport, RawService, SharedEndpoint,
    SharedService, SourceEndpoints, WorkloadKey,
};

/// The maximum number of endpoints in a slice.
pub(super) const ENDPOINTS_MAX: usize = 100;

/// The knowledge about the endpoints of an exporting cluster.
enum SourceKnowledge<'a> {
    /// The endpoints are unknown: its slices stay unchanged.
    Unknown,
    /// It does not export the service: it has no slices.
    Absent,
    Known(&'a RankedExport, &'a SourceEndpoints),
}

/// The endpoints with the same target ports, by address.
type PortGroups<'a> = BTreeMap<Vec<WrittenPort>, BTreeMap<IpAddr, &'a SharedEndpoint>>;

/// A slice with the endpoints that it keeps or gets.
struct Placed<'a> {
    name: Arc<str>,
    before: Option<&'a OwnSlice>,
    ports: Vec<WrittenPort>,
    endpoints: BTreeMap<IpAddr, &'a SharedEndpoint>,
    changes: bool,
}

impl ImportPlanInputs<'_> {
    /// Plans the slices of an import of Strait. Returns the networks of endpoints that the cluster
    /// does not reach.
    pub(super) fn slices(&self, target: &SliceTarget<'_>, plan: &mut ImportPlan) -> Vec<NetworkId> {
        let SliceTarget { name, key, service, .. } = *target;
        let endpoints = self.endpoints.services.get(key);
        let inputs = self.inputs_hash(target);
        if let Some(settled) = self.settled.slices.get(name) {
            let has_same_endpoints = match (&settled.endpoints, endpoints) {
                (Some(before), Some(now)) => Arc::ptr_eq(before, now),
                (before, now) => before.is_none() && now.is_none(),
            };
            if has_same_endpoints && settled.inputs == inputs {
                plan.settled.slices.insert(name.clone(), settled.clone());
                return settled.unreached.clone();
            }
        }
        let before = plan.writes.len();
        let mut missing = BTreeSet::new();
        let mut deletions = Vec::new();
        for source in self.sources(name, service) {
            for family in [IpFamily::V4, IpFamily::V6] {
                let writes = self.source_slices(target, &source, family, &mut missing);
                let (deleted, written): (Vec<_>, Vec<_>) = writes
                    .into_iter()
                    .partition(|write| matches!(write, ImportWrite::DeleteSlice { .. }));
                plan.writes.extend(written.into_iter().map(|write| (name.clone(), write)));
                deletions.extend(deleted.into_iter().map(|write| (name.clone(), write)));
            }
        }
        // New slices first: an endpoint that moves to another slice stays reachable.
        plan.writes.append(&mut deletions);
        let missing: Vec<_> = missing.into_iter().collect();
        if plan.writes.len() == before {
            let endpoints = endpoints.cloned();
            let settled = SettledSlices { endpoints, inputs, unreached: missing.clone() };
            plan.settled.slices.insert(name.clone(), settled);
        }
        missing
    }

    /// Plans the slices of one exporting cluster and address family. Adds the networks of ready
    /// endpoints that the importing cluster does not reach.
    fn source_slices(
        &self,
        SliceTarget { name, key, service, fields, derived }: &SliceTarget<'_>,
        source: &Arc<str>,
        family: IpFamily,
        missing: &mut BTreeSet<NetworkId>,
    ) -> Vec<ImportWrite> {
        let groups = match self.source(key, *service, source) {
            SourceKnowledge::Unknown => return Vec::new(),
            SourceKnowledge::Absent => PortGroups::new(),
            SourceKnowledge::Known(export, known) => {
                let is_served = serves(family, fields, derived);
                self.groups(export, known, fields, family, is_served, missing)
            }
        };
        let present = self
            .own_slices(name)
            .filter(|(_, slice)| slice.source == *source && slice.family == family);
        let prefix = slice_prefix(&derived_name(name), source, family);
        let is_taken = |slice: &str| {
            let (namespace, slice) = (Arc::clone(&name.namespace), slice.into());
            (self.is_other_slice)(&NamespacedName { namespace, name: slice })
        };
        let mut writes = Vec::new();
        for placed in place(&prefix, present.collect(), groups, is_taken) {
            if placed.endpoints.is_empty() {
                writes.extend(placed.before.map(|slice| slice.deletion(&placed.name)));
                continue;
            }
            let identity = SliceIdentity {
                import: name,
                derived,
                set: self.set,
                source,
                family,
                name: &placed.name,
            };
            let rows = self.rows(source, fields, &placed);
            let object = slice_object(&identity, &placed.ports, &rows);
            let mode = match placed.before {
                None => Some(WriteMode::Create),
                Some(slice) => {
                    let namespace = Arc::clone(&name.namespace);
                    let key = NamespacedName { namespace, name: Arc::clone(&placed.name) };
                    let written = (&*slice.applied, &*slice.version);
                    self.mode(&key, &object, written, has_content(slice, &placed))
                }
            };
            let slice = placed.name;
            writes.extend(mode.map(|mode| ImportWrite::Slice { slice, object, mode }));
        }
        writes
    }

    /// Plans the deletion of all slices of an import.
    pub(super) fn delete_slices(&self, name: &NamespacedName, plan: &mut ImportPlan) {
        let slices = self.own_slices(name);
        plan.writes.extend(slices.map(|(slice, own)| (name.clone(), own.deletion(slice))));
    }

    /// Returns the slices of an import that Strait wrote.
    pub(super) fn own_slices(
        &self,
        name: &NamespacedName,
    ) -> impl Iterator<Item = (&Arc<str>, &OwnSlice)> {
        self.slices.get(name).into_iter().flatten()
    }

    /// Returns the names in the set of the clusters that have endpoints or slices, sorted.
    fn sources(
        &self,
        name: &NamespacedName,
        service: Option<&SharedService>,
    ) -> BTreeSet<Arc<str>> {
        let exporters = service.into_iter().flat_map(SharedService::names);
        exporters.chain(self.own_slices(name).map(|(_, slice)| Arc::clone(&slice.source))).collect()
    }

    fn source<'a>(
        &'a self,
        key: &WorkloadKey,
        service: Option<&'a SharedService>,
        source: &str,
    ) -> SourceKnowledge<'a> {
        let exports = service.into_iter().flat_map(|service| &service.exports);
        if let Some(export) = exports.into_iter().find(|export| *export.name == *source) {
            let known = self.endpoints.services.get(key).into_iter().flat_map(|all| all.iter());
            let known = known.into_iter().find(|known| known.cluster == export.cluster);
            let member = self.shared.members.get(&export.cluster);
            let is_read = member.is_some_and(|member| member.lacks(key));
            let has_network = self.endpoints.networks.contains_key(self.cluster);
            return match known {
                Some(known) if has_network && (is_read || known.is_withdrawn) => {
                    SourceKnowledge::Known(export, known)
                }
                _ => SourceKnowledge::Unknown,
            };
        }
        let is_absent = match self.shared.member(source) {
            Some((id, member)) => {
                member.lacks(key) || service.is_some_and(|one| one.refused.contains_key(id))
            }
            None => self.shared.removals_certain,
        };
        if is_absent { SourceKnowledge::Absent } else { SourceKnowledge::Unknown }
    }

    /// Returns the endpoints of a cluster in one family by their target ports, limited to ports that
    /// the import has: the cluster's port has the same protocol and number. Adds the networks of
    /// ready endpoints that the importing cluster does not reach.
    fn groups<'a>(
        &self,
        export: &RankedExport,
        source: &'a SourceEndpoints,
        import: &RawService,
        family: IpFamily,
        is_served: bool,
        missing: &mut BTreeSet<NetworkId>,
    ) -> PortGroups<'a> {
        let Some(network) = self.endpoints.networks.get(self.cluster) else {
            return PortGroups::new();
        };
        let ports = &export.service.service.ports;
        let port_of = |endpoint: &SharedEndpoint| {
            let own = ports.iter().find(|port| port.name == endpoint.port_name)?;
            let is_it =
                |port: &&ExportedPort| (&port.protocol, port.number) == (&own.protocol, own.number);
            let port = import.ports.iter().find(is_it)?.clone();
            Some(WrittenPort { number: endpoint.port, ..WrittenPort::from(port) })
        };
        let mut found: BTreeMap<IpAddr, (&SharedEndpoint, BTreeMap<Arc<str>, WrittenPort>)> =
            BTreeMap::new();
        for endpoint in source.endpoints.iter().filter(|one| family_of(one.address) == family) {
            if endpoint.network != *network && endpoint.health == Health::Healthy {
                missing.insert(endpoint.network.clone());
            }
            if !is_served || !endpoint.is_reached_by(&source.cluster, self.cluster, network) {
                continue;
            }
            let Some(port) = port_of(endpoint) else { continue };
            let (_, ports) = found.entry(endpoint.address).or_insert((endpoint, BTreeMap::new()));
            ports.entry(Arc::clone(&port.name)).or_insert(port);
        }
        let mut groups = PortGroups::new();
        for (address, (endpoint, ports)) in found {
            groups.entry(ports.into_values().collect()).or_default().insert(address, endpoint);
        }
        groups
    }

    /// Returns the endpoints of a slice as they are written.
    fn rows<'a>(&self, source: &str, import: &RawService, placed: &Placed<'a>) -> Vec<Row<'a>> {
        // Nodes of different clusters may have equal names.
        let is_own = self.shared.member(source).is_some_and(|(id, _)| id == self.cluster);
        let is_near = import.traffic_distribution.is_some();
        let row = |(address, endpoint): (&IpAddr, &&'a SharedEndpoint)| Row {
            address: *address,
            conditions: conditions(endpoint.health),
            hostname: endpoint.hostname.as_deref(),
            zone: Some(&*endpoint.locality.zone).filter(|zone| !zone.is_empty()),
            node: endpoint.node.as_deref().filter(|_| is_own),
            has_hint: is_near && endpoint.health == Health::Healthy,
        };
        placed.endpoints.iter().map(row).collect()
    }

    /// Returns the hash of the inputs other than the endpoints.
    fn inputs_hash(
        &self,
        SliceTarget { name, key, service, fields, derived }: &SliceTarget<'_>,
    ) -> u64 {
        let mut hash = DefaultHasher::new();
        (fields, &derived.uid, &derived.ips).hash(&mut hash);
        self.endpoints.networks.get(self.cluster).map(NetworkId::as_str).hash(&mut hash);
        for source in self.sources(name, *service) {
            let state = match self.source(key, *service, &source) {
                SourceKnowledge::Unknown => 0,
                SourceKnowledge::Absent => 1,
                SourceKnowledge::Known(export, _) => {
                    (&export.service.service.ports, export.cluster.as_str()).hash(&mut hash);
                    2
                }
            };
            (&source, state).hash(&mut hash);
        }
        for (slice, own) in self.own_slices(name) {
            (slice, &own.version).hash(&mut hash);
        }
        hash.finish()
    }
}

/// Returns whether the derived Service has addresses of a family. Slices of the other family have no
/// effect.
fn serves(family: IpFamily, import: &RawService, derived: &DerivedService) -> bool {
    let families = &import.ip_families;
    match &*derived.ips {
        [] => families.is_empty() || families.contains(&family),
        ips => ips.iter().any(|ip| family_of(*ip) == family),
    }
}

/// Returns the conditions of an endpoint. A source does not report whether a terminating endpoint
/// still serves.
fn conditions(health: Health) -> Conditions {
    let (ready, serving, terminating) = match health {
        Health::Healthy => (true, Some(true), false),
        Health::Unhealthy => (false, Some(false), false),
        Health::Draining => (false, Some(true), true),
        Health::Terminating => (false, None, true),
    };
    Conditions { ready: Some(ready), serving, terminating: Some(terminating) }
}

/// Distributes endpoints over slices: each stays in the slice that has it. New endpoints fill slices
/// that change anyway, then the fullest ones, then empty ones, then new ones.
fn place<'a>(
    prefix: &str,
    present: BTreeMap<&Arc<str>, &'a OwnSlice>,
    mut groups: PortGroups<'a>,
    is_taken: impl Fn(&str) -> bool,
) -> Vec<Placed<'a>> {
    let mut placed = Vec::new();
    for (name, slice) in &present {
        let has_ports = |ports: &[WrittenPort]| {
            ports
                .iter()
                .map(|port| (&port.name, port.number))
                .eq(slice.ports.iter().map(|(name, number)| (name, *number)))
        };
        let group = groups.iter_mut().find(|(ports, _)| has_ports(ports));
        let (mut ports, mut kept) = (Vec::new(), BTreeMap::new());
        let mut changes = false;
        if let Some((group_ports, endpoints)) = group {
            ports.clone_from(group_ports);
            for (address, before) in &slice.endpoints {
                let has_room = kept.len() < ENDPOINTS_MAX;
                let endpoint = if has_room { endpoints.remove(address) } else { None };
                changes |= endpoint.is_none_or(|one| conditions(one.health) != *before);
                kept.extend(endpoint.map(|endpoint| (*address, endpoint)));
            }
        }
        let name = Arc::clone(name);
        placed.push(Placed { name, before: Some(*slice), ports, endpoints: kept, changes });
    }
    let mut number = 0_usize;
    for (ports, mut rest) in groups {
        let mut order: Vec<usize> = (0..placed.len()).collect();
        let rank = |slice: &Placed<'_>| (!slice.changes, ENDPOINTS_MAX - slice.endpoints.len());
        order.retain(|at| {
            let slice = &placed[*at];
            slice.endpoints.is_empty() || slice.ports == ports
        });
        // Empty slices come last, because filling one keeps an object that would be deleted.
        order.sort_by_key(|at| (placed[*at].endpoints.is_empty(), rank(&placed[*at])));
        for at in order {
            let slice = &mut placed[at];
            slice.ports.clone_from(&ports);
            fill(slice, &mut rest);
        }
        while !rest.is_empty() {
            let name = loop {
                let name = format!("{prefix}{number}");
                number += 1;
                if !present.keys().any(|present| ***present == *name) && !is_taken(&name) {
                    break name;
                }
            };
            let mut slice = Placed {
                name: name.into(),
                before: None,
                ports: ports.clone(),
                endpoints: BTreeMap::new(),
                changes: true,
            };
            fill(&mut slice, &mut rest);
            placed.push(slice);
        }
    }
    placed
}

/// Moves endpoints into a slice until it is full.
fn fill<'a>(slice: &mut Placed<'a>, rest: &mut BTreeMap<IpAddr, &'a SharedEndpoint>) {
    while slice.endpoints.len() < ENDPOINTS_MAX
        && let Some((address, endpoint)) = rest.pop_first()
    {
        slice.endpoints.insert(address, endpoint);
    }
}

/// Returns whether a slice has these ports and endpoints.
fn has_content(slice: &OwnSlice, placed: &Placed<'_>) -> bool {
    let wanted = placed.endpoints.iter().map(|(address, one)| (*address, conditions(one.health)));
    let ports = placed.ports.iter().map(|port| (&port.name, port.number));
    slice.endpoints.iter().copied().eq(wanted)
        && slice.ports.iter().map(|(name, number)| (name, *number)).eq(ports)
}

impl OwnSlice {
    /// Returns the deletion of this version of the slice.
    fn deletion(&self, name: &Arc<str>) -> ImportWrite {
        let (uid, version) = (self.uid.clone(), self.version.clone());
        ImportWrite::DeleteSlice { slice: Arc::clone(name), uid, version }
    }
}
