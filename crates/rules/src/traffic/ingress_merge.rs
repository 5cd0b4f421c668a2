//! Merges Ingresses (Kubernetes, "Ingress"; docs/reference/traffic.md, "Ingress").
//!
//! Each Ingress becomes a Gateway of the same age: one server for plaintext on port 80, and one on
//! port 443 for each entry of `tls`. The rules of all Ingresses with the same host are merged into
//! the equivalent of a VirtualService, which is as old as the oldest of them: the longest path
//! takes precedence, then the oldest Ingress. It is bound to the Gateways of all Ingresses that
//! list the host or serve it with TLS, because clients may connect to any of these.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use super::gateway::{Gateway, GatewayServer, ServerHost, ServerProtocol, ServerTls, TlsClients};
use super::gateway_route_merge::Exchange;
use super::hosts::{HostPattern, wider};
use super::ingress::{Ingress, IngressClass, IngressRule};
use super::kind::KindSettings;
use super::object::{ObjectMeta, Reason};
use super::route::{HttpRule, PathMatch, RouteOrigin, RulePlace};
use super::selection::{self, RuleSelector};
use super::virtual_service::VirtualService;
use strait_base::codes;
use strait_model::{ExportTo, RareGroup};

/// Ports for plaintext and for TLS.
const PORTS: [u16; 2] = [80, 443];

/// The Ingresses and IngressClasses, which change one by one, and the merged result.
#[derive(Debug, Default)]
pub(super) struct IngressObjects {
    all: BTreeMap<ObjectMeta, Arc<Ingress>>,
    classes: BTreeMap<ObjectMeta, Arc<IngressClass>>,
    /// Ingresses that belong to the mesh.
    followed: BTreeMap<ObjectMeta, Arc<Ingress>>,
    /// Ingresses of the mesh by the hosts of their rules, and by the hosts that they serve with
    /// TLS.
    by_host: BTreeMap<HostPattern, BTreeSet<ObjectMeta>>,
    by_tls: BTreeMap<HostPattern, BTreeSet<ObjectMeta>>,
    gateways: BTreeMap<ObjectMeta, Arc<Gateway>>,
    joined: BTreeMap<HostPattern, Arc<VirtualService>>,
    /// Ingresses and hosts whose result may have changed.
    touched: BTreeSet<ObjectMeta>,
    touched_hosts: BTreeSet<HostPattern>,
    are_classes_touched: bool,
    /// Reasons that are caused by other Ingresses, by host, and those not reported yet.
    given: BTreeMap<HostPattern, Vec<(Arc<RouteOrigin>, Reason)>>,
    news: Vec<(Arc<RouteOrigin>, Reason)>,
}

/// The active Gateway that is replaced, and its replacement.
pub(super) type GatewayExchange = (Option<Arc<Gateway>>, Option<Arc<Gateway>>);

/// Replacements of Gateways and VirtualServices.
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

    /// Returns the replacements since the last call.
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

    /// Returns whether an Ingress belongs to the mesh.
    pub(super) fn follows(&self, ingress: &Ingress) -> bool {
        self.followed.contains_key(&ingress.meta)
    }

    /// Returns new reasons since the last call that are caused by other Ingresses.
    pub(super) fn take_new_reasons(&mut self) -> Vec<(Arc<RouteOrigin>, Reason)> {
        std::mem::take(&mut self.news)
    }

    /// Adds, updates or removes an Ingress, depending on whether it exists and belongs to the mesh.
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
        let tls = |ingress: &Option<Arc<Ingress>>| -> BTreeSet<HostPattern> {
            ingress.iter().flat_map(|one| one.tls_hosts().cloned()).collect()
        };
        let (tls_before, tls_now) = (tls(&before), tls(&now));
        let differing: BTreeSet<_> = tls_before.symmetric_difference(&tls_now).collect();
        let touched = self.by_host.keys().filter(|host| {
            let wider = || [HostPattern::all()].into_iter().chain(wider(host));
            differing.contains(host) || wider().any(|pattern| differing.contains(&pattern))
        });
        if !differing.is_empty() {
            self.touched_hosts.extend(touched.cloned());
        }
        self.followed.extend(now.iter().map(|now| (meta.clone(), Arc::clone(now))));
        let now = now.map(|ingress| Arc::new(ingress_gateway(&ingress, settings)));
        let before = match &now {
            Some(now) => self.gateways.insert(meta.clone(), Arc::clone(now)),
            None => self.gateways.remove(meta),
        };
        (before != now).then_some((before, now))
    }

    /// Merges the rules of all Ingresses for a host; `None` without any Ingress.
    fn joined(&self, host: &HostPattern) -> Option<VirtualService> {
        let naming = self.by_host.get(host)?;
        let oldest = naming.first()?;
        let mut rules = Vec::new();
        for ingress in naming.iter().filter_map(|meta| self.followed.get(meta)) {
            let origin = Arc::new(RouteOrigin::for_ingress(&ingress.meta));
            for IngressRule { rule, .. } in ingress.rules_for(host) {
                let place = RulePlace { origin: Some(Arc::clone(&origin)), ..rule.place.clone() };
                rules.push(HttpRule { place, ..rule.clone() });
            }
        }
        // The sort is stable: among equal paths, the older object comes first, then the first rule
        // of an object.
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
            origin: Arc::new(RouteOrigin::for_ingress(oldest)),
            hosts: [host.clone()].into(),
            gateways: gateways.map(|gateway| Arc::clone(&gateway.name)).collect(),
            export_to: ExportTo::Public,
            http: rules.into(),
            more: RareGroup::default(),
        })
    }

    fn note_losses(&mut self, host: &HostPattern, now: Option<&VirtualService>) {
        let losses = now.map_or_else(Vec::new, |service| shadowed_paths(host, service.http.iter()));
        let before = self.given.remove(host).unwrap_or_default();
        self.news.extend(losses.iter().filter(|one| !before.contains(one)).cloned());
        if !losses.is_empty() {
            self.given.insert(host.clone(), losses);
        }
    }
}

/// Adds or removes an Ingress in the list of a host.
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

/// Returns the selector of the gateway proxies that serve Ingresses.
fn routers(settings: &KindSettings) -> Option<RuleSelector> {
    let label = [("istio".to_owned(), settings.ingress.selector.clone())];
    selection::selector(&label.into())
}

/// Returns the Gateway for an Ingress. The name equals that in Istio, because EnvoyFilters of users
/// may match it.
fn ingress_gateway(ingress: &Ingress, settings: &KindSettings) -> Gateway {
    let ObjectMeta { created, name, namespace } = &ingress.meta;
    let meta = ObjectMeta {
        created: *created,
        name: format!("{name}-istio-autogenerated-k8s-ingress-{namespace}").into(),
        namespace: settings.root_namespace.clone(),
    };
    let every = [ServerHost { namespace: None, host: HostPattern::all() }];
    let server = |place, port, port_name: String, hosts, protocol| GatewayServer {
        place,
        name: Arc::default(),
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
            clients: TlsClients::Any,
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

/// Returns the sort key of a rule for a host: the longest path first, exact paths before others. A
/// rule for all other requests is last.
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

/// Returns the rules for a host that have no effect, because an earlier rule matches all of their
/// requests. `rules` must be in the order of evaluation. Each result contains the origin of the
/// rule and the reason.
pub fn shadowed_paths<'a>(
    host: &HostPattern,
    rules: impl Iterator<Item = &'a HttpRule>,
) -> Vec<(Arc<RouteOrigin>, Reason)> {
    let mut first = HashMap::<Option<&PathMatch>, &HttpRule>::new();
    let mut shadowed = Vec::new();
    for rule in rules {
        let RulePlace { origin: Some(origin), .. } = &rule.place else { continue };
        let path = rule.matches.first().and_then(|one| one.path.as_ref());
        let winner = *first.entry(path).or_insert(rule);
        let Some(other) = winner.place.origin.as_ref().filter(|_| !std::ptr::eq(winner, rule))
        else {
            continue;
        };
        // An object may have a path for all requests in addition to its default backend.
        if rule.place.path.is_none() && other == origin {
            continue;
        }
        let text = format!(
            "its requests for {host} belong to {} of Ingress {}/{}, which takes precedence",
            other.http_rule_path(&winner.place),
            other.namespace,
            other.name
        );
        let path = origin.http_rule_path(&rule.place);
        let reason = Reason::lost(&codes::INGRESS_PATH_TAKEN, path, text);
        shadowed.push((Arc::clone(origin), reason));
    }
    shadowed
}

#[cfg(test)]
mod tests;
