//! The rollout of a PeerAuthentication under load. Clients and servers of two versions of Envoy are
//! in both networks. No request fails while the server mode and the client mode change. Once STRICT
//! is active, plain text is rejected.
//!
//! Servers accept the previous mode for a minute, so two services are tested in parallel: one
//! changes from no policy to STRICT, PERMISSIVE and DISABLE, the other from DISABLE, which existed
//! before Strait started, to STRICT.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

use crate::helper::Load;
use crate::host::Host;
use crate::kube::{Request, path, pod};
use crate::netns::Netns;
use crate::process::Process;
use crate::rig_check::run_load;
use crate::scenarios::{PROPAGATION, finish};
use crate::wait;
use crate::world::{World, application, pod_labels, vip};

/// A service with one pod in each cluster, and the last byte of the VIPs.
struct Rolled {
    name: &'static str,
    pod: (&'static str, &'static str),
    vip: u8,
}

const FORTH: Rolled = Rolled { name: "forth", pod: ("forth-1", "10.10.1.51"), vip: 31 };
const BACK: Rolled = Rolled { name: "back", pod: ("back-1", "10.10.1.52"), vip: 32 };

/// Clients in the other network, in addition to the world's clients.
const CLIENTS_IN_B: [(&str, &str); 2] =
    [("rolled-client", "10.10.0.21"), ("rolled-client-old", "10.10.0.22")];

/// The time for which servers may accept the previous mode.
const SETTLES: Duration = Duration::from_secs(60);

pub(crate) fn run(world: &mut World, host: &Host) {
    let old = host.envoy_old.clone();
    let old = old.as_deref().unwrap_or(&host.envoy);
    // Each version is a server of both services.
    let servers = [
        (&FORTH, "a", &*host.envoy),
        (&FORTH, "b", old),
        (&BACK, "a", old),
        (&BACK, "b", &host.envoy),
    ];
    for (service, cluster, program) in servers {
        let (name, ip) = service.pod;
        world.start_sidecar_with(host, program, cluster, name, service.name, ip);
        world.start_echo(host, cluster, name);
    }
    for ((name, ip), program) in CLIENTS_IN_B.into_iter().zip([&*host.envoy, old]) {
        world.start_sidecar_with(host, program, "b", name, "client", ip);
    }
    let in_b =
        CLIENTS_IN_B.map(|(name, ip)| pod("shop", name, "client", ip, &pod_labels("client")));
    let mut objects = BTreeMap::from([("a", Vec::new()), ("b", in_b.to_vec())]);
    for (cluster, all) in &mut objects {
        for service in [&FORTH, &BACK] {
            all.extend(application(service.name, vip(cluster, service.vip), &[service.pod]));
        }
        world.apiservers[*cluster].apply(all);
    }
    let new: Vec<String> = servers
        .iter()
        .map(|(service, cluster, _)| format!("{cluster}/{}", service.pod.0))
        .chain(CLIENTS_IN_B.iter().map(|(name, _)| format!("b/{name}")))
        .collect();
    for key in &new {
        world.envoys.get_mut(key).expect("just started").wait_until_live(PROPAGATION);
    }
    let clients = ["a/client", "a/client-old", "b/rolled-client", "b/rolled-client-old"];
    let clients: Vec<&str> =
        clients.into_iter().filter(|key| world.envoys.contains_key(*key)).collect();
    for client in &clients {
        // A service that accepts only plain text is unreachable from the other network.
        world.wait_until_answered_by(client, &FORTH, &["a", "b"]);
        world.wait_until_answered_by(client, &BACK, &[&client[..1]]);
    }
    let strangers =
        ["a", "b"].map(|cluster| world.topology.stranger(cluster, "outsider", "10.10.0.98"));
    wait_for_plain_text(&strangers, &FORTH, true);
    wait_for_plain_text(&strangers, &BACK, true);

    let end = world.folder.join("mode-rollout.end");
    let loads: Vec<(String, Process)> =
        clients.iter().flat_map(|client| world.loads_until(client, &end)).collect();
    let config = &world.apiservers["a"];
    config.apply(&[mode(&FORTH, "STRICT")]);
    world.wait_until_active(&FORTH, PROPAGATION);
    wait_for_plain_text(&strangers, &FORTH, false);
    config.apply(&[mode(&FORTH, "PERMISSIVE")]);
    world.wait_until_active(&FORTH, PROPAGATION);
    wait_for_plain_text(&strangers, &FORTH, true);
    config.apply(&[mode(&FORTH, "DISABLE"), mode(&BACK, "STRICT")]);
    for client in &clients {
        world.wait_until_answered_by(client, &FORTH, &[&client[..1]]);
        world.wait_until_answered_by(client, &BACK, &["a", "b"]);
    }
    for service in [&FORTH, &BACK] {
        world.wait_until_active(service, SETTLES + PROPAGATION);
    }
    wait_for_plain_text(&strangers, &FORTH, true);
    wait_for_plain_text(&strangers, &BACK, false);
    std::fs::write(&end, "").expect("our own folder");
    for (name, load) in loads {
        let answers = finish(load);
        assert_eq!(answers.failures, BTreeMap::new(), "{name}");
        assert!(answers.requests > 100 && answers.by.len() == 2, "{name}: {answers:?}");
    }
    assert_eq!(world.complaints(), Vec::<String>::new());

    objects.entry("a").or_default().extend([&FORTH, &BACK].map(|service| mode(service, "STRICT")));
    for (cluster, all) in &objects {
        let gone: Vec<_> = all.iter().map(|object| Request::delete(&path(object))).collect();
        world.apiservers[*cluster].requests(&gone);
    }
    new.iter().for_each(|key| _ = world.envoys.remove(key));
}

/// Returns the policy that exists before Strait starts, so that clients never see its change.
pub(crate) fn from_the_beginning() -> Value {
    mode(&BACK, "DISABLE")
}

fn mode(rolled: &Rolled, mode: &str) -> Value {
    json!({
        "apiVersion": "security.istio.io/v1", "kind": "PeerAuthentication",
        "metadata": { "name": rolled.name, "namespace": "shop" },
        "spec": { "selector": { "matchLabels": { "app": rolled.name } }, "mtls": { "mode": mode } },
    })
}

/// Waits until clients without a certificate get a response in plain text, or get none, in each
/// network.
fn wait_for_plain_text(strangers: &[Netns], rolled: &Rolled, is_accepted: bool) {
    let load = Load::tcp(&format!("{}:9000", rolled.pod.1), 1);
    for stranger in strangers {
        let wanted = if is_accepted { "takes" } else { "refuses" };
        wait::until(PROPAGATION, &format!("{} {wanted} plain text", rolled.name), || {
            let answers = run_load(stranger, &load);
            if answers.failures.is_empty() == is_accepted {
                Ok(())
            } else {
                Err(format!("{answers:?}"))
            }
        });
    }
}

impl Rolled {
    fn tcp(&self, cluster: &str) -> Load {
        Load::tcp(&format!("{}:9000", vip(cluster, self.vip)), 1)
    }

    fn http(&self, cluster: &str) -> Load {
        let host = format!("{}.shop.svc.cluster.local", self.name);
        Load::http(&format!("{}:80", vip(cluster, self.vip)), &host, 1)
    }
}

impl World {
    /// Waits until the pods in these clusters respond to all requests of a client, with at least
    /// one response from each cluster.
    fn wait_until_answered_by(&self, client: &str, rolled: &Rolled, clusters: &[&str]) {
        let wanted: BTreeSet<String> =
            clusters.iter().map(|cluster| format!("{cluster}/{}", rolled.pod.0)).collect();
        let load = Load { requests: 30, ..rolled.http(&client[..1]) };
        wait::until(PROPAGATION, &format!("{client} is answered by {wanted:?}"), || {
            let answers = run_load(self.pod(client), &load);
            let by: BTreeSet<String> = answers.by.keys().cloned().collect();
            match answers.failures.is_empty() && by == wanted {
                true => Ok(()),
                false => Err(format!("{answers:?}")),
            }
        });
    }

    /// Waits until all proxies have acknowledged the policy of a service, and none uses the
    /// previous mode.
    fn wait_until_active(&self, rolled: &Rolled, limit: Duration) {
        let query = format!(
            "/debug/config/reach?kind=PeerAuthentication&namespace=shop&name={}",
            rolled.name
        );
        wait::until(limit, &format!("{} is accepted according to its policy", rolled.name), || {
            let answer = self.strait.try_json(&query)?;
            let row = &answer[0];
            let is_there = row["proxies"] == 2 && row["acknowledged"] == 2;
            if is_there && row["transition"].is_null() { Ok(()) } else { Err(answer.to_string()) }
        });
    }

    /// Starts requests and connections of a client to both services, which end when the file
    /// exists.
    fn loads_until(&self, client: &str, end: &Path) -> Vec<(String, Process)> {
        let cluster = &client[..1];
        let loads = [&FORTH, &BACK].into_iter().flat_map(|rolled| {
            let reused = rolled.http(cluster).over(1);
            [("tcp", rolled.tcp(cluster)), ("http", rolled.http(cluster)), ("kept", reused)].map(
                |(kind, load)| {
                    (format!("rolled-{}-{}-{kind}", client.replace('/', "-"), rolled.name), load)
                },
            )
        });
        let start = |(name, load): (String, Load)| {
            let until = Some(end.to_owned());
            let load = Load { pause_ms: 40, until, ..load.lasting(240) };
            let process = load.spawn(self.pod(client), &self.folder, &name);
            (name, process)
        };
        loads.map(start).collect()
    }
}
