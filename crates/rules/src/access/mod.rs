//! Access policies of the mesh: from Kubernetes objects to the rules that a proxy enforces.
//!
//! ```text
//! objects ─► AccessIndex ─► AccessPolicies (immutable, in PushContext) ─► of one workload ─► PeerModes
//!            keeps the last valid version                                        └► RuleMatchers ─► RBAC, explain
//! ```
//!
//! Pure. One function determines the mTLS mode of a port for all callers. RBAC filters are
//! generated from the matchers in `matcher.rs`, and `explain` evaluates the same matchers. A policy
//! that cannot be read never allows more than its previous version (docs/contributing/decisions/0039-access.md).

mod authorization;
mod concerned;
mod enforce;
mod evaluate;
mod fields;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
mod index;
mod key_share;
mod matcher;
mod never;
mod object;
#[cfg(any(test, fuzzing))]
pub(crate) mod oracle;
mod peer;
mod policies;
mod request;
mod request_test;
mod selector;
mod subject;
#[cfg(test)]
pub(crate) mod tests;
mod text;
mod time_point;
mod transition;
mod trust;
mod values;

pub use self::authorization::{
    AuthorizationAction, AuthorizationPolicy, AuthorizationRule, Clause, ClausePlace,
};
pub use self::concerned::{ConcernedWorkloads, WorkloadSelection};
pub use self::enforce::{
    ActionRules, EnforcedPolicy, EnforcedRules, ProviderReach, ReachableProviders, enforced,
    enforced_policies,
};
pub use self::evaluate::{AccessDecision, AccessRequest, AccessVerdict, decide, rule_steps};
pub use self::index::{AccessChange, AccessIndex, AccessSettings};
pub use self::matcher::{
    AlternativeInForm, Atom, ClauseInForm, MatchScope, MatchedClause, RuleInForm, RuleMatcher,
    TOKEN_FILTER, WireForm, token_key,
};
pub use self::object::{AccessFault, PolicyErrors, PolicyKind, PolicyName, PolicyState};
pub use self::peer::{ModeTransition, PeerAuthentication, PeerMode, PeerModes, PortMode};
pub use self::policies::{AccessPolicies, PolicyReport, ReplacedPeer, WorkloadAccess};
pub use self::request::{RequestAuthentication, TokenRule};
pub use self::request_test::{ClaimTest, RequestTest};
pub use self::selector::PolicySelector;
pub use self::subject::AccessSubject;
pub use self::text::{TextPart, TextParts, TextPattern};
pub use self::time_point::TimePoint;
pub use self::transition::{SERVERS_FIRST, TRANSITION};
pub use self::trust::TrustBundle;
