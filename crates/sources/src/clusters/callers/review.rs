//! Requests TokenReviews from an API server, with limits, and caches the results for a short time.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use ring::digest;
use serde::Deserialize;
use serde_json::json;
use tokio::sync::{OnceCell, Semaphore};

use strait_base::codes;
use strait_identity::SpiffeId;
use strait_identity::caller::CallerRefusal;
use strait_identity::token::{TokenClaims, TokenPod};
use strait_kube_client::{ApiClient, ApiError};
use strait_model::ClusterId;

/// The known pods and accounts of members.
pub trait RunningPods: std::fmt::Debug + Send + Sync {
    /// Whether a member is known to have exactly this pod, running as that account.
    fn has_pod(&self, cluster: &ClusterId, id: &SpiffeId, pod: &TokenPod) -> bool;

    /// Whether a pod of a member, or a machine that belongs to it, is known to run as that account.
    fn has_account(&self, cluster: &ClusterId, id: &SpiffeId) -> bool;

    /// The namespace whose policies apply to the whole mesh; `None` before the mesh config is known.
    fn root_namespace(&self) -> Option<String>;
}

const PATH: &str = "/apis/authentication.k8s.io/v1/tokenreviews";
/// The time limit of one request.
const LIMIT: Duration = Duration::from_secs(5);
/// Maximum concurrent requests to one API server, and maximum requests per second.
const IN_FLIGHT_MAX: usize = 16;
const PER_SECOND: f64 = 50.0;
/// How long a positive result is cached (at most until the token expires), and a negative one.
const YES_COUNTS: Duration = Duration::from_secs(60);
const NO_COUNTS: Duration = Duration::from_secs(5);
/// Maximum number of cached results.
const ANSWERS_MAX: usize = 16_384;

/// The group of all service accounts.
const GROUP: &str = "system:serviceaccounts";
/// The field in which API servers name the pod of an account.
const POD_UID: &str = "authentication.kubernetes.io/pod-uid";

/// The results and pending reviews of all members.
#[derive(Debug, Default)]
pub(super) struct Reviews {
    answers: Mutex<HashMap<Question, Answer>>,
    /// Pending reviews: a further call with the same token waits for the same result.
    flights: Mutex<HashMap<Question, Arc<Flight>>>,
    members: Mutex<BTreeMap<ClusterId, Arc<MemberPermits>>>,
}

/// The SHA-256 of a cluster and a token.
type Question = [u8; 32];

/// The result of a review: `Err` with the API server's reason for the rejection.
type Verdict = Result<(), Arc<str>>;

/// The result of a pending review, once it arrives; an error if the API server could not be
/// reached.
type Flight = OnceCell<Result<Verdict, CallerRefusal>>;

/// A cached result and its expiry.
#[derive(Debug)]
struct Answer {
    until: Instant,
    verdict: Verdict,
    pod: Option<ReviewedPod>,
}

/// The pod that a token is bound to.
#[derive(Debug, Clone)]
pub(super) struct ReviewedPod {
    cluster: ClusterId,
    id: SpiffeId,
    pod: TokenPod,
    /// Whether it was known at some time: then it no longer exists once it is unknown.
    was_seen: bool,
}

impl ReviewedPod {
    /// Looks up the pod of this cluster and account.
    pub(super) fn new(
        (cluster, id, pod): (ClusterId, SpiffeId, TokenPod),
        pods: &dyn RunningPods,
    ) -> Self {
        let mut reviewed = Self { cluster, id, pod, was_seen: false };
        reviewed.has_gone(pods);
        reviewed
    }

    /// Whether it was known once, and is no longer.
    fn has_gone(&mut self, pods: &dyn RunningPods) -> bool {
        let exists = pods.has_pod(&self.cluster, &self.id, &self.pod);
        self.was_seen |= exists;
        self.was_seen && !exists
    }
}

/// A call that waits for a review, possibly together with others.
struct WaitingReview<'a> {
    reviews: &'a Reviews,
    question: Question,
    flight: Arc<Flight>,
}

impl Drop for WaitingReview<'_> {
    fn drop(&mut self) {
        let mut flights = self.reviews.flights.lock().unwrap_or_else(PoisonError::into_inner);
        // References: the map's and this one. No other call waits.
        if Arc::strong_count(&self.flight) <= 2 {
            flights.remove(&self.question);
        }
    }
}

/// The request limits of one API server.
#[derive(Debug)]
struct MemberPermits {
    in_flight: Arc<Semaphore>,
    bucket: Mutex<(f64, Instant)>,
}

#[derive(Deserialize)]
struct ReviewAnswer {
    status: ReviewStatus,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct ReviewStatus {
    authenticated: bool,
    error: String,
    user: ReviewedUser,
    audiences: Option<Vec<String>>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct ReviewedUser {
    username: String,
    groups: Option<Vec<String>>,
    extra: Option<HashMap<String, Vec<String>>>,
}

impl Reviews {
    /// Returns whether the API server of `cluster` accepts a token with `claims` for any of the
    /// audiences.
    ///
    /// # Errors
    /// Fails if the API server rejects the token or cannot be reached now.
    pub(super) async fn review_token(
        &self,
        cluster: &ClusterId,
        client: &ApiClient,
        token: &str,
        claims: &TokenClaims,
        audiences: &[String],
        pod: Option<ReviewedPod>,
    ) -> Result<(), CallerRefusal> {
        let question = question(cluster, token);
        let refused = |why: &str| {
            let reason = format!("the API server of {cluster} rejects it: {why}");
            CallerRefusal::unauthenticated(&codes::TOKEN_REFUSED, reason)
        };
        if let Some(verdict) = self.answer(&question) {
            return verdict.map_err(|why| refused(&why));
        }
        let review = async {
            let verdict = self.review(cluster, client, token, claims, audiences).await?;
            self.note(question, &verdict, claims, pod);
            Ok(verdict)
        };
        self.once(question, review).await?.map_err(|why| refused(&why))
    }

    /// Returns the result of a review. If several calls need the same review, the first sends it
    /// for all of them.
    async fn once(
        &self,
        question: Question,
        review: impl Future<Output = Result<Verdict, CallerRefusal>>,
    ) -> Result<Verdict, CallerRefusal> {
        let flight = {
            let mut flights = self.flights.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(flights.entry(question).or_default())
        };
        let waiting = WaitingReview { reviews: self, question, flight };
        waiting.flight.get_or_init(|| review).await.clone()
    }

    /// Sends the review to the API server.
    async fn review(
        &self,
        cluster: &ClusterId,
        client: &ApiClient,
        token: &str,
        claims: &TokenClaims,
        audiences: &[String],
    ) -> Result<Verdict, CallerRefusal> {
        let permits = self.permits(cluster);
        let busy = || {
            CallerRefusal::unchecked(format!(
                "the limit of token reviews for the API server of {cluster} is reached"
            ))
        };
        let _permit = permits.in_flight.try_acquire().map_err(|_| busy())?;
        if !permits.take(Instant::now()) {
            return Err(busy());
        }
        let review = json!({
            "apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview",
            "spec": { "token": token, "audiences": audiences },
        });
        let request = client.create::<ReviewAnswer>(PATH, &review);
        let status = match tokio::time::timeout(LIMIT, request).await {
            Ok(Ok(review)) => review.status,
            Ok(Err(error @ ApiError::Forbidden(_))) => {
                return Err(CallerRefusal::unchecked(format!(
                    "the API server of {cluster}: {error}; grant its reader the right: \
                     strait cluster add CONTEXT --name {cluster} --tokens"
                )));
            }
            Ok(Err(error)) => {
                return Err(CallerRefusal::unchecked(format!("cluster {cluster}: {error}")));
            }
            Err(_) => {
                return Err(CallerRefusal::unchecked(format!(
                    "cluster {cluster}: no response within {LIMIT:?}"
                )));
            }
        };
        Ok(status.verdict(claims, audiences))
    }

    fn answer(&self, question: &Question) -> Option<Verdict> {
        let answers = self.answers();
        let answer = answers.get(question)?;
        (Instant::now() < answer.until).then(|| answer.verdict.clone())
    }

    /// Removes the results whose pods no longer exist.
    pub(super) fn forget_gone(&self, pods: &dyn RunningPods) {
        let has_pod =
            |answer: &mut Answer| !answer.pod.as_mut().is_some_and(|pod| pod.has_gone(pods));
        self.answers().retain(|_, answer| has_pod(answer));
    }

    fn note(
        &self,
        question: Question,
        verdict: &Verdict,
        claims: &TokenClaims,
        pod: Option<ReviewedPod>,
    ) {
        let remaining = claims.expires.duration_since(SystemTime::now()).unwrap_or_default();
        let lifetime = if verdict.is_ok() { YES_COUNTS.min(remaining) } else { NO_COUNTS };
        let now = Instant::now();
        let mut answers = self.answers();
        if answers.len() >= ANSWERS_MAX {
            answers.retain(|_, answer| now < answer.until);
        }
        if answers.len() >= ANSWERS_MAX {
            // All results are at most a minute old: callers that return are reviewed again.
            answers.clear();
        }
        answers.insert(question, Answer { until: now + lifetime, verdict: verdict.clone(), pod });
    }

    fn permits(&self, cluster: &ClusterId) -> Arc<MemberPermits> {
        let mut members = self.members.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(members.entry(cluster.clone()).or_insert_with(|| {
            let bucket = Mutex::new((PER_SECOND, Instant::now()));
            Arc::new(MemberPermits { in_flight: Arc::new(Semaphore::new(IN_FLIGHT_MAX)), bucket })
        }))
    }

    fn answers(&self) -> MutexGuard<'_, HashMap<Question, Answer>> {
        self.answers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl MemberPermits {
    fn take(&self, now: Instant) -> bool {
        let mut bucket = self.bucket.lock().unwrap_or_else(PoisonError::into_inner);
        let (tokens, filled_at) = *bucket;
        let filled = tokens + now.saturating_duration_since(filled_at).as_secs_f64() * PER_SECOND;
        let filled = filled.min(PER_SECOND);
        let enough = filled >= 1.0;
        *bucket = (if enough { filled - 1.0 } else { filled }, now);
        enough
    }
}

impl ReviewStatus {
    /// Returns whether the token is valid, for our audience, and of the account in its claims.
    fn verdict(&self, claims: &TokenClaims, audiences: &[String]) -> Verdict {
        let no = |why: &str| Err(Arc::from(why));
        if !self.authenticated || !self.error.is_empty() {
            return no(match &*self.error {
                "" => "it is not authenticated",
                error => error,
            });
        }
        // An API server without support for audiences accepts tokens for any audience.
        let granted = self.audiences.as_deref().unwrap_or_default();
        if !granted.iter().any(|audience| audiences.contains(audience)) {
            return no("it is not for our audience");
        }
        let TokenClaims { namespace, service_account, pod, .. } = claims;
        let named = format!("system:serviceaccount:{namespace}:{service_account}");
        let groups = self.user.groups.as_deref().unwrap_or_default();
        if self.user.username != named || !groups.iter().any(|group| group == GROUP) {
            return no("it belongs to another account");
        }
        let reviewed_uid = self.user.extra.as_ref().and_then(|extra| extra.get(POD_UID)?.first());
        match (reviewed_uid, pod) {
            (Some(reviewed_uid), Some(pod)) if **reviewed_uid != *pod.uid => {
                no("it belongs to another pod")
            }
            _ => Ok(()),
        }
    }
}

fn question(cluster: &ClusterId, token: &str) -> Question {
    let mut hash = digest::Context::new(&digest::SHA256);
    hash.update(cluster.as_str().as_bytes());
    hash.update(&[0]);
    hash.update(token.as_bytes());
    let mut question = [0; 32];
    question.copy_from_slice(hash.finish().as_ref());
    question
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claims() -> TokenClaims {
        TokenClaims {
            issuer: "https://issuer.example".into(),
            namespace: "shop".into(),
            service_account: "web".into(),
            pod: Some(TokenPod { name: "web-0".into(), uid: "u1".into() }),
            node: None,
            expires: SystemTime::now() + Duration::from_secs(3600),
        }
    }

    fn status(change: impl FnOnce(&mut serde_json::Value)) -> ReviewStatus {
        let mut status = json!({
            "authenticated": true,
            "user": {
                "username": "system:serviceaccount:shop:web",
                "groups": ["system:serviceaccounts", "system:authenticated"],
                "extra": { "authentication.kubernetes.io/pod-uid": ["u1"] },
            },
            "audiences": ["istio-ca"],
        });
        change(&mut status);
        serde_json::from_value(status).expect("a status")
    }

    #[test]
    fn only_a_positive_review_of_this_account_and_our_audience_is_accepted() {
        let ours = ["istio-ca".to_owned()];
        type Change = fn(&mut serde_json::Value);
        let cases: [(&str, Change, bool); 9] = [
            ("unchanged", |_| {}, true),
            ("no pod named", |s| s["user"]["extra"] = json!(null), true),
            ("not authenticated", |s| s["authenticated"] = json!(false), false),
            ("an error", |s| s["error"] = json!("expired"), false),
            ("no audiences", |s| s["audiences"] = json!(null), false),
            ("others' audience", |s| s["audiences"] = json!(["api"]), false),
            (
                "another account",
                |s| s["user"]["username"] = json!("system:serviceaccount:shop:db"),
                false,
            ),
            ("no account", |s| s["user"]["groups"] = json!(["system:masters"]), false),
            (
                "another pod",
                |s| s["user"]["extra"]["authentication.kubernetes.io/pod-uid"] = json!(["u2"]),
                false,
            ),
        ];
        for (case, change, is_accepted) in cases {
            assert_eq!(status(change).verdict(&claims(), &ours).is_ok(), is_accepted, "{case}");
        }
    }

    #[tokio::test]
    async fn concurrent_calls_with_one_token_cause_one_review() {
        let reviews = Reviews::default();
        let review_count = std::sync::atomic::AtomicUsize::new(0);
        let review = |verdict: Result<Verdict, CallerRefusal>| async {
            review_count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            tokio::task::yield_now().await;
            verdict
        };
        let calls = (0..8).map(|_| reviews.once([1; 32], review(Ok(Ok(())))));
        let answers = futures::future::join_all(calls).await;
        assert!(answers.iter().all(|answer| *answer == Ok(Ok(()))), "{answers:?}");
        assert_eq!(review_count.load(std::sync::atomic::Ordering::Relaxed), 1);
        assert!(reviews.flights.lock().expect("not poisoned").is_empty());
        // A failed review can be repeated.
        let failed = || Err(CallerRefusal::unchecked("no answer".to_owned()));
        for _ in 0..2 {
            assert_eq!(reviews.once([1; 32], review(failed())).await, failed());
        }
        assert_eq!(review_count.load(std::sync::atomic::Ordering::Relaxed), 3);
        // An abandoned call leaves no state behind.
        drop(futures::poll!(Box::pin(reviews.once([2; 32], std::future::pending()))));
        assert!(reviews.flights.lock().expect("not poisoned").is_empty());
    }

    /// Whether the only pod is known.
    #[derive(Debug)]
    struct SinglePod(std::sync::atomic::AtomicBool);

    impl RunningPods for SinglePod {
        fn has_pod(&self, _: &ClusterId, _: &SpiffeId, _: &TokenPod) -> bool {
            self.0.load(std::sync::atomic::Ordering::Relaxed)
        }

        fn has_account(&self, _: &ClusterId, _: &SpiffeId) -> bool {
            false
        }

        fn root_namespace(&self) -> Option<String> {
            None
        }
    }

    #[test]
    fn answer_is_dropped_with_its_pod() {
        let set =
            |pods: &SinglePod, exists| pods.0.store(exists, std::sync::atomic::Ordering::Relaxed);
        let pods = SinglePod(false.into());
        let id = SpiffeId::new("cluster.local", "shop", "web").expect("an identity");
        let pod = claims().pod.expect("one");
        let reviewed = || ReviewedPod::new(("east".into(), id.clone(), pod.clone()), &pods);
        let reviews = Reviews::default();
        reviews.note([1; 32], &Ok(()), &claims(), Some(reviewed()));
        reviews.note([2; 32], &Ok(()), &claims(), None);
        // At first the pod is unknown, then known.
        reviews.forget_gone(&pods);
        assert!(reviews.answer(&[1; 32]).is_some());
        set(&pods, true);
        reviews.forget_gone(&pods);
        assert!(reviews.answer(&[1; 32]).is_some());
        set(&pods, false);
        reviews.forget_gone(&pods);
        assert!(reviews.answer(&[1; 32]).is_none(), "the pod was deleted");
        assert!(reviews.answer(&[2; 32]).is_some(), "it is not bound to a pod");
        // The pod was known during the review.
        set(&pods, true);
        let reviewed_pod = reviewed();
        set(&pods, false);
        reviews.note([1; 32], &Ok(()), &claims(), Some(reviewed_pod));
        reviews.forget_gone(&pods);
        assert!(reviews.answer(&[1; 32]).is_none());
    }

    #[test]
    fn requests_to_an_api_server_are_limited() {
        let now = Instant::now();
        let permits = MemberPermits {
            in_flight: Arc::new(Semaphore::new(1)),
            bucket: Mutex::new((PER_SECOND, now)),
        };
        assert_eq!((0..200).filter(|_| permits.take(now)).count(), 50);
        assert!(permits.take(now + Duration::from_millis(25)));
        assert!(!permits.take(now + Duration::from_millis(26)));
    }
}
