//! Which servers of Gateways share a port of a router, and which VirtualServices they serve.
//! (docs/reference/traffic.md, "Gateway".)

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use imbl::OrdMap;

use super::changes::TrafficChanges;
use super::gateway::{Gateway, GatewayServer, ServerHost, ServerProtocol};
use super::hosts::{HostPattern, HostSet};
use super::object::{ObjectMeta, Reason, new_reasons};
use super::route::{MESH, SourceMatch};
use super::virtual_service::VirtualService;
use strait_base::codes;
use strait_model::mesh_config::GatewayScope;
use strait_model::{Labels, Namespace};

/// To compare so few hosts with all others is faster than to arrange the others.
const FEW_HOSTS: usize = 8;

/// All Gateways, the oldest first.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Gateways {
    all: OrdMap<ObjectMeta, Arc<Gateway>>,
    /// By the name that VirtualServices use; one for an Ingress may have the name of another.
    by_name: OrdMap<(Arc<str>, ObjectMeta), Arc<Gateway>>,
    scope: GatewayScope,
}

/// Servers that share a port of a router.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GatewayPort<'a> {
    /// The port on which the router listens.
    pub number: u16,
    /// At which address; `None` for all of its own.
    pub bind: Option<IpAddr>,
    /// Those that take requests in plain text.
    pub http: Vec<PlacedServer<'a>>,
    /// The one that takes bytes in plain text; never beside [`Self::http`].
    pub tcp: Option<PlacedServer<'a>>,
    /// Those that take TLS, told apart by the names that clients give.
    pub tls: Vec<PlacedServer<'a>>,
}

/// A server, as far as no older one has what it asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlacedServer<'a> {
    /// Whose it is.
    pub gateway: &'a Arc<Gateway>,
    /// The server.
    pub server: &'a GatewayServer,
    /// The hosts that it serves.
    pub hosts: Vec<&'a ServerHost>,
}

/// What a server doesn't get of what it asks for.
#[derive(Debug)]
struct ServerLoss<'a> {
    gateway: &'a Arc<Gateway>,
    server: &'a GatewayServer,
    /// Of it, this host alone.
    host: Option<&'a ServerHost>,
    winner: &'a Arc<Gateway>,
}

impl Gateways {
    /// None yet.
    pub(super) fn of(scope: GatewayScope) -> Self {
        Self { all: OrdMap::default(), by_name: OrdMap::default(), scope }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Those that select a router of that namespace with these labels, the oldest first.
    pub fn selecting<'a>(
        &'a self,
        namespace: &'a Namespace,
        labels: &'a Labels,
    ) -> impl Iterator<Item = &'a Arc<Gateway>> {
        self.all.values().filter(move |one| self.selects(one, namespace, labels))
    }

    /// Whether one of them selects such a router. What stands for an Ingress selects those of the mesh's own.
    pub fn selects(&self, gateway: &Gateway, namespace: &Namespace, labels: &Labels) -> bool {
        let may = match self.scope {
            GatewayScope::AnyNamespace => true,
            GatewayScope::OwnNamespace => {
                gateway.ingress.is_some() || gateway.meta.namespace == *namespace
            }
        };
        may && gateway.selects(labels)
    }

    /// The servers that take bytes, and not requests, of those that are for some routers.
    pub fn servers_of_bytes(&self) -> impl Iterator<Item = (&Arc<Gateway>, &GatewayServer)> {
        use ServerProtocol::{Passthrough, Tcp, Tls};
        let takes_bytes =
            |server: &&GatewayServer| matches!(server.protocol, Tcp | Tls(_) | Passthrough);
        let gateways = self.all.values().filter(|one| one.selector.is_some());
        gateways.flat_map(move |one| {
            one.servers.iter().filter(takes_bytes).map(move |server| (one, server))
        })
    }

    /// The Ingress that one of these stands for.
    pub(super) fn ingress_of(&self, gateway: &ObjectMeta) -> Option<&ObjectMeta> {
        self.all.get(gateway)?.ingress.as_ref()
    }

    /// Those that stand for an Ingress.
    pub fn of_ingress<'a>(&'a self, meta: &'a ObjectMeta) -> Option<&'a Arc<Gateway>> {
        self.all.values().find(|one| one.ingress.as_ref() == Some(meta))
    }

    /// The one of that name, `NAMESPACE/NAME`.
    pub fn named(&self, name: &str) -> Option<&Arc<Gateway>> {
        let from = (Arc::from(name), ObjectMeta::before_all());
        let (_, gateway) = self.by_name.range(from..).next()?;
        Some(gateway).filter(|one| *one.name == *name)
    }

    /// The ports of the servers of the Gateway of that name, `NAMESPACE/NAME`.
    pub fn ports_of(&self, name: &str) -> impl Iterator<Item = u16> {
        self.named(name).into_iter().flat_map(|one| one.servers.iter().map(|server| server.port))
    }

    /// What of a Gateway others have, that came first.
    pub fn losses(&self, gateway: &Gateway) -> Vec<Reason> {
        let labels = gateway.selector.as_deref().cloned().unwrap_or_default();
        let selecting = self.selecting(&gateway.meta.namespace, &labels);
        let (_, losses) = merged_with_losses(selecting, Some);
        let own = losses.iter().filter(|loss| loss.gateway.meta == gateway.meta);
        own.map(ServerLoss::reason).collect()
    }

    /// The Gateways that serve a VirtualService for its hosts, each with the ports at which it does.
    pub fn serving<'a>(
        &'a self,
        service: &'a VirtualService,
    ) -> impl Iterator<Item = (&'a Arc<Gateway>, BTreeSet<u16>)> {
        let named = service.gateways.iter().filter_map(|name| self.named(name));
        let serving = named.map(|gateway| {
            let servers = gateway.servers.iter().filter(|server| server.serves(service));
            let ports = servers.map(|server| server.port);
            (gateway, ports.collect::<BTreeSet<_>>())
        });
        serving.filter(|(_, ports)| !ports.is_empty())
    }

    /// The hosts of a VirtualService that none of the Gateways which serve it for others has, each with its place.
    pub fn unserved_hosts(&self, service: &VirtualService) -> Vec<Reason> {
        let mut served = BTreeSet::new();
        let mut is_served = false;
        for (gateway, _) in self.serving(service) {
            is_served = true;
            let hosts = gateway.servers.iter().flat_map(|server| &*server.hosts);
            let hosts = hosts.filter(|one| one.is_for(&service.meta.namespace));
            let hosts: HostSet<'_> = hosts.map(|one| &one.host).collect();
            served.extend(service.hosts.iter().filter(|host| hosts.common(host).next().is_some()));
        }
        let lacking = service.hosts.iter().filter(|host| is_served && !served.contains(host));
        let reason = |host: &HostPattern| {
            let text =
                format!("no server of the Gateways that it names has {host} for its namespace");
            Reason::warning(&codes::GATEWAY_UNBOUND, "spec.hosts", text)
        };
        lacking.map(reason).collect()
    }

    /// The rules of a VirtualService, and their matches, that apply at none of the servers that serve it: they are for another
    /// protocol, for a port that none of these has, or for gateways that the object doesn't name.
    pub fn rules_without_a_server(&self, service: &VirtualService) -> Vec<Reason> {
        let named = service.gateways.iter().filter_map(|name| Some((name, self.named(name)?)));
        let serving = named.flat_map(|(name, gateway)| {
            let servers = gateway.servers.iter().filter(|server| server.serves(service));
            servers.map(move |server| (name, server))
        });
        let servers: Vec<(&Arc<str>, &GatewayServer)> = serving.collect();
        let mut reasons = Vec::new();
        let every = SourceMatch::default();
        let mut judge = |list: RuleList, rule: usize, matches: Vec<(Option<u16>, &SourceMatch)>| {
            let path = format!("spec.{}[{rule}]", list.field());
            if matches.is_empty() {
                reasons.extend(unserved_rule(service, &servers, (list, &path), None, &every));
            }
            for (place, (port, source)) in matches.into_iter().enumerate() {
                let path = format!("{path}.match[{place}]");
                reasons.extend(unserved_rule(service, &servers, (list, &path), port, source));
            }
        };
        for (at, rule) in service.http.iter().enumerate().filter(|(_, rule)| !rule.is_absent) {
            let matches = rule.matches.iter().map(|one| (one.port, &one.source));
            judge(RuleList::Http, at, matches.collect());
        }
        for (list, rules) in [(RuleList::Tls, &service.tls), (RuleList::Tcp, &service.tcp)] {
            for rule in rules {
                let matches = rule.matches.iter().map(|one| (one.port, &one.source));
                judge(list, rule.place.index as usize, matches.collect());
            }
        }
        reasons
    }

    /// What a VirtualService names among its gateways and can't be served by. If not all Gateways are known, an unknown one may
    /// exist.
    pub fn reasons_of(&self, service: &VirtualService, all_known: bool) -> Vec<Reason> {
        let named = service.gateways.iter().enumerate().filter(|(_, name)| name.contains('/'));
        let reason = |(at, name): (usize, &Arc<str>)| {
            let serves = |gateway: &Gateway| {
                let all = gateway.servers.iter().flat_map(|server| &*server.hosts);
                !common_hosts(all, service).is_empty()
            };
            let text = match self.named(name) {
                None if !all_known => return None,
                None => format!("there is no Gateway {name}: nothing is served through it"),
                Some(gateway) if !serves(gateway) => {
                    format!(
                        "no server of Gateway {name} has a host of this object for its namespace"
                    )
                }
                Some(gateway) => {
                    let namespace = &gateway.meta.namespace;
                    if service.export_to.visible_to(namespace) {
                        return None;
                    }
                    format!(
                        "this object is not exported to {namespace}, the namespace of Gateway {name}: \
                         routers there serve nothing of it"
                    )
                }
            };
            let path = format!("spec.gateways[{at}]");
            Some(Reason::warning(&codes::GATEWAY_UNBOUND, path, text))
        };
        named.filter_map(reason).collect()
    }
}

/// A list of rules in a VirtualService.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RuleList {
    Http,
    Tls,
    Tcp,
}

impl RuleList {
    fn field(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Tls => "tls",
            Self::Tcp => "tcp",
        }
    }

    /// The servers that its rules are for, in words.
    fn servers(self) -> &'static str {
        match self {
            Self::Http => "HTTP, or of HTTPS that ends there",
            Self::Tls => "TLS or HTTPS in mode PASSTHROUGH",
            Self::Tcp => "TCP, or of TLS that ends there",
        }
    }

    fn is_for(self, server: &ServerProtocol) -> bool {
        match self {
            Self::Http => matches!(server, ServerProtocol::Http | ServerProtocol::Https(_)),
            Self::Tls => *server == ServerProtocol::Passthrough,
            Self::Tcp => matches!(server, ServerProtocol::Tcp | ServerProtocol::Tls(_)),
        }
    }
}

/// Why a rule or a match of a VirtualService applies at none of the servers that serve the object; `None` where it applies at
/// one, or may apply at sidecars, or the object has no server at all.
fn unserved_rule(
    service: &VirtualService,
    servers: &[(&Arc<str>, &GatewayServer)],
    (list, path): (RuleList, &str),
    port: Option<u16>,
    source: &SourceMatch,
) -> Option<Reason> {
    let asked = &source.gateways;
    if !asked.is_empty() && !asked.iter().any(|name| service.gateways.contains(name)) {
        let text =
            format!("{} is none of the gateways of the object: nothing fits it", asked.join(", "));
        return Some(Reason::lost(&codes::GATEWAY_UNBOUND, format!("{path}.gateways"), text));
    }
    let is_asked = |name: &Arc<str>| asked.is_empty() || asked.contains(name);
    let may_be_for_sidecars = service.is_for_mesh() && is_asked(&Arc::from(MESH));
    if may_be_for_sidecars || servers.is_empty() {
        return None;
    }
    let of_gateways: Vec<_> = servers.iter().filter(|(name, _)| is_asked(name)).collect();
    let ports: BTreeSet<u16> = of_gateways.iter().map(|(_, server)| server.port).collect();
    let list_of =
        |ports: &BTreeSet<u16>| ports.iter().map(u16::to_string).collect::<Vec<_>>().join(", ");
    if let Some(port) = port.filter(|port| !ports.contains(port)) {
        let text = format!(
            "no server of its Gateways for these hosts has port {port}; they have {}: nothing fits it",
            list_of(&ports)
        );
        return Some(Reason::lost(&codes::TRAFFIC_PORT, format!("{path}.port"), text));
    }
    let at_port =
        of_gateways.iter().filter(|(_, server)| port.is_none_or(|one| one == server.port));
    let mut at_port = at_port.peekable();
    at_port.peek()?;
    if at_port.any(|(_, server)| list.is_for(&server.protocol)) {
        return None;
    }
    let text = format!(
        "rules of {} are for servers of {}, and none of its Gateways for these hosts is one: nothing fits it",
        list.field(),
        list.servers()
    );
    Some(Reason::lost(&codes::RULE_PROTOCOL, path, text))
}

impl GatewayServer {
    /// Whether it has a host of a VirtualService, for the namespace of that object.
    fn serves(&self, service: &VirtualService) -> bool {
        !common_hosts(self.hosts.iter(), service).is_empty()
    }
}

impl ServerHost {
    /// Whether VirtualServices of that namespace are served under it.
    pub fn is_for(&self, namespace: &Namespace) -> bool {
        self.namespace.as_ref().is_none_or(|own| own == namespace)
    }
}

/// The hosts of a VirtualService that are served under these of servers: of each pair that meet the narrower.
fn common_hosts<'s>(
    servers: impl Iterator<Item = &'s ServerHost>,
    service: &'s VirtualService,
) -> BTreeSet<&'s HostPattern> {
    let servers = servers.filter(|one| one.is_for(&service.meta.namespace)).map(|one| &one.host);
    if service.hosts.len() <= FEW_HOSTS {
        let common = |server| service.hosts.iter().filter_map(move |host| host.narrower(server));
        return servers.flat_map(common).collect();
    }
    let servers: HostSet<'_> = servers.collect();
    service.hosts.iter().flat_map(|host| servers.common(host)).collect()
}

impl PlacedServer<'_> {
    /// The hosts of a VirtualService that it serves.
    pub fn hosts_of<'s>(&'s self, service: &'s VirtualService) -> BTreeSet<&'s HostPattern> {
        common_hosts(self.hosts.iter().copied(), service)
    }
}

/// What routers do that these Gateways select, port by port; `target` finds the router's own port for one that clients
/// mean, if it has any.
pub fn merged<'a>(
    gateways: impl Iterator<Item = &'a Arc<Gateway>>,
    target: impl FnMut(u16) -> Option<u16>,
) -> Vec<GatewayPort<'a>> {
    merged_with_losses(gateways, target).0
}

fn merged_with_losses<'a>(
    gateways: impl Iterator<Item = &'a Arc<Gateway>>,
    mut target: impl FnMut(u16) -> Option<u16>,
) -> (Vec<GatewayPort<'a>>, Vec<ServerLoss<'a>>) {
    let mut ports = BTreeMap::<(u16, Option<IpAddr>), GatewayPort<'a>>::new();
    // Hosts in TLS, each with the server that has it.
    type HostAt<'a> = (u16, Option<IpAddr>, &'a HostPattern);
    let mut taken = BTreeMap::<HostAt<'a>, (&'a Arc<Gateway>, &'a GatewayServer)>::new();
    let mut losses = Vec::new();
    for (gateway, server) in
        gateways.flat_map(|gateway| gateway.servers.iter().map(move |server| (gateway, server)))
    {
        if server.protocol == ServerProtocol::AutoPassthrough {
            continue;
        }
        let Some(number) = target(server.port) else { continue };
        let mut placed = PlacedServer { gateway, server, hosts: server.hosts.iter().collect() };
        let bind = server.bind;
        let empty = || GatewayPort { number, bind, http: Vec::new(), tcp: None, tls: Vec::new() };
        let port = ports.entry((number, bind)).or_insert_with(empty);
        // Who came first decides what the port speaks. Plain text may come beside TLS, and TLS not beside plain text.
        let plain = port.tcp.as_ref().or_else(|| port.http.first());
        let first = match server.protocol {
            ServerProtocol::Http => port.tcp.as_ref(),
            ServerProtocol::Tcp => plain,
            _ => plain.filter(|_| port.tls.is_empty()),
        };
        if let Some(first) = first {
            losses.push(ServerLoss { winner: first.gateway, gateway, server, host: None });
            continue;
        }
        match server.protocol {
            ServerProtocol::Http => {
                port.http.push(placed);
                continue;
            }
            ServerProtocol::Tcp => {
                port.tcp = Some(placed);
                continue;
            }
            _ => {}
        }
        for host in std::mem::take(&mut placed.hosts) {
            match taken.entry((number, bind, &host.host)) {
                std::collections::btree_map::Entry::Occupied(winner) => {
                    let (winner, first) = *winner.get();
                    // The same host for several namespaces is one name in TLS.
                    if std::ptr::eq(first, server) {
                        placed.hosts.push(host);
                        continue;
                    }
                    // Ingresses of one host are served together: with one certificate nobody loses anything.
                    if winner.ingress.is_some()
                        && gateway.ingress.is_some()
                        && first.protocol == server.protocol
                    {
                        continue;
                    }
                    losses.push(ServerLoss { gateway, server, host: Some(host), winner });
                }
                std::collections::btree_map::Entry::Vacant(free) => {
                    free.insert((gateway, server));
                    placed.hosts.push(host);
                }
            }
        }
        if !placed.hosts.is_empty() {
            port.tls.push(placed);
        }
    }
    (ports.into_values().collect(), losses)
}

/// The objects, which change one by one.
#[derive(Debug, Default)]
pub(super) struct GatewayObjects {
    given: BTreeMap<ObjectMeta, Vec<Reason>>,
    is_stale: bool,
}

impl GatewayObjects {
    pub(super) fn insert(
        &mut self,
        gateway: Arc<Gateway>,
        into: &mut Gateways,
        changes: &mut TrafficChanges,
    ) {
        let name = (Arc::clone(&gateway.name), gateway.meta.clone());
        into.by_name.insert(name, Arc::clone(&gateway));
        into.all.insert(gateway.meta.clone(), gateway);
        (self.is_stale, changes.gateways) = (true, true);
    }

    pub(super) fn remove(
        &mut self,
        gateway: &Gateway,
        from: &mut Gateways,
        changes: &mut TrafficChanges,
    ) {
        from.by_name.remove(&(Arc::clone(&gateway.name), gateway.meta.clone()));
        from.all.remove(&gateway.meta);
        (self.is_stale, changes.gateways) = (true, true);
    }

    /// What is said of Gateways for the sake of others, and was not when this was last asked.
    pub(super) fn take_news(&mut self, gateways: &Gateways) -> Vec<(ObjectMeta, Reason)> {
        if !std::mem::take(&mut self.is_stale) {
            return Vec::new();
        }
        // Who is selected by one selector is selected by those that ask for fewer labels, too.
        let whose = |one: &Gateway| match gateways.scope {
            GatewayScope::AnyNamespace => Namespace::default(),
            GatewayScope::OwnNamespace => one.meta.namespace.clone(),
        };
        let selectors: BTreeSet<_> =
            gateways.all.values().map(|one| (whose(one), one.selector.clone())).collect();
        let mut now = BTreeMap::<ObjectMeta, Vec<Reason>>::new();
        for (namespace, selector) in selectors {
            let labels = selector.as_deref().cloned().unwrap_or_default();
            let (_, losses) = merged_with_losses(gateways.selecting(&namespace, &labels), Some);
            let is_of =
                |gateway: &Gateway| gateway.selector == selector && whose(gateway) == namespace;
            for loss in losses.iter().filter(|loss| is_of(loss.gateway)) {
                now.entry(loss.gateway.meta.clone()).or_default().push(loss.reason());
            }
        }
        let before = std::mem::replace(&mut self.given, now);
        let mut news = Vec::new();
        for (meta, reasons) in &self.given {
            let before = before.get(meta).map_or(&[][..], |before| before);
            news.extend(new_reasons(reasons, before).map(|one| (meta.clone(), one.clone())));
        }
        news
    }
}

impl ServerLoss<'_> {
    fn reason(&self) -> Reason {
        let (port, winner) = (self.server.port, self.winner.title());
        let server = self.gateway.path_of(self.server);
        let (path, text) = match self.host {
            None => (
                server,
                format!(
                    "port {port} is that of {winner}, which came first and speaks otherwise there"
                ),
            ),
            Some(ServerHost { host, .. }) => (
                format!("{server}.hosts"),
                format!(
                    "{host} at port {port} belongs to {winner}, which came first; its other hosts hold"
                ),
            ),
        };
        Reason::lost(&codes::GATEWAY_CONFLICT, path, text)
    }
}

#[cfg(test)]
mod tests;
