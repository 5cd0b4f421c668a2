//! Which proxies a part of a rule is for, by what they say of themselves. (Istio, "Envoy Filter", `ProxyMatch`.)

use std::fmt;

use regex::{Regex, RegexBuilder};
use serde_json::Value;

use super::re2;
use strait_model::Proxy;

/// How large an expression for a version may be, ready to be tried.
const PROGRAM_BYTES_MAX: usize = 64 << 10;

/// What a proxy must be; all that is said.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProxyMatch {
    /// An expression for what is found in the version of its Istio agent. A proxy without one has none.
    version: Option<String>,
    /// What it says of itself, by field.
    metadata: Vec<(ProxyField, String)>,
}

/// What is kept of the metadata of every proxy, and compared.
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

    fn of(self, proxy: &Proxy) -> Option<&str> {
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
    /// Reads what is said of proxies; `None` where that is nothing.
    ///
    /// # Errors
    /// The field, below the value, that can't be followed, and what is wrong with it.
    pub(super) fn read(given: &Value) -> Result<Option<Self>, (String, String)> {
        let nothing = serde_json::Map::new();
        let fields = match given {
            Value::Null => &nothing,
            Value::Object(fields) => fields,
            _ => return Err((String::new(), "it is no object".to_owned())),
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
                (known @ ("proxyVersion" | "metadata"), other) => {
                    return Err((format!(".{known}"), format!("{other} is not what it holds")));
                }
                (other, _) => {
                    let fact = format!("{other} is not followed; name a version or metadata");
                    return Err((format!(".{other}"), fact));
                }
            }
        }
        metadata.sort();
        let says_something = version.is_some() || !metadata.is_empty();
        Ok(says_something.then_some(Self { version, metadata }))
    }

    /// What it takes to find out for whom it is.
    pub(super) fn finder(&self) -> ProxyFinder {
        let version = self.version.as_ref();
        ProxyFinder { version: version.and_then(|text| compiled(text).ok()) }
    }
}

/// The expression of a [match](ProxyMatch), ready to be tried.
#[derive(Debug, Clone)]
pub(super) struct ProxyFinder {
    version: Option<Regex>,
}

impl ProxyFinder {
    /// Whether a match, whose finder this is, is for a proxy.
    pub(super) fn finds(&self, wanted: &ProxyMatch, proxy: &Proxy) -> bool {
        let is_version = |text: &str| self.version.as_ref().is_some_and(|one| one.is_match(text));
        (wanted.version.is_none() || proxy.istio_version.as_deref().is_some_and(is_version))
            && wanted.metadata.iter().all(|(field, value)| field.of(proxy) == Some(value))
    }
}

/// Whether it is an expression as users know it from Istio. It is tried by another library than there, with the same syntax.
fn expression(text: &str) -> Result<(), (String, String)> {
    let fault = |fact: &dyn fmt::Display| (".proxyVersion".to_owned(), format!("{text:?} {fact}"));
    re2::parse(text).map_err(|fact| fault(&fact))?;
    compiled(text).map(drop).map_err(|error| match error {
        regex::Error::CompiledTooBig(_) => fault(&"is larger than versions need"),
        _ => fault(&"is no expression that is followed here"),
    })
}

/// An expression ready to be tried, in bounded memory: what is there to be kept of each is what somebody writes.
fn compiled(text: &str) -> Result<Regex, regex::Error> {
    RegexBuilder::new(text).size_limit(PROGRAM_BYTES_MAX).dfa_size_limit(PROGRAM_BYTES_MAX).build()
}

fn pair(key: &str, value: &Value) -> Result<(ProxyField, String), (String, String)> {
    let path = format!(".metadata.{key}");
    let Some(field) = ProxyField::ALL.into_iter().find(|field| field.key() == key) else {
        let known = ProxyField::ALL.map(ProxyField::key).join(", ");
        let fact = format!("{key} is not kept of proxies, which are told apart by {known}");
        return Err((path, fact));
    };
    match value.as_str() {
        Some(text) => Ok((field, text.to_owned())),
        None => Err((path, format!("{value} is no text"))),
    }
}
