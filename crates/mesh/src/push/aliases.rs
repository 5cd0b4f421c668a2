//! Services that are aliases of other services (Services of type ExternalName), and their
//! targets.
//!
//! The event loop owns this table and updates it whenever a service becomes an alias or stops being
//! one. Only public definitions are considered: only Kubernetes sources create aliases, and their
//! definitions are never private.

use std::collections::BTreeSet;

use imbl::{OrdMap, OrdSet};

use strait_model::{Hostname, Resolution};

/// Aliases and their targets.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ServiceAliases {
    /// The target of each alias: a service, an unknown host, or another alias.
    targets: OrdMap<Hostname, Hostname>,
    /// The reverse mapping: pairs of target and alias.
    names: OrdSet<(Hostname, Hostname)>,
}

impl ServiceAliases {
    /// Returns whether no alias exists, the usual case.
    pub fn is_empty(&self) -> bool {
        self.targets.is_empty()
    }

    /// Returns the final target of a host: the host itself unless it is an alias. For aliases in a
    /// cycle, returns an alias, for which no upstream cluster exists.
    pub fn target<'a>(&'a self, host: &'a Hostname) -> &'a Hostname {
        let chain = std::iter::successors(Some(host), |one| self.targets.get(*one));
        // A chain without a cycle has at most as many steps as aliases exist.
        chain.take(self.targets.len() + 1).last().unwrap_or(host)
    }

    /// Returns all aliases of a host, direct and indirect.
    pub fn names_of(&self, host: &Hostname) -> BTreeSet<Hostname> {
        let mut all = BTreeSet::new();
        if self.is_empty() {
            return all;
        }
        let mut found = vec![host.clone()];
        while let Some(host) = found.pop() {
            let from = (host.clone(), Hostname::default());
            let names = self.names.range(from..).take_while(|(target, _)| *target == host);
            for (_, name) in names {
                if all.insert(name.clone()) {
                    found.push(name.clone());
                }
            }
        }
        all
    }

    /// Records how a service resolves now (`None` if it was removed). Returns whether its target
    /// changed.
    pub(super) fn note(&mut self, name: &Hostname, resolution: Option<&Resolution>) -> bool {
        let now = match resolution {
            Some(Resolution::Alias(target)) => Some(target),
            _ => None,
        };
        let before = self.targets.get(name);
        if before == now {
            return false;
        }
        if let Some(before) = before {
            self.names.remove(&(before.clone(), name.clone()));
        }
        match now {
            Some(target) => {
                self.names.insert((target.clone(), name.clone()));
                self.targets.insert(name.clone(), target.clone());
            }
            None => drop(self.targets.remove(name)),
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(name: &str) -> Hostname {
        name.into()
    }

    fn aliases(all: &[(&str, &str)]) -> ServiceAliases {
        let mut aliases = ServiceAliases::default();
        for (name, target) in all {
            aliases.note(&host(name), Some(&Resolution::Alias(host(target))));
        }
        aliases
    }

    #[test]
    fn alias_of_an_alias_resolves_to_the_last_target() {
        let aliases = aliases(&[("a", "b"), ("b", "c"), ("x", "c")]);
        assert_eq!(*aliases.target(&host("a")), host("c"));
        assert_eq!(*aliases.target(&host("c")), host("c"));
        assert_eq!(aliases.names_of(&host("c")), ["a", "b", "x"].map(host).into());
        assert_eq!(aliases.names_of(&host("a")), BTreeSet::new());
    }

    #[test]
    fn cyclic_aliases_terminate() {
        let aliases = aliases(&[("a", "b"), ("b", "a")]);
        assert!(["a", "b"].map(host).contains(aliases.target(&host("a"))));
        assert_eq!(aliases.names_of(&host("a")), ["a", "b"].map(host).into());
    }

    #[test]
    fn former_alias_resolves_to_itself() {
        let mut aliases = aliases(&[("a", "b")]);
        assert!(!aliases.note(&host("a"), Some(&Resolution::Alias(host("b")))));
        assert!(aliases.note(&host("a"), None));
        assert_eq!(aliases, ServiceAliases::default());
    }
}
