//! Which services a client is given, as far as Sidecars say it.

use super::context::PushContext;
use super::view_key::ViewKey;
use crate::aggregate::MergedService;
use crate::traffic::HostPattern;

impl ViewKey {
    /// Whether a client is given a service at some port: it is in its scope, or rules that are lead there.
    pub fn imports(&self, context: &PushContext, service: &MergedService) -> bool {
        self.is_given(context, service, None)
    }

    /// Whether it is given it at that port.
    pub fn imports_port(&self, context: &PushContext, service: &MergedService, port: u16) -> bool {
        self.is_given(context, service, Some(port))
    }

    fn is_given(&self, context: &PushContext, service: &MergedService, port: Option<u16>) -> bool {
        let scope = context.traffic.scope(&self.namespace, &self.selection);
        if scope.sidecar().is_none() {
            return true;
        }
        let (host, owner) =
            (HostPattern::of_service(service.hostname()), &service.primary.namespace);
        let is_in_scope = match port {
            None => scope.includes(&host, owner),
            Some(port) => scope.includes_port(&host, owner, port),
        };
        is_in_scope
            || context.traffic.leads_to(service.hostname(), &self.namespace, &self.selection)
    }
}
