//! Explains which object owns a host for a proxy, and why other objects that name the host do not
//! apply.

use std::sync::Arc;

use super::library;
use super::lists::{RouteLists, at_library, at_sidecar, list};
use super::rules::route_count;
use crate::class::Class;
use strait_mesh::push::PushContext;
use strait_mesh::push::addresses::ListenAddresses;
use strait_model::Hostname;
use strait_model::mesh_config::HostSharing;
use strait_rules::traffic::HostPattern;
use strait_rules::traffic::proxyless::{self, CallMatch};
use strait_rules::traffic::route::{HttpRule, MESH};
use strait_rules::traffic::virtual_service_selection::RoutedService;

/// The kind of client that sends requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RouteCaller {
    /// A workload with a sidecar.
    Sidecar,
    /// A gRPC library.
    Library,
}

/// The objects that name a host, and how each is handled.
pub(crate) struct Contenders<'a> {
    class: &'a Class,
    port: u16,
    caller: RouteCaller,
    /// The object that owns the host.
    pub(crate) winner: Option<&'a Arc<RoutedService>>,
    /// The index of the rule of each route that the owner generates.
    pub(crate) places: Vec<usize>,
    /// If other objects share the host, the object and the rule of each route of all of them, in
    /// the order of routes.
    pub(crate) shared: Vec<(&'a Arc<RoutedService>, &'a HttpRule)>,
    /// The other objects, with reasons.
    pub(crate) others: Vec<(&'a Arc<RoutedService>, String)>,
}

/// Returns the objects that name a host at a port, in the order in which the routes of a proxy of
/// this kind are selected.
pub(crate) fn contenders<'a>(
    context: &'a PushContext,
    class: &'a Class,
    (host, port, caller): (&Hostname, u16, RouteCaller),
    addresses: &ListenAddresses,
    route_lists: &RouteLists,
) -> Contenders<'a> {
    let mut found = Contenders {
        class,
        port,
        caller,
        winner: None,
        places: Vec::new(),
        shared: Vec::new(),
        others: Vec::new(),
    };
    let mut sharing = Vec::new();
    let Class { namespace, selection, .. } = class;
    let services = &context.traffic.virtual_services;
    let pattern = HostPattern::for_service(host);
    let is_service = addresses.services.iter().any(|(service, _)| service.hostname() == host);
    let groups: Vec<Vec<_>> = if is_service {
        services.for_host(&pattern, namespace).collect()
    } else {
        vec![services.for_pattern(&pattern, namespace).collect()]
    };
    let scope = context.traffic.scope(namespace, selection);
    let entrance = || match caller {
        RouteCaller::Sidecar => at_sidecar(port),
        RouteCaller::Library => at_library(port),
    };
    // The first object of a group that has the host, even if it has no rules for the proxy.
    let mut claimed: Option<(usize, &Arc<RoutedService>)> = None;
    let objects = groups.iter().enumerate();
    for (at, routed) in objects.flat_map(|(at, group)| group.iter().map(move |one| (at, *one))) {
        let owner = &routed.service.meta.namespace;
        if scope.is_past_total(owner) {
            let text = format!(
                "the objects of {owner} exceed the size limit for proxies that do not name it"
            );
            found.others.push((routed, text));
            continue;
        }
        if !scope.includes_rules(&pattern, owner)
            && let Some(sidecar) = scope.sidecar()
        {
            found.others.push((routed, format!("Sidecar {} does not import it", sidecar.meta)));
            continue;
        }
        let (group, first) = *claimed.get_or_insert((at, routed));
        if group != at {
            let text = belongs_to(host, found.winner.unwrap_or(first));
            found.others.push((routed, text));
            continue;
        }
        let has_routes = !list(context, class, entrance(), routed, route_lists).bytes.is_empty();
        match found.winner {
            None if has_routes => {
                found.winner = Some(routed);
                let chosen = routed.http.chosen(MESH, namespace, selection, port);
                let chosen = chosen.into_iter();
                found.places = match caller {
                    RouteCaller::Sidecar => {
                        let each = chosen.map(|(place, _, request)| {
                            std::iter::repeat_n(place, route_count(request, MESH, 0))
                        });
                        each.flatten().collect()
                    }
                    RouteCaller::Library => {
                        let routes = |one| {
                            library::alternatives_for(one)
                                .map_or(0, |(_, alternatives)| alternatives.len())
                        };
                        let each =
                            chosen.map(|(place, _, one)| std::iter::repeat_n(place, routes(one)));
                        each.flatten().collect()
                    }
                };
            }
            None => {
                let text = format!("none of its rules applies to this proxy on port {port}");
                found.others.push((routed, text));
            }
            Some(winner)
                if context.mesh.host_sharing == HostSharing::AllJoined
                    && caller == RouteCaller::Sidecar
                    && winner.shares_host(routed, &pattern) =>
            {
                sharing.push(routed);
            }
            Some(winner) => {
                found.others.push((routed, belongs_to(host, winner)));
            }
        }
    }
    if let Some(winner) = found.winner.filter(|_| !sharing.is_empty()) {
        let mut last = Vec::new();
        for routed in [winner].into_iter().chain(sharing) {
            for (_, rule, request) in routed.http.chosen(MESH, namespace, selection, port) {
                let all = if request.is_catch_all() { &mut last } else { &mut found.shared };
                all.extend(std::iter::repeat_n((routed, rule), route_count(request, MESH, 0)));
            }
        }
        found.shared.append(&mut last);
    }
    found
}

/// Returns the reason why an object does not apply to a host of another object.
pub(crate) fn belongs_to(host: &Hostname, winner: &RoutedService) -> String {
    let origin = &winner.http.origin;
    let (kind, namespace, name) = (origin.kind.in_objects(), &origin.namespace, &origin.name);
    format!("{host} belongs to {kind} {namespace}/{name} for this proxy")
}

impl Contenders<'_> {
    /// Returns the reason why a rule of the owner has no route.
    pub(crate) fn reason_against(&self, rule: &HttpRule) -> String {
        let Class { namespace, selection, .. } = self.class;
        let reason = |request: &strait_rules::traffic::route::RequestMatch| {
            if let Some(port) = request.port.filter(|port| *port != self.port) {
                return Some(format!("it is for port {port}"));
            }
            let source = &request.source;
            if source.fits(MESH, namespace, selection) {
                let is_never = self.caller == RouteCaller::Library
                    && proxyless::interpret_match(request) == CallMatch::Never;
                return is_never
                    .then(|| "no call matches it: a call is a POST without a query".to_owned());
            }
            Some(source.misfit(namespace, selection))
        };
        let reasons: Option<Vec<String>> = rule.matches.iter().map(reason).collect();
        match reasons {
            Some(mut reasons) if !reasons.is_empty() => {
                reasons.dedup();
                reasons.join("; or: ")
            }
            _ => "an earlier rule matches every request".to_owned(),
        }
    }
}
