//! `/debug/traffic`: the traffic that Prometheus has measured at the clients' proxies.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The traffic between clusters and to services, or the reason why it cannot be read.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct MeasuredTraffic {
    /// The traffic between clusters: at most 2000 rows in descending order of `rate`. Absent if it
    /// was not read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clusters: Option<Vec<ClusterTraffic>>,
    /// Whether the server has the address of a Prometheus.
    pub enabled: bool,
    /// Why the traffic cannot be read. Absent without a problem.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// The traffic to services: at most 2000 rows in descending order of `rate`. Absent if it was
    /// not read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub services: Option<Vec<ServiceTraffic>>,
    /// Length of the window of the rates, for example `2m`. Absent if traffic is not enabled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub window: Option<String>,
}

/// The traffic from one cluster to another, or within one cluster.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ClusterTraffic {
    /// ID of the servers' cluster.
    pub destination: String,
    /// Number of failed requests per second: status 5xx, or no response.
    pub errors: f64,
    /// 95th percentile of the duration of requests in milliseconds; null without a value.
    pub p95: Option<f64>,
    /// Number of requests per second.
    pub rate: f64,
    /// ID of the clients' cluster.
    pub source: String,
}

/// The traffic to a service.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ServiceTraffic {
    /// Number of failed requests per second: status 5xx, or no response.
    pub errors: f64,
    /// Host name of the service.
    pub hostname: String,
    /// 95th percentile of the duration of requests in milliseconds; null without a value.
    pub p95: Option<f64>,
    /// Number of requests per second.
    pub rate: f64,
}
