//! Computes which namespaces a change can affect at all, from the kind of the change.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::context::PushContext;
use crate::aggregate::MergedService;
use strait_model::{Hostname, Namespace};

/// Returns whether a hostname's definitions and the common rules are equal in both versions except
/// for the targets of ports ([`MergedService::same_before_ports`]). Then only the pods that serve
/// the hostname can be affected.
pub fn same_before_ports(versions: [&PushContext; 2], host: &Hostname) -> bool {
    let [then, since] = versions.map(|context| {
        let private = context.private.get(host).into_iter().flat_map(|private| private.keys());
        (context.services.contains_key(host), private)
    });
    let [old, new] = versions.map(|context| definitions(context, host));
    let [before, now] = versions;
    Arc::ptr_eq(&before.traffic, &now.traffic)
        // Different gateways or cluster modes can affect other proxies.
        && Arc::ptr_eq(&before.networks, &now.networks)
        && Arc::ptr_eq(&before.clusters, &now.clusters)
        && before.remote_pods.is_same(&now.remote_pods, host)
        && then.0 == since.0
        && then.1.eq(since.1)
        && old.zip(new).all(|(old, new)| old.same_before_ports(new))
}

/// Returns the only namespaces that a change to `hosts` can affect, or `None` if others may be
/// affected. If only [targets of ports](same_before_ports) changed, these are the namespaces of the
/// pods that may serve the hosts. If only rules for routes changed, these are the namespaces to
/// which the rules apply.
pub fn reach(
    versions: [&PushContext; 2],
    hosts: &BTreeSet<Hostname>,
) -> Option<BTreeSet<Namespace>> {
    if !hosts.iter().all(|host| same_before_ports(versions, host)) {
        return RuleDifference::of(versions, hosts).affected_namespaces;
    }
    let merged = hosts
        .iter()
        .flat_map(|host| versions.into_iter().flat_map(move |context| definitions(context, host)));
    let mut namespaces = BTreeSet::new();
    for own in merged.flat_map(|merged| merged.by_cluster.values()) {
        // A gateway's ports also affect its clients in other networks.
        if own.has_network_label() {
            return None;
        }
        if !namespaces.contains(&own.namespace) {
            namespaces.insert(own.namespace.clone());
        }
    }
    Some(namespaces)
}

/// Returns all definitions of a hostname; private ones follow the public one.
pub fn definitions<'a>(
    context: &'a PushContext,
    host: &Hostname,
) -> impl Iterator<Item = &'a Arc<MergedService>> {
    let private = context.private.get(host).into_iter().flat_map(|all| all.values());
    context.services.get(host).into_iter().chain(private)
}

/// The kinds of rules in which two versions differ.
#[derive(Debug)]
pub struct RuleDifference {
    /// Whether services, mesh config and clusters are the same objects.
    pub has_same_services: bool,
    /// Whether nothing but VirtualServices differs.
    pub changes_only_routes: bool,
    /// Whether VirtualServices differ only in how requests are processed and not in the set of
    /// destinations. Only route configurations contain this.
    pub changes_only_requests: bool,
    /// The namespaces that may be affected, if only VirtualServices differ; `None` for all.
    affected_namespaces: Option<BTreeSet<Namespace>>,
}

impl RuleDifference {
    /// Compares two versions that differ only in these services.
    pub fn of([before, now]: [&PushContext; 2], hosts: &BTreeSet<Hostname>) -> Self {
        let same = |host: &Hostname| {
            definitions(before, host).map(Arc::as_ptr).eq(definitions(now, host).map(Arc::as_ptr))
                && before.remote_pods.is_same(&now.remote_pods, host)
        };
        let has_same_services = Arc::ptr_eq(&before.mesh, &now.mesh)
            && Arc::ptr_eq(&before.clusters, &now.clusters)
            && hosts.iter().all(same);
        let (before, now) = (&before.traffic, &now.traffic);
        let changes_only_routes = has_same_services
            && before.destination_rules == now.destination_rules
            && before.sidecars == now.sidecars
            && before.addressed == now.addressed
            && before.telemetries == now.telemetries
            && before.envoy_filters == now.envoy_filters;
        let changes_only_requests = changes_only_routes
            && now.virtual_services.differs_in_requests_alone(&before.virtual_services);
        let affected_namespaces = changes_only_routes
            .then(|| now.virtual_services.differing_namespaces(&before.virtual_services));
        let affected_namespaces = affected_namespaces.flatten();
        Self { has_same_services, changes_only_routes, changes_only_requests, affected_namespaces }
    }

    /// Returns whether proxies of a namespace are unaffected, because only rules for other
    /// namespaces differ.
    pub fn is_unaffected(&self, namespace: &Namespace) -> bool {
        self.affected_namespaces
            .as_ref()
            .is_some_and(|affected_namespaces| !affected_namespaces.contains(namespace))
    }
}
