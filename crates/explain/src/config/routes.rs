//! Status of VirtualServices, HTTPRoutes, GRPCRoutes and ReferenceGrants: the owner of each host,
//! and the destinations of rules.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::Value;

use super::clients::{Audience, all_seen, audience, is_imported, of_clients, proxied, seen};
use super::covered_rules::ObjectCoverage;
use super::objects::HostPaths;
use super::{ConfigView, Finding};
use crate::remote_pods::rules_without_effect;
use crate::standing::ObjectStanding;
use strait_base::codes;
use strait_mesh::aggregate::MergedService;
use strait_model::mesh_config::HostSharing;
use strait_model::{ExportTo, GATEWAY_API, Namespace, Port, Protocol};
use strait_rules::traffic::gateway_route::{GatewayRoute, ReferenceGrant};
use strait_rules::traffic::route::{Destination, MESH};
use strait_rules::traffic::virtual_service::VirtualService;
use strait_rules::traffic::virtual_service_selection::RoutedService;
use strait_rules::traffic::{HostPattern, ObjectMeta, Reason, Selection, TrafficObject};

/// Port for requests to hosts that are not services.
const PLAIN_PORT: u16 = 80;

/// Returns whether a port carries HTTP requests.
fn carries_requests(port: &Port) -> bool {
    port.protocol.is_http() || port.protocol == Protocol::Auto
}

/// Returns a port as rules see it. A port without a declared protocol counts as two, one for
/// requests and one for connections, which may belong to different objects.
fn sides(port: Port) -> impl Iterator<Item = Port> {
    let other = Port { protocol: Protocol::Tcp, ..port.clone() };
    let is_both = port.protocol == Protocol::Auto;
    let first = if is_both { Port { protocol: Protocol::Http, ..port } } else { port };
    std::iter::once(first).chain(is_both.then_some(other))
}

/// Returns the ports, of the given ones, for which a rule applies: the ports that all its matches
/// name, or else all.
pub(super) fn matched_ports(
    named: impl Iterator<Item = Option<u16>>,
    ports: &BTreeSet<u16>,
) -> BTreeSet<u16> {
    let named: Option<BTreeSet<u16>> = named.collect();
    match named.filter(|named| !named.is_empty()) {
        Some(named) => ports.intersection(&named).copied().collect(),
        None => ports.clone(),
    }
}

/// The owners of a host, by groups of clients.
#[derive(Default)]
struct HostOwners<'a> {
    /// All groups that were checked.
    checked: Audience,
    /// Groups for which the host belongs to the object.
    own: Audience,
    /// Groups for which the host belongs to a different object.
    others: BTreeMap<Namespace, &'a Arc<RoutedService>>,
    /// Whether the host is a service.
    is_service: bool,
    /// The HTTP ports of the host's services, and the other ports. A port without a declared
    /// protocol is in both.
    requests: BTreeSet<u16>,
    connections: Vec<Port>,
}

impl HostOwners<'_> {
    /// Returns the numbers of all ports.
    fn ports(&self) -> BTreeSet<u16> {
        let connections = self.connections.iter().map(|port| port.number);
        self.requests.iter().copied().chain(connections).collect()
    }

    /// Returns the ports of a Service that a route of this kind can use, and their description.
    fn carried(&self, route: &GatewayRoute) -> (BTreeSet<u16>, &'static str) {
        let number = |port: &Port| port.number;
        let ports = self.connections.iter();
        match route.kind {
            "TCPRoute" => (ports.map(number).collect(), "for connections without HTTP"),
            "TLSRoute" => {
                let of_tls = ports.filter(|port| port.protocol.begins_tls());
                (of_tls.map(number).collect(), "of TLS or HTTPS")
            }
            _ => (self.requests.clone(), "for requests"),
        }
    }
}

impl ConfigView<'_> {
    pub(super) fn virtual_service(&self, service: &VirtualService, object: &Value) -> Finding {
        if service.hosts.is_empty() {
            let mut found = self.delegate(service, object);
            found.reasons.extend(self.absent_senders(service));
            return found;
        }
        let mut found = Finding::default();
        found.reasons.extend(self.absent_senders(service));
        found.reasons.extend(self.withheld(&service.meta, &service.export_to));
        let gateways: Vec<_> = service.gateways.iter().filter(|name| ***name != *MESH).collect();
        let withheld = found.reasons.len();
        found.reasons.extend(self.gateway_reasons(service));
        let is_bound = found.reasons.len() - withheld < gateways.len();
        if self.knows_gateways_of(service) {
            found.reasons.extend(self.remaining_gateways().rules_without_a_server(service));
        }
        found.reasons.extend(self.claims_without_a_token_rule(service));
        let services = &self.context.traffic.virtual_services;
        // A just parsed object may not be active yet.
        let routed = services.routed(service);
        found.reasons.extend(routed.into_iter().flat_map(|routed| routed.reasons.iter().cloned()));
        let covered = self.covered_rules().of(&service.origin).filter(|_| is_bound);
        let covered_reasons = covered.map(|one| one.reasons(service.is_for_mesh()));
        found.reasons.extend(covered_reasons.into_iter().flatten());
        let is_at_gateways = is_bound && !covered.is_some_and(ObjectCoverage::is_whole);
        if !service.is_for_mesh() {
            if !is_bound {
                found.standing = Some(ObjectStanding::Unused);
            } else if !is_at_gateways {
                found.standing = Some(ObjectStanding::Shadowed);
            }
            found.proxies = if is_at_gateways { self.routers_of(service) } else { 0 };
            found.reasons.extend(self.at_gateways(service, object));
            return found;
        }
        let Some(routed) = routed else { return found };
        if audience(&service.export_to, std::iter::empty()).is_empty() {
            let text = "no proxy receives it";
            return Finding::unused(&codes::EXPORTED_TO_NOBODY, "spec.exportTo", text);
        }
        let mut clients = Audience::new();
        let (mut hosts, mut taken) = (0, 0);
        let mut protocols = ProtocolsSeen::default();
        let domain = &self.context.settings.domain;
        let paths = HostPaths::of(object, &service.meta.namespace, domain);
        for host in service.mesh_hosts() {
            let owners = self.owners(routed, host);
            protocols.see(host, &owners);
            hosts += 1;
            taken += usize::from(owners.own.is_empty() && !owners.others.is_empty());
            let path = paths.path(host);
            found.reasons.extend(self.foreign_host(service, host, &owners.own, &path));
            found.reasons.extend(rules_without_effect(self.context, host, &path));
            found.reasons.extend(self.host_reason(routed, host, &owners, path));
            clients.extend(owners.own);
        }
        found.reasons.extend(protocols.reasons(service));
        // Its rules may still apply at gateways.
        if hosts > 0 && hosts == taken && !is_at_gateways {
            found.standing = Some(ObjectStanding::Shadowed);
            return found;
        }
        if self.is_denied(service, &found.reasons) {
            found.standing = Some(ObjectStanding::Unused);
            return found;
        }
        if self.services_known || (!protocols.is_unknown && self.knows_gateways_of(service)) {
            let ports = &protocols.requests | &protocols.connections;
            found.reasons.extend(self.unknown_ports(service, ports));
        }
        let ports = &protocols.requests;
        for (at, rule) in service.http.iter().enumerate() {
            let path = format!("spec.http[{at}]");
            found.reasons.extend(self.destinations(rule, &path, ports, &clients, object));
        }
        let (hosts, lists): (Vec<_>, _) = (service.mesh_hosts().collect(), ["http", "match"]);
        found.reasons.extend(self.rules_at_libraries(routed, &hosts, &service.http, lists));
        let lists =
            [("tls", &service.tls, &protocols.tls), ("tcp", &service.tcp, &protocols.connections)];
        for (field, rules, ports) in lists {
            for (at, rule) in rules.iter().enumerate() {
                let ports = matched_ports(rule.matches.iter().map(|one| one.port), ports);
                for to in &rule.destinations {
                    let path = format!("spec.{field}[{at}].route[{}].destination", to.index);
                    found.reasons.extend(self.destination(
                        to,
                        path,
                        &ports,
                        &clients,
                        "connections are closed",
                    ));
                }
            }
        }
        found.proxies = self.clients.count(|namespace, selection| {
            let mut hosts = service.mesh_hosts();
            hosts.any(|host| self.has(routed, host, namespace, selection))
        });
        if is_at_gateways {
            found.proxies += self.routers_of(service);
        }
        found
    }

    /// Returns the reason why an object does not apply to some of the proxies to which it is
    /// exported.
    pub(super) fn withheld(&self, meta: &ObjectMeta, export_to: &ExportTo) -> Option<Reason> {
        let withheld = self.context.traffic.virtual_services.withheld();
        let mebibytes = |bytes: usize| format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20));
        let namespace = &meta.namespace;
        if let Some(bytes) = withheld.objects.get(meta) {
            let text = format!(
                "the objects of {namespace} add too much to its own proxies: this object of {} applies to no proxy",
                mebibytes(*bytes)
            );
            return Some(Reason::lost(&codes::ROUTES_SURPLUS, "spec", text));
        }
        let is_exported = match export_to {
            ExportTo::Public => true,
            ExportTo::Namespaces(names) => names.iter().any(|name| name != namespace),
        };
        let limits = self.context.policy.traffic().foreign_bytes;
        let text = if let Some(bytes) = withheld.over_namespace.get(namespace) {
            format!(
                "the objects of {namespace} add {} to each proxy of other namespaces, and one namespace may add {}: they apply \
                 to proxies of {namespace} only",
                mebibytes(*bytes),
                mebibytes(limits.namespace)
            )
        } else {
            format!(
                "the objects of {namespace} add {} to each proxy of other namespaces, which exceeds the {} of all namespaces: \
                 they apply to proxies of {namespace} only, and to proxies whose Sidecar names {namespace}",
                mebibytes(*withheld.over_total.get(namespace)?),
                mebibytes(limits.total)
            )
        };
        is_exported.then(|| Reason::lost(&codes::FOREIGN_BYTES, "spec.exportTo", text))
    }

    /// Returns the reason about the ownership of a host.
    fn host_reason(
        &self,
        routed: &RoutedService,
        host: &HostPattern,
        owners: &HostOwners<'_>,
        path: String,
    ) -> Option<Reason> {
        if let Some(other) = owners.others.values().next() {
            let losing: Audience = owners.others.keys().cloned().collect();
            let winner = format!(
                "{} {}/{}",
                other.service.origin.kind.in_objects(),
                other.service.origin.namespace,
                other.service.origin.name
            );
            let why = if other.service.meta < routed.service.meta {
                "which is older"
            } else {
                "which is exported to fewer namespaces"
            };
            if owners.own.is_empty() {
                let text = format!(
                    "{host} belongs to {winner}, {why}: no rule of this object applies to it"
                );
                return Some(Reason::lost(&codes::HOST_OF_ANOTHER, path, text));
            }
            let losers = of_clients(&losing, &owners.checked);
            let text = format!("{host} belongs to {winner}, {why},{losers}");
            return Some(Reason::warning(&codes::HOST_OF_ANOTHER, path, text));
        }
        if owners.is_service || !self.is_none(host) {
            return None;
        }
        if routed.http.rules.is_empty() {
            let text = format!("no service has the name {host}: there are no connections to it");
            return Some(Reason::lost(&codes::HOST_UNKNOWN, path, text));
        }
        let mut wildcards = self.context.wildcard_services();
        let holds = |service: &Arc<MergedService>| {
            HostPattern::for_service(service.hostname()).contains(host)
                && service.ports().any(carries_requests)
        };
        if wildcards.any(holds) {
            return None;
        }
        let text = format!(
            "no service has the name {host}: the rules apply to requests to port {PLAIN_PORT} with this host"
        );
        Some(Reason::warning(&codes::HOST_UNKNOWN, path, text))
    }

    /// Returns the owners of a host of an object.
    fn owners(&self, routed: &RoutedService, host: &HostPattern) -> HostOwners<'_> {
        let services = &self.context.traffic.virtual_services;
        let mut special = services.special_namespaces_for(host);
        special.insert(routed.service.meta.namespace.clone());
        if let Some(host) = host.exact() {
            special.extend(self.special_of(host.as_str()));
        }
        let mut found = HostOwners::default();
        for namespace in audience(&routed.service.export_to, special.into_iter()) {
            self.look(routed, host, namespace, &mut found);
        }
        // If a Sidecar excludes the first owner, the next one owns the host there.
        let scoped = self.context.traffic.sidecars.namespaces();
        for namespace in scoped.filter(|one| routed.service.export_to.visible_to(one)) {
            if !found.own.is_empty() || found.others.is_empty() {
                break;
            }
            self.look(routed, host, namespace.clone(), &mut found);
        }
        // Labels of clients distinguish proxies of one namespace.
        if found.own.is_empty()
            && found.others.is_empty()
            && routed.sources().any(|source| source.labels.is_some())
        {
            found.own.clone_from(&found.checked);
        }
        found.others.retain(|namespace, _| !found.own.contains(namespace));
        found
    }

    /// Adds the owner of a host for clients of a namespace.
    fn look<'a>(
        &'a self,
        routed: &RoutedService,
        host: &HostPattern,
        namespace: Namespace,
        found: &mut HostOwners<'a>,
    ) {
        let selection = Selection::default();
        let (seen, is_hidden) = self.ports_of(host, &namespace, &selection);
        found.is_service |= !seen.is_empty() || is_hidden;
        if seen.is_empty() && is_hidden {
            // No client of the namespace can call the host.
            return;
        }
        found.checked.insert(namespace.clone());
        let requests = seen.iter().filter(|port| carries_requests(port));
        found.requests.extend(requests.map(|port| port.number));
        found.connections.extend(seen.iter().filter(|port| !port.protocol.is_http()).cloned());
        let rest = (!found.is_service).then(plain_port);
        for port in seen.into_iter().chain(rest).flat_map(sides) {
            let owners = self.owners_of_port(host, &namespace, &selection, &port);
            if owners.iter().any(|owner| owner.service.meta == routed.service.meta) {
                found.own.insert(namespace.clone());
            } else if let Some(first) = owners.first() {
                found.others.entry(namespace.clone()).or_insert(first);
            }
        }
    }

    /// Returns the ports of the services that match a pattern for clients of a namespace, and
    /// whether matching services are hidden from them.
    pub(super) fn ports_of(
        &self,
        host: &HostPattern,
        namespace: &Namespace,
        selection: &Selection,
    ) -> (Vec<Port>, bool) {
        let mut all = all_seen(self.context, host, namespace);
        all.retain(|service| is_imported(self.context, service, namespace, selection));
        let is_hidden = all.is_empty()
            && host
                .exact()
                .is_some_and(|host| self.context.service(host.as_str(), namespace).is_some());
        (all.into_iter().flat_map(|one| proxied(one).cloned()).collect(), is_hidden)
    }

    /// Returns the objects that own requests or connections to a port of a host, as in generated
    /// routes and listeners: one object, unless several share the host.
    pub(super) fn owners_of_port(
        &self,
        host: &HostPattern,
        namespace: &Namespace,
        selection: &Selection,
        port: &Port,
    ) -> Vec<&Arc<RoutedService>> {
        let traffic = &self.context.traffic;
        let is_service =
            host.exact().is_some_and(|host| seen(self.context, host.as_str(), namespace).is_some());
        let leads = |routed: &&Arc<RoutedService>| {
            if carries_requests(port) {
                let rules = routed.http.chosen(MESH, namespace, selection, port.number);
                if !rules.is_empty() {
                    return true;
                }
            }
            !port.protocol.is_http() && routed.routes_connections(port, namespace, selection)
        };
        let mut all: Vec<_> = if is_service {
            traffic.routed_for_host(host, namespace, selection).filter(leads).collect()
        } else {
            traffic.routed_for_pattern(host, namespace, selection).filter(leads).collect()
        };
        if self.context.mesh.host_sharing == HostSharing::FirstAlone || !carries_requests(port) {
            all.truncate(1);
        }
        let first = all.first().copied();
        all.retain(|one| {
            first.is_some_and(|first| Arc::ptr_eq(first, one) || first.shares_host(one, host))
        });
        all
    }

    /// Returns whether such proxies receive any rule of an object for a host.
    fn has(
        &self,
        routed: &RoutedService,
        host: &HostPattern,
        namespace: &Namespace,
        selection: &Selection,
    ) -> bool {
        let (mut ports, is_hidden) = self.ports_of(host, namespace, selection);
        if ports.is_empty() && is_hidden {
            return false;
        }
        if ports.is_empty() {
            ports.push(plain_port());
        }
        ports.into_iter().flat_map(sides).any(|port| {
            let owners = self.owners_of_port(host, namespace, selection, &port);
            owners.iter().any(|owner| owner.service.meta == routed.service.meta)
        })
    }

    /// Returns the namespaces whose clients may receive a different configuration for a service.
    pub(super) fn special_of(&self, host: &str) -> Vec<Namespace> {
        let rules = self.context.traffic.destination_rules.of(host);
        let mut special: Vec<_> = rules.namespaces().cloned().collect();
        special
            .extend(self.context.private.get(host).into_iter().flat_map(|all| all.keys()).cloned());
        if let Some(service) = self.context.services.get(host)
            && let ExportTo::Namespaces(named) = &service.primary.export_to
        {
            special.extend(named.iter().cloned());
        }
        special
    }

    /// Returns the status of a VirtualService to which others delegate.
    fn delegate(&self, service: &VirtualService, object: &Value) -> Finding {
        let key = strait_model::WorkloadKey {
            namespace: service.meta.namespace.clone(),
            name: Arc::clone(&service.meta.name),
        };
        let is_root = |root: &&Arc<VirtualService>| root.delegates.values().any(|one| *one == key);
        let is_hidden = |root: &&Arc<VirtualService>| {
            root.meta.namespace != service.meta.namespace
                && !service.export_to.visible_to(&root.meta.namespace)
        };
        let all = self.reports.traffic.values().filter_map(|report| match report.good() {
            Some((_, TrafficObject::VirtualService(service))) => Some(service),
            _ => None,
        });
        let (hidden, roots): (Vec<_>, Vec<_>) = all.filter(is_root).partition(is_hidden);
        if roots.is_empty() {
            let text = match hidden.first() {
                Some(root) => format!(
                    "VirtualService {} delegates to it, but it is not exported to that namespace",
                    root.meta
                ),
                None => "no rule delegates to it, and it names no host".to_owned(),
            };
            return Finding::unused(&codes::DELEGATE_UNUSED, "spec.hosts", text);
        }
        let services = &self.context.traffic.virtual_services;
        let (mut clients, mut ports) = (Audience::new(), BTreeSet::new());
        let routed: Vec<_> = roots.iter().filter_map(|root| services.routed(root)).collect();
        for root in &routed {
            for host in root.service.mesh_hosts() {
                let owners = self.owners(root, host);
                clients.extend(owners.own);
                ports.extend(owners.requests);
            }
        }
        let mut found = Finding::default();
        for (at, its) in service.http.iter().enumerate() {
            let path = format!("spec.http[{at}]");
            found.reasons.extend(self.destinations(its, &path, &ports, &clients, object));
        }
        found.proxies = self.clients.count(|namespace, selection| {
            routed.iter().any(|root| {
                let mut hosts = root.service.mesh_hosts();
                hosts.any(|host| self.has(root, host, namespace, selection))
            })
        });
        found
    }

    pub(super) fn gateway_route(&self, route: &GatewayRoute) -> Finding {
        if route.parents.is_empty() {
            let text = "no parent is a Service or a ServiceImport to which Strait can attach the route; it supports no other parents, such as Gateways";
            return Finding::unused(&codes::KIND_UNREAD, "spec.parentRefs", text);
        }
        let mut found = Finding::default();
        let (mut clients, mut ports) = (Audience::new(), BTreeSet::new());
        let (mut known, mut taken) = (0, 0);
        let mut covered = ObjectCoverage::default();
        for parent in &route.parents {
            let path = format!("spec.parentRefs[{}]", parent.index);
            let host = HostPattern::for_service(&parent.host);
            let Some(routed) = self.joined(route, &host) else { continue };
            let withheld = self.withheld(&routed.service.meta, &routed.service.export_to);
            found.reasons.extend(withheld.filter(|reason| !found.reasons.contains(reason)));
            if let Some(other) = self.gateway_routes().find(|one| route.yields_to(parent, one)) {
                let text = format!(
                    "{} belongs to {} {} there: if both apply to a port, the GRPCRoute is used",
                    parent.host, other.kind, other.meta
                );
                found.reasons.push(Reason::lost(&codes::HOST_OF_ANOTHER, path, text));
                (known, taken) = (known + 1, taken + 1);
                continue;
            }
            let owners = self.owners(routed, &host);
            let (carried, what) = owners.carried(route);
            let has_port = parent.port.is_none_or(|port| carried.contains(&port));
            if owners.others.is_empty()
                && (has_port || !owners.is_service)
                && let Some(own) =
                    self.covered_routes(routed, &host, owners.ports()).of(&route.origin())
            {
                covered.merge(own);
            }
            if !owners.is_service {
                if self.is_none(&parent.host) {
                    let text = format!("there is no Service {}", parent.host);
                    found.reasons.push(Reason::lost(&codes::HOST_UNKNOWN, path, text));
                }
            } else if let (false, Some(port)) = (has_port, parent.port) {
                let text = format!("{} has no port {port} {what}", parent.host);
                found.reasons.push(Reason::lost(&codes::DESTINATION_PORT, path, text));
            } else if carried.is_empty() {
                let text = format!("{} has no port {what}", parent.host);
                found.reasons.push(Reason::lost(&codes::RULE_PROTOCOL, path, text));
            } else {
                known += 1;
                taken += usize::from(owners.own.is_empty() && !owners.others.is_empty());
                found.reasons.extend(rules_without_effect(self.context, &host, &path));
                found.reasons.extend(self.host_reason(routed, &host, &owners, path));
            }
            clients.extend(owners.own);
            ports.extend(carried);
        }
        found.reasons.extend(covered.reasons(false));
        if known == 0 && self.services_known {
            found.standing = Some(ObjectStanding::Unused);
        } else if known > 0 && known == taken || covered.is_whole() {
            found.standing = Some(ObjectStanding::Shadowed);
        }
        if clients.is_empty() {
            // Without clients, destinations are checked for the route's own namespace.
            clients.insert(route.meta.namespace.clone());
        }
        let domain = &self.context.settings.domain;
        let mut led: Vec<(&Destination, String)> = Vec::new();
        for (at, rule) in route.rules.iter().enumerate() {
            let path = format!("spec.rules[{at}]");
            let mirrors = rule.mirrors.iter().flatten();
            let mirrors = mirrors.map(|mirror| (&mirror.destination, format!("{path}.filters")));
            let backends = rule
                .destinations
                .iter()
                .map(|to| (to, format!("{path}.backendRefs[{}]", to.index)));
            led.extend(backends.chain(mirrors));
        }
        for rule in &route.connections {
            let path = format!("spec.rules[{}]", rule.place.index);
            let backends = rule.destinations.iter();
            led.extend(backends.map(|to| (to, format!("{path}.backendRefs[{}]", to.index))));
        }
        let answer = if route.connections.is_empty() {
            "requests are answered with 500"
        } else {
            "connections are closed"
        };
        for (to, path) in led.into_iter().filter(|(to, _)| !to.invalid) {
            let is_let = |parent| route.may_lead_to(parent, &to.host, domain, self.grants());
            if !route.parents.iter().all(is_let) {
                let text = format!(
                    "no ReferenceGrant allows {}s of namespace {} to route to {}: for its share, {answer}",
                    route.kind, route.meta.namespace, to.host
                );
                found.reasons.push(Reason::lost(&codes::GRANT_MISSING, path, text));
                continue;
            }
            found.reasons.extend(self.destination(to, path, &ports, &clients, answer));
        }
        if found.standing.is_some() {
            return found;
        }
        for parent in &route.parents {
            let host = HostPattern::for_service(&parent.host);
            if let Some(routed) = self.joined(route, &host) {
                let lists = ["rules", "matches"];
                let new_reasons = self.rules_at_libraries(routed, &[&host], &route.rules, lists);
                let new = new_reasons.into_iter().filter(|one| !found.reasons.contains(one));
                let new: Vec<_> = new.collect();
                found.reasons.extend(new);
            }
        }
        found.proxies = self.clients.count(|namespace, selection| {
            route.parents.iter().any(|parent| {
                let host = HostPattern::for_service(&parent.host);
                let routed = self.joined(route, &host);
                routed.is_some_and(|routed| self.has(routed, &host, namespace, selection))
            })
        });
        found
    }

    /// Returns the routes of one Service that this route was joined with.
    pub(super) fn joined(
        &self,
        route: &GatewayRoute,
        host: &HostPattern,
    ) -> Option<&Arc<RoutedService>> {
        let services = &self.context.traffic.virtual_services;
        let mut all = services.for_pattern(host, &route.meta.namespace);
        all.find(|one| {
            one.service.origin.kind.api().starts_with(GATEWAY_API)
                && one.service.meta.namespace == route.meta.namespace
        })
    }

    fn gateway_routes(&self) -> impl Iterator<Item = &Arc<GatewayRoute>> {
        self.reports.traffic.values().filter_map(|report| match report.good() {
            Some((_, TrafficObject::GatewayRoute(route))) => Some(route),
            _ => None,
        })
    }

    fn grants(&self) -> impl Iterator<Item = &ReferenceGrant> {
        self.reports.traffic.values().filter_map(|report| match report.good() {
            Some((_, TrafficObject::ReferenceGrant(grant))) => Some(&**grant),
            _ => None,
        })
    }

    pub(super) fn reference_grant(&self, grant: &ReferenceGrant) -> Finding {
        let domain = &self.context.settings.domain;
        let routes = self.gateway_routes();
        let needs = |route: &&Arc<GatewayRoute>| {
            route.destinations().any(|to| {
                let needs = |parent| {
                    !route.may_lead_to(parent, &to.host, domain, std::iter::empty())
                        && route.may_lead_to(parent, &to.host, domain, std::iter::once(grant))
                };
                !to.invalid && route.parents.iter().any(needs)
            })
        };
        let needing: Vec<_> = routes.filter(needs).collect();
        if needing.is_empty() {
            let text = "no known route uses it";
            return Finding::unused(&codes::GRANT_UNUSED, "spec", text);
        }
        let proxies = self.clients.count(|namespace, selection| {
            needing.iter().any(|route| {
                route.parents.iter().any(|parent| {
                    let host = HostPattern::for_service(&parent.host);
                    let routed = self.joined(route, &host);
                    routed.is_some_and(|routed| self.has(routed, &host, namespace, selection))
                })
            })
        });
        Finding { proxies, ..Finding::default() }
    }
}

fn plain_port() -> Port {
    Port {
        name: Arc::default(),
        number: PLAIN_PORT,
        protocol: Protocol::Http,
        target: strait_model::TargetPort::Number(PLAIN_PORT),
    }
}

/// Protocols of the ports of an object's hosts.
#[derive(Default)]
struct ProtocolsSeen {
    requests: BTreeSet<u16>,
    tls: BTreeSet<u16>,
    connections: BTreeSet<u16>,
    /// Whether some host is not a known service.
    is_unknown: bool,
    /// One host with its ports and their protocols.
    example: Option<String>,
}

impl ProtocolsSeen {
    fn see(&mut self, host: &HostPattern, owners: &HostOwners<'_>) {
        self.requests.extend(&owners.requests);
        let of_tls = owners.connections.iter().filter(|port| port.protocol.begins_tls());
        self.tls.extend(of_tls.map(|port| port.number));
        self.connections.extend(owners.connections.iter().map(|port| port.number));
        self.is_unknown |= !owners.is_service;
        if !owners.is_service {
            self.requests.insert(PLAIN_PORT);
        }
        let ports = owners
            .connections
            .iter()
            .map(|port| format!("{} {}", port.number, port.protocol.as_str()));
        let requests = owners.requests.iter().filter(|port| !self.connections.contains(port));
        let requests = requests.map(|port| format!("{port} HTTP"));
        let ports: BTreeSet<_> = ports.chain(requests).collect();
        let ports = ports.into_iter().collect::<Vec<_>>().join(", ");
        self.example.get_or_insert(format!("{host} has {ports}"));
    }

    fn reasons(&self, service: &VirtualService) -> Vec<Reason> {
        let lists = [
            ("http", !service.http.is_empty() && self.requests.is_empty()),
            ("tls", !service.tls.is_empty() && self.tls.is_empty()),
            ("tcp", !service.tcp.is_empty() && self.connections.is_empty()),
        ];
        let lost = lists.into_iter().filter(|(_, is_lost)| *is_lost && !self.is_unknown);
        let of = |(list, _)| {
            let example = self.example.as_deref().unwrap_or_default();
            let text = format!("no port of the hosts has the protocol of these rules: {example}");
            Reason::lost(&codes::RULE_PROTOCOL, format!("spec.{list}"), text)
        };
        lost.map(of).collect()
    }
}
