//! A test of the rig without Strait: hand-written Envoy configurations carry mTLS from a sidecar in
//! one network through the gateway of another to a sidecar there. If it fails, the network is at
//! fault, not the product.

use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use serde_json::{Value, json};

use crate::certs::{Authority, Files};
use crate::envoy::Envoy;
use crate::helper::{Answers, Load};
use crate::host::Host;
use crate::netns::Netns;
use crate::process::Process;
use crate::topology::Topology;

const SNI: &str = "outbound_.9000_._.echo.shop.svc.cluster.local";
const LIVE: Duration = Duration::from_secs(20);

pub(crate) fn run(host: &Host) {
    let topology = Topology::create("check");
    let ca = Authority::create(&host.subfolder("check-ca"), "rig check");
    let client = topology.pod("a", "client", "10.10.0.10");
    let server = topology.pod("b", "server", "10.10.1.1");
    let gateway = topology.gateway("b");
    let _echo = echo(host, &server, "server", "b");

    let mut envoys = [
        start(host, &client, "check-client", sidecar_out(&ca.workload("shop", "client"))),
        start(host, &gateway, "check-gateway", gateway_passthrough()),
        start(host, &server, "check-server", sidecar_in(&ca.workload("shop", "echo"))),
    ];
    for envoy in &mut envoys {
        envoy.wait_until_live(LIVE);
    }

    let answers = run_load(&client, &Load::tcp("10.91.0.10:9000", 20));
    assert_eq!(answers.by.get("b/server"), Some(&20), "{answers:?}");
    let handshakes = envoys[2].stats("ssl.handshake");
    assert!(handshakes.values().sum::<u64>() >= 20, "the server saw mTLS: {handshakes:?}");

    // The other network uses the same address without a pod, so the request reached the correct
    // network.
    let stranger = topology.pod("a", "stranger", "10.10.1.1");
    let direct = run_load(&stranger, &Load::tcp("10.10.0.10:9000", 1));
    assert!(direct.by.is_empty(), "{direct:?}");
}

/// Runs a load inside a namespace to its end.
pub(crate) fn run_load(netns: &Netns, load: &Load) -> Answers {
    let specification = serde_json::to_string(load).expect("plain values");
    serde_json::from_value(netns.helper(&["load", &specification], ""))
        .expect("the output of the helper")
}

/// Starts the echo server in a namespace.
pub(crate) fn echo(host: &Host, netns: &Netns, name: &str, cluster: &str) -> Process {
    let command = netns.helper_command(&["echo", name, cluster]);
    listening(Process::spawn(command, &host.subfolder("echo"), &format!("{cluster}-{name}")))
}

/// Waits until a server of the rig listens.
pub(crate) fn listening(process: Process) -> Process {
    crate::wait::until(LIVE, "the server listens", || {
        process.stdout().contains("listening").then_some(()).ok_or_else(|| process.log_end())
    });
    process
}

/// Starts an Envoy with a static configuration.
pub(crate) fn start(host: &Host, netns: &Rc<Netns>, name: &str, configuration: Value) -> Envoy {
    let file: PathBuf = host.subfolder("bootstrap").join(format!("{name}.json"));
    std::fs::write(&file, configuration.to_string()).unwrap();
    Envoy::start(host, netns, name, &file)
}

fn sidecar_out(files: &Files) -> Value {
    let mut tls = tls_context(files);
    tls["@type"] =
        "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext".into();
    tls["sni"] = SNI.into();
    tls["common_tls_context"]["alpn_protocols"] = json!(["istio"]);
    let cluster = json!({
        "name": "out", "type": "STATIC", "connect_timeout": "5s",
        "load_assignment": assignment("out", crate::topology::gateway_address("b"), 15443),
        "transport_socket": { "name": "tls", "typed_config": tls },
    });
    bootstrap(listener(15001, "original_dst", json!({}), "out", None), cluster)
}

fn gateway_passthrough() -> Value {
    let cluster = json!({
        "name": "to-pod", "type": "STATIC", "connect_timeout": "5s",
        "load_assignment": assignment("to-pod", "10.10.1.1", 9000),
    });
    let matches = json!({ "server_names": [SNI], "application_protocols": ["istio"] });
    bootstrap(listener(15443, "tls_inspector", matches, "to-pod", None), cluster)
}

/// Accepts mTLS with the certificate in `files`, and forwards requests to the application.
pub(crate) fn sidecar_in(files: &Files) -> Value {
    let mut tls = tls_context(files);
    tls["@type"] =
        "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext".into();
    tls["require_client_certificate"] = true.into();
    tls["common_tls_context"]["alpn_protocols"] = json!(["istio"]);
    let cluster = json!({
        "name": "app", "type": "ORIGINAL_DST", "lb_policy": "CLUSTER_PROVIDED", "connect_timeout": "5s",
        "upstream_bind_config": { "source_address": { "address": "127.0.0.6", "port_value": 0 } },
    });
    bootstrap(listener(15006, "original_dst", json!({}), "app", Some(tls)), cluster)
}

fn bootstrap(listener: Value, cluster: Value) -> Value {
    json!({
        "admin": { "address": socket("127.0.0.1", 15000) },
        "static_resources": { "listeners": [listener], "clusters": [cluster] },
    })
}

fn listener(port: u16, filter: &str, matches: Value, cluster: &str, tls: Option<Value>) -> Value {
    let filter_type = match filter {
        "original_dst" => {
            "type.googleapis.com/envoy.extensions.filters.listener.original_dst.v3.OriginalDst"
        }
        _ => "type.googleapis.com/envoy.extensions.filters.listener.tls_inspector.v3.TlsInspector",
    };
    let mut chain = json!({
        "filter_chain_match": matches,
        "filters": [{ "name": "tcp", "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy",
            "stat_prefix": "tcp", "cluster": cluster,
        }}],
    });
    if let Some(tls) = tls {
        chain["transport_socket"] = json!({ "name": "tls", "typed_config": tls });
    }
    json!({
        "name": "in", "address": socket("0.0.0.0", port),
        "listener_filters": [{ "name": filter, "typed_config": { "@type": filter_type } }],
        "filter_chains": [chain],
    })
}

fn tls_context(files: &Files) -> Value {
    let file = |path: &PathBuf| json!({ "filename": path });
    json!({ "common_tls_context": {
        "tls_certificates": [{ "certificate_chain": file(&files.certificate), "private_key": file(&files.key) }],
        "validation_context": { "trusted_ca": file(&files.root) },
    }})
}

fn assignment(name: &str, address: &str, port: u16) -> Value {
    json!({
        "cluster_name": name,
        "endpoints": [{ "lb_endpoints": [{ "endpoint": { "address": socket(address, port) } }] }],
    })
}

fn socket(address: &str, port: u16) -> Value {
    json!({ "socket_address": { "address": address, "port_value": port } })
}
