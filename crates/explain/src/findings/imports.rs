//! Findings about ServiceImports that are missing, or no longer updated, for a reason with a code.

use std::collections::{BTreeMap, BTreeSet};

use super::{MeshFinding, or_none};
use strait_admin_api::ServiceImport;
use strait_base::codes;

const CATEGORY: &str = "services";

/// The codes of imports that Strait cannot write although it should.
const NOT_WRITTEN: [&codes::Code; 8] = [
    &codes::IMPORT_RIGHT_MISSING,
    &codes::IMPORT_RELAYED,
    &codes::IMPORT_VERSION_MISSING,
    &codes::IMPORTS_CONTESTED,
    &codes::IMPORT_CONFLICT,
    &codes::IMPORT_CHANGED,
    &codes::IMPORT_SLICES,
    &codes::IMPORT_REFUSED,
];

/// The services of a cluster whose imports have one code.
struct ImportGroup<'a> {
    names: BTreeSet<&'a str>,
    /// The first of the services.
    host: &'a str,
    /// Its reason.
    reason: &'a str,
}

/// Returns a finding for each cluster and code, with the number of services. It is a problem if the
/// imports cannot be written. `imports` contains each import with the host name of the service.
pub fn of_imports<'a>(
    imports: impl Iterator<Item = (&'a str, &'a ServiceImport)>,
) -> Vec<MeshFinding> {
    let mut groups: BTreeMap<(&str, &str), ImportGroup<'_>> = BTreeMap::new();
    for (host, import) in imports {
        let Some(code) = import.code.as_deref() else { continue };
        // The same imports are listed under the host name in the cluster and under that in the set.
        let name = host.split_once(".svc.").map_or(host, |(name, _)| name);
        let reason = import.reason.as_deref().unwrap_or_default();
        let first = ImportGroup { names: BTreeSet::new(), host, reason };
        groups.entry((&*import.cluster, code)).or_insert(first).names.insert(name);
    }
    let found = groups.into_iter().filter_map(|((cluster, code), group)| {
        let ImportGroup { names, host, reason } = group;
        let (host, reason) = (or_none(host), or_none(reason));
        let fact = match names.len() {
            1 => format!("import of {host}: {reason}"),
            count => format!("imports of {count} services, such as {host}: {reason}"),
        };
        let object = format!("cluster/{}", or_none(cluster));
        let is_problem = NOT_WRITTEN.iter().any(|one| one.id == code);
        let finding = MeshFinding::problem(CATEGORY, codes::find(code)?, object, fact);
        Some(MeshFinding { is_problem, ..finding })
    });
    found.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_finding_for_each_cluster_and_code() {
        let import = |cluster: &str, code: Option<&str>| ServiceImport {
            cluster: cluster.to_owned(),
            code: code.map(str::to_owned),
            reason: Some("why".to_owned()),
            ..ServiceImport::default()
        };
        let imports = [
            ("a.shop", import("east", Some("STR0443"))),
            ("b.shop", import("east", Some("STR0443"))),
            ("b.shop", import("west", None)),
            ("c.shop.svc.cluster.local", import("west", Some("STR0441"))),
            ("c.shop.svc.clusterset.local", import("west", Some("STR0441"))),
            ("d.shop", import("north", Some("STR0354"))),
            ("e.shop", import("south", Some("STR0453"))),
        ];
        let found = of_imports(imports.iter().map(|(host, import)| (*host, import)));
        let facts: Vec<_> = found
            .iter()
            .map(|MeshFinding { object, fact, is_problem, .. }| {
                format!("{} {object} {fact}", if *is_problem { "problem" } else { "note" })
            })
            .collect();
        assert_eq!(
            facts,
            [
                "problem cluster/east imports of 2 services, such as a.shop: why",
                "problem cluster/north import of d.shop: why",
                "problem cluster/south import of e.shop: why",
                "note cluster/west import of c.shop.svc.cluster.local: why",
            ]
        );
    }
}
