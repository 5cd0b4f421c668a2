//! Findings of `strait check` about configuration objects: the reasons of `/debug/config`, and
//! proxies that lack a patch that access policies need.

use std::collections::BTreeMap;

use serde_json::Value;

use super::finding::{note, problem};
use crate::cli::output::text;
use crate::cli::proxy;
use strait_admin_api::{ObjectState, ObjectStatus, Proxy, Source};
use strait_base::codes;
use strait_base::names::list_first;
use strait_explain::is_problem;
use strait_model::code_of_patch;

/// Name of the category.
pub(super) const CATEGORY: &str = "config";
/// Maximum number of listed proxies per Envoy version.
const NAMED_MAX: usize = 3;
/// Returns the findings about objects, except for findings that the warnings of the sources already
/// contain.
pub(super) fn of_objects(states: &[ObjectStatus], sources: &[Source]) -> Vec<Value> {
    let warnings: Vec<&String> = sources.iter().flat_map(|source| &source.warnings).collect();
    let mut found = Vec::new();
    for state in states {
        let [kind, namespace, name] = [&state.kind, &state.namespace, &state.name].map(text);
        let of_cluster = of_cluster(state);
        let object = format!("{kind}/{namespace}/{name}{of_cluster}");
        let is_warned =
            |fact: &str| warnings.iter().any(|one| one.contains(&name) && one.contains(fact));
        for reason in &state.reasons {
            let Some(code) = codes::find(&reason.code) else { continue };
            let fact = text(&reason.text);
            if is_warned(&fact) {
                continue;
            }
            let line = if is_problem(&state.state, code) { problem } else { note };
            let fact = match reason.path.as_str() {
                "" => fact,
                path => format!("{path}: {fact}"),
            };
            found.push(line(CATEGORY, code, object.clone(), fact));
        }
    }
    found
}

/// Returns the cluster to which an object applies, as the end of its name.
pub(super) fn of_cluster(state: &ObjectStatus) -> String {
    let cluster = state.cluster.as_ref();
    cluster.map(|cluster| format!(" of cluster {}", text(cluster))).unwrap_or_default()
}

/// Returns the number of objects, and how many of them are active.
pub(super) fn looked(all: &[ObjectStatus], sources: &[Source]) -> String {
    let active = all.iter().filter(|state| state.state == ObjectState::InForce).count();
    let active = match all.len() {
        1 => format!("{active} of 1 object active"),
        count => format!("{active} of {count} objects active"),
    };
    let absent: Vec<&str> =
        sources.iter().flat_map(|source| &source.absent_kinds).map(String::as_str).collect();
    match absent.as_slice() {
        [] => active,
        kinds => format!(
            "{active}; the config cluster has no CustomResourceDefinition for {}",
            kinds.join(", ")
        ),
    }
}

/// Returns the proxies that lack a patch, grouped by patch and version.
pub(super) fn unpatched(proxies: &[Proxy]) -> Vec<Value> {
    let mut lacking = BTreeMap::<(&str, String), Vec<String>>::new();
    for row in proxies {
        for patch in &row.missing_patches {
            let version = text(&row.version);
            lacking.entry((patch.as_str(), version)).or_default().push(proxy::name(row));
        }
    }
    let warnings = lacking.into_iter().map(|((patch, version), names)| {
        let fact =
            format!("without the patch for {patch}: {}", list_first(names.iter(), NAMED_MAX));
        // A newer control plane may know more patches.
        let code = code_of_patch(patch).unwrap_or(&codes::ENVOY_UNPATCHED);
        note("proxies", code, format!("envoy/{version}"), fact)
    });
    warnings.collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::cli::output::tests::typed;

    fn short(rows: &[Value]) -> Vec<String> {
        let short = |row: &Value| {
            let sign = if row["severity"] == "note" { "~" } else { "" };
            format!("{sign}{} {}", text(&row["code"]), text(&row["object"]))
        };
        rows.iter().map(short).collect()
    }

    fn state(kind: &str, state: &str, codes: &[&str]) -> Value {
        let reason = |code: &&str| json!({ "code": code, "path": "spec.x", "text": "a fact" });
        let reasons: Vec<_> = codes.iter().map(reason).collect();
        json!({ "kind": kind, "namespace": "shop", "name": "a", "state": state, "reasons": reasons })
    }

    #[test]
    fn refused_objects_and_ineffective_restrictions_are_problems() {
        for (one, expected) in [
            (state("VirtualService", "inForce", &[]), vec![]),
            (
                state("VirtualService", "partly", &["STR1041"]),
                vec!["STR1041 VirtualService/shop/a"],
            ),
            (
                state("DestinationRule", "shadowed", &["STR1046"]),
                vec!["~STR1046 DestinationRule/shop/a"],
            ),
            (
                state("VirtualService", "refused", &["STR1001", "STR1052"]),
                vec!["STR1001 VirtualService/shop/a", "~STR1052 VirtualService/shop/a"],
            ),
            (
                state("DestinationRule", "inForce", &["STR1009"]),
                vec!["~STR1009 DestinationRule/shop/a"],
            ),
            (
                state("DestinationRule", "partly", &["STR1009", "STR1013"]),
                vec!["STR1009 DestinationRule/shop/a", "STR1013 DestinationRule/shop/a"],
            ),
            (
                state("AuthorizationPolicy", "inForce", &["STR0824", "STR0825", "STR0834"]),
                vec![
                    "~STR0824 AuthorizationPolicy/shop/a",
                    "STR0825 AuthorizationPolicy/shop/a",
                    "STR0834 AuthorizationPolicy/shop/a",
                ],
            ),
            (
                state("AuthorizationPolicy", "unused", &["STR0828"]),
                vec!["~STR0828 AuthorizationPolicy/shop/a"],
            ),
        ] {
            assert_eq!(short(&of_objects(&typed::<Vec<_>>(json!([one])), &[])), expected);
        }
        let refused: Vec<_> = typed(json!([state("AuthorizationPolicy", "partly", &["STR0820"])]));
        assert_eq!(of_objects(&refused, &[])[0]["fact"], "spec.x: a fact");
        let sources =
            json!([{ "warnings": ["AuthorizationPolicy shop/a: STR0820: spec.x: a fact"] }]);
        let sources: Vec<_> = typed(sources);
        assert!(of_objects(&refused, &sources).is_empty(), "its source reports it");
        assert_eq!(looked(&refused, &[]), "0 of 1 object active");
        let sources = json!([{ "name": "config", "absentKinds": ["sidecars", "telemetries"] }]);
        assert_eq!(
            looked(&refused, &typed::<Vec<_>>(sources)),
            "0 of 1 object active; the config cluster has no CustomResourceDefinition for sidecars, telemetries"
        );
    }

    #[test]
    fn proxies_without_a_patch_are_grouped_by_version() {
        let proxy = |name: &str, version: &str, patches: Value| {
            let id = format!("sidecar~10.0.0.1~{name}.shop~shop.svc");
            json!({ "id": id, "version": version, "missingPatches": patches })
        };
        let lacking = || json!(["CVE-2026-26308"]);
        let mut proxies = vec![
            proxy("a", "1.36.4", lacking()),
            proxy("b", "1.40.0", json!([])),
            proxy("c", "1.35.2", lacking()),
        ];
        proxies.extend(["d", "e", "f"].map(|name| proxy(name, "1.36.4", lacking())));
        let found = unpatched(&typed::<Vec<_>>(Value::Array(proxies)));
        assert_eq!(short(&found), ["~STR0845 envoy/1.35.2", "~STR0845 envoy/1.36.4"]);
        let dots = proxy("g", "1.38.1", json!(["CVE-2026-73551"]));
        let dots = unpatched(&typed::<Vec<_>>(Value::Array(vec![dots])));
        assert_eq!(short(&dots), ["~STR0852 envoy/1.38.1"]);
        let fact = "without the patch for CVE-2026-26308: a.shop, d.shop, e.shop and 1 more";
        assert_eq!(found[1]["fact"], fact);
    }
}
