//! The members that exist: whether an ID or an API server is in use, and how a member is limited.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use http::Uri;
use serde_json::Value;

use super::api::{ClusterApi, full_name, holds};
use crate::cli::failure::CommandFailure;
use crate::cli::output::items;
use strait_base::codes;
use strait_kube_client::Loopback;
use strait_model::{ClusterId, ReadNamespaces};
use strait_sources::clusters::formats::READ_NAMESPACES_ANNOTATION;
use strait_sources::clusters::kubeconfig;

/// Rejects the ID of the config cluster. Its control plane has the ID as an argument; if the workload
/// of the chart cannot be read, the control plane refuses the member itself (STR0216).
pub(super) async fn refuse_config_cluster(
    hub: &ClusterApi,
    namespace: &str,
    id: &ClusterId,
) -> Result<(), CommandFailure> {
    for kind in ["deployments", "statefulsets"] {
        let path = format!("/apis/apps/v1/namespaces/{namespace}/{kind}/strait");
        let workload = hub.get(&path).await.ok().flatten().unwrap_or_default();
        if own_id(&workload) == Some(id.as_str()) {
            let fact = format!(
                "{id} is the ID of the config cluster itself (--cluster-id of {namespace}/strait in {}); nothing was changed",
                hub.context
            );
            return Err(CommandFailure::coded(&codes::ID_OF_CONFIG_CLUSTER, fact)
                .next("choose another ID for the member"));
        }
    }
    Ok(())
}

/// Returns the cluster ID in the arguments of a control plane's workload.
fn own_id(workload: &Value) -> Option<&str> {
    let containers = items(&workload["spec"]["template"]["spec"]["containers"]);
    let mut arguments = containers.iter().flat_map(|container| items(&container["args"]));
    arguments.find_map(|argument| argument.as_str()?.strip_prefix("--cluster-id="))
}

/// Rejects an ID that a Secret already contains, and an API server that already belongs to a
/// member.
pub(super) async fn free(
    hub: &ClusterApi,
    namespace: &str,
    id: &ClusterId,
    server: &Uri,
) -> Result<(), CommandFailure> {
    refuse_config_cluster(hub, namespace, id).await?;
    let secrets = hub.member_secrets(namespace).await?;
    if let Some(secret) = secrets.iter().find(|secret| holds(secret, id.as_str())) {
        return Err(CommandFailure::coded(
            &codes::ID_TAKEN,
            format!(
                "cluster ID {id} is already in secret {}; nothing was changed",
                full_name(secret)
            ),
        )
        .next(format!(
            "for a new token: strait cluster rotate {id}\nfor other rights of the reader: repeat the command with --level 1|2|3\nfor another cluster: --name ID"
        )));
    }
    for secret in &secrets {
        let entries = secret["data"].as_object().into_iter().flatten();
        let same = |value: &Value| {
            let text = BASE64.decode(value.as_str().unwrap_or_default()).unwrap_or_default();
            let read = kubeconfig::parse(&text, None, Loopback::Allowed);
            read.is_ok_and(|access| access.server == *server)
        };
        if let Some((other, _)) = entries.into_iter().find(|(_, value)| same(value)) {
            return Err(CommandFailure::coded(
                &codes::SAME_CLUSTER_TWICE,
                format!(
                    "{server} is already the API server of member {other} (secret {}); nothing was changed",
                    full_name(secret)
                ),
            )
            .next(format!(
                "for a new token: strait cluster rotate {other}\nto rename it: strait cluster remove {other}, then add it"
            )));
        }
    }
    Ok(())
}

/// Rejects other namespaces than those to which the Secret of an existing member limits it: the
/// Secret stays unchanged.
pub(super) async fn check_limits(
    hub: &ClusterApi,
    namespace: &str,
    id: &ClusterId,
    namespaces: &ReadNamespaces,
) -> Result<(), CommandFailure> {
    let mut secrets = hub.member_secrets(namespace).await?;
    secrets.retain(|secret| holds(secret, id.as_str()));
    let listed = limits(&secrets);
    if listed == *namespaces {
        return Ok(());
    }
    let (fact, next) = match listed.names() {
        [] => ("is not limited to namespaces".to_owned(), "omit --namespaces".to_owned()),
        names => {
            let names = names.join(",");
            (format!("is limited to the namespaces {names}"), format!("set --namespaces {names}"))
        }
    };
    let annotation = READ_NAMESPACES_ANNOTATION;
    Err(CommandFailure::failed(format!("cluster {id} {fact}; nothing was changed"))
        .next(format!("{next}, or change the annotation {annotation} of its Secret first")))
}

/// Returns the namespaces to which the reader of a member is limited by its Secrets.
pub(super) fn limits(secrets: &[Value]) -> ReadNamespaces {
    let annotation =
        |secret: &Value| secret["metadata"]["annotations"][READ_NAMESPACES_ANNOTATION].clone();
    let listed = |text: Value| ReadNamespaces::of(text.as_str()?.split(',').map(str::trim)).ok();
    secrets.iter().map(annotation).find_map(listed).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::own_id;

    #[test]
    fn id_of_the_config_cluster_is_an_argument_of_its_control_plane() {
        let workload = |args: &[&str]| json!({ "spec": { "template": { "spec": { "containers": [{ "args": args }] } } } });
        assert_eq!(own_id(&workload(&["serve", "--cluster-id=hub"])), Some("hub"));
        assert_eq!(own_id(&workload(&["serve"])), None);
    }
}
