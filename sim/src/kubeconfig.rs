//! What clients need to reach a simulated cluster: a kubeconfig, and the Secret that carries one.
//!
//! Both are written as JSON, which every YAML reader accepts.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

/// A kubeconfig with everything inline: the authority and a bearer token.
pub(crate) fn kubeconfig(id: &str, url: &str, authority_pem: &str, token: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": id,
        "clusters": [{
            "name": id,
            "cluster": {
                "server": url,
                "certificate-authority-data": STANDARD.encode(authority_pem),
            },
        }],
        "users": [{"name": id, "user": {"token": token}}],
        "contexts": [{"name": id, "context": {"cluster": id, "user": id}}],
    })
}

/// The Secret that makes the cluster `id` a member: the data key is its ID, the value its kubeconfig.
pub fn member_secret(namespace: &str, id: &str, kubeconfig: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": format!("strait-cluster-{id}"),
            "namespace": namespace,
            "labels": {"istio/multiCluster": "true"},
        },
        "type": "Opaque",
        "data": {id: STANDARD.encode(kubeconfig)},
    })
}
