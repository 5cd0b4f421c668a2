//! The issuer of tokens for workloads outside of all clusters (`--token-issuer`). Its keys are
//! fetched like the keys that policies name.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tracing::{info, warn};

use super::key_fetcher::{self, KeyPlaces};
use super::source::ConfigOrigin;
use crate::config::ServeArgs;
use strait_base::source_status::SourceStatusTable;
use strait_base::task::Supervisor;
use strait_identity::token::IssuerKeys;
use strait_kube_client::Loopback;
use strait_model::fetched_keys::{FetchedKeys, KeyPlace, WantedKeys};
use strait_sources::clusters::callers::OutsideIssuer;
use strait_sources::jwks::KeyRequests;

/// Maximum duration of a fetch.
const TIMEOUT: Duration = Duration::from_secs(5);
/// File of the state directory that stores the keys.
const FILE: &str = "token-jwks.json";

/// Returns the configured issuer, if any. A task of `tasks` fetches its keys from now on.
pub(super) fn start(
    args: &ServeArgs,
    source: &ConfigOrigin,
    state_dir: Option<PathBuf>,
    statuses: &SourceStatusTable,
    tasks: &Supervisor,
) -> Option<OutsideIssuer> {
    let (issuer, uri) = (args.tokens.token_issuer.clone()?, args.tokens.token_jwks.as_deref()?);
    let cluster = args.tokens.token_cluster.clone()?;
    let place = KeyPlace::Uri(uri.into());
    let namespaces = [args.namespace.as_str().into()].into();
    let wanted = WantedKeys { timeout: TIMEOUT, namespaces };
    let wanted = watch::Sender::new(Arc::new(BTreeMap::from([(place.clone(), wanted)])));
    let loopback = source.loopback() != Loopback::Refused;
    let file = state_dir.map(|folder| folder.join(FILE));
    let requests = Arc::<KeyRequests<KeyPlace>>::default();
    let fetched_seen = key_fetcher::start(
        "keys of --token-issuer",
        args,
        loopback,
        KeyPlaces { wanted: wanted.subscribe(), requests: Arc::clone(&requests) },
        file,
        statuses,
        tasks,
    );
    let (name, fetched_from) = (issuer.clone(), place.clone());
    let (keys, keys_seen) = watch::channel(Err("they have not been fetched".to_owned()));
    tasks.spawn("issuer outside clusters", async move {
        // The wanted keys never change; the sender must live as long as this task.
        let _wanted = wanted;
        follow(&issuer, &fetched_from, fetched_seen, keys).await;
    });
    let namespaces = args.tokens.token_namespace.clone();
    Some(OutsideIssuer { issuer: name, cluster, namespaces, keys: keys_seen, place, requests })
}

async fn follow(
    issuer: &str,
    place: &KeyPlace,
    mut fetched: watch::Receiver<(Arc<FetchedKeys>, bool)>,
    keys: watch::Sender<Result<Arc<IssuerKeys>, String>>,
) {
    let mut last = None;
    loop {
        let state = fetched.borrow_and_update().0.get(place).cloned().unwrap_or_default();
        let (set, trouble) = (state.keys, state.trouble);
        // Known keys stay, even if later ones are invalid.
        let unknown = |why: String| {
            keys.send_if_modified(|held| {
                let is_news = held.as_ref().is_err_and(|held| *held != why);
                if is_news {
                    *held = Err(why);
                }
                is_news
            });
        };
        if let Some(trouble) = trouble.filter(|_| set.is_none()) {
            unknown(trouble);
        }
        if let Some(set) = set.filter(|set| last.as_ref() != Some(set)) {
            match IssuerKeys::parse(issuer, set.as_bytes()) {
                Ok(new) => {
                    info!(%place, "fetched the keys of --token-issuer");
                    drop(keys.send_replace(Ok(Arc::new(new))));
                }
                Err(error) => {
                    warn!(%place, %error, "the keys of --token-issuer are invalid");
                    unknown(error.to_string());
                }
            }
            last = Some(set);
        }
        // An error means that the process is ending.
        if fetched.changed().await.is_err() {
            return;
        }
    }
}
