//! A portable snapshot of everything that decides about access: the policies, the workloads that
//! they select, and the names that they refer to.

use std::collections::BTreeSet;
use std::net::IpAddr;

use strait_admin_api::{self as api, AccessSnapshot, SnapshotWorkload};
use strait_mesh::push::PushContext;
use strait_model::mesh_config::ProviderKind;
use strait_model::{Collection, ISTIO_SECURITY, Namespace};
use strait_rules::access::{PolicyErrors, ProviderReach};
use strait_rules::traffic::destination_rule::RuleClient;
use strait_rules::traffic::selection::Selection;

/// Creates a snapshot of a version of the mesh in which these objects are active.
pub fn access_snapshot(
    context: &PushContext,
    objects: &Collection,
    policy_errors: PolicyErrors,
) -> AccessSnapshot {
    let policies = objects.iter().filter(|(key, _)| &*key.group == ISTIO_SECURITY);
    let workloads = context.workloads.iter().flat_map(|(cluster, pods)| {
        pods.iter().map(move |(key, pod)| {
            let addresses: BTreeSet<IpAddr> = pod.addresses.iter().collect();
            SnapshotWorkload {
                cluster: cluster.to_string(),
                namespace: key.namespace.to_string(),
                name: format!("{}{}", key.stem, key.tail),
                labels: pod
                    .labels
                    .iter()
                    .map(|(key, value)| (key.to_string(), value.to_string()))
                    .collect(),
                identity: pod.identity.to_string(),
                addresses: addresses.iter().map(IpAddr::to_string).collect(),
            }
        })
    });
    let config_cluster = context.settings.config_cluster.clone().unwrap_or_default();
    let root: &Namespace = context.access.root();
    let client = RuleClient { namespace: root, selection: &Selection::default() };
    let providers = context.mesh.extension_providers.iter().filter_map(|one| {
        // Checks whether any client can reach the provider; individual workloads may differ.
        let ProviderKind::Authorization(_) = one.kind else { return None };
        let found = context.authorizer(&one.name, client, &config_cluster).ok()?;
        Some((one.name.to_string(), found.reach() == ProviderReach::Requests))
    });
    AccessSnapshot {
        root_namespace: root.to_string(),
        trust_domains: context.trust_bundle().domains().map(str::to_owned).collect(),
        providers: providers.collect(),
        objects: policies.map(|(_, object)| object.to_value()).collect(),
        policy_errors: match policy_errors {
            PolicyErrors::Narrow => api::PolicyErrors::Narrow,
            PolicyErrors::Strict => api::PolicyErrors::Strict,
        },
        workloads: workloads.collect(),
    }
}
