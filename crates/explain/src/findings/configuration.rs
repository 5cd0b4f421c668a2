//! Findings about a held configuration and a gradual rollout.

use super::MeshFinding;
use strait_admin_api::{HeldConfiguration, HoldReplicas, HoldSharing};
use strait_base::codes::{self, Code};

const CATEGORY: &str = "mesh";

fn problem(code: &'static Code, fact: String) -> MeshFinding {
    MeshFinding::problem(CATEGORY, code, "configuration".to_owned(), fact)
}

/// Returns the finding about the hold of a configuration, or about a hold that was lost. `describe`
/// returns the facts about the active hold.
pub fn of_hold(
    held: Option<&HeldConfiguration>,
    lost: Option<&str>,
    replicas: &HoldReplicas,
    describe: impl FnOnce(&HeldConfiguration) -> String,
) -> Option<MeshFinding> {
    if let Some(fact) = lost {
        let fact = format!("the current objects are active: {fact}");
        return Some(problem(&codes::HOLD_LOST, fact));
    }
    if replicas.state == HoldSharing::ThisOne {
        let fact = replicas.fact.clone().unwrap_or_default();
        let is_problem = held.is_some();
        return Some(MeshFinding { is_problem, ..problem(&codes::HOLD_NOT_SHARED, fact) });
    }
    let held = held?;
    let code = if held.by_rollout { &codes::ROLLOUT_STOPPED } else { &codes::HELD };
    Some(MeshFinding { is_problem: held.by_rollout, ..problem(code, describe(held)) })
}

/// Returns the finding about a rollout that was lost for this reason.
pub fn of_lost_rollout(fact: &str) -> MeshFinding {
    problem(&codes::ROLLOUT_LOST, format!("all proxies receive the current objects: {fact}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stopped_rollout_and_lost_or_partial_hold_are_problems() {
        let found = |held: Option<bool>, lost: Option<&str>, state: HoldSharing| {
            let held = held
                .map(|by_rollout| HeldConfiguration { by_rollout, ..HeldConfiguration::default() });
            let replicas = HoldReplicas { state, fact: Some("no lease".to_owned()) };
            let found = of_hold(held.as_ref(), lost, &replicas, |_| "held by x".to_owned())?;
            let severity = if found.is_problem { "problem" } else { "note" };
            Some(format!("{severity} {}: {}", found.code, found.fact))
        };
        let all = || HoldSharing::All;
        assert_eq!(found(None, None, all()), None);
        assert_eq!(found(Some(false), None, all()).as_deref(), Some("note STR1070: held by x"));
        let stopped = found(Some(true), None, all()).expect("a finding");
        assert!(stopped.starts_with("problem ") && stopped.ends_with(": held by x"), "{stopped}");
        let lost = found(None, Some("unreadable"), all()).expect("a finding");
        assert!(lost.starts_with("problem STR1071") && lost.ends_with("unreadable"), "{lost}");
        let shared = |held| found(held, None, HoldSharing::ThisOne).expect("a finding");
        assert!(shared(Some(false)).starts_with("problem "));
        assert!(shared(None).starts_with("note ") && shared(None).ends_with("no lease"));
    }
}
