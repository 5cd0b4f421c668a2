//! Waiting for the control plane after a change to a member, if the control plane is reachable.
//!
//! The state comes from `/debug/clusters` only. A reason with a code that lasts for one second ends
//! the wait, because the user can act on it. The control plane keeps retrying on its own.

use std::collections::BTreeMap;
use std::time::Duration;

use clap::Args;
use jiff::Timestamp;
use tokio::time::{Instant, sleep};

use super::done;
use crate::cli::client::{AdminClient, Connect, ServerFlags};
use crate::cli::failure::{CommandFailure, CommandResult, Exit};
use crate::cli::output::{Sent, clean, text};
use strait_admin_api::{
    ChangeEvent, Cluster, ClusterState, ProxyNumbers, Replica, ReplicaState, Replicas, Summary,
};
use strait_base::codes;
use strait_base::duration::HumanDuration;
use strait_model::ClusterId;

/// Interval between requests.
const PACE: Duration = Duration::from_millis(500);
/// Time that a reason must last before it ends the wait: the first attempt may have been too early.
const STANDS: Duration = Duration::from_secs(1);

/// Maximum time after a change of a member in which the change appears in the timeline. A change that
/// affects no proxy does not appear.
const PUBLISHED_MAX: Duration = Duration::from_secs(10);

/// Flags of commands that change a member.
#[derive(Debug, Clone, Args)]
pub(super) struct Wait {
    #[command(flatten)]
    server: ServerFlags,
    /// Time to wait for the control plane
    #[arg(long, value_name = "D", default_value = "60s")]
    timeout: HumanDuration,
    /// Keep waiting even if the reason for the delay is known; for 'cluster remove': wait until the
    /// cluster has left
    #[arg(long)]
    pub(super) wait: bool,
    /// Don't wait for the control plane
    #[arg(long, conflicts_with = "wait")]
    no_wait: bool,
}

/// Expected state of a member after a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Goal {
    /// A new member has synced.
    Synced,
    /// The member is read with the token that expires at this time.
    Renewed(Timestamp),
    /// The member is drained, paused, or neither.
    Mode(Option<&'static str>),
    /// The cluster is no longer a member.
    Removed,
}

/// The changes of each replica before a change of a member.
#[derive(Debug, Default)]
pub(super) struct ChangeMark {
    /// The number of the last change, by the name of the replica.
    last: BTreeMap<String, u64>,
    /// Whether the goal was reached already, so that no change follows.
    is_reached: bool,
}

impl ChangeMark {
    /// Returns whether each replica has published the change of a member since, and all proxies have
    /// responded to it. A replica that has started since publishes only the new state.
    fn is_delivered(&self, id: &str, changes: &[(String, Vec<ChangeEvent>)]) -> bool {
        let of_member = |change: &ChangeEvent| {
            let mut causes = change.cause.iter().chain(&change.other_causes);
            // The entry about the state of the member has the member as the cluster of its cause.
            causes.any(|one| one.cluster.is_empty() && one.kind == "Cluster" && one.name == id)
        };
        let is_delivered = |(replica, changes): &(String, Vec<ChangeEvent>)| {
            let Some(last) = self.last.get(replica) else { return true };
            let mut of = changes.iter().filter(|one| one.seq > *last && of_member(one)).peekable();
            of.peek().is_some() && of.all(|change| change.waiting == 0)
        };
        self.is_reached || !changes.is_empty() && changes.iter().all(is_delivered)
    }
}

/// Returns the recent changes of each replica that answers.
async fn changes_of_replicas(
    client: &AdminClient,
) -> Result<Vec<(String, Vec<ChangeEvent>)>, CommandFailure> {
    let replicas: Replicas = client.get("/debug/replicas", &[]).await?.read()?;
    let mut found = Vec::new();
    for Replica { name, state, .. } in replicas.replicas {
        // It may end at any time.
        if state != ReplicaState::Missing
            && let Ok(answer) = client.get("/debug/events", &[("replica", &name)]).await
        {
            found.push((name, answer.read()?));
        }
    }
    Ok(found)
}

/// Progress towards a goal.
#[derive(Debug, PartialEq, Eq)]
enum FollowStep {
    Done,
    /// Not reached yet: the current state, and a reason that may prevent it.
    Pending(String, Option<String>),
    /// Waiting will not help.
    Failed(String),
}

impl Wait {
    /// Returns the connection to the control plane.
    pub(super) fn connect(&self) -> Connect {
        Connect::with_short_timeout(&self.server)
    }

    /// Rejects an invalid `--server` before anything is changed.
    pub(super) fn check(&self) -> Result<(), CommandFailure> {
        match self.server.forwards() {
            true => Ok(()),
            false => self.server.url().map(|_| ()),
        }
    }

    /// Records the current changes, for [`Self::withdrawn`] after a change of a member.
    pub(super) async fn mark(&self, id: &ClusterId, goal: &Goal) -> ChangeMark {
        let read = async {
            let client = AdminClient::new(&self.connect()).await?;
            let clusters = client.get("/debug/clusters", &[]).await?.rows()?;
            let is_reached = step(&clusters, id.as_str(), goal) == FollowStep::Done;
            let changes = changes_of_replicas(&client).await?.into_iter();
            let last = |changes: Vec<ChangeEvent>| changes.last().map_or(0, |change| change.seq);
            let last = changes.map(|(replica, changes)| (replica, last(changes))).collect();
            Ok::<_, CommandFailure>(ChangeMark { last, is_reached })
        };
        match self.no_wait {
            true => ChangeMark::default(),
            // After the change, `withdrawn` reports why the control plane cannot be queried.
            false => read.await.unwrap_or_default(),
        }
    }

    /// Waits until the goal is reached and all proxies have acknowledged the change since `mark`, so
    /// that none sends requests to the cluster any more. After the timeout, reports the proxies that
    /// are left.
    pub(super) async fn withdrawn(&self, id: &ClusterId, goal: &Goal, mark: &ChangeMark) {
        if self.no_wait {
            return;
        }
        let deadline = Instant::now() + self.timeout.0;
        let mut reached: Option<Instant> = None;
        loop {
            let answers = async {
                let client = AdminClient::new(&self.connect()).await?;
                let clusters = client.get("/debug/clusters", &[]).await?.rows()?;
                let summary: Summary = client.get("/debug/summary", &[]).await?.read()?;
                let changes = changes_of_replicas(&client).await?;
                Ok::<_, CommandFailure>((clusters, summary.proxies, changes))
            };
            let (clusters, proxies, changes) = match answers.await {
                Ok(answers) => answers,
                Err(failure) => {
                    eprint_line!(
                        "! the control plane can't be queried from here, so proxies may still send requests to cluster {id}: {}",
                        failure.message()
                    );
                    return;
                }
            };
            let is_reached = step(&clusters, id.as_str(), goal) == FollowStep::Done;
            reached = is_reached.then(|| reached.unwrap_or_else(Instant::now));
            let ProxyNumbers { waiting, refusing, .. } = proxies;
            let is_over = |at: Instant| {
                mark.is_delivered(id.as_str(), &changes) || at.elapsed() >= PUBLISHED_MAX
            };
            if waiting == 0 && reached.is_some_and(is_over) {
                if refusing > 0 {
                    eprint_line!(
                        "! {refusing} proxies refuse their configuration and may still send requests to cluster {id}: strait proxy list"
                    );
                }
                return done(&format!("no proxy sends requests to cluster {id} any more"));
            }
            if Instant::now() >= deadline {
                let left = match reached {
                    Some(_) => {
                        format!("{waiting} proxies have not acknowledged it: strait proxy list")
                    }
                    None => "the control plane has not withdrawn its endpoints".to_owned(),
                };
                eprint_line!(
                    "! after {} {left}; requests to cluster {id} may fail from now on",
                    self.timeout
                );
                return;
            }
            sleep(PACE).await;
        }
    }

    /// Waits for the goal and reports the progress.
    pub(super) async fn follow(&self, id: &ClusterId, goal: &Goal) -> CommandResult {
        if self.no_wait {
            return Ok(Exit::Fine);
        }
        let check = format!("strait cluster get {id}");
        let client = AdminClient::new(&self.connect()).await;
        let deadline = Instant::now() + self.timeout.0;
        let mut last = String::new();
        let mut trouble: Option<(String, Instant)> = None;
        loop {
            let answers = match &client {
                Ok(client) => {
                    client.get("/debug/clusters", &[]).await.and_then(|answer| answer.rows())
                }
                Err(failure) => Err(failure.clone()),
            };
            let clusters = match answers {
                Ok(clusters) => clusters,
                // The change itself succeeded, so this is not a failure of the command.
                Err(failure) => {
                    eprint_line!(
                        "! the control plane can't be queried from here, so the effect is unknown: {}",
                        failure.message()
                    );
                    eprint_line!("  next: {check}");
                    return Ok(Exit::Fine);
                }
            };
            let (state, why) = match step(&clusters, id.as_str(), goal) {
                FollowStep::Done => {
                    report(find(&clusters, id.as_str()), id, goal);
                    return Ok(Exit::Fine);
                }
                FollowStep::Failed(why) => {
                    return Err(goal.failed(id, &why, Exit::Unhealthy).next(check));
                }
                FollowStep::Pending(state, why) => (state, why),
            };
            trouble = match (why, trouble) {
                (Some(why), Some((before, since))) if code(&why) == code(&before) => {
                    Some((why, since))
                }
                (why, _) => why.map(|why| (why, Instant::now())),
            };
            if let Some((why, since)) = trouble.as_ref().filter(|_| !self.wait)
                && since.elapsed() >= STANDS
            {
                let next = format!("{check}\nto keep waiting: --wait");
                return Err(goal.failed(id, why, Exit::Unhealthy).next(next));
            }
            if Instant::now() >= deadline {
                let why = trouble.map(|(why, _)| format!(": {why}")).unwrap_or_default();
                let why = format!("timed out after {}{why}", self.timeout);
                return Err(goal.failed(id, &why, Exit::TimedOut).next(check));
            }
            if state != last {
                eprint_line!("  waiting for cluster {id}: {state}");
                last = state;
            }
            sleep(PACE).await;
        }
    }
}

impl Goal {
    fn failed(self, id: &ClusterId, why: &str, exit: Exit) -> CommandFailure {
        let fact = match self {
            Self::Synced => "was added but has not synced; it joins once it syncs",
            Self::Renewed(_) => {
                "has a new credential in its Secret, but the control plane does not use it yet"
            }
            Self::Mode(_) => "has a changed Secret, but the control plane has not applied it yet",
            Self::Removed => "has no Secret any more, but has not left yet",
        };
        CommandFailure::new(exit, format!("cluster {id} {fact}: {}", clean(why)))
    }
}

/// Returns the progress of the cluster `id` from the entries of `/debug/clusters`.
fn step(rows: &[Sent<Cluster>], id: &str, goal: &Goal) -> FollowStep {
    let Some(row) = find(rows, id) else {
        return match goal {
            Goal::Removed => FollowStep::Done,
            _ => FollowStep::Pending("not visible yet".to_owned(), None),
        };
    };
    let state = text(row.state.as_str());
    let reason = row.reason.as_deref().unwrap_or_default();
    match goal {
        Goal::Removed => FollowStep::Pending(state, None),
        // The config cluster has no Secret, and its ID belongs to it.
        Goal::Synced if row.secret.is_none() => FollowStep::Failed(format!(
            "{}: {id} is the ID of the config cluster, so the Secret is not used: delete it, and choose another ID",
            codes::ID_OF_CONFIG_CLUSTER.id
        )),
        Goal::Synced => synced(row),
        Goal::Renewed(expires) => {
            let used = row.credential.as_ref().and_then(|used| used.expires.as_deref());
            let used = used.and_then(|text| text.parse::<Timestamp>().ok());
            if used.map(Timestamp::as_second) == Some(expires.as_second()) {
                return synced(row);
            }
            // Reasons of the new credential follow this text; reasons before it belong to the old
            // one.
            let after = |text: &str| reason.split_once(text).map(|(_, why)| why.to_owned());
            let why = after("the old one does: ");
            let why = why.or_else(|| after(" is not used: "));
            let why = why.filter(|why| code(why).is_some());
            FollowStep::Pending(format!("{state}, with the old credential"), why)
        }
        Goal::Mode(wanted) => match (row.mode.as_deref(), wanted) {
            (Some(mode), Some(wanted)) if mode == *wanted => FollowStep::Done,
            (None, None) => synced(row),
            (Some(_), None) if reason.contains("by policy ") => {
                FollowStep::Failed(reason.to_owned())
            }
            _ => FollowStep::Pending(state, None),
        },
    }
}

fn synced(row: &Cluster) -> FollowStep {
    let state = text(row.state.as_str());
    let reason = row.reason.clone().unwrap_or_default();
    match row.state {
        ClusterState::Live => FollowStep::Done,
        _ if row.mode.is_some() => FollowStep::Done,
        // The cluster may still sync.
        ClusterState::Syncing
        | ClusterState::Timeout
        | ClusterState::Stale
        | ClusterState::Draining
        | ClusterState::Restored => {
            FollowStep::Pending(state, Some(reason).filter(|why| code(why).is_some()))
        }
        _ => FollowStep::Failed(format!("{state}: {reason}")),
    }
}

/// Returns the code at the beginning of a reason.
fn code(reason: &str) -> Option<&'static str> {
    codes::named(reason).map(|code| code.id)
}

fn report(row: Option<&Sent<Cluster>>, id: &ClusterId, goal: &Goal) {
    let row = row.map(|row| Cluster::clone(row)).unwrap_or_default();
    let (state, network) = (text(row.state.as_str()), text(&row.network));
    let Cluster { services, endpoints, withheld, .. } = row;
    match goal {
        Goal::Removed => return done(&format!("cluster {id} has left the mesh")),
        Goal::Mode(_) => return done(&format!("cluster {id} is {state}")),
        Goal::Synced => done(&format!("synced: {services} services, {endpoints} endpoints")),
        Goal::Renewed(_) => {
            done(&format!("synced with the new token: {services} services, {endpoints} endpoints"));
        }
    }
    eprint_line!("Cluster {id} is {state}, network {network}.");
    if withheld > 0 {
        eprint_line!("! {withheld} endpoints are withheld from some or all proxies");
        eprint_line!("  next: strait network get '{network}'");
    }
}

/// Returns the entry of the cluster. An entry on standby comes after the active entry.
pub(super) fn find<'a>(clusters: &'a [Sent<Cluster>], id: &str) -> Option<&'a Sent<Cluster>> {
    let mut named = clusters.iter().filter(|row| row.id == id);
    let first = named.next()?;
    if first.state == ClusterState::Conflict { named.next().or(Some(first)) } else { Some(first) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use strait_admin_api::ChangeCause;

    #[test]
    fn change_of_a_member_is_delivered_once_all_replicas_and_proxies_have_it() {
        let mark = ChangeMark {
            last: [("a".to_owned(), 7), ("b".to_owned(), 3)].into(),
            is_reached: false,
        };
        let change = |seq: u64, cluster: &str, waiting: u32| ChangeEvent {
            seq,
            waiting,
            cause: Some(ChangeCause {
                cluster: cluster.to_owned(),
                kind: "Cluster".to_owned(),
                name: "west".to_owned(),
                namespace: String::new(),
            }),
            ..ChangeEvent::default()
        };
        let is_delivered = |of_a: Vec<ChangeEvent>, of_b: Vec<ChangeEvent>| {
            let started_since = ("c".to_owned(), Vec::new());
            let changes = [("a".to_owned(), of_a), ("b".to_owned(), of_b), started_since];
            mark.is_delivered("west", &changes)
        };
        let (old, state) = (change(3, "", 0), change(8, "west", 0));
        assert!(!is_delivered(vec![old.clone(), state], vec![change(4, "", 0)]));
        assert!(!is_delivered(vec![change(8, "", 0)], vec![old]));
        assert!(!is_delivered(vec![change(8, "", 1)], vec![change(4, "", 0)]));
        assert!(is_delivered(vec![change(8, "", 0)], vec![change(4, "", 0)]));
        assert!(ChangeMark { is_reached: true, ..mark }.is_delivered("west", &[]));
    }

    #[test]
    fn progress_towards_each_goal_is_recognized() {
        let new = Timestamp::from_second(2_000).expect("a time");
        let pending = |state: &str, why: Option<&str>| {
            FollowStep::Pending(state.to_owned(), why.map(str::to_owned))
        };
        let by = |expires: &str| json!({ "expires": expires });
        let (old_token, new_token) = (by("1970-01-01T00:16:40Z"), by("1970-01-01T00:33:20Z"));
        let takes_over = "the new kubeconfig doesn't serve yet, the old one does: ";
        for (row, goal, expected) in [
            (json!({ "state": "live" }), Goal::Synced, FollowStep::Done),
            (json!({ "state": "syncing" }), Goal::Synced, pending("syncing", None)),
            (
                json!({ "state": "syncing", "reason": "STR0301: refused" }),
                Goal::Synced,
                pending("syncing", Some("STR0301: refused")),
            ),
            (
                json!({ "state": "authFailed", "reason": "STR0304: 401" }),
                Goal::Synced,
                FollowStep::Failed("authFailed: STR0304: 401".into()),
            ),
            (
                json!({ "state": "live", "credential": old_token }),
                Goal::Renewed(new),
                pending("live, with the old credential", None),
            ),
            (
                json!({ "state": "authFailed", "reason": "STR0304: 401", "credential": old_token }),
                Goal::Renewed(new),
                pending("authFailed, with the old credential", None),
            ),
            (
                json!({ "state": "live", "credential": old_token,
                        "reason": format!("{takes_over}it has not synced yet") }),
                Goal::Renewed(new),
                pending("live, with the old credential", None),
            ),
            (
                json!({ "state": "live", "credential": old_token,
                        "reason": format!("{takes_over}STR0315: not permitted") }),
                Goal::Renewed(new),
                pending("live, with the old credential", Some("STR0315: not permitted")),
            ),
            (
                json!({ "state": "live", "credential": new_token }),
                Goal::Renewed(new),
                FollowStep::Done,
            ),
            (
                json!({ "state": "paused", "mode": "pause" }),
                Goal::Mode(Some("pause")),
                FollowStep::Done,
            ),
            (json!({ "state": "live" }), Goal::Mode(Some("drain")), pending("live", None)),
            (json!({ "state": "live" }), Goal::Mode(None), FollowStep::Done),
            (
                json!({ "state": "paused", "mode": "pause", "reason": "frozen by policy mesh.mode" }),
                Goal::Mode(None),
                FollowStep::Failed("frozen by policy mesh.mode".into()),
            ),
            (json!({ "state": "draining" }), Goal::Removed, pending("draining", None)),
        ] {
            let mut row = row;
            (row["id"], row["secret"]) = (json!("east"), json!("strait-system/east"));
            let row = Sent::of(row).expect("a cluster");
            assert_eq!(step(std::slice::from_ref(&row), "east", &goal), expected, "{row:?}");
        }
        let config_cluster = Sent::of(json!({ "id": "hub", "state": "live" })).expect("a cluster");
        let failed = step(&[config_cluster], "hub", &Goal::Synced);
        assert!(
            matches!(&failed, FollowStep::Failed(why) if why.contains("STR0216")),
            "{failed:?}"
        );
        assert_eq!(step(&[], "east", &Goal::Removed), FollowStep::Done);
        assert_eq!(step(&[], "east", &Goal::Synced), pending("not visible yet", None));
    }
}
