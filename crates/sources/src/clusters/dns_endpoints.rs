//! Writes `DNSEndpoint` objects of external-dns into the config cluster, for hosts that routers of
//! several clusters serve. One writer replaces instances of external-dns in each cluster, which
//! delete each other's records.
//!
//! The plan is pure (`plan`). A record is deleted only if its host is no longer configured; a host
//! without any ready router keeps its records. Needs `list`, `create`, `patch` and `delete` of
//! `dnsendpoints` in the namespace.

mod plan;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde::de::IgnoredAny;
use serde_json::Value;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};
use tracing::{debug, info, warn};

pub use self::plan::DnsSettings;
use self::plan::{DnsWrite, PresentRecords, plan};
use crate::registry::kube::US;
use strait_base::codes;
use strait_kube_client::{Access, ApiClient, ApiError, Patch};
use strait_model::{DnsHosts, WriterRole};

/// The minimum interval between two writes of one object.
const OBJECT_PAUSE: Duration = Duration::from_secs(10);
/// The pause between two writes: at most 20 writes per second.
const PACE: Duration = Duration::from_millis(50);
/// How often the objects are read again, so that deleted or changed ones are restored.
const RECHECK: Duration = Duration::from_secs(300);
/// The pause after a failed request.
const PAUSE: Duration = Duration::from_secs(30);

/// Writes the records while this process has the writer role. Ends when the sender of hosts is
/// dropped.
pub async fn run(
    access: watch::Receiver<Access>,
    mut role: watch::Receiver<WriterRole>,
    mut hosts: watch::Receiver<Option<Arc<DnsHosts>>>,
    settings: Arc<DnsSettings>,
) {
    let mut writer = RecordWriter { settings, written: BTreeMap::new(), is_denied: false };
    loop {
        if role.wait_for(|role| *role == WriterRole::Writes).await.is_err() {
            return;
        }
        let wanted = hosts.borrow_and_update().clone();
        let pause = match wanted {
            None => RECHECK,
            Some(wanted) => {
                let access = access.borrow().clone();
                let result = writer.follow(&access, &wanted, &role).await;
                writer.judge(result)
            }
        };
        tokio::select! {
            // Changed hosts do not shorten the pause after a failure.
            changed = hosts.changed(), if pause != PAUSE => if changed.is_err() { return },
            () = sleep(pause) => {}
        }
    }
}

struct RecordWriter {
    settings: Arc<DnsSettings>,
    /// When each object was last written, by name.
    written: BTreeMap<String, Instant>,
    /// Whether a missing kind or permission has been reported.
    is_denied: bool,
}

impl RecordWriter {
    /// Reads the objects and writes the differing ones. Returns when to look again.
    async fn follow(
        &mut self,
        access: &Access,
        wanted: &DnsHosts,
        role: &watch::Receiver<WriterRole>,
    ) -> Result<Duration, ApiError> {
        let client = ApiClient::new(access)?;
        let path = self.settings.path();
        let list: Value = client.get(&path).await?;
        let present = PresentRecords::read(&list, &self.settings.clusterset);
        let (mut next, now) = (RECHECK, Instant::now());
        self.written.retain(|_, at| now.duration_since(*at) < OBJECT_PAUSE);
        for write in plan(wanted, &present, &self.settings) {
            // The role may have changed since the first write.
            if *role.borrow() != WriterRole::Writes {
                break;
            }
            if let Some(at) = self.written.get(write.name()) {
                next = next.min(OBJECT_PAUSE.saturating_sub(at.elapsed()));
                continue;
            }
            self.written.insert(write.name().to_owned(), Instant::now());
            carry_out(&client, &path, &write).await?;
            sleep(PACE).await;
        }
        Ok(next.max(PACE))
    }

    /// Reports an error, if any. Returns the pause.
    fn judge(&mut self, result: Result<Duration, ApiError>) -> Duration {
        let error = match result {
            Ok(pause) => {
                self.is_denied = false;
                return pause;
            }
            Err(error) => error,
        };
        let is_lasting = matches!(
            error,
            ApiError::Forbidden(_) | ApiError::Unauthorized(_) | ApiError::NotFound(_)
        );
        if is_lasting && !self.is_denied {
            let code = &codes::DNS_NOT_WRITTEN;
            let namespace = &self.settings.namespace;
            warn!(%code, %error, %namespace, next = code.next, "cannot write DNSEndpoints");
        } else {
            debug!(%error, "cannot write DNSEndpoints; it will be retried");
        }
        self.is_denied |= is_lasting;
        PAUSE
    }
}

async fn carry_out(client: &ApiClient, path: &str, write: &DnsWrite) -> Result<(), ApiError> {
    let object = format!("{path}/{}", write.name());
    let (host, result) = match write {
        DnsWrite::Apply { host, body, .. } => {
            let applied = client.patch::<IgnoredAny>(&object, Patch::ApplyOwn(US), body).await;
            (host, applied.map(drop))
        }
        DnsWrite::Delete { host, uid, version, .. } => {
            (host, client.delete_exactly(&object, uid, version).await)
        }
    };
    match result {
        Ok(()) => {
            let is_deleted = matches!(write, DnsWrite::Delete { .. });
            info!(%host, is_deleted, "DNS records written");
            Ok(())
        }
        // Another manager has changed the object; the next look decides again.
        Err(ApiError::Rejected(fact)) => {
            debug!(%host, %fact, "the API server rejected DNS records");
            Ok(())
        }
        Err(error) => Err(error),
    }
}
