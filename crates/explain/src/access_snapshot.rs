//! What decides about access, in one piece that can be taken away: the policies, the workloads that they select, and the
//! names that they know.

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

/// See the module.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AccessSnapshot {
    /// The namespace whose policies are for the whole mesh.
    pub root_namespace: String,
    /// The mesh's trust domain, then its aliases.
    pub trust_domains: Vec<String>,
    /// The providers that can be asked, each with whether about requests alone.
    pub providers: BTreeMap<String, bool>,
    /// The access policies as they count: of what can't be read the last form that could.
    pub objects: Vec<Arc<Value>>,
    /// What becomes of those that can't be read and have no such form.
    #[serde(default)]
    pub policy_errors: PolicyErrors,
    /// The workloads that are known.
    pub workloads: Vec<SnapshotWorkload>,
}

/// A workload.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SnapshotWorkload {
    /// Its cluster.
    pub cluster: String,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Its SPIFFE ID.
    pub identity: String,
    /// Its addresses.
    pub addresses: BTreeSet<IpAddr>,
}

impl AccessSnapshot {
    /// Of a version of the mesh, in which these objects count.
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
            // Whether each workload reaches it is another matter; here it is whether anybody can.
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

    /// About what each provider can be asked.
    pub fn reach(&self) -> ReachableProviders {
        let reach = |(name, requests): (&String, &bool)| {
            let reach = if *requests { ProviderReach::Requests } else { ProviderReach::Everything };
            (Arc::from(name.as_str()), reach)
        };
        self.providers.iter().map(reach).collect()
    }
}
