//! Fuzz targets of this crate: see [`strait_base::testing::fuzz`].

use strait_base::testing::fuzz::Target;

/// The targets of this crate.
pub const TARGETS: &[Target] =
    &[("mesh_config", mesh_config), ("mesh_networks", mesh_networks), ("policy", policy)];

/// Parses a mesh config.
pub fn mesh_config(bytes: &[u8]) -> bool {
    use crate::mesh_config::{Defaults, MeshConfig};

    let Ok(text) = std::str::from_utf8(bytes) else { return false };
    let _ = crate::mesh_config::own_trust_domain(text);
    let Ok(config) = MeshConfig::parse(text, &Defaults::default()) else { return false };
    config.to_json().is_object()
}

/// Parses mesh networks and looks addresses up in them.
pub fn mesh_networks(bytes: &[u8]) -> bool {
    use std::net::IpAddr;

    use crate::ClusterId;
    use crate::mesh_config::MeshNetworks;

    let Ok(text) = std::str::from_utf8(bytes) else { return false };
    let Ok(networks) = MeshNetworks::parse(text) else { return false };
    let _ = networks.network_of(&ClusterId::from("east"), IpAddr::from([10, 0, 0, 1]));
    let _ = networks.named_services();
    networks.gateways().count() > 0
}

/// Parses a policy file.
pub fn policy(bytes: &[u8]) -> bool {
    use crate::ClusterId;
    use crate::policy::Policy;

    let Ok(text) = std::str::from_utf8(bytes) else { return false };
    let Ok(policy) = Policy::parse(text) else { return false };
    let east = ClusterId::from("east");
    let _ = (policy.mode(&east), policy.when_dark(&east), policy.budget(&east));
    let _ = policy.may_export(&east, "a.b.svc.cluster.local", "b");
    let _ = policy.clusters_named();
    let loopback = [127, 0, 0, 1].into();
    assert!(policy.may_use(&east, loopback).is_err(), "no policy gives loopback away");
    true
}

#[cfg(test)]
mod tests {
    #[test]
    fn targets_accept_their_corpora_and_mutations() {
        strait_base::testing::fuzz::check_targets(super::TARGETS);
    }
}
