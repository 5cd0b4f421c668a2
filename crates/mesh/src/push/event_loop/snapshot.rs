//! Creates the current version of the mesh from the state of the event loop, and updates parts of
//! it.

use std::sync::Arc;

use imbl::OrdMap;

use super::MeshState;
use super::ruled::ClusterOverrides;
use crate::aggregate::AggregateChanges;
use crate::push::context::PushContext;
use crate::push::named_pods::{may_differ, next_pods};
use crate::push::subscription_index::{ChangedItem, Changes};
use strait_model::ClusterId;
use strait_rules::traffic::Traffic;

impl MeshState {
    fn own_traffic(&self) -> OrdMap<ClusterId, Arc<Traffic>> {
        let objects_of = |(cluster, edition): (&ClusterId, &ClusterOverrides)| {
            (cluster.clone(), Arc::clone(&edition.rules.traffic))
        };
        self.editions.iter().map(objects_of).collect()
    }

    /// Returns the current version of the mesh.
    pub(super) fn context(&self) -> PushContext {
        PushContext {
            version: self.version,
            definitions: self.rules.definitions,
            settings: Arc::clone(&self.settings),
            mesh: Arc::clone(&self.inputs.config),
            mesh_networks: Arc::clone(&self.inputs.mesh_networks),
            networks: Arc::clone(&self.current.networks),
            clusters: Arc::clone(&self.inputs.clusters),
            policy: Arc::clone(&self.inputs.policy),
            access: self.access.policies(),
            network_labels: self.current.network_labels.clone(),
            services: self.current.services.clone(),
            workloads: self.current.workloads.clone(),
            facts: self.current.facts.clone(),
            private: self.current.private.clone(),
            restricted_namespaces: self.current.restricted_namespaces.clone(),
            aliases: self.current.aliases.clone(),
            same_addresses: self.claims.shared().clone(),
            entries: Arc::clone(self.joins.selections()),
            configuration: Arc::clone(&self.inputs.configuration),
            traffic: Arc::clone(&self.rules.traffic),
            own_traffic: self.own_traffic(),
            remote_pods: self.current.remote_pods.clone(),
            vms: self.joins.vms().clone(),
        }
    }

    /// Computes the pods that are reached by name from other networks again if `changes` may affect
    /// them, and records the services whose pods differ.
    pub(super) fn refresh_remote_pods(&mut self, changes: &mut Changes) {
        let context = self.context();
        if !may_differ(&self.current.remote_pods, &context, changes) {
            return;
        }
        let next = next_pods(&self.current.remote_pods, &context, changes, self.version == 0);
        changes
            .deps
            .extend(next.differing(&self.current.remote_pods).cloned().map(ChangedItem::Members));
        self.current.remote_pods = next;
    }

    /// Updates the pods of clusters whose pods changed.
    pub(super) fn refresh_workloads(&mut self, touched: &AggregateChanges) {
        let pod_clusters = touched.workloads.iter().map(|(cluster, _)| cluster);
        let mut last = None;
        for cluster in touched.placements.iter().chain(pod_clusters) {
            if last.replace(cluster) == Some(cluster) {
                continue;
            }
            match self.aggregate.workloads(cluster) {
                Some(pods) => self.current.workloads.insert(cluster.clone(), pods.clone()),
                None => self.current.workloads.remove(cluster),
            };
        }
    }

    /// Updates the facts of clusters.
    pub(super) fn refresh_facts<'a>(&mut self, touched: impl Iterator<Item = &'a ClusterId>) {
        for cluster in touched {
            match self.aggregate.facts(cluster) {
                Some(facts) => self.current.facts.insert(cluster.clone(), facts.clone()),
                None => self.current.facts.remove(cluster),
            };
        }
    }
}
