//! The names of the Gateway API that more than one reader needs.

/// Its API group.
pub const GATEWAY_API: &str = "gateway.networking.k8s.io";
