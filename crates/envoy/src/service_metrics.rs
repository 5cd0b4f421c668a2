//! Service metrics of unmodified Envoys: Istio's standard metrics, reported by Envoy's access logger
//! `envoy.access_loggers.stats` (docs/reference/service-metrics.md).
//!
//! Labels of the peer come from its certificate or from metadata that the control plane sends with
//! clusters and endpoints, never from request headers. Labels of the proxy itself come from its
//! environment, so that proxies of a class share their outbound listeners.

use std::sync::{Arc, LazyLock, OnceLock};

use serde_json::json;

use crate::encoding::any;
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
use strait_rules::traffic::telemetry::{CallEnd, LabelChange, Metric, MetricsChoice};

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

/// The variables with the labels of the proxy's own workload, by the end of the label's name. The
/// agent sets them, with the prefix `STRAIT_METRICS_`.
const OWN: [(&str, &str); 7] = [
    ("workload", "WORKLOAD"),
    ("canonical_service", "SERVICE"),
    ("canonical_revision", "REVISION"),
    ("workload_namespace", "NAMESPACE"),
    ("app", "APP"),
    ("version", "VERSION"),
    ("cluster", "CLUSTER"),
];

/// The service metrics that a proxy reports at one end of calls.
#[derive(Debug, Clone)]
pub(super) struct ServiceMetrics {
    /// The changes of Telemetries.
    pub(super) choice: Arc<MetricsChoice>,
    end: CallEnd,
    loggers: Arc<Loggers>,
}

/// The access loggers of one end of calls, which are equal in all listeners. Each array has an entry
/// for connections that use the mesh's mTLS, after the entry for other connections.
#[derive(Debug, Default)]
struct Loggers {
    requests: [OnceLock<Vec<accesslog::AccessLog>>; 2],
    connections: [OnceLock<ConnectionLoggers>; 2],
}

/// The access loggers of connections.
#[derive(Debug)]
struct ConnectionLoggers {
    /// The logger that reports when a connection is open.
    opened: Option<accesslog::AccessLog>,
    /// The logger that reports when a connection ends.
    closed: Option<accesslog::AccessLog>,
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
    Count,
    Sum(&'static str),
    Distribution(&'static str, stats::config::histogram::Unit),
}

impl ServiceMetrics {
    /// Returns the metrics of a proxy at this end of calls, with the changes of Telemetries.
    pub(super) fn new(choice: MetricsChoice, end: CallEnd) -> Self {
        // Without changes, the loggers of all proxies are equal.
        static UNCHANGED: LazyLock<[Arc<Loggers>; 2]> = LazyLock::new(Default::default);
        let [client, server] = &*UNCHANGED;
        let loggers = match end {
            _ if choice != MetricsChoice::default() => Arc::default(),
            CallEnd::Client => Arc::clone(client),
            CallEnd::Server => Arc::clone(server),
        };
        Self { choice: Arc::new(choice), end, loggers }
    }

    /// Returns the access logs of an HTTP connection manager that report its requests. `by_mtls` is
    /// whether its connections use the mesh's mTLS.
    pub(super) fn request_logs(&self, by_mtls: bool) -> &[accesslog::AccessLog] {
        use Metric::{RequestCount, RequestDuration, RequestSize, ResponseSize};
        let metrics = [RequestCount, RequestDuration, RequestSize, ResponseSize];
        self.loggers.requests[usize::from(by_mtls)].get_or_init(|| {
            // Two loggers instead of a label that is computed for each request.
            let http = self.logger((CountedProtocol::Http, by_mtls), &metrics, is_grpc(false));
            let grpc = self.logger((CountedProtocol::Grpc, by_mtls), &metrics, is_grpc(true));
            http.into_iter().chain(grpc).collect()
        })
    }

    /// Returns the access logs of a TCP proxy that report its connections, in addition to `logs`,
    /// and the options of all access logs of the TCP proxy.
    pub(super) fn with_connections(
        &self,
        logs: Vec<accesslog::AccessLog>,
        by_mtls: bool,
    ) -> (Vec<accesslog::AccessLog>, Option<TcpAccessLogOptions>) {
        let loggers = &self.loggers.connections[usize::from(by_mtls)];
        let loggers = loggers.get_or_init(|| self.connection_loggers(by_mtls));
        let closed = loggers.closed.clone();
        let Some(opened) = loggers.opened.clone() else {
            return (logs.into_iter().chain(closed).collect(), None);
        };
        // The option applies to all logs. The others still write one line for each connection.
        let only_at_the_end = |log: accesslog::AccessLog| {
            let filter = both(log_type_filter(AccessLogType::TcpConnectionEnd), log.filter);
            accesslog::AccessLog { filter: Some(filter), ..log }
        };
        let logs = logs.into_iter().map(only_at_the_end).chain([opened]).chain(closed).collect();
        let options =
            TcpAccessLogOptions { flush_access_log_on_connected: true, ..Default::default() };
        (logs, Some(options))
    }

    fn connection_loggers(&self, by_mtls: bool) -> ConnectionLoggers {
        use Metric::{TcpClosed, TcpOpened, TcpReceived, TcpSent};
        let tcp = (CountedProtocol::Tcp, by_mtls);
        let at_start = log_type_filter(AccessLogType::TcpUpstreamConnected);
        let at_end = log_type_filter(AccessLogType::TcpConnectionEnd);
        // A server may be connected to its workload before it knows the client's certificate.
        if by_mtls && self.end == CallEnd::Server {
            let metrics = [TcpOpened, TcpClosed, TcpSent, TcpReceived];
            return ConnectionLoggers { opened: None, closed: self.logger(tcp, &metrics, at_end) };
        }
        ConnectionLoggers {
            opened: self.logger(tcp, &[TcpOpened], at_start),
            closed: self.logger(tcp, &[TcpClosed, TcpSent, TcpReceived], at_end),
        }
    }

    /// Returns the network filter that stores the client's namespace for the labels of requests on a
    /// connection that uses the mesh's mTLS.
    pub(super) fn client_namespace(&self) -> Option<listener::Filter> {
        use state::filter_state_value::{Key, Value};
        if self.end != CallEnd::Server {
            return None;
        }
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
        Some(listener::Filter {
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
        let labels = self.labels(counted, by_mtls);
        for metric in metrics.iter().copied().filter(|metric| self.choice.has(*metric)) {
            let (name, value) = described(metric);
            let stat = Some(stats::config::Stat {
                name: name.into(),
                tags: self.with_changes(metric, labels.clone()),
            });
            let counter = |value_format: &str, value_fixed| stats::config::Counter {
                stat: stat.clone(),
                value_format: value_format.into(),
                value_fixed,
            };
            match value {
                MetricValue::Count => {
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

    /// Returns the labels of all metrics of a protocol, without the changes of Telemetries.
    fn labels(&self, counted: CountedProtocol, by_mtls: bool) -> Vec<stats::config::Tag> {
        let mut tags = match self.end {
            CallEnd::Server => at_the_server(counted, by_mtls),
            CallEnd::Client => at_the_client(),
        };
        tags.push(tag("request_protocol", counted.name()));
        if counted != CountedProtocol::Tcp {
            tags.push(tag("response_code", "%RESPONSE_CODE%"));
        }
        if counted == CountedProtocol::Grpc {
            tags.push(tag("grpc_response_status", "%GRPC_STATUS_NUMBER%"));
        }
        tags.push(tag("response_flags", "%RESPONSE_FLAGS%"));
        tags
    }

    /// Returns the labels of a metric: these labels with the changes of Telemetries.
    fn with_changes(
        &self,
        metric: Metric,
        mut tags: Vec<stats::config::Tag>,
    ) -> Vec<stats::config::Tag> {
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
    use MetricValue::{Count, Distribution, Sum};
    use stats::config::histogram::Unit::{Bytes, Milliseconds};
    match metric {
        Metric::RequestCount => ("istio_requests_total", Count),
        Metric::RequestDuration => {
            ("istio_request_duration_milliseconds", Distribution("%DURATION%", Milliseconds))
        }
        Metric::RequestSize => ("istio_request_bytes", Distribution("%BYTES_RECEIVED%", Bytes)),
        Metric::ResponseSize => ("istio_response_bytes", Distribution("%BYTES_SENT%", Bytes)),
        Metric::TcpOpened => ("istio_tcp_connections_opened_total", Count),
        Metric::TcpClosed => ("istio_tcp_connections_closed_total", Count),
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

/// Returns the labels of requests that a workload or a gateway sends.
fn at_the_client() -> Vec<stats::config::Tag> {
    let endpoint = |key: &str| first_value(&[&format!("UPSTREAM_METADATA({METADATA}:{key})")]);
    let mut tags = vec![tag("reporter", "source")];
    tags.extend(own("source"));
    tags.extend([
        tag("source_principal", first_value(&["UPSTREAM_LOCAL_URI_SAN"])),
        tag("destination_workload", endpoint("workload")),
        tag("destination_workload_namespace", endpoint("namespace")),
        tag("destination_principal", first_value(&["UPSTREAM_PEER_URI_SAN"])),
        tag("destination_app", endpoint("service")),
        tag("destination_version", endpoint("revision")),
        tag("destination_canonical_service", endpoint("service")),
        tag("destination_canonical_revision", endpoint("revision")),
        tag("destination_cluster", endpoint("cluster")),
    ]);
    tags.extend(service());
    // As in Istio: only the server knows how the connection arrived.
    tags.push(tag("connection_security_policy", UNKNOWN));
    tags
}

/// Returns the labels of requests that a workload receives.
fn at_the_server(counted: CountedProtocol, by_mtls: bool) -> Vec<stats::config::Tag> {
    let client_namespace = match (by_mtls, counted) {
        (false, _) => UNKNOWN.to_owned(),
        // Filter chains for TCP do not have the filter that stores the namespace.
        (true, CountedProtocol::Tcp) => {
            format!("%CEL(connection.mtls ? {CLIENT_NAMESPACE} : '{UNKNOWN}')%")
        }
        (true, _) => first_value(&[&format!("FILTER_STATE({CLIENT_NAMESPACE_KEY}:PLAIN)")]),
    };
    let mut tags = vec![
        tag("reporter", "destination"),
        tag("source_workload", UNKNOWN),
        tag("source_canonical_service", UNKNOWN),
        tag("source_canonical_revision", UNKNOWN),
        tag("source_workload_namespace", client_namespace),
        tag("source_principal", first_value(&["DOWNSTREAM_PEER_URI_SAN"])),
        tag("source_app", UNKNOWN),
        tag("source_version", UNKNOWN),
        tag("source_cluster", UNKNOWN),
    ];
    tags.extend(own("destination"));
    tags.push(tag("destination_principal", first_value(&["DOWNSTREAM_LOCAL_URI_SAN"])));
    tags.extend(service());
    let security = if by_mtls { "mutual_tls" } else { "none" };
    tags.push(tag("connection_security_policy", security));
    tags
}

/// Returns the labels of the proxy's own workload, which is at this side of calls.
fn own(side: &str) -> impl Iterator<Item = stats::config::Tag> {
    OWN.into_iter().map(move |(label, variable)| {
        tag(format!("{side}_{label}"), format!("%ENVIRONMENT(STRAIT_METRICS_{variable})%"))
    })
}

/// Returns the labels of the service. Without a service, its name is the name of the upstream
/// cluster, for example `PassthroughCluster`, as in Istio.
fn service() -> [stats::config::Tag; 3] {
    let cluster = |key: &str| format!("CLUSTER_METADATA({METADATA}:{key})");
    [
        tag("destination_service", first_value(&[&cluster("host")])),
        tag("destination_service_name", first_value(&[&cluster("name"), "UPSTREAM_CLUSTER"])),
        tag("destination_service_namespace", first_value(&[&cluster("namespace")])),
    ]
}

/// Returns the format of the first operator with a value, or of `unknown`.
fn first_value(operators: &[&str]) -> String {
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

fn log_type_filter(kind: AccessLogType) -> accesslog::AccessLogFilter {
    let filter = accesslog::LogTypeFilter { types: vec![kind.into()], exclude: false };
    accesslog::AccessLogFilter { filter_specifier: Some(FilterSpecifier::LogTypeFilter(filter)) }
}

/// Returns a filter for entries that match both filters.
pub(super) fn both(
    first: accesslog::AccessLogFilter,
    second: Option<accesslog::AccessLogFilter>,
) -> accesslog::AccessLogFilter {
    let Some(second) = second else { return first };
    let filter = accesslog::AndFilter { filters: vec![first, second] };
    accesslog::AccessLogFilter { filter_specifier: Some(FilterSpecifier::AndFilter(filter)) }
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
