//! Findings about access policies whose behavior differs from their apparent meaning, for
//! `strait check config` and statuses.

use std::collections::BTreeSet;

use super::access_never::never_matching;
use super::standing::PolicyFinding;
use strait_base::codes;
use strait_mesh::push::PushContext;
use strait_model::{Labels, Proxy};
use strait_rules::access::{
    AccessSubject, AuthorizationAction, AuthorizationPolicy, AuthorizationRule, Clause, PeerMode,
    PeerModes, PolicyKind, PolicyName, PolicySelector, RequestTest, TrustBundle, WorkloadAccess,
};

/// Checks one policy at the workloads that it selects.
pub(super) struct PolicyFindings<'a> {
    context: &'a PushContext,
    name: &'a PolicyName,
    /// The access rules at each connected workload that the policy selects. If none is connected,
    /// the rules for a workload with the labels of the selector. Empty if these are unknown.
    workloads: Vec<WorkloadAccess<'a>>,
    /// Whether `workloads` describes no connected workload.
    is_assumed: bool,
}

impl<'a> PolicyFindings<'a> {
    /// Creates the check of a policy that applies to the workloads of these proxies.
    pub(super) fn of(
        context: &'a PushContext,
        name: &'a PolicyName,
        concerned: &[&'a Proxy],
    ) -> Self {
        let mut workloads: Vec<_> =
            concerned.iter().map(|proxy| context.access_of(proxy)).collect();
        let is_assumed = workloads.is_empty();
        if is_assumed {
            let report = context.access.report(name);
            let labels = match report.and_then(|report| report.selector.as_ref()) {
                Some(PolicySelector::All) => Some(Labels::new()),
                Some(PolicySelector::Labels(labels)) => Some(labels.clone()),
                Some(PolicySelector::Gateways(_)) | None => None,
            };
            let namespace = &name.object.namespace;
            // The namespaces of the workloads that a policy of the mesh selects are unknown.
            if let Some(labels) = labels.filter(|_| namespace != context.access.root()) {
                let subject = AccessSubject { namespace, labels: &labels, is_known: true };
                workloads.push(context.access.of(subject));
            }
        }
        Self { context, name, workloads, is_assumed }
    }

    /// Describes the workloads to which a finding applies; `count` is their number.
    fn at(&self, count: usize) -> String {
        match self.is_assumed {
            true => "at the workloads that it selects".to_owned(),
            false => format!("at {count} of {} workloads", self.workloads.len()),
        }
    }

    /// Returns all findings.
    pub(super) fn all(&self) -> Vec<PolicyFinding> {
        match self.name.kind {
            PolicyKind::Authorization => {
                let policy = self.context.access.authorization(&self.name.object);
                policy.map(|policy| self.of_rules(policy)).unwrap_or_default()
            }
            PolicyKind::Request => self.unrequired_token().into_iter().collect(),
            PolicyKind::Peer => Vec::new(),
        }
    }

    fn of_rules(&self, policy: &AuthorizationPolicy) -> Vec<PolicyFinding> {
        let mut found = never_matching(self.context, policy);
        for rule in &policy.rules {
            match policy.action {
                AuthorizationAction::Deny => found.extend(self.plain_text(rule)),
                AuthorizationAction::Allow => {
                    found.extend(self.never_allows(rule));
                    found.extend(self.plain_text_is_allowed(rule));
                }
                AuthorizationAction::Audit | AuthorizationAction::Custom(_) => {}
            }
            found.extend(host_at_a_port(&policy.action, rule));
            found.extend(self.unknown_trust_domain(rule));
        }
        found
    }

    /// F-23: a client without a certificate has no identity, so a DENY rule for an identity does
    /// not match it.
    fn plain_text(&self, rule: &AuthorizationRule) -> Option<PolicyFinding> {
        let clause = rule.clauses().find(|one| !one.negated && is_of_identity(one))?;
        self.accepts_plain_text(rule).then(|| {
            let text = "clients in plain text have no identity and are not denied, and the workloads accept plain \
                        text";
            (&codes::ACCESS_PLAIN_TEXT, format!("spec.{}", clause.place), text.to_owned())
        })
    }

    /// F-23, inverse: a client without a certificate has no identity, so an ALLOW rule with an
    /// excluded identity matches it.
    fn plain_text_is_allowed(&self, rule: &AuthorizationRule) -> Option<PolicyFinding> {
        let requires_identity =
            |clauses: &[Clause]| clauses.iter().any(|one| !one.negated && is_of_identity(one));
        let nothing = Box::default();
        let sources =
            if rule.from.is_empty() { std::slice::from_ref(&nothing) } else { &rule.from };
        let mut open = sources.iter().filter(|clauses| !requires_identity(clauses)).peekable();
        if requires_identity(&rule.when) {
            return None;
        }
        open.peek()?;
        let mut clauses = open.flat_map(|clauses| clauses.iter()).chain(&rule.when);
        let clause = clauses.find(|one| one.negated && is_of_identity(one))?;
        self.accepts_plain_text(rule).then(|| {
            let text = "clients in plain text have no identity, are not excluded and are allowed, and the workloads \
                        accept plain text";
            (&codes::ACCESS_PLAIN_TEXT, format!("spec.{}", clause.place), text.to_owned())
        })
    }

    /// Returns whether workloads accept plain text at the ports of a rule.
    fn accepts_plain_text(&self, rule: &AuthorizationRule) -> bool {
        let ports = ports_of(rule);
        let takes = |one: &WorkloadAccess<'_>| {
            modes_at(&one.modes, &ports).any(|mode| mode != PeerMode::Strict)
        };
        self.workloads.iter().any(takes)
    }

    /// Reports ALLOW rules that require an identity at ports that accept only plain text.
    fn never_allows(&self, rule: &AuthorizationRule) -> Option<PolicyFinding> {
        let is_needed = |one: &&Clause| !one.negated && is_of_identity(one);
        let of_source = || {
            let each: Option<Vec<&Clause>> =
                rule.from.iter().map(|one| one.iter().find(is_needed)).collect();
            each.and_then(|each| each.first().copied())
        };
        let clause = rule.when.iter().find(is_needed).or_else(of_source)?;
        let ports = ports_of(rule);
        let is_plain = |one: &&WorkloadAccess<'_>| {
            modes_at(&one.modes, &ports).all(|mode| mode == PeerMode::Disable)
        };
        let count = self.workloads.iter().filter(is_plain).count();
        (count > 0).then(|| {
            let text = format!(
                "clients have no identity if mTLS is disabled: the rule allows nothing {}",
                self.at(count)
            );
            (&codes::ACCESS_NEVER_ALLOWS, format!("spec.{}", clause.place), text)
        })
    }

    /// Reports that tokens are optional: present tokens are verified, but only a rule can require
    /// one.
    fn unrequired_token(&self) -> Option<PolicyFinding> {
        let rules = &self.context.access.request(&self.name.object)?.rules;
        if rules.is_empty() || rules.iter().any(|rule| rule.requires_token) {
            return None;
        }
        let requires_token = |one: &WorkloadAccess<'_>| {
            let mut clauses = one.policies.iter().flat_map(|policy| policy.clauses());
            clauses.any(|clause| {
                clause.any.iter().any(|test| {
                    matches!(test, RequestTest::RequestPrincipal(_) | RequestTest::Claim(_))
                })
            })
        };
        let count = self.workloads.iter().filter(|one| !requires_token(one)).count();
        (count > 0).then(|| {
            let text = format!(
                "requests without a token pass: no AuthorizationPolicy requires one {}",
                self.at(count)
            );
            (&codes::ACCESS_TOKEN_OPTIONAL, "spec.jwtRules".to_owned(), text)
        })
    }

    /// Reports trust domains that no cluster uses.
    fn unknown_trust_domain(&self, rule: &AuthorizationRule) -> Option<PolicyFinding> {
        let own = self.context.trust_bundle();
        let members: BTreeSet<&str> = self.context.clusters.trust_domains().into_values().collect();
        let named = |test: &RequestTest| match test {
            RequestTest::TrustDomain(domain) => Some(domain.to_string()),
            RequestTest::Principal(name) => {
                let (domain, rest) = name.split_once('/')?;
                (rest.split('/').count() == 4).then(|| domain.to_owned())
            }
            _ => None,
        };
        let is_unknown = |domain: &String| {
            let is_known = |one: &str| own.domains().any(|own| own == one) || members.contains(one);
            !domain.contains('*') && domain != TrustBundle::OWN && !is_known(domain)
        };
        rule.clauses().find_map(|clause| {
            let domain = clause.any.iter().filter_map(named).find(is_unknown)?;
            let text =
                format!("{domain} is the trust domain of no cluster, so no client can have it");
            Some((&codes::ACCESS_TRUST_DOMAIN, format!("spec.{}", clause.place), text))
        })
    }
}

/// Reports rules that exclude a host only with a certain port, so that requests with a different
/// port or none are not excluded.
fn host_at_a_port(action: &AuthorizationAction, rule: &AuthorizationRule) -> Option<PolicyFinding> {
    let keeps_out = |clause: &&Clause| match action {
        AuthorizationAction::Deny => !clause.negated,
        AuthorizationAction::Allow => clause.negated,
        AuthorizationAction::Audit | AuthorizationAction::Custom(_) => false,
    };
    let names_port = |test: &RequestTest| match test {
        RequestTest::Host(host) => {
            let port = host.rsplit_once(':').map(|(_, port)| port);
            port.and_then(|port| port.parse::<u16>().ok()).map(|_| host.to_string())
        }
        _ => None,
    };
    rule.clauses().filter(keeps_out).find_map(|clause| {
        let host = clause.any.iter().find_map(names_port)?;
        let text = format!(
            "{host} matches that port only: requests whose host names a different port, or none, are not excluded"
        );
        Some((&codes::ACCESS_HOST_PORT, format!("spec.{}", clause.place), text))
    })
}

fn is_of_identity(clause: &Clause) -> bool {
    clause.any.iter().all(RequestTest::needs_mtls)
}

/// Returns the ports that all operations of a rule name, or none if an operation names no port.
fn ports_of(rule: &AuthorizationRule) -> Vec<u16> {
    if let Some(ports) = rule.when.iter().find_map(named_ports) {
        return ports;
    }
    let each = rule.to.iter().map(|one| one.iter().find_map(named_ports));
    each.collect::<Option<Vec<_>>>().unwrap_or_default().concat()
}

/// Returns the ports that a clause requires, if it is about ports.
pub(super) fn named_ports(clause: &Clause) -> Option<Vec<u16>> {
    let port = |test: &RequestTest| match test {
        RequestTest::Port(port) => Some(*port),
        _ => None,
    };
    clause.any.iter().map(port).collect::<Option<_>>().filter(|_| !clause.negated)
}

/// Returns the mTLS modes of a workload at these ports, or at all its ports if `ports` is empty.
fn modes_at<'m>(modes: &'m PeerModes, ports: &'m [u16]) -> impl Iterator<Item = PeerMode> + 'm {
    let of_rest = ports.is_empty().then_some(modes.rest.mode);
    let all = modes.ports.values().filter(|_| ports.is_empty()).map(|port| port.mode);
    of_rest.into_iter().chain(all).chain(ports.iter().map(|port| modes.of_port(*port).mode))
}
