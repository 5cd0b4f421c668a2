//! The listener of an east-west gateway: one port for mTLS connections that the gateway cannot
//! decrypt. It forwards each connection to the service that the SNI names, or closes it.

use std::collections::BTreeSet;

use super::parts::{
    chain, found, listening_on, refused_connection_logs, tcp_limited, tls_inspector, wildcards,
};
use super::remote_pods::gateway_chains;
use super::settings::MESH_ALPN;
use super::{ConnectionLimits, TrafficSettings};
use crate::encode;
use strait_mesh::push::PushContext;
use strait_mesh::push::subset::subset_names;
use strait_mesh::push::view::{ViewKey, is_exported};
use strait_model::{Protocol, Resolution};
use strait_proto::envoy::envoy::config::core::v3::TrafficDirection;
use strait_proto::envoy::envoy::config::listener::v3 as listener;
use strait_xds::names::OutboundName;
use strait_xds::resource::Resource;

/// Number of connection attempts to endpoints. A client in another network cannot retry with
/// another endpoint, because it knows only the address of the gateway.
const ATTEMPTS: u16 = 3;

/// Returns the listener of an east-west gateway, or `None` if no service is exported, because Envoy
/// refuses a listener without filter chains.
///
/// It has one chain for each port of an exported service, and one for each subset that the
/// DestinationRule of the service's owner defines. For the single pods of a headless service, it has
/// one chain for each port and cluster. Other connections match no chain and are closed.
/// (docs/reference/interface.md, "Networks".)
pub(super) fn listener(
    context: &PushContext,
    settings: &TrafficSettings,
    view: &ViewKey,
    port: u16,
) -> Option<Resource> {
    let mut names = BTreeSet::new();
    let mut pod_chains = Vec::new();
    for service in context.services.values().filter(|service| is_exported(context, service)) {
        if matches!(service.primary.resolution, Resolution::Alias(_)) {
            continue;
        }
        if service.hostname().as_str().contains('*') {
            continue;
        }
        let rules = context.rules_for(service);
        let subsets = subset_names([rules.owners(&service.primary.namespace).map(|rule| &**rule)]);
        for port in service.ports().filter(|port| port.protocol != Protocol::Udp) {
            let name = OutboundName::sni(service.hostname().clone(), port.number);
            names.extend(subsets.iter().map(|subset| name.clone().of_subset(subset).to_string()));
            let target = (&**service, port);
            pod_chains.extend(gateway_chains(context, settings, &view.network, target));
        }
    }
    let mut filter_chains: Vec<_> = names
        .into_iter()
        .map(|sni| {
            let matches = listener::FilterChainMatch {
                server_names: vec![sni.clone()],
                ..found("", &MESH_ALPN)
            };
            let limits = ConnectionLimits { attempts: Some(ATTEMPTS), ..Default::default() };
            let filter = tcp_limited(settings, &sni, limits);
            chain(sni, Some(matches), filter)
        })
        .collect();
    if filter_chains.is_empty() {
        return None;
    }
    filter_chains.extend(pod_chains);
    let addresses = wildcards((view.ipv4, view.ipv6));
    let name = format!("{}_{port}", addresses.first()?);
    let listener = listener::Listener {
        filter_chains,
        listener_filters: vec![tls_inspector()],
        access_log: refused_connection_logs(settings),
        traffic_direction: TrafficDirection::Inbound.into(),
        ..listening_on(name.clone(), &addresses, port)?
    };
    Some(encode(name, &settings.istio.in_chains(listener)))
}
