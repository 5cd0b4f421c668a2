use serde_json::json;

use super::*;
use crate::envoy::envoy::config::core::v3::TransportSocket;
use crate::envoy::envoy::config::core::v3::transport_socket::ConfigType;
use crate::envoy::google::protobuf::Any;

/// All types that Strait sends in an `Any`: resources and configurations of extensions.
const TYPES: &[&str] = &[
    "envoy.admin.v3.BootstrapConfigDump",
    "envoy.admin.v3.ClustersConfigDump",
    "envoy.admin.v3.ConfigDump",
    "envoy.admin.v3.EndpointsConfigDump",
    "envoy.admin.v3.ListenersConfigDump",
    "envoy.admin.v3.RoutesConfigDump",
    "envoy.admin.v3.SecretsConfigDump",
    "envoy.config.bootstrap.v3.Bootstrap",
    "envoy.config.cluster.v3.Cluster",
    "envoy.config.core.v3.TypedExtensionConfig",
    "envoy.config.endpoint.v3.ClusterLoadAssignment",
    "envoy.config.listener.v3.Listener",
    "envoy.config.route.v3.RouteConfiguration",
    "envoy.extensions.access_loggers.file.v3.FileAccessLog",
    "envoy.extensions.access_loggers.stream.v3.StderrAccessLog",
    "envoy.extensions.access_loggers.stream.v3.StdoutAccessLog",
    "envoy.extensions.clusters.aggregate.v3.ClusterConfig",
    "envoy.extensions.filters.http.cors.v3.Cors",
    "envoy.extensions.filters.http.fault.v3.HTTPFault",
    "envoy.extensions.filters.http.grpc_stats.v3.FilterConfig",
    "envoy.extensions.filters.http.rbac.v3.RBAC",
    "envoy.extensions.filters.http.router.v3.Router",
    "envoy.extensions.filters.listener.http_inspector.v3.HttpInspector",
    "envoy.extensions.filters.listener.original_dst.v3.OriginalDst",
    "envoy.extensions.filters.listener.original_src.v3.OriginalSrc",
    "envoy.extensions.filters.listener.proxy_protocol.v3.ProxyProtocol",
    "envoy.extensions.filters.listener.tls_inspector.v3.TlsInspector",
    "envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
    "envoy.extensions.filters.network.rbac.v3.RBAC",
    "envoy.extensions.filters.network.sni_cluster.v3.SniCluster",
    "envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy",
    "envoy.extensions.load_balancing_policies.least_request.v3.LeastRequest",
    "envoy.extensions.load_balancing_policies.maglev.v3.Maglev",
    "envoy.extensions.load_balancing_policies.random.v3.Random",
    "envoy.extensions.load_balancing_policies.ring_hash.v3.RingHash",
    "envoy.extensions.load_balancing_policies.round_robin.v3.RoundRobin",
    "envoy.extensions.load_balancing_policies.subset.v3.Subset",
    "envoy.extensions.load_balancing_policies.wrr_locality.v3.WrrLocality",
    "envoy.extensions.network.dns_resolver.getaddrinfo.v3.GetAddrInfoDnsResolverConfig",
    "envoy.extensions.retry.host.previous_hosts.v3.PreviousHostsPredicate",
    "envoy.extensions.retry.priority.previous_priorities.v3.PreviousPrioritiesConfig",
    "envoy.extensions.transport_sockets.internal_upstream.v3.InternalUpstreamTransport",
    "envoy.extensions.transport_sockets.proxy_protocol.v3.ProxyProtocolUpstreamTransport",
    "envoy.extensions.transport_sockets.raw_buffer.v3.RawBuffer",
    "envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext",
    "envoy.extensions.transport_sockets.tls.v3.Secret",
    "envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext",
    "envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
    "envoy.service.discovery.v3.DeltaDiscoveryRequest",
    "envoy.service.discovery.v3.DeltaDiscoveryResponse",
    "envoy.service.discovery.v3.DiscoveryRequest",
    "envoy.service.discovery.v3.DiscoveryResponse",
    "google.protobuf.StringValue",
    "istio.networking.nds.v1.NameTable",
];

#[test]
fn every_type_is_shown_inside_an_any() {
    for name in TYPES {
        let type_url = format!("type.googleapis.com/{name}");
        let socket = TransportSocket {
            name: "x".to_owned(),
            config_type: Some(ConfigType::TypedConfig(Any {
                type_url: type_url.clone(),
                value: vec![],
            })),
        };
        let shown =
            to_json("envoy.config.core.v3.TransportSocket", &socket.encode_to_vec()).expect(name);
        assert_eq!(shown["typed_config"]["@type"], json!(type_url));
    }
}

#[test]
fn listener_with_nested_any_survives_a_round_trip() {
    let listener = json!({
        "name": "virtualInbound",
        "address": {"socket_address": {"address": "0.0.0.0", "port_value": 15006}},
        "filter_chains": [{
            "transport_socket": {
                "name": "envoy.transport_sockets.tls",
                "typed_config": {
                    "@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext",
                    "common_tls_context": {"alpn_protocols": ["h2"]},
                    "require_client_certificate": true
                }
            },
            "filters": [{
                "name": "hcm",
                "typed_config": {
                    "@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
                    "stat_prefix": "in",
                    "stream_idle_timeout": "0s",
                    "http_filters": [{
                        "name": "envoy.filters.http.router",
                        "typed_config": {"@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"}
                    }]
                }
            }]
        }]
    });
    let type_url = "type.googleapis.com/envoy.config.listener.v3.Listener";
    let bytes = from_json(type_url, &listener).expect("valid");
    assert_eq!(to_json(type_url, &bytes).expect("valid"), listener);
}

#[test]
fn descriptors_and_generated_types_agree() {
    use crate::istio::nds::{NameTable, name_table::NameInfo};

    let info = NameInfo { ips: vec!["10.0.0.1".to_owned()], ..NameInfo::default() };
    let table = NameTable { table: [("a.ns".to_owned(), info)].into() };
    let shown =
        to_json("istio.networking.nds.v1.NameTable", &table.encode_to_vec()).expect("valid");
    assert_eq!(shown, json!({"table": {"a.ns": {"ips": ["10.0.0.1"]}}}));
}

#[test]
fn unknown_types_fields_and_bytes_are_errors() {
    assert!(matches!(to_json("a/no.Such", &[]), Err(Error::UnknownType { .. })));
    let cluster = "envoy.config.cluster.v3.Cluster";
    assert!(matches!(to_json(cluster, &[0xff]), Err(Error::Malformed { .. })));
    assert!(matches!(from_json(cluster, &json!({"nmae": "x"})), Err(Error::Json { .. })));
}
