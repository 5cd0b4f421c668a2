//! The services that the cluster shares with others through multi-cluster services. [`Mcs`] defines
//! the modes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::registry::kube::import_objects::DerivedService;
use crate::registry::kube::imported_slices::ImportedSlices;
use crate::registry::kube::mcs::{Export, Import};
use crate::registry::kube::namespace::NamespaceFacts;
use strait_kube_client::NamespacedName;
use strait_model::mesh_config::ServiceScopes;
use strait_model::registry::ServiceRecord;
use strait_model::{
    Definition, Distribution, Endpoints, ExportTo, Hostname, Labels, Mcs, Namespace, Resolution,
    Service, SharingFacts,
};

/// The shared services of a cluster, and the records that were last sent for them.
#[derive(Debug, Default)]
pub(super) struct SharedWithMesh {
    pub(super) mode: Mcs,
    /// The selectors of global services.
    pub(super) scopes: Arc<ServiceScopes>,
    pub(super) exports: BTreeMap<NamespacedName, Export>,
    pub(super) imports: BTreeMap<NamespacedName, Import>,
    /// The derived Services of ServiceImports, of all controllers, by the key of the Service.
    pub(super) derived: BTreeMap<NamespacedName, DerivedService>,
    /// The EndpointSlices of these Services.
    pub(super) slices: ImportedSlices,
    /// Whether exports have been listed.
    pub(super) exports_listed: bool,
    /// Whether imports have been listed.
    pub(super) imports_listed: bool,
    /// Records under the clusterset name, by the key of the service.
    pub(super) last_sent: BTreeMap<NamespacedName, ServiceRecord>,
    /// Existing services whose export was deleted. They are not exported automatically again.
    pub(super) declined: BTreeSet<NamespacedName>,
}

impl SharedWithMesh {
    /// Returns whether the service is exported, if exports alone decide whether it is shared.
    fn export(&self, key: &NamespacedName) -> Option<bool> {
        match self.mode {
            Mcs::Off => None,
            Mcs::Exports | Mcs::Clusterset => Some(self.exports.contains_key(key)),
            Mcs::Strict => Some(false),
        }
    }

    /// Returns the service with the statements of all objects about sharing it.
    pub(super) fn with_statements(
        &self,
        key: &NamespacedName,
        labels: &Labels,
        namespace: Option<&NamespaceFacts>,
        service: Arc<Service>,
    ) -> Arc<Service> {
        let no_labels = Labels::new();
        let namespace_labels = namespace.map_or(&no_labels, |namespace| &namespace.labels);
        let sharing = SharingFacts {
            export: self.export(key),
            namespace_label: namespace.and_then(|namespace| namespace.share),
            scope: self.scopes.is_global(namespace_labels, labels),
            ..service.sharing
        };
        if sharing == service.sharing {
            return service;
        }
        let mut service = Service::clone(&service);
        service.sharing = sharing;
        Arc::new(service)
    }

    /// Whether services have a clusterset name.
    pub(super) fn has_set(&self) -> bool {
        matches!(self.mode, Mcs::Clusterset | Mcs::Strict)
    }

    /// Returns the record of a service under its clusterset name. `own` is the cluster's record. A
    /// service that the cluster neither exports nor imports has none.
    pub(super) fn in_set(
        &self,
        key: &NamespacedName,
        hostname: &Hostname,
        own: Option<&ServiceRecord>,
    ) -> Option<ServiceRecord> {
        let exported = self.exports.contains_key(key);
        // An import without an address cannot be reached.
        let import = self.imports.get(key).filter(|import| !import.vips.is_empty());
        let record = match (own, import) {
            (Some(own), _) if exported || import.is_some() => {
                let definition = Definition {
                    hostname: hostname.clone(),
                    labels: Labels::new(),
                    sharing: SharingFacts { export: Some(exported), ..SharingFacts::default() },
                    ..Definition::clone(&own.service)
                };
                // External addresses belong to the cluster's own name.
                let service = Service {
                    vips: import.map(|import| import.vips.clone()).unwrap_or_default(),
                    created: own.service.created,
                    ..Service::from(definition)
                };
                Some((service, own.endpoints.clone()))
            }
            // An import without ports would hide the ports of others.
            (None, Some(import)) if !import.ports.is_empty() => {
                Some((imported(key, hostname.clone(), import), Endpoints::default()))
            }
            _ => None,
        };
        record.map(|(service, endpoints)| ServiceRecord { service: Arc::new(service), endpoints })
    }
}

/// Returns a service that the cluster only imports.
fn imported(key: &NamespacedName, hostname: Hostname, import: &Import) -> Service {
    let definition = Definition {
        hostname,
        name: Arc::clone(&key.name),
        namespace: Namespace::new(Arc::clone(&key.namespace)),
        ports: import.ports.clone(),
        resolution: Resolution::ClientSide,
        ranges: Vec::new(),
        labels: Labels::new(),
        selector: Labels::new(),
        service_accounts: Vec::new(),
        export_to: ExportTo::Public,
        node_local: false,
        prefers: Distribution::Any,
        sharing: SharingFacts::default(),
        named_pods: Default::default(),
        affinity_seconds: None,
        mesh_external: false,
    };
    // Younger than any service, so that it never determines the definition of others.
    Service { vips: import.vips.clone(), created: i64::MAX, ..Service::from(definition) }
}
