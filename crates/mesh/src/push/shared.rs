//! Computes which services the clusters share as multi-cluster services: the valid exports in their
//! order, the result of merging them, and the fields on which they disagree. Pure.
//!
//! The exports come from the facts of the clusters, not from the merged services, because the two
//! merges differ: ServiceImports follow the multi-cluster services API (KEP-1645), and services of the
//! mesh follow `aggregate::merge`. Under a name of the set, both use one order
//! ([`ExportOrder`]).

mod endpoints;
mod merge;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

pub use self::endpoints::SharedEndpointsCache;
use self::merge::{differing_fields, disagreement, merge};
use super::PushContext;
use crate::aggregate::ExportOrder;
use strait_base::codes;
use strait_model::mesh_config::MeshConfig;
use strait_model::policy::Policy;
use strait_model::{
    ClusterExports, ClusterId, Hostname, KnownClusters, RankedExport, Resolution, SetMember,
    SharedService, SharedServices, WorkloadKey, is_set_name,
};

/// The inputs of [`shared_services`] other than the mesh.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SharingInputs {
    /// Whether clusters must export every service that is not local to its cluster.
    pub auto_export: bool,
    /// The current time, in seconds since the Unix epoch. A later creation time is ignored.
    pub now: i64,
    /// See [`SharedServices::removals_certain`].
    pub removals_certain: bool,
    /// Clusters with a Secret that cannot be used. They are members with unknown exports.
    pub unusable: BTreeSet<ClusterId>,
}

/// Computes the shared services again only if an input has changed. Most versions of the mesh change
/// only endpoints.
#[derive(Debug, Default)]
pub struct SharedServicesCache(Option<ComputedFrom>);

/// The inputs of a computation, as far as versions of the mesh contain them.
#[derive(Debug)]
struct ComputedFrom {
    inputs: SharingInputs,
    clusters: Arc<KnownClusters>,
    policy: Arc<Policy>,
    exports: BTreeMap<ClusterId, ClusterExports>,
    /// With automatic exports: the mesh config, and [`PushContext::definitions`].
    definitions: Option<(Arc<MeshConfig>, u64)>,
}

impl SharedServicesCache {
    /// Returns the shared services of this version, or `None` if they equal the result of the
    /// previous call.
    pub fn changed(
        &mut self,
        context: &PushContext,
        inputs: &SharingInputs,
    ) -> Option<SharedServices> {
        if self.0.as_ref().is_some_and(|last| last.is_valid(context, inputs)) {
            return None;
        }
        let exports = context.facts.iter().map(|(id, facts)| (id.clone(), facts.exports.clone()));
        self.0 = Some(ComputedFrom {
            inputs: inputs.clone(),
            clusters: Arc::clone(&context.clusters),
            policy: Arc::clone(&context.policy),
            exports: exports.collect(),
            definitions: inputs
                .auto_export
                .then(|| (Arc::clone(&context.mesh), context.definitions)),
        });
        Some(shared_services(context, inputs))
    }
}

impl ComputedFrom {
    /// Returns whether a computation from these inputs would have the same result.
    fn is_valid(&self, context: &PushContext, inputs: &SharingInputs) -> bool {
        let has_same_exports = self.exports.len() == context.facts.len()
            && self.exports.iter().zip(&context.facts).all(|((known, exports), (id, facts))| {
                known == id && exports.is_same(&facts.exports)
            });
        let has_same_definitions = self.definitions.as_ref().is_none_or(|(mesh, definitions)| {
            Arc::ptr_eq(mesh, &context.mesh) && *definitions == context.definitions
        });
        // Later, the creation time of an export may no longer be in the future.
        let now = self.inputs.now;
        let is_future =
            |exports: &ClusterExports| exports.exports.values().any(|export| now < export.created);
        SharingInputs { now, ..inputs.clone() } == self.inputs
            && Arc::ptr_eq(&self.clusters, &context.clusters)
            && Arc::ptr_eq(&self.policy, &context.policy)
            && has_same_exports
            && has_same_definitions
            && !self.exports.values().any(is_future)
    }
}

/// Returns the services that are shared in this version of the mesh.
pub fn shared_services(context: &PushContext, inputs: &SharingInputs) -> SharedServices {
    let mut shared = SharedServices {
        members: members(context, &inputs.unusable),
        removals_certain: inputs.removals_certain,
        ..SharedServices::default()
    };
    let mut names: BTreeSet<&WorkloadKey> = BTreeSet::new();
    for facts in context.facts.values() {
        names.extend(facts.exports.exports.keys());
    }
    for name in names {
        let service = shared_service(context, &shared.members, name, inputs.now);
        shared.services.insert(name.clone(), service);
    }
    if inputs.auto_export {
        shared.to_export = to_export(context);
    }
    shared
}

/// Returns the members of the set, with their names in it.
fn members(
    context: &PushContext,
    unusable: &BTreeSet<ClusterId>,
) -> BTreeMap<ClusterId, SetMember> {
    let mut names = set_names(context, unusable);
    let member = |id: ClusterId| {
        let facts = context.facts.get(&id).map(|facts| &facts.exports);
        let member = SetMember {
            name: names.remove(&id),
            is_unknown: facts.is_none(),
            is_complete: facts.is_some_and(|facts| facts.is_complete),
            unknown: facts.map(|facts| facts.unknown.clone()).unwrap_or_default(),
        };
        (id, member)
    };
    ids_by_age(context, unusable).into_iter().cloned().map(member).collect()
}

/// Returns the names of the clusters in the set. Of two members with one name, the older one has it.
pub fn set_names(
    context: &PushContext,
    unusable: &BTreeSet<ClusterId>,
) -> BTreeMap<ClusterId, Arc<str>> {
    let mut taken: BTreeSet<Arc<str>> = BTreeSet::new();
    let names = ids_by_age(context, unusable).into_iter().filter_map(|id| {
        let fixed = context.clusters.clusters.get(id).and_then(|one| one.set_name.clone());
        let own = is_set_name(id.as_str()).then(|| Arc::from(id.as_str()));
        let name = fixed.or(own).filter(|name| taken.insert(Arc::clone(name)))?;
        Some((id.clone(), name))
    });
    names.collect()
}

/// Returns the members of the set in the order of their precedence.
fn ids_by_age<'a>(
    context: &'a PushContext,
    unusable: &'a BTreeSet<ClusterId>,
) -> Vec<&'a ClusterId> {
    let mut ids: Vec<_> = context.clusters.clusters.keys().collect();
    // Clusters of the mesh without a known Secret, for example a config cluster.
    let others: BTreeSet<_> = context.facts.keys().chain(unusable).collect();
    ids.extend(others.into_iter().filter(|id| !context.clusters.contains(id)));
    ids.sort_by_key(|id| (context.clusters.seniority(id), *id));
    ids
}

/// Returns a service that at least one cluster exports.
fn shared_service(
    context: &PushContext,
    members: &BTreeMap<ClusterId, SetMember>,
    key: &WorkloadKey,
    now: i64,
) -> SharedService {
    let exports = context.facts.iter().map(|(cluster, facts)| (cluster, &facts.exports));
    let seniority = |cluster: &ClusterId| context.clusters.seniority(cluster);
    let order = ExportOrder::new(key, exports, &context.clusters, seniority);
    let host = Hostname::of_kubernetes_service(
        &key.name,
        key.namespace.as_str(),
        &context.settings.domain,
    );
    let (mut exports, mut refused) = (Vec::new(), BTreeMap::new());
    for (cluster, facts) in &context.facts {
        let Some(service) = facts.exports.exports.get(key) else { continue };
        let permitted = context.policy.may_export(cluster, host.as_str(), key.namespace.as_str());
        if let Err(refusal) = permitted {
            refused.insert(cluster.clone(), format!("the policy does not allow it: {refusal}"));
            continue;
        }
        let Some(name) = members.get(cluster).and_then(|member| member.name.clone()) else {
            let code = &codes::SET_NAME_MISSING;
            refused.insert(cluster.clone(), format!("{code}: {}", code.title));
            continue;
        };
        let age = order.age(cluster, service, now);
        let service = Arc::clone(service);
        let (cluster, conflicts) = (cluster.clone(), Vec::new());
        exports.push(RankedExport { cluster, name, age, service, conflicts });
    }
    // The sort is stable: exports of one age stay in the order of their clusters.
    exports.sort_by_key(|export| order.position(&export.name, export.age));
    let merged = merge(&exports).map(Arc::new);
    let conflicts = differing_fields(&exports);
    for (export, conflicts) in exports.iter_mut().zip(conflicts) {
        export.conflicts = conflicts;
    }
    SharedService { conflict: disagreement(&exports), merged, exports, refused }
}

/// Returns the services that each cluster must export in addition: all that are not local to it.
fn to_export(context: &PushContext) -> BTreeMap<ClusterId, BTreeSet<WorkloadKey>> {
    let mut missing: BTreeMap<ClusterId, BTreeSet<WorkloadKey>> = BTreeMap::new();
    for (hostname, service) in &context.services {
        let primary = &service.primary;
        let domain = &context.settings.domain;
        let own =
            Hostname::of_kubernetes_service(&primary.name, primary.namespace.as_str(), domain);
        if *hostname != own || context.mesh.cluster_local(hostname) {
            continue;
        }
        let key = WorkloadKey::new(primary.namespace.clone(), primary.name.clone());
        let is_exported = |cluster: &ClusterId| {
            let facts = context.facts.get(cluster);
            facts.is_some_and(|facts| facts.exports.exports.contains_key(&key))
        };
        for (cluster, own) in service.by_cluster.iter() {
            if !matches!(own.resolution, Resolution::Alias(_)) && !is_exported(cluster) {
                missing.entry(cluster.clone()).or_default().insert(key.clone());
            }
        }
    }
    missing
}
