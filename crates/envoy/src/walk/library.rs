//! Explains the route of a gRPC library's call: from the dialled name to routes, upstream clusters
//! and endpoints, which the library requests one by one. (docs/how-to/grpc-proxyless.md, "Routes".)

use super::fit::misfit;
use super::{ProbedRequest, RequestWalk, decoded, notes};
use crate::ProxyConfig;
use crate::library::LibraryConfig;
use crate::rds::{self, RouteCaller};
use strait_proto::envoy::envoy::config::core::v3::data_source::Specifier;
use strait_proto::envoy::envoy::config::route::v3 as route;
use strait_rules::traffic::proxyless;
use strait_rules::traffic::route::HttpRule;
use strait_xds::names::OutboundName;

impl ProxyConfig<'_> {
    /// Follows a call.
    pub(super) fn call(
        &self,
        library: &LibraryConfig<'_>,
        request: &ProbedRequest,
        walk: &mut RequestWalk,
    ) {
        let name = &request.named;
        if request.method() != "POST" || !request.query.is_empty() {
            walk.outcome = format!(
                "a gRPC library sends POST requests without a query: use POST grpc://{name}/SERVICE/METHOD"
            );
            return;
        }
        let Some((service, port)) = library.dialled(name, &self.inputs.proxy.dns_domain) else {
            walk.outcome = format!(
                "the call fails: the library can call no service {name}, and receives no listener of that name"
            );
            return;
        };
        walk.listener = Some(name.clone());
        let route_name = OutboundName::sidecar(service.hostname().clone(), port).to_string();
        let Some(table) = library.route(&route_name) else { return };
        walk.route = Some(route_name);
        let table: route::RouteConfiguration = decoded(&table);
        let Some(host) = table.virtual_hosts.first() else { return };
        walk.virtual_host = Some(host.name.clone());
        let mut misfits: Vec<_> =
            host.routes.iter().map(|route| misfit(route.r#match.as_ref(), request)).collect();
        let decided = misfits.iter().position(Option::is_none);
        let class = self.inputs.common().class(&self.inputs.view);
        let (addresses, lists) =
            (self.inputs.common().addresses(&class), &self.inputs.cache.route_lists);
        let called = (service.hostname(), port, RouteCaller::Library);
        let all = rds::contenders(self.inputs.context, &class, called, &addresses, lists);
        // The last route, after those of rules, fails calls that no rule matches.
        misfits.truncate(all.places.len());
        let rule_index = decided.filter(|at| *at < all.places.len());
        let rule = self.judged(&all, (&misfits, rule_index), walk);
        let Some(route) = decided.and_then(|at| host.routes.get(at)) else {
            walk.outcome = "the call fails: no rule matches it".to_owned();
            return;
        };
        self.acted(route, request, walk);
        // A library fails calls with gRPC statuses, never with HTTP statuses.
        if walk.answer.take().is_some() {
            walk.outcome = match response_text(route) {
                Some(text) => format!("the call fails: {text}"),
                None => format!("the call fails: {}", walk.outcome),
            };
        }
        walk.notes = rule.map(followed).unwrap_or_default();
        walk.notes.extend(self.retries(route, rule));
    }
}

/// Returns the text of a route's direct response.
fn response_text(route: &route::Route) -> Option<String> {
    let Some(route::route::Action::DirectResponse(answer)) = &route.action else { return None };
    match answer.body.as_ref()?.specifier.as_ref()? {
        Specifier::InlineString(text) if !text.is_empty() => Some(text.clone()),
        _ => None,
    }
}

/// Returns other effects of a rule on calls, and the parts of the rule that a library ignores.
fn followed(rule: &HttpRule) -> Vec<String> {
    let mut supported = rule.clone();
    (supported.mirrors, supported.rewrite) = (None, None);
    let mut effects = notes(&supported);
    let lost = proxyless::passed_over(rule).into_iter();
    effects.extend(lost.map(|what| format!("ignored by the library: {what}")));
    effects
}
