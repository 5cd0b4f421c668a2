//! Selection of the workloads that a policy applies to (Istio's `WorkloadSelector` and
//! `PolicyTargetReference`).

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::{Map, Value};

use super::fields::{fields, present};
use super::object::AccessFault;
use super::subject::AccessSubject;
use strait_base::codes;
use strait_model::{ISTIO_NETWORKING, Labels, Namespace, labels_match};

/// Pod label with the name of the Kubernetes Gateway that the pod belongs to (Istio,
/// `gateway-name`).
pub(super) const GATEWAY_NAME: &str = "gateway.networking.k8s.io/gateway-name";
const GATEWAY_GROUP: &str = "gateway.networking.k8s.io";

/// The workloads that a policy applies to, in its namespace. In the root namespace, the policy
/// applies to the whole mesh.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PolicySelector {
    /// All workloads.
    All,
    /// Workloads with these labels; never empty.
    Labels(Labels),
    /// Proxies of these Gateways in the policy's own namespace; sorted. Empty if no target is
    /// supported.
    Gateways(Box<[Arc<str>]>),
}

impl PolicySelector {
    /// Parses `selector` of a spec. Also parses `targetRef` and `targetRefs` if `may_target`
    /// contains the policy's namespace.
    pub(super) fn read(
        spec: &Map<String, Value>,
        may_target: Option<&Namespace>,
        faults: &mut Vec<AccessFault>,
    ) -> Option<Self> {
        let before = faults.len();
        let selector = match present(spec, "selector") {
            Some(selector) => read_labels(selector, faults),
            None => Labels::new(),
        };
        let mut gateways = BTreeSet::new();
        let mut targets = false;
        if let Some(namespace) = may_target {
            for (path, target) in read_targets(spec) {
                targets = true;
                match read_target(target, &path, namespace, faults) {
                    Some(PolicyTarget::Gateway(name)) => drop(gateways.insert(name)),
                    Some(PolicyTarget::Unsupported(_)) | None => {}
                }
            }
        }
        if targets && !selector.is_empty() {
            faults.push(AccessFault::unreadable("spec", "has both selector and targetRefs"));
        }
        if faults.len() > before {
            return None;
        }
        Some(match (targets, selector.is_empty()) {
            (true, _) => Self::Gateways(gateways.into_iter().collect()),
            (false, true) => Self::All,
            (false, false) => Self::Labels(selector),
        })
    }

    /// Returns whether no workload can match, because no target of the policy is supported.
    pub fn is_empty(&self) -> bool {
        matches!(self, Self::Gateways(names) if names.is_empty())
    }

    /// Returns whether a policy in the namespace `policy_namespace` selects a workload, provided that the policy
    /// applies to its namespace.
    pub fn selects(&self, policy_namespace: &Namespace, subject: AccessSubject<'_>) -> bool {
        match self {
            Self::All => true,
            Self::Labels(wanted) => labels_match(wanted, subject.labels),
            Self::Gateways(names) => {
                let own = subject.labels.get(GATEWAY_NAME);
                subject.namespace == policy_namespace && own.is_some_and(|own| names.contains(own))
            }
        }
    }

    /// Returns whether a workload could evade the selector by claiming other labels.
    pub(super) fn is_by_claim(
        &self,
        policy_namespace: &Namespace,
        subject: AccessSubject<'_>,
    ) -> bool {
        match self {
            Self::All => false,
            Self::Labels(_) => true,
            Self::Gateways(names) => subject.namespace == policy_namespace && !names.is_empty(),
        }
    }
}

/// Returns warnings for targets in `targetRef` and `targetRefs` that match no proxy.
pub(super) fn without_effect(object: &Value, namespace: &Namespace) -> Vec<AccessFault> {
    let Some(spec) = object.get("spec").and_then(Value::as_object) else { return Vec::new() };
    let all = read_targets(spec).into_iter().filter_map(|(path, target)| {
        match read_target(target, &path, namespace, &mut Vec::new())? {
            PolicyTarget::Gateway(_) => None,
            PolicyTarget::Unsupported(text) => {
                Some(AccessFault::warning(&codes::ACCESS_NO_EFFECT, path, text))
            }
        }
    });
    let is_list = |list: &&Value| list.as_array().is_some_and(|list| !list.is_empty());
    let lost = present(spec, "targetRef").and(present(spec, "targetRefs").filter(is_list));
    let lost = lost.map(|_| {
        let text = "targetRefs is set too and takes precedence";
        AccessFault::warning(&codes::ACCESS_NO_EFFECT, "spec.targetRef", text)
    });
    all.chain(lost).collect()
}

/// Returns the targets of a spec, each with its path. `targetRef` applies only if `targetRefs` is
/// empty or absent.
fn read_targets(spec: &Map<String, Value>) -> Vec<(String, &Value)> {
    let list = present(spec, "targetRefs");
    match (list, present(spec, "targetRef")) {
        (Some(Value::Array(list)), _) if !list.is_empty() => {
            let path = |at| format!("spec.targetRefs[{at}]");
            list.iter().enumerate().map(|(at, one)| (path(at), one)).collect()
        }
        (None | Some(Value::Array(_)), Some(target)) => vec![("spec.targetRef".to_owned(), target)],
        (Some(Value::Array(_)) | None, None) => Vec::new(),
        (Some(value), _) => vec![("spec.targetRefs".to_owned(), value)],
    }
}

/// Meaning of a target reference.
enum PolicyTarget {
    /// The Gateway of this name.
    Gateway(Arc<str>),
    /// An unsupported target, with the reason.
    Unsupported(String),
}

fn read_labels(selector: &Value, faults: &mut Vec<AccessFault>) -> Labels {
    let no_labels = Labels::new();
    let path = "spec.selector.matchLabels";
    let Some(selector) = fields(selector, "spec.selector", &["matchLabels"], faults) else {
        return no_labels;
    };
    let Some(labels) = present(selector, "matchLabels") else { return no_labels };
    let Some(labels) = labels.as_object() else {
        faults.push(AccessFault::unreadable(path, format!("expected labels, found {labels}")));
        return no_labels;
    };
    let mut wanted = Vec::with_capacity(labels.len());
    for (key, value) in labels {
        let path = format!("{path}.{key}");
        match value.as_str() {
            _ if key.is_empty() || key.contains('*') => {
                faults.push(AccessFault::unreadable(path, "is not a valid label name"));
            }
            Some(value) if value.contains('*') => {
                let fact = format!(
                    "{value:?} contains a wildcard, but label values are compared \
                                    literally"
                );
                faults.push(AccessFault::unreadable(path, fact));
            }
            Some(value) => wanted.push((Arc::from(key.as_str()), Arc::from(value))),
            None => {
                faults.push(AccessFault::unreadable(path, format!("expected text, found {value}")));
            }
        }
    }
    wanted.into_iter().collect()
}

fn read_target(
    target: &Value,
    path: &str,
    own: &Namespace,
    faults: &mut Vec<AccessFault>,
) -> Option<PolicyTarget> {
    let before = faults.len();
    let known_fields = ["group", "kind", "name", "namespace"];
    let target = fields(target, path, &known_fields, faults)?;
    let mut text = |name: &str| {
        let value = present(target, name).and_then(Value::as_str).unwrap_or_default();
        if value.is_empty() {
            faults.push(AccessFault::unreadable(format!("{path}.{name}"), "is missing"));
        }
        value
    };
    let (kind, name) = (text("kind"), text("name"));
    if faults.len() > before {
        return None;
    }
    let text = |name: &str| present(target, name).and_then(Value::as_str).unwrap_or_default();
    let (group, namespace) = (text("group"), text("namespace"));
    if !namespace.is_empty() && namespace != own.as_str() {
        let fact = format!(
            "is in namespace {namespace}, but a policy applies only to targets in \
                            its own namespace"
        );
        return Some(PolicyTarget::Unsupported(fact));
    }
    if (group, kind) != (GATEWAY_GROUP, "Gateway") {
        let of_waypoints =
            [("", "Service"), (ISTIO_NETWORKING, "ServiceEntry"), (GATEWAY_GROUP, "GatewayClass")];
        let fact = match of_waypoints.contains(&(group, kind)) {
            true => format!(
                "refers to {kind} {name}: such a policy applies only at waypoint proxies, which \
                 Strait does not run; select the workloads with selector"
            ),
            false => format!(
                "refers to {kind} {name}, but targets may only be Gateways of {GATEWAY_GROUP}; \
                 select the workloads with selector"
            ),
        };
        return Some(PolicyTarget::Unsupported(fact));
    }
    Some(PolicyTarget::Gateway(name.into()))
}
