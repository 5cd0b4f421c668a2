//! The active mesh config and mesh networks, with the texts from which they were parsed.

use std::sync::Arc;

use super::{Defaults, InvalidYaml, MeshConfig, MeshNetworks};

/// The active settings.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MeshSettings {
    /// The mesh config.
    pub config: Arc<MeshConfig>,
    /// The mesh networks.
    pub networks: Arc<MeshNetworks>,
    /// The texts from which they were parsed.
    pub texts: MeshTexts,
}

/// The texts of mesh config and mesh networks, normalized to JSON so that the order of fields does
/// not matter. `None` if a text is absent.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MeshTexts {
    /// The mesh config.
    pub config: Option<Arc<str>>,
    /// The mesh networks.
    pub networks: Option<Arc<str>>,
}

impl MeshSettings {
    /// Parses both texts.
    ///
    /// # Errors
    /// A field of either text has an invalid type or value.
    pub fn parse(texts: MeshTexts, defaults: &Defaults) -> Result<Self, InvalidYaml> {
        let config = match &texts.config {
            Some(text) => MeshConfig::parse(text, defaults)?,
            None => MeshConfig::new(defaults),
        };
        let networks = texts.networks.as_deref().map(MeshNetworks::parse).transpose()?;
        let (config, networks) = (Arc::new(config), Arc::new(networks.unwrap_or_default()));
        Ok(Self { config, networks, texts })
    }
}

/// Normalizes a text for [`MeshTexts`]. A text that is not valid YAML is returned unchanged.
pub fn normalize_text(text: &str) -> Arc<str> {
    let value = super::yaml::parse::<serde_json::Value>(text);
    value.map_or_else(|_| text.into(), |value| value.to_string().into())
}

/// A problem with the last text of a source: the text is not active, or a part of it is
/// questionable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceProblem {
    /// The error code for `strait help`.
    pub code: &'static str,
    /// The text of the problem: what failed, the cause, what still works, and the next step.
    pub text: String,
}
