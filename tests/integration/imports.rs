//! ServiceImports in member clusters: from an export to an import with an address and the slices of its
//! endpoints, its explanation, and the faults that must neither delete an import or a slice nor change
//! an address.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};

use super::mesh::{Member, SHOP, SOON, Server, Setup, holds, text, wait_until};
use strait_sim::{Family, Fault, objects};

/// Longer than several comparisons of current and desired objects.
const SOME_PACES: Duration = Duration::from_secs(3);
const API: &str = "multicluster.x-k8s.io";

async fn member(id: &str, gateway: &str) -> Member {
    let member = Member::start(id, "n1", gateway).await;
    member.api.enable(Family::MultiCluster);
    member.apply(objects::namespace(SHOP));
    member
}

/// Returns two clusters with the service `cart`, which east exports, and a setup that writes imports.
async fn exported() -> (Setup, Member, Member) {
    exported_with("names").await
}

async fn exported_with(mode: &str) -> (Setup, Member, Member) {
    let (east, west) = (member("east", "198.18.0.1").await, member("west", "198.18.0.2").await);
    east.serve("cart", &["10.0.0.1"]);
    export(&east);
    let setup = Setup::new().with(&["--mcs-imports", mode, "--remote-cluster-timeout", "1s"]);
    setup.join(&[&east, &west]);
    (setup, east, west)
}

fn export(member: &Member) {
    member.apply(json!({
        "apiVersion": format!("{API}/v1beta1"), "kind": "ServiceExport",
        "metadata": { "name": "cart", "namespace": SHOP },
    }));
}

fn import(member: &Member) -> Value {
    let found = member.api.store().get("ServiceImport", SHOP, "cart");
    found.map(|object| object.value()).unwrap_or_default()
}

/// Waits until a cluster has the import with an address. Returns its addresses.
async fn imported(member: &Member) -> Value {
    wait_until(SOON, async || {
        let import = import(member);
        let ready = import["status"]["conditions"][0]["status"] == "True";
        holds(ready && import["spec"]["ips"].is_array(), &import)?;
        Ok(import["spec"]["ips"].clone())
    })
    .await
}

/// Returns the addresses in the slices that Strait wrote into a cluster, by source cluster.
fn slices(member: &Member) -> BTreeMap<String, Vec<String>> {
    let mut found: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for slice in member.api.store().all("endpointslices") {
        let slice = slice.value();
        let labels = &slice["metadata"]["labels"];
        if labels["endpointslice.kubernetes.io/managed-by"] != "strait.dev" {
            continue;
        }
        let source = labels["multicluster.kubernetes.io/source-cluster"].as_str();
        let addresses = found.entry(source.unwrap_or_default().to_owned()).or_default();
        for endpoint in slice["endpoints"].as_array().into_iter().flatten() {
            addresses.extend(endpoint["addresses"][0].as_str().map(str::to_owned));
        }
    }
    found
}

/// Waits until the slices in a cluster have these addresses.
async fn has_slices(member: &Member, expected: &[(&str, &[&str])]) {
    let addresses = |all: &[&str]| all.iter().map(|one| (*one).to_owned()).collect();
    let expected: BTreeMap<String, Vec<String>> =
        expected.iter().map(|(source, all)| ((*source).to_owned(), addresses(all))).collect();
    wait_until(SOON, async || holds(slices(member) == expected, slices(member))).await;
}

/// Returns the number of requests that change exports, imports, Services or slices.
fn writes(member: &Member) -> u64 {
    let kinds = ["serviceexports", "serviceimports", "services", "endpointslices"];
    let verbs = ["create", "patch", "update", "delete"];
    let counts = |kind| verbs.map(|verb| member.api.request_count(verb, kind)).into_iter();
    kinds.into_iter().flat_map(counts).sum()
}

async fn steady(members: &[&Member]) {
    // The conditions of exports may follow the imports.
    tokio::time::sleep(SOME_PACES).await;
    let before: Vec<_> = members.iter().map(|member| writes(member)).collect();
    tokio::time::sleep(SOME_PACES).await;
    let after: Vec<_> = members.iter().map(|member| writes(member)).collect();
    assert_eq!(after, before, "a steady state needs no write");
}

#[tokio::test]
async fn exported_service_is_imported_everywhere_and_explained_where_it_is_not() {
    let (setup, east, west) = exported().await;
    let north = Member::start("north", "n1", "198.18.0.3").await;
    north.api.enable(Family::MultiCluster);
    setup.join(&[&north]);
    let server = setup.start_ready().await;
    for member in [&east, &west] {
        imported(member).await;
        assert_eq!(import(member)["status"]["clusters"], json!([{ "cluster": "east" }]));
    }
    steady(&[&east, &west, &north]).await;

    // The cluster without the namespace has no import, and the explanation gives the reason.
    let command = ["explain", "import", "shop/cart", "--cluster"];
    let missing = server.strait(&[&command[..], &["north"]].concat()).await;
    assert_eq!(missing.status.code(), Some(2), "{}", text(&missing));
    assert!(text(&missing).contains("the namespace does not exist"), "{}", text(&missing));
    let found = server.strait(&[&command[..], &["west"]].concat()).await;
    assert_eq!(found.status.code(), Some(0), "{}", text(&found));
    let services = server.admin.json("/debug/services?hostname=cart.shop").await;
    let service = &services[0];
    assert_eq!(service["exports"][0]["cluster"], "east", "{service:#}");
    assert_eq!(service["exports"][0]["decides"], true);
    let imports: Vec<_> = service["imports"].as_array().expect("imports").iter().collect();
    let present = imports.iter().filter(|one| one["present"] == true && one["ready"] == true);
    assert_eq!((imports.len(), present.count()), (3, 2), "{service:#}");

    // A namespace that appears gets the import at once.
    north.apply(objects::namespace(SHOP));
    imported(&north).await;

    // The import is deleted after the last export.
    west.serve("cart", &["10.0.1.1"]);
    export(&west);
    let both = json!([{ "cluster": "east" }, { "cluster": "west" }]);
    wait_until(SOON, async || holds(import(&north)["status"]["clusters"] == both, import(&north)))
        .await;
    let ips = import(&north)["spec"]["ips"].clone();
    east.api.store().delete("ServiceExport", SHOP, "cart").expect("it exists");
    let rest = json!([{ "cluster": "west" }]);
    wait_until(SOON, async || holds(import(&north)["status"]["clusters"] == rest, import(&north)))
        .await;
    assert_eq!(import(&north)["spec"]["ips"], ips);
    west.api.store().delete("ServiceExport", SHOP, "cart").expect("it exists");
    for member in [&east, &west, &north] {
        wait_until(SOON, async || holds(import(member).is_null(), import(member))).await;
    }
    server.shut_down().await;
}

#[tokio::test]
async fn restart_writes_nothing_and_a_conflict_stays_a_conflict() {
    let (setup, east, west) = exported().await;
    let mut headless = objects::service(SHOP, "cart", "None", &[objects::HTTP]);
    headless["spec"]["clusterIPs"] = json!(["None"]);
    west.apply(headless);
    export(&west);
    let server = setup.start_ready().await;
    imported(&west).await;
    let conflicts = |member: &Member| {
        let export = member.api.store().get("ServiceExport", SHOP, "cart");
        let export = export.map(|object| object.value()).unwrap_or_default();
        let conditions = export["status"]["conditions"].as_array().cloned().unwrap_or_default();
        conditions.into_iter().find(|one| one["type"] == "Conflict").unwrap_or_default()
    };
    wait_until(SOON, async || {
        let found = [conflicts(&east), conflicts(&west)];
        holds(found.iter().all(|one| one["reason"] == "TypeConflict"), found)
    })
    .await;
    steady(&[&east, &west]).await;
    server.shut_down().await;

    let before = [writes(&east), writes(&west)];
    let server = setup.start_ready().await;
    server.cluster_in("west", "live").await;
    tokio::time::sleep(SOME_PACES).await;
    assert_eq!([writes(&east), writes(&west)], before, "a restart with state");
    server.shut_down().await;

    // Without state, and with a member that does not answer: the conflict is with that member.
    std::fs::remove_dir_all(setup.path("state")).expect("it exists");
    west.api.stop().await;
    let server = setup.start_ready().await;
    server.cluster_in("east", "live").await;
    tokio::time::sleep(SOME_PACES).await;
    assert_eq!(writes(&east), before[0], "a restart without state");
    assert_eq!(conflicts(&east)["status"], "True");
    server.shut_down().await;
}

/// Checks that an import still exists with its address, and that nothing was deleted.
async fn unchanged(west: &Member, ips: &Value, deletions: u64, fault: &str) {
    tokio::time::sleep(SOME_PACES).await;
    assert_eq!(import(west)["spec"]["ips"], *ips, "{fault}");
    let addresses: BTreeMap<_, _> = [("east".to_owned(), vec!["10.0.0.1".to_owned()])].into();
    assert_eq!(slices(west), addresses, "{fault}");
    let deleted: u64 = ["serviceimports", "services", "endpointslices"]
        .map(|kind| west.api.request_count("delete", kind))
        .iter()
        .sum();
    assert_eq!(deleted, deletions, "{fault}");
}

async fn live(server: &Server) {
    for id in ["east", "west"] {
        server.cluster_in(id, "live").await;
    }
}

#[tokio::test]
async fn no_fault_of_the_exporting_cluster_deletes_an_import_or_a_slice_or_changes_an_address() {
    let (setup, east, west) = exported_with("full").await;
    let mut server = setup.start_ready().await;
    let ips = imported(&west).await;
    has_slices(&west, &[("east", &["10.0.0.1"])]).await;
    let exports = || "serviceexports".to_owned();
    let faults = [
        ("hangs", Fault::Hang),
        ("401", Fault::Unauthorized),
        ("403", Fault::Forbidden { resource: exports() }),
        ("lists fail", Fault::KindFails { resource: exports(), body: None }),
        (
            "lists are undecodable",
            Fault::KindFails { resource: exports(), body: Some("{\"items\":[{]}".into()) },
        ),
        ("no supported version", Fault::OnlyVersion { group: API.into(), version: "v2".into() }),
    ];
    for (name, fault) in faults {
        east.api.fault(fault);
        unchanged(&west, &ips, 0, name).await;
        server.shut_down().await;
        if name == "403" {
            std::fs::remove_dir_all(setup.path("state")).expect("it exists");
        }
        server = setup.start_ready().await;
        unchanged(&west, &ips, 0, &format!("{name}, restart")).await;
        east.api.heal();
        live(&server).await;
        unchanged(&west, &ips, 0, &format!("{name}, healed")).await;
    }

    // The kind is deleted, and with it its objects; later both are created again.
    east.api.fault(Fault::RemovedKind { resource: exports() });
    east.api.store().delete("ServiceExport", SHOP, "cart").expect("it exists");
    unchanged(&west, &ips, 0, "kind removed").await;
    server.shut_down().await;
    server = setup.start_ready().await;
    unchanged(&west, &ips, 0, "kind removed, restart").await;
    export(&east);
    east.api.heal();
    live(&server).await;
    unchanged(&west, &ips, 0, "kind created again").await;

    // Both API servers are gone across a restart.
    server.shut_down().await;
    for member in [&east, &west] {
        member.api.stop().await;
    }
    server = setup.start_ready().await;
    for member in [&east, &west] {
        member.api.restart().await;
    }
    live(&server).await;
    unchanged(&west, &ips, 0, "restart without API servers").await;

    // The Secret is created again within the grace period.
    setup.take_out("east");
    server.cluster_in("east", "draining").await;
    setup.join(&[&east]);
    live(&server).await;
    unchanged(&west, &ips, 0, "Secret created again").await;

    // A deleted export does delete it.
    east.api.store().delete("ServiceExport", SHOP, "cart").expect("it exists");
    wait_until(SOON, async || holds(import(&west).is_null(), import(&west))).await;
    has_slices(&west, &[]).await;
    server.shut_down().await;
}

#[tokio::test]
async fn endpoints_of_exporting_clusters_are_in_slices_of_every_cluster() {
    let (setup, east, west) = exported_with("full").await;
    west.serve("cart", &["10.0.1.1"]);
    let server = setup.start_ready().await;
    for member in [&east, &west] {
        imported(member).await;
        // West has the service and does not export it.
        has_slices(member, &[("east", &["10.0.0.1"])]).await;
    }
    steady(&[&east, &west]).await;

    east.serve("cart", &["10.0.0.1", "10.0.0.2"]);
    export(&west);
    for member in [&east, &west] {
        has_slices(member, &[("east", &["10.0.0.1", "10.0.0.2"]), ("west", &["10.0.1.1"])]).await;
    }
    assert_eq!(import(&west)["status"]["endpointSliceObjects"], "Present");
    wait_until(SOON, async || {
        let services = server.admin.json("/debug/services?hostname=cart.shop").await;
        let imports = services[0]["imports"].as_array().expect("imports").iter();
        let counts: Vec<_> = imports.map(|import| import["slices"].clone()).collect();
        holds(counts == [json!(2), json!(2)], &services)
    })
    .await;
    let explained = ["explain", "import", "shop/cart", "--cluster", "west"];
    let explained = server.strait(&explained).await;
    assert!(text(&explained).contains("2 EndpointSlices"), "{}", text(&explained));

    // A restart without state needs no write.
    steady(&[&east, &west]).await;
    server.shut_down().await;
    std::fs::remove_dir_all(setup.path("state")).expect("it exists");
    let before = [writes(&east), writes(&west)];
    let server = setup.start_ready().await;
    live(&server).await;
    tokio::time::sleep(SOME_PACES).await;
    assert_eq!([writes(&east), writes(&west)], before, "a restart without state");

    // The slices of a cluster end with its export.
    west.api.store().delete("ServiceExport", SHOP, "cart").expect("it exists");
    has_slices(&east, &[("east", &["10.0.0.1", "10.0.0.2"])]).await;
    east.api.store().delete("ServiceExport", SHOP, "cart").expect("it exists");
    for member in [&east, &west] {
        has_slices(member, &[]).await;
    }
    server.shut_down().await;
}

#[tokio::test]
async fn removed_cluster_no_longer_keeps_an_import() {
    let (setup, _east, west) = exported().await;
    let setup = setup.with(&["--cluster-removal-grace", "1s"]);
    let server = setup.start_ready().await;
    imported(&west).await;
    setup.take_out("east");
    wait_until(SOON, async || holds(import(&west).is_null(), import(&west))).await;
    server.shut_down().await;
}
