//! Finds the views that a change to endpoints does not affect.
//!
//! In a mesh with many networks, most changes are visible in one network; in all others, the
//! service appears as its gateways. Waking a stream that has nothing to send is expensive, because
//! its memory is not in the CPU's cache. So this module compares the assignments once for all
//! streams with equal views.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::context::PushContext;
use super::subscription_index::{Changes, SubscriptionIndex};
use super::subset::{SubsetFilter, subset_names};
use super::view::{ViewDependencies, ViewKey, contribution};
use crate::aggregate::{MergedService, ShardEndpoints};
use strait_model::{ClusterId, Hostname, Namespace};
use strait_rules::traffic::Selection;

/// If streams of a view watch fewer names than this, they are woken without a comparison, which
/// would cost as much.
const WORTH_A_LOOK: usize = 4;

impl ViewKey {
    /// Returns the part of the view that is relevant for services which look the same from all
    /// clusters, namespaces, nodes and localities, as most services do. A mesh has few distinct
    /// values.
    pub fn view_class(self) -> Self {
        Self {
            cluster: ClusterId::default(),
            namespace: Namespace::default(),
            node: None,
            locality: None,
            selection: Selection::default(),
            ..self
        }
    }
}

/// Returns the view classes in which nothing differs, for each service whose endpoints changed
/// between two versions.
pub(super) fn unaffected_views(
    before: &PushContext,
    now: &PushContext,
    changes: &Changes,
    subscription_index: &SubscriptionIndex,
) -> BTreeMap<Hostname, Vec<Arc<ViewKey>>> {
    if changes.is_everything() {
        return BTreeMap::new();
    }
    let gateways = now.networks.differing(&before.networks);
    let modes = now.clusters.differ_in_mode(&before.clusters).unwrap_or_default();
    let is_reached_differently = |shard: &&ShardEndpoints| {
        modes.contains(&shard.key.cluster)
            || shard.networks().iter().any(|network| gateways.contains(network))
    };
    let views_for_host = |host: &Hostname| {
        let (old, new) = (plain(before, host)?, plain(now, host)?);
        if !old.same_definition(new) || !old.same_security(new) {
            return None;
        }
        let changed_shards = changed_shards(old, new);
        let networks: BTreeSet<_> =
            changed_shards.iter().flat_map(|shard| shard.networks()).collect();
        // The path to unchanged endpoints may differ.
        let rerouted = new.shards.iter().filter(is_reached_differently);
        let keys: BTreeSet<_> =
            changed_shards.iter().copied().chain(rerouted).map(|one| &one.key).collect();
        let all_rules = [before.rules_for(old), now.rules_for(new)];
        // gRPC's library chooses the transport by this, even for unchanged endpoints.
        let mtls_changes = old.accepts_mtls != new.accepts_mtls;
        let is_unaffected = |[then, view]: &[ViewKey; 2]| {
            let [old_rules, new_rules] = &all_rules;
            let rules = [then.rule(old_rules, old), view.rule(new_rules, new)];
            let ports: Vec<_> = new.ports().map(|port| port.number).collect();
            subset_names(rules).into_iter().all(|name| {
                let filters = [
                    SubsetFilter::new(old_rules, rules[0], old, name),
                    SubsetFilter::new(new_rules, rules[1], new, name),
                ];
                // A subset is added or removed by a change of rules, which is handled separately.
                let [Some(was), Some(is)] = filters else { return true };
                ports.iter().all(|port| {
                    contribution(before, then, old, *port, &keys, was)
                        == contribution(now, view, new, *port, &keys, is)
                })
            })
        };
        let mut decided_views = BTreeMap::new();
        let mut views = subscription_index.view_classes(host, WORTH_A_LOOK);
        views.retain(|view| {
            let pair = || [view.projected(before, old), view.projected(now, new)];
            // In its own network, the change is nearly always visible.
            !((mtls_changes && view.grpc.is_some()) || networks.contains(&view.network))
                && *decided_views.entry(pair()).or_insert_with_key(is_unaffected)
        });
        (!views.is_empty()).then(|| (host.clone(), views))
    };
    changes.endpoints().filter_map(views_for_host).collect()
}

/// Returns the service with this hostname, if its endpoints depend on nothing in a view but the
/// view class.
fn plain<'a>(context: &'a PushContext, host: &Hostname) -> Option<&'a MergedService> {
    let service = context.services.get(host)?;
    let is_plain = ViewDependencies::of(context, service) == ViewDependencies::default()
        && !context.traffic.is_by_namespace(host.as_str())
        // The gateways to its pods are assignments, too.
        && context.remote_pods.of(host).is_none();
    (is_plain && !context.private.contains_key(host)).then_some(service)
}

/// Returns the shards whose endpoints differ, in the old and the new version.
fn changed_shards<'a>(old: &'a MergedService, new: &'a MergedService) -> Vec<&'a ShardEndpoints> {
    let differs = |(at, one): &(usize, &ShardEndpoints), other: &MergedService| {
        let has_same_key = |shard: &&ShardEndpoints| shard.key == one.key;
        // It is nearly always in the same position.
        let at_same_index = other.shards.get(*at).filter(has_same_key);
        at_same_index.or_else(|| other.shards.iter().find(has_same_key)) != Some(one)
    };
    let changed_old = old.shards.iter().enumerate().filter(|shard| differs(shard, new));
    let changed_new = new.shards.iter().enumerate().filter(|shard| differs(shard, old));
    changed_old.chain(changed_new).map(|(_, shard)| shard).collect()
}
