//! `serviceScopeConfigs` of the mesh config: selects the services that are shared with other
//! clusters. The policy file decides whether they have an effect (`sharing.istioGlobal`).

use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Value, json};

use super::discovery::{self, RawSelector};
use crate::{LabelSelector, Labels, NamespaceFilter};

/// The selectors of the mesh config that apply to the objects of clusters.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ObjectSelectors {
    /// `discoverySelectors`: the namespaces that belong to the mesh.
    pub namespaces: Arc<NamespaceFilter>,
    /// `serviceScopeConfigs`: the services that are global.
    pub scopes: Arc<ServiceScopes>,
}

/// The configurations in the order of the text.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ServiceScopes(Vec<ServiceScope>);

/// One configuration: services that both selectors match have the scope.
#[derive(Debug, Clone, PartialEq, Eq)]
struct ServiceScope {
    namespaces: LabelSelector,
    services: LabelSelector,
    is_global: bool,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct RawScope {
    namespace_selector: Option<RawSelector>,
    services_selector: Option<RawSelector>,
    #[serde(default)]
    scope: RawScopeName,
}

#[derive(Deserialize, Default, PartialEq)]
#[serde(rename_all = "UPPERCASE")]
enum RawScopeName {
    #[default]
    Local,
    Global,
}

impl ServiceScopes {
    /// Parses the field.
    ///
    /// # Errors
    /// Returns the first problem. No configuration is used then.
    pub(super) fn read(value: Value) -> Result<Self, String> {
        let raw: Vec<RawScope> =
            serde_json::from_value(value).map_err(|error| error.to_string())?;
        let selector = |raw: Option<RawSelector>| {
            raw.map_or_else(|| Ok(LabelSelector::default()), discovery::selector)
        };
        let scopes = raw.into_iter().map(|raw| {
            Ok(ServiceScope {
                namespaces: selector(raw.namespace_selector)?,
                services: selector(raw.services_selector)?,
                is_global: raw.scope == RawScopeName::Global,
            })
        });
        Ok(Self(scopes.collect::<Result<_, String>>()?))
    }

    /// Returns whether there is no configuration.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns whether any matching configuration makes a service with these labels, in a namespace
    /// with these labels, global. Returns `None` without configurations.
    pub fn is_global(&self, namespace: &Labels, service: &Labels) -> Option<bool> {
        let matches = |scope: &&ServiceScope| {
            scope.namespaces.matches(namespace) && scope.services.matches(service)
        };
        (!self.0.is_empty()).then(|| self.0.iter().filter(matches).any(|scope| scope.is_global))
    }

    /// Returns the configurations in Istio's terms.
    pub(super) fn to_json(&self) -> Value {
        let scopes = self.0.iter().map(|scope| {
            json!({
                "namespaceSelector": discovery::selector_to_json(&scope.namespaces),
                "servicesSelector": discovery::selector_to_json(&scope.services),
                "scope": if scope.is_global { "GLOBAL" } else { "LOCAL" },
            })
        });
        scopes.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(pairs: &[(&str, &str)]) -> Labels {
        pairs.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect()
    }

    #[test]
    fn service_is_global_if_any_matching_configuration_says_so() {
        let read = |value: Value| ServiceScopes::read(value).expect("valid");
        let by_label = json!([{
            "servicesSelector": {"matchExpressions": [
                {"key": "istio.io/global", "operator": "In", "values": ["true"]},
            ]},
            "scope": "GLOBAL",
        }]);
        let global = labels(&[("istio.io/global", "true")]);
        let scopes = read(by_label);
        assert_eq!(scopes.is_global(&labels(&[]), &global), Some(true));
        assert_eq!(scopes.is_global(&labels(&[]), &labels(&[])), Some(false), "LOCAL is default");
        assert_eq!(ServiceScopes::default().is_global(&global, &global), None);

        let shop = labels(&[("team", "shop")]);
        let both = read(json!([
            {"namespaceSelector": {"matchLabels": {"team": "shop"}}, "scope": "LOCAL"},
            {"namespaceSelector": {"matchLabels": {"team": "shop"}},
             "servicesSelector": {"matchLabels": {"istio.io/global": "true"}}, "scope": "GLOBAL"},
        ]));
        assert_eq!(both.is_global(&shop, &global), Some(true), "any GLOBAL wins");
        assert_eq!(both.is_global(&shop, &labels(&[])), Some(false));
        assert_eq!(both.is_global(&labels(&[]), &global), Some(false), "both selectors must match");
        assert_eq!(ServiceScopes::read(both.to_json()), Ok(both));
    }

    #[test]
    fn invalid_configuration_is_reported() {
        for (value, part) in [
            (json!([{"scope": "SOME"}]), "SOME"),
            (json!([{"serviceSelector": {}}]), "serviceSelector"),
            (
                json!([{"servicesSelector": {"matchExpressions": [{"key": "a", "operator": "In"}]}}]),
                "needs values",
            ),
        ] {
            let error = ServiceScopes::read(value).expect_err(part);
            assert!(error.contains(part), "{error}");
        }
    }
}
