//! What proxies do besides passing requests on, as rules of their namespace say: which logs they write, where they send spans,
//! and which filters of users they have.

use std::collections::BTreeSet;

use super::lens::Lens;
use crate::spans::{self, SpanReport};
use strait_mesh::push::PushContext;
use strait_model::{Hostname, Namespace, Proxy, ProxyType};
use strait_rules::traffic::Selection;
use strait_rules::traffic::envoy_filter::PatchPlace;
use strait_rules::traffic::telemetry::CallEnd;

impl Lens<'_> {
    /// Whether proxies of a namespace, selected so before and now, write other logs at one of these ends of calls, or send
    /// other spans.
    pub(super) fn is_logged_otherwise(
        &self,
        namespace: &Namespace,
        selections: [&Selection; 2],
        ends: &[CallEnd],
    ) -> bool {
        let [before, now] = self.whole;
        let logs = |context: &PushContext, selection, end| {
            let (telemetries, of) = (&context.traffic.telemetries, (namespace, selection));
            let logs = telemetries.logs(&context.mesh, of, end);
            (logs, telemetries.tracing(&context.mesh, of, end))
        };
        let [then, since] = selections;
        !self.same_telemetries(namespace)
            && ends.iter().any(|end| logs(before, then, *end) != logs(now, since, *end))
    }

    /// Whether proxies of a namespace, selected so before and now, have other filters of users at one of these places.
    pub(super) fn is_filtered_otherwise(
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

    /// Whether a proxy has. Libraries have none.
    pub(super) fn filters_otherwise(&self, proxy: &Proxy) -> bool {
        let selections = self.whole.map(|context| context.selection(proxy));
        let places = PatchPlace::of(proxy);
        self.is_filtered_otherwise(proxy.namespace(), selections.each_ref(), places)
    }

    /// Whether they ask others about its requests than before, or bring others along.
    pub(super) fn asks_otherwise(&self, proxy: &Proxy) -> bool {
        let [before, now] = self.whole;
        let selections = self.whole.map(|context| context.selection(proxy));
        let [before, now] = [before, now].map(|context| &context.traffic.envoy_filters);
        let [then, since] = &selections;
        before.asked_by(proxy, then) != now.asked_by(proxy, since)
            || before.clusters_of(proxy, then) != now.clusters_of(proxy, since)
    }

    /// Of the services those that policies for the workload of a proxy have asked: no matter what Sidecars give it.
    pub(super) fn asked_by(&self, proxy: &Proxy) -> BTreeSet<Hostname> {
        if self.providers.is_empty() || self.is_behind_ports {
            return BTreeSet::new();
        }
        let access = self.whole[1].access_of(proxy);
        let asked = access.providers().into_iter();
        asked.filter_map(|name| self.providers.get(name).cloned()).collect()
    }

    /// Of the services those that filters of users ask about the requests of a proxy.
    pub(super) fn asked_by_filters(&self, proxy: &Proxy) -> BTreeSet<Hostname> {
        if self.is_behind_ports {
            return BTreeSet::new();
        }
        let now = self.whole[1];
        let asked = now.traffic.envoy_filters.asked_by(proxy, &now.selection(proxy));
        let hosts = asked.into_iter().filter_map(|to| Some(&to.service.as_ref()?.0));
        hosts.filter(|host| self.hosts.contains(*host)).cloned().collect()
    }

    /// Whether a proxy does. Libraries write none.
    pub(super) fn logs_otherwise(&self, proxy: &Proxy) -> bool {
        if self.same_telemetries(proxy.namespace()) {
            return false;
        }
        let selections = self.whole.map(|context| context.selection(proxy));
        self.is_logged_otherwise(proxy.namespace(), selections.each_ref(), spans::ends(proxy))
    }

    /// Of the services those that a proxy sends spans to at one of these ends of calls.
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

    /// Whether one of the services is sent the spans of calls that proxies of a class make.
    pub(super) fn is_traced_by(&self, namespace: &Namespace, selection: &Selection) -> bool {
        !self.traced_by((namespace, selection), &[CallEnd::Client]).is_empty()
    }

    /// Of the services those that a proxy sends spans to. Libraries send none.
    pub(super) fn traced(&self, proxy: &Proxy) -> BTreeSet<Hostname> {
        if self.providers.is_empty() {
            return BTreeSet::new();
        }
        let selection = self.whole[1].selection(proxy);
        self.traced_by((proxy.namespace(), &selection), spans::ends(proxy))
    }

    /// Whether a proxy may be given another upstream cluster to send spans to: one that has all that it may see has it anyway.
    pub(super) fn reports_otherwise(&self, proxy: &Proxy) -> bool {
        if self.same_telemetries(proxy.namespace()) {
            return false;
        }
        let clusters = |context: &PushContext| {
            let selection = context.selection(proxy);
            let reports = SpanReport::of_proxy(context, proxy, &selection);
            let clusters: BTreeSet<String> = reports.iter().map(|one| one.cluster()).collect();
            let scope = context.traffic.scope(proxy.namespace(), &selection);
            let has_all = proxy.kind == ProxyType::Sidecar && scope.sidecar().is_none();
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
