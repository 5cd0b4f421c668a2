//! Whether a server is there at all.
//!
//! A watch is quiet both when nothing happens and when the server hangs, and the kernel answers TCP
//! keepalives for a process that has stopped. So something small is asked now and then of who says nothing:
//! over the connection that all else uses, where there is one for all, so that a dead one is found as well.
//! (Else a dead connection to a living server is found by those keepalives.)

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use http::Method;
use serde::de::IgnoredAny;
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};

use super::{ApiClient, ApiError};

/// So long after its last response a server is probed while all is well: a hung one shows within 15 s, where there are
/// not very many: see [`PROBES_PER_SECOND`].
const PERIOD: Duration = Duration::from_secs(10);
/// So many probes this process sends in a second, all servers taken together; from so many servers on that this is more
/// than [`PERIOD`] lets them have, each has its turn later. A probe takes half a millisecond of CPU.
const PROBES_PER_SECOND: u32 = 64;
/// Between probes while it is not.
const PERIOD_FAILING: Duration = Duration::from_secs(5);
/// How long an answer may take.
const LIMIT: Duration = Duration::from_secs(5);

/// How many servers are probed now.
static PROBED: AtomicU32 = AtomicU32::new(0);

/// A server's part in the probes of this process.
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

/// So long after its last response each of so many servers is probed while all is well.
fn period(servers: u32) -> Duration {
    PERIOD.max(Duration::from_secs(1) * servers / PROBES_PER_SECOND)
}

/// What a probe found, or would have.
#[derive(Debug)]
pub struct Probed(pub Result<(), ApiError>);

impl ApiClient {
    /// Asks for something small that everybody may read.
    ///
    /// # Errors
    /// Every [`ApiError`] but [`ApiError::Forbidden`] and [`ApiError::NotFound`]: those are answers too.
    pub async fn probe(&self) -> Result<(), ApiError> {
        let path = "/version";
        match timeout(LIMIT, self.json::<IgnoredAny>(Method::GET, path, None)).await {
            Ok(Ok(_) | Err(ApiError::Forbidden(_) | ApiError::NotFound(_))) => Ok(()),
            Ok(Err(error)) => Err(error),
            // Its answer waits behind a long list.
            Err(_) if self.heard.left_of(LIMIT).is_some() => Ok(()),
            Err(_) => Err(ApiError::Silent { request: format!("GET {path}"), limit: LIMIT }),
        }
    }

    /// Probes until `sink` is closed, and reports each result to it. A server that sends something by itself is not
    /// probed: that it was heard, and that no reader has failed since, is reported. When the server is back, readers
    /// that wait after a failure ask again at once, those whose request is open do so if it fails, and watches that
    /// were open begin again from their last version: nobody knows whether their connections survived. When a probe
    /// is not answered, nothing more is asked over the connections there are: where they died silently, each would
    /// cost whoever takes it a whole time limit.
    pub async fn keep_probing<E: From<Probed>>(&self, sink: &mpsc::Sender<E>) {
        let (mut failing, probing, _share) = (false, self.probing(), ProbeShare::take());
        loop {
            let period = period(PROBED.load(Ordering::Relaxed));
            let pause = self.heard.left_of(period).unwrap_or(period);
            sleep(if failing { PERIOD_FAILING } else { pause }).await;
            let speaks = !failing && self.heard.left_of(period).is_some();
            let found = if speaks { Ok(()) } else { Box::pin(probing.probe()).await };
            // Any other error was an answer: the connection lives.
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

    /// Says that the server is back, where it was `failing` and this probe succeeded.
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
    fn very_many_servers_wait_for_their_turn() {
        assert_eq!(period(1), PERIOD);
        assert_eq!(period(640), PERIOD);
        // 2,000 members: a hung one shows within 37 s.
        assert_eq!(period(2000), Duration::from_millis(31_250));
    }
}
