//! Connection limits and outlier detection: as a DestinationRule sets them, and the mesh-wide
//! defaults. (Istio, "Destination Rule", `ConnectionPoolSettings` and `OutlierDetection`, and
//! `MeshConfig.defaultTrafficPolicy`.)

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::duration::{
    SHORTER, SHORTEST, WrittenDuration, at_least_a_millisecond, format_duration,
};
use crate::{RareGroup, static_default};

/// `h2UpgradePolicy` as written, here and in DestinationRules.
#[derive(Deserialize, Default, Debug, Clone, Copy)]
pub enum WrittenUpgrade {
    /// Not set.
    #[default]
    #[serde(rename = "DEFAULT")]
    Default,
    /// HTTP/1.1 is not upgraded.
    #[serde(rename = "DO_NOT_UPGRADE")]
    Never,
    /// HTTP/2 is used.
    #[serde(rename = "UPGRADE")]
    Always,
}

impl WrittenUpgrade {
    /// Returns whether HTTP/2 is used, or `None` if it is not set.
    pub fn read(self) -> Option<bool> {
        match self {
            Self::Default => None,
            Self::Never => Some(false),
            Self::Always => Some(true),
        }
    }
}

/// TCP keepalive probes on upstream connections; `None` uses the operating system's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct TcpKeepalive {
    /// The number of unanswered probes after which the connection is dead.
    pub probes: Option<u32>,
    /// The idle time before the first probe.
    pub time: Option<Duration>,
    /// The time between probes.
    pub interval: Option<Duration>,
}

/// Limits of a connection pool. `None` means no limit, or Envoy's default for times.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct PoolLimits {
    /// The maximum number of connections.
    pub max_connections: Option<u32>,
    /// The maximum number of requests that wait for a connection.
    pub max_pending_requests: Option<u32>,
    /// The maximum number of concurrent requests.
    pub max_requests: Option<u32>,
    /// The maximum number of concurrent retries.
    pub max_retries: Option<u32>,
    /// The maximum number of requests per connection.
    pub max_requests_per_connection: Option<u32>,
    /// The connect timeout.
    pub connect_timeout: Option<Duration>,
    /// Whether HTTP/2 is used, regardless of the protocol of the port.
    pub h2_upgrade: Option<bool>,
    /// Whether the protocol of the client's connection is used.
    pub use_client_protocol: bool,
    /// Rarely used limits.
    pub more: RareGroup<RareLimits>,
}

impl PoolLimits {
    /// Returns whether a limit applies to connections without HTTP.
    pub fn limits_connections(&self) -> bool {
        let RareLimits { tcp_keepalive, max_connection_duration, tcp_idle_timeout, .. } =
            &*self.more;
        self.max_connections.is_some()
            || self.connect_timeout.is_some()
            || tcp_keepalive.is_some()
            || max_connection_duration.is_some()
            || tcp_idle_timeout.is_some()
    }
}

/// Rarely used limits.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct RareLimits {
    /// The maximum number of concurrent streams per HTTP/2 connection.
    pub max_concurrent_streams: Option<u32>,
    /// HTTP/2 keepalive.
    pub http2_keepalive: Option<Http2Pings>,
    /// TCP keepalive; missing fields are taken from the mesh config.
    pub tcp_keepalive: Option<TcpKeepalive>,
    /// The maximum lifetime of a connection.
    pub max_connection_duration: Option<Duration>,
    /// The idle timeout of a TCP connection.
    pub tcp_idle_timeout: Option<Duration>,
    /// The idle timeout of an HTTP connection without requests.
    pub http_idle_timeout: Option<Duration>,
}

/// HTTP/2 keepalive pings; both times are at least 1 ms (Envoy's limit).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Http2Pings {
    /// The time between pings.
    pub interval: Duration,
    /// The time without a response after which the connection is closed.
    pub timeout: Duration,
}

/// Outlier detection: when an endpoint is ejected temporarily.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct OutlierDetection {
    /// The number of consecutive errors; `Some(0)` disables it, `None` uses Envoy's default of 5.
    pub consecutive_5xx: Option<u32>,
    /// The number of consecutive gateway errors; `Some(0)` and `None` disable it.
    pub consecutive_gateway_errors: Option<u32>,
    /// The time between analyses; Envoy's default is 10 s.
    pub interval: Option<Duration>,
    /// The duration of the first ejection; Envoy's default is 30 s.
    pub base_ejection_time: Option<Duration>,
    /// The maximum percentage of ejected endpoints; Envoy's default is 10.
    pub max_ejection_percent: Option<u32>,
    /// Rarely used settings.
    pub more: RareGroup<RareOutlierSettings>,
}

/// Rarely used settings of outlier detection.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct RareOutlierSettings {
    /// The number of consecutive connect failures, if they are counted separately.
    pub consecutive_local_origin_failures: Option<u32>,
    /// Whether connect failures are counted separately.
    pub split_local_origin: bool,
    /// The percentage of healthy endpoints below which all endpoints are used; 0 disables it.
    pub min_health_percent: u32,
    /// The HTTP status codes that count as errors, 100 to 599, instead of all from 500 on. If
    /// empty, all from 500 on count.
    pub error_statuses: Box<[u16]>,
}

static_default!(PoolLimits: RareLimits, OutlierDetection: RareOutlierSettings);

/// The defaults without a DestinationRule. Each of the two parts applies as a whole.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UsualLimits {
    /// `connectionPool`.
    pub connection_pool: Option<Arc<PoolLimits>>,
    /// `outlierDetection`.
    pub outlier_detection: Option<Arc<OutlierDetection>>,
}

/// A field that cannot be applied as written, with its name and the effect.
#[derive(Debug, PartialEq, Eq)]
pub enum LimitFault {
    /// The field is not supported.
    Unsupported(&'static str, String),
    /// The value is invalid; the field is ignored.
    Value(&'static str, String),
    /// The value is out of range; the nearest limit applies.
    Bounded(&'static str, String),
    /// The duration is 0s, which the API does not allow; the default applies, as if the field were
    /// absent.
    Zero(&'static str),
}

impl PoolLimits {
    fn to_json(&self) -> Value {
        let time = |time: Option<Duration>| time.map(format_duration);
        let keepalive = self.tcp_keepalive.map(|one| {
            json!({ "probes": one.probes, "time": time(one.time), "interval": time(one.interval) })
        });
        let pings = self.http2_keepalive.map(|pings| {
            json!({
                "interval": format_duration(pings.interval), "timeout": format_duration(pings.timeout),
            })
        });
        let upgrade = match self.h2_upgrade {
            None => "DEFAULT",
            Some(false) => "DO_NOT_UPGRADE",
            Some(true) => "UPGRADE",
        };
        json!({
            "tcp": {
                "maxConnections": self.max_connections,
                "connectTimeout": time(self.connect_timeout),
                "tcpKeepalive": keepalive,
                "maxConnectionDuration": time(self.max_connection_duration),
                "idleTimeout": time(self.tcp_idle_timeout),
            },
            "http": {
                "http1MaxPendingRequests": self.max_pending_requests,
                "http2MaxRequests": self.max_requests,
                "maxRequestsPerConnection": self.max_requests_per_connection,
                "maxRetries": self.max_retries,
                "maxConcurrentStreams": self.max_concurrent_streams,
                "http2KeepAlive": pings,
                "idleTimeout": time(self.http_idle_timeout),
                "h2UpgradePolicy": upgrade,
                "useClientProtocol": self.use_client_protocol,
            },
        })
    }
}

impl OutlierDetection {
    fn to_json(&self) -> Value {
        json!({
            "consecutive5xxErrors": self.consecutive_5xx,
            "consecutiveGatewayErrors": self.consecutive_gateway_errors,
            "consecutiveLocalOriginFailures": self.consecutive_local_origin_failures,
            "splitExternalLocalOriginErrors": self.split_local_origin,
            "interval": self.interval.map(format_duration),
            "baseEjectionTime": self.base_ejection_time.map(format_duration),
            "maxEjectionPercent": self.max_ejection_percent,
            "minHealthPercent": self.min_health_percent,
            "outlierDetectionHttpErrorCodes": self.error_statuses,
        })
    }
}

impl UsualLimits {
    /// Parses `defaultTrafficPolicy`, and adds fields without effect to `ignored`. A problem that a
    /// rule would tolerate is an error here: a setting for the whole mesh applies completely or not
    /// at all.
    pub(super) fn read(
        mut policy: Map<String, Value>,
        ignored: &mut Vec<String>,
    ) -> Result<Self, String> {
        let mut take_block = |name: &'static str, supported: &[(&str, &[&str])]| {
            let value = policy.remove(name).filter(|value| !value.is_null());
            if let Some(value) = &value {
                report_unknown_fields(
                    value,
                    &format!("defaultTrafficPolicy.{name}"),
                    supported,
                    ignored,
                );
            }
            value
        };
        let pool = take_block("connectionPool", POOL_FIELDS);
        let outliers = take_block("outlierDetection", &[("", OUTLIER_FIELDS)]);
        let ignored_blocks = policy.into_iter().filter(|(_, value)| !value.is_null());
        ignored.extend(ignored_blocks.map(|(name, _)| format!("defaultTrafficPolicy.{name}")));
        let pool =
            pool.map(|value| read_limits("connectionPool", value, WrittenPool::read, ignored));
        let pool = pool.transpose()?;
        let outliers = outliers
            .map(|value| read_limits("outlierDetection", value, WrittenOutliers::read, ignored))
            .transpose()?;
        Ok(Self { connection_pool: pool.map(Arc::new), outlier_detection: outliers.map(Arc::new) })
    }

    /// Returns the limits in Istio's terms.
    pub(super) fn to_json(&self) -> Value {
        json!({
            "connectionPool": self.connection_pool.as_ref().map(|pool| pool.to_json()),
            "outlierDetection": self.outlier_detection.as_ref().map(|one| one.to_json()),
        })
    }
}

fn read_limits<W: for<'de> Deserialize<'de>, T>(
    name: &str,
    value: Value,
    convert: impl FnOnce(W) -> (T, Vec<LimitFault>),
    ignored: &mut Vec<String>,
) -> Result<T, String> {
    let written = serde_json::from_value(value).map_err(|error| format!("{name}: {error}"))?;
    let (settings, faults) = convert(written);
    for fault in faults {
        match fault {
            LimitFault::Unsupported(field, text)
            | LimitFault::Value(field, text)
            | LimitFault::Bounded(field, text) => return Err(format!("{name}.{field}: {text}")),
            LimitFault::Zero(field) => ignored.push(format!("defaultTrafficPolicy.{name}.{field}")),
        }
    }
    Ok(settings)
}

/// Adds a fault for each duration that is 0s, which the API does not allow.
fn note_zeros(fields: &[(&'static str, Option<&WrittenDuration>)], faults: &mut Vec<LimitFault>) {
    let is_zero = |time: &Option<&WrittenDuration>| time.is_some_and(|time| time.0.is_zero());
    let zeros = fields.iter().filter(|(_, time)| is_zero(time));
    faults.extend(zeros.map(|(field, _)| LimitFault::Zero(field)));
}

/// The maximum number of streams of a connection (RFC 9113, 6.5.2; Envoy rejects more).
const STREAMS_MAX: u32 = (1 << 31) - 1;

/// The supported fields of a connection pool, by block.
const POOL_FIELDS: &[(&str, &[&str])] = &[
    ("", &["tcp", "http"]),
    (
        "tcp",
        &[
            "maxConnections",
            "connectTimeout",
            "tcpKeepalive",
            "maxConnectionDuration",
            "idleTimeout",
        ],
    ),
    (
        "http",
        &[
            "http1MaxPendingRequests",
            "http2MaxRequests",
            "maxRequestsPerConnection",
            "maxRetries",
            "maxConcurrentStreams",
            "http2KeepAlive",
            "idleTimeout",
            "h2UpgradePolicy",
            "useClientProtocol",
        ],
    ),
];
/// The supported fields of outlier detection.
const OUTLIER_FIELDS: &[&str] = &[
    "consecutive5xxErrors",
    "consecutiveGatewayErrors",
    "consecutiveLocalOriginFailures",
    "splitExternalLocalOriginErrors",
    "consecutiveErrors",
    "interval",
    "baseEjectionTime",
    "maxEjectionPercent",
    "minHealthPercent",
    "outlierDetectionHttpErrorCodes",
];

/// Adds the unknown fields of a value and of the blocks in it to `ignored`.
fn report_unknown_fields(
    value: &Value,
    path: &str,
    supported: &[(&str, &[&str])],
    ignored: &mut Vec<String>,
) {
    for (block, fields) in supported {
        let (value, path) = match *block {
            "" => (value, path.to_owned()),
            name => (&value[name], format!("{path}.{name}")),
        };
        let entries = value.as_object().into_iter().flatten();
        let unsupported =
            entries.filter(|(name, value)| !value.is_null() && !fields.contains(&name.as_str()));
        ignored.extend(unsupported.map(|(name, _)| format!("{path}.{name}")));
    }
}

/// Connection limits as they are written.
#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
pub struct WrittenPool {
    tcp: WrittenTcpPool,
    http: WrittenHttpPool,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct WrittenTcpPool {
    max_connections: Option<u32>,
    connect_timeout: Option<WrittenDuration>,
    tcp_keepalive: Option<WrittenKeepalive>,
    max_connection_duration: Option<WrittenDuration>,
    idle_timeout: Option<WrittenDuration>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct WrittenKeepalive {
    probes: Option<u32>,
    time: Option<WrittenDuration>,
    interval: Option<WrittenDuration>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct WrittenHttpPool {
    http1_max_pending_requests: Option<u32>,
    http2_max_requests: Option<u32>,
    max_requests_per_connection: Option<u32>,
    max_retries: Option<u32>,
    max_concurrent_streams: Option<u32>,
    http2_keep_alive: Option<WrittenPings>,
    idle_timeout: Option<WrittenDuration>,
    h2_upgrade_policy: WrittenUpgrade,
    use_client_protocol: bool,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct WrittenPings {
    interval: WrittenDuration,
    timeout: WrittenDuration,
}

/// Outlier detection as written.
#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
pub struct WrittenOutliers {
    #[serde(rename = "consecutive5xxErrors")]
    consecutive_5xx: Option<u32>,
    consecutive_gateway_errors: Option<u32>,
    consecutive_local_origin_failures: Option<u32>,
    split_external_local_origin_errors: bool,
    consecutive_errors: Option<u32>,
    interval: Option<WrittenDuration>,
    base_ejection_time: Option<WrittenDuration>,
    max_ejection_percent: Option<u32>,
    min_health_percent: u32,
    outlier_detection_http_error_codes: Vec<u32>,
}

impl WrittenPings {
    fn read(self, faults: &mut Vec<LimitFault>) -> Option<Http2Pings> {
        let Self { interval: WrittenDuration(interval), timeout: WrittenDuration(timeout) } = self;
        let pings = Http2Pings { interval, timeout };
        let fits = interval.min(timeout) >= SHORTEST;
        if !fits {
            let text =
                "interval and timeout must both be at least 1 ms; connections are not probed";
            faults.push(LimitFault::Value("http.http2KeepAlive", text.to_owned()));
        }
        fits.then_some(pings)
    }
}

impl WrittenPool {
    /// Returns the limits, and the fields that cannot be applied.
    pub fn read(self) -> (PoolLimits, Vec<LimitFault>) {
        let Self { tcp, http } = self;
        let mut faults = Vec::new();
        // For each of these, zero means not set.
        let limit = |number: Option<u32>| number.filter(|number| *number != 0);
        let time = |raw: Option<WrittenDuration>| raw.map(|WrittenDuration(time)| time);
        let lasting = |raw: Option<WrittenDuration>| time(raw).filter(|time| !time.is_zero());
        let keepalive = tcp.tcp_keepalive.as_ref();
        note_zeros(
            &[
                ("tcp.connectTimeout", tcp.connect_timeout.as_ref()),
                ("tcp.maxConnectionDuration", tcp.max_connection_duration.as_ref()),
                ("tcp.tcpKeepalive.time", keepalive.and_then(|raw| raw.time.as_ref())),
                ("tcp.tcpKeepalive.interval", keepalive.and_then(|raw| raw.interval.as_ref())),
            ],
            &mut faults,
        );
        let streams = limit(http.max_concurrent_streams);
        if let Some(given) = streams.filter(|given| *given > STREAMS_MAX) {
            let text = format!("{given} is more than {STREAMS_MAX}, which applies instead");
            faults.push(LimitFault::Bounded("http.maxConcurrentStreams", text));
        }
        let duration = lasting(tcp.max_connection_duration);
        if duration.is_some_and(|given| given < SHORTEST) {
            faults.push(LimitFault::Bounded("tcp.maxConnectionDuration", SHORTER.to_owned()));
        }
        let more = RareLimits {
            max_concurrent_streams: streams.map(|given| given.min(STREAMS_MAX)),
            http2_keepalive: http.http2_keep_alive.and_then(|raw| raw.read(&mut faults)),
            tcp_keepalive: tcp.tcp_keepalive.map(|raw| TcpKeepalive {
                probes: limit(raw.probes),
                time: lasting(raw.time),
                interval: lasting(raw.interval),
            }),
            max_connection_duration: duration.map(at_least_a_millisecond),
            tcp_idle_timeout: time(tcp.idle_timeout),
            http_idle_timeout: time(http.idle_timeout),
        };
        let limits = PoolLimits {
            max_connections: limit(tcp.max_connections),
            max_pending_requests: limit(http.http1_max_pending_requests),
            max_requests: limit(http.http2_max_requests),
            max_retries: limit(http.max_retries),
            max_requests_per_connection: limit(http.max_requests_per_connection),
            connect_timeout: lasting(tcp.connect_timeout),
            h2_upgrade: http.h2_upgrade_policy.read(),
            use_client_protocol: http.use_client_protocol,
            more: more.into(),
        };
        (limits, faults)
    }
}

impl WrittenOutliers {
    /// Returns the settings, and the fields that cannot be applied.
    pub fn read(self) -> (OutlierDetection, Vec<LimitFault>) {
        let mut faults = Vec::new();
        if self.consecutive_errors.is_some() {
            let text = "it is not supported; use consecutive5xxErrors or consecutiveGatewayErrors";
            faults.push(LimitFault::Unsupported("consecutiveErrors", text.to_owned()));
        }
        if self.consecutive_local_origin_failures.is_some()
            && !self.split_external_local_origin_errors
        {
            let text = "it requires splitExternalLocalOriginErrors: true";
            let field = "consecutiveLocalOriginFailures";
            faults.push(LimitFault::Unsupported(field, text.to_owned()));
        }
        let mut percent = |value: u32, name: &'static str| {
            if value > 100 {
                let text = format!("{value} is more than 100; 100 applies");
                faults.push(LimitFault::Bounded(name, text));
            }
            value.min(100)
        };
        let most = percent(self.max_ejection_percent.unwrap_or_default(), "maxEjectionPercent");
        let least = percent(self.min_health_percent, "minHealthPercent");
        let mut statuses = BTreeSet::new();
        for status in self.outlier_detection_http_error_codes {
            match u16::try_from(status).ok().filter(|status| (100..600).contains(status)) {
                Some(status) => _ = statuses.insert(status),
                None => {
                    let text = format!("{status} is not from 100 to 599 and is ignored");
                    faults.push(LimitFault::Value("outlierDetectionHttpErrorCodes", text));
                }
            }
        }
        let lasting =
            |raw: Option<WrittenDuration>| raw.map(|raw| raw.0).filter(|time| !time.is_zero());
        note_zeros(
            &[
                ("interval", self.interval.as_ref()),
                ("baseEjectionTime", self.base_ejection_time.as_ref()),
            ],
            &mut faults,
        );
        let interval = lasting(self.interval);
        if interval.is_some_and(|given| given < SHORTEST) {
            faults.push(LimitFault::Bounded("interval", SHORTER.to_owned()));
        }
        let more = RareOutlierSettings {
            consecutive_local_origin_failures: self.consecutive_local_origin_failures,
            split_local_origin: self.split_external_local_origin_errors,
            min_health_percent: least,
            error_statuses: statuses.into_iter().collect(),
        };
        let outliers = OutlierDetection {
            consecutive_5xx: self.consecutive_5xx,
            consecutive_gateway_errors: self.consecutive_gateway_errors,
            interval: interval.map(at_least_a_millisecond),
            base_ejection_time: lasting(self.base_ejection_time),
            max_ejection_percent: Some(most).filter(|most| *most != 0),
            more: more.into(),
        };
        (outliers, faults)
    }
}
