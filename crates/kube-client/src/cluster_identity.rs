//! Checks that the same cluster still responds at an address. A load balancer, a DNS name or a
//! rebuilt cluster can lead to a different cluster without notice. Its objects would look like
//! changes of the previous cluster's.
//!
//! Whenever a reader starts again, the user of this check reports nothing until the UID of
//! `kube-system` has been compared. The check only determines the result; the user acts on it.

use std::time::Duration;

use serde::Deserialize;
use serde_json::json;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::{ApiClient, ApiError};

/// How long a server may fail to report its UID while it responds to readers; after that, the check
/// passes.
const LIMIT: Duration = Duration::from_secs(10);
/// The time limit of the first attempt.
const TRY: Duration = Duration::from_secs(2);
/// The pause between two attempts.
const PAUSE: Duration = Duration::from_millis(500);

/// The number of the last request for the UID, and the UID; `None` if it may not be read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct UidAnswers {
    request_number: u64,
    uid: Option<String>,
}

/// Requests the UID and compares it.
pub struct ClusterIdentityCheck {
    request_number: watch::Sender<u64>,
    found: watch::Receiver<UidAnswers>,
    /// The UID of the cluster that was read first, once known.
    uid: Option<String>,
}

/// Reads the UID for a [`ClusterIdentityCheck`].
pub struct ClusterIdentityProbe {
    request_number: watch::Receiver<u64>,
    found: watch::Sender<UidAnswers>,
}

/// Creates a check and its probe.
pub fn identity_check() -> (ClusterIdentityCheck, ClusterIdentityProbe) {
    let (request_number, requests) = watch::channel(0);
    let (found, answers) = watch::channel(UidAnswers::default());
    (
        ClusterIdentityCheck { request_number, found: answers, uid: None },
        ClusterIdentityProbe { request_number: requests, found },
    )
}

impl ClusterIdentityCheck {
    /// Sets the expected UID.
    pub fn expect(&mut self, uid: Option<&str>) {
        self.uid = uid.map(str::to_owned);
    }

    /// Requests a check, because a different cluster may respond now.
    pub fn request_check(&self) {
        if self.uid.is_some() {
            self.request_number.send_modify(|count| *count += 1);
        }
    }

    /// Whether a check is pending.
    pub fn is_open(&self) -> bool {
        self.found.borrow().request_number < *self.request_number.borrow()
    }

    /// Whether a different cluster was found.
    pub fn is_lost(&self) -> bool {
        let found = self.found.borrow();
        found.uid.is_some() && self.uid.is_some() && found.uid != self.uid
    }

    /// Returns the UID of the cluster that was read first, and of the cluster that responds now.
    pub fn both(&self) -> (Option<String>, Option<String>) {
        (self.uid.clone(), self.found.borrow().uid.clone())
    }

    /// Waits for a result. Never returns if no further result is possible.
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

/// Reads the UID on each request, until the check is dropped.
pub async fn look(client: &ApiClient, mut look: ClusterIdentityProbe) {
    while look.request_number.changed().await.is_ok() {
        let request_number = *look.request_number.borrow_and_update();
        // Boxed, because it is rarely needed.
        let uid = timeout(LIMIT, Box::pin(cluster_uid(client))).await.unwrap_or_default();
        look.found.send_replace(UidAnswers { request_number, uid });
    }
}

/// Reads the UID of the responding cluster once.
///
/// # Errors
/// Every [`ApiError`].
pub async fn kube_system_uid(client: &ApiClient) -> Result<String, ApiError> {
    let namespace = client.get::<UidNamespace>("/api/v1/namespaces/kube-system").await?;
    Ok(namespace.metadata.uid)
}

/// Returns the name of the user to whom the credential of `client` belongs.
///
/// # Errors
/// Every [`ApiError`]; servers before Kubernetes 1.28 have no such request.
pub async fn principal(client: &ApiClient) -> Result<String, ApiError> {
    #[derive(Deserialize)]
    struct Review {
        status: ReviewStatus,
    }
    #[derive(Deserialize)]
    struct ReviewStatus {
        #[serde(rename = "userInfo")]
        user_info: UserInfo,
    }
    #[derive(Deserialize)]
    struct UserInfo {
        username: String,
    }
    let review = json!({ "apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview" });
    let path = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
    let answer: Review = client.create(path, &review).await?;
    Ok(answer.status.user_info.username)
}

/// Reads the UID of the responding cluster, without a time limit. Returns `None` if it may not be
/// read.
pub async fn cluster_uid(client: &ApiClient) -> Option<String> {
    let mut delay = TRY;
    loop {
        match timeout(delay, kube_system_uid(client)).await {
            Ok(Ok(uid)) => return Some(uid),
            Ok(Err(ApiError::Forbidden(_) | ApiError::NotFound(_))) => return None,
            Ok(Err(_)) => sleep(PAUSE).await,
            // The connection may have died while idle, or the server is slow.
            Err(_) => delay *= 2,
        }
    }
}
