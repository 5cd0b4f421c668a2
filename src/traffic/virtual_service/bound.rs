//! How much one object may have proxies be sent. Its rules stand in the routes of each of its hosts, and those of a delegate
//! in the place of each rule that delegates to it: an object of a megabyte could ask for gigabytes.

use serde_json::Value;

/// How many bytes the rules of an object may be, written as JSON, those of all hosts and delegates counted each time. As
/// routes of Envoy they are two to five times as many.
pub(super) const ROUTED_BYTES_MAX: usize = 16 << 20;
/// How many pairs of conditions, one of a rule and one of its delegate's, are joined for an object.
pub(super) const JOINED_MAX: usize = 50_000;

/// About how many bytes a value is, written as JSON.
pub(super) fn written_len(value: &Value) -> usize {
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
