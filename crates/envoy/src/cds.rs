//! Upstream clusters: one for each port of each service, and a few that every proxy needs.

mod discovery;
mod error_matcher;
mod gateway_ejection;
mod http_options;
mod inbound;
mod policy;
mod remote_pods;
mod tls;

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

pub(super) use self::discovery::uses_eds;
pub(super) use self::gateway_ejection::{GATEWAY_HEADER, GATEWAY_MARK};
use self::http_options::{limited_options, protocol_options};
pub(super) use self::inbound::{inbound_clusters, inbound_name, pool_policy as inbound_policy};
use super::istio_filters::{self, NameReaders, ServiceName};
use super::tls::{Secrets, account_matchers, named};
use super::{any, duration, encode, seconds};
use strait_mesh::aggregate::MergedService;
use strait_mesh::push::PushContext;
use strait_mesh::push::subset::{SubsetFilter, is_known_to_gateways};
use strait_mesh::push::view::{Path, Role, ViewKey, decide, is_exported};
use strait_model::mesh_config::MeshConfig;
use strait_model::{
    ByName, EndpointRef, IstioFilter, Locality, NamedEndpoint, Port, Protocol, Proxy, ProxyType,
    Resolution, TargetPort, TlsMode,
};
use strait_proto::envoy::envoy::config::cluster::v3 as cluster;
use strait_proto::envoy::envoy::config::core::v3 as core;
use strait_proto::envoy::envoy::config::endpoint::v3 as endpoint;
use strait_proto::envoy::google::protobuf::{Struct, UInt32Value, Value, value::Kind};
use strait_rules::traffic::destination_rule::{DestinationRule, RulesForHost};
use strait_rules::traffic::policy::{ClientTls, ResolvedPolicy, ServerName};
use strait_xds::names::OutboundName;
use strait_xds::resource::Resource;

/// Upstream cluster for outbound connections to unknown destinations, if these are allowed.
pub(super) const PASSTHROUGH: &str = "PassthroughCluster";
/// Upstream cluster for outbound connections to destinations that are not allowed.
pub(super) const BLACK_HOLE: &str = "BlackHoleCluster";
/// Upstream cluster for inbound connections to ports that no service has.
pub(super) const INBOUND_PASSTHROUGH: &str = "InboundPassthroughCluster";

/// The metadata namespace and key by which Envoy chooses an endpoint's transport socket.
pub(super) const SOCKET_MATCH: &str = "envoy.transport_socket_match";
/// The key of [`SOCKET_MATCH`] in the metadata of an endpoint.
pub(super) const TLS_MODE: &str = "tlsMode";

/// Source addresses of connections from a sidecar to its own workload. The redirection rules of a
/// sidecar exempt them (Istio's convention).
const INBOUND_SOURCE: [&str; 2] = ["127.0.0.6", "::6"];

/// Maximum number of requests per connection if the connection may go to a gateway. A gateway
/// balances connections, not requests, so the pods behind it share the load in these units. Each
/// connection costs a handshake, which is spread over this many requests.
/// (docs/contributing/decisions/0008-short-connections-across-networks.md)
const REQUESTS_PER_CONNECTION: u32 = 20;

/// The first Envoy version that accepts DNS clusters in the format that replaces deprecated fields
/// (Envoy 1.36; the format exists in part since 1.34).
const DNS_CLUSTER_SINCE: (u32, u32) = (1, 36);

/// The first Envoy version for which the filters of [`gateway_ejection`] were tested.
const MARKED_GATEWAYS_SINCE: (u32, u32) = (1, 36);

/// The format in which a proxy accepts upstream clusters.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct ClusterFormat {
    /// Only routers receive the Secrets that some TLS settings of rules need.
    pub(super) kind: ProxyType,
    pub(super) secrets: Secrets,
    /// Whether the proxy knows `envoy.clusters.dns`, which deprecates `STRICT_DNS` and its fields.
    pub(super) dns_cluster: bool,
    /// Whether the proxy exchanges metadata with servers through an Istio filter.
    pub(super) exchanges: bool,
    /// Whether Istio's filters read the name of the service of a cluster.
    pub(super) names_services: bool,
    /// Whether the proxy reports service metrics.
    pub(super) counts: bool,
    /// Whether outlier detection distinguishes gateways from other endpoints.
    pub(super) marks_gateways: bool,
}

impl ClusterFormat {
    pub(super) fn for_proxy(proxy: &Proxy) -> Self {
        let supports = |since| proxy.envoy_release.is_some_and(|release| release >= since);
        let filters = proxy.istio_filters;
        Self {
            kind: proxy.kind,
            secrets: Secrets::for_proxy(proxy),
            dns_cluster: supports(DNS_CLUSTER_SINCE),
            exchanges: filters.has(IstioFilter::UpstreamMetadataExchange),
            names_services: filters.has_any([
                IstioFilter::HttpStats,
                IstioFilter::TcpStats,
                IstioFilter::PeerMetadata,
            ]),
            counts: proxy.reports_services,
            marks_gateways: supports(MARKED_GATEWAYS_SINCE),
        }
    }

    /// Returns the format without the parts that do not matter, depending on whether names are
    /// resolved and whether gateways of other networks represent endpoints of the service.
    pub(super) fn projected(&self, by_name: bool, has_gateways: bool) -> Self {
        Self {
            dns_cluster: self.dns_cluster && by_name,
            marks_gateways: self.marks_gateways && has_gateways,
            ..self.clone()
        }
    }
}

/// The inputs of the upstream clusters of a service, apart from the service and the mesh.
pub(super) struct ClusterInputs<'a> {
    pub(super) context: &'a PushContext,
    pub(super) view: &'a ViewKey,
    pub(super) form: &'a ClusterFormat,
    /// Whether a cluster of another network has the service, so that gateways may be among its
    /// endpoints. Depends on definitions only: endpoints change often, and replacing an upstream
    /// cluster closes its connections.
    pub(super) abroad: bool,
}

/// A service or a subset of it, at one port.
struct ServicePart<'a> {
    /// The name of the subset; empty for the entire service.
    subset: &'a str,
    /// The name of the subset at gateways of other networks; empty if they do not know a subset of
    /// this name.
    abroad: &'a str,
    filter: SubsetFilter<'a>,
    /// The port, with the protocol that clients use for it.
    port: Port,
    policy: ResolvedPolicy,
}

impl ServicePart<'_> {
    /// Returns the name that the part's upstream cluster has at clients.
    fn name(&self, service: &MergedService) -> OutboundName {
        let all = OutboundName::sidecar(service.hostname().clone(), self.port.number);
        all.of_subset(self.subset)
    }
}

/// Returns the parts of a service that have an upstream cluster for a port: the service and each
/// subset.
fn parts<'r>(
    mesh: &MeshConfig,
    rules: &RulesForHost,
    rule: Option<&'r DestinationRule>,
    service: &MergedService,
    port: &Port,
) -> Vec<ServicePart<'r>> {
    // The upgrade setting of the mesh does not apply to external services. Only a rule of the
    // service can upgrade them.
    let upgrades = mesh.h2_upgrade && !service.primary.mesh_external;
    let names = rule.into_iter().flat_map(|rule| rule.subsets.keys().map(|name| &**name));
    let part = |subset| {
        let policy = rule.map(|rule| rule.resolved(subset, port.number)).unwrap_or_default();
        let policy = policy.or_usual(&mesh.usual_limits);
        let policy = tls::with_entry_names(policy, service);
        let abroad = if is_known_to_gateways(rules, rule, service, subset) { subset } else { "" };
        let filter = SubsetFilter::new(rules, rule, service, subset).unwrap_or_default();
        ServicePart {
            subset,
            abroad,
            filter,
            port: policy::with_client_protocol(port, &policy, upgrades),
            policy,
        }
    };
    std::iter::once("").chain(names).map(part).collect()
}

impl ClusterInputs<'_> {
    /// Returns the upstream clusters of one service: one for each proxied port, and one for each
    /// subset at that port. If clients cannot use the TLS that a rule requires, no cluster is
    /// generated: requests fail instead of leaving in plain text.
    pub(super) fn outbound(&self, service: &MergedService) -> Vec<Resource> {
        if matches!(service.primary.resolution, Resolution::Alias(_)) {
            return Vec::new();
        }
        let rules = self.context.rules_for(service);
        let ports = service.ports_in(&self.view.cluster);
        let proxied = ports.filter(|port| port.protocol != Protocol::Udp);
        let rule = self.view.rule(&rules, service);
        let mesh = &self.context.mesh;
        let parts = proxied.flat_map(|port| parts(mesh, &rules, rule, service, port));
        let is_client = self.view.role == Role::Client;
        let is_usable = |part: &ServicePart<'_>| part.policy.can_be_used_by(self.form.kind);
        let parts = parts.filter(|part| !is_client || is_usable(part));
        let mut clusters: Vec<_> = match self.view.role {
            Role::Gateway if !is_exported(self.context, service) => Vec::new(),
            Role::Gateway => parts.map(|part| self.passthrough(service, &part)).collect(),
            Role::Client => parts.filter_map(|part| self.for_client(service, &part)).collect(),
        };
        clusters.extend(self.for_remote_pods(service));
        clusters
    }

    fn for_client(&self, service: &MergedService, part: &ServicePart<'_>) -> Option<Resource> {
        match &service.primary.resolution {
            resolution if resolution.is_chosen_by_client() => {
                Some(self.original_destination(service, part))
            }
            _ if part.policy.passes_through() => Some(self.original_destination(service, part)),
            Resolution::ByName(by_name) => self.resolved(service, part, by_name),
            _ => Some(self.balanced(service, part)),
        }
    }

    /// Returns a cluster with endpoints from EDS, each reached with mTLS or in plain text. If no
    /// endpoint accepts mTLS or will accept it, plain text is set for the entire cluster. Otherwise
    /// endpoints without their own setting are reached with mTLS: see
    /// [`MergedService::may_accept_mtls`].
    fn balanced(&self, service: &MergedService, part: &ServicePart<'_>) -> Resource {
        let name = part.name(service);
        let uses_mtls = self.uses_auto_mtls() && service.may_accept_mtls;
        self.finished(
            service,
            self.to_any_endpoint(self.eds(name.to_string()), uses_mtls, service, part),
        )
    }

    /// Returns a cluster of endpoints whose names the proxy resolves, and of pods. No gateway
    /// forwards to these endpoints, so endpoints that name another network than the proxy's are
    /// omitted. Returns `None` if no endpoint is left: an empty cluster would wait for names that
    /// never arrive.
    fn resolved(
        &self,
        service: &MergedService,
        part: &ServicePart<'_>,
        by_name: &ByName,
    ) -> Option<Resource> {
        use cluster::cluster::{ClusterDiscoveryType, DiscoveryType};
        let port = &part.port;
        let name = part.name(service);
        let near = by_name.endpoints.iter().filter(|endpoint| {
            let network = endpoint.network.as_ref();
            network.is_none_or(|network| *network == self.view.network)
                && part.filter.contains_named(endpoint)
        });
        // A cluster with a Unix domain socket on the proxy's host resolves no names.
        let on_host = by_name.endpoints.iter().any(NamedEndpoint::is_socket);
        let near =
            near.filter(|one| !on_host || one.is_socket() || one.address.parse::<IpAddr>().is_ok());
        // The name that the entry itself defines for the port.
        let own = service.port(port.number)?;
        let named = near.filter_map(|endpoint| {
            Some((
                &endpoint.locality,
                address(endpoint, *endpoint.ports.get(&own.name)?),
                endpoint.weight,
                endpoint.tls_mode,
            ))
        });
        let pods = service.endpoints_of_port(port.number).filter(|(shard, pod, network)| {
            part.filter.contains(&shard.cluster, network, *pod)
                && decide(self.context, self.view, service, shard, *pod, network)
                    == Ok(Path::Direct)
        });
        let pods = pods.map(|(_, pod, _)| {
            (
                pod.locality,
                socket_address(pod.address.to_string(), pod.port),
                pod.weight,
                pod.tls_mode,
            )
        });
        let most = if by_name.just_then { 1 } else { usize::MAX };
        let members: Vec<_> = named.chain(pods).take(most).collect();
        if members.is_empty() {
            return None;
        }
        // The endpoints are part of the cluster, so a proxy always receives both together.
        let any_takes_it = members.iter().any(|(.., mode)| *mode == TlsMode::Istio);
        let uses_mtls = self.uses_auto_mtls() && any_takes_it;
        let mut localities: BTreeMap<&Locality, Vec<endpoint::LbEndpoint>> = BTreeMap::new();
        // Envoy rejects weights whose sum exceeds 32 bits.
        let room = u32::MAX / u32::try_from(members.len()).unwrap_or(u32::MAX).max(1);
        for (locality, address, weight, mode) in members {
            let in_plain_text = uses_mtls && mode != TlsMode::Istio;
            let member = given_endpoint(address, weight.min(room).max(1), in_plain_text);
            localities.entry(locality).or_default().push(member);
        }
        let groups = localities.into_iter().map(|(locality, members)| {
            let parts = core::Locality {
                region: locality.region.to_string(),
                zone: locality.zone.to_string(),
                sub_zone: locality.subzone.to_string(),
            };
            endpoint::LocalityLbEndpoints {
                locality: (!locality.is_empty()).then_some(parts),
                lb_endpoints: members,
                ..Default::default()
            }
        });
        let assignment = endpoint::ClusterLoadAssignment {
            cluster_name: name.to_string(),
            endpoints: groups.collect(),
            ..Default::default()
        };
        let cluster = cluster::Cluster {
            cluster_discovery_type: Some(ClusterDiscoveryType::Type(DiscoveryType::Static.into())),
            eds_cluster_config: None,
            load_assignment: Some(assignment),
            ..self.eds(name.to_string())
        };
        let cluster = if on_host { cluster } else { self.by_dns(cluster, by_name.just_then) };
        let cluster = self.to_any_endpoint(cluster, uses_mtls, service, part);
        Some(self.finished(service, cluster))
    }

    /// Returns the cluster with DNS resolution of the endpoints' names, in the format that the
    /// proxy supports. Either all addresses of a name become endpoints, or only the address that a
    /// new connection uses (`just_then`).
    fn by_dns(&self, cluster: cluster::Cluster, just_then: bool) -> cluster::Cluster {
        use cluster::cluster::{ClusterDiscoveryType, CustomClusterType};

        use strait_proto::envoy::envoy::extensions::clusters::common::dns::v3::DnsLookupFamily;
        use strait_proto::envoy::envoy::extensions::clusters::dns::v3::DnsCluster;
        if !self.form.dns_cluster {
            return self.by_deprecated_dns(cluster, just_then);
        }
        let family = match (self.view.ipv4, self.view.ipv6) {
            (true, false) => DnsLookupFamily::V4Only,
            (false, true) => DnsLookupFamily::V6Only,
            _ => DnsLookupFamily::All,
        };
        let dns = DnsCluster {
            respect_dns_ttl: true,
            dns_lookup_family: family.into(),
            all_addresses_in_single_endpoint: just_then,
            ..Default::default()
        };
        let kind =
            CustomClusterType { name: "envoy.clusters.dns".into(), typed_config: Some(any(&dns)) };
        let discovery = Some(ClusterDiscoveryType::ClusterType(kind));
        cluster::Cluster { cluster_discovery_type: discovery, ..cluster }
    }

    #[expect(deprecated, reason = "older Envoys, and gRPC, don't know what replaces it")]
    fn by_deprecated_dns(&self, cluster: cluster::Cluster, just_then: bool) -> cluster::Cluster {
        use cluster::cluster::{ClusterDiscoveryType, DiscoveryType, DnsLookupFamily};
        let kind = if just_then { DiscoveryType::LogicalDns } else { DiscoveryType::StrictDns };
        let family = match (self.view.ipv4, self.view.ipv6) {
            (true, false) => DnsLookupFamily::V4Only,
            (false, true) => DnsLookupFamily::V6Only,
            _ => DnsLookupFamily::All,
        };
        cluster::Cluster {
            cluster_discovery_type: Some(ClusterDiscoveryType::Type(kind.into())),
            dns_lookup_family: family.into(),
            respect_dns_ttl: true,
            ..cluster
        }
    }

    /// Returns whether clients use mTLS automatically with endpoints that accept it.
    fn uses_auto_mtls(&self) -> bool {
        self.context.mesh.enable_auto_mtls
    }

    /// Returns the cluster whose endpoints are reached with mTLS if `uses_mtls`, except for
    /// endpoints with another setting.
    ///
    /// Envoy selects the transport socket of a known host again when the metadata of the endpoint
    /// changes, but not when only the metadata of the locality changes. Therefore the setting is
    /// stored in endpoints, never in localities.
    fn to_any_endpoint(
        &self,
        cluster: cluster::Cluster,
        uses_mtls: bool,
        service: &MergedService,
        part: &ServicePart<'_>,
    ) -> cluster::Cluster {
        let ServicePart { port, policy, .. } = part;
        let plain = cluster::cluster::TransportSocketMatch {
            name: "tlsMode-disabled".into(),
            r#match: Some(tls_mode(TlsMode::Disabled)),
            transport_socket: Some(raw_buffer()),
        };
        let requests_max = self.abroad.then_some(REQUESTS_PER_CONNECTION);
        let ejection = policy.outlier_detection.as_deref();
        let ejection = ejection.filter(|_| self.form.marks_gateways);
        let filters = ejection.map(gateway_ejection::filters);
        let options = limited_options(port.protocol, policy, requests_max, filters);
        let mut cluster = cluster::Cluster { typed_extension_protocol_options: options, ..cluster };
        if !self.apply_tls_settings(&mut cluster, service, part) && uses_mtls {
            // Endpoints that match no entry use the socket of the cluster, which is plain text if
            // unset.
            cluster.transport_socket = Some(self.mtls(service, part, &ServerName::default()));
            cluster.transport_socket_matches = vec![plain];
        }
        policy::limit(&mut cluster, policy, self.context.mesh.tcp_keepalive);
        if let (Some(rule), Some(detection)) = (ejection, &mut cluster.outlier_detection) {
            gateway_ejection::count_connect_failures_apart(rule, detection);
        }
        policy::balance(&mut cluster, policy);
        policy::announce_client(&mut cluster, policy, raw_buffer);
        cluster
    }

    /// Applies the TLS setting of the policy to all endpoints, regardless of their metadata.
    /// Returns whether the policy has a TLS setting.
    fn apply_tls_settings(
        &self,
        cluster: &mut cluster::Cluster,
        service: &MergedService,
        part: &ServicePart<'_>,
    ) -> bool {
        let ServicePart { port, policy, .. } = part;
        match policy.tls.as_deref() {
            None => return false,
            // No cluster is generated for `Impossible`.
            Some(ClientTls::Disable | ClientTls::Impossible) => {}
            Some(ClientTls::Mesh(server)) => {
                cluster.transport_socket = Some(self.mtls(service, part, server));
            }
            Some(ClientTls::Foreign(foreign)) => {
                let tls_defaults = &self.context.mesh.tls_defaults;
                tls::use_foreign_tls(cluster, foreign, port.protocol.is_http2(), tls_defaults);
            }
        }
        true
    }

    /// Returns a cluster with endpoints from EDS, to which a gateway forwards encrypted
    /// connections.
    fn passthrough(
        &self,
        service: &MergedService,
        ServicePart { subset, port, policy, .. }: &ServicePart<'_>,
    ) -> Resource {
        let name = OutboundName::sni(service.hostname().clone(), port.number).of_subset(subset);
        let mut cluster = cluster::Cluster {
            // A client sends all its requests over the few connections of a pool, and each
            // connection stays with the endpoint that is selected here. Without round robin, two
            // connections could end at the same endpoint although there are two endpoints.
            lb_policy: cluster::cluster::LbPolicy::RoundRobin.into(),
            lb_config: None,
            outlier_detection: Some(gateway_ejection::of_unreachable_pods()),
            ..self.eds(name.to_string())
        };
        policy::limit(&mut cluster, policy, self.context.mesh.tcp_keepalive);
        self.finished(service, cluster)
    }

    /// Returns a cluster that forwards to the pod selected by the client. An address does not say
    /// whether its pod accepts mTLS, so mTLS is used only if all pods of the first cluster that has
    /// any accept it.
    fn original_destination(&self, service: &MergedService, part: &ServicePart<'_>) -> Resource {
        let name = part.name(service).to_string();
        let ServicePart { port, policy, .. } = part;
        let endpoints = service.endpoints_of_port(port.number);
        let mut direct = endpoints.filter(|(shard, endpoint, network)| {
            decide(self.context, self.view, service, shard, *endpoint, network) == Ok(Path::Direct)
        });
        let takes_mtls = |endpoint: EndpointRef<'_>| endpoint.tls_mode == TlsMode::Istio;
        let resolution = &service.primary.resolution;
        let mtls = if resolution.is_chosen_by_client() {
            direct.next().is_some_and(|(deciding, first, _)| {
                let mut others =
                    direct.take_while(|(shard, _, _)| shard.cluster == deciding.cluster);
                takes_mtls(first) && others.all(|(_, endpoint, _)| takes_mtls(endpoint))
            })
        } else {
            // All endpoints behind the address that the client used.
            let mut all = service.endpoints_of_port(port.number).map(|(_, one, _)| one).peekable();
            all.peek().is_some() && all.all(takes_mtls)
        };
        let target = match port.target {
            TargetPort::Number(target) if *resolution == Resolution::Passthrough => target,
            _ => port.number,
        };
        let overrides_port = cluster::cluster::OriginalDstLbConfig {
            upstream_port_override: Some(UInt32Value { value: target.into() }),
            ..Default::default()
        };
        let mut cluster = cluster::Cluster {
            typed_extension_protocol_options: limited_options(port.protocol, policy, None, None),
            lb_config: (target != port.number)
                .then_some(cluster::cluster::LbConfig::OriginalDstLbConfig(overrides_port)),
            ..original_destination(self.context, name)
        };
        if !self.apply_tls_settings(&mut cluster, service, part) && mtls && self.uses_auto_mtls() {
            cluster.transport_socket = Some(self.mtls(service, part, &ServerName::default()));
        }
        policy::limit(&mut cluster, policy, self.context.mesh.tcp_keepalive);
        policy::announce_client(&mut cluster, policy, raw_buffer);
        self.finished(service, cluster)
    }

    /// Returns the resource of a service's cluster, with the metadata that metrics and Istio's own
    /// filters read.
    fn finished(&self, service: &MergedService, mut cluster: cluster::Cluster) -> Resource {
        if self.form.exchanges && self.view.role == Role::Client {
            cluster.filters.push(istio_filters::upstream_exchange());
        }
        let readers = NameReaders { filters: self.form.names_services, metrics: self.form.counts };
        let named = ServiceName {
            hostname: service.hostname(),
            namespace: &service.primary.namespace,
            is_external: service.primary.mesh_external,
        };
        istio_filters::naming(named, &self.context.settings.domain, readers, cluster)
    }

    fn eds(&self, name: String) -> cluster::Cluster {
        use core::config_source::ConfigSourceSpecifier::Ads;

        use cluster::cluster::{
            ClusterDiscoveryType, DiscoveryType, EdsClusterConfig, LbConfig, LbPolicy,
            LeastRequestLbConfig,
        };
        cluster::Cluster {
            name,
            cluster_discovery_type: Some(ClusterDiscoveryType::Type(DiscoveryType::Eds.into())),
            eds_cluster_config: Some(EdsClusterConfig {
                eds_config: Some(core::ConfigSource {
                    config_source_specifier: Some(Ads(core::AggregatedConfigSource {})),
                    // Envoy waits for the assignment instead of starting without endpoints.
                    initial_fetch_timeout: Some(seconds(0)),
                    resource_api_version: core::ApiVersion::V3.into(),
                    ..Default::default()
                }),
                ..Default::default()
            }),
            lb_policy: LbPolicy::LeastRequest.into(),
            // A gateway represents many endpoints and has as many open requests. If open requests
            // reduced its weight, its network would receive too little traffic (33 % instead of 40
            // %, measured with four concurrent requests). Envoy still compares open requests among
            // hosts of equal weight.
            lb_config: Some(LbConfig::LeastRequestLbConfig(LeastRequestLbConfig {
                active_request_bias: Some(core::RuntimeDouble {
                    default_value: 0.0,
                    runtime_key: "upstream.least_request.active_request_bias".into(),
                }),
                ..Default::default()
            })),
            // All endpoints stay in use whatever their health: the control plane withholds
            // endpoints that are not ready.
            common_lb_config: Some(cluster::cluster::CommonLbConfig {
                healthy_panic_threshold: Some(Default::default()),
                ..Default::default()
            }),
            ..base(self.context)
        }
    }

    /// Returns the transport socket for the mesh's mTLS, with the names in `server` if it has any.
    fn mtls(
        &self,
        service: &MergedService,
        part: &ServicePart<'_>,
        server: &ServerName,
    ) -> core::TransportSocket {
        let port = &part.port;
        let own = || OutboundName::sni(service.hostname().clone(), port.number);
        let sni = match &*server.sni {
            "" => own().of_subset(part.abroad).to_string(),
            sni => sni.to_owned(),
        };
        let exchange = self.form.exchanges.then_some(istio_filters::PEER_EXCHANGE);
        let h2 = port.protocol.is_http2().then_some("h2");
        let alpn: Vec<&str> = exchange.into_iter().chain(["istio"]).chain(h2).collect();
        if !server.subject_alt_names.is_empty() {
            return self.form.secrets.upstream(sni, &alpn, named(&server.subject_alt_names));
        }
        let (accounts, domains) = peers(self.context, service);
        let accounts = accounts.iter().map(|id| &**id);
        self.form.secrets.upstream(sni, &alpn, account_matchers(accounts, &domains))
    }
}

/// Returns the accounts that may serve a service, and the trust domains that are accepted if no
/// account is known.
pub(super) fn peers<'a>(
    context: &'a PushContext,
    service: &'a MergedService,
) -> (BTreeSet<Cow<'a, str>>, BTreeSet<&'a str>) {
    let mesh = &context.mesh;
    // An account is valid under each alias of the account's trust domain.
    let mut accounts: BTreeSet<Cow<'_, str>> = BTreeSet::new();
    for id in &service.service_accounts {
        accounts.insert(Cow::Borrowed(id));
        let Some((domain, path)) =
            id.strip_prefix("spiffe://").and_then(|rest| rest.split_once('/'))
        else {
            continue;
        };
        let others = mesh.same_trust_domains(domain).skip(1);
        accounts.extend(others.map(|other| format!("spiffe://{other}/{path}").into()));
    }
    // The trust domains of the service's clusters; a service without clusters uses the mesh's.
    let clusters = &context.clusters;
    let own = service.by_cluster.iter().filter_map(|(id, _)| clusters.trust_domain(id));
    let mut domains: BTreeSet<&str> =
        own.flat_map(|domain| mesh.same_trust_domains(domain)).collect();
    if domains.is_empty() {
        domains.extend(mesh.same_trust_domains(&mesh.trust_domain));
    }
    (accounts, domains)
}

/// Returns the upstream clusters of a sidecar that belong to no service. `families` states whether
/// the pod has IPv4 and IPv6 addresses.
pub(super) fn fixed(context: &PushContext, families: (bool, bool)) -> Vec<Resource> {
    use cluster::cluster::{ClusterDiscoveryType, DiscoveryType};
    let black_hole = cluster::Cluster {
        name: BLACK_HOLE.into(),
        cluster_discovery_type: Some(ClusterDiscoveryType::Type(DiscoveryType::Static.into())),
        ..base(context)
    };
    let passthrough = cluster::Cluster {
        typed_extension_protocol_options: protocol_options(Protocol::Auto),
        ..original_destination(context, PASSTHROUGH.into())
    };
    let inbound = to_own_workload(context, INBOUND_PASSTHROUGH.into(), families);
    vec![
        encode(BLACK_HOLE, &black_hole),
        encode(PASSTHROUGH, &passthrough),
        encode(INBOUND_PASSTHROUGH, &inbound),
    ]
}

/// Returns a cluster that forwards to the original destination, in the workload itself.
fn to_own_workload(
    context: &PushContext,
    name: String,
    families: (bool, bool),
) -> cluster::Cluster {
    cluster::Cluster {
        typed_extension_protocol_options: protocol_options(Protocol::Auto),
        upstream_bind_config: Some(from_inbound(families)),
        ..original_destination(context, name)
    }
}

/// Returns a source address that redirection exempts. It has the address family of the destination
/// if the pod has an address of that family.
fn from_inbound((ipv4, ipv6): (bool, bool)) -> core::BindConfig {
    let [v4, v6] = INBOUND_SOURCE.map(|address| core::SocketAddress {
        address: address.into(),
        port_specifier: Some(core::socket_address::PortSpecifier::PortValue(0)),
        ..Default::default()
    });
    // Envoy uses the first source address of the destination's family.
    let further = core::ExtraSourceAddress { address: Some(v6.clone()), ..Default::default() };
    core::BindConfig {
        source_address: Some(if ipv4 { v4 } else { v6 }),
        extra_source_addresses: (ipv4 && ipv6).then_some(further).into_iter().collect(),
        ..Default::default()
    }
}

fn original_destination(context: &PushContext, name: String) -> cluster::Cluster {
    use cluster::cluster::{ClusterDiscoveryType, DiscoveryType, LbPolicy};
    cluster::Cluster {
        name,
        cluster_discovery_type: Some(ClusterDiscoveryType::Type(DiscoveryType::OriginalDst.into())),
        lb_policy: LbPolicy::ClusterProvided.into(),
        ..base(context)
    }
}

/// Returns the settings that all upstream clusters share: a connect timeout, and no circuit breaker
/// limits.
fn base(context: &PushContext) -> cluster::Cluster {
    let unlimited = || Some(UInt32Value { value: u32::MAX });
    cluster::Cluster {
        upstream_connection_options: context.mesh.tcp_keepalive.map(policy::connection_options),
        connect_timeout: Some(duration(context.mesh.connect_timeout)),
        circuit_breakers: Some(cluster::CircuitBreakers {
            thresholds: vec![cluster::circuit_breakers::Thresholds {
                max_connections: unlimited(),
                max_pending_requests: unlimited(),
                max_requests: unlimited(),
                max_retries: unlimited(),
                ..Default::default()
            }],
            ..Default::default()
        }),
        ..Default::default()
    }
}

/// Returns the address of an endpoint that is not sent by EDS: a name, an IP address, or a Unix
/// domain socket on the proxy's host, for which the port is ignored.
fn address(endpoint: &NamedEndpoint, port: u16) -> core::Address {
    if !endpoint.is_socket() {
        return socket_address(endpoint.address.to_string(), port);
    }
    let pipe = core::Pipe { path: endpoint.address.to_string(), ..Default::default() };
    core::Address { address: Some(core::address::Address::Pipe(pipe)) }
}

pub(super) fn socket_address(address: String, port: u16) -> core::Address {
    let socket = core::SocketAddress {
        address,
        port_specifier: Some(core::socket_address::PortSpecifier::PortValue(port.into())),
        ..Default::default()
    };
    core::Address { address: Some(core::address::Address::SocketAddress(socket)) }
}

/// Returns an endpoint that is embedded in the upstream cluster. If `in_plain_text`, its metadata
/// disables mTLS.
fn given_endpoint(
    address: core::Address,
    weight: u32,
    in_plain_text: bool,
) -> endpoint::LbEndpoint {
    let host = endpoint::Endpoint { address: Some(address), ..Default::default() };
    let metadata = core::Metadata {
        filter_metadata: [(SOCKET_MATCH.into(), tls_mode(TlsMode::Disabled))].into(),
        ..Default::default()
    };
    endpoint::LbEndpoint {
        host_identifier: Some(endpoint::lb_endpoint::HostIdentifier::Endpoint(host)),
        metadata: in_plain_text.then_some(metadata),
        load_balancing_weight: (weight != 1).then_some(UInt32Value { value: weight }),
        ..Default::default()
    }
}

/// Returns the assignment of the upstream cluster `name` with a single endpoint, which is embedded.
pub(super) fn single_endpoint(
    name: &str,
    address: core::Address,
) -> endpoint::ClusterLoadAssignment {
    let lb_endpoints = vec![given_endpoint(address, 1, false)];
    endpoint::ClusterLoadAssignment {
        cluster_name: name.into(),
        endpoints: vec![endpoint::LocalityLbEndpoints { lb_endpoints, ..Default::default() }],
        ..Default::default()
    }
}

/// Returns the endpoint metadata that selects the transport socket.
pub(super) fn tls_mode(mode: TlsMode) -> Struct {
    let value = Value { kind: Some(Kind::StringValue(mode.as_str().into())) };
    Struct { fields: [(TLS_MODE.into(), value)].into_iter().collect() }
}

fn raw_buffer() -> core::TransportSocket {
    use strait_proto::envoy::envoy::extensions::transport_sockets::raw_buffer::v3::RawBuffer;
    core::TransportSocket {
        name: "envoy.transport_sockets.raw_buffer".into(),
        config_type: Some(core::transport_socket::ConfigType::TypedConfig(any(&RawBuffer {}))),
    }
}
