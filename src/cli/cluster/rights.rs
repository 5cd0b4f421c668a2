//! The rights of a member's reader, with the effect of each missing right: `strait cluster add
//! --rights`.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::api::{ClusterApi, path_of};
use super::manifests::{More, ReaderLevel};
use crate::cli::failure::CommandFailure;
use crate::cli::output::{self, Cell, OutputStyle};
use strait_model::{ImportMode, ReadNamespaces};

/// A right, and the effect if it is missing.
#[derive(Debug, Clone, Copy)]
pub(super) struct ReaderRight {
    verbs: &'static str,
    objects: &'static str,
    lost: &'static str,
}

const READ: &str = "get, list, watch";

/// Describes the objects that a reader can read.
pub(super) fn read_text(level: ReaderLevel, namespaces: &ReadNamespaces) -> String {
    let resources: Vec<&str> = level.resources(namespaces).map(|(_, name)| name).collect();
    let place = match namespaces.names() {
        [] => String::new(),
        names => format!(" in {}", names.join(", ")),
    };
    format!("{}{place}", resources.join(", "))
}

/// Returns the lines of a plan that describe the rights of a reader.
pub(super) fn plan_text(level: ReaderLevel, more: &More) -> String {
    let mut summary = format!(
        "  namespace strait-reader, serviceaccount strait-reader\n  \
         {}: get, list, watch {}; {}, {}\n",
        match more.namespaces.is_whole() {
            true => "clusterrole strait-reader",
            false => "role strait-namespace-reader in each namespace",
        },
        read_text(level, &more.namespaces),
        if more.gateway_secrets.is_empty() {
            "no secrets"
        } else {
            "no secrets except those below"
        },
        match (more.roots, more.imports != ImportMode::Off) {
            (false, false) => "no writes of objects",
            (true, false) => "writes only the ConfigMaps below",
            (_, true) => "writes only the objects below",
        },
    );
    if !level.lists_namespaces(more) {
        summary += "  clusterrole strait-reader: get the namespace kube-system, whose UID identifies the cluster\n  \
             ! without nodes and namespaces, localities come from its EndpointSlices only, and labels and annotations of its\n    \
             namespaces have no effect: set --network if it is not in the default network\n";
        if more.namespaces.is_whole() {
            summary += "  ! discoverySelectors of the mesh config, if set, select none of its namespaces\n";
        }
    } else if !level.has("pods") {
        summary += "  ! without pods and nodes, the identities of its workloads are unknown: its endpoints can't be reached from other networks,\n    \
             localities come from its EndpointSlices only, and its pods can't authenticate with tokens\n";
    }
    if more.verifies_tokens() {
        summary += "  create tokenreviews, and get the keys that sign tokens:\n    \
             to authenticate pods by their tokens\n";
    }
    if more.roots {
        summary += "  create ConfigMaps; get, list, watch, update istio-ca-root-cert and strait-ca-root-cert:\n    \
                 the root certificates for its workloads\n";
    }
    for namespace in &more.gateway_secrets {
        summary += &format!(
            "  role strait-gateway-secrets in {namespace}: get, list, watch its secrets, for the gateways there;\n    \
             create subjectaccessreviews, to check whether a gateway's own account may list them\n"
        );
    }
    if more.imports != ImportMode::Off {
        let kinds = match more.imports {
            ImportMode::Full => "serviceimports, services and endpointslices",
            _ => "serviceimports and services",
        };
        summary += &format!(
            "  create, patch, delete {kinds}; patch the statuses of exports and imports:\n    \
             for exported services (--mcs-imports). The validatingadmissionpolicy strait-reader-imports limits this\n    \
             to objects with the label strait.dev/clusterset. Without it, the token could redirect any plain-text traffic\n"
        );
    }
    if more.self_renew {
        summary += "  role strait-reader: create serviceaccounts/token, only for strait-reader: its next token\n";
    }
    if more.own_mesh {
        summary += "  get the ConfigMaps strait and istio: its own trust domain\n";
    }
    if more.own_traffic {
        summary += "  get, list, watch its traffic objects, which apply to its proxies if the policy file allows it (trafficFrom)\n";
    }
    if !level.has("gateways") {
        summary += "  not for gateways of the Gateway API, exports and imports of services, and WorkloadEntries: --level 3\n";
    }
    if !more.verifies_tokens() && more.namespaces.is_whole() {
        summary += "  not to review tokens of pods that are not known yet: --tokens\n";
    }
    summary += "  the features that need each right: strait cluster add --rights\n";
    summary
}

/// Returns the lines of a plan that name the rights that existing roles lose.
pub(super) async fn removed_text(
    remote: &ClusterApi,
    objects: &[Value],
) -> Result<String, CommandFailure> {
    let mut text = String::new();
    for role in objects.iter().filter(|one| one["kind"] == "ClusterRole" || one["kind"] == "Role") {
        let Some(existing) = remote.get(&path_of(role)).await? else { continue };
        let removed = removed_rights(&existing, role);
        if !removed.is_empty() {
            let (kind, name) =
                (output::text(&role["kind"]), output::text(&role["metadata"]["name"]));
            let place = match role["metadata"]["namespace"].as_str() {
                Some(namespace) => format!(" in {namespace}"),
                None => String::new(),
            };
            text += &format!("  ! {} {name}{place}: {}\n", kind.to_lowercase(), removed.join("; "));
        }
    }
    Ok(match text.is_empty() {
        true => text,
        false => format!(
            "Will remove these rights from {}; to keep them, add their flags, for example --level 3 --tokens\n{text}",
            remote.context
        ),
    })
}

/// Returns the rights of a role that it no longer has with the rules of another one, as verbs and
/// resources.
fn removed_rights(before: &Value, after: &Value) -> Vec<String> {
    let remaining = granted(after);
    let is_removed = |(verb, group, resource, name): &GrantedRight| {
        let all_names = (verb.clone(), group.clone(), resource.clone(), String::new());
        let named = (verb.clone(), group.clone(), resource.clone(), name.clone());
        !remaining.contains(&all_names) && !remaining.contains(&named)
    };
    let mut verbs_by_object: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (verb, group, resource, name) in granted(before).into_iter().filter(is_removed) {
        let group = if group.is_empty() { group } else { format!(".{group}") };
        let name = if name.is_empty() { name } else { format!(" {name}") };
        verbs_by_object.entry(format!("{resource}{group}{name}")).or_default().push(verb);
    }
    let mut objects_by_verbs: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (object, verbs) in verbs_by_object {
        objects_by_verbs.entry(verbs.join(", ")).or_default().push(object);
    }
    let line = |(verbs, objects): (String, Vec<String>)| format!("{verbs} {}", objects.join(", "));
    objects_by_verbs.into_iter().map(line).collect()
}

/// Verb, API group, resource or path, and name of the object; no name for all objects.
type GrantedRight = (String, String, String, String);

/// Returns the rights that the rules of a role grant.
fn granted(role: &Value) -> BTreeSet<GrantedRight> {
    let texts = |value: &Value, absent: &[&str]| -> Vec<String> {
        match value.as_array().filter(|all| !all.is_empty()) {
            Some(all) => all.iter().filter_map(Value::as_str).map(str::to_owned).collect(),
            None => absent.iter().map(|one| (*one).to_owned()).collect(),
        }
    };
    let mut granted = BTreeSet::new();
    for rule in output::items(&role["rules"]) {
        let names = texts(&rule["resourceNames"], &[""]);
        let mut resources = texts(&rule["resources"], &[]);
        resources.extend(texts(&rule["nonResourceURLs"], &[]));
        for verb in texts(&rule["verbs"], &[]) {
            for group in texts(&rule["apiGroups"], &[""]) {
                for resource in &resources {
                    let right = |name: &String| {
                        (verb.clone(), group.clone(), resource.clone(), name.clone())
                    };
                    granted.extend(names.iter().map(right));
                }
            }
        }
    }
    granted
}

/// Returns the effect of a missing right in the form of `missingRights`, for example `list pods` or
/// `watch endpointslices.discovery.k8s.io in shop`.
pub(super) fn lost(missing: &str) -> Option<&'static str> {
    let (_, object) = missing.split_once(' ')?;
    let resource = object.split([' ', '.']).next()?;
    let all = rights(ReaderLevel::Kinds, &More::default(), false);
    let right = all.into_iter().find(|right| right.objects.split(", ").any(|one| one == resource));
    right.map(|right| right.lost)
}

/// Returns the rights of a reader of this level with these extras; with `inject`, also the right to
/// read the webhook.
pub(super) fn rights(level: ReaderLevel, more: &More, inject: bool) -> Vec<ReaderRight> {
    let right = |verbs, objects, lost| ReaderRight { verbs, objects, lost };
    let mut rights =
        vec![right(READ, "services, endpointslices", "everything: the cluster can't be read")];
    rights.push(match level.lists_namespaces(more) {
        true => right(
            READ,
            "namespaces",
            "the network from the namespace's label, and the namespaces that discoverySelectors select",
        ),
        false => right(
            "get",
            "namespaces kube-system",
            "the check that a new credential or address leads to the same cluster",
        ),
    });
    let pods = right(
        READ,
        "pods",
        "identities: its endpoints can't be reached from other networks, and its pods can't authenticate with tokens",
    );
    rights.extend(level.has("pods").then_some(pods));
    if level.has("gateways") {
        rights.extend([
            right(
                READ,
                "gateways",
                "gateways defined with the Gateway API; gateways defined by Services still work",
            ),
            right(
                READ,
                "serviceexports, serviceimports",
                "multi-cluster services (strait serve --mcs)",
            ),
            right(
                READ,
                "workloadentries",
                "machines that are defined by WorkloadEntries of the cluster",
            ),
        ]);
    }
    let nodes = right(READ, "nodes", "localities of pods, and addresses of NodePort gateways");
    rights.extend((more.namespaces.is_whole() && level.has("nodes")).then_some(nodes));
    if more.verifies_tokens() {
        rights.extend([
            right(
                "create",
                "tokenreviews",
                "pods whose tokens are signed with a new key can't connect",
            ),
            right(
                "get",
                "/.well-known/openid-configuration, /openid/v1/jwks",
                "the keys that sign tokens: while its API server is unreachable, its pods can't connect",
            ),
        ]);
    }
    if more.own_mesh {
        right_of(
            &mut rights,
            "get",
            "configmaps strait, istio",
            "the trust domain from the cluster's own mesh settings",
        );
    }
    if more.own_traffic {
        right_of(
            &mut rights,
            READ,
            "virtualservices, destinationrules, sidecars, gateways, envoyfilters, telemetries, httproutes, grpcroutes, \
             tcproutes, tlsroutes, referencegrants",
            "its own traffic objects, which trafficFrom of the policy file applies to its proxies",
        );
    }
    if more.roots {
        right_of(
            &mut rights,
            "get, list, watch, update",
            "configmaps istio-ca-root-cert, strait-ca-root-cert",
            "new root certificates: pods keep the existing ones until another program writes the new ones",
        );
        right_of(
            &mut rights,
            "create",
            "configmaps",
            "root certificates in new namespaces: injected pods and gateways wait until another program writes them",
        );
        right_of(
            &mut rights,
            "create, get, patch",
            "clustertrustbundles strait.dev:mesh:roots",
            "root certificates in a ClusterTrustBundle: pods must mount the ConfigMap of their namespace",
        );
        right_of(
            &mut rights,
            "attest",
            "signers strait.dev/mesh",
            "root certificates in a ClusterTrustBundle, like the right above",
        );
    }
    if !more.gateway_secrets.is_empty() {
        right_of(
            &mut rights,
            READ,
            "secrets, of the namespaces named with --gateway-secrets",
            "certificates of the ingress gateways there",
        );
        right_of(
            &mut rights,
            "create",
            "subjectaccessreviews",
            "certificates of the ingress gateways there: the check whether a gateway's own account may list Secrets fails",
        );
    }
    if more.imports != ImportMode::Off {
        right_of(
            &mut rights,
            "patch",
            "serviceexports/status, serviceimports/status",
            "the conditions of exports, and imports that are ready",
        );
        right_of(
            &mut rights,
            "create, patch, delete",
            "serviceimports, services",
            "names of exported services for pods without sidecars (strait serve --mcs-imports)",
        );
    }
    if more.imports == ImportMode::Full {
        right_of(
            &mut rights,
            "create, patch, delete",
            "endpointslices",
            "endpoints of exported services for pods without sidecars (strait serve --mcs-imports full)",
        );
    }
    if more.self_renew {
        right_of(
            &mut rights,
            "create",
            "serviceaccounts/token, of strait-reader alone",
            "its next token: renew it with 'strait cluster rotate'",
        );
    }
    if inject {
        right_of(
            &mut rights,
            "get",
            "mutatingwebhookconfiguration strait-inject",
            "'strait check' can't report how new pods are treated while the control plane is unreachable",
        );
    }
    rights
}

fn right_of(
    rights: &mut Vec<ReaderRight>,
    verbs: &'static str,
    objects: &'static str,
    lost: &'static str,
) {
    rights.push(ReaderRight { verbs, objects, lost });
}

/// Renders the rights as a table.
pub(super) fn table(rights: &[ReaderRight], look: &OutputStyle) -> String {
    let rows =
        rights.iter().map(|right| [right.verbs, right.objects, right.lost].map(Cell::from).into());
    output::table(&["MAY", "OBJECTS", "NOT AVAILABLE WITHOUT IT"], rows.collect(), look)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::manifests::reader;
    use super::*;
    use crate::cli::output::items;

    #[test]
    fn missing_right_has_its_effect() {
        let effect = |right: &str| lost(right).unwrap_or_default();
        assert!(effect("list pods").starts_with("identities"));
        assert!(effect("watch endpointslices.discovery.k8s.io in shop").starts_with("everything"));
        assert!(effect("list nodes").starts_with("localities"));
        assert_eq!(lost("list widgets"), None);
    }

    #[test]
    fn removed_rights_are_those_that_the_new_rules_do_not_cover() {
        let rules = |rules: Value| json!({ "rules": rules });
        let before = rules(json!([
            { "apiGroups": [""], "resources": ["pods", "nodes"], "verbs": ["get", "list"] },
            { "apiGroups": [""], "resources": ["namespaces"], "resourceNames": ["kube-system"], "verbs": ["get"] },
            { "apiGroups": [""], "resources": ["configmaps"], "resourceNames": ["istio"], "verbs": ["get"] },
            { "apiGroups": ["multicluster.x-k8s.io"], "resources": ["serviceexports"], "verbs": ["get", "list"] },
            { "nonResourceURLs": ["/openid/v1/jwks"], "verbs": ["get"] },
        ]));
        let after = rules(json!([
            { "apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"] },
            { "apiGroups": [""], "resources": ["namespaces"], "verbs": ["get"] },
            { "apiGroups": [""], "resources": ["nodes"], "verbs": ["list"] },
        ]));
        assert_eq!(
            removed_rights(&before, &after),
            [
                "get /openid/v1/jwks, configmaps istio, nodes",
                "get, list serviceexports.multicluster.x-k8s.io"
            ]
        );
        assert_eq!(removed_rights(&after, &after), [""; 0]);
    }

    #[test]
    fn table_lists_exactly_the_granted_rights() {
        let all = More {
            own_mesh: true,
            own_traffic: true,
            tokens: true,
            self_renew: true,
            roots: true,
            gateway_secrets: vec!["edge".into()],
            imports: ImportMode::Full,
            namespaces: ReadNamespaces::default(),
        };
        let namespaces = ReadNamespaces::of(["shop", "edge"]).expect("valid");
        let limited = More { namespaces, self_renew: true, ..More::default() };
        for (level, more) in [
            (ReaderLevel::Core, More::default()),
            (ReaderLevel::Kinds, all),
            (ReaderLevel::Core, limited.clone()),
            (ReaderLevel::Endpoints, limited.clone()),
            (ReaderLevel::Kinds, limited),
            (ReaderLevel::Endpoints, More::default()),
            (ReaderLevel::Places, More::default()),
            (ReaderLevel::Places, More { tokens: true, ..More::default() }),
            (ReaderLevel::Kinds, More::default()),
            (ReaderLevel::Kinds, More { tokens: true, ..More::default() }),
        ] {
            let mut given: BTreeSet<(String, String)> = BTreeSet::new();
            for object in reader(level, &more) {
                for rule in items(&object["rules"]) {
                    let texts = |key: &str| -> Vec<String> {
                        items(&rule[key])
                            .iter()
                            .filter_map(Value::as_str)
                            .map(str::to_owned)
                            .collect()
                    };
                    let verbs = texts("verbs").join(", ");
                    let objects = texts("resources").into_iter().chain(texts("nonResourceURLs"));
                    given.extend(objects.map(|object| (verbs.clone(), object)));
                }
            }
            let listed: BTreeSet<(String, String)> = rights(level, &more, false)
                .into_iter()
                .flat_map(|right| {
                    // Words after the first one are names of objects of the kind.
                    let kinds =
                        right.objects.split(", ").filter_map(|part| part.split([' ', ',']).next());
                    let kinds = kinds
                        .filter(|kind| !kind.starts_with("istio") && !kind.starts_with("strait"));
                    kinds.map(|kind| (right.verbs.to_owned(), kind.to_owned())).collect::<Vec<_>>()
                })
                .filter(|(_, kind)| kind != "of")
                .collect();
            assert_eq!(listed, given, "{level:?} {more:?}");
        }
    }
}
