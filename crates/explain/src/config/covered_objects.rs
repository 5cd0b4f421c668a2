//! Computes which rules are never evaluated ([`super::covered_rules`]), for the routers and the services of
//! the mesh.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;

use super::ConfigView;
use super::clients::Audience;
use super::covered_rules::{CoveredRules, SelectedRouter, UNNAMED_PORT};
use strait_mesh::push::ingress::IngressOutline;
use strait_model::Namespace;
use strait_model::mesh_config::GatewayScope;
use strait_rules::traffic::HostPattern;
use strait_rules::traffic::gateway::Gateway;
use strait_rules::traffic::gateway_servers::merged;
use strait_rules::traffic::selection::RuleSelector;
use strait_rules::traffic::virtual_service_selection::RoutedService;

impl ConfigView<'_> {
    /// Returns whether rules for routers are evaluated.
    pub(super) fn covered_rules(&self) -> &CoveredRules {
        self.covered_rules.get_or_init(|| {
            let mut found = CoveredRules::default();
            let gateways = &self.context.traffic.gateways;
            let is_scoped = self.context.mesh.gateway_scope == GatewayScope::OwnNamespace;
            // A Gateway is checked for routers with exactly the labels of its selector.
            let group_of = |gateway: &Gateway| {
                let is_scoped = is_scoped && gateway.ingress.is_none();
                let scope = is_scoped.then(|| gateway.meta.namespace.clone());
                (scope, gateway.selector.clone())
            };
            let mut groups = BTreeMap::<_, &Namespace>::new();
            for gateway in gateways.all() {
                groups.entry(group_of(gateway)).or_insert(&gateway.meta.namespace);
            }
            for (group, namespace) in &groups {
                let (scope, selector) = group;
                let labels = selector.as_deref().cloned().unwrap_or_default();
                for namespace in self.router_namespaces(scope.as_ref(), selector, namespace) {
                    let outline = IngressOutline {
                        context: self.context,
                        namespace: &namespace,
                        ports: merged(gateways.selecting(&namespace, &labels), Some),
                        closed: BTreeMap::new(),
                        token_rules: 0,
                    };
                    let router = SelectedRouter {
                        outline: &outline,
                        selection: &self.context.traffic.selection(&namespace, &labels),
                        is_own: &|gateway| group_of(gateway) == *group,
                    };
                    outline.ports.iter().for_each(|port| found.add_port(&router, port));
                }
            }
            found
        })
    }

    /// Returns the namespaces of the routers that a selector selects, without those that rules do
    /// not distinguish. If no router is known, the namespace of the first Gateway is assumed.
    fn router_namespaces(
        &self,
        scope: Option<&Namespace>,
        selector: &Option<RuleSelector>,
        of_gateway: &Namespace,
    ) -> Audience {
        if let Some(scope) = scope {
            return [scope.clone()].into();
        }
        let known = selector.as_ref().map(|selector| self.selected_by(selector));
        let mut known = known.unwrap_or_default();
        let services = &self.context.traffic.virtual_services;
        let mut has_plain = false;
        known.retain(|one| services.concerns(one) || !std::mem::replace(&mut has_plain, true));
        if known.is_empty() {
            known.insert(of_gateway.clone());
        }
        known
    }

    /// Returns whether the routes of the Gateway API that are merged for a Service are evaluated.
    /// `ports` are the ports of the Service; none if it is unknown.
    pub(super) fn covered_routes(
        &self,
        routed: &Arc<RoutedService>,
        host: &HostPattern,
        mut ports: BTreeSet<u16>,
    ) -> Rc<CoveredRules> {
        let mut cached = self.covered_routes.borrow_mut();
        let found = cached.entry(Arc::as_ptr(routed)).or_insert_with(|| {
            if ports.is_empty() {
                let requests = routed.http.rules.iter().flat_map(|rule| &rule.matches);
                let connections = routed.service.tls.iter().chain(&routed.service.tcp);
                let connections = connections.flat_map(|rule| &rule.matches);
                ports.extend(requests.filter_map(|one| one.port));
                ports.extend(connections.filter_map(|one| one.port));
                ports.insert(UNNAMED_PORT);
            }
            let mut found = CoveredRules::default();
            found.add_routes(routed, host, &ports);
            Rc::new(found)
        });
        Rc::clone(found)
    }
}
