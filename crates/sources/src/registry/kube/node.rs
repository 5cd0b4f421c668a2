//! Nodes: the localities of pods, the ranges of their addresses, and the addresses of NodePort
//! gateways.

use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use serde::Deserialize;

use super::index::{IndexedObject, ReadKind};
use super::scope::Scope;
use strait_kube_client::{
    BorrowedText, FieldValue, Form, Identity, MalformedMessage, Meta, ProtobufMessage, list,
    null_as_default,
};
use strait_model::{Labels, Locality};

/// The decoded part of a Node.
#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct NodeForm<'a> {
    #[serde(borrow, deserialize_with = "null_as_default")]
    metadata: Meta<'a>,
    #[serde(borrow, deserialize_with = "null_as_default")]
    spec: NodeSpec<'a>,
    #[serde(borrow, deserialize_with = "null_as_default")]
    status: NodeStatus<'a>,
}

#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct NodeSpec<'a> {
    #[serde(borrow, rename = "podCIDR", deserialize_with = "null_as_default")]
    pod_range: BorrowedText<'a>,
    /// All ranges, if the API server sets more than one; the first is `podCIDR`.
    #[serde(borrow, rename = "podCIDRs", deserialize_with = "list")]
    pod_ranges: Vec<BorrowedText<'a>>,
}

#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
struct NodeStatus<'a> {
    #[serde(borrow, deserialize_with = "list")]
    addresses: Vec<NodeAddress<'a>>,
}

#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
struct NodeAddress<'a> {
    #[serde(borrow, rename = "type")]
    kind: BorrowedText<'a>,
    #[serde(borrow)]
    address: BorrowedText<'a>,
}

// Field numbers: k8s.io/api/core/v1/generated.proto.

impl<'a> ProtobufMessage<'a> for NodeForm<'a> {
    fn field(&mut self, number: u32, value: FieldValue<'a>) -> Result<(), MalformedMessage> {
        match number {
            1 => value.message(&mut self.metadata),
            2 => value.message(&mut self.spec),
            3 => value.message(&mut self.status),
            _ => Ok(()),
        }
    }
}

impl<'a> ProtobufMessage<'a> for NodeSpec<'a> {
    fn field(&mut self, number: u32, value: FieldValue<'a>) -> Result<(), MalformedMessage> {
        match number {
            1 => self.pod_range = value.text()?,
            7 => self.pod_ranges.push(value.text()?),
            _ => {}
        }
        Ok(())
    }
}

impl<'a> ProtobufMessage<'a> for NodeStatus<'a> {
    fn field(&mut self, number: u32, value: FieldValue<'a>) -> Result<(), MalformedMessage> {
        if number == 5 { value.push(&mut self.addresses) } else { Ok(()) }
    }
}

impl<'a> ProtobufMessage<'a> for NodeAddress<'a> {
    fn field(&mut self, number: u32, value: FieldValue<'a>) -> Result<(), MalformedMessage> {
        match number {
            1 => self.kind = value.text()?,
            2 => self.address = value.text()?,
            _ => {}
        }
        Ok(())
    }
}

impl<'a> Form<'a> for NodeForm<'a> {
    fn from_protobuf(bytes: &'a [u8]) -> Result<Self, MalformedMessage> {
        let mut form = Self::default();
        form.merge(bytes).map(|()| form)
    }

    fn identity(&self) -> Identity<'_> {
        self.metadata.identity()
    }
}

/// The stored part of a Node. Heartbeats do not change it, so they end here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct NodeRecord {
    pub(super) labels: Labels,
    pub(super) locality: Arc<Locality>,
    /// The first address of type `ExternalIP` of each family.
    pub(super) external_addresses: Box<[IpAddr]>,
    /// The address ranges of pods on the node, if Kubernetes assigns them; a network plug-in may
    /// assign others.
    pub(super) pod_ranges: Box<[IpNet]>,
}

impl ReadKind for NodeRecord {
    type Form<'a> = NodeForm<'a>;
    type List = Vec<IndexedObject<Self>>;

    fn convert(form: NodeForm<'_>, scope: &Scope) -> IndexedObject<Self> {
        let key = scope.key(form.metadata.identity());
        let labels = scope.labels(form.metadata.labels);
        let external = form.status.addresses.iter().filter(|one| *one.kind == *"ExternalIP");
        let external: Vec<IpAddr> = external.filter_map(|one| one.address.parse().ok()).collect();
        let first = |is_ipv4: bool| external.iter().find(|one| one.is_ipv4() == is_ipv4).copied();
        let node = Self {
            external_addresses: [true, false].into_iter().filter_map(first).collect(),
            pod_ranges: form.spec.pod_ranges(),
            locality: Arc::new(locality_from_labels(&labels)),
            labels,
        };
        IndexedObject { key, value: Some(node), invalid: None }
    }
}

impl NodeSpec<'_> {
    fn pod_ranges(&self) -> Box<[IpNet]> {
        let all = match &self.pod_ranges[..] {
            [] => std::slice::from_ref(&self.pod_range),
            all => all,
        };
        all.iter().filter_map(|one| one.parse().ok()).collect()
    }
}

fn locality_from_labels(labels: &Labels) -> Locality {
    let first = |names: &[&str]| {
        let given = |name: &&str| labels.get(*name).filter(|text| !text.is_empty());
        names.iter().find_map(given).cloned().unwrap_or_default()
    };
    Locality {
        region: first(&[
            "topology.kubernetes.io/region",
            "failure-domain.beta.kubernetes.io/region",
        ]),
        zone: first(&["topology.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/zone"]),
        subzone: first(&["topology.istio.io/subzone"]),
    }
}
