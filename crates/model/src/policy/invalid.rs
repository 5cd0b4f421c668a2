//! The error type of policy files, and parsers that several parts of them use.

use std::fmt;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::mesh_config::{parse_duration, plain};
use strait_base::unread;

/// Why a policy is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct InvalidPolicy {
    /// The field, for example `clusters.east.addresses[0]`; empty if the text is no policy at all.
    pub field: String,
    /// The problem.
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

impl InvalidPolicy {
    /// Parses the text of a file whose fields are all known.
    ///
    /// # Errors
    /// Returns the first problem, with the field and the line.
    pub fn parse<T: DeserializeOwned>(text: &str) -> Result<T, Self> {
        serde_saphyr::from_str(text).map_err(|error| {
            // The parser knows the line, and the tree the field.
            let tree = serde_saphyr::from_str::<Value>(text).ok();
            let failed = tree.and_then(|tree| unread::read_known::<T>(&tree).err());
            // The lines after the first one show an excerpt of the text.
            let fact = plain(error.to_string().lines().next().unwrap_or_default()).to_owned();
            Self { field: failed.map(|(field, _)| field).unwrap_or_default(), fact }
        })
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

/// Parses a size: `4096`, `64Ki`, `256Mi`, `1Gi`.
pub(super) fn bytes(field: &str, value: &Value) -> Result<usize, InvalidPolicy> {
    let text = match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let (number, unit) = match text.find(|c: char| !c.is_ascii_digit()) {
        Some(at) => text.split_at(at),
        None => (text.as_str(), ""),
    };
    let shift = match unit {
        "" => Some(0),
        "Ki" => Some(10),
        "Mi" => Some(20),
        "Gi" => Some(30),
        _ => None,
    };
    let size = number.parse::<usize>().ok().zip(shift);
    match size.and_then(|(number, shift)| number.checked_mul(1 << shift)) {
        Some(size) => Ok(size),
        None => invalid(field, format!("{text:?} is not a size such as 64Ki or 256Mi")),
    }
}
