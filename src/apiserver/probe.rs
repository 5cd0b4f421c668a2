//! Whether a server is there at all.
//!
//! A watch is quiet both when nothing happens and when the server hangs, and the kernel answers TCP
//! keepalives for a process that has stopped. So something small is asked now and then. (A dead
//! connection to a living server is found by those keepalives.)

use std::time::Duration;

use http::Method;
use serde::de::IgnoredAny;
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};

use super::{Client, Error};

/// Between probes while all is well, so that a hung server shows within 15 s.
const PERIOD: Duration = Duration::from_secs(10);
/// Between probes while it is not.
const PERIOD_FAILING: Duration = Duration::from_secs(5);
/// How long an answer may take.
const LIMIT: Duration = Duration::from_secs(5);

/// What a probe found.
#[derive(Debug)]
pub struct Probed(pub Result<(), Error>);

impl Client {
    /// Asks for something small that everybody may read.
    ///
    /// # Errors
    /// Every [`Error`] but [`Error::Forbidden`] and [`Error::NotFound`]: those are answers too.
    pub async fn probe(&self) -> Result<(), Error> {
        let path = "/version";
        match timeout(LIMIT, self.json::<IgnoredAny>(Method::GET, path, None)).await {
            Ok(Ok(_) | Err(Error::Forbidden(_) | Error::NotFound(_))) => Ok(()),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(Error::Silent { request: format!("GET {path}"), limit: LIMIT }),
        }
    }

    /// Probes until `sink` is closed, and tells it each result. When the server is back, readers
    /// that wait after a failure ask again at once, those whose question is open do so if it fails, and
    /// watches that were open begin again from their last version: nobody can tell whether their
    /// connections survived. It has a connection of its own, and when nothing is heard on that, no other
    /// that is idle is used again: where they died silently, each would cost whoever takes it a whole
    /// time limit.
    pub async fn keep_probing<E: From<Probed>>(&self, sink: &mpsc::Sender<E>) {
        let (mut failing, own) = (false, self.apart());
        loop {
            sleep(if failing { PERIOD_FAILING } else { PERIOD }).await;
            let found = own.probe().await;
            // Any other error was an answer: the connection lives.
            if let Err(Error::Silent { .. } | Error::Broken { .. } | Error::Unreachable(_)) = found
            {
                self.forget_idle();
            }
            self.note(&found, &mut failing);
            if sink.send(Probed(found).into()).await.is_err() {
                return;
            }
        }
    }

    /// Says that the server is back, where it was `failing` and this probe succeeded.
    pub(super) fn note(&self, found: &Result<(), Error>, failing: &mut bool) {
        if std::mem::replace(failing, found.is_err()) && !*failing {
            self.revived.send_modify(|count| *count += 1);
        }
    }
}
