//! Status of Gateways.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::Value;

use super::clients::Audience;
use super::{ConfigView, Finding};
use crate::standing::ObjectStanding;
use strait_base::codes;
use strait_mesh::push::ingress::own_port;
use strait_mesh::push::proxy::{east_west_port, served_in, served_of};
use strait_model::mesh_config::GatewayScope;
use strait_model::{ClusterId, Labels, Namespace, Protocol, Proxy, is_privileged, labels_match};
use strait_rules::traffic::Reason;
use strait_rules::traffic::gateway::{Gateway, GatewayServer, ServerProtocol, TlsClients};
use strait_rules::traffic::gateway_servers::Gateways;
use strait_rules::traffic::route::RequestMatch;
use strait_rules::traffic::selection::RuleSelector;
use strait_rules::traffic::virtual_service::VirtualService;

/// A credential that a router requested by name and cannot receive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CredentialFault {
    /// Node ID of the router.
    pub router: Arc<str>,
    /// Name of the credential, as the router uses it.
    pub name: Arc<str>,
    /// Whether the router keeps using an earlier version.
    pub has_old: bool,
    /// The reason.
    pub fact: String,
}

/// Prefix of a Secret of the router's own namespace, and suffix of a Secret with root certificates.
const OF_OWN: &str = "kubernetes://";
const OF_ROOTS: &str = "-cacert";

impl CredentialFault {
    /// Returns whether the credential is a server's certificate or the root certificates for its
    /// clients.
    fn is_of(&self, server: &GatewayServer) -> bool {
        let (ServerProtocol::Https(tls) | ServerProtocol::Tls(tls)) = &server.protocol else {
            return false;
        };
        let name = plain(&self.name);
        let is_of_roots = matches!(
            tls.clients,
            TlsClients::OptionalCertificate | TlsClients::RequiredCertificate
        );
        let secret = name.strip_suffix(OF_ROOTS).filter(|_| is_of_roots).unwrap_or(name);
        tls.credentials.iter().chain(&tls.roots).any(|one| [name, secret].contains(&plain(one)))
    }
}

/// Reports servers for connections from other networks at routers that are not gateways between
/// networks.
fn unused_passthrough(gateway: &Gateway) -> impl Iterator<Item = Reason> {
    let servers = gateway.servers.iter();
    let servers = servers.filter(|one| matches!(one.protocol, ServerProtocol::AutoPassthrough));
    servers.map(|server| {
        let text = "only routers between networks forward all connections: routers whose Service has the label \
                    topology.istio.io/network";
        let path = format!("{}.tls.mode", gateway.server_path(server));
        Reason::lost(&codes::GATEWAY_SERVER, path, text)
    })
}

/// Returns whether a Gateway has no server with a host, according to `reasons`.
pub(super) fn has_lost_all_servers(gateway: &Gateway, reasons: &[Reason]) -> bool {
    let lost =
        |path: &str| reasons.iter().filter(|reason| reason.is_lost && reason.path == path).count();
    let is_lost = |server: &GatewayServer| {
        let path = gateway.server_path(server);
        let hosts = server.hosts.len();
        lost(&path) > 0 || (hosts > 0 && lost(&format!("{path}.hosts")) >= hosts)
    };
    gateway.servers.iter().all(is_lost)
}

fn plain(name: &str) -> &str {
    name.strip_prefix(OF_OWN).unwrap_or(name)
}

impl ConfigView<'_> {
    /// Returns the status of a Gateway. It applies to the routers that it selects.
    pub(super) fn gateway(&self, gateway: &Gateway) -> Finding {
        let gateways = &self.context.traffic.gateways;
        let routers = self.clients.proxies().iter().filter(|proxy| {
            proxy.kind.is_gateway()
                && east_west_port(self.context, proxy).is_none()
                && gateways.selects(gateway, proxy.namespace(), self.context.labels_of(proxy))
        });
        let routers: Vec<&Proxy> = routers.copied().collect();
        let mut reasons = gateways.losses(gateway);
        reasons.extend(self.ports_without_a_way(gateway, &routers));
        if !routers.is_empty() {
            reasons.extend(unused_passthrough(gateway));
        }
        reasons.extend(self.credentials_of(gateway, &routers));
        let found = Finding { reasons, standing: None, proxies: routers.len() };
        let is_selector_checked =
            self.services_known && gateway.selector.is_some() && found.proxies == 0;
        let mut pods = self.context.workloads.values().flat_map(|all| all.iter());
        if is_selector_checked
            && !pods.any(|(pod, at)| gateways.selects(gateway, pod.namespace, &at.labels))
        {
            let of = match self.context.mesh.gateway_scope {
                GatewayScope::AnyNamespace => "",
                GatewayScope::OwnNamespace => {
                    " in its namespace, and --scope-gateway-to-namespace excludes other namespaces"
                }
            };
            let text = format!("no known workload has these labels{of}");
            return Finding::unused(&codes::SELECTOR_UNUSED, "spec.selector", text);
        }
        found
    }

    /// Returns whether all Gateways that a VirtualService names are known.
    pub(super) fn knows_gateways_of(&self, service: &VirtualService) -> bool {
        let gateways = &self.context.traffic.gateways;
        let mut named = service.gateways.iter().filter(|name| name.contains('/'));
        self.services_known || named.all(|name| gateways.named(name).is_some())
    }

    /// Returns the Gateways without the parts that they lose to others.
    pub(super) fn remaining_gateways(&self) -> &Gateways {
        self.remaining_gateways.get_or_init(|| self.context.traffic.gateways.without_losses())
    }

    /// Returns the reasons about Gateways in the list of a VirtualService that do not serve it.
    pub(super) fn gateway_reasons(&self, service: &VirtualService) -> Vec<Reason> {
        let gateways = &self.context.traffic.gateways;
        let mut reasons = gateways.binding_reasons(service, self.services_known);
        let of_losses = self.remaining_gateways().binding_reasons(service, self.services_known);
        let of_losses = of_losses.into_iter().map(|reason| {
            let text = "another Gateway owns the port or the host of its servers for this object: this \
                        object is not served through it";
            Reason::lost(&codes::GATEWAY_UNBOUND, reason.path, text)
        });
        for reason in self.idle_gateway_reasons(service).into_iter().chain(of_losses) {
            if !reasons.iter().any(|one| one.path == reason.path) {
                reasons.push(reason);
            }
        }
        reasons
    }

    /// Returns the reasons about Gateways of a VirtualService that have no effect themselves.
    fn idle_gateway_reasons(&self, service: &VirtualService) -> Vec<Reason> {
        let gateways = &self.context.traffic.gateways;
        let named = service.gateways.iter().enumerate();
        let idle = named
            .filter(|(_, name)| gateways.named(name).is_some_and(|gateway| self.is_idle(gateway)));
        let reason = |(at, name): (usize, &Arc<str>)| {
            let text =
                format!("Gateway {name} has no effect: this object is not served through it");
            Reason::lost(&codes::GATEWAY_UNBOUND, format!("spec.gateways[{at}]"), text)
        };
        idle.map(reason).collect()
    }

    /// Returns whether a Gateway has no effect: no workload has the labels of its selector, or it has
    /// lost all its servers. Cached, because many objects name the same Gateway.
    fn is_idle(&self, gateway: &Gateway) -> bool {
        if let Some(is_idle) = self.idle_gateways.borrow().get(&gateway.meta) {
            return *is_idle;
        }
        let found = self.gateway(gateway);
        let is_idle = found.standing == Some(ObjectStanding::Unused)
            || has_lost_all_servers(gateway, &found.reasons);
        self.idle_gateways.borrow_mut().insert(gateway.meta.clone(), is_idle);
        is_idle
    }

    /// Returns the number of connected routers that serve a VirtualService.
    pub(super) fn routers_of(&self, service: &VirtualService) -> usize {
        let gateways = &self.context.traffic.gateways;
        let serving: Vec<_> = self.remaining_gateways().serving(service).collect();
        let withheld = self.context.traffic.virtual_services.withheld();
        let is_given = |namespace: &Namespace| {
            service.export_to.visible_to(namespace)
                && !withheld.is_from(&service.meta, namespace)
                && !withheld.is_past_total(&service.meta.namespace, namespace)
        };
        let routers = self.clients.proxies().iter().filter(|proxy| {
            let labels = self.context.labels_of(proxy);
            let selects = |gateway| gateways.selects(gateway, proxy.namespace(), labels);
            proxy.kind.is_gateway()
                && is_given(proxy.namespace())
                && east_west_port(self.context, proxy).is_none()
                && serving.iter().any(|(gateway, _)| selects(gateway))
        });
        routers.count()
    }

    /// Returns the problems of a VirtualService that applies only to gateways: hosts that these do
    /// not serve, and destinations that the namespaces of their routers cannot reach.
    pub(super) fn at_gateways(&self, service: &VirtualService, object: &Value) -> Vec<Reason> {
        let gateways = self.remaining_gateways();
        let is_known = self.knows_gateways_of(service);
        let mut reasons = if is_known { gateways.unserved_hosts(service) } else { Vec::new() };
        let (mut clients, mut ports) = (Audience::new(), BTreeSet::new());
        for (gateway, at) in gateways.serving(service) {
            ports.extend(at);
            // A Gateway without a selector applies to routers in any namespace.
            let known = gateway.selector.as_ref().map(|selector| self.selected_by(selector));
            let mut known = known.unwrap_or_default();
            if self.context.mesh.gateway_scope == GatewayScope::OwnNamespace {
                known.retain(|namespace| *namespace == gateway.meta.namespace);
            }
            match known.is_empty() {
                true => _ = clients.insert(gateway.meta.namespace.clone()),
                false => clients.extend(known),
            }
        }
        clients.retain(|namespace| service.export_to.visible_to(namespace));
        for (at, rule) in service.http.iter().enumerate() {
            let path = format!("spec.http[{at}]");
            reasons.extend(self.destinations(rule, &path, &ports, &clients, object));
        }
        for (field, rules) in [("tls", &service.tls), ("tcp", &service.tcp)] {
            for (at, rule) in rules.iter().enumerate() {
                for to in &rule.destinations {
                    let path = format!("spec.{field}[{at}].route[{}].destination", to.index);
                    reasons.extend(self.destination(
                        to,
                        path,
                        &ports,
                        &clients,
                        "connections are closed",
                    ));
                }
            }
        }
        reasons
    }

    /// Returns the namespaces of workloads with these labels. Cached, because many Gateways select
    /// the same routers.
    pub(super) fn selected_by(&self, selector: &RuleSelector) -> Audience {
        if let Some(found) = self.selected.borrow().get(selector) {
            return found.clone();
        }
        let pods = self.context.workloads.values().flat_map(|all| all.iter());
        let selected = pods.filter(|(_, at)| labels_match(selector, &at.labels));
        let found: Audience = selected.map(|(pod, _)| pod.namespace.clone()).collect();
        self.selected.borrow_mut().insert(Arc::clone(selector), found.clone());
        found
    }

    /// Reports ports on which a router cannot listen, and ports that no Service of the routers has.
    /// If no Service routes to them, clients reach the routers in a different way.
    fn ports_without_a_way(&self, gateway: &Gateway, routers: &[&Proxy]) -> Vec<Reason> {
        let closed = self.closed_ports(gateway, routers);
        let served = self.ports_of_services(gateway, routers);
        let numbers: Vec<_> = served.iter().map(u16::to_string).collect();
        let reason = |server: &GatewayServer| {
            let port = server.port;
            let at = gateway.server_path(server);
            let path = if gateway.ingress.is_some() { at } else { format!("{at}.port.number") };
            if let Some((router, own)) = closed.get(&port) {
                let leading = if *own == port {
                    String::new()
                } else {
                    format!(", to which {port} is mapped")
                };
                let text = format!(
                    "{router} can't listen on {own}{leading}, because its node metadata contains UNPRIVILEGED_POD: it has no listener for this port"
                );
                return Some(Reason::lost(&codes::PORT_PRIVILEGED, path, text));
            }
            if served.is_empty() || served.contains(&port) {
                return None;
            }
            let listening = match is_privileged(port) {
                true => "routers that can listen below 1024 listen on this number",
                false => "the routers listen on this number",
            };
            let text = format!(
                "no Service of its routers has port {port}, they have {}: {listening}, and clients of the Services can't reach it",
                numbers.join(", ")
            );
            Some(Reason::warning(&codes::GATEWAY_PORT_UNSERVED, path, text))
        };
        let has_listener =
            |one: &&GatewayServer| !matches!(one.protocol, ServerProtocol::AutoPassthrough);
        gateway.servers.iter().filter(has_listener).filter_map(reason).collect()
    }

    /// Returns the ports of servers on which a router cannot listen, each with the node ID of an
    /// affected router and that router's own port.
    fn closed_ports<'p>(
        &self,
        gateway: &Gateway,
        routers: &[&'p Proxy],
    ) -> BTreeMap<u16, (&'p Arc<str>, u16)> {
        // All replicas listen on the same ports.
        let location = |proxy: &&'p Proxy| {
            ((&proxy.cluster, proxy.namespace(), self.context.labels_of(proxy)), *proxy)
        };
        let unprivileged = routers.iter().filter(|proxy| proxy.is_unprivileged);
        let unprivileged: BTreeMap<_, _> = unprivileged.map(location).collect();
        let mut closed = BTreeMap::new();
        for proxy in unprivileged.into_values() {
            let served = served_in(self.context, &proxy.cluster, proxy.namespace());
            for server in &gateway.servers {
                if let Err(own) = own_port(self.context, proxy, &served, server.port) {
                    closed.entry(server.port).or_insert((&proxy.id, own));
                }
            }
        }
        closed
    }

    /// Returns the ports of the Services that route to the Gateway's routers.
    fn ports_of_services(&self, gateway: &Gateway, routers: &[&Proxy]) -> BTreeSet<u16> {
        let gateways = &self.context.traffic.gateways;
        let selects =
            |namespace: &Namespace, labels: &Labels| gateways.selects(gateway, namespace, labels);
        let connected = routers
            .iter()
            .map(|proxy| (&proxy.cluster, proxy.namespace(), self.context.labels_of(proxy)));
        let mut known: Vec<(&ClusterId, &Namespace, &Labels)> = connected.collect();
        if known.is_empty() && gateway.selector.is_some() {
            let pods = self.context.workloads.iter();
            let mut pods = pods.flat_map(|(cluster, pods)| {
                pods.iter().map(move |(pod, at)| (cluster, pod.namespace, &*at.labels))
            });
            known.extend(pods.find(|(_, namespace, labels)| selects(namespace, labels)));
        }
        known.sort();
        known.dedup();
        let mut ports = BTreeSet::new();
        for (cluster, namespace, labels) in known {
            let services = self.context.services_of(namespace);
            let own = services.flat_map(|merged| served_of(merged, cluster, namespace));
            let leading =
                own.filter(|one| !one.selector.is_empty() && labels_match(&one.selector, labels));
            let all = leading.flat_map(|service| &service.ports);
            ports.extend(all.filter(|one| one.protocol != Protocol::Udp).map(|one| one.number));
        }
        ports
    }

    /// Reports credentials of the Gateway's servers that its routers cannot receive.
    fn credentials_of(&self, gateway: &Gateway, routers: &[&Proxy]) -> Vec<Reason> {
        let is_own = |fault: &&CredentialFault| routers.iter().any(|one| one.id == fault.router);
        let faults: Vec<_> = self.credentials.iter().filter(is_own).collect();
        let of_server = |server: &GatewayServer| {
            let fault = faults.iter().find(|fault| fault.is_of(server))?;
            let CredentialFault { router, name, has_old, fact } = fault;
            let field = if gateway.ingress.is_some() { "secretName" } else { "tls.credentialName" };
            let path = format!("{}.{field}", gateway.server_path(server));
            let code = &codes::GATEWAY_CREDENTIAL;
            Some(match has_old {
                true => {
                    let text =
                        format!("{router} keeps using the previous version of {name}: {fact}");
                    Reason::warning(code, path, text)
                }
                false => {
                    let text =
                        format!("{router} has no {name}, and closes all connections: {fact}");
                    Reason::lost(code, path, text)
                }
            })
        };
        gateway.servers.iter().filter_map(of_server).collect()
    }

    /// Reports conditions on claims at routers that verify no token.
    pub(super) fn claims_without_a_token_rule(&self, service: &VirtualService) -> Option<Reason> {
        let mut rules = service.http.iter().enumerate();
        let (rule, one) = rules.find_map(|(at, rule)| {
            let place = rule.matches.iter().position(RequestMatch::looks_at_claims)?;
            Some((at, place))
        })?;
        let serves = |proxy: &&Proxy| {
            let labels = self.context.labels_of(proxy);
            let gateways = &self.context.traffic.gateways;
            let mut gateways = gateways.selecting(proxy.namespace(), labels);
            proxy.kind.is_gateway()
                && east_west_port(self.context, proxy).is_none()
                && gateways.any(|gateway| service.gateways.contains(&gateway.name))
        };
        let mut routers = self.clients.proxies().iter().copied().filter(serves);
        let router =
            routers.find(|proxy| self.context.access_of(proxy).token_rules().is_empty())?;
        let text = format!("{} verifies no tokens, so its requests have no claims", router.id);
        let path = format!("spec.http[{rule}].match[{one}]");
        Some(Reason::warning(&codes::ACCESS_CLAIMS_UNKNOWN, path, text))
    }
}
