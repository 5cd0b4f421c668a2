//! Which namespaces belong to the mesh, by their labels (mesh config, `discoverySelectors`).

use std::collections::BTreeSet;
use std::sync::Arc;

use super::Labels;

/// Which namespaces belong to the mesh: those that any selector admits, and all where there is none.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NamespaceFilter {
    /// In the order in which they were written.
    pub selectors: Vec<LabelSelector>,
}

/// A Kubernetes label selector: all of it must hold.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LabelSelector {
    /// Labels with these values.
    pub labels: Labels,
    /// Conditions on labels.
    pub conditions: Vec<LabelCondition>,
}

/// A condition on the label `key`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LabelCondition {
    /// The label.
    pub key: Arc<str>,
    /// What must hold.
    pub test: Test,
}

/// What must hold of a label.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Test {
    /// It is there and has one of these values.
    In(BTreeSet<Arc<str>>),
    /// It isn't there, or has none of these values.
    NotIn(BTreeSet<Arc<str>>),
    /// It is there.
    Exists,
    /// It isn't there.
    DoesNotExist,
}

impl NamespaceFilter {
    /// Whether all namespaces belong to the mesh, even those of which nothing is known.
    pub fn admits_all(&self) -> bool {
        self.selectors.is_empty()
    }

    /// Whether a namespace with these labels belongs to the mesh.
    pub fn admits(&self, labels: &Labels) -> bool {
        self.admits_all() || self.selectors.iter().any(|selector| selector.matches(labels))
    }
}

impl LabelSelector {
    /// Whether all of it holds. An empty selector matches everything.
    pub fn matches(&self, labels: &Labels) -> bool {
        self.labels.iter().all(|(key, value)| labels.get(key) == Some(value))
            && self.conditions.iter().all(|condition| condition.holds(labels))
    }
}

impl LabelCondition {
    fn holds(&self, labels: &Labels) -> bool {
        let value = labels.get(&self.key);
        match &self.test {
            Test::In(values) => value.is_some_and(|value| values.contains(value)),
            Test::NotIn(values) => value.is_none_or(|value| !values.contains(value)),
            Test::Exists => value.is_some(),
            Test::DoesNotExist => value.is_none(),
        }
    }
}
