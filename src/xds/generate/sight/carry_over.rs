//! What is kept of one version for the next.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::Lens;
use crate::model::{Hostname, Namespace};
use crate::push::scope::definitions;
use crate::xds::generate::cache::{Cache, Span};
use crate::xds::generate::class::class_of;

impl Cache {
    /// Keeps what holds for `now` as it did `before`, as far as `lens` says so.
    pub(super) fn carry_over(&self, lens: &Lens<'_>) {
        let step = lens.step();
        self.outbound.carry_over(step, |(view, form)| lens.same_outbound(view, form));
        self.listeners.carry_over(step, |class| lens.same_listeners(class));
        self.pods.carry_over(step, |view| {
            lens.same_listeners(&class_of(view)) && lens.other_pods(view).is_empty()
        });
        self.routes.carry_over(step, |(class, namespace, name)| {
            lens.same_route(class, namespace.as_ref(), name)
        });
        self.names.carry_over(step, |(view, given)| lens.same_names(view, *given));
        if lens.has_same_services() {
            self.addresses.carry_over(step, |class| !lens.is_rescoped(&class.namespace));
            self.bases.carry_over(step, |(class, port, completes)| {
                lens.same_base(class, *port, *completes)
            });
            if lens.has_same_destinations() {
                let [before, now] = lens.whole.map(|context| &context.traffic.virtual_services);
                let hosts = now.differing_hosts(before).into_iter().collect();
                self.rule_steps.put(step[1], Span::over(step), hosts);
            }
        }
        self.served.carry_over(step, |(cluster, namespace)| !lens.may_serve(cluster, namespace));
        self.east_west_ports.for_each(|(cluster, _), inputs| {
            if !lens.may_be_gateway(cluster) {
                inputs.span.reach(step);
            }
        });
    }
}

impl Lens<'_> {
    /// Where nothing but rules for routes differs, the namespaces that may see it; `None` for all.
    pub(super) fn ruled_otherwise(&self) -> Option<BTreeSet<Namespace>> {
        let [before, now] = self.whole.map(|context| &context.traffic);
        let is_of_routes_alone = self.has_same_services()
            && self.has_same_destinations()
            && before.telemetries == now.telemetries
            && before.envoy_filters == now.envoy_filters;
        if !is_of_routes_alone {
            return None;
        }
        now.virtual_services.differing_namespaces(&before.virtual_services)
    }

    /// Whether the services are the very same, and all that says who is reached at which address: rules differ.
    pub(super) fn has_same_services(&self) -> bool {
        let [before, now] = self.whole;
        let same = |host: &Hostname| {
            definitions(before, host).map(Arc::as_ptr).eq(definitions(now, host).map(Arc::as_ptr))
        };
        Arc::ptr_eq(&before.mesh, &now.mesh)
            && Arc::ptr_eq(&before.clusters, &now.clusters)
            && self.hosts.iter().all(same)
    }

    /// Whether, where [services are the same](Self::has_same_services), no route can be another but by rules for its host.
    pub(super) fn has_same_destinations(&self) -> bool {
        let [before, now] = self.whole.map(|context| &context.traffic);
        before.destination_rules == now.destination_rules
            && before.sidecars == now.sidecars
            && before.addressed == now.addressed
    }
}
