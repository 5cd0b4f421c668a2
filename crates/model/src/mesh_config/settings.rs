//! Mesh config and mesh networks in force, and the texts they were read from.

use std::sync::Arc;

use super::{Defaults, InvalidYaml, MeshConfig, MeshNetworks};

/// What is in force.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MeshSettings {
    /// The mesh config.
    pub config: Arc<MeshConfig>,
    /// The mesh networks.
    pub networks: Arc<MeshNetworks>,
    /// What they were read from.
    pub texts: MeshTexts,
}

/// Mesh config and mesh networks as they were written, in one form whatever the order of their fields: JSON. `None` where
/// nothing is written.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MeshTexts {
    /// The mesh config.
    pub config: Option<Arc<str>>,
    /// The mesh networks.
    pub networks: Option<Arc<str>>,
}

impl MeshSettings {
    /// What such texts mean.
    ///
    /// # Errors
    /// The first field of either that has a wrong type or value.
    pub fn of_texts(texts: MeshTexts, defaults: &Defaults) -> Result<Self, InvalidYaml> {
        let config = match &texts.config {
            Some(text) => MeshConfig::parse(text, defaults)?,
            None => MeshConfig::new(defaults),
        };
        let networks = texts.networks.as_deref().map(MeshNetworks::parse).transpose()?;
        let (config, networks) = (Arc::new(config), Arc::new(networks.unwrap_or_default()));
        Ok(Self { config, networks, texts })
    }
}

/// A text in the one form that [`MeshTexts`] has; as it is where it is no YAML.
pub fn in_one_form(text: &str) -> Arc<str> {
    let value = super::yaml::parse::<serde_json::Value>(text);
    value.map_or_else(|_| text.into(), |value| value.to_string().into())
}

/// Why the last text of a source is not in force, or what of it is doubtful.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceProblem {
    /// The page `strait help` prints.
    pub code: &'static str,
    /// What failed, the fact, what still works, and the next step.
    pub text: String,
}
