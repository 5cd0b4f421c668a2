//! Single virtual hosts (VHDS): an Envoy that subscribes to them has the same routes as other
//! Envoys, an edit sends it no route configuration, and neither edits under load nor a restart of
//! Strait lose a request. An Envoy that is too old for VHDS is served without it.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::envoy::Envoy;
use crate::host::Host;
use crate::kube::{Request, path, pod};
use crate::process::Process;
use crate::rig_check::run_load;
use crate::scenarios::{PROPAGATION, finish, http};
use crate::wait;
use crate::world::{ECHO_VIP, Proxy, World, pod_labels};

/// A pod with the newer Envoy, and one with the older Envoy.
const PODS: [(&str, &str); 2] = [("one-by-one", "10.10.0.61"), ("one-by-one-old", "10.10.0.62")];
const NEW: &str = "a/one-by-one";
const OLD: &str = "a/one-by-one-old";
/// The proxy to compare with.
const ORDINARY: &str = "a/client";
const EDITS: u32 = 10;
const ROUTE: &str = "80";

pub(crate) fn run(world: &mut World, host: &Host) {
    let pods = PODS.map(|(name, ip)| pod("shop", name, "client", ip, &pod_labels("client")));
    world.apiservers["a"].apply(&pods);
    let programs = [Some(host.envoy.clone()), host.envoy_old.clone()];
    for ((name, ip), program) in PODS.into_iter().zip(programs) {
        let Some(program) = program else { continue };
        let netns = world.topology.pod("a", name, ip);
        let proxy = Proxy { protocol: "vhds", ..Proxy::sidecar("a", name, "client", ip) };
        world.start_proxy(host, &program, &proxy, netns);
        let key = format!("a/{name}");
        world.envoys.get_mut(&key).expect("just started").wait_until_live(PROPAGATION);
    }
    world.wait_for_same_hosts(NEW);
    assert_eq!(world.virtual_host_counts(NEW)["oneByOne"], true);
    let clients: Vec<_> =
        [NEW, OLD].into_iter().filter(|key| world.envoys.contains_key(*key)).collect();
    if clients.contains(&OLD) {
        assert_eq!(world.virtual_host_counts(OLD)["code"], "STR0427");
    }

    let loads: Vec<Process> =
        clients.iter().map(|client| world.start_load(client, &http(1))).collect();
    let before = world.envoy(NEW).route_updates();
    for number in 1..=EDITS {
        world.apiservers["a"].apply(&[edit(number)]);
        for client in &clients {
            world.wait_for_edit(client, number);
        }
    }
    let after = world.envoy(NEW).route_updates();
    assert_eq!(before.0, after.0, "an edit sent the route");
    assert!(after.1 >= before.1 + u64::from(EDITS), "{before:?}, then {after:?}");

    // A host is added and removed.
    world.apiservers["a"].apply(&[extra()]);
    // Without this wait, requests for the host would go to the unused VIP, and for two minutes
    // conntrack would treat their ports as not redirected: a later connection from the same port
    // would bypass Envoy and end with ENETUNREACH.
    wait::until(PROPAGATION, "the new host is there", || {
        let hosts = world.envoy(NEW).hosts();
        let is_there = hosts.keys().any(|name| name.contains("extra"));
        if is_there { Ok(()) } else { Err(format!("{:?}", hosts.keys())) }
    });
    let mut load = http(5);
    load.host = Some("extra.example".into());
    let answers = run_load(world.pod(NEW), &load);
    assert_eq!(answers.by.values().sum::<usize>(), 5, "{ECHO_VIP}: {answers:?}");
    world.apiservers["a"].requests(&[Request::delete(&path(&extra()))]);
    wait::until(PROPAGATION, "the new host is gone", || {
        let hosts = world.envoy(NEW).hosts();
        if hosts.keys().any(|name| name.contains("extra")) {
            Err(format!("{:?}", hosts.keys()))
        } else {
            Ok(())
        }
    });
    world.wait_for_same_hosts(NEW);

    // A reconnecting proxy reports its hosts and receives none.
    let before = world.envoy(NEW).route_updates();
    world.strait.kill();
    world.strait.launch();
    world.strait.wait_until_ready();
    wait::until(PROPAGATION, "all Envoys are connected again", || {
        let proxies = world.strait.try_json("/debug/proxies")?;
        let connected = proxies.as_array().map_or(0, Vec::len);
        if connected >= world.dynamic_envoys() { Ok(()) } else { Err(format!("{connected}")) }
    });
    for client in &clients {
        let follows =
            |proxy: &Value| proxy["types"]["vhds"]["sent"] == proxy["types"]["vhds"]["acked"];
        wait::until(PROPAGATION, "the route is served again", || {
            let proxy = world.proxy(client)?;
            if follows(&proxy) { Ok(()) } else { Err(proxy.to_string()) }
        });
    }
    assert_eq!(world.envoy(NEW).route_updates(), before, "sent again after a restart");
    world.apiservers["a"].apply(&[edit(EDITS + 1)]);
    for client in &clients {
        world.wait_for_edit(client, EDITS + 1);
    }
    world.wait_for_same_hosts(NEW);
    for (load, client) in loads.into_iter().zip(&clients) {
        let answers = finish(load);
        assert_eq!(answers.failures, BTreeMap::new(), "{client}");
        assert!(answers.requests > 100, "{client}: {answers:?}");
    }
    assert_eq!(world.complaints(), Vec::<String>::new());

    let gone: Vec<_> = pods.iter().chain([&edit(0)]).map(path).collect();
    let gone: Vec<_> = gone.iter().map(|path| Request::delete(path)).collect();
    world.apiservers["a"].requests(&gone);
    clients.iter().for_each(|key| _ = world.envoys.remove(*key));
}

/// Returns a VirtualService for the echo service, with a timeout that identifies the edit.
fn edit(number: u32) -> Value {
    let to = json!([{ "destination": { "host": "echo" } }]);
    let rule = json!({ "route": to, "timeout": format!("{}s", 60 + number) });
    object("edited", json!({ "hosts": ["echo"], "http": [rule] }))
}

/// Returns a VirtualService for a host without a service.
fn extra() -> Value {
    let to = json!([{ "destination": { "host": "echo.shop.svc.cluster.local" } }]);
    object("extra", json!({ "hosts": ["extra.example"], "http": [{ "route": to }] }))
}

fn object(name: &str, spec: Value) -> Value {
    json!({
        "apiVersion": "networking.istio.io/v1", "kind": "VirtualService",
        "metadata": { "name": name, "namespace": "shop" }, "spec": spec,
    })
}

impl Envoy {
    /// Returns the virtual hosts of the route by name, from any source.
    fn hosts(&self) -> BTreeMap<String, Value> {
        let routes = self.config_dump("?resource=dynamic_route_configs");
        let routes = crate::scenarios::resources(&routes, "route_config", "name");
        let hosts = routes[ROUTE]["virtual_hosts"].as_array().cloned().unwrap_or_default();
        let named = hosts.into_iter().map(|mut host| {
            let name = host["name"].take();
            let name = name.as_str().unwrap_or_default();
            (name.strip_prefix("80/").unwrap_or(name).to_owned(), host)
        });
        named.collect()
    }

    /// Returns how often the route was updated, and how often its hosts were.
    fn route_updates(&self) -> (u64, u64) {
        let total = |filter: &str| self.stats(filter).values().sum();
        (total(r"\.rds\.80\.update_success$"), total(r"vhds\.80\.config_reload$"))
    }
}

impl World {
    /// Returns Strait's entry of a client.
    fn proxy(&self, client: &str) -> Result<Value, String> {
        let name = client.trim_start_matches("a/");
        let proxies = self.strait.try_json("/debug/proxies")?;
        let all = proxies.as_array().cloned().unwrap_or_default();
        let is_it = |proxy: &Value| {
            proxy["id"].as_str().is_some_and(|id| id.contains(&format!("~{name}.shop~")))
        };
        all.into_iter().find(is_it).ok_or_else(|| proxies.to_string())
    }

    fn virtual_host_counts(&self, client: &str) -> Value {
        self.proxy(client).expect("it is connected")["virtualHosts"].clone()
    }

    /// Waits until a client has the same virtual hosts as others.
    fn wait_for_same_hosts(&self, client: &str) {
        wait::until(PROPAGATION, &format!("{client} has the hosts of others"), || {
            let [has, others] = [client, ORDINARY].map(|key| self.envoy(key).hosts());
            if has == others && has.len() > 2 {
                Ok(())
            } else {
                Err(format!("{has:?}, {others:?}"))
            }
        });
    }

    fn wait_for_edit(&self, client: &str, number: u32) {
        wait::until(PROPAGATION, &format!("{client} has edit {number}"), || {
            let hosts = self.envoy(client).hosts();
            let has = json!(hosts).to_string().contains(&format!("\"{}s\"", 60 + number));
            if has { Ok(()) } else { Err(json!(hosts).to_string()) }
        });
    }
}
