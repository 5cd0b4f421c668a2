//! The rights of a member's reader, with the effect of each missing right: `strait cluster add
//! --rights`.

use super::manifests::{More, ReaderLevel};
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
    } else if !level.has("pods") {
        summary += "  ! without pods and nodes, the identities of its workloads are unknown: its endpoints can't be reached from other networks,\n    \
             localities come from its EndpointSlices only, and its pods can't authenticate with tokens\n";
    }
    if level.verifies_tokens(more) {
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
    summary += "  the features that need each right: strait cluster add --rights\n";
    summary
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
    if level.verifies_tokens(more) {
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
    use std::collections::BTreeSet;

    use serde_json::Value;

    use super::super::manifests::reader;
    use super::*;
    use crate::cli::output::items;

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
            (ReaderLevel::Full, More::default()),
            (ReaderLevel::Full, all),
            (ReaderLevel::Core, limited.clone()),
            (ReaderLevel::Endpoints, limited.clone()),
            (ReaderLevel::Full, limited),
            (ReaderLevel::Endpoints, More::default()),
            (ReaderLevel::Places, More::default()),
            (ReaderLevel::Places, More { tokens: true, ..More::default() }),
            (ReaderLevel::Kinds, More::default()),
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
