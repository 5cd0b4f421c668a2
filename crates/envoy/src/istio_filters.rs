//! Istio's own Envoy filters: metadata exchange between peers, ALPN for HTTP, and metrics
//! (`istio_requests_total`).
//!
//! Envoy's default build does not contain them and refuses every listener and upstream cluster that
//! names one. Therefore only proxies that declare these filters ([`IstioFilters`]) receive them,
//! and the configuration of other proxies does not change by a byte. The filters have the settings
//! that Istio uses by default, except that peers are identified by the metadata they send, because
//! Strait serves no directory of workloads. (docs/how-to/authenticate-with-tokens.md, "Istio's own filters".)

use prost::Message;
use serde_json::{Map, Value};

use super::encoding::write_metadata;
use super::service_metrics::METADATA;
use strait_model::{Hostname, IstioFilter, IstioFilters, Namespace};
use strait_proto::envoy::envoy::config::cluster::v3 as cluster;
use strait_proto::envoy::envoy::config::listener::v3 as listener;
use strait_proto::envoy::envoy::extensions::filters::network::http_connection_manager::v3 as hcm;
use strait_proto::envoy::google::protobuf::Any;
use strait_proto::istio::filters::alpn::FilterConfig;
use strait_proto::istio::filters::alpn::filter_config::{AlpnOverride, Protocol};
use strait_proto::istio::filters::metadata_exchange::MetadataExchange;
use strait_proto::istio::filters::peer_metadata::Config as PeerMetadata;
use strait_proto::istio::filters::peer_metadata::config::{
    DiscoveryMethod, IstioHeaders, PropagationMethod, discovery_method, propagation_method,
};
use strait_proto::istio::filters::stats::PluginConfig;
use strait_rules::traffic::envoy_filter::PatchPlace;
use strait_xds::resource::Resource;

/// The application protocol (ALPN) with which two proxies exchange metadata before they forward
/// data.
pub(super) const PEER_EXCHANGE: &str = "istio-peer-exchange";

const METADATA_EXCHANGE: &str = "istio.metadata_exchange";
const STATS: &str = "istio.stats";
const ALPN: &str = "istio.alpn";

/// `Cluster.metadata`. (Envoy, "cluster.proto".)
const CLUSTER_METADATA: u32 = 25;

/// The filters of a proxy at one place.
#[derive(Debug, Clone, Copy)]
pub(super) struct IstioFiltersAt {
    /// The filters that the proxy declares.
    pub(super) declared: IstioFilters,
    /// The direction of the traffic.
    pub(super) place: PatchPlace,
}

impl IstioFiltersAt {
    /// Returns the value for a proxy without these filters.
    pub(super) fn disabled() -> Self {
        Self { declared: IstioFilters::default(), place: PatchPlace::Outbound }
    }

    /// Returns the filter for peer metadata. It precedes all filters that may respond, so that
    /// metrics of their responses name the client.
    pub(super) fn peer_metadata(self) -> Option<hcm::HttpFilter> {
        let discovery = || DiscoveryMethod {
            method_specifier: Some(discovery_method::MethodSpecifier::IstioHeaders(
                IstioHeaders::default(),
            )),
        };
        let propagation = |skip_external_clusters| PropagationMethod {
            method_specifier: Some(propagation_method::MethodSpecifier::IstioHeaders(
                IstioHeaders { skip_external_clusters },
            )),
        };
        let config = match self.place {
            PatchPlace::Inbound => PeerMetadata {
                downstream_discovery: vec![discovery()],
                downstream_propagation: vec![propagation(false)],
                ..Default::default()
            },
            // Metadata of the mesh is not sent to external servers.
            PatchPlace::Outbound | PatchPlace::Gateway => PeerMetadata {
                upstream_discovery: vec![discovery()],
                upstream_propagation: vec![propagation(true)],
                ..Default::default()
            },
        };
        self.http(IstioFilter::PeerMetadata, METADATA_EXCHANGE, || {
            typed("io.istio.http.peer_metadata.Config", &config)
        })
    }

    /// Returns the filter that announces the HTTP version to servers in the mesh. The last name of
    /// each list is for servers outside of the mesh.
    pub(super) fn alpn(self) -> Option<hcm::HttpFilter> {
        let offers = |upstream_protocol: Protocol, names: [&str; 3]| AlpnOverride {
            upstream_protocol: upstream_protocol.into(),
            alpn_override: names.map(str::to_owned).into(),
        };
        let config = || FilterConfig {
            alpn_override: vec![
                offers(Protocol::Http10, ["istio-http/1.0", "istio", "http/1.0"]),
                offers(Protocol::Http11, ["istio-http/1.1", "istio", "http/1.1"]),
                offers(Protocol::Http2, ["istio-h2", "istio", "h2"]),
            ],
        };
        if self.place == PatchPlace::Inbound {
            return None;
        }
        self.http(IstioFilter::Alpn, ALPN, || {
            typed("istio.envoy.config.filter.http.alpn.v2alpha1.FilterConfig", &config())
        })
    }

    /// Returns the filter that counts requests.
    pub(super) fn stats(self) -> Option<hcm::HttpFilter> {
        self.http(IstioFilter::HttpStats, STATS, || self.counting())
    }

    /// Returns the listener with metadata exchange at the start of inbound chains and metrics in
    /// chains for raw TCP.
    pub(super) fn in_chains(self, listener: listener::Listener) -> listener::Listener {
        let filter_chains = listener.filter_chains.into_iter().map(|one| self.in_chain(one));
        listener::Listener {
            filter_chains: filter_chains.collect(),
            default_filter_chain: listener.default_filter_chain.map(|one| self.in_chain(one)),
            ..listener
        }
    }

    fn in_chain(self, mut chain: listener::FilterChain) -> listener::FilterChain {
        let filters = &mut chain.filters;
        let passes_bytes =
            filters.last().is_some_and(|last| last.name == "envoy.filters.network.tcp_proxy");
        if passes_bytes && self.declared.has(IstioFilter::TcpStats) {
            filters.insert(filters.len() - 1, network(STATS, self.counting()));
        }
        if self.place == PatchPlace::Inbound
            && let Some(exchange) = self.exchange()
        {
            filters.insert(0, exchange);
        }
        chain
    }

    /// Returns the filter that exchanges metadata with the client of an mTLS connection.
    pub(super) fn exchange(self) -> Option<listener::Filter> {
        let exchanges = self.declared.has(IstioFilter::MetadataExchange);
        exchanges.then(|| network(METADATA_EXCHANGE, exchanging()))
    }

    /// Returns the application protocols that a server accepts for raw TCP: `others`, and the
    /// metadata exchange if declared.
    pub(super) fn accepted(self, others: &[&'static str]) -> Vec<&'static str> {
        let exchanges = self.declared.has(IstioFilter::MetadataExchange);
        exchanges.then_some(PEER_EXCHANGE).into_iter().chain(others.iter().copied()).collect()
    }

    /// Returns the configuration of the metrics filters. For inbound and gateway traffic they
    /// ignore the Host header, because any client may send any name.
    fn counting(self) -> Any {
        let disable_host_header_fallback = self.place != PatchPlace::Outbound;
        let config = PluginConfig { disable_host_header_fallback, ..Default::default() };
        typed("stats.PluginConfig", &config)
    }

    fn http(
        self,
        filter: IstioFilter,
        name: &str,
        config: impl FnOnce() -> Any,
    ) -> Option<hcm::HttpFilter> {
        self.declared.has(filter).then(|| hcm::HttpFilter {
            name: name.into(),
            config_type: Some(hcm::http_filter::ConfigType::TypedConfig(config())),
            ..Default::default()
        })
    }
}

/// Returns the filter that exchanges metadata with the server of an mTLS connection.
pub(super) fn upstream_exchange() -> cluster::Filter {
    cluster::Filter {
        name: METADATA_EXCHANGE.into(),
        typed_config: Some(exchanging()),
        ..Default::default()
    }
}

/// The name of the service of an upstream cluster, for metrics.
#[derive(Debug, Clone, Copy)]
pub(super) struct ServiceName<'a> {
    pub(super) hostname: &'a Hostname,
    pub(super) namespace: &'a Namespace,
    /// Whether the service is outside of the mesh.
    pub(super) is_external: bool,
}

impl ServiceName<'_> {
    /// Returns the host, name and namespace of the service. `domain` is the DNS domain of services.
    fn fields(self, domain: &str) -> Map<String, Value> {
        let Self { hostname, namespace, .. } = self;
        let name = hostname.service_in(domain).map_or(hostname.as_str(), |(name, _)| name);
        let named =
            [("host", hostname.as_str()), ("name", name), ("namespace", namespace.as_str())];
        named.into_iter().map(|(key, text)| (key.to_owned(), Value::from(text))).collect()
    }
}

/// The parts of a proxy that read the service of an upstream cluster.
#[derive(Debug, Clone, Copy)]
pub(super) struct NameReaders {
    /// Istio's filters. The metrics filter reads it, and so does the filter that hides metadata of
    /// the mesh from external servers.
    pub(super) filters: bool,
    /// The access logger for service metrics.
    pub(super) metrics: bool,
}

/// Encodes the upstream cluster, with the name of its service in its metadata for these readers.
/// `domain` is the DNS domain of services.
pub(super) fn naming(
    service: ServiceName<'_>,
    domain: &str,
    readers: NameReaders,
    cluster: cluster::Cluster,
) -> Resource {
    let name = cluster.name.clone();
    let mut bytes = match readers.filters {
        true => naming_for_filters(service, domain, cluster),
        false => cluster.encode_to_vec(),
    };
    if readers.metrics {
        write_metadata(CLUSTER_METADATA, METADATA, &service.fields(domain), &mut bytes);
    }
    Resource::new(name, bytes)
}

/// Encodes the upstream cluster with the metadata that Istio's filters read: the service, and
/// whether it is part of the mesh.
fn naming_for_filters(
    service: ServiceName<'_>,
    domain: &str,
    mut cluster: cluster::Cluster,
) -> Vec<u8> {
    let named = Value::Object(service.fields(domain));
    let mut fields = Map::from_iter([("services".to_owned(), Value::Array(vec![named]))]);
    if service.is_external {
        fields.insert("external".to_owned(), Value::Bool(true));
    }
    // The metadata is a map, so existing strings under the key `istio` are merged.
    let existing = cluster.metadata.take().and_then(|mut all| all.filter_metadata.remove("istio"));
    let texts =
        existing.into_iter().flat_map(|existing| existing.fields).filter_map(|(key, value)| {
            use strait_proto::envoy::google::protobuf::value::Kind::StringValue;
            let Some(StringValue(text)) = value.kind else { return None };
            Some((key, Value::String(text)))
        });
    fields.extend(texts);
    let mut bytes = cluster.encode_to_vec();
    write_metadata(CLUSTER_METADATA, "istio", &fields, &mut bytes);
    bytes
}

fn exchanging() -> Any {
    let config = MetadataExchange { protocol: PEER_EXCHANGE.into(), ..Default::default() };
    typed("envoy.tcp.metadataexchange.config.MetadataExchange", &config)
}

fn network(name: &str, config: Any) -> listener::Filter {
    listener::Filter {
        name: name.into(),
        config_type: Some(listener::filter::ConfigType::TypedConfig(config)),
    }
}

fn typed(name: &str, config: &impl Message) -> Any {
    Any { type_url: format!("type.googleapis.com/{name}"), value: config.encode_to_vec() }
}
