//! The bundle of trust roots that workloads receive.

use std::collections::BTreeSet;
use std::sync::Arc;

/// A set of root certificates. Equal sets give equal texts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RootBundle {
    /// All certificates as one PEM text, sorted by their DER bytes, without duplicates.
    pub pem: Arc<str>,
    /// Each certificate in DER.
    pub certificates: BTreeSet<Vec<u8>>,
}
