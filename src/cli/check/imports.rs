//! Findings about ServiceExports that are not valid, and about ServiceImports that are no longer
//! updated.

use serde_json::Value;

use super::finding::note;
use crate::cli::output::text;
use strait_admin_api::Cluster;
use strait_base::codes;

/// Returns a finding for each cluster with imports that are no longer updated.
pub(super) fn leftover(clusters: &[Cluster]) -> Vec<Value> {
    let found = clusters.iter().filter_map(|cluster| {
        let left = cluster.leftover_imports.as_ref()?;
        let first = text(&left.first);
        let fact = match left.count {
            1 => format!("imports are off, and ServiceImport {first} is left"),
            count => {
                format!("imports are off, and {count} ServiceImports are left, such as {first}")
            }
        };
        Some(note("services", &codes::IMPORTS_LEFT, format!("cluster/{}", text(&cluster.id)), fact))
    });
    found.collect()
}

/// Returns a finding for each cluster and reason for which exports are not valid.
pub(super) fn invalid_exports(clusters: &[Cluster]) -> Vec<Value> {
    let found = clusters.iter().flat_map(|cluster| {
        cluster.invalid_exports.iter().map(|invalid| {
            let (first, reason) = (text(&invalid.first), text(&invalid.reason));
            let fact = match invalid.count {
                1 => format!("ServiceExport {first}: {reason}"),
                count => format!("{count} ServiceExports, such as {first}: {reason}"),
            };
            note("services", &codes::EXPORT_INVALID, format!("cluster/{}", text(&cluster.id)), fact)
        })
    });
    found.collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::cli::output::tests::typed;

    #[test]
    fn imports_that_are_left_come_with_the_command_that_deletes_them() {
        let clusters = json!([
            { "id": "east", "leftoverImports": { "count": 2, "first": "shop/cart" } },
            { "id": "west" },
        ]);
        let found = leftover(&typed::<Vec<_>>(clusters));
        assert_eq!(found.len(), 1);
        let fact = "imports are off, and 2 ServiceImports are left, such as shop/cart";
        assert_eq!((&found[0]["code"], &found[0]["fact"]), (&json!("STR0452"), &json!(fact)));
        let next = text(&found[0]["next"]);
        assert!(next.contains("strait cluster mcs-purge east"), "{next}");
    }

    #[test]
    fn one_finding_for_each_reason_of_invalid_exports() {
        let clusters = json!([{ "id": "east", "invalidExports": [
            { "count": 1, "first": "shop/cart", "reason": "why" },
            { "count": 2, "first": "shop/web", "reason": "so" },
        ] }]);
        let found = invalid_exports(&typed::<Vec<_>>(clusters));
        let facts: Vec<_> = found.iter().map(|row| text(&row["fact"])).collect();
        assert_eq!(
            facts,
            ["ServiceExport shop/cart: why", "2 ServiceExports, such as shop/web: so"]
        );
        assert_eq!(found[0]["severity"], "note");
    }
}
