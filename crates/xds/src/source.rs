//! The interface through which a session obtains a proxy's resources.

use std::sync::Arc;

use super::list::SharedList;
use super::resource::{Resource, ResourceType};

/// All resources of a wildcard type for one proxy.
#[derive(Debug, Clone)]
pub struct All {
    /// Resources that many proxies hold.
    pub shared: Arc<SharedList>,
    /// Resources of this proxy only, sorted by name. No name is also in `shared`.
    pub own: Vec<Arc<Resource>>,
}

impl All {
    /// Returns the resource with this name.
    pub fn get(&self, name: &str) -> Option<&Arc<Resource>> {
        let shared = self.shared.place(name).map(|at| &self.shared.resources()[at]);
        shared.or_else(|| self.own.iter().find(|one| *one.name == *name))
    }
}

/// The resources of one proxy at one version of the mesh.
pub trait ResourceSource {
    /// Returns all resources of a wildcard type.
    fn all(&mut self, kind: ResourceType) -> All;

    /// Returns whether [`Self::one`] also finds resources of wildcard types. If so, resources that
    /// a client requests by name need not be in [`Self::all`].
    fn is_by_name(&self) -> bool {
        false
    }

    /// Returns the resource with this name.
    ///
    /// Named types (EDS, RDS) always return a resource; for an unknown name, it is empty. For
    /// virtual hosts, the name is that of a route, and the result is the whole route with its
    /// hosts. Wildcard types return `None`, because their resources are in [`Self::all`], unless
    /// [`Self::is_by_name`] is true.
    fn one(&mut self, kind: ResourceType, name: &str) -> Option<Arc<Resource>>;

    /// Returns whether clients subscribe to an endpoint assignment for this upstream cluster, which
    /// is one of this source.
    fn is_assigned(&self, cluster: &Resource) -> bool;
}
