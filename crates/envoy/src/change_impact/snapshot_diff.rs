//! Compares two versions of the mesh for different kinds of proxies. Each comparison runs the
//! generators once.

use std::cell::{OnceCell, RefCell};
use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use crate::cache::{BaseKey, Cache, Scopes, projected_namespace};
use crate::cds::ClusterFormat;
use crate::class::{Class, ListenerFormat};
use crate::common::SharedResources;
use crate::library::LibraryConfig;
use crate::{eds, rds};
use strait_mesh::aggregate::MergedService;
use strait_mesh::push::PushContext;
use strait_mesh::push::ingress::IngressOutline;
use strait_mesh::push::proxy::{oldest_first, rule_at_workloads, served_of};
use strait_mesh::push::reach::{RuleDifference, definitions, same_before_ports};
use strait_mesh::push::scope::AffectedResources;
use strait_mesh::push::subset::{SubsetFilter, subset_names};
use strait_mesh::push::view::{Role, ViewDependencies, ViewKey};
use strait_model::dirty::Wildcard;
use strait_model::{ClusterId, Hostname, Namespace, Protocol, Proxy, Service};
use strait_rules::traffic::envoy_filter::PatchPlace;
use strait_rules::traffic::telemetry::CallEnd;
use strait_rules::traffic::{HostPattern, Traffic};
use strait_xds::names::{OutboundName, port_number};
use strait_xds::resource::Resource;

/// Maximum number of resources of the changed services that the event loop generates for a
/// comparison: upstream clusters, routes and filter chains.
const COMPARED_MAX: usize = 512;

/// Two versions of the mesh, and the differences between them.
pub(super) struct SnapshotDiff<'a> {
    pub(super) cache: &'a Cache,
    pub(super) whole: [&'a Arc<PushContext>; 2],
    pub(super) hosts: &'a BTreeSet<Hostname>,
    /// Excerpts of the mesh with only these services, and caches for them.
    pub(super) excerpts: [(Arc<PushContext>, Cache); 2],
    /// Route configurations that may differ.
    pub(super) routes: BTreeSet<Arc<str>>,
    /// Services that differ in more than their endpoints.
    pub(super) defined: Vec<Hostname>,
    /// The services, by the namespaces in which clusters define them.
    pub(super) by_namespace: HashMap<Namespace, BTreeSet<&'a Hostname>>,
    /// Whether all services only differ [behind their ports](MergedService::same_before_ports),
    /// which does not affect clients.
    pub(super) is_behind_ports: bool,
    /// Whether the services have more than [`COMPARED_MAX`] resources. Then all resources that may
    /// differ count as different, and each stream compares its own.
    is_large: bool,
    /// The differences between the rules.
    pub(super) rules: RuleDifference,
    /// The services of authorization providers and tracing providers, by the provider's name.
    pub(super) providers: HashMap<Arc<str>, Hostname>,
    pub(super) answers: RefCell<CachedAnswers>,
    /// Caches for gRPC libraries, one for each version.
    by_name: OnceCell<[Cache; 2]>,
}

/// Results of previous comparisons.
#[derive(Default)]
pub(super) struct CachedAnswers {
    listeners: HashMap<(Class, ListenerFormat), bool>,
    pods: HashMap<(ViewKey, ListenerFormat), Arc<[IpAddr]>>,
    serves: HashMap<(ClusterId, Namespace), bool>,
    assignments: HashMap<(Hostname, [ViewKey; 2]), bool>,
    bases: HashMap<BaseKey, bool>,
}

impl<'a> SnapshotDiff<'a> {
    pub(super) fn new(
        cache: &'a Cache,
        whole: [&'a Arc<PushContext>; 2],
        hosts: &'a BTreeSet<Hostname>,
    ) -> Self {
        // A rule without a port routes to the only port of a service, so that service must be in
        // the excerpt.
        let names = whole
            .iter()
            .flat_map(|context| hosts.iter().flat_map(|host| context.aliases.names_of(host)));
        let named: BTreeSet<Hostname> = names.chain(hosts.iter().cloned()).collect();
        let [then, since] = whole.map(|context| context.traffic.excerpt(&named));
        let portless = [&then, &since].into_iter().flat_map(|one| one.virtual_services.portless());
        let portless = portless.flat_map(|host| {
            let targets = whole.map(|context| context.aliases.target(host));
            std::iter::once(host).chain(targets)
        });
        let all = hosts.iter().chain(portless).cloned().collect();
        let excerpt = |context: &PushContext, traffic: Traffic| {
            Arc::new(PushContext { traffic: Arc::new(traffic), ..context.excerpt(&all) })
        };
        let (before, now) = (excerpt(whole[0], then), excerpt(whole[1], since));
        let mut routes = BTreeSet::new();
        for service in before.all_services().chain(now.all_services()) {
            let is_routed = |protocol: Protocol| protocol.is_http() || protocol == Protocol::Auto;
            let own = service.by_cluster.values().flat_map(|own| &own.ports);
            let ports = service.ports().chain(own);
            for port in ports.filter(|port| is_routed(port.protocol)) {
                routes.insert(port.number.to_string().into());
                routes.insert(format!("{}:{}", service.hostname(), port.number).into());
            }
        }
        let is_ruled = |context: &PushContext| !context.traffic.virtual_services.is_empty();
        if is_ruled(&before) || is_ruled(&now) {
            // Hosts that only rules name.
            routes.insert("80".into());
            let wildcards = whole.iter().flat_map(|context| context.wildcard_services());
            let wildcards = wildcards.flat_map(|one| one.ports().map(|port| port.number));
            routes.extend(wildcards.map(|port| port.to_string().into()));
        }
        // An HTTP proxy of a Sidecar accepts requests for all ports.
        let proxies = whole.iter().flat_map(|context| context.traffic.sidecars.proxies());
        routes.extend(proxies.map(|port| rds::proxy_route_name(port).into()));
        let differs = |host: &&Hostname| {
            let rules =
                [&before, &now].map(|context| context.traffic.destination_rules.of(host.as_str()));
            let both = [&before, &now].map(|context| context.services.get(*host));
            let has_other_rules = rules[0] != rules[1];
            // Services that are private to a namespace change with their endpoints.
            let is_private =
                || before.private.contains_key(*host) && now.private.contains_key(*host);
            match both {
                [Some(old), Some(new)] => old.differs_except_in_endpoints(new) || has_other_rules,
                _ => has_other_rules && is_private(),
            }
        };
        let defined = hosts.iter().filter(differs).cloned().collect();
        let mut by_namespace = HashMap::<Namespace, BTreeSet<&Hostname>>::new();
        for host in hosts {
            for service in
                [&before, &now].into_iter().flat_map(|context| definitions(context, host))
            {
                for own in service.by_cluster.values() {
                    match by_namespace.get_mut(&own.namespace) {
                        Some(all) => drop(all.insert(host)),
                        None => drop(by_namespace.insert(own.namespace.clone(), [host].into())),
                    }
                }
            }
        }
        let is_large = [&before, &now].into_iter().any(|one| resource_count(one) > COMPARED_MAX);
        let versions = whole.map(|context| &**context);
        let is_behind_ports = hosts.iter().all(|host| same_before_ports(versions, host));
        Self {
            cache,
            whole,
            hosts,
            defined,
            by_namespace,
            is_behind_ports,
            is_large,
            rules: RuleDifference::of(versions, hosts),
            excerpts: [(before, cache.sharing_listeners()), (now, cache.ahead())],
            routes,
            providers: {
                let among = whole[1].providers_among(|host| hosts.contains(&Hostname::from(host)));
                among.map(|(name, host)| (Arc::clone(name), host)).collect()
            },
            answers: RefCell::default(),
            by_name: OnceCell::new(),
        }
    }

    /// Returns the versions of the definitions before and after.
    pub(super) fn step(&self) -> [u64; 2] {
        self.whole.map(|context| context.definitions)
    }

    pub(super) fn both(&self) -> [SharedResources<'_>; 2] {
        self.excerpts.each_ref().map(|(context, cache)| SharedResources { context, cache })
    }

    pub(super) fn same_scopes(&self) -> bool {
        if self.is_behind_ports {
            return true;
        }
        let [before, now] =
            self.excerpts.each_ref().map(|(context, _)| Scopes::from_context(context));
        before == now
    }

    /// Returns the relevant parts of views for lists of upstream clusters, before and after. All
    /// services are visited again only if the changed services may make a difference.
    pub(super) fn scopes(&self) -> [Scopes; 2] {
        let scopes = |context| SharedResources { context, cache: self.cache }.scopes();
        let [before, now] = self.whole;
        let old = scopes(before);
        self.cache.scopes.carry_over(self.step(), |()| self.same_scopes());
        [old, scopes(now)]
    }

    /// Returns whether the node and the locality of a proxy affect its resources.
    pub(super) fn by_place(&self) -> [bool; 2] {
        let lists = self.scopes().map(|scopes| [scopes.node, scopes.locality]);
        let versions = self.whole.iter().copied();
        let assignments = versions.flat_map(|context| {
            let services = self.defined.iter().flat_map(|host| definitions(context, host));
            services.map(|service| {
                let matters = ViewDependencies::of(context, service);
                [matters.node, matters.locality]
            })
        });
        let all = lists.into_iter().chain(assignments);
        all.fold([false; 2], |[node, locality], one| [node || one[0], locality || one[1]])
    }

    /// Returns whether Sidecars may give other services to proxies of a namespace, even if the
    /// services did not change.
    pub(super) fn is_rescoped(&self, namespace: &Namespace) -> bool {
        let [before, now] = self.whole.map(|context| &context.traffic.sidecars);
        !self.has_same_rules() && !now.same_in(before, namespace)
    }

    /// Returns whether all traffic rules are equal in both versions.
    pub(super) fn has_same_rules(&self) -> bool {
        let [before, now] = self.whole.map(|context| &context.traffic);
        Arc::ptr_eq(before, now)
    }

    /// Returns whether proxies of a namespace are affected in their routes at most.
    fn affects_only_routes(&self, namespace: &Namespace) -> bool {
        self.is_behind_ports
            || self.rules.changes_only_requests
            || self.rules.is_unaffected(namespace)
    }

    /// Returns whether a comparison finds no difference. Returns `false` without it if the services
    /// have too many resources.
    pub(super) fn compare(&self, is_same: impl FnOnce() -> bool) -> bool {
        !self.is_large && is_same()
    }

    pub(super) fn same_outbound(&self, view: &ViewKey, form: &ClusterFormat) -> bool {
        if self.is_rescoped(&view.namespace) {
            return false;
        }
        if self.affects_only_routes(&view.namespace) {
            return true;
        }
        self.compare(|| {
            let [before, now] = self.both().map(|common| common.outbound(view, form));
            before == now
        })
    }

    /// Returns whether the listeners of a class are the same, without the listeners for pods.
    pub(super) fn same_listeners(&self, class: &Class, form: ListenerFormat) -> bool {
        let selections = [&class.selection; 2];
        if self.is_rescoped(&class.namespace)
            || self.telemetry_differs(&class.namespace, selections, &[CallEnd::Client])
            || self.filters_differ(&class.namespace, selections, &[PatchPlace::Outbound])
            || self.is_traced_by(&class.namespace, &class.selection)
        {
            return false;
        }
        if self.affects_only_routes(&class.namespace) {
            return true;
        }
        self.compare(|| {
            let key = (self.class(class), form);
            if let Some(same) = self.answers.borrow().listeners.get(&key) {
                return *same;
            }
            let [before, now] = self.both().map(|common| common.listeners(&key.0, form));
            let same = before == now && !self.is_reranked(&class.cluster);
            self.answers.borrow_mut().listeners.insert(key, same);
            same
        })
    }

    /// Returns the parts of a class that affect the changed services. The namespace usually does
    /// not.
    pub(super) fn class(&self, class: &Class) -> Class {
        let [old, new] = self
            .excerpts
            .each_ref()
            .map(|(context, _)| projected_namespace(context, &class.namespace));
        if old == new { Class { namespace: new, ..class.clone() } } else { class.clone() }
    }

    /// Returns the parts of a view that affect listeners in either version. The namespace may
    /// matter in only one of them.
    pub(super) fn projected(&self, view: &ViewKey) -> ViewKey {
        let [old, new] = self.both().map(|common| common.projected(view));
        if old == new {
            return new;
        }
        ViewKey { locality: None, role: Role::Client, ..view.clone() }
    }

    /// Returns whether all assignments of a service with unchanged endpoints are the same.
    pub(super) fn same_assignments(&self, view: &ViewKey, host: &Hostname) -> bool {
        let contexts = self.excerpts.each_ref().map(|(context, _)| context);
        let [old, new] = contexts.map(|context| match view.role {
            Role::Client => context.service(host.as_str(), &view.namespace),
            Role::Gateway => context.services.get(host),
        });
        let (Some(old), Some(new)) = (old, new) else { return old.is_some() == new.is_some() };
        self.compare(|| {
            let services = [old, new];
            let [before, now] = contexts;
            let views = [view.projected(before, old), view.projected(now, new)];
            let key = (host.clone(), views);
            if let Some(same) = self.answers.borrow().assignments.get(&key) {
                return *same;
            }
            let own = services.into_iter().flat_map(|one| one.by_cluster.values());
            let ports = own
                .flat_map(|own| &own.ports)
                .chain(services.into_iter().flat_map(|one| one.ports()));
            let ports: BTreeSet<u16> = ports.map(|port| port.number).collect();
            let [then, view] = &key.1;
            let all_rules = [before.rules_for(old), now.rules_for(new)];
            let [old_rules, new_rules] = &all_rules;
            let rules = [then.rule(old_rules, old), view.rule(new_rules, new)];
            let same = subset_names(rules).into_iter().all(|name| {
                let was = SubsetFilter::new(old_rules, rules[0], old, name);
                let is = SubsetFilter::new(new_rules, rules[1], new, name);
                ports.iter().all(|port| {
                    let was = was.map(|filter| eds::assigned(before, then, "", *port, old, filter));
                    was == is.map(|filter| eds::assigned(now, view, "", *port, new, filter))
                })
            });
            self.answers.borrow_mut().assignments.insert(key, same);
            same
        })
    }

    /// Returns the addresses of pods whose listeners differ.
    pub(super) fn other_pods(&self, view: &ViewKey, form: ListenerFormat) -> Arc<[IpAddr]> {
        if self.affects_only_routes(&view.namespace) {
            return Arc::default();
        }
        let key = (self.projected(view), form);
        if let Some(others) = self.answers.borrow().pods.get(&key) {
            return Arc::clone(others);
        }
        let [before, now] = self.both().map(|common| common.pods(&key.0, form));
        let mut others = Vec::new();
        let (mut old, mut new) =
            (before.listeners.iter().peekable(), now.listeners.iter().peekable());
        while let Some((is_old, is_new)) = match (old.peek(), new.peek()) {
            (None, None) => None,
            (Some(_), None) => Some((true, false)),
            (None, Some(_)) => Some((false, true)),
            (Some(old), Some(new)) => {
                let key = |(at, one): &(IpAddr, Arc<Resource>)| (*at, Arc::clone(&one.name));
                let (old, new) = (key(old), key(new));
                Some((old <= new, new <= old))
            }
        } {
            let gone = if is_old { old.next() } else { None };
            let come = if is_new { new.next() } else { None };
            if gone.map(|one| &one.1.body) != come.map(|one| &one.1.body) {
                others.extend(gone.or(come).map(|one| one.0));
            }
        }
        let others: Arc<[IpAddr]> = others.into();
        self.answers.borrow_mut().pods.insert(key, Arc::clone(&others));
        others
    }

    pub(super) fn same_route(
        &self,
        class: &Class,
        namespace: Option<&Namespace>,
        name: &str,
    ) -> bool {
        if self.is_rescoped(&class.namespace) {
            return false;
        }
        if self.is_behind_ports
            || self.rules.is_unaffected(&class.namespace)
            || !self.routes.contains(name)
        {
            return true;
        }
        self.compare(|| {
            let class = &self.class(class);
            if let (Some(namespace), Some(port)) = (namespace, port_number(name)) {
                // Generating the current base may drop the previous one from the cache, so both are
                // requested only once.
                let bases = self.both().map(|common| common.base(class, port, true));
                if !bases.iter().any(|base| base.is_other_in(namespace)) {
                    return self.same_bases((class.clone(), port, true), || bases);
                }
            }
            let [before, now] = self.both().map(|common| common.route(class, namespace, name));
            before == now && !self.is_reranked(&class.cluster)
        })
    }

    /// Returns whether the base of the routes of a port is the same.
    pub(super) fn same_base(&self, class: &Class, port: u16, completes: bool) -> bool {
        if self.is_rescoped(&class.namespace) {
            return false;
        }
        self.is_behind_ports
            || self.rules.is_unaffected(&class.namespace)
            || !self.routes.contains(&*port.to_string())
            || self.compare(|| self.same_route_base(&self.class(class), port, completes))
    }

    /// Returns whether the routes of a port are equal in both versions, for namespaces without any
    /// of the services.
    pub(super) fn same_route_base(&self, class: &Class, port: u16, completes: bool) -> bool {
        let bases = || self.both().map(|common| common.base(class, port, completes));
        self.same_bases((class.clone(), port, completes), bases)
    }

    fn same_bases(&self, key: BaseKey, bases: impl FnOnce() -> [Arc<rds::RouteBase>; 2]) -> bool {
        if let Some(same) = self.answers.borrow().bases.get(&key) {
            return *same;
        }
        let [before, now] = bases();
        let is_same = Arc::ptr_eq(&before, &now) || before.route() == now.route();
        let same = is_same && !self.is_reranked(&key.0.cluster);
        self.answers.borrow_mut().bases.insert(key, same);
        same
    }

    /// Adds the differences for gRPC libraries. The names of their listeners are not known here, so
    /// all of them are re-evaluated if a listener is added or removed.
    ///
    /// The comparison uses the entire mesh: libraries request resources by name, and a route
    /// depends on its destinations.
    pub(super) fn by_name(&self, view: &ViewKey, affected: &mut AffectedResources) {
        if self.is_large {
            affected.everything = true;
            return;
        }
        let caches = self
            .by_name
            .get_or_init(|| [self.cache.sharing_listeners(), self.cache.sharing_listeners()]);
        let at = |version: usize| LibraryConfig {
            context: self.whole[version],
            view,
            cache: &caches[version],
        };
        let (before, now) = (at(0), at(1));
        for host in self.hosts_routing_to_changes(&view.namespace) {
            let services =
                [&before, &now].map(|one| one.context.service(host.as_str(), &view.namespace));
            let own = services.into_iter().flatten().flat_map(|service| {
                let own = service.by_cluster.values().flat_map(|own| &own.ports);
                own.chain(service.ports()).map(|port| port.number)
            });
            let rules =
                self.whole.map(|context| context.traffic.destination_rules.of(host.as_str()));
            let rule = |at: usize| services[at].and_then(|service| view.rule(&rules[at], service));
            let subsets = subset_names([rule(0), rule(1)]);
            for port in own.collect::<BTreeSet<u16>>() {
                let all = OutboundName::sidecar(host.clone(), port);
                let differs = |subset: &&str| {
                    let name = all.clone().of_subset(subset).to_string();
                    before.cluster(&name) != now.cluster(&name)
                };
                if subsets.iter().any(differs) {
                    affected.lists.add(Wildcard::Clusters);
                }
                let name = all.to_string();
                let [old, new] = [&before, &now].map(|one| one.route(&name));
                if old.is_some() != new.is_some() {
                    affected.lists.add(Wildcard::Listeners);
                }
                if old != new {
                    affected.routes.insert(name.into());
                }
            }
        }
    }

    /// Returns the changed services, and the hosts whose rules route to a changed service.
    fn hosts_routing_to_changes(&self, namespace: &Namespace) -> BTreeSet<Hostname> {
        let mut all = self.hosts.clone();
        for context in self.whole {
            let names = self.hosts.iter().flat_map(|host| context.aliases.names_of(host));
            for host in names.chain(self.hosts.iter().cloned()) {
                for pattern in context.traffic.virtual_services.leading_to(&host) {
                    match pattern {
                        HostPattern::Exact(host) => _ = all.insert(host.clone()),
                        pattern => {
                            let services = context.services_of(namespace);
                            let hosts = services.map(|service| service.hostname());
                            let under = |host: &&Hostname| {
                                pattern.contains(&HostPattern::for_service(host))
                            };
                            all.extend(hosts.filter(under).cloned());
                        }
                    }
                }
            }
        }
        all
    }

    pub(super) fn same_names(&self, view: &ViewKey, given: bool) -> bool {
        if self.is_rescoped(&view.namespace) {
            return false;
        }
        if self.affects_only_routes(&view.namespace) {
            return true;
        }
        let [before, now] = self.both().map(|common| common.names(view, given));
        before == now && !self.is_reranked(&view.cluster)
    }

    /// Returns whether the precedence of a service among its competitors has changed, as proxies of
    /// `cluster` see it.
    pub(super) fn is_reranked(&self, cluster: &ClusterId) -> bool {
        let rank = |service: &Arc<MergedService>| {
            (service.rank(), service.by_cluster.contains_key(cluster))
        };
        let [before, now] = self.excerpts.each_ref().map(|(context, _)| context);
        let public =
            before.services.iter().filter_map(|(host, old)| Some((old, now.services.get(host)?)));
        let private = before.private.iter().flat_map(|(host, all)| {
            let now = now.private.get(host);
            all.iter().filter_map(move |(namespace, old)| Some((old, now?.get(namespace)?)))
        });
        public.chain(private).any(|(old, new)| rank(old) != rank(new))
    }

    /// Returns whether the inbound configuration of workloads of a namespace in a cluster may have
    /// changed.
    pub(super) fn may_serve(&self, cluster: &ClusterId, namespace: &Namespace) -> bool {
        let Some(hosts) = self.by_namespace.get(namespace) else { return false };
        let key = (cluster.clone(), namespace.clone());
        if let Some(serves) = self.answers.borrow().serves.get(&key) {
            return *serves;
        }
        let serves = hosts.iter().any(|host| {
            let [before, now] = self.whole.map(|context| context.service(host.as_str(), namespace));
            let own = |merged: Option<&'a Arc<MergedService>>| -> Vec<&'a Arc<Service>> {
                merged.into_iter().flat_map(|one| served_of(one, cluster, namespace)).collect()
            };
            let (old, new) = (own(before), own(now));
            let rule = |context, services: &[&Arc<Service>]| {
                let service = services.first()?;
                rule_at_workloads(context, namespace, (&service.hostname, &service.namespace))
            };
            // For a service without a selector, its endpoints determine which pods serve it.
            old != new
                || rule(self.whole[0], &old) != rule(self.whole[1], &new)
                || new.iter().any(|own| own.selector.is_empty())
        });
        self.answers.borrow_mut().serves.insert(key, serves);
        serves
    }

    /// Returns whether the port of an east-west gateway of a cluster may have changed.
    pub(super) fn may_be_gateway(&self, cluster: &ClusterId) -> bool {
        self.hosts.iter().any(|host| {
            self.whole.iter().any(|context| {
                let merged = context.services.get(host);
                let own = merged.and_then(|merged| merged.by_cluster.get(cluster));
                own.is_some_and(|own| own.has_network_label())
            })
        })
    }

    /// Returns whether the configuration of a router may have changed: its Gateways, the rules that
    /// are bound to them, a service to which these route, or the router's own Service.
    pub(super) fn router_may_differ(&self, proxy: &Proxy) -> bool {
        let [before, now] = self.whole;
        let [old, new] = self.whole.map(|context| {
            let selecting = context.gateways_of(proxy);
            selecting.collect::<Vec<_>>()
        });
        if old.is_empty() && new.is_empty() {
            return false;
        }
        let services = self.whole.map(|context| &context.traffic.virtual_services);
        old != new
            || new.iter().any(|gateway| !services[0].binds_as(services[1], &gateway.name))
            || self.may_serve(&proxy.cluster, proxy.namespace())
            // A change to a rule affects the services to which a router routes only if the rule is
            // bound to a Gateway that selects the router.
            || (!self.is_behind_ports && !self.rules.changes_only_routes && {
                // The result is equal in both versions, as checked above.
                let served = self.cache.served(before, &proxy.cluster, proxy.namespace());
                IngressOutline::of(now, proxy, &served).routes_to_any(self.hosts)
            })
    }

    /// Returns the services that workloads of a namespace in a cluster may serve, before and after.
    pub(super) fn served(
        &self,
        cluster: &ClusterId,
        namespace: &Namespace,
    ) -> [Arc<[Arc<Service>]>; 2] {
        let [before, now] = self.whole;
        let old = self.cache.served(before, cluster, namespace);
        let stay = old.iter().filter(|own| !self.hosts.contains(&own.hostname)).cloned();
        let new = self.hosts.iter().filter_map(|host| now.service(host.as_str(), namespace));
        let new = new.flat_map(|merged| served_of(merged, cluster, namespace)).cloned();
        let served = oldest_first(stay.chain(new));
        self.cache.put_served(now, (cluster.clone(), namespace.clone()), Arc::clone(&served));
        [old, served]
    }
}

/// Returns the number of upstream clusters, routes and filter chains of an excerpt, at most.
fn resource_count(excerpt: &PushContext) -> usize {
    let clusters = excerpt.all_services().map(|service| {
        let rules = excerpt.traffic.destination_rules.of(service.hostname().as_str());
        service.ports().count() * (1 + rules.subset_count())
    });
    let routes = excerpt.traffic.virtual_services.all().map(|routed| routed.pair_count());
    clusters.chain(routes).sum()
}
