//! Updates the routes of a port when only rules have changed. Few fragments are generated again.

use std::sync::Arc;

use super::groups::HostGroups;
use super::lists::{self, RouteLists};
use super::{RouteBase, with_rules};
use crate::chunks::Chunks;
#[cfg(test)]
use crate::chunks::FRAGMENTS_MAX;
use crate::class::Class;
use strait_mesh::push::PushContext;
use strait_model::Hostname;
use strait_rules::traffic::HostPattern;

impl RouteBase {
    /// Returns the route with the new rules for these hosts, if nothing else has changed. Returns
    /// `None` if more than the routes of services may differ: then the route must be generated from
    /// scratch.
    pub(crate) fn amended(
        self: &Arc<Self>,
        context: &PushContext,
        class: &Class,
        hosts: &[HostPattern],
        (chunks, lists): (&Chunks, &RouteLists),
    ) -> Option<Arc<Self>> {
        let (mut listed, mut changed) = (self.lists.clone(), Vec::new());
        for host in hosts {
            // Conflicts of names, and hosts that only rules name, depend on all hosts.
            let hostname = host.exact().filter(|_| self.disputed.is_empty())?;
            let Some(at) = self.fragment_index(hostname) else {
                if self.may_include_ruled_hosts() {
                    return None;
                }
                continue;
            };
            let routes = lists::service_routes(context, class, self.number, hostname, lists);
            let digest = routes.as_ref().map(|routes| routes.digest);
            if digest != listed.get(&at).map(|routes| routes.digest) {
                changed.push(at);
            }
            match routes {
                Some(routes) => listed.insert(at, routes),
                None => listed.remove(&at),
            };
        }
        if changed.is_empty() {
            return Some(Arc::clone(self));
        }
        let groups = HostGroups::new(with_rules(&listed, &self.ruled, self.places.len()));
        let changed = self.groups.changed_fragments(&groups, &changed);
        let mut amended = Self {
            number: self.number,
            addresses: Arc::clone(&self.addresses),
            places: Arc::clone(&self.places),
            lists: listed,
            ruled: Arc::clone(&self.ruled),
            groups,
            aliases: Arc::clone(&self.aliases),
            chunks: Arc::default(),
            starts: Box::default(),
            runs: Arc::default(),
            completes: self.completes,
            domains: Arc::clone(&self.domains),
            disputed: Box::default(),
            settled_apart: self.settled_apart.clone(),
            by_namespace: Arc::clone(&self.by_namespace),
        };
        let searched = amended.searched(context);
        let all = (amended.len(), |at| amended.planned_at(at));
        let joined = chunks.amended(&self.chunks, all, &changed, |at, fragment, draft| {
            if changed.binary_search(&at).is_ok() {
                return fragment.write(&searched, chunks, draft);
            }
            let (_, bytes, domains) = self.fragment(at);
            draft.keep(bytes, domains);
        });
        let ends = [self.runs.first()?, self.runs.last()?].map(Clone::clone);
        amended.join(joined, ends);
        Some(Arc::new(amended))
    }

    /// Returns the fragment of a service.
    fn fragment_index(&self, hostname: &Hostname) -> Option<usize> {
        let is = |place: &u32| self.addresses.services[*place as usize].0.hostname() == hostname;
        self.places.iter().position(is)
    }

    /// Returns whether the route may contain hosts that no service has.
    fn may_include_ruled_hosts(&self) -> bool {
        let services = self.places.iter().map(|place| &self.addresses.services[*place as usize].0);
        lists::may_have_ruled_hosts(
            self.number,
            services.map(|service| HostPattern::for_service(service.hostname())),
        )
    }

    /// Returns the number of chunks that are not shared with the other base.
    #[cfg(test)]
    pub(crate) fn made_beyond(&self, other: &Self) -> usize {
        let is_others = |one: &Arc<_>| other.chunks.iter().any(|other| Arc::ptr_eq(one, other));
        assert!(Arc::ptr_eq(&self.addresses, &other.addresses), "addresses are shared");
        self.chunks.iter().filter(|one| !is_others(one)).count()
    }

    /// Returns the maximum number of chunks that change with one fragment: one, or two if a chunk
    /// ends there now, plus one for each chunk of maximum length, because the end of that chunk
    /// moves the start of the next.
    #[cfg(test)]
    pub(crate) fn made_most(&self) -> usize {
        2 + self.chunks.iter().filter(|one| one.len() == FRAGMENTS_MAX).count()
    }
}
