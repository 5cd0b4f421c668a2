//! The rights of a member's reader, with the effect of each missing right: `strait cluster add
//! --rights`.

use super::manifests::{More, Rbac};
use crate::cli::output::{self, Cell, OutputStyle};

/// One right and the effect of its absence.
#[derive(Debug, Clone, Copy)]
pub(super) struct ReaderRight {
    verbs: &'static str,
    objects: &'static str,
    lost: &'static str,
}

const READ: &str = "get, list, watch";

/// Returns the rights of a reader of this level with these extras; with `inject`, also the right to
/// read the webhook.
pub(super) fn rights(rbac: Rbac, more: &More, inject: bool) -> Vec<ReaderRight> {
    let right = |verbs, objects, lost| ReaderRight { verbs, objects, lost };
    let mut rights = vec![
        right(READ, "services, endpointslices", "everything: nothing of the cluster is known"),
        right(
            READ,
            "namespaces",
            "the network that its label names, and which namespaces discoverySelectors choose",
        ),
    ];
    if rbac == Rbac::Full {
        rights.extend([
            right(
                READ,
                "pods",
                "identities: nothing of it crosses networks, and its pods' tokens prove no pod",
            ),
            right(READ, "nodes", "localities of pods, and addresses of NodePort gateways"),
            right(
                READ,
                "gateways",
                "gateways that the Gateway API names; Services still name some",
            ),
            right(
                READ,
                "serviceexports, serviceimports",
                "multi-cluster services (strait serve --mcs)",
            ),
            right(READ, "workloadentries", "machines that the cluster's own entries name"),
            right(
                "create",
                "tokenreviews",
                "pods whose tokens are signed by a key that is not known yet can't join",
            ),
            right(
                "get",
                "/.well-known/openid-configuration, /openid/v1/jwks",
                "the keys that sign tokens: while its API server is away no pod of it joins",
            ),
        ]);
    }
    if more.own_mesh {
        right_of(
            &mut rights,
            "get",
            "configmaps strait, istio",
            "the trust domain that the cluster names itself",
        );
    }
    if more.own_traffic {
        right_of(
            &mut rights,
            READ,
            "virtualservices, destinationrules, sidecars, gateways, envoyfilters, telemetries, httproutes, grpcroutes, \
             tcproutes, tlsroutes, referencegrants",
            "its own traffic objects, where trafficFrom of the policy file has them count for its proxies",
        );
    }
    if more.roots {
        right_of(
            &mut rights,
            "get, list, watch, update",
            "configmaps istio-ca-root-cert, strait-ca-root-cert",
            "new roots in it: pods go on with those that are there until somebody writes the new ones",
        );
        right_of(
            &mut rights,
            "create",
            "configmaps",
            "roots in new namespaces: injected pods and gateways wait there until somebody writes them",
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
            "the same: whether a gateway's own account may list Secrets is not known",
        );
    }
    if more.self_renew {
        right_of(
            &mut rights,
            "create",
            "serviceaccounts/token, of strait-reader alone",
            "its next token: yours to renew by 'strait cluster rotate'",
        );
    }
    if inject {
        right_of(
            &mut rights,
            "get",
            "mutatingwebhookconfiguration strait-inject",
            "'strait check' can't say what becomes of new pods while the control plane is away",
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
    output::table(&["MAY", "OBJECTS", "WITHOUT IT IS LOST"], rows.collect(), look)
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
            self_renew: true,
            roots: true,
            gateway_secrets: vec!["edge".into()],
        };
        for (rbac, more) in
            [(Rbac::Core, More::default()), (Rbac::Full, More::default()), (Rbac::Full, all)]
        {
            let mut given: BTreeSet<(String, String)> = BTreeSet::new();
            for object in reader(rbac, &more) {
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
            let told: BTreeSet<(String, String)> = rights(rbac, &more, false)
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
            assert_eq!(told, given, "{rbac:?} {more:?}");
        }
    }
}
