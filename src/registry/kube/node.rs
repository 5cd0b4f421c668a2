//! Nodes: where pods run, and by which addresses NodePort gateways are reached.

use std::net::IpAddr;
use std::sync::Arc;

use serde::Deserialize;

use crate::apiserver::{Metadata, Object, null_as_default};
use crate::model::{Labels, Locality};

/// What is decoded of a Node.
#[derive(Debug, Deserialize)]
pub(super) struct NodeObject {
    #[serde(default, deserialize_with = "null_as_default")]
    metadata: Metadata,
    #[serde(default, deserialize_with = "null_as_default")]
    status: NodeStatus,
}

#[derive(Debug, Default, Deserialize)]
struct NodeStatus {
    #[serde(default, deserialize_with = "null_as_default")]
    addresses: Vec<NodeAddress>,
}

#[derive(Debug, Deserialize)]
struct NodeAddress {
    #[serde(rename = "type", default)]
    kind: String,
    #[serde(default)]
    address: String,
}

impl Object for NodeObject {
    fn metadata(&self) -> &Metadata {
        &self.metadata
    }
}

/// What is kept of a Node. Its heartbeats change none of it, so they end here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Node {
    pub(super) labels: Labels,
    pub(super) locality: Arc<Locality>,
    /// The first address of type `ExternalIP`.
    pub(super) external_address: Option<IpAddr>,
}

impl NodeObject {
    /// Keeps what is needed.
    pub(super) fn convert(self) -> Node {
        let external = self.status.addresses.iter().filter(|one| one.kind == "ExternalIP");
        Node {
            external_address: external.flat_map(|one| one.address.parse()).next(),
            locality: Arc::new(of_labels(&self.metadata.labels)),
            labels: self.metadata.labels,
        }
    }
}

fn of_labels(labels: &Labels) -> Locality {
    let first = |names: &[&str]| {
        names.iter().find_map(|name| labels.get(*name)).cloned().unwrap_or_else(|| "".into())
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

/// The locality that a pod's own labels claim, which goes before its node's. Label values can't hold
/// `/`, so `.` divides the parts.
pub(super) fn claimed_by_pod(labels: &Labels) -> Option<Locality> {
    let claim = ["topology.istio.io/locality", "istio-locality"]
        .iter()
        .find_map(|name| labels.get(*name))
        .filter(|claim| !claim.is_empty())?;
    let parts = if claim.contains('/') { claim.to_string() } else { claim.replace('.', "/") };
    Some(Locality::parse(&parts))
}
