//! Builders for tests of this crate and of those above it.

pub mod largest;

use crate::traffic::KindSettings;

/// How objects of the traffic configuration are read in a mesh that says nothing of it.
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
