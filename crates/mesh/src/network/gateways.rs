//! The gateways of every network. They are recomputed from all inputs whenever one changes, so no
//! stale gateway can remain.
//!
//! | source | address | port |
//! |---|---|---|
//! | a Service labelled `topology.istio.io/network` | its external addresses | label `networking.istio.io/gatewayPort`, otherwise 15443 |
//! | a Gateway (Gateway API) with that label | its `spec.addresses` | each listener with TLS passthrough, or with that port |
//! | MeshNetworks `registryServiceName` | that Service's external addresses, in clusters that the network lists by `fromRegistry`; a label on the Service overrides | as configured |
//! | MeshNetworks `address` | as configured | as configured |
//!
//! If the policy does not let a cluster claim a network, gateways of that cluster for that network
//! are ignored. If the Secret of a cluster fixes its network, that cluster's gateway Services are
//! gateways of the fixed network, whatever their labels say. The cluster's endpoints are in that
//! network, and no other gateway would route to them.
//!
//! A Service without a pod that serves ([`ClusterFacts::unserved`]) is not a gateway: its load
//! balancer keeps the address but does not accept connections.

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
    KnownClusters, NETWORK_LABEL, NetworkId, Port, Protocol, Service, WorkloadKey, gateway_port,
    parse_gateway_port,
};

/// The port of HBONE.
const HBONE_PORT: u16 = 15008;
/// Why a gateway without a port for mTLS with SNI routing is not used.
pub(super) const ONLY_HBONE: &str =
    "it accepts only HBONE, and proxies need a port for mTLS with SNI (15443)";
/// The maximum number of gateway names that are resolved for one cluster, so that a cluster with
/// too many names does not delay the names of other clusters.
const NAMES_PER_CLUSTER_MAX: usize = 64;

/// A gateway with a known address.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ResolvedGateway {
    /// Its address.
    pub address: IpAddr,
    /// The port for mTLS with SNI routing.
    pub port: u16,
    /// The network that it routes to.
    pub network: NetworkId,
    /// The cluster in which it runs; `None` if only an address is configured.
    pub cluster: Option<ClusterId>,
    /// The HBONE port; 0 if it has none.
    pub hbone_port: u16,
    /// The object that defines it.
    pub source: GatewaySource,
    /// The hostname that DNS resolved to the address.
    pub hostname: Option<Arc<str>>,
    /// The TTL of the DNS record, clamped to the configured limits.
    pub ttl: Option<Duration>,
    /// Whether it failed its probes.
    pub dead: bool,
}

/// A configured gateway that cannot be dialled yet, with the reason.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct PendingGateway {
    /// The network that it would route to.
    pub network: NetworkId,
    /// The cluster in which it runs.
    pub cluster: Option<ClusterId>,
    /// The object that defines it.
    pub source: GatewaySource,
    /// The missing condition.
    pub reason: String,
    /// The kind of the reason.
    pub cause: PendingCause,
}

/// Why a configured gateway cannot be dialled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum PendingCause {
    /// It has no usable address or port.
    NoAddress,
    /// It has an address, but no pod that serves.
    Unserved,
    /// DNS has no address for its name.
    Unresolved,
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

/// The inputs that determine the gateways, apart from the services.
#[derive(Debug, Clone, Copy)]
pub struct Inputs<'a> {
    /// The members; the network of some is fixed.
    pub clusters: &'a KnownClusters,
    /// The network label of each cluster's system namespace.
    pub namespace_labels: &'a BTreeMap<ClusterId, NetworkId>,
    /// The mesh networks.
    pub mesh: &'a MeshNetworks,
    /// The policy, which limits what clusters may claim.
    pub policy: &'a Policy,
    /// The resolved gateway names.
    pub names: &'a ResolvedNames,
    /// The facts that clusters report.
    pub facts: &'a [(&'a ClusterId, &'a ClusterFacts)],
    /// Gateways that failed their probes.
    pub dead: &'a BTreeSet<ProbeAddress>,
}

/// The gateway names to resolve, by cluster.
type NamesByCluster = BTreeMap<ClusterId, BTreeSet<Arc<str>>>;

/// A gateway before its hostname is resolved to addresses.
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
    /// Finds all gateways. `services` must include every service of every shard that may be a
    /// gateway; other services are skipped.
    pub fn build<'a>(
        services: impl Iterator<Item = (&'a ClusterId, &'a Service)>,
        inputs: Inputs<'_>,
    ) -> Self {
        let Inputs { mesh, names, policy, .. } = inputs;
        let mut configured = BTreeSet::new();
        let mut networks = Self::default();
        networks.note_ignored(inputs);
        for (cluster, service) in services {
            networks.add_service(cluster, service, inputs, &mut configured);
        }
        networks.add_declared(inputs, &mut configured);
        for (network, gateway) in mesh.gateways() {
            if let GatewayTarget::Address(host) = &gateway.target {
                configured.insert(ConfiguredGateway {
                    network: network.clone(),
                    cluster: None,
                    source: GatewaySource::MeshNetworks,
                    host: host.clone(),
                    port: gateway.port,
                    hbone_port: 0,
                });
            }
        }
        networks.note_missing_services(mesh, &configured);
        let mut names_by_cluster = NamesByCluster::new();
        for gateway in configured {
            networks.resolve(gateway, names, policy, &mut names_by_cluster);
        }
        networks.index(inputs.dead);
        networks
    }

    /// Returns whether a change to `service` can change the gateways.
    pub fn concerns(service: &Service, mesh: &MeshNetworks) -> bool {
        service.has_network_label()
            || mesh.gateways().any(|(_, gateway)| gateway.names_service(service))
    }

    /// Returns the gateways through which a sidecar reaches endpoints of `cluster` in `network`:
    /// the gateways in that cluster, or all of the network's if it has none. Sorted by address and
    /// port, without duplicates.
    pub fn gateways_for(&self, network: &NetworkId, cluster: &ClusterId) -> &[ResolvedGateway] {
        let own = self.by_cluster.get(&(network.clone(), cluster.clone()));
        own.map_or_else(|| self.all_for(network), Vec::as_slice)
    }

    /// Returns all gateways through which a sidecar reaches `network`. Sorted by address and port,
    /// without duplicates.
    pub fn all_for(&self, network: &NetworkId) -> &[ResolvedGateway] {
        self.by_network.get(network).map_or(&[], Vec::as_slice)
    }

    /// Returns all gateways of a network that can be dialled, including those without a port for
    /// mTLS with SNI routing. Sorted by address and port.
    pub fn of_network(&self, network: &NetworkId) -> &[ResolvedGateway] {
        let start = self.all.partition_point(|gateway| gateway.network < *network);
        let end = self.all.partition_point(|gateway| gateway.network <= *network);
        self.all.get(start..end).unwrap_or_default()
    }

    /// Returns whether any gateway of the network is configured, including gateways that cannot be
    /// dialled yet.
    pub fn has_any_configured(&self, network: &NetworkId) -> bool {
        self.all.iter().any(|gateway| gateway.network == *network)
            || self.pending.iter().any(|pending| pending.network == *network)
    }

    /// Returns the gateways of a network that cannot be dialled for this cause.
    pub fn pending_by(
        &self,
        network: &NetworkId,
        cause: PendingCause,
    ) -> impl Iterator<Item = &PendingGateway> {
        let all = self.pending.iter();
        all.filter(move |pending| pending.cause == cause && pending.network == *network)
    }

    /// Returns every gateway that can be dialled, sorted by network, address and port.
    pub fn iter(&self) -> impl Iterator<Item = &ResolvedGateway> {
        self.all.iter()
    }

    /// Returns the gateways that cannot be dialled yet.
    pub fn pending(&self) -> &BTreeSet<PendingGateway> {
        &self.pending
    }

    /// Returns the hostnames that DNS must resolve.
    pub fn names_to_resolve(&self) -> &BTreeSet<Arc<str>> {
        &self.names
    }

    /// Returns the ignored network claims of clusters: claims of another network by clusters whose
    /// network is fixed, and gateways that the policy refuses. Claims of pods are not included.
    /// Sorted.
    pub fn ignored_claims(&self) -> &BTreeSet<(ClusterId, IgnoredClaim)> {
        &self.ignored
    }

    /// Returns the networks whose gateways, pending gateways or ignored claims differ from
    /// `before`.
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

    /// Records claims of other networks for clusters whose network is fixed; they have no effect.
    fn note_ignored(&mut self, inputs: Inputs<'_>) {
        for (cluster, settings) in &inputs.clusters.clusters {
            let Some(fixed) = &settings.fixed_network else { continue };
            let label = inputs.namespace_labels.get(cluster);
            let registry = inputs.mesh.network_by_registry(cluster);
            for (claimed, rule) in
                [(label, PlacedBy::NamespaceLabel), (registry, PlacedBy::MeshNetworksRegistry)]
            {
                if let Some(network) = claimed.filter(|claimed| *claimed != fixed) {
                    self.ignore(cluster, rule.to_string(), network);
                }
            }
        }
    }

    /// Records a gateway that cannot be dialled yet.
    pub(super) fn pend(&mut self, pending: PendingGateway) {
        self.pending.insert(pending);
    }

    pub(super) fn ignore(&mut self, cluster: &ClusterId, claim: String, network: &NetworkId) {
        let claim = IgnoredClaim { claim, network: network.clone() };
        self.ignored.insert((cluster.clone(), claim));
    }

    fn add_service(
        &mut self,
        cluster: &ClusterId,
        service: &Service,
        inputs: Inputs<'_>,
        found: &mut BTreeSet<ConfiguredGateway>,
    ) {
        let mesh = inputs.mesh;
        // Nearly all services are no gateways, so avoid further look-ups for them.
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
            // The policy does not apply to Services that mesh networks name: the operator chose
            // them.
            if let Err(refused) = inputs.policy.may_be_gateway(service.namespace.as_str()) {
                let claim = format!("gateway {}: policy {}", entrance.source, refused.rule);
                return self.ignore(cluster, claim, &entrance.network);
            }
            self.add(cluster, service, entrance, inputs, found);
            return;
        }
        for (network, gateway) in mesh.gateways().filter(|(_, one)| one.names_service(service)) {
            let fixed = fixed();
            if mesh.network_by_registry(cluster) == Some(network) || fixed == Some(network) {
                let entrance = Entrance {
                    network: fixed.unwrap_or(network).clone(),
                    source: GatewaySource::RegistryService(service.hostname.as_str().into()),
                    // The Service need not have the port. (Istio, mesh networks.)
                    port: outside_port(service, gateway.port),
                    hbone_port: 0,
                };
                self.add(cluster, service, entrance, inputs, found);
            }
        }
    }

    /// Adds a gateway for each external address of the Service, or records why it has no usable
    /// address.
    fn add(
        &mut self,
        cluster: &ClusterId,
        service: &Service,
        entrance: Entrance,
        inputs: Inputs<'_>,
        found: &mut BTreeSet<ConfiguredGateway>,
    ) {
        let Entrance { network, source, port, hbone_port } = entrance;
        if let Err(refused) = inputs.policy.may_claim(cluster, &network) {
            return self.ignore(
                cluster,
                format!("gateway {source}: policy {}", refused.rule),
                &network,
            );
        }
        let key = WorkloadKey::new(service.namespace.clone(), Arc::clone(&service.name));
        let mut facts = inputs.facts.iter().filter(|(id, _)| *id == cluster);
        let unserved = facts.any(|(_, facts)| facts.unserved.contains(&key));
        let reason = if port == 0 {
            Some(missing_port(service, hbone_port))
        } else if service.external_addresses.is_empty() {
            Some("the Service has no external address yet".to_owned())
        } else if unserved {
            Some("the Service has an external address, but no ready pod".to_owned())
        } else {
            None
        };
        if let Some(reason) = reason {
            let cluster = Some(cluster.clone());
            let cause = match unserved && !service.external_addresses.is_empty() {
                true => PendingCause::Unserved,
                false => PendingCause::NoAddress,
            };
            self.pending.insert(PendingGateway { network, cluster, source, reason, cause });
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

    /// Reports a `registryServiceName` that matches no Service. Otherwise, a typing error would
    /// look like a network without a gateway.
    fn note_missing_services(&mut self, mesh: &MeshNetworks, found: &BTreeSet<ConfiguredGateway>) {
        for (network, gateway) in mesh.gateways() {
            let GatewayTarget::Service(hostname) = &gateway.target else { continue };
            let source = GatewaySource::RegistryService(hostname.as_str().into());
            let is_same = |gateway_network: &NetworkId, gateway_source: &GatewaySource| {
                gateway_network == network && *gateway_source == source
            };
            let is_known = found.iter().any(|found| is_same(&found.network, &found.source))
                || self.pending.iter().any(|pending| is_same(&pending.network, &pending.source));
            if !is_known {
                self.pending.insert(PendingGateway {
                    network: network.clone(),
                    cluster: None,
                    source,
                    reason: "no cluster that the network names by fromRegistry has such a Service \
                             without a network label"
                        .to_owned(),
                    cause: PendingCause::NoAddress,
                });
            }
        }
    }

    fn resolve(
        &mut self,
        gateway_configuration: ConfiguredGateway,
        names: &ResolvedNames,
        policy: &Policy,
        names_by_cluster: &mut NamesByCluster,
    ) {
        let ConfiguredGateway { network, cluster, source, host, port, hbone_port } =
            gateway_configuration;
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
        // Addresses in mesh networks are written by an operator and belong to no cluster, so the
        // policy does not apply.
        let refused = |address: IpAddr| {
            let cluster = cluster.as_ref()?;
            policy.may_use(cluster, address).err().map(|refused| refused.to_string())
        };
        let mut cause = PendingCause::NoAddress;
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
                if !may_resolve(names_by_cluster, cluster.as_ref(), &name) {
                    format!(
                        "{name} is not resolved: more than {NAMES_PER_CLUSTER_MAX} gateway names in this cluster"
                    )
                } else {
                    self.names.insert(Arc::clone(&name));
                    match names.get(&name) {
                        Some(resolved) if !resolved.addresses.is_empty() => {
                            self.all.extend(resolved.addresses.iter().map(|address| {
                                gateway(*address, Some(Arc::clone(&name)), Some(resolved.ttl))
                            }));
                            return;
                        }
                        Some(resolved) => {
                            cause = PendingCause::Unresolved;
                            let problem = resolved.problem.as_deref().unwrap_or("no addresses");
                            format!("{name} does not resolve: {problem}")
                        }
                        None => format!("{name} has not been resolved yet"),
                    }
                }
            }
        };
        self.pending.insert(PendingGateway { network, cluster, source, reason, cause });
    }

    fn index(&mut self, dead: &BTreeSet<ProbeAddress>) {
        for gateway in &mut self.all {
            gateway.dead = dead.contains(&(gateway.address, gateway.port));
        }
        self.all.sort_by(|a, b| (&a.network, a).cmp(&(&b.network, b)));
        self.all.dedup();
        // Dead gateways are omitted if the network has another usable gateway, so no network loses
        // its last one.
        let alive = self.all.iter().filter(|gateway| !gateway.dead);
        let alive: BTreeSet<_> = alive.map(|gateway| &gateway.network).collect();
        let used = |gateway: &&ResolvedGateway| !(gateway.dead && alive.contains(&gateway.network));
        for gateway in self.all.iter().filter(used) {
            if let Some(cluster) = &gateway.cluster {
                let key = (gateway.network.clone(), cluster.clone());
                add_once(self.by_cluster.entry(key).or_default(), gateway);
            }
            add_once(self.by_network.entry(gateway.network.clone()).or_default(), gateway);
        }
    }
}

/// Returns why a gateway's Service has no port for mTLS with SNI routing.
fn missing_port(service: &Service, hbone_port: u16) -> String {
    let label = service.labels.get(GATEWAY_PORT_LABEL).filter(|text| !text.is_empty());
    match label.filter(|text| parse_gateway_port(text).is_none()) {
        Some(text) => format!("label {GATEWAY_PORT_LABEL} {text:?} is not a port"),
        None if hbone_port != 0 => ONLY_HBONE.to_owned(),
        None => "the Service does not have the mTLS port".to_owned(),
    }
}

/// Adds a gateway to a sorted list unless its address and port are already there; a duplicate would
/// receive twice the traffic. An entry that names its cluster is preferred.
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

/// Returns whether `name` may be resolved for this cluster. Names in mesh networks are written by
/// an operator, belong to no cluster, and are always resolved.
fn may_resolve(
    names_by_cluster: &mut NamesByCluster,
    cluster: Option<&ClusterId>,
    name: &Arc<str>,
) -> bool {
    let Some(cluster) = cluster else { return true };
    let names = names_by_cluster.entry(cluster.clone()).or_default();
    if !names.contains(name) && names.len() < NAMES_PER_CLUSTER_MAX {
        names.insert(Arc::clone(name));
    }
    names.contains(name)
}

/// The ports through which a Service lets traffic into a network, as seen from outside; 0 if it has
/// none.
struct Entrance {
    network: NetworkId,
    source: GatewaySource,
    port: u16,
    hbone_port: u16,
}

/// Returns the external port for a TCP port of a Service, or 0 if the Service does not have this
/// port.
fn exposed_port(service: &Service, number: u16) -> u16 {
    let exposed = |port: &Port| port.number == number && port.protocol != Protocol::Udp;
    if service.ports.iter().any(exposed) { outside_port(service, number) } else { 0 }
}

/// Returns the external port for a service port: its node port if nodes are the external addresses,
/// or 0 if it has no node port.
fn outside_port(service: &Service, port: u16) -> u16 {
    if service.external_ports.is_empty() {
        return port;
    }
    service.external_ports.get(&port).copied().unwrap_or(0)
}

#[cfg(test)]
mod tests;
