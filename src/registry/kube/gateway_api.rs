//! `Gateway`s of the Gateway API that are entrances of a network, where that API is installed.

use std::collections::BTreeSet;

use serde::Deserialize;

use super::index::{Index, Indexed, Kept, Kind, Reads, Touched, missing_names, name_of};
use super::namespace::network;
use super::scope::Scope;
use crate::apiserver::{Form, Identity, Key, Meta, Pairs, Text, list, null_as_default};
use crate::model::{DeclaredGateway, GATEWAY_PORT_LABEL, GatewayHost, gateway_port};

/// The class of entrances of networks elsewhere, which only the config cluster may name.
const REMOTE_CLASS: &str = "istio-remote";
/// The option of a TLS listener by which it passes the mesh's connections on unopened, and its value.
const LISTENER_PROTOCOL: (&str, &str) = ("gateway.istio.io/listener-protocol", "auto-passthrough");

/// What is decoded of a Gateway.
#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct GatewayForm<'a> {
    #[serde(borrow, deserialize_with = "null_as_default")]
    metadata: Meta<'a>,
    #[serde(borrow, deserialize_with = "null_as_default")]
    spec: Spec<'a>,
}

#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Spec<'a> {
    #[serde(borrow)]
    gateway_class_name: Text<'a>,
    #[serde(borrow, deserialize_with = "list")]
    addresses: Vec<Address<'a>>,
    #[serde(borrow, deserialize_with = "list")]
    listeners: Vec<Listener<'a>>,
}

#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
struct Address<'a> {
    #[serde(borrow, rename = "type")]
    kind: Text<'a>,
    #[serde(borrow)]
    value: Text<'a>,
}

#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
struct Listener<'a> {
    port: i64,
    #[serde(borrow)]
    protocol: Text<'a>,
    #[serde(borrow, deserialize_with = "null_as_default")]
    tls: Tls<'a>,
}

#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
struct Tls<'a> {
    #[serde(borrow)]
    options: Pairs<'a>,
}

impl<'a> Form<'a> for GatewayForm<'a> {
    fn identity(&self) -> Identity<'_> {
        self.metadata.identity()
    }
}

impl Reads for DeclaredGateway {
    type Form<'a> = GatewayForm<'a>;
    type List = Vec<Kept<Self>>;

    const PROTOBUF: bool = false;

    fn keep(form: GatewayForm<'_>, scope: &Scope) -> Kept<Self> {
        let GatewayForm { metadata, spec } = form;
        let key = scope.key(metadata.identity());
        let labels = scope.labels(metadata.labels);
        let Some(network) = network(&labels) else {
            return Kept { key, value: None, odd: None };
        };
        let mtls = gateway_port(labels.get(GATEWAY_PORT_LABEL).map(|text| &**text));
        let mut odd = None;
        let mut entrances = BTreeSet::new();
        for listener in &spec.listeners {
            let Some(port) = u16::try_from(listener.port).ok().filter(|port| *port > 0) else {
                odd = Some(format!("{} is no port", listener.port).into());
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
        // The API takes an address without a type for an IP address.
        let usable = |one: &&Address<'_>| matches!(&*one.kind, "" | "IPAddress" | "Hostname");
        let addresses = spec.addresses.iter().filter(usable).filter_map(|one| one.value.given());
        let gateway = Self {
            network,
            of_config_cluster_only: *spec.gateway_class_name == *REMOTE_CLASS,
            addresses: addresses.map(GatewayHost::parse).collect(),
            entrances,
        };
        Kept { key, value: Some(gateway), odd }
    }
}

impl Indexed for DeclaredGateway {
    const KIND: Kind = Kind::Gateways;

    fn put(self, key: Key, index: &mut Index, touched: &mut Touched) {
        index.note_gateway(name_of(&key), Some(self), touched);
    }

    fn remove(key: &Key, index: &mut Index, touched: &mut Touched) {
        index.note_gateway(name_of(key), None, touched);
    }

    fn replace(list: Vec<Kept<Self>>, index: &mut Index, touched: &mut Touched) {
        let gone = missing_names(index.gateways(), &list);
        index.exchange(gone, list, touched);
    }
}
