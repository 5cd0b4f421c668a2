//! Responses of `/debug/*`: parts of the snapshot as JSON, in a stable order.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::SystemTime;

use ipnet::IpNet;

use super::imports;
use super::sharing;
use strait_admin_api as api;
use strait_base::codes;
use strait_base::time::rfc3339;
use strait_explain::code;
use strait_identity::{
    Authority, CertificateProblem, MemberAuthority, RootRecord, RootStanding, RootStep,
    ServerIdentity,
};
use strait_mesh::aggregate::{Conflict, MergedService};
use strait_mesh::network::PendingCause;
use strait_mesh::push::addresses::{DroppedAddress, addresses};
use strait_mesh::push::view::{ViewKey, decide, is_by_node};
use strait_mesh::push::{PushContext, Whereabouts};
use strait_model::mesh_config::SourceProblem;
use strait_model::registry::ShardKey;
use strait_model::{
    CLUSTERSET, ClusterId, Distribution, EndpointRef, Health, Hostname, IgnoredClaim, Mode,
    Namespace, NetworkId, Port, Resolution, SameAddress, SharedServices, WorkloadKey,
};
use strait_relay::hub::RelayRow;
use strait_rules::traffic::Selection;
use strait_sources::clusters::status::ClusterStatus;

/// Renders a connection of a relay.
pub(super) fn relay(row: RelayRow) -> api::RelayRow {
    let RelayRow { cluster, instance, version, since, active, remote, forms, streams } = row;
    api::RelayRow { cluster, instance, version, since, active, remote, forms, streams }
}

/// Adds the exports and imports of a service of Kubernetes under its own name or its name in the
/// cluster set.
pub(super) fn add_sharing(
    service: &mut api::Service,
    domain: &str,
    shared: &SharedServices,
    clusters: &[ClusterStatus],
) {
    let Some((name, rest)) = service.hostname.split_once('.') else { return };
    let namespace = service.namespace.as_str();
    let key = WorkloadKey::new(namespace, name);
    let is_own = |domain| {
        service.hostname == Hostname::of_kubernetes_service(name, namespace, domain).as_str()
    };
    if !rest.is_empty() && (is_own(domain) || is_own(CLUSTERSET)) {
        service.exports = imports::exports(shared, clusters, &key);
        service.imports = imports::imports(clusters, &key);
    }
}

/// Returns all services, or the one with this host name.
pub(super) fn services(context: &PushContext, hostname: Option<&str>) -> Vec<api::Service> {
    let dropped = dropped_addresses(context);
    let mut all: Vec<_> = context
        .all_services()
        .filter(|service| hostname.is_none_or(|wanted| service.hostname().as_str() == wanted))
        .collect();
    // Definitions that are private to a namespace follow the public one.
    all.sort_by_key(|service| service.hostname());
    let view = |service: &Arc<MergedService>| {
        let sharing = sharing::of_service(context, service);
        api::Service { sharing, ..service_view(service, &dropped) }
    };
    all.into_iter().map(view).collect()
}

fn service_view(service: &MergedService, dropped: &[DroppedAddress]) -> api::Service {
    let (primary, hostname) = (&service.primary, service.hostname());
    let mut conflicts: Vec<_> = service.conflicts.iter().map(conflict).collect();
    // A borrowed VIP is dropped at a port if it also belongs to another service of the borrowing
    // cluster, or of a cluster that takes precedence as a lender.
    let mut holders: BTreeMap<&ClusterId, BTreeSet<&ClusterId>> = BTreeMap::new();
    for address in dropped.iter().filter(|one| one.hostname == *hostname) {
        holders.entry(&address.holder_cluster).or_default().insert(&address.vip_source);
    }
    conflicts.extend(holders.into_iter().map(|(of, vip_sources)| api::ServiceConflict {
        field: "clusterVIPs".to_owned(),
        winner: of.to_string(),
        losers: texts(vip_sources),
    }));
    let port = |port: &Port| api::ServicePort {
        name: port.name.to_string(),
        port: port.number,
        protocol: port.protocol.as_str().to_owned(),
    };
    let prefers = Some(primary.prefers).filter(|prefers| *prefers != Distribution::Any);
    let external = service.external_addresses();
    api::Service {
        hostname: hostname.to_string(),
        namespace: primary.namespace.to_string(),
        resolution: match &primary.resolution {
            Resolution::Alias(target) => format!("Alias {target}"),
            other => other.as_str().to_owned(),
        },
        ports: service.ports().map(port).collect(),
        cluster_vips: service.vips().map(|(of, vips)| (of.to_string(), texts(vips))).collect(),
        address_ranges: texts(primary.ranges.iter()),
        traffic_distribution: prefers.map(|prefers| prefers.as_str().to_owned()),
        external_addresses: external.map(|(of, all)| (of.to_string(), texts(all))).collect(),
        service_accounts: texts(&service.service_accounts),
        clusters: texts(service.by_cluster.keys().filter(|cluster| !cluster.is_empty())),
        conflicts,
        sharing: Vec::new(),
        exports: Vec::new(),
        imports: Vec::new(),
    }
}

fn conflict(conflict: &Conflict) -> api::ServiceConflict {
    api::ServiceConflict {
        field: conflict.field.to_owned(),
        winner: conflict.winner.to_string(),
        losers: texts(&conflict.losers),
    }
}

/// Formats each item as text.
fn texts<T: ToString>(items: impl IntoIterator<Item = T>) -> Vec<String> {
    items.into_iter().map(|item| item.to_string()).collect()
}

/// Returns borrowed VIPs that collide, for proxies of all clusters.
fn dropped_addresses(context: &PushContext) -> Vec<DroppedAddress> {
    let clusters: BTreeSet<&ClusterId> = context.network_labels.keys().collect();
    let (namespace, selection) = (Namespace::default(), Selection::default());
    let no_client = (&namespace, &selection);
    let mut dropped = Vec::new();
    for cluster in clusters {
        dropped.extend(addresses(context, cluster, no_client, (true, true)).dropped);
    }
    dropped
}

/// Returns the endpoints of one host name: of the public definition, then of definitions that are
/// private to a namespace. Endpoints that proxies find by name come last.
pub(super) fn endpoints(context: &PushContext, hostname: &Hostname) -> Vec<api::ServiceEndpoint> {
    let definitions = context.all_services().filter(|service| service.hostname() == hostname);
    definitions.flat_map(|service| [sent(context, service), by_name(service)].concat()).collect()
}

/// Returns the endpoints that the control plane sends.
fn sent(context: &PushContext, service: &MergedService) -> Vec<api::ServiceEndpoint> {
    // As proxies see it: a drained cluster has no healthy endpoints.
    let is_drained = |cluster: &ClusterId| {
        context.clusters.clusters.get(cluster).is_some_and(|known| known.mode == Mode::Drain)
    };
    let health = |cluster: &ClusterId, health: Health| match health {
        Health::Healthy if is_drained(cluster) => Health::Draining,
        health => health,
    };
    let numbers = service_ports(service);
    service
        .endpoints()
        .map(|(shard, endpoint, network)| api::ServiceEndpoint {
            address: endpoint.address.to_string(),
            port: endpoint.port,
            port_name: endpoint.port_name.to_string(),
            service_ports: numbers.get(&(shard, &**endpoint.port_name)).cloned(),
            cluster: shard.cluster.to_string(),
            network: network.to_string(),
            locality: endpoint.locality.to_string(),
            health: health(&shard.cluster, endpoint.health).as_str().into(),
            weight: endpoint.weight,
            service_account: endpoint.service_account.map(ToString::to_string),
            tls_mode: endpoint.tls_mode.as_str().to_owned(),
            workload: endpoint.workload.as_ref().map(|pod| pod.to_string()),
            provider: shard.provider.as_str().to_owned(),
            withdrawn: withdrawn(context, &shard.cluster),
        })
        .collect()
}

/// Returns why the endpoints of a cluster are withdrawn, if it has been unreachable for too long.
fn withdrawn(context: &PushContext, cluster: &ClusterId) -> Option<String> {
    let known = context.clusters.clusters.get(cluster)?;
    known.withdrawn.as_ref().map(ToString::to_string)
}

/// Returns the service ports that route to each named port of a shard; clusters may name a port
/// differently.
fn service_ports(service: &MergedService) -> BTreeMap<(&ShardKey, &str), BTreeSet<u16>> {
    let mut numbers: BTreeMap<_, BTreeSet<u16>> = BTreeMap::new();
    for port in service.ports() {
        for (shard, own) in service.shards_of_port(port.number) {
            numbers.entry((&shard.key, &*own.name)).or_default().insert(port.number);
        }
    }
    numbers
}

/// Returns the endpoints that proxies find by name, for each port. Only ready ones are known.
fn by_name(service: &MergedService) -> Vec<api::ServiceEndpoint> {
    let mut rows = Vec::new();
    let numbers = service_ports(service);
    for shard in &service.shards {
        let Resolution::ByName(by_name) = &shard.service.resolution else { continue };
        for endpoint in &by_name.endpoints {
            rows.extend(endpoint.ports.iter().map(|(port_name, port)| api::ServiceEndpoint {
                address: endpoint.address.to_string(),
                port: *port,
                port_name: port_name.to_string(),
                service_ports: numbers.get(&(&shard.key, &**port_name)).cloned(),
                cluster: shard.key.cluster.to_string(),
                network: endpoint.network.clone().unwrap_or_default().to_string(),
                locality: endpoint.locality.to_string(),
                health: api::EndpointHealth::Healthy,
                weight: endpoint.weight,
                service_account: None,
                tls_mode: endpoint.tls_mode.as_str().to_owned(),
                workload: None,
                provider: shard.key.provider.as_str().to_owned(),
                // These endpoints belong to no cluster.
                withdrawn: None,
            }));
        }
    }
    rows
}

/// Returns the parts of the mesh config and the mesh networks that are not active.
pub(super) fn mesh_problems(problems: &[SourceProblem]) -> Vec<api::Problem> {
    let problem =
        |one: &SourceProblem| api::Problem { code: one.code.to_owned(), text: one.text.clone() };
    problems.iter().map(problem).collect()
}

/// Returns the clusters that mesh networks name and that are not members.
pub(super) fn unknown_registries(context: &PushContext) -> Vec<api::UnknownCluster> {
    let aliases = &context.settings.cluster_aliases;
    let is_read = |cluster: &ClusterId| {
        let has_shard = |service: &Arc<MergedService>| {
            service.shards.iter().any(|shard| shard.key.cluster == *cluster)
        };
        cluster.is_datacentre() && context.services.values().any(has_shard)
    };
    let is_unknown = |cluster: &ClusterId| {
        !context.clusters.contains(cluster) && !aliases.contains_key(cluster) && !is_read(cluster)
    };
    let named = context.mesh_networks.iter().flat_map(|(network, config)| {
        config.registries.iter().map(move |cluster| (network, cluster))
    });
    let unknown = named.filter(|(_, cluster)| is_unknown(cluster));
    let row = |(network, cluster): (&NetworkId, &ClusterId)| api::UnknownCluster {
        cluster: cluster.to_string(),
        rule: format!("meshNetworks {network}: fromRegistry"),
    };
    unknown.map(row).collect()
}

/// Returns the serving certificate, the CA, and why a newer certificate is not active.
pub(super) fn certificates(identity: &ServerIdentity) -> api::CertificateStatus {
    let now = SystemTime::now();
    let authority = identity.authority.as_ref();
    api::CertificateStatus {
        serving: api::ServingCertificate {
            expires: rfc3339(identity.serving_not_after),
            ends_soon: identity.serving_ends_soon(now),
        },
        authority: authority.map(|authority| api::Authority {
            expires: rfc3339(authority.not_after()),
            ends_soon: authority.ends_soon(now),
            roots: leading(authority),
        }),
        members: identity.members.iter().map(|one| member_authority(one, now)).collect(),
        problem: identity.problem.as_ref().map(problem),
        rotation: rotation(identity, now),
    }
}

/// Returns the CA of one member.
fn member_authority(
    (member, own): (&ClusterId, &MemberAuthority),
    now: SystemTime,
) -> api::MemberAuthority {
    let authority = own.authority.as_ref();
    api::MemberAuthority {
        member: member.to_string(),
        directory: own.directory.display().to_string(),
        expires: authority.map(|authority| rfc3339(authority.not_after())),
        ends_soon: authority.is_some_and(|authority| authority.ends_soon(now)),
        roots: authority.map(|authority| leading(authority)).unwrap_or_default(),
        issued: own.issued.load(Ordering::Relaxed),
        problem: own.problem.as_ref().map(problem),
    }
}

/// Returns the roots that the CA's certificates chain to.
fn leading(authority: &Authority) -> Vec<String> {
    texts(authority.leading())
}

fn problem(problem: &CertificateProblem) -> api::CertificateProblem {
    api::CertificateProblem {
        code: problem.code.to_owned(),
        message: problem.message.clone(),
        since: rfc3339(problem.since),
    }
}

/// Returns the roots of the CA and the progress of a root's replacement.
fn rotation(identity: &ServerIdentity, now: SystemTime) -> api::RootRotation {
    let standings = identity.root_standings(now);
    let root = |root: &RootStanding| {
        let record = root.record.as_ref();
        let lacks = root.lacks.iter();
        let lacks =
            lacks.map(|lack| api::RootLack { who: lack.part.clone(), fact: lack.fact.clone() });
        api::AuthorityRoot {
            fingerprint: root.fingerprint.to_string(),
            subject: root.life.subject.clone(),
            ends: rfc3339(root.life.ends),
            step: root.step.as_str().to_owned(),
            since: record.map(|record| rfc3339(record.since())),
            last_certificate_ends: record.and_then(RootRecord::last_ends).map(rfc3339),
            assumed: record.is_some_and(|record| record.assumed),
            lacks: lacks.collect(),
        }
    };
    // A root that is fully distributed and never signs, such as another mesh's, must not hide a
    // rotation in progress.
    let order =
        [RootStep::Distribute, RootStep::Kept, RootStep::Wait, RootStep::Withdraw, RootStep::Sign];
    let next = order.iter().find_map(|step| standings.iter().find(|root| root.step == *step));
    let (phase, next) = match (next, behind(identity)) {
        (None | Some(RootStanding { step: RootStep::Sign, .. }), Some(fact)) => {
            (RootStep::Sign.phase(), Some(fact))
        }
        (next, _) => (next.and_then(|root| root.step.phase()), next.map(next_step)),
    };
    api::RootRotation {
        phase: phase.map(|(_, name)| name.into()),
        number: phase.map(|(number, _)| number),
        next,
        roots: standings.iter().map(root).collect(),
    }
}

/// Returns the next step for members' CAs that chain to other roots than the mesh's CA.
fn behind(identity: &ServerIdentity) -> Option<String> {
    let mesh = identity.authority.as_ref()?;
    let is_behind = |own: &MemberAuthority| {
        let below = own.authority.as_ref().map(|authority| authority.leading());
        below.is_some_and(|below| !below.iter().any(|root| mesh.leading().contains(root)))
    };
    let behind = identity.members.iter().filter(|(_, own)| is_behind(own));
    let behind: Vec<&str> = behind.map(|(member, _)| member.as_str()).collect();
    let root = mesh.leading().first().filter(|_| !behind.is_empty())?;
    let members = behind.join(", ");
    Some(format!(
        "before the other root is removed, give the dedicated CAs of these members an intermediate below root {root}: {members}"
    ))
}

/// Returns the next step for a root.
fn next_step(root: &RootStanding) -> String {
    let fingerprint = &root.fingerprint;
    let ends = root.record.as_ref().and_then(RootRecord::last_ends).map(rfc3339);
    let ends = ends.unwrap_or_default();
    match root.step {
        RootStep::Distribute => format!(
            "make sure that all have root {fingerprint}, then let it sign; replacing the key confirms the parts that only you can judge"
        ),
        RootStep::Sign => format!(
            "let root {fingerprint} sign: replace ca-cert.pem, ca-key.pem and cert-chain.pem (or tls.crt and tls.key)"
        ),
        RootStep::Wait => format!("wait until {ends}, then remove root {fingerprint}"),
        RootStep::Kept => format!("nothing: root {fingerprint} is removed automatically at {ends}"),
        RootStep::Withdraw => format!("remove root {fingerprint} from root-cert.pem (or ca.crt)"),
        RootStep::Signs => String::new(),
    }
}

/// Returns every network with clusters, endpoints or gateways, including gateways that can't be
/// dialled yet.
pub(super) fn networks(context: &PushContext) -> Vec<api::Network> {
    let mut clusters: BTreeMap<NetworkId, BTreeSet<&ClusterId>> = BTreeMap::new();
    for cluster in context.network_labels.keys() {
        clusters.entry(context.network_of_cluster(cluster)).or_default().insert(cluster);
    }
    let shards = context.services.values().flat_map(|service| &service.shards);
    for (cluster, network) in shards
        .flat_map(|shard| shard.networks().iter().map(|network| (&shard.key.cluster, network)))
    {
        if cluster.is_empty() {
            // A ServiceEntry: in the network that it names, or in none.
            if !network.is_empty() {
                clusters.entry(network.clone()).or_default();
            }
        } else if !clusters.get(network).is_some_and(|known| known.contains(cluster)) {
            clusters.entry(network.clone()).or_default().insert(cluster);
        }
    }
    let mut gateways: BTreeMap<NetworkId, Vec<api::NetworkGateway>> = BTreeMap::new();
    for gateway in context.networks.iter() {
        clusters.entry(gateway.network.clone()).or_default();
        gateways.entry(gateway.network.clone()).or_default().push(api::NetworkGateway {
            address: gateway.address.to_string(),
            port: gateway.port,
            hbone_port: gateway.hbone_port,
            cluster: gateway.cluster.clone().unwrap_or_default().to_string(),
            source: gateway.source.to_string(),
            hostname: gateway.hostname.as_deref().map(str::to_owned),
            dead: gateway.dead,
            ttl_seconds: gateway.ttl.map(|ttl| ttl.as_secs()),
        });
    }
    let mut pending: BTreeMap<&NetworkId, Vec<api::PendingGateway>> = BTreeMap::new();
    for gateway in context.networks.pending() {
        clusters.entry(gateway.network.clone()).or_default();
        let code = match gateway.cause {
            PendingCause::Unserved => codes::GATEWAY_UNSERVED.id,
            PendingCause::Unresolved => codes::GATEWAY_NAME.id,
            PendingCause::NoAddress => codes::GATEWAY_PENDING.id,
        };
        pending.entry(&gateway.network).or_default().push(api::PendingGateway {
            cluster: gateway.cluster.clone().unwrap_or_default().to_string(),
            source: gateway.source.to_string(),
            code: Some(code.to_owned()),
            reason: gateway.reason.clone(),
        });
    }
    let networks = clusters.into_iter().map(|(network, clusters)| api::Network {
        clusters: texts(clusters),
        gateways: gateways.remove(&network).unwrap_or_default(),
        pending: pending.remove(&network).unwrap_or_default(),
        network: network.to_string(),
    });
    networks.collect()
}

/// Returns the network claims of `cluster`, or of a part of it, that are ignored: because the
/// policy refuses them, or because the cluster's Secret defines another network.
pub(super) fn ignored_claims(context: &PushContext, cluster: &ClusterId) -> Vec<IgnoredClaim> {
    let all = context.networks.ignored_claims().iter();
    let mut claims: Vec<_> =
        all.filter(|(of, _)| of == cluster).map(|(_, claim)| claim.clone()).collect();
    let Some(fixed) = context.clusters.fixed_network(cluster) else { return claims };
    let mut count = |what: &str, networks: &mut dyn Iterator<Item = &NetworkId>| {
        let mut counts: BTreeMap<&NetworkId, usize> = BTreeMap::new();
        for network in networks.filter(|network| *network != fixed) {
            *counts.entry(network).or_default() += 1;
        }
        claims.extend(counts.into_iter().map(|(network, count)| IgnoredClaim {
            claim: format!("{what} ({count})"),
            network: network.clone(),
        }));
    };
    let pods = context.workloads.get(cluster).into_iter().flat_map(|pods| pods.iter());
    let mut labels = pods.filter_map(|(_, pod)| pod.network_label.as_ref());
    count("label topology.istio.io/network of pods", &mut labels);
    let endpoints = context.services.values().flat_map(|service| service.endpoints());
    let addresses = endpoints.filter(|(shard, _, _)| shard.cluster == *cluster);
    let mut ranges =
        addresses.filter_map(|(_, one, _)| context.mesh_networks.network_by_address(one.address));
    count("meshNetworks fromCidr, for addresses", &mut ranges);
    claims
}

/// Maximum number of reported address ranges per cluster.
const RANGES_SHOWN: usize = 64;

/// Returns the pod addresses of each cluster in `network`: their number, the ranges that contain
/// them, and the addresses in `requested` that exist.
pub(super) fn addresses_in(
    context: &PushContext,
    network: &NetworkId,
    requested: &BTreeSet<IpAddr>,
) -> Vec<api::ClusterAddresses> {
    let mut taken: BTreeMap<&ClusterId, BTreeSet<IpAddr>> = BTreeMap::new();
    for service in context.services.values() {
        for (shard, endpoint, of) in service.endpoints() {
            let is_pod = shard.provider.is_cluster() && endpoint.claims_address();
            if is_pod && of == network {
                taken.entry(&shard.cluster).or_default().insert(endpoint.address);
            }
        }
    }
    let rows = taken.into_iter().map(|(cluster, addresses)| api::ClusterAddresses {
        cluster: cluster.to_string(),
        addresses: addresses.len(),
        ranges: texts(ranges(&addresses)),
        same: texts(requested.intersection(&addresses)),
    });
    rows.collect()
}

/// Returns ranges that contain all addresses: mostly as small as the ranges of nodes, and wider if
/// there would be too many.
fn ranges(addresses: &BTreeSet<IpAddr>) -> Vec<IpNet> {
    let mut shorter = 0;
    loop {
        let range = |address: &IpAddr| {
            let bits: u8 = if address.is_ipv4() { 24 } else { 64 };
            IpNet::new(*address, bits.saturating_sub(shorter)).ok().map(|range| range.trunc())
        };
        let ranges: BTreeSet<IpNet> = addresses.iter().filter_map(range).collect();
        let ranges = IpNet::aggregate(&ranges.into_iter().collect());
        if ranges.len() <= RANGES_SHOWN || shorter >= 64 {
            return ranges;
        }
        shorter += 2;
    }
}

/// Addresses that the pods of two clusters have in common.
#[derive(Default)]
struct SharedAddresses {
    addresses: usize,
    first: Option<IpAddr>,
}

/// Returns for each cluster the other clusters whose pods have the same addresses in the same
/// network. Each row is one such cluster and network, with the cluster whose pods proxies of all
/// other clusters receive.
pub(super) fn same_addresses(context: &PushContext) -> BTreeMap<&ClusterId, Vec<SameAddress>> {
    let mut shared: BTreeMap<_, SharedAddresses> = BTreeMap::new();
    for (network, address, claimants) in context.same_addresses.iter() {
        for cluster in claimants.iter() {
            for other in claimants.iter().filter(|other| *other != cluster) {
                let row = shared.entry((cluster, network, other, claimants.first())).or_default();
                row.addresses += 1;
                row.first.get_or_insert(address);
            }
        }
    }
    let mut rows: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for ((cluster, network, other, holder), SharedAddresses { addresses, first }) in shared {
        let (Some(holder), Some(first)) = (holder.cloned(), first) else { continue };
        let (network, other) = (network.clone(), other.clone());
        let row = SameAddress { network, cluster: other, addresses, first, holder };
        rows.entry(cluster).or_default().push(row);
    }
    rows
}

/// Number of a cluster's endpoints that are withheld for the reason with this code.
pub(super) type WithheldCount = (ClusterId, &'static str, usize);

/// The views of clients, without the parts that don't affect decisions about networks, so that
/// there are few.
pub(super) struct Clients {
    /// Views for services whose endpoints depend on the node.
    by_node: BTreeSet<ViewKey>,
    /// Views for all other services.
    anywhere: BTreeSet<ViewKey>,
}

impl Clients {
    pub(super) fn of(views: &BTreeSet<ViewKey>) -> Self {
        let whereabouts =
            |node: &Option<Arc<str>>| Whereabouts { node: node.clone(), locality: None };
        let without = |view: &ViewKey, node| {
            view.clone().at(whereabouts(node)).selected(Selection::default())
        };
        Self {
            by_node: views.iter().map(|view| without(view, &view.node)).collect(),
            anywhere: views.iter().map(|view| without(view, &None)).collect(),
        }
    }

    /// Returns for each cluster how many of a service's ready endpoints at least one client can't
    /// receive ([`WithheldReason::is_counted`]), by the code of the first such client's reason.
    pub(super) fn withheld(
        &self,
        context: &PushContext,
        service: &MergedService,
    ) -> Vec<WithheldCount> {
        // Clients do not request gateways of networks as a service. The other system services are
        // cluster-local.
        if service.primary.has_network_label() {
            return Vec::new();
        }
        // Views with the same result and equal endpoints are examined once.
        let by_node = is_by_node(service);
        let views = if by_node { &self.by_node } else { &self.anywhere };
        let views: BTreeSet<_> =
            views.iter().map(|view| view.projected(context, service)).collect();
        let mut counts: Vec<WithheldCount> = Vec::new();
        let mut known = Vec::new();
        for (shard, endpoint, network) in service.endpoints() {
            let EndpointRef { health, pod, tls_mode, address, node, .. } = endpoint;
            let node = node.filter(|_| by_node);
            let bar = context.bar(shard, network, address);
            let claimants = context.claimants(shard, network, endpoint);
            let facts = (health, pod, tls_mode, address.is_ipv4(), node, bar, claimants);
            let key = (shard, network, facts);
            // From the latest, because neighbours are often equal.
            let reason = match known.iter().rev().find(|(one, _)| *one == key) {
                Some((_, reason)) => *reason,
                None => {
                    let reason = views.iter().find_map(|view| {
                        let decided = decide(context, view, service, shard, endpoint, network);
                        decided.err().filter(|reason| reason.is_counted())
                    });
                    known.push((key, reason));
                    reason
                }
            };
            let Some(reason) = reason.map(code) else { continue };
            let of_it = |(cluster, code, _): &&mut WithheldCount| {
                *cluster == shard.cluster && *code == reason
            };
            match counts.iter_mut().find(of_it) {
                Some((_, _, count)) => *count += 1,
                None => counts.push((shard.cluster.clone(), reason, 1)),
            }
        }
        counts
    }
}
