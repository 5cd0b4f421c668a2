//! Who sees what of a change of services.
//!
//! What generates resources is run over an excerpt of the mesh, which holds the changed services alone, before
//! and after. Nothing but these can make a difference: what a resource is made of is the sum of what services
//! bring to it, or the first of those that want to be it; of addresses, which are settled before, rivals are in the
//! excerpt as well ([`crate::push::scope::around`]). Two things are told beside: a service that has another rank
//! than before may win or lose a name against one that the excerpt doesn't show, and what a workload itself
//! serves is found among all services of its namespace.
//!
//! Many streams see alike, so each question is asked once.

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use super::cache::{Cache, Class, Scopes, class_of};
use super::common::Common;
use super::tls::Secrets;
use super::{inbound_clusters, inbound_listener, lds, own_domain};
use crate::aggregate::MergedService;
use crate::model::{
    ClusterId, Hostname, Locality, Namespace, NetworkId, Protocol, ProxyType, Service,
};
use crate::push::PushContext;
use crate::push::scope::{Seen, Sight, Stand, Wildcard};
use crate::push::view::{Role, ViewKey};

impl Sight for Cache {
    fn seen(
        &self,
        before: &Arc<PushContext>,
        now: &Arc<PushContext>,
        hosts: &BTreeSet<Hostname>,
        stands: &[Arc<Stand>],
    ) -> Vec<Arc<Seen>> {
        let lens = Lens::new(self, [before, now], hosts);
        let mut groups = Groups::new(&lens);
        let seen = stands.iter().map(|stand| groups.seen_from(stand)).collect();
        self.carry_over(&lens);
        seen
    }
}

/// Two versions of the mesh, and what differs between them.
pub(super) struct Lens<'a> {
    cache: &'a Cache,
    whole: [&'a Arc<PushContext>; 2],
    hosts: &'a BTreeSet<Hostname>,
    /// With these services alone, and what is made of that.
    excerpts: [(Arc<PushContext>, Cache); 2],
    /// Route configurations that may differ.
    routes: BTreeSet<Arc<str>>,
    answers: RefCell<Answers>,
}

/// What was found out already.
#[derive(Default)]
struct Answers {
    listeners: HashMap<Class, bool>,
    pods: HashMap<ViewKey, Arc<[IpAddr]>>,
    serves: HashMap<(ClusterId, Namespace), bool>,
}

impl<'a> Lens<'a> {
    fn new(
        cache: &'a Cache,
        whole: [&'a Arc<PushContext>; 2],
        hosts: &'a BTreeSet<Hostname>,
    ) -> Self {
        let excerpts = whole.map(|context| Arc::new(context.excerpt(hosts)));
        let [before, now] = excerpts;
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
        Self {
            cache,
            whole,
            hosts,
            excerpts: [(before, cache.beside()), (now, cache.ahead())],
            routes,
            answers: RefCell::default(),
        }
    }

    /// The versions of definitions before and after.
    pub(super) fn step(&self) -> [u64; 2] {
        self.whole.map(|context| context.definitions)
    }

    fn both(&self) -> [Common<'_>; 2] {
        self.excerpts.each_ref().map(|(context, cache)| Common { context, cache })
    }

    pub(super) fn same_scopes(&self) -> bool {
        let [before, now] = self.excerpts.each_ref().map(|(context, _)| Scopes::of(context));
        before == now
    }

    pub(super) fn same_outbound(&self, view: &ViewKey, secrets: Secrets) -> bool {
        let [before, now] = self.both().map(|common| common.outbound(view, secrets));
        before == now
    }

    /// The listeners of a class, those for pods aside.
    pub(super) fn same_listeners(&self, class: &Class) -> bool {
        if let Some(same) = self.answers.borrow().listeners.get(class) {
            return *same;
        }
        let [before, now] = self.both().map(|common| common.listeners(class));
        let same = before == now && !self.is_reranked(&class.0);
        self.answers.borrow_mut().listeners.insert(class.clone(), same);
        same
    }

    /// What of a view matters for listeners in either version: a namespace may do so in one of them alone.
    fn narrowed(&self, view: &ViewKey) -> ViewKey {
        let [old, new] = self.both().map(|common| common.narrowed(view));
        if old == new {
            return new;
        }
        ViewKey { locality: None, role: Role::Client, ..view.clone() }
    }

    /// The addresses of pods whose listeners differ.
    pub(super) fn other_pods(&self, view: &ViewKey) -> Arc<[IpAddr]> {
        let view = self.narrowed(view);
        if let Some(others) = self.answers.borrow().pods.get(&view) {
            return Arc::clone(others);
        }
        let [before, now] = self.both().map(|common| common.pods(&view));
        let mut others = Vec::new();
        let (mut old, mut new) =
            (before.listeners.iter().peekable(), now.listeners.iter().peekable());
        while let Some((is_old, is_new)) = match (old.peek(), new.peek()) {
            (None, None) => None,
            (Some(_), None) => Some((true, false)),
            (None, Some(_)) => Some((false, true)),
            (Some(old), Some(new)) => {
                let key = |(at, one): &(IpAddr, Arc<super::Resource>)| (*at, Arc::clone(&one.name));
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
        self.answers.borrow_mut().pods.insert(view, Arc::clone(&others));
        others
    }

    pub(super) fn same_route(
        &self,
        class: &Class,
        namespace: Option<&Namespace>,
        name: &str,
    ) -> bool {
        if !self.routes.contains(name) {
            return true;
        }
        let [before, now] = self.both().map(|common| common.route(class, namespace, name));
        before == now && !self.is_reranked(&class.0)
    }

    pub(super) fn same_names(&self, view: &ViewKey, given: bool) -> bool {
        let [before, now] = self.both().map(|common| common.names(view, given));
        before == now && !self.is_reranked(&view.cluster)
    }

    /// Whether one of the services stands otherwise than before among those that want the same as it, as proxies
    /// of `cluster` see them.
    fn is_reranked(&self, cluster: &ClusterId) -> bool {
        let rank = |service: &Arc<MergedService>| {
            let provider = service.shards.first().map(|shard| shard.key.provider);
            (provider, service.primary.created, service.by_cluster.contains_key(cluster))
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

    /// Whether workloads of a namespace in a cluster may serve otherwise than before.
    pub(super) fn may_serve(&self, cluster: &ClusterId, namespace: &Namespace) -> bool {
        let key = (cluster.clone(), namespace.clone());
        if let Some(serves) = self.answers.borrow().serves.get(&key) {
            return *serves;
        }
        let serves = self.hosts.iter().any(|host| {
            let [before, now] = self.whole.map(|context| context.service(host.as_str(), namespace));
            let own = |merged: Option<&'a Arc<MergedService>>| -> Vec<&'a Arc<Service>> {
                let merged = merged.into_iter().flat_map(|one| of_cluster(one, cluster));
                merged.filter(|own| own.namespace == *namespace).collect()
            };
            let (old, new) = (own(before), own(now));
            // Which pods serve what has no selector is told by its endpoints.
            old != new || new.iter().any(|own| own.selector.is_empty())
        });
        self.answers.borrow_mut().serves.insert(key, serves);
        serves
    }

    /// Whether an east-west gateway of a cluster may listen on another port than before.
    pub(super) fn may_be_gateway(&self, cluster: &ClusterId) -> bool {
        self.hosts.iter().any(|host| {
            self.whole.iter().any(|context| {
                let merged = context.services.get(host);
                let own = merged.and_then(|merged| merged.by_cluster.get(cluster));
                own.is_some_and(|own| own.has_network_label())
            })
        })
    }

    /// What the workloads of a namespace in a cluster may serve, before and after.
    fn served(&self, cluster: &ClusterId, namespace: &Namespace) -> [Arc<[Arc<Service>]>; 2] {
        let [before, now] = self.whole;
        let old = self.cache.served(before, cluster, namespace);
        let stay = old.iter().filter(|own| !self.hosts.contains(&own.hostname)).cloned();
        let new = self.hosts.iter().filter_map(|host| now.service(host.as_str(), namespace));
        let new = new.flat_map(|merged| of_cluster(merged, cluster));
        let new = new.filter(|own| own.namespace == *namespace).cloned();
        let mut served: Vec<_> = stay.chain(new).collect();
        served.sort_by(|a, b| (a.created, &a.hostname).cmp(&(b.created, &b.hostname)));
        let served: Arc<[Arc<Service>]> = served.into();
        self.cache.put_served(now, (cluster.clone(), namespace.clone()), Arc::clone(&served));
        [old, served]
    }
}

/// What a cluster has of a service, and what is in none.
fn of_cluster<'a>(
    merged: &'a MergedService,
    cluster: &ClusterId,
) -> impl Iterator<Item = &'a Arc<Service>> {
    let nowhere = ClusterId::default();
    [merged.by_cluster.get(cluster), merged.by_cluster.get(&nowhere)].into_iter().flatten()
}

/// What streams see, each kind of them looked at once.
struct Groups<'a> {
    lens: &'a Lens<'a>,
    scopes: [Scopes; 2],
    /// For each namespace one that sees the same of the changed services.
    like: HashMap<&'a Namespace, &'a Namespace>,
    by_signature: HashMap<Signature, &'a Namespace>,
    seen: HashMap<Group<'a>, Shown>,
    served: HashMap<(&'a ClusterId, &'a Namespace), [Services; 2]>,
    nothing: Arc<Seen>,
}

/// The services that pods of a namespace may serve.
type Services = Arc<[Arc<Service>]>;

/// What of a namespace matters for the changed services: whether it sees each, and itself where one of them is
/// in it or some namespace's own.
type Signature = (Vec<bool>, Option<Namespace>);

/// What of a stand matters for them.
#[derive(PartialEq, Eq, Hash)]
struct Group<'a> {
    cluster: &'a ClusterId,
    namespace: &'a Namespace,
    network: &'a NetworkId,
    sees: Option<&'a [NetworkId]>,
    families: (bool, bool),
    node: Option<&'a str>,
    locality: Option<&'a Locality>,
    kind: Kind,
    secrets: Secrets,
    given: bool,
    /// A DNS domain that isn't its namespace's.
    domain: Option<&'a str>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Kind {
    Sidecar,
    /// The port of a gateway.
    Gateway(u16),
    /// A router that isn't a gateway.
    Router,
}

/// What is seen, and the pods whose listeners differ.
struct Shown {
    seen: Arc<Seen>,
    with_listeners: Arc<Seen>,
    pods: Arc<[IpAddr]>,
}

impl<'a> Groups<'a> {
    fn new(lens: &'a Lens<'a>) -> Self {
        Self {
            lens,
            scopes: lens.whole.map(|context| Common { context, cache: lens.cache }.scopes()),
            like: HashMap::new(),
            by_signature: HashMap::new(),
            seen: HashMap::new(),
            served: HashMap::new(),
            nothing: Arc::default(),
        }
    }

    fn seen_from(&mut self, stand: &'a Arc<Stand>) -> Arc<Seen> {
        let proxy = &*stand.proxy;
        let Lens { cache, whole: [before, now], .. } = self.lens;
        let port = cache.east_west_port(before, proxy);
        if proxy.kind == ProxyType::Router
            && self.lens.may_be_gateway(&proxy.cluster)
            && cache.east_west_port(now, proxy) != port
        {
            return Arc::new(Seen { everything: true, ..Seen::default() });
        }
        let kind = match (proxy.kind, port) {
            (ProxyType::Sidecar, _) => Kind::Sidecar,
            (ProxyType::Router, Some(port)) => Kind::Gateway(port),
            (ProxyType::Router, None) => Kind::Router,
        };
        let whereabouts = &stand.whereabouts;
        let group = Group {
            cluster: &proxy.cluster,
            namespace: self.like(proxy.namespace()),
            network: &stand.network,
            sees: proxy.sees.as_deref(),
            families: (proxy.has_ipv4(), proxy.has_ipv6()),
            node: whereabouts.node.as_deref().filter(|_| self.scopes.iter().any(|one| one.node)),
            locality: whereabouts
                .locality
                .as_deref()
                .filter(|_| self.scopes.iter().any(|one| one.locality)),
            kind,
            secrets: Secrets::of(proxy),
            given: proxy.takes_given_addresses,
            domain: own_domain(now, proxy).err(),
        };
        let lens = self.lens;
        let shown = self.seen.entry(group).or_insert_with(|| shown(lens, stand, kind));
        let others = shown.pods.iter().any(|pod| !proxy.addresses.contains(pod));
        let seen = Arc::clone(if others { &shown.with_listeners } else { &shown.seen });
        if kind == Kind::Sidecar && lens.may_serve(&proxy.cluster, proxy.namespace()) {
            return self.with_inbound(stand, seen);
        }
        if *seen == *self.nothing { Arc::clone(&self.nothing) } else { seen }
    }

    /// Adds what the workload of a sidecar serves otherwise than before.
    fn with_inbound(&mut self, stand: &'a Stand, seen: Arc<Seen>) -> Arc<Seen> {
        let proxy = &*stand.proxy;
        let (cluster, namespace) = (&proxy.cluster, proxy.namespace());
        let lens = self.lens;
        let served = self.served.entry((cluster, namespace));
        let [old, new] = served.or_insert_with(|| lens.served(cluster, namespace));
        let [before, now] = lens.whole;
        let mut lists = seen.lists;
        if inbound_clusters(before, proxy, old) != inbound_clusters(now, proxy, new) {
            lists.add(Wildcard::Clusters);
        }
        if inbound_listener(before, proxy, old) != inbound_listener(now, proxy, new) {
            lists.add(Wildcard::Listeners);
        }
        if lists == seen.lists { seen } else { Arc::new(Seen { lists, ..(*seen).clone() }) }
    }

    /// A namespace that sees the same of the changed services.
    fn like(&mut self, namespace: &'a Namespace) -> &'a Namespace {
        if let Some(like) = self.like.get(namespace) {
            return like;
        }
        let lens = self.lens;
        let contexts = lens.excerpts.each_ref().map(|(context, _)| context);
        let domain = format!(".{namespace}.svc.{}", lens.whole[1].settings.domain);
        let is_named = lens.hosts.iter().any(|host| {
            host.as_str().ends_with(&domain)
                || contexts.iter().any(|context| context.private.contains_key(host))
        });
        let services = contexts.iter().flat_map(|context| context.services.values());
        let visible = services.map(|service| service.primary.export_to.visible_to(namespace));
        let signature = (visible.collect(), is_named.then(|| namespace.clone()));
        let like = self.by_signature.entry(signature).or_insert(namespace);
        self.like.insert(namespace, like);
        like
    }
}

/// What differs for a proxy that stands there.
fn shown(lens: &Lens<'_>, stand: &Stand, kind: Kind) -> Shown {
    let proxy = &*stand.proxy;
    let role = if let Kind::Gateway(_) = kind { Role::Gateway } else { Role::Client };
    let view = ViewKey::of(proxy, stand.network.clone(), role).at(stand.whereabouts.clone());
    let secrets = Secrets::of(proxy);
    let mut seen = Seen::default();
    let mut pods: Arc<[IpAddr]> = Arc::default();
    match kind {
        Kind::Sidecar => {
            if !lens.same_outbound(&view, secrets) {
                seen.lists.add(Wildcard::Clusters);
            }
            let class = class_of(&lens.narrowed(&view));
            if !lens.same_listeners(&class) {
                seen.lists.add(Wildcard::Listeners);
            }
            pods = lens.other_pods(&view);
            let own = own_domain(lens.whole[1], proxy);
            let same = |name: &str| match own {
                Ok(namespace) => lens.same_route(&class, Some(namespace), name),
                Err(domain) => {
                    let [before, now] =
                        lens.both().map(|common| common.route_in(&class, domain, name));
                    before == now && !lens.is_reranked(&class.0)
                }
            };
            seen.routes = lens.routes.iter().filter(|name| !same(name)).cloned().collect();
        }
        Kind::Gateway(port) => {
            if !lens.same_outbound(&view, secrets) {
                seen.lists.add(Wildcard::Clusters);
            }
            let [before, now] = lens.both().map(|common| lds::gateway(common.context, &view, port));
            if before != now {
                seen.lists.add(Wildcard::Listeners);
            }
        }
        Kind::Router => {}
    }
    if !lens.same_names(&view, proxy.takes_given_addresses) {
        seen.lists.add(Wildcard::Names);
    }
    let mut with_listeners = seen.clone();
    with_listeners.lists.add(Wildcard::Listeners);
    Shown { seen: Arc::new(seen), with_listeners: Arc::new(with_listeners), pods }
}

#[cfg(test)]
mod tests;
