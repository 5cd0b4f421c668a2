//! Whether clusters share a service, for `/debug/services`.

use serde_json::{Value, json};

use strait_mesh::aggregate::MergedService;
use strait_mesh::push::PushContext;
use strait_model::registry::Provider;
use strait_model::{ClusterId, SharingDecision};

/// Returns a row for each cluster that has the service: whether it shares the service, the rule
/// that decides it, and the statements of the cluster's objects.
pub(super) fn of_service(context: &PushContext, service: &MergedService) -> Vec<Value> {
    let own = service.shards.iter().filter(|shard| shard.key.provider == Provider::Kubernetes);
    let rows = own.map(|shard| {
        let (is_local, rule) = decided(context, service, &shard.key.cluster, shard.sharing);
        json!({
            "cluster": shard.key.cluster,
            "state": if is_local { "local" } else { "shared" },
            "rule": rule,
            "statements": shard.service.sharing,
        })
    });
    rows.collect()
}

/// Returns whether a cluster keeps a service local, and the rule that decides it: the policy's
/// refusal, then the mesh config, then `sharing`.
fn decided(
    context: &PushContext,
    service: &MergedService,
    cluster: &ClusterId,
    sharing: SharingDecision,
) -> (bool, String) {
    let (host, namespace) = (service.hostname().as_str(), &service.primary.namespace);
    if let Err(refused) = context.policy.may_export(cluster, host, namespace.as_str()) {
        (true, format!("policy {}", refused.rule))
    } else if context.mesh.cluster_local(service.hostname()) {
        (true, "mesh config serviceSettings".to_owned())
    } else {
        (sharing.is_local, sharing.rule.as_str().to_owned())
    }
}
