//! What is said of the way of a request or a connection.

use std::sync::Arc;

use serde::Serialize;

use strait_mesh::push::PushContext;
use strait_model::ClusterId;
use strait_rules::traffic::HostPattern;
use strait_rules::traffic::route::{RouteOrigin, RulePlace, TcpRule};
use strait_rules::traffic::virtual_services::RoutedService;

/// What is to be said of a rule that comes too late.
pub(super) const BEHIND: &str = "it fits as well, and stands behind the rule that decides";

/// The way of a request, as far as it goes.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RequestWalk {
    /// The node id of the proxy.
    pub proxy: String,
    /// The listener that takes the connection.
    pub listener: Option<String>,
    /// The chain of it.
    pub chain: Option<String>,
    /// The table of routes.
    pub route: Option<String>,
    /// The virtual host in it.
    pub virtual_host: Option<String>,
    /// The rule that decides; `None` where none says anything.
    pub rule: Option<RuleName>,
    /// Rules and objects that don't, each with the reason.
    pub lost: Vec<LostRule>,
    /// Where the request goes.
    pub destinations: Vec<RequestDestination>,
    /// The status that the proxy answers by itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub answer: Option<u32>,
    /// Where it sends the client instead.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub location: Option<String>,
    /// What becomes of it, in words.
    pub outcome: String,
    /// What else happens to it: faults, copies, another path.
    pub notes: Vec<String>,
    /// The credentials that the chain needs, as the proxy asks for them.
    #[serde(skip)]
    pub credentials: Vec<String>,
}

/// A rule of an object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RuleName {
    /// The kind of the object.
    pub kind: &'static str,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// The cluster whose own it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cluster: Option<String>,
    /// The place of the rule in the object, from 0; `None` for the whole object.
    pub index: Option<u32>,
    /// Where that is: `spec.http[0]`.
    pub path: String,
    /// The rule that delegates to it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub via: Option<Box<Self>>,
}

/// A rule that doesn't decide.
#[derive(Debug, Serialize)]
pub struct LostRule {
    /// Which.
    pub rule: RuleName,
    /// Why not.
    pub reason: String,
}

/// An upstream cluster that requests go to.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RequestDestination {
    /// Its name.
    pub cluster: String,
    /// The subset of the service; empty for all of it.
    pub subset: String,
    /// Its share.
    pub weight: u32,
    /// How many endpoints the proxy is sent; `None` where it finds them by itself.
    pub endpoints: Option<usize>,
    /// Whether the proxy has such an upstream cluster.
    pub known: bool,
}

/// An object none of whose rules decides, with the reason.
pub(super) fn lost_object((routed, reason): &(&Arc<RoutedService>, String)) -> LostRule {
    LostRule { rule: RuleName::whole(&routed.http.origin), reason: reason.clone() }
}

/// Rules that don't lead a connection, with what there is to say against each of their matches.
#[derive(Default)]
pub(super) struct LostRules<'a>(Vec<(&'a TcpRule, RuleName, Vec<String>)>);

impl<'a> LostRules<'a> {
    /// Notes what there is to say against one of them.
    pub(super) fn push(
        &mut self,
        rule: &'a TcpRule,
        name: impl FnOnce() -> RuleName,
        reason: String,
    ) {
        let known = self.0.iter_mut().find(|(known, ..)| std::ptr::eq(*known, rule));
        match known {
            Some((.., reasons)) if reason == BEHIND => *reasons = vec![reason],
            Some((.., reasons)) if reasons.contains(&reason) || reasons[..] == [BEHIND] => {}
            Some((.., reasons)) => reasons.push(reason),
            None => self.0.push((rule, name(), vec![reason])),
        }
    }

    /// All but the one that does.
    pub(super) fn all_but(self, winner: Option<&TcpRule>) -> impl Iterator<Item = LostRule> {
        let lost = self.0.into_iter();
        lost.filter(move |(rule, ..)| !winner.is_some_and(|winner| std::ptr::eq(winner, *rule)))
            .map(|(_, rule, reasons)| LostRule { rule, reason: reasons.join("; or: ") })
    }
}

/// What is to be said against a chain that a connection, which begins TLS with `given`, isn't in.
pub(super) fn against_name(given: Option<&str>, taken: &HostPattern) -> String {
    match given {
        None => format!("it is for TLS that begins with the name {taken}"),
        Some(name) if taken.matches(name) => {
            format!("{name} fits another name better than its {taken}")
        }
        Some(name) => format!("the name {name} is not {taken}"),
    }
}

impl RequestWalk {
    /// Says of each rule whether it is of an object of the proxy's cluster's own.
    pub fn name_clusters(&mut self, context: &PushContext, cluster: &ClusterId) {
        if !context.own_traffic.contains_key(cluster) {
            return;
        }
        let lost = self.lost.iter_mut().map(|lost| &mut lost.rule);
        for rule in self.rule.iter_mut().chain(lost) {
            let mut rule = Some(rule);
            while let Some(one) = rule {
                let is_own = context.is_own(cluster, one.kind, &one.namespace, &one.name);
                one.cluster = is_own.then(|| cluster.to_string());
                rule = one.via.as_deref_mut();
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
        Self { index: Some(place.index), path: origin.path_of(place), ..Self::whole(origin) }
    }

    pub(super) fn of(routed: &RoutedService, place: &RulePlace) -> Self {
        let root = &routed.http.origin;
        let origin = place.of.as_deref().unwrap_or(root);
        let via = place.via.map(|index| RulePlace { index, ..RulePlace::default() });
        let via = via.map(|place| Box::new(Self::at(root, &place)));
        Self { via, ..Self::at(origin, place) }
    }

    /// That of a rule for connections, which is in a list of its object.
    pub(super) fn of_connections(
        routed: &RoutedService,
        list: &'static str,
        TcpRule { place, .. }: &TcpRule,
    ) -> Self {
        let origin = place.of.as_ref().unwrap_or(&routed.service.origin);
        let path = origin.path_of_connections(list, place);
        Self { index: Some(place.index), path, ..Self::whole(origin) }
    }
}
