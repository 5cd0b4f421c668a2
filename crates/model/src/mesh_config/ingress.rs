//! The Ingresses that are processed, and the routers that serve them. (Istio,
//! `MeshConfig.ingressControllerMode`.)

use serde::Deserialize;

use super::yaml::{InvalidYaml, YamlFields};

/// The settings for Ingresses in the mesh config.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IngressSettings {
    /// `ingressControllerMode`: the Ingresses that are processed.
    pub mode: IngressMode,
    /// `ingressClass`: the class that the annotation `kubernetes.io/ingress.class` names.
    pub class: String,
    /// The value of the label `istio` of the routers that serve Ingresses: `ingressSelector`, or
    /// `ingressService` if that is empty; never empty.
    pub selector: String,
    /// `ingressService`: the Service in the root namespace whose addresses are written into the
    /// status of Ingresses.
    pub service: String,
}

/// The Ingresses that are processed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub enum IngressMode {
    /// None.
    #[serde(rename = "OFF")]
    Off,
    /// Ingresses of the mesh's class, and those without a class.
    #[serde(rename = "DEFAULT")]
    Default,
    /// Ingresses of the mesh's class.
    #[serde(rename = "STRICT", alias = "UNSPECIFIED")]
    Strict,
}

impl IngressMode {
    /// Returns the name in the mesh config.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Off => "OFF",
            Self::Default => "DEFAULT",
            Self::Strict => "STRICT",
        }
    }
}

impl Default for IngressSettings {
    fn default() -> Self {
        Self {
            mode: IngressMode::Strict,
            class: "istio".to_owned(),
            selector: "ingressgateway".to_owned(),
            service: "istio-ingressgateway".to_owned(),
        }
    }
}

impl IngressSettings {
    /// Takes the settings from a mesh config.
    ///
    /// # Errors
    /// Returns the first of these fields with a wrong type or value.
    pub(super) fn take(fields: &mut YamlFields) -> Result<Self, InvalidYaml> {
        let base = Self::default();
        let service: Option<String> = fields.take("ingressService")?;
        let service = service.filter(|name| !name.is_empty());
        let selector = match fields.take::<String>("ingressSelector")? {
            None => base.selector,
            Some(selector) if !selector.is_empty() => selector,
            Some(_) => service.clone().unwrap_or(base.selector),
        };
        let class = fields.take("ingressClass")?.filter(|class: &String| !class.is_empty());
        Ok(Self {
            mode: fields.take("ingressControllerMode")?.unwrap_or(base.mode),
            class: class.unwrap_or(base.class),
            selector,
            service: service.unwrap_or(base.service),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> IngressSettings {
        let mut fields = YamlFields::parse(text).expect("YAML");
        IngressSettings::take(&mut fields).expect("settings")
    }

    #[test]
    fn only_ingresses_of_class_istio_are_processed_by_default() {
        let settings = read("");
        assert_eq!((settings.mode, &*settings.class), (IngressMode::Strict, "istio"));
        let settings = read("{ingressControllerMode: DEFAULT, ingressClass: edge}");
        assert_eq!((settings.mode, &*settings.class), (IngressMode::Default, "edge"));
        let mut wrong = YamlFields::parse("{ingressControllerMode: SOMETIMES}").expect("YAML");
        assert!(IngressSettings::take(&mut wrong).is_err());
    }

    #[test]
    fn routers_are_found_by_the_selector_or_by_the_service_if_it_is_empty() {
        for (text, selector) in [
            ("", "ingressgateway"),
            ("{ingressService: edge}", "ingressgateway"),
            ("{ingressSelector: entrance, ingressService: edge}", "entrance"),
            ("{ingressSelector: '', ingressService: edge}", "edge"),
            ("{ingressSelector: ''}", "ingressgateway"),
        ] {
            assert_eq!(read(text).selector, selector, "{text}");
        }
    }
}
