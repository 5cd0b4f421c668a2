//! What becomes of Gateways.

use super::{ConfigView, Finding};
use crate::codes;
use crate::model::{Labels, ProxyType, labels_match};
use crate::push::proxy::east_west_port;
use crate::traffic::gateway::Gateway;

impl ConfigView<'_> {
    /// A Gateway is in force for the routers that it selects.
    pub(super) fn gateway(&self, gateway: &Gateway) -> Finding {
        let selects = |labels: &Labels| {
            gateway.selector.as_ref().is_none_or(|selector| labels_match(selector, labels))
        };
        let routers = self.clients.proxies().iter().filter(|proxy| {
            proxy.kind == ProxyType::Router
                && east_west_port(self.context, proxy).is_none()
                && selects(self.context.labels_of(proxy))
        });
        let found = Finding {
            reasons: self.context.traffic.gateways.losses(gateway),
            standing: None,
            proxies: routers.count(),
        };
        let is_asked = self.services_known && gateway.selector.is_some() && found.proxies == 0;
        let mut pods = self.context.workloads.values().flat_map(|all| all.iter());
        if is_asked && !pods.any(|(_, pod)| selects(&pod.labels)) {
            let text = "no workload that is known carries these labels";
            return Finding::unused(&codes::SELECTOR_UNUSED, "spec.selector", text);
        }
        found
    }
}
