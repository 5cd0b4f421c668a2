//! Findings of `strait check` about the replicas of the control plane.

use serde_json::Value;

use super::finding::problem;
use crate::cli::output::{items, text};
use strait_base::codes;

/// Returns the findings about the response of `/debug/replicas`.
pub(super) fn findings(answer: &Value) -> Vec<Value> {
    let code = &codes::REPLICA_MISSING;
    let missing = items(&answer["replicas"]).iter().filter(|row| row["state"] == "missing");
    let found = missing.map(|row| {
        let object = format!("replica/{}", text(&row["name"]));
        let (address, reason) = (text(&row["address"]), text(&row["reason"]));
        problem("process", code, object, format!("responses lack it ({address}): {reason}"))
    });
    let mut found: Vec<Value> = found.collect();
    if let (Some(reason), []) = (answer["problem"].as_str(), &*found) {
        found.push(problem("process", code, "replicas".into(), reason));
    }
    found
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn replica_that_does_not_answer_is_a_problem() {
        let answer = json!({ "problem": null, "replicas": [
            { "name": "strait-a", "state": "self" },
            { "name": "strait-b", "state": "answers", "address": "10.0.0.2:15012" },
            { "name": "strait-c", "state": "missing", "address": "10.0.0.3:15012", "reason": "refused" },
        ]});
        let found = findings(&answer);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0]["object"], "replica/strait-c");
        assert_eq!(found[0]["fact"], "responses lack it (10.0.0.3:15012): refused");
        assert!(findings(&Value::Null).is_empty(), "an older control plane");
        let unknown = findings(&json!({ "problem": "forbidden", "replicas": [] }));
        assert_eq!((unknown.len(), &unknown[0]["object"]), (1, &json!("replicas")));
    }
}
