//! The names of Kubernetes' Ingress that more than one reader needs.

/// Its API group.
pub const INGRESS_API: &str = "networking.k8s.io";
