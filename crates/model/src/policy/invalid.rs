//! What is wrong in a policy file, and what its parts read alike.

use std::fmt;
use std::time::Duration;

use crate::mesh_config::parse_duration;

/// Why a policy can't be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct InvalidPolicy {
    /// The field, such as `clusters.east.addresses[0]`; empty where the text is no policy at all.
    pub field: String,
    /// What is wrong with it.
    pub fact: String,
}

impl fmt::Display for InvalidPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.field.is_empty() {
            write!(f, "{}: ", self.field)?;
        }
        f.write_str(&self.fact)
    }
}

pub(super) fn invalid<T>(
    field: impl Into<String>,
    fact: impl Into<String>,
) -> Result<T, InvalidPolicy> {
    Err(InvalidPolicy { field: field.into(), fact: fact.into() })
}

pub(super) fn duration(field: &str, text: &str) -> Result<Duration, InvalidPolicy> {
    parse_duration(text.trim()).or_else(|fact| invalid(field, fact))
}
