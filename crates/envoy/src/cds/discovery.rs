//! How an encoded cluster finds its endpoints.

use prost::Message;

use strait_proto::envoy::envoy::config::cluster::v3 as cluster;

/// The field of a cluster that defines how Envoy discovers its endpoints
/// (`config/cluster/v3/cluster.proto`).
#[derive(Clone, Copy, PartialEq, Eq, Message)]
struct DiscoveryField {
    #[prost(int32, tag = "2")]
    kind: i32,
}

/// Returns whether an encoded cluster receives its endpoints by EDS.
pub(crate) fn uses_eds(cluster: &[u8]) -> bool {
    let kind = DiscoveryField::decode(cluster).unwrap_or_default().kind;
    kind == cluster::cluster::DiscoveryType::Eds as i32
}
