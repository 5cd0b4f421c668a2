//! Namespaces: the cluster's network and identity are written on two of them.

use serde::Deserialize;

use crate::apiserver::{Metadata, Object, null_as_default};
use crate::model::NetworkId;

/// The label that names a network, on namespaces, pods and Services.
pub(super) const NETWORK_LABEL: &str = "topology.istio.io/network";

/// What is decoded of a Namespace.
#[derive(Debug, Deserialize)]
pub(super) struct NamespaceObject {
    #[serde(default, deserialize_with = "null_as_default")]
    metadata: Metadata,
}

impl Object for NamespaceObject {
    fn metadata(&self) -> &Metadata {
        &self.metadata
    }
}

/// What is kept of a Namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct NamespaceFacts {
    pub(super) network: Option<NetworkId>,
    pub(super) uid: std::sync::Arc<str>,
}

impl NamespaceObject {
    /// Keeps what is needed.
    pub(super) fn facts(self) -> NamespaceFacts {
        NamespaceFacts { network: network(&self.metadata.labels), uid: self.metadata.uid }
    }
}

/// The network that labels name; an empty label names none.
pub(super) fn network(labels: &crate::model::Labels) -> Option<NetworkId> {
    let label = labels.get(NETWORK_LABEL).filter(|network| !network.is_empty())?;
    Some(NetworkId::new(std::sync::Arc::clone(label)))
}
