//! When to judge the routes of the Gateway API anew, so that each can say in its status what becomes of it.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use crate::admin::Readiness;
use crate::explain::{ConfigReports, ConfigView};
use crate::model::{RouteStatus, WriterRole};
use crate::push::PushContext;

/// The least time between a change and a look, and so between two looks.
const PACE: Duration = Duration::from_secs(1);
/// A look may cost this part of the time.
const SHARE: u32 = 20;

/// What routes are judged by.
#[derive(Debug, Clone)]
pub(super) struct JudgedRoutes {
    pub(super) context: watch::Receiver<Option<Arc<PushContext>>>,
    pub(super) reports: watch::Receiver<Arc<ConfigReports>>,
    pub(super) readiness: watch::Receiver<Readiness>,
}

impl JudgedRoutes {
    /// Says what is to be written, where this process is the one that writes.
    pub(super) async fn run(
        mut self,
        mut role: watch::Receiver<WriterRole>,
        wanted: watch::Sender<Arc<Vec<RouteStatus>>>,
    ) {
        // Before all is known, a Service that isn't there may be one of a cluster that isn't.
        if self.readiness.wait_for(|readiness| readiness.ready).await.is_err() {
            return;
        }
        // The version of the mesh that was looked at, and the objects.
        let mut seen: Option<(u64, Arc<ConfigReports>)> = None;
        loop {
            if role.wait_for(|role| *role == WriterRole::Writes).await.is_err() {
                return;
            }
            let began = Instant::now();
            let context = self.context.borrow_and_update().clone();
            let reports = Arc::clone(&self.reports.borrow_and_update());
            if let Some(context) = context {
                // Endpoints and pods change nothing here.
                let is_seen = seen.as_ref().is_some_and(|(version, of)| {
                    *version == context.definitions && Arc::ptr_eq(of, &reports)
                });
                if !is_seen {
                    seen = Some((context.definitions, Arc::clone(&reports)));
                    let judge = move || {
                        let context = reports.judged(&context);
                        ConfigView::new(&context, &reports, &[]).route_statuses()
                    };
                    // Many of them take a while.
                    let Ok(all) = tokio::task::spawn_blocking(judge).await else { return };
                    wanted.send_if_modified(|held| {
                        let differs = **held != all;
                        if differs {
                            *held = Arc::new(all);
                        }
                        differs
                    });
                }
            }
            let cost = began.elapsed() * SHARE;
            tokio::select! {
                changed = self.context.changed() => if changed.is_err() { return },
                changed = self.reports.changed() => if changed.is_err() { return },
                changed = role.changed() => if changed.is_err() { return },
            }
            // Objects are here before what comes of them is in force.
            sleep(PACE.max(cost)).await;
        }
    }
}
