//! Labels, and selectors of them.

use std::sync::Arc;

use super::SortedMap;

/// Labels or a selector, in a stable order.
pub type Labels = SortedMap<Arc<str>, Arc<str>>;

/// Whether `labels` carry every pair of `selector`. An empty selector selects nothing here, as for
/// a Kubernetes Service.
pub fn labels_match(selector: &Labels, labels: &Labels) -> bool {
    !selector.is_empty() && selector.iter().all(|(key, value)| labels.get(key) == Some(value))
}

/// Labels of an endpoint: `None` where there are none.
pub fn given_labels(labels: &Arc<Labels>) -> Option<Arc<Labels>> {
    (!labels.is_empty()).then(|| Arc::clone(labels))
}
