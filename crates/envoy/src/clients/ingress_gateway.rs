//! Resources of gateways that serve the servers of Gateway objects.

use std::cell::OnceCell;
use std::sync::Arc;

use super::generator::{ProxyGenerator, all};
use super::inputs::ClientInputs;
use crate::cds::ClusterFormat;
use crate::common::list;
use crate::ingress::NamedIngress;
use crate::{lds, rds};
use strait_mesh::push::ingress::IngressOutline;
use strait_rules::traffic::route::HttpRule;
use strait_rules::traffic::virtual_service_selection::RoutedService;
use strait_xds::list::SharedList;
use strait_xds::resource::{All, Resource, ResourceType};

/// A gateway that Gateway objects select.
#[derive(Default)]
pub(crate) struct IngressGateway<'a> {
    /// The servers of these objects, computed on first use.
    servers: OnceCell<NamedIngress<'a>>,
}

impl<'a> IngressGateway<'a> {
    fn servers(&self, inputs: &ClientInputs<'a>) -> &NamedIngress<'a> {
        self.servers.get_or_init(|| {
            let &ClientInputs { context, proxy, cache, .. } = inputs;
            let served = cache.served(context, &proxy.cluster, proxy.namespace());
            NamedIngress::new(IngressOutline::of(context, proxy, &served))
        })
    }

    /// Returns the servers without the names of routes.
    pub(crate) fn outline(&self, inputs: &ClientInputs<'a>) -> &IngressOutline<'a> {
        &self.servers(inputs).outline
    }

    /// Returns the object and the rule of each route of a virtual host, in order.
    pub(crate) fn rules(
        &self,
        inputs: &ClientInputs<'a>,
        name: &str,
        virtual_host: &str,
    ) -> Vec<(&'a Arc<RoutedService>, &'a HttpRule)> {
        let ingress = self.servers(inputs);
        let Some((_, servers)) = ingress.servers_for(name) else { return Vec::new() };
        let class = inputs.common().class(&inputs.view);
        rds::rules_at(&ingress.outline, &class, virtual_host, &servers, &inputs.cache.route_lists)
    }

    /// Returns the route configuration with this name if a port of the Gateways uses it.
    fn served_route(&self, inputs: &ClientInputs<'a>, name: &str) -> Option<Resource> {
        let ingress = self.servers(inputs);
        let servers = ingress.servers_for(name)?;
        let class = inputs.common().class(&inputs.view);
        let caches = (&inputs.cache.chunks, &inputs.cache.route_lists);
        let (routes, parts) =
            rds::route_for_servers(&ingress.outline, &class, name, servers, caches);
        if let Some(retained) = inputs.retained_routes {
            retained.hold(name, parts);
        }
        Some(routes)
    }
}

impl<'a> ProxyGenerator<'a> for IngressGateway<'a> {
    fn clusters(&self, inputs: &ClientInputs<'a>) -> All {
        let form = ClusterFormat::for_proxy(inputs.proxy);
        let hosts = self.outline(inputs).destinations().into_iter();
        let outbound = inputs.common().outbound_to(&inputs.view, &form, hosts);
        all(outbound, inputs.added_clusters())
    }

    fn listeners(&self, inputs: &ClientInputs<'a>) -> All {
        let class = inputs.common().class(&inputs.view);
        let policies = &inputs.cache.policies;
        let own = lds::ingress(self.outline(inputs), inputs.proxy, &class, policies);
        let own = own.into_iter().map(Arc::new).collect();
        all(list(ResourceType::Listener, Vec::new()), own)
    }

    fn name_table(&self, inputs: &ClientInputs<'a>) -> Arc<SharedList> {
        inputs.name_table()
    }

    fn route(&self, inputs: &ClientInputs<'a>, name: &str) -> Arc<Resource> {
        Arc::new(self.served_route(inputs, name).unwrap_or_else(|| rds::empty(name)))
    }
}
