//! Multi-cluster services (`multicluster.x-k8s.io`): what a cluster exports, and under which addresses it
//! imports.

use std::net::IpAddr;

use serde::Deserialize;

use super::kind::{IndexedKind, IndexedObject, ReadKind};
use super::scope::Scope;
use strait_kube_client::{
    ApiClient, ApiError, BorrowedText, Form, Identity, Meta, list, null_as_default,
};
use strait_model::{MCS_API, Port, Protocol, TargetPort};

/// The API group.
pub(super) const GROUP: &str = MCS_API;
/// Its versions that are read here, the best first. What they say alike is all that is read.
const VERSIONS: &[&str] = &["v1beta1", "v1alpha1"];

/// A ServiceExport: the service of its name and namespace is for all clusters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Export {
    /// What is written in its status.
    pub(super) conditions: Box<[ExportCondition]>,
    /// Which state of it this is; 0 where nobody counts.
    pub(super) generation: i64,
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
    /// Since when the status is so, as it is written.
    pub(super) since: Box<str>,
    /// Which state of the object it was reported of; 0 where that is not stated.
    pub(super) observed: i64,
}

/// A ServiceImport: the service of its name and namespace, from whatever cluster, at these addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Import {
    pub(super) vips: Vec<IpAddr>,
    /// Those it states itself; where it states none, its clusters' services do.
    pub(super) ports: Vec<Port>,
    /// The clusters that are written in its status.
    pub(super) clusters: Box<[Box<str>]>,
}

/// The version of the API that a server has, the best of those that are read here.
///
/// # Errors
/// Those of asking; [`ApiError::NotFound`] where the server has none of them.
pub(super) async fn served(client: &ApiClient) -> Result<&'static str, ApiError> {
    client.served(GROUP, VERSIONS, IndexedKind::ServiceExports.plural()).await
}

/// What is decoded of either.
#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct McsForm<'a> {
    #[serde(borrow, deserialize_with = "null_as_default")]
    metadata: Meta<'a>,
    #[serde(borrow, deserialize_with = "null_as_default")]
    spec: ServiceImportSpec<'a>,
    #[serde(borrow, deserialize_with = "null_as_default")]
    status: StatusForm<'a>,
}

#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
struct StatusForm<'a> {
    #[serde(borrow, deserialize_with = "list")]
    conditions: Vec<ConditionForm<'a>>,
    #[serde(borrow, deserialize_with = "list")]
    clusters: Vec<ClusterForm<'a>>,
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

#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
struct ServiceImportSpec<'a> {
    #[serde(borrow, deserialize_with = "list")]
    ips: Vec<BorrowedText<'a>>,
    #[serde(borrow, deserialize_with = "list")]
    ports: Vec<ServiceImportPort<'a>>,
}

#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ServiceImportPort<'a> {
    #[serde(borrow)]
    name: BorrowedText<'a>,
    #[serde(borrow)]
    protocol: BorrowedText<'a>,
    #[serde(borrow)]
    app_protocol: BorrowedText<'a>,
    port: i64,
}

impl<'a> Form<'a> for McsForm<'a> {
    fn identity(&self) -> Identity<'_> {
        self.metadata.identity()
    }
}

impl ReadKind for Export {
    type Form<'a> = McsForm<'a>;
    type List = Vec<IndexedObject<Self>>;

    const PROTOBUF: bool = false;

    fn keep(form: McsForm<'_>, scope: &Scope) -> IndexedObject<Self> {
        let of = |one: &ConditionForm<'_>| ExportCondition {
            kind: (*one.r#type).into(),
            status: (*one.status).into(),
            reason: (*one.reason).into(),
            message: (*one.message).into(),
            since: (*one.last_transition_time).into(),
            observed: one.observed_generation,
        };
        let conditions = form.status.conditions.iter().map(of).collect();
        let generation = form.metadata.generation;
        let key = scope.key(form.metadata.identity());
        IndexedObject { key, value: Some(Self { conditions, generation }), invalid: None }
    }
}

impl ReadKind for Import {
    type Form<'a> = McsForm<'a>;
    type List = Vec<IndexedObject<Self>>;

    const PROTOBUF: bool = false;

    fn keep(form: McsForm<'_>, scope: &Scope) -> IndexedObject<Self> {
        let McsForm { metadata, spec, status } = form;
        let mut invalid = None;
        let mut vips = Vec::new();
        for text in spec.ips.iter().filter_map(BorrowedText::given) {
            match text.parse() {
                Ok(address) => vips.push(address),
                Err(_) => invalid = Some(format!("{text:?} is no address").into()),
            }
        }
        vips.sort();
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
        let import = Self { vips, ports: ports.collect(), clusters };
        IndexedObject { key: scope.key(metadata.identity()), value: Some(import), invalid }
    }
}
