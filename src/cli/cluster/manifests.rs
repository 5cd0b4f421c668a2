//! Objects that `strait cluster add` creates in a member cluster: a reader with minimal rights.
//!
//! The same values are shown, printed by `-o yaml` and applied.

use clap::ValueEnum;
use serde_json::{Value, json};

use strait_model::{ConfigKind, GATEWAY_API, ImportMode, ReadNamespaces};

/// Name of the reader's namespace, service account, role and binding.
pub(super) const READER: &str = "strait-reader";
const CERTIFICATES: &str = "certificates.k8s.io";
/// Path for requesting tokens of the reader.
pub(crate) const TOKEN_PATH: &str =
    "/api/v1/namespaces/strait-reader/serviceaccounts/strait-reader/token";

/// Rights of the reader by their earlier names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Rbac {
    /// services, endpointslices, namespaces
    Core,
    /// the same as --level 2 --tokens
    Full,
}

/// The kinds of objects that a reader may list and watch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReaderLevel {
    /// Services, EndpointSlices and namespaces (`--rbac core`).
    Core,
    /// Services, EndpointSlices and pods (`--level 1`).
    Endpoints,
    /// Also nodes and namespaces (`--level 2`).
    Places,
    /// Also gateways, multi-cluster services and WorkloadEntries (`--level 3`).
    Kinds,
}

impl ReaderLevel {
    /// Returns the name in plans.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Core => "rbac level core",
            Self::Endpoints => "level 1",
            Self::Places => "level 2",
            Self::Kinds => "level 3",
        }
    }

    /// Returns whether the reader reads a kind in the whole cluster.
    pub(crate) fn has(self, plural: &str) -> bool {
        match self {
            Self::Core => ["services", "endpointslices", "namespaces"].contains(&plural),
            Self::Endpoints => ["services", "endpointslices", "pods"].contains(&plural),
            Self::Places => {
                ["services", "endpointslices", "pods", "namespaces", "nodes"].contains(&plural)
            }
            Self::Kinds => true,
        }
    }

    /// Returns API group and plural name of the kinds that the reader gets, lists and watches, in the
    /// whole cluster or in these namespaces.
    pub(crate) fn resources(
        self,
        namespaces: &ReadNamespaces,
    ) -> impl Iterator<Item = (&'static str, &'static str)> + use<> {
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
        let is_whole = namespaces.is_whole();
        let is_possible = move |name: &str| is_whole || !["namespaces", "nodes"].contains(&name);
        ALL.into_iter().filter(move |(_, name)| self.has(name) && is_possible(name))
    }

    /// Returns whether the reader may list namespaces. Otherwise, it may read only `kube-system`,
    /// whose UID identifies the cluster.
    pub(crate) fn lists_namespaces(self, more: &More) -> bool {
        more.namespaces.is_whole() && self.has("namespaces")
    }
}

/// Optional rights of a reader.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct More {
    /// Read the cluster's own mesh settings.
    pub(crate) own_mesh: bool,
    /// Read the cluster's traffic objects, which the policy may apply to its proxies.
    pub(crate) own_traffic: bool,
    /// Verify the tokens of pods.
    pub(crate) tokens: bool,
    /// Request tokens for itself.
    pub(crate) self_renew: bool,
    /// Write the root certificates for workloads into each namespace.
    pub(crate) roots: bool,
    /// Read the Secrets of these namespaces, for the gateways that run there.
    pub(crate) gateway_secrets: Vec<String>,
    /// Write the objects of exported services: ServiceImports, their Services and, in the mode
    /// `full`, EndpointSlices.
    pub(crate) imports: ImportMode,
    /// The namespaces to which it is limited.
    pub(crate) namespaces: ReadNamespaces,
}

impl More {
    /// Returns whether the reader may verify tokens of pods, which is a right in the whole cluster.
    pub(crate) fn verifies_tokens(&self) -> bool {
        self.tokens && self.namespaces.is_whole()
    }
}

/// Returns the plural names of the kinds of a cluster's traffic objects, sorted, by API group.
fn own_traffic() -> Vec<(&'static str, Vec<&'static str>)> {
    let mut groups = Vec::<(&str, Vec<&str>)>::new();
    for kind in ConfigKind::in_members() {
        match groups.iter_mut().find(|(group, _)| *group == kind.group) {
            Some((_, plurals)) => plurals.push(kind.plural),
            None => groups.push((kind.group, vec![kind.plural])),
        }
    }
    for (_, plurals) in &mut groups {
        plurals.sort_unstable();
    }
    groups
}

/// Name of the admission policy that limits the reader's writes, and of its binding.
const IMPORTS_POLICY: &str = "strait-reader-imports";
/// Name of the role that permits reading the Secrets of a namespace.
const SECRETS_READER: &str = "strait-gateway-secrets";
/// Name of the role that permits reading a namespace, of a reader that is limited to namespaces.
const NAMESPACE_READER: &str = "strait-namespace-reader";

/// Returns the objects of the reader, in the order in which they can be created.
pub(crate) fn reader(level: ReaderLevel, more: &More) -> Vec<Value> {
    let labels = json!({
        "app.kubernetes.io/name": READER,
        "app.kubernetes.io/part-of": "strait",
        "app.kubernetes.io/managed-by": "strait",
    });
    let metadata = json!({ "name": READER, "labels": labels });
    let mut namespaced = metadata.clone();
    namespaced["namespace"] = json!(READER);
    let read_rules = read_rules(level, &more.namespaces);
    let mut rules = match more.namespaces.is_whole() {
        true => read_rules.clone(),
        false => Vec::new(),
    };
    if !level.lists_namespaces(more) {
        // Its UID identifies the cluster.
        rules.push(json!({
            "apiGroups": [""], "resources": ["namespaces"], "resourceNames": ["kube-system"],
            "verbs": ["get"],
        }));
    }
    if more.verifies_tokens() {
        rules.push(json!({
            "apiGroups": ["authentication.k8s.io"], "resources": ["tokenreviews"],
            "verbs": ["create"],
        }));
        // The rights of Kubernetes' own role system:service-account-issuer-discovery.
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
        rules.extend(own_traffic().into_iter().map(|(group, resources)| {
            json!({ "apiGroups": [group], "resources": resources, "verbs": ["get", "list", "watch"] })
        }));
    }
    if more.roots {
        rules.push(json!({
            "apiGroups": [""], "resources": ["configmaps"],
            "resourceNames": ["istio-ca-root-cert", "strait-ca-root-cert"],
            "verbs": ["get", "list", "watch", "update"],
        }));
        // RBAC cannot restrict `create` by name, because the object does not exist yet.
        rules.push(json!({ "apiGroups": [""], "resources": ["configmaps"], "verbs": ["create"] }));
        rules.push(json!({
            "apiGroups": [CERTIFICATES], "resources": ["clustertrustbundles"],
            "resourceNames": ["strait.dev:mesh:roots"], "verbs": ["create", "get", "patch"],
        }));
        rules.push(json!({
            "apiGroups": [CERTIFICATES], "resources": ["signers"],
            "resourceNames": ["strait.dev/mesh"], "verbs": ["attest"],
        }));
    }
    if !more.gateway_secrets.is_empty() {
        // To check whether a gateway's own account may read the Secrets that it requests.
        rules.push(json!({
            "apiGroups": ["authorization.k8s.io"], "resources": ["subjectaccessreviews"],
            "verbs": ["create"],
        }));
    }
    rules.extend(import_rules(more.imports));
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
    if more.imports != ImportMode::Off {
        made.extend(import_admission(more.imports, &labels));
    }
    let mut grant = |name: &str, namespace: &str, rules: Value| {
        let metadata = json!({ "name": name, "namespace": namespace, "labels": labels });
        made.push(json!({
            "apiVersion": format!("{api}/v1"), "kind": "Role", "metadata": metadata,
            "rules": rules,
        }));
        made.push(json!({
            "apiVersion": format!("{api}/v1"), "kind": "RoleBinding", "metadata": metadata,
            "roleRef": { "apiGroup": api, "kind": "Role", "name": name },
            "subjects": subjects,
        }));
    };
    for namespace in &more.gateway_secrets {
        let rule = json!({
            "apiGroups": [""], "resources": ["secrets"], "verbs": ["get", "list", "watch"],
        });
        grant(SECRETS_READER, namespace, json!([rule]));
    }
    for namespace in more.namespaces.names() {
        grant(NAMESPACE_READER, namespace, json!(read_rules));
    }
    made
}

/// Returns the rules for reading all kinds of a level.
fn read_rules(level: ReaderLevel, namespaces: &ReadNamespaces) -> Vec<Value> {
    let groups =
        ["", "discovery.k8s.io", GATEWAY_API, "multicluster.x-k8s.io", "networking.istio.io"];
    let rule = |group: &str| {
        let resources = level.resources(namespaces).filter(|(of, _)| *of == group);
        let resources: Vec<&str> = resources.map(|(_, resource)| resource).collect();
        (!resources.is_empty()).then(|| {
            json!({ "apiGroups": [group], "resources": resources, "verbs": ["get", "list", "watch"] })
        })
    };
    groups.into_iter().filter_map(rule).collect()
}

/// Returns the rules for writing the objects of exported services.
fn import_rules(mode: ImportMode) -> Vec<Value> {
    if mode == ImportMode::Off {
        return Vec::new();
    }
    let written = json!(["create", "patch", "delete"]);
    let slices = json!({
        "apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": written,
    });
    let mut rules = vec![
        json!({
            "apiGroups": ["multicluster.x-k8s.io"],
            "resources": ["serviceexports/status", "serviceimports/status"], "verbs": ["patch"],
        }),
        json!({
            "apiGroups": ["multicluster.x-k8s.io"], "resources": ["serviceimports"],
            "verbs": written,
        }),
        // RBAC cannot restrict them to Strait's own: the admission policy does.
        json!({ "apiGroups": [""], "resources": ["services"], "verbs": written }),
    ];
    rules.extend((mode == ImportMode::Full).then_some(slices));
    rules
}

/// Returns the ValidatingAdmissionPolicy that limits the reader to objects with Strait's label, and
/// its binding. Slices may belong to derived Services only: a slice of another Service would receive
/// a part of its traffic.
fn import_admission(mode: ImportMode, labels: &Value) -> [Value; 2] {
    let metadata = json!({ "name": IMPORTS_POLICY, "labels": labels });
    let labelled = |object: &str| {
        format!(
            "has({object}.metadata.labels) && 'strait.dev/clusterset' in {object}.metadata.labels"
        )
    };
    let (new, old) = (labelled("object"), labelled("oldObject"));
    let message = "this account may only write objects with the label strait.dev/clusterset";
    let rule = |group: &str, resource: &str| {
        json!({
            "apiGroups": [group], "apiVersions": ["*"], "resources": [resource],
            "operations": ["CREATE", "UPDATE", "DELETE"],
        })
    };
    let api = "admissionregistration.k8s.io/v1";
    let mut rules = vec![rule("", "services"), rule("multicluster.x-k8s.io", "serviceimports")];
    let mut validations = vec![
        json!({ "expression": format!("request.operation == 'DELETE' || ({new})"), "message": message }),
        json!({ "expression": format!("request.operation == 'CREATE' || ({old})"), "message": message }),
    ];
    if mode == ImportMode::Full {
        rules.push(rule("discovery.k8s.io", "endpointslices"));
        let service = "kubernetes.io/service-name";
        let is_derived = |object: &str| {
            format!(
                "has({object}.metadata.labels) && '{service}' in {object}.metadata.labels && \
                 {object}.metadata.labels['{service}'].startsWith('derived-')"
            )
        };
        let other = "request.resource.resource != 'endpointslices'";
        let (new, old) = (is_derived("object"), is_derived("oldObject"));
        let message = "this account may only write EndpointSlices of derived Services";
        validations.extend([
            json!({
                "expression": format!("{other} || request.operation == 'DELETE' || ({new})"),
                "message": message,
            }),
            json!({
                "expression": format!("{other} || request.operation == 'CREATE' || ({old})"),
                "message": message,
            }),
        ]);
    }
    [
        json!({
            "apiVersion": api, "kind": "ValidatingAdmissionPolicy", "metadata": metadata,
            "spec": {
                "failurePolicy": "Fail",
                "matchConstraints": { "resourceRules": rules },
                "matchConditions": [{
                    "name": "reader",
                    "expression": format!(
                        "request.userInfo.username == 'system:serviceaccount:{READER}:{READER}'"
                    ),
                }],
                "validations": validations,
            },
        }),
        json!({
            "apiVersion": api, "kind": "ValidatingAdmissionPolicyBinding", "metadata": metadata,
            "spec": { "policyName": IMPORTS_POLICY, "validationActions": ["Deny"] },
        }),
    ]
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn reader_has_no_access_to_secrets() {
        for (level, expected) in [
            (ReaderLevel::Core, vec!["services", "namespaces", "endpointslices"]),
            (
                ReaderLevel::Kinds,
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
            let tokens = level == ReaderLevel::Kinds;
            let with_tokens = More { tokens, ..More::default() };
            let role = &reader(level, &with_tokens)[2];
            let rules = role["rules"].as_array().expect("rules");
            let own = More { own_mesh: true, ..with_tokens.clone() };
            let with_own = &reader(level, &own)[2]["rules"];
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
            assert_eq!(asks.is_some(), tokens, "whose tokens pods bring");
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
    fn each_level_adds_kinds_and_tokens_are_separate() {
        let kube_system = json!({
            "apiGroups": [""], "resources": ["namespaces"], "resourceNames": ["kube-system"],
            "verbs": ["get"],
        });
        let granted = |level, tokens| -> BTreeSet<String> {
            let rules = reader(level, &More { tokens, ..More::default() })[2]["rules"].clone();
            let rules = rules.as_array().expect("rules").clone();
            let names_kube_system = rules.contains(&kube_system);
            assert_eq!(names_kube_system, level == ReaderLevel::Endpoints, "{level:?}");
            let rules = rules.iter().filter(|rule| **rule != kube_system);
            let resources = rules.filter_map(|rule| rule["resources"].as_array()).flatten();
            resources.filter_map(Value::as_str).map(str::to_owned).collect()
        };
        let set = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let mut expected: BTreeSet<String> = set(&["services", "endpointslices", "pods"]);
        assert_eq!(granted(ReaderLevel::Endpoints, false), expected);
        expected.append(&mut set(&["nodes", "namespaces"]));
        assert_eq!(granted(ReaderLevel::Places, false), expected);
        expected.append(&mut set(&[
            "gateways",
            "serviceexports",
            "serviceimports",
            "workloadentries",
        ]));
        assert_eq!(granted(ReaderLevel::Kinds, false), expected);
        expected.append(&mut set(&["tokenreviews"]));
        assert_eq!(granted(ReaderLevel::Kinds, true), expected);
    }

    #[test]
    fn own_traffic_grants_all_supported_traffic_kinds() {
        let text = |own_traffic| {
            let more = More { own_traffic, ..More::default() };
            Value::Array(reader(ReaderLevel::Kinds, &more)).to_string()
        };
        assert!(!text(false).contains("virtualservices"));
        let granted = text(true);
        for ConfigKind { plural, .. } in ConfigKind::in_members() {
            assert!(granted.contains(&format!("\"{plural}\"")), "{plural}: {granted}");
        }
    }

    #[test]
    fn config_maps_are_writable_only_for_root_certificates() {
        let rules = |more: More| {
            let role = reader(ReaderLevel::Kinds, &more)[2].clone();
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
    fn rights_to_write_imports_come_with_an_admission_policy() {
        let granted = |imports| reader(ReaderLevel::Kinds, &More { imports, ..More::default() });
        let text = |imports| Value::Array(granted(imports)).to_string();
        assert!(!text(ImportMode::Off).contains("\"create\",\"patch\""));
        let names = granted(ImportMode::Names);
        let written = |role: &Value| -> Vec<String> {
            let rules = role["rules"].as_array().expect("rules").clone();
            let rules = rules
                .into_iter()
                .filter(|rule| rule["verbs"] == json!(["create", "patch", "delete"]));
            rules.filter_map(|rule| rule["resources"][0].as_str().map(str::to_owned)).collect()
        };
        assert_eq!(written(&names[2]), ["serviceimports", "services"]);
        let full = granted(ImportMode::Full);
        assert_eq!(written(&full[2]), ["serviceimports", "services", "endpointslices"]);
        let policy = |all: &[Value]| {
            let policy = all.iter().find(|one| one["kind"] == "ValidatingAdmissionPolicy");
            policy.expect("a policy").to_string()
        };
        assert!(policy(&full).contains("startsWith('derived-')"));
        let policy = policy(&names);
        assert!(!policy.contains("endpointslices"), "{policy}");
        assert!(policy.contains("system:serviceaccount:strait-reader:strait-reader"), "{policy}");
        assert!(policy.contains("'strait.dev/clusterset' in oldObject.metadata.labels"));
    }

    #[test]
    fn self_renewal_grants_tokens_of_the_reader_only() {
        let text = |more: More| Value::Array(reader(ReaderLevel::Kinds, &more)).to_string();
        assert!(!text(More::default()).contains("serviceaccounts/token"));
        let granted = reader(ReaderLevel::Kinds, &More { self_renew: true, ..More::default() });
        let rules = &granted[4]["rules"];
        assert_eq!(rules.as_array().map(Vec::len), Some(1));
        assert_eq!(rules[0]["resourceNames"], json!(["strait-reader"]));
        assert_eq!(rules[0]["verbs"], json!(["create"]));
        assert_eq!(granted[4]["metadata"]["namespace"], "strait-reader");
    }

    #[test]
    fn secrets_are_readable_only_in_the_named_namespaces() {
        let text = |more: &More| Value::Array(reader(ReaderLevel::Kinds, more)).to_string();
        assert!(!text(&More::default()).contains("secrets"));
        let more = More { gateway_secrets: vec!["edge".into()], ..More::default() };
        let granted = reader(ReaderLevel::Kinds, &more);
        assert!(!granted[2].to_string().contains("\"secrets\""), "not for the whole cluster");
        assert_eq!(granted[4]["metadata"]["namespace"], "edge");
        assert_eq!(granted[4]["rules"][0]["verbs"], json!(["get", "list", "watch"]));
        assert_eq!(granted[5]["subjects"][0]["namespace"], "strait-reader");
    }

    #[test]
    fn limited_reader_has_roles_in_its_namespaces_only() {
        let namespaces = ReadNamespaces::of(["shop", "edge"]).expect("valid");
        let more = More { namespaces, ..More::default() };
        let made = reader(ReaderLevel::Kinds, &more);
        assert_eq!(
            made[2]["rules"],
            json!([{
                "apiGroups": [""], "resources": ["namespaces"], "resourceNames": ["kube-system"],
                "verbs": ["get"],
            }])
        );
        let named: Vec<String> = made
            .iter()
            .map(|one| format!("{} {}", text(&one["kind"]), text(&one["metadata"]["namespace"])))
            .collect();
        let expected = [
            "Namespace ",
            "ServiceAccount strait-reader",
            "ClusterRole ",
            "ClusterRoleBinding ",
            "Role edge",
            "RoleBinding edge",
            "Role shop",
            "RoleBinding shop",
        ];
        assert_eq!(named, expected);
        let rules = made[4]["rules"].to_string();
        assert!(rules.contains("endpointslices") && rules.contains("pods"), "{rules}");
        assert!(!rules.contains("nodes") && !rules.contains("namespaces"), "{rules}");
    }

    fn text(value: &Value) -> &str {
        value.as_str().unwrap_or_default()
    }

    #[test]
    fn reader_equals_the_example() {
        let example = include_str!("../../../deploy/examples/reader-rbac.yaml");
        let documents: Vec<Value> =
            example.split("---").map(|text| serde_saphyr::from_str(text).expect("YAML")).collect();
        let made = reader(ReaderLevel::Kinds, &More { tokens: true, ..More::default() });
        assert_eq!(documents.len(), made.len());
        for (example, made) in documents.iter().zip(&made) {
            assert_eq!(example["kind"], made["kind"]);
            assert_eq!(example["metadata"]["name"], made["metadata"]["name"]);
            assert_eq!(example["roleRef"], made["roleRef"]);
            assert_eq!(example["subjects"], made["subjects"]);
        }
    }
}
