//! One gradual rollout: waits between the steps, checks whether proxies refuse the change or lose
//! endpoints, and decides whether to promote or to stop.
//!
//! Lost endpoints are computed before a step, so that harmful changes reach no proxy. The caller
//! (`super::feed`) promotes the change or takes it back.

use std::sync::Arc;
use std::time::{Duration, Instant as Moment, SystemTime};

use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tracing::{info, warn};

use strait_base::codes;
use strait_envoy::heads::{ConfigVariant, ConfigVariants};
use strait_mesh::push::PushContext;
use strait_mesh::push::lost_endpoints::{LostEndpoints, lost_endpoints};
use strait_mesh::push::scope::ProxyLocation;
use strait_mesh::push::subscription_index::SubscriptionIndex;
use strait_mesh::rollout::{
    Cohort, RolloutFiles, RolloutState, RolloutStep, RolloutVerdict, RunningRollout, StopReason,
};
use strait_mesh::timeline::{Delivery, Timeline};
use strait_model::{Cause, ClusterId};

/// Interval of the check for lost endpoints.
pub(super) const LOOK: Duration = Duration::from_secs(5);
/// Maximum duration of one check.
const LOOK_MAX: Duration = Duration::from_secs(10);

/// Number of digits of a configuration's ID in short texts.
pub(super) const DIGITS_SHOWN: usize = 12;

/// Input of the last check: the versions of the mesh with both configurations, and the number of
/// proxies.
struct LookedAt {
    versions: [Arc<PushContext>; 2],
    proxies: usize,
}

/// Result of waiting for the end of a step.
enum StepNews {
    /// The step is over.
    Over,
    /// More proxies have connected; this cohort receives the change.
    Room(Cohort),
    /// The rollout must stop.
    Stop(StopReason),
}

/// Sends the verdict on a rollout, with its number.
pub(super) type Verdicts = mpsc::Sender<(u64, RolloutVerdict)>;

/// A running rollout.
pub(super) struct RolloutRun {
    /// The change.
    pub(super) rollout: RunningRollout,
    /// Assigns proxies to configurations.
    pub(super) heads: Arc<ConfigVariants>,
    /// The new configuration.
    pub(super) head: Arc<ConfigVariant>,
    /// The configuration of all other proxies.
    pub(super) settled: watch::Receiver<Option<Arc<PushContext>>>,
    /// Streams of all other proxies.
    pub(super) subscription_index: Arc<SubscriptionIndex>,
    pub(super) timeline: Arc<Timeline>,
    /// The published state.
    pub(super) state: watch::Sender<Arc<RolloutState>>,
    /// Files that store the progress.
    pub(super) files: Option<RolloutFiles>,
    pub(super) verdicts: Verdicts,
    /// See [`LOOK`].
    pub(super) look: Duration,
}

impl RolloutRun {
    /// Runs all steps and sends the verdict.
    pub(super) async fn run(mut self) {
        if let Some(verdict) = self.verdict().await {
            // The feed may have ended the rollout.
            let _ = self.verdicts.send((self.rollout.number, verdict)).await;
        }
    }

    /// Runs all steps. Returns `None` if the rollout was ended by the feed.
    async fn verdict(&mut self) -> Option<RolloutVerdict> {
        self.head.versions().clone().wait_for(Option::is_some).await.ok()?;
        let plan = Arc::clone(&self.rollout.plan);
        let reached = self.rollout.cohort.percent;
        let first = plan.steps.iter().rposition(|share| *share <= reached).unwrap_or(0);
        let mut looked_at = None;
        for (at, percent) in plan.steps.iter().enumerate().skip(first) {
            let cohort = self.filled(*percent);
            let lost = self.look(&cohort, &mut None).await;
            if let Some(stop) = lost.or_else(|| self.refused()) {
                return Some(RolloutVerdict::Stop(stop));
            }
            if *percent >= 100 {
                break;
            }
            let step = RolloutStep { at, since: SystemTime::now() };
            let ends = Instant::now() + plan.every;
            // During a step more proxies may connect, which makes room for more in the cohort.
            let mut more = Some(cohort);
            while let Some(cohort) = more {
                self.give(step, cohort).await?;
                more = match self.watch(ends, &mut looked_at).await {
                    StepNews::Over => None,
                    StepNews::Room(cohort) => Some(cohort),
                    StepNews::Stop(stop) => return Some(RolloutVerdict::Stop(stop)),
                };
            }
        }
        Some(RolloutVerdict::Promote)
    }

    /// Returns the cohort, extended by connected proxies up to this percentage.
    fn filled(&self, percent: u8) -> Cohort {
        let locations = self.locations();
        self.rollout.cohort.filled(percent, locations.iter().map(|location| &*location.proxy))
    }

    /// Returns the locations of all connected proxies.
    fn locations(&self) -> Vec<Arc<ProxyLocation>> {
        let locations = [&self.subscription_index, self.head.subscription_index()]
            .map(|subscription_index| subscription_index.locations(None));
        locations.into_iter().flatten().map(|(_, location)| location).collect()
    }

    /// Gives the new configuration to the cohort. Returns `None` if the rollout has ended.
    async fn give(&mut self, step: RolloutStep, cohort: Cohort) -> Option<()> {
        let begun = Moment::now();
        if let Some(files) = self.files.clone() {
            let cohort = cohort.clone();
            let noted = tokio::task::spawn_blocking(move || files.note(&cohort)).await;
            let noted = noted.unwrap_or_else(|error| Err(std::io::Error::other(error)));
            if let Err(error) = noted {
                warn!(%error, "writing the progress of the rollout failed; a restart will begin it again");
            }
        }
        if !self.heads.give(cohort.clone(), &self.head) {
            return None;
        }
        let delivery = Arc::new(Delivery::new(begun));
        let count = self.subscription_index.mark_proxies(|proxy| cohort.contains(proxy), &delivery);
        let percent = cohort.percent;
        self.rollout.step = Some(step);
        self.rollout.cohort = cohort;
        self.state.send_if_modified(|state| {
            let is_it = |one: &RunningRollout| one.number == self.rollout.number;
            let is_known = state.running.as_ref().is_some_and(is_it);
            if is_known {
                let running = Some(self.rollout.clone());
                *state = Arc::new(RolloutState { running, ..RolloutState::clone(state) });
            }
            is_known
        });
        let id = digits(&self.rollout);
        info!(
            configuration = id,
            percent,
            streams = count,
            "a rollout step sends the change to more proxies"
        );
        let version = self.settled.borrow().as_ref().map_or(0, |context| context.version);
        let cause = Cause::named(ClusterId::default(), "Rollout", id);
        let words = format!("{percent}% of proxies receive the next configuration");
        self.timeline.enter(version, cause.into(), words, delivery, begun);
        Some(())
    }

    /// Waits until the step is over, more proxies fit into the cohort, or the rollout must stop.
    async fn watch(&self, ends: Instant, looked_at: &mut Option<LookedAt>) -> StepNews {
        let limit = self.rollout.plan.stop_at.refused;
        let mut refusals = self.head.refusals();
        loop {
            let look = (Instant::now() + self.look).min(ends);
            let enough = async { refusals.wait_for(|all| all.len() >= limit).await.map(drop) };
            tokio::select! {
                biased;
                // This can't fail, because `self.head` owns the sender.
                Ok(()) = enough => if let Some(stop) = self.refused() {
                    return StepNews::Stop(stop);
                },
                () = tokio::time::sleep_until(look) => {
                    // Includes proxies that would be added next, so that none of them loses
                    // endpoints.
                    let cohort = self.filled(self.rollout.cohort.percent);
                    if let Some(stop) = self.look(&cohort, looked_at).await {
                        return StepNews::Stop(stop);
                    }
                    if Instant::now() >= ends {
                        return StepNews::Over;
                    }
                    if cohort != self.rollout.cohort {
                        return StepNews::Room(cohort);
                    }
                }
            }
        }
    }

    /// Returns the reason to stop if enough proxies refuse the change.
    fn refused(&self) -> Option<StopReason> {
        let refusals = self.head.refusals();
        let all = refusals.borrow();
        let (proxy, error) = all.first_key_value()?;
        let (proxy, error) = (Arc::clone(proxy), Arc::clone(error));
        let is_enough = all.len() >= self.rollout.plan.stop_at.refused;
        is_enough.then(|| StopReason::Refused { count: all.len(), proxy, error })
    }

    /// Returns the reason to stop if proxies of the cohort lose too many endpoints. Skips the check
    /// if its input has not changed.
    async fn look(&self, cohort: &Cohort, looked_at: &mut Option<LookedAt>) -> Option<StopReason> {
        let percent = self.rollout.plan.stop_at.lost_endpoints;
        if percent >= 100 {
            return None;
        }
        let versions = [self.settled.borrow().clone()?, self.head.versions().borrow().clone()?];
        let mut locations = self.locations();
        locations.retain(|location| cohort.contains(&location.proxy));
        let is_known = looked_at.as_ref().is_some_and(|last| {
            let pairs = last.versions.iter().zip(&versions);
            last.proxies == locations.len() && pairs.into_iter().all(|(a, b)| Arc::ptr_eq(a, b))
        });
        if is_known {
            return None;
        }
        *looked_at = Some(LookedAt { versions: versions.clone(), proxies: locations.len() });
        let found: Result<Option<LostEndpoints>, _> = tokio::task::spawn_blocking(move || {
            let deadline = Moment::now() + LOOK_MAX;
            lost_endpoints(versions.each_ref().map(|one| &**one), &locations, percent, deadline)
        })
        .await;
        let lost = found.ok().flatten()?;
        Some(StopReason::LostEndpoints(lost.to_string()))
    }
}

/// Returns the first digits of the configuration's ID.
pub(super) fn digits(rollout: &RunningRollout) -> String {
    rollout.next.id().chars().take(DIGITS_SHOWN).collect()
}

/// Logs that a rollout was stopped.
pub(super) fn log_stopped(rollout: &RunningRollout, reason: &str) {
    let code = &codes::ROLLOUT_STOPPED;
    let (id, percent) = (digits(rollout), rollout.percent());
    warn!(configuration = id, percent, reason, %code, next = code.next, "rollout stopped; its proxies return to the previous configuration");
}

#[cfg(test)]
mod tests;
