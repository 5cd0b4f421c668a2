//! Which endpoints are of a subset of a service, and by which way other networks know it.

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

/// Of the cluster that has an endpoint: what Istio sets for every endpoint.
const CLUSTER: &str = "topology.istio.io/cluster";
/// Of its locality.
const REGION: &str = "topology.kubernetes.io/region";
/// See [`REGION`].
const ZONE: &str = "topology.kubernetes.io/zone";
/// See [`REGION`].
const SUBZONE: &str = "topology.istio.io/subzone";

impl PushContext {
    /// The rules of traffic that may hold for clients of a service.
    pub fn rules_for(&self, service: &MergedService) -> RulesForHost {
        self.traffic.destination_rules.of(service.hostname().as_str())
    }
}

impl ViewKey {
    /// The rule in force for a service, of those that [may hold](PushContext::rules_for): that of the client, at a gateway
    /// that of the service itself.
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

/// The endpoints that are of a subset: those with its labels, of their pods or entries or of where they are. All of a
/// service by default.
#[derive(Debug, Clone, Copy, Default)]
pub struct SubsetFilter<'a> {
    /// `None` for all.
    labels: Option<&'a Labels>,
    /// Whether no gateway of another network knows it.
    is_near: bool,
    /// The rule that is followed, and the name that it is by.
    rule: Option<(&'a DestinationRule, &'a str)>,
}

impl<'a> SubsetFilter<'a> {
    /// The endpoints of a subset that clients are given by `rule`; `None` where it has no such subset. `rules` are those of
    /// the service. The name of all of it is empty.
    ///
    /// A gateway knows the subsets of the rule that is its service's owner's. What a client's own rule calls so may be
    /// something else, and then there is no way to it in other networks.
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

    /// Whether all endpoints are of it.
    pub fn is_all(&self) -> bool {
        self.labels.is_none()
    }

    /// Whether gateways of other networks lead to it.
    pub fn is_near(&self) -> bool {
        self.is_near
    }

    /// Whether there are endpoints of it in a cluster.
    pub(super) fn is_of_cluster(&self, cluster: &ClusterId) -> bool {
        self.label(CLUSTER).is_none_or(|said| said == cluster.as_str())
    }

    /// Whether there are in a network.
    pub(super) fn is_of_network(&self, network: &NetworkId) -> bool {
        self.label(NETWORK_LABEL).is_none_or(|said| said == network.as_str())
    }

    /// Whether there are in a locality.
    pub(super) fn is_of_locality(&self, locality: &Locality) -> bool {
        let parts =
            [(REGION, &locality.region), (ZONE, &locality.zone), (SUBZONE, &locality.subzone)];
        parts.iter().all(|(key, part)| self.label(key).is_none_or(|said| *said == ***part))
    }

    /// Whether endpoints with these labels are of it, as far as where they are doesn't matter.
    pub(super) fn is_of_labels(&self, labels: Option<&Arc<Labels>>) -> bool {
        let all = self.labels.into_iter().flat_map(|labels| labels.iter());
        let mut own = all.filter(|(key, _)| !is_of_place(key));
        own.all(|(key, value)| labels.and_then(|labels| labels.get(key)) == Some(value))
    }

    /// Whether an endpoint is of it that a cluster has in a network.
    pub fn contains(
        &self,
        cluster: &ClusterId,
        network: &NetworkId,
        endpoint: EndpointRef<'_>,
    ) -> bool {
        self.is_of_cluster(cluster)
            && self.is_of_network(network)
            && self.is_of_locality(endpoint.locality)
            && self.is_of_labels(endpoint.labels)
    }

    /// Whether one is that proxies resolve. It is in no cluster, and where it names none in no network.
    pub fn contains_named(&self, one: &NamedEndpoint) -> bool {
        self.label(CLUSTER).is_none()
            && self.is_of_network(one.network.as_ref().unwrap_or(&NetworkId::default()))
            && self.is_of_locality(&one.locality)
            && self.is_of_labels(one.labels.as_ref())
    }

    /// The same, where that is said of how it is spoken to. What is spoken to otherwise than by the mesh's mTLS has no way
    /// through gateways: from that alone they learn who is meant.
    pub(super) fn spoken_to(self, policy: Option<&ResolvedPolicy>) -> Self {
        let is_mesh = |tls: &ClientTls| matches!(tls, ClientTls::Mesh(_));
        let tls = policy.and_then(|policy| policy.tls.as_deref());
        Self { is_near: self.is_near || tls.is_some_and(|tls| !is_mesh(tls)), ..self }
    }

    /// What the rule says of a port of it; `None` without a rule.
    pub(super) fn policy(&self, port: u16) -> Option<ResolvedPolicy> {
        self.rule.map(|(rule, subset)| rule.resolved(subset, port))
    }

    fn label(&self, key: &str) -> Option<&'a str> {
        self.labels?.get(key).map(|value| &**value)
    }
}

/// Whether the subset of that name which `rule` has is the one that gateways know by it.
pub fn is_known_to_gateways(
    rules: &RulesForHost,
    rule: Option<&DestinationRule>,
    service: &MergedService,
    subset: &str,
) -> bool {
    let owners = rules.owners(&service.primary.namespace);
    let Some((rule, owners)) = rule.zip(owners) else { return false };
    let [known, own] =
        [&**owners, rule].map(|rule| rule.subsets.get(subset).map(|one| &one.labels));
    known == own
}

/// The names of all subsets that a service has by any of these rules, that of all of it among them.
pub fn subset_names<'r>(
    rules: impl IntoIterator<Item = Option<&'r DestinationRule>>,
) -> BTreeSet<&'r str> {
    let named = rules.into_iter().flatten().flat_map(|rule| rule.subsets.keys());
    std::iter::once("").chain(named.map(|name| &**name)).collect()
}

fn is_of_place(key: &str) -> bool {
    matches!(key, CLUSTER | NETWORK_LABEL | REGION | ZONE | SUBZONE)
}
