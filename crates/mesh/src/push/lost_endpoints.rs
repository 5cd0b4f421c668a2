//! Endpoints that clients would lose in a change of configuration: the service exists in both
//! versions, but a subset, a Sidecar or a network no longer includes the endpoint.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use super::context::{PushContext, Whereabouts};
use super::imports::Imports;
use super::scope::ProxyLocation;
use super::subset::{SubsetFilter, subset_names};
use super::view::{Role, ViewKey, assignment_of};
use crate::aggregate::MergedService;
use strait_model::Hostname;

/// A port of a service or subset for which a client receives fewer endpoints than in the earlier
/// version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LostEndpoints {
    /// The service.
    pub host: Hostname,
    /// The port.
    pub port: u16,
    /// The subset; empty for the whole service.
    pub subset: String,
    /// The node ID of an affected client.
    pub client: Arc<str>,
    /// The sum of the weights of the client's endpoints in the earlier version.
    pub before: u64,
    /// The sum of the weights in the later version.
    pub now: u64,
}

impl LostEndpoints {
    /// Returns the lost percentage, rounded down.
    pub fn percent(&self) -> u64 {
        self.before.saturating_sub(self.now) * 100 / self.before.max(1)
    }

    /// Returns whether more than this percentage is lost.
    pub fn is_more_than(&self, percent: u8) -> bool {
        self.before.saturating_sub(self.now) * 100 > u64::from(percent) * self.before
    }
}

impl fmt::Display for LostEndpoints {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, port, subset, client, before, now } = self;
        let subset_text =
            if subset.is_empty() { String::new() } else { format!(", subset {subset}") };
        write!(f, "{host}:{port}{subset_text} has {now} of {before} endpoints for {client}")
    }
}

/// Returns the first port for which a client loses more than `percent` of its endpoints, or `None`
/// if no loss was found before `deadline`. Routers are not checked. A service that the later
/// version lacks is lost completely. A subset that it lacks is ignored, because subsets appear and
/// disappear together with the rules that route to them.
pub fn lost_endpoints(
    versions: [&PushContext; 2],
    locations: &[Arc<ProxyLocation>],
    percent: u8,
    deadline: Instant,
) -> Option<LostEndpoints> {
    // Clients with equal views are checked only once.
    let (mut compared_views, mut compared_services) = (HashSet::new(), HashSet::new());
    for location in locations.iter().filter(|location| !location.proxy.kind.is_gateway()) {
        // No configuration depends on the client's node, and there are as many nodes as clients.
        let whereabouts = Whereabouts { node: None, ..location.whereabouts.clone() };
        let views = versions.map(|context| {
            ViewKey::of(&location.proxy, location.network.clone(), Role::Client)
                .at(whereabouts.clone())
                .selected(context.selection(&location.proxy))
        });
        if !compared_views.insert(views.clone()) {
            continue;
        }
        let imports = [0, 1].map(|at| Imports::of(versions[at], &views[at]));
        for old in versions[0].services_of(&views[0].namespace) {
            if Instant::now() > deadline {
                return None;
            }
            if !old.primary.export_to.visible_to(&views[0].namespace) || !imports[0].has(old) {
                continue;
            }
            let new = versions[1].service(old.hostname().as_str(), &views[1].namespace);
            let new = new.filter(|new| imports[1].has(new));
            let projected = [
                Some(views[0].projected(versions[0], old)),
                new.map(|new| views[1].projected(versions[1], new)),
            ];
            if compared_services.insert((old.hostname().clone(), projected))
                && let Some(lost) = lost_by_client(versions, &views, old, new)
                && lost.is_more_than(percent)
            {
                return Some(LostEndpoints { client: Arc::clone(&location.proxy.id), ..lost });
            }
        }
    }
    None
}

/// Returns the port of the service or of a subset that loses the largest part of its endpoints.
fn lost_by_client(
    versions: [&PushContext; 2],
    views: &[ViewKey; 2],
    old: &MergedService,
    new: Option<&Arc<MergedService>>,
) -> Option<LostEndpoints> {
    let then = &versions[0].rules_for(old);
    let since = new.map(|new| versions[1].rules_for(new));
    let rules = [
        views[0].rule(then, old),
        new.zip(since.as_ref()).and_then(|(new, since)| views[1].rule(since, new)),
    ];
    let mut most: Option<LostEndpoints> = None;
    for name in subset_names([rules[0]]) {
        let Some(was) = SubsetFilter::new(then, rules[0], old, name) else { continue };
        let is = new.zip(since.as_ref());
        let is = is.map(|(new, since)| SubsetFilter::new(since, rules[1], new, name));
        if !name.is_empty() && !matches!(is, Some(Some(_))) {
            continue;
        }
        for port in old.ports() {
            let count = |at: usize, service: &MergedService, filter| {
                let assigned =
                    assignment_of(versions[at], &views[at], service, port.number, filter);
                let members = assigned.localities.iter().flat_map(|group| &group.members);
                members.map(|member| u64::from(member.weight)).sum::<u64>()
            };
            let before = count(0, old, was);
            let now = match (new, is.flatten()) {
                (Some(new), Some(filter)) => count(1, new, filter),
                _ => 0,
            };
            let found = LostEndpoints {
                host: old.hostname().clone(),
                port: port.number,
                subset: name.to_owned(),
                client: Arc::default(),
                before,
                now,
            };
            if before > now && most.as_ref().is_none_or(|most| found.percent() > most.percent()) {
                most = Some(found);
            }
        }
    }
    most
}

#[cfg(test)]
mod tests;
