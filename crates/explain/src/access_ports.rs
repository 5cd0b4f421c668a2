//! What access policies that look at requests come to at ports that carry none, or of which nobody says what they carry.
//!
//! Looks at the ports of Services, and of Gateways, that lead to the workloads which a policy selects.

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

/// Looks at one policy.
pub(super) struct PolicyPorts<'a> {
    pub(super) context: &'a PushContext,
    pub(super) policy: &'a AuthorizationPolicy,
    /// All that are connected, each once.
    pub(super) proxies: &'a [&'a Proxy],
    /// Whether all workloads are known; else there may be any with the labels that the policy asks for.
    pub(super) workloads_known: bool,
}

/// Where a rule looks at requests.
struct RequestLook<'a> {
    clause: &'a Clause,
    /// The ports that it does so at; none for all.
    ports: Vec<u16>,
}

impl RequestLook<'_> {
    fn path(&self) -> String {
        format!("spec.{}", self.clause.place)
    }

    /// Whether it looks at what comes to a port of the workload; of a port that pods call by a name nobody knows it.
    fn is_at(&self, target: &TargetPort) -> bool {
        match target {
            TargetPort::Number(number) => self.ports.is_empty() || self.ports.contains(number),
            TargetPort::Name(_) => self.ports.is_empty(),
        }
    }
}

impl PolicyPorts<'_> {
    /// All that is to be said, one thing for each rule.
    pub(super) fn all(&self) -> Vec<PolicyFinding> {
        let rules = self.policy.rules.iter();
        let found = rules.filter_map(|rule| match self.policy.action {
            AuthorizationAction::Deny => {
                looks(rule).iter().find_map(|look| self.denies_connections(look))
            }
            AuthorizationAction::Allow => {
                looks(rule).iter().find_map(|look| self.allows_no_plain_envoy(look))
            }
            AuthorizationAction::Audit | AuthorizationAction::Custom(_) => None,
        });
        found.collect()
    }

    /// On a connection that is not HTTP a rule of DENY goes without what it says of requests.
    fn denies_connections(&self, look: &RequestLook<'_>) -> Option<PolicyFinding> {
        let carries_bytes = |port: &Port| {
            !port.protocol.is_http() && port.protocol != Protocol::Udp && look.is_at(&port.target)
        };
        let of_service = || {
            self.served(carries_bytes, |service, port, _| {
                let (number, host) = (port.number, &service.hostname);
                Some(match port.protocol {
                    Protocol::Auto => format!(
                        "nobody says what port {number} of {host} carries: where it is not HTTP"
                    ),
                    _ => format!("port {number} of {host} carries no HTTP:"),
                })
            })
        };
        let of_gateway = || look.ports.is_empty().then(|| self.bytes_at_gateways()).flatten();
        let of_nobody = || {
            let unknown =
                !self.workloads_known && look.ports.is_empty() && self.services().next().is_none();
            unknown.then(|| "on ports that are not HTTP".to_owned())
        };
        let place = of_service().or_else(of_gateway).or_else(of_nobody)?;
        let text = format!(
            "{place} the rule goes without it, and denies every connection that the rest of the rule fits"
        );
        Some((&codes::ACCESS_HTTP_ON_TCP, look.path(), text))
    }

    /// Plain Envoys don't tell by mTLS what they send, so that a port of which nobody says it takes their requests for
    /// bytes; a rule of ALLOW that looks at requests allows none of these.
    fn allows_no_plain_envoy(&self, look: &RequestLook<'_>) -> Option<PolicyFinding> {
        let is_undeclared =
            |port: &Port| port.protocol == Protocol::Auto && look.is_at(&port.target);
        let text = self.served(is_undeclared, |service, port, subject| {
            let modes = self.context.access.of(subject).modes;
            let mode = match &port.target {
                TargetPort::Number(number) => modes.of_port(*number).mode,
                TargetPort::Name(_) => modes.rest.mode,
            };
            // Plain text is looked into.
            let caller = self.caller(service).filter(|_| mode != PeerMode::Disable)?;
            Some(format!(
                "nobody says what port {} of {} carries: of plain Envoys such as {} it takes requests for bytes, and the \
                 rule allows none of them",
                port.number, service.hostname, caller.id
            ))
        })?;
        Some((&codes::ACCESS_UNDECLARED_PORT, look.path(), text))
    }

    /// A plain Envoy that can call a service.
    fn caller(&self, service: &Service) -> Option<&Proxy> {
        let calls = |proxy: &&&Proxy| {
            let namespace = proxy.namespace();
            let is_plain = !proxy.has_istio_agent() && !proxy.is_proxyless();
            is_plain && service.export_to.visible_to(namespace) && {
                let host = HostPattern::of_service(&service.hostname);
                let selection: Selection = self.context.selection(proxy);
                let scope = self.context.traffic.scope(namespace, &selection);
                scope.includes(&host, &service.namespace)
            }
        };
        self.proxies.iter().find(calls).copied()
    }

    /// What is first said of a port of a Service that leads to a workload which the policy selects, with that workload.
    fn served<T>(
        &self,
        is_meant: impl Fn(&Port) -> bool,
        say: impl Fn(&Service, &Port, AccessSubject<'_>) -> Option<T>,
    ) -> Option<T> {
        let mut leading = self.services().filter(|service| !service.selector.is_empty());
        leading.find_map(|service| {
            // Most services have no such port, and nobody behind them is looked for.
            let mut meant = service.ports.iter().filter(|port| is_meant(port)).peekable();
            meant.peek()?;
            let labels = &self.behind(service)?;
            let subject = AccessSubject { namespace: &service.namespace, labels, is_known: true };
            meant.find_map(|port| say(service, port, subject))
        })
    }

    /// The labels of a workload behind a service that the policy selects, and that is no router of a Gateway: those speak
    /// what their Gateways say.
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
            // One that would be selected, if its labels are no others than those that are asked for.
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

    /// A server of a Gateway for routers that the policy selects, which takes no requests.
    fn bytes_at_gateways(&self) -> Option<String> {
        let gateways = &self.context.traffic.gateways;
        let own = &self.policy.name.namespace;
        let of_mesh = own == self.context.access.root();
        let mut servers = gateways.servers_of_bytes();
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
            is_selected.then(|| format!("port {port} of {title} takes no HTTP:"))
        })
    }

    /// The services of clusters that may lead to workloads which the policy selects.
    fn services(&self) -> impl Iterator<Item = &Arc<Service>> {
        let own = &self.policy.name.namespace;
        let of_mesh = own == self.context.access.root();
        let all = of_mesh.then(|| self.context.all_services());
        let of_own = (!of_mesh).then(|| self.context.services_of(own));
        let merged = all.into_iter().flatten().chain(of_own.into_iter().flatten());
        let services = merged.flat_map(|merged: &Arc<MergedService>| merged.by_cluster.values());
        services.filter(|service| self.is_own(&service.namespace))
    }

    /// Whether workloads of a namespace may be selected.
    fn is_own(&self, namespace: &Namespace) -> bool {
        let own = &self.policy.name.namespace;
        own == namespace || own == self.context.access.root()
    }
}

/// Where a rule looks at requests: at each of its operations, as far as that or the rest of the rule does so.
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
