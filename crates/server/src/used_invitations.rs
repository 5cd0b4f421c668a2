//! The record of used invitations of relays.
//!
//! An invitation is valid once, at all replicas together. The record is one Secret of the system namespace with a data key
//! for each used invitation. The control plane therefore needs no right to change the Secrets of members, which may be in
//! other namespaces, or be restored from a repository. Without a config cluster, the record is in memory.

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::time::{Duration, SystemTime};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde::de::IgnoredAny;
use serde_json::{Map, Value, json};

use super::config_client::ConfigClient;
use super::kube_secret::{self, KubeSecret};
use strait_base::codes;
use strait_base::hex;
use strait_base::lock::lock;
use strait_base::time::rfc3339;
use strait_kube_client::{ApiError, Patch};
use strait_relay::hub::{EnrolmentRefusal, INVITATION_KEY, Invitation};

/// Name of the Secret. The chart's value `rbac.relays` permits to change it.
const NAME: &str = "strait-relay-invitations";
/// Maximum number of attempts while other replicas change the Secret.
const ATTEMPTS_MAX: usize = 5;
/// How long an entry outlives its invitation, because the clocks of replicas may differ.
const ENTRY_GRACE: Duration = Duration::from_secs(24 * 3600);

/// The record of used invitations.
pub(super) struct UsedInvitations {
    /// The client of the config cluster and the system namespace; `None` with `--config-dir`.
    config_cluster: Option<(ConfigClient, String)>,
    /// The used invitations, without a config cluster.
    in_memory: Mutex<BTreeSet<[u8; 32]>>,
}

impl UsedInvitations {
    /// Creates the record, in the system namespace of the config cluster if there is one.
    pub(super) fn new(config_cluster: Option<(ConfigClient, String)>) -> Self {
        Self { config_cluster, in_memory: Mutex::default() }
    }

    /// Records that the invitation in a member's Secret was used. `present` are the hashes of the invitations in the
    /// Secrets of all members: their entries stay.
    ///
    /// # Errors
    /// If it was used before or replaced, or cannot be recorded.
    pub(super) async fn record(
        &self,
        (member_namespace, member): (&str, &str),
        invitation: Invitation,
        present: &BTreeSet<String>,
        now: SystemTime,
    ) -> Result<(), EnrolmentRefusal> {
        let invalid = |fact: &str| Err(EnrolmentRefusal::new(401, &codes::RELAY_INVITATION, fact));
        let used = || invalid("the invitation was already used");
        let Some((config_client, namespace)) = &self.config_cluster else {
            // Strait does not write to the directory. It forgets the invitation when the process ends.
            return if lock(&self.in_memory).insert(invitation.sha256) { Ok(()) } else { used() };
        };
        let failed = |error: &dyn std::fmt::Display| not_recorded(namespace, error);
        let client = config_client.get().map_err(|error| failed(&error))?;
        let refused = |error: ApiError| {
            config_client.reconnect();
            refused_by(namespace, &error)
        };
        let hash = hex::encode(&invitation.sha256);
        for _ in 0..ATTEMPTS_MAX {
            // The watched Secret may be older than a later invitation.
            let current = KubeSecret::get(&client, member_namespace, member).await;
            let current = current.map_err(|error| {
                config_client.reconnect();
                let fact = format!("Secret {member_namespace}/{member} cannot be read: {error}");
                EnrolmentRefusal::new(503, &codes::RELAY_NOT_READY, fact)
            })?;
            if !current.is_some_and(|secret| has_invitation(&secret, &hash)) {
                return invalid("the invitation was replaced by a later one");
            }
            let secret = KubeSecret::get(&client, namespace, NAME).await.map_err(refused)?;
            let written = match secret {
                // Created without an entry, so that a missing right to change it is found at the first use.
                None => {
                    let empty = kube_secret::empty(namespace, NAME);
                    let all = kube_secret::all_of(namespace);
                    client.create::<IgnoredAny>(&all, &empty).await.map(|_| false)
                }
                Some(secret) if secret.part(&hash).is_some() => return used(),
                Some(secret) => {
                    let change = change(secret, (&hash, invitation.expires), present, now);
                    let path = kube_secret::path(namespace, NAME);
                    client.patch::<IgnoredAny>(&path, Patch::Merge, &change).await.map(|_| true)
                }
            };
            match written {
                Ok(true) => return Ok(()),
                Ok(false) => {}
                // Another replica was faster.
                Err(ApiError::Rejected(status)) if status.code == 409 => {}
                Err(error) => return Err(refused(error)),
            }
        }
        Err(failed(&"other replicas change it at the same time"))
    }
}

/// Whether the Secret of a member has the invitation with this hash.
fn has_invitation(secret: &KubeSecret, hash: &str) -> bool {
    let stored = secret.part(INVITATION_KEY).and_then(Result::ok).unwrap_or_default();
    String::from_utf8_lossy(&stored).trim().eq_ignore_ascii_case(hash)
}

/// Returns the merge patch that adds an entry, and removes entries whose invitations cannot be used any more.
fn change(
    secret: KubeSecret,
    (hash, expires): (&str, SystemTime),
    present: &BTreeSet<String>,
    now: SystemTime,
) -> Value {
    let is_obsolete = |key: &str| {
        let end = secret.part(key).and_then(Result::ok);
        let end = end.and_then(|end| String::from_utf8(end).ok()?.parse::<jiff::Timestamp>().ok());
        // An unreadable entry stays.
        end.is_some_and(|end| SystemTime::from(end) + ENTRY_GRACE < now) && !present.contains(key)
    };
    let obsolete = secret.keys().filter(|key| is_obsolete(key));
    let mut data: Map<String, Value> = obsolete.map(|key| (key.to_owned(), Value::Null)).collect();
    data.insert(hash.to_owned(), json!(BASE64.encode(rfc3339(expires))));
    json!({ "metadata": { "resourceVersion": secret.version() }, "data": data })
}

fn not_recorded(namespace: &str, fact: &dyn std::fmt::Display) -> EnrolmentRefusal {
    let fact = format!(
        "the use of the invitation could not be recorded in Secret {namespace}/{NAME}: {fact}"
    );
    EnrolmentRefusal::new(503, &codes::RELAY_NOT_READY, fact)
}

fn refused_by(namespace: &str, error: &ApiError) -> EnrolmentRefusal {
    match error {
        ApiError::Forbidden(_) => {
            let fact = format!("{error}; set rbac.relays=true in the chart of the hub");
            not_recorded(namespace, &fact)
        }
        error => not_recorded(namespace, error),
    }
}
