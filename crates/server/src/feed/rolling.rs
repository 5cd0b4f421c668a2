//! Gradual rollouts of configuration changes, if the policy asks for them.
//!
//! Any difference from the configuration for all starts a rollout, which `server::rollout` advances
//! step by step; a further change restarts it. A rollout ends when all proxies have the change,
//! when it is stopped (the configuration for all is then held), or when the objects equal the
//! configuration for all again.

use std::sync::Arc;
use std::time::SystemTime;

use tokio::sync::oneshot;
use tracing::{error, info};

use super::running_rollout::{StartedRollout, return_proxies};
use super::{ConfigFeed, Fed, restored};
use crate::rollout::{LOOK, RolloutRun, digits, log_stopped};
use strait_envoy::heads::ConfigVariant;
use strait_mesh::hold::{
    ConfigurationHold, HoldChange, HoldRefusal, HoldScope, now_to_the_millisecond,
};
use strait_mesh::push::event_loop::{MeshEvent, RolloutCandidate};
use strait_mesh::rollout::{Cohort, RolloutVerdict, RunningRollout, STOPPED_BY, name_of};
use strait_model::policy::RolloutPlan;
use strait_model::{Collection, ConfigurationSnapshot};
use strait_rules::access::TimePoint;

impl ConfigFeed {
    fn rollout_plan(&self) -> Option<Arc<RolloutPlan>> {
        self.from.policy.borrow().rollout().cloned()
    }

    /// Pins the configuration for all before object changes apply, if these are to roll out
    /// gradually.
    pub(super) fn settle_before(&mut self, objects: &Collection) {
        if self.rollout_plan().is_some() && self.rollout.note(objects) {
            self.settle();
        }
    }

    /// Pins the configuration for all before any change, if changes are to roll out gradually.
    pub(super) fn settle(&mut self) {
        if self.to.readiness.borrow().ready && self.rollout_plan().is_some() {
            self.outbox.extend(self.active.settle(TimePoint::now()));
        }
    }

    /// Starts, restarts or ends the rollout, depending on how the objects differ from the
    /// configuration for all.
    pub(super) async fn follow_rollout(&mut self, live: &Arc<ConfigurationSnapshot>) -> Fed {
        if let Some(head) = self.rollout.promoted.take() {
            self.end_promoted(head).await?;
        }
        if !self.to.readiness.borrow().ready {
            return Ok(());
        }
        let plan = self.rollout_plan();
        self.rollout.publish_plan(&plan);
        if self.active.is_rolling_out() {
            let running = self.rollout.running.as_ref();
            let plan = plan.clone().or_else(|| Some(Arc::clone(&running?.rollout.plan)));
            let is_waiting = self.active.waiting(live).is_some_and(|one| !one.what.is_empty());
            match plan.filter(|_| is_waiting) {
                None => return self.promote_all().await,
                Some(plan) => {
                    let name = name_of(live);
                    if running.is_none_or(|running| running.rollout.name != name) {
                        self.begin_rollout(name, plan).await?;
                    }
                }
            }
        }
        match plan {
            Some(_) => {
                let settled = self.active.configuration();
                self.rollout.write_settled(&settled).await;
            }
            None if self.rollout.running.is_none() => self.rollout.remove_settled().await,
            None => {}
        }
        Ok(())
    }

    async fn begin_rollout(&mut self, name: Arc<str>, plan: Arc<RolloutPlan>) -> Fed {
        let Some((next, configuration)) = self.active.next_head() else { return Ok(()) };
        let settled = self.active.configuration();
        // A restart must find the configuration for all before any proxy has the new one.
        self.rollout.write_settled(&settled).await;
        if let Some(before) = self.rollout.end() {
            info!(
                configuration = digits(&before),
                "another change arrived during the rollout; restarting it"
            );
        }
        let reached = match self.rollout.files.clone() {
            Some(files) => {
                let name = Arc::clone(&name);
                tokio::task::spawn_blocking(move || files.reached(&name)).await.ok()
            }
            None => None,
        };
        let cohort = reached.unwrap_or_else(|| Cohort::new(Arc::clone(&name), 0));
        let reached = cohort.percent;
        self.rollout.number += 1;
        let number = self.rollout.number;
        let (head, outputs) = ConfigVariant::new(number);
        let begun = RolloutCandidate { configuration, outputs };
        self.send(MeshEvent::BeginNext(Box::new(begun))).await?;
        let is_durable = self.rollout.written.is_some();
        let rollout = RunningRollout {
            number,
            next,
            name,
            settled,
            plan,
            begun: SystemTime::now(),
            step: None,
            cohort,
            is_durable,
        };
        info!(configuration = digits(&rollout), steps = ?rollout.plan.steps, reached, "rolling out a change gradually");
        self.rollout.report(|state| {
            state.running = Some(rollout.clone());
            state.lost = None;
        });
        let run = RolloutRun {
            rollout: rollout.clone(),
            heads: Arc::clone(&self.rollout.to.heads),
            head: Arc::clone(&head),
            settled: self.from.context.clone(),
            subscription_index: Arc::clone(&self.rollout.to.subscription_index),
            timeline: Arc::clone(&self.rollout.to.timeline),
            state: self.rollout.to.state.clone(),
            files: self.rollout.files.clone(),
            verdicts: self.rollout.verdicts_to.clone(),
            look: LOOK,
        };
        let tasks = self.rollout.tasks.child();
        tasks.spawn("rollout", run.run());
        self.rollout.running = Some(StartedRollout { rollout, head, tasks });
        Ok(())
    }

    /// Applies the verdict on the rollout with this number.
    pub(super) async fn apply_verdict(&mut self, number: u64, verdict: RolloutVerdict) -> Fed {
        let running = self.rollout.running.as_ref();
        let Some(running) = running.filter(|one| one.rollout.number == number) else {
            // The rollout has ended in the meantime.
            return Ok(());
        };
        match verdict {
            RolloutVerdict::Promote => {
                info!(
                    configuration = digits(&running.rollout),
                    "rollout completed: all proxies receive the change"
                );
                self.promote();
            }
            RolloutVerdict::Stop(reason) => {
                let state = self.rollout.to.state.borrow().running.clone();
                let percent = state.map_or(0, |state| state.percent());
                let id = digits(&running.rollout);
                let reason = format!("rollout of {id} stopped at {percent}%: {reason}");
                self.stop_rollout(STOPPED_BY, &reason).await;
            }
        }
        self.follow_settings();
        self.objects().await
    }

    /// Promotes the rolled out configuration. It reaches all proxies once the waiting events have
    /// been sent.
    pub(super) fn promote(&mut self) {
        let events = self.active.promote(TimePoint::now());
        self.outbox.extend(events);
        if let Some(StartedRollout { head, tasks, .. }) = self.rollout.running.take() {
            tasks.stop();
            self.rollout.promoted = Some(head);
            self.rollout.report(|state| {
                state.running = None;
                state.completed += 1;
            });
        }
    }

    /// Promotes the live configuration immediately, if no rollout is running or nothing differs any
    /// more.
    async fn promote_all(&mut self) -> Fed {
        // Any remaining proxies of the rollout return to the configuration for all.
        let was_running = self.rollout.end();
        if let Some(rollout) = &was_running {
            info!(
                configuration = digits(rollout),
                "the objects equal the configuration for all proxies again; ending the rollout"
            );
        }
        self.promote();
        self.rollout.forget().await;
        self.send_outbox().await?;
        if was_running.is_some() {
            let (ended, _) = oneshot::channel();
            self.send(MeshEvent::EndNext(ended)).await?;
        }
        self.publish_stored();
        Ok(())
    }

    /// Returns the proxies of a completed rollout to the configuration for all, once this contains
    /// the change.
    async fn end_promoted(&mut self, head: Arc<ConfigVariant>) -> Fed {
        self.rollout.forget().await;
        let (ended, has_ended) = oneshot::channel();
        self.send(MeshEvent::EndNext(ended)).await?;
        let heads = Arc::clone(&self.rollout.to.heads);
        self.rollout.tasks.spawn("end of the rollout", async move {
            // An error means that the event loop has ended, and with it the process.
            if has_ended.await.is_ok() {
                return_proxies(&heads, &head);
            }
        });
        Ok(())
    }

    /// Stops the rollout and holds the configuration for all.
    pub(super) async fn stop_rollout(&mut self, by: &str, reason: &str) {
        let hold = ConfigurationHold {
            configuration: self.active.configuration(),
            since: now_to_the_millisecond(),
            by: by.to_owned(),
            reason: reason.to_owned(),
            scope: HoldScope::WithoutAccess,
        };
        let change = HoldChange::Hold(Arc::new(hold));
        // Boxed, because `changed_hold` calls this function.
        if let Err(refusal) = Box::pin(self.changed_hold(&change)).await {
            error!(%refusal, "holding the configuration for all proxies, but a restart will lose this hold");
            self.rollout_ends(reason).await;
            match self.active.change(&change, TimePoint::now()) {
                Ok(events) => self.outbox.extend(events),
                Err(refusal) => error!(%refusal, "cannot hold the configuration for all proxies"),
            }
        }
    }

    /// Ends the running rollout, if there is one, because a configuration is now held.
    pub(super) async fn rollout_ends(&mut self, reason: &str) {
        let Some(rollout) = self.rollout.end() else { return };
        log_stopped(&rollout, reason);
        self.rollout.report(|state| state.stopped += 1);
        self.rollout.forget().await;
        let (ended, _) = oneshot::channel();
        // An error means that the process is ending.
        let _ = self.send(MeshEvent::EndNext(ended)).await;
    }

    /// Rolls out the changes that waited during a hold, if the policy asks for it. Returns whether
    /// it does.
    pub(super) async fn roll_out_waiting(&mut self) -> Result<bool, HoldRefusal> {
        let held = self.active.hold().map(|hold| Arc::clone(&hold.configuration));
        let (Some(held), Some(_)) = (held, self.rollout_plan()) else { return Ok(false) };
        // Written before the hold is removed, so that the configuration is never lost.
        self.rollout.write_settled(&held).await;
        self.remove_hold().await?;
        let events = self.active.roll_out_waiting(TimePoint::now());
        self.outbox.extend(events);
        Ok(true)
    }

    /// Removes the file of the hold.
    pub(super) async fn remove_hold(&self) -> Result<(), HoldRefusal> {
        let Some(file) = self.hold_file.clone() else { return Ok(()) };
        restored::put(file, None).await.map_err(HoldRefusal::Unwritable)
    }
}
