//! The content of the demo's clusters as plain values. The simulated API servers are filled from
//! this description, and [`super::expected`] computes the expected endpoints from it.
//!
//! There are two networks with the same pod addresses. The first cluster of each network contains
//! its east-west gateway and a client with a proxy; each further cluster joins either network.

use std::net::Ipv4Addr;

use serde_json::Value;

use strait_sim::objects;

/// The system namespace of every cluster.
pub(super) const SYSTEM: &str = "strait-system";
/// The namespace of the applications.
pub(super) const SHOP: &str = "shop";
/// The client pod of a network, also its service account.
pub(super) const CLIENT: &str = "client";
/// The gateway pod of a network, also its Service and service account.
pub(super) const GATEWAY: &str = "eastwestgateway";
/// The networks; clusters alternate between them.
pub(super) const NETWORKS: [&str; 2] = ["n1", "n2"];

/// All clusters.
#[derive(Debug, Clone)]
pub(super) struct World {
    pub(super) clusters: Vec<DemoCluster>,
}

/// One Kubernetes cluster.
#[derive(Debug, Clone)]
pub(super) struct DemoCluster {
    pub(super) id: String,
    pub(super) network: &'static str,
    /// Gateway and client, which only the first cluster of a network has.
    pub(super) edge: Option<Edge>,
    pub(super) services: Vec<DemoService>,
}

/// The gateway of a network, and a client in it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Edge {
    /// Address at which other networks reach the gateway.
    pub(super) gateway: Ipv4Addr,
    /// The gateway's address in its own network.
    pub(super) gateway_pod: Ipv4Addr,
    /// The client's address.
    pub(super) client: Ipv4Addr,
}

/// A Service with one port, and its pods.
#[derive(Debug, Clone)]
pub(super) struct DemoService {
    pub(super) name: &'static str,
    pub(super) port: objects::Port,
    pub(super) vip: Ipv4Addr,
    pub(super) pods: Vec<DemoPod>,
}

/// A pod of a Service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct DemoPod {
    pub(super) name: String,
    pub(super) address: Ipv4Addr,
    pub(super) ready: bool,
    /// Whether the pod has a sidecar that accepts mTLS.
    pub(super) mtls: bool,
}

const WEB: objects::Port = objects::HTTP;
const DB: objects::Port = objects::Port { name: "tcp", port: 5432, target: 5432 };
/// Any name is sufficient, because the demo shows no localities.
const NODE: &str = "node-1";

impl World {
    /// Creates `count` clusters: `east`, `west`, `c3`, `c4`, ...
    pub(super) fn new(count: u8) -> Self {
        Self { clusters: (0..count).map(DemoCluster::new).collect() }
    }

    /// Returns every cluster with a gateway and a client: one for each network.
    pub(super) fn edges(&self) -> impl Iterator<Item = (&DemoCluster, Edge)> {
        self.clusters.iter().filter_map(|cluster| Some((cluster, cluster.edge?)))
    }

    /// Makes a pod ready or unready. Returns the new EndpointSlice.
    pub(super) fn set_ready(&mut self, cluster: &str, pod: &str, ready: bool) -> Value {
        let services = self.clusters.iter_mut().filter(|one| one.id == cluster);
        for service in services.flat_map(|cluster| &mut cluster.services) {
            if let Some(found) = service.pods.iter_mut().find(|one| one.name == pod) {
                found.ready = ready;
                return service.slice();
            }
        }
        unreachable!("the demo names only pods that it made")
    }
}

impl DemoCluster {
    fn new(index: u8) -> Self {
        let id = match index {
            0 => "east".to_owned(),
            1 => "west".to_owned(),
            _ => format!("c{}", index + 1),
        };
        // Clusters of one network share its address space, so each uses a part of it. Both networks
        // have the same address space.
        let (network, part) = (index % 2, index / 2);
        let pod = |host| Ipv4Addr::new(10, 1, part, host);
        let web = 0..if index == 0 { 3 } else { 2 };
        let mut services = vec![DemoService {
            name: "web",
            port: WEB,
            vip: Ipv4Addr::new(10, 96, 0, 10),
            pods: web.map(|n| DemoPod::new("web", n, pod(11 + n))).collect(),
        }];
        if index == 1 {
            let mut pods: Vec<_> = (0..3).map(|n| DemoPod::new("db", n, pod(21 + n))).collect();
            pods[1].ready = false;
            pods[2].mtls = false;
            services.push(DemoService {
                name: "db",
                port: DB,
                vip: Ipv4Addr::new(10, 96, 0, 20),
                pods,
            });
        }
        let edge = (part == 0).then(|| Edge {
            gateway: Ipv4Addr::new(172, 30, 0, 11 + 10 * network),
            gateway_pod: pod(2),
            client: pod(3),
        });
        Self { id, network: NETWORKS[usize::from(network)], edge, services }
    }

    /// Returns all objects of the cluster's API server.
    pub(super) fn objects(&self) -> Vec<Value> {
        let system = objects::namespace(SYSTEM);
        let mut all = vec![
            // This label assigns a cluster to a network.
            objects::labelled(system, objects::NETWORK_LABEL, self.network),
            objects::namespace(SHOP),
        ];
        if let Some(edge) = self.edge {
            let (vip, address) = ("10.96.0.2", edge.gateway.to_string());
            all.push(objects::gateway_service(SYSTEM, self.network, vip, &address));
            for (namespace, name, address) in
                [(SYSTEM, GATEWAY, edge.gateway_pod), (SHOP, CLIENT, edge.client)]
            {
                all.push(objects::pod(namespace, name, name, &address.to_string(), NODE));
            }
        }
        for service in &self.services {
            let vip = service.vip.to_string();
            all.push(objects::service(SHOP, service.name, &vip, &[service.port]));
            all.extend(service.pods.iter().map(|pod| pod.object(service.name)));
            all.push(service.slice());
        }
        all
    }
}

impl DemoService {
    /// Returns the short name of the service, `name.namespace:port`.
    pub(super) fn title(&self) -> String {
        format!("{}.{SHOP}:{}", self.name, self.port.port)
    }

    /// Returns the full host name of the service.
    pub(super) fn hostname(&self) -> String {
        format!("{}.{SHOP}.svc.cluster.local", self.name)
    }

    fn slice(&self) -> Value {
        let endpoint = |pod: &DemoPod| objects::Endpoint {
            ready: pod.ready,
            ..objects::Endpoint::new(&pod.address.to_string()).with_pod(&pod.name)
        };
        let endpoints: Vec<_> = self.pods.iter().map(endpoint).collect();
        objects::endpoint_slice(SHOP, self.name, self.name, &[self.port], &endpoints)
    }
}

impl DemoPod {
    fn new(app: &str, index: u8, address: Ipv4Addr) -> Self {
        Self { name: format!("{app}-{}", index + 1), address, ready: true, mtls: true }
    }

    fn object(&self, app: &str) -> Value {
        let pod = objects::pod(SHOP, &self.name, app, &self.address.to_string(), NODE);
        if self.mtls {
            return pod;
        }
        objects::labelled(pod, "security.istio.io/tlsMode", "disabled")
    }
}
