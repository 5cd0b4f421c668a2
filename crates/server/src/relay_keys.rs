//! Published keys of the issuers of relay tokens, for each `clusters.ID.relay` in the policy file that
//! has no `keys`. The hub fetches them like the keys that access policies name.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use super::key_fetcher::{self, KeyPlaces};
use super::source::ConfigOrigin;
use crate::config::ServeArgs;
use strait_base::latest::publish_change;
use strait_base::source_status::SourceStatusTable;
use strait_base::task::Supervisor;
use strait_kube_client::Loopback;
use strait_model::Namespace;
use strait_model::fetched_keys::{FetchedKeys, KeyPlace, WantedKeys};
use strait_model::policy::Policy;
use strait_sources::jwks::KeyRequests;

/// Maximum duration of a fetch.
const TIMEOUT: Duration = Duration::from_secs(5);
/// File of the state directory that stores the keys.
const FILE: &str = "relay-jwks.json";

/// The fetched keys, and the requests to fetch them before they are due.
pub(super) struct RelayIssuerKeys {
    pub(super) fetched: watch::Receiver<(Arc<FetchedKeys>, bool)>,
    pub(super) requests: Arc<KeyRequests<KeyPlace>>,
}

/// Starts to fetch the keys, and returns them.
pub(super) fn start(
    args: &ServeArgs,
    source: &ConfigOrigin,
    state_dir: Option<PathBuf>,
    mut policy: watch::Receiver<Arc<Policy>>,
    statuses: &SourceStatusTable,
    tasks: &Supervisor,
) -> RelayIssuerKeys {
    let namespace: Namespace = args.namespace.as_str().into();
    let (wanted, wanted_seen) =
        watch::channel(Arc::new(wanted_keys(&policy.borrow_and_update(), &namespace)));
    // The operator writes the policy file.
    let loopback = source.loopback() != Loopback::Refused;
    let file = state_dir.map(|folder| folder.join(FILE));
    let requests = Arc::<KeyRequests<KeyPlace>>::default();
    let fetched = key_fetcher::start(
        "keys of relay tokens",
        args,
        loopback,
        KeyPlaces { wanted: wanted_seen, requests: Arc::clone(&requests) },
        file,
        statuses,
        tasks,
    );
    tasks.spawn("issuers of relay tokens", async move {
        while policy.changed().await.is_ok() {
            let new = wanted_keys(&policy.borrow_and_update(), &namespace);
            publish_change(&wanted, Arc::new(new));
        }
    });
    RelayIssuerKeys { fetched, requests }
}

fn wanted_keys(policy: &Policy, namespace: &Namespace) -> BTreeMap<KeyPlace, WantedKeys> {
    let issuers = policy.relay_trusts().filter(|(_, trust)| trust.keys.is_none());
    let wanted = issuers.map(|(_, trust)| {
        let namespaces = [namespace.clone()].into();
        (trust.key_place(), WantedKeys { timeout: TIMEOUT, namespaces })
    });
    wanted.collect()
}
