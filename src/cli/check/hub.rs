//! Findings of `strait check` that require requests to the config cluster and the members.

use std::time::Duration;

use serde_json::Value;

use super::members::MemberApi;
use super::stray_secrets::strays;
use super::{injection, member_policies, members, roots};
use crate::cli::cluster::api::{ClusterApi, Hub};
use crate::cli::cluster::webhook;
use crate::cli::failure::CommandFailure;
use strait_admin_api::Cluster;

/// Maximum time to read the config cluster if its findings are optional.
const HUB_WAIT: Duration = Duration::from_secs(15);

/// The parts of the config cluster that findings depend on.
struct HubInputs {
    api: ClusterApi,
    secrets: Value,
    members: Vec<MemberApi>,
    uid: Option<String>,
    roots: Result<Option<String>, CommandFailure>,
    published: Option<String>,
}

impl HubInputs {
    async fn of(hub: &Hub) -> Result<Self, CommandFailure> {
        let namespace = &hub.namespace;
        let api = hub.open().await?;
        let secrets = api.get(&format!("/api/v1/namespaces/{namespace}/secrets")).await?;
        let secrets = secrets.unwrap_or_default();
        let members = members::list(&api, namespace).await?;
        let (uid, roots) = (api.uid().await.ok(), api.published_roots(namespace).await);
        let published = webhook::published(&api, namespace).await?;
        Ok(Self { api, secrets, members, uid, roots, published })
    }
}

/// Returns the findings that require requests to the config cluster and the members.
pub(super) async fn findings(
    hub: &Hub,
    is_required: bool,
    clusters: &[Cluster],
) -> Result<Vec<Value>, CommandFailure> {
    let namespace = &hub.namespace;
    let reading = HubInputs::of(hub);
    let read = if is_required {
        reading.await?
    } else {
        let late = |_| CommandFailure::failed("it does not respond");
        tokio::time::timeout(HUB_WAIT, reading).await.map_err(late)??
    };
    let HubInputs { api, secrets, members, uid, roots, published } = read;
    let mut found = strays(&secrets);
    let (roots, policies, webhooks) = tokio::join!(
        roots::gather(roots, &api.context, &members, namespace),
        member_policies::gather((api.server(), uid.as_deref()), &members),
        injection::gather(&api, namespace, &members),
    );
    found.extend(roots::differences(&roots));
    found.extend(policies);
    found.extend(injection::findings(&webhooks, published.as_deref(), clusters));
    Ok(found)
}
