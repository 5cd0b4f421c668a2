//! The vocabulary of the mesh: plain values that all other crates exchange.
//!
//! Identifiers, services, endpoints, workloads, proxies, gateways; the settings of the mesh
//! ([`mesh_config`], [`policy`]); and the contract between the sources of services and the
//! aggregate ([`registry`]). Invariants:
//!
//! - No I/O, no tasks, no clock: values and pure functions only.
//! - No type of Kubernetes, Envoy or Consul. The crates at the edges convert to and from these
//!   values.
//! - A shared value is immutable and behind an [`std::sync::Arc`].

#![forbid(unsafe_code)]

mod ids;
mod labels;
mod namespace_filter;
mod telemetry;

mod controller;
mod endpoint;
mod endpoints;
mod gateway;
mod gateway_topology;
mod mcs;
mod mcs_endpoints;
mod service;
mod sharing;
mod workload;
mod workload_key;
mod workloads;

pub mod credential;
mod dns;
mod facts;
pub mod fetched_keys;
mod known_clusters;
mod proxy;
mod proxy_name;
mod read_namespaces;
mod root_bundle;
pub mod tls_files;
mod writer_role;

pub mod mesh_config;
pub mod policy;
pub mod registry;

mod collection;
mod config_kind;
mod configuration;
mod envoy_patch;
mod gateway_api;
mod header;
mod ingress;
mod istio;
mod object_json;
mod object_status;
mod packed_text;
mod route_status;
mod status_condition;

mod cause;
pub mod dirty;
mod rare;
mod sorted;

#[cfg(any(test, fuzzing))]
pub mod fuzz;
pub mod testing;

pub use cause::{Cause, Causes};
pub use collection::{
    Collection, Difference, LastValidObject, ObjectFiles, ObjectKey, RememberedObjects,
};
pub use config_kind::{CONFIG_KINDS, ConfigKind, ConfigRole, StatusField};
pub use configuration::{ConfigurationSnapshot, Counted};
pub use controller::workload_of_controller;
pub use dns::{DnsHosts, DnsMode, DnsTarget};
pub use endpoint::{Endpoint, Health, Locality, NO_ADDRESS, PodState, TLS_MODE_LABEL, TlsMode};
pub use endpoints::{EndpointGroup, EndpointRef, Endpoints, PackedEndpoint, WorkloadRef};
pub use envoy_patch::code_of_patch;
pub use facts::{ClusterFacts, OwnTraffic};
pub use gateway::{
    DeclaredGateway, GATEWAY_PORT, GATEWAY_PORT_LABEL, GatewayHost, GatewaySource, NETWORK_LABEL,
    gateway_port, parse_gateway_port,
};
pub use gateway_api::GATEWAY_API;
pub use gateway_topology::{ForwardedCertificate, GatewayTopology};
pub use header::{is_header_name, is_header_value};
pub use ids::{CLUSTERSET, ClusterId, ClusterIdError, Hostname, Namespace, NetworkId};
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
pub use mcs::{
    ClusterExports, Disagreement, ExportedPort, ExportedService, ImportMode, ImportedService,
    IpFamily, MCS_API, Mcs, RankedExport, RawService, SetMember, SharedService, SharedServices,
    WrittenImport, is_set_name,
};
pub use mcs_endpoints::{SharedEndpoint, SharedEndpoints, SourceEndpoints};
pub use namespace_filter::{LabelCondition, LabelSelector, NamespaceFilter, Test};
pub use object_json::ObjectJson;
pub use object_status::{ObjectStatus, WantedStatus};
pub use proxy::{
    GrpcLibrary, Interception, IstioFilter, IstioFilters, MountedSecrets, NodeError, Proxy,
    ProxyType, SdsFiles, SecretNames, VirtualHostDelivery, is_privileged,
};
pub use proxy_name::{NameMatch, ProxyName};
pub use rare::{RareGroup, StaticDefault};
pub use read_namespaces::ReadNamespaces;
pub use root_bundle::RootBundle;
pub use route_status::{GATEWAY_CONTROLLER, RouteParentStatus, RouteStatus};
pub use service::{
    ByName, Definition, Distribution, ExportTo, HEADLESS_EVERYWHERE, NamedEndpoint, NamedPodScope,
    Port, Protocol, Resolution, Service, TargetPort,
};
pub use sharing::{
    ISTIO_GLOBAL_LABEL, SERVICE_SETTINGS_RULE, SHARE_LABEL, SharingDecision, SharingFacts,
    SharingRule,
};
pub use sorted::{SortedMap, filling, repack};
pub use status_condition::StatusCondition;
pub use telemetry::{EndpointMetadata, telemetry};
pub use workload::{Addresses, Profile, UidMark, Workload};
pub use workload_key::WorkloadKey;
pub use workloads::{Near, Workloads, WorkloadsBuilder};
pub use writer_role::WriterRole;
