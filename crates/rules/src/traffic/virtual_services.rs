//! Which VirtualService a host belongs to, for whom. (docs/reference/traffic.md, "Order" and "VirtualService".)

mod differences;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use imbl::OrdMap;

use super::changes::TrafficChanges;
use super::gateways::Gateways;
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

/// A service, and the name of a port of it; empty for the only one that it has.
pub type UnnumberedPort = (Hostname, Arc<str>);

/// A VirtualService with the rules of those that it delegates to.
#[derive(Debug, PartialEq, Eq)]
pub struct RoutedService {
    /// The object.
    pub service: Arc<VirtualService>,
    /// What becomes of requests.
    pub http: HttpRoutes,
    /// What its owner should know of its delegates.
    pub reasons: Vec<Reason>,
    /// Services that its rules name without the number of a port, each with the name of the port, sorted.
    portless: Box<[UnnumberedPort]>,
}

impl RoutedService {
    fn of(service: &Arc<VirtualService>, (http, reasons): (HttpRoutes, Vec<Reason>)) -> Self {
        let service = Arc::clone(service);
        let mut routed = Self { service, http, reasons, portless: Box::default() };
        let portless = routed.destinations().filter(|to| to.port.is_none());
        let portless: BTreeSet<_> =
            portless.map(|to| (to.host.clone(), Arc::clone(&to.port_name))).collect();
        routed.portless = portless.into_iter().collect();
        routed
    }

    /// Whether it is the same but for what becomes of requests, be they answered elsewhere.
    fn is_same_beside_requests(&self, other: &Self) -> bool {
        let VirtualService { meta, origin, hosts, gateways, export_to, http: _, more } =
            &*self.service;
        let of = &*other.service;
        (meta, origin, hosts, gateways) == (&of.meta, &of.origin, &of.hosts, &of.gateways)
            && (export_to, &more.tls, &more.tcp) == (&of.export_to, &of.tls, &of.tcp)
            && self.http.origin == other.http.origin
            && self.portless == other.portless
            && self.led() == other.led()
    }

    /// Which services requests are led to, and of which namespaces these are, if not of all.
    fn led(&self) -> BTreeSet<(Option<&Namespace>, &Hostname)> {
        let mut led = BTreeSet::new();
        for rule in &*self.http.rules {
            let of = rule.matches.iter().map(|one| one.source.namespace.as_ref());
            let any = rule.matches.is_empty().then_some(None);
            let to = rule.leads_to().map(|to| &to.host);
            for namespace in of.chain(any) {
                led.extend(to.clone().map(|host| (namespace, host)));
            }
        }
        led
    }

    /// Whether `other` names the same as it where it holds for a host, so that both may hold for that: VirtualServices may.
    pub fn shares_host(&self, other: &Self, host: &HostPattern) -> bool {
        let is_one = |one: &Self| one.http.origin.kind == RouteKind::VirtualService;
        let holding = self.service.mesh_hosts().filter(|own| own.contains(host)).min();
        is_one(self) && is_one(other) && other.service.mesh_hosts().any(|own| Some(own) == holding)
    }

    /// Whether it has any rule: an object that has lost all of them is as if absent.
    pub fn has_rules(&self) -> bool {
        !self.service.tls.is_empty()
            || !self.service.tcp.is_empty()
            || self.http.rules.iter().any(|rule| !rule.is_absent)
    }

    /// Where its rules lead, and where copies go.
    pub fn destinations(&self) -> impl Iterator<Item = &Destination> {
        self.destinations_of(|_| true)
    }

    /// The same, without rules for requests of other namespaces alone.
    pub fn destinations_from(&self, namespace: &Namespace) -> impl Iterator<Item = &Destination> {
        let fits = move |one: &RequestMatch| {
            one.source.namespace.as_ref().is_none_or(|wanted| wanted == namespace)
        };
        self.destinations_of(move |rule| rule.matches.is_empty() || rule.matches.iter().any(fits))
    }

    fn destinations_of(
        &self,
        counts: impl Fn(&HttpRule) -> bool,
    ) -> impl Iterator<Item = &Destination> {
        let rules = self.http.rules.iter().filter(move |rule| counts(rule));
        let requests = rules.flat_map(HttpRule::leads_to);
        let connections = self.service.tls.iter().chain(&self.service.tcp);
        let all = requests.chain(connections.flat_map(|rule| &rule.destinations));
        all.filter(|to| !to.invalid)
    }

    /// Services that its rules name without the number of a port: what is sent there goes to the port that is called so,
    /// else to the only port that each has.
    pub fn portless(&self) -> &[UnnumberedPort] {
        &self.portless
    }

    /// Whether it has a rule for connections that proxies of this namespace, which these selectors select, open to a port.
    pub fn leads_connections(
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

    /// Whether any rule depends on a token.
    pub fn looks_at_claims(&self) -> bool {
        self.http.rules.iter().flat_map(|rule| &rule.matches).any(RequestMatch::looks_at_claims)
    }

    /// What is asked of senders, by all its rules.
    pub fn sources(&self) -> impl Iterator<Item = &SourceMatch> {
        let http =
            self.http.rules.iter().flat_map(|rule| rule.matches.iter().map(|one| &one.source));
        let connections = self.service.tls.iter().chain(&self.service.tcp);
        http.chain(connections.flat_map(|rule| rule.matches.iter().map(|one| &one.source)))
    }
}

/// All that hold for sidecars, by host, and for gateways; of each host and each gateway the oldest first.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct VirtualServices {
    by_host: OrdMap<HostPattern, Arc<[Arc<RoutedService>]>>,
    /// By the gateways that they name, `NAMESPACE/NAME`.
    by_gateway: OrdMap<Arc<str>, OrdMap<ObjectMeta, Arc<RoutedService>>>,
    /// The namespaces for which something holds that doesn't for all, with the number of objects that say so.
    special_namespaces: OrdMap<Namespace, usize>,
    /// Each service that rules route to, with an object whose rules do so. One flat map: most services have one such object,
    /// for which a dedicated map would be mostly empty.
    destinations: OrdMap<(Hostname, ObjectMeta), LeadingObject>,
    /// The objects that do not apply to some of the proxies to which they are exported.
    withheld: Arc<Withheld>,
}

/// An object whose rules route to a service.
#[derive(Debug, Clone)]
struct LeadingObject {
    service: Arc<VirtualService>,
    /// Whether it names the service without the number of a port.
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
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.by_host.is_empty()
    }

    /// Whether other rules hold for proxies of this namespace than for those of one that no object names.
    pub fn concerns(&self, namespace: &Namespace) -> bool {
        self.special_namespaces.contains_key(namespace) || self.withheld.concerns(namespace)
    }

    /// The objects that do not apply to some of the proxies to which they are exported.
    pub fn withheld(&self) -> &Arc<Withheld> {
        &self.withheld
    }

    /// The same objects, some of which are withheld.
    #[must_use]
    pub fn withholding(&self, withheld: Arc<Withheld>) -> Self {
        Self { withheld, ..self.clone() }
    }

    /// Services that some rule names without a port.
    pub fn portless(&self) -> impl Iterator<Item = &Hostname> {
        self.by_host
            .values()
            .flat_map(|all| all.iter())
            .flat_map(|routed| &*routed.portless)
            .map(|(host, _)| host)
    }

    /// The hosts of which requests or connections lead to a service. Hosts of several objects come several times.
    pub fn leading_to<'a>(&'a self, service: &Hostname) -> impl Iterator<Item = &'a HostPattern> {
        self.destinations_of(service).flat_map(|by| by.service.mesh_hosts())
    }

    /// The hosts whose routes depend on which ports a service has. Hosts of several objects come several times.
    pub fn depending_on<'a>(&'a self, service: &Hostname) -> impl Iterator<Item = &'a HostPattern> {
        let portless = self.destinations_of(service).filter(|by| by.is_portless);
        portless.flat_map(|by| by.service.mesh_hosts())
    }

    fn destinations_of<'a>(
        &'a self,
        service: &Hostname,
    ) -> impl Iterator<Item = &'a LeadingObject> {
        let all = self.destinations.range((service.clone(), ObjectMeta::before_all())..);
        let service = service.clone();
        all.take_while(move |((to, _), _)| *to == service).map(|(_, by)| by)
    }

    /// All objects in force, those of several hosts or gateways more than once.
    pub fn all(&self) -> impl Iterator<Item = &Arc<RoutedService>> {
        let for_sidecars = self.by_host.values().flat_map(|all| all.iter());
        for_sidecars.chain(self.by_gateway.values().flat_map(OrdMap::values))
    }

    /// All hosts that are named, the most specific first.
    pub fn hosts(&self) -> impl Iterator<Item = &HostPattern> {
        self.by_host.keys()
    }

    /// What is in force of an object; `None` where nothing of it is for sidecars.
    pub fn routed(&self, service: &VirtualService) -> Option<&Arc<RoutedService>> {
        let host = service.mesh_hosts().next()?;
        let mut all = self.by_host.get(host)?.iter();
        all.find(|one| one.service.meta == service.meta)
    }

    /// The namespaces for whose proxies the objects that name this very host may be others than for all.
    pub fn namespaces_of(&self, host: &HostPattern) -> BTreeSet<Namespace> {
        let all = self.by_host.get(host).into_iter().flat_map(|all| all.iter());
        let owner = |routed: &Arc<RoutedService>| {
            let owner = &routed.service.meta.namespace;
            self.withheld.concerns(owner).then(|| owner.clone())
        };
        all.flat_map(|routed| special_namespaces(routed).into_iter().chain(owner(routed))).collect()
    }

    /// The objects that name a host or a wildcard that holds it, in groups of one pattern each: of the host itself first, then
    /// of the longest wildcard. A host belongs to the first group that has any object for proxies of the namespace, and in
    /// it to the first object that has rules for them; a wider group says nothing of it then. In a group come those that are
    /// private to the namespace, then those that are exported to it by its name, then public ones, and of these the oldest.
    pub fn of_host<'a, 'n>(
        &'a self,
        host: &HostPattern,
        namespace: &'n Namespace,
    ) -> impl Iterator<Item = Vec<&'a Arc<RoutedService>>> + use<'a, 'n> {
        let mut patterns = Vec::new();
        if !self.is_empty() {
            patterns.push(host.clone());
            // Wildcards come last: mostly there are none.
            if matches!(self.by_host.get_max(), Some((HostPattern::Under(_), _))) {
                patterns.extend(wider(host));
            }
        }
        let owner = self.withheld.owner_of(host, namespace);
        let groups = patterns.into_iter().map(move |pattern| {
            let all = self.seen_of_pattern(&pattern, namespace, owner.clone());
            all.filter(|one| one.has_rules()).collect::<Vec<_>>()
        });
        groups.filter(|group| !group.is_empty())
    }

    /// The objects, withheld or not, that name a host or a wildcard that holds it, or a host below a wildcard.
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

    /// The objects that name this very host.
    pub fn of_pattern<'a, 'n>(
        &'a self,
        host: &HostPattern,
        namespace: &'n Namespace,
    ) -> impl Iterator<Item = &'a Arc<RoutedService>> + use<'a, 'n> {
        self.seen_of_pattern(host, namespace, self.withheld.owner_of(host, namespace))
    }

    /// The objects that name this very host and apply to a host of that owner.
    fn seen_of_pattern<'a, 'n>(
        &'a self,
        pattern: &HostPattern,
        namespace: &'n Namespace,
        owner: Option<Namespace>,
    ) -> impl Iterator<Item = &'a Arc<RoutedService>> + use<'a, 'n> {
        let all = self.by_host.get(pattern).map_or(&[][..], |all| all);
        let seen = visible(move || all.iter(), namespace, &self.withheld);
        seen.filter(move |one| {
            let of = &one.service.meta.namespace;
            !self.withheld.is_of_foreign_host(of, owner.as_ref(), namespace)
        })
    }

    /// The objects that name a gateway, which a router in a namespace is, in the same order.
    pub fn of_gateway<'a, 'n>(
        &'a self,
        gateway: &str,
        namespace: &'n Namespace,
    ) -> impl Iterator<Item = &'a Arc<RoutedService>> + use<'a, 'n> {
        let all = self.by_gateway.get(gateway);
        let all =
            visible(move || all.into_iter().flat_map(OrdMap::values), namespace, &self.withheld);
        // A router has no Sidecar that could name a namespace.
        all.filter(|one| !self.withheld.is_past_total(&one.service.meta.namespace, namespace))
    }

    /// Whether the same objects name a gateway as in `other`.
    pub fn binds_as(&self, other: &Self, gateway: &str) -> bool {
        if self.withheld != other.withheld {
            return false;
        }
        match (self.by_gateway.get(gateway), other.by_gateway.get(gateway)) {
            (Some(one), Some(other)) => one.ptr_eq(other) || one == other,
            (one, other) => one.is_none() && other.is_none(),
        }
    }

    /// The hosts of an object that belong to an older one, as long as that has rules, wherever both are visible.
    fn losses(&self, routed: &RoutedService, sharing: HostSharing) -> Vec<Reason> {
        let service = &routed.service;
        let has_connections = !service.tcp.is_empty() || !service.tls.is_empty();
        // Objects that share a host: connections belong to the first nevertheless. Both name this very host.
        let is_one = |one: &RoutedService| one.http.origin.kind == RouteKind::VirtualService;
        let shares = |other: &RoutedService| {
            sharing == HostSharing::AllJoined && is_one(other) && is_one(routed)
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
                "{host} belongs to {} {}/{}, which is older: no rule of this one {}holds for it",
                winner.service.origin.kind.in_config(),
                winner.service.origin.namespace,
                winner.service.origin.name,
                if is_shared { "for connections " } else { "" }
            );
            Some(Reason::lost(&codes::HOST_OF_ANOTHER, format!("spec.hosts[{at}]"), text))
        });
        lost.collect()
    }

    /// The same with those alone that concern these hosts.
    #[must_use]
    pub fn excerpt<'a>(&self, hosts: impl Iterator<Item = &'a Hostname>) -> Self {
        if self.is_empty() {
            return self.clone();
        }
        let patterns = hosts.map(HostPattern::of_service);
        let patterns = patterns
            .flat_map(|host| [host.clone()].into_iter().chain(wider(&host).collect::<Vec<_>>()));
        let kept = patterns.filter_map(|host| self.by_host.get_key_value(&host));
        let by_host: OrdMap<HostPattern, Arc<[Arc<RoutedService>]>> =
            kept.map(|(host, all)| (host.clone(), Arc::clone(all))).collect();
        let objects = by_host.values().flat_map(|all| all.iter());
        // How many say so is no matter: nothing comes or goes here.
        let special_namespaces = objects.flat_map(|one| special_namespaces(one));
        let special_namespaces = special_namespaces.map(|namespace| (namespace, 1_usize)).collect();
        Self { by_host, special_namespaces, ..self.clone() }
    }
}

/// Those of some objects that are visible in a namespace: see [`VirtualServices::of_host`].
fn visible<'a, 'n, I: Iterator<Item = &'a Arc<RoutedService>>, F: Fn() -> I>(
    all: F,
    namespace: &'n Namespace,
    withheld: &'a Withheld,
) -> impl Iterator<Item = &'a Arc<RoutedService>> + use<'a, 'n, I, F> {
    [Visibility::Private, Visibility::ByName, Visibility::Public].into_iter().flat_map(
        move |group| {
            all().filter(move |one| {
                Visibility::of(&one.service, namespace) == Some(group)
                    && !withheld.is_from(&one.service.meta, namespace)
            })
        },
    )
}

/// How an object comes to be visible in a namespace, the closest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Visibility {
    Private,
    ByName,
    Public,
}

impl Visibility {
    fn of(service: &VirtualService, namespace: &Namespace) -> Option<Self> {
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

/// The objects, which change one by one.
#[derive(Debug, Default)]
pub(super) struct VirtualServiceObjects {
    all: OrdMap<WorkloadKey, KnownService>,
    /// Of those that are delegated to, who does.
    roots: BTreeMap<Delegate, BTreeSet<WorkloadKey>>,
    /// Those of which something else may be said than before, and what was said of which.
    touched: BTreeSet<WorkloadKey>,
    given: BTreeMap<WorkloadKey, Vec<Reason>>,
}

/// An object, and what is in force of it.
#[derive(Debug, Clone, Default)]
struct KnownService {
    /// As it is; `None` where it has just gone.
    service: Option<Arc<VirtualService>>,
    routed: Option<Arc<RoutedService>>,
}

/// What is in force, as objects change it.
pub(super) struct ServicesInForce<'a> {
    pub(super) services: &'a mut VirtualServices,
    pub(super) selectors: &'a mut Selectors,
    pub(super) changes: &'a mut TrafficChanges,
    /// Whether there are Sidecars.
    pub(super) is_scoped: bool,
}

impl VirtualServiceObjects {
    pub(super) fn insert(&mut self, service: Arc<VirtualService>, mut into: ServicesInForce<'_>) {
        let key = key_of(&service.meta);
        for delegate in service.delegates.values() {
            self.roots.entry(delegate.clone()).or_default().insert(key.clone());
        }
        self.all.entry(key.clone()).or_default().service = Some(service);
        self.put(&key, &mut into);
    }

    pub(super) fn remove(&mut self, service: &Arc<VirtualService>, mut from: ServicesInForce<'_>) {
        let key = key_of(&service.meta);
        for delegate in service.delegates.values() {
            if let Some(roots) = self.roots.get_mut(delegate) {
                roots.remove(&key);
                if roots.is_empty() {
                    self.roots.remove(delegate);
                }
            }
        }
        if let Some(known) = self.all.get_mut(&key) {
            known.service = None;
        }
        self.put(&key, &mut from);
    }

    /// Of those that name a gateway something else may be said than before.
    pub(super) fn touch_bound(&mut self, gateway: &str, services: &VirtualServices) {
        let bound = services.by_gateway.get(gateway).into_iter().flat_map(OrdMap::values);
        self.touched.extend(bound.map(|one| key_of(&one.service.meta)));
    }

    /// What is said of objects for the sake of others, and was not when this was last asked.
    pub(super) fn take_news(
        &mut self,
        (services, sharing): (&VirtualServices, HostSharing),
        gateways: &Gateways,
    ) -> Vec<(Arc<RouteOrigin>, Reason)> {
        let mut news = Vec::new();
        for key in std::mem::take(&mut self.touched) {
            let Some(routed) = self.all.get(&key).and_then(|known| known.routed.as_ref()) else {
                self.given.remove(&key);
                continue;
            };
            let mut reasons = routed.reasons.clone();
            reasons.extend(services.losses(routed, sharing));
            reasons.extend(gateways.reasons_of(&routed.service));
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

    /// Puts in force what is to be of an object, and of those that delegate to it.
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
            let now = now.map(|one| {
                let routes = one.routes(|name| service(name).map(|one| &**one));
                Arc::new(RoutedService::of(one, routes))
            });
            let is_gone = service(&key).is_none();
            let before = self.all.get(&key).and_then(|known| known.routed.clone());
            if is_gone {
                self.all.remove(&key);
            }
            if before == now {
                // What others hold stays what it was.
                continue;
            }
            if let Some(known) = self.all.get_mut(&key) {
                known.routed.clone_from(&now);
            }
            let rivals = replace(before.as_deref(), now.as_ref(), into);
            self.touched.extend(rivals);
            self.touched.insert(key);
        }
    }
}

fn key_of(meta: &ObjectMeta) -> WorkloadKey {
    WorkloadKey { namespace: meta.namespace.clone(), name: Arc::clone(&meta.name) }
}

/// Puts an object in force in the place of what it was. Returns those that have a host in common with it.
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
    let is_of =
        |one: &RoutedService, before: &RoutedService| one.service.meta == before.service.meta;
    for namespace in before.into_iter().flat_map(special_namespaces) {
        count(&mut services.special_namespaces, &namespace, false);
    }
    for namespace in now.into_iter().flat_map(|now| special_namespaces(now)) {
        count(&mut services.special_namespaces, &namespace, true);
    }
    let old = before.into_iter().flat_map(|before| before.service.mesh_hosts());
    let new = now.into_iter().flat_map(|now| now.service.mesh_hosts());
    // Each host with what names it from now on, if the object still does.
    let mut hosts: BTreeMap<&HostPattern, Option<&Arc<RoutedService>>> = BTreeMap::new();
    hosts.extend(old.map(|host| (host, None)));
    hosts.extend(new.map(|host| (host, now)));
    for (routed, is_more) in
        before.map(|one| (one, false)).into_iter().chain(now.map(|one| (&**one, true)))
    {
        let destinations: BTreeSet<&Hostname> = routed.destinations().map(|to| &to.host).collect();
        if *is_scoped {
            // They may come into scopes, or be in none any more.
            changes.hosts.extend(destinations.iter().map(|host| HostPattern::of_service(host)));
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
        all.retain(|one| !before.is_some_and(|before| is_of(one, before)));
        if let Some(now) = now {
            let place = all.partition_point(|one| one.service.meta < now.service.meta);
            all.insert(place, Arc::clone(now));
        }
        rivals.extend(all.iter().map(|one| key_of(&one.service.meta)));
        if all.is_empty() {
            services.by_host.remove(host);
        } else {
            services.by_host.insert(host.clone(), all.into());
        }
        changes.hosts.insert(host.clone());
    }
    rivals
}

/// The namespaces for which an object holds otherwise than for most.
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
