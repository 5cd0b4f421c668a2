//! Where a session gets what its proxy shall hold.

use std::sync::Arc;

use super::list::SharedList;
use super::resource::{Resource, ResourceType};

/// All resources of a wildcard type that a proxy shall hold.
#[derive(Debug, Clone)]
pub struct All {
    /// Those that many proxies hold.
    pub shared: Arc<SharedList>,
    /// Its own, sorted by name; none has a name that is in `shared`.
    pub own: Vec<Arc<Resource>>,
}

impl All {
    /// The one of this name.
    pub fn get(&self, name: &str) -> Option<&Arc<Resource>> {
        let shared = self.shared.place(name).map(|at| &self.shared.resources()[at]);
        shared.or_else(|| self.own.iter().find(|one| *one.name == *name))
    }
}

/// Where a session gets what its proxy shall hold: one proxy's picture at one version of the mesh.
pub trait ResourceSource {
    /// All resources of a wildcard type.
    fn all(&mut self, kind: ResourceType) -> All;

    /// Whether resources of wildcard types are found by name too, so that those which a client names need not be among all.
    fn is_by_name(&self) -> bool {
        false
    }

    /// The resource of this name: a named type (EDS, RDS) always has an answer, an empty one for an unknown
    /// name, and of virtual hosts it is the whole route whose hosts they are. `None` of a wildcard type, whose resources are found in [`Self::all`], unless [`Self::is_by_name`].
    fn one(&mut self, kind: ResourceType, name: &str) -> Option<Arc<Resource>>;
}
