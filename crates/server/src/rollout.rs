//! Goes with one change of configuration from share to share: waits between the steps, looks whether proxies refuse it or lose
//! endpoints by it, and says in the end what is to become of it.
//!
//! Before a share is given it, what its proxies would lose is looked at, so that such a change reaches nobody. Gives nothing to
//! all and takes nothing back itself: that is its caller's (`super::feed`).

use std::sync::Arc;
use std::time::{Duration, Instant as Moment, SystemTime};

use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tracing::{info, warn};

use strait_base::codes;
use strait_envoy::heads::{Heads, ServedHead};
use strait_mesh::push::PushContext;
use strait_mesh::push::interest::Interest;
use strait_mesh::push::lost_endpoints::{LostEndpoints, lost_endpoints};
use strait_mesh::push::scope::Stand;
use strait_mesh::rollout::{
    Cohort, RolloutFiles, RolloutState, RolloutStep, RolloutVerdict, RunningRollout, StopReason,
};
use strait_mesh::timeline::{Delivery, Timeline};
use strait_model::{Cause, ClusterId};

/// How often it is looked whether proxies lose endpoints, while nobody says that they refuse it.
pub(super) const LOOK: Duration = Duration::from_secs(5);
/// For how long is looked at most.
const LOOK_MAX: Duration = Duration::from_secs(10);

/// How many digits of a configuration's name are shown where there is little room.
pub(super) const DIGITS_SHOWN: usize = 12;

/// What was looked at: the versions of the mesh with the configuration for all and with the next, and how many proxies.
struct LookedAt {
    versions: [Arc<PushContext>; 2],
    proxies: usize,
}

/// What comes of waiting for the end of a step.
enum StepNews {
    /// It is over.
    Over,
    /// More proxies are connected: these are to be given it.
    Room(Cohort),
    /// It doesn't come to that.
    Stop(StopReason),
}

/// What becomes of the roll-out with that number.
pub(super) type Verdicts = mpsc::Sender<(u64, RolloutVerdict)>;

/// One change that is let out.
pub(super) struct RolloutRun {
    /// What it is.
    pub(super) rollout: RunningRollout,
    /// Who is served what.
    pub(super) heads: Arc<Heads>,
    /// What the share is served.
    pub(super) head: Arc<ServedHead>,
    /// What all others are served.
    pub(super) settled: watch::Receiver<Option<Arc<PushContext>>>,
    /// Their streams.
    pub(super) interest: Arc<Interest>,
    pub(super) timeline: Arc<Timeline>,
    /// What others see of it.
    pub(super) state: watch::Sender<Arc<RolloutState>>,
    /// Where it is noted how far it is.
    pub(super) files: Option<RolloutFiles>,
    pub(super) verdicts: Verdicts,
    /// See [`LOOK`].
    pub(super) look: Duration,
}

impl RolloutRun {
    /// Goes from step to step until it is clear what becomes of it, and says so.
    pub(super) async fn run(mut self) {
        if let Some(verdict) = self.verdict().await {
            // Whoever asked may be gone, and with it the roll-out.
            let _ = self.verdicts.send((self.rollout.number, verdict)).await;
        }
    }

    /// What becomes of it; `None` where nobody waits for it any more.
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
            // As long as it lasts there may come more proxies, and so more room.
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

    /// Those that are given it, and of those that are connected so many more as this share has room for.
    fn filled(&self, percent: u8) -> Cohort {
        let stands = self.stands();
        self.rollout.cohort.filled(percent, stands.iter().map(|stand| &*stand.proxy))
    }

    /// Where all proxies stand that are connected.
    fn stands(&self) -> Vec<Arc<Stand>> {
        let stands = [&self.interest, self.head.interest()].map(|interest| interest.stands(None));
        stands.into_iter().flatten().map(|(_, stand)| stand).collect()
    }

    /// Has a share be served it.
    async fn give(&mut self, step: RolloutStep, cohort: Cohort) -> Option<()> {
        let begun = Moment::now();
        if let Some(files) = self.files.clone() {
            let cohort = cohort.clone();
            let noted = tokio::task::spawn_blocking(move || files.note(&cohort)).await;
            let noted = noted.unwrap_or_else(|error| Err(std::io::Error::other(error)));
            if let Err(error) = noted {
                warn!(%error, "how far a roll-out is can't be noted: a restart begins it anew");
            }
        }
        if !self.heads.give(cohort.clone(), &self.head) {
            return None;
        }
        let delivery = Arc::new(Delivery::new(begun));
        let count = self.interest.mark_proxies(|proxy| cohort.contains(proxy), &delivery);
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
            "a change is given to a share of proxies"
        );
        let version = self.settled.borrow().as_ref().map_or(0, |context| context.version);
        let cause = Cause::named(ClusterId::default(), "Rollout", id);
        let words = format!("{percent}% of proxies are given the next configuration");
        self.timeline.enter(version, cause.into(), words, delivery, begun);
        Some(())
    }

    /// Waits for the end of a step, or until there is room for more proxies in it.
    async fn watch(&self, ends: Instant, looked_at: &mut Option<LookedAt>) -> StepNews {
        let limit = self.rollout.plan.stop_at.refused;
        let mut refusals = self.head.refusals();
        loop {
            let look = (Instant::now() + self.look).min(ends);
            let enough = async { refusals.wait_for(|all| all.len() >= limit).await.map(drop) };
            tokio::select! {
                biased;
                // It can't fail: what tells is held here.
                Ok(()) = enough => if let Some(stop) = self.refused() {
                    return StepNews::Stop(stop);
                },
                () = tokio::time::sleep_until(look) => {
                    // With those that are given it next, if there are any: it reaches nobody that loses endpoints by it.
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

    /// Why it is to be stopped by proxies that refuse it, if it is.
    fn refused(&self) -> Option<StopReason> {
        let refusals = self.head.refusals();
        let all = refusals.borrow();
        let (proxy, error) = all.first_key_value()?;
        let (proxy, error) = (Arc::clone(proxy), Arc::clone(error));
        let is_enough = all.len() >= self.rollout.plan.stop_at.refused;
        is_enough.then(|| StopReason::Refused { count: all.len(), proxy, error })
    }

    /// Why it is to be stopped by what proxies of a share lose, if it is. What was looked at last isn't again.
    async fn look(&self, cohort: &Cohort, looked_at: &mut Option<LookedAt>) -> Option<StopReason> {
        let percent = self.rollout.plan.stop_at.lost_endpoints;
        if percent >= 100 {
            return None;
        }
        let versions = [self.settled.borrow().clone()?, self.head.versions().borrow().clone()?];
        let mut stands = self.stands();
        stands.retain(|stand| cohort.contains(&stand.proxy));
        let is_known = looked_at.as_ref().is_some_and(|last| {
            let pairs = last.versions.iter().zip(&versions);
            last.proxies == stands.len() && pairs.into_iter().all(|(a, b)| Arc::ptr_eq(a, b))
        });
        if is_known {
            return None;
        }
        *looked_at = Some(LookedAt { versions: versions.clone(), proxies: stands.len() });
        let found: Result<Option<LostEndpoints>, _> = tokio::task::spawn_blocking(move || {
            let deadline = Moment::now() + LOOK_MAX;
            lost_endpoints(versions.each_ref().map(|one| &**one), &stands, percent, deadline)
        })
        .await;
        let lost = found.ok().flatten()?;
        Some(StopReason::LostEndpoints(lost.to_string()))
    }
}

/// The first digits of what names its configuration.
pub(super) fn digits(rollout: &RunningRollout) -> String {
    rollout.next.id().chars().take(DIGITS_SHOWN).collect()
}

/// Says that one was stopped.
pub(super) fn tell_stopped(rollout: &RunningRollout, reason: &str) {
    let code = &codes::ROLLOUT_STOPPED;
    let (id, percent) = (digits(rollout), rollout.percent());
    warn!(configuration = id, percent, reason, %code, next = code.next, "a roll-out is stopped, and its share taken back");
}

#[cfg(test)]
mod tests;
