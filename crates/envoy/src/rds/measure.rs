//! The size of an object's rules, for the limits on objects of other namespaces.

use super::rules::{RuleInputs, rule_route};
use strait_mesh::push::withholding::RuleBytes;
use strait_model::Hostname;
use strait_rules::traffic::Selection;
use strait_rules::traffic::route::{Destination, MESH, RequestMatch};
use strait_rules::traffic::virtual_service_selection::RoutedService;

/// Approximate size of a filter chain without names and destinations, in bytes.
const CHAIN_BYTES: usize = 512;
/// Approximate size of a destination of a filter chain without its name, in bytes.
const DESTINATION_BYTES: usize = 48;

/// Returns the size of an object's rules. Its routes are measured as encoded for a sidecar to which
/// all rules apply.
pub fn rule_bytes(routed: &RoutedService) -> RuleBytes {
    let rules = &routed.http;
    let inputs = RuleInputs {
        namespace: &routed.service.meta.namespace,
        selection: &Selection::default(),
        gateway: MESH,
        port: 80,
        is_tls: false,
        target: &Hostname::clone,
        unnumbered_port: &|_, _| None,
        hash_key: &|_, _| None,
        retries: None,
        token_rules: 0,
    };
    let (every, mut route, mut routes) = (RequestMatch::default(), Vec::new(), 0);
    for rule in &*rules.rules {
        let any = rule.matches.is_empty().then_some(&every);
        for request in rule.matches.iter().chain(any) {
            route.clear();
            rule_route(rules, rule, request, inputs).write(&mut route);
            routes += route.len();
        }
    }
    let chains = routed.service.tls.iter().chain(&routed.service.tcp).map(|rule| {
        let destination_bytes =
            |to: &Destination| DESTINATION_BYTES + to.host.as_str().len() + to.subset.len();
        let destinations: usize = rule.destinations.iter().map(destination_bytes).sum();
        let names = rule.matches.iter().flat_map(|one| &*one.server_names);
        let names: usize = names.map(|name| name.len() + 2).sum();
        rule.matches.len().max(1) * (CHAIN_BYTES + destinations) + names
    });
    RuleBytes { routes, chains: chains.sum() }
}
