//! Merges the Gateway API routes of one Service (Gateway API, "HTTPRouteRule", GEP-1426).
//!
//! Routes in the Service's own namespace apply to all clients. Routes in another namespace apply to
//! clients in that namespace and replace the others for them. Routes of one kind and namespace are
//! merged: the most specific match takes precedence, then the oldest route. If a port has
//! HTTPRoutes and GRPCRoutes, only the GRPCRoutes apply; TCPRoutes and TLSRoutes are for ports with
//! other protocols. The result is equivalent to a VirtualService that is as old as the oldest
//! route. If a host has both, the older one applies to the whole host.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::addressed::AddressedServices;
use super::gateway_route::{GatewayRoute, ParentService, ReferenceGrant, specificity};
use super::hosts::HostPattern;
use super::object::ObjectMeta;
use super::route::{
    ConnectionMatch, Destination, FixedResponse, HttpRule, MESH, RareTerms, RequestMatch,
    RouteKind, RouteOrigin, RulePlace, RuleTerms, TcpRule,
};
use super::virtual_service::{RareRules, VirtualService};
use strait_model::{CLUSTERSET, ExportTo, Hostname, Namespace};

/// The routes and grants, which change one by one, and the merged result.
#[derive(Debug, Default)]
pub(super) struct GatewayRouteObjects {
    by_parent: BTreeMap<JoinKey, BTreeMap<(ObjectMeta, &'static str), Arc<GatewayRoute>>>,
    grants: BTreeMap<ObjectMeta, Arc<ReferenceGrant>>,
    joined: BTreeMap<JoinKey, Arc<VirtualService>>,
    /// Services whose merged result may have changed.
    touched: BTreeSet<JoinKey>,
}

/// A Service, and the namespace of the clients if it is not the Service's own.
type JoinKey = (Hostname, Option<Namespace>);

/// The active merged object that is replaced, and its replacement.
pub(super) type Exchange = (Option<Arc<VirtualService>>, Option<Arc<VirtualService>>);

impl GatewayRouteObjects {
    pub(super) fn insert(&mut self, route: &Arc<GatewayRoute>) {
        for key in keys(route) {
            let all = self.by_parent.entry(key.clone()).or_default();
            all.insert((route.meta.clone(), route.kind), Arc::clone(route));
            self.touched.insert(key);
        }
    }

    pub(super) fn remove(&mut self, route: &GatewayRoute) {
        for key in keys(route) {
            if let Some(all) = self.by_parent.get_mut(&key) {
                all.remove(&(route.meta.clone(), route.kind));
                if all.is_empty() {
                    self.by_parent.remove(&key);
                }
            }
            self.touched.insert(key);
        }
    }

    pub(super) fn insert_grant(&mut self, grant: &Arc<ReferenceGrant>) {
        self.grants.insert(grant.meta.clone(), Arc::clone(grant));
        self.touched.extend(self.by_parent.keys().cloned());
    }

    pub(super) fn remove_grant(&mut self, grant: &ReferenceGrant) {
        self.grants.remove(&grant.meta);
        self.touched.extend(self.by_parent.keys().cloned());
    }

    /// Returns the replacements since the last call.
    pub(super) fn take_exchanges(&mut self, domain: &str) -> Vec<Exchange> {
        let mut exchanges = Vec::new();
        for key in std::mem::take(&mut self.touched) {
            let now = self.by_parent.get(&key).map(|all| Arc::new(self.joined(&key, all, domain)));
            let before = match &now {
                Some(now) => self.joined.insert(key, Arc::clone(now)),
                None => self.joined.remove(&key),
            };
            if before != now {
                exchanges.push((before, now));
            }
        }
        exchanges
    }

    /// Returns the namespaces whose Services are distinguished by address, because routes are
    /// attached to some of them.
    pub(super) fn addressed(&self, domain: &str) -> AddressedServices {
        let mut addressed = AddressedServices::default();
        // TCP connections are always distinguished by address.
        let with_http = self.joined.iter().filter(|(_, joined)| !joined.http.is_empty());
        for ((host, clients), _) in with_http {
            let service = host.service_in(domain).or_else(|| host.service_in(CLUSTERSET));
            if let Some((_, namespace)) = service {
                addressed.insert(namespace.into(), clients.clone());
            }
        }
        addressed
    }

    fn joined(
        &self,
        (host, consumer): &JoinKey,
        all: &BTreeMap<(ObjectMeta, &'static str), Arc<GatewayRoute>>,
        domain: &str,
    ) -> VirtualService {
        let (mut rules, mut tls, mut tcp) = (Vec::new(), Vec::new(), Vec::new());
        for route in all.values() {
            let origin = Arc::new(route.origin());
            let yields =
                |parent: &&ParentService| all.values().any(|other| route.yields_to(parent, other));
            let parents = route.parents.iter().filter(|parent| parent.host == *host);
            for parent in parents.filter(|parent| !yields(parent)) {
                let allowed = |to: &Destination| {
                    let grants = self.grants.values().map(|grant| &**grant);
                    route.may_lead_to(parent, &to.host, domain, grants)
                };
                for rule in &route.connections {
                    let server_names = route.server_names.clone();
                    let connection = ConnectionMatch {
                        port: parent.port,
                        server_names,
                        ..ConnectionMatch::default()
                    };
                    let mut rule = TcpRule { matches: [connection].into(), ..rule.clone() };
                    rule.place.origin = Some(Arc::clone(&origin));
                    for to in rule.destinations.iter_mut().filter(|to| !to.invalid) {
                        to.invalid = !allowed(&*to);
                    }
                    if route.kind == "TLSRoute" { tls.push(rule) } else { tcp.push(rule) }
                }
                for rule in &route.rules {
                    // Otherwise each match would copy all matches.
                    let mut without_matches = rule.clone();
                    without_matches.matches = Box::default();
                    for request in &rule.matches {
                        let request = RequestMatch { port: parent.port, ..request.clone() };
                        let mut rule = without_matches.clone();
                        rule.matches = [request].into();
                        rule.place.origin = Some(Arc::clone(&origin));
                        for to in rule.destinations.iter_mut().filter(|to| !to.invalid) {
                            to.invalid = !allowed(&*to);
                        }
                        if rule.mirrors.is_some() {
                            let mirrors = rule.mirrors.take().unwrap_or_default().into_vec();
                            let permitted =
                                mirrors.into_iter().filter(|one| allowed(&one.destination));
                            rule.mirrors = Some(permitted.collect());
                        }
                        rules.push(rule);
                    }
                }
            }
        }
        // The sort is stable: among equally specific rules, the older route comes first, then the
        // first rule of a route.
        rules.sort_by_key(|one| (!is_grpc_rule(one), one.matches.first().map(specificity)));
        let own_ports = closed_grpc_ports(&rules);
        let others = rules.iter().position(|one| !is_grpc_rule(one)).unwrap_or(rules.len());
        rules.splice(others..others, own_ports);
        let oldest = all.values().next().expect("there are some while there is an entry");
        let meta = ObjectMeta {
            name: format!("{}~{}", oldest.meta.name, host).into(),
            ..oldest.meta.clone()
        };
        let export_to = match consumer {
            Some(namespace) => ExportTo::Namespaces(vec![namespace.clone()]),
            None => ExportTo::Public,
        };
        let origin = oldest.origin();
        VirtualService {
            meta,
            origin: Arc::new(origin),
            hosts: [HostPattern::for_service(host)].into(),
            gateways: [MESH.into()].into(),
            export_to,
            http: rules.into(),
            more: RareRules { tls: tls.into(), tcp: tcp.into(), ..RareRules::default() }.into(),
        }
    }
}

fn is_grpc_rule(rule: &HttpRule) -> bool {
    rule.place.origin.as_ref().is_some_and(|origin| origin.kind == RouteKind::GrpcRoute)
}

/// Returns one rule for each port with GRPCRoutes, which keeps other routes away from the port.
fn closed_grpc_ports(rules: &[HttpRule]) -> Vec<HttpRule> {
    let port = |one: &HttpRule| one.matches.first().and_then(|one| one.port);
    let mut ports = BTreeMap::new();
    for rule in rules.iter().filter(|rule| is_grpc_rule(rule)) {
        if let Some(port) = port(rule) {
            ports.entry(port).or_insert(rule.place.origin.clone());
        }
    }
    let closed = ports.into_iter().map(|(port, origin)| {
        let every = RequestMatch { port: Some(port), ..RequestMatch::default() };
        let closed = FixedResponse { status: 404, body: None };
        let terms = RuleTerms {
            matches: [every].into(),
            more: RareTerms { response: Some(Box::new(closed)), ..RareTerms::default() }.into(),
            ..RuleTerms::default()
        };
        HttpRule { place: RulePlace { origin, ..RulePlace::default() }, ..terms.into() }
    });
    let are_others = rules.iter().any(|one| !is_grpc_rule(one));
    closed.filter(|_| are_others).collect()
}

impl GatewayRoute {
    /// Returns the name of the object in the routes of proxies.
    pub fn origin(&self) -> RouteOrigin {
        RouteOrigin {
            kind: match self.kind {
                "GRPCRoute" => RouteKind::GrpcRoute,
                "TCPRoute" => RouteKind::TcpRoute,
                "TLSRoute" => RouteKind::TlsRoute,
                _ => RouteKind::HttpRoute,
            },
            namespace: self.meta.namespace.clone(),
            name: Arc::clone(&self.meta.name),
        }
    }
}

fn keys(route: &GatewayRoute) -> BTreeSet<JoinKey> {
    let own = &route.meta.namespace;
    let key = |parent: &ParentService| {
        (parent.host.clone(), (parent.namespace != *own).then(|| own.clone()))
    };
    route.parents.iter().map(key).collect()
}

#[cfg(test)]
mod tests;
