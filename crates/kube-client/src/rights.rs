//! The rights of a client's account, as the API server lists them.

use serde::Deserialize;
use serde_json::json;

use super::{ApiClient, ApiError};

const RULES_PATH: &str = "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews";

/// The rights of the account in one namespace, including its rights in the cluster.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OwnRights {
    #[serde(default, deserialize_with = "super::null_as_default")]
    resource_rules: Vec<ResourceRule>,
    #[serde(default)]
    incomplete: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ResourceRule {
    #[serde(default, deserialize_with = "super::null_as_default")]
    verbs: Vec<String>,
    #[serde(default, deserialize_with = "super::null_as_default")]
    api_groups: Vec<String>,
    #[serde(default, deserialize_with = "super::null_as_default")]
    resources: Vec<String>,
    #[serde(default, deserialize_with = "super::null_as_default")]
    resource_names: Vec<String>,
}

impl OwnRights {
    /// Requests the rights of the account of `client` in a namespace. The namespace need not exist.
    ///
    /// # Errors
    /// Every [`ApiError`].
    pub async fn read(client: &ApiClient, namespace: &str) -> Result<Self, ApiError> {
        #[derive(Deserialize)]
        struct RulesReview {
            status: OwnRights,
        }
        let review = json!({
            "apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectRulesReview",
            "spec": { "namespace": namespace },
        });
        client.create::<RulesReview>(RULES_PATH, &review).await.map(|review| review.status)
    }

    /// Whether the account certainly lacks a right to all objects of a kind. A server with other
    /// authorizers than RBAC may not list all rights; then none is known to be missing.
    pub fn lacks(&self, verb: &str, group: &str, resource: &str) -> bool {
        let has = |list: &[String], value: &str| list.iter().any(|one| one == "*" || one == value);
        let grants = |rule: &ResourceRule| {
            rule.resource_names.is_empty()
                && has(&rule.verbs, verb)
                && has(&rule.api_groups, group)
                && has(&rule.resources, resource)
        };
        !self.incomplete && !self.resource_rules.iter().any(grants)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rights(text: &str) -> OwnRights {
        serde_json::from_str(text).expect("a status")
    }

    #[test]
    fn right_is_missing_if_no_rule_grants_it_for_all_objects() {
        let listed = rights(
            r#"{"resourceRules": [
                {"verbs": ["list", "watch"], "apiGroups": [""], "resources": ["services", "pods"]},
                {"verbs": ["get"], "apiGroups": [""], "resources": ["nodes"]},
                {"verbs": ["*"], "apiGroups": ["discovery.k8s.io"], "resources": ["*"]},
                {"verbs": ["list"], "apiGroups": [""], "resources": ["namespaces"], "resourceNames": ["a"]},
                {"verbs": ["list"], "apiGroups": null, "resources": null, "resourceNames": null}
            ], "nonResourceRules": [], "incomplete": false}"#,
        );
        for (verb, group, resource, is_missing) in [
            ("list", "", "services", false),
            ("watch", "", "pods", false),
            ("list", "", "nodes", true),
            ("list", "discovery.k8s.io", "endpointslices", false),
            ("list", "", "endpointslices", true),
            ("list", "", "namespaces", true),
        ] {
            assert_eq!(listed.lacks(verb, group, resource), is_missing, "{verb} {resource}");
        }
    }

    #[test]
    fn incomplete_list_proves_nothing() {
        let status = r#"{"resourceRules": null, "incomplete": true, "evaluationError": "webhook"}"#;
        assert!(!rights(status).lacks("list", "", "pods"));
        assert!(rights(r#"{"resourceRules": []}"#).lacks("list", "", "pods"));
    }
}
