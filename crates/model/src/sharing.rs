//! Whether a service is shared with proxies of other clusters: what the objects of its cluster
//! state, and the decision that the policy makes from it.

/// The name of the rule by which `serviceSettings` of the mesh config keep a service local, in responses
/// of the admin port. No policy changes it.
pub const SERVICE_SETTINGS_RULE: &str = "mesh config serviceSettings";
/// The label that shares an object with other clusters (`true`) or keeps it local (`false`).
pub const SHARE_LABEL: &str = "strait.dev/share";
/// Istio's label for global services.
pub const ISTIO_GLOBAL_LABEL: &str = "istio.io/global";

/// The statements of a cluster's objects about sharing one service; `None` without a statement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct SharingFacts {
    /// Whether a ServiceExport exists, if exports alone decide (`--mcs`).
    pub export: Option<bool>,
    /// The label [`SHARE_LABEL`] of the Service.
    pub label: Option<bool>,
    /// The label [`SHARE_LABEL`] of the Service's Namespace.
    pub namespace_label: Option<bool>,
    /// The label [`ISTIO_GLOBAL_LABEL`] of the Service.
    pub istio_label: Option<bool>,
    /// Whether `serviceScopeConfigs` of the mesh config select the service as global; `None`
    /// without such a setting.
    pub scope: Option<bool>,
}

/// Number of statements in [`SharingFacts`].
const FACTS: usize = 5;

impl SharingFacts {
    /// Returns the statements as one number: a base 3 digit each (0 none, 1 local, 2 shared),
    /// starting with the export. A number, once assigned, keeps its meaning.
    pub fn code(self) -> u8 {
        let Self { export, label, namespace_label, istio_label, scope } = self;
        let facts: [Option<bool>; FACTS] = [export, label, namespace_label, istio_label, scope];
        let digit = |fact: Option<bool>| fact.map_or(0, |shared| 1 + u8::from(shared));
        facts.into_iter().rev().fold(0, |code, fact| code * 3 + digit(fact))
    }

    /// Returns the statements with this number; `None` if it is out of range.
    pub fn from_code(mut code: u8) -> Option<Self> {
        let mut next = || {
            let digit = code % 3;
            code /= 3;
            (digit > 0).then_some(digit == 2)
        };
        let [export, label, namespace_label, istio_label, scope] =
            std::array::from_fn::<_, FACTS, _>(|_| next());
        (code == 0).then_some(Self { export, label, namespace_label, istio_label, scope })
    }

    /// Returns whether Istio's settings share the service: its label, otherwise the mesh config.
    pub fn istio(self) -> Option<(bool, SharingRule)> {
        let label = self.istio_label.map(|shared| (shared, SharingRule::IstioLabel));
        label.or_else(|| self.scope.map(|shared| (shared, SharingRule::ServiceScope)))
    }
}

/// Whether a cluster shares a service, and the rule that decides it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct SharingDecision {
    /// Whether the cluster's endpoints are only available to its own proxies.
    pub is_local: bool,
    /// The rule that decides it.
    pub rule: SharingRule,
}

/// The rules that decide whether a service is shared; the first one that applies decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum SharingRule {
    /// The presence or absence of a ServiceExport.
    Export,
    /// The label of the Service.
    Label,
    /// The label of the Namespace.
    NamespaceLabel,
    /// Istio's label of the Service, if the policy honours it.
    IstioLabel,
    /// `serviceScopeConfigs` of the mesh config, if the policy honours it.
    ServiceScope,
    /// The policy's default for the cluster.
    ClusterDefault,
    /// The policy's default.
    Default,
    /// No rule applies: services are shared.
    #[default]
    Unset,
}

impl SharingRule {
    /// Returns the name of the rule in responses of the admin port.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Export => "ServiceExport",
            Self::Label => "Service label strait.dev/share",
            Self::NamespaceLabel => "Namespace label strait.dev/share",
            Self::IstioLabel => "Service label istio.io/global",
            Self::ServiceScope => "mesh config serviceScopeConfigs",
            Self::ClusterDefault => "policy sharing.clusters",
            Self::Default => "policy sharing.default",
            Self::Unset => "no rule",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_combination_of_statements_has_its_own_number() {
        let codes: Vec<_> = (0..=u8::MAX).filter_map(SharingFacts::from_code).collect();
        assert_eq!(codes.len(), 3_usize.pow(5));
        for (code, facts) in codes.iter().enumerate() {
            assert_eq!(usize::from(facts.code()), code, "{facts:?}");
        }
        // The last known state of earlier versions stores a flag: not shared because not exported.
        let export = |export| SharingFacts { export, ..SharingFacts::default() };
        assert_eq!([export(None).code(), export(Some(false)).code()], [0, 1]);
    }
}
