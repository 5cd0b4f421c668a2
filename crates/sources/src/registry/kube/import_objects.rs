//! The ServiceImports, derived Services and EndpointSlices that Strait wrote, as they are read, and
//! their names.
//!
//! An object without Strait's labels belongs to another controller, and so does an object that
//! another controller owns. A derived Service also has the name that belongs to its ServiceImport: a
//! copy with another name belongs to its author.

use std::net::IpAddr;
use std::sync::Arc;

use ring::digest;

use super::mcs_form::{ExportCondition, McsSpec};
use super::scope::Scope;
use super::slice_form::Conditions;
use strait_base::hex;
use strait_kube_client::{BorrowedText, Meta, NamespacedName};
use strait_model::{ExportedPort, IpFamily, RawService};

/// The beginning of the names of derived Services and their slices.
const DERIVED_PREFIX: &str = "derived-";
/// The label of derived Services and their slices, with the name of the ServiceImport.
pub(super) const DERIVED: &str = "multicluster.kubernetes.io/service-name";
/// The annotation of a ServiceImport with the name of the derived Service.
pub(super) const DERIVED_SERVICE: &str = "multicluster.kubernetes.io/derived-service";
/// The label of slices with the name in the set of the cluster that has the endpoints.
pub(super) const SOURCE_CLUSTER: &str = "multicluster.kubernetes.io/source-cluster";
/// The label of slices with the name of their Service.
pub(super) const SERVICE_OF_SLICE: &str = "kubernetes.io/service-name";
/// The label of slices with their controller.
pub(super) const SLICE_CONTROLLER: &str = "endpointslice.kubernetes.io/managed-by";
/// The label of slices of headless Services, which kube-proxy ignores.
pub(super) const HEADLESS: &str = "service.kubernetes.io/headless";
pub(super) const SLICE_US: &str = "strait.dev";
/// Kubernetes' controller, which writes the slices of Services with selectors.
const SLICE_KUBERNETES: &str = "endpointslice-controller.k8s.io";
pub(crate) const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
/// The value of [`MANAGED_BY`], and the field manager of server-side apply.
pub(crate) const US: &str = "strait";
/// The label with the name of the cluster set.
pub(crate) const SET: &str = "strait.dev/clusterset";
/// The annotation with the name in the set of the deciding cluster.
pub(super) const DECIDED_BY: &str = "strait.dev/decided-by";
/// The annotation with the hash of the object as Strait last wrote it.
pub(super) const APPLIED: &str = "strait.dev/applied";

/// A ServiceImport that Strait wrote.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct OwnImport {
    pub(super) uid: Box<str>,
    pub(super) version: Box<str>,
    /// When it was created, in seconds since the Unix epoch; 0 if unknown.
    pub(super) created: i64,
    /// See [`APPLIED`].
    pub(super) applied: Box<str>,
    pub(super) decided_by: Arc<str>,
    /// The fields that a Service has too.
    pub(super) service: RawService,
    /// The addresses in the order of the object.
    pub(super) ips: Vec<IpAddr>,
    pub(super) ready: Option<ExportCondition>,
    /// `status.endpointSliceObjects`.
    pub(super) slices: Option<Box<str>>,
}

/// A derived Service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct DerivedService {
    /// Whether Strait wrote it. Otherwise it is never written or deleted.
    pub(super) is_ours: bool,
    pub(super) uid: Box<str>,
    pub(super) version: Box<str>,
    /// See [`APPLIED`].
    pub(super) applied: Box<str>,
    /// The name of the ServiceImport.
    pub(super) import: Arc<str>,
    pub(super) headless: bool,
    /// The cluster IPs, the primary one first.
    pub(super) ips: Vec<IpAddr>,
    /// The fields that a ServiceImport has too.
    pub(super) service: Arc<RawService>,
    /// Whether it has a field that Strait never sets: a selector, external addresses, or another type
    /// than `ClusterIP`.
    pub(super) has_other_fields: bool,
}

/// An EndpointSlice of a derived Service that Strait wrote.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct OwnSlice {
    pub(super) uid: Box<str>,
    pub(super) version: Box<str>,
    /// See [`APPLIED`].
    pub(super) applied: Box<str>,
    /// The name in the set of the cluster that has the endpoints.
    pub(super) source: Arc<str>,
    pub(super) family: IpFamily,
    /// The target ports by name.
    pub(super) ports: Arc<[(Arc<str>, u16)]>,
    /// The addresses in the order of the object, with their conditions.
    pub(super) endpoints: Box<[(IpAddr, Conditions)]>,
}

/// The import to which an EndpointSlice belongs, from its metadata.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum SliceOrigin {
    /// Strait wrote it for the ServiceImport with this name.
    Own(Arc<str>, OwnSlice),
    /// It has a name that Strait might give to a slice, and belongs to another controller. The
    /// derived Service for whose selector Kubernetes wrote it, if it did.
    Foreign(Option<Arc<str>>),
}

/// Returns the origin of an EndpointSlice that is not part of the mesh; `None` if it has no effect.
/// The ports and endpoints of an own slice are still empty.
pub(super) fn slice_origin(
    metadata: &Meta<'_>,
    address_type: &str,
    scope: &Scope,
) -> Option<SliceOrigin> {
    let own = || {
        let label = |name: &str| metadata.labels.get(name);
        let (import, source) = (label(DERIVED)?, label(SOURCE_CLUSTER)?);
        let family = IpFamily::named(address_type)?;
        let key =
            NamespacedName { namespace: scope.text(&metadata.namespace), name: scope.text(import) };
        let derived = derived_name(&key);
        let owner = &metadata.controller;
        let is_of_service =
            owner.kind.given().is_none() || (*owner.kind == *"Service" && *owner.name == *derived);
        let is_named = metadata.name.starts_with(&slice_prefix(&derived, source, family));
        let is_ours = is_ours(metadata, scope)
            && label(SLICE_CONTROLLER) == Some(SLICE_US)
            && label(SERVICE_OF_SLICE) == Some(&*derived);
        let slice = OwnSlice {
            uid: (*metadata.uid).into(),
            version: (*metadata.resource_version).into(),
            applied: metadata.annotations.get(APPLIED).unwrap_or_default().into(),
            source: scope.text(source),
            family,
            ports: Arc::default(),
            endpoints: Box::default(),
        };
        (is_ours && is_of_service && is_named).then_some(SliceOrigin::Own(key.name, slice))
    };
    let foreign = || {
        let is_of_selector = metadata.labels.get(SLICE_CONTROLLER) == Some(SLICE_KUBERNETES);
        let service = metadata.labels.get(SERVICE_OF_SLICE).filter(|_| is_of_selector);
        SliceOrigin::Foreign(service.map(|service| scope.text(service)))
    };
    own().or_else(|| metadata.name.starts_with(DERIVED_PREFIX).then(foreign))
}

/// Returns the beginning of the names of the slices of a derived Service for one cluster and one
/// address family. A number follows.
pub(super) fn slice_prefix(derived: &str, source: &str, family: IpFamily) -> String {
    let hash = digest::digest(&digest::SHA256, source.as_bytes());
    let family = match family {
        IpFamily::V4 => "v4",
        IpFamily::V6 => "v6",
    };
    format!("{derived}-{}-{family}-", hex::encode(&hash.as_ref()[..4]))
}

/// Returns the data of a ServiceImport that Strait wrote; `None` for an import of another
/// controller.
pub(super) fn own(metadata: &Meta<'_>, spec: &McsSpec<'_>, scope: &Scope) -> Option<OwnImport> {
    // Strait's imports have no owner.
    if !is_ours(metadata, scope) || metadata.controller.kind.given().is_some() {
        return None;
    }
    let annotation = |name: &str| metadata.annotations.get(name).unwrap_or_default();
    let ports = spec.ports.iter().filter_map(|port| {
        let number = u16::try_from(port.port).ok()?;
        Some(exported_port(&port.name, &port.protocol, &port.app_protocol, number, scope))
    });
    let seconds = spec.session_affinity_config.client_ip.timeout_seconds;
    let text = |text: &BorrowedText<'_>| text.given().map(|text| scope.text(text));
    let service = RawService {
        headless: *spec.r#type == *"Headless",
        ports: ports.collect(),
        sticky: *spec.session_affinity == *"ClientIP",
        sticky_seconds: u32::try_from(seconds).ok().filter(|seconds| *seconds > 0),
        internal_traffic_policy: text(&spec.internal_traffic_policy),
        traffic_distribution: text(&spec.traffic_distribution),
        ip_families: spec.ip_families.iter().filter_map(|one| IpFamily::named(one)).collect(),
    };
    Some(OwnImport {
        uid: (*metadata.uid).into(),
        version: (*metadata.resource_version).into(),
        created: metadata.creation_timestamp.seconds(),
        applied: annotation(APPLIED).into(),
        decided_by: scope.text(annotation(DECIDED_BY)),
        service,
        ips: spec.ips.iter().filter_map(|ip| ip.parse().ok()).collect(),
        ready: None,
        slices: None,
    })
}

/// Returns a port of a Service or a ServiceImport. The protocol defaults to TCP.
pub(super) fn exported_port(
    name: &BorrowedText<'_>,
    protocol: &BorrowedText<'_>,
    app_protocol: &BorrowedText<'_>,
    number: u16,
    scope: &Scope,
) -> ExportedPort {
    ExportedPort {
        name: scope.text(name),
        protocol: scope.text(protocol.given().unwrap_or("TCP")),
        app_protocol: app_protocol.given().map(|text| scope.text(text)),
        number,
    }
}

/// Returns the data of a derived Service, without its fields; `None` for any other Service. The first
/// of the `cluster_ips` is `clusterIP`, which repeats the first of the others.
pub(super) fn derived<'a>(
    metadata: &Meta<'_>,
    mut cluster_ips: impl Iterator<Item = &'a str> + Clone,
    scope: &Scope,
) -> Option<DerivedService> {
    let import = metadata.labels.get(DERIVED)?;
    let key =
        NamespacedName { namespace: scope.text(&metadata.namespace), name: scope.text(import) };
    let owner = &metadata.controller;
    // A restored backup may lack the owner.
    let is_of_import =
        owner.kind.given().is_none() || (*owner.kind == *"ServiceImport" && *owner.name == *import);
    let is_ours = is_ours(metadata, scope) && is_of_import && *metadata.name == *derived_name(&key);
    let mut ips: Vec<IpAddr> = Vec::new();
    for ip in cluster_ips.clone().filter_map(|ip| ip.parse().ok()) {
        if !ips.contains(&ip) {
            ips.push(ip);
        }
    }
    Some(DerivedService {
        is_ours,
        uid: (*metadata.uid).into(),
        version: (*metadata.resource_version).into(),
        applied: metadata.annotations.get(APPLIED).unwrap_or_default().into(),
        import: key.name,
        headless: cluster_ips.any(|ip| ip == "None"),
        ips,
        service: Arc::default(),
        has_other_fields: false,
    })
}

fn is_ours(metadata: &Meta<'_>, scope: &Scope) -> bool {
    let is = |label: &str, value: &str| metadata.labels.get(label) == Some(value);
    is(MANAGED_BY, US) && is(SET, &scope.settings.clusterset)
}

/// Returns the name of the derived Service of a ServiceImport: `derived-` and the first 10
/// characters of the hash in base 32. Other implementations use the same name.
pub(super) fn derived_name(import: &NamespacedName) -> String {
    format!("{DERIVED_PREFIX}{}", short_hash(&import.to_string()))
}

/// Returns the first 10 characters of the hash of a text in base 32, as a part of a name.
pub(crate) fn short_hash(text: &str) -> String {
    const DIGITS: &[u8; 32] = b"0123456789abcdefghijklmnopqrstuv";
    const LENGTH: usize = 10;
    let hash = digest::digest(&digest::SHA256, text.as_bytes());
    let mut short = String::with_capacity(LENGTH);
    let (mut bits, mut count) = (0_u32, 0);
    for byte in hash.as_ref().iter().take(7) {
        (bits, count) = (bits << 8 | u32::from(*byte), count + 8);
        while count >= 5 && short.len() < LENGTH {
            count -= 5;
            let digit = usize::try_from(bits >> count & 31).unwrap_or_default();
            short.push(char::from(DIGITS[digit]));
        }
    }
    short
}

/// Returns the family of an address.
pub(super) fn family_of(address: IpAddr) -> IpFamily {
    match address {
        IpAddr::V4(_) => IpFamily::V4,
        IpAddr::V6(_) => IpFamily::V6,
    }
}
