use tokio::sync::watch;

use super::*;
use crate::config_client::ConfigClient;
use strait_identity::ReplicaId;
use strait_kube_client::testing::loopback_access;
use strait_sim::{Fault, Options, SimCluster};

#[tokio::test]
async fn both_reads_start_before_either_completes() {
    let sim = SimCluster::start("config", Options::default()).await.expect("a free port");
    let access = loopback_access(&sim.url(), sim.certificate_authority(), sim.token());
    sim.fault(Fault::Hang);
    let client = ConfigClient::new(watch::channel(access).1);
    let namespace = "strait-system".to_owned();
    let hold = SharedHoldStore { client: client.clone(), namespace: namespace.clone() };
    let roots = RootStore::new(None, Some((client, namespace)), &ReplicaId::default());
    let tasks = Supervisor::new();
    // Sequential reads would never reach the second one.
    let wait = Duration::from_secs(3600);
    let is_requested =
        |name: &str| !sim.requests(|request| request.path.ends_with(name)).is_empty();
    let both = async {
        while !(is_requested("/strait-hold") && is_requested("/strait-ca-roots")) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let limit = tokio::time::timeout(Duration::from_secs(30), both);
    tokio::select! {
        _ = read(Some(hold), &roots, wait, &tasks) => panic!("a read completed"),
        is_requested = limit => is_requested.expect("both reads start"),
    }
}
