//! Which clusters proxies turn to first for a service, in plain words.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use super::names::ServiceNames;
use crate::{ClusterId, NetworkId};

/// An order of clusters for some services and some proxies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Preference {
    /// How messages call it.
    pub name: String,
    /// The services it is about.
    pub(super) services: ServiceNames,
    /// The clusters of the proxies it is about; none for all.
    pub(super) proxies: Option<BTreeSet<ClusterId>>,
    /// Who comes first, then, and so on.
    pub(super) order: Vec<Tier>,
}

/// One place in the order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Tier {
    /// The proxy's own cluster.
    OwnCluster,
    /// Everything in the proxy's own network.
    OwnNetwork,
    /// These clusters; with shares of the traffic, where they have any.
    Clusters(BTreeMap<ClusterId, Option<u32>>),
    /// Whoever has no place before or after.
    Others,
}

/// Where the endpoints of a cluster stand for a proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Rank {
    /// The place, from 0: lower ones are used first.
    pub tier: u32,
    /// The cluster's share of the place's traffic, where it is fixed.
    pub share: Option<u32>,
}

impl Preference {
    /// Whether it is about a service and a proxy of a cluster.
    pub(super) fn is_about(&self, host: &str, namespace: &str, proxies: &ClusterId) -> bool {
        self.services.hold(host, namespace)
            && self.proxies.as_ref().is_none_or(|clusters| clusters.contains(proxies))
    }

    /// Where what `of` names, a cluster and a network, stands for a proxy in `own`. What has no place
    /// comes last: a preference withholds nothing.
    pub fn rank(&self, own: (&ClusterId, &NetworkId), of: (&ClusterId, &NetworkId)) -> Rank {
        let mut others = self.order.len();
        for (at, tier) in self.order.iter().enumerate() {
            let share = match tier {
                Tier::OwnCluster if own.0 == of.0 => None,
                Tier::OwnNetwork if own.1 == of.1 => None,
                Tier::Clusters(clusters) => match clusters.get(of.0) {
                    Some(share) => *share,
                    None => continue,
                },
                Tier::Others => {
                    others = others.min(at);
                    continue;
                }
                Tier::OwnCluster | Tier::OwnNetwork => continue,
            };
            return Rank { tier: u32::try_from(at).unwrap_or(u32::MAX), share };
        }
        Rank { tier: u32::try_from(others).unwrap_or(u32::MAX), share: None }
    }

    /// The clusters that it names.
    pub(super) fn clusters(&self) -> impl Iterator<Item = &ClusterId> {
        let ordered = self.order.iter().filter_map(|tier| match tier {
            Tier::Clusters(clusters) => Some(clusters.keys()),
            _ => None,
        });
        ordered.flatten().chain(self.proxies.iter().flatten())
    }
}

impl fmt::Display for Preference {
    /// `shop-at-home: own cluster, then west 90 and north 10, then any other`
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
