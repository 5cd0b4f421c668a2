//! A workload as seen by access policies.

use strait_model::{Labels, Namespace};

/// A workload as seen by access policies.
#[derive(Debug, Clone, Copy)]
pub struct AccessSubject<'a> {
    /// Namespace of the workload.
    pub namespace: &'a Namespace,
    /// Labels of the workload.
    pub labels: &'a Labels,
    /// Whether the labels are from the workload's cluster. Otherwise they are claims of the proxy,
    /// which must not remove it from a restricting policy.
    pub is_known: bool,
}
