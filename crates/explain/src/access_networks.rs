//! Notes about rules that match addresses, for callers that reach a workload through a gateway of
//! the workload's network.

use std::collections::BTreeSet;

use super::standing::ConfigReason;
use strait_base::codes;
use strait_mesh::push::PushContext;
use strait_model::NetworkId;
use strait_rules::access::{Clause, PolicyName, RequestTest, WorkloadAccess};

/// Returns notes about rules for a workload in `network` that match addresses, if known pods of the
/// caller with that SPIFFE ID run in other networks.
pub(super) fn behind_gateway(
    context: &PushContext,
    access: &WorkloadAccess<'_>,
    network: &NetworkId,
    caller: &str,
) -> Vec<ConfigReason> {
    let Some((namespace, account)) = named(caller) else { return Vec::new() };
    let known = networks_of(context, namespace, account);
    let elsewhere: Vec<&str> =
        known.iter().filter(|one| *one != network).map(NetworkId::as_str).collect();
    if elsewhere.is_empty() {
        return Vec::new();
    }
    let alone = if elsewhere.len() == known.len() { "runs" } else { "also runs" };
    let elsewhere = elsewhere.join(", ");
    let rules = access.policies.iter().flat_map(|policy| {
        policy.rules.iter().filter_map(move |rule| {
            let is_address = |test: &RequestTest| matches!(test, RequestTest::PeerAddress(_));
            let clause = rule.clauses().find(|clause| clause.any.iter().any(is_address))?;
            Some((policy.policy_name(), clause))
        })
    });
    let reason = |(policy, clause): (PolicyName, &Clause)| {
        let comes = if clause.negated { "always matches" } else { "can't match" };
        let text = format!(
            "{policy} {comes}: {namespace}/{account} {alone} in network {elsewhere}, and connects from there through a \
             gateway, so the rule sees the address of the gateway"
        );
        ConfigReason::new(&codes::ACCESS_BEHIND_GATEWAY, format!("spec.{}", clause.place), text)
    };
    rules.map(reason).collect()
}

/// Returns the namespace and the account of a SPIFFE ID.
fn named(identity: &str) -> Option<(&str, &str)> {
    identity.split_once("/ns/")?.1.split_once("/sa/")
}

/// Returns the networks of the pods of an account.
fn networks_of(context: &PushContext, namespace: &str, account: &str) -> BTreeSet<NetworkId> {
    let clusters = context.workloads.iter();
    let networks = clusters.flat_map(|(cluster, pods)| {
        let own = pods.of_namespace(namespace).filter(|(_, pod)| *pod.service_account == *account);
        own.filter_map(move |(_, pod)| {
            let address = pod.addresses.iter().next()?;
            Some(context.place(cluster, pod.network_label.as_ref(), address).0)
        })
    });
    networks.collect()
}
