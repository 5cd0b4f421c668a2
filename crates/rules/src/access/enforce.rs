//! The rules that a workload enforces, grouped by action.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::authorization::{AuthorizationAction, AuthorizationPolicy};
use super::matcher::{MatchScope, RuleInForm, RuleMatcher, WireForm};
use super::policies::WorkloadAccess;
use super::trust::TrustBundle;

/// The rules that a workload enforces in one wire form. The fields are in the order of evaluation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EnforcedRules<R = RuleMatcher> {
    /// Rules whose matches are sent to an external authorization provider, by provider name.
    /// Evaluated first.
    pub custom: BTreeMap<Arc<str>, ActionRules<R>>,
    /// Rules whose matches are marked for auditing.
    pub audit: ActionRules<R>,
    /// Rules whose matches are denied.
    pub deny: ActionRules<R>,
    /// Rules that allow. If any policy allows, at least one must match.
    pub allow: ActionRules<R>,
}

/// Traffic that an external authorization provider can decide about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProviderReach {
    /// Only HTTP requests.
    Requests,
    /// HTTP requests and TCP connections.
    Everything,
}

/// The external authorization providers that the proxy of a workload can query, by name.
pub type ReachableProviders = BTreeMap<Arc<str>, ProviderReach>;

/// The rules of one action.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ActionRules<R = RuleMatcher> {
    /// Enforced rules, in the order of their policies. `None` if no policy has the action, which
    /// differs from policies without rules.
    pub enforced: Option<Vec<R>>,
    /// Dry-run rules: evaluated, but not enforced.
    pub tried: Option<Vec<R>>,
}

/// A policy in the list of one action.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EnforcedPolicy<'a> {
    /// The policy.
    pub policy: &'a Arc<AuthorizationPolicy>,
    /// Suffix of the rule keys.
    pub key_end: &'static str,
}

impl<R> Default for EnforcedRules<R> {
    fn default() -> Self {
        let (audit, deny, allow) = Default::default();
        Self { custom: BTreeMap::new(), audit, deny, allow }
    }
}

impl<R> Default for ActionRules<R> {
    fn default() -> Self {
        Self { enforced: None, tried: None }
    }
}

impl<R> ActionRules<R> {
    /// Returns whether there are neither enforced nor dry-run policies.
    pub fn is_empty(&self) -> bool {
        self.enforced.is_none() && self.tried.is_none()
    }

    /// Iterates over all rules, enforced and dry-run.
    pub fn rules(&self) -> impl Iterator<Item = &R> {
        self.enforced.iter().chain(&self.tried).flatten()
    }

    fn map<S>(self, make: &mut impl FnMut(R) -> Vec<S>) -> ActionRules<S> {
        let mut all = |rules: Vec<R>| rules.into_iter().flat_map(&mut *make).collect();
        ActionRules { enforced: self.enforced.map(&mut all), tried: self.tried.map(&mut all) }
    }
}

impl<'a> ActionRules<EnforcedPolicy<'a>> {
    fn add(&mut self, policy: &'a Arc<AuthorizationPolicy>, key_end: &'static str) {
        let side = if policy.dry_run { &mut self.tried } else { &mut self.enforced };
        side.get_or_insert_default().push(EnforcedPolicy { policy, key_end });
    }
}

impl<R> EnforcedRules<R> {
    /// Returns whether there are neither enforced nor dry-run policies.
    pub fn is_empty(&self) -> bool {
        self.custom.is_empty()
            && self.audit.is_empty()
            && self.deny.is_empty()
            && self.allow.is_empty()
    }

    /// Iterates over all rules, in the order of evaluation.
    pub fn rules(&self) -> impl Iterator<Item = &R> {
        let others = [&self.audit, &self.deny, &self.allow];
        self.custom.values().chain(others).flat_map(ActionRules::rules)
    }

    /// Replaces each rule by the results of `make`, in the same position.
    #[must_use]
    pub fn map<S>(self, mut make: impl FnMut(R) -> Vec<S>) -> EnforcedRules<S> {
        let Self { custom, audit, deny, allow } = self;
        let custom = custom.into_iter().map(|(name, rules)| (name, rules.map(&mut make)));
        EnforcedRules {
            custom: custom.collect(),
            audit: audit.map(&mut make),
            deny: deny.map(&mut make),
            allow: allow.map(&mut make),
        }
    }
}

/// Groups the policies that a workload enforces by action. If a policy's provider cannot be
/// queried, the policy denies its matches. A provider for HTTP requests only is not queried for TCP
/// connections (Istio's rules for TCP).
pub fn enforced_policies<'a>(
    access: &WorkloadAccess<'a>,
    form: WireForm,
    providers: &ReachableProviders,
) -> EnforcedRules<EnforcedPolicy<'a>> {
    let mut rules = EnforcedRules::default();
    for policy in access.policies.iter().copied() {
        match &policy.action {
            AuthorizationAction::Allow => rules.allow.add(policy, ""),
            AuthorizationAction::Audit => rules.audit.add(policy, ""),
            AuthorizationAction::Deny => rules.deny.add(policy, ""),
            AuthorizationAction::Custom(provider) => match (providers.get(provider), form) {
                (Some(ProviderReach::Requests), WireForm::Tcp) => {}
                // gRPC libraries query no provider.
                (None, _) | (_, WireForm::Grpc) => rules.deny.add(policy, NOBODY_TO_ASK),
                (Some(_), WireForm::Http | WireForm::Tcp) => {
                    let provider_rules: &mut ActionRules<_> =
                        rules.custom.entry(Arc::clone(provider)).or_default();
                    provider_rules.add(policy, "");
                }
            },
        }
    }
    rules
}

/// Returns the rules that a workload enforces.
pub fn enforced(
    access: &WorkloadAccess<'_>,
    form: WireForm,
    trust: &TrustBundle,
    providers: &ReachableProviders,
) -> EnforcedRules {
    let scope = MatchScope::new(trust, access.token_rules().len());
    enforced_policies(access, form, providers).map(|EnforcedPolicy { policy, key_end }| {
        let rules = RuleInForm::enforceable_rules(policy, form, &scope).map(|rule| rule.matcher());
        rules.map(|rule| RuleMatcher { key: rule.key + key_end, ..rule }).collect()
    })
}

/// Suffix of the keys of rules that deny because the provider cannot be queried (Istio's name for
/// it).
const NOBODY_TO_ASK: &str = "-deny-due-to-bad-CUSTOM-action";
