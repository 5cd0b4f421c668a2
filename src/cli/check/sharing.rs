//! Finding about services that the mesh config would keep in their clusters, if the policy honoured
//! it.

use serde_json::Value;

use super::finding::note;
use super::inputs::CheckInputs;
use strait_admin_api::{Service, ServiceSharing, SharingStatements};
use strait_base::codes;

/// Reports `serviceScopeConfigs` of the mesh config that have no effect, with the services that
/// they would make local.
pub(super) fn ignored_scopes(answers: &CheckInputs) -> Option<Value> {
    let is_honoured = answers.policy.sharing.istio_global == "honour";
    let scopes = answers.mesh.settings.get("serviceScopeConfigs").and_then(Value::as_array);
    if is_honoured || scopes.is_none_or(Vec::is_empty) {
        return None;
    }
    let concerned = |service: &&Service| service.sharing.iter().any(would_be_local);
    let all: Vec<_> = answers.services.iter().filter(concerned).collect();
    let examples: Vec<_> = all.iter().take(3).map(|service| service.hostname.as_str()).collect();
    let examples = match examples.is_empty() {
        true => String::new(),
        false => format!(", such as {}", examples.join(", ")),
    };
    let fact = format!(
        "serviceScopeConfigs has no effect; if the policy honoured it, {} services would become local{examples}",
        all.len()
    );
    Some(note("mesh", &codes::SCOPES_IGNORED, "meshConfig/serviceScopeConfigs".into(), fact))
}

/// Returns whether a cluster shares a service that `serviceScopeConfigs` would make local.
fn would_be_local(row: &ServiceSharing) -> bool {
    let SharingStatements { export, label, namespace_label, istio_label, scope } = row.statements;
    let is_shared = [export, label, namespace_label, istio_label].contains(&Some(true));
    row.state == "shared" && scope == Some(false) && !is_shared
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::cli::output::tests::typed;

    #[test]
    fn ignored_scopes_are_noted_with_the_services_that_would_become_local() {
        let row = |state: &str, statements: Value| json!({ "cluster": "east", "state": state, "statements": statements });
        let service = |host: &str, row: Value| json!({ "hostname": host, "sharing": [row] });
        let answers = |scopes: Value, istio: &str| CheckInputs {
            mesh: typed(json!({ "serviceScopeConfigs": scopes })),
            policy: typed(json!({ "sharing": { "istioGlobal": istio } })),
            services: typed(json!([
                service("a.shop", row("shared", json!({ "scope": false }))),
                service("b.shop", row("shared", json!({ "scope": false, "label": true }))),
                service("c.shop", row("local", json!({ "scope": false, "label": false }))),
                service("d.shop", row("shared", json!({ "scope": true }))),
            ])),
            ..CheckInputs::default()
        };
        assert_eq!(ignored_scopes(&answers(json!([]), "ignore")), None);
        assert_eq!(ignored_scopes(&answers(json!([{}]), "honour")), None);
        let found = ignored_scopes(&answers(json!([{}]), "ignore")).expect("a note");
        assert_eq!((&found["severity"], &found["code"]), (&json!("note"), &json!("STR0450")));
        let fact = "serviceScopeConfigs has no effect; if the policy honoured it, \
                    1 services would become local, such as a.shop";
        assert_eq!(found["fact"], fact);
    }
}
