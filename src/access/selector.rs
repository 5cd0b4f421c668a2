//! Which workloads a policy is for. (Istio's `WorkloadSelector` and `PolicyTargetReference`.)

use std::sync::Arc;

use serde_json::{Map, Value};

use super::fields::{fields, items, present};
use super::object::AccessFault;
use crate::model::{Labels, labels_match};

/// The workloads of its namespace that a policy is for; of a policy in the root namespace, of the mesh.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PolicySelector {
    /// All.
    All,
    /// Those with these labels; never empty.
    Labels(Labels),
    /// Those of gateways and services that it names. No proxy that Strait serves by labels is one.
    Targets,
}

impl PolicySelector {
    /// Reads `selector`, `targetRef` and `targetRefs` of a spec.
    pub(super) fn read(
        spec: &Map<String, Value>,
        may_target: bool,
        faults: &mut Vec<AccessFault>,
    ) -> Option<Self> {
        let before = faults.len();
        let selector = match present(spec, "selector") {
            Some(selector) => read_labels(selector, faults),
            None => Labels::new(),
        };
        let mut targets = false;
        for name in ["targetRef", "targetRefs"].into_iter().filter(|_| may_target) {
            let path = format!("spec.{name}");
            let Some(value) = present(spec, name) else { continue };
            match value {
                Value::Array(list) if list.is_empty() => continue,
                Value::Array(_) => {
                    for (at, one) in items(value, &path).unwrap_or_default().iter().enumerate() {
                        read_target(one, &format!("{path}[{at}]"), faults);
                    }
                }
                one => read_target(one, &path, faults),
            }
            targets = true;
        }
        if targets && !selector.is_empty() {
            faults.push(AccessFault::unreadable("spec", "has both selector and targetRefs"));
        }
        if faults.len() > before {
            return None;
        }
        Some(match (targets, selector.is_empty()) {
            (true, _) => Self::Targets,
            (false, true) => Self::All,
            (false, false) => Self::Labels(selector),
        })
    }

    /// Whether it selects a workload with these labels, of the namespaces in which it counts.
    pub fn selects(&self, labels: &Labels) -> bool {
        match self {
            Self::All => true,
            Self::Labels(wanted) => labels_match(wanted, labels),
            Self::Targets => false,
        }
    }
}

fn read_labels(selector: &Value, faults: &mut Vec<AccessFault>) -> Labels {
    let none = Labels::new();
    let path = "spec.selector.matchLabels";
    let Some(selector) = fields(selector, "spec.selector", &["matchLabels"], faults) else {
        return none;
    };
    let Some(labels) = present(selector, "matchLabels") else { return none };
    let Some(labels) = labels.as_object() else {
        faults.push(AccessFault::unreadable(path, format!("expected labels, found {labels}")));
        return none;
    };
    let mut wanted = Vec::with_capacity(labels.len());
    for (key, value) in labels {
        let path = format!("{path}.{key}");
        match value.as_str() {
            _ if key.is_empty() || key.contains('*') => {
                faults.push(AccessFault::unreadable(path, "is no name of a label"));
            }
            Some(value) if value.contains('*') => {
                let fact = format!("{value:?} has a wildcard; values are taken as they are");
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

fn read_target(target: &Value, path: &str, faults: &mut Vec<AccessFault>) {
    let known = ["group", "kind", "name", "namespace"];
    let Some(target) = fields(target, path, &known, faults) else { return };
    for name in ["kind", "name"] {
        let is_text = |value: &&Value| value.as_str().is_some_and(|text| !text.is_empty());
        if present(target, name).filter(is_text).is_none() {
            faults.push(AccessFault::unreadable(format!("{path}.{name}"), "is missing"));
        }
    }
}
