//! Decides which VirtualService a host belongs to, by proxy (docs/reference/traffic.md, "Order" and
//! "VirtualService").

mod differences;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use imbl::OrdMap;

use super::changes::TrafficChanges;
use super::gateway_servers::Gateways;
use super::hosts::{HostPattern, wider};
use super::object::{ObjectMeta, Reason, new_reasons};
use super::route::{
    ConnectionMatch, Destination, HttpRoutes, HttpRule, RequestMatch, RouteKind, RouteOrigin,
    SourceMatch, TcpRule,
};
use super::selection::{Selection, Selectors};
use super::virtual_service::{Delegate, VirtualService};
use super::withheld::Withheld;
use strait_base::codes;
use strait_model::mesh_config::HostSharing;
use strait_model::{ExportTo, Hostname, Namespace, Port, WorkloadKey};

/// A service and the name of a port. An empty name represents the only port of the service.
pub type UnnumberedPort = (Hostname, Arc<str>);

/// A VirtualService including the rules of all delegates.
#[derive(Debug, PartialEq, Eq)]
pub struct RoutedService {
    /// The object.
    pub service: Arc<VirtualService>,
    /// Rules for requests, including the rules of delegates.
    pub http: HttpRoutes,
    /// Reasons about its delegates to report to its owner.
    pub reasons: Vec<Reason>,
    /// Services in its rules without a port number, each with the name of the port, sorted.
    portless: Box<[UnnumberedPort]>,
}

impl RoutedService {
    fn new(service: &Arc<VirtualService>, (http, reasons): (HttpRoutes, Vec<Reason>)) -> Self {
        let service = Arc::clone(service);
        let mut routed = Self { service, http, reasons, portless: Box::default() };
        let portless = routed.destinations().filter(|to| to.port.is_none());
        let portless: BTreeSet<_> =
            portless.map(|to| (to.host.clone(), Arc::clone(&to.port_name))).collect();
        routed.portless = portless.into_iter().collect();
        routed
    }

    /// Returns whether both differ at most in their HTTP rules, and route to the same services.
    fn equals_except_requests(&self, other: &Self) -> bool {
        let VirtualService { meta, origin, hosts, gateways, export_to, http: _, more } =
            &*self.service;
        let theirs = &*other.service;
        (meta, origin, hosts, gateways)
            == (&theirs.meta, &theirs.origin, &theirs.hosts, &theirs.gateways)
            && (export_to, &more.tls, &more.tcp) == (&theirs.export_to, &theirs.tls, &theirs.tcp)
            && self.http.origin == other.http.origin
            && self.portless == other.portless
            && self.http_destinations() == other.http_destinations()
    }

    /// Returns the destinations of HTTP rules, each with the namespace of the senders, if limited.
    fn http_destinations(&self) -> BTreeSet<(Option<&Namespace>, &Hostname)> {
        let mut destinations = BTreeSet::new();
        for rule in &*self.http.rules {
            let namespaces = rule.matches.iter().map(|one| one.source.namespace.as_ref());
            let any = rule.matches.is_empty().then_some(None);
            let to = rule.all_destinations().map(|to| &to.host);
            for namespace in namespaces.chain(any) {
                destinations.extend(to.clone().map(|host| (namespace, host)));
            }
        }
        destinations
    }

    /// Returns whether two objects share a host: both are VirtualServices, and `other` contains the
    /// host pattern that applies to `host` in this one.
    pub fn shares_host(&self, other: &Self, host: &HostPattern) -> bool {
        let is_virtual_service = |one: &Self| one.http.origin.kind == RouteKind::VirtualService;
        let holding = self.service.mesh_hosts().filter(|own| own.contains(host)).min();
        is_virtual_service(self)
            && is_virtual_service(other)
            && other.service.mesh_hosts().any(|own| Some(own) == holding)
    }

    /// Returns whether it has any rule. An object whose rules were all removed is treated as
    /// absent.
    pub fn has_rules(&self) -> bool {
        !self.service.tls.is_empty()
            || !self.service.tcp.is_empty()
            || self.http.rules.iter().any(|rule| !rule.is_absent)
    }

    /// Returns the number of pairs of a condition and a destination in its rules.
    pub fn pair_count(&self) -> usize {
        let http = self.http.rules.iter();
        let http = http.map(|rule| rule.matches.len().max(1) * rule.destinations.len().max(1));
        let connections = self.service.tls.iter().chain(&self.service.tcp);
        let connections =
            connections.map(|rule| rule.matches.len().max(1) * rule.destinations.len().max(1));
        http.chain(connections).sum()
    }

    /// Iterates over all destinations, including mirrors.
    pub fn destinations(&self) -> impl Iterator<Item = &Destination> {
        self.destinations_where(|_| true)
    }

    /// Iterates over the destinations of rules for a namespace. Rules for requests from other
    /// namespaces are left out.
    pub fn destinations_from(&self, namespace: &Namespace) -> impl Iterator<Item = &Destination> {
        let fits = move |request: &RequestMatch| {
            request.source.namespace.as_ref().is_none_or(|wanted| wanted == namespace)
        };
        self.destinations_where(move |rule| {
            rule.matches.is_empty() || rule.matches.iter().any(fits)
        })
    }

    fn destinations_where(
        &self,
        counts: impl Fn(&HttpRule) -> bool,
    ) -> impl Iterator<Item = &Destination> {
        let rules = self.http.rules.iter().filter(move |rule| counts(rule));
        let requests = rules.flat_map(HttpRule::all_destinations);
        let connections = self.service.tls.iter().chain(&self.service.tcp);
        let all = requests.chain(connections.flat_map(|rule| &rule.destinations));
        all.filter(|to| !to.invalid)
    }

    /// Returns the services in its rules without a port number. Their requests go to the port with
    /// the given name, or else to the only port of the service.
    pub fn portless(&self) -> &[UnnumberedPort] {
        &self.portless
    }

    /// Returns whether it has a rule for connections of a proxy, with its namespace and selection,
    /// to a port.
    pub fn routes_connections(
        &self,
        port: &Port,
        namespace: &Namespace,
        selection: &Selection,
    ) -> bool {
        let fits = |one: &ConnectionMatch| one.fits(namespace, selection, port.number, None);
        let by_name = || self.service.tls.iter().any(|rule| rule.matches.iter().any(fits));
        let any = |rule: &TcpRule| rule.matches.is_empty() || rule.matches.iter().any(fits);
        (port.protocol.begins_tls() && by_name()) || self.service.tcp.iter().any(any)
    }

    /// Returns whether any rule depends on a token.
    pub fn looks_at_claims(&self) -> bool {
        self.http.rules.iter().flat_map(|rule| &rule.matches).any(RequestMatch::looks_at_claims)
    }

    /// Iterates over the conditions on senders in all rules.
    pub fn sources(&self) -> impl Iterator<Item = &SourceMatch> {
        let http =
            self.http.rules.iter().flat_map(|rule| rule.matches.iter().map(|one| &one.source));
        let connections = self.service.tls.iter().chain(&self.service.tcp);
        http.chain(connections.flat_map(|rule| rule.matches.iter().map(|one| &one.source)))
    }
}

/// All active VirtualServices, by host for sidecars and by gateway. For each host and gateway, the
/// oldest is first.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct VirtualServices {
    by_host: OrdMap<HostPattern, Arc<[Arc<RoutedService>]>>,
    /// Objects by their gateways, `NAMESPACE/NAME`.
    by_gateway: OrdMap<Arc<str>, OrdMap<ObjectMeta, Arc<RoutedService>>>,
    /// Namespaces for which special objects apply, with the number of these objects.
    special_namespaces: OrdMap<Namespace, usize>,
    /// Each service that rules route to, with an object whose rules do so. This is one flat map:
    /// most services have one such object, for which a dedicated map would be mostly empty.
    destinations: OrdMap<(Hostname, ObjectMeta), LeadingObject>,
    /// The objects that do not apply to some of the proxies to which they are exported.
    withheld: Arc<Withheld>,
}

/// An object whose rules route to a service.
#[derive(Debug, Clone)]
struct LeadingObject {
    service: Arc<VirtualService>,
    /// Whether it uses the service without a port number.
    is_portless: bool,
}

impl PartialEq for LeadingObject {
    /// The hosts decide which routes depend on the service, not the rules.
    fn eq(&self, other: &Self) -> bool {
        self.is_portless == other.is_portless
            && (Arc::ptr_eq(&self.service, &other.service)
                || self.service.mesh_hosts().eq(other.service.mesh_hosts()))
    }
}

impl Eq for LeadingObject {}

impl VirtualServices {
    /// Returns whether no objects apply at sidecars.
    pub fn is_empty(&self) -> bool {
        self.by_host.is_empty()
    }

    /// Returns whether the rules of proxies may depend on this namespace: an object mentions it, or
    /// its objects are withheld from some proxies.
    pub fn concerns(&self, namespace: &Namespace) -> bool {
        self.special_namespaces.contains_key(namespace) || self.withheld.concerns(namespace)
    }

    /// The objects that do not apply to some of the proxies to which they are exported.
    pub fn withheld(&self) -> &Arc<Withheld> {
        &self.withheld
    }

    /// Returns a copy with other withheld objects.
    #[must_use]
    pub fn withholding(&self, withheld: Arc<Withheld>) -> Self {
        Self { withheld, ..self.clone() }
    }

    /// Iterates over the services that rules use without a port number.
    pub fn portless(&self) -> impl Iterator<Item = &Hostname> {
        self.by_host
            .values()
            .flat_map(|all| all.iter())
            .flat_map(|routed| &*routed.portless)
            .map(|(host, _)| host)
    }

    /// Iterates over the hosts whose rules route to a service, possibly with duplicates.
    pub fn leading_to<'a>(&'a self, service: &Hostname) -> impl Iterator<Item = &'a HostPattern> {
        self.leading_objects(service).flat_map(|by| by.service.mesh_hosts())
    }

    /// Iterates over the hosts whose routes depend on the ports of a service, possibly with
    /// duplicates.
    pub fn depending_on<'a>(&'a self, service: &Hostname) -> impl Iterator<Item = &'a HostPattern> {
        let portless = self.leading_objects(service).filter(|by| by.is_portless);
        portless.flat_map(|by| by.service.mesh_hosts())
    }

    fn leading_objects<'a>(
        &'a self,
        service: &Hostname,
    ) -> impl Iterator<Item = &'a LeadingObject> {
        let all = self.destinations.range((service.clone(), ObjectMeta::before_all())..);
        let service = service.clone();
        all.take_while(move |((to, _), _)| *to == service).map(|(_, by)| by)
    }

    /// Iterates over all active objects, possibly with duplicates.
    pub fn all(&self) -> impl Iterator<Item = &Arc<RoutedService>> {
        let for_sidecars = self.by_host.values().flat_map(|all| all.iter());
        for_sidecars.chain(self.by_gateway.values().flat_map(OrdMap::values))
    }

    /// Iterates over all hosts of objects, the most specific first.
    pub fn hosts(&self) -> impl Iterator<Item = &HostPattern> {
        self.by_host.keys()
    }

    /// Returns the active rules of an object; `None` if it applies neither to sidecars nor to
    /// gateways.
    pub fn routed(&self, service: &VirtualService) -> Option<&Arc<RoutedService>> {
        let is_it = |one: &&Arc<RoutedService>| one.service.meta == service.meta;
        let in_mesh = service.mesh_hosts().next().and_then(|host| self.by_host.get(host));
        let at_gateways = || {
            let mut all = service.own_gateways().filter_map(|name| self.by_gateway.get(name));
            all.find_map(|all| all.get(&service.meta))
        };
        in_mesh.and_then(|all| all.iter().find(is_it)).or_else(at_gateways)
    }

    /// Returns the namespaces whose proxies may have other objects for exactly this host pattern.
    pub fn special_namespaces_for(&self, host: &HostPattern) -> BTreeSet<Namespace> {
        let all = self.by_host.get(host).into_iter().flat_map(|all| all.iter());
        let owner = |routed: &Arc<RoutedService>| {
            let owner = &routed.service.meta.namespace;
            self.withheld.concerns(owner).then(|| owner.clone())
        };
        all.flat_map(|routed| special_namespaces(routed).into_iter().chain(owner(routed))).collect()
    }

    /// Returns the objects for a host in groups, one group for each host pattern: first the host
    /// itself, then the wildcards that contain it, the longest first.
    ///
    /// A host belongs to the first group with an object for proxies of the namespace, and in the
    /// group to the first object with rules for them; later groups then have no effect. Within a
    /// group, objects that are private to the namespace come first, then objects that are exported
    /// to it by name, then public objects. Among these, the oldest comes first.
    pub fn for_host<'a, 'n>(
        &'a self,
        host: &HostPattern,
        namespace: &'n Namespace,
    ) -> impl Iterator<Item = Vec<&'a Arc<RoutedService>>> + use<'a, 'n> {
        let mut patterns = Vec::new();
        if !self.is_empty() {
            patterns.push(host.clone());
            // Wildcards sort last, and are rare.
            if matches!(self.by_host.get_max(), Some((HostPattern::Under(_), _))) {
                patterns.extend(wider(host));
            }
        }
        let owner = self.withheld.owner_for(host, namespace);
        let groups = patterns.into_iter().map(move |pattern| {
            let all = self.visible_for_pattern(&pattern, namespace, owner.clone());
            all.filter(|one| one.has_rules()).collect::<Vec<_>>()
        });
        groups.filter(|group| !group.is_empty())
    }

    /// Iterates over the objects, including withheld ones, with this host, with a wildcard that
    /// contains it, or with a host below it if it is a wildcard.
    pub fn naming<'a>(
        &'a self,
        host: &HostPattern,
    ) -> impl Iterator<Item = &'a Arc<RoutedService>> + use<'a> {
        let over = [host.clone()].into_iter().chain(wider(host));
        let mut found: Vec<_> = over.filter_map(|one| self.by_host.get(&one)).collect();
        if host.exact().is_none() {
            let below = self.by_host.iter().filter(|(one, _)| host.contains(one));
            found.extend(below.map(|(_, all)| all));
        }
        found.into_iter().flat_map(|all| all.iter())
    }

    /// Iterates over the objects for exactly this host pattern.
    pub fn for_pattern<'a, 'n>(
        &'a self,
        host: &HostPattern,
        namespace: &'n Namespace,
    ) -> impl Iterator<Item = &'a Arc<RoutedService>> + use<'a, 'n> {
        self.visible_for_pattern(host, namespace, self.withheld.owner_for(host, namespace))
    }

    /// Iterates over the objects with exactly this host pattern that apply to a host of `owner`.
    fn visible_for_pattern<'a, 'n>(
        &'a self,
        pattern: &HostPattern,
        namespace: &'n Namespace,
        owner: Option<Namespace>,
    ) -> impl Iterator<Item = &'a Arc<RoutedService>> + use<'a, 'n> {
        let all = self.by_host.get(pattern).map_or(&[][..], |all| all);
        let visible_objects = visible(move || all.iter(), namespace, &self.withheld);
        visible_objects.filter(move |routed| {
            let object_namespace = &routed.service.meta.namespace;
            !self.withheld.withholds_host(object_namespace, owner.as_ref(), namespace)
        })
    }

    /// Iterates over the objects bound to a gateway, for a gateway proxy in a namespace, in the
    /// same order.
    pub fn for_gateway<'a, 'n>(
        &'a self,
        gateway: &str,
        namespace: &'n Namespace,
    ) -> impl Iterator<Item = &'a Arc<RoutedService>> + use<'a, 'n> {
        let all = self.by_gateway.get(gateway);
        let all =
            visible(move || all.into_iter().flat_map(OrdMap::values), namespace, &self.withheld);
        // A gateway proxy has no Sidecar that could list a namespace.
        all.filter(|one| !self.withheld.is_past_total(&one.service.meta.namespace, namespace))
    }

    /// Returns whether the same objects are bound to a gateway as in `other`.
    pub fn binds_as(&self, other: &Self, gateway: &str) -> bool {
        if self.withheld != other.withheld {
            return false;
        }
        match (self.by_gateway.get(gateway), other.by_gateway.get(gateway)) {
            (Some(own), Some(other)) => own.ptr_eq(other) || own == other,
            (own, other) => own.is_none() && other.is_none(),
        }
    }

    /// Returns the hosts of an object that belong to an older object with rules, which is visible
    /// wherever this one is.
    fn losses(&self, routed: &RoutedService, sharing: HostSharing) -> Vec<Reason> {
        let service = &routed.service;
        let has_connections = !service.tcp.is_empty() || !service.tls.is_empty();
        // Objects may share a host with exactly the same pattern. Connections still belong to the
        // first one.
        let is_virtual_service =
            |one: &RoutedService| one.http.origin.kind == RouteKind::VirtualService;
        let shares = |other: &RoutedService| {
            sharing == HostSharing::AllJoined
                && is_virtual_service(other)
                && is_virtual_service(routed)
        };
        let (is_for_mesh, all) = (service.is_for_mesh(), HostPattern::all());
        let hosts = service.hosts.iter().enumerate();
        let lost = hosts.filter(|(_, host)| is_for_mesh && **host != all);
        let lost = lost.filter_map(|(at, host)| {
            let wins = |other: &&Arc<RoutedService>| {
                other.service.meta < service.meta && other.service.export_to == service.export_to
            };
            let winner = self.by_host.get(host)?.iter().find(wins)?;
            let is_shared = shares(winner);
            if is_shared && !has_connections {
                return None;
            }
            let text = format!(
                "{host} belongs to {} {}/{}, which is older: no rule of this one {}applies to it",
                winner.service.origin.kind.in_config(),
                winner.service.origin.namespace,
                winner.service.origin.name,
                if is_shared { "for connections " } else { "" }
            );
            Some(Reason::lost(&codes::HOST_OF_ANOTHER, format!("spec.hosts[{at}]"), text))
        });
        lost.collect()
    }

    /// Returns a copy with only the objects for these hosts.
    #[must_use]
    pub fn excerpt<'a>(&self, hosts: impl Iterator<Item = &'a Hostname>) -> Self {
        if self.is_empty() {
            return self.clone();
        }
        let patterns = hosts.map(HostPattern::for_service);
        let patterns = patterns
            .flat_map(|host| [host.clone()].into_iter().chain(wider(&host).collect::<Vec<_>>()));
        let matching = patterns.filter_map(|host| self.by_host.get_key_value(&host));
        let by_host: OrdMap<HostPattern, Arc<[Arc<RoutedService>]>> =
            matching.map(|(host, all)| (host.clone(), Arc::clone(all))).collect();
        let objects = by_host.values().flat_map(|all| all.iter());
        // The number of objects does not matter, because the copy does not change.
        let special_namespaces = objects.flat_map(|one| special_namespaces(one));
        let special_namespaces = special_namespaces.map(|namespace| (namespace, 1_usize)).collect();
        Self { by_host, special_namespaces, ..self.clone() }
    }
}

/// Iterates over the objects that are visible in a namespace: see [`VirtualServices::for_host`].
fn visible<'a, 'n, I: Iterator<Item = &'a Arc<RoutedService>>, F: Fn() -> I>(
    all: F,
    namespace: &'n Namespace,
    withheld: &'a Withheld,
) -> impl Iterator<Item = &'a Arc<RoutedService>> + use<'a, 'n, I, F> {
    [Visibility::Private, Visibility::ByName, Visibility::Public].into_iter().flat_map(
        move |group| {
            all().filter(move |routed| {
                Visibility::in_namespace(&routed.service, namespace) == Some(group)
                    && !withheld.is_from(&routed.service.meta, namespace)
            })
        },
    )
}

/// Reason why an object is visible in a namespace, in order of precedence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Visibility {
    Private,
    ByName,
    Public,
}

impl Visibility {
    fn in_namespace(service: &VirtualService, namespace: &Namespace) -> Option<Self> {
        match &service.export_to {
            ExportTo::Public => Some(Self::Public),
            ExportTo::Namespaces(all) if !all.contains(namespace) => None,
            ExportTo::Namespaces(all) if all.len() == 1 && service.meta.namespace == *namespace => {
                Some(Self::Private)
            }
            ExportTo::Namespaces(_) => Some(Self::ByName),
        }
    }
}

/// The VirtualServices, which change one by one.
#[derive(Debug, Default)]
pub(super) struct VirtualServiceObjects {
    all: OrdMap<WorkloadKey, TrackedService>,
    /// Delegating objects of each delegate.
    roots: BTreeMap<Delegate, BTreeSet<WorkloadKey>>,
    /// Objects whose reasons may have changed, and the reasons that were reported for each object.
    touched: BTreeSet<WorkloadKey>,
    given: BTreeMap<WorkloadKey, Vec<Reason>>,
}

/// An object and its active form.
#[derive(Debug, Clone, Default)]
struct TrackedService {
    /// The current object; `None` if it was removed.
    service: Option<Arc<VirtualService>>,
    routed: Option<Arc<RoutedService>>,
}

/// Active state that is updated when an object changes.
pub(super) struct ServicesInForce<'a> {
    pub(super) services: &'a mut VirtualServices,
    pub(super) selectors: &'a mut Selectors,
    pub(super) changes: &'a mut TrafficChanges,
    /// Whether any Sidecar exists.
    pub(super) is_scoped: bool,
}

impl VirtualServiceObjects {
    pub(super) fn insert(&mut self, service: Arc<VirtualService>, mut into: ServicesInForce<'_>) {
        let key = object_key(&service.meta);
        for delegate in service.delegates.values() {
            self.roots.entry(delegate.clone()).or_default().insert(key.clone());
        }
        self.all.entry(key.clone()).or_default().service = Some(service);
        self.put(&key, &mut into);
    }

    pub(super) fn remove(&mut self, service: &Arc<VirtualService>, mut from: ServicesInForce<'_>) {
        let key = object_key(&service.meta);
        for delegate in service.delegates.values() {
            if let Some(roots) = self.roots.get_mut(delegate) {
                roots.remove(&key);
                if roots.is_empty() {
                    self.roots.remove(delegate);
                }
            }
        }
        if let Some(tracked) = self.all.get_mut(&key) {
            tracked.service = None;
        }
        self.put(&key, &mut from);
    }

    /// Marks the objects that are bound to a gateway, because their reasons may have changed.
    pub(super) fn touch_bound(&mut self, gateway: &str, services: &VirtualServices) {
        let bound = services.by_gateway.get(gateway).into_iter().flat_map(OrdMap::values);
        self.touched.extend(bound.map(|one| object_key(&one.service.meta)));
    }

    /// Returns new reasons since the last call that are caused by other objects.
    pub(super) fn take_new_reasons(
        &mut self,
        (services, sharing): (&VirtualServices, HostSharing),
        gateways: &Gateways,
    ) -> Vec<(Arc<RouteOrigin>, Reason)> {
        let mut news = Vec::new();
        for key in std::mem::take(&mut self.touched) {
            let Some(routed) = self.all.get(&key).and_then(|tracked| tracked.routed.as_ref())
            else {
                self.given.remove(&key);
                continue;
            };
            let mut reasons = routed.reasons.clone();
            reasons.extend(services.losses(routed, sharing));
            reasons.extend(gateways.binding_reasons(&routed.service, true));
            let given = self.given.get(&key).map_or(&[][..], |given| given);
            let new = new_reasons(&reasons, given);
            news.extend(new.map(|reason| (routed.service.origin.clone(), reason.clone())));
            if reasons.is_empty() {
                self.given.remove(&key);
            } else {
                self.given.insert(key, reasons);
            }
        }
        news
    }

    /// Activates the current form of an object, and of the objects that delegate to it.
    fn put(&mut self, key: &WorkloadKey, into: &mut ServicesInForce<'_>) {
        let mut changed = vec![key.clone()];
        changed
            .extend(self.roots.get(key).into_iter().flatten().filter(|root| *root != key).cloned());
        for key in changed {
            let is_followed = |service: &&Arc<VirtualService>| {
                service.mesh_hosts().next().is_some()
                    || (service.own_gateways().next().is_some() && !service.hosts.is_empty())
            };
            let service = |key: &WorkloadKey| self.all.get(key)?.service.as_ref();
            let now = service(&key).filter(is_followed);
            let now = now.map(|virtual_service| {
                let routes = virtual_service.routes(|name| service(name).map(|one| &**one));
                Arc::new(RoutedService::new(virtual_service, routes))
            });
            let is_gone = service(&key).is_none();
            let before = self.all.get(&key).and_then(|tracked| tracked.routed.clone());
            if is_gone {
                self.all.remove(&key);
            }
            if before == now {
                // Shared values stay shared.
                continue;
            }
            if let Some(tracked) = self.all.get_mut(&key) {
                tracked.routed.clone_from(&now);
            }
            let rivals = replace(before.as_deref(), now.as_ref(), into);
            self.touched.extend(rivals);
            self.touched.insert(key);
        }
    }
}

fn object_key(meta: &ObjectMeta) -> WorkloadKey {
    WorkloadKey { namespace: meta.namespace.clone(), name: Arc::clone(&meta.name) }
}

/// Replaces the active form of an object. Returns the objects that have a host in common with it.
fn replace(
    before: Option<&RoutedService>,
    now: Option<&Arc<RoutedService>>,
    into: &mut ServicesInForce<'_>,
) -> BTreeSet<WorkloadKey> {
    let mut rivals = BTreeSet::new();
    let ServicesInForce { services, selectors, changes, is_scoped } = into;
    for labels in
        now.into_iter().flat_map(|now| now.sources()).filter_map(|one| one.labels.as_ref())
    {
        changes.selectors |= selectors.add(None, Arc::clone(labels));
    }
    for labels in
        before.into_iter().flat_map(RoutedService::sources).filter_map(|one| one.labels.as_ref())
    {
        changes.selectors |= selectors.remove(None, labels);
    }
    let is_same_object =
        |one: &RoutedService, before: &RoutedService| one.service.meta == before.service.meta;
    for namespace in before.into_iter().flat_map(special_namespaces) {
        count(&mut services.special_namespaces, &namespace, false);
    }
    for namespace in now.into_iter().flat_map(|now| special_namespaces(now)) {
        count(&mut services.special_namespaces, &namespace, true);
    }
    let old = before.into_iter().flat_map(|before| before.service.mesh_hosts());
    let new = now.into_iter().flat_map(|now| now.service.mesh_hosts());
    // Previous and current hosts, with the current object if it still contains the host.
    let mut hosts: BTreeMap<&HostPattern, Option<&Arc<RoutedService>>> = BTreeMap::new();
    hosts.extend(old.map(|host| (host, None)));
    hosts.extend(new.map(|host| (host, now)));
    for (routed, is_more) in
        before.map(|one| (one, false)).into_iter().chain(now.map(|one| (&**one, true)))
    {
        let destinations: BTreeSet<&Hostname> = routed.destinations().map(|to| &to.host).collect();
        if *is_scoped {
            // The destinations may enter or leave scopes.
            changes.hosts.extend(destinations.iter().map(|host| HostPattern::for_service(host)));
        }
        if routed.service.mesh_hosts().next().is_none() {
            continue;
        }
        let portless: BTreeSet<&Hostname> = routed.portless.iter().map(|(host, _)| host).collect();
        for to in destinations {
            let key = (to.clone(), routed.service.meta.clone());
            if is_more {
                let is_portless = portless.contains(to);
                let by = LeadingObject { service: Arc::clone(&routed.service), is_portless };
                services.destinations.insert(key, by);
            } else {
                services.destinations.remove(&key);
            }
        }
    }
    if let Some(before) = before {
        for gateway in before.service.own_gateways() {
            if let Some(all) = services.by_gateway.get_mut(gateway) {
                all.remove(&before.service.meta);
                if all.is_empty() {
                    services.by_gateway.remove(gateway);
                }
            }
            changes.gateways = true;
        }
    }
    if let Some(now) = now {
        for gateway in now.service.own_gateways() {
            let all = services.by_gateway.entry(Arc::clone(gateway)).or_default();
            all.insert(now.service.meta.clone(), Arc::clone(now));
            changes.gateways = true;
        }
    }
    for (host, now) in hosts {
        let mut all: Vec<_> = services.by_host.get(host).map_or_else(Vec::new, |all| all.to_vec());
        all.retain(|one| !before.is_some_and(|before| is_same_object(one, before)));
        if let Some(now) = now {
            let place = all.partition_point(|one| one.service.meta < now.service.meta);
            all.insert(place, Arc::clone(now));
        }
        rivals.extend(all.iter().map(|one| object_key(&one.service.meta)));
        if all.is_empty() {
            services.by_host.remove(host);
        } else {
            services.by_host.insert(host.clone(), all.into());
        }
        changes.hosts.insert(host.clone());
    }
    rivals
}

/// Returns the namespaces for which an object applies in a special way.
fn special_namespaces(routed: &RoutedService) -> BTreeSet<Namespace> {
    let exported = match &routed.service.export_to {
        ExportTo::Public => &[][..],
        ExportTo::Namespaces(all) => all,
    };
    let named = routed.sources().filter_map(|source| source.namespace.clone());
    exported.iter().cloned().chain(named).collect()
}

fn count<K: Ord + Clone>(counts: &mut OrdMap<K, usize>, key: &K, is_more: bool) {
    let count = counts.get(key).copied().unwrap_or_default();
    let count = if is_more { count + 1 } else { count.saturating_sub(1) };
    match count {
        0 => counts.remove(key),
        count => counts.insert(key.clone(), count),
    };
}

#[cfg(test)]
mod tests;
