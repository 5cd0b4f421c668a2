//! The rules that a workload enforces, action by action.

use super::authorization::{AuthorizationAction, AuthorizationPolicy};
use super::matcher::{MatchScope, RuleMatcher, WireForm};
use super::policies::WorkloadAccess;
use super::trust::TrustBundle;

/// What a workload enforces in one form, in the order in which it does.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EnforcedRules {
    /// Rules whose matches are marked.
    pub audit: ActionRules,
    /// Rules whose matches are denied.
    pub deny: ActionRules,
    /// Rules one of which must match.
    pub allow: ActionRules,
}

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
        let side = if policy.dry_run { &mut self.tried } else { &mut self.enforced };
        let rules = side.get_or_insert_default();
        let of_rules =
            policy.rules.iter().filter_map(|rule| RuleMatcher::of(policy, rule, form, scope));
        let before = rules.len();
        rules.extend(of_rules);
        if rules.len() == before && policy.action == AuthorizationAction::Allow {
            rules.push(RuleMatcher::never(policy));
        }
    }
}

impl EnforcedRules {
    /// Whether there is nothing to enforce or to try.
    pub fn is_empty(&self) -> bool {
        self.audit.is_empty() && self.deny.is_empty() && self.allow.is_empty()
    }

    /// Whether any rule looks at paths.
    pub fn looks_at_paths(&self) -> bool {
        let rules = self.audit.rules().chain(self.deny.rules()).chain(self.allow.rules());
        rules.into_iter().any(RuleMatcher::looks_at_paths)
    }
}

/// What a workload enforces. A policy that would have a provider asked denies what it matches: nobody can be asked.
pub fn enforced(access: &WorkloadAccess<'_>, form: WireForm, trust: &TrustBundle) -> EnforcedRules {
    let mut rules = EnforcedRules::default();
    let scope = MatchScope::new(trust, access.token_rules().len());
    for policy in &access.policies {
        let action = match policy.action {
            AuthorizationAction::Allow => &mut rules.allow,
            AuthorizationAction::Audit => &mut rules.audit,
            AuthorizationAction::Deny | AuthorizationAction::Custom(_) => &mut rules.deny,
        };
        action.add(policy, form, &scope);
    }
    rules
}
