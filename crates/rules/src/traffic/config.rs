//! The traffic configuration in force.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::addressed::AddressedServices;
use super::destination_rule::DestinationRules;
use super::envoy_filter::EnvoyFilters;
use super::gateways::Gateways;
use super::hosts::HostPattern;
use super::route::Destination;
use super::selection::{Selection, Selectors};
use super::sidecar::{ImportScope, Sidecars};
use super::telemetry::Telemetries;
use super::virtual_services::{RoutedService, VirtualServices};
use strait_model::{Hostname, Labels, Namespace, Proxy};

/// All rules in force at one version. Immutable; a clone shares everything.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Traffic {
    /// How clients speak to services.
    pub destination_rules: DestinationRules,
    /// Which way requests and connections go.
    pub virtual_services: VirtualServices,
    /// What of the mesh proxies are given.
    pub sidecars: Sidecars,
    /// What routers take in.
    pub gateways: Gateways,
    /// What proxies write of requests.
    pub telemetries: Telemetries,
    /// What filters proxies have besides their own.
    pub envoy_filters: EnvoyFilters,
    /// Whose Services are told apart by address.
    pub addressed: AddressedServices,
    pub(super) selectors: Selectors,
}

impl Traffic {
    /// Whether proxies of this namespace may be given otherwise than those of a namespace that no rule names and that
    /// has none.
    pub fn concerns(&self, namespace: &Namespace) -> bool {
        self.destination_rules.concerns(namespace)
            || self.virtual_services.concerns(namespace)
            || self.sidecars.concerns(namespace)
            || self.telemetries.concerns(namespace)
            || self.envoy_filters.concerns(namespace)
    }

    /// What of the mesh a proxy is given that is in this namespace and that these select.
    pub fn scope<'a>(&'a self, namespace: &'a Namespace, selection: &Selection) -> ImportScope<'a> {
        let withheld = self.virtual_services.withheld();
        self.sidecars.scope(namespace, selection).withholding(withheld)
    }

    /// The objects to the first of which that has rules for a proxy a host belongs: see [`VirtualServices::of_host`]. What the
    /// proxy's [scope](Self::scope) leaves out is not among them.
    pub fn routed_of_host<'a: 'n, 'n>(
        &'a self,
        host: &'n HostPattern,
        namespace: &'n Namespace,
        selection: &Selection,
    ) -> impl Iterator<Item = &'a Arc<RoutedService>> + use<'a, 'n> {
        let scope = self.scope(namespace, selection);
        let mut groups = self.virtual_services.of_host(host, namespace);
        let group = groups.find_map(|group| {
            let group: Vec<_> = scope.of_rules(host, group.into_iter()).collect();
            (!group.is_empty()).then_some(group)
        });
        group.unwrap_or_default().into_iter()
    }

    /// The objects that name this very host, in the same order and as far as the scope goes.
    pub fn routed_of_pattern<'a: 'n, 'n>(
        &'a self,
        host: &'n HostPattern,
        namespace: &'n Namespace,
        selection: &Selection,
    ) -> impl Iterator<Item = &'a Arc<RoutedService>> + use<'a, 'n> {
        let scope = self.scope(namespace, selection);
        scope.of_rules(host, self.virtual_services.of_pattern(host, namespace))
    }

    /// Whether rules that hold for a proxy lead to a service, which it is given for that.
    pub fn leads_to(&self, host: &Hostname, namespace: &Namespace, selection: &Selection) -> bool {
        self.leads_where(host, namespace, selection, |_| true)
    }

    /// Whether such rules lead to that port of it, or to it without naming a port.
    pub fn leads_to_port(
        &self,
        host: &Hostname,
        port: u16,
        namespace: &Namespace,
        selection: &Selection,
    ) -> bool {
        self.leads_where(host, namespace, selection, |to| to.port.is_none_or(|one| one == port))
    }

    fn leads_where(
        &self,
        host: &Hostname,
        namespace: &Namespace,
        selection: &Selection,
        fits: impl Fn(&Destination) -> bool,
    ) -> bool {
        let leads = |one: &Arc<RoutedService>| {
            one.destinations_from(namespace).any(|to| to.host == *host && fits(to))
        };
        let mut patterns = self.virtual_services.leading_to(host);
        patterns.any(|pattern| self.routed_of_pattern(pattern, namespace, selection).any(leads))
    }

    /// Whether it matters for a service in which namespace a client is, or which selectors select it.
    pub fn is_by_namespace(&self, host: &str) -> bool {
        self.destination_rules.is_by_namespace(host)
    }

    /// The same with those routes alone that concern these hosts.
    #[must_use]
    pub fn excerpt(&self, hosts: &BTreeSet<Hostname>) -> Self {
        let virtual_services = if self.sidecars.is_empty() {
            self.virtual_services.excerpt(hosts.iter())
        } else {
            // Rules may bring a service into a scope.
            let leading = hosts.iter().flat_map(|host| self.virtual_services.leading_to(host));
            let leading: Vec<_> = leading.map(|host| Hostname::from(host.to_string())).collect();
            self.virtual_services.excerpt(hosts.iter().chain(&leading))
        };
        Self { virtual_services, ..self.clone() }
    }

    /// Whether no rule in force is for some labels alone.
    pub fn is_without_selectors(&self) -> bool {
        self.selectors.is_empty()
    }

    /// What of the selectors in use selects a proxy that has these labels.
    pub fn selection_of(&self, proxy: &Proxy, labels: &Labels) -> Selection {
        self.selectors.of_proxy(proxy, labels)
    }

    /// What of the selectors in use selects what is in that namespace and has these labels.
    pub fn selection(&self, namespace: &Namespace, labels: &Labels) -> Selection {
        self.selectors.selection(namespace, labels)
    }
}
