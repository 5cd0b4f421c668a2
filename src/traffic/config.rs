//! The traffic configuration in force.

use super::destination_rule::DestinationRules;
use super::selection::{Selection, Selectors};
use crate::model::{Labels, Namespace};

/// All rules in force at one version. Immutable; a clone shares everything.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Traffic {
    /// How clients speak to services.
    pub destination_rules: DestinationRules,
    pub(super) selectors: Selectors,
}

impl Traffic {
    /// Whether proxies of this namespace may be given otherwise than those of a namespace that no rule names and that
    /// has none.
    pub fn concerns(&self, namespace: &Namespace) -> bool {
        self.destination_rules.concerns(namespace)
    }

    /// Whether it matters for a service in which namespace a client is, or which selectors select it.
    pub fn is_by_namespace(&self, host: &str) -> bool {
        self.destination_rules.is_by_namespace(host)
    }

    /// What of the selectors in use selects what is in that namespace and has these labels.
    pub fn selection(&self, namespace: &Namespace, labels: &Labels) -> Selection {
        self.selectors.selection(namespace, labels)
    }
}
