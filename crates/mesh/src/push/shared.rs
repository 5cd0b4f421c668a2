//! Computes which services the clusters share as multi-cluster services, and on which fields they
//! disagree. Pure.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::PushContext;
use crate::aggregate::MergedService;
use strait_model::{
    CLUSTERSET, ClusterId, Disagreement, Hostname, Resolution, Service, SharedService,
    SharedServices, WorkloadKey,
};

/// Returns the services that are shared in this version of the mesh. With `auto`, also returns what
/// clusters must export in addition: every service that is not local to its cluster.
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
            let exporting = service.by_cluster.iter().filter(|(cluster, one)| {
                !matches!(one.resolution, Resolution::Alias(_)) && !exporters.contains(*cluster)
            });
            for (cluster, _) in exporting {
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

/// Returns the clusters that export a service, sorted. A cluster exports it by the service's own
/// hostname, or, if that is local to each cluster, by its hostname in the cluster set.
fn exporters(context: &PushContext, service: &MergedService) -> BTreeSet<ClusterId> {
    let primary = &service.primary;
    let in_set =
        Hostname::of_kubernetes_service(&primary.name, primary.namespace.as_str(), CLUSTERSET);
    let in_set = context.services.get(&in_set);
    let exports = |(cluster, own): (&ClusterId, &Arc<Service>)| {
        let in_set = in_set.and_then(|set| set.by_cluster.get(cluster));
        let exported = !own.is_cluster_local || in_set.is_some_and(|one| !one.is_cluster_local);
        exported.then(|| cluster.clone())
    };
    service.by_cluster.iter().filter_map(exports).collect()
}

/// Returns the fields on which exporting clusters disagree.
fn disagreement(service: &MergedService, clusters: &[ClusterId]) -> Option<Disagreement> {
    let winner = &service.shards.first()?.key.cluster;
    let exports = |cluster: &&ClusterId| clusters.contains(cluster);
    if !exports(&winner) {
        return None;
    }
    let merged_conflict = |field: &str| {
        let conflicts = service.conflicts.iter().filter(|one| one.field == field);
        let losers: BTreeSet<_> = conflicts.flat_map(|one| &one.losers).filter(exports).collect();
        losers.into_iter().collect::<Vec<_>>()
    };
    let affinity = service.primary.affinity_seconds;
    let differing = |differs: &dyn Fn(Option<u32>) -> bool| {
        let all = service.by_cluster.iter().filter(|(cluster, _)| exports(cluster));
        let differing = all.filter(|(_, own)| differs(own.affinity_seconds));
        differing.map(|(cluster, _)| cluster).collect::<Vec<_>>()
    };
    let kinds = |own: Option<u32>| own.is_some() != affinity.is_some();
    let times = |own: Option<u32>| own.is_some() && affinity.is_some() && own != affinity;
    let fields = [
        ("PortConflict", "ports", merged_conflict("ports")),
        ("TypeConflict", "resolution", merged_conflict("resolution")),
        ("SessionAffinityConflict", "sessionAffinity", differing(&kinds)),
        ("SessionAffinityConfigConflict", "sessionAffinityConfig", differing(&times)),
    ];
    let (mut reasons, mut messages) = (Vec::new(), Vec::new());
    for (reason, field, losers) in fields.into_iter().filter(|(.., losers)| !losers.is_empty()) {
        let other_clusters: Vec<&str> = losers.into_iter().map(ClusterId::as_str).collect();
        let other_clusters = other_clusters.join(", ");
        reasons.push(reason);
        messages.push(format!(
            "{field}: the value of cluster {winner} applies, and {other_clusters} differ"
        ));
    }
    let (reason, message) = (reasons.join(","), messages.join("; "));
    (!reason.is_empty()).then_some(Disagreement { reason, message })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::push::event_loop::{MeshEvent, MeshState};
    use crate::testing::settings;
    use strait_model::testing::{port, service, shard};

    #[test]
    fn exporters_disagree_exactly_on_differing_fields() {
        type Change = fn(&mut Service);
        let plain: Change = |_| {};
        let ports: Change = |own| own.ports = vec![port("http", 81, 8080)];
        let headless: Change = |own| own.resolution = Resolution::Headless;
        let sticky: Change = |own| own.affinity_seconds = Some(10_800);
        let stickier: Change = |own| own.affinity_seconds = Some(60);
        let hidden: Change = |own| {
            own.is_cluster_local = true;
            own.ports = vec![port("http", 81, 8080)];
        };
        for (east, west, expected) in [
            (plain, plain, None),
            (sticky, sticky, None),
            (plain, ports, Some("PortConflict")),
            (plain, headless, Some("TypeConflict")),
            (plain, sticky, Some("SessionAffinityConflict")),
            (stickier, sticky, Some("SessionAffinityConfigConflict")),
            (plain, hidden, None),
            (
                plain,
                (|own| {
                    own.ports = vec![port("http", 81, 8080)];
                    own.affinity_seconds = Some(60);
                }) as Change,
                Some("PortConflict,SessionAffinityConflict"),
            ),
        ] {
            let mut mesh = MeshState::new(settings());
            for (cluster, change) in [("east", east), ("west", west)] {
                let update = shard(cluster, 1).with(service("web.ns").with(change), vec![]).built();
                mesh.apply(MeshEvent::Registry(update));
            }
            mesh.apply(MeshEvent::Complete);
            let (context, _) = mesh.next_version().expect("there is one");
            let shared = shared_services(&context, false);
            let web = &shared.services[&WorkloadKey::new("ns", "web")];
            let found = web.conflict.as_ref();
            assert_eq!(found.map(|one| one.reason.as_str()), expected, "{found:?}");
        }
    }
}
