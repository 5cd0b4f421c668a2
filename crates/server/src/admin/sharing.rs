//! Whether clusters share a service, for `/debug/services`.

use strait_admin_api as api;
use strait_mesh::aggregate::MergedService;
use strait_mesh::push::PushContext;
use strait_model::{ClusterId, SERVICE_SETTINGS_RULE, SharingDecision, SharingFacts};

/// Returns a row for each cluster that has the service: whether it shares the service, the rule
/// that decides it, and the statements of the cluster's objects.
pub(super) fn of_service(
    context: &PushContext,
    service: &MergedService,
) -> Vec<api::ServiceSharing> {
    let own = service.shards.iter().filter(|shard| shard.key.provider.is_cluster());
    let rows = own.map(|shard| {
        let (is_local, rule) = decided(context, service, &shard.key.cluster, shard.sharing);
        api::ServiceSharing {
            cluster: shard.key.cluster.to_string(),
            state: if is_local { "local" } else { "shared" }.to_owned(),
            rule,
            statements: statements(shard.service.sharing),
        }
    });
    rows.collect()
}

fn statements(facts: SharingFacts) -> api::SharingStatements {
    let SharingFacts { export, label, namespace_label, istio_label, scope } = facts;
    api::SharingStatements { export, label, namespace_label, istio_label, scope }
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
        (true, SERVICE_SETTINGS_RULE.to_owned())
    } else {
        (sharing.is_local, sharing.rule.as_str().to_owned())
    }
}
