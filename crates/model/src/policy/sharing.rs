//! The section `sharing` of a policy file: which services clusters share if no label or export
//! decides it.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::invalid::{InvalidPolicy, invalid};
use super::names::cluster;
use crate::{ClusterId, SharingDecision, SharingFacts, SharingRule};

/// The rules of the section.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SharingPolicy {
    /// Whether services are local by default.
    default: Option<bool>,
    /// Whether Istio's label and `serviceScopeConfigs` decide before the defaults.
    honours_istio: bool,
    /// The default of individual clusters.
    clusters: BTreeMap<ClusterId, bool>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(super) struct SharingText {
    default: Option<String>,
    istio_global: Option<String>,
    clusters: BTreeMap<String, ClusterText>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ClusterText {
    default: String,
}

/// Parses the section.
pub(super) fn sharing(text: SharingText) -> Result<SharingPolicy, InvalidPolicy> {
    let default = text.default.map(|text| is_local("sharing.default", &text)).transpose()?;
    let honours_istio = match text.istio_global.as_deref() {
        None | Some("ignore") => false,
        Some("honour") => true,
        Some(other) => {
            let fact = format!("{other:?} is neither ignore nor honour");
            return invalid("sharing.istioGlobal", fact);
        }
    };
    let clusters = text.clusters.into_iter().map(|(id, text)| {
        let field = format!("sharing.clusters.{id}");
        Ok((cluster(&field, &id)?, is_local(&format!("{field}.default"), &text.default)?))
    });
    Ok(SharingPolicy { default, honours_istio, clusters: clusters.collect::<Result<_, _>>()? })
}

fn is_local(field: &str, text: &str) -> Result<bool, InvalidPolicy> {
    match text {
        "shared" => Ok(false),
        "local" => Ok(true),
        _ => invalid(field, format!("{text:?} is neither shared nor local")),
    }
}

impl SharingPolicy {
    /// Decides whether `cluster` shares a service about which its objects state `facts`. An export
    /// decides first, then labels, Istio's settings if they are honoured, and the defaults.
    pub fn decide(&self, cluster: &ClusterId, facts: SharingFacts) -> SharingDecision {
        let SharingFacts { export, label, namespace_label, .. } = facts;
        let stated = [
            (export, SharingRule::Export),
            (label, SharingRule::Label),
            (namespace_label, SharingRule::NamespaceLabel),
        ];
        let mut stated = stated.into_iter().filter_map(|(fact, rule)| Some((fact?, rule)));
        let istio = || facts.istio().filter(|_| self.honours_istio);
        if let Some((is_shared, rule)) = stated.next().or_else(istio) {
            return SharingDecision { is_local: !is_shared, rule };
        }
        match (self.clusters.get(cluster), self.default) {
            (Some(is_local), _) => {
                SharingDecision { is_local: *is_local, rule: SharingRule::ClusterDefault }
            }
            (None, Some(is_local)) => SharingDecision { is_local, rule: SharingRule::Default },
            (None, None) => SharingDecision::default(),
        }
    }

    /// Returns whether Istio's label and `serviceScopeConfigs` have an effect.
    pub fn honours_istio(&self) -> bool {
        self.honours_istio
    }

    /// Returns the clusters that the section names.
    pub(super) fn clusters(&self) -> impl Iterator<Item = &ClusterId> {
        self.clusters.keys()
    }
}
