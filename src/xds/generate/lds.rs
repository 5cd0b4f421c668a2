//! Listeners: what a proxy accepts, and where that goes.
//!
//! A sidecar gets listeners for its way out, most of which it shares with every proxy of its
//! [class](ViewKey), and one for its way in. A router gets a listener only as an east-west gateway.
//! No listener needs a filter that a plain Envoy lacks.

mod gateway;
mod inbound;
mod outbound;
mod parts;
mod ruled;
#[cfg(test)]
mod tests;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

pub(super) use self::outbound::shared;
pub(super) use self::parts::{
    RetryOn, bool_value, everything, retries, route_to, virtual_host_of_everything,
};
use super::cache::PodListenerKey;
use super::tls::{Secrets, trust_domains_of_clients};
use crate::mesh::{MeshConfig, OutboundTrafficPolicy};
use crate::model::Proxy;
use crate::push::PushContext;
use crate::push::addresses::ListenAddresses;
use crate::push::proxy::InboundTarget;
use crate::push::view::ViewKey;
use crate::xds::resource::Resource;

/// The application protocols (ALPN) by which a TLS client says that it speaks the mesh's mTLS: plain
/// Envoys offer `istio`, Istio's proxies one of the others (docs/reference/interface.md, "Networks").
const MESH_ALPN: [&str; 5] =
    ["istio", "istio-peer-exchange", "istio-http/1.0", "istio-http/1.1", "istio-h2"];

/// What the mesh config says of listeners and routes.
pub(super) struct TrafficSettings {
    /// Whether a sidecar lets its workload connect to what the mesh doesn't know.
    pub(super) outbound_any: bool,
    /// The file that takes access logs, if any.
    access_log_file: Option<String>,
    /// Where a sidecar's redirected outbound connections arrive.
    outbound_port: u16,
    /// Where a sidecar's redirected inbound connections arrive.
    inbound_port: u16,
    /// How long a connection may stay silent before it counts as neither TLS nor HTTP; zero for ever.
    detection_timeout: Duration,
}

impl TrafficSettings {
    pub(super) fn of(mesh: &MeshConfig) -> Self {
        let file = Some(&mesh.access_log_file).filter(|file| !file.is_empty());
        Self {
            outbound_any: mesh.outbound_traffic_policy == OutboundTrafficPolicy::AllowAny,
            access_log_file: file.cloned(),
            outbound_port: mesh.proxy_listen_port,
            inbound_port: mesh.proxy_inbound_listen_port,
            detection_timeout: mesh.protocol_detection_timeout,
        }
    }
}

/// The listeners for pods of headless services: see [`outbound::pods`].
pub(super) fn pods(
    context: &PushContext,
    view: &ViewKey,
    addresses: &ListenAddresses,
    shared: &[Arc<Resource>],
    keep: impl Fn(PodListenerKey, &dyn Fn() -> Option<Resource>) -> Option<Arc<Resource>>,
) -> Vec<(IpAddr, Arc<Resource>)> {
    let settings = TrafficSettings::of(&context.mesh);
    outbound::pods(context, &settings, view, addresses, shared, keep)
}

/// The listener at which a sidecar's inbound connections arrive, for the ports that its workload serves.
pub(super) fn inbound(
    context: &PushContext,
    proxy: &Proxy,
    targets: &[InboundTarget<'_>],
) -> Option<Resource> {
    let settings = TrafficSettings::of(&context.mesh);
    let families = (proxy.has_ipv4(), proxy.has_ipv6());
    let clients = trust_domains_of_clients(context);
    inbound::listener(&settings, families, &Secrets::of(proxy), &clients, targets)
}

/// The listeners of an east-west gateway, which listens on `port`.
pub(super) fn gateway(context: &PushContext, view: &ViewKey, port: u16) -> Vec<Resource> {
    let settings = TrafficSettings::of(&context.mesh);
    gateway::listener(context, &settings, (view.ipv4, view.ipv6), port).into_iter().collect()
}
