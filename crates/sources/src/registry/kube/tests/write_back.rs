//! Tests of the objects that a run writes into its cluster or leaves unchanged.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep};

use super::faults::{access, config, sim};
use crate::registry::kube::{RunConfig, run};
use strait_base::task::Supervisor;
use strait_model::{Mcs, SharedService, SharedServices, WorkloadKey};
use strait_sim::{Family, Fault, Options, SimCluster};

const LIMIT: Duration = Duration::from_secs(30);
/// Longer than the write interval: pending writes are done by then.
const SOME_PACES: Duration = Duration::from_secs(4);

struct Written {
    sim: SimCluster,
    shared: watch::Sender<Arc<SharedServices>>,
    _tasks: Supervisor,
}

impl Written {
    /// Starts a cluster with service `cart`, with exports of these names, and a run that reads it.
    async fn start(exports: &[&str], fault: Option<Fault>) -> Self {
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
        let (shared, shared_receiver) = watch::channel(Arc::default());
        let (config, _) = config(access(&sim, &sim.url()), updates);
        tasks.spawn("run", run(RunConfig { mcs: Mcs::Exports, shared: shared_receiver, ..config }));
        tasks.spawn("hear", async move { while received.recv().await.is_some() {} });
        Self { sim, shared, _tasks: tasks }
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

fn exported_by(clusters: &[&str]) -> Arc<SharedServices> {
    let clusters = clusters.iter().map(|id| (*id).into()).collect();
    let cart = SharedService { clusters, ..SharedService::default() };
    let services = [(WorkloadKey::new("shop", "cart"), cart)].into();
    Arc::new(SharedServices { services, ..SharedServices::default() })
}

async fn until(expected: &str, is_reached: impl Fn() -> bool) {
    let started = Instant::now();
    while !is_reached() {
        assert!(started.elapsed() < LIMIT, "{expected}");
        sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn status_of_exports_and_imports_is_written() {
    let written = Written::start(&["cart", "nothing"], None).await;
    written.sim.store().apply(object("ServiceImport", "cart")).expect("an import");
    let pending = "Valid=True Valid, Ready=False Pending, Conflict=False NoConflicts";
    until("cart is pending", || written.conditions("cart") == pending).await;
    let nothing = "Valid=False NoService, Ready=False Pending";
    until("nothing is exported", || written.conditions("nothing") == nothing).await;

    written.shared.send_replace(exported_by(&["east", "west"]));
    let ready = "Valid=True Valid, Ready=True Exported, Conflict=False NoConflicts";
    until("cart is ready", || written.conditions("cart") == ready).await;
    let clusters = json!([{ "cluster": "east" }, { "cluster": "west" }]);
    let is = || written.status("serviceimports", "cart")["clusters"] == clusters;
    until("the import names both", is).await;

    // No further write is needed.
    let before = written.patches();
    sleep(SOME_PACES).await;
    assert_eq!(written.patches(), before);
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
    let shared = SharedServices { to_export, ..SharedServices::default() };
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
            ..SharedServices::default()
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
