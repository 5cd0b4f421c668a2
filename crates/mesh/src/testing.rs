//! Builders for tests of this crate and of those above it.

use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use crate::hold::{ConfigurationHold, HoldScope};
use crate::push::FixedSettings;
use strait_model::ConfigurationSnapshot;

/// The fixed settings of a mesh with the domain `cluster.local`.
pub fn settings() -> Arc<FixedSettings> {
    Arc::new(FixedSettings {
        domain: "cluster.local".into(),
        trust_domain: "cluster.local".into(),
        system_namespace: "strait-system".into(),
        config_cluster: None,
        allow_direct_cross_network: false,
        headless_pods_max: 1000,
        metadata: Default::default(),
        cluster_aliases: Default::default(),
    })
}

/// A hold of a configuration with access policies. `since` is in milliseconds after the Unix epoch.
pub fn hold_of(configuration: ConfigurationSnapshot, since: u64) -> ConfigurationHold {
    ConfigurationHold {
        configuration: Arc::new(configuration),
        since: UNIX_EPOCH + Duration::from_millis(since),
        by: "alice".to_owned(),
        reason: "5xx since noon".to_owned(),
        scope: HoldScope::WithAccess,
    }
}
