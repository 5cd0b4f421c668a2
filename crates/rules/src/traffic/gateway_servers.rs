//! Servers of Gateways that share a port of a gateway proxy, and the VirtualServices that they
//! serve (docs/reference/traffic.md, "Gateway").

use std::collections::{BTreeMap, BTreeSet, HashSet};
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

/// Number of hosts up to which comparing all pairs is faster than building an index.
const FEW_HOSTS: usize = 8;

/// All Gateways, the oldest first.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Gateways {
    all: OrdMap<ObjectMeta, Arc<Gateway>>,
    /// Gateways by the name that VirtualServices use. A Gateway for an Ingress may have the name of
    /// another one.
    by_name: OrdMap<(Arc<str>, ObjectMeta), Arc<Gateway>>,
    scope: GatewayScope,
}

/// Servers that share a port of a gateway proxy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GatewayPort<'a> {
    /// Port on which the gateway proxy listens.
    pub number: u16,
    /// Address of the listener; `None` for all addresses.
    pub bind: Option<IpAddr>,
    /// Servers for HTTP in plaintext.
    pub http: Vec<PlacedServer<'a>>,
    /// Server for TCP in plaintext. `None` if [`Self::http`] is not empty.
    pub tcp: Option<PlacedServer<'a>>,
    /// Servers for TLS, distinguished by server name (SNI).
    pub tls: Vec<PlacedServer<'a>>,
}

/// A server with the hosts that no older server has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlacedServer<'a> {
    /// Gateway of the server.
    pub gateway: &'a Arc<Gateway>,
    /// The server.
    pub server: &'a GatewayServer,
    /// Hosts that it serves.
    pub hosts: Vec<&'a ServerHost>,
}

/// A part of a server that an older server has already.
#[derive(Debug)]
struct ServerLoss<'a> {
    gateway: &'a Arc<Gateway>,
    server: &'a GatewayServer,
    /// The lost host; `None` if the whole server is lost.
    host: Option<&'a ServerHost>,
    winner: &'a Arc<Gateway>,
    /// Whether the winner redirects the host to HTTPS. Otherwise it serves the host.
    redirects: bool,
}

impl Gateways {
    /// Returns an empty set.
    pub(super) fn empty(scope: GatewayScope) -> Self {
        Self { all: OrdMap::default(), by_name: OrdMap::default(), scope }
    }

    /// Returns whether there are no Gateways.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Iterates over all Gateways, the oldest first.
    pub fn all(&self) -> impl Iterator<Item = &Arc<Gateway>> {
        self.all.values()
    }

    /// Iterates over the Gateways that apply to a gateway proxy with this namespace and labels, the
    /// oldest first.
    pub fn selecting<'a>(
        &'a self,
        namespace: &'a Namespace,
        labels: &'a Labels,
    ) -> impl Iterator<Item = &'a Arc<Gateway>> {
        self.all.values().filter(move |one| self.selects(one, namespace, labels))
    }

    /// Returns whether a Gateway applies to a gateway proxy with this namespace and labels. A
    /// Gateway for an Ingress applies in all namespaces.
    pub fn selects(&self, gateway: &Gateway, namespace: &Namespace, labels: &Labels) -> bool {
        let may = match self.scope {
            GatewayScope::AnyNamespace => true,
            GatewayScope::OwnNamespace => {
                gateway.ingress.is_some() || gateway.meta.namespace == *namespace
            }
        };
        may && gateway.selects(labels)
    }

    /// Iterates over the servers for TCP or forwarded TLS, of Gateways with a selector.
    pub fn tcp_servers(&self) -> impl Iterator<Item = (&Arc<Gateway>, &GatewayServer)> {
        use ServerProtocol::{Passthrough, Tcp, Tls};
        let takes_bytes =
            |server: &&GatewayServer| matches!(server.protocol, Tcp | Tls(_) | Passthrough);
        let gateways = self.all.values().filter(|one| one.selector.is_some());
        gateways.flat_map(move |gateway| {
            gateway.servers.iter().filter(takes_bytes).map(move |server| (gateway, server))
        })
    }

    /// Returns the Ingress from which a Gateway was generated.
    pub(super) fn source_ingress(&self, gateway: &ObjectMeta) -> Option<&ObjectMeta> {
        self.all.get(gateway)?.ingress.as_ref()
    }

    /// Returns the Gateway that was generated from an Ingress.
    pub fn generated_from<'a>(&'a self, meta: &'a ObjectMeta) -> Option<&'a Arc<Gateway>> {
        self.all.values().find(|one| one.ingress.as_ref() == Some(meta))
    }

    /// Returns the Gateway with this name, `NAMESPACE/NAME`.
    pub fn named(&self, name: &str) -> Option<&Arc<Gateway>> {
        let from = (Arc::from(name), ObjectMeta::before_all());
        let (_, gateway) = self.by_name.range(from..).next()?;
        Some(gateway).filter(|one| *one.name == *name)
    }

    /// Iterates over the ports of the servers of the Gateway with this name, `NAMESPACE/NAME`.
    pub fn server_ports(&self, name: &str) -> impl Iterator<Item = u16> {
        self.named(name).into_iter().flat_map(|one| one.servers.iter().map(|server| server.port))
    }

    /// Returns the parts of a Gateway that older Gateways have already.
    pub fn losses(&self, gateway: &Gateway) -> Vec<Reason> {
        let labels = gateway.selector.as_deref().cloned().unwrap_or_default();
        let selecting = self.selecting(&gateway.meta.namespace, &labels);
        let (_, losses) = merged_with_losses(selecting, Some);
        let own = losses.iter().filter(|loss| loss.gateway.meta == gateway.meta);
        own.map(ServerLoss::reason).collect()
    }

    /// Calls `emit` with each part that a Gateway loses at a proxy that has exactly the labels of its
    /// selector.
    fn for_each_loss<'a>(&'a self, mut emit: impl FnMut(&ServerLoss<'a>)) {
        // A proxy that one selector matches is also matched by selectors with fewer labels.
        let namespace_of = |gateway: &Gateway| match self.scope {
            GatewayScope::AnyNamespace => Namespace::default(),
            GatewayScope::OwnNamespace => gateway.meta.namespace.clone(),
        };
        let selectors: BTreeSet<_> =
            self.all.values().map(|one| (namespace_of(one), one.selector.clone())).collect();
        for (namespace, selector) in selectors {
            let labels = selector.as_deref().cloned().unwrap_or_default();
            let selecting = self.all.values().filter(|one| self.selects(one, &namespace, &labels));
            let (_, losses) = merged_with_losses(selecting, Some);
            let is_in_group = |gateway: &Gateway| {
                gateway.selector == selector && namespace_of(gateway) == namespace
            };
            losses.iter().filter(|loss| is_in_group(loss.gateway)).for_each(&mut emit);
        }
    }

    /// Returns the Gateways without the servers and hosts that they lose to others.
    #[must_use]
    pub fn without_losses(&self) -> Self {
        let (mut gateways, mut servers, mut hosts) =
            (BTreeMap::new(), HashSet::new(), HashSet::new());
        self.for_each_loss(|loss| {
            gateways.insert(&loss.gateway.meta, loss.gateway);
            match loss.host {
                None => _ = servers.insert(std::ptr::from_ref(loss.server)),
                Some(host) => _ = hosts.insert(std::ptr::from_ref(host)),
            }
        });
        let mut remaining = self.clone();
        for gateway in gateways.into_values() {
            let own = gateway.servers.iter();
            let own = own.filter(|server| !servers.contains(&std::ptr::from_ref(*server)));
            let own = own.map(|server| {
                let own = server.hosts.iter();
                let own = own.filter(|host| !hosts.contains(&std::ptr::from_ref(*host)));
                GatewayServer { hosts: own.cloned().collect(), ..server.clone() }
            });
            let own = own.filter(|server| !server.hosts.is_empty()).collect();
            let gateway = Arc::new(Gateway { servers: own, ..Gateway::clone(gateway) });
            let name = (Arc::clone(&gateway.name), gateway.meta.clone());
            remaining.by_name.insert(name, Arc::clone(&gateway));
            remaining.all.insert(gateway.meta.clone(), gateway);
        }
        remaining
    }

    /// Iterates over the Gateways that serve a host of a VirtualService, each with the ports of
    /// these servers.
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

    /// Returns the hosts of a VirtualService that no serving Gateway has, each with the index.
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
            let text = format!("no server of its Gateways has {host} for its namespace");
            Reason::lost(&codes::GATEWAY_UNBOUND, "spec.hosts", text)
        };
        lacking.map(reason).collect()
    }

    /// Returns the rules and matches of a VirtualService that apply at none of the servers that
    /// serve it. They are for another protocol, for a port without a server, or for gateways that
    /// the object does not list.
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

    /// Returns the reasons why gateways in the list of a VirtualService cannot serve it. If not all
    /// Gateways are known, an unknown one may exist and gives no reason.
    pub fn binding_reasons(&self, service: &VirtualService, has_all_gateways: bool) -> Vec<Reason> {
        let named = service.gateways.iter().enumerate().filter(|(_, name)| name.contains('/'));
        let reason = |(at, name): (usize, &Arc<str>)| {
            let serves = |gateway: &Gateway| {
                let all = gateway.servers.iter().flat_map(|server| &*server.hosts);
                !common_hosts(all, service).is_empty()
            };
            let text = match self.named(name) {
                None if !has_all_gateways => return None,
                None => {
                    format!("Gateway {name} does not exist: this object is not served through it")
                }
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
                        "this object is not exported to {namespace}, the namespace of Gateway \
                         {name}: gateways there do not serve it"
                    )
                }
            };
            let path = format!("spec.gateways[{at}]");
            Some(Reason::lost(&codes::GATEWAY_UNBOUND, path, text))
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

    /// Returns a description of the servers that its rules apply to.
    fn servers(self) -> &'static str {
        match self {
            Self::Http => "HTTP, or HTTPS that terminates there",
            Self::Tls => "TLS or HTTPS in mode PASSTHROUGH",
            Self::Tcp => "TCP, or TLS that terminates there",
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

/// Returns the reason why a rule or match of a VirtualService applies at none of the servers that
/// serve the object. `None` if it applies at one, if it may apply at sidecars, or if no server
/// serves the object.
fn unserved_rule(
    service: &VirtualService,
    servers: &[(&Arc<str>, &GatewayServer)],
    (list, path): (RuleList, &str),
    port: Option<u16>,
    source: &SourceMatch,
) -> Option<Reason> {
    let listed = &source.gateways;
    if !listed.is_empty() && !listed.iter().any(|name| service.gateways.contains(name)) {
        let text = format!(
            "{} is not in the gateways of the object: nothing matches it",
            listed.join(", ")
        );
        return Some(Reason::lost(&codes::GATEWAY_UNBOUND, format!("{path}.gateways"), text));
    }
    let is_listed = |name: &Arc<str>| listed.is_empty() || listed.contains(name);
    let may_be_for_sidecars = service.is_for_mesh() && is_listed(&Arc::from(MESH));
    if may_be_for_sidecars || servers.is_empty() {
        return None;
    }
    let matching: Vec<_> = servers.iter().filter(|(name, _)| is_listed(name)).collect();
    let ports: BTreeSet<u16> = matching.iter().map(|(_, server)| server.port).collect();
    let join_ports =
        |ports: &BTreeSet<u16>| ports.iter().map(u16::to_string).collect::<Vec<_>>().join(", ");
    if let Some(port) = port.filter(|port| !ports.contains(port)) {
        let text = format!(
            "no server of its Gateways for these hosts has port {port}; they have {}: nothing \
             matches it",
            join_ports(&ports)
        );
        return Some(Reason::lost(&codes::TRAFFIC_PORT, format!("{path}.port"), text));
    }
    let at_port = matching.iter().filter(|(_, server)| port.is_none_or(|one| one == server.port));
    let mut at_port = at_port.peekable();
    at_port.peek()?;
    if at_port.any(|(_, server)| list.is_for(&server.protocol)) {
        return None;
    }
    let text = format!(
        "rules in {} apply to servers for {}, but its Gateways have no such server for these \
         hosts: nothing matches it",
        list.field(),
        list.servers()
    );
    Some(Reason::lost(&codes::RULE_PROTOCOL, path, text))
}

impl GatewayServer {
    /// Returns whether it has a host of a VirtualService, for the namespace of that object.
    fn serves(&self, service: &VirtualService) -> bool {
        !self.hosts_of(service).is_empty()
    }

    /// Returns the hosts of a VirtualService that it serves. For overlapping patterns, the narrower
    /// one is returned.
    pub fn hosts_of<'s>(&'s self, service: &'s VirtualService) -> BTreeSet<&'s HostPattern> {
        common_hosts(self.hosts.iter(), service)
    }
}

impl ServerHost {
    /// Returns whether VirtualServices of this namespace are served under the host.
    pub fn is_for(&self, namespace: &Namespace) -> bool {
        self.namespace.as_ref().is_none_or(|own| own == namespace)
    }
}

/// Returns the hosts of a VirtualService that these server hosts serve. For overlapping patterns,
/// the narrower one is returned.
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
    /// Returns the hosts of a VirtualService that it serves.
    pub fn served_hosts<'s>(&'s self, service: &'s VirtualService) -> BTreeSet<&'s HostPattern> {
        common_hosts(self.hosts.iter().copied(), service)
    }
}

/// Returns the ports of a gateway proxy that these Gateways select. `target` maps a port of the
/// Service to the port of the gateway proxy, if it has any.
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
    // TLS hosts, each with the server that has it.
    type HostAt<'a> = (u16, Option<IpAddr>, &'a HostPattern);
    let mut tls_hosts = BTreeMap::<HostAt<'a>, (&'a Arc<Gateway>, &'a GatewayServer)>::new();
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
        // The oldest server decides the protocol of a port. Plaintext may be added next to TLS, but
        // not TLS next to plaintext.
        let plain = port.tcp.as_ref().or_else(|| port.http.first());
        let first = match server.protocol {
            ServerProtocol::Http => port.tcp.as_ref(),
            ServerProtocol::Tcp => plain,
            _ => plain.filter(|_| port.tls.is_empty()),
        };
        if let Some(first) = first {
            let winner = first.gateway;
            losses.push(ServerLoss { winner, gateway, server, host: None, redirects: false });
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
            match tls_hosts.entry((number, bind, &host.host)) {
                std::collections::btree_map::Entry::Occupied(winner) => {
                    let (winner, first) = *winner.get();
                    // In TLS, the same host for several namespaces is a single server name.
                    if std::ptr::eq(first, server) {
                        placed.hosts.push(host);
                        continue;
                    }
                    // Ingresses with the same host are served together. With the same certificate,
                    // none of them is lost.
                    if winner.ingress.is_some()
                        && gateway.ingress.is_some()
                        && first.protocol == server.protocol
                    {
                        continue;
                    }
                    let host = Some(host);
                    losses.push(ServerLoss { gateway, server, host, winner, redirects: false });
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
    let ports: Vec<_> = ports.into_values().collect();
    losses.extend(ports.iter().flat_map(redirected_hosts));
    (ports, losses)
}

/// Returns the hosts of HTTP servers whose requests another server of the port redirects to HTTPS.
/// A wildcard is not lost, because narrower hosts of VirtualServices are served under it.
fn redirected_hosts<'a>(port: &GatewayPort<'a>) -> Vec<ServerLoss<'a>> {
    let mut redirecting = BTreeMap::<&HostPattern, &'a Arc<Gateway>>::new();
    for placed in port.http.iter().filter(|placed| placed.server.https_redirect) {
        for host in &placed.hosts {
            redirecting.entry(&host.host).or_insert(placed.gateway);
        }
    }
    let mut losses = Vec::new();
    if redirecting.is_empty() {
        return losses;
    }
    for &PlacedServer { gateway, server, ref hosts } in &port.http {
        let hosts = hosts.iter().filter(|host| host.host.exact().is_some());
        for &host in hosts.filter(|_| !server.https_redirect) {
            if let Some(&winner) = redirecting.get(&host.host) {
                let host = Some(host);
                losses.push(ServerLoss { gateway, server, host, winner, redirects: true });
            }
        }
    }
    losses
}

/// The Gateways, which change one by one.
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

    /// Returns new reasons since the last call that are caused by other Gateways.
    pub(super) fn take_new_reasons(&mut self, gateways: &Gateways) -> Vec<(ObjectMeta, Reason)> {
        if !std::mem::take(&mut self.is_stale) {
            return Vec::new();
        }
        let mut now = BTreeMap::<ObjectMeta, Vec<Reason>>::new();
        gateways.for_each_loss(|loss| {
            now.entry(loss.gateway.meta.clone()).or_default().push(loss.reason());
        });
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
        let server = self.gateway.server_path(self.server);
        let (path, text) = match self.host {
            None => (
                server,
                format!(
                    "port {port} belongs to {winner}, which takes precedence; only servers of \
                     HTTP, or of TLS with different hosts, share a port"
                ),
            ),
            Some(ServerHost { host, .. }) if self.redirects => (
                format!("{server}.hosts"),
                format!(
                    "httpsRedirect of {winner} redirects all requests to {host} at port {port}; \
                     the other hosts apply"
                ),
            ),
            Some(ServerHost { host, .. }) => (
                format!("{server}.hosts"),
                format!(
                    "{host} at port {port} belongs to {winner}, which takes precedence; the other \
                     hosts apply"
                ),
            ),
        };
        Reason::lost(&codes::GATEWAY_CONFLICT, path, text)
    }
}

#[cfg(test)]
mod tests;
