//! The vocabulary: plain values that every other module speaks in.
//!
//! Nothing here does I/O, knows Kubernetes, Envoy or Consul, or uses another module of Strait. Edges
//! translate into these types and out of them.

mod cause;
mod collection;
mod configuration;
mod endpoint;
mod endpoints;
mod envoy_patch;
mod facts;
mod gateway;
mod gateway_api;
mod gateway_topology;
mod header;
mod ids;
mod ingress;
mod istio;
mod known_clusters;
mod labels;
mod mcs;
mod namespace_filter;
mod object_json;
mod object_status;
mod packed_text;
mod proxy;
mod rare;
mod root_bundle;
mod route_status;
mod service;
mod sorted;
mod status_condition;
mod telemetry;
mod workload;
mod workload_key;
mod workloads;
mod writer_role;

pub use cause::{Cause, Causes};
pub use collection::{Collection, Difference, ObjectFiles, ObjectKey, RememberedObjects, StandIn};
pub use configuration::{ConfigurationSnapshot, Counted};
pub use endpoint::{Endpoint, Health, Locality, NO_ADDRESS, PodState, TLS_MODE_LABEL, TlsMode};
pub use endpoints::{EndpointGroup, EndpointRef, Endpoints, PackedEndpoint, WorkloadRef};
pub use facts::{ClusterFacts, OwnTraffic};
pub use gateway::{
    DeclaredGateway, GATEWAY_PORT, GATEWAY_PORT_LABEL, GatewayHost, GatewaySource, NETWORK_LABEL,
    gateway_port,
};
pub use gateway_api::GATEWAY_API;
pub use gateway_topology::{ForwardedCertificate, GatewayTopology};
pub use header::{is_header_name, is_header_value};
pub use ids::{ClusterId, ClusterIdError, Hostname, Namespace, NetworkId};
pub use ingress::{INGRESS_API, IngressStatus};
pub use istio::{
    ISTIO_NETWORKING, ISTIO_NETWORKING_VERSIONS, ISTIO_SECURITY, ISTIO_SECURITY_VERSIONS,
    ISTIO_TELEMETRY, ISTIO_TELEMETRY_VERSIONS,
};
pub use known_clusters::{
    IgnoredClaim, KnownCluster, KnownClusters, Mode, SameAddress, SameRange, Seniority,
    is_trust_domain,
};
pub use labels::{Labels, given_labels, labels_match};
pub use mcs::{CLUSTERSET, Disagreement, MCS_API, Mcs, SharedService, SharedServices};
pub use namespace_filter::{LabelCondition, LabelSelector, NamespaceFilter, Test};
pub use object_json::ObjectJson;
pub use object_status::{ObjectStatus, WantedStatus};
pub use proxy::{
    GrpcLibrary, Interception, IstioFilter, IstioFilters, MountedSecrets, NodeError, Proxy,
    ProxyType, SdsFiles, SecretNames, VirtualHostDelivery, is_privileged,
};
pub(crate) use rare::unsaid;
pub use rare::{RareGroup, Unsaid};
pub use root_bundle::RootBundle;
pub use route_status::{GATEWAY_CONTROLLER, RouteParentStatus, RouteStatus};
pub use service::{
    ByName, Definition, Distribution, ExportTo, NamedEndpoint, Port, Protocol, Resolution, Service,
    TargetPort,
};
pub use sorted::{SortedMap, filling, repack};
pub use status_condition::StatusCondition;
pub use telemetry::{EndpointMetadata, telemetry};
pub use workload::{Addresses, Profile, UidMark, Workload};
pub use workload_key::WorkloadKey;
pub use workloads::{Near, Workloads, WorkloadsBuilder};
pub use writer_role::WriterRole;
