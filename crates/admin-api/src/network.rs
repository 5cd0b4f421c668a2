//! `/debug/networks`: the networks and their gateways. `/debug/addresses`: addresses of pods.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A network with its clusters and gateways.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Network {
    /// IDs of the clusters with workloads in the network.
    pub clusters: Vec<String>,
    /// The addresses at which other networks reach this network.
    pub gateways: Vec<NetworkGateway>,
    /// Name of the network.
    pub network: String,
    /// Gateways that cannot be used yet. Absent if empty.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub pending: Vec<PendingGateway>,
}

/// One address of a network's gateway.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct NetworkGateway {
    /// The IP address.
    pub address: String,
    /// The cluster of the gateway; empty if the mesh networks define it.
    pub cluster: String,
    /// Whether the gateway was probed and does not respond. Absent if false.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub dead: bool,
    /// The port for HBONE; 0 if it has none.
    pub hbone_port: u16,
    /// The DNS name from which the address was resolved. Absent without a DNS name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hostname: Option<String>,
    /// The port for mTLS.
    pub port: u16,
    /// The object that defines the gateway, for example `service istio-system/gateway`.
    pub source: String,
    /// How long the resolved address is valid, in seconds. Absent without a DNS name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ttl_seconds: Option<u64>,
}

/// A gateway that cannot be used yet.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PendingGateway {
    /// The cluster of the gateway; empty if the mesh networks define it.
    pub cluster: String,
    /// The code of the reason.
    pub code: Option<String>,
    /// Why it cannot be used.
    pub reason: String,
    /// The object that defines the gateway.
    pub source: String,
}

/// The addresses of one cluster's pods in a network.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ClusterAddresses {
    /// Number of addresses.
    pub addresses: usize,
    /// ID of the cluster.
    pub cluster: String,
    /// Ranges that contain all addresses, at most 64.
    pub ranges: Vec<String>,
    /// The addresses of the query that pods of the cluster have.
    pub same: Vec<String>,
}
