//! Texts and codes of the reasons for which endpoints are withheld.

use super::lines::quoted;
use strait_base::codes;
use strait_mesh::push::view::WithheldReason;
use strait_model::{ClusterId, Health, Hostname, NetworkId, SharingRule};

/// Describes endpoints that are withheld for a reason.
pub(super) fn summary(reason: WithheldReason, network: &NetworkId) -> String {
    match reason {
        WithheldReason::NotReady(Health::Unhealthy) => "not ready".into(),
        WithheldReason::NotReady(health) => health.as_str().into(),
        WithheldReason::ClusterDraining => "leaving: their cluster is being drained".into(),
        WithheldReason::ClusterDark => {
            "withdrawn: their cluster has been unreachable for too long".into()
        }
        WithheldReason::ExportRefused => {
            "of a cluster that the policy does not allow to export the name".into()
        }
        WithheldReason::AddressRefused => {
            "at an address that the policy does not allow their cluster to use".into()
        }
        WithheldReason::NetworkRefused => {
            format!(
                "in network {}, which the policy does not allow their cluster to claim",
                quoted(network)
            )
        }
        WithheldReason::PodMissing => "whose pod is not known yet".into(),
        WithheldReason::NotExported => "not exported to the proxy's namespace".into(),
        WithheldReason::NotImported => "not imported by the proxy's Sidecar".into(),
        WithheldReason::NotCarried => {
            "in another network, whose gateways do not serve the service".into()
        }
        WithheldReason::ClusterLocal => "local to their own cluster".into(),
        WithheldReason::NodeLocal => "local to their own node".into(),
        WithheldReason::SameAddress => format!(
            "at the same address as pods of another cluster, which has it in network {}",
            quoted(network)
        ),
        WithheldReason::NetworkNotVisible => {
            format!("in network {}, which the proxy does not request", quoted(network))
        }
        WithheldReason::OtherNetwork => {
            "in another network, to which a gateway does not forward".into()
        }
        WithheldReason::HeadlessElsewhere => {
            "in another network, where the pods of a headless service can't be reached one by one"
                .into()
        }
        WithheldReason::NoGateway => {
            format!("withheld: network {} has no gateway", quoted(network))
        }
        WithheldReason::GatewayPending => {
            format!("withheld: no gateway of network {} can be dialled yet", quoted(network))
        }
        WithheldReason::GatewayUnserved => {
            format!("unreachable: the gateways of network {} have no ready pod", quoted(network))
        }
        WithheldReason::GatewayUnresolved => {
            format!(
                "withheld: the name of the gateway of network {} does not resolve",
                quoted(network)
            )
        }
        WithheldReason::NoAddress => "without an address".into(),
        WithheldReason::EndpointFamily => {
            "of an address family that the proxy does not support".into()
        }
        WithheldReason::GatewayFamily => {
            "behind gateways of an address family that the proxy does not support".into()
        }
        WithheldReason::PlainText => "without mTLS, which is required across networks".into(),
        WithheldReason::AutoMtlsOff => {
            "behind gateways that require mTLS, which enableAutoMtls: false disables".into()
        }
        WithheldReason::LibraryElsewhere => {
            "behind gateways, to which proxyless gRPC can't send the name of its destination".into()
        }
        WithheldReason::PlainTextForLibrary => {
            "without mTLS, which proxyless gRPC uses for all endpoints of the service".into()
        }
    }
}

/// Describes why only proxies of `cluster` receive its endpoints. `rule` is the rule by which the
/// cluster keeps the service local; without it, the mesh config makes the service cluster-local.
pub(super) fn cluster_local(
    hostname: &Hostname,
    cluster: &ClusterId,
    rule: Option<SharingRule>,
) -> String {
    let decided = match rule {
        Some(SharingRule::Export) if hostname.is_of_set() => {
            return format!(
                "cluster {cluster} does not export it (ServiceExport), so its endpoints are not behind this name"
            );
        }
        Some(SharingRule::Export) => "does not export it (ServiceExport)".to_owned(),
        Some(rule) => format!("keeps it local ({})", rule.as_str()),
        None => {
            return format!(
                "{hostname} is cluster-local: only proxies of cluster {cluster} receive this endpoint"
            );
        }
    };
    format!("cluster {cluster} {decided}, so only its own proxies receive this endpoint")
}

/// Returns the code of a reason, whose page `strait help CODE` prints.
pub fn code(reason: WithheldReason) -> &'static str {
    let code = match reason {
        WithheldReason::NoGateway => &codes::NO_GATEWAY,
        WithheldReason::GatewayPending => &codes::GATEWAY_PENDING,
        WithheldReason::GatewayUnserved => &codes::GATEWAY_UNSERVED,
        WithheldReason::GatewayUnresolved => &codes::GATEWAY_NAME,
        WithheldReason::GatewayFamily => &codes::GATEWAY_FAMILY,
        WithheldReason::PlainText => &codes::PLAIN_TEXT,
        WithheldReason::AutoMtlsOff => &codes::AUTO_MTLS_OFF,
        WithheldReason::LibraryElsewhere => &codes::LIBRARY_ELSEWHERE,
        WithheldReason::PlainTextForLibrary => &codes::PLAIN_TEXT_BESIDE,
        WithheldReason::SameAddress => &codes::SAME_ADDRESS,
        WithheldReason::NetworkNotVisible => &codes::NOT_SEEN,
        WithheldReason::OtherNetwork => &codes::OTHER_NETWORK,
        WithheldReason::HeadlessElsewhere => &codes::HEADLESS_ELSEWHERE,
        WithheldReason::NotReady(_) => &codes::NOT_READY,
        WithheldReason::ClusterDraining => &codes::CLUSTER_DRAINING,
        WithheldReason::ClusterDark => &codes::CLUSTER_DARK,
        WithheldReason::ExportRefused => &codes::EXPORT_REFUSED,
        WithheldReason::AddressRefused => &codes::ADDRESS_REFUSED,
        WithheldReason::NetworkRefused => &codes::NETWORK_REFUSED,
        WithheldReason::PodMissing => &codes::POD_MISSING,
        WithheldReason::NotExported | WithheldReason::NotCarried => &codes::NOT_EXPORTED,
        WithheldReason::NotImported => &codes::NOT_IMPORTED,
        WithheldReason::ClusterLocal => &codes::CLUSTER_LOCAL,
        WithheldReason::NodeLocal => &codes::NODE_LOCAL,
        WithheldReason::NoAddress => &codes::NO_ADDRESS,
        WithheldReason::EndpointFamily => &codes::ENDPOINT_FAMILY,
    };
    code.id
}
