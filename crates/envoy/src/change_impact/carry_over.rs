//! Carries cache entries over from one version to the next.

use super::snapshot_diff::SnapshotDiff;
use crate::cache::{Cache, Span};
use crate::class::class_for;

impl Cache {
    /// Extends the entries of version `before` to version `now` if `diff` finds no difference.
    pub(super) fn carry_over(&self, diff: &SnapshotDiff<'_>) {
        let step = diff.step();
        self.outbound.carry_over(step, |(view, form)| diff.same_outbound(view, form));
        self.listeners.carry_over(step, |(class, form)| diff.same_listeners(class, *form));
        self.pods.carry_over(step, |(view, form)| {
            diff.same_listeners(&class_for(view), *form) && diff.other_pods(view, *form).is_empty()
        });
        self.routes.carry_over(step, |(class, namespace, name)| {
            diff.same_route(class, namespace.as_ref(), name)
        });
        self.names.carry_over(step, |(view, given)| diff.same_names(view, *given));
        if diff.rules.has_same_services {
            self.addresses.carry_over(step, |class| !diff.is_rescoped(&class.namespace));
            self.bases.carry_over(step, |(class, port, completes)| {
                diff.same_base(class, *port, *completes)
            });
            if diff.rules.changes_only_routes {
                let [before, now] = diff.whole.map(|context| &context.traffic.virtual_services);
                let hosts = now.differing_hosts(before).into_iter().collect();
                self.rule_steps.put(step[1], Span::over(step), hosts);
            }
        }
        self.served.carry_over(step, |(cluster, namespace)| !diff.may_serve(cluster, namespace));
        self.east_west_ports.for_each(|(cluster, _), inputs| {
            if !diff.may_be_gateway(cluster) {
                inputs.span.reach(step);
            }
        });
    }
}
