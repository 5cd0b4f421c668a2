//! Requests SubjectAccessReviews from an API server (may an account list the Secrets in its
//! namespace?), and caches the results for some time.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::Deserialize;
use serde_json::json;

use strait_identity::SpiffeId;
use strait_kube_client::{ApiClient, ApiError};
use strait_model::ClusterId;

const PATH: &str = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
/// The time limit of one request.
const LIMIT: Duration = Duration::from_secs(5);
/// How long a positive and a negative result are cached.
const YES_COUNTS: Duration = Duration::from_secs(300);
const NO_COUNTS: Duration = Duration::from_secs(60);
/// The pause after a failed request.
const RETRY: Duration = Duration::from_secs(5);
/// Maximum number of cached results.
const ANSWERS_MAX: usize = 4096;

/// The cached results of API servers.
#[derive(Debug, Default)]
pub(super) struct AccessReviews {
    answers: Mutex<HashMap<AccessQuestion, (Instant, bool)>>,
}

/// An account of a member.
type AccessQuestion = (ClusterId, SpiffeId);

/// The result of a review of an account.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ReviewOutcome {
    Allowed,
    Denied,
    /// The API server could not be reached, with the reason.
    Unknown(String),
}

impl ReviewOutcome {
    /// Returns how long the result is valid.
    pub(super) fn counts(&self) -> Duration {
        match self {
            Self::Allowed => YES_COUNTS,
            Self::Denied => NO_COUNTS,
            Self::Unknown(_) => RETRY,
        }
    }
}

#[derive(Deserialize)]
struct AccessAnswer {
    #[serde(default)]
    status: AccessStatus,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct AccessStatus {
    allowed: bool,
}

impl AccessReviews {
    /// Returns whether an account may list the Secrets in its namespace.
    pub(super) async fn review_access(
        &self,
        cluster: &ClusterId,
        client: &ApiClient,
        account: &SpiffeId,
    ) -> ReviewOutcome {
        let question = (cluster.clone(), account.clone());
        let now = Instant::now();
        if let Some((until, allowed)) = self.answers().get(&question).copied()
            && now < until
        {
            return verdict(allowed);
        }
        let (namespace, name) = (account.namespace(), account.service_account());
        let review = json!({
            "apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview",
            "spec": {
                "user": format!("system:serviceaccount:{namespace}:{name}"),
                "groups": [
                    "system:serviceaccounts", format!("system:serviceaccounts:{namespace}"),
                    "system:authenticated",
                ],
                "resourceAttributes": {
                    "verb": "list", "group": "", "version": "v1", "resource": "secrets",
                    "namespace": namespace,
                },
            },
        });
        let request = client.create::<AccessAnswer>(PATH, &review);
        let allowed = match tokio::time::timeout(LIMIT, request).await {
            Ok(Ok(answer)) => answer.status.allowed,
            Ok(Err(error @ ApiError::Forbidden(_))) => {
                return ReviewOutcome::Unknown(format!(
                    "cluster {cluster}: {error}; its reader needs permission to create subjectaccessreviews (authorization.k8s.io)"
                ));
            }
            Ok(Err(error)) => return ReviewOutcome::Unknown(format!("cluster {cluster}: {error}")),
            Err(_) => {
                let fact = format!("cluster {cluster}: no response within {LIMIT:?}");
                return ReviewOutcome::Unknown(fact);
            }
        };
        let mut answers = self.answers();
        if answers.len() >= ANSWERS_MAX {
            answers.retain(|_, (until, _)| now < *until);
        }
        if answers.len() < ANSWERS_MAX {
            answers.insert(question, (now + verdict(allowed).counts(), allowed));
        }
        verdict(allowed)
    }

    /// Removes all cached results.
    #[cfg(test)]
    pub(super) fn forget(&self) {
        self.answers().clear();
    }

    fn answers(&self) -> MutexGuard<'_, HashMap<AccessQuestion, (Instant, bool)>> {
        self.answers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn verdict(allowed: bool) -> ReviewOutcome {
    if allowed { ReviewOutcome::Allowed } else { ReviewOutcome::Denied }
}
