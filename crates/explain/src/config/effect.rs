//! Objects without any effect, and rules for ports that no service has.

use std::collections::BTreeSet;

use serde_json::Value;

use super::gateways::has_lost_all_servers;
use super::objects::{items, pointer};
use super::{ConfigView, Finding};
use crate::standing::ObjectStanding;
use strait_base::codes::{self, Code};
use strait_model::Namespace;
use strait_rules::traffic::virtual_service::VirtualService;
use strait_rules::traffic::{HostPattern, Reason, TrafficObject};

/// Codes of reasons that prevent a match from ever matching.
const OF_MATCHES: [&Code; 4] =
    [&codes::TRAFFIC_PORT, &codes::GATEWAY_UNBOUND, &codes::RULE_PROTOCOL, &codes::MATCH_NEVER];
/// Fields of a match that can prevent it from matching; the empty field is the entire match.
const OF_A_MATCH: [&str; 7] =
    ["", ".port", ".gateways", ".uri", ".method", ".authority", ".sourceNamespace"];
/// Codes of reasons that remove a setting from a traffic policy.
const OF_SETTINGS: [&Code; 2] = [&codes::TRAFFIC_PORT, &codes::TRAFFIC_UNSUPPORTED];

/// Returns whether no part of an object has an effect, according to `reasons`.
pub(super) fn has_none(object: &TrafficObject, stored: &Value, reasons: &[Reason]) -> bool {
    let lost = || reasons.iter().filter(|reason| reason.is_lost);
    // Returns whether all items of a list are lost. True if the list is absent.
    let all_items = |list: &str, is_lost: &dyn Fn(&str, &Value) -> bool| {
        let mut items = items(stored, &pointer(list)).iter().enumerate();
        is_named(lost(), list)
            || items.all(|(at, item)| {
                let path = format!("{list}[{at}]");
                is_named(lost(), &path) || is_lost(&path, item)
            })
    };
    match object {
        TrafficObject::VirtualService(service) => {
            // Rules that apply at gateways may have no effect at sidecars.
            let is_for_both = service.is_for_mesh() && service.own_gateways().next().is_some();
            !is_for_both && has_no_rule(service, stored, reasons)
        }
        TrafficObject::DestinationRule(_) => {
            let of_settings = |reason: &&Reason| OF_SETTINGS.contains(&reason.code);
            let of_settings: Vec<&Reason> = lost().filter(of_settings).collect();
            let policy = &stored["spec"]["trafficPolicy"];
            items(stored, "/spec/subsets").is_empty()
                && is_without_effect(policy, "spec.trafficPolicy", &of_settings)
        }
        TrafficObject::Telemetry(_) => {
            let of_filter = |path: &str, _: &Value| {
                let path = format!("{path}.filter.expression");
                lost().any(|one| one.path == path && one.code.id == codes::TRAFFIC_VALUE.id)
            };
            let nothing = |_: &str, _: &Value| false;
            all_items("spec.accessLogging", &of_filter)
                && all_items("spec.tracing", &nothing)
                && all_items("spec.metrics", &nothing)
        }
        TrafficObject::Gateway(gateway) => has_lost_all_servers(gateway, reasons),
        TrafficObject::Ingress(ingress) => ingress.rules.is_empty(),
        TrafficObject::GatewayRoute(route) => {
            !route.rules.is_empty() && route.rules.iter().all(|rule| rule.is_absent)
        }
        _ => false,
    }
}

/// Returns whether no rule of a VirtualService can apply.
fn has_no_rule(service: &VirtualService, stored: &Value, reasons: &[Reason]) -> bool {
    let never = |reason: &&Reason| reason.is_lost && OF_MATCHES.contains(&reason.code);
    let paths: BTreeSet<&str> = reasons.iter().filter(never).map(|reason| &*reason.path).collect();
    let of_match =
        |path: &str| OF_A_MATCH.iter().any(|field| paths.contains(&*format!("{path}{field}")));
    let lists = ["http", "tls", "tcp"];
    lists.iter().all(|list| {
        let mut rules = items(stored, &format!("/spec/{list}")).iter().enumerate();
        let is_read = |at: usize| match *list {
            "http" => service.http.get(at).is_some_and(|rule| !rule.is_absent),
            "tls" => service.tls.iter().any(|rule| rule.place.index as usize == at),
            _ => service.tcp.iter().any(|rule| rule.place.index as usize == at),
        };
        paths.contains(&*format!("spec.{list}"))
            || rules.all(|(at, rule)| {
                let path = format!("spec.{list}[{at}]");
                let matches = items(rule, "/match").len();
                let mut each = (0..matches).map(|place| format!("{path}.match[{place}]"));
                !is_read(at) || of_match(&path) || (matches > 0 && each.all(|path| of_match(&path)))
            })
    })
}

/// Returns whether any reason refers to `path` or to a part that contains it.
fn is_named<'a>(mut reasons: impl Iterator<Item = &'a Reason>, path: &str) -> bool {
    reasons.any(|reason| is_around(&reason.path, path))
}

/// Returns whether `path` equals `other` or contains it.
fn is_around(path: &str, other: &str) -> bool {
    let rest = other.strip_prefix(path);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
}

/// Returns whether no setting at or below `path` has an effect. An empty block has an effect: its
/// defaults apply.
fn is_without_effect(value: &Value, path: &str, lost: &[&Reason]) -> bool {
    if is_named(lost.iter().copied(), path) {
        return true;
    }
    match value {
        Value::Null => true,
        Value::Object(fields) if fields.is_empty() => path == "spec.trafficPolicy",
        Value::Object(fields) => fields
            .iter()
            .filter(|(name, _)| !(path.ends_with(']') && *name == "port"))
            .all(|(name, one)| is_without_effect(one, &format!("{path}.{name}"), lost)),
        Value::Array(items) => items
            .iter()
            .enumerate()
            .all(|(at, one)| is_without_effect(one, &format!("{path}[{at}]"), lost)),
        _ => false,
    }
}

impl ConfigView<'_> {
    /// Sets the state of an object to `unused` if no part of it has an effect.
    pub(super) fn note_effect(&self, object: &TrafficObject, stored: &Value, found: &mut Finding) {
        // A DestinationRule without effect still replaces rules of other namespaces.
        let replaces_others = match object {
            TrafficObject::DestinationRule(rule) => {
                let host = rule.host.to_string();
                let rules = self.context.traffic.destination_rules.of(&host);
                let mut namespaces = rules.namespaces();
                !self.services_known
                    || namespaces.any(|namespace| *namespace != rule.meta().namespace)
            }
            _ => false,
        };
        if found.standing.is_none() && !replaces_others && has_none(object, stored, &found.reasons)
        {
            let text = "no part of the object has an effect";
            found.reasons.push(Reason::warning(&codes::OBJECT_NO_EFFECT, "spec", text));
            found.standing = Some(ObjectStanding::Unused);
            found.proxies = 0;
        }
    }

    /// Reports matches for ports that no service of the hosts has. `known` are the ports of the
    /// services.
    pub(super) fn unknown_ports(
        &self,
        service: &VirtualService,
        mut known: BTreeSet<u16>,
    ) -> Vec<Reason> {
        if known.is_empty() {
            // The object's namespace sees no service with these hosts.
            return Vec::new();
        }
        let gateways = self.remaining_gateways();
        known.extend(gateways.serving(service).flat_map(|(_, at)| at));
        let wildcards = self.context.wildcard_services().filter(|one| {
            let pattern = HostPattern::for_service(one.hostname());
            service.mesh_hosts().any(|host| pattern.contains(host))
        });
        known.extend(wildcards.flat_map(|one| one.ports().map(|port| port.number)));
        let list = known.iter().map(u16::to_string).collect::<Vec<_>>().join(", ");
        let mut reasons = Vec::new();
        let mut note = |list_name: &str, rule: usize, ports: Vec<Option<u16>>| {
            for (place, port) in ports.into_iter().enumerate() {
                let Some(port) = port.filter(|port| !known.contains(port)) else { continue };
                let text = format!(
                    "no service of the hosts has port {port}; they have {list}: no request or connection matches"
                );
                let path = format!("spec.{list_name}[{rule}].match[{place}].port");
                reasons.push(Reason::lost(&codes::TRAFFIC_PORT, path, text));
            }
        };
        for (at, rule) in service.http.iter().enumerate().filter(|(_, rule)| !rule.is_absent) {
            note("http", at, rule.matches.iter().map(|one| one.port).collect());
        }
        for (list_name, rules) in [("tls", &service.tls), ("tcp", &service.tcp)] {
            for rule in rules {
                let ports = rule.matches.iter().map(|one| one.port).collect();
                note(list_name, rule.place.index as usize, ports);
            }
        }
        reasons
    }

    /// Returns whether any workload of a namespace is known or connected. The empty namespace
    /// represents all namespaces that no rule names.
    pub(super) fn may_have_clients(&self, namespace: &Namespace) -> bool {
        namespace.as_str().is_empty()
            || self.context.workload_labels(Some(namespace)).next().is_some()
            || self.clients.proxies().iter().any(|proxy| proxy.namespace() == namespace)
    }
}
