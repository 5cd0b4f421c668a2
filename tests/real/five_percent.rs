//! Twenty real Envoys of two versions and both variants of the protocol under load, and changes
//! that are rolled out with the default steps of the policy. A bad change reaches at most one Envoy
//! and stops automatically, and the other Envoys lose no request.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Value, json};
use xxhash_rust::xxh3::Xxh3;

use crate::envoy::Envoy;
use crate::helper::Load;
use crate::host::Host;
use crate::kube::{self, Request};
use crate::netns::ENVOY_UID;
use crate::process::Process;
use crate::rig_check::run_load;
use crate::rollout::port_in_use_by;
use crate::scenarios::{PROPAGATION, finish, http};
use crate::world::{ECHO_PODS, Proxy, World, bootstrap, pod_labels};
use crate::{mode_rollout, wait};

/// The number of proxies. 5 % of them is one proxy.
const FLEET: usize = 20;
const APP: &str = "fleet";
/// The maximum number of attempted changes. The first of all proxies is usually in the fleet,
/// because few proxies are not.
const CHANGES_MAX: usize = 20;
/// A plan with the default steps that does not advance during the test.
const PLAN: &str = "rollout: {every: 1h}";
/// A label that pods have until they are replaced.
const OLD_PODS: (&str, &str) = ("generation", "old");

/// The updates of the fleet's Envoys: how often each accepted or rejected listeners, upstream
/// clusters and routes.
type Updates = BTreeMap<String, BTreeMap<String, u64>>;

pub(crate) fn run(world: &mut World, host: &Host) {
    // The order of proxies depends on the name of the whole configuration, and a rollout's name
    // excludes its access policies. So an access policy that remains from another scenario is
    // deleted first.
    let _may_be_gone = world.apiservers["a"]
        .try_requests(&[Request::delete(&kube::path(&mode_rollout::from_the_beginning()))]);
    wait::until(PROPAGATION, "no access policy is active", || {
        let objects = world.strait.try_json("/debug/config")?.to_string();
        if objects.contains("PeerAuthentication") { Err(objects) } else { Ok(()) }
    });
    let fleet = world.start_fleet(host);
    world.apiservers["a"].apply(&[subset(&json!({ "app": "echo" }), 0), route()]);
    for client in &fleet {
        world.wait_until_answered(client);
    }
    // Objects that are read after the plan are rolled out by it.
    wait::until(PROPAGATION, "old objects are deleted, and new ones active", || {
        let objects = world.strait.try_json("/debug/config")?.to_string();
        let named = |name: &str| objects.matches(&format!("\"{name}\"")).count();
        let is_read = named("let-out") == 0 && named("five-percent") >= 2;
        if is_read { Ok(()) } else { Err(objects) }
    });
    for client in &fleet {
        wait::until(PROPAGATION, &format!("{client} has the subset"), || {
            let clusters = world.envoy(client).get("/clusters");
            let has_it = clusters.contains("outbound|80|all|echo.shop.svc.cluster.local");
            if has_it { Ok(()) } else { Err("it has not".to_owned()) }
        });
    }
    world.strait.set_policy(PLAN);
    wait::until(PROPAGATION, "the plan is read", || {
        let state = world.strait.try_json("/debug/rollout")?;
        let is_default = state["plan"]["steps"] == json!([5, 25, 100]);
        if is_default { Ok(()) } else { Err(state.to_string()) }
    });

    first_proxy_refuses(world, &fleet);
    missing_endpoints_reach_no_proxy(world, &fleet);
    removed_endpoints_affect_one_proxy(world, &fleet);

    let ours = [subset(&Value::Null, 0), route()];
    let gone: Vec<Request> =
        ours.iter().map(|object| Request::delete(&kube::path(object))).collect();
    world.apiservers["a"].requests(&gone);
    world.end_plan();
    for client in &fleet {
        world.envoys.remove(client);
    }
    wait::until(
        PROPAGATION,
        "no other proxy has rejected a response, and no resource is warming",
        || {
            let complaints = world.complaints();
            if complaints.is_empty() { Ok(()) } else { Err(format!("{complaints:?}")) }
        },
    );
}

/// The application next to each Envoy already listens on this port, which a control plane cannot
/// know.
fn first_proxy_refuses(world: &World, fleet: &[String]) {
    let chosen = world.stage_change(fleet, port_in_use);
    let before = world.updates(fleet);
    let loads = world.fleet_loads(fleet, 8);
    world.strait.run(&["history", "release", "--yes"]);
    let reason = world.stopped();
    assert!(
        reason.contains("stopped at 5%") && reason.to_lowercase().contains("in use"),
        "{reason}"
    );
    assert!(
        reason.contains(&format!("~{}.shop~", client_name(&chosen))),
        "{reason} names {chosen}"
    );
    for (client, load) in loads {
        let answers = finish(load);
        assert_eq!(answers.failures, BTreeMap::new(), "{client} keeps the previous configuration");
        assert!(answers.requests > 20, "{client}: {answers:?}");
    }
    let after = world.updates(fleet);
    let reached: Vec<&String> =
        fleet.iter().filter(|client| after[*client] != before[*client]).collect();
    assert_eq!(reached, [&chosen], "it reached one of {FLEET}");
    for client in fleet {
        let has_refused = world.envoy(client).complaints().iter().any(|it| it.contains("lds"));
        assert_eq!(has_refused, *client == chosen, "{client}");
    }
    world.apiservers["a"].requests(&[Request::delete(&kube::path(&port_in_use(0)))]);
    world.nothing_waits();
}

/// A subset that matches no pod: the rollout detects it before any proxy receives it.
fn missing_endpoints_reach_no_proxy(world: &World, fleet: &[String]) {
    world.stage_change(fleet, |number| subset(&json!({ "app": "nobody" }), number));
    let before = world.updates(fleet);
    let loads = world.fleet_loads(fleet, 6);
    world.strait.run(&["history", "release", "--yes"]);
    let reason = world.stopped();
    assert!(reason.contains("stopped at 0%") && reason.contains("echo.shop"), "{reason}");
    for (client, load) in loads {
        assert_eq!(finish(load).failures, BTreeMap::new(), "{client}");
    }
    assert_eq!(world.updates(fleet), before, "no proxy received it");
    world.apiservers["a"].apply(&[subset(&json!({ "app": "echo" }), 0)]);
    world.nothing_waits();
}

/// A subset that matches all pods when it is rolled out, and none once they are replaced. Proxies
/// that have it by then lose requests until it is rolled back.
fn removed_endpoints_affect_one_proxy(world: &World, fleet: &[String]) {
    world.label_pods(Some(OLD_PODS));
    let (label, value) = OLD_PODS;
    let chosen = world.stage_change(fleet, |number| subset(&json!({ label: value }), number));
    let loads = world.fleet_loads(fleet, 15);
    world.strait.run(&["history", "release", "--yes"]);
    let share = wait::until(PROPAGATION, "the change reaches the first step", || {
        let state = world.strait.try_json("/debug/rollout")?;
        let is_out = state["running"]["step"] == 1;
        if is_out { Ok(state["running"]["share"].clone()) } else { Err(state.to_string()) }
    });
    let share = share.as_array().expect("node ids").clone();
    let is_it = |id: &Value| {
        id.as_str().is_some_and(|id| id.contains(&format!("~{}.shop~", client_name(&chosen))))
    };
    assert!(share.len() == 1 && share.iter().all(is_it), "{share:?} instead of only {chosen}");
    world.label_pods(None);
    let reason = world.stopped();
    assert!(reason.contains("stopped at 5%") && reason.contains("echo.shop"), "{reason}");
    for (client, load) in loads {
        let answers = finish(load);
        match client == chosen {
            true => assert!(!answers.failures.is_empty(), "{client} had no endpoint for a while"),
            false => assert_eq!(answers.failures, BTreeMap::new(), "{client}"),
        }
    }
    world.wait_until_answered(&chosen);
    world.apiservers["a"].apply(&[subset(&json!({ "app": "echo" }), 0)]);
    world.nothing_waits();
}

/// Returns rules that route requests to a subset of the service. Each number is another change.
fn subset(labels: &Value, number: usize) -> Value {
    let pool = json!({ "tcp": { "connectTimeout": format!("{}ms", 5000 + number) } });
    json!({
        "apiVersion": "networking.istio.io/v1", "kind": "DestinationRule",
        "metadata": { "name": "five-percent", "namespace": "shop" },
        "spec": {
            "host": "echo", "subsets": [{ "name": "all", "labels": labels }],
            "trafficPolicy": { "connectionPool": pool },
        },
    })
}

fn route() -> Value {
    let to = json!([{ "destination": { "host": "echo", "subset": "all" } }]);
    json!({
        "apiVersion": "networking.istio.io/v1", "kind": "VirtualService",
        "metadata": { "name": "five-percent", "namespace": "shop" },
        "spec": { "hosts": ["echo"], "http": [{ "route": to }] },
    })
}

fn port_in_use(number: usize) -> Value {
    port_in_use_by("five-percent", APP, number)
}

fn client_name(client: &str) -> &str {
    client.trim_start_matches("a/")
}

/// Computes the position of a proxy in the order of a change. It is reimplemented here, because it
/// must be equal in all versions and replicas.
fn place(change: &str, cluster: &str, id: &str) -> u64 {
    let mut hash = Xxh3::new();
    for part in [change, cluster, id] {
        hash.update(part.as_bytes());
        hash.update(&[0]);
    }
    hash.digest()
}

impl World {
    /// Starts the fleet: every second Envoy is of an older version, every third uses SotW.
    fn start_fleet(&mut self, host: &Host) -> Vec<String> {
        let old = host.envoy_old.clone().unwrap_or_else(|| host.envoy.clone());
        let mut fleet = Vec::new();
        for number in 0..FLEET {
            let program = if number.is_multiple_of(2) { &host.envoy } else { &old };
            let protocol = if number.is_multiple_of(3) { "sotw" } else { "delta" };
            fleet.push(self.start_in_fleet(host, program, number, protocol));
        }
        for client in &fleet {
            self.start_echo(host, "a", client_name(client));
            let envoy = self.envoys.get_mut(client).expect("just started");
            envoy.wait_until_live(2 * PROPAGATION);
        }
        fleet
    }

    fn start_in_fleet(
        &mut self,
        host: &Host,
        program: &Path,
        number: usize,
        protocol: &str,
    ) -> String {
        let (name, ip) = (format!("{APP}-{number}"), format!("10.10.0.{}", 100 + number));
        let netns = self.topology.pod("a", &name, &ip);
        let proxy = Proxy {
            cluster: "a",
            kind: "sidecar",
            namespace: "shop",
            name: &name,
            service_account: APP,
            app: APP,
            ip: &ip,
            protocol,
        };
        let files = self.ca.workload("shop", APP);
        let bootstrap = bootstrap(host, &proxy, &files, self.strait.xds());
        let key = format!("a/{name}");
        // Each uses some of the 128 inotify instances that the kernel allows per user.
        let uid = ENVOY_UID + 1 + u32::from(number.is_multiple_of(2));
        let command = netns.command_in_group_of_envoy(program, uid);
        let envoy = Envoy::start_command(host, command, &netns, &format!("a-{name}"), &bootstrap);
        self.envoys.insert(key.clone(), envoy);
        self.pods.insert(key.clone(), netns);
        key
    }

    /// Holds the active configuration, and stores a change whose first proxy, which is its whole
    /// first step, is in the fleet. Returns that proxy.
    fn stage_change(&self, fleet: &[String], change: impl Fn(usize) -> Value) -> String {
        self.strait.run(&["history", "pin", "--yes", "--reason", "to choose a change"]);
        let mut before = self.strait.json("/debug/hold")["live"].clone();
        let proxies = self.strait.json("/debug/proxies");
        let proxies: Vec<&Value> = proxies
            .as_array()
            .into_iter()
            .flatten()
            .filter(|one| one["type"] != "router")
            .collect();
        for number in 1..=CHANGES_MAX {
            self.apiservers["a"].apply(&[change(number)]);
            let live = wait::until(PROPAGATION, "the change is read, and waits", || {
                let live = self.strait.try_json("/debug/hold")?["live"].clone();
                if live == before { Err(live.to_string()) } else { Ok(live) }
            });
            before = live.clone();
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            let place =
                |one: &&&Value| place(&text(&live), &text(&one["cluster"]), &text(&one["id"]));
            let first = proxies.iter().min_by_key(place).map(|one| text(&one["id"]));
            let is_first = |client: &&String| {
                first
                    .as_ref()
                    .is_some_and(|id| id.contains(&format!("~{}.shop~", client_name(client))))
            };
            if let Some(client) = fleet.iter().find(is_first) {
                return client.clone();
            }
        }
        panic!("{CHANGES_MAX} changes were assigned to other proxies than the fleet's");
    }

    /// Returns the reason why a rollout stopped automatically.
    fn stopped(&self) -> String {
        wait::until(PROPAGATION, "the rollout stops automatically", || {
            let state = self.strait.try_json("/debug/rollout")?;
            let reason = state["stopped"]["reason"].as_str().map(str::to_owned);
            reason.ok_or_else(|| state.to_string())
        })
    }

    /// Waits until the stored objects equal the held configuration.
    fn nothing_waits(&self) {
        wait::until(PROPAGATION, "nothing waits", || {
            let state = self.strait.try_json("/debug/hold")?;
            if state["waiting"]["count"] == 0 { Ok(()) } else { Err(state.to_string()) }
        });
    }

    /// Starts some ten requests a second of each proxy for this number of seconds, long enough that
    /// a change has stopped before.
    fn fleet_loads(&self, fleet: &[String], seconds: u64) -> Vec<(String, Process)> {
        let start = |client: &String| {
            let load = Load { concurrency: 1, pause_ms: 100, ..http(1).lasting(seconds) };
            let name = format!("five-percent-{}", client_name(client));
            (client.clone(), load.spawn(self.pod(client), &self.folder, &name))
        };
        fleet.iter().map(start).collect()
    }

    fn updates(&self, fleet: &[String]) -> Updates {
        let filter = "(cds|lds|rds\\..*)\\.update_(success|rejected)$";
        fleet.iter().map(|client| (client.clone(), self.envoy(client).stats(filter))).collect()
    }

    fn wait_until_answered(&self, client: &str) {
        wait::until(2 * PROPAGATION, &format!("{client}: all requests are answered"), || {
            let answers = run_load(self.pod(client), &http(8));
            if answers.failures.is_empty() { Ok(()) } else { Err(format!("{answers:?}")) }
        });
    }

    /// Sets the labels of the service's pods in both clusters, with an additional label if `label`
    /// is set.
    fn label_pods(&self, label: Option<(&str, &str)>) {
        let mut labels = pod_labels("echo");
        if let Some((name, value)) = label {
            labels[name] = json!(value);
        }
        for (cluster, pods) in ECHO_PODS {
            let object = |(name, ip): &(&str, &str)| kube::pod("shop", name, "echo", ip, &labels);
            let objects: Vec<Value> = pods.iter().map(object).collect();
            self.apiservers[cluster].apply(&objects);
        }
    }
}
