//! Selects the endpoints of a subset, and decides whether gateways of other networks know the
//! subset.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::context::PushContext;
use super::view_key::{Role, ViewKey};
use crate::aggregate::MergedService;
use strait_model::{
    ClusterId, EndpointRef, Labels, Locality, NETWORK_LABEL, NamedEndpoint, NetworkId,
};
use strait_rules::traffic::destination_rule::{DestinationRule, RuleClient, RulesForHost};
use strait_rules::traffic::policy::{ClientTls, ResolvedPolicy};

/// The cluster of an endpoint; Istio sets this label for every endpoint.
const CLUSTER: &str = "topology.istio.io/cluster";
/// The region of an endpoint.
const REGION: &str = "topology.kubernetes.io/region";
/// The zone of an endpoint.
const ZONE: &str = "topology.kubernetes.io/zone";
/// The subzone of an endpoint.
const SUBZONE: &str = "topology.istio.io/subzone";

impl PushContext {
    /// Returns the DestinationRules that may apply to clients of a service.
    pub fn rules_for(&self, service: &MergedService) -> RulesForHost {
        self.traffic.destination_rules.of(service.hostname().as_str())
    }
}

impl ViewKey {
    /// Returns the active rule for a service among the rules that [may
    /// apply](PushContext::rules_for): the client's rule, or at a gateway the rule of the service's
    /// own namespace.
    pub fn rule<'r>(
        &self,
        rules: &'r RulesForHost,
        service: &MergedService,
    ) -> Option<&'r DestinationRule> {
        let owner = &service.primary.namespace;
        let rule = match self.role {
            Role::Gateway => rules.owners(owner),
            Role::Client => {
                let (namespace, selection) = (&self.namespace, &self.selection);
                rules.rule(RuleClient { namespace, selection }, owner)
            }
        };
        rule.map(|rule| &**rule)
    }
}

/// Selects the endpoints of a subset: endpoints whose labels match, including the labels of pods
/// or entries and of the location. Selects all endpoints by default.
#[derive(Debug, Clone, Copy, Default)]
pub struct SubsetFilter<'a> {
    /// The required labels; `None` for all endpoints.
    labels: Option<&'a Labels>,
    /// Whether gateways of other networks do not know the subset.
    is_near: bool,
    /// The rule that applies, and the name of the subset in it.
    rule: Option<(&'a DestinationRule, &'a str)>,
}

impl<'a> SubsetFilter<'a> {
    /// Returns the filter for a subset of `rule`, or `None` if it has no such subset. `rules` are
    /// the rules of the service. An empty name selects the whole service.
    ///
    /// Gateways know the subsets of the rule in the service's own namespace. A subset of the
    /// client's rule with the same name may select other endpoints; then it cannot be reached in
    /// other networks.
    pub fn new(
        rules: &RulesForHost,
        rule: Option<&'a DestinationRule>,
        service: &MergedService,
        subset: &'a str,
    ) -> Option<Self> {
        let rule = rule.map(|rule| (rule, subset));
        if subset.is_empty() {
            return Some(Self { rule, ..Self::default() });
        }
        let (found, _) = rule?;
        let labels = &found.subsets.get(subset)?.labels;
        let labels = (!labels.is_empty()).then_some(labels);
        let is_near =
            labels.is_some() && !is_known_to_gateways(rules, Some(found), service, subset);
        Some(Self { labels, is_near, rule })
    }

    /// Returns whether it selects all endpoints.
    pub fn is_all(&self) -> bool {
        self.labels.is_none()
    }

    /// Returns whether gateways of other networks do not know the subset, so that only the client's
    /// own network is used.
    pub fn is_near(&self) -> bool {
        self.is_near
    }

    /// Returns whether it can select endpoints in this cluster.
    pub(super) fn matches_cluster(&self, cluster: &ClusterId) -> bool {
        self.label(CLUSTER).is_none_or(|value| value == cluster.as_str())
    }

    /// Returns whether it can select endpoints in this network.
    pub(super) fn matches_network(&self, network: &NetworkId) -> bool {
        self.label(NETWORK_LABEL).is_none_or(|value| value == network.as_str())
    }

    /// Returns whether it can select endpoints in this locality.
    pub(super) fn matches_locality(&self, locality: &Locality) -> bool {
        let parts =
            [(REGION, &locality.region), (ZONE, &locality.zone), (SUBZONE, &locality.subzone)];
        parts.iter().all(|(key, part)| self.label(key).is_none_or(|value| *value == ***part))
    }

    /// Returns whether it selects endpoints with these labels, ignoring labels of the location.
    pub(super) fn matches_labels(&self, labels: Option<&Arc<Labels>>) -> bool {
        let all = self.labels.into_iter().flat_map(|labels| labels.iter());
        let mut own = all.filter(|(key, _)| !is_location_label(key));
        own.all(|(key, value)| labels.and_then(|labels| labels.get(key)) == Some(value))
    }

    /// Returns whether it selects this endpoint of a cluster in a network.
    pub fn contains(
        &self,
        cluster: &ClusterId,
        network: &NetworkId,
        endpoint: EndpointRef<'_>,
    ) -> bool {
        self.matches_cluster(cluster)
            && self.matches_network(network)
            && self.matches_locality(endpoint.locality)
            && self.matches_labels(endpoint.labels)
    }

    /// Returns whether it selects an endpoint whose hostname proxies resolve. It is
    /// in no cluster, and in no network unless it names one.
    pub fn contains_named(&self, one: &NamedEndpoint) -> bool {
        self.label(CLUSTER).is_none()
            && self.matches_network(one.network.as_ref().unwrap_or(&NetworkId::default()))
            && self.matches_locality(&one.locality)
            && self.matches_labels(one.labels.as_ref())
    }

    /// Returns the filter after applying the policy's TLS settings. Endpoints with other TLS
    /// settings than the mesh's mTLS cannot be reached through gateways, which find the destination
    /// by the SNI of the mesh's mTLS.
    pub(super) fn with_tls_of(self, policy: Option<&ResolvedPolicy>) -> Self {
        let is_mesh = |tls: &ClientTls| matches!(tls, ClientTls::Mesh(_));
        let tls = policy.and_then(|policy| policy.tls.as_deref());
        Self { is_near: self.is_near || tls.is_some_and(|tls| !is_mesh(tls)), ..self }
    }

    /// Returns the policy of the rule for a port of the subset, or `None` without a rule.
    pub(super) fn policy(&self, port: u16) -> Option<ResolvedPolicy> {
        self.rule.map(|(rule, subset)| rule.resolved(subset, port))
    }

    fn label(&self, key: &str) -> Option<&'a str> {
        self.labels?.get(key).map(|value| &**value)
    }
}

/// Returns whether gateways know the subset of `rule` by this name: the rule in the service's own
/// namespace defines it equally.
pub fn is_known_to_gateways(
    rules: &RulesForHost,
    rule: Option<&DestinationRule>,
    service: &MergedService,
    subset: &str,
) -> bool {
    let owners = rules.owners(&service.primary.namespace);
    let Some((rule, owners)) = rule.zip(owners) else { return false };
    let [owner_labels, rule_labels] =
        [&**owners, rule].map(|rule| rule.subsets.get(subset).map(|one| &one.labels));
    owner_labels == rule_labels
}

/// Returns the names of all subsets that these rules define, including the empty name for the whole
/// service.
pub fn subset_names<'r>(
    rules: impl IntoIterator<Item = Option<&'r DestinationRule>>,
) -> BTreeSet<&'r str> {
    let named = rules.into_iter().flatten().flat_map(|rule| rule.subsets.keys());
    std::iter::once("").chain(named.map(|name| &**name)).collect()
}

fn is_location_label(key: &str) -> bool {
    matches!(key, CLUSTER | NETWORK_LABEL | REGION | ZONE | SUBZONE)
}
