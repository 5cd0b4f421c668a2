//! What a change of the traffic configuration touches.

use std::collections::BTreeSet;

use super::hosts::HostPattern;
use strait_model::Namespace;

/// What may be otherwise than before, by name. What is not named is as it was.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TrafficChanges {
    /// Hosts of which some rule came, went or changed.
    pub hosts: BTreeSet<HostPattern>,
    /// Namespaces whose proxies import other hosts than before.
    pub scopes: BTreeSet<Namespace>,
    /// Whether anything may be otherwise for those of all namespaces.
    pub every_scope: bool,
    /// Namespaces of rules of which logs proxies write: their own, or those of the root namespace all.
    pub logging: BTreeSet<Namespace>,
    /// Namespaces of rules of which filters proxies have: their own, or those of the root namespace all.
    pub filters: BTreeSet<Namespace>,
    /// Whether the selectors in use are others, so that what selects a proxy is to be found out again.
    pub selectors: bool,
    /// Whether some Gateway, or what is bound to one, is another.
    pub gateways: bool,
}

impl TrafficChanges {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        let Self { hosts, scopes, every_scope, logging, filters, selectors, gateways } = self;
        let names_none =
            hosts.is_empty() && scopes.is_empty() && logging.is_empty() && filters.is_empty();
        names_none && !every_scope && !selectors && !gateways
    }

    /// Takes in others.
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
