//! Replaces the credential of a running registry without listing its objects again.
//!
//! The new credential is tested first. It is used if the API server reports the same user and the
//! cluster has the same UID. Otherwise a second run starts, because another user may have other
//! rights, and another cluster has other objects. While the new credential is refused, the old one
//! stays in use.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

use super::context::ReconcilerContext;
use crate::lifetime::Lifetime;
use crate::registry::kube::{ApiContact, RunStatus};
use strait_base::codes;
use strait_base::task::Supervisor;
use strait_kube_client::{Access, ApiClient, ApiError, Backoff, kube_system_uid, principal};
use strait_model::ClusterId;

/// The pauses between tests of a refused credential.
const AGAIN: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(60));
/// How long a swap waits for the user of the old credential, which is requested after the first
/// sync.
const PRINCIPAL_WAIT: Duration = Duration::from_secs(5);
/// The time limit of one test.
const LIMIT: Duration = Duration::from_secs(30);

/// The user of a credential, according to the API server: `None` until the server has responded. Then
/// its name, or `None` if the server does not report it.
pub(super) type Principal = Option<Option<Arc<str>>>;

/// The progress of a swap.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum SwapState {
    /// The new credential is being tested; why the last test failed.
    Testing(Option<Arc<str>>),
    /// The new credential is in use.
    Done,
    /// A second run is needed.
    NeedsRun,
}

/// A swap of the credential of one run.
pub(super) struct CredentialSwap {
    /// The access with the new credential.
    pub(super) access: Access,
    pub(super) state: watch::Receiver<SwapState>,
    tasks: Supervisor,
}

impl Drop for CredentialSwap {
    fn drop(&mut self) {
        self.tasks.stop();
    }
}

impl CredentialSwap {
    /// Returns why the new credential is refused.
    pub(super) fn failure(&self) -> Option<Arc<str>> {
        match &*self.state.borrow() {
            SwapState::Testing(failure) => failure.clone(),
            SwapState::Done | SwapState::NeedsRun => None,
        }
    }
}

/// The run whose credential is replaced.
pub(super) struct SwappedRun {
    pub(super) id: ClusterId,
    pub(super) client: ApiClient,
    /// The access of further starts of the run.
    pub(super) access: watch::Sender<Access>,
    pub(super) principal: watch::Receiver<Principal>,
    pub(super) status: watch::Receiver<RunStatus>,
}

/// Starts to replace the credential of `run` with that in `access`.
pub(super) fn start_swap(
    context: &Arc<ReconcilerContext>,
    run: SwappedRun,
    access: Access,
) -> CredentialSwap {
    let tasks = context.tasks.child();
    let (sender, state) = watch::channel(SwapState::Testing(None));
    let (context, wanted) = (Arc::clone(context), access.clone());
    tasks.spawn(format!("credential of {}", run.id), async move {
        let id = run.id.clone();
        let publish = |state| {
            sender.send_replace(state);
            context.note(&id);
        };
        let state = run.swap(wanted, &publish).await;
        publish(state);
    });
    CredentialSwap { access, state, tasks }
}

/// The result of a test.
enum SwapVerdict {
    /// The credential belongs to the same user of the same cluster.
    Same(ApiClient),
    /// A second run is needed, for this reason.
    Different(&'static str),
}

impl SwappedRun {
    /// Tests the new credential until it is used, or until a second run is needed.
    async fn swap(mut self, access: Access, publish: &impl Fn(SwapState)) -> SwapState {
        let id = self.id.clone();
        let mut again = AGAIN;
        loop {
            let tested = timeout(LIMIT, self.test(&access)).await;
            let tested =
                tested.unwrap_or_else(|_| Err(format!("no answer within {} s", LIMIT.as_secs())));
            match tested {
                Ok(SwapVerdict::Same(tested)) => {
                    self.client.adopt_credential(&tested);
                    self.access.send_replace(access);
                    info!(cluster = %id, "credential replaced without a new run");
                    return SwapState::Done;
                }
                Ok(SwapVerdict::Different(why)) => {
                    info!(cluster = %id, "starting a new run for the new credential: {why}");
                    return SwapState::NeedsRun;
                }
                Err(fact) => {
                    warn!(cluster = %id, reason = fact, "new credential refused; the old one stays in use");
                    publish(SwapState::Testing(Some(fact.into())));
                }
            }
            // Once the old credential is refused too, the new one is tested again at once.
            tokio::select! {
                () = sleep(again.pause(rand::random())) => {}
                () = self.old_is_refused() => again = AGAIN,
            }
        }
    }

    async fn test(&mut self, access: &Access) -> Result<SwapVerdict, String> {
        let known = timeout(PRINCIPAL_WAIT, self.principal.wait_for(Option::is_some)).await;
        let known = known.ok().and_then(|known| known.ok()?.clone().flatten());
        let (Some(user), Some(uid)) = (known, self.status.borrow().cluster_uid.clone()) else {
            return Ok(SwapVerdict::Different("the user or the UID of the cluster is not known"));
        };
        let client = self.client.with_credential(access).map_err(|error| error.to_string())?;
        match principal(&client).await {
            Ok(name) if *name == *user => {}
            Ok(_) => return Ok(SwapVerdict::Different("it belongs to another user")),
            Err(error) if is_unreadable(&error) => {
                return Ok(SwapVerdict::Different("its user cannot be read"));
            }
            Err(error) => return Err(refusal(&error, access)),
        }
        match kube_system_uid(&client).await {
            Ok(found) if found == uid => Ok(SwapVerdict::Same(client)),
            Ok(_) => Ok(SwapVerdict::Different("the cluster has another UID")),
            Err(error) if is_unreadable(&error) => {
                Ok(SwapVerdict::Different("the UID of the cluster cannot be read"))
            }
            Err(error) => Err(refusal(&error, access)),
        }
    }

    /// Waits until the API server refuses the old credential. Never returns if it already does.
    async fn old_is_refused(&mut self) {
        let is_refused = |status: &RunStatus| matches!(status.contact, ApiContact::AuthFailed(_));
        let was_refused = is_refused(&self.status.borrow());
        if was_refused || self.status.wait_for(is_refused).await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

/// Whether the API server refuses or does not support the request, so that repeating it is useless.
fn is_unreadable(error: &ApiError) -> bool {
    matches!(error, ApiError::Forbidden(_) | ApiError::NotFound(_) | ApiError::Rejected(_))
}

/// Describes why the API server does not accept the access.
fn refusal(error: &ApiError, access: &Access) -> String {
    let text = error.to_string();
    let lifetime = Lifetime::from_access(access);
    match (error, lifetime.and_then(|lifetime| lifetime.fault(Timestamp::now()))) {
        (ApiError::Unauthorized(_), Some(fault)) => {
            format!("{}: {text}; {fault}", codes::AUTH_FAILED)
        }
        (ApiError::Unauthorized(_), None) => format!("{}: {text}", codes::AUTH_FAILED),
        (ApiError::Tls(_), _) => format!("{}: {text}", codes::TLS_FAILED),
        _ if codes::leading(&text).is_some() => text,
        _ => format!("{}: {text}", codes::UNREACHABLE),
    }
}

/// Publishes the user of a run's credential once the run has synced.
pub(super) async fn find_principal(
    mut client: watch::Receiver<Option<ApiClient>>,
    mut status: watch::Receiver<RunStatus>,
    found: &watch::Sender<Principal>,
) {
    let synced = status.wait_for(|status| status.synced).await.map(drop);
    let client = match client.wait_for(Option::is_some).await {
        Ok(client) if synced.is_ok() => client.clone(),
        _ => return,
    };
    let Some(client) = client else { return };
    let mut again = AGAIN;
    loop {
        match principal(&client).await {
            Ok(name) => {
                found.send_replace(Some(Some(name.into())));
                return;
            }
            Err(error) if is_unreadable(&error) => {
                found.send_replace(Some(None));
                return;
            }
            Err(_) => sleep(again.pause(rand::random())).await,
        }
    }
}
