//! Probes whether a server is reachable.
//!
//! A watch is quiet both without changes and when the server hangs, and the kernel answers TCP
//! keepalives for a stopped process. Therefore a small request is sent at intervals to servers that
//! send nothing. It uses the shared connection, if there is one, so that a dead connection is
//! detected as well. (Otherwise keepalives detect a dead connection to a running server.)

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use http::Method;
use serde::de::IgnoredAny;
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};

use super::{ApiClient, ApiError};

/// Time from the last response of a healthy server to the next probe. A hung server is detected
/// within 15 s, unless there are very many servers: see [`PROBES_PER_SECOND`].
const PERIOD: Duration = Duration::from_secs(10);
/// Maximum number of probes of this process per second. If [`PERIOD`] would need more, the period
/// grows with the number of servers. A probe takes half a millisecond of CPU, so all probes
/// together take at most 2 % of a core.
const PROBES_PER_SECOND: u32 = 40;
/// The interval of probes while the server is unreachable.
const PERIOD_FAILING: Duration = Duration::from_secs(5);
/// The time limit of a probe.
const LIMIT: Duration = Duration::from_secs(5);

/// The number of servers that are probed now.
static PROBED: AtomicU32 = AtomicU32::new(0);

/// A server's share of the probes of this process.
struct ProbeShare;

impl ProbeShare {
    fn take() -> Self {
        PROBED.fetch_add(1, Ordering::Relaxed);
        Self
    }
}

impl Drop for ProbeShare {
    fn drop(&mut self) {
        PROBED.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Returns the time from the last response to the next probe with this number of servers.
fn period(servers: u32) -> Duration {
    PERIOD.max(Duration::from_secs(1) * servers / PROBES_PER_SECOND)
}

/// The result of a probe, or of a recent response that replaces it.
#[derive(Debug)]
pub struct Probed(pub Result<(), ApiError>);

impl ApiClient {
    /// Sends a small request that every client may send.
    ///
    /// # Errors
    /// Every [`ApiError`] except [`ApiError::Forbidden`] and [`ApiError::NotFound`], which are
    /// responses too.
    pub async fn probe(&self) -> Result<(), ApiError> {
        let path = "/version";
        match timeout(LIMIT, self.json::<IgnoredAny>(Method::GET, path, None)).await {
            Ok(Ok(_) | Err(ApiError::Forbidden(_) | ApiError::NotFound(_))) => Ok(()),
            Ok(Err(error)) => Err(error),
            // The response is queued behind a long list.
            Err(_) if self.last_response.remaining(LIMIT).is_some() => Ok(()),
            Err(_) => Err(ApiError::Silent { request: format!("GET {path}"), limit: LIMIT }),
        }
    }

    /// Probes until `sink` is closed, and reports each result to it. A server that sends data by
    /// itself is not probed; its recent response, without a failure of a reader since, is reported
    /// instead.
    ///
    /// When the server is reachable again, readers that pause after a failure retry at once;
    /// readers with an open request do so if it fails; and open watches restart from their last
    /// version, because their connections may be dead. When a probe is not answered, the existing
    /// connections are not used for further requests: on a silently broken one, each request would
    /// wait for the whole time limit.
    pub async fn keep_probing<E: From<Probed>>(&self, sink: &mpsc::Sender<E>) {
        let (mut failing, probing, _share) = (false, self.probing(), ProbeShare::take());
        loop {
            let period = period(PROBED.load(Ordering::Relaxed));
            let pause = self.last_response.remaining(period).unwrap_or(period);
            sleep(if failing { PERIOD_FAILING } else { pause }).await;
            let has_recent_response = !failing && self.last_response.remaining(period).is_some();
            let found = if has_recent_response { Ok(()) } else { Box::pin(probing.probe()).await };
            // Any other error is a response: the connection works.
            if let Err(
                ApiError::Silent { .. } | ApiError::Broken { .. } | ApiError::Unreachable(_),
            ) = found
            {
                self.forget_connections();
            }
            self.note(&found, &mut failing);
            if sink.send(Probed(found).into()).await.is_err() {
                return;
            }
        }
    }

    /// Wakes readers if the server was `failing` and this probe succeeded.
    pub(super) fn note(&self, found: &Result<(), ApiError>, failing: &mut bool) {
        if std::mem::replace(failing, found.is_err()) && !*failing {
            self.revived.send_modify(|count| *count += 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probe_interval_grows_with_the_number_of_servers() {
        assert_eq!(period(1), PERIOD);
        assert_eq!(period(400), PERIOD);
        // With 2,000 members, a hung one is detected within 55 s.
        assert_eq!(period(2000), Duration::from_secs(50));
    }
}
