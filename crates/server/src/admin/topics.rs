//! What open pages are told the changes of, and the task that hears of these.
//!
//! It wakes when something changes, and every ten seconds for the little that changes with time alone; then it has that announced
//! ([`super::announcements`]). Owns no data.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use super::announcements::{Announcements, REST};
use super::sources::Sources;
use strait_base::source_status::{SourceStanding, SourceStatusMap, SourceStatusTable};
use strait_envoy::heads::{Heads, Refusals};
use strait_explain::ConfigReports;
use strait_identity::ServerIdentity;
use strait_mesh::hold::{HoldSharing, HoldState};
use strait_mesh::push::PushContext;
use strait_mesh::rollout::RolloutState;
use strait_model::mesh_config::SourceProblem;
use strait_model::policy::Policy;
use strait_sources::clusters::status::ClusterStatus;
use strait_sources::policy_watch::WatchedPolicy;

/// How often is looked at what time alone changes: a source is out of contact once it was silent for long enough.
const LOOK: Duration = Duration::from_secs(10);

/// What pages are told the changes of.
pub(super) struct PageTopics {
    context: watch::Receiver<Option<Arc<PushContext>>>,
    clusters: watch::Receiver<Arc<Vec<ClusterStatus>>>,
    hold: watch::Receiver<Arc<HoldState>>,
    hold_sharing: watch::Receiver<HoldSharing>,
    rollout: watch::Receiver<Arc<RolloutState>>,
    reports: watch::Receiver<Arc<ConfigReports>>,
    mesh_problems: watch::Receiver<Vec<SourceProblem>>,
    policy: watch::Receiver<Arc<Policy>>,
    policy_problem: watch::Receiver<Option<String>>,
    identity: watch::Receiver<Arc<ServerIdentity>>,
    /// Who comes, goes and refuses.
    proxies: watch::Receiver<u64>,
    sources: SourceTopic,
    heads: Arc<Heads>,
    /// Who refuses what is let out, and the number of that.
    refusals: Option<(u64, Refusals)>,
}

impl PageTopics {
    pub(super) fn of(sources: &Sources) -> Self {
        let WatchedPolicy { policy, problem } = sources.policy.clone();
        Self {
            context: sources.context.clone(),
            clusters: sources.clusters.clone(),
            hold: sources.hold.clone(),
            hold_sharing: sources.hold_sharing.clone(),
            rollout: sources.rollout.clone(),
            reports: sources.reports.clone(),
            mesh_problems: sources.mesh_problems.clone(),
            policy,
            policy_problem: problem,
            identity: sources.metrics.identity.clone(),
            proxies: sources.connections.news(),
            sources: SourceTopic::of(&sources.source_statuses),
            heads: Arc::clone(&sources.heads),
            refusals: None,
        }
    }

    /// Announces what changes, for as long as anything can.
    pub(super) async fn announce(mut self, announcements: &Announcements) {
        loop {
            self.changed().await;
            announcements.announce(self.taken());
            tokio::time::sleep(REST).await;
        }
    }

    /// Until something has changed.
    async fn changed(&mut self) {
        tokio::select! {
            () = changed(&mut self.context) => {}
            () = changed(&mut self.clusters) => {}
            () = changed(&mut self.hold) => {}
            () = changed(&mut self.hold_sharing) => {}
            () = changed(&mut self.rollout) => {}
            () = changed(&mut self.reports) => {}
            () = changed(&mut self.mesh_problems) => {}
            () = changed(&mut self.policy) => {}
            () = changed(&mut self.policy_problem) => {}
            () = changed(&mut self.identity) => {}
            () = changed(&mut self.proxies) => {}
            () = self.sources.changed() => {}
            () = refused(&mut self.refusals) => {}
        }
    }

    /// Takes all that has changed as told of: the version of the mesh.
    fn taken(&mut self) -> Option<u64> {
        self.clusters.mark_unchanged();
        self.hold.mark_unchanged();
        self.hold_sharing.mark_unchanged();
        self.rollout.mark_unchanged();
        self.reports.mark_unchanged();
        self.mesh_problems.mark_unchanged();
        self.policy.mark_unchanged();
        self.policy_problem.mark_unchanged();
        self.identity.mark_unchanged();
        self.proxies.mark_unchanged();
        self.sources.take();
        self.listen_to_share();
        self.context.borrow_and_update().as_ref().map(|context| context.version)
    }

    /// Hears from now on who refuses what is let out. It is given to a share before that is told (`server::rollout`), so an
    /// announcement comes after the first who could.
    fn listen_to_share(&mut self) {
        let known = self.refusals.as_ref().map(|(number, _)| *number);
        let head = self.heads.next().filter(|head| Some(head.number) != known);
        if let Some(head) = head {
            self.refusals = Some((head.number, head.refusals()));
        } else if let Some((_, refusals)) = &mut self.refusals {
            refusals.mark_unchanged();
        }
    }
}

/// Until there is another value; for ever where none can come.
async fn changed<T>(of: &mut watch::Receiver<T>) {
    if of.changed().await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// Until one more proxy refuses what is let out; for ever where nothing is.
async fn refused(of: &mut Option<(u64, Refusals)>) {
    if let Some((_, refusals)) = of
        && refusals.changed().await.is_ok()
    {
        return;
    }
    // It has ended.
    *of = None;
    std::future::pending::<()>().await;
}

/// How the sources fare that are no member clusters. Each answer of theirs is told, and most of these are no news.
struct SourceTopic {
    table: SourceStatusTable,
    lines: watch::Receiver<SourceStatusMap>,
    known: Vec<SourceStanding>,
}

impl SourceTopic {
    fn of(table: &SourceStatusTable) -> Self {
        Self { table: table.clone(), lines: table.lines(), known: table.standings() }
    }

    async fn changed(&mut self) {
        while self.table.standings() == self.known {
            tokio::select! {
                () = changed(&mut self.lines) => {}
                () = tokio::time::sleep(LOOK) => {}
            }
        }
    }

    fn take(&mut self) {
        self.lines.mark_unchanged();
        self.known = self.table.standings();
    }
}
