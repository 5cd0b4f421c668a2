//! Findings about the CA: refused changes, a rotation in progress, roots that expire.

use super::{MeshFinding, or_none};
use strait_admin_api::{CertificateProblem, CertificateStatus, RootLife, RootStage, RotationPhase};
use strait_base::codes;

/// Returns the findings about the response of `/debug/certificates`.
pub fn of_certificates(answer: &CertificateStatus) -> Vec<MeshFinding> {
    let mut found = Vec::new();
    let code_of = |trouble: &CertificateProblem| codes::find(&trouble.code);
    let code = answer.problem.as_ref().and_then(code_of);
    if let (Some(code), Some(trouble)) = (code, &answer.problem) {
        // A root that stays until it may be removed harms nothing.
        let is_problem = *code != codes::ROOT_GOES_EARLY;
        let finding = MeshFinding::problem("process", code, "ca".into(), trouble.message.clone());
        found.push(MeshFinding { is_problem, ..finding });
    }
    for member in &answer.members {
        let Some(trouble) = &member.problem else { continue };
        let Some(code) = code_of(trouble) else { continue };
        // An operator removed this CA deliberately.
        let is_problem = *code != codes::MEMBER_CA_GONE;
        let object = format!("cluster/{}", or_none(&member.member));
        let finding = MeshFinding::problem("clusters", code, object, trouble.message.clone());
        found.push(MeshFinding { is_problem, ..finding });
    }
    let ends = |object: String, what: &str, expires: &str| {
        let fact = format!("{what} expires at {expires} and has not been renewed");
        let category = if object.starts_with("cluster/") { "clusters" } else { "process" };
        MeshFinding::problem(category, &codes::CERTIFICATE_ENDS, object, fact)
    };
    let has_expired = code.is_some_and(|code| *code == codes::CERTIFICATE_TIME);
    if answer.serving.ends_soon && !has_expired {
        let what = "the serving certificate";
        found.push(ends("process".to_owned(), what, &answer.serving.expires));
    }
    if let Some(authority) = answer.authority.as_ref().filter(|authority| authority.ends_soon) {
        found.push(ends("ca".to_owned(), "the signing certificate of the CA", &authority.expires));
    }
    for member in answer.members.iter().filter(|member| member.ends_soon) {
        let object = format!("cluster/{}", or_none(&member.member));
        let expires = or_none(member.expires.as_deref().unwrap_or_default());
        found.push(ends(object, "the signing certificate of its CA", expires));
    }
    let rotation = &answer.rotation;
    let phase = rotation.phase.as_ref().filter(|phase| **phase != RotationPhase::Sign);
    if let Some(phase) = phase.filter(|_| code.is_none()) {
        let number = rotation.number.map(|number| number.to_string()).unwrap_or_default();
        let next = or_none(rotation.next.as_deref().unwrap_or_default());
        let fact = format!("phase {} of 4, {}: {next}", or_none(&number), phase.as_str());
        found.push(MeshFinding::note("process", &codes::ROTATION_RUNS, "ca".into(), fact));
    }
    found
}

/// Returns the finding about the expiry of a root of the CA.
pub fn of_root(root: &RootLife) -> Option<MeshFinding> {
    let is_problem = match root.stage {
        RootStage::Fifth => false,
        RootStage::Month | RootStage::Week | RootStage::Ended => true,
        _ => return None,
    };
    let fact = format!("root {} of the CA expires at {}", or_none(&root.subject), root.ends);
    let finding = MeshFinding::problem("process", &codes::ROOT_ENDS, "ca".into(), fact);
    Some(MeshFinding { is_problem, ..finding })
}

#[cfg(test)]
mod tests {
    use serde::de::DeserializeOwned;
    use serde_json::{Value, json};

    use super::*;

    fn typed<T: DeserializeOwned>(value: Value) -> T {
        serde_json::from_value(value).expect("a response of the admin API")
    }

    fn severity(finding: &MeshFinding) -> &'static str {
        if finding.is_problem { "problem" } else { "note" }
    }

    #[test]
    fn refused_step_is_a_problem_and_rotation_is_a_note() {
        let certificates = |problem: Value, phase: Value| {
            let rotation = json!({ "phase": phase, "number": 3, "next": "wait" });
            let found =
                of_certificates(&typed(json!({ "problem": problem, "rotation": rotation })));
            let short = |row: &MeshFinding| format!("{} {}", severity(row), row.code);
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
        let short = |row: &MeshFinding| format!("{} {} {}", severity(row), row.code, row.object);
        let certificates: Vec<_> = certificates.iter().map(short).collect();
        assert_eq!(certificates, ["problem STR0555 cluster/east", "note STR0556 cluster/west"]);
    }

    #[test]
    fn certificate_that_ends_soon_is_a_problem_until_it_has_expired() {
        let soon = json!({ "expires": "2026-12-01T00:00:00Z", "endsSoon": true });
        let found = |more: Value| {
            let mut answer = json!({ "serving": soon.clone(), "authority": soon.clone() });
            answer.as_object_mut().expect("made so").extend(more.as_object().cloned().expect("so"));
            let found = of_certificates(&typed(answer));
            let short =
                |row: &MeshFinding| format!("{} {} {}", severity(row), row.code, row.object);
            found.iter().map(short).collect::<Vec<_>>()
        };
        let all = ["problem STR0724 process", "problem STR0724 ca"];
        assert_eq!(found(json!({})), all);
        let expired = json!({ "problem": { "code": "STR0704", "message": "a fact" } });
        assert_eq!(found(expired), ["problem STR0704 ca", "problem STR0724 ca"]);
        let member =
            json!({ "member": "east", "expires": "2026-12-01T00:00:00Z", "endsSoon": true });
        let found = found(json!({ "serving": {}, "authority": null, "members": [member] }));
        assert_eq!(found, ["problem STR0724 cluster/east"]);
    }
}
