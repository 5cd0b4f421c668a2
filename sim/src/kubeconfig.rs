//! Credentials for clients of a simulated cluster: a kubeconfig, and the Secret that contains one.
//!
//! Both are written as JSON, which is valid YAML.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

/// Returns a kubeconfig with the certificate authority and a bearer token inline.
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

/// Returns the Secret that makes the cluster `id` a member: the data key is its ID, the value its
/// kubeconfig.
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
