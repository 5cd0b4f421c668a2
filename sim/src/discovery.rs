//! The discovery documents of a cluster: versions, groups, kinds, and the minimum of OpenAPI that
//! `kubectl apply` needs.
//!
//! All of them are derived from the table of kinds and the enabled families.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use crate::resource::{Family, RESOURCES, Resource};

const VERBS: [&str; 8] =
    ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"];

/// Kinds that are only posted and answered, never stored: group, kind, plural.
const REVIEWS: [(&str, &str, &str); 5] = [
    ("authentication.k8s.io", "SelfSubjectReview", "selfsubjectreviews"),
    ("authentication.k8s.io", "TokenReview", "tokenreviews"),
    ("authorization.k8s.io", "SelfSubjectAccessReview", "selfsubjectaccessreviews"),
    ("authorization.k8s.io", "SelfSubjectRulesReview", "selfsubjectrulesreviews"),
    ("authorization.k8s.io", "SubjectAccessReview", "subjectaccessreviews"),
];

/// The media type of aggregated discovery, which returns all kinds of `/api` or `/apis` in one
/// document.
pub(crate) const AGGREGATED: &str =
    "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

/// Returns all kinds of `/api` or `/apis` in one document; `None` for other paths.
pub(crate) fn aggregated(path: &str, families: &BTreeSet<Family>) -> Option<Value> {
    let groups = match path.trim_end_matches('/') {
        "/api" => BTreeMap::from([("", &["v1"][..])]),
        "/apis" => groups(families),
        _ => return None,
    };
    let items = groups.iter().map(|(group, versions)| {
        let version = |version: &&str| {
            json!({
                "version": version, "freshness": "Current",
                "resources": aggregated_resources(group, version, families),
            })
        };
        let versions: Vec<_> = versions.iter().map(version).collect();
        let metadata = match *group {
            "" => json!({"creationTimestamp": null}),
            group => json!({"name": group, "creationTimestamp": null}),
        };
        json!({"metadata": metadata, "versions": versions})
    });
    Some(json!({
        "kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "metadata": {},
        "items": items.collect::<Vec<_>>(),
    }))
}

/// Returns the rows of a resource list in the aggregated form, in which subresources are inside of
/// their resource.
fn aggregated_resources(group: &str, version: &str, families: &BTreeSet<Family>) -> Vec<Value> {
    let list = resource_list(group, version, families).unwrap_or_default();
    let mut resources: Vec<Value> = Vec::new();
    for row in list["resources"].as_array().into_iter().flatten() {
        let kind = json!({"group": group, "version": version, "kind": row["kind"]});
        match row["name"].as_str().unwrap_or_default().split_once('/') {
            Some((_, subresource)) => {
                let Some(resource) = resources.last_mut() else { continue };
                let subresource = json!({
                    "subresource": subresource, "responseKind": kind, "verbs": row["verbs"],
                });
                match &mut resource["subresources"] {
                    Value::Array(all) => all.push(subresource),
                    none => *none = json!([subresource]),
                }
            }
            None => {
                let namespaced = row["namespaced"] == true;
                let mut resource = json!({
                    "resource": row["name"], "responseKind": kind, "verbs": row["verbs"],
                    "scope": if namespaced { "Namespaced" } else { "Cluster" },
                    "singularResource": row["singularName"],
                });
                if !row["shortNames"].is_null() {
                    resource["shortNames"] = row["shortNames"].clone();
                }
                resources.push(resource);
            }
        }
    }
    resources
}

/// Returns the response for a discovery path; `None` for other paths.
pub(crate) fn answer(
    path: &str,
    families: &BTreeSet<Family>,
    hidden: &dyn Fn(&str, &str) -> bool,
) -> Option<Value> {
    let segments: Vec<&str> = path.trim_matches('/').split('/').collect();
    match segments[..] {
        ["apis", group, version] if hidden(group, version) => None,
        ["version"] => Some(version()),
        ["api"] => Some(json!({"kind": "APIVersions", "versions": ["v1"]})),
        ["api", "v1"] => resource_list("", "v1", families),
        ["apis"] => {
            let groups = groups(families);
            let groups: Vec<_> =
                groups.iter().map(|(name, versions)| group(name, versions)).collect();
            Some(json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}))
        }
        ["apis", name] => groups(families).get(name).map(|versions| {
            let shown = versions.iter().copied().filter(|version| !hidden(name, version));
            let mut group = group(name, &shown.collect::<Vec<_>>());
            group["kind"] = json!("APIGroup");
            group["apiVersion"] = json!("v1");
            group
        }),
        ["apis", group, version] => resource_list(group, version, families),
        ["openapi", "v3"] => Some(openapi_index(families)),
        ["openapi", "v3", "api", "v1"] => Some(openapi("", "v1", families)),
        ["openapi", "v3", "apis", group, version] => Some(openapi(group, version, families)),
        _ => None,
    }
}

fn version() -> Value {
    json!({
        "major": "1", "minor": "34", "gitVersion": "v1.34.0+sim", "gitCommit": "", "gitTreeState": "clean",
        "buildDate": "2026-01-01T00:00:00Z", "goVersion": "none", "compiler": "rustc",
        "platform": "linux/amd64",
    })
}

fn served<'a>(families: &'a BTreeSet<Family>) -> impl Iterator<Item = &'static Resource> + 'a {
    RESOURCES.iter().filter(|resource| families.contains(&resource.family))
}

/// Returns the versions of each group, without the core group.
fn groups(families: &BTreeSet<Family>) -> BTreeMap<&'static str, &'static [&'static str]> {
    let mut groups: BTreeMap<_, &[&str]> = REVIEWS.map(|(group, ..)| (group, &["v1"][..])).into();
    for resource in served(families).filter(|resource| !resource.group.is_empty()) {
        let versions = groups.entry(resource.group).or_default();
        if resource.versions.len() > versions.len() {
            *versions = resource.versions;
        }
    }
    groups
}

fn group(name: &str, versions: &[&str]) -> Value {
    let of =
        |version: &&str| json!({"groupVersion": format!("{name}/{version}"), "version": version});
    let all: Vec<_> = versions.iter().map(of).collect();
    json!({"name": name, "preferredVersion": all.first(), "versions": all})
}

fn resource_list(group: &str, version: &str, families: &BTreeSet<Family>) -> Option<Value> {
    let mut rows = Vec::new();
    let here = |r: &&Resource| r.group == group && r.versions.contains(&version);
    for resource in served(families).filter(here) {
        let Resource { kind, plural, short, namespaced, .. } = resource;
        let mut row = json!({
            "name": plural, "singularName": kind.to_lowercase(), "namespaced": namespaced, "kind": kind,
            "verbs": VERBS,
        });
        if !short.is_empty() {
            row["shortNames"] = json!(short);
        }
        rows.push(row);
        if resource.has_status {
            rows.push(json!({
                "name": format!("{plural}/status"), "singularName": "", "namespaced": namespaced,
                "kind": kind, "verbs": ["get", "patch", "update"],
            }));
        }
        if *plural == "serviceaccounts" {
            rows.push(json!({
                "name": "serviceaccounts/token", "singularName": "", "namespaced": true,
                "group": "authentication.k8s.io", "version": "v1", "kind": "TokenRequest",
                "verbs": ["create"],
            }));
        }
    }
    for (_, kind, plural) in REVIEWS.iter().filter(|review| review.0 == group && version == "v1") {
        rows.push(json!({
            "name": plural, "singularName": kind.to_lowercase(), "namespaced": false, "kind": kind,
            "verbs": ["create"],
        }));
    }
    let group_version =
        if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") };
    (!rows.is_empty()).then(|| {
        json!({
            "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version,
            "resources": rows,
        })
    })
}

fn openapi_index(families: &BTreeSet<Family>) -> Value {
    let mut paths = BTreeMap::from([("api/v1".to_owned(), "/openapi/v3/api/v1".to_owned())]);
    for (group, versions) in groups(families) {
        for version in versions {
            let path = format!("apis/{group}/{version}");
            paths.insert(path.clone(), format!("/openapi/v3/{path}"));
        }
    }
    let paths: BTreeMap<_, _> =
        paths.into_iter().map(|(path, url)| (path, json!({"serverRelativeURL": url}))).collect();
    json!({"paths": paths})
}

/// Returns the OpenAPI document of a group. Before it applies an object, kubectl checks whether PATCH
/// accepts `fieldValidation` for the kind. Strategic merge is omitted, because it would require the
/// schema that defines how lists are merged; kubectl knows it for built-in kinds.
fn openapi(group: &str, version: &str, families: &BTreeSet<Family>) -> Value {
    let mut paths = BTreeMap::new();
    let here = |r: &&Resource| r.group == group && r.versions.contains(&version);
    for resource in served(families).filter(here) {
        let root = if group.is_empty() { "/api".to_owned() } else { format!("/apis/{group}") };
        let scope = if resource.namespaced { "/namespaces/{namespace}" } else { "" };
        let parameter = |name: &str| json!({"name": name, "in": "query", "schema": {"type": "string", "uniqueItems": true}});
        let parameters = ["dryRun", "fieldManager", "fieldValidation"].map(parameter);
        let forms: BTreeMap<_, _> = ["apply-patch+yaml", "merge-patch+json"]
            .map(|form| (format!("application/{form}"), json!({})))
            .into();
        let patch = json!({
            "parameters": parameters,
            "requestBody": {"content": forms},
            "responses": {},
            "x-kubernetes-action": "patch",
            "x-kubernetes-group-version-kind": {"group": group, "version": version, "kind": resource.kind},
        });
        let path = format!("{root}/{version}{scope}/{}/{{name}}", resource.plural);
        paths.insert(path, json!({"patch": patch}));
    }
    json!({
        "openapi": "3.0.0",
        "info": {"title": "strait-sim", "version": "v1.34.0"},
        "paths": paths,
        "components": {},
    })
}
