//! A change that breaks requests, and a change that Envoys reject, rolled out to some of the real
//! proxies under load. The other proxies lose no request, and a rejected change stops
//! automatically.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde_json::{Value, json};

use crate::helper::HTTP_PORT;
use crate::host::Host;
use crate::kube::{self, Request};
use crate::process::Process;
use crate::rig_check::run_load;
use crate::scenarios::{PROPAGATION, finish, http};
use crate::wait;
use crate::world::World;

/// Two minor versions of Envoy, and both variants of the protocol.
const CLIENTS: [&str; 3] = ["a/client", "a/client-sotw", "a/client-old"];
/// Additional clients for this scenario only, so that their rejections affect no other scenario.
const TRIED: [(&str, &str, &str); 3] = [
    ("tried-1", "10.10.0.41", "delta"),
    ("tried-2", "10.10.0.42", "sotw"),
    ("tried-3", "10.10.0.43", "delta"),
];
/// The maximum number of changes that are tried until a step contains some of the clients and not
/// all.
const CHANGES_MAX: usize = 12;

const PLAN: &str = "rollout: {steps: [50%, 100%], every: 1h, stopAt: {refused: 1}}";

/// Routes requests to an existing or to a missing service. Each number is another change.
fn route(host: &str, number: usize) -> Value {
    let to = json!([{ "destination": { "host": host } }]);
    json!({
        "apiVersion": "networking.istio.io/v1", "kind": "VirtualService",
        "metadata": { "name": "let-out", "namespace": "shop" },
        "spec": { "hosts": ["echo"], "http": [{ "timeout": format!("{}s", 20 + number), "route": to }] },
    })
}

/// Makes the Envoys of an app listen on a port that their application already uses, which a control
/// plane cannot know.
pub(crate) fn port_in_use_by(name: &str, app: &str, number: usize) -> Value {
    let port = json!({ "number": HTTP_PORT, "protocol": "HTTP", "name": format!("http-{number}") });
    let own = format!("127.0.0.1:{}", 9100 + number);
    let ingress = json!({ "port": port, "captureMode": "NONE", "defaultEndpoint": own });
    json!({
        "apiVersion": "networking.istio.io/v1", "kind": "Sidecar",
        "metadata": { "name": name, "namespace": "shop" },
        "spec": {
            "workloadSelector": { "labels": { "app": app } },
            "ingress": [ingress], "egress": [{ "hosts": ["*/*"] }],
        },
    })
}

fn port_in_use(number: usize) -> Value {
    port_in_use_by("let-out", "tried", number)
}

pub(crate) fn run(world: &mut World, host: &Host) {
    for (name, ip, protocol) in TRIED {
        world.start_sidecar(host, "a", name, "tried", ip, protocol);
        world.start_echo(host, "a", name);
    }
    let mut clients: Vec<String> = TRIED.iter().map(|(name, ..)| format!("a/{name}")).collect();
    for client in &clients {
        let envoy = world.envoys.get_mut(client).expect("just started");
        envoy.wait_until_live(PROPAGATION);
    }
    let started = CLIENTS.into_iter().filter(|key| world.envoys.contains_key(*key));
    clients.extend(started.map(str::to_owned));
    world.apiservers["a"].apply(&[route("echo", 0)]);
    world.strait.set_policy(PLAN);
    wait::until(PROPAGATION, "the plan is read", || {
        let state = world.strait.try_json("/debug/rollout")?;
        if state["plan"].is_object() { Ok(()) } else { Err(state.to_string()) }
    });
    for client in &clients {
        world.wait_for_answers(client, |failing, _| failing == 0);
    }
    routes_to_nothing(world, &clients);
    refused(world, &clients);

    // The stopped change is on hold, so these changes reach no proxy. Without the plan, a release
    // applies to all proxies at once.
    let gone =
        [route("echo", 0), port_in_use(0)].map(|object| Request::delete(&kube::path(&object)));
    world.apiservers["a"].requests(&gone);
    world.end_plan();
    for (name, ..) in TRIED {
        world.envoys.remove(&format!("a/{name}"));
    }
    assert_eq!(world.complaints(), Vec::<String>::new(), "no other proxy has rejected a response");
}

/// Requests of the proxies in the step fail, and no others, until the change is rolled back.
fn routes_to_nothing(world: &World, clients: &[String]) {
    let loads = world.start_loads(clients);
    let (share, ever) = world.roll_out(clients, clients, |number| route("absent", number));
    for client in clients.iter().filter(|client| share.contains(*client)) {
        world.wait_for_answers(client, |failing, all| failing == all);
    }
    for (load, client) in loads.into_iter().zip(clients) {
        let answers = finish(load);
        match ever.contains(client) {
            true => assert!(!share.contains(client) || !answers.failures.is_empty(), "{client}"),
            false => assert_eq!(answers.failures, BTreeMap::new(), "{client} is in no step"),
        }
    }
    world.strait.run(&["history", "rollout", "--abort", "--yes", "--reason", "it fails"]);
    for client in clients {
        world.wait_for_answers(client, |failing, _| failing == 0);
    }
    // The objects equal the held configuration again: nothing differs for any proxy.
    world.apiservers["a"].apply(&[route("echo", 0)]);
    wait::until(PROPAGATION, "nothing waits", || {
        let state = world.strait.try_json("/debug/hold")?;
        if state["waiting"]["count"] == 0 { Ok(()) } else { Err(state.to_string()) }
    });
    world.strait.run(&["history", "release", "--yes"]);
}

/// Envoys in the step reject their listeners and continue with the previous ones: no request is
/// lost, and the rollout stops.
fn refused(world: &World, clients: &[String]) {
    let loads = world.start_loads(clients);
    let tried: Vec<String> = TRIED.iter().map(|(name, ..)| format!("a/{name}")).collect();
    let (mut stopped, mut before) = (Value::Null, Value::Null);
    for number in 1..=CHANGES_MAX {
        world.apiservers["a"].apply(&[port_in_use(number)]);
        let state = wait::until(
            PROPAGATION,
            "the change reaches the first step, and may be rejected",
            || {
                let state = world.strait.try_json("/debug/rollout")?;
                let running = &state["running"];
                let is_out = running["step"] == 1 && running["configuration"] != before;
                if is_out || !state["stopped"].is_null() {
                    Ok(state)
                } else {
                    Err(state.to_string())
                }
            },
        );
        before = state["running"]["configuration"].clone();
        let is_due = current_step(&state, clients).iter().any(|client| tried.contains(client));
        if is_due || !state["stopped"].is_null() {
            stopped = wait::until(PROPAGATION, "it stops", || {
                let state = world.strait.try_json("/debug/rollout")?;
                if state["stopped"].is_null() { Err(state.to_string()) } else { Ok(state) }
            });
            break;
        }
    }
    let reason = stopped["stopped"]["reason"].as_str().unwrap_or_default();
    assert!(
        reason.contains("stopped at 50%") && reason.to_lowercase().contains("in use"),
        "{stopped}"
    );
    for (load, client) in loads.into_iter().zip(clients) {
        assert_eq!(finish(load).failures, BTreeMap::new(), "{client}");
    }
    let refusing = tried.iter().filter(|client| !world.envoy(client).complaints().is_empty());
    assert!(refusing.clone().count() >= 1, "a proxy rejected the change: {stopped}");
    let checked = world.strait.json("/debug/hold");
    assert_eq!(checked["held"]["byRollout"], true, "{checked}");
}

/// Returns the clients in the current step, by `cluster/name`.
fn current_step(state: &Value, clients: &[String]) -> BTreeSet<String> {
    let ids: Vec<&str> = state["running"]["share"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    let is_in = |client: &&String| {
        let name = client.trim_start_matches("a/");
        ids.iter().any(|id| id.contains(&format!("~{name}.shop~")))
    };
    clients.iter().filter(is_in).cloned().collect()
}

impl World {
    /// Removes the plan from the policy, and releases the held configuration to all proxies at
    /// once.
    pub(crate) fn end_plan(&self) {
        self.strait.set_policy("");
        wait::until(PROPAGATION, "the plan is removed", || {
            let state = self.strait.try_json("/debug/rollout")?;
            if state["plan"].is_null() { Ok(()) } else { Err(state.to_string()) }
        });
        self.strait.run(&["history", "release", "--yes"]);
        wait::until(PROPAGATION, "no rollout and no hold is active", || {
            let state = self.strait.try_json("/debug/rollout")?;
            let hold = self.strait.try_json("/debug/hold")?;
            match state["running"].is_null() && hold["held"].is_null() {
                true => Ok(()),
                false => Err(format!("{state} {hold}")),
            }
        });
    }

    fn start_loads(&self, clients: &[String]) -> Vec<Process> {
        clients.iter().map(|client| self.start_load(client, &http(1))).collect()
    }

    /// Rolls out a change whose first step contains some of these clients and not all. Returns
    /// these clients, and all clients that were in the first step of an earlier change.
    fn roll_out(
        &self,
        clients: &[String],
        targets: &[String],
        change: impl Fn(usize) -> Value,
    ) -> (BTreeSet<String>, BTreeSet<String>) {
        let (mut ever, mut before) = (BTreeSet::new(), Value::Null);
        for number in 1..=CHANGES_MAX {
            self.apiservers["a"].apply(&[change(number)]);
            let state = wait::until(PROPAGATION, "the change reaches the first step", || {
                let state = self.strait.try_json("/debug/rollout")?;
                let is_new = state["running"]["configuration"] != before;
                let is_out = is_new && state["running"]["step"] == 1;
                if is_out { Ok(state) } else { Err(state.to_string()) }
            });
            before = state["running"]["configuration"].clone();
            let share = current_step(&state, clients);
            ever.extend(share.iter().cloned());
            let count = targets.iter().filter(|client| share.contains(*client)).count();
            if count > 0 && count < targets.len() {
                return (share, ever);
            }
        }
        panic!("each of {CHANGES_MAX} changes was assigned to all of {targets:?} or to none");
    }

    /// Waits until the expected number of a client's requests fail.
    fn wait_for_answers(&self, client: &str, is_right: impl Fn(usize, usize) -> bool) {
        const REQUESTS: usize = 40;
        let limit = PROPAGATION + Duration::from_secs(20);
        wait::until(limit, &format!("{client}: requests succeed as expected"), || {
            let answers = run_load(self.pod(client), &http(REQUESTS));
            let answered: usize = answers.by.values().sum();
            match is_right(REQUESTS - answered.min(REQUESTS), REQUESTS) {
                true => Ok(()),
                false => Err(format!("{answers:?}")),
            }
        });
    }
}
