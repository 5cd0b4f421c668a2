//! Mesh networks: the assignment of clusters and address ranges to networks, and the gateways of
//! each network.
//!
//! The value is built completely from one text, so no part of an earlier text remains active.
//! Conflicting claims are resolved by a fixed rule and reported.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;
use serde::Deserialize;
use serde_json::Value;
use serde_saphyr::Spanned;

use super::yaml::{self, InvalidYaml};
use crate::{ClusterId, GatewayHost, Hostname, NetworkId, Service};
use strait_base::address::special;

/// All configured networks. The default has none.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MeshNetworks {
    networks: BTreeMap<NetworkId, Network>,
    registries: BTreeMap<ClusterId, NetworkId>,
    /// Sorted by prefix length (longest first), then by range; without duplicates.
    ranges: Vec<(IpNet, NetworkId)>,
    conflicts: Vec<String>,
}

/// The configuration of one network.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Network {
    /// `fromRegistry`, as written.
    pub registries: Vec<ClusterId>,
    /// `fromCidr`, as written, without host bits.
    pub ranges: Vec<IpNet>,
    /// The gateways of the network.
    pub gateways: Vec<GatewayConfig>,
}

/// One item of a network's `gateways`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct GatewayConfig {
    /// The address of the gateway.
    pub target: GatewayTarget,
    /// The port for mTLS with SNI routing, 1 to 65535.
    pub port: u16,
}

impl GatewayConfig {
    /// Returns whether `service` is this gateway.
    pub fn names_service(&self, service: &Service) -> bool {
        matches!(&self.target, GatewayTarget::Service(host) if *host == service.hostname)
    }
}

/// The address of a configured gateway.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum GatewayTarget {
    /// `address`: an IP address or a hostname.
    Address(GatewayHost),
    /// `registryServiceName`: the external addresses of that service, in the network's own
    /// clusters.
    Service(Hostname),
}

impl MeshNetworks {
    /// Parses Istio's YAML (or JSON). An empty text means no networks.
    ///
    /// # Errors
    /// Returns the first invalid item.
    pub fn parse(text: &str) -> Result<Self, InvalidYaml> {
        let raw: Option<RawNetworks> = yaml::parse(text)?;
        let mut networks = BTreeMap::new();
        for (name, network) in raw.unwrap_or_default().networks.unwrap_or_default() {
            let read = network.value.unwrap_or_default().read(&format!("networks.{name}"))?;
            if name.is_empty() {
                return Err(InvalidYaml {
                    line: line(&network.referenced),
                    field: "networks".to_owned(),
                    fact: "a network needs a name".to_owned(),
                });
            }
            networks.insert(NetworkId::from(name), read);
        }
        let mut parsed = Self::new(networks);
        parsed.conflicts.extend(unknown_fields(&yaml::parse::<Value>(text)?));
        Ok(parsed)
    }

    /// Resolves conflicting claims of `networks`.
    pub fn new(networks: BTreeMap<NetworkId, Network>) -> Self {
        let mut registries = BTreeMap::<ClusterId, NetworkId>::new();
        let mut ranges = BTreeMap::<IpNet, NetworkId>::new();
        let mut conflicts = Vec::new();
        // Sorted by name, so that the first claim is always the same.
        for (name, network) in &networks {
            for cluster in &network.registries {
                if !cluster.is_datacentre()
                    && let Err(error) = ClusterId::parse(cluster.as_str())
                {
                    conflicts.push(format!(
                        "fromRegistry {cluster} of network {name} is not a valid cluster ID: {error}"
                    ));
                }
                let winner = registries.entry(cluster.clone()).or_insert_with(|| name.clone());
                if winner != name {
                    conflicts.push(format!(
                        "cluster {cluster} is claimed by the networks {winner} and {name}: {winner} applies"
                    ));
                }
            }
            for range in &network.ranges {
                let winner = ranges.entry(*range).or_insert_with(|| name.clone());
                if winner != name {
                    conflicts.push(format!(
                        "range {range} is claimed by the networks {winner} and {name}: {winner} applies"
                    ));
                }
            }
        }
        let mut ranges: Vec<(IpNet, NetworkId)> = ranges.into_iter().collect();
        ranges.sort_by_key(|(range, _)| std::cmp::Reverse(range.prefix_len()));
        conflicts.dedup();
        Self { networks, registries, ranges, conflicts }
    }

    /// Returns the network of an address in `cluster`: the network that claims the cluster,
    /// otherwise the network with the longest range that contains the address.
    pub fn network_of(&self, cluster: &ClusterId, address: IpAddr) -> Option<&NetworkId> {
        self.network_by_registry(cluster).or_else(|| self.network_by_address(address))
    }

    /// Returns the network that claims the cluster with `fromRegistry`.
    pub fn network_by_registry(&self, cluster: &ClusterId) -> Option<&NetworkId> {
        self.registries.get(cluster)
    }

    /// Returns the network with the longest `fromCidr` that contains the address.
    pub fn network_by_address(&self, address: IpAddr) -> Option<&NetworkId> {
        let address = address.to_canonical();
        self.ranges.iter().find(|(range, _)| range.contains(&address)).map(|(_, network)| network)
    }

    /// Returns whether networks can depend on addresses: whether any `fromCidr` is configured.
    pub fn has_ranges(&self) -> bool {
        !self.ranges.is_empty()
    }

    /// Returns every configured gateway with its network.
    pub fn gateways(&self) -> impl Iterator<Item = (&NetworkId, &GatewayConfig)> {
        self.networks
            .iter()
            .flat_map(|(name, network)| network.gateways.iter().map(move |gateway| (name, gateway)))
    }

    /// Returns the hostnames of services that are configured as gateways.
    pub fn named_services(&self) -> BTreeSet<Hostname> {
        let target = |(_, gateway): (_, &GatewayConfig)| match &gateway.target {
            GatewayTarget::Service(host) => Some(host.clone()),
            GatewayTarget::Address(_) => None,
        };
        self.gateways().filter_map(target).collect()
    }

    /// Returns the configured networks by name.
    pub fn iter(&self) -> impl Iterator<Item = (&NetworkId, &Network)> {
        self.networks.iter()
    }

    /// Returns descriptions of conflicting or impossible claims, with their resolution.
    pub fn conflicts(&self) -> &[String] {
        &self.conflicts
    }
}

/// Describes the fields that do not exist and therefore have no effect.
fn unknown_fields(text: &Value) -> Vec<String> {
    let mut found = Vec::new();
    let mut check = |value: &Value, path: &str, known: &[&str]| {
        let names = value.as_object().into_iter().flat_map(|fields| fields.keys());
        for name in names.filter(|name| !known.contains(&name.as_str())) {
            let known = known.join(", ");
            found.push(format!(
                "field {path}{name} is unknown and has no effect; known fields: {known}"
            ));
        }
    };
    check(text, "", &["networks"]);
    for (name, network) in text["networks"].as_object().into_iter().flatten() {
        check(network, &format!("networks.{name}."), &["endpoints", "gateways"]);
        let items = |field: &str| network[field].as_array().into_iter().flatten().enumerate();
        for (index, item) in items("endpoints") {
            let path = format!("networks.{name}.endpoints[{index}].");
            let known = ["fromCidr", "fromRegistry", "from_cidr", "from_registry"];
            check(item, &path, &known);
        }
        for (index, item) in items("gateways") {
            let path = format!("networks.{name}.gateways[{index}].");
            let known =
                ["address", "registryServiceName", "port", "locality", "registry_service_name"];
            check(item, &path, &known);
        }
    }
    found
}

#[derive(Deserialize, Default)]
struct RawNetworks {
    networks: Option<BTreeMap<String, Spanned<Option<RawNetwork>>>>,
}

#[derive(Deserialize, Default)]
struct RawNetwork {
    endpoints: Option<Vec<Spanned<RawEndpoints>>>,
    gateways: Option<Vec<Spanned<RawGateway>>>,
}

/// Exactly one field is set: a `oneof` in Istio's schema.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawEndpoints {
    #[serde(alias = "from_cidr")]
    from_cidr: Option<String>,
    #[serde(alias = "from_registry")]
    from_registry: Option<String>,
}

/// Either `address` or `registryServiceName`. `locality` has no effect, as in Istio.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawGateway {
    address: Option<String>,
    #[serde(alias = "registry_service_name")]
    registry_service_name: Option<String>,
    /// A number, or a string with a number, as in protobuf's JSON.
    port: Option<Value>,
}

/// A member of a network: a cluster or a range.
enum NetworkMember {
    Registry(ClusterId),
    Range(IpNet),
}

impl RawNetwork {
    fn read(self, path: &str) -> Result<Network, InvalidYaml> {
        let mut network = Network::default();
        for (index, entry) in self.endpoints.unwrap_or_default().into_iter().enumerate() {
            let line = line(&entry.referenced);
            match entry.value.read() {
                Ok(NetworkMember::Registry(cluster)) => network.registries.push(cluster),
                Ok(NetworkMember::Range(range)) => network.ranges.push(range),
                Err((field, fact)) => {
                    let field = format!("{path}.endpoints[{index}]{field}");
                    return Err(InvalidYaml { line, field, fact });
                }
            }
        }
        for (index, entry) in self.gateways.unwrap_or_default().into_iter().enumerate() {
            let line = line(&entry.referenced);
            match entry.value.read() {
                Ok(gateway) => network.gateways.push(gateway),
                Err((field, fact)) => {
                    let field = format!("{path}.gateways[{index}]{field}");
                    return Err(InvalidYaml { line, field, fact });
                }
            }
        }
        network.gateways.sort();
        network.gateways.dedup();
        Ok(network)
    }
}

/// The field below the item, and the problem.
type Wrong = (&'static str, String);

impl RawEndpoints {
    fn read(self) -> Result<NetworkMember, Wrong> {
        match (self.from_cidr, self.from_registry) {
            (Some(text), None) => text
                .trim()
                .parse::<IpNet>()
                .map(|range| NetworkMember::Range(range.trunc()))
                .map_err(|_| {
                    (".fromCidr", format!("expected a range such as 10.0.0.0/8, found {text:?}"))
                }),
            (None, Some(cluster)) if cluster.is_empty() => {
                Err((".fromRegistry", "expected a cluster ID, found an empty text".to_owned()))
            }
            (None, Some(cluster)) => Ok(NetworkMember::Registry(cluster.into())),
            _ => Err(("", "expected either fromCidr or fromRegistry".to_owned())),
        }
    }
}

impl RawGateway {
    fn read(self) -> Result<GatewayConfig, Wrong> {
        let target = match (self.address, self.registry_service_name) {
            (Some(text), None) => {
                GatewayTarget::Address(host(&text).map_err(|fact| (".address", fact))?)
            }
            (None, Some(text)) => match GatewayHost::parse(&text) {
                GatewayHost::Name(name) if is_dns_name(&name) && name.contains('.') => {
                    GatewayTarget::Service(Hostname::new(name))
                }
                _ => {
                    return Err((
                        ".registryServiceName",
                        format!(
                            "expected a full name such as gw.ns.svc.cluster.local, found {text:?}"
                        ),
                    ));
                }
            },
            _ => return Err(("", "expected either address or registryServiceName".to_owned())),
        };
        Ok(GatewayConfig { target, port: port(self.port).map_err(|fact| (".port", fact))? })
    }
}

fn host(text: &str) -> Result<GatewayHost, String> {
    match GatewayHost::parse(text) {
        GatewayHost::Address(address)
            if special(address).is_some_and(|special| special.is_no_hosts()) =>
        {
            Err(format!("{address} is not the address of a single host"))
        }
        GatewayHost::Name(name) if !is_dns_name(&name) => {
            Err(format!("expected an IP address or a DNS name, found {text:?}"))
        }
        host => Ok(host),
    }
}

fn port(value: Option<Value>) -> Result<u16, String> {
    let value = value.ok_or("expected a port, found none")?;
    let number = match &value {
        Value::String(text) => text.parse::<u16>().ok(),
        other => other.as_u64().and_then(|number| u16::try_from(number).ok()),
    };
    number
        .filter(|port| *port > 0)
        .ok_or_else(|| format!("expected a port from 1 to 65535, found {value}"))
}

/// Returns whether `name`, in lower case, is a possible DNS name. (RFC 1123, and `_`, which is
/// common in practice.)
fn is_dns_name(name: &str) -> bool {
    let label_ok = |label: &str| {
        (1..=63).contains(&label.len())
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
    };
    // A name whose last label is a number is a mistyped address; no top-level domain is a number.
    let last_is_number =
        name.rsplit('.').next().is_some_and(|l| l.bytes().all(|b| b.is_ascii_digit()));
    name.len() <= 253 && name.split('.').all(label_ok) && !last_is_number
}

fn line(location: &serde_saphyr::Location) -> Option<u64> {
    Some(location.line()).filter(|line| *line > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_fields_are_reported_and_the_rest_is_active() {
        let parsed = MeshNetworks::parse(
            "networks: {n1: {gateway: [{address: 10.0.0.1, port: 1}], endpoints: [{fromRegistry: c1, fromX: 1}]}}\nnets: {}",
        )
        .expect("readable");
        assert_eq!(parsed.network_by_registry(&"c1".into()), Some(&"n1".into()));
        let found: Vec<_> =
            parsed.conflicts().iter().filter_map(|text| text.split(' ').nth(1)).collect();
        assert_eq!(found, ["nets", "networks.n1.gateway", "networks.n1.endpoints[0].fromX"]);
        assert!(MeshNetworks::parse("").expect("nothing").conflicts().is_empty());
    }

    fn parse(text: &str) -> MeshNetworks {
        MeshNetworks::parse(text).expect("the text is mesh networks")
    }

    const TWO: &str = "
networks:
  west:
    endpoints:
    - fromRegistry: c-west
    - fromCidr: 10.1.0.0/16
    gateways:
    - address: Gw.West.Example.
      port: 443
    - address: 192.0.2.7
      port: '15443'
      locality: somewhere
  east:
    endpoints: [{fromRegistry: c-east}, {from_cidr: 10.0.0.1/8}, {fromCidr: 'fd00::/8'}]
    gateways: [{registryServiceName: gw.istio-system.svc.cluster.local, port: 15443}]
  flat:
";

    #[test]
    fn networks_are_parsed_completely() {
        let networks = parse(TWO);
        let names: Vec<&str> = networks.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["east", "flat", "west"]);
        assert!(networks.conflicts().is_empty());
        let west = &networks.networks["west"];
        let host = |text| GatewayTarget::Address(GatewayHost::parse(text));
        assert_eq!(
            west.gateways,
            [
                GatewayConfig { target: host("192.0.2.7"), port: 15443 },
                GatewayConfig { target: host("gw.west.example"), port: 443 },
            ]
        );
        for empty in ["", "networks:", "networks: {}", "{}"] {
            assert_eq!(parse(empty), MeshNetworks::default(), "{empty:?}");
        }
    }

    #[test]
    fn cluster_takes_precedence_over_the_longest_range() {
        let networks = parse(TWO);
        let cases = [
            ("c-west", "10.0.0.1", Some("west")),
            ("c-east", "10.1.0.1", Some("east")),
            ("other", "10.1.0.1", Some("west")),
            ("other", "10.2.0.1", Some("east")),
            ("other", "::ffff:10.1.0.1", Some("west")),
            ("other", "fd00::1", Some("east")),
            ("other", "192.0.2.1", None),
        ];
        for (cluster, address, expected) in cases {
            let address = address.parse().expect("an address");
            let found = networks.network_of(&cluster.into(), address).map(NetworkId::as_str);
            assert_eq!(found, expected, "{cluster} {address}");
        }
    }

    #[test]
    fn conflicting_claims_go_to_the_first_network_by_name_and_are_reported() {
        let networks = parse(
            "networks:\n  \
               b: {endpoints: [{fromRegistry: c1}, {fromCidr: 10.0.0.0/8}]}\n  \
               a: {endpoints: [{fromRegistry: c1}, {fromCidr: 10.9.9.9/8}, {fromRegistry: Kubernetes}]}\n",
        );
        assert_eq!(networks.network_by_registry(&"c1".into()), Some(&"a".into()));
        let address = "10.1.1.1".parse().expect("an address");
        assert_eq!(networks.network_of(&"x".into(), address), Some(&"a".into()));
        let conflicts = networks.conflicts().join("\n");
        assert_eq!(networks.conflicts().len(), 3, "{conflicts}");
        for part in ["Kubernetes", "cluster c1 is claimed", "range 10.0.0.0/8 is claimed"] {
            assert!(conflicts.contains(part), "{conflicts}");
        }
    }

    #[test]
    fn invalid_item_is_reported_with_line_and_path() {
        let cases = [
            ("{endpoints: [{fromCidr: 10.0.0.0/33}]}", "networks.n.endpoints[0].fromCidr"),
            ("{endpoints: [{fromRegistry: c}, {}]}", "networks.n.endpoints[1]: expected either"),
            ("{endpoints: [{fromRegistry: ''}]}", "networks.n.endpoints[0].fromRegistry"),
            ("{endpoints: [{fromRegistry: c, fromCidr: 10.0.0.0/8}]}", "expected either"),
            ("{gateways: [{address: 1.2.3.4, port: 0}]}", "networks.n.gateways[0].port"),
            ("{gateways: [{address: 1.2.3.4, port: 65536}]}", "65536"),
            ("{gateways: [{address: 1.2.3.4}]}", "expected a port, found none"),
            ("{gateways: [{address: 1.2.3, port: 1}]}", "networks.n.gateways[0].address"),
            ("{gateways: [{address: 'a b', port: 1}]}", "networks.n.gateways[0].address"),
            ("{gateways: [{address: 0.0.0.0, port: 1}]}", "not the address of a single host"),
            ("{gateways: [{address: 224.0.0.1, port: 1}]}", "not the address of a single host"),
            ("{gateways: [{address: a.b, registryServiceName: a.b.c, port: 1}]}", "either address"),
            ("{gateways: [{registryServiceName: gw, port: 1}]}", "registryServiceName"),
            ("{gateways: [{port: 1}]}", "either address"),
            ("[1]", "line 2"),
        ];
        for (network, part) in cases {
            let message = MeshNetworks::parse(&format!("networks:\n  n: {network}\n"))
                .expect_err(network)
                .to_string();
            assert!(
                message.starts_with("line 2") && message.contains(part),
                "{network}: {message}"
            );
        }
    }
}
