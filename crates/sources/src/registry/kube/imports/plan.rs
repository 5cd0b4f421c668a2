//! Computes the ServiceImports, derived Services and EndpointSlices that one cluster needs. Pure: equal inputs give
//! equal plans, in a total order.
//!
//! A cluster without a response may still export a service: an import is deleted only if each
//! cluster that exported the service is known not to export it any more, or was removed.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use serde_json::Value;

use super::bodies::{applied, derived_object, import_object};
use crate::registry::kube::import_objects::{
    DerivedService, OwnImport, OwnSlice, derived_name, family_of,
};
use crate::registry::kube::kind::{namespaced_name, workload_key};
use crate::registry::kube::mcs::Import;
use crate::registry::kube::mcs_form::ExportCondition;
use crate::registry::kube::service::AFFINITY_SECONDS;
use crate::registry::kube::{ImportState, ImportStep};
use strait_base::codes;
use strait_kube_client::NamespacedName;
use strait_model::{
    ClusterId, ExportedPort, ImportMode, ImportedService, IpFamily, NetworkId, RawService,
    SetMember, SharedEndpoints, SharedService, SharedServices, SourceEndpoints, WorkloadKey,
};

/// The maximum number of EndpointSlices that a reason names.
const SLICES_NAMED_MAX: usize = 3;

/// The inputs of a plan.
pub(in crate::registry::kube) struct ImportPlanInputs<'a> {
    pub(in crate::registry::kube) shared: &'a SharedServices,
    pub(in crate::registry::kube) mode: ImportMode,
    /// Whether `status.clusters` of other controllers' imports is written.
    pub(in crate::registry::kube) adopts_status: bool,
    /// The name of the cluster set.
    pub(in crate::registry::kube) set: &'a str,
    /// Group and version of the API.
    pub(in crate::registry::kube) version: &'a str,
    /// Whether a namespace exists and objects can be created in it.
    pub(in crate::registry::kube) has_namespace: &'a dyn Fn(&str) -> bool,
    /// All ServiceImports of the cluster.
    pub(in crate::registry::kube) imports: &'a BTreeMap<NamespacedName, Import>,
    /// The derived Services of all controllers.
    pub(in crate::registry::kube) derived: &'a BTreeMap<NamespacedName, DerivedService>,
    /// Whether there is a Service that is not a derived one, or cannot be read.
    pub(in crate::registry::kube) is_other_service: &'a dyn Fn(&NamespacedName) -> bool,
    /// The importing cluster.
    pub(in crate::registry::kube) cluster: &'a ClusterId,
    /// The endpoints of exported services.
    pub(in crate::registry::kube) endpoints: &'a SharedEndpoints,
    /// The EndpointSlices that Strait wrote, by ServiceImport and name.
    pub(in crate::registry::kube) slices:
        &'a BTreeMap<NamespacedName, BTreeMap<Arc<str>, OwnSlice>>,
    /// Whether there is an EndpointSlice that Strait did not write.
    pub(in crate::registry::kube) is_other_slice: &'a dyn Fn(&NamespacedName) -> bool,
    /// Objects that needed no write in the last plan.
    pub(in crate::registry::kube) settled: &'a SettledImports,
    /// Imports for which the cluster has no address family.
    pub(in crate::registry::kube) unsupported: &'a BTreeSet<NamespacedName>,
    /// The slices that Kubernetes wrote for the selectors of derived Services, by Service.
    pub(in crate::registry::kube) slices_of_selectors:
        &'a BTreeMap<NamespacedName, BTreeSet<Arc<str>>>,
    /// ServiceImports, derived Services and EndpointSlices of which another manager owns a field that
    /// Strait applies.
    pub(in crate::registry::kube) refused: &'a BTreeSet<NamespacedName>,
    /// Whether a missing import may be created now.
    pub(in crate::registry::kube) may_create: &'a dyn Fn(&NamespacedName) -> bool,
}

/// How an object is written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::registry::kube) enum WriteMode {
    Create,
    Apply,
    /// Replaces the content of this version, which another client changed.
    Restore(Box<str>),
}

impl WriteMode {
    /// Removes the version, for comparisons.
    pub(in crate::registry::kube) fn forget_version(&mut self) {
        if let Self::Restore(version) = self {
            *version = Box::default();
        }
    }
}

/// A write of one object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::registry::kube) enum ImportWrite {
    /// Writes a ServiceImport.
    Import { object: Value, mode: WriteMode },
    /// Applies the status of an import: the clusters, the condition `Ready`, and
    /// `endpointSliceObjects`.
    Status { clusters: Vec<Arc<str>>, ready: ExportCondition, slices: Option<&'static str> },
    /// Applies `status.clusters` of another controller's import.
    AdoptedClusters(Vec<Arc<str>>),
    /// Writes a derived Service.
    Derived { object: Value, mode: WriteMode },
    /// Writes an EndpointSlice.
    Slice { slice: Arc<str>, object: Value, mode: WriteMode },
    /// Deletes an EndpointSlice with this UID and version.
    DeleteSlice { slice: Arc<str>, uid: Box<str>, version: Box<str> },
    /// Deletes a ServiceImport with this UID and version.
    DeleteImport { uid: Box<str>, version: Box<str> },
    /// Deletes a derived Service with this UID and version.
    DeleteDerived { uid: Box<str>, version: Box<str> },
}

impl ImportWrite {
    /// Returns how the write changes an object; `None` for deletions and statuses.
    pub(in crate::registry::kube) fn mode(&self) -> Option<&WriteMode> {
        match self {
            Self::Import { mode, .. } | Self::Derived { mode, .. } | Self::Slice { mode, .. } => {
                Some(mode)
            }
            _ => None,
        }
    }

    /// Returns the object of the import with this name that the write restores, if it does.
    fn restored(&self, import: &NamespacedName) -> Option<String> {
        let Some(WriteMode::Restore(_)) = self.mode() else { return None };
        Some(match self {
            Self::Derived { .. } => format!("Service {}", derived_name(import)),
            Self::Slice { slice, .. } => format!("EndpointSlice {slice}"),
            _ => format!("ServiceImport {}", import.name),
        })
    }

    /// Returns whether the write deletes an object.
    pub(in crate::registry::kube) fn is_deletion(&self) -> bool {
        matches!(
            self,
            Self::DeleteImport { .. } | Self::DeleteDerived { .. } | Self::DeleteSlice { .. }
        )
    }
}

/// The writes for one cluster, and the state of each import.
#[derive(Debug, Default)]
pub(in crate::registry::kube) struct ImportPlan {
    /// Writes by the name of the ServiceImport.
    pub(in crate::registry::kube) writes: Vec<(NamespacedName, ImportWrite)>,
    /// The state of each import that exists or should exist.
    pub(in crate::registry::kube) states: BTreeMap<WorkloadKey, ImportState>,
    /// Objects that need no write, for the next plan.
    pub(in crate::registry::kube) settled: SettledImports,
}

/// The objects that needed no write, so that they are not compared again while nothing changes.
#[derive(Debug, Default)]
pub(in crate::registry::kube) struct SettledImports {
    /// Group and version of the API in the comparison.
    version: String,
    rows: BTreeMap<NamespacedName, SettledImport>,
    pub(super) slices: BTreeMap<NamespacedName, SettledSlices>,
}

/// The versions of the objects of one import that needed no write.
#[derive(Debug, Clone, PartialEq, Eq)]
struct SettledImport {
    merged: Arc<ImportedService>,
    import: Box<str>,
    derived: Option<Box<str>>,
}

/// The slices of one import that needed no write, and the values from which that was computed.
#[derive(Debug, Clone)]
pub(super) struct SettledSlices {
    pub(super) endpoints: Option<Arc<[SourceEndpoints]>>,
    /// The hash of all other inputs.
    pub(super) inputs: u64,
    /// The networks that the cluster does not reach.
    pub(super) unreached: Vec<NetworkId>,
}

/// The import whose slices are planned.
pub(super) struct SliceTarget<'a> {
    pub(super) name: &'a NamespacedName,
    pub(super) key: &'a WorkloadKey,
    pub(super) service: Option<&'a SharedService>,
    /// The fields of the import.
    pub(super) fields: &'a RawService,
    pub(super) derived: &'a DerivedService,
}

/// Returns the plan for a cluster.
pub(in crate::registry::kube) fn plan(inputs: &ImportPlanInputs<'_>) -> ImportPlan {
    let mut plan = ImportPlan::default();
    plan.settled.version = inputs.version.to_owned();
    let mut names: BTreeSet<NamespacedName> = inputs.imports.keys().cloned().collect();
    names.extend(inputs.shared.services.keys().map(namespaced_name));
    for name in names {
        let key = workload_key(&name);
        let service = inputs.shared.services.get(&key);
        let state = match service.and_then(|one| Some((one, one.merged.as_ref()?))) {
            Some((service, merged)) => inputs.exported(&name, &key, service, merged, &mut plan),
            None => inputs.unexported(&name, &key, service, &mut plan),
        };
        plan.states.extend(state.map(|state| (key, state)));
    }
    inputs.orphans(&mut plan);
    plan
}

impl ImportPlanInputs<'_> {
    /// Plans the objects of a service that is exported.
    fn exported(
        &self,
        name: &NamespacedName,
        key: &WorkloadKey,
        service: &SharedService,
        merged: &Arc<ImportedService>,
        plan: &mut ImportPlan,
    ) -> Option<ImportState> {
        let present = self.imports.get(name);
        if !(self.has_namespace)(&name.namespace) {
            if self.mode == ImportMode::Off {
                return None;
            }
            return Some(ImportState::absent(
                "the namespace does not exist in this cluster",
                ImportStep::Namespace,
            ));
        }
        let Some(import) = present else {
            if self.mode == ImportMode::Off {
                return None;
            }
            if (self.may_create)(name) {
                let families = &merged.service.ip_families;
                let object = import_object(name, merged, self.set, families, &[], false);
                let write = ImportWrite::Import { object, mode: WriteMode::Create };
                plan.writes.push((name.clone(), write));
            }
            return Some(ImportState::absent("it is being created", ImportStep::Address));
        };
        let Some(own) = &import.own else {
            return Some(self.foreign(name, import, service.names(), plan));
        };
        let state = ImportState::of(own);
        if self.mode == ImportMode::Off {
            return Some(ImportState { reason: Some(OFF.into()), ..state });
        }
        if let Some(unknown) = self.unknown_exporter(key, Some(service), import, own) {
            let state = self.with_slices(state, name, key, Some(service), &own.service, plan);
            return Some(state.kept(&unknown));
        }
        let derived_key = derived_key(name);
        let derived = self.derived.get(&derived_key);
        if derived.is_some_and(|derived| !derived.is_ours) || (self.is_other_service)(&derived_key)
        {
            let reason = format!("Service {} belongs to another controller", derived_key.name);
            let (code, fails) = (Some(&codes::IMPORT_FOREIGN), Some(ImportStep::Foreign));
            let state = self.with_slices(state, name, key, Some(service), &own.service, plan);
            return Some(ImportState { reason: Some(reason), code, fails, ready: false, ..state });
        }
        let row = SettledImport {
            merged: Arc::clone(merged),
            import: own.version.clone(),
            derived: derived.map(|derived| derived.version.clone()),
        };
        let is_settled = self.settled.version == self.version
            && self.settled.rows.get(name).is_some_and(|before| {
                Arc::ptr_eq(&before.merged, merged)
                    && (&before.import, &before.derived) == (&row.import, &row.derived)
            });
        let before = plan.writes.len();
        if !is_settled {
            self.applied(name, merged, own, derived, plan);
        }
        if plan.writes.len() == before {
            plan.settled.rows.insert(name.clone(), row);
        }
        // The ports of an import that another client changed have no effect on its slices. If the
        // exports change too, the import has no port of theirs.
        let of_exports = |port| merged.service.ports.contains(port);
        let is_foreign = !own.service.ports.iter().any(of_exports);
        let fields = match plan.writes[before..].last() {
            Some((_, ImportWrite::Import { mode, .. }))
                if is_foreign || matches!(mode, WriteMode::Restore(_)) =>
            {
                &merged.service
            }
            _ => &own.service,
        };
        let state = self.with_slices(state, name, key, Some(service), fields, plan);
        let restored = plan.writes[before..].iter().find_map(|(_, write)| write.restored(name));
        let ready = self.ready(name, of_same_type(derived, merged));
        let names = service.names();
        let is_known = own.ready.as_ref().is_some_and(|current| {
            (&current.status, &current.reason) == (&ready.status, &ready.reason)
        });
        let has_names = import.has_clusters(&names);
        // A version of the API without the field does not store it.
        let slices = if self.mode == ImportMode::Full { PRESENT } else { ABSENT };
        let has_slices = own.slices.as_deref().is_none_or(|current| current == slices);
        if !(is_known && has_names && has_slices) {
            let ready = ready.clone().dated(own.ready.as_slice());
            let status = ImportWrite::Status { clusters: names, ready, slices: Some(slices) };
            plan.writes.push((name.clone(), status));
        }
        if let Some(object) = restored {
            let reason = Some(format!(
                "another client changed {object}; Strait restores it, at most {RESTORATIONS_MAX} \
                 times in 10 minutes"
            ));
            let (code, fails) = (Some(&codes::IMPORT_CHANGED), Some(ImportStep::Foreign));
            return Some(ImportState { reason, code, fails, ready: false, ..state });
        }
        if let Some(slices) = self.slices_of_selectors.get(&derived_key) {
            let reason = Some(foreign_slices(name, &derived_key.name, slices));
            let (code, fails) = (Some(&codes::IMPORT_SLICES), Some(ImportStep::Foreign));
            return Some(ImportState { reason, code, fails, ready: false, ..state });
        }
        let reason = (&*ready.status != "True").then(|| ready.message.to_string());
        let fails = reason.is_some().then_some(ImportStep::Address);
        Some(ImportState { reason, fails, ..state })
    }

    /// Plans the slices of an import of Strait with these `fields`. Returns its state with them.
    fn with_slices(
        &self,
        state: ImportState,
        name: &NamespacedName,
        key: &WorkloadKey,
        service: Option<&SharedService>,
        fields: &RawService,
        plan: &mut ImportPlan,
    ) -> ImportState {
        let derived = self.own_derived(&derived_key(name));
        let derived = derived.filter(|derived| derived.headless == fields.headless);
        let unreached = match (self.mode, derived) {
            (ImportMode::Full, Some(derived)) => {
                let target = SliceTarget { name, key, service, fields, derived };
                self.slices(&target, plan)
            }
            (ImportMode::Names, _) => {
                self.delete_slices(name, plan);
                Vec::new()
            }
            _ => Vec::new(),
        };
        ImportState { slices: self.own_slices(name).count(), unreached, ..state }
    }

    /// Plans the ServiceImport and its derived Service. `at_name` is the current derived Service,
    /// of any type.
    fn applied(
        &self,
        name: &NamespacedName,
        merged: &ImportedService,
        own: &OwnImport,
        at_name: Option<&DerivedService>,
        plan: &mut ImportPlan,
    ) {
        let headless = merged.service.headless;
        match at_name {
            // A cluster IP can be neither added nor removed.
            Some(derived) if derived.headless != headless => {
                plan.writes.push((name.clone(), derived.deletion()));
            }
            _ if self.unsupported.contains(name) => {}
            _ => {
                let object = derived_object(name, merged, self.set, self.version, &own.uid);
                let mode = match at_name {
                    None => Some(WriteMode::Create),
                    Some(derived) => {
                        let written = (&*derived.applied, &*derived.version);
                        let has_content = has_fields(derived, &merged.service);
                        self.mode(&derived_key(name), &object, written, has_content)
                    }
                };
                let write = mode.map(|mode| ImportWrite::Derived { object, mode });
                plan.writes.extend(write.map(|write| (name.clone(), write)));
            }
        }
        let derived = of_same_type(at_name, merged);
        let ips: &[IpAddr] = match derived {
            _ if headless => &[],
            Some(derived) if !derived.ips.is_empty() => &derived.ips,
            // The addresses stay until the derived Service has others.
            _ => &own.ips,
        };
        let families: Vec<IpFamily> = match ips {
            [] => merged.service.ip_families.clone(),
            ips => ips.iter().copied().map(family_of).collect(),
        };
        let object = import_object(name, merged, self.set, &families, ips, derived.is_some());
        let service = RawService { ip_families: families, ..merged.service.clone() };
        let has_content = own.ips == ips && without_order(&own.service) == without_order(&service);
        let mode = self.mode(name, &object, (&own.applied, &own.version), has_content);
        let write = mode.map(|mode| ImportWrite::Import { object, mode });
        plan.writes.extend(write.map(|write| (name.clone(), write)));
    }

    /// Returns how to write an object that exists with this hash in this version; `None` if no write
    /// is needed. `has_content` is whether it has the content that Strait applies.
    pub(super) fn mode(
        &self,
        key: &NamespacedName,
        object: &Value,
        (hash, version): (&str, &str),
        has_content: bool,
    ) -> Option<WriteMode> {
        let is_applied = *hash == *applied(object);
        match has_content {
            true if is_applied => None,
            false if is_applied || self.refused.contains(key) => {
                Some(WriteMode::Restore(version.into()))
            }
            _ => Some(WriteMode::Apply),
        }
    }

    /// Returns the condition `Ready` of an import with this derived Service.
    fn ready(&self, name: &NamespacedName, derived: Option<&DerivedService>) -> ExportCondition {
        let has_addresses =
            derived.is_some_and(|derived| derived.headless || !derived.ips.is_empty());
        let (reason, message) = match has_addresses {
            true => ("Ready", "its derived Service has addresses"),
            false if self.unsupported.contains(name) => (
                "IPFamilyNotSupported",
                "the cluster has none of the address families of the service",
            ),
            false => ("Pending", "its derived Service has no address yet"),
        };
        ExportCondition::new("Ready", has_addresses, reason, message)
    }

    /// Returns the state of another controller's import, and plans its adopted status.
    fn foreign(
        &self,
        name: &NamespacedName,
        import: &Import,
        clusters: Vec<Arc<str>>,
        plan: &mut ImportPlan,
    ) -> ImportState {
        if self.adopts_status && !import.has_clusters(&clusters) {
            plan.writes.push((name.clone(), ImportWrite::AdoptedClusters(clusters)));
        }
        ImportState {
            present: true,
            ours: false,
            ready: !import.vips.is_empty(),
            ips: import.vips.clone(),
            reason: Some("another controller manages ServiceImports here".into()),
            code: Some(&codes::IMPORT_FOREIGN),
            fails: import.vips.is_empty().then_some(ImportStep::Foreign),
            ..ImportState::default()
        }
    }

    /// Plans the deletion of an import that no cluster exports, if that is certain.
    fn unexported(
        &self,
        name: &NamespacedName,
        key: &WorkloadKey,
        service: Option<&SharedService>,
        plan: &mut ImportPlan,
    ) -> Option<ImportState> {
        let Some(import) = self.imports.get(name) else {
            let refusal = service?.refused.values().next()?;
            let code = &codes::SET_NAME_MISSING;
            let is_name = refusal.starts_with(code.id);
            let fails = if is_name { ImportStep::Name } else { ImportStep::Policy };
            let code = is_name.then_some(code);
            return Some(ImportState { code, ..ImportState::absent(refusal, fails) });
        };
        let Some(own) = &import.own else {
            return Some(self.foreign(name, import, Vec::new(), plan));
        };
        let state = ImportState::of(own);
        if self.mode == ImportMode::Off {
            return Some(ImportState { reason: Some(OFF.into()), ..state });
        }
        if let Some(unknown) = self.unknown_exporter(key, service, import, own) {
            let state = self.with_slices(state, name, key, service, &own.service, plan);
            return Some(state.kept(&unknown));
        }
        // The slices and the derived Service are deleted first, because a cluster without a garbage
        // collector would keep them.
        self.delete_slices(name, plan);
        if let Some(derived) = self.own_derived(&derived_key(name)) {
            plan.writes.push((name.clone(), derived.deletion()));
        }
        let (uid, version) = (own.uid.clone(), own.version.clone());
        plan.writes.push((name.clone(), ImportWrite::DeleteImport { uid, version }));
        Some(ImportState { reason: Some("no cluster exports it any more".into()), ..state })
    }

    /// Returns a cluster that exported the service of an import and may still export it, because
    /// its current exports are unknown.
    fn unknown_exporter(
        &self,
        key: &WorkloadKey,
        service: Option<&SharedService>,
        import: &Import,
        own: &OwnImport,
    ) -> Option<Box<str>> {
        // A cluster whose exports are unknown may still export the service.
        let is_known = |id: &ClusterId, member: &SetMember| {
            member.lacks(key)
                || service.is_some_and(|service| {
                    service.is_exported_by(id) || service.refused.contains_key(id)
                })
        };
        let named = import.clusters.iter().map(|name| &**name);
        let mut named = named.chain([&*own.decided_by]).filter(|name| !name.is_empty()).peekable();
        if named.peek().is_none() {
            // Without a status, any member may have exported it.
            let mut members = self.shared.members.iter();
            return members
                .find(|(id, member)| !is_known(id, member))
                .map(|(id, _)| id.as_str().into());
        }
        // The status contains names in the set, which can be the IDs of other clusters.
        let is_named_known = |name: &str| match self.shared.member(name) {
            Some((id, member)) => is_known(id, member),
            None => self.shared.removals_certain,
        };
        named.find(|name| !is_named_known(name)).map(Box::from)
    }

    /// Returns the derived Service with this key if Strait wrote it.
    fn own_derived(&self, key: &NamespacedName) -> Option<&DerivedService> {
        self.derived.get(key).filter(|derived| derived.is_ours)
    }

    /// Plans the deletion of derived Services and slices whose import does not exist, if that is
    /// certain.
    fn orphans(&self, plan: &mut ImportPlan) {
        if self.mode == ImportMode::Off {
            return;
        }
        let is_orphan = |import: &NamespacedName| {
            let name = workload_key(import);
            let is_wanted =
                self.shared.services.contains_key(&name) || self.imports.contains_key(import);
            !is_wanted
                && self.shared.removals_certain
                && self.shared.members.values().all(|member| member.lacks(&name))
        };
        for import in self.slices.keys().filter(|import| is_orphan(import)) {
            self.delete_slices(import, plan);
        }
        for (key, derived) in self.derived.iter().filter(|(_, derived)| derived.is_ours) {
            let import = NamespacedName {
                namespace: Arc::clone(&key.namespace),
                name: Arc::clone(&derived.import),
            };
            if is_orphan(&import) {
                plan.writes.push((import, derived.deletion()));
            }
        }
    }
}

/// The values of `endpointSliceObjects` with and without slices.
const PRESENT: &str = "Present";
const ABSENT: &str = "Absent";
/// How often the same content of an object is restored before the writer pauses.
pub(in crate::registry::kube) const RESTORATIONS_MAX: u32 = 3;
const OFF: &str = "--mcs-imports is off for this cluster: it is no longer updated";

fn derived_key(import: &NamespacedName) -> NamespacedName {
    NamespacedName { namespace: Arc::clone(&import.namespace), name: derived_name(import).into() }
}

/// Returns the derived Service if it has the type of the merged service.
fn of_same_type<'a>(
    derived: Option<&'a DerivedService>,
    merged: &ImportedService,
) -> Option<&'a DerivedService> {
    derived.filter(|derived| derived.headless == merged.service.headless)
}

impl DerivedService {
    /// Returns the deletion of this version of the Service.
    fn deletion(&self) -> ImportWrite {
        ImportWrite::DeleteDerived { uid: self.uid.clone(), version: self.version.clone() }
    }
}

impl Import {
    /// Returns whether the status lists exactly these clusters, in this order.
    fn has_clusters(&self, names: &[Arc<str>]) -> bool {
        self.clusters.iter().map(|one| &**one).eq(names.iter().map(|one| &**one))
    }
}

/// Returns whether a derived Service has the fields of the merged service. The address families
/// depend on the cluster, and API servers before 1.30 lack `trafficDistribution`.
fn has_fields(derived: &DerivedService, merged: &RawService) -> bool {
    let of_derived = |service: &RawService| RawService {
        ip_families: Vec::new(),
        traffic_distribution: None,
        sticky_seconds: service.sticky_seconds.or(Some(AFFINITY_SECONDS)),
        internal_traffic_policy: service
            .internal_traffic_policy
            .clone()
            .or_else(|| Some("Cluster".into())),
        ..service.clone()
    };
    let found = &derived.service.traffic_distribution;
    !derived.has_other_fields
        && (found.is_none() || *found == merged.traffic_distribution)
        && without_order(&of_derived(&derived.service)) == without_order(&of_derived(merged))
}

/// Returns the fields of a service for a comparison: an API server may order ports differently.
fn without_order(service: &RawService) -> RawService {
    let mut ports: Vec<ExportedPort> = service.ports.clone();
    ports.sort();
    let sticky_seconds = service.sticky_seconds.filter(|_| service.sticky);
    RawService { ports, sticky_seconds, ..service.clone() }
}

impl ImportState {
    fn absent(reason: &str, fails: ImportStep) -> Self {
        Self { reason: Some(reason.into()), fails: Some(fails), ..Self::default() }
    }

    fn of(own: &OwnImport) -> Self {
        Self {
            present: true,
            ours: true,
            ready: own.ready.as_ref().is_some_and(|ready| &*ready.status == "True"),
            ips: own.ips.clone(),
            ..Self::default()
        }
    }

    fn kept(self, cluster: &str) -> Self {
        let reason = format!("cluster {cluster} is unknown, so the import is kept");
        Self { reason: Some(reason), code: Some(&codes::IMPORT_KEPT), ..self }
    }
}

/// Describes the EndpointSlices that Kubernetes wrote for a former selector of a derived Service, and
/// how to delete them.
fn foreign_slices(import: &NamespacedName, service: &str, slices: &BTreeSet<Arc<str>>) -> String {
    let named: Vec<&str> = slices.iter().take(SLICES_NAMED_MAX).map(|name| &**name).collect();
    let more = match slices.len().saturating_sub(named.len()) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!(
        "Service {service} had a selector for which Kubernetes wrote EndpointSlices: {}{more}; they stay and receive requests until they are deleted: kubectl -n {} delete endpointslice -l kubernetes.io/service-name={service},endpointslice.kubernetes.io/managed-by=endpointslice-controller.k8s.io",
        named.join(", "),
        import.namespace
    )
}
