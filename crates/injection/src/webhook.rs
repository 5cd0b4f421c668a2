//! The MutatingWebhookConfiguration that registers the webhook with an API server.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Value, json};

use super::selection::{INJECT_LABEL, NEVER_INJECTED};

/// Name of the object.
pub const WEBHOOK_NAME: &str = "strait-inject";

/// How long an API server waits for a response, in seconds. The creation of a pod is delayed by at most this time while
/// the webhook is unreachable.
const TIMEOUT_SECONDS: u32 = 5;

/// The registration of the webhook in one cluster.
#[derive(Debug, Clone)]
pub struct WebhookRegistration<'a> {
    /// ID of the cluster.
    pub cluster: &'a str,
    /// Network of the cluster, if one is set.
    pub network: Option<&'a str>,
    /// The address at which API servers reach the webhook.
    pub target: WebhookTarget,
    /// Root certificates for the webhook's certificate, in PEM.
    pub roots: &'a str,
    /// How API servers handle new pods while the webhook is unreachable.
    pub when_away: WhenAway,
    /// Whether Istio's labels also select namespaces and pods.
    pub istio_labels: bool,
}

/// The address at which API servers reach the webhook.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WebhookTarget {
    /// `https://HOST:PORT`, without a path.
    Url(String),
    /// A Service of the cluster.
    Service {
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
        /// Its port.
        port: u16,
    },
}

/// How an API server handles new pods while the webhook is unreachable (`failurePolicy`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WhenAway {
    /// Rejects the selected pods, so that none runs outside of the mesh unnoticed.
    Fail,
    /// Creates pods without a sidecar.
    Ignore,
}

impl WhenAway {
    /// Returns the value of `failurePolicy`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Fail => "Fail",
            Self::Ignore => "Ignore",
        }
    }
}

impl WebhookRegistration<'_> {
    /// Returns the object for the cluster.
    pub fn manifest(&self) -> Value {
        let mut path = format!("/inject/cluster/{}", self.cluster);
        if let Some(network) = self.network {
            path += &format!("/net/{network}");
        }
        let mut client = match &self.target {
            WebhookTarget::Url(url) => json!({ "url": format!("{url}{path}") }),
            WebhookTarget::Service { namespace, name, port } => json!({
                "service": { "namespace": namespace, "name": name, "port": port, "path": path },
            }),
        };
        client["caBundle"] = json!(BASE64.encode(self.roots));
        let webhooks: Vec<Value> = selections(self.istio_labels)
            .into_iter()
            .map(|(name, namespaces, pods)| {
                json!({
                    "name": format!("{name}.inject.strait.dev"),
                    "admissionReviewVersions": ["v1"],
                    "clientConfig": client,
                    "failurePolicy": self.when_away.as_str(),
                    // The webhook never changes an existing sidecar, so the order of webhooks does not matter.
                    "reinvocationPolicy": "Never",
                    "sideEffects": "None",
                    "timeoutSeconds": TIMEOUT_SECONDS,
                    "rules": [{
                        "apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"],
                        "resources": ["pods"], "scope": "Namespaced",
                    }],
                    "namespaceSelector": { "matchExpressions": namespaces },
                    "objectSelector": { "matchExpressions": pods },
                    "matchConditions": [{
                        "name": "has-a-network-of-its-own-or-a-wish",
                        "expression": format!(
                            "!has(object.spec.hostNetwork) || !object.spec.hostNetwork || \
                             (has(object.metadata.labels) && '{INJECT_LABEL}' in object.metadata.labels)"
                        ),
                    }],
                })
            })
            .collect();
        json!({
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "MutatingWebhookConfiguration",
            "metadata": {
                "name": WEBHOOK_NAME,
                "labels": {
                    "app.kubernetes.io/name": WEBHOOK_NAME,
                    "app.kubernetes.io/part-of": "strait",
                    "app.kubernetes.io/managed-by": "strait",
                },
            },
            "webhooks": webhooks,
        })
    }
}

/// Returns the namespace and pod selectors, with a name for each. A pod matches at most one entry, so an API server
/// sends at most one request per pod.
fn selections(istio_labels: bool) -> Vec<(&'static str, Vec<Value>, Vec<Value>)> {
    let is = |key: &str, operator: &str, values: &[&str]| {
        let mut expression = json!({ "key": key, "operator": operator });
        if !values.is_empty() {
            expression["values"] = json!(values);
        }
        expression
    };
    let ordinary = is("kubernetes.io/metadata.name", "NotIn", &NEVER_INJECTED);
    let undecided = is(INJECT_LABEL, "NotIn", &["true", "false"]);
    let mut selections = vec![
        (
            "namespace",
            vec![is(INJECT_LABEL, "In", &["enabled"]), ordinary.clone()],
            vec![is(INJECT_LABEL, "NotIn", &["false"])],
        ),
        (
            "pod",
            vec![is(INJECT_LABEL, "NotIn", &["enabled"]), ordinary.clone()],
            vec![is(INJECT_LABEL, "In", &["true"])],
        ),
    ];
    if istio_labels {
        let (inject, revision, pod_label) =
            ("istio-injection", "istio.io/rev", "sidecar.istio.io/inject");
        let unlabelled = is(INJECT_LABEL, "NotIn", &["enabled"]);
        let not_off = is(pod_label, "NotIn", &["false"]);
        selections.extend([
            (
                "istio-namespace",
                vec![is(inject, "In", &["enabled"]), unlabelled.clone(), ordinary.clone()],
                vec![undecided.clone(), not_off.clone()],
            ),
            (
                "istio-revision",
                vec![
                    is(revision, "Exists", &[]),
                    is(inject, "DoesNotExist", &[]),
                    unlabelled.clone(),
                    ordinary.clone(),
                ],
                vec![undecided.clone(), not_off],
            ),
            (
                "istio-pod",
                vec![
                    is(inject, "DoesNotExist", &[]),
                    is(revision, "DoesNotExist", &[]),
                    unlabelled,
                    ordinary,
                ],
                vec![undecided, is(pod_label, "In", &["true"])],
            ),
        ]);
    }
    selections
}

#[cfg(test)]
mod tests {
    use super::*;

    fn registration(target: WebhookTarget, network: Option<&str>) -> Value {
        let when_away = WhenAway::Ignore;
        let roots = "roots";
        WebhookRegistration {
            cluster: "east",
            network,
            target,
            roots,
            when_away,
            istio_labels: true,
        }
        .manifest()
    }

    #[test]
    fn registration_contains_a_url_or_a_service() {
        let by_url = registration(WebhookTarget::Url("https://10.0.0.1:15017".into()), Some("n1"));
        for webhook in by_url["webhooks"].as_array().expect("webhooks") {
            let client = &webhook["clientConfig"];
            assert_eq!(client["url"], "https://10.0.0.1:15017/inject/cluster/east/net/n1");
            assert_eq!(client["caBundle"], BASE64.encode("roots"));
            assert_eq!(webhook["failurePolicy"], "Ignore");
            assert_eq!(webhook["timeoutSeconds"], 5);
        }
        let (namespace, name) = ("strait-system".into(), "strait".into());
        let by_service = registration(WebhookTarget::Service { namespace, name, port: 443 }, None);
        let service = &by_service["webhooks"][0]["clientConfig"]["service"];
        assert_eq!(service["path"], "/inject/cluster/east");
        assert_eq!((&service["name"], &service["port"]), (&json!("strait"), &json!(443)));
    }

    /// Returns how many requests an API server would send for a pod, according to the selectors.
    fn request_count(namespace: &Value, pod: &Value) -> usize {
        let fits = |labels: &Value, expressions: &Value| {
            expressions.as_array().expect("expressions").iter().all(|expression| {
                let value = labels.get(expression["key"].as_str().expect("a key"));
                let listed = || {
                    let values = expression["values"].as_array().expect("values");
                    value.is_some_and(|value| values.contains(value))
                };
                match expression["operator"].as_str().expect("an operator") {
                    "In" => listed(),
                    "NotIn" => !listed(),
                    "Exists" => value.is_some(),
                    _ => value.is_none(),
                }
            })
        };
        let selections = selections(true);
        let chosen = selections.iter().filter(|(_, namespaces, pods)| {
            fits(namespace, &json!(namespaces)) && fits(pod, &json!(pods))
        });
        chosen.count()
    }

    #[test]
    fn at_most_one_selector_matches_a_pod() {
        let ours = |value: &str| json!({ INJECT_LABEL: value });
        let istio = |value: &str| json!({ "sidecar.istio.io/inject": value });
        for (namespace, pod, expected) in [
            (json!({}), json!({}), 0),
            (json!({}), ours("true"), 1),
            (json!({}), istio("true"), 1),
            (ours("enabled"), json!({}), 1),
            (ours("enabled"), ours("true"), 1),
            (ours("enabled"), ours("false"), 0),
            (json!({ "istio-injection": "enabled" }), json!({}), 1),
            (json!({ "istio-injection": "enabled" }), istio("true"), 1),
            (json!({ "istio-injection": "enabled" }), istio("false"), 0),
            (json!({ "istio-injection": "enabled" }), ours("false"), 0),
            (json!({ "istio-injection": "enabled" }), ours("true"), 1),
            (json!({ "istio.io/rev": "blue" }), json!({}), 1),
            (json!({ "istio.io/rev": "blue", "istio-injection": "disabled" }), json!({}), 0),
            (json!({ "istio-injection": "enabled", INJECT_LABEL: "enabled" }), istio("true"), 1),
            (json!({ "kubernetes.io/metadata.name": "kube-system" }), ours("true"), 0),
        ] {
            assert_eq!(request_count(&namespace, &pod), expected, "{namespace} {pod}");
        }
    }
}
