//! Settings that objects are parsed with.

use strait_model::Namespace;
use strait_model::mesh_config::{GatewayScope, HostSharing, IngressSettings, MeshConfig};

/// Settings of the mesh that change the meaning of objects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KindSettings {
    /// DNS domain of services, which completes short hostnames.
    pub domain: String,
    /// Root namespace, whose rules apply to the whole mesh.
    pub root_namespace: Namespace,
    /// Namespaces of the gateway proxies that a Gateway may select.
    pub gateway_scope: GatewayScope,
    /// Precedence if several VirtualServices have the same host at sidecars.
    pub host_sharing: HostSharing,
    /// `defaultDestinationRuleExportTo`; empty exports to all namespaces.
    pub destination_rules_export_to: Vec<String>,
    /// `defaultVirtualServiceExportTo`; empty exports to all namespaces.
    pub virtual_services_export_to: Vec<String>,
    /// Ingresses of the mesh, and the gateway proxies that serve them.
    pub ingress: IngressSettings,
}

impl KindSettings {
    /// Returns the settings of a mesh with a DNS domain for services.
    pub fn for_domain(domain: &str, config: &MeshConfig) -> Self {
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
