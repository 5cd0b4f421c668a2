//! The status of members and other problems as Kubernetes events in the config cluster, for
//! operators who use kubectl.
//!
//! Supplements `/debug/clusters` and `strait check`: one event about the Secret for each cluster and
//! each state that it enters, and one about the namespace for each code of a problem. Problems of
//! one code share an event, so that a thousand broken objects do not cause a thousand events. A
//! missing permission to write events has no other effect. Needs `create` and `patch` of events in
//! the system namespace.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde::de::IgnoredAny;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::sleep;
use tracing::debug;
use xxhash_rust::xxh3::xxh3_64;

use super::identity::ClusterIdHolder;
use super::status::{ClusterState, ClusterStatus};
use strait_base::bounded::bounded;
use strait_base::codes;
use strait_kube_client::{Access, ApiClient, ApiError, Patch};
use strait_model::WriterRole;

/// The minimum interval between two evaluations. A state that lasts for a shorter time is not
/// reported.
const PACE: Duration = Duration::from_secs(1);
/// The pause after the API server denied a write.
const REST: Duration = Duration::from_secs(600);
/// The pause after a transient error.
const PAUSE: Duration = Duration::from_secs(30);
/// The name of this program as the source of events and as the field manager of server-side apply.
const COMPONENT: &str = "strait";

/// A cluster ID and the Secret that names it; `None` for the config cluster.
type EventKey = (Option<String>, String);

/// The category and the code of a problem.
type ProblemKey = (&'static str, &'static str);

/// The subject of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Topic {
    State,
    Token,
    Kubeconfig,
    Identity,
    Withdrawal,
    Problem,
}

/// A problem that lasts, of one or several objects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LastingProblem {
    /// The category in `strait check`.
    pub category: &'static str,
    /// The code.
    pub code: &'static codes::Code,
    /// Number of objects with the problem.
    pub count: usize,
    /// The first of these objects.
    pub object: String,
    /// The problem of the first object in words.
    pub text: String,
}

impl LastingProblem {
    /// Returns a phrase for the objects after the first; empty if there is no other one.
    pub fn others(&self) -> String {
        match self.count.saturating_sub(1) {
            0 => String::new(),
            1 => ", and 1 other object".to_owned(),
            others => format!(", and {others} other objects"),
        }
    }
}

/// Writes events about the clusters and the problems while this process has the writer role. Ends
/// when a sender of these is dropped.
pub async fn run(
    access: watch::Receiver<Access>,
    namespace: String,
    mut role: watch::Receiver<WriterRole>,
    mut statuses: watch::Receiver<Arc<Vec<ClusterStatus>>>,
    mut problems: watch::Receiver<Arc<Vec<LastingProblem>>>,
) {
    let mut history = EventHistory::default();
    let mut wrote = false;
    loop {
        let writes = *role.borrow_and_update() == WriterRole::Writes;
        let takes_over = writes && !wrote;
        wrote = writes;
        if takes_over {
            history = EventHistory::default();
        }
        history.observe(&statuses.borrow_and_update().clone());
        history.observe_problems(&problems.borrow_and_update().clone());
        let mut rest = PACE;
        if !writes {
            // Another process writes, and reports it.
            history.pending.clear();
        } else if takes_over {
            // The previous writer may have ended before it reported them.
            history.pending.retain(|_, news| news.warning);
        }
        while *role.borrow() == WriterRole::Writes
            && let Some((key, news)) = history.pending.pop_first()
        {
            let event = event(&namespace, &key.0, &news, Timestamp::now());
            match write(&access, &namespace, &event).await {
                Ok(()) => {}
                Err(error @ (ApiError::Forbidden(_) | ApiError::Unauthorized(_))) => {
                    debug!(%error, "no permission to write events");
                    rest = REST;
                }
                // The API server does not accept the event.
                Err(error @ (ApiError::NotFound(_) | ApiError::Rejected(_))) => {
                    debug!(%error, cluster = key.0.1, "event not written");
                }
                Err(error) => {
                    debug!(%error, "cannot write events; they will be retried");
                    rest = PAUSE;
                }
            }
            if rest != PACE {
                history.pending.insert(key, news);
                break;
            }
        }
        sleep(rest).await;
        if history.pending.is_empty() {
            let changed = tokio::select! {
                changed = statuses.changed() => changed,
                changed = problems.changed() => changed,
                // Without another process, the role never changes.
                Ok(()) = role.changed() => Ok(()),
            };
            if changed.is_err() {
                return;
            }
        }
    }
}

async fn write(
    access: &watch::Receiver<Access>,
    namespace: &str,
    event: &Value,
) -> Result<(), ApiError> {
    let access = access.borrow().clone();
    let client = ApiClient::new(&access)?;
    let name = event["metadata"]["name"].as_str().unwrap_or_default();
    let path = format!("/api/v1/namespaces/{namespace}/events/{name}");
    client.patch::<IgnoredAny>(&path, Patch::Apply(COMPONENT), event).await.map(drop)
}

/// The reported states and the pending events.
#[derive(Debug, Default)]
struct EventHistory {
    last: BTreeMap<EventKey, Summary>,
    /// The expiry of each token that expires soon.
    ending: BTreeMap<EventKey, Timestamp>,
    /// The cluster that each member has replaced, and the present one.
    followed: BTreeMap<EventKey, (String, String)>,
    /// The members whose new kubeconfig is refused, with the code of the reason.
    refused: BTreeMap<EventKey, &'static str>,
    /// The clusters whose endpoints are withdrawn.
    withdrawn: BTreeSet<EventKey>,
    /// The reported problems, with the number of objects and the first object.
    problems: BTreeMap<ProblemKey, (usize, String)>,
    /// The pending event of each cluster and topic.
    pending: BTreeMap<(EventKey, Topic), News>,
}

/// The parts of a status whose change is reported: the state and the code of the reason, without
/// ages and counts.
type Summary = (ClusterState, Option<String>);

/// One event to report.
#[derive(Debug, Clone, PartialEq, Eq)]
struct News {
    /// The event's reason in lower camel case: a state, or what happened.
    reason: &'static str,
    warning: bool,
    message: String,
}

impl EventHistory {
    fn observe(&mut self, statuses: &[ClusterStatus]) {
        let key = |status: &ClusterStatus| (status.secret.clone(), status.id.clone());
        // Not yet final: reported once the result of the first lists, or the obstacle to them, is
        // known.
        let passing = |status: &&ClusterStatus| match status.state {
            ClusterState::Syncing => true,
            ClusterState::Restored => status.reason.as_deref().and_then(code).is_none(),
            _ => false,
        };
        for status in statuses.iter().filter(|status| !passing(status)) {
            let code = status.reason.as_deref().and_then(code);
            let summary = (status.state, code.map(|code| code.id.to_owned()));
            if self.last.get(&key(status)) == Some(&summary) {
                continue;
            }
            self.last.insert(key(status), summary);
            let is_expected = matches!(
                status.state,
                ClusterState::Live | ClusterState::Draining | ClusterState::Paused
            );
            let reason = status.reason.as_ref().map(|reason| format!(": {reason}"));
            let next = code.map(|code| format!(" ({})", code.next_for(Some(&status.id))));
            let message = format!(
                "cluster {} is {}{}{}",
                status.id,
                status.state.as_str(),
                reason.unwrap_or_default(),
                next.unwrap_or_default()
            );
            let warning = !is_expected || code.is_some();
            let news = News { reason: status.state.as_str(), warning, message };
            self.pending.insert((key(status), Topic::State), news);
        }
        self.observe_tokens(statuses);
        self.observe_kubeconfigs(statuses);
        self.observe_identities(statuses);
        self.observe_withdrawals(statuses);
        let existing: Vec<EventKey> = statuses.iter().map(key).collect();
        let gone: Vec<EventKey> =
            self.last.keys().filter(|key| !existing.contains(*key)).cloned().collect();
        for gone in gone {
            let last = self.last.remove(&gone).and_then(|(_, code)| code);
            let mut message = format!("cluster {} is no longer a member", gone.1);
            let code = &codes::MEMBER_DESELECTED;
            let warning = last.as_deref() == Some(code.id);
            if warning {
                message = format!(
                    "{code}: {message}: no source of the --members file selects its object"
                );
            }
            let news = News { reason: "removed", warning, message };
            self.pending.insert((gone, Topic::State), news);
        }
    }

    /// Queues one event for each token that expires soon.
    fn observe_tokens(&mut self, statuses: &[ClusterStatus]) {
        let before = std::mem::take(&mut self.ending);
        for status in statuses {
            let credential = status.credential.as_ref().filter(|credential| credential.ends_soon);
            let Some(expires) = credential.and_then(|credential| credential.expires) else {
                continue;
            };
            let key = (status.secret.clone(), status.id.clone());
            if before.get(&key) != Some(&expires) {
                let code = &codes::CREDENTIAL_ENDS;
                let message = format!(
                    "{code}: the credential of cluster {} expires at {expires} ({})",
                    status.id,
                    code.next_for(Some(&status.id))
                );
                let news = News { reason: "tokenEnds", warning: true, message };
                self.pending.insert((key.clone(), Topic::Token), news);
            }
            self.ending.insert(key, expires);
        }
    }

    /// Queues an event for each member whose new kubeconfig is refused while the previous one is in
    /// use, and one when it no longer is.
    fn observe_kubeconfigs(&mut self, statuses: &[ClusterStatus]) {
        let mut before = std::mem::take(&mut self.refused);
        for status in statuses {
            let (key, id) = ((status.secret.clone(), status.id.clone()), &status.id);
            let known = before.remove(&key);
            let news = if status.kubeconfig_refused {
                let reason = status.reason.as_deref().unwrap_or_default();
                let code = codes::named(reason).unwrap_or(&codes::KUBECONFIG_UNREADABLE);
                self.refused.insert(key.clone(), code.id);
                if known == Some(code.id) {
                    continue;
                }
                let next = code.next_for(Some(id));
                let message = format!("{code}: cluster {id}: {} ({next})", bounded(reason));
                News { reason: "kubeconfigRefused", warning: true, message }
            } else if known.is_some() {
                let message = format!("the new access to cluster {id} is accepted");
                News { reason: "kubeconfigAccepted", warning: false, message }
            } else {
                continue;
            };
            self.pending.insert((key, Topic::Kubeconfig), news);
        }
    }

    /// Queues one event for each cluster that was accepted because its Secret is new.
    fn observe_identities(&mut self, statuses: &[ClusterStatus]) {
        let before = std::mem::take(&mut self.followed);
        for status in statuses {
            let Some(ClusterIdHolder { uid: Some(is), followed: Some(was), .. }) = &status.kept
            else {
                continue;
            };
            let key = (status.secret.clone(), status.id.clone());
            let uids = (was.clone(), is.clone());
            if before.get(&key) != Some(&uids) {
                let id = &status.id;
                let message = format!(
                    "cluster {id} is another cluster since its {} was created again: its UID was {was} and is {is} (policy clusters.{id}.identity)",
                    status.source_kind.unwrap_or("Secret"),
                );
                let news = News { reason: "identityAccepted", warning: false, message };
                self.pending.insert((key.clone(), Topic::Identity), news);
            }
            self.followed.insert(key, uids);
        }
    }

    /// Queues an event for each cluster whose endpoints were withdrawn, or are sent again.
    fn observe_withdrawals(&mut self, statuses: &[ClusterStatus]) {
        for status in statuses {
            let (key, id) = ((status.secret.clone(), status.id.clone()), &status.id);
            let news = match &status.withdrawn {
                Some(why) if self.withdrawn.insert(key.clone()) => {
                    let code = &codes::CLUSTER_DARK;
                    let next = code.next_for(Some(id));
                    let message = format!(
                        "{code}: the endpoints of cluster {id} are withdrawn: {why} ({next})"
                    );
                    News { reason: "endpointsWithdrawn", warning: true, message }
                }
                None if self.withdrawn.remove(&key) => {
                    let message = format!("the endpoints of cluster {id} are sent again");
                    News { reason: "endpointsReturned", warning: false, message }
                }
                _ => continue,
            };
            self.pending.insert((key, Topic::Withdrawal), news);
        }
        self.withdrawn.retain(|(secret, id)| {
            statuses.iter().any(|status| (&status.secret, &status.id) == (secret, id))
        });
    }

    /// Queues an event for each code of a problem that is new, affects other objects, or has ended.
    /// Other events contain the other problems of members.
    fn observe_problems(&mut self, problems: &[LastingProblem]) {
        let mut before = std::mem::take(&mut self.problems);
        let mut queue = |(category, code): ProblemKey, reason, warning, message| {
            let key = ((None, format!("{category} {code}")), Topic::Problem);
            self.pending.insert(key, News { reason, warning, message });
        };
        let is_in_state = |problem: &LastingProblem| {
            problem.category == "clusters" && problem.code != &codes::ROOTS_FOREIGN
        };
        for problem in problems.iter().filter(|problem| !is_in_state(problem)) {
            let LastingProblem { category, code, count, object, text } = problem;
            let (key, affected) = ((*category, code.id), (*count, object.clone()));
            if before.remove(&key).as_ref() != Some(&affected) {
                let others = problem.others();
                let next = code.next_for(None);
                let text = bounded(text);
                let message = format!("{code}: {object}: {text}{others} ({next})");
                queue(key, "problem", true, message);
            }
            self.problems.insert(key, affected);
        }
        for (key, (_, object)) in before {
            let message = format!("{}: {object}: the problem no longer exists", key.1);
            queue(key, "resolved", false, message);
        }
    }
}

/// Returns the code at the start of a reason.
fn code(reason: &str) -> Option<&'static codes::Code> {
    codes::find(reason.split(':').next()?)
}

fn event(namespace: &str, (secret, id): &EventKey, news: &News, now: Timestamp) -> Value {
    let state = news.reason;
    let mut letters = state.chars();
    let first = letters.next().map(|first| first.to_ascii_uppercase());
    let about = match secret.as_deref().and_then(|secret| secret.rsplit('/').next()) {
        Some(secret) => {
            json!({ "apiVersion": "v1", "kind": "Secret", "namespace": namespace, "name": secret })
        }
        None => {
            json!({ "apiVersion": "v1", "kind": "Namespace", "namespace": namespace, "name": namespace })
        }
    };
    // The same report gets the same event name on every replica and after a restart.
    let name = xxh3_64(format!("{secret:?} {id:?} {state}").as_bytes());
    let now = now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    json!({
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": { "name": format!("strait.{name:016x}"), "namespace": namespace },
        "involvedObject": about,
        "reason": first.into_iter().chain(letters).collect::<String>(),
        "message": news.message,
        "type": if news.warning { "Warning" } else { "Normal" },
        "source": { "component": COMPONENT },
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    })
}
