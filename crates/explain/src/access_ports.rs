//! Findings about access policies with conditions on HTTP requests, at ports that are not HTTP or
//! that declare no protocol.
//!
//! It checks the ports of Services and Gateways that route to the workloads that a policy selects.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::access_findings::named_ports;
use super::standing::PolicyFinding;
use strait_base::codes;
use strait_mesh::aggregate::MergedService;
use strait_mesh::push::PushContext;
use strait_model::{Labels, Namespace, Port, Protocol, Proxy, Service, TargetPort, labels_match};
use strait_rules::access::{
    AccessSubject, AuthorizationAction, AuthorizationPolicy, AuthorizationRule, Clause, PeerMode,
    PolicySelector, RequestTest,
};
use strait_rules::traffic::{HostPattern, Selection};

/// Checks one policy.
pub(super) struct PolicyPorts<'a> {
    pub(super) context: &'a PushContext,
    pub(super) policy: &'a AuthorizationPolicy,
    /// All connected proxies, each once.
    pub(super) proxies: &'a [&'a Proxy],
    /// Whether all workloads are known. If not, any workload with the labels of the policy may
    /// exist.
    pub(super) workloads_known: bool,
}

/// A condition of a rule on HTTP requests.
struct RequestLook<'a> {
    clause: &'a Clause,
    /// The ports at which the condition applies; empty for all.
    ports: Vec<u16>,
}

impl RequestLook<'_> {
    fn path(&self) -> String {
        format!("spec.{}", self.clause.place)
    }

    /// Returns whether the condition applies at a target port. The number of a named target port is
    /// unknown.
    fn is_at(&self, target: &TargetPort) -> bool {
        match target {
            TargetPort::Number(number) => self.ports.is_empty() || self.ports.contains(number),
            TargetPort::Name(_) => self.ports.is_empty(),
        }
    }
}

impl PolicyPorts<'_> {
    /// Returns all findings, at most one for each rule.
    pub(super) fn all(&self) -> Vec<PolicyFinding> {
        let rules = self.policy.rules.iter();
        let found = rules.filter_map(|rule| match self.policy.action {
            AuthorizationAction::Deny => {
                looks(rule).iter().find_map(|look| self.denies_connections(look))
            }
            AuthorizationAction::Allow => {
                let looks = looks(rule);
                let of_bytes = looks.iter().find_map(|look| self.allows_no_connection(look));
                of_bytes.or_else(|| looks.iter().find_map(|look| self.allows_no_plain_envoy(look)))
            }
            AuthorizationAction::Audit | AuthorizationAction::Custom(_) => None,
        });
        found.collect()
    }

    /// Reports DENY rules that lose their HTTP conditions at ports that are not HTTP.
    fn denies_connections(&self, look: &RequestLook<'_>) -> Option<PolicyFinding> {
        let carries_bytes = |port: &Port| {
            !port.protocol.is_http() && port.protocol != Protocol::Udp && look.is_at(&port.target)
        };
        let of_service = || {
            self.served(carries_bytes, |service, port, _| {
                let (number, host) = (port.number, &service.hostname);
                Some(match port.protocol {
                    Protocol::Auto => {
                        format!("port {number} of {host} declares no protocol: if it is not HTTP,")
                    }
                    _ => format!("port {number} of {host} is not HTTP:"),
                })
            })
        };
        let of_gateway = || look.ports.is_empty().then(|| self.bytes_at_gateways()).flatten();
        let for_unknown_workloads = || {
            let unknown =
                !self.workloads_known && look.ports.is_empty() && self.services().next().is_none();
            unknown.then(|| "on ports that are not HTTP".to_owned())
        };
        let place = of_service().or_else(of_gateway).or_else(for_unknown_workloads)?;
        let text = format!(
            "{place} the rule ignores this condition, and denies every connection that the rest of the rule matches"
        );
        Some((&codes::ACCESS_HTTP_ON_TCP, look.path(), text))
    }

    /// Reports ALLOW rules with HTTP conditions for workloads without a port for requests: they allow
    /// nothing.
    fn allows_no_connection(&self, look: &RequestLook<'_>) -> Option<PolicyFinding> {
        let carries_requests = |port: &Port| {
            (port.protocol.is_http() || port.protocol == Protocol::Auto) && look.is_at(&port.target)
        };
        let carries_bytes = |port: &Port| {
            !port.protocol.is_http()
                && ![Protocol::Auto, Protocol::Udp].contains(&port.protocol)
                && look.is_at(&port.target)
        };
        let place = self.served(carries_bytes, |service, port, _| {
            Some(format!("port {} of {} is not HTTP", port.number, service.hostname))
        })?;
        if self.served(carries_requests, |_, _, _| Some(())).is_some() {
            return None;
        }
        let text = format!("{place}: the rule allows no connection to it");
        Some((&codes::ACCESS_HTTP_ON_TCP, look.path(), text))
    }

    /// Reports ALLOW rules that reject requests of plain Envoys. Plain Envoys do not announce the
    /// protocol through mTLS, so a port without a declared protocol treats their requests as raw
    /// TCP, and an ALLOW rule with HTTP conditions does not match.
    fn allows_no_plain_envoy(&self, look: &RequestLook<'_>) -> Option<PolicyFinding> {
        let is_undeclared =
            |port: &Port| port.protocol == Protocol::Auto && look.is_at(&port.target);
        let text = self.served(is_undeclared, |service, port, subject| {
            let modes = self.context.access.of(subject).modes;
            let mode = match &port.target {
                TargetPort::Number(number) => modes.of_port(*number).mode,
                TargetPort::Name(_) => modes.rest.mode,
            };
            // The protocol of plain text connections is detected.
            let caller = self.caller(service).filter(|_| mode != PeerMode::Disable)?;
            Some(format!(
                "port {} of {} declares no protocol: it treats requests of plain Envoys such as {} as raw TCP, and the \
                 rule allows none of them",
                port.number, service.hostname, caller.id
            ))
        })?;
        Some((&codes::ACCESS_UNDECLARED_PORT, look.path(), text))
    }

    /// Returns a connected plain Envoy that can call the service.
    fn caller(&self, service: &Service) -> Option<&Proxy> {
        let calls = |proxy: &&&Proxy| {
            let namespace = proxy.namespace();
            let is_plain = !proxy.has_istio_agent() && !proxy.is_proxyless();
            is_plain && service.export_to.visible_to(namespace) && {
                let host = HostPattern::for_service(&service.hostname);
                let selection: Selection = self.context.selection(proxy);
                let scope = self.context.traffic.scope(namespace, &selection);
                scope.includes(&host, &service.namespace)
            }
        };
        self.proxies.iter().find(calls).copied()
    }

    /// Returns the first result of `describe` for a port of a Service that routes to a selected
    /// workload. Calls `describe` with the Service, the port and the workload.
    fn served<T>(
        &self,
        matches: impl Fn(&Port) -> bool,
        describe: impl Fn(&Service, &Port, AccessSubject<'_>) -> Option<T>,
    ) -> Option<T> {
        let mut leading = self.services().filter(|service| !service.selector.is_empty());
        leading.find_map(|service| {
            // Most services have no such port, so their workloads are not searched.
            let mut matching = service.ports.iter().filter(|port| matches(port)).peekable();
            matching.peek()?;
            let labels = &self.behind(service)?;
            let subject = AccessSubject { namespace: &service.namespace, labels, is_known: true };
            matching.find_map(|port| describe(service, port, subject))
        })
    }

    /// Returns the labels of a workload behind a service that the policy selects. Routers of
    /// Gateways are excluded, because their Gateways define their protocols.
    fn behind(&self, service: &Service) -> Option<Labels> {
        let namespace = &service.namespace;
        let is_it = |labels: &Labels| {
            labels_match(&service.selector, labels)
                && self.selects(namespace, labels)
                && !self.has_gateway(namespace, labels)
        };
        let mut known = self.context.workload_labels(Some(namespace)).map(|(_, labels)| labels);
        let connected = self.proxies.iter().filter(|proxy| proxy.namespace() == namespace);
        let mut connected = connected.map(|proxy| self.context.labels_of(proxy));
        let found = known.find(|labels| is_it(labels));
        let found = found.or_else(|| connected.find(|labels| is_it(labels))).cloned();
        found.or_else(|| {
            // A workload that would be selected if it has exactly the required labels.
            let wanted = match &self.policy.selector {
                PolicySelector::Labels(wanted) => Some(wanted.iter()),
                PolicySelector::All | PolicySelector::Gateways(_) => None,
            };
            let both = service.selector.iter().chain(wanted.into_iter().flatten());
            let both: BTreeMap<_, _> =
                both.map(|(key, value)| (key.clone(), value.clone())).collect();
            Some(Labels::from_iter(both)).filter(|labels| !self.workloads_known && is_it(labels))
        })
    }

    fn selects(&self, namespace: &Namespace, labels: &Labels) -> bool {
        let subject = AccessSubject { namespace, labels, is_known: true };
        self.policy.selector.selects(&self.policy.name.namespace, subject)
    }

    fn has_gateway(&self, namespace: &Namespace, labels: &Labels) -> bool {
        let mut gateways = self.context.traffic.gateways.selecting(namespace, labels);
        gateways.any(|gateway| gateway.selector.is_some())
    }

    /// Returns a server of a Gateway without HTTP on routers that the policy selects.
    fn bytes_at_gateways(&self) -> Option<String> {
        let gateways = &self.context.traffic.gateways;
        let own = &self.policy.name.namespace;
        let of_mesh = own == self.context.access.root();
        let mut servers = gateways.tcp_servers();
        servers.find_map(|(gateway, server)| {
            let known = self.context.workload_labels((!of_mesh).then_some(own));
            let connected = self.proxies.iter();
            let connected =
                connected.map(|proxy| (proxy.namespace(), self.context.labels_of(proxy)));
            let is_it = |(namespace, labels): (&Namespace, &Labels)| {
                self.is_own(namespace)
                    && self.selects(namespace, labels)
                    && gateways.selects(gateway, namespace, labels)
            };
            let (port, title) = (server.port, gateway.title());
            let is_selected = known.chain(connected).any(is_it);
            is_selected.then(|| format!("port {port} of {title} is not HTTP:"))
        })
    }

    /// Returns the services of clusters that may route to workloads that the policy selects.
    fn services(&self) -> impl Iterator<Item = &Arc<Service>> {
        let own = &self.policy.name.namespace;
        let of_mesh = own == self.context.access.root();
        let all = of_mesh.then(|| self.context.all_services());
        let of_own = (!of_mesh).then(|| self.context.services_of(own));
        let merged = all.into_iter().flatten().chain(of_own.into_iter().flatten());
        let services = merged.flat_map(|merged: &Arc<MergedService>| merged.by_cluster.values());
        services.filter(|service| self.is_own(&service.namespace))
    }

    /// Returns whether the policy may select workloads of a namespace.
    fn is_own(&self, namespace: &Namespace) -> bool {
        let own = &self.policy.name.namespace;
        own == namespace || own == self.context.access.root()
    }
}

/// Returns the conditions of a rule on HTTP requests: for each operation, a condition of the
/// operation, or else a condition of the rest of the rule.
fn looks(rule: &AuthorizationRule) -> Vec<RequestLook<'_>> {
    let is_http = |clause: &&Clause| clause.any.iter().any(RequestTest::is_http);
    let general = rule.from.iter().flatten().chain(&rule.when).find(is_http);
    let of_all = rule.when.iter().find_map(named_ports);
    let any: Option<&[Clause]> = rule.to.is_empty().then_some(&[]);
    let all = rule.to.iter().map(|operation| &**operation).chain(any);
    let looks = all.filter_map(|operation| {
        let clause = operation.iter().find(is_http).or(general)?;
        let ports = operation.iter().find_map(named_ports).or_else(|| of_all.clone());
        Some(RequestLook { clause, ports: ports.unwrap_or_default() })
    });
    looks.collect()
}
