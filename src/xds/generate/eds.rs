//! Assignments: the endpoints of one upstream cluster, as one view has them.

use strait_proto::envoy::envoy::config::core::v3 as core;
use strait_proto::envoy::envoy::config::endpoint::v3 as endpoint;
use strait_proto::envoy::google::protobuf::UInt32Value;

use super::cds::{SOCKET_MATCH, tls_mode};
use super::encode;
use crate::aggregate::MergedService;
use crate::model::{Locality, Resolution, TlsMode};
use crate::push::PushContext;
use crate::push::view::{Member, Role, ViewKey, assignment};
use crate::xds::names::OutboundName;
use crate::xds::resource::Resource;

/// The assignment of an upstream cluster.
pub(super) fn assigned(
    context: &PushContext,
    view: &ViewKey,
    name: &OutboundName,
    service: &MergedService,
) -> Resource {
    let alias = matches!(service.primary.resolution, Resolution::Alias(_));
    if alias || service.primary.port(name.port).is_none() {
        return empty(&name.to_string());
    }
    let localities = assignment(context, view, service, name.port).localities;
    let message = endpoint::ClusterLoadAssignment {
        cluster_name: name.to_string(),
        endpoints: localities
            .iter()
            .map(|group| locality(view.role, &group.locality, &group.members))
            .collect(),
        ..Default::default()
    };
    encode(name.to_string(), &message)
}

/// The assignment of an upstream cluster that has no endpoints, or that nobody knows: without an
/// answer Envoy would wait for one.
pub(super) fn empty(name: &str) -> Resource {
    let message =
        endpoint::ClusterLoadAssignment { cluster_name: name.into(), ..Default::default() };
    encode(name, &message)
}

/// Says once how all members are spoken to, where all are spoken to alike; else the majority's way
/// once, and the others' each. A gateway passes bytes on and need not know.
fn locality(role: Role, locality: &Locality, members: &[Member]) -> endpoint::LocalityLbEndpoints {
    let mtls = members.iter().filter(|member| member.tls_mode == TlsMode::Istio).count();
    let common = if mtls * 2 >= members.len() { TlsMode::Istio } else { TlsMode::Disabled };
    let metadata = |mode| core::Metadata {
        filter_metadata: [(SOCKET_MATCH.into(), tls_mode(mode))].into(),
        ..Default::default()
    };
    let explicit = |mode| (role == Role::Client && mode != common).then(|| metadata(mode));
    endpoint::LocalityLbEndpoints {
        locality: (!locality.is_empty()).then(|| core::Locality {
            region: locality.region.to_string(),
            zone: locality.zone.to_string(),
            sub_zone: locality.subzone.to_string(),
        }),
        // Plain text is what an upstream cluster falls back to.
        metadata: (role == Role::Client && common == TlsMode::Istio).then(|| metadata(common)),
        lb_endpoints: members
            .iter()
            .map(|member| lb_endpoint(member, explicit(member.tls_mode)))
            .collect(),
        ..Default::default()
    }
}

fn lb_endpoint(member: &Member, metadata: Option<core::Metadata>) -> endpoint::LbEndpoint {
    use core::address::Address::SocketAddress;
    use core::socket_address::PortSpecifier;
    let address = core::SocketAddress {
        address: member.address.to_string(),
        port_specifier: Some(PortSpecifier::PortValue(member.port.into())),
        ..Default::default()
    };
    endpoint::LbEndpoint {
        host_identifier: Some(endpoint::lb_endpoint::HostIdentifier::Endpoint(
            endpoint::Endpoint {
                address: Some(core::Address { address: Some(SocketAddress(address)) }),
                ..Default::default()
            },
        )),
        metadata,
        // Without a weight an endpoint counts 1.
        load_balancing_weight: (member.weight != 1).then_some(UInt32Value { value: member.weight }),
        ..Default::default()
    }
}
