//! Filter chains for connections to pods of headless services in other networks. A client's chain
//! writes the pod's virtual address into the server name (SNI), and a gateway's chain selects the
//! pod's upstream cluster by it.
//! (docs/contributing/decisions/0065-headless-services-across-networks.md)

use ipnet::IpNet;

use super::TrafficSettings;
use super::parts::{
    Families, Http, chain, found, http, network_filter, number, range_chain, request_chains, tcp,
};
use super::settings::MESH_ALPN;
use crate::cds::BLACK_HOLE;
use crate::rds::remote_pod_routes;
use strait_mesh::aggregate::MergedService;
use strait_mesh::push::PushContext;
use strait_model::{ClusterId, Hostname, NetworkId, Port, Protocol};
use strait_proto::envoy::envoy::config::core::v3 as core;
use strait_proto::envoy::envoy::config::listener::v3 as listener;
use strait_proto::envoy::envoy::extensions::filters::common::set_filter_state::v3 as filter_state;
use strait_proto::envoy::envoy::extensions::filters::network::http_connection_manager::v3::{
    HttpConnectionManager, http_connection_manager,
};
use strait_proto::envoy::envoy::extensions::filters::network::set_filter_state::v3 as set_filter_state;
use strait_proto::envoy::envoy::extensions::filters::network::sni_cluster::v3::SniCluster;
use strait_xds::names::{OutboundName, RemotePodsName};

/// The filter state from which Envoy takes the SNI of an upstream connection.
const SERVER_NAME: &str = "envoy.network.upstream_server_name";

/// Returns the part of the SNI that follows the virtual address of a pod.
pub(crate) fn pod_server_name(cluster: &ClusterId, host: &Hostname, port: u16) -> String {
    format!("{cluster}.{}", OutboundName::sni(host.clone(), port))
}

/// Returns the chains of a client for the pods of a service in networks other than `network`.
/// Without a `destination_port`, they are for the listener of the port, which detects HTTP if the
/// port declares it. With one, they are for another listener and match only connections to that
/// port.
pub(super) fn client_chains(
    context: &PushContext,
    settings: &TrafficSettings,
    (network, families): (&NetworkId, Families),
    (service, port): (&MergedService, &Port),
    destination_port: Option<u16>,
) -> Vec<listener::FilterChain> {
    let host = service.hostname();
    let Some(pods) = context.remote_pods.of(host) else { return Vec::new() };
    let chains = pods.outside(network).flat_map(|(cluster, pods)| {
        let naming = naming_pod(&pod_server_name(cluster, host, port.number));
        let (hostname, cluster) = (host.clone(), cluster.clone());
        let upstream = RemotePodsName { hostname, port: port.number, cluster }.to_string();
        let forward = tcp(settings, &upstream);
        let is_detected = destination_port.is_none() && port.protocol.is_http();
        let requests = is_detected.then(|| http(&manager(context, settings, port, &upstream)));
        let in_range = |range: IpNet, naming: Option<&listener::Filter>| {
            let mut chains = match &requests {
                Some(requests) => request_chains(range, &forward, requests).to_vec(),
                None => vec![range_chain(range, forward.clone())],
            };
            for chain in &mut chains {
                chain.filters.splice(0..0, naming.cloned());
                if let Some(port) = destination_port {
                    chain.name = format!("{range}_{port}");
                    let wanted = chain.filter_chain_match.get_or_insert_default();
                    wanted.destination_port = Some(number(port));
                }
            }
            chains
        };
        let mut chains = Vec::new();
        for ((first, length), any_pod) in pods.ranges(families) {
            // The address of any pod is the narrower range.
            chains.extend(in_range(any_pod.into(), None));
            chains.extend(in_range(IpNet::new_assert(first, length), Some(&naming)));
        }
        chains
    });
    chains.collect()
}

/// Returns the HTTP connection manager for requests to pods in other networks. All its requests go
/// to the upstream cluster of the pods, so no rule of a VirtualService applies.
fn manager(
    context: &PushContext,
    settings: &TrafficSettings,
    port: &Port,
    upstream: &str,
) -> HttpConnectionManager {
    let routes = remote_pod_routes(upstream, context.mesh.retries.as_deref());
    Http {
        stat_prefix: format!("outbound_{upstream}"),
        port: Some(port.number),
        routes: http_connection_manager::RouteSpecifier::RouteConfig(routes),
        grpc_web: port.protocol == Protocol::GrpcWeb,
        routed: false,
        by_mtls: false,
        guards: Vec::new(),
    }
    .manager(settings)
}

/// Returns a filter that writes the address to which the client connected into the SNI.
fn naming_pod(server_name: &str) -> listener::Filter {
    use core::substitution_format_string::Format;
    use filter_state::filter_state_value::{Key, Value};
    let text = format!("%DOWNSTREAM_LOCAL_ADDRESS_WITHOUT_PORT%.{server_name}");
    let source = core::DataSource {
        specifier: Some(core::data_source::Specifier::InlineString(text)),
        ..Default::default()
    };
    let format = core::SubstitutionFormatString {
        format: Some(Format::TextFormatSource(source)),
        ..Default::default()
    };
    let value = filter_state::FilterStateValue {
        key: Some(Key::ObjectKey(SERVER_NAME.into())),
        value: Some(Value::FormatString(format)),
        ..Default::default()
    };
    let config = set_filter_state::Config { on_new_connection: vec![value], ..Default::default() };
    network_filter("envoy.filters.network.set_filter_state", &config)
}

/// Returns the chains of a gateway in `network` for single pods at one port of a service. The SNI
/// is the name of the pod's upstream cluster, so an unknown pod's connection is closed.
pub(super) fn gateway_chains(
    context: &PushContext,
    settings: &TrafficSettings,
    network: &NetworkId,
    (service, port): (&MergedService, &Port),
) -> Vec<listener::FilterChain> {
    let host = service.hostname();
    let Some(pods) = context.remote_pods.of(host) else { return Vec::new() };
    let chains = pods.inside(network).map(|(cluster, _)| {
        let sni = format!("*.{}", pod_server_name(cluster, host, port.number));
        let matches =
            listener::FilterChainMatch { server_names: vec![sni.clone()], ..found("", &MESH_ALPN) };
        let mut chain = chain(sni, Some(matches), tcp(settings, BLACK_HOLE));
        let by_sni = network_filter("envoy.filters.network.sni_cluster", &SniCluster {});
        chain.filters.insert(0, by_sni);
        chain
    });
    chains.collect()
}
