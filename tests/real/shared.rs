//! One scenario with all kinds of clients: Envoys of two minor versions with both variants of the
//! protocol, and gRPC's own library in another language, with endpoints from Kubernetes and a real
//! Consul. An endpoint is added and moves, a cluster is removed and returns, the control plane is
//! killed.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde_json::{Value, json};

use crate::envoy::Envoy;
use crate::host::{self, Host};
use crate::process::Process;
use crate::scenarios::resources;
use crate::topology::gateway_address;
use crate::wait;
use crate::world::{ECHO_PODS, GRACE, World};

const LIMIT: Duration = Duration::from_secs(30);
const ECHO: &str = "outbound|9000||echo.shop.svc.cluster.local";
const CONSUL: &str = "outbound|8080||web.service.consul";
/// The address of the gRPC client's node; it is unused.
const VISITOR: &str = "10.10.0.78";

/// The `address:port`s of an upstream cluster's endpoints; `None` if the client does not have the
/// cluster.
type EndpointResult = Result<Option<BTreeSet<String>>, String>;

/// A client that receives endpoints.
enum Client<'a> {
    Envoy(&'a Envoy),
    Grpc(&'a Process),
}

impl Client<'_> {
    fn endpoints(&self, upstream: &str) -> EndpointResult {
        match self {
            Self::Envoy(envoy) => Ok(envoy_endpoints(envoy, upstream)),
            Self::Grpc(process) => {
                let printed = process.stdout();
                let line = printed.lines().last().ok_or_else(|| process.log_end())?;
                let state: Value = serde_json::from_str(line).map_err(|error| error.to_string())?;
                let list = state["endpoints"][upstream].as_array();
                Ok(list
                    .map(|list| list.iter().filter_map(Value::as_str).map(str::to_owned).collect()))
            }
        }
    }
}

fn envoy_endpoints(envoy: &Envoy, upstream: &str) -> Option<BTreeSet<String>> {
    let dump = envoy.config_dump("?resource=dynamic_endpoint_configs&include_eds");
    let assignments = resources(&dump, "endpoint_config", "cluster_name");
    let endpoints = assignments.get(upstream)?["endpoints"].as_array().cloned().unwrap_or_default();
    let members =
        endpoints.iter().flat_map(|one| one["lb_endpoints"].as_array().into_iter().flatten());
    let sockets = members.map(|one| &one["endpoint"]["address"]["socket_address"]);
    let text = |socket: &Value| {
        format!("{}:{}", socket["address"].as_str().unwrap_or_default(), socket["port_value"])
    };
    Some(sockets.map(text).collect())
}

/// All clients of this run, by name.
struct Clients {
    /// Keys of [`World::envoys`].
    envoys: Vec<&'static str>,
    grpc: Option<Process>,
}

impl Clients {
    fn start(world: &World, host: &Host) -> Self {
        let mut envoys = vec!["a/client", "a/client-sotw"];
        match host.envoy_old {
            Some(_) => envoys.push("a/client-old"),
            None => {
                host::skip_without("part of real::shared", "no Envoy of an older minor version");
            }
        }
        let grpc = host.grpc_python.as_ref().map(|python| grpc_client(world, python));
        if grpc.is_none() {
            host::skip_without("part of real::shared", "no python3 with gRPC");
        }
        if host.consul.is_none() {
            host::skip_without("part of real::shared", "no consul");
        }
        Self { envoys, grpc }
    }

    fn all<'a>(&'a self, world: &'a World) -> BTreeMap<&'a str, Client<'a>> {
        let envoys = self.envoys.iter().map(|key| (*key, Client::Envoy(world.envoy(key))));
        envoys.chain(self.grpc.iter().map(|grpc| ("grpc", Client::Grpc(grpc)))).collect()
    }

    /// Waits until all clients have exactly these endpoints.
    fn agree(&self, world: &World, upstream: &str, wanted: &[&str]) {
        let wanted: BTreeSet<String> = wanted.iter().map(|one| (*one).to_owned()).collect();
        for (name, client) in self.all(world) {
            wait::until(LIMIT, &format!("{name} has {wanted:?} of {upstream}"), || {
                match client.endpoints(upstream)? {
                    Some(found) if found == wanted => Ok(()),
                    other => Err(format!("{other:?}")),
                }
            });
        }
    }
}

fn grpc_client(world: &World, python: &std::path::Path) -> Process {
    let files = world.ca.workload("shop", "client");
    let metadata = json!({
        "CLUSTER_ID": "a", "NETWORK": "net-a", "NAMESPACE": "shop", "SERVICE_ACCOUNT": "client",
        "INSTANCE_IPS": VISITOR,
    });
    let given = json!({
        "address": world.strait.xds(), "server_name": "strait.strait-system.svc",
        "root": files.root, "certificate": files.certificate, "key": files.key,
        "id": format!("sidecar~{VISITOR}~visitor.shop~shop.svc.cluster.local"), "metadata": metadata,
    });
    let program = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/real/grpc_client.py");
    let mut command = world.topology.hub.command(python);
    command.arg(program).arg(given.to_string());
    Process::spawn(command, &world.folder, "grpc")
}

pub(crate) fn all_clients(world: &mut World, host: &Host) {
    let clients = Clients::start(world, host);
    let gateway = format!("{}:15443", gateway_address("b"));
    let pods = |cluster: &str| {
        let pods = ECHO_PODS.iter().find(|(name, _)| *name == cluster).expect("a cluster of ours");
        pods.1.iter().map(|(_, ip)| format!("{ip}:9000")).collect::<Vec<_>>()
    };
    let here = pods("a");
    let mut echo: Vec<&str> = here.iter().map(String::as_str).collect();
    let at_home = echo.clone();
    echo.push(&gateway);
    clients.agree(world, ECHO, &echo);

    // Consul: an endpoint is added, then another, and one moves.
    if let Some(consul) = &world.consul {
        consul.register("web-1", "10.77.0.1", &json!({}));
        clients.agree(world, CONSUL, &["10.77.0.1:8080"]);
        consul.register("web-2", "10.77.0.2", &json!({}));
        clients.agree(world, CONSUL, &["10.77.0.1:8080", "10.77.0.2:8080"]);
        consul.register("web-2", "10.77.0.3", &json!({}));
        clients.agree(world, CONSUL, &["10.77.0.1:8080", "10.77.0.3:8080"]);
    }

    // Kubernetes: an endpoint becomes unready and is removed, and returns.
    world.set_ready("a", "echo-2", false);
    let fewer: Vec<&str> = echo.iter().copied().filter(|one| *one != "10.10.1.2:9000").collect();
    clients.agree(world, ECHO, &fewer);
    world.set_ready("a", "echo-2", true);
    clients.agree(world, ECHO, &echo);

    // A cluster is removed, and returns.
    world.remove_member();
    wait::until(GRACE + LIMIT, "the cluster is removed", || {
        let clusters = world.strait.try_json("/debug/clusters")?;
        let there = clusters.as_array().into_iter().flatten().any(|entry| entry["id"] == "b");
        if there { Err(clusters.to_string()) } else { Ok(()) }
    });
    clients.agree(world, ECHO, &at_home);
    world.add_member();
    clients.agree(world, ECHO, &echo);

    // The control plane is killed. All clients keep their endpoints, reconnect, and receive
    // changes.
    world.strait.kill();
    clients.agree(world, ECHO, &echo);
    world.strait.launch();
    world.strait.wait_until_ready();
    wait::until(LIMIT, "all pods respond again", || {
        let proxies = world.strait.try_json("/debug/proxies")?;
        let connected = proxies.as_array().map_or(0, Vec::len);
        let wanted = world.dynamic_envoys() + usize::from(clients.grpc.is_some());
        if connected >= wanted { Ok(()) } else { Err(format!("{connected} of {wanted}")) }
    });
    world.set_ready("a", "echo-2", false);
    clients.agree(world, ECHO, &fewer);
    world.set_ready("a", "echo-2", true);
    clients.agree(world, ECHO, &echo);
    if let Some(consul) = &world.consul {
        consul.register("web-2", "10.77.0.4", &json!({}));
        clients.agree(world, CONSUL, &["10.77.0.1:8080", "10.77.0.4:8080"]);
        consul.deregister("web-2");
        consul.reload();
        clients.agree(world, CONSUL, &["10.77.0.1:8080"]);
    }
    assert_eq!(world.complaints(), Vec::<String>::new());
}
