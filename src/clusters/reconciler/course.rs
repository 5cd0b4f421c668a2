//! One run of a member's registry, from its start to its end: in turn, behind its gate, and again after
//! a panic.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, mpsc, watch};

use super::{Context, RESTART_PAUSE, Run};
use crate::apiserver::Access;
use crate::clusters::status;
use crate::model::ClusterId;
use crate::registry::RegistryUpdate;
use crate::registry::kube::{self, Status};

/// How long one of the first syncs counts: a slow or dead one must not keep the others waiting.
const FIRST_SYNC_TURN: Duration = Duration::from_secs(2);

/// Starts a run of the registry of `id`.
pub(super) fn start_run(context: &Arc<Context>, id: &ClusterId, access: &Access) -> Run {
    let tasks = context.tasks.child();
    let (status, status_seen) = watch::channel(Status::starting());
    let (gate, gate_seen) = watch::channel(false);
    let (delivered, delivered_seen) = watch::channel(false);
    let shared = Arc::clone(context);
    let (id, run_access) = (id.clone(), access.clone());
    tasks.spawn_restarting(format!("cluster {id}"), RESTART_PAUSE, move || {
        // After a panic the data passed on is still there, but nothing keeps it up to date.
        delivered.send_replace(false);
        status.send_modify(|status| {
            status.synced = false;
            status.contact = kube::Contact::Connecting;
        });
        let (updates, words) = mpsc::channel(1);
        let config = kube::Config {
            cluster: id.clone(),
            access: run_access.clone(),
            domain: shared.config.domain.clone(),
            trust_domain: shared.config.trust_domain.clone(),
            system_namespace: shared.config.system_namespace.clone(),
            namespaces: shared.config.namespaces.clone(),
            mcs: shared.config.mcs,
            epoch: shared.next_epoch(),
            updates,
            status: status.clone(),
        };
        let course = Course {
            context: Arc::clone(&shared),
            gate: gate_seen.clone(),
            delivered: delivered.clone(),
            status: status.subscribe(),
        };
        course.run(config, words)
    });
    Run { access: access.clone(), tasks, status: status_seen, gate, delivered: delivered_seen }
}

/// One run from its start to its end.
struct Course {
    context: Arc<Context>,
    gate: watch::Receiver<bool>,
    delivered: watch::Sender<bool>,
    status: watch::Receiver<Status>,
}

impl Course {
    async fn run(self, config: kube::Config, words: mpsc::Receiver<RegistryUpdate>) {
        // Closed never: it lives as long as the context.
        let turn = Arc::clone(&self.context.first_syncs).acquire_owned().await.ok();
        let registry = (self.context.config.runner)(config);
        let Self { context, gate, delivered, status } = self;
        tokio::select! {
            () = registry => {}
            () = forward(words, gate, &delivered, &context) => {}
            () = announce(status.clone(), &context.news) => {}
            never = async {
                let _ = tokio::time::timeout(FIRST_SYNC_TURN, over(status)).await;
                drop(turn);
                std::future::pending::<std::convert::Infallible>().await
            } => match never {},
        }
    }
}

/// Until it is known whether the first sync works.
async fn over(mut status: watch::Receiver<Status>) {
    // An error says that the run is over.
    let _ = status.wait_for(|status| status.synced || status::trouble(status).is_some()).await;
}

/// Passes words on once the gate is open.
async fn forward(
    mut words: mpsc::Receiver<RegistryUpdate>,
    mut gate: watch::Receiver<bool>,
    delivered: &watch::Sender<bool>,
    context: &Context,
) {
    while let Some(word) = words.recv().await {
        if gate.wait_for(|open| *open).await.is_err()
            || context.config.updates.send(word).await.is_err()
        {
            return;
        }
        if !delivered.send_replace(true) {
            context.news.notify_one();
        }
    }
}

/// Tells the reconciler of every change of a run's status.
async fn announce(mut status: watch::Receiver<Status>, news: &Notify) {
    while status.changed().await.is_ok() {
        news.notify_one();
    }
}
