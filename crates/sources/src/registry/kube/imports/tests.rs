//! Tests of the plan: value tests, and a comparison with a naive second calculator over random
//! histories of a set of clusters.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};

use super::*;
use crate::registry::kube::ImportState;
use crate::registry::kube::endpoint_slice::Slice;
use crate::registry::kube::import_objects::{DerivedService, MANAGED_BY, SET, US, derived_name};
use crate::registry::kube::imported_slices::ImportedSlices;
use crate::registry::kube::kind::ReadKind;
use crate::registry::kube::mcs::{Import, McsForm};
use crate::registry::kube::scope::{ReadSettings, Scope};
use crate::registry::kube::service::{KubeService, ServiceForm};
use crate::registry::kube::slice_form::SliceForm;
use strait_kube_client::NamespacedName;
use strait_model::{
    ExportedPort, ExportedService, ImportMode, ImportedService, IpFamily, Labels, RankedExport,
    RawService, SetMember, SharedEndpoints, SharedService, SharedServices, WorkloadKey,
};

const VERSION: &str = "multicluster.x-k8s.io/v1beta1";
const NAMES: [&str; 3] = ["cart", "loan", "pay"];
const CLUSTERS: [&str; 4] = ["a", "b", "c", "d"];

pub(super) fn key(name: &str) -> NamespacedName {
    NamespacedName { namespace: "shop".into(), name: name.into() }
}

pub(super) fn workload(name: &str) -> WorkloadKey {
    WorkloadKey::new("shop", name)
}

fn scope() -> Scope {
    let settings = ReadSettings {
        domain: "cluster.local".into(),
        trust_domain: "td".into(),
        system_namespace: "strait-system".into(),
        metadata: Default::default(),
        clusterset: "default".into(),
    };
    Scope::new(settings, Arc::default())
}

/// The importing cluster, as its API server stores it.
#[derive(Clone)]
pub(super) struct Importer {
    scope: Arc<Scope>,
    pub(super) mode: ImportMode,
    pub(super) endpoints: SharedEndpoints,
    pub(super) imports: BTreeMap<String, Value>,
    pub(super) services: BTreeMap<String, Value>,
    pub(super) slices: BTreeMap<String, Value>,
    /// The names of Services that are not derived ones.
    others: BTreeSet<String>,
    has_namespace: bool,
    made: u64,
    /// Objects with fields of other managers.
    refused: BTreeSet<NamespacedName>,
}

impl Importer {
    pub(super) fn new() -> Self {
        Self {
            scope: Arc::new(scope()),
            mode: ImportMode::Names,
            endpoints: SharedEndpoints::default(),
            imports: BTreeMap::new(),
            services: BTreeMap::new(),
            slices: BTreeMap::new(),
            others: BTreeSet::new(),
            has_namespace: true,
            made: 0,
            refused: BTreeSet::new(),
        }
    }

    fn slices(&self) -> ImportedSlices {
        let mut slices = ImportedSlices::default();
        for (name, value) in &self.slices {
            let text = value.to_string();
            let form: SliceForm<'_> = serde_json::from_str(&text).expect("a slice");
            let slice = Slice::convert(form, &self.scope).value;
            if let Some(origin) = slice.and_then(|mut slice| slice.take_origin()) {
                slices.insert(key(name), origin);
            }
        }
        slices
    }

    fn imports(&self) -> BTreeMap<NamespacedName, Import> {
        let read = |value: &Value| {
            let text = value.to_string();
            let form: McsForm<'_> = serde_json::from_str(&text).expect("an import");
            Import::convert(form, &self.scope).value.expect("it has an effect")
        };
        self.imports.iter().map(|(name, value)| (key(name), read(value))).collect()
    }

    fn derived(&self) -> BTreeMap<NamespacedName, DerivedService> {
        let read = |value: &Value| {
            let text = value.to_string();
            let form: ServiceForm<'_> = serde_json::from_str(&text).expect("a Service");
            let service = KubeService::convert(form, &self.scope).value.expect("a Service");
            *service.derived.expect("it is derived")
        };
        self.services.iter().map(|(name, value)| (key(name), read(value))).collect()
    }

    pub(super) fn plan(&self, shared: &SharedServices) -> ImportPlan {
        self.plan_after(shared, &SettledImports::default())
    }

    pub(super) fn plan_after(
        &self,
        shared: &SharedServices,
        settled: &SettledImports,
    ) -> ImportPlan {
        let slices = self.slices();
        plan(&ImportPlanInputs {
            shared,
            cluster: &"a".into(),
            endpoints: &self.endpoints,
            slices: slices.own(),
            is_other_slice: &|key| slices.is_foreign(key),
            mode: self.mode,
            adopts_status: false,
            set: "default",
            version: VERSION,
            has_namespace: &|_| self.has_namespace,
            imports: &self.imports(),
            derived: &self.derived(),
            is_other_service: &|key| self.others.contains(&*key.name),
            settled,
            unsupported: &BTreeSet::new(),
            slices_of_selectors: slices.of_selectors(),
            refused: &self.refused,
            may_create: &|_| true,
        })
    }

    /// Stores an object like a server-side apply, with a new version.
    fn store(&mut self, of: &str, name: &str, object: &Value) {
        self.made += 1;
        let objects = match of {
            "import" => &mut self.imports,
            "slice" => &mut self.slices,
            _ => &mut self.services,
        };
        let stored = objects.entry(name.to_owned()).or_insert_with(|| {
            json!({ "metadata": {
                "uid": format!("uid-{}", self.made), "namespace": "shop", "name": name,
                "creationTimestamp": "2026-03-01T00:00:00Z",
            }})
        });
        for field in ["labels", "annotations", "ownerReferences"] {
            stored["metadata"][field] = object["metadata"][field].clone();
        }
        let ips = stored["spec"]["clusterIPs"].clone();
        for (field, value) in object.as_object().expect("an object") {
            if field != "metadata" {
                stored[field] = value.clone();
            }
        }
        stored["metadata"]["resourceVersion"] = self.made.to_string().into();
        if of == "service" && object["spec"]["clusterIP"] != "None" {
            let new = json!([format!("10.9.0.{}", self.made % 250)]);
            let ips = if ips.is_null() { new } else { ips };
            (stored["spec"]["clusterIP"], stored["spec"]["clusterIPs"]) = (ips[0].clone(), ips);
        }
    }

    /// Returns the object that an API server stores after this write of a specification.
    fn restored(
        stored: Option<&Value>,
        fields: RestoredFields,
        object: &Value,
        mode: &WriteMode,
    ) -> Value {
        let WriteMode::Restore(version) = mode else { return object.clone() };
        let stored = stored.expect("it exists");
        assert_eq!(stored["metadata"]["resourceVersion"], **version);
        let (mut object, mut patch) = (object.clone(), fields.patch(object));
        object["spec"] = stored["spec"].clone();
        let spec = object["spec"].as_object_mut().expect("a specification");
        let Value::Object(patch) = patch["spec"].take() else { panic!("a specification") };
        spec.extend(patch);
        spec.retain(|_, value| !value.is_null());
        object
    }

    pub(super) fn apply(&mut self, name: &NamespacedName, write: &ImportWrite) {
        let derived = derived_name(name);
        match write {
            ImportWrite::Import { object, mode } => {
                let object = Self::restored(
                    self.imports.get(&*name.name),
                    RestoredFields::IMPORT,
                    object,
                    mode,
                );
                self.store("import", &name.name, &object);
            }
            ImportWrite::Derived { object, mode } => {
                let object = Self::restored(
                    self.services.get(&derived),
                    RestoredFields::DERIVED,
                    object,
                    mode,
                );
                self.store("service", &derived, &object);
            }
            ImportWrite::Status { clusters, ready, slices } => {
                let clusters = clusters.iter().map(|one| &**one);
                let import = self.imports.get_mut(&*name.name).expect("it exists");
                import["status"] = import_status(clusters, ready, "2026-03-01T00:00:00Z", *slices);
                self.made += 1;
                import["metadata"]["resourceVersion"] = self.made.to_string().into();
            }
            ImportWrite::AdoptedClusters(_) => panic!("it is off"),
            ImportWrite::Slice { slice, object, mode } => {
                let creates = *mode == WriteMode::Create;
                assert_eq!(creates, !self.slices.contains_key(&**slice), "{slice}");
                self.store("slice", slice, object);
            }
            ImportWrite::DeleteSlice { slice, uid, .. } => {
                let slice = self.slices.remove(&**slice).expect("it exists");
                assert_eq!(slice["metadata"]["uid"], **uid);
            }
            ImportWrite::DeleteImport { uid, .. } => {
                let import = self.imports.remove(&*name.name).expect("it exists");
                assert_eq!(import["metadata"]["uid"], **uid);
            }
            ImportWrite::DeleteDerived { uid, .. } => {
                let service = self.services.remove(&derived).expect("it exists");
                assert_eq!(service["metadata"]["uid"], **uid);
            }
        }
    }

    /// Applies plans until a plan has no writes.
    pub(super) fn settle(&mut self, shared: &SharedServices) -> BTreeMap<WorkloadKey, ImportState> {
        for _ in 0..8 {
            let ImportPlan { writes, states, .. } = self.plan(shared);
            if writes.is_empty() {
                return states;
            }
            for (name, write) in &writes {
                self.apply(name, write);
            }
        }
        panic!("the plan never settles: {:?}", self.plan(shared).writes);
    }

    fn ips(&self, name: &str) -> Value {
        self.imports.get(name).map(|import| import["spec"]["ips"].clone()).unwrap_or_default()
    }
}

/// The contact with an exporting cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Contact {
    /// It is read.
    Live,
    /// It has been read before this process started: only its last exports are known.
    Restored,
    /// Nothing is known.
    Unknown,
}

#[derive(Debug, Clone)]
struct Exporter {
    contact: Contact,
    exports: BTreeSet<&'static str>,
    /// Its exports as last read.
    last_read: BTreeSet<&'static str>,
}

type Exporters = BTreeMap<&'static str, Exporter>;

fn raw(headless: bool) -> RawService {
    let port = ExportedPort {
        name: "http".into(),
        protocol: "TCP".into(),
        app_protocol: None,
        number: 80,
    };
    RawService {
        headless,
        ports: vec![port],
        ip_families: vec![IpFamily::V4],
        ..Default::default()
    }
}

/// Returns the shared services as the hub computes them: the first cluster decides.
fn shared(exporters: &Exporters, headless: &BTreeSet<&str>) -> SharedServices {
    let mut shared = SharedServices { removals_certain: true, ..SharedServices::default() };
    for (id, exporter) in exporters {
        let member = SetMember {
            name: Some((*id).into()),
            is_unknown: exporter.contact == Contact::Unknown,
            is_complete: exporter.contact == Contact::Live,
            ..SetMember::default()
        };
        shared.members.insert((*id).into(), member);
    }
    for name in NAMES {
        let service = Arc::new(ExportedService {
            created: 1,
            service: Arc::new(raw(headless.contains(name))),
            labels: Labels::new(),
            annotations: Labels::new(),
        });
        let known = exporters
            .iter()
            .filter(|(_, one)| one.contact != Contact::Unknown && one.last_read.contains(name));
        let exports: Vec<_> = known
            .map(|(id, _)| RankedExport {
                cluster: (*id).into(),
                name: (*id).into(),
                age: 1,
                conflicts: Vec::new(),
                service: Arc::clone(&service),
            })
            .collect();
        let Some(first) = exports.first() else { continue };
        let merged = ImportedService {
            decided_by: first.name.clone(),
            service: RawService::clone(&service.service),
            labels: Labels::new(),
            annotations: Labels::new(),
        };
        let service =
            SharedService { exports, merged: Some(Arc::new(merged)), ..Default::default() };
        shared.services.insert(workload(name), service);
    }
    shared
}

/// The clusters in the status of an import; `None` without an import of Strait.
fn clusters_of(importer: &Importer, name: &str) -> Option<Vec<String>> {
    let import = importer.imports.get(name)?;
    import["metadata"]["labels"][MANAGED_BY].as_str()?;
    let clusters = import["status"]["clusters"].as_array()?;
    Some(clusters.iter().filter_map(|one| Some(one["cluster"].as_str()?.to_owned())).collect())
}

/// The naive calculator: the clusters of the import of `name` after the plan, from the world itself.
fn expected(
    exporters: &Exporters,
    before: Option<&Vec<String>>,
    importer: &Importer,
    name: &str,
) -> Option<Vec<String>> {
    if !importer.has_namespace {
        return None;
    }
    let mut known = Vec::new();
    for cluster in CLUSTERS {
        if let Some(one) = exporters.get(cluster)
            && one.contact != Contact::Unknown
            && one.last_read.contains(name)
        {
            known.push(cluster.to_owned());
        }
    }
    for cluster in before.into_iter().flatten() {
        let is_silent = match exporters.get(cluster.as_str()) {
            Some(one) => one.contact != Contact::Live,
            None => false,
        };
        if is_silent && !known.contains(cluster) {
            return before.cloned();
        }
    }
    (!known.is_empty()).then_some(known)
}

#[test]
fn plan_equals_a_naive_calculator_for_random_histories() {
    for seed in 0..300 {
        let mut random = StdRng::seed_from_u64(seed);
        let mut importer = Importer::new();
        let mut exporters = Exporters::new();
        let headless: BTreeSet<&str> =
            NAMES.into_iter().filter(|_| random.random_bool(0.3)).collect();
        for step in 0..30 {
            let cluster = *CLUSTERS.choose(&mut random).expect("not empty");
            let name = *NAMES.choose(&mut random).expect("not empty");
            let exporter = exporters.entry(cluster).or_insert_with(|| Exporter {
                contact: Contact::Live,
                exports: BTreeSet::new(),
                last_read: BTreeSet::new(),
            });
            match random.random_range(0..9) {
                0..=2 => drop(exporter.exports.insert(name)),
                3..=4 => drop(exporter.exports.remove(name)),
                5 => {
                    let contacts = [Contact::Live, Contact::Restored, Contact::Unknown];
                    exporter.contact = *contacts.choose(&mut random).expect("not empty");
                }
                6 => exporter.contact = Contact::Live,
                7 => drop(exporters.remove(cluster)),
                _ => {
                    importer.has_namespace = !importer.has_namespace;
                    if !importer.has_namespace {
                        importer.imports.clear();
                        importer.services.clear();
                    }
                }
            }
            for exporter in exporters.values_mut().filter(|one| one.contact == Contact::Live) {
                exporter.last_read.clone_from(&exporter.exports);
            }
            let before = NAMES.map(|name| (clusters_of(&importer, name), importer.ips(name)));
            let wanted: Vec<_> = NAMES
                .into_iter()
                .zip(&before)
                .map(|(name, (before, _))| expected(&exporters, before.as_ref(), &importer, name))
                .collect();
            importer.settle(&shared(&exporters, &headless));
            for ((name, wanted), (was, ips)) in NAMES.into_iter().zip(wanted).zip(before) {
                let found = clusters_of(&importer, name);
                assert_eq!(found, wanted, "seed {seed}, step {step}, {name}: {exporters:#?}");
                let derived = importer.services.contains_key(&derived_name(&key(name)));
                assert_eq!(derived, found.is_some(), "seed {seed}, step {step}, {name}");
                // An import that stays keeps its address.
                if was.is_some() && found.is_some() {
                    assert_eq!(importer.ips(name), ips, "seed {seed}, step {step}, {name}");
                }
                // An import is deleted only if no cluster can still export the service.
                if importer.has_namespace && found.is_none() {
                    for cluster in was.into_iter().flatten() {
                        let is_certain = exporters.get(cluster.as_str()).is_none_or(|one| {
                            one.contact == Contact::Live && !one.exports.contains(name)
                        });
                        assert!(is_certain, "seed {seed}, step {step}, {name}, {cluster}");
                    }
                }
            }
        }
    }
}

fn exporter(contact: Contact, exports: &[&'static str]) -> Exporter {
    let exports: BTreeSet<_> = exports.iter().copied().collect();
    Exporter { contact, last_read: exports.clone(), exports }
}

#[test]
fn restart_and_steady_state_need_no_write() {
    let mut importer = Importer::new();
    let exporters: Exporters = [
        ("a", exporter(Contact::Live, &["cart"])),
        ("b", exporter(Contact::Live, &["cart", "loan"])),
    ]
    .into();
    let shared = shared(&exporters, &["loan"].into());
    let states = importer.settle(&shared);
    assert!(states.values().all(|state| state.present && state.ours && state.ready), "{states:?}");
    // A new process has no memory, and reads the same objects.
    assert_eq!(importer.plan(&shared).writes, []);
}

#[test]
fn type_change_replaces_the_derived_service() {
    let mut importer = Importer::new();
    let exporters: Exporters = [("a", exporter(Contact::Live, &["cart"]))].into();
    importer.settle(&shared(&exporters, &BTreeSet::new()));
    assert!(importer.ips("cart").is_array());
    importer.settle(&shared(&exporters, &["cart"].into()));
    assert!(importer.ips("cart").is_null());
    assert_eq!(importer.imports["cart"]["spec"]["type"], "Headless");
    let derived = &importer.services[&derived_name(&key("cart"))];
    assert_eq!(derived["spec"]["clusterIP"], "None");
}

#[test]
fn field_that_another_client_reverts_is_written_again() {
    let mut importer = Importer::new();
    let exporters: Exporters = [("a", exporter(Contact::Live, &["cart"]))].into();
    let shared = shared(&exporters, &BTreeSet::new());
    importer.settle(&shared);
    importer.imports.get_mut("cart").expect("it exists")["spec"]["ports"][0]["port"] = json!(81);
    let writes = importer.plan(&shared).writes;
    let [(_, ImportWrite::Import { mode: WriteMode::Restore(_), .. })] = &*writes else {
        panic!("{writes:?}");
    };
}

#[test]
fn object_that_another_client_changes_is_restored() {
    let exporters: Exporters = [("a", exporter(Contact::Live, &["cart"]))].into();
    let shared = shared(&exporters, &BTreeSet::new());
    let mut written = Importer::new();
    written.settle(&shared);
    let derived = derived_name(&key("cart"));
    let added = json!({ "port": 9090, "protocol": "TCP", "name": "admin" });
    let of_service: [(&str, Value); 6] = [
        ("ports", json!([{ "port": 81, "protocol": "TCP", "name": "http" }])),
        ("ports", json!([written.services[&derived]["spec"]["ports"][0], added])),
        ("selector", json!({ "app": "evil" })),
        ("externalIPs", json!(["192.0.2.1"])),
        ("type", json!("NodePort")),
        ("sessionAffinity", json!("ClientIP")),
    ];
    let of_import: [(&str, Value); 3] = [
        ("ports", json!([])),
        ("type", json!("Headless")),
        ("trafficDistribution", json!("PreferClose")),
    ];
    let of_service = of_service.into_iter().map(|change| ("Service", change));
    let of_import = of_import.into_iter().map(|change| ("ServiceImport", change));
    for (kind, (field, value)) in of_service.chain(of_import) {
        let mut importer = written.clone();
        let objects = match kind {
            "Service" => importer.services.get_mut(&derived),
            _ => importer.imports.get_mut("cart"),
        };
        let object = objects.expect("it exists");
        (object["spec"][field], object["metadata"]["resourceVersion"]) = (value, json!("changed"));
        let plan = importer.plan(&shared);
        let state = &plan.states[&workload("cart")];
        assert_eq!(state.code.map(|code| code.id), Some("STR0449"), "{kind} {field}: {state:?}");
        assert!(!state.ready && state.reason.as_ref().is_some_and(|why| why.contains(kind)));
        let restoration = WriteMode::Restore("changed".into());
        let is_restored =
            |(_, write): &(NamespacedName, ImportWrite)| write.mode() == Some(&restoration);
        assert!(plan.writes.iter().all(is_restored), "{kind} {field}: {:?}", plan.writes);
        let states = importer.settle(&shared);
        assert!(states[&workload("cart")].ready, "{kind} {field}");
        for (found, wanted) in [
            (&importer.services[&derived], &written.services[&derived]),
            (&importer.imports["cart"], &written.imports["cart"]),
        ] {
            assert_eq!(found["spec"], wanted["spec"], "{kind} {field}");
        }
    }
}

#[test]
fn slices_of_a_former_selector_are_reported_until_they_are_deleted() {
    let mut importer = Importer::new();
    let exporters: Exporters = [("a", exporter(Contact::Live, &["cart"]))].into();
    let shared = shared(&exporters, &BTreeSet::new());
    importer.settle(&shared);
    let derived = derived_name(&key("cart"));
    let name = format!("{derived}-x7k2p");
    let slice = |manager: &str| {
        json!({
            "metadata": { "namespace": "shop", "name": name, "uid": "u", "resourceVersion": "1",
                "labels": {
                    "multicluster.kubernetes.io/service-name": "cart",
                    "kubernetes.io/service-name": derived,
                    "endpointslice.kubernetes.io/managed-by": manager,
                } },
            "addressType": "IPv4", "ports": [],
            "endpoints": [{ "addresses": ["10.0.0.9"], "conditions": { "ready": true } }],
        })
    };
    importer.slices.insert(name.clone(), slice("endpointslice-controller.k8s.io"));
    let plan = importer.plan(&shared);
    let state = &plan.states[&workload("cart")];
    assert_eq!(state.code.map(|code| code.id), Some("STR0454"), "{state:?}");
    let reason = state.reason.as_deref().unwrap_or_default();
    assert!(reason.contains(&name), "{reason}");
    let command =
        format!("kubectl -n shop delete endpointslice -l kubernetes.io/service-name={derived},");
    assert!(reason.contains(&command) && plan.writes.is_empty(), "{reason} {:?}", plan.writes);
    // A slice without the controller's label was created by another tool, on purpose.
    importer.slices.insert(name.clone(), slice("example.org"));
    assert_eq!(importer.plan(&shared).states[&workload("cart")].code, None);
    importer.slices.remove(&name);
    assert!(importer.plan(&shared).states[&workload("cart")].ready);
}

#[test]
fn changed_field_of_another_manager_is_restored_before_the_next_value_is_applied() {
    let exporters: Exporters = [("a", exporter(Contact::Live, &["cart"]))].into();
    let mut importer = Importer::new();
    importer.settle(&shared(&exporters, &BTreeSet::new()));
    let mut next = shared(&exporters, &BTreeSet::new());
    let service = next.services.get_mut(&workload("cart")).expect("it is exported");
    let merged = Arc::make_mut(service.merged.as_mut().expect("it is merged"));
    merged.service.ports[0].number = 81;
    let is_applied = |plan: &ImportPlan, mode: &WriteMode| {
        plan.writes.iter().any(
            |(_, write)| matches!(write, ImportWrite::Derived { mode: found, .. } if found == mode),
        )
    };
    assert!(is_applied(&importer.plan(&next), &WriteMode::Apply));
    let derived = derived_name(&key("cart"));
    importer.refused.insert(key(&derived));
    let version =
        importer.services[&derived]["metadata"]["resourceVersion"].as_str().expect("text");
    assert!(is_applied(&importer.plan(&next), &WriteMode::Restore(version.into())));
    importer.settle(&next);
}

#[test]
fn import_of_another_controller_or_another_set_is_only_read() {
    let mut importer = Importer::new();
    let labels = [json!({}), json!({ MANAGED_BY: US, SET: "other" }), json!({ SET: "default" })];
    let exporters: Exporters = [("a", exporter(Contact::Live, &["cart"]))].into();
    for labels in labels {
        let import = json!({
            "metadata": { "namespace": "shop", "name": "cart", "uid": "x", "labels": labels },
            "spec": { "type": "ClusterSetIP", "ips": ["10.1.1.1"] },
        });
        importer.imports.insert("cart".into(), import);
        for exporters in [&exporters, &Exporters::new()] {
            let ImportPlan { writes, states, .. } =
                importer.plan(&shared(exporters, &BTreeSet::new()));
            assert_eq!(writes, []);
            let state = &states[&workload("cart")];
            assert_eq!((state.ours, state.code.map(|code| code.id)), (false, Some("STR0441")));
            assert_eq!(state.ips, ["10.1.1.1".parse::<IpAddr>().expect("an address")]);
        }
    }
}

#[test]
fn kept_import_names_the_unknown_cluster() {
    let mut importer = Importer::new();
    let mut exporters: Exporters =
        [("a", exporter(Contact::Live, &[])), ("b", exporter(Contact::Live, &["cart"]))].into();
    importer.settle(&shared(&exporters, &BTreeSet::new()));
    exporters.insert("b", exporter(Contact::Unknown, &["cart"]));
    let states = importer.settle(&shared(&exporters, &BTreeSet::new()));
    let state = &states[&workload("cart")];
    assert!(state.present && state.code.is_some_and(|code| code.id == "STR0445"), "{state:?}");
    assert!(state.reason.as_ref().is_some_and(|reason| reason.contains("cluster b")));
    // A removed cluster has no effect before the process is older than the grace period.
    exporters.remove("b");
    let mut early = shared(&exporters, &BTreeSet::new());
    early.removals_certain = false;
    assert_eq!(importer.plan(&early).writes, []);
    importer.settle(&shared(&exporters, &BTreeSet::new()));
    assert!(importer.imports.is_empty() && importer.services.is_empty());
}

/// Returns a cluster of the set with this name in it.
fn member(name: &str, is_complete: bool) -> SetMember {
    SetMember { name: Some(name.into()), is_complete, ..SetMember::default() }
}

#[test]
fn clusters_in_a_status_are_found_by_their_names_in_the_set() {
    let mut importer = Importer::new();
    importer.settle(&shared(&[("a", exporter(Contact::Live, &["cart"]))].into(), &BTreeSet::new()));
    let refused_at = |id: &str, members: [(&str, SetMember); 2]| {
        let service = SharedService {
            refused: [(id.into(), "the policy does not allow it".to_owned())].into(),
            ..SharedService::default()
        };
        SharedServices {
            services: [(workload("cart"), service)].into(),
            members: members.map(|(id, member)| (id.into(), member)).into(),
            removals_certain: true,
            ..SharedServices::default()
        }
    };
    // The cluster named a in the set has the ID b, and is silent. Another cluster has the ID a.
    let silent = refused_at("a", [("a", member("x", true)), ("b", member("a", false))]);
    let plan = importer.plan(&silent);
    assert_eq!(plan.writes, []);
    assert_eq!(plan.states[&workload("cart")].code.map(|code| code.id), Some("STR0445"));
    // The export of the cluster named a in the set is known and refused, although one object of the
    // cluster is unknown.
    let known = refused_at("b", [("a", member("x", true)), ("b", member("a", false))]);
    importer.settle(&known);
    assert!(importer.imports.is_empty() && importer.services.is_empty());
}

#[test]
fn service_of_another_owner_is_neither_written_nor_deleted() {
    let derived = derived_name(&key("cart"));
    let exporters: Exporters = [("a", exporter(Contact::Live, &["cart"]))].into();
    let exported = || shared(&exporters, &BTreeSet::new());
    // The Service as Strait wrote it.
    let mut writer = Importer::new();
    writer.settle(&exported());
    let ours = writer.services[&derived].clone();
    let changed = |change: &dyn Fn(&mut Value)| {
        let mut service = ours.clone();
        change(&mut service["metadata"]);
        service
    };
    let other_owner = changed(&|metadata| metadata["ownerReferences"][0]["kind"] = json!("App"));
    let other_import =
        changed(&|metadata| metadata["ownerReferences"][0]["name"] = json!("another"));
    let other_set = changed(&|metadata| metadata["labels"][SET] = json!("other"));
    let unlabelled = changed(&|metadata| {
        metadata["labels"].as_object_mut().expect("labels").remove(MANAGED_BY);
    });
    for service in [other_owner, other_import, other_set, unlabelled] {
        let mut importer = Importer::new();
        importer.imports = writer.imports.clone();
        importer.services.insert(derived.clone(), service);
        let plan = importer.plan(&exported());
        assert_eq!(plan.writes, []);
        let state = &plan.states[&workload("cart")];
        assert_eq!((state.ready, state.code.map(|code| code.id)), (false, Some("STR0441")));
        assert!(state.reason.as_ref().is_some_and(|why| why.contains(&derived)), "{state:?}");
        // The import is Strait's and is deleted, the Service is not.
        importer.settle(&shared(&Exporters::new(), &BTreeSet::new()));
        assert!(importer.imports.is_empty() && importer.services.contains_key(&derived));
    }
    // A Service without the label of derived ones.
    let mut importer = Importer::new();
    importer.imports = writer.imports.clone();
    importer.others.insert(derived);
    let plan = importer.plan(&exported());
    assert_eq!(plan.writes, []);
    assert_eq!(plan.states[&workload("cart")].code.map(|code| code.id), Some("STR0441"));
}

#[test]
fn copy_of_a_derived_service_is_not_deleted() {
    let mut importer = Importer::new();
    importer.settle(&shared(&[("a", exporter(Contact::Live, &["cart"]))].into(), &BTreeSet::new()));
    let mut copy = importer.services[&derived_name(&key("cart"))].clone();
    (copy["metadata"]["name"], copy["metadata"]["uid"]) = (json!("cart-copy"), json!("other"));
    importer.services.insert("cart-copy".into(), copy);
    importer.settle(&shared(&Exporters::new(), &BTreeSet::new()));
    assert_eq!(importer.services.keys().collect::<Vec<_>>(), ["cart-copy"]);
}

#[test]
fn derived_service_without_its_import_is_deleted() {
    let mut importer = Importer::new();
    importer.settle(&shared(&[("a", exporter(Contact::Live, &["cart"]))].into(), &BTreeSet::new()));
    importer.imports.clear();
    importer.settle(&shared(&Exporters::new(), &BTreeSet::new()));
    assert!(importer.services.is_empty());
}

#[test]
fn import_that_another_object_controls_is_only_read() {
    let mut importer = Importer::new();
    let exporters: Exporters = [("a", exporter(Contact::Live, &["cart"]))].into();
    importer.settle(&shared(&exporters, &BTreeSet::new()));
    let import = importer.imports.get_mut("cart").expect("it exists");
    import["metadata"]["ownerReferences"] = json!([{
        "apiVersion": "example.org/v1", "kind": "App", "name": "x", "uid": "1", "controller": true,
    }]);
    for exporters in [&exporters, &Exporters::new()] {
        let plan = importer.plan(&shared(exporters, &BTreeSet::new()));
        assert_eq!(plan.writes, []);
        let state = &plan.states[&workload("cart")];
        assert_eq!((state.ours, state.code.map(|code| code.id)), (false, Some("STR0441")));
    }
}

#[test]
fn derived_name_is_that_of_other_implementations() {
    // The first 10 characters of the lower-case base 32 (extended hex) of SHA-256.
    assert_eq!(derived_name(&key("cart")), "derived-bsqa4s8pq5");
}
