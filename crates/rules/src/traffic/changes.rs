//! The parts of the traffic configuration that a change affects.

use std::collections::BTreeSet;

use super::hosts::HostPattern;
use strait_model::Namespace;

/// The parts of the traffic configuration that may differ from the previous version. All other
/// parts are unchanged.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TrafficChanges {
    /// Hosts with an added, removed or changed rule.
    pub hosts: BTreeSet<HostPattern>,
    /// Namespaces whose proxies import different hosts.
    pub scopes: BTreeSet<Namespace>,
    /// Whether the imports of all namespaces may differ.
    pub every_scope: bool,
    /// Namespaces of changed access log rules. The root namespace represents all namespaces.
    pub logging: BTreeSet<Namespace>,
    /// Namespaces of changed EnvoyFilters. The root namespace represents all namespaces.
    pub filters: BTreeSet<Namespace>,
    /// Whether the set of selectors changed, so that the selection of each proxy must be computed
    /// again.
    pub selectors: bool,
    /// Whether a Gateway, or a rule bound to one, changed.
    pub gateways: bool,
}

impl TrafficChanges {
    /// Returns whether nothing changed.
    pub fn is_empty(&self) -> bool {
        let Self { hosts, scopes, every_scope, logging, filters, selectors, gateways } = self;
        let has_no_names =
            hosts.is_empty() && scopes.is_empty() && logging.is_empty() && filters.is_empty();
        has_no_names && !every_scope && !selectors && !gateways
    }

    /// Adds the changes in `other`.
    pub fn merge(&mut self, other: Self) {
        self.hosts.extend(other.hosts);
        self.scopes.extend(other.scopes);
        self.every_scope |= other.every_scope;
        self.logging.extend(other.logging);
        self.filters.extend(other.filters);
        self.selectors |= other.selectors;
        self.gateways |= other.gateways;
    }
}
