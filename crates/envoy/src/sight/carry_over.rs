//! Carries cache entries over from one version to the next.

use super::lens::Lens;
use crate::cache::{Cache, Span};
use crate::class::class_of;

impl Cache {
    /// Extends the entries of version `before` to version `now` if `lens` finds no difference.
    pub(super) fn carry_over(&self, lens: &Lens<'_>) {
        let step = lens.step();
        self.outbound.carry_over(step, |(view, form)| lens.same_outbound(view, form));
        self.listeners.carry_over(step, |(class, form)| lens.same_listeners(class, *form));
        self.pods.carry_over(step, |(view, form)| {
            lens.same_listeners(&class_of(view), *form) && lens.other_pods(view, *form).is_empty()
        });
        self.routes.carry_over(step, |(class, namespace, name)| {
            lens.same_route(class, namespace.as_ref(), name)
        });
        self.names.carry_over(step, |(view, given)| lens.same_names(view, *given));
        if lens.rules.has_same_services {
            self.addresses.carry_over(step, |class| !lens.is_rescoped(&class.namespace));
            self.bases.carry_over(step, |(class, port, completes)| {
                lens.same_base(class, *port, *completes)
            });
            if lens.rules.changes_only_routes {
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
