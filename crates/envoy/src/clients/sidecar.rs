//! Resources of sidecars.

use std::sync::Arc;

use super::generator::{ProxyGenerator, all};
use super::inputs::ClientInputs;
use crate::cds::{self, ClusterFormat};
use crate::common::own_domain;
use crate::lds;
use strait_mesh::push::proxy::inbound_targets;
use strait_xds::list::SharedList;
use strait_xds::names::port_number;
use strait_xds::resource::{All, Resource};

/// The proxy of one workload.
pub(crate) struct SidecarClient;

impl<'a> ProxyGenerator<'a> for SidecarClient {
    fn clusters(&self, inputs: &ClientInputs<'a>) -> All {
        let &ClientInputs { context, proxy, ref view, cache, .. } = inputs;
        let outbound = inputs.common().outbound(view, &ClusterFormat::for_proxy(proxy));
        let served = cache.served(context, &proxy.cluster, proxy.namespace());
        let targets = inbound_targets(context, proxy, &served);
        let inbound = cds::inbound_clusters(context, proxy, &targets);
        let fixed = cds::fixed(context, (view.ipv4, view.ipv6));
        let mut own: Vec<_> = fixed.into_iter().chain(inbound).map(Arc::new).collect();
        own.extend(inputs.added_clusters());
        all(outbound, own)
    }

    fn listeners(&self, inputs: &ClientInputs<'a>) -> All {
        let &ClientInputs { context, proxy, ref view, cache, .. } = inputs;
        let (shared, mut own) = inputs.common().outbound_listeners(proxy, view);
        let served = cache.served(context, &proxy.cluster, proxy.namespace());
        let targets = inbound_targets(context, proxy, &served);
        let inbound = lds::inbound(context, proxy, &targets, &cache.policies);
        own.extend(inbound.into_iter().map(Arc::new));
        all(shared, own)
    }

    fn name_table(&self, inputs: &ClientInputs<'a>) -> Arc<SharedList> {
        inputs.name_table()
    }

    fn route(&self, inputs: &ClientInputs<'a>, name: &str) -> Arc<Resource> {
        let class = inputs.common().class(&inputs.view);
        match own_domain(inputs.context, inputs.proxy) {
            Ok(namespace) => inputs.common().route(&class, Some(namespace), name),
            Err(domain) => inputs.common().route_in(&class, domain, name),
        }
    }

    fn route_outline(&self, inputs: &ClientInputs<'a>, name: &str) -> Option<Arc<Resource>> {
        let port = port_number(name)?;
        let class = inputs.common().class(&inputs.view);
        let domain = own_domain(inputs.context, inputs.proxy);
        Some(Arc::new(inputs.common().route_outline(&class, domain, port)))
    }
}
