//! Findings of `strait check` about the CA: refused changes, a rotation in progress, roots that
//! expire.

use serde_json::Value;

use super::finding::{note, problem};
use crate::cli::output::text;
use strait_admin_api::{CertificateProblem, CertificateStatus, RootLife, RootStage, RotationPhase};
use strait_base::codes;

/// Returns the findings about the response of `/debug/certificates`.
pub(super) fn of_certificates(answer: &CertificateStatus) -> Vec<Value> {
    let mut found = Vec::new();
    let code_of = |trouble: &CertificateProblem| codes::find(&trouble.code);
    let code = answer.problem.as_ref().and_then(code_of);
    if let (Some(code), Some(trouble)) = (code, &answer.problem) {
        // A root that stays until it may be removed harms nothing.
        let line = if *code == codes::ROOT_GOES_EARLY { note } else { problem };
        found.push(line("process", code, "ca".into(), text(&trouble.message)));
    }
    for member in &answer.members {
        let Some(trouble) = &member.problem else { continue };
        let Some(code) = code_of(trouble) else { continue };
        // An operator removed this CA deliberately.
        let line = if *code == codes::MEMBER_CA_GONE { note } else { problem };
        found.push(line(
            "cluster",
            code,
            format!("cluster/{}", text(&member.member)),
            text(&trouble.message),
        ));
    }
    let rotation = &answer.rotation;
    let phase = rotation.phase.as_ref().filter(|phase| **phase != RotationPhase::Sign);
    if let Some(phase) = phase.filter(|_| code.is_none()) {
        let (number, next) = (text(&rotation.number), text(&rotation.next));
        let fact = format!("phase {number} of 4, {}: {next}", phase.as_str());
        found.push(note("process", &codes::ROTATION_RUNS, "ca".into(), fact));
    }
    found
}

/// Returns the finding about the expiry of a root of the CA.
pub(super) fn of_root(root: &RootLife) -> Option<Value> {
    let line = match root.stage {
        RootStage::Fifth => note,
        RootStage::Month | RootStage::Week | RootStage::Ended => problem,
        _ => return None,
    };
    let (subject, ends) = (text(&root.subject), text(&root.ends));
    let fact = format!("root {subject} of the CA expires at {ends}");
    Some(line("process", &codes::ROOT_ENDS, "ca".into(), fact))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::cli::output::tests::typed;

    #[test]
    fn refused_step_is_a_problem_and_rotation_is_a_note() {
        let certificates = |problem: Value, phase: Value| {
            let rotation = json!({ "phase": phase, "number": 3, "next": "wait" });
            let found =
                of_certificates(&typed(json!({ "problem": problem, "rotation": rotation })));
            let short = |row: &Value| format!("{} {}", text(&row["severity"]), text(&row["code"]));
            found.iter().map(short).collect::<Vec<_>>()
        };
        let trouble = |code: &str| json!({ "code": code, "message": "a fact" });
        assert_eq!(certificates(trouble("STR0550"), json!("distribute")), ["problem STR0550"]);
        assert_eq!(certificates(trouble("STR0551"), json!("wait")), ["note STR0551"]);
        assert_eq!(certificates(trouble("STR0703"), Value::Null), ["problem STR0703"]);
        assert_eq!(certificates(Value::Null, json!("wait")), ["note STR0553"]);
        assert!(
            certificates(Value::Null, json!("sign")).is_empty(),
            "a root of another mesh may stay permanently"
        );
        assert!(certificates(Value::Null, Value::Null).is_empty());
        assert!(
            of_certificates(&CertificateStatus::default()).is_empty(),
            "an older control plane"
        );
        // CAs of single members.
        let members = json!({ "members": [
            { "member": "east", "problem": trouble("STR0555") },
            { "member": "north", "problem": null },
            { "member": "west", "problem": trouble("STR0556") },
        ] });
        let certificates = of_certificates(&typed(members));
        let short = |row: &Value| {
            format!("{} {} {}", text(&row["severity"]), text(&row["code"]), text(&row["object"]))
        };
        let certificates: Vec<_> = certificates.iter().map(short).collect();
        assert_eq!(certificates, ["problem STR0555 cluster/east", "note STR0556 cluster/west"]);
    }
}
