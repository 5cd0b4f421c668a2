//! Whether it is still the same cluster that answers at an address. A load balancer, a DNS name or a rebuilt cluster
//! can lead to another one without notice; its objects would be taken for changes of the old one's.
//!
//! Whenever a reader begins anew, whoever uses this says nothing until the UID of `kube-system` has been compared.
//! Owns the question and the answer; what follows from them is the user's.

use std::time::Duration;

use serde::Deserialize;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::{ApiClient, ApiError};

/// How long a server may fail to report its UID while it answers readers; then it is believed.
const LIMIT: Duration = Duration::from_secs(10);
/// How long the first try may take.
const TRY: Duration = Duration::from_secs(2);
/// The pause between two tries.
const PAUSE: Duration = Duration::from_millis(500);

/// How often the UID was asked for, and what it is; `None` where it may not be read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct UidAnswers {
    asked: u64,
    uid: Option<String>,
}

/// Asks, and compares.
pub struct ClusterIdentityCheck {
    asked: watch::Sender<u64>,
    found: watch::Receiver<UidAnswers>,
    /// The cluster that was read first, once that is known.
    uid: Option<String>,
}

/// Finds out what [`ClusterIdentityCheck`] asks.
pub struct ClusterIdentityProbe {
    asked: watch::Receiver<u64>,
    found: watch::Sender<UidAnswers>,
}

/// The question and whoever answers it.
pub fn identity_check() -> (ClusterIdentityCheck, ClusterIdentityProbe) {
    let (asked, seen) = watch::channel(0);
    let (found, answers) = watch::channel(UidAnswers::default());
    (
        ClusterIdentityCheck { asked, found: answers, uid: None },
        ClusterIdentityProbe { asked: seen, found },
    )
}

impl ClusterIdentityCheck {
    /// From here on it has to be the cluster with this UID.
    pub fn expect(&mut self, uid: Option<&str>) {
        self.uid = uid.map(str::to_owned);
    }

    /// Somebody may answer who didn't before.
    pub fn doubt(&self) {
        if self.uid.is_some() {
            self.asked.send_modify(|count| *count += 1);
        }
    }

    /// Whether it is open who answers.
    pub fn is_open(&self) -> bool {
        self.found.borrow().asked < *self.asked.borrow()
    }

    /// Whether another cluster was found.
    pub fn is_lost(&self) -> bool {
        let found = self.found.borrow();
        found.uid.is_some() && self.uid.is_some() && found.uid != self.uid
    }

    /// The cluster that was read first, and the one that answers now.
    pub fn both(&self) -> (Option<String>, Option<String>) {
        (self.uid.clone(), self.found.borrow().uid.clone())
    }

    /// Waits for an answer; for ever where none can come any more.
    pub async fn answered(&mut self) {
        if self.found.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

#[derive(Deserialize)]
struct UidNamespace {
    metadata: UidMetadata,
}

#[derive(Deserialize)]
struct UidMetadata {
    uid: String,
}

/// Answers for as long as anybody asks.
pub async fn look(client: &ApiClient, mut look: ClusterIdentityProbe) {
    while look.asked.changed().await.is_ok() {
        let asked = *look.asked.borrow_and_update();
        // Apart: it is asked hardly ever.
        let uid = timeout(LIMIT, Box::pin(cluster_uid(client))).await.unwrap_or_default();
        look.found.send_replace(UidAnswers { asked, uid });
    }
}

/// The UID of the cluster that answers, however long that takes; `None` where it may not be read.
pub async fn cluster_uid(client: &ApiClient) -> Option<String> {
    let mut delay = TRY;
    loop {
        let asked = client.get::<UidNamespace>("/api/v1/namespaces/kube-system");
        match timeout(delay, asked).await {
            Ok(Ok(namespace)) => return Some(namespace.metadata.uid),
            Ok(Err(ApiError::Forbidden(_) | ApiError::NotFound(_))) => return None,
            Ok(Err(_)) => sleep(PAUSE).await,
            // The connection may have died while nobody used it, or the server is slow.
            Err(_) => delay *= 2,
        }
    }
}
