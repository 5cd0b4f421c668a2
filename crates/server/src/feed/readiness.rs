//! The facts that readiness waits for.

use std::convert::Infallible;
use std::sync::Arc;

use tokio::sync::watch;

use crate::admin::Readiness;
use strait_base::codes;
use strait_base::latest::publish_change;
use strait_sources::clusters::reconciler::MembersSettled;

/// Reason of unreadiness until the configuration has been read.
const UNREAD: &str = "the configuration to be read";

/// Reports that readiness waits for the configuration, and why. Without configuration and restored
/// state, the clusters are unknown, and a response would withdraw all endpoints.
pub(super) async fn report_unread(
    readiness: &watch::Sender<Readiness>,
    mut unread: watch::Receiver<Option<String>>,
) -> Infallible {
    loop {
        let waiting_for = match &*unread.borrow_and_update() {
            None => UNREAD.to_owned(),
            Some(fact) => {
                let code = &codes::CONFIG_CLUSTER_UNREAD;
                format!(
                    "{UNREAD}: {code}: {fact}; no proxy receives a response until then, and running proxies keep their configuration. {}",
                    code.next
                )
            }
        };
        readiness.send_replace(Readiness { ready: false, waiting_for: vec![waiting_for] });
        if unread.changed().await.is_err() {
            return std::future::pending().await;
        }
    }
}

/// Reports what readiness waits for.
pub(super) fn report_readiness(
    readiness: &watch::Sender<Readiness>,
    settled: &MembersSettled,
    sources: &[Arc<str>],
) {
    let mut waiting_for = match settled {
        MembersSettled::ConfigurationUnread => vec![UNREAD.to_owned()],
        MembersSettled::Waiting(clusters) => {
            clusters.iter().map(|id| format!("cluster {id} to sync")).collect()
        }
        MembersSettled::All if sources.is_empty() => {
            vec!["the first version of the mesh".to_owned()]
        }
        MembersSettled::All => Vec::new(),
    };
    waiting_for.extend(sources.iter().map(|name| format!("source {name} to be read")));
    let new = Readiness { ready: false, waiting_for };
    publish_change(readiness, new);
}
