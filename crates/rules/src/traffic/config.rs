//! The active traffic configuration.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::addressed::AddressedServices;
use super::destination_rule::DestinationRules;
use super::envoy_filter::EnvoyFilters;
use super::gateway_servers::Gateways;
use super::hosts::HostPattern;
use super::route::Destination;
use super::selection::{Selection, Selectors};
use super::sidecar::{ImportScope, Sidecars};
use super::telemetry::Telemetries;
use super::virtual_service_selection::{RoutedService, VirtualServices};
use strait_model::{Hostname, Labels, Namespace, Proxy};

/// All active rules of one version. Immutable; a clone shares everything.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Traffic policies of clients for services.
    pub destination_rules: DestinationRules,
    /// Routes of requests and connections.
    pub virtual_services: VirtualServices,
    /// Imports of proxies.
    pub sidecars: Sidecars,
    /// Servers of gateways.
    pub gateways: Gateways,
    /// Access logs and traces of proxies.
    pub telemetries: Telemetries,
    /// Additional filters of proxies.
    pub envoy_filters: EnvoyFilters,
    /// Namespaces whose Services are distinguished by address.
    pub addressed: AddressedServices,
    pub(super) selectors: Selectors,
}

impl Traffic {
    /// Returns whether the configuration of proxies may depend on this namespace: a rule mentions
    /// it, or it contains rules.
    pub fn concerns(&self, namespace: &Namespace) -> bool {
        self.destination_rules.concerns(namespace)
            || self.virtual_services.concerns(namespace)
            || self.sidecars.concerns(namespace)
            || self.telemetries.concerns(namespace)
            || self.envoy_filters.concerns(namespace)
    }

    /// Returns the services and rules that a proxy with this namespace and selection imports.
    pub fn scope<'a>(&'a self, namespace: &'a Namespace, selection: &Selection) -> ImportScope<'a> {
        let withheld = self.virtual_services.withheld();
        self.sidecars.scope(namespace, selection).withholding(withheld)
    }

    /// Returns the objects that route a host for a proxy: see [`VirtualServices::for_host`]. The
    /// first group with a rule for the proxy applies. Objects outside of the proxy's
    /// [scope](Self::scope) are left out.
    pub fn routed_for_host<'a: 'n, 'n>(
        &'a self,
        host: &'n HostPattern,
        namespace: &'n Namespace,
        selection: &Selection,
    ) -> impl Iterator<Item = &'a Arc<RoutedService>> + use<'a, 'n> {
        let scope = self.scope(namespace, selection);
        let mut groups = self.virtual_services.for_host(host, namespace);
        let group = groups.find_map(|group| {
            let group: Vec<_> = scope.applicable_rules(host, group.into_iter()).collect();
            (!group.is_empty()).then_some(group)
        });
        group.unwrap_or_default().into_iter()
    }

    /// Returns the objects for exactly this host pattern, in the same order, within the proxy's
    /// scope.
    pub fn routed_for_pattern<'a: 'n, 'n>(
        &'a self,
        host: &'n HostPattern,
        namespace: &'n Namespace,
        selection: &Selection,
    ) -> impl Iterator<Item = &'a Arc<RoutedService>> + use<'a, 'n> {
        let scope = self.scope(namespace, selection);
        scope.applicable_rules(host, self.virtual_services.for_pattern(host, namespace))
    }

    /// Returns whether rules of a proxy route to a service. The proxy then receives the service.
    pub fn routes_to(&self, host: &Hostname, namespace: &Namespace, selection: &Selection) -> bool {
        self.routes_matching(host, namespace, selection, |_| true)
    }

    /// Returns whether rules of a proxy route to this port of a service, or to the service without
    /// a port.
    pub fn routes_to_port(
        &self,
        host: &Hostname,
        port: u16,
        namespace: &Namespace,
        selection: &Selection,
    ) -> bool {
        self.routes_matching(host, namespace, selection, |to| to.port.is_none_or(|one| one == port))
    }

    fn routes_matching(
        &self,
        host: &Hostname,
        namespace: &Namespace,
        selection: &Selection,
        fits: impl Fn(&Destination) -> bool,
    ) -> bool {
        let routes_there = |service: &Arc<RoutedService>| {
            service.destinations_from(namespace).any(|to| to.host == *host && fits(to))
        };
        let mut patterns = self.virtual_services.leading_to(host);
        patterns
            .any(|pattern| self.routed_for_pattern(pattern, namespace, selection).any(routes_there))
    }

    /// Returns whether the policy of a service depends on the namespace or the selection of the
    /// client.
    pub fn is_by_namespace(&self, host: &str) -> bool {
        self.destination_rules.is_by_namespace(host)
    }

    /// Returns a copy that contains only the routes for these hosts.
    #[must_use]
    pub fn excerpt(&self, hosts: &BTreeSet<Hostname>) -> Self {
        let virtual_services = if self.sidecars.is_empty() {
            self.virtual_services.excerpt(hosts.iter())
        } else {
            // Rules may add a service to a scope.
            let leading = hosts.iter().flat_map(|host| self.virtual_services.leading_to(host));
            let leading: Vec<_> = leading.map(|host| Hostname::from(host.to_string())).collect();
            self.virtual_services.excerpt(hosts.iter().chain(&leading))
        };
        Self { virtual_services, ..self.clone() }
    }

    /// Returns whether no active rule has a workload selector.
    pub fn is_without_selectors(&self) -> bool {
        self.selectors.is_empty()
    }

    /// Returns the active selectors that match a proxy with these labels.
    pub fn selection_for(&self, proxy: &Proxy, labels: &Labels) -> Selection {
        self.selectors.for_proxy(proxy, labels)
    }

    /// Returns the active selectors that match workloads of a namespace with these labels.
    pub fn selection(&self, namespace: &Namespace, labels: &Labels) -> Selection {
        self.selectors.selection(namespace, labels)
    }
}
