//! What reading an object depends on besides the object.

use strait_model::Namespace;
use strait_model::mesh_config::{GatewayScope, HostSharing, IngressSettings, MeshConfig};

/// Settings of the mesh that change what objects mean.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KindSettings {
    /// The DNS domain of services, which short hosts are completed with.
    pub domain: String,
    /// The namespace whose rules hold for the mesh.
    pub root_namespace: Namespace,
    /// Which routers a Gateway may select.
    pub gateway_scope: GatewayScope,
    /// Whose rules hold where several VirtualServices name a host at sidecars.
    pub host_sharing: HostSharing,
    /// `defaultDestinationRuleExportTo`; empty for everybody.
    pub destination_rules_export_to: Vec<String>,
    /// `defaultVirtualServiceExportTo`; empty for everybody.
    pub virtual_services_export_to: Vec<String>,
    /// Which Ingresses are followed, by whom.
    pub ingress: IngressSettings,
}

impl KindSettings {
    /// Those of a mesh in that DNS domain.
    pub fn of(domain: &str, config: &MeshConfig) -> Self {
        Self {
            domain: domain.to_owned(),
            root_namespace: config.root_namespace.as_str().into(),
            gateway_scope: config.gateway_scope,
            host_sharing: config.host_sharing,
            destination_rules_export_to: config.default_destination_rule_export_to.clone(),
            virtual_services_export_to: config.default_virtual_service_export_to.clone(),
            ingress: config.ingress.clone(),
        }
    }
}
