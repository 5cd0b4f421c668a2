//! Schedule of the status computation of configuration objects: Gateway API routes, Ingresses, and
//! with `--write-status` Istio objects.
//!
//! Statuses do not depend on the proxies connected to this replica. So all replicas compute the
//! same statuses, and connecting proxies cause no writes.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use crate::admin::Readiness;
use strait_base::latest::publish_change;
use strait_base::task::until;
use strait_explain::{ConfigReports, ConfigView};
use strait_mesh::push::PushContext;
use strait_model::{WantedStatus, WriterRole};
use strait_rules::access::AccessPolicies;

/// Delay after a change, and therefore the minimum interval of computations.
const PACE: Duration = Duration::from_secs(1);
/// Minimum interval if only pods changed, whose labels Istio objects select.
const PACE_OF_PODS: Duration = Duration::from_secs(10);
/// The pause after a computation lasts at least this multiple of its duration.
const SHARE: u32 = 20;

/// Inputs of the statuses.
#[derive(Debug, Clone)]
pub(super) struct JudgedStatuses {
    pub(super) context: watch::Receiver<Option<Arc<PushContext>>>,
    pub(super) reports: watch::Receiver<Arc<ConfigReports>>,
    pub(super) readiness: watch::Receiver<Readiness>,
    /// Whether statuses of Istio objects are computed too.
    pub(super) of_istio: bool,
}

/// Inputs of the last computation.
#[derive(Debug)]
pub(crate) struct JudgedLast {
    at: Instant,
    version: u64,
    definitions: u64,
    access: Arc<AccessPolicies>,
    reports: Arc<ConfigReports>,
}

/// When to compute statuses next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NextLook {
    Now,
    At(Instant),
    /// No relevant input has changed.
    OnChange,
}

impl JudgedLast {
    pub(crate) fn of(context: &PushContext, reports: &Arc<ConfigReports>, at: Instant) -> Self {
        Self {
            at,
            version: context.version,
            definitions: context.definitions,
            access: Arc::clone(&context.access),
            reports: Arc::clone(reports),
        }
    }

    /// Returns when to compute statuses again. Endpoints and pods don't affect the statuses of
    /// routes.
    pub(crate) fn next(&self, now: &Self, of_istio: bool) -> NextLook {
        let is_same = self.definitions == now.definitions
            && Arc::ptr_eq(&self.access, &now.access)
            && Arc::ptr_eq(&self.reports, &now.reports);
        let due = self.at + PACE_OF_PODS;
        match (is_same, of_istio && self.version != now.version) {
            (true, false) => NextLook::OnChange,
            (true, true) if now.at < due => NextLook::At(due),
            _ => NextLook::Now,
        }
    }
}

impl JudgedStatuses {
    /// Computes the wanted statuses while this replica has the writer role.
    pub(super) async fn run(
        mut self,
        mut role: watch::Receiver<WriterRole>,
        wanted: watch::Sender<Arc<Vec<WantedStatus>>>,
    ) {
        // Before readiness, a missing Service may belong to a cluster that has not synced.
        if self.readiness.wait_for(|readiness| readiness.ready).await.is_err() {
            return;
        }
        let of_istio = self.of_istio;
        let mut last: Option<JudgedLast> = None;
        loop {
            if role.wait_for(|role| *role == WriterRole::Writes).await.is_err() {
                return;
            }
            let began = Instant::now();
            let context = self.context.borrow_and_update().clone();
            let reports = Arc::clone(&self.reports.borrow_and_update());
            let mut again = None;
            if let Some(context) = context {
                let now = JudgedLast::of(&context, &reports, began);
                match last.as_ref().map_or(NextLook::Now, |last| last.next(&now, of_istio)) {
                    NextLook::OnChange => {}
                    NextLook::At(due) => again = Some(due),
                    NextLook::Now => {
                        last = Some(now);
                        let judge = move || statuses(&context, &reports, of_istio);
                        // Runs aside, because many statuses take long.
                        let Ok(all) = tokio::task::spawn_blocking(judge).await else { return };
                        publish_change(&wanted, Arc::new(all));
                    }
                }
            }
            let cost = began.elapsed() * SHARE;
            tokio::select! {
                changed = self.context.changed() => if changed.is_err() { return },
                changed = self.reports.changed() => if changed.is_err() { return },
                changed = role.changed() => if changed.is_err() { return },
                () = until(again) => continue,
            }
            // Objects are stored before they take effect.
            sleep(PACE.max(cost)).await;
        }
    }
}

fn statuses(
    context: &Arc<PushContext>,
    reports: &ConfigReports,
    of_istio: bool,
) -> Vec<WantedStatus> {
    let context = reports.judged(context);
    let view = ConfigView::new(&context, reports, &[]);
    let routes = view.route_statuses().into_iter().map(WantedStatus::Route);
    let objects = if of_istio { view.object_statuses() } else { Vec::new() };
    let ingresses = view.ingress_statuses().into_iter().map(WantedStatus::Ingress);
    let objects = objects.into_iter().map(WantedStatus::Object);
    routes.chain(ingresses).chain(objects).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_of_pods_alone_are_computed_at_longer_intervals() {
        let began = Instant::now();
        let (access, reports) = (Arc::default(), Arc::default());
        let look = |seconds, version, definitions| JudgedLast {
            at: began + Duration::from_secs(seconds),
            version,
            definitions,
            access: Arc::clone(&access),
            reports: Arc::clone(&reports),
        };
        let last = look(0, 1, 1);
        assert_eq!(last.next(&look(1, 1, 1), true), NextLook::OnChange);
        assert_eq!(last.next(&look(1, 2, 2), true), NextLook::Now);
        assert_eq!(last.next(&look(1, 2, 1), true), NextLook::At(began + PACE_OF_PODS));
        assert_eq!(last.next(&look(10, 2, 1), true), NextLook::Now);
        assert_eq!(last.next(&look(10, 2, 1), false), NextLook::OnChange, "routes don't select");
        let other = JudgedLast { access: Arc::default(), ..look(1, 2, 1) };
        assert_eq!(last.next(&other, true), NextLook::Now);
        let other = JudgedLast { reports: Arc::default(), ..look(1, 1, 1) };
        assert_eq!(last.next(&other, true), NextLook::Now);
    }
}
