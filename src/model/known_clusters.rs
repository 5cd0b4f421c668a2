//! stub
use super::*;
use std::collections::BTreeMap;
/// s
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct KnownClusters {
    /// s
    pub clusters: BTreeMap<ClusterId, KnownCluster>,
}
/// s
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct KnownCluster {
    /// s
    pub fixed_network: Option<NetworkId>,
}
impl KnownClusters {
    /// s
    pub fn get(&self, id: &ClusterId) -> Option<&KnownCluster> {
        self.clusters.get(id)
    }
}
