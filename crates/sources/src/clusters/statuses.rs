//! What objects of the mesh's configuration say of themselves, written into the config cluster: routes of the Gateway API,
//! Ingresses, and with `--write-status` those of Istio's kinds.
//!
//! A courtesy beside `/debug/config`: the mesh needs none of it, and where it may not be written nothing else suffers. Each is read
//! before it is changed, and changed only while it still is what was read, so that what other controllers say stays.
//! Needs `get` of the objects and `patch` of their `status`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde::de::IgnoredAny;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::{Instant, sleep};
use tracing::{debug, warn};

use crate::store::api_paths;
use strait_base::codes;
use strait_kube_client::{Access, ApiClient, ApiError, Patch};
use strait_model::{ObjectKey, WantedStatus, WriterRole};

/// The pause between two that are written: at most 20 a second.
const PACE: Duration = Duration::from_millis(50);
/// How long the same is not written again to the same object, and nothing to any of a kind where it may not be.
const REST: Duration = Duration::from_secs(600);
/// Somebody else has written in between (HTTP 409).
const CONFLICT: u16 = 409;
/// How often a status is tried that others write at the same time.
const TRIES: usize = 3;
/// How long nothing is written after a fault that may pass; of a fault with one object, nothing to that.
const PAUSE: Duration = Duration::from_secs(30);

/// Writes what is wanted, for as long as somebody wants it and while this process is the one that writes.
pub async fn run(
    access: watch::Receiver<Access>,
    mut role: watch::Receiver<WriterRole>,
    mut wanted: watch::Receiver<Arc<Vec<WantedStatus>>>,
) {
    let mut tried = TriedStatuses::default();
    loop {
        if role.wait_for(|role| *role == WriterRole::Writes).await.is_err() {
            return;
        }
        let all = Arc::clone(&wanted.borrow_and_update());
        let mut rest = REST;
        for status in all.iter() {
            // It may have changed since the first of them.
            if *role.borrow() != WriterRole::Writes {
                break;
            }
            if !tried.lets(status, Instant::now()) {
                continue;
            }
            let result = write(&access, status).await;
            match tried.note(status, result, Instant::now()) {
                NextWrite::Go => sleep(PACE).await,
                NextWrite::Pause => {
                    rest = PAUSE;
                    break;
                }
            }
        }
        if rest == PAUSE {
            sleep(PAUSE).await;
        } else if let Some(soonest) = tried.again(&all) {
            rest = soonest.saturating_duration_since(Instant::now()).max(PACE);
        }
        tokio::select! {
            changed = wanted.changed() => if changed.is_err() { return },
            () = sleep(rest) => {}
        }
    }
}

/// What was written, and whether it may be.
#[derive(Debug, Default)]
struct TriedStatuses {
    last: BTreeMap<ObjectKey, TriedStatus>,
    /// By group and kind, when it was last said that those of the kind may not be written.
    denied: BTreeMap<[Arc<str>; 2], Instant>,
}

/// One that was tried.
#[derive(Debug)]
struct TriedStatus {
    status: WantedStatus,
    /// When the same may be tried again.
    until: Instant,
    /// Whether there is nothing to try before something else is wanted.
    is_done: bool,
}

/// What comes after a status was written, or was not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NextWrite {
    Go,
    /// It failed as every other would, for now.
    Pause,
}

impl TriedStatuses {
    fn lets(&self, status: &WantedStatus, now: Instant) -> bool {
        let rests = |since: &Instant| now.duration_since(*since) < REST;
        let last = self.last.get(status.key());
        !self.denied.get(&kind_of(status)).is_some_and(rests)
            && !last.is_some_and(|last| last.status == *status && now < last.until)
    }

    /// When one of those that are wanted is to be tried again, since it is not done.
    fn again(&self, wanted: &[WantedStatus]) -> Option<Instant> {
        let may = wanted.iter().filter(|status| !self.denied.contains_key(&kind_of(status)));
        let tried = may.filter_map(|status| self.last.get(status.key()));
        tried.filter(|last| !last.is_done).map(|last| last.until).min()
    }

    fn note(
        &mut self,
        status: &WantedStatus,
        result: Result<(), ApiError>,
        now: Instant,
    ) -> NextWrite {
        let object = status.key();
        let is_done = match result {
            Ok(()) => {
                debug!(%object, "status written");
                self.denied.remove(&kind_of(status));
                true
            }
            Err(error @ (ApiError::Forbidden(_) | ApiError::Unauthorized(_))) => {
                let code = match status {
                    WantedStatus::Route(_) => &codes::ROUTE_STATUS_DENIED,
                    WantedStatus::Object(_) => &codes::OBJECT_STATUS_DENIED,
                    WantedStatus::Ingress(_) => &codes::INGRESS_STATUS_DENIED,
                };
                if self.denied.insert(kind_of(status), now).is_none() {
                    warn!(%code, %error, %object, next = code.next, "statuses of this kind may not be written");
                }
                return NextWrite::Go;
            }
            Err(
                error @ (ApiError::Unreachable(_)
                | ApiError::Silent { .. }
                | ApiError::Tls(_)
                | ApiError::TooManyRequests { .. }),
            ) => {
                debug!(%error, %object, "statuses can't be written now");
                return NextWrite::Pause;
            }
            // It has gone, or it is of another store.
            Err(error @ ApiError::NotFound(_)) => {
                debug!(%error, %object, "a status was not written");
                true
            }
            Err(ApiError::Rejected(answer)) => {
                debug!(error = %answer, %object, "a status was not written");
                answer.code != CONFLICT
            }
            // The fault may be with this object alone: the others are tried all the same.
            Err(error) => {
                debug!(%error, %object, "a status could not be written");
                false
            }
        };
        let until = now + if is_done { REST } else { PAUSE };
        self.last.retain(|_, last| now < last.until);
        self.last.insert(object.clone(), TriedStatus { status: status.clone(), until, is_done });
        NextWrite::Go
    }
}

/// The group and the kind of an object. A right is for all of a kind.
fn kind_of(status: &WantedStatus) -> [Arc<str>; 2] {
    let ObjectKey { group, kind, .. } = status.key();
    [Arc::clone(group), Arc::clone(kind)]
}

/// Writes one, in the first version of its kind that the server has.
async fn write(access: &watch::Receiver<Access>, status: &WantedStatus) -> Result<(), ApiError> {
    let access = access.borrow().clone();
    let client =
        ApiClient::new(&access).map_err(|error| ApiError::Unreachable(error.to_string()))?;
    let mut paths = api_paths(status.key()).into_iter().peekable();
    while let Some(path) = paths.next() {
        match write_at(&client, &path, status).await {
            Err(ApiError::NotFound(_)) if paths.peek().is_some() => {}
            result => return result,
        }
    }
    Ok(())
}

async fn write_at(client: &ApiClient, path: &str, status: &WantedStatus) -> Result<(), ApiError> {
    // Somebody else may be quicker.
    for _ in 1..TRIES {
        match write_once(client, path, status).await {
            Err(ApiError::Rejected(answer)) if answer.code == CONFLICT => {}
            result => return result,
        }
    }
    write_once(client, path, status).await
}

async fn write_once(client: &ApiClient, path: &str, status: &WantedStatus) -> Result<(), ApiError> {
    let held: Value = client.get(path).await?;
    if held["metadata"]["generation"].as_i64() != Some(status.generation()) {
        // It is another form of the object, of which this process will hear.
        return Ok(());
    }
    let now = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let Some(change) = status.change(&held["status"], &now) else { return Ok(()) };
    let change = json!({
        "metadata": { "resourceVersion": held["metadata"]["resourceVersion"] },
        "status": change,
    });
    client.patch::<IgnoredAny>(&format!("{path}/status"), Patch::Merge, &change).await.map(drop)
}

#[cfg(test)]
mod tests;
