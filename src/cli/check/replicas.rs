//! Findings of `strait check` about the replicas of the control plane.

use serde_json::Value;

use super::finding::problem;
use crate::cli::output::text;
use strait_admin_api::{Problem, ReplicaState, Replicas};
use strait_base::codes;

/// Returns the findings about the response of `/debug/replicas`.
pub(super) fn findings(answer: &Replicas) -> Vec<Value> {
    let code = &codes::REPLICA_MISSING;
    let missing = answer.replicas.iter().filter(|row| row.state == ReplicaState::Missing);
    let found = missing.map(|row| {
        let object = format!("replica/{}", text(&row.name));
        let (address, reason) = (text(&row.address), text(&row.reason));
        problem(
            "process",
            code,
            object,
            format!("it is missing from responses ({address}): {reason}"),
        )
    });
    let mut found: Vec<Value> = found.collect();
    if let (Some(reason), []) = (answer.problem.as_deref(), &*found) {
        found.push(problem("process", code, "replicas".into(), reason));
    }
    for row in &answer.replicas {
        let object = format!("replica/{}", text(&row.name));
        let differ = |one: &Problem| {
            let code = codes::find(&one.code).unwrap_or(&codes::REPLICAS_DIFFER);
            problem("process", code, object.clone(), text(&one.text))
        };
        found.extend(row.differences.iter().map(differ));
    }
    found
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::cli::output::tests::typed;

    #[test]
    fn replicas_that_do_not_answer_or_differ_are_problems() {
        let answer = json!({ "problem": null, "replicas": [
            { "name": "strait-a", "state": "self" },
            { "name": "strait-b", "state": "answers", "address": "10.0.0.2:15012",
              "differences": [{ "code": "STR0812", "text": "cluster c1 is live in strait-a, and stale in strait-b" }] },
            { "name": "strait-c", "state": "missing", "address": "10.0.0.3:15012", "reason": "refused" },
        ]});
        let found = findings(&typed(answer));
        assert_eq!(found.len(), 2);
        assert_eq!(
            (&found[1]["code"], &found[1]["object"]),
            (&json!("STR0812"), &json!("replica/strait-b"))
        );
        assert_eq!(found[0]["object"], "replica/strait-c");
        assert_eq!(found[0]["fact"], "it is missing from responses (10.0.0.3:15012): refused");
        assert!(findings(&Replicas::default()).is_empty(), "an older control plane");
        let unknown = findings(&typed(json!({ "problem": "forbidden", "replicas": [] })));
        assert_eq!((unknown.len(), &unknown[0]["object"]), (1, &json!("replicas")));
    }
}
