//! Services that a rule is about.

use std::collections::BTreeSet;

/// Services, by namespace or by host name.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ServiceNames {
    /// Namespaces; `*` is all of them.
    pub(super) namespaces: BTreeSet<String>,
    /// Host names, whole or `*.` and an ending.
    pub(super) hosts: Vec<String>,
}

impl ServiceNames {
    /// Whether a service is among them.
    pub fn hold(&self, host: &str, namespace: &str) -> bool {
        self.namespaces.contains(namespace)
            || self.namespaces.contains("*")
            || self.hosts.iter().any(|pattern| match pattern.strip_prefix('*') {
                Some(ending) => host.len() > ending.len() && host.ends_with(ending),
                None => pattern == host,
            })
    }
}
