//! Names of the Gateway API that several modules use.

/// The API group.
pub const GATEWAY_API: &str = "gateway.networking.k8s.io";
