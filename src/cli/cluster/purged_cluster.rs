//! Checks that a context leads to the cluster of a member before objects are removed from it.

use serde_json::Value;

use super::api::{ClusterApi, full_name, kubeconfigs};
use crate::cli::failure::CommandFailure;
use strait_base::codes;
use strait_kube_client::Loopback;
use strait_sources::clusters::kubeconfig;

/// Returns whether a context is known to lead to the member, so that no other cluster loses its reader
/// and gateway. Returns `false` if the clusters cannot be compared, for example because the member's
/// token has expired.
///
/// # Errors
/// If the context leads to another cluster.
async fn is_cluster_of(
    remote: &ClusterApi,
    secrets: &[Value],
    id: &str,
) -> Result<bool, CommandFailure> {
    let access = secrets.iter().find_map(|secret| {
        let (_, bytes) = kubeconfigs(secret).into_iter().find(|(key, _)| key == id)?;
        let access = kubeconfig::parse(&bytes, None, Loopback::Allowed).ok()?;
        Some((secret, access))
    });
    let Some((secret, access)) = access else { return Ok(false) };
    if access.server == *remote.server() {
        return Ok(true);
    }
    match remote.with_access(&access)?.uid().await {
        Ok(uid) if uid == remote.uid().await? => Ok(true),
        Ok(_) => Err(CommandFailure::coded(
            &codes::IDENTITY_CHANGED,
            format!(
                "context {} is not the cluster of secret {}; nothing was changed",
                remote.context,
                full_name(secret)
            ),
        )
        .next(format!("strait cluster remove {id} --purge CONTEXT"))),
        Err(_) => Ok(false),
    }
}

/// Returns a warning for the plan if the clusters of a context and of the member's Secrets cannot be
/// compared; otherwise an empty text.
///
/// # Errors
/// If the context leads to another cluster.
pub(super) async fn compare(
    remote: &ClusterApi,
    secrets: &[Value],
    id: &str,
) -> Result<String, CommandFailure> {
    if secrets.is_empty() || is_cluster_of(remote, secrets, id).await? {
        return Ok(String::new());
    }
    Ok(format!(
        "! check that context {} is cluster {id}: its credential can't be used from here to compare them\n",
        remote.context
    ))
}

/// Refuses a context with the API server of a member with another ID. `command` is the command that
/// the message names.
pub(super) fn refuse_other_member(
    remote: &ClusterApi,
    secrets: &[Value],
    id: &str,
    command: impl Fn(&str, &str) -> String,
) -> Result<(), CommandFailure> {
    for (key, bytes) in secrets.iter().flat_map(kubeconfigs).filter(|(key, _)| key != id) {
        let access = kubeconfig::parse(&bytes, None, Loopback::Allowed);
        if access.is_ok_and(|access| access.server == *remote.server()) {
            let fact = format!(
                "context {} is the cluster of member {key}; nothing was changed",
                remote.context
            );
            return Err(CommandFailure::coded(&codes::IDENTITY_CHANGED, fact)
                .next(command(&key, &remote.context)));
        }
    }
    Ok(())
}
