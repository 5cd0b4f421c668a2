//! `/debug/mesh`: the mesh config that applies.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{HeldConfiguration, Problem, UnknownCluster};

/// The mesh config that applies, its problems, and the fields without effect.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Mesh {
    /// Default providers that have no effect.
    pub default_providers_without_effect: Vec<ProviderFault>,
    /// Fields that have no effect.
    pub fields_without_effect: Vec<String>,
    /// The held configuration; null without a hold.
    pub held: Option<HeldConfiguration>,
    /// Why a configuration that was held before the start is no longer held; null otherwise.
    pub hold_lost: Option<String>,
    /// All problems in one text; null without a problem.
    pub problem: Option<String>,
    /// The parts of the mesh config and the mesh networks that are not active.
    pub problems: Vec<Problem>,
    /// The settings of the mesh config. Their form is that of Istio's MeshConfig, not of this API.
    #[serde(flatten)]
    pub settings: BTreeMap<String, Value>,
    /// The clusters that mesh networks name by `fromRegistry` and that are not members. Absent if
    /// empty.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unknown_registries: Vec<UnknownCluster>,
}

/// A default provider that has no effect.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ProviderFault {
    /// Path of the field.
    pub path: String,
    /// Why it has no effect.
    pub text: String,
}
