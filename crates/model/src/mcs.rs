//! Multi-cluster services: how clusters export services to others, and the resulting services of
//! the mesh.

use std::collections::{BTreeMap, BTreeSet};

use super::{ClusterId, WorkloadKey};

/// The API group of ServiceExports and ServiceImports.
pub const MCS_API: &str = "multicluster.x-k8s.io";
/// The domain of services that are shared by all clusters of a set (KEP-1645).
pub const CLUSTERSET: &str = "clusterset.local";

/// The meaning of ServiceExports and ServiceImports (`--mcs`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mcs {
    /// They are ignored: services with the same name are one service in all clusters.
    #[default]
    Off,
    /// A cluster's endpoints of a service are available to other clusters only if it exports the
    /// service.
    Exports,
    /// As [`Self::Exports`], and exported or imported services also have the hostname
    /// `NAME.NAMESPACE.svc.clusterset.local`.
    Clusterset,
    /// As [`Self::Clusterset`], and under its own hostname, a service is local to its cluster even
    /// if it is exported.
    Strict,
}

/// The shared services of the mesh, for the clusters into which they are written.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SharedServices {
    /// Services that at least one cluster exports, by namespace and name.
    pub services: BTreeMap<WorkloadKey, SharedService>,
    /// Services that a cluster must export automatically, by cluster (`--mcs-auto-export`).
    pub to_export: BTreeMap<ClusterId, BTreeSet<WorkloadKey>>,
}

/// A service that at least one cluster exports.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SharedService {
    /// The clusters whose endpoints are available to proxies of all clusters, sorted.
    pub clusters: Vec<ClusterId>,
    /// The clusters whose exports the policy refuses, sorted.
    pub refused: Vec<ClusterId>,
    /// The disagreement among the exporting clusters, if any.
    pub conflict: Option<Disagreement>,
}

/// The fields on which the clusters that export a service disagree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Disagreement {
    /// The reason of the condition `Conflict`, as the multi-cluster services API spells it; several
    /// are separated by commas.
    pub reason: String,
    /// The cluster whose value applies and the clusters that differ, as text.
    pub message: String,
}
