//! Listeners: the connections that a proxy accepts, and their destinations.
//!
//! A sidecar receives outbound listeners and one inbound listener. All proxies of a
//! [class](ViewKey) share most outbound listeners. A router receives either one listener as an
//! east-west gateway, or one for each port of the Gateways that select it. Listeners only use
//! filters of a plain Envoy, except for proxies that declare Istio's own filters.

mod gateway;
mod inbound;
mod ingress;
mod merged;
mod outbound;
mod parts;
mod remote_pods;
mod ruled;
mod settings;
#[cfg(test)]
mod tests;

use std::net::IpAddr;
use std::sync::Arc;

pub(super) use self::inbound::apart_name;
pub(super) use self::outbound::shared;
pub(super) use self::parts::{
    RetryOn, bool_value, catch_all_host, everything, path_normalization, retries, route_to,
};
pub(super) use self::remote_pods::pod_server_name;
pub(super) use self::ruled::{ConnectionRules, ConnectionSubset, MatchMisfit, RuledMatch};
pub(super) use self::settings::{ConnectionLimits, PodListenerKey, TrafficSettings};
use super::class::{Class, ListenerFormat};
use super::jwt::Enforcer;
use super::rbac::AccessFilters;
use super::rbac_rules::EncodedPolicies;
use super::tls::{Secrets, client_trust_domains};
use strait_mesh::push::PushContext;
use strait_mesh::push::addresses::ListenAddresses;
use strait_mesh::push::authorizers::Authorizers;
use strait_mesh::push::ingress::IngressOutline;
use strait_mesh::push::proxy::InboundTarget;
use strait_mesh::push::view::ViewKey;
use strait_model::{Interception, Proxy, ProxyType};
use strait_rules::traffic::envoy_filter::PatchPlace;
use strait_rules::traffic::telemetry::CallEnd;
use strait_xds::resource::Resource;

/// Returns the listeners for pods of headless services: see [`outbound::pods`].
pub(super) fn pods(
    context: &PushContext,
    (view, form): (&ViewKey, ListenerFormat),
    addresses: &ListenAddresses,
    shared: &[Arc<Resource>],
    keep: impl Fn(PodListenerKey, &dyn Fn() -> Option<Resource>) -> Option<Arc<Resource>>,
) -> Vec<(IpAddr, Arc<Resource>)> {
    let proxies = (&view.namespace, &view.selection);
    let settings = TrafficSettings::for_mesh(&context.mesh)
        .logging(context, proxies, CallEnd::Client)
        .tracing(context, proxies, &view.cluster, CallEnd::Client)
        .counting(context, proxies, form, CallEnd::Client)
        .filtering(context, proxies, PatchPlace::Outbound)
        .in_form(form, PatchPlace::Outbound);
    outbound::pods(context, (&settings, form), view, addresses, shared, keep)
}

/// Returns the listener for redirected inbound connections of a sidecar, for the ports that its
/// workload serves, and listeners for the ports on which its Sidecar makes the proxy listen
/// directly.
pub(super) fn inbound(
    context: &PushContext,
    proxy: &Proxy,
    targets: &[InboundTarget<'_>],
    encoded_policies: &EncodedPolicies,
) -> Vec<Resource> {
    let settings = serving(context, proxy);
    let families = (proxy.has_ipv4(), proxy.has_ipv6());
    let clients = client_trust_domains(context);
    let access = context.access_of(proxy);
    let authorizers = Authorizers::of(context, proxy, &access);
    let trust = context.trust_bundle();
    let filters =
        AccessFilters::new(&access, &trust, &authorizers, Enforcer::Sidecar, encoded_policies);
    let workload = inbound::InboundWorkload {
        secrets: &Secrets::for_proxy(proxy),
        trust_domains: &clients,
        modes: &access.modes,
        filters: &filters,
    };
    let mut all = inbound::apart(&settings, proxy, workload, targets);
    if proxy.interception != Interception::None {
        let families = (families, proxy.interception);
        all.extend(inbound::listener(&settings, families, workload, targets));
    }
    all
}

/// Returns the listeners of a router that is not an east-west gateway.
pub(super) fn ingress(
    ingress: &IngressOutline<'_>,
    proxy: &Proxy,
    class: &Class,
    encoded_policies: &EncodedPolicies,
) -> Vec<Resource> {
    let context = ingress.context;
    let access = context.access_of(proxy);
    let authorizers = Authorizers::of(context, proxy, &access);
    let trust = context.trust_bundle();
    let listeners = ingress::IngressListeners {
        ingress,
        class,
        secrets: &Secrets::for_proxy(proxy),
        trust_domains: &client_trust_domains(context),
        settings: &serving(context, proxy),
        topology: proxy.topology.or(context.mesh.gateway_topology).unwrap_or_default(),
        families: (proxy.has_ipv4(), proxy.has_ipv6()),
        filters: &AccessFilters::new(
            &access,
            &trust,
            &authorizers,
            Enforcer::Router,
            encoded_policies,
        ),
    };
    ingress.ports.iter().filter_map(|port| listeners.listener(port)).collect()
}

/// Returns the traffic settings of a proxy for inbound traffic.
fn serving(context: &PushContext, proxy: &Proxy) -> TrafficSettings {
    let proxies = (proxy.namespace(), &context.selection(proxy));
    let form = ListenerFormat::for_proxy(proxy);
    // For metrics, Istio treats a gateway as a client.
    let (place, counted) = match proxy.kind {
        ProxyType::Sidecar => (PatchPlace::Inbound, CallEnd::Server),
        ProxyType::Router => (PatchPlace::Gateway, CallEnd::Client),
    };
    TrafficSettings::for_mesh(&context.mesh)
        .logging(context, proxies, CallEnd::Server)
        .tracing(context, proxies, &proxy.cluster, CallEnd::Server)
        .counting(context, proxies, form, counted)
        .filtering(context, proxies, place)
        .in_form(form, place)
}

/// Returns the listeners of an east-west gateway that listens on `port`. It reports no service
/// metrics: it forwards encrypted connections, and the proxies at both ends report them.
pub(super) fn gateway(
    context: &PushContext,
    (view, form): (&ViewKey, ListenerFormat),
    port: u16,
) -> Vec<Resource> {
    let proxies = (&view.namespace, &view.selection);
    let settings = TrafficSettings::for_mesh(&context.mesh)
        .logging(context, proxies, CallEnd::Server)
        .in_form(form, PatchPlace::Gateway);
    gateway::listener(context, &settings, view, port).into_iter().collect()
}
