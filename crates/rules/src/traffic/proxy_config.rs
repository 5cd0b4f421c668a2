//! ProxyConfig: settings of the sidecars of new pods (Istio, "Proxy Config";
//! docs/reference/traffic.md, "ProxyConfig").
//!
//! This module parses an object. [`super::proxy_config_selection`] finds the objects that apply to a pod.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::Value;

use super::object::{self, ObjectMeta, RawWorkloadSelector, Reason};
use super::selection::{self, RuleSelector};
use strait_base::codes;
use strait_model::{Labels, labels_match};

/// Environment variables with the location and identity of a sidecar.
const RESERVED: [&str; 5] = ["POD_NAME", "POD_NAMESPACE", "POD_IP", "SERVICE_ACCOUNT", "NODE_NAME"];
const RESERVED_PREFIX: &str = "STRAIT_";

/// A parsed ProxyConfig.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SidecarDefaults {
    /// Name, namespace and age of the object.
    pub meta: ObjectMeta,
    /// Selector of the pods in its namespace that it applies to; `None` for all pods.
    pub selector: Option<RuleSelector>,
    /// Number of worker threads of the proxy; 0 for one per CPU.
    pub concurrency: Option<u16>,
    /// Environment variables of the sidecar.
    pub environment: BTreeMap<Arc<str>, Arc<str>>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct RawDefaults {
    selector: Option<RawWorkloadSelector>,
    concurrency: Option<i64>,
    environment_variables: BTreeMap<String, Arc<str>>,
    image: Option<Value>,
}

impl SidecarDefaults {
    /// Parses an object. Also returns the reasons to report to its owner.
    ///
    /// # Errors
    /// The reason why the whole object is refused.
    pub fn read(meta: ObjectMeta, object: &Value) -> Result<(Self, Vec<Reason>), Reason> {
        let (raw, mut reasons) = object::body::<RawDefaults>(object)?;
        if raw.image.is_some() {
            let text = "the image is not configurable here; set another one with the pod \
                        annotation sidecar.istio.io/proxyImage";
            reasons.push(Reason::lost(&codes::TRAFFIC_UNSUPPORTED, "spec.image", text));
        }
        let concurrency = raw.concurrency.and_then(|threads| {
            let number = u16::try_from(threads).ok();
            if number.is_none() {
                let text = format!("{threads} is not a valid number of threads; it is ignored");
                reasons.push(Reason::lost(&codes::TRAFFIC_VALUE, "spec.concurrency", text));
            }
            number
        });
        let mut environment = BTreeMap::new();
        for (name, value) in raw.environment_variables {
            match variable(&name) {
                Ok(()) => _ = environment.insert(name.into(), value),
                Err(fact) => {
                    let path = format!("spec.environmentVariables[{name}]");
                    let text = format!("{fact}; the variable is left out");
                    reasons.push(Reason::lost(&codes::TRAFFIC_VALUE, path, text));
                }
            }
        }
        let selector = raw.selector.and_then(|raw| selection::selector(&raw.match_labels));
        Ok((Self { meta, selector, concurrency, environment }, reasons))
    }

    /// Returns whether the selector matches pods with these labels.
    pub(super) fn selects(&self, labels: &Labels) -> bool {
        self.selector.as_ref().is_none_or(|selector| labels_match(selector, labels))
    }
}

/// Checks the name of an environment variable (Kubernetes, "Environment variable"). Kubernetes
/// rejects a pod with an invalid one.
fn variable(name: &str) -> Result<(), &'static str> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    if name.is_empty() || !name.bytes().all(plain) || name.starts_with(|c: char| c.is_ascii_digit())
    {
        return Err("it is not a valid variable name");
    }
    if RESERVED.contains(&name) || name.starts_with(RESERVED_PREFIX) {
        return Err("the variable is reserved for the location of the sidecar");
    }
    Ok(())
}

#[cfg(test)]
mod tests;
