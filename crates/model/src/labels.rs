//! Labels and label selectors.

use std::sync::Arc;

use super::SortedMap;

/// Labels or a selector, in a stable order.
pub type Labels = SortedMap<Arc<str>, Arc<str>>;

/// Returns whether `labels` contain every pair of `selector`. An empty selector matches nothing
/// here, like that of a Kubernetes Service.
#[inline]
pub fn labels_match(selector: &Labels, labels: &Labels) -> bool {
    !selector.is_empty() && selector.iter().all(|(key, value)| labels.get(key) == Some(value))
}

/// Returns the labels for an endpoint: `None` without any.
pub fn given_labels(labels: &Arc<Labels>) -> Option<Arc<Labels>> {
    (!labels.is_empty()).then(|| Arc::clone(labels))
}
