//! The view of a connected proxy, and the endpoints that it cannot receive.

use super::sources::Sources;
use crate::metrics::WithheldCounts;
use strait_ads::connections::OpenStream;
use strait_mesh::push::PushContext;
use strait_mesh::push::proxy::east_west_port;
use strait_mesh::push::view::{Role, ViewKey};

/// Counts the endpoints that some connected proxy can't receive because of networks or the policy.
pub(super) fn withheld(sources: &Sources) -> WithheldCounts {
    let Some(context) = sources.context.borrow().clone() else { return WithheldCounts::new() };
    let connections = sources.connections.list();
    let views = connections.iter().map(|connection| view_of(&context, connection));
    // A gateway receives only its own network by design.
    let views = views.filter(|view| view.role == Role::Client).collect();
    sources.tally.count(&context, views)
}

/// Returns the view of a connected proxy.
pub(super) fn view_of(context: &PushContext, connection: &OpenStream) -> ViewKey {
    let proxy = connection.proxy();
    let is_gateway = east_west_port(context, proxy).is_some();
    let role = if is_gateway { Role::Gateway } else { Role::Client };
    let (network, whereabouts) = connection.place();
    ViewKey::of(proxy, network, role).at(whereabouts).selected(context.selection(proxy))
}
