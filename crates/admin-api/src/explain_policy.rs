//! `/debug/explain/policy`: the callers that a workload accepts, and the policies that decide.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::ObjectReason;

/// How a workload handles a request.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PolicyExplanation {
    /// The mTLS mode of the port.
    pub mode: PortMode,
    /// The verdict if the request is HTTP.
    pub http: PolicyVerdict,
    /// The verdict for a connection whose content is unknown.
    pub tcp: PolicyVerdict,
    /// Whether the workload's labels are confirmed by its cluster. If not, every restricting policy
    /// applies to it.
    pub labels_known: bool,
    /// Notes about rules whose decision is uncertain, because the caller connects through a
    /// gateway.
    pub notes: Vec<ObjectReason>,
}

/// The mTLS mode of a port.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PortMode {
    /// `STRICT`, `PERMISSIVE` or `DISABLE`.
    pub value: String,
    /// The policy that sets the mode, or a description of the transition; empty if no policy sets
    /// it.
    pub by: String,
    /// The transition during which the port accepts both plain text and mTLS. Absent without a
    /// transition.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub transition: Option<PortModeTransition>,
}

/// The mode that a port changes to.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PortModeTransition {
    /// `STRICT` or `DISABLE`.
    pub to: String,
    /// The policy that sets the new mode.
    pub by: String,
    /// When the transition ends.
    pub until: String,
}

/// A verdict with the rules that lead to it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PolicyVerdict {
    /// The verdict.
    pub verdict: Access,
    /// The policy or rule that decides, or the reason why none does.
    pub by: String,
    /// The providers that are called first. Each must allow the request. Their decisions are
    /// unknown, so `verdict` assumes that they allow it.
    pub asks: Vec<AskedProvider>,
    /// Every policy that applies to the workload, in order, with its rules.
    pub steps: Vec<PolicyStep>,
}

open_enum! {
    /// The verdict about a request.
    Access {
        /// The workload accepts it.
        Allow = "allow",
        /// The workload denies it.
        Deny = "deny",
    }
}

/// A provider that is called for a request.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct AskedProvider {
    /// Name of the provider in `extensionProviders`.
    pub provider: String,
    /// The rule that calls the provider.
    pub rule: String,
}

/// A policy that applies to a workload.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PolicyStep {
    /// The action of its rules: `ALLOW`, `DENY` and others.
    pub action: String,
    /// Whether the policy only logs its decision.
    pub dry_run: bool,
    /// Name of the policy.
    pub policy: String,
    /// The provider that decides; null if the policy decides itself.
    pub provider: Option<String>,
    /// Why the provider cannot be called; null if it can.
    pub provider_fault: Option<String>,
    /// The rules of the policy.
    pub rules: Vec<PolicyRule>,
    /// Why the policy applies to the workload.
    pub selected: String,
}

/// A rule of a policy.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PolicyRule {
    /// The fields of the rule.
    pub fields: Vec<PolicyField>,
    /// Whether the rule matches the request.
    pub matches: bool,
    /// Name of the rule.
    pub rule: String,
}

/// A field of a rule.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PolicyField {
    /// Whether the field matches the request.
    pub ok: bool,
    /// Path of the field in the policy.
    pub path: String,
}
