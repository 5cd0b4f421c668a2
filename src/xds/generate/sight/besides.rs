//! What proxies do besides passing requests on, as rules of their namespace say: which logs they write, and which filters of
//! users they have.

use super::Lens;
use crate::model::{Namespace, Proxy, ProxyType};
use crate::push::PushContext;
use crate::traffic::Selection;
use crate::traffic::envoy_filter::PatchPlace;
use crate::traffic::telemetry::CallEnd;

impl Lens<'_> {
    /// Whether proxies of a namespace, selected so before and now, write other logs at one of these ends of calls.
    pub(super) fn is_logged_otherwise(
        &self,
        namespace: &Namespace,
        selections: [&Selection; 2],
        ends: &[CallEnd],
    ) -> bool {
        let [before, now] = self.whole;
        let logs = |context: &PushContext, selection, end| {
            context.traffic.telemetries.logs(&context.mesh, (namespace, selection), end)
        };
        let [then, since] = selections;
        !self.same_telemetries(namespace)
            && ends.iter().any(|end| logs(before, then, *end) != logs(now, since, *end))
    }

    /// Whether proxies of a namespace, selected so before and now, have other filters of users at one of these places.
    pub(super) fn is_filtered_otherwise(
        &self,
        namespace: &Namespace,
        selections: [&Selection; 2],
        places: &[PatchPlace],
    ) -> bool {
        let [before, now] = self.whole.map(|context| &context.traffic.envoy_filters);
        let [then, since] = selections;
        let differs = |place: &PatchPlace| {
            before.at((namespace, then), *place) != now.at((namespace, since), *place)
        };
        !now.same_in(before, namespace) && places.iter().any(differs)
    }

    /// Whether a proxy has. Libraries have none.
    pub(super) fn filters_otherwise(&self, proxy: &Proxy) -> bool {
        let selections = self.whole.map(|context| context.selection(proxy));
        let places: &[PatchPlace] = match (proxy.grpc, proxy.kind) {
            (Some(_), _) => &[],
            (None, ProxyType::Sidecar) => &[PatchPlace::Outbound, PatchPlace::Inbound],
            (None, ProxyType::Router) => &[PatchPlace::Gateway],
        };
        self.is_filtered_otherwise(proxy.namespace(), selections.each_ref(), places)
    }

    /// Whether a proxy does. Libraries write none.
    pub(super) fn logs_otherwise(&self, proxy: &Proxy) -> bool {
        if self.same_telemetries(proxy.namespace()) {
            return false;
        }
        let selections = self.whole.map(|context| context.selection(proxy));
        let ends: &[CallEnd] = match (proxy.grpc, proxy.kind) {
            (Some(_), _) => &[],
            (None, ProxyType::Sidecar) => &[CallEnd::Client, CallEnd::Server],
            (None, ProxyType::Router) => &[CallEnd::Server],
        };
        self.is_logged_otherwise(proxy.namespace(), selections.each_ref(), ends)
    }

    fn same_telemetries(&self, namespace: &Namespace) -> bool {
        let [before, now] = self.whole.map(|context| &context.traffic.telemetries);
        now.same_in(before, namespace)
    }
}
