//! Multi-cluster services: how clusters export services to others, and the resulting services of
//! the mesh.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use imbl::{OrdMap, OrdSet};

use super::{ClusterId, Labels, WorkloadKey};

/// The API group of ServiceExports and ServiceImports.
pub const MCS_API: &str = "multicluster.x-k8s.io";

/// Returns whether a text is a valid name of a cluster in a set: a DNS label, or two with a dot
/// (KEP-1645).
pub fn is_set_name(text: &str) -> bool {
    let is_inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let is_label = |label: &str| {
        (1..=63).contains(&label.len())
            && label.bytes().all(is_inner)
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    let mut labels = text.split('.');
    labels.by_ref().take(2).all(is_label) && labels.next().is_none()
}

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

/// Which objects are written into a cluster for exported services (`--mcs-imports`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum ImportMode {
    /// None.
    #[default]
    Off,
    /// ServiceImports, and a derived Service for each, which has their addresses.
    Names,
    /// As [`Self::Names`], and EndpointSlices of the derived Services.
    Full,
}

impl ImportMode {
    /// Returns the mode as the flag spells it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Names => "names",
            Self::Full => "full",
        }
    }

    /// Returns the mode that the flag or the policy file names.
    ///
    /// # Errors
    /// Returns why the text is not a mode.
    pub fn named(text: &str) -> Result<Self, String> {
        match text {
            "off" => Ok(Self::Off),
            "names" => Ok(Self::Names),
            "full" => Ok(Self::Full),
            _ => Err("it is not one of off, names, full".to_owned()),
        }
    }
}

/// An address family of a Service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum IpFamily {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl IpFamily {
    /// Returns the name of the family in the Kubernetes API.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::V4 => "IPv4",
            Self::V6 => "IPv6",
        }
    }

    /// Returns the family with this name in the Kubernetes API.
    pub fn named(text: &str) -> Option<Self> {
        [Self::V4, Self::V6].into_iter().find(|family| family.as_str() == text)
    }
}

/// One port of a Service as the API server stores it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ExportedPort {
    /// The name; may be empty.
    pub name: Arc<str>,
    /// The transport protocol: `TCP`, `UDP` or `SCTP`.
    pub protocol: Arc<str>,
    /// The declared application protocol.
    pub app_protocol: Option<Arc<str>>,
    /// The service port.
    pub number: u16,
}

impl fmt::Display for ExportedPort {
    /// Writes `http 80/TCP`, with the application protocol in parentheses if one is declared.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, protocol, app_protocol, number } = self;
        if !name.is_empty() {
            write!(f, "{name} ")?;
        }
        write!(f, "{number}/{protocol}")?;
        app_protocol.iter().try_for_each(|app| write!(f, " ({app})"))
    }
}

/// The fields of a Service that are merged over the clusters which export it, as the API server
/// stores them.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct RawService {
    /// Whether it has no cluster IP (`clusterIP: None`).
    pub headless: bool,
    /// The ports in the order of the object.
    pub ports: Vec<ExportedPort>,
    /// Whether `sessionAffinity` is `ClientIP`.
    pub sticky: bool,
    /// `sessionAffinityConfig.clientIP.timeoutSeconds`.
    pub sticky_seconds: Option<u32>,
    /// `internalTrafficPolicy`, if it is set.
    pub internal_traffic_policy: Option<Arc<str>>,
    /// `trafficDistribution`, if it is set.
    pub traffic_distribution: Option<Arc<str>>,
    /// `ipFamilies`, the primary family first.
    pub ip_families: Vec<IpFamily>,
}

/// A Service that a cluster exports, with the data of the ServiceExport.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExportedService {
    /// When the ServiceExport was created, in seconds since the Unix epoch; 0 if unknown.
    pub created: i64,
    /// The fields of the Service.
    pub service: Arc<RawService>,
    /// `spec.exportedLabels`.
    pub labels: Labels,
    /// `spec.exportedAnnotations`.
    pub annotations: Labels,
}

/// An existing ServiceImport that Strait wrote into a cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WrittenImport {
    /// The name in the set of the cluster whose export decides its fields.
    pub decided_by: Arc<str>,
    /// When it was created, in seconds since the Unix epoch; 0 if unknown.
    pub created: i64,
}

/// The exports of one cluster, and the ServiceImports that Strait wrote into it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ClusterExports {
    /// The exported services by name, without exports that are not valid.
    pub exports: OrdMap<WorkloadKey, Arc<ExportedService>>,
    /// Whether this process has read all of them, so that a missing name is not exported.
    pub is_complete: bool,
    /// Whether none has been read so far, for example because the cluster does not serve the kind:
    /// exports that were known before stay.
    pub is_unread: bool,
    /// Names that may be exported, because one of their objects could not be decoded.
    pub unknown: OrdSet<WorkloadKey>,
    /// The ServiceImports of this set that Strait wrote.
    pub imports: OrdMap<WorkloadKey, WrittenImport>,
}

impl ClusterExports {
    /// Returns whether both share their contents. False negatives are possible.
    pub fn is_same(&self, other: &Self) -> bool {
        let Self { exports, is_complete, is_unread, unknown, imports } = self;
        (is_complete, is_unread) == (&other.is_complete, &other.is_unread)
            && (exports.ptr_eq(&other.exports) || exports.is_empty() && other.exports.is_empty())
            && (unknown.ptr_eq(&other.unknown) || unknown.is_empty() && other.unknown.is_empty())
            && (imports.ptr_eq(&other.imports) || imports.is_empty() && other.imports.is_empty())
    }
}

/// The shared services of the mesh, for the clusters into which they are written.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SharedServices {
    /// Services that at least one cluster exports, by namespace and name.
    pub services: BTreeMap<WorkloadKey, SharedService>,
    /// Services that a cluster must export automatically, by cluster (`--mcs-auto-export`).
    pub to_export: BTreeMap<ClusterId, BTreeSet<WorkloadKey>>,
    /// The members of the set, including those without a valid name.
    pub members: BTreeMap<ClusterId, SetMember>,
    /// Whether a cluster that is not a member was removed. Certain once the process has run for
    /// longer than `--cluster-removal-grace`.
    pub removals_certain: bool,
}

/// A cluster of the set.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SetMember {
    /// Its name in the set; `None` if it has no valid one, so that it exports nothing.
    pub name: Option<Arc<str>>,
    /// Whether its exports are unknown: it was not read since the start, and no data was restored.
    pub is_unknown: bool,
    /// Whether this process has read all its exports.
    pub is_complete: bool,
    /// Names that the cluster may export, because one of their objects could not be decoded.
    pub unknown: OrdSet<WorkloadKey>,
}

impl SetMember {
    /// Returns whether the cluster certainly does not export a service. The caller has checked that
    /// it is not among the known exports.
    pub fn lacks(&self, service: &WorkloadKey) -> bool {
        self.is_complete && !self.unknown.contains(service)
    }
}

impl SharedServices {
    /// Returns the member with this name in the set.
    pub fn member(&self, name: &str) -> Option<(&ClusterId, &SetMember)> {
        self.members.iter().find(|(_, member)| member.name.as_deref() == Some(name))
    }

    /// Shares equal merged services with an earlier value, so that comparisons are fast.
    pub fn share_with(&mut self, before: &Self) {
        for (name, service) in &mut self.services {
            let before = before.services.get(name).and_then(|before| before.merged.as_ref());
            if let Some(before) = before.filter(|before| Some(*before) == service.merged.as_ref()) {
                service.merged = Some(Arc::clone(before));
            }
        }
    }

    /// Returns whether the exports of at least one member are unknown.
    pub fn is_partial(&self) -> bool {
        self.members.values().any(|member| member.is_unknown)
    }
}

/// A service that at least one cluster exports.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SharedService {
    /// The valid exports, the deciding one first, then by age.
    pub exports: Vec<RankedExport>,
    /// The clusters whose exports are refused, sorted.
    pub refused: BTreeMap<ClusterId, String>,
    /// The merged service; `None` if every export is refused.
    pub merged: Option<Arc<ImportedService>>,
    /// The disagreement among the exporting clusters, if any.
    pub conflict: Option<Disagreement>,
}

impl SharedService {
    /// Returns whether a cluster exports the service validly.
    pub fn is_exported_by(&self, cluster: &ClusterId) -> bool {
        self.exports.iter().any(|export| export.cluster == *cluster)
    }

    /// Returns the names in the set of the exporting clusters, sorted.
    pub fn names(&self) -> Vec<Arc<str>> {
        let mut names: Vec<_> =
            self.exports.iter().map(|export| Arc::clone(&export.name)).collect();
        names.sort();
        names
    }
}

/// A valid export of one cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RankedExport {
    /// The cluster.
    pub cluster: ClusterId,
    /// The name of the cluster in the set.
    pub name: Arc<str>,
    /// The age by which it is ranked, in seconds since the Unix epoch; [`i64::MAX`] if unknown.
    pub age: i64,
    /// The exported fields.
    pub service: Arc<ExportedService>,
    /// The fields in which it differs from the deciding export.
    pub conflicts: Vec<&'static str>,
}

/// The service that importing clusters see: the result of merging all valid exports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImportedService {
    /// The name in the set of the cluster whose export decides the fields.
    pub decided_by: Arc<str>,
    /// The merged fields. Ports are sorted by name and are the union; families are the
    /// intersection.
    pub service: RawService,
    /// The labels of the deciding export.
    pub labels: Labels,
    /// The annotations of the deciding export.
    pub annotations: Labels,
}

/// The fields on which the clusters that export a service disagree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Disagreement {
    /// The reason of the condition `Conflict`, as the multi-cluster services API spells it; several
    /// are separated by commas.
    pub reason: String,
    /// One sentence per field: how many clusters disagree, and whose value applies.
    pub message: String,
    /// The fields, in the order of the sentences.
    pub fields: Vec<&'static str>,
}
