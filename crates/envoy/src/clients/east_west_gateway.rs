//! Resources of gateways between networks.

use std::sync::Arc;

use super::generator::{ProxyGenerator, all};
use super::inputs::ClientInputs;
use crate::cds::ClusterFormat;
use crate::class::ListenerFormat;
use crate::common::list;
use crate::{lds, rds};
use strait_xds::list::SharedList;
use strait_xds::resource::{All, Resource, ResourceType};

/// A gateway that forwards connections from other networks by their server name.
pub(crate) struct EastWestGateway {
    /// The port on which it listens.
    pub(crate) port: u16,
}

impl<'a> ProxyGenerator<'a> for EastWestGateway {
    fn clusters(&self, inputs: &ClientInputs<'a>) -> All {
        let form = ClusterFormat::for_proxy(inputs.proxy);
        all(inputs.common().outbound(&inputs.view, &form), Vec::new())
    }

    fn listeners(&self, inputs: &ClientInputs<'a>) -> All {
        let form = ListenerFormat::for_proxy(inputs.proxy);
        let own = lds::gateway(inputs.context, (&inputs.view, form), self.port);
        let own = own.into_iter().map(Arc::new).collect();
        all(list(ResourceType::Listener, Vec::new()), own)
    }

    fn name_table(&self, inputs: &ClientInputs<'a>) -> Arc<SharedList> {
        inputs.name_table()
    }

    /// Its listener uses no routes.
    fn route(&self, _: &ClientInputs<'a>, name: &str) -> Arc<Resource> {
        Arc::new(rds::empty(name))
    }
}
