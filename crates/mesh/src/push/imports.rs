//! The services that a client imports according to Sidecars.

use super::context::PushContext;
use super::view_key::ViewKey;
use crate::aggregate::MergedService;
use strait_model::{Hostname, Namespace, Port, Protocol};
use strait_rules::traffic::sidecar::ImportScope;
use strait_rules::traffic::{HostPattern, Selection};

/// The imports of a client: the services in its scope, and the destinations of rules in its scope.
#[derive(Clone, Copy)]
pub struct Imports<'a> {
    context: &'a PushContext,
    view: &'a ViewKey,
    scope: ImportScope<'a>,
}

impl<'a> Imports<'a> {
    /// Returns the imports of a client that follows Sidecars.
    pub fn of(context: &'a PushContext, view: &'a ViewKey) -> Self {
        let scope = context.traffic.scope(&view.namespace, &view.selection);
        Self { context, view, scope }
    }

    /// Returns whether the client imports a service at any port.
    pub fn has(&self, service: &MergedService) -> bool {
        self.is_in_scope(service, |scope, host| scope.includes(host, &service.primary.namespace))
    }

    /// Returns whether the client imports the service at this port.
    pub fn has_port(&self, service: &MergedService, port: u16) -> bool {
        let owner = &service.primary.namespace;
        let is_other = |other: &&Port| other.number != port && other.protocol != Protocol::Udp;
        let mut others = service.all_ports().filter(is_other);
        let port_and_only = (port, others.next().is_none());
        let Self { context, view, scope } = self;
        let host = &HostPattern::for_service(service.hostname());
        let is_imported = match scope.is_by_port() {
            true => scope.needs_port(host, owner, port_and_only),
            false => scope.includes(host, owner),
        };
        scope.sidecar().is_none()
            || is_imported
            || context.leads_to_port(service.hostname(), port, &view.namespace, &view.selection)
    }

    /// Returns whether the client may import services without some of their ports.
    pub fn is_by_port(&self) -> bool {
        self.scope.sidecar().is_some()
    }

    fn is_in_scope(
        &self,
        service: &MergedService,
        includes: impl FnOnce(&ImportScope<'_>, &HostPattern) -> bool,
    ) -> bool {
        let Self { context, view, scope } = self;
        scope.sidecar().is_none()
            || includes(scope, &HostPattern::for_service(service.hostname()))
            || context.leads_to(service.hostname(), &view.namespace, &view.selection)
    }
}

impl PushContext {
    /// Returns whether rules that apply to a proxy route to a service, directly or by an alias.
    /// These services are imported.
    pub fn leads_to(&self, host: &Hostname, namespace: &Namespace, selection: &Selection) -> bool {
        let has_route = |host: &Hostname| self.traffic.routes_to(host, namespace, selection);
        has_route(host) || self.aliases.names_of(host).iter().any(has_route)
    }

    /// Returns whether such rules route to this port of the service, or to the service without
    /// naming a port.
    fn leads_to_port(
        &self,
        host: &Hostname,
        port: u16,
        namespace: &Namespace,
        selection: &Selection,
    ) -> bool {
        let has_route =
            |host: &Hostname| self.traffic.routes_to_port(host, port, namespace, selection);
        has_route(host) || self.aliases.names_of(host).iter().any(has_route)
    }
}
