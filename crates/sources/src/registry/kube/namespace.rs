//! Namespaces. Two of them carry the cluster's network and identity.

use std::sync::Arc;

use serde::Deserialize;

use super::index::{IndexedObject, ReadKind};
use super::scope::Scope;
use super::service::{distribution, share_label};
use strait_kube_client::{
    FieldValue, Form, Identity, MalformedMessage, Meta, ProtobufMessage, null_as_default,
};
use strait_model::{Distribution, Labels, NETWORK_LABEL, NetworkId, SHARE_LABEL};

/// The decoded part of a Namespace.
#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct NamespaceForm<'a> {
    #[serde(borrow, deserialize_with = "null_as_default")]
    metadata: Meta<'a>,
}

impl<'a> ProtobufMessage<'a> for NamespaceForm<'a> {
    fn field(&mut self, number: u32, value: FieldValue<'a>) -> Result<(), MalformedMessage> {
        if number == 1 { value.message(&mut self.metadata) } else { Ok(()) }
    }
}

impl<'a> Form<'a> for NamespaceForm<'a> {
    fn from_protobuf(bytes: &'a [u8]) -> Result<Self, MalformedMessage> {
        let mut form = Self::default();
        form.merge(bytes).map(|()| form)
    }

    fn identity(&self) -> Identity<'_> {
        self.metadata.identity()
    }
}

/// The stored part of a Namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct NamespaceFacts {
    pub(super) network: Option<NetworkId>,
    pub(super) labels: Labels,
    /// Whether its label shares its services with other clusters.
    pub(super) share: Option<bool>,
    /// The default traffic distribution of services in the namespace.
    pub(super) prefers: Distribution,
    pub(super) uid: Arc<str>,
    /// Whether it is being deleted: no object can be created in it any more.
    pub(super) is_terminating: bool,
}

impl ReadKind for NamespaceFacts {
    type Form<'a> = NamespaceForm<'a>;
    type List = Vec<IndexedObject<Self>>;

    fn convert(form: NamespaceForm<'_>, scope: &Scope) -> IndexedObject<Self> {
        let key = scope.key(form.metadata.identity());
        let uid = Arc::from(&*form.metadata.uid);
        let prefers = distribution(&form.metadata).unwrap_or_default();
        let is_terminating = form.metadata.deletion_timestamp.seconds() != 0;
        let labels = scope.labels(form.metadata.labels);
        let share = share_label(labels.get(SHARE_LABEL).map(|value| &**value));
        let (share, invalid) =
            share.map_or_else(|reason| (None, Some(reason)), |share| (share, None));
        let facts = Self { network: network(&labels), labels, share, prefers, uid, is_terminating };
        IndexedObject { key, value: Some(facts), invalid }
    }
}

/// Returns the network in the labels; an empty label names none.
pub(super) fn network(labels: &Labels) -> Option<NetworkId> {
    let label = labels.get(NETWORK_LABEL).filter(|network| !network.is_empty())?;
    Some(NetworkId::new(Arc::clone(label)))
}
