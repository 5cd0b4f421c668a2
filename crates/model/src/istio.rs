//! Names of Istio's API that several modules use.

/// The API group of ServiceEntry and WorkloadEntry.
pub const ISTIO_NETWORKING: &str = "networking.istio.io";
/// Its versions, in order of preference. They define those two kinds equally.
pub const ISTIO_NETWORKING_VERSIONS: &[&str] = &["v1", "v1beta1", "v1alpha3"];

/// The API group of Telemetry.
pub const ISTIO_TELEMETRY: &str = "telemetry.istio.io";
/// Its versions, in order of preference. They define the kind equally.
pub const ISTIO_TELEMETRY_VERSIONS: &[&str] = &["v1", "v1alpha1"];

/// The API group of PeerAuthentication, RequestAuthentication and AuthorizationPolicy.
pub const ISTIO_SECURITY: &str = "security.istio.io";
/// Its versions, in order of preference. They define the kinds equally.
pub const ISTIO_SECURITY_VERSIONS: &[&str] = &["v1", "v1beta1"];
