//! Findings of `strait check` about the CA: refused changes, a rotation in progress, roots that
//! expire.

use serde_json::Value;

use super::finding::{note, problem};
use crate::cli::output::{items, text};
use strait_base::codes;

/// Returns the findings about the response of `/debug/certificates`.
pub(super) fn of_certificates(answer: &Value) -> Vec<Value> {
    let (mut found, trouble) = (Vec::new(), &answer["problem"]);
    let code = trouble["code"].as_str().and_then(codes::find);
    if let Some(code) = code {
        // A root that stays until it may be removed harms nothing.
        let line = if *code == codes::ROOT_GOES_EARLY { note } else { problem };
        found.push(line("process", code, "ca".into(), text(&trouble["message"])));
    }
    for member in items(&answer["members"]) {
        let trouble = &member["problem"];
        let Some(code) = trouble["code"].as_str().and_then(codes::find) else { continue };
        // An operator removed this CA deliberately.
        let line = if *code == codes::MEMBER_CA_GONE { note } else { problem };
        found.push(line(
            "cluster",
            code,
            format!("cluster/{}", text(&member["member"])),
            text(&trouble["message"]),
        ));
    }
    let rotation = &answer["rotation"];
    if let Some(phase @ ("distribute" | "wait" | "withdraw")) = rotation["phase"].as_str()
        && code.is_none()
    {
        let (number, next) = (text(&rotation["number"]), text(&rotation["next"]));
        let fact = format!("phase {number} of 4, {phase}: {next}");
        found.push(note("process", &codes::ROTATION_RUNS, "ca".into(), fact));
    }
    found
}

/// Returns the finding about the expiry of a root of the CA.
pub(super) fn of_root(root: &Value) -> Option<Value> {
    let line = match root["stage"].as_str()? {
        "fifth" => note,
        "month" | "week" | "ended" => problem,
        _ => return None,
    };
    let (subject, ends) = (text(&root["subject"]), text(&root["ends"]));
    let fact = format!("root {subject} of the CA expires at {ends}");
    Some(line("process", &codes::ROOT_ENDS, "ca".into(), fact))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn refused_step_is_a_problem_and_rotation_is_a_note() {
        let found = |problem: Value, phase: Value| {
            let rotation = json!({ "phase": phase, "number": 3, "next": "wait" });
            let found = of_certificates(&json!({ "problem": problem, "rotation": rotation }));
            let short = |row: &Value| format!("{} {}", text(&row["severity"]), text(&row["code"]));
            found.iter().map(short).collect::<Vec<_>>()
        };
        let trouble = |code: &str| json!({ "code": code, "message": "a fact" });
        assert_eq!(found(trouble("STR0550"), json!("distribute")), ["problem STR0550"]);
        assert_eq!(found(trouble("STR0551"), json!("wait")), ["note STR0551"]);
        assert_eq!(found(trouble("STR0703"), Value::Null), ["problem STR0703"]);
        assert_eq!(found(Value::Null, json!("wait")), ["note STR0553"]);
        assert!(
            found(Value::Null, json!("sign")).is_empty(),
            "a root of another mesh may stay permanently"
        );
        assert!(found(Value::Null, Value::Null).is_empty());
        assert!(of_certificates(&Value::Null).is_empty(), "an older control plane");
        // CAs of single members.
        let members = json!({ "members": [
            { "member": "east", "problem": trouble("STR0555") },
            { "member": "north", "problem": null },
            { "member": "west", "problem": trouble("STR0556") },
        ] });
        let found = of_certificates(&members);
        let short = |row: &Value| {
            format!("{} {} {}", text(&row["severity"]), text(&row["code"]), text(&row["object"]))
        };
        let found: Vec<_> = found.iter().map(short).collect();
        assert_eq!(found, ["problem STR0555 cluster/east", "note STR0556 cluster/west"]);
    }
}
