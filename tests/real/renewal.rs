//! Certificates that are renewed while they are used: Envoys of two minor versions load them
//! without a restart, from the SDS files that `strait proxy bootstrap` writes, and no request is
//! lost.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::envoy::Envoy;
use crate::helper::Load;
use crate::process::Process;
use crate::scenarios::{PROPAGATION, finish};
use crate::wait;
use crate::world::{ECHO_VIP, World};

const HOST: &str = "echo.shop.svc.cluster.local";
/// The clients share one service account, and so one folder of certificates.
const CLIENTS: [&str; 3] = ["a/client", "a/client-sotw", "a/client-old"];

pub(crate) fn run(world: &mut World) {
    let clients: Vec<&str> =
        CLIENTS.into_iter().filter(|key| world.envoys.contains_key(*key)).collect();
    let before: BTreeMap<&str, BTreeSet<String>> =
        clients.iter().map(|client| (*client, serials(world.envoy(client)))).collect();
    assert!(before.values().all(|serials| !serials.is_empty()), "{before:?}");
    let connected = connected(world);
    let loads: Vec<Process> = clients.iter().map(|client| world.http_load(client)).collect();
    for _ in 0..2 {
        let old: BTreeMap<_, _> =
            clients.iter().map(|client| (*client, serials(world.envoy(client)))).collect();
        world.ca.renew("shop", "client");
        for client in &clients {
            wait::until(PROPAGATION, &format!("{client} uses its new certificate"), || {
                let now = serials(world.envoy(client));
                if now.is_disjoint(&old[client]) { Ok(()) } else { Err(format!("{now:?}")) }
            });
        }
    }
    for (client, load) in clients.iter().zip(loads) {
        let answers = finish(load);
        assert_eq!(answers.failures, BTreeMap::new(), "{client}");
        assert!(answers.requests > 50, "{client} {answers:?}");
    }
    assert_eq!(self::connected(world), connected, "no stream to the control plane was lost");
    assert_eq!(world.complaints(), Vec::<String>::new());
}

/// Returns the serial numbers of the certificates that an Envoy uses as server and client.
fn serials(envoy: &Envoy) -> BTreeSet<String> {
    let certificates: Value =
        serde_json::from_str(&envoy.get("/certs")).expect("Envoy's page is JSON");
    let list = |value: &Value, key: &str| value[key].as_array().cloned().unwrap_or_default();
    let chains =
        list(&certificates, "certificates").into_iter().flat_map(|one| list(&one, "cert_chain"));
    chains.filter_map(|one| Some(one["serial_number"].as_str()?.to_owned())).collect()
}

/// Returns the streams by key, which changes on a reconnect.
fn connected(world: &World) -> BTreeSet<String> {
    let proxies = world.strait.try_json("/debug/proxies").expect("it answers");
    let keys = proxies.as_array().into_iter().flatten().filter_map(|one| one["key"].as_str());
    keys.map(str::to_owned).collect()
}

impl World {
    /// Starts requests on new connections, while certificates change.
    fn http_load(&self, client: &str) -> Process {
        let load = Load::http(&format!("{ECHO_VIP}:80"), HOST, 1).lasting(10);
        let name = format!("renewal-{}", client.replace('/', "-"));
        load.spawn(self.pod(client), &self.folder, &name)
    }
}
