//! The name of a pod in its cluster.

use std::fmt;
use std::sync::Arc;

use super::Namespace;

/// The namespace and name of a pod, unique in its cluster.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkloadKey {
    /// The namespace.
    pub namespace: Namespace,
    /// The name.
    pub name: Arc<str>,
}

impl WorkloadKey {
    /// Creates the key of `name` in `namespace`.
    pub fn new(namespace: impl Into<Namespace>, name: impl Into<Arc<str>>) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }
}

impl fmt::Display for WorkloadKey {
    /// Formats it as `name.namespace`, like in a node ID.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.name, self.namespace)
    }
}
