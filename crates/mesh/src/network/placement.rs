//! The network of an endpoint or a proxy.

use std::fmt;
use std::net::IpAddr;

use strait_model::mesh_config::MeshNetworks;
use strait_model::{ClusterId, NetworkId};

/// The rule that assigned a network, in order of precedence (docs/reference/interface.md,
/// "Networks").
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum PlacedBy {
    /// The annotation `strait.dev/network` of the member's Secret, which is final.
    SecretAnnotation,
    /// The label of the pod.
    WorkloadLabel,
    /// The label of the cluster's system namespace.
    NamespaceLabel,
    /// MeshNetworks: `fromRegistry` names the cluster.
    MeshNetworksRegistry,
    /// MeshNetworks: the longest `fromCidr` that contains the address.
    MeshNetworksCidr,
    /// No rule applied: the network with the empty name.
    Nothing,
}

impl fmt::Display for PlacedBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::SecretAnnotation => "annotation strait.dev/network of the cluster's Secret",
            Self::WorkloadLabel => "label topology.istio.io/network of the pod",
            Self::NamespaceLabel => "label topology.istio.io/network of the system namespace",
            Self::MeshNetworksRegistry => "meshNetworks fromRegistry",
            Self::MeshNetworksCidr => "meshNetworks fromCidr",
            Self::Nothing => "default, because no rule assigns one",
        })
    }
}

/// Returns the network of an endpoint or proxy in `cluster` at `address`, and the rule that decided
/// it.
///
/// `fixed` is the annotation of the cluster's Secret, `workload_label` the pod's own label,
/// `namespace_label` the label of the cluster's system namespace. Empty values are ignored.
pub fn network_of(
    fixed: Option<&NetworkId>,
    workload_label: Option<&NetworkId>,
    namespace_label: Option<&NetworkId>,
    mesh: &MeshNetworks,
    cluster: &ClusterId,
    address: IpAddr,
) -> (NetworkId, PlacedBy) {
    let is_set = |claim: &&NetworkId| !claim.is_empty();
    let assigned = fixed
        .filter(is_set)
        .map(|network| (network, PlacedBy::SecretAnnotation))
        .or_else(|| workload_label.filter(is_set).map(|network| (network, PlacedBy::WorkloadLabel)))
        .or_else(|| {
            namespace_label.filter(is_set).map(|network| (network, PlacedBy::NamespaceLabel))
        })
        .or_else(|| Some((mesh.network_by_registry(cluster)?, PlacedBy::MeshNetworksRegistry)))
        .or_else(|| Some((mesh.network_by_address(address)?, PlacedBy::MeshNetworksCidr)));
    match assigned {
        Some((network, rule)) => (network.clone(), rule),
        None => (NetworkId::default(), PlacedBy::Nothing),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_apply_in_the_documented_order() {
        let mesh = MeshNetworks::parse(
            "networks:\n  r: {endpoints: [{fromRegistry: east}]}\n  c: {endpoints: [{fromCidr: 10.0.0.0/8}]}\n  long: {endpoints: [{fromCidr: 10.1.0.0/16}]}\n",
        )
        .expect("valid");
        let id = |name: &str| Some(NetworkId::from(name));
        let (fixed, pod, namespace, empty) = (id("fixed"), id("pod"), id("namespace"), id(""));
        let (fixed, pod, namespace) = (fixed.as_ref(), pod.as_ref(), namespace.as_ref());
        let empty = empty.as_ref();
        use PlacedBy::*;
        let cases = [
            (fixed, pod, namespace, "east", "10.1.0.1", "fixed", SecretAnnotation),
            (None, pod, namespace, "east", "10.1.0.1", "pod", WorkloadLabel),
            (None, None, namespace, "east", "10.1.0.1", "namespace", NamespaceLabel),
            (empty, empty, namespace, "east", "10.1.0.1", "namespace", NamespaceLabel),
            (None, None, None, "east", "10.1.0.1", "r", MeshNetworksRegistry),
            (None, None, empty, "west", "10.1.0.1", "long", MeshNetworksCidr),
            (None, None, None, "west", "10.2.0.1", "c", MeshNetworksCidr),
            (None, None, None, "west", "192.0.2.1", "", Nothing),
        ];
        for case in cases {
            let (fixed, pod, namespace, cluster, address, network, by) = case;
            let address = address.parse().expect("an address");
            let found = network_of(fixed, pod, namespace, &mesh, &cluster.into(), address);
            assert_eq!(found, (network.into(), by), "{case:?}");
        }
    }
}
