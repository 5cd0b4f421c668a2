//! The parts of the event loop's state: inputs that are replaced as a whole, the derived parts of a
//! version, and changes that the next version will contain.

use std::collections::BTreeSet;
use std::sync::Arc;

use imbl::OrdMap;

use super::reach::TouchedReach;
use crate::aggregate::{AggregateChanges, MergedService};
use crate::network::probes::ProbeAddress;
use crate::network::{Networks, ResolvedNames};
use crate::push::aliases::ServiceAliases;
use crate::push::context::Private;
use crate::push::remote_pods::RemotePods;
use strait_model::mesh_config::{MeshConfig, MeshNetworks};
use strait_model::policy::Policy;
use strait_model::{
    Causes, ClusterFacts, ClusterId, ConfigurationSnapshot, Hostname, KnownClusters, Namespace,
    NetworkId, Workloads,
};

/// Inputs that an event replaces as a whole. Separate types apply the other inputs incrementally.
#[derive(Clone, Default)]
pub(super) struct MeshInputs {
    pub(super) config: Arc<MeshConfig>,
    pub(super) mesh_networks: Arc<MeshNetworks>,
    pub(super) clusters: Arc<KnownClusters>,
    pub(super) policy: Arc<Policy>,
    /// The DNS responses for gateway names.
    pub(super) resolved: Arc<ResolvedNames>,
    /// Gateways that failed their probes.
    pub(super) dead_gateways: Arc<BTreeSet<ProbeAddress>>,
    pub(super) configuration: Arc<ConfigurationSnapshot>,
}

/// Derived parts of the current version.
#[derive(Clone, Default)]
pub(super) struct VersionParts {
    pub(super) networks: Arc<Networks>,
    pub(super) services: OrdMap<Hostname, Arc<MergedService>>,
    /// Definitions that apply only to proxies of one namespace.
    pub(super) private: Private,
    /// The number of services that are visible only to certain namespaces, by namespace.
    pub(super) restricted_namespaces: OrdMap<Namespace, usize>,
    pub(super) aliases: ServiceAliases,
    pub(super) network_labels: OrdMap<ClusterId, Option<NetworkId>>,
    pub(super) workloads: OrdMap<ClusterId, Workloads>,
    pub(super) facts: OrdMap<ClusterId, ClusterFacts>,
    /// Pods of headless services that are reached by name from other networks.
    pub(super) remote_pods: RemotePods,
}

/// The changes since the current version. Each field is taken when the next version is built.
#[derive(Clone)]
pub(super) struct UnpublishedChanges {
    pub(super) aggregate: AggregateChanges,
    pub(super) reach: TouchedReach,
    /// Aliases whose target changed.
    pub(super) renamed: BTreeSet<Hostname>,
    /// The objects that caused the changes.
    pub(super) causes: Causes,
    /// Whether a setting changed that any resource may contain.
    pub(super) everything: bool,
    /// Whether inputs of the networks and their gateways changed.
    pub(super) networks: bool,
    /// Whether every service must be merged again.
    pub(super) all_hosts: bool,
    /// Whether the entries of machines changed.
    pub(super) machines: bool,
    /// Whether an edition was added or removed.
    pub(super) editions: bool,
    /// Whether the exported services of a cluster changed.
    pub(super) exports: bool,
}

impl Default for UnpublishedChanges {
    /// Creates the value before the first version: the networks have not been computed.
    fn default() -> Self {
        Self {
            aggregate: AggregateChanges::default(),
            reach: TouchedReach::default(),
            renamed: BTreeSet::new(),
            causes: Causes::default(),
            everything: false,
            networks: true,
            all_hosts: false,
            machines: false,
            editions: false,
            exports: false,
        }
    }
}
