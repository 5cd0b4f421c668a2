//! Holding a configuration, rolling back to it and releasing it under load. A bad change reaches no
//! proxy or is rolled back, and neither a rollback nor a restart of Strait loses a request.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::kube::{self, Request};
use crate::process::Process;
use crate::rig_check::run_load;
use crate::scenarios::{PROPAGATION, finish, http};
use crate::wait;
use crate::world::World;

/// Two minor versions of Envoy, and both variants of the protocol.
const CLIENTS: [&str; 3] = ["a/client", "a/client-sotw", "a/client-old"];

/// Routes requests to an existing or to a missing service.
fn route(host: &str) -> Value {
    let to = json!([{ "destination": { "host": host } }]);
    json!({
        "apiVersion": "networking.istio.io/v1", "kind": "VirtualService",
        "metadata": { "name": "held", "namespace": "shop" },
        "spec": { "hosts": ["echo"], "http": [{ "route": to }] },
    })
}

pub(crate) fn run(world: &mut World) {
    let clients: Vec<&str> =
        CLIENTS.into_iter().filter(|key| world.envoys.contains_key(*key)).collect();
    let (good, bad) = (route("echo"), route("absent"));
    world.apiservers["a"].apply(std::slice::from_ref(&good));
    world.wait_until_stored(|_| true);
    world.strait.run(&["history", "pin", "--yes", "--by", "real", "--reason", "a test"]);
    let id = world.held();

    // While held, the bad change is stored and reaches no proxy.
    let loads = world.loads(&clients);
    world.apiservers["a"].apply(std::slice::from_ref(&bad));
    world.wait_until_stored(|state| state["waiting"]["count"] == 1);
    for (load, client) in loads.into_iter().zip(&clients) {
        assert_eq!(finish(load).failures, BTreeMap::new(), "{client} while it is held");
    }

    // After the release all requests fail, and the rollback fixes them.
    world.strait.run(&["history", "release", "--yes"]);
    for client in &clients {
        world.wait_for(client, "requests fail", |failing, all| failing == all);
    }
    world.strait.run(&["history", "rollback", &id, "--yes"]);
    for client in &clients {
        world.wait_for(client, "requests are answered", |failing, _| failing == 0);
    }
    assert_eq!(world.held(), id);

    // After a restart by SIGKILL, the configuration is still held.
    let loads = world.loads(&clients);
    world.strait.kill();
    world.strait.launch();
    world.strait.wait_until_ready();
    world.wait_until_stored(|state| state["waiting"]["count"] == 1);
    assert_eq!(world.held(), id);
    for client in &clients {
        let stat = "control_plane.connected_state";
        wait::until(PROPAGATION, &format!("{client} is connected again"), || {
            let stats = world.envoy(client).stats(stat);
            if stats.values().all(|state| *state == 1) { Ok(()) } else { Err(format!("{stats:?}")) }
        });
    }
    // After the fix, the release changes nothing for any proxy.
    world.apiservers["a"].apply(std::slice::from_ref(&good));
    world.wait_until_stored(|state| state["waiting"]["count"] == 0);
    world.strait.run(&["history", "release", "--yes"]);
    for (load, client) in loads.into_iter().zip(&clients) {
        assert_eq!(finish(load).failures, BTreeMap::new(), "{client} over restart and release");
    }
    assert_eq!(world.complaints(), Vec::<String>::new());
    world.apiservers["a"].requests(&[Request::delete(&kube::path(&good))]);
}

impl World {
    fn loads(&self, clients: &[&str]) -> Vec<Process> {
        clients.iter().map(|client| self.start_load(client, &http(1))).collect()
    }

    /// Returns the name of the held configuration.
    fn held(&self) -> String {
        let state = self.strait.json("/debug/hold");
        state["held"]["configuration"].as_str().unwrap_or_default().to_owned()
    }

    /// Waits until the route is stored and the state of the hold is as expected.
    fn wait_until_stored(&self, is_right: impl Fn(&Value) -> bool) {
        wait::until(PROPAGATION, "the route is read", || {
            let rows = self.strait.try_json("/debug/config?kind=VirtualService&name=held")?;
            let state = self.strait.try_json("/debug/hold")?;
            let is_read = rows.as_array().is_some_and(|rows| !rows.is_empty());
            if is_read && is_right(&state) { Ok(()) } else { Err(format!("{rows} {state}")) }
        });
    }

    /// Waits until the expected number of a client's requests fail.
    fn wait_for(&self, client: &str, what: &str, is_right: impl Fn(usize, usize) -> bool) {
        const REQUESTS: usize = 40;
        wait::until(PROPAGATION, &format!("{client}: {what}"), || {
            let answers = run_load(self.pod(client), &http(REQUESTS));
            let answered: usize = answers.by.values().sum();
            match is_right(REQUESTS - answered.min(REQUESTS), REQUESTS) {
                true => Ok(()),
                false => Err(format!("{answers:?}")),
            }
        });
    }
}
