//! `/debug/explain/route`: the path of a request through a proxy's configuration.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The path of a request through a proxy's configuration.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RouteExplanation {
    /// Node ID of the proxy.
    pub proxy: String,
    /// The listener that accepts the connection; null without one.
    pub listener: Option<String>,
    /// The filter chain of the listener; null without one.
    pub chain: Option<String>,
    /// The route configuration; null without one.
    pub route: Option<String>,
    /// The virtual host in the route configuration; null without one.
    pub virtual_host: Option<String>,
    /// The deciding rule; null if no rule applies.
    pub rule: Option<RouteRule>,
    /// Rules and objects that do not apply, with reasons.
    pub lost: Vec<LostRule>,
    /// The destinations of the request.
    pub destinations: Vec<RouteDestination>,
    /// The status of the proxy's own response. Absent if the request is forwarded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub answer: Option<u32>,
    /// The URL of a redirect. Absent without a redirect.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub location: Option<String>,
    /// The outcome in words.
    pub outcome: String,
    /// Other effects: faults, mirrors, path changes.
    pub notes: Vec<String>,
}

/// A rule of an object.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RouteRule {
    /// Kind of the object.
    pub kind: String,
    /// Namespace of the object.
    pub namespace: String,
    /// Name of the object.
    pub name: String,
    /// The cluster that owns the object. Absent if it applies to the whole mesh.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cluster: Option<String>,
    /// Index of the rule in the object, from 0; null for the entire object.
    pub index: Option<u32>,
    /// Path of the rule in the object, for example `spec.http[0]`.
    pub path: String,
    /// The rule that delegates to this one. Absent without a delegation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub via: Option<Box<Self>>,
}

/// A rule that does not decide.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct LostRule {
    /// The rule.
    pub rule: RouteRule,
    /// Why it does not decide.
    pub reason: String,
}

/// An upstream cluster that receives requests.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RouteDestination {
    /// Name of the upstream cluster.
    pub cluster: String,
    /// The subset of the service; empty for the entire service.
    pub subset: String,
    /// Weight of the destination.
    pub weight: u32,
    /// Number of endpoints that the proxy receives; null if it discovers them itself.
    pub endpoints: Option<usize>,
    /// Whether the proxy has this upstream cluster.
    pub known: bool,
}
