//! Statuses of objects of Istio's kinds: the result of `/debug/config` as conditions.

use super::route_status::shortened;
use super::{ConfigQuery, ConfigView};
use crate::standing::{ConfigState, ObjectStanding};
use strait_model::{CONFIG_KINDS, ObjectKey, ObjectStatus, StatusCondition, StatusField};

impl ConfigView<'_> {
    /// Returns the statuses that objects of Istio's kinds should have. Objects that already have
    /// this status, and objects that do not come from an API server, are left out.
    pub fn object_statuses(&self) -> Vec<ObjectStatus> {
        let has_conditions = |key: &ObjectKey| StatusField::of(key) == StatusField::Conditions;
        let states = self.keyed_states(&ConfigQuery::default(), has_conditions);
        let statuses =
            states.into_iter().filter_map(|(key, state)| self.object_status(key, &state));
        statuses.collect()
    }

    fn object_status(&self, key: ObjectKey, state: &ConfigState) -> Option<ObjectStatus> {
        let object = self.reports.objects.get(&key)?.to_value();
        let generation = object["metadata"]["generation"].as_i64()?;
        let status = ObjectStatus { key, generation, conditions: conditions(state).into() };
        status.differs(&object["status"]).then_some(status)
    }
}

/// Returns the conditions: whether the object is accepted, and whether all of it is active.
fn conditions(state: &ConfigState) -> [StatusCondition; 2] {
    // If a policy is partly active, its other parts are unreadable; if another object is, its other
    // parts have no effect.
    let is_policy = CONFIG_KINDS.iter().any(|one| one.restricts() && one.kind == state.kind);
    let (reason, is_read) = match state.state {
        ObjectStanding::InForce => ("InForce", true),
        ObjectStanding::Partly => ("PartlyInForce", !is_policy),
        ObjectStanding::Shadowed => ("Shadowed", true),
        ObjectStanding::Refused => ("Refused", false),
        ObjectStanding::Unused => ("NotUsed", true),
        ObjectStanding::Waiting => ("OnHold", true),
    };
    let named_reasons = state.reasons.iter().map(|one| match &*one.path {
        "" => format!("{}: {}", one.code, one.text),
        path => format!("{}: {path}: {}", one.code, one.text),
    });
    let message = shortened(named_reasons.collect::<Vec<_>>().join("; "));
    let why = if is_read { String::new() } else { message.clone() };
    let condition = |kind, is_true, message| StatusCondition { kind, is_true, reason, message };
    [
        condition("Accepted", is_read, why),
        condition("Reconciled", state.state == ObjectStanding::InForce, message),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::standing::ConfigReason;
    use strait_base::codes;

    fn message_of(kind: &str, state: ObjectStanding) -> String {
        let reason = ConfigReason::new(&codes::TRAFFIC_MALFORMED, "spec.http", "no list");
        let state = ConfigState {
            cluster: None,
            kind: kind.to_owned(),
            namespace: "shop".to_owned(),
            name: "web".to_owned(),
            store: "config",
            state,
            proxies: 0,
            reasons: vec![reason],
        };
        let [accepted, reconciled] = conditions(&state);
        assert_eq!(accepted.reason, reconciled.reason);
        assert!(ObjectStatus::REASONS.contains(&accepted.reason), "by which it is known as ours");
        assert_eq!(reconciled.message, "STR1001: spec.http: no list");
        assert_eq!(accepted.message.is_empty(), accepted.is_true);
        format!("{} {} {}", accepted.is_true, reconciled.is_true, accepted.reason)
    }

    #[test]
    fn conditions_state_acceptance_and_complete_effect() {
        for (kind, state, expected) in [
            ("VirtualService", ObjectStanding::InForce, "true true InForce"),
            ("VirtualService", ObjectStanding::Partly, "true false PartlyInForce"),
            ("AuthorizationPolicy", ObjectStanding::Partly, "false false PartlyInForce"),
            ("PeerAuthentication", ObjectStanding::Shadowed, "true false Shadowed"),
            ("DestinationRule", ObjectStanding::Refused, "false false Refused"),
            ("Gateway", ObjectStanding::Unused, "true false NotUsed"),
            ("Sidecar", ObjectStanding::Waiting, "true false OnHold"),
        ] {
            assert_eq!(message_of(kind, state), expected, "{kind}");
        }
    }
}
