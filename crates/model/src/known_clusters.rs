//! The clusters of the mesh, as far as sending configuration to proxies depends on them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use serde::Serialize;

use super::{ClusterId, NetworkId};

/// What an operator has asked for a cluster (`strait.dev/mode`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Mode {
    /// Nothing special.
    #[default]
    Normal,
    /// Its endpoints leave load balancing gracefully.
    Drain,
    /// It is frozen at its last known good state.
    Pause,
}

/// The clusters held now: those whose Secret is there, and those within the grace of its removal.
/// A cluster on standby, or refused, is not known.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct KnownClusters {
    /// By ID.
    pub clusters: BTreeMap<ClusterId, KnownCluster>,
}

/// What is known of one cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KnownCluster {
    /// The network fixed by its Secret's annotation: other claims are ignored.
    pub fixed_network: Option<NetworkId>,
    /// Whether it is the config cluster, which is merged first.
    pub config: bool,
    /// Seconds since the Unix epoch at which the Secret was made that holds it; `None` where no creation
    /// time is known.
    pub created: Option<i64>,
    /// What an operator has asked for it.
    pub mode: Mode,
    /// Why its endpoints leave load balancing, where nothing has been heard of it for too long.
    pub withdrawn: Option<Arc<str>>,
    /// The trust domain of its workloads; empty until it is known.
    pub trust_domain: Arc<str>,
}

/// Which clusters come first where they differ: the config cluster, then those whose Secret is older, then
/// those whose Secret has no known age. Of equal ones the first by ID. (docs/reference/interface.md, "Merging".)
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Seniority {
    /// The config cluster.
    Config,
    /// The Secret was made at that time, in seconds since the Unix epoch.
    Since(i64),
    /// Nobody says when.
    Unknown,
}

/// A claim to another network than the one that the Secret of its cluster fixes. It has no effect.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct IgnoredClaim {
    /// Who claims, as text.
    pub claim: String,
    /// The network that is claimed.
    pub network: NetworkId,
}

/// Addresses that pods of a cluster have together with those of another cluster, in one network.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct SameAddress {
    /// The network.
    pub network: NetworkId,
    /// The other cluster.
    pub cluster: ClusterId,
    /// How many.
    pub addresses: usize,
    /// The first of them.
    pub first: IpAddr,
    /// The cluster whose pods proxies of other clusters are given there.
    pub holder: ClusterId,
}

/// That nodes of a cluster give pods addresses of a range of which nodes of another do so in the same network: sooner or
/// later two pods have the same.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct SameRange {
    /// The network.
    pub network: NetworkId,
    /// The other cluster.
    pub cluster: ClusterId,
    /// What is in both: of two ranges that overlap one holds the other.
    pub range: IpNet,
}

impl KnownClusters {
    /// The network that the Secret of `cluster` fixes.
    pub fn fixed_network(&self, cluster: &ClusterId) -> Option<&NetworkId> {
        self.clusters.get(cluster)?.fixed_network.as_ref()
    }

    /// The trust domain of the workloads of `cluster`, where it is known.
    pub fn trust_domain(&self, cluster: &ClusterId) -> Option<&str> {
        let domain: &str = &self.clusters.get(cluster)?.trust_domain;
        (!domain.is_empty()).then_some(domain)
    }

    /// The trust domains of all clusters of which it is known, by cluster.
    pub fn trust_domains(&self) -> BTreeMap<&ClusterId, &str> {
        let known = self.clusters.keys();
        known.filter_map(|id| Some((id, self.trust_domain(id)?))).collect()
    }

    /// Where `cluster` stands among others.
    pub fn seniority(&self, cluster: &ClusterId) -> Seniority {
        match self.clusters.get(cluster) {
            Some(known) if known.config => Seniority::Config,
            Some(known) => known.created.map_or(Seniority::Unknown, Seniority::Since),
            None => Seniority::Unknown,
        }
    }

    /// The clusters of which it differs whether their endpoints count, where nothing else differs from `before`; `None`
    /// where something else does.
    pub fn differ_in_mode(&self, before: &Self) -> Option<BTreeSet<ClusterId>> {
        let mut differing = BTreeSet::new();
        if self.clusters.len() != before.clusters.len() {
            return None;
        }
        for ((id, now), (then_id, then)) in self.clusters.iter().zip(&before.clusters) {
            let as_now = || KnownCluster {
                mode: now.mode,
                withdrawn: now.withdrawn.clone(),
                ..then.clone()
            };
            if id != then_id || as_now() != *now {
                return None;
            }
            if (now.mode, &now.withdrawn) != (then.mode, &then.withdrawn) {
                differing.insert(id.clone());
            }
        }
        Some(differing)
    }

    /// Whether `cluster` may be claimed by a proxy.
    pub fn contains(&self, cluster: &ClusterId) -> bool {
        self.clusters.contains_key(cluster)
    }
}

/// Whether `text` can be the trust domain of a SPIFFE ID: up to 255 of `a-z0-9.-_` (SPIFFE ID, section 2.1).
pub fn is_trust_domain(text: &str) -> bool {
    (1..=255).contains(&text.len())
        && text.bytes().all(|b| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'.' | b'-' | b'_'))
}
