//! Limits the size of the keys that the rules of one workload contain. A proxy receives the keys of
//! each rule separately, for each port.
//!
//! Each namespace has a separate budget, so that policies of a tenant do not use up the budget of
//! mesh-wide policies, and vice versa. Within a budget, older policies come first. A rule beyond
//! the budget is sent without keys: it refuses every token. Pure.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::object::AccessFault;
use super::request::{RequestAuthentication, TokenRule};
use super::selector::PolicySelector;
use strait_base::codes;
use strait_model::{Namespace, WorkloadKey};

/// Maximum size in bytes of the keys that the policies of one namespace add to a workload: 50
/// issuers with 5 KiB each.
pub(super) const SHARE_BYTES_MAX: usize = 256 * 1024;

/// Returns the rules of the policies that select one workload, the oldest policy first, without
/// duplicates. Rules beyond the budget of their namespace have no keys.
pub(super) fn rules_within<'a>(
    policies: &[&'a Arc<RequestAuthentication>],
) -> Vec<Cow<'a, TokenRule>> {
    let mut spent = BTreeMap::<&Namespace, usize>::new();
    let mut distinct_rules = BTreeSet::new();
    let mut rules = Vec::new();
    for policy in policies {
        for rule in policy.rules.iter().filter(|rule| distinct_rules.insert(*rule)) {
            let spent = spent.entry(&policy.name.namespace).or_default();
            let bytes = rule.keys.as_ref().map_or(0, |keys| keys.len());
            if *spent + bytes > SHARE_BYTES_MAX {
                rules.push(Cow::Owned(TokenRule { keys: None, ..rule.clone() }));
            } else {
                *spent += bytes;
                rules.push(Cow::Borrowed(rule));
            }
        }
    }
    rules
}

/// Returns the policies of one namespace, the oldest first, whose rules exceed the budget on a
/// workload that they and older policies may select, each with a fault that describes it.
pub(super) fn beyond(
    policies: &[Arc<RequestAuthentication>],
) -> BTreeMap<WorkloadKey, AccessFault> {
    let bytes = |policy: &Arc<RequestAuthentication>| -> usize {
        policy.rules.iter().filter_map(|rule| rule.keys.as_ref()).map(|keys| keys.len()).sum()
    };
    let all: Vec<usize> = policies.iter().map(bytes).collect();
    // In most namespaces, all policies together stay within the budget.
    if all.iter().sum::<usize>() <= SHARE_BYTES_MAX {
        return BTreeMap::new();
    }
    let mut found = BTreeMap::new();
    for (at, policy) in policies.iter().enumerate() {
        let older = policies[..at].iter().zip(&all);
        let met = older.filter(|(older, _)| may_meet(&older.selector, &policy.selector));
        let sum = all[at] + met.map(|(_, bytes)| bytes).sum::<usize>();
        let is_for_some =
            !matches!(&policy.selector, PolicySelector::Gateways(none) if none.is_empty());
        if all[at] > 0 && sum > SHARE_BYTES_MAX && is_for_some {
            let text = format!(
                "its keys and those of older policies of its namespace for the same workloads have \
                 {sum} bytes in total, but a workload receives at most {SHARE_BYTES_MAX}: tokens \
                 of the rules beyond that are refused"
            );
            let fault = AccessFault::warning(&codes::ACCESS_KEYS_BEYOND, "spec.jwtRules", text);
            found.insert(policy.name.clone(), fault);
        }
    }
    found
}

/// Returns whether both selectors may select the same workload. They cannot if they require
/// different values of one label, or if they select gateways and have no Gateway in common.
fn may_meet(first: &PolicySelector, second: &PolicySelector) -> bool {
    match (first, second) {
        (PolicySelector::Gateways(first), PolicySelector::Gateways(second)) => {
            first.iter().any(|gateway| second.contains(gateway))
        }
        (PolicySelector::Labels(first), PolicySelector::Labels(second)) => {
            first.iter().all(|(key, value)| second.get(key).is_none_or(|wanted| wanted == value))
        }
        _ => true,
    }
}
