//! One run of a member's registry, from start to end: waits for its turn, reports through its gate,
//! and restarts after a panic.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use super::context::{RESTART_PAUSE, ReconcilerContext};
use super::credential_swap::find_principal;
use super::member::{Run, RunSettings};
use crate::clusters::guard::{Guard, LossNotice, Passed};
use crate::clusters::status;
use crate::lifetime::Lifetime;
use crate::registry::kube::{self, ObjectCounts, RunStatus};
use crate::store::member;
use strait_base::latest::publish_change;
use strait_base::task::until;
use strait_model::mesh_config::ObjectSelectors;
use strait_model::policy::Policy;
use strait_model::registry::RegistryUpdate;
use strait_model::{ClusterId, OwnTraffic};

/// How long a first sync occupies its turn: a slow or dead one must not delay the others.
const FIRST_SYNC_TURN: Duration = Duration::from_secs(2);

/// Starts a run of the registry of `id`. `object_counts` is the state of the previous run.
pub(super) fn start_run(
    context: &Arc<ReconcilerContext>,
    id: &ClusterId,
    how: &RunSettings,
    passed: &Passed,
    object_counts: ObjectCounts,
) -> Run {
    let tasks = context.tasks.child();
    passed.store_contents(!how.namespaces.is_whole());
    let (status, status_receiver) =
        watch::channel(RunStatus { object_counts, ..RunStatus::starting() });
    let (gate, gate_receiver) = watch::channel(false);
    let (delivered, delivered_receiver) = watch::channel(false);
    let (holding, holding_receiver) = watch::channel(None);
    let (client, client_receiver) = watch::channel(None);
    let (principal, principal_receiver) = watch::channel(None);
    let access = watch::Sender::new(how.access.clone());
    let current_access = access.clone();
    let shared = Arc::clone(context);
    let (id, run_how, passed) = (id.clone(), how.clone(), passed.clone());
    tasks.spawn_restarting(format!("cluster {id}"), RESTART_PAUSE, move || {
        // After a panic, the data that was passed on still exists, but is not kept up to date.
        delivered.send_replace(false);
        holding.send_replace(None);
        status.send_modify(|status| {
            (status.synced, status.reached) = (false, false);
            status.contact = kube::ApiContact::Connecting;
        });
        shared.note(&id);
        let (sender, updates) = mpsc::channel(1);
        let (traffic, traffic_receiver) = watch::channel(OwnTraffic {
            is_wanted: shared.config.policy.borrow().applies_traffic_from(&id),
            ..OwnTraffic::default()
        });
        let (selectors, selectors_receiver) = watch::channel(None);
        let config = kube::RunConfig {
            cluster: id.clone(),
            access: current_access.borrow().clone(),
            limits: run_how.limits,
            domain: shared.config.domain.clone(),
            trust_domain: run_how.trust_domain.to_string(),
            own_mesh: run_how.own_mesh.clone(),
            namespaces: run_how.namespaces.clone(),
            known: passed.contents(),
            system_namespace: shared.config.system_namespace.clone(),
            selectors: selectors_receiver,
            metadata: shared.config.metadata,
            mcs: shared.config.mcs,
            imports: shared.config.imports,
            clusterset: shared.config.clusterset.clone(),
            policy: shared.config.policy.clone(),
            shared: shared.config.shared.clone(),
            shared_endpoints: shared.config.shared_endpoints.clone(),
            writes: shared.config.writes.clone(),
            traffic: traffic_receiver,
            epoch: shared.next_epoch(),
            client: client.clone(),
            updates: sender,
            status: status.clone(),
        };
        let run = MemberRun {
            context: Arc::clone(&shared),
            gate: gate_receiver.clone(),
            delivered: delivered.clone(),
            status: status.subscribe(),
            id: id.clone(),
            guard: Guard::new(passed.clone()),
            delayed_loss: holding.clone(),
        };
        let (wanted, wanted_receiver) = watch::channel(false);
        let policy = shared.config.policy.clone();
        let own_traffic =
            member::follow(wanted_receiver, client.subscribe(), run_how.limits, traffic);
        // Boxed, as `principal` is: futures that are moved into others keep their place in both.
        let mesh_selectors = shared.config.selectors.clone();
        let inputs = (policy.clone(), mesh_selectors);
        let is_whole = run_how.namespaces.is_whole();
        let own_traffic = Box::pin(futures::future::join3(
            follow_traffic_policy(id.clone(), policy, wanted),
            own_traffic,
            follow_selectors(id.clone(), is_whole, inputs, selectors),
        ));
        let (found, clients, statuses) =
            (principal.clone(), client.subscribe(), status.subscribe());
        let (shared, noted_id) = (Arc::clone(&shared), id.clone());
        let principal = Box::pin(async move {
            // Boxed, because it has nothing to do once the user is known.
            Box::pin(find_principal(clients, statuses, &found)).await;
            shared.note(&noted_id);
            std::future::pending().await
        });
        run.run(config, updates, own_traffic, principal)
    });
    Run {
        how: how.clone(),
        lifetime: Lifetime::from_access(&how.access),
        access,
        principal: principal_receiver,
        tasks,
        status: status_receiver,
        gate,
        delivered: delivered_receiver,
        delayed_loss: holding_receiver,
        client: client_receiver,
    }
}

/// One run from start to end.
struct MemberRun {
    context: Arc<ReconcilerContext>,
    gate: watch::Receiver<bool>,
    delivered: watch::Sender<bool>,
    status: watch::Receiver<RunStatus>,
    id: ClusterId,
    guard: Guard,
    delayed_loss: watch::Sender<Option<LossNotice>>,
}

impl MemberRun {
    async fn run(
        self,
        config: kube::RunConfig,
        updates: mpsc::Receiver<Box<RegistryUpdate>>,
        own_traffic: impl Future<Output = (Infallible, (), Infallible)> + Unpin,
        principal: impl Future<Output = Infallible> + Unpin,
    ) {
        // Never closed: the semaphore lives as long as the context.
        let permit = Arc::clone(&self.context.first_syncs).acquire_owned().await.ok();
        let registry = (self.context.config.runner)(config);
        let Self { context, gate, delivered, status, id, guard, delayed_loss } = self;
        let announced_id = id.clone();
        let mut updates =
            MemberUpdates { updates, gate, delivered, context: &context, id, guard, delayed_loss };
        tokio::select! {
            () = registry => {}
            (never, (), _) = own_traffic => match never {},
            never = principal => match never {},
            () = updates.forward() => {}
            () = announce(status.clone(), &context, &announced_id) => {}
            never = async {
                let _ = tokio::time::timeout(FIRST_SYNC_TURN, wait_for_first_sync(status)).await;
                drop(permit);
                std::future::pending::<Infallible>().await
            } => match never {},
        }
    }
}

/// Publishes whether the policy applies a cluster's traffic objects to its proxies.
async fn follow_traffic_policy(
    id: ClusterId,
    mut policy: watch::Receiver<Arc<Policy>>,
    wanted: watch::Sender<bool>,
) -> Infallible {
    loop {
        let now = policy.borrow_and_update().applies_traffic_from(&id);
        publish_change(&wanted, now);
        if policy.changed().await.is_err() {
            return std::future::pending().await;
        }
    }
}

/// Publishes the selectors of a cluster: those of the mesh config, but the policy may select other
/// namespaces. `None` until the mesh config has been read. If the reader is limited to namespaces, all
/// of them belong to the mesh.
async fn follow_selectors(
    id: ClusterId,
    is_whole: bool,
    (mut policy, mut mesh): (
        watch::Receiver<Arc<Policy>>,
        watch::Receiver<Option<ObjectSelectors>>,
    ),
    selectors: watch::Sender<Option<ObjectSelectors>>,
) -> Infallible {
    loop {
        let own = policy.borrow_and_update().discovery_selectors(&id).cloned();
        let own = if is_whole { own } else { Some(Arc::default()) };
        let mut new = mesh.borrow_and_update().clone();
        if let (Some(own), Some(new)) = (own, &mut new) {
            new.namespaces = own;
        }
        publish_change(&selectors, new);
        tokio::select! {
            Ok(()) = policy.changed() => {}
            Ok(()) = mesh.changed() => {}
            else => return std::future::pending().await,
        }
    }
}

/// Waits until it is known whether the first sync succeeds.
async fn wait_for_first_sync(mut status: watch::Receiver<RunStatus>) {
    // An error means that the run has ended.
    let _ = status.wait_for(|status| status.synced || status::trouble(status).is_some()).await;
}

/// The updates of a run on their way to the mesh.
struct MemberUpdates<'a> {
    updates: mpsc::Receiver<Box<RegistryUpdate>>,
    gate: watch::Receiver<bool>,
    delivered: watch::Sender<bool>,
    context: &'a ReconcilerContext,
    id: ClusterId,
    guard: Guard,
    delayed_loss: watch::Sender<Option<LossNotice>>,
}

impl MemberUpdates<'_> {
    /// Passes updates on once the gate is open, subject to the guard.
    async fn forward(&mut self) {
        // The shard and epoch of the last update, for a release without a new update.
        let mut last = None;
        loop {
            let release_at = self.guard.holding().map(|notice| Instant::from_std(notice.until));
            let update = tokio::select! {
                update = self.updates.recv() => {
                    let Some(update) = update else { return };
                    let RegistryUpdate { shard, epoch, change } = *update;
                    if self.gate.wait_for(|open| *open).await.is_err() {
                        return;
                    }
                    last = Some((shard, epoch));
                    let rule = self.context.config.policy.borrow().mass_withdrawal(&self.id);
                    self.guard.offer(change, rule, Instant::now().into_std())
                }
                () = until(release_at) => self.guard.release(Instant::now().into_std()),
            };
            self.report();
            let (Some(change), Some((shard, epoch))) = (update, last.clone()) else { continue };
            let update = RegistryUpdate { shard, epoch, change };
            if self.context.config.updates.send(update).await.is_err() {
                return;
            }
            if !self.delivered.send_replace(true) {
                self.context.note(&self.id);
            }
        }
    }

    /// Publishes the delayed loss of endpoints.
    fn report(&self) {
        let holding = self.guard.holding();
        let changed = publish_change(&self.delayed_loss, holding);
        if changed {
            self.context.note(&self.id);
        }
    }
}

/// Notifies the reconciler of every change of a run's status.
async fn announce(
    mut status: watch::Receiver<RunStatus>,
    context: &ReconcilerContext,
    id: &ClusterId,
) {
    while status.changed().await.is_ok() {
        context.note(id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use strait_model::{LabelSelector, NamespaceFilter};

    #[tokio::test]
    async fn selectors_of_the_policy_replace_those_of_the_mesh_config() {
        let policy = |text: &str| {
            let text = format!("apiVersion: strait.dev/v1\nkind: Policy\n{text}\n");
            Arc::new(Policy::parse(&text).expect("a valid policy"))
        };
        let filter = |label: &str| {
            let labels = [(label.into(), "a".into())].into_iter().collect();
            let selectors = vec![LabelSelector { labels, conditions: Vec::new() }];
            Arc::new(NamespaceFilter { selectors })
        };
        let of = |namespaces| Some(ObjectSelectors { namespaces, ..ObjectSelectors::default() });
        let (policies, policy_receiver) = watch::channel(policy(""));
        let (mesh, mesh_receiver) = watch::channel(None);
        let (sender, mut found) = watch::channel(None);
        let inputs = (policy_receiver, mesh_receiver);
        let follow = follow_selectors("east".into(), true, inputs, sender);
        let check = async {
            mesh.send_replace(of(filter("mesh")));
            let has_changed = found.wait_for(|one| *one == of(filter("mesh"))).await.is_ok();
            assert!(has_changed);
            policies.send_replace(policy(
                "clusters: {east: {discoverySelectors: [{matchLabels: {own: a}}]}}",
            ));
            let has_changed = found.wait_for(|one| *one == of(filter("own"))).await.is_ok();
            assert!(has_changed);
            policies.send_replace(policy("clusters: {east: {discoverySelectors: []}}"));
            let all = of(Arc::default());
            assert!(found.wait_for(|one| *one == all).await.is_ok(), "all namespaces");
            policies.send_replace(policy(""));
            let has_changed = found.wait_for(|one| *one == of(filter("mesh"))).await.is_ok();
            assert!(has_changed);
        };
        let limit = Duration::from_secs(30);
        let done = tokio::time::timeout(limit, async {
            tokio::select! {
                never = follow => match never {},
                () = check => {}
            }
        });
        done.await.expect("in time");
    }
}
