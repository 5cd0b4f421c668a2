//! The findings of `strait check` about member sources and the credentials of members.

use serde_json::Value;

use super::finding::{note, problem};
use crate::cli::output::{items, text};
use strait_base::codes;

/// Returns the findings about the operator file.
pub(super) fn findings(members: &Value) -> Vec<Value> {
    let object = || "members".to_owned();
    let file = members["problem"].as_str();
    let file = file.map(|fact| problem("policy", &codes::POLICY, object(), fact));
    let sources = items(&members["sources"]).iter();
    let sources =
        sources.map(|fact| problem("policy", &codes::SOURCE_UNREADABLE, object(), text(fact)));
    let unused = items(&members["unused"]).iter().map(|field| {
        let fact = format!("{}: this version validates it, and does not use it", text(field));
        note("policy", &codes::NOT_AVAILABLE, object(), fact)
    });
    file.into_iter().chain(sources).chain(unused).collect()
}

/// Returns the finding about a credential that ends soon.
pub(super) fn credential_ends(cluster: &Value, object: &str) -> Option<Value> {
    let credential = &cluster["credential"];
    if credential["endsSoon"] != true {
        return None;
    }
    let kind = match credential["kind"].as_str() {
        Some("clientCertificate") => "client certificate",
        _ => "token",
    };
    let by_itself = match credential["renewsItself"] == true {
        true => ", and the control plane could not renew it",
        false => "",
    };
    let fact = format!("its {kind} ends at {}{by_itself}", text(&credential["expires"]));
    Some(problem("clusters", &codes::CREDENTIAL_ENDS, object.to_owned(), fact))
}
