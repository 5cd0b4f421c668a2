//! Rules of policies in Envoy's format, encoded once for each policy and shared by all workloads
//! that enforce it.
//!
//! The encoded form depends on the policy, the trust domains of the mesh, and the number of token
//! rules of the workload. It is cached while the policy is active.

#[cfg(test)]
mod oracle;
#[cfg(test)]
mod tests;
mod wire;

use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;

use prost::encoding::WireType::LengthDelimited;
use prost::encoding::{encode_key, encode_varint, encoded_len_varint, int32, key_len};

use super::cache_table::{CacheTable, CacheValue};
use strait_model::WorkloadKey;
use strait_proto::envoy::envoy::config::rbac::v3 as rbac;
use strait_rules::access::{
    AccessPolicies, AuthorizationPolicy, EnforcedPolicy, MatchScope, RuleInForm, TrustBundle,
    WireForm,
};

/// The encoded rules by the name of the policy, the format, and the number of token rules.
#[derive(Debug, Default)]
pub(super) struct EncodedPolicies(
    CacheTable<(WorkloadKey, WireForm, usize), PolicyInputs, Arc<EncodedPolicy>>,
);

/// The inputs of encoded rules, apart from the key.
#[derive(Debug, Clone)]
struct PolicyInputs {
    policy: Arc<AuthorizationPolicy>,
    trust: TrustBundle,
}

impl PartialEq for PolicyInputs {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.policy, &other.policy) && self.trust == other.trust
    }
}

impl CacheValue for Arc<EncodedPolicy> {}

/// The rules of one policy in one format.
#[derive(Debug)]
struct EncodedPolicy {
    /// The rules, sorted by key.
    rules: Box<[EncodedRule]>,
    /// The concatenated keys.
    keys: Box<str>,
    /// The concatenated messages of `envoy.config.rbac.v3.Policy`.
    text: Box<[u8]>,
    looks_at_paths: bool,
}

/// The position of a rule in its policy.
#[derive(Debug)]
struct EncodedRule {
    key: Range<u32>,
    text: Range<u32>,
}

/// The encoded rules of a policy, with a suffix for their keys.
#[derive(Debug, Clone)]
pub(super) struct EncodedRules {
    /// The suffix of the keys.
    key_end: &'static str,
    policy: Arc<EncodedPolicy>,
}

/// Encodes the rules that a workload enforces.
pub(super) struct RuleEncoder<'a> {
    pub(super) encoded_policies: &'a EncodedPolicies,
    pub(super) trust: &'a TrustBundle,
    /// The number of token rules of the workload.
    pub(super) token_rules: usize,
}

impl RuleEncoder<'_> {
    /// Returns the encoded rules of a policy.
    pub(super) fn rules(&self, enforced: EnforcedPolicy<'_>, form: WireForm) -> EncodedRules {
        let EnforcedPolicy { policy, key_end } = enforced;
        let key = (policy.name.clone(), form, self.token_rules);
        let inputs = PolicyInputs { policy: Arc::clone(policy), trust: self.trust.clone() };
        let policy = self.encoded_policies.0.get_or_make(key, inputs, || {
            Arc::new(EncodedPolicy::encode(
                policy,
                form,
                &MatchScope::new(self.trust, self.token_rules),
            ))
        });
        EncodedRules { key_end, policy }
    }
}

impl EncodedPolicies {
    /// Removes all entries.
    pub(super) fn clear(&self) {
        self.0.clear();
    }

    /// Removes the rules of policies that are no longer active.
    pub(super) fn sweep(&self, policies: &AccessPolicies) {
        let active: HashSet<_> = policies.authorizations().map(Arc::as_ptr).collect();
        self.0.sweep(|inputs| active.contains(&Arc::as_ptr(&inputs.policy)));
    }
}

impl EncodedPolicy {
    fn encode(policy: &AuthorizationPolicy, form: WireForm, scope: &MatchScope<'_>) -> Self {
        // A usual rule is smaller. The unused capacity is freed at the end.
        const ROOM: usize = 256;
        let mut text = Vec::with_capacity(ROOM * policy.rules.len());
        let key_start = RuleInForm::key_start(policy);
        let mut keys = String::with_capacity((key_start.len() + "100]".len()) * policy.rules.len());
        let mut rules = Vec::with_capacity(policy.rules.len());
        let mut looks_at_paths = false;
        for rule in RuleInForm::enforceable_rules(policy, form, scope) {
            let (key, start) = (keys.len(), text.len());
            rule.write_key(&key_start, &mut keys);
            wire::policy(&rule, &mut text);
            looks_at_paths = looks_at_paths || rule.looks_at_paths();
            let order = order(keys.get(key..).unwrap_or_default());
            let key = place(key)..place(keys.len());
            rules.push((order, EncodedRule { key, text: place(start)..place(text.len()) }));
        }
        rules.sort_unstable_by_key(|(order, _)| *order);
        Self {
            rules: rules.into_iter().map(|(_, rule)| rule).collect(),
            keys: keys.into(),
            text: text.into(),
            looks_at_paths,
        }
    }

    fn rules(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.rules.iter().map(|EncodedRule { key, text }| {
            let key = self.keys.get(key.start as usize..key.end as usize);
            let text = self.text.get(text.start as usize..text.end as usize);
            (key.unwrap_or_default(), text.unwrap_or_default())
        })
    }
}

fn place(length: usize) -> u32 {
    u32::try_from(length).expect("an object has less than 4 GiB")
}

/// Returns a sort key for keys of one policy, which differ only in the number at their end. Equal
/// to the order of the text.
fn order(key: &str) -> u128 {
    let number = key.as_bytes().rsplit(|byte| *byte == b'[').next().unwrap_or_default();
    let mut bytes = [0; 16];
    bytes.iter_mut().zip(number).for_each(|(to, byte)| *to = *byte);
    u128::from_be_bytes(bytes)
}

impl EncodedRules {
    /// Returns whether a rule matches paths.
    pub(super) fn looks_at_paths(&self) -> bool {
        self.policy.looks_at_paths
    }
}

/// Encodes an `envoy.config.rbac.v3.RBAC` whose rules have keys with this prefix, sorted by key, so
/// that equal rules give equal bytes. Returns `None` if it would have no effect. ALLOW without
/// rules has an effect: it denies all requests.
pub(super) fn encode_rbac(
    action: rbac::rbac::Action,
    prefix: &str,
    policies: &[EncodedRules],
) -> Option<Vec<u8>> {
    let rules = policies.iter().flat_map(|EncodedRules { key_end, policy }| {
        policy.rules().map(|(key, text)| (key, *key_end, text))
    });
    let mut rules: Vec<_> = rules.collect();
    if rules.is_empty() && action != rbac::rbac::Action::Allow {
        return None;
    }
    // The rules of each policy are already sorted.
    rules.sort_by(|(a, a_end, _), (b, b_end, _)| (a, a_end).cmp(&(b, b_end)));
    let key_length = |key: &str, end: &str| prefix.len() + key.len() + end.len();
    let entry_length = |key: &str, end: &str, text: &[u8]| {
        field_length(1, key_length(key, end)) + field_length(2, text.len())
    };
    let lengths =
        rules.iter().map(|(key, end, text)| field_length(2, entry_length(key, end, text)));
    let mut out = Vec::with_capacity(16 + lengths.sum::<usize>());
    if action != rbac::rbac::Action::default() {
        int32::encode(1, &action.into(), &mut out);
    }
    for (key, end, text) in rules {
        begin(2, entry_length(key, end, text), &mut out);
        begin(1, key_length(key, end), &mut out);
        for part in [prefix, key, end] {
            out.extend_from_slice(part.as_bytes());
        }
        begin(2, text.len(), &mut out);
        out.extend_from_slice(text);
    }
    Some(out)
}

/// Returns the encoded length of a field with this content length.
fn field_length(tag: u32, content: usize) -> usize {
    key_len(tag) + encoded_len_varint(content as u64) + content
}

/// Writes the key and length of a field.
fn begin(tag: u32, content: usize, out: &mut Vec<u8>) {
    encode_key(tag, LengthDelimited, out);
    encode_varint(content as u64, out);
}

/// Returns a policy that matches nothing.
pub(super) fn matching_never() -> rbac::Policy {
    let anything = permission(rbac::permission::Rule::Any(true));
    let anybody = principal(rbac::principal::Identifier::Any(true));
    rbac::Policy {
        permissions: vec![permission(rbac::permission::Rule::NotRule(Box::new(anything)))],
        principals: vec![principal(rbac::principal::Identifier::NotId(Box::new(anybody)))],
        ..Default::default()
    }
}

pub(super) fn permission(rule: rbac::permission::Rule) -> rbac::Permission {
    rbac::Permission { rule: Some(rule) }
}

pub(super) fn principal(identifier: rbac::principal::Identifier) -> rbac::Principal {
    rbac::Principal { identifier: Some(identifier) }
}
