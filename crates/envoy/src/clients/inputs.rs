//! The inputs of all generators of one client, and resources that all kinds of clients have.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::cache::{Cache, ServiceInputs};
use crate::cds::ClusterFormat;
use crate::common::SharedResources;
use crate::rds::RetainedRoutes;
use crate::spans::SpanReport;
use crate::{eds, ext_authz};
use strait_mesh::aggregate::MergedService;
use strait_mesh::push::PushContext;
use strait_mesh::push::authorizers::Authorizers;
use strait_mesh::push::named_pods::gateways_to;
use strait_mesh::push::subset::SubsetFilter;
use strait_mesh::push::view::{Role, ViewKey};
use strait_model::Proxy;
use strait_xds::list::SharedList;
use strait_xds::names::{OutboundName, RemotePodsName};
use strait_xds::resource::Resource;

/// The inputs of the generators of one client.
pub(crate) struct ClientInputs<'a> {
    pub(crate) context: &'a Arc<PushContext>,
    pub(crate) proxy: &'a Proxy,
    pub(crate) view: ViewKey,
    pub(crate) cache: &'a Cache,
    /// Keeps the parts of a gateway's routes until the routes are generated again.
    pub(crate) retained_routes: Option<&'a RetainedRoutes>,
}

impl<'a> ClientInputs<'a> {
    pub(crate) fn common(&self) -> SharedResources<'a> {
        SharedResources { context: self.context, cache: self.cache }
    }

    pub(super) fn name_table(&self) -> Arc<SharedList> {
        self.common().names(&self.view, self.proxy.takes_given_addresses)
    }

    /// Returns the upstream clusters that providers and EnvoyFilters add.
    pub(super) fn added_clusters(&self) -> Vec<Arc<Resource>> {
        let filters = &self.context.traffic.envoy_filters;
        let by_filters = filters.clusters_for(self.proxy, &self.view.selection);
        let by_filters =
            by_filters.into_iter().map(|one| Resource::new(&*one.name, one.config.to_vec()));
        let mut added = self.providers();
        added.extend(by_filters.map(Arc::new));
        added
    }

    /// Returns the upstream clusters of authorization providers, of services that users' filters
    /// query, and of tracing collectors. The proxy needs them whatever Sidecars and Gateways
    /// select.
    fn providers(&self) -> Vec<Arc<Resource>> {
        let access = self.context.access_of(self.proxy);
        let authorizers = Authorizers::of(self.context, self.proxy, &access);
        let reachable: Vec<_> = authorizers.reachable().map(|(_, one)| one).collect();
        let reports = SpanReport::for_proxy(self.context, self.proxy, &self.view.selection);
        let filters = &self.context.traffic.envoy_filters;
        let by_filters = filters.upstreams_queried_by(self.proxy, &self.view.selection);
        if reachable.is_empty() && reports.is_empty() && by_filters.is_empty() {
            return Vec::new();
        }
        let names = reachable.iter().map(|one| ext_authz::cluster(one));
        let names = names.chain(reports.iter().map(|one| one.cluster()));
        let names: BTreeSet<_> =
            names.chain(by_filters.iter().map(|one| one.name.to_string())).collect();
        let hosts = reachable.iter().map(|one| one.service.hostname());
        let hosts = hosts.chain(reports.iter().map(|one| &one.host));
        let by_filters = by_filters.iter().filter_map(|one| Some(&one.service.as_ref()?.0));
        let hosts: BTreeSet<_> = hosts.chain(by_filters).collect();
        let form = ClusterFormat::for_proxy(self.proxy);
        let clusters = self.common().outbound_to(&self.view, &form, hosts.into_iter());
        let named = clusters.resources().iter().filter(|one| names.contains(&*one.name));
        named.cloned().collect()
    }

    fn service(&self, host: &str) -> Option<&'_ Arc<MergedService>> {
        match self.view.role {
            Role::Client => self.context.service(host, &self.view.namespace),
            Role::Gateway => self.context.services.get(host),
        }
    }

    /// Returns the gateways to the pods of a headless service in another network.
    fn gateways_to_pods(&self, name: &RemotePodsName) -> Option<Resource> {
        let pods = self.context.remote_pods.of(&name.hostname)?;
        let pods = pods.clusters.get(&name.cluster)?;
        let gateways = gateways_to(self.context, &self.view, &name.cluster, pods);
        let name = name.to_string();
        let bytes = eds::encoded(&name, eds::Modes::Unstated, &gateways);
        Some(Resource::new(&*name, bytes))
    }

    /// Returns the endpoint assignment with this name. It is empty if the name is unknown.
    pub(crate) fn assignment(&self, name: &str) -> Arc<Resource> {
        let context = self.context;
        let last = &self.cache.last_assignment;
        if let Some(found) = last.get(context, &self.view, name) {
            return found;
        }
        if let Some(remote) = RemotePodsName::parse(name) {
            return Arc::new(self.gateways_to_pods(&remote).unwrap_or_else(|| eds::empty(name)));
        }
        let found = OutboundName::parts(name)
            .and_then(|(host, port, subset, sni)| Some((self.service(host)?, port, subset, sni)));
        let Some((service, port, subset, sni)) = found else {
            return Arc::new(eds::empty(name));
        };
        let hostname = service.hostname().clone();
        let all = OutboundName { hostname, port, subset: Arc::default(), sni };
        let key = (all.of_subset(subset), self.view.projected(context, service));
        let assignments = &self.cache.assignments;
        let found = assignments.get(&key, |inputs| inputs.are_current(context, service));
        let found = found.unwrap_or_else(|| {
            let view = &key.1;
            let rules = context.rules_for(service);
            let subset_filter =
                SubsetFilter::new(&rules, view.rule(&rules, service), service, subset);
            let made = subset_filter.map_or_else(
                || eds::empty(name),
                |filter| eds::assigned(context, view, name, port, service, filter),
            );
            let made = Arc::new(made);
            assignments.put(key, ServiceInputs::new(context, service), Arc::clone(&made));
            made
        });
        last.note(context, &self.view, service, &found);
        found
    }
}
