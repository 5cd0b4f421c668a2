//! For whom an assignment is made: what of a proxy's place a view depends on, and what of that matters
//! for a service.

use std::net::IpAddr;
use std::sync::Arc;

use super::context::{PushContext, Whereabouts};
use crate::aggregate::MergedService;
use strait_model::{
    ClusterId, Distribution, ExportTo, GrpcLibrary, Locality, Namespace, NetworkId, Proxy,
    Resolution, TlsMode,
};
use strait_rules::traffic::Selection;

/// What a view depends on besides the mesh: equal keys see the same. Proxies that share a key share
/// encoded assignments.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ViewKey {
    /// The proxy's cluster.
    pub cluster: ClusterId,
    /// The proxy's network.
    pub network: NetworkId,
    /// Of named networks, those that it asks for; `None` for all.
    pub sees: Option<Arc<[NetworkId]>>,
    /// The proxy's namespace.
    pub namespace: Namespace,
    /// Whether it speaks IPv4.
    pub ipv4: bool,
    /// Whether it speaks IPv6.
    pub ipv6: bool,
    /// The node it runs on, where known.
    pub node: Option<Arc<str>>,
    /// Where that is, where known.
    pub locality: Option<Arc<Locality>>,
    /// The selectors of rules that select it.
    pub selection: Selection,
    /// For whom the answer is.
    pub role: Role,
    /// Where it is no Envoy but gRPC's own library, which speaks mTLS in fewer ways.
    pub grpc: Option<GrpcLibrary>,
}

/// For whom an assignment is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// A client that starts connections.
    Client,
    /// An east-west gateway that forwards connections into its own network.
    Gateway,
}

impl Role {
    /// The TLS mode of an endpoint, as those of this role need to know it.
    pub(super) fn tls_mode(self, mode: TlsMode) -> TlsMode {
        match (mode, self) {
            // What a gateway carries is what its clients send.
            (TlsMode::Changing, Self::Gateway) => TlsMode::Istio,
            (TlsMode::Changing, Self::Client) => TlsMode::Disabled,
            (mode, _) => mode,
        }
    }
}

impl ViewKey {
    /// The view of a proxy in `network`.
    pub fn of(proxy: &Proxy, network: NetworkId, role: Role) -> Self {
        Self {
            cluster: proxy.cluster.clone(),
            network,
            sees: proxy.sees.clone(),
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

    /// The same, of a proxy that is known to be there.
    pub fn at(self, Whereabouts { node, locality }: Whereabouts) -> Self {
        Self { node, locality, ..self }
    }

    /// The same, of a proxy that these select.
    pub fn selected(self, selection: Selection) -> Self {
        Self { selection, ..self }
    }

    /// The view with all left out that can't matter for the endpoints of `service`, so that more
    /// proxies share it. It is given what the whole view is given.
    pub fn projected(&self, context: &PushContext, service: &MergedService) -> Self {
        let matters = ViewDependencies::of(context, service);
        let by_name = matches!(service.primary.resolution, Resolution::ByName(_));
        let by_rules = context.traffic.is_by_namespace(service.hostname().as_str());
        let is_named = by_rules && context.traffic.concerns(&self.namespace);
        Self {
            cluster: if matters.cluster { self.cluster.clone() } else { ClusterId::default() },
            network: if by_name || has_endpoints_in(service, &self.network) {
                self.network.clone()
            } else {
                elsewhere(service)
            },
            sees: self.sees.clone().filter(|_| {
                let networks = service.shards.iter().flat_map(|shard| shard.networks());
                networks.into_iter().any(|network| !self.sees(network))
            }),
            namespace: if matters.namespace || is_named {
                self.namespace.clone()
            } else {
                Namespace::default()
            },
            ipv4: self.ipv4,
            ipv6: self.ipv6,
            node: self.node.clone().filter(|_| matters.node),
            locality: self.locality.clone().filter(|_| matters.locality),
            selection: if by_rules { self.selection.clone() } else { Selection::default() },
            role: self.role,
            // How it balances is no matter for what it balances among.
            grpc: self.grpc.map(|library| GrpcLibrary { least_request: false, ..library }),
        }
    }

    pub(super) fn sees(&self, network: &NetworkId) -> bool {
        network.is_empty() || self.sees.as_ref().is_none_or(|seen| seen.contains(network))
    }

    pub(super) fn speaks(&self, address: IpAddr) -> bool {
        if address.is_ipv4() { self.ipv4 } else { self.ipv6 }
    }
}

/// What of a proxy's place matters for the endpoints of a service. By default nothing does.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct ViewDependencies {
    /// In which cluster it is.
    pub cluster: bool,
    /// In which namespace.
    pub namespace: bool,
    /// On which node.
    pub node: bool,
    /// In which locality.
    pub locality: bool,
}

impl ViewDependencies {
    /// What matters for `service`.
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

/// Whether it matters for the endpoints of `service` in which cluster a proxy is.
pub(super) fn is_by_cluster(context: &PushContext, service: &MergedService) -> bool {
    let (host, namespace) = (service.hostname(), &service.primary.namespace);
    context.mesh.cluster_local(host)
        || service.has_ports_by_cluster()
        || service.shares_addresses()
        || is_by_node(service)
        || context.policy.prefers(host.as_str(), namespace.as_str())
}

/// Whether it matters for the endpoints of `service` on which node a proxy is.
pub fn is_by_node(service: &MergedService) -> bool {
    service.primary.prefers == Distribution::SameNode || service.node_local
}

pub(super) fn has_endpoints_in(service: &MergedService, network: &NetworkId) -> bool {
    service.shards.iter().any(|shard| shard.networks().contains(network))
}

/// A network in which the service has no endpoints: all of these see the same of it.
pub(super) fn elsewhere(service: &MergedService) -> NetworkId {
    let mut name = NetworkId::default();
    while has_endpoints_in(service, &name) {
        name = format!("{name}~").into();
    }
    name
}
