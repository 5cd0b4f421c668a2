//! The traffic configuration in force.

use std::collections::BTreeSet;

use super::destination_rule::DestinationRules;
use super::selection::{Selection, Selectors};
use super::virtual_services::VirtualServices;
use crate::model::{Hostname, Labels, Namespace};

/// All rules in force at one version. Immutable; a clone shares everything.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Traffic {
    /// How clients speak to services.
    pub destination_rules: DestinationRules,
    /// Which way requests and connections go.
    pub virtual_services: VirtualServices,
    pub(super) selectors: Selectors,
}

impl Traffic {
    /// Whether proxies of this namespace may be given otherwise than those of a namespace that no rule names and that
    /// has none.
    pub fn concerns(&self, namespace: &Namespace) -> bool {
        self.destination_rules.concerns(namespace) || self.virtual_services.concerns(namespace)
    }

    /// Whether it matters for a service in which namespace a client is, or which selectors select it.
    pub fn is_by_namespace(&self, host: &str) -> bool {
        self.destination_rules.is_by_namespace(host)
    }

    /// The same with those routes alone that concern these hosts.
    #[must_use]
    pub fn excerpt(&self, hosts: &BTreeSet<Hostname>) -> Self {
        Self { virtual_services: self.virtual_services.excerpt(hosts.iter()), ..self.clone() }
    }

    /// Whether no rule in force is for some labels alone.
    pub fn is_without_selectors(&self) -> bool {
        self.selectors.is_empty()
    }

    /// What of the selectors in use selects what is in that namespace and has these labels.
    pub fn selection(&self, namespace: &Namespace, labels: &Labels) -> Selection {
        self.selectors.selection(namespace, labels)
    }
}
