//! The clusters of the mesh, as far as the configuration of proxies depends on them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use serde::Serialize;

use super::{ClusterId, NetworkId};

/// The mode that an operator set for a cluster (`strait.dev/mode`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Mode {
    /// Normal operation.
    #[default]
    Normal,
    /// Its endpoints are removed from load balancing gracefully.
    Drain,
    /// Its state is frozen at the last known one.
    Pause,
}

/// The active clusters: clusters with a Secret, and clusters within the grace period after its
/// removal. A cluster that is on standby or refused is not included.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct KnownClusters {
    /// Clusters by ID.
    pub clusters: BTreeMap<ClusterId, KnownCluster>,
}

/// The data of one cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KnownCluster {
    /// The network that the Secret's annotation fixes; other claims are ignored.
    pub fixed_network: Option<NetworkId>,
    /// Whether it is the config cluster, which is merged first.
    pub config: bool,
    /// When the cluster's Secret was created, in seconds since the Unix epoch; `None` if unknown.
    pub created: Option<i64>,
    /// The mode that an operator set.
    pub mode: Mode,
    /// Why its endpoints are withdrawn, if the cluster has been unreachable for too long.
    pub withdrawn: Option<Arc<str>>,
    /// The workloads' trust domain; empty until it is known.
    pub trust_domain: Arc<str>,
    /// The name in the set that the Secret's annotation fixes; `None` for the cluster ID.
    pub set_name: Option<Arc<str>>,
}

/// The precedence of clusters: the config cluster, then clusters with an older Secret, then those
/// whose Secret has no known age. Equal clusters are ordered by ID. (docs/reference/interface.md,
/// "Merging".)
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Seniority {
    /// The config cluster.
    Config,
    /// When the Secret was created, in seconds since the Unix epoch.
    Since(i64),
    /// The creation time is unknown.
    Unknown,
}

/// A claim to another network than the cluster's Secret fixes. It has no effect.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct IgnoredClaim {
    /// The source of the claim, as text.
    pub claim: String,
    /// The claimed network.
    pub network: NetworkId,
}

/// Addresses that pods of a cluster share with pods of another cluster in one network.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct SameAddress {
    /// The network.
    pub network: NetworkId,
    /// The other cluster.
    pub cluster: ClusterId,
    /// The number of shared addresses.
    pub addresses: usize,
    /// The first shared address.
    pub first: IpAddr,
    /// The cluster whose pods proxies of other clusters receive for these addresses.
    pub holder: ClusterId,
}

/// A range from which nodes of two clusters assign addresses to pods in one network, so that two
/// pods will have the same address sooner or later.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct SameRange {
    /// The network.
    pub network: NetworkId,
    /// The other cluster.
    pub cluster: ClusterId,
    /// The shared range: of two ranges that overlap, one contains the other, and this is the
    /// smaller one.
    pub range: IpNet,
}

impl KnownClusters {
    /// Returns the network that the Secret of `cluster` fixes.
    pub fn fixed_network(&self, cluster: &ClusterId) -> Option<&NetworkId> {
        self.clusters.get(cluster)?.fixed_network.as_ref()
    }

    /// Returns the trust domain of the workloads of `cluster`, if it is known.
    pub fn trust_domain(&self, cluster: &ClusterId) -> Option<&str> {
        let domain: &str = &self.clusters.get(cluster)?.trust_domain;
        (!domain.is_empty()).then_some(domain)
    }

    /// Returns the known trust domains by cluster.
    pub fn trust_domains(&self) -> BTreeMap<&ClusterId, &str> {
        let ids = self.clusters.keys();
        ids.filter_map(|id| Some((id, self.trust_domain(id)?))).collect()
    }

    /// Returns the precedence of `cluster`.
    pub fn seniority(&self, cluster: &ClusterId) -> Seniority {
        match self.clusters.get(cluster) {
            Some(cluster_settings) if cluster_settings.config => Seniority::Config,
            Some(cluster_settings) => {
                cluster_settings.created.map_or(Seniority::Unknown, Seniority::Since)
            }
            None => Seniority::Unknown,
        }
    }

    /// Returns the clusters whose mode or withdrawal differs from `before`, or `None` if anything
    /// else differs.
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

    /// Returns whether a proxy may claim to be in `cluster`.
    pub fn contains(&self, cluster: &ClusterId) -> bool {
        self.clusters.contains_key(cluster)
    }
}

/// Returns whether `text` is a valid trust domain of a SPIFFE ID: 1 to 255 of `a-z0-9.-_` (SPIFFE
/// ID, section 2.1).
pub fn is_trust_domain(text: &str) -> bool {
    (1..=255).contains(&text.len())
        && text.bytes().all(|b| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'.' | b'-' | b'_'))
}
