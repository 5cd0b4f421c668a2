//! Creates the current version of the mesh from the state of the event loop.

use std::sync::Arc;

use imbl::OrdMap;

use super::MeshState;
use super::ruled::ClusterOverrides;
use crate::push::context::PushContext;
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
            mesh: Arc::clone(&self.config),
            mesh_networks: Arc::clone(&self.mesh_networks),
            networks: Arc::clone(&self.networks),
            clusters: Arc::clone(&self.clusters),
            policy: Arc::clone(&self.policy),
            access: self.access.policies(),
            network_labels: self.network_labels.clone(),
            services: self.services.clone(),
            workloads: self.workloads.clone(),
            facts: self.facts.clone(),
            private: self.private.clone(),
            restricted_namespaces: self.restricted_namespaces.clone(),
            aliases: self.aliases.clone(),
            same_addresses: self.claims.shared().clone(),
            entries: Arc::clone(self.joins.selections()),
            configuration: Arc::clone(&self.configuration),
            traffic: Arc::clone(&self.rules.traffic),
            own_traffic: self.own_traffic(),
            vms: self.joins.vms().clone(),
        }
    }
}
