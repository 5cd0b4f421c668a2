//! Starts the tasks that fetch published keys of token issuers.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use crate::config::ServeArgs;
use strait_base::source_status::SourceStatusTable;
use strait_base::task::Supervisor;
use strait_model::fetched_keys::{FetchedKeys, KeyPlace, WantedKeys};
use strait_sources::jwks::{self, KeyRequests};

/// The locations of keys.
pub(super) struct KeyPlaces {
    pub(super) wanted: watch::Receiver<Arc<BTreeMap<KeyPlace, WantedKeys>>>,
    /// The locations to fetch before they are due.
    pub(super) requests: Arc<KeyRequests<KeyPlace>>,
}

/// Starts the task `name`, which fetches the wanted keys and stores them in `file`. Returns the keys, and
/// whether all of them were tried. `loopback` is whether the keys may be on this host.
pub(super) fn start(
    name: &'static str,
    args: &ServeArgs,
    loopback: bool,
    places: KeyPlaces,
    file: Option<PathBuf>,
    statuses: &SourceStatusTable,
    tasks: &Supervisor,
) -> watch::Receiver<(Arc<FetchedKeys>, bool)> {
    let (fetched, seen) = watch::channel(Default::default());
    let rules = jwks::DialRules { loopback, denied: args.access.jwks_deny.clone() };
    let client = Arc::new(jwks::KeyClient { rules, roots: args.access.jwks_roots.clone() });
    let (KeyPlaces { wanted, requests }, statuses) = (places, statuses.clone());
    let inputs = jwks::FetcherInputs { wanted, requests, client, file, statuses, fetched };
    tasks.spawn_restarting(name, Duration::from_secs(1), move || jwks::run(inputs.clone()));
    seen
}
