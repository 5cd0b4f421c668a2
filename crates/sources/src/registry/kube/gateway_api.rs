//! Gateway API `Gateway`s that are gateways of a network, if that API is installed.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde::Deserialize;

use super::index::{
    IndexChanges, Indexed, IndexedKind, IndexedObject, KubeIndex, ReadKind, missing_names,
    workload_key,
};
use super::namespace::network;
use super::scope::Scope;
use strait_kube_client::{
    BorrowedText, Form, Identity, Meta, NamespacedName, Pairs, list, null_as_default,
};
use strait_model::{DeclaredGateway, GATEWAY_PORT_LABEL, GatewayHost, gateway_port};

/// The class of gateways of remote networks, which only the config cluster may declare.
const REMOTE_CLASS: &str = "istio-remote";
/// The option, and its value, of a TLS listener that forwards the mesh's connections without
/// terminating TLS.
const LISTENER_PROTOCOL: (&str, &str) = ("gateway.istio.io/listener-protocol", "auto-passthrough");

/// The decoded part of a Gateway.
#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct GatewayForm<'a> {
    #[serde(borrow, deserialize_with = "null_as_default")]
    metadata: Meta<'a>,
    #[serde(borrow, deserialize_with = "null_as_default")]
    spec: GatewaySpec<'a>,
}

#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct GatewaySpec<'a> {
    #[serde(borrow)]
    gateway_class_name: BorrowedText<'a>,
    #[serde(borrow, deserialize_with = "list")]
    addresses: Vec<GatewayAddress<'a>>,
    #[serde(borrow, deserialize_with = "list")]
    listeners: Vec<GatewayListener<'a>>,
}

#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
struct GatewayAddress<'a> {
    #[serde(borrow, rename = "type")]
    kind: BorrowedText<'a>,
    #[serde(borrow)]
    value: BorrowedText<'a>,
}

#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
struct GatewayListener<'a> {
    port: i64,
    #[serde(borrow)]
    protocol: BorrowedText<'a>,
    #[serde(borrow, deserialize_with = "null_as_default")]
    tls: GatewayTls<'a>,
}

#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
struct GatewayTls<'a> {
    #[serde(borrow)]
    options: Pairs<'a>,
}

impl<'a> Form<'a> for GatewayForm<'a> {
    fn identity(&self) -> Identity<'_> {
        self.metadata.identity()
    }
}

impl ReadKind for DeclaredGateway {
    type Form<'a> = GatewayForm<'a>;
    type List = Vec<IndexedObject<Self>>;

    const PROTOBUF: bool = false;

    fn convert(form: GatewayForm<'_>, scope: &Scope) -> IndexedObject<Self> {
        let GatewayForm { metadata, spec } = form;
        let key = scope.key(metadata.identity());
        let labels = scope.labels(metadata.labels);
        let Some(network) = network(&labels) else {
            return IndexedObject { key, value: None, invalid: None };
        };
        let mtls = gateway_port(labels.get(GATEWAY_PORT_LABEL).map(|text| &**text));
        let mut invalid = None;
        let mut entrances = BTreeSet::new();
        for listener in &spec.listeners {
            let Some(port) = u16::try_from(listener.port).ok().filter(|port| *port > 0) else {
                invalid = Some(format!("{} is not a port", listener.port).into());
                continue;
            };
            let (option, value) = LISTENER_PROTOCOL;
            let passes_on =
                *listener.protocol == *"TLS" && listener.tls.options.get(option) == Some(value);
            if *listener.protocol == *"HBONE" {
                entrances.insert((0, port));
            } else if passes_on || port == mtls {
                entrances.insert((port, 0));
            }
        }
        // In the API, an address without a type is an IP address.
        let usable =
            |one: &&GatewayAddress<'_>| matches!(&*one.kind, "" | "IPAddress" | "Hostname");
        let addresses = spec.addresses.iter().filter(usable).filter_map(|one| one.value.given());
        let gateway = Self {
            network,
            of_config_cluster_only: *spec.gateway_class_name == *REMOTE_CLASS,
            addresses: addresses.map(GatewayHost::parse).collect(),
            entrances,
        };
        IndexedObject { key, value: Some(gateway), invalid }
    }
}

impl Indexed for DeclaredGateway {
    const KIND: IndexedKind = IndexedKind::Gateways;

    fn put(self, key: NamespacedName, index: &mut KubeIndex, touched: &mut IndexChanges) {
        index.note_gateway(workload_key(&key), Some(self), touched);
    }

    fn remove(key: &NamespacedName, index: &mut KubeIndex, touched: &mut IndexChanges) {
        index.note_gateway(workload_key(key), None, touched);
    }

    fn replace(
        list: Vec<IndexedObject<Self>>,
        namespace: Option<&Arc<str>>,
        index: &mut KubeIndex,
        touched: &mut IndexChanges,
    ) {
        let gone = missing_names(index.gateways(), &list);
        index.exchange(gone, list, namespace, touched);
    }
}
