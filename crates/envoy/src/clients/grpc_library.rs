//! Resources of gRPC libraries, which [`LibraryConfig`] generates.

use std::sync::Arc;

use super::generator::{ProxyGenerator, all};
use super::inputs::ClientInputs;
use crate::common::list;
use crate::library::LibraryConfig;
use crate::rds;
use strait_xds::list::SharedList;
use strait_xds::resource::{All, Resource, ResourceType};

/// A gRPC library that uses xDS without a proxy.
pub(crate) struct LibraryClient;

impl LibraryClient {
    pub(crate) fn config<'i>(&self, inputs: &'i ClientInputs<'_>) -> LibraryConfig<'i> {
        LibraryConfig { context: inputs.context, view: &inputs.view, cache: inputs.cache }
    }
}

impl<'a> ProxyGenerator<'a> for LibraryClient {
    fn clusters(&self, _: &ClientInputs<'a>) -> All {
        all(list(ResourceType::Cluster, Vec::new()), Vec::new())
    }

    fn listeners(&self, _: &ClientInputs<'a>) -> All {
        all(list(ResourceType::Listener, Vec::new()), Vec::new())
    }

    fn name_table(&self, _: &ClientInputs<'a>) -> Arc<SharedList> {
        list(ResourceType::NameTable, Vec::new())
    }

    fn route(&self, inputs: &ClientInputs<'a>, name: &str) -> Arc<Resource> {
        self.config(inputs).route(name).unwrap_or_else(|| Arc::new(rds::empty(name)))
    }

    fn is_by_name(&self) -> bool {
        true
    }

    fn by_name(
        &self,
        inputs: &ClientInputs<'a>,
        kind: ResourceType,
        name: &str,
    ) -> Option<Arc<Resource>> {
        match kind {
            ResourceType::Cluster => self.config(inputs).cluster(name),
            ResourceType::Listener => self.config(inputs).listener(name, inputs.proxy),
            ResourceType::Endpoint
            | ResourceType::Route
            | ResourceType::VirtualHost
            | ResourceType::NameTable => None,
        }
    }
}
