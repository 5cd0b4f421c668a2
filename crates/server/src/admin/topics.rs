//! The changes that open pages are notified of, and the task that watches for them.
//!
//! The task wakes when something changes, and every ten seconds for states that depend on time
//! alone. It then sends an announcement ([`super::announcements`]). This module owns no data.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use super::announcements::{Announcements, REST};
use super::sources::Sources;
use strait_base::source_status::{SourceStanding, SourceStatusMap, SourceStatusTable};
use strait_envoy::heads::{ConfigVariants, Refusals};
use strait_explain::ConfigReports;
use strait_identity::ServerIdentity;
use strait_mesh::hold::{HoldSharing, HoldState};
use strait_mesh::push::PushContext;
use strait_mesh::rollout::RolloutState;
use strait_model::mesh_config::SourceProblem;
use strait_model::policy::Policy;
use strait_sources::clusters::status::ClusterStatus;
use strait_sources::members::MemberSources;
use strait_sources::policy_watch::WatchedFile;

/// Interval of the check for states that depend on time alone: a source becomes unreachable after a
/// time without contact.
const LOOK: Duration = Duration::from_secs(10);

/// Inputs whose changes are announced.
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
    members: WatchedFile<MemberSources>,
    source_problems: watch::Receiver<Vec<String>>,
    identity: watch::Receiver<Arc<ServerIdentity>>,
    /// Changes when a proxy connects, disconnects or refuses a response.
    proxies: watch::Receiver<u64>,
    sources: SourceTopic,
    heads: Arc<ConfigVariants>,
    /// Refusals of the rollout with this number.
    refusals: Option<(u64, Refusals)>,
}

impl PageTopics {
    pub(super) fn of(sources: &Sources) -> Self {
        let WatchedFile { value: policy, problem } = sources.policy.clone();
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
            members: sources.members.clone(),
            source_problems: sources.source_problems.clone(),
            identity: sources.metrics.identity.clone(),
            proxies: sources.connections.news(),
            sources: SourceTopic::of(&sources.source_statuses),
            heads: Arc::clone(&sources.heads),
            refusals: None,
        }
    }

    /// Announces changes as long as any can occur.
    pub(super) async fn announce(mut self, announcements: &Announcements) {
        loop {
            self.changed().await;
            announcements.announce(self.taken());
            tokio::time::sleep(REST).await;
        }
    }

    /// Waits until something has changed.
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
            () = changed(&mut self.members.value) => {}
            () = changed(&mut self.members.problem) => {}
            () = changed(&mut self.source_problems) => {}
            () = changed(&mut self.identity) => {}
            () = changed(&mut self.proxies) => {}
            () = self.sources.changed() => {}
            () = refused(&mut self.refusals) => {}
        }
    }

    /// Marks all changes as announced. Returns the version of the mesh.
    fn taken(&mut self) -> Option<u64> {
        self.clusters.mark_unchanged();
        self.hold.mark_unchanged();
        self.hold_sharing.mark_unchanged();
        self.rollout.mark_unchanged();
        self.reports.mark_unchanged();
        self.mesh_problems.mark_unchanged();
        self.policy.mark_unchanged();
        self.policy_problem.mark_unchanged();
        self.members.value.mark_unchanged();
        self.members.problem.mark_unchanged();
        self.source_problems.mark_unchanged();
        self.identity.mark_unchanged();
        self.proxies.mark_unchanged();
        self.sources.take();
        self.listen_to_share();
        self.context.borrow_and_update().as_ref().map(|context| context.version)
    }

    /// Follows the refusals of the running rollout. The first proxies receive the configuration
    /// before the rollout's state is published (`server::rollout`), so an announcement follows
    /// after the first possible refusal.
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

/// Waits for another value, forever if the sender is gone.
async fn changed<T>(of: &mut watch::Receiver<T>) {
    if of.changed().await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// Waits until one more proxy refuses the rolled out configuration, forever if there is no rollout.
async fn refused(of: &mut Option<(u64, Refusals)>) {
    if let Some((_, refusals)) = of
        && refusals.changed().await.is_ok()
    {
        return;
    }
    // The rollout has ended.
    *of = None;
    std::future::pending::<()>().await;
}

/// Statuses of the sources that are not member clusters. Each of their responses updates the table,
/// mostly without a change of status.
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
