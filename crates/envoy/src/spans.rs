//! Tracing settings of HTTP connection managers, and the upstream cluster of the collector. (Envoy,
//! `HttpConnectionManager.Tracing`, `ZipkinConfig`, `OpenTelemetryConfig`.)
//!
//! Envoy refuses a listener that sends spans to a missing upstream cluster, so the collector is
//! named only if its service is visible to the proxy.

use std::sync::Arc;

use strait_proto::envoy::envoy::config::core::v3 as core;
use strait_proto::envoy::envoy::config::trace::v3 as trace;
use strait_proto::envoy::envoy::extensions::filters::network::http_connection_manager::v3::http_connection_manager::Tracing;
use strait_proto::envoy::envoy::extensions::tracers::opentelemetry::resource_detectors::v3::EnvironmentResourceDetectorConfig;
use strait_proto::envoy::envoy::r#type::tracing::v3::{CustomTag, custom_tag};
use strait_proto::envoy::envoy::r#type::v3::Percent;
use strait_proto::envoy::google::protobuf::{BoolValue, UInt32Value};
use super::{any, duration};
use strait_model::mesh_config::{ProviderService, SpanProtocol, TracingProvider};
use strait_model::{ClusterId, Hostname, Namespace, Proxy, ProxyType};
use strait_mesh::push::PushContext;
use strait_rules::traffic::Selection;
use strait_rules::traffic::destination_rule::RuleClient;
use strait_rules::traffic::telemetry::{CallEnd, SpanTag, SpanTagValue, TracingChoice};
use strait_xds::names::OutboundName;

/// The tracing settings of a proxy at one end of calls.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct SpanReport {
    /// The host name of the service that receives spans.
    pub(super) host: Hostname,
    provider: Arc<TracingProvider>,
    choice: TracingChoice,
}

impl SpanReport {
    /// Returns the settings of a proxy of this cluster, namespace and selection, or `None` if it
    /// sends no spans or cannot reach the collector.
    pub(super) fn for_end(
        context: &PushContext,
        (namespace, selection): (&Namespace, &Selection),
        cluster: &ClusterId,
        end: CallEnd,
    ) -> Option<Arc<Self>> {
        let telemetries = &context.traffic.telemetries;
        let choice = telemetries.tracing(&context.mesh, (namespace, selection), end)?;
        let client = RuleClient { namespace, selection };
        let tracer = context.tracer(&choice.provider, client, cluster).ok()?;
        let (host, provider) = (tracer.service.hostname().clone(), Arc::clone(tracer.provider));
        Some(Arc::new(Self { host, provider, choice }))
    }

    /// Returns all settings of a proxy of this selection. Libraries send no spans, and a router has
    /// only one end of calls.
    pub(super) fn for_proxy(
        context: &PushContext,
        proxy: &Proxy,
        selection: &Selection,
    ) -> Vec<Arc<Self>> {
        let proxies = (proxy.namespace(), selection);
        let reports =
            ends(proxy).iter().map(|end| Self::for_end(context, proxies, &proxy.cluster, *end));
        reports.flatten().collect()
    }

    /// Returns the name of the upstream cluster that receives spans.
    pub(super) fn cluster(&self) -> String {
        OutboundName::sidecar(self.host.clone(), self.provider.service.port).to_string()
    }

    /// Returns the tracing settings of an HTTP connection manager.
    pub(super) fn tracing(&self) -> Tracing {
        let percent = |value| Some(Percent { value });
        let TracingChoice { sampled_per_million, tags, .. } = &self.choice;
        Tracing {
            client_sampling: percent(100.0),
            random_sampling: percent(f64::from(*sampled_per_million) / 10_000.0),
            overall_sampling: percent(100.0),
            max_path_tag_length: self.provider.path_bytes_max.map(|value| UInt32Value { value }),
            custom_tags: tags.iter().map(custom).collect(),
            provider: Some(self.provider()),
            ..Default::default()
        }
    }

    fn provider(&self) -> trace::tracing::Http {
        let ProviderService { host, port, .. } = &self.provider.service;
        let (name, config) = match &self.provider.protocol {
            SpanProtocol::Zipkin { path, has_short_ids } => {
                // Envoy 1.36 supports only these fields of the collector.
                let config = trace::ZipkinConfig {
                    collector_cluster: self.cluster(),
                    collector_endpoint: path.clone(),
                    collector_hostname: host.clone(),
                    collector_endpoint_version:
                        trace::zipkin_config::CollectorEndpointVersion::HttpJson.into(),
                    trace_id_128bit: !has_short_ids,
                    // Client and server spans are separate.
                    shared_span_context: Some(BoolValue { value: false }),
                    ..Default::default()
                };
                ("envoy.tracers.zipkin", any(&config))
            }
            SpanProtocol::OtlpGrpc { timeout } => {
                let envoy = core::grpc_service::EnvoyGrpc {
                    cluster_name: self.cluster(),
                    authority: host.clone(),
                    ..Default::default()
                };
                let service = core::GrpcService {
                    timeout: Some(duration(*timeout)),
                    target_specifier: Some(core::grpc_service::TargetSpecifier::EnvoyGrpc(envoy)),
                    ..Default::default()
                };
                let config =
                    trace::OpenTelemetryConfig { grpc_service: Some(service), ..open_telemetry() };
                ("envoy.tracers.opentelemetry", any(&config))
            }
            SpanProtocol::OtlpHttp { path, timeout } => {
                let uri = core::HttpUri {
                    uri: format!("http://{host}:{port}{path}"),
                    timeout: Some(duration(*timeout)),
                    http_upstream_type: Some(core::http_uri::HttpUpstreamType::Cluster(
                        self.cluster(),
                    )),
                };
                let service = core::HttpService { http_uri: Some(uri), ..Default::default() };
                let config =
                    trace::OpenTelemetryConfig { http_service: Some(service), ..open_telemetry() };
                ("envoy.tracers.opentelemetry", any(&config))
            }
        };
        let config_type = Some(trace::tracing::http::ConfigType::TypedConfig(config));
        trace::tracing::Http { name: name.into(), config_type }
    }
}

/// Returns the ends of calls at which a proxy may write access logs and send spans.
pub(super) fn ends(proxy: &Proxy) -> &'static [CallEnd] {
    match (proxy.grpc, proxy.kind) {
        (Some(_), _) => &[],
        (None, ProxyType::Sidecar) => &[CallEnd::Client, CallEnd::Server],
        (None, ProxyType::Router) => &[CallEnd::Server],
    }
}

/// Returns a configuration that reads the workload's name from the environment
/// (`OTEL_RESOURCE_ATTRIBUTES`), because many proxies share listeners.
fn open_telemetry() -> trace::OpenTelemetryConfig {
    let environment = core::TypedExtensionConfig {
        name: "envoy.tracers.opentelemetry.resource_detectors.environment".into(),
        typed_config: Some(any(&EnvironmentResourceDetectorConfig {})),
    };
    trace::OpenTelemetryConfig { resource_detectors: vec![environment], ..Default::default() }
}

fn custom(SpanTag { name, value }: &SpanTag) -> CustomTag {
    use custom_tag::{Environment, Header, Literal, Type};
    let text = |text: &str| text.to_owned();
    let value = match value {
        SpanTagValue::Literal(value) => Type::Literal(Literal { value: text(value) }),
        SpanTagValue::Environment(name, default) => {
            Type::Environment(Environment { name: text(name), default_value: text(default) })
        }
        SpanTagValue::Header(name, default) => {
            Type::RequestHeader(Header { name: text(name), default_value: text(default) })
        }
    };
    CustomTag { tag: text(name), r#type: Some(value) }
}
