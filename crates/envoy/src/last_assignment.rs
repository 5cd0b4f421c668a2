//! The assignment that many streams look up in succession.
//!
//! A change of one service wakes all streams that subscribe to its assignment, and each of them looks
//! it up. The look-up computes on which parts of the proxy's view the assignment depends, and hashes
//! them with the name. The last assignment that was looked up twice is stored with the view and with
//! these dependencies, so that further look-ups only compare.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, RwLock, Weak};

use strait_mesh::aggregate::MergedService;
use strait_mesh::push::PushContext;
use strait_mesh::push::view::{ViewDependencies, ViewKey};
use strait_xds::resource::Resource;

/// The last assignment that was looked up twice in succession.
#[derive(Debug, Default)]
pub(super) struct LastAssignment {
    /// The address of the assignment that was looked up last, only to detect a repetition.
    looked_up: AtomicUsize,
    repeated: RwLock<Option<RepeatedLookup>>,
}

/// An assignment and everything that it depends on, besides its name.
#[derive(Debug)]
struct RepeatedLookup {
    /// Weak, like the assignment, so that no version of the mesh is kept in memory.
    context: Weak<PushContext>,
    resource: Weak<Resource>,
    view: ViewKey,
    dependencies: ViewDependencies,
    /// Whether rules for the service depend on the selectors that match the proxy.
    by_rules: bool,
}

impl LastAssignment {
    /// Returns the stored assignment if it has this name, and is the same for this version of the
    /// mesh and this view.
    pub(super) fn get(
        &self,
        context: &Arc<PushContext>,
        view: &ViewKey,
        name: &str,
    ) -> Option<Arc<Resource>> {
        // While another thread replaces the assignment, this is a usual look-up.
        let repeated = self.repeated.try_read().ok()?;
        let repeated = repeated.as_ref()?;
        if repeated.context.as_ptr() != Arc::as_ptr(context) {
            return None;
        }
        let resource = repeated.resource.upgrade()?;
        (*resource.name == *name && repeated.is_same_for(view)).then_some(resource)
    }

    /// Stores an assignment of `service` that was looked up, if the previous look-up had the same
    /// result.
    pub(super) fn note(
        &self,
        context: &Arc<PushContext>,
        view: &ViewKey,
        service: &MergedService,
        resource: &Arc<Resource>,
    ) {
        let address = Arc::as_ptr(resource).addr();
        if self.looked_up.load(Ordering::Relaxed) != address {
            self.looked_up.store(address, Ordering::Relaxed);
            return;
        }
        let Ok(mut repeated) = self.repeated.try_write() else { return };
        let host = service.hostname();
        let by_rules = context.traffic.is_by_namespace(host.as_str());
        let mut dependencies = ViewDependencies::of(context, service);
        dependencies.namespace |= by_rules || context.private.contains_key(host);
        *repeated = Some(RepeatedLookup {
            context: Arc::downgrade(context),
            resource: Arc::downgrade(resource),
            view: view.clone(),
            dependencies,
            by_rules,
        });
    }

    /// Removes the stored assignment.
    pub(super) fn clear(&self) {
        if let Ok(mut repeated) = self.repeated.write() {
            *repeated = None;
        }
    }
}

impl RepeatedLookup {
    /// Returns whether the assignment is the same for another view: see [`ViewKey::projected`].
    fn is_same_for(&self, view: &ViewKey) -> bool {
        let ViewKey {
            cluster,
            network,
            visible_networks,
            namespace,
            ipv4,
            ipv6,
            node,
            locality,
            selection,
            role,
            grpc,
        } = &self.view;
        let ViewDependencies {
            cluster: by_cluster,
            namespace: by_namespace,
            node: by_node,
            locality: by_locality,
        } = self.dependencies;
        (*ipv4, *ipv6, *role, *grpc) == (view.ipv4, view.ipv6, view.role, view.grpc)
            && *network == view.network
            && *visible_networks == view.visible_networks
            && (!by_cluster || *cluster == view.cluster)
            && (!by_namespace || *namespace == view.namespace)
            && (!by_node || *node == view.node)
            && (!by_locality || *locality == view.locality)
            && (!self.by_rules || *selection == view.selection)
    }
}
