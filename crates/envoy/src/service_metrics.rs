//! Service metrics of unmodified Envoys: Istio's standard metrics, reported by Envoy's access logger
//! `envoy.access_loggers.stats` (docs/reference/service-metrics.md).
//!
//! Labels of the peer come from its certificate or from metadata that the control plane sends with
//! clusters and endpoints, never from request headers. Labels of the proxy itself come from its
//! environment, so that proxies of a class share their outbound listeners.

use prost::encoding::string;
use serde_json::{Map, Value, json};

use crate::encoding::{any, nested, struct_of};
use strait_model::{Hostname, Namespace};
use strait_proto::envoy::envoy::config::accesslog::v3 as accesslog;
use strait_proto::envoy::envoy::config::accesslog::v3::access_log_filter::FilterSpecifier;
use strait_proto::envoy::envoy::config::core::v3 as core;
use strait_proto::envoy::envoy::config::listener::v3 as listener;
use strait_proto::envoy::envoy::config::route::v3::{HeaderMatcher, header_matcher};
use strait_proto::envoy::envoy::data::accesslog::v3::AccessLogType;
use strait_proto::envoy::envoy::extensions::access_loggers::stats::v3 as stats;
use strait_proto::envoy::envoy::extensions::filters::common::set_filter_state::v3 as state;
use strait_proto::envoy::envoy::extensions::filters::network::set_filter_state::v3::Config as SetFilterState;
use strait_proto::envoy::envoy::extensions::filters::network::tcp_proxy::v3::tcp_proxy::TcpAccessLogOptions;
use strait_proto::envoy::envoy::r#type::matcher::v3 as matcher;
use strait_proto::envoy::google::protobuf::UInt64Value;
use strait_rules::traffic::envoy_filter::PatchPlace;
use strait_rules::traffic::telemetry::{LabelChange, Metric, MetricsChoice};

/// The prefix of the metrics, which the bootstrap registers as a namespace. In the Prometheus format,
/// Envoy removes it, and does not add its own prefix `envoy_`.
const NAMESPACE: &str = "wasmcustom";

/// The key of the metadata of clusters and endpoints that the labels are read from.
pub(super) const METADATA: &str = "strait";

/// Content types of gRPC, without gRPC-Web.
const GRPC: &str = r"application/grpc(\+.*)?";

/// The expression for the namespace in the client's certificate.
const CLIENT_NAMESPACE: &str = r"re.extract(connection.uri_san_peer_certificate, '^spiffe://[^/]+/ns/([^/]+)/sa/[^/]+$', '\\1')";

/// The key of the state of a connection that contains the value of [`CLIENT_NAMESPACE`]. The
/// expression is evaluated once per connection, because it costs more than the other metrics of a
/// request.
const CLIENT_NAMESPACE_KEY: &str = "strait.client_namespace";

const UNKNOWN: &str = "unknown";

/// The service metrics of a proxy at one place.
#[derive(Debug, Clone)]
pub(super) struct ServiceMetrics {
    /// Whether the proxy reports them.
    pub(super) is_on: bool,
    /// The direction of the traffic.
    pub(super) place: PatchPlace,
    /// The changes of Telemetries.
    pub(super) choice: MetricsChoice,
}

/// A protocol that a label distinguishes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CountedProtocol {
    Http,
    Grpc,
    Tcp,
}

/// The value that a metric adds up.
enum MetricValue {
    One,
    Sum(&'static str),
    Distribution(&'static str, stats::config::histogram::Unit),
}

impl ServiceMetrics {
    /// Returns the metrics of a proxy that reports none.
    pub(super) fn none() -> Self {
        Self { is_on: false, place: PatchPlace::Outbound, choice: MetricsChoice::default() }
    }

    /// Returns the access logs of an HTTP connection manager that report its requests, in addition
    /// to `logs`. `by_mtls` is whether its connections use the mesh's mTLS.
    pub(super) fn with_requests(
        &self,
        mut logs: Vec<accesslog::AccessLog>,
        by_mtls: bool,
    ) -> Vec<accesslog::AccessLog> {
        use Metric::{RequestCount, RequestDuration, RequestSize, ResponseSize};
        let metrics = [RequestCount, RequestDuration, RequestSize, ResponseSize];
        if self.is_on {
            // Two loggers instead of a label that is computed for each request.
            logs.extend(self.logger((CountedProtocol::Http, by_mtls), &metrics, is_grpc(false)));
            logs.extend(self.logger((CountedProtocol::Grpc, by_mtls), &metrics, is_grpc(true)));
        }
        logs
    }

    /// Returns the access logs of a TCP proxy that report its connections, in addition to `logs`,
    /// and the options of all access logs of the TCP proxy.
    pub(super) fn with_connections(
        &self,
        logs: Vec<accesslog::AccessLog>,
        by_mtls: bool,
    ) -> (Vec<accesslog::AccessLog>, Option<TcpAccessLogOptions>) {
        use Metric::{TcpClosed, TcpOpened, TcpReceived, TcpSent};
        if !self.is_on {
            return (logs, None);
        }
        let at_the_end = || is_of_type(AccessLogType::TcpConnectionEnd);
        // A server may be connected to its workload before it knows the client's certificate.
        let is_late = by_mtls && self.place == PatchPlace::Inbound;
        let tcp = (CountedProtocol::Tcp, by_mtls);
        let opened = match is_late {
            true => None,
            false => {
                self.logger(tcp, &[TcpOpened], is_of_type(AccessLogType::TcpUpstreamConnected))
            }
        };
        let with_end = [TcpOpened, TcpClosed, TcpSent, TcpReceived];
        let with_end = if is_late { &with_end[..] } else { &with_end[1..] };
        let closed = self.logger(tcp, with_end, at_the_end());
        if opened.is_none() {
            return (logs.into_iter().chain(closed).collect(), None);
        }
        // The option applies to all logs. The others still write one line for each connection.
        let only_at_the_end = |log: accesslog::AccessLog| {
            let filter = match log.filter {
                None => at_the_end(),
                Some(filter) => accesslog::AccessLogFilter {
                    filter_specifier: Some(FilterSpecifier::AndFilter(accesslog::AndFilter {
                        filters: vec![at_the_end(), filter],
                    })),
                },
            };
            accesslog::AccessLog { filter: Some(filter), ..log }
        };
        let logs = logs.into_iter().map(only_at_the_end).chain(opened).chain(closed).collect();
        let options =
            TcpAccessLogOptions { flush_access_log_on_connected: true, ..Default::default() };
        (logs, Some(options))
    }

    /// Returns the network filter that stores the client's namespace for the labels of requests on a
    /// connection that uses the mesh's mTLS.
    pub(super) fn client_namespace(&self) -> Option<listener::Filter> {
        use state::filter_state_value::{Key, Value};
        let is_inbound = self.is_on && self.place == PatchPlace::Inbound;
        let text = format!("%CEL({CLIENT_NAMESPACE})%");
        let text = core::DataSource {
            specifier: Some(core::data_source::Specifier::InlineString(text)),
            ..Default::default()
        };
        let format = core::SubstitutionFormatString {
            format: Some(core::substitution_format_string::Format::TextFormatSource(text)),
            ..Default::default()
        };
        let stored = state::FilterStateValue {
            key: Some(Key::ObjectKey(CLIENT_NAMESPACE_KEY.into())),
            factory_key: "envoy.string".into(),
            value: Some(Value::FormatString(format)),
            skip_if_empty: true,
            ..Default::default()
        };
        let config =
            SetFilterState { on_downstream_tls_handshake: vec![stored], ..Default::default() };
        is_inbound.then(|| listener::Filter {
            name: "envoy.filters.network.set_filter_state".into(),
            config_type: Some(listener::filter::ConfigType::TypedConfig(any(&config))),
        })
    }

    /// Returns the logger of these metrics, or `None` if Telemetries switch off all of them.
    fn logger(
        &self,
        (counted, by_mtls): (CountedProtocol, bool),
        metrics: &[Metric],
        filter: accesslog::AccessLogFilter,
    ) -> Option<accesslog::AccessLog> {
        // Envoy 1.37 requires the field, which later versions deprecate.
        #[allow(deprecated)]
        let mut config = stats::Config { stat_prefix: NAMESPACE.into(), ..Default::default() };
        for metric in metrics.iter().copied().filter(|metric| self.choice.has(*metric)) {
            let (name, value) = described(metric);
            let stat = Some(stats::config::Stat {
                name: name.into(),
                tags: self.labels(metric, counted, by_mtls),
            });
            let counter = |value_format: &str, value_fixed| stats::config::Counter {
                stat: stat.clone(),
                value_format: value_format.into(),
                value_fixed,
            };
            match value {
                MetricValue::One => {
                    config.counters.push(counter("", Some(UInt64Value { value: 1 })));
                }
                MetricValue::Sum(format) => config.counters.push(counter(format, None)),
                MetricValue::Distribution(format, unit) => {
                    config.histograms.push(stats::config::Histogram {
                        stat: stat.clone(),
                        unit: unit.into(),
                        value_format: format.into(),
                    });
                }
            }
        }
        let is_empty = config.counters.is_empty() && config.histograms.is_empty();
        (!is_empty).then(|| accesslog::AccessLog {
            name: "envoy.access_loggers.stats".into(),
            filter: Some(filter),
            config_type: Some(accesslog::access_log::ConfigType::TypedConfig(any(&config))),
        })
    }

    /// Returns the labels of a metric, with the changes of Telemetries.
    fn labels(
        &self,
        metric: Metric,
        counted: CountedProtocol,
        by_mtls: bool,
    ) -> Vec<stats::config::Tag> {
        let mut labels = match self.place {
            PatchPlace::Inbound => at_the_server(counted, by_mtls),
            PatchPlace::Outbound | PatchPlace::Gateway => at_the_client(),
        };
        labels.push(("request_protocol", counted.name().to_owned()));
        if counted != CountedProtocol::Tcp {
            labels.push(("response_code", "%RESPONSE_CODE%".to_owned()));
        }
        if counted == CountedProtocol::Grpc {
            labels.push(("grpc_response_status", "%GRPC_STATUS_NUMBER%".to_owned()));
        }
        labels.push(("response_flags", "%RESPONSE_FLAGS%".to_owned()));
        let mut tags: Vec<_> = labels.into_iter().map(|(name, value)| tag(name, value)).collect();
        for (name, change) in self.choice.labels(metric) {
            let at = tags.iter().position(|tag| tag.name == **name);
            match (change, at) {
                (LabelChange::Removed, Some(at)) => drop(tags.remove(at)),
                (LabelChange::Removed, None) => {}
                (LabelChange::Set(value), Some(at)) => {
                    tags[at].value_format = format!("%CEL({value})%");
                }
                (LabelChange::Set(value), None) => {
                    tags.push(tag(&**name, format!("%CEL({value})%")));
                }
            }
        }
        tags
    }
}

impl CountedProtocol {
    fn name(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Grpc => "grpc",
            Self::Tcp => "tcp",
        }
    }
}

/// Returns the name of a metric and its value.
fn described(metric: Metric) -> (&'static str, MetricValue) {
    use MetricValue::{Distribution, One, Sum};
    use stats::config::histogram::Unit::{Bytes, Milliseconds};
    match metric {
        Metric::RequestCount => ("istio_requests_total", One),
        Metric::RequestDuration => {
            ("istio_request_duration_milliseconds", Distribution("%DURATION%", Milliseconds))
        }
        Metric::RequestSize => ("istio_request_bytes", Distribution("%BYTES_RECEIVED%", Bytes)),
        Metric::ResponseSize => ("istio_response_bytes", Distribution("%BYTES_SENT%", Bytes)),
        Metric::TcpOpened => ("istio_tcp_connections_opened_total", One),
        Metric::TcpClosed => ("istio_tcp_connections_closed_total", One),
        Metric::TcpSent => ("istio_tcp_sent_bytes_total", Sum("%BYTES_SENT%")),
        Metric::TcpReceived => ("istio_tcp_received_bytes_total", Sum("%BYTES_RECEIVED%")),
    }
}

fn tag(name: impl Into<String>, value_format: impl Into<String>) -> stats::config::Tag {
    stats::config::Tag {
        name: name.into(),
        value_format: value_format.into(),
        ..Default::default()
    }
}

type Label = (&'static str, String);

/// Returns the labels of requests that a workload or a gateway sends.
fn at_the_client() -> Vec<Label> {
    let endpoint = |key: &str| first_of(&[&format!("UPSTREAM_METADATA({METADATA}:{key})")]);
    let mut labels = vec![("reporter", "source".to_owned())];
    labels.extend(own([
        "source_workload",
        "source_canonical_service",
        "source_canonical_revision",
    ]));
    labels.extend(own_rest("source"));
    labels.extend([
        ("source_principal", first_of(&["UPSTREAM_LOCAL_URI_SAN"])),
        ("destination_workload", endpoint("workload")),
        ("destination_workload_namespace", endpoint("namespace")),
        ("destination_principal", first_of(&["UPSTREAM_PEER_URI_SAN"])),
        ("destination_app", endpoint("service")),
        ("destination_version", endpoint("revision")),
        ("destination_canonical_service", endpoint("service")),
        ("destination_canonical_revision", endpoint("revision")),
        ("destination_cluster", endpoint("cluster")),
    ]);
    labels.extend(service());
    // As in Istio: only the server knows how the connection arrived.
    labels.push(("connection_security_policy", UNKNOWN.to_owned()));
    labels
}

/// Returns the labels of requests that a workload receives.
fn at_the_server(counted: CountedProtocol, by_mtls: bool) -> Vec<Label> {
    let unknown = |name| (name, UNKNOWN.to_owned());
    let client_namespace = match (by_mtls, counted) {
        (false, _) => UNKNOWN.to_owned(),
        // Chains for TCP have no such filter.
        (true, CountedProtocol::Tcp) => {
            format!("%CEL(connection.mtls ? {CLIENT_NAMESPACE} : '{UNKNOWN}')%")
        }
        (true, _) => first_of(&[&format!("FILTER_STATE({CLIENT_NAMESPACE_KEY}:PLAIN)")]),
    };
    let mut labels = vec![("reporter", "destination".to_owned())];
    labels.extend([
        unknown("source_workload"),
        unknown("source_canonical_service"),
        unknown("source_canonical_revision"),
        ("source_workload_namespace", client_namespace),
        ("source_principal", first_of(&["DOWNSTREAM_PEER_URI_SAN"])),
        unknown("source_app"),
        unknown("source_version"),
        unknown("source_cluster"),
    ]);
    labels.extend(own([
        "destination_workload",
        "destination_canonical_service",
        "destination_canonical_revision",
    ]));
    labels.extend(own_rest("destination"));
    labels.push(("destination_principal", first_of(&["DOWNSTREAM_LOCAL_URI_SAN"])));
    labels.extend(service());
    let security = if by_mtls { "mutual_tls" } else { "none" };
    labels.push(("connection_security_policy", security.to_owned()));
    labels
}

/// Returns the labels for the proxy's own workload, canonical service and canonical revision.
fn own([workload, service, revision]: [&'static str; 3]) -> [Label; 3] {
    [
        (workload, environment("WORKLOAD")),
        (service, environment("SERVICE")),
        (revision, environment("REVISION")),
    ]
}

/// Returns the other labels for the proxy's own workload.
fn own_rest(side: &str) -> [Label; 4] {
    let [namespace, app, version, cluster] = if side == "source" {
        ["source_workload_namespace", "source_app", "source_version", "source_cluster"]
    } else {
        [
            "destination_workload_namespace",
            "destination_app",
            "destination_version",
            "destination_cluster",
        ]
    };
    [
        (namespace, environment("NAMESPACE")),
        (app, environment("APP")),
        (version, environment("VERSION")),
        (cluster, environment("CLUSTER")),
    ]
}

/// Returns the labels of the service. Without a service, its name is the name of the upstream
/// cluster, for example `PassthroughCluster`, as in Istio.
fn service() -> [Label; 3] {
    let cluster = |key: &str| format!("CLUSTER_METADATA({METADATA}:{key})");
    [
        ("destination_service", first_of(&[&cluster("host")])),
        ("destination_service_name", first_of(&[&cluster("name"), "UPSTREAM_CLUSTER"])),
        ("destination_service_namespace", first_of(&[&cluster("namespace")])),
    ]
}

/// Returns the format of a variable that the agent sets.
fn environment(name: &str) -> String {
    format!("%ENVIRONMENT(STRAIT_METRICS_{name})%")
}

/// Returns the format of the first operator with a value, or of `unknown`.
fn first_of(operators: &[&str]) -> String {
    let operator = |text: &str| match text.trim_end_matches(')').split_once('(') {
        Some((command, param)) => json!({"command": command, "param": param}),
        None => json!(text),
    };
    let unknown = json!({"command": "CEL", "param": format!("'{UNKNOWN}'")});
    let all: Vec<_> = operators.iter().map(|text| operator(text)).chain([unknown]).collect();
    format!("%COALESCE({})%", json!({"operators": all}))
}

/// Returns the filter for requests that are gRPC, or that are not.
fn is_grpc(wanted: bool) -> accesslog::AccessLogFilter {
    let regex = matcher::RegexMatcher { regex: GRPC.into(), ..Default::default() };
    let text = matcher::StringMatcher {
        match_pattern: Some(matcher::string_matcher::MatchPattern::SafeRegex(regex)),
        ..Default::default()
    };
    let header = HeaderMatcher {
        name: "content-type".into(),
        invert_match: !wanted,
        treat_missing_header_as_empty: true,
        header_match_specifier: Some(header_matcher::HeaderMatchSpecifier::StringMatch(text)),
    };
    let filter = accesslog::HeaderFilter { header: Some(header) };
    accesslog::AccessLogFilter { filter_specifier: Some(FilterSpecifier::HeaderFilter(filter)) }
}

fn is_of_type(kind: AccessLogType) -> accesslog::AccessLogFilter {
    let filter = accesslog::LogTypeFilter { types: vec![kind.into()], exclude: false };
    accesslog::AccessLogFilter { filter_specifier: Some(FilterSpecifier::LogTypeFilter(filter)) }
}

/// Encodes a `Metadata` with the name of a cluster's service, as a field of the cluster.
pub(super) fn write_service(
    (hostname, namespace): (&Hostname, &Namespace),
    domain: &str,
    field: u32,
    out: &mut Vec<u8>,
) {
    let name = hostname.service_in(domain).map_or(hostname.as_str(), |(name, _)| name);
    let named = [("host", hostname.as_str()), ("name", name), ("namespace", namespace.as_str())];
    let fields: Map<String, Value> =
        named.into_iter().map(|(key, text)| (key.to_owned(), json!(text))).collect();
    let (mut entry, mut metadata) = (Vec::new(), Vec::new());
    string::encode(1, &METADATA.to_owned(), &mut entry);
    nested(2, &struct_of(&fields), &mut entry);
    nested(1, &entry, &mut metadata);
    nested(field, &metadata, out);
}

/// Returns the names of an endpoint's workload, from its telemetry name and its cluster. Empty names
/// are left out, so that their labels are `unknown`.
pub(super) fn workload_names<'a>(
    telemetry: &'a str,
    cluster: &'a str,
) -> impl Iterator<Item = (&'static str, &'a str)> {
    let keys = ["workload", "namespace", "service", "revision"];
    let named = keys.into_iter().zip(telemetry.split(';')).chain([("cluster", cluster)]);
    named.filter(|(_, text)| !text.is_empty())
}
