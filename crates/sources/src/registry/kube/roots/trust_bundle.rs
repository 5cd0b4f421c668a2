//! The ClusterTrustBundle of the mesh's roots: one object for the whole cluster, which pods can mount
//! instead of the ConfigMap of their namespace.
//!
//! It is written where the API server has the kind. An object without Strait's labels belongs to
//! another controller and stays unchanged. The ConfigMaps stay in any case, because older nodes and
//! agents read them.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::sleep;
use tracing::{debug, info};

use super::state::{TrustBundleState, Writable};
use crate::registry::kube::import_objects::{MANAGED_BY, SET, US};
use strait_base::latest::publish_change;
use strait_kube_client::{ApiClient, ApiError, Backoff, Patch};
use strait_model::{RootBundle, WriterRole};

/// The name of the object. The API server requires that it begins with the name of the signer.
pub(super) const NAME: &str = "strait.dev:mesh:roots";
/// The signer, which pods select.
pub(super) const SIGNER: &str = "strait.dev/mesh";
const GROUP: &str = "certificates.k8s.io";
/// Supported versions, the best one first.
const VERSIONS: &[&str] = &["v1", "v1beta1"];
const PLURAL: &str = "clustertrustbundles";
/// How often a written object is read again, so that a deleted or changed one is restored.
const RECHECK: Duration = Duration::from_secs(300);
/// The interval of requests to a server that does not have the kind.
const ABSENT: Duration = Duration::from_secs(600);
/// The pauses after another failure. Rights that are granted together with the cluster become
/// effective within seconds.
const AGAIN: Backoff = Backoff::new(Duration::from_secs(5), Duration::from_secs(600));

/// Keeps the object up to date. Sets `state` to `None` while it is unknown, or if the API server
/// does not have the kind.
pub(super) async fn run(
    client: &ApiClient,
    bundle: &RootBundle,
    clusterset: &str,
    mut role: watch::Receiver<WriterRole>,
    mut namespaces: watch::Receiver<Writable>,
    state: watch::Sender<Option<TrustBundleState>>,
) {
    // Until then, the API server may be another cluster's.
    if namespaces.wait_for(Option::is_some).await.is_err() {
        return std::future::pending().await;
    }
    let mut again = AGAIN;
    loop {
        let now = *role.borrow_and_update();
        let pause = match now {
            WriterRole::Standby => RECHECK,
            WriterRole::Creates | WriterRole::Writes => {
                // Boxed, so that its memory is released after the write.
                let result = Box::pin(write(client, bundle, clusterset, now)).await;
                let pause = match &result {
                    Ok(_) => {
                        again = AGAIN;
                        RECHECK
                    }
                    Err(ApiError::NotFound(_)) => ABSENT,
                    Err(_) => again.pause(rand::random()),
                };
                publish_change(&state, state_after(result));
                pause
            }
        };
        tokio::select! {
            () = sleep(pause) => {}
            Ok(()) = role.changed() => {}
        }
    }
}

/// Returns the state after an attempt.
fn state_after(result: Result<Option<TrustBundleState>, ApiError>) -> Option<TrustBundleState> {
    match result {
        Ok(state) => state,
        Err(ApiError::NotFound(_)) => None,
        Err(ApiError::Forbidden(fact) | ApiError::Unauthorized(fact)) => {
            debug!(fact, "no permission to write the ClusterTrustBundle");
            Some(TrustBundleState::Denied)
        }
        Err(ApiError::Rejected(fact)) => {
            debug!(%fact, "the API server rejected the ClusterTrustBundle");
            Some(TrustBundleState::Rejected)
        }
        Err(error) => {
            debug!(%error, "cannot write the ClusterTrustBundle; it will be retried");
            None
        }
    }
}

/// Writes the object unless it is current or belongs to another controller.
async fn write(
    client: &ApiClient,
    bundle: &RootBundle,
    clusterset: &str,
    role: WriterRole,
) -> Result<Option<TrustBundleState>, ApiError> {
    let version = client.served(GROUP, VERSIONS, PLURAL).await?;
    let path = format!("/apis/{GROUP}/{version}/{PLURAL}/{NAME}");
    let existing = match client.get::<Value>(&path).await {
        Ok(existing) => Some(existing),
        Err(ApiError::NotFound(_)) => None,
        Err(error) => return Err(error),
    };
    let wanted = object(version, &bundle.pem, clusterset);
    let state = existing.as_ref().map(|existing| compare(existing, &wanted));
    match state {
        Some(Existing::Foreign) => return Ok(Some(TrustBundleState::Foreign)),
        Some(Existing::Current) => return Ok(Some(TrustBundleState::Current)),
        // Another process may be the one to change it.
        Some(Existing::Outdated) if role == WriterRole::Creates => return Ok(None),
        Some(Existing::Outdated) | None => {}
    }
    client.patch::<Value>(&path, Patch::ApplyOwn(US), &wanted).await?;
    info!(server = %client.server(), "ClusterTrustBundle written");
    Ok(Some(TrustBundleState::Current))
}

/// How an existing object relates to the wanted one.
#[derive(Debug, PartialEq, Eq)]
enum Existing {
    Current,
    Outdated,
    Foreign,
}

fn compare(existing: &Value, wanted: &Value) -> Existing {
    let labels =
        |object: &Value| [MANAGED_BY, SET].map(|key| object["metadata"]["labels"][key].clone());
    if labels(existing) != labels(wanted) {
        Existing::Foreign
    } else if existing["spec"] == wanted["spec"] {
        Existing::Current
    } else {
        Existing::Outdated
    }
}

fn object(version: &str, pem: &Arc<str>, clusterset: &str) -> Value {
    json!({
        "apiVersion": format!("{GROUP}/{version}"), "kind": "ClusterTrustBundle",
        "metadata": { "name": NAME, "labels": { MANAGED_BY: US, SET: clusterset } },
        "spec": { "signerName": SIGNER, "trustBundle": **pem },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn object_of_another_controller_or_cluster_set_is_foreign() {
        let wanted = object("v1", &"a".into(), "default");
        assert_eq!(compare(&wanted, &wanted), Existing::Current);
        assert_eq!(compare(&object("v1beta1", &"a".into(), "default"), &wanted), Existing::Current);
        assert_eq!(compare(&object("v1", &"b".into(), "default"), &wanted), Existing::Outdated);
        assert_eq!(compare(&object("v1", &"a".into(), "other"), &wanted), Existing::Foreign);
        let mut foreign = wanted.clone();
        foreign["metadata"]["labels"] = json!({ "more": "x" });
        assert_eq!(compare(&foreign, &wanted), Existing::Foreign);
        let mut labelled = wanted.clone();
        labelled["metadata"]["labels"]["more"] = json!("x");
        assert_eq!(compare(&labelled, &wanted), Existing::Current, "labels of others stay");
    }

    #[test]
    fn name_begins_with_the_signer_as_the_api_server_requires() {
        assert!(NAME.starts_with(&format!("{}:", SIGNER.replace('/', ":"))));
    }
}
