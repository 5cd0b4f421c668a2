//! The result of following a request or a connection.

use std::sync::Arc;

use strait_mesh::push::PushContext;
use strait_model::ClusterId;
use strait_rules::traffic::HostPattern;
use strait_rules::traffic::route::{RouteOrigin, RulePlace, TcpRule};
use strait_rules::traffic::virtual_service_selection::RoutedService;

/// The reason for a rule that matches but comes after the deciding one.
pub(super) const BEHIND: &str = "it matches as well, but comes after the deciding rule";

/// The path of a request through the configuration.
#[derive(Debug, Default)]
pub struct RequestWalk {
    /// The node ID of the proxy.
    pub proxy: String,
    /// The listener that accepts the connection.
    pub listener: Option<String>,
    /// The filter chain of the listener.
    pub chain: Option<String>,
    /// The route configuration.
    pub route: Option<String>,
    /// The virtual host in the route configuration.
    pub virtual_host: Option<String>,
    /// The deciding rule; `None` if no rule applies.
    pub rule: Option<RuleName>,
    /// Rules and objects that do not apply, with reasons.
    pub lost: Vec<LostRule>,
    /// The destinations of the request.
    pub destinations: Vec<RequestDestination>,
    /// The status of the proxy's own response.
    pub answer: Option<u32>,
    /// The URL of a redirect.
    pub location: Option<String>,
    /// The outcome, as text.
    pub outcome: String,
    /// Other effects: faults, mirrors, path changes.
    pub notes: Vec<String>,
    /// The credentials that the chain needs, by the names that the proxy requests.
    pub credentials: Vec<String>,
}

/// A rule of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuleName {
    /// The kind of the object.
    pub kind: &'static str,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// The cluster that owns the object, if it is a cluster's own object.
    pub cluster: Option<String>,
    /// The index of the rule in the object, from 0; `None` for the entire object.
    pub index: Option<u32>,
    /// The path of the rule in the object: `spec.http[0]`.
    pub path: String,
    /// The rule that delegates to it.
    pub via: Option<Box<Self>>,
}

/// A rule that does not decide.
#[derive(Debug)]
pub struct LostRule {
    /// The rule.
    pub rule: RuleName,
    /// The reason.
    pub reason: String,
}

/// An upstream cluster that receives requests.
#[derive(Debug)]
pub struct RequestDestination {
    /// Its name.
    pub cluster: String,
    /// The subset of the service; empty for the entire service.
    pub subset: String,
    /// Its weight.
    pub weight: u32,
    /// The number of endpoints that the proxy receives; `None` if it discovers them itself.
    pub endpoints: Option<usize>,
    /// Whether the proxy has this upstream cluster.
    pub known: bool,
}

/// Returns an object without a deciding rule, with the reason.
pub(super) fn lost_object((routed, reason): &(&Arc<RoutedService>, String)) -> LostRule {
    LostRule { rule: RuleName::whole(&routed.http.origin), reason: reason.clone() }
}

/// Rules that do not route a connection, with the reason against each of their matches.
#[derive(Default)]
pub(super) struct LostRules<'a>(Vec<(&'a TcpRule, RuleName, Vec<String>)>);

impl<'a> LostRules<'a> {
    /// Adds a reason against a rule.
    pub(super) fn push(
        &mut self,
        rule: &'a TcpRule,
        name: impl FnOnce() -> RuleName,
        reason: String,
    ) {
        let existing = self.0.iter_mut().find(|(existing, ..)| std::ptr::eq(*existing, rule));
        match existing {
            Some((.., reasons)) if reason == BEHIND => *reasons = vec![reason],
            Some((.., reasons)) if reasons.contains(&reason) || reasons[..] == [BEHIND] => {}
            Some((.., reasons)) => reasons.push(reason),
            None => self.0.push((rule, name(), vec![reason])),
        }
    }

    /// Returns all rules except for the deciding one.
    pub(super) fn all_but(self, winner: Option<&TcpRule>) -> impl Iterator<Item = LostRule> {
        let lost = self.0.into_iter();
        lost.filter(move |(rule, ..)| !winner.is_some_and(|winner| std::ptr::eq(winner, *rule)))
            .map(|(_, rule, reasons)| LostRule { rule, reason: reasons.join("; or: ") })
    }
}

/// Returns the reason why a connection with the SNI `given` does not match a chain.
pub(super) fn against_name(given: Option<&str>, served_name: &HostPattern) -> String {
    match given {
        None => format!("it is for TLS connections with the SNI {served_name}"),
        Some(name) if served_name.matches(name) => {
            format!("{name} matches another name more specifically than {served_name}")
        }
        Some(name) => format!("the SNI {name} is not {served_name}"),
    }
}

impl RequestWalk {
    /// Sets the cluster of each rule whose object is specific to the proxy's cluster.
    pub fn name_clusters(&mut self, context: &PushContext, cluster: &ClusterId) {
        if !context.own_traffic.contains_key(cluster) {
            return;
        }
        let lost = self.lost.iter_mut().map(|lost| &mut lost.rule);
        for rule in self.rule.iter_mut().chain(lost) {
            let mut rule = Some(rule);
            while let Some(current) = rule {
                let is_own =
                    context.is_own(cluster, current.kind, &current.namespace, &current.name);
                current.cluster = is_own.then(|| cluster.to_string());
                rule = current.via.as_deref_mut();
            }
        }
    }
}

impl RuleName {
    pub(super) fn whole(origin: &RouteOrigin) -> Self {
        Self {
            kind: origin.kind.in_objects(),
            namespace: origin.namespace.to_string(),
            name: origin.name.to_string(),
            cluster: None,
            index: None,
            path: "spec".to_owned(),
            via: None,
        }
    }

    fn at(origin: &RouteOrigin, place: &RulePlace) -> Self {
        Self { index: Some(place.index), path: origin.http_rule_path(place), ..Self::whole(origin) }
    }

    pub(super) fn for_http_rule(routed: &RoutedService, place: &RulePlace) -> Self {
        let root = &routed.http.origin;
        let origin = place.origin.as_deref().unwrap_or(root);
        let via = place.via.map(|index| RulePlace { index, ..RulePlace::default() });
        let via = via.map(|place| Box::new(Self::at(root, &place)));
        Self { via, ..Self::at(origin, place) }
    }

    /// Returns the name of a rule for connections in a list of the rule's object.
    pub(super) fn for_connection_rule(
        routed: &RoutedService,
        list: &'static str,
        TcpRule { place, .. }: &TcpRule,
    ) -> Self {
        let origin = place.origin.as_ref().unwrap_or(&routed.service.origin);
        let path = origin.connection_rule_path(list, place);
        Self { index: Some(place.index), path, ..Self::whole(origin) }
    }
}
