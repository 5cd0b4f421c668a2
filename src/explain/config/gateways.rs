//! What becomes of Gateways.

use super::{ConfigView, Finding};
use crate::codes;
use crate::model::{Proxy, ProxyType};
use crate::push::proxy::east_west_port;
use crate::traffic::Reason;
use crate::traffic::gateway::Gateway;
use crate::traffic::route::RequestMatch;
use crate::traffic::virtual_service::VirtualService;

impl ConfigView<'_> {
    /// A Gateway is in force for the routers that it selects.
    pub(super) fn gateway(&self, gateway: &Gateway) -> Finding {
        let routers = self.clients.proxies().iter().filter(|proxy| {
            proxy.kind == ProxyType::Router
                && east_west_port(self.context, proxy).is_none()
                && gateway.selects(self.context.labels_of(proxy))
        });
        let found = Finding {
            reasons: self.context.traffic.gateways.losses(gateway),
            standing: None,
            proxies: routers.count(),
        };
        let is_asked = self.services_known && gateway.selector.is_some() && found.proxies == 0;
        let mut pods = self.context.workloads.values().flat_map(|all| all.iter());
        if is_asked && !pods.any(|(_, pod)| gateway.selects(&pod.labels)) {
            let text = "no workload that is known carries these labels";
            return Finding::unused(&codes::SELECTOR_UNUSED, "spec.selector", text);
        }
        found
    }

    /// Conditions on claims at routers that verify no token.
    pub(super) fn claims_that_nobody_knows(&self, service: &VirtualService) -> Option<Reason> {
        let mut rules = service.http.iter().enumerate();
        let (rule, one) = rules.find_map(|(at, rule)| {
            let place = rule.rule.matches.iter().position(RequestMatch::looks_at_claims)?;
            Some((at, place))
        })?;
        let serves = |proxy: &&Proxy| {
            let labels = self.context.labels_of(proxy);
            let mut gateways = self.context.traffic.gateways.selecting(labels);
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
