//! Who may call whom: the mesh's access policies, from objects to what a proxy enforces.
//!
//! ```text
//! objects ─► AccessIndex ─► AccessPolicies (immutable, in PushContext) ─► of one workload ─► PeerModes
//!            last good kept                                                              └► RuleMatchers ─► RBAC, explain
//! ```
//!
//! Pure. One function says how a workload's port takes connections, whoever asks; one form of what a rule matches
//! (`matcher.rs`) is what proxies are sent and what `explain` answers by. Where a policy can't be read it never lets in
//! more than what it said before (docs/decisions/0039-access.md).

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
