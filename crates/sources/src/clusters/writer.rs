//! Election of the control plane replica that writes into clusters: the holder of a Lease in the
//! config cluster.
//!
//! All replicas read and serve; one writes, so that two replicas with different views of the mesh
//! don't overwrite each other. A holder that cannot renew the Lease stops writing before another
//! takes it; from then on it only creates missing objects, because an API server accepts one
//! creation. A process that ends gives up the Lease. If the API server forbids access to Leases for a
//! minute, each replica writes.
//! Needs `get`, `create` and `update` of the Lease.

use std::time::{Duration, Instant};

use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use strait_kube_client::{Access, ApiClient, ApiError};
use strait_model::WriterRole;

/// The Lease's name, in the system namespace.
const NAME: &str = "strait-writer";
/// How long the Lease may stay unchanged before another replica takes it.
const LIFE: Duration = Duration::from_secs(15);
/// The interval at which the holder renews it and the others check it.
const TURN: Duration = Duration::from_secs(5);
/// Time limit of one check. Together with [`STOPS_AFTER`] it is less than [`LIFE`], so that a
/// holder without a connection has stopped before another replica takes the Lease.
const LOOK: Duration = Duration::from_secs(4);
/// How long a holder continues without a renewal.
const STOPS_AFTER: Duration = Duration::from_secs(10);
/// The pause after a failed check.
const RETRY: Duration = Duration::from_secs(1);
/// How long the API server must forbid access before this process writes without the Lease. An API
/// server that starts forbids requests for some seconds, and then another process may hold it.
const FORBIDDEN_FOR: Duration = Duration::from_secs(60);
/// The pause between two checks of a Lease to which access is forbidden.
const REST: Duration = Duration::from_secs(30);

/// The next step for the Lease in its current state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    /// This process holds it: renew it.
    Renew,
    /// The Lease has no holder or has expired: take it.
    Take,
    /// Another process holds it.
    Wait,
}

/// The last observed state of the Lease. Clocks of machines differ: whether another holder is alive
/// is determined by changes of the Lease while this process observes it.
#[derive(Debug, Default)]
struct ObservedLease(Option<(String, Instant)>);

impl ObservedLease {
    fn next(&mut self, lease: &Value, us: &str, now: Instant) -> Next {
        let spec = &lease["spec"];
        let holder = spec["holderIdentity"].as_str().unwrap_or_default();
        if holder == us {
            return Next::Renew;
        }
        let version = lease["metadata"]["resourceVersion"].as_str().unwrap_or_default();
        let since = match &self.0 {
            Some((observed, since)) if observed == version => *since,
            _ => {
                self.0 = Some((version.to_owned(), now));
                now
            }
        };
        let life = spec["leaseDurationSeconds"].as_u64().map_or(LIFE, Duration::from_secs);
        let is_over = now.duration_since(since) >= life.min(LIFE * 4);
        if holder.is_empty() || is_over { Next::Take } else { Next::Wait }
    }
}

/// The election from the point of view of one process.
#[derive(Debug)]
pub struct WriterLease {
    /// The access of the config cluster.
    pub access: watch::Receiver<Access>,
    /// The system namespace.
    pub namespace: String,
    /// The unique name of this process.
    pub us: String,
    /// The current role of this process.
    pub role: watch::Sender<WriterRole>,
    /// Cancelled when the process is about to end.
    pub drain: CancellationToken,
    /// Set to true once, after `drain`, when another process may take the Lease.
    pub given_up: watch::Sender<bool>,
}

impl WriterLease {
    /// Holds the Lease or waits for it until the process is about to end, then gives it up.
    pub async fn run(&self) {
        let mut observed = ObservedLease::default();
        // When the Lease was last certainly held: the time before the renewal was sent.
        let mut renewed = None;
        let mut forbidden_since = None;
        while !self.drain.is_cancelled() {
            let began = Instant::now();
            let looked = timeout(LOOK, self.turn(&mut observed)).await;
            let looked = looked.unwrap_or_else(|_| {
                Err(ApiError::Unreachable(format!("no response within {LOOK:?}")))
            });
            let pause = match looked {
                Ok(is_holder) => {
                    renewed = is_holder.then_some(began);
                    forbidden_since = None;
                    self.set_role(if is_holder { WriterRole::Writes } else { WriterRole::Standby });
                    TURN
                }
                Err(error) => {
                    debug!(%error, "cannot read or renew the Lease");
                    let is_forbidden = matches!(error, ApiError::Forbidden(_));
                    forbidden_since = is_forbidden.then(|| forbidden_since.unwrap_or(began));
                    // A separate statement: a borrowed value cannot be replaced.
                    let role = *self.role.borrow();
                    if is_writer_without_lease(forbidden_since, Instant::now()) {
                        self.set_role(WriterRole::Writes);
                        REST
                    } else {
                        self.set_role(after_fault(role, renewed, Instant::now()));
                        RETRY
                    }
                }
            };
            tokio::select! {
                () = sleep(pause) => {}
                () = self.drain.cancelled() => {}
            }
        }
        // Stop all writes first.
        let is_holder = *self.role.borrow() != WriterRole::Standby;
        self.set_role(WriterRole::Standby);
        if is_holder && !matches!(timeout(LOOK, self.give_up()).await, Ok(Ok(()))) {
            warn!(
                lease = NAME,
                "the Lease was not released; another control plane writes after it expires"
            );
        }
        self.given_up.send_replace(true);
        std::future::pending::<()>().await;
    }

    fn set_role(&self, role: WriterRole) {
        let before = self.role.send_replace(role);
        if before != role {
            info!(lease = NAME, ?role, "the role of this control plane as writer has changed");
        }
    }

    /// Checks the Lease once, and acts on it. Returns whether this process holds it afterwards.
    async fn turn(&self, observed: &mut ObservedLease) -> Result<bool, ApiError> {
        let client = self.client()?;
        let now = now();
        let mut lease: Value = match client.get(&self.path(NAME)).await {
            Ok(lease) => lease,
            Err(ApiError::NotFound(_)) => {
                let new = json!({
                    "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
                    "metadata": { "name": NAME, "namespace": self.namespace },
                    "spec": {
                        "holderIdentity": self.us, "leaseDurationSeconds": LIFE.as_secs(),
                        "acquireTime": now, "renewTime": now, "leaseTransitions": 0,
                    },
                });
                let path = self.path("");
                return was_taken(client.create::<Value>(path.trim_end_matches('/'), &new).await);
            }
            Err(error) => return Err(error),
        };
        match observed.next(&lease, &self.us, Instant::now()) {
            Next::Wait => return Ok(false),
            Next::Renew => {}
            Next::Take => {
                let before = lease["spec"]["leaseTransitions"].as_u64().unwrap_or_default();
                lease["spec"]["holderIdentity"] = json!(self.us);
                lease["spec"]["leaseDurationSeconds"] = json!(LIFE.as_secs());
                lease["spec"]["acquireTime"] = json!(now);
                lease["spec"]["leaseTransitions"] = json!(before + 1);
            }
        }
        lease["spec"]["renewTime"] = json!(now);
        was_taken(client.replace::<Value>(&self.path(NAME), &lease).await)
    }

    /// Removes the holder from the Lease, if it is this process.
    async fn give_up(&self) -> Result<(), ApiError> {
        let client = self.client()?;
        let mut lease: Value = client.get(&self.path(NAME)).await?;
        if lease["spec"]["holderIdentity"] != *self.us {
            return Ok(());
        }
        lease["spec"]["holderIdentity"] = json!("");
        lease["spec"]["renewTime"] = json!(now());
        client.replace::<Value>(&self.path(NAME), &lease).await.map(drop)
    }

    fn client(&self) -> Result<ApiClient, ApiError> {
        let access = self.access.borrow().clone();
        Ok(ApiClient::new(&access)?)
    }

    fn path(&self, name: &str) -> String {
        format!("/apis/coordination.k8s.io/v1/namespaces/{}/leases/{name}", self.namespace)
    }
}

/// Returns whether the write took the Lease. A conflict means that another process was faster: the
/// next check shows which.
fn was_taken(written: Result<Value, ApiError>) -> Result<bool, ApiError> {
    match written {
        Ok(_) => Ok(true),
        Err(ApiError::Rejected(status)) if status.code == 409 => Ok(false),
        Err(error) => Err(error),
    }
}

fn now() -> String {
    Timestamp::now().strftime("%Y-%m-%dT%H:%M:%S%.6fZ").to_string()
}

/// Returns the role of a process that cannot check the Lease: unchanged until another process may
/// have taken the Lease.
fn after_fault(role: WriterRole, renewed: Option<Instant>, now: Instant) -> WriterRole {
    match role {
        WriterRole::Writes if renewed.is_none_or(|at| now.duration_since(at) >= STOPS_AFTER) => {
            WriterRole::Creates
        }
        role => role,
    }
}

/// Returns whether a process writes without the Lease, because access to it has been forbidden for
/// long enough.
fn is_writer_without_lease(forbidden_since: Option<Instant>, now: Instant) -> bool {
    forbidden_since.is_some_and(|since| now.duration_since(since) >= FORBIDDEN_FOR)
}

#[cfg(test)]
mod tests {
    use super::*;
    use strait_base::task::Supervisor;
    use strait_kube_client::{ApiCredential, Loopback, Redacted};

    #[test]
    fn lease_is_taken_after_it_was_not_renewed_for_its_duration() {
        let lease = |holder: &str, version: &str| {
            json!({ "metadata": { "resourceVersion": version },
                    "spec": { "holderIdentity": holder, "leaseDurationSeconds": 15 } })
        };
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut observed = ObservedLease::default();
        assert_eq!(observed.next(&lease("b", "1"), "a", at(0)), Next::Wait);
        assert_eq!(observed.next(&lease("b", "1"), "a", at(14)), Next::Wait);
        assert_eq!(observed.next(&lease("b", "2"), "a", at(16)), Next::Wait, "it was renewed");
        assert_eq!(observed.next(&lease("b", "2"), "a", at(31)), Next::Take);
        assert_eq!(observed.next(&lease("a", "3"), "a", at(32)), Next::Renew);
        assert_eq!(observed.next(&lease("", "4"), "a", at(33)), Next::Take, "it was released");
        let endless = json!({ "metadata": { "resourceVersion": "5" },
            "spec": { "holderIdentity": "b", "leaseDurationSeconds": 4_000_000_000_u64 } });
        assert_eq!(observed.next(&endless, "a", at(40)), Next::Wait);
        assert_eq!(observed.next(&endless, "a", at(100)), Next::Take, "it has no holder");
    }

    #[tokio::test]
    async fn role_is_kept_and_shutdown_is_not_delayed_without_an_api_server() {
        let unused_port = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let server = format!("https://{}", unused_port.local_addr().expect("bound"));
        drop(unused_port);
        let access = Access {
            server: server.parse().expect("a URI"),
            ca_pem: None,
            tls_server_name: None,
            credential: ApiCredential::Token(Redacted::new("none".to_owned())),
            loopback: Loopback::Allowed,
            proxy: None,
        };
        let (given_up, mut over) = watch::channel(false);
        let (role, role_receiver) = watch::channel(WriterRole::Standby);
        let drain = CancellationToken::new();
        let lease = WriterLease {
            access: watch::channel(access).1,
            namespace: "strait-system".to_owned(),
            us: "us".to_owned(),
            role,
            drain: drain.clone(),
            given_up,
        };
        let tasks = Supervisor::new();
        tasks.spawn("writer", async move { lease.run().await });
        sleep(Duration::from_millis(50)).await;
        assert_eq!(*role_receiver.borrow(), WriterRole::Standby);
        drain.cancel();
        let given_up = timeout(LIFE, over.wait_for(|over| *over)).await;
        given_up.expect("in time").expect("it is notified");
        tasks.stop();
    }

    #[test]
    fn holder_that_cannot_renew_stops_before_another_takes_over() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let after = |role, seconds| after_fault(role, Some(start), at(seconds));
        assert_eq!(after(WriterRole::Writes, 9), WriterRole::Writes);
        assert_eq!(after(WriterRole::Writes, 10), WriterRole::Creates);
        assert_eq!(after(WriterRole::Creates, 11), WriterRole::Creates);
        assert_eq!(after(WriterRole::Standby, 11), WriterRole::Standby);
        assert!(!is_writer_without_lease(None, at(100)));
        assert!(!is_writer_without_lease(Some(start), at(59)), "an API server starts");
        assert!(is_writer_without_lease(Some(start), at(60)));
        // A check that began just before the role ended is over before the Lease expires.
        assert!(STOPS_AFTER + LOOK + RETRY <= LIFE);
    }
}
