//! The names of Istio's API that more than one reader needs.

/// The API group of ServiceEntry and WorkloadEntry.
pub const ISTIO_NETWORKING: &str = "networking.istio.io";
/// Its versions, the best first. What they say of those two kinds is the same.
pub const ISTIO_NETWORKING_VERSIONS: &[&str] = &["v1", "v1beta1", "v1alpha3"];

/// The API group of Telemetry.
pub const ISTIO_TELEMETRY: &str = "telemetry.istio.io";
/// Its versions, the best first. What they say is the same.
pub const ISTIO_TELEMETRY_VERSIONS: &[&str] = &["v1", "v1alpha1"];

/// The API group of PeerAuthentication, RequestAuthentication and AuthorizationPolicy.
pub const ISTIO_SECURITY: &str = "security.istio.io";
/// Its versions, the best first. What they say is the same.
pub const ISTIO_SECURITY_VERSIONS: &[&str] = &["v1", "v1beta1"];
