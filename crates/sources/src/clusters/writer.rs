//! Which of several control planes beside each other writes into clusters: the holder of a Lease in the config cluster.
//!
//! All of them read and serve; one writes, so that two that see the mesh differently for a while don't write against each
//! other. Who can't renew the Lease stops before another takes it, and then only makes what is missing, of which an API server
//! takes one; who ends gives it up. Where Leases may not be had each writes. Needs `get`, `create` and `update` of the Lease.

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
/// How long a holder that is not heard of is waited for.
const LIFE: Duration = Duration::from_secs(15);
/// How often it is renewed, and looked at by those who wait for it.
const TURN: Duration = Duration::from_secs(5);
/// How long one look may take. With [`STOPS_AFTER`] it is less than [`LIFE`], so that a holder that hears nothing has stopped
/// before another takes the Lease.
const LOOK: Duration = Duration::from_secs(4);
/// How long a holder goes on whose Lease was not renewed.
const STOPS_AFTER: Duration = Duration::from_secs(10);
/// How soon it looks again where it could not.
const RETRY: Duration = Duration::from_secs(1);
/// How long it rests where it may not be had.
const REST: Duration = Duration::from_secs(600);

/// What is to be done with the Lease as it stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    /// It is ours: say so again.
    Renew,
    /// Nobody's, or of one who is not heard of any more.
    Take,
    /// Another's.
    Wait,
}

/// How the Lease was seen last. Clocks of several machines differ: another's life is told by whether its Lease
/// changes while we look.
#[derive(Debug, Default)]
struct LeaseSeen(Option<(String, Instant)>);

impl LeaseSeen {
    fn next(&mut self, lease: &Value, us: &str, now: Instant) -> Next {
        let spec = &lease["spec"];
        let holder = spec["holderIdentity"].as_str().unwrap_or_default();
        if holder == us {
            return Next::Renew;
        }
        let version = lease["metadata"]["resourceVersion"].as_str().unwrap_or_default();
        let since = match &self.0 {
            Some((seen, since)) if seen == version => *since,
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

/// What of the Lease is one process's.
#[derive(Debug)]
pub struct WriterLease {
    /// How the config cluster is reached.
    pub access: watch::Receiver<Access>,
    /// The system namespace.
    pub namespace: String,
    /// A name that no other process has.
    pub us: String,
    /// What this process may write.
    pub role: watch::Sender<WriterRole>,
    /// The process is about to end.
    pub drain: CancellationToken,
    /// Whether another may take it: told once, after `drain`.
    pub given_up: watch::Sender<bool>,
}

impl WriterLease {
    /// Holds the Lease, or waits for it, until the process is about to end; then gives it up.
    pub async fn run(&self) {
        let mut seen = LeaseSeen::default();
        // When it was last certainly ours: from before we said so.
        let mut renewed = None;
        while !self.drain.is_cancelled() {
            let began = Instant::now();
            let looked = timeout(LOOK, self.turn(&mut seen)).await;
            let looked = looked.unwrap_or_else(|_| {
                Err(ApiError::Unreachable(format!("no answer within {LOOK:?}")))
            });
            let pause = match looked {
                Ok(held) => {
                    renewed = held.then_some(began);
                    self.take_role(if held { WriterRole::Writes } else { WriterRole::Waits });
                    TURN
                }
                Err(error @ (ApiError::Forbidden(_) | ApiError::Unauthorized(_))) => {
                    debug!(%error, "the Lease may not be had; this control plane writes by itself");
                    self.take_role(WriterRole::Writes);
                    REST
                }
                Err(error) => {
                    debug!(%error, "the Lease is not known now");
                    // Not in one expression: what is borrowed can't be replaced.
                    let role = *self.role.borrow();
                    self.take_role(after_fault(role, renewed, Instant::now()));
                    RETRY
                }
            };
            tokio::select! {
                () = sleep(pause) => {}
                () = self.drain.cancelled() => {}
            }
        }
        // First nothing more is written here.
        let held = *self.role.borrow() != WriterRole::Waits;
        self.take_role(WriterRole::Waits);
        if held && !matches!(timeout(LOOK, self.give_up()).await, Ok(Ok(()))) {
            warn!(
                lease = NAME,
                "the Lease was not given up; another control plane writes when its life is over"
            );
        }
        self.given_up.send_replace(true);
        std::future::pending::<()>().await;
    }

    fn take_role(&self, role: WriterRole) {
        let before = self.role.send_replace(role);
        if before != role {
            info!(lease = NAME, ?role, "what this control plane writes into clusters has changed");
        }
    }

    /// One look at the Lease, and what follows from it; whether it is ours then.
    async fn turn(&self, seen: &mut LeaseSeen) -> Result<bool, ApiError> {
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
                return taken(client.create::<Value>(path.trim_end_matches('/'), &new).await);
            }
            Err(error) => return Err(error),
        };
        match seen.next(&lease, &self.us, Instant::now()) {
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
        taken(client.replace::<Value>(&self.path(NAME), &lease).await)
    }

    /// Makes it nobody's, where it is ours.
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
        ApiClient::new(&access).map_err(|error| ApiError::Unreachable(error.to_string()))
    }

    fn path(&self, name: &str) -> String {
        format!("/apis/coordination.k8s.io/v1/namespaces/{}/leases/{name}", self.namespace)
    }
}

/// Whether it is ours by this write. Where somebody was quicker it is not: the next look tells.
fn taken(written: Result<Value, ApiError>) -> Result<bool, ApiError> {
    match written {
        Ok(_) => Ok(true),
        Err(ApiError::Rejected(status)) if status.code == 409 => Ok(false),
        Err(error) => Err(error),
    }
}

fn now() -> String {
    Timestamp::now().strftime("%Y-%m-%dT%H:%M:%S%.6fZ").to_string()
}

/// What a process may write that can't look at the Lease: as before, until another may have taken it.
fn after_fault(role: WriterRole, renewed: Option<Instant>, now: Instant) -> WriterRole {
    match role {
        WriterRole::Writes if renewed.is_none_or(|at| now.duration_since(at) >= STOPS_AFTER) => {
            WriterRole::Creates
        }
        role => role,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use strait_base::task::Supervisor;
    use strait_kube_client::{ApiCredential, Loopback, Redacted};

    #[test]
    fn a_lease_is_taken_when_its_holder_is_not_heard_of_for_its_life() {
        let lease = |holder: &str, version: &str| {
            json!({ "metadata": { "resourceVersion": version },
                    "spec": { "holderIdentity": holder, "leaseDurationSeconds": 15 } })
        };
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut seen = LeaseSeen::default();
        assert_eq!(seen.next(&lease("b", "1"), "a", at(0)), Next::Wait);
        assert_eq!(seen.next(&lease("b", "1"), "a", at(14)), Next::Wait);
        assert_eq!(seen.next(&lease("b", "2"), "a", at(16)), Next::Wait, "it was renewed");
        assert_eq!(seen.next(&lease("b", "2"), "a", at(31)), Next::Take);
        assert_eq!(seen.next(&lease("a", "3"), "a", at(32)), Next::Renew);
        assert_eq!(seen.next(&lease("", "4"), "a", at(33)), Next::Take, "it was given up");
        let endless = json!({ "metadata": { "resourceVersion": "5" },
            "spec": { "holderIdentity": "b", "leaseDurationSeconds": 4_000_000_000_u64 } });
        assert_eq!(seen.next(&endless, "a", at(40)), Next::Wait);
        assert_eq!(seen.next(&endless, "a", at(100)), Next::Take, "nobody holds it for ever");
    }

    #[tokio::test]
    async fn where_nobody_can_be_asked_the_role_stays_and_the_end_is_not_held_up() {
        let nobody = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let server = format!("https://{}", nobody.local_addr().expect("bound"));
        drop(nobody);
        let access = Access {
            server: server.parse().expect("a URI"),
            ca_pem: None,
            tls_server_name: None,
            credential: ApiCredential::Token(Redacted::new("none".to_owned())),
            loopback: Loopback::Allowed,
        };
        let (given_up, mut over) = watch::channel(false);
        let (role, seen) = watch::channel(WriterRole::Waits);
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
        assert_eq!(*seen.borrow(), WriterRole::Waits);
        drain.cancel();
        let told = timeout(LIFE, over.wait_for(|over| *over)).await;
        told.expect("in time").expect("it is told");
        tasks.stop();
    }

    #[test]
    fn who_can_not_renew_stops_before_another_takes_over() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let after = |role, seconds| after_fault(role, Some(start), at(seconds));
        assert_eq!(after(WriterRole::Writes, 9), WriterRole::Writes);
        assert_eq!(after(WriterRole::Writes, 10), WriterRole::Creates);
        assert_eq!(after(WriterRole::Creates, 11), WriterRole::Creates);
        assert_eq!(after(WriterRole::Waits, 11), WriterRole::Waits);
        // A look that began just before it has ended before the Lease's life has.
        assert!(STOPS_AFTER + LOOK + RETRY <= LIFE);
    }
}
