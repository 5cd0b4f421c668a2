//! The services to which a rule applies.

use std::collections::BTreeSet;

use super::invalid::{InvalidPolicy, invalid};
use crate::ClusterId;

/// A set of services, by namespace or by hostname.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ServiceNames {
    /// Namespaces; `*` means all.
    pub(super) namespaces: BTreeSet<String>,
    /// Hostnames, or `*.` followed by a suffix.
    pub(super) hosts: Vec<String>,
}

impl ServiceNames {
    /// Returns whether the set contains a service.
    pub fn hold(&self, host: &str, namespace: &str) -> bool {
        self.namespaces.contains(namespace)
            || self.namespaces.contains("*")
            || self.hosts.iter().any(|pattern| match pattern.strip_prefix('*') {
                Some(ending) => host.len() > ending.len() && host.ends_with(ending),
                None => pattern == host,
            })
    }
}

/// Parses the ID of a cluster.
pub(super) fn cluster(field: &str, text: &str) -> Result<ClusterId, InvalidPolicy> {
    ClusterId::parse(text)
        .or_else(|error| invalid(field, format!("{text:?} can't be a cluster ID: {error}")))
}
