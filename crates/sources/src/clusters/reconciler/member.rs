//! A member and its runs: which run serves, which is to replace it, and why a run is barred.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use jiff::Timestamp;
use tokio::sync::watch;
use tokio::time::Instant;
use tracing::info;

use super::credential_swap::{CredentialSwap, Principal, SwapState, SwappedRun};
use crate::clusters::flapping::Flapping;
use crate::clusters::guard::{LossNotice, Passed};
use crate::clusters::identity::ExpectedCluster;
use crate::clusters::kubeconfig::KubeconfigRefusal;
use crate::clusters::status::{RestoredFacts, trouble};
use crate::lifetime::Lifetime;
use crate::registry::kube::{ApiContact, OwnMesh, RunStatus};
use strait_base::codes;
use strait_base::task::Supervisor;
use strait_kube_client::{Access, ApiClient, ReadLimits};
use strait_model::{ClusterId, ReadNamespaces};

/// A member and its runs.
pub(super) struct Member {
    pub(super) since: Instant,
    /// Whether a run is to start as soon as its inputs are known.
    pub(super) is_to_begin: bool,
    pub(super) serving: Option<Run>,
    /// The run that is to take over.
    pub(super) next: Option<Run>,
    /// The replacement of the credential of `serving`.
    pub(super) swap: Option<CredentialSwap>,
    /// The last status of a run whose updates have been passed on.
    pub(super) last: RunStatus,
    /// Whether anything it reported has been passed on.
    pub(super) has_data: bool,
    /// Set if the data was remembered and nothing newer has been passed on.
    pub(super) restored: Option<RestoredFacts>,
    /// The UID of the cluster that the data comes from.
    pub(super) uid: Option<String>,
    /// The UID of the object that led to that cluster, if known.
    pub(super) found_by: Option<Arc<str>>,
    /// The UID of the cluster before, if a new object has led to the present one.
    pub(super) followed: Option<String>,
    /// The trust domain that the cluster itself claims, if known.
    pub(super) claimed: Option<Arc<str>>,
    /// Why the updates of the newest run are not passed on.
    pub(super) barred: Option<KubeconfigRefusal>,
    /// Tasks that have been asked to stop.
    pub(super) ending: Vec<Supervisor>,
    /// Counts of the endpoints that have been passed on.
    pub(super) passed: Passed,
    pub(super) flapping: Flapping,
}

/// The access of a run, the objects that it reads, and the trust domain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RunSettings {
    pub(super) access: Access,
    pub(super) limits: ReadLimits,
    pub(super) trust_domain: Arc<str>,
    pub(super) own_mesh: OwnMesh,
    /// The namespaces that it reads.
    pub(super) namespaces: ReadNamespaces,
}

/// One run of a member's registry.
pub(super) struct Run {
    pub(super) how: RunSettings,
    /// The lifetime of the credential that it uses.
    pub(super) lifetime: Option<Lifetime>,
    /// The access that it uses when it starts again after a panic.
    pub(super) access: watch::Sender<Access>,
    /// The user of its credential.
    pub(super) principal: watch::Receiver<Principal>,
    pub(super) tasks: Supervisor,
    pub(super) status: watch::Receiver<RunStatus>,
    pub(super) gate: watch::Sender<bool>,
    pub(super) delivered: watch::Receiver<bool>,
    /// The delayed loss of endpoints.
    pub(super) delayed_loss: watch::Receiver<Option<LossNotice>>,
    /// The client that it uses, once one exists.
    pub(super) client: watch::Receiver<Option<ApiClient>>,
}

impl Run {
    /// Returns the parts that a swap of the credential needs, if the run is in use and `how` has only
    /// another credential.
    fn swappable(&self, how: &RunSettings, id: &ClusterId) -> Option<SwappedRun> {
        let same_access = RunSettings { access: self.how.access.clone(), ..how.clone() };
        let is_same_but_credential =
            self.how.access.has_same_server(&how.access) && self.how == same_access;
        let is_in_use = *self.gate.borrow() && *self.delivered.borrow();
        let client =
            self.client.borrow().clone().filter(|_| is_same_but_credential && is_in_use)?;
        Some(SwappedRun {
            id: id.clone(),
            client,
            access: self.access.clone(),
            principal: self.principal.clone(),
            status: self.status.clone(),
        })
    }
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
            swap: None,
            last: RunStatus::starting(),
            has_data: false,
            restored: None,
            uid: None,
            found_by: None,
            followed: None,
            claimed: None,
            barred: None,
            ending: Vec::new(),
            passed: Passed::default(),
            flapping: Flapping::default(),
        }
    }

    /// Whether any update has been passed on, including since the last check.
    pub(super) fn holds_data(&self) -> bool {
        let delivered = |run: &Run| *run.delivered.borrow();
        self.has_data || self.serving.as_ref().is_some_and(delivered)
    }

    /// Whether the served data is from disk and a run without problems may soon replace it.
    pub(super) fn is_catching_up(&self) -> bool {
        let reads = |run: &Run| trouble(&run.status.borrow()).is_none();
        self.restored.is_some()
            && self.barred.is_none()
            && self.delayed_loss().is_none()
            && (self.is_to_begin || self.serving.as_ref().is_some_and(reads))
    }

    /// Stops all runs; the data stays unchanged.
    pub(super) fn freeze(&mut self) {
        let (serving, next) = (self.serving.take(), self.next.take());
        self.end(serving);
        self.end(next);
        self.swap = None;
        self.barred = None;
    }

    /// Returns a client for the member's API server, if it is known to be the right cluster.
    pub(super) fn client(&self) -> Option<ApiClient> {
        let is_open = |run: &&Run| *run.gate.borrow();
        let runs = [&self.next, &self.serving].into_iter().flatten();
        runs.filter(is_open).find_map(|run| run.client.borrow().clone())
    }

    /// Returns why a new credential does not replace that of the serving run.
    pub(super) fn refused_credential(&self) -> Option<Arc<str>> {
        self.swap.as_ref()?.failure()
    }

    /// Whether the serving run uses this access.
    pub(super) fn reads_from(&self, access: &Access) -> bool {
        self.serving.as_ref().is_some_and(|run| run.how.access == *access)
    }

    /// Stops runs with a different credential: it was deleted with its Secret.
    pub(super) fn drop_others(&mut self, access: &Access) {
        self.swap = None;
        for run in [self.serving.take(), self.next.take()].into_iter().flatten() {
            if run.how.access == *access {
                self.serving = Some(run);
            } else {
                self.end(Some(run));
            }
        }
    }

    /// Ends runs whose API server now belongs to another cluster; their data stays. A new run
    /// determines which cluster it is.
    pub(super) fn drop_replaced(&mut self) {
        self.end_if(|run| run.status.borrow().replaced);
    }

    /// Ends runs with an access that is no longer permitted; their data stays.
    pub(super) fn drop_forbidden(&mut self, is_permitted: impl Fn(&Access) -> bool) {
        self.end_if(|run| !is_permitted(&run.how.access));
    }

    fn end_if(&mut self, is_over: impl Fn(&mut Run) -> bool) {
        let runs = [self.serving.take_if(&is_over), self.next.take_if(&is_over)];
        for run in runs.into_iter().flatten() {
            self.end(Some(run));
        }
    }

    /// Ensures that the newest run uses `how`. There are never more than two runs. If only the
    /// credential differs, `swap` replaces it in the serving run.
    pub(super) fn align(
        &mut self,
        how: &RunSettings,
        start: impl FnOnce() -> Run,
        swap: impl FnOnce(SwappedRun, Access) -> CredentialSwap,
        id: &ClusterId,
    ) {
        if self.next.as_ref().is_some_and(|next| next.how == *how) {
            return;
        }
        let next = self.next.take();
        self.end(next);
        let Some(serving) = &mut self.serving else {
            self.swap = None;
            self.serving = Some(start());
            return;
        };
        if serving.how == *how {
            self.swap = None;
            return;
        }
        self.swap.take_if(|swap| swap.access != how.access);
        let state = self.swap.as_ref().map(|swap| swap.state.borrow().clone());
        match (serving.swappable(how, id), state) {
            (None, _) => {
                self.swap = None;
                self.next = Some(start());
            }
            (Some(run), None) => self.swap = Some(swap(run, how.access.clone())),
            (Some(_), Some(SwapState::Testing(_))) => {}
            (Some(_), Some(SwapState::Done)) => {
                serving.how.access = how.access.clone();
                serving.lifetime = Lifetime::from_access(&how.access);
                self.swap = None;
            }
            (Some(_), Some(SwapState::NeedsRun)) => self.next = Some(start()),
        }
    }

    /// Opens the gates of runs that may report, and lets a run that has reported take over.
    /// `stale_after` is the time without contact after which the member is stale.
    /// `same_cluster` describes the member that is the cluster with a UID and takes precedence over
    /// this one.
    pub(super) fn advance(
        &mut self,
        expected: &ExpectedCluster<'_>,
        same_cluster: impl Fn(&str) -> Option<String>,
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
                // A run that reports and has no successor determines the cluster's UID.
                if self.next.is_none() && self.uid.is_none() {
                    self.uid = uid;
                }
                continue;
            }
            if !synced {
                continue;
            }
            let (was, found_by) = (self.uid.as_deref(), self.found_by.as_ref());
            barred = uid.as_deref().and_then(|is| {
                expected.refusal(was, found_by, is).or_else(|| {
                    let member = same_cluster(is)?;
                    let objects = match expected.kind {
                        "Secret" => "both Secrets",
                        _ => "the objects that define both",
                    };
                    let fact = format!(
                        "the cluster is a member already, as {member} (UID {is}); if these are two clusters of one etcd snapshot, annotate {objects} with strait.dev/cluster-uid={is}"
                    );
                    Some(KubeconfigRefusal::new(&codes::SAME_CLUSTER_TWICE, "", fact))
                })
            });
            if barred.is_none() {
                let is_other = uid.is_some() && self.uid.is_some() && uid != self.uid;
                if is_other {
                    let (was, is) = (&self.uid, &uid);
                    info!(cluster = %expected.id, ?was, ?is, "the new Secret connects to a different cluster");
                    // An operator who names the UID needs no event about it.
                    self.followed = self.uid.clone().filter(|_| expected.pinned.is_none());
                }
                self.uid = uid.or(self.uid.take());
                if expected.access == Some(&run.how.access) {
                    self.found_by.clone_from(&expected.object);
                }
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
            // Contact shows that the object leads to the cluster now.
            if self.next.is_none()
                && *serving.gate.borrow()
                && expected.access == Some(&serving.how.access)
                && self.last.reached
                && self.last.cluster_uid == self.uid
            {
                self.found_by.clone_from(&expected.object);
            }
        }
        self.ending.retain(|tasks| tasks.running() > 0);
    }

    /// Records gains and losses of contact.
    fn notice(&mut self, stale_after: Duration, now: Instant) {
        let Some(serving) = &self.serving else { return };
        let (begun, reached) = {
            let status = serving.status.borrow();
            (status.contact != ApiContact::Connecting, status.reached)
        };
        // Before the first contact, nothing can be lost.
        if begun {
            self.flapping.observe(reached, stale_after, now.into_std());
        }
    }

    /// Returns the delayed loss of endpoints.
    pub(super) fn delayed_loss(&self) -> Option<LossNotice> {
        let runs = [&self.next, &self.serving];
        runs.into_iter().flatten().find_map(|run| *run.delayed_loss.borrow())
    }

    /// Returns the last contact with the API server if it is unreachable now. A server that responds
    /// with refusals or invalid data is reachable. Time before `started`, when no process was
    /// running, doesn't count.
    pub(super) fn dark_since(&self, started: SystemTime) -> Option<SystemTime> {
        let last = self.last.last_contact.get();
        let last = match self.serving.as_ref().map(|run| run.status.borrow()) {
            Some(status) if status.contact.is_response() => return None,
            Some(status) => last.max(status.last_contact.get()),
            None => last,
        };
        Some(last.map_or(started, |last| last.max(started)))
    }

    /// Whether its published state can only change through new reports: it serves, is in contact,
    /// and waits for no timeout.
    pub(super) fn is_settled(&self, now: Instant) -> bool {
        let serves = |run: &Run| {
            let status = run.status.borrow();
            *run.delivered.borrow()
                && (status.synced, status.reached) == (true, true)
                && status.contact == ApiContact::Good
                && status.doubted.is_none()
                && status.unread.is_empty()
        };
        self.serving.as_ref().is_some_and(serves)
            && self.next.is_none()
            && self.swap.is_none()
            && self.ending.is_empty()
            && self.restored.is_none()
            && self.barred.is_none()
            && !self.is_to_begin
            && self.delayed_loss().is_none()
            && self.flapping.stage(now.into_std()).is_none()
    }

    fn end(&mut self, run: Option<Run>) {
        if let Some(run) = run {
            run.tasks.stop();
            self.ending.push(run.tasks.clone());
        }
    }

    /// Returns the run whose status is shown.
    pub(super) fn shown_run(&self) -> Option<&Run> {
        match (&self.serving, &self.next) {
            (Some(_), Some(next)) if !self.has_data => Some(next),
            (serving, next) => serving.as_ref().or(next.as_ref()),
        }
    }

    /// Returns the status to show, and the status of a run that is to take over. While no run
    /// serves, the newest run's status is shown.
    pub(super) fn shown(&self) -> (RunStatus, Option<RunStatus>) {
        let shown_status = |run: &Run| {
            let mut status = run.status.borrow().clone();
            if self.has_data && !*run.delivered.borrow() {
                // The served data is from an earlier run.
                let RunStatus { services, endpoints, objects, .. } = self.last;
                let last_contact = self.last.last_contact.clone();
                status = RunStatus { services, endpoints, objects, last_contact, ..status };
            }
            if let ApiContact::AuthFailed(fact) = &mut status.contact
                && let Some(lifetime) = run.lifetime
                && let Some(fault) = lifetime.fault(Timestamp::now())
            {
                *fact += &format!("; {fault}");
            }
            status
        };
        match (&self.serving, &self.next) {
            (None, _) => (self.last.clone(), None),
            (Some(serving), None) => (shown_status(serving), None),
            (Some(serving), Some(next)) if self.has_data => {
                (shown_status(serving), Some(shown_status(next)))
            }
            (Some(_), Some(next)) => (shown_status(next), None),
        }
    }
}
