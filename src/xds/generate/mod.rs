//! From the push context to what one proxy shall hold.
//!
//! Pure: the same context and proxy give the same bytes, whatever happened before. What many proxies
//! share is encoded once and kept in [`Cache`], keyed by the generator's entire input.

use std::sync::Arc;

use super::resource::{Resource, ResourceSource, ResourceType};
use crate::model::{NetworkId, Proxy};
use crate::push::PushContext;
use crate::push::view::{Role, ViewKey};

/// Encoded resources shared by all streams: a pure cache, that may be emptied at any time.
#[derive(Debug, Default)]
pub struct Cache {}

/// What one proxy shall hold at one version of the mesh.
pub struct Picture<'a> {
    context: &'a Arc<PushContext>,
    proxy: &'a Proxy,
    view: ViewKey,
    /// The port on which it listens as an east-west gateway, if it is one.
    east_west_port: Option<u16>,
    cache: &'a Cache,
}

impl<'a> Picture<'a> {
    /// The picture of `proxy`, which is in `network`.
    pub fn new(
        context: &'a Arc<PushContext>,
        proxy: &'a Proxy,
        network: NetworkId,
        cache: &'a Cache,
    ) -> Self {
        let east_west_port = crate::push::proxy::east_west_port(context, proxy);
        let role = if east_west_port.is_some() { Role::Gateway } else { Role::Client };
        let view = ViewKey::of(proxy, network, role);
        Self { context, proxy, view, east_west_port, cache }
    }
}

impl ResourceSource for Picture<'_> {
    fn all(&mut self, _kind: ResourceType) -> Arc<[Arc<Resource>]> {
        let _ = (self.context, self.proxy, &self.view, self.east_west_port, self.cache);
        Arc::new([])
    }

    fn one(&mut self, _kind: ResourceType, _name: &str) -> Option<Arc<Resource>> {
        None
    }
}
