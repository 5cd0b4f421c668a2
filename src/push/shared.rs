//! Which services the clusters share by multi-cluster services, and on what they disagree. Pure.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::PushContext;
use crate::aggregate::MergedService;
use crate::model::{
    ClusterId, Disagreement, Hostname, Resolution, Service, SharedService, SharedServices,
    WorkloadKey,
};

/// The domain of services that are the same in all clusters of a set.
const CLUSTERSET: &str = "clusterset.local";

/// What is shared in this version of the mesh; with `auto` also what clusters shall export beyond what they
/// do: everything but what stays in its cluster anyway.
pub fn shared_services(context: &PushContext, auto: bool) -> SharedServices {
    let mut shared = SharedServices::default();
    for (hostname, service) in &context.services {
        let primary = &service.primary;
        let domain = &context.settings.domain;
        let own =
            Hostname::of_kubernetes_service(&primary.name, primary.namespace.as_str(), domain);
        if *hostname != own {
            continue;
        }
        let key = WorkloadKey::new(primary.namespace.clone(), primary.name.clone());
        let exporters = exporters(context, service);
        if auto && !context.mesh.cluster_local(hostname) {
            let of_cluster = service.by_cluster.iter().filter(|(cluster, one)| {
                !matches!(one.resolution, Resolution::Alias(_)) && !exporters.contains(*cluster)
            });
            for (cluster, _) in of_cluster {
                shared.to_export.entry(cluster.clone()).or_default().insert(key.clone());
            }
        }
        if exporters.is_empty() {
            continue;
        }
        let (refused, clusters): (Vec<_>, Vec<_>) =
            exporters.into_iter().partition(|one| service.refused.contains(one));
        let conflict = disagreement(service, &clusters);
        shared.services.insert(key, SharedService { clusters, refused, conflict });
    }
    shared
}

/// The clusters that export a service, sorted: those that say so of its own name, or, where that is each
/// cluster's alone, of its name in the set.
fn exporters(context: &PushContext, service: &MergedService) -> BTreeSet<ClusterId> {
    let primary = &service.primary;
    let in_set =
        Hostname::of_kubernetes_service(&primary.name, primary.namespace.as_str(), CLUSTERSET);
    let in_set = context.services.get(&in_set);
    let exports = |(cluster, own): (&ClusterId, &Arc<Service>)| {
        let in_set = in_set.and_then(|set| set.by_cluster.get(cluster));
        let exported = !own.keeps_home || in_set.is_some_and(|one| !one.keeps_home);
        exported.then(|| cluster.clone())
    };
    service.by_cluster.iter().filter_map(exports).collect()
}

/// The first field on which exporting clusters disagree.
fn disagreement(service: &MergedService, clusters: &[ClusterId]) -> Option<Disagreement> {
    service.conflicts.iter().find_map(|conflict| {
        let reason = match conflict.field {
            "ports" => "PortConflict",
            "resolution" => "TypeConflict",
            _ => return None,
        };
        let exports = |cluster: &&ClusterId| clusters.contains(cluster);
        let losers: Vec<&str> =
            conflict.losers.iter().filter(exports).map(ClusterId::as_str).collect();
        if losers.is_empty() || !exports(&&conflict.winner) {
            return None;
        }
        let (field, winner) = (conflict.field, &conflict.winner);
        let others = losers.join(", ");
        let message =
            format!("{field}: cluster {winner} decides, {others} differ and are overruled");
        Some(Disagreement { reason, message })
    })
}
