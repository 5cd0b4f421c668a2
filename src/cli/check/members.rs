//! The API servers of the members, which `strait check` queries with the credentials in their
//! Secrets.
//!
//! Members are queried at the same time, each for a limited time, so that one that does not respond
//! does not hide the findings about the others.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream;

use crate::cli::cluster::api::{ClusterApi, kubeconfigs};
use crate::cli::failure::CommandFailure;
use strait_kube_client::Loopback;
use strait_sources::clusters::kubeconfig;

/// Maximum time of the requests of one category to one member.
const MEMBER_WAIT: Duration = Duration::from_secs(5);
/// Number of members that are queried at the same time.
const AT_ONCE: usize = 32;

/// A member, and access to its API server or the reason why there is none.
pub(super) struct MemberApi {
    pub(super) id: String,
    api: Result<Arc<ClusterApi>, String>,
}

/// Returns the members whose kubeconfig can be used. The control plane reports the others with their
/// reason.
///
/// # Errors
/// If the Secrets cannot be read.
pub(super) async fn list(
    hub: &ClusterApi,
    namespace: &str,
) -> Result<Vec<MemberApi>, CommandFailure> {
    let mut found = Vec::new();
    for secret in hub.member_secrets(namespace).await? {
        for (id, bytes) in kubeconfigs(&secret) {
            let Ok(access) = kubeconfig::parse(&bytes, None, Loopback::Allowed) else { continue };
            let api = hub.with_access(&access).map(|api| Arc::new(api.named(&id)));
            let api = api.map_err(|failure| failure.message().to_owned());
            found.push(MemberApi { id, api });
        }
    }
    Ok(found)
}

/// Reads from each member, and returns its ID and the response, in the order of the members.
pub(super) async fn read_each<T, F: Future<Output = Result<T, CommandFailure>>>(
    members: &[MemberApi],
    read: impl Fn(Arc<ClusterApi>) -> F,
) -> Vec<(String, Result<T, CommandFailure>)> {
    let reads: Vec<_> = members
        .iter()
        .map(|member| {
            let reading = member.api.clone().map(&read);
            let id = member.id.clone();
            async move { (id, limited(reading).await) }
        })
        .collect();
    stream::iter(reads).buffered(AT_ONCE).collect().await
}

async fn limited<T>(
    reading: Result<impl Future<Output = Result<T, CommandFailure>>, String>,
) -> Result<T, CommandFailure> {
    let reading = reading.map_err(CommandFailure::failed)?;
    let late = |_| {
        let limit = MEMBER_WAIT.as_secs();
        CommandFailure::failed(format!("its API server does not respond within {limit} s"))
    };
    tokio::time::timeout(MEMBER_WAIT, reading).await.map_err(late)?
}
