//! Recommendation of `strait check` for meshes with several tenants.

use std::collections::BTreeSet;

use serde_json::Value;

use super::finding::note;
use crate::cli::output::{items, text};
use strait_base::codes;

/// Recommends that objects apply to their own namespace by default, if several namespaces have objects that apply to the mesh
/// without saying so. The root namespace's objects are the operator's.
pub(super) fn recommended(policy: &Value) -> Option<Value> {
    let objects = items(&policy["visibleByDefault"]);
    let of_tenants = objects.iter().filter(|one| one["namespace"] != policy["rootNamespace"]);
    let namespaces: BTreeSet<String> = of_tenants.map(|one| text(&one["namespace"])).collect();
    let (first, second) = (namespaces.first()?, namespaces.iter().nth(1)?);
    let more = match namespaces.len() {
        2 => String::new(),
        count => format!(" and {} more", count - 2),
    };
    let fact = format!(
        "{} objects apply to the whole mesh by default, of namespaces {first}, {second}{more}",
        objects.len()
    );
    Some(note("policy", &codes::DEFAULT_VISIBILITY, "policy".into(), fact))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn default_visibility_is_recommended_if_several_tenants_rely_on_it() {
        let policy = |namespaces: &[&str]| {
            let object = |namespace: &&str| json!({ "kind": "VirtualService", "namespace": namespace, "name": "a" });
            let objects: Vec<_> = namespaces.iter().map(object).collect();
            json!({ "rootNamespace": "root", "visibleByDefault": objects })
        };
        for alone in [&[][..], &["shop", "shop"], &["shop", "root"]] {
            assert_eq!(recommended(&policy(alone)), None, "{alone:?}");
        }
        let found = recommended(&policy(&["shop", "pay", "root", "a"])).expect("a note");
        assert_eq!((&found["severity"], &found["code"]), (&json!("note"), &json!("STR1111")));
        let fact = "4 objects apply to the whole mesh by default, of namespaces a, pay and 1 more";
        assert_eq!(found["fact"], fact);
    }
}
