//! The interface of the generators of one kind of client.

use std::sync::Arc;

use super::inputs::ClientInputs;
use crate::common::sort;
use strait_xds::list::SharedList;
use strait_xds::resource::{All, Resource, ResourceType};

/// Generates the resources of one kind of client.
pub(crate) trait ProxyGenerator<'a> {
    /// Returns all upstream clusters.
    fn clusters(&self, inputs: &ClientInputs<'a>) -> All;

    /// Returns all listeners.
    fn listeners(&self, inputs: &ClientInputs<'a>) -> All;

    /// Returns the name table of Istio's agents. It is generated only for clients that request it.
    fn name_table(&self, inputs: &ClientInputs<'a>) -> Arc<SharedList>;

    /// Returns the route configuration with this name. It is empty if the name is unknown.
    fn route(&self, inputs: &ClientInputs<'a>, name: &str) -> Arc<Resource>;

    /// Returns the route configuration with this name without its virtual hosts, or `None` if that
    /// requires the whole route configuration.
    fn route_outline(&self, _inputs: &ClientInputs<'a>, _name: &str) -> Option<Arc<Resource>> {
        None
    }

    /// Returns whether the client requests upstream clusters and listeners by name. Envoys do not.
    fn is_by_name(&self) -> bool {
        false
    }

    /// Returns the upstream cluster or listener with this name, if the client requests them by
    /// name.
    fn by_name(
        &self,
        _inputs: &ClientInputs<'a>,
        _kind: ResourceType,
        _name: &str,
    ) -> Option<Arc<Resource>> {
        None
    }
}

/// Returns the shared resources, and the proxy's own resources that have other names.
pub(super) fn all(shared: Arc<SharedList>, mut own: Vec<Arc<Resource>>) -> All {
    sort(&mut own);
    let shared_names = shared.resources();
    own.retain(|one| shared_names.binary_search_by(|other| other.name.cmp(&one.name)).is_err());
    All { shared, own }
}
