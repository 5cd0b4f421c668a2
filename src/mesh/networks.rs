//! Mesh networks: which addresses and clusters belong to which network, and by which gateways each is
//! entered. Istio's `MeshNetworks` schema.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;
use serde::Deserialize;

use super::yaml::{Invalid, parse};
use crate::model::{ClusterId, GatewayHost, Hostname, NetworkId};

/// All networks that are described. The default describes none.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MeshNetworks {
    registries: BTreeMap<ClusterId, Vec<NetworkId>>,
    ranges: Vec<(IpNet, NetworkId)>,
    gateways: Vec<(NetworkId, GatewayConfig)>,
}

/// One gateway of a network.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct GatewayConfig {
    /// Where it is.
    pub target: GatewayTarget,
    /// The port that takes mTLS by SNI, 1 to 65535.
    pub port: u16,
}

/// Where a configured gateway is.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum GatewayTarget {
    /// At an address or a name.
    Address(GatewayHost),
    /// At the external addresses of a Service of the network's clusters.
    Service(Hostname),
}

#[derive(Deserialize)]
struct Raw {
    #[serde(default)]
    networks: Option<BTreeMap<String, Option<RawNetwork>>>,
}

#[derive(Deserialize)]
struct RawNetwork {
    #[serde(default)]
    endpoints: Option<Vec<RawEndpoints>>,
    #[serde(default)]
    gateways: Option<Vec<RawGateway>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawEndpoints {
    from_cidr: Option<String>,
    from_registry: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawGateway {
    address: Option<String>,
    registry_service_name: Option<String>,
    port: Option<i64>,
}

impl MeshNetworks {
    /// Reads Istio's YAML (or JSON). An empty text describes no network.
    ///
    /// # Errors
    /// The first field that has a wrong type or value.
    pub fn parse(text: &str) -> Result<Self, Invalid> {
        let raw: Option<Raw> = parse(text)?;
        let mut networks = Self::default();
        for (name, network) in raw.and_then(|raw| raw.networks).unwrap_or_default() {
            let Some(network) = network else { continue };
            let id = NetworkId::from(name.as_str());
            for (index, endpoints) in network.endpoints.into_iter().flatten().enumerate() {
                networks
                    .add_endpoints(&id, endpoints)
                    .map_err(|fact| invalid(&name, "endpoints", index, fact))?;
            }
            for (index, gateway) in network.gateways.into_iter().flatten().enumerate() {
                let gateway =
                    gateway.read().map_err(|fact| invalid(&name, "gateways", index, fact))?;
                networks.gateways.push((id.clone(), gateway));
            }
        }
        // The longest range first; of equal ones the first network by name.
        networks.ranges.sort_by(|(a, of_a), (b, of_b)| {
            b.prefix_len().cmp(&a.prefix_len()).then_with(|| (a, of_a).cmp(&(b, of_b)))
        });
        networks.gateways.sort();
        Ok(networks)
    }

    fn add_endpoints(&mut self, network: &NetworkId, raw: RawEndpoints) -> Result<(), String> {
        match (raw.from_cidr, raw.from_registry) {
            (Some(cidr), None) => {
                let range: IpNet =
                    cidr.parse().map_err(|_| format!("fromCidr {cidr:?} is not a CIDR range"))?;
                self.ranges.push((range.trunc(), network.clone()));
            }
            (None, Some(registry)) => {
                let cluster = ClusterId::parse(&registry)
                    .map_err(|error| format!("fromRegistry {registry:?}: {error}"))?;
                self.registries.entry(cluster).or_default().push(network.clone());
            }
            _ => return Err("needs either fromCidr or fromRegistry".to_owned()),
        }
        Ok(())
    }

    /// The network that claims the endpoints of a cluster; of several the first by name.
    pub fn of_registry(&self, cluster: &ClusterId) -> Option<&NetworkId> {
        self.registries.get(cluster)?.iter().min()
    }

    /// The network with the longest range that holds the address.
    pub fn of_address(&self, address: IpAddr) -> Option<&NetworkId> {
        self.ranges.iter().find(|(range, _)| range.contains(&address)).map(|(_, network)| network)
    }

    /// Whether the network names this cluster by `fromRegistry`.
    pub fn claims_registry(&self, network: &NetworkId, cluster: &ClusterId) -> bool {
        self.registries.get(cluster).is_some_and(|networks| networks.contains(network))
    }

    /// Every configured gateway, by network.
    pub fn gateways(&self) -> impl Iterator<Item = (&NetworkId, &GatewayConfig)> {
        self.gateways.iter().map(|(network, gateway)| (network, gateway))
    }

    /// What is claimed by more than one network, in words.
    pub fn conflicts(&self) -> Vec<String> {
        let mut conflicts = Vec::new();
        for (cluster, networks) in self.registries.iter().filter(|(_, list)| list.len() > 1) {
            if let Some(first) = networks.iter().min() {
                conflicts.push(format!(
                    "cluster {cluster} is claimed by {} networks; {first} has it, the first by name",
                    networks.len()
                ));
            }
        }
        for pair in self.ranges.windows(2) {
            if let [(range, first), (other, second)] = pair
                && range == other
                && first != second
            {
                conflicts.push(format!(
                    "range {range} is claimed by {first} and {second}; {first} has it, the first by name"
                ));
            }
        }
        conflicts
    }
}

impl RawGateway {
    fn read(self) -> Result<GatewayConfig, String> {
        let port = self.port.unwrap_or_default();
        let port = u16::try_from(port)
            .ok()
            .filter(|port| *port != 0)
            .ok_or_else(|| format!("port {port} is not in 1 to 65535"))?;
        let target = match (self.address, self.registry_service_name) {
            (Some(address), None) => {
                let host = GatewayHost::parse(&address);
                if let GatewayHost::Name(name) = &host
                    && !is_dns_name(name)
                {
                    return Err(format!("address {address:?} is neither an IP nor a DNS name"));
                }
                GatewayTarget::Address(host)
            }
            (None, Some(service)) if is_dns_name(&service) => {
                GatewayTarget::Service(service.as_str().into())
            }
            (None, Some(service)) => {
                return Err(format!("registryServiceName {service:?} is not a DNS name"));
            }
            _ => return Err("needs either address or registryServiceName".to_owned()),
        };
        Ok(GatewayConfig { target, port })
    }
}

fn is_dns_name(name: &str) -> bool {
    let label = |label: &str| {
        !label.is_empty()
            && label.len() <= 63
            && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
    };
    name.len() <= 253 && name.split('.').all(label)
}

fn invalid(network: &str, list: &str, index: usize, fact: String) -> Invalid {
    Invalid { line: None, field: format!("networks.{network}.{list}[{index}]"), fact }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_and_registries_name_a_network_the_longest_and_the_first_winning() {
        let text = "networks:
  b:
    endpoints: [{fromCidr: 10.0.0.0/8}, {fromRegistry: east}]
  a:
    endpoints: [{fromCidr: 10.1.0.0/16}, {fromRegistry: east}, {fromCidr: 10.0.0.0/8}]
";
        let networks = MeshNetworks::parse(text).expect("valid");
        let of = |address: &str| {
            networks.of_address(address.parse().expect("an address")).map(NetworkId::as_str)
        };
        assert_eq!(of("10.1.2.3"), Some("a"));
        assert_eq!(of("10.2.2.3"), Some("a"), "equal ranges: the first by name");
        assert_eq!(of("192.0.2.1"), None);
        assert_eq!(networks.of_registry(&"east".into()).map(NetworkId::as_str), Some("a"));
        assert!(networks.claims_registry(&"b".into(), &"east".into()));
        assert_eq!(networks.conflicts().len(), 2);
    }

    #[test]
    fn an_empty_text_describes_nothing() {
        for text in ["", "networks:", "networks: {}", "{}", "networks: {n1: }"] {
            assert_eq!(MeshNetworks::parse(text), Ok(MeshNetworks::default()), "{text:?}");
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        let cases = [
            ("networks: {n: {endpoints: [{fromCidr: x}]}}", "networks.n.endpoints[0]"),
            ("networks: {n: {endpoints: [{}]}}", "networks.n.endpoints[0]"),
            ("networks: {n: {endpoints: [{fromRegistry: A_B}]}}", "networks.n.endpoints[0]"),
            ("networks: {n: {gateways: [{address: 1.2.3.4}]}}", "networks.n.gateways[0]"),
            (
                "networks: {n: {gateways: [{address: 1.2.3.4, port: 70000}]}}",
                "networks.n.gateways[0]",
            ),
            ("networks: {n: {gateways: [{address: a b, port: 1}]}}", "networks.n.gateways[0]"),
            ("networks: {n: {gateways: [{port: 1}]}}", "networks.n.gateways[0]"),
        ];
        for (text, field) in cases {
            let error = MeshNetworks::parse(text).expect_err(text);
            assert_eq!(error.field, field, "{error}");
        }
        assert!(MeshNetworks::parse("networks: [").is_err());
    }
}
