//! What routes of the Gateway API say of themselves, written into the config cluster. (Gateway API, `RouteStatus`.)
//!
//! A courtesy beside `/debug/config`: routing needs none of it, and where it may not be written nothing else suffers. Each is read before
//! it is changed, and changed only while it still is what was read, so that entries of other controllers stay.
//! Needs `get` of the routes and `patch` of their `status`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde::de::IgnoredAny;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::{Instant, sleep};
use tracing::{debug, warn};

use crate::apiserver::{Access, ApiClient, ApiError, Patch};
use crate::codes;
use crate::model::{ObjectKey, RouteStatus, WriterRole};

/// The pause between two that are written: at most 20 a second.
const PACE: Duration = Duration::from_millis(50);
/// How long the same is not written again to the same route, and nothing at all where it may not be.
const REST: Duration = Duration::from_secs(600);
/// Somebody else has written in between (HTTP 409).
const CONFLICT: u16 = 409;
/// How often a status is tried that others write at the same time.
const TRIES: usize = 3;
/// How long nothing is written after a fault that may pass; of a fault with one route, nothing to that.
const PAUSE: Duration = Duration::from_secs(30);

/// Writes what is wanted, for as long as somebody wants it and while this process is the one that writes.
pub async fn run(
    access: watch::Receiver<Access>,
    mut role: watch::Receiver<WriterRole>,
    mut wanted: watch::Receiver<Arc<Vec<RouteStatus>>>,
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
                NextWrite::Rest => break,
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
    denied: Option<Instant>,
}

/// One that was tried.
#[derive(Debug)]
struct TriedStatus {
    status: RouteStatus,
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
    /// It may not be written, and no other.
    Rest,
}

impl TriedStatuses {
    fn lets(&self, status: &RouteStatus, now: Instant) -> bool {
        let rests = |since: &Instant| now.duration_since(*since) < REST;
        let last = self.last.get(&status.key);
        !self.denied.as_ref().is_some_and(rests)
            && !last.is_some_and(|last| last.status == *status && now < last.until)
    }

    /// When one of those that are wanted is to be tried again, since it is not done.
    fn again(&self, wanted: &[RouteStatus]) -> Option<Instant> {
        if self.denied.is_some() {
            return None;
        }
        let tried = wanted.iter().filter_map(|status| self.last.get(&status.key));
        tried.filter(|last| !last.is_done).map(|last| last.until).min()
    }

    fn note(
        &mut self,
        status: &RouteStatus,
        result: Result<(), ApiError>,
        now: Instant,
    ) -> NextWrite {
        let route = &status.key;
        let is_done = match result {
            Ok(()) => {
                debug!(%route, "status written");
                self.denied = None;
                true
            }
            Err(error @ (ApiError::Forbidden(_) | ApiError::Unauthorized(_))) => {
                if self.denied.is_none() {
                    let code = &codes::ROUTE_STATUS_DENIED;
                    warn!(%code, %error, %route, next = code.next, "statuses of routes may not be written");
                }
                self.denied = Some(now);
                return NextWrite::Rest;
            }
            Err(
                error @ (ApiError::Unreachable(_)
                | ApiError::Silent { .. }
                | ApiError::Tls(_)
                | ApiError::TooManyRequests { .. }),
            ) => {
                debug!(%error, %route, "statuses can't be written now");
                return NextWrite::Pause;
            }
            // It has gone, or it is not taken as it is.
            Err(error @ ApiError::NotFound(_)) => {
                debug!(%error, %route, "a status was not written");
                true
            }
            Err(ApiError::Rejected(answer)) => {
                debug!(error = %answer, %route, "a status was not written");
                answer.code != CONFLICT
            }
            // The fault may be with this route alone: the others are tried all the same.
            Err(error) => {
                debug!(%error, %route, "a status could not be written");
                false
            }
        };
        let until = now + if is_done { REST } else { PAUSE };
        self.last.retain(|_, last| now < last.until);
        self.last.insert(route.clone(), TriedStatus { status: status.clone(), until, is_done });
        NextWrite::Go
    }
}

async fn write(access: &watch::Receiver<Access>, status: &RouteStatus) -> Result<(), ApiError> {
    let access = access.borrow().clone();
    let client =
        ApiClient::new(&access).map_err(|error| ApiError::Unreachable(error.to_string()))?;
    let ObjectKey { kind, group, namespace, name } = &status.key;
    let plural = if **kind == *"GRPCRoute" { "grpcroutes" } else { "httproutes" };
    let path = format!("/apis/{group}/v1/namespaces/{namespace}/{plural}/{name}");
    // Somebody else may be quicker.
    for _ in 1..TRIES {
        match write_once(&client, &path, status).await {
            Err(ApiError::Rejected(answer)) if answer.code == CONFLICT => {}
            result => return result,
        }
    }
    write_once(&client, &path, status).await
}

async fn write_once(client: &ApiClient, path: &str, status: &RouteStatus) -> Result<(), ApiError> {
    let held: Value = client.get(path).await?;
    if held["metadata"]["generation"].as_i64() != Some(status.generation) {
        // It is another form of the route, of which this process will hear.
        return Ok(());
    }
    let now = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let parents = held["status"]["parents"].as_array().map(Vec::as_slice).unwrap_or_default();
    let Some(parents) = status.merged(parents, &now) else { return Ok(()) };
    let change = json!({
        "metadata": { "resourceVersion": held["metadata"]["resourceVersion"] },
        "status": { "parents": parents },
    });
    client.patch::<IgnoredAny>(&format!("{path}/status"), Patch::Merge, &change).await.map(drop)
}

#[cfg(test)]
mod tests;
