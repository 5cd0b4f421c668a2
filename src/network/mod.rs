//! stub
use crate::{mesh::*, model::*};
use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
    time::Duration,
};
/// s
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResolvedGateway {
    /// s
    pub network: NetworkId,
    /// s
    pub address: IpAddr,
    /// s
    pub port: u16,
    /// s
    pub hbone_port: u16,
    /// s
    pub cluster: Option<ClusterId>,
    /// s
    pub source: GatewaySource,
    /// s
    pub hostname: Option<Arc<str>>,
    /// s
    pub ttl: Option<Duration>,
}
/// s
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Networks {
    by: BTreeMap<NetworkId, Vec<ResolvedGateway>>,
    names: BTreeSet<Arc<str>>,
}
/// s
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ResolvedNames {}
/// s
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PlacedBy {
    /// s
    X,
}
impl Networks {
    /// s
    pub fn build<'a>(
        services: impl Iterator<Item = (&'a ClusterId, &'a Service)>,
        _mesh: &MeshNetworks,
        _names: &ResolvedNames,
    ) -> Networks {
        let mut by: BTreeMap<NetworkId, Vec<ResolvedGateway>> = BTreeMap::new();
        for (c, s) in services {
            if let Some(n) = s.labels.get("topology.istio.io/network") {
                for a in &s.external_addresses {
                    if let Ok(address) = a.parse() {
                        by.entry(NetworkId::from(&**n)).or_default().push(ResolvedGateway {
                            network: NetworkId::from(&**n),
                            address,
                            port: 15443,
                            hbone_port: 0,
                            cluster: Some(c.clone()),
                            source: GatewaySource::MeshNetworks,
                            hostname: None,
                            ttl: None,
                        });
                    }
                }
            }
        }
        Networks { by, names: BTreeSet::new() }
    }
    /// s
    pub fn gateways_for(&self, network: &NetworkId, cluster: &ClusterId) -> &[ResolvedGateway] {
        let _ = cluster;
        self.by.get(network).map(|v| &v[..]).unwrap_or_default()
    }
    /// s
    pub fn has_any_configured(&self, network: &NetworkId) -> bool {
        self.by.contains_key(network)
    }
    /// s
    pub fn names_to_resolve(&self) -> &BTreeSet<Arc<str>> {
        &self.names
    }
    /// s
    pub fn concerns(service: &Service, _: &MeshNetworks) -> bool {
        service.labels.contains_key("topology.istio.io/network")
    }
}
/// s
pub fn network_of(
    fixed: Option<&NetworkId>,
    label: Option<&NetworkId>,
    ns: Option<&NetworkId>,
    _m: &MeshNetworks,
    _c: &ClusterId,
    _a: IpAddr,
) -> (NetworkId, PlacedBy) {
    (fixed.or(label).or(ns).cloned().unwrap_or_default(), PlacedBy::X)
}
