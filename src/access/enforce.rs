//! The rules that a workload enforces, action by action.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::authorization::{AuthorizationAction, AuthorizationPolicy};
use super::matcher::{MatchScope, RuleMatcher, WireForm};
use super::policies::WorkloadAccess;
use super::trust::TrustBundle;

/// What a workload enforces in one form, in the order in which it does.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EnforcedRules {
    /// Rules by whose matches a provider is asked, by its name. They come before all others.
    pub custom: BTreeMap<Arc<str>, ActionRules>,
    /// Rules whose matches are marked.
    pub audit: ActionRules,
    /// Rules whose matches are denied.
    pub deny: ActionRules,
    /// Rules one of which must match.
    pub allow: ActionRules,
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
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ActionRules {
    /// Those in force, in the order of their policies; `None` where no policy has the action, which is another matter than
    /// policies without rules.
    pub enforced: Option<Vec<RuleMatcher>>,
    /// Those that are only tried.
    pub tried: Option<Vec<RuleMatcher>>,
}

impl ActionRules {
    /// Whether there is nothing to enforce or to try.
    pub fn is_empty(&self) -> bool {
        self.enforced.is_none() && self.tried.is_none()
    }

    /// All rules.
    pub fn rules(&self) -> impl Iterator<Item = &RuleMatcher> {
        self.enforced.iter().chain(&self.tried).flatten()
    }

    fn add(&mut self, policy: &AuthorizationPolicy, form: WireForm, scope: &MatchScope<'_>) {
        self.add_named(policy, form, scope, "");
    }

    /// Adds the rules of a policy, with an end to their keys.
    fn add_named(
        &mut self,
        policy: &AuthorizationPolicy,
        form: WireForm,
        scope: &MatchScope<'_>,
        end: &str,
    ) {
        let side = if policy.dry_run { &mut self.tried } else { &mut self.enforced };
        let rules = side.get_or_insert_default();
        let of_rules =
            policy.rules.iter().filter_map(|rule| RuleMatcher::of(policy, rule, form, scope));
        let before = rules.len();
        rules.extend(of_rules.map(|rule| RuleMatcher { key: rule.key + end, ..rule }));
        if rules.len() == before && policy.action == AuthorizationAction::Allow {
            rules.push(RuleMatcher::never(policy));
        }
    }
}

impl EnforcedRules {
    /// Whether there is nothing to enforce or to try.
    pub fn is_empty(&self) -> bool {
        self.custom.is_empty()
            && self.audit.is_empty()
            && self.deny.is_empty()
            && self.allow.is_empty()
    }

    /// All rules, in the order in which they decide.
    pub fn rules(&self) -> impl Iterator<Item = &RuleMatcher> {
        let others = [&self.audit, &self.deny, &self.allow];
        self.custom.values().chain(others).flat_map(ActionRules::rules)
    }

    /// Whether any rule looks at paths.
    pub fn looks_at_paths(&self) -> bool {
        self.rules().any(RuleMatcher::looks_at_paths)
    }
}

/// What a workload enforces. What a policy would have a provider asked about that can't be asked is denied; about
/// connections, one that speaks HTTP is not asked at all. (Istio's rules for TCP.)
pub fn enforced(
    access: &WorkloadAccess<'_>,
    form: WireForm,
    trust: &TrustBundle,
    providers: &ReachableProviders,
) -> EnforcedRules {
    let mut rules = EnforcedRules::default();
    let scope = MatchScope::new(trust, access.token_rules().len());
    for policy in &access.policies {
        match &policy.action {
            AuthorizationAction::Allow => rules.allow.add(policy, form, &scope),
            AuthorizationAction::Audit => rules.audit.add(policy, form, &scope),
            AuthorizationAction::Deny => rules.deny.add(policy, form, &scope),
            AuthorizationAction::Custom(provider) => match (providers.get(provider), form) {
                (Some(ProviderReach::Requests), WireForm::Tcp) => {}
                // A library asks nobody.
                (None, _) | (_, WireForm::Grpc) => {
                    rules.deny.add_named(policy, form, &scope, NOBODY_TO_ASK);
                }
                (Some(_), WireForm::Http | WireForm::Tcp) => {
                    let asked = rules.custom.entry(Arc::clone(provider)).or_default();
                    asked.add(policy, form, &scope);
                }
            },
        }
    }
    rules
}

/// How keys of rules end that deny since nobody can be asked. (Istio's name for it.)
const NOBODY_TO_ASK: &str = "-deny-due-to-bad-CUSTOM-action";
