//! Findings about ServiceExports that are not valid, and about ServiceImports that are missing, or no
//! longer updated, for a reason with a code.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::finding::{note, problem};
use crate::cli::output::text;
use strait_admin_api::{Cluster, Service};
use strait_base::codes;

/// The codes of imports that Strait cannot write although it should.
const NOT_WRITTEN: [&codes::Code; 6] = [
    &codes::IMPORT_RIGHT_MISSING,
    &codes::IMPORT_RELAYED,
    &codes::IMPORT_VERSION_MISSING,
    &codes::IMPORTS_CONTESTED,
    &codes::IMPORT_CONFLICT,
    &codes::IMPORT_CHANGED,
];

/// The services of a cluster whose imports have one code.
struct ImportGroup<'a> {
    names: BTreeSet<&'a str>,
    /// The first of the services.
    host: &'a String,
    /// Its reason.
    reason: &'a Option<String>,
}

/// Returns a finding for each cluster and code, with the number of services. It is a problem if the
/// imports cannot be written.
pub(super) fn findings(services: &[Service]) -> Vec<Value> {
    let mut groups: BTreeMap<(String, &str), ImportGroup<'_>> = BTreeMap::new();
    for service in services {
        // A service has a name of the cluster and one of the cluster set, with the same imports.
        let host = &service.hostname;
        let name = host.split_once(".svc.").map_or(&**host, |(name, _)| name);
        for import in &service.imports {
            let Some(code) = import.code.as_deref() else { continue };
            let first = ImportGroup { names: BTreeSet::new(), host, reason: &import.reason };
            groups.entry((text(&import.cluster), code)).or_insert(first).names.insert(name);
        }
    }
    let found = groups.into_iter().filter_map(|((cluster, code), group)| {
        let (host, reason) = (text(group.host), text(group.reason));
        let fact = match group.names.len() {
            1 => format!("import of {host}: {reason}"),
            count => format!("imports of {count} services, such as {host}: {reason}"),
        };
        let object = format!("cluster/{cluster}");
        let is_problem = NOT_WRITTEN.iter().any(|one| one.id == code);
        let code = codes::find(code)?;
        Some(match is_problem {
            true => problem("services", code, object, fact),
            false => note("services", code, object, fact),
        })
    });
    found.collect()
}

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
    fn one_finding_for_each_cluster_and_code() {
        let import = |cluster: &str, code: Value| json!({ "cluster": cluster, "code": code, "reason": "why" });
        let services = json!([
            { "hostname": "a.shop", "imports": [import("east", json!("STR0443"))] },
            {
                "hostname": "b.shop",
                "imports": [import("east", json!("STR0443")), import("west", Value::Null)],
            },
            {
                "hostname": "c.shop.svc.cluster.local",
                "imports": [import("west", json!("STR0441"))],
            },
            {
                "hostname": "c.shop.svc.clusterset.local",
                "imports": [import("west", json!("STR0441"))],
            },
            { "hostname": "d.shop", "imports": [import("north", json!("STR0354"))] },
        ]);
        let found = findings(&typed::<Vec<_>>(services));
        let facts: Vec<_> = found
            .iter()
            .map(|row| {
                let [severity, object, fact] =
                    ["severity", "object", "fact"].map(|of| text(&row[of]));
                format!("{severity} {object} {fact}")
            })
            .collect();
        assert_eq!(
            facts,
            [
                "problem cluster/east imports of 2 services, such as a.shop: why",
                "problem cluster/north import of d.shop: why",
                "note cluster/west import of c.shop.svc.cluster.local: why",
            ]
        );
    }

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
