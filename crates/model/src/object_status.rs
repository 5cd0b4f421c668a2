//! What objects of Istio's kinds say of themselves in their status. Pure. (Istio, `IstioStatus`, `IstioCondition`.)
//!
//! The conditions of such an object are one list, in which every controller writes under names of its own choice. Ours are
//! told from another's of the same name by their reasons, which are those of [`ObjectStatus::REASONS`]. Where another has the
//! name, ours has a prefix.

use serde_json::{Value, json};

use super::status_condition::StatusCondition;
use super::{IngressStatus, ObjectKey, RouteStatus};

/// What stands before the name of a condition of ours that another controller has for one of its own.
const PREFIX: &str = "strait.dev/";

/// What an object shall say of itself.
#[derive(Debug, Clone, PartialEq)]
pub enum WantedStatus {
    /// A route of the Gateway API, at each of its parents.
    Route(RouteStatus),
    /// An object of a kind of Istio's.
    Object(ObjectStatus),
    /// An Ingress, which says where it is reached.
    Ingress(IngressStatus),
}

/// What an object of a kind of Istio's shall say of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectStatus {
    /// Which object.
    pub key: ObjectKey,
    /// The generation of it that this is about.
    pub generation: i64,
    /// One of each kind.
    pub conditions: Vec<StatusCondition>,
}

impl WantedStatus {
    /// Which object.
    pub fn key(&self) -> &ObjectKey {
        match self {
            Self::Route(route) => &route.key,
            Self::Object(object) => &object.key,
            Self::Ingress(ingress) => &ingress.key,
        }
    }

    /// The generation of it that this is about.
    pub fn generation(&self) -> i64 {
        match self {
            Self::Route(route) => route.generation,
            Self::Object(object) => object.generation,
            Self::Ingress(ingress) => ingress.generation,
        }
    }

    /// What is to be merged into a status, at a time in RFC 3339; `None` where all is said already. What others say in it
    /// stays as it is.
    pub fn change(&self, status: &Value, now: &str) -> Option<Value> {
        let held = |field: &str| status[field].as_array().map(Vec::as_slice).unwrap_or_default();
        match self {
            Self::Route(route) => {
                route.merged(held("parents"), now).map(|parents| json!({ "parents": parents }))
            }
            Self::Object(object) => {
                let conditions = object.merged(held("conditions"), now)?;
                Some(json!({ "conditions": conditions }))
            }
            Self::Ingress(ingress) => {
                ingress.merged(status).map(|balancer| json!({ "loadBalancer": balancer }))
            }
        }
    }
}

impl ObjectStatus {
    /// The reasons of our conditions, by which they are known.
    pub const REASONS: [&str; 6] =
        ["InForce", "PartlyInForce", "Shadowed", "Refused", "NotUsed", "OnHold"];

    /// Whether it says something that a status doesn't say yet.
    pub fn differs(&self, status: &Value) -> bool {
        let held = status["conditions"].as_array().map(Vec::as_slice).unwrap_or_default();
        self.merged(held, "").is_some()
    }

    /// The conditions that `held` is to be replaced by; `None` where all is said already.
    fn merged(&self, held: &[Value], now: &str) -> Option<Vec<Value>> {
        let mut merged = held.to_vec();
        for wanted in &self.conditions {
            let name = name_among(held, wanted.kind);
            let before = held.iter().find(|one| one["type"] == *name);
            let said = wanted.written(&name, self.generation, before, now);
            // With a prefix it stands in place of one without.
            merged.retain(|one| *name == *wanted.kind || !is_ours(one, wanted.kind));
            match merged.iter_mut().find(|one| one["type"] == *name) {
                Some(before) => *before = said,
                None => merged.push(said),
            }
        }
        (merged != held).then_some(merged)
    }
}

/// Whether a condition of that name is ours.
fn is_ours(condition: &Value, kind: &str) -> bool {
    let reason = condition["reason"].as_str().unwrap_or_default();
    condition["type"] == kind && ObjectStatus::REASONS.contains(&reason)
}

/// How a condition of ours is called among these. Once it has a prefix it keeps it: who took the plain name may come back.
fn name_among(held: &[Value], kind: &str) -> String {
    let prefixed = format!("{PREFIX}{kind}");
    let is_taken =
        |one: &Value| one["type"] == *prefixed || one["type"] == kind && !is_ours(one, kind);
    if held.iter().any(is_taken) { prefixed } else { kind.to_owned() }
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

    /// The types of conditions with the first letter of their status.
    fn condition_letters(status: &Value) -> String {
        let all = status["conditions"].as_array().expect("conditions").iter();
        let text = |one: &Value| one.as_str().unwrap_or_default().to_owned();
        let all = all.map(|one| format!("{}={}", text(&one["type"]), text(&one["status"])));
        all.collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn a_status_that_is_said_already_is_not_said_again() {
        let first = wanted(true, 1).change(&Value::Null, DAYS[0]).expect("nothing was said");
        assert_eq!(condition_letters(&first), "Accepted=True Reconciled=True");
        assert_eq!(wanted(true, 1).change(&first, DAYS[1]), None);
        let second = wanted(true, 2).change(&first, DAYS[1]).expect("it is another form");
        let of = |status: &Value, field: &str| status["conditions"][0][field].clone();
        assert_eq!(of(&second, "observedGeneration"), 2);
        assert_eq!(of(&second, "lastTransitionTime"), DAYS[0]);
        let third = wanted(false, 2).change(&second, DAYS[2]).expect("it is otherwise");
        assert_eq!(of(&third, "lastTransitionTime"), DAYS[2]);
        assert_eq!(wanted(true, 1).change(&third, DAYS[2]), None, "that is about a later form");
    }

    #[test]
    fn what_others_say_stays_and_has_its_name() {
        let theirs = json!({ "type": "Reconciled", "status": "True", "reason": "",
            "message": "5/5 proxies up to date." });
        let of_mesh = json!({ "type": "ZtunnelAccepted", "status": "True", "reason": "Accepted" });
        let held = json!({ "conditions": [theirs, of_mesh], "validationMessages": [{}] });
        let first = wanted(false, 1).change(&held, DAYS[0]).expect("nothing of ours is there");
        let expected =
            "Reconciled=True ZtunnelAccepted=True Accepted=False strait.dev/Reconciled=False";
        assert_eq!(condition_letters(&first), expected);
        assert_eq!(first["validationMessages"], Value::Null, "nothing else is written");
        assert_eq!(wanted(false, 1).change(&first, DAYS[1]), None);
        // They leave: the name that was given stays.
        let all = first["conditions"].as_array().expect("conditions");
        let left = json!({ "conditions": all[1..] });
        assert_eq!(wanted(false, 1).change(&left, DAYS[1]), None);
        // They take a name that we have: there is one of ours afterwards.
        let taken = wanted(false, 1).change(&Value::Null, DAYS[0]).expect("nothing was said");
        let mut taken = taken["conditions"].as_array().expect("conditions").clone();
        taken[0] = json!({ "type": "Accepted", "status": "True", "reason": "Accepted" });
        let after = wanted(false, 1).change(&json!({ "conditions": taken }), DAYS[1]);
        let expected = "Accepted=True Reconciled=False strait.dev/Accepted=False";
        assert_eq!(condition_letters(&after.expect("ours is gone")), expected);
    }

    #[test]
    fn of_one_condition_there_is_one() {
        let ours = |name: &str| json!({ "type": name, "status": "True", "reason": "InForce" });
        let both = json!({ "conditions": [ours("Accepted"), ours("strait.dev/Accepted")] });
        let after = wanted(true, 1).change(&both, DAYS[0]).expect("one too many");
        assert_eq!(condition_letters(&after), "strait.dev/Accepted=True Reconciled=True");
    }
}
