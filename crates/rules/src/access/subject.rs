//! A workload as policies look at it.

use strait_model::{Labels, Namespace};

/// A workload, as policies see it.
#[derive(Debug, Clone, Copy)]
pub struct AccessSubject<'a> {
    /// Its namespace.
    pub namespace: &'a Namespace,
    /// Its labels.
    pub labels: &'a Labels,
    /// Whether these are what its cluster says, and not what it claims: by claims nobody gets rid of what restricts it.
    pub is_known: bool,
}
