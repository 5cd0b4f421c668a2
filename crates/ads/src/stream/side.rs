//! Which head a stream is served: the mesh as it is for all, or with the configuration that is let out to a share of proxies.

use std::sync::Arc;

use crate::shared::ServerShared;
use strait_envoy::Cache;
use strait_envoy::heads::ServedHead;
use strait_mesh::push::PushContext;
use strait_xds::resource::ResourceType;
use strait_xds::session::Session;

/// What a stream is served in the place of what all others are.
pub(super) struct Side {
    pub(super) head: Arc<ServedHead>,
    /// What was sent before it went there says nothing of the head.
    pub(super) sent_before: u64,
    /// Types of which the proxy had refused the last response before: it would refuse whatever comes.
    pub(super) refused_before: Vec<ResourceType>,
}

impl Side {
    pub(super) fn of(head: Arc<ServedHead>, session: &Session) -> Self {
        let refused = session.progress().into_iter();
        let refused = refused.filter_map(|(kind, one)| one.nack.is_some().then_some(kind));
        Self { head, sent_before: session.last_nonce(), refused_before: refused.collect() }
    }
}

/// The version of the mesh that is served there.
pub(super) fn context_of(shared: &ServerShared, side: Option<&Side>) -> Option<Arc<PushContext>> {
    match side {
        None => shared.context(),
        Some(side) => side.head.versions().borrow().clone(),
    }
}

/// What is encoded of it.
pub(super) fn cache_of<'a>(shared: &'a ServerShared, side: Option<&'a Side>) -> &'a Cache {
    side.map_or(&shared.cache, |side| side.head.cache())
}

/// Whether that is where a stream is.
pub(super) fn is_same(side: Option<&Side>, head: Option<&Arc<ServedHead>>) -> bool {
    match (side, head) {
        (None, None) => true,
        (Some(side), Some(head)) => Arc::ptr_eq(&side.head, head),
        _ => false,
    }
}
