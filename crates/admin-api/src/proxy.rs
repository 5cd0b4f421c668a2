//! `/debug/proxies`: the connected proxies, one entry per stream.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A stream of a connected proxy.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Proxy {
    /// ID of the proxy's cluster.
    pub cluster: String,
    /// When the stream was opened.
    pub connected_at: String,
    /// The node ID, `TYPE~ADDRESS~NAME.NAMESPACE~DOMAIN`.
    pub id: String,
    /// The SPIFFE identity of the proxy.
    pub identity: String,
    /// How traffic reaches the sidecar. Absent for the default, a redirect.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interception: Option<String>,
    /// The unique name of the stream.
    pub key: String,
    /// How the proxy authenticated: `certificate` or `token`.
    pub known_by: Option<String>,
    /// When that certificate or token expires.
    pub known_until: String,
    /// The security patches that the proxy's release lacks and access policies need. Absent if
    /// empty.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub missing_patches: Vec<String>,
    /// The proxy's namespace.
    pub namespace: String,
    /// Name of the proxy's network.
    pub network: String,
    /// The form of the xDS protocol: `delta` or `sotw`.
    pub protocol: String,
    /// The replica to which the proxy is connected. Absent if there is only one replica.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replica: Option<String>,
    /// The secrets to which the proxy subscribes. Absent if empty.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub secrets: Vec<ProxySecret>,
    /// The kind of client: `sidecar`, `router` and others.
    #[serde(rename = "type")]
    pub kind: String,
    /// The delivery of each subscribed resource type, by the type's short name, for example `cds`.
    pub types: BTreeMap<String, TypeDelivery>,
    /// Whether the proxy's cluster has reported its pod.
    pub verified: bool,
    /// The release of Envoy, or of the gRPC library.
    pub version: String,
    /// How virtual hosts are delivered. Absent if they are part of route configurations.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub virtual_hosts: Option<VirtualHostSubscription>,
}

/// The delivery of one resource type to a proxy.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct TypeDelivery {
    /// The last acknowledged version; null without one.
    pub acked: Option<String>,
    /// When the proxy last acknowledged a response.
    pub last_acked: Option<String>,
    /// When a response was last sent.
    pub last_sent: Option<String>,
    /// The rejection of the last response. Absent if the proxy did not reject it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nack: Option<Rejection>,
    /// The last sent version; null if nothing was sent.
    pub sent: Option<String>,
}

/// A rejection (NACK) of a response.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Rejection {
    /// The error text of the proxy.
    pub error: String,
    /// The resources that the proxy named; empty if it named none.
    pub resources: Vec<String>,
}

/// A secret to which a proxy subscribes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ProxySecret {
    /// Code of the reason; null if the secret is sent.
    pub code: Option<String>,
    /// Name of the secret.
    pub name: String,
    /// Why the secret is not sent; null if it is sent.
    pub reason: Option<String>,
    /// Whether the secret was sent.
    pub sent: bool,
}

/// Whether a proxy receives virtual hosts one by one.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct VirtualHostSubscription {
    /// Code of the reason. Absent if it receives them one by one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// Whether the proxy receives virtual hosts one by one.
    pub one_by_one: bool,
    /// Why it receives route configurations instead. Absent if it receives virtual hosts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}
