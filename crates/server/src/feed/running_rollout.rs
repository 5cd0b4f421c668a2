//! State of the running rollout in the feed: its files, and the state that is published.

use std::sync::Arc;
use std::time::Instant;

use tokio::sync::{mpsc, watch};
use tracing::{error, warn};

use super::restored::put;
use crate::active_configuration::ActiveConfiguration;
use crate::rollout::Verdicts;
use strait_base::codes;
use strait_base::task::Supervisor;
use strait_envoy::heads::{ConfigVariant, ConfigVariants};
use strait_mesh::hold::{ConfigurationHold, HoldScope, RestoredHold, now_to_the_millisecond};
use strait_mesh::push::event_loop::MeshEvent;
use strait_mesh::push::subscription_index::SubscriptionIndex;
use strait_mesh::rollout::{
    RolloutFiles, RolloutState, RolloutVerdict, RunningRollout, STOPPED_BY,
};
use strait_mesh::timeline::{Delivery, Timeline};
use strait_model::policy::RolloutPlan;
use strait_model::{Collection, ConfigRole, ConfigurationSnapshot, ObjectKey};
use strait_rules::access::TimePoint;

/// The structures that a rollout acts on.
pub(crate) struct RolloutOutputs {
    /// Assigns proxies to configurations.
    pub(crate) heads: Arc<ConfigVariants>,
    /// Streams with the configuration for all.
    pub(crate) subscription_index: Arc<SubscriptionIndex>,
    pub(crate) timeline: Arc<Timeline>,
    /// The published state.
    pub(crate) state: watch::Sender<Arc<RolloutState>>,
}

/// The rollout, if one is running, and its files.
pub(super) struct FeedRollout {
    pub(super) files: Option<RolloutFiles>,
    pub(super) to: RolloutOutputs,
    pub(super) tasks: Supervisor,
    pub(super) verdicts_to: Verdicts,
    pub(super) verdicts: mpsc::Receiver<(u64, RolloutVerdict)>,
    pub(super) number: u64,
    pub(super) running: Option<StartedRollout>,
    /// The promoted configuration, until all proxies receive it.
    pub(super) promoted: Option<Arc<ConfigVariant>>,
    /// The objects at the last check.
    seen: Collection,
    /// The configuration for all as last written to disk.
    pub(super) written: Option<Arc<ConfigurationSnapshot>>,
    /// Whether its file may exist.
    may_be_written: bool,
}

/// A rollout and the task that advances it.
pub(super) struct StartedRollout {
    pub(super) rollout: RunningRollout,
    pub(super) head: Arc<ConfigVariant>,
    pub(super) tasks: Supervisor,
}

impl FeedRollout {
    pub(super) fn new(files: Option<RolloutFiles>, to: RolloutOutputs, tasks: &Supervisor) -> Self {
        // Only one task sends at a time, and it ends afterwards.
        let (verdicts_to, verdicts) = mpsc::channel(1);
        Self {
            files,
            to,
            tasks: tasks.child(),
            verdicts_to,
            verdicts,
            number: 0,
            running: None,
            promoted: None,
            seen: Collection::default(),
            written: None,
            may_be_written: true,
        }
    }

    /// Restores the configuration that applied to all proxies before the start, so that later
    /// changes are rolled out gradually. Returns the events. If it is unknown, all proxies receive
    /// the stored objects.
    pub(super) async fn restore(
        &mut self,
        plan: Option<&Arc<RolloutPlan>>,
        active: &mut ActiveConfiguration,
    ) -> Vec<MeshEvent> {
        let (Some(files), Some(_)) = (self.files.clone(), plan) else { return Vec::new() };
        let path = files.settled.path().display().to_string();
        let read = tokio::task::spawn_blocking(move || files.settled.read()).await;
        let fact = match read {
            Ok(RestoredHold::Nothing) => return Vec::new(),
            Ok(RestoredHold::Held(hold)) => match active.restore_settled(&hold, TimePoint::now()) {
                Ok(events) => {
                    self.written = Some(Arc::clone(&hold.configuration));
                    return events;
                }
                Err(refusal) => refusal.to_string(),
            },
            Ok(RestoredHold::Lost(fact)) => fact,
            Err(error) => error.to_string(),
        };
        let code = &codes::ROLLOUT_LOST;
        error!(path, fact, %code, next = code.next, "cannot restore the previous rollout state; applying the stored objects to all proxies");
        let lost: Option<Arc<str>> = Some(format!("{path}: {fact}").into());
        self.report(|state| state.lost = lost);
        Vec::new()
    }

    /// Records the objects. Returns whether any changed that rollouts apply to.
    pub(super) fn note(&mut self, objects: &Collection) -> bool {
        let differ = objects.differences(&self.seen).any(|one| rolls_out_gradually(one.key));
        self.seen = objects.clone();
        differ
    }

    pub(super) fn report(&self, change: impl FnOnce(&mut RolloutState)) {
        self.to.state.send_modify(|state| change(Arc::make_mut(state)));
    }

    /// Ends the running rollout; its proxies return to the configuration for all.
    pub(super) fn end(&mut self) -> Option<RunningRollout> {
        let StartedRollout { mut rollout, head, tasks } = self.running.take()?;
        tasks.stop();
        let published = self.to.state.borrow().running.clone();
        rollout.step = published
            .filter(|published| published.number == rollout.number)
            .and_then(|one| one.step);
        return_proxies(&self.to.heads, &head);
        self.report(|state| state.running = None);
        Some(rollout)
    }

    pub(super) async fn forget(&self) {
        if let Some(files) = self.files.clone() {
            // Only completion matters, not the result.
            let _ = tokio::task::spawn_blocking(move || files.forget()).await;
        }
    }

    /// Writes the configuration for all, if it differs from the last write.
    pub(super) async fn write_settled(&mut self, configuration: &Arc<ConfigurationSnapshot>) {
        let Some(files) = self.files.clone() else { return };
        if self.written.as_ref().is_some_and(|written| is_same(written, configuration)) {
            return;
        }
        self.may_be_written = true;
        let hold = ConfigurationHold {
            configuration: Arc::clone(configuration),
            since: now_to_the_millisecond(),
            by: STOPPED_BY.to_owned(),
            reason: String::new(),
            scope: HoldScope::WithoutAccess,
        };
        match put(files.settled, Some(Arc::new(hold))).await {
            Ok(()) => self.written = Some(Arc::clone(configuration)),
            Err(error) => {
                self.written = None;
                warn!(%error, "writing the rollout state failed; after a restart, all proxies receive the stored objects");
            }
        }
    }

    /// Removes the configuration for all, when changes no longer roll out gradually.
    pub(super) async fn remove_settled(&mut self) {
        if !std::mem::take(&mut self.may_be_written) {
            return;
        }
        if let Some(files) = self.files.clone() {
            self.written = None;
            let removed = tokio::task::spawn_blocking(move || {
                files.forget();
                files.settled.remove()
            });
            if let Ok(Err(error)) = removed.await {
                warn!(%error, "removing the rollout state from the state directory failed");
            }
        }
    }

    pub(super) fn publish_plan(&self, plan: &Option<Arc<RolloutPlan>>) {
        self.to.state.send_if_modified(|state| {
            let differs = state.plan != *plan;
            if differs {
                Arc::make_mut(state).plan.clone_from(plan);
            }
            differs
        });
    }
}

/// Returns the proxies of a rollout to the configuration for all.
pub(super) fn return_proxies(heads: &ConfigVariants, head: &ConfigVariant) {
    heads.end(head);
    let delivery = Arc::new(Delivery::new(Instant::now()));
    head.subscription_index().mark_proxies(|_| true, &delivery);
}

/// Returns whether objects of this kind roll out gradually: objects of the traffic configuration,
/// which may include unknown kinds.
fn rolls_out_gradually(key: &ObjectKey) -> bool {
    ConfigRole::of(key).is_none_or(|role| role == ConfigRole::Traffic)
}

/// Returns whether two configurations are equal in everything that rolls out gradually.
fn is_same(one: &ConfigurationSnapshot, other: &ConfigurationSnapshot) -> bool {
    one.mesh == other.mesh
        && one.networks == other.networks
        && one.traffic.differences(&other.traffic).next().is_none()
}
