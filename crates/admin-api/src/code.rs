//! `/debug/codes`: the meaning of the error codes.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The meaning of an error code.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct CodeMeaning {
    /// How to fix the problem. Lines that begin with spaces are commands.
    pub next: String,
    /// The problem in one sentence.
    pub title: String,
}
