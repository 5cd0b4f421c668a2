//! The formats of Secrets that define members: Strait's native format, and those of other tools.
//!
//! Explicit markers select the format, never the content: the label of Argo CD, the type of Cluster
//! API, or the annotation that names the key of the kubeconfig. A Secret without a marker has the
//! native format. A Secret is read in one format only. Pure.

mod argocd;
mod object;
#[cfg(test)]
mod tests;

pub use self::object::{
    API_SERVER_ANNOTATION, CLUSTER_ID_ANNOTATION, EXPIRES_ANNOTATION, IDENTITY_ANNOTATION,
    IDENTITY_CLUSTER_ANNOTATION, IdentityChoice, KUBECONFIG_KEY_ANNOTATION, MemberReach,
    PROXY_ANNOTATION, TLS_SERVER_NAME_ANNOTATION,
};
use self::object::{FoundMember, MemberObject};
use crate::store::WatchedSecret;
use strait_kube_client::Loopback;

/// Marks Argo CD's cluster Secrets, with the value `cluster`.
const ARGO_CD_LABEL: &str = "argocd.argoproj.io/secret-type";
/// The type of Cluster API's Secrets, and the label with the name of their cluster.
const CLUSTER_API_TYPE: &str = "cluster.x-k8s.io/secret";
const CLUSTER_API_LABEL: &str = "cluster.x-k8s.io/cluster-name";
/// The data key of Cluster API's kubeconfig; others contain the path and the token of a copy.
const CLUSTER_API_KEY: &str = "value";
/// The name of the ClusterProfile for which a Secret was written.
const PROFILE_LABEL: &str = "x-k8s.io/cluster-profile";

/// Reads every cluster of a Secret. `loopback` decides whether loopback addresses are allowed.
pub(super) fn read(secret: &WatchedSecret, loopback: Loopback) -> Vec<FoundMember> {
    let object = MemberObject { secret, loopback };
    if secret.labels.get(ARGO_CD_LABEL).is_some_and(|kind| kind == "cluster") {
        let name = secret.data.get("name").and_then(|name| std::str::from_utf8(name.reveal()).ok());
        return vec![object.only(name, argocd::read(&object))];
    }
    if secret.secret_type == CLUSTER_API_TYPE {
        let name = secret.labels.get(CLUSTER_API_LABEL).map(String::as_str);
        return vec![object.only(name, object.kubeconfig(CLUSTER_API_KEY))];
    }
    if let Some(key) = object.annotation(KUBECONFIG_KEY_ANNOTATION) {
        let name = secret.labels.get(PROFILE_LABEL).map(String::as_str);
        return vec![object.only(name.or(Some(key)), object.kubeconfig(key))];
    }
    let data = secret.data.keys();
    match (object.annotation(CLUSTER_ID_ANNOTATION), secret.data.len()) {
        (Some(_), 1) => data.map(|key| object.only(Some(key), object.kubeconfig(key))).collect(),
        (Some(_), count) if count > 1 => {
            let fact = format!("names one ID, and the Secret has {count} kubeconfigs");
            let refusal = object.refused(CLUSTER_ID_ANNOTATION, &fact);
            data.map(|key| (key.clone(), Err(refusal.clone()))).collect()
        }
        _ => data.map(|key| (key.clone(), object.kubeconfig(key))).collect(),
    }
}
