//! Multi-cluster services (`multicluster.x-k8s.io`): what a cluster exports, and under which addresses it
//! imports.

use std::net::IpAddr;

use serde::Deserialize;

use super::index::{Index, Indexed, Kept, Kind, Reads, Touched};
use super::scope::Scope;
use crate::apiserver::{Client, Error, Form, Identity, Key, Meta, Text, list, null_as_default};
use crate::model::{Port, Protocol, TargetPort};

/// The API group.
pub(super) const GROUP: &str = "multicluster.x-k8s.io";
/// Its versions that are read here, the best first. What they say alike is all that is read.
const VERSIONS: &[&str] = &["v1beta1", "v1alpha1"];

/// A ServiceExport: the service of its name and namespace is for all clusters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Export {
    /// What is written in its status.
    pub(super) conditions: Box<[Condition]>,
    /// Which state of it this is; 0 where nobody counts.
    pub(super) generation: i64,
}

/// A condition in a status.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Condition {
    /// Its type, such as `Valid`.
    pub(super) kind: Box<str>,
    /// `True`, `False` or `Unknown`.
    pub(super) status: Box<str>,
    pub(super) reason: Box<str>,
    pub(super) message: Box<str>,
    /// Since when the status is so, as it is written.
    pub(super) since: Box<str>,
    /// Of which state of the object it was said; 0 where that is not told.
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
/// Those of asking; [`Error::NotFound`] where the server has none of them.
pub(super) async fn served(client: &Client) -> Result<&'static str, Error> {
    client.served(GROUP, VERSIONS, Kind::ServiceExports.plural()).await
}

/// What is decoded of either.
#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct McsForm<'a> {
    #[serde(borrow, deserialize_with = "null_as_default")]
    metadata: Meta<'a>,
    #[serde(borrow, deserialize_with = "null_as_default")]
    spec: Spec<'a>,
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
    r#type: Text<'a>,
    #[serde(borrow)]
    status: Text<'a>,
    #[serde(borrow)]
    reason: Text<'a>,
    #[serde(borrow)]
    message: Text<'a>,
    #[serde(borrow)]
    last_transition_time: Text<'a>,
    #[serde(deserialize_with = "null_as_default")]
    observed_generation: i64,
}

#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
struct ClusterForm<'a> {
    #[serde(borrow)]
    cluster: Text<'a>,
}

#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
struct Spec<'a> {
    #[serde(borrow, deserialize_with = "list")]
    ips: Vec<Text<'a>>,
    #[serde(borrow, deserialize_with = "list")]
    ports: Vec<PortForm<'a>>,
}

#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct PortForm<'a> {
    #[serde(borrow)]
    name: Text<'a>,
    #[serde(borrow)]
    protocol: Text<'a>,
    #[serde(borrow)]
    app_protocol: Text<'a>,
    port: i64,
}

impl<'a> Form<'a> for McsForm<'a> {
    fn identity(&self) -> Identity<'_> {
        self.metadata.identity()
    }
}

impl Reads for Export {
    type Form<'a> = McsForm<'a>;
    type List = Vec<Kept<Self>>;

    const PROTOBUF: bool = false;

    fn keep(form: McsForm<'_>, scope: &Scope) -> Kept<Self> {
        let of = |one: &ConditionForm<'_>| Condition {
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
        Kept { key, value: Some(Self { conditions, generation }), odd: None }
    }
}

impl Reads for Import {
    type Form<'a> = McsForm<'a>;
    type List = Vec<Kept<Self>>;

    const PROTOBUF: bool = false;

    fn keep(form: McsForm<'_>, scope: &Scope) -> Kept<Self> {
        let McsForm { metadata, spec, status } = form;
        let mut odd = None;
        let mut vips = Vec::new();
        for text in spec.ips.iter().filter_map(Text::given) {
            match text.parse() {
                Ok(address) => vips.push(address),
                Err(_) => odd = Some(format!("{text:?} is no address").into()),
            }
        }
        vips.sort();
        let ports = spec.ports.iter().filter_map(|port| {
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
        Kept { key: scope.key(metadata.identity()), value: Some(import), odd }
    }
}

impl Indexed for Export {
    const KIND: Kind = Kind::ServiceExports;

    fn put(self, key: Key, index: &mut Index, touched: &mut Touched) {
        index.note_export(&key, Some(self), touched);
    }

    fn remove(key: &Key, index: &mut Index, touched: &mut Touched) {
        index.note_export(key, None, touched);
    }

    fn replace(list: Vec<Kept<Self>>, index: &mut Index, touched: &mut Touched) {
        let gone = super::index::missing(index.exports(), &list);
        index.exchange(gone, list, touched);
    }
}

impl Indexed for Import {
    const KIND: Kind = Kind::ServiceImports;

    fn put(self, key: Key, index: &mut Index, touched: &mut Touched) {
        index.note_import(&key, Some(self), touched);
    }

    fn remove(key: &Key, index: &mut Index, touched: &mut Touched) {
        index.note_import(key, None, touched);
    }

    fn replace(list: Vec<Kept<Self>>, index: &mut Index, touched: &mut Touched) {
        let gone = super::index::missing(index.imports(), &list);
        index.exchange(gone, list, touched);
    }
}
