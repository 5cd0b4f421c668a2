//! Preferences among clusters: the order in which proxies use the clusters of a service.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use super::names::ServiceNames;
use crate::{ClusterId, NetworkId};

/// An order of clusters for some services and some proxies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Preference {
    /// The name in messages.
    pub name: String,
    /// The services to which it applies.
    pub(super) services: ServiceNames,
    /// The clusters of the proxies to which it applies; `None` for all.
    pub(super) proxies: Option<BTreeSet<ClusterId>>,
    /// The tiers in order of preference.
    pub(super) order: Vec<Tier>,
}

/// One tier of the order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Tier {
    /// The proxy's own cluster.
    OwnCluster,
    /// All clusters in the proxy's own network.
    OwnNetwork,
    /// These clusters, with weights if they are set.
    Clusters(BTreeMap<ClusterId, Option<u32>>),
    /// All clusters that match no other tier.
    Others,
}

/// The rank of the endpoints of a cluster for a proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Rank {
    /// The tier, starting at 0; lower tiers are used first.
    pub tier: u32,
    /// The cluster's weight within the tier, if it is set.
    pub share: Option<u32>,
}

impl Preference {
    /// Returns whether it applies to a service and to proxies of a cluster.
    pub(super) fn is_about(&self, host: &str, namespace: &str, proxies: &ClusterId) -> bool {
        self.services.hold(host, namespace)
            && self.proxies.as_ref().is_none_or(|clusters| clusters.contains(proxies))
    }

    /// Returns the rank of the cluster and network `target` for a proxy in `own`. A cluster that
    /// matches no tier comes last: a preference never withholds endpoints.
    pub fn rank(&self, own: (&ClusterId, &NetworkId), target: (&ClusterId, &NetworkId)) -> Rank {
        let mut others_tier = self.order.len();
        for (at, tier) in self.order.iter().enumerate() {
            let share = match tier {
                Tier::OwnCluster if own.0 == target.0 => None,
                Tier::OwnNetwork if own.1 == target.1 => None,
                Tier::Clusters(clusters) => match clusters.get(target.0) {
                    Some(share) => *share,
                    None => continue,
                },
                Tier::Others => {
                    others_tier = others_tier.min(at);
                    continue;
                }
                Tier::OwnCluster | Tier::OwnNetwork => continue,
            };
            return Rank { tier: u32::try_from(at).unwrap_or(u32::MAX), share };
        }
        Rank { tier: u32::try_from(others_tier).unwrap_or(u32::MAX), share: None }
    }

    /// Returns the clusters that it names.
    pub(super) fn clusters(&self) -> impl Iterator<Item = &ClusterId> {
        let ordered = self.order.iter().filter_map(|tier| match tier {
            Tier::Clusters(clusters) => Some(clusters.keys()),
            _ => None,
        });
        ordered.flatten().chain(self.proxies.iter().flatten())
    }
}

impl fmt::Display for Preference {
    /// Formats it as `shop-at-home: own cluster, then west 90 and north 10, then any other`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let order: Vec<_> = self.order.iter().map(ToString::to_string).collect();
        write!(f, "{}: {}", self.name, order.join(", then "))?;
        if self.order.contains(&Tier::Others) { Ok(()) } else { f.write_str(", then any other") }
    }
}

impl fmt::Display for Tier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OwnCluster => f.write_str("own cluster"),
            Self::OwnNetwork => f.write_str("own network"),
            Self::Others => f.write_str("any other"),
            Self::Clusters(clusters) => {
                let named: Vec<_> = clusters
                    .iter()
                    .map(|(cluster, share)| match share {
                        Some(share) => format!("{cluster} {share}"),
                        None => cluster.to_string(),
                    })
                    .collect();
                f.write_str(&named.join(" and "))
            }
        }
    }
}
