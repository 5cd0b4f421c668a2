//! Encodes fields as the body of an HTML form or as the parameters of a query.

use strait_kube_client::percent_encode;

/// Returns the fields of a form or the parameters of a query, encoded and sorted.
pub(super) fn form_text(fields: &[(&str, &str)]) -> String {
    let encode = |(name, value): &(&str, &str)| (percent_encode(name), percent_encode(value));
    let mut pairs: Vec<_> = fields.iter().map(encode).collect();
    pairs.sort();
    let pairs = pairs.iter().map(|(name, value)| format!("{name}={value}"));
    pairs.collect::<Vec<_>>().join("&")
}
