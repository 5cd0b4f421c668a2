//! Parts of rules and policies that connected proxyless gRPC clients do not support. [`proxyless`]
//! defines these parts. (docs/how-to/grpc-proxyless.md, "Routes".)

use std::collections::BTreeSet;

use super::ConfigView;
use super::clients::{all_seen, proxied};
use strait_base::codes;
use strait_model::{Port, Protocol, Proxy};
use strait_rules::traffic::destination_rule::{DestinationRule, RuleClient};
use strait_rules::traffic::policy::PolicyGroups;
use strait_rules::traffic::proxyless::{self, CallMatch};
use strait_rules::traffic::route::HttpRule;
use strait_rules::traffic::virtual_service_selection::RoutedService;
use strait_rules::traffic::{HostPattern, Reason};

/// Returns whether gRPC calls may be sent to a port.
fn may_be_called(port: &Port) -> bool {
    port.protocol.is_http2() || port.protocol == Protocol::Auto
}

/// Names the clients that do not support a part.
fn named(clients: &[&Proxy]) -> Option<String> {
    let first = clients.first()?;
    let more = match clients.len() {
        1 => String::new(),
        count => format!(" and {} more", count - 1),
    };
    Some(format!("gRPC without a proxy ({}{more})", first.id))
}

impl ConfigView<'_> {
    fn libraries(&self) -> impl Iterator<Item = &Proxy> {
        self.clients.proxies().iter().copied().filter(|proxy| proxy.is_proxyless())
    }

    /// Returns the reasons about an object's own `rules` at proxyless clients for which the rules
    /// of a host belong to `routed`. The array contains the field names of the rules and of their
    /// matches.
    pub(super) fn rules_at_libraries(
        &self,
        routed: &RoutedService,
        hosts: &[&HostPattern],
        rules: &[HttpRule],
        [list, matches]: [&str; 2],
    ) -> Vec<Reason> {
        let calls = |proxy: &&Proxy| {
            let (namespace, selection) = (proxy.namespace(), self.context.selection(proxy));
            hosts.iter().any(|host| {
                let (ports, _) = self.ports_of(host, namespace, &selection);
                ports.iter().filter(|port| may_be_called(port)).any(|port| {
                    let owners = self.owners_of_port(host, namespace, &selection, port);
                    owners.first().is_some_and(|owner| owner.service.meta == routed.service.meta)
                })
            })
        };
        let clients: Vec<_> = self.libraries().filter(calls).collect();
        let Some(clients_text) = named(&clients) else { return Vec::new() };
        let mut reasons = Vec::new();
        for (at, rule) in rules.iter().enumerate().filter(|(_, rule)| !rule.refused) {
            let path = format!("spec.{list}[{at}]");
            for (place, one) in rule.matches.iter().enumerate() {
                if let CallMatch::Unsupported(what) = proxyless::interpret_match(one) {
                    let text = format!(
                        "{clients_text}: calls that match the rest of the condition fail: {what}"
                    );
                    let path = format!("{path}.{matches}[{place}]");
                    reasons.push(Reason::warning(&codes::RULE_ON_LIBRARY, path, text));
                }
            }
            if let Some(what) = proxyless::obstacle(rule) {
                let text = format!("{clients_text}: calls that match the rule fail: {what}");
                reasons.push(Reason::warning(&codes::RULE_ON_LIBRARY, &*path, text));
            }
            let passed_over = proxyless::passed_over(rule);
            if !passed_over.is_empty() {
                let text = format!("{clients_text}: {}", passed_over.join("; "));
                reasons.push(Reason::warning(&codes::PART_ON_LIBRARY, path, text));
            }
        }
        reasons
    }

    /// Returns the reason about a traffic policy at proxyless clients.
    pub(super) fn policy_at_libraries(&self, rule: &DestinationRule) -> Option<Reason> {
        let mut facts = BTreeSet::new();
        let calls = |proxy: &&Proxy| {
            let (namespace, selection) = (proxy.namespace(), self.context.selection(proxy));
            let client = RuleClient { namespace, selection: &selection };
            let services = all_seen(self.context, &rule.host, namespace);
            services.into_iter().any(|service| {
                proxied(service).any(may_be_called)
                    && self.rule_of(service, client, rule.meta()).is_ok()
            })
        };
        let mut clients: Vec<_> = self.libraries().filter(calls).collect();
        let own =
            rule.policy.iter().chain(rule.subsets.values().filter_map(|it| it.policy.as_ref()));
        let groups =
            own.flat_map(|policy| std::iter::once(&policy.groups).chain(policy.ports.values()));
        let groups: Vec<&PolicyGroups> = groups.collect();
        clients.retain(|proxy| {
            let library = proxy.grpc.unwrap_or_default();
            let found = groups.iter().flat_map(|one| proxyless::policy_passed_over(one, library));
            let found: Vec<_> = found.collect();
            facts.extend(found.iter().copied());
            !found.is_empty()
        });
        let clients_text = named(&clients)?;
        let facts = facts.into_iter().collect::<Vec<_>>().join("; ");
        let text = format!("{clients_text}: {facts}");
        Some(Reason::warning(&codes::POLICY_ON_LIBRARY, "spec", text))
    }
}
