//! The section `traffic`: limits on traffic objects for proxies of other namespaces.

use serde::Deserialize;
use serde_json::Value;

use super::invalid::{InvalidPolicy, bytes, invalid};

/// The limits of objects for proxies of other namespaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TrafficLimits {
    /// The bytes that these objects may add to one proxy.
    pub foreign_bytes: ForeignBytes,
    /// The namespaces that see an object without `exportTo`.
    pub default_visibility: DefaultVisibility,
    /// Whether objects may apply to services of other namespaces.
    pub foreign_hosts: ForeignHostsMode,
}

/// The bytes of encoded resources that objects of other namespaces may add to one proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ForeignBytes {
    /// The objects of one namespace.
    pub namespace: usize,
    /// The objects of all namespaces together.
    pub total: usize,
}

impl Default for ForeignBytes {
    fn default() -> Self {
        Self { namespace: 2 << 20, total: 16 << 20 }
    }
}

/// The namespaces that see an object without `exportTo`, unless the mesh config has a default for
/// its kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DefaultVisibility {
    /// Every namespace.
    #[default]
    Mesh,
    /// Its own namespace.
    Namespace,
}

/// Whether objects of a namespace may apply to requests that clients in other namespaces send to
/// services of other namespaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ForeignHostsMode {
    /// Objects may apply to these requests.
    Allow,
    /// Objects may apply to these requests, and the status of each such object reports it.
    #[default]
    Note,
    /// Objects do not apply to these requests.
    Deny,
}

impl ForeignHostsMode {
    /// Returns the value in the policy file.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Note => "note",
            Self::Deny => "deny",
        }
    }
}

/// The section `traffic` of a policy file.
#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(super) struct TrafficText {
    foreign_bytes: Option<ForeignBytesText>,
    default_visibility: Option<String>,
    foreign_hosts: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ForeignBytesText {
    namespace: Option<Value>,
    total: Option<Value>,
}

/// Parses the section.
pub(super) fn limits(text: TrafficText) -> Result<TrafficLimits, InvalidPolicy> {
    let mut limits = TrafficLimits::default();
    if let Some(text) = text.foreign_bytes {
        let usual = limits.foreign_bytes;
        let size = |name: &str, value: Option<Value>, usual: usize| {
            value.map_or(Ok(usual), |value| bytes(&format!("traffic.foreignBytes.{name}"), &value))
        };
        let namespace = size("namespace", text.namespace, usual.namespace)?;
        let total = size("total", text.total, usual.total.max(namespace))?;
        if total < namespace {
            let fact = "is less than what one namespace may add (traffic.foreignBytes.namespace)";
            return invalid("traffic.foreignBytes.total", fact);
        }
        limits.foreign_bytes = ForeignBytes { namespace, total };
    }
    limits.default_visibility = match text.default_visibility.as_deref() {
        None | Some("mesh") => DefaultVisibility::Mesh,
        Some("namespace") => DefaultVisibility::Namespace,
        Some(text) => {
            let fact = format!("{text:?} is neither mesh nor namespace");
            return invalid("traffic.defaultVisibility", fact);
        }
    };
    limits.foreign_hosts = match text.foreign_hosts.as_deref() {
        Some("allow") => ForeignHostsMode::Allow,
        None | Some("note") => ForeignHostsMode::Note,
        Some("deny") => ForeignHostsMode::Deny,
        Some(text) => {
            let fact = format!("{text:?} is none of allow, note, deny");
            return invalid("traffic.foreignHosts", fact);
        }
    };
    Ok(limits)
}
