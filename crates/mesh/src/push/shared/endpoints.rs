//! Computes the endpoints of exported services, for the EndpointSlices that importing clusters need.
//!
//! They come from the merged services of the mesh under the clusters' own names, and only from
//! clusters that export the service: names of the set have no other endpoints (KEP-1645).

use std::collections::BTreeMap;
use std::sync::Arc;

use super::PushContext;
use crate::aggregate::{MergedService, ShardEndpoints};
use strait_model::{
    ClusterId, EndpointRef, Health, Hostname, KnownClusters, Mode, NO_ADDRESS, NetworkId, PodState,
    SharedEndpoint, SharedEndpoints, SharedServices, SourceEndpoints, WorkloadKey,
};

/// Computes the endpoints again only for services that have changed.
#[derive(Debug, Default)]
pub struct SharedEndpointsCache {
    clusters: Arc<KnownClusters>,
    services: BTreeMap<WorkloadKey, Computed>,
}

/// The endpoints of a service, and the values from which they were computed.
#[derive(Debug)]
struct Computed {
    exporters: Vec<ClusterId>,
    merged: Arc<MergedService>,
    endpoints: Arc<[SourceEndpoints]>,
}

impl SharedEndpointsCache {
    /// Returns the endpoints of these services in a version of the mesh.
    pub fn endpoints(&mut self, context: &PushContext, shared: &SharedServices) -> SharedEndpoints {
        if !Arc::ptr_eq(&self.clusters, &context.clusters) {
            self.clusters = Arc::clone(&context.clusters);
            self.services.clear();
        }
        self.services.retain(|key, _| shared.services.contains_key(key));
        for (key, service) in &shared.services {
            let domain = &context.settings.domain;
            let host = Hostname::of_kubernetes_service(&key.name, key.namespace.as_str(), domain);
            let Some(merged) = context.services.get(&host) else {
                self.services.remove(key);
                continue;
            };
            let exporters = service.exports.iter().map(|export| &export.cluster);
            let is_current = self.services.get(key).is_some_and(|known| {
                Arc::ptr_eq(&known.merged, merged) && known.exporters.iter().eq(exporters.clone())
            });
            if is_current {
                continue;
            }
            let exporters: Vec<ClusterId> = exporters.cloned().collect();
            let sources = exporters.iter().filter_map(|cluster| source(context, merged, cluster));
            let mut endpoints: Arc<[SourceEndpoints]> = sources.collect();
            // An unchanged value stays the same allocation, so that comparisons are fast.
            if let Some(known) = self.services.get(key).filter(|one| one.endpoints == endpoints) {
                endpoints = Arc::clone(&known.endpoints);
            }
            let merged = Arc::clone(merged);
            self.services.insert(key.clone(), Computed { exporters, merged, endpoints });
        }
        let services = self.services.iter();
        let services = services.map(|(key, known)| (key.clone(), Arc::clone(&known.endpoints)));
        SharedEndpoints { services: services.collect(), networks: networks(context, shared) }
    }
}

/// Returns the network of each cluster of the set.
fn networks(context: &PushContext, shared: &SharedServices) -> BTreeMap<ClusterId, NetworkId> {
    let network = |cluster: &ClusterId| context.place(cluster, None, NO_ADDRESS).0;
    shared.members.keys().map(|cluster| (cluster.clone(), network(cluster))).collect()
}

/// Returns the endpoints of a service in one cluster; `None` if the mesh does not have them.
fn source(
    context: &PushContext,
    service: &MergedService,
    cluster: &ClusterId,
) -> Option<SourceEndpoints> {
    let known = context.clusters.clusters.get(cluster);
    let is_withdrawn =
        known.is_some_and(|known| known.mode == Mode::Drain || known.withdrawn.is_some());
    let shard = service
        .shards
        .iter()
        .find(|shard| shard.key.cluster == *cluster && shard.key.provider.is_cluster())?;
    let endpoints = match is_withdrawn {
        true => Vec::new(),
        false => endpoints(context, service, shard),
    };
    Some(SourceEndpoints { cluster: cluster.clone(), is_withdrawn, endpoints })
}

fn endpoints(
    context: &PushContext,
    service: &MergedService,
    shard: &ShardEndpoints,
) -> Vec<SharedEndpoint> {
    let pods = context.workloads.get(&shard.key.cluster);
    let endpoints = shard.packed().filter(|(_, place)| shard.bar(*place).is_none());
    let endpoints = endpoints.filter_map(|(packed, place)| {
        let EndpointRef {
            address, port, port_name, health, workload, pod, locality, hostname, ..
        } = packed.unpack();
        // The identity and the names of a pod that has not been read are still unknown.
        if address == NO_ADDRESS || pod == PodState::Missing {
            return None;
        }
        let key = workload.map(|workload| workload.to_key());
        let known = key.as_ref().and_then(|key| pods?.get(key.namespace.as_str(), &key.name));
        let is_named =
            known.is_some_and(|pod| pod.subdomain.as_ref() == Some(&service.primary.name));
        let is_named =
            is_named && key.as_ref().is_some_and(|key| key.namespace == service.primary.namespace);
        Some(SharedEndpoint {
            address,
            port,
            port_name: Arc::clone(port_name),
            health: if shard.service.named_pods.unready { Health::Healthy } else { health },
            network: shard.networks().get(place)?.clone(),
            claimants: shard.claimants(place).cloned(),
            locality: Arc::clone(locality),
            node: known.and_then(|pod| pod.node.as_ref()).map(|node| Arc::clone(&**node)),
            hostname: hostname.cloned().or(key.filter(|_| is_named).map(|key| key.name)),
        })
    });
    endpoints.collect()
}

#[cfg(test)]
mod tests {
    use super::super::tests::{Set, exported, plain};
    use super::*;

    #[test]
    fn endpoints_come_only_from_clusters_that_export_the_service() {
        let mut set = Set::new().knows("a", 1).knows("b", 1).knows("c", 1);
        set = set.exports("a", exported(1, plain())).exports("b", exported(2, plain()));
        set.reports("c", strait_model::ClusterExports { is_complete: true, ..Default::default() });
        let shared = set.shared();
        let context = set.context.clone().expect("a version");
        let mut cache = SharedEndpointsCache::default();
        let found = cache.endpoints(&context, &shared);
        let web = found.services.values().next().expect("web");
        let sources: Vec<_> = web.iter().map(|source| source.cluster.as_str()).collect();
        assert_eq!(sources, ["a", "b"]);
        assert_eq!(found.networks.len(), 3);
        // An unchanged mesh gives the same allocation.
        let again = cache.endpoints(&context, &shared);
        assert!(Arc::ptr_eq(web, again.services.values().next().expect("web")));
    }
}
