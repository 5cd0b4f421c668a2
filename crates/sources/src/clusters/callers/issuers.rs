//! Reads the token issuer and the signing keys of each member from the member's own API server,
//! never from an address in a response.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::stream::{self, StreamExt as _};
use serde::Deserialize;
use serde_json::Value;
use tokio::sync::watch;
use tokio::time::Instant;
use tracing::{info, warn};

use crate::clusters::reconciler::{MemberClients, MembersSettled};
use crate::jwks::KeyRequests;
use strait_base::codes;
use strait_base::task::until;
use strait_identity::token::IssuerKeys;
use strait_kube_client::ApiClient;
use strait_model::{ClusterId, KnownClusters};

/// The pause of the reader after a panic.
pub(super) const PAUSE: Duration = Duration::from_secs(1);
/// The interval at which keys are read again, plus or minus a quarter.
const REFRESH: Duration = Duration::from_secs(3600);
/// The first and the maximum pause after a failed read.
const RETRY: Duration = Duration::from_secs(10);
const RETRY_MAX: Duration = Duration::from_secs(600);
/// The time limit for one member.
const LIMIT: Duration = Duration::from_secs(10);
/// Maximum number of concurrent reads.
const READS_MAX: usize = 8;

const CONFIGURATION: &str = "/.well-known/openid-configuration";
const KEY_SET: &str = "/openid/v1/jwks";

/// The keys that sign the tokens of each member.
pub type MemberKeys = BTreeMap<ClusterId, Arc<IssuerKeys>>;

/// Reads the keys of members.
#[derive(Clone)]
pub(super) struct IssuerReader {
    pub(super) known: watch::Receiver<Arc<KnownClusters>>,
    pub(super) settled: watch::Receiver<MembersSettled>,
    pub(super) clients: watch::Receiver<Arc<MemberClients>>,
    pub(super) requests: Arc<KeyRequests<ClusterId>>,
    pub(super) keys: watch::Sender<Arc<MemberKeys>>,
}

/// The next read of a member.
struct IssuerSchedule {
    client: ApiClient,
    at: Instant,
    failures: u32,
    /// Why the last read failed.
    trouble: Option<String>,
}

#[derive(Deserialize)]
struct IssuerPage {
    issuer: String,
}

impl IssuerReader {
    pub(super) async fn run(mut self) {
        let mut schedules = BTreeMap::<ClusterId, IssuerSchedule>::new();
        loop {
            let clients = Arc::clone(&self.clients.borrow_and_update());
            self.forget();
            schedule_new_clients(&mut schedules, &clients);
            self.read_due_keys(&mut schedules).await;
            let next = schedules.values().map(|schedule| schedule.at).min();
            tokio::select! {
                changed = self.clients.changed() => if changed.is_err() { return },
                requested = self.requests.next() => {
                    for cluster in requested {
                        if let Some(schedule) = schedules.get_mut(&cluster) {
                            schedule.at = Instant::now();
                        }
                    }
                }
                Ok(()) = self.known.changed() => {}
                Ok(()) = self.settled.changed() => {}
                () = until(next) => {}
            }
        }
    }

    /// Removes the keys of clusters that are not members, once the set of members is known.
    fn forget(&mut self) {
        // The members are published before the flag that they are settled.
        let is_read = *self.settled.borrow_and_update() != MembersSettled::ConfigurationUnread;
        let known_clusters = Arc::clone(&self.known.borrow_and_update());
        self.keys.send_if_modified(|keys| {
            let has_gone = is_read && keys.keys().any(|id| !known_clusters.contains(id));
            if has_gone {
                Arc::make_mut(keys).retain(|id, _| known_clusters.contains(id));
            }
            has_gone
        });
    }

    async fn read_due_keys(&self, schedules: &mut BTreeMap<ClusterId, IssuerSchedule>) {
        let now = Instant::now();
        let due_members = schedules.iter().filter(|(_, schedule)| schedule.at <= now);
        let due_members: Vec<_> =
            due_members.map(|(id, schedule)| (id.clone(), schedule.client.clone())).collect();
        let reads = due_members.into_iter().map(|(id, client)| async {
            let read = tokio::time::timeout(LIMIT, read(client)).await;
            (id, read.unwrap_or_else(|_| Err(format!("no response within {LIMIT:?}"))))
        });
        let mut reads = stream::iter(reads).buffer_unordered(READS_MAX);
        while let Some((id, found)) = reads.next().await {
            let Some(schedule) = schedules.get_mut(&id) else { continue };
            match found {
                Ok(keys) => {
                    let spread = 0.75 + 0.5 * rand::random::<f64>();
                    schedule.at = Instant::now() + REFRESH.mul_f64(spread);
                    (schedule.failures, schedule.trouble) = (0, None);
                    self.store_keys(id, keys);
                }
                Err(trouble) => {
                    let rest = RETRY * 2u32.saturating_pow(schedule.failures.min(10));
                    schedule.at = Instant::now() + rest.min(RETRY_MAX);
                    schedule.failures += 1;
                    if schedule.trouble.as_ref() != Some(&trouble) {
                        let code = &codes::KEYS_UNREADABLE;
                        warn!(
                            %code,
                            cluster = %id,
                            reason = trouble,
                            "{}; its tokens are checked by its API server or with the last known keys. {}",
                            code.title,
                            code.next
                        );
                    }
                    schedule.trouble = Some(trouble);
                }
            }
        }
    }

    fn store_keys(&self, id: ClusterId, keys: IssuerKeys) {
        self.keys.send_if_modified(|current| {
            if current.get(&id).is_some_and(|current| **current == keys) {
                return false;
            }
            info!(cluster = %id, issuer = %keys.issuer(), "read the signing keys of the cluster's tokens");
            Arc::make_mut(current).insert(id, Arc::new(keys));
            true
        });
    }
}

/// Schedules a read for members that are new or have a new client.
fn schedule_new_clients(
    schedules: &mut BTreeMap<ClusterId, IssuerSchedule>,
    clients: &MemberClients,
) {
    schedules.retain(|id, schedule| {
        clients.get(id).is_some_and(|client| client.is_same(&schedule.client))
    });
    for (id, client) in clients {
        let new = || IssuerSchedule {
            client: client.clone(),
            at: Instant::now(),
            failures: 0,
            trouble: None,
        };
        schedules.entry(id.clone()).or_insert_with(new);
    }
}

async fn read(client: ApiClient) -> Result<IssuerKeys, String> {
    let fact = |error: strait_kube_client::ApiError| error.to_string();
    let configuration = client.get::<IssuerPage>(CONFIGURATION).await.map_err(fact)?;
    let keys = client.get::<Value>(KEY_SET).await.map_err(fact)?;
    IssuerKeys::parse(&configuration.issuer, keys.to_string().as_bytes())
        .map_err(|error| error.to_string())
}
