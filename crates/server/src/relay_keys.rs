//! Published keys of the issuers of relay tokens, for each `clusters.ID.relay` in the policy file that
//! has no `keys`. The hub fetches them like the keys that access policies name.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use super::source::ConfigOrigin;
use crate::config::ServeArgs;
use strait_base::source_status::SourceStatusTable;
use strait_base::task::Supervisor;
use strait_kube_client::Loopback;
use strait_model::Namespace;
use strait_model::fetched_keys::{FetchedKeys, KeyPlace, WantedKeys};
use strait_model::policy::Policy;
use strait_sources::jwks;

/// Maximum duration of a fetch.
const TIMEOUT: Duration = Duration::from_secs(5);
/// File of the state directory that stores the keys.
const FILE: &str = "relay-jwks.json";

/// Starts to fetch the keys, and returns them.
pub(super) fn start(
    args: &ServeArgs,
    source: &ConfigOrigin,
    state_dir: Option<PathBuf>,
    mut policy: watch::Receiver<Arc<Policy>>,
    statuses: &SourceStatusTable,
    tasks: &Supervisor,
) -> watch::Receiver<(Arc<FetchedKeys>, bool)> {
    let namespace: Namespace = args.namespace.as_str().into();
    let (wanted, wanted_seen) =
        watch::channel(Arc::new(wanted_keys(&policy.borrow_and_update(), &namespace)));
    let (fetched, seen) = watch::channel(Default::default());
    // The operator writes the policy file.
    let rules = jwks::DialRules {
        loopback: source.loopback() != Loopback::Refused,
        denied: args.jwks_deny.clone(),
    };
    let inputs = jwks::FetcherInputs {
        wanted: wanted_seen,
        client: Arc::new(jwks::KeyClient { rules, roots: args.jwks_roots.clone() }),
        file: state_dir.map(|folder| folder.join(FILE)),
        statuses: statuses.clone(),
        fetched,
    };
    tasks.spawn_restarting("keys of relay tokens", Duration::from_secs(1), move || {
        jwks::run(inputs.clone())
    });
    tasks.spawn("issuers of relay tokens", async move {
        while policy.changed().await.is_ok() {
            let new = wanted_keys(&policy.borrow_and_update(), &namespace);
            wanted.send_if_modified(|wanted| {
                let differs = **wanted != new;
                if differs {
                    *wanted = Arc::new(new);
                }
                differs
            });
        }
    });
    seen
}

fn wanted_keys(policy: &Policy, namespace: &Namespace) -> BTreeMap<KeyPlace, WantedKeys> {
    let issuers = policy.relay_trusts().filter(|(_, trust)| trust.keys.is_none());
    let wanted = issuers.map(|(_, trust)| {
        let namespaces = [namespace.clone()].into();
        (trust.key_place(), WantedKeys { timeout: TIMEOUT, namespaces })
    });
    wanted.collect()
}
