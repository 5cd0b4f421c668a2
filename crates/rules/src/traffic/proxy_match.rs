//! Conditions on proxies for a patch, compared with the metadata of a proxy (Istio, "Envoy Filter",
//! `ProxyMatch`).

use std::fmt;

use regex::{Regex, RegexBuilder};
use serde_json::Value;

use super::re2;
use strait_model::Proxy;

/// Maximum size in bytes of a compiled version expression.
const PROGRAM_BYTES_MAX: usize = 64 << 10;

/// Conditions on a proxy. All must hold.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProxyMatch {
    /// Regular expression that matches a part of the version of the Istio agent. It never matches a
    /// proxy without one.
    version: Option<String>,
    /// Required metadata, by field.
    metadata: Vec<(ProxyField, String)>,
}

/// Stored metadata of proxies that can be compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum ProxyField {
    Cluster,
    IstioVersion,
    Namespace,
    Network,
    NodeName,
    ServiceAccount,
}

impl ProxyField {
    const ALL: [Self; 6] = [
        Self::Cluster,
        Self::IstioVersion,
        Self::Namespace,
        Self::Network,
        Self::NodeName,
        Self::ServiceAccount,
    ];

    fn key(self) -> &'static str {
        match self {
            Self::Cluster => "CLUSTER_ID",
            Self::IstioVersion => "ISTIO_VERSION",
            Self::Namespace => "NAMESPACE",
            Self::Network => "NETWORK",
            Self::NodeName => "NODE_NAME",
            Self::ServiceAccount => "SERVICE_ACCOUNT",
        }
    }

    fn value_in(self, proxy: &Proxy) -> Option<&str> {
        match self {
            Self::Cluster => Some(proxy.cluster.as_str()),
            Self::IstioVersion => proxy.istio_version.as_deref(),
            Self::Namespace => Some(proxy.namespace().as_str()),
            Self::Network => proxy.network.as_ref().map(|network| network.as_str()),
            Self::NodeName => proxy.node_name.as_deref(),
            Self::ServiceAccount => proxy.service_account.as_deref(),
        }
    }
}

impl ProxyMatch {
    /// Parses the conditions on proxies; `None` without any condition.
    ///
    /// # Errors
    /// The path of the invalid field, below the value, and the problem.
    pub(super) fn read(given: &Value) -> Result<Option<Self>, (String, String)> {
        let nothing = serde_json::Map::new();
        let fields = match given {
            Value::Null => &nothing,
            Value::Object(fields) => fields,
            _ => return Err((String::new(), "it is not an object".to_owned())),
        };
        let (mut version, mut metadata) = (None, Vec::new());
        for (name, value) in fields {
            match (name.as_str(), value) {
                (_, Value::Null) => {}
                ("proxyVersion", Value::String(text)) if text.is_empty() => {}
                ("proxyVersion", Value::String(text)) => {
                    expression(text)?;
                    version = Some(text.clone());
                }
                ("metadata", Value::Object(pairs)) => {
                    for (key, value) in pairs {
                        metadata.push(pair(key, value)?);
                    }
                }
                (field @ ("proxyVersion" | "metadata"), other) => {
                    return Err((format!(".{field}"), format!("{other} has the wrong type")));
                }
                (other, _) => {
                    let fact = format!("{other} is not supported; use proxyVersion or metadata");
                    return Err((format!(".{other}"), fact));
                }
            }
        }
        metadata.sort();
        let has_conditions = version.is_some() || !metadata.is_empty();
        Ok(has_conditions.then_some(Self { version, metadata }))
    }

    /// Returns the path of the conditions below the match.
    pub(super) fn path(&self) -> &'static str {
        match (&self.version, self.metadata.is_empty()) {
            (Some(_), true) => ".proxyVersion",
            (None, _) => ".metadata",
            (Some(_), false) => "",
        }
    }

    /// Returns the compiled form of the conditions.
    pub(super) fn finder(&self) -> ProxyFinder {
        let version = self.version.as_ref();
        ProxyFinder { version: version.and_then(|text| compiled(text).ok()) }
    }
}

/// The compiled expression of a [match](ProxyMatch).
#[derive(Debug, Clone)]
pub(super) struct ProxyFinder {
    version: Option<Regex>,
}

impl ProxyFinder {
    /// Returns whether a proxy satisfies `wanted`, from which this value was compiled.
    pub(super) fn finds(&self, wanted: &ProxyMatch, proxy: &Proxy) -> bool {
        let is_version = |text: &str| self.version.as_ref().is_some_and(|one| one.is_match(text));
        (wanted.version.is_none() || proxy.istio_version.as_deref().is_some_and(is_version))
            && wanted.metadata.iter().all(|(field, value)| field.value_in(proxy) == Some(value))
    }
}

/// Checks a regular expression with the syntax that Istio accepts. It is evaluated by another
/// library with the same syntax.
fn expression(text: &str) -> Result<(), (String, String)> {
    let fault = |fact: &dyn fmt::Display| (".proxyVersion".to_owned(), format!("{text:?} {fact}"));
    re2::parse(text).map_err(|fact| fault(&fact))?;
    compiled(text).map(drop).map_err(|error| match error {
        regex::Error::CompiledTooBig(_) => fault(&"is too large for a version"),
        _ => fault(&"is not a supported expression"),
    })
}

/// Compiles an expression with bounded memory, because users control how many are stored.
fn compiled(text: &str) -> Result<Regex, regex::Error> {
    RegexBuilder::new(text).size_limit(PROGRAM_BYTES_MAX).dfa_size_limit(PROGRAM_BYTES_MAX).build()
}

fn pair(key: &str, value: &Value) -> Result<(ProxyField, String), (String, String)> {
    let path = format!(".metadata.{key}");
    let Some(field) = ProxyField::ALL.into_iter().find(|field| field.key() == key) else {
        let fields = ProxyField::ALL.map(ProxyField::key).join(", ");
        let fact = format!("{key} of proxies is not stored; use {fields}");
        return Err((path, fact));
    };
    match value.as_str() {
        Some(text) => Ok((field, text.to_owned())),
        None => Err((path, format!("{value} is not a string"))),
    }
}
