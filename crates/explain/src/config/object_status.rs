//! What objects of Istio's kinds say of themselves in their status: what `/debug/config` tells of each, as conditions.

use super::route_status::shortened;
use super::{ConfigQuery, ConfigView};
use crate::standing::{ConfigState, ObjectStanding};
use strait_model::{
    ISTIO_NETWORKING, ISTIO_SECURITY, ISTIO_TELEMETRY, ObjectKey, ObjectStatus, StatusCondition,
};

/// Groups whose objects have the status of which this tells.
const GROUPS: [&str; 3] = [ISTIO_NETWORKING, ISTIO_SECURITY, ISTIO_TELEMETRY];

impl ConfigView<'_> {
    /// What the objects of Istio's kinds shall say of themselves. Those are left out that say it already, and those that no
    /// API server has made.
    pub fn object_statuses(&self) -> Vec<ObjectStatus> {
        let states =
            self.keyed_states(&ConfigQuery::default(), |key| GROUPS.contains(&&*key.group));
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

/// Whether it can be followed, and whether all of it is.
fn conditions(state: &ConfigState) -> [StatusCondition; 2] {
    // Of a policy a part counts where the rest can't be read; of other objects, where it has no effect.
    let is_policy = matches!(
        &*state.kind,
        "AuthorizationPolicy" | "PeerAuthentication" | "RequestAuthentication"
    );
    let (reason, is_read) = match state.state {
        ObjectStanding::InForce => ("InForce", true),
        ObjectStanding::Partly => ("PartlyInForce", !is_policy),
        ObjectStanding::Shadowed => ("Shadowed", true),
        ObjectStanding::Refused => ("Refused", false),
        ObjectStanding::Unused => ("NotUsed", true),
        ObjectStanding::Waiting => ("OnHold", true),
    };
    let told = state.reasons.iter().map(|one| match &*one.path {
        "" => format!("{}: {}", one.code, one.text),
        path => format!("{}: {path}: {}", one.code, one.text),
    });
    let message = shortened(told.collect::<Vec<_>>().join("; "));
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
    fn conditions_say_whether_it_is_read_and_whether_all_of_it_holds() {
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
