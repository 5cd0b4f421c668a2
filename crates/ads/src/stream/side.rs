//! The configuration (head) that a stream is served: the common configuration, the next one in a
//! rollout, or the edition with the traffic rules that the stream's cluster defines for its own
//! proxies.

use std::sync::Arc;

use crate::shared::ServerShared;
use strait_envoy::Cache;
use strait_envoy::heads::ConfigVariant;
use strait_mesh::push::PushContext;
use strait_xds::resource::ResourceType;
use strait_xds::session::Session;

/// The configuration that a stream is served instead of the one for all proxies.
pub(super) struct Side {
    pub(super) head: Arc<ConfigVariant>,
    /// The number of the last response before the stream moved to this configuration. Rejections up
    /// to it are not caused by the configuration.
    pub(super) sent_before: u64,
    /// The types whose last response the proxy had already rejected. It may reject any
    /// configuration.
    pub(super) refused_before: Vec<ResourceType>,
}

impl Side {
    pub(super) fn of(head: Arc<ConfigVariant>, session: &Session) -> Self {
        let refused = session.progress().into_iter();
        let refused = refused.filter_map(|(kind, one)| one.nack.is_some().then_some(kind));
        Self { head, sent_before: session.last_nonce(), refused_before: refused.collect() }
    }
}

/// Returns the current version of the mesh with the stream's configuration.
pub(super) fn context_of(shared: &ServerShared, side: Option<&Side>) -> Option<Arc<PushContext>> {
    shared.context_of(side.map(|side| &*side.head))
}

/// Returns the cache of encoded resources for the stream's configuration.
pub(super) fn cache_of<'a>(shared: &'a ServerShared, side: Option<&'a Side>) -> &'a Cache {
    shared.cache_of(side.map(|side| &*side.head))
}

/// Returns whether a stream is already served this configuration.
pub(super) fn is_same(side: Option<&Side>, head: Option<&Arc<ConfigVariant>>) -> bool {
    match (side, head) {
        (None, None) => true,
        (Some(side), Some(head)) => Arc::ptr_eq(&side.head, head),
        _ => false,
    }
}
