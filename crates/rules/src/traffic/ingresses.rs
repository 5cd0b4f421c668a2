//! What comes of several Ingresses. (Kubernetes, "Ingress"; docs/reference/traffic.md, "Ingress".)
//!
//! Each becomes a Gateway, as old as it is: a server for plain text at port 80, and one at port 443 for each entry of its
//! `tls`. The rules of all that name one host are joined, and stand beside VirtualServices as one of them, as old as the
//! oldest: the longest path decides, then the oldest Ingress. It is bound to the Gateways of all Ingresses that name the
//! host, and of all that serve it in TLS, since any of these may be where its clients come in.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use super::gateway::{Gateway, GatewayServer, ServerHost, ServerProtocol, ServerTls, TlsClients};
use super::gateway_routes::Exchange;
use super::hosts::{HostPattern, wider};
use super::ingress::{Ingress, IngressClass, IngressRule};
use super::kind::KindSettings;
use super::object::{ObjectMeta, Reason};
use super::route::{HttpRule, PathMatch, RouteOrigin, RulePlace};
use super::selection::{self, RuleSelector};
use super::virtual_service::VirtualService;
use strait_base::codes;
use strait_model::{ExportTo, RareGroup};

/// The port of requests in plain text, and that of TLS.
const PORTS: [u16; 2] = [80, 443];

/// The objects, which change one by one, and what came of them.
#[derive(Debug, Default)]
pub(super) struct IngressObjects {
    all: BTreeMap<ObjectMeta, Arc<Ingress>>,
    classes: BTreeMap<ObjectMeta, Arc<IngressClass>>,
    /// Those that are followed.
    followed: BTreeMap<ObjectMeta, Arc<Ingress>>,
    /// Of these, who has rules for a host, and who serves hosts in TLS.
    by_host: BTreeMap<HostPattern, BTreeSet<ObjectMeta>>,
    by_tls: BTreeMap<HostPattern, BTreeSet<ObjectMeta>>,
    gateways: BTreeMap<ObjectMeta, Arc<Gateway>>,
    joined: BTreeMap<HostPattern, Arc<VirtualService>>,
    /// Those that may come to something else than before.
    touched: BTreeSet<ObjectMeta>,
    touched_hosts: BTreeSet<HostPattern>,
    are_classes_touched: bool,
    /// What was said of which for the sake of others, by host, and what of it is new.
    given: BTreeMap<HostPattern, Vec<(Arc<RouteOrigin>, Reason)>>,
    news: Vec<(Arc<RouteOrigin>, Reason)>,
}

/// One that is in force and goes, and one that comes in its place.
pub(super) type GatewayExchange = (Option<Arc<Gateway>>, Option<Arc<Gateway>>);

/// What is to be exchanged for what.
#[derive(Debug, Default)]
pub(super) struct IngressExchanges {
    pub(super) gateways: Vec<GatewayExchange>,
    pub(super) services: Vec<Exchange>,
}

impl IngressObjects {
    pub(super) fn insert(&mut self, ingress: &Arc<Ingress>) {
        self.all.insert(ingress.meta.clone(), Arc::clone(ingress));
        self.touched.insert(ingress.meta.clone());
    }

    pub(super) fn remove(&mut self, ingress: &Ingress) {
        self.all.remove(&ingress.meta);
        self.touched.insert(ingress.meta.clone());
    }

    pub(super) fn insert_class(&mut self, class: &Arc<IngressClass>) {
        self.classes.insert(class.meta.clone(), Arc::clone(class));
        self.are_classes_touched = true;
    }

    pub(super) fn remove_class(&mut self, class: &IngressClass) {
        self.classes.remove(&class.meta);
        self.are_classes_touched = true;
    }

    /// What is to be exchanged for what, since this was last asked.
    pub(super) fn take_exchanges(&mut self, settings: &KindSettings) -> IngressExchanges {
        if std::mem::take(&mut self.are_classes_touched) {
            self.touched.extend(self.all.keys().cloned());
        }
        let mut exchanges = IngressExchanges::default();
        for meta in std::mem::take(&mut self.touched) {
            exchanges.gateways.extend(self.follow(&meta, settings));
        }
        for host in std::mem::take(&mut self.touched_hosts) {
            let now = self.joined(&host).map(Arc::new);
            self.note_losses(&host, now.as_deref());
            let before = match &now {
                Some(now) => self.joined.insert(host, Arc::clone(now)),
                None => self.joined.remove(&host),
            };
            if before != now {
                exchanges.services.push((before, now));
            }
        }
        exchanges
    }

    /// Whether an object is followed.
    pub(super) fn follows(&self, ingress: &Ingress) -> bool {
        self.followed.contains_key(&ingress.meta)
    }

    /// What is said of Ingresses for the sake of others, and was not when this was last asked.
    pub(super) fn take_news(&mut self) -> Vec<(Arc<RouteOrigin>, Reason)> {
        std::mem::take(&mut self.news)
    }

    /// Follows an object from now on, or no longer, or as it is now.
    fn follow(&mut self, meta: &ObjectMeta, settings: &KindSettings) -> Option<GatewayExchange> {
        let classes = || self.classes.values().map(|class| &**class);
        let is_followed =
            |one: &&Arc<Ingress>| one.is_followed(classes(), &settings.ingress).is_ok();
        let now = self.all.get(meta).filter(is_followed).cloned();
        let before = self.followed.remove(meta);
        if before == now {
            self.followed.extend(before.map(|before| (meta.clone(), before)));
            return None;
        }
        for (ingress, is_there) in
            before.iter().map(|one| (one, false)).chain(now.iter().map(|one| (one, true)))
        {
            self.touched_hosts.extend(ingress.hosts().cloned());
            for host in ingress.hosts() {
                enter(&mut self.by_host, host, meta, is_there);
            }
            for host in ingress.tls_hosts() {
                enter(&mut self.by_tls, host, meta, is_there);
            }
        }
        let tls = |one: &Option<Arc<Ingress>>| -> BTreeSet<HostPattern> {
            one.iter().flat_map(|one| one.tls_hosts().cloned()).collect()
        };
        let (tls_before, tls_now) = (tls(&before), tls(&now));
        let differing: BTreeSet<_> = tls_before.symmetric_difference(&tls_now).collect();
        let held = self.by_host.keys().filter(|host| {
            let wider = || [HostPattern::all()].into_iter().chain(wider(host));
            differing.contains(host) || wider().any(|pattern| differing.contains(&pattern))
        });
        if !differing.is_empty() {
            self.touched_hosts.extend(held.cloned());
        }
        self.followed.extend(now.iter().map(|now| (meta.clone(), Arc::clone(now))));
        let now = now.map(|ingress| Arc::new(gateway_of(&ingress, settings)));
        let before = match &now {
            Some(now) => self.gateways.insert(meta.clone(), Arc::clone(now)),
            None => self.gateways.remove(meta),
        };
        (before != now).then_some((before, now))
    }

    /// What all Ingresses say of a host; `None` where none does.
    fn joined(&self, host: &HostPattern) -> Option<VirtualService> {
        let naming = self.by_host.get(host)?;
        let oldest = naming.first()?;
        let mut rules = Vec::new();
        for ingress in naming.iter().filter_map(|meta| self.followed.get(meta)) {
            let origin = Arc::new(RouteOrigin::of_ingress(&ingress.meta));
            for IngressRule { rule, .. } in ingress.rules_of(host) {
                let place = RulePlace { of: Some(Arc::clone(&origin)), ..rule.place.clone() };
                rules.push(HttpRule { place, ..rule.clone() });
            }
        }
        // Stable: of equals the older object's, then the first of an object.
        rules.sort_by_key(precedence);
        let patterns = [host.clone(), HostPattern::all()].into_iter().chain(wider(host));
        let serving = patterns.filter_map(|pattern| self.by_tls.get(&pattern)).flatten();
        let bound: BTreeSet<&ObjectMeta> = naming.iter().chain(serving).collect();
        let gateways = bound.into_iter().filter_map(|meta| self.gateways.get(meta));
        Some(VirtualService {
            meta: ObjectMeta {
                name: format!("{}~ingress~{host}", oldest.name).into(),
                ..oldest.clone()
            },
            origin: Arc::new(RouteOrigin::of_ingress(oldest)),
            hosts: [host.clone()].into(),
            gateways: gateways.map(|gateway| Arc::clone(&gateway.name)).collect(),
            export_to: ExportTo::Public,
            http: rules.into(),
            more: RareGroup::default(),
        })
    }

    fn note_losses(&mut self, host: &HostPattern, now: Option<&VirtualService>) {
        let losses = now.map_or_else(Vec::new, |service| taken_paths(host, service.http.iter()));
        let before = self.given.remove(host).unwrap_or_default();
        self.news.extend(losses.iter().filter(|one| !before.contains(one)).cloned());
        if !losses.is_empty() {
            self.given.insert(host.clone(), losses);
        }
    }
}

/// Who has a host, one more or one less.
fn enter(
    all: &mut BTreeMap<HostPattern, BTreeSet<ObjectMeta>>,
    host: &HostPattern,
    meta: &ObjectMeta,
    is_there: bool,
) {
    if is_there {
        all.entry(host.clone()).or_default().insert(meta.clone());
    } else if let Some(own) = all.get_mut(host) {
        own.remove(meta);
        if own.is_empty() {
            all.remove(host);
        }
    }
}

/// The routers that serve Ingresses.
fn routers(settings: &KindSettings) -> Option<RuleSelector> {
    let label = [("istio".to_owned(), settings.ingress.selector.clone())];
    selection::selector(&label.into())
}

/// The Gateway that an Ingress stands for. Names as Istio has them, which users' own patches match.
fn gateway_of(ingress: &Ingress, settings: &KindSettings) -> Gateway {
    let ObjectMeta { created, name, namespace } = &ingress.meta;
    let meta = ObjectMeta {
        created: *created,
        name: format!("{name}-istio-autogenerated-k8s-ingress-{namespace}").into(),
        namespace: settings.root_namespace.clone(),
    };
    let every = [ServerHost { namespace: None, host: HostPattern::all() }];
    let server = |place, port, port_name: String, hosts, protocol| GatewayServer {
        place,
        port,
        port_name: port_name.into(),
        bind: None,
        hosts,
        protocol,
        grpc_web: false,
        https_redirect: false,
    };
    let [plain, in_tls] = PORTS;
    let port_name = format!("http-{plain}-ingress-{name}-{namespace}");
    let mut servers = vec![server(0, plain, port_name, every.into(), ServerProtocol::Http)];
    for tls in &ingress.tls {
        let port_name = format!("https-{in_tls}-ingress-{name}-{namespace}-{}", tls.place);
        let hosts = tls.hosts.iter().map(|host| ServerHost { namespace: None, host: host.clone() });
        let certificate = ServerTls {
            clients: TlsClients::Anybody,
            credentials: [Arc::clone(&tls.secret)].into(),
            files: Box::default(),
            roots_file: None,
            roots: None,
            revoked: None,
            names: Box::default(),
            spki: Box::default(),
            hashes: Box::default(),
            versions: (None, None),
            ciphers: Box::default(),
        };
        let protocol = ServerProtocol::Https(certificate);
        servers.push(server(tls.place + 1, in_tls, port_name, hosts.collect(), protocol));
    }
    Gateway {
        name: meta.to_string().into(),
        meta,
        selector: routers(settings),
        servers: servers.into(),
        ingress: Some(ingress.meta.clone()),
    }
}

/// Which rule for a host is asked first: that of the longest path, exact before others. What is for all other requests
/// comes last.
fn precedence(rule: &HttpRule) -> impl Ord + use<> {
    let (is_exact, length) = match rule.matches.first().and_then(|one| one.path.as_ref()) {
        Some(PathMatch::Exact(path)) => (true, path.len()),
        Some(PathMatch::Prefix(path) | PathMatch::Segments(path) | PathMatch::Regex(path)) => {
            (false, path.len())
        }
        None => (false, 0),
    };
    (rule.place.path.is_none(), Reverse(length), !is_exact)
}

/// Of rules for a host, in the order in which they are asked, those that another one has all requests of: whose each is,
/// and why it has no effect.
pub fn taken_paths<'a>(
    host: &HostPattern,
    rules: impl Iterator<Item = &'a HttpRule>,
) -> Vec<(Arc<RouteOrigin>, Reason)> {
    let mut first = HashMap::<Option<&PathMatch>, &HttpRule>::new();
    let mut taken = Vec::new();
    for rule in rules {
        let RulePlace { of: Some(origin), .. } = &rule.place else { continue };
        let path = rule.matches.first().and_then(|one| one.path.as_ref());
        let winner = *first.entry(path).or_insert(rule);
        let Some(other) = winner.place.of.as_ref().filter(|_| !std::ptr::eq(winner, rule)) else {
            continue;
        };
        // That one object has a path for all requests and something for all others is as it should be.
        if rule.place.path.is_none() && other == origin {
            continue;
        }
        let text = format!(
            "what it is about of {host} belongs to {} of Ingress {}/{}, which comes first",
            other.path_of(&winner.place),
            other.namespace,
            other.name
        );
        let path = origin.path_of(&rule.place);
        let reason = Reason::lost(&codes::INGRESS_PATH_TAKEN, path, text);
        taken.push((Arc::clone(origin), reason));
    }
    taken
}

#[cfg(test)]
mod tests;
