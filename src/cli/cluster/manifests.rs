//! What `strait cluster add` makes in a member cluster: a reader with the least rights that do.
//!
//! The same values are shown, printed by `-o yaml` and applied.

use clap::ValueEnum;
use serde_json::{Value, json};

use strait_model::{GATEWAY_API, ISTIO_NETWORKING, ISTIO_TELEMETRY};

/// Namespace, service account, role and binding are all called so.
pub(super) const READER: &str = "strait-reader";
/// Where the reader's tokens are asked for.
pub(crate) const TOKEN_PATH: &str =
    "/api/v1/namespaces/strait-reader/serviceaccounts/strait-reader/token";

/// How much the reader may read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Rbac {
    /// services, endpointslices, namespaces
    Core,
    /// and pods and nodes: identities, network labels of pods, localities; and proving whose tokens pods bring
    Full,
}

impl Rbac {
    /// The argument on the command line.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Core => "core",
            Self::Full => "full",
        }
    }

    /// API group and plural name of what the reader gets, lists and watches.
    pub(crate) fn resources(self) -> &'static [(&'static str, &'static str)] {
        const ALL: [(&str, &str); 9] = [
            ("", "services"),
            ("", "namespaces"),
            ("discovery.k8s.io", "endpointslices"),
            ("", "pods"),
            ("", "nodes"),
            (GATEWAY_API, "gateways"),
            ("multicluster.x-k8s.io", "serviceexports"),
            ("multicluster.x-k8s.io", "serviceimports"),
            ("networking.istio.io", "workloadentries"),
        ];
        match self {
            Self::Core => &ALL[..3],
            Self::Full => &ALL,
        }
    }
}

/// What a reader may do beside reading objects.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct More {
    /// Read what the cluster says of its own mesh settings.
    pub(crate) own_mesh: bool,
    /// Read its traffic objects, which the policy may have count for its proxies.
    pub(crate) own_traffic: bool,
    /// Ask for tokens of its own.
    pub(crate) self_renew: bool,
    /// Write the roots that workloads are to believe, in each namespace.
    pub(crate) roots: bool,
    /// Read the Secrets of these namespaces, for the gateways that run there.
    pub(crate) gateway_secrets: Vec<String>,
}

/// The traffic objects of a cluster, by API group.
const OWN_TRAFFIC: [(&str, &[&str]); 3] = [
    (
        ISTIO_NETWORKING,
        &["destinationrules", "envoyfilters", "gateways", "sidecars", "virtualservices"],
    ),
    (ISTIO_TELEMETRY, &["telemetries"]),
    (GATEWAY_API, &["grpcroutes", "httproutes", "referencegrants", "tcproutes", "tlsroutes"]),
];

/// What the role is called by which Secrets of a namespace may be read.
const SECRETS_READER: &str = "strait-gateway-secrets";

/// The objects of the reader, in the order in which they can be made.
pub(crate) fn reader(rbac: Rbac, more: &More) -> Vec<Value> {
    let labels = json!({
        "app.kubernetes.io/name": READER,
        "app.kubernetes.io/part-of": "strait",
        "app.kubernetes.io/managed-by": "strait",
    });
    let metadata = json!({ "name": READER, "labels": labels });
    let mut namespaced = metadata.clone();
    namespaced["namespace"] = json!(READER);
    let mut groups =
        vec!["", "discovery.k8s.io", GATEWAY_API, "multicluster.x-k8s.io", "networking.istio.io"];
    groups.retain(|group| rbac.resources().iter().any(|(of, _)| of == group));
    let mut rules: Vec<Value> = groups
        .iter()
        .map(|group| {
            let resources: Vec<&str> = rbac
                .resources()
                .iter()
                .filter(|(of, _)| of == group)
                .map(|(_, resource)| *resource)
                .collect();
            json!({ "apiGroups": [group], "resources": resources, "verbs": ["get", "list", "watch"] })
        })
        .collect();
    if rbac == Rbac::Full {
        rules.push(json!({
            "apiGroups": ["authentication.k8s.io"], "resources": ["tokenreviews"],
            "verbs": ["create"],
        }));
        // What Kubernetes' own role system:service-account-issuer-discovery permits.
        rules.push(json!({
            "nonResourceURLs": ["/.well-known/openid-configuration", "/openid/v1/jwks"],
            "verbs": ["get"],
        }));
    }
    if more.own_mesh {
        rules.push(json!({
            "apiGroups": [""], "resources": ["configmaps"], "resourceNames": ["strait", "istio"],
            "verbs": ["get"],
        }));
    }
    if more.own_traffic {
        rules.extend(OWN_TRAFFIC.map(|(group, resources)| {
            json!({ "apiGroups": [group], "resources": resources, "verbs": ["get", "list", "watch"] })
        }));
    }
    if more.roots {
        rules.push(json!({
            "apiGroups": [""], "resources": ["configmaps"],
            "resourceNames": ["istio-ca-root-cert", "strait-ca-root-cert"],
            "verbs": ["get", "list", "watch", "update"],
        }));
        // The name of what does not exist yet can't be part of a right.
        rules.push(json!({ "apiGroups": [""], "resources": ["configmaps"], "verbs": ["create"] }));
    }
    if !more.gateway_secrets.is_empty() {
        // Whether a gateway's own account may read what it asks for.
        rules.push(json!({
            "apiGroups": ["authorization.k8s.io"], "resources": ["subjectaccessreviews"],
            "verbs": ["create"],
        }));
    }
    let api = "rbac.authorization.k8s.io";
    let subjects = json!([{ "kind": "ServiceAccount", "name": READER, "namespace": READER }]);
    let mut made = vec![
        json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": metadata }),
        json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": namespaced }),
        json!({
            "apiVersion": format!("{api}/v1"), "kind": "ClusterRole", "metadata": metadata,
            "rules": rules,
        }),
        json!({
            "apiVersion": format!("{api}/v1"), "kind": "ClusterRoleBinding", "metadata": metadata,
            "roleRef": { "apiGroup": api, "kind": "ClusterRole", "name": READER },
            "subjects": subjects,
        }),
    ];
    if more.self_renew {
        made.push(json!({
            "apiVersion": format!("{api}/v1"), "kind": "Role", "metadata": namespaced,
            "rules": [{
                "apiGroups": [""], "resources": ["serviceaccounts/token"],
                "resourceNames": [READER], "verbs": ["create"],
            }],
        }));
        made.push(json!({
            "apiVersion": format!("{api}/v1"), "kind": "RoleBinding", "metadata": namespaced,
            "roleRef": { "apiGroup": api, "kind": "Role", "name": READER },
            "subjects": subjects,
        }));
    }
    for namespace in &more.gateway_secrets {
        let metadata = json!({ "name": SECRETS_READER, "namespace": namespace, "labels": labels });
        made.push(json!({
            "apiVersion": format!("{api}/v1"), "kind": "Role", "metadata": metadata,
            "rules": [{
                "apiGroups": [""], "resources": ["secrets"], "verbs": ["get", "list", "watch"],
            }],
        }));
        made.push(json!({
            "apiVersion": format!("{api}/v1"), "kind": "RoleBinding", "metadata": metadata,
            "roleRef": { "apiGroup": api, "kind": "Role", "name": SECRETS_READER },
            "subjects": subjects,
        }));
    }
    made
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reader_reads_and_never_secrets() {
        for (rbac, expected) in [
            (Rbac::Core, vec!["services", "namespaces", "endpointslices"]),
            (
                Rbac::Full,
                vec![
                    "services",
                    "namespaces",
                    "pods",
                    "nodes",
                    "endpointslices",
                    "gateways",
                    "serviceexports",
                    "serviceimports",
                    "workloadentries",
                ],
            ),
        ] {
            let role = &reader(rbac, &More::default())[2];
            let rules = role["rules"].as_array().expect("rules");
            let own = More { own_mesh: true, ..More::default() };
            let with_own = &reader(rbac, &own)[2]["rules"];
            let more = &with_own.as_array().expect("rules")[rules.len()..];
            assert_eq!(more.len(), 1);
            assert_eq!(more[0]["resourceNames"], json!(["strait", "istio"]));
            let resources: Vec<&str> = rules
                .iter()
                .filter_map(|rule| rule["resources"].as_array())
                .flatten()
                .filter_map(Value::as_str)
                .collect();
            let asks = resources.strip_suffix(&["tokenreviews"]);
            assert_eq!(asks.unwrap_or(&resources), expected);
            assert_eq!(asks.is_some(), rbac == Rbac::Full, "whose tokens pods bring");
            for rule in rules {
                let resources = &rule["resources"];
                let verbs = match resources {
                    Value::Null => json!(["get"]),
                    asks if *asks == json!(["tokenreviews"]) => json!(["create"]),
                    _ => json!(["get", "list", "watch"]),
                };
                assert_eq!(rule["verbs"], verbs, "{resources}");
            }
        }
    }

    #[test]
    fn traffic_objects_are_read_where_asked_for_and_all_of_those_that_count() {
        let text = |own_traffic| {
            let more = More { own_traffic, ..More::default() };
            Value::Array(reader(Rbac::Full, &more)).to_string()
        };
        assert!(!text(false).contains("virtualservices"));
        let granted = text(true);
        for plural in strait_sources::store::member::kinds_in_plural() {
            assert!(granted.contains(&format!("\"{plural}\"")), "{plural}: {granted}");
        }
    }

    #[test]
    fn only_who_is_to_write_roots_may_write_config_maps_and_no_others_but_new_ones() {
        let rules = |more: More| {
            let role = reader(Rbac::Full, &more)[2].clone();
            let rules = role["rules"].as_array().expect("rules").clone();
            rules.into_iter().filter(|rule| rule["resources"] == json!(["configmaps"]))
        };
        assert_eq!(rules(More::default()).count(), 0);
        let granted: Vec<_> = rules(More { roots: true, ..More::default() }).collect();
        assert_eq!(granted.len(), 2);
        assert_eq!(
            granted[0]["resourceNames"],
            json!(["istio-ca-root-cert", "strait-ca-root-cert"])
        );
        assert_eq!(granted[0]["verbs"], json!(["get", "list", "watch", "update"]));
        assert_eq!(granted[1]["verbs"], json!(["create"]));
    }

    #[test]
    fn tokens_of_its_own_are_granted_by_name_and_only_where_asked_for() {
        let text = |more: More| Value::Array(reader(Rbac::Full, &more)).to_string();
        assert!(!text(More::default()).contains("serviceaccounts/token"));
        let granted = reader(Rbac::Full, &More { self_renew: true, ..More::default() });
        let rules = &granted[4]["rules"];
        assert_eq!(rules.as_array().map(Vec::len), Some(1));
        assert_eq!(rules[0]["resourceNames"], json!(["strait-reader"]));
        assert_eq!(rules[0]["verbs"], json!(["create"]));
        assert_eq!(granted[4]["metadata"]["namespace"], "strait-reader");
    }

    #[test]
    fn secrets_are_read_in_the_namespaces_that_are_named_and_nowhere_else() {
        let text = |more: &More| Value::Array(reader(Rbac::Full, more)).to_string();
        assert!(!text(&More::default()).contains("secrets"));
        let more = More { gateway_secrets: vec!["edge".into()], ..More::default() };
        let granted = reader(Rbac::Full, &more);
        assert!(!granted[2].to_string().contains("\"secrets\""), "not for the whole cluster");
        assert_eq!(granted[4]["metadata"]["namespace"], "edge");
        assert_eq!(granted[4]["rules"][0]["verbs"], json!(["get", "list", "watch"]));
        assert_eq!(granted[5]["subjects"][0]["namespace"], "strait-reader");
    }

    #[test]
    fn it_is_what_the_example_shows() {
        let example = include_str!("../../../deploy/examples/reader-rbac.yaml");
        let documents: Vec<Value> =
            example.split("---").map(|text| serde_saphyr::from_str(text).expect("YAML")).collect();
        let made = reader(Rbac::Full, &More::default());
        assert_eq!(documents.len(), made.len());
        for (example, made) in documents.iter().zip(&made) {
            assert_eq!(example["kind"], made["kind"]);
            assert_eq!(example["metadata"]["name"], made["metadata"]["name"]);
            assert_eq!(example["roleRef"], made["roleRef"]);
            assert_eq!(example["subjects"], made["subjects"]);
        }
    }
}
