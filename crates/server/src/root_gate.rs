//! Compares the CA's roots with the roots that workloads have at the start. If workloads have none
//! of the CA's roots, the process stays unready and writes nothing, so that the rollout of a
//! Deployment stops and the previous replicas continue to serve.

use std::sync::Arc;
use std::time::SystemTime;

use tokio::sync::watch;
use tracing::{error, info, warn};

use crate::admin::Readiness;
use strait_base::codes;
use strait_base::task::Supervisor;
use strait_identity::{RootConflict, RootRecords, ServerIdentity};

/// The reason why the process must not serve; `None` if it may. A reason is only ever removed.
#[derive(Debug, Clone)]
pub(super) struct RootGate(watch::Receiver<Option<Arc<str>>>);

impl RootGate {
    /// Compares the roots. While the process must not serve, repeats this after each change of the
    /// CA.
    pub(super) fn start(
        identity: &watch::Receiver<Arc<ServerIdentity>>,
        records: RootRecords,
        is_accepted: bool,
        tasks: &Supervisor,
    ) -> Self {
        let mut identity = identity.clone();
        let find = move |identity: &ServerIdentity| {
            identity.conflict_with(&records, SystemTime::now()).map(|conflict| describe(&conflict))
        };
        let code = &codes::ROOTS_UNKNOWN;
        let conflict = find(&identity.borrow_and_update().clone());
        let conflict = match conflict {
            Some(fact) if is_accepted => {
                warn!(%code, %fact, "starting with roots that no workload has: --accept-new-root is set");
                None
            }
            conflict => conflict,
        };
        let (gate, seen) = watch::channel(conflict.clone());
        let Some(fact) = conflict else { return Self(seen) };
        error!(%code, %fact, next = code.next, "{}", code.title);
        tasks.spawn("active roots", async move {
            // An error means that the process is ending.
            while identity.changed().await.is_ok() {
                let conflict = find(&identity.borrow_and_update().clone());
                if conflict.is_none() {
                    info!("workloads have a root of the CA; starting to serve");
                    gate.send_replace(None);
                    break;
                }
            }
            // The receivers wait for a change.
            gate.closed().await;
        });
        Self(seen)
    }

    /// Waits until the process may serve. Until then, reports the reason as unreadiness.
    pub(super) async fn opened(self, readiness: &watch::Sender<Readiness>) {
        let fact = self.0.borrow().clone();
        if let Some(fact) = fact {
            readiness.send_replace(Readiness { ready: false, waiting_for: vec![fact.to_string()] });
            self.open().await;
        }
    }

    /// Waits until the process may serve.
    pub(super) async fn open(mut self) {
        if self.0.wait_for(Option::is_none).await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

fn describe(conflict: &RootConflict) -> Arc<str> {
    let list = |roots: &std::collections::BTreeSet<_>| {
        roots.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
    };
    let RootConflict { new, active } = conflict;
    let code = &codes::ROOTS_UNKNOWN;
    format!(
        "a CA whose roots workloads have: {code}: the CA has the roots {}; workloads have {}. {}",
        list(new),
        list(active),
        code.next.replace('\n', " ")
    )
    .into()
}
