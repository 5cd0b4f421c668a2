//! The memory that objects of one namespace use in real Envoys of another namespace.

use super::*;
use strait_model::policy::Policy;
use strait_model::{Collection, ISTIO_NETWORKING, ObjectKey};
use strait_rules::testing::kind_settings;
use strait_rules::traffic::TrafficIndex;

const MEBIBYTE: u64 = 1 << 20;

/// Returns the mesh of a sidecar in `ns` with objects in `evil`, each with `hosts` distinct hosts
/// and 300 rules.
fn with_objects_in_evil(objects: usize, hosts: usize, policy: &str) -> Arc<PushContext> {
    let app = service("app.ns").vip("10.1.0.1").ports(vec![port("http", 80, 8080)]);
    let mut mesh = mesh().measuring(crate::rule_bytes);
    mesh.apply(MeshEvent::Registry(shard("east", 1).network("n1").with(app, vec![]).built()));
    let policy = format!("apiVersion: strait.dev/v1\nkind: Policy\n{policy}");
    mesh.apply(MeshEvent::Policy(Arc::new(Policy::parse(&policy).expect("a policy"))));
    let object = |at: usize| {
        let key = ObjectKey {
            kind: "VirtualService".into(),
            group: ISTIO_NETWORKING.into(),
            namespace: "evil".into(),
            name: format!("many-{at}").into(),
        };
        let rule = |rule: usize| {
            let prefix = format!("/{at}/{rule}");
            json!({ "match": [{ "uri": { "prefix": prefix } }], "route": [{ "destination": { "host": "b.example" } }] })
        };
        let rules: Vec<_> = (0..300).map(rule).collect();
        let hosts: Vec<_> = (0..hosts).map(|host| format!("h{host}-{at}.example")).collect();
        (key, Arc::new(json!({ "spec": { "hosts": hosts, "http": rules } })))
    };
    let all: Collection = (0..objects).map(object).collect();
    let mut index = TrafficIndex::new(kind_settings());
    if let Some(update) = index.apply(&all) {
        mesh.apply(MeshEvent::Traffic(update));
    }
    mesh.apply(MeshEvent::Complete);
    mesh.next_version().expect("a first version").0
}

/// Returns the resident memory of an Envoy with the routes of port 80, in bytes.
async fn resident(envoy: &Path, context: &Arc<PushContext>) -> u64 {
    let [entry] = free_ports();
    let listener = listeners(context, &client())["0.0.0.0_80"].clone();
    let mut listener = inlined(context, &client(), listener);
    listener["address"] = at_loopback(entry);
    listener["bind_to_port"] = true.into();
    let running = Running::start(envoy, &bootstrap(vec![listener], Vec::new())).await;
    let process = running._process.id().expect("it runs");
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).expect("its status");
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kilobytes =
        resident.and_then(|text| text.trim().trim_end_matches(" kB").parse::<u64>().ok());
    kilobytes.expect("a number") * 1024
}

#[tokio::test]
async fn objects_of_another_namespace_use_little_memory_in_an_envoy() {
    for envoy in envoys() {
        let without = resident(&envoy, &with_objects_in_evil(0, 0, "")).await;
        let growth = async |context: Arc<PushContext>| {
            resident(&envoy, &context).await.saturating_sub(without) / MEBIBYTE
        };
        // Sent separately, 90,000 routes would take more than 500 MiB.
        let shared = growth(with_objects_in_evil(1, 300, "")).await;
        assert!(shared < 16, "{shared} MiB for hosts that share their routes");
        // These share nothing, and together they exceed the limit of one namespace.
        let withheld = growth(with_objects_in_evil(40, 1, "")).await;
        assert!(withheld < 16, "{withheld} MiB for objects that are withheld");
        let limit = "traffic: {foreignBytes: {namespace: 1Gi}}\n";
        let unlimited = growth(with_objects_in_evil(40, 1, limit)).await;
        assert!(unlimited > 2 * withheld + 16, "{unlimited} MiB without a limit");
    }
}
