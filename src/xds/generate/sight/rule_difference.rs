//! Which part of a change is one of rules for routes, and who can see that.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::model::{Hostname, Namespace};
use crate::push::PushContext;
use crate::push::scope::definitions;

/// What of the difference between two versions is one of rules.
pub(super) struct RuleDifference {
    /// Whether services are the very same, and all that says who is reached at which address.
    pub(super) has_same_services: bool,
    /// Whether no more than VirtualServices differs.
    pub(super) is_of_routes_alone: bool,
    /// Where that is so, the namespaces that may see it; `None` for all.
    seeing: Option<BTreeSet<Namespace>>,
}

impl RuleDifference {
    pub(super) fn of([before, now]: [&PushContext; 2], hosts: &BTreeSet<Hostname>) -> Self {
        let same = |host: &Hostname| {
            definitions(before, host).map(Arc::as_ptr).eq(definitions(now, host).map(Arc::as_ptr))
        };
        let has_same_services = Arc::ptr_eq(&before.mesh, &now.mesh)
            && Arc::ptr_eq(&before.clusters, &now.clusters)
            && hosts.iter().all(same);
        let (before, now) = (&before.traffic, &now.traffic);
        let is_of_routes_alone = has_same_services
            && before.destination_rules == now.destination_rules
            && before.sidecars == now.sidecars
            && before.addressed == now.addressed
            && before.telemetries == now.telemetries
            && before.envoy_filters == now.envoy_filters;
        let seeing = is_of_routes_alone
            .then(|| now.virtual_services.differing_namespaces(&before.virtual_services));
        Self { has_same_services, is_of_routes_alone, seeing: seeing.flatten() }
    }

    /// Whether proxies of a namespace see no difference, since all there is are rules that none of them sees.
    pub(super) fn is_unseen_in(&self, namespace: &Namespace) -> bool {
        self.seeing.as_ref().is_some_and(|seeing| !seeing.contains(namespace))
    }
}
