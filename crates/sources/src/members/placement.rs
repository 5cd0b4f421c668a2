//! PlacementDecisions (multicluster.x-k8s.io): the ClusterProfiles that a scheduler selected. Pure.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

/// The label with the key of the decisions that belong together.
pub const DECISION_KEY_LABEL: &str = "multicluster.x-k8s.io/decision-key";
/// The label with the position of a slice among them, from 0.
const DECISION_INDEX_LABEL: &str = "multicluster.x-k8s.io/decision-index";

/// A slice of the decisions of a placement.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PlacementDecision {
    /// The position of the slice, if it has one.
    index: Option<usize>,
    /// The selected profiles: namespace and name.
    profiles: BTreeSet<(String, String)>,
}

impl PlacementDecision {
    /// Reads the decisions of a slice in this namespace. Entries without a name are ignored.
    pub fn read(labels: &BTreeMap<String, String>, namespace: &str, decisions: &Value) -> Self {
        let entries = decisions.as_array().map(Vec::as_slice).unwrap_or_default();
        let profile = |entry: &Value| {
            let reference = &entry["clusterProfileRef"];
            let name = reference["name"].as_str().filter(|name| !name.is_empty())?;
            let own = reference["namespace"].as_str().filter(|own| !own.is_empty());
            Some((own.unwrap_or(namespace).to_owned(), name.to_owned()))
        };
        let index = labels.get(DECISION_INDEX_LABEL).and_then(|index| index.parse().ok());
        Self { index, profiles: entries.iter().filter_map(profile).collect() }
    }
}

/// Returns the profiles that all slices select together; `None` while slices are missing: their indices
/// must be 0 to n without a gap, or no slice has an index. An empty set has one slice without decisions:
/// without any slice, the scheduler has not decided yet, or the placement was deleted.
pub fn complete_set<'a>(
    slices: impl Iterator<Item = &'a PlacementDecision>,
) -> Option<BTreeSet<(String, String)>> {
    let (mut indices, mut count, mut profiles) = (BTreeSet::new(), 0, BTreeSet::new());
    for slice in slices {
        indices.extend(slice.index);
        count += 1;
        profiles.extend(slice.profiles.iter().cloned());
    }
    let is_complete = count > 0
        && (indices.is_empty() || (indices.len() == count && indices.last() == Some(&(count - 1))));
    is_complete.then_some(profiles)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn slice(index: Option<&str>, names: &[&str]) -> PlacementDecision {
        let labels = index.map(|index| (DECISION_INDEX_LABEL.to_owned(), index.to_owned()));
        let entries = names.iter().map(|name| json!({ "clusterProfileRef": { "name": name } }));
        let decisions = Value::Array(entries.collect());
        PlacementDecision::read(&labels.into_iter().collect(), "fleet", &decisions)
    }

    fn set(slices: &[PlacementDecision]) -> Option<Vec<String>> {
        let profiles = complete_set(slices.iter())?;
        Some(profiles.into_iter().map(|(namespace, name)| format!("{namespace}/{name}")).collect())
    }

    #[test]
    fn set_applies_only_when_all_slices_are_there() {
        let some =
            |names: &[&str]| Some(names.iter().map(|name| format!("fleet/{name}")).collect());
        assert_eq!(set(&[]), None, "no decision is not an empty one");
        assert_eq!(set(&[slice(None, &[])]), some(&[]));
        assert_eq!(set(&[slice(None, &["a"])]), some(&["a"]));
        assert_eq!(set(&[slice(Some("0"), &["b"]), slice(Some("1"), &["a"])]), some(&["a", "b"]));
        assert_eq!(set(&[slice(Some("1"), &["a"])]), None, "slice 0 is missing");
        assert_eq!(set(&[slice(Some("0"), &["a"]), slice(Some("2"), &["b"])]), None);
        assert_eq!(set(&[slice(Some("0"), &["a"]), slice(None, &["b"])]), None, "not comparable");
        assert_eq!(set(&[slice(Some("0"), &["a"]), slice(Some("0"), &["b"])]), None);
    }

    #[test]
    fn profile_of_another_namespace_is_named_by_the_reference() {
        let decisions = json!([
            { "clusterProfileRef": { "name": "a", "namespace": "other" } },
            { "clusterProfileRef": {} }, 7,
        ]);
        let read = PlacementDecision::read(&BTreeMap::new(), "fleet", &decisions);
        assert_eq!(set(&[read]), Some(vec!["other/a".to_owned()]));
    }
}
