//! Findings about ServiceImports that are missing, or no longer updated, for a reason with a code.

use std::collections::BTreeMap;

use serde_json::Value;

use super::finding::note;
use crate::cli::output::{items, text};
use strait_base::codes;

/// Returns a note for each cluster and code, with the number of services.
pub(super) fn findings(services: &Value) -> Vec<Value> {
    let mut groups: BTreeMap<(String, &str), (usize, &Value, &Value)> = BTreeMap::new();
    for service in items(services) {
        for import in items(&service["imports"]) {
            let Some(code) = import["code"].as_str() else { continue };
            let first = (0, &service["hostname"], &import["reason"]);
            groups.entry((text(&import["cluster"]), code)).or_insert(first).0 += 1;
        }
    }
    let notes = groups.into_iter().filter_map(|((cluster, code), (count, host, reason))| {
        let (host, reason) = (text(host), text(reason));
        let fact = match count {
            1 => format!("import of {host}: {reason}"),
            _ => format!("imports of {count} services, such as {host}: {reason}"),
        };
        Some(note("services", codes::find(code)?, format!("cluster/{cluster}"), fact))
    });
    notes.collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn one_note_for_each_cluster_and_code() {
        let import = |cluster: &str, code: Value| json!({ "cluster": cluster, "code": code, "reason": "why" });
        let services = json!([
            { "hostname": "a.shop", "imports": [import("east", json!("STR0443"))] },
            {
                "hostname": "b.shop",
                "imports": [import("east", json!("STR0443")), import("west", Value::Null)],
            },
            { "hostname": "c.shop", "imports": [import("west", json!("STR0441"))] },
        ]);
        let found = findings(&services);
        let facts: Vec<_> = found
            .iter()
            .map(|row| format!("{} {}", text(&row["object"]), text(&row["fact"])))
            .collect();
        assert_eq!(
            facts,
            [
                "cluster/east imports of 2 services, such as a.shop: why",
                "cluster/west import of c.shop: why",
            ]
        );
    }
}
