//! The status that is written into objects. Pure. (Istio, `IstioStatus`, `IstioCondition`.)
//!
//! The conditions of an object of Istio are one list, into which every controller writes its own
//! condition types. A condition of Strait is recognized by its reason, which is one of
//! [`ObjectStatus::REASONS`]. If another controller uses the same type, Strait's condition has a
//! prefix.

use serde_json::{Value, json};

use super::status_condition::StatusCondition;
use super::{IngressStatus, ObjectKey, RouteStatus};

/// The prefix of a condition type that another controller already uses.
const PREFIX: &str = "strait.dev/";

/// The status that must be written into an object.
#[derive(Debug, Clone, PartialEq)]
pub enum WantedStatus {
    /// The status of a route of the Gateway API, for each parent.
    Route(RouteStatus),
    /// The status of an object of Istio.
    Object(ObjectStatus),
    /// The status of an Ingress, with its addresses.
    Ingress(IngressStatus),
}

/// The status of an object of Istio.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectStatus {
    /// The key of the object.
    pub key: ObjectKey,
    /// The generation of the object to which it applies.
    pub generation: i64,
    /// The conditions, at most one per type.
    pub conditions: Vec<StatusCondition>,
}

impl WantedStatus {
    /// Returns the key of the object.
    pub fn key(&self) -> &ObjectKey {
        match self {
            Self::Route(route) => &route.key,
            Self::Object(object) => &object.key,
            Self::Ingress(ingress) => &ingress.key,
        }
    }

    /// Returns the generation of the object to which it applies.
    pub fn generation(&self) -> i64 {
        match self {
            Self::Route(route) => route.generation,
            Self::Object(object) => object.generation,
            Self::Ingress(ingress) => ingress.generation,
        }
    }

    /// Returns the change to merge into a status, with the time `now` in RFC 3339, or `None` if the
    /// status is up to date. Entries of other controllers are unchanged.
    pub fn change(&self, status: &Value, now: &str) -> Option<Value> {
        let current = |field: &str| status[field].as_array().map(Vec::as_slice).unwrap_or_default();
        match self {
            Self::Route(route) => {
                route.merged(current("parents"), now).map(|parents| json!({ "parents": parents }))
            }
            Self::Object(object) => {
                let conditions = object.merged(current("conditions"), now)?;
                Some(json!({ "conditions": conditions }))
            }
            Self::Ingress(ingress) => {
                ingress.merged(status).map(|balancer| json!({ "loadBalancer": balancer }))
            }
        }
    }
}

impl ObjectStatus {
    /// The reasons of Strait's conditions, by which they are recognized.
    pub const REASONS: [&str; 6] =
        ["InForce", "PartlyInForce", "Shadowed", "Refused", "NotUsed", "OnHold"];

    /// Returns whether the status in the object is out of date.
    pub fn differs(&self, status: &Value) -> bool {
        let current = status["conditions"].as_array().map(Vec::as_slice).unwrap_or_default();
        self.merged(current, "").is_some()
    }

    /// Returns the conditions that replace `current`, or `None` if they are up to date.
    fn merged(&self, current: &[Value], now: &str) -> Option<Vec<Value>> {
        let mut merged = current.to_vec();
        for desired in &self.conditions {
            let name = condition_type(current, desired.kind);
            let existing = current.iter().find(|condition| condition["type"] == *name);
            let updated = desired.written(&name, self.generation, existing, now);
            // A condition with the prefix replaces one without.
            merged.retain(|condition| *name == *desired.kind || !is_ours(condition, desired.kind));
            match merged.iter_mut().find(|condition| condition["type"] == *name) {
                Some(existing) => *existing = updated,
                None => merged.push(updated),
            }
        }
        (merged != current).then_some(merged)
    }
}

/// Returns whether a condition of this type belongs to Strait.
fn is_ours(condition: &Value, kind: &str) -> bool {
    let reason = condition["reason"].as_str().unwrap_or_default();
    condition["type"] == kind && ObjectStatus::REASONS.contains(&reason)
}

/// Returns the type of Strait's condition in this list. A prefix is never removed again, because
/// the other controller may return.
fn condition_type(conditions: &[Value], kind: &str) -> String {
    let prefixed = format!("{PREFIX}{kind}");
    let is_foreign = |condition: &Value| {
        condition["type"] == *prefixed || condition["type"] == kind && !is_ours(condition, kind)
    };
    if conditions.iter().any(is_foreign) { prefixed } else { kind.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ISTIO_SECURITY;

    fn wanted(is_true: bool, generation: i64) -> WantedStatus {
        let reason = if is_true { "InForce" } else { "Refused" };
        let condition = |kind| StatusCondition { kind, is_true, reason, message: "why".to_owned() };
        WantedStatus::Object(ObjectStatus {
            key: ObjectKey {
                kind: "AuthorizationPolicy".into(),
                group: ISTIO_SECURITY.into(),
                namespace: "shop".into(),
                name: "web".into(),
            },
            generation,
            conditions: vec![condition("Accepted"), condition("Reconciled")],
        })
    }

    const DAYS: [&str; 3] =
        ["2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z", "2026-01-03T00:00:00Z"];

    /// Formats the types of conditions with their status.
    fn condition_letters(status: &Value) -> String {
        let all = status["conditions"].as_array().expect("conditions").iter();
        let text = |one: &Value| one.as_str().unwrap_or_default().to_owned();
        let all = all.map(|one| format!("{}={}", text(&one["type"]), text(&one["status"])));
        all.collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn status_that_is_up_to_date_is_not_written_again() {
        let first = wanted(true, 1).change(&Value::Null, DAYS[0]).expect("nothing was said");
        assert_eq!(condition_letters(&first), "Accepted=True Reconciled=True");
        assert_eq!(wanted(true, 1).change(&first, DAYS[1]), None);
        let second = wanted(true, 2).change(&first, DAYS[1]).expect("it is another form");
        let field_of = |status: &Value, field: &str| status["conditions"][0][field].clone();
        assert_eq!(field_of(&second, "observedGeneration"), 2);
        assert_eq!(field_of(&second, "lastTransitionTime"), DAYS[0]);
        let third = wanted(false, 2).change(&second, DAYS[2]).expect("it is otherwise");
        assert_eq!(field_of(&third, "lastTransitionTime"), DAYS[2]);
        assert_eq!(wanted(true, 1).change(&third, DAYS[2]), None, "that is about a later form");
    }

    #[test]
    fn conditions_of_other_controllers_are_unchanged() {
        let foreign = json!({ "type": "Reconciled", "status": "True", "reason": "",
            "message": "5/5 proxies up to date." });
        let ztunnel_condition =
            json!({ "type": "ZtunnelAccepted", "status": "True", "reason": "Accepted" });
        let current =
            json!({ "conditions": [foreign, ztunnel_condition], "validationMessages": [{}] });
        let first = wanted(false, 1).change(&current, DAYS[0]).expect("nothing of ours is there");
        let expected =
            "Reconciled=True ZtunnelAccepted=True Accepted=False strait.dev/Reconciled=False";
        assert_eq!(condition_letters(&first), expected);
        assert_eq!(first["validationMessages"], Value::Null, "nothing else is written");
        assert_eq!(wanted(false, 1).change(&first, DAYS[1]), None);
        // The other conditions are removed: the prefixed type remains.
        let all = first["conditions"].as_array().expect("conditions");
        let without_foreign = json!({ "conditions": all[1..] });
        assert_eq!(wanted(false, 1).change(&without_foreign, DAYS[1]), None);
        // Another controller takes a type of Strait: a prefixed condition is added.
        let foreign_accepted =
            wanted(false, 1).change(&Value::Null, DAYS[0]).expect("nothing was said");
        let mut foreign_accepted =
            foreign_accepted["conditions"].as_array().expect("conditions").clone();
        foreign_accepted[0] = json!({ "type": "Accepted", "status": "True", "reason": "Accepted" });
        let after = wanted(false, 1).change(&json!({ "conditions": foreign_accepted }), DAYS[1]);
        let expected = "Accepted=True Reconciled=False strait.dev/Accepted=False";
        assert_eq!(condition_letters(&after.expect("ours is gone")), expected);
    }

    #[test]
    fn duplicate_condition_is_removed() {
        let ours = |name: &str| json!({ "type": name, "status": "True", "reason": "InForce" });
        let both = json!({ "conditions": [ours("Accepted"), ours("strait.dev/Accepted")] });
        let after = wanted(true, 1).change(&both, DAYS[0]).expect("one too many");
        assert_eq!(condition_letters(&after), "strait.dev/Accepted=True Reconciled=True");
    }
}
