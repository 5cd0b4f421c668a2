//! Builders for tests of this crate and of crates that depend on it.

pub mod largest;

use crate::traffic::KindSettings;

/// Returns the settings for reading objects in a mesh with the default configuration.
pub fn kind_settings() -> KindSettings {
    KindSettings {
        domain: "cluster.local".to_owned(),
        root_namespace: "istio-system".into(),
        gateway_scope: Default::default(),
        host_sharing: Default::default(),
        destination_rules_export_to: Vec::new(),
        virtual_services_export_to: Vec::new(),
        ingress: Default::default(),
    }
}
