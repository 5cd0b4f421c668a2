//! Requests to pods of a headless service in another network: one Envoy acts as the client's
//! sidecar, as the gateway and as the pods.

use std::net::IpAddr;

use super::*;
use strait_model::testing::member;
use strait_model::{ClusterId, Profile, TlsMode, Workload};

const PODS: [(&str, &str); 2] = [("db-0", "10.0.0.7"), ("db-1", "10.0.0.8")];
/// The number of requests of a client, alternately to each pod.
const REQUESTS: usize = 200;
/// Requests after which a client replaces a connection that may go to a gateway.
const REQUESTS_PER_CONNECTION: usize = 20;

/// Returns a mesh in which the headless service `db` has pods of a StatefulSet in `west`, in network
/// `n2` behind a gateway. They serve the ports of the service at these ports.
fn db_behind_a_gateway(ports: &[Port]) -> Arc<PushContext> {
    let db = || service("db.ns").headless().ports(ports.to_vec());
    let mut west = shard("west", 1).network("n2");
    let mut endpoints = Vec::new();
    for (name, address) in PODS {
        let (key, pod) = workload(&format!("{name}.ns"), address, &[]);
        let profile = Profile { subdomain: Some("db".into()), ..(*pod.profile).clone() };
        for port in ports {
            let TargetPort::Number(target) = port.target else { panic!("a number") };
            endpoints.push(Endpoint {
                workload: Some(Arc::new(key.clone())),
                tls_mode: TlsMode::Istio,
                ..at(address, &port.name, target)
            });
        }
        west = west.pod((key, Workload { profile: Arc::new(profile), ..pod }));
    }
    let gateway = service("gateway.istio").gateway_of("n2", "192.0.2.1");
    let gateway = gateway.with(|it| it.external_addresses.push("2001:db8::1".into()));
    let west = west.with(gateway, vec![]);
    let west = west.with(db(), endpoints).built();
    let mut mesh = mesh();
    let clusters =
        ["east", "west"].map(|id| (ClusterId::from(id), member(None))).into_iter().collect();
    mesh.apply(MeshEvent::Clusters(Arc::new(KnownClusters { clusters })));
    for update in [east(vec![(db(), vec![])]), west] {
        mesh.apply(MeshEvent::Registry(update));
    }
    mesh.apply(MeshEvent::Complete);
    mesh.next_version().expect("a first version").0
}

/// Returns a listener that the Envoy binds at `port`. A header of the PROXY protocol states the
/// destination to which the client connected.
fn entered_at(port: u16, mut listener: Value) -> Value {
    listener["address"] = at_loopback(port);
    listener["bind_to_port"] = true.into();
    listener.as_object_mut().expect("an object").remove("additional_addresses");
    let stated = json!({"name": "envoy.filters.listener.proxy_protocol", "typed_config": {
        "@type": "type.googleapis.com/envoy.extensions.filters.listener.proxy_protocol.v3.ProxyProtocol",
    }});
    let filters = listener["listener_filters"].as_array_mut().expect("filters");
    filters.insert(0, stated);
    listener
}

/// Returns the sidecar of a pod, which responds to every request with the name of the pod.
fn pod_at(port: u16, name: &str) -> Value {
    let respond = json!({"match": {"prefix": "/"}, "direct_response": {"status": 200, "body": {"inline_string": name}}});
    let manager = json!({
        "@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": name,
        "route_config": {"virtual_hosts": [{"name": name, "domains": ["*"], "routes": [respond]}]},
        "http_filters": [{"name": "envoy.filters.http.router", "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router",
        }}],
    });
    let tls = json!({
        "@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext",
        "require_client_certificate": true,
        "common_tls_context": {
            "alpn_protocols": ["h2", "http/1.1"],
            "tls_certificate_sds_secret_configs": [{"name": "default"}],
            "validation_context_sds_secret_config": {"name": "ROOTCA"},
        },
    });
    json!({"name": format!("{name}-{port}"), "address": at_loopback(port), "filter_chains": [{
        "transport_socket": {"name": "envoy.transport_sockets.tls", "typed_config": tls},
        "filters": [{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}],
    }]})
}

/// A connection that the client keeps open for many requests.
struct KeptConnection(tokio::net::TcpStream);

impl KeptConnection {
    /// Connects to a listener as if iptables had redirected a connection to this destination.
    async fn redirected(listener: u16, to: IpAddr, port: u16) -> Self {
        let mut stream = tokio::net::TcpStream::connect(("127.0.0.1", listener)).await.expect("up");
        let (family, from) = if to.is_ipv4() { ("TCP4", "10.0.0.1") } else { ("TCP6", "fd00::1") };
        let head = format!("PROXY {family} {from} {to} 4000 {port}\r\n");
        stream.write_all(head.as_bytes()).await.expect("written");
        Self(stream)
    }

    /// Returns the status and the body of a response.
    async fn get(&mut self) -> (u16, String) {
        let exchange = async {
            self.0.write_all(b"GET / HTTP/1.1\r\nhost: db.ns\r\n\r\n").await.expect("written");
            let mut received = String::new();
            loop {
                let text = received.to_ascii_lowercase();
                let length = text
                    .split_once("content-length: ")
                    .and_then(|(_, rest)| rest.split_once("\r\n")?.0.parse::<usize>().ok());
                if let (Some((head, body)), Some(length)) =
                    (received.split_once("\r\n\r\n"), length)
                    && body.len() == length
                {
                    let status = head.split(' ').nth(1).and_then(|code| code.parse().ok());
                    return (status.expect("a status"), body.to_owned());
                }
                let mut bytes = [0; 4096];
                let count = self.0.read(&mut bytes).await.expect("read");
                assert!(count > 0, "closed after {received:?}");
                received += std::str::from_utf8(&bytes[..count]).expect("text");
            }
        };
        tokio::time::timeout(WAIT_LIMIT, exchange).await.expect("a response")
    }
}

/// Returns the statistics that a client reports about an upstream cluster: connections, requests,
/// and connections over HTTP/2.
async fn reported(envoy: &Running, upstream: &str) -> [usize; 3] {
    let names = ["upstream_cx_total", "upstream_rq_total", "upstream_cx_http2_total"];
    let mut counts = [0; 3];
    for (count, name) in counts.iter_mut().zip(names) {
        *count = usize::try_from(envoy.counter(upstream, name).await).expect("few");
    }
    counts
}

#[tokio::test]
async fn requests_reach_the_selected_pod_in_another_network() {
    for envoy in envoys() {
        let [entry, grpc_entry, gateway_port] = free_ports();
        let served: [[u16; 2]; 2] = [free_ports(), free_ports()];
        let ports = [port("http", 80, 8080), port("grpc", 81, 8081)];
        let context = db_behind_a_gateway(&ports);
        let gateway = Proxy {
            cluster: "west".into(),
            labels: labels(&[("topology.istio.io/network", "n2")]),
            ..router()
        };
        let client = Proxy { addresses: vec![ip("10.0.0.1"), ip("fd00:1::1")], ..client() };
        let of_client = |kind| resources_in("n1", &context, &client, kind);
        let of_gateway = |kind| resources_in("n2", &context, &gateway, kind);
        let mut static_listeners = Vec::new();
        for (name, entry) in [("0.0.0.0_80", entry), ("0.0.0.0_81", grpc_entry)] {
            let listener = of_client(ResourceType::Listener)[name].clone();
            let listener = inlined(&context, &client, listener);
            static_listeners.push(entered_at(entry, listener));
        }
        let mut east_west = of_gateway(ResourceType::Listener)["0.0.0.0_15443"].clone();
        east_west["address"] = at_loopback(gateway_port);
        static_listeners.push(east_west);
        for ((name, _), ports) in PODS.iter().zip(served) {
            static_listeners.extend(ports.map(|port| pod_at(port, name)));
        }
        let mut static_clusters = Vec::new();
        for (name, cluster) in of_client(ResourceType::Cluster) {
            let target = if name.starts_with("remote|") { gateway_port } else { 1 };
            static_clusters.push(static_cluster(cluster, to_loopback(&name, target)));
        }
        for (name, mut cluster) in of_gateway(ResourceType::Cluster) {
            if name.starts_with("outbound_") {
                // Any pod.
                let at_port = usize::from(name.contains("_.81_."));
                let hosts = served
                    .map(|ports| json!({"endpoint": {"address": at_loopback(ports[at_port])}}));
                let all = json!({"cluster_name": name, "endpoints": [{"lb_endpoints": hosts}]});
                cluster = static_cluster(cluster, all);
            } else {
                let mut text = cluster.to_string();
                for ((_, address), ports) in PODS.iter().zip(served) {
                    for (port, target) in [8080, 8081].into_iter().zip(ports) {
                        let own = format!(r#""address":"{address}","port_value":{port}"#);
                        let here = format!(r#""address":"127.0.0.1","port_value":{target}"#);
                        text = text.replace(&own, &here);
                    }
                }
                cluster = serde_json::from_str(&text).expect("JSON");
                assert!(text.contains("127.0.0.1"), "{text}");
            }
            static_clusters.push(cluster);
        }
        let envoy = Running::start(&envoy, &bootstrap(static_listeners, static_clusters)).await;

        let remote = context.remote_pods.of(&host("db.ns")).expect("reached by name");
        let west = &remote.clusters["west"];
        let families = [(true, false), (false, true)];
        let protocols = [(entry, 80), (grpc_entry, 81)];
        let all =
            families.iter().flat_map(|families| protocols.map(|protocol| (*families, protocol)));
        for (families, (entry, number)) in all {
            let [(_, any_pod)] = west.ranges(families).collect::<Vec<_>>()[..] else { panic!() };
            let addresses = west.addresses(families);
            assert_eq!(addresses.len(), PODS.len());
            let upstream = format!("remote|{number}|west|db.ns.svc.cluster.local");
            let before = reported(&envoy, &upstream).await;
            let mut kept = Vec::new();
            for address in &addresses {
                kept.push(KeptConnection::redirected(entry, *address, number).await);
            }
            for at in 0..REQUESTS {
                let expected = (200, PODS[at % 2].0.to_owned());
                assert_eq!(kept[at % 2].get().await, expected, "{number}");
            }
            // The pods share the upstream cluster but no connection.
            let connections = REQUESTS / REQUESTS_PER_CONNECTION;
            let over_http2 = if number == 81 { connections } else { 0 };
            let expected = [connections, REQUESTS, over_http2];
            let reported = reported(&envoy, &upstream).await;
            let counted: [usize; 3] = std::array::from_fn(|at| reported[at] - before[at]);
            assert_eq!(counted, expected, "{upstream}");
            for address in &addresses {
                let pod = format!("{address}.west.outbound_.{number}_._.db.ns.svc.cluster.local");
                let connections = envoy.counter(&pod.replace(':', "_"), "upstream_cx_total").await;
                assert_eq!(connections, 5, "{pod}");
            }
            // Any pod: each connection may end at another one.
            let mut any = KeptConnection::redirected(entry, any_pod, number).await;
            let mut pods = std::collections::BTreeSet::new();
            for _ in 0..2 * REQUESTS_PER_CONNECTION {
                pods.insert(any.get().await.1);
            }
            assert_eq!(pods.len(), PODS.len());
        }
        // The gateway closes connections to pods that do not exist.
        for ((first, _), _) in west.ranges((true, true)) {
            let unknown = match first {
                IpAddr::V4(first) => IpAddr::from((u32::from(first) + 9).to_be_bytes()),
                IpAddr::V6(first) => IpAddr::from((u128::from(first) + 9).to_be_bytes()),
            };
            let mut unknown = KeptConnection::redirected(entry, unknown, 80).await;
            assert_eq!(unknown.get().await.0, 503);
        }
    }
}
