//! ClusterProfiles that Strait publishes for its members (`publishProfiles` in the operator file), so
//! that other tools find them.
//!
//! A profile has no access providers: every consumer of the inventory could read how a member is
//! reached. Profiles of other managers are never changed, and members that come from a profile are not
//! published again. Needs `get`, `list`, `create`, `patch` and `delete` of ClusterProfiles in the
//! namespace.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use jiff::Timestamp;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout};
use tracing::{info, warn};

use super::reconciler::{MemberClients, MembersSettled};
use super::status::{ClusterState, ClusterStatus};
use crate::members::MemberSources;
use crate::members::profile::{ID_PROPERTY, PUBLISHING_MANAGER};
use crate::registry::kube::MANAGED_BY;
use strait_base::codes;
use strait_kube_client::{Access, ApiClient, ApiError, Patch};
use strait_model::{ClusterId, WriterRole};

/// The minimum time between two rounds of writes: consumers expect at most one update per 30 s.
const PACE: Duration = Duration::from_millis(if cfg!(test) { 50 } else { 30_000 });
/// How often the profiles are compared without a change of the members.
const REPEAT: Duration = Duration::from_secs(600);
/// The time limit of one request to a member for its version.
const VERSION_LIMIT: Duration = Duration::from_secs(5);
/// The number of profiles in one response.
const PAGE: usize = 500;
const MANAGER_LABEL: &str = "x-k8s.io/cluster-manager";
const NETWORK_PROPERTY: &str = "strait.dev/network";
const API: &str = "multicluster.x-k8s.io/v1alpha1";

/// The inputs of the task.
#[derive(Clone)]
pub struct PublishedProfilesConfig {
    /// The access to the config cluster.
    pub access: watch::Receiver<Access>,
    /// Whether this process writes.
    pub role: watch::Receiver<WriterRole>,
    /// The operator file.
    pub sources: watch::Receiver<Arc<MemberSources>>,
    /// Whether all members are known.
    pub settled: watch::Receiver<MembersSettled>,
    /// The members.
    pub statuses: watch::Receiver<Arc<Vec<ClusterStatus>>>,
    /// The clients of their API servers.
    pub clients: watch::Receiver<Arc<MemberClients>>,
}

/// The published form of a member.
#[derive(Debug, Clone, PartialEq, Eq)]
struct PublishedMember {
    network: Option<String>,
    /// The status of the condition `ControlPlaneHealthy`, and its reason in upper camel case.
    healthy: &'static str,
    reason: String,
}

/// The published members by ID.
type PublishedMembers = BTreeMap<String, PublishedMember>;

/// Publishes the members. Ends when the sender of statuses is dropped.
pub async fn run(mut config: PublishedProfilesConfig) {
    let mut round = PublishingRound::default();
    let mut last = None;
    let mut due = Instant::now();
    loop {
        let namespace = config.sources.borrow_and_update().publish_profiles.clone();
        let is_ready = *config.role.borrow_and_update() == WriterRole::Writes
            && *config.settled.borrow_and_update() == MembersSettled::All;
        let members = published_members(&config.statuses.borrow_and_update());
        let wanted = (namespace, members);
        let now = Instant::now();
        let is_repeat = now >= due + REPEAT;
        if is_ready && now >= due && (is_repeat || last.as_ref() != Some(&wanted)) {
            let (namespace, members) = &wanted;
            round.publish(&config, namespace.as_deref(), members).await;
            due = Instant::now() + PACE;
            // A failed round is repeated after the pause.
            last = round.failure.is_none().then_some(wanted);
        }
        let next = if Instant::now() < due { due } else { due + REPEAT };
        tokio::select! {
            changed = config.statuses.changed() => if changed.is_err() { return },
            Ok(()) = config.role.changed() => {}
            Ok(()) = config.settled.changed() => {}
            Ok(()) = config.sources.changed() => {}
            () = sleep_until(next) => {}
        }
        // Several changes within a pause cause one round.
        sleep_until(due).await;
    }
}

/// Returns the members to publish: those that are in use and do not come from a profile.
fn published_members(statuses: &[ClusterStatus]) -> PublishedMembers {
    let is_member = |status: &&ClusterStatus| {
        status.source_kind == Some("Secret")
            && !matches!(status.state, ClusterState::Rejected | ClusterState::Conflict)
    };
    let member = |status: &ClusterStatus| {
        let healthy = match status.state {
            ClusterState::Live | ClusterState::Draining => "True",
            ClusterState::Syncing | ClusterState::Restored | ClusterState::Paused => "Unknown",
            _ => "False",
        };
        let mut letters = status.state.as_str().chars();
        let first = letters.next().map(|first| first.to_ascii_uppercase());
        let reason = first.into_iter().chain(letters).collect();
        let network = status.network.as_ref().map(ToString::to_string);
        let network = network.filter(|network| !network.is_empty());
        (status.id.clone(), PublishedMember { network, healthy, reason })
    };
    statuses.iter().filter(is_member).map(member).collect()
}

/// The state between rounds.
#[derive(Debug, Default)]
struct PublishingRound {
    /// The Kubernetes versions of members.
    versions: BTreeMap<String, String>,
    /// The namespace of the last round.
    namespace: Option<String>,
    /// The last reported failure.
    failure: Option<String>,
    /// The profiles of other managers that were reported.
    foreign: BTreeSet<String>,
}

#[derive(Deserialize)]
struct ProfileList {
    #[serde(default)]
    metadata: ListMetadata,
    #[serde(default, deserialize_with = "strait_kube_client::null_as_default")]
    items: Vec<Value>,
}

#[derive(Deserialize, Default)]
struct ListMetadata {
    #[serde(default)]
    r#continue: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ServerVersion {
    git_version: String,
}

impl PublishingRound {
    /// Brings the profiles in line with the members, and removes those in the previous namespace.
    async fn publish(
        &mut self,
        config: &PublishedProfilesConfig,
        namespace: Option<&str>,
        members: &PublishedMembers,
    ) {
        let access = config.access.borrow().clone();
        let previous = self.namespace.take().filter(|previous| Some(&**previous) != namespace);
        let clients = config.clients.borrow().clone();
        if namespace.is_some() {
            self.read_versions(members, &clients).await;
        }
        let result = async {
            let client = ApiClient::new(&access)?;
            if let Some(previous) = &previous {
                self.align(&client, previous, &PublishedMembers::new()).await?;
            }
            match namespace {
                Some(namespace) => self.align(&client, namespace, members).await,
                None => Ok(()),
            }
        };
        let failure = result.await.err().map(|error| error.to_string());
        // A namespace that could not be cleared is tried again while no other one replaces it.
        self.namespace = match &failure {
            Some(_) if namespace.is_none() => previous,
            _ => namespace.map(str::to_owned),
        };
        if let Some(fact) = failure.as_ref().filter(|_| failure != self.failure) {
            let code = &codes::PROFILES_UNPUBLISHED;
            warn!(%code, reason = %fact, "cannot publish ClusterProfiles");
        }
        self.failure = failure;
    }

    /// Reads the versions of members that respond.
    async fn read_versions(&mut self, members: &PublishedMembers, clients: &MemberClients) {
        self.versions.retain(|id, _| members.contains_key(id));
        let reads =
            members.iter().filter(|(_, member)| member.healthy == "True").filter_map(|(id, _)| {
                let client = clients.get(&ClusterId::from(id.as_str()))?;
                Some(async move {
                    let read =
                        timeout(VERSION_LIMIT, client.get::<ServerVersion>("/version")).await;
                    Some((id.clone(), read.ok()?.ok()?.git_version))
                })
            });
        self.versions.extend(join_all(reads).await.into_iter().flatten());
    }

    async fn align(
        &mut self,
        client: &ApiClient,
        namespace: &str,
        members: &PublishedMembers,
    ) -> Result<(), ApiError> {
        let path = format!("/apis/{API}/namespaces/{namespace}/clusterprofiles");
        let existing = list(client, &path).await?;
        for (id, member) in members {
            let current = existing.get(id);
            if current.is_some_and(|current| !is_own(current)) {
                if self.foreign.insert(id.clone()) {
                    let code = &codes::PROFILES_UNPUBLISHED;
                    warn!(%code, profile = %format!("{namespace}/{id}"), "another manager has a ClusterProfile with the name of a member");
                }
                continue;
            }
            let current = current.unwrap_or(&Value::Null);
            let profile = profile(id, namespace);
            if !contains(current, &profile) {
                apply(client, &format!("{path}/{id}"), &profile).await?;
            }
            let version = self.versions.get(id).map(String::as_str);
            let status = status(member, id, version, &current["status"], Timestamp::now());
            if !contains(&current["status"], &status) {
                let body = json!({
                    "apiVersion": API, "kind": "ClusterProfile",
                    "metadata": { "name": id, "namespace": namespace }, "status": status,
                });
                apply(client, &format!("{path}/{id}/status"), &body).await?;
            }
        }
        self.foreign.retain(|id| members.contains_key(id));
        for (id, _) in existing.iter().filter(|(id, one)| is_own(one) && !members.contains_key(*id))
        {
            match client.delete(&format!("{path}/{id}")).await {
                Ok(()) => info!(profile = %format!("{namespace}/{id}"), "ClusterProfile removed"),
                Err(ApiError::NotFound(_)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// Applies an object. Its fields belong to this process, also if another writer set them.
async fn apply(client: &ApiClient, path: &str, object: &Value) -> Result<(), ApiError> {
    client.patch::<IgnoredAny>(path, Patch::Apply(PUBLISHING_MANAGER), object).await.map(drop)
}

/// Lists the profiles of a namespace by name.
async fn list(client: &ApiClient, path: &str) -> Result<BTreeMap<String, Value>, ApiError> {
    let (mut found, mut token) = (BTreeMap::new(), String::new());
    loop {
        let page: ProfileList =
            client.get(&format!("{path}?limit={PAGE}&continue={token}")).await?;
        for item in page.items {
            if let Some(name) = item["metadata"]["name"].as_str().map(str::to_owned) {
                found.insert(name, item);
            }
        }
        // The token is base64 for URLs, or absent.
        token = page.metadata.r#continue;
        if token.is_empty() {
            return Ok(found);
        }
    }
}

/// Whether this program manages a profile.
fn is_own(profile: &Value) -> bool {
    profile["spec"]["clusterManager"]["name"] == *PUBLISHING_MANAGER
        && profile["metadata"]["labels"][MANAGER_LABEL] == *PUBLISHING_MANAGER
}

fn profile(id: &str, namespace: &str) -> Value {
    json!({
        "apiVersion": API, "kind": "ClusterProfile",
        "metadata": {
            "name": id, "namespace": namespace,
            "labels": {
                MANAGER_LABEL: PUBLISHING_MANAGER,
                MANAGED_BY: PUBLISHING_MANAGER,
            },
        },
        "spec": { "displayName": id, "clusterManager": { "name": PUBLISHING_MANAGER } },
    })
}

/// Returns the status of a profile. The time of the condition stays until its status changes.
fn status(
    member: &PublishedMember,
    id: &str,
    version: Option<&str>,
    current: &Value,
    now: Timestamp,
) -> Value {
    let PublishedMember { network, healthy, reason } = member;
    let conditions = current["conditions"].as_array().map(Vec::as_slice).unwrap_or_default();
    let before = conditions.iter().find(|one| one["type"] == "ControlPlaneHealthy");
    let same = before.filter(|before| before["status"] == **healthy);
    let since = same.and_then(|before| before["lastTransitionTime"].as_str()).map(str::to_owned);
    let since = since.unwrap_or_else(|| now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string());
    let mut properties = vec![json!({ "name": ID_PROPERTY, "value": id })];
    if let Some(network) = network {
        properties.push(json!({ "name": NETWORK_PROPERTY, "value": network }));
    }
    let mut status = json!({
        "conditions": [{
            "type": "ControlPlaneHealthy", "status": healthy, "reason": reason,
            "message": "", "lastTransitionTime": since,
        }],
        "properties": properties,
    });
    if let Some(version) = version {
        status["version"] = json!({ "kubernetes": version });
    }
    status
}

/// Whether `current` has all fields of `wanted`. Lists must be equal except for further fields of their
/// entries.
fn contains(current: &Value, wanted: &Value) -> bool {
    match (current, wanted) {
        (Value::Object(current), Value::Object(wanted)) => wanted
            .iter()
            .all(|(key, wanted)| current.get(key).is_some_and(|one| contains(one, wanted))),
        (Value::Array(current), Value::Array(wanted)) => {
            current.len() == wanted.len()
                && current.iter().zip(wanted).all(|(current, wanted)| contains(current, wanted))
        }
        _ => current == wanted,
    }
}
