//! Who can see a change at all, as far as its kind says that before anybody is asked.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::context::PushContext;
use crate::aggregate::MergedService;
use strait_model::{Hostname, Namespace};

/// Whether a name's definitions, and the rules for all, are the same in both versions but for what is behind ports
/// ([`MergedService::same_before_ports`]): then nobody but the pods that serve it can see a difference.
pub fn same_before_ports(versions: [&PushContext; 2], host: &Hostname) -> bool {
    let [then, since] = versions.map(|context| {
        let private = context.private.get(host).into_iter().flat_map(|private| private.keys());
        (context.services.contains_key(host), private)
    });
    let [old, new] = versions.map(|context| definitions(context, host));
    let [before, now] = versions;
    Arc::ptr_eq(&before.traffic, &now.traffic)
        // Who is reached in another way may be seen otherwise, too.
        && Arc::ptr_eq(&before.networks, &now.networks)
        && Arc::ptr_eq(&before.clusters, &now.clusters)
        && then.0 == since.0
        && then.1.eq(since.1)
        && old.zip(new).all(|(old, new)| old.same_before_ports(new))
}

/// The namespaces that alone can see a change of `hosts`: where it is all [behind their ports](same_before_ports) those of
/// the pods that may serve them, where it is one of rules for routes those that the rules are for. `None` where it may be seen
/// from elsewhere.
pub fn reach(
    versions: [&PushContext; 2],
    hosts: &BTreeSet<Hostname>,
) -> Option<BTreeSet<Namespace>> {
    if !hosts.iter().all(|host| same_before_ports(versions, host)) {
        return RuleDifference::of(versions, hosts).seeing;
    }
    let merged = hosts
        .iter()
        .flat_map(|host| versions.into_iter().flat_map(move |context| definitions(context, host)));
    let mut namespaces = BTreeSet::new();
    for own in merged.flat_map(|merged| merged.by_cluster.values()) {
        // What a gateway of a network listens on is what its clients are sent to.
        if own.has_network_label() {
            return None;
        }
        if !namespaces.contains(&own.namespace) {
            namespaces.insert(own.namespace.clone());
        }
    }
    Some(namespaces)
}

/// All definitions of a name, those that one namespace has for itself behind the others.
pub fn definitions<'a>(
    context: &'a PushContext,
    host: &Hostname,
) -> impl Iterator<Item = &'a Arc<MergedService>> {
    let private = context.private.get(host).into_iter().flat_map(|all| all.values());
    context.services.get(host).into_iter().chain(private)
}

/// What of the difference between two versions is one of rules.
#[derive(Debug)]
pub struct RuleDifference {
    /// Whether services are the very same, and all that says who is reached at which address.
    pub has_same_services: bool,
    /// Whether no more than VirtualServices differs.
    pub is_of_routes_alone: bool,
    /// Whether of these no more than what becomes of requests, which still may lead where they did: that is said by routes alone.
    pub is_of_requests_alone: bool,
    /// Where only VirtualServices differ, the namespaces that may see it; `None` for all.
    seeing: Option<BTreeSet<Namespace>>,
}

impl RuleDifference {
    /// Of two versions that differ in these services alone.
    pub fn of([before, now]: [&PushContext; 2], hosts: &BTreeSet<Hostname>) -> Self {
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
        let is_of_requests_alone = is_of_routes_alone
            && now.virtual_services.differs_in_requests_alone(&before.virtual_services);
        let seeing = is_of_routes_alone
            .then(|| now.virtual_services.differing_namespaces(&before.virtual_services));
        let seeing = seeing.flatten();
        Self { has_same_services, is_of_routes_alone, is_of_requests_alone, seeing }
    }

    /// Whether proxies of a namespace see no difference, since all there is are rules that none of them sees.
    pub fn is_unseen_in(&self, namespace: &Namespace) -> bool {
        self.seeing.as_ref().is_some_and(|seeing| !seeing.contains(namespace))
    }
}
