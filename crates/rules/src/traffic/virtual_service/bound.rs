//! Limits on the size of the routes of one object. The action of a rule is repeated for each match,
//! rules are repeated in the routes of each host, and the rules of a delegate are repeated for each
//! delegating rule. Without limits, an object of one megabyte could expand to gigabytes.

use serde_json::Value;

/// Maximum size in bytes of the rules of an object as JSON, including all repetitions. As Envoy
/// routes, they are two to five times as large.
pub(super) const ROUTED_BYTES_MAX: usize = 16 << 20;
/// Maximum number of pairs of a match and a match of the delegate that are combined for one object.
pub(super) const JOINED_MAX: usize = 50_000;

/// Size of a rule as JSON, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RuleLength {
    /// Size of all matches together.
    conditions: usize,
    /// Number of matches; 1 for a rule without matches.
    pub(super) count: usize,
    /// Size of the action.
    terms: usize,
}

impl RuleLength {
    /// Computes the size of a raw rule. A match of connections counts once for each pair of a
    /// server name and an address range.
    pub(super) fn measure(rule: &Value) -> Self {
        let matches = rule.get("match").and_then(Value::as_array);
        let combinations = |request_match: &Value| {
            let count = |field| {
                request_match.get(field).and_then(Value::as_array).map_or(1, |all| all.len().max(1))
            };
            count("sniHosts").saturating_mul(count("destinationSubnets"))
        };
        let conditions = matches.map_or(0, |all| all.iter().map(written_len).sum());
        let count = matches.map_or(1, |all| all.iter().map(combinations).sum::<usize>().max(1));
        let terms = written_len(rule).saturating_sub(conditions);
        Self { conditions, count, terms }
    }

    /// Returns the size of the rule as routes.
    pub(super) fn routed(&self) -> usize {
        self.conditions.saturating_add(self.terms.saturating_mul(self.count))
    }

    /// Returns the size of the routes of a delegating rule and a rule of the delegate.
    pub(super) fn joined(&self, its: &Self) -> usize {
        let pairs = self.count.saturating_mul(its.count);
        [
            pairs.saturating_mul(self.terms.saturating_add(its.terms)),
            its.count.saturating_mul(self.conditions),
            self.count.saturating_mul(its.conditions),
        ]
        .into_iter()
        .fold(0, usize::saturating_add)
    }
}

/// Returns the approximate size of a value as JSON, in bytes.
fn written_len(value: &Value) -> usize {
    // Includes punctuation.
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => 6,
        Value::String(text) => text.len() + 3,
        Value::Array(all) => all.iter().map(written_len).sum::<usize>() + 3,
        Value::Object(all) => {
            all.iter().map(|(name, value)| name.len() + 4 + written_len(value)).sum::<usize>() + 3
        }
    }
}

/// Formats a number of bytes in MB (powers of ten), rounded up.
pub(super) fn megabytes(bytes: usize) -> String {
    format!("{} MB", bytes.div_ceil(1_000_000))
}
