//! Real API servers that stop, lose their history, are restored from a backup and reject
//! credentials: rows of the fault matrix (`docs/explanation/failure-model.md`) for which a simulated server would
//! prove little. Each scenario restores the world.

use std::time::{Duration, Instant, SystemTime};

use serde_json::Value;

use crate::helper::Load;
use crate::kube::service;
use crate::scenarios::{PROPAGATION, echo_pods, finish, http, node, tcp};
use crate::wait;
use crate::world::{ECHO_VIP, PORTS, World};

const LIMIT: Duration = Duration::from_secs(60);

impl World {
    fn cluster(&self, id: &str) -> Result<Value, String> {
        let clusters = self.strait.try_json("/debug/clusters")?;
        let found = clusters.as_array().into_iter().flatten().find(|entry| entry["id"] == id);
        found.cloned().ok_or_else(|| format!("no {id} in {clusters}"))
    }

    fn relists(&self, id: &str) -> u64 {
        self.cluster(id).expect("a member")["relists"].as_u64().expect("a number")
    }

    /// Checks that every pod responds.
    fn assert_all_answer(&self) {
        let answers = self.run_load(&tcp(200));
        for pod in echo_pods() {
            assert!(answers.by.contains_key(&pod), "{pod} is gone: {:?}", answers.by);
        }
    }

    /// Waits until `echo-2` of b receives no connection.
    fn wait_without_echo_2(&self) {
        wait::until(PROPAGATION, "b/echo-2 gets no connection", || {
            let answers = self.run_load(&Load::tcp(&format!("{ECHO_VIP}:9000"), 60));
            match answers.by.contains_key("b/echo-2") {
                true => Err(format!("{:?}", answers.by)),
                false => Ok(()),
            }
        });
    }

    fn wait_until_connected(&self) {
        wait::until(LIMIT, "all Envoys are connected again", || {
            let proxies = self.strait.try_json("/debug/proxies")?;
            let connected = proxies.as_array().map_or(0, Vec::len);
            let wanted = self.dynamic_envoys();
            if connected >= wanted { Ok(()) } else { Err(format!("{connected} of {wanted}")) }
        });
    }
}

/// Rows 7, 6 and 22: the config cluster stops, then the member, then Strait; then all return.
pub(crate) fn everything_dies(world: &mut World) {
    let load = world.background(&http(1), 20);
    world.apiserver("a").stop();
    // Members are still watched, and proxies admitted.
    let change = SystemTime::now();
    world.set_ready("b", "echo-2", false);
    world.wait_without_echo_2();
    let files = world.ca.workload("shop", "client");
    assert_eq!(world.call(&world.ads(&files, node("a", "shop", "client"))).err(), None);
    // Changes of the last seconds may not be on disk yet. A change that is reverted before it is
    // written is never on disk.
    world.strait.wait_until_remembered("b", change);
    let change = SystemTime::now();
    world.set_ready("b", "echo-2", true);
    world.wait_for_everyone();
    world.strait.wait_until_remembered("b", change);

    world.apiserver("b").stop();
    world.strait.kill();
    let began = Instant::now();
    world.strait.launch();
    world.strait.wait_until_ready();
    // A debug build on a busy machine: far below the 30 s for which an unresponsive member delays
    // readiness.
    assert!(began.elapsed() < Duration::from_secs(15), "{:?}", began.elapsed());
    for id in ["a", "b"] {
        world.strait.wait_for_cluster_state(id, &["restored"], PROPAGATION);
    }
    world.wait_until_connected();
    world.assert_all_answer();

    for id in ["a", "b"] {
        world.apiserver(id).launch();
        world.apiserver(id).wait_until_ready();
        world.strait.wait_for_cluster_state(id, &["live"], LIMIT);
    }
    world.wait_for_everyone();
    assert_eq!(finish(load).failures, std::collections::BTreeMap::new());
    assert_eq!(world.complaints(), Vec::<String>::new());
}

/// Rows 13 and 45: the token expires; a Secret with an invalid token changes nothing.
pub(crate) fn bad_credentials(world: &mut World) {
    let strangers = world.apiserver("b").strangers_kubeconfig();
    world.add_member_with(&strangers);
    wait::until(LIMIT, "the old kubeconfig stays in use", || {
        let entry = world.cluster("b")?;
        let serves = entry["kubeconfigRefused"] == true && entry["state"] == "live";
        if serves { Ok(()) } else { Err(entry.to_string()) }
    });
    world.set_ready("b", "echo-2", false);
    world.wait_without_echo_2();
    world.set_ready("b", "echo-2", true);
    world.add_member();
    world.wait_for_everyone();

    let b = world.apiserver("b");
    b.accept_reader(false);
    b.stop();
    b.launch();
    b.wait_until_ready();
    world.strait.wait_for_cluster_state("b", &["authFailed"], LIMIT);
    world.assert_all_answer();
    let b = world.apiserver("b");
    b.accept_reader(true);
    b.stop();
    b.launch();
    b.wait_until_ready();
    world.strait.wait_for_cluster_state("b", &["live"], LIMIT);
    world.wait_for_everyone();
}

/// Rows 22 and 27: a server that has lost our resource version, and a server that has not reached
/// it yet.
pub(crate) fn restored_backup(world: &mut World) {
    world.apiserver("b").back_up();
    world.strait.wait_for_cluster_state("b", &["live"], LIMIT);
    // More writes than a start of the server makes, so that our version is ahead of it after the
    // restore.
    let fill = |number: usize| {
        let mut fill = service("shop", &format!("fill-{number}"), "None", &PORTS);
        fill["metadata"]["labels"]["app"] = "fill".into();
        fill
    };
    world.apiserver("b").apply(&(0..100).map(fill).collect::<Vec<_>>());
    world.set_ready("b", "echo-2", false);
    world.wait_without_echo_2();
    let before = world.relists("b");
    world.apiserver("b").restore();
    wait::until(LIMIT, "the restored state is read", || {
        let answers = world.run_load(&tcp(100));
        let back = answers.by.contains_key("b/echo-2");
        if back { Ok(()) } else { Err(format!("{:?} {}", answers.by, world.cluster("b")?)) }
    });
    world.strait.wait_for_cluster_state("b", &["live"], LIMIT);
    assert!(world.relists("b") > before, "{:?}", world.cluster("b"));
    // Each kind is listed separately, and a list that lacks most known objects is requested twice.
    wait::until(LIMIT, "objects that are not in the backup are gone", || {
        let services = world.strait.json("/debug/services?hostname=fill-7.shop.svc.cluster.local");
        if services == serde_json::json!([]) { Ok(()) } else { Err(services.to_string()) }
    });
    world.wait_for_everyone();
}
