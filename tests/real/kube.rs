//! Kubernetes objects of the rig as JSON values, and the requests that write them.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// A request to an API server.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Request {
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) content_type: Option<String>,
    pub(crate) body: Option<Value>,
}

impl Request {
    pub(crate) fn get(path: &str) -> Self {
        Self { method: "GET".into(), path: path.into(), content_type: None, body: None }
    }

    pub(crate) fn delete(path: &str) -> Self {
        Self { method: "DELETE".into(), path: path.into(), content_type: None, body: None }
    }

    /// Returns the server-side apply of `object`. If it has a `status`, a second request writes it
    /// to the status subresource.
    pub(crate) fn apply(object: &Value) -> Vec<Self> {
        let path = path(object);
        let patch = |path: String| Self {
            method: "PATCH".into(),
            path: format!("{path}?fieldManager=rig&force=true"),
            content_type: Some("application/apply-patch+yaml".into()),
            body: Some(object.clone()),
        };
        let mut requests = vec![patch(path.clone())];
        if object.get("status").is_some() {
            requests.push(patch(format!("{path}/status")));
        }
        requests
    }
}

/// Returns the path of an object, from its kind and metadata.
pub(crate) fn path(object: &Value) -> String {
    let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str);
    let version = text("/apiVersion").expect("an object has an apiVersion");
    let group =
        if version.contains('/') { format!("/apis/{version}") } else { format!("/api/{version}") };
    let kind = text("/kind").expect("an object has a kind").to_lowercase();
    let kinds = match kind.strip_suffix('y') {
        Some(stem) if !stem.ends_with('a') => format!("{stem}ies"),
        _ if kind.ends_with("ss") => format!("{kind}es"),
        _ => format!("{kind}s"),
    };
    let namespace =
        text("/metadata/namespace").map(|name| format!("/namespaces/{name}")).unwrap_or_default();
    format!("{group}{namespace}/{kinds}/{}", text("/metadata/name").expect("an object has a name"))
}

pub(crate) fn namespace(name: &str, labels: Value) -> Value {
    json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name, "labels": labels } })
}

/// Returns the definition of a kind of Istio or of the Gateway API, which accepts any content.
pub(crate) fn istio_kind(group: &str, kind: &str, plural: &str) -> Value {
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {
            "name": format!("{plural}.{group}"),
            // API servers require it for groups below k8s.io.
            "annotations": { "api-approved.kubernetes.io": "unapproved, for tests" },
        },
        "spec": {
            "group": group, "scope": "Namespaced",
            "names": { "kind": kind, "plural": plural, "singular": kind.to_lowercase() },
            "versions": [{
                "name": "v1", "served": true, "storage": true,
                "schema": { "openAPIV3Schema": {
                    "type": "object", "x-kubernetes-preserve-unknown-fields": true,
                }},
            }],
        },
    })
}

/// Returns a pod that a kubelet would report as running and ready.
pub(crate) fn pod(
    namespace: &str,
    name: &str,
    service_account: &str,
    ip: &str,
    labels: &Value,
) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": name, "namespace": namespace, "labels": labels },
        "spec": {
            "serviceAccountName": service_account, "nodeName": "node-1", "automountServiceAccountToken": false,
            "containers": [{ "name": "app", "image": "app" }],
        },
        "status": {
            "phase": "Running", "podIP": ip, "podIPs": [{ "ip": ip }],
            "conditions": [{ "type": "Ready", "status": "True" }, { "type": "PodScheduled", "status": "True" }],
        },
    })
}

/// Returns a Service with the given `(name, port, target port)`s.
pub(crate) fn service(namespace: &str, name: &str, vip: &str, ports: &[(&str, u16, u16)]) -> Value {
    let port = |(name, port, target): &(&str, u16, u16)| json!({ "name": name, "port": port, "targetPort": target, "protocol": "TCP" });
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": { "name": name, "namespace": namespace, "labels": { "app": name } },
        "spec": { "clusterIP": vip, "selector": { "app": name }, "ports": ports.iter().map(port).collect::<Vec<_>>() },
    })
}

/// Returns the slice that the endpoint controller would write for `service`, with `(pod, address,
/// ready)`s.
pub(crate) fn endpoint_slice(service: &Value, endpoints: &[(String, String, bool)]) -> Value {
    let (name, namespace) = (&service["metadata"]["name"], &service["metadata"]["namespace"]);
    let ports = service["spec"]["ports"].as_array().expect("a service has ports").iter();
    let ports = ports
        .map(|port| json!({ "name": port["name"], "port": port["targetPort"], "protocol": "TCP" }));
    let endpoint = |(pod, address, ready): &(String, String, bool)| {
        json!({
            "addresses": [address], "nodeName": "node-1",
            "conditions": { "ready": ready, "serving": ready, "terminating": false },
            "targetRef": { "kind": "Pod", "name": pod, "namespace": namespace },
        })
    };
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {
            "name": format!("{}-1", name.as_str().unwrap_or_default()), "namespace": namespace,
            "labels": { "kubernetes.io/service-name": name },
        },
        "addressType": "IPv4",
        "ports": ports.collect::<Vec<_>>(),
        "endpoints": endpoints.iter().map(endpoint).collect::<Vec<_>>(),
    })
}
