//! Generators: from a mesh snapshot to the encoded xDS resources of one proxy.
//!
//! [`ProxyConfig`] answers for one proxy at one version of the mesh. `clients` has one generator for
//! each kind of client; `cds`, `eds`, `lds`, `rds` and `nds` generate the resources of each type,
//! `library` generates the resources of proxyless gRPC, `ingress` the resources of gateways. `change_impact` computes which proxies a change affects, `walk`
//! follows one request through generated configuration. Invariants:
//!
//! - Pure: the same snapshot and the same proxy give the same bytes, whatever happened before.
//! - A resource that many proxies share is encoded once and stored in [`Cache`], whose key is the generator's entire input.
//! - This crate never changes the mesh and never opens a socket.

#![forbid(unsafe_code)]

#[cfg(test)]
mod access_oracle;
mod cache;
mod cache_table;
mod cds;
mod change_impact;
mod chunks;
mod class;
mod clients;
mod common;
mod eds;
mod encoding;
mod ext_authz;
pub mod heads;
mod ingress;
mod istio_filters;
#[cfg(test)]
mod joining;
mod jwt;
mod last_assignment;
mod lds;
mod library;
mod nds;
#[cfg(any(test, fuzzing))]
pub mod oracle;
mod rbac;
mod rbac_rules;
mod rds;
mod service_metrics;
mod spans;
pub mod testing;
#[cfg(test)]
mod tests;
mod tls;
mod walk;

use std::sync::Arc;

pub use self::cache::Cache;
use self::clients::{Client, ClientInputs};
use self::common::list;
pub(crate) use self::encoding::{any, duration, encode, encode_struct, nested, seconds};
use self::library::LibraryConfig;
pub use self::rds::{RetainedRoutes, rule_bytes};
pub use self::walk::{
    LostRule, ProbedRequest, RequestDestination, RequestDirection, RequestWalk, RuleName,
};
use strait_mesh::push::ingress::IngressOutline;
use strait_mesh::push::view::{Role, ViewKey};
use strait_mesh::push::{PushContext, Whereabouts};
use strait_model::{NetworkId, Proxy, VirtualHostDelivery};
use strait_xds::resource::{All, Resource, ResourceSource, ResourceType};
use strait_xds::virtual_hosts;

/// The resources of one proxy at one version of the mesh.
pub struct ProxyConfig<'a> {
    inputs: ClientInputs<'a>,
    client: Client<'a>,
    /// Whether the proxy requests virtual hosts one by one, so that its routes have none.
    hosts_apart: bool,
    /// The last generated route of a proxy with separate virtual hosts. It is requested twice: with
    /// and without virtual hosts.
    last_whole: Option<Arc<Resource>>,
}

impl<'a> ProxyConfig<'a> {
    /// Creates the configuration of `proxy`, which is in `network`.
    pub fn new(
        context: &'a Arc<PushContext>,
        proxy: &'a Proxy,
        network: NetworkId,
        cache: &'a Cache,
    ) -> Self {
        let east_west_port = cache.east_west_port(context, proxy);
        let role = if east_west_port.is_some() { Role::Gateway } else { Role::Client };
        let view = ViewKey::of(proxy, network, role).selected(context.selection(proxy));
        let inputs = ClientInputs { context, proxy, view, cache, retained_routes: None };
        let client = Client::of(&inputs, east_west_port);
        Self { inputs, client, hosts_apart: false, last_whole: None }
    }

    /// Keeps the parts of a gateway's routes in the cache while `routes` exists, for callers that
    /// request routes repeatedly.
    pub fn holding(mut self, routes: &'a RetainedRoutes) -> Self {
        self.inputs.retained_routes = Some(routes);
        self
    }

    /// Sets the proxy's location once its pod is known.
    pub fn at(mut self, whereabouts: Whereabouts) -> Self {
        self.inputs.view = self.inputs.view.at(whereabouts);
        self
    }

    /// Separates virtual hosts from routes if the proxy requests them one by one.
    pub fn with_hosts_apart(mut self) -> Self {
        self.hosts_apart =
            !self.is_by_name() && self.inputs.proxy.virtual_hosts == VirtualHostDelivery::OneByOne;
        self
    }

    /// Returns the proxy's view for the comparison of views: see [`ViewKey::view_class`].
    pub fn view_class(&self) -> ViewKey {
        self.inputs.view.clone().view_class()
    }

    /// Returns the generator for proxyless gRPC if the client is a gRPC library.
    fn library(&self) -> Option<LibraryConfig<'_>> {
        match &self.client {
            Client::Library(library) => Some(library.config(&self.inputs)),
            Client::Sidecar(_) | Client::Ingress(_) | Client::EastWest(_) => None,
        }
    }

    /// Returns the servers of the Gateways that select the proxy if it is an ingress gateway.
    fn ingress_outline(&self) -> Option<&IngressOutline<'a>> {
        match &self.client {
            Client::Ingress(gateway) => Some(gateway.outline(&self.inputs)),
            Client::Sidecar(_) | Client::EastWest(_) | Client::Library(_) => None,
        }
    }

    fn clusters(&self) -> All {
        self.client.generator().clusters(&self.inputs)
    }

    fn listeners(&self) -> All {
        self.client.generator().listeners(&self.inputs)
    }

    fn route(&self, name: &str) -> Arc<Resource> {
        self.client.generator().route(&self.inputs, name)
    }

    /// Returns the route configuration for a proxy that requests virtual hosts one by one.
    fn route_without_hosts(&mut self, name: &str) -> Arc<Resource> {
        let outline = self.client.generator().route_outline(&self.inputs, name);
        outline.unwrap_or_else(|| Arc::new(virtual_hosts::without_hosts(&self.whole_route(name))))
    }

    fn whole_route(&mut self, name: &str) -> Arc<Resource> {
        let last = self.last_whole.take().filter(|last| *last.name == *name);
        let whole = last.unwrap_or_else(|| self.route(name));
        self.last_whole = Some(Arc::clone(&whole));
        whole
    }
}

impl ResourceSource for ProxyConfig<'_> {
    fn all(&mut self, kind: ResourceType) -> All {
        let generator = self.client.generator();
        let shared = |shared| All { shared, own: Vec::new() };
        match kind {
            ResourceType::Cluster => generator.clusters(&self.inputs),
            ResourceType::Listener => generator.listeners(&self.inputs),
            ResourceType::NameTable => shared(generator.name_table(&self.inputs)),
            ResourceType::Endpoint | ResourceType::Route | ResourceType::VirtualHost => {
                shared(list(kind, Vec::new()))
            }
        }
    }

    fn is_by_name(&self) -> bool {
        self.client.generator().is_by_name()
    }

    fn one(&mut self, kind: ResourceType, name: &str) -> Option<Arc<Resource>> {
        match kind {
            ResourceType::Endpoint => Some(self.inputs.assignment(name)),
            ResourceType::Route if self.hosts_apart => Some(self.route_without_hosts(name)),
            ResourceType::Route => Some(self.route(name)),
            ResourceType::VirtualHost => (!self.is_by_name()).then(|| self.whole_route(name)),
            ResourceType::Cluster | ResourceType::Listener => {
                self.client.generator().by_name(&self.inputs, kind, name)
            }
            ResourceType::NameTable => None,
        }
    }

    fn is_assigned(&self, cluster: &Resource) -> bool {
        cds::uses_eds(&cluster.body.to_bytes())
    }
}
