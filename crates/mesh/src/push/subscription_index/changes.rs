//! The changes of one version, and which streams they affect.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

use crate::push::scope::{AffectedResources, ProxyLocation};
use crate::push::view::ViewKey;
use strait_model::{ClusterId, Hostname, Namespace, NetworkId, WorkloadKey};
use strait_rules::access::ConcernedWorkloads;

/// One kind of change. Every change to the mesh is reported to streams as a set of these.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum ChangedItem {
    /// The endpoints of a service: its assignments.
    Endpoints(Hostname),
    /// The endpoints of a service on which more than its assignments depends: a headless service, a
    /// service whose upstream cluster contains the endpoints, a service without a selector.
    Members(Hostname),
    /// The accounts of a service's endpoints, or whether any may accept mTLS: its upstream
    /// clusters.
    Accounts(Hostname),
    /// The definition of a service.
    Definition(Hostname),
    /// The record of a pod.
    Workload(ClusterId, WorkloadKey),
    /// The traffic rules for a service.
    Traffic(Hostname),
    /// The selectors of rules.
    Selectors,
    /// The imports of proxies in a namespace.
    Imports(Namespace),
    /// The access logs of proxies in a namespace.
    Logging(Namespace),
    /// The additional filters of proxies in a namespace.
    Filters(Namespace),
    /// The inbound configuration of routers: Gateways and the rules bound to them.
    Gateways,
    /// The set of machines and nodes, or their data.
    Machines,
    /// The network of an endpoint or proxy.
    Networks,
    /// The gateways of a network. The services behind it are listed separately.
    NetworkGateways(NetworkId),
    /// The mode of a cluster, for example draining. Its services are listed separately.
    ClusterMode(ClusterId),
    /// The access policies of a namespace; policies of the root namespace apply to the whole mesh.
    Access(Namespace),
    /// Settings that apply to all proxies: mesh config, policy, the set of clusters.
    Mesh,
}

impl ChangedItem {
    /// Returns the service, if more than its assignments changed.
    fn service(&self) -> Option<&Hostname> {
        match self {
            Self::Definition(host)
            | Self::Accounts(host)
            | Self::Members(host)
            | Self::Traffic(host) => Some(host),
            _ => None,
        }
    }

    /// Returns whether [`crate::push::scope::ChangeImpact`] computes which proxies it affects.
    fn needs_impact(&self) -> bool {
        !matches!(
            self,
            Self::Endpoints(_)
                | Self::Workload(..)
                | Self::Networks
                // The affected services are listed separately.
                | Self::NetworkGateways(_)
                | Self::ClusterMode(_)
                | Self::Mesh
                // The affected proxies follow from the policies.
                | Self::Access(_)
        )
    }
}

/// The changes of one version, as the event loop reports them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Changes {
    /// The changes.
    pub deps: BTreeSet<ChangedItem>,
    /// For services whose endpoints changed, the view classes in which nothing differs. Their
    /// streams are not notified.
    pub unaffected_views: BTreeMap<Hostname, Vec<Arc<ViewKey>>>,
    /// The namespaces of the proxies that the other changes can affect; `None` for all.
    pub reach: Option<BTreeSet<Namespace>>,
    /// The effect on individual streams, sorted by stream number. Any other stream is notified of
    /// everything.
    pub seen: Vec<AffectedStream>,
    /// The workloads for which access policies may differ; `None` if unknown, so that any may be
    /// affected.
    pub concerned: Option<ConcernedWorkloads>,
    /// Streams of these workloads for which the policies do not differ, sorted by
    /// stream number, each with its location.
    pub same_access: Vec<(u32, Arc<ProxyLocation>)>,
    /// When the event loop received the first event of the change.
    pub since: Option<Instant>,
}

/// The effect of a change on one stream at its location.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AffectedStream {
    stream: u32,
    location: Arc<ProxyLocation>,
    seen: Arc<AffectedResources>,
}

impl Changes {
    /// Returns changes to the endpoints of these services, on which only assignments depend.
    pub fn for_endpoints(hosts: impl IntoIterator<Item = Hostname>) -> Self {
        hosts.into_iter().map(ChangedItem::Endpoints).collect()
    }

    /// Returns whether nothing changed.
    pub fn is_empty(&self) -> bool {
        self.deps.is_empty()
    }

    /// Returns whether anything may differ for any proxy.
    pub fn is_everything(&self) -> bool {
        self.deps.contains(&ChangedItem::Networks) || self.deps.contains(&ChangedItem::Mesh)
    }

    /// Returns the services whose endpoints changed.
    pub fn endpoints(&self) -> impl Iterator<Item = &Hostname> {
        self.deps.iter().filter_map(|dep| match dep {
            ChangedItem::Endpoints(host) => Some(host),
            _ => None,
        })
    }

    /// Returns the services with changes to more than their assignments.
    pub fn services(&self) -> BTreeSet<Hostname> {
        self.deps.iter().filter_map(ChangedItem::service).cloned().collect()
    }

    /// Returns whether [`crate::push::scope::ChangeImpact`] must compute which proxies are affected.
    pub fn affects_services(&self) -> bool {
        self.deps.iter().any(ChangedItem::needs_impact)
    }

    /// Returns whether the changes for [`crate::push::scope::ChangeImpact`] are all changes to services.
    pub fn affects_only_hosts(&self) -> bool {
        self.deps.iter().filter(|dep| dep.needs_impact()).all(|dep| dep.service().is_some())
    }

    /// Returns whether the location of proxies, as rules and views see it, may differ.
    pub fn may_move(&self) -> bool {
        let moves = |dep: &ChangedItem| {
            matches!(dep, ChangedItem::Machines | ChangedItem::Selectors | ChangedItem::Imports(_))
        };
        self.deps.iter().any(moves)
    }

    /// Returns whether access policies changed.
    pub fn affects_access(&self) -> bool {
        self.deps.iter().any(|dep| matches!(dep, ChangedItem::Access(_)))
    }

    /// Returns whether access policies are unchanged for `stream` at location `location`.
    pub(super) fn has_same_access(
        &self,
        stream: u32,
        location: Option<&Arc<ProxyLocation>>,
    ) -> bool {
        let found = self.same_access.binary_search_by_key(&stream, |(stream, _)| *stream);
        let found = found.ok().and_then(|at| self.same_access.get(at));
        // The number may have been reused for another stream.
        found.zip(location).is_some_and(|((_, compared), location)| Arc::ptr_eq(compared, location))
    }

    /// Stores the effect on each stream.
    pub fn set_seen(
        &mut self,
        locations: Vec<(u32, Arc<ProxyLocation>)>,
        seen: Vec<Arc<AffectedResources>>,
    ) {
        let effect_on_stream =
            |((stream, location), seen)| AffectedStream { stream, location, seen };
        self.seen = locations.into_iter().zip(seen).map(effect_on_stream).collect();
    }

    /// Returns the effect on `stream` at location `location`, if it is known.
    pub(super) fn seen_by(
        &self,
        stream: u32,
        location: Option<&Arc<ProxyLocation>>,
    ) -> Option<&AffectedResources> {
        let at = self.seen.binary_search_by_key(&stream, |one| one.stream).ok()?;
        let found = self.seen.get(at)?;
        // The number may have been reused for another stream.
        location
            .is_some_and(|location| Arc::ptr_eq(location, &found.location))
            .then_some(&*found.seen)
    }
}

impl FromIterator<ChangedItem> for Changes {
    fn from_iter<I: IntoIterator<Item = ChangedItem>>(deps: I) -> Self {
        Self { deps: deps.into_iter().collect(), ..Self::default() }
    }
}
