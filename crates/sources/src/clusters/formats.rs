//! Reads Secrets that define members, in Strait's native format and in the formats of other tools.
//!
//! Explicit markers select the format, never the content: the label of Argo CD, the type of Cluster
//! API, or the annotation that names the key of the kubeconfig. A Secret without a marker has the
//! native format. A Secret is read in one format only. Pure.

mod argocd;
mod cluster_profile;
mod object;
#[cfg(test)]
mod tests;

pub(super) use self::object::read_namespaces;
pub use self::object::{
    API_SERVER_ANNOTATION, CLUSTER_ID_ANNOTATION, EXPIRES_ANNOTATION, IDENTITY_ANNOTATION,
    IDENTITY_CLUSTER_ANNOTATION, IdentityChoice, KUBECONFIG_KEY_ANNOTATION, MemberReach,
    PROXY_ANNOTATION, ProxyChoice, READ_NAMESPACES_ANNOTATION, ReadProvider,
    TLS_SERVER_NAME_ANNOTATION,
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

/// The format of a Secret.
enum SecretFormat<'a> {
    ArgoCd,
    ClusterApi,
    /// One kubeconfig, in this data key.
    Key(&'a str),
    Native,
}

impl MemberObject<'_> {
    fn format(&self) -> SecretFormat<'_> {
        if self.secret.labels.get(ARGO_CD_LABEL).is_some_and(|kind| kind == "cluster") {
            return SecretFormat::ArgoCd;
        }
        if self.secret.secret_type == CLUSTER_API_TYPE {
            return SecretFormat::ClusterApi;
        }
        self.annotation(KUBECONFIG_KEY_ANNOTATION).map_or(SecretFormat::Native, SecretFormat::Key)
    }
}

/// Reads every cluster of a Secret. `loopback` decides whether loopback addresses are allowed.
pub(super) fn read(secret: &WatchedSecret, loopback: Loopback) -> Vec<FoundMember> {
    let object = MemberObject { secret, loopback };
    if let Some(profile) = &secret.profile {
        return vec![cluster_profile::read(&object, profile)];
    }
    let label = |name: &str| secret.labels.get(name).map(String::as_str);
    match object.format() {
        SecretFormat::ArgoCd => {
            let name = secret.data.get("name");
            let name = name.and_then(|name| std::str::from_utf8(name.reveal()).ok());
            vec![object.only(name, argocd::read(&object))]
        }
        SecretFormat::ClusterApi => {
            vec![object.only(label(CLUSTER_API_LABEL), object.kubeconfig(CLUSTER_API_KEY))]
        }
        SecretFormat::Key(key) => {
            vec![object.only(label(PROFILE_LABEL).or(Some(key)), object.kubeconfig(key))]
        }
        SecretFormat::Native => native(&object),
    }
}

fn native(object: &MemberObject<'_>) -> Vec<FoundMember> {
    let data = object.secret.data.keys();
    match (object.annotation(CLUSTER_ID_ANNOTATION), object.secret.data.len()) {
        (Some(_), 1) => data.map(|key| object.only(Some(key), object.kubeconfig(key))).collect(),
        (Some(_), count) if count > 1 => {
            let fact = format!("names one ID, and the Secret has {count} kubeconfigs");
            let refusal = object.refused(CLUSTER_ID_ANNOTATION, &fact);
            data.map(|key| (key.clone(), Err(refusal.clone()))).collect()
        }
        _ => data.map(|key| (key.clone(), object.kubeconfig(key))).collect(),
    }
}

/// Returns the data key with the kubeconfig of a usable member. `None` in the format of another
/// tool, which writes the Secret itself and would undo a change.
pub(super) fn kubeconfig_key(secret: &WatchedSecret, id: &str) -> Option<String> {
    let object = MemberObject { secret, loopback: Loopback::Refused };
    match object.format() {
        SecretFormat::ArgoCd | SecretFormat::ClusterApi => None,
        SecretFormat::Key(key) => Some(key.to_owned()),
        SecretFormat::Native => match object.annotation(CLUSTER_ID_ANNOTATION) {
            Some(_) => secret.data.keys().next().cloned(),
            None => Some(id.to_owned()),
        },
    }
}
