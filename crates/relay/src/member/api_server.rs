//! The API server of the relay's cluster: one client for the current credential.

use std::sync::Mutex;

use serde::Deserialize;
use strait_base::lock::lock;
use strait_kube_client::{Access, AccessError, ApiClient, ApiError, kube_system_uid};
use tokio::sync::watch;
use tracing::warn;

/// The API server of the relay's cluster. Requests use the newest credential.
pub(super) struct ApiServer {
    access: watch::Receiver<Access>,
    current: Mutex<(Access, ApiClient)>,
}

/// The facts about the cluster that a relay reports; empty if they could not be read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct OwnClusterFacts {
    /// The UID of the namespace `kube-system`.
    pub(super) uid: String,
    /// The version of Kubernetes.
    pub(super) version: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct VersionResponse {
    git_version: String,
}

impl ApiServer {
    /// Creates a client. No request is sent.
    ///
    /// # Errors
    /// Fails if the access is unusable, independent of the server.
    pub(super) fn new(access: watch::Receiver<Access>) -> Result<Self, AccessError> {
        let first = access.borrow().clone();
        let client = ApiClient::new(&first)?;
        Ok(Self { access, current: Mutex::new((first, client)) })
    }

    /// Returns a client with the current credential.
    pub(super) fn client(&self) -> ApiClient {
        let mut current = lock(&self.current);
        let newest = self.access.borrow();
        if *newest != current.0 {
            match ApiClient::new(&newest) {
                Ok(client) => *current = (newest.clone(), client),
                Err(error) => {
                    warn!(%error, "the new credential is unusable; the last one stays in use");
                }
            }
        }
        current.1.clone()
    }

    /// Returns the UID of the cluster.
    pub(super) async fn uid(&self) -> Result<String, ApiError> {
        kube_system_uid(&self.client()).await
    }

    /// Returns the facts that a relay reports.
    pub(super) async fn facts(&self) -> OwnClusterFacts {
        let client = self.client();
        let (uid, version) = tokio::join!(self.uid(), client.get::<VersionResponse>("/version"));
        OwnClusterFacts {
            uid: uid.unwrap_or_default(),
            version: version.map(|version| version.git_version).unwrap_or_default(),
        }
    }
}
