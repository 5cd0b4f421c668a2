//! Multi-cluster services (`multicluster.x-k8s.io`): the exports of a cluster, and the imports with
//! their addresses.

use std::net::IpAddr;

use serde::Deserialize;

use super::imports::{self, OwnImport};
use super::kind::{IndexedKind, IndexedObject, ReadKind};
use super::scope::Scope;
use strait_kube_client::{
    ApiClient, ApiError, BorrowedText, Form, Identity, Meta, NamespacedName, Pairs, list,
    null_as_default,
};
use strait_model::{Labels, MCS_API, Port, Protocol, TargetPort};

/// The API group.
pub(super) const GROUP: &str = MCS_API;
/// The supported versions, preferred first. Only fields that are equal in both are read.
const VERSIONS: &[&str] = &["v1beta1", "v1alpha1"];

/// A ServiceExport: exports the service with its name and namespace to all clusters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Export {
    /// The conditions in its status.
    pub(super) conditions: Box<[ExportCondition]>,
    /// The generation of the object; 0 if the API server does not count it.
    pub(super) generation: i64,
    /// When it was created, in seconds since the Unix epoch; 0 if unknown.
    pub(super) created: i64,
    /// `spec.exportedLabels`.
    pub(super) labels: Labels,
    /// `spec.exportedAnnotations`.
    pub(super) annotations: Labels,
}

/// A condition in a status.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ExportCondition {
    /// Its type, such as `Valid`.
    pub(super) kind: Box<str>,
    /// `True`, `False` or `Unknown`.
    pub(super) status: Box<str>,
    pub(super) reason: Box<str>,
    pub(super) message: Box<str>,
    /// The time of the last transition of the status, as written.
    pub(super) since: Box<str>,
    /// The generation of the object to which the condition refers; 0 if not stated.
    pub(super) observed: i64,
}

/// A ServiceImport: the service with its name and namespace, from any cluster, at these addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Import {
    pub(super) vips: Vec<IpAddr>,
    /// Its ports; if empty, the ports of the clusters' services apply.
    pub(super) ports: Vec<Port>,
    /// The clusters in its status.
    pub(super) clusters: Box<[Box<str>]>,
    /// The data of an import that Strait wrote; `None` if another controller did.
    pub(super) own: Option<Box<OwnImport>>,
}

/// Whether a service is never shared: the API server of each cluster.
pub(super) fn is_reserved(key: &NamespacedName) -> bool {
    (&*key.namespace, &*key.name) == ("default", "kubernetes")
}

/// Returns the best supported version of the API that a server has.
///
/// # Errors
/// Fails if the request fails; [`ApiError::NotFound`] if the server has no supported version.
pub(super) async fn served(client: &ApiClient) -> Result<&'static str, ApiError> {
    client.served(GROUP, VERSIONS, IndexedKind::ServiceExports.plural()).await
}

/// The decoded part of either kind.
#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct McsForm<'a> {
    #[serde(borrow, deserialize_with = "null_as_default")]
    metadata: Meta<'a>,
    #[serde(borrow, deserialize_with = "null_as_default")]
    spec: McsSpec<'a>,
    #[serde(borrow, deserialize_with = "null_as_default")]
    status: StatusForm<'a>,
}

#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct StatusForm<'a> {
    #[serde(borrow, deserialize_with = "list")]
    conditions: Vec<ConditionForm<'a>>,
    #[serde(borrow, deserialize_with = "list")]
    clusters: Vec<ClusterForm<'a>>,
    #[serde(borrow)]
    endpoint_slice_objects: BorrowedText<'a>,
}

#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ConditionForm<'a> {
    #[serde(borrow)]
    r#type: BorrowedText<'a>,
    #[serde(borrow)]
    status: BorrowedText<'a>,
    #[serde(borrow)]
    reason: BorrowedText<'a>,
    #[serde(borrow)]
    message: BorrowedText<'a>,
    #[serde(borrow)]
    last_transition_time: BorrowedText<'a>,
    #[serde(deserialize_with = "null_as_default")]
    observed_generation: i64,
}

#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
struct ClusterForm<'a> {
    #[serde(borrow)]
    cluster: BorrowedText<'a>,
}

/// The specification of either kind.
#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct McsSpec<'a> {
    #[serde(borrow)]
    pub(super) r#type: BorrowedText<'a>,
    #[serde(borrow, deserialize_with = "list")]
    pub(super) ips: Vec<BorrowedText<'a>>,
    #[serde(borrow, deserialize_with = "list")]
    pub(super) ip_families: Vec<BorrowedText<'a>>,
    #[serde(borrow, deserialize_with = "list")]
    pub(super) ports: Vec<ServiceImportPort<'a>>,
    #[serde(borrow)]
    pub(super) session_affinity: BorrowedText<'a>,
    #[serde(deserialize_with = "null_as_default")]
    pub(super) session_affinity_config: ImportAffinity,
    #[serde(borrow)]
    pub(super) internal_traffic_policy: BorrowedText<'a>,
    #[serde(borrow)]
    pub(super) traffic_distribution: BorrowedText<'a>,
    #[serde(borrow)]
    exported_labels: Pairs<'a>,
    #[serde(borrow)]
    exported_annotations: Pairs<'a>,
}

#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct ImportAffinity {
    #[serde(rename = "clientIP", deserialize_with = "null_as_default")]
    pub(super) client_ip: ImportClientIp,
}

#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct ImportClientIp {
    #[serde(deserialize_with = "null_as_default")]
    pub(super) timeout_seconds: i64,
}

#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct ServiceImportPort<'a> {
    #[serde(borrow)]
    pub(super) name: BorrowedText<'a>,
    #[serde(borrow)]
    pub(super) protocol: BorrowedText<'a>,
    #[serde(borrow)]
    pub(super) app_protocol: BorrowedText<'a>,
    pub(super) port: i64,
}

impl<'a> Form<'a> for McsForm<'a> {
    fn identity(&self) -> Identity<'_> {
        self.metadata.identity()
    }
}

fn condition(form: &ConditionForm<'_>) -> ExportCondition {
    ExportCondition {
        kind: (*form.r#type).into(),
        status: (*form.status).into(),
        reason: (*form.reason).into(),
        message: (*form.message).into(),
        since: (*form.last_transition_time).into(),
        observed: form.observed_generation,
    }
}

impl ReadKind for Export {
    type Form<'a> = McsForm<'a>;
    type List = Vec<IndexedObject<Self>>;

    const PROTOBUF: bool = false;

    fn convert(form: McsForm<'_>, scope: &Scope) -> IndexedObject<Self> {
        let McsForm { metadata, spec, status } = form;
        let export = Self {
            conditions: status.conditions.iter().map(condition).collect(),
            generation: metadata.generation,
            created: metadata.creation_timestamp.seconds(),
            labels: scope.labels(spec.exported_labels),
            annotations: scope.labels(spec.exported_annotations),
        };
        let key = scope.key(metadata.identity());
        IndexedObject { key, value: Some(export), invalid: None }
    }
}

impl ReadKind for Import {
    type Form<'a> = McsForm<'a>;
    type List = Vec<IndexedObject<Self>>;

    const PROTOBUF: bool = false;

    fn convert(form: McsForm<'_>, scope: &Scope) -> IndexedObject<Self> {
        let McsForm { metadata, spec, status } = form;
        let mut invalid = None;
        let mut vips = Vec::new();
        for text in spec.ips.iter().filter_map(BorrowedText::given) {
            match text.parse() {
                Ok(address) => vips.push(address),
                Err(_) => invalid = Some(format!("{text:?} is not an IP address").into()),
            }
        }
        vips.sort();
        let own = imports::own(&metadata, &spec, scope).map(|own| OwnImport {
            ready: status.conditions.iter().find(|one| *one.r#type == *"Ready").map(condition),
            slices: status.endpoint_slice_objects.given().map(Box::from),
            ..own
        });
        let ports = spec.ports.iter().filter(|port| *port.protocol != *"SCTP");
        let ports = ports.filter_map(|port| {
            let number = u16::try_from(port.port).ok().filter(|number| *number > 0)?;
            let declared = port.app_protocol.given();
            Some(Port {
                name: scope.text(&port.name),
                number,
                protocol: Protocol::of_port(&port.protocol, declared, &port.name, number),
                target: TargetPort::Number(number),
            })
        });
        let clusters = status.clusters.iter().map(|one| Box::from(&*one.cluster)).collect();
        let own = own.map(Box::new);
        let import = Self { vips, ports: ports.collect(), clusters, own };
        IndexedObject { key: scope.key(metadata.identity()), value: Some(import), invalid }
    }
}
