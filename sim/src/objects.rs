//! Constructors of Kubernetes objects, for tests, demos and the world generator.
//!
//! The objects are plain JSON values: change the fields that a test needs, and pass them to
//! `Store::apply`.

use serde_json::{Value, json};

/// The label that names the Service of a slice.
pub const SERVICE_NAME_LABEL: &str = "kubernetes.io/service-name";
/// The label that names the network of a cluster (on its system namespace), a gateway or a pod.
pub const NETWORK_LABEL: &str = "topology.istio.io/network";
/// The port of an east-west gateway for mTLS traffic from other networks.
pub const GATEWAY_PORT: u16 = 15443;

/// A port of a Service and its target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Port {
    /// Name of the port, which defines the protocol in a mesh.
    pub name: &'static str,
    /// The port of the Service.
    pub port: u16,
    /// The port of the pods.
    pub target: u16,
}

/// Port `http`, 80 to 8080.
pub const HTTP: Port = Port { name: "http", port: 80, target: 8080 };
/// Port `tcp`, 9000 to 9000.
pub const TCP: Port = Port { name: "tcp", port: 9000, target: 9000 };

/// One endpoint of a slice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// IP address of the endpoint.
    pub address: String,
    /// Whether it is ready and serving. No endpoint here is terminating.
    pub ready: bool,
    /// The node of the endpoint.
    pub node: Option<String>,
    /// The zone of the node.
    pub zone: Option<String>,
    /// The pod of the endpoint.
    pub pod: Option<String>,
}

impl Endpoint {
    /// Returns a ready endpoint with only an address.
    pub fn new(address: &str) -> Endpoint {
        Endpoint { address: address.to_owned(), ready: true, node: None, zone: None, pod: None }
    }

    /// Sets the pod of the endpoint.
    #[must_use]
    pub fn with_pod(mut self, pod: &str) -> Endpoint {
        self.pod = Some(pod.to_owned());
        self
    }

    /// Returns the endpoint as in a slice of `namespace`.
    pub(crate) fn to_value(&self, namespace: &str) -> Value {
        let mut endpoint = json!({
            "addresses": [self.address],
            "conditions": {"ready": self.ready, "serving": self.ready, "terminating": false},
        });
        if let Some(node) = &self.node {
            endpoint["nodeName"] = json!(node);
        }
        if let Some(zone) = &self.zone {
            endpoint["zone"] = json!(zone);
        }
        if let Some(pod) = &self.pod {
            endpoint["targetRef"] = json!({"kind": "Pod", "namespace": namespace, "name": pod});
        }
        endpoint
    }
}

/// Returns a namespace.
pub fn namespace(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
}

/// Returns a Service of type ClusterIP that selects the pods with `app: NAME`.
pub fn service(namespace: &str, name: &str, cluster_ip: &str, ports: &[Port]) -> Value {
    let port = |port: &Port| json!({"name": port.name, "protocol": "TCP", "port": port.port, "targetPort": port.target});
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"namespace": namespace, "name": name, "labels": {"app": name}},
        "spec": {
            "type": "ClusterIP",
            "clusterIP": cluster_ip,
            "clusterIPs": [cluster_ip],
            "selector": {"app": name},
            "ports": ports.iter().map(port).collect::<Vec<_>>(),
        },
    })
}

/// Returns a headless Service that selects the pods with `app: NAME`.
pub fn headless_service(namespace: &str, name: &str, ports: &[Port]) -> Value {
    service(namespace, name, "None", ports)
}

/// Returns a ServiceExport of the Service with the same name.
pub fn service_export(namespace: &str, name: &str) -> Value {
    json!({
        "apiVersion": "multicluster.x-k8s.io/v1beta1",
        "kind": "ServiceExport",
        "metadata": {"namespace": namespace, "name": name},
    })
}

/// Returns an IPv4 slice of a Service, named `slice`.
pub fn endpoint_slice(
    namespace: &str,
    service: &str,
    slice: &str,
    ports: &[Port],
    endpoints: &[Endpoint],
) -> Value {
    let port = |port: &Port| json!({"name": port.name, "protocol": "TCP", "port": port.target});
    let endpoints: Vec<_> = endpoints.iter().map(|e| e.to_value(namespace)).collect();
    json!({
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "namespace": namespace,
            "name": slice,
            "labels": {
                SERVICE_NAME_LABEL: service,
                "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io",
            },
        },
        "addressType": "IPv4",
        "ports": ports.iter().map(port).collect::<Vec<_>>(),
        "endpoints": endpoints,
    })
}

/// Returns a running pod of the app `app` in the mesh, with the service account of the same name.
pub fn pod(namespace: &str, name: &str, app: &str, ip: &str, node: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "namespace": namespace,
            "name": name,
            "labels": {
                "app": app,
                "version": "v1",
                "security.istio.io/tlsMode": "istio",
                "service.istio.io/canonical-name": app,
                "service.istio.io/canonical-revision": "v1",
            },
        },
        "spec": {
            "serviceAccountName": app,
            "nodeName": node,
            "containers": [{"name": app, "image": format!("registry.example/{app}:v1")}],
        },
        "status": {
            "phase": "Running",
            "podIP": ip,
            "podIPs": [{"ip": ip}],
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    })
}

/// Returns a node in a region and zone.
pub fn node(name: &str, region: &str, zone: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {
                "kubernetes.io/hostname": name,
                "topology.kubernetes.io/region": region,
                "topology.kubernetes.io/zone": zone,
            },
        },
        "spec": {},
        "status": {"conditions": [{"type": "Ready", "status": "True"}]},
    })
}

/// Returns the Service of an east-west gateway, through which other networks reach `network`.
pub fn gateway_service(
    namespace: &str,
    network: &str,
    cluster_ip: &str,
    external_ip: &str,
) -> Value {
    let port = Port { name: "tls", port: GATEWAY_PORT, target: GATEWAY_PORT };
    let mut gateway = service(namespace, "eastwestgateway", cluster_ip, &[port]);
    gateway["metadata"]["labels"][NETWORK_LABEL] = json!(network);
    gateway["spec"]["type"] = json!("LoadBalancer");
    gateway["status"] = json!({"loadBalancer": {"ingress": [{"ip": external_ip}]}});
    gateway
}

/// Returns the object with an additional label.
#[must_use]
pub fn labelled(mut object: Value, key: &str, value: &str) -> Value {
    object["metadata"]["labels"][key] = json!(value);
    object
}
