//! Namespaces: the cluster's network and identity are written on two of them.

use std::sync::Arc;

use serde::Deserialize;

use super::index::{Kept, Reads};
use super::scope::Scope;
use super::service::distribution;
use crate::apiserver::{Form, Identity, Malformed, Message, Meta, Value, null_as_default};
use crate::model::{Distribution, Labels, NETWORK_LABEL, NetworkId};

/// What is decoded of a Namespace.
#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct NamespaceForm<'a> {
    #[serde(borrow, deserialize_with = "null_as_default")]
    metadata: Meta<'a>,
}

impl<'a> Message<'a> for NamespaceForm<'a> {
    fn field(&mut self, number: u32, value: Value<'a>) -> Result<(), Malformed> {
        if number == 1 { value.message(&mut self.metadata) } else { Ok(()) }
    }
}

impl<'a> Form<'a> for NamespaceForm<'a> {
    fn of_protobuf(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let mut form = Self::default();
        form.merge(bytes).map(|()| form)
    }

    fn identity(&self) -> Identity<'_> {
        self.metadata.identity()
    }
}

/// What is kept of a Namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct NamespaceFacts {
    pub(super) network: Option<NetworkId>,
    pub(super) labels: Labels,
    /// Which endpoints come first of its services that don't say.
    pub(super) prefers: Distribution,
    pub(super) uid: Arc<str>,
}

impl Reads for NamespaceFacts {
    type Form<'a> = NamespaceForm<'a>;
    type List = Vec<Kept<Self>>;

    fn keep(form: NamespaceForm<'_>, scope: &Scope) -> Kept<Self> {
        let key = scope.key(form.metadata.identity());
        let uid = Arc::from(&*form.metadata.uid);
        let prefers = distribution(&form.metadata).unwrap_or_default();
        let labels = scope.labels(form.metadata.labels);
        let facts = Self { network: network(&labels), labels, prefers, uid };
        Kept { key, value: Some(facts), odd: None }
    }
}

/// The network that labels name; an empty label names none.
pub(super) fn network(labels: &Labels) -> Option<NetworkId> {
    let label = labels.get(NETWORK_LABEL).filter(|network| !network.is_empty())?;
    Some(NetworkId::new(Arc::clone(label)))
}
