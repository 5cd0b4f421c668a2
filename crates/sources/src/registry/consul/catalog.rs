//! The responses of Consul's API, each with a dedicated form: other fields are skipped, and an
//! invalid instance does not affect the others.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::value::RawValue;

use strait_kube_client::one_line;

/// Maximum number of services of a datacentre.
pub(super) const SERVICES_MAX: usize = 20_000;
/// Maximum number of instances of a service.
pub(super) const INSTANCES_MAX: usize = 50_000;

/// One instance of a service with its checks.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Default)]
#[serde(rename_all = "PascalCase", default)]
pub(super) struct Instance {
    pub(super) node: CatalogNode,
    pub(super) service: CatalogInstance,
    #[serde(deserialize_with = "null_as_default")]
    pub(super) checks: Vec<Check>,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Default)]
#[serde(rename_all = "PascalCase", default)]
pub(super) struct CatalogNode {
    #[serde(rename = "Node")]
    pub(super) name: Arc<str>,
    pub(super) address: Arc<str>,
    #[serde(deserialize_with = "null_as_default")]
    pub(super) meta: BTreeMap<Arc<str>, Arc<str>>,
    pub(super) locality: Option<ConsulLocality>,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Default)]
#[serde(rename_all = "PascalCase", default)]
pub(super) struct CatalogInstance {
    /// Empty for an ordinary service; otherwise it is a proxy or gateway of Consul.
    pub(super) kind: Arc<str>,
    #[serde(rename = "ID")]
    pub(super) id: Arc<str>,
    pub(super) address: Arc<str>,
    pub(super) port: i64,
    #[serde(deserialize_with = "null_as_default")]
    pub(super) tags: Vec<Arc<str>>,
    #[serde(deserialize_with = "null_as_default")]
    pub(super) meta: BTreeMap<Arc<str>, Arc<str>>,
    #[serde(deserialize_with = "null_as_default")]
    pub(super) weights: Weights,
    #[serde(deserialize_with = "null_as_default")]
    pub(super) tagged_addresses: BTreeMap<Arc<str>, TaggedAddress>,
    pub(super) locality: Option<ConsulLocality>,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Default)]
#[serde(rename_all = "PascalCase", default)]
pub(super) struct TaggedAddress {
    pub(super) address: Arc<str>,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Default)]
#[serde(rename_all = "PascalCase", default)]
pub(super) struct ConsulLocality {
    pub(super) region: Arc<str>,
    pub(super) zone: Arc<str>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(super) struct Weights {
    pub(super) passing: i64,
    pub(super) warning: i64,
}

impl Default for Weights {
    fn default() -> Self {
        Self { passing: 1, warning: 1 }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Default)]
#[serde(rename_all = "PascalCase", default)]
pub(super) struct Check {
    pub(super) status: Arc<str>,
}

fn null_as_default<'de, T, D>(from: D) -> Result<T, D::Error>
where
    T: Deserialize<'de> + Default,
    D: serde::Deserializer<'de>,
{
    Ok(Option::deserialize(from)?.unwrap_or_default())
}

/// Instances, and the reasons why others are omitted.
#[derive(Debug, Default)]
pub(super) struct Instances {
    pub(super) valid: Vec<Instance>,
    pub(super) invalid: Vec<String>,
}

/// Parses `/v1/catalog/services`: the names.
///
/// # Errors
/// Fails if the response is unusable as a whole.
pub(super) fn names(body: &[u8]) -> Result<Vec<Arc<str>>, String> {
    let names: BTreeMap<Arc<str>, &RawValue> = read(body)?;
    if names.len() > SERVICES_MAX {
        return Err(format!("{} services, more than {SERVICES_MAX}", names.len()));
    }
    Ok(names.into_keys().collect())
}

/// Parses `/v1/catalog/datacenters`: the names.
///
/// # Errors
/// Fails if the response is unusable as a whole.
pub(super) fn datacentres(body: &[u8]) -> Result<Vec<String>, String> {
    read(body)
}

/// Parses `/v1/health/service/NAME`.
///
/// # Errors
/// Fails if the response is unusable as a whole.
pub(super) fn instances(body: &[u8]) -> Result<Instances, String> {
    let texts: Option<Vec<&RawValue>> = read(body)?;
    let texts = texts.unwrap_or_default();
    if texts.len() > INSTANCES_MAX {
        return Err(format!("{} instances, more than {INSTANCES_MAX}", texts.len()));
    }
    let mut instances = Instances::default();
    for (at, text) in texts.into_iter().enumerate() {
        match serde_json::from_str(text.get()) {
            Ok(instance) => instances.valid.push(instance),
            Err(error) => {
                let fact = one_line(&error.to_string());
                instances.invalid.push(format!("instance {} is invalid: {fact}", at + 1));
            }
        }
    }
    Ok(instances)
}

fn read<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, String> {
    serde_json::from_slice(body).map_err(|error| one_line(&error.to_string()))
}
