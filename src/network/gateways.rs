//! The gateways of every network, found again from their inputs whenever one changes: nothing stale
//! can stay.
//!
//! | source | address | port |
//! |---|---|---|
//! | a Service labelled `topology.istio.io/network` | its external addresses | label `networking.istio.io/gatewayPort`, else 15443 |
//! | MeshNetworks `registryServiceName` | that Service's external addresses, in clusters that the network names by `fromRegistry`; a label on the Service overrides | as configured |
//! | MeshNetworks `address` | as configured | as configured |

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use super::resolver::ResolvedNames;
use crate::mesh::{GatewayConfig, GatewayTarget, MeshNetworks};
use crate::model::{ClusterId, GatewayHost, GatewaySource, NetworkId, Service};

/// The label that names a network.
const NETWORK_LABEL: &str = "topology.istio.io/network";
/// The label that names a gateway Service's mTLS port.
const PORT_LABEL: &str = "networking.istio.io/gatewayPort";
/// The mTLS port where nothing else is said.
const MTLS_PORT: u16 = 15443;
/// The HBONE port.
const HBONE_PORT: u16 = 15008;

/// A gateway that can be dialled.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ResolvedGateway {
    /// Where it is reached.
    pub address: IpAddr,
    /// The port that takes mTLS by SNI; 0 where it takes none.
    pub port: u16,
    /// The network it leads into.
    pub network: NetworkId,
    /// The cluster it stands in; `None` where only an address is configured.
    pub cluster: Option<ClusterId>,
    /// The HBONE port; 0 where it takes none.
    pub hbone_port: u16,
    /// Where it was learned.
    pub source: GatewaySource,
    /// The name that DNS turned into the address.
    pub hostname: Option<Arc<str>>,
    /// How long DNS lets that stand, as clamped.
    pub ttl: Option<Duration>,
}

/// A gateway that is configured but can't be dialled yet, and why.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Pending {
    /// The network it would lead into.
    pub network: NetworkId,
    /// The cluster it stands in.
    pub cluster: Option<ClusterId>,
    /// Where it was learned.
    pub source: GatewaySource,
    /// What is missing.
    pub reason: String,
}

/// All gateways, by network and by cluster.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Networks {
    all: Vec<ResolvedGateway>,
    by_network: BTreeMap<NetworkId, Vec<ResolvedGateway>>,
    by_cluster: BTreeMap<(NetworkId, ClusterId), Vec<ResolvedGateway>>,
    pending: BTreeSet<Pending>,
    names: BTreeSet<Arc<str>>,
}

/// A gateway before its host is turned into addresses.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Found {
    network: NetworkId,
    cluster: Option<ClusterId>,
    source: GatewaySource,
    host: GatewayHost,
    port: u16,
    hbone_port: u16,
}

impl Networks {
    /// Finds the gateways. `services` are those of every shard.
    pub fn build<'a>(
        services: impl Iterator<Item = (&'a ClusterId, &'a Service)>,
        mesh: &MeshNetworks,
        names: &ResolvedNames,
    ) -> Self {
        let mut found = BTreeSet::new();
        let mut networks = Self::default();
        for (cluster, service) in services {
            networks.of_service(cluster, service, mesh, &mut found);
        }
        for (network, gateway) in mesh.gateways() {
            if let GatewayTarget::Address(host) = &gateway.target {
                found.insert(Found {
                    network: network.clone(),
                    cluster: None,
                    source: GatewaySource::MeshNetworks,
                    host: host.clone(),
                    port: gateway.port,
                    hbone_port: 0,
                });
            }
        }
        for gateway in found {
            networks.resolve(gateway, names);
        }
        networks.index();
        networks
    }

    /// Whether a change of `service` can change the gateways.
    pub fn concerns(service: &Service, mesh: &MeshNetworks) -> bool {
        service.labels.contains_key(NETWORK_LABEL)
            || mesh.gateways().any(|(_, gateway)| gateway.names_service(service))
    }

    /// The gateways by which a sidecar enters `network` to reach endpoints of `cluster`: those that
    /// stand in that cluster, else all of the network's. Sorted by address and port.
    pub fn gateways_for(&self, network: &NetworkId, cluster: &ClusterId) -> &[ResolvedGateway] {
        let own = self.by_cluster.get(&(network.clone(), cluster.clone()));
        own.or_else(|| self.by_network.get(network)).map_or(&[], Vec::as_slice)
    }

    /// Whether a gateway of the network is configured, be it one that can't be dialled yet.
    pub fn has_any_configured(&self, network: &NetworkId) -> bool {
        self.all.iter().any(|gateway| gateway.network == *network)
            || self.pending.iter().any(|pending| pending.network == *network)
    }

    /// Every gateway that can be dialled, by network, address and port.
    pub fn iter(&self) -> impl Iterator<Item = &ResolvedGateway> {
        self.all.iter()
    }

    /// Gateways that can't be dialled yet.
    pub fn pending(&self) -> &BTreeSet<Pending> {
        &self.pending
    }

    /// Host names that DNS shall resolve.
    pub fn names_to_resolve(&self) -> &BTreeSet<Arc<str>> {
        &self.names
    }

    fn of_service(
        &mut self,
        cluster: &ClusterId,
        service: &Service,
        mesh: &MeshNetworks,
        found: &mut BTreeSet<Found>,
    ) {
        let mut add = |network: &NetworkId, source: GatewaySource, port: u16, hbone_port: u16| {
            let reason = if port == 0 && hbone_port == 0 {
                Some("the Service has neither the mTLS port nor the HBONE port")
            } else if service.external_addresses.is_empty() {
                Some("the Service has no external address yet")
            } else {
                None
            };
            if let Some(reason) = reason {
                self.pending.insert(Pending {
                    network: network.clone(),
                    cluster: Some(cluster.clone()),
                    source,
                    reason: reason.to_owned(),
                });
                return;
            }
            for address in &service.external_addresses {
                found.insert(Found {
                    network: network.clone(),
                    cluster: Some(cluster.clone()),
                    source: source.clone(),
                    host: GatewayHost::parse(address),
                    port: outside_port(service, port),
                    hbone_port: outside_port(service, hbone_port),
                });
            }
        };
        if let Some(network) = service.labels.get(NETWORK_LABEL).filter(|label| !label.is_empty()) {
            let label = service.labels.get(PORT_LABEL).and_then(|text| text.parse::<u16>().ok());
            let mtls = label.filter(|port| *port != 0).unwrap_or(MTLS_PORT);
            let has = |number: u16| {
                if service.ports.iter().any(|port| port.number == number) { number } else { 0 }
            };
            let name = format!("{}/{}", service.namespace, service.name);
            let source = GatewaySource::Service(name.into());
            add(&NetworkId::from(&**network), source, has(mtls), has(HBONE_PORT));
            return;
        }
        for (network, gateway) in mesh.gateways() {
            if gateway.names_service(service) && mesh.claims_registry(network, cluster) {
                let source = GatewaySource::RegistryService(service.hostname.as_str().into());
                add(network, source, gateway.port, 0);
            }
        }
    }

    fn resolve(&mut self, found: Found, names: &ResolvedNames) {
        let Found { network, cluster, source, host, port, hbone_port } = found;
        let gateway = |address, hostname, ttl| ResolvedGateway {
            address,
            port,
            network: network.clone(),
            cluster: cluster.clone(),
            hbone_port,
            source: source.clone(),
            hostname,
            ttl,
        };
        match host {
            GatewayHost::Address(address) => {
                if address.is_unspecified() || address.is_multicast() {
                    let reason = format!("{address} is not an address that can be dialled");
                    self.pending.insert(Pending { network, cluster, source, reason });
                } else {
                    self.all.push(gateway(address, None, None));
                }
            }
            GatewayHost::Name(name) => {
                let answer = names.get(&name);
                match answer.filter(|answer| !answer.addresses.is_empty()) {
                    Some(answer) => self.all.extend(answer.addresses.iter().map(|address| {
                        gateway(*address, Some(Arc::clone(&name)), Some(answer.ttl))
                    })),
                    None => {
                        let problem = answer.and_then(|answer| answer.problem.as_deref());
                        let reason = match problem {
                            Some(problem) => format!("{name} does not resolve: {problem}"),
                            None => format!("{name} has not been resolved yet"),
                        };
                        self.pending.insert(Pending { network, cluster, source, reason });
                    }
                }
                self.names.insert(name);
            }
        }
    }

    fn index(&mut self) {
        self.all.sort_by(|a, b| (&a.network, a).cmp(&(&b.network, b)));
        self.all.dedup();
        for gateway in self.all.iter().filter(|gateway| gateway.port != 0) {
            if let Some(cluster) = &gateway.cluster {
                let key = (gateway.network.clone(), cluster.clone());
                self.by_cluster.entry(key).or_default().push(gateway.clone());
            }
            self.by_network.entry(gateway.network.clone()).or_default().push(gateway.clone());
        }
    }
}

impl GatewayConfig {
    fn names_service(&self, service: &Service) -> bool {
        matches!(&self.target, GatewayTarget::Service(host) if *host == service.hostname)
    }
}

/// The port by which a service port is reached from outside: its node port, where nodes are its
/// external addresses.
fn outside_port(service: &Service, port: u16) -> u16 {
    service.external_ports.get(&port).copied().unwrap_or(port)
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::fixtures::{ip, port, service};
    use crate::network::resolver::{Answer, ResolvedName};

    fn build(services: &[(&str, Service)], mesh: &str, names: &ResolvedNames) -> Networks {
        let clusters: Vec<_> =
            services.iter().map(|(id, service)| (ClusterId::from(*id), service)).collect();
        let mesh = MeshNetworks::parse(mesh).expect("valid mesh networks");
        Networks::build(clusters.iter().map(|(id, service)| (id, *service)), &mesh, names)
    }

    /// `network address:port cluster` of every gateway.
    fn shown(networks: &Networks) -> Vec<String> {
        let line = |gateway: &ResolvedGateway| {
            let cluster = gateway.cluster.clone().unwrap_or_default();
            format!("{} {}:{} {cluster}", gateway.network, gateway.address, gateway.port)
        };
        networks.iter().map(line).collect()
    }

    #[test]
    fn a_labelled_service_is_a_gateway_at_each_of_its_external_addresses() {
        let mut gateway = service("gw.ns").gateway_of("n1", "203.0.113.2");
        gateway.external_addresses.insert(0, "203.0.113.1".into());
        let networks = build(&[("east", gateway)], "networks: {}", &ResolvedNames::default());
        assert_eq!(shown(&networks), ["n1 203.0.113.1:15443 east", "n1 203.0.113.2:15443 east"]);
    }

    #[test]
    fn the_gateway_port_is_the_labels_then_the_node_port_behind_it() {
        let mut gateway = service("gw.ns").gateway_of("n1", "203.0.113.1");
        gateway.labels.insert(PORT_LABEL.into(), "443".into());
        gateway.ports = vec![port("tls", 443, 15443)];
        gateway.external_ports.insert(443, 30443);
        let networks = build(&[("east", gateway)], "networks: {}", &ResolvedNames::default());
        assert_eq!(shown(&networks), ["n1 203.0.113.1:30443 east"]);
    }

    #[test]
    fn a_gateway_without_an_address_or_a_port_is_pending() {
        let mut waiting = service("gw.ns").gateway_of("n1", "203.0.113.1");
        waiting.external_addresses.clear();
        let mut portless = service("gw.ns").gateway_of("n2", "203.0.113.1");
        portless.ports = vec![port("http", 80, 80)];
        let services = [("east", waiting), ("west", portless)];
        let networks = build(&services, "networks: {}", &ResolvedNames::default());
        assert!(shown(&networks).is_empty());
        assert_eq!(networks.pending().len(), 2);
        assert!(networks.has_any_configured(&"n1".into()));
        assert!(!networks.has_any_configured(&"n3".into()));
    }

    #[test]
    fn a_clusters_own_gateways_come_first_and_the_networks_others_stand_in() {
        let east = service("gw.ns").gateway_of("n1", "203.0.113.1");
        let west = service("gw.ns").gateway_of("n1", "203.0.113.2");
        let services = [("east", east), ("west", west)];
        let networks = build(&services, "networks: {}", &ResolvedNames::default());
        let of = |cluster: &str| -> Vec<IpAddr> {
            let gateways = networks.gateways_for(&"n1".into(), &cluster.into());
            gateways.iter().map(|gateway| gateway.address).collect()
        };
        assert_eq!(of("east"), [ip("203.0.113.1")]);
        assert_eq!(of("north"), [ip("203.0.113.1"), ip("203.0.113.2")]);
    }

    #[test]
    fn mesh_networks_names_gateways_by_address_and_by_service() {
        let mut plain = service("gw.ns");
        plain.external_addresses.push("203.0.113.7".into());
        let mesh = "networks:
  n1:
    endpoints: [{fromRegistry: east}]
    gateways:
    - {registryServiceName: gw.ns.svc.cluster.local, port: 443}
    - {address: 203.0.113.9, port: 8443}
  n2:
    gateways:
    - {registryServiceName: gw.ns.svc.cluster.local, port: 443}
";
        let networks = build(&[("east", plain)], mesh, &ResolvedNames::default());
        assert_eq!(shown(&networks), ["n1 203.0.113.7:443 east", "n1 203.0.113.9:8443 "]);
    }

    #[test]
    fn a_name_stands_for_its_addresses_once_resolved() {
        let gateway = || service("gw.ns").gateway_of("n1", "GW.example.org.");
        let networks = build(&[("east", gateway())], "networks: {}", &ResolvedNames::default());
        assert_eq!(
            networks.names_to_resolve().iter().map(|n| &**n).collect::<Vec<_>>(),
            ["gw.example.org"]
        );
        assert!(shown(&networks).is_empty());
        let answer =
            Answer::Addresses(vec![ip("203.0.113.1"), ip("2001:db8::1")], Duration::from_secs(60));
        let (answer, _) = ResolvedName::default().after(answer, Instant::now());
        let names: ResolvedNames = [("gw.example.org".into(), answer)].into_iter().collect();
        let networks = build(&[("east", gateway())], "networks: {}", &names);
        assert_eq!(shown(&networks), ["n1 203.0.113.1:15443 east", "n1 2001:db8::1:15443 east"]);
    }
}
