//! Multi-cluster services (`multicluster.x-k8s.io`): what a cluster exports, and under which addresses it
//! imports.

use std::collections::BTreeSet;
use std::net::IpAddr;

use serde::Deserialize;

use super::index::{Index, Indexed, Kept, Kind, Reads, Touched};
use super::scope::Scope;
use crate::apiserver::{Form, Identity, Key, Malformed, Meta, Text, null_as_default};
use crate::model::{Port, Protocol, TargetPort};

/// A ServiceExport: the service of its name and namespace is for all clusters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Export;

/// A ServiceImport: the service of its name and namespace, from whatever cluster, at these addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Import {
    pub(super) vips: Vec<IpAddr>,
    /// Those it states itself; where it states none, its clusters' services do.
    pub(super) ports: Vec<Port>,
}

/// What is decoded of either.
#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct McsForm<'a> {
    #[serde(borrow, deserialize_with = "null_as_default")]
    metadata: Meta<'a>,
    #[serde(borrow, deserialize_with = "null_as_default")]
    spec: Spec<'a>,
}

#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
struct Spec<'a> {
    #[serde(borrow, deserialize_with = "null_as_default")]
    ips: Vec<Text<'a>>,
    #[serde(borrow, deserialize_with = "null_as_default")]
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
    /// Objects of an API that was installed have no such form.
    fn of_protobuf(_: &'a [u8]) -> Result<Self, Malformed> {
        Err(Malformed::NO_FORM)
    }

    fn identity(&self) -> Identity<'_> {
        self.metadata.identity()
    }
}

impl Reads for Export {
    type Form<'a> = McsForm<'a>;

    const PROTOBUF: bool = false;

    fn keep(form: McsForm<'_>, scope: &Scope) -> Kept<Self> {
        Kept { key: scope.key(form.metadata.identity()), value: Some(Self), odd: None }
    }
}

impl Reads for Import {
    type Form<'a> = McsForm<'a>;

    const PROTOBUF: bool = false;

    fn keep(form: McsForm<'_>, scope: &Scope) -> Kept<Self> {
        let McsForm { metadata, spec } = form;
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
        let import = Self { vips, ports: ports.collect() };
        // Without an address there is nothing to reach it by.
        let value = Some(import).filter(|import| !import.vips.is_empty());
        Kept { key: scope.key(metadata.identity()), value, odd }
    }
}

impl Indexed for Export {
    const KIND: Kind = Kind::ServiceExports;

    fn put(self, key: Key, index: &mut Index, touched: &mut Touched) {
        index.note_export(&key, true, touched);
    }

    fn remove(key: &Key, index: &mut Index, touched: &mut Touched) {
        index.note_export(key, false, touched);
    }

    fn absent(index: &Index, present: &BTreeSet<(&str, &str)>) -> Vec<Key> {
        super::index::missing(index.exports(), present)
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

    fn absent(index: &Index, present: &BTreeSet<(&str, &str)>) -> Vec<Key> {
        super::index::missing(index.imports(), present)
    }
}
