//! How many bytes of keys the rules of one workload have: its proxy is sent those of each rule apart, for each port.
//!
//! The policies of a namespace have a share of their own, so that what a tenant writes takes nothing from what holds for
//! the mesh, and the other way round. Within a share the older policies come first. A rule beyond it is sent without
//! keys: it refuses every token, and lets none pass. Pure.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::object::AccessFault;
use super::request::{RequestAuthentication, TokenRule};
use super::selector::PolicySelector;
use strait_base::codes;
use strait_model::{Namespace, WorkloadKey};

/// The most bytes of keys that the policies of one namespace give a workload: 50 issuers with 5 KiB each.
pub(super) const SHARE_BYTES_MAX: usize = 256 * 1024;

/// The rules of policies that select one workload, the oldest policy first; each once, and those beyond the share of
/// their namespace without keys.
pub(super) fn rules_within<'a>(
    policies: &[&'a Arc<RequestAuthentication>],
) -> Vec<Cow<'a, TokenRule>> {
    let mut spent = BTreeMap::<&Namespace, usize>::new();
    let mut seen = BTreeSet::new();
    let mut rules = Vec::new();
    for policy in policies {
        for rule in policy.rules.iter().filter(|rule| seen.insert(*rule)) {
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

/// Of the policies of one namespace, the oldest first, those whose rules are beyond its share on a workload that they
/// and older ones may all select, with what there is to say of each.
pub(super) fn beyond(
    policies: &[Arc<RequestAuthentication>],
) -> BTreeMap<WorkloadKey, AccessFault> {
    let bytes = |policy: &Arc<RequestAuthentication>| -> usize {
        policy.rules.iter().filter_map(|rule| rule.keys.as_ref()).map(|keys| keys.len()).sum()
    };
    let all: Vec<usize> = policies.iter().map(bytes).collect();
    // Mostly all of them together stay within it.
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
                "its keys, and those of older policies of its namespace for the same workloads, have {sum} bytes together, \
                 and a workload is sent {SHARE_BYTES_MAX}: tokens of rules beyond are refused"
            );
            let fault = AccessFault::warning(&codes::ACCESS_KEYS_BEYOND, "spec.jwtRules", text);
            found.insert(policy.name.clone(), fault);
        }
    }
    found
}

/// Whether one workload may be selected by both: unless they want different values of one label, or are for routers of
/// different Gateways.
fn may_meet(one: &PolicySelector, other: &PolicySelector) -> bool {
    match (one, other) {
        (PolicySelector::Gateways(one), PolicySelector::Gateways(other)) => {
            one.iter().any(|gateway| other.contains(gateway))
        }
        (PolicySelector::Labels(one), PolicySelector::Labels(other)) => {
            one.iter().all(|(key, value)| other.get(key).is_none_or(|wanted| wanted == value))
        }
        _ => true,
    }
}
