//! The operator's policy: the limits of what clusters may claim, and preferences among clusters. It
//! is read from one file. (docs/reference/policy-file.md)
//!
//! Owns the rules and their wording; every refusal names the rule that caused it. This module does
//! not know the mesh: callers pass the facts.

mod file;
mod invalid;
mod names;
mod preference;
mod rollout;
mod rules;
mod sharing;
#[cfg(test)]
mod tests;
mod traffic;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

pub use self::invalid::InvalidPolicy;
pub use self::names::ServiceNames;
pub use self::preference::{Preference, Rank, Tier};
pub use self::rollout::{RolloutLimits, RolloutPlan};
pub use self::rules::{MassWithdrawal, ReadBudget, RelayTrust, WhenDark};
use self::rules::{OwnedNames, Rules};
pub use self::sharing::SharingPolicy;
pub use self::traffic::{DefaultVisibility, ForeignBytes, ForeignHostsMode, TrafficLimits};
use crate::{ClusterId, ImportMode, Mode, NamespaceFilter, NetworkId, ReadNamespaces};
use strait_base::address::special;

/// The active rules.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Policy {
    /// The default rules for clusters.
    mesh: Rules,
    /// The rules of individual clusters.
    clusters: BTreeMap<ClusterId, Rules>,
    /// Names that belong to certain clusters, in the order of the file.
    owners: Vec<OwnedNames>,
    /// Preferences in the order of the file; the first that matches the service and the proxy
    /// applies.
    preferences: Vec<Preference>,
    /// The plan for rollouts; `None` to send changes to all proxies at once.
    rollout: Option<Arc<RolloutPlan>>,
    /// The clusters whose own traffic objects apply to their proxies.
    traffic_from: BTreeSet<ClusterId>,
    /// Limits of traffic objects for proxies in other namespaces.
    traffic: TrafficLimits,
    /// The namespaces whose objects may be gateways of networks; `None` for all.
    gateway_namespaces: Option<BTreeSet<String>>,
    /// How outlier detection treats errors of endpoints behind gateways.
    remote_ejection: RemoteEjection,
    /// Which services clusters share.
    sharing: SharingPolicy,
}

/// How outlier detection treats errors of endpoints behind the gateways of other networks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RemoteEjection {
    /// A gateway represents its network: only failed connections to the gateway eject it.
    #[default]
    PerNetwork,
    /// A gateway is ejected like any endpoint, also for errors of a pod behind it.
    PerHost,
}

impl RemoteEjection {
    /// Returns the name in the policy file.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::PerNetwork => "perNetwork",
            Self::PerHost => "perHost",
        }
    }
}

/// Why a claim is refused: the rule, by its location in the file, and the fact.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PolicyRefusal {
    /// The rule, for example `clusters.east.exports`.
    pub rule: String,
    /// The fact, for example `namespace payments belongs to west`.
    pub fact: String,
}

impl std::fmt::Display for PolicyRefusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} (policy {})", self.fact, self.rule)
    }
}

impl Policy {
    /// Returns the mode that is set for a cluster, and the rule that sets it.
    pub fn mode(&self, cluster: &ClusterId) -> Option<(Mode, String)> {
        self.rule(cluster, "mode", |rules| rules.mode)
    }

    /// Returns how the endpoints of an unreachable cluster are handled, and the rule that decides
    /// it; `None` for the default, which keeps them.
    pub fn when_dark(&self, cluster: &ClusterId) -> Option<(WhenDark, String)> {
        self.rule(cluster, "whenDark", |rules| rules.when_dark)
    }

    /// Returns how long expired tokens of a cluster are accepted while it is unreachable, and the
    /// rule that decides it; `None` if they are not accepted.
    pub fn dark_token_grace(&self, cluster: &ClusterId) -> Option<(Duration, String)> {
        let rule = self.rule(cluster, "darkTokenGrace", |rules| rules.dark_token_grace);
        rule.filter(|(grace, _)| !grace.is_zero())
    }

    /// Returns when the loss of many endpoints is delayed, regardless of how it is reported. `None`
    /// for the default, which delays only losses that a fresh list reports.
    pub fn mass_withdrawal(&self, cluster: &ClusterId) -> Option<MassWithdrawal> {
        self.rule(cluster, "massWithdrawal", |rules| rules.mass_withdrawal).map(|(guard, _)| guard)
    }

    /// Returns which objects are written into a cluster for exported services; `None` if the flag
    /// decides.
    pub fn imports(&self, cluster: &ClusterId) -> Option<ImportMode> {
        self.rule(cluster, "mcs.imports", |rules| rules.imports).map(|(mode, _)| mode)
    }

    /// Returns whether any rule enables imports of exported services.
    pub fn writes_imports(&self) -> bool {
        self.all_rules().any(|rules| rules.imports.is_some_and(|mode| mode != ImportMode::Off))
    }

    /// Returns whether any rule sets this mode.
    pub fn writes_imports_in(&self, mode: ImportMode) -> bool {
        self.all_rules().any(|rules| rules.imports == Some(mode))
    }

    /// Returns whether `status.clusters` of ServiceImports of other controllers is written.
    pub fn adopts_import_status(&self, cluster: &ClusterId) -> bool {
        let rule = self.rule(cluster, "mcs.adopt", |rules| rules.adopt_status);
        rule.is_some_and(|(adopts, _)| adopts)
    }

    /// Returns the namespaces of a cluster that belong to the mesh; `None` if the mesh config decides.
    pub fn discovery_selectors(&self, cluster: &ClusterId) -> Option<&Arc<NamespaceFilter>> {
        self.clusters.get(cluster)?.discovery_selectors.as_ref()
    }

    /// Returns the namespaces to which the reader of a cluster is limited; `None` if its Secret
    /// decides.
    pub fn read_namespaces(&self, cluster: &ClusterId) -> Option<&ReadNamespaces> {
        self.clusters.get(cluster)?.read_namespaces.as_ref()
    }

    /// Returns whether the object that defines a cluster may lead to another cluster under the same
    /// ID after it was deleted and created again.
    pub fn follows_source(&self, cluster: &ClusterId) -> bool {
        self.clusters.get(cluster).and_then(|rules| rules.follows_source) == Some(true)
    }

    /// Returns the clusters whose relays may enrol with a token, each with the token.
    pub fn relay_trusts(&self) -> impl Iterator<Item = (&ClusterId, &RelayTrust)> {
        self.clusters.iter().filter_map(|(id, rules)| Some((id, rules.relay.as_ref()?)))
    }

    /// Returns the limits of reading a cluster.
    pub fn budget(&self, cluster: &ClusterId) -> ReadBudget {
        let own = self.clusters.get(cluster).map(|rules| rules.budget).unwrap_or_default();
        let mesh = self.mesh.budget;
        ReadBudget {
            objects: own.objects.or(mesh.objects),
            pages: own.pages.or(mesh.pages),
            object_bytes: own.object_bytes.or(mesh.object_bytes),
            page_bytes: own.page_bytes.or(mesh.page_bytes),
            memory_bytes: own.memory_bytes.or(mesh.memory_bytes),
        }
    }

    /// Checks whether a cluster may provide endpoints of a service to other clusters.
    ///
    /// # Errors
    /// Returns the rule that refuses it.
    pub fn may_export(
        &self,
        cluster: &ClusterId,
        host: &str,
        namespace: &str,
    ) -> Result<(), PolicyRefusal> {
        for (at, owner) in self.owners.iter().enumerate() {
            if owner.names.hold(host, namespace) && !owner.clusters.contains(cluster) {
                let owners: Vec<_> = owner.clusters.iter().map(ClusterId::as_str).collect();
                return Err(PolicyRefusal {
                    rule: format!("owners[{at}]"),
                    fact: format!("{host} belongs to {}", listed(&owners)),
                });
            }
        }
        match self.find(cluster, |rules| rules.exports.as_ref()) {
            Some((names, own)) if !names.hold(host, namespace) => Err(PolicyRefusal {
                rule: place(own, cluster, "exports"),
                fact: format!("cluster {cluster} may not export {host}"),
            }),
            _ => Ok(()),
        }
    }

    /// Returns whether any rule limits which hostnames clusters may export.
    pub fn limits_exports(&self) -> bool {
        !self.owners.is_empty() || self.all_rules().any(|rules| rules.exports.is_some())
    }

    /// Checks whether endpoints and gateways of a cluster may be in a network.
    ///
    /// # Errors
    /// Returns the rule that refuses it.
    pub fn may_claim(&self, cluster: &ClusterId, network: &NetworkId) -> Result<(), PolicyRefusal> {
        match self.find(cluster, |rules| rules.networks.as_ref()) {
            Some((networks, own)) if !networks.contains(network) => {
                let named: Vec<_> = networks.iter().map(NetworkId::as_str).collect();
                Err(PolicyRefusal {
                    rule: place(own, cluster, "networks"),
                    fact: format!(
                        "cluster {cluster} may claim {}, not network {network:?}",
                        listed(&named)
                    ),
                })
            }
            _ => Ok(()),
        }
    }

    /// Checks whether a cluster itself may declare the trust domain of its workloads; `None` if no
    /// rule applies.
    ///
    /// # Errors
    /// Returns the rule that refuses it.
    pub fn may_name(&self, cluster: &ClusterId, domain: &str) -> Option<Result<(), PolicyRefusal>> {
        let (domains, own) = self.find(cluster, |rules| rules.trust_domains.as_ref())?;
        if domains.contains(domain) {
            return Some(Ok(()));
        }
        let named: Vec<_> = domains.iter().map(String::as_str).collect();
        let fact = format!("cluster {cluster} may name {}", listed(&named));
        Some(Err(PolicyRefusal { rule: place(own, cluster, "trustDomains"), fact }))
    }

    /// Checks whether a cluster may vouch for service accounts of a namespace; `None` if no rule
    /// applies.
    ///
    /// # Errors
    /// Returns the rule that refuses it.
    pub fn may_vouch(
        &self,
        cluster: &ClusterId,
        namespace: &str,
    ) -> Option<Result<(), PolicyRefusal>> {
        let (namespaces, own) = self.find(cluster, |rules| rules.identities.as_ref())?;
        if namespaces.contains("*") || namespaces.contains(namespace) {
            return Some(Ok(()));
        }
        let named: Vec<_> = namespaces.iter().map(String::as_str).collect();
        let fact = format!("cluster {cluster} may vouch for {}, not {namespace}", listed(&named));
        Some(Err(PolicyRefusal { rule: place(own, cluster, "identities"), fact }))
    }

    /// Checks whether an endpoint or a gateway of a cluster may have an address. Loopback,
    /// link-local and similar addresses are refused regardless of the file.
    ///
    /// # Errors
    /// Returns the rule that refuses it.
    pub fn may_use(&self, cluster: &ClusterId, address: IpAddr) -> Result<(), PolicyRefusal> {
        if let Some(special) = special(address) {
            return Err(PolicyRefusal {
                rule: "built in".into(),
                fact: format!("{address} is {special}, which no cluster may use"),
            });
        }
        match self.find(cluster, |rules| rules.addresses.as_ref()) {
            Some((ranges, own)) => {
                let address = address.to_canonical();
                if ranges.iter().any(|range| range.contains(&address)) {
                    return Ok(());
                }
                let fact =
                    format!("{address} is outside the ranges that cluster {cluster} may use");
                Err(PolicyRefusal { rule: place(own, cluster, "addresses"), fact })
            }
            None => Ok(()),
        }
    }

    /// Returns whether a rule limits the addresses of endpoints of this cluster.
    pub fn limits_addresses(&self, cluster: &ClusterId) -> bool {
        self.find(cluster, |rules| rules.addresses.as_ref()).is_some()
    }

    /// Returns the preference among clusters for a service, for proxies in cluster `proxies`;
    /// `None` if all clusters are equal.
    pub fn preference(
        &self,
        host: &str,
        namespace: &str,
        proxies: &ClusterId,
    ) -> Option<&Preference> {
        self.preferences.iter().find(|one| one.is_about(host, namespace, proxies))
    }

    /// Returns all preferences, in order of evaluation.
    pub fn preferences(&self) -> impl Iterator<Item = &Preference> {
        self.preferences.iter()
    }

    /// Returns whether any preference matches a service, for proxies in any cluster.
    pub fn prefers(&self, host: &str, namespace: &str) -> bool {
        self.preferences.iter().any(|one| one.services.hold(host, namespace))
    }

    /// Returns the plan for rollouts, or `None` if changes are sent to all proxies at once.
    pub fn rollout(&self) -> Option<&Arc<RolloutPlan>> {
        self.rollout.as_ref()
    }

    /// Returns whether a cluster's own traffic objects apply to its proxies.
    pub fn applies_traffic_from(&self, cluster: &ClusterId) -> bool {
        self.traffic_from.contains(cluster)
    }

    /// Returns the limits of traffic objects for proxies in other namespaces.
    pub fn traffic(&self) -> TrafficLimits {
        self.traffic
    }

    /// Returns the namespaces whose objects may be gateways of networks, or `None` for all
    /// namespaces.
    pub fn gateway_namespaces(&self) -> Option<&BTreeSet<String>> {
        self.gateway_namespaces.as_ref()
    }

    /// Returns how outlier detection treats errors of endpoints behind gateways.
    pub fn remote_ejection(&self) -> RemoteEjection {
        self.remote_ejection
    }

    /// Returns the rules that decide which services clusters share.
    pub fn sharing(&self) -> &SharingPolicy {
        &self.sharing
    }

    /// Checks whether an object in `namespace` may be a gateway of a network.
    ///
    /// # Errors
    /// Returns the rule that forbids it.
    pub fn may_be_gateway(&self, namespace: &str) -> Result<(), PolicyRefusal> {
        match &self.gateway_namespaces {
            Some(namespaces) if !namespaces.contains("*") && !namespaces.contains(namespace) => {
                let named: Vec<_> = namespaces.iter().map(String::as_str).collect();
                let fact = format!("gateways may be in {}, not in {namespace}", listed(&named));
                Err(PolicyRefusal { rule: "gatewayNamespaces".into(), fact })
            }
            _ => Ok(()),
        }
    }

    /// Returns every cluster that the file names, with the location of the name.
    pub fn clusters_named(&self) -> BTreeMap<&ClusterId, String> {
        let mut named = BTreeMap::new();
        for cluster in &self.traffic_from {
            named.insert(cluster, "trafficFrom".to_owned());
        }
        for cluster in self.sharing.clusters() {
            named.insert(cluster, format!("sharing.clusters.{cluster}"));
        }
        for (at, preference) in self.preferences.iter().enumerate() {
            for cluster in preference.clusters() {
                named.insert(cluster, format!("preferences[{at}]"));
            }
        }
        for (at, owner) in self.owners.iter().enumerate() {
            for cluster in &owner.clusters {
                named.insert(cluster, format!("owners[{at}]"));
            }
        }
        for cluster in self.clusters.keys() {
            named.insert(cluster, format!("clusters.{cluster}"));
        }
        named
    }

    fn all_rules(&self) -> impl Iterator<Item = &Rules> {
        std::iter::once(&self.mesh).chain(self.clusters.values())
    }

    /// Returns the cluster's own rule, otherwise the mesh's, with its location in the file.
    fn rule<'a, T>(
        &'a self,
        cluster: &ClusterId,
        field: &str,
        pick: impl Fn(&'a Rules) -> Option<T>,
    ) -> Option<(T, String)> {
        self.find(cluster, pick).map(|(rule, own)| (rule, place(own, cluster, field)))
    }

    /// Returns the rule that applies, and whether it is the cluster's own.
    fn find<'a, T>(
        &'a self,
        cluster: &ClusterId,
        pick: impl Fn(&'a Rules) -> Option<T>,
    ) -> Option<(T, bool)> {
        let own = self.clusters.get(cluster).and_then(&pick);
        own.map(|rule| (rule, true)).or_else(|| pick(&self.mesh).map(|rule| (rule, false)))
    }
}

/// Returns the location of a rule in the file.
fn place(own: bool, cluster: &ClusterId, field: &str) -> String {
    if own { format!("clusters.{cluster}.{field}") } else { format!("mesh.{field}") }
}

/// Formats a list as `a`, `a or b`, `a, b or c`; empty names are shown as `""`.
fn listed(names: &[&str]) -> String {
    let names: Vec<_> =
        names.iter().map(|name| if name.is_empty() { "\"\"" } else { name }).collect();
    match names.split_last() {
        None => "nothing".into(),
        Some((last, [])) => (*last).to_owned(),
        Some((last, rest)) => format!("{} or {last}", rest.join(", ")),
    }
}
