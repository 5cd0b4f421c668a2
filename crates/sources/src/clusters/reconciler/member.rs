//! A member and its runs: which of them speaks, which is to take over, and why one may not.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::sync::watch;
use tokio::time::Instant;

use crate::clusters::flapping::Flapping;
use crate::clusters::guard::{LossNotice, Passed};
use crate::clusters::kubeconfig::KubeconfigRefusal;
use crate::clusters::status::{RestoredFacts, trouble};
use crate::clusters::token::Lifetime;
use crate::registry::kube::{ApiContact, OwnMesh, RunStatus};
use strait_base::codes;
use strait_base::task::Supervisor;
use strait_kube_client::{Access, ApiClient, ReadLimits};
use strait_model::ClusterId;

/// A member and its runs.
pub(super) struct Member {
    pub(super) since: Instant,
    /// Whether a run is to begin as soon as what it needs is known.
    pub(super) is_to_begin: bool,
    pub(super) serving: Option<Run>,
    /// The run that is to take over.
    pub(super) next: Option<Run>,
    /// The last status of a run whose updates have been passed on.
    pub(super) last: RunStatus,
    /// Whether anything it reported has been passed on.
    pub(super) has_data: bool,
    /// Whether that was remembered, and nothing newer has been passed on.
    pub(super) restored: Option<RestoredFacts>,
    /// The identity of the cluster whose data that is.
    pub(super) uid: Option<String>,
    /// The trust domain that the cluster names itself, as far as that is known.
    pub(super) claimed: Option<Arc<str>>,
    /// Why what the newest run says is not passed on.
    pub(super) barred: Option<KubeconfigRefusal>,
    /// Tasks that were asked to stop.
    pub(super) ending: Vec<Supervisor>,
    /// What was passed on, counted.
    pub(super) passed: Passed,
    pub(super) flapping: Flapping,
}

/// By what way, and how much, a run reads, and in which trust domain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RunSettings {
    pub(super) access: Access,
    pub(super) limits: ReadLimits,
    pub(super) trust_domain: Arc<str>,
    pub(super) own_mesh: OwnMesh,
}

/// One run of a member's registry.
pub(super) struct Run {
    pub(super) how: RunSettings,
    /// How long the token lives by which it reads.
    pub(super) token: Option<Lifetime>,
    pub(super) tasks: Supervisor,
    pub(super) status: watch::Receiver<RunStatus>,
    pub(super) gate: watch::Sender<bool>,
    pub(super) delivered: watch::Receiver<bool>,
    /// What is held back of what it says.
    pub(super) held: watch::Receiver<Option<LossNotice>>,
    /// By which client it reads, once there is one.
    pub(super) client: watch::Receiver<Option<ApiClient>>,
}

impl Drop for Run {
    fn drop(&mut self) {
        self.tasks.stop();
    }
}

impl Member {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            since: now,
            is_to_begin: false,
            serving: None,
            next: None,
            last: RunStatus::starting(),
            has_data: false,
            restored: None,
            uid: None,
            claimed: None,
            barred: None,
            ending: Vec::new(),
            passed: Passed::default(),
            flapping: Flapping::default(),
        }
    }

    /// Whether anything it reported has been passed on, be it since the last look.
    pub(super) fn holds_data(&self) -> bool {
        let delivered = |run: &Run| *run.delivered.borrow();
        self.has_data || self.serving.as_ref().is_some_and(delivered)
    }

    /// Whether what is served is from disk, and a run may soon say what is newer: nothing stands in its way.
    pub(super) fn is_catching_up(&self) -> bool {
        let reads = |run: &Run| trouble(&run.status.borrow()).is_none();
        self.restored.is_some()
            && self.barred.is_none()
            && self.held().is_none()
            && (self.is_to_begin || self.serving.as_ref().is_some_and(reads))
    }

    /// Stops all runs; the data stays as it is.
    pub(super) fn freeze(&mut self) {
        let (serving, next) = (self.serving.take(), self.next.take());
        self.end(serving);
        self.end(next);
        self.barred = None;
    }

    /// By which client its API server can be asked, where that is known to be the cluster's.
    pub(super) fn client(&self) -> Option<ApiClient> {
        let speaks = |run: &&Run| *run.gate.borrow();
        let runs = [&self.next, &self.serving].into_iter().flatten();
        runs.filter(speaks).find_map(|run| run.client.borrow().clone())
    }

    /// Whether the run that serves reads by this access.
    pub(super) fn reads_from(&self, access: &Access) -> bool {
        self.serving.as_ref().is_some_and(|run| run.how.access == *access)
    }

    /// Stops runs whose credential is another than this: it has gone with its Secret.
    pub(super) fn drop_others(&mut self, access: &Access) {
        for run in [self.serving.take(), self.next.take()].into_iter().flatten() {
            if run.how.access == *access {
                self.serving = Some(run);
            } else {
                self.end(Some(run));
            }
        }
    }

    /// Ends runs that another cluster answers now; what they reported stays. A new run finds out which it is.
    pub(super) fn drop_replaced(&mut self) {
        let replaced = |run: &mut Run| run.status.borrow().replaced;
        let runs = [self.serving.take_if(replaced), self.next.take_if(replaced)];
        for run in runs.into_iter().flatten() {
            self.end(Some(run));
        }
    }

    /// Sees to it that the newest run reads as `how` says. There are never more than two.
    pub(super) fn align(&mut self, how: &RunSettings, start: impl FnOnce() -> Run) {
        if self.next.as_ref().is_some_and(|next| next.how == *how) {
            return;
        }
        let next = self.next.take();
        self.end(next);
        match &self.serving {
            None => self.serving = Some(start()),
            Some(serving) if serving.how == *how => {}
            Some(_) => self.next = Some(start()),
        }
    }

    /// Lets the updates of runs through that may report, and a run that has reported take over. `pinned` is the UID
    /// that an operator states for the cluster, `stale_after` how long it may be out of contact.
    pub(super) fn advance<'a>(
        &mut self,
        pinned: Option<&str>,
        same_uid_as: impl Fn(&str) -> Option<&'a ClusterId>,
        stale_after: Duration,
        now: Instant,
    ) {
        self.notice(stale_after, now);
        let newest = self.next.as_ref().or(self.serving.as_ref());
        if let Some(own) = newest.and_then(|run| run.status.borrow().own.clone()) {
            self.claimed = own.trust_domain;
        }
        let mut barred = None;
        for run in [&self.serving, &self.next].into_iter().flatten() {
            let (synced, uid) = {
                let status = run.status.borrow();
                (status.synced, status.cluster_uid.clone())
            };
            if *run.gate.borrow() {
                // Whoever speaks, and is not to be replaced, is the cluster that is meant.
                if self.next.is_none() && self.uid.is_none() {
                    self.uid = uid;
                }
                continue;
            }
            if !synced {
                continue;
            }
            barred = match (pinned.or(self.uid.as_deref()), &uid) {
                (Some(was), Some(is)) if was != is => {
                    let fact = match pinned {
                        Some(pinned) => format!(
                            "the cluster's UID is {is}, and the Secret's annotation strait.dev/cluster-uid names {pinned}"
                        ),
                        None => format!(
                            "the cluster's UID was {was} and is {is}; to accept it annotate the Secret with strait.dev/cluster-uid={is}"
                        ),
                    };
                    Some(KubeconfigRefusal::new(&codes::IDENTITY_CHANGED, "", fact))
                }
                (_, Some(is)) => same_uid_as(is).map(|duplicate| {
                    let fact = format!(
                        "the cluster is a member already, as {duplicate} (UID {is}); if these are two clusters of one etcd snapshot, annotate both Secrets with strait.dev/cluster-uid={is}"
                    );
                    KubeconfigRefusal::new(&codes::SAME_CLUSTER_TWICE, "", fact)
                }),
                (_, None) => None,
            };
            if barred.is_none() {
                self.uid = uid.or(self.uid.take());
                run.gate.send_replace(true);
            }
        }
        self.barred = barred;
        if self.next.as_ref().is_some_and(|next| *next.delivered.borrow()) {
            let old = std::mem::replace(&mut self.serving, self.next.take());
            self.end(old);
        }
        if let Some(serving) = self.serving.as_ref().filter(|run| *run.delivered.borrow()) {
            self.has_data = true;
            self.restored = None;
            self.last = serving.status.borrow().clone();
        }
        self.ending.retain(|tasks| tasks.running() > 0);
    }

    /// Watches contact come and go.
    fn notice(&mut self, stale_after: Duration, now: Instant) {
        let Some(serving) = &self.serving else { return };
        let (begun, reached) = {
            let status = serving.status.borrow();
            (status.contact != ApiContact::Connecting, status.reached)
        };
        // While nothing is known yet, nothing is lost.
        if begun {
            self.flapping.observe(reached, stale_after, now.into_std());
        }
    }

    /// What is held back of what its runs say.
    pub(super) fn held(&self) -> Option<LossNotice> {
        let runs = [&self.next, &self.serving];
        runs.into_iter().flatten().find_map(|run| *run.held.borrow())
    }

    /// When its API server was last heard, where it is out of contact now. The time before `started`,
    /// when nobody listened, doesn't count.
    pub(super) fn dark_since(&self, started: SystemTime) -> Option<SystemTime> {
        let last = self.last.last_contact.get();
        let last = match self.serving.as_ref().map(|run| run.status.borrow()) {
            Some(status) if status.contact == ApiContact::Good => return None,
            Some(status) => last.max(status.last_contact.get()),
            None => last,
        };
        Some(last.map_or(started, |last| last.max(started)))
    }

    /// Whether what is shown of it stays as it is for as long as it has no news: it serves, is in contact, and
    /// waits for no time to pass.
    pub(super) fn is_settled(&self, now: Instant) -> bool {
        let serves = |run: &Run| {
            let status = run.status.borrow();
            *run.delivered.borrow()
                && (status.synced, status.reached) == (true, true)
                && status.contact == ApiContact::Good
                && status.doubted.is_none()
        };
        self.serving.as_ref().is_some_and(serves)
            && self.next.is_none()
            && self.ending.is_empty()
            && self.restored.is_none()
            && self.barred.is_none()
            && !self.is_to_begin
            && self.held().is_none()
            && self.flapping.stage(now.into_std()).is_none()
    }

    fn end(&mut self, run: Option<Run>) {
        if let Some(run) = run {
            run.tasks.stop();
            self.ending.push(run.tasks.clone());
        }
    }

    /// The run whose status is shown.
    pub(super) fn shown_run(&self) -> Option<&Run> {
        match (&self.serving, &self.next) {
            (Some(_), Some(next)) if !self.has_data => Some(next),
            (serving, next) => serving.as_ref().or(next.as_ref()),
        }
    }

    /// The status to show, and that of a run which is to take over. While nothing serves yet, the
    /// newest run is what counts.
    pub(super) fn shown(&self) -> (RunStatus, Option<RunStatus>) {
        let of = |run: &Run| {
            let mut status = run.status.borrow().clone();
            if self.has_data && !*run.delivered.borrow() {
                // What an earlier run reported is what is served.
                let RunStatus { services, endpoints, objects, .. } = self.last;
                let last_contact = self.last.last_contact.clone();
                status = RunStatus { services, endpoints, objects, last_contact, ..status };
            }
            status
        };
        match (&self.serving, &self.next) {
            (None, _) => (self.last.clone(), None),
            (Some(serving), None) => (of(serving), None),
            (Some(serving), Some(next)) if self.has_data => (of(serving), Some(of(next))),
            (Some(_), Some(next)) => (of(next), None),
        }
    }
}
