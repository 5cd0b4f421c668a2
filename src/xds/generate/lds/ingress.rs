//! Listeners of a router: one for each port of its Gateways. (docs/reference/traffic.md, "Gateway".)
//!
//! Plain text is one chain; in TLS each server has one, which the client chooses by the name that it gives. There is no
//! chain for any other name: such a connection is closed.

use strait_proto::envoy::envoy::config::core::v3::TrafficDirection;
use strait_proto::envoy::envoy::config::listener::v3 as listener;
use strait_proto::envoy::envoy::extensions::filters::network::http_connection_manager::v3 as hcm;

use super::TrafficSettings;
use super::parts::{
    Families, Http, bool_value, chain, http, listening_on, normalizing, routes_named, wildcards,
};
use crate::traffic::gateways::GatewayPort;
use crate::xds::generate::encode;
use crate::xds::generate::ingress::http_route_name;
use crate::xds::generate::rbac::AccessFilters;
use crate::xds::resource::Resource;

/// What listeners of a router depend on besides Gateways.
#[derive(Clone, Copy)]
pub(super) struct IngressListeners<'a> {
    pub(super) settings: &'a TrafficSettings,
    pub(super) families: Families,
    /// What guards its chains.
    pub(super) filters: &'a AccessFilters,
}

impl IngressListeners<'_> {
    /// The listener of a port; none where nothing is taken there.
    pub(super) fn listener(&self, port: &GatewayPort<'_>) -> Option<Resource> {
        let addresses = port.bind.map_or_else(|| wildcards(self.families), |bind| vec![bind]);
        let name = format!("{}_{}", addresses.first()?, port.number);
        let mut filter_chains = Vec::new();
        if !port.http.is_empty() {
            let grpc_web = port.http.iter().any(|one| one.server.grpc_web);
            filter_chains.push(chain(
                "http",
                None,
                self.http(&name, http_route_name(port), grpc_web),
            ));
        }
        if filter_chains.is_empty() {
            return None;
        }
        let listener = listener::Listener {
            filter_chains,
            traffic_direction: TrafficDirection::Outbound.into(),
            ..listening_on(name.clone(), &addresses, port.number)?
        };
        Some(encode(name, &listener))
    }

    /// Takes requests from outside: what they say of their way here is not believed.
    fn http(&self, listener: &str, routes: String, grpc_web: bool) -> listener::Filter {
        use hcm::http_connection_manager::{ForwardClientCertDetails, SetCurrentClientCertDetails};
        let manager = Http {
            stat_prefix: format!("outbound_{listener}"),
            routes: routes_named(routes),
            grpc_web,
            routed: true,
            guards: self.filters.http.clone(),
        }
        .manager(self.settings);
        let manager = normalizing(self.settings, self.filters.looks_at_paths, manager);
        http(&hcm::HttpConnectionManager {
            use_remote_address: bool_value(true),
            server_name: "istio-envoy".into(),
            forward_client_cert_details: ForwardClientCertDetails::SanitizeSet.into(),
            set_current_client_cert_details: Some(SetCurrentClientCertDetails {
                subject: bool_value(true),
                cert: true,
                dns: true,
                uri: true,
                ..Default::default()
            }),
            ..manager
        })
    }
}
