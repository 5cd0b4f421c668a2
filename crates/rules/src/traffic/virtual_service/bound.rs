//! How much one object may have proxies be sent. What a rule does stands beside each of its conditions, rules stand in the
//! routes of each host, and those of a delegate in the place of each rule that delegates to it: an object of a megabyte
//! could ask for gigabytes.

use serde_json::Value;

/// How many bytes the rules of an object may be, written as JSON, each part counted as often as it is sent. As routes of Envoy
/// they are two to five times as many.
pub(super) const ROUTED_BYTES_MAX: usize = 16 << 20;
/// How many pairs of conditions, one of a rule and one of its delegate's, are joined for an object.
pub(super) const JOINED_MAX: usize = 50_000;

/// How long a rule is, written as JSON, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RuleLength {
    /// All its conditions together.
    conditions: usize,
    /// How many there are, where none stands for every request.
    pub(super) count: usize,
    /// What it does.
    terms: usize,
}

impl RuleLength {
    /// Of a rule as it is written. A condition of connections is one for each name at each range.
    pub(super) fn of(rule: &Value) -> Self {
        let matches = rule.get("match").and_then(Value::as_array);
        let ways = |of: &Value| {
            let of =
                |field| of.get(field).and_then(Value::as_array).map_or(1, |all| all.len().max(1));
            of("sniHosts").saturating_mul(of("destinationSubnets"))
        };
        let conditions = matches.map_or(0, |all| all.iter().map(written_len).sum());
        let count = matches.map_or(1, |all| all.iter().map(ways).sum::<usize>().max(1));
        let terms = written_len(rule).saturating_sub(conditions);
        Self { conditions, count, terms }
    }

    /// As routes.
    pub(super) fn routed(&self) -> usize {
        self.conditions.saturating_add(self.terms.saturating_mul(self.count))
    }

    /// The routes of a rule that delegates, as far as another stands in its place.
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

/// About how many bytes a value is, written as JSON.
fn written_len(value: &Value) -> usize {
    // Signs around and between.
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => 6,
        Value::String(text) => text.len() + 3,
        Value::Array(all) => all.iter().map(written_len).sum::<usize>() + 3,
        Value::Object(all) => {
            all.iter().map(|(name, value)| name.len() + 4 + written_len(value)).sum::<usize>() + 3
        }
    }
}

/// A number of bytes as people say it, in MB (powers of ten), rounded up.
pub(super) fn megabytes(bytes: usize) -> String {
    format!("{} MB", bytes.div_ceil(1_000_000))
}
