//! Finding about services that the mesh config would keep in their clusters, if the policy honoured
//! it.

use serde_json::Value;

use super::finding::note;
use super::inputs::CheckInputs;
use crate::cli::output::{items, text};
use strait_base::codes;

/// Reports `serviceScopeConfigs` of the mesh config that have no effect, with the services that
/// they would make local.
pub(super) fn ignored_scopes(answers: &CheckInputs) -> Option<Value> {
    let is_honoured = answers.policy["sharing"]["istioGlobal"] == "honour";
    if is_honoured || items(&answers.mesh["serviceScopeConfigs"]).is_empty() {
        return None;
    }
    let would_be_local = |row: &&Value| {
        let statements = &row["statements"];
        let stated = ["export", "label", "namespaceLabel", "istioLabel"];
        row["state"] == "shared"
            && statements["scope"] == false
            && stated.iter().all(|name| statements[name].is_null() || statements[name] == false)
    };
    let concerned =
        |service: &&Value| items(&service["sharing"]).iter().any(|row| would_be_local(&row));
    let all: Vec<_> = items(&answers.services).iter().filter(concerned).collect();
    let examples: Vec<_> = all.iter().take(3).map(|service| text(&service["hostname"])).collect();
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
