//! Selection of the namespaces that belong to the mesh, by labels (mesh config,
//! `discoverySelectors`).

use std::collections::BTreeSet;
use std::sync::Arc;

use super::Labels;

/// Selects the namespaces that belong to the mesh: namespaces that any selector matches, or all
/// without selectors.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NamespaceFilter {
    /// The selectors in the order in which they were written.
    pub selectors: Vec<LabelSelector>,
}

/// A Kubernetes label selector; all its parts must match.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LabelSelector {
    /// Required labels with their values.
    pub labels: Labels,
    /// Conditions on labels.
    pub conditions: Vec<LabelCondition>,
}

/// A condition on the label `key`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LabelCondition {
    /// The key of the label.
    pub key: Arc<str>,
    /// The condition.
    pub test: Test,
}

/// A condition on a label.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Test {
    /// The label exists and has a value in this set.
    In(BTreeSet<Arc<str>>),
    /// The label does not exist or has none of these values.
    NotIn(BTreeSet<Arc<str>>),
    /// The label exists.
    Exists,
    /// The label does not exist.
    DoesNotExist,
}

impl NamespaceFilter {
    /// Returns whether all namespaces belong to the mesh, including unknown ones.
    pub fn admits_all(&self) -> bool {
        self.selectors.is_empty()
    }

    /// Returns whether a namespace with these labels belongs to the mesh.
    pub fn admits(&self, labels: &Labels) -> bool {
        self.admits_all() || self.selectors.iter().any(|selector| selector.matches(labels))
    }
}

impl LabelSelector {
    /// Returns whether all parts match. An empty selector matches everything.
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
