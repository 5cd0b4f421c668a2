//! Whom a change of endpoints concerns.
//!
//! Where a mesh has many networks, most changes are seen in one of them: everywhere else the service is its
//! gateways. To wake a stream that will find nothing to send costs a look at memory that is in no cache; so the
//! look is taken here, once for all streams that stand alike.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::context::PushContext;
use super::interest::{Changes, Interest};
use super::subset::{SubsetFilter, subset_names};
use super::view::{ViewDependencies, ViewKey, contribution};
use crate::aggregate::{MergedService, ShardEndpoints};
use strait_model::{ClusterId, Hostname, Namespace};
use strait_rules::traffic::Selection;

/// Where fewer names than this are watched, who watches is woken without a look: it costs as much.
const WORTH_A_LOOK: usize = 4;

impl ViewKey {
    /// What of it matters for services that look the same from all clusters, namespaces, nodes and
    /// localities, as most do. A mesh has few of these.
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

/// Of the services whose endpoints changed between two versions, the view classes from which nothing differs.
pub(super) fn unaffected_views(
    before: &PushContext,
    now: &PushContext,
    changes: &Changes,
    interest: &Interest,
) -> BTreeMap<Hostname, Vec<Arc<ViewKey>>> {
    if changes.is_everything() {
        return BTreeMap::new();
    }
    let gateways = now.networks.differing(&before.networks);
    let modes = now.clusters.differ_in_mode(&before.clusters).unwrap_or_default();
    let is_reached_otherwise = |shard: &&ShardEndpoints| {
        modes.contains(&shard.key.cluster)
            || shard.networks().iter().any(|network| gateways.contains(network))
    };
    let of_host = |host: &Hostname| {
        let (old, new) = (plain(before, host)?, plain(now, host)?);
        if !old.same_definition(new) || !old.same_security(new) {
            return None;
        }
        let changed_shards = changed_shards(old, new);
        let networks: BTreeSet<_> =
            changed_shards.iter().flat_map(|shard| shard.networks()).collect();
        // Of what is the same, the way there may be another.
        let reached_otherwise = new.shards.iter().filter(is_reached_otherwise);
        let keys: BTreeSet<_> =
            changed_shards.iter().copied().chain(reached_otherwise).map(|one| &one.key).collect();
        let all_rules = [before.rules_for(old), now.rules_for(new)];
        // By that a library chooses among endpoints that are the same as before.
        let flips = old.takes_mtls != new.takes_mtls;
        let is_unaffected = |[then, view]: &[ViewKey; 2]| {
            let [old_rules, new_rules] = &all_rules;
            let rules = [then.rule(old_rules, old), view.rule(new_rules, new)];
            let ports: Vec<_> = new.ports().map(|port| port.number).collect();
            subset_names(rules).into_iter().all(|name| {
                let filters = [
                    SubsetFilter::new(old_rules, rules[0], old, name),
                    SubsetFilter::new(new_rules, rules[1], new, name),
                ];
                // A subset that comes or goes does so by a change of rules.
                let [Some(was), Some(is)] = filters else { return true };
                ports.iter().all(|port| {
                    contribution(before, then, old, *port, &keys, was)
                        == contribution(now, view, new, *port, &keys, is)
                })
            })
        };
        let mut looked_at = BTreeMap::new();
        let mut views = interest.view_classes(host, WORTH_A_LOOK);
        views.retain(|view| {
            let pair = || [view.projected(before, old), view.projected(now, new)];
            // In its own network it is seen, nearly always.
            !((flips && view.grpc.is_some()) || networks.contains(&view.network))
                && *looked_at.entry(pair()).or_insert_with_key(is_unaffected)
        });
        (!views.is_empty()).then(|| (host.clone(), views))
    };
    changes.endpoints().filter_map(of_host).collect()
}

/// The service of that name, if nothing but the view class matters for what a proxy is given of its endpoints.
fn plain<'a>(context: &'a PushContext, host: &Hostname) -> Option<&'a MergedService> {
    let service = context.services.get(host)?;
    let is_plain = ViewDependencies::of(context, service) == ViewDependencies::default()
        && !context.traffic.is_by_namespace(host.as_str());
    (is_plain && !context.private.contains_key(host)).then_some(service)
}

/// The shards that have other endpoints now, as they were and as they are.
fn changed_shards<'a>(old: &'a MergedService, new: &'a MergedService) -> Vec<&'a ShardEndpoints> {
    let differs = |(at, one): &(usize, &ShardEndpoints), other: &MergedService| {
        let is_it = |shard: &&ShardEndpoints| shard.key == one.key;
        // Nearly always it is in the same place.
        let there = other.shards.get(*at).filter(is_it);
        there.or_else(|| other.shards.iter().find(is_it)) != Some(one)
    };
    let of_old = old.shards.iter().enumerate().filter(|shard| differs(shard, new));
    let of_new = new.shards.iter().enumerate().filter(|shard| differs(shard, old));
    of_old.chain(of_new).map(|(_, shard)| shard).collect()
}
