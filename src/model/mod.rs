//! The vocabulary: plain values that every other module speaks in.
//!
//! Nothing here does I/O, knows Kubernetes, Envoy or Consul, or uses another module of Strait. Edges
//! translate into these types and out of them.

mod collection;
mod endpoint;
mod endpoints;
mod facts;
mod gateway;
mod ids;
mod istio;
mod known_clusters;
mod mcs;
mod namespace_filter;
mod proxy;
mod service;
mod sorted;
mod telemetry;
mod workload;
mod workloads;

pub use collection::{Collection, Difference, ObjectKey};
pub use endpoint::{Endpoint, Health, Locality, NO_ADDRESS, PodState, TLS_MODE_LABEL, TlsMode};
pub use endpoints::{EndpointRef, Endpoints, Kind, Packed, WorkloadRef};
pub use facts::ClusterFacts;
pub use gateway::{
    DeclaredGateway, GATEWAY_PORT, GATEWAY_PORT_LABEL, GatewayHost, GatewaySource, NETWORK_LABEL,
    gateway_port,
};
pub use ids::{ClusterId, ClusterIdError, Hostname, Namespace, NetworkId};
pub use istio::{ISTIO_NETWORKING, ISTIO_NETWORKING_VERSIONS};
pub use known_clusters::{
    IgnoredClaim, KnownCluster, KnownClusters, Mode, SameAddress, Seniority, is_trust_domain,
};
pub use mcs::{Disagreement, Mcs, SharedService, SharedServices};
pub use namespace_filter::{Condition, LabelSelector, NamespaceFilter, Test};
pub use proxy::{NodeError, Proxy, ProxyType};
pub use service::{
    ByName, Definition, Distribution, ExportTo, Labels, NamedEndpoint, Port, Protocol, Resolution,
    Service, TargetPort, labels_match,
};
pub use sorted::{SortedMap, repack};
pub use telemetry::{EndpointMetadata, telemetry};
pub use workload::{Addresses, Profile, Workload, WorkloadKey};
pub use workloads::{Gathered, Near, Workloads};
