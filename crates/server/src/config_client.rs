//! One client of the config cluster for all tasks that read or write single objects there.

use std::sync::{Arc, Mutex};

use tokio::sync::watch;

use strait_base::lock::lock;
use strait_kube_client::{Access, AccessError, ApiClient};

/// A client of the config cluster that follows changes of the access. Clones share its connections.
#[derive(Debug, Clone)]
pub(super) struct ConfigClient {
    access: watch::Receiver<Access>,
    /// The client, with the access that it was created for.
    current: Arc<Mutex<Option<(Access, ApiClient)>>>,
}

impl ConfigClient {
    pub(super) fn new(access: watch::Receiver<Access>) -> Self {
        Self { access, current: Arc::default() }
    }

    /// Returns the client for the current access.
    ///
    /// # Errors
    /// If the access is unusable.
    pub(super) fn get(&self) -> Result<ApiClient, AccessError> {
        let access = self.access.borrow().clone();
        let mut current = lock(&self.current);
        if let Some((of, client)) = &*current
            && *of == access
        {
            return Ok(client.clone());
        }
        let client = ApiClient::new(&access)?;
        *current = Some((access, client.clone()));
        Ok(client)
    }

    /// Opens new connections for later requests. For use after a failed request, because nothing
    /// probes the connections of this client.
    pub(super) fn reconnect(&self) {
        *lock(&self.current) = None;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde::de::IgnoredAny;

    use super::*;
    use strait_kube_client::testing::loopback_access;
    use strait_kube_client::{ApiCredential, Redacted};
    use strait_sim::{Options, SimCluster};

    #[tokio::test]
    async fn requests_share_a_connection_until_one_fails_or_the_access_changes() {
        let sim = SimCluster::start("config", Options::default()).await.expect("a free port");
        let access = loopback_access(&sim.url(), sim.certificate_authority(), sim.token());
        let (changed, access) = watch::channel(access);
        let client = ConfigClient::new(access);
        let read = async |client: &ConfigClient| {
            let read = client.get().expect("a sound access");
            let read = read.get::<IgnoredAny>("/api/v1/namespaces").await;
            read.expect("it answers");
            sim.connection_count()
        };
        assert_eq!((read(&client).await, read(&client.clone()).await), (1, 1));
        client.reconnect();
        assert_eq!((read(&client).await, read(&client).await), (2, 2));
        changed.send_modify(|access| {
            access.credential = ApiCredential::Token(Redacted::new(sim.rotate_token()));
        });
        let late = tokio::time::timeout(Duration::from_secs(30), read(&client)).await;
        assert_eq!(late, Ok(3), "the new token is used");
    }
}
