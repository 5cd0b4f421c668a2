//! The heads of the mesh, and the publishing of their versions.
//!
//! Normally there is one head: the mesh with the active configuration. During a rollout there is a
//! second one: the same mesh with the next configuration. It starts as a copy of the first head,
//! with which it shares unchanged parts. Updates of clusters apply to both heads, changes to
//! operators' objects to one of them. Each head has its own streams, cache and versions, so changes
//! to one do not affect the other. The assignment of proxies to heads is decided elsewhere.
//! (docs/contributing/decisions/0049-shares-of-proxies.md)

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use tokio::sync::{mpsc, oneshot};
use tracing::debug;

use super::gateways_first::GatewaysFirst;
use super::outputs::VariantOutputs;
use super::ruled::EditionVersion;
use super::work::causes_of_update;
use super::{LoopCounters, LoopOutputs, MeshEvent, MeshState};
use crate::push::context::PushContext;
use crate::push::effect::describe_effect;
use crate::push::subscription_index::Changes;
use crate::push::view_class::unaffected_views;
use crate::timeline::Delivery;
use strait_model::{Causes, Proxy};

/// The start of a second head.
pub struct RolloutCandidate {
    /// Its configuration, as complete events.
    pub configuration: Vec<MeshEvent>,
    /// The receivers of the versions.
    pub outputs: VariantOutputs,
}

impl std::fmt::Debug for RolloutCandidate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RolloutCandidate").field("configuration", &self.configuration).finish()
    }
}

/// The mesh with the active configuration and, during a rollout, with the next one.
pub struct ServedConfigurations {
    settled: MeshState,
    outputs: VariantOutputs,
    next: Option<(MeshState, VariantOutputs)>,
    /// Senders to notify when the second head has ended and all earlier events have been published.
    ending: Vec<oneshot::Sender<()>>,
    pub(super) gateways_first: GatewaysFirst,
}

impl ServedConfigurations {
    /// Creates the first head.
    pub fn new(settled: MeshState, outputs: &LoopOutputs) -> Self {
        let outputs = VariantOutputs {
            context: outputs.context.clone(),
            subscription_index: Arc::clone(&outputs.subscription_index),
            change_impact: Arc::clone(&outputs.change_impact),
        };
        Self {
            settled,
            outputs,
            next: None,
            ending: Vec::new(),
            gateways_first: GatewaysFirst::default(),
        }
    }

    /// Applies an event to all heads that it concerns.
    pub fn apply(&mut self, event: MeshEvent) {
        match event {
            MeshEvent::BeginNext(head) => self.begin(*head),
            MeshEvent::EndNext(ended) => {
                self.next = None;
                self.ending.push(ended);
                self.report_ended();
            }
            event => {
                if let Some((next, _)) = &mut self.next
                    && let Some(event) = for_all(&event)
                {
                    next.apply(event);
                }
                self.settled.apply(event);
                self.report_ended();
            }
        }
    }

    fn begin(&mut self, RolloutCandidate { configuration, outputs }: RolloutCandidate) {
        let mut next = self.settled.clone();
        configuration.into_iter().for_each(|event| next.apply(event));
        // Publish a first version even if the configuration changes nothing.
        next.pending.everything = true;
        // Editions belong to the first head.
        next.editions.clear();
        self.next = Some((next, outputs));
    }

    /// Notifies the waiting senders if all events before the end of the second head have been
    /// published.
    fn report_ended(&mut self) {
        if !self.ending.is_empty() && !self.settled.is_dirty() && !self.settled.awaits() {
            // The receiver may have been dropped.
            self.ending.drain(..).for_each(|ended| _ = ended.send(()));
        }
    }

    pub(super) fn is_complete(&self) -> bool {
        self.settled.complete
    }

    /// See [`MeshState::expire`].
    pub(super) fn expire(&mut self, now: Instant) -> Option<Instant> {
        let next = self.next.as_mut().and_then(|(mesh, _)| mesh.expire(now));
        self.settled.expire(now).into_iter().chain(next).min()
    }

    /// Returns whether any change waits for the next version of a head.
    pub(super) fn is_dirty(&self) -> bool {
        self.all().any(MeshState::is_dirty)
    }

    /// Returns whether a change to anything other than endpoints waits.
    pub(super) fn definitions_wait(&self) -> bool {
        self.all().any(MeshState::definitions_wait)
    }

    fn all(&self) -> impl Iterator<Item = &MeshState> {
        std::iter::once(&self.settled).chain(self.next.iter().map(|(next, _)| next))
    }

    /// Returns the objects that caused the changes waiting for the next version.
    pub(super) fn causes(&self) -> Causes {
        self.settled.pending.causes.clone()
    }

    /// Returns the objects that cause an event.
    pub(super) fn causes_of(event: &MeshEvent) -> Causes {
        match event {
            MeshEvent::Registry(update) | MeshEvent::Entries(update, _) => causes_of_update(update),
            MeshEvent::Traffic(update) | MeshEvent::EditionTraffic(_, update) => {
                update.causes.clone()
            }
            MeshEvent::Access(_, causes) => causes.clone(),
            MeshEvent::Together(events) => {
                let mut causes = Causes::default();
                events.iter().for_each(|event| causes.merge(Self::causes_of(event)));
                causes
            }
            _ => Causes::default(),
        }
    }

    /// Starts resolving the names of gateways before the first version.
    pub(super) fn resolve(&mut self, outputs: &LoopOutputs) {
        self.settled.refresh_networks();
        self.publish_names(outputs);
    }

    /// Publishes the next version of each head, with the changes that have been waiting since
    /// `since`. `begun` is the start of this call. Returns whether any version was published.
    pub fn publish(
        &mut self,
        outputs: &LoopOutputs,
        since: Option<Instant>,
        begun: Instant,
        figures: &mut LoopCounters,
    ) -> bool {
        let settled = self.settled.next_version();
        let editions = std::mem::take(&mut self.settled.edition_versions);
        let causes = self.settled.take_causes();
        let next = self.next.as_mut().and_then(|(mesh, head)| {
            let (version, causes) = (mesh.next_version(), mesh.take_causes());
            version.map(|(context, changes)| (context, changes, causes, head.clone()))
        });
        self.publish_names(outputs);
        if settled.is_none() && next.is_none() {
            self.report_ended();
            return false;
        }
        // Announce all heads before publishing any, because both share the access policies.
        let to_publish =
            [settled.as_ref().map(|_| &self.outputs), next.as_ref().map(|(.., head)| head)];
        to_publish
            .into_iter()
            .flatten()
            .for_each(|head| head.subscription_index.begin_publishing());
        editions.iter().for_each(|edition| edition.outputs.subscription_index.begin_publishing());
        let (sender, answers) = mpsc::channel(1);
        let delivery = Delivery::new(since.unwrap_or_else(Instant::now)).awaited_by(&sender);
        let delivery = Arc::new(delivery);
        let (mut woken, mut entered) = (0, None);
        // Publish editions first: at the start, a cluster's proxies must not be served before its
        // own rules are available.
        let (notified, edition_description) = self.publish_editions(editions, since, &delivery);
        woken += notified;
        if let Some((context, changes)) = settled {
            let version = context.version;
            outputs.retained.note(version, &context.configuration);
            let changes = Changes { since, ..changes };
            let is_editions_only = changes.is_empty();
            let (description, notified) = publish_to(&self.outputs, context, changes, &delivery);
            let description =
                edition_description.filter(|_| is_editions_only).unwrap_or(description);
            woken += notified;
            entered = Some((version, description, causes));
            figures.version = version;
        }
        if let Some((context, changes, causes, head)) = next {
            let (version, is_first) = (context.version, head.context.borrow().is_none());
            let changes = Changes { since, ..changes };
            let (description, notified) = publish_to(&head, context, changes, &delivery);
            woken += notified;
            let description = match is_first {
                true => "next configuration ready; no proxy receives it yet".to_owned(),
                false => format!("in the next configuration: {description}"),
            };
            // Usually both heads changed in the same way, so the first description is used.
            entered = entered.or(Some((version, description, causes)));
        }
        drop(sender);
        self.gateways_first.note(answers, Instant::now());
        self.report_ended();
        let Some((version, description, causes)) = entered else { return false };
        figures.published = Some(SystemTime::now());
        figures.woken = woken;
        figures.woken_total += woken as u64;
        outputs.timeline.enter(version, causes, description, delivery, begun);
        true
    }

    /// Publishes the versions of editions. Returns the number of woken streams and the description
    /// of a change.
    fn publish_editions(
        &self,
        editions: Vec<EditionVersion>,
        since: Option<Instant>,
        delivery: &Arc<Delivery>,
    ) -> (usize, Option<String>) {
        let (mut woken, mut description) = (0, None);
        for EditionVersion { cluster, context, changes, outputs } in editions {
            let is_first = outputs.context.borrow().is_none();
            let is_empty = changes.is_empty();
            let changes = Changes { since, ..changes };
            let (effect, notified) = publish_to(&outputs, context, changes, delivery);
            woken += notified;
            if is_first {
                // Until now, these proxies belonged to the other heads; wake them.
                let others = std::iter::once(&self.outputs);
                let others = others.chain(self.next.iter().map(|(_, head)| head));
                for head in others {
                    let is_in_cluster = |proxy: &Proxy| proxy.cluster == cluster;
                    woken += head.subscription_index.mark_proxies(is_in_cluster, delivery);
                }
                description =
                    Some(format!("cluster {cluster}: its own traffic objects take effect"));
            } else if !is_empty {
                description = Some(format!("cluster {cluster}: {effect}"));
            }
        }
        (woken, description)
    }

    fn publish_names(&self, outputs: &LoopOutputs) {
        let next_names =
            self.next.as_ref().map(|(next, _)| next.current.networks.names_to_resolve());
        let all_names: BTreeSet<Arc<str>>;
        let required = match (self.settled.current.networks.names_to_resolve(), next_names) {
            (settled, None) => settled,
            (settled, Some(next)) => {
                all_names = settled.union(next).cloned().collect();
                &all_names
            }
        };
        outputs.names.send_if_modified(|names| {
            let differs = names != required;
            if differs {
                names.clone_from(required);
            }
            differs
        });
    }
}

/// Returns the event as it applies to the second head: without changes to traffic rules, mesh
/// config and mesh networks.
fn for_all(event: &MeshEvent) -> Option<MeshEvent> {
    Some(match event {
        MeshEvent::Traffic(_)
        | MeshEvent::BeginEdition(_)
        | MeshEvent::EditionTraffic(..)
        | MeshEvent::EndEdition(_)
        | MeshEvent::MeshConfig(_)
        | MeshEvent::MeshNetworks(_)
        | MeshEvent::Configuration(_)
        | MeshEvent::BeginNext(_)
        | MeshEvent::EndNext(_) => return None,
        MeshEvent::Together(events) => {
            MeshEvent::Together(events.iter().filter_map(for_all).collect())
        }
        MeshEvent::Registry(update) => MeshEvent::Registry(update.clone()),
        MeshEvent::Entries(update, selections) => {
            MeshEvent::Entries(update.clone(), Arc::clone(selections))
        }
        MeshEvent::Clusters(clusters) => MeshEvent::Clusters(Arc::clone(clusters)),
        MeshEvent::Policy(policy) => MeshEvent::Policy(Arc::clone(policy)),
        MeshEvent::Access(policies, causes) => {
            MeshEvent::Access(Arc::clone(policies), causes.clone())
        }
        MeshEvent::GatewayNames(names) => MeshEvent::GatewayNames(Arc::clone(names)),
        MeshEvent::DeadGateways(dead) => MeshEvent::DeadGateways(Arc::clone(dead)),
        MeshEvent::Complete => MeshEvent::Complete,
        MeshEvent::CompleteWithoutNames => MeshEvent::CompleteWithoutNames,
    })
}

/// Publishes a version of one head and wakes the affected streams. Returns the description of the
/// change and the number of woken streams.
fn publish_to(
    head: &VariantOutputs,
    context: Arc<PushContext>,
    mut changes: Changes,
    delivery: &Arc<Delivery>,
) -> (String, usize) {
    let before = head.context.borrow().clone();
    let description = describe_effect(before.as_deref(), &context, &changes);
    if let Some(before) = &before {
        // Compute this before publishing, so that woken streams find unchanged resources in the
        // cache.
        changes.compute_impact([before, &context], &head.subscription_index, &*head.change_impact);
    }
    // Publish the context before waking streams: a woken stream must find the changes.
    head.context.send_replace(Some(Arc::clone(&context)));
    if let Some(before) = before {
        changes.unaffected_views =
            unaffected_views(&before, &context, &changes, &head.subscription_index);
    }
    debug!(version = context.version, deps = ?changes.deps, "new version");
    let woken = head.subscription_index.mark_followed(&changes, Some(delivery));
    (description, woken)
}
