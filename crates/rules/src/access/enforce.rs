//! The rules that a workload enforces, action by action.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::authorization::{AuthorizationAction, AuthorizationPolicy};
use super::matcher::{MatchScope, RuleInForm, RuleMatcher, WireForm};
use super::policies::WorkloadAccess;
use super::trust::TrustBundle;

/// What a workload enforces in one form, in the order in which it does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EnforcedRules<R = RuleMatcher> {
    /// Rules by whose matches a provider is asked, by its name. They come before all others.
    pub custom: BTreeMap<Arc<str>, ActionRules<R>>,
    /// Rules whose matches are marked.
    pub audit: ActionRules<R>,
    /// Rules whose matches are denied.
    pub deny: ActionRules<R>,
    /// Rules one of which must match.
    pub allow: ActionRules<R>,
}

/// About what a provider can be asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProviderReach {
    /// Requests of HTTP alone.
    Requests,
    /// Requests and connections.
    Everything,
}

/// The providers that a workload's proxy can ask, by name.
pub type ReachableProviders = BTreeMap<Arc<str>, ProviderReach>;

/// The rules of one action.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ActionRules<R = RuleMatcher> {
    /// Those in force, in the order of their policies; `None` where no policy has the action, which is another matter than
    /// policies without rules.
    pub enforced: Option<Vec<R>>,
    /// Those that are only tried.
    pub tried: Option<Vec<R>>,
}

/// A policy among those of an action.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EnforcedPolicy<'a> {
    /// Which.
    pub policy: &'a Arc<AuthorizationPolicy>,
    /// How the keys of its rules end besides.
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
    /// Whether there is nothing to enforce or to try.
    pub fn is_empty(&self) -> bool {
        self.enforced.is_none() && self.tried.is_none()
    }

    /// All rules.
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
    /// Whether there is nothing to enforce or to try.
    pub fn is_empty(&self) -> bool {
        self.custom.is_empty()
            && self.audit.is_empty()
            && self.deny.is_empty()
            && self.allow.is_empty()
    }

    /// All rules, in the order in which they decide.
    pub fn rules(&self) -> impl Iterator<Item = &R> {
        let others = [&self.audit, &self.deny, &self.allow];
        self.custom.values().chain(others).flat_map(ActionRules::rules)
    }

    /// The same with what `make` makes of each in its place.
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

/// Which policies a workload enforces, by their actions. What one would have a provider asked about that can't be asked is
/// denied; about connections, one that speaks HTTP is not asked at all. (Istio's rules for TCP.)
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
                // A library asks nobody.
                (None, _) | (_, WireForm::Grpc) => rules.deny.add(policy, NOBODY_TO_ASK),
                (Some(_), WireForm::Http | WireForm::Tcp) => {
                    let asked: &mut ActionRules<_> =
                        rules.custom.entry(Arc::clone(provider)).or_default();
                    asked.add(policy, "");
                }
            },
        }
    }
    rules
}

/// What a workload enforces.
pub fn enforced(
    access: &WorkloadAccess<'_>,
    form: WireForm,
    trust: &TrustBundle,
    providers: &ReachableProviders,
) -> EnforcedRules {
    let scope = MatchScope::new(trust, access.token_rules().len());
    enforced_policies(access, form, providers).map(|EnforcedPolicy { policy, key_end }| {
        let rules = RuleInForm::of_policy(policy, form, &scope).map(|rule| rule.matcher());
        rules.map(|rule| RuleMatcher { key: rule.key + key_end, ..rule }).collect()
    })
}

/// How keys of rules end that deny since nobody can be asked. (Istio's name for it.)
const NOBODY_TO_ASK: &str = "-deny-due-to-bad-CUSTOM-action";
