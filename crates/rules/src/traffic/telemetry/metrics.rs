//! Metrics settings of Telemetries: metrics that are switched off, and changed labels (Istio,
//! "Telemetry", `metrics`).

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::Value;

use super::cel;
use super::entry::{CallEnd, RawMode, RawProvider};
use crate::traffic::object::Reason;
use strait_base::codes;

/// The provider of service metrics, which exists without a declaration in the mesh config.
const PROMETHEUS: &str = "prometheus";

/// A service metric of proxies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Metric {
    /// `istio_requests_total`.
    RequestCount,
    /// `istio_request_duration_milliseconds`.
    RequestDuration,
    /// `istio_request_bytes`.
    RequestSize,
    /// `istio_response_bytes`.
    ResponseSize,
    /// `istio_tcp_connections_opened_total`.
    TcpOpened,
    /// `istio_tcp_connections_closed_total`.
    TcpClosed,
    /// `istio_tcp_sent_bytes_total`.
    TcpSent,
    /// `istio_tcp_received_bytes_total`.
    TcpReceived,
}

impl Metric {
    const ALL: [Self; 8] = [
        Self::RequestCount,
        Self::RequestDuration,
        Self::RequestSize,
        Self::ResponseSize,
        Self::TcpOpened,
        Self::TcpClosed,
        Self::TcpSent,
        Self::TcpReceived,
    ];

    /// Returns the name of the metric in a Telemetry.
    fn selector(self) -> &'static str {
        match self {
            Self::RequestCount => "REQUEST_COUNT",
            Self::RequestDuration => "REQUEST_DURATION",
            Self::RequestSize => "REQUEST_SIZE",
            Self::ResponseSize => "RESPONSE_SIZE",
            Self::TcpOpened => "TCP_OPENED_CONNECTIONS",
            Self::TcpClosed => "TCP_CLOSED_CONNECTIONS",
            Self::TcpSent => "TCP_SENT_BYTES",
            Self::TcpReceived => "TCP_RECEIVED_BYTES",
        }
    }
}

/// The changes to the metrics of a proxy for one end of calls.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MetricsChoice {
    changes: BTreeMap<Metric, MetricChange>,
}

/// The changes to one metric.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct MetricChange {
    is_off: bool,
    labels: BTreeMap<Arc<str>, LabelChange>,
}

/// A change to a label.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LabelChange {
    /// The label is set to the value of a CEL expression, which Envoy can parse.
    Set(Arc<str>),
    /// The label is left out.
    Removed,
}

impl MetricsChoice {
    /// Returns whether the metric is reported.
    pub fn has(&self, metric: Metric) -> bool {
        !self.changes.get(&metric).is_some_and(|change| change.is_off)
    }

    /// Iterates over the changed labels of a metric, by name.
    pub fn labels(&self, metric: Metric) -> impl Iterator<Item = (&Arc<str>, &LabelChange)> {
        self.changes.get(&metric).into_iter().flat_map(|change| &change.labels)
    }

    /// Combines the rules for one end of calls. A later rule overrides an earlier one.
    pub(super) fn combine<'a>(rules: impl Iterator<Item = &'a MetricsRule>, end: CallEnd) -> Self {
        let mut choice = Self::default();
        for rule in rules.filter(|rule| rule.end.is_none_or(|rule_end| rule_end == end)) {
            for metric in &rule.metrics {
                let change = choice.changes.entry(*metric).or_default();
                change.is_off = rule.disabled.unwrap_or(change.is_off);
                let labels = rule.labels.iter().map(|(name, label)| (name.clone(), label.clone()));
                change.labels.extend(labels);
            }
        }
        choice
    }
}

/// A rule for metrics: one override, or an entry without overrides.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct MetricsRule {
    /// End of the call; `None` for both ends.
    end: Option<CallEnd>,
    metrics: Vec<Metric>,
    disabled: Option<bool>,
    labels: BTreeMap<Arc<str>, LabelChange>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct RawMetrics {
    providers: Vec<RawProvider>,
    overrides: Vec<RawOverride>,
    reporting_interval: Option<Value>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct RawOverride {
    r#match: RawMetricMatch,
    disabled: Option<bool>,
    tag_overrides: BTreeMap<Arc<str>, RawTagOverride>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct RawMetricMatch {
    mode: RawMode,
    metric: Option<Arc<str>>,
    custom_metric: Option<Arc<str>>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct RawTagOverride {
    operation: RawOperation,
    value: Arc<str>,
}

#[derive(Deserialize, Default, Clone, Copy)]
enum RawOperation {
    #[default]
    #[serde(rename = "UPSERT")]
    Upsert,
    #[serde(rename = "REMOVE")]
    Remove,
}

impl RawMetrics {
    /// Parses the overrides, and adds reasons to report to the owner.
    pub(super) fn read(self, path: &str, reasons: &mut Vec<Reason>) -> Vec<MetricsRule> {
        // An entry applies only to its providers, or to the default provider if it names none.
        let is_prometheus = |one: &RawProvider| &*one.name == PROMETHEUS;
        let applies = self.providers.is_empty() || self.providers.iter().any(is_prometheus);
        for (at, _) in self.providers.iter().enumerate().filter(|(_, one)| !is_prometheus(one)) {
            let text = match applies {
                true => "proxies report service metrics only to the provider prometheus",
                false => {
                    "proxies report service metrics only to the provider prometheus; the entry has no effect"
                }
            };
            let path = format!("{path}.providers[{at}].name");
            reasons.push(Reason::lost(&codes::TRAFFIC_UNSUPPORTED, path, text));
        }
        if !applies {
            return Vec::new();
        }
        if self.reporting_interval.is_some() {
            let text = "has no effect: bytes of a connection are counted when it ends";
            let path = format!("{path}.reportingInterval");
            reasons.push(Reason::lost(&codes::TRAFFIC_UNSUPPORTED, path, text));
        }
        let overrides = self.overrides.into_iter().enumerate();
        overrides
            .filter_map(|(at, raw)| raw.read(&format!("{path}.overrides[{at}]"), reasons))
            .collect()
    }
}

impl RawOverride {
    fn read(self, path: &str, reasons: &mut Vec<Reason>) -> Option<MetricsRule> {
        let Self { r#match: matched, disabled, tag_overrides } = self;
        let mut unsupported = |field: &str, text: String| {
            let path = format!("{path}.match.{field}");
            reasons.push(Reason::lost(&codes::TRAFFIC_UNSUPPORTED, path, text));
        };
        let metrics = match (&matched.custom_metric, matched.metric.as_deref()) {
            (Some(_), _) => {
                unsupported("customMetric", "custom metrics are not supported".to_owned());
                return None;
            }
            (None, None | Some("ALL_METRICS")) => Metric::ALL.to_vec(),
            (None, Some(name)) => {
                let Some(metric) = Metric::ALL.into_iter().find(|one| one.selector() == name)
                else {
                    unsupported("metric", format!("proxies do not report {name}"));
                    return None;
                };
                vec![metric]
            }
        };
        let labels = tag_overrides.into_iter().filter_map(|(name, raw)| {
            let change = raw.read(&name);
            let change = change.map_err(|(field, fact)| {
                let path = format!("{path}.tagOverrides[{name}]{field}");
                let text = format!("{fact}; the label does not change");
                reasons.push(Reason::lost(&codes::TRAFFIC_VALUE, path, text));
            });
            Some((name, change.ok()?))
        });
        let labels = labels.collect();
        Some(MetricsRule { end: matched.mode.end(), metrics, disabled, labels })
    }
}

impl RawTagOverride {
    /// Parses the change of a label. The error contains the field and a description.
    fn read(self, name: &str) -> Result<LabelChange, (&'static str, String)> {
        if matches!(self.operation, RawOperation::Remove) {
            return Ok(LabelChange::Removed);
        }
        let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let starts_with_digit = name.starts_with(|c: char| c.is_ascii_digit());
        if name.is_empty() || starts_with_digit || !name.chars().all(is_name) {
            return Err(("", "is not the name of a label".to_owned()));
        }
        let value = self.value;
        if value.is_empty() {
            return Err((".value", "has no expression".to_owned()));
        }
        // In Envoy's format strings, these characters end the operator that contains the expression.
        if value.contains(['%', '\n', '\r']) {
            return Err((".value", "contains % or a line break".to_owned()));
        }
        cel::check(&value).map_err(|fact| (".value", fact))?;
        match cel::unknown_attributes(&value).into_iter().next() {
            Some(name) => Err((".value", format!("{name} is not an attribute of Envoy"))),
            None => Ok(LabelChange::Set(value)),
        }
    }
}
