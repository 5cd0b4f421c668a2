//! Merging of the shards of one hostname into one service.
//!
//! | field | rule |
//! |---|---|
//! | ports | the union by number; the first shard with the number defines the port |
//! | endpoints of a port | the endpoints of each shard's port with this number, otherwise with this name |
//! | resolution, labels, visibility, creation time | the first shard's |
//! | VIPs, external addresses | each cluster's own |
//! | service accounts | the union of the accounts of objects and endpoints, sorted |
//! | whether endpoints may accept mTLS | whether any shard has an endpoint with a known workload, or names accounts |
//! | endpoints | all shards' endpoints, each with its final network |
//!
//! A later shard therefore only adds ports and endpoints and does not change the values of earlier
//! shards. If a proxy's cluster has the service, the proxy uses the port protocols of that cluster.
//!
//! If a later shard differs in a field that the first shard decides, a conflict is recorded. Under a
//! name of the set, clusters that only import the service are not compared. A
//! shard whose object is in a different namespace than the first shard's object is ignored, which
//! is also recorded. Otherwise, write access to one namespace would be enough to take over part of
//! another namespace's traffic.
//!
//! A cluster that may not export the name serves only its own proxies: it is merged after all
//! others, decides nothing for other clusters, and adds no accounts or ports for them. A cluster
//! that keeps its service local is merged after the others too, and adds no ports.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use super::assign::{AssignNetwork, AssignedEndpoints, Bar};
use strait_model::registry::{Provider, ServiceRecord, ShardKey};
use strait_model::{
    ClusterId, EndpointGroup, EndpointRef, Endpoints, Hostname, NO_ADDRESS, NetworkId,
    PackedEndpoint, Port, Protocol, Resolution, Service, SharingDecision, SortedMap, TlsMode,
};

use super::port_union::{Conflict, PortUnion, is_same_number};

/// One service, merged over all clusters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MergedService {
    /// The first shard's object. It decides resolution, labels, visibility, and the ports that it
    /// has.
    pub primary: Arc<Service>,
    /// Ports that only later shards have, each with the first shard that has it.
    added: Box<[(ShardKey, Port)]>,
    /// Whether clusters disagree on the protocol of a port.
    protocols_differ: bool,
    /// Every cluster's own object.
    pub by_cluster: SortedMap<ClusterId, Arc<Service>>,
    /// SPIFFE IDs that endpoints may present, sorted.
    pub service_accounts: Box<[Arc<str>]>,
    /// Whether any endpoint accepts mTLS or could start to at any time, because its workload is
    /// known or accounts are named. This changes only with the first and the last such endpoint or
    /// account. (docs/contributing/decisions/0022-how-endpoints-are-spoken-to.md)
    pub may_accept_mtls: bool,
    /// Whether any endpoint accepts mTLS now. Clients that use mTLS for all endpoints or for none
    /// follow this field. It changes as endpoints do, so proxies that subscribe to the endpoints
    /// are checked for a change.
    pub accepts_mtls: bool,
    /// Fields on which the clusters disagree.
    pub conflicts: Vec<Conflict>,
    /// Endpoints by shard, in merging order.
    pub shards: Vec<ShardEndpoints>,
    /// Whether some shard restricts it to its own cluster ([`ShardEndpoints::sharing`]).
    pub is_cluster_local: bool,
    /// Whether it is local to nodes in some cluster ([`strait_model::Definition::node_local`]).
    pub node_local: bool,
    /// The clusters that may not export it. Their endpoints serve only their own proxies.
    pub refused: BTreeSet<ClusterId>,
    /// The records of shards under this name that are ignored, in merging order.
    pub overruled: Vec<(ShardKey, ServiceRecord)>,
}

/// The endpoints that one shard contributes to a service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShardEndpoints {
    /// The shard.
    pub key: ShardKey,
    /// The shard's own object.
    pub service: Arc<Service>,
    /// Whether its cluster shares the service with other clusters.
    pub sharing: SharingDecision,
    /// The shard's endpoints, shared with the source's record unless some TLS modes were changed.
    pub endpoints: Endpoints,
    /// The endpoints as the source sent them, if some TLS modes were changed.
    reported: Option<Endpoints>,
    /// The networks of the endpoints, nearly always one. A network is listed again for its barred
    /// endpoints, and for each set of claimants.
    networks: Box<[NetworkId]>,
    /// Why endpoints are barred, by position of their network; empty if none are barred.
    bars: Box<[Option<Bar>]>,
    /// The clusters whose pods have the endpoints' addresses if there are several, in merging
    /// order, by position of the network; empty if no address is shared.
    claimants: Box<[Option<Arc<[ClusterId]>>]>,
    /// For each endpoint, the network's position; empty if all are in the first network.
    places: Box<[u32]>,
}

impl MergedService {
    /// Returns whether the first source is a ServiceEntry: no cluster has a service of this name.
    pub fn is_of_entry(&self) -> bool {
        self.shards.first().is_some_and(|shard| shard.key.provider.is_of_service_entries())
    }

    /// Returns the records of all sources under this name, as received, including the ignored ones.
    pub fn reported(&self) -> impl Iterator<Item = (&ShardKey, ServiceRecord)> {
        let merged = self.shards.iter().map(|shard| {
            let endpoints = shard.reported.as_ref().unwrap_or(&shard.endpoints).clone();
            let service = Arc::clone(&shard.service);
            (&shard.key, ServiceRecord { service, endpoints })
        });
        merged.chain(self.overruled.iter().map(|(key, record)| (key, record.clone())))
    }

    /// Sets the TLS modes of endpoints. `mode` computes the mode from the endpoint as its source
    /// reported it, so earlier calls have no effect on the result.
    pub fn set_tls_modes(&mut self, mode: impl Fn(&ShardKey, EndpointRef<'_>) -> TlsMode) {
        for shard in &mut self.shards {
            if let Some(reported) = shard.reported.take() {
                shard.endpoints = reported;
            }
            let modes: Vec<TlsMode> =
                shard.endpoints.iter().map(|one| mode(&shard.key, one)).collect();
            if shard.endpoints.iter().zip(&modes).all(|(one, mode)| one.tls_mode == *mode) {
                continue;
            }
            let changed = shard.endpoints.iter().zip(&modes);
            let changed = changed.map(|(one, mode)| EndpointRef { tls_mode: *mode, ..one });
            let changed = changed.collect();
            shard.reported = Some(std::mem::replace(&mut shard.endpoints, changed));
        }
        let mut kinds = self.shards.iter().flat_map(|shard| shard.endpoints.kinds());
        self.accepts_mtls = kinds.any(|kind| kind.tls_mode == TlsMode::Istio);
    }

    /// Returns whether [`Self::set_tls_modes`] with this function would change nothing. Stops at
    /// the first endpoint that differs.
    pub fn has_tls_modes(&self, mode: impl Fn(&ShardKey, EndpointRef<'_>) -> TlsMode) -> bool {
        self.shards.iter().all(|shard| {
            let reported = shard.reported.as_ref().unwrap_or(&shard.endpoints);
            let mut pairs = reported.iter().zip(shard.endpoints.iter());
            pairs.all(|(reported, one)| mode(&shard.key, reported) == one.tls_mode)
        })
    }

    /// Returns the hostname under which it was merged.
    pub fn hostname(&self) -> &Hostname {
        &self.primary.hostname
    }

    /// Returns whether it is the service of a ServiceEntry that applies to the proxies of one
    /// cluster only.
    pub fn is_of_local_entry(&self) -> bool {
        let first = self.shards.first();
        self.is_of_entry() && first.is_some_and(|shard| shard.sharing.is_local)
    }

    /// Returns whether no cluster that has the service shares it, so that each uses only its own.
    pub fn is_shared_by_none(&self) -> bool {
        let is_own =
            |one: &ShardEndpoints| one.sharing.is_local || self.refused.contains(&one.key.cluster);
        self.shards.iter().all(is_own) && !self.shards.is_empty()
    }

    /// Returns the virtual addresses by cluster, in merging order, without clusters that have none.
    /// Shards of other providers than Kubernetes are used only if no cluster has a VIP, and then
    /// only the first: if an entry joins a cluster's service, the cluster's VIPs apply.
    pub fn vips(&self) -> impl Iterator<Item = (&ClusterId, &[IpAddr])> {
        let candidates =
            self.shards.iter().map(|shard| (&shard.key, self.vips_of(&shard.key.cluster)));
        let candidates = candidates.filter(|(_, vips)| !vips.is_empty());
        let is_of_cluster = |key: &ShardKey| key.provider.is_cluster();
        let has_cluster_vips = candidates.clone().any(|(key, _)| is_of_cluster(key));
        let is_used = move |at, key| if has_cluster_vips { is_of_cluster(key) } else { at == 0 };
        let used = candidates.enumerate().filter(move |(at, (key, _))| is_used(*at, key));
        used.map(|(_, (key, vips))| (&key.cluster, vips))
    }

    /// Returns the rank among services that claim the same address or name; the lowest rank gets
    /// it. Services of clusters precede services that only entries define, then older services
    /// precede newer ones. The caller breaks ties by name.
    pub fn rank(&self) -> (Option<Provider>, i64) {
        (self.shards.first().map(|shard| shard.key.provider), self.primary.created)
    }

    /// Returns the cluster's own virtual addresses; empty if it has none.
    pub fn vips_of(&self, cluster: &ClusterId) -> &[IpAddr] {
        self.by_cluster.get(cluster).map_or(&[], |service| &service.vips)
    }

    /// Returns external addresses by cluster, in each source's order, without clusters that have
    /// none.
    pub fn external_addresses(&self) -> impl Iterator<Item = (&ClusterId, &[Arc<str>])> {
        let has_addresses = |service: &Arc<Service>| !service.external_addresses.is_empty();
        let services = self.by_cluster.iter().filter(move |(_, service)| has_addresses(service));
        services.map(|(cluster, service)| (cluster, &*service.external_addresses))
    }

    /// Returns whether clients see the same service, apart from endpoints and their service
    /// accounts.
    pub fn same_definition(&self, other: &Self) -> bool {
        self.by_cluster == other.by_cluster
            && self.primary == other.primary
            && self.added == other.added
    }

    /// Returns whether the definition differs while the endpoints in all shards are the same.
    pub fn differs_except_in_endpoints(&self, other: &Self) -> bool {
        let same = |(a, b): (&ShardEndpoints, &ShardEndpoints)| {
            a.key == b.key && a.endpoints == b.endpoints
        };
        !self.same_definition(other)
            && self.shards.len() == other.shards.len()
            && self.shards.iter().zip(&other.shards).all(same)
    }

    /// Returns whether everything is equal except the targets of ports
    /// ([`Service::same_before_ports`]); endpoints are compared too. Targets of ports affect only
    /// the pods that serve the service, not its clients.
    pub fn same_before_ports(&self, other: &Self) -> bool {
        // Destructured so that adding a field forces a decision here.
        let Self {
            primary,
            added,
            protocols_differ,
            by_cluster,
            service_accounts,
            may_accept_mtls,
            accepts_mtls,
            conflicts: _,
            shards,
            is_cluster_local,
            node_local,
            refused,
            overruled,
        } = self;
        let is_same_service = |(a, b): (&Arc<Service>, &Arc<Service>)| a.same_before_ports(b);
        let same_port =
            |((a, own_port), (b, other_port)): (&(ShardKey, Port), &(ShardKey, Port))| {
                a == b
                    && *own_port == Port { target: own_port.target.clone(), ..other_port.clone() }
            };
        *protocols_differ == other.protocols_differ
            && *service_accounts == other.service_accounts
            && *may_accept_mtls == other.may_accept_mtls
            && *accepts_mtls == other.accepts_mtls
            && *is_cluster_local == other.is_cluster_local
            && *node_local == other.node_local
            && *refused == other.refused
            && *overruled == other.overruled
            && added.len() == other.added.len()
            && added.iter().zip(&other.added).all(same_port)
            && shards.len() == other.shards.len()
            && shards.iter().zip(&other.shards).all(|(a, b)| a.same_before_ports(b))
            && by_cluster.keys().eq(other.by_cluster.keys())
            && by_cluster.values().zip(other.by_cluster.values()).all(is_same_service)
            && is_same_service((primary, &other.primary))
    }

    /// Returns the ports: the union by number, each defined by the first shard that has the number.
    pub fn ports(&self) -> impl Iterator<Item = &Port> + Clone {
        self.primary.ports.iter().chain(self.added.iter().map(|(_, port)| port))
    }

    /// Returns the ports of the merged service and of every cluster's object; may contain
    /// duplicates.
    pub fn all_ports(&self) -> impl Iterator<Item = &Port> {
        self.ports().chain(self.by_cluster.values().flat_map(|own| &own.ports))
    }

    /// Returns a copy with only the ports for which `keeps` returns true.
    #[must_use]
    pub fn with_ports(&self, keeps: impl Fn(&Port) -> bool) -> Self {
        let trimmed = |service: &Arc<Service>| {
            let mut definition = (*service.definition).clone();
            definition.ports.retain(&keeps);
            Arc::new(Service { definition: Arc::new(definition), ..(**service).clone() })
        };
        let own = self.by_cluster.iter().map(|(id, own)| (id.clone(), trimmed(own)));
        Self {
            primary: trimmed(&self.primary),
            added: self.added.iter().filter(|(_, port)| keeps(port)).cloned().collect(),
            by_cluster: own.collect(),
            ..self.clone()
        }
    }

    /// Returns the first port with this number that is not UDP.
    pub fn port(&self, number: u16) -> Option<&Port> {
        self.ports().find(|port| port.number == number && port.protocol != Protocol::Udp)
    }

    /// Returns the ports as proxies of `cluster` use them: if the cluster has a port itself, its
    /// own definition applies.
    pub fn ports_in(&self, cluster: &ClusterId) -> impl Iterator<Item = &Port> {
        let own = self.own_ports(cluster);
        let is_merged = |port: &Port| self.ports().any(|other| is_same_number(port, other));
        let merged_ports = self
            .ports()
            .map(move |port| own.iter().find(|one| is_same_number(one, port)).unwrap_or(port));
        // Followed by its own ports that are not merged, because the cluster may not or does not
        // export them.
        merged_ports.chain(own.iter().filter(move |port| !is_merged(port)))
    }

    /// Returns the first non-UDP port with this number, as proxies of `cluster` use it.
    pub fn port_in(&self, cluster: &ClusterId, number: u16) -> Option<&Port> {
        let mut ports = self.ports_in(cluster);
        ports.find(|port| port.number == number && port.protocol != Protocol::Udp)
    }

    /// Returns the shard that defines this port for proxies of `cluster`, or `None` if the cluster
    /// itself has the port.
    pub fn vip_source_of_port(&self, cluster: &ClusterId, port: &Port) -> Option<&ShardKey> {
        let has = |ports: &[Port]| ports.iter().any(|one| is_same_number(one, port));
        if has(self.own_ports(cluster)) {
            return None;
        }
        if has(&self.primary.ports) {
            return self.shards.first().map(|shard| &shard.key);
        }
        self.added.iter().find(|(_, one)| is_same_number(one, port)).map(|(key, _)| key)
    }

    /// Returns whether the ports depend on the cluster of the proxy.
    pub fn has_ports_by_cluster(&self) -> bool {
        self.protocols_differ || self.is_cluster_local || !self.refused.is_empty()
    }

    /// Returns whether it has endpoints at addresses that pods of other clusters have, too.
    pub fn shares_addresses(&self) -> bool {
        self.shards.iter().any(|shard| !shard.claimants.is_empty())
    }

    /// Returns the ports of the cluster's own object; empty for services that belong to no cluster.
    fn own_ports(&self, cluster: &ClusterId) -> &[Port] {
        let own = self.by_cluster.get(cluster).filter(|_| !cluster.is_empty());
        own.filter(|own| !matches!(own.resolution, Resolution::Alias(_)))
            .map_or(&[], |own| &own.ports)
    }

    /// Returns whether upstream clusters for `other` would use mTLS equally and accept the same
    /// accounts.
    pub fn same_security(&self, other: &Self) -> bool {
        self.service_accounts == other.service_accounts
            && self.may_accept_mtls == other.may_accept_mtls
    }

    /// Returns the endpoints behind the service port `number`, each with its shard and network.
    pub fn endpoints_of_port(
        &self,
        number: u16,
    ) -> impl Iterator<Item = (&ShardKey, EndpointRef<'_>, &NetworkId)> {
        self.shards_of_port(number).flat_map(|(shard, port)| {
            shard
                .iter()
                .filter(|(one, _)| *one.port_name == port.name)
                .map(|(endpoint, network)| (&shard.key, endpoint, network))
        })
    }

    /// Returns the shards that serve the port `number`, each with its own port of that number,
    /// otherwise of the merged port's name. Endpoints refer to the port by the name that it has in
    /// their own cluster. Under a name of the set, only the number counts: traffic goes only to
    /// clusters that expose exactly that port (KEP-1645).
    pub fn shards_of_port(&self, number: u16) -> impl Iterator<Item = (&ShardEndpoints, &Port)> {
        let merged = self.port(number).filter(|_| !self.hostname().is_of_set());
        self.shards.iter().filter_map(move |shard| {
            let named = |name: &Arc<str>| {
                let mut ports = shard.service.ports.iter();
                ports.find(|port| port.name == *name && port.protocol != Protocol::Udp)
            };
            let own = shard.service.port(number);
            Some((shard, own.or_else(|| named(&merged?.name))?))
        })
    }

    /// Returns whether any shard is visible in `cluster`.
    pub fn is_visible_in(&self, cluster: &ClusterId) -> bool {
        self.shards.iter().any(|shard| shard.key.is_visible_in(cluster))
    }

    /// Returns whether endpoints of `shard` in `network` are outside all networks of the mesh, so
    /// that every proxy reaches them directly. This applies to destinations outside the mesh, and
    /// to endpoints of entries for which no network is named. Only endpoints of clusters can be in
    /// the network with the empty name. (docs/reference/interface.md, "Networks".)
    pub fn is_everywhere(&self, shard: &ShardKey, network: &NetworkId) -> bool {
        let is_external =
            || self.by_cluster.get(&shard.cluster).is_some_and(|own| own.mesh_external);
        network.is_empty() && (shard.cluster.is_empty() || (!shard.is_joined() && is_external()))
    }

    /// Returns every endpoint with its shard and network.
    pub fn endpoints(&self) -> impl Iterator<Item = (&ShardKey, EndpointRef<'_>, &NetworkId)> {
        self.shards.iter().flat_map(|shard| {
            shard.iter().map(|(endpoint, network)| (&shard.key, endpoint, network))
        })
    }
}

impl ShardEndpoints {
    /// Assigns the networks of a shard's endpoints: once per network label, unless the addresses
    /// decide.
    fn new(
        MergedRecord { key, record, system_label, elsewhere, .. }: &MergedRecord<'_>,
        place: &dyn AssignNetwork,
    ) -> Self {
        // An entry is written by an operator, so it is not a claim of a cluster.
        let claims = key.is_claimed().then_some(place);
        let sharing = place.sharing(key, &record.service);
        Self::placed((key, sharing), record, claims, |label, address| {
            let network = elsewhere.and_then(|networks| networks.get(&address));
            let assigned = || place.network_of(&key.cluster, *system_label, label, address);
            match (network, elsewhere) {
                (Some(network), _) => {
                    AssignedEndpoints { network: network.clone(), at_any_address: false }
                }
                (None, Some(_)) => AssignedEndpoints { at_any_address: false, ..assigned() },
                (None, None) => assigned(),
            }
        })
    }

    /// Creates a shard outside the mesh: each endpoint is in the network that it names, or in none.
    /// Such endpoints belong to no cluster, and address ranges apply only inside the mesh.
    fn outside(key: &ShardKey, sharing: SharingDecision, record: &ServiceRecord) -> Self {
        Self::placed((key, sharing), record, None, |label, _| AssignedEndpoints {
            network: label.cloned().unwrap_or_default(),
            at_any_address: true,
        })
    }

    /// See [`MergedService::same_before_ports`].
    fn same_before_ports(&self, other: &Self) -> bool {
        let Self { key, service, sharing, endpoints, reported, networks, bars, claimants, places } =
            self;
        *key == other.key
            && *sharing == other.sharing
            && *endpoints == other.endpoints
            && *reported == other.reported
            && *networks == other.networks
            && *bars == other.bars
            && *claimants == other.claimants
            && *places == other.places
            && service.same_before_ports(&other.service)
    }

    fn placed(
        (key, sharing): (&ShardKey, SharingDecision),
        record: &ServiceRecord,
        claims: Option<&dyn AssignNetwork>,
        place: impl Fn(Option<&NetworkId>, IpAddr) -> AssignedEndpoints,
    ) -> Self {
        let endpoints = &record.endpoints;
        let mut networks: Vec<NetworkId> = Vec::new();
        let mut bars: Vec<Option<Bar>> = Vec::new();
        let mut all_claimants: Vec<Option<Arc<[ClusterId]>>> = Vec::new();
        let mut entered = |network: &NetworkId,
                           strange: bool,
                           claimants: Option<&Arc<[ClusterId]>>| {
            // Search backwards: neighbouring endpoints are usually in the same network.
            let is_same_place = |at: &usize| {
                networks.get(*at) == Some(network)
                    && (bars.get(*at) == Some(&Some(Bar::Address))) == strange
                    && all_claimants.get(*at).and_then(Option::as_ref) == claimants
            };
            let at = (0..networks.len()).rev().find(is_same_place).unwrap_or_else(|| {
                let claimed = |place: &dyn AssignNetwork| place.may_claim(&key.cluster, network);
                bars.push(if strange {
                    Some(Bar::Address)
                } else {
                    claims.filter(|place| !claimed(*place)).map(|_| Bar::Network)
                });
                networks.push(network.clone());
                all_claimants.push(claimants.cloned());
                networks.len() - 1
            });
            u32::try_from(at).unwrap_or(u32::MAX)
        };
        let shared = claims.filter(|place| place.has_claimants());
        let claimants =
            |endpoint: PackedEndpoint<'_>, kind: &EndpointGroup, network: &NetworkId| {
                let place = shared.filter(|_| kind.claims_address(endpoint.health()))?;
                let claimants = place.claimants(network, endpoint.address())?;
                claimants.contains(&key.cluster).then_some(claimants)
            };
        let is_strange = |address| {
            let refused = |place: &dyn AssignNetwork| !place.may_use(&key.cluster, address);
            address != NO_ADDRESS && claims.is_some_and(refused)
        };
        // Computed once per kind if the network does not depend on the address. Kinds are ordered
        // by their first endpoint, and so are networks.
        let any = endpoints.first().map_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED), |one| one.address);
        let by_kind: Vec<AssignedEndpoints> =
            endpoints.kinds().iter().map(|kind| place(kind.network_label.as_ref(), any)).collect();
        let mut places: Vec<u32> = Vec::new();
        if shared.is_none()
            && by_kind.iter().all(|placed| placed.at_any_address)
            && !endpoints.packed().any(|endpoint| is_strange(endpoint.address()))
        {
            let by_kind: Vec<u32> =
                by_kind.iter().map(|placed| entered(&placed.network, false, None)).collect();
            if by_kind.iter().any(|at| *at != 0) {
                let network_of_kind = |kind: usize| by_kind.get(kind).copied().unwrap_or_default();
                places.extend(endpoints.packed().map(|endpoint| network_of_kind(endpoint.kind())));
            }
        } else {
            for endpoint in endpoints.packed() {
                let Some((kind, assigned)) =
                    endpoints.kinds().get(endpoint.kind()).zip(by_kind.get(endpoint.kind()))
                else {
                    continue;
                };
                let address = endpoint.address();
                let strange = is_strange(address);
                let own_network = (!assigned.at_any_address)
                    .then(|| place(kind.network_label.as_ref(), address).network);
                let network = own_network.as_ref().unwrap_or(&assigned.network);
                let claimants = claimants(endpoint, kind, network);
                places.push(entered(network, strange, claimants));
            }
        }
        if networks.len() < 2 {
            places.clear();
        }
        if bars.iter().all(Option::is_none) {
            bars.clear();
        }
        if all_claimants.iter().all(Option::is_none) {
            all_claimants.clear();
        }
        Self {
            key: key.clone(),
            sharing,
            service: Arc::clone(&record.service),
            endpoints: endpoints.clone(),
            reported: None,
            networks: networks.into(),
            bars: bars.into(),
            claimants: all_claimants.into(),
            places: places.into(),
        }
    }

    /// Returns the networks of the endpoints.
    pub fn networks(&self) -> &[NetworkId] {
        &self.networks
    }

    /// Returns why the endpoints in this position of [`Self::networks`] are withheld from all
    /// proxies.
    pub fn bar(&self, place: usize) -> Option<Bar> {
        self.bars.get(place).copied().flatten()
    }

    /// Returns the clusters whose pods have the addresses of the endpoints in this position of
    /// [`Self::networks`], in merging order, or `None` if at most one cluster has them.
    pub fn claimants(&self, place: usize) -> Option<&Arc<[ClusterId]>> {
        self.claimants.get(place).and_then(Option::as_ref)
    }

    /// Returns for each endpoint the pod's address and network, or `None` if it is no pod,
    /// cannot receive traffic, or is barred.
    pub(super) fn claims(
        &self,
    ) -> impl ExactSizeIterator<Item = Option<(IpAddr, &NetworkId)>> + DoubleEndedIterator {
        self.endpoints.packed().enumerate().map(|(index, endpoint)| {
            let place = self.places.get(index).map_or(0, |place| *place as usize);
            let kind = self.endpoints.kinds().get(endpoint.kind())?;
            let is_claimed = kind.claims_address(endpoint.health()) && self.bar(place).is_none();
            is_claimed.then_some((endpoint.address(), self.networks.get(place)?))
        })
    }

    /// Returns each endpoint with its network.
    pub fn iter(&self) -> impl Iterator<Item = (EndpointRef<'_>, &NetworkId)> {
        self.packed().filter_map(|(endpoint, at)| Some((endpoint.unpack(), self.networks.get(at)?)))
    }

    /// Returns each endpoint in packed form, with the network's position in
    /// [`Self::networks`].
    pub fn packed(&self) -> impl Iterator<Item = (PackedEndpoint<'_>, usize)> {
        let place = |index| self.places.get(index).map_or(0, |at| *at as usize);
        self.endpoints.packed().enumerate().map(move |(index, packed)| (packed, place(index)))
    }
}

/// The record of one shard, as input of [`merge`].
pub(super) struct MergedRecord<'a> {
    pub(super) key: &'a ShardKey,
    pub(super) record: &'a ServiceRecord,
    /// The network label of the system namespace of the shard's cluster.
    pub(super) system_label: Option<&'a NetworkId>,
    /// The networks of endpoints that are pods of other clusters, by address.
    pub(super) elsewhere: Option<&'a BTreeMap<IpAddr, NetworkId>>,
    /// Whether a difference from the first shard is a conflict. Under a name of the set, only exports
    /// are compared.
    pub(super) is_compared: bool,
}

pub(super) fn merge<'a>(
    host: &Hostname,
    records: impl Iterator<Item = MergedRecord<'a>>,
    place: &dyn AssignNetwork,
) -> Option<MergedService> {
    let mut merged: Option<MergedService> = None;
    let mut ports = PortUnion::default();
    let mut records: Vec<_> = records
        .filter(|MergedRecord { key, record, .. }| {
            !key.provider.is_of_service_entries() || !place.is_of_foreign_name(&record.service)
        })
        .map(|record| {
            let MergedRecord { key, record: ServiceRecord { service, .. }, .. } = record;
            // An entry is written by an operator, so it is not a claim of a cluster.
            (key.is_claimed() && !place.may_export(&key.cluster, service), record)
        })
        .collect();
    let decides_nothing =
        |(refused, MergedRecord { key, record, .. }): &(bool, MergedRecord<'_>)| {
            *refused || place.sharing(key, &record.service).is_local
        };
    if records.iter().any(decides_nothing) {
        records.sort_by_key(decides_nothing);
    }
    let all_refused = records.iter().all(|(refused, ..)| *refused);
    let mut by_cluster = Vec::new();
    let mut accounts = BTreeSet::new();
    let mut overruled = Vec::new();
    for (refused, merged_record) in records {
        let MergedRecord { key, record, .. } = merged_record;
        let is_compared = merged_record.is_compared && !(refused && host.is_of_set());
        let service = &record.service;
        debug_assert!(host.as_str().starts_with(service.hostname.as_str()));
        let is_in_other_namespace =
            merged.as_ref().is_some_and(|one| one.primary.namespace != service.namespace);
        if is_in_other_namespace {
            ports.lost("namespace", None, &key.cluster);
            overruled.push((key.clone(), record.clone()));
            continue;
        }
        let merged = merged.get_or_insert_with(|| MergedService {
            primary: Arc::clone(service),
            added: Box::default(),
            protocols_differ: false,
            by_cluster: SortedMap::new(),
            service_accounts: Box::default(),
            may_accept_mtls: false,
            accepts_mtls: false,
            conflicts: Vec::new(),
            shards: Vec::new(),
            is_cluster_local: false,
            node_local: false,
            refused: BTreeSet::new(),
            overruled: Vec::new(),
        });
        if refused {
            merged.refused.insert(key.cluster.clone());
        }
        let sharing = place.sharing(key, service);
        merged.is_cluster_local |= sharing.is_local;
        if is_compared {
            for field in differences(&merged.primary, service) {
                ports.lost(field, None, &key.cluster);
            }
        }
        // An entry adds no ports to a service that a cluster has.
        let has_same_provider =
            merged.shards.first().is_none_or(|one| one.key.provider == key.provider);
        let is_for_all = (!refused || all_refused)
            && has_same_provider
            && !sharing.is_local
            && !matches!(service.resolution, Resolution::Alias(_));
        ports.add(key, service, (is_for_all, is_compared));
        by_cluster.push((key.cluster.clone(), Arc::clone(service)));
        let kinds = record.endpoints.kinds().iter();
        merged.may_accept_mtls |= !service.service_accounts.is_empty()
            || kinds.clone().any(EndpointGroup::may_accept_mtls);
        merged.accepts_mtls |= kinds.clone().any(|kind| kind.tls_mode == TlsMode::Istio);
        if !refused || all_refused {
            let endpoint_accounts = kinds.filter_map(|kind| kind.service_account.as_ref());
            accounts.extend(service.service_accounts.iter().chain(endpoint_accounts));
        }
        // A pod is in its cluster's network, whichever object selects it.
        let shard = if service.mesh_external && !key.is_joined() {
            ShardEndpoints::outside(key, sharing, record)
        } else {
            ShardEndpoints::new(&merged_record, place)
        };
        merged.shards.push(shard);
    }
    let mut merged = merged?;
    merged.overruled = overruled;
    // The first of two shards of one cluster takes precedence.
    by_cluster.reverse();
    merged.by_cluster = by_cluster.into_iter().collect();
    merged.node_local = merged.by_cluster.iter().any(|(_, own)| own.node_local);
    merged.service_accounts = accounts.into_iter().cloned().collect();
    merged.shards.shrink_to_fit();
    merged.protocols_differ = ports.protocols_differ;
    merged.added = ports.added();
    merged.conflicts = ports.conflicts();
    Some(merged)
}

fn differences(winner: &Service, other: &Service) -> Vec<&'static str> {
    let mut fields = Vec::new();
    if winner.resolution != other.resolution {
        fields.push("resolution");
    }
    if winner.export_to != other.export_to {
        fields.push("exportTo");
    }
    fields
}
