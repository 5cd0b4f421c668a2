//! The findings of `strait check` about member sources and the identities of members.

use serde_json::Value;

use super::finding::{note, problem};
use crate::cli::output::text;
use strait_admin_api::{Cluster, MemberSourcesFile};
use strait_base::codes;

/// Returns the findings about the operator file.
pub(super) fn findings(members: &MemberSourcesFile) -> Vec<Value> {
    let object = || "members".to_owned();
    let file = members.problem.as_deref();
    let file = file.map(|fact| problem("policy", &codes::POLICY, object(), fact));
    let sources = members.sources.iter().map(|fact| {
        let code = codes::named(fact).unwrap_or(&codes::SOURCE_UNREADABLE);
        problem("policy", code, object(), text(fact))
    });
    let unused = members.unused.iter().map(|field| {
        let fact = format!("{}: this version validates it, and does not use it", text(field));
        note("policy", &codes::NOT_AVAILABLE, object(), fact)
    });
    file.into_iter().chain(sources).chain(unused).collect()
}

/// Returns the findings about identities whose token is valid at several members.
pub(super) fn shared_identities(members: &MemberSourcesFile, clusters: &[Cluster]) -> Vec<Value> {
    let of = |name: String| -> (String, Vec<String>) {
        let uses = |row: &&Cluster| {
            let used = row.credential.as_ref().and_then(|used| used.identity.as_ref());
            used.is_some_and(|used| *used == name)
        };
        let ids = clusters.iter().filter(uses).map(|row| text(&row.id)).collect();
        (name, ids)
    };
    let used = members.replayable.iter().map(text).map(of);
    let shared = used.filter(|(_, ids)| ids.len() > 1);
    let finding = |(name, ids): (String, Vec<String>)| {
        let fact = format!("the token of identity {name} is sent to {}", ids.join(", "));
        note("policy", &codes::SHARED_IDENTITY, format!("identity/{name}"), fact)
    };
    shared.map(finding).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::cli::output::tests::typed;

    #[test]
    fn problem_of_a_source_has_the_code_in_its_text() {
        let sources = json!([
            "source a: STR0240: the ClusterProfile a/b is not used",
            "source b: Secrets of namespace b: STR0231: not permitted",
            "source c: cannot connect",
        ]);
        let found = findings(&typed(json!({ "sources": sources })));
        let codes: Vec<_> = found.iter().map(|finding| finding["code"].as_str()).collect();
        assert_eq!(codes, [Some("STR0240"), Some("STR0231"), Some("STR0231")]);
    }

    #[test]
    fn token_that_is_valid_at_several_members_is_reported_once() {
        let row =
            |id: &str, identity: &str| json!({ "id": id, "credential": { "identity": identity } });
        let clusters = json!([
            row("a", "gke"),
            row("b", "gke"),
            row("c", "aks"),
            row("d", "hub"),
            row("e", "hub")
        ]);
        let members = json!({ "replayable": ["gke", "aks"] });
        let found = shared_identities(&typed(members), &typed::<Vec<_>>(clusters));
        let [only] = &found[..] else { panic!("{found:?}") };
        assert_eq!((&only["code"], &only["object"]), (&json!("STR0234"), &json!("identity/gke")));
        assert!(only.to_string().contains("a, b"), "{only}");
    }
}
