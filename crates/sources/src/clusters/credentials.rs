//! Secrets of members, read for the gateways that run there.
//!
//! A gateway's certificate is stored in a Secret in the gateway's own cluster and namespace. It is
//! read from there only while the gateway's account may list Secrets of that namespace, according
//! to the cluster's API server: an account that may not read a key does not receive it from Strait.
//! Each requested pair of account and Secret has one task. The last credential read for an account
//! stays in memory: a gateway that requests it again while its API server is unreachable gets it,
//! unless that server has refused the account since. Credentials are written to disk only if the
//! operator requests it (`kept.rs`).

mod access;
mod kept;
mod last;
mod secret_kind;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::future::pending;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use tokio::sync::{mpsc, watch};
use tracing::{info, warn};

use self::access::{AccessReviews, ReviewOutcome};
use self::last::{CredentialKey, FOLLOWED_MAX, LastCredentials};
use self::secret_kind::{SecretKind, StoredSecret};
use super::reconciler::MemberClients;
use strait_base::codes::{self, Code};
use strait_base::latest::publish_change;
use strait_base::lock::lock;
use strait_base::task::Supervisor;
use strait_identity::SpiffeId;
use strait_identity::credential::{CredentialRegistry, SecretFields, read_credential};
use strait_kube_client::{ApiClient, ApiError, ListSelection, ReadLimits, WatchEvent};
use strait_model::ClusterId;
use strait_model::credential::{
    CredentialName, CredentialPart, CredentialState, CredentialTrouble, ROOTS_SUFFIX,
};

/// The pause after the API server could not be reached.
const RETRY: Duration = Duration::from_secs(5);
/// Capacity of a reader's event channel. A full channel makes the reader wait, and with it the
/// server.
const EVENTS_MAX: usize = 8;
/// A Secret has at most 1 MiB of data.
const OBJECT_BYTES_MAX: usize = 2 << 20;

/// Reads Secrets of members for gateways.
#[derive(Debug)]
pub struct MemberCredentials {
    clients: watch::Receiver<Arc<MemberClients>>,
    tasks: Supervisor,
    access: Arc<AccessReviews>,
    followed: Arc<Mutex<Followed>>,
    last: Arc<Mutex<LastCredentials>>,
}

/// The states of all followed credentials.
type Followed = HashMap<CredentialKey, watch::Sender<CredentialState>>;

impl MemberCredentials {
    /// Creates a registry that reads nothing yet. Followers are spawned in `tasks`.
    pub fn new(clients: watch::Receiver<Arc<MemberClients>>, tasks: Supervisor) -> Self {
        let (access, followed, last) = (Arc::default(), Arc::default(), Arc::default());
        Self { clients, tasks, access, followed, last }
    }
}

impl MemberCredentials {
    /// Stores the credentials that were read last in a file, and restores them from it.
    #[must_use]
    pub fn keeping_in(self, file: PathBuf) -> Self {
        let stored = kept::read(&file).unwrap_or_else(|error| {
            warn!(path = %file.display(), %error, "cannot read the stored gateway credentials");
            Vec::new()
        });
        let changes = {
            let mut last = lock(&self.last);
            stored.iter().for_each(|(key, credential)| last.insert(key, credential));
            last.changes.subscribe()
        };
        self.tasks
            .spawn("gateway secrets", kept::store_changes(file, Arc::clone(&self.last), changes));
        self
    }
}

impl CredentialRegistry for MemberCredentials {
    fn follow(
        &self,
        cluster: &ClusterId,
        account: &SpiffeId,
        name: &CredentialName,
    ) -> watch::Receiver<CredentialState> {
        let key = (cluster.clone(), account.clone(), name.clone());
        let mut followed = lock(&self.followed);
        if let Some(state) = followed.get(&key) {
            return state.subscribe();
        }
        if followed.len() >= FOLLOWED_MAX {
            let fact =
                format!("{FOLLOWED_MAX} Secrets are already read for gateways, which is the limit");
            return watch::channel(nothing(&codes::SECRET_UNREADABLE, fact)).1;
        }
        // Not settled: without a read, it is sent only after the API server could not be reached.
        let current = lock(&self.last).get(&key);
        let (state, state_receiver) =
            watch::channel(CredentialState { current, ..Default::default() });
        followed.insert(key.clone(), state.clone());
        let follower = CredentialFollower {
            key,
            clients: self.clients.clone(),
            access: Arc::clone(&self.access),
            followed: Arc::clone(&self.followed),
            last: Arc::clone(&self.last),
            has_read: AtomicBool::new(false),
            state,
        };
        self.tasks.spawn("gateway secret", follower.run());
        state_receiver
    }
}

/// Returns a state without a credential, with the reason.
fn nothing(code: &'static Code, fact: String) -> CredentialState {
    let trouble = Some(CredentialTrouble { code, fact });
    CredentialState { current: None, trouble, settled: true }
}

/// Follows one credential until it has no receivers.
struct CredentialFollower {
    key: CredentialKey,
    clients: watch::Receiver<Arc<MemberClients>>,
    access: Arc<AccessReviews>,
    followed: Arc<Mutex<Followed>>,
    last: Arc<Mutex<LastCredentials>>,
    /// Whether this follower has read the credential itself. Otherwise its current credential is
    /// from an earlier follower.
    has_read: AtomicBool,
    state: watch::Sender<CredentialState>,
}

impl Drop for CredentialFollower {
    /// Removes the entry, so that the next request starts a new follower.
    fn drop(&mut self) {
        let mut followed = lock(&self.followed);
        if followed.get(&self.key).is_some_and(|state| state.same_channel(&self.state)) {
            followed.remove(&self.key);
        }
    }
}

impl CredentialFollower {
    async fn run(self) {
        tokio::select! {
            () = self.follow() => {}
            () = self.abandoned() => {}
        }
    }

    /// Waits until the state has no receivers, and removes the entry under the lock, before another
    /// receiver can subscribe.
    async fn abandoned(&self) {
        loop {
            self.state.closed().await;
            let mut followed = lock(&self.followed);
            if self.state.receiver_count() == 0 {
                followed.remove(&self.key);
                return;
            }
        }
    }

    async fn follow(&self) {
        let mut clients = self.clients.clone();
        loop {
            let client = clients.borrow_and_update().get(&self.key.0).cloned();
            let with = async {
                match &client {
                    Some(client) => self.follow_client(client).await,
                    None => {
                        let cluster = &self.key.0;
                        self.trouble(
                            &codes::SECRET_UNREADABLE,
                            format!("the API server of {cluster} cannot be contacted now"),
                        );
                        pending::<()>().await;
                    }
                }
            };
            let other = async {
                loop {
                    if clients.changed().await.is_err() {
                        pending::<()>().await;
                    }
                    let now = clients.borrow_and_update().get(&self.key.0).cloned();
                    let same = match (&now, &client) {
                        (Some(now), Some(before)) => now.is_same(before),
                        (None, None) => true,
                        _ => false,
                    };
                    if !same {
                        return;
                    }
                }
            };
            tokio::select! {
                () = with => {}
                () = other => {}
            }
        }
    }

    /// Reads the credential, and repeats the access review at intervals.
    async fn follow_client(&self, client: &ApiClient) {
        let (cluster, account, _) = &self.key;
        let mut reading = None;
        loop {
            let verdict = self.access.review_access(cluster, client, account).await;
            let wait = verdict.counts();
            match verdict {
                ReviewOutcome::Allowed => {
                    reading.get_or_insert_with(|| Box::pin(self.read(client)));
                }
                ReviewOutcome::Denied => {
                    reading = None;
                    let (ns, name) = (account.namespace(), account.service_account());
                    let fact = format!(
                        "account {name} may not list secrets in namespace {ns} of cluster {cluster}"
                    );
                    lock(&self.last).remove(&self.key);
                    self.set(nothing(&codes::SECRET_DENIED, fact));
                }
                // An account that was allowed before continues to be served; an account without any
                // review waits.
                ReviewOutcome::Unknown(fact) => {
                    self.trouble(&codes::SECRET_UNREADABLE, fact);
                }
            }
            match &mut reading {
                Some(reading) => {
                    tokio::select! {
                        () = reading.as_mut() => {}
                        () = tokio::time::sleep(wait) => continue,
                    }
                    tokio::time::sleep(RETRY).await;
                }
                None => tokio::time::sleep(wait).await,
            }
            reading = None;
        }
    }

    /// Reads the Secrets that may contain the credential, and publishes the result. Returns only if
    /// the reader ends.
    async fn read(&self, client: &ApiClient) {
        let (_, _, name) = &self.key;
        let limits = ReadLimits { object_bytes: OBJECT_BYTES_MAX, ..ReadLimits::default() };
        // Roots may be in a separate Secret.
        let own = match name.part {
            CredentialPart::Roots => {
                vec![format!("{}{ROOTS_SUFFIX}", name.name), name.name.to_string()]
            }
            CredentialPart::Pair => vec![name.name.to_string()],
        };
        let found = Mutex::new(FoundSecrets::default());
        let follow = |secret: &str| {
            let selection = ListSelection {
                namespace: Some(name.namespace.to_string()),
                fields: Some(format!("metadata.name={secret}")),
                ..ListSelection::all("", "v1", "secrets")
            };
            let (found, own, secret) = (&found, &own, Arc::<str>::from(secret));
            async move {
                let (events, mut received) = mpsc::channel(EVENTS_MAX);
                let consume = async {
                    while let Some(event) = received.recv().await {
                        let mut found = lock(found);
                        if found.take(&secret, event) {
                            self.show(own, &found);
                        }
                    }
                };
                tokio::select! {
                    () = client.read(SecretKind, selection, limits, &events) => {}
                    () = consume => {}
                }
            }
        };
        futures::future::join_all(own.iter().map(|secret| follow(secret))).await;
    }

    /// Publishes the state that follows from the Secrets found. An invalid or missing Secret does
    /// not replace a valid credential that this follower has read.
    fn show(&self, own: &[String], found: &FoundSecrets) {
        let (cluster, _, name) = &self.key;
        if let Some(error) = &found.failed {
            let code = &codes::SECRET_UNREADABLE;
            let next = match error {
                ApiError::Forbidden(_) => {
                    "; grant its reader secrets: strait cluster add CONTEXT --gateway-secrets NAMESPACE"
                }
                _ => "",
            };
            return self
                .trouble(code, format!("secret {name} of cluster {cluster}: {error}{next}"));
        }
        if own.iter().any(|secret| !found.secrets.contains_key(secret.as_str())) {
            return;
        }
        let mut existing =
            own.iter().filter_map(|secret| found.secrets.get(secret.as_str())?.as_ref());
        // If both Secrets exist, the first that contains roots.
        let fields =
            existing.clone().find(|fields| fields.roots.is_some()).or_else(|| existing.next());
        let Some(fields) = fields else {
            let fact = format!("cluster {cluster} has no secret {name}");
            lock(&self.last).remove(&self.key);
            return match self.has_read.load(Ordering::Relaxed) {
                true => self.trouble(&codes::SECRET_MISSING, fact),
                false => self.set(nothing(&codes::SECRET_MISSING, fact)),
            };
        };
        let origin = format!("secret {name} of cluster {cluster}");
        match read_credential(name.part, fields, &origin, SystemTime::now()) {
            Ok(current) => {
                let current = Arc::new(current);
                self.has_read.store(true, Ordering::Relaxed);
                lock(&self.last).insert(&self.key, &current);
                let current = Some(current);
                self.set(CredentialState { current, trouble: None, settled: true });
            }
            Err(error) => self.trouble(&codes::SECRET_INVALID, error.to_string()),
        }
    }

    /// Reports a problem, and keeps the current credential.
    fn trouble(&self, code: &'static Code, fact: String) {
        let current = self.state.borrow().current.clone();
        self.set(CredentialState { current, ..nothing(code, fact) });
    }

    fn set(&self, new: CredentialState) {
        let before = self.state.borrow().trouble.clone();
        if before != new.trouble {
            let (cluster, account, name) = &self.key;
            match &new.trouble {
                Some(CredentialTrouble { code, fact }) => {
                    warn!(code = code.id, %cluster, %account, secret = %name, "{fact}");
                }
                None => info!(%cluster, %account, secret = %name, "read the gateway's Secret"),
            }
        }
        publish_change(&self.state, new);
    }
}

/// The content of the Secrets read, by name.
#[derive(Default)]
struct FoundSecrets {
    /// By name; `None` if the Secret does not exist.
    secrets: BTreeMap<Arc<str>, Option<SecretFields>>,
    failed: Option<ApiError>,
}

impl FoundSecrets {
    /// Applies a reader's event. Returns whether it changed anything.
    fn take(&mut self, secret: &Arc<str>, event: WatchEvent<StoredSecret>) -> bool {
        let found = match event {
            WatchEvent::Restarted { mut objects, .. } => objects.pop().map(|secret| secret.fields),
            WatchEvent::Applied(secret) => Some(secret.fields),
            WatchEvent::Deleted(_) | WatchEvent::Invalid(_) => None,
            WatchEvent::Answered => return self.failed.take().is_some(),
            WatchEvent::Failed(error) => {
                self.failed = Some(error);
                return true;
            }
        };
        self.failed = None;
        self.secrets.insert(Arc::clone(secret), found);
        true
    }
}
