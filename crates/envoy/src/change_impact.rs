//! Computes which proxies a change to services affects.
//!
//! The generators run on an excerpt of the mesh that contains only the changed services, before and
//! after the change. Only these services can make a difference: a resource is either the sum of the
//! parts of all services, or belongs to the first service that needs it. Addresses are resolved
//! beforehand, so services that compete for an address are part of the excerpt
//! ([`strait_mesh::push::scope::related_hosts`]). Two cases are reported separately: a service
//! whose precedence changes may win or lose a name to a service outside of the excerpt, and the
//! services of a workload are looked up among all services of its namespace.
//!
//! Many streams are affected equally, so each result is computed once. No result is computed if a
//! change only affects selectors, target ports and endpoints, or if a namespace sees none of the
//! services.

mod carry_over;
mod logs_and_filters;
mod snapshot_diff;

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use self::snapshot_diff::SnapshotDiff;
use super::cache::Cache;
use super::cds::{ClusterFormat, inbound_clusters};
use super::class::{ListenerFormat, class_for};
use super::common::own_domain;
use super::lds;
use strait_mesh::aggregate::MergedService;
use strait_mesh::push::PushContext;
use strait_mesh::push::proxy::inbound_targets;
use strait_mesh::push::scope::{AffectedResources, ChangeImpact, ProxyLocation};
use strait_mesh::push::view::{Role, ViewKey};
use strait_model::dirty::Wildcard;
use strait_model::{
    ClusterId, GrpcLibrary, Hostname, Locality, Namespace, NetworkId, ProxyType, Service,
};
use strait_rules::traffic::{HostPattern, Selection};

impl ChangeImpact for Cache {
    fn seen(
        &self,
        before: &Arc<PushContext>,
        now: &Arc<PushContext>,
        hosts: &BTreeSet<Hostname>,
        locations: &[Arc<ProxyLocation>],
    ) -> Vec<Arc<AffectedResources>> {
        let diff = SnapshotDiff::new(self, [before, now], hosts);
        let mut groups = Groups::new(&diff);
        let affected = locations.iter().map(|location| groups.affected_at(location)).collect();
        self.carry_over(&diff);
        affected
    }
}

/// The affected resources of streams, computed once for each group of equal streams.
struct Groups<'a> {
    diff: &'a SnapshotDiff<'a>,
    /// Whether the node and the locality matter: see [`SnapshotDiff::by_place`].
    by_place: [bool; 2],
    /// For each namespace, a namespace that sees the same changed services; `None` if it sees none.
    like: HashMap<&'a Namespace, Option<&'a Namespace>>,
    by_signature: HashMap<Signature, &'a Namespace>,
    affected: HashMap<LocationGroup<'a>, VisibleDifference>,
    served: HashMap<(&'a ClusterId, &'a Namespace), [ServedServices; 2]>,
    nothing: Arc<AffectedResources>,
}

/// The services that pods of a namespace may serve.
type ServedServices = Arc<[Arc<Service>]>;

/// The properties of a namespace that affect the changed services: whether each is visible, and the
/// namespace itself if one of the services is in it or is private to a namespace.
type Signature = (Vec<bool>, Option<Namespace>);

/// The properties of a stream that affect its view of the changed services.
#[derive(PartialEq, Eq, Hash)]
struct LocationGroup<'a> {
    cluster: &'a ClusterId,
    namespace: &'a Namespace,
    network: &'a NetworkId,
    visible_networks: Option<&'a [NetworkId]>,
    families: (bool, bool),
    node: Option<&'a str>,
    locality: Option<&'a Locality>,
    selection: Selection,
    kind: ListenerKind,
    form: ClusterFormat,
    listener_form: ListenerFormat,
    given: bool,
    /// The DNS domain, unless it is that of the namespace.
    domain: Option<&'a str>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum ListenerKind {
    Sidecar,
    /// An east-west gateway and its port.
    Gateway(u16),
    /// A router that is not an east-west gateway.
    Router,
    /// A gRPC library, which requests listeners by name.
    Library(GrpcLibrary),
}

/// The affected resources, and the pods whose listeners differ.
struct VisibleDifference {
    affected: Arc<AffectedResources>,
    with_listeners: Arc<AffectedResources>,
    pods: Arc<[IpAddr]>,
}

impl<'a> Groups<'a> {
    fn new(diff: &'a SnapshotDiff<'a>) -> Self {
        Self {
            diff,
            by_place: diff.by_place(),
            like: HashMap::new(),
            by_signature: HashMap::new(),
            affected: HashMap::new(),
            served: HashMap::new(),
            nothing: Arc::default(),
        }
    }

    fn affected_at(&mut self, location: &'a Arc<ProxyLocation>) -> Arc<AffectedResources> {
        let affected = self.affected_by_traffic(location);
        // Selectors, target ports and endpoints do not affect access logs, authorization providers
        // and user filters.
        if affected.everything || (self.diff.is_behind_ports && self.diff.has_same_rules()) {
            return affected;
        }
        let mut queried = self.diff.queried_providers(&location.proxy);
        queried.extend(self.diff.traced(&location.proxy));
        queried.extend(self.diff.queried_by_filters(&location.proxy));
        let filters_differ = self.diff.proxy_filters_differ(&location.proxy);
        let others = filters_differ || self.diff.proxy_telemetry_differs(&location.proxy);
        if queried.is_empty() && !others {
            return affected;
        }
        let mut affected = (*affected).clone();
        affected.lists.add(Wildcard::Listeners);
        if self.diff.span_clusters_differ(&location.proxy)
            || (filters_differ && self.diff.filter_upstreams_differ(&location.proxy))
        {
            affected.lists.add(Wildcard::Clusters);
        }
        if !queried.is_empty() {
            affected.lists.add(Wildcard::Clusters);
            let defined = self.diff.defined.iter().filter(|host| queried.contains(*host));
            affected.assignments.extend(defined.cloned());
        }
        Arc::new(affected)
    }

    /// Returns the affected resources for the proxy's own traffic.
    fn affected_by_traffic(&mut self, location: &'a Arc<ProxyLocation>) -> Arc<AffectedResources> {
        let proxy = &*location.proxy;
        let SnapshotDiff { cache, whole: [before, now], .. } = self.diff;
        let port = cache.east_west_port(before, proxy);
        if proxy.kind.is_gateway()
            && self.diff.may_be_gateway(&proxy.cluster)
            && cache.east_west_port(now, proxy) != port
        {
            return Arc::new(AffectedResources {
                everything: true,
                ..AffectedResources::default()
            });
        }
        let kind = match (proxy.grpc, proxy.kind, port) {
            (Some(library), ..) => ListenerKind::Library(library),
            (None, ProxyType::Sidecar, _) => ListenerKind::Sidecar,
            (None, ProxyType::Router, Some(port)) => ListenerKind::Gateway(port),
            (None, ProxyType::Router, None) => ListenerKind::Router,
        };
        if kind == ListenerKind::Router && self.diff.router_may_differ(proxy) {
            return Arc::new(AffectedResources {
                everything: true,
                ..AffectedResources::default()
            });
        }
        let affected = if self.diff.is_behind_ports {
            Arc::clone(&self.nothing)
        } else {
            self.affected_outbound(location, kind)
        };
        if kind == ListenerKind::Sidecar && self.diff.may_serve(&proxy.cluster, proxy.namespace()) {
            return self.with_inbound(location, affected);
        }
        if *affected == *self.nothing { Arc::clone(&self.nothing) } else { affected }
    }

    /// Returns the affected outbound resources of a proxy.
    fn affected_outbound(
        &mut self,
        location: &'a Arc<ProxyLocation>,
        kind: ListenerKind,
    ) -> Arc<AffectedResources> {
        let proxy = &*location.proxy;
        let like = self.like(proxy.namespace());
        let namespace = match like {
            None if kind == ListenerKind::Sidecar => return Arc::clone(&self.nothing),
            // A gateway forwards to all public services, whatever its own namespace is.
            like => like.unwrap_or(proxy.namespace()),
        };
        let whereabouts = &location.whereabouts;
        let [by_node, by_locality] = self.by_place;
        let group = LocationGroup {
            cluster: &proxy.cluster,
            namespace,
            network: &location.network,
            visible_networks: proxy.visible_networks.as_deref(),
            families: (proxy.has_ipv4(), proxy.has_ipv6()),
            node: whereabouts.node.as_deref().filter(|_| by_node),
            locality: whereabouts.locality.as_deref().filter(|_| by_locality),
            selection: self.diff.whole[1].selection(proxy),
            kind,
            form: ClusterFormat::for_proxy(proxy),
            listener_form: ListenerFormat::for_proxy(proxy),
            given: proxy.takes_given_addresses,
            domain: own_domain(self.diff.whole[1], proxy).err(),
        };
        let diff = self.diff;
        let shown = self.affected.entry(group).or_insert_with(|| shown(diff, location, kind));
        let others = shown.pods.iter().any(|pod| !proxy.addresses.contains(pod));
        Arc::clone(if others { &shown.with_listeners } else { &shown.affected })
    }

    /// Adds the affected inbound resources of a sidecar.
    fn with_inbound(
        &mut self,
        location: &'a ProxyLocation,
        affected: Arc<AffectedResources>,
    ) -> Arc<AffectedResources> {
        let proxy = &*location.proxy;
        let (cluster, namespace) = (&proxy.cluster, proxy.namespace());
        let diff = self.diff;
        let served = self.served.entry((cluster, namespace));
        let [old, new] = served.or_insert_with(|| diff.served(cluster, namespace));
        let [before, now] = diff.whole;
        let targets = [inbound_targets(before, proxy, old), inbound_targets(now, proxy, new)];
        if targets[0] == targets[1] {
            return affected;
        }
        let [old, new] = targets;
        let mut lists = affected.lists;
        if inbound_clusters(before, proxy, &old) != inbound_clusters(now, proxy, &new) {
            lists.add(Wildcard::Clusters);
        }
        let encoded_policies = &diff.cache.policies;
        if lds::inbound(before, proxy, &old, encoded_policies)
            != lds::inbound(now, proxy, &new, encoded_policies)
        {
            lists.add(Wildcard::Listeners);
        }
        if lists == affected.lists {
            affected
        } else {
            Arc::new(AffectedResources { lists, ..(*affected).clone() })
        }
    }

    /// Returns a namespace that sees the same changed services, or `None` if it sees none.
    fn like(&mut self, namespace: &'a Namespace) -> Option<&'a Namespace> {
        if let Some(like) = self.like.get(namespace) {
            return *like;
        }
        let diff = self.diff;
        if diff.rules.is_unaffected(namespace) {
            self.like.insert(namespace, None);
            return None;
        }
        let contexts = diff.excerpts.each_ref().map(|(context, _)| context);
        let domain = format!(".{namespace}.svc.{}", diff.whole[1].settings.domain);
        let is_private = contexts.iter().any(|context| !context.private.is_empty());
        let is_named = is_private
            || diff.hosts.iter().any(|host| host.as_str().ends_with(&domain))
            || contexts.iter().any(|one| one.traffic.concerns(namespace));
        let services = contexts.iter().flat_map(|context| context.services.values());
        let sidecars = contexts.map(|context| &context.traffic.sidecars);
        let is_imported = |service: &MergedService| {
            let host = HostPattern::for_service(service.hostname());
            let owner = &service.primary.namespace;
            sidecars.iter().any(|all| all.may_include(namespace, &host, owner))
        };
        let is_scoped = sidecars.iter().any(|all| !all.is_empty());
        let visible = services.map(|service| {
            service.primary.export_to.visible_to(namespace) && (!is_scoped || is_imported(service))
        });
        let visible: Vec<bool> = visible.collect();
        // Rules may name hosts that no service has, and route to services that are not visible.
        let [before, now] = diff.whole;
        let is_ruled = !Arc::ptr_eq(&before.traffic, &now.traffic)
            || contexts.iter().any(|one| !one.traffic.virtual_services.is_empty());
        let like = (is_private || is_ruled || visible.contains(&true)).then(|| {
            let signature = (visible, is_named.then(|| namespace.clone()));
            *self.by_signature.entry(signature).or_insert(namespace)
        });
        self.like.insert(namespace, like);
        like
    }
}

/// Returns the affected resources of a proxy at this location.
fn shown(
    diff: &SnapshotDiff<'_>,
    location: &ProxyLocation,
    kind: ListenerKind,
) -> VisibleDifference {
    let proxy = &*location.proxy;
    let role = if let ListenerKind::Gateway(_) = kind { Role::Gateway } else { Role::Client };
    let view = ViewKey::of(proxy, location.network.clone(), role)
        .at(location.whereabouts.clone())
        .selected(diff.whole[1].selection(proxy));
    let form = ClusterFormat::for_proxy(proxy);
    let listener_form = ListenerFormat::for_proxy(proxy);
    let mut affected = AffectedResources::default();
    let mut pods: Arc<[IpAddr]> = Arc::default();
    match kind {
        ListenerKind::Sidecar => {
            if !diff.same_outbound(&view, &form) {
                affected.lists.add(Wildcard::Clusters);
            }
            let class = class_for(&diff.projected(&view));
            if !diff.same_listeners(&class, listener_form) {
                affected.lists.add(Wildcard::Listeners);
            }
            pods = diff.other_pods(&view, listener_form);
            let own = own_domain(diff.whole[1], proxy);
            let same = |name: &str| match own {
                Ok(namespace) => diff.same_route(&class, Some(namespace), name),
                Err(domain) => diff.compare(|| {
                    let [before, now] =
                        diff.both().map(|common| common.route_in(&class, domain, name));
                    before == now && !diff.is_reranked(&class.cluster)
                }),
            };
            affected.routes = diff.routes.iter().filter(|name| !same(name)).cloned().collect();
        }
        ListenerKind::Gateway(port) => {
            if !diff.same_outbound(&view, &form) {
                affected.lists.add(Wildcard::Clusters);
            }
            let target = (&view, listener_form);
            let same = || {
                let [before, now] =
                    diff.both().map(|common| lds::gateway(common.context, target, port));
                before == now
            };
            if !diff.compare(same) {
                affected.lists.add(Wildcard::Listeners);
            }
        }
        ListenerKind::Router => {}
        ListenerKind::Library(_) => diff.by_name(&view, &mut affected),
    }
    let differ = diff.defined.iter().filter(|host| !diff.same_assignments(&view, host));
    affected.assignments = differ.cloned().collect();
    if !diff.same_names(&view, proxy.takes_given_addresses) {
        affected.lists.add(Wildcard::Names);
    }
    let mut with_listeners = affected.clone();
    with_listeners.lists.add(Wildcard::Listeners);
    VisibleDifference {
        affected: Arc::new(affected),
        with_listeners: Arc::new(with_listeners),
        pods,
    }
}

#[cfg(test)]
mod tests;
