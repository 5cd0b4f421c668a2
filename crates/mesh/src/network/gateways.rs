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
use super::probes::ProbeAddress;
use strait_base::address::special;
use strait_model::mesh_config::{GatewayTarget, MeshNetworks};
use strait_model::policy::Policy;
use strait_model::{
    ClusterFacts, ClusterId, GATEWAY_PORT_LABEL, GatewayHost, GatewaySource, IgnoredClaim,
    KnownClusters, NETWORK_LABEL, NetworkId, Port, Protocol, Service, gateway_port,
};

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
    /// Whether it has been asked and does not answer.
    pub dead: bool,
}

/// A gateway that is configured but can't be dialled yet, and why.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct PendingGateway {
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
    pending: BTreeSet<PendingGateway>,
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
    /// Gateways that don't answer.
    pub dead: &'a BTreeSet<ProbeAddress>,
}

/// The names DNS is asked for on a cluster's behalf.
type NamesByCluster = BTreeMap<ClusterId, BTreeSet<Arc<str>>>;

/// A gateway before its host is turned into addresses.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ConfiguredGateway {
    pub(super) network: NetworkId,
    pub(super) cluster: Option<ClusterId>,
    pub(super) source: GatewaySource,
    pub(super) host: GatewayHost,
    pub(super) port: u16,
    pub(super) hbone_port: u16,
}

impl Networks {
    /// Finds the gateways. `services` are those that can be some, of every shard; others are passed over.
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
                found.insert(ConfiguredGateway {
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
        networks.index(inputs.dead);
        networks
    }

    /// Whether a change of `service` can change the gateways.
    pub fn concerns(service: &Service, mesh: &MeshNetworks) -> bool {
        service.has_network_label()
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
    pub fn pending(&self) -> &BTreeSet<PendingGateway> {
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

    /// The networks about which anything differs from `before`: by what they are entered, or only what is shown of it.
    pub fn differing(&self, before: &Self) -> BTreeSet<NetworkId> {
        if std::ptr::eq(self, before) {
            return BTreeSet::new();
        }
        let [now, then] = [self, before].map(|one| one.all.iter().collect::<BTreeSet<_>>());
        let gateways = now.symmetric_difference(&then).map(|one| &one.network);
        let pending = self.pending.symmetric_difference(&before.pending).map(|one| &one.network);
        let ignored = self.ignored.symmetric_difference(&before.ignored);
        let ignored = ignored.map(|(_, claim)| &claim.network);
        gateways.chain(pending).chain(ignored).cloned().collect()
    }

    /// Notes what is stated in vain of clusters whose network is fixed.
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
    pub(super) fn pend(&mut self, pending: PendingGateway) {
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
        found: &mut BTreeSet<ConfiguredGateway>,
    ) {
        let mesh = inputs.mesh;
        // Nearly all services are no gateways: nothing else is looked up for those.
        let fixed = || inputs.clusters.fixed_network(cluster);
        if let Some(network) = service.labels.get(NETWORK_LABEL).filter(|label| !label.is_empty()) {
            let fixed = fixed();
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
            // A Service that mesh networks name is the operator's choice.
            if let Err(refused) = inputs.policy.may_be_gateway(service.namespace.as_str()) {
                let claim = format!("gateway {}: policy {}", entrance.source, refused.rule);
                return self.ignore(cluster, claim, &entrance.network);
            }
            self.add(cluster, service, entrance, inputs.policy, found);
            return;
        }
        for (network, gateway) in mesh.gateways().filter(|(_, one)| one.names_service(service)) {
            let fixed = fixed();
            if mesh.of_registry(cluster) == Some(network) || fixed == Some(network) {
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
        found: &mut BTreeSet<ConfiguredGateway>,
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
            self.pending.insert(PendingGateway {
                network,
                cluster,
                source,
                reason: reason.to_owned(),
            });
            return;
        }
        found.extend(service.external_addresses.iter().map(|address| ConfiguredGateway {
            network: network.clone(),
            cluster: Some(cluster.clone()),
            source: source.clone(),
            host: GatewayHost::parse(address),
            port,
            hbone_port,
        }));
    }

    /// A `registryServiceName` that leads nowhere is reported: a typing error would else look like
    /// a network without a gateway.
    fn note_missing_services(&mut self, mesh: &MeshNetworks, found: &BTreeSet<ConfiguredGateway>) {
        for (network, gateway) in mesh.gateways() {
            let GatewayTarget::Service(hostname) = &gateway.target else { continue };
            let source = GatewaySource::RegistryService(hostname.as_str().into());
            let is_it = |of: &NetworkId, from: &GatewaySource| of == network && *from == source;
            let known = found.iter().any(|found| is_it(&found.network, &found.source))
                || self.pending.iter().any(|pending| is_it(&pending.network, &pending.source));
            if !known {
                self.pending.insert(PendingGateway {
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
        found: ConfiguredGateway,
        names: &ResolvedNames,
        policy: &Policy,
        asked: &mut NamesByCluster,
    ) {
        let ConfiguredGateway { network, cluster, source, host, port, hbone_port } = found;
        let gateway = |address, hostname, ttl| ResolvedGateway {
            address,
            port,
            network: network.clone(),
            cluster: cluster.clone(),
            hbone_port,
            source: source.clone(),
            hostname,
            ttl,
            dead: false,
        };
        // What an operator writes into mesh networks belongs to no cluster, and is taken as written.
        let refused = |address: IpAddr| {
            let cluster = cluster.as_ref()?;
            policy.may_use(cluster, address).err().map(|refused| refused.to_string())
        };
        let reason = match host {
            GatewayHost::Address(address)
                if special(address).is_some_and(|special| special.is_no_hosts()) =>
            {
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
        self.pending.insert(PendingGateway { network, cluster, source, reason });
    }

    fn index(&mut self, dead: &BTreeSet<ProbeAddress>) {
        for gateway in &mut self.all {
            gateway.dead = dead.contains(&(gateway.address, gateway.port));
        }
        self.all.sort_by(|a, b| (&a.network, a).cmp(&(&b.network, b)));
        self.all.dedup();
        // The dead are left out where others of the network are left: no network loses its last one.
        let usable = |gateway: &&ResolvedGateway| gateway.port != 0 && !gateway.dead;
        let alive: BTreeSet<_> = self.all.iter().filter(usable).map(|one| &one.network).collect();
        let used = |gateway: &&ResolvedGateway| {
            gateway.port != 0 && !(gateway.dead && alive.contains(&gateway.network))
        };
        for gateway in self.all.iter().filter(used) {
            if let Some(cluster) = &gateway.cluster {
                let key = (gateway.network.clone(), cluster.clone());
                add_once(self.by_cluster.entry(key).or_default(), gateway);
            }
            add_once(self.by_network.entry(gateway.network.clone()).or_default(), gateway);
        }
    }
}

/// Adds a gateway to a sorted list unless its address and port are in it: learned twice, it would
/// take twice the traffic. One that names its cluster states more than one that doesn't.
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
mod tests;
