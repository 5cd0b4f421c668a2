//! What becomes of Gateways.

use super::{ConfigView, Finding};
use crate::codes;
use crate::mesh::GatewayScope;
use crate::model::{Proxy, ProxyType};
use crate::push::proxy::east_west_port;
use crate::traffic::Reason;
use crate::traffic::gateway::Gateway;
use crate::traffic::route::RequestMatch;
use crate::traffic::virtual_service::VirtualService;

impl ConfigView<'_> {
    /// A Gateway is in force for the routers that it selects.
    pub(super) fn gateway(&self, gateway: &Gateway) -> Finding {
        let gateways = &self.context.traffic.gateways;
        let routers = self.clients.proxies().iter().filter(|proxy| {
            proxy.kind == ProxyType::Router
                && east_west_port(self.context, proxy).is_none()
                && gateways.selects(gateway, proxy.namespace(), self.context.labels_of(proxy))
        });
        let found =
            Finding { reasons: gateways.losses(gateway), standing: None, proxies: routers.count() };
        let is_asked = self.services_known && gateway.selector.is_some() && found.proxies == 0;
        let mut pods = self.context.workloads.values().flat_map(|all| all.iter());
        if is_asked && !pods.any(|(pod, at)| gateways.selects(gateway, pod.namespace, &at.labels)) {
            let of = match self.context.mesh.gateway_scope {
                GatewayScope::AnyNamespace => "",
                GatewayScope::OwnNamespace => {
                    " in its namespace, and --scope-gateway-to-namespace leaves it no other"
                }
            };
            let text = format!("no workload that is known carries these labels{of}");
            return Finding::unused(&codes::SELECTOR_UNUSED, "spec.selector", text);
        }
        found
    }

    /// Conditions on claims at routers that verify no token.
    pub(super) fn claims_that_nobody_knows(&self, service: &VirtualService) -> Option<Reason> {
        let mut rules = service.http.iter().enumerate();
        let (rule, one) = rules.find_map(|(at, rule)| {
            let place = rule.matches.iter().position(RequestMatch::looks_at_claims)?;
            Some((at, place))
        })?;
        let serves = |proxy: &&Proxy| {
            let labels = self.context.labels_of(proxy);
            let gateways = &self.context.traffic.gateways;
            let mut gateways = gateways.selecting(proxy.namespace(), labels);
            proxy.kind == ProxyType::Router
                && east_west_port(self.context, proxy).is_none()
                && gateways.any(|gateway| service.gateways.contains(&gateway.name))
        };
        let mut routers = self.clients.proxies().iter().copied().filter(serves);
        let router =
            routers.find(|proxy| self.context.access_of(proxy).token_rules().is_empty())?;
        let text = format!("{} verifies no token: no request there has any claim", router.id);
        let path = format!("spec.http[{rule}].match[{one}]");
        Some(Reason::warning(&codes::ACCESS_CLAIMS_UNKNOWN, path, text))
    }
}
