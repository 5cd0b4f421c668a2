//! Settings that affect more than the routing of requests: access logs, tracing, and user filters.

use std::collections::BTreeSet;

use super::snapshot_diff::SnapshotDiff;
use crate::spans::{self, SpanReport};
use strait_mesh::push::PushContext;
use strait_model::{Hostname, Namespace, Proxy};
use strait_rules::traffic::Selection;
use strait_rules::traffic::envoy_filter::PatchPlace;
use strait_rules::traffic::telemetry::CallEnd;

impl SnapshotDiff<'_> {
    /// Returns whether access logs, tracing or metrics change for proxies of a namespace at any of
    /// these ends of calls. `selections` are the selectors that match the proxies before and after.
    pub(super) fn telemetry_differs(
        &self,
        namespace: &Namespace,
        selections: [&Selection; 2],
        ends: &[CallEnd],
    ) -> bool {
        let [before, now] = self.whole;
        let logs = |context: &PushContext, selection, end| {
            let (telemetries, proxies) = (&context.traffic.telemetries, (namespace, selection));
            let logs = telemetries.logs(&context.mesh, proxies, end);
            (logs, telemetries.tracing(&context.mesh, proxies, end))
        };
        // Gateways are servers for logs, but clients for metrics.
        let metrics = |context: &PushContext, selection| {
            let proxies = (namespace, selection);
            [CallEnd::Client, CallEnd::Server]
                .map(|end| context.traffic.telemetries.metrics(proxies, end))
        };
        let [then, since] = selections;
        !self.same_telemetries(namespace)
            && (ends.iter().any(|end| logs(before, then, *end) != logs(now, since, *end))
                || metrics(before, then) != metrics(now, since))
    }

    /// Returns whether user filters change for proxies of a namespace at any of these places.
    /// `selections` are the selectors that match the proxies before and after.
    pub(super) fn filters_differ(
        &self,
        namespace: &Namespace,
        selections: [&Selection; 2],
        places: &[PatchPlace],
    ) -> bool {
        let [before, now] = self.whole.map(|context| &context.traffic.envoy_filters);
        let [then, since] = selections;
        let differs = |place: &PatchPlace| {
            before.at((namespace, then), *place) != now.at((namespace, since), *place)
        };
        !now.same_in(before, namespace) && places.iter().any(differs)
    }

    /// Returns whether the user filters of a proxy change. Libraries have none.
    pub(super) fn proxy_filters_differ(&self, proxy: &Proxy) -> bool {
        let selections = self.whole.map(|context| context.selection(proxy));
        let places = PatchPlace::for_proxy(proxy);
        self.filters_differ(proxy.namespace(), selections.each_ref(), places)
    }

    /// Returns whether the services that a proxy's user filters query, or the clusters that they
    /// add, change.
    pub(super) fn filter_upstreams_differ(&self, proxy: &Proxy) -> bool {
        let [before, now] = self.whole;
        let selections = self.whole.map(|context| context.selection(proxy));
        let [before, now] = [before, now].map(|context| &context.traffic.envoy_filters);
        let [then, since] = &selections;
        before.upstreams_queried_by(proxy, then) != now.upstreams_queried_by(proxy, since)
            || before.clusters_for(proxy, then) != now.clusters_for(proxy, since)
    }

    /// Returns the changed services that policies of a proxy's workload use as authorization
    /// providers, whatever its Sidecars select.
    pub(super) fn queried_providers(&self, proxy: &Proxy) -> BTreeSet<Hostname> {
        if self.providers.is_empty() || self.is_behind_ports {
            return BTreeSet::new();
        }
        let access = self.whole[1].access_of(proxy);
        let queried = access.providers().into_iter();
        queried.filter_map(|name| self.providers.get(name).cloned()).collect()
    }

    /// Returns the changed services that a proxy's user filters query.
    pub(super) fn queried_by_filters(&self, proxy: &Proxy) -> BTreeSet<Hostname> {
        if self.is_behind_ports {
            return BTreeSet::new();
        }
        let now = self.whole[1];
        let queried = now.traffic.envoy_filters.upstreams_queried_by(proxy, &now.selection(proxy));
        let hosts = queried.into_iter().filter_map(|to| Some(&to.service.as_ref()?.0));
        hosts.filter(|host| self.hosts.contains(*host)).cloned().collect()
    }

    /// Returns whether the access logs or tracing of a proxy change. Libraries write none.
    pub(super) fn proxy_telemetry_differs(&self, proxy: &Proxy) -> bool {
        if self.same_telemetries(proxy.namespace()) {
            return false;
        }
        let selections = self.whole.map(|context| context.selection(proxy));
        self.telemetry_differs(proxy.namespace(), selections.each_ref(), spans::ends(proxy))
    }

    /// Returns the changed services that receive a proxy's spans from any of these ends of calls.
    fn traced_by(
        &self,
        (namespace, selection): (&Namespace, &Selection),
        ends: &[CallEnd],
    ) -> BTreeSet<Hostname> {
        if self.providers.is_empty() || self.is_behind_ports {
            return BTreeSet::new();
        }
        let now = self.whole[1];
        let choices = ends.iter().filter_map(|end| {
            now.traffic.telemetries.tracing(&now.mesh, (namespace, selection), *end)
        });
        choices.filter_map(|choice| self.providers.get(&choice.provider).cloned()).collect()
    }

    /// Returns whether a changed service receives client spans from proxies of a class.
    pub(super) fn is_traced_by(&self, namespace: &Namespace, selection: &Selection) -> bool {
        !self.traced_by((namespace, selection), &[CallEnd::Client]).is_empty()
    }

    /// Returns the changed services that receive a proxy's spans. Libraries send none.
    pub(super) fn traced(&self, proxy: &Proxy) -> BTreeSet<Hostname> {
        if self.providers.is_empty() {
            return BTreeSet::new();
        }
        let selection = self.whole[1].selection(proxy);
        self.traced_by((proxy.namespace(), &selection), spans::ends(proxy))
    }

    /// Returns whether the upstream clusters for a proxy's spans may change. A sidecar without a
    /// Sidecar object has the clusters of all visible services anyway.
    pub(super) fn span_clusters_differ(&self, proxy: &Proxy) -> bool {
        if self.same_telemetries(proxy.namespace()) {
            return false;
        }
        let clusters = |context: &PushContext| {
            let selection = context.selection(proxy);
            let reports = SpanReport::for_proxy(context, proxy, &selection);
            let clusters: BTreeSet<String> = reports.iter().map(|one| one.cluster()).collect();
            let scope = context.traffic.scope(proxy.namespace(), &selection);
            let has_all = proxy.kind.serves_one_workload() && scope.sidecar().is_none();
            (clusters, has_all)
        };
        let [(before, had_all), (now, has_all)] = self.whole.map(|context| clusters(context));
        before != now && !(had_all && has_all)
    }

    fn same_telemetries(&self, namespace: &Namespace) -> bool {
        let [before, now] = self.whole.map(|context| &context.traffic.telemetries);
        now.same_in(before, namespace)
    }
}
