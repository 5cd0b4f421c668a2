//! Services that are other names of services, as those of type ExternalName are, and where each leads in the end.
//!
//! Owned by the event loop, which takes note of each service that becomes one or stops. Of definitions that are for all:
//! no other source than Kubernetes makes aliases, and its definitions are for all.

use std::collections::BTreeSet;

use imbl::{OrdMap, OrdSet};

use strait_model::{Hostname, Resolution};

/// Names that stand for services.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ServiceAliases {
    /// What each stands for: a service, a host that nobody knows, or another alias.
    targets: OrdMap<Hostname, Hostname>,
    /// The same the other way round: what is stood for first.
    names: OrdSet<(Hostname, Hostname)>,
}

impl ServiceAliases {
    /// Whether there are none, as is mostly so.
    pub fn is_empty(&self) -> bool {
        self.targets.is_empty()
    }

    /// What a host stands for in the end: itself, unless it is an alias. Of aliases that stand for each other it is one of
    /// them, which no upstream cluster is of.
    pub fn target<'a>(&'a self, host: &'a Hostname) -> &'a Hostname {
        let chain = std::iter::successors(Some(host), |one| self.targets.get(*one));
        // No chain is longer than there are aliases, but for a circle.
        chain.take(self.targets.len() + 1).last().unwrap_or(host)
    }

    /// All names that lead to a host, be it by other names.
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

    /// Takes note of how a service resolves now; of none, where there is none any more. Whether it stands for something else
    /// than before.
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
    fn alias_of_an_alias_stands_for_the_last_of_them() {
        let aliases = aliases(&[("a", "b"), ("b", "c"), ("x", "c")]);
        assert_eq!(*aliases.target(&host("a")), host("c"));
        assert_eq!(*aliases.target(&host("c")), host("c"));
        assert_eq!(aliases.names_of(&host("c")), ["a", "b", "x"].map(host).into());
        assert_eq!(aliases.names_of(&host("a")), BTreeSet::new());
    }

    #[test]
    fn aliases_in_a_circle_end() {
        let aliases = aliases(&[("a", "b"), ("b", "a")]);
        assert!(["a", "b"].map(host).contains(aliases.target(&host("a"))));
        assert_eq!(aliases.names_of(&host("a")), ["a", "b"].map(host).into());
    }

    #[test]
    fn what_is_no_alias_any_more_stands_for_itself() {
        let mut aliases = aliases(&[("a", "b")]);
        assert!(!aliases.note(&host("a"), Some(&Resolution::Alias(host("b")))));
        assert!(aliases.note(&host("a"), None));
        assert_eq!(aliases, ServiceAliases::default());
    }
}
