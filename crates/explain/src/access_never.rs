//! Values of AuthorizationPolicies that never match, and rules without effect because of them.

use std::collections::BTreeMap;

use super::access_served::ServedPorts;
use super::standing::PolicyFinding;
use strait_base::codes;
use strait_mesh::push::PushContext;
use strait_model::mesh_config::PathNormalization;
use strait_rules::access::{
    AuthorizationAction, AuthorizationPolicy, AuthorizationRule, Clause, RequestTest,
};

/// Judges the values of one policy.
struct Values<'a> {
    normalization: PathNormalization,
    served: Option<ServedPorts<'a>>,
}

/// Returns the findings about values of a policy that never match.
pub(super) fn never_matching(
    context: &PushContext,
    policy: &AuthorizationPolicy,
) -> Vec<PolicyFinding> {
    let is_port = |test: &RequestTest| matches!(test, RequestTest::Port(_));
    let names_ports = policy.clauses().flat_map(|clause| &clause.any).any(is_port);
    let name = policy.policy_name();
    let served = names_ports.then(|| ServedPorts::of(context, &name, &policy.selector)).flatten();
    let option = context.mesh.path_normalization;
    let normalization = PathNormalization::of(option, policy.looks_at_paths());
    Values { normalization, served }.all(policy)
}

impl Values<'_> {
    fn all(&self, policy: &AuthorizationPolicy) -> Vec<PolicyFinding> {
        let mut found = Vec::new();
        let mut without_match = 0;
        for rule in &policy.rules {
            let mut facts = BTreeMap::new();
            for alternative in alternatives(rule) {
                for clause in alternative {
                    let excluded = || {
                        let by = excluded_by(clause, (alternative, rule))?;
                        Some(format!("spec.{} excludes each of its values", by.place))
                    };
                    let fact = self.first(clause).or_else(excluded);
                    facts.extend(fact.map(|fact| (format!("spec.{}", clause.place), fact)));
                }
            }
            for (path, fact) in facts {
                found.push((&codes::ACCESS_VALUE_NEVER, path, fact));
            }
            if policy.action == AuthorizationAction::Allow {
                found.extend(rule.clauses().filter_map(|clause| self.excludes_nothing(clause)));
            }
            if self.is_never(rule) {
                without_match += 1;
                let effect = match policy.action {
                    AuthorizationAction::Deny => "denies nothing",
                    AuthorizationAction::Custom(_) => "never calls the provider",
                    AuthorizationAction::Allow | AuthorizationAction::Audit => continue,
                };
                let text = format!("no request and no connection matches: the rule {effect}");
                let path = format!("spec.rules[{}]", rule.index);
                found.push((&codes::ACCESS_MATCHES_NOTHING, path, text));
            }
        }
        let is_allowing = policy.action == AuthorizationAction::Allow && !policy.rules.is_empty();
        if is_allowing && without_match == policy.rules.len() {
            let text = "no request and no connection matches any rule: the policy admits nothing";
            found.push((&codes::ACCESS_MATCHES_NOTHING, "spec.rules".to_owned(), text.to_owned()));
        }
        found
    }

    /// Returns the reason why a value of the clause never matches, for the first such value.
    fn first(&self, clause: &Clause) -> Option<String> {
        clause.any.iter().find_map(|test| {
            test.never_matches(self.normalization)
                .or_else(|| self.unserved(test).filter(|_| !clause.negated).map(|(fact, _)| fact))
        })
    }

    /// Returns why no Service has a port as its target, and whether the policy names a port of a Service instead.
    fn unserved(&self, test: &RequestTest) -> Option<(String, bool)> {
        let (RequestTest::Port(port), Some(served)) = (test, &self.served) else { return None };
        if served.has(*port) {
            return None;
        }
        Some(match served.target_of(*port) {
            Some((host, target)) => (
                format!(
                    "{port} is the port of Service {host}; policies name ports of workloads, which is {target} there"
                ),
                true,
            ),
            None => (format!("no Service routes to port {port} of the selected workloads"), false),
        })
    }

    /// Whether a value certainly never matches. A workload may listen at a port that is no target of a Service.
    fn is_sure(&self, test: &RequestTest) -> bool {
        test.never_matches(self.normalization).is_some()
            || self.unserved(test).is_some_and(|(_, is_other)| is_other)
    }

    fn is_never(&self, rule: &AuthorizationRule) -> bool {
        let is_dead = |clauses: &[Clause]| {
            clauses.iter().any(|clause| {
                let is_sure = || clause.any.iter().all(|test| self.is_sure(test));
                !clause.negated && (is_sure() || excluded_by(clause, (clauses, rule)).is_some())
            })
        };
        let all_dead =
            |all: &[Box<[Clause]>]| !all.is_empty() && all.iter().all(|clauses| is_dead(clauses));
        all_dead(&rule.from) || all_dead(&rule.to) || is_dead(&rule.when)
    }

    /// Reports a negated condition of ALLOW whose values never match: the rule excludes nothing.
    fn excludes_nothing(&self, clause: &Clause) -> Option<PolicyFinding> {
        let is_idle = clause.negated && clause.any.iter().all(|test| self.is_sure(test));
        is_idle.then(|| {
            let text = "its values never match, so the rule allows what it seems to exclude";
            (&codes::ACCESS_MATCHES_NOTHING, format!("spec.{}", clause.place), text.to_owned())
        })
    }
}

/// Iterates over the lists of clauses of a rule. All clauses of a list must hold.
fn alternatives(rule: &AuthorizationRule) -> impl Iterator<Item = &[Clause]> {
    rule.from.iter().chain(&rule.to).map(|clauses| &**clauses).chain([&*rule.when])
}

/// Searches the list of a clause and the conditions of its rule for a negated clause that excludes
/// all values of the clause.
fn excluded_by<'r>(
    clause: &Clause,
    (alternative, rule): (&'r [Clause], &'r AuthorizationRule),
) -> Option<&'r Clause> {
    let is_excluded =
        |test: &RequestTest, by: &Clause| by.any.iter().any(|wider| test.is_within(wider));
    let mut negated = alternative.iter().chain(&rule.when).filter(|other| other.negated);
    negated.find(|by| !clause.negated && clause.any.iter().all(|test| is_excluded(test, by)))
}
