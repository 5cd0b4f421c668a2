//! The view of a proxy: the properties of the proxy that assignments depend on, and which of them
//! are relevant for a service.

use std::net::IpAddr;
use std::sync::Arc;

use super::context::{PushContext, Whereabouts};
use crate::aggregate::MergedService;
use strait_model::{
    ClusterId, Distribution, ExportTo, GrpcLibrary, Locality, Namespace, NetworkId, Proxy,
    Resolution, TlsMode,
};
use strait_rules::traffic::Selection;

/// The properties of a proxy on which its assignments depend. Proxies with equal keys share encoded
/// assignments.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ViewKey {
    /// The proxy's cluster.
    pub cluster: ClusterId,
    /// The proxy's network.
    pub network: NetworkId,
    /// The named networks whose endpoints it requests; `None` for all.
    pub visible_networks: Option<Arc<[NetworkId]>>,
    /// The proxy's namespace.
    pub namespace: Namespace,
    /// Whether it supports IPv4.
    pub ipv4: bool,
    /// Whether it supports IPv6.
    pub ipv6: bool,
    /// Its node, if known.
    pub node: Option<Arc<str>>,
    /// Its locality, if known.
    pub locality: Option<Arc<Locality>>,
    /// The selectors of rules that match the proxy.
    pub selection: Selection,
    /// The role of the proxy for this assignment.
    pub role: Role,
    /// Set if the client is gRPC's own library instead of Envoy; it supports fewer kinds of mTLS.
    pub grpc: Option<GrpcLibrary>,
}

/// The role of a proxy for which an assignment is computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// A client that opens connections.
    Client,
    /// An east-west gateway that forwards connections into its own network.
    Gateway,
}

impl Role {
    /// Returns the TLS mode of an endpoint for a proxy in this role.
    pub(super) fn tls_mode(self, mode: TlsMode) -> TlsMode {
        match (mode, self) {
            // A gateway forwards the bytes that its clients send, which may still be mTLS.
            (TlsMode::Changing, Self::Gateway) => TlsMode::Istio,
            (TlsMode::Changing, Self::Client) => TlsMode::Disabled,
            (mode, _) => mode,
        }
    }
}

impl ViewKey {
    /// Returns the view of a proxy in `network`.
    pub fn of(proxy: &Proxy, network: NetworkId, role: Role) -> Self {
        Self {
            cluster: proxy.cluster.clone(),
            network,
            visible_networks: proxy.visible_networks.clone(),
            namespace: proxy.namespace().clone(),
            ipv4: proxy.has_ipv4(),
            ipv6: proxy.has_ipv6(),
            node: None,
            locality: None,
            selection: Selection::default(),
            role,
            grpc: proxy.grpc,
        }
    }

    /// Sets the location of the proxy.
    pub fn at(self, Whereabouts { node, locality }: Whereabouts) -> Self {
        Self { node, locality, ..self }
    }

    /// Sets the selectors of rules that match the proxy.
    pub fn selected(self, selection: Selection) -> Self {
        Self { selection, ..self }
    }

    /// Returns the view without the properties that are irrelevant for the endpoints of `service`,
    /// so that more proxies share it. The assignment is equal to that of the whole view.
    pub fn projected(&self, context: &PushContext, service: &MergedService) -> Self {
        let dependencies = ViewDependencies::of(context, service);
        let by_name = matches!(service.primary.resolution, Resolution::ByName(_));
        let by_rules = context.traffic.is_by_namespace(service.hostname().as_str());
        let is_named = by_rules && context.traffic.concerns(&self.namespace);
        Self {
            cluster: if dependencies.cluster { self.cluster.clone() } else { ClusterId::default() },
            network: if by_name || has_endpoints_in(service, &self.network) {
                self.network.clone()
            } else {
                elsewhere(service)
            },
            visible_networks: self.visible_networks.clone().filter(|_| {
                let networks = service.shards.iter().flat_map(|shard| shard.networks());
                networks.into_iter().any(|network| !self.is_visible(network))
            }),
            namespace: if dependencies.namespace || is_named {
                self.namespace.clone()
            } else {
                Namespace::default()
            },
            ipv4: self.ipv4,
            ipv6: self.ipv6,
            node: self.node.clone().filter(|_| dependencies.node),
            locality: self.locality.clone().filter(|_| dependencies.locality),
            selection: if by_rules { self.selection.clone() } else { Selection::default() },
            role: self.role,
            // The load-balancing algorithm is irrelevant for the set of endpoints.
            grpc: self.grpc.map(|library| GrpcLibrary { least_request: false, ..library }),
        }
    }

    pub(super) fn is_visible(&self, network: &NetworkId) -> bool {
        network.is_empty()
            || self.visible_networks.as_ref().is_none_or(|seen| seen.contains(network))
    }

    pub(super) fn supports_address(&self, address: IpAddr) -> bool {
        if address.is_ipv4() { self.ipv4 } else { self.ipv6 }
    }
}

/// The properties of a proxy's location that are relevant for the endpoints of a service. None by
/// default.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct ViewDependencies {
    /// Its cluster.
    pub cluster: bool,
    /// Its namespace.
    pub namespace: bool,
    /// Its node.
    pub node: bool,
    /// Its locality.
    pub locality: bool,
}

impl ViewDependencies {
    /// Returns the properties that are relevant for `service`.
    pub fn of(context: &PushContext, service: &MergedService) -> Self {
        Self {
            cluster: is_by_cluster(context, service),
            namespace: service.primary.export_to != ExportTo::Public,
            node: is_by_node(service),
            locality: service.primary.prefers != Distribution::Any
                || context.mesh.localities.as_ref().is_some_and(|mesh| !mesh.distribute.is_empty())
                || context.mesh.usual_limits.outlier_detection.is_some()
                || context.traffic.destination_rules.place(service.hostname().as_str()),
        }
    }
}

/// Returns whether the endpoints of `service` depend on the proxy's cluster.
pub(super) fn is_by_cluster(context: &PushContext, service: &MergedService) -> bool {
    let (host, namespace) = (service.hostname(), &service.primary.namespace);
    context.mesh.cluster_local(host)
        || service.has_ports_by_cluster()
        || service.shares_addresses()
        || is_by_node(service)
        || context.policy.prefers(host.as_str(), namespace.as_str())
}

/// Returns whether the endpoints of `service` depend on the proxy's node.
pub fn is_by_node(service: &MergedService) -> bool {
    service.primary.prefers == Distribution::SameNode || service.node_local
}

pub(super) fn has_endpoints_in(service: &MergedService, network: &NetworkId) -> bool {
    service.shards.iter().any(|shard| shard.networks().contains(network))
}

/// Returns a network in which the service has no endpoints. It represents all such networks,
/// because the service looks the same from them.
pub(super) fn elsewhere(service: &MergedService) -> NetworkId {
    let mut name = NetworkId::default();
    while has_endpoints_in(service, &name) {
        name = format!("{name}~").into();
    }
    name
}
