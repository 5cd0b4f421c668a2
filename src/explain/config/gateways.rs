//! What becomes of Gateways.

use super::{ConfigView, Finding};
use crate::codes;
use crate::model::ProxyType;
use crate::push::proxy::east_west_port;
use crate::traffic::gateway::Gateway;

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
}
