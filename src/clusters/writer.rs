//! Which of several control planes beside each other writes into clusters: the holder of a Lease in the config cluster.
//!
//! All of them read and serve; one writes. Whatever is written is the same whoever writes it, so that the Lease spares
//! work and quarrels and nothing depends on it: where Leases may not be had each writes, and while the config cluster
//! is out of reach everybody stays what they were. Needs `get`, `create` and `update` of the Lease.

use std::time::{Duration, Instant};

use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::sleep;
use tracing::{debug, info};

use crate::apiserver::{Access, ApiClient, ApiError};

/// The Lease's name, in the system namespace.
const NAME: &str = "strait-writer";
/// How long a holder that is not heard of is waited for.
const LIFE: Duration = Duration::from_secs(15);
/// How often it is renewed, and looked at by those who wait for it.
const TURN: Duration = Duration::from_secs(5);
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

/// Holds the Lease, or waits for it, for as long as there is a config cluster; `is_writer` says which. `us` is a name
/// that no other has.
pub async fn run(
    access: watch::Receiver<Access>,
    namespace: String,
    us: String,
    is_writer: watch::Sender<bool>,
) {
    let mut seen = LeaseSeen::default();
    loop {
        let current = access.borrow().clone();
        let mut pause = TURN;
        match turn(&current, &namespace, &us, &mut seen).await {
            Ok(held) => {
                if is_writer.send_replace(held) != held {
                    info!(
                        held,
                        lease = NAME,
                        "which control plane writes into clusters has changed"
                    );
                }
            }
            Err(error @ (ApiError::Forbidden(_) | ApiError::Unauthorized(_))) => {
                debug!(%error, "the Lease may not be had; this control plane writes by itself");
                is_writer.send_replace(true);
                pause = REST;
            }
            // Somebody else was quicker, or nobody can be asked.
            Err(error) => debug!(%error, "the Lease is not known now"),
        }
        sleep(pause).await;
    }
}

/// One look at the Lease, and what follows from it; whether it is ours then.
async fn turn(
    access: &Access,
    namespace: &str,
    us: &str,
    seen: &mut LeaseSeen,
) -> Result<bool, ApiError> {
    let client =
        ApiClient::new(access).map_err(|error| ApiError::Unreachable(error.to_string()))?;
    let all = format!("/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases");
    let one = format!("{all}/{NAME}");
    let now = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%S%.6fZ").to_string();
    let mut lease: Value = match client.get(&one).await {
        Ok(lease) => lease,
        Err(ApiError::NotFound(_)) => {
            let new = json!({
                "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
                "metadata": { "name": NAME, "namespace": namespace },
                "spec": {
                    "holderIdentity": us, "leaseDurationSeconds": LIFE.as_secs(),
                    "acquireTime": now, "renewTime": now, "leaseTransitions": 0,
                },
            });
            client.create::<Value>(&all, &new).await?;
            return Ok(true);
        }
        Err(error) => return Err(error),
    };
    match seen.next(&lease, us, Instant::now()) {
        Next::Wait => return Ok(false),
        Next::Renew => {}
        Next::Take => {
            let before = lease["spec"]["leaseTransitions"].as_u64().unwrap_or_default();
            lease["spec"]["holderIdentity"] = json!(us);
            lease["spec"]["leaseDurationSeconds"] = json!(LIFE.as_secs());
            lease["spec"]["acquireTime"] = json!(now);
            lease["spec"]["leaseTransitions"] = json!(before + 1);
        }
    }
    lease["spec"]["renewTime"] = json!(now);
    match client.replace::<Value>(&one, &lease).await {
        Ok(_) => Ok(true),
        // It has changed since the look: the next one tells.
        Err(ApiError::Rejected(status)) if status.code == 409 => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
