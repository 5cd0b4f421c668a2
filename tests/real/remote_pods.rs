//! A headless service with pods of equal names and addresses in two networks: clients reach each
//! pod in the other network at its virtual address, and never a wrong one.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::helper::{Load, TCP_PORT};
use crate::host::Host;
use crate::kube::{self, Request};
use crate::rig_check::run_load;
use crate::scenarios::PROPAGATION;
use crate::steering::clients;
use crate::wait;
use crate::world::{World, application};

const APP: &str = "db";
const HOST: &str = "db.shop.svc.cluster.local";
const PODS: [(&str, &str); 3] =
    [("db-0", "10.10.1.71"), ("db-1", "10.10.1.72"), ("db-2", "10.10.1.73")];
/// The number of connections of a client to each pod.
const CONNECTIONS: usize = 1700;

pub(crate) fn run(world: &mut World, host: &Host) {
    for cluster in ["a", "b"] {
        world.apiservers[cluster].apply(&objects(&PODS));
        for (name, ip) in PODS {
            world.start_sidecar(host, cluster, name, APP, ip, "delta");
            world.start_echo(host, cluster, name);
        }
    }
    let gateway_has = |world: &World, count: usize| {
        wait::until(PROPAGATION, &format!("the gateway has {count} pods"), || {
            let addresses = virtual_addresses(world);
            if addresses.len() == count { Ok(addresses) } else { Err(format!("{addresses:?}")) }
        })
    };
    let addresses = gateway_has(world, PODS.len());
    for client in clients(world) {
        let to =
            |address: &str, requests| run_load(world.pod(client), &Load::tcp(address, requests));
        for (ordinal, address) in &addresses {
            wait::until(PROPAGATION, &format!("{client} reaches {address}"), || {
                let answers = to(&format!("{address}:9000"), 4);
                if answers.failures.is_empty() { Ok(()) } else { Err(format!("{answers:?}")) }
            });
            // Pods in the own network are reached at their own addresses.
            let (pod, own) = PODS[*ordinal];
            for (cluster, target) in
                [("a", format!("{own}:{TCP_PORT}")), ("b", format!("{address}:9000"))]
            {
                let answers = to(&target, CONNECTIONS);
                let expected = BTreeMap::from([(format!("{cluster}/{pod}"), CONNECTIONS)]);
                assert_eq!(
                    (&answers.by, answers.failures.len()),
                    (&expected, 0),
                    "{client}: {target}"
                );
            }
            let requests = Load::http(&format!("{address}:80"), HOST, 200).over(2);
            let answers = run_load(world.pod(client), &requests);
            let expected = BTreeMap::from([(format!("b/{pod}"), 200)]);
            assert_eq!((&answers.by, answers.failures.len()), (&expected, 0), "{client}: HTTP");
        }
        let any = block(&addresses[&0], 254);
        let answers = to(&format!("{any}:9000"), 60);
        assert!(answers.failures.is_empty() && answers.by.len() == PODS.len(), "{answers:?}");
        let unknown = block(&addresses[&0], 9);
        let answers = to(&format!("{unknown}:9000"), 4);
        assert!(answers.by.is_empty(), "{client} reached an unknown pod: {answers:?}");
    }

    // The set is scaled down and up again: the other pods' connections are not affected.
    world.apiservers["b"].apply(&objects(&PODS[..2]));
    gateway_has(world, 2);
    let gone = format!("{}:9000", addresses[&2]);
    for client in clients(world) {
        let answers = run_load(world.pod(client), &Load::tcp(&gone, 4));
        assert!(answers.by.is_empty(), "{client} reached a pod that is gone: {answers:?}");
    }
    world.apiservers["b"].apply(&objects(&PODS));
    assert_eq!(gateway_has(world, PODS.len()), addresses, "addresses stay");

    assert_eq!(world.complaints(), Vec::<String>::new());
    for cluster in ["a", "b"] {
        for (name, _) in PODS {
            world.envoys.remove(&format!("{cluster}/{name}"));
            world.pods.remove(&format!("{cluster}/{name}"));
        }
        let gone: Vec<_> =
            objects(&PODS).iter().map(|object| Request::delete(&kube::path(object))).collect();
        world.apiservers[cluster].requests(&gone);
    }
    gateway_has(world, 0);
    let with_filter = |client: &str| {
        world.envoy(client).get("/config_dump?resource=dynamic_active_clusters").contains("remote|")
    };
    wait::until(PROPAGATION, "clients have no cluster for remote pods", || {
        let left: Vec<_> = clients(world).into_iter().filter(|one| with_filter(one)).collect();
        if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
    });
}

/// Returns a headless service with these pods, each with a DNS name.
fn objects(pods: &[(&str, &str)]) -> Vec<Value> {
    let mut objects = application(APP, "None".to_owned(), pods);
    for object in &mut objects {
        if object["kind"] == "Pod" {
            object["spec"]["hostname"] = object["metadata"]["name"].clone();
            object["spec"]["subdomain"] = APP.into();
        }
    }
    objects
}

/// Returns the virtual addresses of the pods in cluster b by ordinal, from the names of the upstream
/// clusters of its gateway.
fn virtual_addresses(world: &World) -> BTreeMap<usize, String> {
    let dump = world.envoy("b/eastwest-1").get("/clusters");
    let suffix = format!(".b.outbound_.9000_._.{HOST}::");
    let names = dump.lines().filter_map(|line| line.split_once(&suffix)).map(|(name, _)| name);
    names
        .map(|address| {
            let ordinal = address.rsplit('.').next().and_then(|last| last.parse().ok());
            (ordinal.expect("an ordinal"), address.to_owned())
        })
        .collect()
}

/// Returns the address with another offset.
fn block(address: &str, offset: u8) -> String {
    let (block, _) = address.rsplit_once('.').expect("an IPv4 address");
    format!("{block}.{offset}")
}
