//! Multi-cluster services: whether, and how, clusters say which of their services are for others, and what
//! the mesh makes of it.

use std::collections::{BTreeMap, BTreeSet};

use super::{ClusterId, WorkloadKey};

/// The API group of ServiceExports and ServiceImports.
pub const MCS_API: &str = "multicluster.x-k8s.io";
/// The domain of services that are the same in all clusters of a set (KEP-1645).
pub const CLUSTERSET: &str = "clusterset.local";

/// What ServiceExports and ServiceImports mean (`--mcs`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mcs {
    /// Nothing: services of one name are one service in all clusters.
    #[default]
    Off,
    /// A cluster's endpoints of a service are for others only where it exports it.
    Exports,
    /// The same, and what is exported or imported is `NAME.NAMESPACE.svc.clusterset.local` as well.
    Clusterset,
    /// The same, and under its own name a service is its cluster's alone, exported or not.
    Strict,
}

/// What the mesh makes of services that clusters share: for clusters in which that is written down.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SharedServices {
    /// Those that at least one cluster exports, by namespace and name.
    pub services: BTreeMap<WorkloadKey, SharedService>,
    /// By cluster, those that it is to export without being asked to (`--mcs-auto-export`).
    pub to_export: BTreeMap<ClusterId, BTreeSet<WorkloadKey>>,
}

/// A service that at least one cluster exports.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SharedService {
    /// Whose endpoints are for proxies of all clusters, sorted.
    pub clusters: Vec<ClusterId>,
    /// Whose are not, since policy refuses their exports, sorted.
    pub refused: Vec<ClusterId>,
    /// On what those clusters disagree.
    pub conflict: Option<Disagreement>,
}

/// On what the clusters disagree that export a service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Disagreement {
    /// The reason of the condition `Conflict`, as the multi-cluster services API spells it; of several they
    /// stand side by side with commas between.
    pub reason: String,
    /// Who decides, and who states otherwise, as text.
    pub message: String,
}
