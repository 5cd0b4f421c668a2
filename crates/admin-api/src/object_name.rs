//! Names of configuration objects, and problems: parts of several responses.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The name of a configuration object.
#[derive(
    Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "camelCase", default)]
pub struct ObjectName {
    /// Kind of the object.
    pub kind: String,
    /// Name of the object.
    pub name: String,
    /// Namespace of the object.
    pub namespace: String,
}

/// A problem with its code.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Problem {
    /// Code of the problem.
    pub code: String,
    /// The problem in words.
    pub text: String,
}

/// The error text of a proxy that rejected a change.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ProxyRefusal {
    /// The error text.
    pub error: String,
    /// Node ID of the proxy.
    pub proxy: String,
}
