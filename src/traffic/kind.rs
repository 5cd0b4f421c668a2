//! What reading an object depends on besides the object.

use crate::model::Namespace;

/// Settings of the mesh that change what objects mean.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KindSettings {
    /// The DNS domain of services, which short hosts are completed with.
    pub domain: String,
    /// The namespace whose rules hold for the mesh.
    pub root_namespace: Namespace,
    /// `defaultDestinationRuleExportTo`; empty for everybody.
    pub destination_rules_export_to: Vec<String>,
    /// `defaultVirtualServiceExportTo`; empty for everybody.
    pub virtual_services_export_to: Vec<String>,
}
