//! Tests of the objects that a run writes into its cluster or leaves unchanged.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep};

use super::faults::{access, config, sim};
use crate::registry::kube::{RunConfig, derived_service_name, run};
use strait_base::task::Supervisor;
use strait_model::{
    ExportedPort, ExportedService, Health, ImportMode, ImportedService, IpFamily, Labels, Mcs,
    RankedExport, RawService, SetMember, SharedEndpoint, SharedEndpoints, SharedService,
    SharedServices, SourceEndpoints, WorkloadKey,
};
use strait_sim::{Family, Fault, Options, SimCluster};

const LIMIT: Duration = Duration::from_secs(30);
/// Longer than the write interval: pending writes are done by then.
const SOME_PACES: Duration = Duration::from_secs(4);

struct Written {
    sim: SimCluster,
    shared: watch::Sender<Arc<SharedServices>>,
    endpoints: watch::Sender<Arc<SharedEndpoints>>,
    _tasks: Supervisor,
}

impl Written {
    /// Starts a cluster with service `cart`, with exports of these names, and a run that reads it.
    async fn start(exports: &[&str], fault: Option<Fault>) -> Self {
        Self::start_with(exports, fault, ImportMode::Off).await
    }

    async fn start_with(exports: &[&str], fault: Option<Fault>, imports: ImportMode) -> Self {
        let families = [Family::Core, Family::MultiCluster].into();
        let sim = sim(Options { families, ..Options::default() }).await;
        for name in exports {
            sim.store().apply(object("ServiceExport", name)).expect("an export");
        }
        if let Some(fault) = fault {
            sim.fault(fault);
        }
        let tasks = Supervisor::new();
        let (updates, mut received) = mpsc::channel(16);
        let (shared, shared_receiver) = watch::channel(Arc::new(shared()));
        let (endpoints, shared_endpoints) = watch::channel(Arc::default());
        let (config, _) = config(access(&sim, &sim.url()), updates);
        let config = RunConfig {
            mcs: Mcs::Exports,
            imports,
            shared: shared_receiver,
            shared_endpoints,
            ..config
        };
        tasks.spawn("run", run(config));
        tasks.spawn("receiver", async move { while received.recv().await.is_some() {} });
        Self { sim, shared, endpoints, _tasks: tasks }
    }

    fn status(&self, plural: &str, name: &str) -> Value {
        self.object(plural, name)["status"].clone()
    }

    fn object(&self, plural: &str, name: &str) -> Value {
        let found = self.sim.store().get(plural, "shop", name);
        found.map(|object| object.value()).unwrap_or_default()
    }

    /// Returns the conditions of an export in short form.
    fn conditions(&self, name: &str) -> String {
        let generation = &self.object("serviceexports", name)["metadata"]["generation"];
        let status = self.status("serviceexports", name);
        let short = |condition: &Value| {
            let text = |field: &str| condition[field].as_str().expect("text").to_owned();
            assert!(condition["lastTransitionTime"].is_string(), "{condition}");
            assert_eq!(&condition["observedGeneration"], generation, "{condition}");
            format!("{}={} {}", text("type"), text("status"), text("reason"))
        };
        let conditions = status["conditions"].as_array().into_iter().flatten().map(short);
        conditions.collect::<Vec<_>>().join(", ")
    }

    fn patches(&self) -> u64 {
        self.sim.request_count("patch", "serviceexports")
    }
}

fn object(kind: &str, name: &str) -> Value {
    json!({
        "apiVersion": "multicluster.x-k8s.io/v1beta1", "kind": kind,
        "metadata": { "name": name, "namespace": "shop" },
    })
}

/// Returns services that these clusters export, as the hub sends them to a cluster that it has read.
fn exported_by(clusters: &[&str]) -> Arc<SharedServices> {
    Arc::new(SharedServices { services: [(cart(), merged(clusters))].into(), ..shared() })
}

/// Returns shared services of a set with complete members.
pub(super) fn shared() -> SharedServices {
    let members = ["east", "west", "north"].map(|id| {
        let member = SetMember { name: Some(id.into()), is_complete: true, ..SetMember::default() };
        (id.into(), member)
    });
    SharedServices { members: members.into(), removals_certain: true, ..SharedServices::default() }
}

fn cart() -> WorkloadKey {
    WorkloadKey::new("shop", "cart")
}

/// Returns a service that these clusters export. The first cluster decides.
fn merged(clusters: &[&str]) -> SharedService {
    let port = ExportedPort {
        name: "http".into(),
        protocol: "TCP".into(),
        app_protocol: None,
        number: 80,
    };
    let service =
        RawService { ports: vec![port], ip_families: vec![IpFamily::V4], ..RawService::default() };
    let exported = Arc::new(ExportedService {
        created: 1,
        service: Arc::new(service.clone()),
        labels: Labels::new(),
        annotations: Labels::new(),
    });
    let export = |id: &&str| RankedExport {
        cluster: (*id).into(),
        name: (*id).into(),
        age: 1,
        conflicts: Vec::new(),
        service: Arc::clone(&exported),
    };
    let imported = clusters.first().map(|first| ImportedService {
        decided_by: (*first).into(),
        service,
        labels: [("team".into(), "a".into())].into(),
        annotations: Labels::new(),
    });
    SharedService {
        exports: clusters.iter().map(export).collect(),
        merged: imported.map(Arc::new),
        ..SharedService::default()
    }
}

async fn until(expected: &str, is_reached: impl Fn() -> bool) {
    let started = Instant::now();
    while !is_reached() {
        assert!(started.elapsed() < LIMIT, "{expected}");
        sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn conditions_of_exports_are_written() {
    let written = Written::start(&["cart", "nothing"], None).await;
    let pending = "Valid=True Valid, Ready=False Pending, Conflict=False NoConflicts";
    until("cart is pending", || written.conditions("cart") == pending).await;
    let nothing = "Valid=False NoService, Ready=False Pending";
    until("nothing is exported", || written.conditions("nothing") == nothing).await;

    written.shared.send_replace(exported_by(&["east", "west"]));
    let ready = "Valid=True Valid, Ready=True Exported, Conflict=False NoConflicts";
    until("cart is ready", || written.conditions("cart") == ready).await;

    // No further write is needed.
    let before = written.patches();
    sleep(SOME_PACES).await;
    assert_eq!(written.patches(), before);
}

#[tokio::test]
async fn nothing_is_written_before_the_hub_has_the_clusters_own_exports() {
    let written = Written::start(&[], None).await;
    written.shared.send_replace(Arc::default());
    sleep(SOME_PACES / 4).await;
    written.sim.store().apply(object("ServiceExport", "cart")).expect("an export");
    sleep(SOME_PACES).await;
    assert_eq!(written.patches(), 0);
    written.shared.send_replace(exported_by(&["east"]));
    until("cart is ready", || written.conditions("cart").contains("Ready=True")).await;
    assert_eq!(written.patches(), 1, "the conditions are written once");
}

#[tokio::test]
async fn imports_of_other_controllers_are_not_written() {
    let written = Written::start_with(&["cart"], None, ImportMode::Names).await;
    written.sim.store().apply(object("ServiceImport", "cart")).expect("an import");
    written.shared.send_replace(exported_by(&["east", "west"]));
    until("cart is ready", || written.conditions("cart").contains("Ready=True")).await;
    sleep(SOME_PACES).await;
    assert_eq!(written.sim.request_count("patch", "serviceimports"), 0);
    assert_eq!(written.sim.request_count("patch", "services"), 0);
}

/// Returns the writes of imports and derived Services.
fn import_writes(written: &Written) -> u64 {
    ["serviceimports", "services", "endpointslices"]
        .into_iter()
        .flat_map(|plural| ["patch", "create", "delete"].map(|verb| (verb, plural)))
        .map(|(verb, plural)| written.sim.request_count(verb, plural))
        .sum()
}

/// Waits for the derived Service of `cart`. Returns its name and its address.
async fn derived(written: &Written) -> (String, Value) {
    let name = derived_service_name("shop", "cart");
    until("a derived Service", || !written.object("services", &name).is_null()).await;
    let ip = written.object("services", &name)["spec"]["clusterIP"].clone();
    (name, ip)
}

#[tokio::test]
async fn import_has_the_address_of_its_derived_service_and_is_deleted_with_the_last_export() {
    let written = Written::start_with(&[], None, ImportMode::Names).await;
    written.shared.send_replace(exported_by(&["west", "north"]));
    let (derived, ip) = derived(&written).await;
    let ready = || written.status("serviceimports", "cart")["conditions"][0]["status"] == "True";
    until("the import is ready", ready).await;
    let import = written.object("serviceimports", "cart");
    assert_eq!(import["spec"]["ips"], json!([ip]));
    assert_eq!(import["spec"]["type"], "ClusterSetIP");
    assert_eq!(import["metadata"]["labels"]["strait.dev/clusterset"], "default");
    assert_eq!(import["metadata"]["labels"]["team"], "a");
    let annotations = &import["metadata"]["annotations"];
    assert_eq!(annotations["multicluster.kubernetes.io/derived-service"], derived.as_str());
    assert_eq!(annotations["strait.dev/decided-by"], "west");
    let clusters = json!([{ "cluster": "north" }, { "cluster": "west" }]);
    assert_eq!(import["status"]["clusters"], clusters);
    let owner = &written.object("services", &derived)["metadata"]["ownerReferences"][0];
    assert_eq!(owner["uid"], import["metadata"]["uid"]);

    // A steady state needs no write, and a member without an answer changes nothing.
    let before = import_writes(&written);
    let mut unknown = SharedServices::clone(&exported_by(&["north"]));
    unknown.members.get_mut("west").expect("a member").is_complete = false;
    written.shared.send_replace(Arc::new(unknown));
    sleep(SOME_PACES).await;
    assert_eq!(import_writes(&written), before);
    let mut none = shared();
    none.members.get_mut("west").expect("a member").is_complete = false;
    written.shared.send_replace(Arc::new(none));
    sleep(SOME_PACES).await;
    assert_eq!(import_writes(&written), before);

    written.shared.send_replace(Arc::new(shared()));
    until("the import is deleted", || written.object("serviceimports", "cart").is_null()).await;
    until("its Service is deleted", || written.object("services", &derived).is_null()).await;
}

/// Returns the endpoints of `cart` in west, for an importing cluster in the same network.
fn endpoints(addresses: &[u8]) -> Arc<SharedEndpoints> {
    let endpoint = |number: &u8| SharedEndpoint {
        address: [10, 0, 0, *number].into(),
        port: 8080,
        port_name: "http".into(),
        health: Health::Healthy,
        network: "n1".into(),
        claimants: None,
        locality: Arc::default(),
        node: None,
        hostname: None,
    };
    let west = SourceEndpoints {
        cluster: "west".into(),
        is_withdrawn: false,
        endpoints: addresses.iter().map(endpoint).collect(),
    };
    Arc::new(SharedEndpoints {
        services: [(cart(), vec![west].into())].into(),
        networks: ["east", "west", "north"].map(|id| (id.into(), "n1".into())).into(),
    })
}

#[tokio::test]
async fn slice_follows_its_endpoints_with_at_most_one_write_per_second() {
    let written = Written::start_with(&[], None, ImportMode::Full).await;
    written.shared.send_replace(exported_by(&["west"]));
    written.endpoints.send_replace(endpoints(&[1]));
    let slices = || -> Vec<Value> {
        let all = written.sim.store().all("endpointslices");
        let all = all.iter().map(|slice| slice.value());
        let label = "multicluster.kubernetes.io/source-cluster";
        all.filter(|slice| slice["metadata"]["labels"][label] == "west").collect()
    };
    let has = |count: usize| {
        slices().first().is_some_and(|one| one["endpoints"].as_array().map(Vec::len) == Some(count))
    };
    until("a slice", || has(1)).await;
    let status = || written.status("serviceimports", "cart")["endpointSliceObjects"].clone();
    until("the status names slices", || status() == "Present").await;
    let before = written.sim.request_count("patch", "endpointslices");
    for last in 2..=40 {
        written.endpoints.send_replace(endpoints(&(1..=last).collect::<Vec<_>>()));
        sleep(SOME_PACES / 40).await;
    }
    until("all endpoints", || has(40)).await;
    let writes = written.sim.request_count("patch", "endpointslices") - before;
    assert!(writes <= 6, "{writes} writes in about 4 seconds");
    assert_eq!(slices().len(), 1);

    // A steady state needs no write. A slice that another client deletes is created again.
    let before = import_writes(&written);
    sleep(SOME_PACES).await;
    assert_eq!(import_writes(&written), before);
    let name = slices()[0]["metadata"]["name"].as_str().expect("a name").to_owned();
    written.sim.store().delete("endpointslices", "shop", &name).expect("it exists");
    until("the slice exists again", || has(40)).await;

    // The last export deletes it.
    written.shared.send_replace(Arc::new(shared()));
    until("the slice is deleted", || slices().is_empty()).await;
}

#[tokio::test]
async fn objects_that_another_client_changes_are_restored_a_limited_number_of_times() {
    let written = Written::start_with(&[], None, ImportMode::Full).await;
    written.shared.send_replace(exported_by(&["west"]));
    written.endpoints.send_replace(endpoints(&[1]));
    let (derived, ip) = derived(&written).await;
    let ready = || written.status("serviceimports", "cart")["endpointSliceObjects"] == "Present";
    until("the import is ready", ready).await;
    let slices = || {
        let all = written.sim.store().all("endpointslices");
        let label = "multicluster.kubernetes.io/source-cluster";
        all.iter().filter(|one| one.value()["metadata"]["labels"][label] == "west").count()
    };
    until("a slice", || slices() == 1).await;
    let ports = |plural: &str, name: &str| written.object(plural, name)["spec"]["ports"].clone();
    let edit = |plural: &str, name: &str, change: Value| {
        let mut object = written.object(plural, name);
        let (version, kind) = match plural {
            "services" => ("v1", "Service"),
            _ => ("multicluster.x-k8s.io/v1beta1", "ServiceImport"),
        };
        (object["apiVersion"], object["kind"]) = (version.into(), kind.into());
        for (field, value) in change.as_object().expect("an object") {
            object["spec"][field] = value.clone();
        }
        written.sim.store().apply(object).expect("a valid object");
    };
    let evil = json!([{ "name": "evil", "port": 81, "protocol": "TCP" }]);
    for (plural, name) in [("serviceimports", "cart"), ("services", &*derived)] {
        let before = ports(plural, name);
        edit(plural, name, json!({ "ports": evil, "selector": { "app": "evil" } }));
        until("its ports are restored", || ports(plural, name) == before).await;
        assert_eq!(slices(), 1, "{plural}");
    }
    let service = written.object("services", &derived);
    assert_eq!((&service["spec"]["clusterIP"], &service["spec"]["selector"]), (&ip, &Value::Null));
    // The second and third restoration of the Service, then a pause.
    let restored = ports("services", &derived);
    for _ in 0..2 {
        edit("services", &derived, json!({ "ports": evil }));
        assert_ne!(ports("services", &derived), restored);
        until("its ports are restored", || ports("services", &derived) == restored).await;
    }
    edit("services", &derived, json!({ "ports": evil }));
    sleep(SOME_PACES * 2).await;
    assert_ne!(ports("services", &derived), restored);
}

#[tokio::test]
async fn deleted_import_is_created_again() {
    let written = Written::start_with(&[], None, ImportMode::Names).await;
    written.shared.send_replace(exported_by(&["west"]));
    let (_, ip) = derived(&written).await;
    let ips = || written.object("serviceimports", "cart")["spec"]["ips"] == json!([ip]);
    until("it has the address", ips).await;
    written.sim.store().delete("serviceimports", "shop", "cart").expect("it exists");
    until("it has the address again", ips).await;
}

#[tokio::test]
async fn missing_right_for_imports_stops_after_one_attempt() {
    let written = Written::start_with(&[], Some(Fault::ReadOnly), ImportMode::Names).await;
    written.shared.send_replace(exported_by(&["west"]));
    until("a write is tried", || import_writes(&written) > 0).await;
    sleep(SOME_PACES).await;
    assert_eq!(import_writes(&written), 1);
}

#[tokio::test]
async fn values_of_another_writer_are_not_overwritten_continuously() {
    let written = Written::start(&["cart"], None).await;
    written.shared.send_replace(exported_by(&["east"]));
    until("cart is ready", || written.conditions("cart").contains("Ready=True")).await;
    for round in 0..3 {
        let mut other = object("ServiceExport", "cart");
        other["status"]["conditions"] = json!([{
            "type": "Ready", "status": "False", "reason": format!("Other{round}"),
            "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z",
        }]);
        written.sim.store().apply(other).expect("a status");
        sleep(SOME_PACES / 2).await;
    }
    assert!(written.patches() <= 3, "{} patches", written.patches());
}

#[tokio::test]
async fn denied_writes_are_not_retried() {
    let written = Written::start(&["cart", "a", "b", "c"], Some(Fault::ReadOnly)).await;
    written.shared.send_replace(exported_by(&["east"]));
    until("a write is tried", || written.patches() > 0).await;
    sleep(SOME_PACES).await;
    assert_eq!(written.patches(), 1, "the permission is missing for all of them");
    assert_eq!(written.conditions("cart"), "");
}

#[tokio::test]
async fn unexported_services_are_exported_automatically() {
    let written = Written::start(&[], None).await;
    let wanted = ["cart", "unknown"].map(|name| WorkloadKey::new("shop", name));
    let to_export = [("east".into(), wanted.into())].into();
    let shared = SharedServices { to_export, ..shared() };
    written.shared.send_replace(Arc::new(shared));
    until("cart is exported", || written.conditions("cart").contains("Valid=True")).await;
    let made = written.object("serviceexports", "cart");
    let service = written.object("services", "cart");
    let owner = &made["metadata"]["ownerReferences"][0];
    assert_eq!((&owner["kind"], &owner["uid"]), (&json!("Service"), &service["metadata"]["uid"]));
    sleep(SOME_PACES).await;
    assert_eq!(written.sim.request_count("create", "serviceexports"), 1);
}

#[tokio::test]
async fn recreated_export_has_its_conditions_within_the_write_interval() {
    let written = Written::start(&["cart"], None).await;
    written.shared.send_replace(exported_by(&["east"]));
    let is_ready = || written.conditions("cart").contains("Ready=True");
    until("cart is ready", is_ready).await;
    written.sim.store().delete("serviceexports", "shop", "cart").expect("it exists");
    // Creation times are in whole seconds.
    sleep(Duration::from_millis(1100)).await;
    written.sim.store().apply(object("ServiceExport", "cart")).expect("an export");
    until("the recreated export is ready", is_ready).await;
}

#[tokio::test]
async fn deleted_export_is_not_recreated_and_an_annotation_declines_export() {
    let written = Written::start(&["cart"], None).await;
    let service = || {
        let mut service = written.object("services", "cart");
        (service["apiVersion"], service["kind"]) = (json!("v1"), json!("Service"));
        service
    };
    let mut declined = service();
    declined["metadata"] = json!({
        "name": "pay", "namespace": "shop", "annotations": { "strait.dev/auto-export": "false" },
    });
    written.sim.store().apply(declined).expect("a service");
    let wanted = || ["cart", "pay"].map(|name| WorkloadKey::new("shop", name));
    let to_export = || {
        Arc::new(SharedServices {
            to_export: [("east".into(), wanted().into())].into(),
            ..shared()
        })
    };
    written.shared.send_replace(exported_by(&["east"]));
    until("cart is ready", || written.conditions("cart").contains("Ready=True")).await;
    written.sim.store().delete("serviceexports", "shop", "cart").expect("it exists");
    written.shared.send_replace(to_export());
    sleep(SOME_PACES).await;
    assert_eq!(written.sim.request_count("create", "serviceexports"), 0);
    // A recreated service is a different one.
    let service = service();
    written.sim.store().delete("services", "shop", "cart").expect("it exists");
    sleep(SOME_PACES / 4).await;
    written.sim.store().apply(service).expect("a service");
    until("cart is exported", || written.conditions("cart").contains("Valid=True")).await;
    assert_eq!(written.sim.request_count("create", "serviceexports"), 1);
}
