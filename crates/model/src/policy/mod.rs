//! What an operator allows clusters to say, and prefers among them: one file, asked by name at a few
//! places. (docs/guide/policy.md)
//!
//! Owns the rules and their wording; every refusal names the rule that made it. Never looks at the mesh: who asks
//! brings the facts.

mod file;
mod invalid;
mod names;
mod preference;
mod rollout;
mod rules;
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
pub use self::rules::{MassWithdrawal, ReadBudget, WhenDark};
use self::rules::{OwnedNames, Rules};
pub use self::traffic::{DefaultVisibility, ForeignBytes, ForeignHostsMode, TrafficLimits};
use crate::{ClusterId, Mode, NetworkId};
use strait_base::address::special;

/// The rules in force.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Policy {
    /// For every cluster that says nothing else.
    mesh: Rules,
    /// By cluster.
    clusters: BTreeMap<ClusterId, Rules>,
    /// Names that belong to certain clusters, in the order of the file.
    owners: Vec<OwnedNames>,
    /// In the order of the file: the first that is about a service and a proxy counts.
    preferences: Vec<Preference>,
    /// How changes of configuration are let out; `None` for to all at once.
    rollout: Option<Arc<RolloutPlan>>,
    /// The clusters whose own traffic objects hold for their proxies.
    traffic_from: BTreeSet<ClusterId>,
    /// Limits on traffic objects for proxies of other namespaces.
    traffic: TrafficLimits,
    /// The namespaces whose objects may be gateways of networks; `None` for all.
    gateway_namespaces: Option<BTreeSet<String>>,
}

/// Why something is not taken: the rule, by its place in the file, and the fact.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PolicyRefusal {
    /// Such as `clusters.east.exports`.
    pub rule: String,
    /// Such as `namespace payments belongs to west`.
    pub fact: String,
}

impl std::fmt::Display for PolicyRefusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} (policy {})", self.fact, self.rule)
    }
}

impl Policy {
    /// What an operator asks for a cluster, and by which rule.
    pub fn mode(&self, cluster: &ClusterId) -> Option<(Mode, String)> {
        self.rule(cluster, "mode", |rules| rules.mode)
    }

    /// What becomes of the endpoints of a cluster out of contact, and by which rule; none where they stay because
    /// nothing else is set.
    pub fn when_dark(&self, cluster: &ClusterId) -> Option<(WhenDark, String)> {
        self.rule(cluster, "whenDark", |rules| rules.when_dark)
    }

    /// For how long after their end tokens of a cluster are taken while it is out of contact, and by which rule; none
    /// where they aren't.
    pub fn dark_token_grace(&self, cluster: &ClusterId) -> Option<(Duration, String)> {
        let rule = self.rule(cluster, "darkTokenGrace", |rules| rules.dark_token_grace);
        rule.filter(|(grace, _)| !grace.is_zero())
    }

    /// When the loss of many endpoints is held back, whatever says so; none where only what a fresh
    /// list says is held back.
    pub fn mass_withdrawal(&self, cluster: &ClusterId) -> Option<MassWithdrawal> {
        self.rule(cluster, "massWithdrawal", |rules| rules.mass_withdrawal).map(|(guard, _)| guard)
    }

    /// The most that is read of a cluster.
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

    /// Whether a cluster may have endpoints for a service that others use.
    ///
    /// # Errors
    /// The rule that says no.
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
                fact: format!("{host} is not among what cluster {cluster} may export"),
            }),
            _ => Ok(()),
        }
    }

    /// Whether anything says which cluster may have endpoints for which names.
    pub fn limits_exports(&self) -> bool {
        !self.owners.is_empty() || self.all_rules().any(|rules| rules.exports.is_some())
    }

    /// Whether endpoints and gateways of a cluster may be in a network.
    ///
    /// # Errors
    /// The rule that says no.
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

    /// Whether a cluster may say itself that its workloads are of a trust domain; `None` where no rule says.
    ///
    /// # Errors
    /// The rule that says no.
    pub fn may_name(&self, cluster: &ClusterId, domain: &str) -> Option<Result<(), PolicyRefusal>> {
        let (domains, own) = self.find(cluster, |rules| rules.trust_domains.as_ref())?;
        if domains.contains(domain) {
            return Some(Ok(()));
        }
        let named: Vec<_> = domains.iter().map(String::as_str).collect();
        let fact = format!("cluster {cluster} may name {}", listed(&named));
        Some(Err(PolicyRefusal { rule: place(own, cluster, "trustDomains"), fact }))
    }

    /// Whether a cluster may vouch for accounts of a namespace; `None` where no rule says.
    ///
    /// # Errors
    /// The rule that says no.
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

    /// Whether an endpoint or a gateway of a cluster may have an address. What is the host's own or the
    /// link's is nobody's to give away, whatever the file says.
    ///
    /// # Errors
    /// The rule that says no.
    pub fn may_use(&self, cluster: &ClusterId, address: IpAddr) -> Result<(), PolicyRefusal> {
        if let Some(special) = special(address) {
            return Err(PolicyRefusal {
                rule: "built in".into(),
                fact: format!("{address} is {special}, which no cluster can speak for"),
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

    /// Whether it depends on the address of an endpoint of that cluster whether it is taken.
    pub fn limits_addresses(&self, cluster: &ClusterId) -> bool {
        self.find(cluster, |rules| rules.addresses.as_ref()).is_some()
    }

    /// Which clusters proxies of `proxies` turn to first for a service; none where all are alike.
    pub fn preference(
        &self,
        host: &str,
        namespace: &str,
        proxies: &ClusterId,
    ) -> Option<&Preference> {
        self.preferences.iter().find(|one| one.is_about(host, namespace, proxies))
    }

    /// All preferences, in the order in which they are asked.
    pub fn preferences(&self) -> impl Iterator<Item = &Preference> {
        self.preferences.iter()
    }

    /// Whether any preference may be about a service, whoever asks.
    pub fn prefers(&self, host: &str, namespace: &str) -> bool {
        self.preferences.iter().any(|one| one.services.hold(host, namespace))
    }

    /// How changes of configuration are let out; `None` where all proxies are given them at once.
    pub fn rollout(&self) -> Option<&Arc<RolloutPlan>> {
        self.rollout.as_ref()
    }

    /// Whether the traffic objects that a cluster has itself hold for its proxies.
    pub fn takes_traffic_from(&self, cluster: &ClusterId) -> bool {
        self.traffic_from.contains(cluster)
    }

    /// The limits on traffic objects for proxies of other namespaces.
    pub fn traffic(&self) -> TrafficLimits {
        self.traffic
    }

    /// The namespaces whose objects may be gateways of networks; `None` for all.
    pub fn gateway_namespaces(&self) -> Option<&BTreeSet<String>> {
        self.gateway_namespaces.as_ref()
    }

    /// Whether an object of a namespace may be the gateway of a network.
    ///
    /// # Errors
    /// The rule that forbids it.
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

    /// Every cluster that the file names, with the place that names it.
    pub fn clusters_named(&self) -> BTreeMap<&ClusterId, String> {
        let mut named = BTreeMap::new();
        for cluster in &self.traffic_from {
            named.insert(cluster, "trafficFrom".to_owned());
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

    /// The cluster's own rule, else the mesh's, with its place in the file.
    fn rule<'a, T>(
        &'a self,
        cluster: &ClusterId,
        field: &str,
        pick: impl Fn(&'a Rules) -> Option<T>,
    ) -> Option<(T, String)> {
        self.find(cluster, pick).map(|(rule, own)| (rule, place(own, cluster, field)))
    }

    /// The rule that counts, and whether it is the cluster's own.
    fn find<'a, T>(
        &'a self,
        cluster: &ClusterId,
        pick: impl Fn(&'a Rules) -> Option<T>,
    ) -> Option<(T, bool)> {
        let own = self.clusters.get(cluster).and_then(&pick);
        own.map(|rule| (rule, true)).or_else(|| pick(&self.mesh).map(|rule| (rule, false)))
    }
}

/// The place of a rule in the file.
fn place(own: bool, cluster: &ClusterId, field: &str) -> String {
    if own { format!("clusters.{cluster}.{field}") } else { format!("mesh.{field}") }
}

/// `a`, `a or b`, `a, b or c`; what is empty can be seen.
fn listed(names: &[&str]) -> String {
    let names: Vec<_> =
        names.iter().map(|name| if name.is_empty() { "\"\"" } else { name }).collect();
    match names.split_last() {
        None => "nothing".into(),
        Some((last, [])) => (*last).to_owned(),
        Some((last, rest)) => format!("{} or {last}", rest.join(", ")),
    }
}
