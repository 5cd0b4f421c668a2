//! The roots that workloads are given to believe.

use std::collections::BTreeSet;
use std::sync::Arc;

/// A set of root certificates: the same set is always the same text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RootBundle {
    /// All of them as one PEM text, sorted by their DER bytes, none twice.
    pub pem: Arc<str>,
    /// Each of them in DER.
    pub certificates: BTreeSet<Vec<u8>>,
}
