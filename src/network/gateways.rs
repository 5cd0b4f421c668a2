//! The gateways of every network, found again from their inputs whenever one changes: nothing stale
//! can stay.
//!
//! | source | address | port |
//! |---|---|---|
//! | a Service labelled `topology.istio.io/network` | its external addresses | label `networking.istio.io/gatewayPort`, else 15443 |
//! | a Gateway (Gateway API) with that label | its `spec.addresses` | each listener that passes mTLS on, or has that port |
//! | MeshNetworks `registryServiceName` | that Service's external addresses, in clusters that the network names by `fromRegistry`; a label on the Service overrides | as configured |
//! | MeshNetworks `address` | as configured | as configured |
//!
//! Where policy does not let a cluster claim a network, its gateways for that count for nothing.
//! Where the Secret of a cluster fixes its network, the gateway Services of that cluster lead there,
//! whatever names them: their endpoints are there, and nobody else would lead to them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use super::names::ResolvedNames;
use super::placement::PlacedBy;
use crate::mesh::{GatewayConfig, GatewayTarget, MeshNetworks};
use crate::model::{
    ClusterFacts, ClusterId, GATEWAY_PORT_LABEL, GatewayHost, GatewaySource, IgnoredClaim,
    KnownClusters, NETWORK_LABEL, NetworkId, Port, Protocol, Service, gateway_port,
};
use crate::policy::Policy;

/// The HBONE port.
const HBONE_PORT: u16 = 15008;
/// The most gateway names DNS is asked for on one cluster's behalf, so that a cluster with a flood of
/// them can't keep the resolver from the others'.
const NAMES_PER_CLUSTER_MAX: usize = 64;

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
    ignored: BTreeSet<(ClusterId, IgnoredClaim)>,
}

/// What decides which gateways there are, besides the services.
#[derive(Debug, Clone, Copy)]
pub struct Inputs<'a> {
    /// The members, some with a network that is fixed.
    pub clusters: &'a KnownClusters,
    /// What the label of each cluster's system namespace says.
    pub namespace_labels: &'a BTreeMap<ClusterId, NetworkId>,
    /// Mesh networks.
    pub mesh: &'a MeshNetworks,
    /// What clusters may say.
    pub policy: &'a Policy,
    /// What DNS says.
    pub names: &'a ResolvedNames,
    /// What clusters say of themselves.
    pub facts: &'a [(&'a ClusterId, &'a ClusterFacts)],
}

/// The names DNS is asked for on a cluster's behalf.
type NamesByCluster = BTreeMap<ClusterId, BTreeSet<Arc<str>>>;

/// A gateway before its host is turned into addresses.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Found {
    pub(super) network: NetworkId,
    pub(super) cluster: Option<ClusterId>,
    pub(super) source: GatewaySource,
    pub(super) host: GatewayHost,
    pub(super) port: u16,
    pub(super) hbone_port: u16,
}

impl Networks {
    /// Finds the gateways. `services` are those of every shard.
    pub fn build<'a>(
        services: impl Iterator<Item = (&'a ClusterId, &'a Service)>,
        inputs: Inputs<'_>,
    ) -> Self {
        let Inputs { mesh, names, policy, .. } = inputs;
        let mut found = BTreeSet::new();
        let mut networks = Self::default();
        networks.note_ignored(inputs);
        for (cluster, service) in services {
            networks.of_service(cluster, service, inputs, &mut found);
        }
        networks.of_declared(inputs, &mut found);
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
        networks.note_missing_services(mesh, &found);
        let mut asked = NamesByCluster::new();
        for gateway in found {
            networks.resolve(gateway, names, policy, &mut asked);
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
    /// stand in that cluster, else all of the network's. Sorted by address and port, each pair once.
    pub fn gateways_for(&self, network: &NetworkId, cluster: &ClusterId) -> &[ResolvedGateway] {
        let own = self.by_cluster.get(&(network.clone(), cluster.clone()));
        own.map_or_else(|| self.all_for(network), Vec::as_slice)
    }

    /// All gateways by which a sidecar enters `network`. Sorted by address and port, each pair once.
    pub fn all_for(&self, network: &NetworkId) -> &[ResolvedGateway] {
        self.by_network.get(network).map_or(&[], Vec::as_slice)
    }

    /// All gateways of a network that can be dialled, those included that take no mTLS by SNI. Sorted
    /// by address and port.
    pub fn of_network(&self, network: &NetworkId) -> &[ResolvedGateway] {
        let start = self.all.partition_point(|gateway| gateway.network < *network);
        let end = self.all.partition_point(|gateway| gateway.network <= *network);
        self.all.get(start..end).unwrap_or_default()
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

    /// What clusters whose network is fixed say of another network, pods left out. In order.
    pub fn ignored_claims(&self) -> &BTreeSet<(ClusterId, IgnoredClaim)> {
        &self.ignored
    }

    /// Notes what is said in vain of clusters whose network is fixed.
    fn note_ignored(&mut self, inputs: Inputs<'_>) {
        for (cluster, known) in &inputs.clusters.clusters {
            let Some(fixed) = &known.fixed_network else { continue };
            let label = inputs.namespace_labels.get(cluster);
            let registry = inputs.mesh.of_registry(cluster);
            for (claimed, by) in
                [(label, PlacedBy::NamespaceLabel), (registry, PlacedBy::MeshNetworksRegistry)]
            {
                if let Some(network) = claimed.filter(|claimed| *claimed != fixed) {
                    self.ignore(cluster, by.to_string(), network);
                }
            }
        }
    }

    /// Notes a gateway that can't be dialled yet.
    pub(super) fn pend(&mut self, pending: Pending) {
        self.pending.insert(pending);
    }

    pub(super) fn ignore(&mut self, cluster: &ClusterId, claim: String, network: &NetworkId) {
        let claim = IgnoredClaim { claim, network: network.clone() };
        self.ignored.insert((cluster.clone(), claim));
    }

    fn of_service(
        &mut self,
        cluster: &ClusterId,
        service: &Service,
        inputs: Inputs<'_>,
        found: &mut BTreeSet<Found>,
    ) {
        let mesh = inputs.mesh;
        let fixed = inputs.clusters.fixed_network(cluster);
        if let Some(network) = service.labels.get(NETWORK_LABEL).filter(|label| !label.is_empty()) {
            let mtls = gateway_port(service.labels.get(GATEWAY_PORT_LABEL).map(|text| &**text));
            let name = format!("{}/{}", service.namespace, service.name);
            let claimed = NetworkId::from(&**network);
            if fixed.is_some_and(|fixed| *fixed != claimed) {
                self.ignore(cluster, format!("label {NETWORK_LABEL} of Service {name}"), &claimed);
            }
            let entrance = Entrance {
                network: fixed.cloned().unwrap_or(claimed),
                source: GatewaySource::Service(name.into()),
                port: exposed_port(service, mtls),
                hbone_port: exposed_port(service, HBONE_PORT),
            };
            self.add(cluster, service, entrance, inputs.policy, found);
            return;
        }
        for (network, gateway) in mesh.gateways() {
            let has_cluster = mesh.of_registry(cluster) == Some(network) || fixed == Some(network);
            if gateway.names_service(service) && has_cluster {
                let entrance = Entrance {
                    network: fixed.unwrap_or(network).clone(),
                    source: GatewaySource::RegistryService(service.hostname.as_str().into()),
                    // The port need not be one of the Service's. (Istio, mesh networks.)
                    port: outside_port(service, gateway.port),
                    hbone_port: 0,
                };
                self.add(cluster, service, entrance, inputs.policy, found);
            }
        }
    }

    /// Takes each external address of a gateway Service, or notes why there is none to take.
    fn add(
        &mut self,
        cluster: &ClusterId,
        service: &Service,
        entrance: Entrance,
        policy: &Policy,
        found: &mut BTreeSet<Found>,
    ) {
        let Entrance { network, source, port, hbone_port } = entrance;
        if let Err(refused) = policy.may_claim(cluster, &network) {
            return self.ignore(
                cluster,
                format!("gateway {source}: policy {}", refused.rule),
                &network,
            );
        }
        let reason = if port == 0 && hbone_port == 0 {
            Some("the Service has neither the mTLS port nor the HBONE port")
        } else if service.external_addresses.is_empty() {
            Some("the Service has no external address yet")
        } else {
            None
        };
        if let Some(reason) = reason {
            let cluster = Some(cluster.clone());
            self.pending.insert(Pending { network, cluster, source, reason: reason.to_owned() });
            return;
        }
        found.extend(service.external_addresses.iter().map(|address| Found {
            network: network.clone(),
            cluster: Some(cluster.clone()),
            source: source.clone(),
            host: GatewayHost::parse(address),
            port,
            hbone_port,
        }));
    }

    /// A `registryServiceName` that leads nowhere is told: a typing error would else look like a
    /// network without a gateway.
    fn note_missing_services(&mut self, mesh: &MeshNetworks, found: &BTreeSet<Found>) {
        for (network, gateway) in mesh.gateways() {
            let GatewayTarget::Service(hostname) = &gateway.target else { continue };
            let source = GatewaySource::RegistryService(hostname.as_str().into());
            let is_it = |of: &NetworkId, from: &GatewaySource| of == network && *from == source;
            let known = found.iter().any(|found| is_it(&found.network, &found.source))
                || self.pending.iter().any(|pending| is_it(&pending.network, &pending.source));
            if !known {
                self.pending.insert(Pending {
                    network: network.clone(),
                    cluster: None,
                    source,
                    reason: "no cluster that the network names by fromRegistry has such a Service \
                             without a network label"
                        .to_owned(),
                });
            }
        }
    }

    fn resolve(
        &mut self,
        found: Found,
        names: &ResolvedNames,
        policy: &Policy,
        asked: &mut NamesByCluster,
    ) {
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
        // What an operator writes into mesh networks belongs to no cluster, and is taken as written.
        let refused = |address: IpAddr| {
            let cluster = cluster.as_ref()?;
            policy.may_use(cluster, address).err().map(|refused| refused.to_string())
        };
        let reason = match host {
            GatewayHost::Address(address) if address.is_unspecified() || address.is_multicast() => {
                format!("{address} is not an address that can be dialled")
            }
            GatewayHost::Address(address) if refused(address).is_some() => {
                refused(address).unwrap_or_default()
            }
            GatewayHost::Address(address) => {
                self.all.push(gateway(address.to_canonical(), None, None));
                return;
            }
            GatewayHost::Name(name) => {
                if !may_ask(asked, cluster.as_ref(), &name) {
                    format!(
                        "{name} is not resolved: more than {NAMES_PER_CLUSTER_MAX} gateway names in this cluster"
                    )
                } else {
                    self.names.insert(Arc::clone(&name));
                    match names.get(&name) {
                        Some(answer) if !answer.addresses.is_empty() => {
                            self.all.extend(answer.addresses.iter().map(|address| {
                                gateway(*address, Some(Arc::clone(&name)), Some(answer.ttl))
                            }));
                            return;
                        }
                        Some(answer) => {
                            let problem = answer.problem.as_deref().unwrap_or("no addresses");
                            format!("{name} does not resolve: {problem}")
                        }
                        None => format!("{name} has not been resolved yet"),
                    }
                }
            }
        };
        self.pending.insert(Pending { network, cluster, source, reason });
    }

    fn index(&mut self) {
        self.all.sort_by(|a, b| (&a.network, a).cmp(&(&b.network, b)));
        self.all.dedup();
        for gateway in self.all.iter().filter(|gateway| gateway.port != 0) {
            if let Some(cluster) = &gateway.cluster {
                let key = (gateway.network.clone(), cluster.clone());
                add_once(self.by_cluster.entry(key).or_default(), gateway);
            }
            add_once(self.by_network.entry(gateway.network.clone()).or_default(), gateway);
        }
    }
}

/// Adds a gateway to a sorted list unless its address and port are in it: learned twice, it would
/// take twice the traffic. One that names its cluster tells more than one that doesn't.
fn add_once(list: &mut Vec<ResolvedGateway>, gateway: &ResolvedGateway) {
    match list.last_mut() {
        Some(last) if (last.address, last.port) == (gateway.address, gateway.port) => {
            if last.cluster.is_none() {
                *last = gateway.clone();
            }
        }
        _ => list.push(gateway.clone()),
    }
}

/// Whether DNS is asked for `name` on this cluster's behalf. What an operator writes into mesh
/// networks belongs to no cluster and is always asked for.
fn may_ask(asked: &mut NamesByCluster, cluster: Option<&ClusterId>, name: &Arc<str>) -> bool {
    let Some(cluster) = cluster else { return true };
    let names = asked.entry(cluster.clone()).or_default();
    if !names.contains(name) && names.len() < NAMES_PER_CLUSTER_MAX {
        names.insert(Arc::clone(name));
    }
    names.contains(name)
}

impl GatewayConfig {
    fn names_service(&self, service: &Service) -> bool {
        matches!(&self.target, GatewayTarget::Service(host) if *host == service.hostname)
    }
}

/// How a Service lets traffic into a network; ports as seen from outside, 0 where there is none.
struct Entrance {
    network: NetworkId,
    source: GatewaySource,
    port: u16,
    hbone_port: u16,
}

/// The port by which a TCP port of a Service is reached from outside; 0 where it has no such port.
fn exposed_port(service: &Service, number: u16) -> u16 {
    let exposed = |port: &Port| port.number == number && port.protocol != Protocol::Udp;
    if service.ports.iter().any(exposed) { outside_port(service, number) } else { 0 }
}

/// The port by which a service port is reached from outside: its node port, where nodes are its
/// external addresses; 0 where it has none.
fn outside_port(service: &Service, port: u16) -> u16 {
    if service.external_ports.is_empty() {
        return port;
    }
    service.external_ports.get(&port).copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::member;
    use crate::model::{Definition, ExportTo, Hostname, Labels, Resolution, TargetPort};
    use crate::network::ResolvedName;

    fn ip(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    fn port(name: &str, number: u16) -> Port {
        let protocol = Protocol::of_port("TCP", None, name, number);
        Port { name: name.into(), number, protocol, target: TargetPort::Number(number) }
    }

    /// A service `gw.ns` at these external addresses, with no label that makes it a gateway.
    fn plain(addresses: &[&str]) -> Service {
        let mut service = Service::from(Definition {
            hostname: Hostname::of_kubernetes_service("gw", "ns", "cluster.local"),
            name: "gw".into(),
            namespace: "ns".into(),
            ports: vec![port("tls", 15443)],
            resolution: Resolution::ClientSide,
            ranges: Vec::new(),
            labels: Labels::new(),
            selector: Labels::new(),
            service_accounts: Vec::new(),
            export_to: ExportTo::Public,
            node_local: false,
            prefers: Default::default(),
            keeps_home: false,
            publish_not_ready: false,
            affinity_seconds: None,
            mesh_external: false,
        });
        service.external_addresses = addresses.iter().map(|address| Arc::from(*address)).collect();
        service
    }

    /// The same, labelled as a gateway of `network`.
    fn gateway_of(network: &str, addresses: &[&str]) -> Service {
        let mut service = plain(addresses);
        service.labels.insert(NETWORK_LABEL.into(), network.into());
        service
    }

    fn build(services: &[(&str, Service)], mesh: &str, names: &ResolvedNames) -> Networks {
        build_with(services, mesh, names, KnownClusters::default(), &[])
    }

    /// The same, with members, and what the labels of system namespaces say.
    fn build_with(
        services: &[(&str, Service)],
        mesh: &str,
        names: &ResolvedNames,
        clusters: KnownClusters,
        labels: &[(&str, &str)],
    ) -> Networks {
        let services: Vec<_> =
            services.iter().map(|(id, service)| (ClusterId::from(*id), service)).collect();
        let labels = labels.iter().map(|(id, label)| ((*id).into(), (*label).into())).collect();
        let mesh = MeshNetworks::parse(mesh).expect("valid mesh networks");
        let inputs = Inputs {
            clusters: &clusters,
            namespace_labels: &labels,
            mesh: &mesh,
            policy: &Policy::default(),
            names,
            facts: &[],
        };
        Networks::build(services.iter().map(|(id, service)| (id, *service)), inputs)
    }

    /// These clusters are members whose Secret fixes the network.
    fn fixed(members: &[(&str, &str)]) -> KnownClusters {
        let members = members.iter().map(|(id, network)| ((*id).into(), member(Some(network))));
        KnownClusters { clusters: members.collect() }
    }

    /// `network address:port cluster` of every gateway.
    fn shown(networks: &Networks) -> Vec<String> {
        let line = |gateway: &ResolvedGateway| {
            let cluster = gateway.cluster.clone().unwrap_or_default();
            format!("{} {}:{} {cluster}", gateway.network, gateway.address, gateway.port)
        };
        networks.iter().map(line).collect()
    }

    fn pending(networks: &Networks) -> Vec<&str> {
        networks.pending().iter().map(|pending| pending.reason.as_str()).collect()
    }

    #[test]
    fn a_labelled_service_is_a_gateway_at_each_of_its_external_addresses() {
        let gateway = gateway_of("n1", &["203.0.113.2", "203.0.113.1"]);
        let networks = build(&[("east", gateway)], "", &ResolvedNames::default());
        assert_eq!(shown(&networks), ["n1 203.0.113.1:15443 east", "n1 203.0.113.2:15443 east"]);
        assert_eq!(networks.of_network(&"n1".into()).len(), 2);
        assert!(networks.of_network(&"n0".into()).is_empty());
    }

    #[test]
    fn ports_are_the_labels_else_the_usual_as_seen_from_outside() {
        // Label, service ports, node ports; mTLS and HBONE port, both 0 where it is no gateway.
        type Case<'a> = (&'a str, &'a [u16], &'a [(u16, u16)], (u16, u16));
        let cases: [Case<'_>; 9] = [
            ("", &[15443], &[], (15443, 0)),
            ("", &[15443, 15008], &[], (15443, 15008)),
            ("", &[15008], &[], (0, 15008)),
            ("443", &[443, 15443], &[], (443, 0)),
            ("many", &[15443], &[], (15443, 0)),
            ("0", &[15443], &[], (15443, 0)),
            ("443", &[443], &[(443, 30443)], (30443, 0)),
            ("443", &[443], &[(80, 30080)], (0, 0)),
            ("443", &[15443], &[], (0, 0)),
        ];
        for case in cases {
            let (label, ports, node_ports, expected) = case;
            let mut gateway = gateway_of("n1", &["203.0.113.1"]);
            gateway.labels.insert(GATEWAY_PORT_LABEL.into(), label.into());
            gateway.ports = ports.iter().map(|number| port("tls", *number)).collect();
            gateway.external_ports = node_ports.iter().copied().collect();
            let networks = build(&[("east", gateway)], "", &ResolvedNames::default());
            let found = networks.iter().next().map_or((0, 0), |g| (g.port, g.hbone_port));
            assert_eq!(found, expected, "{case:?}");
            let usable = networks.gateways_for(&"n1".into(), &"east".into()).len();
            assert_eq!(usable, usize::from(expected.0 != 0), "{case:?}");
            assert!(networks.has_any_configured(&"n1".into()), "{case:?}");
        }
        let mut datagrams = gateway_of("n1", &["203.0.113.1"]);
        datagrams.ports[0].protocol = Protocol::Udp;
        let networks = build(&[("east", datagrams)], "", &ResolvedNames::default());
        assert!(shown(&networks).is_empty());
    }

    #[test]
    fn a_gateway_without_an_address_is_pending() {
        let gateway = gateway_of("n1", &[]);
        let networks = build(&[("east", gateway)], "", &ResolvedNames::default());
        assert!(shown(&networks).is_empty());
        assert_eq!(pending(&networks), ["the Service has no external address yet"]);
        assert!(networks.has_any_configured(&"n1".into()));
        assert!(!networks.has_any_configured(&"n3".into()));
    }

    #[test]
    fn a_clusters_own_gateways_come_first_and_the_networks_others_stand_in() {
        let services = [
            ("east", gateway_of("n1", &["203.0.113.1"])),
            ("west", gateway_of("n1", &["203.0.113.2"])),
        ];
        let networks = build(&services, "", &ResolvedNames::default());
        let of = |cluster: &str| -> Vec<IpAddr> {
            let gateways = networks.gateways_for(&"n1".into(), &cluster.into());
            gateways.iter().map(|gateway| gateway.address).collect()
        };
        assert_eq!(of("east"), [ip("203.0.113.1")]);
        assert_eq!(of("north"), [ip("203.0.113.1"), ip("203.0.113.2")]);
    }

    const BY_SERVICE: &str = "networks:
  n1:
    endpoints: [{fromRegistry: east}]
    gateways:
    - {registryServiceName: gw.ns.svc.cluster.local, port: 443}
    - {address: 203.0.113.9, port: 8443}
  n2:
    gateways:
    - {registryServiceName: gw.ns.svc.cluster.local, port: 443}
";

    #[test]
    fn mesh_networks_names_gateways_by_address_and_by_service() {
        let services = [("east", plain(&["203.0.113.7"])), ("west", plain(&["203.0.113.8"]))];
        let networks = build(&services, BY_SERVICE, &ResolvedNames::default());
        assert_eq!(shown(&networks), ["n1 203.0.113.7:443 east", "n1 203.0.113.9:8443 "]);
        assert!(pending(&networks)[0].contains("fromRegistry"), "{:?}", pending(&networks));
        assert!(networks.has_any_configured(&"n2".into()));
    }

    #[test]
    fn a_label_overrides_the_registry_service_name() {
        let services = [("east", gateway_of("n3", &["203.0.113.7"]))];
        let networks = build(&services, BY_SERVICE, &ResolvedNames::default());
        assert_eq!(shown(&networks), ["n1 203.0.113.9:8443 ", "n3 203.0.113.7:15443 east"]);
    }

    #[test]
    fn gateways_of_a_cluster_whose_network_is_fixed_lead_there_and_other_claims_are_shown() {
        let named = "networks:
  n1: {endpoints: [{fromRegistry: west}], gateways: [{registryServiceName: gw.ns.svc.cluster.local, port: 443}]}
  n2: {endpoints: [{fromRegistry: east}]}
";
        let (names, none) = (ResolvedNames::default(), KnownClusters::default);
        let claims = |networks: &Networks| -> Vec<String> {
            let claims = networks.ignored_claims().iter();
            claims.map(|(id, one)| format!("{id}: {} {}", one.claim, one.network)).collect()
        };
        let labelled = [("east", gateway_of("n9", &["203.0.113.7"]))];
        let by_label = build_with(&labelled, named, &names, fixed(&[("east", "n2")]), &[]);
        assert_eq!(shown(&by_label), ["n2 203.0.113.7:15443 east"]);
        assert!(!by_label.has_any_configured(&"n9".into()));
        assert_eq!(
            claims(&by_label),
            ["east: label topology.istio.io/network of Service ns/gw n9"]
        );

        // By a name in mesh networks: of the network that it was in, and of the one that it is in.
        let plain = [("west", plain(&["203.0.113.8"]))];
        for fixes in ["n2", "n1"] {
            let label = [("west", "n8")];
            let members = fixed(&[("west", fixes)]);
            let networks = build_with(&plain, named, &names, members, &label);
            assert_eq!(shown(&networks), [format!("{fixes} 203.0.113.8:443 west")]);
            let mut expected =
                vec!["west: label topology.istio.io/network of the system namespace n8"];
            if fixes == "n2" {
                expected.push("west: meshNetworks fromRegistry n1");
            }
            assert_eq!(claims(&networks), expected);
        }
        // Where nothing is fixed, a cluster may have a gateway of a network that it is not in.
        let free = build_with(&labelled, named, &names, none(), &[("east", "n2")]);
        assert_eq!(shown(&free), ["n9 203.0.113.7:15443 east"]);
        assert!(claims(&free).is_empty());
        let agrees = [("east", gateway_of("n2", &["203.0.113.7"]))];
        let agrees = build_with(&agrees, named, &names, fixed(&[("east", "n2")]), &[]);
        assert!(claims(&agrees).is_empty());
    }

    #[test]
    fn only_the_network_that_has_the_cluster_gets_its_service_as_a_gateway() {
        let claimed_twice = "networks:
  a: {endpoints: [{fromRegistry: east}], gateways: [{registryServiceName: gw.ns.svc.cluster.local, port: 1}]}
  b: {endpoints: [{fromRegistry: east}], gateways: [{registryServiceName: gw.ns.svc.cluster.local, port: 1}]}
";
        let services = [("east", plain(&["203.0.113.7"]))];
        let networks = build(&services, claimed_twice, &ResolvedNames::default());
        assert_eq!(shown(&networks), ["a 203.0.113.7:1 east"]);
    }

    #[test]
    fn a_gateway_learned_twice_takes_its_share_once() {
        let twice = "networks: {n1: {gateways: [{address: 203.0.113.1, port: 15443}]}}";
        let services = [("east", gateway_of("n1", &["203.0.113.1", "203.0.113.2"]))];
        let networks = build(&services, twice, &ResolvedNames::default());
        assert_eq!(networks.iter().count(), 3);
        let gateways = networks.gateways_for(&"n1".into(), &"west".into());
        let of: Vec<_> = gateways.iter().map(|g| (g.address, g.cluster.clone())).collect();
        let east = Some(ClusterId::from("east"));
        assert_eq!(of, [(ip("203.0.113.1"), east.clone()), (ip("203.0.113.2"), east)]);
    }

    #[test]
    fn addresses_that_name_no_other_host_are_an_operators_to_give_and_no_clusters() {
        let gateway = gateway_of("n1", &["0.0.0.0", "ff02::1", "127.0.0.1", "169.254.0.1"]);
        let written = "networks: {n2: {gateways: [{address: 127.0.0.1, port: 15443}]}}";
        let networks = build(&[("east", gateway)], written, &ResolvedNames::default());
        let all: Vec<_> = networks.iter().map(|one| (one.network.as_str(), one.address)).collect();
        assert_eq!(all, [("n2", ip("127.0.0.1"))]);
        assert_eq!(networks.pending().len(), 4);
    }

    #[test]
    fn a_name_stands_for_its_addresses_once_resolved() {
        let services = [("east", gateway_of("n1", &["GW.example.org."]))];
        let networks = build(&services, "", &ResolvedNames::default());
        let wanted: Vec<&str> = networks.names_to_resolve().iter().map(|name| &**name).collect();
        assert_eq!(wanted, ["gw.example.org"]);
        assert!(shown(&networks).is_empty());
        assert_eq!(pending(&networks), ["gw.example.org has not been resolved yet"]);

        let with = |answer| [("gw.example.org".into(), answer)].into_iter().collect();
        let answer = ResolvedName {
            addresses: vec![ip("203.0.113.1"), ip("2001:db8::1")],
            ttl: Duration::from_secs(60),
            ..ResolvedName::default()
        };
        let networks = build(&services, "", &with(answer));
        assert_eq!(shown(&networks), ["n1 203.0.113.1:15443 east", "n1 2001:db8::1:15443 east"]);
        assert!(networks.pending().is_empty());

        let gone = ResolvedName { problem: Some("NXDOMAIN".to_owned()), ..ResolvedName::default() };
        let networks = build(&services, "", &with(gone));
        assert_eq!(pending(&networks), ["gw.example.org does not resolve: NXDOMAIN"]);
        assert_eq!(networks.names_to_resolve().len(), 1, "it is asked for again");
    }

    #[test]
    fn a_cluster_with_a_flood_of_names_leaves_the_others_theirs() {
        let names: Vec<String> = (0..1000).map(|n| format!("{n:04}.example.org")).collect();
        let flood: Vec<&str> = names.iter().map(String::as_str).collect();
        let services =
            [("east", gateway_of("n1", &flood)), ("west", gateway_of("n2", &["west.example.org"]))];
        let mesh = "networks: {n3: {gateways: [{address: own.example.org, port: 1}]}}";
        let networks = build(&services, mesh, &ResolvedNames::default());
        let wanted = networks.names_to_resolve();
        assert_eq!(wanted.len(), NAMES_PER_CLUSTER_MAX + 2);
        assert!(wanted.contains("west.example.org") && wanted.contains("own.example.org"));
    }

    #[test]
    fn the_order_of_services_changes_nothing_and_nothing_old_stays() {
        let services = [
            ("east", gateway_of("n1", &["203.0.113.1"])),
            ("west", gateway_of("n2", &["203.0.113.2"])),
        ];
        let mut reversed = services.clone();
        reversed.reverse();
        let names = ResolvedNames::default();
        assert_eq!(build(&services, BY_SERVICE, &names), build(&reversed, BY_SERVICE, &names));
        let mut without = services.clone();
        without[0].1.external_addresses.clear();
        assert_eq!(shown(&build(&without, "", &names)), ["n2 203.0.113.2:15443 west"]);
    }

    #[test]
    fn only_labelled_and_named_services_concern_gateways() {
        let mesh = MeshNetworks::parse(BY_SERVICE).expect("valid mesh networks");
        let none = MeshNetworks::default();
        assert!(Networks::concerns(&gateway_of("n1", &[]), &none));
        assert!(Networks::concerns(&plain(&[]), &mesh));
        assert!(!Networks::concerns(&plain(&[]), &none));
    }
}
