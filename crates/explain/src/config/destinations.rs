//! Destinations of rules, and the clients that cannot reach them.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::ConfigView;
use super::clients::{Audience, of_clients, proxied, seen};
use super::objects::pointer;
use super::routes::matched_ports;
use strait_base::codes::{self, Code};
use strait_mesh::aggregate::MergedService;
use strait_model::{Namespace, Protocol, Resolution};
use strait_rules::traffic::destination_rule::{DestinationRule, RuleClient};
use strait_rules::traffic::retained_subsets::KEPT_FOR;
use strait_rules::traffic::route::{Destination, HttpRule};
use strait_rules::traffic::{Reason, Selection};

impl ConfigView<'_> {
    /// Returns the problems of the destinations of a rule for requests.
    pub(super) fn destinations(
        &self,
        rule: &HttpRule,
        path: &str,
        ports: &BTreeSet<u16>,
        clients: &Audience,
        object: &Value,
    ) -> Vec<Reason> {
        let mut reasons = Vec::new();
        let ports = &matched_ports(rule.matches.iter().map(|one| one.port), ports);
        for to in &rule.destinations {
            let path = format!("{path}.route[{}].destination", to.index);
            reasons.extend(self.destination(
                to,
                path,
                ports,
                clients,
                "requests are answered with 503",
            ));
        }
        for mirror in rule.mirrors.iter().flatten() {
            let to = &mirror.destination;
            let single = pointer(&format!("{path}.mirror"));
            let path = match object.pointer(&single) {
                Some(_) => format!("{path}.mirror"),
                None => format!("{path}.mirrors[{}].destination", to.index),
            };
            reasons.extend(self.destination(
                to,
                path,
                ports,
                clients,
                "mirrored requests are dropped",
            ));
        }
        reasons
    }

    /// Returns the problems of a destination, with the affected clients. `answer` describes how
    /// proxies handle traffic to the destination.
    pub(super) fn destination(
        &self,
        to: &Destination,
        path: String,
        ports: &BTreeSet<u16>,
        clients: &Audience,
        answer: &str,
    ) -> Vec<Reason> {
        if to.invalid {
            // Reported when the object was parsed.
            return Vec::new();
        }
        let host = to.host.as_str();
        let mut audience = clients.clone();
        if clients.contains(&Namespace::default()) {
            audience.extend(self.special_of(host));
            audience.extend(self.special_of(self.context.aliases.target(&to.host).as_str()));
        }
        let mut wrong: BTreeMap<(&'static str, String), (&'static Code, Audience)> =
            BTreeMap::new();
        for namespace in &audience {
            if let Some((code, text)) = self.unreachable(to, ports, namespace) {
                let (_, affected) = wrong.entry((code.id, text)).or_insert((code, Audience::new()));
                affected.insert(namespace.clone());
            }
        }
        let reasons = wrong.into_iter().map(|((_, text), (code, affected))| {
            let affected = of_clients(&affected, &audience);
            Reason::lost(code, &*path, format!("{text}{affected}: {answer}"))
        });
        reasons.collect()
    }

    /// Returns the reason why clients of a namespace cannot reach a destination.
    fn unreachable(
        &self,
        to: &Destination,
        ports: &BTreeSet<u16>,
        namespace: &Namespace,
    ) -> Option<(&'static Code, String)> {
        let host = to.host.as_str();
        let Some(service) = seen(self.context, host, namespace) else {
            if self.context.service(host, namespace).is_some() {
                let text = format!("{host} is hidden by its exportTo");
                return Some((&codes::DESTINATION_HIDDEN, text));
            }
            if !self.services_known
                && let Some(text) = self.missing_subset_of_unknown(to, namespace)
            {
                return Some((&codes::SUBSET_UNKNOWN, text));
            }
            let text = format!("there is no service {host}");
            return self.is_none(host).then_some((&codes::DESTINATION_UNKNOWN, text));
        };
        if matches!(service.primary.resolution, Resolution::Alias(_)) {
            return self.unreachable_alias(to, service, namespace);
        }
        let has: Vec<u16> = proxied(service).map(|port| port.number).collect();
        let list = || has.iter().map(u16::to_string).collect::<Vec<_>>().join(", ");
        let called = |name: &str| proxied(service).find(|port| *port.name == *name);
        let named = Some(&*to.port_name).filter(|name| !name.is_empty());
        let number = to.port.or(named.and_then(called).map(|port| port.number));
        if let (None, Some(name)) = (number, named) {
            let text = format!("{host} has no port called {name}; it has {}", list());
            return Some((&codes::DESTINATION_PORT, text));
        }
        let mut partly = None;
        let port = match (number, &*has) {
            (Some(port), _) if !has.contains(&port) => {
                let text = format!("{host} has no port {port}; it has {}", list());
                return Some((&codes::DESTINATION_PORT, text));
            }
            (Some(port), _) => Some(port),
            (None, [only]) => Some(*only),
            (None, _) => {
                let shared = ports.iter().find(|port| has.contains(port));
                if shared.is_none() && !ports.is_empty() {
                    let text = format!(
                        "the rule names no port; {host} has ports {}, and none of them is a port of the rule's host",
                        list()
                    );
                    return Some((&codes::DESTINATION_PORT, text));
                }
                let lacks: Vec<_> = ports.iter().filter(|port| !has.contains(port)).collect();
                if !lacks.is_empty() {
                    let lacks = lacks.into_iter().map(u16::to_string).collect::<Vec<_>>();
                    let text = format!(
                        "the rule names no port; {host} has ports {}, so requests to port {} of the rule's host can't reach it",
                        list(),
                        lacks.join(", ")
                    );
                    partly = Some((&codes::DESTINATION_PORT, text));
                }
                shared.copied()
            }
        };
        if to.subset.is_empty() || port.is_none() {
            return partly;
        }
        let rules = self.context.traffic.destination_rules.of(host);
        let client = RuleClient { namespace, selection: &Selection::default() };
        let subset = &to.subset;
        let text = match rules.rule(client, &service.primary.namespace) {
            Some(rule) => match missing_subset(rule, to) {
                Some(text) => text,
                None => {
                    return partly
                        .or_else(|| self.missing_subset_by_selection(to, service, namespace));
                }
            },
            None if !self.services_known => return None,
            None => {
                format!("no DestinationRule of {host} applies, so subset {subset} does not exist")
            }
        };
        Some((&codes::SUBSET_UNKNOWN, text))
    }

    /// Returns the reason if a known DestinationRule lacks the subset of a destination whose service
    /// is unknown. The service may exist in the real mesh, where this rule would apply to it.
    fn missing_subset_of_unknown(&self, to: &Destination, namespace: &Namespace) -> Option<String> {
        if to.subset.is_empty() {
            return None;
        }
        let host = to.host.as_str();
        let domain = format!(".svc.{}", self.context.settings.domain);
        let place = host.strip_suffix(&domain).and_then(|name| name.split_once('.'));
        let owner = place.map_or(namespace.clone(), |(_, owner)| Namespace::from(owner));
        let client = RuleClient { namespace, selection: &Selection::default() };
        let rules = self.context.traffic.destination_rules.of(host);
        missing_subset(rules.rule(client, &owner)?, to)
    }

    /// Returns the reason for a subset that exists for most clients: a DestinationRule that applies
    /// only to proxies with certain labels lacks it.
    fn missing_subset_by_selection(
        &self,
        to: &Destination,
        service: &MergedService,
        namespace: &Namespace,
    ) -> Option<(&'static Code, String)> {
        if self.context.traffic.is_without_selectors() {
            return None;
        }
        let host = service.hostname().as_str();
        let rules = self.context.traffic.destination_rules.of(host);
        let mut proxies = self.clients.proxies().iter().filter(|one| one.namespace() == namespace);
        proxies.find_map(|proxy| {
            let client = RuleClient { namespace, selection: &self.context.selection(proxy) };
            let rule = rules.rule(client, &service.primary.namespace)?;
            let lacks = rule.subsets.get(&to.subset).is_none_or(|subset| subset.is_retained);
            let text = format!(
                "DestinationRule {}, which applies to {} because of its labels, has no subset {} of {host}",
                rule.meta(),
                proxy.id,
                to.subset
            );
            lacks.then_some((&codes::SUBSET_UNKNOWN, text))
        })
    }

    /// Returns the reason why clients cannot reach a destination that is an alias of a service.
    fn unreachable_alias(
        &self,
        to: &Destination,
        alias: &MergedService,
        namespace: &Namespace,
    ) -> Option<(&'static Code, String)> {
        let (host, port_name) = (&to.host, &to.port_name);
        let target = self.context.target(host, namespace);
        let Some(service) = self.context.service(target.as_str(), namespace) else {
            let text = format!("{host} is an alias of {target}, which does not exist");
            return self.is_none(target.as_str()).then_some((&codes::DESTINATION_UNKNOWN, text));
        };
        if matches!(service.primary.resolution, Resolution::Alias(_)) {
            let text = format!("{host} is an alias that finally refers to itself");
            return Some((&codes::DESTINATION_UNKNOWN, text));
        }
        // The port of the alias is used if the destination names no port number.
        let own = alias.ports().filter(|port| port.protocol != Protocol::Udp);
        let own: Vec<_> =
            own.filter(|port| port_name.is_empty() || port.name == *port_name).collect();
        let own = match &*own {
            [only] => Some(only.number),
            _ => None,
        };
        let to = Destination { host: target.clone(), port: to.port.or(own), ..to.clone() };
        let (code, text) = self.unreachable(&to, &BTreeSet::new(), namespace)?;
        Some((code, format!("{host} is an alias of {target}: {text}")))
    }
}

/// Returns the reason if a DestinationRule lacks the subset of a destination.
fn missing_subset(rule: &DestinationRule, to: &Destination) -> Option<String> {
    let Destination { host, subset, .. } = to;
    let text = format!("DestinationRule {} of {host} has no subset {subset}", rule.meta());
    match rule.subsets.get(subset) {
        Some(found) if !found.is_retained => None,
        Some(_) => {
            Some(format!("{text} any more; the old subset is kept for {} s", KEPT_FOR.as_secs()))
        }
        None => Some(text),
    }
}
