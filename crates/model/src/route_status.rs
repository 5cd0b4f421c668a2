//! The status that is written into routes of the Gateway API. Pure. (Gateway API, `RouteStatus`,
//! `RouteParentStatus`.)

use serde_json::{Value, json};

use super::ObjectKey;
use super::status_condition::StatusCondition;

/// The `controllerName` in status entries of this control plane.
pub const GATEWAY_CONTROLLER: &str = "strait.dev/gateway-controller";
/// The maximum number of entries in a status, and of conditions in an entry.
const PARENTS_MAX: usize = 32;
const CONDITIONS_MAX: usize = 8;

/// The status that must be written into a route, for each parent Service.
#[derive(Debug, Clone, PartialEq)]
pub struct RouteStatus {
    /// The key of the route.
    pub key: ObjectKey,
    /// The generation of the route to which it applies; 0 if unknown.
    pub generation: i64,
    /// One item per parent, in the order in which the route names them.
    pub parents: Vec<RouteParentStatus>,
}

/// The status of a route at one parent.
#[derive(Debug, Clone, PartialEq)]
pub struct RouteParentStatus {
    /// The reference to the parent, as the route writes it.
    pub parent: Value,
    /// The conditions, at most one per type.
    pub conditions: Vec<StatusCondition>,
}

impl RouteStatus {
    /// Returns the entries that replace `current`, with the time `now` in RFC 3339, or `None` if they
    /// are up to date. Entries of other controllers and unknown conditions are unchanged.
    /// Conditions for a later generation are not overwritten.
    pub fn merged(&self, current: &[Value], now: &str) -> Option<Vec<Value>> {
        let is_ours = |entry: &&Value| entry["controllerName"] == GATEWAY_CONTROLLER;
        let mut merged: Vec<Value> =
            current.iter().filter(|entry| !is_ours(entry)).cloned().collect();
        for desired in &self.parents {
            if merged.len() == PARENTS_MAX {
                break;
            }
            let mut own_entries = current.iter().filter(is_ours);
            let existing = own_entries.find(|entry| entry["parentRef"] == desired.parent);
            let existing = existing.and_then(|entry| entry["conditions"].as_array());
            let existing = existing.map(Vec::as_slice).unwrap_or_default();
            merged.push(json!({
                "parentRef": desired.parent,
                "controllerName": GATEWAY_CONTROLLER,
                "conditions": self.conditions(&desired.conditions, existing, now),
            }));
        }
        // The order of entries is irrelevant.
        let is_current =
            merged.len() == current.len() && merged.iter().all(|entry| current.contains(entry));
        (!is_current).then_some(merged)
    }

    fn conditions(&self, desired: &[StatusCondition], current: &[Value], now: &str) -> Vec<Value> {
        const OURS: [&str; 3] = ["Accepted", "ResolvedRefs", "PartiallyInvalid"];
        let find_existing = |kind: &str| current.iter().find(|condition| condition["type"] == kind);
        let update = |condition: &StatusCondition| {
            condition.written(condition.kind, self.generation, find_existing(condition.kind), now)
        };
        let mut all: Vec<Value> = desired.iter().map(update).collect();
        let foreign_conditions =
            current.iter().filter(|condition| OURS.iter().all(|ours| condition["type"] != *ours));
        all.extend(foreign_conditions.cloned());
        all.truncate(CONDITIONS_MAX);
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(is_true: bool, generation: i64) -> RouteStatus {
        let reason = if is_true { "Accepted" } else { "NoMatchingParent" };
        let message = "why".to_owned();
        let conditions = vec![StatusCondition { kind: "Accepted", is_true, reason, message }];
        let parent = json!({ "group": "", "kind": "Service", "name": "web" });
        RouteStatus {
            key: ObjectKey {
                kind: "HTTPRoute".into(),
                group: super::super::GATEWAY_API.into(),
                namespace: "shop".into(),
                name: "web".into(),
            },
            generation,
            parents: vec![RouteParentStatus { parent, conditions }],
        }
    }

    fn since(entries: &[Value]) -> &Value {
        &entries[entries.len() - 1]["conditions"][0]["lastTransitionTime"]
    }

    #[test]
    fn status_that_is_up_to_date_is_not_written_again() {
        let first = wanted(true, 1).merged(&[], "2026-01-01T00:00:00Z").expect("nothing was said");
        assert_eq!(first[0]["controllerName"], GATEWAY_CONTROLLER);
        assert_eq!(wanted(true, 1).merged(&first, "2026-01-02T00:00:00Z"), None);
        // For a later generation of the route it is written again, with the same transition time.
        let second = wanted(true, 2).merged(&first, "2026-01-02T00:00:00Z").expect("a change");
        assert_eq!(second[0]["conditions"][0]["observedGeneration"], 2);
        assert_eq!(since(&second), "2026-01-01T00:00:00Z");
        let third = wanted(false, 2).merged(&second, "2026-01-03T00:00:00Z").expect("a change");
        assert_eq!(since(&third), "2026-01-03T00:00:00Z");
        // The entry of a parent that is no longer referenced is removed.
        let no_parents = RouteStatus { parents: Vec::new(), ..wanted(true, 3) };
        assert_eq!(no_parents.merged(&third, "2026-01-04T00:00:00Z"), Some(Vec::new()));
        assert_eq!(no_parents.merged(&[], "2026-01-04T00:00:00Z"), None);
    }

    #[test]
    fn entries_of_other_controllers_are_unchanged() {
        let other = json!({ "controllerName": "other.example/x", "parentRef": { "name": "gateway" },
            "conditions": [{ "type": "Accepted", "status": "True" }] });
        let current = [other.clone()];
        let first = wanted(true, 1).merged(&current, "2026-01-01T00:00:00Z").expect("a change");
        assert_eq!((first.len(), &first[0]), (2, &other));
        let foreign = json!({ "type": "example.net/Checked", "status": "True" });
        let mut current = first;
        current[1]["conditions"].as_array_mut().expect("conditions").push(foreign.clone());
        assert_eq!(wanted(true, 1).merged(&current, "2026-01-02T00:00:00Z"), None);
        let second = wanted(false, 1).merged(&current, "2026-01-02T00:00:00Z").expect("a change");
        assert_eq!(second[1]["conditions"][1], foreign);
        // Entries of other controllers have precedence.
        let many = vec![other; PARENTS_MAX];
        assert_eq!(wanted(true, 1).merged(&many, "2026-01-01T00:00:00Z"), None);
    }

    #[test]
    fn condition_for_a_later_generation_is_not_overwritten() {
        let later = wanted(true, 7).merged(&[], "2026-01-01T00:00:00Z").expect("nothing was said");
        assert_eq!(wanted(false, 6).merged(&later, "2026-01-02T00:00:00Z"), None);
    }
}
