//! Translates rules to routes for gRPC libraries: Envoy's routes without the parts that a library
//! refuses or ignores. [`proxyless`] decides which parts of a rule a library supports.
//! (docs/how-to/grpc-proxyless.md, "Routes".)

use std::sync::Arc;

use super::super::lds::everything;
use super::rules::{FAULT, RuleInputs, RuleRoute, header, rule_route};
use super::text::regex;
use strait_base::codes;
use strait_proto::envoy::envoy::config::core::v3 as core;
use strait_proto::envoy::envoy::config::route::v3 as route;
use strait_rules::traffic::proxyless::{self, CallMatch};
use strait_rules::traffic::re2;
use strait_rules::traffic::route::{
    HttpRoutes, HttpRule, PathMatch, RareConditions, RequestMatch, TextMatch,
};

/// Returns the routes of these rules for a client of this kind, as fields of a virtual host. Empty
/// if no rule applies to the client.
///
/// The last route fails calls that no rule matches, so that rules always result in routes: a
/// library may refuse a virtual host without routes, and removes routes whose path no call can
/// have.
pub(super) fn encoded(rules: &HttpRoutes, inputs: RuleInputs<'_>) -> Vec<u8> {
    let RuleInputs { gateway, namespace, selection, port, .. } = inputs;
    let mut bytes = Vec::new();
    let mut takes_all = true;
    for (_, rule, request) in rules.chosen(gateway, namespace, selection, port) {
        takes_all = false;
        for route in rule_routes(rules, rule, request, inputs) {
            takes_all = route.is_catch_all;
            route.write(&mut bytes);
        }
    }
    if !takes_all {
        let unmatched = everything(failing("no rule matches the call".to_owned()));
        let unmatched = route::Route { name: "none".to_owned(), ..unmatched };
        RuleRoute { route: unmatched, ..RuleRoute::default() }.write(&mut bytes);
    }
    bytes
}

/// Encodes a route without a rule as a field of a virtual host.
pub(super) fn plain(route: route::Route) -> Vec<u8> {
    let mut bytes = Vec::new();
    fitted(RuleRoute { route, ..RuleRoute::default() }).write(&mut bytes);
    bytes
}

/// Returns the routes of a rule for calls that fit a match; none if no call can fit. If a library
/// cannot apply the rule or evaluate its conditions, the calls fail.
fn rule_routes(
    rules: &HttpRoutes,
    rule: &HttpRule,
    request: &RequestMatch,
    inputs: RuleInputs<'_>,
) -> Vec<RuleRoute> {
    let Some((supported, alternatives)) = alternatives_for(request) else { return Vec::new() };
    let unsupported = match proxyless::interpret_match(request) {
        CallMatch::Unsupported(what) => Some(what),
        CallMatch::Never | CallMatch::Supported => None,
    };
    let more = RareConditions { without_headers: [].into(), ..RareConditions::clone(&supported) };
    let plain = RequestMatch { more: more.into(), ..supported.clone() };
    let mut made = rule_route(rules, rule, &plain, inputs);
    let obstacle = unsupported.or_else(|| proxyless::obstacle(rule).map(str::to_owned));
    if let Some(what) = obstacle {
        made.route.action = Some(failing(format!("{}: {what}", codes::RULE_ON_LIBRARY.id)));
    }
    let mut made = fitted(made);
    made.route.r#match = made.route.r#match.map(|wanted| with_path(wanted, &supported));
    alternatives.into_iter().map(|more| made.with_headers(more)).collect()
}

/// Returns the part of a match that a library evaluates, and the additional conditions of each
/// resulting route. Returns `None` if no call can fit the match.
pub(super) fn alternatives_for(
    request: &RequestMatch,
) -> Option<(RequestMatch, Vec<Vec<route::HeaderMatcher>>)> {
    let supported = proxyless::supported_conditions(request);
    let alternatives = without_headers(&supported.without_headers);
    (proxyless::interpret_match(request) != CallMatch::Never).then_some((supported, alternatives))
}

/// Returns the route without the parts that a library ignores or refuses. A route without a
/// destination fails calls.
fn fitted(made: RuleRoute) -> RuleRoute {
    use route::route::Action;
    let RuleRoute { route, mut filters, is_catch_all } = made;
    let action = match route.action {
        Some(Action::Route(action)) => Action::Route(followed(action)),
        Some(answer @ Action::DirectResponse(_)) => answer,
        _ => failing(String::new()),
    };
    let is_forwarded = matches!(action, Action::Route(_));
    filters.retain(|name, _| *name == FAULT && is_forwarded);
    let route = route::Route {
        name: route.name,
        r#match: route.r#match,
        metadata: route.metadata,
        action: Some(action),
        ..Default::default()
    };
    RuleRoute { route, filters, is_catch_all }
}

/// Returns an action that fails calls. A library fails calls for every action other than
/// forwarding, and reads neither status nor text.
fn failing(text: String) -> route::route::Action {
    let text = core::data_source::Specifier::InlineString(text);
    let body = core::DataSource { specifier: Some(text), ..Default::default() };
    let answer =
        route::DirectResponseAction { status: 500, body: Some(body), ..Default::default() };
    route::route::Action::DirectResponse(answer)
}

/// Returns the parts of an action that a library supports.
fn followed(action: route::RouteAction) -> route::RouteAction {
    use route::route_action::{ClusterSpecifier, MaxStreamDuration};
    let cluster_specifier = action.cluster_specifier.map(|specifier| match specifier {
        ClusterSpecifier::WeightedClusters(several) => {
            let share = |cluster: route::weighted_cluster::ClusterWeight| {
                route::weighted_cluster::ClusterWeight {
                    name: cluster.name,
                    weight: cluster.weight,
                    ..Default::default()
                }
            };
            let clusters = several.clusters.into_iter().map(share).collect();
            let weighted = route::WeightedCluster { clusters, ..Default::default() };
            ClusterSpecifier::WeightedClusters(weighted)
        }
        specifier => specifier,
    });
    let timeout = action.timeout.filter(|time| *time != Default::default());
    route::RouteAction {
        cluster_specifier,
        // The timeout of the entire call, which also limits the application's deadline (gRFC A31).
        max_stream_duration: timeout.map(|timeout| MaxStreamDuration {
            max_stream_duration: Some(timeout),
            ..Default::default()
        }),
        retry_policy: action.retry_policy.and_then(retried),
        hash_policy: action.hash_policy,
        ..Default::default()
    }
}

/// Returns the supported part of a retry policy (gRFC A44), or `None` if nothing is left.
fn retried(policy: route::RetryPolicy) -> Option<route::RetryPolicy> {
    let retry_on = proxyless::retried_on(&policy.retry_on);
    (!retry_on.is_empty()).then(|| route::RetryPolicy {
        retry_on,
        num_retries: policy.num_retries,
        retry_back_off: policy.retry_back_off,
        ..Default::default()
    })
}

/// Returns a match whose path has a format that libraries support. They do not support prefixes by
/// segment.
fn with_path(mut wanted: route::RouteMatch, supported: &RequestMatch) -> route::RouteMatch {
    if let Some(PathMatch::Segments(prefix)) = &supported.path {
        let case = if supported.ignore_case { "(?i)" } else { "" };
        let expression = format!("{case}{}(/.*)?", re2::escaped(prefix));
        wanted.path_specifier =
            Some(route::route_match::PathSpecifier::SafeRegex(regex(&expression)));
    }
    wanted
}

/// Returns alternatives of conditions that exclude header values. A library matches an absent
/// header neither with a pattern nor with its inversion, so each such header is either absent or
/// has another value.
fn without_headers(wanted: &[(Arc<str>, TextMatch)]) -> Vec<Vec<route::HeaderMatcher>> {
    let mut alternatives = vec![Vec::new()];
    for (name, text) in wanted {
        let not =
            |text: &TextMatch| route::HeaderMatcher { invert_match: true, ..header(name, text) };
        let mut choices = vec![not(&TextMatch::Present)];
        if *text != TextMatch::Present {
            choices.push(not(text));
        }
        let longer = alternatives.iter().flat_map(|alternative| {
            choices.iter().map(|choice| alternative.iter().chain([choice]).cloned().collect())
        });
        alternatives = longer.collect();
    }
    alternatives
}
