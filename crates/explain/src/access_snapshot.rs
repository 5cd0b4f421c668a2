//! A portable snapshot of everything that decides about access: the policies, the workloads that
//! they select, and the names that they refer to.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use strait_mesh::push::PushContext;
use strait_model::mesh_config::ProviderKind;
use strait_model::{Collection, ISTIO_SECURITY, Namespace};
use strait_rules::access::{PolicyErrors, ProviderReach, ReachableProviders};
use strait_rules::traffic::destination_rule::RuleClient;
use strait_rules::traffic::selection::Selection;

/// A snapshot of everything that decides about access, for `strait policy simulate`.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AccessSnapshot {
    /// Namespace whose policies apply to the whole mesh.
    pub root_namespace: String,
    /// Trust domain of the mesh, followed by its aliases.
    pub trust_domains: Vec<String>,
    /// The reachable providers. The value states whether the provider only handles HTTP requests.
    pub providers: BTreeMap<String, bool>,
    /// The active access policies; for an invalid policy, its last valid version.
    pub objects: Vec<Arc<Value>>,
    /// How policies are treated that are invalid and have no valid version.
    #[serde(default)]
    pub policy_errors: PolicyErrors,
    /// The known workloads.
    pub workloads: Vec<SnapshotWorkload>,
}

/// A workload of a snapshot.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SnapshotWorkload {
    /// ID of the cluster.
    pub cluster: String,
    /// Namespace of the workload.
    pub namespace: String,
    /// Name of the workload.
    pub name: String,
    /// Labels of the workload.
    pub labels: BTreeMap<String, String>,
    /// SPIFFE ID of the workload.
    pub identity: String,
    /// Addresses of the workload.
    pub addresses: BTreeSet<IpAddr>,
}

impl AccessSnapshot {
    /// Creates a snapshot of a version of the mesh in which these objects are active.
    pub fn of(context: &PushContext, objects: &Collection, policy_errors: PolicyErrors) -> Self {
        let policies = objects.iter().filter(|(key, _)| &*key.group == ISTIO_SECURITY);
        let workloads = context.workloads.iter().flat_map(|(cluster, pods)| {
            pods.iter().map(move |(key, pod)| SnapshotWorkload {
                cluster: cluster.to_string(),
                namespace: key.namespace.to_string(),
                name: format!("{}{}", key.stem, key.tail),
                labels: pod
                    .labels
                    .iter()
                    .map(|(key, value)| (key.to_string(), value.to_string()))
                    .collect(),
                identity: pod.identity.to_string(),
                addresses: pod.addresses.iter().collect(),
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
        Self {
            root_namespace: root.to_string(),
            trust_domains: context.trust_bundle().domains().map(str::to_owned).collect(),
            providers: providers.collect(),
            objects: policies.map(|(_, object)| Arc::new(object.to_value())).collect(),
            policy_errors,
            workloads: workloads.collect(),
        }
    }

    /// Returns the reach of each provider: HTTP requests only, or all connections.
    pub fn reach(&self) -> ReachableProviders {
        let reach = |(name, requests): (&String, &bool)| {
            let reach = if *requests { ProviderReach::Requests } else { ProviderReach::Everything };
            (Arc::from(name.as_str()), reach)
        };
        self.providers.iter().map(reach).collect()
    }
}
