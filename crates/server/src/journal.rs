//! Adds entries to the timeline that no version of the mesh contains: starts of the control plane, states and credentials
//! of members, lost and returned sources and proxies, problems, and changes of the CA's roots.
//!
//! Changes of gateways are part of versions. Members that only sync are left out, so that the start of a large mesh does
//! not displace its recent changes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use jiff::Timestamp;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use strait_ads::connections::Connections;
use strait_base::bounded::shortened;
use strait_base::codes;
use strait_base::source_status::{SourceState, SourceStatus, SourceStatusTable};
use strait_identity::{ReplicaId, RootFingerprint, ServerIdentity};
use strait_mesh::push::PushContext;
use strait_mesh::timeline::{Delivery, Timeline};
use strait_model::{Cause, ClusterId};
use strait_sources::clusters::events::LastingProblem;
use strait_sources::clusters::status::{ClusterState, ClusterStatus};

/// Maximum length of a reason in an entry, in bytes.
const REASON_MAX: usize = 200;
/// Interval at which sources and connections are sampled.
const PACE: Duration = Duration::from_secs(5);
/// Number of samples without a proxy of a cluster after which they count as lost. A reconnect takes less time.
const EMPTY_SAMPLES: u32 = 2;
/// Categories of problems that other entries contain: states of members and sources, and versions of the mesh.
const OTHER_ENTRIES: [&str; 3] = ["clusters", "sources", "config"];

/// Inputs of the journal.
pub(super) struct JournalInputs {
    pub(super) timeline: Arc<Timeline>,
    pub(super) context: watch::Receiver<Option<Arc<PushContext>>>,
    pub(super) statuses: watch::Receiver<Arc<Vec<ClusterStatus>>>,
    pub(super) identity: watch::Receiver<Arc<ServerIdentity>>,
    pub(super) problems: watch::Receiver<Arc<Vec<LastingProblem>>>,
    pub(super) source_statuses: SourceStatusTable,
    pub(super) connections: Arc<Connections>,
    /// Name of this replica.
    pub(super) replica: ReplicaId,
}

/// Enters changes until the process drains, because streams that end during a shutdown are not lost.
pub(super) async fn run(inputs: JournalInputs, drain: CancellationToken) {
    let JournalInputs {
        timeline,
        context,
        mut statuses,
        mut identity,
        mut problems,
        source_statuses,
        connections,
        replica,
    } = inputs;
    let enter = |(cause, effect): (Cause, String)| {
        let version = context.borrow().as_ref().map_or(0, |context| context.version);
        let delivery = Arc::new(Delivery::new(Instant::now()));
        timeline.enter(version, cause.into(), effect, delivery, Instant::now());
    };
    let mut journal = Journal::default();
    enter(started(&replica));
    statuses.mark_changed();
    identity.mark_changed();
    let mut samples = tokio::time::interval(PACE);
    loop {
        // An error means that the process is ending.
        tokio::select! {
            changed = statuses.changed() => {
                if changed.is_err() {
                    return;
                }
                let members = Arc::clone(&statuses.borrow_and_update());
                journal.members(&members).into_iter().for_each(enter);
            }
            changed = identity.changed() => {
                if changed.is_err() {
                    return;
                }
                let roots = identity.borrow_and_update().root_standings(SystemTime::now());
                let roots = roots.into_iter().map(|root| root.fingerprint).collect();
                journal.roots(roots).into_iter().for_each(enter);
            }
            changed = problems.changed() => {
                if changed.is_err() {
                    return;
                }
                let problems = Arc::clone(&problems.borrow_and_update());
                journal.problems(&problems).into_iter().for_each(enter);
            }
            _ = samples.tick() => {
                journal.sources(&source_statuses.show()).into_iter().for_each(enter);
                journal.streams(count_streams(&connections)).into_iter().for_each(enter);
            }
            () = drain.cancelled() => return,
        }
    }
}

/// Returns the number of connected proxies by cluster.
fn count_streams(connections: &Connections) -> BTreeMap<ClusterId, usize> {
    let mut counts = BTreeMap::new();
    for stream in connections.list().iter().filter(|stream| !stream.is_of_agent()) {
        *counts.entry(stream.proxy().cluster.clone()).or_default() += 1;
    }
    counts
}

fn started(replica: &ReplicaId) -> (Cause, String) {
    let cause = Cause::named(ClusterId::default(), "ControlPlane", replica.as_str());
    (cause, format!("control plane {} started", env!("CARGO_PKG_VERSION")))
}

/// The last entered facts of a member.
#[derive(Debug, Clone, Copy)]
struct EnteredMember {
    state: ClusterState,
    /// The expiry of its credential.
    expires: Option<Timestamp>,
    /// Whether its new kubeconfig is refused while the previous one is in use.
    is_refused: bool,
}

/// The last sampled proxies of a cluster.
#[derive(Debug, Clone, Copy)]
struct SampledStreams {
    /// The last number that was not 0.
    count: usize,
    /// Number of samples without a proxy since then.
    empty: u32,
}

/// The last entered facts.
#[derive(Debug, Default)]
struct Journal {
    members: BTreeMap<(String, Option<String>), EnteredMember>,
    /// Whether each source is away.
    sources: BTreeMap<Arc<str>, bool>,
    streams: BTreeMap<ClusterId, SampledStreams>,
    /// The first object of each problem, by category and code.
    problems: BTreeMap<(&'static str, &'static str), String>,
    roots: Option<BTreeSet<RootFingerprint>>,
}

impl Journal {
    /// Returns the entries for changed states and credentials.
    fn members(&mut self, statuses: &[ClusterStatus]) -> Vec<(Cause, String)> {
        let mut entries = Vec::new();
        let mut before = std::mem::take(&mut self.members);
        for status in statuses {
            let key = (status.id.clone(), status.secret.clone());
            let expires = status.credential.as_ref().and_then(|credential| credential.expires);
            let known = before.remove(&key);
            let mut enter = |effect: String| {
                let id = ClusterId::from(status.id.as_str());
                entries.push((Cause::named(id, "Cluster", status.id.as_str()), effect));
            };
            let mut shown = status.state;
            match known {
                // The start of a sync is not entered. Its result is compared with the previous state.
                Some(known) if status.state == ClusterState::Syncing => shown = known.state,
                None if matches!(status.state, ClusterState::Syncing | ClusterState::Live) => {}
                Some(known) if known.state == status.state => {}
                Some(EnteredMember {
                    state: ClusterState::Syncing | ClusterState::Restored,
                    ..
                }) if status.state == ClusterState::Live => {}
                known => {
                    let from = known.map(|known| format!("{} -> ", known.state.as_str()));
                    let reason =
                        status.reason.as_deref().map(|reason| shortened(reason, REASON_MAX));
                    enter(format!(
                        "cluster {}: {}{}{}",
                        status.id,
                        from.unwrap_or_default(),
                        status.state.as_str(),
                        reason.map(|reason| format!(": {reason}")).unwrap_or_default()
                    ));
                }
            }
            let old = known.and_then(|known| known.expires);
            if let (Some(old), Some(new)) = (old, expires)
                && old != new
            {
                enter(format!("cluster {}: new credential, valid until {new:.0}", status.id));
            }
            let is_refused = status.kubeconfig_refused;
            match (known.is_some_and(|known| known.is_refused), is_refused) {
                (false, true) => {
                    let reason =
                        shortened(status.reason.as_deref().unwrap_or_default(), REASON_MAX);
                    enter(format!("cluster {}: {reason}", status.id));
                }
                (true, false) => {
                    enter(format!("cluster {}: its kubeconfig is accepted", status.id));
                }
                _ => {}
            }
            self.members.insert(key, EnteredMember { state: shown, expires, is_refused });
        }
        for (id, _) in before.into_keys() {
            let cause = Cause::named(ClusterId::from(id.as_str()), "Cluster", id.as_str());
            entries.push((cause, format!("cluster {id}: removed")));
        }
        entries
    }

    /// Returns the entries for sources that can no longer be read, and that are read again.
    fn sources(&mut self, statuses: &[SourceStatus]) -> Vec<(Cause, String)> {
        let mut entries = Vec::new();
        let mut enter = |name: &Arc<str>, text: String| {
            let cause = Cause::named(ClusterId::default(), "Source", Arc::clone(name));
            entries.push((cause, format!("source {name}: {text}")));
        };
        let mut before = std::mem::take(&mut self.sources);
        for SourceStatus { name, state, code, reason, .. } in statuses {
            let was_away = before.remove(name).unwrap_or_default();
            let is_away = match state {
                SourceState::Live => false,
                // The first read has not ended.
                SourceState::Syncing | SourceState::Restored if code.is_none() => was_away,
                _ => true,
            };
            match (was_away, is_away) {
                (false, true) => {
                    let code = code.map(|code| format!("{code}: ")).unwrap_or_default();
                    let reason =
                        shortened(reason.as_deref().unwrap_or("it has not been read"), REASON_MAX);
                    enter(name, format!("{}: {code}{reason}", state.as_str()));
                }
                (true, false) => enter(name, "live again".to_owned()),
                _ => {}
            }
            self.sources.insert(Arc::clone(name), is_away);
        }
        for (name, _) in before.iter().filter(|(_, is_away)| **is_away) {
            enter(name, "the problem no longer exists".to_owned());
        }
        entries
    }

    /// Returns the entries for clusters that have lost all their proxies, and whose proxies are connected again.
    fn streams(&mut self, mut counts: BTreeMap<ClusterId, usize>) -> Vec<(Cause, String)> {
        let mut entries = Vec::new();
        let mut enter = |cluster: &ClusterId, effect: String| {
            let cause = Cause::named(cluster.clone(), "Cluster", cluster.as_str());
            entries.push((cause, format!("cluster {cluster}: {effect}")));
        };
        for (cluster, sampled) in &mut self.streams {
            let Some(count) = counts.remove(cluster) else {
                sampled.empty = sampled.empty.saturating_add(1);
                if sampled.empty == EMPTY_SAMPLES {
                    let count = sampled.count;
                    enter(
                        cluster,
                        format!(
                            "no proxy is connected to this replica any more (previously {count})"
                        ),
                    );
                }
                continue;
            };
            if sampled.empty >= EMPTY_SAMPLES {
                enter(cluster, format!("proxies are connected to this replica again ({count})"));
            }
            *sampled = SampledStreams { count, empty: 0 };
        }
        let new = counts.into_iter();
        self.streams.extend(new.map(|(id, count)| (id, SampledStreams { count, empty: 0 })));
        entries
    }

    /// Returns the entries for problems that have begun or ended.
    fn problems(&mut self, problems: &[LastingProblem]) -> Vec<(Cause, String)> {
        let mut entries = Vec::new();
        let mut enter = |code: &str, effect: String| {
            entries.push((Cause::named(ClusterId::default(), "Problem", code), effect));
        };
        let mut before = std::mem::take(&mut self.problems);
        let is_entered = |problem: &&LastingProblem| {
            // A start is entered.
            !OTHER_ENTRIES.contains(&problem.category) && *problem.code != codes::MESH_INCOMPLETE
        };
        for problem in problems.iter().filter(is_entered) {
            let LastingProblem { category, code, object, text, .. } = problem;
            let key = (*category, code.id);
            if before.remove(&key).is_none() {
                let others = problem.others();
                enter(
                    code.id,
                    format!("{code}: {object}: {}{others}", shortened(text, REASON_MAX)),
                );
            }
            self.problems.insert(key, object.clone());
        }
        for ((_, code), object) in before {
            enter(code, format!("{code}: {object}: the problem no longer exists"));
        }
        entries
    }

    /// Returns the entry for added and removed roots of the CA.
    fn roots(&mut self, now: BTreeSet<RootFingerprint>) -> Option<(Cause, String)> {
        let before = self.roots.replace(now.clone())?;
        let list = |sign: &str, roots: Vec<&RootFingerprint>| {
            roots.iter().map(|root| format!("{sign}{root}")).collect::<Vec<_>>()
        };
        let mut changes = list("+", now.difference(&before).collect());
        changes.extend(list("-", before.difference(&now).collect()));
        if changes.is_empty() {
            return None;
        }
        let cause = Cause::named(ClusterId::default(), "CertificateAuthority", "");
        Some((cause, format!("roots of the CA: {}", changes.join(", "))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use strait_base::source_status::SourceFacts;
    use strait_sources::clusters::status::{CredentialKind, CredentialStatus};

    fn member(state: ClusterState, expires: Option<i64>) -> ClusterStatus {
        let credential = expires.map(|second| CredentialStatus {
            kind: CredentialKind::Token,
            identity: None,
            principal: None,
            expires: Timestamp::from_second(second).ok(),
            refresh_at: None,
            last_error: None,
            ends_soon: false,
            renews_itself: false,
        });
        ClusterStatus { state, credential, ..ClusterStatus::live("east") }
    }

    #[test]
    fn states_and_credentials_of_members_are_entered_once() {
        use ClusterState::{AuthFailed, Live, Rejected, Stale, Syncing};
        let mut journal = Journal::default();
        let mut effects = |status: Option<ClusterStatus>| {
            let all: Vec<_> = status.into_iter().collect();
            journal.members(&all).into_iter().map(|(_, effect)| effect).collect::<Vec<_>>()
        };
        assert_eq!(effects(Some(member(Syncing, None))), [""; 0]);
        assert_eq!(effects(Some(member(Live, Some(10)))), [""; 0]);
        let stale = ClusterStatus { reason: Some("STR0301: x".into()), ..member(Stale, Some(10)) };
        assert_eq!(effects(Some(stale.clone())), ["cluster east: live -> stale: STR0301: x"]);
        assert_eq!(effects(Some(stale)), [""; 0]);
        assert_eq!(effects(Some(member(Syncing, Some(10)))), [""; 0]);
        assert_eq!(effects(Some(member(Live, Some(10)))), ["cluster east: stale -> live"]);
        assert_eq!(
            effects(Some(member(Live, Some(20)))),
            ["cluster east: new credential, valid until 1970-01-01T00:00:20Z"]
        );
        let reason = Some("the new kubeconfig is not used: STR0304: 401".into());
        let refused = ClusterStatus { kubeconfig_refused: true, reason, ..member(Live, Some(20)) };
        let entry = "cluster east: the new kubeconfig is not used: STR0304: 401";
        assert_eq!(effects(Some(refused.clone())), [entry]);
        assert_eq!(effects(Some(refused)), [""; 0]);
        assert_eq!(
            effects(Some(member(Live, Some(20)))),
            ["cluster east: its kubeconfig is accepted"]
        );
        assert_eq!(
            effects(Some(member(AuthFailed, Some(20)))),
            ["cluster east: live -> authFailed"]
        );
        assert_eq!(effects(None), ["cluster east: removed"]);
        assert_eq!(effects(Some(member(Rejected, None))), ["cluster east: rejected"]);
    }

    fn effects(entries: Vec<(Cause, String)>) -> Vec<String> {
        entries.into_iter().map(|(_, effect)| effect).collect()
    }

    #[test]
    fn lost_and_returned_sources_are_entered_once() {
        let table = SourceStatusTable::new(Duration::from_secs(3600));
        let name: Arc<str> = "xds://a".into();
        let mut journal = Journal::default();
        let mut after = |change: &mut dyn FnMut(&mut SourceFacts)| {
            let mut facts = table.lines().borrow().get(&name).cloned();
            let facts = facts.get_or_insert_with(|| SourceFacts::starting("mcp", "xds://a"));
            change(facts);
            table.report(&name, facts);
            effects(journal.sources(&table.show()))
        };
        let long_ago = SystemTime::now() - Duration::from_secs(60);
        assert_eq!(after(&mut |_| {}), [""; 0], "it is being read");
        let mut fails = |facts: &mut SourceFacts| {
            facts.failed(long_ago, "refused".to_owned(), &codes::MCP_UNREACHABLE);
        };
        assert_eq!(after(&mut fails), ["source xds://a: syncing: STR0330: refused"]);
        assert_eq!(after(&mut fails), [""; 0]);
        let mut is_read = |facts: &mut SourceFacts| {
            facts.synced = true;
            facts.responded(SystemTime::now());
        };
        assert_eq!(after(&mut is_read), ["source xds://a: live again"]);
        assert_eq!(after(&mut fails), ["source xds://a: stale: STR0330: refused"]);
        table.forget(&name);
        let entries = effects(journal.sources(&table.show()));
        assert_eq!(entries, ["source xds://a: the problem no longer exists"]);
        assert_eq!(effects(journal.sources(&table.show())), [""; 0]);
    }

    #[test]
    fn lost_and_returned_proxies_of_a_cluster_are_entered() {
        let mut journal = Journal::default();
        let mut sample = |count: usize| {
            let counts = (count > 0).then(|| (ClusterId::from("east"), count));
            effects(journal.streams(counts.into_iter().collect()))
        };
        assert_eq!(sample(3), [""; 0]);
        assert_eq!(sample(0), [""; 0], "a reconnect");
        assert_eq!(sample(2), [""; 0]);
        assert_eq!(sample(0), [""; 0]);
        let lost = "cluster east: no proxy is connected to this replica any more (previously 2)";
        assert_eq!(sample(0), [lost]);
        assert_eq!(sample(0), [""; 0]);
        let returned = "cluster east: proxies are connected to this replica again (1)";
        assert_eq!(sample(1), [returned]);
    }

    #[test]
    fn problems_are_entered_when_they_begin_and_end() {
        let mut journal = Journal::default();
        let problem = |category, code, count| LastingProblem {
            category,
            code,
            count,
            object: "proxy/a".to_owned(),
            text: "refused CDS: x".to_owned(),
        };
        let nack = |count| problem("proxies", &codes::NACK, count);
        let begins = "STR0507: proxy/a: refused CDS: x, and 1 other object";
        assert_eq!(effects(journal.problems(&[nack(2)])), [begins]);
        assert_eq!(effects(journal.problems(&[nack(9)])), [""; 0]);
        let others = [
            problem("clusters", &codes::UNREACHABLE, 1),
            problem("mesh", &codes::MESH_INCOMPLETE, 1),
        ];
        let ends = "STR0507: proxy/a: the problem no longer exists";
        assert_eq!(effects(journal.problems(&others)), [ends]);
        assert_eq!(effects(journal.problems(&[])), [""; 0]);
    }

    #[test]
    fn added_and_removed_roots_are_entered() {
        let root = |digit: &str| RootFingerprint::parse_all(&digit.repeat(64));
        let mut journal = Journal::default();
        assert_eq!(journal.roots(root("a")), None);
        assert_eq!(journal.roots(root("a")), None);
        let (_, effect) = journal.roots(root("b")).expect("a change");
        assert_eq!(effect, format!("roots of the CA: +{}, -{}", "b".repeat(64), "a".repeat(64)));
    }
}
