//! Writes the status of configuration objects into the config cluster: Gateway API routes,
//! Ingresses, and with `--write-status` also Istio objects.
//!
//! Supplements `/debug/config`: the mesh does not need it, and a missing permission has no other
//! effect. Each object is read before it is changed, and changed only if it is unchanged since, so
//! that entries of other controllers stay. Needs `get` of the objects and `patch` of their
//! `status`.

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

/// The pause between two writes: at most 20 writes per second.
const PACE: Duration = Duration::from_millis(50);
/// How long the same status is not written to the same object again. Also the pause for a kind
/// after a denied write.
const REST: Duration = Duration::from_secs(600);
/// Another writer has changed the object in between (HTTP 409).
const CONFLICT: u16 = 409;
/// Number of attempts if other writers change the object at the same time.
const TRIES: usize = 3;
/// The pause after a transient error. An error with one object pauses that object only.
const PAUSE: Duration = Duration::from_secs(30);

/// Writes the wanted statuses while this process has the writer role. Ends when the sender of
/// statuses is dropped.
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
            // The role may have changed since the first write.
            if *role.borrow() != WriterRole::Writes {
                break;
            }
            if !tried.may_try(status, Instant::now()) {
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
        } else if let Some(soonest) = tried.next_try(&all) {
            rest = soonest.saturating_duration_since(Instant::now()).max(PACE);
        }
        tokio::select! {
            changed = wanted.changed() => if changed.is_err() { return },
            () = sleep(rest) => {}
        }
    }
}

/// The statuses that were written, and the kinds whose writes are denied.
#[derive(Debug, Default)]
struct TriedStatuses {
    last: BTreeMap<ObjectKey, TriedStatus>,
    /// By group and kind, when a denied write of the kind was last reported.
    denied: BTreeMap<[Arc<str>; 2], Instant>,
}

/// A status that was tried.
#[derive(Debug)]
struct TriedStatus {
    status: WantedStatus,
    /// When the same status may be tried again.
    until: Instant,
    /// Whether nothing remains to be tried until the wanted status changes.
    is_done: bool,
}

/// How to continue after a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NextWrite {
    Go,
    /// Pause all writes: the write failed for a reason that currently affects every write.
    Pause,
}

impl TriedStatuses {
    fn may_try(&self, status: &WantedStatus, now: Instant) -> bool {
        let rests = |since: &Instant| now.duration_since(*since) < REST;
        let last = self.last.get(status.key());
        !self.denied.get(&group_and_kind(status)).is_some_and(rests)
            && !last.is_some_and(|last| last.status == *status && now < last.until)
    }

    /// Returns when the next unfinished wanted status is to be tried again.
    fn next_try(&self, wanted: &[WantedStatus]) -> Option<Instant> {
        let may = wanted.iter().filter(|status| !self.denied.contains_key(&group_and_kind(status)));
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
                self.denied.remove(&group_and_kind(status));
                true
            }
            Err(error @ (ApiError::Forbidden(_) | ApiError::Unauthorized(_))) => {
                let code = match status {
                    WantedStatus::Route(_) => &codes::ROUTE_STATUS_DENIED,
                    WantedStatus::Object(_) => &codes::OBJECT_STATUS_DENIED,
                    WantedStatus::Ingress(_) => &codes::INGRESS_STATUS_DENIED,
                };
                if self.denied.insert(group_and_kind(status), now).is_none() {
                    warn!(%code, %error, %object, next = code.next, "no permission to write statuses of this kind");
                }
                return NextWrite::Go;
            }
            Err(
                error @ (ApiError::Unreachable(_)
                | ApiError::Silent { .. }
                | ApiError::Tls(_)
                | ApiError::TooManyRequests { .. }),
            ) => {
                debug!(%error, %object, "cannot write statuses; they will be retried");
                return NextWrite::Pause;
            }
            // The object was deleted, or it belongs to another store.
            Err(error @ ApiError::NotFound(_)) => {
                debug!(%error, %object, "status not written");
                true
            }
            Err(ApiError::Rejected(answer)) => {
                debug!(error = %answer, %object, "status not written");
                answer.code != CONFLICT
            }
            // The error may concern this object only: the others are tried nevertheless.
            Err(error) => {
                debug!(%error, %object, "cannot write a status");
                false
            }
        };
        let until = now + if is_done { REST } else { PAUSE };
        self.last.retain(|_, last| now < last.until);
        self.last.insert(object.clone(), TriedStatus { status: status.clone(), until, is_done });
        NextWrite::Go
    }
}

/// Returns the group and the kind of an object. Permissions apply to a whole kind.
fn group_and_kind(status: &WantedStatus) -> [Arc<str>; 2] {
    let ObjectKey { group, kind, .. } = status.key();
    [Arc::clone(group), Arc::clone(kind)]
}

/// Writes one status, with the first version of the kind that the server supports.
async fn write(access: &watch::Receiver<Access>, status: &WantedStatus) -> Result<(), ApiError> {
    let access = access.borrow().clone();
    let client = ApiClient::new(&access)?;
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
    // Another writer may be faster.
    for _ in 1..TRIES {
        match write_once(client, path, status).await {
            Err(ApiError::Rejected(answer)) if answer.code == CONFLICT => {}
            result => return result,
        }
    }
    write_once(client, path, status).await
}

async fn write_once(client: &ApiClient, path: &str, status: &WantedStatus) -> Result<(), ApiError> {
    let current: Value = client.get(path).await?;
    if current["metadata"]["generation"].as_i64() != Some(status.generation()) {
        // The object has changed. This process will receive the new version.
        return Ok(());
    }
    let now = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let Some(change) = status.change(&current["status"], &now) else { return Ok(()) };
    let change = json!({
        "metadata": { "resourceVersion": current["metadata"]["resourceVersion"] },
        "status": change,
    });
    client.patch::<IgnoredAny>(&format!("{path}/status"), Patch::Merge, &change).await.map(drop)
}

#[cfg(test)]
mod tests;
