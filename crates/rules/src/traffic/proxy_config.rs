//! ProxyConfig: how the sidecars run of pods that are made from then on. (Istio, "Proxy Config"; docs/reference/traffic.md,
//! "ProxyConfig".)
//!
//! Reads an object. Which of several hold for a pod is found in [`super::proxy_configs`].

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::Value;

use super::object::{self, ObjectMeta, RawWorkloadSelector, Reason};
use super::selection::{self, RuleSelector};
use strait_base::codes;
use strait_model::{Labels, labels_match};

/// Variables of a sidecar's environment that say where and what it is.
const RESERVED: [&str; 5] = ["POD_NAME", "POD_NAMESPACE", "POD_IP", "SERVICE_ACCOUNT", "NODE_NAME"];
const RESERVED_PREFIX: &str = "STRAIT_";

/// What one object says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SidecarDefaults {
    /// Which object it is.
    pub meta: ObjectMeta,
    /// The pods of its namespace that it holds for, where these are not all.
    pub selector: Option<RuleSelector>,
    /// How many threads a proxy has; 0 for one for each CPU.
    pub concurrency: Option<u16>,
    /// Variables of its environment.
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
    /// Reads an object, with what its owner should know.
    ///
    /// # Errors
    /// Why it is refused whole.
    pub fn read(meta: ObjectMeta, object: &Value) -> Result<(Self, Vec<Reason>), Reason> {
        let (raw, mut reasons) = object::body::<RawDefaults>(object)?;
        if raw.image.is_some() {
            let text = "sidecars have one image; name another in the annotation sidecar.istio.io/proxyImage of pods";
            reasons.push(Reason::lost(&codes::TRAFFIC_UNSUPPORTED, "spec.image", text));
        }
        let concurrency = raw.concurrency.and_then(|threads| {
            let number = u16::try_from(threads).ok();
            if number.is_none() {
                let text = format!("{threads} is no number of threads; it counts as unsaid");
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

    /// Whether it is for pods with these labels, as far as that is said.
    pub(super) fn selects(&self, labels: &Labels) -> bool {
        self.selector.as_ref().is_none_or(|selector| labels_match(selector, labels))
    }
}

/// Whether a variable may have that name. (Kubernetes, "Environment variable"; one that it refuses costs the pod.)
fn variable(name: &str) -> Result<(), &'static str> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    if name.is_empty() || !name.bytes().all(plain) || name.starts_with(|c: char| c.is_ascii_digit())
    {
        return Err("it is no name of a variable");
    }
    if RESERVED.contains(&name) || name.starts_with(RESERVED_PREFIX) {
        return Err("the sidecar is told by it where it is");
    }
    Ok(())
}

#[cfg(test)]
mod tests;
